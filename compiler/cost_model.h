/* What a plan should reach on a GPU, by arithmetic alone: bytes over bandwidth, operations over
 * peak, launches. */
#ifndef LLMC_COMPILER_COST_MODEL_H
#define LLMC_COMPILER_COST_MODEL_H

#include "plan/plan.h"

typedef struct LinkInfo {
	const char *name, *title;
	double bandwidth; /* bytes/s that one GPU sends */
	double latency_s; /* of a sum of few bytes */
	const char *source;
} LinkInfo;

typedef struct Gpu {
	const char *name, *title, *target;
	int sms, memory_gib;
	double bandwidth, peak; /* bytes/s, flop/s */
	double launch_s;
	const LinkInfo *link; /* to the other GPUs of its host */
	const char *source;
} Gpu;

enum { GPU_HOST = 8 };                    /* GPUs of a host */
extern const LinkInfo *const gpu_network; /* between hosts */

/* By its name here ("h100") or the one that its driver tells ("NVIDIA H100 80GB HBM3"); NULL:
 * unknown */
const Gpu *gpu_find(const char *name);
const Gpu *gpu_at(int i); /* NULL behind the last */

typedef struct Prediction {
	int64_t bytes, flops;
	int launches;
	int sums;          /* ops between ranks */
	int64_t sum_bytes; /* that they add and join, of one rank */
	double seconds;    /* of the step */
	double bytes_s, flops_s, launch_s,
	    link_s; /* its parts: steps bound by bytes, by operations, the cost of launches, ops
	               between ranks */
} Prediction;

/* One step of phase 0 (decode: `rows` sequences of `context` positions, one row each) or 1 (mixed:
 * one sequence, `rows` rows behind `context - rows` others). Every step takes the larger of bytes
 * over 90 % of the bandwidth and operations over 75 % of the peak, the next one begins when it has
 * ended. A sum of b bytes over n ranks takes the latency and 2 (n - 1) / n b bytes over the link,
 * as rings do and sums by slices; beyond a host's GPUs the same again over the network, of a host's
 * share each. What a stage is handed crosses the network where its stages are more than a host
 * holds. */
Prediction predict(const Plan *p, const Gpu *gpu, int phase, int64_t rows, int64_t context);

#endif

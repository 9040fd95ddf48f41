/* Expected speed of a plan on a GPU, computed from bytes / bandwidth, operations / peak and
 * launches. */
#ifndef LLMC_COMPILER_COST_MODEL_H
#define LLMC_COMPILER_COST_MODEL_H

#include "plan/plan.h"

typedef struct LinkInfo {
	const char *name, *title;
	double bandwidth; /* bytes/s that one GPU sends */
	double latency_s; /* seconds of an all-reduce of few bytes */
	const char *source;
} LinkInfo;

typedef struct Gpu {
	const char *name, *title, *target;
	int sms, memory_gib;
	int64_t l2_bytes;
	double bandwidth, peak; /* bytes/s, flop/s */
	double launch_s;
	const LinkInfo *link; /* to the other GPUs of the host */
	const char *source;
} Gpu;

enum { GPU_HOST = 8 };                    /* number of GPUs per host */
extern const LinkInfo *const gpu_network; /* link between hosts */

/* Find a GPU by its name in gpu.def ("h100") or by the name that its driver reports ("NVIDIA H100
 * 80GB HBM3"); NULL: unknown. */
const Gpu *gpu_find(const char *name);
const Gpu *gpu_at(int i); /* NULL if i is past the end */
/* Return the largest L2 among the GPUs of a target; 0: none is known */
int64_t gpu_largest_l2(const char *target);

typedef struct Prediction {
	int64_t bytes, flops;
	int launches;
	int sums;          /* number of communication ops */
	int64_t sum_bytes; /* bytes that they reduce and gather, per rank */
	double seconds;    /* seconds of the whole step */
	double bytes_s, flops_s, launch_s,
	    /* parts of `seconds`: memory-bound steps, compute-bound steps, launches,
	     * communication */
	    link_s;
} Prediction;

/* Predict one step of phase 0 (decode: `rows` sequences of `context` positions, one row each) or 1
 * (mixed: one sequence, `rows` rows after `context - rows` others).
 *
 * The time of a plan step is the larger of two: its bytes at 90 % of the bandwidth, and its
 * operations at 75 % of the peak. Steps do not overlap. An all-reduce of b bytes over n ranks takes
 * the latency plus 2 (n - 1) / n b bytes over the link, as in a ring. If the ranks span several
 * hosts, the same formula is added for the network, with each host's share of the bytes. The input
 * of a stage crosses the network if the stages do not fit on one host. A value that passes between
 * a GPU and the CPU takes CROSSING_S, plus the time of its bytes on the link to the host. */
Prediction predict(const Plan *p, const Gpu *gpu, int phase, int64_t rows, int64_t context);

/* Seconds that a value between a GPU and the CPU takes in addition to its bytes: two copies and a
 * host function in a graph. Assumed, not measured. */
static const double CROSSING_S = 15e-6;
/* Bytes/s at which kernels read from a GPU's memory, and the GPU's link to the host. NULL: the GPU
 * is not in the table and is assumed to be an RTX 4090 */
double gpu_read_bandwidth(const Gpu *g);
const LinkInfo *gpu_host_link(const Gpu *g);
/* Bytes that the CPU's part of a model reads in a decode step */
int64_t predict_host_bytes(const Plan *p, int64_t rows, int64_t context);

#endif

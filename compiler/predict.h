/* What a plan should reach on a GPU, by arithmetic alone: bytes over bandwidth, operations over peak, launches. */
#ifndef LLMC_COMPILER_PREDICT_H
#define LLMC_COMPILER_PREDICT_H

#include "plan/plan.h"

typedef struct Gpu {
	const char *name, *title, *target;
	int         sms, memory_gib;
	double      bandwidth, peak;   /* bytes/s, flop/s */
	double      launch_s;
	const char *source;
} Gpu;

/* By its name here ("h100") or the one that its driver tells ("NVIDIA H100 80GB HBM3"); NULL: unknown */
const Gpu *gpu_find(const char *name);
const Gpu *gpu_at(int i);               /* NULL behind the last */

typedef struct Prediction {
	int64_t bytes, flops;
	int     launches;
	double  seconds;           /* of the step */
	double  bytes_s, flops_s, launch_s; /* its parts: steps bound by bytes, by operations, and the cost of launches */
} Prediction;

/* One step of phase 0 (decode: `rows` sequences of `context` positions, one row each) or 1 (mixed: one sequence, `rows` rows
 * behind `context - rows` others). Every step takes the larger of bytes over 90 % of the bandwidth and operations over 75 %
 * of the peak, the next one begins when it has ended. */
Prediction predict(const Plan *p, const Gpu *gpu, int phase, int64_t rows, int64_t context);

#endif

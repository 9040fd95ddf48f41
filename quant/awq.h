/* Column factors of AWQ. The weights after a norm are multiplied column by column, and the norm's
 * weights are divided by the same factors. So columns with large inputs lose less when they are
 * rounded. The model computes the same function; only the rounding changes. */
#ifndef LLMC_QUANT_AWQ_H
#define LLMC_QUANT_AWQ_H

#include "plan/plan.h"
#include "runtime/threads/threads.h"

enum { AWQ_READERS = 8 };

/* Finds the checkpoint tensors of the matrices that read the output of step i of the unfused plan,
 * which must be a norm. Returns their number; 0: step i is not a norm, or other ops read its
 * output, or the tensors cannot take factors. *weight: the norm's weight. */
int awq_readers(const Plan *plan, int i, const char **weight, const char *name[AWQ_READERS]);

typedef struct AwqMatrix {
	Dtype from, to;
	const void *src; /* [rows][cols] of type `from` */
	int64_t rows;
} AwqMatrix;

/* Computes factors s [cols] for matrices that share their input; importance: mean squares of that
 * input. The candidates are importance ^ (a/2), with a from 0 (all factors 1) to just below 1. The
 * one with the least output error is selected; errors of a matrix count relative to its energy.
 * Results do not depend on the number of threads. false: out of memory */
bool awq_factors(const AwqMatrix *m, int n, int64_t cols, const float *importance, Threads *threads,
                 float *s);

#endif

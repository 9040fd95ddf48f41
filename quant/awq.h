/* Factors of columns (AWQ): what stands behind a norm is multiplied, column by column, by what the
 * norm's weights are divided by, so that columns which large inputs meet lose less when they are
 * rounded. The model computes the same; only where roundings fall is another. */
#ifndef LLMC_QUANT_AWQ_H
#define LLMC_QUANT_AWQ_H

#include "plan/plan.h"
#include "runtime/threads/threads.h"

enum { AWQ_READERS = 8 };

/* Tensors of the checkpoint that are multiplied by what step i of the unfused plan makes, a norm,
 * where nothing else reads it and they can take factors; how many. 0: none can, or step i is no
 * such norm. *weight: the norm's own. */
int awq_readers(const Plan *plan, int i, const char **weight, const char *name[AWQ_READERS]);

typedef struct AwqMatrix {
	Dtype from, to;
	const void *src; /* [rows][cols] of type from */
	int64_t rows;
} AwqMatrix;

/* Factors s [cols] for matrices that share their input, whose squares are importance on average: of
 * (importance ^ a/2), a from 0 (all 1) to just below 1, those of least error of the outputs, each
 * matrix's as a share of its energy. The same for any number of threads. false: memory is out */
bool awq_factors(const AwqMatrix *m, int n, int64_t cols, const float *importance, Threads *threads,
                 float *s);

#endif

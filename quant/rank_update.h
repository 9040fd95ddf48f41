/* Sums of outer products, the kernel of Hessians, their factors and error compensation. */
#ifndef LLMC_QUANT_RANK_UPDATE_H
#define LLMC_QUANT_RANK_UPDATE_H

#include <stdint.h>

/* c[i][j] += (or -=, if minus) sum over t < k of a[t][i] * b[t][j], for i < m, j < n; rows are lda,
 * ldb, ldc floats apart. Computes in fp32 with the widest vectors of the CPU; the order of the sum
 * does not depend on m and n. */
void outer_add(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k, float *c,
               int64_t ldc, int64_t m, int64_t n, int minus);
/* y[j] += a * x[j] */
void outer_axpy(float a, const float *x, float *y, int64_t n);

#endif

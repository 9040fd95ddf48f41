/* Sums of outer products, which is what Hessians, their factors and error compensation are made of.
 */
#ifndef LLMC_QUANT_RANK_UPDATE_H
#define LLMC_QUANT_RANK_UPDATE_H

#include <stdint.h>

/* c[i][j] += (or -=, when minus) sum over t < k of a[t][i] * b[t][j], for i < m, j < n; rows lie
 * lda, ldb, ldc floats apart. fp32, in an order that depends on neither m nor n; the processor's
 * widest vectors. */
void outer_add(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k, float *c,
               int64_t ldc, int64_t m, int64_t n, int minus);
/* y[j] += a * x[j] */
void outer_axpy(float a, const float *x, float *y, int64_t n);

#endif

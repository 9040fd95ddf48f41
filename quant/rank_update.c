/* One body built for three vector widths, selected at run time. It is built with FP contraction
 * (see the Makefile): the last bit may differ between CPUs, but not between runs or numbers of
 * threads. */
#include "quant/rank_update.h"

#include <string.h>

typedef float Wide __attribute__((vector_size(64)));
enum { WIDE = 16, TILE_N = 2 * WIDE, MOST_M = 12 };

static inline __attribute__((always_inline)) void
edge(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k, float *c, int64_t ldc,
     int64_t m, int64_t n, float sign)
{
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			float sum = 0;
			for (int64_t t = 0; t < k; t++)
				sum += a[t * lda + i] * b[t * ldb + j];
			c[i * ldc + j] += sign * sum;
		}
}

static inline __attribute__((always_inline)) void
body(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k, float *c, int64_t ldc,
     int64_t m, int64_t n, float sign, const int tile_m)
{
	int64_t i, j;

	for (i = 0; i + tile_m <= m; i += tile_m) {
		for (j = 0; j + TILE_N <= n; j += TILE_N) {
			Wide sum[MOST_M][2] = { { { 0 } } };
			for (int64_t t = 0; t < k; t++) {
				Wide b0, b1;
				memcpy(&b0, b + t * ldb + j, sizeof b0);
				memcpy(&b1, b + t * ldb + j + WIDE, sizeof b1);
				for (int r = 0; r < tile_m; r++) {
					sum[r][0] += a[t * lda + i + r] * b0;
					sum[r][1] += a[t * lda + i + r] * b1;
				}
			}
			for (int r = 0; r < tile_m; r++)
				for (int h = 0; h < 2; h++) {
					Wide v;
					memcpy(&v, c + (i + r) * ldc + j + h * WIDE, sizeof v);
					v += sign * sum[r][h];
					memcpy(c + (i + r) * ldc + j + h * WIDE, &v, sizeof v);
				}
		}
		for (; j + WIDE <= n; j += WIDE) {
			Wide sum[MOST_M] = { { 0 } };
			for (int64_t t = 0; t < k; t++) {
				Wide b0;
				memcpy(&b0, b + t * ldb + j, sizeof b0);
				for (int r = 0; r < tile_m; r++)
					sum[r] += a[t * lda + i + r] * b0;
			}
			for (int r = 0; r < tile_m; r++) {
				Wide v;
				memcpy(&v, c + (i + r) * ldc + j, sizeof v);
				v += sign * sum[r];
				memcpy(c + (i + r) * ldc + j, &v, sizeof v);
			}
		}
		edge(a + i, lda, b + j, ldb, k, c + i * ldc + j, ldc, tile_m, n - j, sign);
	}
	edge(a + i, lda, b, ldb, k, c + i * ldc, ldc, m - i, n, sign);
}

static inline __attribute__((always_inline)) void
axpy(float a, const float *x, float *y, int64_t n)
{
	int64_t j = 0;

	for (; j + WIDE <= n; j += WIDE) {
		Wide v, w;
		memcpy(&v, x + j, sizeof v);
		memcpy(&w, y + j, sizeof w);
		w += a * v;
		memcpy(y + j, &w, sizeof w);
	}
	for (; j < n; j++)
		y[j] += a * x[j];
}

#define BODIES(name, attr, tile_m)                                                                 \
	attr static void outer_##name(const float *a, int64_t lda, const float *b, int64_t ldb,    \
	                              int64_t k, float *c, int64_t ldc, int64_t m, int64_t n,      \
	                              float sign)                                                  \
	{                                                                                          \
		body(a, lda, b, ldb, k, c, ldc, m, n, sign, tile_m);                               \
	}                                                                                          \
	attr static void axpy_##name(float a, const float *x, float *y, int64_t n)                 \
	{                                                                                          \
		axpy(a, x, y, n);                                                                  \
	}

BODIES(plain, , 4)
#if defined(__x86_64__)
BODIES(avx2, __attribute__((target("avx2,fma"))), 4)
BODIES(avx512, __attribute__((target("avx512f,avx2,fma"))), 8)
#define HAS(name) __builtin_cpu_supports(name)
#else
#define outer_avx2 outer_plain
#define outer_avx512 outer_plain
#define axpy_avx2 axpy_plain
#define axpy_avx512 axpy_plain
#define HAS(name) 0
#endif

void
outer_add(const float *a, int64_t lda, const float *b, int64_t ldb, int64_t k, float *c,
          int64_t ldc, int64_t m, int64_t n, int minus)
{
	float sign = minus ? -1.0f : 1.0f;

	if (HAS("avx512f"))
		outer_avx512(a, lda, b, ldb, k, c, ldc, m, n, sign);
	else if (HAS("avx2") && HAS("fma"))
		outer_avx2(a, lda, b, ldb, k, c, ldc, m, n, sign);
	else
		outer_plain(a, lda, b, ldb, k, c, ldc, m, n, sign);
}

void
outer_axpy(float a, const float *x, float *y, int64_t n)
{
	if (HAS("avx512f"))
		axpy_avx512(a, x, y, n);
	else if (HAS("avx2") && HAS("fma"))
		axpy_avx2(a, x, y, n);
	else
		axpy_plain(a, x, y, n);
}

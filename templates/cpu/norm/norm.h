/* Norms, alone or before a matmul. The order of summation is the same everywhere. */
#ifndef LLMC_CPU_NORM_NORM_H
#define LLMC_CPU_NORM_NORM_H

#include "cpu/math/vector.h"

/* sum of (x - mean)^2 over n elements */
LLMC_INLINE float
norm_squares(const float *x, int n, float mean)
{
	vf sum[4] = { { 0 } }, m = vf_set1(mean);
	int i = 0;

	for (; i + 4 * VL <= n; i += 4 * VL)
		LLMC_UNROLL
	for (int j = 0; j < 4; j++) {
		vf d = vf_load(x + i + j * VL) - m;
		sum[j] = vf_fma(d, d, sum[j]);
	}
	for (; i + VL <= n; i += VL) {
		vf d = vf_load(x + i) - m;
		sum[0] = vf_fma(d, d, sum[0]);
	}
	float s = vf_hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
	for (; i < n; i++)
		s = f32_fma(x[i] - mean, x[i] - mean, s);
	return s;
}

LLMC_INLINE float
norm_sum(const float *x, int n)
{
	vf sum = { 0 };
	int i = 0;

	for (; i + VL <= n; i += VL)
		sum += vf_load(x + i);
	float s = vf_hsum(sum);
	for (; i < n; i++)
		s += x[i];
	return s;
}

/* y = (x - mean) * r * (w + plus) + b; w and b may be NULL */
LLMC_INLINE void
norm_apply(const float *x, int n, float mean, float r, const float *w, float plus, const float *b,
           float *y)
{
	vf m = vf_set1(mean), rv = vf_set1(r), p = vf_set1(plus);
	int i = 0;

	for (; i + VL <= n; i += VL) {
		vf v = (vf_load(x + i) - m) * rv;
		if (w)
			v *= vf_load(w + i) + p;
		if (b)
			v += vf_load(b + i);
		vf_store(y + i, v);
	}
	for (; i < n; i++) {
		float v = (x[i] - mean) * r;
		if (w)
			v *= w[i] + plus;
		if (b)
			v += b[i];
		y[i] = v;
	}
}

LLMC_INLINE void
norm_rms(const float *x, int n, const float *w, float plus, float eps, float *y)
{
	norm_apply(x, n, 0, 1 / f32_sqrt(norm_squares(x, n, 0) / (float)n + eps), w, plus, NULL, y);
}

typedef struct Norm {
	enum { NORM_none, NORM_rms, NORM_layer } kind;
	float plus; /* added to the weight */
	float eps;
	const float *w, *b; /* may be NULL */
} Norm;

/* Returns the row after the norm: y, or x itself if there is no norm. */
LLMC_INLINE const float *
norm_row(const Norm n, const float *x, int cols, float *y)
{
	if (n.kind == NORM_none)
		return x;
	if (n.kind == NORM_rms) {
		norm_rms(x, cols, n.w, n.plus, n.eps, y);
	} else {
		float mean = norm_sum(x, cols) / (float)cols;
		float var = norm_squares(x, cols, mean) / (float)cols;
		norm_apply(x, cols, mean, 1 / f32_sqrt(var + n.eps), n.w, n.plus, n.b, y);
	}
	return y;
}

#endif

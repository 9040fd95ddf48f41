/* Row norms, as `norm_${NORM}`: the statistics of a row, which one warp computes, and their
 * application to an element. Sums have a fixed order. NORMED: rows are normed; MEAN: the mean is
 * subtracted. */
#ifndef LLMC_CUDA_NORM_NORM_H
#define LLMC_CUDA_NORM_NORM_H

#include "cuda/math/math.h"

/* Weights and biases of a norm (NULL: none). plus_one: multiply by 1 + weight */
struct norm_vectors {
	const float *w, *b;
	float eps;
	int plus_one;
};

/* w[i], or 1 + w[i] with plus_one; 1 without weights */
DEV float
norm_gain(const float *w, int i, int plus_one)
{
	return w ? w[i] + (float)plus_one : 1.0f;
}
DEV float
norm_bias(const float *b, int i)
{
	return b ? b[i] : 0.0f;
}

struct norm_none {
	enum { NORMED = 0, MEAN = 0 };
	DEV void
	stats(const float *, int, float, float &mean, float &scale)
	{
		mean = 0, scale = 1;
	}
	DEV float
	apply(float x, float, float, const float *, const float *, int, int)
	{
		return x;
	}
};

struct norm_rms {
	enum { NORMED = 1, MEAN = 0 };
	/* Computes the statistics; all lanes of a warp call. */
	DEV void
	stats(const float *x, int n, float eps, float &mean, float &scale)
	{
		float sum = 0;
		for (int i = lane_id(); i < n; i += 32)
			sum = fmaf(x[i], x[i], sum);
		mean = 0;
		scale = 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
	}

	DEV float
	apply(float x, float, float scale, const float *w, const float *, int i, int plus_one)
	{
		return x * scale * norm_gain(w, i, plus_one);
	}
};

struct norm_layer {
	enum { NORMED = 1, MEAN = 1 };
	DEV void
	stats(const float *x, int n, float eps, float &mean, float &scale)
	{
		float sum = 0, var = 0;
		for (int i = lane_id(); i < n; i += 32)
			sum += x[i];
		mean = warp_sum(sum) / (float)n;
		for (int i = lane_id(); i < n; i += 32)
			var = fmaf(x[i] - mean, x[i] - mean, var);
		scale = 1.0f / sqrtf(warp_sum(var) / (float)n + eps);
	}

	DEV float
	apply(float x, float mean, float scale, const float *w, const float *b, int i, int plus_one)
	{
		return (x - mean) * scale * norm_gain(w, i, plus_one) + norm_bias(b, i);
	}
};

#endif

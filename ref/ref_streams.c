/* Parallel residual streams, and gaussian_topk. */
#include "ref/ref_internal.h"

void
ref_gaussian_topk(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), n = ref_rows(c, ARG(gaussian_topk, y));
	double scale = step_num(c->step, "scale");
	const float *x = ref_f32(c, ARG(gaussian_topk, x));
	float *y = ref_f32(c, ARG(gaussian_topk, y));

	for (int64_t t = 0; t < n; t++, x += width, y += width) {
		double mean = 0, var = 0;
		for (int64_t i = 0; i < width; i++)
			mean += x[i];
		mean /= (double)width;
		for (int64_t i = 0; i < width; i++)
			var += (x[i] - mean) * (x[i] - mean);
		double cut = mean + scale * sqrt(var / (double)width);
		for (int64_t i = 0; i < width; i++)
			y[i] = (float)fmax(x[i] - cut, 0);
	}
}

void
ref_match_rms(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), n = ref_rows(c, ARG(match_rms, y));
	const float *x = ref_f32(c, ARG(match_rms, x)), *r = ref_f32(c, ARG(match_rms, r));
	float *y = ref_f32(c, ARG(match_rms, y));

	for (int64_t t = 0; t < n; t++, x += width, r += width, y += width) {
		double own = fmax(ref_dot(x, x, width) / (double)width, step_num(c->step, "eps"));
		double scale = sqrt(ref_dot(r, r, width) / (double)width / own);
		for (int64_t i = 0; i < width; i++)
			y[i] = (float)(x[i] * scale);
	}
}

void
ref_stream_mix(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), groups = step_int(c->step, "groups"),
	        n = ref_rows(c, ARG(stream_mix, y));
	const float *x = ref_f32(c, ARG(stream_mix, x)), *m = ref_f32(c, ARG(stream_mix, m));
	float *y = ref_f32(c, ARG(stream_mix, y));

	for (int64_t t = 0; t < n;
	     t++, x += groups * width, m += groups * groups, y += groups * width)
		for (int64_t i = 0; i < groups; i++)
			for (int64_t e = 0; e < width; e++) {
				double sum = x[i * width + e];
				for (int64_t j = 0; j < groups; j++)
					sum += (double)m[i * groups + j] * x[j * width + e];
				y[i * width + e] = (float)sum;
			}
}

void
ref_stream_correct(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), groups = step_int(c->step, "groups"),
	        first = step_int(c->step, "first"), n = ref_rows(c, ARG(stream_correct, y));
	const float *x = ref_f32(c, ARG(stream_correct, x)),
	            *a = ref_f32(c, ARG(stream_correct, a)),
	            *m = ref_f32(c, ARG(stream_correct, m));
	float *y = ref_f32(c, ARG(stream_correct, y));

	for (int64_t t = 0; t < n;
	     t++, x += groups * width, a += width, m += groups, y += groups * width)
		for (int64_t i = 0; i < groups; i++)
			for (int64_t e = 0; e < width; e++)
				y[i * width + e] =
				    (float)(x[i * width + e] +
				            (1 + (double)m[i]) *
				                ((double)a[e] - x[first * width + e]));
}

void
ref_stream_add(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), groups = step_int(c->step, "groups"),
	        first = step_int(c->step, "first"), n = ref_rows(c, ARG(stream_add, y));
	const float *x = ref_f32(c, ARG(stream_add, x)), *z = ref_f32(c, ARG(stream_add, z));
	float *y = ref_f32(c, ARG(stream_add, y));

	for (int64_t t = 0; t < n; t++, x += groups * width, z += width, y += groups * width)
		for (int64_t i = 0; i < groups; i++)
			for (int64_t e = 0; e < width; e++)
				y[i * width + e] =
				    i < first ? x[i * width + e] : x[i * width + e] + z[e];
}

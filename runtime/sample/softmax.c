/* Parts of sampling that read the whole vocabulary, eight values at a time. */
#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "runtime/sample/sampler.h"

typedef float Logits8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(32)));

#if defined(__SSE2__)
/* Return the largest of v [n], n a multiple of 8. *nan: v holds NaN, and the result is
 * meaningless. */
static float
largest_of(const float *v, int32_t n, bool *nan)
{
	__m128 a = _mm_set1_ps(-INFINITY), b = a, bad = _mm_setzero_ps();
	float lane[4];

	for (int32_t i = 0; i < n; i += 8) {
		__m128 x = _mm_loadu_ps(v + i), y = _mm_loadu_ps(v + i + 4);
		bad = _mm_or_ps(bad, _mm_cmpunord_ps(x, y));
		a = _mm_max_ps(a, x);
		b = _mm_max_ps(b, y);
	}
	*nan = _mm_movemask_ps(bad) != 0;
	_mm_storeu_ps(lane, _mm_max_ps(a, b));
	a = _mm_max_ps(_mm_set1_ps(lane[0]), _mm_set1_ps(lane[1]));
	b = _mm_max_ps(_mm_set1_ps(lane[2]), _mm_set1_ps(lane[3]));
	return _mm_cvtss_f32(_mm_max_ps(a, b));
}
#else
static float
largest_of(const float *v, int32_t n, bool *nan)
{
	float most = -INFINITY;

	*nan = false;
	for (int32_t i = 0; i < n; i++) {
		*nan |= v[i] != v[i];
		most = v[i] > most ? v[i] : most;
	}
	return most;
}
#endif

llmc_status
sample_largest(const float *v, int32_t n, int32_t *at, llmc_error *err)
{
	bool bad;
	int32_t i = n & ~7;
	float most = largest_of(v, i, &bad);

	for (; i < n; i++) {
		bad |= v[i] != v[i];
		most = v[i] > most ? v[i] : most;
	}
	if (bad) {
		for (i = 0; v[i] == v[i]; i++)
			;
		return error_set(err, LLMC_E_CHECK,
		                 "the logits hold NaN (token %d): weights or kernels are broken, "
		                 "try `llmc verify`",
		                 i);
	}
	if (most == -INFINITY)
		return error_set(err, LLMC_E_CHECK,
		                 "all logits are minus infinity: no token can be sampled");
	for (i = 0; v[i] != most; i++)
		;
	*at = i;
	return LLMC_OK;
}

llmc_status
sample_largest_of(const float *v, int32_t n, const uint32_t *bits, int32_t *at, llmc_error *err)
{
	float most = -INFINITY;
	int32_t where = -1; /* first index of the 32 values that include the largest */
	bool bad;

	for (int32_t i = 0; i < n; i += 32) {
		uint32_t b = bits[i >> 5];
		float x = -INFINITY;
		if (n - i < 32)
			b &= (1u << (n - i)) - 1;
		if (b == UINT32_MAX)
			x = largest_of(v + i, 32, &bad);
		else
			for (; b; b &= b - 1) {
				float y = v[i + __builtin_ctz(b)];
				x = y > x ? y : x;
			}
		if (x > most) {
			most = x;
			where = i;
		}
	}
	if (where < 0)
		return error_set(err, LLMC_E_CHECK,
		                 "all logits are minus infinity: no token can be sampled");
	for (*at = where; v[*at] != most || !(bits[*at >> 5] >> (*at & 31) & 1); ++*at)
		;
	return LLMC_OK;
}

/* exp for x <= 0 with a relative error below 2e-7; 0 below -87. 2^n * exp(r), |r| <= ln 2 / 2. */
static inline __attribute__((always_inline)) void
exp_lanes(Logits8 *v)
{
	Logits8 x = *v;
	Mask live = x > -87.0f;

	x = (Logits8)((Mask)x & live);
	/* after the addition the low bits of n hold the integer */
	Logits8 n = x * 1.44269504f + 12582912.0f;
	Mask e = (Mask)n;
	n -= 12582912.0f;
	x -= n * 0.693359375f;
	x -= n * -2.12194440e-4f;
	Logits8 y = x * 1.9875691500e-4f + 1.3981999507e-3f;
	y = y * x + 8.3334519073e-3f;
	y = y * x + 4.1665795894e-2f;
	y = y * x + 1.6666665459e-1f;
	y = y * x + 5.0000001201e-1f;
	y = y * (x * x) + x + 1.0f;
	*v = (Logits8)((((Mask)y + ((e - 0x4b400000) << 23))) & live);
}

double
sample_weights(float *v, int32_t n, float temperature, float max)
{
	double sum[4] = { 0 };
	int32_t i = 0;

	for (; i < n; i += 8) {
		Logits8 x;
		if (i + 8 <= n) {
			x = *(const Logits8 *)(v + i) / temperature - max;
			exp_lanes(&x);
			*(Logits8 *)(v + i) = x;
		} else {
			x = (Logits8){ -INFINITY, -INFINITY, -INFINITY, -INFINITY,
				       -INFINITY, -INFINITY, -INFINITY, -INFINITY };
			for (int32_t k = 0; i + k < n; k++)
				x[k] = v[i + k] / temperature - max;
			exp_lanes(&x);
			for (int32_t k = 0; i + k < n; k++)
				v[i + k] = x[k];
		}
		for (int k = 0; k < 4; k++)
			sum[k] += (double)x[k] + (double)x[k + 4];
	}
	return sum[0] + sum[1] + sum[2] + sum[3];
}

static double
sum_exp(const float *v, int32_t n, float max)
{
	float piece[256];
	double sum = 0;

	for (int32_t i = 0; i < n; i += 256) {
		int32_t k = n - i < 256 ? n - i : 256;
		memcpy(piece, v + i, (size_t)k * sizeof *piece);
		sum += sample_weights(piece, k, 1, max);
	}
	return sum;
}

/* Normaliser of log probabilities. An infinite logit has probability 1. */
typedef struct Normaliser {
	float max;
	double base; /* log of the sum of exponentials; NAN: there is no distribution */
} Normaliser;

static Normaliser
normaliser_of(const float *logits, int32_t vocab)
{
	int32_t best;

	if (sample_largest(logits, vocab, &best, NULL) != LLMC_OK)
		return (Normaliser){ NAN, NAN };
	const float max = logits[best];
	return (Normaliser){ max,
		             max == INFINITY ? INFINITY : max + log(sum_exp(logits, vocab, max)) };
}

static float
logprob_of(Normaliser n, float logit)
{
	if (n.max == INFINITY)
		return logit == INFINITY ? 0 : -INFINITY;
	return (float)(logit - n.base);
}

float
sample_logprobs(const float *logits, int32_t vocab, int32_t id, llmc_logprob *top, int32_t n_top)
{
	const Normaliser norm = normaliser_of(logits, vocab);
	int32_t n = 0;

	if (isnan(norm.base))
		return NAN;
	n_top = n_top < vocab ? n_top : vocab;
	float floor = -INFINITY; /* smallest value in top, once it is full */
	for (int32_t i = 0; n_top && i < vocab; i++) {
		if (n == n_top && !(logits[i] > floor))
			continue;
		int32_t at = n < n_top ? n++ : n_top - 1;
		for (; at > 0 && top[at - 1].logprob < logits[i]; at--)
			top[at] = top[at - 1];
		top[at] = (llmc_logprob){ i, logits[i] };
		floor = top[n - 1].logprob;
	}
	for (int32_t i = 0; i < n; i++)
		top[i].logprob = logprob_of(norm, top[i].logprob);
	return logprob_of(norm, logits[id]);
}

int32_t
sample_rank(const float *logits, int32_t vocab, int32_t id)
{
	int32_t n = 0;

	for (int32_t i = 0; i < vocab; i++)
		n += logits[i] >= logits[id];
	return n;
}

int32_t
sample_logprobs_of(const float *logits, int32_t vocab, const int32_t *id, int32_t n,
                   llmc_logprob *out)
{
	const Normaliser norm = normaliser_of(logits, vocab);

	for (int32_t i = 0; i < n; i++)
		out[i] = (llmc_logprob){ id[i], logprob_of(norm, logits[id[i]]) };
	return n;
}

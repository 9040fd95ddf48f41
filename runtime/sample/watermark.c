/* Watermark of Kirchenbauer et al. (arXiv 2301.10226), as in TGI and transformers: the last token
 * seeds a generator that shuffles the vocabulary, and the logits of the first half are raised. A
 * detector must get the same half, so generator and shuffle are those of torch on the CPU: the
 * 32-bit Mersenne twister (Matsumoto and Nishimura 1998) and the Fisher-Yates shuffle. */
#include "runtime/sample/sampler.h"

enum { N = 624, M = 397 };

typedef struct Twister {
	uint32_t s[N];
	int at;
} Twister;

static void
twister_seed(Twister *t, uint32_t seed)
{
	t->s[0] = seed;
	for (int i = 1; i < N; i++)
		t->s[i] = 1812433253u * (t->s[i - 1] ^ t->s[i - 1] >> 30) + (uint32_t)i;
	t->at = N;
}

static uint32_t
twister_next(Twister *t)
{
	if (t->at == N) {
		for (int i = 0; i < N; i++) {
			uint32_t y = (t->s[i] & 0x80000000u) | (t->s[(i + 1) % N] & 0x7fffffffu);
			t->s[i] = t->s[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
		}
		t->at = 0;
	}
	uint32_t y = t->s[t->at++];
	y ^= y >> 11;
	y ^= y << 7 & 0x9d2c5680u;
	y ^= y << 15 & 0xefc60000u;
	return y ^ y >> 18;
}

void
sample_watermark(float *v, int32_t n, int32_t last, float gain, int32_t *order)
{
	enum { HASH_KEY = 15485863 };
	Twister t;

	twister_seed(&t, (uint32_t)((uint64_t)HASH_KEY * (uint32_t)last));
	for (int32_t i = 0; i < n; i++)
		order[i] = i;
	/* only the first half of the shuffle is used */
	for (int32_t i = 0; i < n / 2; i++) {
		int32_t z = i + (int32_t)(twister_next(&t) % (uint32_t)(n - i)), id = order[z];
		order[z] = order[i];
		order[i] = id;
		v[id] += gain;
	}
}

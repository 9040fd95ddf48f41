#include "base/sha256.h"

#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t K[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
	0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
	0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
	0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
	0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
	0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
	0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
	0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
	0xc67178f2,
};

static uint32_t
ror(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static int known; /* does the processor have instructions for SHA-256? 0: unknown, 1: no, 2: yes */

void
sha256_portable(bool only)
{
	__atomic_store_n(&known, only ? 1 : 0, __ATOMIC_RELAXED);
}

#ifdef __x86_64__
static bool
has_instructions(void)
{
	unsigned a, b, c, d;
	int now = __atomic_load_n(&known, __ATOMIC_RELAXED);

	if (!now) {
		now = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSSE3) && (c & bit_SSE4_1) &&
		              __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA)
		          ? 2
		          : 1;
		__atomic_store_n(&known, now, __ATOMIC_RELAXED);
	}
	return now == 2;
}

/* The instructions store the state as words a b e f and c d g h, the highest word first. */
__attribute__((target("sha,sse4.1"))) static void
compress_with_instructions(uint32_t h[8], const uint8_t *p)
{
	const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
	const __m128i dcba = _mm_loadu_si128((const __m128i *)h),
	              hgfe = _mm_loadu_si128((const __m128i *)(h + 4));
	const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
	const __m128i abef0 = _mm_alignr_epi8(cdab, efgh, 8),
	              cdgh0 = _mm_blend_epi16(efgh, cdab, 0xf0);
	__m128i abef = abef0, cdgh = cdgh0, w[16];

	for (int i = 0; i < 4; i++)
		w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(p + 16 * i)), big_endian);
	for (int i = 4; i < 16; i++)
		w[i] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]),
		                                          _mm_alignr_epi8(w[i - 1], w[i - 2], 4)),
		                            w[i - 1]);
	for (int i = 0; i < 16; i++) {
		__m128i m = _mm_add_epi32(w[i], _mm_loadu_si128((const __m128i *)(K + 4 * i)));
		cdgh = _mm_sha256rnds2_epu32(cdgh, abef, m);
		abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(m, 0x0e));
	}
	abef = _mm_add_epi32(abef, abef0);
	cdgh = _mm_add_epi32(cdgh, cdgh0);
	const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
	_mm_storeu_si128((__m128i *)h, _mm_blend_epi16(feba, dchg, 0xf0));
	_mm_storeu_si128((__m128i *)(h + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

static void
compress(uint32_t h[8], const uint8_t *p)
{
	uint32_t w[64];

#ifdef __x86_64__
	if (has_instructions()) {
		compress_with_instructions(h, p);
		return;
	}
#endif

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 64; i++) {
		uint32_t a = w[i - 15], b = w[i - 2];
		w[i] = w[i - 16] + w[i - 7] + (ror(a, 7) ^ ror(a, 18) ^ a >> 3) +
		       (ror(b, 17) ^ ror(b, 19) ^ b >> 10);
	}
	uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4], f = h[5], g = h[6], k = h[7];
	for (int i = 0; i < 64; i++) {
		uint32_t t1 =
		    k + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i];
		uint32_t t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
		k = g;
		g = f;
		f = e;
		e = d + t1;
		d = c;
		c = b;
		b = a;
		a = t1 + t2;
	}
	const uint32_t v[8] = { a, b, c, d, e, f, g, k };
	for (int i = 0; i < 8; i++)
		h[i] += v[i];
}

void
sha256_init(Sha256 *s)
{
	*s = (Sha256){ .h = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
		              0x9b05688c, 0x1f83d9ab, 0x5be0cd19 } };
}

void
sha256_add(Sha256 *s, const void *data, size_t n)
{
	const uint8_t *p = data;

	while (n) {
		size_t at = s->n_bytes % 64, take = 64 - at < n ? 64 - at : n;
		memcpy(s->block + at, p, take);
		s->n_bytes += take;
		p += take;
		n -= take;
		if (s->n_bytes % 64 == 0)
			compress(s->h, s->block);
	}
}

void
sha256_hex(Sha256 *s, char hex[65])
{
	uint64_t bits = s->n_bytes * 8;
	uint8_t tail[8];

	for (int i = 0; i < 8; i++)
		tail[i] = (uint8_t)(bits >> (56 - 8 * i));
	sha256_add(s, "\x80", 1);
	while (s->n_bytes % 64 != 56)
		sha256_add(s, "", 1);
	sha256_add(s, tail, 8);
	for (int i = 0; i < 64; i++)
		hex[i] = "0123456789abcdef"[s->h[i / 8] >> (28 - 4 * (i % 8)) & 15];
	hex[64] = 0;
}

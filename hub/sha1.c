/* SHA-1 (FIPS 180-4), for ids of git blobs, by which the Hub identifies small files. */
#include <stdio.h>
#include <string.h>

#include "hub/hub.h"

static uint32_t
rol(uint32_t x, int n)
{
	return x << n | x >> (32 - n);
}

static void
block_add(Sha1 *s, const uint8_t *p)
{
	static const uint32_t k[4] = { 0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6 };
	uint32_t w[80], v[5];

	for (int i = 0; i < 16; i++)
		w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
		       (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
	for (int i = 16; i < 80; i++)
		w[i] = rol(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
	memcpy(v, s->h, sizeof v);
	for (int i = 0; i < 80; i++) {
		uint32_t b = v[1], c = v[2], d = v[3];
		uint32_t f = i < 20              ? (b & c) | (~b & d)
		             : i < 40 || 60 <= i ? b ^ c ^ d
		                                 : (b & c) | (b & d) | (c & d);
		uint32_t t = rol(v[0], 5) + f + v[4] + k[i / 20] + w[i];
		v[4] = d;
		v[3] = c;
		v[2] = rol(b, 30);
		v[1] = v[0];
		v[0] = t;
	}
	for (int i = 0; i < 5; i++)
		s->h[i] += v[i];
}

void
sha1_init(Sha1 *s)
{
	*s = (Sha1){ .h = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0 } };
}

void
sha1_add(Sha1 *s, const void *data, size_t n)
{
	const uint8_t *p = data;
	size_t at = s->n_bytes % 64;

	s->n_bytes += n;
	while (n > 0) {
		size_t take = n < 64 - at ? n : 64 - at;
		memcpy(s->block + at, p, take);
		p += take;
		n -= take;
		at += take;
		if (at == 64) {
			block_add(s, s->block);
			at = 0;
		}
	}
}

void
sha1_hex(Sha1 *s, char hex[41])
{
	uint8_t pad[72] = { 0x80 };
	uint64_t bits = 8 * s->n_bytes;
	size_t at = s->n_bytes % 64, n = (at < 56 ? 56 : 120) - at;

	for (int i = 0; i < 8; i++)
		pad[n + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
	sha1_add(s, pad, n + 8);
	for (int i = 0; i < 5; i++)
		snprintf(hex + 8 * i, 9, "%08x", (unsigned)s->h[i]);
}

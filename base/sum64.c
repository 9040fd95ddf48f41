#include "base/sum64.h"

#include <string.h>

uint64_t
sum64(const void *data, size_t n, uint64_t h)
{
	const unsigned char *p = data;

	for (; n >= 8; n -= 8, p += 8) {
		uint64_t w;
		memcpy(&w, p, 8);
		h = (h ^ w) * 0xff51afd7ed558ccdu;
		h ^= h >> 29;
	}
	for (; n; n--, p++)
		h = (h ^ *p) * 0xff51afd7ed558ccdu;
	return h ^ h >> 32;
}

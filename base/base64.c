#include "base/base64.h"

/* Value of a character: 0 to 63; 64: padding; 65: white space; -1: none of these */
static int
value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	if (c == '+' || c == '-')
		return 62;
	if (c == '/' || c == '_')
		return 63;
	if (c == '=')
		return 64;
	return c == ' ' || c == '\n' || c == '\r' || c == '\t' ? 65 : -1;
}

ptrdiff_t
base64_decode(const char *s, size_t n, uint8_t *out, size_t *at)
{
	uint32_t bits = 0;
	size_t n_out = 0, n_value = 0, n_pad = 0;

	for (size_t i = 0; i < n; i++) {
		const int v = value_of(s[i]);
		*at = i;
		if (v == 65)
			continue;
		if (v < 0 || (v < 64 && n_pad))
			return -1;
		if (v == 64) {
			n_pad++;
			if (n_value % 4 < 2 || n_value % 4 + n_pad > 4)
				return -1;
			continue;
		}
		bits = bits << 6 | (uint32_t)v;
		n_value++;
		/* each value of a group, except the first one, completes a byte */
		if (n_value % 4 != 1)
			out[n_out++] = (uint8_t)(bits >> (2 * ((4 - n_value % 4) % 4)));
	}
	*at = n;
	if (n_value % 4 == 1 || (n_pad && (n_value + n_pad) % 4))
		return -1;
	return (ptrdiff_t)n_out;
}

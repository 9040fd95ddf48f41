/* Invalid bytes are replaced as Unicode recommends: one U+FFFD per maximal subpart of an ill-formed
 * sequence, as in Rust and Python. */
#include "base/utf8.h"

#include <string.h>

int32_t
utf8_next(const char *s, size_t n, size_t *len)
{
	const unsigned char *p = (const unsigned char *)s;
	unsigned char lo = 0x80, hi = 0xBF;
	int32_t cp;
	size_t more;

	*len = 1;
	if (p[0] < 0x80)
		return p[0];
	if (p[0] < 0xC2 || p[0] > 0xF4)
		return -1;
	if (p[0] < 0xE0) {
		more = 1;
		cp = p[0] & 0x1F;
	} else if (p[0] < 0xF0) {
		more = 2;
		cp = p[0] & 0x0F;
		if (p[0] == 0xE0)
			lo = 0xA0;
		if (p[0] == 0xED)
			hi = 0x9F; /* surrogates are invalid */
	} else {
		more = 3;
		cp = p[0] & 0x07;
		if (p[0] == 0xF0)
			lo = 0x90;
		if (p[0] == 0xF4)
			hi = 0x8F;
	}
	for (size_t i = 1; i <= more; i++) {
		if (i >= n || p[i] < lo || p[i] > hi)
			return -1;
		cp = cp << 6 | (p[i] & 0x3F);
		*len = i + 1;
		lo = 0x80;
		hi = 0xBF;
	}
	return cp;
}

size_t
utf8_put(char out[4], uint32_t cp)
{
	if (cp < 0x80) {
		out[0] = (char)cp;
		return 1;
	}
	if (cp < 0x800) {
		out[0] = (char)(0xC0 | cp >> 6);
		out[1] = (char)(0x80 | (cp & 0x3F));
		return 2;
	}
	if (cp < 0x10000) {
		out[0] = (char)(0xE0 | cp >> 12);
		out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
		out[2] = (char)(0x80 | (cp & 0x3F));
		return 3;
	}
	out[0] = (char)(0xF0 | cp >> 18);
	out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
	out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
	out[3] = (char)(0x80 | (cp & 0x3F));
	return 4;
}

bool
utf8_valid(const char *s, size_t n)
{
	for (size_t i = 0, len; i < n; i += len) {
		if ((unsigned char)s[i] < 0x80) {
			len = 1;
			continue;
		}
		if (utf8_next(s + i, n - i, &len) < 0)
			return false;
	}
	return true;
}

size_t
utf8_count(const char *s, size_t n)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++)
		count += ((unsigned char)s[i] & 0xC0) != 0x80;
	return count;
}

size_t
utf8_whole(const char *s, size_t n)
{
	static const unsigned char need[16] = { [12] = 2, [13] = 2, [14] = 3, [15] = 4 };

	for (size_t back = 1; back <= 3 && back <= n; back++) {
		unsigned char c = (unsigned char)s[n - back];
		size_t len;
		if ((c & 0xC0) == 0x80)
			continue;
		/* the character is invalid only because the input ends */
		if (need[c >> 4] > back && utf8_next(s + n - back, back, &len) < 0 && len == back)
			return n - back;
		break;
	}
	return n;
}

void
utf8_add_lossy(Strbuf *out, const char *s, size_t n)
{
	for (size_t i = 0, len; i < n; i += len) {
		if (utf8_next(s + i, n - i, &len) < 0)
			strbuf_add(out, "\xEF\xBF\xBD", 3);
		else
			strbuf_add(out, s + i, len);
	}
}

bool
utf8_is_unsafe(int32_t cp)
{
	return cp < 32 || (cp >= 0x7f && cp <= 0x9f) || cp == 0xad || cp == 0x61c || cp == 0x180e ||
	       (cp >= 0x200b && cp <= 0x200f) || (cp >= 0x2028 && cp <= 0x202e) ||
	       (cp >= 0x2060 && cp <= 0x206f) || cp == 0xfeff || (cp >= 0xfff9 && cp <= 0xfffb) ||
	       (cp >= 0xe0000 && cp <= 0xe007f);
}

void
utf8_make_printable(char *s, bool lines)
{
	for (size_t n = strlen(s), len; n > 0; s += len, n -= len) {
		int32_t cp = utf8_next(s, n, &len);
		if (utf8_is_unsafe(cp) && !(lines && (cp == '\n' || cp == '\t')))
			memset(s, '?', len);
	}
}

/* UTF-8 and the character classes that tokenizers ask for. Replacement follows the Unicode recommendation (one
 * U+FFFD for each maximal part of an ill-formed sequence), as Rust and Python do. */
#include "runtime/text/text.h"

#include <string.h>
#include <utf8proc.h>

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
			hi = 0x9F; /* no surrogates */
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
		/* unfinished means: ill-formed only because the end came */
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

Span
utf8_sanitize(Arena *a, const char *s, size_t n)
{
	size_t at = 0;

	if (utf8_valid(s, n))
		return (Span){ s, n };
	if (n > SIZE_MAX / 8)
		longjmp(a->oom, 1);
	char *p = NEW(a, char, 3 * n);
	for (size_t i = 0, len; i < n; i += len) {
		if (utf8_next(s + i, n - i, &len) < 0) {
			memcpy(p + at, "\xEF\xBF\xBD", 3);
			at += 3;
		} else {
			memcpy(p + at, s + i, len);
			at += len;
		}
	}
	return (Span){ p, at };
}

bool
cp_is_space(uint32_t cp)
{
	return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
	       (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
	       cp == 0x205F || cp == 0x3000;
}

bool
cp_is_word(uint32_t cp)
{
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_LU:
	case UTF8PROC_CATEGORY_LL:
	case UTF8PROC_CATEGORY_LT:
	case UTF8PROC_CATEGORY_LM:
	case UTF8PROC_CATEGORY_LO:
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
	case UTF8PROC_CATEGORY_ND:
	case UTF8PROC_CATEGORY_NL:
	case UTF8PROC_CATEGORY_PC:
		return true;
	default: /* Other_Alphabetic outside these, and Join_Control */
		return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
		       (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189) ||
		       cp == 0x200C || cp == 0x200D;
	}
}

bool
cp_is_punct(uint32_t cp)
{
	if (cp < 128)
		return cp > 32 && cp < 127 && !((cp | 32) >= 'a' && (cp | 32) <= 'z') && !(cp >= '0' && cp <= '9');
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_PC:
	case UTF8PROC_CATEGORY_PD:
	case UTF8PROC_CATEGORY_PS:
	case UTF8PROC_CATEGORY_PE:
	case UTF8PROC_CATEGORY_PI:
	case UTF8PROC_CATEGORY_PF:
	case UTF8PROC_CATEGORY_PO:
		return true;
	default:
		return false;
	}
}

bool
cp_is_numeric(uint32_t cp)
{
	utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
	return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

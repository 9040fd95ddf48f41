/* UTF-8 repair, and the character classes that tokenizers use */
#include "text/text.h"

#include <string.h>
#include <utf8proc.h>

ByteSpan
utf8_sanitize(Arena *a, const char *s, size_t n)
{
	size_t at = 0;

	if (utf8_valid(s, n))
		return (ByteSpan){ s, n };
	if (n > SIZE_MAX / 8)
		arena_out(a);
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
	return (ByteSpan){ p, at };
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
	default: /* characters of Other_Alphabetic that are not in these categories, and
	            Join_Control */
		return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
		       (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189) ||
		       cp == 0x200C || cp == 0x200D;
	}
}

bool
cp_is_punct(uint32_t cp)
{
	if (cp < 128)
		return cp > 32 && cp < 127 && !((cp | 32) >= 'a' && (cp | 32) <= 'z') &&
		       !(cp >= '0' && cp <= '9');
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

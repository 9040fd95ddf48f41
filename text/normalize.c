/* Normalizers, which convert text to text. Each receives valid UTF-8 and returns valid UTF-8 in the
 * arena of the call. */
#include "text/text.h"

#include <string.h>
#include <utf8proc.h>

static ByteSpan
unicode_form(Enc *e, ByteSpan in, utf8proc_option_t options)
{
	bool ascii = true;
	utf8proc_int32_t *buf;

	for (size_t i = 0; i < in.n && ascii; i++)
		ascii = (unsigned char)in.s[i] < 0x80;
	if (ascii)
		return in;
	utf8proc_ssize_t n = utf8proc_decompose((const utf8proc_uint8_t *)in.s,
	                                        (utf8proc_ssize_t)in.n, NULL, 0, options);
	if (n < 0)
		return in;
	/* one more element, because reencode writes a NUL */
	buf = NEW(&e->arena, utf8proc_int32_t, (size_t)n + 1);
	n = utf8proc_decompose((const utf8proc_uint8_t *)in.s, (utf8proc_ssize_t)in.n, buf, n,
	                       options);
	if (n < 0)
		return in;
	n = utf8proc_reencode(buf, n, options);
	return n < 0 ? in : (ByteSpan){ (const char *)buf, (size_t)n };
}

static ByteSpan
lower(Enc *e, ByteSpan in)
{
	char *out = NEW(&e->arena, char, in.n * 2 + 4);
	size_t n = 0;

	for (size_t i = 0, len; i < in.n; i += len) {
		int32_t cp = utf8_next(in.s + i, in.n - i, &len);
		if (cp == 0x130) { /* the only character whose full lower case has two characters */
			memcpy(out + n, "i\xCC\x87", 3);
			n += 3;
		} else {
			n += utf8_put(out + n,
			              cp < 0x80 ? (uint32_t)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp)
			                        : (uint32_t)utf8proc_tolower(cp));
		}
	}
	return (ByteSpan){ out, n };
}

static ByteSpan
strip(ByteSpan in, bool left, bool right)
{
	size_t len;

	while (left && in.n) {
		if (!cp_is_space((uint32_t)utf8_next(in.s, in.n, &len)))
			break;
		in.s += len;
		in.n -= len;
	}
	while (right && in.n) {
		size_t at = in.n - 1;
		while (at > 0 && ((unsigned char)in.s[at] & 0xC0) == 0x80)
			at--;
		if (!cp_is_space((uint32_t)utf8_next(in.s + at, in.n - at, &len)))
			break;
		in.n = at;
	}
	return in;
}

static ByteSpan
filter(Enc *e, ByteSpan in, NormalizerKind kind)
{
	char *out = NEW(&e->arena, char, in.n + 1);
	size_t n = 0;

	for (size_t i = 0, len; i < in.n; i += len) {
		int32_t cp = utf8_next(in.s + i, in.n - i, &len);
		if (kind == NORMALIZE_BERT) {
			if (utf8proc_category(cp) == UTF8PROC_CATEGORY_MN)
				continue;
		} else if (kind == NORMALIZE_STRIP_ACCENTS) {
			utf8proc_category_t c = utf8proc_category(cp);
			if (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC ||
			    c == UTF8PROC_CATEGORY_ME)
				continue;
		} else {
			if ((cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) ||
			    cp == 0x7F || cp == 0x8F || cp == 0x9F)
				continue;
			if (cp == 9 || cp == 0xA || cp == 0xC || cp == 0xD || cp == 0x1680 ||
			    (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 ||
			    cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD) {
				out[n++] = ' ';
				continue;
			}
		}
		memcpy(out + n, in.s + i, len);
		n += len;
	}
	return (ByteSpan){ out, n };
}

/* CJK ideographs, as BERT lists them */
static bool
is_ideograph(int32_t cp)
{
	return (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0x3400 && cp <= 0x4DBF) ||
	       (cp >= 0x20000 && cp <= 0x2A6DF) || (cp >= 0x2A700 && cp <= 0x2B73F) ||
	       (cp >= 0x2B740 && cp <= 0x2B81F) || (cp >= 0x2B920 && cp <= 0x2CEAF) ||
	       (cp >= 0xF900 && cp <= 0xFAFF) || (cp >= 0x2F800 && cp <= 0x2FA1F);
}

static bool
is_other(int32_t cp)
{
	switch (utf8proc_category(cp)) {
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CS:
		return cp != 9 && cp != 0xA && cp != 0xD;
	default:
		return false;
	}
}

static ByteSpan
bert(Enc *e, const Normalizer *norm, ByteSpan in)
{
	char *out = NEW(&e->arena, char, 3 * in.n + 1);
	size_t n = 0;

	for (size_t i = 0, len; i < in.n; i += len) {
		int32_t cp = utf8_next(in.s + i, in.n - i, &len);
		if (norm->clean && (cp == 0 || cp == 0xFFFD || is_other(cp)))
			continue;
		const bool spaced = norm->spread && is_ideograph(cp);
		if (spaced)
			out[n++] = ' ';
		if (norm->clean && cp_is_space((uint32_t)cp)) {
			out[n++] = ' ';
		} else {
			memcpy(out + n, in.s + i, len);
			n += len;
		}
		if (spaced)
			out[n++] = ' ';
	}
	in = (ByteSpan){ out, n };
	if (norm->accents) {
		in = unicode_form(e, in, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
		in = filter(e, in, NORMALIZE_BERT);
	}
	return norm->lower ? lower(e, in) : in;
}

static ByteSpan
bytes_to_chars(Enc *e, ByteSpan in)
{
	char *out = NEW(&e->arena, char, in.n * 2 + 4);
	size_t n = 0;

	for (size_t i = 0; i < in.n; i++)
		n += utf8_put(out + n, bytelevel_char((unsigned char)in.s[i]));
	return (ByteSpan){ out, n };
}

static llmc_status
normal_too_long(Enc *e)
{
	return error_set(e->err, LLMC_E_INPUT,
	                 "the tokenizer's normalizer makes more than %d times the bytes of this "
	                 "text",
	                 TEXT_MAX_STEPS);
}

static llmc_status
replace(Enc *e, const Normalizer *norm, ByteSpan in, ByteSpan *out)
{
	RegexIter it = { 0 };
	size_t from, to, done = 0, n = 0, cap = 0;
	char *p = NULL;
	int rc;

	while ((rc = regex_next(norm->regex, e->match, e->t->limits, in, &it, &from, &to)) > 0) {
		if (n + (from - done) + norm->content.n > e->max_normal)
			return normal_too_long(e);
		p = arena_grow(&e->arena, p, &cap, n + (from - done) + norm->content.n, 1);
		if (from > done)
			memcpy(p + n, in.s + done, from - done);
		n += from - done;
		if (norm->content.n)
			memcpy(p + n, norm->content.s, norm->content.n);
		n += norm->content.n;
		enc_work(e, to - done + norm->content.n);
		done = to;
	}
	if (rc < 0)
		return regex_failed(e->err, rc);
	if (!done && !n) {
		*out = in;
		return LLMC_OK;
	}
	p = arena_grow(&e->arena, p, &cap, n + in.n - done + 1, 1);
	memcpy(p + n, in.s + done, in.n - done);
	*out = (ByteSpan){ p, n + in.n - done };
	return LLMC_OK;
}

llmc_status
normalize(Enc *e, ByteSpan in, ByteSpan *out)
{
	const llmc_tokenizer *t = e->t;

	for (size_t i = 0; i < t->n_norm; i++) {
		const Normalizer *n = &t->norm[i];
		const char *before = in.s;
		enc_work(e, in.n);
		switch (n->kind) {
		case NORMALIZE_NFC:
			in = unicode_form(e, in, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
			break;
		case NORMALIZE_NFD:
			in = unicode_form(e, in, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
			break;
		case NORMALIZE_NFKC:
			in = unicode_form(e, in,
			                  UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
			break;
		case NORMALIZE_NFKD:
			in = unicode_form(e, in,
			                  UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
			break;
		case NORMALIZE_LOWER:
			in = lower(e, in);
			break;
		case NORMALIZE_STRIP:
			in = strip(in, n->left, n->right);
			break;
		case NORMALIZE_STRIP_ACCENTS:
		case NORMALIZE_NMT:
			in = filter(e, in, n->kind);
			break;
		case NORMALIZE_PREPEND:
			if (in.n && n->content.n <= e->max_normal) {
				char *p = NEW(&e->arena, char, in.n + n->content.n);
				if (n->content.n)
					memcpy(p, n->content.s, n->content.n);
				memcpy(p + n->content.n, in.s, in.n);
				in = (ByteSpan){ p, in.n + n->content.n };
			} else if (in.n) {
				return normal_too_long(e);
			}
			break;
		case NORMALIZE_REPLACE:
			TRY(replace(e, n, in, &in));
			break;
		case NORMALIZE_PRECOMPILED:
			in = charsmap_apply(e, &n->map, in);
			break;
		case NORMALIZE_BYTELEVEL:
			in = bytes_to_chars(e, in);
			break;
		case NORMALIZE_ICE:
			in = ice_normalize(e, in);
			break;
		case NORMALIZE_BERT:
			in = bert(e, n, in);
			break;
		case NORMALIZE_SPM:
			TRY(normalize_spm(e, n, in, &in));
			break;
		}
		if (in.n > e->max_normal)
			return normal_too_long(e);
		/* the outputs of all rules stay in memory until the end of the call */
		if (in.s != before)
			e->max_normal -= in.n;
	}
	*out = in;
	return LLMC_OK;
}

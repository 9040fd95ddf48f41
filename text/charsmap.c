/* The precompiled character map of sentencepiece: a darts-clone double array and replacement
 * strings. sentencepiece uses the longest match at each position; the "Precompiled" normalizer of
 * tokenizer.json matches whole graphemes. */
#include "text/text.h"

#include <string.h>
#include <utf8proc.h>

/* Returns the offset in a unit of darts-clone. Bits 10.. have the offset, shifted by 8 more if bit
 * 9 is set; bit 8: the unit has a value; bit 31: the unit is a value. */
static uint32_t
unit_offset(uint32_t u)
{
	return (u >> 10) << ((u & (1u << 9)) >> 6);
}

llmc_status
charsmap_read(Arena *a, ByteSpan blob, Charsmap *out, llmc_error *err)
{
	uint32_t bytes;

	*out = (Charsmap){ 0 };
	if (blob.n < 4)
		return error_set(err, LLMC_E_INPUT, "precompiled_charsmap: %zu bytes are too few",
		                 blob.n);
	memcpy(&bytes, blob.s, 4);
	if (bytes > blob.n - 4 || bytes % 4 || bytes < 1024)
		return error_set(err, LLMC_E_INPUT,
		                 "precompiled_charsmap: its header gives the trie %u bytes, but "
		                 "the map has %zu bytes",
		                 bytes, blob.n);
	uint32_t *unit = NEW(a, uint32_t, bytes / 4);
	memcpy(unit, blob.s + 4, bytes);
	out->unit = unit;
	out->n_units = bytes / 4;
	size_t n = blob.n - 4 - bytes;
	/* NUL-terminated, although the string in the file may not be */
	char *text = NEW(a, char, n + 1);
	if (n)
		memcpy(text, blob.s + 4 + bytes, n);
	out->text = (ByteSpan){ text, n };
	return LLMC_OK;
}

size_t
charsmap_find(const Charsmap *m, const char *s, size_t n, bool shortest, ByteSpan *out)
{
	size_t best = 0, pos = 0;

	if (!m->n_units)
		return 0;
	pos ^= unit_offset(m->unit[0]);
	for (size_t i = 0; i < n; i++) {
		unsigned char c = (unsigned char)s[i];
		pos ^= c;
		if (pos >= m->n_units)
			break;
		uint32_t u = m->unit[pos];
		if ((u & ((1u << 31) | 0xFF)) != c)
			break;
		pos ^= unit_offset(u);
		if (u >> 8 & 1) {
			if (pos >= m->n_units)
				break;
			uint32_t value = m->unit[pos] & ~(1u << 31);
			if (value > m->text.n)
				break;
			best = i + 1;
			out->s = m->text.s + value;
			if (shortest)
				break;
		}
	}
	if (best)
		out->n = strlen(out->s);
	return best;
}

static void
put(Arena *a, char **p, size_t *n, size_t *cap, const char *s, size_t len)
{
	*p = arena_grow(a, *p, cap, *n + len + 1, 1);
	if (len)
		memcpy(*p + *n, s, len);
	*n += len;
}

ByteSpan
charsmap_apply(Enc *e, const Charsmap *m, ByteSpan in)
{
	Arena *a = &e->arena;
	char *p = NULL;
	size_t n = 0, cap = 0;
	ByteSpan to;

	for (size_t i = 0; i < in.n && n <= e->max_normal;) {
		const size_t written = n;
		size_t end = i, len, next_len;
		utf8proc_int32_t state = 0;
		int32_t cp = utf8_next(in.s + i, in.n - i, &len);
		for (end = i + len; end < in.n; end += next_len) {
			int32_t next = utf8_next(in.s + end, in.n - end, &next_len);
			if (utf8proc_grapheme_break_stateful(cp, next, &state))
				break;
			cp = next;
		}
		if (end - i < 6 && charsmap_find(m, in.s + i, end - i, true, &to)) {
			put(a, &p, &n, &cap, to.s, to.n);
			i = end;
			enc_work(e, n - written);
			continue;
		}
		for (; i < end; i += len) {
			utf8_next(in.s + i, in.n - i, &len);
			if (charsmap_find(m, in.s + i, len, true, &to))
				put(a, &p, &n, &cap, to.s, to.n);
			else
				put(a, &p, &n, &cap, in.s + i, len);
		}
		enc_work(e, n - written);
	}
	return utf8_sanitize(a, p ? p : "", n);
}

/* Normalizes the next bytes of `in` and returns the number of bytes consumed. User-defined tokens
 * pass unchanged; other text is looked up in the map, then character by character. */
static size_t
spm_next(Enc *e, const Normalizer *norm, ByteSpan in, ByteSpan *to)
{
	size_t len;

	if (norm->user) {
		enc_longest(e, norm->user, in.s, in.n, &len);
		if (len) {
			*to = (ByteSpan){ in.s, len };
			return len;
		}
	}
	len = charsmap_find(&norm->map, in.s, in.n, false, to);
	if (len)
		return len;
	utf8_next(in.s, in.n, &len);
	*to = (ByteSpan){ in.s, len };
	return len;
}

llmc_status
normalize_spm(Enc *e, const Normalizer *norm, ByteSpan in, ByteSpan *out)
{
	static const char space[] = "\xE2\x96\x81";
	const char *mark = norm->escape ? space : " ";
	size_t mark_n = norm->escape ? 3 : 1, n = 0, cap = 0;
	bool after_space = norm->remove_extra;
	char *p = NULL;
	ByteSpan to;

	while (norm->remove_extra && in.n) {
		size_t len = spm_next(e, norm, in, &to);
		if (to.n != 1 || to.s[0] != ' ')
			break;
		in.s += len;
		in.n -= len;
	}
	*out = (ByteSpan){ "", 0 };
	if (!in.n)
		return LLMC_OK;
	if (norm->dummy_prefix && !norm->suffix)
		put(&e->arena, &p, &n, &cap, mark, mark_n);
	while (in.n && n <= e->max_normal) {
		size_t len = spm_next(e, norm, in, &to);
		enc_work(e, to.n);
		while (after_space && to.n && to.s[0] == ' ') {
			to.s++;
			to.n--;
		}
		for (size_t i = 0; i < to.n; i++) {
			if (to.s[i] == ' ')
				put(&e->arena, &p, &n, &cap, mark, mark_n);
			else
				put(&e->arena, &p, &n, &cap, to.s + i, 1);
		}
		if (to.n)
			after_space = to.s[to.n - 1] == ' ';
		in.s += len;
		in.n -= len;
		if (!norm->remove_extra)
			after_space = false;
	}
	while (norm->remove_extra && n >= mark_n && memcmp(p + n - mark_n, mark, mark_n) == 0)
		n -= mark_n;
	if (norm->dummy_prefix && norm->suffix)
		put(&e->arena, &p, &n, &cap, mark, mark_n);
	*out = utf8_sanitize(&e->arena, p ? p : "", n);
	return LLMC_OK;
}

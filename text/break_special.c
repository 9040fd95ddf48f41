/* Keeps special tokens in untrusted text as text. A break (LLMC_BREAK) inside a special token
 * prevents the tokenizer from finding it. Breaks are removed before the pre-tokenizers, so the ids
 * are those of plain text. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/deadline.h"

enum { BREAK_BYTES = sizeof LLMC_BREAK - 1 };

const char *
break_find(ByteSpan text)
{
	return text.n ? memmem(text.s, text.n, LLMC_BREAK, BREAK_BYTES) : NULL;
}

size_t
break_count(ByteSpan text)
{
	size_t n = 0;

	for (const char *b; (b = break_find(text)); n++) {
		text.n -= (size_t)(b + BREAK_BYTES - text.s);
		text.s = b + BREAK_BYTES;
	}
	return n;
}

/* Returns the part of *rest before its first break, and removes this part and the break from
 * *rest. */
ByteSpan
break_next(ByteSpan *rest)
{
	const char *b = break_find(*rest);
	ByteSpan part = { rest->s, b ? (size_t)(b - rest->s) : rest->n };
	size_t gone = part.n + (b ? BREAK_BYTES : 0);

	rest->s += gone;
	rest->n -= gone;
	return part;
}

ByteSpan
break_remove(Arena *a, ByteSpan text)
{
	char *out = NEW(a, char, text.n + 1);
	size_t n = 0;

	while (text.n) {
		ByteSpan part = break_next(&text);
		if (part.n)
			memcpy(out + n, part.s, part.n);
		n += part.n;
	}
	return (ByteSpan){ out, n };
}

/* Returns whether a special token begins at text.s. A token of which only the beginning is in the
 * text counts too, because text that follows in the template could complete it. */
static bool
begins_special(Enc *e, ByteSpan text)
{
	const Trie *trie = &e->t->special;
	uint32_t node = 0;
	size_t i = 0;

	for (; trie->n_edges && i < text.n; i++) {
		node = trie_step(trie, node, (unsigned char)text.s[i]);
		if (!node || trie->value[node] >= 0)
			break;
	}
	enc_work(e, i);
	return node != 0; /* a token was found, or the text ends inside one */
}

/* Copies the text, with a break after the first character of each special token; `all`: after every
 * character. Breaks in the input become U+FFFD. */
static ByteSpan
with_breaks(Enc *e, ByteSpan in, bool all)
{
	char *out = NULL;
	size_t n = 0, cap = 0;

	for (size_t i = 0, len; i < in.n; i += len) {
		bool is_break =
		    in.n - i >= BREAK_BYTES && !memcmp(in.s + i, LLMC_BREAK, BREAK_BYTES);
		bool cut = all || begins_special(e, (ByteSpan){ in.s + i, in.n - i });
		utf8_next(in.s + i, in.n - i, &len);
		out = arena_grow(&e->arena, out, &cap, n + len + BREAK_BYTES, 1);
		memcpy(out + n, is_break ? "\xEF\xBF\xBD" : in.s + i, len);
		n += len;
		if (cut) {
			memcpy(out + n, LLMC_BREAK, BREAK_BYTES);
			n += BREAK_BYTES;
		}
	}
	return (ByteSpan){ out ? out : "", n };
}

/* Reports whether the tokenizer finds special tokens in spite of the breaks. It may find them in
 * the normalized text, where "<S>" can become the token <s>. */
static llmc_status
still_special(Enc *e, ByteSpan text, bool *found)
{
	const llmc_tokenizer *t = e->t;
	bool some = false;

	*found = false;
	for (size_t i = 0; i < t->n_added; i++)
		some |= t->added[i].special && t->added[i].normalized;
	if (!some)
		return LLMC_OK;
	e->n_ids = 0;
	TRY(encode(e, text));
	for (size_t i = 0; i < e->n_ids; i++)
		*found |= token_is_mark(t, e->ids[i]);
	return LLMC_OK;
}

typedef struct BreakWanted { /* arguments of llmc_break_special */
	const char *text;
	size_t n_bytes;
	char *buf;
	size_t cap, *need;
} BreakWanted;

static llmc_status
break_text(Enc *e, void *arg)
{
	const BreakWanted *w = arg;
	const ByteSpan in = utf8_sanitize(&e->arena, w->text, w->n_bytes);
	ByteSpan out = with_breaks(e, in, false);
	bool found;

	TRY(still_special(e, out, &found));
	if (found)
		out = with_breaks(e, in, true);
	if (w->need)
		*w->need = out.n;
	if (out.n >= w->cap)
		return error_set(e->err, LLMC_E_RANGE,
		                 "llmc_break_special: %zu bytes and a NUL do not fit "
		                 "into a buffer of %zu",
		                 out.n, w->cap);
	memcpy(w->buf, out.s, out.n);
	w->buf[out.n] = 0;
	return LLMC_OK;
}

llmc_status
llmc_break_special(const llmc_tokenizer *t, const char *text, size_t n_bytes, char *buf, size_t cap,
                   size_t *need, llmc_error *err)
{
	Enc e = { .t = t, .flags = LLMC_PARSE_SPECIAL | LLMC_BREAKS, .err = err };
	BreakWanted want = { text ? text : "", n_bytes, buf, cap, need };

	if (!t || (!text && n_bytes) || (!buf && cap))
		return error_set(err, LLMC_E_RANGE, "llmc_break_special: a pointer is NULL");
	return enc_run(&e, "llmc_break_special", break_text, &want);
}

/* Pre-tokenizers, which split segments of text into words. Added tokens have already been separated
 * from these segments. */
#include "text/text.h"

#include <string.h>

uint32_t
bytelevel_char(unsigned char b)
{
	/* printable Latin-1 bytes stand for themselves, the other 68 bytes map to U+0100 and up in
	 * order */
	if ((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE)
		return b;
	if (b <= 0x20)
		return 0x100u + b;
	if (b <= 0xA0)
		return 0x100u + 0x21 + (b - 0x7Fu);
	return 0x100u + 0x21 + 0x22;
}

int
bytelevel_byte(uint32_t cp)
{
	if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF))
		return (int)cp;
	if (cp >= 0x100 && cp <= 0x120)
		return (int)(cp - 0x100);
	if (cp >= 0x121 && cp <= 0x142)
		return (int)(cp - 0x121 + 0x7F);
	return cp == 0x143 ? 0xAD : -1;
}

/* State for joining matches and the gaps between them as the mode requires. Each word is passed on
 * at once, so an input of a million words needs memory for one. */
typedef struct JoinState {
	Enc *e;
	size_t k; /* index of the pre-tokenizer */
	const TokenPiece *in;
	size_t from, to;
	bool some, match; /* some: a part is pending; match: the last part was a match */
} JoinState;

static llmc_status
join_out(JoinState *j)
{
	bool some = j->some && j->to > j->from;

	j->some = false;
	return some ? encode_words(j->e, j->k + 1,
	                           (TokenPiece){ { j->in->text.s + j->from, j->to - j->from },
	                                         -1,
	                                         j->in->first && j->from == 0 })
	            : LLMC_OK;
}

static llmc_status
join_part(JoinState *j, size_t from, size_t to, bool match)
{
	const PreTokenizer *pre = &j->e->t->pre[j->k];
	bool last = j->match, join = false;

	match ^= pre->invert;
	switch (pre->mode) {
	case SPLIT_REMOVED:
	case SPLIT_ISOLATED:
		break;
	case SPLIT_CONTIGUOUS:
		join = match == last;
		break;
	case SPLIT_PREVIOUS:
		join = match && !last;
		break;
	case SPLIT_NEXT:
		join = !match && last;
		break;
	}
	if (!j->some || !join) {
		TRY(join_out(j));
		j->from = from;
		j->some = pre->mode != SPLIT_REMOVED || !match;
	}
	j->to = to;
	j->match = match;
	return LLMC_OK;
}

static bool
in_class(const PreTokenizer *pre, uint32_t cp)
{
	switch (pre->cls) {
	case CLASS_DIGIT:
		return cp_is_numeric(cp);
	case CLASS_PUNCT:
		return cp_is_punct(cp);
	case CLASS_SPACE:
		return cp_is_space(cp);
	case CLASS_WORD:
		return cp_is_word(cp);
	case CLASS_CHAR:
		return cp == pre->cp;
	}
	return false;
}

static llmc_status
split(Enc *e, size_t k, const TokenPiece *in)
{
	const PreTokenizer *pre = &e->t->pre[k];
	JoinState j = { .e = e, .k = k, .in = in };
	ByteSpan text = in->text;
	RegexIter it = { 0 };
	size_t from, to, done = 0;
	int rc = 0;

	while (pre->regex &&
	       (rc = regex_next(pre->regex, e->match, e->t->limits, text, &it, &from, &to)) > 0) {
		if (from > done)
			TRY(join_part(&j, done, from, false));
		TRY(join_part(&j, from, to, true));
		done = to;
	}
	if (rc < 0)
		return regex_failed(e->err, rc);
	for (size_t i = 0, len; !pre->regex && i < text.n; i += len) {
		if (!in_class(pre, (uint32_t)utf8_next(text.s + i, text.n - i, &len)))
			continue;
		if (i > done)
			TRY(join_part(&j, done, i, false));
		TRY(join_part(&j, i, i + len, true));
		done = i + len;
	}
	if (done < text.n)
		TRY(join_part(&j, done, text.n, false));
	return join_out(&j);
}

/* Returns a buffer for the output of pre-tokenizer k, valid until its next segment. */
static char *
word_room(Enc *e, size_t k, size_t n)
{
	return e->word[k].s = arena_grow(&e->arena, e->word[k].s, &e->word[k].cap, n + 1, 1);
}

/* Replaces each space by the replacement character, and prepends one. */
static ByteSpan
metaspace(Enc *e, size_t k, const TokenPiece *in)
{
	const PreTokenizer *pre = &e->t->pre[k];
	ByteSpan r = pre->replacement, text = in->text;
	char *p = word_room(e, k, (text.n + 1) * (r.n ? r.n : 1));
	size_t n = 0;
	bool begins =
	    text.n && (text.s[0] == ' ' || (text.n >= r.n && memcmp(text.s, r.s, r.n) == 0));

	if (text.n && !begins &&
	    (pre->prepend == PREPEND_ALWAYS || (pre->prepend == PREPEND_FIRST && in->first))) {
		memcpy(p, r.s, r.n);
		n = r.n;
	}
	for (size_t i = 0; i < text.n; i++) {
		if (text.s[i] == ' ') {
			memcpy(p + n, r.s, r.n);
			n += r.n;
		} else {
			p[n++] = text.s[i];
		}
	}
	return (ByteSpan){ p, n };
}

llmc_status
encode_words(Enc *e, size_t k, TokenPiece in)
{
	const PreTokenizer *pre = k < e->t->n_pre ? &e->t->pre[k] : NULL;
	ByteSpan text = in.text;

	if (in.id >= 0) {
		enc_push(e, in.id);
		return LLMC_OK;
	}
	enc_work(e, text.n);
	if (text.n > e->max_word)
		return error_set(e->err, LLMC_E_INPUT,
		                 "the tokenizer's pre-tokenizers make more than %d times the bytes "
		                 "of this text",
		                 TEXT_MAX_STEPS);
	if (!pre)
		return model_encode(e, text);
	switch (pre->kind) {
	case PRE_SPLIT:
	case PRE_CLASS:
		return split(e, k, &in);
	case PRE_METASPACE:
		in.text = metaspace(e, k, &in);
		return pre->split ? split(e, k, &in) : encode_words(e, k + 1, in);
	case PRE_PREFIX_SPACE:
		if (text.n && text.s[0] != ' ') {
			char *p = word_room(e, k, text.n + 1);
			*p = ' ';
			memcpy(p + 1, text.s, text.n);
			in.text = (ByteSpan){ p, text.n + 1 };
		}
		return encode_words(e, k + 1, in);
	case PRE_BYTES: {
		char *p = word_room(e, k, 2 * text.n + 4);
		size_t n = 0;
		for (size_t j = 0; j < text.n; j++)
			n += utf8_put(p + n, bytelevel_char((unsigned char)text.s[j]));
		in.text = (ByteSpan){ p, n };
		return encode_words(e, k + 1, in);
	}
	}
	return LLMC_OK;
}

/* Converts text to ids, by the pipeline that text.h describes. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/deadline.h"

void
enc_work(Enc *e, size_t bytes)
{
	e->work += bytes + 1;
	if (e->work < 1 << 14)
		return;
	e->work = 0;
	if (deadline_passed())
		longjmp(e->arena.oom, ENC_LATE);
}

int32_t
enc_longest(Enc *e, const Trie *trie, const char *s, size_t n, size_t *len)
{
	uint32_t node = 0;
	int32_t found = -1;
	size_t i = 0;

	*len = 0;
	for (; i < n; i++) {
		node = trie_step(trie, node, (unsigned char)s[i]);
		if (!node)
			break;
		if (trie->value[node] >= 0) {
			found = trie->value[node];
			*len = i + 1;
		}
	}
	enc_work(e, i);
	return found;
}

llmc_status
enc_run(Enc *e, const char *name, enc_body *body, void *arg)
{
	llmc_status status;

	e->match = pcre2_match_data_create(64, NULL);
	if (!e->match)
		return error_set(e->err, LLMC_E_MEMORY, "%s: out of memory", name);
	arena_init(&e->arena);
	switch (setjmp(e->arena.oom)) {
	case ENC_LATE:
		status = deadline_error(e->err);
		break;
	default:
		status = error_set(e->err, LLMC_E_MEMORY, "%s: out of memory", name);
		break;
	case 0:
		status = body(e, arg);
	}
	arena_release(&e->arena);
	pcre2_match_data_free(e->match);
	return status;
}

static void
push_all(Enc *e, const int32_t *id, size_t n)
{
	for (size_t i = 0; i < n; i++)
		enc_push(e, id[i]);
}

/* Returns the code point that ends before s + at; at > 0. */
static uint32_t
cp_before(const char *s, size_t at, size_t *len)
{
	size_t i = at - 1;

	while (i > 0 && at - i < 4 && ((unsigned char)s[i] & 0xC0) == 0x80)
		i--;
	int32_t cp = utf8_next(s + i, at - i, len);
	*len = at - i;
	return cp < 0 ? 0xFFFD : (uint32_t)cp;
}

/* Splits a segment at added tokens. At each position the longest match is used. Tokens with lstrip
 * or rstrip include adjacent spaces. */
llmc_status
added_split(Enc *e, const Trie *trie, TokenPiece in, TokenPieces *out)
{
	const llmc_tokenizer *t = e->t;
	ByteSpan text = in.text;
	size_t done = 0, i = 0, len;

	while (trie->n_edges && i < text.n) {
		const int32_t found = enc_longest(e, trie, text.s + i, text.n - i, &len);
		size_t end = i + len;
		if (found < 0) {
			i++;
			continue;
		}
		const AddedToken *a = &t->added[found];
		size_t from = i;
		i = end;
		if (a->special && !(e->flags & LLMC_PARSE_SPECIAL))
			continue;
		if (a->single_word && ((from > 0 && cp_is_word(cp_before(text.s, from, &len))) ||
		                       (end < text.n && cp_is_word((uint32_t)utf8_next(
		                                            text.s + end, text.n - end, &len)))))
			continue;
		while (a->lstrip && from > done && cp_is_space(cp_before(text.s, from, &len)))
			from -= len;
		while (a->rstrip && end < text.n &&
		       cp_is_space((uint32_t)utf8_next(text.s + end, text.n - end, &len)))
			end += len;
		if (from > done)
			piece_push(e, out, (ByteSpan){ text.s + done, from - done }, -1,
			           in.first && done == 0);
		piece_push(e, out, (ByteSpan){ text.s + from, end - from }, a->id,
		           in.first && from == 0);
		done = end;
	}
	if (done < text.n)
		piece_push(e, out, (ByteSpan){ text.s + done, text.n - done }, -1,
		           in.first && done == 0);
	return LLMC_OK;
}

llmc_status
model_encode(Enc *e, ByteSpan text)
{
	if (!text.n)
		return LLMC_OK;
	switch (e->t->model) {
	case MODEL_BPE:
		return bpe_encode(e, text);
	case MODEL_SCORES:
		return scores_encode(e, text);
	case MODEL_UNIGRAM:
		return unigram_encode(e, text);
	case MODEL_WORDPIECE:
		return wordpiece_encode(e, text);
	case MODEL_WORDLEVEL:
		return wordlevel_encode(e, text);
	}
	return error_set(e->err, LLMC_E_BUG, "tokenizer: model %d", (int)e->t->model);
}

/* Normalizes a segment that has breaks, and splits it at added tokens. If normalizing changes the
 * breaks themselves, the parts between them are normalized one by one. */
static llmc_status
normalize_broken(Enc *e, TokenPiece p, TokenPieces *all)
{
	const Trie *trie = &e->t->added_norm;
	ByteSpan rest = p.text, whole;

	TRY(normalize(e, p.text, &whole));
	if (break_count(whole) == break_count(p.text))
		return added_split(e, trie, (TokenPiece){ whole, -1, p.first }, all);
	while (rest.n) {
		TokenPiece part = { break_next(&rest), -1, p.first };
		p.first = false;
		TRY(normalize(e, part.text, &part.text));
		TRY(added_split(e, trie, part, all));
	}
	return LLMC_OK;
}

bool
token_is_mark(const llmc_tokenizer *t, int32_t id)
{
	bool byte = false;

	for (int b = 0; b < 256 && t->tok[id].special; b++)
		byte |= t->byte_id[b] == id;
	return t->tok[id].special && id != t->unk_id && !byte;
}

/* Encodes a segment after removing its breaks. If the model itself then finds a special token, the
 * parts between the breaks are encoded one by one. */
static llmc_status
encode_broken(Enc *e, TokenPiece p)
{
	const size_t n = e->n_ids;
	bool special = false;
	ByteSpan rest = p.text;

	TRY(encode_words(e, 0, (TokenPiece){ break_remove(&e->arena, p.text), -1, p.first }));
	for (size_t i = n; i < e->n_ids; i++)
		special |= token_is_mark(e->t, e->ids[i]);
	if (!special)
		return LLMC_OK;
	e->n_ids = n;
	while (rest.n) {
		TRY(encode_words(e, 0, (TokenPiece){ break_next(&rest), -1, p.first }));
		p.first = false;
	}
	return LLMC_OK;
}

llmc_status
encode(Enc *e, ByteSpan text)
{
	const llmc_tokenizer *t = e->t;
	TokenPieces raw = { 0 }, all = { 0 };
	const int first = e->flags & LLMC_ADD_FIRST, second = e->flags & LLMC_ADD_SECOND;

	if ((first || second) && t->has_pair)
		push_all(e, t->pair[second ? 1 : 0], t->n_pair[second ? 1 : 0]);
	else if (first || second || e->flags & LLMC_ADD_SPECIAL)
		push_all(e, t->prefix, t->n_prefix);
	/* A rule may make its input longer, and the next rule may make the result longer again. */
	e->max_normal = e->max_word = ((size_t)1 << 20) + TEXT_MAX_STEPS * text.n;
	TRY(added_split(e, &t->added_raw, (TokenPiece){ text, -1, true }, &raw));
	for (size_t i = 0; i < raw.n; i++) {
		TokenPiece p = raw.v[i];
		if (p.id >= 0) {
			piece_push(e, &all, p.text, p.id, p.first);
			continue;
		}
		if (e->flags & LLMC_BREAKS && break_find(p.text)) {
			TRY(normalize_broken(e, p, &all));
			continue;
		}
		TRY(normalize(e, p.text, &p.text));
		TRY(added_split(e, &t->added_norm, p, &all));
	}
	e->word = NEW(&e->arena, PreToken, t->n_pre + 1);
	for (size_t i = 0; i < all.n; i++) {
		const TokenPiece p = all.v[i];
		if (e->flags & LLMC_BREAKS && p.id < 0 && break_find(p.text))
			TRY(encode_broken(e, p));
		else
			TRY(encode_words(e, 0, p));
	}
	if (second && t->has_pair)
		push_all(e, t->pair[2], t->n_pair[2]);
	else if (!(first && t->has_pair) && (first || second || e->flags & LLMC_ADD_SPECIAL))
		push_all(e, t->suffix, t->n_suffix);
	return LLMC_OK;
}

typedef struct IdsWanted { /* arguments of llmc_tokenize */
	const char *text;
	size_t n_bytes;
	int32_t *ids;
	size_t cap, *need;
} IdsWanted;

static llmc_status
tokenize(Enc *e, void *arg)
{
	const IdsWanted *w = arg;

	TRY(encode(e, utf8_sanitize(&e->arena, w->text, w->n_bytes)));
	if (w->need)
		*w->need = e->n_ids;
	if (e->n_ids > w->cap)
		return error_set(e->err, LLMC_E_RANGE,
		                 "llmc_tokenize: %zu ids do not fit into a buffer of %zu", e->n_ids,
		                 w->cap);
	if (e->n_ids)
		memcpy(w->ids, e->ids, e->n_ids * sizeof *w->ids);
	return LLMC_OK;
}

llmc_status
llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags, int32_t *ids,
              size_t cap, size_t *need, llmc_error *err)
{
	Enc e = { .t = t, .flags = flags, .err = err };
	IdsWanted want = { text ? text : "", n_bytes, ids, cap, need };

	if (!t || (!text && n_bytes) || (!ids && cap))
		return error_set(err, LLMC_E_RANGE, "llmc_tokenize: a pointer is NULL");
	if (n_bytes > (size_t)1 << 30)
		return error_set(err, LLMC_E_RANGE,
		                 "llmc_tokenize: %zu bytes of text; at most 2^30 are taken",
		                 n_bytes);
	return enc_run(&e, "llmc_tokenize", tokenize, &want);
}

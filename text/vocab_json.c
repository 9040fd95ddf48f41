/* tokenizer.json: model, vocabulary and added tokens. vocab_pipeline.c reads the rest. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

typedef struct JsonLoad {
	llmc_tokenizer *t;
	json_t *root;
	const char *name;
	llmc_error *err;
	bool masked;
} JsonLoad;

static llmc_status
bad(const JsonLoad *l, const char *what)
{
	return error_set(l->err, LLMC_E_INPUT, "%s", what);
}

/* jansson rejects NUL in a key, but a vocabulary may contain one. Therefore \u0000 is replaced by
 * U+10FFFF while the file is parsed. */
#define NUL_MASK "\xF4\x8F\xBF\xBF"

static ByteSpan
unmask(const JsonLoad *l, ByteSpan s)
{
	if (!l->masked || !memmem(s.s, s.n, NUL_MASK, 4))
		return s;
	char *p = NEW(&l->t->arena, char, s.n + 1);
	size_t n = 0;
	for (size_t i = 0; i < s.n; i++) {
		bool nul = s.n - i >= 4 && memcmp(s.s + i, NUL_MASK, 4) == 0;
		p[n++] = nul ? 0 : s.s[i];
		i += nul ? 3 : 0;
	}
	return (ByteSpan){ p, n };
}

static bool
mask(const char *data, size_t n, Strbuf *out)
{
	if (!n || !memmem(data, n, "\\u0000", 6))
		return false;
	for (size_t i = 0; i < n; i++) {
		if (data[i] == '\\' && i + 1 < n) {
			if (n - i >= 6 && memcmp(data + i, "\\u0000", 6) == 0) {
				strbuf_add(out, NUL_MASK, 4);
				i += 5;
				continue;
			}
			strbuf_add(out, data + i++, 1);
		}
		strbuf_add(out, data + i, 1);
	}
	return true;
}

static ByteSpan
text_of(const JsonLoad *l, const json_t *v)
{
	return unmask(l, (ByteSpan){ json_string_value(v), json_string_length(v) });
}

/* Finds the highest id of vocabulary and added tokens, so that the table can be allocated at
 * once. */
static llmc_status
count_ids(JsonLoad *l, const json_t *vocab, const json_t *added)
{
	json_int_t top = -1;
	const char *key;
	json_t *v;
	size_t i;

	if (json_is_object(vocab)) {
		json_object_foreach ((json_t *)vocab, key, v) {
			if (!json_is_integer(v) || json_integer_value(v) < 0 ||
			    json_integer_value(v) >= TEXT_MAX_IDS)
				return error_set(
				    l->err, LLMC_E_INPUT,
				    "model.vocab: the id of \"%.60s\" is no number from 0 to %d",
				    key, TEXT_MAX_IDS - 1);
			if (json_integer_value(v) > top)
				top = json_integer_value(v);
		}
	} else {
		top = (json_int_t)json_array_size(vocab) - 1;
	}
	json_array_foreach (added, i, v) {
		const json_t *id = json_object_get(v, "id");
		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= TEXT_MAX_IDS)
			return error_set(l->err, LLMC_E_INPUT,
			                 "added_tokens[%zu]: id is no number from 0 to %d", i,
			                 TEXT_MAX_IDS - 1);
		if (json_integer_value(id) > top)
			top = json_integer_value(id);
	}
	/* ids may have gaps, but not more gaps than entries */
	size_t entries = json_object_size(vocab) + json_array_size(vocab) + json_array_size(added);
	if (top >= 0 && (size_t)top / 64 > entries + 1024)
		return error_set(l->err, LLMC_E_INPUT,
		                 "the vocabulary has %zu entries, but ids up to %lld", entries,
		                 (long long)top);
	l->t->n_ids = (int32_t)(top + 1);
	l->t->tok = NEW(&l->t->arena, Token, top + 1);
	return LLMC_OK;
}

static void
vocab_put(llmc_tokenizer *t, int32_t id, ByteSpan s)
{
	tokenizer_set(t, id, s);
	strmap_put(&t->vocab, &t->arena, (ByteSpan){ t->tok[id].s, t->tok[id].n }, id);
}

static llmc_status
load_merges(JsonLoad *l, const json_t *merges)
{
	llmc_tokenizer *t = l->t;
	Strbuf *joined = &t->scratch;
	json_t *m;
	size_t i;

	json_array_foreach (merges, i, m) {
		ByteSpan a, b;
		if (json_is_string(m)) {
			ByteSpan whole = text_of(l, m);
			const char *gap = memchr(whole.s, ' ', whole.n);
			if (!gap)
				return error_set(l->err, LLMC_E_INPUT,
				                 "model.merges[%zu]: no space in \"%.60s\"", i,
				                 whole.s);
			a = (ByteSpan){ whole.s, (size_t)(gap - whole.s) };
			b = (ByteSpan){ gap + 1, whole.n - a.n - 1 };
		} else if (json_array_size(m) == 2 && json_is_string(json_array_get(m, 0)) &&
		           json_is_string(json_array_get(m, 1))) {
			a = text_of(l, json_array_get(m, 0));
			b = text_of(l, json_array_get(m, 1));
		} else {
			return error_set(l->err, LLMC_E_INPUT,
			                 "model.merges[%zu]: neither \"a b\" nor [\"a\", \"b\"]",
			                 i);
		}
		size_t skip = b.n >= t->word_prefix.n ? t->word_prefix.n : b.n;
		strbuf_clear(joined);
		strbuf_add(joined, a.s, a.n);
		strbuf_add(joined, b.s + skip, b.n - skip);
		if (joined->failed)
			return error_set(l->err, LLMC_E_MEMORY, "out of memory");
		int32_t ia = strmap_get(&t->vocab, a.s, a.n), ib = strmap_get(&t->vocab, b.s, b.n);
		int32_t to = strmap_get(&t->vocab, strbuf_str(joined), joined->len);
		if (ia < 0 || ib < 0 || to < 0)
			return error_set(l->err, LLMC_E_INPUT,
			                 "model.merges[%zu] joins \"%.60s\" and \"%.60s\", but %s "
			                 "is not in the vocabulary",
			                 i, a.s, b.s,
			                 ia < 0   ? "the first"
			                 : ib < 0 ? "the second"
			                          : "the result");
		pairmap_put(&t->merges, &t->arena, ia, ib, (int32_t)i, to);
	}
	strbuf_release(joined);
	return LLMC_OK;
}

static llmc_status
load_bpe(JsonLoad *l, const json_t *model)
{
	llmc_tokenizer *t = l->t;
	const json_t *vocab = json_object_get(model, "vocab"),
	             *unk = json_object_get(model, "unk_token");
	const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
	const json_t *suffix = json_object_get(model, "end_of_word_suffix");
	const char *key;
	json_t *v;

	if (!json_is_object(vocab))
		return bad(l, "model.vocab is not an object of token: id");
	if (json_object_get(model, "merges") && !json_is_array(json_object_get(model, "merges")))
		return bad(l, "model.merges is not an array");
	t->model = MODEL_BPE;
	json_object_foreach ((json_t *)vocab, key, v)
		vocab_put(t, (int32_t)json_integer_value(v),
		          unmask(l, (ByteSpan){ key, strlen(key) }));
	if (json_is_string(prefix))
		t->word_prefix = span_copy(&t->arena, text_of(l, prefix));
	if (json_is_string(suffix))
		t->word_suffix = span_copy(&t->arena, text_of(l, suffix));
	if (json_is_string(unk))
		t->unk_id = strmap_get(&t->vocab, json_string_value(unk), json_string_length(unk));
	t->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
	t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
	return load_merges(l, json_object_get(model, "merges"));
}

static llmc_status
load_unigram(JsonLoad *l, const json_t *model)
{
	llmc_tokenizer *t = l->t;
	const json_t *vocab = json_object_get(model, "vocab"),
	             *unk = json_object_get(model, "unk_id");
	json_t *v;
	size_t i;

	if (!json_is_array(vocab) || !json_array_size(vocab))
		return bad(l, "model.vocab is not an array of [piece, score]");
	t->model = MODEL_UNIGRAM;
	trie_init(&t->pieces, &t->arena);
	json_array_foreach (vocab, i, v) {
		const json_t *s = json_array_get(v, 0), *score = json_array_get(v, 1);
		if (!json_is_string(s) || !json_is_number(score) ||
		    json_string_length(s) > TEXT_MAX_TOKEN)
			return error_set(l->err, LLMC_E_INPUT,
			                 "model.vocab[%zu] is not [piece, score]", i);
		vocab_put(t, (int32_t)i, text_of(l, s));
		t->tok[i].score = json_number_value(score);
		if (i == 0 || t->tok[i].score < t->min_score)
			t->min_score = t->tok[i].score;
		if (json_string_length(s))
			trie_put(&t->pieces, &t->arena, text_of(l, s), (int32_t)i);
	}
	if (json_is_integer(unk)) {
		if (json_integer_value(unk) < 0 ||
		    (size_t)json_integer_value(unk) >= json_array_size(vocab))
			return bad(l, "model.unk_id is outside the vocabulary");
		t->unk_id = (int32_t)json_integer_value(unk);
	}
	t->fuse_unk = true;
	t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
	return LLMC_OK;
}

/* WordPiece and WordLevel: reads an object with tokens as keys and ids as values. */
static llmc_status
load_words(JsonLoad *l, const json_t *model, bool pieces)
{
	llmc_tokenizer *t = l->t;
	const json_t *vocab = json_object_get(model, "vocab"),
	             *unk = json_object_get(model, "unk_token"),
	             *prefix = json_object_get(model, "continuing_subword_prefix"),
	             *most = json_object_get(model, "max_input_chars_per_word");
	const char *key;
	json_t *v;

	if (!json_is_object(vocab))
		return bad(l, "model.vocab is not an object of token: id");
	t->model = pieces ? MODEL_WORDPIECE : MODEL_WORDLEVEL;
	t->word_prefix = json_is_string(prefix) ? span_copy(&t->arena, text_of(l, prefix))
	                                        : (ByteSpan){ "##", 2 };
	t->longest_word = json_is_integer(most) && json_integer_value(most) >= 0 &&
	                          json_integer_value(most) <= INT32_MAX
	                      ? (int32_t)json_integer_value(most)
	                      : 100;
	trie_init(&t->pieces, &t->arena);
	trie_init(&t->inner, &t->arena);
	json_object_foreach ((json_t *)vocab, key, v) {
		const int32_t id = (int32_t)json_integer_value(v);
		vocab_put(t, id, unmask(l, (ByteSpan){ key, strlen(key) }));
		if (pieces && t->tok[id].n)
			wordpiece_add(t, (ByteSpan){ t->tok[id].s, t->tok[id].n }, id);
	}
	if (json_is_string(unk))
		t->unk_id = strmap_get(&t->vocab, json_string_value(unk), json_string_length(unk));
	return LLMC_OK;
}

static llmc_status
load_added(JsonLoad *l, const json_t *added)
{
	llmc_tokenizer *t = l->t;
	json_t *v;
	size_t i;

	json_array_foreach (added, i, v) {
		const json_t *content = json_object_get(v, "content");
		if (!json_is_string(content))
			return error_set(l->err, LLMC_E_INPUT,
			                 "added_tokens[%zu]: content is not a string", i);
		AddedToken a = {
			.id = (int32_t)json_integer_value(json_object_get(v, "id")),
			.text = text_of(l, content),
			.special = json_is_true(json_object_get(v, "special")),
			.lstrip = json_is_true(json_object_get(v, "lstrip")),
			.rstrip = json_is_true(json_object_get(v, "rstrip")),
			.single_word = json_is_true(json_object_get(v, "single_word")),
		};
		const json_t *norm = json_object_get(v, "normalized");
		a.normalized = json_is_boolean(norm) ? json_is_true(norm) : !a.special;
		tokenizer_set(t, a.id, a.text);
		t->tok[a.id].special = a.special;
		t->tok[a.id].type = a.special ? TT_CONTROL : TT_USER;
		TRY(added_add(t, a, l->err));
	}
	return LLMC_OK;
}

static llmc_status
load(JsonLoad *l)
{
	const json_t *model = json_object_get(l->root, "model"),
	             *added = json_object_get(l->root, "added_tokens");
	const json_t *vocab = json_object_get(model, "vocab"),
	             *type = json_object_get(model, "type");
	const char *kind = json_string_value(type);

	if (!json_is_object(model))
		return bad(l, "no object \"model\": this is not a tokenizer.json");
	if (added && !json_is_null(added) && !json_is_array(added))
		return bad(l, "added_tokens is not an array");
	if (!kind) /* files that are older than the key */
		kind = json_object_get(model, "merges") ? "BPE" : "Unigram";
	TRY(count_ids(l, vocab, added));
	if (strcmp(kind, "BPE") == 0)
		TRY(load_bpe(l, model));
	else if (strcmp(kind, "Unigram") == 0)
		TRY(load_unigram(l, model));
	else if (strcmp(kind, "WordPiece") == 0 || strcmp(kind, "WordLevel") == 0)
		TRY(load_words(l, model, strcmp(kind, "WordPiece") == 0));
	else
		return error_set(
		    l->err, LLMC_E_INPUT,
		    "model.type is \"%s\"; BPE, Unigram, WordPiece and WordLevel are supported",
		    kind);
	TRY(load_added(l, added));
	TRY(json_load_pipeline(l->t, l->root, l->err));
	return tokenizer_finish(l->t, l->err);
}

static llmc_status
guarded(JsonLoad *l)
{
	if (setjmp(l->t->arena.oom))
		return error_set(l->err, LLMC_E_MEMORY, "out of memory");
	return load(l);
}

llmc_status
text_open_json(const char *data, size_t n, const char *name, llmc_tokenizer **out, llmc_error *err)
{
	json_error_t why;
	bool no_memory;
	JsonLoad l = { .name = name, .err = err };
	Strbuf text = { 0 };

	*out = NULL;
	l.t = tokenizer_new(err);
	if (!l.t)
		return LLMC_E_MEMORY;
	l.masked = mask(data, n, &text);
	if (text.failed) {
		llmc_tokenizer_close(l.t);
		strbuf_release(&text);
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory", name);
	}
	l.root = json_parse(l.masked ? strbuf_str(&text)
	                    : data   ? data
	                             : "",
	                    l.masked ? text.len : n, JSON_ALLOW_NUL, &why, &no_memory);
	strbuf_release(&text);
	llmc_status status = l.root      ? guarded(&l)
	                     : no_memory ? error_set(err, LLMC_E_MEMORY, "out of memory")
	                                 : error_set(err, LLMC_E_INPUT, "line %d, column %d: %s",
	                                             why.line, why.column, why.text);
	json_decref(l.root);
	if (status != LLMC_OK) {
		error_prefix(err, "%s", name);
		llmc_tokenizer_close(l.t);
		return status;
	}
	*out = l.t;
	return LLMC_OK;
}

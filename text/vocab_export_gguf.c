/* Writes the tokenizer of a folder as GGUF keys. The forms are: byte-level BPE with the name of its
 * split regexes ("gpt2"); tokens with scores ("llama"), from tokenizer.model or else from the merge
 * ranks; unigram ("t5"); WordPiece ("bert"). The result is loaded again and compared with the
 * folder's tokenizer on a sample. */
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/file.h"
#include "base/json.h"
#include "formats/gguf_write.h"
#include "text/text.h"

#define KEY GGUF_VOCAB
#define CHECK_TEXT "configs/texts/calibration.txt"
enum { CHECK_BYTES = 20000 };

typedef struct VocabExport {
	Arena a;
	const char *folder;
	llmc_tokenizer *own;    /* tokenizer of the folder */
	llmc_tokenizer *pieces; /* tokenizer.model; NULL: there is none */
	int32_t n;              /* number of ids in the file */
	GgufHead head;          /* used for its keys only */
	llmc_error *err;
} VocabExport;

/* ---- pre-tokenizer ---- */

static bool
exprs_of(const json_t *o, Strbuf *out, int depth)
{
	static const char gpt2[] =
	    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
	const char *type = json_string_value(json_object_get(o, "type"));
	size_t i;
	json_t *item;

	if (!type || depth > 8)
		return false;
	if (strcmp(type, "Sequence") == 0) {
		json_array_foreach (json_object_get(o, "pretokenizers"), i, item)
			if (!exprs_of(item, out, depth + 1))
				return false;
		return true;
	}
	if (strcmp(type, "Split") == 0) {
		const char *re =
		    json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
		if (!re || json_is_true(json_object_get(o, "invert")))
			return false;
		strbuf_add(out, re, strlen(re) + 1);
		return true;
	}
	if (strcmp(type, "Digits") == 0) {
		strbuf_add(out, "\\p{N}", sizeof "\\p{N}");
		return json_is_true(json_object_get(o, "individual_digits"));
	}
	if (strcmp(type, "ByteLevel") != 0 ||
	    !json_is_false(json_object_get(o, "add_prefix_space")))
		return false;
	if (!json_is_false(json_object_get(o, "use_regex")))
		strbuf_add(out, gpt2, sizeof gpt2);
	return true;
}

static llmc_status
pre_of(VocabExport *j, char name[64])
{
	const char *path = arena_printf(&j->a, "%s/tokenizer.json", j->folder);
	Strbuf *text = arena_strbuf(&j->a), *exprs = arena_strbuf(&j->a);
	json_error_t why;

	/* vocab.json and merges.txt, or bytes and ranks; in these a word that is in the vocabulary
	 * is one token */
	if (!file_exists(path)) {
		strcpy(name, j->own->ignore_merges ? "llama-bpe" : "gpt-2");
		return LLMC_OK;
	}
	TRY(file_read(path, TEXT_MAX_FILE, text, j->err));
	/* jansson rejects NUL in a key. The vocabulary may have one, but is not read here. */
	for (char *p = text->data; p && (p = strstr(p, "\\u0000"));)
		p[5] = '1';
	json_t *root = json_read(&j->a, strbuf_str(text), text->len, JSON_ALLOW_NUL, &why);
	bool known = root && exprs_of(json_object_get(root, "pre_tokenizer"), exprs, 0);
	if (exprs->failed)
		arena_out(&j->a);
	if (!known ||
	    !pretokenizer_name(strbuf_str(exprs), exprs->len, j->own->ignore_merges, name))
		return error_set(j->err, LLMC_E_INPUT,
		                 "%s: GGUF has no name for the split rules of the pre_tokenizer, "
		                 "or configs/pretokenizers.yaml does not list it",
		                 path);
	return LLMC_OK;
}

/* ---- tokens ---- */

/* Returns whether llama.cpp's converter treats the token as one that is not text. */
static bool
looks_special(ByteSpan s)
{
	static const char *const whole[] = { "<pad>", "<mask>", "<2mass>", "[@BOS@]" };
	static const char bar[] = "\xEF\xBD\x9C"; /* a wide | */

	for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
		if (s.n == strlen(whole[i]) && memcmp(s.s, whole[i], s.n) == 0)
			return true;
	return (s.n > 3 && memcmp(s.s, "<|", 2) == 0 && memcmp(s.s + s.n - 2, "|>", 2) == 0) ||
	       (s.n > 8 && s.s[0] == '<' && memcmp(s.s + 1, bar, 3) == 0 &&
	        memcmp(s.s + s.n - 4, bar, 3) == 0 && s.s[s.n - 1] == '>') ||
	       (s.n > 7 && memcmp(s.s, "<unused", 7) == 0);
}

/* Replaces the sentencepiece space symbol by a space. */
static ByteSpan
with_spaces(Arena *a, ByteSpan s)
{
	char *out = NEW(a, char, s.n + 1);
	size_t n = 0;

	for (size_t i = 0; i < s.n; i++) {
		bool mark = s.n - i >= 3 && memcmp(s.s + i, "\xE2\x96\x81", 3) == 0;
		out[n++] = mark ? ' ' : s.s[i];
		i += mark ? 2 : 0;
	}
	return (ByteSpan){ out, n };
}

typedef struct TokenTable {
	GgufStr *text;
	int32_t *type;
	float *score;
} TokenTable;

static void
set_added(VocabExport *j, TokenTable *t)
{
	for (size_t i = 0; i < j->own->n_added; i++) {
		const AddedToken *a = &j->own->added[i];
		if (a->id < 0 || a->id >= j->n)
			continue;
		bool special = a->special || looks_special(a->text);
		ByteSpan s = special ? a->text : with_spaces(&j->a, a->text);
		if (t->type[a->id] == TT_UNKNOWN)
			continue;
		t->text[a->id] = (GgufStr){ s.s, s.n };
		t->type[a->id] = special ? TT_CONTROL : TT_USER;
		t->score[a->id] = -1000;
	}
}

static TokenTable
table_new(VocabExport *j, float score)
{
	TokenTable t = { NEW(&j->a, GgufStr, j->n + 1), NEW(&j->a, int32_t, j->n + 1),
		         NEW(&j->a, float, j->n + 1) };

	for (int32_t i = 0; i < j->n; i++) {
		const char *name = arena_printf(&j->a, "[PAD%d]", i);
		t.text[i] = (GgufStr){ name, strlen(name) };
		t.type[i] = TT_UNUSED;
		t.score[i] = score;
	}
	return t;
}

static void
set_tokens(VocabExport *j, const llmc_tokenizer *from, TokenTable *t)
{
	for (int32_t i = 0; i < from->n_ids && i < j->n; i++) {
		const Token *k = &from->tok[i];
		if (!k->s)
			continue;
		t->text[i] = (GgufStr){ k->s, k->n };
		t->type[i] = k->type ? k->type : TT_NORMAL;
		t->score[i] = (float)k->score;
	}
}

static void
put_tokens(VocabExport *j, const char *model, const char *pre, const TokenTable *t, bool scores)
{
	const size_t n = (size_t)j->n;

	gguf_head_str(&j->head, KEY "model", model);
	gguf_head_str(&j->head, KEY "pre", pre);
	gguf_head_texts(&j->head, KEY "tokens", t->text, n);
	if (scores)
		gguf_head_list(&j->head, KEY "scores", GGUF_F32, t->score, n * sizeof *t->score, n);
	gguf_head_list(&j->head, KEY "token_type", GGUF_I32, t->type, n * sizeof *t->type, n);
}

typedef struct Merge {
	int32_t rank, left, right;
} Merge;

/* If the rank of a token applies to all its merges (vocab_tiktoken.c), these are ordered by the ids
 * of both parts, as in the converter of transformers. */
static int
by_rank(const void *a, const void *b)
{
	const Merge *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	if (x->left != y->left)
		return x->left < y->left ? -1 : 1;
	return x->right < y->right ? -1 : x->right > y->right;
}

static llmc_status
bytelevel(VocabExport *j)
{
	const llmc_tokenizer *t = j->own;
	const PairMap *m = &t->merges;
	Merge *merge = NEW(&j->a, Merge, m->n + 1);
	GgufStr *text = NEW(&j->a, GgufStr, m->n + 1);
	size_t n = 0;
	char pre[64];

	TRY(pre_of(j, pre));
	if (t->word_prefix.n || t->word_suffix.n || t->n_norm > 1 ||
	    (t->n_norm == 1 && t->norm[0].kind != NORMALIZE_NFC))
		return error_set(
		    j->err, LLMC_E_INPUT,
		    "%s: its tokenizer normalizes text before splitting it, or marks parts "
		    "of words, which GGUF cannot express",
		    j->folder);
	TokenTable table = table_new(j, 0);
	set_tokens(j, t, &table);
	set_added(j, &table);
	put_tokens(j, "gpt2", pre, &table, false);
	for (size_t i = 0; i < m->cap; i++)
		if (m->key[i])
			merge[n++] = (Merge){ m->rank[i], (int32_t)((m->key[i] - 1) >> 32),
				              (int32_t)(m->key[i] - 1) };
	qsort(merge, n, sizeof *merge, by_rank);
	for (size_t i = 0; i < n; i++) {
		const Token *l = &t->tok[merge[i].left], *r = &t->tok[merge[i].right];
		char *s = NEW(&j->a, char, l->n + r->n + 2);
		memcpy(s, l->s, l->n);
		s[l->n] = ' ';
		memcpy(s + l->n + 1, r->s, r->n);
		text[i] = (GgufStr){ s, (size_t)l->n + r->n + 1 };
	}
	gguf_head_texts(&j->head, KEY "merges", text, n);
	return LLMC_OK;
}

/* Writes tokens in the form of sentencepiece. */
static void
put_pieces(VocabExport *j, TokenTable *t, bool prefix)
{
	set_added(j, t);
	put_tokens(j, "llama", "default", t, true);
	gguf_head_bool(&j->head, KEY "add_space_prefix", prefix);
}

static llmc_status
from_model(VocabExport *j)
{
	const llmc_tokenizer *t = j->pieces;
	TokenTable table = table_new(j, -10000);
	bool prefix = true;

	if (t->model != MODEL_SCORES)
		return error_set(j->err, LLMC_E_INPUT,
		                 "%s: tokenizer.model is of the unigram kind, which llmc does not "
		                 "write into GGUF files",
		                 j->folder);
	for (size_t i = 0; i < t->n_norm; i++)
		prefix = t->norm[i].kind == NORMALIZE_SPM ? t->norm[i].dummy_prefix : prefix;
	set_tokens(j, t, &table);
	put_pieces(j, &table, prefix);
	return LLMC_OK;
}

/* Handles a tokenizer.json that was converted from a tokenizer.model. Of two merges, the earlier
 * one had the higher score. */
static llmc_status
from_merges(VocabExport *j)
{
	const llmc_tokenizer *t = j->own;
	TokenTable table = table_new(j, -10000);
	bool prefix = false;

	set_tokens(j, t, &table);
	for (int32_t i = 0; i < t->n_ids && i < j->n; i++)
		table.score[i] = -1e6f;
	for (size_t i = 0; i < t->merges.cap; i++)
		if (t->merges.key[i] && t->merges.id[i] < j->n &&
		    table.score[t->merges.id[i]] < (float)-t->merges.rank[i])
			table.score[t->merges.id[i]] = (float)-t->merges.rank[i];
	for (int i = 0; i < 256; i++)
		if (t->byte_id[i] >= 0 && t->byte_id[i] < j->n)
			table.type[t->byte_id[i]] = TT_BYTE;
	if (t->unk_id >= 0 && t->unk_id < j->n)
		table.type[t->unk_id] = TT_UNKNOWN;
	for (size_t i = 0; i < t->n_norm; i++)
		prefix |= t->norm[i].kind == NORMALIZE_PREPEND;
	for (size_t i = 0; i < t->n_pre; i++)
		prefix |= t->pre[i].kind == PRE_METASPACE && t->pre[i].prepend != PREPEND_NEVER;
	put_pieces(j, &table, prefix);
	return LLMC_OK;
}

/* WordPiece in GGUF: tokens that begin a word are marked, instead of those inside a word. */
static llmc_status
words(VocabExport *j)
{
	const llmc_tokenizer *t = j->own;
	const Normalizer *norm = t->n_norm == 1 ? t->norm : NULL;
	TokenTable table = table_new(j, 0);

	if (!norm || norm->kind != NORMALIZE_BERT || t->word_prefix.n != 2 ||
	    memcmp(t->word_prefix.s, "##", 2) != 0)
		return error_set(j->err, LLMC_E_INPUT,
		                 "%s: its tokenizer is not BERT's: GGUF has no other form of "
		                 "WordPiece",
		                 j->folder);
	set_tokens(j, t, &table);
	set_added(j, &table);
	for (int32_t i = 0; i < j->n; i++) {
		const GgufStr s = table.text[i];
		if (table.type[i] == TT_CONTROL || table.type[i] == TT_UNUSED)
			continue;
		const bool inside = s.n >= 2 && memcmp(s.s, "##", 2) == 0;
		char *out = NEW(&j->a, char, s.n + 4);
		memcpy(out, "\xE2\x96\x81", 3);
		memcpy(out + 3, s.s, s.n);
		table.text[i] = inside ? (GgufStr){ s.s + 2, s.n - 2 } : (GgufStr){ out, s.n + 3 };
	}
	put_tokens(j, "bert", "default", &table, false);
	gguf_head_bool(&j->head, KEY "normalizer.lowercase", norm->lower);
	gguf_head_bool(&j->head, KEY "normalizer.strip_accents", norm->accents);
	return LLMC_OK;
}

/* Appends the character map of a normalizer in the form of sentencepiece: the size of its units in
 * bytes, the units, the replacements. */
static void
put_charsmap(VocabExport *j, const Charsmap *map)
{
	const uint32_t bytes = (uint32_t)(map->n_units * sizeof *map->unit);
	Strbuf *blob = arena_strbuf(&j->a);

	if (!map->n_units)
		return;
	strbuf_add(blob, &bytes, sizeof bytes);
	strbuf_add(blob, map->unit, bytes);
	strbuf_add(blob, map->text.s, map->text.n);
	if (blob->failed)
		arena_out(&j->a);
	gguf_head_list(&j->head, KEY "precompiled_charsmap", GGUF_U8, strbuf_str(blob), blob->len,
	               blob->len);
}

static llmc_status
unigram(VocabExport *j)
{
	const llmc_tokenizer *t = j->own;
	const Charsmap *map = &(Charsmap){ 0 };
	TokenTable table = table_new(j, -10000);
	bool prefix = false, extra = false;

	for (size_t i = 0; i < t->n_norm; i++) {
		const Normalizer *n = &t->norm[i];
		if (n->kind == NORMALIZE_PRECOMPILED || n->kind == NORMALIZE_SPM)
			map = &n->map;
		prefix |= n->kind == NORMALIZE_SPM && n->dummy_prefix;
		extra |= n->kind == NORMALIZE_SPM ? n->remove_extra : n->kind == NORMALIZE_REPLACE;
	}
	for (size_t i = 0; i < t->n_pre; i++) {
		const PreTokenizer *p = &t->pre[i];
		prefix |= p->kind == PRE_METASPACE && p->prepend != PREPEND_NEVER;
		extra |= p->kind == PRE_CLASS && p->cls == CLASS_SPACE;
	}
	set_tokens(j, t, &table);
	for (size_t i = 0; i < t->n_added; i++) {
		const AddedToken *a = &t->added[i];
		if (a->id >= 0 && a->id < j->n)
			table.type[a->id] = a->special ? TT_CONTROL : TT_USER;
	}
	if (t->unk_id >= 0 && t->unk_id < j->n)
		table.type[t->unk_id] = TT_UNKNOWN;
	put_tokens(j, "t5", "default", &table, true);
	gguf_head_bool(&j->head, KEY "add_space_prefix", prefix);
	gguf_head_bool(&j->head, KEY "remove_extra_whitespaces", extra);
	put_charsmap(j, map);
	return LLMC_OK;
}

/* ---- special ids ---- */

static void
put_id(VocabExport *j, const char *key, int32_t id)
{
	if (id >= 0 && id < j->n)
		gguf_head_u32(&j->head, key, (uint32_t)id);
}

static void
put_rest(VocabExport *j)
{
	const llmc_tokenizer *t = j->own;

	/* in an encoder, the tokens at the beginning and the end have other names */
	const int32_t bos = t->bos < 0 && t->n_prefix == 1 ? t->prefix[0] : t->bos,
	              eos = t->n_eos           ? t->eos[0]
	                    : t->n_suffix == 1 ? t->suffix[0]
	                                       : -1,
	              *between = t->pair[1];
	const size_t n_between = t->has_pair ? t->n_pair[1] : 0;
	const bool ended = n_between && between[0] == eos, sep = n_between == 1u + ended;
	put_id(j, KEY "bos_token_id", bos);
	put_id(j, gguf_end_keys[0], eos);
	for (int i = 1; i < GGUF_END_KEYS && i < t->n_eos; i++)
		put_id(j, gguf_end_keys[i], t->eos[i]);
	put_id(j, KEY "unknown_token_id", t->unk >= 0 ? t->unk : t->unk_id);
	put_id(j, KEY "padding_token_id", t->pad);
	if (t->model == MODEL_WORDPIECE)
		put_id(j, KEY "cls_token_id", bos);
	if (sep || t->model == MODEL_WORDPIECE)
		put_id(j, KEY "seperator_token_id", sep ? between[n_between - 1] : eos);
	gguf_head_bool(&j->head, KEY "add_bos_token", t->n_prefix == 1 && t->prefix[0] == bos);
	gguf_head_bool(&j->head, KEY "add_eos_token", t->n_suffix == 1 && t->suffix[0] == eos);
	if (sep)
		gguf_head_bool(&j->head, KEY "add_sep_token", true);
	if (t->chat)
		gguf_head_str(&j->head, "tokenizer.chat_template", t->chat);
	if (t->chat_tools && t->chat_tools != t->chat) {
		gguf_head_strs(&j->head, "tokenizer.chat_templates",
		               (const char *const[]){ "tool_use" }, 1);
		gguf_head_str(&j->head, "tokenizer.chat_template.tool_use", t->chat_tools);
	}
}

/* ---- verification ---- */

static llmc_status
ids_of(VocabExport *j, const llmc_tokenizer *t, const char *text, size_t n_bytes, int32_t **ids,
       size_t *n)
{
	size_t cap = n_bytes + 64;

	*ids = NEW(&j->a, int32_t, cap);
	return llmc_tokenize(t, text, n_bytes, LLMC_PARSE_SPECIAL, *ids, cap, n, j->err);
}

static llmc_status
same_ids(VocabExport *j, const llmc_tokenizer *file)
{
	static const char odd[] =
	    " I'll  be THERE at 10:15,\n\n\tthey said: 12345 + 67 = 12412!?  ``x=\"y\"''...   "
	    "caf\xC3\xA9 na\xC3\xAFve \xE4\xBD\xA0\xE5\xA5\xBD \xD0\xBC\xD0\xB8\xD1\x80 "
	    "\xF0\x9F\x98\x80 \n ";
	size_t n_text = 0, n[2];
	const char *text = embed_find(CHECK_TEXT, &n_text);
	Strbuf *all = arena_strbuf(&j->a);
	int32_t *ids[2];

	strbuf_add(all, text ? text : "", text && n_text > CHECK_BYTES ? CHECK_BYTES : n_text);
	while (all->len && ((unsigned char)all->data[all->len - 1] & 0xC0) ==
	                       0x80) /* for all complete characters */
		all->len--;
	strbuf_add(all, odd, sizeof odd - 1);
	for (size_t i = 0; i < j->own->n_added && i < 64; i++) {
		strbuf_add(all, "ab", 2);
		strbuf_add(all, j->own->added[i].text.s, j->own->added[i].text.n);
	}
	if (all->failed)
		arena_out(&j->a);
	TRY(ids_of(j, j->own, strbuf_str(all), all->len, &ids[0], &n[0]));
	TRY(ids_of(j, file, strbuf_str(all), all->len, &ids[1], &n[1]));
	for (size_t i = 0; i < n[0] || i < n[1]; i++)
		if (i >= n[0] || i >= n[1] || ids[0][i] != ids[1][i])
			return error_set(
			    j->err, LLMC_E_INPUT,
			    "%s: GGUF cannot express the way its tokenizer splits text: "
			    "token %zu of a sample is %d, read from the file it would be %d",
			    j->folder, i, i < n[0] ? ids[0][i] : -1, i < n[1] ? ids[1][i] : -1);
	return LLMC_OK;
}

static llmc_status
check(VocabExport *j)
{
	Strbuf *bytes = arena_strbuf(&j->a);
	llmc_tokenizer *t = NULL;
	Gguf *g;

	gguf_head_text(&j->head, bytes);
	if (bytes->failed)
		arena_out(&j->a);
	TRY(gguf_open_memory(strbuf_str(bytes), bytes->len, j->folder, &g, j->err));
	llmc_status s = text_open_gguf(g, j->folder, &t, j->err);
	if (s == LLMC_OK)
		s = same_ids(j, t);
	llmc_tokenizer_close(t);
	gguf_close(g);
	return s;
}

static llmc_status export(VocabExport *j, GgufHead *head)
{
	const char *model = arena_printf(&j->a, "%s/tokenizer.model", j->folder);
	bool bytes = false;

	TRY(llmc_tokenizer_open(j->folder, &j->own, j->err));
	for (size_t i = 0; i < j->own->n_pre; i++)
		bytes |= j->own->pre[i].kind == PRE_BYTES;
	if (j->own->n_ids > j->n) {
		for (int32_t i = j->n; i < j->own->n_ids; i++)
			if (j->own->tok[i].s)
				return error_set(j->err, LLMC_E_INPUT,
				                 "%s: the tokenizer has a token %d, the model %d "
				                 "rows of the embedding",
				                 j->folder, i, j->n);
	}
	if (bytes && j->own->model == MODEL_BPE) {
		TRY(bytelevel(j));
	} else if (j->own->model == MODEL_WORDPIECE) {
		TRY(words(j));
	} else if (j->own->model == MODEL_UNIGRAM) {
		TRY(unigram(j));
	} else if (file_exists(model)) {
		FileMap *map = file_hold(&j->a, model, j->err);
		if (!map)
			return LLMC_E_INPUT;
		TRY(text_open_spm((const char *)map->data, map->size, model, &j->pieces, j->err));
		TRY(from_model(j));
	} else if (j->own->model == MODEL_BPE && j->own->byte_fallback) {
		TRY(from_merges(j));
	} else {
		return error_set(
		    j->err, LLMC_E_INPUT,
		    "%s: its tokenizer is of a kind that llmc cannot write to GGUF; supported are "
		    "byte-level BPE, sentencepiece tokens with scores, unigram and WordPiece",
		    j->folder);
	}
	put_rest(j);
	TRY(check(j));
	strbuf_add(&head->keys, strbuf_str(&j->head.keys), j->head.keys.len);
	head->keys.failed |= j->head.keys.failed;
	head->n_key += j->head.n_key;
	return LLMC_OK;
}

static llmc_status
guarded(VocabExport *j, GgufHead *head)
{
	return setjmp(j->a.oom) ? error_set(j->err, LLMC_E_MEMORY, "out of memory")
	                        : export(j, head);
}

llmc_status
text_export_gguf(const char *folder, int32_t n_ids, GgufHead *head, llmc_error *err)
{
	VocabExport j = { .folder = folder, .n = n_ids, .err = err };

	arena_init(&j.a);
	gguf_head_init(&j.head, 32);
	llmc_status s = guarded(&j, head);
	gguf_head_release(&j.head);
	llmc_tokenizer_close(j.pieces);
	llmc_tokenizer_close(j.own);
	arena_release(&j.a);
	return s;
}

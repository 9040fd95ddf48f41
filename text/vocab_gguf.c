/* Vocabulary of a GGUF file: tokenizer.ggml.*. tokenizer.ggml.model is "gpt2" (byte-level BPE;
 * tokenizer.ggml.pre names the split regex), "gemma4" (BPE by merges over characters, with spaces
 * as in sentencepiece; under "gpt2", some names in tokenizer.ggml.pre select it), "llama"
 * (sentencepiece BPE by scores), "t5" (unigram) or "bert" (WordPiece). */
#include "text/text.h"

#include <string.h>

#define KEY GGUF_VOCAB

typedef struct GgufLoad {
	llmc_tokenizer *t;
	const Gguf *g;
	llmc_error *err;
	bool add_bos, add_eos; /* defaults for files without these keys */
} GgufLoad;

static bool
get_bool(const Gguf *g, const char *key, bool otherwise)
{
	int64_t v;
	return gguf_int(g, key, &v) ? v != 0 : otherwise;
}

static int32_t
get_id(GgufLoad *l, const char *key)
{
	int64_t v;
	return gguf_int(l->g, key, &v) && v >= 0 && v < l->t->n_ids ? (int32_t)v : -1;
}

/* Returns the id that a key has, otherwise that of another key (NULL: none), otherwise the given id
 * if the vocabulary has it. */
static int32_t
get_id_of(GgufLoad *l, const char *key, const char *other, int32_t otherwise)
{
	int32_t id = get_id(l, key);

	if (id < 0 && other)
		id = get_id(l, other);
	return id >= 0 || otherwise >= l->t->n_ids ? id : otherwise;
}

static llmc_status
read_tokens(GgufLoad *l, bool scores_wanted)
{
	llmc_tokenizer *t = l->t;
	GgufType type, elem;
	size_t n = 0, m = 0;

	if (!gguf_type(l->g, KEY "tokens", &type, &elem, &n) || type != GGUF_ARR ||
	    elem != GGUF_STR || !n)
		return error_set(l->err, LLMC_E_INPUT,
		                 "no array of strings " KEY "tokens: the file has no vocabulary");
	if (n > TEXT_MAX_IDS)
		return error_set(l->err, LLMC_E_INPUT,
		                 KEY "tokens has %zu entries; at most %d are taken", n,
		                 TEXT_MAX_IDS);
	bool types = gguf_type(l->g, KEY "token_type", &type, &elem, &m);
	if (types && (type != GGUF_ARR || m != n))
		return error_set(l->err, LLMC_E_INPUT,
		                 KEY "token_type has %zu entries, " KEY "tokens has %zu", m, n);
	bool scores = gguf_type(l->g, KEY "scores", &type, &elem, &m);
	if (scores && (type != GGUF_ARR || m != n))
		return error_set(l->err, LLMC_E_INPUT,
		                 KEY "scores has %zu entries, " KEY "tokens has %zu", m, n);
	if (scores_wanted && !scores)
		return error_set(l->err, LLMC_E_INPUT,
		                 "no " KEY "scores, which this kind of tokenizer needs");
	t->n_ids = (int32_t)n;
	t->tok = NEW(&t->arena, Token, n);
	for (size_t i = 0; i < n; i++) {
		GgufStr s;
		double v = TT_NORMAL;
		if (!gguf_arr_str(l->g, KEY "tokens", i, &s) || s.n > TEXT_MAX_TOKEN)
			return error_set(l->err, LLMC_E_INPUT,
			                 KEY "tokens[%zu] is too long; at most %zu bytes are taken",
			                 i, TEXT_MAX_TOKEN);
		if (types &&
		    (!gguf_arr_num(l->g, KEY "token_type", i, &v) || !(v >= 0 && v <= TT_BYTE)))
			return error_set(l->err, LLMC_E_INPUT,
			                 KEY "token_type[%zu] is none of 1 to 6", i);
		t->tok[i].type = v < 1 ? TT_NORMAL : (uint8_t)v;
		tokenizer_set(t, (int32_t)i, (ByteSpan){ s.s, s.n });
		if (scores) {
			if (!gguf_arr_num(l->g, KEY "scores", i, &v) || !(v > -1e30 && v < 1e30))
				return error_set(l->err, LLMC_E_INPUT,
				                 KEY "scores[%zu] is not a finite number", i);
			t->tok[i].score = (float)v;
		}
		t->tok[i].special = t->tok[i].type == TT_CONTROL;
	}
	return LLMC_OK;
}

static llmc_status
read_added(GgufLoad *l)
{
	llmc_tokenizer *t = l->t;

	for (int32_t i = 0; i < t->n_ids; i++) {
		const Token *k = &t->tok[i];
		if (k->type == TT_CONTROL || k->type == TT_USER ||
		    (k->type == TT_UNKNOWN && (t->spm || t->byte_fallback)))
			TRY(added_add(t,
			              (AddedToken){ .id = i,
			                            .text = { k->s, k->n },
			                            .special = k->type != TT_USER },
			              l->err));
		if (k->type == TT_UNKNOWN)
			t->tok[i].special = !t->spm && t->byte_fallback;
	}
	return LLMC_OK;
}

static llmc_status
read_merges(GgufLoad *l)
{
	llmc_tokenizer *t = l->t;
	GgufType type, elem;
	size_t n;

	for (int32_t i = 0; i < t->n_ids; i++)
		if (t->tok[i].type != TT_UNUSED)
			strmap_put(&t->vocab, &t->arena, (ByteSpan){ t->tok[i].s, t->tok[i].n }, i);
	if (!gguf_type(l->g, KEY "merges", &type, &elem, &n) || type != GGUF_ARR ||
	    elem != GGUF_STR)
		return error_set(l->err, LLMC_E_INPUT,
		                 "no array of strings " KEY "merges, which byte-level BPE needs");
	for (size_t i = 0; i < n && i < INT32_MAX; i++) {
		GgufStr s;
		if (!gguf_arr_str(l->g, KEY "merges", i, &s))
			break;
		const char *gap = s.n > 2 ? memchr(s.s + 1, ' ', s.n - 2) : NULL;
		if (!gap)
			return error_set(l->err, LLMC_E_INPUT,
			                 KEY "merges[%zu] is not two pieces with a space between",
			                 i);
		size_t a = (size_t)(gap - s.s), b = s.n - a - 1;
		strbuf_clear(&t->scratch);
		strbuf_add(&t->scratch, s.s, a);
		strbuf_add(&t->scratch, gap + 1, b);
		if (t->scratch.failed)
			return error_set(l->err, LLMC_E_MEMORY, "out of memory");
		int32_t ia = strmap_get(&t->vocab, s.s, a), ib = strmap_get(&t->vocab, gap + 1, b);
		int32_t to = strmap_get(&t->vocab, t->scratch.data, t->scratch.len);
		/* converters keep merges of tokens that they have removed; these merges never
		 * apply */
		if (ia >= 0 && ib >= 0 && to >= 0)
			pairmap_put(&t->merges, &t->arena, ia, ib, (int32_t)i, to);
	}
	return LLMC_OK;
}

static llmc_status
load_bytelevel(GgufLoad *l, GgufStr pre)
{
	llmc_tokenizer *t = l->t;

	t->model = MODEL_BPE;
	TRY(read_tokens(l, false));
	TRY(read_merges(l));
	TRY(read_added(l));
	TRY(pretokenizer_load(t, (ByteSpan){ pre.s, pre.n }, &l->add_bos, l->err));
	pre_add(t, PRE_BYTES);
	dec_add(t, DEC_BYTELEVEL);
	return LLMC_OK;
}

static llmc_status
load_characters(GgufLoad *l, bool add_bos)
{
	llmc_tokenizer *t = l->t;

	t->model = MODEL_BPE;
	t->byte_fallback = true;
	TRY(read_tokens(l, false));
	TRY(read_merges(l));
	TRY(read_added(l));
	const bool prefix = get_bool(l->g, KEY "add_space_prefix", false);
	*normalizer_add(t, NORMALIZE_SPM) =
	    (Normalizer){ .kind = NORMALIZE_SPM, .dummy_prefix = prefix, .escape = true };
	const int32_t unk = t->unk_id = get_id(l, KEY "unknown_token_id");
	t->fuse_unk = true;
	*dec_add(t, DEC_SPM) =
	    (Dec){ .kind = DEC_SPM,
		   .strip_first = prefix,
		   .unk_surface =
		       unk >= 0 ? (ByteSpan){ t->tok[unk].s, t->tok[unk].n } : (ByteSpan){ 0 } };
	l->add_bos = add_bos;
	return LLMC_OK;
}

static llmc_status
load_pieces(GgufLoad *l, bool unigram)
{
	llmc_tokenizer *t = l->t;
	GgufType type, elem;
	Charsmap map = { 0 };
	size_t n = 0;

	t->model = unigram ? MODEL_UNIGRAM : MODEL_SCORES;
	t->spm = true;
	t->byte_fallback = !unigram;
	TRY(read_tokens(l, true));
	unigram_pieces(t);
	for (int32_t i = 0; i < t->n_ids; i++)
		t->byte_fallback |= t->tok[i].type == TT_BYTE;
	TRY(read_added(l));
	if (get_id(l, KEY "unknown_token_id") >= 0)
		t->unk_id = get_id(l, KEY "unknown_token_id");
	if (gguf_type(l->g, KEY "precompiled_charsmap", &type, &elem, &n) && n) {
		char *blob = NEW(&t->arena, char, n);
		for (size_t i = 0; i < n; i++) {
			double v;
			if (!gguf_arr_num(l->g, KEY "precompiled_charsmap", i, &v) || v < -128 ||
			    v > 255)
				return error_set(l->err, LLMC_E_INPUT,
				                 KEY
				                 "precompiled_charsmap is not an array of bytes");
			blob[i] = (char)(int)v;
		}
		TRY(charsmap_read(&t->arena, (ByteSpan){ blob, n }, &map, l->err));
	}
	bool prefix = get_bool(l->g, KEY "add_space_prefix", true);
	bool extra = get_bool(l->g, KEY "remove_extra_whitespaces", unigram);
	*normalizer_add(t, NORMALIZE_SPM) = (Normalizer){
		.kind = NORMALIZE_SPM,
		.map = map,
		.dummy_prefix = prefix,
		.remove_extra = extra,
		.escape = true,
	};
	*dec_add(t, DEC_SPM) = (Dec){
		.kind = DEC_SPM,
		.strip_first = prefix,
		.strip_all = extra,
		.unk_surface = { " \xE2\x81\x87 ", 5 },
	};
	l->add_bos = !unigram;
	l->add_eos = unigram;
	return LLMC_OK;
}

/* WordPiece. A GGUF file marks tokens that begin a word by U+2581. A folder marks tokens inside a
 * word by "##", and so does this tokenizer. Tokens of older files whose text is in brackets have
 * neither mark. A token inside a word that itself begins with U+2581 looks like one that begins a
 * word: of two such tokens, the first is taken to begin a word. */
static void
wordpiece_marks(llmc_tokenizer *t)
{
	static const char space[] = "\xE2\x96\x81";

	for (int32_t i = 0; i < t->n_ids; i++) {
		const Token k = t->tok[i];
		if (k.n > 3 && memcmp(k.s, space, 3) == 0 &&
		    strmap_get(&t->vocab, k.s + 3, k.n - 3) < 0) {
			tokenizer_set(t, i, (ByteSpan){ k.s + 3, k.n - 3 });
			strmap_put(&t->vocab, &t->arena, (ByteSpan){ t->tok[i].s, t->tok[i].n }, i);
		} else if (k.type == TT_NORMAL &&
		           !(k.n > 2 && k.s[0] == '[' && k.s[k.n - 1] == ']')) {
			char *s = NEW(&t->arena, char, k.n + 3);
			memcpy(s, "##", 2);
			memcpy(s + 2, k.s, k.n);
			tokenizer_set(t, i, (ByteSpan){ s, k.n + 2 });
		}
	}
}

static llmc_status
load_wordpiece(GgufLoad *l)
{
	llmc_tokenizer *t = l->t;
	const bool lower = get_bool(l->g, KEY "normalizer.lowercase", true);

	t->model = MODEL_WORDPIECE;
	t->word_prefix = (ByteSpan){ "##", 2 };
	t->longest_word = 100;
	TRY(read_tokens(l, false));
	wordpiece_marks(t);
	trie_init(&t->pieces, &t->arena);
	trie_init(&t->inner, &t->arena);
	for (int32_t i = 0; i < t->n_ids; i++)
		if (t->tok[i].n && t->tok[i].type != TT_UNUSED)
			wordpiece_add(t, (ByteSpan){ t->tok[i].s, t->tok[i].n }, i);
	TRY(read_added(l));
	*normalizer_add(t, NORMALIZE_BERT) = (Normalizer){
		.kind = NORMALIZE_BERT,
		.clean = true,
		.spread = true,
		.lower = lower,
		.accents = get_bool(l->g, KEY "normalizer.strip_accents", lower),
	};
	pre_class(t, CLASS_SPACE, SPLIT_REMOVED);
	pre_class(t, CLASS_PUNCT, SPLIT_ISOLATED);
	*dec_add(t, DEC_WORDPIECE) =
	    (Dec){ .kind = DEC_WORDPIECE, .pattern = t->word_prefix, .clean = true };
	t->unk_id = get_id_of(l, KEY "unknown_token_id", NULL, 100);
	l->add_bos = l->add_eos = true;
	return LLMC_OK;
}

static const char *
get_text(GgufLoad *l, const char *key)
{
	GgufStr s;

	if (!gguf_str(l->g, key, &s) || s.n > TEXT_MAX_FILE)
		return NULL;
	return arena_strndup(&l->t->arena, s.s, s.n);
}

static void
load_fim(GgufLoad *l)
{
	llmc_fim *f = &l->t->fim;

	f->prefix = get_id_of(l, KEY "fim_pre_token_id", KEY "prefix_token_id", -1);
	f->suffix = get_id_of(l, KEY "fim_suf_token_id", KEY "suffix_token_id", -1);
	f->middle = get_id_of(l, KEY "fim_mid_token_id", KEY "middle_token_id", -1);
	f->repo = get_id_of(l, KEY "fim_rep_token_id", NULL, -1);
	f->file = get_id_of(l, KEY "fim_sep_token_id", NULL, -1);
	const int32_t pad = get_id_of(l, KEY "fim_pad_token_id", NULL, -1);
	if (pad >= 0)
		f->stop[f->n_stop++] = pad;
}

/* Sets the tokens around one sequence, bos A eos, and around two sequences, bos A eos [sep] B
 * eos. */
static void
load_around(GgufLoad *l, int32_t eos)
{
	llmc_tokenizer *t = l->t;
	const bool words = t->model == MODEL_WORDPIECE;
	/* the key is misspelt in the format */
	const int32_t sep = get_id(l, KEY "seperator_token_id");

	/* all WordPiece files have these tokens, and add_sep_token is a key of theirs, too */
	if ((words || get_bool(l->g, KEY "add_bos_token", l->add_bos)) && t->bos >= 0) {
		ids_push(t, &t->prefix, &t->n_prefix, t->bos);
		ids_push(t, &t->pair[0], &t->n_pair[0], t->bos);
	}
	if ((words || get_bool(l->g, KEY "add_eos_token", l->add_eos)) && eos >= 0) {
		ids_push(t, &t->suffix, &t->n_suffix, eos);
		ids_push(t, &t->pair[1], &t->n_pair[1], eos);
		ids_push(t, &t->pair[2], &t->n_pair[2], eos);
		t->has_pair = true;
	}
	if (!words && get_bool(l->g, KEY "add_sep_token", false) && sep >= 0) {
		ids_push(t, &t->pair[1], &t->n_pair[1], sep);
		t->has_pair = true;
	}
}

static llmc_status
load(GgufLoad *l)
{
	llmc_tokenizer *t = l->t;
	GgufStr model, pre = { "default", 7 };

	gguf_str(l->g, KEY "pre", &pre);
	if (!gguf_str(l->g, KEY "model", &model))
		return error_set(l->err, LLMC_E_INPUT,
		                 "no key " KEY "model: the file has no tokenizer");
	if (model.n == 4 && memcmp(model.s, "gpt2", 4) == 0)
		TRY(pretokenizer_characters((ByteSpan){ pre.s, pre.n }) ? load_characters(l, false)
		                                                        : load_bytelevel(l, pre));
	else if (model.n == 6 && memcmp(model.s, "gemma4", 6) == 0)
		TRY(load_characters(l, true));
	else if (model.n == 5 && memcmp(model.s, "llama", 5) == 0)
		TRY(load_pieces(l, false));
	else if (model.n == 2 && memcmp(model.s, "t5", 2) == 0)
		TRY(load_pieces(l, true));
	else if (model.n == 4 && memcmp(model.s, "bert", 4) == 0)
		TRY(load_wordpiece(l));
	else
		return error_set(
		    l->err, LLMC_E_INPUT,
		    KEY "model is \"%.*s\"; gpt2, gemma4, llama, t5 and bert are supported",
		    (int)(model.n < 60 ? model.n : 60), model.s);
	/* ids that WordPiece files lack are those of bert-base-uncased */
	const bool words = t->model == MODEL_WORDPIECE;
	t->bos = words ? get_id_of(l, KEY "bos_token_id", KEY "cls_token_id", 101)
	               : get_id(l, KEY "bos_token_id");
	t->unk = t->unk_id >= 0 ? t->unk_id : get_id(l, KEY "unknown_token_id");
	t->pad = get_id(l, KEY "padding_token_id");
	load_fim(l);
	eos_add(t, words ? get_id_of(l, KEY "seperator_token_id", KEY "eos_token_id", 102)
	                 : get_id(l, gguf_end_keys[0]));
	int32_t main_eos = t->n_eos ? t->eos[0] : -1;
	for (int i = 1; i < GGUF_END_KEYS; i++)
		eos_add(t, get_id(l, gguf_end_keys[i]));
	end_list_open(t);
	for (int32_t i = 0; i < t->n_ids; i++)
		if ((t->tok[i].type == TT_CONTROL || t->tok[i].type == TT_USER) &&
		    ends_generation(t, (ByteSpan){ t->tok[i].s, t->tok[i].n }))
			eos_add(t, i);
	load_around(l, main_eos);
	t->chat = get_text(l, "tokenizer.chat_template");
	t->chat_tools = get_text(l, "tokenizer.chat_template.tool_use");
	return tokenizer_finish(t, l->err);
}

static llmc_status
guarded(GgufLoad *l)
{
	if (setjmp(l->t->arena.oom))
		return error_set(l->err, LLMC_E_MEMORY, "out of memory");
	return load(l);
}

llmc_status
text_open_gguf(const Gguf *g, const char *name, llmc_tokenizer **out, llmc_error *err)
{
	GgufLoad l = { .g = g, .err = err };

	*out = NULL;
	l.t = tokenizer_new(err);
	if (!l.t)
		return LLMC_E_MEMORY;
	llmc_status status = guarded(&l);
	if (status != LLMC_OK) {
		error_prefix(err, "%s", name);
		llmc_tokenizer_close(l.t);
		return status;
	}
	*out = l.t;
	return LLMC_OK;
}

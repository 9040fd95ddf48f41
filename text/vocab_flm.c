/* Vocabulary of a FastLLM model, and its dialogue settings as a chat template. As in FastLLM,
 * tokens are merged by score across the whole text, without a pre-tokenizer. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/flm.h"

#define FIX_TOKEN "<FLM_FIX_TOKEN_"

typedef struct FlmLoad {
	llmc_tokenizer *t;
	Flm f;
	llmc_error *err;
} FlmLoad;

static const char *const prompt_key[] = { "pre_prompt", "user_role", "bot_role", "history_sep" };

static bool
flag(const FlmLoad *l, const char *key, bool otherwise)
{
	const char *v = flm_get(&l->f, key);

	return v ? strcmp(v, "True") == 0 || strcmp(v, "true") == 0 || strcmp(v, "1") == 0
	         : otherwise;
}

/* Parses a number that consists of digits only; -1: it does not. */
static int32_t
id_of(const char *s)
{
	long v = 0;

	if (!s || !*s || strspn(s, "0123456789") != strlen(s) || strlen(s) > 9)
		return -1;
	for (; *s; s++)
		v = v * 10 + (*s - '0');
	return (int32_t)v;
}

static int32_t
key_id(const FlmLoad *l, const char *key)
{
	const int32_t id = id_of(flm_get(&l->f, key));

	return id < l->t->n_ids ? id : -1;
}

/* Finds the next token that a prompt names by id: <FLM_FIX_TOKEN_195>. at: start of the search.
 * Returns the length of the name, 0 if there is none. */
static size_t
fix_token(const char **at, int32_t *id)
{
	for (const char *p; (p = strstr(*at, FIX_TOKEN)) != NULL; *at = p + 1) {
		size_t n = strspn(p + strlen(FIX_TOKEN), "0123456789");
		char digits[10] = "";
		*at = p;
		if (n && n < sizeof digits && p[strlen(FIX_TOKEN) + n] == '>') {
			memcpy(digits, p + strlen(FIX_TOKEN), n);
			*id = id_of(digits);
			return strlen(FIX_TOKEN) + n + 1;
		}
	}
	return 0;
}

static llmc_status
count_ids(FlmLoad *l)
{
	int64_t n = 0;

	for (size_t i = 0; i < l->f.n_piece; i++) {
		if (l->f.piece[i].id < 0)
			return error_set(l->err, LLMC_E_INPUT,
			                 "piece %zu of the vocabulary has the number %d", i,
			                 l->f.piece[i].id);
		if (l->f.piece[i].n > TEXT_MAX_TOKEN)
			return error_set(
			    l->err, LLMC_E_INPUT,
			    "piece %zu of the vocabulary has %zu bytes; at most %zu are taken", i,
			    l->f.piece[i].n, TEXT_MAX_TOKEN);
		n = l->f.piece[i].id >= n ? l->f.piece[i].id + 1 : n;
	}
	for (size_t k = 0; k < 4; k++) {
		const char *v = flm_get(&l->f, prompt_key[k]);
		int32_t id = 0;
		for (size_t len; v && (len = fix_token(&v, &id)) > 0; v += len)
			n = id >= n ? id + 1 : n;
	}
	if (!l->f.n_piece || n > TEXT_MAX_IDS || n > 4 * (int64_t)l->f.n_piece + (1 << 17))
		return error_set(l->err, LLMC_E_INPUT,
		                 l->f.n_piece ? "numbers of tokens go up to %lld, which is too far"
		                              : "the file was exported without a vocabulary",
		                 (long long)n);
	l->t->n_ids = (int32_t)n;
	l->t->tok = NEW(&l->t->arena, Token, n);
	return LLMC_OK;
}

/* Returns whether the token is a byte, such as <0x0A>. */
static bool
spells_byte(const FlmPiece *p)
{
	return p->n == 6 && memcmp(p->text, "<0x", 3) == 0 && p->text[5] == '>' &&
	       strspn(p->text + 3, "0123456789ABCDEF") == 2;
}

static llmc_status
special(FlmLoad *l, int32_t id, const char *text)
{
	Token *k = &l->t->tok[id];

	if (!k->s)
		tokenizer_set(l->t, id, (ByteSpan){ text, strlen(text) });
	k->type = TT_CONTROL;
	k->special = true;
	return added_add(l->t,
	                 (AddedToken){ .id = id, .text = { text, strlen(text) }, .special = true },
	                 l->err);
}

static llmc_status
read_pieces(FlmLoad *l)
{
	static const char *const ends[] = { "bos_token_id", "eos_token_id", "pad_token_id",
		                            "unk_token_id" };
	llmc_tokenizer *t = l->t;
	StrMap piece = { 0 };

	for (size_t i = 0; i < l->f.n_piece; i++) {
		const FlmPiece *p = &l->f.piece[i];
		strmap_put(&piece, &t->arena, (ByteSpan){ p->text, p->n }, p->id);
		Token *k = &t->tok[p->id];
		tokenizer_set(t, p->id, (ByteSpan){ p->text, p->n });
		k->type = spells_byte(p) ? TT_BYTE : TT_NORMAL;
		t->byte_fallback |= k->type == TT_BYTE;
		if (!(p->score > -1e30f && p->score < 1e30f))
			return error_set(l->err, LLMC_E_INPUT,
			                 "the score of piece %zu is no finite number", i);
		k->score = p->score;
	}
	for (size_t i = 0; i < l->f.n_special; i++) {
		int32_t id = strmap_get(&piece, l->f.special[i], strlen(l->f.special[i]));
		if (id >= 0)
			TRY(special(l, id, l->f.special[i]));
	}
	for (size_t k = 0; k < 4; k++) {
		const char *v = flm_get(&l->f, prompt_key[k]);
		int32_t id = 0;
		for (size_t len; v && (len = fix_token(&v, &id)) > 0; v += len)
			TRY(special(l, id, arena_strndup(&t->arena, v, len)));
	}
	for (size_t i = 0; i < 4; i++) {
		const int32_t id = key_id(l, ends[i]);
		if (id >= 0 && t->tok[id].s && t->tok[id].type != TT_CONTROL)
			TRY(special(l, id, t->tok[id].s));
	}
	return LLMC_OK;
}

static void
quote(Strbuf *b, const char *text)
{
	strbuf_putc(b, '\'');
	for (; *text; text++)
		if (*text == '\n')
			strbuf_puts(b, "\\n");
		else if (*text == '\'' || *text == '\\')
			strbuf_printf(b, "\\%c", *text);
		else
			strbuf_putc(b, *text);
	strbuf_putc(b, '\'');
}

/* Returns the template: pre_prompt, then repeatedly user_role question bot_role answer
 * history_sep. */
static const char *
chat_of(FlmLoad *l)
{
	const char *own = flm_get(&l->f, "chat_template");
	Strbuf *b = arena_strbuf(&l->t->arena);

	if (own && strstr(own, "{%"))
		return arena_strdup(&l->t->arena, own);
	if (!flm_get(&l->f, "user_role") && !flm_get(&l->f, "bot_role"))
		return NULL;
	for (size_t k = 0; k < 4; k++) {
		strbuf_printf(b, "{%%- set %s = ", prompt_key[k]);
		quote(b, flm_get(&l->f, prompt_key[k]) ? flm_get(&l->f, prompt_key[k]) : "");
		strbuf_puts(b, " -%}");
	}
	strbuf_puts(b,
	            "{{- pre_prompt -}}{%- for m in messages -%}{%- if m.role == 'user' -%}{{- "
	            "user_role + m.content + bot_role -}}"
	            "{%- elif m.role == 'assistant' -%}{{- m.content + history_sep -}}"
	            "{%- elif m.role == 'system' -%}{{- m.content -}}{%- endif -%}{%- endfor -%}");
	if (b->failed)
		arena_out(&l->t->arena);
	const char *out = arena_strdup(&l->t->arena, strbuf_str(b));
	strbuf_release(b);
	return out;
}

/* Reads a list such as [2, 3], or one number. */
static void
read_ends(FlmLoad *l)
{
	const char *v = flm_get(&l->f, "eos_token_id");

	for (const char *p = v ? v : ""; *p;) {
		size_t n = strspn(p, "0123456789");
		if (n && n < 10)
			eos_add(l->t, id_of(arena_strndup(&l->t->arena, p, n)));
		p += n ? n : 1;
	}
	l->t->bos = key_id(l, "bos_token_id");
	l->t->pad = key_id(l, "pad_token_id");
	l->t->unk = l->t->unk_id;
}

/* Returns the id after the last token. */
static int32_t
pieces_end(const FlmLoad *l)
{
	int32_t end = 0;

	for (size_t i = 0; i < l->f.n_piece; i++)
		end = l->f.piece[i].id >= end ? l->f.piece[i].id + 1 : end;
	return end;
}

static llmc_status
load(FlmLoad *l, const uint8_t *data, size_t n, const char *name)
{
	llmc_tokenizer *t = l->t;
	Normalizer *spaces;

	TRY(flm_read(&t->arena, data, n, name, &l->f, l->err));
	const char *model = flm_get(&l->f, "model_type");
	const bool ice = model && strcmp(model, "chatglm") == 0;
	TRY(count_ids(l));
	t->model = MODEL_SCORES;
	t->spm = true;
	TRY(read_pieces(l));
	unigram_pieces(t);
	if (ice && strmap_get(&t->vocab, "<n>", 3) >= 0)
		TRY(ice_blanks(t, l->err));
	else if (ice)
		TRY(ice_tokens(t, pieces_end(l), l->err));
	if (flag(l, "tokenizer_byte_as_char", false)) {
		normalizer_add(t, NORMALIZE_BYTELEVEL);
		dec_add(t, DEC_BYTELEVEL);
	} else {
		/* text between special tokens gets no leading space */
		const bool prefix = flag(l, "tokenizer_add_dummy_prefix", true) && !l->f.n_special;
		if (flag(l, "tokenizer_remove_extra_whitespaces", true)) {
			spaces = normalizer_add(t, NORMALIZE_REPLACE);
			spaces->content = span_copy(&t->arena, (ByteSpan){ " ", 1 });
			TRY(regex_compile(t, "spaces", (ByteSpan){ " +", 2 }, &spaces->regex,
			                  l->err));
		}
		*normalizer_add(t, NORMALIZE_SPM) =
		    (Normalizer){ .kind = NORMALIZE_SPM, .dummy_prefix = prefix, .escape = true };
		*dec_add(t, DEC_SPM) = (Dec){ .kind = DEC_SPM,
			                      .strip_first = prefix,
			                      .unk_surface = { " \xE2\x81\x87 ", 5 } };
	}
	read_ends(l);
	const char *chat = chat_of(l);
	if (chat)
		t->chat = chat;
	return tokenizer_finish(t, l->err);
}

static llmc_status
guarded(FlmLoad *l, const uint8_t *data, size_t n, const char *name)
{
	if (setjmp(l->t->arena.oom))
		return error_set(l->err, LLMC_E_MEMORY, "out of memory");
	return load(l, data, n, name);
}

llmc_status
text_open_flm(const uint8_t *data, size_t n, const char *name, llmc_tokenizer **out,
              llmc_error *err)
{
	FlmLoad l = { .err = err };

	*out = NULL;
	l.t = tokenizer_new(err);
	if (!l.t)
		return LLMC_E_MEMORY;
	llmc_status status = guarded(&l, data, n, name);
	if (status != LLMC_OK) {
		if (!strstr(err->text, name))
			error_prefix(err, "%s", name);
		llmc_tokenizer_close(l.t);
		return status;
	}
	*out = l.t;
	return LLMC_OK;
}

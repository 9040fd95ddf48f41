/* Tokenizer object: creation, the last step of loading, queries */
#include "text/text.h"
#include "text/tool_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

llmc_tokenizer *
tokenizer_new(llmc_error *err)
{
	llmc_tokenizer *t = calloc(1, sizeof *t);

	if (t) {
		t->limits = pcre2_match_context_create(NULL);
		t->kept = calloc(1, sizeof *t->kept);
	}
	if (!t || !t->limits || !t->kept) {
		if (t) {
			pcre2_match_context_free(t->limits);
			free(t->kept);
		}
		free(t);
		error_set(err, LLMC_E_MEMORY, "tokenizer: out of memory");
		return NULL;
	}
	/* a split regex is untrusted, so its time and memory are limited */
	pcre2_set_match_limit(t->limits, 20000000);
	pcre2_set_depth_limit(t->limits, 5000000);
	pcre2_set_heap_limit(t->limits, 512 * 1024);
	pthread_mutex_init(&t->kept->lock, NULL);
	arena_init(&t->arena);
	t->bos = t->unk = t->pad = t->unk_id = -1;
	t->fim.prefix = t->fim.suffix = t->fim.middle = t->fim.repo = t->fim.file = -1;
	return t;
}

void
llmc_tokenizer_close(llmc_tokenizer *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n_regex; i++)
		pcre2_code_free(t->regex[i]);
	pcre2_match_context_free(t->limits);
	if (t->kept->drop)
		t->kept->drop(t->kept->p);
	pthread_mutex_destroy(&t->kept->lock);
	free(t->kept);
	call_format_free(t->call_format);
	strbuf_release(&t->scratch);
	arena_release(&t->arena);
	free(t);
}

ByteSpan
span_copy(Arena *a, ByteSpan s)
{
	return (ByteSpan){ arena_strndup(a, s.s, s.n), s.n };
}

void
tokenizer_set(llmc_tokenizer *t, int32_t id, ByteSpan text)
{
	ByteSpan s = span_copy(&t->arena, text);

	t->tok[id].s = s.s;
	t->tok[id].n = (uint32_t)s.n;
	if (!t->tok[id].type)
		t->tok[id].type = TT_NORMAL;
}

Normalizer *
normalizer_add(llmc_tokenizer *t, NormalizerKind kind)
{
	t->norm = arena_grow(&t->arena, t->norm, &t->cap_norm, t->n_norm + 1, sizeof *t->norm);
	t->norm[t->n_norm] = (Normalizer){ .kind = kind };
	return &t->norm[t->n_norm++];
}

PreTokenizer *
pre_add(llmc_tokenizer *t, PreKind kind)
{
	t->pre = arena_grow(&t->arena, t->pre, &t->cap_pre, t->n_pre + 1, sizeof *t->pre);
	t->pre[t->n_pre] = (PreTokenizer){ .kind = kind };
	return &t->pre[t->n_pre++];
}

Dec *
dec_add(llmc_tokenizer *t, DecKind kind)
{
	t->dec = arena_grow(&t->arena, t->dec, &t->cap_dec, t->n_dec + 1, sizeof *t->dec);
	t->dec[t->n_dec] = (Dec){ .kind = kind };
	return &t->dec[t->n_dec++];
}

llmc_status
added_add(llmc_tokenizer *t, AddedToken a, llmc_error *err)
{
	if (a.text.n > TEXT_MAX_TOKEN)
		return error_set(err, LLMC_E_INPUT,
		                 "added token %d has %zu bytes; at most %zu are taken", a.id,
		                 a.text.n, TEXT_MAX_TOKEN);
	if (!a.text.n)
		return LLMC_OK; /* can never match */
	t->added = arena_grow(&t->arena, t->added, &t->cap_added, t->n_added + 1, sizeof *t->added);
	a.text = span_copy(&t->arena, a.text);
	t->added[t->n_added++] = a;
	return LLMC_OK;
}

void
eos_add(llmc_tokenizer *t, int32_t id)
{
	if (id < 0 || id >= t->n_ids || text_is_eos(t, id) || t->n_eos == TEXT_MAX_EOS)
		return;
	t->eos[t->n_eos++] = id;
}

typedef struct NormalForm {
	ByteSpan in;
	Strbuf *out;
} NormalForm;

static llmc_status
normal_form(Enc *e, void *arg)
{
	const NormalForm *f = arg;
	ByteSpan got;

	TRY(normalize(e, utf8_sanitize(&e->arena, f->in.s, f->in.n), &got));
	strbuf_add(f->out, got.s, got.n);
	return f->out->failed ? error_set(e->err, LLMC_E_MEMORY, "tokenizer: out of memory")
	                      : LLMC_OK;
}

/* Normalizes the text of an added token that is searched in normalized text. */
static llmc_status
added_normal_form(llmc_tokenizer *t, ByteSpan in, Strbuf *out, llmc_error *err)
{
	/* in proportion to the file, which may have many added tokens */
	Enc e = { .t = t, .err = err, .max_normal = 256 + TEXT_MAX_STEPS * in.n };
	NormalForm f = { in, out };

	strbuf_clear(out);
	return enc_run(&e, "tokenizer", normal_form, &f);
}

/* Finds the bytes that become at least part of an id. All bytes do if unknown text is spelled in
 * byte tokens, or if each unknown character becomes the unknown token; otherwise only bytes in the
 * vocabulary do. Returns false if no byte may. */
static bool
find_solid(llmc_tokenizer *t)
{
	bool all = t->byte_fallback, levels = false;
	char c[4];

	for (int b = 0; b < 256; b++)
		all &= t->byte_id[b] >= 0;
	all |= t->model == MODEL_BPE && t->unk_id >= 0 && !t->fuse_unk;
	for (size_t i = 0; i < t->n_pre; i++) {
		levels |= t->pre[i].kind == PRE_BYTES;
		if (t->pre[i].kind != PRE_BYTES && t->pre[i].kind != PRE_PREFIX_SPACE &&
		    t->pre[i].mode == SPLIT_REMOVED)
			return false;
	}
	for (size_t i = 0; i < t->n_norm; i++)
		levels |= t->norm[i].kind == NORMALIZE_BYTELEVEL;
	for (int b = 0; b < 256; b++)
		t->solid[b] =
		    all ||
		    (levels &&
		     strmap_get(&t->vocab, c, utf8_put(c, bytelevel_char((unsigned char)b))) >= 0);
	return all || levels;
}

/* Returns the largest number of bytes of text that one id may represent; 0: unlimited. */
static size_t
longest_id(llmc_tokenizer *t)
{
	size_t most = 4, times = 1;

	/* a word of any length becomes one id */
	if (t->model == MODEL_WORDPIECE || t->model == MODEL_WORDLEVEL)
		return 0;
	if (!find_solid(t))
		return 0;
	for (int32_t i = 0; i < t->n_ids; i++)
		most = t->tok[i].n > most ? t->tok[i].n : most;
	for (size_t i = 0; i < t->n_added; i++) {
		const AddedToken *a = &t->added[i];
		most = a->text.n > most ? a->text.n : most;
		t->strips |= a->lstrip || a->rstrip;
	}
	for (size_t i = 0; i < t->n_norm; i++) {
		const Normalizer *n = &t->norm[i];
		switch (n->kind) {
		case NORMALIZE_NFC:
		case NORMALIZE_NFKC:
		case NORMALIZE_NFD:
		case NORMALIZE_NFKD:
		case NORMALIZE_LOWER:
			/* characters are composed and thereby become shorter, but none vanishes:
			 * the largest factor is 4 */
			times *= 8;
			/* first bytes of characters that do not become control characters or
			 * characters of the last planes */
			for (int b = 0x20; b <= 0xF0; b++)
				if (!t->solid[b] && b != 0x7F && b != 0xC0 && b != 0xC1)
					return 0;
			break;
		case NORMALIZE_STRIP:
			t->strips = true;
			break;
		case NORMALIZE_PREPEND:
		case NORMALIZE_BYTELEVEL:
		case NORMALIZE_ICE: /* its tokens have the length of the text they represent */
			break;
		case NORMALIZE_REPLACE:
			if (!n->n_literal || !n->content.n)
				return 0;
			times *= (n->n_literal + n->content.n - 1) / n->content.n;
			break;
		case NORMALIZE_SPM:
			if (n->map.n_units)
				return 0;
			t->strips |= n->remove_extra;
			break;
		case NORMALIZE_STRIP_ACCENTS:
		case NORMALIZE_BERT:
		case NORMALIZE_PRECOMPILED:
		case NORMALIZE_NMT:
			return 0;
		}
		if (times > 1 << 20)
			return 0;
	}
	return most * times;
}

llmc_status
tokenizer_finish(llmc_tokenizer *t, llmc_error *err)
{
	trie_init(&t->added_raw, &t->arena);
	trie_init(&t->added_norm, &t->arena);
	trie_init(&t->special, &t->arena);
	for (size_t i = 0; i < t->n_added; i++) {
		const AddedToken *a = &t->added[i];
		if (a->special && t->tok[a->id].type != TT_UNKNOWN)
			t->tok[a->id].special = true;
		if (a->special && a->text.n)
			trie_put(&t->special, &t->arena, a->text, (int32_t)i);
		if (!a->normalized) {
			trie_put(&t->added_raw, &t->arena, a->text, (int32_t)i);
			continue;
		}
		/* t->scratch is released even after a jump out of the arena */
		TRY(added_normal_form(t, a->text, &t->scratch, err));
		/* the decoded form of the token is the normalized one */
		tokenizer_set(t, a->id, (ByteSpan){ strbuf_str(&t->scratch), t->scratch.len });
		if (t->scratch.len)
			trie_put(&t->added_norm, &t->arena,
			         (ByteSpan){ t->scratch.data, t->scratch.len }, (int32_t)i);
		if (t->scratch.len && a->special)
			trie_put(&t->special, &t->arena,
			         (ByteSpan){ t->tok[a->id].s, t->scratch.len }, (int32_t)i);
	}
	strbuf_release(&t->scratch);
	for (int32_t i = 0; i < 256; i++)
		t->byte_id[i] = -1;
	for (int32_t i = 0; t->spm && i < t->n_ids; i++) {
		/* text cannot contain byte tokens */
		unsigned b;
		char shut;
		if (t->tok[i].type == TT_BYTE && t->tok[i].n == 6 &&
		    sscanf(t->tok[i].s, "<0x%2X%c", &b, &shut) == 2 && shut == '>' && b < 256)
			t->byte_id[b] = i;
	}
	for (int b = 0; b < 256 && !t->spm; b++) {
		static const char digit[] = "0123456789ABCDEF";
		char name[6] = { '<', '0', 'x', digit[b >> 4], digit[b & 15], '>' };
		t->byte_id[b] = strmap_get(&t->vocab, name, sizeof name);
	}
	if (t->n_pre > TEXT_MAX_STEPS || t->n_norm > TEXT_MAX_STEPS || t->n_dec > TEXT_MAX_STEPS)
		return error_set(err, LLMC_E_INPUT,
		                 "%zu pre-tokenizers, %zu normalizers and %zu decoders; at most %d "
		                 "of each are taken",
		                 t->n_pre, t->n_norm, t->n_dec, TEXT_MAX_STEPS);
	if (t->word_prefix.n > TEXT_MAX_TOKEN || t->word_suffix.n > TEXT_MAX_TOKEN)
		return error_set(err, LLMC_E_INPUT,
		                 "the prefix or suffix of words is longer than a token (%zu bytes)",
		                 TEXT_MAX_TOKEN);
	t->longest = longest_id(t);
	return LLMC_OK;
}

size_t
llmc_tokenize_least(const llmc_tokenizer *t, const char *text, size_t n_bytes)
{
	size_t n = 0;

	if (!t || !t->longest)
		return 0;
	for (size_t i = 0, len; i < n_bytes; i += len) {
		int32_t cp = utf8_next(text + i, n_bytes - i,
		                       &len); /* < 0: the byte becomes another character */
		for (size_t k = cp < 0 || (t->strips && cp_is_space((uint32_t)cp)) ? len : 0;
		     k < len; k++)
			n += t->solid[(unsigned char)text[i + k]];
	}
	return n / t->longest;
}

int32_t
llmc_tokenizer_size(const llmc_tokenizer *t)
{
	return t ? t->n_ids : 0;
}

const char *
llmc_token_text(const llmc_tokenizer *t, int32_t id)
{
	return t && id >= 0 && id < t->n_ids ? t->tok[id].s : NULL;
}

const int32_t *
text_eos(const llmc_tokenizer *t, int32_t *n)
{
	*n = t->n_eos;
	return t->eos;
}

int32_t
text_bos(const llmc_tokenizer *t)
{
	return t->bos;
}

bool
text_is_eos(const llmc_tokenizer *t, int32_t id)
{
	for (int32_t i = 0; i < t->n_eos; i++)
		if (t->eos[i] == id)
			return true;
	return false;
}

bool
llmc_token_is_special(const llmc_tokenizer *t, int32_t id)
{
	return t && id >= 0 && id < t->n_ids && t->tok[id].special;
}

int32_t
text_find(const llmc_tokenizer *t, const char *s, size_t n)
{
	for (size_t i = 0; i < t->n_added; i++)
		if (t->added[i].text.n == n && memcmp(t->added[i].text.s, s, n) == 0)
			return t->added[i].id;
	return strmap_get(&t->vocab, s, n);
}

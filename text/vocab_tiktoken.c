/* tokenizer.model with one token per line: the bytes of the token in base64, and its rank, which is
 * its id. Two neighbours may merge if their joined bytes are a token, and the lowest rank merges
 * first. A word that is a token is one token. The split regex, and the tokens after the ranks, come
 * from configs/pretokenizers.yaml. */
#include "text/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 512 };

typedef struct RankLine {
	ByteSpan bytes;
	int32_t id;
} RankLine; /* bytes in base64 */

typedef struct TiktokenLoad {
	llmc_tokenizer *t;
	const char *p, *end;
	/* number of lines; number of ranks; number of ids of the model, 0: unknown */
	int32_t n_line, n_base, wanted;
	RankTokens after_ranks;
	Strbuf *named;
	llmc_error *err;
} TiktokenLoad;

static bool
in_base64(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
	       c == '+' || c == '/' || c == '=';
}

/* Reads the line at *p and advances past it. Returns false if the line has another form. */
static bool
take_line(const char **p, const char *end, RankLine *out)
{
	const char *s = *p, *q = s;
	int64_t id = 0;

	while (q < end && in_base64(*q))
		q++;
	out->bytes = (ByteSpan){ s, (size_t)(q - s) };
	if (q == s || (q - s) % 4 != 0 || q == end || *q++ != ' ' || q == end || *q < '0' ||
	    *q > '9')
		return false;
	for (; q < end && *q >= '0' && *q <= '9' && id < TEXT_MAX_IDS; q++)
		id = 10 * id + (*q - '0');
	if (q < end && *q == '\r')
		q++;
	if (id >= TEXT_MAX_IDS || (q < end && *q++ != '\n'))
		return false;
	out->id = (int32_t)id;
	*p = q;
	return true;
}

bool
text_has_ranks(const char *data, size_t n)
{
	const char *p = data;
	RankLine line;

	return take_line(&p, data + n, &line);
}

static llmc_status
count(TiktokenLoad *l)
{
	RankLine line;

	for (const char *p = l->p; p < l->end; l->n_line++) {
		if (!take_line(&p, l->end, &line))
			return error_set(l->err, LLMC_E_INPUT,
			                 "line %d is not a token in base64 and its rank",
			                 l->n_line + 1);
		l->n_base = line.id >= l->n_base ? line.id + 1 : l->n_base;
	}
	if (l->n_base != l->n_line)
		return error_set(l->err, LLMC_E_INPUT,
		                 "%d lines have ranks up to %d: each is expected once", l->n_line,
		                 l->n_base - 1);
	if (!pretokenizer_ranks(l->n_base, l->wanted, &l->after_ranks, l->named))
		return error_set(
		    l->err, LLMC_E_INPUT,
		    "%d ranks%s: configs/pretokenizers.yaml does not list the tokens after them, "
		    "and a tokenizer.json is needed",
		    l->n_base,
		    l->wanted
		        ? " for a model of another number of tokens (vocab_size of params.json)"
		        : "");
	return LLMC_OK;
}

/* Returns bytes as byte-level characters. */
static ByteSpan
letters(Strbuf *to, ByteSpan bytes)
{
	char utf8[4];

	strbuf_clear(to);
	for (size_t i = 0; i < bytes.n; i++)
		strbuf_add(to, utf8, utf8_put(utf8, bytelevel_char((unsigned char)bytes.s[i])));
	return (ByteSpan){ strbuf_str(to), to->len };
}

static llmc_status
read_tokens(TiktokenLoad *l)
{
	llmc_tokenizer *t = l->t;
	RankLine line;

	for (int32_t n = 1; l->p < l->end && take_line(&l->p, l->end, &line); n++) {
		ByteSpan bytes = text_base64(&t->arena, line.bytes);
		if (!bytes.n)
			return error_set(l->err, LLMC_E_INPUT, "line %d: the token is not base64",
			                 n);
		if (bytes.n > MAX_BYTES)
			return error_set(l->err, LLMC_E_INPUT,
			                 "line %d: a token of %zu bytes, at most %zu are supported",
			                 n, bytes.n, (size_t)MAX_BYTES);
		ByteSpan s = letters(&t->scratch, bytes);
		if (t->scratch.failed)
			return error_set(l->err, LLMC_E_MEMORY, "out of memory");
		if (t->tok[line.id].s || strmap_get(&t->vocab, s.s, s.n) >= 0)
			return error_set(l->err, LLMC_E_INPUT,
			                 "line %d: the token or its rank, %d, occurs twice", n,
			                 line.id);
		tokenizer_set(t, line.id, s);
		t->tok[line.id].type = TT_NORMAL;
		strmap_put(&t->vocab, &t->arena, (ByteSpan){ t->tok[line.id].s, t->tok[line.id].n },
		           line.id);
	}
	for (int i = 0; i < 256; i++) {
		ByteSpan s = letters(&t->scratch, (ByteSpan){ (char[]){ (char)i }, 1 });
		if (strmap_get(&t->vocab, s.s, s.n) < 0)
			return error_set(l->err, LLMC_E_INPUT, "the byte 0x%02x has no rank", i);
	}
	return LLMC_OK;
}

/* Adds every division of a token into two tokens as a merge. */
static void
make_merges(TiktokenLoad *l)
{
	llmc_tokenizer *t = l->t;

	for (int32_t id = 0; id < l->n_base; id++) {
		const Token *k = &t->tok[id];
		for (uint32_t at = 1; at < k->n; at++) {
			/* a division inside a character */
			if (((unsigned char)k->s[at] & 0xc0) == 0x80)
				continue;
			int32_t left = strmap_get(&t->vocab, k->s, at),
			        right = left < 0 ? -1 : strmap_get(&t->vocab, k->s + at, k->n - at);
			if (right >= 0)
				pairmap_put(&t->merges, &t->arena, left, right, id, id);
		}
	}
}

/* Returns token i of the tokens after the ranks. */
static const char *
text_after_ranks(const TiktokenLoad *l, int32_t i, char other[96])
{
	const RankTokens *b = &l->after_ranks;
	const char *s = strbuf_str(l->named), *gap = strstr(b->others, "{}");

	if (i >= b->n_named) {
		snprintf(other, 96, "%.*s%d%s", gap ? (int)(gap - b->others) : 0, b->others,
		         i - b->n_named + b->others_from, gap ? gap + 2 : b->others);
		return other;
	}
	while (i-- > 0)
		s += strlen(s) + 1;
	return s;
}

static llmc_status
add_special(TiktokenLoad *l)
{
	llmc_tokenizer *t = l->t;

	for (int32_t i = 0; i < l->after_ranks.n; i++) {
		char other[96];
		const char *s = text_after_ranks(l, i, other);
		const int32_t id = l->n_base + i;
		tokenizer_set(t, id, (ByteSpan){ s, strlen(s) });
		t->tok[id].type = TT_CONTROL;
		t->tok[id].special = true;
		if (strcmp(s, l->after_ranks.bos) == 0)
			t->bos = id;
		TRY(added_add(t,
		              (AddedToken){ .id = id,
		                            .text = { t->tok[id].s, t->tok[id].n },
		                            .special = true },
		              l->err));
	}
	end_list_open(t);
	for (int32_t id = l->n_base; id < t->n_ids; id++)
		if (ends_generation(t, (ByteSpan){ t->tok[id].s, t->tok[id].n }))
			eos_add(t, id);
	if (t->bos >= 0) {
		t->prefix = NEW(&t->arena, int32_t, 1);
		t->prefix[t->n_prefix++] = t->bos;
	}
	return LLMC_OK;
}

static llmc_status
load(TiktokenLoad *l)
{
	llmc_tokenizer *t = l->t;
	bool add_bos;

	if (setjmp(t->arena.oom))
		return error_set(l->err, LLMC_E_MEMORY, "out of memory");
	l->named = arena_strbuf(&t->arena);
	TRY(count(l));
	t->model = MODEL_BPE;
	t->n_ids = l->n_base + l->after_ranks.n;
	t->tok = NEW(&t->arena, Token, t->n_ids);
	TRY(read_tokens(l));
	make_merges(l);
	TRY(add_special(l));
	TRY(pretokenizer_load(
	    t, (ByteSpan){ l->after_ranks.pretokenizer, strlen(l->after_ranks.pretokenizer) },
	    &add_bos, l->err));
	pre_add(t, PRE_BYTES);
	dec_add(t, DEC_BYTELEVEL);
	return tokenizer_finish(t, l->err);
}

llmc_status
text_open_ranks(const char *data, size_t n, int32_t n_ids, const char *name, llmc_tokenizer **out,
                llmc_error *err)
{
	TiktokenLoad l = {
		.t = tokenizer_new(err), .p = data, .end = data + n, .wanted = n_ids, .err = err
	};

	*out = NULL;
	if (!l.t)
		return LLMC_E_MEMORY;
	llmc_status status = load(&l);
	if (status != LLMC_OK) {
		error_prefix(err, "%s", name);
		llmc_tokenizer_close(l.t);
		return status;
	}
	*out = l.t;
	return LLMC_OK;
}

/* Converts ids to text. Decoders form a chain of stages. Each stage receives the text of one token
 * at a time and passes on the text that is final; a flush ends the chain. Full detokenization feeds
 * all tokens and then flushes, so it always agrees with the incremental one. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/number.h"

enum { MIN_DECODED = 4 << 20 };

typedef struct DecodeStage {
	const Dec *dec;
	Strbuf held;   /* text that this stage has to hold back for now */
	Strbuf out;    /* scratch buffer */
	int64_t count; /* number of units processed so far */
	int64_t cut;   /* strip: number of characters removed at the start */
	bool fused;    /* an earlier stage has joined all tokens, so units are chunks of the joined
	                  text */
	bool past;     /* strip after fuse: text after the start has been processed */
	bool any;      /* DEC_SPM: text after the start has been processed */
} DecodeStage;

struct llmc_stream {
	const llmc_tokenizer *t;
	pcre2_match_data *match;
	DecodeStage *stage;
	size_t n_stage;
	Strbuf bytes; /* decoded bytes, which may end inside a character */
	Strbuf text;  /* output of the last feed */
	size_t most;  /* limit of the bytes that a stage may hold or produce */
	bool skip_special;
	bool too_long; /* a stage has exceeded `most` */
};

static void feed(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id);

/* id: the token whose text p is; -1 if p is not the text of a single token */
static void
next(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id)
{
	if (k + 1 < s->n_stage)
		feed(s, k + 1, p, n, id);
	else
		strbuf_add(&s->bytes, p, n);
}

static void
feed_bytelevel(llmc_stream *s, size_t k, const char *p, size_t n)
{
	DecodeStage *st = &s->stage[k];
	bool all = true;

	strbuf_clear(&st->out);
	for (size_t i = 0, len; i < n && all; i += len) {
		int32_t cp = utf8_next(p + i, n - i, &len);
		int b = cp < 0 ? -1 : bytelevel_byte((uint32_t)cp);
		all = b >= 0;
		if (all)
			strbuf_putc(&st->out, (char)b);
	}
	if (all)
		strbuf_add(&st->held, st->out.data, st->out.len);
	else
		strbuf_add(&st->held, p, n);
	/* passes on complete characters, and holds the rest */
	size_t whole = utf8_whole(strbuf_str(&st->held), st->held.len);
	if (!whole)
		return;
	strbuf_clear(&st->out);
	utf8_add_lossy(&st->out, st->held.data, whole);
	memmove(st->held.data, st->held.data + whole, st->held.len - whole);
	st->held.len -= whole;
	next(s, k, st->out.data, st->out.len, -1);
}

static void
flush_byte_run(llmc_stream *s, size_t k)
{
	DecodeStage *st = &s->stage[k];

	if (!st->held.len)
		return;
	if (utf8_valid(st->held.data, st->held.len)) {
		next(s, k, st->held.data, st->held.len, -1);
	} else {
		strbuf_clear(&st->out);
		for (size_t i = 0; i < st->held.len; i++)
			strbuf_puts(&st->out, "\xEF\xBF\xBD");
		next(s, k, st->out.data, st->out.len, -1);
	}
	strbuf_clear(&st->held);
}

static int
byte_token(const char *p, size_t n)
{
	if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex_digit(p[3]) < 0 ||
	    hex_digit(p[4]) < 0)
		return -1;
	return hex_digit(p[3]) << 4 | hex_digit(p[4]);
}

static void
feed_metaspace(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id)
{
	DecodeStage *st = &s->stage[k];

	strbuf_clear(&st->out);
	for (size_t i = 0, len; i < n; i += len) {
		int32_t cp = utf8_next(p + i, n - i, &len);
		if ((uint32_t)cp != st->dec->cp)
			strbuf_add(&st->out, p + i, len);
		else if (st->count > 0 || st->dec->prepend == PREPEND_NEVER)
			strbuf_putc(&st->out, ' ');
	}
	st->count++;
	next(s, k, strbuf_str(&st->out), st->out.len, id);
}

static void
replace_text(llmc_stream *s, DecodeStage *st, const char *p, size_t n)
{
	ByteSpan what = st->dec->pattern, with = st->dec->content;
	const size_t most = s->most;

	if (st->dec->regex) {
		RegexIter it = { 0 };
		size_t from, to, done = 0;
		while (regex_next(st->dec->regex, s->match, s->t->limits, (ByteSpan){ p, n }, &it,
		                  &from, &to) > 0) {
			strbuf_add(&st->out, p + done, from - done);
			strbuf_add(&st->out, with.s, with.n);
			done = to;
			if (st->out.len > most) {
				s->too_long = true;
				return;
			}
		}
		strbuf_add(&st->out, p + done, n - done);
		return;
	}
	while (n) {
		const char *hit = what.n ? memmem(p, n, what.s, what.n) : NULL;
		size_t head = hit ? (size_t)(hit - p) : n;
		strbuf_add(&st->out, p, head);
		if (!hit)
			return;
		strbuf_add(&st->out, with.s, with.n);
		p = hit + what.n;
		n -= head + what.n;
		if (st->out.len > most) {
			s->too_long = true;
			return;
		}
	}
}

static void
feed_strip(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id)
{
	DecodeStage *st = &s->stage[k];
	char c[4];
	size_t c_n = utf8_put(c, st->dec->cp);

	if (!st->fused) {
		st->past = false;
		st->cut = 0;
	}
	while (!st->past && n) {
		if (st->cut < st->dec->start && n >= c_n && memcmp(p, c, c_n) == 0) {
			p += c_n;
			n -= c_n;
			st->cut++;
		} else {
			st->past = true;
		}
	}
	if (!st->fused) {
		for (int i = 0; i < st->dec->stop && n >= c_n && memcmp(p + n - c_n, c, c_n) == 0;
		     i++)
			n -= c_n;
		next(s, k, p, n, id);
		return;
	}
	if (st->dec->stop <= 0) {
		if (n)
			next(s, k, p, n, id);
		return;
	}
	/* holds up to `stop` characters, because they may be the end of the output */
	strbuf_add(&st->held, p, n);
	size_t keep = 0;
	for (int i = 0; i < st->dec->stop && st->held.len - keep >= c_n &&
	                memcmp(st->held.data + st->held.len - keep - c_n, c, c_n) == 0;
	     i++)
		keep += c_n;
	size_t go = st->held.len - keep;
	if (!go)
		return;
	strbuf_clear(&st->out);
	strbuf_add(&st->out, st->held.data, go);
	memmove(st->held.data, st->held.data + go, keep);
	st->held.len = keep;
	next(s, k, st->out.data, st->out.len, -1);
}

/* Decodes a run of byte tokens. Valid characters stay as they are; each other byte becomes
 * U+FFFD. */
static void
spm_bytes(llmc_stream *s, size_t k, bool end)
{
	DecodeStage *st = &s->stage[k];
	size_t n = end ? st->held.len : utf8_whole(strbuf_str(&st->held), st->held.len);

	if (!n)
		return;
	strbuf_clear(&st->out);
	for (size_t i = 0, len; i < n; i += len) {
		if (utf8_next(st->held.data + i, n - i, &len) < 0) {
			strbuf_puts(&st->out, "\xEF\xBF\xBD");
			len = 1;
		} else {
			strbuf_add(&st->out, st->held.data + i, len);
		}
	}
	memmove(st->held.data, st->held.data + n, st->held.len - n);
	st->held.len -= n;
	st->any = true;
	next(s, k, st->out.data, st->out.len, -1);
}

static void
feed_spm(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id)
{
	static const char space[] = "\xE2\x96\x81";
	DecodeStage *st = &s->stage[k];
	const Dec *d = st->dec;
	int type = id >= 0 ? s->t->tok[id].type : TT_NORMAL;

	if (type == TT_BYTE) {
		int b = byte_token(p, n);
		if (b >= 0)
			strbuf_putc(&st->held, (char)b);
		spm_bytes(s, k, false);
		return;
	}
	spm_bytes(s, k, true);
	if (type == TT_CONTROL || type == TT_UNKNOWN) {
		if (type == TT_UNKNOWN) {
			p = d->unk_surface.s;
			n = d->unk_surface.n;
		}
		if (n) {
			st->any = true;
			next(s, k, p, n, id);
		}
		return;
	}
	/* The space that sentencepiece puts before the text is removed: only the first one, or all
	 * before other text. */
	if (!st->any && (d->strip_first || d->strip_all) && n >= 3 && memcmp(p, space, 3) == 0) {
		p += 3;
		n -= 3;
		st->any = !d->strip_all;
	}
	strbuf_clear(&st->out);
	for (size_t i = 0; i < n;) {
		if (n - i >= 3 && memcmp(p + i, space, 3) == 0) {
			strbuf_putc(&st->out, ' ');
			i += 3;
		} else {
			strbuf_putc(&st->out, p[i++]);
		}
	}
	if (st->out.len) {
		st->any = true;
		next(s, k, st->out.data, st->out.len, id);
	}
}

/* Replaces every occurrence of `from` in *text. *spare is scratch. */
static void
replace_all(Strbuf *text, Strbuf *spare, const char *from, const char *to)
{
	const char *at = strbuf_str(text), *hit;

	if (!strstr(at, from))
		return;
	strbuf_clear(spare);
	for (; (hit = strstr(at, from)); at = hit + strlen(from)) {
		strbuf_add(spare, at, (size_t)(hit - at));
		strbuf_puts(spare, to);
	}
	strbuf_puts(spare, at);
	strbuf_clear(text);
	strbuf_add(text, spare->data, spare->len);
}

/* A token inside a word is appended without its mark; any other token is preceded by a space. */
static void
feed_wordpiece(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id)
{
	static const char *const clean[][2] = {
		{ " .", "." },   { " ?", "?" },     { " !", "!" },     { " ,", "," },
		{ " ' ", "'" },  { " n't", "n't" }, { " 'm", "'m" },   { " do not", " don't" },
		{ " 's", "'s" }, { " 've", "'ve" }, { " 're", "'re" },
	};
	DecodeStage *st = &s->stage[k];
	const ByteSpan mark = st->dec->pattern;

	strbuf_clear(&st->out);
	if (st->count++) {
		if (n >= mark.n && memcmp(p, mark.s, mark.n) == 0) {
			p += mark.n;
			n -= mark.n;
		} else {
			strbuf_putc(&st->out, ' ');
		}
	}
	strbuf_add(&st->out, p, n);
	for (size_t i = 0; st->dec->clean && i < sizeof clean / sizeof *clean; i++)
		replace_all(&st->out, &st->held, clean[i][0], clean[i][1]);
	strbuf_clear(&st->held);
	next(s, k, strbuf_str(&st->out), st->out.len, id);
}

static void
feed(llmc_stream *s, size_t k, const char *p, size_t n, int32_t id)
{
	DecodeStage *st = &s->stage[k];
	int b;

	if (s->too_long)
		return;
	switch (st->dec->kind) {
	case DEC_BYTELEVEL:
		feed_bytelevel(s, k, p, n);
		break;
	case DEC_METASPACE:
		feed_metaspace(s, k, p, n, id);
		break;
	case DEC_REPLACE:
		if (st->fused) { /* a match may cross chunks, so all chunks are collected first */
			strbuf_add(&st->held, p, n);
			break;
		}
		strbuf_clear(&st->out);
		replace_text(s, st, p, n);
		next(s, k, strbuf_str(&st->out), st->out.len, id);
		break;
	case DEC_BYTE_FALLBACK:
		b = byte_token(p, n);
		if (b >= 0) {
			strbuf_putc(&st->held, (char)b);
		} else {
			flush_byte_run(s, k);
			next(s, k, p, n, id);
		}
		break;
	case DEC_FUSE:
		next(s, k, p, n, -1);
		break;
	case DEC_STRIP:
		feed_strip(s, k, p, n, id);
		break;
	case DEC_SUFFIX: /* a word ends with a space, except for the last word, so one token is held
	                  */
		if (st->count++) {
			strbuf_clear(&st->out);
			replace_text(s, st, strbuf_str(&st->held), st->held.len);
			next(s, k, strbuf_str(&st->out), st->out.len, -1);
		}
		strbuf_clear(&st->held);
		strbuf_add(&st->held, p, n);
		break;
	case DEC_SPM:
		feed_spm(s, k, p, n, id);
		break;
	case DEC_JOIN_SPACES:
		if (st->count++)
			next(s, k, " ", 1, -1);
		next(s, k, p, n, id);
		break;
	case DEC_WORDPIECE:
		feed_wordpiece(s, k, p, n, id);
		break;
	}
}

static void
flush_stage(llmc_stream *s, size_t k)
{
	DecodeStage *st = &s->stage[k];

	switch (st->dec->kind) {
	case DEC_BYTELEVEL:
		if (st->held.len) {
			strbuf_clear(&st->out);
			utf8_add_lossy(&st->out, st->held.data, st->held.len);
			next(s, k, st->out.data, st->out.len, -1);
		}
		break;
	case DEC_REPLACE:
		if (st->fused && st->held.len) {
			strbuf_clear(&st->out);
			replace_text(s, st, st->held.data, st->held.len);
			next(s, k, strbuf_str(&st->out), st->out.len, -1);
		}
		break;
	case DEC_BYTE_FALLBACK:
		flush_byte_run(s, k);
		break;
	case DEC_SUFFIX:
		if (st->count) {
			Dec last = *st->dec;
			const Dec *dec = st->dec;
			last.content = (ByteSpan){ "", 0 };
			st->dec = &last;
			strbuf_clear(&st->out);
			replace_text(s, st, strbuf_str(&st->held), st->held.len);
			st->dec = dec;
			next(s, k, strbuf_str(&st->out), st->out.len, -1);
		}
		break;
	case DEC_SPM:
		spm_bytes(s, k, true);
		break;
	case DEC_STRIP: /* the held characters are the end of the output, and are removed */
	case DEC_METASPACE:
	case DEC_FUSE:
	case DEC_JOIN_SPACES:
	case DEC_WORDPIECE:
		break;
	}
	strbuf_clear(&st->held);
	st->count = st->cut = 0;
	st->past = st->any = false;
}

llmc_status
llmc_stream_open(const llmc_tokenizer *t, bool skip_special, llmc_stream **out, llmc_error *err)
{
	if (!t || !out)
		return error_set(err, LLMC_E_RANGE, "llmc_stream_open: a pointer is NULL");
	llmc_stream *s = calloc(1, sizeof *s);
	*out = NULL;
	if (s) {
		s->t = t;
		s->skip_special = skip_special;
		s->most = MIN_DECODED;
		s->n_stage = t->n_dec;
		s->stage = calloc(t->n_dec ? t->n_dec : 1, sizeof *s->stage);
		s->match = pcre2_match_data_create(64, NULL);
	}
	if (!s || !s->stage || !s->match) {
		llmc_stream_close(s);
		return error_set(err, LLMC_E_MEMORY, "llmc_stream_open: out of memory");
	}
	bool fused = false;
	for (size_t i = 0; i < t->n_dec; i++) {
		s->stage[i].dec = &t->dec[i];
		s->stage[i].fused = fused;
		fused |= t->dec[i].kind == DEC_FUSE || t->dec[i].kind == DEC_BYTELEVEL;
	}
	*out = s;
	return LLMC_OK;
}

void
llmc_stream_close(llmc_stream *s)
{
	if (!s)
		return;
	for (size_t i = 0; s->stage && i < s->n_stage; i++) {
		strbuf_release(&s->stage[i].held);
		strbuf_release(&s->stage[i].out);
	}
	strbuf_release(&s->bytes);
	strbuf_release(&s->text);
	if (s->match)
		pcre2_match_data_free(s->match);
	free(s->stage);
	free(s);
}

static void
take_whole(llmc_stream *s, bool end)
{
	size_t n = end ? s->bytes.len : utf8_whole(strbuf_str(&s->bytes), s->bytes.len);

	if (!n)
		return;
	utf8_add_lossy(&s->text, s->bytes.data, n);
	memmove(s->bytes.data, s->bytes.data + n, s->bytes.len - n);
	s->bytes.len -= n;
}

static void
stream_one(llmc_stream *s, int32_t id)
{
	if (id < 0) {
		for (size_t k = 0; k < s->n_stage; k++)
			flush_stage(s, k);
		take_whole(s, true);
		return;
	}
	const Token *tok = &s->t->tok[id];
	if (!tok->s)
		return;
	if (tok->special && s->skip_special) {
		if (s->n_stage && s->stage[0].dec->kind == DEC_SPM)
			spm_bytes(s, 0, true); /* the run of byte tokens has ended */
		take_whole(s, false);
		return;
	}
	s->most += (size_t)TEXT_MAX_STEPS * tok->n;
	if (s->n_stage)
		feed(s, 0, tok->s, tok->n, id);
	else
		strbuf_add(&s->bytes, tok->s, tok->n);
	take_whole(s, false);
}

static llmc_status
stream_status(const llmc_stream *s, const char *what, llmc_error *err)
{
	bool broken = s->bytes.failed || s->text.failed;

	for (size_t i = 0; i < s->n_stage; i++)
		broken |= s->stage[i].held.failed || s->stage[i].out.failed;
	if (broken)
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory", what);
	if (s->too_long)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the tokenizer's decoder makes more than %d times the bytes "
		                 "of these tokens",
		                 what, TEXT_MAX_STEPS);
	return LLMC_OK;
}

llmc_status
llmc_stream_feed(llmc_stream *s, int32_t id, const char **text, size_t *n_bytes, llmc_error *err)
{
	if (!s)
		return error_set(err, LLMC_E_RANGE, "llmc_stream_feed: the stream is NULL");
	if (id < -1 || id >= s->t->n_ids)
		return error_set(err, LLMC_E_RANGE,
		                 "llmc_stream_feed: %d is no token id; ids are 0 to %d", id,
		                 s->t->n_ids - 1);
	strbuf_clear(&s->text);
	stream_one(s, id);
	TRY(stream_status(s, "llmc_stream_feed", err));
	if (text)
		*text = strbuf_str(&s->text);
	if (n_bytes)
		*n_bytes = s->text.len;
	return LLMC_OK;
}

llmc_status
llmc_detokenize(const llmc_tokenizer *t, const int32_t *ids, size_t n, bool skip_special, char *buf,
                size_t cap, size_t *need, llmc_error *err)
{
	llmc_stream *s;
	llmc_status status = LLMC_OK;

	if (!t || (n && !ids) || (cap && !buf))
		return error_set(err, LLMC_E_RANGE, "llmc_detokenize: a pointer is NULL");
	for (size_t i = 0; i < n; i++)
		if (ids[i] < 0 || ids[i] >= t->n_ids)
			return error_set(
			    err, LLMC_E_RANGE,
			    "llmc_detokenize: ids[%zu] = %d is no token id; ids are 0 to %d", i,
			    ids[i], t->n_ids - 1);
	TRY(llmc_stream_open(t, skip_special, &s, err));
	for (size_t i = 0; i < n; i++)
		stream_one(s, ids[i]);
	stream_one(s, -1);
	status = stream_status(s, "llmc_detokenize", err);
	if (status == LLMC_OK) {
		if (need)
			*need = s->text.len;
		if (s->text.len >= cap)
			status = error_set(
			    err, LLMC_E_RANGE,
			    "llmc_detokenize: %zu bytes and a NUL do not fit into a buffer of %zu",
			    s->text.len, cap);
		else
			memcpy(buf, strbuf_str(&s->text), s->text.len + 1);
	}
	llmc_stream_close(s);
	return status;
}

static void
token_bytes(const llmc_tokenizer *t, const Token *tok, Strbuf *out)
{
	bool byte_level = false;
	unsigned byte;
	size_t len;

	for (size_t i = 0; i < t->n_dec; i++)
		byte_level |= t->dec[i].kind == DEC_BYTELEVEL;
	if (tok->special || tok->type == TT_CONTROL || tok->type == TT_USER) {
		strbuf_add(out, tok->s, tok->n);
	} else if (t->byte_fallback && tok->n == 6 && sscanf(tok->s, "<0x%2X>", &byte) == 1) {
		strbuf_putc(out, (char)byte);
	} else {
		for (size_t i = 0; i < tok->n; i += len) {
			int32_t cp = utf8_next(tok->s + i, tok->n - i, &len);
			int b = byte_level && cp >= 0 ? bytelevel_byte((uint32_t)cp) : -1;
			if (b >= 0)
				strbuf_putc(out, (char)b);
			else if (!byte_level && cp == 0x2581)
				strbuf_putc(out, ' ');
			else
				strbuf_add(out, tok->s + i, len);
		}
	}
}

llmc_status
llmc_token_bytes(const llmc_tokenizer *t, int32_t id, char *buf, size_t cap, size_t *need,
                 llmc_error *err)
{
	Strbuf b = { 0 };
	llmc_status status = LLMC_OK;

	if (!llmc_token_text(t, id))
		return error_set(err, LLMC_E_INPUT, "llmc_token_bytes: %d is no token id", id);
	token_bytes(t, &t->tok[id], &b);
	if (need)
		*need = b.len;
	if (b.failed)
		status = error_set(err, LLMC_E_MEMORY, "llmc_token_bytes: out of memory");
	else if (b.len >= cap)
		status = error_set(
		    err, LLMC_E_RANGE,
		    "llmc_token_bytes: %zu bytes and a NUL do not fit into a buffer of %zu", b.len,
		    cap);
	else
		memcpy(buf, strbuf_str(&b), b.len + 1);
	strbuf_release(&b);
	return status;
}

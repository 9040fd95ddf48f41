/* tokenizer.model of sentencepiece, a protobuf that is parsed here. Every length is checked against
 * the remaining bytes. Unused fields are skipped; wrong wire types are rejected. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct ProtoField {
	const unsigned char *p, *end;
	uint32_t field;
	int type;
	uint64_t number; /* value of varint and fixed fields */
	ByteSpan bytes;
} ProtoField;

static bool
varint(ProtoField *w, uint64_t *out)
{
	uint64_t v = 0;

	for (int shift = 0; shift < 70; shift += 7) {
		if (w->p == w->end)
			return false;
		unsigned char c = *w->p++;
		if (shift == 63 && c > 1)
			return false;
		v |= (uint64_t)(c & 0x7F) << (shift < 64 ? shift : 63);
		if (!(c & 0x80)) {
			*out = v;
			return true;
		}
	}
	return false;
}

/* Returns 1: a field is in w; 0: end of the data; -1: malformed. */
static int
wire_next(ProtoField *w)
{
	uint64_t key, n;

	if (w->p == w->end)
		return 0;
	if (!varint(w, &key) || key >> 3 == 0 || key >> 3 > 0x1FFFFFFF)
		return -1;
	w->field = (uint32_t)(key >> 3);
	w->type = (int)(key & 7);
	switch (w->type) {
	case 0:
		return varint(w, &w->number) ? 1 : -1;
	case 1:
	case 5:
		n = w->type == 1 ? 8 : 4;
		if ((uint64_t)(w->end - w->p) < n)
			return -1;
		w->number = 0;
		memcpy(&w->number, w->p, n);
		w->p += n;
		return 1;
	case 2:
		if (!varint(w, &n) || n > (uint64_t)(w->end - w->p))
			return -1;
		w->bytes = (ByteSpan){ (const char *)w->p, n };
		w->p += n;
		return 1;
	default:
		return -1;
	}
}

static ProtoField
wire_in(ByteSpan s)
{
	return (ProtoField){ .p = (const unsigned char *)s.s,
		             .end = (const unsigned char *)s.s + s.n };
}

typedef struct Spm {
	llmc_tokenizer *t;
	llmc_error *err;
	int model_type;
	bool suffix, byte_fallback;
	bool dummy_prefix, remove_extra, escape;
	int32_t unk, bos, eos, pad;
	bool ice;      /* the file is ice_text.model */
	int32_t shift; /* added to all ids */
	ByteSpan unk_surface, charsmap;
} Spm;

static llmc_status
broken(Spm *m, const char *where)
{
	return error_set(m->err, LLMC_E_INPUT,
	                 "%s: not a sentencepiece model, or a damaged one (a field ends beyond its "
	                 "message or has the "
	                 "wrong wire type)",
	                 where);
}

static llmc_status
read_piece(Spm *m, ByteSpan in, int32_t id)
{
	ProtoField w = wire_in(in);
	Token *tok = &m->t->tok[id];
	int rc;

	tok->type = TT_NORMAL;
	tokenizer_set(m->t, id, (ByteSpan){ "", 0 });
	while ((rc = wire_next(&w)) > 0) {
		if (w.field == 1) {
			if (w.type != 2)
				return broken(m, "piece");
			if (w.bytes.n > TEXT_MAX_TOKEN)
				return error_set(m->err, LLMC_E_INPUT,
				                 "piece %d has %zu bytes; at most %zu are taken",
				                 id, w.bytes.n, TEXT_MAX_TOKEN);
			tokenizer_set(m->t, id, w.bytes);
		} else if (w.field == 2) {
			if (w.type != 5)
				return broken(m, "score");
			uint32_t bits = (uint32_t)w.number;
			float score;
			memcpy(&score, &bits, 4);
			tok->score = score;
			if (!(score > -1e30f && score < 1e30f))
				return error_set(m->err, LLMC_E_INPUT,
				                 "piece %d: its score is not a finite number", id);
		} else if (w.field == 3) {
			if (w.type != 0 || w.number < TT_NORMAL || w.number > TT_BYTE)
				return error_set(m->err, LLMC_E_INPUT, "piece %d: unknown type",
				                 id);
			tok->type = (uint8_t)w.number;
		}
	}
	return rc < 0 ? broken(m, "piece") : LLMC_OK;
}

static llmc_status
read_trainer(Spm *m, ByteSpan in)
{
	ProtoField w = wire_in(in);
	int rc;

	while ((rc = wire_next(&w)) > 0) {
		bool number = w.field == 3 || w.field == 24 || w.field == 35 ||
		              (w.field >= 40 && w.field <= 43);
		if (number && w.type != 0)
			return broken(m, "trainer_spec");
		int32_t v = (int32_t)w.number;
		switch (w.field) {
		case 3:
			m->model_type = v;
			break;
		case 24:
			m->suffix = v != 0;
			break;
		case 35:
			m->byte_fallback = v != 0;
			break;
		case 40:
			m->unk = v;
			break;
		case 41:
			m->bos = v;
			break;
		case 42:
			m->eos = v;
			break;
		case 43:
			m->pad = v;
			break;
		case 44:
			if (w.type != 2)
				return broken(m, "trainer_spec");
			m->unk_surface = w.bytes;
			break;
		default:
			break;
		}
	}
	return rc < 0 ? broken(m, "trainer_spec") : LLMC_OK;
}

static llmc_status
read_normalizer(Spm *m, ByteSpan in)
{
	ProtoField w = wire_in(in);
	int rc;

	while ((rc = wire_next(&w)) > 0) {
		if ((w.field == 2 && w.type != 2) || (w.field >= 3 && w.field <= 5 && w.type != 0))
			return broken(m, "normalizer_spec");
		if (w.field == 2)
			m->charsmap = w.bytes;
		else if (w.field == 3)
			m->dummy_prefix = w.number != 0;
		else if (w.field == 4)
			m->remove_extra = w.number != 0;
		else if (w.field == 5)
			m->escape = w.number != 0;
	}
	return rc < 0 ? broken(m, "normalizer_spec") : LLMC_OK;
}

static llmc_status
fill_models(Spm *m)
{
	llmc_tokenizer *t = m->t;

	trie_init(&t->user, &t->arena);
	for (int32_t i = 0; i < t->n_ids; i++) {
		Token *k = &t->tok[i];
		ByteSpan s = { k->s, k->n };
		if (k->type == TT_CONTROL) {
			k->special = true;
			TRY(added_add(t, (AddedToken){ .id = i, .text = s, .special = true },
			              m->err));
		}
		if (k->type == TT_USER && k->n)
			trie_put(&t->user, &t->arena, s, i);
	}
	unigram_pieces(t);
	return LLMC_OK;
}

static llmc_status
load(Spm *m, ByteSpan in)
{
	llmc_tokenizer *t = m->t;
	ProtoField w = wire_in(in);
	size_t n = 0;
	int32_t id = m->shift;
	int rc;

	while ((rc = wire_next(&w)) > 0) {
		if (w.field >= 1 && w.field <= 3 && w.type != 2)
			return broken(m, "model");
		n += w.field == 1;
	}
	if (rc < 0)
		return broken(m, "model");
	if (!n)
		return error_set(m->err, LLMC_E_INPUT,
		                 "no pieces: this is not a sentencepiece model");
	if (n > TEXT_MAX_IDS)
		return error_set(m->err, LLMC_E_INPUT, "%zu pieces; at most %d are taken", n,
		                 TEXT_MAX_IDS);
	n += (size_t)m->shift;
	t->tok = NEW(&t->arena, Token, n);
	t->n_ids = (int32_t)n;
	for (w = wire_in(in); wire_next(&w) > 0;) {
		if (w.field == 1)
			TRY(read_piece(m, w.bytes, id++));
		else if (w.field == 2)
			TRY(read_trainer(m, w.bytes));
		else if (w.field == 3)
			TRY(read_normalizer(m, w.bytes));
	}
	if (m->model_type != 1 && m->model_type != 2)
		return error_set(m->err, LLMC_E_INPUT,
		                 "model type %d (3: words, 4: characters); unigram (1) and BPE (2) "
		                 "are supported",
		                 m->model_type);
	t->model = m->model_type == 1 ? MODEL_UNIGRAM : MODEL_SCORES;
	t->spm = true;
	t->byte_fallback = m->byte_fallback;
	TRY(fill_models(m));
	if (m->ice)
		TRY(ice_blanks(t, m->err));
	Charsmap map = { 0 };
	if (m->charsmap.n)
		TRY(charsmap_read(&t->arena, m->charsmap, &map, m->err));
	*normalizer_add(t, NORMALIZE_SPM) = (Normalizer){
		.kind = NORMALIZE_SPM,
		.map = map,
		.dummy_prefix = m->dummy_prefix,
		.remove_extra = m->remove_extra,
		.escape = m->escape,
		.suffix = m->suffix,
		.user = t->user.n_edges ? &t->user : NULL,
	};
	*dec_add(t, DEC_SPM) = (Dec){
		.kind = DEC_SPM,
		.strip_first = m->dummy_prefix,
		.strip_all = m->remove_extra,
		.unk_surface = span_copy(&t->arena, m->unk_surface),
	};
	t->bos =
	    m->bos >= 0 && m->bos < t->n_ids && t->tok[m->bos].type == TT_CONTROL ? m->bos : -1;
	t->pad = m->pad >= 0 && m->pad < t->n_ids ? m->pad : -1;
	t->unk = t->unk_id;
	if (m->eos >= 0 && m->eos < t->n_ids && t->tok[m->eos].type == TT_CONTROL)
		eos_add(t, m->eos);
	/* sentencepiece leaves this to the caller; models with BPE tokens were trained with BOS
	 * first */
	if (t->model == MODEL_SCORES && t->bos >= 0 && !m->ice) {
		t->prefix = NEW(&t->arena, int32_t, 1);
		t->prefix[0] = t->bos;
		t->n_prefix = 1;
	}
	return tokenizer_finish(t, m->err);
}

static llmc_status
guarded(Spm *m, ByteSpan in)
{
	if (setjmp(m->t->arena.oom))
		return error_set(m->err, LLMC_E_MEMORY, "out of memory");
	return load(m, in);
}

static llmc_status
open_model(const char *data, size_t n, bool ice, int32_t shift, const char *name,
           llmc_tokenizer **out, llmc_error *err)
{
	Spm m = {
		.err = err,
		.ice = ice,
		.shift = shift,
		.model_type = 1,
		.dummy_prefix = true,
		.remove_extra = true,
		.escape = true,
		.unk = 0,
		.bos = 1,
		.eos = 2,
		.pad = -1,
		.unk_surface = { " \xE2\x81\x87 ", 5 },
	};

	*out = NULL;
	m.t = tokenizer_new(err);
	if (!m.t)
		return LLMC_E_MEMORY;
	llmc_status status = guarded(&m, (ByteSpan){ data ? data : "", n });
	if (status != LLMC_OK) {
		error_prefix(err, "%s", name);
		llmc_tokenizer_close(m.t);
		return status;
	}
	*out = m.t;
	return LLMC_OK;
}

llmc_status
text_open_spm(const char *data, size_t n, const char *name, llmc_tokenizer **out, llmc_error *err)
{
	return open_model(data, n, false, 0, name, out, err);
}

llmc_status
text_open_ice(const char *data, size_t n, int32_t shift, const char *name, llmc_tokenizer **out,
              llmc_error *err)
{
	return open_model(data, n, true, shift, name, out, err);
}

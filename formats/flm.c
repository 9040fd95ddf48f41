/* Reads the file sequentially: keys, adapter keys, vocabulary, tensors. Counts are checked against
 * the remaining bytes before any allocation. */
#include "formats/flm.h"

#include <stdio.h>
#include <string.h>

#include "formats/name_table.h"

enum {
	TYPE_F32 = 0,
	TYPE_BF16 = 1,
	TYPE_INT8 = 3,
	TYPE_INT4 = 4,
	TYPE_F16 = 7,
	TYPE_INT4_NOZERO = 8,
	TYPE_INT4_GROUP = 9
};

typedef struct FlmReader {
	Arena *a;
	const uint8_t *data;
	size_t size, at;
	const char *file;
	llmc_error *err;
} FlmReader;

bool
flm_name(const char *path)
{
	size_t n = strlen(path);

	return n > 4 && strcmp(path + n - 4, ".flm") == 0;
}

static llmc_status
bad(const FlmReader *r, const char *what)
{
	return error_set(r->err, LLMC_E_INPUT,
	                 "%s: %s at byte %zu: not a FastLLM model, or it is truncated or damaged",
	                 r->file, what, r->at);
}

static llmc_status
take(FlmReader *r, uint64_t n, const uint8_t **out)
{
	*out = r->data + r->at;
	if (n > r->size - r->at)
		return bad(r, "the file ends within a value");
	r->at += (size_t)n;
	return LLMC_OK;
}

static llmc_status
i32(FlmReader *r, int32_t *out)
{
	const uint8_t *p;

	*out = 0;
	TRY(take(r, 4, &p));
	memcpy(out, p, 4);
	return LLMC_OK;
}

/* Reads the number of entries that follow; each takes at least `each` bytes */
static llmc_status
count(FlmReader *r, size_t each, size_t *out)
{
	int32_t n;

	*out = 0;
	TRY(i32(r, &n));
	if (n < 0 || (size_t)n > (r->size - r->at) / each)
		return bad(r, "a count larger than the file");
	*out = (size_t)n;
	return LLMC_OK;
}

static llmc_status
text(FlmReader *r, char **out)
{
	const uint8_t *p;
	size_t n;

	TRY(count(r, 1, &n));
	TRY(take(r, n, &p));
	if (n && memchr(p, 0, n))
		return bad(r, "a string with a NUL byte");
	*out = arena_strndup(r->a, (const char *)p, n);
	return LLMC_OK;
}

static llmc_status
pairs(FlmReader *r, FlmPair **out, size_t *n)
{
	char *key, *value;

	TRY(count(r, 8, n));
	*out = NEW(r->a, FlmPair, *n + 1);
	for (size_t i = 0; i < *n; i++) {
		TRY(text(r, &key));
		TRY(text(r, &value));
		(*out)[i] = (FlmPair){ key, value };
	}
	return LLMC_OK;
}

const char *
flm_get(const Flm *f, const char *key)
{
	for (size_t i = f->n_pair; i > 0; i--) /* the last value of a key wins */
		if (strcmp(f->pair[i - 1].key, key) == 0)
			return f->pair[i - 1].value;
	return NULL;
}

static bool
flag(const Flm *f, const char *key)
{
	const char *v = flm_get(f, key);

	return v && strcmp(v, "1") == 0;
}

/* Skips the settings of low-rank adapters that were exported with the model. Their tensors stay in
 * the list. */
static llmc_status
adapters(FlmReader *r, const Flm *f)
{
	const char *v = flm_get(f, "peft_size");
	FlmPair *ignored;
	char *name;
	size_t n;

	for (const char *p = v ? v : ""; *p; p++)
		if (*p < '0' || *p > '9' || p - v > 3)
			return error_set(r->err, LLMC_E_INPUT,
			                 "%s: peft_size = %s is not a number of adapters", r->file,
			                 name_text(v, strlen(v)).s);
	int many = 0;
	for (const char *p = v ? v : ""; *p; p++)
		many = many * 10 + (*p - '0');
	for (int i = 0; i < many; i++) {
		TRY(text(r, &name));
		TRY(pairs(r, &ignored, &n));
	}
	return LLMC_OK;
}

/* Each byte of a vocabulary entry is stored as a 32-bit number. */
static llmc_status
vocabulary(FlmReader *r, Flm *f)
{
	const bool scores = flag(f, "tokenizer_use_score");
	const uint8_t *p;

	TRY(count(r, scores ? 12 : 8, &f->n_piece));
	f->piece = NEW(r->a, FlmPiece, f->n_piece + 1);
	for (size_t i = 0; i < f->n_piece; i++) {
		FlmPiece *to = &f->piece[i];
		TRY(count(r, 4, &to->n));
		TRY(take(r, 4 * (uint64_t)to->n, &p));
		char *s = NEW(r->a, char, to->n + 1);
		for (size_t k = 0; k < to->n; k++)
			s[k] = (char)p[4 * k];
		to->text = s;
		TRY(i32(r, &to->id));
		if (scores) {
			TRY(take(r, 4, &p));
			memcpy(&to->score, p, 4);
		}
	}
	if (!flag(f, "tokenizer_has_special_tokens"))
		return LLMC_OK;
	TRY(count(r, 4, &f->n_special));
	f->special = NEW(r->a, char *, f->n_special + 1);
	for (size_t i = 0; i < f->n_special; i++)
		TRY(text(r, &f->special[i]));
	return LLMC_OK;
}

/* Reads codes with the minimum and maximum of each group */
static llmc_status
quantised(FlmReader *r, FlmTensor *t, int type)
{
	const int bits = type == TYPE_INT8 ? 8 : 4;
	int32_t axis, groups = 1, size = 0;
	const uint8_t *range, *code;
	int64_t elems;

	TRY(i32(r, &axis));
	if (t->n_dims != 2 || axis != 0 || t->dim[0] < 1 || t->dim[1] < 1)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: tensor %s: llmc reads only 2-dimensional matrices with a "
		                 "range per row or group (%d dimensions, axis %d)",
		                 r->file, name_text(t->name, strlen(t->name)).s, t->n_dims, axis);
	size = (int32_t)t->dim[1];
	if (type == TYPE_INT4_GROUP) {
		TRY(i32(r, &groups));
		TRY(i32(r, &size));
		if (size < 1 || groups != (t->dim[1] - 1) / size + 1)
			return error_set(r->err, LLMC_E_INPUT,
			                 "%s: tensor %s: %d groups of %d do not match its %lld "
			                 "columns",
			                 r->file, name_text(t->name, strlen(t->name)).s, groups,
			                 size, (long long)t->dim[1]);
	}
	TRY(take(r, 8 * (uint64_t)groups * (uint64_t)t->dim[0], &range));
	elems = t->dim[0] * t->dim[1]; /* cannot overflow: each dimension has at most 31 bits */
	TRY(take(r, bits == 8 ? (uint64_t)elems : ((uint64_t)elems + 1) / 2, &code));
	QuantFormatMatrix *m = NEW(r->a, QuantFormatMatrix, 1);
	*m = (QuantFormatMatrix){ .dtype = DT_F32,
		                  .rows = t->dim[0],
		                  .cols = t->dim[1],
		                  .block_rows = 1,
		                  .block_cols = size,
		                  .whole = 1,
		                  .range = range };
	m->code = (QuantFormatPlane){ .data = code,
		                      .name = t->name,
		                      .type = "U8",
		                      .dim = { t->dim[0], t->dim[1] },
		                      .bits = bits,
		                      .element = 8 };
	const int columns = m->cols % 32                            ? 0
	                    : size % 128 == 0 && m->cols % 128 == 0 ? 128
	                    : size % 32 == 0                        ? 32
	                                                            : 0;
	if (columns)
		m->dtype = bits == 8 ? (columns == 128 ? DT_U8_128_F32 : DT_U8_32_F32)
		                     : (columns == 128 ? DT_U4_128_F32 : DT_U4_32_F32);
	t->dtype = m->dtype;
	t->made = m;
	t->bytes = m->rows * dtype_row_bytes(m->dtype, m->cols);
	return LLMC_OK;
}

static llmc_status
tensor(FlmReader *r, FlmTensor *t)
{
	uint64_t n = 1;
	char *name;
	int32_t dim, type;
	size_t dims;
	const uint8_t *p;

	TRY(text(r, &name));
	*t = (FlmTensor){ .name = name };
	TRY(count(r, 4, &dims));
	if (dims > 4)
		return bad(r, "a tensor of more than 4 dimensions");
	t->n_dims = (int)dims;
	for (int i = 0; i < 8; i++)
		t->dim[i] = 1;
	for (int i = 0; i < t->n_dims; i++) {
		TRY(i32(r, &dim));
		if (dim < 0 || __builtin_mul_overflow(n, (uint64_t)dim, &n) ||
		    n > (uint64_t)1 << 48)
			return bad(r, "a tensor whose shape is too large to count");
		t->dim[i] = dim;
	}
	TRY(i32(r, &type));
	switch (type) {
	case TYPE_INT8:
	case TYPE_INT4:
	case TYPE_INT4_NOZERO:
	case TYPE_INT4_GROUP:
		return quantised(r, t, type);
	case TYPE_F32:
	case TYPE_BF16:
	case TYPE_F16:
		t->dtype = type == TYPE_F32 ? DT_F32 : type == TYPE_F16 ? DT_F16 : DT_BF16;
		t->bytes = (int64_t)(n * (type == TYPE_F32 ? 4 : 2));
		TRY(take(r, (uint64_t)t->bytes, &p));
		t->data = p;
		return LLMC_OK;
	default:
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: tensor %s has the type %d; llmc reads 0 (f32), 1 (bf16), 3 "
		                 "(int8), 4 and 8 (int4), 7 (f16) and 9 (int4 in groups)",
		                 r->file, name_text(name, strlen(name)).s, type);
	}
}

llmc_status
flm_read(Arena *a, const uint8_t *data, size_t size, const char *file, Flm *f, llmc_error *err)
{
	FlmReader r = { .a = a, .data = data, .size = size, .file = file, .err = err };

	*f = (Flm){ 0 };
	TRY(i32(&r, &f->version));
	if (f->version < 0 || f->version > 2)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: FastLLM version %d; llmc reads versions 0, 1 and 2", file,
		                 f->version);
	if (f->version >= 1)
		TRY(pairs(&r, &f->pair, &f->n_pair));
	TRY(adapters(&r, f));
	TRY(vocabulary(&r, f));
	TRY(count(&r, 12, &f->n_tensor));
	f->tensor = NEW(a, FlmTensor, f->n_tensor + 1);
	for (size_t i = 0; i < f->n_tensor; i++)
		TRY(tensor(&r, &f->tensor[i]));
	return r.at == size ? LLMC_OK : bad(&r, "bytes that belong to no tensor");
}

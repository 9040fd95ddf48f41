#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_private.h"

const char *const gguf_end_keys[GGUF_END_KEYS] = { GGUF_VOCAB "eos_token_id",
	                                           GGUF_VOCAB "eot_token_id",
	                                           GGUF_VOCAB "eom_token_id" };

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place, little endian");

enum {
	MAX_NAME = 65535, /* longest key in bytes, from the format; also applied to tensor names */
	MIN_KEY_BYTES = 8 + 1 + 4 + 1,
	MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
};

/* Unread bytes; `at` never exceeds `size`. */
typedef struct Cursor {
	const unsigned char *data;
	size_t size, at;
} Cursor;

static size_t
left(const Cursor *c)
{
	return c->size - c->at;
}

static bool
take(Cursor *c, void *out, size_t n)
{
	if (left(c) < n)
		return false;
	memcpy(out, c->data + c->at, n);
	c->at += n;
	return true;
}

static bool
take_str(Cursor *c, GgufStr *out)
{
	uint64_t n;

	if (!take(c, &n, sizeof n) || n > left(c))
		return false;
	*out = (GgufStr){ (const char *)c->data + c->at, (size_t)n };
	c->at += (size_t)n;
	return true;
}

static llmc_status
truncated(const Gguf *g, const Cursor *c, const char *what, size_t i, llmc_error *err)
{
	return error_set(
	    err, LLMC_E_INPUT,
	    "%s: %s %zu reaches beyond the end of the file (%zu bytes; reading at byte %zu): the "
	    "file is truncated or damaged, download it again",
	    g->file, what, i, c->size, c->at);
}

/* Reads a key or tensor name: bounded, not empty, without NUL. The copy is NUL-terminated. */
static llmc_status
take_name(Gguf *g, Cursor *c, const char *what, size_t i, const char **out, llmc_error *err)
{
	GgufStr s;

	if (!take_str(c, &s))
		return truncated(g, c, what, i, err);
	if (s.n == 0 || s.n > MAX_NAME)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the name of %s %zu has %zu bytes; 1 to %d are allowed",
		                 g->file, what, i, s.n, MAX_NAME);
	if (memchr(s.s, 0, s.n))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the name of %s %zu, '%s', contains a NUL byte", g->file, what,
		                 i, name_text(s.s, s.n).s);
	*out = arena_strndup(&g->arena, s.s, s.n);
	return LLMC_OK;
}

static llmc_status
check_bools(const Gguf *g, const Key *k, llmc_error *err)
{
	for (uint64_t i = 0; i < k->count; i++)
		if (k->value[i] > 1)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: key %s holds the bool %d; only 0 and 1 are bools",
			                 g->file, name_text(k->name, strlen(k->name)).s,
			                 k->value[i]);
	return LLMC_OK;
}

static llmc_status
read_value(Gguf *g, Cursor *c, Key *k, llmc_error *err)
{
	const NameText name = name_text(k->name, strlen(k->name));
	uint32_t type;
	uint64_t count = 1;

	if (!take(c, &type, sizeof type))
		goto cut;
	if (type > GGUF_F64)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: key %s has value type %" PRIu32 "; GGUF defines 0 to %d",
		                 g->file, name.s, type, GGUF_F64);
	k->type = (GgufType)type;
	if (type == GGUF_ARR) {
		if (!take(c, &type, sizeof type) || !take(c, &count, sizeof count))
			goto cut;
		if (type == GGUF_ARR)
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: key %s is an array of arrays, which llmc does not read", g->file,
			    name.s);
		if (type > GGUF_F64)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: the array %s has element type %" PRIu32
			                 "; GGUF defines 0 to %d",
			                 g->file, name.s, type, GGUF_F64);
	}
	k->elem = (GgufType)type;
	k->count = count;
	k->value = c->data + c->at;
	size_t least = type == GGUF_STR ? 8 : gguf_type_bytes[type];
	if (count > left(c) / least)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: key %s claims %" PRIu64
		                 " elements of at least %zu bytes, but %zu bytes are left in the "
		                 "file: it is truncated or damaged",
		                 g->file, name.s, count, least, left(c));
	if (type != GGUF_STR) {
		c->at += (size_t)count * least;
		return type == GGUF_BOOL ? check_bools(g, k, err) : LLMC_OK;
	}
	uint64_t *str_at = arena_alloc(&g->arena, (size_t)count, sizeof *str_at);
	const size_t start = c->at;
	for (uint64_t i = 0; i < count; i++) {
		GgufStr s;
		str_at[i] = c->at - start;
		if (!take_str(c, &s))
			return error_set(err, LLMC_E_INPUT,
			                 "%s: key %s: string %" PRIu64 " of %" PRIu64
			                 " reaches beyond the end of the file: it is truncated "
			                 "or damaged",
			                 g->file, name.s, i, count);
	}
	k->str_at = str_at;
	return LLMC_OK;
cut:
	return error_set(err, LLMC_E_INPUT,
	                 "%s: the file ends within the value of key %s: it is truncated or "
	                 "damaged",
	                 g->file, name.s);
}

static llmc_status
read_keys(Gguf *g, Cursor *c, llmc_error *err)
{
	g->key = NEW(&g->arena, Key, g->n_key);
	g->key_name = NEW(&g->arena, NameEntry, g->n_key);
	for (size_t i = 0; i < g->n_key; i++) {
		TRY(take_name(g, c, "key", i, &g->key[i].name, err));
		TRY(read_value(g, c, &g->key[i], err));
		g->key_name[i] = (NameEntry){ g->key[i].name, i };
	}
	const NameEntry *twice = names_sort(g->key_name, g->n_key);
	if (twice)
		return error_set(err, LLMC_E_INPUT, "%s: duplicate key %s", g->file,
		                 name_text(twice->name, strlen(twice->name)).s);
	return LLMC_OK;
}

static llmc_status
read_alignment(const Gguf *g, size_t *out, llmc_error *err)
{
	GgufType type;
	int64_t value;

	*out = 32;
	if (!gguf_type(g, "general.alignment", &type, NULL, NULL))
		return LLMC_OK;
	if (type != GGUF_U32)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: general.alignment has value type %d, expected u32 (%d)",
		                 g->file, type, GGUF_U32);
	gguf_int(g, "general.alignment", &value);
	if (value < 8 || (value & (value - 1)))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: general.alignment is %" PRId64
		                 ", expected a power of two of at least 8",
		                 g->file, value);
	*out = (size_t)value;
	return LLMC_OK;
}

/* Reads one tensor record except its data pointer; *offset is relative to the start of the data. */
static llmc_status
read_tensor(Gguf *g, Cursor *c, size_t i, uint64_t *offset, llmc_error *err)
{
	GgufTensor *t = &g->tensor[i];
	uint32_t n_dims;
	int64_t rows = 1, elements;

	TRY(take_name(g, c, "tensor", i, &t->name, err));
	const NameText name = name_text(t->name, strlen(t->name));
	if (!take(c, &n_dims, sizeof n_dims))
		return truncated(g, c, "the record of tensor", i, err);
	if (n_dims > 4)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s has %" PRIu32 " dimensions; at most 4 are allowed",
		                 g->file, name.s, n_dims);
	t->n_dims = (int)n_dims;
	for (int d = 0; d < 4; d++) {
		uint64_t size = 1;
		if (d < t->n_dims && !take(c, &size, sizeof size))
			return truncated(g, c, "the record of tensor", i, err);
		if (size == 0 || size > INT64_MAX)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s: dimension %d is %" PRIu64, g->file, name.s,
			                 d, size);
		t->dim[d] = (int64_t)size;
	}
	if (!take(c, &t->ggml_type, sizeof t->ggml_type) || !take(c, offset, sizeof *offset))
		return truncated(g, c, "the record of tensor", i, err);
	const QuantFormatGgml *other = quant_format_ggml(t->ggml_type);
	t->dtype = other ? other->dtype : dtype_from_ggml(t->ggml_type);
	/* checked even for types that are not read, so that all users of dim[] may multiply */
	for (int d = 1; d < 4; d++)
		if (__builtin_mul_overflow(rows, t->dim[d], &rows))
			goto overflow;
	if (__builtin_mul_overflow(rows, t->dim[0], &elements))
		goto overflow;
	if (t->dtype == DT_NONE)
		return LLMC_OK;
	const int elems = other ? other->elems : dtype_info(t->dtype)->block_elems;
	if (t->dim[0] % elems)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s: rows of %" PRId64
		                 " elements are not a multiple of the %s block size %d",
		                 g->file, name.s, t->dim[0],
		                 other ? ggml_type_name(t->ggml_type) : dtype_text(t->dtype),
		                 elems);
	t->bytes = dtype_row_bytes(t->dtype, t->dim[0]);
	if (other && t->bytes >= 0)
		t->bytes = t->dim[0] / other->elems * other->bytes;
	if (t->bytes < 0 || __builtin_mul_overflow(t->bytes, rows, &t->bytes))
		goto overflow;
	return LLMC_OK;
overflow:
	return error_set(err, LLMC_E_INPUT,
	                 "%s: tensor %s: its shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
	                 "] is too large "
	                 "to count in bytes",
	                 g->file, name.s, t->dim[0], t->dim[1], t->dim[2], t->dim[3]);
}

typedef struct GgufExtent {
	uint64_t from, to;
	size_t tensor;
} GgufExtent;

static int
by_place(const void *x, const void *y)
{
	const GgufExtent *a = x, *b = y;

	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	if (a->to != b->to)
		return a->to < b->to ? -1 : 1;
	return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

static llmc_status
read_tensors(Gguf *g, Cursor *c, llmc_error *err)
{
	size_t align;

	TRY(read_alignment(g, &align, err));
	g->tensor = NEW(&g->arena, GgufTensor, g->n_tensor);
	g->tensor_name = NEW(&g->arena, NameEntry, g->n_tensor);
	GgufExtent *place = NEW(&g->arena, GgufExtent, g->n_tensor);
	for (size_t i = 0; i < g->n_tensor; i++) {
		TRY(read_tensor(g, c, i, &place[i].from, err));
		g->tensor_name[i] = (NameEntry){ g->tensor[i].name, i };
		place[i].tensor = i;
	}
	const NameEntry *twice = names_sort(g->tensor_name, g->n_tensor);
	if (twice)
		return error_set(err, LLMC_E_INPUT, "%s: duplicate tensor %s", g->file,
		                 name_text(twice->name, strlen(twice->name)).s);

	/* the data begins at the next multiple of align; a file without tensors may end before
	 * it */
	size_t pad = (align - c->at % align) % align;
	size_t start = pad <= left(c) ? c->at + pad : c->size;
	const uint64_t room = c->size - start;
	for (size_t i = 0; i < g->n_tensor; i++) {
		GgufTensor *t = &g->tensor[i];
		const NameText name = name_text(t->name, strlen(t->name));
		if (place[i].from % align)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s starts at byte %" PRIu64
			                 " of the data, which is not a multiple of the alignment "
			                 "%zu",
			                 g->file, name.s, place[i].from, align);
		if (place[i].from > room || (uint64_t)t->bytes > room - place[i].from)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s needs %" PRId64 " bytes from byte %" PRIu64
			                 " of the data, but the "
			                 "data has %" PRIu64
			                 ": the file is truncated or damaged, download it again",
			                 g->file, name.s, t->bytes, place[i].from, room);
		place[i].to = place[i].from + (uint64_t)t->bytes;
		t->file = g->file;
		if (t->dtype != DT_NONE)
			t->data = c->data + start + place[i].from;
	}
	if (g->n_tensor > 1)
		qsort(place, g->n_tensor, sizeof *place, by_place);
	for (size_t i = 1; i < g->n_tensor; i++)
		if (place[i].from < place[i - 1].to) {
			const char *a = g->tensor[place[i - 1].tensor].name,
			           *b = g->tensor[place[i].tensor].name;
			return error_set(err, LLMC_E_INPUT,
			                 "%s: the data of tensors %s and %s overlap", g->file,
			                 name_text(a, strlen(a)).s, name_text(b, strlen(b)).s);
		}
	return LLMC_OK;
}

/* Marks matrices whose rows are converted while read. NVFP4's X.weight uses its factor X.scale;
 * X.input_scale applies to activations and is not used. Both are removed from the list. */
static llmc_status
make_matrices(Gguf *g, llmc_error *err)
{
	size_t kept = 0;
	bool *gone = NEW(&g->arena, bool, g->n_tensor + 1);

	for (size_t i = 0; i < g->n_tensor; i++) {
		GgufTensor *t = &g->tensor[i];
		const size_t n = strlen(t->name), tail = strlen("weight");
		const int64_t rows = t->dim[1] * t->dim[2] * t->dim[3];
		if (quant_format_ggml(t->ggml_type) && rows > 0)
			t->made = quant_format_of_ggml(&g->arena, t->ggml_type, t->data, rows,
			                               t->dim[0], NULL, 1);
		if (t->ggml_type != GGML_NVFP4 || n < tail ||
		    strcmp(t->name + n - tail, "weight") != 0)
			continue;
		const char *base = arena_strndup(&g->arena, t->name, n - tail);
		const GgufTensor *scale = gguf_tensor(g, arena_printf(&g->arena, "%sscale", base)),
		                 *input =
		                     gguf_tensor(g, arena_printf(&g->arena, "%sinput_scale", base));
		const int64_t factors =
		    scale ? scale->dim[0] * scale->dim[1] * scale->dim[2] * scale->dim[3] : 1;
		if (scale && (scale->dtype != DT_F32 || factors < 1 ||
		              (factors != 1 && factors != t->dim[2] * t->dim[3])))
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: tensor %s: expected one F32 factor, or one per expert", g->file,
			    name_text(scale->name, strlen(scale->name)).s);
		if (rows > 0)
			t->made =
			    quant_format_of_ggml(&g->arena, t->ggml_type, t->data, rows, t->dim[0],
			                         scale ? scale->data : NULL, factors);
		if (scale)
			gone[scale - g->tensor] = true;
		if (input)
			gone[input - g->tensor] = true;
	}
	for (size_t i = 0; i < g->n_tensor; i++)
		if (!gone[i])
			g->tensor[kept++] = g->tensor[i];
	g->n_tensor = kept;
	for (size_t i = 0; i < kept; i++)
		g->tensor_name[i] = (NameEntry){ g->tensor[i].name, i };
	names_sort(g->tensor_name, kept);
	return LLMC_OK;
}

static llmc_status
read_header(Gguf *g, Cursor *c, llmc_error *err)
{
	char magic[4];
	uint32_t version;
	uint64_t n_tensor, n_key;

	TRY(file_check_content(g->file, c->data, c->size, err));
	if (!take(c, magic, 4) || memcmp(magic, "GGUF", 4) != 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: not a GGUF file: it does not begin with the bytes GGUF",
		                 g->file);
	if (!take(c, &version, sizeof version))
		goto cut;
	if (version != 2 && version != 3) {
		if (__builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: a big-endian GGUF; llmc reads little-endian files: "
			                 "convert it with "
			                 "gguf-convert-endian FILE little",
			                 g->file);
		return error_set(err, LLMC_E_INPUT,
		                 "%s: GGUF version %" PRIu32 "; llmc reads versions 2 and 3",
		                 g->file, version);
	}
	if (!take(c, &n_tensor, sizeof n_tensor) || !take(c, &n_key, sizeof n_key))
		goto cut;
	if (n_key > left(c) / MIN_KEY_BYTES)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the header claims %" PRIu64
		                 " keys, more than a file of %zu bytes can hold",
		                 g->file, n_key, c->size);
	/* a scalar has no dimension field */
	if (n_tensor > left(c) / (MIN_TENSOR_BYTES - 8))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the header claims %" PRIu64
		                 " tensors, more than a file of %zu bytes can hold",
		                 g->file, n_tensor, c->size);
	g->n_key = (size_t)n_key;
	g->n_tensor = (size_t)n_tensor;
	return LLMC_OK;
cut:
	return error_set(err, LLMC_E_INPUT, "%s: the file ends within the GGUF header (%zu bytes)",
	                 g->file, c->size);
}

static llmc_status
read_all(Gguf *g, const void *data, size_t size, const char *name, llmc_error *err)
{
	Cursor c = { .data = data, .size = size };

	if (setjmp(g->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory while reading the header",
		                 name);
	g->file = arena_strdup(&g->arena, name);
	TRY(read_header(g, &c, err));
	TRY(read_keys(g, &c, err));
	return read_tensors(g, &c, err);
}

static llmc_status
open_bytes(FileMap map, const void *data, size_t size, const char *name, Gguf **out,
           llmc_error *err)
{
	Gguf *g = calloc(1, sizeof *g);

	*out = NULL;
	if (!g) {
		file_unmap(&map);
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory", name);
	}
	arena_init(&g->arena);
	g->map = map;
	llmc_status status = read_all(g, data, size, name, err);
	if (status != LLMC_OK) {
		gguf_close(g);
		return status;
	}
	*out = g;
	return LLMC_OK;
}

llmc_status
gguf_finish(Gguf **out, llmc_error *err)
{
	Gguf *g = *out;
	llmc_status status;

	if (setjmp(g->arena.oom))
		status = error_set(err, LLMC_E_MEMORY, "%s: out of memory while reading the header",
		                   g->file);
	else
		status = make_matrices(g, err);
	if (status != LLMC_OK) {
		gguf_close(g);
		*out = NULL;
	}
	return status;
}

llmc_status
gguf_open_one(const char *path, Gguf **out, llmc_error *err)
{
	FileMap map;

	*out = NULL;
	TRY(file_map(path, &map, err));
	return open_bytes(map, map.data, map.size, path, out, err);
}

llmc_status
gguf_open_memory(const void *data, size_t size, const char *name, Gguf **out, llmc_error *err)
{
	TRY(open_bytes((FileMap){ 0 }, data, size, name, out, err));
	return gguf_finish(out, err);
}

void
gguf_close(Gguf *g)
{
	if (!g)
		return;
	for (size_t i = 0; i < g->n_part; i++)
		gguf_close(g->part[i]);
	arena_release(&g->arena);
	file_unmap(&g->map);
	free(g);
}

static void
close_held(void *g)
{
	gguf_close(g);
}

void
gguf_hold(Arena *a, Gguf *g)
{
	arena_defer(a, close_held, g);
}

size_t
gguf_n_tensors(const Gguf *g)
{
	return g->n_tensor;
}

const GgufTensor *
gguf_tensor_at(const Gguf *g, size_t i)
{
	return i < g->n_tensor ? &g->tensor[i] : NULL;
}

const GgufTensor *
gguf_tensor(const Gguf *g, const char *name)
{
	const NameEntry *e = names_find(g->tensor_name, g->n_tensor, name);
	return e ? &g->tensor[e->at] : NULL;
}

size_t
gguf_n_keys(const Gguf *g)
{
	return g->n_key;
}

const char *
gguf_key_at(const Gguf *g, size_t i)
{
	return i < g->n_key ? g->key[i].name : NULL;
}

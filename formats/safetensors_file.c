/* Reads one file of tensors: safetensors, torch.save or .flm. Offsets and sizes are checked; data
 * stays mapped. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/flm.h"
#include "formats/name_table.h"
#include "formats/safetensors.h"
#include "formats/safetensors_internal.h"
#include "formats/torch.h"

/* All types of the format, with their size in bits; dtype.h names those that llmc reads. */
static const struct {
	const char *name;
	int bits;
} element_type[] = {
	{ "F64", 64 },    { "F32", 32 },        { "F16", 16 },        { "BF16", 16 },
	{ "I64", 64 },    { "I32", 32 },        { "I16", 16 },        { "I8", 8 },
	{ "U64", 64 },    { "U32", 32 },        { "U16", 16 },        { "U8", 8 },
	{ "BOOL", 8 },    { "C64", 64 },        { "F8_E4M3", 8 },     { "F8_E5M2", 8 },
	{ "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 }, { "F8_E5M2FNUZ", 8 }, { "F6_E2M3", 6 },
	{ "F6_E3M2", 6 }, { "F4", 4 },
};

static int
element_bits(const char *name)
{
	for (size_t i = 0; i < sizeof element_type / sizeof *element_type; i++)
		if (strcmp(element_type[i].name, name) == 0)
			return element_type[i].bits;
	return 0;
}

bool
st_is_pickled(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	if (strncmp(name, "pytorch_model", 13) == 0)
		return ends_with(name, ".bin");
	return (strncmp(name, "consolidated", 12) == 0 || strncmp(name, "model", 5) == 0) &&
	       (ends_with(name, ".pth") || ends_with(name, ".pt"));
}

/* Parses dtype, shape and offsets of one header entry; data_bytes: size of the data after the
 * header */
static llmc_status
read_tensor(Safetensors *s, StTensor *t, const json_t *entry, size_t data_bytes, size_t *from,
            llmc_error *err)
{
	const NameText name = name_text(t->name, strlen(t->name));
	const json_t *shape = json_object_get(entry, "shape"),
	             *place = json_object_get(entry, "data_offsets");
	const char *dtype = json_string_value(json_object_get(entry, "dtype"));
	int64_t n = 1, bits;

	if (!dtype || !json_is_array(shape) || !json_is_array(place) || json_array_size(place) != 2)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: tensor %s: expected an object with a string dtype, an array shape and two "
		    "data_offsets",
		    t->file, name.s);
	if (!element_bits(dtype))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s has dtype '%s', which safetensors does not define",
		                 t->file, name.s, name_text(dtype, strlen(dtype)).s);
	t->dtype = dtype_from_safetensors(dtype, strlen(dtype));
	t->dtype_name = arena_strdup(&s->arena, dtype);
	if (json_array_size(shape) > sizeof t->dim / sizeof *t->dim)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s has %zu dimensions; at most 8 are read", t->file,
		                 name.s, json_array_size(shape));
	t->n_dims = (int)json_array_size(shape);
	for (int d = 0; d < 8; d++)
		t->dim[d] = 1;
	for (int d = 0; d < t->n_dims; d++) {
		const json_t *size = json_array_get(shape, (size_t)d);
		if (!json_is_integer(size) || json_integer_value(size) < 0)
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: tensor %s: dimension %d of the shape is not a non-negative "
			    "integer",
			    t->file, name.s, d);
		t->dim[d] = json_integer_value(size);
		if (__builtin_mul_overflow(n, t->dim[d], &n))
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s: its shape is too large to count", t->file,
			                 name.s);
	}
	const json_t *begin = json_array_get(place, 0), *end = json_array_get(place, 1);
	if (!json_is_integer(begin) || !json_is_integer(end) || json_integer_value(begin) < 0 ||
	    json_integer_value(end) < json_integer_value(begin))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s: data_offsets are not two ascending integers",
		                 t->file, name.s);
	if ((uint64_t)json_integer_value(end) > data_bytes)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s ends at byte %lld of the data, but the file "
		                 "holds %zu: it is truncated or damaged, download it again",
		                 t->file, name.s, (long long)json_integer_value(end), data_bytes);
	t->bytes = json_integer_value(end) - json_integer_value(begin);
	if (__builtin_mul_overflow(n, (int64_t)element_bits(dtype), &bits) || bits % 8 ||
	    bits / 8 != t->bytes)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor %s: %" PRId64
		                 " elements of %s do not fill the %" PRId64 " bytes that "
		                 "data_offsets name",
		                 t->file, name.s, n, dtype, t->bytes);
	*from = (size_t)json_integer_value(begin);
	return LLMC_OK;
}

static llmc_status
check_metadata(const char *file, const json_t *meta, llmc_error *err)
{
	const char *key;
	json_t *value;

	if (json_is_object(meta)) {
		json_object_foreach ((json_t *)meta, key, value)
			if (!json_is_string(value))
				goto bad;
		return LLMC_OK;
	}
bad:
	return error_set(err, LLMC_E_INPUT, "%s: __metadata__ is not an object of strings", file);
}

typedef struct StExtent {
	size_t from, to;
	const char *name;
} StExtent;

static int
by_place(const void *x, const void *y)
{
	const StExtent *a = x, *b = y;

	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	if (a->to != b->to)
		return a->to < b->to ? -1 : 1;
	return strcmp(a->name, b->name);
}

/* Tensors must cover the data from end to end, each byte once. */
static llmc_status
check_coverage(const char *file, StExtent *place, size_t n, size_t data_bytes, llmc_error *err)
{
	size_t at = 0;

	if (n > 1)
		qsort(place, n, sizeof *place, by_place);
	for (size_t i = 0; i < n; i++) {
		const NameText name = name_text(place[i].name, strlen(place[i].name));
		if (place[i].from < at)
			return error_set(
			    err, LLMC_E_INPUT, "%s: the data of tensors %s and %s overlap", file,
			    name_text(place[i - 1].name, strlen(place[i - 1].name)).s, name.s);
		if (place[i].from > at)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: bytes %zu to %zu of the data, before tensor %s, "
			                 "belong to no tensor",
			                 file, at, place[i].from, name.s);
		at = place[i].to;
	}
	if (at != data_bytes)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the last %zu bytes of the data belong to no tensor", file,
		                 data_bytes - at);
	return LLMC_OK;
}

llmc_status
st_json_failed(const char *file, const char *what, const json_error_t *e, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "%s: %s is not valid JSON (line %d, column %d: %s)",
	                 file, what, e->line, e->column, name_text(e->text, strlen(e->text)).s);
}

static llmc_status
st_check_start(const char *file, const unsigned char *data, size_t size, llmc_error *err)
{
	TRY(file_check_content(file, data, size, err));
	if (size >= 4 && memcmp(data, "GGUF", 4) == 0)
		return error_set(err, LLMC_E_INPUT, "%s: a GGUF file, not safetensors", file);
	if (st_is_pickled(file))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: not a file of torch.save: it begins with neither a zip "
		                 "archive nor its magic number",
		                 file);
	if (size < 9)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: %zu bytes are too few for a safetensors file", file, size);
	return LLMC_OK;
}

static llmc_status
read_torch(Safetensors *s, const unsigned char *data, size_t size, const char *file,
           llmc_error *err)
{
	TorchTensor *t;
	size_t n;

	TRY(torch_read(&s->arena, data, size, file, &t, &n, err));
	s->tensor = arena_grow(&s->arena, s->tensor, &s->cap, s->n + n, sizeof *s->tensor);
	for (size_t i = 0; i < n; i++) {
		StTensor *to = &s->tensor[s->n++];
		*to = (StTensor){ .name = t[i].name,
			          .dtype = dtype_from_safetensors(t[i].type, strlen(t[i].type)),
			          .dtype_name = t[i].type,
			          .n_dims = t[i].n_dims,
			          .data = t[i].data,
			          .bytes = t[i].bytes,
			          .copied = t[i].copied,
			          .file = file };
		memcpy(to->dim, t[i].dim, sizeof to->dim);
	}
	return LLMC_OK;
}

static llmc_status
read_flm(Safetensors *s, const unsigned char *data, size_t size, const char *file, llmc_error *err)
{
	Flm f;

	TRY(flm_read(&s->arena, data, size, file, &f, err));
	s->tensor = arena_grow(&s->arena, s->tensor, &s->cap, s->n + f.n_tensor, sizeof *s->tensor);
	for (size_t i = 0; i < f.n_tensor; i++) {
		const FlmTensor *t = &f.tensor[i];
		StTensor *to = &s->tensor[s->n++];
		*to = (StTensor){ .name = t->name,
			          .dtype = t->dtype,
			          .dtype_name = dtype_text(t->dtype),
			          .n_dims = t->n_dims,
			          .data = t->data,
			          .bytes = t->bytes,
			          .file = file,
			          .made = t->made };
		memcpy(to->dim, t->dim, sizeof to->dim);
	}
	return LLMC_OK;
}

/* Returns a copy of a tensor's name. Checkpoints converted from TensorFlow have `gamma` and `beta`
 * of layer norms, which become `weight` and `bias`. */
static const char *
current_name(Safetensors *s, const char *name)
{
	static const char *const old[][2] = { { "LayerNorm.gamma", "weight" },
		                              { "LayerNorm.beta", "bias" } };

	for (size_t i = 0; i < 2; i++)
		if (ends_with(name, old[i][0]))
			return arena_printf(&s->arena, "%.*s.%s", (int)(strrchr(name, '.') - name),
			                    name, old[i][1]);
	return arena_strdup(&s->arena, name);
}

llmc_status
st_read_file(Safetensors *s, const unsigned char *data, size_t size, const char *path,
             llmc_error *err)
{
	const char *file = arena_strdup(&s->arena, path);
	uint64_t header;
	json_error_t e;
	const char *key;
	json_t *entry;
	size_t n = 0;

	if (torch_is(data, size))
		return read_torch(s, data, size, file, err);
	if (flm_name(path))
		return read_flm(s, data, size, file, err);
	TRY(st_check_start(file, data, size, err));
	memcpy(&header, data, sizeof header);
	if (header > MAX_HEADER_BYTES)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the header claims %" PRIu64
		                 " bytes; more than %d is not safetensors",
		                 file, header, MAX_HEADER_BYTES);
	if (header > size - 8)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the header claims %" PRIu64
		                 " bytes, but the file has %zu: it is truncated or damaged, "
		                 "download it again",
		                 file, header, size);
	if (header == 0 || data[8] != '{')
		return error_set(err, LLMC_E_INPUT,
		                 "%s: not a safetensors file: its header does not begin with '{'",
		                 file);
	const unsigned char *start = data + 8 + header;
	const size_t data_bytes = size - 8 - (size_t)header;

	json_t *head = json_read(&s->arena, (const char *)data + 8, (size_t)header,
	                         JSON_REJECT_DUPLICATES, &e);
	if (!head)
		return st_json_failed(file, "the header", &e, err);
	const size_t n_entry = json_object_size(head);
	StExtent *place = NEW(&s->arena, StExtent, n_entry);
	s->tensor = arena_grow(&s->arena, s->tensor, &s->cap, s->n + n_entry, sizeof *s->tensor);
	json_object_foreach (head, key, entry) {
		if (strcmp(key, "__metadata__") == 0) {
			TRY(check_metadata(file, entry, err));
			continue;
		}
		StTensor *t = &s->tensor[s->n];
		*t = (StTensor){ .name = current_name(s, key), .file = file };
		TRY(read_tensor(s, t, entry, data_bytes, &place[n].from, err));
		t->data = start + place[n].from;
		place[n].to = place[n].from + (size_t)t->bytes;
		place[n++].name = t->name;
		s->n++;
	}
	arena_done(&s->arena, head);
	return check_coverage(file, place, n, data_bytes, err);
}

llmc_status
st_map_file(Safetensors *s, const char *path, llmc_error *err)
{
	llmc_error why;
	const FileMap *m = file_hold(&s->arena, path, &why);

	return m ? st_read_file(s, m->data, m->size, path, err)
	         : error_set(err, why.code, "%s", why.text);
}

const StTensor *
safetensors_find(const Safetensors *s, const char *name)
{
	const NameEntry *e = names_find(s->name, s->n, name);
	return e ? &s->tensor[e->at] : NULL;
}

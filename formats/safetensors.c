#include "formats/safetensors.h"

#include <dirent.h>
#include <errno.h>
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
#include "formats/shards.h"
#include "formats/torch.h"

enum {
	MAX_HEADER_BYTES = 100 * 1000 * 1000,
	/* limit of the safetensors library */ MAX_CONFIG_BYTES = 8 << 20,
	MAX_SHARDS = 64
};

struct Safetensors {
	Arena arena;
	StTensor *tensor;
	NameEntry *name;
	size_t n, cap;
	Schemes *schemes; /* NULL: opened from memory, so there is no config.json */
};

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

/* Recognises weights of torch.save by name, since folders also hold other pickles
 * (training_args.bin, optimizer.pt, rng_state_0.pth). */
static bool
is_pickled(const char *path)
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

static llmc_status
json_failed(const char *file, const char *what, const json_error_t *e, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "%s: %s is not valid JSON (line %d, column %d: %s)",
	                 file, what, e->line, e->column, name_text(e->text, strlen(e->text)).s);
}

static llmc_status
check_start(const char *file, const unsigned char *data, size_t size, llmc_error *err)
{
	static const char lfs[] = "version https://git-lfs";

	if (size >= sizeof lfs - 1 && memcmp(data, lfs, sizeof lfs - 1) == 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: a Git LFS pointer, not the file itself: run git lfs pull",
		                 file);
	if (size >= 4 && memcmp(data, "GGUF", 4) == 0)
		return error_set(err, LLMC_E_INPUT, "%s: a GGUF file, not safetensors", file);
	if (is_pickled(file))
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

/* Adds the tensors of one file. */
static llmc_status
read_file(Safetensors *s, const unsigned char *data, size_t size, const char *path, llmc_error *err)
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
	TRY(check_start(file, data, size, err));
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
		return json_failed(file, "the header", &e, err);
	const size_t n_entry = json_object_size(head);
	StExtent *place = NEW(&s->arena, StExtent, n_entry);
	s->tensor = arena_grow(&s->arena, s->tensor, &s->cap, s->n + n_entry, sizeof *s->tensor);
	json_object_foreach (head, key, entry) {
		if (strcmp(key, "__metadata__") == 0) {
			TRY(check_metadata(file, entry, err));
			continue;
		}
		StTensor *t = &s->tensor[s->n];
		*t = (StTensor){ .name = arena_strdup(&s->arena, key), .file = file };
		TRY(read_tensor(s, t, entry, data_bytes, &place[n].from, err));
		t->data = start + place[n].from;
		place[n].to = place[n].from + (size_t)t->bytes;
		place[n++].name = t->name;
		s->n++;
	}
	arena_done(&s->arena, head);
	return check_coverage(file, place, n, data_bytes, err);
}

static llmc_status
map_file(Safetensors *s, const char *path, llmc_error *err)
{
	llmc_error why;
	const FileMap *m = file_hold(&s->arena, path, &why);

	return m ? read_file(s, m->data, m->size, path, err)
	         : error_set(err, why.code, "%s", why.text);
}

/* Sorts the names; rejects a name that occurs twice, in one or two shards. */
static llmc_status
index_names(Safetensors *s, llmc_error *err)
{
	s->name = NEW(&s->arena, NameEntry, s->n);
	for (size_t i = 0; i < s->n; i++)
		s->name[i] = (NameEntry){ s->tensor[i].name, i };
	const NameEntry *twice = names_sort(s->name, s->n);
	if (!twice)
		return LLMC_OK;
	const NameText text = name_text(twice->name, strlen(twice->name));
	const char *one = s->tensor[twice[-1].at].file, *other = s->tensor[twice->at].file;
	if (strcmp(one, other) == 0)
		return error_set(err, LLMC_E_INPUT, "%s: duplicate tensor %s", one, text.s);
	return error_set(err, LLMC_E_INPUT, "tensor %s is in both %s and %s", text.s, one, other);
}

static int
by_text(const void *x, const void *y)
{
	return strcmp(*(const char *const *)x, *(const char *const *)y);
}

/* Collects the files that an index names, sorted and each once. */
static llmc_status
index_files(Safetensors *s, const char *path, const json_t *weight_map, const char ***out,
            size_t *n_out, llmc_error *err)
{
	const char **file = NEW(&s->arena, const char *, json_object_size(weight_map));
	const char *key;
	json_t *value;
	size_t n = 0, kept = 0;

	json_object_foreach ((json_t *)weight_map, key, value) {
		const char *name = json_string_value(value);
		if (!name || !*name || strchr(name, '/') || strcmp(name, "..") == 0)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s is not mapped to the plain name of a file "
			                 "in the same folder",
			                 path, name_text(key, strlen(key)).s);
		file[n++] = name;
	}
	if (n > 1)
		qsort(file, n, sizeof *file, by_text);
	for (size_t i = 0; i < n; i++)
		if (kept == 0 || strcmp(file[kept - 1], file[i]) != 0)
			file[kept++] = file[i];
	*out = file;
	*n_out = kept;
	return LLMC_OK;
}

static const char *
folder_of(Safetensors *s, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return "";
	return arena_strndup(&s->arena, path, (size_t)(slash - path) + 1);
}

static llmc_status
open_index(Safetensors *s, const char *path, llmc_error *err)
{
	const char *folder = folder_of(s, path), **file = NULL, *key;
	json_error_t e;
	json_t *value;
	llmc_error why;
	size_t n = 0;

	FileMap *m = file_hold(&s->arena, path, &why);
	if (!m)
		return error_set(err, why.code, "%s", why.text);
	json_t *index = json_read(&s->arena, m->data ? (const char *)m->data : "", m->size,
	                          JSON_REJECT_DUPLICATES, &e);
	arena_done(&s->arena, m);
	if (!index)
		return json_failed(path, "the index", &e, err);
	const json_t *weight_map = json_object_get(index, "weight_map");
	if (!json_is_object(weight_map))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: expected an object with an object weight_map", path);
	TRY(index_files(s, path, weight_map, &file, &n, err));
	for (size_t i = 0; i < n; i++) {
		const char *full = arena_printf(&s->arena, "%s%s", folder, file[i]);
		if (!file_exists(full))
			return error_set(err, LLMC_E_INPUT,
			                 "%s: shard %s of the index is missing: download it", path,
			                 full);
		TRY(map_file(s, full, err));
	}
	TRY(index_names(s, err));
	json_object_foreach ((json_t *)weight_map, key, value) {
		const StTensor *t = safetensors_find(s, key);
		const char *want = json_string_value(value);
		if (!t || strcmp(t->file + strlen(folder), want) != 0)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s is not in %s%s, the shard that the index "
			                 "names",
			                 path, name_text(key, strlen(key)).s, folder, want);
	}
	arena_done(&s->arena, index);
	return LLMC_OK;
}

/* Files of one kind in a folder. Directory order depends on the file system, so the two smallest
 * names are kept and messages are the same everywhere. */
typedef struct StFile {
	char first[256], second[256];
} StFile;

static void
found_add(StFile *f, const char *name)
{
	if (!*f->first || strcmp(name, f->first) < 0) {
		strcpy(f->second, f->first);
		snprintf(f->first, sizeof f->first, "%s", name);
	} else if (!*f->second || strcmp(name, f->second) < 0) {
		snprintf(f->second, sizeof f->second, "%s", name);
	}
}

/* Sets *only to the single file found, or NULL if there is none. E_INPUT: several files without an
 * index. */
static llmc_status
found_one(Safetensors *s, const char *folder, const StFile *f, const char *kind, const char *whole,
          const char **only, llmc_error *err)
{
	*only = *f->first ? arena_printf(&s->arena, "%s/%s", folder, f->first) : NULL;
	if (!*f->second)
		return LLMC_OK;
	return error_set(err, LLMC_E_INPUT,
	                 "%s: holds several %s files (%s, %s) but no %s and no %s.index.json to "
	                 "join them",
	                 folder, kind, f->first, f->second, whole, whole);
}

/* Reads the hidden size from params.json */
static llmc_status
params_width(Safetensors *s, const char *folder, int64_t *out, llmc_error *err)
{
	const char *path = arena_printf(&s->arena, "%s/params.json", folder);
	Strbuf *text = arena_strbuf(&s->arena);
	json_error_t e;

	TRY(file_read(path, MAX_CONFIG_BYTES, text, err));
	json_t *root =
	    json_read(&s->arena, strbuf_str(text), text->len, JSON_REJECT_DUPLICATES, &e);
	if (!root)
		return json_failed(path, "params.json", &e, err);
	*out = json_integer_value(json_object_get(root, "dim"));
	if (*out < 1)
		return error_set(err, LLMC_E_INPUT, "%s: dim is not a positive integer", path);
	return LLMC_OK;
}

/* Opens Meta's checkpoints: consolidated.00.pth, .01.pth, ... */
static llmc_status
open_shards(Safetensors *s, const char *folder, llmc_error *err)
{
	int64_t width = 0;
	int n = 0;

	for (const char *file;
	     n < MAX_SHARDS &&
	     file_exists(file = arena_printf(&s->arena, "%s/consolidated.%02d.pth", folder, n));
	     n++)
		TRY(map_file(s, file, err));
	TRY(params_width(s, folder, &width, err));
	return shards_join(&s->arena, s->tensor, &s->n, n, width, err);
}

static llmc_status
open_folder(Safetensors *s, const char *path, llmc_error *err)
{
	static const char *const whole[] = { "model.safetensors", "pytorch_model.bin" };
	StFile found[2] = { 0 };

	if (file_exists(arena_printf(&s->arena, "%s/params.json", path)) &&
	    file_exists(arena_printf(&s->arena, "%s/consolidated.00.pth", path)) &&
	    !file_exists(arena_printf(&s->arena, "%s/config.json", path)))
		return open_shards(s, path, err);
	for (int i = 0; i < 2; i++) {
		const char *one = arena_printf(&s->arena, "%s/%s", path, whole[i]),
		           *index = arena_printf(&s->arena, "%s.index.json", one), *only;
		if (file_exists(one))
			return map_file(s, one, err);
		if (file_exists(index))
			return open_index(s, index, err);
		DIR *dir = opendir(path);
		if (!dir)
			return error_set(err, LLMC_E_IO, "%s: cannot list the folder: %s", path,
			                 strerror(errno));
		for (struct dirent *d; (d = readdir(dir)) != NULL;)
			if (i == 0 ? ends_with(d->d_name, ".safetensors") : is_pickled(d->d_name))
				found_add(&found[i], d->d_name);
		closedir(dir);
		TRY(found_one(s, path, &found[i], i == 0 ? ".safetensors" : "pickled", whole[i],
		              &only, err));
		if (only)
			return map_file(s, only, err);
	}
	return error_set(err, LLMC_E_INPUT,
	                 "%s: holds no weights: no .safetensors file and no pytorch_model.bin",
	                 path);
}

/* ---- quantisation formats ---- */
static bool
find_part(const void *user, const char *name, SchemeTensor *out)
{
	const StTensor *t = safetensors_find(user, name);

	if (t)
		*out = (SchemeTensor){ .name = t->name,
			               .type = t->dtype_name,
			               .n_dims = t->n_dims,
			               .dim = t->dim,
			               .data = t->data };
	return t != NULL;
}

typedef struct StMatrix {
	StTensor *t;
	size_t n, cap;
} StMatrix;

static void
made_add(Safetensors *s, StMatrix *made, StTensor t)
{
	made->t = arena_grow(&s->arena, made->t, &made->cap, made->n + 1, sizeof *made->t);
	made->t[made->n++] = t;
}

/* Adds the column order or factor for x as a tensor next to matrix `name` */
static void
made_companion(Safetensors *s, StMatrix *made, const char *name, const char *suffix,
               const float *data, int64_t n, const char *file)
{
	if (data)
		made_add(s, made,
		         (StTensor){ .name = arena_printf(&s->arena, "%.*s%s",
		                                          (int)(strlen(name) - strlen("weight")),
		                                          name, suffix),
		                     .dtype = DT_F32,
		                     .dtype_name = "F32",
		                     .n_dims = 1,
		                     .dim = { n },
		                     .data = data,
		                     .bytes = 4 * n,
		                     .file = file,
		                     .copied = true });
}

/* Adds an identity order to indexed matrices without an order, if any other matrix has one */
static void
made_plain_orders(Safetensors *s, StMatrix *made)
{
	const size_t n = made->n;
	float *plain = NULL;
	int64_t most = 0;
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		const SchemeMatrix *m = made->t[i].made;
		any |= m && m->order;
		if (m && m->indexed && m->cols <= 1 << 24 && m->cols > most)
			most = m->cols;
	}
	if (!any)
		return;
	plain = NEW(&s->arena, float, most);
	for (int64_t j = 0; j < most; j++)
		plain[j] = (float)j;
	for (size_t i = 0; i < n; i++) {
		const StTensor t = made->t[i];
		if (t.made && t.made->indexed && !t.made->order && t.made->cols <= most)
			made_companion(s, made, t.name, SCHEME_ORDER, plain, t.made->cols, t.file);
	}
}

/* Replaces the tensors of each quantised matrix by one tensor; names stay sorted. */
static llmc_status
make_matrices(Safetensors *s, const char *folder, llmc_error *err)
{
	const char *parts[SCHEME_MAX_PARTS], *name;
	StMatrix made = { 0 };
	size_t kept = 0;
	int n_part;

	/* only floats: no quantised matrices to look for */
	bool plain = true;
	for (size_t i = 0; i < s->n && plain; i++)
		plain = s->tensor[i].dtype_name[0] == 'F' ? s->tensor[i].dtype_name[1] != '8'
		                                          : s->tensor[i].dtype_name[0] == 'B';
	if (plain)
		return LLMC_OK;
	const char *path = arena_printf(&s->arena, "%sconfig.json", folder);
	Strbuf *config = arena_strbuf(&s->arena);
	if (file_exists(path))
		TRY(file_read(path, MAX_CONFIG_BYTES, config, err));
	TRY(schemes_open(&s->arena, config->len ? strbuf_str(config) : NULL, config->len,
	                 &s->schemes, err));
	bool *gone = NEW(&s->arena, bool, s->n + 1);
	for (size_t i = 0; i < s->n; i++) {
		SchemeMatrix *m;
		TRY(scheme_matrix(s->schemes, s->tensor[i].name, find_part, s, &m, &name, parts,
		                  &n_part, err));
		if (!m)
			continue;
		made_add(s, &made,
		         (StTensor){ .name = name,
		                     .dtype = m->dtype,
		                     .dtype_name = s->tensor[i].dtype_name,
		                     .n_dims = m->stack ? 3 : 2,
		                     .dim = { m->stack ? m->stack : m->rows,
		                              m->stack ? m->rows / m->stack : m->cols, m->cols },
		                     .bytes = m->rows * dtype_row_bytes(m->dtype, m->cols),
		                     .file = s->tensor[i].file,
		                     .made = m });
		made_companion(s, &made, name, SCHEME_ORDER, m->order, m->cols, s->tensor[i].file);
		made_companion(s, &made, name, SCHEME_FACTOR, m->factor, m->cols,
		               s->tensor[i].file);
		for (int k = 0; k < n_part; k++)
			gone[safetensors_find(s, parts[k]) - s->tensor] = true;
	}
	if (made.n == 0)
		return LLMC_OK;
	made_plain_orders(s, &made);
	for (size_t i = 0; i < s->n; i++)
		if (!gone[i])
			s->tensor[kept++] = s->tensor[i];
	s->tensor = arena_grow(&s->arena, s->tensor, &s->cap, kept + made.n, sizeof *s->tensor);
	memcpy(s->tensor + kept, made.t, made.n * sizeof *made.t);
	s->n = kept + made.n;
	return index_names(s, err);
}

static llmc_status
open_path(Safetensors *s, const char *path, llmc_error *err)
{
	if (file_is_dir(path))
		return open_folder(s, path, err);
	if (ends_with(path, ".json"))
		return open_index(s, path, err);
	return map_file(s, path, err);
}

static llmc_status
read_any(Safetensors *s, const void *data, size_t size, const char *name, llmc_error *err)
{
	if (setjmp(s->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory while reading the header",
		                 name);
	if (data)
		TRY(read_file(s, data, size, name, err));
	else
		TRY(open_path(s, name, err));
	if (!s->name) /* an index has already sorted them */
		TRY(index_names(s, err));
	return data || flm_name(name)
	           ? LLMC_OK
	           : make_matrices(s,
	                           file_is_dir(name) ? arena_printf(&s->arena, "%s/", name)
	                                             : folder_of(s, name),
	                           err);
}

/* data NULL: opens the path `name` */
static llmc_status
open_any(const void *data, size_t size, const char *name, Safetensors **out, llmc_error *err)
{
	Safetensors *s = calloc(1, sizeof *s);

	*out = NULL;
	if (!s)
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory", name);
	arena_init(&s->arena);
	llmc_status status = read_any(s, data, size, name, err);
	if (status != LLMC_OK) {
		safetensors_close(s);
		return status;
	}
	*out = s;
	return LLMC_OK;
}

llmc_status
safetensors_open(const char *path, Safetensors **out, llmc_error *err)
{
	return open_any(NULL, 0, path, out, err);
}

llmc_status
safetensors_open_memory(const void *data, size_t size, const char *name, Safetensors **out,
                        llmc_error *err)
{
	return open_any(data ? data : "", size, name, out, err);
}

void
safetensors_close(Safetensors *s)
{
	if (!s)
		return;
	arena_release(&s->arena);
	free(s);
}

const char *
safetensors_scheme(const Safetensors *s)
{
	return s->schemes ? schemes_method(s->schemes) : NULL;
}

const char *
safetensors_schemes_known(const Safetensors *s)
{
	return s->schemes ? schemes_known(s->schemes) : NULL;
}

size_t
safetensors_n(const Safetensors *s)
{
	return s->n;
}

const StTensor *
safetensors_at(const Safetensors *s, size_t i)
{
	return i < s->n ? &s->tensor[i] : NULL;
}

const StTensor *
safetensors_find(const Safetensors *s, const char *name)
{
	const NameEntry *e = names_find(s->name, s->n, name);
	return e ? &s->tensor[e->at] : NULL;
}

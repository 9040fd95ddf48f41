/* Reads the two containers and builds tensors from a pickle's values. Every view is checked against
 * its storage, every storage against its entry. */
#include "base/text.h"
#include "formats/torch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "formats/name_table.h"
#include "formats/pickle.h"

/* start of the older format: pickle.dumps(0x1950a86a20f9469cfc6c, protocol=2); a pickle of its
 * version, 1001, follows */
static const uint8_t old_start[] = { 0x80, 2,    0x8a, 10,   0x6c, 0xfc, 0x9c, 0x46,
	                             0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, '.' };

enum { MAX_ENTRIES = 1 << 20, COPY_ROOM = 16 << 20 };

typedef struct ZipEntry {
	const uint8_t *data;
	uint64_t bytes;
} ZipEntry;

typedef struct ZipReader {
	Arena *a;
	const uint8_t *data;
	size_t size;
	const char *file;
	NameEntry *name; /* names of archive entries or storage keys */
	ZipEntry *part;
	size_t n_part;
	const char *prefix; /* prefix of storage names in the archive: "archive/data/" */
	TorchTensor *tensor;
	size_t n_tensor, cap_tensor;
	uint64_t copied;
	llmc_error *err;
} ZipReader;

bool
torch_is(const uint8_t *data, size_t size)
{
	return (size >= 4 && memcmp(data, "PK\3\4", 4) == 0) ||
	       (size >= sizeof old_start && memcmp(data, old_start, sizeof old_start) == 0);
}

static llmc_status
bad(const ZipReader *r, const char *what)
{
	return error_set(r->err, LLMC_E_INPUT,
	                 "%s: %s: it is truncated or damaged, download it "
	                 "again",
	                 r->file, what);
}

static uint64_t
number(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static const ZipEntry *
part_find(const ZipReader *r, const char *name)
{
	const NameEntry *e = names_find(r->name, r->n_part, name);

	return e ? &r->part[e->at] : NULL;
}

/* ---- the zip archive ---- */
/* Finds the central directory and its number of entries. The end record is last in the file. If a
 * number does not fit, a 64-bit record precedes it. */
static llmc_status
directory(const ZipReader *r, uint64_t *from, uint64_t *bytes, uint64_t *n)
{
	enum { END = 22, END_64 = 56, FINDER = 20, MAX_COMMENT = 65535 };
	const uint8_t *at = NULL;

	for (size_t back = END; back <= r->size && back <= END + MAX_COMMENT && !at; back++)
		if (memcmp(r->data + r->size - back, "PK\5\6", 4) == 0)
			at = r->data + r->size - back;
	if (!at)
		return bad(r, "a zip archive without its directory");
	*n = number(at + 10, 2);
	*bytes = number(at + 12, 4);
	*from = number(at + 16, 4);
	if (*n == 0xffff || *bytes == 0xffffffff || *from == 0xffffffff) {
		if (at - r->data < FINDER || memcmp(at - FINDER, "PK\6\7", 4) != 0)
			return bad(r, "a zip archive without a pointer to its 64-bit directory");
		uint64_t where = number(at - FINDER + 8, 8);
		if (r->size < END_64 || where > r->size - END_64 ||
		    memcmp(r->data + where, "PK\6\6", 4) != 0)
			return bad(r, "a zip archive without its 64-bit directory");
		*n = number(r->data + where + 32, 8);
		*bytes = number(r->data + where + 40, 8);
		*from = number(r->data + where + 48, 8);
	}
	if (*from > r->size || *bytes > r->size - *from || *n > *bytes / 46)
		return bad(r, "a zip archive whose directory is outside of the file");
	if (*n > MAX_ENTRIES)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: %" PRIu64 " entries are more than a checkpoint has", r->file,
		                 *n);
	return LLMC_OK;
}

/* Sizes and offsets that do not fit 32 bits are in extra field 1: only those, in this order. */
static void
long_sizes(const uint8_t *extra, size_t n, uint64_t *whole, uint64_t *packed, uint64_t *at)
{
	uint64_t *const value[] = { whole, packed, at };

	while (n >= 4) {
		uint64_t id = number(extra, 2), len = number(extra + 2, 2);
		if (len > n - 4)
			return;
		for (size_t i = 0, k = 0; id == 1 && i < 3; i++)
			if (*value[i] == 0xffffffff && k + 8 <= len) {
				*value[i] = number(extra + 4 + k, 8);
				k += 8;
			}
		extra += 4 + len;
		n -= 4 + (size_t)len;
	}
}

/* Reads one directory entry at p, of at most `left` bytes: its name and data; *used: length of the
 * entry */
static llmc_status
entry(ZipReader *r, const uint8_t *p, uint64_t left, size_t i, uint64_t *used)
{
	enum { HEAD = 46, LOCAL = 30 };

	if (left < HEAD || memcmp(p, "PK\1\2", 4) != 0)
		return bad(r, "a zip archive with a damaged directory");
	const uint64_t flags = number(p + 8, 2), method = number(p + 10, 2),
	               n_name = number(p + 28, 2), n_extra = number(p + 30, 2);
	uint64_t packed = number(p + 20, 4), whole = number(p + 24, 4), at = number(p + 42, 4);
	*used = HEAD + n_name + n_extra + number(p + 32, 2);
	if (*used > left || memchr(p + HEAD, 0, (size_t)n_name))
		return bad(r, "a zip archive with a damaged directory");
	const char *name = arena_strndup(r->a, (const char *)p + HEAD, (size_t)n_name);
	long_sizes(p + HEAD + n_name, (size_t)n_extra, &whole, &packed, &at);
	if (method != 0 || packed != whole || flags & 1)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: its entry %s is %s, which torch.save does not do", r->file,
		                 name_text(name, strlen(name)).s,
		                 flags & 1 ? "encrypted" : "compressed");
	if (r->size < LOCAL || at > r->size - LOCAL || memcmp(r->data + at, "PK\3\4", 4) != 0)
		return bad(r, "a zip archive with an entry that is not at its directory's offset");
	const uint64_t start =
	    at + LOCAL + number(r->data + at + 26, 2) + number(r->data + at + 28, 2);
	if (start > r->size || whole > r->size - start)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: its entry %s ends after the end of the file: it is "
		                 "truncated or damaged, download it again",
		                 r->file, name_text(name, strlen(name)).s);
	r->name[i] = (NameEntry){ name, i };
	r->part[i] = (ZipEntry){ r->data + start, whole };
	return LLMC_OK;
}

/* Keep the entries below the prefix, and remove the prefix from their names, so that lookups need
 * not allocate: a pickle may have millions of tensors with long keys. The order of entries
 * stays. */
static void
only_storages(ZipReader *r)
{
	const size_t len = strlen(r->prefix);
	size_t n = 0;

	for (size_t i = 0; i < r->n_part; i++)
		if (strncmp(r->name[i].name, r->prefix, len) == 0)
			r->name[n++] = (NameEntry){ r->name[i].name + len, r->name[i].at };
	r->n_part = n;
}

static llmc_status
open_zip(ZipReader *r, const PickleValue **out)
{
	uint64_t from = 0, bytes = 0, n = 0, used = 0;
	const char *pickle = NULL;
	size_t at = 0;

	TRY(directory(r, &from, &bytes, &n));
	r->n_part = (size_t)n;
	r->name = NEW(r->a, NameEntry, r->n_part + 1);
	r->part = NEW(r->a, ZipEntry, r->n_part + 1);
	for (size_t i = 0; i < r->n_part; i++) {
		TRY(entry(r, r->data + from, bytes, i, &used));
		from += used;
		bytes -= used;
	}
	const NameEntry *twice = names_sort(r->name, r->n_part);
	if (twice)
		return error_set(r->err, LLMC_E_INPUT, "%s: duplicate entry %s", r->file,
		                 name_text(twice->name, strlen(twice->name)).s);
	for (size_t i = 0; i < r->n_part; i++) {
		if (ends_with(r->name[i].name, "/constants.pkl"))
			return error_set(r->err, LLMC_E_INPUT,
			                 "%s: a TorchScript program, not a checkpoint of weights",
			                 r->file);
		if (!ends_with(r->name[i].name, "/data.pkl"))
			continue;
		if (pickle)
			return error_set(r->err, LLMC_E_INPUT,
			                 "%s: a zip archive with several data.pkl, so torch.save "
			                 "did not write it",
			                 r->file);
		pickle = r->name[i].name;
	}
	if (!pickle)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: a zip archive without data.pkl, so torch.save did not "
		                 "write it",
		                 r->file);
	const char *folder = arena_strndup(r->a, pickle, strlen(pickle) - strlen("data.pkl"));
	const ZipEntry *order = part_find(r, arena_printf(r->a, "%sbyteorder", folder)),
	               *p = part_find(r, pickle);
	if (order && (order->bytes != 6 || memcmp(order->data, "little", 6) != 0))
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: its numbers are big endian, which llmc does not read",
		                 r->file);
	r->prefix = arena_printf(r->a, "%sdata/", folder);
	only_storages(r);
	return pickle_read(r->a, p->data, (size_t)p->bytes, &at, r->file, out, NULL, r->err);
}

/* ---- the older format ---- */
/* Order: magic, version, machine information, the dict, the storage keys, then the element count
 * and elements of each storage. Element sizes are only in the dict's storages. */
static llmc_status
open_old(ZipReader *r, const PickleValue **out)
{
	const PickleValue *version, *facts, *keys, *little;
	size_t at = sizeof old_start;
	PickleStorages all = { 0 };

	TRY(pickle_read(r->a, r->data, r->size, &at, r->file, &version, NULL, r->err));
	TRY(pickle_read(r->a, r->data, r->size, &at, r->file, &facts, NULL, r->err));
	TRY(pickle_read(r->a, r->data, r->size, &at, r->file, out, &all, r->err));
	TRY(pickle_read(r->a, r->data, r->size, &at, r->file, &keys, NULL, r->err));
	little = pickle_get(facts, "little_endian");
	if (little && little->kind == PICKLE_INT && !little->num)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: its numbers are big endian, which llmc does not read",
		                 r->file);
	if (version->kind != PICKLE_INT || version->num != 1001 || keys->kind != PICKLE_LIST)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: a format of torch.save that llmc does not support", r->file);
	NameEntry *of = NEW(r->a, NameEntry, all.n + 1);
	for (size_t i = 0; i < all.n; i++)
		of[i] = (NameEntry){ all.item[i]->key, i };
	names_sort(of, all.n); /* tensors share storages */
	r->n_part = keys->n;
	r->name = NEW(r->a, NameEntry, r->n_part + 1);
	r->part = NEW(r->a, ZipEntry, r->n_part + 1);
	for (size_t i = 0; i < keys->n; i++) {
		const char *key = keys->item[i]->kind == PICKLE_STR ? keys->item[i]->str : "";
		const NameEntry *e = names_find(of, all.n, key);
		int64_t bytes;
		if (!e)
			return error_set(r->err, LLMC_E_INPUT,
			                 "%s: its list of storages does not match its tensors",
			                 r->file);
		if (r->size - at < 8)
			return bad(r, "the file ends within its elements");
		const PickleStorage *s = all.item[e->at];
		if ((int64_t)number(r->data + at, 8) != s->elems ||
		    __builtin_mul_overflow(s->elems, (int64_t)s->bytes, &bytes) ||
		    (uint64_t)bytes > r->size - at - 8)
			return bad(r, "the length of a storage does not match its tensors");
		at += 8;
		r->name[i] = (NameEntry){ key, i };
		r->part[i] = (ZipEntry){ r->data + at, (uint64_t)bytes };
		at += (size_t)bytes;
	}
	if (names_sort(r->name, r->n_part))
		return error_set(r->err, LLMC_E_INPUT, "%s: lists a storage twice", r->file);
	r->prefix = "";
	return LLMC_OK;
}

/* ---- tensors ---- */
static bool
in_order(const PickleTensor *t)
{
	int64_t step = 1;

	for (int i = t->n_dims - 1; i >= 0; i--) {
		if (t->dim[i] != 1 && t->stride[i] != step)
			return false;
		step *= t->dim[i];
	}
	return true;
}

/* Copies a non-contiguous view to the arena. Views that repeat elements could exceed the file size,
 * so copies are bounded. */
static llmc_status
copy(ZipReader *r, const PickleTensor *p, const uint8_t *from, TorchTensor *t)
{
	int64_t at[PICKLE_MAX_DIMS] = { 0 };

	r->copied += (uint64_t)t->bytes;
	if (r->copied > r->size + COPY_ROOM)
		return error_set(
		    r->err, LLMC_E_INPUT,
		    "%s: tensor %s is a view that repeats its elements; store it contiguous",
		    r->file, name_text(t->name, strlen(t->name)).s);
	uint8_t *to = NEW(r->a, uint8_t, t->bytes);
	t->data = to;
	t->copied = true;
	for (int64_t done = 0; done < t->bytes; done += p->bytes) {
		int64_t elem = 0;
		for (int d = 0; d < p->n_dims; d++)
			elem += at[d] * p->stride[d];
		memcpy(to + done, from + elem * p->bytes, (size_t)p->bytes);
		for (int d = p->n_dims - 1; d >= 0 && ++at[d] == p->dim[d]; d--)
			at[d] = 0;
	}
	return LLMC_OK;
}

static llmc_status
add_tensor(ZipReader *r, const char *name, const PickleTensor *p)
{
	const NameText text = name_text(name, strlen(name));
	const PickleStorage *s = p->storage;
	const ZipEntry *part = part_find(r, s->key);
	int64_t last = p->offset, n = 1, step, bytes;

	if (!part)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: the data of tensor %s (%s%s) is not in it", r->file, text.s,
		                 r->prefix, name_text(s->key, strlen(s->key)).s);
	if (__builtin_mul_overflow(s->elems, (int64_t)s->bytes, &bytes) ||
	    (uint64_t)bytes > part->bytes)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: the data of tensor %s holds %" PRIu64
		                 " bytes; %lld elements of %d are expected",
		                 r->file, text.s, part->bytes, (long long)s->elems, s->bytes);
	r->tensor = arena_grow(r->a, r->tensor, &r->cap_tensor, r->n_tensor + 1, sizeof *r->tensor);
	TorchTensor *t = &r->tensor[r->n_tensor++];
	*t = (TorchTensor){ .name = name, .type = p->type, .n_dims = p->n_dims };
	for (int d = 0; d < 8; d++)
		t->dim[d] = d < p->n_dims ? p->dim[d] : 1;
	for (int d = 0; d < p->n_dims; d++) {
		if (__builtin_mul_overflow(n, p->dim[d], &n) ||
		    (p->dim[d] > 0 && (__builtin_mul_overflow(p->dim[d] - 1, p->stride[d], &step) ||
		                       __builtin_add_overflow(last, step, &last))))
			return error_set(r->err, LLMC_E_INPUT,
			                 "%s: tensor %s: its shape is too large to count", r->file,
			                 text.s);
	}
	if (__builtin_mul_overflow(n, (int64_t)p->bytes, &t->bytes))
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: tensor %s: its shape is too large to count", r->file, text.s);
	t->data = part->data;
	if (n == 0)
		return LLMC_OK;
	if (last >= bytes / p->bytes)
		return error_set(r->err, LLMC_E_INPUT,
		                 "%s: tensor %s reaches beyond its data: element %lld of %lld",
		                 r->file, text.s, (long long)last, (long long)(bytes / p->bytes));
	const uint8_t *from = part->data + p->offset * p->bytes;
	t->data = from;
	return in_order(p) ? LLMC_OK : copy(r, p, from, t);
}

static bool
has_tensors(const PickleValue *v)
{
	for (size_t i = 1; v->kind == PICKLE_DICT && i < v->n; i += 2)
		if (v->item[i]->kind == PICKLE_TENSOR)
			return true;
	return false;
}

llmc_status
torch_read(Arena *a, const uint8_t *data, size_t size, const char *file, TorchTensor **out,
           size_t *n, llmc_error *err)
{
	static const char *const inner[] = { "state_dict", "model" };
	ZipReader r = { .a = a, .data = data, .size = size, .file = file, .err = err };
	const PickleValue *root;

	TRY(data[0] == 'P' ? open_zip(&r, &root) : open_old(&r, &root));
	for (size_t i = 0; i < 2 && !has_tensors(root); i++) {
		const PickleValue *v = pickle_get(root, inner[i]);
		if (v)
			root = v;
	}
	if (!has_tensors(root))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: holds no dict of tensors, so it is not a checkpoint of "
		                 "weights",
		                 file);
	for (size_t i = 0; i < root->n; i += 2)
		if (root->item[i + 1]->kind == PICKLE_TENSOR) {
			if (root->item[i]->kind != PICKLE_STR)
				return error_set(err, LLMC_E_INPUT,
				                 "%s: holds a tensor whose name is not a string",
				                 file);
			TRY(add_tensor(&r, root->item[i]->str, root->item[i + 1]->tensor));
		}
	*out = r.tensor;
	*n = r.n_tensor;
	return LLMC_OK;
}

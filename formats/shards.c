#include "formats/shards.h"

#include <stdlib.h>
#include <string.h>

#include "formats/name_table.h"

static int
by_name(const void *x, const void *y)
{
	const StTensor *a = x, *b = y;
	int c = strcmp(a->name, b->name);

	/* all file numbers have the same number of digits, so names are in numerical order */
	return c ? c : strcmp(a->file, b->file);
}

static bool
same_tensor(const StTensor *a, const StTensor *b)
{
	return a->n_dims == b->n_dims && strcmp(a->dtype_name, b->dtype_name) == 0 &&
	       memcmp(a->dim, b->dim, sizeof a->dim) == 0 && a->bytes == b->bytes;
}

/* Concatenates t[0 .. k) along rows or along columns */
static llmc_status
join(Arena *a, StTensor *t, int k, bool rows, llmc_error *err)
{
	const int64_t part = t->bytes, row = t->dim[0] > 0 ? part / t->dim[0] : 0;
	int64_t bytes;

	if (__builtin_mul_overflow(part, (int64_t)k, &bytes) || bytes < 0)
		return error_set(err, LLMC_E_INPUT, "%s: tensor %s is too large to count", t->file,
		                 name_text(t->name, strlen(t->name)).s);
	char *data = malloc((size_t)bytes + 1);
	if (!data)
		return error_set(err, LLMC_E_MEMORY,
		                 "%s: out of memory for the shards of tensor %s", t->file,
		                 name_text(t->name, strlen(t->name)).s);
	arena_defer(a, free, data);
	for (int i = 0; i < k; i++) {
		const char *from = t[i].data;
		if (rows)
			memcpy(data + i * part, from, (size_t)part);
		for (int64_t r = 0; !rows && r < t->dim[0]; r++)
			memcpy(data + (r * k + i) * row, from + r * row, (size_t)row);
	}
	t->dim[rows ? 0 : 1] *= k;
	t->bytes = bytes;
	t->data = data;
	t->copied = true;
	return LLMC_OK;
}

llmc_status
shards_join(Arena *a, StTensor *t, size_t *n, int n_shard, int64_t hidden, llmc_error *err)
{
	size_t kept = 0;

	if (*n)
		qsort(t, *n, sizeof *t, by_name);
	for (size_t i = 0, k; i < *n; i += k) {
		const NameText name = name_text(t[i].name, strlen(t[i].name));
		for (k = 1; i + k < *n && strcmp(t[i].name, t[i + k].name) == 0; k++)
			if (!same_tensor(&t[i], &t[i + k]))
				return error_set(err, LLMC_E_INPUT,
				                 "tensor %s: its parts in shards %s and %s "
				                 "differ in size or type",
				                 name.s, t[i].file, t[i + k].file);
		if (k != (size_t)n_shard)
			return error_set(err, LLMC_E_INPUT,
			                 "tensor %s is in %zu of %d shards (%s): one is missing, "
			                 "or the folder holds files of several models",
			                 name.s, k, n_shard, t[i].file);
		if (t[i].n_dims > 2 || !t[i].data)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s has %d dimensions: only shards of "
			                 "matrices and vectors can be joined",
			                 t[i].file, name.s, t[i].n_dims);
		if (t[i].n_dims == 2 && n_shard > 1)
			TRY(join(a, &t[i], n_shard, t[i].dim[1] == hidden, err));
		for (size_t j = 1; t[i].n_dims < 2 && j < k; j++)
			if (memcmp(t[i].data, t[i + j].data, (size_t)t[i].bytes) != 0)
				return error_set(
				    err, LLMC_E_INPUT,
				    "tensor %s: the shards %s and %s hold different values", name.s,
				    t[i].file, t[i + j].file);
		t[kept++] = t[i];
	}
	*n = kept;
	return LLMC_OK;
}

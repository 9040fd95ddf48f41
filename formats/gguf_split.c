/* GGUF files in parts, as llama-gguf-split and converters write them: NAME-00001-of-0000N.gguf,
 * 00002, ... Each part is a complete GGUF with the keys split.no (from 0), split.count and
 * split.tensors.count (over all parts). The first part has the model's keys, the others only
 * tensors. Only these numbers show that a part belongs to the model, so they must match exactly. */
#include "formats/gguf_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/model_file.h"
#include "base/text.h"

enum { SUFFIX = 20, MAX_PARTS = 99999 }; /* "-00001-of-00003.gguf" */

typedef struct SplitInfo {
	int64_t no, count, tensors;
} SplitInfo;

static bool
split_of(const Gguf *g, SplitInfo *out)
{
	*out = (SplitInfo){ 0, 1, -1 };
	gguf_int(g, "split.no", &out->no);
	gguf_int(g, "split.tensors.count", &out->tensors);
	return gguf_int(g, "split.count", &out->count) && out->count > 1;
}

/* Parses the numbers 1 and 3 in NAME-00001-of-00003.gguf; false: the name has another form */
static bool
numbers_of(const char *path, int *no, int *count)
{
	return ends_with(path, ".gguf") &&
	       model_file_part(path, strlen(".gguf"), no, count) + strlen(".gguf") < strlen(path) &&
	       *no > 0 && *count > 0;
}

/* Returns the name of part `no`, from 0 */
static const char *
part_path(Arena *a, const char *path, int64_t no, int64_t count)
{
	return arena_printf(a, "%.*s-%05d-of-%05d.gguf", (int)(strlen(path) - SUFFIX), path,
	                    (int)no + 1, (int)count);
}

static llmc_status
check_first(const Gguf *g, const char *path, const SplitInfo *s, llmc_error *err)
{
	int no, count;

	if (s->count > MAX_PARTS)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: split.count is %" PRId64 "; part names have five digits",
		                 path, s->count);
	if (!numbers_of(path, &no, &count))
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: one of %" PRId64
		    " parts of a split GGUF, but its name does not end in -00001-of-%05d.gguf, "
		    "from which the other parts are found: rename the parts as llama-gguf-split "
		    "named them",
		    path, s->count, (int)s->count);
	if (count != s->count)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: its name has %d parts, its key split.count is %" PRId64, path,
		                 count, s->count);
	if (no != 1)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: part %d of %d of a split GGUF: name the first one, "
		                 "%.*s-00001-of-%05d.gguf",
		                 path, no, count, (int)(strlen(path) - SUFFIX), path, count);
	if (s->no != 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: its name has part 1, its key split.no has part %" PRId64
		                 ": parts were renamed",
		                 path, s->no + 1);
	if (s->tensors < 0)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: one of %" PRId64
		    " parts without split.tensors.count, so missing tensors cannot be detected",
		    path, s->count);
	if (gguf_n_tensors(g) > (uint64_t)s->tensors)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: holds %zu tensors of the %" PRId64 " of all parts together",
		                 path, gguf_n_tensors(g), s->tensors);
	return LLMC_OK;
}

/* Checks that `part` is part i of the split file whose first part is `g` */
static llmc_status
check_part(const Gguf *g, const Gguf *part, int64_t i, const SplitInfo *first, llmc_error *err)
{
	static const char *const same[] = { "general.architecture", "general.name" };
	SplitInfo s;

	if (!split_of(part, &s))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: not part of a split GGUF (it has no split.count), but %s "
		                 "has a split.count of %" PRId64,
		                 part->file, g->file, first->count);
	if (s.count != first->count)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: one of %" PRId64 " parts, %s of %" PRId64
		                 ": they belong to different files",
		                 part->file, s.count, g->file, first->count);
	if (s.no != i)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: its name has part %" PRId64
		                 ", its key split.no has part %" PRId64 ": parts were renamed",
		                 part->file, i + 1, s.no + 1);
	if (s.tensors != first->tensors)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: its split GGUF has %" PRId64
		                 " tensors in all parts, that of %s has %" PRId64
		                 ": they belong to different models",
		                 part->file, s.tensors, g->file, first->tensors);
	for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
		GgufStr a, b;
		if (gguf_str(part, same[k], &b) &&
		    (!gguf_str(g, same[k], &a) || a.n != b.n || memcmp(a.s, b.s, a.n)))
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: its %s is '%s', not that of %s: they belong to different models",
			    part->file, same[k], name_text(b.s, b.n).s, g->file);
	}
	return LLMC_OK;
}

/* Collects the tensors of all parts in one list */
static llmc_status
join(Gguf *g, int64_t tensors, llmc_error *err)
{
	size_t n = g->n_tensor;

	for (size_t i = 0; i < g->n_part; i++)
		n += g->part[i]->n_tensor;
	if (n != (uint64_t)tensors)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: its parts hold %zu tensors, its key split.tensors.count is %" PRId64,
		    g->file, n, tensors);
	GgufTensor *all = NEW(&g->arena, GgufTensor, n);
	NameEntry *name = NEW(&g->arena, NameEntry, n);
	size_t at = 0;
	for (size_t i = 0; i <= g->n_part; i++) {
		const Gguf *from = i ? g->part[i - 1] : g;
		for (size_t k = 0; k < from->n_tensor; k++)
			all[at++] = from->tensor[k];
	}
	for (size_t i = 0; i < n; i++)
		name[i] = (NameEntry){ all[i].name, i };
	const NameEntry *twice = names_sort(name, n);
	if (twice)
		return error_set(
		    err, LLMC_E_INPUT, "%s: duplicate tensor %s, the second time in %s", g->file,
		    name_text(twice->name, strlen(twice->name)).s, all[twice->at].file);
	g->tensor = all;
	g->tensor_name = name;
	g->n_tensor = n;
	return LLMC_OK;
}

static llmc_status
open_parts(Gguf *g, const char *path, const SplitInfo *s, llmc_error *err)
{
	if (setjmp(g->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory while reading the header",
		                 path);
	g->part = NEW(&g->arena, Gguf *, (size_t)s->count);
	for (int64_t i = 1; i < s->count; i++) {
		const char *name = part_path(&g->arena, path, i, s->count);
		if (!file_exists(name))
			return error_set(err, LLMC_E_INPUT,
			                 "%s: no such file: part %" PRId64 " of %" PRId64
			                 " of %s is missing",
			                 name, i + 1, s->count, path);
		TRY(gguf_open_one(name, &g->part[i - 1], err));
		g->n_part++;
		TRY(check_part(g, g->part[i - 1], i, s, err));
	}
	return join(g, s->tensors, err);
}

llmc_status
gguf_open(const char *path, Gguf **out, llmc_error *err)
{
	SplitInfo s;
	llmc_status status;

	TRY(gguf_open_one(path, out, err));
	if (!split_of(*out, &s))
		return gguf_finish(out, err);
	status = check_first(*out, path, &s, err);
	if (status == LLMC_OK)
		status = open_parts(*out, path, &s, err);
	if (status == LLMC_OK)
		return gguf_finish(out, err);
	gguf_close(*out);
	*out = NULL;
	return status;
}

size_t
gguf_n_parts(const Gguf *g)
{
	return g->n_part;
}

const char *
gguf_part_at(const Gguf *g, size_t i)
{
	return i < g->n_part ? g->part[i]->file : NULL;
}

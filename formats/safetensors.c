#include <jansson.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/flm.h"
#include "formats/name_table.h"
#include "formats/safetensors.h"
#include "formats/safetensors_internal.h"

static llmc_status
open_path(Safetensors *s, const char *path, llmc_error *err)
{
	if (file_is_dir(path)) {
		TRY(st_open_folder(s, path, err));
		return st_open_modules(s, path, err);
	}
	if (ends_with(path, ".json"))
		return st_open_index(s, path, err);
	return st_map_file(s, path, err);
}

static llmc_status
read_any(Safetensors *s, const void *data, size_t size, const char *name, llmc_error *err)
{
	if (setjmp(s->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory while reading the header",
		                 name);
	if (data)
		TRY(st_read_file(s, data, size, name, err));
	else
		TRY(open_path(s, name, err));
	if (!s->name) /* names from an index are sorted already */
		TRY(st_index_names(s, err));
	return data || flm_name(name)
	           ? LLMC_OK
	           : st_make_matrices(s,
	                              file_is_dir(name) ? arena_printf(&s->arena, "%s/", name)
	                                                : st_folder_of(s, name),
	                              err);
}

/* Opens data in memory; data NULL: opens the path `name` */
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

static void
close_held(void *s)
{
	safetensors_close(s);
}

void
safetensors_hold(Arena *a, Safetensors *s)
{
	if (s)
		arena_defer(a, close_held, s);
}

const char *
safetensors_quant_format(const Safetensors *s)
{
	return s->quant_formats ? quant_formats_method(s->quant_formats) : NULL;
}

const char *
safetensors_quant_activations(const Safetensors *s)
{
	return s->quant_formats ? quant_formats_activations(s->quant_formats) : NULL;
}

const char *
safetensors_quant_formats_known(const Safetensors *s)
{
	return s->quant_formats ? quant_formats_known(s->quant_formats) : NULL;
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

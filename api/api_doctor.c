/* llmc_doctor and llmc_bandwidth: describe and measure this machine. */
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "api/api.h"
#include "base/file.h"
#include "base/json.h"
#include "compiler/cost_model.h"
#include "runtime/device.h"

double
llmc_bandwidth(int n_threads, double seconds)
{
	return device_of(TARGET_CPU)->bandwidth(0, n_threads, seconds);
}

double
llmc_bandwidth_of(const llmc_model *m, int n_threads, double seconds)
{
	const Device *d = device_of(m->gpu >= 0 ? TARGET_CUDA : TARGET_CPU);

	return d->bandwidth(m->gpu, n_threads, seconds);
}

/* Add to each GPU its name in `llmc plan --gpu`. */
static void
name_gpus(json_t *cuda)
{
	size_t i;
	json_t *d;

	json_array_foreach (json_object_get(cuda, "devices"), i, d) {
		const char *name = json_string_value(json_object_get(d, "name"));
		const Gpu *g = name ? gpu_find(name) : NULL;
		if (g)
			json_object_set_new(d, "gpu", json_string(g->name));
	}
}

/* Return the device's own description; NULL if it has none. */
static json_t *
device_json(TargetKind kind)
{
	char *text = NULL;
	json_t *j = device_of(kind)->describe(&text, NULL) == LLMC_OK
	                ? json_parse(text, strlen(text), 0, NULL, NULL)
	                : NULL;

	free(text);
	return j;
}

/* Add the free bytes of the disk of a folder, or of its nearest parent that exists. */
static void
add_disk(json_t *cache, const char *dir)
{
	char path[PATH_MAX];
	struct statvfs fs;

	snprintf(path, sizeof path, "%s", dir);
	while (*path && statvfs(path, &fs) != 0) {
		char *slash = strrchr(path, '/');
		*(slash ? slash : path) = 0;
	}
	if (*path)
		json_object_set_new(
		    cache, "free_bytes",
		    json_integer((json_int_t)fs.f_bavail * (json_int_t)fs.f_frsize));
}

llmc_status
llmc_doctor(char **json_out, llmc_error *err)
{
	Strbuf dir = { 0 };

	*json_out = NULL;
	bool have_dir = file_cache_dir(&dir, NULL) == LLMC_OK;
	json_t *cpu = device_json(TARGET_CPU), *cuda = device_json(TARGET_CUDA);
	name_gpus(cuda);
	FreeMemory memory = device_of(TARGET_CPU)->free_memory(0);
	json_t *j =
	    json_pack("{s:s, s:{s:s, s:b}, s:o*, s:{s:I, s:I, s:s}}", "version", LLMC_VERSION,
	              "cache", "path", strbuf_str(&dir), "known", have_dir, "cuda", cuda, "memory",
	              "total_bytes", (json_int_t)memory.total, "free_bytes",
	              (json_int_t)memory.bytes, "limited_by", memory.limited_by);
	add_disk(json_object_get(j, "cache"), strbuf_str(&dir));
	strbuf_release(&dir);
	if (j && cpu && json_object_update(j, cpu) == 0)
		*json_out = json_dumps(j, JSON_INDENT(2));
	json_decref(cpu);
	json_decref(j);
	return *json_out ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
}

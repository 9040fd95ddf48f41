/* llmc_doctor and llmc_bandwidth: what this machine has. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/file.h"
#include "compiler/cost_model.h"
#include "runtime/cpu/cpu.h"

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

static void
processor_name(char *out, size_t cap)
{
	char line[512];
	FILE *f = fopen("/proc/cpuinfo", "re");

	snprintf(out, cap, "unknown");
	while (f && fgets(line, sizeof line, f)) {
		char *colon = strchr(line, ':');
		if (strncmp(line, "model name", 10) == 0 && colon) {
			colon[1 + strcspn(colon + 1, "\n")] = 0;
			snprintf(out, cap, "%s", colon + 2);
			break;
		}
	}
	if (f)
		fclose(f);
}

/* Each GPU with the name that `llmc plan --gpu` has for it. */
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

llmc_status
llmc_doctor(char **json_out, llmc_error *err)
{
	char name[512], threads[512], amx[160], cc[512] = "", cc_version[512] = "";
	llmc_error why = { 0 };
	Strbuf dir = { 0 };

	*json_out = NULL;
	processor_name(name, sizeof name);
	topology_describe(threads, sizeof threads);
	bool tiles = isa_lacks("cpu-amx", amx, sizeof amx) == 0;
	llmc_status have_cc = cc_find(cc, sizeof cc, cc_version, sizeof cc_version, &why);
	bool have_dir = file_cache_dir(&dir, NULL) == LLMC_OK;
	char *gpus = NULL;
	json_t *cuda = device_of(TARGET_CUDA)->describe(&gpus, NULL) == LLMC_OK
	                   ? json_loads(gpus, 0, NULL)
	                   : NULL;
	free(gpus);
	name_gpus(cuda);
	json_t *j = json_pack("{s:s, s:{s:s, s:s, s:i, s:s, s:b, s:b, s:b, s:{s:b, s:s}}, s:{s:b, "
	                      "s:s, s:s}, s:{s:s, s:b}, s:o*}",
	                      "version", LLMC_VERSION, "processor", "name", name, "best_target",
	                      isa_best(), "threads", topology_threads(), "topology", threads,
	                      "runs_v3", isa_runs("cpu-v3"), "runs_v4", isa_runs("cpu-v4"),
	                      "runs_vnni", isa_runs("cpu-vnni"), "amx", "found", tiles, "text",
	                      tiles ? "tiles of int8 and bf16, granted by the system" : amx,
	                      "compiler", "found", have_cc == LLMC_OK, "path", cc, "text",
	                      have_cc == LLMC_OK ? cc_version : why.text, "cache", "path",
	                      strbuf_str(&dir), "known", have_dir, "cuda", cuda);
	strbuf_release(&dir);
	if (j) {
		*json_out = json_dumps(j, JSON_INDENT(2));
		json_decref(j);
	}
	return *json_out ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "out of memory");
}

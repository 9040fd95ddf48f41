/* llmc doctor: reports hardware and software of this machine, and how to install missing parts. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/doctor_models.h"

#define NO_COMPILER "install one (apt install gcc libc6-dev), or use artifacts made with --aot"

/* Print one line; red: missing and required, yellow: missing but optional. */
static void
row(bool found, bool needed, const char *name, const char *fmt, ...)
{
	static const char *const colour[] = { "\033[32m", "\033[33m", "\033[31m" };
	bool colours = colour_on(stdout);
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	printf("%s%-8s%s %-11s %.*s\n", colours ? colour[found ? 0 : 1 + needed] : "",
	       found ? "found" : "missing", colours ? "\033[0m" : "", name,
	       (int)strcspn(text, "\n"), text);
}

static bool
found(const json_t *o)
{
	return json_is_true(json_object_get(o, "found"));
}

/* Print the path of a CUDA library, or a sentence on how to install it. */
static void
library(const json_t *cuda, const char *key, const char *name)
{
	const json_t *o = json_object_get(cuda, key);
	const char *path = json_text_of(o, "path"), *text = json_text_of(o, "text");

	row(found(o), false, name, found(o) && strcmp(path, text) ? "%s (%s)" : "%s", text, path);
}

static void
table(const json_t *all)
{
	const json_t *cpu = json_object_get(all, "processor"),
	             *cc = json_object_get(all, "compiler"), *cache = json_object_get(all, "cache");
	const json_t *prebuilt = json_object_get(all, "prebuilt"),
	             *cuda = json_object_get(all, "cuda"),
	             *driver = json_object_get(cuda, "driver"), *gpu;
	size_t i;
	char name[32];

	printf("llmc %s\n", json_text_of(all, "version"));
	row(true, true, "processor", "%s: %s; runs kernels for %s", json_text_of(cpu, "name"),
	    json_text_of(cpu, "topology"), json_text_of(cpu, "best_target"));
	const json_t *amx = json_object_get(cpu, "amx");
	if (amx)
		row(found(amx), false, "AMX", "%s", json_text_of(amx, "text"));
	const json_t *features = json_object_get(cpu, "features");
	const char *has = json_text_of(features, "has"), *lacks = json_text_of(features, "lacks");
	row(true, true, "features", "%s%s%s", *has ? has : "none that kernels use",
	    *lacks ? "; lacks " : "", lacks);
	const json_t *memory = json_object_get(all, "memory"),
	             *disk = json_object_get(cache, "free_bytes");
	char total[32], unused[32];
	const double bytes = json_number_value(json_object_get(memory, "total_bytes"));
	char sizes[128] = "size unknown without /proc";
	if (bytes > 0)
		snprintf(
		    sizes, sizeof sizes, "%s, %s free (%s)", human_bytes(bytes, total),
		    human_bytes(json_number_value(json_object_get(memory, "free_bytes")), unused),
		    json_text_of(memory, "limited_by"));
	row(true, true, "memory", "%s; reads %.1f GB/s with all threads, %.1f GB/s with one", sizes,
	    llmc_bandwidth(0, 0.3) / 1e9, llmc_bandwidth(1, 0.3) / 1e9);
	if (found(cc))
		row(true, true, "compiler", "%s: %s", json_text_of(cc, "path"),
		    json_text_of(cc, "text"));
	else
		row(false, !found(prebuilt), "compiler", NO_COMPILER);
	if (found(prebuilt))
		row(true, true, "prebuilt", "%s: %lld kernels of common models",
		    json_text_of(prebuilt, "path"),
		    (long long)json_integer_value(json_object_get(prebuilt, "kernels")));
	bool known = json_is_true(json_object_get(cache, "known"));
	if (known && disk)
		row(true, false, "cache", "%s, %s free on its disk", json_text_of(cache, "path"),
		    human_bytes(json_number_value(disk), total));
	else
		row(known, false, "cache", "%s",
		    known ? json_text_of(cache, "path")
		          : "no cache folder for kernels and packed weights: set LLMC_CACHE or "
		            "HOME");
	if (!cuda)
		return;
	row(found(driver), false, "GPU driver", "%s", json_text_of(driver, "text"));
	json_array_foreach (json_object_get(cuda, "devices"), i, gpu) {
		bool runs = json_is_true(json_object_get(gpu, "supported"));
		snprintf(name, sizeof name, "GPU %zu", i);
		if (runs)
			row(true, false, name, "%s, %.0f GB; runs kernels for %s",
			    json_text_of(gpu, "name"),
			    (double)json_integer_value(json_object_get(gpu, "memory_bytes")) / 1e9,
			    json_text_of(gpu, "target"));
		else
			row(false, false, name, "%s %s", json_text_of(gpu, "name"),
			    json_object_get(gpu, "text") ? json_text_of(gpu, "text")
			                                 : "is not supported: no kernels for it");
	}
	library(cuda, "nvrtc", "NVRTC");
	library(cuda, "cublaslt", "cuBLASLt");
	library(cuda, "nccl", "NCCL");
}

static int
doctor(int argc, char **argv)
{
	bool json = false, models = false;
	const char *args[1];
	const Opt opt[] = {
		{ OPT_FLAG, 0, "models", NULL, &models,
		  "list the models of configs/ with the context that fits in free memory" },
		{ OPT_FLAG, 0, "json", NULL, &json, "print one JSON document and nothing else" },
	};
	llmc_error err = { 0 };
	char *text;

	OPT_PARSE(&cmd_doctor, opt, argc, argv, args);
	if (llmc_doctor(&text, &err) != LLMC_OK)
		return fail_with(&err);
	json_t *all = json_parse(text, strlen(text), 0, NULL, NULL);
	json_t *list = models ? doctor_models() : NULL;
	if (models && !list)
		complain("cannot plan the models of configs/: set TMPDIR to a folder that can be "
		         "written");
	if (json && list && json_object_set(all, "models", list) == 0) {
		char *more = json_dumps(all, JSON_COMPACT);
		printf("%s\n", more ? more : text);
		free(more);
	} else if (json) {
		printf("%s\n", text);
	} else {
		table(all);
	}
	if (list && !json)
		doctor_models_print(list);
	json_decref(list);
	const bool cc = found(json_object_get(all, "compiler")),
	           prebuilt = found(json_object_get(all, "prebuilt"));
	if (!json)
		printf("%s\n",
		       cc ? "ready: models run on this machine"
		       : prebuilt
		           ? "ready for models with prebuilt kernels; others need a C "
		             "compiler, a GPU, --device ref or an artifact with built kernels"
		           : "not ready: without a C compiler only --device ref, GPUs and "
		             "artifacts with built kernels run");
	json_decref(all);
	llmc_free(text);
	if (!cc && !prebuilt && json)
		complain("no C compiler: " NO_COMPILER);
	return cc || prebuilt ? 0 : EXIT_MACHINE;
}

const Command cmd_doctor = {
	"doctor",
	"[--models] [--json]",
	"check processor, GPUs, compiler and libraries, and report what to install",
	"  llmc doctor\n"
	"  llmc doctor --models\n",
	doctor,
};

/* From whatever a user names to a Spec: YAML, generated folder, Hugging Face folder, GGUF. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"

static bool
has_file(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof path, "%s/%s", dir, name);

	return n > 0 && (size_t)n < sizeof path && file_exists(path);
}

static bool
ends_with(const char *s, const char *tail)
{
	size_t n = strlen(s), k = strlen(tail);

	return n >= k && strcmp(s + n - k, tail) == 0;
}

llmc_status
source_kind(const char *path, SourceKind *kind, llmc_error *err)
{
	if (!path || !*path)
		return error_set(err, LLMC_E_INPUT, "no model given: name a YAML file, a generated folder, a Hugging Face folder or a GGUF file");
	if (!file_exists(path))
		return error_set(err, LLMC_E_IO, "%s: no such file or folder", path);
	if (file_is_dir(path)) {
		if (has_file(path, "config.json"))
			*kind = SOURCE_HF;
		else if (has_file(path, "model.yaml"))
			*kind = SOURCE_ARTIFACT;
		else
			return error_set(err, LLMC_E_INPUT, "%s: holds neither config.json (a Hugging Face folder) nor model.yaml (an artifact of llmc compile)", path);
		return LLMC_OK;
	}
	if (ends_with(path, ".yaml") || ends_with(path, ".yml")) {
		*kind = SOURCE_YAML;
		return LLMC_OK;
	}
	FileMap m;
	TRY(file_map(path, &m, err));
	bool gguf = m.size >= 4 && memcmp(m.data, "GGUF", 4) == 0;
	file_unmap(&m);
	if (gguf) {
		*kind = SOURCE_GGUF;
		return LLMC_OK;
	}
	if (ends_with(path, ".safetensors"))
		return error_set(err, LLMC_E_INPUT, "%s: weights alone say nothing of the model; name the folder that holds its config.json", path);
	if (ends_with(path, ".gguf"))
		return error_set(err, LLMC_E_INPUT, "%s: does not begin with the GGUF magic", path);
	return error_set(err, LLMC_E_INPUT, "%s: neither a YAML description (.yaml) nor a GGUF file", path);
}

/* Overrides with checkpoint=gguf or hf in front when the weights given tell which names apply. */
static const char *const *
set_with_checkpoint(const char *const *set, const char *weights, Arena *arena)
{
	size_t n = 0;

	while (set && set[n])
		n++;
	const char **all = NEW(arena, const char *, n + 3);
	size_t k = 0;
	if (weights) {
		SourceKind kind;
		bool gguf = !file_is_dir(weights) && source_kind(weights, &kind, NULL) == LLMC_OK && kind == SOURCE_GGUF;
		all[k++] = gguf ? "checkpoint=gguf" : "checkpoint=hf";
		all[k++] = arena_printf(arena, "weights=%s", weights);
	}
	for (size_t i = 0; i < n; i++)
		all[k++] = set[i];
	return all;
}

const Spec *
source_spec(const char *path, SourceKind kind, const char *const *set, const char *weights, Arena *arena,
            llmc_log_fn log, void *log_user, llmc_error *err)
{
	Diag d;
	const Spec *volatile spec = NULL;
	volatile int bug = 0;
	llmc_error import_error = { 0 };

	diag_init(&d, arena);
	if (setjmp(d.bug)) {
		bug = 1;
	} else if (kind == SOURCE_YAML || kind == SOURCE_ARTIFACT) {
		const char *file = kind == SOURCE_YAML ? path : arena_printf(arena, "%s/model.yaml", path);
		char real[PATH_MAX];
		if (weights && !realpath(weights, real)) {
			error_set(err, LLMC_E_IO, "%s: no such file or folder", weights);
			diag_release(&d);
			return NULL;
		}
		spec = spec_from_file(file, set_with_checkpoint(set, weights ? real : NULL, arena), &d, arena);
	} else {
		char *yaml = import_yaml(path, &d, arena, &import_error);
		if (yaml)
			spec = spec_from_text(arena_printf(arena, "%s (imported)", path), yaml, strlen(yaml), set, &d, arena);
	}
	if (!spec || bug) {
		if (d.text.len)
			error_set(err, bug ? LLMC_E_BUG : LLMC_E_INPUT, "%s", strbuf_str(&d.text));
		else if (import_error.code)
			*(err ? err : &import_error) = import_error;
		else
			error_set(err, LLMC_E_BUG, "%s: no description came of it", path);
		spec = NULL;
	} else {
		log_text(log, log_user, LLMC_LOG_WARNING, strbuf_str(&d.text));
	}
	diag_release(&d);
	return spec;
}

llmc_status
device_gpu(const char *device, int *gpu, llmc_error *err)
{
	*gpu = -1;
	if (!device || strncmp(device, "cuda", 4) != 0)
		return LLMC_OK;
	*gpu = 0;
	if (!device[4])
		return LLMC_OK;
	const char *p = device + 5;
	for (; device[4] == ':' && *p >= '0' && *p <= '9' && *gpu < 1000; p++)
		*gpu = *gpu * 10 + (*p - '0');
	if (device[4] != ':' || p == device + 5 || *p)
		return error_set(err, LLMC_E_INPUT, "device %s: expected cuda or cuda:N, N counted from 0", device);
	return LLMC_OK;
}

/* The plan's target for a GPU: what was asked for, or what the GPU at hand runs. */
static llmc_status
cuda_target_name(int gpu, const char *arch, bool must_run, char out[32], llmc_error *err)
{
	const Target *t = NULL;
	char list[128] = "";

	if (!arch) {
		llmc_status s = cuda_target(gpu, out, err);
		if (s == LLMC_OK || must_run)
			return s;
		arch = "sm_90a"; /* compiling needs no GPU */
		if (err)
			*err = (llmc_error){ 0 };
	}
	for (int i = 0; target_at(i); i++) {
		const Target *k = target_at(i);
		if (k->kind != TARGET_CUDA)
			continue;
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", k->isa);
		if (strcmp(k->isa, arch) == 0)
			t = k;
	}
	if (!t)
		return error_set(err, LLMC_E_INPUT, "arch %s: expected one of %s", arch, list);
	snprintf(out, 32, "%s", t->name);
	return LLMC_OK;
}

llmc_status
target_name(const char *device, const char *arch, bool must_run, char out[32], llmc_error *err)
{
	if (device && strcmp(device, "ref") == 0) {
		snprintf(out, 32, "ref");
		return LLMC_OK;
	}
	int gpu;
	if (device && strncmp(device, "cuda", 4) == 0) {
		TRY(device_gpu(device, &gpu, err));
		return cuda_target_name(gpu, arch, must_run, out, err);
	}
	if (device && strcmp(device, "cpu") != 0)
		return error_set(err, LLMC_E_INPUT, "device %s: expected cpu, cuda, cuda:0, ... or ref", device);
	if (!arch) {
		snprintf(out, 32, "%s", isa_best());
		return LLMC_OK;
	}
	if (strcmp(arch, "generic") && strcmp(arch, "v3") && strcmp(arch, "v4"))
		return error_set(err, LLMC_E_INPUT, "arch %s: expected generic, v3 or v4", arch);
	snprintf(out, 32, "cpu-%s", arch);
	if (must_run && !isa_runs(out))
		return error_set(err, LLMC_E_MISSING, "arch %s: this processor does not run x86-64-%s code; its best is %s", arch, arch, isa_best() + 4);
	return LLMC_OK;
}

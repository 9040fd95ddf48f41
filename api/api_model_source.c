/* Makes a Spec from the path that a user names: YAML, generated folder, Hugging Face folder or
 * GGUF. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/text.h"
#include "formats/flm.h"
#include "runtime/device.h"
#include "image/prepare.h"

static bool
has_file(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof path, "%s/%s", dir, name);

	return n > 0 && (size_t)n < sizeof path && file_exists(path);
}

json_t *
folder_json(const char *folder, const char *name, Arena *a)
{
	enum { MAX_BYTES = 16 << 20 };
	Strbuf *text = arena_strbuf(a);

	if (!has_file(folder, name) ||
	    file_read(arena_printf(a, "%s/%s", folder, name), MAX_BYTES, text, NULL) != LLMC_OK)
		return NULL;
	json_t *tree = json_read(a, strbuf_str(text), text->len, 0, NULL);
	strbuf_release(text);
	return tree;
}

/* Find the entry of the path's folder that is nearest to its last part, or a description of that
 * name in configs/. False: none. */
static bool
nearest_path(const char *path, char out[PATH_MAX])
{
	enum { MAX_ENTRIES = 4096 };
	const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
	char dir[PATH_MAX], *name[MAX_ENTRIES];
	size_t n = 0;
	const struct dirent *entry;

	snprintf(out, PATH_MAX, "configs/%.200s.yaml", path);
	if (!slash && file_exists(out))
		return true;
	snprintf(dir, sizeof dir, "%.*s", slash ? (int)(last - path) : 2, slash ? path : "./");
	DIR *d = opendir(dir);
	while (d && n < MAX_ENTRIES && (entry = readdir(d)))
		if (entry->d_name[0] != '.' && (name[n] = strdup(entry->d_name)))
			n++;
	if (d)
		closedir(d);
	const char *near = nearest_text(last, (const char *const *)name, n);
	int len = near ? snprintf(out, PATH_MAX, "%s%s", slash ? dir : "", near) : 0;
	for (size_t i = 0; i < n; i++)
		free(name[i]);
	return len > 0 && len < PATH_MAX;
}

/* True for ORG/REPO, the form of a model's name on Hugging Face. */
static bool
is_repo_name(const char *path)
{
	const char *slash = strchr(path, '/');
	char org[PATH_MAX];

	if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') || *path == '.' ||
	    *path == '~')
		return false;
	snprintf(org, sizeof org, "%.*s", (int)(slash - path), path);
	return !file_exists(org);
}

static llmc_status
no_such(const char *path, llmc_error *err)
{
	char near[PATH_MAX];

	if (llmc_is_model_name(path))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the name of a model, which llmc_open does not download; pass "
		                 "the path that `llmc pull %s` prints, or that of llmc_pull()",
		                 path, path);
	if (strstr(path, "://"))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: llmc downloads from https:// and http:// addresses only",
		                 path);
	if (nearest_path(path, near))
		return error_set(err, LLMC_E_INPUT, "%s: no such file or folder; did you mean %s?",
		                 path, near);
	if (is_repo_name(path))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: no such file or folder; did you mean hf:%s?", path, path);
	return error_set(err, LLMC_E_INPUT, "%s: no such file or folder", path);
}

llmc_status
source_kind(const char *path, SourceKind *kind, llmc_error *err)
{
	if (!path || !*path)
		return error_set(err, LLMC_E_INPUT,
		                 "no model given: name a YAML file, a generated folder, a Hugging "
		                 "Face folder, a GGUF file or a FastLLM model (.flm)");
	if (!file_exists(path))
		return no_such(path, err);
	if (file_is_dir(path)) {
		if (has_file(path, "config.json") ||
		    (has_file(path, "params.json") && has_file(path, "consolidated.00.pth")))
			*kind = SOURCE_HF;
		else if (has_file(path, "model.yaml"))
			*kind = SOURCE_ARTIFACT;
		else
			return error_set(err, LLMC_E_INPUT,
			                 "%s: holds neither config.json (a Hugging Face folder) "
			                 "nor model.yaml (an artifact of llmc compile)",
			                 path);
		return LLMC_OK;
	}
	if (ends_with(path, ".yaml") || ends_with(path, ".yml")) {
		*kind = SOURCE_YAML;
		return LLMC_OK;
	}
	if (flm_name(path)) {
		*kind = SOURCE_FLM;
		return LLMC_OK;
	}
	FileMap m;
	TRY(file_map(path, &m, err));
	bool gguf = m.size >= 4 && memcmp(m.data, "GGUF", 4) == 0;
	llmc_status status = file_check_content(path, m.data, m.size, err);
	file_unmap(&m);
	TRY(status);
	if (gguf) {
		*kind = SOURCE_GGUF;
		return LLMC_OK;
	}
	if (ends_with(path, ".safetensors"))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: weights alone do not describe the model; name the folder "
		                 "that holds its config.json",
		                 path);
	if (ends_with(path, ".gguf"))
		return error_set(err, LLMC_E_INPUT, "%s: does not begin with the GGUF magic", path);
	return error_set(
	    err, LLMC_E_INPUT,
	    "%s: neither a YAML description (.yaml) nor a GGUF file nor a FastLLM model (.flm)",
	    path);
}

char *
source_weights(const char *source, SourceKind kind, const Spec *spec, const llmc_options *opt,
               Arena *arena)
{
	if (opt->weights)
		return file_absolute(arena, opt->weights);
	if (kind != SOURCE_YAML && kind != SOURCE_ARTIFACT)
		return file_absolute(arena, source);
	if (!spec->weights)
		return NULL;
	if (spec->weights[0] == '/')
		return arena_strdup(arena, spec->weights);
	const char *dir = kind == SOURCE_ARTIFACT ? source : NULL, *slash = strrchr(source, '/');
	if (!dir)
		dir = slash ? arena_strndup(arena, source, (size_t)(slash - source)) : ".";
	return file_absolute(arena, arena_printf(arena, "%s/%s", dir, spec->weights));
}

/* Prepend checkpoint=gguf or checkpoint=hf to the overrides, if the weights show which tensor names
 * apply. */
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
		bool gguf = !file_is_dir(weights) && source_kind(weights, &kind, NULL) == LLMC_OK &&
		            kind == SOURCE_GGUF;
		all[k++] = gguf ? "checkpoint=gguf" : "checkpoint=hf";
		all[k++] = arena_printf(arena, "weights=%s", weights);
	}
	for (size_t i = 0; i < n; i++)
		all[k++] = set[i];
	return all;
}

static const Spec *
read_spec(const char *path, SourceKind kind, const char *const *set, const char *weights,
          const ImportOptions *o, Diag *d, llmc_error *err)
{
	Arena *a = d->perm;

	if (kind == SOURCE_YAML || kind == SOURCE_ARTIFACT) {
		const char *file =
		    kind == SOURCE_YAML ? path : arena_printf(a, "%s/model.yaml", path);
		char real[PATH_MAX];
		if (weights && !realpath(weights, real)) {
			error_set(err, LLMC_E_INPUT, "%s: no such file or folder", weights);
			return NULL;
		}
		return spec_from_file(file, set_with_checkpoint(set, weights ? real : NULL, a), d,
		                      a);
	}
	char *yaml = import_yaml(path, o, d, a, err);
	return yaml ? spec_from_text(arena_printf(a, "%s (imported)", path), yaml, strlen(yaml),
	                             set, d, a)
	            : NULL;
}

llmc_status
source_spec(const char *path, SourceKind kind, const char *const *set, const char *weights,
            const ImportOptions *o, Arena *arena, llmc_log_fn log, void *log_user, const Spec **out,
            llmc_error *err)
{
	Diag *const d = NEW(arena, Diag, 1);
	llmc_error why = { 0 };

	*out = NULL;
	diag_init(d, arena);
	if (!setjmp(d->bug))
		*out = read_spec(path, kind, set, weights, o, d, &why);
	if (!*out)
		return why.code ? error_set(err, why.code, "%s", why.text) : diag_error(d, err);
	log_text(log, log_user, LLMC_LOG_WARNING, strbuf_str(&d->text));
	return LLMC_OK;
}

/* Check that a vision tower can be used. E_INPUT: llmc cannot run the tower or has no such image
 * processor, or the rows of the tower have another size than those of the model. */
static llmc_status
supported(const char *tower, SourceKind kind, const Spec *model, Arena *arena, llmc_error *err)
{
	const ImportOptions o = { .tower = true, .allow_unknown_keys = true };
	llmc_image_processor *processor;
	const Spec *spec;

	TRY(llmc_image_processor_open(tower, &processor, err));
	const bool sections = image_processor_rules(processor)->sections;
	llmc_image_processor_close(processor);
	if (sections && !model->rope[0].section[0])
		return error_set(err, LLMC_E_INPUT,
		                 "%s is the tower of another model: its rows have a row and a "
		                 "column as positions, and the RoPE of %s has no sections",
		                 tower, model->name);
	TRY(source_spec(tower, kind, NULL, NULL, &o, arena, NULL, NULL, &spec, err));
	const int64_t out = spec->vision.out ? spec->vision.out : spec->hidden;
	if (out != model->hidden || spec->vision.n_deep != model->vision.n_deep)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the tower makes %d rows of %lld elements per token, %s takes "
		                 "%d of %lld",
		                 tower, 1 + spec->vision.n_deep, (long long)out, model->name,
		                 1 + model->vision.n_deep, (long long)model->hidden);
	return LLMC_OK;
}

const char *const *
set_with(const char *const *set, const char *one, Arena *arena)
{
	size_t n = 0;

	while (set && set[n])
		n++;
	const char **all = NEW(arena, const char *, n + 2);
	for (size_t i = 0; i < n; i++)
		all[i] = set[i];
	all[n] = one;
	return all;
}

llmc_status
model_add_images(llmc_model *m, const char *path, SourceKind kind, const llmc_options *opt,
                 llmc_error *err)
{
	const ImportOptions o = { .mmproj = m->mmproj,
		                  .allow_unknown_keys = opt->allow_unknown_keys };
	const Spec *spec;
	llmc_error why = { 0 };

	if (!(opt->images || m->mmproj) || (kind != SOURCE_HF && !m->mmproj) || opt->tower ||
	    m->spec->vision.token < 0)
		return LLMC_OK;
	if (m->spec->vision.part != VISION_NONE) /* an override requires images: report the error */
		return m->mmproj ? supported(m->mmproj, kind, m->spec, &m->arena, err) : LLMC_OK;
	const char *const *set = set_with(m->set, "vision.part=rows", &m->arena);
	llmc_status status =
	    supported(m->mmproj ? m->mmproj : path, kind, m->spec, &m->arena, &why);
	if (status == LLMC_OK)
		status = source_spec(path, kind, set, opt->weights, &o, &m->arena, NULL, NULL,
		                     &spec, &why);
	if (status == LLMC_OK) {
		m->spec = spec;
		m->set = set;
	} else if (status == LLMC_E_MEMORY || opt->mmproj) {
		return error_set(err, status, "%s", why.text);
	} else {
		if (m->mmproj) { /* the file of the tower may have set keys of the description */
			const ImportOptions text = { .allow_unknown_keys =
				                         opt->allow_unknown_keys };
			m->mmproj = NULL;
			TRY(source_spec(path, kind, m->set, opt->weights, &text, &m->arena, NULL,
			                NULL, &m->spec, err));
		}
		log_line(opt->log, opt->log_user, LLMC_LOG_WARNING,
		         "%s reads text only, not images: %s", m->spec->name, why.text);
	}
	return LLMC_OK;
}

llmc_status
device_gpus(const char *device, GpuList *out, llmc_error *err)
{
	*out = (GpuList){ 0 };
	if (!device || strncmp(device, "cuda", 4) != 0)
		return LLMC_OK;
	const char *p = device + 4;
	out->any = true;
	if (!*p)
		return LLMC_OK;
	for (char before = ':'; *p == before && out->n < PLAN_MAX_RANKS; before = ',') {
		const char *from = ++p;
		int number = 0;
		for (; *p >= '0' && *p <= '9' && number < 1000; p++)
			number = number * 10 + (*p - '0');
		if (p == from) {
			out->n = 0;
			break;
		}
		for (int i = 0; i < out->n; i++)
			if (out->number[i] == number)
				return error_set(
				    err, LLMC_E_INPUT,
				    "device %s: GPU %d is named twice; each rank needs its own GPU",
				    device, number);
		out->number[out->n++] = number;
	}
	if (*p || !out->n)
		return error_set(err, LLMC_E_INPUT,
		                 "device %s: expected cuda, cuda:N (from 0), or cuda:N,N,... with "
		                 "one GPU per rank",
		                 device);
	return LLMC_OK;
}

/* Return the target that --arch names; NULL: unknown */
static const Target *
target_of_arch(TargetKind kind, const char *arch, llmc_error *err)
{
	char list[128] = "";

	for (int i = 0; target_at(i); i++) {
		const Target *t = target_at(i);
		if (t->kind != kind)
			continue;
		const Target *next = target_at(i + 1);
		snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s",
		         !*list                       ? ""
		         : next && next->kind == kind ? ", "
		                                      : " or ",
		         t->isa);
		if (strcmp(t->isa, arch) == 0)
			return t;
	}
	error_set(err, LLMC_E_INPUT, "arch %s: expected %s", arch, list);
	return NULL;
}

/* Return the target of a plan for a GPU: the requested target, or that of GPU `gpu`. */
static llmc_status
cuda_target_name(int gpu, const char *arch, bool must_run, char out[32], llmc_error *err)
{
	if (!arch) {
		llmc_status s = device_of(TARGET_CUDA)->best_target(gpu, out, err);
		if (s == LLMC_OK || must_run)
			return s;
		arch = "sm_90a"; /* compiling needs no GPU: this is the default without one */
		if (err)
			*err = (llmc_error){ 0 };
	}
	const Target *t = target_of_arch(TARGET_CUDA, arch, err);
	if (!t)
		return LLMC_E_INPUT;
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
	GpuList gpus;
	if (device && strncmp(device, "cuda", 4) == 0) {
		TRY(device_gpus(device, &gpus, err));
		return cuda_target_name(gpus.n ? gpus.number[0] : 0, arch, must_run, out, err);
	}
	if (device && strcmp(device, "cpu") != 0)
		return error_set(err, LLMC_E_INPUT,
		                 "device %s: expected cpu, cuda, cuda:0, ... or ref", device);
	const Device *cpu = device_of(TARGET_CPU);
	if (!arch)
		return cpu->best_target(0, out, err);
	const Target *t = target_of_arch(TARGET_CPU, arch, err);
	if (!t)
		return LLMC_E_INPUT;
	snprintf(out, 32, "%s", t->name);
	char why[160], best[32];
	if (must_run && cpu->lacks(out, why, sizeof why)) {
		TRY(cpu->best_target(0, best, err));
		return error_set(err, LLMC_E_MISSING, "arch %s: %s; the best that runs here is %s",
		                 arch, why, target_find(best)->isa);
	}
	return LLMC_OK;
}

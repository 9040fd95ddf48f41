/* llmc_open: import, compile, write the artifact, map and pack the weights, load the kernels. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/file.h"
#include "base/sized_struct.h"
#include "formats/layout.h"
#include "text/text.h"

static void
model_free(llmc_model *m)
{
	runtime_close(m->rt);
	mpi_world_close(m->world);
	llmc_tokenizer_close(m->tokenizer);
	arena_release(&m->arena);
	free(m);
}

void
llmc_retain(llmc_model *m)
{
	atomic_fetch_add(&m->refs, 1);
}

void
llmc_close(llmc_model *m)
{
	if (m && atomic_fetch_sub(&m->refs, 1) == 1)
		model_free(m);
}

/* Add the overrides that the target needs. The reference keeps KV in fp32 unless the caller
 * overrides that. */
static const char *const *
set_for_target(const char *const *set, const char *target, int ranks, Arena *arena)
{
	size_t n = 0, k = 0;

	for (; set && set[n]; n++)
		if (strncmp(set[n], "parallel.pp=", 12) == 0 && atoi(set[n] + 12) > 0)
			/* processes of a launcher are divided among the stages */
			ranks /= atoi(set[n] + 12);
	const char **all = NEW(arena, const char *, n + 3);
	if (target_find(target)->kind == TARGET_REF)
		all[k++] = "kv.dtype=f32";
	/* number of ranks from the launcher or the named GPUs; if an override of the caller
	 * contradicts, it is rejected later */
	if (ranks > 1)
		all[k++] = arena_printf(arena, "parallel.tp=%d", ranks);
	for (size_t i = 0; i < n; i++)
		all[k++] = arena_strdup(arena, set[i]);
	return all;
}

/* Write to a folder of the cache that is named by the hash of its content. */
static llmc_status
write_to_cache(llmc_model *m, const Compiled *const *made, llmc_error *err)
{
	Strbuf *dir = arena_strbuf(&m->arena);

	TRY(file_cache_dir(dir, err));
	m->artifact =
	    arena_printf(&m->arena, "%s/models/%s-%.16s", strbuf_str(dir), m->spec->name,
	                 m->spec->sha256 + (strncmp(m->spec->sha256, "sha256:", 7) ? 0 : 7));
	TRY(file_mkdirs_private(m->artifact, err));
	m->in_cache = true;
	return artifact_write(made, (size_t)m->n_own, m->artifact, err);
}

/* Write the generated files: to the folder of the caller, to the artifact itself, or to the cache.
 * If the cache is not writable, they go to a temporary folder, which is removed when the model is
 * open. */
static llmc_status
write_generated(llmc_model *m, const Compiled *const *made, const llmc_options *opt,
                llmc_error *err)
{
	const char *tmp = getenv("TMPDIR");
	llmc_error why = { 0 };

	if (m->artifact)
		return artifact_write(made, (size_t)m->n_own, m->artifact, err);
	/* unfused plans are not stored in the cache, which has plans of normal runs only */
	llmc_status s = m->unfused ? LLMC_E_IO : write_to_cache(m, made, &why);
	if (s != LLMC_E_IO) {
		if (s != LLMC_OK && err)
			*err = why;
		return s;
	}
	char *dir = arena_printf(&m->arena, "%s/llmc.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(dir))
		return error_set(err, LLMC_E_IO, "%s; cannot create %s either: %s", why.text, dir,
		                 strerror(errno));
	if (!m->unfused)
		log_line(opt->log, opt->log_user, LLMC_LOG_WARNING,
		         "generated files are not kept for the next run: %s; set LLMC_CACHE to a "
		         "writable folder",
		         why.text);
	m->artifact = m->temporary = dir;
	m->in_cache = true;
	return artifact_write(made, (size_t)m->n_own, dir, err);
}

/* Read a plan as the runtime does. Even a plan that this process has made goes through the strict
 * reader. */
static llmc_status
read_plan(llmc_model *m, int rank, const char *json, size_t size, const char *name, llmc_error *err)
{
	Plan *plan;

	TRY(plan_read(json, size, name, &m->arena, &plan, err));
	const bool split = m->cpu_target[0];
	if (plan->stage * plan->ranks + plan->rank + plan->partition != rank ||
	    plan->ranks != m->spec->tp || plan->stages != m->spec->pp ||
	    plan->partitions != 1 + split)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: plan of rank %d of %d in stage %d of %d, expected rank %d of %d x %d",
		    name, plan->rank, plan->ranks, plan->stage, plan->stages, rank, m->spec->tp,
		    m->spec->pp);
	m->rank[rank] = plan;
	if (rank == m->first)
		m->plan = plan;
	return LLMC_OK;
}

/* Return the target of a rank: the model's target, or the target of its part on the CPU. */
static const char *
rank_target(const llmc_model *m, const char *target, int rank)
{
	return rank > 0 && m->cpu_target[0] ? m->cpu_target : target;
}

/* "plan-cpu-v3.json", "plan-cpu-v3-r1of4.json" */
static const char *
plan_file(llmc_model *m, const char *target, int rank, const char *ending)
{
	return m->n_rank > 1 ? arena_printf(&m->arena, "plan-%s-r%dof%d.%s",
	                                    rank_target(m, target, rank), rank, m->n_rank, ending)
	                     : arena_printf(&m->arena, "plan-%s.%s", target, ending);
}

static const ArtifactFile *
compiled_file(const Compiled *c, const char *path)
{
	for (size_t i = 0; i < c->n_file; i++)
		if (strcmp(c->file[i].path, path) == 0)
			return &c->file[i];
	return NULL;
}

/* *warnings: messages of the compiler */
static llmc_status
compile_one(llmc_model *m, const char *target, int rank, bool fuse, const Compiled **out,
            const char **warnings, llmc_error *err)
{
	Diag *const d = NEW(&m->arena, Diag, 1);
	Compiled *volatile c = NULL;

	diag_init(d, &m->arena);
	if (!setjmp(d->bug))
		c = compile_rank(m->spec, rank_target(m, target, rank), rank, fuse, d, &m->arena);
	if (!c)
		return diag_error(d, err);
	*out = c;
	*warnings = strbuf_str(&d->text);
	return LLMC_OK;
}

static llmc_status
read_compiled(llmc_model *m, const char *target, int rank, const Compiled *c, llmc_error *err)
{
	const char *name = plan_file(m, target, rank, "json");
	const ArtifactFile *json = compiled_file(c, name);

	if (!json)
		return error_set(err, LLMC_E_BUG, "the compiler wrote no %s", name);
	m->plan_json = rank == m->first ? json->text : m->plan_json;
	return read_plan(m, rank, json->text, json->size, name, err);
}

/* Decide whether the artifact's code may run, and whether its built kernels may. made [n_own]:
 * plans that were compiled and written to it just now; NULL: the plans in the folder are used. */
static llmc_status
check_trust(llmc_model *m, const Compiled *const *made, const llmc_options *opt, llmc_error *err)
{
	const char **file = NEW(&m->arena, const char *, m->n_own), *target = m->plan->target,
	           *warnings;
	const TrustPlans t = { m->n_own, file, m->rank + m->first };
	const Compiled **again = NEW(&m->arena, const Compiled *, m->n_own);

	m->skip_built = false;
	if (opt->trust_artifact || opt->no_weights || m->in_cache ||
	    target_find(target)->kind == TARGET_REF)
		return LLMC_OK;
	for (int k = 0; k < m->n_own; k++)
		file[k] = plan_file(m, target, m->first + k, "json");
	if (made || !artifact_sources_trusted(m->artifact, &t, &m->arena)) {
		for (int k = 0; k < m->n_own && !made; k++)
			TRY(compile_one(m, target, m->first + k, true, &again[k], &warnings, err));
		TRY(artifact_compare(m->artifact, made ? made : again, (size_t)m->n_own, &m->arena,
		                     err));
		artifact_mark_trusted(m->artifact, &t, NULL, 0, &m->arena, NULL, NULL);
	}
	for (int k = 0; k < (m->cpu_target[0] ? 2 : 1) && !m->skip_built; k++) {
		const char *own = rank_target(m, target, k), *name = target_built_name(own);
		m->skip_built = runtime_ships(m->artifact, own, m->gpu) &&
		                !artifact_built_trusted(m->artifact, name, &m->arena);
		if (m->skip_built)
			log_line(opt->log, opt->log_user, LLMC_LOG_WARNING,
			         "%s/aot/%s: these kernels were not built by you on this machine, "
			         "so they are compiled here instead; --trust-artifact uses them",
			         m->artifact, name);
	}
	return LLMC_OK;
}

static llmc_status
compile_model(llmc_model *m, const char *target, bool write, const llmc_options *opt,
              llmc_error *err)
{
	const Compiled **made = NEW(&m->arena, const Compiled *, m->n_own);
	const char *warnings;

	for (int k = 0; k < m->n_own; k++) {
		TRY(compile_one(m, target, m->first + k, !m->unfused, &made[k], &warnings, err));
		if (m->first + k == 0)
			log_text(opt->log, opt->log_user, LLMC_LOG_WARNING, warnings);
	}
	if (write)
		TRY(write_generated(m, made, opt, err));
	m->plan_text = made[0]->plan_text;
	for (int k = 0; k < m->n_own; k++)
		TRY(read_compiled(m, target, m->first + k, made[k], err));
	return write ? check_trust(m, made, opt, err) : LLMC_OK;
}

/* Compile the plans of all ranks on rank 0 of several processes. Rank 0 loads adapters for all
 * ranks, so it needs the layouts of their adapter slots. The plans equal those of the ranks,
 * because they come from the same description. */
static llmc_status
others_slots(llmc_model *m, RuntimeOptions *ro, llmc_error *err)
{
	ro->all = NULL;
	ro->n_all = 0;
	if (!m->world || m->first > 0 || m->spec->adapters.slots < 1)
		return LLMC_OK;
	for (int k = 1; k < spec_ranks(m->spec); k++) {
		const Compiled *c;
		/* ignored: compiling rank 0's own plan has reported these warnings */
		const char *warnings;
		TRY(compile_one(m, m->plan->target, k, !m->unfused, &c, &warnings, err));
		TRY(read_compiled(m, m->plan->target, k, c, err));
	}
	ro->all = m->rank;
	ro->n_all = spec_ranks(m->spec);
	return LLMC_OK;
}

static llmc_status
open_runtime(llmc_model *m, RuntimeOptions *ro, llmc_error *err)
{
	TRY(others_slots(m, ro, err));
	return runtime_open_ranks(m->rank + m->first, m->n_own, ro, &m->rt, err);
}

/* Read the plan of one rank from a generated folder. *fits: this version can read the plan, and the
 * plan was made from this description for this target. */
static llmc_status
open_rank(llmc_model *m, const char *target, int rank, const llmc_options *opt, bool *fits,
          llmc_error *err)
{
	Strbuf *text = arena_strbuf(&m->arena);
	llmc_error why = { 0 };
	const char *name =
	    arena_printf(&m->arena, "%s/%s", m->artifact, plan_file(m, target, rank, "json"));

	*fits = false;
	TRY(file_check_trusted(name, err));
	llmc_status s = file_read(name, (size_t)1 << 30, text, err);
	if (s == LLMC_OK) {
		if (read_plan(m, rank, strbuf_str(text), text->len, name, &why) == LLMC_OK &&
		    strcmp(m->rank[rank]->target, rank_target(m, target, rank)) == 0 &&
		    strcmp(m->rank[rank]->spec_sha256, m->spec->sha256) == 0) {
			*fits = true;
			if (rank == m->first)
				m->plan_json =
				    arena_strndup(&m->arena, strbuf_str(text), text->len);
		} else {
			log_line(opt->log, opt->log_user, LLMC_LOG_INFO,
			         "%s: %s; compiling it again from model.yaml", name,
			         why.code ? why.text
			                  : "made from another description or for another target");
		}
	}
	strbuf_release(text);
	return s;
}

/* Read the plans of all ranks of this process for a target. */
static llmc_status
open_plan(llmc_model *m, const char *target, const llmc_options *opt, bool *fits, llmc_error *err)
{
	*fits = true;
	for (int rank = m->first; rank < m->first + m->n_own && *fits; rank++)
		TRY(open_rank(m, target, rank, opt, fits, err));
	if (*fits) {
		Strbuf *text = arena_strbuf(&m->arena);
		bool read = file_read(arena_printf(&m->arena, "%s/%s", m->artifact,
		                                   plan_file(m, target, m->first, "txt")),
		                      (size_t)1 << 30, text, NULL) == LLMC_OK;
		m->plan_text = read ? arena_strndup(&m->arena, strbuf_str(text), text->len) : "";
		strbuf_release(text);
		TRY(check_trust(m, NULL, opt, err));
	}
	return LLMC_OK;
}

static bool
has_plan(llmc_model *m, const char *target)
{
	for (int rank = m->first; rank < m->first + m->n_own; rank++)
		if (!file_exists(arena_printf(&m->arena, "%s/%s", m->artifact,
		                              plan_file(m, target, rank, "json"))))
			return false;
	return true;
}

/* Describe what kernels for `own` gain over those for `other`: a packed CPU layout interleaves as
 * many rows as a vector register has elements. */
static const char *
describe_vector_gain(llmc_model *m, const Target *own, const Target *other)
{
	int n = layout_find(own->layout)->group, k = layout_find(other->layout)->group;

	return n > k ? arena_printf(&m->arena, ", with vectors of %d elements instead of %d,", n, k)
	             : "";
}

/* Use the best plan for another target whose built kernels are in the folder and run here. Such a
 * plan starts at once and needs no compiler. It is not used if the caller has set --arch. */
static llmc_status
open_shipped(llmc_model *m, const char *target, const llmc_options *opt, bool *fits,
             llmc_error *err)
{
	const Target *own = target_find(target);
	int n = 0;

	*fits = false;
	while (target_at(n))
		n++;
	while (!opt->arch && !*fits && n-- > 0) {
		const Target *t = target_at(n);
		if (t == own || t->kind != own->kind || t->kind == TARGET_REF ||
		    !has_plan(m, t->name) || !runtime_ships(m->artifact, t->name, m->gpu))
			continue;
		TRY(open_plan(m, t->name, opt, fits, err));
		*fits &= !m->skip_built;
		if (*fits)
			log_line(
			    opt->log, opt->log_user, LLMC_LOG_INFO,
			    "%s: no plan for %s%s: using the shipped kernels for %s; build faster "
			    "ones%s by `llmc compile %s -o %s --target %s --arch %s --aot`",
			    m->artifact, target, has_plan(m, target) ? " with built kernels" : "",
			    t->name, describe_vector_gain(m, own, t), m->artifact, m->artifact,
			    own->kind == TARGET_CUDA ? "cuda" : "cpu", own->isa);
	}
	return LLMC_OK;
}

/* Open a generated folder: the plan for this device, else a plan that was shipped with built
 * kernels. */
static llmc_status
open_artifact(llmc_model *m, const char *target, const llmc_options *opt, bool *fits,
              llmc_error *err)
{
	if (has_plan(m, target))
		return open_plan(m, target, opt, fits, err);
	TRY(open_shipped(m, target, opt, fits, err));
	if (!*fits)
		log_line(opt->log, opt->log_user, LLMC_LOG_INFO,
		         "%s: no plan for %s: compiling it from model.yaml", m->artifact, target);
	return LLMC_OK;
}

static llmc_status
open_tokenizer(llmc_model *m, SourceKind kind, const char *source, const llmc_options *opt,
               llmc_error *err)
{
	const char *path = m->weights                                       ? m->weights
	                   : kind != SOURCE_YAML && kind != SOURCE_ARTIFACT ? source
	                                                                    : NULL;
	const size_t n_label =
	    m->plan->output == LLMC_OUTPUT_LABELS ? (size_t)plan_out_width(m->plan) : 0;
	llmc_error why;
	bool absent;

	if (!path || !file_exists(path)) {
		labels_read(NULL, n_label, &m->arena, &m->labels);
		return tokenizer_set_template(m->tokenizer, opt->chat_template, err);
	}
	char *slash;
	if (!file_is_dir(path) && strlen(path) > 12 &&
	    strcmp(path + strlen(path) - 12, ".safetensors") == 0) {
		path = arena_strdup(&m->arena, path);
		slash = strrchr(path, '/');
		*slash = 0; /* the path is absolute, so it has a slash */
	}
	advice_read(path, &m->arena, &m->advice);
	prompts_read(path, &m->arena, &m->prompts);
	labels_read(path, n_label, &m->arena, &m->labels);
	llmc_status s = tokenizer_open(path, &m->tokenizer, &absent, &why);
	if (s == LLMC_E_MEMORY)
		return error_set(err, s, "%s", why.text);
	if (s != LLMC_OK) {
		m->tokenizer = NULL;
		log_line(opt->log, opt->log_user, absent ? LLMC_LOG_DEBUG : LLMC_LOG_WARNING,
		         "no tokenizer, prompts are token ids: %s", why.text);
	}
	return tokenizer_set_template(m->tokenizer, opt->chat_template, err);
}

/* Select the GPU of a process that a launcher has started: by its rank on this host, from the named
 * GPUs or all GPUs. If there are fewer GPUs than ranks, ranks share them. */
static void
gpu_of_process(llmc_model *m)
{
	const GpuList *g = &m->gpus;
	const int local_rank = mpi_world_local_rank(m->world);
	char target[32];
	int n = g->n;

	while (!g->n && n <= local_rank &&
	       device_of(TARGET_CUDA)->best_target(n, target, NULL) == LLMC_OK)
		n++;
	m->gpu = n <= 0 ? 0 : g->n ? g->number[local_rank % n] : local_rank % n;
}

/* Assign one GPU per rank: the named GPUs, else the first ones of the machine. */
static llmc_status
gpus_for_ranks(llmc_model *m, const char *device, llmc_error *err)
{
	GpuList *g = &m->gpus;
	const int ranks = spec_ranks(m->spec);

	if (!g->any || m->world || g->n == ranks)
		return LLMC_OK;
	if (g->n)
		return error_set(err, LLMC_E_INPUT,
		                 "parallel.tp = %d and --device %s: %d rank%s but %d GPU%s; name "
		                 "one GPU per rank, or use --device cuda",
		                 m->spec->tp, device, ranks, ranks == 1 ? "" : "s", g->n,
		                 g->n == 1 ? "" : "s");
	for (; g->n < ranks; g->n++)
		g->number[g->n] = g->n;
	return LLMC_OK;
}

/* Try older targets. Called if the compiler does not know this processor, or if there is no
 * compiler and no prebuilt kernels fit. */
static llmc_status
open_older(llmc_model *m, const char *target, const llmc_options *opt, RuntimeOptions *ro,
           llmc_status *status, llmc_error *why, llmc_error *err)
{
	while (*status == LLMC_E_MISSING) {
		char refused[1024];
		llmc_error older;
		const char *next =
		    device_of(TARGET_CPU)->compiler_target(target, refused, sizeof refused);
		if (!next || strcmp(next, target) == 0)
			break;
		TRY(compile_model(m, next, true, opt, err));
		ro->skip_built = m->skip_built;
		*status = open_runtime(m, ro, &older);
		if (*status == LLMC_OK)
			log_line(opt->log, opt->log_user, LLMC_LOG_WARNING,
			         "%s; using %s, which is slower: install a newer compiler, or set "
			         "LLMC_CC to one",
			         refused, next);
		else if (*status != LLMC_E_MISSING)
			*why = older;
		target = next;
	}
	return LLMC_OK;
}

static llmc_status
open_into(llmc_model *m, const char *path, const llmc_options *opt, llmc_error *err)
{
	SourceKind kind;
	char target[32];
	double t0 = clock_now();

	TRY(source_kind(path, &kind, err));
	TRY(device_gpus(opt->device, &m->gpus, err));
	m->gpu = !m->gpus.any ? -1 : m->gpus.n ? m->gpus.number[0] : 0;
	if (m->gpus.any && m->world)
		gpu_of_process(m);
	TRY(target_name(opt->device, opt->arch, !opt->no_weights, target, err));
	m->source = file_absolute(&m->arena, path);
	m->set = set_for_target(opt->set, target, m->world ? mpi_world_ranks(m->world) : m->gpus.n,
	                        &m->arena);
	m->random_weights = opt->random_weights;
	m->no_weights = opt->no_weights;
	m->no_fit = opt->no_fit;
	m->host_memory = opt->host_memory;
	m->cache_packed = opt->cache_packed;
	m->n_threads = opt->n_threads;
	if (opt->random_weights && opt->weights)
		return error_set(err, LLMC_E_INPUT, "random weights and weights %s: choose one",
		                 opt->weights);
	TRY(model_find_mmproj(m, path, kind, opt, err));
	const ImportOptions io = { .tower = opt->tower,
		                   .mmproj = m->mmproj,
		                   .of = import_model(opt->draft_of, &m->arena),
		                   .allow_unknown_keys = opt->allow_unknown_keys };
	TRY(source_spec(path, kind, m->set, opt->weights, &io, &m->arena, opt->log, opt->log_user,
	                &m->spec, err));
	m->checkpoint = source_weights(path, kind, m->spec, opt, &m->arena);
	m->weights = opt->random_weights ? NULL : m->checkpoint;
	TRY(model_add_draft(m, path, kind, opt, err));
	TRY(model_add_images(m, path, kind, opt, err));
	const int ranks = spec_ranks(m->spec);
	if (m->world && ranks != mpi_world_ranks(m->world))
		return m->spec->pp > 1
		           ? error_set(err, LLMC_E_INPUT,
		                       "the launcher started %d ranks, parallel.tp x parallel.pp "
		                       "is %d x %d",
		                       mpi_world_ranks(m->world), m->spec->tp, m->spec->pp)
		           : error_set(err, LLMC_E_INPUT,
		                       "the launcher started %d ranks, parallel.tp is %d",
		                       mpi_world_ranks(m->world), m->spec->tp);
	TRY(gpus_for_ranks(m, opt->device, err));
	if (compile_partitions(m->spec, target, 0) > 1)
		TRY(target_name("cpu", NULL, !opt->no_weights, m->cpu_target, err));
	m->n_rank = m->cpu_target[0] ? 2 : ranks;
	m->rank = NEW(&m->arena, const Plan *, m->n_rank);
	m->first = m->world ? mpi_world_rank(m->world) : 0;
	m->n_own = m->world ? 1 : m->n_rank;
	if (m->world && m->n_threads == 0)
		m->n_threads = mpi_world_threads(m->world);
	bool fits = false;
	if (opt->out_dir)
		m->artifact = arena_strdup(&m->arena, opt->out_dir);
	else if (kind == SOURCE_ARTIFACT)
		m->artifact = file_absolute(&m->arena, path);
	if (kind == SOURCE_ARTIFACT && !opt->out_dir)
		TRY(open_artifact(m, target, opt, &fits, err));
	if (!fits)
		TRY(compile_model(m, target, !opt->no_weights || opt->out_dir, opt, err));
	m->compile_s = clock_now() - t0;
	TRY(open_tokenizer(m, kind, path, opt, err));
	if (opt->no_weights)
		return LLMC_OK;
	if (!m->weights && !opt->random_weights)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: no weights: pass --weights PATH, write `weights: PATH` into "
		                 "the YAML, or use --random-weights to benchmark",
		                 path);
	if (opt->planned)
		TRY(opt->planned(opt->planned_user, m, err));
	else
		TRY(fit_weights(m, err));
	RuntimeOptions ro = { .artifact = m->artifact,
		              .weights = m->weights,
		              .world = m->world,
		              .n_threads = m->n_threads,
		              .device = m->gpu > 0 ? m->gpu : 0,
		              .devices = m->gpus.any ? m->gpus.number : NULL,
		              .random_weights = opt->random_weights,
		              .cache_packed = opt->cache_packed,
		              .cache_warned = m->temporary != NULL,
		              .can_divide = !m->cpu_target[0] && spec_can_divide(m->spec),
		              .skip_built = m->skip_built,
		              .log = opt->log,
		              .log_user = opt->log_user };
	llmc_error why = { 0 };
	llmc_status status = open_runtime(m, &ro, &why);
	/* There is no compiler, or it fails: use kernels that were shipped for an older target, and
	 * warn. */
	if (status == LLMC_E_MISSING && kind == SOURCE_ARTIFACT && !opt->out_dir &&
	    strcmp(m->plan->target, target) == 0 &&
	    open_shipped(m, target, opt, &fits, NULL) == LLMC_OK && fits) {
		log_text(opt->log, opt->log_user, LLMC_LOG_WARNING, why.text);
		ro.skip_built = m->skip_built;
		status = open_runtime(m, &ro, &why);
	}
	if (status == LLMC_E_MISSING && !opt->arch && target_find(target)->kind == TARGET_CPU &&
	    strcmp(m->plan->target, target) == 0)
		TRY(open_older(m, target, opt, &ro, &status, &why, err));
	if (status != LLMC_OK) {
		if (err)
			*err = why;
		return status;
	}
	m->load_s = clock_now() - t0;
	return LLMC_OK;
}

/* Finish opening on all ranks together. Each rank of a launcher calls this when it has opened its
 * model, or has failed to. Either all ranks succeed with the same content, or all fail. */
static llmc_status
open_together(llmc_model *m, const llmc_options *opt, llmc_status own, llmc_error *err)
{
	llmc_error why = *err;
	const int all = mpi_world_ranks(m->world);
	char checkpoint[17], plan[17], together[17];

	TRY(mpi_world_agree(m->world, own, &why, err));
	runtime_fingerprint(m->rt, checkpoint, plan, together);
	TRY(mpi_world_check_same(m->world, all, "llmc", LLMC_VERSION, err));
	TRY(mpi_world_check_same(m->world, all, "description", m->spec->sha256, err));
	TRY(mpi_world_check_same(m->world, all, "target", m->plan->target, err));
	TRY(mpi_world_check_same(m->world, all, "checkpoint", checkpoint, err));
	TRY(mpi_world_check_same(m->world, all, "plan", plan, err));
	TRY(mpi_world_check_same(m->world, m->plan->ranks, "plan", together,
	                         /* ranks of one stage all-reduce, so their plans must match */
	                         err));
	return runtime_lead(m->rt, opt->log, opt->log_user, err);
}

static llmc_status
open_as(const char *path, const llmc_options *opt, bool unfused, llmc_model **out, llmc_error *err)
{
	llmc_options none = LLMC_INIT(llmc_options), o = none;

	*out = NULL;
	if (err)
		*err = (llmc_error){ 0 };
	SIZED_TAKE(o, opt);
	llmc_model *m = calloc(1, sizeof *m);
	if (!m)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	llmc_status in_world = o.no_weights ? LLMC_OK : mpi_world_open(o.mpi_comm, &m->world, err);
	if (in_world != LLMC_OK) {
		free(m);
		return in_world;
	}
	atomic_init(&m->refs, 1);
	m->unfused = unfused;
	arena_init(&m->arena);
	llmc_error own = { 0 };
	llmc_status s;
	if (setjmp(m->arena.oom))
		s = error_set(&own, LLMC_E_MEMORY, "%s: out of memory while opening it", path);
	else
		s = open_into(m, path, &o, &own);
	if (m->world)
		s = open_together(m, &o, s, &own);
	if (m->temporary)
		file_remove_tree(m->temporary);
	if (s != LLMC_OK) {
		if (err)
			*err = own;
		model_free(m);
		return s;
	}
	*out = m;
	return LLMC_OK;
}

llmc_status
llmc_open(const char *path, const llmc_options *opt, llmc_model **out, llmc_error *err)
{
	const unsigned faults = file_faults();

	TRY(open_as(path, opt, false, out, err));
	if (file_faults() == faults)
		return LLMC_OK;
	llmc_close(*out);
	*out = NULL;
	return error_set(
	    err, LLMC_E_IO,
	    "%s: a file was truncated or replaced while it was read; open it again when "
	    "it is complete",
	    path);
}

llmc_status
llmc_guard_files(llmc_error *err)
{
	return file_guard_install(err);
}

llmc_status
model_open_unfused(const char *path, const llmc_options *opt, llmc_model **out, llmc_error *err)
{
	return open_as(path, opt, true, out, err);
}

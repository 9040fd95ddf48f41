/* Opens the model of a command line: options, names of models, limits. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static void
log_to_stderr(void *user, int level, const char *line)
{
	const Common *c = user;

	if (level == LLMC_LOG_WARNING || (c->verbose && level != LLMC_LOG_PROGRESS)) {
		progress_end();
		fprintf(stderr, "%s\n", line);
	} else if (level == LLMC_LOG_PROGRESS && !c->quiet) {
		progress("%s", line);
	} else if (level == LLMC_LOG_INFO && !c->quiet) {
		notice(line);
	}
}

/* On ranks other than 0 of a launcher: follow rank 0, which runs the command, and exit. */
static void
follow_rank_0(llmc_model *m)
{
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_error err = { 0 };

	llmc_info(m, &info);
	if (info.rank == 0)
		return;
	/* ignore the signal: rank 0 lets requests finish and then ends all ranks */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	llmc_status s = llmc_follow(m, &err);
	int code = s == LLMC_OK ? 0 : fail_with(&err);
	llmc_close(m);
	exit(code);
}

/* Choose the limits that are not set, or refuse. */
static llmc_status
fit(void *user, const llmc_model *m, llmc_error *err)
{
	Common *c = user;
	llmc_fitted f = LLMC_INIT(llmc_fitted);
	llmc_status s = llmc_fit_limits(m, c->fit, c->memory[0], &f, err);

	if (s != LLMC_OK)
		return s;
	*c->fit = f.limits;
	snprintf(c->fit_text, sizeof c->fit_text, "%s", f.text);
	return LLMC_OK;
}

/* Refuse a model on two devices that does not fit, before anything is allocated. Limits are chosen
 * later, when it is open.
 */
static llmc_status
check_two(void *user, const llmc_model *m, llmc_error *err)
{
	const Common *c = user;
	llmc_model_info info = LLMC_INIT(llmc_model_info);

	llmc_info(m, &info);
	return info.two_devices
	           ? llmc_fit_limits(m, c->fit, c->memory[0], &LLMC_INIT(llmc_fitted), err)
	           : LLMC_OK;
}

/* Is the model on a GPU? Opening it then opens the GPU, which itself refuses weights that do not
 * fit. */
static bool
on_gpu(const Common *c)
{
	const char *device = offload_device(c);

	return device && strncmp(device, "cuda", 4) == 0;
}

llmc_status
options_of(const Common *c, bool no_weights, OpenOptions *out, llmc_error *err)
{
	const char **set = calloc(c->set.n + MAX_OFFLOAD + 8, sizeof *set);
	size_t n = 0;

	*out = (OpenOptions){ .o = LLMC_INIT(llmc_options), .set = set };
	if (!set) {
		snprintf(err->text, sizeof err->text, "out of memory");
		return err->code = LLMC_E_MEMORY;
	}
	llmc_status status = offload_set(c, out, set, &n, err);
	if (status != LLMC_OK) {
		free(set);
		out->set = NULL;
		return status;
	}
	if (c->kv) {
		snprintf(out->kv, sizeof out->kv, "kv.dtype=%s", c->kv);
		set[n++] = out->kv;
	}
	if (c->lora) {
		char *real =
		    /* absolute, because the description in the cache is opened from any folder */
		    realpath(c->lora, NULL);
		snprintf(out->lora, sizeof out->lora, "lora.path=\"%s\"", real ? real : c->lora);
		free(real);
		set[n++] = out->lora;
	}
	if (c->quantize) {
		snprintf(out->quantize, sizeof out->quantize, "quant.method=%s", c->quantize);
		set[n++] = out->quantize;
	}
	if (c->tp) {
		snprintf(out->tp, sizeof out->tp, "parallel.tp=%d", c->tp);
		set[n++] = out->tp;
	}
	if (c->pp) {
		snprintf(out->pp, sizeof out->pp, "parallel.pp=%d", c->pp);
		set[n++] = out->pp;
	}
	if (c->mtp_head)
		set[n++] = "mtp.part=head";
	if (c->images)
		set[n++] = "vision.part=rows";
	for (size_t i = 0; i < c->set.n; i++)
		set[n++] = c->set.v[i];
	llmc_options *o = &out->o;
	o->device = offload_device(c);
	o->arch = c->arch;
	o->weights = c->weights;
	o->out_dir = c->out_dir;
	o->set = set;
	o->n_threads = c->threads;
	o->random_weights = c->random_weights;
	o->no_weights = no_weights;
	o->cache_packed = c->cache_packed;
	o->allow_unknown_keys = c->allow_unknown_keys;
	o->trust_artifact = c->trust_artifact;
	o->images = c->images_if_any;
	o->mmproj = c->mmproj;
	o->chat_template = c->chat_template;
	o->draft = c->draft;
	o->draft_of = c->draft_of;
	o->no_fit = c->fit_mode && !strcmp(c->fit_mode, "never");
	o->log = log_to_stderr;
	o->log_user = (void *)(uintptr_t)c;
	o->host_memory = c->memory[1];
	if (c->fit) {
		o->planned = on_gpu(c) ? check_two : fit;
		o->planned_user = (void *)(uintptr_t)c;
	}
	return LLMC_OK;
}

/* For --offload auto: compile the model without weights, choose the placement, and report it. */
static llmc_status
choose_offload(Common *c, const char *path, llmc_error *err)
{
	Common whole = *c;
	llmc_machine at = { .size = sizeof at,
		            .gpu = c->machine_gpu,
		            .gpu_bytes = c->memory[0],
		            .host_bytes = c->memory[1] };
	const llmc_limits lim = limits_of(c);
	llmc_model *m = NULL;
	OpenOptions own;

	whole.device = offload_device(c);
	whole.offload.n = 0;
	whole.memory[1] = 0;
	whole.fit = NULL;
	whole.out_dir = NULL;
	llmc_status status = options_of(&whole, true, &own, err);
	if (status != LLMC_OK)
		return status;
	status = llmc_open(path, &own.o, &m, err);
	free(own.set);
	if (status != LLMC_OK)
		return status;
	at.host_bandwidth = offload_host_bandwidth(c);
	c->placed.size = sizeof c->placed;
	status = llmc_place(m, &lim, &at, &c->placed, err);
	llmc_close(m);
	if (status == LLMC_OK && !c->quiet)
		notice(c->placed.text);
	return status;
}

llmc_status
open_model(Common *c, const char *path, bool no_weights, llmc_model **m, llmc_error *err)
{
	OpenOptions own;

	if (c->fit_mode && strcmp(c->fit_mode, "auto") != 0 && strcmp(c->fit_mode, "never") != 0) {
		snprintf(err->text, sizeof err->text, "--fit %s: expected auto or never",
		         c->fit_mode);
		return err->code = LLMC_E_INPUT;
	}
	llmc_status s = model_path(&path, c->quiet, err);
	if (s == LLMC_OK && c->weights)
		s = model_path(&c->weights, c->quiet, err);
	if (s == LLMC_OK && c->lora)
		s = model_path(&c->lora, c->quiet, err);
	if (s == LLMC_OK && c->mmproj)
		s = model_path(&c->mmproj, c->quiet, err);
	if (s == LLMC_OK && c->draft && strcmp(c->draft, "mtp") != 0)
		s = model_path(&c->draft, c->quiet, err);
	if (s == LLMC_OK && offload_must_choose(c))
		s = choose_offload(c, path, err);
	if (s == LLMC_OK)
		s = options_of(c, no_weights, &own, err);
	if (s != LLMC_OK)
		return s;
	s = llmc_open(path, &own.o, m, err);
	progress_end();
	free(own.set);
	if (s == LLMC_OK && !no_weights)
		follow_rank_0(*m);
	if (s == LLMC_OK && c->fit && on_gpu(c))
		s = fit(c, *m, err);
	return s;
}

llmc_limits
limits_of(const Common *c)
{
	llmc_limits l = LLMC_INIT(llmc_limits);

	l.context = c->context;
	l.seqs = c->seqs;
	l.chunk = c->chunk;
	l.n_threads = c->threads;
	return l;
}

llmc_status
check_memory(const llmc_model *m, const Common *c, const llmc_limits *lim, llmc_error *err)
{
	llmc_memory mem = LLMC_INIT(llmc_memory);
	char have[32], want[32];

	if (c->memory[0] <= 0)
		return LLMC_OK;
	llmc_status s = llmc_memory_for(m, lim, &mem, err);
	int64_t sum = mem.weights + mem.kv + mem.scratch + mem.state;
	if (s == LLMC_OK && sum > c->memory[0]) {
		err->code = s = LLMC_E_FULL;
		snprintf(err->text, sizeof err->text,
		         "needs %s, --memory allows %s; lower --context or --seqs (llmc plan shows "
		         "what fits)",
		         human_bytes((double)sum, want), human_bytes((double)c->memory[0], have));
	}
	return s;
}

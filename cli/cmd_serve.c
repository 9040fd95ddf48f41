/* llmc serve: serve models over HTTP. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/wakeup.h"
#include "cli/serve_options.h"

/* eventfd counter by which the signal handler notifies the main thread: the handler adds 1 per
 * signal to stop, and HANGUP per SIGHUP */
static int stop_fd = -1;
/* number of signals to stop so far, and the number at which the handler ends the process at once */
static volatile sig_atomic_t n_stops, stops_at_once = 2;
#define HANGUP ((uint64_t)1 << 32)

static void
on_signal(int sig)
{
	if (sig != SIGHUP && ++n_stops >= stops_at_once)
		_exit(EXIT_INTERRUPTED);
	wakeup_add(stop_fd, sig == SIGHUP ? HANGUP : 1);
}

typedef struct Log {
	const char *path; /* NULL: standard error */
	int fd;
	bool quiet;
	long lost; /* consecutive lines that could not be written */
} Log;

static void
on_log(void *user, int level, const char *line)
{
	Log *l = user;
	char text[1200];

	if (level > LLMC_LOG_INFO || (l->quiet && level > LLMC_LOG_WARNING))
		return;
	int n = snprintf(text, sizeof text, "%s\n", line);
	if (n >= (int)sizeof text) {
		n = (int)sizeof text - 1;
		text[n - 1] = '\n';
	}
	/* A full disk must not end the service. Report the first lost line, and the number of lost
	 * lines when writing works again. */
	errno = ENOSPC; /* reason to report if only a part of the line is written */
	if (write(l->fd, text, (size_t)n) != n) {
		if (l->lost++ == 0)
			fprintf(stderr,
			        "llmc: %s: cannot write the log: %s; the server continues\n",
			        l->path ? l->path : "standard error", strerror(errno));
	} else if (l->lost) {
		fprintf(stderr, "llmc: %s: the log is written again; %ld lines are lost\n",
		        l->path ? l->path : "standard error", l->lost);
		l->lost = 0;
	}
}

static int
log_open(const char *path)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);

	if (fd < 0)
		complain("%s: %s", path, strerror(errno));
	return fd;
}

/* Reopen a log file that may have been moved. The new file gets the same descriptor, because other
 * threads write to it. */
static void
log_reopen(const Log *l)
{
	int fd = l->path ? log_open(l->path) : -1;

	if (fd >= 0) {
		dup3(fd, l->fd, O_CLOEXEC);
		close(fd);
	}
}

static void
memory_table(const llmc_model *m, const llmc_limits *lim, const llmc_memory *mem, const char *url,
             bool json)
{
	char a[32], b[32], c[32], d[32], e[32], f[32], g[32], kept[64] = "";
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	int64_t total = mem->weights + mem->kv + mem->scratch + mem->state;

	llmc_info(m, &info);
	if (json) {
		printf("{\"url\":\"%s\",\"model\":", url);
		json_text(stdout, info.name, strlen(info.name));
		printf(",\"target\":\"%s\",\"memory\":{\"weights\":%lld,\"kv\":%lld,\"scratch\":%"
		       "lld,\"state\":%lld,\"total\":%lld,\"kv_per_token\":%lld,"
		       "\"kv_snapshots\":%lld},"
		       "\"limits\":{\"context\":%d,\"seqs\":%d,\"chunk\":%d,\"kv_tokens\":%lld}}\n",
		       info.target, (long long)mem->weights, (long long)mem->kv,
		       (long long)mem->scratch, (long long)mem->state, (long long)total,
		       (long long)mem->kv_per_token, (long long)mem->kv_snapshots, lim->context,
		       lim->seqs, lim->chunk, (long long)lim->kv_tokens);
	} else {
		if (mem->kv_snapshots)
			snprintf(kept, sizeof kept, "; %s of KV for snapshots of recurrent states",
			         human_bytes((double)mem->kv_snapshots, g));
		printf("%s on %s\n  weights %12s\n  KV      %12s   %d sequences, %d positions "
		       "each, %lld in total; %s per position%s\n"
		       "  scratch %12s   steps of up to %d tokens\n  state   %12s\n  total   "
		       "%12s\nlistening on %s\n",
		       info.name, info.target, human_bytes((double)mem->weights, a),
		       human_bytes((double)mem->kv, b), lim->seqs, lim->context,
		       (long long)lim->kv_tokens, human_bytes((double)mem->kv_per_token, c), kept,
		       human_bytes((double)mem->scratch, d), lim->chunk,
		       human_bytes((double)mem->state, e), human_bytes((double)total, f), url);
	}
	fflush(stdout);
}

/* On SIGHUP, reopen files that may have changed; the log reports the reload of keys. */
static void
reopen_files(Log *l, llmc_server *s, const char *keys)
{
	llmc_error err;
	char line[1100];

	log_reopen(l);
	if (!keys)
		return;
	if (llmc_serve_reload_keys(s, &err) == LLMC_OK) {
		snprintf(line, sizeof line, "%s: keys reloaded", keys);
		on_log(l, LLMC_LOG_INFO, line);
	} else {
		snprintf(line, sizeof line, "warning: %.1000s; the previous keys stay in force",
		         err.text);
		on_log(l, LLMC_LOG_WARNING, line);
	}
}

/* Wait for a signal to stop, at most timeout_ms; true: a signal has come. */
static bool
stopped(Log *l, llmc_server *s, const char *keys, int timeout_ms)
{
	struct pollfd p = { .fd = stop_fd, .events = POLLIN };

	if (poll(&p, 1, timeout_ms) <= 0)
		return false;
	uint64_t n = wakeup_take(stop_fd);
	if (n >= HANGUP)
		reopen_files(l, s, keys);
	return n % HANGUP != 0;
}

/* Wait until a signal to stop. False: ranks of the model are lost. /health then reports a failure,
 * so that a supervisor can restart all ranks. */
static bool
serve_on(Log *l, llmc_server *s, const char *keys, bool ranks)
{
	enum { POLL_MS = 100, REPORTED_MS = 1000 };

	for (int reported_ms = 0; !stopped(l, s, keys, ranks ? POLL_MS : -1);) {
		reported_ms += ranks && llmc_serve_failed(s) ? POLL_MS : 0;
		if (reported_ms > REPORTED_MS)
			return false;
	}
	return true;
}

static char *
key_from_file(const char *path)
{
	size_t n;
	char *key = read_all(path, &n);

	if (key)
		key[strcspn(key, "\r\n")] = 0;
	if (key && !*key) {
		complain("%s: the first line is empty; expected an API key", path);
		free(key);
		return NULL;
	}
	return key;
}

/* Allow many descriptors, return memory soon, and ignore SIGPIPE. */
static void
prepare_process(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		/* each client needs a descriptor */
		files.rlim_cur = files.rlim_max > 65536 ? 65536 : files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
#ifdef M_MMAP_THRESHOLD
	/* Return large allocations to the system at once. With the default, the threshold grows and
	 * each thread's heap keeps up to 64 MB. */
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mallopt(M_TRIM_THRESHOLD, 2 << 20);
#endif
	signal(SIGPIPE, SIG_IGN);
}

/* A server with its first model; requests open the other models. */
typedef struct ServeSession {
	ServeArgs *a;
	Log log;
	char *key;          /* read from --api-key-file */
	llmc_limits lim;    /* limits of the first model */
	llmc_limits shared; /* limits of the other models; 0: each model chooses its own */
	llmc_model *m, *draft;
	llmc_tower *tower; /* NULL: the model reads text only, or the server owns it */
	llmc_engine *e;    /* NULL once the server owns it */
	llmc_server *s;
	llmc_model_info info;
	llmc_limits in_force;
	llmc_memory mem;
} ServeSession;

/* Read the key and open the log. Returns 0 or the exit code. */
static int
open_files(ServeSession *v)
{
	ServeArgs *a = v->a;

	if (a->key_file && !(a->so.api_key = v->key = key_from_file(a->key_file)))
		return EXIT_INPUT;
	v->log.fd = STDERR_FILENO;
	if (a->log_file) {
		v->log.path = a->log_file;
		v->log.fd = log_open(a->log_file);
		if (v->log.fd < 0)
			return EXIT_INPUT;
	}
	v->log.quiet = a->c.quiet && !a->log_file;
	return 0;
}

static void
set_limits(ServeSession *v)
{
	const ServeArgs *a = v->a;
	llmc_limits *lim = &v->lim;

	v->shared = *lim = limits_of(&a->c);
	v->shared.kv_tokens = a->kv_tokens;
	lim->kv_tokens = a->kv_tokens ? a->kv_tokens : a->eo.max_batch_total_tokens;
	lim->snapshots = a->eo.no_prefix_cache ? 0 : LLMC_DEFAULT_SNAPSHOTS;
	lim->marks = a->eo.speculate < 0              ? 0
	             : lim->seqs < LLMC_DEFAULT_MARKS ? lim->seqs
	                                              : LLMC_DEFAULT_MARKS;
}

/* Open the vision tower on the model's device. Its messages go to the log of the model. */
static llmc_status
open_tower(ServeSession *v, llmc_error *err)
{
	OpenOptions own;
	llmc_status status = options_of(&v->a->all.model[0]->common, false, &own, err);

	if (status == LLMC_OK)
		status = llmc_tower_open(v->m, &own.o, &v->tower, err);
	free(own.set);
	return status;
}

/* Part of the memory limit that the tower leaves; 0: no limit */
static int64_t
memory_with_tower(const ServeSession *v)
{
	const int64_t of = v->a->c.memory[0], own = v->tower ? llmc_tower_bytes(v->tower) : 0;

	return of > own ? of - own : of ? 1 : 0;
}

/* Choose the limits again, with the tower's memory subtracted. */
static llmc_status
fit_with_tower(ServeSession *v, llmc_error *err)
{
	Common *c = &v->a->all.model[0]->common;
	llmc_fitted f = LLMC_INIT(llmc_fitted);

	set_limits(v);
	llmc_status s = llmc_fit_limits(v->m, &v->lim, memory_with_tower(v), &f, err);
	if (s != LLMC_OK)
		return s;
	v->lim = f.limits;
	snprintf(c->fit_text, sizeof c->fit_text, "%s", f.text);
	return LLMC_OK;
}

/* Open the first model, its vision tower and the draft model. */
static llmc_status
open_models(ServeSession *v, llmc_error *err)
{
	ServeArgs *a = v->a;
	ServeModel *first = a->all.n ? a->all.model[0] : NULL;
	llmc_limits *lim = &v->lim;
	llmc_fitted fitted = LLMC_INIT(llmc_fitted);

	set_limits(v);
	if (!first) /* no model to open: requests name models of a folder */
		return LLMC_OK;
	first->common.fit = lim;
	llmc_status status = open_model(&first->common, first->path, false, &v->m, err);
	first->common.fit = NULL;
	if (status != LLMC_OK)
		return status;
	llmc_info(v->m, &v->info);
	if (v->info.reads_images)
		status = open_tower(v, err);
	if (status == LLMC_OK && v->tower)
		status = fit_with_tower(v, err);
	if (status != LLMC_OK)
		return status;
	const bool alone = a->all.n == 1 && !a->so.models_dir && !a->so.models_pulled;
	if (!alone && !a->kv_tokens &&
	    !a->eo.max_batch_total_tokens) /* leave memory to the other models */
		lim->kv_tokens =
		    (int64_t)lim->context *
		    (lim->seqs < LLMC_DEFAULT_KV_CONTEXTS ? lim->seqs : LLMC_DEFAULT_KV_CONTEXTS);
	if (!a->c.draft)
		return LLMC_OK;
	a->c.memory[0] = memory_with_tower(v);
	status = draft_open(&first->common, v->m, first->path, lim, a->c.memory, &v->draft, err);
	if (status == LLMC_OK) /* does it fit next to the draft model? */
		status = llmc_fit_limits(v->m, lim, a->c.memory[0], &fitted, err);
	a->eo.draft = v->draft;
	return status;
}

static void
install_signals(const ServeArgs *a)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

	stop_fd = wakeup_open();
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	if (a->log_file || a->so.keys)
		sigaction(SIGHUP, &sa, NULL);
}

/* Load each adapter once, to report mistakes before the port opens. */
static llmc_status
try_adapters(llmc_model *m, const ServeModels *all, llmc_error *err)
{
	for (size_t i = 1; i < all->n && llmc_adapter_slots(m); i++) {
		int32_t adapter;
		if (!all->model[i]->adapter)
			continue;
		llmc_status status =
		    llmc_adapter_load(m, all->model[i]->common.lora, 1, &adapter, err);
		if (status != LLMC_OK)
			return status;
		llmc_adapter_unload(m, adapter, NULL);
	}
	return LLMC_OK;
}

static llmc_status
open_engine(ServeSession *v, llmc_error *err)
{
	ServeArgs *a = v->a;

	a->eo.limits = &v->lim;
	a->eo.log = a->so.log = a->all.log = on_log;
	a->eo.log_user = a->so.log_user = a->all.log_user = &v->log;
	a->so.engine = &a->eo;
	a->so.memory_bytes = a->c.memory[0];
	if (!v->m)
		return LLMC_OK;
	llmc_status status = llmc_engine_open(v->m, &a->eo, &v->e, err);
	if (status == LLMC_OK)
		status = try_adapters(v->m, &a->all, err);
	if (status == LLMC_OK)
		status = llmc_memory_for(v->m, llmc_engine_limits(v->e), &v->mem, err);
	if (status == LLMC_OK)
		v->in_force = *llmc_engine_limits(v->e);
	return status;
}

/* Open the port. The server then owns engine and model. */
static llmc_status
open_server(ServeSession *v, llmc_error *err)
{
	ServeModels *all = &v->a->all;

	llmc_status status = serve_models_init(all, &v->a->eo, &v->lim, &v->shared,
	                                       v->m && llmc_adapter_slots(v->m) > 0, err);

	if (status != LLMC_OK)
		return status;
	v->a->so.found = &all->found_init;
	if (!v->m)
		return llmc_serve_open_models(NULL, 0, &v->a->so, &v->s, err);
	for (size_t i = 1; i < all->n; i++)
		all->init[i].parent = all->model[i]->adapter
		                          ? all->model[0]->name ? all->model[0]->name : v->info.name
		                          : NULL;
	all->init[0].model = v->m;
	all->init[0].engine = v->e;
	all->init[0].tower = v->tower;
	llmc_retain(v->m); /* the server's table of models holds this reference */
	v->e = NULL;
	v->tower = NULL;
	return llmc_serve_open_models(all->init, (int32_t)all->n, &v->a->so, &v->s, err);
}

static void
print_start(const ServeSession *v)
{
	const bool json = v->a->c.json;
	llmc_advice advice = LLMC_INIT(llmc_advice);

	progress_end();
	if (!v->m) {
		if (json)
			printf("{\"url\":\"%s\",\"model\":null}\n", llmc_serve_url(v->s));
		else
			printf("models of %s%s%s, each opened by its first request\nlistening on "
			       "%s\n",
			       v->a->so.models_dir ? v->a->so.models_dir : "",
			       v->a->so.models_dir && v->a->so.models_pulled ? " and " : "",
			       v->a->so.models_pulled ? "llmc list" : "", llmc_serve_url(v->s));
		fflush(stdout);
		return;
	}
	llmc_sampling_advice(v->m, &advice);
	if (!json)
		printf("%s\n", v->a->all.model[0]->common.fit_text);
	if (!json && advice.set && !v->a->so.neutral_sampling)
		printf("sampling as the model advises (%s): %s\n", advice.source, advice.text);
	memory_table(v->m, &v->in_force, &v->mem, llmc_serve_url(v->s), json);
}

/* Serve until a signal, then let running requests finish. Returns the exit code. */
static int
serve_until_stopped(ServeSession *v)
{
	const ServeArgs *a = v->a;

	if (!serve_on(&v->log, v->s, a->so.keys, v->info.ranks > 1))
		return EXIT_MACHINE;
	if (a->leave_s > 0) {
		stops_at_once++; /* from now on a second signal ends only the draining */
		if (!a->c.quiet)
			fprintf(stderr,
			        "llmc: draining: /health returns 503, requests are accepted for "
			        "%.0f s more; signal again to skip\n",
			        (double)a->leave_s);
		llmc_serve_drain(v->s);
		for (double end = clock_now() + (double)a->leave_s;
		     clock_now() < end && !stopped(&v->log, v->s, a->so.keys, 50);)
			;
	}
	if (!a->c.quiet)
		fprintf(
		    stderr,
		    "llmc: stopping: running requests have %.0f s; signal again to stop at once\n",
		    (double)a->drain_s);
	llmc_serve_stop(v->s);
	for (double end = clock_now() + (double)a->drain_s;
	     !llmc_serve_wait(v->s, 50) && clock_now() < end;)
		if (stopped(&v->log, v->s, a->so.keys, 0))
			return EXIT_INTERRUPTED;
	return 0;
}

static int
serve(int argc, char **argv)
{
	ServeSession v = { .info = LLMC_INIT(llmc_model_info), .mem = LLMC_INIT(llmc_memory) };
	llmc_error err = { 0 };
	int code = serve_options(&cmd_serve, argc, argv, &v.a);

	if (code || (code = open_files(&v)))
		goto out;
	prepare_process();
	llmc_status status = open_models(&v, &err);
	if (status == LLMC_OK) {
		install_signals(v.a);
		status = open_engine(&v, &err);
	}
	if (status == LLMC_OK)
		status = open_server(&v, &err);
	if (status == LLMC_OK) {
		print_start(&v);
		llmc_close(v.m);
		v.m = NULL;
		code = serve_until_stopped(&v);
	} else {
		code = fail_with(&err);
	}
out:
	llmc_serve_close(v.s);
	llmc_engine_close(v.e, 0);
	llmc_tower_close(v.tower);
	llmc_close(v.draft);
	llmc_close(v.m);
	if (v.log.path && v.log.fd >= 0)
		close(v.log.fd);
	free(v.key);
	serve_options_free(v.a);
	return code;
}

const Command cmd_serve = {
	"serve",
	"[MODEL | --model NAME=PATH ...] [--port N] [options]",
	"serve models over HTTP: APIs of OpenAI, TGI, Anthropic and Ollama, metrics, a chat page",
	"  llmc serve model.gguf\n"
	"  llmc serve model.gguf --port 8080 --context 8192 --seqs 32 --api-key-file key.txt "
	"--host 0.0.0.0\n"
	"  llmc serve model.gguf --prefix-dir /var/lib/llmc/prefix --prefix-dir-size 20G\n"
	"  llmc serve model.gguf --batch-dir /var/lib/llmc/batches --batch-dir-size 4G\n"
	"  llmc serve model-8b.gguf --draft model-0.5b.gguf\n"
	"  llmc serve ~/models/GLM-4.5-Air --draft mtp\n"
	"  llmc serve model-8b.gguf --draft ~/models/EAGLE3-8B\n"
	"  llmc serve --model small=model-1b.gguf --model large=model-8b.gguf --memory 16G   "
	"requests select by \"model\"\n"
	"  llmc serve model.gguf --models-dir ~/models --memory 24G --sleep-after 600         "
	"further "
	"models by name\n"
	"  llmc serve --models-dir ~/models --memory 24G                                      "
	"those only\n"
	"  llmc serve model-folder --lora legal=adapter-a --lora poems=adapter-b             each "
	"adapter is a model\n"
	"  llmc serve model-folder --lora legal=adapter-a --lora poems=adapter-b --lora-slots 2   "
	"both in one engine, in one batch\n"
	"  llmc serve --config serve.yaml               serve.yaml: one option per line, such as "
	"'port: 8080'\n"
	"  LLMC_SERVE_PORT=8080 llmc serve model.gguf   each option has such a variable\n"
	"  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\\n"
	"       -d '{\"model\": \"NAME\", \"prompt\": \"Once upon a time\"}'\n",
	serve,
};

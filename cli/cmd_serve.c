/* llmc serve: serve models over HTTP. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/serve_models.h"

/* eventfd by which the signal handler notifies the main thread: it adds 1 per signal to stop, and
 * HANGUP per SIGHUP */
static int stop_fd = -1;
/* signals to stop so far, and the number that ends the process at once, whatever it is doing */
static volatile sig_atomic_t n_stops, stops_at_once = 2;
#define HANGUP ((uint64_t)1 << 32)

static void
on_signal(int sig)
{
	uint64_t one = sig == SIGHUP ? HANGUP : 1;
	int was = errno;

	if (sig != SIGHUP && ++n_stops >= stops_at_once)
		_exit(EXIT_INTERRUPTED);
	if (write(stop_fd, &one, sizeof one) < 0)
		_exit(EXIT_INTERRUPTED);
	errno = was;
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
	errno = ENOSPC; /* reason to report if only a part of the line was written */
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
reread(Log *l, llmc_server *s, const char *keys)
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

/* Wait for a signal to stop, at most this long; true: one came. */
static bool
stopped(Log *l, llmc_server *s, const char *keys, int timeout_ms)
{
	struct pollfd p = { .fd = stop_fd, .events = POLLIN };
	uint64_t n;

	if (poll(&p, 1, timeout_ms) <= 0 || read(stop_fd, &n, sizeof n) != (ssize_t)sizeof n)
		return false;
	if (n >= HANGUP)
		reread(l, s, keys);
	return n % HANGUP != 0;
}

/* Wait until a signal to stop. False: ranks of the model are lost. /health has reported that for a
 * while, so the supervisor can restart all ranks. */
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
	return key;
}

static int
serve(int argc, char **argv)
{
	Common c = { 0 };
	llmc_serve_options so = LLMC_INIT(llmc_serve_options);
	llmc_engine_options eo = LLMC_INIT(llmc_engine_options);
	int32_t speculate = -1;
	int slots = 0, rank = 0;
	char slots_set[40], rank_set[40];
	const char *draft_path = NULL;
	llmc_model *draft = NULL;
	const char *sampling = NULL;
	const char *config = NULL, *key_file = NULL, *log_file = NULL, *model_name = NULL,
	           *special = NULL, *args[1] = { NULL };
	List models = { 0 }, set_models = { 0 }, loras = { 0 };
	ServeModels all = { 0 };
	int64_t kv_tokens = 0;
	float header_s = 0, body_s = 0, idle_s = 0, request_s = 0, drain_s = 30, leave_s = 0,
	      sleep_s = 0;
	char *key = NULL;
	so.port = 8000;
	Opt opt[] = {
		{ OPT_GROUP, 0, "Address", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "host", "ADDRESS", &so.host,
		  "address to listen on; beyond loopback a key is required [127.0.0.1]" },
		{ OPT_INT, 'p', "port", "N", &so.port,
		  "port to listen on; 0: the kernel chooses one [8000]" },
		{ OPT_TEXT, 0, "api-key", "KEY", &so.api_key,
		  "key that clients must send as 'Authorization: Bearer KEY' [none]" },
		{ OPT_TEXT, 0, "api-key-file", "FILE", &key_file,
		  "file whose first line is the API key" },
		{ OPT_TEXT, 0, "keys", "FILE", &so.keys,
		  "file of keys with limits, one per line: NAME KEY [requests=N] [tokens=N] "
		  "[priority=N]; SIGHUP reloads it [none]" },
		{ OPT_FLAG, 0, "share-prefix", NULL, &so.share_prefix,
		  "share cached prefix pages between the keys of --keys; a client can then test "
		  "what others have sent" },
		{ OPT_FLAG, 0, "open-probes", NULL, &so.open_probes,
		  "serve /metrics, /v1/models, /get_load and /model_info without a key, for "
		  "routers and scrapers" },
		{ OPT_FLAG, 0, "allow-remote", NULL, &so.allow_remote,
		  "allow an address beyond loopback without a key" },
		{ OPT_TEXT, 0, "allow-origin", "ORIGIN", &so.allow_origin,
		  "allow web pages of this origin to call; * for all [none]" },
		{ OPT_TEXT, 0, "allow-host", "NAMES", &so.allow_host,
		  "without a key, further Host names to accept: a.b,c.d or * [addresses, "
		  "localhost]" },
		{ OPT_TEXT, 0, "model-name", "NAME", &model_name,
		  "name of the model in the API [its own name]" },
		{ OPT_TEXT, 0, "config", "FILE", &config,
		  "YAML file of these options, one per line: 'port: 8000'" },
		{ OPT_GROUP, 0, "Models", NULL, NULL, NULL },
		{ OPT_LIST, 0, "model", "NAME=PATH", &models,
		  "model and its name in the API; may be repeated: the first is opened at once, "
		  "the others on their first request" },
		{ OPT_INT, 0, "lora-slots", "N", &slots,
		  "N adapters share the model's engine and one batch; the least recently used is "
		  "replaced; 0: each adapter has its own copy of the weights [0]" },
		{ OPT_INT, 0, "lora-rank", "N", &rank,
		  "largest adapter rank that a slot holds [16]" },
		{ OPT_TEXT, 0, "lora-dir", "DIR", &so.lora_dir,
		  "folder from which clients may load adapters with /v1/load_lora_adapter [not "
		  "allowed]" },
		{ OPT_FLOAT, 0, "sleep-after", "SECONDS", &sleep_s,
		  "close the engine of a model that was idle this long; its next request opens it "
		  "again [never]" },
		{ OPT_GROUP, 0, "Requests", NULL, NULL, NULL },
		{ OPT_INT, 0, "max-input-length", "N", &so.max_input_length,
		  "largest number of prompt tokens [max-total-tokens - 1]" },
		{ OPT_INT, 0, "max-total-tokens", "N", &so.max_total_tokens,
		  "largest number of prompt and new tokens together [the context]" },
		{ OPT_BYTES, 0, "max-body-size", "SIZE", &so.max_body_bytes,
		  "largest request body; a larger one gets 413 [2M]" },
		{ OPT_TEXT, 0, "special-tokens-in-content", "KIND", &special,
		  "special tokens in messages, names, tools and tool results: special, as in the "
		  "reference implementations, or text [special]" },
		OPT_SAMPLING_BY(sampling, "model: the model's own advice, where its files have "
		                          "some, is the default of sampling fields that a "
		                          "request omits; neutral: each API's own is [model]"),
		{ OPT_FLOAT, 0, "request-timeout", "SECONDS", &request_s,
		  "time after which a request fails [no limit]" },
		{ OPT_GROUP, 0, "Batching", NULL, NULL, NULL },
		{ OPT_INT, 0, "max-concurrent-requests", "N", &eo.max_concurrent_requests,
		  "requests that may wait or run at a time; more get 429 [128]" },
		{ OPT_INT, 0, "max-batch-prefill-tokens", "N", &eo.max_batch_prefill_tokens,
		  "prompt tokens per step [chunk]" },
		{ OPT_INT64, 0, "max-batch-total-tokens", "N", &eo.max_batch_total_tokens,
		  "a request starts only if prompt + new tokens of all running requests fit [if "
		  "its prompt fits]" },
		{ OPT_INT64, 0, "kv-tokens", "N", &kv_tokens,
		  "KV positions of all sequences together [max-batch-total-tokens, or --seqs "
		  "contexts as "
		  "far as memory allows]" },
		{ OPT_FLAG, 0, "no-prefix-cache", NULL, &eo.no_prefix_cache,
		  "do not reuse the KV of shared prefixes" },
		{ OPT_INT, 0, "speculate", "N", &speculate,
		  "draft up to N tokens per step by n-gram lookup when few requests run and it is "
		  "faster; the output is the same; 0: never [15]" },
		OPT_DRAFT(draft_path),
		{ OPT_TEXT, 0, "prefix-dir", "DIR", &eo.prefix_dir,
		  "folder that keeps prefix pages as files, for restarts and for other servers of "
		  "the same model [none]" },
		{ OPT_BYTES, 0, "prefix-dir-size", "SIZE", &eo.prefix_dir_bytes,
		  "size limit of these files; the least recently used are removed first [8G]" },
		{ OPT_BYTES, 0, "swap-memory", "SIZE", &eo.swap_bytes,
		  "host memory for the KV of preempted requests; not with kv.host [0: recompute "
		  "them]" },
		{ OPT_TEXT, 0, "batch-dir", "DIR", &so.batch_dir,
		  "folder for OpenAI's /v1/files and /v1/batches, which enables them; batches run "
		  "at the lowest priority and continue after a restart [none]" },
		{ OPT_BYTES, 0, "batch-dir-size", "SIZE", &so.batch_dir_bytes,
		  "size limit of these files [1G]" },
		{ OPT_GROUP, 0, "Connections", NULL, NULL, NULL },
		{ OPT_INT, 0, "max-connections", "N", &so.max_connections,
		  "largest number of connections; a further one closes the oldest idle one "
		  "[1000]" },
		{ OPT_INT, 0, "max-connections-per-client", "N", &so.max_connections_per_client,
		  "largest number of connections per client address [no limit]" },
		{ OPT_FLOAT, 0, "header-timeout", "SECONDS", &header_s,
		  "time until a request's header must be complete [10]" },
		{ OPT_FLOAT, 0, "body-timeout", "SECONDS", &body_s,
		  "time until a request's body must be complete [60]" },
		{ OPT_FLOAT, 0, "idle-timeout", "SECONDS", &idle_s,
		  "time after which an idle connection is closed [75]" },
		{ OPT_FLOAT, 0, "drain-delay", "SECONDS", &leave_s,
		  "after SIGTERM or SIGINT, time in which /health returns 503 while requests are "
		  "still accepted [0]" },
		{ OPT_FLOAT, 0, "drain-timeout", "SECONDS", &drain_s,
		  "after that, time in which running requests may finish [30]" },
		{ OPT_GROUP, 0, "Log", NULL, NULL, NULL },
		{ OPT_TEXT, 0, "log-file", "FILE", &log_file,
		  "file to which one line per request is appended; SIGHUP reopens it [standard "
		  "error]" },
		{ OPT_TEXT, 0, "otlp", "URL", &so.otlp,
		  "OpenTelemetry collector for spans of requests, such as http://127.0.0.1:4318 "
		  "[off]" },
		{ OPT_FLAG, 0, "log-json", NULL, &so.log_json, "write log lines as JSON objects" },
		OPT_COMMON(c),
		{ OPT_GROUP, 0, "Compatibility with TGI", NULL, NULL, NULL },
		{ OPT_INT, 0, "max-best-of", "N", &so.max_best_of,
		  "largest best_of in TGI's routes [2]" },
		{ OPT_INT, 0, "max-stop-sequences", "N", &so.max_stop_sequences,
		  "largest number of stop strings in TGI's routes [4]" },
		{ OPT_INT, 0, "max-top-n-tokens", "N", &so.max_top_n_tokens,
		  "largest top_n_tokens in TGI's routes [5]" },
		{ OPT_INT, 0, "validation-workers", "N", &so.validation_workers,
		  "threads that check and tokenize large requests, in addition to one for small "
		  "requests [2]" },
		{ OPT_FLOAT, 0, "waiting-served-ratio", "X", &eo.waiting_served_ratio,
		  "requests join a running batch once waiting / running reaches this ratio [0: at "
		  "once]" },
		{ OPT_INT, 0, "max-waiting-tokens", "N", &eo.max_waiting_tokens,
		  "... or after this many steps without a start [20]" },
	};
	llmc_error err = { 0 };
	llmc_model *m = NULL;
	llmc_engine *e = NULL;
	llmc_server *s = NULL;
	llmc_memory mem = LLMC_INIT(llmc_memory);
	Log log = { .fd = STDERR_FILENO };
	struct rlimit files;
	int code = 0;

	c.seqs = 16;
	for (size_t i = 0; i < sizeof opt / sizeof *opt; i++) {
		if (opt[i].to == &c.seqs)
			opt[i].help = "largest batch: sequences that run at a time [16]";
		if (opt[i].to == &c.context)
			opt[i].help = "positions per sequence [the model's, as far as memory "
			              "allows]";
		if (opt[i].to == &c.memory)
			opt[i].help = "limit of memory, for example 8G; with several models the "
			              "least recently used is closed to make space";
		if (opt[i].to == &c.lora) {
			opt[i].kind = OPT_LIST;
			opt[i].to = &loras;
			opt[i].arg = "[NAME=]DIR";
			opt[i].help = "merge a PEFT LoRA adapter into the weights; with NAME= "
			              "serve it as a further model; may be repeated";
		}
	}
	argv = settings_merge("LLMC_SERVE_", opt, sizeof opt / sizeof *opt, argc, argv, &argc,
	                      &set_models);
	size_t n_arg = OPT_PARSE(&cmd_serve, opt, argc, argv, args);
	if (!sampling_known(sampling))
		return opt_usage_error(&cmd_serve, "--sampling %s: expected model or neutral",
		                       sampling);
	so.neutral_sampling = sampling && !strcmp(sampling, "neutral");
	if (slots < 0 || rank < 0 || (rank && !slots))
		return opt_usage_error(&cmd_serve, "--lora-slots and --lora-rank must be at least "
		                                   "1, and --lora-rank needs --lora-slots");
	snprintf(slots_set, sizeof slots_set, "adapters.slots=%d", slots);
	snprintf(rank_set, sizeof rank_set, "adapters.rank=%d", rank);
	if ((slots && !list_add(&c.set, slots_set)) || (rank && !list_add(&c.set, rank_set)))
		return EXIT_MACHINE;
	code = serve_models(&cmd_serve, &c, n_arg ? args[0] : NULL,
	                    n_arg || models.n ? &models : &set_models, &loras, model_name, &all);
	if (code)
		return code;
	if (draft_path && all.n > 1)
		return opt_usage_error(&cmd_serve, "--draft works only with one model");
	draft_prepare(&all.model[0]->common, draft_path);
	if (speculate < -1 || speculate > LLMC_MAX_SPECULATE)
		return opt_usage_error(&cmd_serve, "--speculate: expected 0 to %d, got %d",
		                       LLMC_MAX_SPECULATE, speculate);
	eo.speculate = speculate == 0 ? -1 : speculate < 0 ? 0 : speculate;
	if (c.seqs < 1)
		return opt_usage_error(&cmd_serve, "--seqs: expected at least 1, got %d", c.seqs);
	if (!(header_s >= 0 && body_s >= 0 && idle_s >= 0 && request_s >= 0 && sleep_s >= 0 &&
	      drain_s >= 0 && leave_s >= 0))
		return opt_usage_error(&cmd_serve, "timeouts must not be negative");
	so.special_text = special && !strcmp(special, "text");
	if (special && !so.special_text && strcmp(special, "special") != 0)
		return opt_usage_error(
		    &cmd_serve, "--special-tokens-in-content: expected special or text, got %s",
		    special);
	if (key_file) {
		if (so.api_key)
			return opt_usage_error(&cmd_serve,
			                       "--api-key and --api-key-file exclude each other");
		so.api_key = key = key_from_file(key_file);
		if (!key || !*key) {
			if (key)
				complain("%s: the first line is empty; expected an API key",
				         key_file);
			free(key);
			return EXIT_INPUT;
		}
	}
	if (log_file) {
		log.path = log_file;
		log.fd = log_open(log_file);
		if (log.fd < 0)
			return EXIT_INPUT;
	}
	log.quiet = c.quiet && !log_file;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur =
		    /* each client needs a descriptor */
		    files.rlim_max > 65536 ? 65536 : files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
#ifdef M_MMAP_THRESHOLD
	/* Return large allocations to the system at once. With the default, the threshold grows and
	 * each thread's heap keeps up to 64 MB. */
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mallopt(M_TRIM_THRESHOLD, 2 << 20);
#endif
	signal(SIGPIPE, SIG_IGN);
	llmc_guard_files(NULL);
	llmc_limits lim = limits_of(&c),
	            /* shared: keeps unset limits at 0, so that each model uses its own */
	    shared = lim;
	shared.kv_tokens = kv_tokens;
	lim.kv_tokens = kv_tokens ? kv_tokens : eo.max_batch_total_tokens;
	lim.snapshots = eo.no_prefix_cache ? 0 : LLMC_DEFAULT_SNAPSHOTS;
	lim.marks = eo.speculate < 0                ? 0
	            : lim.seqs < LLMC_DEFAULT_MARKS ? lim.seqs
	                                            : LLMC_DEFAULT_MARKS;
	Common *first = &all.model[0]->common;
	first->fit = &lim;
	llmc_status status = open_model(first, all.model[0]->path, false, &m, &err);
	first->fit = NULL;
	if (status != LLMC_OK)
		goto out;
	llmc_model_info info = LLMC_INIT(llmc_model_info);
	llmc_info(m, &info);
	if (all.n > 1 && !kv_tokens && !eo.max_batch_total_tokens) /* leave memory to the others */
		lim.kv_tokens =
		    (int64_t)lim.context *
		    (lim.seqs < LLMC_DEFAULT_KV_CONTEXTS ? lim.seqs : LLMC_DEFAULT_KV_CONTEXTS);
	if (draft_path) {
		llmc_fitted fitted = LLMC_INIT(llmc_fitted);
		status = draft_open(first, all.model[0]->path, draft_path, &lim, &c.memory, &draft,
		                    &err);
		if (status == LLMC_OK) /* does it fit next to the draft model? */
			status = llmc_fit_limits(m, &lim, c.memory, &fitted, &err);
		if (status != LLMC_OK)
			goto out;
		eo.draft = draft;
	}
	stop_fd = eventfd(0, EFD_CLOEXEC);
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	if (log_file || so.keys)
		sigaction(SIGHUP, &sa, NULL);
	eo.limits = &lim;
	eo.log = on_log;
	eo.log_user = &log;
	status = llmc_engine_open(m, &eo, &e, &err);
	if (status != LLMC_OK)
		goto out;
	for (size_t i = 1; i < all.n && llmc_adapter_slots(m);
	     i++) { /* report mistakes before the port opens */
		int32_t adapter;
		if (!all.model[i]->adapter)
			continue;
		status = llmc_adapter_load(m, all.model[i]->common.lora, 1, &adapter, &err);
		if (status != LLMC_OK)
			goto out;
		llmc_adapter_unload(m, adapter, NULL);
	}
	so.engine = &eo;
	so.header_timeout_s = header_s;
	so.body_timeout_s = body_s;
	so.idle_timeout_s = idle_s;
	so.request_timeout_s = request_s;
	so.log = on_log;
	so.log_user = &log;
	so.memory_bytes = c.memory;
	so.sleep_after_s = sleep_s;
	all.log = on_log;
	all.log_user = &log;
	status = llmc_memory_for(m, llmc_engine_limits(e), &mem, &err);
	if (status != LLMC_OK)
		goto out;
	llmc_limits in_force = *llmc_engine_limits(e);
	if (!serve_models_init(&all, &eo, &lim, &shared, llmc_adapter_slots(m) > 0)) {
		complain("out of memory");
		code = EXIT_MACHINE;
		goto out;
	}
	for (size_t i = 1; i < all.n; i++)
		all.init[i].parent = all.model[i]->adapter
		                         ? all.model[0]->name ? all.model[0]->name : info.name
		                         : NULL;
	all.init[0].model = m; /* the server owns both from here on */
	all.init[0].engine = e;
	llmc_retain(m); /* reference of the table */
	e = NULL;
	status = llmc_serve_open_models(all.init, (int32_t)all.n, &so, &s, &err);
	if (status != LLMC_OK)
		goto out;
	progress_end();
	llmc_advice advice = LLMC_INIT(llmc_advice);
	llmc_sampling_advice(m, &advice);
	if (!c.json)
		printf("%s\n", first->fit_text);
	if (!c.json && advice.set && !so.neutral_sampling)
		printf("sampling as the model advises (%s): %s\n", advice.source, advice.text);
	memory_table(m, &in_force, &mem, llmc_serve_url(s), c.json);
	llmc_close(m);
	m = NULL;

	if (!serve_on(&log, s, so.keys, info.ranks > 1)) {
		code = EXIT_MACHINE;
		goto out;
	}
	if (leave_s > 0) {
		stops_at_once++; /* the second one ends this phase only */
		if (!c.quiet)
			fprintf(stderr,
			        "llmc: draining: /health returns 503, requests are accepted for "
			        "%.0f s more; signal again to skip\n",
			        (double)leave_s);
		llmc_serve_drain(s);
		for (double end = now() + (double)leave_s;
		     now() < end && !stopped(&log, s, so.keys, 50);)
			;
	}
	if (!c.quiet)
		fprintf(
		    stderr,
		    "llmc: stopping: running requests have %.0f s; signal again to stop at once\n",
		    (double)drain_s);
	llmc_serve_stop(s);
	for (double end = now() + (double)drain_s; !llmc_serve_wait(s, 50) && now() < end;)
		if (stopped(&log, s, so.keys, 0)) {
			code = EXIT_INTERRUPTED;
			break;
		}
out:
	if (status != LLMC_OK)
		code = fail_with(&err);
	llmc_serve_close(s);
	llmc_engine_close(e, 0);
	llmc_close(draft);
	llmc_close(m);
	serve_models_free(&all);
	free(models.v);
	free(set_models.v);
	free(loras.v);
	if (log_file && log.fd >= 0)
		close(log.fd);
	free(key);
	free(c.set.v);
	free(argv);
	return code;
}

const Command cmd_serve = {
	"serve",
	"MODEL | --model NAME=PATH ... [--port N] [options]",
	"serve models over HTTP: APIs of OpenAI, TGI, Anthropic and Ollama, metrics, a chat page",
	"  llmc serve model.gguf\n"
	"  llmc serve model.gguf --port 8080 --context 8192 --seqs 32 --api-key-file key.txt "
	"--host 0.0.0.0\n"
	"  llmc serve model.gguf --prefix-dir /var/lib/llmc/prefix --prefix-dir-size 20G\n"
	"  llmc serve model.gguf --batch-dir /var/lib/llmc/batches --batch-dir-size 4G\n"
	"  llmc serve model-8b.gguf --draft model-0.5b.gguf\n"
	"  llmc serve ~/models/GLM-4.5-Air --draft mtp\n"
	"  llmc serve --model small=model-1b.gguf --model large=model-8b.gguf --memory 16G   "
	"requests select by \"model\"\n"
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

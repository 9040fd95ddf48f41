/* Helpers of several commands: messages, opening, small parsers. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/cli.h"

static bool progress_shown; /* the terminal shows a progress line without a newline */

bool
colour_on(FILE *f)
{
	const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

	return isatty(fileno(f)) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

void
progress_end(void)
{
	if (progress_shown)
		fputs("\r\033[K", stderr);
	progress_shown = false;
}

void
progress(const char *fmt, ...)
{
	va_list ap;

	if (!isatty(STDERR_FILENO))
		return;
	progress_end();
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	progress_shown = true;
	fflush(stderr);
}

void
notice(const char *line)
{
	if (isatty(STDERR_FILENO))
		progress("%s", line);
	else
		fprintf(stderr, "%s\n", line);
}

void
complain(const char *fmt, ...)
{
	va_list ap;

	progress_end();
	fflush(stdout);
	fputs(colour_on(stderr) ? "\033[31mllmc:\033[0m " : "llmc: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

int
exit_code(llmc_status s)
{
	switch (s) {
	case LLMC_OK:
		return 0;
	case LLMC_E_INPUT:
	case LLMC_E_RANGE:
		return EXIT_INPUT;
	case LLMC_E_CHECK:
		return EXIT_CHECK;
	case LLMC_E_CANCELLED:
		return EXIT_INTERRUPTED;
	case LLMC_E_IO:
	case LLMC_E_MEMORY:
	case LLMC_E_FULL:
	case LLMC_E_MISSING:
	case LLMC_E_DEVICE:
	case LLMC_E_BUG:
	case LLMC_E_BUSY:
		return EXIT_MACHINE;
	}
	return EXIT_MACHINE;
}

int
fail_with(const llmc_error *err)
{
	size_t n = strlen(err->text);

	if (n) /* n 0: read_all has printed the error */
		complain("%.*s", (int)(err->text[n - 1] == '\n' ? n - 1 : n), err->text);
	return exit_code(err->code);
}

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
	signal(SIGINT, SIG_IGN); /* rank 0 drains and then ends all ranks */
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
	llmc_status s = llmc_fit_limits(m, c->fit, c->memory, &f, err);

	if (s != LLMC_OK)
		return s;
	*c->fit = f.limits;
	snprintf(c->fit_text, sizeof c->fit_text, "%s", f.text);
	return LLMC_OK;
}

/* A GPU is opened with the model, and refuses weights that do not fit by itself. */
static bool
on_gpu(const Common *c)
{
	const char *device = offload_device(c);

	return device && strncmp(device, "cuda", 4) == 0;
}

llmc_status
options_of(const Common *c, bool no_weights, OpenOptions *out, llmc_error *err)
{
	const char **set = calloc(c->set.n + MAX_OFFLOAD + 7, sizeof *set);
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
		snprintf(out->quantize, sizeof out->quantize, "quant.scheme=%s", c->quantize);
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
	if (c->mtp)
		set[n++] = c->mtp;
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
	o->no_fit = c->fit_mode && !strcmp(c->fit_mode, "never");
	o->log = log_to_stderr;
	o->log_user = (void *)(uintptr_t)c;
	if (c->fit && !on_gpu(c)) {
		o->planned = fit;
		o->planned_user = (void *)(uintptr_t)c;
	}
	return LLMC_OK;
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
	llmc_status s = options_of(c, no_weights, &own, err);
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

	if (c->memory <= 0)
		return LLMC_OK;
	llmc_status s = llmc_memory_for(m, lim, &mem, err);
	int64_t sum = mem.weights + mem.kv + mem.scratch + mem.state;
	if (s == LLMC_OK && sum > c->memory) {
		err->code = s = LLMC_E_FULL;
		snprintf(err->text, sizeof err->text,
		         "needs %s, --memory allows %s; lower --context or --seqs (llmc plan shows "
		         "what fits)",
		         human_bytes((double)sum, want), human_bytes((double)c->memory, have));
	}
	return s;
}

llmc_params
params_of(const Sampling *s)
{
	llmc_params p = s->p;

	p.size = sizeof p;
	p.speculate = s->p.speculate > 0 ? s->p.speculate : -1;
	p.stop = s->stop.v;
	/* "none" alone: no string at all, as in llama.cpp */
	if (s->breakers.n == 1 && !strcmp(s->breakers.v[0], "none"))
		p.dry_sequence_breakers = (const char *const *)&s->breakers.v[1];
	else
		p.dry_sequence_breakers = s->breakers.v;
	return p;
}

bool
parse_ids(const char *text, int32_t **ids, size_t *n)
{
	size_t cap = 1;

	for (const char *p = text; *p; p++)
		cap += *p == ',';
	*n = 0;
	*ids = malloc(cap * sizeof **ids);
	while (*ids && *text) {
		char *end;
		errno = 0;
		long x = strtol(text, &end, 10);
		if (end == text || errno || x < 0 || x > INT32_MAX || (*end && *end != ',') ||
		    (*end == ',' && !end[1])) {
			free(*ids);
			*ids = NULL;
			return false;
		}
		(*ids)[(*n)++] = (int32_t)x;
		text = *end ? end + 1 : end;
	}
	return *ids != NULL;
}

bool
parse_sizes(const char *text, int32_t *v, size_t cap, size_t *n)
{
	int32_t *ids;
	bool ok = parse_ids(text, &ids, n) && *n <= cap;

	if (ok)
		memcpy(v, ids, *n * sizeof *v);
	free(ids);
	return ok;
}

char *
read_all(const char *path, size_t *n)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
	char *buf = NULL;
	size_t cap = 0;

	*n = 0;
	if (!f) {
		complain("%s: %s", path, strerror(errno));
		return NULL;
	}
	for (;;) {
		if (cap - *n < 4096) {
			cap = cap ? 2 * cap : 8192;
			char *p = realloc(buf, cap);
			if (!p) {
				complain("%s: out of memory", path);
				free(buf);
				buf = NULL;
				break;
			}
			buf = p;
		}
		size_t got = fread(buf + *n, 1, cap - *n - 1, f);
		*n += got;
		buf[*n] = 0;
		if (got == 0) {
			if (ferror(f)) {
				complain("%s: cannot read", path);
				free(buf);
				buf = NULL;
			}
			break;
		}
	}
	if (f != stdin)
		fclose(f);
	return buf;
}

static llmc_status
no_memory(llmc_error *err)
{
	err->code = LLMC_E_MEMORY;
	snprintf(err->text, sizeof err->text, "out of memory");
	return LLMC_E_MEMORY;
}

llmc_status
tokenize_alloc(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags, int32_t **ids,
               size_t *n, llmc_error *err)
{
	size_t cap = n_bytes + 16;

	for (;;) {
		*ids = malloc(cap * sizeof **ids);
		if (!*ids)
			return no_memory(err);
		llmc_status s = llmc_tokenize(t, text, n_bytes, flags, *ids, cap, n, err);
		if (s == LLMC_OK)
			return s;
		free(*ids);
		*ids = NULL;
		if (s != LLMC_E_RANGE || *n <= cap)
			return s;
		cap = *n;
	}
}

llmc_status
chat_alloc(const llmc_tokenizer *t, const char *messages, const char *options, char **text,
           size_t *n, llmc_error *err)
{
	size_t cap = 4096;

	for (;;) {
		*text = malloc(cap);
		if (!*text)
			return no_memory(err);
		llmc_status s = llmc_chat(t, messages, options, *text, cap, n, err);
		if (s == LLMC_OK)
			return s;
		free(*text);
		*text = NULL;
		if (s != LLMC_E_RANGE || *n < cap)
			return s;
		cap = *n + 1;
	}
}

void
json_text(FILE *f, const char *s, size_t n)
{
	Strbuf b = { 0 };

	json_str(&b, s, n);
	fwrite(strbuf_str(&b), 1, b.len, f);
	strbuf_release(&b);
}

static volatile sig_atomic_t n_interrupts;

static void
on_interrupt(int sig)
{
	if (n_interrupts++) {
		signal(sig, SIG_DFL);
		raise(sig);
	}
}

void
interrupt_install(void)
{
	struct sigaction sa = { .sa_handler = on_interrupt };

	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
}

bool
interrupted(void)
{
	return n_interrupts > 0;
}

double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool
write_npy(const char *path, const float *x, size_t rows, size_t cols)
{
	char head[128], dict[118];
	FILE *f = fopen(path, "wb");
	int n =
	    snprintf(dict, sizeof dict,
	             "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, cols);

	if (!f || n < 0)
		return false;
	memset(head, ' ', sizeof head);
	memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
	memcpy(head + 10, dict, (size_t)n);
	head[127] = '\n';
	bool ok = fwrite(head, 1, sizeof head, f) == sizeof head &&
	          fwrite(x, sizeof *x, rows * cols, f) == rows * cols;
	return fclose(f) == 0 && ok;
}

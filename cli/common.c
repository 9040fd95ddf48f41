/* Helpers of several commands: messages, opening files, small parsers. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/utf8.h"
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

/* A control character other than newlines and tabs */
static bool
is_terminal_control(int32_t cp)
{
	return (cp >= 0 && cp < 0x20 && cp != '\n' && cp != '\r' && cp != '\t') ||
	       (cp >= 0x7f && cp < 0xa0);
}

void
print_generated(const char *s, size_t n)
{
	if (!isatty(STDOUT_FILENO)) {
		fwrite(s, 1, n, stdout);
	} else {
		for (size_t len; n > 0; s += len, n -= len) {
			const int32_t cp = utf8_next(s, n, &len);
			if (cp < 0) /* not UTF-8: such bytes may control the terminal, too */
				fputs("\xEF\xBF\xBD", stdout);
			else if (is_terminal_control(cp))
				putchar('?');
			else
				fwrite(s, 1, len, stdout);
		}
	}
	fflush(stdout);
}

void
complain(const char *fmt, ...)
{
	char text[8192];
	va_list ap;

	progress_end();
	fflush(stdout);
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	/* the message may quote names of files and answers of servers */
	utf8_make_printable(text, true);
	fprintf(stderr, "%s%s\n", colour_on(stderr) ? "\033[31mllmc:\033[0m " : "llmc: ", text);
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

llmc_params
params_of(const Sampling *s)
{
	llmc_params p = s->p;

	p.size = sizeof p;
	p.speculate = s->p.speculate > 0 ? s->p.speculate : -1;
	p.stop = s->stop.v;
	/* "none" alone means no strings at all, as in llama.cpp */
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

/* Models by name on the command line: downloads them with a progress bar. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

/* Progress of one pull */
typedef struct ProgressBar {
	const char *name;
	bool quiet, tty;
	double begun, drawn, measured;
	int64_t received; /* bytes received at the time `measured` */
	double rate;      /* bytes per second, smoothed */
	bool noted;       /* a note was printed; without a terminal only one per pull */
	bool downloaded;
} ProgressBar;

enum { BAR_CELLS = 24 };

static int
columns(void)
{
	struct winsize w;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

/* Smooth the rate over about three seconds. */
static void
measure(ProgressBar *b, const llmc_pull_state *st)
{
	const double at = clock_now(), dt = at - b->measured;

	if (dt < 0.2)
		return;
	double own = (double)(st->received - b->received) / dt, k = 1 - exp(-dt / 3);
	b->rate = b->rate > 0 ? b->rate + k * (own - b->rate) : own;
	b->received = st->received;
	b->measured = at;
}

static void
time_left(double seconds, char out[32])
{
	int64_t s = seconds < 360000 ? (int64_t)(seconds + 0.5) : 359999;

	if (s >= 3600)
		snprintf(out, 32, "%lld:%02lld:%02lld left", (long long)(s / 3600),
		         (long long)(s / 60 % 60), (long long)(s % 60));
	else
		snprintf(out, 32, "%lld:%02lld left", (long long)(s / 60), (long long)(s % 60));
}

static void
draw(ProgressBar *b, const llmc_pull_state *st)
{
	char done[32], total[32], rate[32], left[32] = "", cells[BAR_CELLS + 1], line[512];
	double share = st->total_bytes > 0 ? (double)st->bytes / (double)st->total_bytes : 0;

	if (clock_now() - b->drawn < 0.1)
		return;
	b->drawn = clock_now();
	if (st->note || !st->total_bytes) {
		progress("%.*s", columns() - 1,
		         st->note ? st->note : "requesting the list of files");
		return;
	}
	share = share < 0 ? 0 : share > 1 ? 1 : share;
	for (int i = 0; i < BAR_CELLS; i++)
		cells[i] = i < (int)(share * BAR_CELLS) ? '=' : ' ';
	cells[BAR_CELLS] = 0;
	if (b->rate > 1)
		time_left((double)(st->total_bytes - st->bytes) / b->rate, left);
	snprintf(line, sizeof line, "[%s] %3.0f%%  %s of %s  %s/s  %s  %d of %d files", cells,
	         floor(100 * share), human_bytes((double)st->bytes, done),
	         human_bytes((double)st->total_bytes, total), human_bytes(b->rate, rate), left,
	         st->n_done, st->n_files);
	progress("%.*s", columns() - 1, line);
}

static bool
on_progress(void *user, const llmc_pull_state *st)
{
	ProgressBar *b = user;
	char size[32];

	if (interrupted())
		return false;
	measure(b, st);
	b->downloaded = b->downloaded || st->received > 0;
	if (b->quiet)
		return true;
	if (b->tty) {
		draw(b, st);
	} else if (st->file) {
		fprintf(stderr, "%s: %s, %s (%d of %d)\n", b->name, st->file,
		        human_bytes((double)st->file_bytes, size), st->n_done, st->n_files);
	} else if (st->note && !b->noted) {
		fprintf(stderr, "%s: %s\n", b->name, st->note);
		b->noted = true;
	}
	return true;
}

llmc_status
model_pull(const char *name, bool update, bool quiet, char path[PATH_MAX], llmc_error *err)
{
	llmc_pull_options o = LLMC_INIT(llmc_pull_options);
	ProgressBar b = {
		.name = name, .quiet = quiet, .tty = isatty(STDERR_FILENO), .begun = clock_now()
	};
	struct sigaction sigint, sigterm;
	size_t need;

	b.measured = b.begun;
	o.update = update;
	o.progress = on_progress;
	o.user = &b;
	sigaction(SIGINT, NULL, &sigint);
	sigaction(SIGTERM, NULL, &sigterm);
	interrupt_install();
	llmc_status s = llmc_pull(name, &o, path, PATH_MAX, &need, err);
	sigaction(SIGINT, &sigint, NULL);
	sigaction(SIGTERM, &sigterm, NULL);
	progress_end();
	if (s == LLMC_OK && b.downloaded && b.tty && !quiet)
		fprintf(stderr, "%s: downloaded in %.1f s\n", name, clock_now() - b.begun);
	return s;
}

llmc_status
model_path(const char **path, bool quiet, llmc_error *err)
{
	static List kept; /* paths that callers keep until the process ends */
	char found[PATH_MAX];

	if (!llmc_is_model_name(*path))
		return LLMC_OK;
	llmc_status s = model_pull(*path, false, quiet, found, err);
	if (s != LLMC_OK)
		return s;
	char *copy = strdup(found);
	if (!copy || !list_add(&kept, copy)) {
		free(copy);
		err->code = LLMC_E_MEMORY;
		snprintf(err->text, sizeof err->text, "out of memory");
		return LLMC_E_MEMORY;
	}
	*path = copy;
	return LLMC_OK;
}

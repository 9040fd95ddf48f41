/* The thread that runs batches, the oldest first: see batch.h.
 *
 * All lines are checked before the first one runs. Several lines run at a time. Each is a request
 * without a connection, at the lowest priority. A line refused for lack of capacity is retried
 * later. Each answer is one line of <id>.part, so that a server that stops or crashes continues
 * after the last complete line. If an answer was not on disk when the machine stopped, its line
 * runs again. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "serve/batch/batch.h"
#include "serve/batch/batch_run.h"
#include "serve/models/model.h"

enum { MAX_TRIES = 20, LOOK_AGAIN_MS = 1000 };

/* ---- output files ---- */

static void
count(BatchRun *run, int which)
{
	pthread_mutex_lock(&run->st->lock);
	*(which ? &run->b->failed : &run->b->completed) += 1;
	pthread_mutex_unlock(&run->st->lock);
}

/* Read what an earlier run has written: mark its lines done and truncate an incomplete last
 * line. */
static bool
open_part(BatchRun *run, int which)
{
	char path[PATH_MAX];
	FileMap old = { 0 };
	size_t whole = 0;
	int64_t n = 0;

	store_path(run->st, path, sizeof path, run->b->file[which], ".part");
	int fd = run->part[which] =
	    open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || file_map(path, &old, NULL) != LLMC_OK)
		return false;
	const char *s = (const char *)old.data;
	for (const char *end; whole < old.size && (end = memchr(s + whole, '\n', old.size - whole));
	     whole = (size_t)(end - s) + 1) {
		Problem p;
		json_t *o = body_parse(s + whole, (size_t)(end - (s + whole)), &p);
		const char *name = json_string_of(o, "custom_id");
		const json_t *line = name ? json_object_get(run->names, name) : NULL;
		size_t i = line ? (size_t)json_integer_value(line) : run->n_line;
		if (i < run->n_line && !run->line[i].done) {
			run->line[i].done = run->line[i].begun = true;
			n++;
		}
		json_decref(o);
	}
	size_t size = old.size;
	file_unmap(&old);
	if (whole < size && ftruncate(fd, (off_t)whole) != 0)
		return false;
	pthread_mutex_lock(&run->st->lock);
	store_count(run->st, run->b->owner, -(int64_t)(size - whole));
	*(which ? &run->b->failed : &run->b->completed) = n;
	pthread_mutex_unlock(&run->st->lock);
	return true;
}

/* Append a line. On failure the file ends with the line before it. */
static bool
append(BatchRun *run, int which, const Strbuf *line)
{
	FileStore *st = run->st;
	int fd = run->part[which];
	struct stat is;

	if (line->failed || fstat(fd, &is) != 0)
		return false;
	pthread_mutex_lock(&st->lock);
	bool room = store_take(st, run->b->owner, (int64_t)line->len);
	pthread_mutex_unlock(&st->lock);
	if (room && file_write_fd(fd, line->data, line->len))
		return true;
	if (room && ftruncate(fd, is.st_size) != 0)
		serve_log(st->srv, LLMC_LOG_WARNING, "%s: an incomplete line stays in %s", st->dir,
		          run->b->file[which]);
	pthread_mutex_lock(&st->lock);
	store_count(st, run->b->owner, room ? -(int64_t)line->len : 0);
	pthread_mutex_unlock(&st->lock);
	return false;
}

/* Begin an answer: id and custom_id of line i. */
static void
line_begin(const BatchRun *run, size_t i, Strbuf *b)
{
	Problem p;
	char id[ID_SIZE];
	json_t *o = batch_line_object(run, i, &p);
	const json_t *name = json_object_get(o, "custom_id");

	store_id(id, "batch_req_");
	json_printf(b, "{\"id\":%s,\"custom_id\":", id);
	json_str(b, json_string_value(name) ? json_string_value(name) : "",
	         json_string_length(name));
	json_decref(o);
}

/* Write the error of a line that did not run before the batch expired. */
static bool
write_expired(BatchRun *run, size_t i)
{
	Strbuf b = { 0 };

	line_begin(run, i, &b);
	strbuf_puts(&b,
	            ",\"response\":null,\"error\":{\"code\":\"batch_expired\",\"message\":\"This "
	            "request could not be executed before the completion window expired.\"}}\n");
	bool ok = append(run, 1, &b);
	strbuf_release(&b);
	if (ok)
		count(run, 1);
	return ok;
}

/* Write the answer of a finished request. */
static bool
write_answer(BatchRun *run, size_t i, const Req *r)
{
	Strbuf b = { 0 };
	const char *text = r->fixed ? r->fixed : strbuf_str(&r->out);
	size_t n = r->fixed ? r->n_fixed : r->out.len;
	int which = r->status >= 200 && r->status < 300 ? 0 : 1;

	line_begin(run, i, &b);
	json_printf(&b, ",\"response\":{\"status_code\":%d,\"request_id\":%s,\"body\":", r->status,
	            r->id);
	if (r->type == type_json && n) {
		size_t from = b.len;
		strbuf_add(&b, text, n);
		for (size_t k = from; k < b.len; k++)
			/* valid JSON has line ends between values only, so replacing them changes
			 * no value */
			if (b.data[k] == '\n' || b.data[k] == '\r')
				b.data[k] = ' ';
	} else {
		json_str(&b, text, n);
	}
	strbuf_puts(&b, "},\"error\":null}\n");
	bool ok = append(run, which, &b);
	strbuf_release(&b);
	if (ok)
		count(run, which);
	return ok;
}

/* ---- lines in flight ---- */

/* Mark the line of r as done. Called on any thread of the server when the answer is complete. */
static void
answered(Req *r)
{
	FileStore *st = r->srv->store;

	pthread_mutex_lock(&st->flight_lock);
	for (int i = 0; i < MAX_FLIGHTS; i++)
		if (st->flight[i].r == r) {
			st->flight[i].done = true;
			pthread_cond_signal(&st->landed);
		}
	pthread_mutex_unlock(&st->flight_lock);
}

/* Return how many lines run at a time: enough to fill the largest batch of the server's engines.
 * The limit is half of the requests that the smallest engine accepts, since all lines may name the
 * same model. */
static int
flights_for(Server *s)
{
	int n = 0, most = 2 * MAX_FLIGHTS;

	pthread_mutex_lock(&s->lock);
	for (int i = 0; i < s->n_slots; i++) {
		const Backend *b = &s->slot[i]->about;
		const int wanted = b->limits.seqs > 0 ? 2 * b->limits.seqs : 16;
		n = wanted > n ? wanted : n;
		if (b->max_concurrent > 0 && b->max_concurrent < most)
			most = b->max_concurrent;
	}
	pthread_mutex_unlock(&s->lock);
	if (n > most / 2)
		n = most / 2;
	return n < 1 ? 1 : n > MAX_FLIGHTS ? MAX_FLIGHTS : n;
}

static void
submit_line(BatchRun *run, size_t i)
{
	FileStore *st = run->st;
	const char *at = NULL;
	size_t n = 0;
	int place = 0;

	run->line[i].begun = true;
	batch_value_span((const char *)run->in.data + run->line[i].at, run->line[i].n, "body", &at,
	                 &n);
	Req *r = req_inside(st->srv, run->b->endpoint, run->b->owner, at ? at : "", n, answered);
	if (!r) { /* out of memory */
		run->again[run->n_again++] = (uint32_t)i;
		run->pause_until = clock_now() + 1;
		return;
	}
	pthread_mutex_lock(&st->flight_lock);
	while (st->flight[place].r)
		place++;
	st->flight[place] = (InFlightLine){ .r = r, .line = i };
	pthread_mutex_unlock(&st->flight_lock);
	run->n_flights++;
	req_whole(r);
}

/* Report whether to retry a line. A refusal for lack of capacity is always retried, another server
 * error up to MAX_TRIES times. A line waits while its model's device is lost. If the device failed
 * during the line, this counts as a try, because the line may be the cause; if the model cannot be
 * opened again, the line waits for the next start of the server. */
static bool
may_wait(const Req *r, BatchLine *line)
{
	pthread_mutex_lock(&r->srv->lock);
	const bool lost = r->slot && slot_failed(r->slot),
	           waits = lost && (r->status == 503 || (r->status >= 500 && !r->slot->src.open));
	pthread_mutex_unlock(&r->srv->lock);
	return r->status == 429 || waits ||
	       ((r->status == 503 || r->device_failed) && line->tries++ < MAX_TRIES);
}

static void
complete_line(BatchRun *run, const InFlightLine *f)
{
	BatchLine *line = &run->line[f->line];
	double later = 0.05;

	run->n_flights--;
	if (may_wait(f->r, line)) {
		run->again[run->n_again++] = (uint32_t)f->line;
		for (int i = 0; i < run->busy && later < 30; i++)
			later *= 2;
		run->busy++;
		run->pause_until = clock_now() + later;
	} else {
		run->busy = 0;
		run->n_landed++;
		line->done = true;
		run->full |= !write_answer(run, f->line, f->r);
	}
	req_over(f->r, true);
}

/* Release all requests in flight without reading their answers. */
static void
abort_flights(BatchRun *run)
{
	FileStore *st = run->st;

	for (int i = 0; i < MAX_FLIGHTS; i++) {
		pthread_mutex_lock(&st->flight_lock);
		Req *r = st->flight[i].r;
		st->flight[i].r = NULL;
		pthread_mutex_unlock(&st->flight_lock);
		if (r)
			req_over(r, false);
	}
	run->n_flights = 0;
}

/* Take a finished line from the table. With `until`: wait for one, for a nudge, or for the time. */
static bool
pop_completed(FileStore *st, const struct timespec *until, InFlightLine *out)
{
	bool found = false, more = true;

	pthread_mutex_lock(&st->flight_lock);
	while (!found && more) {
		for (int i = 0; i < MAX_FLIGHTS && !found; i++)
			if (st->flight[i].r && st->flight[i].done) {
				*out = st->flight[i];
				st->flight[i].r = NULL;
				found = true;
			}
		more = until && !st->nudged && !found &&
		       pthread_cond_timedwait(&st->landed, &st->flight_lock, until) == 0;
	}
	if (until)
		st->nudged = false;
	pthread_mutex_unlock(&st->flight_lock);
	return found;
}

/* Report whether the thread has something to do for b now; lock held. */
static bool
ready(const Batch *b)
{
	return !batch_ended(b) && !b->fresh && (b->cancel || b->later <= clock_now());
}

/* Report whether to yield to another batch. It yields if enough lines have been answered and
 * another owner has work, or if its lines only wait and any other batch has work. Lock held. */
static bool
should_yield(const BatchRun *run)
{
	const bool enough = run->n_landed >= SLICE + run->n_line / 32;
	const bool waits =
	    !run->n_flights && run->pause_until > clock_now() + LOOK_AGAIN_MS / 1000.0;

	for (const Batch *b = run->st->first; b && (enough || waits); b = b->next)
		if (b != run->b && ready(b) && (waits || strcmp(b->owner, run->b->owner) != 0))
			return true;
	return false;
}

/* Return the next line to run; n_line: none now. */
static size_t
next_line(BatchRun *run)
{
	if (run->n_flights >= run->most_flights || clock_now() < run->pause_until)
		return run->n_line;
	/* retries first, so that `again` never holds more than the lines in flight */
	if (run->n_again)
		return run->again[--run->n_again];
	while (run->next < run->n_line && run->line[run->next].begun)
		run->next++;
	return run->next;
}

/* Run lines until all are answered, or the batch yields, or the run is stopped. */
static void
run_lines(BatchRun *run)
{
	FileStore *st = run->st;
	InFlightLine f;

	run->most_flights = flights_for(st->srv);
	for (;;) {
		if (pop_completed(st, NULL, &f)) {
			complete_line(run, &f);
			continue;
		}
		pthread_mutex_lock(&st->lock);
		bool end = st->stop || run->b->cancel || run->full;
		run->yields = run->yields || should_yield(run);
		pthread_mutex_unlock(&st->lock);
		if (end || time(NULL) >= run->b->expires || (run->yields && !run->n_flights))
			break;
		size_t i = st->srv->draining || run->yields ? run->n_line : next_line(run);
		if (i < run->n_line) {
			submit_line(run, i);
			continue;
		}
		if (!run->n_flights && !run->n_again && run->next == run->n_line)
			break;
		struct timespec t;
		double left = run->pause_until - clock_now();
		clock_after(&t, left > 0 && left < 1 ? 1 + (int)(1000 * left) : LOOK_AGAIN_MS);
		if (pop_completed(st, &t, &f))
			complete_line(run, &f);
	}
	abort_flights(run);
}

/* ---- life of a batch ---- */

static void
set_status(BatchRun *run, BatchStatus status)
{
	Batch *b = run->b;
	char id[ID_SIZE];

	memcpy(id, b->id, sizeof id); /* copied, because b may be freed once the batch has ended */
	pthread_mutex_lock(&run->st->lock);
	if (b->cancel && status < BATCH_COMPLETED)
		status = BATCH_CANCELLING;
	b->status = status;
	if (!b->at[status])
		b->at[status] = time(NULL);
	if (run->errors && !b->errors)
		b->errors = json_pack("{s:s, s:O}", "object", "list", "data", run->errors);
	pthread_mutex_unlock(&run->st->lock);
	batch_save(run->st, id);
}

/* Rename a .part file to a file that the client can read. */
static void
keep_part(BatchRun *run, int which)
{
	static const char *const what[2] = { "output", "error" };
	char part[PATH_MAX], path[PATH_MAX], name[ID_SIZE + 16];
	FileStore *st = run->st;
	Batch *b = run->b;
	struct stat is;

	if (run->part[which] < 0)
		return;
	store_path(st, part, sizeof part, b->file[which], ".part");
	store_path(st, path, sizeof path, b->file[which], "");
	bool known = fstat(run->part[which], &is) == 0;
	/* on a failure keep the lines that are on the disk */
	run->full |= fsync(run->part[which]) != 0 || !known;
	close(run->part[which]);
	run->part[which] = -1;
	if (!known)
		return;
	if (!is.st_size) {
		unlink(part);
		return;
	}
	snprintf(name, sizeof name, "%s_%s.jsonl", b->id, what[which]);
	StoredFile f = { .name = name,
		         .owner = b->owner,
		         .purpose = "batch_output",
		         .bytes = is.st_size,
		         .created = time(NULL) };
	memcpy(f.id, b->file[which], sizeof f.id);
	bool there = rename(part, path) == 0;
	pthread_mutex_lock(&st->lock);
	b->has[which] = there && store_add(st, &f);
	run->full |= !b->has[which];
	pthread_mutex_unlock(&st->lock);
}

static void
finish(BatchRun *run)
{
	bool late = time(NULL) >= run->b->expires, expired = false, cancelled;

	pthread_mutex_lock(&run->st->lock);
	cancelled = run->b->cancel;
	pthread_mutex_unlock(&run->st->lock);
	for (size_t i = 0; i < run->n_line && late && !cancelled && !run->full && run->part[1] >= 0;
	     i++)
		if (!run->line[i].done) {
			expired = true;
			run->full |= !write_expired(run, i);
		}
	set_status(run, BATCH_FINALIZING);
	for (int i = 0; i < 2; i++)
		keep_part(run, i);
	if (run->full)
		batch_wrong(run, 0, "storage_full", NULL,
		            "The server's disk is full: the files hold the answers so far.");
	set_status(run, run->full   ? BATCH_FAILED
	                : cancelled ? BATCH_CANCELLED
	                : expired   ? BATCH_EXPIRED
	                            : BATCH_COMPLETED);
}

/* Fail a batch whose file is invalid. If the file was valid at an earlier start, the client gets
 * the answers made then. */
static void
fail(BatchRun *run)
{
	char path[PATH_MAX];

	for (int i = 0; i < 2; i++) {
		store_path(run->st, path, sizeof path, run->b->file[i], ".part");
		run->part[i] = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
		keep_part(run, i);
	}
	set_status(run, BATCH_FAILED);
}

/* Restore the retry counts of the previous turn. That turn ended with no lines in flight, and lines
 * begin in order, so the lines to retry are the first ones that are not done. */
static void
restore_tries(BatchRun *run)
{
	int left = run->b->waited;

	for (size_t i = 0; i < run->n_line && left > 0; i++)
		if (!run->line[i].done) {
			run->line[i].tries = (uint8_t)run->b->tries;
			left--;
		}
}

static void
batch_run(FileStore *st, Batch *b)
{
	BatchRun run = { .st = st, .b = b, .part = { -1, -1 }, .busy = b->busy };
	bool fine = batch_check(&run), stop;

	pthread_mutex_lock(&st->lock);
	stop = st->stop;
	b->total = run.errors ? 0 : (int64_t)run.n_line;
	if (run.errors)
		b->completed = b->failed = 0;
	pthread_mutex_unlock(&st->lock);
	if (fine && !stop) {
		set_status(&run, BATCH_IN_PROGRESS);
		if (!open_part(&run, 0) || !open_part(&run, 1)) {
			run.full = true;
		} else {
			restore_tries(&run);
			run_lines(&run);
		}
	}
	bool left = false;
	int tries = 0;
	for (size_t i = 0; i < run.n_line; i++) {
		left |= !run.line[i].done;
		tries = run.line[i].tries > tries ? run.line[i].tries : tries;
	}
	pthread_mutex_lock(&st->lock);
	b->later = run.pause_until;
	b->busy = run.busy;
	b->tries = tries;
	b->waited = run.n_landed ? 0 : run.n_again;
	stop = st->stop;
	/* it yields, and continues in its next turn as after a restart */
	bool turn = run.yields && left && !run.full && !b->cancel && time(NULL) < b->expires;
	pthread_mutex_unlock(&st->lock);
	if (run.errors && !run.full && !stop)
		fail(&run);
	else if (!stop && !turn)
		finish(&run);
	for (int i = 0; i < 2; i++)
		if (run.part[i] >= 0)
			close(run.part[i]);
	file_unmap(&run.in);
	json_decref(run.names);
	json_decref(run.errors);
	free(run.line);
}

/* Wait for work: a new batch, or the time at which a waiting batch may run. Lock held. */
static void
wait_for_work(FileStore *st)
{
	bool waits = false;
	struct timespec t;

	for (const Batch *b = st->first; b && !waits; b = b->next)
		waits = !batch_ended(b) && !b->fresh;
	clock_after(&t, LOOK_AGAIN_MS);
	if (waits)
		pthread_cond_timedwait(&st->change, &st->lock, &t);
	else
		pthread_cond_wait(&st->change, &st->lock);
}

/* Choose the oldest batch of the owner least recently served; NULL: nothing to do. Lock held. */
static Batch *
next_batch(FileStore *st)
{
	Batch *best = NULL;

	for (Batch *b = st->first; b; b = b->next)
		if (ready(b) && (!best || store_share(st, b->owner)->served <
		                              store_share(st, best->owner)->served))
			best = b;
	return best;
}

static void *
work(void *arg)
{
	FileStore *st = arg;

	pthread_mutex_lock(&st->lock);
	while (!st->stop) {
		Batch *b = next_batch(st);
		if (!b) {
			wait_for_work(st);
			continue;
		}
		store_share(st, b->owner)->served = ++st->n_served;
		pthread_mutex_unlock(&st->lock);
		batch_run(st, b);
		pthread_mutex_lock(&st->lock);
	}
	pthread_mutex_unlock(&st->lock);
	return NULL;
}

llmc_status
batch_start(FileStore *st, llmc_error *err)
{
	st->has_thread = pthread_create(&st->thread, NULL, work, st) == 0;
	return st->has_thread
	           ? LLMC_OK
	           : error_set(err, LLMC_E_MEMORY, "the server's threads could not be started");
}

void
batch_stop(FileStore *st)
{
	if (!st || !st->has_thread)
		return;
	pthread_mutex_lock(&st->lock);
	st->stop = true;
	pthread_cond_broadcast(&st->change);
	pthread_mutex_unlock(&st->lock);
	batch_wake(st);
	pthread_join(st->thread, NULL);
	st->has_thread = false;
}

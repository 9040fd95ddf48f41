/* Downloads several files at once into the cache.
 *
 * A transfer goes through these states; each belongs to one HubPart:
 *
 *   WAITING   not begun, or until a time after a failure
 *   LOCKED    another process downloads this blob; look again
 *   HASHING   the part that an earlier pull left is read for its hash, in slices
 *   RUNNING   libcurl receives it
 *   FINISHED
 *
 * Bytes are appended to dest.incomplete and hashed in the order of arrival. The file gets its name
 * after size and hash are right, and after fdatasync, so a name means a complete file. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/number.h"
#include "hub/hub.h"

enum { PARALLEL = 4, SLICE_BYTES = 8 << 20, POLL_MS = 100 };

typedef enum HubTransferState { WAITING, LOCKED, HASHING, RUNNING, FINISHED } HubTransferState;

typedef struct HubTransfer {
	Hub *h;
	HubPart *p;
	HubTransferState state;
	const char *part;      /* dest.incomplete */
	const char *part_etag; /* file with the part's ETag; NULL: content with a known hash */
	const char *now;       /* address after redirects */
	HubRequest r;
	int lock, fd;
	int64_t at;      /* number of bytes in the part */
	int64_t counted; /* number of bytes of the part that h->state.bytes includes */
	int64_t from;    /* first byte of the current request */
	int64_t size;    /* -1: not known yet */
	bool begun;      /* the head of the answer has been checked */
	bool accepted;   /* the body of the answer belongs to the part */
	bool resumed;    /* the part has bytes of an earlier request */
	/* bytes of an earlier request were thrown away because the hash was wrong */
	bool restarted;
	int64_t best; /* largest `at` so far; more bytes are progress */
	int tries, redirects;
	double after; /* earliest time of the next request */
	Sha256 sha256;
	Sha1 sha1;
	llmc_error err; /* error of the write callback */
} HubTransfer;

/* ---- parts ---- */

static void
hash_reset(HubTransfer *t)
{
	char head[40];

	sha256_init(&t->sha256);
	sha1_init(&t->sha1);
	if (t->p->git_oid && !t->p->sha256) /* a git blob begins with its length */
		sha1_add(&t->sha1, head,
		         (size_t)snprintf(head, sizeof head, "blob %lld", (long long)t->p->size) +
		             1);
}

static void
hash_add(HubTransfer *t, const void *data, size_t n)
{
	if (t->p->sha256)
		sha256_add(&t->sha256, data, n);
	else if (t->p->git_oid)
		sha1_add(&t->sha1, data, n);
}

/* Update the progress of the pull. */
static void
count(HubTransfer *t)
{
	t->h->state.bytes += t->at - t->counted;
	t->counted = t->at;
}

static llmc_status
part_restart(HubTransfer *t, llmc_error *err)
{
	if (ftruncate(t->fd, 0) < 0 || lseek(t->fd, 0, SEEK_SET) < 0)
		return error_set(err, LLMC_E_IO, "%s: cannot shorten: %s", t->part,
		                 strerror(errno));
	t->at = 0;
	t->resumed = false;
	hash_reset(t);
	count(t);
	return LLMC_OK;
}

/* Try to lock the blob. huggingface_hub uses the same lock file. False: another process holds the
 * lock. */
static bool
lock_try(HubTransfer *t, llmc_status *status, llmc_error *err)
{
	struct stat own, named;

	for (int i = 0; i < 3; i++) {
		t->lock = open(t->p->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
		if (t->lock < 0) {
			*status = error_set(err, LLMC_E_IO, "%s: cannot create: %s", t->p->lock,
			                    strerror(errno));
			return false;
		}
		bool got = flock(t->lock, LOCK_EX | LOCK_NB) == 0;
		if (!got && errno != EWOULDBLOCK && errno != EINTR)
			return true; /* this file system has no locks */
		/* another process may have removed the file before it was locked here */
		if (got && fstat(t->lock, &own) == 0 && stat(t->p->lock, &named) == 0 &&
		    own.st_ino == named.st_ino && own.st_dev == named.st_dev)
			return true;
		close(t->lock);
		t->lock = -1;
		if (!got)
			return false;
	}
	return false;
}

static void
release(HubTransfer *t)
{
	if (t->fd >= 0)
		close(t->fd);
	if (t->lock >= 0)
		close(t->lock);
	t->fd = t->lock = -1;
}

static bool
is_complete(const HubPart *p)
{
	struct stat st;

	return !p->update && stat(p->dest, &st) == 0 && S_ISREG(st.st_mode) &&
	       (p->size < 0 || st.st_size == p->size);
}

static llmc_status
finish(HubTransfer *t, llmc_error *err)
{
	release(t);
	t->state = FINISHED;
	t->h->state.n_done++;
	if (t->p->link)
		TRY(hub_link(t->p->dest, t->p->link, t->h->a, err));
	return hub_report(t->h, t->p->name, t->at, NULL) ? LLMC_OK : hub_cancelled(err);
}

/* Compare the hash of the content. False: it differs; `got` receives the hash. */
static bool
hash_is_right(HubTransfer *t, char got[65])
{
	if (t->p->sha256) {
		sha256_hex(&t->sha256, got);
		return strcmp(got, t->p->sha256) == 0;
	}
	if (t->p->git_oid) {
		sha1_hex(&t->sha1, got);
		return strcmp(got, t->p->git_oid) == 0;
	}
	return true;
}

static llmc_status
etag_write(const char *path, const char *etag, llmc_error *err)
{
	return path && *etag ? file_write(path, etag, strlen(etag), err) : LLMC_OK;
}

/* Call when all bytes are here: checks them and gives the file its name. */
static llmc_status
complete(HubTransfer *t, llmc_error *err)
{
	char got[65];

	if (!hash_is_right(t, got)) {
		/* the part of an earlier pull was damaged: download again from 0 */
		if (t->resumed && !t->restarted) {
			TRY(part_restart(t, err));
			t->restarted = true;
			t->state = WAITING;
			release(t);
			return LLMC_OK;
		}
		unlink(t->part);
		return error_set(err, LLMC_E_CHECK,
		                 "%s: the %s of the received file is %s, expected %s; the server "
		                 "or a proxy sends another content",
		                 t->p->name, t->p->sha256 ? "SHA-256" : "git hash", got,
		                 t->p->sha256 ? t->p->sha256 : t->p->git_oid);
	}
	if (fdatasync(t->fd) < 0 && errno != EINVAL && errno != EROFS)
		return error_set(err, LLMC_E_IO, "%s: cannot write: %s", t->part, strerror(errno));
	if (rename(t->part, t->p->dest) < 0)
		return error_set(err, LLMC_E_IO, "%s: cannot rename to %s: %s", t->part, t->p->dest,
		                 strerror(errno));
	if (t->part_etag && rename(t->part_etag, t->p->etag_file) < 0)
		unlink(t->p->etag_file);
	return finish(t, err);
}

/* ---- requests ---- */

/* Decide whether the body that begins now belongs to the part, and at which offset. False: t->err
 * is set. */
static bool
begin_body(HubTransfer *t)
{
	HubAnswer *head = &t->r.head;
	int64_t first, total = -1, length = -1;

	t->begun = true;
	t->accepted = false;
	t->h->curl.easy_getinfo(t->r.easy, CURLINFO_RESPONSE_CODE, &head->status);
	t->h->curl.easy_getinfo(t->r.easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	if (head->status != 200 && head->status != 206)
		return true; /* the body of an error or a redirect */
	if (head->status == 206) {
		if (!http_content_range(head->content_range, &first, &total) || first != t->from) {
			error_set(&t->err, LLMC_E_IO,
			          "%s: the server answers a request from byte %lld on with "
			          "\"Content-Range: %s\"",
			          t->p->name, (long long)t->from, head->content_range);
			return false;
		}
	} else {
		if (t->at > 0 && part_restart(t, &t->err) != LLMC_OK)
			return false;
		t->from = 0;
		total = length;
	}
	if (etag_write(t->part_etag, head->etag, &t->err) != LLMC_OK)
		return false;
	if (t->p->size >= 0 && total >= 0 && total != t->p->size) {
		error_set(&t->err, LLMC_E_CHECK,
		          "%s: the server has %lld bytes, the list of files %lld", t->p->name,
		          (long long)total, (long long)t->p->size);
		return false;
	}
	if (total > HUB_MAX_FILE_BYTES) {
		error_set(&t->err, LLMC_E_CHECK, "%s: the server announces %lld bytes", t->p->name,
		          (long long)total);
		return false;
	}
	if (t->p->size < 0 && total >= 0 && t->size < 0)
		t->h->state.total_bytes += total;
	t->size = t->p->size >= 0 ? t->p->size : total;
	t->accepted = true;
	return true;
}

static size_t
on_data(char *data, size_t one, size_t n, void *user)
{
	HubTransfer *t = user;

	n *= one;
	if (!t->begun && !begin_body(t))
		return 0;
	if (!t->accepted)
		return n;
	if (t->size >= 0 && (int64_t)n > t->size - t->at) {
		error_set(&t->err, LLMC_E_CHECK, "%s: the server sends more than %lld bytes",
		          t->p->name, (long long)t->size);
		return 0;
	}
	for (size_t done = 0; done < n;) {
		ssize_t w = write(t->fd, data + done, n - done);
		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0) {
			error_set(&t->err, LLMC_E_IO, "%s: cannot write: %s", t->part,
			          strerror(errno));
			return 0;
		}
		hash_add(t, data + done, (size_t)w);
		t->at += w;
		t->h->state.received += w;
		done += (size_t)w;
	}
	if (t->at > t->best) {
		t->best = t->at;
		t->tries = 0;
	}
	count(t);
	return n;
}

/* Return the header that makes a request conditional: If-Range for the rest of a part,
 * If-None-Match for a file that exists. NULL: none. */
static const char *
condition(HubTransfer *t)
{
	char etag[256];
	Strbuf *text = arena_strbuf(t->h->a);

	if (!t->p->etag_file)
		return NULL;
	const char *path = t->at > 0 ? t->part_etag : t->p->etag_file;
	if (file_read(path, sizeof etag - 1, text, NULL) != LLMC_OK || !text->len)
		return NULL;
	snprintf(etag, sizeof etag, "%s", strbuf_str(text));
	if (strpbrk(etag, "\r\n"))
		return NULL;
	return arena_printf(t->h->a, "%s: %s", t->at > 0 ? "If-Range" : "If-None-Match", etag);
}

static llmc_status
request(HubTransfer *t, void *multi, llmc_error *err)
{
	const CurlCalls *c = &t->h->curl;

	t->from = t->at;
	t->begun = false;
	const char *only_if = condition(t);
	/* without a strong ETag nothing proves that the rest belongs to the same file: begin
	 * again */
	if (t->at > 0 && t->p->etag_file && (!only_if || strstr(only_if, "W/"))) {
		TRY(part_restart(t, err));
		t->from = 0;
		only_if = NULL;
	}
	TRY(http_prepare(t->h, &t->r, t->now, only_if, err));
	c->easy_setopt(t->r.easy, CURLOPT_WRITEFUNCTION, on_data);
	c->easy_setopt(t->r.easy, CURLOPT_WRITEDATA, t);
	c->easy_setopt(t->r.easy, CURLOPT_PRIVATE, t);
	if (t->from > 0) {
		char range[32];
		snprintf(range, sizeof range, "%lld-", (long long)t->from);
		c->easy_setopt(t->r.easy, CURLOPT_RANGE, range);
	}
	if (c->multi_add_handle(multi, t->r.easy) != 0)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	t->state = RUNNING;
	return LLMC_OK;
}

static llmc_status
open_part(HubTransfer *t, llmc_error *err)
{
	struct stat st;

	t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
	if (t->fd < 0 || fstat(t->fd, &st) < 0)
		return error_set(err, LLMC_E_IO, "%s: cannot open: %s", t->part, strerror(errno));
	hash_reset(t);
	t->at = 0;
	t->resumed = st.st_size > 0;
	if (t->p->size >= 0 && st.st_size > t->p->size)
		return part_restart(t, err);
	t->state = HASHING;
	return LLMC_OK;
}

/* Read and hash the next slice of the part that an earlier pull left. */
static llmc_status
hash_slice(HubTransfer *t, void *multi, char *buf, llmc_error *err)
{
	ssize_t n = read(t->fd, buf, SLICE_BYTES);

	if (n < 0)
		return error_set(err, LLMC_E_IO, "%s: cannot read: %s", t->part, strerror(errno));
	hash_add(t, buf, (size_t)n);
	t->at += n;
	count(t);
	if (n > 0)
		return LLMC_OK;
	if (t->p->size >= 0 && t->at == t->p->size)
		return complete(t, err);
	return request(t, multi, err);
}

/* Begin a transfer: lock the blob, check whether another process has completed it meanwhile, open
 * the part. */
static llmc_status
begin(HubTransfer *t, llmc_error *err)
{
	llmc_status status = LLMC_OK;
	struct stat st;

	if (t->lock < 0 && !lock_try(t, &status, err)) {
		if (status != LLMC_OK)
			return status;
		t->state = LOCKED;
		t->after = clock_now() + 0.1;
		if (stat(t->part, &st) == 0) { /* show the progress of the other process */
			t->at = st.st_size;
			count(t);
		}
		return LLMC_OK;
	}
	t->now = t->p->url;
	t->redirects = 0;
	if (is_complete(t->p)) {
		t->at = t->p->size >= 0 ? t->p->size : t->at;
		count(t);
		return finish(t, err);
	}
	if (t->fd < 0)
		TRY(open_part(t, err));
	else
		t->state = HASHING; /* HASHING also for an empty part, which ends at once */
	return LLMC_OK;
}

/* ---- answers ---- */

static llmc_status
refused(HubTransfer *t, llmc_error *err)
{
	const HubAnswer *head = &t->r.head;

	if (head->status == 416) /* range beyond the end: the part belongs to another file */
		return part_restart(t, err);
	if (head->status == 401 || head->status == 403)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the server refuses access (%ld)%s%s; access to a private or "
		                 "gated model needs HF_TOKEN",
		                 t->p->name, head->status, *head->error_message ? ": " : "",
		                 head->error_message);
	if (head->status == 404 || head->status == 410)
		return error_set(err, LLMC_E_INPUT, "%s: no such file on the server (%ld)",
		                 t->p->name, head->status);
	return error_set(err, LLMC_E_IO, "%s: the server answers %ld%s%s", t->p->name, head->status,
	                 *head->error_message ? ": " : "", head->error_message);
}

/* Check the hash that the endpoint sends for a large file: it must equal the hash in the list of
 * files. */
static llmc_status
check_linked(const HubTransfer *t, llmc_error *err)
{
	const char *etag = t->r.head.linked_etag;
	size_t n;

	if (!*etag || !t->p->sha256 || !http_same_origin(t->now, t->h->cfg.endpoint))
		return LLMC_OK;
	etag += strncmp(etag, "W/", 2) == 0 ? 2 : 0;
	etag += *etag == '"';
	n = strcspn(etag, "\"");
	if (n == strlen(t->p->sha256) && strncmp(etag, t->p->sha256, n) == 0)
		return LLMC_OK;
	return error_set(err, LLMC_E_CHECK,
	                 "%s: the server announces the SHA-256 %.*s, the list of files has %s",
	                 t->p->name, (int)n, etag, t->p->sha256);
}

static llmc_status
retry_after(HubTransfer *t, double wait)
{
	t->tries++;
	t->state = WAITING;
	t->after = clock_now() + wait;
	t->now = t->p->url; /* the signed address may have expired: request a new one */
	t->redirects = 0;
	t->resumed = t->at > 0;
	return LLMC_OK;
}

/* Handle the end of a request; code: libcurl's result. */
static llmc_status
ended(HubTransfer *t, int code, void *multi, llmc_error *err)
{
	double wait;
	const HubAnswer *head = &t->r.head;

	if (t->err.code)
		return error_set(err, t->err.code, "%s", t->err.text);
	HubVerdict v =
	    http_verdict(t->h, &t->r, code, t->now, t->tries, t->h->state.received > 0, &wait, err);
	if (v == HTTP_FAILED)
		return err->code;
	TRY(check_linked(t, err));
	if (v == HTTP_AGAIN)
		return retry_after(t, wait);
	if (v == HTTP_REDIRECT) {
		if (++t->redirects > HTTP_REDIRECTS)
			return error_set(err, LLMC_E_IO, "%s: too many redirects", t->p->name);
		TRY(http_redirect(t->h, &t->r, t->now, &t->now, err));
		return request(t, multi, err);
	}
	if (head->status == 304 && t->p->update) {
		unlink(t->part);
		return finish(t, err);
	}
	if (head->status != 200 && head->status != 206) {
		TRY(refused(t, err));
		return t->tries + 1 < HTTP_TRIES
		           ? retry_after(t, 0)
		           : error_set(err, LLMC_E_IO, "%s: the server refuses the range %lld-",
		                       t->p->name, (long long)t->from);
	}
	if (!t->begun && !begin_body(t)) /* the body was empty, so no data callback has come */
		return error_set(err, t->err.code, "%s", t->err.text);
	if (t->size >= 0 && t->at < t->size) {
		if (t->tries + 1 < HTTP_TRIES)
			return retry_after(t, wait);
		return error_set(err, LLMC_E_IO,
		                 "%s: the server sends %lld of %lld bytes; what was received is "
		                 "kept, so run the command again",
		                 t->p->name, (long long)t->at, (long long)t->size);
	}
	return complete(t, err);
}

/* ---- all transfers ---- */

static llmc_status
messages(Hub *h, void *multi, llmc_error *err)
{
	CurlMessage *m;
	int left;

	while ((m = h->curl.multi_info_read(multi, &left)) != NULL) {
		HubTransfer *t = NULL;
		int code = m->data.result;
		if (m->msg != CURLMSG_DONE)
			continue;
		h->curl.easy_getinfo(m->easy, CURLINFO_PRIVATE, &t);
		h->curl.multi_remove_handle(multi, t->r.easy);
		t->state = WAITING;
		TRY(ended(t, code, multi, err));
		if (t->state != RUNNING)
			http_close(h, &t->r);
	}
	return LLMC_OK;
}

/* Advance every transfer; returns how many are not finished. */
static llmc_status
step(HubTransfer *t, size_t n, void *multi, char *buf, size_t *left, bool *idle, llmc_error *err)
{
	const double at = clock_now();
	int active = 0;

	*left = 0;
	*idle = true;
	for (size_t i = 0; i < n; i++)
		active += t[i].state == RUNNING || t[i].state == HASHING;
	for (size_t i = 0; i < n; i++) {
		if ((t[i].state == WAITING || t[i].state == LOCKED) && active < PARALLEL &&
		    at >= t[i].after) {
			TRY(begin(&t[i], err));
			active += t[i].state == HASHING;
		}
		if (t[i].state == HASHING) {
			TRY(hash_slice(&t[i], multi, buf, err));
			*idle = false;
		}
		*left += t[i].state != FINISHED;
	}
	return LLMC_OK;
}

static llmc_status
run(Hub *h, HubTransfer *t, size_t n, void *multi, char *buf, llmc_error *err)
{
	for (;;) {
		size_t left, n_locked = 0;
		bool idle;
		int running = 0, ready = 0;
		TRY(step(t, n, multi, buf, &left, &idle, err));
		if (!left)
			return LLMC_OK;
		h->curl.multi_perform(multi, &running);
		TRY(messages(h, multi, err));
		for (size_t i = 0; i < n; i++)
			n_locked += t[i].state == LOCKED;
		if (!hub_report(h, NULL, 0,
		                n_locked && !running ? "another process downloads this model"
		                                     : NULL))
			return hub_cancelled(err);
		if (!idle)
			continue;
		h->curl.multi_wait(multi, NULL, 0, POLL_MS, &ready);
		if (!ready && !running) {
			struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };
			nanosleep(&pause, NULL);
		}
	}
}

/* Refuse if the disk has less free space than the missing files need. */
static llmc_status
check_disk(Hub *h, const HubPart *p, size_t n, llmc_error *err)
{
	struct statvfs fs;
	struct stat st;
	int64_t need = 0;
	char want[32], have[32];

	for (size_t i = 0; i < n; i++) {
		const char *part = arena_printf(h->a, "%s.incomplete", p[i].dest);
		if (p[i].size > 0 && !is_complete(&p[i]))
			need += p[i].size - (stat(part, &st) == 0 && st.st_size <= p[i].size
			                         ? (int64_t)st.st_size
			                         : 0);
	}
	char *copy = arena_strdup(h->a, p[0].dest), *dir = dirname(copy);
	if (need == 0 || statvfs(dir, &fs) < 0)
		return LLMC_OK;
	double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
	if ((double)need <= free_bytes)
		return LLMC_OK;
	return error_set(err, LLMC_E_IO,
	                 "%s: the download needs %s, the disk has %s free; free some space, or set "
	                 "HF_HUB_CACHE to a folder on another disk",
	                 h->cfg.cache, human_bytes((double)need, want),
	                 human_bytes(free_bytes, have));
}

static llmc_status
make_folders(Hub *h, const HubPart *p, size_t n, llmc_error *err)
{
	for (size_t i = 0; i < n; i++) {
		TRY(file_mkdirs(dirname(arena_strdup(h->a, p[i].dest)), err));
		TRY(file_mkdirs(dirname(arena_strdup(h->a, p[i].lock)), err));
	}
	return LLMC_OK;
}

typedef struct Downloads {
	Hub *h;
	HubTransfer *t;
	size_t n;
	void *multi;
} Downloads;

static void
downloads_close(void *p)
{
	Downloads *d = p;

	for (size_t i = 0; i < d->n; i++) {
		if (d->t[i].r.easy && d->t[i].state == RUNNING)
			d->h->curl.multi_remove_handle(d->multi, d->t[i].r.easy);
		http_close(d->h, &d->t[i].r);
		if (d->t[i].fd >= 0 && d->t[i].at == 0 && !d->t[i].resumed) /* empty */
			unlink(d->t[i].part);
		release(&d->t[i]);
	}
	if (d->multi)
		d->h->curl.multi_cleanup(d->multi);
}

llmc_status
hub_download(Hub *h, HubPart *p, size_t n, llmc_error *err)
{
	if (n == 0)
		return LLMC_OK;
	TRY(hub_curl_open(h, err));
	TRY(make_folders(h, p, n, err));
	TRY(check_disk(h, p, n, err));
	char *buf = NEW(h->a, char, SLICE_BYTES);
	Downloads *d = NEW(h->a, Downloads, 1);
	*d = (Downloads){ .h = h, .t = NEW(h->a, HubTransfer, n) };
	for (size_t i = 0; i < n; i++) {
		d->t[i] =
		    (HubTransfer){ .h = h, .p = &p[i], .lock = -1, .fd = -1, .size = p[i].size };
		d->t[i].part = arena_printf(h->a, "%s.incomplete", p[i].dest);
		if (p[i].etag_file)
			d->t[i].part_etag = arena_printf(h->a, "%s.part", p[i].etag_file);
	}
	d->n = n;
	arena_defer(h->a, downloads_close, d);
	d->multi = h->curl.multi_init();
	llmc_status s = d->multi ? run(h, d->t, n, d->multi, buf, err)
	                         : error_set(err, LLMC_E_MEMORY, "out of memory");
	arena_done(h->a, d);
	return s;
}

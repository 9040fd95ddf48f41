/* See kv_disk.h. */
#include "runtime/kv/kv_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/sum64.h"
#include "base/thread.h"

enum { WAITING_BYTES = 64 << 20, STALE_S = 600, PAUSE_S = 30 };
static const char magic[8] = "llmckvp";

typedef struct PageFileHeader {
	char magic[8];
	char key[64];
	int32_t tok[PLAN_KV_PAGE];
	uint64_t bytes, sum; /* size and checksum of the page's values */
	uint64_t head_sum;   /* checksum of the fields above */
} PageFileHeader;
_Static_assert(sizeof(PageFileHeader) == 8 + 64 + 4 * PLAN_KV_PAGE + 24, "a head has no holes");

/* Page that waits to be written, followed by its values */
typedef struct PendingWrite {
	struct PendingWrite *next;
	PageFileHeader head;
	char values[];
} PendingWrite;

struct KvDisk {
	char *dir, *root;
	int64_t max_bytes;
	size_t page_bytes;
	llmc_log_fn log;
	void *log_user;
	pthread_t thread;
	bool has_thread;
	uint32_t n_temporary; /* counter for names of temporary files; writer thread only */
	int64_t used;         /* bytes of all files; writer thread only */
	int64_t since;        /* bytes written since the last scan; writer thread only */
	double pause_until; /* no writes before this time, after a failed one; writer thread only */
	bool logged;        /* the failure was logged; writer thread only */
	pthread_mutex_t lock;
	pthread_cond_t work, idle;
	/* protected by lock */
	PendingWrite *first, *last; /* the writer thread works on `first` */
	int64_t waiting_bytes;
	bool stop;
	KvDiskCounts counts;
};

static void
log_failure(const KvDisk *d, const char *path, const char *what, int error)
{
	char line[512];

	if (!d->log)
		return;
	snprintf(line, sizeof line, "%s: %s%s%s", path, what, error ? ": " : "",
	         error ? strerror(error) : "");
	d->log(d->log_user, LLMC_LOG_WARNING, line);
}

/* ---- keys ---- */

KvKey
kv_disk_root(const KvDisk *d, int64_t turns)
{
	KvKey key;
	Sha256 s;

	sha256_init(&s);
	sha256_add(&s, d->root, strlen(d->root) + 1);
	sha256_add(&s, &turns, sizeof turns);
	sha256_hex(&s, key.hex);
	return key;
}

void
kv_disk_next(KvKey *key, const int32_t tok[PLAN_KV_PAGE])
{
	Sha256 s;

	sha256_init(&s);
	sha256_add(&s, key->hex, 64);
	sha256_add(&s, tok, PLAN_KV_PAGE * sizeof *tok);
	sha256_hex(&s, key->hex);
}

static void
path_of(const KvDisk *d, const char key[64], char *path, size_t cap)
{
	snprintf(path, cap, "%s/%.64s.kv", d->dir, key);
}

static uint64_t
head_sum(const PageFileHeader *h)
{
	return sum64(h, offsetof(PageFileHeader, head_sum), 3);
}

/* ---- reads ---- */

static bool
read_whole(int fd, void *to, size_t n)
{
	for (char *at = to; n;) {
		ssize_t got = read(fd, at, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		n -= (size_t)got;
	}
	return true;
}

/* Copy a page that is still queued for writing. */
static bool
read_pending(KvDisk *d, const KvKey *key, void *bytes)
{
	PendingWrite *w;

	pthread_mutex_lock(&d->lock);
	for (w = d->first; w && memcmp(w->head.key, key->hex, 64) != 0;)
		w = w->next;
	if (w)
		memcpy(bytes, w->values, d->page_bytes);
	pthread_mutex_unlock(&d->lock);
	return w != NULL;
}

bool
kv_disk_load(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *bytes)
{
	char path[4200];
	struct stat st;
	PageFileHeader h;

	path_of(d, key->hex, path, sizeof path);
	const int how = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	int fd = open(path, how);
	if (fd < 0) {
		if (read_pending(d, key, bytes))
			return true;
		/* look for the file again: the writer may have created it, and then dequeued the
		 * page, between the two lookups */
		fd = open(path, how);
	}
	if (fd < 0)
		return false;
	bool ok = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	          st.st_size == (off_t)(sizeof h + d->page_bytes) && read_whole(fd, &h, sizeof h) &&
	          memcmp(h.magic, magic, sizeof magic) == 0 && h.head_sum == head_sum(&h) &&
	          memcmp(h.key, key->hex, 64) == 0 && memcmp(h.tok, tok, sizeof h.tok) == 0 &&
	          h.bytes == d->page_bytes && read_whole(fd, bytes, d->page_bytes) &&
	          h.sum == sum64(bytes, d->page_bytes, 1);
	if (ok) /* for LRU */
		futimens(fd, NULL);
	close(fd);
	if (!ok)
		unlink(path);
	pthread_mutex_lock(&d->lock);
	d->counts.read += ok;
	d->counts.wrong += !ok;
	pthread_mutex_unlock(&d->lock);
	return ok;
}

/* ---- scan of the folder ---- */

typedef struct DiskFile {
	char name[80];
	int64_t bytes;
	struct timespec used;
} DiskFile;

static int
by_use(const void *a, const void *b)
{
	const DiskFile *x = a, *y = b;

	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
	return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

/* Count the files, including those of other processes that share the folder. Above the limit,
 * delete the least recently used ones down to 90 % of it. Also delete temporary files that have
 * been abandoned for STALE_S. */
static void
scan_folder(KvDisk *d)
{
	DIR *dir = opendir(d->dir);
	DiskFile *all = NULL;
	size_t n = 0, cap = 0;
	int64_t sum = 0;

	for (struct dirent *e; dir && (e = readdir(dir));) {
		size_t len = strlen(e->d_name);
		struct stat st;
		bool page = len == 67 && strcmp(e->d_name + 64, ".kv") == 0,
		     temporary = strncmp(e->d_name, ".made-", 6) == 0;
		if ((!page && !temporary) ||
		    fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
			continue;
		if (temporary) {
			if (time(NULL) - st.st_mtime > STALE_S)
				unlinkat(dirfd(dir), e->d_name, 0);
			continue;
		}
		if (n == cap) {
			DiskFile *more = realloc(all, (cap ? 2 * cap : 256) * sizeof *all);
			if (!more)
				break;
			all = more;
			cap = cap ? 2 * cap : 256;
		}
		memcpy(all[n].name, e->d_name, len + 1); /* 67 bytes, checked above */
		all[n].bytes = st.st_size;
		all[n++].used = st.st_mtim;
		sum += st.st_size;
	}
	if (sum > d->max_bytes && n) {
		qsort(all, n, sizeof *all, by_use);
		for (size_t i = 0; i < n && sum > d->max_bytes - d->max_bytes / 10; i++)
			if (unlinkat(dirfd(dir), all[i].name, 0) == 0 || errno == ENOENT)
				sum -= all[i].bytes;
	}
	free(all);
	if (dir)
		closedir(dir);
	d->used = sum;
	d->since = 0;
}

/* ---- writes ---- */

static bool
write_page(KvDisk *d, const PendingWrite *w)
{
	char path[4200], temporary[4200];

	path_of(d, w->head.key, path, sizeof path);
	if (access(path, F_OK) == 0) /* another process wrote it */
		return true;
	int fd;
	/* the name may exist: a process with the same pid has left it, or another container that
	 * shares the folder uses it */
	do {
		snprintf(temporary, sizeof temporary, "%s/.made-%ld-%u", d->dir, (long)getpid(),
		         d->n_temporary++);
		fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	} while (fd < 0 && errno == EEXIST);
	if (fd < 0)
		return false;
	/* no fsync: a page left incomplete by a crash fails its checksum and is only a cache
	 * miss */
	bool ok = file_write_fd(fd, &w->head, sizeof w->head) &&
	          file_write_fd(fd, w->values, d->page_bytes);
	int error = errno;
	ok = close(fd) == 0 && ok;
	if (ok && rename(temporary, path) != 0) {
		error = errno;
		ok = false;
	}
	if (!ok) {
		unlink(temporary);
		errno = error;
	}
	d->used += ok ? (int64_t)(sizeof w->head + d->page_bytes) : 0;
	d->since += ok ? (int64_t)(sizeof w->head + d->page_bytes) : 0;
	return ok;
}

static void *
write_pages(void *user)
{
	KvDisk *d = user;

	scan_folder(d);
	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!d->first && !d->stop)
			pthread_cond_wait(&d->work, &d->lock);
		PendingWrite *w = d->first;
		if (!w)
			break;
		pthread_mutex_unlock(&d->lock);
		w->head.sum = sum64(w->values, d->page_bytes, 1);
		w->head.head_sum = head_sum(&w->head);
		bool paused = clock_now() < d->pause_until, ok = !paused && write_page(d, w);
		if (!ok && !paused) {
			d->pause_until = clock_now() + PAUSE_S;
			if (!d->logged)
				log_failure(d, d->dir,
				            "pages of the prefix cache cannot be written; the "
				            "server continues without them",
				            errno);
			d->logged = true;
			scan_folder(d);
		} else if (ok) {
			d->logged = false;
		}
		/* scan from time to time, because other processes write to the folder too */
		if (d->used > d->max_bytes || d->since > d->max_bytes / 16)
			scan_folder(d);
		pthread_mutex_lock(&d->lock);
		d->counts.written += ok;
		d->counts.dropped += !ok;
		d->first = w->next;
		if (!d->first)
			d->last = NULL;
		d->waiting_bytes -= (int64_t)d->page_bytes;
		free(w);
		if (!d->first)
			pthread_cond_broadcast(&d->idle);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

bool
kv_disk_wants(KvDisk *d, const KvKey *key)
{
	char path[4200];
	bool wanted;

	pthread_mutex_lock(&d->lock);
	wanted =
	    d->waiting_bytes == 0 || d->waiting_bytes + (int64_t)d->page_bytes <= WAITING_BYTES;
	d->counts.dropped += !wanted;
	for (const PendingWrite *w = d->first; w && wanted; w = w->next)
		wanted = memcmp(w->head.key, key->hex, 64) != 0;
	pthread_mutex_unlock(&d->lock);
	path_of(d, key->hex, path, sizeof path);
	return wanted && access(path, F_OK) != 0;
}

void *
kv_disk_page(KvDisk *d)
{
	PendingWrite *w = malloc(sizeof *w + d->page_bytes);

	return w ? w->values : NULL;
}

void
kv_disk_drop(void *page)
{
	free((char *)page - offsetof(PendingWrite, values));
}

void
kv_disk_save(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *page)
{
	PendingWrite *w = (PendingWrite *)(void *)((char *)page - offsetof(PendingWrite, values));

	w->next = NULL;
	memcpy(w->head.magic, magic, sizeof magic);
	memcpy(w->head.key, key->hex, sizeof w->head.key);
	memcpy(w->head.tok, tok, sizeof w->head.tok);
	w->head.bytes = d->page_bytes;
	pthread_mutex_lock(&d->lock);
	*(d->first ? &d->last->next : &d->first) = w;
	d->last = w;
	d->waiting_bytes += (int64_t)d->page_bytes;
	pthread_cond_signal(&d->work);
	pthread_mutex_unlock(&d->lock);
}

void
kv_disk_flush(KvDisk *d)
{
	pthread_mutex_lock(&d->lock);
	while (d->first)
		pthread_cond_wait(&d->idle, &d->lock);
	pthread_mutex_unlock(&d->lock);
}

KvDiskCounts
kv_disk_counts(KvDisk *d)
{
	pthread_mutex_lock(&d->lock);
	KvDiskCounts c = d->counts;
	pthread_mutex_unlock(&d->lock);
	return c;
}

/* ---- open and close ---- */

llmc_status
kv_disk_open(const char *dir, int64_t max_bytes, const char *root, size_t page_bytes,
             llmc_log_fn log, void *log_user, KvDisk **out, llmc_error *err)
{
	struct stat st;

	*out = NULL;
	TRY(file_mkdirs_private(dir, err));
	if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
		return error_set(err, LLMC_E_INPUT, "%s: is not a folder", dir);
	if (st.st_uid != geteuid() || st.st_mode & 077)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: must belong to this user and be closed to others (chmod 700): it holds "
		    "prompts of users, and its pages are used without recomputation",
		    dir);
	if (strlen(dir) > 4000)
		return error_set(err, LLMC_E_INPUT,
		                 "the path of the prefix cache has %zu bytes, 4000 are possible",
		                 strlen(dir));
	KvDisk *d = calloc(1, sizeof *d);
	if (!d)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the prefix cache on disk");
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->work, NULL);
	pthread_cond_init(&d->idle, NULL);
	d->dir = strdup(dir);
	d->root = strdup(root);
	d->max_bytes = max_bytes;
	d->page_bytes = page_bytes;
	d->log = log;
	d->log_user = log_user;
	d->has_thread = d->dir && d->root && thread_create(&d->thread, NULL, write_pages, d) == 0;
	if (!d->has_thread) {
		kv_disk_close(d);
		return error_set(err, LLMC_E_MEMORY, "out of memory for the prefix cache on disk");
	}
	*out = d;
	return LLMC_OK;
}

void
kv_disk_close(KvDisk *d)
{
	if (!d)
		return;
	if (d->has_thread) {
		pthread_mutex_lock(&d->lock);
		d->stop = true;
		pthread_cond_signal(&d->work);
		pthread_mutex_unlock(&d->lock);
		pthread_join(d->thread, NULL);
	}
	pthread_cond_destroy(&d->work);
	pthread_cond_destroy(&d->idle);
	pthread_mutex_destroy(&d->lock);
	free(d->dir);
	free(d->root);
	free(d);
}

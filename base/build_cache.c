#include "base/build_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/number.h"
#include "base/checksummed_file.h"
#include "base/sha256.h"

static const char mark[8] = "llmc ca1";
static const int64_t DEFAULT_LIMIT = (int64_t)2 << 30;
enum { STALE_S = 3600, COUNT_AGAIN_S = 86400, FREE_FOR_COMPILERS = 64 << 20 };

/* ---- opening ---- */

llmc_status
cache_limit(int64_t *limit, llmc_error *err)
{
	const char *own = getenv("LLMC_CACHE_SIZE");

	*limit = DEFAULT_LIMIT;
	if (!own || !*own)
		return LLMC_OK;
	if (!strcmp(own, "0")) {
		*limit = 0;
		return LLMC_OK;
	}
	if (bytes_parse(own, limit))
		return LLMC_OK;
	*limit = 0;
	return error_set(err, LLMC_E_INPUT,
	                 "LLMC_CACHE_SIZE is \"%s\": expected a size, as 2G or 500M, or 0 for no "
	                 "cache of built code",
	                 own);
}

static llmc_status
open_folder(Cache *c, const char *root, llmc_error *err)
{
	Strbuf tmp = { 0 };
	llmc_status status;

	if (root)
		strbuf_puts(&c->dir, root);
	else
		TRY(file_cache_dir(&c->dir, err));
	strbuf_puts(&c->dir, "/kernels");
	strbuf_printf(&tmp, "%s/.tmp", strbuf_str(&c->dir));
	if (c->dir.failed || tmp.failed)
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
	else if ((status = file_mkdirs_private(strbuf_str(&c->dir), err)) == LLMC_OK) {
		status = file_check_trusted(strbuf_str(&c->dir), err) == LLMC_OK ? LLMC_OK
		                                                                 : LLMC_E_INPUT;
		mkdir(strbuf_str(&tmp), 0700); /* fails in a read-only cache */
	}
	strbuf_release(&tmp);
	return status;
}

llmc_status
cache_open(Cache *c, const char *root, llmc_error *err)
{
	*c = (Cache){ 0 };
	TRY(cache_limit(&c->limit, err));
	if (!c->limit)
		return LLMC_OK;
	llmc_status status = open_folder(c, root, err);
	if (status != LLMC_OK)
		strbuf_clear(&c->dir);
	return status;
}

void
cache_close(Cache *c)
{
	strbuf_release(&c->dir);
	c->limit = 0;
}

bool
cache_keeps(const Cache *c)
{
	return c->dir.len > 0;
}

static bool
lock(int fd, int how)
{
	int rc;

	while ((rc = flock(fd, how)) < 0 && errno == EINTR)
		;
	return rc == 0;
}

/* ---- reading ---- */

/* Write the line with one append, which the kernel does not interleave with appends of other
 * processes. */
static void
count(const Cache *c, const char *event, const char *kind)
{
	const char *path = getenv("LLMC_CACHE_STATS");
	int fd = path && *path && strcmp(kind, CACHE_ANSWERS)
	             ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)
	             : -1;
	Strbuf line = { 0 };

	if (fd < 0)
		return;
	char *folder = cache_keeps(c) ? realpath(strbuf_str(&c->dir), NULL) : NULL;
	strbuf_printf(&line, "%s %s %s\n", event, kind, folder ? folder : "-");
	if (!line.failed)
		(void)!write(fd, line.data, line.len);
	strbuf_release(&line);
	free(folder);
	close(fd);
}

static llmc_status
read_entry(int fd, const char *path, const char *key, Strbuf *out, llmc_error *err)
{
	struct stat st;
	size_t n = 0;

	if (fstat(fd, &st) < 0 || !st.st_nlink) /* the entry was evicted between open and lock */
		return error_set(err, LLMC_E_IO, "%s: no such file", path);
	if (file_check_stat(path, &st, err) != LLMC_OK)
		return LLMC_E_INPUT;
	if (!S_ISREG(st.st_mode) || st.st_size == 0)
		return error_set(err, LLMC_E_CHECK, "%s: damaged or cut off", path);
	void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return error_set(err, LLMC_E_IO, "%s: cannot map: %s", path, strerror(errno));
	llmc_status status =
	    checksum_trailer_check(path, mark, key, data, (size_t)st.st_size, &n, err);
	if (status == LLMC_OK && out) {
		strbuf_clear(out);
		strbuf_add(out, data, n);
		if (out->failed)
			status = error_set(err, LLMC_E_MEMORY, "%s: out of memory", path);
	}
	munmap(data, (size_t)st.st_size);
	return status;
}

llmc_status
cache_find(const Cache *c, const char *kind, const char *key, CacheEntry *e, Strbuf *out,
           llmc_error *err)
{
	llmc_status status = LLMC_E_IO;

	strbuf_clear(&e->path);
	cache_unlock(e);
	if (cache_keeps(c)) {
		strbuf_printf(&e->path, "%s/%s.%s", strbuf_str(&c->dir), key, kind);
		int fd = e->path.failed ? -1 : open(strbuf_str(&e->path), O_RDONLY | O_CLOEXEC);
		if (fd < 0) {
			error_set(err, LLMC_E_IO, "%s: %s", strbuf_str(&e->path), strerror(errno));
		} else {
			/* on a file system without locks, an entry may be evicted before it is
			 * loaded */
			lock(fd, LOCK_SH);
			e->held = fd + 1;
			status = read_entry(fd, strbuf_str(&e->path), key, out, err);
			if (status == LLMC_OK)
				futimens(fd, NULL);
			else
				cache_unlock(e);
		}
	}
	if (status == LLMC_E_CHECK)
		count(c, "damaged", kind);
	if (status == LLMC_OK || strcmp(kind, CACHE_REFUSALS))
		count(c, status == LLMC_OK ? "hit" : "miss", kind);
	return status;
}

void
cache_unlock(CacheEntry *e)
{
	if (e->held)
		close(e->held - 1);
	e->held = 0;
}

void
cache_entry_release(CacheEntry *e)
{
	cache_unlock(e);
	strbuf_release(&e->path);
}

/* ---- size limit ---- */

typedef struct Usage {
	char mark[8];
	int64_t bytes;   /* total of all entries */
	int64_t counted; /* time of the last full count, seconds since 1970 */
} Usage;

typedef struct CacheFile {
	char name[96];
	struct timespec used;
	int64_t bytes;
} CacheFile;

static const char usage_mark[8] = "llmc us1";

static int
by_use(const void *a, const void *b)
{
	const CacheFile *x = a, *y = b;

	if (x->used.tv_sec != y->used.tv_sec)
		return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
	if (x->used.tv_nsec != y->used.tv_nsec)
		return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
	return strcmp(x->name, y->name);
}

static bool
evict(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	if (fd < 0)
		return false;
	bool gone = lock(fd, LOCK_EX | LOCK_NB) && unlinkat(dir, name, 0) == 0;
	close(fd);
	return gone;
}

/* List all entries in an array of *n elements, which the caller frees; NULL: out of memory. */
static CacheFile *
list(DIR *d, int *n, int64_t *bytes)
{
	CacheFile *all = NULL;
	int cap = 0;
	struct stat st;

	*n = 0;
	*bytes = 0;
	for (struct dirent *e; (e = readdir(d)) != NULL;) {
		if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof all->name ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		if (*n == cap) {
			CacheFile *more = realloc(all, (size_t)(cap = 2 * cap + 256) * sizeof *all);
			if (!more) {
				free(all);
				return NULL;
			}
			all = more;
		}
		CacheFile *s = &all[(*n)++];
		strcpy(s->name, e->d_name);
		s->used = st.st_mtim;
		s->bytes = st.st_size;
		*bytes += st.st_size;
	}
	return all;
}

/* Return the bytes of all files below a folder */
static int64_t
folder_bytes(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
	struct stat st;
	int64_t sum = 0;

	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		if (e->d_name[0] != '.' &&
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
			sum += S_ISDIR(st.st_mode) ? folder_bytes(dirfd(d), e->d_name) : st.st_size;
	if (d)
		closedir(d);
	else if (fd >= 0)
		close(fd);
	return sum;
}

/* Count the entries again and add `more`, the bytes about to be written. If the total exceeds the
 * limit, evict the least recently used entries down to 90 % of it. Headers that tests have
 * precompiled are counted, but only tools/build_cache.py evicts them, because it takes
 * their locks. */
static void
count_again(const Cache *c, Usage *u, int64_t more)
{
	DIR *d = opendir(strbuf_str(&c->dir));
	int n = 0;
	CacheFile *all = d ? list(d, &n, &u->bytes) : NULL;

	u->bytes += more + (d ? folder_bytes(dirfd(d), ".headers") : 0);
	if (all && u->bytes > c->limit) {
		qsort(all, (size_t)n, sizeof *all, by_use);
		for (int i = 0; i < n && u->bytes > c->limit - c->limit / 10; i++)
			if (evict(dirfd(d), all[i].name))
				u->bytes -= all[i].bytes;
	}
	free(all);
	if (d)
		closedir(d);
	memcpy(u->mark, usage_mark, 8);
	u->counted = time(NULL);
}

static int
open_usage(const Cache *c)
{
	Strbuf path = { 0 };

	strbuf_printf(&path, "%s/.usage", strbuf_str(&c->dir));
	int fd = path.failed ? -1 : open(strbuf_str(&path), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	strbuf_release(&path);
	if (fd >= 0)
		lock(fd, LOCK_EX);
	return fd;
}

/* Add the bytes of a new entry before it becomes visible. A process killed in between leaves the
 * total too high, never too low. */
static void
add_usage(const Cache *c, int fd, int64_t bytes)
{
	Usage u;
	const int64_t now = time(NULL);

	if (fd < 0)
		return;
	if (pread(fd, &u, sizeof u, 0) != sizeof u || memcmp(u.mark, usage_mark, 8) ||
	    u.counted > now || now - u.counted > COUNT_AGAIN_S) {
		count_again(c, &u, bytes);
	} else {
		u.bytes += bytes;
		if (u.bytes > c->limit)
			count_again(c, &u, bytes);
	}
	/* ignore a failure: the next writer then counts again */
	(void)!pwrite(fd, &u, sizeof u, 0);
}

void
cache_trim(const Cache *c)
{
	int fd = cache_keeps(c) ? open_usage(c) : -1;

	add_usage(c, fd, 0);
	if (fd >= 0)
		close(fd);
}

/* ---- writing ---- */

/* Write data and trailer, without fsync: if a power failure truncates the file, its checksum
 * fails. */
static bool
write_with_trailer(int fd, const char *key, const void *data, size_t n)
{
	char trailer[CHECKSUM_TRAILER_BYTES];

	checksum_trailer_make(trailer, mark, key, data, n);
	return file_write_fd(fd, data, n) && file_write_fd(fd, trailer, sizeof trailer);
}

llmc_status
cache_put(const Cache *c, const char *kind, const char *key, const void *data, size_t n,
          CacheEntry *e, llmc_error *err)
{
	Strbuf tmp = { 0 }, path = { 0 };
	llmc_status status = LLMC_OK;
	int fd = -1;

	if (!cache_keeps(c))
		return error_set(err, LLMC_E_IO, "the cache of built code is off");
	strbuf_printf(&tmp, "%s/.tmp/put.XXXXXX", strbuf_str(&c->dir));
	strbuf_printf(&path, "%s/%s.%s", strbuf_str(&c->dir), key, kind);
	if (tmp.failed || path.failed) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
		goto done;
	}
	fd = mkostemp(tmp.data, O_CLOEXEC);
	if (fd < 0) {
		status =
		    error_set(err, LLMC_E_IO, "%s: cannot create: %s", tmp.data, strerror(errno));
		goto done;
	}
	bool ok = write_with_trailer(fd, key, data, n);
	if (ok) {
		int usage = open_usage(c);
		add_usage(c, usage, (int64_t)n + CHECKSUM_TRAILER_BYTES);
		ok = (!e || lock(fd, LOCK_SH)) && rename(tmp.data, path.data) == 0;
		if (usage >= 0)
			close(usage);
	}
	if (!ok) {
		status =
		    error_set(err, LLMC_E_IO, "%s: cannot write: %s", path.data, strerror(errno));
		unlink(tmp.data);
	} else if (e) {
		cache_unlock(e);
		strbuf_clear(&e->path);
		strbuf_puts(&e->path, path.data);
		e->held = fd + 1;
		fd = -1;
	}
done:
	if (fd >= 0)
		close(fd);
	strbuf_release(&tmp);
	strbuf_release(&path);
	return status;
}

/* ---- temporary folders ---- */

void
cache_temporary_remove(const char *dir)
{
	DIR *d = opendir(dir);

	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(dir);
}

/* Remove folders that killed writers left. They are removed by age, not by process id, because in
 * another container the id may belong to another process. */
static void
sweep(const char *tmp)
{
	DIR *d = opendir(tmp);
	Strbuf path = { 0 };
	struct stat st;

	for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
		if (e->d_name[0] == '.' ||
		    fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
		    time(NULL) - st.st_mtime <= STALE_S)
			continue;
		file_join(&path, tmp, e->d_name);
		if (S_ISDIR(st.st_mode))
			cache_temporary_remove(strbuf_str(&path));
		else
			unlinkat(dirfd(d), e->d_name, 0);
	}
	if (d)
		closedir(d);
	strbuf_release(&path);
}

llmc_status
cache_temporary(const Cache *c, Strbuf *dir, llmc_error *err)
{
	const char *tmp = getenv("TMPDIR");
	struct statvfs fs;

	strbuf_clear(dir);
	if (cache_keeps(c)) {
		strbuf_printf(dir, "%s/.tmp", strbuf_str(&c->dir));
		sweep(strbuf_str(dir));
		bool space = statvfs(strbuf_str(dir), &fs) == 0 &&
		             (uint64_t)fs.f_bavail * fs.f_frsize >= FREE_FOR_COMPILERS;
		strbuf_puts(dir, "/tmp.XXXXXX");
		if (space && !dir->failed && mkdtemp(dir->data))
			return LLMC_OK;
	}
	strbuf_clear(dir);
	strbuf_printf(dir, "%s/llmc.XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (dir->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	if (!mkdtemp(dir->data)) {
		error_set(err, LLMC_E_IO, "%s: cannot create: %s", dir->data, strerror(errno));
		strbuf_clear(dir);
		return LLMC_E_IO;
	}
	return LLMC_OK;
}

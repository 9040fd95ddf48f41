#include "base/file.h"
#include "base/open_file.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static llmc_status
io_error(llmc_error *err, const char *what, const char *path)
{
	int code = errno;
	return error_set(err, code == ENOMEM ? LLMC_E_MEMORY : LLMC_E_IO, "%s: %s: %s", path, what,
	                 strerror(code));
}

int
file_open(const char *path)
{
	const bool any = strncmp(path, "/dev/", 5) == 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | (any ? 0 : O_NONBLOCK));
	struct stat st;

	if (fd < 0 || any || (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))))
		return fd;
	close(fd);
	errno = EINVAL;
	return -1;
}

static llmc_status
cannot_open(const char *path, llmc_error *err)
{
	if (errno == EINVAL)
		return error_set(err, LLMC_E_IO, "%s: not a regular file", path);
	return io_error(err, "cannot open", path);
}

llmc_status
file_map(const char *path, FileMap *out, llmc_error *err)
{
	struct stat st;
	int fd = file_open(path);

	*out = (FileMap){ 0 };
	if (fd < 0)
		return cannot_open(path, err);
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return error_set(err, LLMC_E_IO, "%s: not a regular file", path);
	}
	if (st.st_size > 0) {
		void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p == MAP_FAILED) {
			llmc_status s = io_error(err, "cannot map", path);
			close(fd);
			return s;
		}
		*out = (FileMap){ .data = p, .size = (size_t)st.st_size };
		file_guard_add(p, out->size);
	}
	close(fd);
	return LLMC_OK;
}

void
file_unmap(FileMap *m)
{
	if (m->data) {
		file_guard_remove(m->data);
		munmap((void *)m->data, m->size);
	}
	*m = (FileMap){ 0 };
}

static void
unmap(void *m)
{
	file_unmap(m);
}

FileMap *
file_hold(Arena *a, const char *path, llmc_error *err)
{
	FileMap *m = NEW(a, FileMap, 1);

	if (file_map(path, m, err) != LLMC_OK)
		return NULL;
	arena_defer(a, unmap, m);
	return m;
}

llmc_status
file_read(const char *path, size_t max_bytes, Strbuf *out, llmc_error *err)
{
	char piece[1 << 14];
	llmc_status status = LLMC_OK;
	int fd = file_open(path);

	strbuf_clear(out);
	if (fd < 0)
		return cannot_open(path, err);
	for (;;) {
		ssize_t n = read(fd, piece, sizeof piece);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			status = io_error(err, "cannot read", path);
			break;
		}
		if (n == 0)
			break;
		if (out->len + (size_t)n > max_bytes) {
			status = error_set(err, LLMC_E_INPUT, "%s: larger than %zu bytes", path,
			                   max_bytes);
			break;
		}
		strbuf_add(out, piece, (size_t)n);
	}
	close(fd);
	if (status == LLMC_OK && out->failed)
		status = error_set(err, LLMC_E_MEMORY, "%s: out of memory", path);
	return status;
}

static bool
same_content(const char *path, const void *data, size_t size)
{
	FileMap m;

	if (file_map(path, &m, NULL) != LLMC_OK)
		return false;
	bool same = m.size == size && (size == 0 || memcmp(m.data, data, size) == 0);
	file_unmap(&m);
	return same;
}

llmc_status
file_check_content(const char *path, const void *data, size_t size, llmc_error *err)
{
	static const char *const pages[] = { "<!doctype html", "<html", "<head", "<?xml" };
	static const char lfs[] = "version https://git-lfs";
	const char *text = data;
	size_t at = 0;

	if (size >= sizeof lfs - 1 && memcmp(text, lfs, sizeof lfs - 1) == 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: a Git LFS pointer, not the file itself: run git lfs pull",
		                 path);
	while (at < size && strchr(" \t\r\n", text[at]) && text[at])
		at++;
	for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
		if (size - at >= strlen(pages[i]) &&
		    strncasecmp(text + at, pages[i], strlen(pages[i])) == 0)
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: an HTML or XML page, not the file itself: a server "
			    "sent an error or a login page. Download it again; a gated "
			    "model needs an access token",
			    path);
	return LLMC_OK;
}

bool
file_write_fd(int fd, const void *data, size_t n)
{
	for (const char *p = data; n;) {
		/* Linux writes at most 2 GiB per call, and other systems reject larger sizes */
		ssize_t k = write(fd, p, n < 1 << 30 ? n : 1 << 30);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0) {
			errno = k == 0 ? ENOSPC : errno;
			return false;
		}
		p += k;
		n -= (size_t)k;
	}
	return true;
}

llmc_status
file_write(const char *path, const void *data, size_t size, llmc_error *err)
{
	static atomic_uint serial; /* makes names unique; not visible to callers */
	char tmp[4096];
	int fd;

	if (same_content(path, data, size))
		return LLMC_OK;
	/* the name may exist: a dead process has left it, or a process with the same id in another
	 * container uses it */
	do {
		int len = snprintf(tmp, sizeof tmp, "%s.tmp.%ld.%u", path, (long)getpid(),
		                   atomic_fetch_add(&serial, 1));
		if (len < 0 || (size_t)len >= sizeof tmp)
			return error_set(err, LLMC_E_IO, "%s: name too long", path);
		fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	} while (fd < 0 && errno == EEXIST);
	if (fd < 0)
		return io_error(err, "cannot create", tmp);
	if (!file_write_fd(fd, data, size))
		goto bad;
	if (fsync(fd) < 0 && errno != EINVAL)
		goto bad;
	if (close(fd) < 0) {
		fd = -1;
		goto bad;
	}
	if (rename(tmp, path) < 0) {
		fd = -1;
		goto bad;
	}
	return LLMC_OK;
bad:;
	llmc_status status = io_error(err, "cannot write", path);
	if (fd >= 0)
		close(fd);
	unlink(tmp);
	return status;
}

static llmc_status
mkdirs(const char *path, unsigned mode, llmc_error *err)
{
	char part[4096];
	size_t n = strlen(path);

	if (n == 0 || n >= sizeof part)
		return error_set(err, LLMC_E_IO, "%s: bad folder name", path);
	memcpy(part, path, n + 1);
	for (size_t i = 1; i <= n; i++) {
		if (part[i] != '/' && part[i] != 0)
			continue;
		part[i] = 0;
		if (mkdir(part, mode) < 0 && errno != EEXIST && !file_is_dir(part))
			return io_error(err, "cannot create folder", part);
		if (i < n)
			part[i] = '/';
	}
	if (!file_is_dir(path))
		return error_set(err, LLMC_E_IO, "%s: exists and is not a folder", path);
	return LLMC_OK;
}

llmc_status
file_mkdirs(const char *path, llmc_error *err)
{
	return mkdirs(path, 0755, err);
}

llmc_status
file_mkdirs_private(const char *path, llmc_error *err)
{
	return mkdirs(path, 0700, err);
}

bool
file_exists(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0;
}

bool
file_is_dir(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

llmc_status
file_check_stat(const char *path, const struct stat *st, llmc_error *err)
{
	if (st->st_uid != geteuid() && st->st_uid != 0)
		return error_set(
		    err, LLMC_E_IO,
		    "%s: belongs to user %u, not to you: llmc does not run code from it", path,
		    (unsigned)st->st_uid);
	if (st->st_mode & 022 && !(S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX)))
		return error_set(
		    err, LLMC_E_IO,
		    "%s: others may write to it (mode %03o): llmc does not run code from it; "
		    "chmod go-w it",
		    path, (unsigned)(st->st_mode & 0777));
	return LLMC_OK;
}

llmc_status
file_check_trusted(const char *path, llmc_error *err)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return io_error(err, "cannot stat", path);
	return file_check_stat(path, &st, err);
}

llmc_status
file_cache_dir(Strbuf *out, llmc_error *err)
{
	const char *own = getenv("LLMC_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
	           *home = getenv("HOME");

	strbuf_clear(out);
	if (own && *own)
		strbuf_puts(out, own);
	else if (xdg && *xdg == '/')
		strbuf_printf(out, "%s/llmc", xdg);
	else if (home && *home)
		strbuf_printf(out, "%s/.cache/llmc", home);
	else
		return error_set(err, LLMC_E_IO, "no cache folder: set LLMC_CACHE or HOME");
	return out->failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

char *
file_absolute(Arena *a, const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char real[PATH_MAX];

	if (!file_exists(path))
		return arena_strdup(a, path);
	if (file_is_dir(path))
		return arena_strdup(a, realpath(path, real) ? real : path);
	const char *dir = name > path ? arena_strndup(a, path, (size_t)(name - path)) : ".";
	return realpath(dir, real) ? arena_printf(a, "%s/%s", strcmp(real, "/") ? real : "", name)
	                           : arena_strdup(a, path);
}

void
file_join(Strbuf *out, const char *dir, const char *name)
{
	strbuf_clear(out);
	if (name[0] != '/' && dir && *dir)
		strbuf_printf(out, "%s/", dir);
	strbuf_puts(out, name);
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st, (void)type, (void)at, (void)!remove(path);
	return 0;
}

void
file_remove_tree(const char *dir)
{
	nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

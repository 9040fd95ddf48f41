/* The cache file of packed weights as a map: the page cache holds the pages in use, processes share
 * them, and weights may exceed memory. A file that another process truncates raises SIGBUS, which
 * base/file_guard.c catches.
 *
 * The checksum of the data is compared once per machine and file. After that a note next to the
 * file, verified.<machine>, holds the file's inode, size and times. If the note matches, a start
 * reads the header only. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/weights/pack_cache_internal.h"

enum { NOTE_BYTES = 256 };

/* Set path to the note of this machine, and note to its content for a file. */
static void
verified_note(const char *dir, const struct stat *st, uint64_t data_sum, Strbuf *path,
              char note[NOTE_BYTES])
{
	Strbuf id = { 0 };
	char host[256] = "", hex[65];
	Sha256 s;

	sha256_init(&s);
	if (file_read("/etc/machine-id", 4096, &id, NULL) == LLMC_OK)
		sha256_add(&s, id.data, id.len);
	gethostname(host, sizeof host - 1);
	sha256_add(&s, host, strlen(host));
	sha256_hex(&s, hex);
	strbuf_release(&id);
	strbuf_printf(path, "%s/verified.%.16s", dir, hex);
	snprintf(note, NOTE_BYTES, "%llu %llu %lld %lld.%09ld %lld.%09ld %016llx\n",
	         (unsigned long long)st->st_dev, (unsigned long long)st->st_ino,
	         (long long)st->st_size, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
	         (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec, (unsigned long long)data_sum);
}

/* Has this machine compared the checksum of the file? */
static bool
is_verified(const char *path, const char *note)
{
	Strbuf have = { 0 };
	bool same = file_exists(path) && file_check_trusted(path, NULL) == LLMC_OK &&
	            file_read(path, NOTE_BYTES, &have, NULL) == LLMC_OK &&
	            !strcmp(strbuf_str(&have), note);

	strbuf_release(&have);
	return same;
}

/* Compare the checksum of the data, unless this machine has done so before. */
static bool
verify(const char *dir, const struct stat *st, const PackHeader *h, const FileMap *map,
       Threads *threads)
{
	Strbuf path = { 0 };
	char note[NOTE_BYTES];

	verified_note(dir, st, h->data_sum, &path, note);
	bool ok = !path.failed && is_verified(path.data, note);
	if (!ok) {
		void *data = (void *)(uintptr_t)(map->data + PACK_DATA_AT);
		ok = pack_sum(data, (int64_t)map->size - PACK_DATA_AT, threads) == h->data_sum &&
		     !file_lost(map->data);
		if (ok && !path.failed) /* without a note the next start compares again */
			(void)file_write(path.data, note, strlen(note), NULL);
	}
	strbuf_release(&path);
	return ok;
}

/* Map the file that st describes. Pages that the process writes become private copies. */
static bool
map_file(int fd, const struct stat *st, bool writable, FileMap *out)
{
	void *p = mmap(NULL, (size_t)st->st_size, PROT_READ | (writable ? PROT_WRITE : 0),
	               writable ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return false;
	*out = (FileMap){ .data = p, .size = (size_t)st->st_size };
	file_guard_add(p, out->size);
	return true;
}

llmc_status
pack_cache_map(const char *hex, int64_t bytes, bool writable, Threads *threads, FileMap *out,
               llmc_error *err)
{
	Strbuf dir = { 0 }, path = { 0 };
	PackHeader have, want;
	struct stat st;
	llmc_status status = LLMC_OK;
	bool ok = false;
	int fd = -1;

	*out = (FileMap){ 0 };
	if (pack_path(hex, &dir, &path, NULL) != LLMC_OK || !file_exists(strbuf_str(&path)))
		goto fail;
	TRY_GOTO(pack_open(strbuf_str(&path), &fd, &st, err));
	if (st.st_size == bytes + PACK_DATA_AT &&
	    pack_read_all(fd, (char *)&have, sizeof have, 0)) {
		pack_header(&want, hex, bytes, have.data_sum);
		ok = !memcmp(&have, &want, sizeof want) && map_file(fd, &st, writable, out) &&
		     verify(strbuf_str(&dir), &st, &have, out, threads);
	}
	if (!ok) {
		file_unmap(out);
		status = error_set(err, LLMC_E_CHECK, "%s: damaged or cut off; it is written again",
		                   strbuf_str(&path));
	}
fail:
	if (fd >= 0)
		close(fd);
	strbuf_release(&dir);
	strbuf_release(&path);
	return status;
}

struct PackWriter {
	char hex[65];
	Strbuf dir, path, tmp;
	int fd;
	char *map;
	int64_t bytes;
};

static llmc_status
cannot_write(const PackWriter *w, int code, llmc_error *err)
{
	return error_set(err, LLMC_E_IO, "%s: cannot write: %s", strbuf_str(&w->path),
	                 strerror(code));
}

llmc_status
pack_writer_open(const char *hex, int64_t bytes, PackWriter **out, void **data, llmc_error *err)
{
	PackWriter *w = *out = calloc(1, sizeof *w);
	llmc_status status;

	if (!w)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	w->fd = -1;
	w->bytes = bytes;
	memcpy(w->hex, hex, sizeof w->hex);
	TRY_GOTO(pack_path(hex, &w->dir, &w->path, err));
	TRY_GOTO(file_mkdirs_private(strbuf_str(&w->dir), err));
	if ((w->fd = pack_temporary(strbuf_str(&w->path), &w->tmp)) < 0) {
		status = cannot_write(w, errno, err);
		goto fail;
	}
	/* allocate now, so that a full disk is an error here and not SIGBUS at a later write */
	int code = posix_fallocate(w->fd, 0, bytes + PACK_DATA_AT);
	if (code) {
		status = cannot_write(w, code, err);
		goto fail;
	}
	void *p = mmap(NULL, (size_t)(bytes + PACK_DATA_AT), PROT_READ | PROT_WRITE, MAP_SHARED,
	               w->fd, 0);
	if (p == MAP_FAILED) {
		status = cannot_write(w, errno, err);
		goto fail;
	}
	w->map = p;
	*data = w->map + PACK_DATA_AT;
	return LLMC_OK;
fail:
	pack_writer_close(w);
	*out = NULL;
	return status;
}

llmc_status
pack_writer_finish(PackWriter *w, bool writable, Threads *threads, FileMap *out, llmc_error *err)
{
	const size_t size = (size_t)w->bytes + PACK_DATA_AT;
	Strbuf note_path = { 0 };
	char note[NOTE_BYTES];
	struct stat st;

	const uint64_t sum = pack_sum(w->map + PACK_DATA_AT, w->bytes, threads);
	pack_header((PackHeader *)w->map, w->hex, w->bytes, sum);
	*out = (FileMap){ 0 };
	if (msync(w->map, size, MS_SYNC) < 0 || fdatasync(w->fd) < 0 ||
	    rename(w->tmp.data, w->path.data) < 0)
		return cannot_write(w, errno, err);
	strbuf_release(&w->tmp);
	if (fstat(w->fd, &st) < 0 || !map_file(w->fd, &st, writable, out))
		return cannot_write(w, errno, err);
	verified_note(strbuf_str(&w->dir), &st, sum, &note_path, note);
	if (!note_path.failed)
		(void)file_write(note_path.data, note, strlen(note), NULL);
	strbuf_release(&note_path);
	return LLMC_OK;
}

void
pack_writer_close(PackWriter *w)
{
	if (!w)
		return;
	if (w->map)
		munmap(w->map, (size_t)w->bytes + PACK_DATA_AT);
	if (w->fd >= 0)
		close(w->fd);
	if (w->fd >= 0 && w->tmp.data)
		unlink(w->tmp.data);
	strbuf_release(&w->dir);
	strbuf_release(&w->path);
	strbuf_release(&w->tmp);
	free(w);
}

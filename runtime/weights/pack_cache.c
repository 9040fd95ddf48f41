/* Cache of packed weights: $LLMC_CACHE/weights/<key>/packed. It is written under a temporary name,
 * synced and renamed. A file is used only if no other user can write to it, its size matches its
 * header, and the checksums of header and data match.
 *
 * This file reads the cache file into memory, so that later changes to it cannot affect a running
 * model. pack_map.c maps the cache file instead. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/open_file.h"
#include "base/sum64.h"
#include "formats/layout.h"
#include "runtime/weights/pack_cache_internal.h"

static const char magic[16] = "llmc packed 3\n";

static void
add_text(Sha256 *s, const char *text)
{
	sha256_add(s, text, strlen(text) + 1);
}

static void
add_num(Sha256 *s, int64_t v)
{
	sha256_add(s, &v, sizeof v);
}

/* Add the output of the layout for a test pattern to the key, so that a changed layout changes the
 * key. */
static llmc_status
add_layout(Sha256 *s, const PlanTensor *t, llmc_error *err)
{
	const Layout *l = layout_find(t->layout);
	int64_t cols = t->cols ? 512 : 0, row = dtype_row_bytes(t->dtype, cols), bytes;

	if (!cols || row < 0 || (bytes = l->group_bytes(t->dtype, cols)) < 0)
		return LLMC_OK;
	unsigned char *src = malloc((size_t)(row * l->group + 64)),
	              *dst = calloc(1, (size_t)bytes + 64);
	if (!src || !dst) {
		free(src);
		free(dst);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	for (int64_t i = 0; i < row * l->group; i++)
		/* masked to small values, so that no scale is NaN */
		src[i] = (unsigned char)(i * 2654435761u >> 13 & 0x3f);
	l->pack(t->dtype, cols, src, dst);
	sha256_add(s, dst, (size_t)bytes);
	free(src);
	free(dst);
	return LLMC_OK;
}

llmc_status
pack_cache_key(const Plan *p, const PackMap *map, const Checkpoint *c, char hex[65],
               llmc_error *err)
{
	bool tried[64][DT_COUNT] = { { false } };
	Sha256 s;

	sha256_init(&s);
	add_text(&s, magic);
	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		add_text(&s, t->id);
		add_text(&s, t->layout);
		int64_t fact[] = { t->dtype,     t->rows,        t->cols, t->scale_cols,
			           t->symmetric, map->offset[i], t->n_src };
		sha256_add(&s, fact, sizeof fact);
		for (int k = 0; k < t->n_src; k++) {
			const PlanSource *o = &t->src[k];
			add_text(&s, o->name);
			int64_t of[] = { o->rows,
				         o->cols,
				         o->first,
				         o->block,
				         o->stride,
				         o->n_block,
				         o->rope_pairs,
				         o->transpose,
				         o->unit_rows,
				         o->permuted,
				         plan_source_dtype(t, o),
				         o->col_first,
				         o->col_total };
			sha256_add(&s, of, sizeof of);
			if (o->rows_in)
				add_text(&s, o->rows_in);
		}
		unsigned slot =
		    (unsigned char)t->layout[0] * 7u + (unsigned)layout_find(t->layout)->group;
		if (t->cols && !tried[slot % 64][t->dtype]) {
			tried[slot % 64][t->dtype] = true;
			TRY(add_layout(&s, t, err));
		}
	}
	add_num(&s, map->bytes);
	TRY(checkpoint_identity(c, &s, err));
	sha256_hex(&s, hex);
	return LLMC_OK;
}

void
pack_header(PackHeader *h, const char *hex, int64_t bytes, uint64_t data_sum)
{
	char sum[65];
	Sha256 s;

	*h = (PackHeader){ .bytes = (uint64_t)bytes, .data_sum = data_sum };
	memcpy(h->magic, magic, sizeof magic);
	memcpy(h->key, hex, sizeof h->key);
	sha256_init(&s);
	sha256_add(&s, h, offsetof(PackHeader, sum));
	sha256_hex(&s, sum);
	memcpy(h->sum, sum, sizeof h->sum);
}

llmc_status
pack_path(const char *hex, Strbuf *dir, Strbuf *path, llmc_error *err)
{
	TRY(file_cache_dir(dir, err));
	strbuf_printf(dir, "/weights/%s", hex);
	file_join(path, strbuf_str(dir), "packed");
	return dir->failed || path->failed ? error_set(err, LLMC_E_MEMORY, "out of memory")
	                                   : LLMC_OK;
}

/* Delete temporary files of a folder whose processes have ended. On file systems with locks, a
 * process holds a lock on its temporary file of packed weights. Other temporary files are small and
 * are deleted by age. */
static void
sweep_folder(const char *dir)
{
	enum { STALE_S = 3600 };
	struct stat st;
	DIR *d = opendir(dir);

	for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
		const char *name = e->d_name;
		if (!strstr(name, ".tmp."))
			continue;
		if (strncmp(name, "packed.", 7)) {
			if (fstatat(dirfd(d), name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			    S_ISREG(st.st_mode) && time(NULL) - st.st_mtime > STALE_S)
				unlinkat(dirfd(d), name, 0);
			continue;
		}
		int fd = openat(dirfd(d), name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
			unlinkat(dirfd(d), name, 0);
		if (fd >= 0)
			close(fd);
	}
	if (d)
		closedir(d);
}

/* Delete the temporary files that ended processes left, of all models. */
static void
sweep(void)
{
	Strbuf all = { 0 }, dir = { 0 };

	if (file_cache_dir(&all, NULL) == LLMC_OK)
		strbuf_puts(&all, "/weights");
	DIR *d = all.len && !all.failed ? opendir(strbuf_str(&all)) : NULL;
	for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
		if (e->d_name[0] == '.')
			continue;
		file_join(&dir, strbuf_str(&all), e->d_name);
		if (!dir.failed)
			sweep_folder(strbuf_str(&dir));
	}
	if (d)
		closedir(d);
	strbuf_release(&all);
	strbuf_release(&dir);
}

int
pack_temporary(const char *path, Strbuf *tmp)
{
	struct stat st;

	sweep();
	for (int tries = 0; tries < 8; tries++) {
		strbuf_clear(tmp);
		strbuf_printf(tmp, "%s.tmp.%ld.XXXXXX", path, (long)getpid());
		if (tmp->failed)
			break;
		int fd = mkostemp(tmp->data, O_CLOEXEC);
		if (fd < 0)
			return -1;
		while (flock(fd, LOCK_EX) < 0 && errno == EINTR)
			continue;
		/* another process may have deleted the file before it was locked */
		if (fstat(fd, &st) == 0 && st.st_nlink > 0)
			return fd;
		close(fd);
	}
	errno = tmp->failed ? ENOMEM : EAGAIN;
	return -1;
}

/* Checksum of the data, which is first read from the file if it is not in memory. Threads share the
 * slices, and the sum does not depend on their order. */
typedef struct Sum {
	int fd; /* -1: the data is in memory already */
	char *data;
	int64_t bytes;
	atomic_ullong sum;
	atomic_bool cut; /* the file is truncated or unreadable */
} Sum;

bool
pack_read_all(int fd, char *to, size_t n, int64_t at)
{
	while (n) {
		ssize_t k = pread(fd, to, n, at);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return false;
		to += k;
		at += k;
		n -= (size_t)k;
	}
	return true;
}

static void
sum_part(void *user, int part, int n_parts)
{
	Sum *s = user;
	unsigned long long sum = 0;

	for (int64_t i = part;
	     i * PACK_SLICE < s->bytes && !atomic_load_explicit(&s->cut, memory_order_relaxed);
	     i += n_parts) {
		int64_t at = i * PACK_SLICE;
		size_t n = s->bytes - at < PACK_SLICE ? (size_t)(s->bytes - at) : PACK_SLICE;
		if (s->fd >= 0 && !pack_read_all(s->fd, s->data + at, n, PACK_DATA_AT + at))
			atomic_store(&s->cut, true);
		else
			sum += sum64(s->data + at, n, (uint64_t)i + 1);
	}
	atomic_fetch_add(&s->sum, sum);
}

uint64_t
pack_sum(void *data, int64_t bytes, Threads *threads)
{
	Sum s = { .fd = -1, .data = data, .bytes = bytes };

	threads_run(threads, sum_part, &s);
	return s.sum;
}

llmc_status
pack_open(const char *path, int *fd, struct stat *st, llmc_error *err)
{
	*fd = file_open(path);
	if (*fd < 0 || fstat(*fd, st) < 0)
		return error_set(err, LLMC_E_IO, "%s: cannot open: %s", path, strerror(errno));
	return file_check_stat(path, st, err);
}

llmc_status
pack_cache_read(const char *hex, int64_t bytes, Threads *threads, void *data, bool *found,
                llmc_error *err)
{
	Strbuf dir = { 0 }, path = { 0 };
	PackHeader have, want;
	struct stat st;
	llmc_status status;
	Sum s = { .fd = -1, .data = data, .bytes = bytes };

	*found = false;
	status = LLMC_OK;
	if (pack_path(hex, &dir, &path, NULL) != LLMC_OK || !file_exists(strbuf_str(&path)))
		/* not an error: there is no file yet, or no cache folder, which the later write
		 * reports */
		goto fail;
	TRY_GOTO(pack_open(strbuf_str(&path), &s.fd, &st, err));
	if (st.st_size == bytes + PACK_DATA_AT &&
	    pack_read_all(s.fd, (char *)&have, sizeof have, 0)) {
		pack_header(&want, hex, bytes, have.data_sum);
		if (!memcmp(&have, &want, sizeof want)) {
			threads_run(threads, sum_part, &s);
			*found = !s.cut && s.sum == have.data_sum;
		}
	}
	if (!*found)
		status = error_set(err, LLMC_E_CHECK, "%s: damaged or cut off; it is written again",
		                   strbuf_str(&path));
fail:
	if (s.fd >= 0)
		close(s.fd);
	strbuf_release(&dir);
	strbuf_release(&path);
	return status;
}

llmc_status
pack_cache_write(const char *hex, void *data, int64_t bytes, Threads *threads, llmc_error *err)
{
	Sum s = { .fd = -1, .data = data, .bytes = bytes };
	Strbuf dir = { 0 }, path = { 0 }, tmp = { 0 };
	char head[PACK_DATA_AT] = { 0 };
	llmc_status status;
	int fd = -1;

	TRY_GOTO(pack_path(hex, &dir, &path, err));
	TRY_GOTO(file_mkdirs_private(strbuf_str(&dir), err));
	if ((fd = pack_temporary(strbuf_str(&path), &tmp)) >= 0) {
		threads_run(threads, sum_part, &s);
		pack_header((PackHeader *)head, hex, bytes, s.sum);
	}
	if (fd < 0 || !file_write_fd(fd, head, sizeof head) ||
	    !file_write_fd(fd, data, (size_t)bytes) || fdatasync(fd) < 0 ||
	    rename(tmp.data, path.data) < 0) {
		status = error_set(err, LLMC_E_IO, "%s: cannot write: %s", strbuf_str(&path),
		                   strerror(errno));
		if (fd >= 0)
			unlink(tmp.data);
	}
fail:
	if (fd >= 0)
		close(fd);
	strbuf_release(&dir);
	strbuf_release(&path);
	strbuf_release(&tmp);
	return status;
}

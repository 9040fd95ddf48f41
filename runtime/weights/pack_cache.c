/* Packed weights in the cache: $LLMC_CACHE/weights/<key>/packed. Written under another name, synced, renamed; a file is
 * trusted only when it is ours, has the size its header says, and the header's checksum holds. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "runtime/weights/layout.h"
#include "runtime/weights/weights.h"

typedef struct Header {
	char     magic[16];
	char     key[64];
	uint64_t bytes;     /* of data, which begins at DATA_AT */
	char     sum[64];   /* sha256 of the fields above */
} Header;

enum { DATA_AT = 4096 };
static const char magic[16] = "llmc packed 1\n";

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

/* What the layout does, tried on a pattern: a changed layout thus changes the key by itself. */
static llmc_status
add_layout(Sha256 *s, const PlanTensor *t, llmc_error *err)
{
	const Layout *l = layout_find(t->layout);
	int64_t cols = t->cols ? 512 : 0, row = dtype_row_bytes(t->dtype, cols), bytes;

	if (!cols || row < 0 || (bytes = l->group_bytes(t->dtype, cols)) < 0)
		return LLMC_OK;
	unsigned char *src = malloc((size_t)(row * l->group + 64)), *dst = calloc(1, (size_t)bytes + 64);
	if (!src || !dst) {
		free(src);
		free(dst);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	for (int64_t i = 0; i < row * l->group; i++)
		src[i] = (unsigned char)(i * 2654435761u >> 13 & 0x3f); /* small: no NaN among the scales */
	l->pack(t->dtype, cols, src, dst);
	sha256_add(s, dst, (size_t)bytes);
	free(src);
	free(dst);
	return LLMC_OK;
}

llmc_status
pack_cache_key(const Plan *p, const PackMap *map, const Checkpoint *c, char hex[65], llmc_error *err)
{
	bool tried[64][DT_COUNT] = { { false } };
	Sha256 s;

	sha256_init(&s);
	add_text(&s, magic);
	for (int i = 0; i < p->n_tensor; i++) {
		const PlanTensor *t = &p->tensor[i];
		add_text(&s, t->id);
		add_text(&s, t->layout);
		int64_t fact[] = { t->dtype, t->rows, t->cols, map->offset[i], t->n_src };
		sha256_add(&s, fact, sizeof fact);
		for (int k = 0; k < t->n_src; k++) {
			const PlanSource *o = &t->src[k];
			add_text(&s, o->name);
			int64_t of[] = { o->rows, o->cols, o->first, o->block, o->stride, o->n_block, o->rope_pairs, o->transpose,
				o->unit_rows };
			sha256_add(&s, of, sizeof of);
		}
		unsigned slot = (unsigned char)t->layout[0] * 7u + (unsigned)layout_find(t->layout)->group;
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

static void
header_fill(Header *h, const char *hex, int64_t bytes)
{
	char sum[65];
	Sha256 s;

	*h = (Header){ .bytes = (uint64_t)bytes };
	memcpy(h->magic, magic, sizeof magic);
	memcpy(h->key, hex, sizeof h->key);
	sha256_init(&s);
	sha256_add(&s, h, offsetof(Header, sum));
	sha256_hex(&s, sum);
	memcpy(h->sum, sum, sizeof h->sum);
}

static llmc_status
cache_path(const char *hex, Strbuf *dir, Strbuf *path, llmc_error *err)
{
	TRY(file_cache_dir(dir, err));
	strbuf_printf(dir, "/weights/%s", hex);
	file_join(path, strbuf_str(dir), "packed");
	return dir->failed || path->failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

llmc_status
pack_cache_map(const char *hex, int64_t bytes, void **base, size_t *mapped, const char **data, llmc_error *err)
{
	Strbuf dir = { 0 }, path = { 0 };
	FileMap m = { 0 };
	Header want;
	llmc_status status;

	*base = NULL;
	*data = NULL;
	TRY_GOTO(cache_path(hex, &dir, &path, err));
	if (!file_exists(strbuf_str(&path)))
		goto fail; /* not a failure: nothing there yet */
	TRY_GOTO(file_check_trusted(strbuf_str(&path), err));
	TRY_GOTO(file_map(strbuf_str(&path), &m, err));
	header_fill(&want, hex, bytes);
	if (m.size != (size_t)bytes + DATA_AT || memcmp(m.data, &want, sizeof want)) {
		status = error_set(err, LLMC_E_INPUT, "%s: damaged or cut off; it is written again", strbuf_str(&path));
		file_unmap(&m);
		goto fail;
	}
	*base = (void *)m.data;
	*mapped = m.size;
	*data = (const char *)m.data + DATA_AT;
fail:
	strbuf_release(&dir);
	strbuf_release(&path);
	return status;
}

static bool
write_all(int fd, const char *p, size_t n)
{
	while (n) {
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
pack_cache_write(const char *hex, const void *data, int64_t bytes, llmc_error *err)
{
	Strbuf dir = { 0 }, path = { 0 }, tmp = { 0 };
	char head[DATA_AT] = { 0 };
	llmc_status status;
	int fd = -1;

	TRY_GOTO(cache_path(hex, &dir, &path, err));
	TRY_GOTO(file_mkdirs_private(strbuf_str(&dir), err));
	strbuf_printf(&tmp, "%s.tmp.%ld.XXXXXX", strbuf_str(&path), (long)getpid());
	if (tmp.failed) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory");
		goto fail;
	}
	fd = mkostemp(tmp.data, O_CLOEXEC);
	header_fill((Header *)head, hex, bytes);
	if (fd < 0 || !write_all(fd, head, sizeof head) || !write_all(fd, data, (size_t)bytes) || fdatasync(fd) < 0 ||
	    rename(tmp.data, path.data) < 0) {
		status = error_set(err, LLMC_E_IO, "%s: cannot write: %s", strbuf_str(&path), strerror(errno));
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

/* The older format: i32 number of entries; per entry i32 length of the name, name, i32 calls, i32
 * number of values, values f32 (mean times calls); optionally i32 last chunk, i32 length, name of
 * the text. The newer format: a GGUF with f32 tensors NAME.in_sum2 [cols, experts] and NAME.counts
 * [1, experts]. Both are untrusted. */
#include "quant/imatrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "formats/gguf_write.h"

enum { MOST_ENTRIES = 1 << 20, MOST_NAME = 65535 };

void
imatrix_add(Imatrix *m, Arena *a, const ImatrixEntry *e)
{
	m->entry = arena_grow(a, m->entry, &m->cap, m->n + 1, sizeof *m->entry);
	m->entry[m->n++] = *e;
}

const ImatrixEntry *
imatrix_find(const Imatrix *m, const char *name)
{
	for (size_t i = 0; i < m->n; i++)
		if (strcmp(m->entry[i].name, name) == 0)
			return &m->entry[i];
	return NULL;
}

/* Importance is a mean square, so it must be finite and not negative */
static llmc_status
check_values(const char *path, const ImatrixEntry *e, llmc_error *err)
{
	for (int64_t i = 0; i < e->cols * e->n_mat; i++)
		if (!isfinite(e->mean[i]) || e->mean[i] < 0)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: the importance of column %lld of %s is %g: expected "
			                 "a mean of squares",
			                 path, (long long)(i % e->cols), e->name,
			                 (double)e->mean[i]);
	return LLMC_OK;
}

static llmc_status
read_old(const char *path, const FileMap *f, Arena *a, Imatrix *out, llmc_error *err)
{
	size_t at = 0;
	int32_t n;

#define TAKE(to, bytes)                                                                            \
	do {                                                                                       \
		if (f->size - at < (size_t)(bytes))                                                \
			return error_set(err, LLMC_E_INPUT,                                        \
			                 "%s: the file ends within an entry: it is truncated, or " \
			                 "no importance matrix",                                   \
			                 path);                                                    \
		memcpy((to), f->data + at, (size_t)(bytes));                                       \
		at += (size_t)(bytes);                                                             \
	} while (0)
	TAKE(&n, 4);
	if (n < 1 || n > MOST_ENTRIES)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: %d entries: not an importance matrix, neither a GGUF nor the older "
		    "format",
		    path, n);
	for (int32_t i = 0; i < n; i++) {
		int32_t len, calls, values;
		TAKE(&len, 4);
		if (len < 1 || len > MOST_NAME || (size_t)len > f->size - at)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: the name of entry %d has %d bytes: the file is "
			                 "damaged, or not an importance matrix",
			                 path, i, len);
		char *name = arena_strndup(a, (const char *)f->data + at, (size_t)len);
		at += (size_t)len;
		TAKE(&calls, 4);
		TAKE(&values, 4);
		if (values < 1 || (size_t)values > (f->size - at) / 4)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: %s claims %d values: the file is truncated or "
			                 "damaged",
			                 path, name, values);
		float *mean = NEW(a, float, values);
		TAKE(mean, (size_t)values * 4);
		for (int32_t k = 0; k < values && calls > 0; k++)
			mean[k] /= (float)calls;
		ImatrixEntry e = { name, values, 1, mean, calls };
		TRY(check_values(path, &e, err));
		imatrix_add(out, a, &e);
	}
#undef TAKE
	return LLMC_OK;
}

static bool
is_name_with(const char *s, const char *end)
{
	return strlen(s) > strlen(end) && ends_with(s, end);
}

static llmc_status
read_gguf(const char *path, Arena *a, Imatrix *out, llmc_error *err)
{
	Gguf *g;
	llmc_status status = gguf_open(path, &g, err);

	if (status != LLMC_OK)
		return status;
	gguf_hold(a, g);
	for (size_t i = 0; i < gguf_n_tensors(g); i++) {
		const GgufTensor *t = gguf_tensor_at(g, i);
		if (!is_name_with(t->name, ".in_sum2"))
			continue;
		char *name = arena_strndup(a, t->name, strlen(t->name) - strlen(".in_sum2"));
		const GgufTensor *count = gguf_tensor(g, arena_printf(a, "%s.counts", name));
		int64_t cols = t->dim[0], n_mat = t->dim[1] * t->dim[2] * t->dim[3];
		if (t->dtype != DT_F32 || !count || count->dtype != DT_F32 ||
		    count->bytes != n_mat * 4)
			return error_set(
			    err, LLMC_E_INPUT,
			    "%s: %s is not f32, or has no counts tensor: not an importance matrix",
			    path, t->name);
		float *mean = NEW(a, float, cols *n_mat), counts = 0;
		for (int64_t m = 0; m < n_mat; m++) {
			float c;
			memcpy(&c, (const char *)count->data + m * 4, 4);
			if (m == 0)
				counts = c;
			memcpy(mean + m * cols, (const char *)t->data + m * cols * 4,
			       (size_t)cols * 4);
			for (int64_t k = 0; k < cols; k++)
				mean[m * cols + k] =
				    c > 0 ? mean[m * cols + k] / c
				          : 1; /* uniform for an expert without inputs */
		}
		ImatrixEntry e = { name, cols, n_mat, mean, (double)counts };
		TRY(check_values(path, &e, err));
		imatrix_add(out, a, &e);
	}
	arena_done(a, g);
	if (out->n == 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: no tensor name ends in .in_sum2: a GGUF, but not an "
		                 "importance matrix",
		                 path);
	return LLMC_OK;
}

llmc_status
imatrix_read(const char *path, Arena *a, Imatrix *out, llmc_error *err)
{
	*out = (Imatrix){ 0 };
	FileMap *f = file_hold(a, path, err);
	if (!f)
		return err && err->code ? err->code : LLMC_E_INPUT;
	if (f->size >= 4 && memcmp(f->data, "GGUF", 4) == 0)
		return read_gguf(path, a, out, err);
	return read_old(path, f, a, out, err);
}

static void
add_i32(Strbuf *b, int64_t v)
{
	int32_t i = (int32_t)v;
	strbuf_add(b, &i, sizeof i);
}

static void
write_old(Strbuf *b, const Imatrix *m, const char *dataset, int chunks)
{
	int32_t calls = chunks > 0 ? chunks : 1;

	add_i32(b, (int64_t)m->n);
	for (size_t i = 0; i < m->n; i++) {
		const ImatrixEntry *e = &m->entry[i];
		add_i32(b, (int64_t)strlen(e->name));
		strbuf_puts(b, e->name);
		add_i32(b, calls);
		add_i32(b, e->cols * e->n_mat);
		for (int64_t k = 0; k < e->cols * e->n_mat; k++) {
			float v = e->mean[k] * (float)calls;
			strbuf_add(b, &v, sizeof v);
		}
	}
	add_i32(b, chunks);
	add_i32(b, (int64_t)strlen(dataset));
	strbuf_puts(b, dataset);
}

static void
write_gguf(Strbuf *b, const Imatrix *m, const char *dataset, int chunks, int chunk_tokens)
{
	GgufHead h;
	static const char zero[32] = { 0 };

	gguf_head_init(&h, 32);
	gguf_head_str(&h, "general.type", "imatrix");
	gguf_head_strs(&h, "imatrix.datasets", &dataset, 1);
	gguf_head_u32(&h, "imatrix.chunk_count", (uint32_t)chunks);
	gguf_head_u32(&h, "imatrix.chunk_size", (uint32_t)chunk_tokens);
	for (size_t i = 0; i < m->n; i++)
		for (int k = 0; k < 2; k++) {
			Strbuf name = { 0 };
			strbuf_printf(&name, "%s.%s", m->entry[i].name, k ? "counts" : "in_sum2");
			h.keys.failed |= name.failed;
			gguf_head_tensor(
			    &h, strbuf_str(&name), DT_F32, 2,
			    (int64_t[]){ k ? 1 : m->entry[i].cols, m->entry[i].n_mat });
			strbuf_release(&name);
		}
	gguf_head_text(&h, b);
	size_t start = b->len;
	for (size_t i = 0; i < m->n; i++) {
		const ImatrixEntry *e = &m->entry[i];
		float count = (float)e->count;
		for (int64_t k = 0; k < e->cols * e->n_mat; k++) {
			float v = e->mean[k] * count;
			strbuf_add(b, &v, sizeof v);
		}
		strbuf_add(b, zero, -(b->len - start) & 31);
		for (int64_t k = 0; k < e->n_mat; k++)
			strbuf_add(b, &count, sizeof count);
		strbuf_add(b, zero, -(b->len - start) & 31);
	}
	gguf_head_release(&h);
}

llmc_status
imatrix_write(const char *path, const Imatrix *m, const char *dataset, int chunks, int chunk_tokens,
              llmc_error *err)
{
	Strbuf b = { 0 };
	llmc_status status;

	if (is_name_with(path, ".dat"))
		write_old(&b, m, dataset, chunks);
	else
		write_gguf(&b, m, dataset, chunks, chunk_tokens);
	status = b.failed ? error_set(err, LLMC_E_MEMORY, "out of memory for %s", path)
	                  : file_write(path, b.data, b.len, err);
	strbuf_release(&b);
	return status;
}

/* Checkpoints: opening by path, finding tensors, and messages for a file that does not fit the
 * plan. Readers in formats/ have checked that the data of every tensor lies within its file. */
#include "base/open_file.h"
#include "runtime/weights/checkpoint.h"

#include <errno.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/nearest.h"
#include "base/sum64.h"
#include "formats/dequant.h"
#include "formats/gguf.h"
#include "formats/name_table.h"
#include "formats/safetensors.h"

struct Checkpoint {
	char *path;
	Gguf *gguf; /* either gguf or st is set */
	Safetensors *st;
	Checkpoint *model; /* checkpoint of names that begin with '@'; NULL: none */
};

static bool
starts_with_gguf(const char *path)
{
	char magic[4] = { 0 };
	int fd = file_open(path);

	if (fd < 0)
		return false;
	ssize_t n = read(fd, magic, sizeof magic);
	close(fd);
	return n == 4 && !memcmp(magic, "GGUF", 4);
}

/* Is this the name of a part of a split GGUF, other than the first? */
static bool
later_part(const char *name, size_t len)
{
	const char *s = name + len - 20; /* "-00002-of-00003.gguf" */

	return len > 20 && s[0] == '-' && !strncmp(s + 6, "-of-", 4) &&
	       strncmp(s + 1, "00001", 5) != 0;
}

/* Find the only *.gguf of a folder without safetensors, or the first part of the only split one.
 * False: none or several. */
static bool
folder_gguf(const char *dir, Strbuf *out)
{
	int n_gguf = 0, n_st = 0;
	DIR *d = opendir(dir);

	if (!d)
		return false;
	for (struct dirent *e; (e = readdir(d)) != NULL;) {
		size_t len = strlen(e->d_name);
		if (len > 5 && !strcmp(e->d_name + len - 5, ".gguf") &&
		    !later_part(e->d_name, len) && n_gguf++ == 0)
			file_join(out, dir, e->d_name);
		n_st += strstr(e->d_name, ".safetensors") != NULL;
	}
	closedir(d);
	return n_gguf == 1 && n_st == 0 && !out->failed;
}

llmc_status
checkpoint_open(const char *path, Checkpoint **out, llmc_error *err)
{
	Strbuf file = { 0 };
	llmc_status status = LLMC_OK;

	*out = NULL;
	if (!file_exists(path))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: no such file or folder; the weights are expected "
		                 "there (use --weights PATH for another location)",
		                 path);
	Checkpoint *c = calloc(1, sizeof *c);
	if (!c || !(c->path = strdup(path))) {
		status = error_set(err, LLMC_E_MEMORY, "%s: out of memory", path);
		goto fail;
	}
	if (file_is_dir(path)) {
		if (folder_gguf(path, &file)) {
			TRY_GOTO(gguf_open(strbuf_str(&file), &c->gguf, err));
			/* so that errors and the cache key name the file, not the folder */
			free(c->path);
			if (!(c->path = strdup(strbuf_str(&file)))) {
				status = error_set(err, LLMC_E_MEMORY, "%s: out of memory", path);
				goto fail;
			}
		} else {
			TRY_GOTO(safetensors_open(path, &c->st, err));
		}
	} else if (starts_with_gguf(path)) {
		TRY_GOTO(gguf_open(path, &c->gguf, err));
	} else {
		size_t n = strlen(path);
		/* not a GGUF file by content: the GGUF reader reports the reason */
		if (n > 5 && !strcmp(path + n - 5, ".gguf"))
			TRY_GOTO(gguf_open(path, &c->gguf, err));
		else
			TRY_GOTO(safetensors_open(path, &c->st, err));
	}
	strbuf_release(&file);
	*out = c;
	return LLMC_OK;
fail:
	strbuf_release(&file);
	checkpoint_close(c);
	return status;
}

llmc_status
checkpoint_add_model(Checkpoint *c, const char *path, llmc_error *err)
{
	return path ? checkpoint_open(path, &c->model, err) : LLMC_OK;
}

void
checkpoint_close(Checkpoint *c)
{
	if (!c)
		return;
	checkpoint_close(c->model);
	gguf_close(c->gguf);
	safetensors_close(c->st);
	free(c->path);
	free(c);
}

bool
checkpoint_find(const Checkpoint *c, const char *name, CheckpointTensor *out)
{
	if (c->model && name[0] == '@')
		return checkpoint_find(c->model, name + 1, out);
	if (c->gguf) {
		const GgufTensor *t = gguf_tensor(c->gguf, name);
		if (!t)
			return false;
		*out = (CheckpointTensor){ .name = t->name,
			                   .file = t->file,
			                   .dtype = t->dtype,
			                   .n_dims = t->n_dims,
			                   .dtype_name = ggml_type_name(t->ggml_type),
			                   .data = t->data,
			                   .bytes = t->bytes,
			                   .made = t->made };
		for (int i = 0; i < t->n_dims; i++)
			out->dim[i] = t->dim[t->n_dims - 1 - i];
		return true;
	}
	const StTensor *t = safetensors_find(c->st, name);
	if (!t)
		return false;
	*out = (CheckpointTensor){ .name = t->name,
		                   .file = t->file,
		                   .dtype = t->dtype,
		                   .n_dims = t->n_dims,
		                   .dtype_name = t->dtype_name,
		                   .data = t->data,
		                   .bytes = t->bytes,
		                   .copied = t->copied,
		                   .made = t->made };
	memcpy(out->dim, t->dim, sizeof out->dim);
	return true;
}

const char *
checkpoint_nearest(const Checkpoint *c, const char *name)
{
	size_t n = c->gguf ? gguf_n_tensors(c->gguf) : safetensors_n(c->st);
	size_t best = strlen(name) / 3 + 1;
	const char *found = NULL;

	for (size_t i = 0; i < n && i < 100000; i++) {
		const char *s =
		    c->gguf ? gguf_tensor_at(c->gguf, i)->name : safetensors_at(c->st, i)->name;
		size_t d = edit_distance(name, s, best);
		if (d < best) {
			best = d;
			found = s;
		}
	}
	return found;
}

static void
shape_text(const CheckpointTensor *t, char *buf, size_t cap)
{
	size_t len = 0;

	buf[0] = 0;
	for (int i = 0; i < t->n_dims && len < cap; i++)
		len += (size_t)snprintf(buf + len, cap - len, "%s%lld", i ? ", " : "",
		                        (long long)t->dim[i]);
}

/* Does the file's shape agree with [rows, cols]? Leading dimensions are flattened; for the kernel
 * of a convolution, trailing ones. A vector (cols 0) may have any shape. */
static bool
shape_fits(const CheckpointTensor *t, int64_t rows, int64_t cols)
{
	int64_t elems = 1, want;

	for (int i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(elems, t->dim[i], &elems))
			return false;
	if (__builtin_mul_overflow(rows, cols ? cols : 1, &want) || elems != want)
		return false;
	int64_t last = 1;
	for (int i = t->n_dims; i > 1 && last < cols;)
		last *= t->dim[--i];
	return cols <= 1 || last == cols || (t->n_dims == 1 && t->dim[0] == cols);
}

/* Can fp32 numbers be quantised to this type at load time? Other types are used only if the file
 * has them. */
static bool
has_quantiser(Dtype d)
{
	static const float zero[256];
	char block[sizeof zero];

	return quant_row(d, zero, block, dtype_info(d)->block_elems);
}

/* Find the row order of the source (a row permutation stored as F32) and check that each entry is a
 * row index. */
static llmc_status
rows_in(const Checkpoint *c, const PlanSource *s, CheckpointTensor *out, llmc_error *err)
{
	CheckpointTensor order;

	if (!s->rows_in)
		return LLMC_OK;
	if (!checkpoint_find(c, s->rows_in, &order) || order.dtype != DT_F32 || !order.data ||
	    order.bytes != 4 * s->rows)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\": the plan expects its row order in "
		                 "%s, a tensor of %lld F32 values; import the file again",
		                 out->file, s->name, s->rows_in, (long long)s->rows);
	out->rows_in = order.data;
	for (int64_t i = 0; i < s->rows; i++)
		if (!(out->rows_in[i] >= 0 && out->rows_in[i] < (float)s->rows))
			return error_set(err, LLMC_E_INPUT,
			                 "%s: %s[%lld] = %g is not a row "
			                 "index of \"%s\"",
			                 order.file, s->rows_in, (long long)i, out->rows_in[i],
			                 s->name);
	return LLMC_OK;
}

llmc_status
checkpoint_source(const Checkpoint *c, const PlanTensor *t, const PlanSource *s,
                  CheckpointTensor *out, llmc_error *err)
{
	char have[160], want[64];

	if (!checkpoint_find(c, s->name, out)) {
		const char *near = checkpoint_nearest(c, s->name);
		return error_set(err, LLMC_E_INPUT,
		                 "%s: has no tensor \"%s\", which the model needs (%s)%s%s%s",
		                 c->path, s->name, t->id, near ? "; the nearest name is \"" : "",
		                 near ? name_text(near, strlen(near)).s : "", near ? "\"" : "");
	}
	if (out->dtype == DT_NONE)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\" is stored as %s, which llmc does not read",
		                 out->file, s->name,
		                 out->dtype_name ? out->dtype_name : "an unknown type");
	/* with an adapter, rows are computed in fp32 before they are stored */
	const bool adapted = s->lora && t->cols && dtype_is_float(t->dtype);
	if (out->made &&
	    (!t->cols || s->col_groups || (s->stored && !adapted && !s->transpose) || s->unit_rows))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\" is quantised by rows: it can only be "
		                 "read as a matrix with unchanged rows, not as %s",
		                 out->file, s->name, t->cols ? "a changed one" : "a vector");
	if (adapted && out->made && !s->permuted)
		out->dtype = plan_source_dtype(t, s);
	else if (out->made && (out->made->order || out->made->factor || out->made->indexed) &&
	         !s->permuted && t->dtype == DT_F32)
		out->dtype = DT_F32; /* computed by quant_format_row_f32 */
	else if ((out->made && (out->made->order || out->made->factor)) != s->permuted &&
	         !(s->permuted && out->made && out->made->indexed))
		return error_set(
		    err, LLMC_E_INPUT, "%s: tensor \"%s\": columns %s; import the file again",
		    out->file, s->name,
		    s->permuted ? "have no order or factors, which the plan expects"
		                : "have an order or factors, which the plan does not expect");
	if (out->dtype == DT_I32 || out->dtype == DT_I64)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\" holds integers (%s), weights are expected",
		                 out->file, s->name, dtype_text(out->dtype));
	/* a vector of any type is expanded to fp32. A matrix keeps its type, unless the plan
	 * converts it from f32, f16 or bf16 to another type */
	const bool converts = t->cols && !out->made && dtype_is_float(out->dtype);
	if (out->dtype != plan_source_dtype(t, s) && !converts &&
	    (t->cols || strcmp(t->layout, "f32")))
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: tensor \"%s\": plan wants %s, file holds %s: import the file again%s",
		    out->file, s->name, dtype_text(plan_source_dtype(t, s)), dtype_text(out->dtype),
		    dtype_is_float(out->dtype) ? ""
		                               : "; quantised weights are not quantised again");
	if (converts && out->dtype != t->dtype && !has_quantiser(t->dtype))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\" is %s, and llmc cannot convert it to "
		                 "%s; choose another type in storage",
		                 out->file, s->name, dtype_text(out->dtype), dtype_text(t->dtype));
	if (!shape_fits(out, s->rows, s->cols)) {
		shape_text(out, have, sizeof have);
		if (s->cols)
			snprintf(want, sizeof want, "[%lld, %lld]", (long long)s->rows,
			         (long long)s->cols);
		else
			snprintf(want, sizeof want, "[%lld]", (long long)s->rows);
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\": plan wants shape %s, file holds [%s]",
		                 out->file, s->name, want, have);
	}
	return rows_in(c, s, out, err);
}

llmc_status
checkpoint_integers(const Checkpoint *c, const char *name, int64_t *dst, int64_t n, llmc_error *err)
{
	CheckpointTensor t;

	if (!checkpoint_find(c, name, &t))
		return error_set(err, LLMC_E_INPUT, "%s: has no tensor \"%s\"", c->path, name);
	const int64_t size = t.dtype == DT_I64 ? 8 : 4;
	if ((t.dtype != DT_I64 && t.dtype != DT_I32) || !t.data || t.bytes != n * size)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: tensor \"%s\" is %s of %lld bytes, expected %lld integers "
		                 "of 32 or 64 bits",
		                 t.file, name,
		                 t.dtype == DT_NONE ? t.dtype_name : dtype_text(t.dtype),
		                 (long long)t.bytes, (long long)n);
	for (int64_t i = 0; i < n; i++) {
		int32_t narrow;
		const char *from = (const char *)t.data + i * size;
		if (size == 8) {
			memcpy(&dst[i], from, 8);
		} else {
			memcpy(&narrow, from, 4);
			dst[i] = narrow;
		}
	}
	return LLMC_OK;
}

llmc_status
checkpoint_vector(const Checkpoint *c, const char *name, float *dst, int64_t n, llmc_error *err)
{
	const PlanTensor t = {
		.id = "rotary factors", .dtype = DT_F32, .rows = n, .layout = "f32"
	};
	CheckpointTensor found;
	const bool longer =
	    checkpoint_find(c, name, &found) && found.n_dims == 1 && found.dim[0] > n;
	const PlanSource s = { .name = name, .rows = longer ? found.dim[0] : n };

	TRY(checkpoint_source(c, &t, &s, &found, err));
	if (dtype_row_bytes(found.dtype, s.rows) != found.bytes ||
	    dtype_row_bytes(found.dtype, n) < 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: the size of tensor \"%s\" is not a multiple of its "
		                 "block size",
		                 found.file, name);
	dequant_row(found.dtype, found.data, dst, n);
	return LLMC_OK;
}

static llmc_status
add_file(Sha256 *sum, const char *path, llmc_error *err)
{
	enum { HEAD = 1 << 16 };
	struct stat st;
	llmc_status status = LLMC_OK;
	char *real = realpath(path, NULL);
	int fd = file_open(path);
	char *head = malloc(HEAD);

	if (fd < 0 || !head || fstat(fd, &st) < 0) {
		status = error_set(err, LLMC_E_IO, "%s: cannot read: %s", path, strerror(errno));
		goto fail;
	}
	ssize_t n = pread(fd, head, HEAD, 0);
	int64_t fact[3] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };
	const char *name = real ? real : path;
	sha256_add(sum, name, strlen(name) + 1);
	sha256_add(sum, fact, sizeof fact);
	if (n > 0)
		sha256_add(sum, head, (size_t)n);
fail:
	if (fd >= 0)
		close(fd);
	free(real);
	free(head);
	return status;
}

llmc_status
checkpoint_identity(const Checkpoint *c, Sha256 *sum, llmc_error *err)
{
	const char *last = NULL;

	if (c->model)
		TRY(checkpoint_identity(c->model, sum, err));
	if (c->gguf) {
		TRY(add_file(sum, c->path, err));
		for (size_t i = 0; i < gguf_n_parts(c->gguf); i++)
			TRY(add_file(sum, gguf_part_at(c->gguf, i), err));
		return LLMC_OK;
	}
	for (size_t i = 0; i < safetensors_n(c->st); i++) {
		const StTensor *t = safetensors_at(c->st, i);
		/* skip the shard of the previous tensor: most tensors of a shard are adjacent. A
		 * shard that is added twice gives another sum, which does no harm */
		if (last && !strcmp(last, t->file))
			continue;
		TRY(add_file(sum, t->file, err));
		last = t->file;
	}
	return LLMC_OK;
}

uint64_t
checkpoint_content(const Checkpoint *c)
{
	enum { FIRST = 4096 };
	size_t n = c->gguf ? gguf_n_tensors(c->gguf) : safetensors_n(c->st);
	uint64_t sum = n;

	for (size_t i = 0; i < n; i++) {
		CheckpointTensor t;
		if (!checkpoint_find(c,
		                     c->gguf ? gguf_tensor_at(c->gguf, i)->name
		                             : safetensors_at(c->st, i)->name,
		                     &t))
			continue;
		int64_t fact[] = { t.dtype, t.n_dims, t.bytes };
		sum = sum64(t.name, strlen(t.name), sum);
		sum = sum64(fact, sizeof fact, sum);
		if (t.data)
			sum = sum64(t.data, (size_t)(t.bytes < FIRST ? t.bytes : FIRST), sum);
	}
	return sum;
}

void
checkpoint_forget(const CheckpointTensor *t)
{
	if (t->made || t->copied) /* keep the pages: packed words may hold rows of several groups */
		return;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = ((uintptr_t)t->data + page - 1) & ~(page - 1);
	uintptr_t to = ((uintptr_t)t->data + (uintptr_t)t->bytes) & ~(page - 1);

	/* only pages that lie within this tensor; on failure they stay resident, which does no
	 * harm */
	if (to > from)
		(void)madvise((void *)from, to - from, MADV_DONTNEED);
}

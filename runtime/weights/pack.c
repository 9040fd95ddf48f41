/* Packing of one tensor: rows from its sources in the checkpoint are written in the target layout,
 * group by group, on all threads. plan_check has verified that the row ranges lie within their
 * sources and fill the tensor. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/align.h"
#include "base/random.h"
#include "formats/dequant.h"
#include "formats/layout.h"
#include "formats/peft.h"
#include "runtime/weights/weights.h"

typedef struct PackJob {
	const PlanTensor *t;
	const CheckpointTensor *src; /* NULL: random weights */
	const Layout *layout;
	char *dst;                                  /* output of group `first` */
	int64_t row_bytes, group_bytes, first, end; /* groups to pack in this call */
	atomic_llong next;
	char *scratch;
	size_t scratch_bytes;
	const char *noise;
	int64_t noise_blocks;
	atomic_int broken; /* index of a source with a NaN or infinite scale, + 1; 0: none */
} PackJob;

enum { NOISE_ELEMS = 1 << 16, GROUPS_AT_ONCE = 16 };

/* Scratch memory of a thread: buffers for rows, and for a transposed matrix a cache of the expanded
 * columns of one block. */
typedef struct PackScratch {
	float *row;        /* one row in fp32 */
	char *file;        /* one stored row in the tensor's type, of which columns are taken */
	float *transposed; /* [block_elems][cols] transposed block */
	/* one dequantised row of the file, whose elements go to different rows of the tensor */
	float *across;
	int source; /* source of the transposed block; -1: none yet */
	int64_t matrix, block;
} PackScratch;

bool
pack_in_place(const PlanTensor *t, const CheckpointTensor *src, const void **data)
{
	const PlanSource *s = &t->src[0];
	uintptr_t align = t->dtype == DT_F32 ? 4 : 2;

	if (src->delta || src->rows_in || s->col_total || src->made || src->dtype != t->dtype ||
	    strcmp(t->layout, "row") || t->n_src != 1 || s->rope_pairs || s->transpose ||
	    s->unit_rows || s->stored || s->col_groups || (s->n_block > 1 && s->stride != s->block))
		return false;
	const char *at = (const char *)src->data;
	at += s->first * dtype_row_bytes(t->dtype, t->cols ? t->cols : s->cols ? s->cols : 1);
	if ((uintptr_t)at % align)
		return false;
	*data = at;
	return true;
}

/* Number of columns of the stored rows */
static int64_t
file_cols(const PlanTensor *t)
{
	return t->cols && t->src[0].col_total ? t->src[0].col_total : t->cols;
}

/* Longest stored row among sources that are transposed or read in groups of columns; 0: none */
static int64_t
widest_across(const PlanTensor *t)
{
	int64_t most = 0;

	for (int k = 0; k < t->n_src; k++) {
		const int64_t n = t->src[k].col_groups ? t->cols : t->src[k].transpose;
		most = n > most ? n : most;
	}
	return most;
}

size_t
pack_scratch_bytes(const PlanTensor *t)
{
	int64_t group = layout_find(t->layout)->group, row = dtype_row_bytes(t->dtype, t->cols);

	int64_t transposed = 0;

	for (int k = 0; k < t->n_src; k++) {
		int64_t elems = dtype_info(plan_source_dtype(t, &t->src[k]))->block_elems;
		if (t->src[k].transpose && elems > transposed)
			transposed = elems;
	}
	/* a group of rows in the tensor's type; a stored row in fp32, and one in the tensor's type;
	 * a row of a transposed source; the columns of a block */
	return t->cols
	           ? ALIGN_UP((size_t)(group * row), 64) + ALIGN_UP((size_t)file_cols(t) * 4, 64) +
	                 ALIGN_UP((size_t)dtype_row_bytes(t->dtype, file_cols(t)), 64) +
	                 ALIGN_UP((size_t)widest_across(t) * 4, 64) +
	                 (size_t)(t->cols * 4 * transposed) + 64
	           : 64;
}

static uint64_t
mix(uint64_t x)
{
	return random_mix(x + 0x9e3779b97f4a7c15u);
}

/* Pseudo-random number in [-1, 1]: the sum of three uniform ones */
static float
noise_at(uint64_t i)
{
	uint64_t h = mix(i);
	float a = (float)(h & 0xfffff), b = (float)(h >> 20 & 0xfffff),
	      c = (float)(h >> 40 & 0xfffff);

	return (a + b + c) * (2.0f / 3 / 1048575.0f) - 1;
}

/* Hash a name. Random weights depend on the source's name and row, so that plans with and without
 * fused tensors have the same weights. */
static uint64_t
name_hash(const char *name)
{
	uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */

	for (; *name; name++)
		h = (h ^ (unsigned char)*name) * 0x100000001b3u;
	return h;
}

static void
random_row(const PackJob *j, const PlanSource *s, int64_t row, char *dst)
{
	const DtypeInfo *d = dtype_info(j->t->dtype);
	int64_t left = j->row_bytes / d->block_bytes;
	int64_t at =
	    (int64_t)(mix(name_hash(s->name) ^ mix((uint64_t)row)) % (uint64_t)j->noise_blocks);

	at = (at + s->col_first / d->block_elems) % j->noise_blocks;

	while (left > 0) {
		int64_t n = j->noise_blocks - at < left ? j->noise_blocks - at : left;
		memcpy(dst, j->noise + at * d->block_bytes, (size_t)(n * d->block_bytes));
		dst += n * d->block_bytes;
		left -= n;
		at = 0;
	}
}

static void
unit_row(Dtype d, char *row, int64_t cols, float *tmp)
{
	double sum = 0;

	dequant_row(d, row, tmp, cols);
	for (int64_t i = 0; i < cols; i++)
		sum += (double)tmp[i] * tmp[i];
	double norm = sqrt(sum);
	if (norm > 0)
		for (int64_t i = 0; i < cols; i++)
			tmp[i] = (float)(tmp[i] / norm);
	quant_row(d, tmp, row, cols);
}

/* Compute row `row` of the transposed source k into the scratch row, in fp32. Rows of one block are
 * processed in sequence, so each block of the file is expanded once. */
static void
transposed_row(PackJob *j, int k, int64_t row, PackScratch *room)
{
	const PlanSource *s = &j->t->src[k];
	const QuantFormatMatrix *made = j->src[k].made;
	Dtype from = j->src[k].dtype;
	int64_t elems = dtype_info(from)->block_elems, bytes = dtype_info(from)->block_bytes,
	        cols = j->t->cols, wide = file_cols(j->t);
	int64_t matrix = row / s->transpose, block = row % s->transpose / elems;

	if (room->source != k || room->matrix != matrix || room->block != block) {
		const char *at =
		    made ? NULL
		         : (const char *)j->src[k].data +
		               ((matrix * wide + s->col_first) * (s->transpose / elems) + block) *
		                   bytes;
		float one[256];
		for (int64_t c = 0; c < cols; c++) {
			const float *value = made ? room->across + block * elems : one;
			if (!made) {
				dequant_row(from, at + c * (s->transpose / elems) * bytes, one,
				            elems);
			} else if (!quant_format_row_f32(made, matrix * wide + s->col_first + c,
			                                 room->across)) {
				memset(room->across, 0,
				       (size_t)s->transpose * sizeof *room->across);
				atomic_store(&j->broken, k + 1);
			}
			for (int64_t e = 0; e < elems; e++)
				room->transposed[e * cols + c] = value[e];
		}
		room->source = k;
		room->matrix = matrix;
		room->block = block;
	}
	memcpy(room->row, room->transposed + row % s->transpose % elems * cols,
	       (size_t)cols * sizeof(float));
}

/* Take columns of a stored row that has to be converted as a whole: it is quantised in a checkpoint
 * format, or the cut is within a group of columns that share a scale. */
static bool
cut_row(PackJob *j, int k, int64_t row, char *tmp, PackScratch *room)
{
	const PlanTensor *t = j->t;
	const CheckpointTensor *c = &j->src[k];
	int64_t wide = file_cols(t);
	bool good = true;

	if (c->made && t->dtype != c->made->dtype) { /* the row is expanded to f32 */
		good = quant_format_row_f32(c->made, row, room->row);
		memcpy(room->file, room->row, (size_t)wide * sizeof *room->row);
	} else if (c->made) {
		good = quant_format_row(c->made, row, room->file);
	} else {
		dequant_row(c->dtype, (const char *)c->data + row * dtype_row_bytes(c->dtype, wide),
		            room->row, wide);
		quant_row_shared(t->dtype, t->scale_cols, t->symmetric, room->row, room->file,
		                 wide);
	}
	if (good)
		memcpy(tmp, room->file + dtype_row_bytes(t->dtype, t->src[k].col_first),
		       (size_t)j->row_bytes);
	return good;
}

/* Add the adapter to row i of source k: summed in fp32, rounded once. */
static void
adapted_row(PackJob *j, int k, int64_t i, int64_t row, char *tmp, PackScratch *room)
{
	const PlanTensor *t = j->t;
	const PlanSource *s = &t->src[k];
	const CheckpointTensor *c = &j->src[k];
	int64_t wide = file_cols(t);

	if (s->transpose) {
		transposed_row(j, k, row, room);
	} else if (c->made) {
		if (!quant_format_row_f32(c->made, row, room->row)) {
			memset(room->row, 0, (size_t)wide * sizeof *room->row);
			atomic_store(&j->broken, k + 1);
		}
	} else {
		dequant_row(c->dtype, (const char *)c->data + row * dtype_row_bytes(c->dtype, wide),
		            room->row, wide);
	}
	peft_add(c->delta, s->lora_first + i / s->lora_block * s->lora_stride + i % s->lora_block,
	         0, t->cols, room->row);
	quant_row_shared(t->dtype, t->scale_cols, t->symmetric, room->row, tmp, t->cols);
	if (s->unit_rows)
		unit_row(t->dtype, tmp, t->cols, room->row);
}

/* Reorder a row whose columns are stored in groups, in fp32, and write it in the tensor's type. */
static void
grouped_row(const PackJob *j, int k, const char *row, char *tmp, PackScratch *room)
{
	const PlanTensor *t = j->t;
	const int64_t g = t->src[k].col_groups, each = t->cols / g;

	dequant_row(j->src[k].dtype, row, room->across, t->cols);
	for (int64_t c = 0; c < t->cols; c++)
		room->row[c] = room->across[c % each * g + c / each];
	quant_row_shared(t->dtype, t->scale_cols, t->symmetric, room->row, tmp, t->cols);
}

/* Return row i in the tensor's type: a pointer into the file if it can be used as stored, else a
 * copy in tmp. */
static const char *
file_row(PackJob *j, int64_t i, char *tmp, PackScratch *room)
{
	const PlanTensor *t = j->t;
	int k = 0;

	while (i >= t->src[k].n_block * t->src[k].block) {
		i -= t->src[k].n_block * t->src[k].block;
		k++;
	}
	const PlanSource *s = &t->src[k];
	int64_t row = plan_source_row(s, i);
	if (!j->src) {
		random_row(j, s, row, tmp);
		return tmp;
	}
	if (j->src[k].rows_in)
		row = (int64_t)j->src[k].rows_in[row];
	if (j->src[k].delta) {
		adapted_row(j, k, i, row, tmp, room);
		return tmp;
	}
	const char *data = j->src[k].data;
	if (j->src[k].made && !s->transpose) {
		const QuantFormatMatrix *m = j->src[k].made;
		bool good = s->col_total           ? cut_row(j, k, row, tmp, room)
		            : t->dtype != m->dtype ? quant_format_row_f32(m, row, (float *)tmp)
		                                   : quant_format_row(m, row, tmp);
		if (!good) {
			memset(tmp, 0, (size_t)j->row_bytes);
			atomic_store(&j->broken, k + 1);
		}
		return tmp;
	}
	int64_t wide = file_cols(t);
	if (s->col_groups) {
		grouped_row(j, k, data + row * dtype_row_bytes(j->src[k].dtype, wide), tmp, room);
		return tmp;
	}
	if (j->src[k].dtype != t->dtype || j->src[k].made) {
		if (s->transpose) {
			transposed_row(j, k, row, room);
		} else if ((t->scale_cols > 0 &&
		            (s->col_first % t->scale_cols || t->cols % t->scale_cols)) ||
		           (s->col_total && dtype_row_factor(t->dtype))) {
			cut_row(j, k, row, tmp, room);
			return tmp;
		} else {
			/* columns can be cut only if each is one number, unless the whole row is
			 * used */
			data += row * dtype_row_bytes(j->src[k].dtype, wide) +
			        dtype_row_bytes(j->src[k].dtype, s->col_first);
			dequant_row(j->src[k].dtype, data, room->row, t->cols);
		}
		quant_row_shared(t->dtype, t->scale_cols, t->symmetric, room->row, tmp, t->cols);
	} else if (!s->transpose) {
		if (!s->unit_rows)
			return data + row * dtype_row_bytes(t->dtype, wide) +
			       dtype_row_bytes(t->dtype, s->col_first);
		memcpy(tmp, data + row * j->row_bytes, (size_t)j->row_bytes);
	} else {
		/* column row % r of matrix row / r, whose shape is [wide, r] */
		int64_t size = dtype_info(t->dtype)->block_bytes, r = s->transpose;
		data += ((row / r * wide + s->col_first) * r + row % r) * size;
		for (int64_t c = 0; c < t->cols; c++)
			memcpy(tmp + c * size, data + c * r * size, (size_t)size);
	}
	if (s->unit_rows)
		unit_row(t->dtype, tmp, t->cols, room->row);
	return tmp;
}

static void
pack_groups(void *user, int part, int n_parts)
{
	PackJob *j = user;
	const PlanTensor *t = j->t;
	int64_t group = j->layout->group;
	char *tmp = j->scratch + (size_t)part * j->scratch_bytes;
	PackScratch room = { .row = (float *)(tmp + ALIGN_UP((size_t)(group * j->row_bytes), 64)),
		             .source = -1 };

	(void)n_parts;
	room.file = (char *)room.row + ALIGN_UP((size_t)file_cols(t) * 4, 64);
	room.across =
	    (float *)(room.file + ALIGN_UP((size_t)dtype_row_bytes(t->dtype, file_cols(t)), 64));
	room.transposed = room.across + ALIGN_UP((size_t)widest_across(t) * 4, 64) / 4;
	for (;;) {
		int64_t g = atomic_fetch_add(&j->next, GROUPS_AT_ONCE), end = g + GROUPS_AT_ONCE;
		if (g >= j->end)
			return;
		for (; g < end && g < j->end; g++) {
			int64_t first = g * group,
			        n = t->rows - first < group ? t->rows - first : group;
			const char *at = NULL;
			bool whole = n == group;
			for (int64_t r = 0; r < n; r++) {
				const char *row =
				    file_row(j, first + r, tmp + r * j->row_bytes, &room);
				if (r == 0)
					at = row;
				whole = whole && row == at + r * j->row_bytes;
			}
			if (!whole) { /* the rows are not contiguous */
				for (int64_t r = 0; r < n; r++) {
					char *to = tmp + r * j->row_bytes;
					const char *row = file_row(j, first + r, to, &room);
					if (row != to)
						memcpy(to, row, (size_t)j->row_bytes);
				}
				memset(tmp + n * j->row_bytes, 0,
				       (size_t)((group - n) * j->row_bytes));
				at = tmp;
			}
			j->layout->pack(t->dtype, t->cols, at,
			                j->dst + (g - j->first) * j->group_bytes);
		}
	}
}

/* Pack a vector (bias or norm). Vectors are small, so one thread expands each source as a whole. */
static llmc_status
pack_vector(const PlanTensor *t, const CheckpointTensor *src, void *dst, llmc_error *err)
{
	float *out = malloc((size_t)t->rows * sizeof *out + 64), *file = NULL;
	bool norm = strstr(t->id, "norm") != NULL;
	int64_t at = 0;

	if (!out)
		goto fail;
	for (int k = 0; k < t->n_src; k++) {
		const PlanSource *s = &t->src[k];
		int64_t width = s->cols ? s->cols : 1, n = s->rows * width;
		float *grown = realloc(file, (size_t)n * sizeof *file);
		if (!grown)
			goto fail;
		file = grown;
		if (src)
			dequant_row(src[k].dtype, src[k].data, file, n);
		/* random norms are about 1, biases about 0 */
		for (int64_t i = 0; !src && i < n; i++)
			file[i] = (norm ? 1.0f : 0.0f) +
			          0.02f * noise_at(mix(name_hash(s->name)) + (uint64_t)i);
		for (int64_t i = 0; i < s->n_block * s->block; i++, at += width) {
			int64_t row = plan_source_row(s, i);
			if (src && src[k].rows_in)
				row = (int64_t)src[k].rows_in[row];
			memcpy(out + at, file + row * width, (size_t)width * sizeof *out);
		}
	}
	if (!strcmp(t->layout, "f32"))
		memcpy(dst, out, (size_t)t->rows * sizeof *out);
	else
		quant_row(t->dtype, out, dst, t->rows);
	free(out);
	free(file);
	return LLMC_OK;
fail:
	free(out);
	free(file);
	return error_set(err, LLMC_E_MEMORY, "out of memory for tensor %s", t->id);
}

/* Make random blocks for random_row. Their number depends on the columns only, so that stacking
 * rows does not change the weights. */
static char *
make_noise(const PlanTensor *t, int64_t *n_blocks)
{
	int64_t wide = file_cols(t),
	        n = wide > NOISE_ELEMS / 64 ? NOISE_ELEMS : (64 * wide + 255) / 256 * 256;
	float *f = malloc((size_t)n * sizeof *f);
	char *noise = f ? calloc((size_t)n, 4) : NULL;

	for (int64_t i = 0; noise && i < n; i++)
		f[i] = 0.04f * noise_at((uint64_t)i);
	if (noise && !quant_row(t->dtype, f, noise, n))
		noise_row(t->dtype, 0.023f, noise, n);
	free(f);
	*n_blocks = n / dtype_info(t->dtype)->block_elems;
	return noise;
}

size_t
pack_chunk_bytes(const PlanTensor *t)
{
	return t->factor ? 256
	       : t->cols ? (size_t)layout_find(t->layout)->group_bytes(t->dtype, t->cols)
	                 : (size_t)plan_tensor_bytes(t);
}

llmc_status
pack_chunks(const PlanTensor *t, const CheckpointTensor *src, const PackBuffers *room,
            Threads *threads, char *scratch, size_t scratch_bytes, llmc_error *err)
{
	char *noise = NULL;
	void *dst;
	llmc_status status = LLMC_OK;

	if (t->factor) { /* adapter slots start as zeros */
		const int64_t all = plan_tensor_bytes(t),
		              most_bytes = (int64_t)(room->cap & ~(size_t)255);
		for (int64_t at = 0, n; at < all && status == LLMC_OK; at += n) {
			n = all - at < most_bytes ? all - at : most_bytes;
			status = room->take(room->user, at, (size_t)n, &dst, err);
			if (status == LLMC_OK)
				memset(dst, 0, (size_t)n);
		}
		return status;
	}
	if (!t->cols) {
		TRY(room->take(room->user, 0, (size_t)plan_tensor_bytes(t), &dst, err));
		return pack_vector(t, src, dst, err);
	}
	PackJob j = { .t = t,
		      .src = src,
		      .layout = layout_find(t->layout),
		      .row_bytes = dtype_row_bytes(t->dtype, t->cols),
		      .scratch = scratch,
		      .scratch_bytes = scratch_bytes };
	j.group_bytes = j.layout->group_bytes(t->dtype, t->cols);
	int64_t n_group = (t->rows + j.layout->group - 1) / j.layout->group,
	        most = (int64_t)room->cap / j.group_bytes;
	if (!src) {
		noise = make_noise(t, &j.noise_blocks);
		if (!noise)
			return error_set(err, LLMC_E_MEMORY, "out of memory for tensor %s", t->id);
		j.noise = noise;
	}
	for (; j.first < n_group && status == LLMC_OK; j.first = j.end) {
		j.end = n_group - j.first < most ? n_group : j.first + most;
		status = room->take(room->user, j.first * j.group_bytes,
		                    (size_t)((j.end - j.first) * j.group_bytes), &dst, err);
		j.dst = dst;
		atomic_store(&j.next, j.first);
		if (status == LLMC_OK)
			threads_run(threads, pack_groups, &j);
	}
	if (status == LLMC_OK && atomic_load(&j.broken))
		status =
		    error_set(err, LLMC_E_INPUT, "%s: a scale of tensor \"%s\" is NaN or infinite",
		              src[j.broken - 1].file, src[j.broken - 1].name);
	free(noise);
	return status;
}

static llmc_status
take_whole(void *user, int64_t offset, size_t bytes, void **at, llmc_error *err)
{
	(void)bytes, (void)err;
	*at = (char *)user + offset;
	return LLMC_OK;
}

llmc_status
pack_tensor(const PlanTensor *t, const CheckpointTensor *src, void *dst, Threads *threads,
            char *scratch, size_t scratch_bytes, llmc_error *err)
{
	PackBuffers whole = { .user = dst, .cap = SIZE_MAX / 2, .take = take_whole };

	return pack_chunks(t, src, &whole, threads, scratch, scratch_bytes, err);
}

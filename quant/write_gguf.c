/* Writes the file of quant/write_gguf.h: header, then tensors row by row in the file's order. Each
 * row is located in the folder, dequantised, and rounded to its type (lossless if the type is the
 * folder's). */
#include "quant/write_gguf.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "compiler/import/export.h"
#include "formats/dequant.h"
#include "formats/gguf_write.h"
#include "runtime/weights/checkpoint.h"
#include "text/text.h"

typedef struct RowSource {
	int32_t part;
	int64_t at;
} RowSource; /* a row of the file: row `at` of the model's tensor of part `part` */

typedef struct GgufWriter {
	ConvertJob *job;
	Arena a;
	const Export *x;
	Checkpoint *c;
	CheckpointTensor **from; /* [n_part][sources of part.from] */
	Dtype *type;             /* [n_tensor] */
	int64_t *offset;
	GgufHead head;
	const char *tmp;
	FILE *f;
	int64_t data_at, at;
	llmc_error *err;
} GgufWriter;

/* ---- keys and tokenizer ---- */

static llmc_status
describe(GgufWriter *w)
{
	Diag *const d = NEW(&w->a, Diag, 1);
	llmc_error why = { 0 };

	diag_init(d, &w->a);
	if (!setjmp(d->bug))
		w->x = export_gguf(w->job->folder, w->job->out, d, &w->a, &why);
	if (!w->x)
		return why.code ? error_set(w->err, why.code, "%s", why.text)
		                : diag_error(d, w->err);
	log_text(w->job->log, w->job->log_user, LLMC_LOG_WARNING, strbuf_str(&d->text));
	return LLMC_OK;
}

static void
put_list(GgufWriter *w, const ExportKey *k)
{
	const size_t n = k->val.n;
	uint32_t *number = NEW(&w->a, uint32_t, n + 1);
	float *real = NEW(&w->a, float, n + 1);
	uint8_t *flag = NEW(&w->a, uint8_t, n + 1);
	bool flags = n > 0 && k->val.item[0].kind == EXPR_BOOL;

	for (size_t i = 0; i < n; i++) {
		number[i] = (uint32_t)(int64_t)k->val.item[i].num;
		real[i] = (float)k->val.item[i].num;
		flag[i] = k->val.item[i].num != 0;
	}
	if (flags)
		gguf_head_list(&w->head, k->name, GGUF_BOOL, flag, n, n);
	else if (k->real)
		gguf_head_list(&w->head, k->name, GGUF_F32, real, n * 4, n);
	else
		gguf_head_list(&w->head, k->name, GGUF_U32, number, n * 4, n);
}

static const char *
model_name(Arena *a, const char *folder)
{
	char *real = realpath(folder, NULL);
	const char *slash = real ? strrchr(real, '/') : NULL,
	           *name = arena_strdup(a, slash && slash[1] ? slash + 1 : "model");

	free(real);
	return name;
}

static bool
has_tokenizer(GgufWriter *w)
{
	static const char *const names[] = {
		"tokenizer.json", "tokenizer.model",         "vocab.json",
		"spiece.model",   "sentencepiece.bpe.model", "ice_text.model"
	};
	bool found = false;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		found |= file_exists(arena_printf(&w->a, "%s/%s", w->job->folder, names[i]));
	return found;
}

/* llama.cpp's file type number for a file of mostly this type */
static uint32_t
file_type(Dtype d)
{
	return d == DT_F32 ? 0 : d == DT_F16 ? 1 : 32;
}

static llmc_status
put_keys(GgufWriter *w)
{
	const Export *x = w->x;
	Dtype most = DT_F32;
	int64_t vocab = 0;

	gguf_head_str(&w->head, "general.architecture", x->arch);
	gguf_head_str(&w->head, "general.type", "model");
	gguf_head_str(&w->head, "general.name", model_name(&w->a, w->job->folder));
	for (size_t i = 0; i < x->n_key; i++) {
		const ExportKey *k = &x->key[i];
		switch (k->val.kind) {
		case EXPR_STR:
			gguf_head_str(&w->head, k->name, k->val.str);
			break;
		case EXPR_BOOL:
			gguf_head_bool(&w->head, k->name, k->val.num != 0);
			break;
		case EXPR_NUM:
			if (k->real)
				gguf_head_f32(&w->head, k->name, (float)k->val.num);
			else
				gguf_head_u32(&w->head, k->name, (uint32_t)(int64_t)k->val.num);
			break;
		case EXPR_LIST:
			put_list(w, k);
			break;
		case EXPR_NULL:
			break;
		}
	}
	for (size_t i = 0; i < x->n_tensor; i++) {
		if (!x->tensor[i].f32)
			most = w->type[i];
		if (strcmp(x->tensor[i].name, "token_embd.weight") == 0)
			vocab = x->tensor[i].rows;
	}
	gguf_head_u32(&w->head, "general.file_type", file_type(most));
	gguf_head_u32(&w->head, "general.quantization_version", 2);
	if (has_tokenizer(w))
		return text_export_gguf(w->job->folder, (int32_t)vocab, &w->head, w->err);
	log_line(w->job->log, w->job->log_user, LLMC_LOG_WARNING,
	         "%s: has no tokenizer, so the file has none: llama.cpp needs one to load the "
	         "model",
	         w->job->folder);
	return LLMC_OK;
}

/* ---- rows ---- */

static llmc_status
find_sources(GgufWriter *w)
{
	const Export *x = w->x;

	w->from = NEW(&w->a, CheckpointTensor *, x->n_part + 1);
	w->type = NEW(&w->a, Dtype, x->n_tensor + 1);
	for (size_t i = 0; i < x->n_tensor; i++)
		w->type[i] = x->tensor[i].f32 ? DT_F32 : DT_NONE;
	for (size_t i = 0; i < x->n_part; i++) {
		const ExportPart *p = &x->part[i];
		w->from[i] = NEW(&w->a, CheckpointTensor, p->from->n_src);
		for (int k = 0; k < p->from->n_src; k++) {
			CheckpointTensor *c = &w->from[i][k];
			TRY(checkpoint_source(w->c, p->from, &p->from->src[k], c, w->err));
			if (c->made || !dtype_is_float(c->dtype))
				return error_set(w->err, LLMC_E_INPUT,
				                 "%s: tensor %s is quantised already; start from "
				                 "a 16-bit checkpoint",
				                 w->job->folder, c->name);
			w->job->in_bytes += c->bytes;
			if (w->type[p->tensor] == DT_NONE)
				w->type[p->tensor] =
				    w->job->type != DT_NONE ? w->job->type : c->dtype;
		}
	}
	return LLMC_OK;
}

/* Reads row i of the model's tensor of part p: cols elements, 1 for a vector */
static void
row_of(const GgufWriter *w, size_t p, int64_t i, int64_t cols, float *dst)
{
	const ExportPart *part = &w->x->part[p];
	const PlanTensor *t = part->from;
	int k = 0;

	while (i >= t->src[k].n_block * t->src[k].block) {
		i -= t->src[k].n_block * t->src[k].block;
		k++;
	}
	const PlanSource *s = &t->src[k];
	const CheckpointTensor *c = &w->from[p][k];
	const int64_t row = plan_source_row(s, i), size = dtype_info(c->dtype)->block_bytes,
	              r = s->transpose;
	const char *data = c->data;
	if (t->cols && r)
		for (int64_t j = 0; j < cols; j++)
			dequant_row(c->dtype, data + ((row / r * cols + j) * r + row % r) * size,
			            dst + j, 1);
	else
		dequant_row(c->dtype, data + row * cols * size, dst, cols);
	if (s->unit_rows && !part->as->src[part->source].unit_rows) {
		double sum = 0;
		for (int64_t j = 0; j < cols; j++)
			sum += (double)dst[j] * dst[j];
		for (int64_t j = 0; j < cols && sum > 0; j++)
			dst[j] = (float)(dst[j] / sqrt(sum));
	}
	for (int64_t j = 0; j < cols && part->add != 0; j++)
		dst[j] += part->add;
}

static llmc_status
put(GgufWriter *w, const void *data, size_t n)
{
	w->at += (int64_t)n;
	if (fwrite(data, 1, n, w->f) != n)
		return error_set(w->err, LLMC_E_IO, "%s: cannot write: %s%s", w->tmp,
		                 strerror(errno), errno == ENOSPC ? " (the disk is full)" : "");
	return LLMC_OK;
}

static llmc_status
pad_to(GgufWriter *w, int64_t at)
{
	static const char zero[64] = { 0 };

	while (w->at < at)
		TRY(put(w, zero, (size_t)(at - w->at < 64 ? at - w->at : 64)));
	return LLMC_OK;
}

/* Maps each row of the file to a row of the model */
static llmc_status
places_of(const GgufWriter *w, int tensor, RowSource *place)
{
	const ExportTensor *t = &w->x->tensor[tensor];

	for (int64_t i = 0; i < t->rows; i++)
		place[i].part = -1;
	for (size_t p = 0; p < w->x->n_part; p++) {
		const ExportPart *part = &w->x->part[p];
		const PlanSource *s = &part->as->src[part->source];
		for (int64_t i = 0; part->tensor == tensor && i < s->n_block * s->block; i++) {
			int64_t row = plan_source_row(s, i);
			if (row < t->rows &&
			    place[row].part < 0) /* a tied head repeats the embedding */
				place[row] = (RowSource){ (int32_t)p, part->first + i };
		}
	}
	for (int64_t i = 0; i < t->rows; i++)
		if (place[i].part < 0)
			return error_set(w->err, LLMC_E_INPUT,
			                 "%s: no tensor provides row %lld of %s", w->job->folder,
			                 (long long)i, t->name);
	return LLMC_OK;
}

static llmc_status
put_rows(GgufWriter *w, int tensor, RowSource *place, float *row, char *bytes)
{
	const ExportTensor *t = &w->x->tensor[tensor];
	const int64_t cols = t->cols ? t->cols : 1;
	const Dtype d = w->type[tensor];

	TRY(pad_to(w, w->data_at + w->offset[tensor]));
	if (t->value)
		return put(w, t->value, (size_t)t->rows * sizeof *t->value);
	TRY(places_of(w, tensor, place));
	for (int64_t i = 0; i < t->rows; i++) {
		row_of(w, (size_t)place[i].part, place[i].at, cols, row);
		quant_row(d, row, bytes, cols);
		TRY(put(w, bytes, (size_t)dtype_row_bytes(d, cols)));
	}
	return LLMC_OK;
}

static llmc_status
put_tensors(GgufWriter *w)
{
	const Export *x = w->x;
	ConvertJob *job = w->job;
	int64_t rows = 1, cols = 1;
	llmc_status status = LLMC_OK;

	for (size_t i = 0; i < x->n_tensor; i++) {
		rows = x->tensor[i].rows > rows ? x->tensor[i].rows : rows;
		cols = x->tensor[i].cols > cols ? x->tensor[i].cols : cols;
	}
	RowSource *place = malloc((size_t)rows * sizeof *place);
	float *row = malloc((size_t)cols * 2 * sizeof *row);
	if (!place || !row)
		status = error_set(w->err, LLMC_E_MEMORY, "out of memory for rows of %s", job->out);
	for (size_t i = 0; i < x->n_tensor && status == LLMC_OK; i++) {
		if (job->progress && !job->progress(job->user, x->tensor[i].name, w->at,
		                                    w->data_at + w->head.data_bytes))
			status = error_set(w->err, LLMC_E_CANCELLED, "stopped while %s was written",
			                   w->tmp);
		else
			status = put_rows(w, (int)i, place, row, (char *)(row + cols));
	}
	free(place);
	free(row);
	return status;
}

static llmc_status
write_file(GgufWriter *w)
{
	Strbuf *text = arena_strbuf(&w->a);

	w->tmp = arena_printf(&w->a, "%s.writing", w->job->out);
	gguf_head_text(&w->head, text);
	if (text->failed)
		arena_out(&w->a);
	if (!(w->f = fopen(w->tmp, "wb")))
		return error_set(w->err, LLMC_E_IO, "%s: cannot create: %s", w->tmp,
		                 strerror(errno));
	w->data_at = (int64_t)text->len;
	TRY(put(w, strbuf_str(text), text->len));
	TRY(put_tensors(w));
	TRY(pad_to(w, w->data_at + w->head.data_bytes));
	bool bad = fflush(w->f) != 0 || fsync(fileno(w->f)) != 0;
	bad |= fclose(w->f) != 0;
	w->f = NULL;
	if (bad || rename(w->tmp, w->job->out) != 0)
		return error_set(w->err, LLMC_E_IO, "%s: cannot write: %s", w->tmp,
		                 strerror(errno));
	w->tmp = NULL;
	return LLMC_OK;
}

static llmc_status
convert(GgufWriter *w)
{
	ConvertJob *job = w->job;

	TRY(describe(w));
	TRY(checkpoint_open(job->folder, &w->c, w->err));
	TRY(find_sources(w));
	TRY(put_keys(w));
	w->offset = NEW(&w->a, int64_t, w->x->n_tensor + 1);
	for (size_t i = 0; i < w->x->n_tensor; i++) {
		const ExportTensor *t = &w->x->tensor[i];
		int64_t dim[4] = { 1, 1, 1, 1 };
		for (int k = 0; k < t->n_dims; k++)
			dim[k] = t->dim[t->n_dims - 1 - k];
		w->offset[i] = gguf_head_tensor(&w->head, t->name, w->type[i], t->n_dims, dim);
		if (w->offset[i] < 0)
			return error_set(w->err, LLMC_E_INPUT, "%s: tensor %s has no size as %s",
			                 job->folder, t->name, dtype_text(w->type[i]));
		if (!t->f32) {
			job->weights += t->rows * t->cols;
			job->weight_bytes += dtype_row_bytes(w->type[i], t->cols) * t->rows;
		}
	}
	TRY(write_file(w));
	job->n_tensor = (int)w->x->n_tensor;
	job->out_bytes = w->at;
	return LLMC_OK;
}

static llmc_status
guarded(GgufWriter *w)
{
	return setjmp(w->a.oom) ? error_set(w->err, LLMC_E_MEMORY,
	                                    "out of memory while %s is written", w->job->out)
	                        : convert(w);
}

llmc_status
convert_gguf(ConvertJob *job, llmc_error *err)
{
	llmc_error why = { 0 };
	GgufWriter w = { .job = job, .err = &why };

	arena_init(&w.a);
	gguf_head_init(&w.head, 32);
	llmc_status s = guarded(&w);
	if (w.f)
		fclose(w.f);
	if (w.tmp)
		unlink(w.tmp);
	if (w.c)
		checkpoint_close(w.c);
	gguf_head_release(&w.head);
	if (s != LLMC_OK && err)
		*err = why;
	arena_release(&w.a);
	return s;
}

#include "quant/quantize.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sum64.h"
#include "formats/dequant.h"
#include "formats/gguf_write.h"
#include "formats/quantize.h"
#include "formats/safetensors.h"
#include "quant/awq.h"
#include "quant/budget.h"
#include "quant/gptq.h"
#include "quant/sensitivity.h"

enum { LOOK_WINDOWS = 4, LOOK_TOKENS = 128 /* for the choice of types: where importance comes from elsewhere; what errors cost */ };
enum { ROWS_AT_ONCE = 8, PASSES = 3 /* over rows that compensation has rounded: more find little */ };

typedef struct Tensor {
	const GgufTensor *in;  /* as a GGUF says it, of a folder too */
	Dtype   to;            /* blocks that rows become; DT_NONE: bytes of folder_row */
	bool    made;          /* else it is copied */
	FolderPart part[FOLDER_PARTS];
	int     n_part;        /* 0: GGUF */
	Dtype   scale;         /* of a folder's matrix */
	int64_t offset, bytes; /* in the data of the output */
	bool    done;
	CalibrationInput *input; /* whose Hessian it is rounded by; NULL: none */
	const ImatrixEntry *importance;
	const float *times, *over; /* factors of columns, of a matrix; what a norm's weights are divided by; NULL: none */
} Tensor;

typedef struct Run {
	QuantJob *job;
	Arena    *a;
	Gguf     *g;           /* NULL: a folder */
	Safetensors *st;
	const char **ignored;  /* modules that stay as they are */
	int       n_ignored;
	Tensor   *t;
	int       n;
	GgufHead  head;
	Strbuf    names;       /* the head of a folder's file */
	int64_t   data_bytes;
	int64_t   data_at; /* of the file */
	int       fd;
	FILE     *done;
	const char *partial, *done_path, *folder; /* folder: that partial lies in */
	Imatrix   own;     /* what calibration found */
	int64_t   done_bytes;
} Run;

/* --- which tensor becomes what ---------------------------------------------------------------------------------------- */

llmc_status
quant_type(const char *name, Dtype *out, llmc_error *err)
{
	Strbuf known = { 0 };

	*out = dtype_from_text(name);
	if (*out != DT_NONE && ((grid_has(*out) && dtype_info(*out)->ggml_type >= 0) || *out == DT_F16 || *out == DT_BF16))
		return LLMC_OK;
	for (int d = 0; d < DT_COUNT; d++)
		if (grid_has((Dtype)d) && dtype_info((Dtype)d)->ggml_type >= 0)
			strbuf_printf(&known, " %s", dtype_text((Dtype)d));
	error_set(err, LLMC_E_INPUT, "%s: no type to quantise to; known:%s", name, strbuf_str(&known));
	strbuf_release(&known);
	return LLMC_E_INPUT;
}

/* Columns that are no whole superblocks take a type of 32 with at least as many bits, as llama.cpp does. */
static Dtype
fitting(Dtype d, int64_t cols)
{
	if (cols % dtype_info(d)->block_elems == 0)
		return d;
	switch (d) {
	case DT_Q2_K:
	case DT_Q3_K:
	case DT_IQ4_XS: d = DT_IQ4_NL; break;
	case DT_Q4_K: d = DT_Q5_0; break;
	case DT_Q5_K: d = DT_Q5_1; break;
	case DT_Q6_K: d = DT_Q8_0; break;
	default: break;
	}
	return cols % dtype_info(d)->block_elems == 0 ? d : DT_F16;
}

static bool
ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n >= k && strcmp(s + n - k, end) == 0;
}

/* Matrices that a text is multiplied by; routers, norms, convolutions and positions keep what they have: they are small, and errors there are not. */
static bool
is_matrix(const GgufTensor *t)
{
	static const char *const kept[] = { "_norm", "ffn_gate_inp", "position_embd", "token_types", "conv", "ssm_", "time_mix", "rel_b", "rope_" };

	if (t->n_dims < 2 || !ends_with(t->name, ".weight"))
		return false;
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		if (strstr(t->name, kept[i]))
			return false;
	return true;
}

static int64_t
rows_of(const GgufTensor *t)
{
	return t->dim[1] * t->dim[2] * t->dim[3];
}

static bool
is_head(const Run *r, const char *name)
{
	return strcmp(name, "output.weight") == 0 || (strcmp(name, "token_embd.weight") == 0 && !gguf_tensor(r->g, "output.weight"));
}

/* An entry for a tensor, when its sizes are the tensor's */
static const ImatrixEntry *
importance_of(const Run *r, const Imatrix *m, const GgufTensor *t)
{
	const ImatrixEntry *e = imatrix_find(m, t->name);

	if (!e)
		return NULL;
	if (e->cols == t->dim[0] && e->n_mat > 0 && rows_of(t) % e->n_mat == 0)
		return e;
	/* the older form does not say how many experts its values are of */
	if (e->n_mat == 1 && e->cols == t->dim[0] * t->dim[2]) {
		ImatrixEntry *own = NEW(r->a, ImatrixEntry, 1);
		*own = (ImatrixEntry){ e->name, t->dim[0], t->dim[2], e->mean, e->count };
		return own;
	}
	log_line(r->job->log, r->job->log_user, LLMC_LOG_WARNING, "%s: the importance matrix has %lld columns, the tensor %lld: not used", t->name, (long long)e->cols,
	         (long long)t->dim[0]);
	return NULL;
}

/* llama.cpp's number for a file of mostly this type */
static uint32_t
file_type(Dtype d)
{
	switch (d) {
	case DT_F16: return 1;
	case DT_Q4_0: return 2;
	case DT_Q4_1: return 3;
	case DT_Q8_0: return 7;
	case DT_Q5_0: return 8;
	case DT_Q5_1: return 9;
	case DT_Q2_K: return 10;
	case DT_Q3_K: return 11;
	case DT_Q4_K: return 14;
	case DT_Q5_K: return 16;
	case DT_Q6_K: return 18;
	case DT_IQ4_NL: return 25;
	case DT_IQ4_XS: return 30;
	case DT_BF16: return 32;
	case DT_MXFP4: return 38;
	default: return 1024; /* guessed from the tensors */
	}
}

static void
copy_keys(Run *r)
{
	for (size_t i = 0; i < gguf_n_keys(r->g); i++) {
		GgufRaw raw = gguf_raw_at(r->g, i);
		if (strcmp(raw.name, "general.file_type") && strcmp(raw.name, "general.quantization_version"))
			gguf_head_raw(&r->head, &raw);
	}
	gguf_head_u32(&r->head, "general.quantization_version", 2);
	gguf_head_u32(&r->head, "general.file_type", file_type(r->job->type));
}

static bool
on_look(void *user, int32_t done, int32_t of)
{
	const QuantJob *job = user;
	return !job->progress || job->progress(job->user, "what errors cost", done, of);
}

/* What inputs look like, for the choice of types: all of the text, when it is the importance of columns as well */
static llmc_status
look(Run *r, llmc_error *err)
{
	QuantJob *job = r->job;
	const int32_t windows = job->n_window;
	const bool all = job->method == QUANT_GPTQ || (job->method != QUANT_NEAREST && !job->imatrix);

	if (!calibration_whole(job->calibration)) {
		job->n_window = all || windows < LOOK_WINDOWS ? windows : LOOK_WINDOWS;
		llmc_status s = quant_calibrate(job, err);
		job->n_window = windows;
		TRY(s);
	}
	if (all && !job->imatrix)
		calibration_imatrix(job->calibration, r->a, &r->own);
	return LLMC_OK;
}

/* Types of all matrices by what the errors of each cost, within job->bits */
static llmc_status
choose_by_error(Run *r, llmc_error *err)
{
	QuantJob *job = r->job;
	BudgetMatrix *m = NEW(r->a, BudgetMatrix, r->n + 1);
	Sensitivity *cost = NEW(r->a, Sensitivity, r->n + 1);
	int *of = NEW(r->a, int, r->n + 1), n = 0, n_cost = 0;
	int64_t weights[DT_COUNT] = { 0 };
	double sum = 0;

	TRY(look(r, err));
	for (int i = 0; i < r->n; i++) {
		const GgufTensor *in = r->t[i].in;
		bool named = is_head(r, in->name) && job->head != DT_NONE;
		if (!is_matrix(in) || *budget_types(in->dim[0]) == DT_NONE)
			continue;
		const ImatrixEntry *e = importance_of(r, job->imatrix ? job->imatrix : &r->own, in);
		const CalibrationInput *seen = calibration_find(job->calibration, in->name);
		m[n] = (BudgetMatrix){ .from = in->dtype, .src = in->data, .rows = rows_of(in), .cols = in->dim[0], .importance = e ? e->mean : NULL, .n_mat = e ? e->n_mat : 1,
		                       .share = seen && seen->seen && seen->cols == in->dim[0] ? seen->share : NULL,
		                       .only = named ? fitting(job->head, in->dim[0]) : DT_NONE };
		of[n++] = i;
	}
	TRY(budget_measure(m, n, job->threads, err));
	for (int k = 0; k < n; k++)
		cost[k] = (Sensitivity){ .name = r->t[of[k]].in->name, .energy = m[k].energy };
	TRY(sensitivity_measure(cost, n, job->plan, job->session, job->tok, job->width < LOOK_TOKENS ? job->width : LOOK_TOKENS, on_look, job, err));
	for (int k = 0; k < n; k++)
		n_cost += cost[k].cost > 0, sum += cost[k].cost;
	for (int k = 0; k < n; k++) /* what nothing reads of this text, say heads that guess ahead, counts like the others */
		m[k].cost = cost[k].cost > 0 ? cost[k].cost : n_cost ? sum / n_cost : 1;
	TRY(budget_choose(m, n, job->bits, err));
	for (int k = 0; k < n; k++) {
		Tensor *t = &r->t[of[k]];
		const BudgetChoice *c = &m[k].choice[m[k].at];
		t->to = c->type;
		weights[t->to] += m[k].rows * m[k].cols;
		if (job->chose)
			job->chose(job->user, t->in->name, dtype_text(t->to), 8.0 * (double)c->bytes / (double)(m[k].rows * m[k].cols), c->error, m[k].cost * c->error);
	}
	for (int d = 0; d < DT_COUNT; d++)
		if (weights[d] > (job->type == DT_NONE ? 0 : weights[job->type]))
			job->type = (Dtype)d;
	return LLMC_OK;
}

static llmc_status
choose_types(Run *r, llmc_error *err)
{
	QuantJob *job = r->job;
	bool coarse = false;

	r->n = (int)gguf_n_tensors(r->g);
	r->t = NEW(r->a, Tensor, r->n + 1);
	for (int i = 0; i < r->n; i++) {
		Tensor *t = &r->t[i];
		t->in = gguf_tensor_at(r->g, (size_t)i);
		if (t->in->dtype == DT_NONE)
			return error_set(err, LLMC_E_INPUT, "%s: tensor %s has type %s, which llmc does not read", job->in, t->in->name,
			                 ggml_type_name(t->in->ggml_type) ? ggml_type_name(t->in->ggml_type) : "unknown");
		t->to = t->in->dtype;
		if (is_matrix(t->in) && job->bits == 0) {
			t->to = fitting(is_head(r, t->in->name) ? job->head : job->type, t->in->dim[0]);
			/* what fits no block stays as it is rather than grow */
			if (t->to == DT_F16 && dtype_info(t->in->dtype)->block_elems > 1)
				t->to = t->in->dtype;
		}
	}
	if (job->bits > 0)
		TRY(choose_by_error(r, err));
	copy_keys(r);
	for (int i = 0; i < r->n; i++) {
		Tensor *t = &r->t[i];
		job->in_bytes += t->in->bytes;
		t->made = t->to != t->in->dtype;
		if (t->made) {
			coarse |= dtype_info(t->in->dtype)->block_elems > 1;
			job->n_quantised++;
			job->weights += t->in->dim[0] * rows_of(t->in);
		}
		t->bytes = dtype_row_bytes(t->to, t->in->dim[0]) * rows_of(t->in);
		if (t->made)
			job->weight_bytes += t->bytes;
		t->offset = gguf_head_tensor(&r->head, t->in->name, t->to, t->in->n_dims, t->in->dim);
		if (t->offset < 0 || t->bytes < 0)
			return error_set(err, LLMC_E_INPUT, "%s: tensor %s has no size as %s", job->in, t->in->name, dtype_text(t->to));
	}
	job->n_tensor = r->n;
	r->data_bytes = r->head.data_bytes;
	if (coarse)
		log_line(job->log, job->log_user, LLMC_LOG_WARNING, "%s: holds blocks already: quantising them again adds to their errors, 16 bits are better to start from",
		         job->in);
	return LLMC_OK;
}

/* --- of a folder ----------------------------------------------------------------------------------------------------------- */

/* A matrix that a text is multiplied by as it lies there: rows are outputs. Embedding, output, routers and norms keep what they have. */
static bool
is_linear(const Run *r, const GgufTensor *t)
{
	static const char *const kept[] = { "embed", "lm_head", "norm", "router", "wte.", "wpe.", "mlp.gate.weight", "block_sparse_moe.gate.weight", "shared_expert_gate", "conv" };

	if (t->n_dims != 2 || !ends_with(t->name, ".weight") || !dtype_is_float(t->dtype))
		return false;
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		if (strstr(t->name, kept[i]))
			return false;
	for (int i = 0; i < r->job->plan->n_tensor; i++)
		for (int k = 0; k < r->job->plan->tensor[i].n_src; k++)
			if (strcmp(r->job->plan->tensor[i].src[k].name, t->name) == 0)
				return r->job->plan->tensor[i].cols > 0 && !r->job->plan->tensor[i].src[k].transpose;
	return false;
}

/* As a GGUF would say it: the contiguous dimension first */
static const GgufTensor *
as_gguf(Arena *a, const StTensor *s)
{
	GgufTensor *t = NEW(a, GgufTensor, 1);

	*t = (GgufTensor){ .name = s->name, .file = s->file, .dtype = s->dtype, .n_dims = s->n_dims, .dim = { 1, 1, 1, 1 }, .data = s->data, .bytes = s->bytes, .made = s->made };
	for (int d = 0; d < s->n_dims; d++)
		t->dim[d < 4 ? d : 3] *= s->dim[s->n_dims - 1 - d];
	return t;
}

static llmc_status
choose_parts(Run *r, llmc_error *err)
{
	QuantJob *job = r->job;

	TRY(safetensors_open(job->in, &r->st, err));
	if (safetensors_scheme(r->st))
		return error_set(err, LLMC_E_INPUT, "%s: is quantised already (%s); 16 bits are what to start from", job->in, safetensors_scheme(r->st));
	r->n = (int)safetensors_n(r->st);
	r->t = NEW(r->a, Tensor, r->n + 1);
	r->ignored = NEW(r->a, const char *, r->n + 1);
	r->ignored[r->n_ignored++] = "lm_head"; /* there is one, if only by the name of the embedding */
	bool wide = true;
	for (int i = 0; i < r->n; i++) {
		r->t[i].in = as_gguf(r->a, safetensors_at(r->st, (size_t)i));
		r->t[i].made = is_linear(r, r->t[i].in);
		wide &= !r->t[i].made || r->t[i].in->dim[0] % 128 == 0;
	}
	job->group = job->group ? job->group : wide ? 128 : 32;
	for (int i = 0; i < r->n; i++) {
		Tensor *t = &r->t[i];
		const StTensor *s = safetensors_at(r->st, (size_t)i);
		if (!s->data)
			return error_set(err, LLMC_E_INPUT, "%s: tensor %s has no bytes of its own to copy", job->in, s->name);
		t->made = t->made && folder_fits(job->form, t->in->dim[0], job->group);
		t->scale = t->in->dtype == DT_F16 ? DT_F16 : DT_BF16;
		t->to = t->made ? folder_blocks(job->form, job->group, t->scale) : t->in->dtype;
		if (t->made) {
			t->n_part = folder_parts(job->form, s->name, s->dim[0], s->dim[1], job->group, t->scale, r->a, t->part);
			job->n_quantised++;
			job->weights += s->dim[0] * s->dim[1];
		} else {
			t->part[t->n_part++] = (FolderPart){ .name = s->name, .type = s->dtype_name, .n_dims = s->n_dims, .bytes = s->bytes };
			memcpy(t->part[0].dim, s->dim, sizeof s->dim);
			if (s->n_dims == 2 && ends_with(s->name, ".weight") && strcmp(s->name, "lm_head.weight"))
				r->ignored[r->n_ignored++] = arena_printf(r->a, "%.*s", (int)(strlen(s->name) - strlen(".weight")), s->name);
		}
		t->offset = r->data_bytes;
		for (int k = 0; k < t->n_part; k++)
			folder_head_add(&r->names, &t->part[k], &r->data_bytes);
		t->bytes = r->data_bytes - t->offset;
		job->in_bytes += s->bytes;
		if (t->made)
			job->weight_bytes += t->bytes;
	}
	job->n_tensor = r->n;
	if (!job->n_quantised)
		return error_set(err, LLMC_E_INPUT, "%s: has no matrix that can become %s", job->in, folder_word(job->form));
	return LLMC_OK;
}

/* --- the file that grows ------------------------------------------------------------------------------------------------ */

/* What the bytes of the result depend on */
static const char *
identity(Run *r)
{
	const QuantJob *job = r->job;
	Sha256 sum;
	struct stat st = { 0 };
	Strbuf *text = arena_strbuf(r->a);

	stat(job->in, &st);
	strbuf_printf(text, "llmc quantize %s\n%s %lld %lld.%09ld\n%s %s %.9g %d %.9g %d %d\n%d %d\n", LLMC_VERSION, job->in, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
	              st.st_mtim.tv_nsec, dtype_text(job->type), dtype_text(job->head), job->bits, job->method, job->damp, job->form,
	              job->group, job->n_window, job->width);
	sha256_init(&sum);
	sha256_add(&sum, strbuf_str(text), text->len);
	if (job->tok)
		sha256_add(&sum, job->tok, (size_t)job->n_window * (size_t)job->width * sizeof *job->tok);
	for (size_t i = 0; job->imatrix && i < job->imatrix->n; i++) {
		const ImatrixEntry *e = &job->imatrix->entry[i];
		sha256_add(&sum, e->name, strlen(e->name) + 1);
		sha256_add(&sum, e->mean, (size_t)(e->cols * e->n_mat) * sizeof *e->mean);
	}
	char *hex = NEW(r->a, char, 65);
	sha256_hex(&sum, hex);
	return hex;
}

static llmc_status
io_error(const Run *r, const char *what, llmc_error *err)
{
	return error_set(err, LLMC_E_IO, "%s: cannot %s: %s%s", r->partial, what, strerror(errno), errno == ENOSPC ? " (the disk is full)" : "");
}

static llmc_status
put(const Run *r, const void *data, int64_t n, int64_t at, llmc_error *err)
{
	const char *p = data;

	while (n > 0) {
		ssize_t k = pwrite(r->fd, p, (size_t)(n < 1 << 30 ? n : 1 << 30), at);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0) {
			errno = k == 0 ? ENOSPC : errno;
			return io_error(r, "write", err);
		}
		p += k;
		at += k;
		n -= k;
	}
	return LLMC_OK;
}

/* A tensor that the file is said to hold is there when its sum is right. */
static bool
still_there(const Run *r, const Tensor *t, uint64_t sum)
{
	char *data = malloc((size_t)t->bytes + 1);
	int64_t at = 0;
	bool same = false;

	while (data && at < t->bytes) {
		ssize_t k = pread(r->fd, data + at, (size_t)(t->bytes - at), r->data_at + t->offset + at);
		if (k <= 0)
			break;
		at += k;
	}
	if (data && at == t->bytes)
		same = sum64(data, (size_t)t->bytes, 0) == sum;
	free(data);
	return same;
}

/* Take up what an earlier run has left, or begin. */
static llmc_status
open_partial(Run *r, llmc_error *err)
{
	const char *own = identity(r);
	char line[1024], name[900];
	unsigned long long sum;
	Strbuf *head = arena_strbuf(r->a);

	if (r->g)
		gguf_head_text(&r->head, head);
	else
		folder_head_text(&r->names, head);
	if (head->failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the head of %s", r->job->out);
	r->data_at = (int64_t)head->len;
	r->job->out_bytes = r->data_at + r->data_bytes;
	FILE *f = fopen(r->done_path, "r");
	bool resume = f && fgets(line, sizeof line, f) && strncmp(line, own, strlen(own)) == 0 && line[strlen(own)] == '\n';
	r->fd = open(r->partial, O_RDWR | O_CREAT | O_CLOEXEC | (resume ? 0 : O_TRUNC), 0666);
	if (r->fd < 0) {
		if (f)
			fclose(f);
		return io_error(r, "create", err);
	}
	while (resume && fgets(line, sizeof line, f))
		for (int i = 0; sscanf(line, "%llx %899s", &sum, name) == 2 && i < r->n; i++)
			if (!r->t[i].done && strcmp(r->t[i].in->name, name) == 0 && still_there(r, &r->t[i], sum)) {
				r->t[i].done = true;
				r->done_bytes += r->t[i].in->bytes;
				r->job->n_resumed++;
			}
	if (f)
		fclose(f);
	errno = posix_fallocate(r->fd, 0, r->job->out_bytes);
	if (errno != 0 && errno != EOPNOTSUPP && errno != EINVAL) {
		llmc_status s = io_error(r, "find room for the file", err);
		if (!r->job->n_resumed)
			unlink(r->partial);
		return s;
	}
	TRY(put(r, strbuf_str(head), r->data_at, 0, err));
	if (ftruncate(r->fd, r->job->out_bytes) != 0)
		return io_error(r, "set the size", err);
	r->done = fopen(r->done_path, resume ? "a" : "w");
	if (!r->done || (!resume && fprintf(r->done, "%s\n", own) < 0) || fflush(r->done) != 0)
		return error_set(err, LLMC_E_IO, "%s: cannot write: %s", r->done_path, strerror(errno));
	return LLMC_OK;
}

static llmc_status
keep(Run *r, Tensor *t, const void *data, llmc_error *err)
{
	TRY(put(r, data, t->bytes, r->data_at + t->offset, err));
	t->done = true;
	r->done_bytes += t->in->bytes;
	if (fprintf(r->done, "%016llx %s\n", (unsigned long long)sum64(data, (size_t)t->bytes, 0), t->in->name) < 0 || fflush(r->done) != 0)
		return error_set(err, LLMC_E_IO, "%s: cannot write: %s", r->done_path, strerror(errno));
	if (r->job->progress && !r->job->progress(r->job->user, t->in->name, r->done_bytes, r->job->in_bytes))
		return error_set(err, LLMC_E_CANCELLED, "stopped; started again with the same options it goes on after %s", t->in->name);
	return LLMC_OK;
}

static llmc_status
finish(Run *r, llmc_error *err)
{
	if (fsync(r->fd) != 0)
		return io_error(r, "write", err);
	if (!r->g) {
		TRY(folder_beside(r->job->in, r->folder, r->job->form, r->job->group, r->ignored, r->n_ignored, err));
		if (file_exists(r->job->out) || rename(r->folder, r->job->out) != 0)
			return error_set(err, LLMC_E_INPUT, "%s: cannot be given to the result, which is %s: %s", r->job->out, r->folder, strerror(errno ? errno : EEXIST));
		unlink(r->done_path);
		return LLMC_OK;
	}
	/* a name that somebody has taken meanwhile is not overwritten */
	if (link(r->partial, r->job->out) != 0) {
		if (errno == EEXIST)
			return error_set(err, LLMC_E_INPUT, "%s: has appeared meanwhile and is not overwritten; the result is %s", r->job->out, r->partial);
		if (rename(r->partial, r->job->out) != 0)
			return io_error(r, "rename", err);
	} else {
		unlink(r->partial);
	}
	unlink(r->done_path);
	return LLMC_OK;
}

/* --- tensors ------------------------------------------------------------------------------------------------------------- */

typedef struct Rows {
	const Tensor *t;
	uint8_t      *dst;
	FolderForm    form;
	atomic_llong  next;
	atomic_bool   failed;
} Rows;

static void
convert(void *user, int part, int n_parts)
{
	Rows *w = user;
	const GgufTensor *in = w->t->in;
	const int64_t cols = in->dim[0], from = dtype_row_bytes(in->dtype, cols), to = w->t->to == DT_NONE ? 0 : dtype_row_bytes(w->t->to, cols), n = rows_of(in);
	const int64_t per_mat = w->t->importance && w->t->importance->n_mat > 1 ? n / w->t->importance->n_mat : n;
	const float *times = w->t->times;
	float *row = malloc((size_t)cols * 2 * sizeof *row), *counts = row + cols;

	(void)part, (void)n_parts;
	if (!row) {
		atomic_store(&w->failed, true);
		return;
	}
	for (int64_t first; (first = atomic_fetch_add(&w->next, ROWS_AT_ONCE)) < n;)
		for (int64_t i = first; i < n && i < first + ROWS_AT_ONCE; i++) {
			const float *importance = w->t->importance ? w->t->importance->mean + i / per_mat * cols : NULL;
			dequant_row(in->dtype, (const char *)in->data + i * from, row, cols);
			for (int64_t j = 0; times && j < cols; j++) {
				row[j] *= times[j];
				counts[j] = (importance ? importance[j] : 1) / (times[j] * times[j]);
			}
			if (times)
				importance = counts;
			if (w->t->to == DT_NONE)
				folder_row(w->form, w->t->scale, row, importance, i, n, cols, w->dst);
			else if (grid_has(w->t->to))
				quantize_row(w->t->to, row, importance, w->dst + i * to, cols);
			else
				quant_row(w->t->to, row, w->dst + i * to, cols);
		}
	free(row);
}

/* A norm's weights, divided */
static llmc_status
keep_divided(Run *r, Tensor *t, llmc_error *err)
{
	const int64_t n = t->in->dim[0];
	float *w = malloc((size_t)n * 2 * sizeof *w);

	if (!w)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %s", t->in->name);
	dequant_row(t->in->dtype, t->in->data, w, n);
	for (int64_t j = 0; j < n; j++)
		w[j] /= t->over[j];
	quant_row(t->in->dtype, w, w + n, n);
	llmc_status s = keep(r, t, w + n, err);
	free(w);
	return s;
}

static llmc_status
quantise(Run *r, Tensor *t, const float *full, llmc_error *err)
{
	const QuantJob *job = r->job;
	bool ok;

	if (t->over)
		return keep_divided(r, t, err);
	if (!t->made)
		return keep(r, t, t->in->data, err);
	const bool blocks = t->n_part && t->to != DT_NONE; /* which parts are made of */
	const int64_t room = blocks ? dtype_row_bytes(t->to, t->in->dim[0]) * rows_of(t->in) : t->bytes;
	uint8_t *dst = malloc((size_t)room);
	if (!dst)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %s", t->in->name);
	if (t->input && t->input->h && t->to != DT_NONE && grid_has(t->to)) {
		ok = gptq_rows(&(GptqRows){ t->in->dtype, t->to, t->in->data, dst, rows_of(t->in), t->in->dim[0], t->input->h, full, PASSES }, job->threads);
	} else {
		Rows w = { .t = t, .dst = dst, .form = job->form };
		threads_run(job->threads, convert, &w);
		ok = !atomic_load(&w.failed);
	}
	if (ok && blocks) {
		uint8_t *parts = malloc((size_t)t->bytes);
		ok = parts != NULL;
		if (ok)
			folder_from_blocks(t->to, dst, rows_of(t->in), t->in->dim[0], parts);
		free(dst);
		dst = parts;
	}
	llmc_status s = ok ? keep(r, t, dst, err) : error_set(err, LLMC_E_MEMORY, "out of memory for rows of %s", t->in->name);
	free(dst);
	return s;
}

/* --- calibration --------------------------------------------------------------------------------------------------------- */

static bool
on_window(void *user, int32_t done, int32_t of)
{
	const QuantJob *job = user;
	return !job->progress || job->progress(job->user, NULL, done, of);
}

llmc_status
quant_calibrate(QuantJob *job, llmc_error *err)
{
	double t0 = clock_now();
	llmc_status s = calibration_run(job->calibration, job->session, job->threads, job->tok, job->n_window, job->width, on_window, job, err);

	job->calibrate_s += clock_now() - t0;
	return s;
}

static void
find_importance(Run *r, const Imatrix *m)
{
	for (int i = 0; i < r->n; i++)
		if (r->t[i].made)
			r->t[i].importance = importance_of(r, m, r->t[i].in);
}

static bool
is_wanted(const Run *r, const CalibrationInput *in)
{
	for (int k = 0; k < r->n; k++)
		if (!r->t[k].done && r->t[k].input == in)
			return true;
	return false;
}

/* Which inputs' Hessians are taken together: from the first that is wanted, as many as the budget holds, in whole pieces of the model. false: none is left. */
static bool
next_group(Run *r)
{
	Calibration *c = r->job->calibration;
	int64_t bytes = 0;
	bool any = false;

	calibration_drop(c);
	for (int i = 0, end; i < calibration_n(c); i = end) {
		bool wanted = false;
		for (end = i; end < calibration_n(c) && calibration_piece(c, end) == calibration_piece(c, i); end++)
			if (is_wanted(r, calibration_at(c, end))) {
				wanted = true;
				bytes += calibration_at(c, end)->cols * calibration_at(c, end)->cols * 4;
			}
		if (any && bytes > r->job->hessian_bytes)
			break;
		any |= wanted;
		for (int k = i; k < end; k++)
			calibration_at(c, k)->hessian = is_wanted(r, calibration_at(c, k));
	}
	return any;
}

static llmc_status
quantise_group(Run *r, llmc_error *err)
{
	QuantJob *job = r->job;

	for (int i = 0; i < calibration_n(job->calibration); i++) {
		CalibrationInput *in = calibration_at(job->calibration, i);
		if (!in->h)
			continue;
		/* few inputs a column say little of how columns hang together: without a word from the user the damping grows with what is not known */
		double damp = job->damp > 0 ? job->damp : fmin(fmax(6.0 * (double)in->cols / (double)in->seen, .03), 1);
		float *full = malloc((size_t)in->cols * (size_t)in->cols * sizeof *full);
		if (!full)
			return error_set(err, LLMC_E_MEMORY, "out of memory for the Hessian of %s", in->name[0]);
		gptq_damp(in->h, in->cols, damp);
		memcpy(full, in->h, (size_t)in->cols * (size_t)in->cols * sizeof *full);
		gptq_factor(in->h, in->cols, job->threads);
		llmc_status s = LLMC_OK;
		for (int k = 0; k < r->n && s == LLMC_OK; k++)
			if (r->t[k].input == in && !r->t[k].done)
				s = quantise(r, &r->t[k], full, err);
		free(full);
		TRY(s);
		free(in->h);
		in->h = NULL;
		in->hessian = false;
	}
	return LLMC_OK;
}

/* --- factors of columns ----------------------------------------------------------------------------------------------------- */

static Tensor *
tensor_named(const Run *r, const char *name)
{
	for (int i = 0; i < r->n; i++)
		if (strcmp(r->t[i].in->name, name) == 0)
			return &r->t[i];
	return NULL;
}

/* Factors for the matrices behind one norm. The norm's weights are rounded to what they are stored as, and the factors become what that leaves: the
 * product is as it was. */
static llmc_status
scale_behind(Run *r, Tensor *norm, Tensor *const *t, int n, llmc_error *err)
{
	const int64_t cols = t[0]->in->dim[0];
	AwqMatrix m[AWQ_READERS];
	float *s = NEW(r->a, float, cols), *w = NEW(r->a, float, 3 * cols);

	for (int i = 0; i < n; i++)
		m[i] = (AwqMatrix){ t[i]->in->dtype, t[i]->to, t[i]->in->data, rows_of(t[i]->in) };
	if (!awq_factors(m, n, cols, t[0]->importance->mean, r->job->threads, s))
		return error_set(err, LLMC_E_MEMORY, "out of memory for factors of %s", norm->in->name);
	dequant_row(norm->in->dtype, norm->in->data, w, cols);
	for (int64_t j = 0; j < cols; j++)
		w[cols + j] = w[j] / s[j];
	quant_row(norm->in->dtype, w + cols, w + 2 * cols, cols);
	dequant_row(norm->in->dtype, w + 2 * cols, w + cols, cols);
	for (int64_t j = 0; j < cols; j++)
		s[j] = w[j] != 0 && w[cols + j] != 0 && isfinite(w[j] / w[cols + j]) ? w[j] / w[cols + j] : 1;
	norm->over = s;
	for (int i = 0; i < n; i++)
		t[i]->times = s;
	return LLMC_OK;
}

static llmc_status
find_factors(Run *r, llmc_error *err)
{
	const Plan *plan = r->job->plan;
	const char *weight, *name[AWQ_READERS];

	for (int i = 0; i < plan->phase[1].n_step; i++) {
		Tensor *t[AWQ_READERS], *norm;
		int n = awq_readers(plan, i, &weight, name);
		bool all = n > 0 && (norm = tensor_named(r, weight)) && !norm->made && !norm->over && dtype_is_float(norm->in->dtype);
		for (int k = 0; k < n && all; k++) {
			t[k] = tensor_named(r, name[k]);
			all = t[k] && t[k]->made && t[k]->to != DT_NONE && grid_has(t[k]->to) && !t[k]->times && t[k]->in->dim[0] == norm->in->dim[0] && t[k]->importance &&
			      t[k]->importance->n_mat == 1;
		}
		if (all)
			TRY(scale_behind(r, norm, t, n, err));
	}
	return LLMC_OK;
}

static llmc_status
quantise_all(Run *r, llmc_error *err)
{
	QuantJob *job = r->job;

	if (job->method == QUANT_GPTQ)
		for (int i = 0; i < r->n; i++) {
			Tensor *t = &r->t[i];
			/* a tied embedding is read by rows as well; experts have no Hessians of their own yet */
			if (t->made && t->to != DT_NONE && rows_of(t->in) == t->in->dim[1] && strcmp(t->in->name, "token_embd.weight") != 0)
				t->input = calibration_find(job->calibration, t->in->name);
			if (t->input && t->input->cols != t->in->dim[0])
				t->input = NULL;
		}
	while (job->method == QUANT_GPTQ && next_group(r)) {
		TRY(quant_calibrate(job, err));
		TRY(quantise_group(r, err));
	}
	bool left = false;
	for (int i = 0; i < r->n; i++)
		left |= !r->t[i].done && r->t[i].made;
	if (left && job->method != QUANT_NEAREST && !job->imatrix && r->own.n == 0) {
		if (!calibration_whole(job->calibration))
			TRY(quant_calibrate(job, err));
		calibration_imatrix(job->calibration, r->a, &r->own);
	}
	find_importance(r, job->imatrix ? job->imatrix : &r->own);
	if (job->method == QUANT_AWQ)
		TRY(find_factors(r, err));
	for (int i = 0; i < r->n; i++)
		if (!r->t[i].done)
			TRY(quantise(r, &r->t[i], NULL, err));
	return LLMC_OK;
}

static void
close_gguf(void *g)
{
	gguf_close(g);
}

static void
close_safetensors(void *s)
{
	safetensors_close(s);
}

llmc_status
quant_run(QuantJob *job, Arena *a, llmc_error *err)
{
	Run r = { .job = job, .a = a, .fd = -1 };
	int64_t align = 32;
	llmc_status status;

	if (file_exists(job->out))
		return error_set(err, LLMC_E_INPUT, "%s: is there already and is not overwritten", job->out);
	r.partial = arena_printf(a, "%s.partial", job->out);
	r.done_path = arena_printf(a, "%s.partial.done", job->out);
	if (job->form != FOLDER_NONE) {
		status = choose_parts(&r, err);
		if (r.st)
			arena_defer(a, close_safetensors, r.st);
		if (status != LLMC_OK)
			goto fail;
		r.folder = r.partial;
		r.partial = arena_printf(a, "%s/model.safetensors", r.folder);
		TRY_GOTO(file_mkdirs(r.folder, err));
	} else {
		TRY(gguf_open(job->in, &r.g, err));
		arena_defer(a, close_gguf, r.g);
		gguf_int(r.g, "general.alignment", &align);
		gguf_head_init(&r.head, align);
		TRY_GOTO(choose_types(&r, err));
	}
	TRY_GOTO(open_partial(&r, err));
	TRY_GOTO(quantise_all(&r, err));
	TRY_GOTO(finish(&r, err));
fail:
	if (job->calibration)
		calibration_drop(job->calibration);
	if (r.done)
		fclose(r.done);
	if (r.fd >= 0)
		close(r.fd);
	gguf_head_release(&r.head);
	strbuf_release(&r.names);
	return status;
}

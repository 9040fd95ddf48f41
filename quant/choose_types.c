/* Selects the type of each tensor: for a GGUF by its type or by a budget of bits, for a folder by
 * its format. */
#include "quant/quant_internal.h"

#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/gguf_write.h"
#include "formats/block_quantize.h"
#include "formats/safetensors.h"
#include "quant/budget.h"
#include "quant/sensitivity.h"

enum {
	LOOK_WINDOWS = 4,
	/* text for choosing types, if importance is given: LOOK_WINDOWS windows for shares,
	 * LOOK_TOKENS tokens for sensitivities */
	LOOK_TOKENS = 128
};

llmc_status
quant_type(const char *name, Dtype *out, llmc_error *err)
{
	Strbuf known = { 0 };

	*out = dtype_from_text(name);
	if (*out != DT_NONE && ((grid_has(*out) && dtype_info(*out)->ggml_type >= 0) ||
	                        *out == DT_F32 || *out == DT_F16 || *out == DT_BF16))
		return LLMC_OK;
	for (int d = 0; d < DT_COUNT; d++)
		if (grid_has((Dtype)d) && dtype_info((Dtype)d)->ggml_type >= 0)
			strbuf_printf(&known, " %s", dtype_text((Dtype)d));
	error_set(err, LLMC_E_INPUT, "%s: not a type to quantise to; expected one of:%s", name,
	          strbuf_str(&known));
	strbuf_release(&known);
	return LLMC_E_INPUT;
}

/* Columns that are not a multiple of a superblock use a type with blocks of 32 and at least as many
 * bits, as in llama.cpp. */
static Dtype
fitting(Dtype d, int64_t cols)
{
	if (cols % dtype_info(d)->block_elems == 0)
		return d;
	switch (d) {
	case DT_Q2_K:
	case DT_Q3_K:
	case DT_IQ4_XS:
		d = DT_IQ4_NL;
		break;
	case DT_Q4_K:
		d = DT_Q5_0;
		break;
	case DT_Q5_K:
		d = DT_Q5_1;
		break;
	case DT_Q6_K:
		d = DT_Q8_0;
		break;
	default:
		break;
	}
	return cols % dtype_info(d)->block_elems == 0 ? d : DT_F16;
}

/* Returns whether a tensor is a matmul weight to quantise. Routers, norms, convolutions and
 * positions stay unchanged: they are small, and their errors matter. */
static bool
is_matrix(const GgufTensor *t)
{
	static const char *const kept[] = { "_norm",       "ffn_gate_inp", "position_embd",
		                            "token_types", "conv",         "ssm_",
		                            "time_mix",    "rel_b",        "rope_" };

	if (t->n_dims < 2 || !ends_with(t->name, ".weight"))
		return false;
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		if (strstr(t->name, kept[i]))
			return false;
	return true;
}

static bool
is_head(const QuantRun *r, const char *name)
{
	return strcmp(name, "output.weight") == 0 ||
	       (strcmp(name, "token_embd.weight") == 0 && !gguf_tensor(r->g, "output.weight"));
}

const ImatrixEntry *
run_importance(const QuantRun *r, const Imatrix *m, const GgufTensor *t)
{
	const ImatrixEntry *e = imatrix_find(m, t->name);

	if (!e)
		return NULL;
	if (e->cols == t->dim[0] && e->n_mat > 0 && rows_of(t) % e->n_mat == 0)
		return e;
	/* the older format does not store the number of experts */
	if (e->n_mat == 1 && e->cols == t->dim[0] * t->dim[2]) {
		ImatrixEntry *own = NEW(r->a, ImatrixEntry, 1);
		*own = (ImatrixEntry){ e->name, t->dim[0], t->dim[2], e->mean, e->count };
		return own;
	}
	log_line(r->job->log, r->job->log_user, LLMC_LOG_WARNING,
	         "%s: the importance matrix has %lld columns, the tensor %lld: not used", t->name,
	         (long long)e->cols, (long long)t->dim[0]);
	return NULL;
}

/* llama.cpp's file type number for a file of mostly this type */
static uint32_t
file_type(Dtype d)
{
	switch (d) {
	case DT_F32:
		return 0;
	case DT_F16:
		return 1;
	case DT_Q4_0:
		return 2;
	case DT_Q4_1:
		return 3;
	case DT_Q8_0:
		return 7;
	case DT_Q5_0:
		return 8;
	case DT_Q5_1:
		return 9;
	case DT_Q2_K:
		return 10;
	case DT_Q3_K:
		return 11;
	case DT_Q4_K:
		return 14;
	case DT_Q5_K:
		return 16;
	case DT_Q6_K:
		return 18;
	case DT_IQ4_NL:
		return 25;
	case DT_IQ4_XS:
		return 30;
	case DT_BF16:
		return 32;
	case DT_MXFP4:
		return 38;
	default:
		return 1024; /* LLAMA_FTYPE_GUESSED */
	}
}

static void
copy_keys(QuantRun *r)
{
	for (size_t i = 0; i < gguf_n_keys(r->g); i++) {
		GgufRaw raw = gguf_raw_at(r->g, i);
		if (strcmp(raw.name, "general.file_type") &&
		    strcmp(raw.name, "general.quantization_version"))
			gguf_head_raw(&r->head, &raw);
	}
	gguf_head_u32(&r->head, "general.quantization_version", 2);
	gguf_head_u32(&r->head, "general.file_type", file_type(r->job->type));
}

static bool
on_importance_window(void *user, int32_t done, int32_t of)
{
	const QuantJob *job = user;
	return !job->progress || job->progress(job->user, "what errors cost", done, of);
}

/* Runs calibration for choosing types: on all of the text if it also provides the importance of
 * columns */
static llmc_status
measure_importance(QuantRun *r, llmc_error *err)
{
	QuantJob *job = r->job;
	const int32_t windows = job->n_window;
	const bool all =
	    job->method == QUANT_GPTQ || (job->method != QUANT_NEAREST && !job->imatrix);

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

/* Chooses types of all matrices by their error costs, within job->bits */
static llmc_status
choose_by_error(QuantRun *r, llmc_error *err)
{
	QuantJob *job = r->job;
	BudgetMatrix *m = NEW(r->a, BudgetMatrix, r->n + 1);
	Sensitivity *cost = NEW(r->a, Sensitivity, r->n + 1);
	int *of = NEW(r->a, int, r->n + 1), n = 0, n_cost = 0;
	int64_t weights[DT_COUNT] = { 0 };
	double sum = 0;

	TRY(measure_importance(r, err));
	for (int i = 0; i < r->n; i++) {
		const GgufTensor *in = r->t[i].in;
		bool named = is_head(r, in->name) && job->head != DT_NONE;
		if (!is_matrix(in) || *budget_types(in->dim[0]) == DT_NONE)
			continue;
		const ImatrixEntry *e =
		    run_importance(r, job->imatrix ? job->imatrix : &r->own, in);
		const CalibrationInput *seen = calibration_find(job->calibration, in->name);
		m[n] = (BudgetMatrix){ .from = in->dtype,
			               .src = in->data,
			               .rows = rows_of(in),
			               .cols = in->dim[0],
			               .importance = e ? e->mean : NULL,
			               .n_mat = e ? e->n_mat : 1,
			               .share = seen && seen->seen && seen->cols == in->dim[0]
			                            ? seen->share
			                            : NULL,
			               .only = named ? fitting(job->head, in->dim[0]) : DT_NONE };
		of[n++] = i;
	}
	TRY(budget_measure(m, n, job->threads, err));
	for (int k = 0; k < n; k++)
		cost[k] = (Sensitivity){ .name = r->t[of[k]].in->name, .energy = m[k].energy };
	TRY(sensitivity_measure(cost, n, job->plan, job->session, job->tok,
	                        job->width < LOOK_TOKENS ? job->width : LOOK_TOKENS,
	                        on_importance_window, job, err));
	for (int k = 0; k < n; k++)
		n_cost += cost[k].cost > 0, sum += cost[k].cost;
	/* matrices that the text does not use, such as draft heads, get the mean cost of the
	 * others */
	for (int k = 0; k < n; k++)
		m[k].cost = cost[k].cost > 0 ? cost[k].cost : n_cost ? sum / n_cost : 1;
	TRY(budget_choose(m, n, job->bits, err));
	for (int k = 0; k < n; k++) {
		QuantTensor *t = &r->t[of[k]];
		const BudgetChoice *c = &m[k].choice[m[k].at];
		t->to = c->type;
		weights[t->to] += m[k].rows * m[k].cols;
		if (job->chose)
			job->chose(job->user, t->in->name, dtype_text(t->to),
			           8.0 * (double)c->bytes / (double)(m[k].rows * m[k].cols),
			           c->error, m[k].cost * c->error);
	}
	for (int d = 0; d < DT_COUNT; d++)
		if (weights[d] > (job->type == DT_NONE ? 0 : weights[job->type]))
			job->type = (Dtype)d;
	return LLMC_OK;
}

llmc_status
run_choose_types(QuantRun *r, llmc_error *err)
{
	QuantJob *job = r->job;
	bool coarse = false;

	r->n = (int)gguf_n_tensors(r->g);
	r->t = NEW(r->a, QuantTensor, r->n + 1);
	for (int i = 0; i < r->n; i++) {
		QuantTensor *t = &r->t[i];
		t->in = gguf_tensor_at(r->g, (size_t)i);
		if (t->in->dtype == DT_NONE)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s has type %s, which llmc does not read",
			                 job->in, t->in->name,
			                 ggml_type_name(t->in->ggml_type)
			                     ? ggml_type_name(t->in->ggml_type)
			                     : "unknown");
		t->to = t->in->dtype;
		if (is_matrix(t->in) && job->bits == 0) {
			t->to =
			    fitting(is_head(r, t->in->name) ? job->head : job->type, t->in->dim[0]);
			/* a quantised tensor that fits no block stays unchanged, since f16 would be
			 * larger */
			if (t->to == DT_F16 && dtype_info(t->in->dtype)->block_elems > 1)
				t->to = t->in->dtype;
		}
	}
	if (job->bits > 0)
		TRY(choose_by_error(r, err));
	copy_keys(r);
	for (int i = 0; i < r->n; i++) {
		QuantTensor *t = &r->t[i];
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
		t->offset =
		    gguf_head_tensor(&r->head, t->in->name, t->to, t->in->n_dims, t->in->dim);
		if (t->offset < 0 || t->bytes < 0)
			return error_set(err, LLMC_E_INPUT, "%s: tensor %s has no size as %s",
			                 job->in, t->in->name, dtype_text(t->to));
	}
	job->n_tensor = r->n;
	r->data_bytes = r->head.data_bytes;
	if (coarse)
		log_line(job->log, job->log_user, LLMC_LOG_WARNING,
		         "%s: is quantised already: quantising again adds to the error; a 16-bit "
		         "checkpoint is a better source",
		         job->in);
	return LLMC_OK;
}

/* ---- for a folder ---- */

/* Returns whether a tensor is a matmul weight stored with outputs as rows. Embedding, output,
 * routers and norms stay unchanged. */
static bool
is_linear(const QuantRun *r, const GgufTensor *t)
{
	static const char *const kept[] = { "embed",
		                            "lm_head",
		                            "norm",
		                            "router",
		                            "wte.",
		                            "wpe.",
		                            "mlp.gate.weight",
		                            "block_sparse_moe.gate.weight",
		                            "shared_expert_gate",
		                            "conv" };

	if (t->n_dims != 2 || !ends_with(t->name, ".weight") || !dtype_is_float(t->dtype))
		return false;
	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		if (strstr(t->name, kept[i]))
			return false;
	for (int i = 0; i < r->job->plan->n_tensor; i++)
		for (int k = 0; k < r->job->plan->tensor[i].n_src; k++)
			if (strcmp(r->job->plan->tensor[i].src[k].name, t->name) == 0)
				return r->job->plan->tensor[i].cols > 0 &&
				       !r->job->plan->tensor[i].src[k].transpose;
	return false;
}

/* Describes a tensor as a GGUF does: the contiguous dimension first */
static const GgufTensor *
as_gguf(Arena *a, const StTensor *s)
{
	GgufTensor *t = NEW(a, GgufTensor, 1);

	*t = (GgufTensor){ .name = s->name,
		           .file = s->file,
		           .dtype = s->dtype,
		           .n_dims = s->n_dims,
		           .dim = { 1, 1, 1, 1 },
		           .data = s->data,
		           .bytes = s->bytes,
		           .made = s->made };
	for (int d = 0; d < s->n_dims; d++)
		t->dim[d < 4 ? d : 3] *= s->dim[s->n_dims - 1 - d];
	return t;
}

llmc_status
run_choose_parts(QuantRun *r, llmc_error *err)
{
	QuantJob *job = r->job;

	TRY(safetensors_open(job->in, &r->st, err));
	if (safetensors_quant_format(r->st))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: is quantised already (%s); start from a 16-bit checkpoint",
		                 job->in, safetensors_quant_format(r->st));
	r->n = (int)safetensors_n(r->st);
	r->t = NEW(r->a, QuantTensor, r->n + 1);
	r->ignored = NEW(r->a, const char *, r->n + 1);
	r->ignored[r->n_ignored++] =
	    "lm_head"; /* always excluded, even if it is only another name of the embedding */
	bool wide = true;
	for (int i = 0; i < r->n; i++) {
		r->t[i].in = as_gguf(r->a, safetensors_at(r->st, (size_t)i));
		r->t[i].made = is_linear(r, r->t[i].in);
		wide &= !r->t[i].made || r->t[i].in->dim[0] % 128 == 0;
	}
	job->group = job->group ? job->group : wide ? 128 : 32;
	for (int i = 0; i < r->n; i++) {
		QuantTensor *t = &r->t[i];
		const StTensor *s = safetensors_at(r->st, (size_t)i);
		if (!s->data)
			return error_set(err, LLMC_E_INPUT,
			                 "%s: tensor %s is converted while read and cannot be "
			                 "copied",
			                 job->in, s->name);
		t->made = t->made && folder_fits(job->form, t->in->dim[0], job->group);
		t->scale = t->in->dtype == DT_F16 ? DT_F16 : DT_BF16;
		t->to = t->made ? folder_blocks(job->form, job->group, t->scale) : t->in->dtype;
		if (t->made) {
			t->n_part = folder_parts(job->form, s->name, s->dim[0], s->dim[1],
			                         job->group, t->scale, r->a, t->part);
			job->n_quantised++;
			job->weights += s->dim[0] * s->dim[1];
		} else {
			t->part[t->n_part++] = (FolderPart){ .name = s->name,
				                             .type = s->dtype_name,
				                             .n_dims = s->n_dims,
				                             .bytes = s->bytes };
			memcpy(t->part[0].dim, s->dim, sizeof s->dim);
			if (s->n_dims == 2 && ends_with(s->name, ".weight") &&
			    strcmp(s->name, "lm_head.weight"))
				r->ignored[r->n_ignored++] = arena_printf(
				    r->a, "%.*s", (int)(strlen(s->name) - strlen(".weight")),
				    s->name);
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
		return error_set(err, LLMC_E_INPUT, "%s: no matrix in it can be quantised to %s",
		                 job->in, folder_word(job->form));
	return LLMC_OK;
}

/* Fused ops: the unfused ops in sequence, with intermediate values in scratch. */
#include "ref/ref_internal.h"

/* asserts that an op with a leading norm has the same argument indices for the norm and the
 * weight */
#define ALIKE(op)                                                                                  \
	_Static_assert(ARG(op, x) == ARG(norm_matmul, x) && ARG(op, nw) == ARG(norm_matmul, nw) && \
	                   ARG(op, nb) == ARG(norm_matmul, nb) &&                                  \
	                   ARG(op, w) == ARG(norm_matmul, w),                                      \
	               #op)
ALIKE(norm_glu);
ALIKE(norm_act);
ALIKE(lm_head);

/* scratch: the norm's result, then memory that ref_norm_rows and ref_linear use in turn */
static void
norm_linear(const RefCall *c, const float *x, int64_t n_row, const RefArg *bias, int64_t rows,
            float *y, float *scratch)
{
	int64_t cols = step_int(c->step, "cols");
	float *xn = scratch, *rest = xn + n_row * cols;

	ref_norm_rows(c->step, &c->arg[ARG(norm_matmul, nw)], &c->arg[ARG(norm_matmul, nb)], cols,
	              x, n_row, xn, rest);
	ref_linear(&c->arg[ARG(norm_matmul, w)], bias, rows, cols, xn, n_row, y, rest);
}

void
ref_norm_matmul(const RefCall *c)
{
	norm_linear(c, ref_f32(c, ARG(norm_matmul, x)), ref_rows(c, ARG(norm_matmul, y)),
	            &c->arg[ARG(norm_matmul, b)], step_int(c->step, "rows"),
	            ref_f32(c, ARG(norm_matmul, y)), c->scratch);
}

/* the matmul writes to scratch, because y may be r's memory */
void
ref_matmul_add(const RefCall *c)
{
	int64_t rows = step_int(c->step, "rows"), cols = step_int(c->step, "cols");
	int64_t n = ref_rows(c, ARG(matmul_add, y));
	float scale = (float)step_num(c->step, "scale");
	const float *r = ref_f32(c, ARG(matmul_add, r));
	float *y = ref_f32(c, ARG(matmul_add, y)), *xw = c->scratch;

	ref_linear(&c->arg[ARG(matmul_add, w)], &c->arg[ARG(matmul_add, b)], rows, cols,
	           ref_f32(c, ARG(matmul_add, x)), n, xw, xw + n * rows);
	for (int64_t i = 0; i < n * rows; i++)
		y[i] = scale * r[i] + xw[i];
}

void
ref_norm_qkv(const RefCall *c)
{
	int64_t hidden = step_int(c->step, "hidden"), heads = step_int(c->step, "heads");
	int64_t kv_heads = step_int(c->step, "kv_heads"), dim = step_int(c->step, "dim");
	int64_t rope_dims = step_int(c->step, "rope_dims"), n = c->s->n_tok,
	        rows = (heads + 2 * kv_heads) * dim;
	bool interleaved = !strcmp(step_word(c->step, "style"), "interleaved");
	double eps = step_num(c->step, "qk_eps");
	bool plus_one = step_int(c->step, "qk_plus_one") != 0;
	float *xn = c->scratch, *qkv = xn + n * hidden, *rest = qkv + n * rows;
	const float *qn, *kn;

	ref_norm_rows(c->step, &c->arg[ARG(norm_qkv, nw)], &c->arg[ARG(norm_qkv, nb)], hidden,
	              ref_f32(c, ARG(norm_qkv, x)), n, xn, rest);
	ref_linear(&c->arg[ARG(norm_qkv, w)], &c->arg[ARG(norm_qkv, b)], rows, hidden, xn, n, qkv,
	           rest);
	qn = ref_vector(&c->arg[ARG(norm_qkv, qn)], rest);
	kn = ref_vector(&c->arg[ARG(norm_qkv, kn)], rest + dim);
	for (int64_t t = 0; t < n; t++) {
		float *row = qkv + t * rows;

		for (int64_t h = 0; h < heads + kv_heads; h++) {
			const float *w = h < heads ? qn : kn;

			if (w)
				ref_rms_row(row + h * dim, w, dim, eps, plus_one, row + h * dim);
			if (ref_has(c, ARG(norm_qkv, rope)))
				ref_rotate(row + h * dim,
				           ref_f32(c, ARG(norm_qkv, rope)) + t * rope_dims,
				           rope_dims, interleaved, row + h * dim);
		}
		memcpy(ref_f32(c, ARG(norm_qkv, q)) + t * heads * dim, row,
		       (size_t)(heads * dim) * sizeof *row);
		ref_append_row(c, ARG(norm_qkv, kv), t, row + heads * dim,
		               row + (heads + kv_heads) * dim, kv_heads, dim, dim, row);
	}
}

void
ref_norm_glu(const RefCall *c)
{
	int64_t rows = step_int(c->step, "rows"), n = ref_rows(c, ARG(norm_glu, y));
	float *gu = c->scratch, *y = ref_f32(c, ARG(norm_glu, y));

	norm_linear(c, ref_f32(c, ARG(norm_glu, x)), n, &c->arg[ARG(norm_glu, b)], 2 * rows, gu,
	            gu + n * 2 * rows);
	for (int64_t t = 0; t < n; t++)
		for (int64_t i = 0; i < rows; i++)
			y[t * rows + i] = (float)ref_glu_one(c->step, gu[t * 2 * rows + i],
			                                     gu[t * 2 * rows + rows + i]);
}

void
ref_norm_act(const RefCall *c)
{
	int64_t rows = step_int(c->step, "rows"), n = ref_rows(c, ARG(norm_act, y));
	const char *act = step_word(c->step, "act");
	float *y = ref_f32(c, ARG(norm_act, y));

	norm_linear(c, ref_f32(c, ARG(norm_act, x)), n, &c->arg[ARG(norm_act, b)], rows, y,
	            c->scratch);
	for (int64_t i = 0; i < n * rows; i++)
		y[i] = (float)ref_activate(act, y[i]);
}

void
ref_lm_head(const RefCall *c)
{
	static const RefArg none = { .kind = REF_NONE };
	int64_t rows = step_int(c->step, "rows"), cols = step_int(c->step, "cols"), n = c->s->n_out;
	double cap = step_num(c->step, "softcap"), scale = step_num(c->step, "scale");
	float *picked = c->scratch, *y = ref_f32(c, ARG(lm_head, logits));

	for (int64_t o = 0; o < n; o++)
		memcpy(picked + o * cols, ref_f32(c, ARG(lm_head, x)) + c->s->out_row[o] * cols,
		       (size_t)cols * sizeof *picked);
	norm_linear(c, picked, n, &none, rows, y, picked + n * cols);
	for (int64_t i = 0; i < n * rows; i++)
		y[i] = ref_cap_one(y[i], scale, cap);
}

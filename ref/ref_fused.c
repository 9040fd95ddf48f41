/* Fused ops: the plain ones one after the other, with the values between them in scratch. */
#include "ref/internal.h"

/* x, nw?, nb?, w, b?, y; the norm's result first, then what ref_norm_rows and ref_linear take in turn */
static void
norm_linear(const RefCall *c, const float *x, int64_t n_row, const RefArg *bias, int64_t rows, float *y, float *scratch)
{
	int64_t cols = ref_int(c->step, "cols");
	float  *xn = scratch, *rest = xn + n_row * cols;

	ref_norm_rows(c->step, &c->arg[1], &c->arg[2], cols, x, n_row, xn, rest);
	ref_linear(&c->arg[3], bias, rows, cols, xn, n_row, y, rest);
}

void
ref_norm_matmul(const RefCall *c)
{
	norm_linear(c, ref_f32(c, 0), ref_rows(c, 5), &c->arg[4], ref_int(c->step, "rows"), ref_f32(c, 5), c->scratch);
}

/* x, w, b?, r, y: y may be r's memory, so the product is not made in y */
void
ref_matmul_add(const RefCall *c)
{
	int64_t      rows = ref_int(c->step, "rows"), cols = ref_int(c->step, "cols"), n = ref_rows(c, 4);
	float        scale = (float)ref_num(c->step, "scale");
	const float *r = ref_f32(c, 3);
	float       *y = ref_f32(c, 4), *xw = c->scratch;

	ref_linear(&c->arg[1], &c->arg[2], rows, cols, ref_f32(c, 0), n, xw, xw + n * rows);
	for (int64_t i = 0; i < n * rows; i++)
		y[i] = scale * r[i] + xw[i];
}

/* x, nw?, nb?, w, b?, qn?, kn?, rope?, kv, q, done */
void
ref_norm_qkv(const RefCall *c)
{
	int64_t     hidden = ref_int(c->step, "hidden"), heads = ref_int(c->step, "heads");
	int64_t     kv_heads = ref_int(c->step, "kv_heads"), dim = ref_int(c->step, "dim");
	int64_t     rope_dims = ref_int(c->step, "rope_dims"), n = c->s->n_tok, rows = (heads + 2 * kv_heads) * dim;
	bool        interleaved = !strcmp(ref_word(c->step, "style"), "interleaved");
	double      eps = ref_num(c->step, "qk_eps");
	bool        plus_one = ref_int(c->step, "qk_plus_one") != 0;
	float      *xn = c->scratch, *qkv = xn + n * hidden, *rest = qkv + n * rows;
	const float *qn, *kn;

	ref_norm_rows(c->step, &c->arg[1], &c->arg[2], hidden, ref_f32(c, 0), n, xn, rest);
	ref_linear(&c->arg[3], &c->arg[4], rows, hidden, xn, n, qkv, rest);
	qn = ref_vector(&c->arg[5], rest);
	kn = ref_vector(&c->arg[6], rest + dim);
	for (int64_t t = 0; t < n; t++) {
		float *row = qkv + t * rows;

		for (int64_t h = 0; h < heads + kv_heads; h++) {
			const float *w = h < heads ? qn : kn;

			if (w)
				ref_rms_row(row + h * dim, w, dim, eps, plus_one, row + h * dim);
			if (ref_has(c, 7))
				ref_rotate(row + h * dim, ref_f32(c, 7) + t * rope_dims, rope_dims, interleaved, row + h * dim);
		}
		memcpy(ref_f32(c, 9) + t * heads * dim, row, (size_t)(heads * dim) * sizeof *row);
		ref_append_row(c, 8, t, row + heads * dim, row + (heads + kv_heads) * dim, kv_heads, dim, dim);
	}
}

/* x, nw?, nb?, w, b?, y */
void
ref_norm_glu(const RefCall *c)
{
	int64_t     rows = ref_int(c->step, "rows"), n = ref_rows(c, 5);
	const char *act = ref_word(c->step, "act");
	float      *gu = c->scratch, *y = ref_f32(c, 5);

	norm_linear(c, ref_f32(c, 0), n, &c->arg[4], 2 * rows, gu, gu + n * 2 * rows);
	for (int64_t t = 0; t < n; t++)
		for (int64_t i = 0; i < rows; i++)
			y[t * rows + i] = (float)(ref_activate(act, gu[t * 2 * rows + i]) * gu[t * 2 * rows + rows + i]);
}

/* x, nw?, nb?, w, b?, y */
void
ref_norm_act(const RefCall *c)
{
	int64_t     rows = ref_int(c->step, "rows"), n = ref_rows(c, 5);
	const char *act = ref_word(c->step, "act");
	float      *y = ref_f32(c, 5);

	norm_linear(c, ref_f32(c, 0), n, &c->arg[4], rows, y, c->scratch);
	for (int64_t i = 0; i < n * rows; i++)
		y[i] = (float)ref_activate(act, y[i]);
}

/* x, nw?, nb?, w, logits */
void
ref_head(const RefCall *c)
{
	static const RefArg none = { .kind = REF_NONE };
	int64_t rows = ref_int(c->step, "rows"), cols = ref_int(c->step, "cols"), n = c->s->n_out;
	double  cap = ref_num(c->step, "cap");
	float  *picked = c->scratch, *y = ref_f32(c, 4);

	for (int64_t o = 0; o < n; o++)
		memcpy(picked + o * cols, ref_f32(c, 0) + c->s->out_row[o] * cols, (size_t)cols * sizeof *picked);
	norm_linear(c, picked, n, &none, rows, y, picked + n * cols);
	if (cap > 0)
		for (int64_t i = 0; i < n * rows; i++)
			y[i] = (float)(cap * tanh(y[i] / cap));
}

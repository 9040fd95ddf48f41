/* Embeddings and matmuls. Rows of the weight are the outer loop, so that each is dequantised once
 * per call. */
#include "ref/ref_internal.h"

double
ref_dot(const float *a, const float *b, int64_t n)
{
	double s[8] = { 0 };
	int64_t i = 0;

	for (; i + 8 <= n; i += 8)
		for (int j = 0; j < 8; j++)
			s[j] += (double)a[i + j] * (double)b[i + j];
	for (; i < n; i++)
		s[0] += (double)a[i] * (double)b[i];
	return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

const float *
ref_vector(const RefArg *a, float *dst)
{
	if (a->kind == REF_NONE)
		return NULL;
	plan_tensor_row(a->tensor, a->data, 0, dst);
	return dst;
}

void
ref_matmul_rows(const RefArg *w, int64_t first, int64_t n, int64_t cols, const float *x,
                int64_t x_stride, int64_t n_row, float *y, int64_t y_stride, float *row)
{
	for (int64_t o = 0; o < n; o++) {
		plan_tensor_row(w->tensor, w->data, first + o, row);
		for (int64_t t = 0; t < n_row; t++)
			y[t * y_stride + o] = (float)ref_dot(x + t * x_stride, row, cols);
	}
}

void
ref_linear(const RefArg *w, const RefArg *b, int64_t rows, int64_t cols, const float *x,
           int64_t n_row, float *y, float *scratch)
{
	const float *bias = ref_vector(b, scratch + cols);

	ref_matmul_rows(w, 0, rows, cols, x, cols, n_row, y, rows, scratch);
	if (!bias)
		return;
	for (int64_t t = 0; t < n_row; t++)
		for (int64_t o = 0; o < rows; o++)
			y[t * rows + o] += bias[o];
}

/* A row index outside of the table is a fault of the caller; it reads as zeros, not out of
 * bounds. */
static void
table_row(const RefArg *w, int64_t row, int64_t n, float *dst)
{
	if (row < 0 || row >= w->tensor->rows)
		memset(dst, 0, (size_t)n * sizeof *dst);
	else
		plan_tensor_row(w->tensor, w->data, row, dst);
}

void
ref_embed(const RefCall *c)
{
	int64_t hidden = step_int(c->step, "hidden");
	float scale = (float)step_num(c->step, "scale");
	float *y = ref_f32(c, ARG(embed, y));

	for (int64_t t = 0; t < c->s->n_tok; t++, y += hidden) {
		table_row(&c->arg[ARG(embed, w)], c->s->tok[t], hidden, y);
		for (int64_t i = 0; i < hidden; i++)
			y[i] *= scale;
	}
}

void
ref_embed_pos(const RefCall *c)
{
	int64_t hidden = step_int(c->step, "hidden"), offset = step_int(c->step, "offset");
	const float *x = ref_f32(c, ARG(embed_pos, x));
	float *y = ref_f32(c, ARG(embed_pos, y));

	for (int64_t t = 0; t < c->s->n_tok; t++, x += hidden, y += hidden) {
		table_row(&c->arg[ARG(embed_pos, w)], c->s->pos[t] + offset, hidden, c->scratch);
		for (int64_t i = 0; i < hidden; i++)
			y[i] = x[i] + c->scratch[i];
	}
}

void
ref_embed_type(const RefCall *c)
{
	int64_t hidden = step_int(c->step, "hidden");
	const float *x = ref_f32(c, ARG(embed_type, x));
	float *y = ref_f32(c, ARG(embed_type, y));

	for (int64_t t = 0; t < c->s->n_tok; t++, x += hidden, y += hidden) {
		table_row(&c->arg[ARG(embed_type, w)], c->s->pos2[t], hidden, c->scratch);
		for (int64_t i = 0; i < hidden; i++)
			y[i] = x[i] + c->scratch[i];
	}
}

void
ref_matmul(const RefCall *c)
{
	ref_linear(&c->arg[ARG(matmul, w)], &c->arg[ARG(matmul, b)], step_int(c->step, "rows"),
	           step_int(c->step, "cols"), ref_f32(c, ARG(matmul, x)),
	           ref_rows(c, ARG(matmul, y)), ref_f32(c, ARG(matmul, y)), c->scratch);
}

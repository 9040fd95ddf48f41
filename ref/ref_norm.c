/* Norms, and the ops that work element by element or move rows. */
#include "ref/internal.h"

void
ref_rms_row(const float *x, const float *w, int64_t dim, double eps, bool plus_one, float *y)
{
	double scale = 1.0 / sqrt(ref_dot(x, x, dim) / (double)dim + eps);

	for (int64_t i = 0; i < dim; i++)
		y[i] = (float)(x[i] * scale * (w ? (double)w[i] + plus_one : 1.0));
}

void
ref_layer_row(const float *x, const float *w, const float *b, int64_t dim, double eps, float *y)
{
	double mean = 0, var = 0, scale;

	for (int64_t i = 0; i < dim; i++)
		mean += x[i];
	mean /= (double)dim;
	for (int64_t i = 0; i < dim; i++)
		var += (x[i] - mean) * (x[i] - mean);
	scale = 1.0 / sqrt(var / (double)dim + eps);
	for (int64_t i = 0; i < dim; i++)
		y[i] = (float)((x[i] - mean) * scale * (w ? w[i] : 1.0f) + (b ? b[i] : 0.0f));
}

void
ref_norm_rows(const PlanStep *step, const RefArg *w, const RefArg *b, int64_t dim, const float *x, int64_t n_row, float *y,
              float *scratch)
{
	const char  *kind = ref_word(step, "norm");
	double       eps = ref_num(step, "eps");
	bool         plus_one = ref_int(step, "plus_one") != 0;
	const float *wv = ref_vector(w, scratch), *bv = ref_vector(b, scratch + dim);

	for (int64_t t = 0; t < n_row; t++, x += dim, y += dim) {
		if (!strcmp(kind, "rms"))
			ref_rms_row(x, wv, dim, eps, plus_one, y);
		else if (!strcmp(kind, "layer"))
			ref_layer_row(x, wv, bv, dim, eps, y);
		else
			memmove(y, x, (size_t)dim * sizeof *y);
	}
}

/* x, w, y */
void
ref_rmsnorm(const RefCall *c)
{
	int64_t      dim = ref_int(c->step, "dim"), n = ref_rows(c, 2) * ref_int(c->step, "groups");
	const float *x = ref_f32(c, 0), *w = ref_vector(&c->arg[1], c->scratch);
	float       *y = ref_f32(c, 2);

	for (int64_t i = 0; i < n; i++, x += dim, y += dim)
		ref_rms_row(x, w, dim, ref_num(c->step, "eps"), ref_int(c->step, "plus_one") != 0, y);
}

/* x, w, b?, y */
void
ref_layernorm(const RefCall *c)
{
	int64_t      dim = ref_int(c->step, "dim"), n = ref_rows(c, 3);
	const float *x = ref_f32(c, 0), *w = ref_vector(&c->arg[1], c->scratch);
	const float *b = ref_vector(&c->arg[2], c->scratch + dim);
	float       *y = ref_f32(c, 3);

	for (int64_t i = 0; i < n; i++, x += dim, y += dim)
		ref_layer_row(x, w, b, dim, ref_num(c->step, "eps"), y);
}

double
ref_activate(const char *act, double x)
{
	if (!strcmp(act, "silu"))
		return x / (1.0 + exp(-x));
	if (!strcmp(act, "gelu"))
		return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440));
	/* gelu_tanh: 0.7978... is sqrt(2 / pi) */
	return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

/* x, y */
void
ref_act(const RefCall *c)
{
	int64_t      n = ref_rows(c, 1) * ref_int(c->step, "width");
	const char  *act = ref_word(c->step, "act");
	const float *x = ref_f32(c, 0);
	float       *y = ref_f32(c, 1);

	for (int64_t i = 0; i < n; i++)
		y[i] = (float)ref_activate(act, x[i]);
}

/* g, u, y */
void
ref_glu(const RefCall *c)
{
	int64_t      n = ref_rows(c, 2) * ref_int(c->step, "width");
	const char  *act = ref_word(c->step, "act");
	const float *g = ref_f32(c, 0), *u = ref_f32(c, 1);
	float       *y = ref_f32(c, 2);

	for (int64_t i = 0; i < n; i++)
		y[i] = (float)(ref_activate(act, g[i]) * u[i]);
}

/* x, r, y */
void
ref_add(const RefCall *c)
{
	int64_t      n = ref_rows(c, 2) * ref_int(c->step, "width");
	float        scale = (float)ref_num(c->step, "scale");
	const float *x = ref_f32(c, 0), *r = ref_f32(c, 1);
	float       *y = ref_f32(c, 2);

	for (int64_t i = 0; i < n; i++)
		y[i] = scale * x[i] + r[i];
}

/* x, s, y */
void
ref_gate_mul(const RefCall *c)
{
	int64_t      n = ref_rows(c, 2), width = ref_int(c->step, "width");
	const float *x = ref_f32(c, 0), *s = ref_f32(c, 1);
	float       *y = ref_f32(c, 2);

	for (int64_t t = 0; t < n; t++) {
		float gate = (float)(1.0 / (1.0 + exp(-(double)s[t])));

		for (int64_t i = 0; i < width; i++)
			y[t * width + i] = x[t * width + i] * gate;
	}
}

/* x, y */
void
ref_cap(const RefCall *c)
{
	int64_t      n = ref_rows(c, 1) * ref_int(c->step, "width");
	double       cap = ref_num(c->step, "cap");
	const float *x = ref_f32(c, 0);
	float       *y = ref_f32(c, 1);

	for (int64_t i = 0; i < n; i++)
		y[i] = (float)(cap * tanh(x[i] / cap));
}

/* x, y */
void
ref_slice(const RefCall *c)
{
	int64_t      n = ref_rows(c, 1), width = ref_int(c->step, "width"), count = ref_int(c->step, "count");
	const float *x = ref_f32(c, 0) + ref_int(c->step, "first");
	float       *y = ref_f32(c, 1);

	for (int64_t t = 0; t < n; t++)
		memmove(y + t * count, x + t * width, (size_t)count * sizeof *y);
}

/* x, y */
void
ref_pick(const RefCall *c)
{
	int64_t      width = ref_int(c->step, "width");
	const float *x = ref_f32(c, 0);
	float       *y = ref_f32(c, 1);

	/* out_row ascends, so y may be x's memory */
	for (int64_t o = 0; o < c->s->n_out; o++)
		memmove(y + o * width, x + c->s->out_row[o] * width, (size_t)width * sizeof *y);
}

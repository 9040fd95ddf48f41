/* Norms, elementwise ops and ops that move rows. */
#include "ref/ref_internal.h"

void
ref_rms_row(const float *x, const float *w, int64_t dim, double eps, bool plus_one, float *y)
{
	double scale = 1.0 / sqrt(ref_dot(x, x, dim) / (double)dim + eps);

	for (int64_t i = 0; i < dim; i++)
		y[i] = (float)(x[i] * scale * (w ? (double)w[i] + plus_one : 1.0));
}

void
ref_layer_row(const float *x, const float *w, const float *b, int64_t dim, double eps,
              bool plus_one, float *y)
{
	double mean = 0, var = 0, scale;

	for (int64_t i = 0; i < dim; i++)
		mean += x[i];
	mean /= (double)dim;
	for (int64_t i = 0; i < dim; i++)
		var += (x[i] - mean) * (x[i] - mean);
	scale = 1.0 / sqrt(var / (double)dim + eps);
	for (int64_t i = 0; i < dim; i++)
		y[i] = (float)((x[i] - mean) * scale * (w ? (double)w[i] + plus_one : 1.0) +
		               (b ? b[i] : 0.0f));
}

void
ref_norm_rows(const PlanStep *step, const RefArg *w, const RefArg *b, int64_t dim, const float *x,
              int64_t n_row, float *y, float *scratch)
{
	const char *kind = step_word(step, "norm");
	double eps = step_num(step, "eps");
	bool plus_one = step_int(step, "plus_one") != 0;
	const float *wv = ref_vector(w, scratch), *bv = ref_vector(b, scratch + dim);

	for (int64_t t = 0; t < n_row; t++, x += dim, y += dim) {
		if (!strcmp(kind, "rms"))
			ref_rms_row(x, wv, dim, eps, plus_one, y);
		else if (!strcmp(kind, "layer"))
			ref_layer_row(x, wv, bv, dim, eps, plus_one, y);
		else
			memmove(y, x, (size_t)dim * sizeof *y);
	}
}

void
ref_rmsnorm(const RefCall *c)
{
	int64_t dim = step_int(c->step, "dim"),
	        n = ref_rows(c, ARG(rmsnorm, y)) * step_int(c->step, "groups");
	const float *x = ref_f32(c, ARG(rmsnorm, x)),
	            *w = ref_vector(&c->arg[ARG(rmsnorm, w)], c->scratch);
	float *y = ref_f32(c, ARG(rmsnorm, y));

	for (int64_t i = 0; i < n; i++, x += dim, y += dim)
		ref_rms_row(x, w, dim, step_num(c->step, "eps"), step_int(c->step, "plus_one") != 0,
		            y);
}

void
ref_layernorm(const RefCall *c)
{
	int64_t dim = step_int(c->step, "dim"), groups = step_int(c->step, "groups"),
	        n = ref_rows(c, ARG(layernorm, y)) * groups;
	/* number of groups that have weights of their own; 1: all groups share them */
	int64_t own = step_int(c->step, "per_group") ? groups : 1;
	const float *x = ref_f32(c, ARG(layernorm, x)),
	            *w = ref_vector(&c->arg[ARG(layernorm, w)], c->scratch);
	const float *b = ref_vector(&c->arg[ARG(layernorm, b)], c->scratch + own * dim);
	float *y = ref_f32(c, ARG(layernorm, y));

	for (int64_t i = 0; i < n; i++, x += dim, y += dim) {
		int64_t at = i % own * dim;
		ref_layer_row(x, w ? w + at : NULL, b ? b + at : NULL, dim,
		              step_num(c->step, "eps"), step_int(c->step, "plus_one") != 0, y);
	}
}

void
ref_permute_cols(const RefCall *c)
{
	const int64_t width = step_int(c->step, "width"), n = ref_rows(c, ARG(permute_cols, y));
	const float *order = ref_vector(&c->arg[ARG(permute_cols, order)], c->scratch),
	            *factor = ref_vector(&c->arg[ARG(permute_cols, factor)], c->scratch + width);
	float *row = c->scratch + 2 * width, *y = ref_f32(c, ARG(permute_cols, y));

	for (int64_t t = 0; t < n; t++, y += width) {
		ref_norm_rows(c->step, &c->arg[ARG(permute_cols, nw)],
		              &c->arg[ARG(permute_cols, nb)], width,
		              ref_f32(c, ARG(permute_cols, x)) + t * width, 1, row, row + width);
		for (int64_t j = 0; j < width; j++) {
			int64_t k = j;
			if (order)
				k = !(order[j] > 0)           ? 0
				    : order[j] < (float)width ? (int64_t)order[j]
				                              : width - 1;
			y[j] = row[k] * (factor ? factor[j] : 1);
		}
	}
}

double
ref_activate(const char *act, double x)
{
	if (!strcmp(act, "silu"))
		return x / (1.0 + exp(-x));
	if (!strcmp(act, "gelu"))
		return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440));
	if (!strcmp(act, "gelu_quick"))
		return x / (1.0 + exp(-1.702 * x));
	if (!strcmp(act, "relu"))
		return x > 0 ? x : 0;
	if (!strcmp(act, "relu2"))
		return x > 0 ? x * x : 0;
	/* gelu_tanh; 0.7978... is sqrt(2 / pi) */
	return 0.5 * x * (1.0 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

double
ref_glu_one(const PlanStep *step, double g, double u)
{
	const char *act = step_word(step, "act");
	double limit = step_num(step, "limit");

	if (!strcmp(act, "silu_limit")) {
		g = ref_activate("silu", g);
		return limit > 0 ? fmin(g, limit) * fmax(-limit, fmin(u, limit)) : g * u;
	}
	if (limit > 0) {
		g = fmin(g, limit);
		u = fmax(-limit, fmin(u, limit));
	}
	if (!strcmp(act, "swiglu_oai"))
		return g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
	return ref_activate(act, g) * u;
}

static double
xielu(double x, double p, double n)
{
	double a = log1p(exp(p)), b = 0.5 + log1p(exp(n));

	return x > 0 ? a * x * x + 0.5 * x : b * (expm1(fmin(x, -1e-6)) - x) + 0.5 * x;
}

void
ref_act(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(act, y)) * step_int(c->step, "width");
	const char *act = step_word(c->step, "act");
	const float *x = ref_f32(c, ARG(act, x));
	float *y = ref_f32(c, ARG(act, y));

	const float *p = ref_vector(&c->arg[ARG(act, p)], c->scratch);

	for (int64_t i = 0; i < n; i++)
		y[i] = (float)(p ? xielu(x[i], p[0], p[1]) : ref_activate(act, x[i]));
}

void
ref_glu(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(glu, y)) * step_int(c->step, "width");
	const float *g = ref_f32(c, ARG(glu, g)), *u = ref_f32(c, ARG(glu, u));
	float *y = ref_f32(c, ARG(glu, y));

	for (int64_t i = 0; i < n; i++)
		y[i] = (float)ref_glu_one(c->step, g[i], u[i]);
}

void
ref_add(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(add, y)) * step_int(c->step, "width");
	float scale = (float)step_num(c->step, "scale");
	const float *x = ref_f32(c, ARG(add, x)), *r = ref_f32(c, ARG(add, r));
	float *y = ref_f32(c, ARG(add, y));

	for (int64_t i = 0; i < n; i++)
		y[i] = scale * x[i] + r[i];
}

void
ref_mul(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(mul, y)) * step_int(c->step, "width");
	const float *x = ref_f32(c, ARG(mul, x)), *z = ref_f32(c, ARG(mul, z));
	float *y = ref_f32(c, ARG(mul, y));

	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] * z[i];
}

void
ref_gate_mul(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(gate_mul, y)), groups = step_int(c->step, "groups"),
	        width = step_int(c->step, "width") / groups;
	const float *x = ref_f32(c, ARG(gate_mul, x)), *s = ref_f32(c, ARG(gate_mul, s));
	float *y = ref_f32(c, ARG(gate_mul, y));
	bool softplus = !strcmp(step_word(c->step, "gate"), "softplus");

	for (int64_t t = 0; t < n * groups; t++) {
		double z = s[t];
		float gate =
		    (float)(softplus ? fmax(z, 0) + log1p(exp(-fabs(z))) : 1.0 / (1.0 + exp(-z)));

		for (int64_t i = 0; i < width; i++)
			y[t * width + i] = x[t * width + i] * gate;
	}
}

void
ref_scale_cols(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), n = ref_rows(c, ARG(scale_cols, y)) * width,
	        first = step_int(c->step, "first"), end = first + step_int(c->step, "count");
	const float *x = ref_f32(c, ARG(scale_cols, x)),
	            *w = ref_vector(&c->arg[ARG(scale_cols, w)], c->scratch);
	float *y = ref_f32(c, ARG(scale_cols, y));
	double scale = step_num(c->step, "scale") * (w ? w[0] : 1);

	for (int64_t i = 0; i < n; i++)
		y[i] = i % width >= first && i % width < end ? (float)(scale * x[i]) : x[i];
}

void
ref_pos_scale(const RefCall *c)
{
	const int64_t n = ref_rows(c, ARG(pos_scale, y)), width = step_int(c->step, "width"),
	              offset = step_int(c->step, "offset"), base = step_int(c->step, "base");
	const double scale = step_num(c->step, "scale");
	const float *x = ref_f32(c, ARG(pos_scale, x));
	float *y = ref_f32(c, ARG(pos_scale, y));

	for (int64_t t = 0; t < n; t++) {
		const double m = 1 + scale * log1p((double)((c->s->pos[t] + offset) / base));

		for (int64_t i = 0; i < width; i++)
			y[t * width + i] = (float)(m * x[t * width + i]);
	}
}

float
ref_cap_one(float x, double scale, double cap)
{
	return (float)(cap > 0 ? cap * tanh(scale * x / cap) : scale * x);
}

void
ref_softcap(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(softcap, y)) * step_int(c->step, "width");
	double cap = step_num(c->step, "softcap"), scale = step_num(c->step, "scale");
	const float *x = ref_f32(c, ARG(softcap, x));
	float *y = ref_f32(c, ARG(softcap, y));

	for (int64_t i = 0; i < n; i++)
		y[i] = ref_cap_one(x[i], scale, cap);
}

void
ref_clamp(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(clamp, y)) * step_int(c->step, "width");
	float limit = (float)step_num(c->step, "limit");
	const float *x = ref_f32(c, ARG(clamp, x));
	float *y = ref_f32(c, ARG(clamp, y));

	for (int64_t i = 0; i < n; i++)
		y[i] = fmaxf(-limit, fminf(x[i], limit));
}

void
ref_concat(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(concat, y)), width = step_int(c->step, "width"),
	        count = step_int(c->step, "count");
	const float *x = ref_f32(c, ARG(concat, x)), *z = ref_f32(c, ARG(concat, z));
	float *y = ref_f32(c, ARG(concat, y));

	for (int64_t t = 0; t < n; t++, x += width, z += count, y += width + count) {
		memcpy(y, x, (size_t)width * sizeof *y);
		memcpy(y + width, z, (size_t)count * sizeof *y);
	}
}

void
ref_slice(const RefCall *c)
{
	int64_t n = ref_rows(c, ARG(slice, y)), width = step_int(c->step, "width"),
	        count = step_int(c->step, "count");
	const float *x = ref_f32(c, ARG(slice, x)) + step_int(c->step, "first");
	float *y = ref_f32(c, ARG(slice, y));

	for (int64_t t = 0; t < n; t++)
		memmove(y + t * count, x + t * width, (size_t)count * sizeof *y);
}

void
ref_merge_rows(const RefCall *c)
{
	const int64_t width = step_int(c->step, "width"), count = step_int(c->step, "count"),
	              row = step_int(c->step, "mean") ? width : width * count;
	const float *x = ref_f32(c, ARG(merge_rows, x));
	float *y = ref_f32(c, ARG(merge_rows, y));

	for (int64_t o = 0; o < c->s->n_out; o++) {
		const float *from = x + (c->s->out_row[o] + 1 - count) * width;
		if (row != width) {
			memcpy(y + o * row, from, (size_t)row * sizeof *y);
			continue;
		}
		for (int64_t i = 0; i < width; i++) {
			double sum = 0;
			for (int64_t k = 0; k < count; k++)
				sum += from[k * width + i];
			y[o * row + i] = (float)(sum / (double)count);
		}
	}
}

void
ref_scatter_rows(const RefCall *c)
{
	const int64_t width = step_int(c->step, "width");
	const float *x = ref_f32(c, ARG(scatter_rows, x)),
	            *rows = ref_f32(c, ARG(scatter_rows, rows));
	float *y = ref_f32(c, ARG(scatter_rows, y));

	for (int64_t t = 0; t < c->s->n_tok; t++)
		memmove(y + t * width, (c->s->pos2[t] > 0 ? rows : x) + t * width,
		        (size_t)width * sizeof *y);
}

void
ref_gather_rows(const RefCall *c)
{
	int64_t width = step_int(c->step, "width");
	const float *x = ref_f32(c, ARG(gather_rows, x));
	float *y = ref_f32(c, ARG(gather_rows, y));

	/* correct even if y is x's memory, because out_row is ascending */
	for (int64_t o = 0; o < c->s->n_out; o++)
		memmove(y + o * width, x + c->s->out_row[o] * width, (size_t)width * sizeof *y);
}

/* Ops with a recurrent state per sequence: causal convolution, gated delta rule, selective scan;
 * and the gated norm after them. */
#include "ref/ref_internal.h"

/* State of the step's sequence i before its first row: zero before position 0. elems: floats per
 * layer and sequence */
static float *
state_of(const RefCall *c, int arg, int32_t i, int64_t elems)
{
	float *state = (float *)c->arg[arg].data + c->s->seq[i] * elems;

	if (c->s->pos[c->s->q_start[i]] == 0)
		memset(state, 0, (size_t)elems * sizeof *state);
	return state;
}

static double
sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static double
softplus(double x)
{
	return x > 30 ? x : log1p(exp(x));
}

/* x * silu(z), x * sigmoid(z), or x */
static double
gated(const char *gate, double x, double z)
{
	return !strcmp(gate, "silu")      ? x * z * sigmoid(z)
	       : !strcmp(gate, "sigmoid") ? x * sigmoid(z)
	                                  : x;
}

/* scratch: weights and biases */
void
ref_conv1d(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), taps = step_int(c->step, "taps");
	const float *w = ref_vector(&c->arg[ARG(conv1d, w)], c->scratch),
	            *b = ref_vector(&c->arg[ARG(conv1d, b)], c->scratch + width * taps);
	const float *x = ref_f32(c, ARG(conv1d, x));
	float *y = ref_f32(c, ARG(conv1d, y));
	bool silu = !strcmp(step_word(c->step, "gate"), "silu");

	for (int32_t i = 0; i < c->s->n_seq; i++) {
		float *old = state_of(c, ARG(conv1d, state), i, (taps - 1) * width);
		int64_t first = c->s->q_start[i], n = c->s->q_start[i + 1] - first;

		for (int64_t t = 0; t < n; t++)
			for (int64_t k = 0; k < width; k++) {
				double sum = b ? b[k] : 0;

				for (int64_t j = 0; j < taps; j++) {
					int64_t from = t - taps + 1 + j;
					sum += (double)w[k * taps + j] *
					       (from < 0 ? old[(taps - 1 + from) * width + k]
					                 : x[(first + from) * width + k]);
				}
				y[(first + t) * width + k] =
				    (float)(silu ? sum * sigmoid(sum) : sum);
			}
		/* keep the newest rows, oldest first: older kept rows move up */
		for (int64_t j = 0; j < taps - 1; j++) {
			int64_t from = n - (taps - 1) + j;
			memmove(old + j * width,
			        from < 0 ? old + (j + n) * width : x + (first + from) * width,
			        (size_t)width * sizeof *old);
		}
	}
}

/* u / sqrt(sum u^2 + eps) * scale */
static void
unit(const float *u, int64_t n, double eps, double scale, float *to)
{
	double r = scale / sqrt(ref_dot(u, u, n) + eps);

	for (int64_t i = 0; i < n; i++)
		to[i] = (float)(u[i] * r);
}

/* scratch: q, k, then rates and dt */
void
ref_delta_rule(const RefCall *c)
{
	int64_t k_heads = step_int(c->step, "k_heads"), v_heads = step_int(c->step, "v_heads"),
	        k_dim = step_int(c->step, "k_dim");
	int64_t v_dim = step_int(c->step, "v_dim"), g_dim = step_int(c->step, "g_dim"),
	        row = 2 * k_heads * k_dim + v_heads * v_dim;
	bool tiled = step_int(c->step, "tiled") != 0, a_log = step_int(c->step, "a_log") != 0;
	double eps = step_num(c->step, "eps"), scale = step_num(c->step, "scale"),
	       b_scale = step_num(c->step, "b_scale");
	float *q = c->scratch, *k = q + k_dim, *vectors = k + k_dim;
	const float *rate = ref_vector(&c->arg[ARG(delta_rule, rate)], vectors),
	            *dt = ref_vector(&c->arg[ARG(delta_rule, dt)], vectors + v_heads);

	for (int32_t i = 0; i < c->s->n_seq; i++) {
		float *all = state_of(c, ARG(delta_rule, state), i, v_heads * k_dim * v_dim);

		for (int64_t t = c->s->q_start[i]; t < c->s->q_start[i + 1]; t++)
			for (int64_t h = 0; h < v_heads; h++) {
				const float *x = ref_f32(c, ARG(delta_rule, x)) + t * row,
				            *v = x + 2 * k_heads * k_dim + h * v_dim;
				const float *a =
				    ref_f32(c, ARG(delta_rule, a)) + (t * v_heads + h) * g_dim;
				double beta =
				           b_scale *
				           sigmoid(ref_f32(c, ARG(delta_rule, b))[t * v_heads + h]),
				       r = a_log ? -exp(rate[h]) : rate[h];
				float *s = all + h * k_dim * v_dim,
				      *y = ref_f32(c, ARG(delta_rule, y)) +
				           (t * v_heads + h) * v_dim;
				int64_t from = tiled ? h % k_heads : h * k_heads / v_heads;

				unit(x + from * k_dim, k_dim, eps, scale, q);
				unit(x + (k_heads + from) * k_dim, k_dim, eps, 1, k);
				for (int64_t j = 0; j < k_dim; j++) {
					double e =
					    exp(r * softplus(a[g_dim > 1 ? j : 0] +
					                     dt[h * g_dim + (g_dim > 1 ? j : 0)]));

					for (int64_t d = 0; d < v_dim; d++)
						s[j * v_dim + d] = (float)(s[j * v_dim + d] * e);
				}
				for (int64_t d = 0; d < v_dim; d++) {
					double seen = 0, sum = 0;

					for (int64_t j = 0; j < k_dim; j++)
						seen += (double)s[j * v_dim + d] * k[j];
					for (int64_t j = 0; j < k_dim; j++) {
						s[j * v_dim + d] =
						    (float)(s[j * v_dim + d] +
						            k[j] * beta * (v[d] - seen));
						sum += (double)s[j * v_dim + d] * q[j];
					}
					y[d] = (float)sum;
				}
			}
	}
}

/* scratch: rates, biases and skips */
void
ref_selective_scan(const RefCall *c)
{
	int64_t heads = step_int(c->step, "heads"), dim = step_int(c->step, "dim"),
	        groups = step_int(c->step, "groups"), n_state = step_int(c->step, "n_state");
	int64_t inner = heads * dim, row = inner + 2 * groups * n_state;
	bool a_log = step_int(c->step, "a_log") != 0;
	double least = step_num(c->step, "dt_min"), most = step_num(c->step, "dt_max");
	const float *rate = ref_vector(&c->arg[ARG(selective_scan, rate)], c->scratch),
	            *bias = ref_vector(&c->arg[ARG(selective_scan, bias)], c->scratch + heads);
	const float *skip = ref_vector(&c->arg[ARG(selective_scan, skip)], c->scratch + 2 * heads);

	for (int32_t i = 0; i < c->s->n_seq; i++) {
		float *all = state_of(c, ARG(selective_scan, state), i, heads * n_state * dim);

		for (int64_t t = c->s->q_start[i]; t < c->s->q_start[i + 1]; t++)
			for (int64_t h = 0; h < heads; h++) {
				const float *x = ref_f32(c, ARG(selective_scan, x)) + t * row,
				            *u = x + h * dim,
				            *in = x + inner + h * groups / heads * n_state;
				const float *out = in + groups * n_state;
				double d = softplus(
				    (double)ref_f32(c, ARG(selective_scan, dt))[t * heads + h] +
				    bias[h]);
				float *s = all + h * n_state * dim,
				      *y = ref_f32(c, ARG(selective_scan, y)) + t * inner + h * dim;

				d = fmax(d, least);
				d = most > 0 ? fmin(d, most) : d;
				double e = exp((a_log ? -exp(rate[h]) : rate[h]) * d);
				for (int64_t k = 0; k < dim; k++) {
					double sum = 0;

					for (int64_t j = 0; j < n_state; j++) {
						s[j * dim + k] = (float)(e * s[j * dim + k] +
						                         in[j] * (d * u[k]));
						sum += (double)s[j * dim + k] * out[j];
					}
					y[k] = (float)(sum + (double)skip[h] * u[k]);
				}
			}
	}
}

/* scratch: rates, biases and skips */
void
ref_channel_scan(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), n_state = step_int(c->step, "n_state");
	bool a_log = step_int(c->step, "a_log") != 0;
	const float *rate = ref_vector(&c->arg[ARG(channel_scan, rate)], c->scratch),
	            *bias =
	                ref_vector(&c->arg[ARG(channel_scan, bias)], c->scratch + width * n_state);
	const float *skip =
	    ref_vector(&c->arg[ARG(channel_scan, skip)], c->scratch + width * (n_state + 1));

	for (int32_t i = 0; i < c->s->n_seq; i++) {
		float *all = state_of(c, ARG(channel_scan, state), i, width * n_state);

		for (int64_t t = c->s->q_start[i]; t < c->s->q_start[i + 1]; t++) {
			const float *x = ref_f32(c, ARG(channel_scan, x)) + t * width,
			            *dt = ref_f32(c, ARG(channel_scan, dt)) + t * width;
			const float *in = ref_f32(c, ARG(channel_scan, b)) + t * n_state,
			            *out = ref_f32(c, ARG(channel_scan, c)) + t * n_state;
			float *y = ref_f32(c, ARG(channel_scan, y)) + t * width;

			for (int64_t k = 0; k < width; k++) {
				double d = softplus((double)dt[k] + bias[k]),
				       sum = (double)skip[k] * x[k];
				const float *r = rate + k * n_state;
				float *s = all + k * n_state;

				for (int64_t j = 0; j < n_state; j++) {
					s[j] = (float)(exp((a_log ? -exp(r[j]) : r[j]) * d) * s[j] +
					               in[j] * (d * x[k]));
					sum += (double)s[j] * out[j];
				}
				y[k] = (float)sum;
			}
		}
	}
}

/* scratch: weights, a group */
void
ref_norm_gate(const RefCall *c)
{
	int64_t dim = step_int(c->step, "dim"), groups = step_int(c->step, "groups"),
	        n = ref_rows(c, ARG(norm_gate, y));
	double eps = step_num(c->step, "eps");
	const char *gate = step_word(c->step, "gate");
	bool first = !strcmp(step_word(c->step, "order"), "gate_first");
	float *piece = c->scratch + groups * dim, *y = ref_f32(c, ARG(norm_gate, y));
	const float *w = ref_vector(&c->arg[ARG(norm_gate, w)], c->scratch);
	const float *x = ref_f32(c, ARG(norm_gate, x)), *z = ref_f32(c, ARG(norm_gate, z));

	for (int64_t i = 0; i < n * groups; i++, x += dim, z += dim, y += dim) {
		for (int64_t j = 0; j < dim; j++)
			piece[j] = (float)(first ? gated(gate, x[j], z[j]) : x[j]);
		ref_rms_row(piece, w + (first ? i % groups * dim : 0), dim, eps, false, piece);
		for (int64_t j = 0; j < dim; j++)
			y[j] = (float)(first ? piece[j] : gated(gate, piece[j], z[j]));
	}
}

/* Mixture of experts: routing, and the selected experts' FFNs. */
#include "ref/ref_internal.h"

/* Selects one expert at a time: the expert with the largest logit of those not selected yet. Its
 * weight is a softmax over the logits close to that one. left [n_experts]: scratch */
static void
sparsemixer(const float *x, int64_t n_experts, int64_t top_k, double near, double scale,
            int32_t *id, float *weight, float *left)
{
	for (int64_t e = 0; e < n_experts; e++)
		left[e] = 1;
	for (int64_t k = 0; k < top_k; k++) {
		int64_t best = -1;
		double sum = 0;

		for (int64_t e = 0; e < n_experts; e++)
			if (left[e] != 0 && (best < 0 || x[e] > x[best]))
				best = e;
		for (int64_t e = 0; e < n_experts; e++) {
			double below = (double)x[best] - x[e];
			if (left[e] != 0 && !(below / fmax(fabs((double)x[e]), x[best]) > near))
				sum += exp(-below);
		}
		id[k] = (int32_t)best;
		weight[k] = (float)(scale / sum);
		left[best] = 0;
	}
}

/* Selects experts and weights for n rows of logits, stride floats apart; weights are w_stride
 * apart. scratch: scores, selection scores, bias [E] each, group scores [groups] */
static void
route(const PlanStep *step, const RefArg *bias_arg, const float *logits, int64_t stride, int64_t n,
      int32_t *id, float *weight, int64_t w_stride, float *scratch)
{
	int64_t n_experts = step_int(step, "n_experts"), top_k = step_int(step, "top_k");
	int64_t groups = step_int(step, "groups"), keep_groups = step_int(step, "top_k_groups");
	bool sigmoid = !strcmp(step_word(step, "score"), "sigmoid");
	bool top2 = !strcmp(step_word(step, "group_score"), "top2");
	bool renorm = step_int(step, "renorm") != 0;
	double sum_eps = step_num(step, "sum_eps"), scale = step_num(step, "scale");
	float *score = scratch, *choice = score + n_experts, *group = choice + 2 * n_experts;
	const float *bias = ref_vector(bias_arg, choice + n_experts);

	for (int64_t t = 0; t < n; t++, id += top_k, weight += w_stride) {
		const float *x = logits + t * stride;
		double max = x[0], sum = 0;

		if (!strcmp(step_word(step, "score"), "sparsemixer")) {
			sparsemixer(x, n_experts, top_k, 2 * step_num(step, "jitter"), scale, id,
			            weight, choice);
			continue;
		}

		for (int64_t e = 1; e < n_experts; e++)
			if (x[e] > max)
				max = x[e];
		for (int64_t e = 0; e < n_experts; e++)
			sum += exp(x[e] - max);
		for (int64_t e = 0; e < n_experts; e++) {
			score[e] = (float)(sigmoid ? 1.0 / (1.0 + exp(-(double)x[e]))
			                           : exp(x[e] - max) / sum);
			choice[e] = score[e] + (bias ? bias[e] : 0.0f);
		}
		if (groups > 1 && keep_groups < groups) {
			int64_t size = n_experts / groups;

			for (int64_t g = 0; g < groups; g++) {
				float best = -INFINITY, second = -INFINITY;

				for (int64_t e = g * size; e < (g + 1) * size; e++) {
					if (choice[e] > best) {
						second = best;
						best = choice[e];
					} else if (choice[e] > second) {
						second = choice[e];
					}
				}
				group[g] = top2 && size > 1 ? best + second : best;
			}
			/* keep a group if fewer than keep_groups groups rank higher; in a tie the
			 * lower index does */
			for (int64_t g = 0; g < groups; g++) {
				int64_t before = 0;

				for (int64_t o = 0; o < groups; o++)
					before +=
					    group[o] > group[g] || (group[o] == group[g] && o < g);
				if (before < keep_groups)
					continue;
				for (int64_t e = g * size; e < (g + 1) * size; e++)
					choice[e] = -INFINITY;
			}
		}
		sum = 0;
		for (int64_t k = 0; k < top_k; k++) {
			int64_t best = -1;

			for (int64_t e = 0; e < n_experts; e++) {
				bool taken = false;

				for (int64_t o = 0; o < k; o++)
					taken |= id[o] == e;
				if (!taken && (best < 0 || choice[e] > choice[best]))
					best = e;
			}
			id[k] = (int32_t)best;
			weight[k] = score[best];
			sum += score[best];
		}
		sum += sum_eps;
		for (int64_t k = 0; k < top_k; k++)
			weight[k] = (float)((renorm ? weight[k] / sum : weight[k]) * scale);
	}
}

void
ref_moe_route(const RefCall *c)
{
	route(c->step, &c->arg[ARG(moe_route, bias)], ref_f32(c, ARG(moe_route, logits)),
	      step_int(c->step, "n_experts"), ref_rows(c, ARG(moe_route, weight)),
	      c->arg[ARG(moe_route, id)].data, ref_f32(c, ARG(moe_route, weight)),
	      step_int(c->step, "top_k"), c->scratch);
}

/* scratch: normed rows, logits, then memory that norm, matmul and routing use in turn */
void
ref_norm_route(const RefCall *c)
{
	int64_t hidden = step_int(c->step, "hidden"), mix = step_int(c->step, "shared_gate"),
	        rows = step_int(c->step, "n_experts") + mix;
	int64_t top_k = step_int(c->step, "top_k"), n = ref_rows(c, ARG(norm_route, weight));
	float *xn = c->scratch, *logits = xn + n * hidden, *rest = logits + n * rows,
	      *weight = ref_f32(c, ARG(norm_route, weight));

	ref_norm_rows(c->step, &c->arg[ARG(norm_route, nw)], &c->arg[ARG(norm_route, nb)], hidden,
	              ref_f32(c, ARG(norm_route, x)), n, xn, rest);
	ref_linear(&c->arg[ARG(norm_route, w)], &c->arg[ARG(norm_route, logit_b)], rows, hidden, xn,
	           n, logits, rest);
	route(c->step, &c->arg[ARG(norm_route, bias)], logits, rows, n,
	      c->arg[ARG(norm_route, id)].data, weight, top_k + mix, rest);
	for (int64_t t = 0; mix && t < n; t++)
		weight[t * (top_k + 1) + top_k] =
		    (float)(1.0 / (1.0 + exp(-(double)logits[t * rows + rows - 1])));
}

/* Returns whether any of the n choices is expert e */
static bool
is_chosen(const int32_t *id, int64_t n, int64_t e)
{
	for (int64_t i = 0; i < n; i++)
		if (id[i] == e)
			return true;
	return false;
}

/* h[i][o] = glu(row o of e's gate times x, the same with up), for the choices i of expert e among n
 * x top_k. h rows are `stride` apart per top_k; x has `spread` rows for each of the n. add [n *
 * top_k][2][width]: adapter contribution, or NULL. The caller's outer loop is over experts, so that
 * each row is dequantised once. scratch: a row [hidden], biases of gate and of up if present */
static void
experts_glu(const PlanStep *step, const RefArg *gate, const RefArg *up, const RefArg *gate_b,
            const RefArg *up_b, const float *x, const int32_t *id, int64_t n, const float *add,
            const llmc_step *s, float *h, int64_t stride, float *scratch)
{
	int64_t top_k = step_int(step, "top_k"), hidden = step_int(step, "hidden"),
	        width = step_int(step, "width"), share = top_k / step_int(step, "x_rows_per_token");
	float *row = scratch;
#define ADDED(i, half)                                                                             \
	(add && s->adapter[s->seq[s->seq_of[(i) / top_k]]] >= 0                                    \
	     ? add[(2 * (i) + (half)) * width + o]                                                 \
	     : 0.0f)
	const float *gb = ref_vector(gate_b, row + hidden),
	            *ub = ref_vector(up_b, row + hidden + step_int(step, "n_experts") * width);

	for (int64_t e = 0; e < step_int(step, "n_experts"); e++) {
		if (!is_chosen(id, n * top_k, e))
			continue;
		for (int64_t o = 0; o < width; o++) {
			plan_tensor_row(gate->tensor, gate->data, e * width + o, row);
			for (int64_t i = 0; i < n * top_k; i++)
				if (id[i] == e)
					h[i / top_k * stride + i % top_k * width + o] =
					    (float)(ref_dot(x + i / share * hidden, row, hidden) +
					            (gb ? gb[e * width + o] : 0.0f) + ADDED(i, 0));
			plan_tensor_row(up->tensor, up->data, e * width + o, row);
			for (int64_t i = 0; i < n * top_k; i++)
				if (id[i] == e) {
					float *to = &h[i / top_k * stride + i % top_k * width + o];
					*to = (float)ref_glu_one(
					    step, *to,
					    ref_dot(x + i / share * hidden, row, hidden) +
					        (ub ? ub[e * width + o] : 0.0f) + ADDED(i, 1));
				}
		}
	}
#undef ADDED
}

/* y[t] += weight * (down_e h + down_b), in ascending expert order. scratch: a row [width], and the
 * biases if present */
static void
experts_down(const PlanStep *step, const RefArg *down, const RefArg *down_b, const float *h,
             int64_t stride, const int32_t *id, const float *weight, int64_t w_stride, int64_t n,
             float *y, float *scratch)
{
	int64_t top_k = step_int(step, "top_k"), hidden = step_int(step, "hidden"),
	        width = step_int(step, "width");
	float *row = scratch;
	const float *b = ref_vector(down_b, row + width);

	for (int64_t e = 0; e < step_int(step, "n_experts"); e++) {
		if (!is_chosen(id, n * top_k, e))
			continue;
		for (int64_t o = 0; o < hidden; o++) {
			plan_tensor_row(down->tensor, down->data, e * hidden + o, row);
			for (int64_t i = 0; i < n * top_k; i++)
				if (id[i] == e)
					y[i / top_k * hidden + o] +=
					    (float)(weight[i / top_k * w_stride + i % top_k] *
					            (ref_dot(h + i / top_k * stride +
					                         i % top_k * width,
					                     row, width) +
					             (b ? b[e * hidden + o] : 0.0f)));
		}
	}
}

/* scratch: activations [n_tok][top_k][width], then memory that both halves use in turn */
void
ref_moe_ffn(const RefCall *c)
{
	int64_t top_k = step_int(c->step, "top_k"), hidden = step_int(c->step, "hidden"),
	        width = step_int(c->step, "width");
	const int32_t *id = c->arg[ARG(moe_ffn, id)].data;
	float *y = ref_f32(c, ARG(moe_ffn, y));
	int64_t n = ref_rows(c, ARG(moe_ffn, y));
	float *h = c->scratch, *row = h + n * top_k * width;

	memset(y, 0, (size_t)(n * hidden) * sizeof *y);
	experts_glu(c->step, &c->arg[ARG(moe_ffn, gate)], &c->arg[ARG(moe_ffn, up)],
	            &c->arg[ARG(moe_ffn, gate_b)], &c->arg[ARG(moe_ffn, up_b)],
	            ref_f32(c, ARG(moe_ffn, x)), id, n, NULL, c->s, h, top_k * width, row);
	experts_down(c->step, &c->arg[ARG(moe_ffn, down)], &c->arg[ARG(moe_ffn, down_b)], h,
	             top_k * width, id, ref_f32(c, ARG(moe_ffn, weight)), top_k, n, y, row);
}

/* scratch: normed rows (one per row of x), the up rows of the shared expert, then either two
 * vectors of the norm or the scratch of the experts */
void
ref_norm_moe_glu(const RefCall *c)
{
	int64_t top_k = step_int(c->step, "top_k"), hidden = step_int(c->step, "hidden"),
	        width = step_int(c->step, "width");
	int64_t shared = step_int(c->step, "shared"), stride = top_k * width + shared,
	        n = ref_rows(c, ARG(norm_moe_glu, h)),
	        n_x = n * step_int(c->step, "x_rows_per_token");
	float *xn = c->scratch, *up = xn + n_x * hidden, *rest = up + n * shared,
	      *h = ref_f32(c, ARG(norm_moe_glu, h));
	float *hs = h + top_k * width;

	ref_norm_rows(c->step, &c->arg[ARG(norm_moe_glu, nw)], &c->arg[ARG(norm_moe_glu, nb)],
	              hidden, ref_f32(c, ARG(norm_moe_glu, x)), n_x, xn, rest);
	experts_glu(c->step, &c->arg[ARG(norm_moe_glu, gate)], &c->arg[ARG(norm_moe_glu, up)],
	            &c->arg[ARG(norm_moe_glu, gate_b)], &c->arg[ARG(norm_moe_glu, up_b)], xn,
	            c->arg[ARG(norm_moe_glu, id)].data, n, ref_f32(c, ARG(norm_moe_glu, add)), c->s,
	            h, stride, rest);
	if (!ref_has(c, ARG(norm_moe_glu, s_gate)) || !ref_has(c, ARG(norm_moe_glu, s_up)))
		return;
	ref_matmul_rows(&c->arg[ARG(norm_moe_glu, s_gate)], 0, shared, hidden, xn, hidden, n, hs,
	                stride, rest);
	ref_matmul_rows(&c->arg[ARG(norm_moe_glu, s_up)], 0, shared, hidden, xn, hidden, n, up,
	                shared, rest);
	for (int64_t t = 0; t < n; t++)
		for (int64_t i = 0; i < shared; i++)
			hs[t * stride + i] =
			    (float)ref_glu_one(c->step, hs[t * stride + i], up[t * shared + i]);
}

/* y may be r's memory. scratch: the shared expert's rows [n_tok][hidden], a weight row */
void
ref_moe_down_add(const RefCall *c)
{
	int64_t top_k = step_int(c->step, "top_k"), hidden = step_int(c->step, "hidden"),
	        width = step_int(c->step, "width");
	int64_t shared = step_int(c->step, "shared"), mix = step_int(c->step, "shared_gate"),
	        stride = top_k * width + shared;
	int64_t n = ref_rows(c, ARG(moe_down_add, y));
	const float *h = ref_f32(c, ARG(moe_down_add, h)),
	            *weight = ref_f32(c, ARG(moe_down_add, weight)),
	            *r = ref_f32(c, ARG(moe_down_add, r));
	float *y = ref_f32(c, ARG(moe_down_add, y)), *z = c->scratch, *row = z + n * hidden,
	      scale = (float)step_num(c->step, "scale");

	for (int64_t i = 0; i < n * hidden; i++)
		y[i] = r ? scale * r[i] : 0;
	experts_down(c->step, &c->arg[ARG(moe_down_add, down)], &c->arg[ARG(moe_down_add, down_b)],
	             h, stride, c->arg[ARG(moe_down_add, id)].data, weight, top_k + mix, n, y, row);
	if (!ref_has(c, ARG(moe_down_add, s_down)))
		return;
	ref_matmul_rows(&c->arg[ARG(moe_down_add, s_down)], 0, hidden, shared, h + top_k * width,
	                stride, n, z, hidden, row);
	for (int64_t i = 0; i < n * hidden; i++)
		y[i] += mix ? weight[i / hidden * (top_k + 1) + top_k] * z[i] : z[i];
}

void
ref_expert_gain(const RefCall *c)
{
	const int64_t n = ref_rows(c, ARG(expert_gain, y)) * step_int(c->step, "top_k");
	const int32_t *id = c->arg[ARG(expert_gain, id)].data;
	const float *weight = ref_f32(c, ARG(expert_gain, weight)),
	            *w = ref_vector(&c->arg[ARG(expert_gain, w)], c->scratch);
	float *y = ref_f32(c, ARG(expert_gain, y));

	for (int64_t i = 0; i < n; i++)
		y[i] = weight[i] * w[id[i]];
}

void
ref_local_experts(const RefCall *c)
{
	const int32_t first = (int32_t)step_int(c->step, "first"),
	              count = (int32_t)step_int(c->step, "count");
	const int32_t *id = c->arg[ARG(local_experts, id)].data;
	int32_t *own = c->arg[ARG(local_experts, own)].data;

	for (int64_t i = 0; i < ref_rows(c, ARG(local_experts, own)) * step_int(c->step, "top_k");
	     i++)
		own[i] = id[i] >= first && id[i] - first < count ? id[i] - first : -1;
}

void
ref_expert_input(const RefCall *c)
{
	int64_t hidden = step_int(c->step, "hidden"), n = ref_rows(c, ARG(expert_input, y));
	const float *x = ref_f32(c, ARG(expert_input, x)),
	            *weight = ref_f32(c, ARG(expert_input, weight));
	float *y = ref_f32(c, ARG(expert_input, y)), *one = ref_f32(c, ARG(expert_input, one));

	for (int64_t t = 0; t < n; t++) {
		for (int64_t i = 0; i < hidden; i++)
			y[t * hidden + i] = x[t * hidden + i] * weight[t];
		one[t] = 1;
	}
}

/* scratch: the order of all experts */
void
ref_permute_expert_cols(const RefCall *c)
{
	int64_t width = step_int(c->step, "width"), top_k = step_int(c->step, "top_k");
	const int32_t *id = c->arg[ARG(permute_expert_cols, id)].data;
	const float *x = ref_f32(c, ARG(permute_expert_cols, x)),
	            *order = ref_vector(&c->arg[ARG(permute_expert_cols, order)], c->scratch);
	float *y = ref_f32(c, ARG(permute_expert_cols, y));

	for (int64_t i = 0; i < ref_rows(c, ARG(permute_expert_cols, y)) * top_k; i++)
		for (int64_t j = 0; j < width; j++) {
			const float at = order[id[i] * width + j];
			const int64_t k = !(at > 0)           ? 0
			                  : at < (float)width ? (int64_t)at
			                                      : width - 1;
			y[i * width + j] = x[i / top_k * width + k];
		}
}

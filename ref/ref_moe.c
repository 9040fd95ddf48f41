/* Mixture of experts: choosing them, and running the chosen ones. */
#include "ref/internal.h"

/* scratch: scores, choice scores, bias [E] each, group scores [groups] */
void
ref_moe_route(const RefCall *c)
{
	int64_t      n_experts = step_int(c->step, "n_experts"), top_k = step_int(c->step, "top_k");
	int64_t      groups = step_int(c->step, "groups"), keep_groups = step_int(c->step, "keep_groups");
	bool         sigmoid = !strcmp(step_word(c->step, "score"), "sigmoid");
	bool         top2 = !strcmp(step_word(c->step, "group_score"), "top2");
	bool         renorm = step_int(c->step, "renorm") != 0;
	double       scale = step_num(c->step, "scale");
	float       *score = c->scratch, *choice = score + n_experts, *group = choice + 2 * n_experts;
	const float *bias = ref_vector(&c->arg[ARG(moe_route, bias)], choice + n_experts);
	int64_t      n = ref_rows(c, ARG(moe_route, weight));

	for (int64_t t = 0; t < n; t++) {
		const float *x = ref_f32(c, ARG(moe_route, logits)) + t * n_experts;
		int32_t     *id = (int32_t *)c->arg[ARG(moe_route, id)].data + t * top_k;
		float       *weight = ref_f32(c, ARG(moe_route, weight)) + t * top_k;
		double       max = x[0], sum = 0;

		for (int64_t e = 1; e < n_experts; e++)
			if (x[e] > max)
				max = x[e];
		for (int64_t e = 0; e < n_experts; e++)
			sum += exp(x[e] - max);
		for (int64_t e = 0; e < n_experts; e++) {
			score[e] = (float)(sigmoid ? 1.0 / (1.0 + exp(-(double)x[e])) : exp(x[e] - max) / sum);
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
			/* a group stays when fewer than keep_groups come before it; ties: the lower index */
			for (int64_t g = 0; g < groups; g++) {
				int64_t before = 0;

				for (int64_t o = 0; o < groups; o++)
					before += group[o] > group[g] || (group[o] == group[g] && o < g);
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
		if (sigmoid)
			sum += 1e-20;
		for (int64_t k = 0; k < top_k; k++)
			weight[k] = (float)((renorm ? weight[k] / sum : weight[k]) * scale);
	}
}

/* Experts outside, so that each row is dequantised once; a row's sum runs in the order
 * of expert numbers. scratch: activations [n_tok][top_k][width], a weight row */
void
ref_moe_ffn(const RefCall *c)
{
	int64_t        n_experts = step_int(c->step, "n_experts"), top_k = step_int(c->step, "top_k");
	int64_t        hidden = step_int(c->step, "hidden"), width = step_int(c->step, "width");
	const char    *act = step_word(c->step, "act");
	const float   *x = ref_f32(c, ARG(moe_ffn, x)), *weight = ref_f32(c, ARG(moe_ffn, weight));
	const int32_t *id = c->arg[ARG(moe_ffn, id)].data;
	const RefArg  *gate = &c->arg[ARG(moe_ffn, gate)], *up = &c->arg[ARG(moe_ffn, up)], *down = &c->arg[ARG(moe_ffn, down)];
	float         *y = ref_f32(c, ARG(moe_ffn, y));
	int64_t        n = ref_rows(c, ARG(moe_ffn, y));
	float         *h = c->scratch, *row = h + n * top_k * width;

	memset(y, 0, (size_t)(n * hidden) * sizeof *y);
	for (int64_t e = 0; e < n_experts; e++) {
		bool used = false;

		for (int64_t i = 0; i < n * top_k; i++)
			used |= id[i] == e;
		if (!used)
			continue;
		for (int64_t o = 0; o < width; o++) {
			plan_tensor_row(gate->tensor, gate->data, e * width + o, row);
			for (int64_t i = 0; i < n * top_k; i++)
				if (id[i] == e)
					h[i * width + o] = (float)ref_activate(act, ref_dot(x + i / top_k * hidden, row, hidden));
			plan_tensor_row(up->tensor, up->data, e * width + o, row);
			for (int64_t i = 0; i < n * top_k; i++)
				if (id[i] == e)
					h[i * width + o] *= (float)ref_dot(x + i / top_k * hidden, row, hidden);
		}
		for (int64_t o = 0; o < hidden; o++) {
			plan_tensor_row(down->tensor, down->data, e * hidden + o, row);
			for (int64_t i = 0; i < n * top_k; i++)
				if (id[i] == e)
					y[i / top_k * hidden + o] += (float)(weight[i] * ref_dot(h + i * width, row, width));
		}
	}
}

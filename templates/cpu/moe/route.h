/* Routing of a row from its logits: scores, groups, top k, weights (moe_route in ops.def). */
#ifndef LLMC_CPU_MOE_ROUTE_H
#define LLMC_CPU_MOE_ROUTE_H

#include "cpu/math/vector.h"

typedef struct Route {
	int n_experts, top_k;
	int score; /* ROUTE_softmax, .. */
	int renorm;
	int groups, keep_groups;
	int top2; /* 1: the score of a group is the sum of its two best scores; 0: its best score */
	float sum_eps, scale, jitter;
} Route;

enum { ROUTE_MOST = 4096 }; /* largest number of experts */
enum { ROUTE_softmax, ROUTE_sigmoid, ROUTE_sparsemixer };

/* Computes s[e] of all experts, padded to a whole vector. x must be readable up to the same
 * length. */
LLMC_INLINE void
route_scores(const Route r, const float *x, float *s)
{
	float top = x[0], sum = 0;

	if (r.score == ROUTE_sigmoid) {
		for (int e = 0; e < r.n_experts; e += VL)
			vf_store(s + e, vf_sigmoid(vf_load(x + e)));
		return;
	}
	for (int e = 1; e < r.n_experts; e++)
		top = x[e] > top ? x[e] : top;
	for (int e = 0; e < r.n_experts; e += VL)
		vf_store(s + e, vf_exp(vf_load(x + e) - vf_set1(top)));
	for (int e = 0; e < r.n_experts; e++)
		sum += s[e];
	for (int e = 0; e < r.n_experts; e += VL)
		vf_store(s + e, vf_load(s + e) / vf_set1(sum));
}

/* Excludes from selection the experts outside of the best groups. Of equal groups, the lower one
 * wins. */
LLMC_INLINE void
route_groups(const Route r, float *choice)
{
	const int size = r.n_experts / r.groups;
	float group[256];

	for (int g = 0; g < r.groups; g++) {
		float best = -__builtin_inff(), second = best;
		for (int e = g * size; e < (g + 1) * size; e++) {
			if (choice[e] > best) {
				second = best;
				best = choice[e];
			} else if (choice[e] > second) {
				second = choice[e];
			}
		}
		group[g] = r.top2 && size > 1 ? best + second : best;
	}
	for (int g = 0; g < r.groups; g++) {
		int before = 0;
		for (int o = 0; o < r.groups; o++)
			before += group[o] > group[g] || (group[o] == group[g] && o < g);
		if (before >= r.keep_groups)
			for (int e = g * size; e < (g + 1) * size; e++)
				choice[e] = -__builtin_inff();
	}
}

/* Selects one expert at a time: the one with the largest logit not selected yet. Its weight comes
 * from a softmax over the logits near it. */
LLMC_INLINE void
route_sparsemixer(const Route r, const float *x, int32_t *id, float *weight)
{
	uint8_t taken[ROUTE_MOST] = { 0 };

	for (int k = 0; k < r.top_k; k++) {
		int best = -1;
		float sum = 0;
		for (int e = 0; e < r.n_experts; e++)
			if (!taken[e] && (best < 0 || x[e] > x[best]))
				best = e;
		for (int e = 0; e < r.n_experts; e++) {
			const float below = x[best] - x[e], size = x[e] < 0 ? -x[e] : x[e];
			if (!taken[e] &&
			    !(below / (size > x[best] ? size : x[best]) > 2 * r.jitter))
				sum += vf_exp(vf_set1(-below))[0];
		}
		taken[best] = 1;
		id[k] = best;
		weight[k] = r.scale / sum;
	}
}

/* x: logits, readable up to a whole vector. Of equal scores, the lower index wins. Each expert is
 * selected at most once, for any logits. */
LLMC_INLINE void
route_row(const Route r, const float *x, const float *bias, int32_t *id, float *weight)
{
	float score[ROUTE_MOST], choice[ROUTE_MOST], sum = 0;
	uint8_t taken[ROUTE_MOST] = { 0 };

	if (r.score == ROUTE_sparsemixer) {
		route_sparsemixer(r, x, id, weight);
		return;
	}
	route_scores(r, x, score);
	for (int e = 0; e < r.n_experts; e++)
		choice[e] = bias ? score[e] + bias[e] : score[e];
	if (r.groups > 1 && r.keep_groups < r.groups)
		route_groups(r, choice);
	for (int k = 0; k < r.top_k; k++) {
		int best = -1;
		for (int e = 0; e < r.n_experts; e++)
			if (!taken[e] && (best < 0 || choice[e] > choice[best]))
				best = e;
		taken[best] = 1;
		id[k] = best;
		weight[k] = score[best];
		sum += score[best];
	}
	sum += r.sum_eps;
	for (int k = 0; k < r.top_k; k++)
		weight[k] = (r.renorm ? weight[k] / sum : weight[k]) * r.scale;
}

#endif

/* Top-k selection of experts from a row's logits, one warp per row. Each step selects the expert
 * with the largest key. A key has the order of the score in its high bits and the inverted expert
 * number in its low ones, so of equal scores the lower number wins. Experts that have already been
 * selected have key 0. */
#ifndef LLMC_CUDA_MOE_MOE_TOPK_H
#define LLMC_CUDA_MOE_MOE_TOPK_H

#include "cuda/runtime/step.h"
#include "cuda/math/math.h"

enum { ROUTE_softmax, ROUTE_sigmoid, ROUTE_sparsemixer, ROUTE_max, ROUTE_top2 };

/* E experts in GROUPS groups, of which KEEP are kept; K experts are selected. SHARED_GATE: one more
 * logit follows, that of the shared expert's gate; its sigmoid is the last weight. A derived R adds
 * SUM_EPS and NEAR, the relative distance to the largest logit within which sparsemixer sums. */
template <int E_, int K_, int SCORE_, int RENORM_, int GROUPS_, int KEEP_, int GROUP_,
          int SHARED_GATE_> struct route_config {
	enum {
		E = E_,
		K = K_,
		SCORE = SCORE_,
		RENORM = RENORM_,
		GROUPS = GROUPS_,
		KEEP = KEEP_,
		GROUP = GROUP_,
		SHARED_GATE = SHARED_GATE_,
		SIZE = GROUPS > 0 ? E / GROUPS : E
	};
};

/* Shared memory of one warp */
template <class R> struct route_storage {
	float score[R::E], choice[R::E], group[R::GROUPS > 0 ? (int)R::GROUPS : 1];
	int id[R::K];
	unsigned short taken[R::E];
};

/* Maps a float to an unsigned integer with the same order. NaN is the lowest, and both zeros are
 * equal. */
DEV unsigned
route_order(float x)
{
	unsigned u = __float_as_uint(x + 0.0f);

	if (x != x)
		return 1;
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

DEV unsigned long long
route_top(unsigned long long k)
{
	for (int d = 16; d; d /= 2) {
		unsigned long long o = __shfl_xor_sync(~0u, k, d);
		k = o > k ? o : k;
	}
	return k;
}

/* Returns the expert with the largest key that has not been selected yet. The caller marks it as
 * selected. */
template <class R> DEV int
route_take(route_storage<R> &s, const float *choice)
{
	enum { E = R::E };
	unsigned long long best = 0;

	for (int e = lane_id(); e < E; e += 32)
		if (!s.taken[e]) {
			const unsigned long long key =
			    (unsigned long long)route_order(choice[e]) << 32 | (unsigned)(E - e);
			best = key > best ? key : best;
		}
	return E - (int)(unsigned)route_top(best);
}

/* Selects one expert at a time: the one with the largest logit not selected yet. Its weight comes
 * from a softmax over the logits near it. */
template <class R> DEV void
route_sparsemixer(route_storage<R> &s, const float *x, float scale, int *id, float *weight)
{
	enum { E = R::E, K = R::K };
	const int lane = lane_id();

	__syncwarp();
	for (int e = lane; e < E; e += 32)
		s.taken[e] = 0;
	__syncwarp();
	for (int k = 0; k < K; k++) {
		const int e = route_take<R>(s, x);
		const float top = x[e];
		float sum = 0;
		for (int o = lane; o < E; o += 32)
			if (!s.taken[o] && !((top - x[o]) / fmaxf(fabsf(x[o]), top) > R::NEAR))
				sum += expf(x[o] - top);
		sum = warp_sum(sum);
		__syncwarp();
		if (lane == 0) {
			s.taken[e] = 1;
			id[k] = e;
			weight[k] = scale / sum;
		}
		__syncwarp();
	}
	if (R::SHARED_GATE && lane == 0)
		weight[K] = act_sigmoid(x[E]);
	__syncwarp();
}

/* x [E + SHARED_GATE] logits, bias [E] or NULL; id [K], weight [K + SHARED_GATE] */
template <class R> DEV void
route_row(route_storage<R> &s, const float *x, const float *bias, float scale, int *id,
          float *weight)
{
	enum { E = R::E, K = R::K, SIZE = R::SIZE };
	const int lane = lane_id();
	float top = x[0], sum = 0;

	if constexpr (R::SCORE == ROUTE_sparsemixer) {
		route_sparsemixer<R>(s, x, scale, id, weight);
		return;
	}
	if (R::SCORE == ROUTE_softmax) {
		for (int e = lane; e < E; e += 32)
			top = fmaxf(top, x[e]);
		top = warp_max(top);
		for (int e = lane; e < E; e += 32)
			sum += expf(x[e] - top);
		sum = warp_sum(sum);
	}
	__syncwarp();
	for (int e = lane; e < E; e += 32) {
		const float v =
		    R::SCORE == ROUTE_softmax ? expf(x[e] - top) / sum : act_sigmoid(x[e]);
		s.score[e] = v;
		s.choice[e] = bias ? v + bias[e] : v;
		s.taken[e] = 0;
	}
	__syncwarp();
	if (R::GROUPS > 1 && (int)R::KEEP < (int)R::GROUPS) {
		for (int g = lane; g < R::GROUPS; g += 32) {
			float best = -__uint_as_float(0x7f800000u), second = best;
			for (int e = g * SIZE; e < (g + 1) * SIZE; e++) {
				const float v = s.choice[e];
				if (v > best) {
					second = best;
					best = v;
				} else if (v > second) {
					second = v;
				}
			}
			s.group[g] = R::GROUP == ROUTE_top2 && SIZE > 1 ? best + second : best;
		}
		__syncwarp();
		/* a group is kept if fewer than KEEP groups precede it */
		for (int g = lane; g < R::GROUPS; g += 32) {
			int before = 0;
			for (int o = 0; o < R::GROUPS; o++)
				before +=
				    s.group[o] > s.group[g] || (s.group[o] == s.group[g] && o < g);
			if (before >= R::KEEP)
				for (int e = g * SIZE; e < (g + 1) * SIZE; e++)
					s.choice[e] = -__uint_as_float(0x7f800000u);
		}
		__syncwarp();
	}
	for (int k = 0; k < K; k++) {
		const int e = route_take<R>(s, s.choice);
		if (lane == e % 32)
			s.taken[e] = 1;
		if (lane == 0)
			s.id[k] = e;
	}
	__syncwarp();
	float total = R::SUM_EPS;
	for (int k = 0; k < K; k++)
		total += s.score[s.id[k]];
	for (int k = lane; k < K; k += 32) {
		const float v = s.score[s.id[k]];
		id[k] = s.id[k];
		weight[k] = (R::RENORM ? v / total : v) * scale;
	}
	if (R::SHARED_GATE && lane == 0)
		weight[K] = act_sigmoid(x[E]);
	__syncwarp();
}

/* Routes rows of logits [n, E + SHARED_GATE], by all warps of the grid, or of this CTA (ALONE).
 * storage: one per warp of the CTA */
template <class R, bool ALONE> DEV void
route_rows(route_storage<R> *storage, const float *logits, const float *bias, float scale, int *id,
           float *weight, int n)
{
	const int warps = (int)blockDim.x / 32,
	          first = (ALONE ? 0 : (int)blockIdx.x * warps) + (int)warp_id(),
	          step = ALONE ? warps : (int)gridDim.x * warps;

	for (int t = first; t < n; t += step)
		route_row<R>(storage[warp_id()], logits + (long long)t * (R::E + R::SHARED_GATE),
		             bias, scale, id + (long long)t * R::K,
		             weight + (long long)t * (R::K + R::SHARED_GATE));
}

/* Returns whether this CTA is the last of `all` to arrive; if so, writes of the other CTAs are
 * visible to it. count: initially 0, and reset to 0 */
DEV bool
route_last(int *count, int all)
{
	struct Shared {
		int last;
	};
	SHARED(Shared, s);

	__syncthreads();
	if (threadIdx.x == 0) {
		s.last = atom_add_acq_rel_gpu(count, 1) == all - 1;
		if (s.last)
			st_relaxed_gpu(count, 0);
	}
	__syncthreads();
	return s.last != 0;
}

template <class R> struct route_shared_storage {
	route_storage<R> of[8];
};

/* The last CTA of the grid to arrive selects experts for all rows. It reuses dynamic shared memory
 * for route_shared_storage<R>. */
template <class R> DEV void
route_by_last(int *count, const float *logits, const float *bias, float scale, int *id,
              float *weight, int n)
{
	typedef route_shared_storage<R> storage;

	if (!route_last(count, (int)(gridDim.x * gridDim.y)))
		return;
	SHARED_STORAGE(storage, s);
	route_rows<R, true>(s.of, logits, bias, scale, id, weight, n);
}

#endif

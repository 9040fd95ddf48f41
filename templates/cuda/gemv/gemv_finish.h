/* Results of a GEMV whose sums are spread over CTAs. The last CTA to arrive adds the partial sums
 * and stores the results, per range of groups or per unit of the epilogue. */
#ifndef LLMC_CUDA_GEMV_GEMV_FINISH_H
#define LLMC_CUDA_GEMV_GEMV_FINISH_H

#include "cuda/gemv/gemv_smem.h"

/* A CTA's share of a launch: groups [g0, g1), and the columns of one of `splits` splits */
struct gemv_range {
	int splits, range, split, g0, g1;
};

/* Reciprocal root of the mean square, from the sum of squares */
template <class G> DEV float
gemv_root(float squares, float eps)
{
	return G::NORM::NORMED && !G::NORM::MEAN ? 1.0f / sqrtf(squares / G::COLS + eps) : 1.0f;
}

template <class G> DEV float
gemv_squares(const typename G::shared_storage &sm, int b)
{
	float s = 0;

	for (int i = 0; G::NORM::NORMED && !G::NORM::MEAN && i < G::KWARPS; i++)
		s += sm.squares[i][b];
	return s;
}

/* Returns the sum of `splits` values that are `stride` apart. All loads are issued first; then the
 * values are added in order. */
template <class G> DEV float
gemv_partial(const float *from, int splits, long long stride)
{
	float v[G::MAX_SPLITS], sum = 0;

#pragma unroll
	for (int s = 0; s < G::MAX_SPLITS; s++)
		v[s] = s < splits ? from[s * stride] : 0;
#pragma unroll
	for (int s = 0; s < G::MAX_SPLITS; s++)
		sum += v[s];
	return sum;
}

/* Scratch. part [8 * MAX_SPLITS, GROUPS * 8]: partial sums of splits; all [n_tok, GROUPS * 8]: sums
 * of rows, if UNIT > 0; squares [blocks, 8]; count: initially 0, one per range or one per unit and
 * turn. */
struct gemv_scratch {
	float *part, *all, *squares;
	int *count;
};

/* Counts this CTA's contribution to `units` units from `first` on (UNIT 0: to its range of groups
 * [g0, g1)), and sets sm.done for those that are now complete. Returns whether any is. */
template <class G, class E> DEV bool
gemv_arrive(typename G::shared_storage &sm, const gemv_scratch &to, int splits, int first,
            int units, int g0, int g1, int turn)
{
	enum { UNIT = E::UNIT > 0 ? E::UNIT : 1 };
	bool any = false;

	for (int i = (int)threadIdx.x; i < units; i += GEMV_THREADS) {
		int *c = to.count + turn * (E::GROUPS / UNIT) * (E::UNIT > 0) + first + i;
		const int add =
		    E::UNIT > 0 ? min(g1, (first + i + 1) * UNIT) - max(g0, (first + i) * UNIT) : 1;
		const int full = E::UNIT > 0 ? UNIT * splits : splits;
		const bool last = atom_add_acq_rel_gpu(c, add) == full - add;
		if (last)
			st_relaxed_gpu(c, 0);
		sm.done[i] = last;
	}
	__syncthreads();
	for (int i = 0; i < units; i++)
		any = any || sm.done[i];
	return any;
}

/* UNIT > 0: finishes one unit of rows [t0, min(t0 + R, n)). raw: shared memory for the unit's
 * results */
template <class G, class E> DEV void
gemv_finish_unit(typename G::shared_storage &sm, const E &e, const gemv_scratch &to, int splits,
                 int unit, int R, int t0, int n, float *raw)
{
	enum { RESULTS = E::GROUPS * 8, UNIT = E::UNIT };
	const int base = unit * UNIT * 8;

	for (int k = (int)threadIdx.x; k < R * UNIT * 8; k += GEMV_THREADS) {
		const int b = k / (UNIT * 8), at = base + k % (UNIT * 8);
		if (t0 + b >= n)
			break;
		const float v = splits > 1 ? gemv_partial<G>(to.part + (long long)b * RESULTS + at,
		                                             splits, (long long)8 * RESULTS)
		                           : to.all[(long long)(t0 + b) * RESULTS + at];
		raw[k] = e.raw(at, v * sm.stat[b][1]);
	}
	__syncthreads();
	for (int b = warp_id(); b < R && t0 + b < n; b += GEMV_WARPS)
		e.finish(t0 + b, unit, raw + b * UNIT * 8);
	__syncthreads();
}

/* UNIT 0: adds the splits' partial sums of groups [g0, g1) and stores the results. */
template <class G, class E> DEV void
gemv_finish_range(const typename G::shared_storage &sm, const E &e, const gemv_scratch &to,
                  int splits, int g0, int g1, int log_r, int t0, int n)
{
	enum { RESULTS = E::GROUPS * 8 };
	const int R = 1 << log_r;
	const long long stride = (long long)8 * RESULTS;

#pragma unroll 1
	for (int k = (int)threadIdx.x; k < (g1 - g0) * R * 4; k += GEMV_THREADS) {
		const int j = k & 3, b = (k >> 2) & (R - 1), group = g0 + (k >> (2 + log_r));
		if (t0 + b >= n)
			continue;
		const float4 early = e.prefetch(group, j, t0 + b);
		const float *from = to.part + (long long)b * RESULTS + group * 8 + j;
		const float v = gemv_partial<G>(from, splits, stride),
		            u = gemv_partial<G>(from + 4, splits, stride);
		e.store(group, j, t0 + b, v * sm.stat[b][1], u * sm.stat[b][1], early, sm.slot[b]);
	}
}

/* Finishes the results to which this CTA is the last to contribute, for the turn of rows at t0:
 * each unit, or the CTA's range of groups. g1: end of the CTA's groups. The caller no longer needs
 * the shared memory of the warps. */
template <class G, class E> DEV void
gemv_finish(typename G::shared_storage &sm, const norm_vectors &norm, const E &e,
            const gemv_scratch &to, int splits, int g1, int log_r, int t0)
{
	enum { UNIT = E::UNIT > 0 ? E::UNIT : 1 };
	float *raw = (float *)sm.warp; /* memory of x, which is no longer needed */
	const int tid = (int)threadIdx.x, R = 1 << log_r;
	const int range = sm.range, split = sm.split, g0 = sm.g0, n = sm.n;
	const int first = E::UNIT > 0 ? g0 / UNIT : range,
	          units = E::UNIT > 0 ? (g1 - 1) / UNIT + 1 - first : 1;

	if (tid < R && t0 + tid < n)
		to.squares[(range * splits + split) * 8 + tid] = gemv_squares<G>(sm, tid);
	__syncthreads();
	if (!gemv_arrive<G, E>(sm, to, splits, first, units, g0, g1, t0 >> log_r))
		return;
	if (tid < R && t0 + tid < n)
		sm.stat[tid][1] = gemv_root<G>(
		    gemv_partial<G>(to.squares + range * splits * 8 + tid, splits, 8), norm.eps);
	__syncthreads();
	for (int i = 0; i < units; i++) {
		if (!sm.done[i])
			continue;
		if constexpr (E::UNIT > 0)
			gemv_finish_unit<G, E>(sm, e, to, splits, first + i, R, t0, n, raw);
		else
			gemv_finish_range<G, E>(sm, e, to, splits, g0, g1, log_r, t0, n);
	}
}

#endif

/* Experts of a decode step, in two launches: bytes of the chosen experts, each once for 2 or 4 rows that chose it.
 *
 * A pair is a row and one of its experts. moe_up: the rows of gate and up of all chosen experts in one list, which is cut into a run for
 * each warp; h = weight * act(gate x) * (up x) of each pair. moe_down: an element of y a warp; its experts' rows of down, in the order of
 * their numbers, are one long row, and their h one long x. Warps work alone: no barrier, and loads of 128 bytes a lane in flight.
 *
 *   moe_up, a warp:  list of chosen experts' rows --> for each of its rows: 128 bytes a lane of gate and up prefetched to registers,
 *                    decoded, times x of 1, 2 or 4 pairs (from L1), sums over the warp --> act, h
 *   moe_down, a warp: for each of its elements of y: units of the experts' rows of down, likewise, times h --> y
 *
 * Bytes: gate, up and down of the chosen experts; x and h lie in L1 and L2. A unit of 32 weights costs its decoding once and for each pair 8 loads
 * and 32 FMA. */
#ifndef LLMC_CUDA_MOE_DECODE_H
#define LLMC_CUDA_MOE_DECODE_H

#include "common/cuda_moe.h"

enum { MOE_WARPS = 8 };

/* n rows of x [n, H], id and weight [n, K]; matrices of all experts, stacked; h [n, K, F]; y [n, H] */
template <class M> struct moe_operands {
	int                       n;
	const float              *x;
	const int                *id;
	const float              *weight;
	w_matrix<typename M::GATE> gate;
	w_matrix<typename M::UP>   up;
	w_matrix<typename M::DOWN> down;
	float                    *h, *y;
};

template <int E> struct moe_shared { int count[E], used[E], n_used; };

/* Row r of expert e for T pairs: `mine` of lane at + t is the pair. h of pairs [at, to) is written. */
template <class M, int T> DEV void
moe_up_row(const moe_operands<M> &in, int e, int r, int mine, int at, int to)
{
	typedef typename M::GATE GATE;
	typedef typename M::UP UP;
	const unsigned char *gate = in.gate.row((long long)e * M::F + r), *up = in.up.row((long long)e * M::F + r);
	const float *x[T];
	float sum[2][T] = {};
	int pair[T];

#pragma unroll
	for (int t = 0; t < T; t++) {
		pair[t] = __shfl_sync(~0u, mine, min(at + t, to - 1));
		x[t] = in.x + (long long)(pair[t] / M::K) * M::H;
	}
	if constexpr (same_type<GATE, UP>::value) {
		const unsigned char *const w[2] = { gate, up };
		moe_rows<GATE, 2, T>(w, x, sum);
	} else {
		const unsigned char *const g[1] = { gate }, *const u[1] = { up };
		float a[1][T] = {}, b[1][T] = {};
		moe_rows<GATE, 1, T>(g, x, a);
		moe_rows<UP, 1, T>(u, x, b);
#pragma unroll
		for (int t = 0; t < T; t++) {
			sum[0][t] = a[0][t];
			sum[1][t] = b[0][t];
		}
	}
#pragma unroll
	for (int t = 0; t < T; t++) {
		float g = warp_sum(sum[0][t]) * in.gate.scale, u = warp_sum(sum[1][t]) * in.up.scale;
		if ((int)lane_id() == t && at + t < to)
			in.h[(long long)pair[t] * M::F + r] = in.weight[pair[t]] * M::act(g) * u;
	}
}

template <class M> DEV void
moe_up_pairs(const moe_operands<M> &in, int e, int r, int mine, int n)
{
	for (int at = 0; at < n; at += M::PAIRS)
		if (n - at == 1)
			moe_up_row<M, 1>(in, e, r, mine, at, n);
		else
			moe_up_row<M, M::PAIRS>(in, e, r, mine, at, min(n, at + (int)M::PAIRS));
}

/* The i-th bit that is set, from 0 */
DEV int
moe_bit(unsigned mask, int i)
{
	while (i-- > 0)
		mask &= mask - 1;
	return __ffs((int)mask) - 1;
}

/* Up to 32 pairs of expert e, one a lane, from pair `from` on, which moves behind them; their number */
DEV int
moe_gather(const int *id, int pairs, int e, int &from, int &mine)
{
	int have = 0;

	for (; from < pairs; from += 32) {
		unsigned votes = __ballot_sync(~0u, from + (int)lane_id() < pairs && id[from + lane_id()] == e);
		if (have + __popc(votes) > 32)
			break;
		for (; votes; votes &= votes - 1, have++)
			if ((int)lane_id() == have)
				mine = from + __ffs((int)votes) - 1;
	}
	return have;
}

/* The experts that somebody chose, in order, to s.used */
template <int E> DEV void
moe_used(const int *id, int pairs, moe_shared<E> &s)
{
	const int lane = lane_id();

	for (int e = threadIdx.x; e < E; e += blockDim.x)
		s.count[e] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < pairs; i += blockDim.x)
		atomicAdd(&s.count[id[i]], 1);
	__syncthreads();
	if (threadIdx.x < 32) {
		int n = 0;
		for (int e0 = 0; e0 < E; e0 += 32) {
			bool used = e0 + lane < E && s.count[e0 + lane] > 0;
			unsigned votes = __ballot_sync(~0u, used);
			if (used)
				s.used[n + __popc(votes & ((1u << lane) - 1))] = e0 + lane;
			n += __popc(votes);
		}
		if (lane == 0)
			s.n_used = n;
	}
	__syncthreads();
}

template <class M> DEV void
moe_up(const moe_operands<M> &in)
{
	typedef moe_shared<M::E> shared;
	SHARED(shared, s);

	const int lane = lane_id(), pairs = in.n * M::K, *id = in.id;
	const long long warp = (long long)blockIdx.x * MOE_WARPS + warp_id(), warps = (long long)gridDim.x * MOE_WARPS;
	const bool few = pairs <= 32; /* then the lanes are the pairs, and the first of those that share an expert stands for it */
	int own = -1 - lane, n = 0;
	unsigned same = 0, first = 0;

	if (few) {
		own = lane < pairs ? id[lane] : own;
		same = __match_any_sync(~0u, own);
		first = __ballot_sync(~0u, lane < pairs && __ffs((int)same) - 1 == lane);
		n = __popc(first);
	} else {
		moe_used(id, pairs, s);
		n = s.n_used;
	}
	const long long total = (long long)n * M::F;
	int at = -1, e = 0, have = 0, mine = 0, from = 0;
	for (long long i = total * warp / warps; i < total * (warp + 1) / warps; i++) {
		if (i / M::F != at) { /* another expert */
			at = (int)(i / M::F);
			if (few) {
				const int leader = moe_bit(first, at);
				const unsigned group = __shfl_sync(~0u, same, leader);
				e = __shfl_sync(~0u, own, leader);
				have = __popc(group);
				mine = moe_bit(group, min(lane, have - 1));
				from = pairs;
			} else {
				e = s.used[at];
				from = 0;
				have = moe_gather(id, pairs, e, from, mine);
			}
		}
		for (;;) {
			moe_up_pairs(in, e, (int)(i % M::F), mine, have);
			if (from >= pairs)
				break;
			have = moe_gather(id, pairs, e, from, mine);
			at = -1; /* the next row begins again */
		}
	}
}

template <class M> DEV void
moe_down(const moe_operands<M> &in)
{
	typedef typename M::DOWN W;
	enum { K = M::K, UNITS = K * W::UNITS, N = moe_depth<W>::value };

	const int lane = lane_id(), n = in.n;
	const long long warp = (long long)blockIdx.x * MOE_WARPS + warp_id(), warps = (long long)gridDim.x * MOE_WARPS, total = (long long)n * M::H;
	int at = -1, expert = 0, pair = 0;

	for (long long i = total * warp / warps; i < total * (warp + 1) / warps; i++) {
		const int t = (int)(i % n), o = (int)(i / n);
		if (t != at) { /* lane k gets the expert with k lower ones */
			const int e = lane < K ? in.id[(long long)t * K + lane] : 0;
			int before = 0, from = 0;
			for (int k = 0; k < K; k++) {
				int other = __shfl_sync(~0u, e, k);
				before += other < e || (other == e && k < lane);
			}
			for (int k = 0; k < K; k++)
				if (__shfl_sync(~0u, before, k) == lane)
					from = k;
			expert = __shfl_sync(~0u, e, from);
			pair = t * K + from;
			at = t;
		}
		float sum[1] = {};
		for (int u0 = 0; u0 < UNITS; u0 += 32 * N) {
			typename W::raw raw[N];
			int place[N];
#pragma unroll
			for (int k = 0; k < N; k++) {
				const int u = min(u0 + 32 * k + lane, UNITS - 1);
				const long long e = __shfl_sync(~0u, expert, u / W::UNITS);
				place[k] = __shfl_sync(~0u, pair, u / W::UNITS);
				if (UNITS % (32 * N) == 0 || u0 + 32 * k + lane < UNITS)
					raw[k] = W::load(in.down.row(e * M::H + o), u % W::UNITS);
			}
#pragma unroll
			for (int k = 0; k < N; k++)
				if (UNITS % (32 * N) == 0 || u0 + 32 * k + lane < UNITS) {
					const float *const x[1] = { in.h + (long long)place[k] * M::F };
					float v[W::UNIT];
					W::decode(raw[k], (u0 + 32 * k + lane) % W::UNITS, v);
					moe_unit<W, 1>(v, x, (u0 + 32 * k + lane) % W::UNITS, sum);
				}
		}
		float y = warp_sum(sum[0]) * in.down.scale;
		if (lane == 0)
			in.y[(long long)t * M::H + o] = y;
	}
}

#endif

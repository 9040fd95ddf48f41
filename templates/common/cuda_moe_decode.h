/* Experts of a decode step, in two launches: bytes of the chosen experts, each once for 2 or 4 rows that chose it.
 *
 * A pair is a row and one of its experts. moe_up: the rows of gate and up of all chosen experts in one list, which is cut into a run for
 * each warp; h = weight * act(gate x) * (up x) of each pair. moe_down: an element of y a warp; its experts' rows of down, in the order of
 * their numbers, are one long row, and their h one long x. Warps work alone: no barrier, and loads of 128 bytes a lane in flight.
 *
 * Before inclusion: MOE_E, MOE_K (experts, chosen), MOE_H, MOE_F (hidden, width), MOE_GATE, MOE_UP, MOE_DOWN (types, as in w_TYPE),
 * MOE_ACT(v). Arguments are those of moe_ffn, then h. */
#ifndef LLMC_CUDA_MOE_DECODE_H
#define LLMC_CUDA_MOE_DECODE_H

#include "common/cuda_moe.h"

#define MOE_TYPE_(name) w_##name
#define MOE_TYPE(name) MOE_TYPE_(name)
typedef MOE_TYPE(MOE_GATE)<MOE_H> moe_gate;
typedef MOE_TYPE(MOE_UP)<MOE_H> moe_upper;
typedef MOE_TYPE(MOE_DOWN)<MOE_F> moe_downer;

enum { MOE_WARPS = 8, MOE_UP_BLOCKS = moe_gate::UNIT > 8 || moe_upper::UNIT > 8 ? 1 : 2 /* a multiprocessor: by registers */ };

struct moe_shared { int count[MOE_E], used[MOE_E], n_used; };

/* Row r of expert e for T pairs: `mine` of lane at + t is the pair. h of pairs [at, to) is written. */
template <int T> DEV void
moe_up_row(const llmc_call &p, int e, int r, int mine, int at, int to)
{
	const unsigned char *gate = (const unsigned char *)p.a[3] + ((long long)e * MOE_F + r) * moe_gate::ROW;
	const unsigned char *up = (const unsigned char *)p.a[4] + ((long long)e * MOE_F + r) * moe_upper::ROW;
	const float *x[T];
	float sum[2][T] = {};
	int pair[T];

#pragma unroll
	for (int t = 0; t < T; t++) {
		pair[t] = __shfl_sync(~0u, mine, min(at + t, to - 1));
		x[t] = (const float *)p.a[0] + (long long)(pair[t] / MOE_K) * MOE_H;
	}
	if constexpr (same_type<moe_gate, moe_upper>::value) {
		const unsigned char *const w[2] = { gate, up };
		moe_rows<moe_gate, 2, T>(w, x, sum);
	} else {
		const unsigned char *const g[1] = { gate }, *const u[1] = { up };
		float a[1][T] = {}, b[1][T] = {};
		moe_rows<moe_gate, 1, T>(g, x, a);
		moe_rows<moe_upper, 1, T>(u, x, b);
#pragma unroll
		for (int t = 0; t < T; t++) {
			sum[0][t] = a[0][t];
			sum[1][t] = b[0][t];
		}
	}
#pragma unroll
	for (int t = 0; t < T; t++) {
		float g = warp_sum(sum[0][t]), u = warp_sum(sum[1][t]);
		if ((int)lane_id() == t && at + t < to)
			((float *)p.a[7])[(long long)pair[t] * MOE_F + r] = ((const float *)p.a[2])[pair[t]] * MOE_ACT(g) * u;
	}
}

DEV void
moe_up_pairs(const llmc_call &p, int e, int r, int mine, int n)
{
	enum { T = (int)moe_gate::UNIT > 8 || (int)moe_upper::UNIT > 8 ? 2 : 4 }; /* what registers hold */

	for (int at = 0; at < n; at += T)
		if (n - at == 1)
			moe_up_row<1>(p, e, r, mine, at, n);
		else
			moe_up_row<T>(p, e, r, mine, at, min(n, at + T));
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
DEV void
moe_used(const int *id, int pairs, moe_shared &s)
{
	const int lane = lane_id();

	for (int e = threadIdx.x; e < MOE_E; e += blockDim.x)
		s.count[e] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < pairs; i += blockDim.x)
		atomicAdd(&s.count[id[i]], 1);
	__syncthreads();
	if (threadIdx.x < 32) {
		int n = 0;
		for (int e0 = 0; e0 < MOE_E; e0 += 32) {
			bool used = e0 + lane < MOE_E && s.count[e0 + lane] > 0;
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

DEV void
moe_up(const llmc_call &p)
{
	SHARED(moe_shared, s);

	PDL_LAUNCH();
	PDL_WAIT();
	const int lane = lane_id(), pairs = N_TOK(p) * MOE_K, *id = (const int *)p.a[1];
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
	const long long total = (long long)n * MOE_F;
	int at = -1, e = 0, have = 0, mine = 0, from = 0;
	for (long long i = total * warp / warps; i < total * (warp + 1) / warps; i++) {
		if (i / MOE_F != at) { /* another expert */
			at = (int)(i / MOE_F);
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
			moe_up_pairs(p, e, (int)(i % MOE_F), mine, have);
			if (from >= pairs)
				break;
			have = moe_gather(id, pairs, e, from, mine);
			at = -1; /* the next row begins again */
		}
	}
}

DEV void
moe_down(const llmc_call &p)
{
	typedef moe_downer W;
	enum { UNITS = MOE_K * W::UNITS, N = moe_depth<W>::value };

	PDL_LAUNCH();
	PDL_WAIT();
	const int lane = lane_id(), n = N_TOK(p);
	const long long warp = (long long)blockIdx.x * MOE_WARPS + warp_id(), warps = (long long)gridDim.x * MOE_WARPS, total = (long long)n * MOE_H;
	int at = -1, expert = 0, pair = 0;

	for (long long i = total * warp / warps; i < total * (warp + 1) / warps; i++) {
		const int t = (int)(i % n), o = (int)(i / n);
		if (t != at) { /* lane k gets the expert with k lower ones */
			const int e = lane < MOE_K ? ((const int *)p.a[1])[(long long)t * MOE_K + lane] : 0;
			int before = 0, from = 0;
			for (int k = 0; k < MOE_K; k++) {
				int other = __shfl_sync(~0u, e, k);
				before += other < e || (other == e && k < lane);
			}
			for (int k = 0; k < MOE_K; k++)
				if (__shfl_sync(~0u, before, k) == lane)
					from = k;
			expert = __shfl_sync(~0u, e, from);
			pair = t * MOE_K + from;
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
					raw[k] = W::load((const unsigned char *)p.a[5] + (e * MOE_H + o) * W::ROW, u % W::UNITS);
			}
#pragma unroll
			for (int k = 0; k < N; k++)
				if (UNITS % (32 * N) == 0 || u0 + 32 * k + lane < UNITS) {
					const float *const x[1] = { (const float *)p.a[7] + (long long)place[k] * MOE_F };
					float v[W::UNIT];
					W::decode(raw[k], v);
					moe_unit<W, 1>(v, x, (u0 + 32 * k + lane) % W::UNITS, sum);
				}
		}
		float y = warp_sum(sum[0]);
		if (lane == 0)
			((float *)p.a[6])[(long long)t * MOE_H + o] = y;
	}
}

#endif

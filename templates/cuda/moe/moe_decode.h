/* Experts of a decode step, in two launches. Weights of the selected experts are read once for 2 or
 * 4 rows that selected them.
 *
 * A pair is a row and one of its experts. moe_up computes h = act(gate x) * (up x) of each pair,
 * with normed rows of x in shared memory. The rows of gate and up of all selected experts form one
 * list, which is cut into one run per warp; the shared expert's rows follow. moe_down computes one
 * element of y per warp. For that element, the rows of down of the selected experts, in the order
 * of expert numbers, form one long row, scaled by the experts' weights; the shared expert's row
 * follows. Warps are independent, and each lane has loads of 128 bytes in flight.
 *
 *   moe_up, a CTA:    rows of x --norm--> shared, barrier
 *           a warp:   list of the selected experts' rows --> per row: 128 bytes per lane of gate
 *                     and up prefetched to registers, decoded, times x of 1, 2 or 4 pairs,
 *                     warp sums --> act, h
 *   moe_down, a warp: per element of y: units of the experts' rows of down, likewise, times h --> y
 *
 * Bytes: gate, up and down of the selected experts and of the shared one; h stays in L1 and L2. A
 * unit of 32 weights is decoded once, and then takes 8 loads and 32 FMA per pair. If there are more
 * rows than shared memory holds (C::ROWS), they are processed in turns. */
#ifndef LLMC_CUDA_MOE_MOE_DECODE_H
#define LLMC_CUDA_MOE_MOE_DECODE_H

#include "cuda/lora/lora.h"
#include "cuda/moe/moe.h"
#include "cuda/norm/norm.h"

/* Configuration of moe_up: E experts with F rows of gate and up each, K selected per row, and a
 * shared expert with S rows (0: none). ROWS rows of x fit in shared memory. */
template <class GATE_, class UP_, class S_GATE_, class S_UP_, class NORM_, int E_, int K_, int F_,
          int S_, int ROWS_, float (*GLU_)(float, float),
          class ADD_ = moe_added_none> struct moe_up_config {
	typedef GATE_ GATE;
	typedef UP_ UP;
	typedef S_GATE_ S_GATE;
	typedef S_UP_ S_UP;
	typedef NORM_ NORM;
	typedef ADD_ ADD; /* terms that adapters add, per pair; S is 0 with adapters */
	enum {
		E = E_,
		K = K_,
		H = GATE::COLS,
		F = F_,
		S = S_,
		ROWS = ROWS_,       /* rows of x at a time */
		STRIDE = K * F + S, /* stride of rows of h */
		WIDE = (int)GATE::UNIT > 8 || (int)UP::UNIT > 8 ||
		       (S > 0 &&
		        ((int)S_GATE::UNIT > 8 || (int)S_UP::UNIT > 8)), /* registers are scarce */
		THREADS = 512,
		PAIRS = ROWS == 1 ? 1
		        : WIDE    ? 2
		                  : 4 /* number of pairs that moe_up handles at a time */
	};
	DEV float
	glu(float g, float u)
	{
		return GLU_(g, u);
	}
};

/* Operands of moe_up: n rows of x [n, H]; id [n, K]; stacked matrices and biases (or NULL) of all
 * experts, and matrices of the shared one; h [n, K * F + S] */
template <class C> struct moe_up_operands {
	int n;
	const float *x;
	norm_vectors norm;
	const int *id;
	w_matrix<typename C::GATE> gate;
	w_matrix<typename C::UP> up;
	w_matrix<typename C::S_GATE> s_gate;
	w_matrix<typename C::S_UP> s_up;
	float *h;
	const float *gate_b, *up_b;
	typename C::ADD add;
};

template <class C> struct alignas(16) moe_up_shared_storage {
	float x[C::ROWS][(C::H + 3) / 4 * 4]; /* rows of x after the norm */
	int count[C::E], used[C::E], n_used;
};

/* Multiplies one row of gate and one of up, with biases gb and ub, by T rows of x. Lane at + t
 * holds the offset in x (mine), the pair, and the offset in h (to). Results of lanes [at, stop) are
 * written. */
template <class C, int T, class G, class U> DEV void
moe_up_row(const unsigned char *gate, const unsigned char *up, const float *x, float *h, int mine,
           int pair, int to, int at, int stop, float g_scale, float u_scale, float gb, float ub,
           const typename C::ADD &add, int r)
{
	const float *xs[T];
	float sum[2][T] = {};

#pragma unroll
	for (int t = 0; t < T; t++)
		xs[t] = x + __shfl_sync(~0u, mine, min(at + t, stop - 1));
	if constexpr (same_type<G, U>::value) {
		const unsigned char *const w[2] = { gate, up };
		moe_rows<G, 2, T>(w, xs, sum);
	} else {
		const unsigned char *const g[1] = { gate }, *const u[1] = { up };
		float a[1][T] = {}, b[1][T] = {};
		moe_rows<G, 1, T>(g, xs, a);
		moe_rows<U, 1, T>(u, xs, b);
#pragma unroll
		for (int t = 0; t < T; t++) {
			sum[0][t] = a[0][t];
			sum[1][t] = b[0][t];
		}
	}
#pragma unroll
	for (int t = 0; t < T; t++) {
		float g = warp_sum(sum[0][t]) * g_scale + gb,
		      u = warp_sum(sum[1][t]) * u_scale + ub;
		if ((int)lane_id() == at + t && at + t < stop) {
			add.to(pair, r, g, u);
			h[to] = C::glu(g, u);
		}
	}
}

template <class C, class G, class U> DEV void
moe_up_pairs(const w_matrix<G> &gate, const w_matrix<U> &up, long long row, const float *x,
             float *h, int mine, int pair, int to, int n, const float *gate_b, const float *up_b,
             const typename C::ADD &add, int r)
{
	const float gb = gate_b ? gate_b[row] : 0, ub = up_b ? up_b[row] : 0;

	for (int at = 0; at < n; at += C::PAIRS)
		if (n - at == 1)
			moe_up_row<C, 1, G, U>(gate.row(row), up.row(row), x, h, mine, pair, to, at,
			                       n, gate.scale, up.scale, gb, ub, add, r);
		else
			moe_up_row<C, C::PAIRS, G, U>(gate.row(row), up.row(row), x, h, mine, pair,
			                              to, at, min(n, at + (int)C::PAIRS),
			                              gate.scale, up.scale, gb, ub, add, r);
}

/* Returns the position of the i-th set bit, counted from 0. */
DEV int
moe_bit(unsigned mask, int i)
{
	while (i-- > 0)
		mask &= mask - 1;
	return __ffs((int)mask) - 1;
}

/* Collects up to 32 pairs of expert e, from pair `from` on, one per lane (mine), and advances
 * `from` past them. Returns their number. */
DEV int
moe_gather(const int *id, int pairs, int e, int &from, int &mine)
{
	int have = 0;

	for (; from < pairs; from += 32) {
		unsigned votes =
		    __ballot_sync(~0u, from + (int)lane_id() < pairs && id[from + lane_id()] == e);
		if (have + __popc(votes) > 32)
			break;
		for (; votes; votes &= votes - 1, have++)
			if ((int)lane_id() == have)
				mine = from + __ffs((int)votes) - 1;
	}
	return have;
}

/* Lists in s.used, in order, the experts that any row selected. */
template <class C> DEV void
moe_used(const int *id, int pairs, moe_up_shared_storage<C> &s)
{
	const int lane = lane_id();

	for (int e = threadIdx.x; e < C::E; e += blockDim.x)
		s.count[e] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < pairs; i += blockDim.x)
		if (id[i] >= 0) /* otherwise another rank has the expert */
			atomicAdd(&s.count[id[i]], 1);
	__syncthreads();
	if (threadIdx.x < 32) {
		int n = 0;
		for (int e0 = 0; e0 < C::E; e0 += 32) {
			bool used = e0 + lane < C::E && s.count[e0 + lane] > 0;
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

/* Norms rows x [n <= ROWS] into shared memory, one row per warp. */
template <class C> DEV void
moe_norm(moe_up_shared_storage<C> &s, const moe_up_operands<C> &in, const float *x, int n)
{
	for (int t = warp_id(); t < n; t += C::THREADS / 32) {
		const float *row = x + (long long)t * C::H;
		float mean, scale;
		C::NORM::stats(row, C::H, in.norm.eps, mean, scale);
		for (int i = lane_id(); i < C::H; i += 32)
			s.x[t][i] = C::NORM::apply(row[i], mean, scale, in.norm.w, in.norm.b, i,
			                           in.norm.plus_one);
	}
	__syncthreads();
}

/* Multiplies n rows of x by gate and up of the experts that these rows selected. h: results of the
 * first row */
template <class C> DEV void
moe_up_chosen(moe_up_shared_storage<C> &s, const moe_up_operands<C> &in, const int *id, float *h,
              const typename C::ADD &add, int n)
{
	enum { XS = sizeof s.x[0] / 4 };
	const int lane = lane_id(), pairs = n * C::K;
	const long long warp = (long long)blockIdx.x * (C::THREADS / 32) + warp_id(),
	                warps = (long long)gridDim.x * (C::THREADS / 32);
	/* there is one pair per lane; for each expert, the first lane that has it does the work */
	const bool one_warp = C::ROWS * C::K <= 32 || pairs <= 32;
	int own = -1 - lane, used = 0;
	unsigned same = 0, first = 0;

	if (one_warp) {
		own = lane < pairs ? id[lane] : own;
		same = __match_any_sync(~0u, own);
		/* own < 0: no pair, or an expert of another rank */
		first = __ballot_sync(~0u, own >= 0 && __ffs((int)same) - 1 == lane);
		used = __popc(first);
	} else {
		moe_used<C>(id, pairs, s);
		used = s.n_used;
	}
	const long long total = (long long)used * C::F;
	int at = -1, e = 0, have = 0, mine = 0, from = 0;
	for (long long i = total * warp / warps; i < total * (warp + 1) / warps; i++) {
		const int r = (int)(i % C::F);
		if (i / C::F != at) { /* the run goes on with another expert */
			at = (int)(i / C::F);
			if (one_warp) {
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
			const int t = mine / C::K;
			moe_up_pairs<C>(in.gate, in.up, (long long)e * C::F + r, s.x[0], h, t * XS,
			                mine, t * C::STRIDE + (mine - t * C::K) * C::F + r, have,
			                in.gate_b, in.up_b, add, r);
			if (from >= pairs)
				break;
			have = moe_gather(id, pairs, e, from, mine);
			at = -1; /* the next row starts over */
		}
	}
}

template <class C> DEV void
moe_up(const moe_up_operands<C> &in)
{
	typedef moe_up_shared_storage<C> shared_storage;
	SHARED_STORAGE(shared_storage, s);
	enum { XS = sizeof s.x[0] / 4 };
	const long long warp = (long long)blockIdx.x * (C::THREADS / 32) + warp_id(),
	                warps = (long long)gridDim.x * (C::THREADS / 32);

	for (int t0 = 0; t0 < in.n; t0 += C::ROWS) {
		const int n = min((int)C::ROWS, in.n - t0);
		float *h = in.h + (long long)t0 * C::STRIDE;
		moe_norm<C>(s, in, in.x + (long long)t0 * C::H, n);
		moe_up_chosen<C>(s, in, in.id + t0 * C::K, h, in.add.from(t0), n);
		if constexpr (C::S > 0) {
			const int t = min((int)lane_id(), n - 1);
			for (int r = (int)(C::S * warp / warps);
			     r < (int)(C::S * (warp + 1) / warps); r++)
				moe_up_pairs<C>(in.s_gate, in.s_up, r, s.x[0], h, t * XS, 0,
				                t * C::STRIDE + C::K * C::F + r, n, 0, 0,
				                moe_added_none{}, r);
		}
		__syncthreads(); /* all warps have finished with s.x and s.used */
	}
}

/* Configuration of moe_down: matrices DOWN of E experts; K experts selected out of these and of
 * N_REMOTE_EXPERTS of other ranks; S_DOWN of a shared expert with S columns (0: none), whose output
 * has a weight of its own if SHARED_GATE. */
template <class DOWN_, class S_DOWN_, int H_, int E_, int N_REMOTE_EXPERTS_, int K_, int S_,
          int SHARED_GATE_> struct moe_down_config {
	typedef DOWN_ DOWN;
	typedef S_DOWN_ S_DOWN;
	enum {
		H = H_,
		E = E_,
		N_REMOTE_EXPERTS = N_REMOTE_EXPERTS_,
		K = K_,
		F = DOWN::COLS,
		S = S_,
		SHARED_GATE = SHARED_GATE_,
		STRIDE = K * F + S
	};
};

/* Operands of moe_down: h [n, K * F + S]; id [n, K]; weight [n, K + SHARED_GATE]; y [n, H] = scale
 * * r + the weighted sum. r may be NULL or alias y; down_b: biases of all experts, or NULL */
template <class C> struct moe_down_operands {
	int n;
	const float *h;
	const int *id;
	const float *weight;
	w_matrix<typename C::DOWN> down;
	w_matrix<typename C::S_DOWN> s_down;
	const float *r;
	float scale, *y;
	const float *down_b;
};

template <class C> DEV void
moe_down(const moe_down_operands<C> &in)
{
	typedef typename C::DOWN W;
	enum { K = C::K, UNITS = K * W::UNITS, N = moe_depth<W>::value };

	const int lane = lane_id(), n = in.n, block = (int)blockDim.x / 32;
	const long long warp = (long long)blockIdx.x * block + warp_id(),
	                warps = (long long)gridDim.x * block, total = (long long)n * C::H;
	int at = -1, expert = 0, choice = 0, units = UNITS;
	float weight = 0;

	const int stop = (int)(total * (warp + 1) / warps), first = (int)(total * warp / warps);
	if (first == stop)
		return;
	/* incremented in the loop, because a division there would need more registers */
	int t = first % n - 1, o = first / n;
	for (int i = first; i < stop; i++) {
		if (++t == n) {
			t = 0;
			o++;
		}
		const float *h = in.h + (long long)t * C::STRIDE;
		if (t !=
		    at) { /* lane k gets the k-th lowest expert; experts of other ranks come last */
			const int e = lane < K ? in.id[(long long)t * K + lane] : 0;
			int before = 0;
			choice = 0;
			for (int k = 0; k < K; k++) {
				int other = __shfl_sync(~0u, e, k);
				before += (unsigned)other < (unsigned)e || (other == e && k < lane);
			}
			for (int k = 0; k < K; k++)
				if (__shfl_sync(~0u, before, k) == lane)
					choice = k;
			expert = __shfl_sync(~0u, e, choice);
			weight = in.weight[(long long)t * (K + C::SHARED_GATE) + choice];
			if (C::N_REMOTE_EXPERTS)
				units = __popc(__ballot_sync(~0u, lane < K && e >= 0)) * W::UNITS;
			at = t;
		}
		const int all = C::N_REMOTE_EXPERTS ? units : (int)UNITS;
		float y = 0;
		for (int u0 = 0; u0 < all; u0 += 32 * N) {
			typename W::raw raw[N];
			/* past the end the last unit is repeated, because with a condition
			 * registers spilled on sm_120a */
#pragma unroll
			for (int k = 0; k < N; k++) {
				const int u = min(u0 + 32 * k + lane, all - 1);
				const long long e = __shfl_sync(~0u, expert, u / W::UNITS);
				raw[k] = W::load(in.down.row(e * C::H + o), u % W::UNITS);
			}
#pragma unroll
			for (int k = 0; k < N; k++) {
				const int u = min(u0 + 32 * k + lane, all - 1);
				const float *const x[1] = {
					h + __shfl_sync(~0u, choice, u / W::UNITS) * C::F
				};
				const float times = __shfl_sync(~0u, weight, u / W::UNITS);
				if ((UNITS % (32 * N) == 0 && !C::N_REMOTE_EXPERTS) ||
				    u0 + 32 * k + lane < all) {
					float v[W::UNIT], sum[1] = {};
					W::decode(raw[k], u % W::UNITS, v);
					moe_unit<W, 1>(v, x, u % W::UNITS, sum);
					y = fmaf(times, sum[0], y);
				}
			}
		}
		y = warp_sum(y) * in.down.scale;
		if (in.down_b) /* lane k has the k-th lowest expert */
			y += warp_sum(lane < K && expert >= 0
			                  ? weight * in.down_b[(long long)expert * C::H + o]
			                  : 0.0f);
		if constexpr (C::S > 0) {
			const unsigned char *const row[1] = { in.s_down.row(o) };
			const float *const x[1] = { h + K * C::F };
			float sum[1][1] = {};
			moe_rows<typename C::S_DOWN, 1, 1>(row, x, sum);
			const float z = warp_sum(sum[0][0]) * in.s_down.scale;
			y += C::SHARED_GATE ? in.weight[(long long)t * (K + C::SHARED_GATE) + K] * z
			                    : z;
		}
		if (lane == 0)
			in.y[(long long)t * C::H + o] =
			    in.r ? fmaf(in.scale, in.r[(long long)t * C::H + o], y) : y;
	}
}

#endif

/* y = a w^T for up to 64 rows of a: decode steps of at least 5 rows, and small mixed steps. As in
 * cuda/gemv/gemv.h, the bytes of W limit the speed. Operands are swapped (swap-AB): weight rows are
 * the M dimension of the mma, rows of a its N dimension. Weights go from the ring to registers in
 * the order of W::stream, without a tile in shared memory and without ldmatrix. 9 rows cost little
 * more than 8.
 *
 * A CTA has 8 warps, MW along rows of W times KW along columns (swap_ab_tile); a step is KW units
 * of MW * 32 rows:
 *
 *     weights   memory --cp.async--> stage --ld.shared--> fragment --scales, chunk--> A of the mma
 *                 each warp its own 32 rows and unit
 *     a         memory --cp.async--> stage --ld.shared.v4--> B of the mma
 *                 all threads copy, all warps of a unit read
 *     ring      STAGES steps; weights of the first ones are prefetched before the PDL wait, a later
 *     step      wait for its copies, barrier, issue loads of step + AHEAD, multiply
 *     tile      after its last step: the sums of the KW warps are added in order, in the stage that
 *                   was read last; epilogue
 *
 * On sm_90a, weights that must be unpacked are multiplied by wgmma (cuda/gemm/gemm_swap_ab_sm90.h),
 * which reads a from the stage once per 64 rows of W.
 *
 * Columns of a are stored in the order that a stage needs (swap_ab_act). For 16-bit weights, and
 * for formats in which a lane has eight neighbouring columns, this is plain row order.
 *
 * Split-K: the steps of all tiles form one sequence, and each CTA gets an equal share of the
 * sequence, regardless of tile boundaries. So no CTA waits for another, and the load of SMs differs
 * by at most one step. A tile is split among at most 12 CTAs. If there are few tiles, this limits
 * the grid. Each CTA with part of a tile writes its partial sums to scratch and increments a
 * counter. The last CTA to arrive adds all partial sums in the order of CTAs and runs the epilogue.
 * If warps share no rows of W (KW 1), each warp counts and adds for itself. Results therefore
 * depend on the number of SMs and on the tile (the 16, 32 or 64 rows that the launch was sized
 * for), not on the order in which CTAs end.
 *
 * swap_ab_run<G>(rows, in, count, e, to): `rows` is the number of rows that the launch was sized
 * for, which selects the tile before anything else is known. in.n is ignored; *count is read once
 * the previous kernels have ended. The epilogue is one of cuda/epilogue/epilogue.h: neighbouring
 * rows of W are neighbouring columns of y. A lane has four of them, or two of both halves (SHARE
 * 2).
 *
 * Computed figures: docs/kernels/gemm.md. */
#ifndef LLMC_CUDA_GEMM_GEMM_SWAP_AB_H
#define LLMC_CUDA_GEMM_GEMM_SWAP_AB_H

#include "cuda/epilogue/epilogue.h"
#include "cuda/gemm/gemm_tile.h"
#include "cuda/runtime/step.h"

enum { SWAP_AB_WARPS = 8, SWAP_AB_THREADS = SWAP_AB_WARPS * 32, SWAP_AB_ROWS = 64 };

/* ROWS: columns of y. SHARE 2: each column of y needs one row of both halves of W. SHARED: bytes of
 * dynamic shared memory, as in the @launch line. WGMMA 1: wgmma instead of mma.sync
 * (cuda/gemm/gemm_swap_ab_sm90.h). */
template <class W_, int ROWS_, int SHARE_, int SHARED_, int WGMMA_ = 0> struct swap_ab_config {
	typedef W_ W;
	typedef typename W::stream S;
	enum {
		ROWS = ROWS_,
		SHARE = SHARE_,
		COLS = W::COLS,
		UNITS = (COLS + S::UNIT - 1) / S::UNIT,
		SHARED = SHARED_,
		WGMMA = WGMMA_
	};
};

/* Returns whether the launch uses the tile of 16 rows. */
DEV bool
swap_ab_16_rows(int rows)
{
	return rows > 0 && rows <= 16;
}

/* One warp's weights in a stage: four groups of eight rows */
template <class S> struct swap_ab_weights {
	typename S::stage group[4];
};

/* Tile for NT * 8 rows of a. KW: number of units per step, up to 4, as long as the bytes of a stay
 * below half of those of the weights. */
template <class G, int NT_> struct swap_ab_tile {
	typedef typename G::S S;
	enum {
		NT = NT_,
		WGMMA = G::WGMMA && NT > 2, /* for 16 rows wgmma takes more instructions */
		W_BYTES = SWAP_AB_WARPS * (int)sizeof(swap_ab_weights<S>),
		UNIT_BYTES = S::CHUNKS * NT * 512, /* activations per unit */
		KW = 8 * UNIT_BYTES <= W_BYTES && !WGMMA ? 4
		     : 4 * UNIT_BYTES <= W_BYTES         ? 2
		                                         : 1,
		MW = SWAP_AB_WARPS / KW,
		/* number of warps, per 32 rows of W, that run the epilogue; each does so for NT /
		 * KEEP groups of 8 rows of a */
		KEEP = KW < NT ? KW : NT,
		OWN = NT / KEEP,
		OUT = MW * 32 / G::SHARE, /* columns of y */
		TILES = (G::ROWS + OUT - 1) / OUT,
		STEPS = (G::UNITS + KW - 1) / KW,
		A_CHUNKS = KW * S::CHUNKS * NT / 8, /* 16-byte chunks of a per thread and step */
		STAGE_BYTES = W_BYTES + KW * UNIT_BYTES,
		STAGES = G::SHARED / STAGE_BYTES < 8 ? G::SHARED / STAGE_BYTES : 8,
		/* stages in flight: all except the one being read and, with wgmma, the one before
		 * that */
		AHEAD = STAGES - 1 - WGMMA,
		SUMS = MW * 32 * NT * 8, /* partial sums per tile */
		/* CTAs with work: at most 12 per tile, because the last one to arrive reads the
		 * partial sums of the others one after another */
		BLOCKS = TILES * (STEPS < 12 ? STEPS : 12)
	};
	static_assert(AHEAD >= 1 && A_CHUNKS >= 1, "shared memory for two stages, or three");
	static_assert((KW - 1) * MW * NT * 512 <= STAGE_BYTES,
	              "half of the warps' sums in one stage");
	static_assert(NT % KEEP == 0, "the same number of results for each warp that has some");
	static_assert(SWAP_AB_THREADS % 128 == 0 && NT <= SWAP_AB_WARPS,
	              "a thread's chunks belong to one lane");
};

/* ---- activations ---- */

/* Destination of a row of a, in 16-byte chunks: by unit, by chunk of the unit, by lane (four lanes
 * per chunk). Each holds the four columns from col on, then the four from col2 on, as in
 * W::stream. */
struct swap_ab_four {
	unsigned char *at;
};
struct swap_ab_four_nibbles {
	unsigned char *at;
};

DEV void
st_v2(const swap_ab_four &to, uint2 v)
{
	st_v2(to.at, v);
}
/* nibble formats: stores the four columns in the order 0 2 1 3 */
DEV void
st_v2(const swap_ab_four_nibbles &to, uint2 v)
{
	st_v2(to.at, make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632)));
}

template <bool NIBBLES> struct swap_ab_four_of {
	typedef swap_ab_four type;
};
template <> struct swap_ab_four_of<true> {
	typedef swap_ab_four_nibbles type;
};

/* Position of column k in W::stream, computed from the bits of its index within the unit */
template <class W> struct swap_ab_position {
	typedef typename W::stream S;
	int half, chunk, lane;

	__device__ __forceinline__ explicit swap_ab_position(int k)
	{
		const int HALF = S::col2(0, 0, 0),
		          CHUNK = S::CHUNKS > 1 ? S::col(0, 1 % S::CHUNKS, 0) : 1, f = k % S::UNIT;

		half = f / HALF & 1;
		chunk = f / CHUNK & (S::CHUNKS - 1);
		lane = (f / S::col(0, 0, 1) & 1) + (f / S::col(0, 0, 2) & 1) * 2;
	}
};

template <class W> struct swap_ab_act {
	typedef typename W::stream S;
	typedef typename swap_ab_four_of<S::NIBBLES != 0>::type four;
	/* bytes of a row, padded to a multiple of the unit */
	static constexpr long long ROW =
	    W::PACKED ? (long long)((W::COLS + S::UNIT - 1) / S::UNIT * S::UNIT) * 2
	              : (long long)W::COLS * 2;
	unsigned char *row;

	__device__ __forceinline__
	swap_ab_act(void *act, long long t)
	    : row((unsigned char *)act + t * ROW)
	{
	}
	/* destination of columns k .. k + 3 */
	__device__ __forceinline__ four
	operator+(int k) const
	{
		const swap_ab_position<W> p(k);

		return { row + ((k / S::UNIT * S::CHUNKS + p.chunk) * 4 + p.lane) * 16 +
			 p.half * 8 };
	}
};

/* ---- weights ---- */

/* Dequantises a chunk to w times GAIN, in the 16-bit type of the mma, as W::stream does. If the
 * format's sub-blocks have minima, one fma per pair also adds these. */
template <class S, bool MINS = S::MINS> struct swap_ab_chunk {
	static constexpr float GAIN = S::GAIN;
	typename S::scale s;

	__device__ __forceinline__ void
	set(const typename S::fragment &u, int unit, int t)
	{
		S::scales(s, u, unit, t);
	}
	__device__ __forceinline__ void
	get(unsigned (&b)[4], const typename S::fragment &u, int unit, int c, int t) const
	{
		S::template chunk<false>(b, u, s, unit, c, t);
	}
};

template <class S> struct swap_ab_chunk<S, true> {
	static constexpr float GAIN = 0x1p-4f;
	typename S::scale s;
	unsigned d, m[2]; /* the block's d times 2^10; the minima of col and of col2, negated and
	                     divided by 2^4 */

	__device__ __forceinline__ void
	set(const typename S::fragment &u, int unit, int t)
	{
		S::scales(s, u, unit, t);
		const unsigned f = S::factors(u), least = h2_mul(s.mins, 0xac00ac00u),
		               by = h2_twice_hi(f);
		d = h2_mul(h2_twice(f), 0x64006400u);
		m[0] = h2_mul(h2_twice(least), by);
		m[1] = h2_mul(h2_twice_hi(least), by);
	}
	__device__ __forceinline__ void
	get(unsigned (&b)[4], const typename S::fragment &u, int unit, int c, int t) const
	{
		S::template chunk<false>(b, u, s, unit, c, t); /* divided by 2^14 */
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = h2_fma(b[i], d, m[i / 2]);
	}
};

/* A warp's 32 rows of a tile. Row 4 g + 2 i + h is row g of mma i, in half h of the mma, so lane 4
 * g + t gets four neighbouring rows of results. With SHARE 2, mma 0 has rows of the first half of
 * W, and mma 1 the same rows of the second half. */
template <class G, class T> struct swap_ab_rows {
	const unsigned char *row[2];
	unsigned next[2]; /* byte offset from the row with h = 0 to the row with h = 1 */

	__device__ __forceinline__ void
	aim(const w_matrix<typename G::W> &w, int n0)
	{
		const int g = (int)lane_id() >> 2;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int r =
			    min(n0 + (G::SHARE == 2 ? 2 * g : 4 * g + 2 * i), G::ROWS - 1);
			row[i] = w.row(r) + (G::SHARE == 2 && i ? w.half : 0);
			next[i] = r + 1 < G::ROWS ? (unsigned)w.stride : 0;
		}
	}
	__device__ __forceinline__ void
	prefetch(swap_ab_weights<typename G::S> &to, int unit) const
	{
		typedef typename G::S S;
		const int lane = (int)lane_id();
		int at[S::PLANES];

		if (G::UNITS % T::KW && unit >= G::UNITS)
			return;
#pragma unroll
		for (int p = 0; p < S::PLANES; p++)
			at[p] = S::offset(p, unit, lane & 3);
#pragma unroll
		for (int i = 0; i < 4; i++)
			S::prefetch(to.group[i], row[i / 2] + (i % 2 ? next[i / 2] : 0), at, lane,
			            16);
	}
};

/* ---- split-K partition ---- */

/* Partition of the `total` steps of all tiles among `blocks` CTAs (at most `total`). CTA b has
 * steps [first(b), first(b + 1)). owner(u) is the CTA that has step u. */
struct swap_ab_partition {
	unsigned total, blocks;
	__device__ __forceinline__ unsigned
	first(unsigned b) const
	{
		return total * min(b, blocks) / blocks;
	}
	__device__ __forceinline__ unsigned
	owner(unsigned u) const
	{
		return ((u + 1) * blocks - 1) / total;
	}
};

/* Scratch. part [blocks, 2, SUMS]: partial sums of tiles that several CTAs share; count [TILES,
 * MW]: initially 0 */
struct swap_ab_scratch {
	float *part;
	int *count;
};

/* A lane's part of one unit of a warp's 32 rows */
template <class G> struct swap_ab_unit {
	typedef typename G::S S;
	typename S::fragment u[4];
	swap_ab_chunk<S> chunk[4];
	int unit;

	__device__ __forceinline__
	swap_ab_unit(const swap_ab_weights<S> &from, int unit)
	    : unit(unit)
	{
#pragma unroll
		for (int i = 0; i < 4; i++) {
			S::load(u[i], from.group[i], unit, (int)lane_id());
			chunk[i].set(u[i], unit, (int)lane_id() & 3);
		}
	}
	/* Returns the A operands of both mma, for the two k16 steps of chunk c. */
	__device__ __forceinline__ void
	get(unsigned (&a)[2][2][4], int c) const
	{
#pragma unroll
		for (int i = 0; i < 2; i++) {
			unsigned w[4], v[4];
			chunk[2 * i].get(w, u[2 * i], unit, c, (int)lane_id() & 3);
			chunk[2 * i + 1].get(v, u[2 * i + 1], unit, c, (int)lane_id() & 3);
#pragma unroll
			for (int k = 0; k < 2; k++) {
				a[i][k][0] = w[2 * k];
				a[i][k][1] = v[2 * k];
				a[i][k][2] = w[2 * k + 1];
				a[i][k][3] = v[2 * k + 1];
			}
		}
	}
};

/* Mainloop of one step and the layout of its part of a in the stage */
template <class G, class T, bool WGMMA = T::WGMMA> struct swap_ab_mainloop {
	typedef typename G::S S;
	/* this thread's chunks: those of row tid / 4 % 8 of each group of eight rows, the part of
	 * lane tid % 4 */
	const unsigned char *act;
	int n;

	__device__ __forceinline__
	swap_ab_mainloop(const void *act, int, int n)
	    : act((const unsigned char *)act +
	          (long long)((int)lane_id() >> 2) * swap_ab_act<typename G::W>::ROW +
	          ((int)lane_id() & 3) * 16),
	      n(n)
	{
	}
	/* issues the loads of a for step `at` */
	__device__ __forceinline__ void
	issue_loads(unsigned char *stage, int at) const
	{
		const int lane = (int)lane_id();

#pragma unroll
		for (int i = 0; i < T::A_CHUNKS; i++) {
			const int p = i * SWAP_AB_WARPS + (int)warp_id(), j = p % T::NT,
			          k = p / T::NT, unit = at * T::KW + k / S::CHUNKS;
			const bool is = j * 8 + (lane >> 2) < n &&
			                (G::COLS % (S::UNIT * T::KW) == 0 ||
			                 S::col(unit, k % S::CHUNKS, lane & 3) < G::COLS);
			cp_async_16_fill(
			    stage + T::W_BYTES + (p * 32 + lane) * 16,
			    act + (is ? (long long)j * 8 * swap_ab_act<typename G::W>::ROW +
			                    (at * T::KW * S::CHUNKS + k) * 64
			              : 0),
			    is ? 16 : 0);
		}
	}
	/* makes copied data visible to all readers after the barrier */
	__device__ __forceinline__ void
	share() const
	{
	}
	__device__ __forceinline__ void
	multiply(const unsigned char *stage, int wm, int wk, int unit, float (&acc)[2][T::NT][4])
	{
		const unsigned char *x =
		    stage + T::W_BYTES + wk * T::UNIT_BYTES + (int)lane_id() * 16;

		if (G::UNITS % T::KW && unit >= G::UNITS)
			return;
		const swap_ab_unit<G> w(((const swap_ab_weights<S> *)stage)[wk * T::MW + wm], unit);
#pragma unroll
		for (int c = 0; c < S::CHUNKS; c++) {
			unsigned a[2][2][4];
			w.get(a, c);
#pragma unroll
			for (int j = 0; j < T::NT; j++) {
				const uint4 q = ld_v4(x + (c * T::NT + j) * 512);
				const unsigned b0[2] = { q.x, q.y }, b1[2] = { q.z, q.w };
#pragma unroll
				for (int i = 0; i < 2; i++) {
					w_mma<typename G::W>(acc[i][j], a[i][0], b0);
					w_mma<typename G::W>(acc[i][j], a[i][1], b1);
				}
			}
		}
	}
	/* waits until all sums are in registers */
	__device__ __forceinline__ void
	finish(float (&)[2][T::NT][4]) const
	{
	}
};

template <int N> DEV void
swap_ab_clear(float (&acc)[2][N][4])
{
#pragma unroll
	for (int i = 0; i < 2; i++)
#pragma unroll
		for (int j = 0; j < N; j++)
#pragma unroll
			for (int c = 0; c < 4; c++)
				acc[i][j][c] = 0;
}

DEV uint4
swap_ab_bits(const float (&v)[4])
{
	return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
	                  __float_as_uint(v[3]));
}

DEV void
swap_ab_add(float (&to)[4], uint4 v)
{
	to[0] += __uint_as_float(v.x);
	to[1] += __uint_as_float(v.y);
	to[2] += __uint_as_float(v.z);
	to[3] += __uint_as_float(v.w);
}

/* Adds the sums of warps with wk > 0 to those of the warp that has wk 0 and the same rows. buf: a
 * stage that all warps have read */
template <class T> DEV void
swap_ab_reduce_warps(unsigned char *buf, int lane, int wm, int wk, float (&acc)[2][T::NT][4])
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		__syncthreads();
		if (wk > 0)
#pragma unroll
			for (int j = 0; j < T::NT; j++)
				st_v4(buf +
				          ((((wk - 1) * T::MW + wm) * T::NT + j) * 32 + lane) * 16,
				      swap_ab_bits(acc[i][j]));
		__syncthreads();
		if (wk == 0)
#pragma unroll
			for (int k = 0; k < T::KW - 1; k++)
#pragma unroll
				for (int j = 0; j < T::NT; j++)
					swap_ab_add(
					    acc[i][j],
					    ld_v4(buf +
					          (((k * T::MW + wm) * T::NT + j) * 32 + lane) *
					              16));
	}
}

/* Adds the partial sums of CTAs from .. upto of a tile, in that order, for rows of a from 8 j0 on.
 * All loads of one CTA's sums are in flight together (32 or 64 KB), and no warp waits for another.
 * (Loading the next CTA's sums while adding would need no more registers, but ptxas moves these
 * loads after the additions.) */
template <class T, class P> DEV void
swap_ab_reduce_ctas(unsigned from, unsigned upto, const P &sums, int j0, float (&own)[2][T::OWN][4])
{
	swap_ab_clear(own);
#pragma unroll 1
	for (unsigned b = from; b <= upto; b++) {
		const float *const at = sums(b) + j0 * 128;
#pragma unroll
		for (int i = 0; i < 2 * T::OWN; i++)
			swap_ab_add(own[i / T::OWN][i % T::OWN],
			            ld_v4(at + (i / T::OWN * T::NT + i % T::OWN) * 128));
	}
}

/* Scales the results of a warp and passes them to the epilogue, after issuing all its reads. n0:
 * first column of the warp's 32 rows; m0: its first row of a */
template <class G, int OWN, class E> DEV void
swap_ab_results(const float (&own)[2][OWN][4], const gemm_operands<typename G::W> &in, int lane,
                int n, int n0, int m0, const E &e)
{
	constexpr int C = G::SHARE == 2 ? 2 : 4;
	typedef w_row_factor<typename G::W> F;
	const int g = lane >> 2, t = lane & 3;
	/* number of pairs of rows whose reads are in flight together; limited by registers */
	constexpr int NEAR = OWN <= 4 ? OWN : G::WGMMA ? 4 : 1;
	float f[2][C];

#pragma unroll
	for (int k = 0; k < C; k++) {
		const unsigned char *row = in.w.row(min(n0 + C * g + k, G::ROWS - 1));
		f[0][k] = F::HAS ? F::of(row) : 1.0f;
		f[1][k] = F::HAS && G::SHARE == 2 ? F::of(row + in.w.half) : f[0][k];
	}
#pragma unroll
	for (int j0 = 0; j0 < OWN; j0 += NEAR) {
		float scale[2 * NEAR];
		typename E::template before<1, C> before[2 * NEAR] = {};
#pragma unroll
		for (int i = 0; i < 2 * NEAR; i++) {
			const int m = m0 + (j0 + i / 2) * 8 + 2 * t + i % 2;
			scale[i] =
			    in.factor(min(m, n - 1)) * (1.0f / swap_ab_chunk<typename G::S>::GAIN);
			if (m < n)
				e.read(m, n0 + C * g, before[i]);
		}
#pragma unroll
		for (int i = 0; i < 2 * NEAR; i++) {
			const int j = j0 + i / 2, c = i % 2, m = m0 + j * 8 + 2 * t + c;
			if (m >= n)
				continue;
			float v[1][C], u[1][C];
#pragma unroll
			for (int k = 0; k < C; k++) {
				v[0][k] = own[k / 2][j][k % 2 * 2 + c] * scale[i] * f[0][k];
				u[0][k] = own[1][j][k % 2 * 2 + c] * scale[i] * f[1][k];
			}
			e.store(m, n0 + C * g, v, u, before[i]);
		}
	}
}

/* Counts this CTA or warp, after its partial sums have been stored and ordered by a barrier.
 * Returns whether it is the last of `others` + 1 to arrive; if so, resets the counter. */
DEV bool
swap_ab_last(int *count, int others)
{
	const bool last = atom_add_acq_rel_gpu(count, 1) == others;

	if (last)
		st_relaxed_gpu(count, 0);
	return last;
}

/* Ends a tile. If the CTA has the whole tile, stores the results by the epilogue. Otherwise stores
 * partial sums; the last CTA or warp to arrive adds them. reduce: the stage just read, which is
 * free now; last: shared flag of the CTA */
template <class G, int NT, class E> DEV void
swap_ab_finish_tile(unsigned char *reduce, int &last, float (&acc)[2][NT][4],
                    const gemm_operands<typename G::W> &in, const swap_ab_partition &partition,
                    int tile, int n, const E &e, const swap_ab_scratch &to)
{
	typedef swap_ab_tile<G, NT> T;
	const int tid = (int)threadIdx.x;
	const int warp = opaque(tid / 32), lane = opaque(tid % 32),
	          wm = T::KW > 1 ? warp % T::MW : warp, wk = T::KW > 1 ? warp / T::MW : 0;
	if (T::KW > 1)
		swap_ab_reduce_warps<T>(reduce, lane, wm, wk, acc);
	/* CTAs that have parts of this tile, and the slots of their sums */
	const unsigned from = partition.owner(tile * T::STEPS),
	               upto = partition.owner(tile * T::STEPS + T::STEPS - 1);
	const int n0 = (tile * T::MW + wm) * (32 / G::SHARE);
	if (from == upto) {
		if (wk == 0)
			swap_ab_results<G>(acc, in, lane, n, n0, 0, e);
	} else {
		auto sums = [&](unsigned b) {
			return to.part +
			       (long long)(2 * b +
			                   (partition.first(b) < (unsigned)(tile * T::STEPS))) *
			           T::SUMS +
			       (wm * 2 * NT * 32 + lane) * 4;
		};
		if (wk == 0)
#pragma unroll
			for (int i = 0; i < 2 * NT; i++)
				st_v4(sums(blockIdx.x) + i * 128,
				      swap_ab_bits(acc[i / NT][i % NT]));
		bool is_last;
		if constexpr (T::KW > 1) {
			__syncthreads();
			if (tid == 0)
				last = swap_ab_last(to.count + tile * T::MW, (int)(upto - from));
			__syncthreads();
			is_last = last && wk < T::KEEP;
		} else {
			/* Each warp counts its own sums and waits for no other warp. If CTAs end
			 * together, warps of different CTAs may be the last for their rows. */
			__syncwarp();
			is_last =
			    __shfl_sync(0xffffffffu,
			                lane == 0 && swap_ab_last(to.count + tile * T::MW + wm,
			                                          (int)(upto - from)),
			                0);
			__syncwarp();
		}
		if (is_last) {
			float own[2][T::OWN][4];
			swap_ab_reduce_ctas<T>(from, upto, sums, wk * T::OWN, own);
			swap_ab_results<G>(own, in, lane, n, n0, wk * T::OWN * 8, e);
		}
	}
}

template <class G, int NT, class E> DEV void
swap_ab_kernel(const gemm_operands<typename G::W> &in, const int *count, const E &e,
               const swap_ab_scratch &to)
{
	typedef swap_ab_tile<G, NT> T;
	typedef typename G::S S;
	SHARED_BYTES(smem);
	SHARED(int, last);
	const int warp = (int)warp_id(), wm = T::KW > 1 ? warp % T::MW : warp,
	          wk = T::KW > 1 ? warp / T::MW : 0;
	const swap_ab_partition partition = { (unsigned)T::TILES * T::STEPS,
		                              min(gridDim.x, (unsigned)T::BLOCKS) };
	const int stop = (int)partition.first(blockIdx.x + 1),
	          begin = (int)partition.first(blockIdx.x);

	/* tile and step for which the next stage will be filled */
	int tile = begin / T::STEPS, step = begin - tile * T::STEPS, next_tile = tile,
	    next_step = step;
	swap_ab_rows<G, T> rows;
	auto prefetch_weights = [&](unsigned char *stage) {
		rows.prefetch(((swap_ab_weights<S> *)stage)[warp], next_step * T::KW + wk);
	};
	auto advance = [&] {
		if (++next_step == T::STEPS) {
			next_step = 0;
			rows.aim(in.w, (++next_tile * T::MW + wm) * (32 / G::SHARE));
		}
	};

	rows.aim(in.w, (tile * T::MW + wm) * (32 / G::SHARE));
#pragma unroll 1
	for (int s = 0; s < T::AHEAD && begin + s < stop; s++) {
		prefetch_weights(smem + s * T::STAGE_BYTES);
		advance();
	}
	PDL_WAIT();
	PDL_LAUNCH();
	const int n = min(*count, NT * 8);

	swap_ab_mainloop<G, T> mainloop(in.act, *count, n);
	{
		int at = step;
#pragma unroll 1
		for (int s = 0; s < T::AHEAD; s++) {
			if (begin + s < stop)
				mainloop.issue_loads(smem + s * T::STAGE_BYTES, at);
			cp_async_commit();
			at = at + 1 == T::STEPS ? 0 : at + 1;
		}
	}

	float acc[2][NT][4];
	int at = 0;
	swap_ab_clear(acc);
#pragma unroll 1
	for (int u = begin; u < stop; u++) {
		cp_async_wait<T::AHEAD - 1>();
		mainloop.share();
		__syncthreads();
		if (u + T::AHEAD < stop) {
			unsigned char *into =
			    smem + (at + T::AHEAD < T::STAGES ? at + T::AHEAD
			                                      : at + T::AHEAD - T::STAGES) *
			               T::STAGE_BYTES;
			prefetch_weights(into);
			mainloop.issue_loads(into, next_step);
			advance();
		}
		cp_async_commit();
		mainloop.multiply(smem + at * T::STAGE_BYTES, wm, wk, step * T::KW + wk, acc);

		if (++step == T::STEPS || u + 1 == stop) {
			mainloop.finish(acc);
			swap_ab_finish_tile<G, NT>(smem + at * T::STAGE_BYTES, last, acc, in,
			                           partition, tile, n, e, to);
			swap_ab_clear(acc);
			step = 0;
			tile++;
		}
		at = at + 1 == T::STAGES ? 0 : at + 1;
	}
	cp_async_wait_all();
}

template <class G, class E> DEV void
swap_ab_run(int rows, const gemm_operands<typename G::W> &in, const int *count, const E &e,
            const swap_ab_scratch &to)
{
	if (swap_ab_16_rows(rows))
		swap_ab_kernel<G, 2>(in, count, e, to);
	else if (rows > 0 && rows <= 32)
		swap_ab_kernel<G, 4>(in, count, e, to);
	else
		swap_ab_kernel<G, 8>(in, count, e, to);
}

#endif

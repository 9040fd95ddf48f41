/* Both projections of latent attention for many rows, on tensor cores: queries into the latent
 * space, and weighted sums of latents out of it.
 *
 *   weights --ld.global--> registers; PDL wait; rows of x --ld.global--> registers --mma-->
 *   sums of a part of the columns --shared--> one sum --> out
 *
 * The mma are tf32 (cuda/gemm/tf32.h): x is split into two tf32, 16-bit weights are one and other
 * types two, so each term is fp32 to 2^-21. In an mma, any assignment of columns to lanes is valid
 * if both operands use it. A lane has neighbouring columns, so no operand goes through shared
 * memory. A row is summed in a fixed order, which does not depend on the rest of the step. A CTA
 * processes units: a head, some of its columns, and the rows of a tile.
 *
 * Bytes: weights once per tile of rows; x once per 64 (queries) or 32 (values) columns of a head,
 * from L2 except for the first time. Example: 64 rows, 16 heads, rank 512, dimensions 128 and 128,
 * 16-bit weights. Either projection is 128 units of 1024 mma. A unit of queries reads 16 KB of
 * weights, shared by 4 warps, and 32 KB of x; a unit of values reads 32 KB of weights and 64 KB of
 * x. Measured: docs/kernels/mla.md. */
#ifndef LLMC_CUDA_MLA_MLA_PROJECT_H
#define LLMC_CUDA_MLA_MLA_PROJECT_H

#include "cuda/mla/mla_query.h"
#include "cuda/gemm/tf32.h"

/* Whether the step has absorbed rows, and whether it has expanded rows. All threads of the CTA
 * call. */
struct mla_forms {
	bool absorbed, expanded;
};

template <int EXPAND> DEV mla_forms
mla_forms_of(const llmc_step &s)
{
	if constexpr (EXPAND == 0)
		return { true, false };
	const int n_seq = s.n[2];
	bool absorbed = false, expanded = false;

	for (int i = threadIdx.x; i < n_seq; i += blockDim.x) {
		const int rows = s.q_start[i + 1] - s.q_start[i];
		const bool is = mla_expanded(rows, s.kv_len[i] - rows, EXPAND, 0);
		absorbed |= rows > 0 && !is;
		expanded |= rows > 0 && is;
	}
	absorbed = __syncthreads_or(absorbed);
	return { absorbed, (bool)__syncthreads_or(expanded) };
}

/* d += a times weights of W. */
template <class W> DEV void
mla_mma(float (&d)[4], const tf32_a &a, float b0, float b1)
{
	if (W::UNIT == 8) { /* f16, bf16: exact in tf32 */
		const unsigned b[2] = { __float_as_uint(b0), __float_as_uint(b1) };
		mma_tf32_m16n8k8(d, a.lo, b, d);
		mma_tf32_m16n8k8(d, a.hi, b, d);
	} else {
		tf32_b b;
		tf32_split(b0, b.hi[0], b.lo[0]);
		tf32_split(b1, b.hi[1], b.lo[1]);
		tf32_mma(d, a, b);
	}
}

/* Splits two columns of two rows of x. The rows are eight apart. */
DEV void
mla_split(tf32_a &a, float r0, float r1, float s0, float s1)
{
	tf32_split(r0, a.hi[0], a.lo[0]);
	tf32_split(s0, a.hi[1], a.lo[1]);
	tf32_split(r1, a.hi[2], a.lo[2]);
	tf32_split(s1, a.hi[3], a.lo[3]);
}

/* Loads four neighbouring elements. Only the first `n` exist; the others become 0. WHOLE: all four
 * or none exist, and the address is aligned to 16 bytes */
template <bool WHOLE> DEV void
mla_four(float *to, const float *p, int n)
{
	if (WHOLE) {
		const uint4 v = n > 0 ? ld_v4(p) : make_uint4(0, 0, 0, 0);
		to[0] = __uint_as_float(v.x), to[1] = __uint_as_float(v.y),
		to[2] = __uint_as_float(v.z), to[3] = __uint_as_float(v.w);
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			to[i] = i < n ? p[i] : 0;
	}
}

template <bool WHOLE> DEV void
mla_put_four(float *p, const float *v, int n)
{
	if (WHOLE) {
		if (n > 0)
			st_v4(p, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
			                    __float_as_uint(v[2]), __float_as_uint(v[3])));
	} else {
#pragma unroll
		for (int i = 0; i < 4; i++)
			if (i < n)
				p[i] = v[i];
	}
}

/* ---- queries ---- */

enum {
	MLA_Q_ROWS = 64, /* rows per unit */
	/* steps with more rows than this first check whether there are absorbed rows; otherwise
	 * they might load weights in vain */
	MLA_EARLY = 1024,
	MLA_FEW = 512
};

/* A unit of mla_query_tiles: 64 columns of a head. The warps form 4 groups of 16 rows, times 2
 * halves of NOPE. Lane 4 g + t has columns 8 g .. 8 g + 7 in rows 4 t .. 4 t + 3 of each 16 rows of
 * k_b. n-tile j has the j-th column of each g. */
template <class A, class W> struct mla_query_unit {
	enum {
		HEADS = A::HEADS,
		NOPE = A::NOPE,
		RANK = A::RANK,
		PAIR = W::UNIT < 8 ? 2 : 1, /* units of W per 8 columns */
		PARTS = W::UNIT > 8
		            ? W::UNIT / 8
		            : 1, /* number of 8-column spans per unit of W, if units are larger */
		CHUNKS = (W::UNITS + 8 * PAIR - 1) / (8 * PAIR) * PARTS,
		OF_HALF = ((NOPE + 15) / 16 + 1) / 2, /* groups of 16 rows of k_b per half */
		ROOM = W::UNIT > 8
		           ? 1
		           : 2 / PAIR, /* groups of 16 rows that fit in 32 or 36 registers */
		DEEP = (int)ROOM < (int)OF_HALF ? (int)ROOM : (int)OF_HALF, /* groups in flight */
		EVEN = NOPE % (32 * DEEP) ==
		       0, /* both halves are a multiple of the groups in flight */
		EVEN_UNITS = W::UNITS % (8 * PAIR) == 0
	};
	typedef typename W::raw weights[DEEP][4][PAIR];

	DEV int
	unit_of(int chunk, int g)
	{
		return (chunk / PARTS * 8 + g) * PAIR;
	}

	/* Loads DEEP groups of 16 rows, from group `at` on. Valid rows replace those past the
	 * matrix; their results are unused or multiplied by 0. */
	DEV void
	load(weights &raw, const w_matrix<W> &k_b, int h, int chunk, int at)
	{
		const int g = (int)lane_id() / 4, t = (int)lane_id() % 4, u = unit_of(chunk, g);

#pragma unroll
		for (int i = 0; i < DEEP; i++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const unsigned char *row =
				    k_b.row((long long)h * NOPE +
				            (EVEN ? (at + i) * 16 + 4 * t + e
				                  : min((at + i) * 16 + 4 * t + e, (int)NOPE - 1)));
#pragma unroll
				for (int k = 0; k < PAIR; k++)
					raw[i][e][k] = W::load(
					    row,
					    EVEN_UNITS ? u + k : min(u + k, (int)W::UNITS - 1));
			}
	}

	/* Prefetches all rows from group `at` on to L2, for warps that will read them. */
	DEV void
	issue_loads(const w_matrix<W> &k_b, int h, int chunk, int at, int half)
	{
		const int u = min(unit_of(chunk, (int)lane_id() / 4), (int)W::UNITS - 1);

		for (int k = at * 16 + (int)lane_id() % 4; k < OF_HALF * 16; k += 4)
			if (half * OF_HALF * 16 + k < NOPE && W::UNIT <= 8)
				prefetch_l2(k_b.row((long long)h * NOPE + half * OF_HALF * 16 + k) +
				            u * 16);
	}

	/* Decodes the lane's columns of a row of k_b. */
	DEV void
	columns(const typename W::raw (&raw)[PAIR], int chunk, float (&to)[8])
	{
		const int u = unit_of(chunk, (int)lane_id() / 4), part = chunk % PARTS;

#pragma unroll
		for (int k = 0; k < PAIR; k++) {
			float v[W::UNIT];
			W::decode(raw[k], min(u + k, (int)W::UNITS - 1), v);
#pragma unroll
			for (int j = 0; j < 8 / PAIR; j++) {
				to[8 / PAIR * k + j] = v[j];
#pragma unroll
				for (int p = 1; p < PARTS; p++)
					to[j] = part == p ? v[8 * p + j] : to[j];
			}
		}
	}
};

struct mla_tiles_shared {
	float part[4][32][32];
	bool expanded[MLA_Q_ROWS];
};

/* Does everything except the mma for rows t0 .. end - 1 of head h: copies the rotary part of the
 * query, and the whole query of expanded rows; stores a share of the latents in the pool. first:
 * PDL_WAIT has not been called yet */
template <class A, class ROPE, int EXPAND, class S> DEV void
mla_query_rest(const llmc_step &step, const mla_query_args &a, int h, int t0, int end, bool first,
               S &s)
{
	enum {
		HEADS = A::HEADS,
		NOPE = A::NOPE,
		R = A::ROPE,
		Q = A::Q,
		WIDTH = A::WIDTH,
		DEEP = 4,
		FOURS = (NOPE + 3) / 4
	};
	constexpr bool WHOLE = Q % 4 == 0 && NOPE % 4 == 0 && WIDTH % 4 == 0;
	bool expanded = false;

	if constexpr (EXPAND > 0) {
		__syncthreads(); /* all threads have read the previous rows */
		if (threadIdx.x < end - t0) {
			expanded = mla_row_expanded<EXPAND>(step, t0 + (int)threadIdx.x);
			s.expanded[threadIdx.x] = expanded;
		}
		expanded = __syncthreads_or(expanded);
	}
	if (first) {
		PDL_WAIT();
		PDL_LAUNCH();
	}
	for (int i0 = threadIdx.x; i0 < (end - t0) * (R / 2); i0 += DEEP * blockDim.x) {
		float x[DEEP], y[DEEP];
#pragma unroll
		for (int j = 0; j < DEEP; j++) {
			const int i = i0 + j * (int)blockDim.x, t = t0 + i / (R / 2),
			          k = i % (R / 2);
			if (i < (end - t0) * (R / 2)) {
				const float *q = a.q + t * a.q_stride + h * Q + NOPE;
				x[j] = q[a.rope ? ROPE::first(k, R) : 2 * k];
				y[j] = q[a.rope ? ROPE::second(k, R) : 2 * k + 1];
				if (a.rope)
					rope_rotate(&x[j], &y[j], a.rope + (long long)t * R, k, R);
			}
		}
#pragma unroll
		for (int j = 0; j < DEEP; j++) {
			const int i = i0 + j * (int)blockDim.x, t = t0 + i / (R / 2),
			          k = i % (R / 2);
			if (i < (end - t0) * (R / 2)) {
				float *out =
				    a.out + ((long long)t * HEADS + h) * WIDTH +
				    (EXPAND > 0 && s.expanded[t - t0] ? (int)NOPE : (int)A::RANK);
				out[a.rope ? ROPE::first(k, R) : 2 * k] = x[j];
				out[a.rope ? ROPE::second(k, R) : 2 * k + 1] = y[j];
			}
		}
	}
	for (int i0 = threadIdx.x; EXPAND > 0 && expanded && i0 < (end - t0) * FOURS;
	     i0 += DEEP * blockDim.x) {
		float v[DEEP][4];
#pragma unroll
		for (int j = 0; j < DEEP; j++) {
			const int i = i0 + j * (int)blockDim.x, t = i / FOURS, k = i % FOURS * 4;
			if (i < (end - t0) * FOURS && s.expanded[t])
				mla_four<WHOLE>(v[j], a.q + (t0 + t) * a.q_stride + h * Q + k,
				                NOPE - k);
		}
#pragma unroll
		for (int j = 0; j < DEEP; j++) {
			const int i = i0 + j * (int)blockDim.x, t = i / FOURS, k = i % FOURS * 4;
			if (i < (end - t0) * FOURS && s.expanded[t])
				mla_put_four<WHOLE>(
				    a.out + ((long long)(t0 + t) * HEADS + h) * WIDTH + k, v[j],
				    NOPE - k);
		}
	}
	for (int t = t0 + h + warp_id() * HEADS; t < end; t += MLA_WARPS * HEADS)
		mla_append_row<A, ROPE>(step, a.c + t * a.c_stride, a.kvn, a.eps,
		                        a.rope ? a.rope + (long long)t * R : 0, a.kv, t);
}

/* Computes sums of a unit of absorbed rows t0 and t0 + 8 of a head, over half of the columns. raw:
 * weights of the first turn, which the caller has loaded */
template <class A, bool WHOLE, class W> DEV void
mla_query_sums(float (&sum)[8][4], typename mla_query_unit<A, W>::weights &raw,
               const mla_query_args &a, const w_matrix<W> &k_b, int h, int chunk, int half, int t0,
               const bool (&store)[2])
{
	typedef mla_query_unit<A, W> U;
	enum { NOPE = A::NOPE };
	const int t = (int)lane_id() % 4;

#pragma unroll 1
	for (int at = 0; at < U::OF_HALF; at += U::DEEP) {
		if (at > 0)
			U::load(raw, k_b, h, chunk, half * U::OF_HALF + at);
		const float *from =
		    a.q + t0 * a.q_stride + h * A::Q + (half * U::OF_HALF + at) * 16 + 4 * t;
		float x[U::DEEP][2][4];
#pragma unroll
		for (int i = 0; i < U::DEEP; i++)
#pragma unroll
			for (int r = 0; r < 2; r++) {
				const int k = (half * U::OF_HALF + at + i) * 16 + 4 * t;
				mla_four<WHOLE>(x[i][r], from + 8 * r * a.q_stride + 16 * i,
				                !store[r]             ? 0
				                : U::EVEN             ? 4
				                : at + i < U::OF_HALF ? NOPE - k
				                                      : 0);
			}
#pragma unroll
		for (int i = 0; i < U::DEEP; i++)
#pragma unroll
			for (int e = 0; e < 4; e += 2) {
				float b[2][8];
				tf32_a f;
				mla_split(f, x[i][0][e], x[i][0][e + 1], x[i][1][e],
				          x[i][1][e + 1]);
				U::columns(raw[i][e], chunk, b[0]);
				U::columns(raw[i][e + 1], chunk, b[1]);
#pragma unroll
				for (int j = 0; j < 8; j++)
					mla_mma<W>(sum[j], f, b[0][j], b[1][j]);
			}
	}
}

/* Adds the two halves of a unit and stores its results. */
template <class A, bool WHOLE, class W> DEV void
mla_query_store(mla_tiles_shared &s, const float (&sum)[8][4], const mla_query_args &a,
                const w_matrix<W> &k_b, int h, int chunk, int half, int t0, const bool (&store)[2])
{
	typedef mla_query_unit<A, W> U;
	enum { HEADS = A::HEADS, RANK = A::RANK, WIDTH = A::WIDTH };
	const int lane = lane_id(), t = lane % 4, m = (int)warp_id() % 4;

	__syncthreads(); /* all warps have finished the previous unit */
	if (half == 1)
#pragma unroll
		for (int i = 0; i < 32; i++)
			s.part[m][i][lane] = sum[i / 4][i % 4];
	__syncthreads();
	if (half == 0)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			const int u = U::unit_of(chunk, 2 * t + c),
			          col = W::column(u, chunk % U::PARTS * 8);
			float *to = a.out + ((long long)t0 * HEADS + h) * WIDTH + col;
#pragma unroll
			for (int r = 0; r < 2; r++) {
				float v[8];
#pragma unroll
				for (int j = 0; j < 8; j++)
					v[j] = (sum[j][2 * r + c] +
					        s.part[m][4 * j + 2 * r + c][lane]) *
					       k_b.scale;
#pragma unroll
				for (int j = 0; j < 8; j += 4)
					mla_put_four<WHOLE>(
					    to + 8LL * r * HEADS * WIDTH + j, v + j,
					    store[r] && u < W::UNITS ? RANK - col - j : 0);
			}
		}
}

/* Processes the units of all rows. First come the mma of absorbed rows, tile by tile, then
 * mla_query_rest for groups of rows and a head. STRIDE4: rows of q are aligned to 16 bytes */
template <class A, class ROPE, int EXPAND, bool STRIDE4, class W> DEV void
mla_query_tiles(const llmc_step &step, const mla_query_args &a, const w_matrix<W> &k_b)
{
	typedef mla_query_unit<A, W> U;
	typedef mla_tiles_shared shared;
	enum {
		HEADS = A::HEADS,
		NOPE = A::NOPE,
		RANK = A::RANK,
		WIDTH = A::WIDTH,
		SLICES = HEADS * U::CHUNKS
	};
	constexpr bool WHOLE = STRIDE4 && A::Q % 4 == 0 && NOPE % 4 == 0,
	               WHOLE_OUT = WIDTH % 4 == 0 && RANK % 4 == 0;
	SHARED(shared, s);
	const int g = (int)lane_id() / 4, m = (int)warp_id() % 4, half = (int)warp_id() / 4;
	const bool early = blockIdx.x < SLICES && (EXPAND == 0 || step.rows <= MLA_EARLY);
	typename U::weights raw;
	bool first = true;

	if (early) {
		U::load(raw, k_b, blockIdx.x / U::CHUNKS, blockIdx.x % U::CHUNKS,
		        half * U::OF_HALF);
		if (m == 0)
			U::issue_loads(k_b, blockIdx.x / U::CHUNKS, blockIdx.x % U::CHUNKS, U::DEEP,
			               half);
	}
	const bool absorbed = mla_forms_of<EXPAND>(step).absorbed;
	const int n = step.n[0],
	          products = absorbed ? (n + MLA_Q_ROWS - 1) / MLA_Q_ROWS * SLICES : 0;

	int unit = blockIdx.x;
	for (; unit < products; unit += gridDim.x) {
		const int h = unit % SLICES / U::CHUNKS, chunk = unit % U::CHUNKS,
		          t0 = unit / SLICES * MLA_Q_ROWS + m * 16 + g;
		bool store[2];

		if (!early || !first)
			U::load(raw, k_b, h, chunk, half * U::OF_HALF);
#pragma unroll
		for (int r = 0; r < 2; r++)
			store[r] = t0 + 8 * r < n && !mla_row_expanded<EXPAND>(step, t0 + 8 * r);
		if (first) {
			PDL_WAIT();
			PDL_LAUNCH();
			first = false;
		}
		float sum[8][4] = {};
		if (__any_sync(~0u, store[0] || store[1]))
			mla_query_sums<A, WHOLE>(sum, raw, a, k_b, h, chunk, half, t0, store);
		mla_query_store<A, WHOLE_OUT>(s, sum, a, k_b, h, chunk, half, t0, store);
	}
	/* few rows form small groups, so that all CTAs have work; many rows form large ones, so
	 * that more loads are in flight */
	const int rows = n <= MLA_FEW ? 16 : 64;
	for (unit -= products; unit < (n + rows - 1) / rows * HEADS;
	     unit += gridDim.x, first = false) {
		const int from = unit / HEADS * rows;

		mla_query_rest<A, ROPE, EXPAND>(step, a, unit % HEADS, from, min(from + rows, n),
		                                first, s);
	}
	if (first) {
		PDL_WAIT();
		PDL_LAUNCH();
	}
}

/* ---- values ---- */

/* A unit of mla_value_tiles: 32 rows, and 32 columns of a head. Each of the 8 warps has a part of
 * RANK. For weights in blocks of 32, each of 4 pairs of warps has a part, with 16 rows per warp.
 * Lane 4 g + t has units t, t + 4, ... of W in row g of each eight rows of v_b. */
template <class W, int V> struct mla_value_unit {
	enum {
		RANK = W::COLS,
		UNIT = W::UNIT,
		ROWS = 32,
		COLS = 32,
		PARTS = UNIT > 8 ? 4 : 8,
		ROW_TILES = PARTS / 4,                              /* tiles of rows per warp */
		OF_PART = ((W::UNITS + 3) / 4 + PARTS - 1) / PARTS, /* groups of 4 units per part */
		ROOM = UNIT > 8 ? 1 : 16 / UNIT,
		DEEP = (int)ROOM < (int)OF_PART ? (int)ROOM : (int)OF_PART,
		TOGETHER =
		    UNIT > 8 ? 1 : 4, /* number of columns of v_b that are converted at a time */
		EVEN = V % COLS == 0 && W::UNITS == 4 * OF_PART * PARTS &&
		       OF_PART % DEEP ==
		           0 /* the matrix and all parts are multiples of the units in flight */
	};
	typedef typename W::raw weights[DEEP][4];
	typedef float sums[ROW_TILES][4][4];

	/* Loads rows first .. first + 31 of v_b. Valid rows replace those from `end` on. */
	DEV void
	load(weights &raw, const w_matrix<W> &v_b, int first, int end, int at)
	{
		const int g = (int)lane_id() / 4, t = (int)lane_id() % 4;

#pragma unroll
		for (int i = 0; i < DEEP; i++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				raw[i][j] =
				    W::load(v_b.row(EVEN ? first + 8 * j + g
				                         : min(first + 8 * j + g, end - 1)),
				            EVEN ? 4 * (at + i) + t
				                 : min(4 * (at + i) + t, (int)W::UNITS - 1));
	}
};

template <class W> struct mla_value_shared {
	float part[mla_value_unit<W, 1>::PARTS][32][40];
};

/* Computes sums of a unit over the warp's part of the columns. raw: weights of the first turn,
 * which the caller has loaded; store: bit mask of the rows that are needed */
template <class W, int HEADS, int V> DEV void
mla_value_sums(typename mla_value_unit<W, V>::sums &sum,
               typename mla_value_unit<W, V>::weights &raw, const float *o, const w_matrix<W> &v_b,
               int h, int col, int t0, unsigned store)
{
	typedef mla_value_unit<W, V> U;
	enum { RANK = U::RANK, UNIT = U::UNIT, M = U::ROW_TILES };
	constexpr bool WHOLE = RANK % 4 == 0 && RANK % UNIT == 0;
	const int lane = lane_id(), g = lane / 4, t = lane % 4, part = (int)warp_id() % U::PARTS,
	          m0 = (int)warp_id() / U::PARTS * 16;

#pragma unroll 1
	for (int at = 0; at < U::OF_PART; at += U::DEEP) {
		float x[U::DEEP][M][2][UNIT];
		if (at > 0)
			U::load(raw, v_b, h * V + col, (h + 1) * V, part * U::OF_PART + at);
#pragma unroll
		for (int i = 0; i < U::DEEP; i++) {
			const int u = 4 * (part * U::OF_PART + at + i) + t,
			          in = U::EVEN                               ? (int)UNIT
			               : u < W::UNITS && at + i < U::OF_PART ? W::width(u)
			                                                     : 0;
#pragma unroll
			for (int m = 0; m < M; m++)
#pragma unroll
				for (int r = 0; r < 2; r++) {
					const int row = m0 + 16 * m + 8 * r + g;
					const float *from =
					    o + ((long long)(t0 + row) * HEADS + h) * RANK;
#pragma unroll
					for (int k = 0; k < UNIT; k += 4)
						mla_four<WHOLE>(&x[i][m][r][k],
						                from + W::column(u, k),
						                store >> row & 1 ? in - k : 0);
				}
		}
#pragma unroll
		for (int i = 0; i < U::DEEP; i++)
#pragma unroll
			for (int j0 = 0; j0 < 4; j0 += U::TOGETHER) {
				float b[U::TOGETHER][UNIT];
#pragma unroll
				for (int j = 0; j < U::TOGETHER; j++)
					W::decode(raw[i][j0 + j],
					          min(4 * (part * U::OF_PART + at + i) + t,
					              (int)W::UNITS - 1),
					          b[j]);
#pragma unroll
				for (int k = 0; k < UNIT; k += 2)
#pragma unroll
					for (int m = 0; m < M; m++) {
						tf32_a f;
						mla_split(f, x[i][m][0][k], x[i][m][0][k + 1],
						          x[i][m][1][k], x[i][m][1][k + 1]);
#pragma unroll
						for (int j = 0; j < U::TOGETHER; j++)
							mla_mma<W>(sum[m][j0 + j], f, b[j][k],
							           b[j][k + 1]);
					}
			}
	}
}

/* Adds the parts of a unit and stores its results. */
template <class W, int HEADS, int V> DEV void
mla_value_store(mla_value_shared<W> &s, const typename mla_value_unit<W, V>::sums &sum,
                const w_matrix<W> &v_b, float *y, int h, int col, int t0, unsigned store)
{
	typedef mla_value_unit<W, V> U;
	enum { M = U::ROW_TILES };
	const int lane = lane_id(), g = lane / 4, t = lane % 4, part = (int)warp_id() % U::PARTS,
	          m0 = (int)warp_id() / U::PARTS * 16;

	__syncthreads(); /* all threads have read the previous unit */
#pragma unroll
	for (int m = 0; m < M; m++)
#pragma unroll
		for (int j = 0; j < 4; j++)
#pragma unroll
			for (int r = 0; r < 2; r++)
				st_v2(&s.part[part][m0 + 16 * m + 8 * r + g][8 * j + 2 * t],
				      make_uint2(__float_as_uint(sum[m][j][2 * r]),
				                 __float_as_uint(sum[m][j][2 * r + 1])));
	__syncthreads();
	const int row = (int)threadIdx.x / 8, c = (int)threadIdx.x % 8 * 4;
	float v[4] = {};
#pragma unroll
	for (int p = 0; p < U::PARTS; p++) {
		float w[4];
		mla_four<true>(w, &s.part[p][row][c], 4);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] += w[i];
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] *= v_b.scale;
	mla_put_four<V % 4 == 0>(y + ((long long)(t0 + row) * HEADS + h) * V + col + c, v,
	                         store >> row & 1 ? V - col - c : 0);
}

/* Copies expanded rows, whose values are complete. One warp per row. */
template <class W, int HEADS, int V, int EXPAND> DEV void
mla_value_copy(const llmc_step &step, const float *o, int n, float *y)
{
	enum { RANK = W::COLS, UNIT = W::UNIT, FOURS = (V + 3) / 4, DEEP = 8 };
	constexpr bool WHOLE = RANK % 4 == 0 && RANK % UNIT == 0, WHOLE_Y = V % 4 == 0;
	const int lane = lane_id();

	for (int t = blockIdx.x * MLA_WARPS + warp_id(); t < n; t += gridDim.x * MLA_WARPS)
		if (mla_row_expanded<EXPAND>(step, t))
			for (int i0 = lane; i0 < HEADS * FOURS; i0 += 32 * DEEP) {
				float v[DEEP][4];
#pragma unroll
				for (int j = 0; j < DEEP; j++) {
					const int i = i0 + 32 * j, k = i % FOURS * 4;
					if (i < HEADS * FOURS)
						mla_four<WHOLE && WHOLE_Y>(
						    v[j],
						    o + ((long long)t * HEADS + i / FOURS) * RANK +
						        k,
						    V - k);
				}
#pragma unroll
				for (int j = 0; j < DEEP; j++) {
					const int i = i0 + 32 * j, k = i % FOURS * 4;
					if (i < HEADS * FOURS)
						mla_put_four<WHOLE_Y>(
						    y + ((long long)t * HEADS + i / FOURS) * V + k,
						    v[j], V - k);
				}
			}
}

/* Computes y of absorbed rows by units, tile by tile, and copies expanded rows. o [n_tok, HEADS,
 * W::COLS] */
template <class W, int HEADS, int V, int EXPAND> DEV void
mla_value_tiles(const llmc_step &step, const float *o, const w_matrix<W> &v_b, float *y)
{
	typedef mla_value_unit<W, V> U;
	typedef mla_value_shared<W> shared;
	enum { CHUNKS = (V + U::COLS - 1) / U::COLS, SLICES = HEADS * CHUNKS };
	SHARED(shared, s);
	const int lane = lane_id(), part = (int)warp_id() % U::PARTS;
	const bool early = blockIdx.x < SLICES && (EXPAND == 0 || step.rows <= MLA_EARLY);
	typename U::weights raw;
	bool first = true;

	if (early) {
		const int h = blockIdx.x / CHUNKS;
		U::load(raw, v_b, h * V + blockIdx.x % CHUNKS * U::COLS, (h + 1) * V,
		        part * U::OF_PART);
	}
	const mla_forms forms = mla_forms_of<EXPAND>(step);
	const int n = step.n[0], units = forms.absorbed ? (n + U::ROWS - 1) / U::ROWS * SLICES : 0;

	for (int unit = blockIdx.x; unit < units || first; unit += gridDim.x) {
		const int h = unit % SLICES / CHUNKS, col = unit % CHUNKS * U::COLS,
		          t0 = unit / SLICES * U::ROWS;
		const bool loaded = early && first;
		const unsigned store =
		    __ballot_sync(~0u, unit < units && t0 + lane < n &&
		                           !mla_row_expanded<EXPAND>(step, t0 + lane));

		if (store && !loaded)
			U::load(raw, v_b, h * V + col, (h + 1) * V, part * U::OF_PART);
		if (first) {
			PDL_WAIT();
			PDL_LAUNCH();
			first = false;
		}
		if (!store)
			continue;
		typename U::sums sum = {};
		mla_value_sums<W, HEADS, V>(sum, raw, o, v_b, h, col, t0, store);
		mla_value_store<W, HEADS, V>(s, sum, v_b, y, h, col, t0, store);
	}
	if (forms.expanded)
		mla_value_copy<W, HEADS, V, EXPAND>(step, o, n, y);
}

#endif

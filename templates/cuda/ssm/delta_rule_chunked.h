/* Gated delta rule in chunks of C positions on tensor cores, for one decay per head. S is the state
 * before a chunk; for row i of the chunk, g_i = e_0 .. e_i and d_ij = e_{j+1} .. e_i are cumulative
 * decays. The vectors u of the rule are the solution of a lower triangular system (Yang et al.,
 * arXiv 2406.06484 and 2412.06464):
 *
 *     prep   one CTA per chunk and head
 *              A_ij = beta_i d_ij k_i.k_j (j < i);  T = (I + A)^-1;  P_ij = d_ij q_i.k_j (j <= i)
 *     main   one CTA per 32 columns of a head's state, kept in registers for the whole step
 *              X = beta (V - g K S)      K S and Q S: four warps each
 *              U = T X                   a tile of 16 x 8 per warp
 *              Y = g Q S + P U           four warps
 *              S = g_last S + K^T (U / g_i g_last)
 *
 * Rows of a chunk that are not in the step (cuda/ssm/chunk.h) are zeros with a decay of 1. Operands
 * are split into two tf32 (cuda/gemm/tf32.h). d and g multiply decays and never divide. T is
 * computed by substitution in fp32. The error is about 2^-20 of the largest term, as in the
 * row-by-row kernel.
 *
 * Operations per token and head, with n = 32 columns and K = KD: each of VD / n CTAs takes 4 K n (K
 * S and Q S), 2 K n (S) and 4 C n, times three because of tf32; prep takes 4 C K more. */
#ifndef LLMC_CUDA_SSM_DELTA_RULE_CHUNKED_H
#define LLMC_CUDA_SSM_DELTA_RULE_CHUNKED_H

#include "cuda/ssm/chunk.h"
#include "cuda/ssm/delta_rule.h"
#include "cuda/gemm/tf32.h"

/* Scratch per row [n_tok, VH]: the row of T and of P, and { 1 / |k|, scale / |q|, decay, beta } */
struct delta_scratch {
	float *tp;
	float4 *unit;
};

template <class D> struct delta_tile {
	enum {
		KD = D::KD,
		VD = D::VD,
		KH = D::KH,
		VH = D::VH,
		C = CHUNK,
		COLS = 32,
		SLICES = (VD + COLS - 1) / COLS,
		KP = (KD + 7) / 8 * 8,
		STEPS = KP / 8,
		STRIDE = (KD + 31) / 32 * 32 + 8,
		SHORT = C + 8,
		EACH = (STEPS + 7) / 8 /* tiles of S per warp, with eight warps */
	};
	static_assert(KD <= 128 && KD % 4 == 0 && VD % 4 == 0 && D::GD == 1,
	              "one access per lane and row");
};

DEV float4
delta_load(const float *p, bool there)
{
	return there ? *(const float4 *)p : make_float4(0, 0, 0, 0);
}
DEV float4
delta_scaled(float4 v, float f)
{
	return make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
}
DEV float
delta_square(float4 v)
{
	return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
}

/* ---- prep: T and P of the chunks ---- */

template <class D> struct alignas(16) delta_prepare {
	typedef delta_tile<D> T;
	enum { WARPS = 4 };
	float k[T::C * T::STRIDE], q[T::C * T::STRIDE], a[T::C * T::SHORT], d[T::C * T::SHORT],
	    beta[T::C], k_unit[T::C], q_unit[T::C];

	/* Normalises the rows of k and q and stores their scales. */
	__device__ __forceinline__ void
	rows(const delta_args &in, const chunk_part &at, int h)
	{
		const int lane = (int)lane_id();

		for (int i = (int)warp_id(); i < T::C; i += WARPS) {
			const bool there = i >= at.from && i < at.to;
			const float *x = in.x + (long long)(at.row + i - at.from) * delta_row<D>() +
			                 delta_from<D>(h) * T::KD + 4 * lane;
			const float4 u = delta_load(x, there && 4 * lane < T::KD),
			             v = delta_load(x + T::KH * T::KD, there && 4 * lane < T::KD);
			const float by_q = D::SCALE / sqrtf(warp_sum(delta_square(u)) + D::EPS),
			            by_k = 1 / sqrtf(warp_sum(delta_square(v)) + D::EPS);

			if (4 * lane < T::STRIDE - 8) {
				*(float4 *)(q + i * T::STRIDE + 4 * lane) = delta_scaled(u, by_q);
				*(float4 *)(k + i * T::STRIDE + 4 * lane) = delta_scaled(v, by_k);
			}
			if (lane == 0) {
				q_unit[i] = by_q;
				k_unit[i] = by_k;
			}
		}
	}

	/* Run by one warp: computes decay and beta of row `lane`, then column `lane` of d. */
	__device__ __forceinline__ float
	decays(const delta_args &in, const chunk_part &at, int h)
	{
		const int i = (int)lane_id();
		const long long t = at.row + i - at.from;
		const bool there = i >= at.from && i < at.to;
		const float e =
		    there ? expf(delta_rate<D>(in, h) * softplus(in.a[t * T::VH + h] + in.dt[h]))
		          : 1;
		float run = 0;

		beta[i] = there ? D::B_SCALE * act_sigmoid(in.b[t * T::VH + h]) : 0;
#pragma unroll
		for (int r = 0; r < T::C; r++) {
			const float own = __shfl_sync(0xffffffffu, e, r);
			run = r == i ? 1 : run * own;
			d[r * T::SHORT + i] = run;
		}
		return e;
	}

	/* Run by one warp: computes column `lane` of (I + A)^-1 by substitution. */
	__device__ __forceinline__ void
	solve(float (&t)[T::C]) const
	{
		const int c = (int)lane_id();

#pragma unroll
		for (int i = 0; i < T::C; i++) {
			float sum = i == c ? 1 : 0;
#pragma unroll
			for (int j = 0; j < i; j++)
				sum = fmaf(-a[i * T::SHORT + j], t[j], sum);
			t[i] = sum;
		}
	}

	__device__ __forceinline__ void
	run(const delta_args &in, const chunk_part &at, int h, const delta_scratch &to)
	{
		const int lane = (int)lane_id(), warp = (int)warp_id(), g = lane >> 2,
		          c = 2 * (lane & 3);
		float e = 1, kk[2][4] = {}, qk[2][4] = {};

		__syncthreads();
		rows(in, at, h);
		if (warp == 0)
			e = decays(in, at, h);
		__syncthreads();
		/* Eight columns per warp. Rows 0 to 15 need only the first sixteen columns, because
		 * the result is lower triangular. */
#pragma unroll 1 /* if unrolled by 2, registers spill on sm_100a */
		for (int s = 0; s < T::STEPS; s++) {
			tf32_b b;
			tf32_get(b, k + warp * 8 * T::STRIDE + s * 8, T::STRIDE);
#pragma unroll
			for (int m = 0; m < 2; m++)
				if (m || warp < 2) {
					tf32_a u;
					tf32_get(u, k + m * 16 * T::STRIDE + s * 8, T::STRIDE);
					tf32_mma(kk[m], u, b);
					tf32_get(u, q + m * 16 * T::STRIDE + s * 8, T::STRIDE);
					tf32_mma(qk[m], u, b);
				}
		}
#pragma unroll
		for (int m = 0; m < 2; m++)
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int i = m * 16 + g + n / 2 * 8, j = warp * 8 + c + n % 2;
				const float keep = d[i * T::SHORT + j];
				a[i * T::SHORT + j] = j < i ? beta[i] * keep * kk[m][n] : 0;
				if (i >= at.from && i < at.to)
					to.tp[((at.row + i - at.from) * (long long)T::VH + h) * 64 +
					      32 + j] = j <= i ? keep * qk[m][n] : 0;
			}
		__syncthreads();
		if (warp == 0) {
			float t[T::C];
			solve(t);
#pragma unroll
			for (int i = 0; i < T::C; i++)
				if (i >= at.from && i < at.to)
					to.tp[((at.row + i - at.from) * (long long)T::VH + h) * 64 +
					      lane] = t[i];
			if (lane >= at.from && lane < at.to)
				to.unit[(at.row + lane - at.from) * (long long)T::VH + h] =
				    make_float4(k_unit[lane], q_unit[lane], e, beta[lane]);
		}
	}

	/* Distributes chunks and heads of prefill sequences over the CTAs. */
	__device__ __forceinline__ void
	deal(const llmc_step &s, const delta_args &in, int n_dec, int n_seq,
	     const delta_scratch &to)
	{
		chunk_schedule(s, n_dec, n_seq, T::VH,
		               [&](const chunk_part &at, int h) { run(in, at, h, to); });
	}
};

/* ---- main: iteration over chunks ---- */

template <class D> struct alignas(16) delta_main {
	typedef delta_tile<D> T;
	enum { WARPS = 8, ROWS = T::C / WARPS };
	float k[T::C * T::STRIDE], q[T::C * T::STRIDE],
	    s[T::COLS * T::STRIDE]; /* s: [column][row] */
	float t[T::C * T::SHORT], p[T::C * T::SHORT], x[T::COLS * T::SHORT], u[T::COLS * T::SHORT],
	    v[T::C * T::SHORT];                        /* x, u: [column][row of the chunk] */
	float gain[T::C], rest[T::C], beta[T::C], all; /* g_i, g_last / g_i, beta_i, g_last */

	/* Loads in flight for the next chunk. Each thread has four elements of rows of k and q, of
	 * T, P and V; each lane of warp 0 also has decay and beta of one row. */
	struct Ahead {
		float4 k[ROWS], q[ROWS], t, p, v;
		float by_k[ROWS], by_q[ROWS], e, beta;
	};

	DEV void
	issue_loads(Ahead &to, const delta_args &in, const delta_scratch &scratch,
	            const chunk_part &at, int h, int col)
	{
		const int lane = (int)lane_id(), warp = (int)warp_id(), i = (int)threadIdx.x / 8,
		          j = 4 * ((int)threadIdx.x % 8);
		const int step =
		    at.row -
		    at.from; /* difference between a row's number in the step and in the chunk */
		const bool there = i >= at.from && i < at.to;
		const float *x = in.x + (long long)step * delta_row<D>();

#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			const int row = warp * ROWS + r;
			const bool is = row >= at.from && row < at.to;
			const float *own = x + (long long)row * delta_row<D>() +
			                   delta_from<D>(h) * T::KD + 4 * lane;
			const float4 by = is ? scratch.unit[(long long)(step + row) * T::VH + h]
			                     : make_float4(0, 0, 1, 0);
			to.q[r] = delta_load(own, is && 4 * lane < T::KD);
			to.k[r] = delta_load(own + T::KH * T::KD, is && 4 * lane < T::KD);
			to.by_k[r] = by.x;
			to.by_q[r] = by.y;
		}
		to.t = delta_load(scratch.tp + ((long long)(step + i) * T::VH + h) * 64 + j, there);
		to.p = delta_load(scratch.tp + ((long long)(step + i) * T::VH + h) * 64 + 32 + j,
		                  there);
		to.v = delta_load(x + (long long)i * delta_row<D>() + 2 * T::KH * T::KD +
		                      h * T::VD + col + j,
		                  there && col + j < T::VD);
		if (warp == 0) {
			const float4 by = lane >= at.from && lane < at.to
			                      ? scratch.unit[(long long)(step + lane) * T::VH + h]
			                      : make_float4(0, 0, 1, 0);
			to.e = by.z;
			to.beta = by.w;
		}
	}

	__device__ __forceinline__ void
	load_chunk(const Ahead &from)
	{
		const int lane = (int)lane_id(), warp = (int)warp_id(),
		          at = (int)threadIdx.x / 8 * T::SHORT + 4 * ((int)threadIdx.x % 8);

		if (4 * lane < T::STRIDE - 8)
#pragma unroll
			for (int r = 0; r < ROWS; r++) {
				*(float4 *)(k + (warp * ROWS + r) * T::STRIDE + 4 * lane) =
				    delta_scaled(from.k[r], from.by_k[r]);
				*(float4 *)(q + (warp * ROWS + r) * T::STRIDE + 4 * lane) =
				    delta_scaled(from.q[r], from.by_q[r]);
			}
		*(float4 *)(t + at) = from.t;
		*(float4 *)(p + at) = from.p;
		*(float4 *)(v + at) = from.v;
		if (warp == 0) {
			float up = from.e, down = from.e;
#pragma unroll
			for (int n = 1; n < T::C; n *= 2) {
				const float a = __shfl_up_sync(0xffffffffu, up, n),
				            b = __shfl_down_sync(0xffffffffu, down, n);
				up *= lane >= n ? a : 1;
				down *= lane + n < T::C ? b : 1;
			}
			down = __shfl_down_sync(0xffffffffu, down, 1);
			gain[lane] = up;
			rest[lane] = lane + 1 < T::C ? down : 1;
			beta[lane] = from.beta;
			if (lane + 1 == T::C)
				all = up;
		}
	}

	/* Row of the state that this lane holds in tile e of its warp. In half m, element n has row
	 * j + n % 2 and column m * 16 + g + n / 2 * 8, where j is the returned row. */
	DEV int
	tile_row(int e)
	{
		return ((int)warp_id() * T::EACH + e) * 8 + 2 * ((int)lane_id() & 3);
	}

	/* Copies the state to shared memory for K S and Q S. */
	__device__ __forceinline__ void
	show(const float (&own)[T::EACH][2][4])
	{
		const int g = (int)lane_id() >> 2;

#pragma unroll
		for (int e = 0; e < T::EACH; e++)
			if (tile_row(e) < T::KP)
#pragma unroll
				for (int m = 0; m < 2; m++)
#pragma unroll
					for (int n = 0; n < 4; n += 2)
						st_v2(
						    s + (m * 16 + g + n * 4) * T::STRIDE +
						        tile_row(e),
						    make_uint2(__float_as_uint(own[e][m][n]),
						               __float_as_uint(own[e][m][n + 1])));
	}

	/* Stores y of the chunk's rows; acc has Q S of both halves of the rows. */
	__device__ __forceinline__ void
	results(float (&acc)[2][4], const chunk_part &at, int h, int col, int tile, float *y) const
	{
		const int g = (int)lane_id() >> 2, c = col + tile * 8 + 2 * ((int)lane_id() & 3);

#pragma unroll
		for (int m = 0; m < 2; m++) {
#pragma unroll
			for (int n = 0; n < 4; n++)
				acc[m][n] *= gain[m * 16 + g + n / 2 * 8];
#pragma unroll
			for (int step = 0; step < 2 + 2 * m; step++) { /* P is lower triangular */
				tf32_a a;
				tf32_b b;
				tf32_get(a, p + m * 16 * T::SHORT + step * 8, T::SHORT);
				tf32_get(b, u + tile * 8 * T::SHORT + step * 8, T::SHORT);
				tf32_mma(acc[m], a, b);
			}
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int i = m * 16 + g + n / 2 * 8;
				if (i >= at.from && i < at.to && c + n % 2 < T::VD)
					y[((long long)(at.row + i - at.from) * T::VH + h) * T::VD +
					  c + n % 2] = acc[m][n];
			}
		}
	}

	/* S^T = g_last S^T + (U g_last / g_i)^T K. Positions are the K dimension of the mma; lane t
	 * has positions t and t + 4 of each eight. */
	__device__ __forceinline__ void
	advance(float (&own)[T::EACH][2][4]) const
	{
		const int lane = (int)lane_id(), g = lane >> 2, i = lane & 3;
		const float keep = all;

#pragma unroll
		for (int e = 0; e < T::EACH; e++)
#pragma unroll
			for (int m = 0; m < 2; m++)
#pragma unroll
				for (int n = 0; n < 4; n++)
					own[e][m][n] *= keep;
#pragma unroll
		for (int step = 0; step < T::C / 8; step++) {
			tf32_a a[2];
#pragma unroll
			for (int m = 0; m < 2; m++)
#pragma unroll
				for (int n = 0; n < 4; n++) {
					const int row = step * 8 + i + n / 2 * 4;
					tf32_split(u[(m * 16 + g + n % 2 * 8) * T::SHORT + row] *
					               rest[row],
					           a[m].hi[n], a[m].lo[n]);
				}
#pragma unroll
			for (int e = 0; e < T::EACH; e++)
				if (tile_row(e) < T::KP) {
					tf32_b b;
#pragma unroll
					for (int n = 0; n < 2; n++)
						tf32_split(
						    k[(step * 8 + i + n * 4) * T::STRIDE +
						      ((int)warp_id() * T::EACH + e) * 8 + g],
						    b.hi[n], b.lo[n]);
#pragma unroll
					for (int m = 0; m < 2; m++)
						tf32_mma(own[e][m], a[m], b);
				}
		}
	}

	/* Processes all chunks of sequence `seq` of the step, for the columns of head h from `col`
	 * on. */
	__device__ __forceinline__ void
	run(const llmc_step &step, const delta_args &in, const delta_scratch &scratch, int seq,
	    int h, int col)
	{
		const int lane = (int)lane_id(), warp = (int)warp_id(), g = lane >> 2,
		          c = 2 * (lane & 3), half = warp / 4, tile = warp % 4,
		          chunks = chunk_count(step, seq);
		const bool begins = step.pos[step.q_start[seq]] == 0;
		float *state = delta_state<D>(step, in, seq, h) + col, own[T::EACH][2][4];
		chunk_part at = chunk_part_of(step, seq, 0);
		Ahead ahead;

		issue_loads(ahead, in, scratch, at, h, col);
#pragma unroll
		for (int e = 0; e < T::EACH; e++)
#pragma unroll
			for (int m = 0; m < 2; m++)
#pragma unroll
				for (int n = 0; n < 4; n++) {
					const int j = tile_row(e) + n % 2,
					          at_col = m * 16 + g + n / 2 * 8;
					own[e][m][n] = !begins && j < T::KD && col + at_col < T::VD
					                   ? state[(long long)j * T::VD + at_col]
					                   : 0;
				}
		show(own);
#pragma unroll 1
		for (int n_chunk = 0; n_chunk < chunks; n_chunk++) {
			float acc[2][4] = {}, one[4] = {};
			const chunk_part now = at;

			load_chunk(ahead);
			__syncthreads();
			if (n_chunk + 1 < chunks) {
				at = chunk_part_of(step, seq, n_chunk + 1);
				issue_loads(ahead, in, scratch, at, h, col);
			}
			/* K S or Q S of eight columns */
#pragma unroll 4
			for (int i = 0; i < T::STEPS; i++) {
				tf32_b b;
				tf32_get(b, s + tile * 8 * T::STRIDE + i * 8, T::STRIDE);
#pragma unroll
				for (int m = 0; m < 2; m++) {
					tf32_a a;
					tf32_get(a, (half ? q : k) + m * 16 * T::STRIDE + i * 8,
					         T::STRIDE);
					tf32_mma(acc[m], a, b);
				}
			}
			if (half == 0)
#pragma unroll
				for (int m = 0; m < 2; m++)
#pragma unroll
					for (int n = 0; n < 4; n++) {
						const int i = m * 16 + g + n / 2 * 8,
						          j = tile * 8 + c + n % 2;
						x[j * T::SHORT + i] =
						    beta[i] *
						    (v[i * T::SHORT + j] - gain[i] * acc[m][n]);
					}
			__syncthreads();
#pragma unroll
			for (int i = 0; i < T::C / 8; i++)
				if (half || i < 2) { /* T is lower triangular */
					tf32_a a;
					tf32_b b;
					tf32_get(a, t + half * 16 * T::SHORT + i * 8, T::SHORT);
					tf32_get(b, x + tile * 8 * T::SHORT + i * 8, T::SHORT);
					tf32_mma(one, a, b);
				}
#pragma unroll
			for (int n = 0; n < 4; n++)
				u[(tile * 8 + c + n % 2) * T::SHORT + half * 16 + g + n / 2 * 8] =
				    one[n];
			__syncthreads();
			if (half)
				results(acc, now, h, col, tile, in.y);
			advance(own);
			show(own);
			__syncthreads();
		}
#pragma unroll
		for (int e = 0; e < T::EACH; e++)
#pragma unroll
			for (int m = 0; m < 2; m++)
#pragma unroll
				for (int n = 0; n < 4; n++) {
					const int j = tile_row(e) + n % 2,
					          at_col = m * 16 + g + n / 2 * 8;
					if (j < T::KD && col + at_col < T::VD)
						state[(long long)j * T::VD + at_col] = own[e][m][n];
				}
	}

	/* Processes the sequences after the first n_dec; each CTA has one slice of columns of a
	 * head. */
	__device__ __forceinline__ void
	deal(const llmc_step &step, const delta_args &in, const delta_scratch &scratch, int n_dec,
	     int n_seq)
	{
		const int i = (int)blockIdx.x;

		if (i < (n_seq - n_dec) * T::VH * T::SLICES)
			run(step, in, scratch, n_dec + i / T::SLICES / T::VH, i / T::SLICES % T::VH,
			    i % T::SLICES * T::COLS);
	}
};

#endif

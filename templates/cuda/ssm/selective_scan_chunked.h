/* Selective scan in chunks of C positions on tensor cores (Dao and Gu, arXiv 2405.21060). S is the
 * state before a chunk. Row i of the chunk has u_i, B_i, C_i and d_i, and l_i is the sum of rate
 * d_0 .. rate d_i:
 *
 *     prep   one CTA per chunk and group: C_i.B_j; one warp per head: l and d
 *     main   one CTA per 32 columns of a head's state, kept in registers for the whole step; each
 *            of eight warps has half of the columns and a quarter of the rows
 *              P_ij = exp(l_i - l_j) d_j C_i.B_j (j < i), plus skip for j = i
 *              Y = exp(l_i) C S + P U     each warp sums over its quarter of the rows, for eight
 *                                     rows of C at a time; the warp that owns these rows adds P U
 *              S = exp(l_last) S + (U exp(l_last - l_j) d_j)^T B
 *
 *            in flight:   B of the chunk        while Y is computed
 *                         C, U of the next      while S is computed
 *
 * A warp holds S^T in the accumulator layout, which is also the layout of the A operand of Y^T =
 * S^T C^T, so no shuffle is needed. Rows of a chunk that are not in the step (cuda/ssm/chunk.h) are
 * zeros, without decay. Operands are split into two tf32 (cuda/gemm/tf32.h). l is the sum of two
 * floats, so differences of l are as accurate as its terms.
 *
 * Operations per token and head: (4 N + 2 C) DIM, times three because of tf32; prep takes 2 C N per
 * token and group. */
#ifndef LLMC_CUDA_SSM_SELECTIVE_SCAN_CHUNKED_H
#define LLMC_CUDA_SSM_SELECTIVE_SCAN_CHUNKED_H

#include "cuda/ssm/chunk.h"
#include "cuda/ssm/selective_scan.h"
#include "cuda/gemm/tf32.h"

/* Scratch for the step's n rows. cb [n, G, C]: C_i.B_j, where j is a row of i's chunk; way [H, n]:
 * { l, its rounding residue, d } */
struct scan_scratch {
	float *cb;
	float4 *way;
	int n;
};

/* ---- prep: C.B and sums of steps of the chunks ---- */

template <class D> struct alignas(16) scan_prepare {
	enum { WARPS = 4, C = CHUNK, SLAB = 128, STRIDE = SLAB + 8 };
	float b[C * STRIDE], c[C * STRIDE];

	/* Loads SLAB elements of B and C from n on. */
	__device__ __forceinline__ void
	rows(const scan_args &in, const chunk_part &at, int group, int n)
	{
		const int j = n + 4 * (int)lane_id();

		for (int i = (int)warp_id(); i < C; i += WARPS) {
			const bool there = i >= at.from && i < at.to && j < D::N;
			const float *x = in.x + (long long)(at.row + i - at.from) * scan_row<D>() +
			                 D::H * D::DIM + group * D::N + j;
			*(float4 *)(b + i * STRIDE + j - n) =
			    there ? *(const float4 *)x : make_float4(0, 0, 0, 0);
			*(float4 *)(c + i * STRIDE + j - n) =
			    there ? *(const float4 *)(x + D::G * D::N) : make_float4(0, 0, 0, 0);
		}
	}

	/* Run by one warp: computes l and d of row `lane` of head h. */
	__device__ __forceinline__ void
	way(const scan_args &in, const chunk_part &at, int h, const scan_scratch &to) const
	{
		const int i = (int)lane_id();
		const long long t = at.row + i - at.from;
		const bool there = i >= at.from && i < at.to;
		const float d = there ? scan_step<D>(in.dt[t * D::H + h], in.bias[h]) : 0;
		/* exp is 0 below this anyway */
		float l = fmaxf(scan_rate<D>(in, h) * d, -256), rest = 0;

#pragma unroll
		for (int n = 1; n < C; n *= 2) {
			const float a = __shfl_up_sync(0xffffffffu, l, n),
			            a_rest = __shfl_up_sync(0xffffffffu, rest, n);
			if (i >= n) {
				const float sum = l + a, of_a = sum - l;
				rest += a_rest + ((l - (sum - of_a)) + (a - of_a));
				l = sum;
			}
		}
		if (there)
			to.way[(long long)h * to.n + t] = make_float4(l, rest, d, 0);
	}

	__device__ __forceinline__ void
	run(const scan_args &in, const chunk_part &at, int group, const scan_scratch &to)
	{
		const int lane = (int)lane_id(), warp = (int)warp_id();
		float sum[2][4] = {};

		for (int n = 0; n < D::N; n += SLAB) {
			__syncthreads();
			rows(in, at, group, n);
			__syncthreads();
			/* Eight columns per warp. Rows 0 to 15 need only the first sixteen columns,
			 * because the result is lower triangular. */
#pragma unroll 2
			for (int s = 0; s < min((int)SLAB, D::N - n + 7) / 8; s++) {
				tf32_b v;
				tf32_get(v, b + warp * 8 * STRIDE + s * 8, STRIDE);
#pragma unroll
				for (int m = 0; m < 2; m++)
					if (m || warp < 2) {
						tf32_a u;
						tf32_get(u, c + m * 16 * STRIDE + s * 8, STRIDE);
						tf32_mma(sum[m], u, v);
					}
			}
		}
#pragma unroll
		for (int m = 0; m < 2; m++)
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int i = m * 16 + (lane >> 2) + n / 2 * 8,
				          j = warp * 8 + 2 * (lane & 3) + n % 2;
				if (i >= at.from && i < at.to)
					to.cb[((at.row + i - at.from) * (long long)D::G + group) *
					          C +
					      j] = sum[m][n];
			}
		for (int h = warp; h < D::H / D::G; h += WARPS)
			way(in, at, group * (D::H / D::G) + h, to);
	}

	/* Distributes chunks and groups of prefill sequences over the CTAs. */
	__device__ __forceinline__ void
	deal(const llmc_step &s, const scan_args &in, int n_dec, int n_seq, const scan_scratch &to)
	{
		chunk_schedule(s, n_dec, n_seq, D::G,
		               [&](const chunk_part &at, int group) { run(in, at, group, to); });
	}
};

/* ---- main: iteration over chunks ---- */

template <class D> struct alignas(16) scan_main {
	enum {
		C = CHUNK,
		WARPS = 8,
		COLS = 32,
		SLICES = (D::DIM + COLS - 1) / COLS,
		SHORT = C + 8,
		KP = (D::N + 31) / 32 * 32,
		EACH = KP / 32 /* tiles of eight rows of S per quarter */,
		C_ROW = KP + 8,
		B_ROW = KP + 4
	};
	static_assert(D::N % 4 == 0 && D::DIM % 4 == 0, "16-byte vectors");
	float c[C * C_ROW], b[C * B_ROW]; /* [row of the chunk][row of S] */
	/* [column][row of the chunk]; w: u d_j exp(l_last - l_j), for this chunk and the next */
	float u[COLS * SHORT], w[2][COLS * SHORT], p[C * SHORT];
	float gain[C];             /* exp(l) */
	float4 part[3][WARPS][32]; /* partial sums for a warp, written by the warp whose quarter
	                              comes so many later */

	/* Loads in flight for the next chunk. Each thread has four columns of row `lane` of U, l
	 * and d of that row, and four C_i.B_j. */
	struct Ahead {
		float4 u, cb, way;
	};

	DEV int
	quarter()
	{
		return (int)warp_id() / 2;
	}
	DEV int
	side()
	{
		return (int)warp_id() % 2;
	}

	DEV void
	issue_loads(Ahead &to, const scan_args &in, const scan_scratch &scratch,
	            const chunk_part &at, int h, int col)
	{
		const int lane = (int)lane_id(), i = (int)threadIdx.x / 8,
		          at_col = col + 4 * (int)warp_id();
		const long long step =
		    at.row -
		    at.from; /* difference between a row's number in the step and in the chunk */
		const bool there = lane >= at.from && lane < at.to;

		to.u = there && at_col < D::DIM
		           ? *(const float4 *)(in.x + (step + lane) * scan_row<D>() + h * D::DIM +
		                               at_col)
		           : make_float4(0, 0, 0, 0);
		to.way = lane >= at.from
		             ? scratch.way[(long long)h * scratch.n + step + min(lane, at.to - 1)]
		             : make_float4(0, 0, 0, 0);
		to.cb = i >= at.from && i < at.to
		            ? *(const float4 *)(scratch.cb +
		                                ((step + i) * D::G + scan_group<D>(h)) * C +
		                                4 * (threadIdx.x % 8))
		            : make_float4(0, 0, 0, 0);
	}

	/* exp(l_i - l_j) */
	DEV float
	fades(float l, float rest, float of_l, float of_rest)
	{
		return expf((l - of_l) + (rest - of_rest));
	}

	__device__ __forceinline__ void
	load_chunk(const Ahead &from, float skip, int turn)
	{
		const int lane = (int)lane_id(), warp = (int)warp_id(), i = (int)threadIdx.x / 8,
		          j = 4 * ((int)threadIdx.x % 8);
		const float l = from.way.x, rest = from.way.y, d = from.way.z;
		const float left = d * fades(__shfl_sync(0xffffffffu, l, C - 1),
		                             __shfl_sync(0xffffffffu, rest, C - 1), l, rest);
		const float l_i = __shfl_sync(0xffffffffu, l, i),
		            rest_i = __shfl_sync(0xffffffffu, rest, i);
		const float us[4] = { from.u.x, from.u.y, from.u.z, from.u.w };
		float ps[4] = { from.cb.x, from.cb.y, from.cb.z, from.cb.w };

#pragma unroll
		for (int n = 0; n < 4; n++) {
			const float l_j = __shfl_sync(0xffffffffu, l, j + n),
			            rest_j = __shfl_sync(0xffffffffu, rest, j + n),
			            d_j = __shfl_sync(0xffffffffu, d, j + n);
			ps[n] = j + n > i ? 0
			                  : ps[n] * d_j * fades(l_i, rest_i, l_j, rest_j) +
			                        (j + n == i ? skip : 0);
			u[(4 * warp + n) * SHORT + lane] = us[n];
			w[turn][(4 * warp + n) * SHORT + lane] = us[n] * left;
		}
		*(float4 *)(p + i * SHORT + j) = make_float4(ps[0], ps[1], ps[2], ps[3]);
		if (warp == 0)
			gain[lane] = expf(l + rest);
	}

	/* Starts the loads of B or C of the chunk. from: offset within a row of x */
	__device__ __forceinline__ void
	fetch(float *to, int stride, const scan_args &in, const chunk_part &at, int from) const
	{
#pragma unroll 4
		for (int n = threadIdx.x; n < C * KP / 4; n += WARPS * 32) {
			const int i = n / (KP / 4), j = 4 * (n % (KP / 4));
			const bool there = i >= at.from && i < at.to && j < D::N;
			cp_async_16_fill(
			    to + i * stride + j,
			    there ? in.x + (long long)(at.row + i - at.from) * scan_row<D>() +
			                from + j
			          : in.x,
			    there ? 16 : 0);
		}
		cp_async_commit();
	}

	/* Computes this warp's part of Y^T. Its own eight rows of the chunk go to `mine`, rows of
	 * other warps to shared memory. */
	__device__ __forceinline__ void
	results(const float (&own)[EACH][4], float (&mine)[4])
	{
		const int lane = (int)lane_id();
		float acc[4][4] = {};
		tf32_a a;
		tf32_b v;

#pragma unroll
		for (int e = 0; e < EACH; e++) {
#pragma unroll
			for (int n = 0; n < 4; n++)
				tf32_split(own[e][n], a.hi[n / 2 + n % 2 * 2],
				           a.lo[n / 2 + n % 2 * 2]);
#pragma unroll
			for (int n = 0; n < 4; n++) {
				tf32_get(v, c + n * 8 * C_ROW + (quarter() * EACH + e) * 8, C_ROW);
				tf32_mma(acc[n], a, v);
			}
		}
#pragma unroll
		for (int n = 0; n < 4; n++) {
			const float2 g = *(const float2 *)(gain + n * 8 + 2 * (lane & 3));
			const float4 sum = make_float4(acc[n][0] * g.x, acc[n][1] * g.y,
			                               acc[n][2] * g.x, acc[n][3] * g.y);
			if (n != quarter())
				part[((quarter() - n) & 3) - 1][n * 2 + side()][lane] = sum;
			else {
				mine[0] = sum.x;
				mine[1] = sum.y;
				mine[2] = sum.z;
				mine[3] = sum.w;
			}
		}
		for (int step = 0; step <= quarter(); step++) { /* P is lower triangular */
			tf32_get(a, u + side() * 16 * SHORT + step * 8, SHORT);
			tf32_get(v, p + quarter() * 8 * SHORT + step * 8, SHORT);
			tf32_mma(mine, a, v);
		}
	}

	/* Stores y of this warp's eight rows and sixteen columns. */
	__device__ __forceinline__ void
	finish(float (&mine)[4], const chunk_part &at, int h, int col, float *y) const
	{
		const int lane = (int)lane_id(), row = quarter() * 8 + 2 * (lane & 3),
		          at_col = col + side() * 16 + (lane >> 2);

#pragma unroll
		for (int n = 0; n < 3; n++) {
			const float4 more = part[n][warp_id()][lane];
			mine[0] += more.x;
			mine[1] += more.y;
			mine[2] += more.z;
			mine[3] += more.w;
		}
#pragma unroll
		for (int n = 0; n < 4; n++) {
			const int i = row + n % 2, j = at_col + n / 2 * 8;
			if (i >= at.from && i < at.to && j < D::DIM)
				y[((long long)(at.row + i - at.from) * D::H + h) * D::DIM + j] =
				    mine[n];
		}
	}

	/* Updates S. Lane t has positions 2 t and 2 t + 1 of each eight. */
	__device__ __forceinline__ void
	advance(float (&own)[EACH][4], float keep, int turn) const
	{
		const int lane = (int)lane_id();

#pragma unroll
		for (int e = 0; e < EACH; e++)
#pragma unroll
			for (int n = 0; n < 4; n++)
				own[e][n] *= keep;
#pragma unroll
		for (int step = 0; step < C / 8; step++) {
			tf32_a a;
			tf32_get(a, w[turn] + side() * 16 * SHORT + step * 8, SHORT);
#pragma unroll
			for (int e = 0; e < EACH; e++) {
				tf32_b v;
#pragma unroll
				for (int n = 0; n < 2; n++)
					tf32_split(b[(step * 8 + 2 * (lane & 3) + n) * B_ROW +
					             (quarter() * EACH + e) * 8 + (lane >> 2)],
					           v.hi[n], v.lo[n]);
				tf32_mma(own[e], a, v);
			}
		}
	}

	/* Processes all chunks of sequence `seq` of the step, for the columns of head h from `col`
	 * on. */
	__device__ __forceinline__ void
	run(const llmc_step &s, const scan_args &in, const scan_scratch &scratch, int q, int h,
	    int col)
	{
		const int lane = (int)lane_id(), chunks = chunk_count(s, q),
		          b_from = D::H * D::DIM + scan_group<D>(h) * D::N,
		          c_from = b_from + D::G * D::N;
		const int row = quarter() * EACH * 8 + 2 * (lane & 3),
		          at_col = side() * 16 + (lane >> 2);
		const bool begins = s.pos[s.q_start[q]] == 0;
		const float skip = in.skip[h];
		float *state = scan_state<D>(s, in, q, h) + col, own[EACH][4];
		chunk_part at = chunk_part_of(s, q, 0);
		Ahead ahead;

		fetch(c, C_ROW, in, at, c_from);
		issue_loads(ahead, in, scratch, at, h, col);
#pragma unroll
		for (int e = 0; e < EACH; e++)
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int i = row + e * 8 + n % 2, j = at_col + n / 2 * 8;
				own[e][n] = !begins && i < D::N && col + j < D::DIM
				                ? state[(long long)i * D::DIM + j]
				                : 0;
			}
		load_chunk(ahead, skip, 0);
		cp_async_wait_all();
#pragma unroll 1
		for (int n = 0; n < chunks; n++) {
			const chunk_part now = at;
			float mine[4];

			__syncthreads();
			const float keep = gain[C - 1];
			fetch(b, B_ROW, in, now, b_from);
			results(own, mine);
			cp_async_wait_all();
			__syncthreads();
			if (n + 1 < chunks) {
				at = chunk_part_of(s, q, n + 1);
				fetch(c, C_ROW, in, at, c_from);
				issue_loads(ahead, in, scratch, at, h, col);
			}
			finish(mine, now, h, col, in.y);
			advance(own, keep, n % 2);
			if (n + 1 < chunks)
				load_chunk(ahead, skip, (n + 1) % 2);
			cp_async_wait_all();
		}
#pragma unroll
		for (int e = 0; e < EACH; e++)
#pragma unroll
			for (int n = 0; n < 4; n++) {
				const int i = row + e * 8 + n % 2, j = at_col + n / 2 * 8;
				if (i < D::N && col + j < D::DIM)
					state[(long long)i * D::DIM + j] = own[e][n];
			}
	}

	/* Processes the sequences after the first n_dec. Each CTA has one slice of columns of a
	 * head, so no barrier is needed before shared memory is used. */
	__device__ __forceinline__ void
	deal(const llmc_step &s, const scan_args &in, const scan_scratch &scratch, int n_dec,
	     int n_seq)
	{
		const int i = (int)blockIdx.x;

		if (i < (n_seq - n_dec) * D::H * SLICES)
			run(s, in, scratch, n_dec + i / SLICES / D::H, i / SLICES % D::H,
			    i % SLICES * COLS);
	}
};

#endif

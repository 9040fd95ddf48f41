/* Loads x of a GEMV to shared memory. The norm is applied except for its root. Each value is split
 * into a 16-bit part and the rounding residual, in the fragment layout of the tensor cores. */
#ifndef LLMC_CUDA_GEMV_GEMV_X_H
#define LLMC_CUDA_GEMV_GEMV_X_H

#include "cuda/gemv/gemv_smem.h"

DEV void
gemv_floats(float (&v)[4], const float *p)
{
	const uint4 q = ld_v4(p);

	v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z),
	v[3] = __uint_as_float(q.w);
}

/* Splits a pair into its 16-bit part and the rounding residual, as the mma needs them. */
template <class W> DEV void
gemv_split(unsigned &hi, unsigned &lo, float a, float b)
{
	if (W::BF16) {
		hi = pack_bf16(a, b);
		lo = pack_bf16(a - bf16_lo(hi), b - bf16_hi(hi));
	} else {
		hi = pack_f16(a, b);
		lo = pack_f16(a - f16_lo(hi), b - f16_hi(hi));
	}
}

/* Converts two groups of four values of a chunk to the B registers of its two mma: the 16-bit parts
 * and the rounding residuals. */
template <class W> DEV void
gemv_fragments(uint4 &hi, uint4 &lo, const float (&v)[4], const float (&w)[4],
               const float (&scale)[4])
{
	enum { B = W::stream::NIBBLES ? 2 : 1, C = W::stream::NIBBLES ? 1 : 2 };
	gemv_split<W>(hi.x, lo.x, v[0] * scale[0], v[B] * scale[0]);
	gemv_split<W>(hi.y, lo.y, v[C] * scale[1], v[3] * scale[1]);
	gemv_split<W>(hi.z, lo.z, w[0] * scale[2], w[B] * scale[2]);
	gemv_split<W>(hi.w, lo.w, w[C] * scale[3], w[3] * scale[3]);
}

/* Returns whether the columns of a lane's chunk are in the row. */
template <class W> DEV bool
gemv_in(int unit, int c, int t)
{
	return W::stream::TAIL == 0 || W::stream::col(unit, c, t) < W::COLS;
}

/* Norms four elements of a row except for the root, and adds their squares to ss. g: weights of the
 * norm; b: its bias, or NULL */
template <class NORM> DEV void
gemv_norm(float (&v)[4], const uint4 &q, const norm_vectors &norm, const float (&g)[4],
          const float *b, const float (&stat)[2], float &ss)
{
	v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z),
	v[3] = __uint_as_float(q.w);
	if (NORM::MEAN) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = (v[i] - stat[0]) * stat[1];
	} else if (NORM::NORMED) {
#pragma unroll
		for (int i = 0; i < 4; i++)
			ss = fmaf(v[i], v[i], ss);
	}
#pragma unroll
	for (int i = 0; NORM::NORMED && norm.w && i < 4; i++)
		v[i] *= g[i] + norm.plus_one;
	if (b) {
		float h[4];
		gemv_floats(h, b);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] += h[i];
	}
}

/* Floats between rows of x: E::X_STRIDE if the epilogue has it, else the columns */
template <class G, class E> DEV constexpr auto
gemv_x_stride(int) -> decltype((int)E::X_STRIDE)
{
	return E::X_STRIDE;
}
template <class G, class E> DEV constexpr int
gemv_x_stride(long)
{
	return G::COLS;
}

/* For block formats and one row: computes the sums of x over the columns that share a lane's scales
 * (SPLIT), times SUM, which gives them the unit of the mma's results. */
template <class G> DEV void
gemv_sums(typename G::shared_storage &sm, int units)
{
	typedef typename G::S S;
	typename G::warp_storage &own = sm.warp[warp_id()];
	const int n = units * 4;

	__syncwarp();
#pragma unroll 1
	for (int i = (int)lane_id(); i < (n + 31) / 32 * 32; i += 32) {
		const uint4 *from = own.one.x + min(i, n - 1) / 4 * S::CHUNKS * 8 + i % 4;
		float low = 0, high = 0;
#pragma unroll
		for (int c = 0; c < 2 * S::CHUNKS; c++) {
			const uint4 v = from[c * 4];
			low += (f16_lo(v.x) + f16_hi(v.x)) * (1 / S::part(c / 2, 0)) +
			       (f16_lo(v.y) + f16_hi(v.y)) * (1 / S::part(c / 2, 1));
			high += (f16_lo(v.z) + f16_hi(v.z)) * (1 / S::part(c / 2, 2)) +
			        (f16_lo(v.w) + f16_hi(v.w)) * (1 / S::part(c / 2, 3));
		}
		if (S::SPLIT == 0)
			low += high;
		if (S::SPLIT == 1) {
			const float other = __shfl_xor_sync(0xffffffffu, i & 1 ? low : high, 1);
			low = (i & 1 ? high : low) + other;
		}
		if (i < n)
			own.one.sums[i] = make_uint2(__float_as_uint(low * (S::SUM * W_WHOLE)),
			                             __float_as_uint(high * (S::SUM * W_WHOLE)));
	}
}

/* For 16-bit formats other than bf16: scales the rows in `to` and splits them into fragments. A
 * power of two brings the row's largest value, of which the lane has seen `most`, to 2^13 .. 2^14,
 * so that nothing overflows and little precision is lost. The lane's chunks are every step-th of
 * [begin, end). */
template <class G> DEV void
gemv_scale_x(uint4 *to, float (&back)[2], bool one, float most, int R, int begin, int step, int end)
{
	typedef typename G::S S;

	for (int d = 1; d < 32; d = d == 2 ? 4 * R : 2 * d)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
	int exp = 267 - (int)(__float_as_uint(most) >> 23);
	exp = exp < 1 ? 1 : exp > 253 ? 253 : exp;
	const float scale = __uint_as_float((unsigned)exp << 23);
	const float undo = __uint_as_float((unsigned)(254 - exp) << 23) * (1.0f / S::GAIN);
	back[0] = __shfl_sync(0xffffffffu, undo, 8 * (lane_id() & 3));
	back[1] = __shfl_sync(0xffffffffu, undo, 8 * (lane_id() & 3) + 4);
	for (int i = begin; i < end; i += step) {
		float s[4]; /* in a launch for one row, weights are divided by part() */
#pragma unroll
		for (int k = 0; k < 4; k++)
			s[k] = one ? scale * S::part(i % S::CHUNKS, k) : scale;
		const uint4 f = to[i * 8 * R], h = to[i * 8 * R + 4 * R];
		const float v[4] = { __uint_as_float(f.x), __uint_as_float(f.y),
			             __uint_as_float(f.z), __uint_as_float(f.w) };
		const float w[4] = { __uint_as_float(h.x), __uint_as_float(h.y),
			             __uint_as_float(h.z), __uint_as_float(h.w) };
		gemv_fragments<typename G::W>(to[i * 8 * R], to[i * 8 * R + 4 * R], v, w, s);
	}
}

/* For weights with minima and several rows: computes the sums of a unit's low columns and of its
 * high ones, in the lanes that hold these columns, split like x. The factor -1/16 keeps the sums in
 * range (they may be 16 times as large as x), and lets the mma subtract the minima. */
template <class G> DEV void
gemv_min_sums(typename G::shared_storage &sm, int log_r, int units)
{
	enum { CHUNKS = G::S::CHUNKS };
	typename G::warp_storage &own = sm.warp[warp_id()];
	const int R = 1 << log_r;

	__syncwarp();
#pragma unroll 1
	for (int i = lane_id(); i < units * 4 * R; i += 32) {
		const uint4 *from =
		    own.many.x + (i >> (2 + log_r)) * CHUNKS * 8 * R + (i & (4 * R - 1));
		float low = 0, high = 0;
#pragma unroll
		for (int c = 0; c < 2 * CHUNKS; c++) {
			const uint4 v = from[c * 4 * R];
			low += (f16_lo(v.x) + f16_hi(v.x)) + (f16_lo(v.y) + f16_hi(v.y));
			high += (f16_lo(v.z) + f16_hi(v.z)) + (f16_lo(v.w) + f16_hi(v.w));
		}
		unsigned hi, lo;
		gemv_split<typename G::W>(hi, lo, low * -0.0625f, high * -0.0625f);
		own.many.sums[i] = make_uint2(hi, lo);
	}
}

/* Loads this warp's columns of rows [t0, t0 + R) to x. Each chunk has two planes of 4 R vectors,
 * one vector per row and lane of a quad: the 16-bit parts, and the rounding residuals. All loads
 * are issued together, to the addresses of the fragments; each lane then converts what it has
 * loaded, in place. back: factors of the sums of rows 2 t and 2 t + 1 */
template <class G, class E> DEV void
gemv_load_x(typename G::shared_storage &sm, bool one, float (&back)[2], const float *x,
            const norm_vectors &norm, const E &e, int log_r, int t0, int n, int unit0, int units)
{
	typedef typename G::W W;
	typedef typename G::S S;
	enum { CHUNKS = S::CHUNKS, BATCH = S::BATCH, WARPS = GEMV_WARPS };
	const int R = 1 << log_r, warp = warp_id(), lane = lane_id(), slot = lane & (4 * R - 1),
	          b = slot >> 2, t = slot & 3;
	const int begin = lane >> (2 + log_r), step = 8 >> log_r, end = units * CHUNKS;
	const bool valid = t0 + b < n, weighted = G::NORM::NORMED && norm.w != 0;
	const float *row = x + (valid ? (long long)e.x_row(t0 + b) * gemv_x_stride<G, E>(0) : 0);
	const float stat[2] = { G::NORM::MEAN ? sm.stat[b][0] : 0,
		                G::NORM::MEAN ? sm.stat[b][1] : 1 };
	uint4 *to = sm.warp[warp].many.x + slot;
	float ss = 0, most = 0;

	for (int i = begin; i < end; i += step) {
		const int unit = unit0 + i / CHUNKS * WARPS, c = i % CHUNKS;
		const bool in = gemv_in<W>(unit, c, t), some = valid && in;
		cp_async_16_fill(&to[i * 8 * R], row + (in ? S::col(unit, c, t) : 0),
		                 some ? 16 : 0);
		cp_async_16_fill(&to[i * 8 * R + 4 * R], row + (in ? S::col2(unit, c, t) : 0),
		                 some ? 16 : 0);
	}
	cp_async_commit();
	for (int first = begin; first < end; first += BATCH * step) {
		float g[BATCH][2][4];
#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			const int i = min(first + k * step, end - 1),
			          unit = unit0 + i / CHUNKS * WARPS, c = i % CHUNKS;
			const bool in = gemv_in<W>(unit, c, t);
			if (weighted) {
				gemv_floats(g[k][0], norm.w + (in ? S::col(unit, c, t) : 0));
				gemv_floats(g[k][1], norm.w + (in ? S::col2(unit, c, t) : 0));
			}
		}
		cp_async_wait_all();
#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			const int i = first + k * step, unit = unit0 + i / CHUNKS * WARPS,
			          c = i % CHUNKS;
			float v[4], w[4];
			if (i >= end)
				break;
			const bool in = gemv_in<W>(unit, c, t);
			gemv_norm<typename G::NORM>(
			    v, to[i * 8 * R], norm, g[k][0],
			    norm.b ? norm.b + (in ? S::col(unit, c, t) : 0) : 0, stat, ss);
			gemv_norm<typename G::NORM>(
			    w, to[i * 8 * R + 4 * R], norm, g[k][1],
			    norm.b ? norm.b + (in ? S::col2(unit, c, t) : 0) : 0, stat, ss);
#pragma unroll
			for (int j = 0; S::TAIL && j < 4; j++) {
				v[j] = in ? v[j] : 0;
				w[j] = in ? w[j] : 0;
			}
			if constexpr (W::BF16) {
				gemv_fragments<W>(to[i * 8 * R], to[i * 8 * R + 4 * R], v, w,
				                  { 1.0f, 1.0f, 1.0f, 1.0f });
			} else {
#pragma unroll
				for (int j = 0; j < 4; j++)
					most = fmaxf(most, fmaxf(fabsf(v[j]), fabsf(w[j])));
				to[i * 8 * R] =
				    make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
				               __float_as_uint(v[2]), __float_as_uint(v[3]));
				to[i * 8 * R + 4 * R] =
				    make_uint4(__float_as_uint(w[0]), __float_as_uint(w[1]),
				               __float_as_uint(w[2]), __float_as_uint(w[3]));
			}
		}
	}
	back[0] = back[1] = 1.0f;
	if constexpr (!W::BF16)
		gemv_scale_x<G>(to, back, one, most, R, begin, step, end);
	if constexpr (W::PACKED)
		if (one)
			gemv_sums<G>(sm, units);
	if constexpr (S::MINS)
		if (!one)
			gemv_min_sums<G>(sm, log_r, units);
	if (G::NORM::NORMED && !G::NORM::MEAN) {
		for (int d = 1; d < 32; d = d == 2 ? 4 * R : 2 * d)
			ss += __shfl_xor_sync(0xffffffffu, ss, d);
		if (lane < 4 * R && t == 0)
			sm.squares[warp][b] = ss;
	}
	__syncwarp();
}

/* Computes the mean and deviation of row t0 + warp, for a layer norm. */
template <class G, class E> DEV void
gemv_moments(typename G::shared_storage &sm, const float *x, const norm_vectors &norm, const E &e,
             int R, int t0, int n)
{
	const int b = warp_id(), lane = lane_id();

	if (b < R) {
		float mean = 0, var = 0;
		if (t0 + b < n) {
			const float *row = x + (long long)e.x_row(t0 + b) * gemv_x_stride<G, E>(0);
#pragma unroll 4
			for (int i = lane; i < G::COLS / 4; i += 32) {
				float v[4];
				gemv_floats(v, row + 4 * i);
				mean += (v[0] + v[1]) + (v[2] + v[3]);
			}
			mean = warp_sum(mean) / G::COLS;
#pragma unroll 4
			for (int i = lane; i < G::COLS / 4; i += 32) {
				float v[4];
				gemv_floats(v, row + 4 * i);
				for (int j = 0; j < 4; j++)
					var = fmaf(v[j] - mean, v[j] - mean, var);
			}
			var = warp_sum(var) / G::COLS;
		}
		if (lane == 0) {
			sm.stat[b][0] = mean;
			sm.stat[b][1] = 1.0f / sqrtf(var + norm.eps);
		}
	}
	__syncthreads();
}

#endif

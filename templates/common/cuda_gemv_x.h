/* x of a GEMV on its way to shared memory: normed but for the root, split in what 16 bits hold and what rounding takes, and laid out as the tensor
 * cores want it. Asks for what cuda_gemv.h asks for. */
#ifndef LLMC_CUDA_GEMV_X_H
#define LLMC_CUDA_GEMV_X_H

#include "common/cuda_gemv_arena.h"

/* Chunks of the norm's weights that a lane asks for at once, as registers allow: with one row of 4096 it has two */
#if defined(W_q5_k)
enum { GV_BATCH = 1 };
#elif defined(W_q4_k)
enum { GV_BATCH = 2 };
#else
enum { GV_BATCH = 4 };
#endif

DEV void
gv_floats(float (&v)[4], const float *p)
{
	const uint4 q = ld_v4(p);

	v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
}

/* A pair as the mma takes it, and what rounding took */
DEV void
gv_split(unsigned &hi, unsigned &lo, float a, float b)
{
#ifdef W_bf16
	hi = pack_bf16(a, b);
	lo = pack_bf16(a - bf16_lo(hi), b - bf16_hi(hi));
#else
	hi = pack_f16(a, b);
	lo = pack_f16(a - f16_lo(hi), b - f16_hi(hi));
#endif
}

/* Two fours of a chunk as the registers of B for its two mma, and those of what rounding took */
DEV void
gv_fragments(uint4 &hi, uint4 &lo, const float (&v)[4], const float (&w)[4], float scale)
{
	enum { B = GV_NIBBLES ? 2 : 1, C = GV_NIBBLES ? 1 : 2 };
	gv_split(hi.x, lo.x, v[0] * scale, v[B] * scale);
	gv_split(hi.y, lo.y, v[C] * scale, v[3] * scale);
	gv_split(hi.z, lo.z, w[0] * scale, w[B] * scale);
	gv_split(hi.w, lo.w, w[C] * scale, w[3] * scale);
}

/* Are the columns of a lane's chunk within the row? */
DEV bool gv_in(int unit, int c, int t) { return GV_TAIL == 0 || gv_col(unit, c, t) < COLS; }

/* Four elements of a row, normed but for the root; their squares are added to ss. g, h: weights and biases of the norm */
DEV void
gv_norm(float (&v)[4], const uint4 &q, bool weighted, const float (&g)[4], const float *nb, const float (&stat)[2], float &ss)
{
	v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
#if defined(NORM_rms)
#pragma unroll
	for (int i = 0; i < 4; i++)
		ss = fmaf(v[i], v[i], ss);
#elif defined(NORM_layer)
#pragma unroll
	for (int i = 0; i < 4; i++)
		v[i] = (v[i] - stat[0]) * stat[1];
#endif
	(void)stat, (void)ss;
#pragma unroll
	for (int i = 0; weighted && i < 4; i++)
		v[i] *= g[i] + NORM_PLUS_ONE;
	if (nb) {
		float h[4];
		gv_floats(h, nb);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] += h[i];
	}
}

/* This warp's columns of rows [t0, t0 + R): to x, chunk by chunk two planes of 4 R pieces: a piece for each row and lane of a quad, and what
 * rounding took from it. All of them are asked for at once, and lie where their fragments will; a lane makes what it asked for. back: what the sums of rows 2 t and 2 t + 1 are to be multiplied by. */
template <class OP> DEV void
gv_stage(const llmc_call &p, gv_arena &sm, bool one, float (&back)[2], const float *x, const float *nw, const float *nb, int log_r, int t0, int n,
         int unit0, int units)
{
	const int R = 1 << log_r, warp = warp_id(), lane = lane_id(), slot = lane & (4 * R - 1), b = slot >> 2, t = slot & 3;
	const int begin = lane >> (2 + log_r), step = 8 >> log_r, end = units * GV_CHUNKS;
	const bool valid = t0 + b < n, weighted = GV_NORMED && nw != 0;
	const float *row = x + (valid ? (long long)OP::x_row(p, t0 + b) * COLS : 0);
#ifdef NORM_layer
	const float stat[2] = { sm.stat[b][0], sm.stat[b][1] };
#else
	const float stat[2] = { 0, 1 };
#endif
	uint4 *to = sm.room[warp].many.x + slot;
	float ss = 0, most = 0;

	for (int i = begin; i < end; i += step) {
		const int unit = unit0 + i / GV_CHUNKS * GV_WARPS, c = i % GV_CHUNKS;
		const bool in = gv_in(unit, c, t), some = valid && in;
		cp_async_16_fill(&to[i * 8 * R], row + (in ? gv_col(unit, c, t) : 0), some ? 16 : 0);
		cp_async_16_fill(&to[i * 8 * R + 4 * R], row + (in ? gv_col2(unit, c, t) : 0), some ? 16 : 0);
	}
	cp_async_commit();
	for (int first = begin; first < end; first += GV_BATCH * step) {
		float g[GV_BATCH][2][4];
#pragma unroll
		for (int k = 0; k < GV_BATCH; k++) {
			const int i = min(first + k * step, end - 1), unit = unit0 + i / GV_CHUNKS * GV_WARPS, c = i % GV_CHUNKS;
			const bool in = gv_in(unit, c, t);
			if (weighted) {
				gv_floats(g[k][0], nw + (in ? gv_col(unit, c, t) : 0));
				gv_floats(g[k][1], nw + (in ? gv_col2(unit, c, t) : 0));
			}
		}
		cp_async_wait_all();
#pragma unroll
		for (int k = 0; k < GV_BATCH; k++) {
			const int i = first + k * step, unit = unit0 + i / GV_CHUNKS * GV_WARPS, c = i % GV_CHUNKS;
			float v[4], w[4];
			if (i >= end)
				break;
			const bool in = gv_in(unit, c, t);
			gv_norm(v, to[i * 8 * R], weighted, g[k][0], nb ? nb + (in ? gv_col(unit, c, t) : 0) : 0, stat, ss);
			gv_norm(w, to[i * 8 * R + 4 * R], weighted, g[k][1], nb ? nb + (in ? gv_col2(unit, c, t) : 0) : 0, stat, ss);
#pragma unroll
			for (int j = 0; GV_TAIL && j < 4; j++) {
				v[j] = in ? v[j] : 0;
				w[j] = in ? w[j] : 0;
			}
#ifdef W_bf16
			gv_fragments(to[i * 8 * R], to[i * 8 * R + 4 * R], v, w, 1.0f);
#else
#pragma unroll
			for (int j = 0; j < 4; j++)
				most = fmaxf(most, fmaxf(fabsf(v[j]), fabsf(w[j])));
			to[i * 8 * R] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
			to[i * 8 * R + 4 * R] = make_uint4(__float_as_uint(w[0]), __float_as_uint(w[1]), __float_as_uint(w[2]), __float_as_uint(w[3]));
#endif
		}
	}
#ifdef W_bf16
	(void)most;
	back[0] = back[1] = 1.0f;
#else
	/* The row's largest comes to 2^13 .. 2^14 by a power of two, so that nothing overflows and little is lost. */
	for (int d = 1; d < 32; d = d == 2 ? 4 * R : 2 * d)
		most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
	int e = 267 - (int)(__float_as_uint(most) >> 23);
	e = e < 1 ? 1 : e > 253 ? 253 : e;
	const float scale = __uint_as_float((unsigned)e << 23), undo = __uint_as_float((unsigned)(254 - e) << 23) * (1.0f / GV_GAIN);
	back[0] = __shfl_sync(0xffffffffu, undo, 8 * (lane & 3));
	back[1] = __shfl_sync(0xffffffffu, undo, 8 * (lane & 3) + 4);
	for (int i = begin; i < end; i += step) {
		const uint4 f = to[i * 8 * R], h = to[i * 8 * R + 4 * R];
		const float v[4] = { __uint_as_float(f.x), __uint_as_float(f.y), __uint_as_float(f.z), __uint_as_float(f.w) };
		const float w[4] = { __uint_as_float(h.x), __uint_as_float(h.y), __uint_as_float(h.z), __uint_as_float(h.w) };
		gv_fragments(to[i * 8 * R], to[i * 8 * R + 4 * R], v, w, scale);
	}
#endif
#if GV_MINS
	/* Sums of a unit's low columns and of its high ones, for the lane that has them, split as x is; -1/16 of them: sums may be 16 times x, and
	 * minima are taken away. */
	uint2 *const sums = one ? sm.room[warp].one.sums : sm.room[warp].many.sums;
	__syncwarp();
#pragma unroll 1
	for (int i = lane; i < units * 4 * R; i += 32) {
		const uint4 *from = sm.room[warp].many.x + (i >> (2 + log_r)) * GV_CHUNKS * 8 * R + (i & (4 * R - 1));
		float low = 0, high = 0;
#pragma unroll
		for (int c = 0; c < 2 * GV_CHUNKS; c++) {
			const uint4 v = from[c * 4 * R];
			low += (f16_lo(v.x) + f16_hi(v.x)) + (f16_lo(v.y) + f16_hi(v.y));
			high += (f16_lo(v.z) + f16_hi(v.z)) + (f16_lo(v.w) + f16_hi(v.w));
		}
		unsigned hi, lo;
		gv_split(hi, lo, low * -0.0625f, high * -0.0625f);
		sums[i] = make_uint2(hi, lo);
	}
#else
	(void)one;
#endif
#ifdef NORM_rms
	for (int d = 1; d < 32; d = d == 2 ? 4 * R : 2 * d)
		ss += __shfl_xor_sync(0xffffffffu, ss, d);
	if (lane < 4 * R && t == 0)
		sm.squares[warp][b] = ss;
#endif
	__syncwarp();
}

#ifdef NORM_layer
/* Mean and deviation of row t0 + warp */
template <class OP> DEV void
gv_layer(const llmc_call &p, gv_arena &sm, const float *x, int R, int t0, int n)
{
	const int b = warp_id(), lane = lane_id();

	if (b < R) {
		float mean = 0, var = 0;
		if (t0 + b < n) {
			const float *row = x + (long long)OP::x_row(p, t0 + b) * COLS;
#pragma unroll 4
			for (int i = lane; i < COLS / 4; i += 32) {
				float v[4];
				gv_floats(v, row + 4 * i);
				mean += (v[0] + v[1]) + (v[2] + v[3]);
			}
			mean = warp_sum(mean) / COLS;
#pragma unroll 4
			for (int i = lane; i < COLS / 4; i += 32) {
				float v[4];
				gv_floats(v, row + 4 * i);
				for (int j = 0; j < 4; j++)
					var = fmaf(v[j] - mean, v[j] - mean, var);
			}
			var = warp_sum(var) / COLS;
		}
		if (lane == 0) {
			sm.stat[b][0] = mean;
			sm.stat[b][1] = 1.0f / sqrtf(var + NORM_EPS);
		}
	}
	__syncthreads();
}
#endif

#endif

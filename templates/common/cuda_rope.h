/* Rotary positions. Tables hold, for each row, the cosines of R/2 angles, then their sines.
 *
 * With QKV_DIM defined before inclusion (and QKV_HEADS, QKV_KV_HEADS, QKV_EPS, QKV_PLUS_ONE, QKV_HAS_QN, QKV_HAS_KN, QKV_HAS_ROPE,
 * QKV_ROPE_DIMS, QKV_PAGE_BYTES, and what cuda_kv.h asks for) also qkv_finish: what follows the product in norm_qkv.
 * STYLE_half: pairs (i, i + R/2); STYLE_interleaved: pairs (2i, 2i + 1). */
#ifndef LLMC_CUDA_ROPE_H
#define LLMC_CUDA_ROPE_H

#include "common/cuda_math.h"

/* places of pair i of R dimensions */
DEV int
rope_first(int i)
{
#ifdef STYLE_interleaved
	return 2 * i;
#else
	return i;
#endif
}

DEV int
rope_second(int i, int rope_dims)
{
#ifdef STYLE_interleaved
	return 2 * i + 1;
#else
	return i + rope_dims / 2;
#endif
}

/* a and b turned by angle i of the row's table */
DEV void
rope_turn(float *a, float *b, const float *table, int i, int rope_dims)
{
	float c = table[i], s = table[rope_dims / 2 + i], x = *a, y = *b;

	*a = x * c - y * s;
	*b = y * c + x * s;
}

#ifdef QKV_DIM
#include "common/cuda_kv.h"

/* Sums of a product that know neither their row's scale nor their bias (NULL: none) yet */
struct qkv_scaled {
	const float *sum, *b;
	float        scale;
	__device__ __forceinline__ float operator[](int i) const { return sum[i] * scale + (b ? b[i] : 0.0f); }
};

/* One warp: head `head` of row t, counted over q heads, then k heads, then v heads. raw: its QKV_DIM sums with bias, in shared or
 * global memory, ordered before the call (or a qkv_scaled of such); it stays as it is. Norm of the head, rope, and the way to q or to the page. The
 * arguments are those of norm_qkv. All 32 lanes call. */
template <class Raw> DEV void
qkv_finish(const llmc_call &p, int t, int head, const Raw &raw)
{
	enum { D = QKV_DIM, R = QKV_HAS_ROPE ? QKV_ROPE_DIMS : 0, PAIRS = R / 2, ITEMS = D - PAIRS, N = (ITEMS + 31) / 32 };
	const int lane = lane_id(), kind = head < QKV_HEADS ? 0 : head < QKV_HEADS + QKV_KV_HEADS ? 1 : 2;
	const bool normed = kind == 0 ? QKV_HAS_QN : kind == 1 ? QKV_HAS_KN : false;
	const float *table = ARG_rope + (long long)t * R;
	const float *w = kind == 0 ? ARG_qn : ARG_kn;
	float x[N], y[N], scale = 1;
	float *q = ARG_q + ((long long)t * QKV_HEADS + head) * D;
	kv_elem *kv = 0;

	/* item i < PAIRS is a pair, the others are single values behind the rotated ones */
#pragma unroll
	for (int n = 0; n < N; n++) {
		int i = lane + 32 * n;
		x[n] = i < PAIRS ? raw[rope_first(i)] : i < ITEMS ? raw[i + PAIRS] : 0;
		y[n] = i < PAIRS ? raw[rope_second(i, R)] : 0;
	}
	if (normed) {
		float sum = 0;
#pragma unroll
		for (int n = 0; n < N; n++)
			sum += x[n] * x[n] + y[n] * y[n];
		scale = 1.0f / sqrtf(warp_sum(sum) / D + QKV_EPS);
	}
	if (kind > 0) {
		int pos = p.s.pos[t];
		kv_elem *page = kv_page(p.s, ARG_kv, QKV_PAGE_BYTES, p.s.seq_of[t], pos);
		kv = kind == 1 ? kv_k(page, head - QKV_HEADS, D) : kv_v(page, head - QKV_HEADS - QKV_KV_HEADS, QKV_KV_HEADS, D, D);
		kv += pos % KV_PAGE * D;
	}
#pragma unroll
	for (int n = 0; n < N; n++) {
		int i = lane + 32 * n, a = i < PAIRS ? rope_first(i) : i + PAIRS, b = rope_second(i, R);
		if (i >= ITEMS)
			break;
		if (normed) {
			x[n] *= scale * (w[a] + QKV_PLUS_ONE);
			if (i < PAIRS)
				y[n] *= scale * (w[b] + QKV_PLUS_ONE);
		}
		if (i < PAIRS && kind < 2)
			rope_turn(&x[n], &y[n], table, i, R);
		if (kind == 0) {
			q[a] = x[n];
			if (i < PAIRS)
				q[b] = y[n];
		} else {
			kv[a] = kv_put(x[n]);
			if (i < PAIRS)
				kv[b] = kv_put(y[n]);
		}
	}
}
#endif

#endif

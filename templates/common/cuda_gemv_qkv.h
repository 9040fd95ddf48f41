/* GEMV of norm_qkv. Without a norm of heads a group has four pairs of the rotary embedding, so that a thread rotates what it has summed,
 * and nothing waits: it goes to q or to its page. With such a norm, heads are finished whole by the last of their blocks.
 *
 * Defined before inclusion, besides what cuda_gemv.h asks for: what qkv_finish asks for (cuda_rope.h). Arguments as norm_qkv has them. */
#ifndef LLMC_CUDA_GEMV_QKV_H
#define LLMC_CUDA_GEMV_QKV_H

#include "common/cuda_gemv.h"
#include "common/cuda_rope.h"

struct gemv_qkv {
	enum {
		D = QKV_DIM,
		R = QKV_HAS_ROPE ? QKV_ROPE_DIMS : 0,
		NORMED = QKV_HAS_QN || QKV_HAS_KN,
		PER_HEAD = D / 8,
		GROUPS = (QKV_HEADS + 2 * QKV_KV_HEADS) * PER_HEAD,
		UNIT = NORMED ? PER_HEAD : 0,
		PLACED = !NORMED,
		FIRST = 0
	};
	const llmc_call &p;

	DEV bool
	turned(int head, int part)
	{
		return !NORMED && head < QKV_HEADS + QKV_KV_HEADS && part < R / 8;
	}

	/* dimension of result n of a group: the four first halves of pairs, then the second ones; otherwise in order */
	DEV int
	dim(int head, int part, int n)
	{
		if (!turned(head, part))
			return part * 8 + n;
		return n < 4 ? rope_first(part * 4 + n) : rope_second(part * 4 + n - 4, R);
	}

	DEV int
	row(int group, int n)
	{
		const int head = group / PER_HEAD;

		return head * D + dim(head, group % PER_HEAD, n);
	}

	__device__ __forceinline__ int count() const { return N_TOK(p); }
	__device__ __forceinline__ int x_row(int t) const { return t; }

	/* the row's position and sequence */
	__device__ __forceinline__ int2 spot(int t) const { return make_int2(p.s.pos[t], p.s.seq_of[t]); }
	__device__ __forceinline__ int page(const int2 &spot) const { return kv_page_of(p.s, spot.y, spot.x); }

	/* x, y: cosine and sine; z, w: biases */
	__device__ __forceinline__ float4
	prefetch(int group, int j, int t) const
	{
		const int head = group / PER_HEAD, part = group % PER_HEAD;
		const float *bias = ARG_b;
		float4 v = make_float4(1, 0, 0, 0);

		if (turned(head, part)) {
			const float *table = ARG_rope + (long long)t * R + part * 4 + j;
			v.x = table[0];
			v.y = table[R / 2];
		}
		if (bias) {
			v.z = bias[head * D + dim(head, part, j)];
			v.w = bias[head * D + dim(head, part, j + 4)];
		}
		return v;
	}

	__device__ __forceinline__ void
	store(int group, int j, int t, float a, float b, const float4 &early, const int2 &place) const
	{
		const int head = group / PER_HEAD, part = group % PER_HEAD, d = dim(head, part, j), e = dim(head, part, j + 4);
		const float x = a + early.z, y = b + early.w, u = x * early.x - y * early.y, v = y * early.x + x * early.y;

		if (head < QKV_HEADS) {
			float *q = ARG_q + ((long long)t * QKV_HEADS + head) * D;
			q[d] = u;
			q[e] = v;
		} else {
			/* heads of V follow those of K in the page, both of KV_PAGE x D */
			kv_elem *kv = kv_page_at(ARG_kv, QKV_PAGE_BYTES, place.x) + (long long)(head - QKV_HEADS) * KV_PAGE * D + place.y % KV_PAGE * D;
			kv[d] = kv_put(u);
			kv[e] = kv_put(v);
		}
	}

	__device__ __forceinline__ float
	raw(int i, float v) const
	{
		const float *bias = ARG_b;

		return bias ? v + bias[i] : v;
	}

	__device__ __forceinline__ void
	finish(int t, int head, const float *sums) const
	{
		qkv_finish(p, t, head, sums);
	}
};

#endif

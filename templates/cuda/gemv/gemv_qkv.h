/* GEMV of norm_qkv. If heads have no norm, a group has four pairs of RoPE, so a thread rotates the
 * results that it has summed and stores them to q or to the page at once. If heads have a norm, or
 * KV rows are quantised, the last CTA to arrive for a head finishes the whole head. */
#ifndef LLMC_CUDA_GEMV_GEMV_QKV_H
#define LLMC_CUDA_GEMV_GEMV_QKV_H

#include "cuda/gemv/gemv.h"
#include "cuda/attention/rope.h"

/* Q: a qkv_config */
template <class Q> struct gemv_qkv {
	typedef typename Q::ROPE ROPE;
	enum {
		D = Q::D,
		R = Q::R,
		NORMED = Q::WHOLE,
		PER_HEAD = D / 8,
		GROUPS = (Q::HEADS + 2 * Q::KV_HEADS) * PER_HEAD,
		UNIT = NORMED ? PER_HEAD : 0,
		NEEDS_PAGE = !NORMED,
		FIRST = 0
	};
	const llmc_step &s;
	qkv_args a;

	DEV bool
	rotated(int head, int part)
	{
		return !NORMED && head < Q::HEADS + Q::KV_HEADS && part < R / 8;
	}

	/* dimension of result n of a group. Groups with RoPE have the first elements of four pairs,
	 * then the second ones; other groups are in order. */
	DEV int
	dim(int head, int part, int n)
	{
		if (!rotated(head, part))
			return part * 8 + n;
		return n < 4 ? ROPE::first(part * 4 + n, R) : ROPE::second(part * 4 + n - 4, R);
	}

	DEV int
	row(int group, int n)
	{
		const int head = group / PER_HEAD;

		return head * D + dim(head, group % PER_HEAD, n);
	}

	__device__ __forceinline__ int
	count() const
	{
		return s.n[0];
	}
	__device__ __forceinline__ int
	x_row(int t) const
	{
		return t;
	}

	/* position and sequence of the row */
	__device__ __forceinline__ int2
	position(int t) const
	{
		return make_int2(s.pos[t], s.seq_of[t]);
	}
	__device__ __forceinline__ int
	page(const int2 &position) const
	{
		return kv_page_of(s, position.y, position.x);
	}

	/* x, y: cosine and sine; z, w: biases */
	__device__ __forceinline__ float4
	prefetch(int group, int j, int t) const
	{
		const int head = group / PER_HEAD, part = group % PER_HEAD;
		const float *bias = a.b;
		float4 v = make_float4(1, 0, 0, 0);

		if (rotated(head, part)) {
			const float *table = a.rope + (long long)t * R + part * 4 + j;
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
	store(int group, int j, int t, float first, float second, const float4 &early,
	      const int2 &slot) const
	{
		const int head = group / PER_HEAD, part = group % PER_HEAD, d = dim(head, part, j),
		          e = dim(head, part, j + 4);
		const float x = first + early.z, y = second + early.w,
		            u = x * early.x - y * early.y, v = y * early.x + x * early.y;

		if (head < Q::HEADS) {
			float *q = a.q + ((long long)t * Q::HEADS + head) * D;
			q[d] = u;
			q[e] = v;
		} else {
			/* heads of V follow those of K in the page, both of KV_PAGE x D */
			char *page = (char *)a.kv + slot.x * Q::PAGE_BYTES;
			const int at = slot.y % KV_PAGE, h = head - Q::HEADS;
			if (h < Q::KV_HEADS) {
				Q::KP::set(page + h * Q::KP::BYTES, at, d, u);
				Q::KP::set(page + h * Q::KP::BYTES, at, e, v);
			} else {
				Q::VP::set(page + Q::KV_HEADS * Q::KP::BYTES +
				               (h - Q::KV_HEADS) * Q::VP::BYTES,
				           at, d, u);
				Q::VP::set(page + Q::KV_HEADS * Q::KP::BYTES +
				               (h - Q::KV_HEADS) * Q::VP::BYTES,
				           at, e, v);
			}
		}
	}

	__device__ __forceinline__ float
	raw(int i, float v) const
	{
		const float *bias = a.b;

		return bias ? v + bias[i] : v;
	}

	__device__ __forceinline__ void
	finish(int t, int head, const float *sums) const
	{
		qkv_finish<Q>(s, a, t, head, sums);
	}
};

#endif

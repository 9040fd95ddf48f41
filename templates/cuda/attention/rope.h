/* Rotary position embedding, and qkv_finish, the epilogue of norm_qkv. A table holds, per row, the
 * cosines of R/2 angles, then the sines. */
#ifndef LLMC_CUDA_ATTENTION_ROPE_H
#define LLMC_CUDA_ATTENTION_ROPE_H

#include "cuda/attention/kv_quantized.h"

/* Dimensions of pair i among R */
struct rope_half {
	DEV int
	first(int i, int)
	{
		return i;
	}
	DEV int
	second(int i, int rope_dims)
	{
		return i + rope_dims / 2;
	}
};
struct rope_interleaved {
	DEV int
	first(int i, int)
	{
		return 2 * i;
	}
	DEV int
	second(int i, int)
	{
		return 2 * i + 1;
	}
};
typedef rope_half rope_none; /* no rotation */

/* Rotates (a, b) by angle i of the row's table. */
DEV void
rope_rotate(float *a, float *b, const float *table, int i, int rope_dims)
{
	float c = table[i], s = table[rope_dims / 2 + i], x = *a, y = *b;

	*a = x * c - y * s;
	*b = y * c + x * s;
}

/* Description of norm_qkv. K has type E_, V has type EV_ (cuda/attention/kv_quantized.h). ROTATE_:
 * quantised rows are stored Hadamard-rotated. ROPE_: which dimensions form a pair of RoPE, which is
 * applied to the first R_ dimensions (0: no RoPE). */
template <class E_, class ROPE_, int HEADS_, int KV_HEADS_, int D_, int R_, bool HAS_QN_,
          bool HAS_KN_, long long PAGE_BYTES_, class EV_ = E_,
          bool ROTATE_ = false> struct qkv_config {
	typedef kv_plane<E_, D_, ROTATE_> KP;
	typedef kv_plane<EV_, D_, ROTATE_> VP;
	typedef ROPE_ ROPE;
	enum {
		HEADS = HEADS_,
		KV_HEADS = KV_HEADS_,
		D = D_,
		R = R_,
		HAS_QN = HAS_QN_,
		HAS_KN = HAS_KN_,
		WHOLE = HAS_QN || HAS_KN || !KP::UNQUANTISED || !VP::UNQUANTISED
	}; /* WHOLE: one warp finishes a whole head */
	static constexpr long long PAGE_BYTES = PAGE_BYTES_;
};

/* Arguments of qkv_finish. eps and plus_one belong to the norm of heads. */
struct qkv_args {
	const float *b, *qn, *kn, *rope;
	void *kv;
	float *q, eps, plus_one;
};

/* Accumulators to which row scale and bias (NULL: none) have not been applied yet */
struct qkv_scaled {
	const float *sum, *b;
	float scale;
	__device__ __forceinline__ float
	operator[](int i) const
	{
		return sum[i] * scale + (b ? b[i] : 0.0f);
	}
};

/* Finishes head `head` of row t; heads are counted over q, then k, then v. Applies the norm of the
 * head and RoPE, and stores to q or to the page. raw: the head's D sums with bias, in shared or
 * global memory that the warp can read (or a qkv_scaled of such sums); not modified. All 32 lanes
 * call. */
template <class Q, class Raw> DEV void
qkv_finish(const llmc_step &s, const qkv_args &a, int t, int head, const Raw &raw)
{
	typedef typename Q::ROPE ROPE;
	enum { D = Q::D, R = Q::R, PAIRS = R / 2, ITEMS = D - PAIRS, N = (ITEMS + 31) / 32 };
	const int lane = lane_id(), kind = head < Q::HEADS                 ? 0
	                                   : head < Q::HEADS + Q::KV_HEADS ? 1
	                                                                   : 2;
	const bool normed = kind == 0 ? Q::HAS_QN : kind == 1 ? Q::HAS_KN : false;
	const float *table = a.rope + (long long)t * R;
	const float *w = kind == 0 ? a.qn : a.kn;
	float x[N], y[N], scale = 1;
	float *q = a.q + ((long long)t * Q::HEADS + head) * D;
	const int pos = kind > 0 ? s.pos[t] : 0;
	char *plane = 0;

	/* Item i < PAIRS is a pair of RoPE. The other items are single values after the rotated
	 * dimensions. */
#pragma unroll
	for (int n = 0; n < N; n++) {
		int i = lane + 32 * n;
		x[n] = i < PAIRS ? raw[ROPE::first(i, R)] : i < ITEMS ? raw[i + PAIRS] : 0;
		y[n] = i < PAIRS ? raw[ROPE::second(i, R)] : 0;
	}
	if (normed) {
		float sum = 0;
#pragma unroll
		for (int n = 0; n < N; n++)
			sum += x[n] * x[n] + y[n] * y[n];
		scale = 1.0f / sqrtf(warp_sum(sum) / D + a.eps);
	}
	if (kind > 0) {
		plane = (char *)a.kv + kv_page_of(s, s.seq_of[t], pos) * Q::PAGE_BYTES;
		plane += kind == 1 ? (head - Q::HEADS) * Q::KP::BYTES
		                   : Q::KV_HEADS * Q::KP::BYTES +
		                         (head - Q::HEADS - Q::KV_HEADS) * Q::VP::BYTES;
	}
#pragma unroll
	for (int n = 0; n < N; n++) {
		int i = lane + 32 * n, at = i < PAIRS ? ROPE::first(i, R) : i + PAIRS,
		    to = ROPE::second(i, R);
		if (i >= ITEMS)
			break; /* no more items for this lane; the shuffles below need all lanes */
		if (normed) {
			x[n] *= scale * (w[at] + a.plus_one);
			if (i < PAIRS)
				y[n] *= scale * (w[to] + a.plus_one);
		}
		if (i < PAIRS && kind < 2)
			rope_rotate(&x[n], &y[n], table, i, R);
		if (kind == 0) {
			q[at] = x[n];
			if (i < PAIRS)
				q[to] = y[n];
		} else if (kind == 1) {
			Q::KP::set(plane, pos % KV_PAGE, at, x[n]);
			if (i < PAIRS)
				Q::KP::set(plane, pos % KV_PAGE, to, y[n]);
		} else {
			Q::VP::set(plane, pos % KV_PAGE, at, x[n]);
			if (i < PAIRS)
				Q::VP::set(plane, pos % KV_PAGE, to, y[n]);
		}
	}
	if constexpr (!Q::KP::UNQUANTISED || !Q::VP::UNQUANTISED) {
		if (kind == 0 || (kind == 1 ? Q::KP::UNQUANTISED : Q::VP::UNQUANTISED))
			return;
		/* Exchanges elements so that this lane has elements lane + 32 m. */
		float z[Q::KP::M];
#pragma unroll
		for (int m = 0; m < Q::KP::M; m++) {
			const int d = lane + 32 * m;
			const bool half = ROPE::second(0, R) > 1; /* pairs are R / 2 apart */
			const bool pair = d < 2 * PAIRS,
			           second = pair && (half ? d >= PAIRS : d % 2);
			const int item = !pair ? d - PAIRS : half ? d % max((int)PAIRS, 1) : d / 2;
			z[m] = 0;
#pragma unroll
			for (int n = 0; n < N; n++) {
				const float one = __shfl_sync(~0u, x[n], item & 31),
				            two = __shfl_sync(~0u, y[n], item & 31);
				if (item / 32 == n)
					z[m] = second ? two : one;
			}
		}
		if (kind == 1)
			Q::KP::put(plane, pos % KV_PAGE, z);
		else
			Q::VP::put(plane, pos % KV_PAGE, z);
	}
}
#endif

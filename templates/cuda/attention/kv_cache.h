/* Pages of the KV cache on a GPU, with KV_PAGE positions each. The page of one layer holds k
 * [KV_HEADS][32][D], then v [KV_HEADS][32][V]. A latent page holds [32][rank + rope]. The element
 * type E is kv_f32, kv_f16 or kv_bf16; for quantised rows see cuda/attention/kv_quantized.h. A
 * kernel must not read positions at or beyond kv_len: they may hold any values, NaN too. */
#ifndef LLMC_CUDA_ATTENTION_KV_CACHE_H
#define LLMC_CUDA_ATTENTION_KV_CACHE_H

#include "cuda/math/math.h"
#include "cuda/runtime/step.h"

enum { KV_PAGE = 32 };

/* A stored element. get and put convert one element. VEC elements are 16 bytes, and unpack converts
 * that many. */
struct kv_f32 {
	typedef kv_f32 math;
	typedef float elem;
	enum { VEC = 4, UNQUANTISED = 1 };

	DEV float
	get(elem x)
	{
		return x;
	}
	DEV elem
	put(float x)
	{
		return x;
	}

	DEV void
	unpack(uint4 v, float (&x)[VEC])
	{
		const unsigned w[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
		for (int i = 0; i < 4; i++)
			x[i] = __uint_as_float(w[i]);
	}
};

struct kv_bf16 {
	typedef kv_bf16 math;
	typedef unsigned short elem;
	enum { VEC = 8, UNQUANTISED = 1 };

	DEV float
	get(elem x)
	{
		return bf16_to_f32(x);
	}
	DEV elem
	put(float x)
	{
		return f32_to_bf16(x);
	}

	DEV void
	unpack(uint4 v, float (&x)[VEC])
	{
		const unsigned w[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[2 * i] = bf16_lo(w[i]);
			x[2 * i + 1] = bf16_hi(w[i]);
		}
	}
};

struct kv_f16 {
	typedef kv_f16 math;
	typedef unsigned short elem;
	enum { VEC = 8, UNQUANTISED = 1 };

	DEV float
	get(elem x)
	{
		return f16_to_f32(x);
	}

	/* Clamps to the largest half. An infinity would turn a weight of 0 into NaN, in rows that
	 * do not attend to the position. */
	DEV elem
	put(float x)
	{
		x = x > 65504.0f ? 65504.0f : x;
		return f32_to_f16(x < -65504.0f ? -65504.0f : x);
	}

	DEV void
	unpack(uint4 v, float (&x)[VEC])
	{
		const unsigned w[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
		for (int i = 0; i < 4; i++) {
			x[2 * i] = f16_lo(w[i]);
			x[2 * i + 1] = f16_hi(w[i]);
		}
	}
};

/* Page number of position `pos` of sequence `seq` of the step */
DEV int
kv_page_of(const llmc_step &s, int seq, int pos)
{
	return s.block_table[(long long)seq * s.block_stride + pos / KV_PAGE];
}

/* Return the address of page number `page`, and of the page of a position. pool: the layer's first
 * page; page_bytes: stride of pages */
template <class E> DEV typename E::elem *
kv_page_at(const void *pool, long long page_bytes, int page)
{
	return (typename E::elem *)((char *)pool + page * page_bytes);
}

template <class E> DEV typename E::elem *
kv_page(const llmc_step &s, const void *pool, long long page_bytes, int seq, int pos)
{
	return kv_page_at<E>(pool, page_bytes, kv_page_of(s, seq, pos));
}

#endif

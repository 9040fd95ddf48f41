/* Pages of the KV cache on a GPU: KV_PAGE positions each. The page of one layer holds k [K][32][D],
 * then v [K][32][V], position by position; the latent kind holds [32][rank + rope]. Elements are of
 * a type E: kv_f32, kv_f16 or kv_bf16; quantised rows: cuda/attention/kv_quantized.h. Positions at
 * or beyond kv_len hold anything, NaN too: a kernel must not read them. */
#ifndef LLMC_CUDA_ATTENTION_KV_CACHE_H
#define LLMC_CUDA_ATTENTION_KV_CACHE_H

#include "cuda/math/math.h"
#include "cuda/runtime/step.h"

enum { KV_PAGE = 32 };

/* An element in memory; get and put: as a number; VEC of them are 16 bytes; unpack: those as
 * numbers */
struct kv_f32 {
	typedef kv_f32 math;
	typedef float elem;
	enum { VEC = 4, ROW_MAJOR_ACT = 1 };

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
	enum { VEC = 8, ROW_MAJOR_ACT = 1 };

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
	enum { VEC = 8, ROW_MAJOR_ACT = 1 };

	DEV float
	get(elem x)
	{
		return f16_to_f32(x);
	}

	/* Too large for a half: the largest half. An infinity would turn weights of 0 into NaN for
	 * rows that do not see it. */
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

/* Number of the page of position `pos` of sequence `seq` of the step */
DEV int
kv_page_of(const llmc_step &s, int seq, int pos)
{
	return s.block_table[(long long)seq * s.block_stride + pos / KV_PAGE];
}

/* Page number `page`, and the page of a position. pool: the layer's first page; page_bytes: from
 * page to page */
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

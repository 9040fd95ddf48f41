/* Pages of the KV cache on a GPU: 32 positions each. The page of one layer holds k [K][32][D], then v [K][32][V], position by
 * position; the latent kind holds [32][rank + rope]. Elements are f32, f16 or bf16: LLMC_KV_f32, LLMC_KV_f16 or LLMC_KV_bf16
 * before inclusion. Positions at or beyond kv_len hold anything, NaN too: a kernel must not read them. */
#ifndef LLMC_CUDA_KV_H
#define LLMC_CUDA_KV_H

#include "common/cuda_math.h"
#include "common/cuda_step.h"

enum { KV_PAGE = 32 };

#if defined(LLMC_KV_f32)
typedef float kv_elem;
#else
typedef unsigned short kv_elem;
#endif

DEV float
kv_get(kv_elem x)
{
#if defined(LLMC_KV_f32)
	return x;
#elif defined(LLMC_KV_bf16)
	return bf16_to_f32(x);
#else
	return f16_to_f32(x);
#endif
}

/* Too large for a half: the largest half. An infinity would turn weights of 0 into NaN for rows that do not see it. */
DEV kv_elem
kv_put(float x)
{
#if defined(LLMC_KV_f32)
	return x;
#elif defined(LLMC_KV_bf16)
	return f32_to_bf16(x);
#else
	x = x > 65504.0f ? 65504.0f : x;
	return f32_to_f16(x < -65504.0f ? -65504.0f : x);
#endif
}

/* Elements in 16 bytes, and those bytes as numbers */
enum { KV_VEC = 16 / (int)sizeof(kv_elem) };

DEV void
kv_unpack(uint4 v, float (&x)[KV_VEC])
{
	const unsigned w[4] = { v.x, v.y, v.z, v.w };
#pragma unroll
	for (int i = 0; i < 4; i++) {
#if defined(LLMC_KV_f32)
		x[i] = __uint_as_float(w[i]);
#elif defined(LLMC_KV_bf16)
		x[2 * i] = bf16_lo(w[i]);
		x[2 * i + 1] = bf16_hi(w[i]);
#else
		x[2 * i] = f16_lo(w[i]);
		x[2 * i + 1] = f16_hi(w[i]);
#endif
	}
}

/* Number of the page of position `pos` of sequence `seq` of the step, and where a page is. pool: the layer's first page; page_bytes: from page
 * to page */
DEV int
kv_page_of(const llmc_step &s, int seq, int pos)
{
	return s.block_table[(long long)seq * s.block_stride + pos / KV_PAGE];
}

DEV kv_elem *
kv_page_at(const void *pool, long long page_bytes, int page)
{
	return (kv_elem *)((char *)pool + page * page_bytes);
}

DEV kv_elem *
kv_page(const llmc_step &s, const void *pool, long long page_bytes, int seq, int pos)
{
	return kv_page_at(pool, page_bytes, kv_page_of(s, seq, pos));
}

/* K and V of one head in a page: [32][dim] */
DEV kv_elem *
kv_k(kv_elem *page, int head, int dim)
{
	return page + head * KV_PAGE * dim;
}

DEV kv_elem *
kv_v(kv_elem *page, int head, int kv_heads, int dim, int v_dim)
{
	return page + kv_heads * KV_PAGE * dim + head * KV_PAGE * v_dim;
}

/* sum + product of n elements, at most 16 bytes, with as many numbers of x; vec: all 16 bytes, aligned */
DEV float
kv_dot(const kv_elem *k, const float *x, int n, bool vec, float sum)
{
	if (vec) {
		float v[KV_VEC];
		kv_unpack(ld_v4(k), v);
#pragma unroll
		for (int i = 0; i < KV_VEC; i++)
			sum = fmaf(x[i], v[i], sum);
	} else {
		for (int i = 0; i < n; i++)
			sum = fmaf(x[i], kv_get(k[i]), sum);
	}
	return sum;
}

#endif

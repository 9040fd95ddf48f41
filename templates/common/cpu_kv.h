/* Pages of the KV cache: 32 positions each; in the page of one layer k [K][D][32], then v [K][32][V], f16 or f32
 * (LLMC_KV_f16 or LLMC_KV_f32 before inclusion). A kernel must not read positions at or beyond kv_len: they hold anything. */
#ifndef LLMC_CPU_KV_H
#define LLMC_CPU_KV_H

#include "common/cpu_math.h"
#include "common/llmc_step.h"

enum { KV_PAGE = 32 };

#if defined(LLMC_KV_f32)
typedef float kv_elem;
#else
typedef f16 kv_elem;
#endif

LLMC_INLINE vf
kv_load(const kv_elem *p)
{
#if defined(LLMC_KV_f32)
	return vf_load(p);
#else
	return vf_load_f16(p);
#endif
}

LLMC_INLINE vf
kv_load_n(const kv_elem *p, int n)
{
#if defined(LLMC_KV_f32)
	return vf_load_n(p, n);
#else
	return vf_load_f16_n(p, n);
#endif
}

/* Too large for a half: the largest half. An infinity would turn weights of 0 into NaN for rows that do not see it. */
LLMC_INLINE kv_elem
kv_put(float x)
{
#if defined(LLMC_KV_f32)
	return x;
#else
	x = x > 65504.0f ? 65504.0f : x;
	return f16_put(x < -65504.0f ? -65504.0f : x);
#endif
}

/* Page `index` of sequence `seq` of the step. pool: the layer's first page */
LLMC_INLINE char *
kv_page(const llmc_step *s, const void *pool, size_t page_bytes, int seq, int index)
{
	int32_t page = s->block_table[(size_t)seq * (size_t)s->block_stride + (size_t)index];

	return (char *)(uintptr_t)pool + (size_t)page * page_bytes;
}

LLMC_INLINE kv_elem *
kv_k(char *page, int head, int dim)
{
	return (kv_elem *)(void *)page + (size_t)head * (size_t)dim * KV_PAGE;
}

LLMC_INLINE kv_elem *
kv_v(char *page, int head, int heads, int dim, int v_dim)
{
	return (kv_elem *)(void *)page + ((size_t)heads * (size_t)dim + (size_t)head * (size_t)v_dim) * KV_PAGE;
}

/* The page that row t's key and value go to */
LLMC_INLINE char *
kv_page_of(const llmc_step *s, const void *pool, size_t page_bytes, int t)
{
	return kv_page(s, pool, page_bytes, s->seq_of[t], s->pos[t] / KV_PAGE);
}

/* Key (dim) of one head at a position to its place in the page */
LLMC_INLINE void
kv_store_k(char *page, int pos, int head, int dim, const float *key)
{
	kv_elem *k = kv_k(page, head, dim) + pos % KV_PAGE;

	for (int d = 0; d < dim; d++)
		k[d * KV_PAGE] = kv_put(key[d]);
}

/* and value (v_dim) */
LLMC_INLINE void
kv_store_v(char *page, int pos, int head, int heads, int dim, int v_dim, const float *value)
{
	kv_elem *v = kv_v(page, head, heads, dim, v_dim) + (size_t)(pos % KV_PAGE) * (size_t)v_dim;

	for (int d = 0; d < v_dim; d++)
		v[d] = kv_put(value[d]);
}

#endif

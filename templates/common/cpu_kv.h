/* Pages of the KV cache: 32 positions each; in the page of one layer k [K][D][32], then v [K][32][V], or latent and key [32][rank + rope],
 * of the type KV_f16 or KV_f32, which is a constant wherever functions are inlined. A kernel must not read positions at or beyond kv_len:
 * they hold anything. */
#ifndef LLMC_CPU_KV_H
#define LLMC_CPU_KV_H

#include "common/cpu_math.h"
#include "common/llmc_step.h"

enum { KV_PAGE = 32 };

enum { KV_f16, KV_f32 };

LLMC_INLINE int
kv_bytes(const int type)
{
	return type == KV_f32 ? 4 : 2;
}

/* element i */
LLMC_INLINE const void *
kv_at(const int type, const void *p, int64_t i)
{
	return (const char *)p + i * kv_bytes(type);
}

/* elements i .. i + VL */
LLMC_INLINE vf
kv_load(const int type, const void *p, int64_t i)
{
	return type == KV_f32 ? vf_load((const float *)p + i) : vf_load_f16((const f16 *)p + i);
}

LLMC_INLINE vf
kv_load_n(const int type, const void *p, int64_t i, int n)
{
	return type == KV_f32 ? vf_load_n((const float *)p + i, n) : vf_load_f16_n((const f16 *)p + i, n);
}

/* Too large for a half: the largest half. An infinity would turn weights of 0 into NaN for rows that do not see it. */
LLMC_INLINE void
kv_put(const int type, void *p, int64_t i, float x)
{
	if (type == KV_f32) {
		((float *)p)[i] = x;
		return;
	}
	x = x > 65504.0f ? 65504.0f : x;
	((f16 *)p)[i] = f16_put(x < -65504.0f ? -65504.0f : x);
}

/* Page `index` of sequence `seq` of the step. pool: the layer's first page */
LLMC_INLINE char *
kv_page(const llmc_step *s, const void *pool, size_t page_bytes, int seq, int index)
{
	int32_t page = s->block_table[(size_t)seq * (size_t)s->block_stride + (size_t)index];

	return (char *)(uintptr_t)pool + (size_t)page * page_bytes;
}

LLMC_INLINE char *
kv_k(const int type, char *page, int head, int dim)
{
	return page + (size_t)head * (size_t)dim * KV_PAGE * (size_t)kv_bytes(type);
}

LLMC_INLINE char *
kv_v(const int type, char *page, int head, int heads, int dim, int v_dim)
{
	return page + ((size_t)heads * (size_t)dim + (size_t)head * (size_t)v_dim) * KV_PAGE * (size_t)kv_bytes(type);
}

/* The page that row t's key and value go to */
LLMC_INLINE char *
kv_page_of(const llmc_step *s, const void *pool, size_t page_bytes, int t)
{
	return kv_page(s, pool, page_bytes, s->seq_of[t], s->pos[t] / KV_PAGE);
}

/* Key (dim) of one head at a position to its place in the page */
LLMC_INLINE void
kv_store_k(const int type, char *page, int pos, int head, int dim, const float *key)
{
	char *k = kv_k(type, page, head, dim);

	for (int d = 0; d < dim; d++)
		kv_put(type, k, d * KV_PAGE + pos % KV_PAGE, key[d]);
}

/* and value (v_dim) */
LLMC_INLINE void
kv_store_v(const int type, char *page, int pos, int head, int heads, int dim, int v_dim, const float *value)
{
	char *v = kv_v(type, page, head, heads, dim, v_dim);

	for (int d = 0; d < v_dim; d++)
		kv_put(type, v, (int64_t)(pos % KV_PAGE) * v_dim + d, value[d]);
}

#endif

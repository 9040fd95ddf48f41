/* The indexer of sparse attention: selects the positions that a row attends to.
 *
 *   for each page of keys that the row sees:
 *     keys --to fp32--> x [32][stride]
 *     x, q --dot products along a head, VL of them reduced at once--> s [heads][32]
 *     s, w --positive dots times their head's weight, in head order--> scores --those above the bar--> candidates, by position
 *   at twice top_k candidates: the bar rises to the lowest score in the current top_k, and
 *                                 candidates below the bar are dropped
 *
 * A score depends only on its row and key, and the selection only on scores and positions. Neither
 * depends on the grouping of pages, on threads, or on other rows. Scores are compared as integers
 * with a total order, so NaN is handled too. Bytes: the keys once per row. */
#ifndef LLMC_CPU_ATTENTION_INDEXER_H
#define LLMC_CPU_ATTENTION_INDEXER_H

#include "cpu/attention/kv_cache.h"
#include "cpu/math/lane_sums.h"
#include "cpu/attention/split_kv.h"

typedef struct Index {
	int heads, dim, chosen;
	float scale;
	int kv;
	size_t page_bytes;
} Index;

enum {
	INDEX_RB = LANES_ROWS, /* heads and positions per block of VL dot products */
	INDEX_JB = LANES_OF,
	INDEX_CHUNK = 256, /* positions per chunk; chunks are divided among threads */
	INDEX_SPANS = 32,
};
#define INDEX_SPLIT ((Split){ INDEX_CHUNK, INDEX_SPANS })

/* stride of a head and of a key, in floats */
LLMC_INLINE int
index_stride(const Index a)
{
	return (a.dim + VL - 1) / VL * VL;
}

/* number of heads, rounded up to whole blocks */
LLMC_INLINE int
index_heads(const Index a)
{
	return (a.heads + INDEX_RB - 1) / INDEX_RB * INDEX_RB;
}

/* Candidates in ascending order of position */
typedef struct Candidates {
	uint32_t *score; /* [2 * top_k + 32] scores as ordered integers */
	int32_t *pos;
	int n;
	/* Scores up to the bar cannot be selected, because top_k earlier positions have at least
	 * this score. */
	uint32_t bar;
	int full;
} Candidates;

LLMC_INLINE uint32_t
index_order(float x)
{
	uint32_t u;

	x += 0.0f; /* -0 becomes +0 */
	memcpy(&u, &x, 4);
	return u & 0x80000000 ? ~u : u | 0x80000000;
}

/* Returns the k-th largest of n scores by radix selection, most significant byte first. above: set
 * to the number of larger scores */
static uint32_t
index_kth(const uint32_t *score, int n, int k, int *above)
{
	uint32_t value = 0, mask = 0;
	int over = 0;

	for (int shift = 24; shift >= 0; shift -= 8) {
		int count[256] = { 0 }, byte = 255;
		for (int i = 0; i < n; i++)
			if ((score[i] & mask) == value)
				count[score[i] >> shift & 255]++;
		for (; over + count[byte] < k; byte--)
			over += count[byte];
		value |= (uint32_t)byte << shift;
		mask |= 255u << shift;
	}
	*above = over;
	return value;
}

/* Keeps the `chosen` best candidates. Of equal scores, the earlier position wins. */
static void
index_prune(Candidates *c, int chosen)
{
	int above, n = 0;

	if (c->n <= chosen)
		return;
	c->bar = index_kth(c->score, c->n, chosen, &above);
	c->full = 1;
	int equal = chosen - above;
	for (int i = 0; i < c->n; i++) {
		if (c->score[i] < c->bar || (c->score[i] == c->bar && equal-- <= 0))
			continue;
		c->score[n] = c->score[i];
		c->pos[n++] = c->pos[i];
	}
	c->n = n;
}

LLMC_INLINE void
index_add(Candidates *c, int chosen, uint32_t score, int32_t pos)
{
	if (c->full && score <= c->bar)
		return;
	c->score[c->n] = score;
	c->pos[c->n++] = pos;
	if (c->n == 2 * chosen + KV_PAGE)
		index_prune(c, chosen);
}

/* Stores the scaled heads of a row, followed by zero heads as padding: q [index_heads][stride]. */
LLMC_INLINE void
index_query(const Index a, const float *from, float *q)
{
	const int stride = index_stride(a);

	for (int h = 0; h < index_heads(a); h++)
		for (int i = 0; i < stride; i++)
			q[h * stride + i] =
			    h < a.heads && i < a.dim ? from[h * a.dim + i] * a.scale : 0;
}

/* Computes the scores of n positions of a page: out [32]. x [32][stride] and s [index_heads][32]
 * are scratch. */
LLMC_INLINE void
index_page(const Index a, const char *page, int n, const float *q, const float *w, float *x,
           float *s, float *out)
{
	const int stride = index_stride(a), up = (n + INDEX_JB - 1) / INDEX_JB * INDEX_JB;

	for (int j = 0; j < up; j++)
		for (int i = 0; i < stride; i += VL) {
			vf v = vf_set1(0);
			if (j < n)
				v = a.dim - i >= VL
				        ? kv_load(a.kv, page, (int64_t)j * a.dim + i)
				        : kv_load_n(a.kv, page, (int64_t)j * a.dim + i, a.dim - i);
			vf_store(x + j * stride + i, v);
		}
	for (int r0 = 0; r0 < index_heads(a); r0 += INDEX_RB)
		for (int j0 = 0; j0 < up; j0 += INDEX_JB) {
			float sum[VL];
			vf_store(sum, lanes_dots(q + r0 * stride, x + j0 * stride, stride));
			for (int r = 0; r < INDEX_RB; r++)
				memcpy(s + (r0 + r) * KV_PAGE + j0, sum + r * INDEX_JB,
				       INDEX_JB * sizeof *sum);
		}
	for (int j = 0; j < KV_PAGE; j += VL) {
		vf sum = vf_set1(0);
		for (int h = 0; h < a.heads; h++)
			sum = vf_fma(vf_max(vf_load(s + h * KV_PAGE + j), vf_set1(0)),
			             vf_set1(w[h]), sum);
		vf_store(out + j, sum);
	}
}

#endif

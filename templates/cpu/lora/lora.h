/* Low-rank adapters (LoRA): dot products of a row of x with the rows of factor a, and weighted sums
 * of the rows of factor b. Each sum has a fixed order, independent of other rows. A dot product
 * adds VL columns at a time; an element of y adds the ranks in order. */
#ifndef LLMC_CPU_LORA_LORA_H
#define LLMC_CPU_LORA_LORA_H

#include "cpu/elementwise/partition.h"

enum { LORA_ROWS = 4, LORA_DOTS = 4, LORA_UP = 64 };

/* Returns the adapter slot of a row's sequence; negative: no adapter. */
LLMC_INLINE int32_t
lora_slot(const llmc_step *s, int64_t t)
{
	return s->adapter[s->seq[s->seq_of[t]]];
}

/* y[t * ld + k] = x[t] . a[k] for T rows and K dot products (compile-time constants). Rows of a are
 * `wide` floats apart. */
LLMC_INLINE void
lora_dots(const int T, const int K, const int cols, const float *x, const float *a, const int wide,
          float *y, const int ld)
{
	vf sum[LORA_ROWS][LORA_DOTS] = { 0 };

	for (int c = 0; c < cols; c += VL) {
		vf row[LORA_ROWS];
		LLMC_EACH(t, T, LORA_ROWS)
		row[t] = share_get(x + (int64_t)t * cols + c, cols - c);
		LLMC_EACH(k, K, LORA_DOTS)
		{
			const vf w = share_get(a + (int64_t)k * wide + c, cols - c);
			LLMC_EACH(t, T, LORA_ROWS)
			sum[t][k] = vf_fma(row[t], w, sum[t][k]);
		}
	}
	LLMC_EACH(t, T, LORA_ROWS)
	LLMC_EACH(k, K, LORA_DOTS)
	y[t * ld + k] = vf_hsum(sum[t][k]);
}

/* Computes dot products [from, to) of T rows whose sequences share a slot. */
LLMC_INLINE void
lora_rows(const int T, const int cols, const float *x, const float *a, const int wide, int from,
          int to, float *y, const int ld)
{
	int k = from;

	for (; k + LORA_DOTS <= to; k += LORA_DOTS)
		lora_dots(T, LORA_DOTS, cols, x, a + (int64_t)k * wide, wide, y + k, ld);
	for (; k < to; k++)
		lora_dots(T, 1, cols, x, a + (int64_t)k * wide, wide, y + k, ld);
}

/* n elements of low * b, from element i on. b has `rank` rows, `wide` floats apart. */
LLMC_INLINE vf
lora_sum(int64_t i, int64_t n, const int rank, const float *low, const float *b, const int wide)
{
	vf sum = { 0 };

	for (int k = 0; k < rank; k++)
		sum = vf_fma(vf_set1(low[k]), share_get(b + (int64_t)k * wide + i, n), sum);
	return sum;
}

/* y[i] = x[i] + low * b, for columns e */
LLMC_INLINE void
lora_add(Share e, const int rank, const float *low, const float *b, const int wide, const float *x,
         float *y)
{
	SHARE_EACH(e, i, n)
	share_put(y + i, share_get(x + i, n) + lora_sum(i, n, rank, low, b, wide), n);
}

/* Returns the index of the factors for choice i (choices of all rows are counted) among those of
 * all slots and experts. Negative: the row has no adapter, or the expert is on another rank. */
LLMC_INLINE int64_t
lora_expert(const llmc_step *s, const int32_t *id, int64_t i, const int top_k, const int n_experts)
{
	const int32_t slot = lora_slot(s, i / top_k);

	return slot < 0 || id[i] < 0 ? -1 : (int64_t)slot * n_experts + id[i];
}

#endif

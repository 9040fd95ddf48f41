/* What the attention kernels of a GPU agree on: which positions a row sees, how a score is made of a product, and how partial
 * results (maximum m, sum l of the weights, weighted sum o of V) are put together. Scores are in units of log 2, so that a weight is
 * one exp2f. Before inclusion: ATT_HEADS, ATT_KV_HEADS, ATT_D, ATT_V, ATT_SCALE, ATT_CAP, ATT_WINDOW, ATT_ALIBI, ATT_PAGE_BYTES,
 * ATT_MASK_causal or ATT_MASK_prefix, and what cuda_kv.h asks for. */
#ifndef LLMC_CUDA_ATTENTION_H
#define LLMC_CUDA_ATTENTION_H

#include "common/cuda_kv.h"

enum { ATT_G = ATT_HEADS / ATT_KV_HEADS };

#define ATT_LOG2E 1.4426950408889634f
#define ATT_NONE  (-1e30f) /* below every score; its difference with itself is 0, not NaN */

/* positions [lo, hi) that the row at `pos` of sequence `seq` sees; never empty */
typedef struct AttRange { int lo, hi; } AttRange;

DEV AttRange
att_range(const llmc_step &s, int seq, int pos)
{
	AttRange r;

	r.lo = ATT_WINDOW > 0 && pos - ATT_WINDOW + 1 > 0 ? pos - ATT_WINDOW + 1 : 0;
	r.hi = pos + 1;
#ifdef ATT_MASK_prefix
	r.hi = min(max(r.hi, s.prefix_len[seq]), s.kv_len[seq]);
#endif
	return r;
}

/* ALiBi: powers of 2^(-bias / n) for the first n heads, n the largest power of two within the heads; the others take the odd powers
 * of the series for 2n heads. */
DEV float
att_slope(int head)
{
	if constexpr (ATT_ALIBI > 0) {
		int n = 1;
		while (n * 2 <= ATT_HEADS)
			n *= 2;
		return head < n ? exp2f(-ATT_ALIBI * (float)(head + 1) / (float)n)
		                : exp2f(-ATT_ALIBI * (float)(2 * (head - n) + 1) / (float)(2 * n));
	}
	return 0;
}

/* The score, times log2(e), of a product q.k; q as it came. distance: position of the key minus position of the row */
DEV float
att_score(float product, float slope, int distance)
{
	float s = product * ATT_SCALE;

	if (ATT_CAP > 0)
		s = soft_cap(s, ATT_CAP);
	if (ATT_ALIBI > 0)
		s += slope * (float)distance;
	return s * ATT_LOG2E;
}

#endif

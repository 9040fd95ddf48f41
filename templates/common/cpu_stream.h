/* Few tokens (STREAM_TOKENS): weights go from memory through registers once, each block meeting every token's block.
 *
 * A row's sum, here and in cpu_tile.h, bit for bit:
 *   integers  over blocks b in order (halves in order), D = fma(float(dot) * act.d, w.d, D), M = fma(w.min, act.s, M); D + M
 *   floats    over columns k in order, D = fma(w, x, D) */
#ifndef LLMC_CPU_STREAM_H
#define LLMC_CPU_STREAM_H

#include "common/cpu_quant.h"

enum {
	STREAM_AHEAD  = 2048,               /* bytes; 1 to 4 KiB measure alike, none costs a quarter */
	STREAM_TOKENS = VL == 16 ? 4 : 2,   /* as many sums as registers hold */
};

LLMC_INLINE void
stream_prefetch(const uint8_t *p, int bytes)
{
	LLMC_UNROLL
	for (int i = 0; i < bytes; i += 64)
		__builtin_prefetch(p + STREAM_AHEAD + i);
}

#if W_FLOAT

/* Rows of `groups` groups side by side: independent sums hide the latency of the fused multiply-add. */
LLMC_INLINE void
stream_groups(const uint8_t *w, const act_rows *a, const int tokens, const int groups, float *out, int ld)
{
	vf sum[STREAM_TOKENS][4] = { { { 0 } } };

	for (int k = 0; k < COLS; k++) {
		vf v[4];
		if (k % (64 / W_COLUMN_BYTES) == 0)
			LLMC_UNROLL
			for (int g = 0; g < groups; g++)
				__builtin_prefetch(w + g * W_GROUP_BYTES + (int64_t)k * W_COLUMN_BYTES + STREAM_AHEAD / 2);
		LLMC_UNROLL
		for (int g = 0; g < groups; g++)
			v[g] = w_column(w + g * W_GROUP_BYTES, k);
		LLMC_UNROLL
		for (int t = 0; t < tokens; t++) {
			vf x = vf_set1(((const float *)(const void *)(a->q + (size_t)t * ACT_ROW_BYTES))[k]);
			LLMC_UNROLL
			for (int g = 0; g < groups; g++)
				sum[t][g] = vf_fma(v[g], x, sum[t][g]);
		}
	}
	LLMC_UNROLL
	for (int t = 0; t < tokens; t++)
		LLMC_UNROLL
		for (int g = 0; g < groups; g++)
			vf_store(out + t * ld + g * VL, sum[t][g]);
}

LLMC_INLINE void
stream_some(const uint8_t *w, int groups, const act_rows *a, const int tokens, float *out, int ld)
{
	for (; groups >= 4; groups -= 4, w += 4 * W_GROUP_BYTES, out += 4 * VL)
		stream_groups(w, a, tokens, 4, out, ld);
	for (; groups > 0; groups--, w += W_GROUP_BYTES, out += VL)
		stream_groups(w, a, tokens, 1, out, ld);
}

static void
stream_rows(const uint8_t *w, int groups, const act_rows *a, int tokens, float *out, int ld)
{
	switch (tokens) {
	case 1: stream_some(w, groups, a, 1, out, ld); break;
	case 2: stream_some(w, groups, a, 2, out, ld); break;
#if VL == 16
	case 3: stream_some(w, groups, a, 3, out, ld); break;
	case 4: stream_some(w, groups, a, 4, out, ld); break;
#endif
	default: break;
	}
}

#else

/* float(dot) of half h (or of the whole block) with row x of integers; z: W_OFFSET times their sum */
LLMC_INLINE vf
stream_dot(w_at k, const uint8_t *x, int half, int32_t z)
{
	const int N = 8 / W_HALVES;
#if ACT_STREAM_BYTES
	const int PASSES = ACT_BITS / 8, ROOM = DOT_BYTES_ROOM >> W_BITS;
	vi sum[2] = { { 0 } }, total = vi_all(0);
	LLMC_UNROLL
	for (int n = 0; n < N; n++) {
		/* low and high nibbles of one load */
		int i = W_HALVES == 2 ? 4 * half + n : n / 2 + n % 2 * 4;
		vi v = w_bytes(k, i);
		LLMC_UNROLL
		for (int p = 0; p < PASSES; p++)
			sum[p] = dot_bytes(sum[p], v, vi_bcast4(x + 32 * p + 4 * i));
		if (n == N - 1 || (ROOM < N && n == N / 2 - 1))
			LLMC_UNROLL
			for (int p = 0; p < PASSES; p++) {
				total += dot_bytes_sum(sum[p], PASSES == 2 && p == 0 ? 256 : 1);
				sum[p] = vi_all(0);
			}
	}
#if W_OFFSET
	total -= vi_all(z);
#else
	(void)z;
#endif
	return vf_of_vi(total);
#else
	vi even = vi_all(0), odd = vi_all(0);
	(void)z;
	LLMC_UNROLL
	for (int n = 0; n < N; n++) {
		int i = W_HALVES == 2 ? 4 * half + n : n / 2 + n % 2 * 4;
		even = dot_words(even, w_words(k, 2 * i), vi_bcast4(x + 8 * i));
		odd = dot_words(odd, w_words(k, 2 * i + 1), vi_bcast4(x + 8 * i + 4));
	}
	return vf_of_vi(even + odd);
#endif
}

LLMC_INLINE void
stream_group(const uint8_t *w, const act_rows *a, int tokens, float *out, int ld)
{
	vf sum[STREAM_TOKENS] = { { 0 } };
#if W_MIN
	vf mins[STREAM_TOKENS] = { { 0 } };
#endif

	for (int first = 0; first < W_BLOCKS; first += W_TOGETHER) {
		w_at k = w_shared(w, first);
		for (int b = first; b < first + W_TOGETHER; b++, k = w_next(k)) {
			stream_prefetch(w + (int64_t)b * W_BLOCK_BYTES, W_BLOCK_BYTES);
			LLMC_UNROLL
			for (int h = 0; h < W_HALVES; h++) {
				vf scale = w_scale(k, h);
				LLMC_UNROLL
				for (int t = 0; t < tokens; t++) {
					const uint8_t *x = a->q + (size_t)t * ACT_ROW_BYTES + (size_t)b * ACT_BLOCK_BYTES;
					size_t at = (size_t)t * W_BLOCKS + (size_t)b;
					vf dot = stream_dot(k, x, h, a->z[at * W_HALVES + (size_t)h]);
					sum[t] = vf_fma(dot * vf_set1(a->d[at]), scale, sum[t]);
				}
			}
#if W_MIN
			vf m = w_min(k);
			LLMC_UNROLL
			for (int t = 0; t < tokens; t++)
				mins[t] = vf_fma(m, vf_set1(a->s[(size_t)t * W_BLOCKS + (size_t)b]), mins[t]);
#endif
		}
	}
	LLMC_UNROLL
	for (int t = 0; t < tokens; t++) {
#if W_MIN
		vf_store(out + t * ld, sum[t] + mins[t]);
#else
		vf_store(out + t * ld, sum[t]);
#endif
	}
}

/* out[t][row] of all rows of the groups from w on */
static void
stream_rows(const uint8_t *w, int groups, const act_rows *a, int tokens, float *out, int ld)
{
	for (int g = 0; g < groups; g++, w += W_GROUP_BYTES, out += VL)
		switch (tokens) {
		case 1: stream_group(w, a, 1, out, ld); break;
		case 2: stream_group(w, a, 2, out, ld); break;
#if VL == 16
		case 3: stream_group(w, a, 3, out, ld); break;
		case 4: stream_group(w, a, 4, out, ld); break;
#endif
		default: break;
		}
}

#endif
#endif

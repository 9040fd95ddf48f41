/* GEMV for up to STREAM_TOKENS tokens. Weights stream from memory through registers once, and each
 * block is multiplied by the same columns of every token.
 *
 *   memory --prefetch, STREAM_AHEAD bytes ahead--> cache --w_bytes / w_words--> registers
 *                                                                          |
 *   activations (cpu/gemm/quantize_act.h) of each token --broadcast of 4 bytes--> dot_bytes / dot_words, exact integers
 *                                                                          |
 *                        per block and token: float(dot) * w_scale, FMA with act.d, w_min --> sum[token], VL rows per register
 *
 * Bytes: a block of VL rows once (w_block_bytes), 32 or 64 bytes of activations per token from L1.
 * Instructions per block: 8 loads with masks for weights of 4 to 6 bits. Per token: 8 dot_bytes for
 * 8-bit activations, 16 dot_bytes or dot_words for 16-bit ones, and 4 fp32 instructions. Grid
 * formats on AVX2 process eight columns of four rows per register (cpu/weights/grids.h), 8 bytes of
 * activations per broadcast.
 *
 * The sum of a row is defined as follows; cpu/gemm/gemm_tile.h computes the same bits:
 *   integers  blocks b in order (halves in order): D = fma(float(dot) * w.d, act.d, D),
 *              M = fma(w.min, act.s, M); result D + M
 *   floats    columns k in order: D = fma(w, x, D). With scales: groups in order, S = 0, S = fma(code, x, S) per column, then
 *             D = fma(S, scale, D) */
#ifndef LLMC_CPU_GEMM_GEMV_H
#define LLMC_CPU_GEMM_GEMV_H

#include "cpu/gemm/quantize_act.h"

LLMC_INLINE void
stream_prefetch(const uint8_t *w, int bytes)
{
	LLMC_EACH(i, (bytes + 63) / 64, 9)
	__builtin_prefetch(w + STREAM_AHEAD + 64 * i);
}

/* Processes `groups` row groups together: independent accumulators hide the FMA latency. */
LLMC_INLINE void
stream_floats(const Product p, const uint8_t *w, const act_rows *a, const int tokens,
              const int groups, float *out, int ld)
{
	const int64_t group = w_group_bytes(p.w, p.cols);
	const int column = w_block_bytes(p.w), COLUMNS = w_is_tabled(p.w) ? 8 : 2;
	vf sum[STREAM_TOKENS][4] = { { { 0 } } };
	const w_planes planes = w_planes_of(p.w);

	for (int i = 0; p.w.group && i < p.cols / p.w.group; i++) {
		w_span s[4];
		vf part[STREAM_TOKENS][4] = { { { 0 } } };
		LLMC_EACH(g, groups, 4)
		s[g] = w_span_at(p.w, w + g * group, i);
		for (int k = 0; k < p.w.group; k += COLUMNS) {
			vf v[4][8];
			LLMC_EACH(g, groups, 4)
			{
				if (k % (64 / column) == 0)
					__builtin_prefetch(s[g].codes + k * column +
					                   STREAM_AHEAD / 2);
				if (w_is_tabled(p.w))
					w_eight(&planes, s[g], k, v[g]);
				else
					w_span_pair(p.w, s[g], k / 2, v[g]);
			}
			LLMC_EACH(t, tokens, STREAM_TOKENS)
			LLMC_EACH(j, COLUMNS, 8)
			{
				vf x = vf_set1(((
				    const float *)(const void *)(a->q + (size_t)t *
				                                            (size_t)act_row_bytes(
				                                                p)))[i * p.w.group +
				                                                     k + j]);
				LLMC_EACH(g, groups, 4)
				part[t][g] = vf_fma(v[g][j], x, part[t][g]);
			}
		}
		LLMC_EACH(t, tokens, STREAM_TOKENS)
		LLMC_EACH(g, groups, 4)
		sum[t][g] = vf_fma(part[t][g], s[g].d, sum[t][g]);
	}
	for (int k = 0; !p.w.group && k < p.cols; k++) {
		vf v[4];
		if (k % (64 / column) == 0)
			LLMC_EACH(g, groups, 4)
		__builtin_prefetch(w + g * group + (int64_t)k * column + STREAM_AHEAD / 2);
		LLMC_EACH(g, groups, 4)
		v[g] = w_column(p.w, w + g * group, k);
		LLMC_EACH(t, tokens, STREAM_TOKENS)
		{
			vf x = vf_set1((
			    (const float *)(const void *)(a->q + (size_t)t *
			                                             (size_t)act_row_bytes(p)))[k]);
			LLMC_EACH(g, groups, 4)
			sum[t][g] = vf_fma(v[g], x, sum[t][g]);
		}
	}
	LLMC_EACH(t, tokens, STREAM_TOKENS)
	LLMC_EACH(g, groups, 4)
	vf_store(out + t * ld + g * VL, sum[t][g]);
}

/* Like stream_dot, for grid formats: eight columns of four rows per register */
LLMC_INLINE vf
stream_eights(const Product p, w_at k, const uint8_t *x, int half, int32_t z)
{
	vi rows = vi_all(0);
#ifdef LLMC_EIGHTS
	/* Number of steps whose sum fits in 16 bits. Limits: 4 steps of 25 x 128 x 2 (iq1) or 15 x
	 * 127 x 2 (iq3_s), 2 steps of 62 x 127 x 2 */
	const int N = 4 / p.w.halves, bytes = act_stream_bytes(p), PASSES = p.act_bits / 8,
	          STEPS = w_is_iq1(p.w) || p.w.kind == CODES_iq3_s ? N : 2;
	vi sum[2][2], total[2] = { { 0 } };

	/* eight columns of rows 0-3 of a pass, then the same columns of the other four rows, while
	 * x and the indices stay in registers */
	LLMC_EACH(at, 2 * N, 8)
	{
		const int u = at / 2 % 2, i = at / 4 * 2 + at % 2, n = N * half + i;
		vi v = grid_eight(p.w, k, n, u);
		if (!w_is_iq1(p.w) && !bytes)
			v = grid_signed(v, grid_signs(p.w, k, n, u));
		LLMC_EACH(pass, bytes ? PASSES : 2, 2)
		{
			if (bytes) {
				vi q = vi_bcast8(x + 32 * pass + 8 * n);
				if (!w_is_iq1(p.w))
					q = grid_signed(q, grid_signs(p.w, k, n, u));
				sum[u][pass] = i % STEPS ? dot_bytes(sum[u][pass], v, q)
				                         : dot_bytes_first(v, q);
				if (i % STEPS == STEPS - 1)
					total[u] += dot_bytes_sum(
					    sum[u][pass], PASSES == 2 && pass == 0 ? 256 : 1);
			} else {
				const vi words = pass ? w_odd_words(v) : w_even_words(v),
				         q = vi_bcast8(x + 16 * n + 8 * pass);
				sum[u][pass] = i ? dot_words(sum[u][pass], words, q)
				                 : dot_words_first(words, q);
				if (i == N - 1)
					total[u] += sum[u][pass];
			}
		}
	}
	rows = grid_rows(total[0], total[1]);
	if (w_is_iq1(p.w))
		rows -= vi_all(z);
#else
	(void)p, (void)k, (void)x, (void)half, (void)z;
#endif
	return vf_of_vi(rows);
}

/* Returns float(dot) of half h (or of the whole block) with a row x of integer activations. z:
 * w_offset times the sum of x */
LLMC_INLINE vf
stream_dot(const Product p, w_at k, const uint8_t *x, int half, int32_t z)
{
	const int N = 8 / p.w.halves;

	if (w_is_eights(p.w))
		return stream_eights(p, k, x, half, z);
	if (act_stream_bytes(p)) {
		const int PASSES = p.act_bits / 8,
		          STEPS = DOT_BYTES_ROOM >> w_width(p.w) < N ? N / 2 : N;
		vi sum[2], total = vi_all(0);
		LLMC_EACH(n, N, 8)
		{
			/* low and high nibbles come from one load */
			int i = p.w.halves == 2 ? 4 * half + n : n / 2 + n % 2 * 4;
			vi v = dot_operand(w_bytes(p.w, k, i), w_width(p.w));
			LLMC_EACH(pass, PASSES, 2)
			{
				const vi q = vi_bcast4(x + 32 * pass + 4 * i);
				sum[pass] =
				    n % STEPS ? dot_bytes(sum[pass], v, q) : dot_bytes_first(v, q);
				if (n % STEPS == STEPS - 1)
					total += dot_bytes_sum(sum[pass],
					                       PASSES == 2 && pass == 0 ? 256 : 1);
			}
		}
		if (dot_offset(w_offset(p.w), w_width(p.w)))
			total -= vi_all(z);
		return vf_of_vi(total);
	}
	vi sum[2];
	LLMC_EACH(n, N, 8)
	{
		int i = p.w.halves == 2 ? 4 * half + n : n / 2 + n % 2 * 4;
		LLMC_EACH(odd, 2, 2)
		{
			const vi v = w_words(p.w, k, 2 * i + odd),
			         q = vi_bcast4(x + 8 * i + 4 * odd);
			sum[odd] = n ? dot_words(sum[odd], v, q) : dot_words_first(v, q);
		}
	}
	return vf_of_vi(sum[0] + sum[1]);
}

LLMC_INLINE void
stream_blocks(const Product p, const uint8_t *w, const act_rows *a, const int tokens, float *out,
              int ld)
{
	const int blocks = p_blocks(p), together = w_together(p.w),
	          block_bytes = w_block_bytes(p.w);
	vf sum[STREAM_TOKENS] = { { 0 } }, mins[STREAM_TOKENS] = { { 0 } };

	for (int first = 0; first < blocks; first += together) {
		w_at k = w_shared(p.w, w, first);
		w_indices found[8];
		w_at next = k;
		LLMC_EACH(b, w_is_indexed(p.w) ? together : 0, 8)
		{
			w_gather_indices(p.w, next, &found[b]);
			next = w_next(p.w, next);
		}
		for (int b = first; b < first + together; b++, k = w_next(p.w, k)) {
			k.found = w_is_indexed(p.w) ? &found[b - first] : NULL;
			stream_prefetch(w + (int64_t)b * block_bytes, block_bytes);
			LLMC_EACH(h, p.w.halves, 2)
			{
				vf scale = w_scale(p.w, k, h);
				LLMC_EACH(t, tokens, STREAM_TOKENS)
				{
					const uint8_t *x = a->q +
					                   (size_t)t * (size_t)act_row_bytes(p) +
					                   (size_t)b * (size_t)act_block_bytes(p);
					size_t at = (size_t)t * (size_t)blocks + (size_t)b;
					vf dot = stream_dot(
					    p, k, x, h, a->z[at * (size_t)p.w.halves + (size_t)h]);
					sum[t] = vf_fma(dot * scale, vf_set1(a->d[at]), sum[t]);
				}
			}
			LLMC_EACH(h, p.w.min ? p.w.halves : 0, 2)
			{
				vf m = w_min(p.w, k, h);
				LLMC_EACH(t, tokens, STREAM_TOKENS)
				mins[t] =
				    vf_fma(m,
				           vf_set1(a->s[((size_t)t * (size_t)blocks + (size_t)b) *
				                            (size_t)p.w.halves +
				                        (size_t)h]),
				           mins[t]);
			}
		}
	}
	LLMC_EACH(t, tokens, STREAM_TOKENS)
	{
		if (p.w.min)
			sum[t] += mins[t];
		vf_store(out + t * ld, sum[t]);
	}
}

LLMC_INLINE void
stream_some(const Product p, const uint8_t *w, int groups, const act_rows *a, const int tokens,
            float *out, int ld)
{
	const int64_t group = w_group_bytes(p.w, p.cols);

	if (w_is_float(p.w))
		for (; groups >= 4; groups -= 4, w += 4 * group, out += 4 * VL)
			stream_floats(p, w, a, tokens, 4, out, ld);
	for (; groups > 0; groups--, w += group, out += VL)
		if (w_is_float(p.w))
			stream_floats(p, w, a, tokens, 1, out, ld);
		else
			stream_blocks(p, w, a, tokens, out, ld);
}

/* Computes out[t][row] of all rows of the groups from w on. */
LLMC_INLINE void
stream_rows(const Product p, const uint8_t *w, int groups, const act_rows *a, int tokens,
            float *out, int ld)
{
	switch (tokens) {
	case 1:
		stream_some(p, w, groups, a, 1, out, ld);
		break;
	case 2:
		stream_some(p, w, groups, a, 2, out, ld);
		break;
#if VL == 16
	case 3:
		stream_some(p, w, groups, a, 3, out, ld);
		break;
	case 4:
		stream_some(p, w, groups, a, 4, out, ld);
		break;
#endif
	default:
		break;
	}
}

#endif

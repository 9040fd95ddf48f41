/* Register tiles by Armv8.6 matrix multiplies (usmmla): a GEMM tile (cpu/gemm/gemm_tile.h) whose
 * weights and activations are bytes. One instruction multiplies 2 rows of weights by 2 tokens over
 * 8 columns, 32 multiply-adds.
 *
 *   weights, unpacked:   tile_pair_columns: rows 0 and 1, then rows 2 and 3, 8 columns each
 *   activations:         act_put: 8 bytes of a token, then 8 of the next. If the number of tokens
 *                        is odd, the bytes of the last one are loaded twice
 *   sums [4]:            row 0 x token 0, row 0 x token 1, row 1 x token 0, row 1 x token 1
 *
 * 16-bit activations q = 256 hi + lo take one instruction for hi and one for lo, without loss.
 * After each block the sums of a token are brought into row order. The fp32 operations that follow
 * are those of tile_dot_blocks, so results have the same bits. */
#ifndef LLMC_CPU_GEMM_MMLA_H
#define LLMC_CPU_GEMM_MMLA_H

#include "cpu/gemm/gemm_tile.h"

/* acc[2 i + j] + sum over k of the unsigned byte w[8 i + k] times the signed byte x[8 j + k] */
LLMC_INLINE vi
mmla(vi acc, vi w, vi x)
{
#if VF_MMLA && defined(VF_NATIVE_NEON)
	return (vi)vusmmlaq_s32((int32x4_t)acc, (uint8x16_t)w, (int8x16_t)x);
#else
	const uint8_t *const a = (const uint8_t *)&w;
	const int8_t *const b = (const int8_t *)&x;
	for (int i = 0; i < 2; i++)
		for (int j = 0; j < 2; j++)
			for (int k = 0; k < 8; k++)
				acc[2 * i + j] += a[8 * i + k] * b[8 * j + k];
	return acc;
#endif
}

/* eight columns of two tokens; alone: of one token, twice */
LLMC_INLINE vi
mmla_load(const uint8_t *p, const int alone)
{
	int64_t x[2];

	memcpy(x, p, 8);
	memcpy(x + 1, alone ? p : p + 8, 8);
	vi v;
	memcpy(&v, x, 16);
	return v;
}

/* sums of the rows of a group with one token of a pair */
LLMC_INLINE vi
mmla_rows(vi low, vi high, const int odd)
{
#if VL == 4
	return odd ? VF_SHUFFLE(low, high, 1, 3, 5, 7) : VF_SHUFFLE(low, high, 0, 2, 4, 6);
#else
	(void)high, (void)odd;
	return low;
#endif
}

enum { MMLA_PAIRS = (TILE_T + 1) / 2 };

/* Computes the exact integers of half `half` of a block: [pair][group][rows 0 and 1, rows 2 and
 * 3]. */
LLMC_INLINE void
mmla_block(const Product p, const int T, const vi *q, const uint8_t *x, const int half,
           vi total[MMLA_PAIRS][TILE_H][2])
{
	const int block = act_block_bytes(p), passes = p.act_bits / 8, chunks = 4 / p.w.halves;
	vi acc[2][MMLA_PAIRS][TILE_H][2];

	LLMC_EACH(c, chunks, 4)
	{
		const int at = half * chunks + c;
		vi v[TILE_H][2];
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			for (int r = 0; r < 2; r++)
				v[h][r] = tile_load(&q[(2 * at + r) * TILE_H + h]);
		LLMC_EACH(u, (T + 1) / 2, MMLA_PAIRS)
		LLMC_EACH(pass, passes, 2)
		{
			const int alone = 2 * u + 1 == T;
			const vi tokens = mmla_load(
			    x + 2 * u * block + (alone ? 32 * pass + 8 * at : 64 * pass + 16 * at),
			    alone);
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				for (int r = 0; r < 2; r++)
					acc[pass][u][h][r] = mmla(
					    c ? acc[pass][u][h][r] : vi_all(0), v[h][r], tokens);
		}
	}
	LLMC_EACH(u, (T + 1) / 2, MMLA_PAIRS)
	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++)
		for (int r = 0; r < 2; r++) {
			total[u][h][r] = acc[0][u][h][r];
			if (passes == 2)
				total[u][h][r] = (total[u][h][r] << 8) + acc[1][u][h][r];
		}
}

/* tile_dot_blocks of bytes, by matrix-multiply instructions */
LLMC_INLINE void
tile_dot_mmla(const Product p, const int T, const tile_weights *w, int first, int n,
              const act_rows *a, int t0, tile_sums *sum, tile_ahead *ahead)
{
	const int halves = p.w.halves, block = act_block_bytes(p);
	const uint8_t *x =
	    a->q + (size_t)t0 * (size_t)act_row_bytes(p) + (size_t)(first * T * block);
	const size_t at = (size_t)t0 * (size_t)p_blocks(p) + (size_t)(first * T);
	const float *const scales = a->d + at, *const totals = a->s + at * (size_t)halves;
	const int32_t *const offsets = a->z + at * (size_t)halves;
	tile_sum *const d = sum->d + t0;

	for (int b = 0; b < n; b++, x += T * block) {
		tile_fetch(p, ahead);
		LLMC_EACH(half, halves, 2)
		{
			vi total[MMLA_PAIRS][TILE_H][2];
			mmla_block(p, T, &w->q[b * 8 * TILE_H], x, half, total);
			LLMC_EACH(t, T, TILE_T)
			{
				vi dot[TILE_H];
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++)
					dot[h] = mmla_rows(total[t / 2][h][0], total[t / 2][h][1],
					                   t % 2);
				tile_add_dots(p, dot, &w->scale[(b * halves + half) * TILE_H],
				              scales[b * T + t],
				              offsets[(b * T + t) * halves + half], d[t].v);
			}
		}
	}
	if (p.w.min)
		tile_add_mins(p, T, w, n, totals, sum->m + t0);
}

#endif

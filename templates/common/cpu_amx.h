/* Many tokens on AMX: a tile register has 16 rows of 64 bytes, and one instruction multiplies up to 16 tokens by 16 rows of weights.
 * It takes the place of tile_dot (cpu_tile.h), with an unpacking of its own and the same sums in the same order.
 *
 *   int8, block formats     tdpbssd over the 32 columns of a block (16 where a block has two scales): exact integers of T tokens x 16
 *                           rows, stored, and scaled by AVX-512 as everywhere: the same bits as v4. Activations of 16 bits are two signed
 *                           digits, hi and lo of cpu_quant.h, each with sums of its own; 256 hi + lo is what v4's words give.
 *   bf16, block formats     beside plain activations (bf16) the integers of a block are exact in bf16: tdpbf16ps, stored, and scaled by
 *                           one fma a result, without a conversion or a scale of the activations. Integers become bf16 by a look-up.
 *   bf16, 16-bit weights    tdpbf16ps over all columns in the accumulators. Activations are two parts, x = hi + lo, each rounded to
 *                           bf16: relative error 2^-17 an element. Weights of f16 are two parts as well, exactly; lo x lo is left out.
 *
 *   step i      tiles: load A, B of piece i + 2, dot         |  tiles of piece i + 1, stored  --> ring of two results
 *               vectors: results of piece i, scaled, added to 16 sums in registers            <--
 *
 * The steps run on from one tile or group to the next, or filling and draining them would cost half as much again.
 *
 * A tile instruction takes max(rows of A, rows of B) cycles however few columns there are, a store or load of a tile 14 or 7. A piece of 16
 * tokens x 16 rows x 32 columns needs 48 fp32 multiplications and conversions, one a cycle beside tiles, 2 stores and 2 dots (8 bits: 1 and 1): at
 * least 48 cycles, of which dots are 32 (16). Of bf16 it needs 16 fma, which run beside the dot; loads and the store take what is
 * left of 31 cycles measured for it all in one loop. With everything around it a piece of Q4_0 takes 121 cycles of 3.05 GHz with 16 bits, 95 with 8, 78 in
 * bf16 (8192 x 2048, 256 tokens), of 16-bit weights 59 in each part.
 *
 * Order of summation: cpu_stream.h for integers. Floats: over blocks of 32 columns in order, of each hi w, lo w (f16: then hi w_lo), in the
 * order of the instruction, for block formats then D = fma(dot, w.d, D), M = fma(w.min, sum of x, M), D + M; any number of tokens goes this way,
 * so that decode has it too.
 *
 * The process has the system's permission before a kernel runs (runtime/cpu/isa.c). Tiles are configured for a call and released after. */
#ifndef LLMC_CPU_AMX_H
#define LLMC_CPU_AMX_H

#include "common/cpu_tile.h"

#if defined(LLMC_TILES)
enum { AMX_T = 16, AMX_B = 16 };        /* tokens, and rows of B, of a tile at most */

typedef struct amx_config {
	uint8_t  palette, start, none[14];
	uint16_t bytes[16];             /* of a row of each register */
	uint8_t  rows[16];
} amx_config;

#define AMX_LOAD(r, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #r ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_STORE(r, p, stride) __asm__ volatile("tilestored %%tmm" #r ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define AMX_ZERO(r) __asm__ volatile("tilezero %tmm" #r)
#define AMX_INT8(c, a, b) __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #c)
#define AMX_BF16(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

/* Registers 0 to 3: results; 4, 5: activations; 6, 7: weights. columns: bytes of a row of A */
LLMC_INLINE void
amx_begin(int tokens, int columns)
{
	_Alignas(64) amx_config c = { .palette = 1 };

	for (int r = 0; r < 8; r++) {
		c.rows[r] = (uint8_t)(r < 6 ? tokens : columns / 4);
		c.bytes[r] = (uint16_t)(r == 4 || r == 5 ? columns : 64);
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

LLMC_INLINE void
amx_end(void)
{
	__asm__ volatile("tilerelease");
}

/* --- sizes ------------------------------------------------------------------------------------------------------------- */
/* of bf16 that a weight becomes */
LLMC_INLINE int
amx_parts(const Product p)
{
	return p.w.bits == 16 && !p.w.brain ? 2 : 1;
}

/* vectors that a block of 32 columns becomes in each group */
LLMC_INLINE int
amx_steps(const Product p)
{
	return act_is_bf16(p) ? AMX_B * amx_parts(p) : 8;
}

LLMC_INLINE int
amx_chunk(const Product p)
{
	const int most = TILE_VECTORS / (TILE_H * amx_steps(p)), all = p_blocks(p), chunks = (all + most - 1) / most;

	return (all + chunks - 1) / chunks;
}

/* two columns as bf16, side by side in each row */
LLMC_INLINE vi
amx_pair(vf even, vf odd)
{
	typedef uint16_t words __attribute__((vector_size(64)));
	const words pairs = { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };

	return (vi)_mm512_permutexvar_epi16((__m512i)pairs, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
}

/* --- unpacking: tile_weights of [group][block] -------------------------------------------------------------------------- */
LLMC_INLINE void
amx_unpack_floats(const Product p, const uint8_t *group, int block, vi *o)
{
	typedef uint16_t words __attribute__((vector_size(64)));
	const words pairs = { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };

	LLMC_UNROLL
	for (int i = 0; i < AMX_B; i++) {
		const int64_t col = (int64_t)block * 32 + 2 * i;
		if (p.w.brain) {
			o[i] = (vi)_mm512_permutexvar_epi16((__m512i)pairs, (__m512i)vi_load(group + col * 2 * VL));
			continue;
		}
		if (p.w.bits < 16) { /* codes of floats: rounded */
			o[i] = amx_pair(w_column(p.w, group, col), w_column(p.w, group, col + 1));
			continue;
		}
		vi upper = vi_all((int32_t)0xffff0000), x = (vi)w_column(p.w, group, col), y = (vi)w_column(p.w, group, col + 1);
		vi x_lo = (vi)((vf)x - (vf)(x & upper)), y_lo = (vi)((vf)y - (vf)(y & upper));
		typedef uint32_t unsigneds __attribute__((vector_size(64)));
		o[i] = (vi)((unsigneds)x >> 16) | (y & upper);
		o[AMX_B + i] = (vi)((unsigneds)x_lo >> 16) | (y_lo & upper);
	}
}

/* What an element of a block is as bf16, exactly, by its lower 5 bits; 6 bits: the upper half of them behind */
LLMC_INLINE void
amx_table(const Product p, vi table[2])
{
	const vi lane = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };

	for (int i = 0; i < 2; i++) {
		vi q = lane + vi_all(32 * i - w_offset(p.w)), next = q + vi_all(w_width(p.w) == 4 ? 0 : 16);
		table[i] = (vi)_mm512_cvtne2ps_pbh((__m512)vf_of_vi(next), (__m512)vf_of_vi(q));
	}
}

/* A block's elements as bf16, unscaled: vector 2 i is columns 4 i and 4 i + 2, vector 2 i + 1 the two others */
LLMC_INLINE void
amx_unpack_block(const Product p, const w_at k, const vi table[2], vi *o)
{
	const __m512i t0 = (__m512i)table[0], t1 = (__m512i)table[1];

	LLMC_EACH(i, 8, 8) {
		if (w_width(p.w) > 6) { /* 256 + q of bits, less 256 and the offset; what is exact is cut, not rounded */
			const vi pick = vi_all(0xff << 15), base = vi_all(0x43800000), upper = vi_all((int32_t)0xffff0000);
			const vf less = vf_set1((float)(256 + w_offset(p.w)));
			vi q = w_bytes(p.w, k, i), v[4];
			LLMC_EACH(j, 4, 4) {
				vi at = j == 0 ? q << 15 : j == 1 ? q << 7 : j == 2 ? q >> 1 : q >> 9;
				v[j] = (vi)((vf)_mm512_ternarylogic_epi32((__m512i)at, (__m512i)pick, (__m512i)base, 0xea) - less);
			}
			o[2 * i] = (vi)_mm512_srli_epi32((__m512i)v[0], 16) | (v[2] & upper);
			o[2 * i + 1] = (vi)_mm512_srli_epi32((__m512i)v[1], 16) | (v[3] & upper);
			continue;
		}
		/* the table does not look at what lies above 5 bits (6), and of 4 bits it holds all twice */
		vi q = w_width(p.w) == 4 ? vi_load(k.quant + 4 * VL * (i & 3)) >> (i < 4 ? 0 : 4) : w_bytes(p.w, k, i);
		if (p.w.bits == 6) {
			o[2 * i] = (vi)_mm512_permutex2var_epi16(t0, (__m512i)q, t1);
			o[2 * i + 1] = (vi)_mm512_permutex2var_epi16(t0, (__m512i)(q >> 8), t1);
		} else {
			o[2 * i] = (vi)_mm512_permutexvar_epi16((__m512i)q, t0);
			o[2 * i + 1] = (vi)_mm512_permutexvar_epi16((__m512i)(q >> 8), t0);
		}
	}
}

LLMC_INLINE void
amx_unpack(const Product p, const uint8_t *w, int groups, int first, int n, tile_weights *o)
{
	typedef uint8_t bytes __attribute__((vector_size(64)));
	const int64_t group = w_group_bytes(p.w, p.cols);
	const int steps = amx_steps(p);
	vi table[2];

	if (act_blocks(p))
		amx_table(p, table);
	for (int h = 0; h < groups; h++)
		for (int b = 0; b < n; b++) {
			vi *to = o->q + (h * n + b) * steps;
			if (w_is_float(p.w)) {
				amx_unpack_floats(p, w + h * group, first + b, to);
				continue;
			}
			w_at k = w_block(p.w, w + h * group, first + b);
			if (act_blocks(p))
				amx_unpack_block(p, k, table, to);
			else LLMC_EACH(i, 8, 8)
				to[i] = (vi)((bytes)w_bytes(p.w, k, i) - (bytes)vi_all((int32_t)((uint32_t)w_offset(p.w) * 0x1010101u)));
			LLMC_EACH(s, p.w.halves, 2)
				o->scale[(h * n + b) * p.w.halves + s] = w_scale(p.w, k, s);
			LLMC_EACH(s, p.w.min ? p.w.halves : 0, 2)
				o->min[(h * n + b) * p.w.halves + s] = w_min(p.w, k, s);
		}
}

/* --- blocks --------------------------------------------------------------------------------------------------------------- */
/* sum += float(256 hi + lo) * d * scale, in v4's order: rounded after each. No digits: sum += hi * scale */
#define AMX_ADD(digits, sum, hi, lo, d, scale, up)                                                                            \
	do {                                                                                                                  \
		vi x_;                                                                                                        \
		if (digits == 0)                                                                                              \
			__asm__ volatile("vfmadd231ps %[h], %[s], %[a]" : [a] "+v"(sum) : [h] "m"(hi), [s] "v"(scale));       \
		else if (digits == 2)                                                                                         \
			__asm__ volatile("vmovdqa32 %[h], %[x]\n\tvpshufb %[u], %[x], %[x]\n\tvpaddd %[l], %[x], %[x]\n\t"    \
			                 "vcvtdq2ps %[x], %[x]\n\tvmulps %[m]%{1to16%}, %[x], %[x]\n\t"                       \
			                 "vfmadd231ps %[x], %[s], %[a]"                                                       \
			                 : [a] "+v"(sum), [x] "=&v"(x_)                                                       \
			                 : [h] "m"(hi), [l] "m"(lo), [m] "m"(d), [s] "v"(scale), [u] "v"(up));                \
		else                                                                                                          \
			__asm__ volatile("vcvtdq2ps %[h], %[x]\n\tvmulps %[m]%{1to16%}, %[x], %[x]\n\tvfmadd231ps %[x], %[s], %[a]" \
			                 : [a] "+v"(sum), [x] "=&v"(x_)                                                       \
			                 : [h] "m"(hi), [m] "m"(d), [s] "v"(scale));                                          \
	} while (0)

/* The next piece into results c0 (hi, or all) and c1 (lo) */
#define AMX_DOT(c0, c1)                                                                                                      \
	do {                                                                                                                 \
		const uint8_t *x_ = x + (size_t)(dot / halves) * (size_t)(T * block) + dot % halves * (digits ? 16 : 32);    \
		AMX_LOAD(6, q, 64);                                                                                          \
		AMX_LOAD(4, x_, block);                                                                                      \
		AMX_ZERO(c0);                                                                                                \
		if (digits == 0)                                                                                             \
			AMX_BF16(c0, 4, 6);                                                                                  \
		else                                                                                                         \
			AMX_INT8(c0, 4, 6);                                                                                  \
		if (digits == 2) {                                                                                           \
			AMX_LOAD(5, x_ + 32, block);                                                                         \
			AMX_ZERO(c1);                                                                                        \
			AMX_INT8(c1, 5, 6);                                                                                  \
		}                                                                                                            \
		q += step;                                                                                                   \
		if (++dot == pieces) {                                                                                       \
			dot = 0;                                                                                             \
			if (++dot_h == groups) {                                                                             \
				dot_h = 0;                                                                                   \
				q = w->q;                                                                                    \
				x += (size_t)T * (size_t)act_row_bytes(p);                                                   \
			}                                                                                                    \
		}                                                                                                            \
	} while (0)

#define AMX_PUT(c0, c1, ring)                                                                                                \
	do {                                                                                                                 \
		AMX_STORE(c0, result[ring][0], 64);                                                                          \
		if (digits == 2)                                                                                             \
			AMX_STORE(c1, result[ring][1], 64);                                                                  \
	} while (0)

#define AMX_SCALE(ring)                                                                                                      \
	do {                                                                                                                 \
		const float *d_ = scales + i / halves * T;                                                                   \
		vf scale_ = w->scale[h * pieces + i];                                                                        \
		LLMC_EACH(t, T, AMX_T)                                                                                       \
			AMX_ADD(digits, sums[t], result[ring][0][t], result[ring][1][t], d_[t], scale_, up);                 \
	} while (0)

/* The piece in `ring` is added, the one after it stored, the one after that begun; at the end of a unit sums change */
#define AMX_STEP(c0, c1, ring, next0, next1, next)                                                                           \
	if (left > 2)                                                                                                        \
		AMX_DOT(c0, c1);                                                                                             \
	AMX_SCALE(ring);                                                                                                     \
	if (left > 1)                                                                                                        \
		AMX_PUT(next0, next1, next);                                                                                 \
	if (++i == pieces) {                                                                                                 \
		i = 0;                                                                                                       \
		LLMC_EACH(t, T, AMX_T)                                                                                       \
			at[t].v[h] = sums[t];                                                                                \
		if (++h == groups) {                                                                                         \
			h = 0;                                                                                               \
			at += AMX_T;                                                                                         \
			scales += T * p_blocks(p);                                                                           \
		}                                                                                                            \
		if (left > 1)                                                                                                \
			LLMC_EACH(t, T, AMX_T)                                                                               \
				sums[t] = at[t].v[h];                                                                        \
	}                                                                                                                    \
	if (--left == 0)                                                                                                     \
		break

/* A chunk's products of all groups with all tiles of T tokens, added to their sums. A unit is a tile and a group. */
LLMC_INLINE void
amx_blocks(const Product p, const int T, const tile_weights *w, int groups, int first, int n, const act_rows *a, int tiles, tile_sums *sum,
           tile_ahead *ahead)
{
	const int halves = p.w.halves, block = act_block_bytes(p), digits = act_blocks(p) ? 0 : p.act_bits / 8;
	const int step = amx_steps(p) / halves, pieces = n * halves;
	const vi up = (vi){ 0x02010080, 0x06050480, 0x0a090880, 0x0e0d0c80, 0x02010080, 0x06050480, 0x0a090880, 0x0e0d0c80,
		0x02010080, 0x06050480, 0x0a090880, 0x0e0d0c80, 0x02010080, 0x06050480, 0x0a090880, 0x0e0d0c80 };
	_Alignas(64) vi result[2][2][AMX_T];
	vf sums[AMX_T];
	/* what is next to be multiplied, and ... */
	const uint8_t *x = a->q + (size_t)first * (size_t)(T * block);
	const vi *q = w->q;
	int dot = 0, dot_h = 0;
	/* ... to be added */
	const float *scales = a->d + first * T;
	tile_sum *at = sum->d;
	int i = 0, h = 0, left = pieces * groups * tiles;

	LLMC_EACH(t, T, AMX_T)
		sums[t] = at[t].v[0];
	AMX_DOT(0, 1);
	if (left > 1)
		AMX_DOT(2, 3);
	AMX_PUT(0, 1, 0);
	for (;;) {
		tile_fetch(p, ahead);
		AMX_STEP(0, 1, 0, 2, 3, 1);
		AMX_STEP(2, 3, 1, 0, 1, 0);
	}
	if (!p.w.min)
		return;
	for (int tile = 0; tile < tiles; tile++)
		for (h = 0; h < groups; h++) {
			const float *totals = a->s + ((size_t)(tile * T) * (size_t)p_blocks(p) + (size_t)(first * T)) * (size_t)halves;
			at = sum->m + tile * AMX_T;
			LLMC_EACH(t, T, AMX_T)
				sums[t] = at[t].v[h];
			for (int b = 0; b < n; b++)
				LLMC_EACH(half, halves, 2)
					LLMC_EACH(t, T, AMX_T)
						sums[t] = vf_fma(w->min[(h * n + b) * halves + half], vf_set1(totals[(b * T + t) * halves + half]), sums[t]);
			LLMC_EACH(t, T, AMX_T)
				at[t].v[h] = sums[t];
		}
}

/* A function of its own for each number of tokens of a tile (AMX_EACH, cpu_matmul.h) */
typedef void amx_fn(const tile_weights *w, int groups, int first, int n, const act_rows *a, int tiles, tile_sums *sum, tile_ahead *ahead);

/* --- floats -------------------------------------------------------------------------------------------------------------- */
/* A of part `part` of the activations of tiles x0 and x1, with weights in registers 6 and 7 */
#define AMX_FLOATS(part)                                         \
	do {                                                     \
		AMX_LOAD(4, x0 + (part), row);                   \
		AMX_BF16(0, 4, 6);                               \
		AMX_BF16(1, 4, 7);                               \
		if (two) {                                       \
			AMX_LOAD(5, x1 + (part), row);           \
			AMX_BF16(2, 5, 6);                       \
			AMX_BF16(3, 5, 7);                       \
		}                                                \
	} while (0)

/* A chunk's products of both groups with the tiles from `tile` on, two or one */
LLMC_INLINE void
amx_floats(const Product p, const int two, const tile_weights *w, int first, int n, const act_rows *a, int tile, tile_sums *sum, tile_ahead *ahead)
{
	const int row = act_block_bytes(p);
	const size_t block = (size_t)(a->tile * row);
	const uint8_t *x0 = a->q + (size_t)(tile * a->tile) * (size_t)act_row_bytes(p) + (size_t)first * block;
	const uint8_t *x1 = x0 + (size_t)a->tile * (size_t)act_row_bytes(p);
	const int steps = amx_steps(p);
	tile_sum *const c0 = sum->d + tile * AMX_T, *const c1 = c0 + AMX_T;

	AMX_LOAD(0, &c0->v[0], sizeof *c0);
	AMX_LOAD(1, &c0->v[1], sizeof *c0);
	if (two) {
		AMX_LOAD(2, &c1->v[0], sizeof *c1);
		AMX_LOAD(3, &c1->v[1], sizeof *c1);
	}
	for (int b = 0; b < n; b++, x0 += block, x1 += block) {
		const vi *q0 = w->q + b * steps, *q1 = q0 + n * steps;
		tile_fetch(p, ahead);
		AMX_LOAD(6, q0, 64);
		AMX_LOAD(7, q1, 64);
		AMX_FLOATS(0);
		if (!p.act_plain)
			AMX_FLOATS(64);
		if (amx_parts(p) == 2) {
			AMX_LOAD(6, q0 + AMX_B, 64);
			AMX_LOAD(7, q1 + AMX_B, 64);
			AMX_FLOATS(0);
		}
	}
	AMX_STORE(0, &c0->v[0], sizeof *c0);
	AMX_STORE(1, &c0->v[1], sizeof *c0);
	if (two) {
		AMX_STORE(2, &c1->v[0], sizeof *c1);
		AMX_STORE(3, &c1->v[1], sizeof *c1);
	}
}

/* --- all of it ------------------------------------------------------------------------------------------------------------ */
/* out[t][row] of at most TILE_H groups, as tile_rows; dot[T]: amx_blocks of T tokens */
LLMC_INLINE void
amx_rows(const Product p, amx_fn *const *dot, const uint8_t *w, int groups, const act_rows *a, int tokens, tile_sums *sum, float *out, int ld)
{
	const int all = p_blocks(p), chunk = amx_chunk(p), block = w_is_float(p.w) ? 32 * w_piece_bytes(p.w) : w_piece_bytes(p.w);
	const int tiles = (tokens + a->tile - 1) / a->tile, floats = act_splits(p);
	tile_weights unpacked;

	memset(sum->d, 0, (size_t)(tiles * AMX_T) * sizeof *sum->d);
	if (p.w.min)
		memset(sum->m, 0, (size_t)(tiles * AMX_T) * sizeof *sum->m);
	amx_begin(a->tile, floats ? 64 : (act_blocks(p) ? 64 : 32) / p.w.halves);
	for (int first = 0; first < all; first += chunk) {
		int n = all - first < chunk ? all - first : chunk;
		int next = first + chunk < all ? first + chunk : 0;
		tile_ahead ahead = {
			.p = w + (next ? 0 : groups * w_group_bytes(p.w, p.cols)) + (int64_t)next * block,
			.end = (all - next < chunk ? all - next : chunk) * block,
		};
		int calls = floats ? (tiles + 1) / 2 * n : (tiles * groups * n * p.w.halves + 1) / 2;
		ahead.step = (ahead.end / calls + 63) / 64 * 64;
		amx_unpack(p, w, groups, first, n, &unpacked);
		if (floats)
			for (int i = 0; i < tiles; i += 2)
				if (i + 1 < tiles)
					amx_floats(p, 1, &unpacked, first, n, a, i, sum, &ahead);
				else
					amx_floats(p, 0, &unpacked, first, n, a, i, sum, &ahead);
		else
			dot[a->tile](&unpacked, groups, first, n, a, tiles, sum, &ahead);
	}
	amx_end();
	for (int t = 0; t < tokens; t++)
		for (int h = 0; h < groups; h++) {
			const int at = t / a->tile * AMX_T + t % a->tile;
			vf v = sum->d[at].v[h];
			if (p.w.min)
				v += sum->m[at].v[h];
			vf_store(out + (int64_t)t * ld + h * VL, v);
		}
}
#endif

#endif

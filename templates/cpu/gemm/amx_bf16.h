/* bf16 GEMM on AMX, for 16-bit weights. With `activations: bf16` it is used for all weight types
 * except f32; weights are then converted to bf16 panel by panel. Sums stay in the accumulators from
 * the first column to the last.
 *
 *   weights, memory --amx_take, amx_slice: scaled, rounded to bf16--> panel of 2 groups x 16 blocks, L1; two of them
 *                                                                        |
 *   activations, L2, tile by tile --tileloaddt1-->  2 x 2 tiles: four dots per two loads of B and two of A
 *                                                                        |
 *                                                          out, loaded and stored once per panel
 *
 * While a panel is multiplied by all tokens, the next one is packed: four columns of a block
 * between two dots and the next two. These vector instructions use slots that tile instructions
 * leave free. Packing a whole block at a time would fill the out-of-order window and stall the
 * dots.
 *
 * Cost model in cycles. A dot of 16 tokens x 16 rows x 32 columns takes 16; the tile unit runs one
 * at a time.
 *   loads    a tile from L1 takes 8, from L2 about 24; 2 x 2 tiles need one load per dot. Normal
 *            loads of A would evict the panel from L1. tileloaddt1 bypasses L1: without stores of
 * sums, the dots reach 94 % of peak with panels of up to 44 KiB
 *   sums     loading and storing four tiles per panel takes about 170, because loads wait for tile
 *            stores, and stores for the last dot. 16 blocks per panel reach 82 % of peak, 8 reach
 * 75 %
 *   data     random values take 15 to 20 % more time than zeros, with which the peak is measured
 *   weights  packing a block of a group takes 84 (Q4_0), once for all tokens of a call. The dots of
 * 256 tokens take 256 cycles and hide the packing. With 16 tokens packing dominates, and sums stay
 * in registers to the end (amx_small_m)
 *
 * Measured: 2048 x 2048, Q4_0, one thread, best of 5 x 9, interleaved with the previous kernel,
 * which scaled results instead of weights. 256 tokens: 1.18 TFLOP/s versus 0.68 (36 % versus 20 %
 * of the tile peak), Q4_K 1.28 versus 0.51; 32 tokens 0.70 versus 0.66; one token 25 GFLOP/s versus
 * 37.
 *
 * bf16 parts. Activations have two parts, x = hi + lo, each rounded to bf16 (relative error 2^-17
 * per element), or with `activations: bf16` one part. With two parts, bf16 weights are used
 * unchanged, and f16 weights are split exactly into two parts; lo x lo is dropped. With one part,
 * all weights are scaled in fp32 and rounded once (relative error 2^-9).
 *
 * Order of summation: blocks of 32 columns in order; within each hi w, lo w (f16: then hi w_lo), in
 * the order of the instruction. The order is the same for any number of tokens, so also in
 * decode. */
#ifndef LLMC_CPU_GEMM_AMX_BF16_H
#define LLMC_CPU_GEMM_AMX_BF16_H

#include "cpu/gemm/amx.h"

#if defined(LLMC_TILES)
enum {
	AMX_PANEL = 32 * 1024 / 64, /* vectors per panel */
	AMX_START = 4, /* blocks of the first panel, small because nothing hides its packing */
	AMX_RING = 8,
	AMX_AHEAD =
	    2, /* with few tokens: a block is packed this many blocks before it is multiplied */
};

/* bf16 parts per weight */
LLMC_INLINE int
amx_parts(const Product p)
{
	return p.w.bits == 16 && !p.w.brain && !p.act_plain ? 2 : 1;
}

/* Converts two columns to bf16, adjacent in each row's lane. Rounds to nearest. Ties go away from
 * zero in even columns and towards zero in odd ones, so f16, where one of eight values is a tie,
 * has no bias. The CPU's conversion instruction would take as long as four additions. */
LLMC_INLINE vi
amx_pair(vf even, vf odd)
{
	typedef uint32_t unsigneds __attribute__((vector_size(64)));
	const vi upper = vi_all((int32_t)0xffff0000);
	vi low = (vi)((unsigneds)((vi)even + vi_all(0x8000)) >> 16);

	return (vi)_mm512_ternarylogic_epi32((__m512i)((vi)odd + vi_all(0x7fff)), (__m512i)upper,
	                                     (__m512i)low, 0xea);
}

/* ---- panels ---- */
enum { AMX_SLICES = 8 }; /* slices per item, of four columns each */

/* Progress of packing a panel. An item is one block of a group; the order is all groups of a block,
 * then the next block. */
typedef struct amx_work {
	const uint8_t *w;
	vi *to;
	int cols, groups, block, g, left;
} amx_work;

typedef struct amx_item {
	const uint8_t *group;
	int block;
	w_at k;
	vf d[2], m[2]; /* per half of the block: scale and offset */
	vi *o;
} amx_item;

typedef void amx_expand_fn(amx_work *k);

/* vectors of one block of all groups */
LLMC_INLINE int
amx_block_vectors(const Product p)
{
	return TILE_H * AMX_B * amx_parts(p);
}

LLMC_INLINE void
amx_slice_floats(const Product p, const amx_item *k, const int i)
{
	typedef uint16_t words __attribute__((vector_size(64)));
	typedef uint32_t unsigneds __attribute__((vector_size(64)));
	const words pairs = { 0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
		              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31 };

	LLMC_UNROLL
	for (int j = 2 * i; j < 2 * i + 2; j++) {
		const int64_t col = (int64_t)k->block * 32 + 2 * j;
		if (p.w.brain) {
			k->o[j] = (vi)_mm512_permutexvar_epi16(
			    (__m512i)pairs, (__m512i)vi_load(k->group + col * 2 * VL));
			continue;
		}
		if (amx_parts(p) == 1) {
			k->o[j] = amx_pair(w_column(p.w, k->group, col),
			                   w_column(p.w, k->group, col + 1));
			continue;
		}
		vi upper = vi_all((int32_t)0xffff0000), x = (vi)w_column(p.w, k->group, col),
		   y = (vi)w_column(p.w, k->group, col + 1);
		vi x_lo = (vi)((vf)x - (vf)(x & upper)), y_lo = (vi)((vf)y - (vf)(y & upper));
		k->o[j] = (vi)((unsigneds)x >> 16) | (y & upper);
		k->o[AMX_B + j] = (vi)((unsigneds)x_lo >> 16) | (y_lo & upper);
	}
}

LLMC_INLINE void
amx_slice_block(const Product p, const amx_item *k, const int i)
{
	typedef uint32_t unsigneds __attribute__((vector_size(64)));
	typedef uint8_t bytes __attribute__((vector_size(64)));
	enum { Z = 0x80 };
	const bytes second = { 1,  Z, Z, Z, 5, Z, Z,  Z, 9, Z, Z, Z, 13, Z, Z, Z, 1,  Z, Z, Z, 5, Z,
		               Z,  Z, 9, Z, Z, Z, 13, Z, Z, Z, 1, Z, Z,  Z, 5, Z, Z,  Z, 9, Z, Z, Z,
		               13, Z, Z, Z, 1, Z, Z,  Z, 5, Z, Z, Z, 9,  Z, Z, Z, 13, Z, Z, Z };
	const bytes third = second + (bytes)vi_all(1);
	const int half = p.w.halves == 2 ? i / 4 : 0;
	const vi q = w_bytes(p.w, k->k, i);
	vi b[4] = { q & vi_all(255), (vi)_mm512_shuffle_epi8((__m512i)q, (__m512i)second),
		    (vi)_mm512_shuffle_epi8((__m512i)q, (__m512i)third), (vi)((unsigneds)q >> 24) };
	vf v[4];

	LLMC_EACH(c, 4, 4)
	v[c] = vf_fma(vf_of_vi(b[c]), k->d[half], k->m[half]);
	k->o[2 * i] = amx_pair(v[0], v[1]);
	k->o[2 * i + 1] = amx_pair(v[2], v[3]);
}

LLMC_INLINE void
amx_slice(const Product p, const amx_item *k, const int i)
{
	if (w_is_float(p.w))
		amx_slice_floats(p, k, i);
	else
		amx_slice_block(p, k, i);
}

/* Returns the next item to pack, and prefetches a later one. */
LLMC_INLINE amx_item
amx_take(const Product p, amx_work *k)
{
	const int bytes = w_is_float(p.w) ? 32 * w_block_bytes(p.w) : w_block_bytes(p.w);
	amx_item t = { .group = k->w + k->g * w_group_bytes(p.w, p.cols),
		       .block = k->block,
		       .o = k->to + k->g * AMX_B * amx_parts(p) };
	const uint8_t *ahead =
	    t.group + (int64_t)t.block * bytes + (bytes < 1024 ? STREAM_AHEAD : 2 * STREAM_AHEAD);

	LLMC_EACH(i, (bytes + 63) / 64, 16)
	__builtin_prefetch(ahead + 64 * i);
	if (!w_is_float(p.w)) {
		t.k = w_block(p.w, t.group, t.block);
		LLMC_EACH(half, p.w.halves, 2)
		{
			t.d[half] = w_scale(p.w, t.k, half);
			t.m[half] = vf_set1(-(float)w_offset(p.w)) * t.d[half];
			if (p.w.min)
				t.m[half] += w_min(p.w, t.k, half);
		}
	}
	k->left--;
	if (++k->g == k->groups) {
		k->g = 0;
		k->block++;
		k->to += amx_block_vectors(p);
	}
	return t;
}

LLMC_INLINE void
amx_expand(const Product p, amx_work *k)
{
	const amx_item t = amx_take(p, k);

	LLMC_EACH(i, AMX_SLICES, 8)
	amx_slice(p, &t, i);
}

/* ---- tiles ---- */
/* dots of part `part` of activation tiles x0 and x1 with the weights in registers 6 and 7;
 * `between` runs between the dots */
#define AMX_FLOATS(part, between)                                                                  \
	do {                                                                                       \
		AMX_PASS(4, x0 + (part), row);                                                     \
		AMX_BF16(0, 4, 6);                                                                 \
		if (wide)                                                                          \
			AMX_BF16(1, 4, 7);                                                         \
		between;                                                                           \
		if (two) {                                                                         \
			AMX_PASS(5, x1 + (part), row);                                             \
			AMX_BF16(2, 5, 6);                                                         \
			if (wide)                                                                  \
				AMX_BF16(3, 5, 7);                                                 \
		}                                                                                  \
	} while (0)

/* Multiplies one block of one or two groups by one or two activation tiles. Between the dots it
 * packs slices `slice` and slice + 1 of an item, if one is given. */
LLMC_INLINE void
amx_step(const Product p, const int two, const int wide, const vi *q, const uint8_t *x0,
         const uint8_t *x1, const amx_item *item, const int slice)
{
	const int row = act_block_bytes(p);
	const vi *const q1 = q + AMX_B * amx_parts(p);

	AMX_LOAD(6, q, 64);
	if (wide)
		AMX_LOAD(7, q1, 64);
	AMX_FLOATS(0, if (item) amx_slice(p, item, slice));
	if (!p.act_plain)
		AMX_FLOATS(64, );
	if (amx_parts(p) == 2) {
		AMX_LOAD(6, q + AMX_B, 64);
		if (wide)
			AMX_LOAD(7, q1 + AMX_B, 64);
		AMX_FLOATS(0, );
	}
	if (item)
		amx_slice(p, item, slice + 1);
}

/* Stores the sums of one or two activation tiles with one or two groups. Rows are c_row bytes
 * apart. */
LLMC_INLINE void
amx_store(const int two, const int wide, float *c0, int64_t c0_row, float *c1, int64_t c1_row)
{
	AMX_STORE(0, c0, c0_row);
	if (wide)
		AMX_STORE(1, c0 + VL, c0_row);
	if (two) {
		AMX_STORE(2, c1, c1_row);
		if (wide)
			AMX_STORE(3, c1 + VL, c1_row);
	}
}

/* Multiplies n blocks of a panel, from block `first` on, by one or two activation tiles, and adds
 * the results to c0 and c1, whose rows are c_row bytes apart. */
LLMC_INLINE void
amx_floats(const Product p, const vi *q, int groups, int first, int n, const act_rows *a, int tile,
           float *c0, int64_t c0_row, float *c1, int64_t c1_row, amx_work *next)
{
	const int two = c1 != NULL, wide = groups > 1, vectors = amx_block_vectors(p);
	const size_t block = (size_t)(a->tile * act_block_bytes(p)),
	             x_tile = (size_t)a->tile * (size_t)act_row_bytes(p);
	const uint8_t *x0 = a->q + (size_t)tile * x_tile + (size_t)first * block, *x1 = x0 + x_tile;
	int b = 0;

	if (first == 0) {
		AMX_ZERO(0);
		AMX_ZERO(1);
		AMX_ZERO(2);
		AMX_ZERO(3);
	} else {
		AMX_PASS(0, c0, c0_row);
		if (wide)
			AMX_PASS(1, c0 + VL, c0_row);
		if (two) {
			AMX_PASS(2, c1, c1_row);
			if (wide)
				AMX_PASS(3, c1 + VL, c1_row);
		}
	}
	for (; two && wide && b + AMX_SLICES / 2 <= n && next->left; b += AMX_SLICES / 2) {
		const amx_item item = amx_take(p, next);
		LLMC_EACH(i, AMX_SLICES / 2, 4)
		{
			amx_step(p, 1, 1, q, x0, x1, &item, 2 * i);
			x0 += block;
			x1 += block;
			q += vectors;
		}
	}
	for (; b < n; b++, x0 += block, x1 += block, q += vectors)
		amx_step(p, two, wide, q, x0, x1, NULL, 0);
	amx_store(two, wide, c0, c0_row, c1, c1_row);
}

/* Multiplies all columns by one or two activation tiles. Sums stay in registers. Blocks are packed
 * one by one into a ring, AMX_AHEAD blocks before they are multiplied. */
LLMC_INLINE void
amx_small_m(const Product p, amx_expand_fn *expand, const uint8_t *w, int groups, const act_rows *a,
            int two, vi *ring, float *c0, int64_t c0_row, float *c1, int64_t c1_row)
{
	const int all = p_blocks(p), wide = groups > 1, vectors = amx_block_vectors(p);
	const size_t block = (size_t)(a->tile * act_block_bytes(p));
	const uint8_t *x0 = a->q, *x1 = x0 + (size_t)a->tile * (size_t)act_row_bytes(p);
	amx_work k = { .w = w, .cols = p.cols, .groups = groups };

	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
	for (int b = -AMX_AHEAD; b < all; b++) {
		if (b + AMX_AHEAD < all) {
			k.to = ring + (b + AMX_AHEAD) % AMX_RING * vectors;
			for (k.left = groups; k.left;)
				expand(&k);
		}
		if (b < 0)
			continue;
		amx_step(p, two, wide, ring + b % AMX_RING * vectors, x0, x1, NULL, 0);
		x0 += block;
		x1 += block;
	}
	amx_store(two, wide, c0, c0_row, c1, c1_row);
}

/* Computes out[t][row] of at most TILE_H groups, as tile_rows does. */
LLMC_INLINE void
amx_rows_bf16(const Product p, amx_expand_fn *expand, const uint8_t *w, int groups,
              const act_rows *a, int tokens, float *out, int ld)
{
	const int T = a->tile, tiles = (tokens + T - 1) / T, whole = tokens / T;
	const int all = p_blocks(p), most = AMX_PANEL / amx_block_vectors(p);
	const int64_t inside = (int64_t)ld * 4, outside = (int64_t)(VL * TILE_H * sizeof *out);
	_Alignas(64) vi panel[2][AMX_PANEL];
	_Alignas(64) float edge[AMX_T][TILE_H * VL]; /* output of a tile that has padding rows */
	int n = all < AMX_START ? all : AMX_START, now = 0;
	amx_work k = {
		.w = w, .cols = p.cols, .to = panel[0], .groups = groups, .left = n * groups
	};

	amx_begin(T, 64);
	if (tiles <= 2)
		amx_small_m(p, expand, w, groups, a, tiles == 2, panel[0], whole ? out : edge[0],
		            whole ? inside : outside, whole == 2 ? out + (int64_t)T * ld : edge[0],
		            whole == 2 ? inside : outside);
	else
		while (k.left)
			expand(&k);
	for (int first = 0, after; tiles > 2 && first < all; first += n, n = after, now = !now) {
		after = all - first - n < most ? all - first - n : most;
		k.to = panel[!now];
		k.left = after * groups;
		for (int i = 0; i < tiles; i += 2) {
			float *c0 = i < whole ? out + (int64_t)(i * T) * ld : edge[0],
			      *c1 = i + 1 < whole ? out + (int64_t)((i + 1) * T) * ld : edge[0];
			amx_floats(p, panel[now], groups, first, n, a, i, c0,
			           i < whole ? inside : outside, i + 1 < tiles ? c1 : NULL,
			           i + 1 < whole ? inside : outside, &k);
		}
		while (k.left)
			expand(&k);
	}
	amx_end();
	for (int t = whole * T; t < tokens; t++)
		for (int h = 0; h < groups; h++)
			vf_store(out + (int64_t)t * ld + h * VL,
			         vf_load(edge[t - whole * T] + h * VL));
}
#endif

#endif

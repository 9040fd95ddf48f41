/* GEMM with many tokens on AMX: a tile register has 16 rows of 64 bytes, and one instruction
 * multiplies up to 16 tokens by 16 weight rows. This file handles integer block formats. Its
 * functions take the role of tile_dot in cpu/gemm/gemm_tile.h. They unpack weights in another way,
 * but add the same terms in the same order. For bf16 see cpu/gemm/amx_bf16.h.
 *
 * tdpbssd over the 32 columns of a block (16 if a block has two scales) yields exact integers for T
 * tokens x 16 rows. These integers are stored, then scaled by AVX-512 instructions in the order of
 * v4, so results have the same bits as v4. 16-bit activations are two signed digits, hi and lo of
 * cpu/gemm/quantize_act.h. Each digit has its own sums, and 256 hi + lo equals the words that v4
 * multiplies.
 *
 *   step i      tiles: load A, B of block i + 4, dot         |  store tiles of block i + 2 between the two halves of the vector work --> ring of results
 *               vectors: results of block i, scaled, added to 16 sums in registers            <--
 *
 * ("block" here: half a block if it has two scales.) The pipeline continues across tiles and
 * groups, because filling and draining it for each tile would take half as much time again.
 *
 * Cost model. A dot takes max(rows of A, rows of B) cycles, independent of the number of columns. A
 * load takes half a cycle per row. A store takes 15 cycles, in which no other instruction starts.
 * Next to tile instructions, a cycle can issue one float and two integer vector instructions. 16
 * tokens x 16 rows x 32 columns give 16 vectors of integers. With 8-bit activations each vector
 * needs an addition that converts to float, a multiplication by the weight's scale and an FMA with
 * the token's scale: at least 32 cycles for the 16 vectors. A loop of these instructions alone,
 * from L1, takes 40 cycles (59 with a conversion instruction). With 16 bits, the high digits are
 * shifted and added to the low ones, then converted and scaled: 48 cycles. In the whole kernel a
 * block of Q4_0 takes 75 cycles with 8 bits and 120 with 16 (2048 x 2048, 256 tokens).
 *
 * Two variants were tried and are not faster. Digits as bf16 (exact in fp32 up to 2^24) save the
 * conversion and one of two stores, but A has twice the bytes, so half as many tokens fit. Two row
 * groups with tiles of 8 tokens save loads, but take more time for stores.
 *
 * Up to AMX_SMALL_M tokens use one tile with one row per token and digit, so both digits take one
 * dot and one store. Sums stay in registers along the whole row, and blocks are unpacked between
 * the dots (amx_small_m_rows). With 8 tokens this saves 14 % of the time of Q4_0 with 16-bit
 * activations and 3 % with 8-bit ones, 13 % and 8 % of that of Q8_0, and nothing for Q6_K.
 *
 * Order of summation: cpu/gemm/gemv.h. Tiles are configured at the start of a call and released at
 * its end. */
#ifndef LLMC_CPU_GEMM_AMX_H
#define LLMC_CPU_GEMM_AMX_H

#include "cpu/gemm/amx_tiles.h"
#include "cpu/gemm/gemm_tile.h"

#if defined(LLMC_TILES)
enum {
	AMX_T = 16,
	AMX_B = 16,      /* largest number of tokens, and of B rows, per tile */
	AMX_SMALL_M = 8, /* largest number of tokens for which amx_small_m_rows is used */
	AMX_STEPS = 8,   /* integer vectors per block and row group */
};

/* ---- sizes ---- */
LLMC_INLINE int
amx_chunk(const Product p)
{
	const int most = TILE_VECTORS / (TILE_H * AMX_STEPS), all = p_blocks(p),
	          chunks = (all + most - 1) / most;

	return (all + chunks - 1) / chunks;
}

/* ---- unpacking: tile_weights of [group][block] ---- */
/* Unpacks a block to AMX_STEPS vectors of integers, and loads the scales and mins of its halves. */
LLMC_INLINE void
amx_unpack_block(const Product p, w_at k, vi *to, vf *scale, vf *min)
{
	typedef uint8_t bytes __attribute__((vector_size(64)));

	LLMC_EACH(i, 8, 8)
	to[i] = (vi)((bytes)w_bytes(p.w, k, i) -
	             (bytes)vi_all((int32_t)((uint32_t)w_offset(p.w) * 0x1010101u)));
	LLMC_EACH(s, p.w.halves, 2)
	scale[s] = w_scale(p.w, k, s);
	LLMC_EACH(s, p.w.min ? p.w.halves : 0, 2)
	min[s] = w_min(p.w, k, s);
}

LLMC_INLINE void
amx_unpack(const Product p, const uint8_t *w, int groups, int first, int n, tile_weights *o)
{
	const int64_t group = w_group_bytes(p.w, p.cols);

	for (int h = 0; h < groups; h++)
		for (int b = 0; b < n; b++) {
			const int at = h * n + b;
			amx_unpack_block(p, w_block(p.w, w + h * group, first + b),
			                 o->q + at * AMX_STEPS, o->scale + at * p.w.halves,
			                 o->min + at * p.w.halves);
		}
}

/* ---- blocks ---- */
/* Returns whether scale * 1.5 * 2^23 is exact, which needs at most 22 significant bits: true for
 * f16 scales times small integers. */
LLMC_INLINE int
amx_short_scale(const Product p)
{
	return !p.w.wide && !p.w.code && !w_is_coded(p.w);
}

/* Converts small integers to float. The bits of AMX_MAGIC are added to the integer. The FMA that
 * applies the scale then subtracts 1.5 * 2^23 * scale. */
#define AMX_MAGIC (vi_all(0x4b400000))

/* Scale of a block in the form that AMX_ADD needs */
typedef struct amx_scale {
	vf by, less; /* by: the scale; less: -1.5 * 2^23 * scale */
} amx_scale;

LLMC_INLINE amx_scale
amx_scale_of(vf scale)
{
	return (amx_scale){ scale, scale * vf_set1(-12582912.0f) };
}

/* sum += float(256 hi + lo) * scale * d, rounded after each step, in v4's order. A cycle can issue
 * one float and two integer instructions next to tile instructions. 8-bit sums, which are below
 * 2^22, are therefore converted by an integer addition. magic: AMX_MAGIC, or AMX_UP with two
 * digits */
#define AMX_ADD(p, sum, hi, lo, d, scale, magic)                                                   \
	do {                                                                                       \
		vi x_;                                                                             \
		if ((p).act_bits == 16)                                                            \
			__asm__ volatile("vmovdqa32 %[h], %[x]\n\tvpshufb %[u], %[x], "            \
			                 "%[x]\n\tvpaddd %[l], %[x], %[x]\n\t"                     \
			                 "vcvtdq2ps %[x], %[x]\n\tvmulps %[s], %[x], %[x]\n\t"     \
			                 "vfmadd231ps %[m]%{1to16%}, %[x], %[a]"                   \
			                 : [a] "+v"(sum), [x] "=&v"(x_)                            \
			                 : [h] "m"(hi), [l] "m"(lo), [m] "m"(d),                   \
			                   [s] "v"((scale).by), [u] "v"(magic));                   \
		else if (amx_short_scale(p))                                                       \
			__asm__ volatile(                                                          \
			    "vpaddd %[h], %[u], %[x]\n\tvfmadd213ps %[n], %[s], %[x]\n\t"          \
			    "vfmadd231ps %[m]%{1to16%}, %[x], %[a]"                                \
			    : [a] "+v"(sum), [x] "=&v"(x_)                                         \
			    : [h] "m"(hi), [m] "m"(d), [s] "v"((scale).by), [n] "v"((scale).less), \
			      [u] "v"(magic));                                                     \
		else                                                                               \
			__asm__ volatile("vcvtdq2ps %[h], %[x]\n\tvmulps %[s], %[x], "             \
			                 "%[x]\n\tvfmadd231ps %[m]%{1to16%}, %[x], %[a]"           \
			                 : [a] "+v"(sum), [x] "=&v"(x_)                            \
			                 : [h] "m"(hi), [m] "m"(d), [s] "v"((scale).by));          \
	} while (0)

/* byte shuffle that multiplies each 32-bit lane by 256 */
#define AMX_UP                                                                                     \
	((vi){ 0x02010080, 0x06050480, 0x0a090880, 0x0e0d0c80, 0x02010080, 0x06050480, 0x0a090880, \
	       0x0e0d0c80, 0x02010080, 0x06050480, 0x0a090880, 0x0e0d0c80, 0x02010080, 0x06050480, \
	       0x0a090880, 0x0e0d0c80 })

/* Multiplies the next block. Results: c0 (hi, or the only digit) and c1 (lo) */
#define AMX_DOT(c0, c1)                                                                            \
	do {                                                                                       \
		const uint8_t *x_ = halves == 2 && dot % 2 ? x + 16 : x;                           \
		AMX_LOAD(6, q, 64);                                                                \
		AMX_LOAD(4, x_, block);                                                            \
		AMX_ZERO(c0);                                                                      \
		AMX_INT8(c0, 4, 6);                                                                \
		if (digits == 2) {                                                                 \
			AMX_LOAD(5, x_ + 32, block);                                               \
			AMX_ZERO(c1);                                                              \
			AMX_INT8(c1, 5, 6);                                                        \
		}                                                                                  \
		q += step;                                                                         \
		dot++;                                                                             \
		if (halves == 1 || dot % 2 == 0)                                                   \
			x += T * block;                                                            \
		if (dot == pieces) {                                                               \
			dot = 0;                                                                   \
			x -= n * T * block;                                                        \
			if (++dot_h == groups) {                                                   \
				dot_h = 0;                                                         \
				q = w->q;                                                          \
				x += (size_t)T * (size_t)act_row_bytes(p);                         \
			}                                                                          \
		}                                                                                  \
	} while (0)

#define AMX_PUT(c0, c1, ring)                                                                      \
	do {                                                                                       \
		AMX_STORE(c0, result[(ring) * digits], 64);                                        \
		if (digits == 2)                                                                   \
			AMX_STORE(c1, result[(ring) * digits + 1], 64);                            \
	} while (0)

/* Scales and adds the results of the lower or the upper half of the tokens. */
#define AMX_SCALE(ring, upper)                                                                     \
	LLMC_EACH(t, T, AMX_T)                                                                     \
	if ((t >= T / 2) == (upper))                                                               \
	AMX_ADD(p, sums[t], result[(ring) * digits][t], result[(ring) * digits + digits - 1][t],   \
	        d_[t], scale, magic)

/* One pipeline step. With 8-bit activations it multiplies a block, stores the results of the block
 * two before, and adds those of the block two before that one, from `ring`. With 16-bit activations
 * half as many registers are free per block, and the distances are one and two blocks. No other
 * instruction starts during a store, so stores are placed between independent vector instructions.
 * At the end of a unit the sums are exchanged. */
#define AMX_STEP(ring, next, dot0, dot1, put0, put1)                                               \
	scale = amx_scale_of(*by++);                                                               \
	d_ = d;                                                                                    \
	__asm__("" : "+r"(d_)); /* keeps one address register for all accesses */                  \
	if (digits == 1) {                                                                         \
		if (left > 4)                                                                      \
			AMX_DOT(ring, ring);                                                       \
	} else if (left > 3) {                                                                     \
		AMX_DOT(dot0, dot1);                                                               \
	}                                                                                          \
	AMX_SCALE(ring, 0);                                                                        \
	if (left > 2) {                                                                            \
		if (digits == 1)                                                                   \
			AMX_PUT(next, next, next);                                                 \
		else                                                                               \
			AMX_PUT(put0, put1, next);                                                 \
	}                                                                                          \
	AMX_SCALE(ring, 1);                                                                        \
	i++;                                                                                       \
	if (halves == 1 || i % 2 == 0)                                                             \
		d += T;                                                                            \
	if (i == pieces) {                                                                         \
		i = 0;                                                                             \
		d -= n * T;                                                                        \
		LLMC_EACH(t, T, AMX_T)                                                             \
		at[t].v[h] = sums[t];                                                              \
		if (++h == groups) {                                                               \
			h = 0;                                                                     \
			at += AMX_T;                                                               \
			d += T * p_blocks(p);                                                      \
			by = w->scale;                                                             \
		}                                                                                  \
		if (first == 0) {                                                                  \
			LLMC_EACH(t, T, AMX_T)                                                     \
			sums[t] = vf_set1(0);                                                      \
		} else if (left > 1) {                                                             \
			LLMC_EACH(t, T, AMX_T)                                                     \
			sums[t] = at[t].v[h];                                                      \
		}                                                                                  \
	}                                                                                          \
	if (--left == 0)                                                                           \
	break

/* Multiplies a chunk of all groups by all tiles of T tokens and adds to their sums. A unit is one
 * tile and one group. */
LLMC_INLINE void
amx_blocks(const Product p, const int T, const tile_weights *w, int groups, int first, int n,
           const act_rows *a, int tiles, tile_sums *sum, tile_ahead *ahead)
{
	const int halves = p.w.halves, block = act_block_bytes(p), digits = p.act_bits / 8;
	const int step = AMX_STEPS / halves, pieces = n * halves;
	const vi up = AMX_UP, whole = AMX_MAGIC, magic = digits == 2 ? up : whole;
	_Alignas(64) vi result[4 * 2][AMX_T]; /* 8-bit activations use only the first four blocks */
	vf sums[AMX_T];
	amx_scale scale;
	/* next block to multiply */
	const uint8_t *x = a->q + (size_t)first * (size_t)(T * block);
	const vi *q = w->q;
	int dot = 0, dot_h = 0;
	/* next block to add */
	const float *d = a->d + first * T, *d_;
	const vf *by = w->scale;
	tile_sum *at = sum->d;
	int i = 0, h = 0, left = pieces * groups * tiles;

	LLMC_EACH(t, T, AMX_T)
	sums[t] = vf_set1(0);
	if (first)
		LLMC_EACH(t, T, AMX_T)
	sums[t] = at[t].v[0];
	if (digits == 1) {
		AMX_DOT(0, 0);
		if (left > 1)
			AMX_DOT(1, 1);
		if (left > 2)
			AMX_DOT(2, 2);
		if (left > 3)
			AMX_DOT(3, 3);
		AMX_PUT(0, 0, 0);
		if (left > 1)
			AMX_PUT(1, 1, 1);
	} else {
		AMX_DOT(0, 1);
		if (left > 1)
			AMX_DOT(2, 3);
		AMX_PUT(0, 1, 0);
		if (left > 2)
			AMX_DOT(0, 1);
		if (left > 1)
			AMX_PUT(2, 3, 1);
	}
	for (;;) {
		tile_fetch(p, ahead);
		AMX_STEP(0, 2, 2, 3, 0, 1);
		AMX_STEP(1, 3, 0, 1, 2, 3);
		AMX_STEP(2, 0, 2, 3, 0, 1);
		AMX_STEP(3, 1, 0, 1, 2, 3);
	}
	if (!p.w.min)
		return;
	for (int tile = 0; tile < tiles; tile++)
		for (h = 0; h < groups; h++) {
			const float *totals = a->s + ((size_t)(tile * T) * (size_t)p_blocks(p) +
			                              (size_t)(first * T)) *
			                                 (size_t)halves;
			at = sum->m + tile * AMX_T;
			LLMC_EACH(t, T, AMX_T)
			sums[t] = at[t].v[h];
			for (int b = 0; b < n; b++)
				LLMC_EACH(half, halves, 2)
			LLMC_EACH(t, T, AMX_T)
			sums[t] = vf_fma(w->min[(h * n + b) * halves + half],
			                 vf_set1(totals[(b * T + t) * halves + half]), sums[t]);
			LLMC_EACH(t, T, AMX_T)
			at[t].v[h] = sums[t];
		}
}

/* GEMM of T <= AMX_SMALL_M tokens with G groups: out[t][row]. While one block is multiplied, an
 * earlier block is scaled and a later one unpacked. The distance is large enough that no load waits
 * for the store that it depends on. */
LLMC_INLINE void
amx_small_m_blocks(const Product p, const int T, const int G, const uint8_t *w, const act_rows *a,
                   int tokens, float *out, int ld)
{
	enum { RING = 8, AHEAD = 2, BEHIND = 2, RESULTS = 4 };
	const int halves = p.w.halves, block = act_block_bytes(p), digits = p.act_bits / 8,
	          all = p_blocks(p), block_bytes = w_block_bytes(p.w);
	const int64_t group = w_group_bytes(p.w, p.cols);
	const vi up = AMX_UP, whole = AMX_MAGIC, magic = digits == 2 ? up : whole;
	_Alignas(64) vi q[RING][TILE_H][AMX_STEPS], result[RESULTS][TILE_H][2][AMX_B];
	vf scale[RING][TILE_H][2], min[RING][TILE_H][2], sums[TILE_H][AMX_SMALL_M],
	    mins[TILE_H][AMX_SMALL_M];

	LLMC_EACH(g, G, TILE_H)
	LLMC_EACH(t, T, AMX_SMALL_M)
	sums[g][t] = mins[g][t] = vf_set1(0);
	for (int b = -AHEAD; b < all + BEHIND; b++) {
		if (b + AHEAD < all)
			LLMC_EACH(g, G, TILE_H)
			{
				const uint8_t *from = w + g * group;
				const int r = (b + AHEAD) % RING;
				const int64_t at = (int64_t)(b + AHEAD) * block_bytes;
				stream_prefetch(
				    from + at + (at + STREAM_AHEAD < group ? 0 : (G - 1) * group),
				    block_bytes);
				amx_unpack_block(p, w_block(p.w, from, b + AHEAD), q[r][g],
				                 scale[r][g], min[r][g]);
			}
		if (b >= 0 && b < all)
			LLMC_EACH(half, halves, 2)
			{
				const uint8_t *x =
				    a->q + (size_t)b * (size_t)(T * block) + half * 16;
				AMX_LOAD(4, x, 32);
				AMX_LOAD(6, q[b % RING][0] + half * AMX_STEPS / halves, 64);
				AMX_ZERO(0);
				AMX_INT8(0, 4, 6);
				AMX_STORE(0, result[b % RESULTS][0][half], 64);
				if (G == 2) {
					AMX_LOAD(7, q[b % RING][1] + half * AMX_STEPS / halves, 64);
					AMX_ZERO(1);
					AMX_INT8(1, 4, 7);
					AMX_STORE(1, result[b % RESULTS][1][half], 64);
				}
			}
		if (b >= BEHIND)
			LLMC_EACH(half, halves, 2)
			{
				const float *d = a->d + (b - BEHIND) * T,
				            *totals = a->s + (b - BEHIND) * T * halves + half;
				const int r = (b - BEHIND) % RING;
				LLMC_EACH(g, G, TILE_H)
				{
					const amx_scale by = amx_scale_of(scale[r][g][half]);
					const vi *const dot =
					    result[(b - BEHIND) % RESULTS][g][half];
					LLMC_EACH(t, T, AMX_SMALL_M)
					AMX_ADD(p, sums[g][t], dot[t * digits],
					        dot[t * digits + digits - 1], d[t], by, magic);
				}
				LLMC_EACH(g, p.w.min ? G : 0, TILE_H)
				LLMC_EACH(t, T, AMX_SMALL_M)
				mins[g][t] = vf_fma(min[r][g][half], vf_set1(totals[t * halves]),
				                    mins[g][t]);
			}
	}
	LLMC_EACH(t, T, AMX_SMALL_M)
	if (t < tokens)
		LLMC_EACH(g, G, TILE_H)
		{
			if (p.w.min)
				sums[g][t] += mins[g][t];
			vf_store(out + (int64_t)t * ld + g * VL, sums[g][t]);
		}
}

/* A function that multiplies all rows of the groups from w on, instantiated per number of tokens */
typedef void amx_small_m_fn(const uint8_t *w, int groups, const act_rows *a, int tokens, float *out,
                            int ld);

LLMC_INLINE void
amx_small_m_rows(const Product p, const int T, const uint8_t *w, int groups, const act_rows *a,
                 int tokens, float *out, int ld)
{
	amx_begin(T * p.act_bits / 8, 32 / p.w.halves);
	for (; groups >= 2; groups -= 2, w += 2 * w_group_bytes(p.w, p.cols), out += 2 * VL)
		amx_small_m_blocks(p, T, 2, w, a, tokens, out, ld);
	for (; groups > 0; groups--, w += w_group_bytes(p.w, p.cols), out += VL)
		amx_small_m_blocks(p, T, 1, w, a, tokens, out, ld);
	amx_end();
}

/* A function that is instantiated per number of tokens of a tile (AMX_EACH,
 * cpu/gemm/matmul_kernel.h) */
typedef void amx_fn(const tile_weights *w, int groups, int first, int n, const act_rows *a,
                    int tiles, tile_sums *sum, tile_ahead *ahead);

/* ---- driver ---- */
/* Computes out[t][row] of at most TILE_H groups, as tile_rows does. dot[T]: amx_blocks for T
 * tokens */
LLMC_INLINE void
amx_rows(const Product p, amx_fn *const *dot, const uint8_t *w, int groups, const act_rows *a,
         int tokens, tile_sums *sum, float *out, int ld)
{
	const int all = p_blocks(p), chunk = amx_chunk(p), block = w_block_bytes(p.w);
	const int tiles = (tokens + a->tile - 1) / a->tile;
	tile_weights unpacked;

	if (p.w.min)
		memset(sum->m, 0, (size_t)(tiles * AMX_T) * sizeof *sum->m);
	amx_begin(a->tile, 32 / p.w.halves);
	for (int first = 0; first < all; first += chunk) {
		int n = all - first < chunk ? all - first : chunk;
		int next = first + chunk < all ? first + chunk : 0;
		tile_ahead ahead = {
			.p = w + (next ? 0 : groups * w_group_bytes(p.w, p.cols)) +
			     (int64_t)next * block,
			.end = (all - next < chunk ? all - next : chunk) * block,
		};
		int calls = (tiles * groups * n * p.w.halves + 3) / 4;
		ahead.step = (ahead.end / calls + 63) / 64 * 64;
		amx_unpack(p, w, groups, first, n, &unpacked);
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

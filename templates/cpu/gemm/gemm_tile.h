/* GEMM for many tokens: weights of TILE_H row groups are unpacked once per chunk of columns into
 * L1, then multiplied by up to TILE_T tokens at a time in registers.
 *
 *   chunk of a row:  memory --tile_unpack: w_bytes / w_words, w_scale, w_min--> tile_weights, 18 KiB
 *                       ^                                                          |
 *   tile_ahead prefetches the next one                                             | tile_step: TILE_H vectors of rows x
 *                                                                                  |   broadcasts of up to TILE_T tokens
 *   sums of all tokens, in memory between chunks  <--fp32, per block-- exact integers in registers
 *
 * Bytes per tile: TILE_H groups of weights once for all tokens of a call; activations once per
 * TILE_H groups, from cache, in the order of cpu/gemm/quantize_act.h. Instructions per block and
 * token: 8 (bytes) or 16 (words) broadcasts with TILE_H dots each, then 4 fp32 instructions for
 * each of the TILE_H row groups. Order of summation: cpu/gemm/gemv.h. */
#ifndef LLMC_CPU_GEMM_GEMM_TILE_H
#define LLMC_CPU_GEMM_GEMM_TILE_H

#include "cpu/gemm/gemv.h"

enum {
	TILE_H = 2,
	TILE_VECTORS =
	    18 * 1024 /
	    (4 *
	     VL), /* weight vectors per chunk; small enough to leave cache space for activations */
	TILE_BLOCKS =
	    TILE_VECTORS / TILE_H / 8, /* a block has at least 8 vectors and at most two scales */
	TILE_SCALES = TILE_BLOCKS * TILE_H * 2,
};

typedef struct tile_weights {
	/* [block][step][TILE_H]; float weights: [column][TILE_H] */
	_Alignas(64) vi q[TILE_VECTORS];
	vf scale[TILE_SCALES]; /* [block][half][TILE_H]; float weights: [group][TILE_H] */
	vf min[TILE_SCALES];   /* same indices as scale */
} tile_weights;

/* Sums of one token for each row: D and M of cpu/gemm/gemv.h */
typedef struct tile_sum {
	_Alignas(64) vf v[TILE_H];
} tile_sum;

typedef struct tile_sums {
	tile_sum d[TILE_TOKENS], m[TILE_TOKENS];
} tile_sums;

/* Prefetches of the weights that are unpacked next: some lines after each block of the current
 * chunk. Without them, reading memory and computing alternate, which costs half of the time with a
 * few tokens. */
typedef struct tile_ahead {
	const uint8_t *p; /* first of TILE_H groups to prefetch */
	int at, end,
	    step; /* offsets from p in bytes: next line, end of the prefetch, lines per block */
} tile_ahead;

LLMC_INLINE void
tile_fetch(const Product p, tile_ahead *f)
{
	for (int stop = f->at + f->step; f->at < stop && f->at < f->end; f->at += 64)
		LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++)
		__builtin_prefetch(f->p + h * w_group_bytes(p.w, p.cols) + f->at);
}

/* ---- sizes; a unit is a block, or one column of float weights ---- */
LLMC_INLINE int
tile_units(const Product p)
{
	return w_is_float(p.w) ? p.cols : p_blocks(p);
}

/* vectors per unit and row group */
LLMC_INLINE int
tile_steps(const Product p)
{
	return w_is_float(p.w) ? 1 : act_tile_bytes(p) ? 8 : 16;
}

/* Units per chunk; chunks of blocks have nearly equal size. */
LLMC_INLINE int
tile_chunk(const Product p)
{
	const int most = w_is_float(p.w) ? 128 : TILE_VECTORS / (TILE_H * tile_steps(p)),
	          all = tile_units(p), chunks = (all + most - 1) / most;

	return !w_is_float(p.w) ? (all + chunks - 1) / chunks : all < most ? all : most;
}

/* Returns the number of steps per partial sum: half a block if the block has two scales, and few
 * enough for 16-bit sums of bytes. */
LLMC_INLINE int
tile_part(const Product p)
{
	int n = tile_steps(p) / p.w.halves;

	while (act_tile_bytes(p) && n > DOT_BYTES_ROOM >> w_width(p.w))
		n /= 2;
	return n;
}

/* ---- a chunk ---- */
/* For matrix-multiply instructions: reorders columns 4i .. 4i + 3 and the next four. The result has
 * eight columns of two rows, then of the next two rows. Handles two such pairs of vectors. */
LLMC_INLINE void
tile_pair_columns(vi v[4])
{
#if VL == 4
	LLMC_UNROLL
	for (int j = 0; j < 4; j += 2) {
		const vi a = v[j], b = v[j + 1];
		v[j] = VF_SHUFFLE(a, b, 0, 4, 1, 5);
		v[j + 1] = VF_SHUFFLE(a, b, 2, 6, 3, 7);
	}
#else
	(void)v;
#endif
}

/* Groups past the last one are zeros or repeat the first group. Their sums are never read. */
LLMC_INLINE void
tile_unpack(const Product p, const uint8_t *w, int groups, int first, int n, tile_weights *o)
{
	const int64_t group = w_group_bytes(p.w, p.cols);
	const int steps = tile_steps(p);

	if (w_is_float(p.w) && p.w.group) {
		const w_planes planes = w_planes_of(p.w);
		for (int h = 0; h < TILE_H; h++)
			for (int at = 0; at < n; at += p.w.group) {
				const w_span s = w_span_at(p.w, w + (h < groups ? h : 0) * group,
				                           (first + at) / p.w.group);
				vi *const q = &o->q[at * TILE_H + h];
				o->scale[at / p.w.group * TILE_H + h] = s.d;
				for (int k = 0; k < p.w.group; k += 8) {
					vf v[8];
					if (w_is_tabled(p.w))
						w_eight(&planes, s, k, v);
					else
						LLMC_EACH(pair, 4, 4)
					w_span_pair(p.w, s, k / 2 + pair, v + 2 * pair);
					LLMC_EACH(j, 8, 8)
					q[(k + j) * TILE_H] = (vi)v[j];
				}
			}
		return;
	}
	if (w_is_float(p.w)) {
		for (int h = 0; h < TILE_H; h++)
			for (int k = 0; k < n; k++)
				o->q[k * TILE_H + h] =
				    h < groups ? (vi)w_column(p.w, w + h * group, first + k)
				               : vi_all(0);
		return;
	}
	for (int h = 0; h < TILE_H; h++) {
		const uint8_t *const rows = w + (h < groups ? h : 0) * group;
		w_indices found[TILE_BLOCKS];
		for (int b = 0; w_is_indexed(p.w) && b < n; b++)
			w_gather_indices(p.w, w_block(p.w, rows, first + b), &found[b]);
		for (int b = 0; b < n; b++) {
			w_at k = w_block(p.w, rows, first + b);
			k.found = w_is_indexed(p.w) ? &found[b] : NULL;
			/* loads what four steps share before the first store */
			LLMC_EACH(i, steps / 4, 4)
			{
				vi v[4];
				LLMC_EACH(j, 4, 4)
				v[j] = act_tile_bytes(p)
				           ? dot_operand(w_bytes(p.w, k, 4 * i + j), w_width(p.w))
				           : w_words(p.w, k, 4 * i + j);
				if (VF_MMLA && act_tile_bytes(p))
					tile_pair_columns(v);
				LLMC_EACH(j, 4, 4)
				o->q[(b * steps + 4 * i + j) * TILE_H + h] = v[j];
			}
			LLMC_EACH(s, p.w.halves, 2)
			o->scale[(b * p.w.halves + s) * TILE_H + h] = w_scale(p.w, k, s);
			LLMC_EACH(s, p.w.min ? p.w.halves : 0, 2)
			o->min[(b * p.w.halves + s) * TILE_H + h] = w_min(p.w, k, s);
		}
	}
}

LLMC_INLINE vi
tile_load(const vi *p)
{
	vi v;
#if defined(VF_NATIVE_512)
	__asm__ volatile("vmovdqa32 %[p], %[v]" : [v] "=v"(v) : [p] "m"(*p));
#elif VL == 8 && defined(VF_HAVE_256)
	__asm__ volatile("vmovdqa %[p], %[v]" : [v] "=x"(v) : [p] "m"(*p));
#elif defined(VF_NATIVE_NEON)
	__asm__ volatile("ldr %q[v], %[p]" : [v] "=w"(v) : [p] "m"(*p));
#else
	v = *p;
#endif
	return v;
}

/* One step of one token: the sums of both row groups, in exactly this instruction order. Compilers
 * would move all broadcasts of a block to its start and spill the sums. */
#if defined(VF_NATIVE_512)
#define TILE_STEP(dot)                                                                             \
	__asm__ volatile(                                                                          \
	    "vpbroadcastd %[p], %[x]\n\t" dot " %[x], %[w0], %[a0]\n\t" dot " %[x], %[w1], %[a1]"  \
	    : [a0] "+v"(acc[0]), [a1] "+v"(acc[1]), [x] "=&v"(x)                                   \
	    : [w0] "v"(w[0]), [w1] "v"(w[1]), [p] "m"(*(const int32_t *)(const void *)p))
#elif defined(LLMC_VNNI_256)
#define TILE_STEP(dot)                                                                             \
	__asm__ volatile(                                                                          \
	    "vpbroadcastd %[p], %[x]\n\t%{vex%} " dot " %[x], %[w0], %[a0]\n\t%{vex%} " dot        \
	    " %[x], %[w1], %[a1]"                                                                  \
	    : [a0] "+x"(acc[0]), [a1] "+x"(acc[1]), [x] "=&x"(x)                                   \
	    : [w0] "x"(w[0]), [w1] "x"(w[1]), [p] "m"(*(const int32_t *)(const void *)p))
#elif VL == 8 && defined(VF_HAVE_256)
#define TILE_FIRST(mul)                                                                            \
	__asm__ volatile(                                                                          \
	    "vpbroadcastd %[p], %[a1]\n\t" mul " %[a1], %[w0], %[a0]\n\t" mul                      \
	    " %[a1], %[w1], %[a1]"                                                                 \
	    : [a0] "=&x"(acc[0]), [a1] "=&x"(acc[1])                                               \
	    : [w0] "x"(w[0]), [w1] "x"(w[1]), [p] "m"(*(const int32_t *)(const void *)p))
#define TILE_STEP(mul, add)                                                                        \
	__asm__ volatile(                                                                          \
	    "vpbroadcastd %[p], %[x]\n\t" mul " %[x], %[w0], %[t]\n\t" add                         \
	    " %[t], %[a0], %[a0]\n\t" mul " %[x], %[w1], %[x]\n\t" add " %[x], %[a1], %[a1]"       \
	    : [a0] "+x"(acc[0]), [a1] "+x"(acc[1]), [x] "=&x"(x), [t] "=&x"(t)                     \
	    : [w0] "x"(w[0]), [w1] "x"(w[1]), [p] "m"(*(const int32_t *)(const void *)p))
#endif

LLMC_INLINE void
tile_step(const int bytes, vi acc[TILE_H], const vi w[TILE_H], const uint8_t *p, const int first)
{
#if defined(VF_NATIVE_512) || defined(LLMC_VNNI_256)
	vi x;
	if (first)
		acc[0] = acc[1] = vi_all(0);
	if (bytes)
		TILE_STEP("vpdpbusd");
	else
		TILE_STEP("vpdpwssd");
#elif VL == 8 && defined(VF_HAVE_256)
	vi x, t;
	if (first && bytes)
		TILE_FIRST("vpmaddubsw");
	else if (first)
		TILE_FIRST("vpmaddwd");
	else if (bytes)
		TILE_STEP("vpmaddubsw", "vpaddw");
	else
		TILE_STEP("vpmaddwd", "vpaddd");
#else
	const vi x = vi_bcast4(p);
	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++) {
		if (first)
			acc[h] = vi_all(0);
		acc[h] = bytes ? dot_bytes(acc[h], w[h], x) : dot_words(acc[h], w[h], x);
	}
#endif
}

/* Multiplies a chunk by tokens t0 .. t0 + T and adds to their sums. Sums stay in registers within a
 * block. */
LLMC_INLINE void
tile_dot_floats(const Product p, const int T, const tile_weights *w, int first, int n,
                const act_rows *a, int t0, tile_sums *sum, tile_ahead *ahead)
{
	vf d[TILE_T][TILE_H];
	tile_sum *const sums = sum->d + t0;
	const float *x =
	    (const float *)(const void *)(a->q + (size_t)t0 * (size_t)act_row_bytes(p)) + first * T;

	for (int at = 0, span = p.w.group ? p.w.group : n; at < n; at += span) {
		LLMC_EACH(t, T, TILE_T)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			d[t][h] = p.w.group ? vf_set1(0) : sums[t].v[h];
		for (int k = at; k < at + span; k++, x += T) {
			vf v[TILE_H];
			if (k % 8 == 0)
				tile_fetch(p, ahead);
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				v[h] = (vf)w->q[k * TILE_H + h];
			LLMC_EACH(t, T, TILE_T)
			{
				vf xv = vf_set1(x[t]);
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++)
					d[t][h] = vf_fma(v[h], xv, d[t][h]);
			}
		}
		LLMC_EACH(t, T, TILE_T)
		LLMC_UNROLL
		for (int h = 0; h < TILE_H; h++)
			sums[t].v[h] = p.w.group ? vf_fma(d[t][h], w->scale[at / span * TILE_H + h],
			                                  sums[t].v[h])
			                         : d[t][h];
	}
}

/* Adds the mins of a chunk to the sums of tokens. totals: act_rows.s of the chunk's first block */
LLMC_INLINE void
tile_add_mins(const Product p, const int T, const tile_weights *w, int n, const float *totals,
              tile_sum *mins)
{
	const int halves = p.w.halves;
	vf m[TILE_T][TILE_H];
	LLMC_EACH(t, T, TILE_T)
	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++)
		m[t][h] = mins[t].v[h];
	for (int b = 0; b < n; b++)
		LLMC_EACH(half, halves, 2)
	LLMC_EACH(t, T, TILE_T)
	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++)
		m[t][h] = vf_fma(w->min[(b * halves + half) * TILE_H + h],
		                 vf_set1(totals[(b * T + t) * halves + half]), m[t][h]);
	LLMC_EACH(t, T, TILE_T)
	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++)
		mins[t].v[h] = m[t][h];
}

/* Adds the integers of half a block to the sums of a token. scale: index in act_rows.d; offset:
 * index in act_rows.z */
LLMC_INLINE void
tile_add_dots(const Product p, const vi dot[TILE_H], const vf w_scale[TILE_H], float scale,
              int32_t offset, vf sum[TILE_H])
{
	const vf s = vf_set1(scale);

	LLMC_UNROLL
	for (int h = 0; h < TILE_H; h++) {
		vi v = dot[h];
		if (act_tile_bytes(p) && dot_offset(w_offset(p.w), w_width(p.w)))
			v -= vi_all(offset);
		sum[h] = vf_fma(vf_of_vi(v) * w_scale[h], s, sum[h]);
	}
}

LLMC_INLINE void
tile_dot_blocks(const Product p, const int T, const tile_weights *w, int first, int n,
                const act_rows *a, int t0, tile_sums *sum, tile_ahead *ahead)
{
	const int steps = tile_steps(p), halves = p.w.halves, bytes = act_tile_bytes(p);
	const int N = tile_part(p), parts = steps / N, each = parts / halves; /* parts per scale */
	const int block = act_block_bytes(p), passes = bytes ? p.act_bits / 8 : 1;
	const uint8_t *x =
	    a->q + (size_t)t0 * (size_t)act_row_bytes(p) + (size_t)(first * T * block);
	const size_t at = (size_t)t0 * (size_t)p_blocks(p) + (size_t)(first * T);
	const float *const scales = a->d + at, *const totals = a->s + at * (size_t)halves;
	const int32_t *const offsets = a->z + at * (size_t)halves;
	tile_sum *const d = sum->d + t0, *const mins = sum->m + t0;

	for (int b = 0; b < n; b++, x += T * block) {
		vi wide[TILE_T][TILE_H];
		tile_fetch(p, ahead);
		LLMC_EACH(part, parts, 4)
		{
			vi acc[TILE_T][TILE_H];
			LLMC_EACH(pass, passes, 2)
			{
				if (pass)
					LLMC_EACH(t, T, TILE_T)
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++)
					acc[t][h] <<= 8;
				LLMC_EACH(step, N, 16)
				{
					const int i = part * N + step;
					vi v[TILE_H];
					LLMC_UNROLL
					for (int h = 0; h < TILE_H; h++)
						v[h] =
						    tile_load(&w->q[(b * steps + i) * TILE_H + h]);
					LLMC_EACH(t, T, TILE_T)
					tile_step(bytes, acc[t], v,
					          x + t * block + 32 * pass + 4 * i,
					          step + pass == 0);
				}
			}
			if (bytes)
				LLMC_EACH(t, T, TILE_T)
			LLMC_UNROLL
			for (int h = 0; h < TILE_H; h++)
				acc[t][h] = dot_bytes_sum(acc[t][h], 1);
			if (each > 1) {
				LLMC_EACH(t, T, TILE_T)
				LLMC_UNROLL
				for (int h = 0; h < TILE_H; h++) {
					if (part % each)
						acc[t][h] += wide[t][h];
					wide[t][h] = acc[t][h];
				}
				if (part % each != each - 1)
					continue;
			}
			const int half = part / each;
			LLMC_EACH(t, T, TILE_T)
			tile_add_dots(p, acc[t], &w->scale[(b * halves + half) * TILE_H],
			              scales[b * T + t], offsets[(b * T + t) * halves + half],
			              d[t].v);
		}
	}
	if (p.w.min)
		tile_add_mins(p, T, w, n, totals, mins);
}

#endif

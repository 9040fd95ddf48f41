/* Attention on AMX, for f16 or bf16 keys and values with at least four query heads per kv head. The
 * sums are those of cpu/attention/attention.h, but dot products are computed differently.
 *
 * An f16 value is exactly the sum of two bf16 parts, hi + lo. Queries and weights are split into
 * two parts as well, relative error 2^-17. lo * lo terms are dropped. A score accumulates over
 * dimensions in steps of 32: q_hi k_hi, q_lo k_hi, q_hi k_lo. A sum over positions also accumulates
 * three such terms per step of 32. The order within a step is that of the instruction. The two
 * elements of a bf16 pair are elements i and i + 16 of 32, so that splitting 32 values moves none
 * between lanes:
 *
 *   q   [block of 16 rows][32 of dim][hi, lo]  tiles of A           --+
 *   K of a page --parts--> [16 keys][32 of dim][hi, lo]  tiles of B --+--> s [32][128] --softmax, parts--> P [block][page][hi, lo]  tiles of A --+
 *   V of a page --parts--> [16 of v_dim][page][hi, lo]  tiles of B  -----------------------------------------------------------------------------+--> oc
 *
 * Two row blocks are multiplied by two B tiles at a time: four independent accumulator chains, with
 * one load per chain, so no dot waits for the previous one. For a chunk of 128 positions and 64
 * dimensions, 32 rows take 192 dots of 16 cycles (computed). In fp32 they take 33,000 vector FMAs.
 * The softmax of these rows takes 3700 cycles of vector instructions, which overlap with the dots
 * (att_amx_blocks). K and V are split once for up to ATT_AMX_R rows.
 *
 * Measured on one thread of a shared Intel Xeon with AMX, medians of paired rounds:
 *
 *   128 tokens at depth 8192   254 GFLOP/s for 32 heads of 64 over 8 kv heads,
 *                              326 for 32 heads of 128 over 4
 *   one row, depth 4096,       from memory 0.95 to 0.97 of the rate of cpu-v4 with heads of 64,
 *   4 heads per kv head        0.99 with heads of 128; from the caches 0.72, because v4 needs half
 *                              as many instructions per line
 *
 * A single row would lose a third of its rate if a whole page were split before its dots, or if the
 * prefetches went to L1. */
#ifndef LLMC_CPU_ATTENTION_ATTENTION_AMX_H
#define LLMC_CPU_ATTENTION_ATTENTION_AMX_H

#include "cpu/gemm/amx_tiles.h"

enum {
	ATT_AMX_R = 256, /* largest number of rows (tokens x heads) per tile */
	ATT_AMX_B = 16,  /* rows per row block */
};

/* number of bf16 parts per element of the cache */
LLMC_INLINE int
att_amx_parts(const int type)
{
	return type == KV_bf16 ? 1 : 2;
}

/* number of tiles per key */
LLMC_INLINE int
att_amx_steps(const int dim)
{
	return (dim + 31) / 32;
}

/* bytes of a chunk's keys, or values, as bf16 parts; bytes of a tile of values over the chunk */
LLMC_INLINE int
att_amx_key_bytes(const Att a)
{
	return ATT_CHUNK / 16 * att_amx_steps(a.dim) * att_amx_parts(a.kv.k) * AMX_TILE;
}

LLMC_INLINE int
att_amx_value_tile(const Att a)
{
	return ATT_PAGES * att_amx_parts(a.kv.v) * AMX_TILE;
}

/* ---- bf16 parts ---- */
/* Splits row r of a block's queries; x is padded with zeros to a multiple of 32 */
LLMC_INLINE void
att_amx_query(const Att a, const float *x, int r, uint8_t *block)
{
	for (int i = 0; i < att_amx_steps(a.dim); i++)
		amx_put_rounded(vf_load(x + i * 32), vf_load(x + i * 32 + 16),
		                block + i * 2 * AMX_TILE + r * 64);
}

/* Packs row i of the tiles of dimensions 32 * step .. of a page's keys: the first 16 keys at `to`,
 * the other 16 `apart` bytes later. */
LLMC_INLINE void
att_amx_keys_row(const Att a, const char *k, int step, int i, uint8_t *to, const int apart)
{
	const int parts = att_amx_parts(a.kv.k), whole = a.dim % 32 == 0, d = step * 32 + i,
	          e = d + 16;

	LLMC_EACH(t, 2, 2)
	{
		vf x = { 0 }, y = { 0 };
		if (whole || d < a.dim)
			x = kv_load(a.kv.k, k, d * KV_PAGE + t * 16);
		if (whole || e < a.dim)
			y = kv_load(a.kv.k, k, e * KV_PAGE + t * 16);
		amx_put_exact(parts, x, y, to + t * apart + i * 64);
	}
}

/* Packs a page's keys to tiles [16 keys][32 of dim][parts]. */
LLMC_INLINE void
att_amx_keys(const Att a, const char *k, uint8_t *to)
{
	const int tile = att_amx_parts(a.kv.k) * AMX_TILE, steps = att_amx_steps(a.dim);

	for (int step = 0; step < steps; step++)
		for (int i = 0; i < 16; i++)
			att_amx_keys_row(a, k, step, i, to + step * tile, steps * tile);
}

/* Packs row i of n_d tiles of a page's values, from dimension d0 on; tiles are `apart` bytes apart.
 * Only n positions are valid (or all are). */
LLMC_INLINE void
att_amx_values_row(const Att a, const int all, const char *v, int n, int d0, const int n_d, int i,
                   uint8_t *to, const int apart)
{
	for (int d = d0; d < d0 + n_d; d += VL) {
		vf x = { 0 }, y = { 0 };
		if (all || i < n)
			x = kv_val(a.kv.v, a.v_dim, v, i, d, NULL);
		if (all || i + 16 < n)
			y = kv_val(a.kv.v, a.v_dim, v, i + 16, d, NULL);
		amx_put_exact(att_amx_parts(a.kv.v), x, y, to + (d - d0) / VL * apart + i * 64);
	}
}

/* Packs page `page` of a chunk to value tiles [16 of v_dim][page][parts]. */
LLMC_INLINE void
att_amx_values(const Att a, const char *v, int n, int page, uint8_t *to)
{
	to += page * att_amx_parts(a.kv.v) * AMX_TILE;
	for (int i = 0; i < 16; i++)
		if (n >= KV_PAGE)
			att_amx_values_row(a, 1, v, n, 0, a.v_dim, i, to, att_amx_value_tile(a));
		else
			att_amx_values_row(a, 0, v, n, 0, a.v_dim, i, to, att_amx_value_tile(a));
}

/* ---- dots ---- */
enum { ATT_AMX_P = ATT_PAGES * 2 * AMX_TILE }; /* bytes of the weights of a row block */

/* A GEMM of one or two row blocks with pairs of tile columns. It runs step by step, so that other
 * work can be interleaved. */
typedef struct AttDots {
	const uint8_t *rows,
	    *tiles; /* [step][hi, lo] of the first block; [step][parts] of the next column */
	float *out;
	int two, step, steps, left; /* left: number of pairs of columns left */
} AttDots;

/* Accumulates 32 terms. a0, a1: one or two row blocks (hi, lo); b0, b1: one or two columns
 * (parts) */
LLMC_INLINE void
att_amx_step(const int parts, const int two, const int wide, const uint8_t *a0, const uint8_t *a1,
             const uint8_t *b0, const uint8_t *b1)
{
/* dots of part `part` of the row blocks with the tiles in registers 6 and 7 */
#define ATT_AMX_ROWS(part)                                                                         \
	do {                                                                                       \
		AMX_LOAD(4, a0 + (part) * AMX_TILE, 64);                                           \
		AMX_BF16(0, 4, 6);                                                                 \
		if (wide)                                                                          \
			AMX_BF16(1, 4, 7);                                                         \
		if (two) {                                                                         \
			AMX_LOAD(5, a1 + (part) * AMX_TILE, 64);                                   \
			AMX_BF16(2, 5, 6);                                                         \
			if (wide)                                                                  \
				AMX_BF16(3, 5, 7);                                                 \
		}                                                                                  \
	} while (0)
	AMX_LOAD(6, b0, 64);
	if (wide)
		AMX_LOAD(7, b1, 64);
	ATT_AMX_ROWS(0);
	ATT_AMX_ROWS(1);
	if (parts == 2) {
		AMX_LOAD(6, b0 + AMX_TILE, 64);
		if (wide)
			AMX_LOAD(7, b1 + AMX_TILE, 64);
		ATT_AMX_ROWS(0);
	}
#undef ATT_AMX_ROWS
}

/* Runs the next step; returns 0 if none was left. Block and column distances are in bytes; n:
 * elements of a row of out; ld: its stride */
LLMC_INLINE int
att_amx_some(const int parts, const int block, const int column, const int n, const int ld,
             AttDots *d)
{
	if (d->left == 0)
		return 0;
	const int wide = n % 32 == 0 || d->left > 1;
	const uint8_t *a0 = d->rows + d->step * 2 * AMX_TILE,
	              *b0 = d->tiles + d->step * parts * AMX_TILE;
	float *const c1 = d->out + ATT_AMX_B * ld;

	if (d->step == 0) {
		AMX_ZERO(0);
		AMX_ZERO(1);
		AMX_ZERO(2);
		AMX_ZERO(3);
	}
	if (d->two && wide)
		att_amx_step(parts, 1, 1, a0, a0 + block, b0, b0 + column);
	else if (d->two)
		att_amx_step(parts, 1, 0, a0, a0 + block, b0, b0);
	else if (wide)
		att_amx_step(parts, 0, 1, a0, a0, b0, b0 + column);
	else
		att_amx_step(parts, 0, 0, a0, a0, b0, b0);
	if (++d->step < d->steps)
		return 1;
	AMX_STORE(0, d->out, ld * 4);
	if (wide)
		AMX_STORE(1, d->out + 16, ld * 4);
	if (d->two) {
		AMX_STORE(2, c1, ld * 4);
		if (wide)
			AMX_STORE(3, c1 + 16, ld * 4);
	}
	d->step = 0;
	d->left--;
	d->tiles += 2 * column;
	d->out += 32;
	return 1;
}

/* Prepares the scores of row blocks with the keys of pages [first, last) of a chunk: s [16 or
 * 32][128]. */
LLMC_INLINE AttDots
att_amx_scores(const Att a, int two, const uint8_t *q, const uint8_t *keys, int first, int last,
               float *s)
{
	return (AttDots){ q,
		          keys + first * (att_amx_key_bytes(a) / ATT_PAGES),
		          s + first * KV_PAGE,
		          two,
		          0,
		          att_amx_steps(a.dim),
		          last - first };
}

LLMC_INLINE int
att_amx_score(const Att a, AttDots *d)
{
	const int parts = att_amx_parts(a.kv.k), steps = att_amx_steps(a.dim);

	return att_amx_some(parts, steps * 2 * AMX_TILE, steps * parts * AMX_TILE, ATT_CHUNK,
	                    ATT_CHUNK, d);
}

/* Prepares oc [16 or 32][vs]: the weights of pages [first, last) times the values. */
LLMC_INLINE AttDots
att_amx_sums(const Att a, int two, const uint8_t *p, const uint8_t *values, int first, int last,
             float *oc)
{
	return (AttDots){ p + first * 2 * AMX_TILE,
		          values + first * att_amx_parts(a.kv.v) * AMX_TILE,
		          oc,
		          two,
		          0,
		          last - first,
		          (att_vs(a) + 31) / 32 };
}

LLMC_INLINE int
att_amx_sum(const Att a, AttDots *d)
{
	return att_amx_some(att_amx_parts(a.kv.v), ATT_AMX_P, att_amx_value_tile(a), att_vs(a),
	                    att_vs(a), d);
}

/* ---- a chunk of one row, whose heads form a block ---- */
/* Splitting K and V takes the longest. The dots of finished tiles are therefore interleaved with
 * splitting the next tiles, one dot per few rows, so that no dot waits for the previous one or for
 * a store. Later planes are prefetched throughout. */
enum { ATT_AMX_V = 64 }; /* values per pass, whose sums stay in tile registers */

/* bytes of the ring of keys or values, which has the tiles being multiplied and those being
 * split */
LLMC_INLINE int
att_amx_ring_bytes(const Att a)
{
	return 2 * (2 * att_amx_parts(a.kv.k) + ATT_AMX_V / VL * att_amx_parts(a.kv.v)) * AMX_TILE;
}

/* Computes s [heads][128] of n pages. k: their planes; next: planes to prefetch */
LLMC_INLINE void
att_amx_row_scores(const Att a, const uint8_t *q, const char *const *k, const char *const *next,
                   int n, uint8_t *ring, float *s)
{
	const int parts = att_amx_parts(a.kv.k), tile = parts * AMX_TILE,
	          steps = att_amx_steps(a.dim);

	for (int i = 0; i <= n * steps; i++) {
		const int step = i % steps, before = (i + steps - 1) % steps;
		uint8_t *const to = ring + i % 2 * 2 * tile;
		const uint8_t *const from = ring + (i + 1) % 2 * 2 * tile;
		if (i > 0 && before == 0) {
			AMX_ZERO(0);
			AMX_ZERO(1);
		}
		for (int r = 0; r < 16; r++) {
			if (i < n * steps) {
				amx_prefetch_l2(next[i / steps], (int)kv_plane(a.kv.k, a.dim),
				                step * 16 + r, steps * 16);
				att_amx_keys_row(a, k[i / steps], step, r, to, tile);
			}
			if (i > 0)
				switch (r) {
					AMX_CASES(0, 6, 0, 1, parts, 1, q + before * 2 * AMX_TILE,
					          from, tile)
				}
		}
		if (i > 0 && before == steps - 1) {
			AMX_STORE(0, s, ATT_CHUNK * 4);
			AMX_STORE(1, s + 16, ATT_CHUNK * 4);
			s += KV_PAGE;
		}
	}
}

/* Computes n_d elements of oc from d on, for att_amx_row_sums, and prefetches a share of the next
 * planes. */
LLMC_INLINE void
att_amx_row_values(const Att a, const uint8_t *p, const char *const *v, const char *const *next,
                   int first, int last, int n, int d, const int n_d, int slice, const int of,
                   uint8_t *ring, float *oc)
{
	const int vs = att_vs(a), parts = att_amx_parts(a.kv.v), tile = parts * AMX_TILE;

	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
	p += (first - 1) * 2 * AMX_TILE;
	for (int page = first; page <= last; page++, n -= KV_PAGE, p += 2 * AMX_TILE) {
		uint8_t *const to = ring + page % 2 * (ATT_AMX_V / VL) * tile;
		const uint8_t *const from = ring + (page + 1) % 2 * (ATT_AMX_V / VL) * tile;
		for (int i = 0; i < 16; i++) {
			if (page < last) {
				amx_prefetch_l2(next[page], (int)kv_plane(a.kv.v, a.v_dim),
				                slice * 16 + i, of * 16);
				if (n >= KV_PAGE)
					att_amx_values_row(a, 1, v[page], n, d, n_d, i, to, tile);
				else
					att_amx_values_row(a, 0, v[page], n, d, n_d, i, to, tile);
			}
			if (page > first)
				switch (i) {
					AMX_CASES(0, 12, 0, 1, parts, n_d > 16, p, from, tile)
					AMX_CASES(6, 12, 2, 3, parts, n_d > 48, p, from + 2 * tile,
					          tile)
				}
		}
	}
	AMX_STORE(0, oc + d, vs * 4);
	if (n_d > 16)
		AMX_STORE(1, oc + d + 16, vs * 4);
	if (n_d > 32)
		AMX_STORE(2, oc + d + 32, vs * 4);
	if (n_d > 48)
		AMX_STORE(3, oc + d + 48, vs * 4);
}

/* Computes oc [heads][vs] from the weights p of pages [first, last) of a chunk. Only the first n
 * positions are valid. */
LLMC_INLINE void
att_amx_row_sums(const Att a, const uint8_t *p, const char *const *v, const char *const *next,
                 int first, int last, int n, uint8_t *ring, float *oc)
{
	const int whole = a.v_dim / ATT_AMX_V, rest = a.v_dim % ATT_AMX_V, of = whole + (rest > 0);

	for (int i = 0; i < whole; i++)
		att_amx_row_values(a, p, v, next, first, last, n, i * ATT_AMX_V, ATT_AMX_V, i, of,
		                   ring, oc);
	if (rest)
		att_amx_row_values(a, p, v, next, first, last, n, whole * ATT_AMX_V, rest, whole,
		                   of, ring, oc);
}
/* ---- rows ---- */
/* att_softmax over pages [first, last) of a chunk, which contain lo < hi. Splits the weights into
 * row r of block p. */
LLMC_INLINE void
att_amx_softmax(const Att a, float *s, int first, int last, int pos0, int lo, int hi, int pos,
                float slope, uint8_t *p, int r, float *m_out, float *l_out)
{
	const vf none = vf_set1(-__builtin_inff());
	const int whole =
	    lo <= first * KV_PAGE && hi >= last * KV_PAGE && !(a.cap > 0) && !(a.alibi > 0);
	vf top = none, sum = vf_set1(0);

	if (whole)
		for (int j = first * KV_PAGE; j < last * KV_PAGE; j += VL)
			top = vf_max(top, vf_load(s + j));
	else
		for (int j = first * KV_PAGE; j < last * KV_PAGE; j += VL) {
			vf v = vf_load(s + j);
			vi at = vi_iota() + vi_set1(j);
			if (a.cap > 0)
				v = vf_set1(a.cap) *
				    vf_tanh(v * vf_set1((float)(1 / (double)a.cap)));
			if (a.alibi > 0)
				v = vf_fma(vf_set1(slope),
				           __builtin_convertvector(at + vi_set1(pos0 - pos), vf),
				           v);
			v = vf_select((vi)(at >= vi_set1(lo)) & (vi)(at < vi_set1(hi)), v, none);
			vf_store(s + j, v);
			top = vf_max(top, v);
		}
	const float m = vf_hmax(top);
	p += r * 64;
	for (int page = first; page < last; page++) {
		const vf x = vf_exp(vf_load(s + page * KV_PAGE) - vf_set1(m)),
		         y = vf_exp(vf_load(s + page * KV_PAGE + VL) - vf_set1(m));
		sum += x;
		sum += y;
		amx_put_rounded(x, y, p + page * 2 * AMX_TILE);
	}
	*m_out = m;
	*l_out = vf_hsum(sum);
}

/* Clears the weights of a row that attends to nothing in pages [first, last). */
LLMC_INLINE void
att_amx_unseen(int first, int last, uint8_t *p, int r)
{
	for (int i = 2 * first; i < 2 * last; i++)
		memset(p + i * AMX_TILE + r * 64, 0, 64);
}

/* att_merge for each row of a block whose lc is not 0 */
LLMC_INLINE void
att_amx_merge(const int vs, float *m, float *l, float *o, const float *mc, const float *lc,
              const float *oc)
{
	const vf was = vf_load(m), is = vf_load(mc), top = vf_select((vi)(was > is), was, is),
	         sum = vf_load(lc), before = vf_load(l);
	const vf a = vf_exp(was - top), b = vf_exp(is - top);
	const vi add = (vi)(sum != vf_set1(0)), begin = (vi)(before == vf_set1(0));
	float by[VL], with[VL];

	vf_store(by, a);
	vf_store(with, b);
	vf_store(m, vf_select(add, vf_select(begin, is, top), was));
	vf_store(l, vf_select(add, vf_select(begin, sum, vf_fma(before, a, sum * b)), before));
	for (int r = 0; r < ATT_AMX_B; r++, o += vs, oc += vs) {
		if (!add[r])
			continue;
		if (begin[r])
			for (int d = 0; d < vs; d += VL)
				vf_store(o + d, vf_load(oc + d));
		else
			for (int d = 0; d < vs; d += VL)
				vf_store(o + d, vf_fma(vf_load(o + d), vf_set1(by[r]),
				                       vf_load(oc + d) * vf_set1(with[r])));
	}
}

#endif

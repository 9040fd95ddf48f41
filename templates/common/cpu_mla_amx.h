/* A chunk of the absorbed form (cpu_mla.h) on tile registers, where the cache is f16 or of groups. A half is exactly two parts of bf16, hi + lo; queries
 * and weights become two parts as well: relative error 2^-17. Products of lo and lo are left out. What meets in a lane pair is element or position i and
 * i + 16 of 32, so that parts are made without moving any.
 *
 *   pages --> [16 positions][32 elements][hi, lo]  tiles of A, 32 positions x 32 elements at a time
 *         |                                          |
 *         |   queries [32 elements][hi, lo]  B ------+--> s [position][16 rows] --softmax, a row a lane; turned--> weights [32 positions][hi, lo]  A
 *         |                                                                                                           |
 *         +-> [16 elements][32 positions][hi, lo]  B -----------------------------------------------------------------+--> oc [row][rank]
 *
 * Rows by 16; a row's sums are the same in any company. By count a chunk of rank 512 + 64 takes 408 dot instructions of 16 cycles for 16
 * rows, where fp32 takes 70,000 multiplications, and 16 vector instructions for 32 elements of the cache to bring them into both orders, beside which
 * the dots of scores run. Memory is asked for the next chunk meanwhile.
 *
 * Memory: tiles of the chunk take the place of x and pairs, queries in parts the place of q; weights in parts lie behind pairs. */
#ifndef LLMC_CPU_MLA_AMX_H
#define LLMC_CPU_MLA_AMX_H

#include "common/cpu_amx_regs.h"

enum { MLA_TR = 16 };           /* rows of a tile register */

/* tiles along what a position holds */
LLMC_INLINE int
mla_steps(const Mla a)
{
	return (mla_width(a) + 31) / 32;
}

/* Row r of the tile's queries, n elements, scaled, and zeros behind them: to its place in q, [16 rows][step][hi, lo] tiles */
LLMC_INLINE void
mla_amx_query(const Mla a, uint8_t *q, int r, const float *from, int n)
{
	_Alignas(64) uint8_t pairs[AMX_TILE + 64];
	uint8_t *to = q + (size_t)(r / MLA_TR * mla_steps(a)) * 2 * AMX_TILE + r % MLA_TR * 4;

	for (int d = 0; d < mla_steps(a) * 32; d += 32, to += 2 * AMX_TILE) {
		vf x[2];
		for (int e = 0; e < 2; e++) {
			const int at = d + e * VL;
			x[e] = (n - at >= VL ? vf_load(from + at) : vf_load_n(from + at, n - at)) * vf_set1(a.scale);
		}
		amx_put_rounded(x[0], x[1], pairs);
		for (int i = 0; i < 16; i++) {
			memcpy(to + i * 64, pairs + i * 4, 4);
			memcpy(to + AMX_TILE + i * 64, pairs + AMX_TILE + i * 4, 4);
		}
	}
}

/* Row i of the tiles of 32 elements from d on of a page: its positions i and i + 16, as far as there are n, or all. x: of its first positions, the
 * others' `apart` bytes behind; pairs: of its first elements */
LLMC_INLINE void
mla_amx_row(const Mla a, const int all, const char *page, const float *scale, int n, int d, int i, uint8_t *x, const int apart, uint8_t *pairs)
{
	vf v[2][2] = { { { 0 } } };

	LLMC_EACH(k, 2, 2)
		LLMC_EACH(e, 2, 2)
			if ((all || i + k * 16 < n) && d + e * VL < mla_width(a))
				v[k][e] = kv_val(a.kv, mla_width(a), page, i + k * 16, d + e * VL, scale);
	LLMC_EACH(k, 2, 2)
		amx_put_exact(2, v[k][0], v[k][1], x + k * apart + i * 64);
	LLMC_EACH(e, 2, 2)
		if (d + e * VL < mla_os(a))
			amx_put_exact(2, v[0][e], v[1][e], pairs + e * 4 * AMX_TILE + i * 64);
}

/* Sixteen positions `at` (hi, lo) with queries in 6 and 7, added to c */
#define MLA_POSITIONS(c, at)                   \
	do {                                   \
		AMX_LOAD(4, at, 64);           \
		AMX_BF16(c, 4, 6);             \
		AMX_BF16(c, 4, 7);             \
		AMX_LOAD(5, (at) + AMX_TILE, 64); \
		AMX_BF16(c, 5, 6);             \
	} while (0)

/* Positions [0, n) of a chunk to x [16 positions][step][hi, lo] and pairs [16 elements][32 positions][hi, lo], and scores of the first 16 rows, w [64][16] */
LLMC_INLINE void
mla_amx_take(const Mla a, const MlaTile *t, int pos0, int n)
{
	const int steps = mla_steps(a), apart = steps * 2 * AMX_TILE, bytes = (int)kv_plane(a.kv, mla_width(a)), end = t->range[t->n_tok - 1].hi;
	_Alignas(64) float scale[KV_ROOM];

	for (int half = 0; half < 2; half++) {
		const int there = n - half * KV_PAGE, ahead = pos0 + MLA_CHUNK + half * KV_PAGE;
		const char *page = there > 0 ? kv_page(t->s, t->pool, a.page_bytes, t->seq, pos0 / KV_PAGE + half) : NULL;
		const char *next = ahead < end ? kv_page(t->s, t->pool, a.page_bytes, t->seq, ahead / KV_PAGE) : NULL;
		uint8_t *x = (uint8_t *)t->x + half * 2 * apart, *pairs = (uint8_t *)t->pairs + half * 2 * AMX_TILE;
		const uint8_t *q = (const uint8_t *)t->q;
		if (kv_grouped(a.kv) && page)
			kv_scales_v(a.kv, mla_width(a), page, scale);
		AMX_ZERO(0);
		AMX_ZERO(1);
		for (int step = 0; step < steps; step++, x += 2 * AMX_TILE, pairs += 8 * AMX_TILE, q += 2 * AMX_TILE) {
			for (int i = 0; i < 16; i++) {
				if (next)
					amx_ask(next, bytes, step * 16 + i, steps * 16);
				if (there >= KV_PAGE)
					mla_amx_row(a, 1, page, scale, there, step * 32, i, x, apart, pairs);
				else
					mla_amx_row(a, 0, page, scale, there, step * 32, i, x, apart, pairs);
			}
			AMX_LOAD(6, q, 64);
			AMX_LOAD(7, q + AMX_TILE, 64);
			MLA_POSITIONS(0, x);
			MLA_POSITIONS(1, x + apart);
		}
		AMX_STORE(0, t->w + half * 2 * MLA_TR * 16, 64);
		AMX_STORE(1, t->w + (half * 2 + 1) * MLA_TR * 16, 64);
	}
}

/* w [64][16] of rows from r0 on */
LLMC_INLINE void
mla_amx_scores(const Mla a, const MlaTile *t, int r0)
{
	const int steps = mla_steps(a), apart = steps * 2 * AMX_TILE;
	const uint8_t *x = (const uint8_t *)t->x, *q = (const uint8_t *)t->q + (size_t)(r0 / MLA_TR) * (size_t)apart;
	float *w = t->w + r0 * MLA_CHUNK;

	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
	for (int step = 0; step < steps; step++, x += 2 * AMX_TILE, q += 2 * AMX_TILE) {
		AMX_LOAD(6, q, 64);
		AMX_LOAD(7, q + AMX_TILE, 64);
		MLA_POSITIONS(0, x);
		MLA_POSITIONS(1, x + apart);
		MLA_POSITIONS(2, x + 2 * apart);
		MLA_POSITIONS(3, x + 3 * apart);
	}
	AMX_STORE(0, w, 64);
	AMX_STORE(1, w + 16 * MLA_TR, 64);
	AMX_STORE(2, w + 32 * MLA_TR, 64);
	AMX_STORE(3, w + 48 * MLA_TR, 64);
}
#undef MLA_POSITIONS

/* Scores w [64][16] of 16 rows to weights, [32 positions][hi, lo] tiles p. see: positions that each row sees, `whole`: all of them do all; l is 0 where
 * it is none. */
LLMC_INLINE void
mla_amx_softmax(float *w, const vi see, int whole, float *m, float *l, uint8_t *p)
{
	_Alignas(64) uint8_t pairs[4 * AMX_TILE];
	vf top = vf_set1(-__builtin_inff()), sum = vf_set1(0);

	for (int j = 0; j < MLA_CHUNK; j++) {
		vf v = vf_load(w + j * MLA_TR);
		if (!whole)
			v = vf_pick((vi)(see > vi_set1(j)), v, vf_set1(-__builtin_inff()));
		top = vf_max(top, v);
	}
	for (int j = 0; j < MLA_CHUNK; j += j % 32 == 15 ? 17 : 1) {
		vf e[2];
		for (int k = 0; k < 2; k++) {
			e[k] = vf_exp(vf_load(w + (j + k * 16) * MLA_TR) - top);
			if (!whole)
				e[k] = vf_pick((vi)(see > vi_set1(j + k * 16)), e[k], vf_set1(0));
			sum += e[k];
		}
		amx_put_rounded(e[0], e[1], pairs + j / 32 * 2 * AMX_TILE + j % 32 * 64);
	}
	for (int i = 0; i < 4; i++)
		amx_turn(pairs + i * AMX_TILE, p + i * AMX_TILE);
	vf_store(m, top);
	vf_store(l, sum);
}

/* oc [16][os] of weights p */
LLMC_INLINE void
mla_amx_sums(const Mla a, const uint8_t *pairs, const uint8_t *p, float *oc)
{
	const int os = mla_os(a);

	AMX_LOAD(4, p, 64);
	AMX_LOAD(5, p + 2 * AMX_TILE, 64);
	AMX_LOAD(6, p + AMX_TILE, 64);
	AMX_LOAD(7, p + 3 * AMX_TILE, 64);
/* sixteen elements at v [32 positions][hi, lo] to c */
#define MLA_ELEMENTS(c, v)                        \
	do {                                      \
		AMX_ZERO(c);                      \
		AMX_LOAD(2, v, 64);               \
		AMX_BF16(c, 4, 2);                \
		AMX_LOAD(3, (v) + 2 * AMX_TILE, 64); \
		AMX_BF16(c, 5, 3);                \
		AMX_BF16(c, 6, 2);                \
		AMX_BF16(c, 7, 3);                \
		AMX_LOAD(2, (v) + AMX_TILE, 64);  \
		AMX_BF16(c, 4, 2);                \
		AMX_LOAD(3, (v) + 3 * AMX_TILE, 64); \
		AMX_BF16(c, 5, 3);                \
	} while (0)
	for (int d = 0; d < os; d += 32, pairs += 8 * AMX_TILE) {
		MLA_ELEMENTS(0, pairs);
		if (d + 16 < os)
			MLA_ELEMENTS(1, pairs + 4 * AMX_TILE);
		AMX_STORE(0, oc + d, 4 * os);
		if (d + 16 < os)
			AMX_STORE(1, oc + d + 16, 4 * os);
	}
#undef MLA_ELEMENTS
}

/* oc, mc, lc of a chunk with n positions, all rows of a tile */
LLMC_INLINE void
mla_amx_chunk(const Mla a, MlaTile *t, int pos0, int n)
{
	amx_begin(MLA_TR, 64);
	mla_amx_take(a, t, pos0, n);
	for (int r0 = 0; r0 < t->rows; r0 += MLA_TR) {
		int see[MLA_TR], whole = 1;
		vi lanes;
		for (int r = 0; r < MLA_TR; r++) { /* rows that do not exist: nobody reads theirs */
			see[r] = r0 + r < t->rows ? t->range[(r0 + r) / t->n_head].hi - pos0 : MLA_CHUNK;
			whole &= see[r] >= MLA_CHUNK;
		}
		memcpy(&lanes, see, sizeof lanes);
		if (r0 > 0)
			mla_amx_scores(a, t, r0);
		mla_amx_softmax(t->w + r0 * MLA_CHUNK, lanes, whole, t->mc + r0, t->lc + r0, (uint8_t *)t->parts);
		mla_amx_sums(a, (const uint8_t *)t->pairs, (const uint8_t *)t->parts, t->oc + r0 * mla_os(a));
	}
	amx_end();
}

#endif

/* A chunk of the absorbed form (cpu/mla/mla.h) on AMX, for a cache of f16 or of types with groups.
 * An f16 value is exactly the sum of two bf16 parts, hi + lo. Queries and weights are also split
 * into two parts: relative error 2^-17. lo * lo terms are dropped. A bf16 pair holds elements or
 * positions i and i + 16 of 32, so that splitting moves no values between lanes.
 *
 *   pages --32 positions x 32 elements--> [16 positions][hi, lo]  tiles of A --+
 *     |          queries [32 elements][hi, lo]  B -----------------------------+--> s [position][16 rows] --softmax, a row per lane; transposed--> p
 *     |                                                                                                                                      |
 *     +-----32 positions x 64 elements--> [16 elements][hi, lo]  B --------------------+                                                     |
 *                                         p [32 positions][hi, lo]  A <----------------+-- <-------------------------------------------------+
 *                                                                                      +--> oc [row][rank]
 *
 * One or two blocks of 16 rows are processed at a time; a row's sums do not depend on the other
 * rows. Latents are split once for A and once for B, both times from L2: keeping both orders would
 * fill L2 and pass through it twice. Splitting takes 12 vector instructions per 32 elements, which
 * are interleaved with the dots of the previous tiles. Computed: a chunk of rank 512 + 64 takes 408
 * dots of 16 cycles per 16 rows; in fp32 it takes 70,000 vector multiplications. The next chunk is
 * prefetched during that time. */
#ifndef LLMC_CPU_MLA_MLA_AMX_H
#define LLMC_CPU_MLA_MLA_AMX_H

#include "cpu/gemm/amx_tiles.h"

enum {
	MLA_TR = 16, /* rows per tile register */
	MLA_RING = 2 * 4 * 2 *
	           AMX_TILE, /* bytes of the ring: tiles being multiplied, and tiles being packed */
	MLA_WEIGHT = 2 * 2 * AMX_TILE, /* bytes of the weights of 16 rows */
};

/* Addresses of a chunk's latents */
typedef struct MlaPages {
	const char *page[2], *next[2]; /* pages of this chunk and of the next one, or NULL */
	int n;                         /* positions */
	_Alignas(64) float scale[2][KV_ROOM];
} MlaPages;

/* tiles along the elements of a position */
LLMC_INLINE int
mla_steps(const Mla a)
{
	return (mla_width(a) + 31) / 32;
}

/* Splits row r of the tile's queries (n elements, scaled, padded with zeros) into q: tiles [16
 * rows][step][hi, lo]. */
LLMC_INLINE void
mla_amx_query(const Mla a, uint8_t *q, int r, const float *from, int n)
{
	_Alignas(64) uint8_t pairs[AMX_TILE + 64];
	uint8_t *to = q + (size_t)(r / MLA_TR * mla_steps(a)) * 2 * AMX_TILE + r % MLA_TR * 4;

	for (int d = 0; d < mla_steps(a) * 32; d += 32, to += 2 * AMX_TILE) {
		vf x[2];
		for (int e = 0; e < 2; e++) {
			const int at = d + e * VL;
			x[e] = (n - at >= VL ? vf_load(from + at) : vf_load_n(from + at, n - at)) *
			       vf_set1(a.scale);
		}
		amx_put_rounded(x[0], x[1], pairs);
		for (int i = 0; i < 16; i++) {
			memcpy(to + i * 64, pairs + i * 4, 4);
			memcpy(to + AMX_TILE + i * 64, pairs + AMX_TILE + i * 4, 4);
		}
	}
}

/* Loads elements [d, d + VL) of position `at` of half a chunk, or zeros. all: every position
 * exists; some: only some elements exist */
LLMC_INLINE vf
mla_amx_get(const Mla a, const int all, const int some, const MlaPages *p, int half, int at, int d)
{
	if ((all || half * KV_PAGE + at < p->n) && (some || d < mla_width(a)))
		return kv_val(a.kv, mla_width(a), p->page[half], at, d, p->scale[half]);
	return vf_set1(0);
}

/* Packs row i of the tiles of 32 elements from d on: positions i and i + 16, with elements in
 * pairs. */
LLMC_INLINE void
mla_amx_keys_row(const Mla a, const int all, const MlaPages *p, int half, int d, int i, uint8_t *to)
{
	const int whole = mla_width(a) % 32 == 0;

	for (int k = 0; k < 2; k++)
		amx_put_exact(2, mla_amx_get(a, all, whole, p, half, i + k * 16, d),
		              mla_amx_get(a, all, whole, p, half, i + k * 16, d + VL),
		              to + k * 2 * AMX_TILE + i * 64);
}

/* Packs row i of n tiles of 16 elements from d on: positions i and i + 16 in pairs. */
LLMC_INLINE void
mla_amx_values_row(const Mla a, const int all, const MlaPages *p, int half, int d, int n, int i,
                   uint8_t *to)
{
	for (int k = 0; k < n; k++)
		if (mla_os(a) % 64 == 0 || d + k * 16 < mla_os(a))
			amx_put_exact(2, mla_amx_get(a, all, 1, p, half, i, d + k * 16),
			              mla_amx_get(a, all, 1, p, half, i + 16, d + k * 16),
			              to + k * 2 * AMX_TILE + i * 64);
}

/* Computes scores w [64][16] of one or two blocks of rows with queries q over a chunk. fetch:
 * prefetch the first page of the next chunk */
LLMC_INLINE void
mla_amx_scores(const Mla a, int two, const MlaPages *p, const uint8_t *q, int fetch, uint8_t *ring,
               float *w)
{
	const int steps = mla_steps(a), block = steps * 2 * AMX_TILE,
	          bytes = (int)kv_plane(a.kv, mla_width(a));

	for (int n = 0; n <= 2 * steps; n++) {
		const int half = n / steps, step = n % steps, before = (n + steps - 1) % steps;
		uint8_t *const to = ring + n % 2 * 4 * AMX_TILE;
		const uint8_t *const from = ring + (n + 1) % 2 * 4 * AMX_TILE, *const at =
		                                                                   q + before * 2 *
		                                                                           AMX_TILE;
		if (n > 0 && before == 0) {
			AMX_ZERO(0);
			AMX_ZERO(1);
			AMX_ZERO(2);
			AMX_ZERO(3);
		}
		for (int i = 0; i < 16; i++) {
			if (n < 2 * steps) {
				if (fetch && p->next[0])
					amx_prefetch_l2(p->next[0], bytes, n * 16 + i,
					                2 * steps * 16);
				if (p->n == MLA_CHUNK)
					mla_amx_keys_row(a, 1, p, half, step * 32, i, to);
				else
					mla_amx_keys_row(a, 0, p, half, step * 32, i, to);
			}
			if (n > 0)
				switch (i) {
					AMX_CASES(0, 12, 0, 1, 2, two, from, at, block)
					AMX_CASES(6, 12, 2, 3, 2, two, from + 2 * AMX_TILE, at,
					          block)
				}
		}
		if (n > 0 && before == steps - 1) {
			AMX_STORE(0, w, 64);
			AMX_STORE(2, w + 16 * MLA_TR, 64);
			if (two) {
				AMX_STORE(1, w + MLA_CHUNK * MLA_TR, 64);
				AMX_STORE(3, w + (MLA_CHUNK + 16) * MLA_TR, 64);
			}
			w += 2 * 16 * MLA_TR;
		}
	}
}

/* Converts scores w [64][16] of 16 rows to weights, as tiles p of [32 positions][hi, lo]. see:
 * number of positions that each row sees; `whole`: all rows see all of them; l is 0 for rows that
 * see none */
LLMC_INLINE void
mla_amx_softmax(float *w, const vi see, int whole, float *m, float *l, uint8_t *p)
{
	_Alignas(64) uint8_t pairs[4 * AMX_TILE];
	vf top = vf_set1(-__builtin_inff()), sum = vf_set1(0);

	for (int j = 0; j < MLA_CHUNK; j++) {
		vf v = vf_load(w + j * MLA_TR);
		if (!whole)
			v = vf_select((vi)(see > vi_set1(j)), v, vf_set1(-__builtin_inff()));
		top = vf_max(top, v);
	}
	for (int j = 0; j < MLA_CHUNK; j += j % 32 == 15 ? 17 : 1) {
		vf e[2];
		for (int k = 0; k < 2; k++) {
			e[k] = vf_exp(vf_load(w + (j + k * 16) * MLA_TR) - top);
			if (!whole)
				e[k] = vf_select((vi)(see > vi_set1(j + k * 16)), e[k], vf_set1(0));
			sum += e[k];
		}
		amx_put_rounded(e[0], e[1], pairs + j / 32 * 2 * AMX_TILE + j % 32 * 64);
	}
	for (int i = 0; i < 4; i++)
		amx_transpose(pairs + i * AMX_TILE, p + i * AMX_TILE);
	vf_store(m, top);
	vf_store(l, sum);
}

/* Computes oc [16 or 32][os] from split weights. fetch: prefetch the second page of the next
 * chunk */
LLMC_INLINE void
mla_amx_sums(const Mla a, int two, const MlaPages *p, const uint8_t *weights, int fetch,
             uint8_t *ring, float *oc)
{
	const int os = mla_os(a), tiles = two ? 2 : 4, blocks = (os / 16 + tiles - 1) / tiles,
	          bytes = (int)kv_plane(a.kv, mla_width(a));

	for (int n = 0; n <= 2 * blocks; n++) {
		uint8_t *const to = ring + n % 2 * 8 * AMX_TILE;
		const uint8_t *const from = ring + (n + 1) % 2 * 8 * AMX_TILE, *const rows =
		                                                                   weights +
		                                                                   (n + 1) % 2 * 2 *
		                                                                       AMX_TILE;
		const int d = n / 2 * tiles * 16, before = (n - 1) / 2 * tiles * 16;
		if (n % 2) {
			AMX_ZERO(0);
			AMX_ZERO(1);
			AMX_ZERO(2);
			AMX_ZERO(3);
		}
		for (int i = 0; i < 16; i++) {
			if (n < 2 * blocks) {
				if (fetch && p->next[1])
					amx_prefetch_l2(p->next[1], bytes, n * 16 + i,
					                2 * blocks * 16);
				if (p->n == MLA_CHUNK)
					mla_amx_values_row(a, 1, p, n % 2, d, tiles, i, to);
				else
					mla_amx_values_row(a, 0, p, n % 2, d, tiles, i, to);
			}
			if (n > 0)
				switch (i) {
					AMX_CASES(0, 12, 0, 1, 2, 1, rows, from, 2 * AMX_TILE)
					AMX_CASES(6, 12, 2, 3, 2, 1, two ? rows + MLA_WEIGHT : rows,
					          two ? from : from + 4 * AMX_TILE, 2 * AMX_TILE)
				}
		}
		if (n == 0 || n % 2)
			continue;
		AMX_STORE(0, oc + before, 4 * os);
		if (before + 16 < os)
			AMX_STORE(1, oc + before + 16, 4 * os);
		if (two) {
			AMX_STORE(2, oc + 16 * os + before, 4 * os);
			if (before + 16 < os)
				AMX_STORE(3, oc + 16 * os + before + 16, 4 * os);
			continue;
		}
		if (before + 32 < os)
			AMX_STORE(2, oc + before + 32, 4 * os);
		if (before + 48 < os)
			AMX_STORE(3, oc + before + 48, 4 * os);
	}
}

/* Computes oc, mc, lc of one or two blocks of rows, from row r0 on, over a chunk that starts at
 * pos0. */
LLMC_INLINE void
mla_amx_rows(const Mla a, int two, MlaTile *t, const MlaPages *p, int pos0, int r0)
{
	const uint8_t *q =
	    (const uint8_t *)t->q + (size_t)(r0 / MLA_TR * mla_steps(a)) * 2 * AMX_TILE;

	mla_amx_scores(a, two, p, q, r0 == 0, t->ring, t->w + r0 * MLA_CHUNK);
	for (int b = 0; b <= two; b++) {
		int see[MLA_TR], whole = 1, first = r0 + b * MLA_TR;
		vi lanes;
		for (int r = 0; r < MLA_TR; r++) { /* results of padding rows are not read */
			see[r] = first + r < t->rows ? t->range[(first + r) / t->n_head].hi - pos0
			                             : MLA_CHUNK;
			whole &= see[r] >= MLA_CHUNK;
		}
		memcpy(&lanes, see, sizeof lanes);
		mla_amx_softmax(t->w + first * MLA_CHUNK, lanes, whole, t->mc + first,
		                t->lc + first, t->weights + b * MLA_WEIGHT);
	}
	mla_amx_sums(a, two, p, t->weights, r0 == 0, t->ring, t->oc + r0 * mla_os(a));
}

/* Computes oc, mc, lc of a chunk with n positions, for all rows of a tile. */
LLMC_INLINE void
mla_amx_chunk(const Mla a, MlaTile *t, int pos0, int n)
{
	MlaPages p = { .n = n };

	for (int half = 0; half < 2; half++) {
		const int at = pos0 + half * KV_PAGE, end = t->range[t->n_tok - 1].hi;
		if (half * KV_PAGE < n)
			p.page[half] = kv_page(t->s, t->pool, a.page_bytes, t->seq, at / KV_PAGE);
		if (at + MLA_CHUNK < end)
			p.next[half] = kv_page(t->s, t->pool, a.page_bytes, t->seq,
			                       (at + MLA_CHUNK) / KV_PAGE);
		if (kv_grouped(a.kv) && p.page[half])
			kv_scales_v(a.kv, mla_width(a), p.page[half], p.scale[half]);
	}
	amx_begin(MLA_TR, 64);
	for (int r0 = 0; r0 < t->rows; r0 += 2 * MLA_TR)
		mla_amx_rows(a, r0 + MLA_TR < t->rows, t, &p, pos0, r0);
	amx_end();
}

#endif

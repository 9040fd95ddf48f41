/* Attention on tile registers, where keys and values are f16 or bf16 and at least four query heads share them: the sums of cpu_attention.h with other products.
 *
 * A half is exactly two parts of bf16, hi + lo; queries and weights become two parts each, relative error 2^-17. Products of lo and lo are left
 * out. A score adds over dimensions by 32: q_hi k_hi, q_lo k_hi, q_hi k_lo; a sum over positions by 32 likewise; each in the order of the
 * instruction. What meets in one lane pair is element i and element i + 16 of 32, so that parts of 32 numbers are made without moving any:
 *
 *   q   [block of 16 rows][32 of dim][hi, lo]  tiles of A           --+
 *   K of a page --parts--> [16 keys][32 of dim][hi, lo]  tiles of B --+--> s [32][128] --softmax, parts--> P [block][page][hi, lo]  tiles of A --+
 *   V of a page --parts--> [16 of v_dim][page][hi, lo]  tiles of B  -----------------------------------------------------------------------------+--> oc
 *
 * Two blocks of rows meet two tiles of B at a time: four chains of dots, a load for each of the first, so none waits for the one before it. By count 32 rows take 384 dots
 * of 16 cycles for a chunk of 128 positions and 64 dimensions, where fp32 takes 33,000 products of vectors; parts of K and V are made once for
 * up to ATT_AMX_R rows.
 *
 * Measured beside cpu-v4's form, one thread of an Intel Xeon with AMX that others used, medians of paired rounds: 128 tokens at depth 16384, 32 heads of
 * 64 over 8, 2.4 times as fast (224 GFLOP/s at best); at 8192, 32 heads of 128 over 4, 2.6 times (292). A row alone is slower, parts are most of it: 0.57 of v4's rate from the caches where
 * four heads share keys, 0.88 where eight do, 0.72 from memory at 16384 (four). Making parts between the dots of those before gained nothing. */
#ifndef LLMC_CPU_ATTENTION_AMX_H
#define LLMC_CPU_ATTENTION_AMX_H

#include "common/cpu_amx_regs.h"

enum {
	ATT_AMX_R = 256,        /* rows of a tile of tokens and heads, at most */
	ATT_AMX_B = 16,         /* rows of a block */
};

/* parts of an element of the cache */
LLMC_INLINE int
att_amx_parts(const int type)
{
	return type == KV_bf16 ? 1 : 2;
}

/* tiles along a key */
LLMC_INLINE int
att_amx_steps(const int dim)
{
	return (dim + 31) / 32;
}

/* bytes of the keys, and of the values, of a chunk in parts; of a tile of values, the chunk's */
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

/* --- parts ------------------------------------------------------------------------------------------------------------------- */
/* Row r of a block's queries: x, of whole 32, zeros behind dim */
LLMC_INLINE void
att_amx_query(const Att a, const float *x, int r, uint8_t *block)
{
	for (int i = 0; i < att_amx_steps(a.dim); i++)
		amx_put_rounded(vf_load(x + i * 32), vf_load(x + i * 32 + 16), block + i * 2 * AMX_TILE + r * 64);
}

/* Asks memory for sixteenth i of a plane that is read soon, or NULL */
LLMC_INLINE void
att_amx_ask(const char *next, const int bytes, int i)
{
	const int lines = bytes / 64;

	if (next)
		for (int at = i * lines / 16; at < (i + 1) * lines / 16; at++)
			__builtin_prefetch(next + at * 64);
}

/* Row i of the tiles of 32 dimensions `step` of a page's keys: [16 keys][32 of dim][parts] tiles */
LLMC_INLINE void
att_amx_keys_row(const Att a, const char *k, int step, int i, uint8_t *to)
{
	const int parts = att_amx_parts(a.kv.k), steps = att_amx_steps(a.dim), whole = a.dim % 32 == 0, d = step * 32 + i, e = d + 16;

	LLMC_EACH(t, 2, 2) {
		vf x = { 0 }, y = { 0 };
		if (whole || d < a.dim)
			x = kv_load(a.kv.k, k, d * KV_PAGE + t * 16);
		if (whole || e < a.dim)
			y = kv_load(a.kv.k, k, e * KV_PAGE + t * 16);
		amx_put_exact(parts, x, y, to + (t * steps + step) * parts * AMX_TILE + i * 64);
	}
}

LLMC_INLINE void
att_amx_keys(const Att a, const char *k, const char *next, uint8_t *to)
{
	for (int step = 0; step < att_amx_steps(a.dim); step++)
		for (int i = 0; i < 16; i++) {
			if (step == 0)
				att_amx_ask(next, (int)kv_plane(a.kv.k, a.dim), i);
			att_amx_keys_row(a, k, step, i, to);
		}
}

/* Row i of the tiles of n_d values from d0 on of a page, of which n positions, or all, hold something; to: the page's place in a tile of the first */
LLMC_INLINE void
att_amx_values_row(const Att a, const int all, const char *v, int n, int d0, int n_d, int i, uint8_t *to)
{
	for (int d = d0; d < d0 + n_d; d += VL) {
		vf x = { 0 }, y = { 0 };
		if (all || i < n)
			x = kv_val(a.kv.v, a.v_dim, v, i, d, NULL);
		if (all || i + 16 < n)
			y = kv_val(a.kv.v, a.v_dim, v, i + 16, d, NULL);
		amx_put_exact(att_amx_parts(a.kv.v), x, y, to + (d - d0) / VL * att_amx_value_tile(a) + i * 64);
	}
}

/* Those of page `page` of a chunk: [16 of v_dim][page][parts] tiles */
LLMC_INLINE void
att_amx_values(const Att a, const char *v, const char *next, int n, int page, int d0, int n_d, uint8_t *to)
{
	to += page * att_amx_parts(a.kv.v) * AMX_TILE;
	for (int i = 0; i < 16; i++) {
		att_amx_ask(next, (int)kv_plane(a.kv.v, a.v_dim), i);
		if (n >= KV_PAGE)
			att_amx_values_row(a, 1, v, n, d0, n_d, i, to);
		else
			att_amx_values_row(a, 0, v, n, d0, n_d, i, to);
	}
}

/* --- products ------------------------------------------------------------------------------------------------------------------ */
/* n steps of 32: one or two blocks of rows (a0, a1: [step][2] tiles) with one or two columns of tiles (b0, b1: [step][parts]), to c0 and c1, rows of which
 * lie c_row bytes apart. */
LLMC_INLINE void
att_amx_dot(const int parts, const int two, const int wide, const uint8_t *a0, const uint8_t *a1, const uint8_t *b0, const uint8_t *b1, int n,
            float *c0, float *c1, int64_t c_row)
{
	AMX_ZERO(0);
	AMX_ZERO(1);
	AMX_ZERO(2);
	AMX_ZERO(3);
/* part `part` of the rows with what lies in 6 and 7 */
#define ATT_AMX_ROWS(part)                                      \
	do {                                                    \
		AMX_LOAD(4, a0 + (part) * AMX_TILE, 64);        \
		AMX_BF16(0, 4, 6);                              \
		if (wide)                                       \
			AMX_BF16(1, 4, 7);                      \
		if (two) {                                      \
			AMX_LOAD(5, a1 + (part) * AMX_TILE, 64); \
			AMX_BF16(2, 5, 6);                      \
			if (wide)                               \
				AMX_BF16(3, 5, 7);              \
		}                                               \
	} while (0)
	for (int i = 0; i < n; i++) {
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
		a0 += 2 * AMX_TILE;
		a1 += 2 * AMX_TILE;
		b0 += parts * AMX_TILE;
		b1 += parts * AMX_TILE;
	}
#undef ATT_AMX_ROWS
	AMX_STORE(0, c0, c_row);
	if (wide)
		AMX_STORE(1, c0 + 16, c_row);
	if (two) {
		AMX_STORE(2, c1, c_row);
		if (wide)
			AMX_STORE(3, c1 + 16, c_row);
	}
}

/* Scores of one or two blocks with the keys of pages [first, last) of a chunk: s [16 or 32][128] */
LLMC_INLINE void
att_amx_scores(const Att a, const int two, const uint8_t *q, const uint8_t *keys, int first, int last, float *s)
{
	const int parts = att_amx_parts(a.kv.k), steps = att_amx_steps(a.dim), tile = steps * parts * AMX_TILE;

	for (int page = first; page < last; page++)
		att_amx_dot(parts, two, 1, q, q + steps * 2 * AMX_TILE, keys + 2 * page * tile, keys + (2 * page + 1) * tile, steps, s + page * KV_PAGE,
		            s + ATT_AMX_B * ATT_CHUNK + page * KV_PAGE, ATT_CHUNK * 4);
}

enum { ATT_AMX_P = ATT_PAGES * 2 * AMX_TILE }; /* bytes of a block's weights */

/* oc [16 or 32][vs] of the weights of pages [first, last) of a chunk and its values */
LLMC_INLINE void
att_amx_sums(const Att a, const int two, const uint8_t *p, const uint8_t *values, int first, int last, float *oc)
{
	const int vs = att_vs(a), parts = att_amx_parts(a.kv.v), tile = att_amx_value_tile(a);
	int d = 0;

	p += first * 2 * AMX_TILE;
	values += first * parts * AMX_TILE;
	for (; d + 32 <= vs; d += 32, values += 2 * tile)
		att_amx_dot(parts, two, 1, p, p + ATT_AMX_P, values, values + tile, last - first, oc + d, oc + ATT_AMX_B * vs + d, vs * 4);
	if (d < vs)
		att_amx_dot(parts, two, 0, p, p + ATT_AMX_P, values, values, last - first, oc + d, oc + ATT_AMX_B * vs + d, vs * 4);
}

/* --- a chunk of one row, whose heads are a block: what is in parts stays in the nearest cache --------------------------------- */
enum { ATT_AMX_V = 32 };        /* values at once */

/* s [heads][128]; k, next: planes of pages [first, last), and ones to be read soon */
LLMC_INLINE void
att_amx_row_scores(const Att a, const uint8_t *q, const char *const *k, const char *const *next, int n, uint8_t *keys, float *s)
{
	for (int page = 0; page < n; page++) {
		att_amx_keys(a, k[page], next[page], keys);
		att_amx_scores(a, 0, q, keys, 0, 1, s + page * KV_PAGE);
	}
}

/* oc [heads][vs] of pages [first, last), n of whose positions from first on hold something */
LLMC_INLINE void
att_amx_row_sums(const Att a, const uint8_t *p, const char *const *v, const char *const *next, int first, int last, int n, uint8_t *values, float *oc)
{
	const int vs = att_vs(a), parts = att_amx_parts(a.kv.v), tile = att_amx_value_tile(a);

	p += first * 2 * AMX_TILE;
	for (int d = 0; d < vs; d += ATT_AMX_V) {
		const int n_d = a.v_dim - d < ATT_AMX_V ? a.v_dim - d : ATT_AMX_V;
		for (int page = first; page < last; page++)
			att_amx_values(a, v[page], d == 0 ? next[page] : NULL, n - (page - first) * KV_PAGE, page - first, d, n_d, values);
		if (d + ATT_AMX_V <= vs)
			att_amx_dot(parts, 0, 1, p, p, values, values + tile, last - first, oc + d, oc, vs * 4);
		else
			att_amx_dot(parts, 0, 0, p, p, values, values, last - first, oc + d, oc, vs * 4);
	}
}

/* --- rows ------------------------------------------------------------------------------------------------------------------------ */
/* att_softmax of pages [first, last) of a chunk, lo < hi among them; weights in parts to row r of the block p */
LLMC_INLINE void
att_amx_softmax(const Att a, float *s, int first, int last, int pos0, int lo, int hi, int pos, float slope, uint8_t *p, int r, float *m_out, float *l_out)
{
	const vf none = vf_set1(-__builtin_inff());
	const int whole = lo <= first * KV_PAGE && hi >= last * KV_PAGE && !(a.cap > 0) && !(a.alibi > 0);
	vf top = none, sum = vf_set1(0);

	if (whole)
		for (int j = first * KV_PAGE; j < last * KV_PAGE; j += VL)
			top = vf_max(top, vf_load(s + j));
	else
		for (int j = first * KV_PAGE; j < last * KV_PAGE; j += VL) {
			vf v = vf_load(s + j);
			vi at = vi_iota() + vi_set1(j);
			if (a.cap > 0)
				v = vf_set1(a.cap) * vf_tanh(v * vf_set1((float)(1 / (double)a.cap)));
			if (a.alibi > 0)
				v = vf_fma(vf_set1(slope), __builtin_convertvector(at + vi_set1(pos0 - pos), vf), v);
			v = vf_pick((vi)(at >= vi_set1(lo)) & (vi)(at < vi_set1(hi)), v, none);
			vf_store(s + j, v);
			top = vf_max(top, v);
		}
	const float m = vf_hmax(top);
	p += r * 64;
	for (int page = first; page < last; page++) {
		const vf x = vf_exp(vf_load(s + page * KV_PAGE) - vf_set1(m)), y = vf_exp(vf_load(s + page * KV_PAGE + VL) - vf_set1(m));
		sum += x;
		sum += y;
		amx_put_rounded(x, y, p + page * 2 * AMX_TILE);
	}
	*m_out = m;
	*l_out = vf_hsum(sum);
}

/* A row that sees nothing of pages [first, last) */
LLMC_INLINE void
att_amx_unseen(int first, int last, uint8_t *p, int r)
{
	for (int i = 2 * first; i < 2 * last; i++)
		memset(p + i * AMX_TILE + r * 64, 0, 64);
}

/* att_merge of the rows of a block whose lc is not 0 */
LLMC_INLINE void
att_amx_merge(const int vs, float *m, float *l, float *o, const float *mc, const float *lc, const float *oc)
{
	const vf was = vf_load(m), is = vf_load(mc), top = vf_pick((vi)(was > is), was, is), sum = vf_load(lc), before = vf_load(l);
	const vf a = vf_exp(was - top), b = vf_exp(is - top);
	const vi add = (vi)(sum != vf_set1(0)), begin = (vi)(before == vf_set1(0));
	float    by[VL], with[VL];

	vf_store(by, a);
	vf_store(with, b);
	vf_store(m, vf_pick(add, vf_pick(begin, is, top), was));
	vf_store(l, vf_pick(add, vf_pick(begin, sum, vf_fma(before, a, sum * b)), before));
	for (int r = 0; r < ATT_AMX_B; r++, o += vs, oc += vs) {
		if (!add[r])
			continue;
		if (begin[r])
			for (int d = 0; d < vs; d += VL)
				vf_store(o + d, vf_load(oc + d));
		else
			for (int d = 0; d < vs; d += VL)
				vf_store(o + d, vf_fma(vf_load(o + d), vf_set1(by[r]), vf_load(oc + d) * vf_set1(with[r])));
	}
}

#endif

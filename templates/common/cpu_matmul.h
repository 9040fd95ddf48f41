/* x w^T for the ops that contain one: which thread does what, activations, rows. Before inclusion: COLS, ACT_BITS, W_<dtype>,
 * LLMC_TARGET_<target>, and of the norm (cpu_norm.h).
 *
 * A kernel's work is tokens x units (a unit is whatever rows its epilogue needs together). Few tokens: each thread prepares all
 * of them, for itself, and takes its share of the units. Many: each takes its share of the tokens and all units. Neither
 * changes a result. Tokens are taken MM_TOKENS at a time:
 *
 *	mm_work m = mm_begin(n_tok, units, part, n_parts, scratch);
 *	for (int t0 = m.tok; t0 < m.tok_end; t0 += MM_TOKENS) {
 *		mm_tokens(&m, t0, ...);                       norm and quantise rows t0 .. t0 + m.n
 *		for (int u = m.unit; u < m.unit_end; u++) {
 *			mm_rows(&m, w, row, rows, out, ld);   out[t][r], whole groups: row is a multiple of VL
 *			...
 *
 * Scratch: COLS * 512 bytes a thread. */
#ifndef LLMC_CPU_MATMUL_H
#define LLMC_CPU_MATMUL_H

#include "common/cpu_norm.h"
#include "common/cpu_tile.h"
#include "common/llmc_step.h"

enum {
	MM_TOKENS = COLS > 4096 ? 48 : 96,
	MM_SPLIT_TOKENS = 32,            /* tokens a thread must have before tokens are split */
	MM_UNIT = 32,                    /* rows of a unit where the epilogue has no wish */
};
#if W_FLOAT
_Static_assert(MM_TOKENS * (int64_t)ACT_ROW_BYTES + 4 * COLS <= 512 * (int64_t)COLS, "scratch");
#else
_Static_assert(MM_TOKENS * (ACT_ROW_BYTES + W_BLOCKS * (8LL + 4 * W_HALVES)) + 4 * COLS <= 512LL * COLS, "scratch");
#endif

typedef struct mm_work {
	int      tok, tok_end, unit, unit_end;
	int      n;                      /* tokens in hand */
	act_rows act;
	float   *row;                    /* [COLS] a normed row */
} mm_work;

LLMC_INLINE int
mm_share(int n, int part, int n_parts)
{
	return (int)((int64_t)n * part / n_parts);
}

LLMC_INLINE mm_work
mm_begin(int n_tok, int units, int part, int n_parts, void *scratch)
{
	uint8_t *p = (uint8_t *)scratch + (size_t)part * COLS * 512;
	mm_work m = { .tok = 0, .tok_end = n_tok, .unit = 0, .unit_end = units };

	if (n_tok >= n_parts * MM_SPLIT_TOKENS) {
		m.tok = mm_share(n_tok, part, n_parts);
		m.tok_end = mm_share(n_tok, part + 1, n_parts);
	} else {
		m.unit = mm_share(units, part, n_parts);
		m.unit_end = mm_share(units, part + 1, n_parts);
	}
	if (m.unit == m.unit_end)
		m.tok_end = m.tok;
	m.row = (float *)(void *)p;
	p += COLS * sizeof(float);
#if !W_FLOAT
	const size_t n = MM_TOKENS * (size_t)W_BLOCKS;
	m.act.d = (float *)(void *)p;
	m.act.s = m.act.d + n;
	m.act.z = (int32_t *)(void *)(m.act.s + n);
	p += (2 + W_HALVES) * n * sizeof(float);
#endif
	m.act.q = p;
	return m;
}

/* The stream's first bytes, asked for before the norm, which takes about as long as they do. */
LLMC_INLINE void
mm_warm(const mm_work *m, const uint8_t *w, int64_t row)
{
	if (m->tok < m->tok_end)
		for (int i = 0; i < STREAM_AHEAD; i += 64)
			__builtin_prefetch(w + row / VL * W_GROUP_BYTES + i);
}

/* Take rows from t0 on, normed; index: of which rows of x (NULL: themselves) */
static __attribute__((noinline)) void
mm_tokens(mm_work *m, int t0, const float *x, const int32_t *index, const float *nw, const float *nb)
{
	m->n = m->tok_end - t0 < MM_TOKENS ? m->tok_end - t0 : MM_TOKENS;
	for (int t = 0; t < m->n; t++) {
		const float *in = x + (int64_t)(index ? index[t0 + t] : t0 + t) * COLS;
#if W_FLOAT
		float *to = (float *)(void *)(m->act.q + (size_t)t * ACT_ROW_BYTES);
		const float *normed = norm_row(in, nw, nb, to);
		if (normed != to)
			memcpy(to, normed, COLS * sizeof *to);
#else
		act_quantise(&m->act, t, norm_row(in, nw, nb, m->row), m->n <= STREAM_TOKENS);
#endif
	}
}

static __attribute__((noinline)) void
mm_rows(const mm_work *m, const uint8_t *weights, int64_t row, int rows, float *out, int ld)
{
	const uint8_t *w = weights + row / VL * W_GROUP_BYTES;
	int groups = (rows + VL - 1) / VL;

	if (m->n <= STREAM_TOKENS) {
		stream_rows(w, groups, &m->act, m->n, out, ld);
	} else {
		tile_sum sum[MM_TOKENS];
		for (int g = 0; g < groups; g += TILE_H)
			tile_rows(w + g * W_GROUP_BYTES, groups - g < TILE_H ? groups - g : TILE_H, &m->act, m->n, sum,
			          out + g * VL, ld);
	}
}

LLMC_INLINE vf
mm_get(const float *x, int n)
{
	if (n >= VL)
		return vf_load(x);
	return vf_load_n(x, n);
}

/* v + bias of n rows from `row` on; bias may be NULL */
LLMC_INLINE vf
mm_bias(vf v, const float *bias, int64_t row, int n)
{
	if (bias)
		v += mm_get(bias + row, n);
	return v;
}

/* vectors of the n rows of a unit, of each token */
#define MM_EACH(t, r, n_tok, n)            \
	for (int t = 0; t < (n_tok); t++)  \
		for (int r = 0; r < (n); r += VL)

LLMC_INLINE void
mm_put(float *y, vf v, int n)
{
	if (n >= VL)
		vf_store(y, v);
	else
		vf_store_n(y, v, n);
}

#endif

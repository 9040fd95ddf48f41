/* Products x w^T for the ops that contain them: which thread does what, activations, rows.
 *
 *   x --norm, quantise: name_tokens--> activations of up to mm_most tokens in the thread's scratch
 *                                               |
 *   w --------------------------------> name_rows: up to STREAM_TOKENS tokens: GEMV, cpu_stream.h
 *                                               |    more: GEMM, cpu_tile.h, on tile registers cpu_amx.h, cpu_amx_bf16.h
 *                                       out[t][r] of a unit, fp32, in the nearest cache --> the op's epilogue
 *
 * A kernel's work is tokens x units (a unit is whatever rows its epilogue needs together). Few tokens: each thread prepares all
 * of them, for itself, and takes its share of the units. Many: each takes its share of the tokens and all units. Neither
 * changes a result.
 *
 * PRODUCT(name, format, columns, bits of activations) makes the functions of one kind of matrix, any number of them in a file; which
 * matrix of that kind is meant (a layer's, an expert's) is a pointer:
 *
 *	PRODUCT(down, W_q4_k, 1536, 16)
 *	...
 *	mm_work m = mm_begin(down, n_tok, units, part, n_parts, scratch);
 *	for (int t0 = m.tok; t0 < m.tok_end; t0 += m.n) {
 *		down_tokens(&m, t0, ...);                       norm and quantise rows t0 .. t0 + m.n
 *		for (int u = m.unit; u < m.unit_end; u++) {
 *			down_rows(&m, w, row, rows, out, ld);   out[t][r], whole groups: row is a multiple of VL
 *			...
 *
 * Rows that lie anywhere are taken one by one: m = mm_place(down(), part, scratch); m.n = their number; down_token(&m, t, row, norm).
 *
 * PRODUCT_WHOLE is the same for calls with whole tiles of tokens only (a multiple of MM_WHOLE): C compilers see a third of the functions.
 *
 * Scratch: mm_scratch bytes a column and thread, which the heads say as SCRATCH. Bytes of a call: w once, or once a thread when tokens are split. */
#ifndef LLMC_CPU_MATMUL_H
#define LLMC_CPU_MATMUL_H

#include "common/cpu_math_share.h"
#include "common/cpu_norm.h"
#include "common/cpu_amx_bf16.h"

enum {
	MM_TOKENS = TILE_TOKENS,         /* prepared at a time, at most */
	MM_SPLIT_TOKENS = 32,            /* tokens a thread must have before tokens are split */
	MM_WHOLE = MM_TOKENS > 96 ? 16 : TILE_T, /* tokens of a whole tile */
	MM_UNIT = 32,                    /* rows of a unit where the epilogue has no wish */
	MM_SCRATCH = 512,
	MM_CACHE = 1600 * 1024,          /* with tiles: bytes of activations in hand, for a second cache of 2 MiB */
	MM_CACHE_PLAIN = 2200 * 1024,    /* of plain bf16 and more than 4096 columns, beside weights that take longest to unpack: 8192 columns have 128 tokens */
	MM_CACHE_WIDE = 1100 * 1024,     /* the same beside 16-bit weights, of which four times as much passes through it */
};

typedef struct mm_work {
	int      tok, tok_end, unit, unit_end;
	int      n;                      /* tokens in hand */
	act_rows act;
	float   *row;                    /* [cols] a normed row */
} mm_work;

/* scratch of a column and thread, in bytes */
LLMC_INLINE int
mm_scratch(const Product p)
{
	return MM_TOKENS > 96 && p.cols <= 2048 ? 2 * MM_SCRATCH : MM_SCRATCH;
}

/* tokens prepared at a time: their activations fit the second cache and the scratch; whole pairs of tiles where there are many */
LLMC_INLINE int
mm_most(const Product p)
{
	const int scales = w_is_float(p.w) || act_is_bf16(p) ? 0 : (1 + 2 * p.w.halves) * p_blocks(p) * 4, token = act_row_bytes(p) + scales;
	const int room = (p.cols * mm_scratch(p) - p.cols * 4) / token;
	const int cache = p.act_plain ? p.cols > 4096 ? MM_CACHE_PLAIN : MM_CACHE : p.w.bits == 16 ? MM_CACHE_WIDE : MM_CACHE;
	int most = MM_TOKENS == 96 ? p.cols > 4096 ? MM_TOKENS / 2 : MM_TOKENS : cache / token;

	most = most < room ? most : room;
	most = most < MM_TOKENS ? most : MM_TOKENS;
	/* so that tiles with rows that do not exist have room as well */
	return most >= 64 ? most / 32 * 32 : most >= 16 ? most / 16 * 16 : most >= 12 ? 12 : most >= 8 ? 8 : most;
}

LLMC_INLINE int
mm_units(int rows)
{
	return (rows + MM_UNIT - 1) / MM_UNIT;
}

LLMC_INLINE int
mm_unit_rows(int rows, int unit)
{
	return rows - unit * MM_UNIT < MM_UNIT ? rows - unit * MM_UNIT : MM_UNIT;
}

/* The part's memory, and nothing else yet */
LLMC_INLINE mm_work
mm_place(const Product p, int part, void *scratch)
{
	uint8_t *at = (uint8_t *)scratch + (size_t)part * (size_t)p.cols * (size_t)mm_scratch(p);
	mm_work m = { 0 };

	m.row = (float *)(void *)at;
	at += (size_t)p.cols * sizeof(float);
	if (!w_is_float(p.w) && !act_is_bf16(p)) {
		const size_t n = (size_t)mm_most(p) * (size_t)p_blocks(p);
		m.act.d = (float *)(void *)at;
		m.act.s = m.act.d + n;
		m.act.z = (int32_t *)(void *)(m.act.s + n * (size_t)p.w.halves);
		at += (1 + 2 * (size_t)p.w.halves) * n * sizeof(float);
	}
	m.act.q = at;
	return m;
}

LLMC_INLINE mm_work
mm_begin(const Product p, int n_tok, int units, int part, int n_parts, void *scratch)
{
	mm_work m = mm_place(p, part, scratch);

	m.tok_end = n_tok;
	m.unit_end = units;
	if (n_tok >= n_parts * MM_SPLIT_TOKENS) {
		Share t = share_rows(n_tok, part, n_parts);
		m.tok = (int)t.from;
		m.tok_end = (int)t.to;
	} else {
		Share u = share_rows(units, part, n_parts);
		m.unit = (int)u.from;
		m.unit_end = (int)u.to;
	}
	if (m.unit == m.unit_end)
		m.tok_end = m.tok;
	return m;
}

/* The stream's first bytes, asked for before the norm, which takes about as long as they do. */
LLMC_INLINE void
mm_warm(const Product p, const mm_work *m, const uint8_t *w, int64_t row)
{
	if (m->tok < m->tok_end)
		for (int i = 0; i < STREAM_AHEAD; i += 64)
			__builtin_prefetch(w + row / VL * w_group_bytes(p.w, p.cols) + i);
}

/* a GEMV? */
LLMC_INLINE int
mm_streams(const Product p, const mm_work *m)
{
	return !p.whole && m->n <= STREAM_TOKENS;
}

/* the activations of the m->n rows in hand */
LLMC_INLINE act_rows
mm_act(const Product p, const mm_work *m)
{
	act_rows a = m->act;

	a.tile = act_tile_rows(p, m->n, mm_streams(p, m));
	return a;
}

/* Take the row `in`, normed, as row t of the m->n in hand */
LLMC_INLINE void
mm_token(const Product p, const mm_work *m, int t, const float *in, const Norm norm)
{
	const act_rows a = mm_act(p, m);

#if defined(LLMC_TILES)
	if (act_is_bf16(p)) {
		act_split(p, &a, t, norm_row(norm, in, p.cols, m->row));
		return;
	}
#endif
	if (w_is_float(p.w)) {
		float *to = (float *)(void *)(m->act.q + (size_t)t * (size_t)act_row_bytes(p));
		const float *normed = norm_row(norm, in, p.cols, to);
		if (normed != to)
			memcpy(to, normed, (size_t)p.cols * sizeof *to);
	} else {
		act_quantise(p, &a, t, norm_row(norm, in, p.cols, m->row), mm_streams(p, m));
	}
}

typedef void mm_token_fn(const mm_work *m, int t, const float *in, Norm norm);
typedef void mm_rows_fn(const mm_work *m, const uint8_t *w, int64_t row, int rows, float *out, int ld);

/* Take rows from t0 on, normed; index: of which rows of x (NULL: themselves) */
LLMC_INLINE void
mm_tokens(const Product p, mm_token_fn *token, mm_work *m, int t0, const float *x, const int32_t *index, const Norm norm)
{
	m->n = m->tok_end - t0 < mm_most(p) ? m->tok_end - t0 : mm_most(p);
	for (int t = 0; t < m->n; t++)
		token(m, t, x + (int64_t)(index ? index[t0 + t] : t0 + t) * p.cols, norm);
}

/* functions of cpu_amx.h by tokens of a tile, and of cpu_amx_bf16.h; nothing where there are no tile registers */
typedef struct mm_amx {
#if defined(LLMC_TILES)
	amx_fn *const *dot;
	amx_few_fn *const *few;
	amx_expand_fn *expand;
#else
	int none;
#endif
} mm_amx;

LLMC_INLINE void
mm_rows(const Product p, tile_fn *const *dot, const mm_amx amx, const mm_work *m, const uint8_t *data, int64_t row, int rows, float *out, int ld)
{
	const int64_t group = w_group_bytes(p.w, p.cols);
	const uint8_t *w = data + row / VL * group;
	int groups = (rows + VL - 1) / VL;

	const act_rows a = mm_act(p, m);
#if defined(LLMC_TILES)
	if (act_is_bf16(p)) {
		for (int g = 0; g < groups; g += TILE_H)
			amx_rows_bf16(p, amx.expand, w + g * group, groups - g < TILE_H ? groups - g : TILE_H, &a, m->n, out + g * VL, ld);
		return;
	}
	if (!w_is_float(p.w) && !p.whole && m->n > STREAM_TOKENS && m->n <= AMX_FEW) {
		amx.few[a.tile](w, groups, &a, m->n, out, ld);
		return;
	}
	if (!w_is_float(p.w) && !mm_streams(p, m)) {
		tile_sums sum;
		for (int g = 0; g < groups; g += TILE_H)
			amx_rows(p, amx.dot, w + g * group, groups - g < TILE_H ? groups - g : TILE_H, &a, m->n, &sum, out + g * VL, ld);
		return;
	}
#endif
	(void)amx;
	if (mm_streams(p, m)) {
		stream_rows(p, w, groups, &a, m->n, out, ld);
	} else {
		tile_sums sum;
		for (int g = 0; g < groups; g += TILE_H)
			tile_rows(p, dot, w + g * group, groups - g < TILE_H ? groups - g : TILE_H, &a, m->n, &sum, out + g * VL, ld);
	}
}

/* X(name, tokens) for the sizes that tile_rows cuts more than STREAM_TOKENS into */
#if VL == 16
#define TILE_EACH(X, name) X(name, 4) X(name, 5) X(name, 6) X(name, 7) X(name, 8)
#define TILE_WHOLE(X, name) X(name, 8)
#elif VL == 8
#define TILE_EACH(X, name) X(name, 3) X(name, 4) X(name, 5) X(name, 6)
#define TILE_WHOLE(X, name) X(name, 6)
#else
#define TILE_EACH(X, name) X(name, 2) X(name, 3) X(name, 4)
#define TILE_WHOLE(X, name) X(name, 4)
#endif
#define TILE_DEFINE(name, T)                                                                                                    \
	static __attribute__((noinline)) void name##_tile_##T(const tile_weights *w, int first, int n, const act_rows *a, int t0,   \
	                                                      tile_sums *sum, tile_ahead *ahead)                                    \
	{                                                                                                                           \
		tile_dot(name(), T, w, first, n, a, t0, sum, ahead);                                                                \
	}
#define TILE_ENTRY(name, T) [T] = name##_tile_##T,

/* AMX_EACH(X, name): tokens of a tile of blocks, more than AMX_FEW; AMX_EACH_FEW: at most so many, more than STREAM_TOKENS */
#if defined(LLMC_TILES)
#define AMX_EACH(X, name)                                                                                                       \
	X(name, 12) X(name, 16)
#define AMX_EACH_FEW(X, name) X(name, 6) X(name, 8)
#define AMX_WHOLE(X, name) X(name, 16)
#define AMX_NONE(X, name)
#define AMX_DEFINE(name, T)                                                                                                     \
	static __attribute__((noinline)) void name##_amx_##T(const tile_weights *w, int groups, int first, int n,                   \
	                                                     const act_rows *a, int tiles, tile_sums *sum, tile_ahead *ahead)       \
	{                                                                                                                           \
		if (!w_is_float(name().w) && !act_is_bf16(name()))                                                                  \
			amx_blocks(name(), T, w, groups, first, n, a, tiles, sum, ahead);                                           \
	}
#define AMX_DEFINE_FEW(name, T)                                                                                                 \
	static __attribute__((noinline)) void name##_few_##T(const uint8_t *w, int groups, const act_rows *a, int tokens,           \
	                                                     float *out, int ld)                                                    \
	{                                                                                                                           \
		if (!w_is_float(name().w) && !act_is_bf16(name()))                                                                  \
			amx_few_rows(name(), T, w, groups, a, tokens, out, ld);                                                     \
	}
#define AMX_ENTRY_FEW(name, T) [T] = name##_few_##T,
#define AMX_ENTRY(name, T) [T] = name##_amx_##T,
#define AMX_TABLE(name, each, each_few)                                                                                         \
	each(AMX_DEFINE, name)                                                                                                      \
	each_few(AMX_DEFINE_FEW, name)                                                                                              \
	static __attribute__((noinline)) void name##_expand(amx_work *k)                                                            \
	{                                                                                                                           \
		if (act_is_bf16(name()))                                                                                            \
			amx_expand(name(), k);                                                                                      \
	}                                                                                                                           \
	static amx_fn *const name##_dot[17] = { each(AMX_ENTRY, name) };                                                            \
	static amx_few_fn *const name##_few[AMX_FEW + 1] = { NULL, each_few(AMX_ENTRY_FEW, name) };                                 \
	static const mm_amx  name##_amx = { name##_dot, name##_few, name##_expand };
#else
#define AMX_TABLE(name, each, each_few) static const mm_amx name##_amx = { 0 };
#endif

#define PRODUCT_OF(name, weight, columns, bits, only_whole, each, each_amx, each_few)                                           \
	LLMC_INLINE Product name(void)                                                                                              \
	{                                                                                                                           \
		return (Product){ .w = weight, .cols = (columns), .act_bits = (bits), .act_plain = LLMC_ACT_BF16, .whole = (only_whole) }; \
	}                                                                                                                           \
	each(TILE_DEFINE, name)                                                                                                     \
	AMX_TABLE(name, each_amx, each_few)                                                                                         \
	static __attribute__((noinline)) void name##_token(const mm_work *m, int t, const float *in, Norm norm)                     \
	{                                                                                                                           \
		mm_token(name(), m, t, in, norm);                                                                                   \
	}                                                                                                                           \
	LLMC_INLINE void name##_tokens(mm_work *m, int t0, const float *x, const int32_t *index, Norm norm)                         \
	{                                                                                                                           \
		mm_tokens(name(), name##_token, m, t0, x, index, norm);                                                             \
	}                                                                                                                           \
	static __attribute__((noinline)) void name##_rows(const mm_work *m, const uint8_t *w, int64_t row, int rows, float *out,    \
	                                                  int ld)                                                                   \
	{                                                                                                                           \
		static tile_fn *const dot[TILE_T + 1] = { each(TILE_ENTRY, name) };                                                     \
		mm_rows(name(), dot, name##_amx, m, w, row, rows, out, ld);                                                                 \
	}
#define PRODUCT(name, weight, columns, bits) PRODUCT_OF(name, weight, columns, bits, 0, TILE_EACH, AMX_EACH, AMX_EACH_FEW)
#define PRODUCT_WHOLE(name, weight, columns, bits) PRODUCT_OF(name, weight, columns, bits, 1, TILE_WHOLE, AMX_WHOLE, AMX_NONE)

/* v + bias of n rows from `row` on; bias may be NULL */
LLMC_INLINE vf
mm_bias(vf v, const float *bias, int64_t row, int n)
{
	if (bias)
		v += share_get(bias + row, n);
	return v;
}

/* vectors of the n rows of a unit, of each token */
#define MM_EACH(t, r, n_tok, n)            \
	for (int t = 0; t < (n_tok); t++)  \
		for (int r = 0; r < (n); r += VL)

#endif

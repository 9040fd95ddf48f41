/* Matmul functions of one weight type, for any number of columns: they quantise rows of activations
 * and multiply rows of weights. There is one file per weight type. It is compiled once, and all
 * kernels and models with weights of that type use it. cpu/gemm/matmul.h calls these functions. */
#ifndef LLMC_CPU_GEMM_MATMUL_KERNEL_H
#define LLMC_CPU_GEMM_MATMUL_KERNEL_H

#include "cpu/gemm/matmul.h"
#include "cpu/gemm/amx_bf16.h"
#include "cpu/gemm/tile_rows.h"

/* whether this call is a GEMV */
LLMC_INLINE int
mm_streams(const Product p, const mm_work *m)
{
	return !act_is_bf16(p) && m->n <= STREAM_TOKENS;
}

/* activations of the m->n current rows */
LLMC_INLINE act_rows
mm_act(const Product p, const mm_work *m)
{
	act_rows a = m->act;

	if (mm_streams(p, m))
		a.tile = 1;
	else
		act_cut(p, &a, m->n);
	return a;
}

/* Quantises x as row t of the m->n current rows */
LLMC_INLINE void
mm_next(const Product p, const mm_work *m, int t, const float *x)
{
	const act_rows a = mm_act(p, m);

#if defined(LLMC_TILES)
	if (act_is_bf16(p)) {
		act_split(p, &a, t, x);
		return;
	}
#endif
	if (w_is_float(p.w))
		act_copy(p, &a, t, x);
	else
		act_quantise(p, &a, t, x, mm_streams(p, m));
}

/* functions of cpu/gemm/amx.h by number of tokens per tile, and those of cpu/gemm/amx_bf16.h; empty
 * without AMX */
typedef struct mm_amx {
#if defined(LLMC_TILES)
	amx_fn *const *dot;
	amx_small_m_fn *const *few;
	amx_expand_fn *expand;
#else
	int none;
#endif
} mm_amx;

LLMC_INLINE void
mm_rows(const Product p, tile_fn *const *dot, const mm_amx amx, const mm_work *m,
        const uint8_t *data, int64_t row, int rows, float *out, int ld)
{
	const int64_t group = w_group_bytes(p.w, p.cols);
	const uint8_t *w = data + row / VL * group;
	int groups = (rows + VL - 1) / VL;

	if (mm_streams(p, m)) {
		stream_rows(p, w, groups, &m->act, m->n, out, ld);
		return;
	}
	const act_rows a = mm_act(p, m);
#if defined(LLMC_TILES)
	if (act_is_bf16(p)) {
		for (int g = 0; g < groups; g += TILE_H)
			amx_rows_bf16(p, amx.expand, w + g * group,
			              groups - g < TILE_H ? groups - g : TILE_H, &a, m->n,
			              out + g * VL, ld);
		return;
	}
	if (!w_is_float(p.w) && m->n <= AMX_SMALL_M) {
		amx.few[a.tile](w, groups, &a, m->n, out, ld);
		return;
	}
	if (!w_is_float(p.w)) {
		tile_sums sum;
		for (int g = 0; g < groups; g += TILE_H)
			amx_rows(p, amx.dot, w + g * group,
			         groups - g < TILE_H ? groups - g : TILE_H, &a, m->n, &sum,
			         out + g * VL, ld);
		return;
	}
#endif
	(void)amx;
	tile_sums sum;
	for (int g = 0; g < groups; g += TILE_H)
		tile_rows(p, dot, w + g * group, groups - g < TILE_H ? groups - g : TILE_H, &a,
		          m->n, &sum, out + g * VL, ld);
}

/* X(name, tokens) for all tile sizes that tile_rows uses with more than STREAM_TOKENS tokens */
#if VL == 16
#define TILE_EACH(X, name) X(name, 4) X(name, 5) X(name, 6) X(name, 7) X(name, 8)
#elif VL == 8 || VF_NEON
#define TILE_EACH(X, name) X(name, 3) X(name, 4) X(name, 5) X(name, 6)
#else
#define TILE_EACH(X, name) X(name, 2) X(name, 3) X(name, 4)
#endif
/* Compiled once per number of tokens. The number of columns is an argument. */
#define TILE_DEFINE(name, T)                                                                                                    \
	static __attribute__((noinline)) void name##_tile_##T(const tile_weights *w, int first, int n, const act_rows *a, int t0,   \
	                                                      tile_sums *sum, tile_ahead *ahead)                                    \
	{                                                                                                                           \
		tile_dot(name##_of(a->cols), T, w, first, n, a, t0, sum, ahead);                                                    \
	}
#define TILE_ENTRY(name, T) [T] = name##_tile_##T,

/* AMX_EACH(X, name): for all numbers of tokens per tile above AMX_SMALL_M; AMX_EACH_SMALL_M: for
 * those above STREAM_TOKENS and up to AMX_SMALL_M */
#if defined(LLMC_TILES)
#define AMX_EACH(X, name) X(name, 12) X(name, 16)
#define AMX_EACH_SMALL_M(X, name) X(name, 6) X(name, 8)
#define AMX_DEFINE(name, T)                                                                                                     \
	static __attribute__((noinline)) void name##_amx_##T(const tile_weights *w, int groups, int first, int n,                   \
	                                                     const act_rows *a, int tiles, tile_sums *sum, tile_ahead *ahead)       \
	{                                                                                                                           \
		const Product p = name##_of(a->cols);                                                                               \
		if (!w_is_float(p.w) && !act_is_bf16(p))                                                                            \
			amx_blocks(p, T, w, groups, first, n, a, tiles, sum, ahead);                                                \
	}
#define AMX_DEFINE_SMALL_M(name, T)                                                                                                 \
	static __attribute__((noinline)) void name##_few_##T(const uint8_t *w, int groups, const act_rows *a, int tokens,           \
	                                                     float *out, int ld)                                                    \
	{                                                                                                                           \
		const Product p = name##_of(a->cols);                                                                               \
		if (!w_is_float(p.w) && !act_is_bf16(p))                                                                            \
			amx_small_m_rows(p, T, w, groups, a, tokens, out, ld);                                                          \
	}
#define AMX_ENTRY_SMALL_M(name, T) [T] = name##_few_##T,
#define AMX_ENTRY(name, T) [T] = name##_amx_##T,
#define AMX_TABLE(name)                                                                            \
	AMX_EACH(AMX_DEFINE, name)                                                                 \
	AMX_EACH_SMALL_M(AMX_DEFINE_SMALL_M, name)                                                 \
	static __attribute__((noinline)) void name##_expand(amx_work *k)                           \
	{                                                                                          \
		const Product p = name##_of(k->cols);                                              \
		if (act_is_bf16(p))                                                                \
			amx_expand(p, k);                                                          \
	}                                                                                          \
	static amx_fn *const name##_dot[17] = { AMX_EACH(AMX_ENTRY, name) };                       \
	static amx_small_m_fn *const name##_few[AMX_SMALL_M + 1] = {                               \
		NULL, AMX_EACH_SMALL_M(AMX_ENTRY_SMALL_M, name)                                    \
	};                                                                                         \
	static const mm_amx name##_amx = { name##_dot, name##_few, name##_expand };
#else
#define AMX_TABLE(name) static const mm_amx name##_amx = { 0 };
#endif

/* Defines `name`, the function table of a weight type. odd: the length of rows is not a multiple of
 * 32 columns */
#define PRODUCTS(name, weight, bits, odd)                                                          \
	LLMC_INLINE Product name##_of(int cols)                                                    \
	{                                                                                          \
		return (Product){ .w = weight,                                                     \
			          .cols = cols,                                                    \
			          .ragged = odd,                                                   \
			          .act_bits = (bits),                                              \
			          .act_plain = LLMC_ACT_BF16 };                                    \
	}                                                                                          \
	TILE_EACH(TILE_DEFINE, name)                                                               \
	AMX_TABLE(name)                                                                            \
	static void name##_take(const mm_work *m, int t, const float *row)                         \
	{                                                                                          \
		mm_next(name##_of(m->act.cols), m, t, row);                                        \
	}                                                                                          \
	static void name##_rows(const mm_work *m, const uint8_t *w, int64_t row, int rows,         \
	                        float *out, int ld)                                                \
	{                                                                                          \
		static tile_fn *const dot[TILE_T + 1] = { TILE_EACH(TILE_ENTRY, name) };           \
		mm_rows(name##_of(m->act.cols), dot, name##_amx, m, w, row, rows, out, ld);        \
	}                                                                                          \
	extern const mm_functions name;                                                            \
	const mm_functions name = { name##_take, name##_rows };

#endif

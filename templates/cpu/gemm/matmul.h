/* Matmul x w^T, for all ops that contain one: division of work among threads, quantised
 * activations, rows of results.
 *
 *   x --norm, quantise: name_tokens--> activations of up to mm_most tokens in the thread's scratch
 *                                               |
 *   w --------------------------------> name_rows: up to STREAM_TOKENS tokens: GEMV, cpu/gemm/gemv.h
 *                                               |    more: GEMM, cpu/gemm/gemm_tile.h, on AMX cpu/gemm/amx.h, cpu/gemm/amx_bf16.h
 *                                       out[t][r] of a unit, fp32, in L1 --> the op's epilogue
 *
 * A unit is a number of rows that the op's epilogue needs together. With few tokens, each thread
 * quantises all tokens for itself and processes a share of the units. With many tokens, each thread
 * processes a share of the tokens and all units. The division does not change results.
 *
 * PRODUCT(name, format, columns, bits of activations) defines the functions for one kind of matrix;
 * a template may have several. The matrix itself (of a layer or an expert) is a pointer. The
 * functions call the kernel file of the format (cpu/gemm/matmul_kernel.h). The line `@product name`
 * in the template's head connects the two:
 *
 * 	PRODUCT(down, W_q4_k, 1536, 16)
 * 	...
 * 	mm_work m = mm_begin(down, n_tok, units, part, n_parts, scratch);
 * 	for (int t0 = m.tok; t0 < m.tok_end; t0 += m.n) {
 * 		down_tokens(&m, t0, ...);                       norm and quantise rows t0 .. t0 + m.n
 * 		for (int u = m.unit; u < m.unit_end; u++) {
 * 			down_rows(&m, w, row, rows, out, ld);   out[t][r], whole groups: row is a multiple of VL
 * 			...
 *
 * Rows that are not at consecutive addresses are quantised one at a time: m = mm_place(down(),
 * part, scratch), m.n = number of rows, then down_token(&m, t, row, norm) for each.
 *
 * Scratch: mm_scratch bytes per column and thread; template heads declare it as SCRATCH. Bytes per
 * call: w once, or once per thread if threads divide the tokens. */
#ifndef LLMC_CPU_GEMM_MATMUL_H
#define LLMC_CPU_GEMM_MATMUL_H

#include "cpu/elementwise/partition.h"
#include "cpu/norm/norm.h"
#include "cpu/gemm/quantize_act.h"

enum {
	MM_TOKENS = TILE_TOKENS, /* largest number of tokens quantised at a time */
	MM_SPLIT_TOKENS =
	    32, /* with at least this many tokens per thread, threads divide the tokens */
	MM_WHOLE = MM_TOKENS > 96 ? 16 : TILE_T, /* tokens of a full tile */
	MM_UNIT = 32, /* rows per unit if the epilogue has no preference */
	MM_SCRATCH = 512,
	MM_CACHE =
	    1600 *
	    1024, /* AMX: bytes of quantised activations held at a time, for an L2 of 2 MiB */
	MM_CACHE_PLAIN =
	    /* for plain bf16 activations and more than 4096 columns, with the weights that take the
	     * longest to unpack: 128 tokens of 8192 columns */
	2200 * 1024,
	/* for 16-bit weights, which send four times as many bytes through L2 */
	MM_CACHE_WIDE = 1100 * 1024,
};

typedef struct mm_work {
	int tok, tok_end, unit, unit_end;
	int n; /* number of tokens that are quantised at present */
	act_rows act;
	float *row; /* [cols] one row after the norm */
} mm_work;

/* scratch per column and thread, in bytes */
LLMC_INLINE int
mm_scratch(const Product p)
{
	return MM_TOKENS > 96 && p.cols <= 2048 ? 2 * MM_SCRATCH : MM_SCRATCH;
}

/* Returns the number of tokens quantised at a time. Their activations must fit L2 and the scratch.
 * If there are many, the number is a multiple of two tiles. */
LLMC_INLINE int
mm_most(const Product p)
{
	const int scales = w_is_float(p.w) || act_is_bf16(p)
	                       ? 0
	                       : (1 + 2 * p.w.halves) * p_blocks(p) * 4,
	          token = act_row_bytes(p) + scales;
	const int room = (p.cols * mm_scratch(p) - p.cols * 4) / token;
	const int cache = p.act_plain      ? p.cols > 4096 ? MM_CACHE_PLAIN : MM_CACHE
	                  : p.w.bits == 16 ? MM_CACHE_WIDE
	                                   : MM_CACHE;
	int most = MM_TOKENS == 96 ? p.cols > 4096 ? MM_TOKENS / 2 : MM_TOKENS : cache / token;

	most = most < room ? most : room;
	most = most < MM_TOKENS ? most : MM_TOKENS;
	/* multiples of 32 leave space for tiles with padding rows */
	return most >= 64   ? most / 32 * 32
	       : most >= 16 ? most / 16 * 16
	       : most >= 12 ? 12
	       : most >= 8  ? 8
	                    : most;
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

/* Sets up only the memory of the thread's part. */
LLMC_INLINE mm_work
mm_place(const Product p, int part, void *scratch)
{
	uint8_t *at = (uint8_t *)scratch + (size_t)part * (size_t)p.cols * (size_t)mm_scratch(p);
	mm_work m = { 0 };

	m.act.cols = p.cols;
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

/* Prefetches the first bytes of the weights. Called before the norm, which takes about as long as
 * the fetch. */
LLMC_INLINE void
mm_prefetch(const Product p, const mm_work *m, const uint8_t *w, int64_t row)
{
	if (m->tok < m->tok_end)
		for (int i = 0; i < STREAM_AHEAD; i += 64)
			__builtin_prefetch(w + row / VL * w_group_bytes(p.w, p.cols) + i);
}

typedef void mm_token_fn(const mm_work *m, int t, const float *in, Norm norm);
typedef void mm_rows_fn(const mm_work *m, const uint8_t *w, int64_t row, int rows, float *out,
                        int ld);

/* Functions for one weight type; each kernel file has one such table. */
typedef struct mm_functions {
	/* quantises `row` as row t of the m->n current rows */
	void (*take)(const mm_work *m, int t, const float *row);
	mm_rows_fn *rows;
} mm_functions;

/* Norms and quantises rows from t0 on. index: indices of these rows in x; NULL: consecutive rows */
LLMC_INLINE void
mm_tokens(const Product p, mm_token_fn *token, mm_work *m, int t0, const float *x,
          const int32_t *index, const Norm norm)
{
	m->n = m->tok_end - t0 < mm_most(p) ? m->tok_end - t0 : mm_most(p);
	for (int t = 0; t < m->n; t++)
		token(m, t, x + (int64_t)(index ? index[t0 + t] : t0 + t) * p.cols, norm);
}

/* Defines the functions for one kind of matrix. `name`_functions is the table in the kernel file of
 * its weight type. */
#define PRODUCT(name, weight, columns, bits)                                                       \
	extern const mm_functions name##_functions;                                                \
	LLMC_INLINE Product name(void)                                                             \
	{                                                                                          \
		return (Product){ .w = weight,                                                     \
			          .cols = (columns),                                               \
			          .ragged = (columns) % 32 != 0,                                   \
			          .act_bits = (bits),                                              \
			          .act_plain = LLMC_ACT_BF16 };                                    \
	}                                                                                          \
	static __attribute__((noinline)) void name##_token(const mm_work *m, int t,                \
	                                                   const float *in, Norm norm)             \
	{                                                                                          \
		name##_functions.take(m, t, norm_row(norm, in, (columns), m->row));                \
	}                                                                                          \
	LLMC_INLINE void name##_tokens(mm_work *m, int t0, const float *x, const int32_t *index,   \
	                               Norm norm)                                                  \
	{                                                                                          \
		mm_tokens(name(), name##_token, m, t0, x, index, norm);                            \
	}                                                                                          \
	LLMC_INLINE void name##_rows(const mm_work *m, const uint8_t *w, int64_t row, int rows,    \
	                             float *out, int ld)                                           \
	{                                                                                          \
		name##_functions.rows(m, w, row, rows, out, ld);                                   \
	}

/* v plus the biases of n rows from `row` on; bias may be NULL */
LLMC_INLINE vf
mm_bias(vf v, const float *bias, int64_t row, int n)
{
	if (bias)
		v += share_get(bias + row, n);
	return v;
}

/* Loops over the tokens of a unit, and for each token over the vectors of its n rows. */
#define MM_EACH(t, r, n_tok, n)                                                                    \
	for (int t = 0; t < (n_tok); t++)                                                          \
		for (int r = 0; r < (n); r += VL)

#endif

/* MoE: sorts the rows of x of a step by selected expert, and divides the rows of the experts'
 * matrices among threads.
 *
 *   id [n_tok][top_k] --moe_count--> number of rows per expert
 *                                        |
 *   units of all experts in sequence, cost of each: its rows of x --moe_schedule--> parts, equal shares of the cost
 *                                        |
 *   rows of an expert, in step order, --moe_gather_row, moe_chunk at a time--> rows of x by address
 *                                        |
 *                            matmuls of cpu/gemm/matmul.h, as for any other matrix
 *
 * A unit is 32 rows of one expert's matrix, a part is the share of one thread. The sums of a row do
 * not depend on the division into parts or on other rows. The shared expert is treated as one more
 * expert, which all rows select. An expert may begin inside a row group; the rows of the group
 * before it are computed too, but not used.
 *
 * Bytes: the matrices of each selected expert once per mm_most rows of x. */
#ifndef LLMC_CPU_MOE_MOE_H
#define LLMC_CPU_MOE_MOE_H

#include "cpu/gemm/matmul.h"

enum {
	MOE_FETCH = 4, /* cost of fetching and unpacking a unit, as a number of rows of x */
};

/* Counts the choices of each expert over n choices: count[e]. Indices outside of the range belong
 * to experts of other ranks. */
LLMC_INLINE void
moe_count(const int32_t *id, int n, int n_experts, int32_t *count)
{
	memset(count, 0, (size_t)n_experts * sizeof *count);
	for (int i = 0; i < n; i++)
		if (id[i] >= 0)
			count[id[i]]++;
}

/* Finds the next n choices of expert e, from *at on, and returns their indices in id. So many must
 * exist. */
LLMC_INLINE void
moe_gather_row(const int32_t *id, int all, int e, int n, int *at, int32_t *choice)
{
	int i = *at, k = 0;

	while (k < n) {
		/* If there are many experts, most choices are of other experts, so 16 are skipped
		 * at a time. */
		for (int any = 0; i + 16 <= all; i += 16) {
			for (int j = 0; j < 16; j++)
				any |= id[i + j] == e;
			if (any)
				break;
		}
		for (int end = i + 16 < all ? i + 16 : all; i < end && k < n; i++)
			if (id[i] == e)
				choice[k++] = i;
	}
	*at = i;
}

/* Returns the number of rows per chunk of an expert, for as few chunks as possible, of equal
 * size. */
LLMC_INLINE int
moe_chunk(const Product p, int n)
{
	int chunks = (n + mm_most(p) - 1) / mm_most(p);

	return (n + chunks - 1) / chunks;
}

/* --- division of all experts' units into parts --- */
typedef struct moe_schedule {
	int64_t from, to,
	    at; /* from, to: range of costs that this part has; at: cost of the experts so far */
} moe_schedule;

LLMC_INLINE int64_t
moe_cost(int n, int units)
{
	return n ? (int64_t)(MOE_FETCH + n) * units : 0;
}

LLMC_INLINE moe_schedule
moe_schedule_begin(int64_t cost, int part, int n_parts)
{
	return (moe_schedule){ cost * part / n_parts, cost * (part + 1) / n_parts, 0 };
}

/* Returns the units of the next expert that belong to this part. n: number of rows that selected
 * the expert. Ranges of neighbouring parts are contiguous. */
LLMC_INLINE Share
moe_schedule_next(moe_schedule *d, int n, int units)
{
	const int64_t each = MOE_FETCH + n, from = d->from - d->at, to = d->to - d->at;
	Share s = { from > 0 ? (from + each - 1) / each : 0, to > 0 ? (to + each - 1) / each : 0 };

	if (n == 0)
		return (Share){ 0, 0 };
	d->at += each * units;
	s.from = s.from < units ? s.from : units;
	s.to = s.to < units ? s.to : units;
	return s;
}

/* --- an expert's matrix --- */
typedef struct moe_matrix {
	mm_work *m; /* contains the current rows of x */
	mm_rows_fn *rows;
	const uint8_t *w;
	int64_t first; /* first row of the expert in the stacked matrix */
} moe_matrix;

/* Computes out[t][r] for rows row .. row + n of the expert. Returns the address of row `row` in
 * out. Rows of out are ld apart, which must be at least n plus a row group. */
LLMC_INLINE const float *
moe_rows(const moe_matrix *w, const int aligned, int row, int n, float *out, int ld)
{
	const int shift = aligned ? 0 : (int)((w->first + row) % VL);

	w->rows(w->m, w->w, w->first + row - shift, n + shift, out, ld);
	return out + shift;
}

#endif

/* Experts: rows of a step sorted by the expert that they chose, and which part runs which of an
 * expert's rows.
 *
 *   id [n_tok][top_k] --moe_count--> how many chose each expert
 *                                        |
 *   the experts' units, one after the other, each as dear as its rows of x --moe_schedule--> parts, equal shares of the cost
 *                                        |
 *   an expert's rows, in the order of the step, --moe_gather_row, moe_chunk at a time--> x's rows by their addresses
 *                                        |
 *                            cpu/gemm/matmul.h's products, as for any other matrix
 *
 * A unit is 32 rows of one expert. Neither the parts nor the company of a row change its sums. The
 * shared expert is one more, chosen by all rows. An expert may begin inside a group of packed rows:
 * the rows before it are computed too, and nobody reads them.
 *
 * Bytes: each chosen expert once for up to mm_most rows. */
#ifndef LLMC_CPU_MOE_MOE_H
#define LLMC_CPU_MOE_MOE_H

#include "cpu/gemm/matmul.h"

enum {
	MOE_FETCH = 4, /* what it costs to fetch and unpack a unit, in rows of x that meet it */
};

/* count[e] of n choices; numbers that are no expert here are other ranks' */
LLMC_INLINE void
moe_count(const int32_t *id, int n, int n_experts, int32_t *count)
{
	memset(count, 0, (size_t)n_experts * sizeof *count);
	for (int i = 0; i < n; i++)
		if (id[i] >= 0)
			count[id[i]]++;
}

/* The next n choices of expert e among all, from *at on: where they are in id. There are so many.
 */
LLMC_INLINE void
moe_gather_row(const int32_t *id, int all, int e, int n, int *at, int32_t *choice)
{
	int i = *at, k = 0;

	while (k < n) {
		/* most of many are others' */
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

/* rows of an expert taken at a time: as few chunks as hold them, of one size */
LLMC_INLINE int
moe_chunk(const Product p, int n)
{
	int chunks = (n + mm_most(p) - 1) / mm_most(p);

	return (n + chunks - 1) / chunks;
}

/* --- units of all experts dealt to parts --- */
typedef struct moe_schedule {
	int64_t from, to, at; /* this part's share of the cost; the cost of the experts so far */
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

/* The part's units of the next expert, which n rows chose. Shares of neighbouring parts meet at one
 * unit. */
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
	mm_work *m; /* with the rows of x in hand */
	mm_rows_fn *rows;
	const uint8_t *w;
	int64_t first; /* row of the stack that the expert begins with */
} moe_matrix;

/* out[t][r] = rows row .. row + n of the expert: returns where row `row` is in out, whose rows are
 * ld apart: n and a group, at least */
LLMC_INLINE const float *
moe_rows(const moe_matrix *w, const int aligned, int row, int n, float *out, int ld)
{
	const int shift = aligned ? 0 : (int)((w->first + row) % VL);

	w->rows(w->m, w->w, w->first + row - shift, n + shift, out, ld);
	return out + shift;
}

#endif

/* Divides the visible positions of a row into spans, and the spans of decode rows among threads.
 *
 *   row   positions [lo, hi), in chunks at multiples of `chunk`
 *   span  2^k whole chunks, aligned to its size; k is the smallest value with at most `most` spans,
 * so it
 *         depends only on the row
 *   part  one contiguous range of all spans of all units, balanced by page count; a unit is a row
 * and the heads that share its keys
 *
 * A unit may therefore span several parts. Each of these parts stores the results of its spans in
 * scratch and increments a ticket. The last part to arrive merges the spans in order. So no thread
 * waits, and the result does not depend on the order of arrival. The scratch of a part has slots
 * for `most` spans of a unit that began in an earlier part, then for `most` spans of a unit that
 * ends in a later one. A part has 16 integers for tickets, which are zero between calls. */
#ifndef LLMC_CPU_ATTENTION_SPLIT_KV_H
#define LLMC_CPU_ATTENTION_SPLIT_KV_H

#include "cpu/attention/kv_cache.h"

typedef struct Split {
	int chunk, most;
} Split;

typedef struct SplitRange {
	int lo, hi;
} SplitRange;

LLMC_INLINE int
split_shift(const Split p, SplitRange r)
{
	int first = r.lo / p.chunk, last = (r.hi - 1) / p.chunk, shift = 0;

	while ((last >> shift) - (first >> shift) >= p.most)
		shift++;
	return shift;
}

/* Returns the number of a span, counted from the first visible one. */
LLMC_INLINE int
split_spans(const Split p, SplitRange r, int shift)
{
	return ((r.hi - 1) / p.chunk >> shift) - (r.lo / p.chunk >> shift) + 1;
}

typedef struct SplitChunks {
	int first, last;
} SplitChunks;

LLMC_INLINE SplitChunks
split_chunks(const Split p, SplitRange r, int shift, int span)
{
	int first = r.lo / p.chunk, last = (r.hi - 1) / p.chunk, at = (first >> shift) + span;
	SplitChunks c = { at << shift, ((at + 1) << shift) - 1 };

	c.first = c.first < first ? first : c.first;
	c.last = c.last > last ? last : c.last;
	return c;
}

/* ---- division into parts ---- */
enum { SPLIT_ITEM = 2 }; /* fixed cost of a span, in pages */

typedef struct SplitCost {
	int first_page, last_page, shift, n_span;
} SplitCost;

LLMC_INLINE SplitCost
split_cost(const Split p, SplitRange r)
{
	SplitCost c = { .first_page = r.lo / KV_PAGE,
		        .last_page = (r.hi - 1) / KV_PAGE,
		        .shift = split_shift(p, r) };

	c.n_span = split_spans(p, r, c.shift);
	return c;
}

LLMC_INLINE int64_t
split_unit(const SplitCost *c)
{
	return c->last_page - c->first_page + 1 + SPLIT_ITEM * (int64_t)c->n_span;
}

/* Returns twice the cost from the start of the unit to the middle of a span. */
LLMC_INLINE int64_t
split_middle(const Split p, const SplitCost *c, int span)
{
	int64_t pages = (int64_t)(p.chunk / KV_PAGE) << c->shift,
	        grid = c->first_page / pages + span;
	int64_t from = span ? grid * pages : c->first_page, to = (grid + 1) * pages;

	if (to > c->last_page + 1)
		to = c->last_page + 1;
	return from + to - 2 * c->first_page + (2 * (int64_t)span + 1) * SPLIT_ITEM;
}

/* Callbacks of a kernel for its spans. u: state of the kernel */
typedef struct SplitWork {
	SplitRange (*range)(void *u, int row);
	void (*begin)(void *u, int row, int unit);
	void (*add)(void *u, int span); /* adds the current span to the unit's sum */
	void (*put)(void *u, int span, int part, int slot);
	void (*get)(void *u, int part,
	            int slot); /* adds a span stored in scratch to the unit's sum */
	void (*end)(void *u);
} SplitWork;

LLMC_INLINE void
split_run(const Split p, const SplitWork w, void *u, int rows, int units, int32_t *ticket, int part,
          int n_parts)
{
	int64_t total = 0, start = 0;

	for (int row = 0; row < rows; row++) {
		SplitCost c = split_cost(p, w.range(u, row));
		total += split_unit(&c) * units;
	}
#define SPLIT_OWNER(span) ((int)((2 * start + split_middle(p, &c, span)) * n_parts / (2 * total)))
	for (int row = 0; row < rows; row++) {
		SplitCost c = split_cost(p, w.range(u, row));
		for (int unit = 0; unit < units; unit++, start += split_unit(&c)) {
			int first = SPLIT_OWNER(0), last = SPLIT_OWNER(c.n_span - 1), arrivals = 1;
			if (first > part)
				return;
			if (last < part)
				continue;
			int from = 0, to = c.n_span;
			if (first != last) {
				while (SPLIT_OWNER(from) < part)
					from++;
				to = from;
				while (to < c.n_span && SPLIT_OWNER(to) == part)
					to++;
				if (from == to)
					continue; /* a span that another part has is larger than
					             this whole part */
				for (int i = 1; i < c.n_span; i++)
					arrivals += SPLIT_OWNER(i) != SPLIT_OWNER(i - 1);
			}
			w.begin(u, row, unit);
			for (int i = from; i < to; i++) {
				if (first == last)
					w.add(u, i);
				else
					w.put(u, i, part, (first == part ? p.most : 0) + i);
			}
			if (first != last) {
				if (__atomic_add_fetch(&ticket[first * 16], 1, __ATOMIC_ACQ_REL) <
				    arrivals)
					continue;
				__atomic_store_n(&ticket[first * 16], 0, __ATOMIC_RELAXED);
				for (int i = 0; i < c.n_span; i++)
					w.get(u, SPLIT_OWNER(i),
					      (SPLIT_OWNER(i) == first ? p.most : 0) + i);
			}
			w.end(u);
		}
	}
#undef SPLIT_OWNER
}

#endif

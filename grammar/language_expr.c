/* Lengths of the strings of a language, and a language as an expression of a grammar. */
#include <string.h>

#include "grammar/language.h"
#include "grammar/language_internal.h"

/* Computes the lengths of the shortest and longest non-empty continuation of each state; lo -1:
 * none, hi -1: unlimited. */
static void
rest_lengths(GrammarBuilder *b, const Language *l, int32_t *lo, int32_t *hi)
{
	Arena *a = b->a;
	size_t n = (size_t)l->n, nc = (size_t)l->n_class;
	int32_t *least = NEW(a, int32_t, n + 1), *longest = NEW(a, int32_t, n + 1);
	bool more = true;

	for (size_t s = 0; s < n; s++)
		least[s] = l->accept[s] ? 0 : -1;
	while (more) {
		more = false;
		build_work_of(b, n * nc / 8);
		for (size_t s = n; s-- > 0;)
			for (size_t c = 0; c < nc; c++) {
				int32_t t = l->next[s * nc + c];
				if (t >= 0 && least[t] >= 0 &&
				    (least[s] < 0 || least[s] > least[t] + 1)) {
					least[s] = least[t] + 1;
					more = true;
				}
			}
	}
	/* compute the longest continuation of states that reach no cycle; for other states it is
	 * unlimited */
	for (size_t s = 0; s < n; s++)
		longest[s] = -1;
	for (more = true; more;) {
		more = false;
		build_work_of(b, n * nc / 8);
		for (size_t s = n; s-- > 0;) {
			int32_t most = 0;
			for (size_t c = 0; c < nc && longest[s] < 0 && most >= 0; c++) {
				int32_t t = l->next[s * nc + c];
				if (t >= 0)
					most = longest[t] < 0          ? -1
					       : longest[t] + 1 > most ? longest[t] + 1
					                               : most;
			}
			if (longest[s] < 0 && most >= 0) {
				longest[s] = most;
				more = true;
			}
		}
	}
	for (size_t s = 0; s < n; s++) {
		lo[s] = hi[s] = -1;
		bool some = false, unlimited = false;
		int32_t most = 0;
		for (size_t c = 0; c < nc; c++) {
			int32_t t = l->next[s * nc + c];
			if (t < 0)
				continue;
			some = true;
			lo[s] = lo[s] < 0 || least[t] + 1 < lo[s] ? least[t] + 1 : lo[s];
			unlimited |= longest[t] < 0;
			most = longest[t] + 1 > most ? longest[t] + 1 : most;
		}
		hi[s] = !some || unlimited ? -1 : most;
	}
}

/* Returns whether each state can end after every length between its shortest and longest
 * continuation. Only a window of lengths is checked. */
static bool
language_has_no_gaps(GrammarBuilder *b, const Language *l)
{
	Arena *a = b->a;
	size_t n = (size_t)l->n, nc = (size_t)l->n_class;
	size_t window = 2 * n + 2 < MAX_WINDOW ? 2 * n + 2 : MAX_WINDOW;
	uint8_t *now = NEW(a, uint8_t, n + 1), *before = NEW(a, uint8_t, n + 1),
	        *phase = NEW(a, uint8_t, n + 1); /* 0: before the first length, 1: within the
	                                            lengths, 2: after the last one */

	memcpy(before, l->accept, n);
	for (size_t k = 1; k <= window; k++) {
		build_work_of(b, n * nc / 8);
		for (size_t s = 0; s < n; s++) {
			now[s] = 0;
			for (size_t c = 0; c < nc && !now[s]; c++) {
				int32_t t = l->next[s * nc + c];
				now[s] = t >= 0 && before[t];
			}
			if (now[s] && phase[s] == 2)
				return false;
			if (now[s])
				phase[s] = 1;
			else if (phase[s] == 1)
				phase[s] = 2;
		}
		uint8_t *x = now;
		now = before;
		before = x;
	}
	return true;
}

/* Builds the language with separate states per length, for lengths min..max; false: too many
 * states. */
static bool
unroll(Arena *a, const Language *l, int32_t min, int32_t max, Language *out)
{
	int64_t n = l->n, depth = max >= 0 ? max : min;
	size_t nc = (size_t)l->n_class;

	if (n * (depth + 1) > MAX_UNROLLED)
		return false;
	size_t total = (size_t)(n * (depth + 1));
	uint8_t *good = NEW(a, uint8_t, total + 1);
	int32_t *number = NEW(a, int32_t, total + 1);
	*out = *l;
	/* one layer of states per length, the longest accepted length first; without a maximum
	 * the last layer loops */
	for (int64_t k = depth; k >= 0; k--)
		for (int64_t s = 0; s < n; s++) {
			uint8_t *g = &good[k * n + s];
			if (k == depth && max < 0) {
				/* loops are fine: every state of a trimmed language reaches an
				 * end */
				*g = 1;
				continue;
			}
			*g = k >= min && l->accept[s];
			for (size_t c = 0; c < nc && !*g && k < depth; c++) {
				int32_t t = l->next[(size_t)s * nc + c];
				*g = t >= 0 && good[(k + 1) * n + t];
			}
		}
	out->n = 0;
	for (size_t i = 0; i < total; i++)
		number[i] = -1;
	int32_t *todo = NEW(a, int32_t, total + 1);
	if (good[0]) {
		number[0] = 0;
		todo[out->n++] = 0;
	}
	out->next = NEW(a, int32_t, total *nc + 1);
	out->accept = NEW(a, uint8_t, total + 1);
	for (int32_t i = 0; i < out->n; i++) {
		int64_t k = todo[i] / n, s = todo[i] % n, on = k < depth ? k + 1 : k;
		out->accept[i] = k >= min && l->accept[s];
		for (size_t c = 0; c < nc; c++) {
			int32_t t = l->next[(size_t)s * nc + c];
			int64_t to = on * n + t;
			if (t < 0 || (k == depth && max >= 0) || !good[to]) {
				out->next[(size_t)i * nc + c] = -1;
				continue;
			}
			if (number[to] < 0) {
				number[to] = out->n;
				todo[out->n++] = (int32_t)to;
			}
			out->next[(size_t)i * nc + c] = number[to];
		}
	}
	return true;
}

typedef struct CharsExpr { /* characters of an edge that have an expression already */
	uint64_t key;
	size_t from; /* the edge's states */
	int32_t to;
	Expr *x;
} CharsExpr;
enum { N_KNOWN = 1024 };

/* Whether two edges have the same characters. */
static bool
same_chars(const Language *l, size_t from, int32_t to, const CharsExpr *x)
{
	const int32_t *a = l->next + from * (size_t)l->n_class,
	              *b = l->next + x->from * (size_t)l->n_class;

	for (int32_t c = 0; c < l->n_class; c++)
		if ((a[c] == to) != (b[c] == x->to))
			return false;
	return true;
}

static Expr *
graph_of(GrammarBuilder *b, const Language *l, RegexFlags flags)
{
	size_t n = (size_t)l->n, nc = (size_t)l->n_class, cap = 0;
	SymbolGraph *g = NEW(b->a, SymbolGraph, 1);
	int32_t *done = NEW(b->a, int32_t, n + 1);
	Range *r = NEW(b->a, Range, l->n_range + 1);
	CharsExpr *known = NEW(b->a, CharsExpr, N_KNOWN);
	size_t n_known = 0;

	g->n = l->n;
	g->accept = l->accept;
	for (size_t s = 0; s < n; s++) {
		for (size_t c = 0; c < nc; c++) {
			int32_t t = l->next[s * nc + c];
			if (t < 0 || done[t] == (int32_t)s + 1)
				continue;
			done[t] = (int32_t)s + 1;
			size_t k = 0;
			uint64_t key = 1;
			for (size_t i = 0; i < l->n_range; i++)
				if (l->cls[i] >= 0 && l->next[s * nc + (size_t)l->cls[i]] == t) {
					if (k && r[k - 1].hi + 1 == l->bound[i])
						r[k - 1].hi = l->bound[i + 1] - 1;
					else
						r[k++] =
						    (Range){ l->bound[i], l->bound[i + 1] - 1 };
					key = (key ^ i) * 0x9E3779B97F4A7C15u;
					key ^= key >> 31;
				}
			CharsExpr *x = &known[key % N_KNOWN];
			while (x->x && (x->key != key || !same_chars(l, s, t, x)))
				x = x == known + N_KNOWN - 1 ? known : x + 1;
			Expr *chars = x->x;
			if (!chars) {
				chars = regex_chars(b, r, k, flags);
				if (n_known++ < N_KNOWN / 2)
					*x = (CharsExpr){ key, s, t, chars };
			}
			g->edge =
			    arena_grow(b->a, g->edge, &cap, (size_t)g->n_edge + 1, sizeof *g->edge);
			g->edge[g->n_edge++] = (GraphEdge){ (int32_t)s, t, chars };
		}
	}
	Expr *x = expr_new(b, EXPR_GRAPH);
	x->graph = g;
	return x;
}

/* Returns NULL if the length can be neither counted nor unrolled. */
Expr *
language_expr(GrammarBuilder *b, const Language *l, int32_t min, int32_t max, RegexFlags flags)
{
	Language all;

	min = min < 0 ? 0 : min;
	flags.search = flags.fold = false;
	if (!l->n || (max >= 0 && min > max))
		return expr_none(b);
	if (min == 0 && max < 0)
		return graph_of(b, l, flags);
	int32_t *lo = NEW(b->a, int32_t, (size_t)l->n + 1),
	        *hi = NEW(b->a, int32_t, (size_t)l->n + 1);
	rest_lengths(b, l, lo, hi);
	bool some = lo[0] >= 0 && (max < 0 || lo[0] <= max) && (hi[0] < 0 || hi[0] >= min);
	bool empty = l->accept[0] && min == 0;
	if (!l->accept[0] && min <= lo[0])
		min = 0; /* min has no effect: the language has no shorter string */
	if (min > 0 && max >= 0 && !language_has_no_gaps(b, l)) {
		if (!unroll(b->a, l, min, max, &all))
			return NULL;
		return all.n ? graph_of(b, &all, flags) : expr_none(b);
	}
	if (!some)
		return empty ? expr_empty(b) : expr_none(b);
	if ((min == 0 || (lo[0] >= min && !l->accept[0])) && hi[0] >= 0 &&
	    (max < 0 || hi[0] <= max))
		return graph_of(b, l, flags); /* the length follows from the language */
	Expr *x = graph_of(b, l, flags);
	SymbolGraph *g = (SymbolGraph *)(uintptr_t)x->graph;
	g->counted = true;
	g->min = min;
	g->max = max;
	g->lo = lo;
	g->hi = hi;
	return x;
}

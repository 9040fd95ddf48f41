/* Converts expressions to states and byte edges. Each rule is built once; uses of it are calls. A
 * counted repetition is an edge with a counter, not copies of its body. The words of an alternative
 * share a prefix tree, so an enumeration of thousands stays deterministic. */
#include <stdlib.h>

#include "base/utf8.h"
#include "grammar/automaton_internal.h"
#include "grammar/grammar_internal.h"

static int32_t
state(AutomatonBuilder *m)
{
	build_work(m->b);
	if (m->n_state >= MAX_STATES)
		build_fail(m->b, "the grammar is too large: more than %d states", MAX_STATES);
	m->head = arena_grow(m->b->a, m->head, &m->cap_head, m->n_state + 1, sizeof *m->head);
	m->flags = arena_grow(m->b->a, m->flags, &m->cap_flags, m->n_state + 1, 1);
	m->flags[m->n_state] = 0;
	m->head[m->n_state] = -1;
	return (int32_t)m->n_state++;
}

static void
edge(AutomatonBuilder *m, int32_t from, Edge e)
{
	build_work(m->b);
	if (m->n_link >= MAX_EDGES)
		build_fail(m->b, "the grammar is too large: more than %d edges", MAX_EDGES);
	m->link = arena_grow(m->b->a, m->link, &m->cap_link, m->n_link + 1, sizeof *m->link);
	m->link[m->n_link] = (RuleLink){ e, m->head[from] };
	m->head[from] = (int32_t)m->n_link++;
}

static void
eps(AutomatonBuilder *m, int32_t from, int32_t to)
{
	if (from != to)
		edge(m, from, (Edge){ .kind = EDGE_EPS, .to = to });
}

static void
byte(AutomatonBuilder *m, int32_t from, int32_t to, uint8_t lo, uint8_t hi)
{
	edge(m, from, (Edge){ .kind = EDGE_BYTE, .lo = lo, .hi = hi, .to = to });
}

/* Adds paths of byte ranges for the characters lo..hi, which all have the same length in UTF-8. */
static void
chars(AutomatonBuilder *m, int32_t from, int32_t to, uint32_t lo, uint32_t hi)
{
	static const uint32_t last[] = { 0x7F, 0x7FF, 0xFFFF, 0x10FFFF };
	char a[4], z[4];

	for (int i = 0; i < 4; i++)
		if (lo <= last[i] && hi > last[i]) {
			chars(m, from, to, lo, last[i]);
			chars(m, from, to, last[i] + 1, hi);
			return;
		}
	int n = (int)utf8_put(a, lo);
	utf8_put(z, hi);
	for (int i = 1; i < n; i++) {
		uint32_t low = (1u << 6 * i) - 1;
		if ((lo & ~low) == (hi & ~low))
			continue;
		if (lo & low) {
			chars(m, from, to, lo, lo | low);
			chars(m, from, to, (lo | low) + 1, hi);
			return;
		}
		if ((hi & low) != low) {
			chars(m, from, to, lo, (hi & ~low) - 1);
			chars(m, from, to, hi & ~low, hi);
			return;
		}
	}
	for (int i = 0; i < n; i++) {
		int32_t next = i == n - 1 ? to : state(m);
		byte(m, from, next, (uint8_t)a[i], (uint8_t)z[i]);
		from = next;
	}
}

static void
char_range(AutomatonBuilder *m, int32_t from, int32_t to, uint32_t lo, uint32_t hi)
{
	enum { SURROGATE = 0xD800, SURROGATE_END = 0xE000 };

	if (lo < SURROGATE)
		chars(m, from, to, lo, hi < SURROGATE ? hi : SURROGATE - 1);
	if (hi >= SURROGATE_END)
		chars(m, from, to, lo > SURROGATE_END ? lo : SURROGATE_END, hi);
}

static bool nullable(AutomatonBuilder *m, const Expr *x);

static bool
all_nullable(AutomatonBuilder *m, const Expr *x)
{
	for (int32_t i = 0; i < x->n; i++)
		if (x->kind == EXPR_SEQ || x->how[i] == ORDER_MUST)
			if (!nullable(m, x->part[i]))
				return false;
	return true;
}

static bool
nullable(AutomatonBuilder *m, const Expr *x)
{
	bool yes = false;

	build_work(m->b);
	if (++m->depth > 4000)
		build_fail(m->b, "the grammar is nested too deeply");
	switch (x->kind) {
	case EXPR_BYTES:
		yes = x->n == 0;
		break;
	case EXPR_CHARS:
	case EXPR_TOKEN:
	case EXPR_MULTIPLE:
		break;
	case EXPR_SEQ:
	case EXPR_ORDER:
		yes = all_nullable(m, x);
		break;
	case EXPR_ALT:
		for (int32_t i = 0; i < x->n && !yes; i++)
			yes = nullable(m, x->part[i]);
		break;
	case EXPR_REP:
		yes = x->min == 0 || nullable(m, x->part[0]);
		break;
	case EXPR_UNORDERED:
		yes = x->must == 0;
		break;
	case EXPR_GRAPH:
		yes = x->graph->accept[0] && (!x->graph->counted || x->graph->min <= 0);
		break;
	case EXPR_ANCHOR:
		yes = true;
		break;
	case EXPR_RULE:
		if (!m->nullable[x->min]) {
			m->nullable[x->min] = 1;
			m->nullable[x->min] = nullable(m, m->b->rule[x->min]) ? 2 : 1;
		}
		yes = m->nullable[x->min] == 2;
		break;
	}
	m->depth--;
	return yes;
}

static int32_t
rule_start(AutomatonBuilder *m, int32_t rule)
{
	if (!m->rule_seen[rule]) {
		m->rule_seen[rule] = 1;
		m->rule_start[rule] = state(m);
		m->todo[m->n_todo++] = rule;
	}
	return m->rule_start[rule];
}

static void make(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to);

/* Adds a word to the prefix tree below `from`, which has no other links. */
static void
word(AutomatonBuilder *m, int32_t from, int32_t to, const char *s, int32_t n)
{
	for (int32_t i = 0; i < n; i++) {
		uint8_t c = (uint8_t)s[i];
		int32_t k = m->head[from];
		while (k >= 0 && !(m->link[k].e.kind == EDGE_BYTE && m->link[k].e.lo == c))
			k = m->link[k].next;
		if (k < 0) {
			int32_t next = state(m);
			byte(m, from, next, c, c);
			k = (int32_t)m->n_link - 1;
		}
		from = m->link[k].e.to;
	}
	eps(m, from, to);
}

static void
alternatives(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to)
{
	int32_t root = -1;

	for (int32_t i = 0; i < x->n; i++) {
		const Expr *p = x->part[i];
		if (p->kind != EXPR_BYTES) {
			make(m, p, from, to);
			continue;
		}
		if (root < 0) {
			root = state(m);
			eps(m, from, root);
		}
		word(m, root, to, p->bytes, p->n);
	}
}

static void
repeat(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to)
{
	int32_t min = x->min, max = x->max, a = state(m), z = state(m);

	if (nullable(m, x->part[0])) { /* an empty iteration counts too */
		min = 0;
		if (max > 1) {
			if (max > 64)
				build_fail(
				    m->b,
				    "an item that may be empty cannot be repeated up to %d times: "
				    "remove the limit or make the item non-empty",
				    max);
			for (int32_t i = 0; i < max;
			     i++) { /* otherwise the counter could advance without a byte */
				int32_t next = i == max - 1 ? to : state(m);
				make(m, x->part[0], from, next);
				eps(m, from, next);
				from = next;
			}
			return;
		}
	}
	if (max >= 0 && max <= 1) {
		make(m, x->part[0], from, to);
		if (!min)
			eps(m, from, to);
	} else if (max < 0 && min <= 1) {
		eps(m, from, a);
		make(m, x->part[0], a, z);
		eps(m, z, a);
		eps(m, z, to);
		if (!min)
			eps(m, from, to);
	} else {
		m->rep = arena_grow(m->b->a, m->rep, &m->cap_rep, m->n_rep + 1, sizeof *m->rep);
		int32_t rep = (int32_t)m->n_rep++;
		m->rep[rep] = (Repeat){ .start = a, .min = min, .max = max };
		m->flags[z] |= STATE_END;
		edge(m, from, (Edge){ .kind = EDGE_REP, .to = to, .arg = rep });
		if (!min)
			eps(m, from, to);
		make(m, x->part[0], a, z);
	}
}

/* Builds two states per part, with and without a preceding part, instead of one per subset of
 * parts. */
static void
in_order(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to)
{
	int32_t none = state(m), some = state(m);

	eps(m, from, none);
	for (int32_t i = 0; i < x->n; i++) {
		int32_t at = state(m), none_on = state(m), some_on = state(m);
		make(m, x->part[x->n], some, at);
		eps(m, none, at);
		make(m, x->part[i], at, some_on);
		if (x->how[i] == ORDER_ANY)
			make(m, x->part[x->n], some_on, at);
		if (x->how[i] != ORDER_MUST) {
			eps(m, none, none_on);
			eps(m, some, some_on);
		}
		none = none_on;
		some = some_on;
	}
	eps(m, none, to);
	eps(m, some, to);
}

/* The parts that have come so far are bits in the count of one frame, so no state per subset is
 * needed. If a required part matches nothing, the list matches nothing. */
static void
unordered(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to)
{
	int32_t start = state(m), end = state(m), more = state(m), rep = (int32_t)m->n_rep;

	m->rep = arena_grow(m->b->a, m->rep, &m->cap_rep, m->n_rep + 1, sizeof *m->rep);
	m->rep[m->n_rep++] = (Repeat){ .start = start,
		                       .must = x->must,
		                       .unordered = true,
		                       .others = x->part[x->n + 1],
		                       .more = more };
	m->flags[end] |= STATE_END;
	for (int32_t i = 0; i < x->n; i++) {
		int32_t part = state(m);
		edge(m, start,
		     (Edge){ .kind = EDGE_TAKE, .lo = (uint8_t)i, .to = part, .arg = rep });
		make(m, x->part[i], part, end);
		if (x->must >> i & 1) {
			int32_t next = state(m);
			edge(m, from, (Edge){ .kind = EDGE_NEED, .to = next, .arg = part });
			from = next;
		}
	}
	if (x->part[x->n + 1])
		make(m, x->part[x->n + 1], start, end);
	make(m, x->part[x->n], more, start);
	edge(m, from, (Edge){ .kind = EDGE_REP, .to = to, .arg = rep });
	if (!x->must)
		eps(m, from, to);
}

/* Builds one state per remainder of the digits so far. Only the number 0 may start with 0. */
static void
multiple(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to)
{
	int32_t first = (int32_t)m->n_state, n = x->min;

	for (int32_t i = 0; i < n; i++)
		state(m);
	byte(m, from, to, '0', '0');
	for (int d = 1; d < 10; d++)
		byte(m, from, first + d % n, (uint8_t)('0' + d), (uint8_t)('0' + d));
	for (int32_t r = 0; r < n; r++)
		for (int d = 0; d < 10; d++)
			byte(m, first + r, first + (r * 10 + d) % n, (uint8_t)('0' + d),
			     (uint8_t)('0' + d));
	eps(m, first, to);
}

/* A counted graph counts characters in a frame, as a repetition does. A gate precedes the
 * characters of an edge and opens only if the edge's target can still end within the maximum, so
 * that the output never stops within the bytes of a character. Each node also has a state for "a
 * character has just ended" (tick). */
static void
graph(AutomatonBuilder *m, const SymbolGraph *g, int32_t from, int32_t to)
{
	int32_t *at = NEW(m->b->a, int32_t, (size_t)g->n + 1),
	        *ended = NEW(m->b->a, int32_t, (size_t)g->n + 1);

	int32_t first = (int32_t)m->n_tick;

	for (int32_t i = 0; i < g->n; i++)
		ended[i] = at[i] = state(m);
	if (!g->counted) {
		eps(m, from, at[0]);
		for (int32_t i = 0; i < g->n; i++)
			if (g->accept[i])
				eps(m, at[i], to);
	} else {
		Repeat r = { .start = at[0], .min = g->min, .max = g->max };
		for (int32_t i = 0; i < g->n; i++) {
			ended[i] = state(m);
			m->tick = arena_grow(m->b->a, m->tick, &m->cap_tick, m->n_tick + 1,
			                     sizeof *m->tick);
			m->tick[m->n_tick] = (CountedNode){ g->lo[i], g->hi[i], g->accept[i] };
			m->flags[ended[i]] |= g->accept[i] ? STATE_TICKS : 0;
			edge(m, ended[i],
			     (Edge){ .kind = EDGE_TICK, .to = at[i], .arg = (int32_t)m->n_tick++ });
			r.slack = g->lo[i] > r.slack ? g->lo[i] : r.slack;
			r.exact |= g->lo[i] < 0 || g->hi[i] >= 0;
		}
		m->rep = arena_grow(m->b->a, m->rep, &m->cap_rep, m->n_rep + 1, sizeof *m->rep);
		m->rep[m->n_rep] = r;
		edge(m, from, (Edge){ .kind = EDGE_REP, .to = to, .arg = (int32_t)m->n_rep++ });
		if (g->min <= 0 && g->accept[0])
			eps(m, from, to);
	}
	for (int32_t i = 0; i < g->n_edge; i++) {
		const GraphEdge *e = &g->edge[i];
		int32_t begin = at[e->from];
		if (g->counted) {
			begin = state(m);
			edge(m, at[e->from],
			     (Edge){ .kind = EDGE_GATE, .to = begin, .arg = first + e->to });
		}
		make(m, e->x, begin, ended[e->to]);
	}
}

static void
make(AutomatonBuilder *m, const Expr *x, int32_t from, int32_t to)
{
	build_work(m->b);
	if (++m->depth > 4000)
		build_fail(m->b, "the grammar is nested too deeply");
	switch (x->kind) {
	case EXPR_BYTES:
		for (int32_t i = 0; i < x->n; i++) {
			int32_t next = i == x->n - 1 ? to : state(m);
			byte(m, from, next, (uint8_t)x->bytes[i], (uint8_t)x->bytes[i]);
			from = next;
		}
		if (!x->n)
			eps(m, from, to);
		break;
	case EXPR_CHARS:
		for (int32_t i = 0; i < x->n; i++)
			char_range(m, from, to, x->range[i].lo, x->range[i].hi);
		break;
	case EXPR_SEQ:
		for (int32_t i = 0; i < x->n; i++) {
			int32_t next = i == x->n - 1 ? to : state(m);
			make(m, x->part[i], from, next);
			from = next;
		}
		if (!x->n)
			eps(m, from, to);
		break;
	case EXPR_ALT:
		alternatives(m, x, from, to);
		break;
	case EXPR_REP:
		repeat(m, x, from, to);
		break;
	case EXPR_RULE:
		edge(m, from, (Edge){ .kind = EDGE_CALL, .to = to, .arg = rule_start(m, x->min) });
		break;
	case EXPR_ORDER:
		in_order(m, x, from, to);
		break;
	case EXPR_UNORDERED:
		unordered(m, x, from, to);
		break;
	case EXPR_TOKEN:
		edge(m, from, (Edge){ .kind = EDGE_TOKEN, .to = to, .arg = x->min });
		m->has_tokens = true;
		break;
	case EXPR_MULTIPLE:
		multiple(m, x, from, to);
		break;
	case EXPR_GRAPH:
		graph(m, x->graph, from, to);
		break;
	case EXPR_ANCHOR:
		eps(m, from, to);
		break;
	}
	m->depth--;
}

typedef struct LeftRecursion {
	AutomatonBuilder *m;
	uint8_t *mark;
	int depth;
} LeftRecursion; /* mark[rule]: 1 being visited, 2 done */

static void left_of(LeftRecursion *l, const Expr *x);

static const char *
name_of(const GrammarBuilder *b, int32_t rule)
{
	return (size_t)rule < b->cap_name ? b->name[rule] : NULL;
}

static void
left_rule(LeftRecursion *l, int32_t rule)
{
	const char *name = name_of(l->m->b, rule);

	if (l->mark[rule] == 1)
		build_fail(l->m->b,
		           "%s: the rule begins with itself, and left recursion is not supported",
		           name ? name : "a rule of the grammar");
	if (l->mark[rule] == 2)
		return;
	l->mark[rule] = 1;
	left_of(l, l->m->b->rule[rule]);
	l->mark[rule] = 2;
}

/* Visits all rules that may be the first part of x. */
static void
left_of(LeftRecursion *l, const Expr *x)
{
	build_work(l->m->b);
	if (++l->depth > 4000)
		build_fail(l->m->b, "the grammar is nested too deeply");
	switch (x->kind) {
	case EXPR_RULE:
		left_rule(l, x->min);
		break;
	case EXPR_SEQ:
		for (int32_t i = 0; i < x->n; i++) {
			left_of(l, x->part[i]);
			if (!nullable(l->m, x->part[i]))
				break;
		}
		break;
	case EXPR_ALT:
		for (int32_t i = 0; i < x->n; i++)
			left_of(l, x->part[i]);
		break;
	case EXPR_REP:
		left_of(l, x->part[0]);
		break;
	case EXPR_ORDER:
		for (int32_t i = 0; i < x->n; i++) {
			left_of(l, x->part[i]);
			if (x->how[i] == ORDER_MUST && !nullable(l->m, x->part[i]))
				break;
		}
		break;
	case EXPR_UNORDERED:
		for (int32_t i = 0; i < x->n; i++)
			left_of(l, x->part[i]);
		if (x->part[x->n + 1])
			left_of(l, x->part[x->n + 1]);
		break;
	case EXPR_BYTES:
	case EXPR_CHARS:
	case EXPR_TOKEN:
	case EXPR_MULTIPLE:
	case EXPR_GRAPH:
	case EXPR_ANCHOR:
		break;
	}
	l->depth--;
}

llmc_status
automaton_make(GrammarBuilder *b, Expr *root, Automaton *out, llmc_error *err)
{
	AutomatonBuilder m = { .b = b };
	size_t n_rule = b->n_rule;

	for (size_t i = 0; i < n_rule; i++)
		if (!b->rule[i])
			build_fail(b, "a rule of the grammar has no body");
	m.rule_start = NEW(b->a, int32_t, n_rule + 1);
	m.rule_seen = NEW(b->a, uint8_t, n_rule + 1);
	m.todo = NEW(b->a, int32_t, n_rule + 1);
	m.nullable = NEW(b->a, uint8_t, n_rule + 1);
	LeftRecursion left = { .m = &m, .mark = NEW(b->a, uint8_t, n_rule + 1) };
	left_of(&left, root);
	for (size_t i = 0; i < n_rule; i++)
		left_rule(&left, (int32_t)i);
	int32_t start = state(&m), end = state(&m);
	m.flags[end] |= STATE_END;
	make(&m, root, start, end);
	for (size_t i = 0; i < m.n_todo; i++) {
		end = state(&m);
		m.flags[end] |= STATE_END;
		b->place = name_of(b, m.todo[i]);
		make(&m, b->rule[m.todo[i]], m.rule_start[m.todo[i]], end);
	}
	b->place = NULL;
	int32_t *to = NEW(b->a, int32_t, m.n_state), *place = NEW(b->a, int32_t, m.n_state),
	        *order = NEW(b->a, int32_t, m.n_state);
	automaton_prune(&m);
	automaton_skip_empty(&m, to);
	int32_t n = automaton_reach(&m, to, start, place, order);
	automaton_make_classes(&m, out);
	out->start = place[to[start]];
	out->has_tokens = m.has_tokens;
	return automaton_copy_out(&m, out, to, place, order, n)
	           ? LLMC_OK
	           : error_set(err, LLMC_E_MEMORY, "out of memory for a grammar");
}

void
automaton_release(Automaton *m)
{
	free(m->edge);
	free(m->first);
	free(m->flags);
	free(m->rep);
	free(m->tick);
	*m = (Automaton){ 0 };
}

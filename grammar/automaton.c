/* Converts expressions to states and byte edges. A rule is built once and called. A counted
 * repetition is an edge with a counter, never a copy. The words of an alternative share a prefix
 * tree, so an enumeration of thousands stays deterministic. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"

typedef struct RuleLink { /* edge in the list of its source state */
	Edge e;
	int32_t next; /* next edge of the same state */
} RuleLink;

typedef struct AutomatonBuilder {
	GrammarBuilder *b;
	RuleLink *link;
	size_t n_link, cap_link;
	int32_t *head;
	size_t n_state, cap_head;
	uint8_t *flags;
	size_t cap_flags;
	Repeat *rep;
	size_t n_rep, cap_rep;
	Tick *tick;
	size_t n_tick, cap_tick;
	int32_t *rule_start;
	uint8_t *rule_seen;
	int32_t *todo;
	size_t n_todo;
	uint8_t *nullable; /* [n_rule]: 0 unknown, 1 no, 2 yes */
	bool has_tokens;
	int depth;
} AutomatonBuilder;

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

/* Adds paths of byte ranges for the characters lo..hi, which have one length in UTF-8. */
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
	enum { SURROGATE = 0xD800, BEHIND = 0xE000 };

	if (lo < SURROGATE)
		chars(m, from, to, lo, hi < SURROGATE ? hi : SURROGATE - 1);
	if (hi >= BEHIND)
		chars(m, from, to, lo > BEHIND ? lo : BEHIND, hi);
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

	if (nullable(m, x->part[0])) { /* an iteration may be empty and still counts */
		min = 0;
		if (max > 1) {
			if (max > 64)
				build_fail(
				    m->b,
				    "an item that may be empty cannot be repeated up to %d times: "
				    "remove the limit or make the item non-empty",
				    max);
			for (int32_t i = 0; i < max;
			     i++) { /* a counter could be advanced without a byte */
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
		m->rep[rep] = (Repeat){ a, min, max, 0, false };
		m->flags[z] |= STATE_END;
		edge(m, from, (Edge){ .kind = EDGE_REP, .to = to, .arg = rep });
		if (!min)
			eps(m, from, to);
		make(m, x->part[0], a, z);
	}
}

/* Builds two states per part (with and without a preceding part), never one per subset. */
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

/* Builds one state per remainder. A number starts with 0 only if it is 0. */
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

/* The count of a counted graph is a frame like that of a repetition. A gate leads to the characters
 * of an edge only if its target can still end in time, so that no character has to be given up
 * within its bytes. Each node also has a state at which a character has just ended. */
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
		Repeat r = { at[0], g->min, g->max, 0, false };
		for (int32_t i = 0; i < g->n; i++) {
			ended[i] = state(m);
			m->tick = arena_grow(m->b->a, m->tick, &m->cap_tick, m->n_tick + 1,
			                     sizeof *m->tick);
			m->tick[m->n_tick] = (Tick){ g->lo[i], g->hi[i], g->accept[i] };
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

/* ---- left recursion ---- */

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

/* Visits all rules with which x may begin. */
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

/* ---- the finished form ---- */

/* Replaces a state whose only link is an empty edge by the target of that edge. */
static void
skip_empty(AutomatonBuilder *m, int32_t *to)
{
	for (size_t q = 0; q < m->n_state; q++) {
		int32_t k = m->head[q];
		bool only = k >= 0 && m->link[k].next < 0 && m->link[k].e.kind == EDGE_EPS &&
		            !(m->flags[q] & STATE_END);
		to[q] = only ? m->link[k].e.to : (int32_t)q;
	}
	for (size_t q = 0; q < m->n_state; q++) {
		int32_t end = to[q];
		for (size_t i = 0; to[end] != end && i < m->n_state; i++)
			end = to[end];
		if (to[end] != end) { /* a cycle of empty edges with no exit */
			to[q] = (int32_t)q;
			continue;
		}
		for (int32_t at = (int32_t)q, next; at != end; at = next) {
			next = to[at];
			to[at] = end;
		}
	}
}

static void
make_classes(const AutomatonBuilder *m, Automaton *out)
{
	/* Always split at these bytes: they separate plain string characters and the byte classes
	 * of UTF-8 in any grammar. */
	static const uint8_t always[] = { 0,    0x20, 0x22, 0x23, 0x5C, 0x5D, 0x7F,
		                          0x80, 0x90, 0xA0, 0xC0, 0xC2, 0xE0, 0xE1,
		                          0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5 };
	bool cut[257] = { false };
	int n = -1;

	for (size_t i = 0; i < sizeof always; i++)
		cut[always[i]] = true;
	for (size_t i = 0; i < m->n_link; i++)
		if (m->link[i].e.kind == EDGE_BYTE)
			cut[m->link[i].e.lo] = cut[m->link[i].e.hi + 1] = true;
	for (int c = 0; c < 256; c++) {
		if (cut[c])
			out->byte_of[++n] = (uint8_t)c;
		out->cls[c] = (uint8_t)n;
	}
	out->n_class = n + 1;
}

/* Marks states from which the end of the output or of a rule is reachable. Edges to other states
 * are dropped, so no output can start something that it cannot complete. */
static uint8_t *
find_ends(const AutomatonBuilder *m)
{
	Arena *a = m->b->a;
	uint8_t *good = NEW(a, uint8_t, m->n_state + 1);
	int32_t *todo = NEW(a, int32_t, m->n_state + 1), *at = NEW(a, int32_t, m->n_state + 2),
	        *of = NEW(a, int32_t, 2 * m->n_link + 1);
	int32_t *from = NEW(a, int32_t, m->n_link + 1);
	size_t n = 0;

	/* links indexed by their target, and by the rule or repetition that they enter */
	for (int pass = 0; pass < 2; pass++) {
		for (size_t q = 0; q < m->n_state; q++)
			for (int32_t k = m->head[q]; k >= 0; k = m->link[k].next) {
				const Edge *e = &m->link[k].e;
				int32_t inner = e->kind == EDGE_CALL  ? e->arg
				                : e->kind == EDGE_REP ? m->rep[e->arg].start
				                                      : -1;
				from[k] = (int32_t)q;
				for (int i = 0; i < 2; i++) {
					int32_t t = i ? inner : e->to;
					if (t >= 0 && !pass)
						at[t + 1]++;
					else if (t >= 0)
						of[at[t]++] = k;
				}
			}
		if (!pass)
			for (size_t q = 0; q < m->n_state; q++)
				at[q + 1] += at[q];
	}
	for (size_t q = 0; q < m->n_state; q++)
		if (m->flags[q] & (STATE_END | STATE_TICKS)) {
			good[q] = 1;
			todo[n++] = (int32_t)q;
		}
	while (n) {
		int32_t t = todo[--n];
		/* the second pass has advanced at[] by one */
		for (int32_t i = t ? at[t - 1] : 0; i < at[t]; i++) {
			const Edge *e = &m->link[of[i]].e;
			int32_t inner = e->kind == EDGE_CALL  ? e->arg
			                : e->kind == EDGE_REP ? m->rep[e->arg].start
			                                      : -1,
			        q = from[of[i]];
			if (good[q] || !good[e->to] || (inner >= 0 && !good[inner]))
				continue;
			good[q] = 1;
			todo[n++] = q;
		}
	}
	return good;
}

/* Removes links to states that cannot reach an end. */
static void
prune(AutomatonBuilder *m)
{
	const uint8_t *good = find_ends(m);

	for (size_t q = 0; q < m->n_state; q++)
		for (int32_t *k = &m->head[q]; *k >= 0;) {
			const Edge *e = &m->link[*k].e;
			int32_t inner = e->kind == EDGE_CALL  ? e->arg
			                : e->kind == EDGE_REP ? m->rep[e->arg].start
			                                      : -1;
			/* a path of a graph may be over where none goes on */
			bool over = e->kind == EDGE_TICK && (m->flags[q] & STATE_TICKS);
			if (over || (good[e->to] && (inner < 0 || good[inner])))
				k = &m->link[*k].next;
			else
				*k = m->link[*k].next;
		}
}

/* Numbers the reachable states in `place`; the others stay -1. */
static int32_t
reach(const AutomatonBuilder *m, const int32_t *to, int32_t start, int32_t *place, int32_t *todo)
{
	int32_t n = 0, done = 0;

	memset(place, -1, m->n_state * sizeof *place);
	place[to[start]] = n;
	todo[n++] = to[start];
	while (done < n) {
		int32_t q = todo[done++];
		for (int32_t k = m->head[q]; k >= 0; k = m->link[k].next) {
			const Edge *e = &m->link[k].e;
			int32_t go[2] = { to[e->to], -1 };
			if (e->kind == EDGE_CALL)
				go[1] = to[e->arg];
			if (e->kind == EDGE_REP)
				go[1] = to[m->rep[e->arg].start];
			for (int i = 0; i < 2; i++)
				if (go[i] >= 0 && place[go[i]] < 0) {
					place[go[i]] = n;
					todo[n++] = go[i];
				}
		}
	}
	return n;
}

static bool
copy_out(const AutomatonBuilder *m, Automaton *out, const int32_t *to, const int32_t *place,
         const int32_t *order, int32_t n)
{
	out->n_state = n;
	out->n_rep = (int32_t)m->n_rep;
	for (int32_t i = 0; i < n; i++)
		for (int32_t k = m->head[order[i]]; k >= 0; k = m->link[k].next)
			out->n_edge++;
	out->edge = calloc((size_t)out->n_edge + 1, sizeof *out->edge);
	out->first = calloc((size_t)n + 1, sizeof *out->first);
	out->flags = calloc((size_t)n + 1, 1);
	out->rep = calloc((size_t)out->n_rep + 1, sizeof *out->rep);
	out->n_tick = (int32_t)m->n_tick;
	out->tick = calloc((size_t)out->n_tick + 1, sizeof *out->tick);
	if (!out->edge || !out->first || !out->flags || !out->rep || !out->tick)
		return false;
	if (m->n_tick)
		memcpy(out->tick, m->tick, m->n_tick * sizeof *m->tick);
	int32_t at = 0;
	for (int32_t i = 0; i < n; i++) {
		int32_t q = order[i];
		out->first[i] = at;
		out->flags[i] = m->flags[q];
		for (int32_t k = m->head[q]; k >= 0; k = m->link[k].next) {
			Edge e = m->link[k].e;
			int32_t behind = to[e.to];
			e.tail = e.kind == EDGE_CALL && (m->flags[behind] & STATE_END) &&
			         m->head[behind] < 0;
			e.to = place[behind];
			if (e.kind == EDGE_CALL)
				e.arg = place[to[e.arg]];
			if (e.kind == EDGE_BYTE || e.kind == EDGE_TOKEN)
				out->flags[i] |= STATE_EATS;
			out->edge[at++] = e;
		}
	}
	out->first[n] = at;
	for (int32_t i = 0; i < out->n_rep; i++) {
		out->rep[i] = m->rep[i];
		out->rep[i].start = place[to[m->rep[i].start]];
	}
	return true;
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
	prune(&m);
	skip_empty(&m, to);
	int32_t n = reach(&m, to, start, place, order);
	make_classes(&m, out);
	out->start = place[to[start]];
	out->has_tokens = m.has_tokens;
	return copy_out(&m, out, to, place, order, n)
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

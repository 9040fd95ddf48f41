/* The finished form of an automaton: edges without empty ones, classes of bytes, reachable states.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/automaton_internal.h"
#include "grammar/grammar_internal.h"

void
automaton_skip_empty(AutomatonBuilder *m, int32_t *to)
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
		if (to[end] != end) { /* not on a cycle of empty edges without an exit */
			to[q] = (int32_t)q;
			continue;
		}
		for (int32_t at = (int32_t)q, next; at != end; at = next) {
			next = to[at];
			to[at] = end;
		}
	}
}

void
automaton_make_classes(const AutomatonBuilder *m, Automaton *out)
{
	/* Always split classes at these bytes, which separate the plain characters of strings and
	 * the byte classes of UTF-8 in any grammar. */
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

/* State whose end must be reachable, besides the edge's target, for the edge to be kept; -1:
 * none. */
static int32_t
end_state_of_edge(const AutomatonBuilder *m, const Edge *e)
{
	if (e->kind == EDGE_CALL || e->kind == EDGE_NEED)
		return e->arg;
	return e->kind == EDGE_REP ? m->rep[e->arg].start : -1;
}

/* Marks states from which the end of the output or of a rule is reachable. Edges to other states
 * are dropped, so that an output cannot begin a part that it cannot complete. */
static uint8_t *
automaton_find_ends(const AutomatonBuilder *m)
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
				int32_t inner = end_state_of_edge(m, e);
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
			int32_t inner = end_state_of_edge(m, e), q = from[of[i]];
			if (good[q] || !good[e->to] || (inner >= 0 && !good[inner]))
				continue;
			good[q] = 1;
			todo[n++] = q;
		}
	}
	return good;
}

void
automaton_prune(AutomatonBuilder *m)
{
	const uint8_t *good = automaton_find_ends(m);

	for (size_t q = 0; q < m->n_state; q++)
		for (int32_t *k = &m->head[q]; *k >= 0;) {
			Edge *e = &m->link[*k].e;
			int32_t inner = end_state_of_edge(m, e);
			/* a path of a graph may end at a node without outgoing edges */
			bool over = e->kind == EDGE_TICK && (m->flags[q] & STATE_TICKS);
			if (!over && (!good[e->to] || (inner >= 0 && !good[inner]))) {
				*k = m->link[*k].next;
				continue;
			}
			if (e->kind == EDGE_TAKE)
				m->rep[e->arg].all |= (uint64_t)1 << e->lo;
			if (e->kind == EDGE_NEED)
				e->kind = EDGE_EPS;
			k = &m->link[*k].next;
		}
}

int32_t
automaton_reach(const AutomatonBuilder *m, const int32_t *to, int32_t start, int32_t *place,
                int32_t *todo)
{
	int32_t n = 0, done = 0;

	memset(place, -1, m->n_state * sizeof *place);
	place[to[start]] = n;
	todo[n++] = to[start];
	while (done < n) {
		int32_t q = todo[done++];
		for (int32_t k = m->head[q]; k >= 0; k = m->link[k].next) {
			const Edge *e = &m->link[k].e;
			int32_t go[3] = { to[e->to], -1, -1 };
			if (e->kind == EDGE_CALL)
				go[1] = to[e->arg];
			if (e->kind == EDGE_REP)
				go[1] = to[m->rep[e->arg].start];
			if (e->kind == EDGE_REP && m->rep[e->arg].unordered)
				go[2] = to[m->rep[e->arg].more];
			for (int i = 0; i < 3; i++)
				if (go[i] >= 0 && place[go[i]] < 0) {
					place[go[i]] = n;
					todo[n++] = go[i];
				}
		}
	}
	return n;
}

bool
automaton_copy_out(const AutomatonBuilder *m, Automaton *out, const int32_t *to,
                   const int32_t *place, const int32_t *order, int32_t n)
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
			int32_t target = to[e.to];
			e.tail = e.kind == EDGE_CALL && (m->flags[target] & STATE_END) &&
			         m->head[target] < 0;
			e.to = place[target];
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
		if (m->rep[i].unordered)
			out->rep[i].more = place[to[m->rep[i].more]];
	}
	return true;
}

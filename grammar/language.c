/* Regular languages of characters: intersections and complements of expressions, such as a pattern
 * together with a format, a length and a set of excluded strings.
 *
 * Each operand becomes an NFA over code points, in which anchors are edges that only the first or
 * the last position may take. Their intersection is made deterministic, states that reach no end
 * are removed, equivalent states are merged. A limit of length becomes a counter on the result, or
 * part of its states if a counter could lead to a dead end. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "grammar/language.h"
#include "grammar/language_internal.h"

typedef struct JointState {
	uint32_t at, n; /* nodes in Joint.item, operand after operand, each list ended by -1 */
} JointState;
typedef struct Joint {
	GrammarBuilder *b;
	Nfa *nfa; /* [n_op] */
	size_t n_op;
	uint32_t *bound; /* [n_range + 1] first code points of ranges that no edge splits */
	size_t n_range;
	int32_t *item;
	size_t n_item, cap_item;
	JointState *state;
	size_t n_state, cap_state;
	int32_t *bucket; /* [N_STATE_BUCKET] index + 1 */
	int32_t *same;   /* next state of a bucket */
	size_t cap_same;
	int32_t *next; /* [n_state][n_class] */
	size_t cap_next;
	uint8_t *accept;
	size_t cap_accept;
	int32_t *cls; /* [n_range] */
	int32_t n_class;
	uint32_t *class_char; /* [n_class] */
	int32_t *mark, *todo;
	int32_t stamp;
	size_t steps;
} Joint;
enum { N_STATE_BUCKET = 4096 };
/* Result of language_make, for further operands with equal NFAs. */
struct MadeLanguage {
	uint64_t hash;
	const Nfa *nfa; /* [n_op] */
	size_t n_op;
	Language language;
	bool small; /* false: the automaton would be too large */
	struct MadeLanguage *next;
};

static int
by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static int
by_index(const void *a, const void *b)
{
	int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return x < y ? -1 : x > y;
}

/* Whether every edge has both characters or none. */
static bool
same_edges(const Joint *p, uint32_t a, uint32_t b)
{
	for (size_t i = 0; i < p->n_op; i++)
		for (size_t e = 0; e < p->nfa[i].n_edge; e++) {
			const NfaEdge *x = &p->nfa[i].edge[e];
			if (x->kind == NFA_RANGE &&
			    (a >= x->lo && a <= x->hi) != (b >= x->lo && b <= x->hi))
				return false;
		}
	return true;
}

/* Splits the code points at all edges of all operands, and merges ranges into a class if every edge
 * treats them equally. */
static void
make_alphabet(Joint *p)
{
	Arena *a = p->b->a;
	size_t n = 4, n_edge = 0, k = 0;

	for (size_t i = 0; i < p->n_op; i++)
		n_edge += p->nfa[i].n_edge;
	uint32_t *bound = NEW(a, uint32_t, 2 * n_edge + 8);
	bound[0] = 0;
	bound[1] = 0xD800;
	bound[2] = 0xE000;
	bound[3] = 0x110000;
	for (size_t i = 0; i < p->n_op; i++)
		for (size_t e = 0; e < p->nfa[i].n_edge; e++)
			if (p->nfa[i].edge[e].kind == NFA_RANGE) {
				bound[n++] = p->nfa[i].edge[e].lo;
				bound[n++] = p->nfa[i].edge[e].hi + 1;
			}
	qsort(bound, n, sizeof *bound, by_value);
	for (size_t i = 0; i < n; i++)
		if ((!k || bound[i] != bound[k - 1]) && bound[i] <= 0x110000)
			bound[k++] = bound[i];
	p->bound = bound;
	p->n_range = k - 1;
	/* each edge has a random number: only ranges with equal sums can have equal sets of edges
	 */
	uint64_t *sum = NEW(a, uint64_t, k + 1);
	uint64_t seed = 0x9E3779B97F4A7C15u;
	for (size_t i = 0; i < p->n_op; i++)
		for (size_t e = 0; e < p->nfa[i].n_edge; e++) {
			const NfaEdge *x = &p->nfa[i].edge[e];
			if (x->kind != NFA_RANGE)
				continue;
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			uint64_t v = (seed ^ seed >> 29) * 0xBF58476D1CE4E5B9u;
			build_work_of(p->b, p->n_range / 8);
			for (size_t r = 0; r < p->n_range; r++)
				if (bound[r] >= x->lo && bound[r] <= x->hi)
					sum[r] += v;
		}
	p->cls = NEW(a, int32_t, k + 1);
	p->class_char = NEW(a, uint32_t, k + 1);
	for (size_t r = 0; r < p->n_range; r++) {
		size_t j = 0;
		bool surrogate = bound[r] >= 0xD800 && bound[r] < 0xE000;
		build_work_of(p->b, (r + n_edge) / 8);
		while (j < r && (sum[j] != sum[r] || p->cls[j] < 0))
			j++;
		if (j < r && !surrogate && !same_edges(p, bound[j], bound[r]))
			j = r; /* a collision: a class of its own is always right */
		p->cls[r] = surrogate ? -1 : j < r ? p->cls[j] : p->n_class;
		if (p->cls[r] == p->n_class)
			p->class_char[p->n_class++] = bound[r];
	}
}

/* Appends node q of operand i, and all nodes that q reaches without a character, to p->item. */
static void
close_nfa(Joint *p, size_t i, int32_t q, bool first)
{
	const Nfa *m = &p->nfa[i];
	size_t n = 0;

	if (p->mark[q] == p->stamp)
		return;
	p->mark[q] = p->stamp;
	p->todo[n++] = q;
	while (n) {
		int32_t at = p->todo[--n];
		bool eats = false;
		p->steps++;
		build_work(p->b);
		for (int32_t k = m->head[at]; k >= 0; k = m->edge[k].next) {
			const NfaEdge *e = &m->edge[k];
			eats |= e->kind == NFA_RANGE || e->kind == NFA_END;
			if ((e->kind == NFA_EMPTY || (e->kind == NFA_START && first)) &&
			    p->mark[e->to] != p->stamp) {
				p->mark[e->to] = p->stamp;
				p->todo[n++] = e->to;
			}
		}
		if (eats || m->ends[at] || (first && m->ends_first[at])) {
			p->item = arena_grow(p->b->a, p->item, &p->cap_item, p->n_item + 2,
			                     sizeof(int32_t));
			p->item[p->n_item++] = at;
		}
	}
}

static void
next_stamp(Joint *p)
{
	if (++p->stamp == INT32_MAX) {
		memset(p->mark, 0, MAX_NODES * sizeof *p->mark);
		p->stamp = 1;
	}
}

static void
end_operand(Joint *p, size_t from)
{
	qsort(p->item + from, p->n_item - from, sizeof *p->item, by_index);
	p->item = arena_grow(p->b->a, p->item, &p->cap_item, p->n_item + 1, sizeof *p->item);
	p->item[p->n_item++] = -1;
}

/* Interns the state whose nodes are the last ones of p->item; -1: too many. */
static int32_t
intern_state(Joint *p, size_t from, bool first)
{
	uint32_t n = (uint32_t)(p->n_item - from), h = first;

	for (uint32_t i = 0; i < n; i++)
		h = (h ^ (uint32_t)p->item[from + i]) * 0x9E3779B1u, h ^= h >> 15;
	int32_t *bucket = &p->bucket[h % N_STATE_BUCKET];
	for (int32_t k = *bucket - 1; k >= 0 && !first; k = p->same[k])
		if (k && p->state[k].n == n &&
		    !memcmp(p->item + p->state[k].at, p->item + from, n * sizeof *p->item)) {
			p->n_item = from;
			return k;
		}
	if (p->n_state >= MAX_DFA || (p->n_state + 1) * (size_t)p->n_class > MAX_TABLE ||
	    p->n_item > MAX_ITEMS || p->steps > MAX_STEPS ||
	    p->b->language_steps + p->steps > MAX_ALL)
		return -1;
	Arena *a = p->b->a;
	size_t k = p->n_state++;
	p->state = arena_grow(a, p->state, &p->cap_state, k + 1, sizeof *p->state);
	p->same = arena_grow(a, p->same, &p->cap_same, k + 1, sizeof *p->same);
	p->accept = arena_grow(a, p->accept, &p->cap_accept, k + 1, 1);
	p->next =
	    arena_grow(a, p->next, &p->cap_next, (k + 1) * (size_t)p->n_class + 1, sizeof *p->next);
	p->state[k] = (JointState){ (uint32_t)from, n };
	p->same[k] = *bucket - 1;
	*bucket = (int32_t)k + 1;
	size_t i = 0;
	bool all = true, some = false;
	for (uint32_t at = 0; at < n; at++) {
		int32_t q = p->item[from + at];
		if (q >= 0) {
			some |= first ? p->nfa[i].ends_first[q] : p->nfa[i].ends[q];
			continue;
		}
		all &= some != p->nfa[i++].negate;
		some = false;
	}
	p->accept[k] = all;
	return (int32_t)k;
}

/* Returns the state after a character of class c; -1: none, -2: the intersection is too large. */
static int32_t
step_joint(Joint *p, int32_t s, int32_t c)
{
	uint32_t x = p->class_char[c];
	size_t from = p->n_item, i = 0;
	JointState st = p->state[s];

	next_stamp(p);
	size_t begin = p->n_item;
	for (uint32_t at = 0; at < st.n; at++) {
		int32_t q = p->item[st.at + at];
		if (q < 0) {
			bool dead = p->n_item == begin && !p->nfa[i].negate;
			end_operand(p, begin);
			begin = p->n_item;
			i++;
			next_stamp(p);
			if (dead) {
				p->n_item = from;
				return -1;
			}
			continue;
		}
		for (int32_t k = p->nfa[i].head[q]; k >= 0; k = p->nfa[i].edge[k].next) {
			const NfaEdge *e = &p->nfa[i].edge[k];
			if (e->kind == NFA_RANGE && x >= e->lo && x <= e->hi)
				close_nfa(p, i, e->to, false);
		}
	}
	int32_t t = intern_state(p, from, false);
	return t < 0 ? -2 : t;
}

/* Removes states from which no accepting state is reachable, then merges equivalent states. */
static void
minimize(Joint *p, Language *out)
{
	Arena *a = p->b->a;
	size_t n = p->n_state, nc = (size_t)p->n_class;
	uint8_t *live = NEW(a, uint8_t, n + 1);
	bool more = true;

	memcpy(live, p->accept, n);
	while (more) {
		more = false;
		build_work_of(p->b, n * nc / 8);
		for (size_t s = n; s-- > 0;)
			for (size_t c = 0; c < nc && !live[s]; c++) {
				int32_t t = p->next[s * nc + c];
				if (t >= 0 && live[t])
					live[s] = more = true;
			}
	}
	int32_t *group = NEW(a, int32_t, n + 1), *fresh = NEW(a, int32_t, n + 1),
	        *table = NEW(a, int32_t, 2 * n + 16), *chain = NEW(a, int32_t, n + 1);
	size_t n_table = 2 * n + 16;
	int32_t n_group = 0, before = -1;
	for (size_t s = 0; s < n; s++)
		group[s] = !live[s] ? -1 : p->accept[s] ? 1 : 0;
	while (n_group != before) {
		before = n_group;
		n_group = 0;
		build_work_of(p->b, n * nc / 8);
		memset(table, -1, n_table * sizeof *table);
		for (size_t s = 0; s < n; s++) {
			if (!live[s]) {
				fresh[s] = -1;
				continue;
			}
			uint32_t h = (uint32_t)group[s] + 1;
			for (size_t c = 0; c < nc; c++) {
				int32_t t = p->next[s * nc + c];
				h = (h ^ (uint32_t)(t < 0 ? -1 : group[t])) * 0x9E3779B1u;
				h ^= h >> 15;
			}
			int32_t *slot = &table[h % n_table], k = *slot;
			for (; k >= 0; k = chain[k]) {
				bool equal = group[k] == group[s];
				for (size_t c = 0; equal && c < nc; c++) {
					int32_t t = p->next[s * nc + c],
					        u = p->next[(size_t)k * nc + c];
					equal = (t < 0 ? -1 : group[t]) == (u < 0 ? -1 : group[u]);
				}
				if (equal)
					break;
			}
			if (k >= 0) {
				fresh[s] = fresh[k];
				continue;
			}
			chain[s] = *slot;
			*slot = (int32_t)s;
			fresh[s] = n_group++;
		}
		memcpy(group, fresh, n * sizeof *group);
	}
	if (!live[0]) {
		out->n = 0;
		return;
	}
	/* number the groups from the start state on, which becomes state 0 */
	int32_t *number = NEW(a, int32_t, (size_t)n_group + 1),
	        *first = NEW(a, int32_t, (size_t)n_group + 1);
	for (int32_t g = 0; g < n_group; g++)
		number[g] = -1;
	out->n = 0;
	for (size_t s = 0; s < n; s++)
		if (live[s] && number[group[s]] < 0) {
			number[group[s]] = out->n;
			first[out->n++] = (int32_t)s;
		}
	out->n_class = p->n_class;
	out->next = NEW(a, int32_t, (size_t)out->n *nc + 1);
	out->accept = NEW(a, uint8_t, (size_t)out->n + 1);
	for (int32_t k = 0; k < out->n; k++) {
		size_t s = (size_t)first[k];
		out->accept[k] = p->accept[s];
		for (size_t c = 0; c < nc; c++) {
			int32_t t = p->next[s * nc + c];
			out->next[(size_t)k * nc + c] = t < 0 || !live[t] ? -1 : number[group[t]];
		}
	}
	out->bound = p->bound;
	out->n_range = p->n_range;
	out->cls = p->cls;
}

static bool
make_operands(Joint *p, const Operand *op, size_t n_op)
{
	Arena *a = p->b->a;

	p->nfa = NEW(a, Nfa, n_op + 1);
	p->n_op = n_op;
	for (size_t i = 0; i < n_op; i++) {
		Nfa *m = &p->nfa[i];
		*m = (Nfa){ .a = a };
		int32_t start = nfa_node(m);
		m->end = nfa_node(m);
		nfa_build(m, op[i].x, start, m->end, 0);
		if (m->words && !m->failed)
			nfa_expand_words(m);
		if (m->failed)
			return false;
		m->negate = op[i].negate;
	}
	return true;
}

/* Returns false if the automaton would be too large. */
static bool
intersect(Joint *p, Language *out)
{
	GrammarBuilder *b = p->b;
	size_t most = 1;

	for (size_t i = 0; i < p->n_op; i++) {
		Nfa *m = &p->nfa[i];
		m->ends = nfa_find_ends(m, false);
		m->ends_first = nfa_find_ends(m, true);
		most = m->n > most ? m->n : most;
	}
	make_alphabet(p);
	p->mark = NEW(b->a, int32_t, most > MAX_NODES ? most : MAX_NODES);
	p->todo = NEW(b->a, int32_t, most + 1);
	p->bucket = NEW(b->a, int32_t, N_STATE_BUCKET);
	for (size_t i = 0; i < p->n_op; i++) {
		size_t from = p->n_item;
		next_stamp(p);
		close_nfa(p, i, 0, true);
		end_operand(p, from);
	}
	if (intern_state(p, 0, true) < 0)
		return false;
	for (size_t s = 0; s < p->n_state; s++) {
		build_work_of(b, (size_t)p->n_class);
		for (int32_t c = 0; c < p->n_class; c++) {
			int32_t t = step_joint(p, (int32_t)s, c);
			if (t == -2)
				return false;
			p->next[s * (size_t)p->n_class + (size_t)c] = t;
		}
	}
	b->language_steps += p->steps;
	minimize(p, out);
	return true;
}

static uint64_t
hash_operands(const Joint *p)
{
	uint64_t h = p->n_op;

	for (size_t i = 0; i < p->n_op; i++) {
		const Nfa *m = &p->nfa[i];
		build_work_of(p->b, m->n_edge / 8);
		h = (h ^ m->negate) * 0x9E3779B97F4A7C15u;
		for (size_t e = 0; e < m->n_edge; e++) {
			const NfaEdge *x = &m->edge[e];
			h = (h ^ ((uint64_t)x->lo << 32 | x->hi)) * 0x9E3779B97F4A7C15u;
			h = (h ^ h >> 29 ^ (uint64_t)x->kind << 32 ^ (uint32_t)x->to) *
			    0xBF58476D1CE4E5B9u;
		}
	}
	return h ^ h >> 32;
}

static bool
same_operands(const Joint *p, const MadeLanguage *made)
{
	if (made->n_op != p->n_op)
		return false;
	for (size_t i = 0; i < p->n_op; i++) {
		const Nfa *x = &p->nfa[i], *y = &made->nfa[i];
		if (x->negate != y->negate || x->end != y->end || x->n != y->n ||
		    x->n_edge != y->n_edge || memcmp(x->head, y->head, x->n * sizeof *x->head) ||
		    (x->n_edge && memcmp(x->edge, y->edge, x->n_edge * sizeof *x->edge)))
			return false;
	}
	return true;
}

bool
language_make(GrammarBuilder *b, const Operand *op, size_t n_op, Language *out)
{
	Joint *p = NEW(b->a, Joint, 1);

	*out = (Language){ 0 };
	*p = (Joint){ .b = b };
	if (!make_operands(p, op, n_op))
		return false;
	const uint64_t hash = hash_operands(p);
	MadeLanguage **bucket = &b->language[hash % N_LANGUAGE_BUCKET], *made = *bucket;
	while (made && (made->hash != hash || !same_operands(p, made)))
		made = made->next;
	if (!made) {
		made = NEW(b->a, MadeLanguage, 1);
		*made = (MadeLanguage){ .hash = hash, .nfa = p->nfa, .n_op = n_op };
		made->small = intersect(p, &made->language);
		made->next = *bucket;
		*bucket = made;
	}
	*out = made->language;
	return made->small;
}

bool
language_has(const Language *l, const char *s, size_t n)
{
	int32_t q = l->n ? 0 : -1;
	size_t len;

	for (size_t i = 0; i < n && q >= 0; i += len) {
		uint32_t c = (uint32_t)utf8_next(s + i, n - i, &len);
		size_t lo = 0, hi = l->n_range;
		while (hi - lo > 1) {
			size_t mid = (lo + hi) / 2;
			if (l->bound[mid] <= c)
				lo = mid;
			else
				hi = mid;
		}
		q = l->cls[lo] < 0 ? -1
		                   : l->next[(size_t)q * (size_t)l->n_class + (size_t)l->cls[lo]];
	}
	return q >= 0 && l->accept[q];
}

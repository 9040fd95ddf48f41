/* Nondeterministic automaton of an expression of a grammar. */
#include "base/utf8.h"
#include "grammar/language_internal.h"

int32_t
nfa_node(Nfa *m)
{
	if (m->n >= MAX_NODES) {
		m->failed = true;
		return 0;
	}
	m->head = arena_grow(m->a, m->head, &m->cap_head, m->n + 1, sizeof *m->head);
	m->head[m->n] = -1;
	return (int32_t)m->n++;
}

static void
nfa_link(Nfa *m, NfaKind kind, int32_t from, int32_t to, uint32_t lo, uint32_t hi)
{
	if (m->n_edge >= 8 * MAX_NODES) {
		m->failed = true;
		return;
	}
	m->edge = arena_grow(m->a, m->edge, &m->cap_edge, m->n_edge + 1, sizeof *m->edge);
	m->edge[m->n_edge] =
	    (NfaEdge){ .kind = kind, .lo = lo, .hi = hi, .to = to, .next = m->head[from] };
	m->head[from] = (int32_t)m->n_edge++;
}

static void
build_repeat(Nfa *m, const Expr *x, int32_t from, int32_t to, int depth)
{
	int32_t at = from;

	for (int32_t i = 0; i < x->min && !m->failed; i++) {
		int32_t next = nfa_node(m);
		nfa_build(m, x->part[0], at, next, depth);
		at = next;
	}
	if (x->max < 0) {
		int32_t loop = nfa_node(m), back = nfa_node(m);
		nfa_link(m, NFA_EMPTY, at, loop, 0, 0);
		nfa_build(m, x->part[0], loop, back, depth);
		nfa_link(m, NFA_EMPTY, back, loop, 0, 0);
		nfa_link(m, NFA_EMPTY, loop, to, 0, 0);
		return;
	}
	for (int32_t i = x->min; i < x->max && !m->failed; i++) {
		int32_t next = nfa_node(m);
		nfa_link(m, NFA_EMPTY, at, to, 0, 0);
		nfa_build(m, x->part[0], at, next, depth);
		at = next;
	}
	nfa_link(m, NFA_EMPTY, at, to, 0, 0);
}

static void
build_bytes(Nfa *m, const Expr *x, int32_t from, int32_t to)
{
	size_t len;

	for (int32_t i = 0; i < x->n; i += (int32_t)len) {
		uint32_t c = (uint32_t)utf8_next(x->bytes + i, (size_t)(x->n - i), &len);
		int32_t next = nfa_node(m);
		nfa_link(m, NFA_RANGE, from, next, c, c);
		from = next;
	}
	nfa_link(m, NFA_EMPTY, from, to, 0, 0);
}

/* Builds decimal numbers with at most n decimals. Written with all n decimals and without the
 * point, their digits are a multiple of d. Nodes are the remainders after 0..n decimals. */
static void
build_multiple(Nfa *m, int32_t d, int32_t n, int32_t from, int32_t to)
{
	int32_t first = (int32_t)m->n, scale = 1;

	if ((int64_t)d * (n + 1) > MAX_NODES / 2) {
		m->failed = true;
		return;
	}
	for (int32_t i = 0; i < d * (n + 1); i++)
		nfa_node(m);
	int32_t zero = nfa_node(m); /* node for the integer part 0, after which no digit may come */
	nfa_link(m, NFA_RANGE, from, zero, '0', '0');
	for (int32_t c = 1; c < 10; c++)
		nfa_link(m, NFA_RANGE, from, first + c % d, (uint32_t)('0' + c),
		         (uint32_t)('0' + c));
	for (int32_t i = 0; i < n; i++)
		scale = (int32_t)((int64_t)scale * 10 % d);
	nfa_link(m, NFA_EMPTY, zero, to, 0, 0);
	for (int32_t k = 0; k <= n && !m->failed; k++) {
		for (int32_t r = 0; r < d; r++) {
			int32_t at = first + k * d + r, next = first + (k ? (k + 1) * d : 0);
			if ((int64_t)r * scale % d == 0)
				nfa_link(m, NFA_EMPTY, at, to, 0, 0);
			for (int32_t c = 0; c < 10 && (!k || k < n); c++)
				nfa_link(m, NFA_RANGE, at,
				         next + (int32_t)(((int64_t)r * 10 + c) % d),
				         (uint32_t)('0' + c), (uint32_t)('0' + c));
			for (int32_t z = 0; k == 0 && n && z < 2; z++) {
				if (z && r)
					continue;
				int32_t point = nfa_node(m);
				nfa_link(m, NFA_RANGE, z ? zero : at, point, '.', '.');
				for (int32_t c = 0; c < 10; c++)
					nfa_link(m, NFA_RANGE, point,
					         first + d + (int32_t)(((int64_t)r * 10 + c) % d),
					         (uint32_t)('0' + c), (uint32_t)('0' + c));
			}
		}
		/* with one more decimal written, the remaining factor of 10^k is 10 times
		 * smaller */
		scale = 1 % d;
		for (int32_t i = k + 1; i < n; i++)
			scale = (int32_t)((int64_t)scale * 10 % d);
	}
}

void
nfa_build(Nfa *m, const Expr *x, int32_t from, int32_t to, int depth)
{
	static const NfaKind anchors[] = { NFA_START, NFA_END, NFA_WORD, NFA_NO_WORD };
	int32_t at = from;

	if (m->failed || depth > 1000) {
		m->failed = true;
		return;
	}
	switch (x->kind) {
	case EXPR_CHARS:
		for (int32_t i = 0; i < x->n; i++)
			nfa_link(m, NFA_RANGE, from, to, x->range[i].lo, x->range[i].hi);
		break;
	case EXPR_SEQ:
		for (int32_t i = 0; i < x->n; i++) {
			int32_t next = nfa_node(m);
			nfa_build(m, x->part[i], at, next, depth + 1);
			at = next;
		}
		nfa_link(m, NFA_EMPTY, at, to, 0, 0);
		break;
	case EXPR_ALT:
		for (int32_t i = 0; i < x->n; i++)
			nfa_build(m, x->part[i], from, to, depth + 1);
		break;
	case EXPR_REP:
		build_repeat(m, x, from, to, depth + 1);
		break;
	case EXPR_BYTES:
		build_bytes(m, x, from, to);
		break;
	case EXPR_ANCHOR:
		nfa_link(m, anchors[x->min], from, to, 0, 0);
		m->words |= x->min >= ANCHOR_WORD;
		break;
	case EXPR_MULTIPLE:
		build_multiple(m, x->min, x->n, from, to);
		break;
	case EXPR_RULE:
	case EXPR_ORDER:
	case EXPR_UNORDERED:
	case EXPR_TOKEN:
	case EXPR_GRAPH:
		m->failed = true;
		break;
	}
}

/* Node q of an automaton without word boundaries: the last character was one of a word or not, and
 * the next one may be any, must be one of a word, or must be none or the end. */
enum { NEXT_ANY, NEXT_WORD, NEXT_OTHER, N_NEXT };

static int32_t
word_node(int32_t q, int after_word, int next)
{
	return (q * 2 + after_word) * N_NEXT + next;
}

/* Links the characters of an edge that are in a word (or are not) and match what comes next. */
static void
link_chars(Nfa *out, const NfaEdge *e, int32_t from, bool word, int next)
{
	static const uint32_t bounds[] = { 0,   '0',     '9' + 1, 'A',     'Z' + 1,
		                           '_', '_' + 1, 'a',     'z' + 1, 0x110000 };

	if (next != NEXT_ANY && (next == NEXT_WORD) != word)
		return;
	for (size_t i = word; i + 1 < sizeof bounds / sizeof *bounds; i += 2) {
		uint32_t lo = e->lo > bounds[i] ? e->lo : bounds[i],
		         hi = e->hi < bounds[i + 1] - 1 ? e->hi : bounds[i + 1] - 1;
		if (lo <= hi)
			nfa_link(out, NFA_RANGE, from, word_node(e->to, word, NEXT_ANY), lo, hi);
	}
}

static void
expand_edge(Nfa *out, const NfaEdge *e, int32_t q, int after_word, int next)
{
	const int32_t from = word_node(q, after_word, next);
	int must;

	switch (e->kind) {
	case NFA_RANGE:
		link_chars(out, e, from, false, next);
		link_chars(out, e, from, true, next);
		return;
	case NFA_EMPTY:
	case NFA_START:
		nfa_link(out, e->kind, from, word_node(e->to, after_word, next), 0, 0);
		return;
	case NFA_END:
		if (next != NEXT_WORD)
			nfa_link(out, NFA_END, from, word_node(e->to, after_word, next), 0, 0);
		return;
	case NFA_WORD:
	case NFA_NO_WORD:
		must = (e->kind == NFA_WORD) != after_word ? NEXT_WORD : NEXT_OTHER;
		if (next == NEXT_ANY || next == must)
			nfa_link(out, NFA_EMPTY, from, word_node(e->to, after_word, must), 0, 0);
		return;
	}
}

void
nfa_expand_words(Nfa *m)
{
	Nfa out = { .a = m->a };

	for (size_t i = 0; i < m->n * 2 * N_NEXT && !out.failed; i++)
		nfa_node(&out);
	out.end = nfa_node(&out);
	for (int32_t q = 0; q < (int32_t)m->n && !out.failed; q++)
		for (int i = 0; i < 2 * N_NEXT; i++)
			for (int32_t k = m->head[q]; k >= 0; k = m->edge[k].next)
				expand_edge(&out, &m->edge[k], q, i / N_NEXT, i % N_NEXT);
	for (int i = 0; i < 2 * N_NEXT && !out.failed; i++)
		if (i % N_NEXT != NEXT_WORD)
			nfa_link(&out, NFA_EMPTY, word_node(m->end, i / N_NEXT, i % N_NEXT),
			         out.end, 0, 0);
	*m = out;
}

uint8_t *
nfa_find_ends(const Nfa *m, bool first)
{
	uint8_t *good = NEW(m->a, uint8_t, m->n + 1);
	bool more = true;

	good[m->end] = 1;
	while (more) { /* edges mostly lead to later nodes, so few passes are needed */
		more = false;
		for (size_t q = m->n; q-- > 0;)
			for (int32_t k = m->head[q]; k >= 0 && !good[q]; k = m->edge[k].next) {
				const NfaEdge *e = &m->edge[k];
				if (e->kind != NFA_RANGE && (first || e->kind != NFA_START) &&
				    good[e->to])
					good[q] = more = true;
			}
	}
	return good;
}

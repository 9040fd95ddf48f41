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

/* Decimal numbers with at most n decimals whose digits without the point are a multiple of d, as if
 * all n decimals were written. Nodes are remainders after 0..n decimals. */
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
	int32_t zero = nfa_node(m); /* an integer part 0, which no digit follows */
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
		/* one more decimal is written: the rest has one factor of 10 less */
		scale = 1 % d;
		for (int32_t i = k + 1; i < n; i++)
			scale = (int32_t)((int64_t)scale * 10 % d);
	}
}

void
nfa_build(Nfa *m, const Expr *x, int32_t from, int32_t to, int depth)
{
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
		nfa_link(m, x->min ? NFA_END : NFA_START, from, to, 0, 0);
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

/* Computes masks by walking the vocabulary's tries from a state set. The walk uses the set with cut
 * stacks, so masks do not depend on the nesting depth. Tokens that depend on frames below the cut
 * are stored as trie nodes and tried on the full set each time. If all plain characters are
 * allowed, without limit or up to a count, the mask of plain tokens is copied, and only other
 * tokens are walked. */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum { MAX_REACH = 96 }; /* sets reachable by plain characters */

static void
allow(const TokenVocab *l, int32_t id, uint32_t *mask)
{
	for (; id >= 0; id = l->same[id])
		mask[id >> 5] |= 1u << (id & 31);
}

/* Returns the length of the plain character that begins with byte c, and the range of its second
 * byte; 0: c begins no plain character. */
static int
plain_lead(uint8_t c, uint8_t *lo, uint8_t *hi)
{
	*lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
	*hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
	return c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
}

/* Sets reached by plain characters, and whether some characters are allowed and some are not. */
typedef struct MaskWalk {
	int32_t set[MAX_REACH];
	/* latest: index of the set found last, because most characters lead to one set */
	int n, latest;
	bool full, lives, dies;
} MaskWalk;

/* Follows characters from set `at` to their last bytes. slice: merge counts that no token of the
 * slice can bring to a limit (-1: merge none). */
static void
reach_tail(Grammar *g, int32_t at, int left, uint8_t lo, uint8_t hi, int slice, MaskWalk *r)
{
	if (!left) {
		int32_t end = slice < 0 ? at : set_canon(g, at, slice);
		int i = 0;
		r->lives = true;
		if (r->n && r->set[r->latest] == end)
			return;
		while (i < r->n && r->set[i] != end)
			i++;
		r->full |= i == MAX_REACH;
		if (i == r->n && i < MAX_REACH)
			r->set[r->n++] = end;
		r->latest = i < MAX_REACH ? i : 0;
		return;
	}
	for (int k = g->m.cls[lo]; k <= g->m.cls[hi]; k++) {
		int32_t t = set_step(g, at, k);
		if (t)
			reach_tail(g, t, left - 1, 0x80, 0xBF, slice, r);
		else
			r->dies = true;
	}
}

/* Advances one plain character from s; stops once some are known to be allowed and some not. */
static void
advance_plain_char(Grammar *g, int32_t s, int slice, MaskWalk *r)
{
	uint8_t lo, hi;

	for (int k = 0; k < g->m.n_class && !(r->lives && r->dies); k++) {
		uint8_t c = g->m.byte_of[k];
		int n = plain_lead(c, &lo, &hi);
		if (!n || c < 0x20 || c == '"' || c == '\\' || c == 0x7F)
			continue;
		int32_t t = set_step(g, s, k);
		if (t)
			reach_tail(g, t, n - 1, lo, hi, slice, r);
		else
			r->dies = true;
	}
}

/* Returns whether every sequence of plain characters may follow s, up to the length of the longest
 * token of the slice. Visits all sets in between. */
static bool
plain_loops(Grammar *g, int32_t s, int slice)
{
	MaskWalk r = { .n = 1, .set = { set_canon(g, s, slice) } };

	for (int i = 0; i < r.n && !r.dies && !r.full && !g->touched; i++)
		advance_plain_char(g, r.set[i], slice, &r);
	return !r.dies && !r.full && !g->touched;
}

/* Returns the largest number of plain characters of any kind that may follow. -1: it depends on
 * the characters, or the number is too large. */
static int
plain_most(Grammar *g, int32_t s)
{
	MaskWalk at = { .n = 1, .set = { s } };

	for (int n = 0; n <= N_BRIEF; n++) {
		MaskWalk next = { 0 };
		for (int i = 0; i < at.n; i++) {
			advance_plain_char(g, at.set[i], -1, &next);
			if ((next.lives && next.dies) || next.full || g->touched)
				return -1;
		}
		if (!next.lives)
			return n;
		at = next;
	}
	return -1;
}

/* Computes Set.plain: the plain tokens that are allowed or excluded without a walk. */
static int
plain_of(Grammar *g, int32_t s)
{
	int plain = g->t.set[s].plain;
	bool before = g->touched;

	if (plain >= 0)
		return plain;
	MaskWalk one = { 0 };
	g->touched = false;
	advance_plain_char(g, s, -1, &one);
	bool some = one.lives && !one.dies && !g->touched;
	for (plain = some ? 0 : N_SLICE; plain < N_SLICE; plain++) {
		g->touched = false;
		if (plain_loops(g, s, plain))
			break;
	}
	g->touched = false;
	int most = plain < N_SLICE || (one.lives && one.dies) ? -1 : plain_most(g, s);
	if (most >= 0)
		plain = N_SLICE + 1 + most;
	g->touched = before;
	g->t.set[s].plain = (int8_t)plain;
	return plain;
}

static void
uncertain(Grammar *g, const TokenTrie *t, size_t node, int depth)
{
	Tables *x = &g->t;

	if (g->n_unc == g->cap_unc) {
		size_t cap = g->cap_unc ? 2 * g->cap_unc : 64;
		UncertainTokens *u = realloc(g->unc, cap * sizeof *u);
		if (!u)
			grammar_fault(g, LLMC_E_MEMORY, "out of memory for a mask");
		g->unc = u;
		g->cap_unc = cap;
	}
	if (x->n_path + (size_t)depth > x->cap_path) {
		size_t cap = 2 * x->cap_path + 1024 + (size_t)depth;
		uint8_t *p = realloc(x->path, cap);
		if (!p)
			grammar_fault(g, LLMC_E_MEMORY, "out of memory for a mask");
		x->path = p;
		x->cap_path = cap;
	}
	g->unc[g->n_unc++] = (UncertainTokens){ t, (uint32_t)node, (uint32_t)x->n_path };
	if (depth)
		memcpy(x->path + x->n_path, g->path, (size_t)depth);
	x->n_path += (size_t)depth;
}

/* Walks nodes from..end. st[depth of the first node] is the set of its parent. note: record nodes
 * whose result depends on frames below the cut. */
static void
walk(Grammar *g, const TokenTrie *trie, size_t from, size_t end, uint32_t *mask, bool note)
{
	const TokenVocab *l = g->lexicon;
	int32_t *st = g->stack;

	for (size_t i = from; i < end;) {
		const TrieNode *n = &trie->v[i];
		g->touched = false;
		int32_t t = set_step(g, st[n->depth], g->m.cls[n->byte]);
		if (note)
			g->path[n->depth] = n->byte;
		if (note && g->touched) {
			uncertain(g, trie, i, n->depth);
			i += n->skip;
		} else if (!t) {
			i += n->skip;
		} else {
			if (n->token >= 0)
				allow(l, n->token, mask);
			st[n->depth + 1] = t;
			i++;
		}
	}
}

static void
make_mask(Grammar *g, int32_t c)
{
	const TokenVocab *l = g->lexicon;
	int plain = plain_of(g, c);
	const TokenTrie *trie = plain < N_SLICE   ? &l->rest[plain]
	                        : plain > N_SLICE ? &l->rest[0]
	                                          : &l->all;
	size_t bytes = l->n_words * sizeof(uint32_t);
	uint32_t *mask = calloc(l->n_words + 1, sizeof *mask);

	if (!mask)
		grammar_fault(g, LLMC_E_MEMORY, "out of memory for a mask");
	g->t.set[c].exact =
	    /* owned by the table, so that it is freed after an error; the field `exact` is unused
	     * in a cut set */
	    mask;
	if (plain != N_SLICE)
		memcpy(mask,
		       plain < N_SLICE ? l->plain[plain]
		                       : l->brief + (size_t)(plain - N_SLICE - 1) * l->n_words,
		       bytes);
	g->n_unc = 0;
	g->stack[0] = c;
	walk(g, trie, 0, trie->n, mask, true);
	UncertainTokens *unc = NULL;
	if (g->n_unc) {
		unc = malloc(g->n_unc * sizeof *unc);
		if (!unc)
			grammar_fault(g, LLMC_E_MEMORY, "out of memory for a mask");
		memcpy(unc, g->unc, g->n_unc * sizeof *unc);
	}
	Set *s = &g->t.set[c];
	s->exact = NULL;
	s->mask = mask;
	s->unc = unc;
	s->n_unc = (uint32_t)g->n_unc;
	g->t.heap += bytes + g->n_unc * sizeof *unc;
}

static void
exact(Grammar *g, int32_t s, const Set *c, uint32_t *mask)
{
	for (uint32_t i = 0; i < c->n_unc; i++) {
		UncertainTokens u = c->unc[i];
		const TrieNode *n = &u.trie->v[u.node];
		int32_t q = s;
		for (int k = 0; q && k < n->depth; k++)
			q = set_step(g, q, g->m.cls[g->t.path[u.path + (uint32_t)k]]);
		if (!q)
			continue;
		g->stack[n->depth] = q;
		walk(g, u.trie, u.node, u.node + n->skip, mask, false);
	}
}

static void
tokens(Grammar *g, int32_t s, uint32_t *mask)
{
	Set x = g->t.set[s];

	for (uint32_t i = 0; i < x.n; i++) {
		int32_t q = g->t.conf[x.at + i].q;
		for (int32_t k = g->m.first[q]; k < g->m.first[q + 1]; k++) {
			const Edge *e = &g->m.edge[k];
			if (e->kind == EDGE_TOKEN && e->arg >= 0 &&
			    (size_t)e->arg < 32 * g->lexicon->n_words)
				mask[e->arg >> 5] |= 1u << (e->arg & 31);
		}
	}
}

const uint32_t *
set_mask(Grammar *g, int32_t s, uint32_t *room)
{
	size_t bytes = g->lexicon->n_words * sizeof *room;
	int32_t full = set_canon(g, s, 0), c = set_cut(g, full);

	if (full == 0) {
		memset(room, 0, bytes);
		return room;
	}
	if (g->t.set[full].exact && full != c)
		return g->t.set[full].exact;
	if (!g->t.set[c].mask)
		make_mask(g, c);
	Set x = g->t.set[c];
	bool accept = g->t.set[full].accept;
	if (!x.n_unc && !accept && !g->t.set[full].tokens)
		return x.mask;
	memcpy(room, x.mask, bytes);
	exact(g, full, &x, room);
	if (accept)
		for (int32_t i = 0; i < g->n_eos; i++)
			if (g->eos[i] >= 0 && g->eos[i] < g->lexicon->n_tok)
				room[g->eos[i] >> 5] |= 1u << (g->eos[i] & 31);
	if (g->t.set[full].tokens)
		tokens(g, full, room);
	if (full != c && x.n_unc > 4) { /* cache the mask if computing it again takes time */
		uint32_t *keep = malloc(bytes + 1);
		if (keep) {
			memcpy(keep, room, bytes);
			g->t.set[full].exact = keep;
			g->t.heap += bytes;
		}
	}
	return room;
}

/* Sets of (state, stack) pairs are the deterministic states, which are built as outputs reach them.
 * Stacks are hash-consed frames, so a set is a sorted list of pairs of numbers. A repetition is one
 * frame with a count. Sets that no token can distinguish are merged (canon). Masks are computed for
 * sets with cut stacks, and steps that depend on frames below the cut are recorded. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline.h"
#include "grammar/grammar_internal.h"

enum { MAX_WORK = 1 << 26, MAX_BYTES = 192 << 20, CONFS_PER_CHECK = 1 << 14 };

void
grammar_fault(Grammar *g, llmc_status status, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	error_set(g->err, status, "%s", text);
	longjmp(g->fault, 1);
}

static void *
grow_array(Grammar *g, void *p, size_t n, size_t *cap, size_t elem)
{
	if (n < *cap)
		return p;
	size_t more = *cap ? 2 * *cap : 64;
	void *v = realloc(p, more * elem);
	if (!v)
		grammar_fault(g, LLMC_E_MEMORY, "out of memory for the states of a grammar");
	*cap = more;
	if (tables_bytes(g) > MAX_BYTES) {
		/* do not fail here, where the caller has not stored v yet, but at the next check */
		g->work = MAX_WORK;
	}
	return v;
}

size_t
tables_bytes(const Grammar *g)
{
	const Tables *t = &g->t;

	return t->cap_frame * sizeof *t->frame + t->cap_conf * sizeof *t->conf +
	       t->cap_set * sizeof *t->set + t->cap_next * sizeof *t->next +
	       (t->frames.cap + t->sets.cap) * sizeof(int32_t) + t->cap_path + t->heap;
}

void
tables_release(Tables *t)
{
	for (size_t i = 0; i < t->n_set; i++) {
		free(t->set[i].mask);
		free(t->set[i].exact);
		free(t->set[i].unc);
	}
	free(t->frame);
	free(t->conf);
	free(t->set);
	free(t->next);
	free(t->path);
	free(t->frames.at);
	free(t->sets.at);
	*t = (Tables){ 0 };
}

static uint32_t
mix(uint32_t h, uint32_t v)
{
	h = (h ^ v) * 0x9E3779B1u;
	return h ^ h >> 15;
}

/* Grows the index for one more entry, so that it stays at most half full. key returns the hash of
 * an entry. */
static void
hash_room(Grammar *g, HashIndex *h, uint32_t (*key)(const Grammar *g, int32_t i), size_t n)
{
	if (2 * (n + 1) < h->cap)
		return;
	size_t cap = h->cap ? 2 * h->cap : 1024;
	int32_t *at = malloc(cap * sizeof *at);
	if (!at)
		grammar_fault(g, LLMC_E_MEMORY, "out of memory for the states of a grammar");
	memset(at, -1, cap * sizeof *at);
	for (size_t i = 0; i < n; i++) {
		size_t k = key(g, (int32_t)i) & (cap - 1);
		while (at[k] >= 0)
			k = (k + 1) & (cap - 1);
		at[k] = (int32_t)i;
	}
	free(h->at);
	h->at = at;
	h->cap = cap;
}

/* ---- frames ---- */

static uint32_t
frame_hash(int32_t parent, int32_t edge, int64_t count)
{
	uint32_t h = mix(mix(mix(1, (uint32_t)parent), (uint32_t)edge), (uint32_t)count);

	return count >> 32 ? mix(h, (uint32_t)(count >> 32)) : h;
}

static uint32_t
frame_key(const Grammar *g, int32_t i)
{
	const Frame *f = &g->t.frame[i];

	return frame_hash(f->parent, f->edge, f->count);
}

static int32_t
frame(Grammar *g, int32_t parent, int32_t edge, int64_t count)
{
	Tables *t = &g->t;

	hash_room(g, &t->frames, frame_key, t->n_frame);
	size_t k = frame_hash(parent, edge, count) & (t->frames.cap - 1);
	for (; t->frames.at[k] >= 0; k = (k + 1) & (t->frames.cap - 1)) {
		const Frame *f = &t->frame[t->frames.at[k]];
		if (f->parent == parent && f->edge == edge && f->count == count)
			return t->frames.at[k];
	}
	t->frame = grow_array(g, t->frame, t->n_frame, &t->cap_frame, sizeof *t->frame);
	t->frame[t->n_frame] = (Frame){ .parent = parent,
		                        .edge = edge,
		                        .count = count,
		                        .depth = edge < 0 ? 0 : t->frame[parent].depth + 1,
		                        .canon = { -1, -1, -1 } };
	t->frames.at[k] = (int32_t)t->n_frame;
	return (int32_t)t->n_frame++;
}

/* Maps counts that no token of this slice can bring to a limit to one value. */
static int32_t
frame_canon(Grammar *g, int32_t f, int slice)
{
	if (f <= FRAME_BOTTOM)
		return f;
	if (g->t.frame[f].canon[slice] >= 0)
		return g->t.frame[f].canon[slice];
	Frame x = g->t.frame[f];
	const Edge *e = &g->m.edge[x.edge];
	int32_t far = g->limit[slice];
	int64_t count = x.count;
	if (e->kind == EDGE_REP && !g->m.rep[e->arg].unordered) {
		const Repeat *r = &g->m.rep[e->arg];
		if (count < r->min && r->min - count > far && !r->exact &&
		    (r->max < 0 || r->max - count > far + r->slack))
			count = 1;
		else if (count >= r->min && r->max >= 0 && r->max - count > far + r->slack)
			count = r->min > 1 ? r->min : 1;
	}
	int32_t parent = frame_canon(g, x.parent, slice), k = frame(g, parent, x.edge, count);
	g->t.frame[f].canon[slice] = k;
	g->t.frame[k].canon[slice] = k;
	return k;
}

static int32_t
frame_cut(Grammar *g, int32_t f, int depth)
{
	if (f <= FRAME_BOTTOM)
		return f;
	if (!depth)
		return FRAME_BOTTOM;
	Frame x = g->t.frame[f];
	return frame(g, frame_cut(g, x.parent, depth - 1), x.edge, x.count);
}

/* ---- the set that is being made ---- */

static void
begin(Grammar *g)
{
	g->n_tmp = 0;
	g->accept = false;
	if (++g->stamp == 0) {
		memset(g->seen, 0, g->cap_seen * sizeof *g->seen);
		g->stamp = 1;
	}
}

static uint64_t
conf_key(Config c)
{
	return (uint64_t)(uint32_t)c.q << 32 | (uint32_t)c.f;
}

static void
seen_grow(Grammar *g)
{
	size_t cap = g->cap_seen ? 2 * g->cap_seen : 256;
	uint32_t *seen = calloc(cap, sizeof *seen);
	uint64_t *key = malloc(cap * sizeof *key);

	if (!seen || !key) {
		free(seen);
		free(key);
		grammar_fault(g, LLMC_E_MEMORY, "out of memory for the states of a grammar");
	}
	for (size_t i = 0; i < g->n_tmp; i++) {
		uint64_t x = conf_key(g->tmp[i]);
		size_t k = mix(mix(7, (uint32_t)(x >> 32)), (uint32_t)x) & (cap - 1);
		while (seen[k])
			k = (k + 1) & (cap - 1);
		seen[k] = g->stamp;
		key[k] = x;
	}
	free(g->seen);
	free(g->seen_key);
	g->seen = seen;
	g->seen_key = key;
	g->cap_seen = cap;
}

static void
add(Grammar *g, int32_t q, int32_t f)
{
	Config c = { q, f };
	uint64_t x = conf_key(c);

	if (g->n_tmp <= 8) {
		for (size_t i = 0; i < g->n_tmp; i++)
			if (g->tmp[i].q == q && g->tmp[i].f == f)
				return;
	}
	if (g->n_tmp >= 8) { /* linear search for a few pairs, hashing for more */
		if (2 * (g->n_tmp + 1) >= g->cap_seen)
			seen_grow(g);
		if (g->n_tmp == 8) {
			if (++g->stamp == 0) {
				memset(g->seen, 0, g->cap_seen * sizeof *g->seen);
				g->stamp = 1;
			}
			for (size_t i = 0; i < 8; i++) {
				uint64_t y = conf_key(g->tmp[i]);
				size_t k = mix(mix(7, (uint32_t)(y >> 32)), (uint32_t)y) &
				           (g->cap_seen - 1);
				while (g->seen[k] == g->stamp)
					k = (k + 1) & (g->cap_seen - 1);
				g->seen[k] = g->stamp;
				g->seen_key[k] = y;
			}
		}
		size_t k = mix(mix(7, (uint32_t)(x >> 32)), (uint32_t)x) & (g->cap_seen - 1);
		for (; g->seen[k] == g->stamp; k = (k + 1) & (g->cap_seen - 1))
			if (g->seen_key[k] == x)
				return;
		g->seen[k] = g->stamp;
		g->seen_key[k] = x;
	}
	if (g->n_tmp >= MAX_CONFS)
		grammar_fault(
		    g, LLMC_E_RANGE,
		    "the grammar is too ambiguous: an output may be in more than %d of its "
		    "states at once",
		    MAX_CONFS);
	g->tmp = grow_array(g, g->tmp, g->n_tmp, &g->cap_tmp, sizeof *g->tmp);
	g->tmp[g->n_tmp++] = c;
}

static void
leave(Grammar *g, int32_t f)
{
	if (f == FRAME_BOTTOM) {
		g->touched = true;
		return;
	}
	if (f == FRAME_EMPTY) {
		g->accept = true;
		return;
	}
	Frame x = g->t.frame[f];
	const Edge *e = &g->m.edge[x.edge];
	if (e->kind == EDGE_CALL) {
		add(g, e->to, x.parent);
		return;
	}
	const Repeat *r = &g->m.rep[e->arg];
	if (r->unordered) {
		if (((uint64_t)x.count & r->must) == r->must)
			add(g, e->to, x.parent);
		if (r->others || ((uint64_t)x.count & r->all) != r->all)
			add(g, r->more, f);
		return;
	}
	if (x.count >= r->min)
		add(g, e->to, x.parent);
	if (r->max < 0 || x.count < r->max) {
		int64_t count = r->max < 0 && x.count >= r->min ? r->min : x.count + 1;
		add(g, r->start, frame(g, x.parent, x.edge, count));
	}
}

/* Handles the end of a character of a counted graph. The path may end here, or continue if some
 * continuation has a length within the bounds. */
static void
tick(Grammar *g, const Edge *e, int32_t f)
{
	if (f == FRAME_BOTTOM) {
		g->touched = true;
		return;
	}
	Frame x = g->t.frame[f];
	const Edge *push = &g->m.edge[x.edge];
	const Repeat *r = &g->m.rep[push->arg];
	const CountedNode *t = &g->m.tick[e->arg];
	if (t->accept && x.count >= r->min)
		add(g, push->to, x.parent);
	if (t->lo < 0 || (r->max >= 0 && x.count + t->lo > r->max) ||
	    (t->hi >= 0 && x.count + t->hi < r->min))
		return;
	int64_t count = r->max < 0 && x.count >= r->min ? x.count : x.count + 1;
	add(g, e->to, frame(g, x.parent, x.edge, count));
}

/* Passes the gate of a counted graph if the path can still end in time. The frame's count already
 * includes the character that would begin now. */
static void
gate(Grammar *g, const Edge *e, int32_t f)
{
	if (f == FRAME_BOTTOM) {
		g->touched = true;
		return;
	}
	const Frame *x = &g->t.frame[f];
	const Repeat *r = &g->m.rep[g->m.edge[x->edge].arg];
	const CountedNode *t = &g->m.tick[e->arg];
	bool ends = t->accept && x->count >= r->min,
	     goes_on = t->lo >= 0 && (r->max < 0 || x->count + t->lo <= r->max) &&
	               (t->hi < 0 || x->count + t->hi >= r->min);
	if (ends || goes_on)
		add(g, e->to, f);
}

static void
take(Grammar *g, const Edge *e, int32_t f)
{
	if (f == FRAME_BOTTOM) {
		g->touched = true;
		return;
	}
	Frame x = g->t.frame[f];
	if (!(x.count >> e->lo & 1))
		add(g, e->to, frame(g, x.parent, x.edge, x.count | (int64_t)1 << e->lo));
}

/* Adds all pairs that are reachable without a byte. */
static void
close_over(Grammar *g)
{
	for (size_t i = 0; i < g->n_tmp; i++) {
		Config c = g->tmp[i];
		if (g->work % CONFS_PER_CHECK == 0 && deadline_passed())
			grammar_fault(g, deadline_error(NULL),
			              "the time limit of this request has passed");
		if (++g->work > MAX_WORK)
			grammar_fault(g, LLMC_E_RANGE,
			              "the grammar is too ambiguous: a token takes more steps, or "
			              "memory, than is allowed");
		if (g->m.flags[c.q] & STATE_END)
			leave(g, c.f);
		for (int32_t k = g->m.first[c.q]; k < g->m.first[c.q + 1]; k++) {
			const Edge *e = &g->m.edge[k];
			/* no call: deeper nesting is not allowed */
			bool deep = g->t.frame[c.f].depth >= MAX_DEPTH;
			if (e->kind == EDGE_EPS)
				add(g, e->to, c.f);
			else if (e->kind == EDGE_CALL && (e->tail || !deep))
				add(g, e->arg, e->tail ? c.f : frame(g, c.f, k, 0));
			else if (e->kind == EDGE_REP && !deep)
				add(g, g->m.rep[e->arg].start,
				    frame(g, c.f, k, !g->m.rep[e->arg].unordered));
			else if (e->kind == EDGE_GATE)
				gate(g, e, c.f);
			else if (e->kind == EDGE_TICK)
				tick(g, e, c.f);
			else if (e->kind == EDGE_TAKE)
				take(g, e, c.f);
		}
	}
}

static int
by_conf(const void *a, const void *b)
{
	uint64_t x = conf_key(*(const Config *)a), y = conf_key(*(const Config *)b);

	return x < y ? -1 : x > y;
}

static uint32_t
set_hash(const Config *c, size_t n, bool accept)
{
	uint32_t h = accept;

	for (size_t i = 0; i < n; i++)
		h = mix(mix(h, (uint32_t)c[i].q), (uint32_t)c[i].f);
	return h;
}

static uint32_t
set_key(const Grammar *g, int32_t i)
{
	const Set *s = &g->t.set[i];

	return set_hash(g->t.conf + s->at, s->n, s->accept);
}

static void
sort_confs(Config *c, size_t n)
{
	if (n > 24) {
		qsort(c, n, sizeof *c, by_conf);
		return;
	}
	for (size_t i = 1; i < n; i++) {
		Config x = c[i];
		size_t k = i;
		for (; k && conf_key(c[k - 1]) > conf_key(x); k--)
			c[k] = c[k - 1];
		c[k] = x;
	}
}

/* Returns the set that consists of the pairs in tmp that can consume input. */
static int32_t
intern(Grammar *g)
{
	Tables *t = &g->t;
	size_t n = 0;

	for (size_t i = 0; i < g->n_tmp; i++)
		if (g->m.flags[g->tmp[i].q] & STATE_EATS)
			g->tmp[n++] = g->tmp[i];
	if (t->n_set && !n && !g->accept)
		return 0;
	sort_confs(g->tmp, n);
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (!i || by_conf(&g->tmp[i], &g->tmp[k - 1]))
			g->tmp[k++] = g->tmp[i];
	n = k;
	hash_room(g, &t->sets, set_key, t->n_set);
	k = set_hash(g->tmp, n, g->accept) & (t->sets.cap - 1);
	for (; t->sets.at[k] >= 0; k = (k + 1) & (t->sets.cap - 1)) {
		const Set *s = &t->set[t->sets.at[k]];
		if (s->n == n && s->accept == g->accept &&
		    (!n || memcmp(t->conf + s->at, g->tmp, n * sizeof *g->tmp) == 0))
			return t->sets.at[k];
	}
	while (t->n_conf + n >= t->cap_conf)
		t->conf = grow_array(g, t->conf, t->cap_conf, &t->cap_conf, sizeof *t->conf);
	if (n)
		memcpy(t->conf + t->n_conf, g->tmp, n * sizeof *g->tmp);
	t->set = grow_array(g, t->set, t->n_set, &t->cap_set, sizeof *t->set);
	while ((t->n_set + 1) * (size_t)g->m.n_class > t->cap_next)
		t->next = grow_array(g, t->next, t->cap_next, &t->cap_next, sizeof *t->next);
	t->set[t->n_set] = (Set){ .at = (uint32_t)t->n_conf,
		                  .n = (uint32_t)n,
		                  .accept = g->accept,
		                  .plain = -1,
		                  .canon = { -1, -1, -1 },
		                  .cut = -1 };
	for (size_t i = 0; g->m.has_tokens && i < n; i++)
		for (int32_t e = g->m.first[g->tmp[i].q]; e < g->m.first[g->tmp[i].q + 1]; e++)
			t->set[t->n_set].tokens |= g->m.edge[e].kind == EDGE_TOKEN;
	memset(t->next + t->n_set * (size_t)g->m.n_class, -1,
	       (size_t)g->m.n_class * sizeof *t->next);
	t->n_conf += n;
	t->sets.at[k] = (int32_t)t->n_set;
	return (int32_t)t->n_set++;
}

/* ---- interface to token_mask.c and matcher.c ---- */

static void
tables_begin(Grammar *g)
{
	if (g->t.n_set)
		return;
	frame(g, -1, -1, 0); /* FRAME_EMPTY */
	frame(g, -1, -2, 0); /* FRAME_BOTTOM */
	begin(g);
	intern(g); /* set 0: dead */
	for (int k = 0; k < g->m.n_class; k++)
		g->t.next[k] = 0;
}

int32_t
set_start(Grammar *g)
{
	tables_begin(g);
	if (g->start < 0) {
		begin(g);
		add(g, g->m.start, FRAME_EMPTY);
		close_over(g);
		g->start = intern(g);
	}
	return g->start;
}

int32_t
set_step(Grammar *g, int32_t s, int cls)
{
	size_t at = (size_t)s * (size_t)g->m.n_class + (size_t)cls;
	int32_t known = g->t.next[at];

	if (known >= 0) {
		g->touched |= known & 1;
		return known >> 1;
	}
	bool before = g->touched;
	uint8_t c = g->m.byte_of[cls];
	Set x = g->t.set[s];
	g->touched = false;
	begin(g);
	for (uint32_t i = 0; i < x.n; i++) {
		Config q = g->t.conf[x.at + i];
		for (int32_t k = g->m.first[q.q]; k < g->m.first[q.q + 1]; k++) {
			const Edge *e = &g->m.edge[k];
			if (e->kind == EDGE_BYTE && c >= e->lo && c <= e->hi)
				add(g, e->to, q.f);
		}
	}
	close_over(g);
	int32_t t = intern(g);
	g->t.next[at] = t * 2 + g->touched;
	g->touched |= before;
	return t;
}

int32_t
set_token(Grammar *g, int32_t s, int32_t id)
{
	Set x = g->t.set[s];

	begin(g);
	for (uint32_t i = 0; i < x.n; i++) {
		Config q = g->t.conf[x.at + i];
		for (int32_t k = g->m.first[q.q]; k < g->m.first[q.q + 1]; k++)
			if (g->m.edge[k].kind == EDGE_TOKEN && g->m.edge[k].arg == id)
				add(g, g->m.edge[k].to, q.f);
	}
	close_over(g);
	return intern(g);
}

/* Rewrites every stack of a set; the closure stays valid. */
static int32_t
map_frames(Grammar *g, int32_t s, int slice, bool cut)
{
	Set x = g->t.set[s];

	begin(g);
	g->accept = x.accept;
	for (uint32_t i = 0; i < x.n; i++) {
		Config c = g->t.conf[x.at + i];
		g->tmp = grow_array(g, g->tmp, g->n_tmp, &g->cap_tmp, sizeof *g->tmp);
		c.f = cut ? frame_cut(g, c.f, CUT_DEPTH) : frame_canon(g, c.f, slice);
		g->tmp[g->n_tmp++] = c;
	}
	return intern(g);
}

int32_t
set_canon(Grammar *g, int32_t s, int slice)
{
	if (s <= 0 || g->t.set[s].canon[slice] >= 0)
		return s <= 0 ? s : g->t.set[s].canon[slice];
	int32_t t = map_frames(g, s, slice, false);
	g->t.set[s].canon[slice] = t;
	g->t.set[t].canon[slice] = t;
	return t;
}

int32_t
set_cut(Grammar *g, int32_t s)
{
	if (s <= 0 || g->t.set[s].cut >= 0)
		return s <= 0 ? s : g->t.set[s].cut;
	bool deep = false; /* do not cut deep stacks, so that MAX_DEPTH applies */
	for (uint32_t i = 0; i < g->t.set[s].n; i++)
		deep |= g->t.frame[g->t.conf[g->t.set[s].at + i].f].depth > MAX_DEPTH / 2;
	int32_t t = deep ? s : map_frames(g, s, 0, true);
	g->t.set[s].cut = t;
	g->t.set[t].cut = t;
	return t;
}

/* ---- rebuilding the tables with the sets in use ---- */

static int32_t
moved_frame(Grammar *g, const Tables *old, int32_t f)
{
	if (f <= FRAME_BOTTOM)
		return f;
	int32_t parent = moved_frame(g, old, old->frame[f].parent);

	return frame(g, parent, old->frame[f].edge, old->frame[f].count);
}

void
tables_renew(Grammar *g)
{
	Tables old = g->t;
	llmc_error *err = g->err;
	jmp_buf outer;

	memcpy(&outer, &g->fault, sizeof outer);
	g->t = (Tables){ 0 };
	g->start = -1;
	if (setjmp(g->fault)) { /* on an error keep the old tables */
		tables_release(&g->t);
		g->t = old;
		memcpy(&g->fault, &outer, sizeof outer);
		return;
	}
	tables_begin(g);
	size_t n = 0;
	for (Matcher *m = g->matchers; m; m = m->next)
		n++;
	int32_t *set = calloc(n + 1, sizeof *set);
	if (!set)
		grammar_fault(g, LLMC_E_MEMORY, "out of memory for the states of a grammar");
	size_t at = 0;
	for (Matcher *m = g->matchers; m; m = m->next, at++) {
		set[at] = m->set;
		if (m->set <= 0)
			continue;
		const Set *s = &old.set[m->set];
		begin(g);
		g->accept = s->accept;
		for (uint32_t i = 0; i < s->n; i++) {
			Config c = old.conf[s->at + i];
			g->tmp = grow_array(g, g->tmp, g->n_tmp, &g->cap_tmp, sizeof *g->tmp);
			c.f = moved_frame(g, &old, c.f);
			g->tmp[g->n_tmp++] = c;
		}
		set[at] = intern(g);
	}
	at = 0;
	for (Matcher *m = g->matchers; m; m = m->next)
		m->set = set[at++];
	free(set);
	tables_release(&old);
	g->err = err;
	memcpy(&g->fault, &outer, sizeof outer);
}

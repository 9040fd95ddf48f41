/* Matchers: position in one output. All work on a grammar happens under its lock. A longjmp on an
 * error is caught there and becomes a status. */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"

enum { RENEW_BYTES = 64 << 20, MATCH_CHUNK = 4096 };

typedef struct LockedCall { /* arguments and results of a call under the lock */
	Matcher *m;
	int32_t id;
	uint32_t *room;
	bool yes;
	const char *text; /* [n] text to match, and number of bytes that have matched */
	size_t n, matched;
} LockedCall;

static llmc_status
guarded(Grammar *g, void (*fn)(LockedCall *c), LockedCall *c, llmc_error *err)
{
	llmc_error why = { 0 };

	pthread_mutex_lock(&g->lock);
	g->err = &why;
	g->work = 0;
	if (tables_bytes(g) > RENEW_BYTES)
		tables_renew(g);
	if (!setjmp(g->fault))
		fn(c);
	pthread_mutex_unlock(&g->lock);
	return why.code == LLMC_OK ? LLMC_OK : error_set(err, why.code, "%s", why.text);
}

llmc_status
matcher_open(Grammar *g, const char *const *after, Matcher **out, llmc_error *err)
{
	Matcher *m = calloc(1, sizeof *m);
	int32_t n = 0;

	*out = NULL;
	while (after && after[n])
		n++;
	if (m)
		m->after = calloc((size_t)n + 1, sizeof *m->after);
	bool ok = m && m->after;
	for (int32_t i = 0; ok && i < n; i++)
		if (after[i][0]) /* skip empty strings */
			ok = (m->after[m->n_after++] = strdup(after[i])) != NULL;
	if (!ok) {
		for (int32_t i = 0; m && m->after && i < m->n_after; i++)
			free(m->after[i]);
		free(m ? m->after : NULL);
		free(m);
		return error_set(err, LLMC_E_MEMORY, "out of memory for a grammar matcher");
	}
	m->g = grammar_retain(g);
	m->set = -1;
	pthread_mutex_lock(&g->lock);
	m->next = g->matchers;
	if (m->next)
		m->next->prev = m;
	g->matchers = m;
	pthread_mutex_unlock(&g->lock);
	*out = m;
	return LLMC_OK;
}

void
matcher_close(Matcher *m)
{
	if (!m)
		return;
	pthread_mutex_lock(&m->g->lock);
	if (m->prev)
		m->prev->next = m->next;
	else
		m->g->matchers = m->next;
	if (m->next)
		m->next->prev = m->prev;
	pthread_mutex_unlock(&m->g->lock);
	for (int32_t i = 0; i < m->n_after; i++)
		free(m->after[i]);
	free(m->after);
	grammar_close(m->g);
	free(m);
}

void
matcher_reset(Matcher *m)
{
	pthread_mutex_lock(&m->g->lock);
	m->set = -1;
	m->at_after = 0;
	m->matched = 0;
	m->ended = false;
	pthread_mutex_unlock(&m->g->lock);
}

/* Returns the matcher's set. The lock is held. */
static int32_t
set_of(Matcher *m)
{
	if (m->set < 0)
		m->set = set_start(m->g);
	return m->set;
}

static void
mask(LockedCall *c)
{
	Matcher *m = c->m;

	if (m->ended)
		return;
	const uint32_t *own = set_mask(m->g, set_of(m), c->room);
	if (own != c->room)
		memcpy(c->room, own, m->g->lexicon->n_words * sizeof *own);
	c->yes = true;
}

llmc_status
matcher_mask(Matcher *m, uint32_t *bits, size_t n_words, bool *all, llmc_error *err)
{
	size_t own = m->g->lexicon->n_words;
	LockedCall c = { .m = m };

	*all = m->at_after < m->n_after;
	if (*all)
		return LLMC_OK;
	c.room = n_words >= own ? bits : malloc(own * sizeof *c.room + 1);
	if (!c.room)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a mask");
	llmc_status status = guarded(m->g, mask, &c, err);
	size_t n = n_words < own ? n_words : own;
	if (c.yes && n && c.room != bits)
		memcpy(bits, c.room, n * sizeof *bits);
	if (!c.yes)
		n = 0;
	if (n < n_words)
		memset(bits + n, 0, (n_words - n) * sizeof *bits);
	if (c.room != bits)
		free(c.room);
	return status;
}

bool
matcher_knows(Matcher *m)
{
	const Tables *t = &m->g->t;
	bool knows = true;

	pthread_mutex_lock(&m->g->lock);
	if (m->at_after == m->n_after && !m->ended && m->set != 0) {
		int32_t full = m->set > 0 ? t->set[m->set].canon[0] : -1,
		        c = full > 0 ? t->set[full].cut : -1;
		bool exact = full > 0 && c >= 0 && full != c && t->set[full].exact,
		     whole = c >= 0 && t->set[c].mask && !t->set[c].n_unc;
		knows = full == 0 || exact || whole;
	}
	pthread_mutex_unlock(&m->g->lock);
	return knows;
}

static bool
is_end(const Grammar *g, int32_t id)
{
	for (int32_t i = 0; i < g->n_eos; i++)
		if (g->eos[i] == id)
			return true;
	return false;
}

/* Consumes bytes that precede the grammar and returns how many. After a mismatch the longest
 * matching prefix is kept (Knuth-Morris-Pratt), so that strings that overlap themselves are
 * found. */
static size_t
wait_for(Matcher *m, const char *s, size_t n)
{
	size_t i = 0;

	for (; i < n && m->at_after < m->n_after; i++) {
		const char *want = m->after[m->at_after];
		for (;;) {
			if (want[m->matched] == s[i]) {
				m->matched++;
				break;
			}
			size_t k = m->matched;
			if (!k)
				break;
			do /* next shorter prefix of want that the matched bytes end with */
				k--;
			while (k && memcmp(want, want + m->matched - k, k) != 0);
			m->matched = k;
		}
		if (!want[m->matched]) {
			m->at_after++;
			m->matched = 0;
		}
	}
	return i;
}

/* Applies bytes [i, n) of the token, or the token id itself. */
static void
advance(LockedCall *c)
{
	Matcher *m = c->m;
	Grammar *g = m->g;
	const TokenVocab *l = g->lexicon;
	const char *s = l->bytes + l->at[c->id];
	size_t n = l->at[c->id + 1] - l->at[c->id], i = 0;

	if (m->at_after < m->n_after && (i = wait_for(m, s, n)) == n)
		return; /* the whole token precedes the grammar */
	int32_t at = m->ended ? 0 : set_of(m);
	if (i == 0 && is_end(g, c->id)) {
		if (!at || !g->t.set[at].accept)
			grammar_fault(
			    g, LLMC_E_INPUT,
			    "the output ended at a position where the grammar does not allow it");
		m->ended = true;
		return;
	}
	int32_t next = at && i == 0 && g->t.set[at].tokens ? set_token(g, at, c->id) : 0;
	if (!next && !(l->special[c->id] && i == 0))
		for (next = at; next && i < n; i++)
			next = set_step(g, next, g->m.cls[(uint8_t)s[i]]);
	m->set = next;
	if (!next)
		grammar_fault(g, LLMC_E_INPUT,
		              "the grammar does not allow token %d at this position", c->id);
}

llmc_status
matcher_accept(Matcher *m, int32_t id, llmc_error *err)
{
	if (id >= 0 && id < m->g->lexicon->n_tok)
		return guarded(m->g, advance, &(LockedCall){ .m = m, .id = id }, err);
	if (m->at_after < m->n_after)
		return LLMC_OK;
	return error_set(err, LLMC_E_INPUT, "token %d is not in the vocabulary of the grammar", id);
}

static void
may_end(LockedCall *c)
{
	int32_t at = set_of(c->m);

	c->yes = c->m->ended || (at && c->m->g->t.set[at].accept);
}

static void
must_end(LockedCall *c)
{
	int32_t at = set_of(c->m);

	c->yes = c->m->ended || (at && c->m->g->t.set[at].accept && c->m->g->t.set[at].n == 0);
}

bool
matcher_may_end(Matcher *m)
{
	LockedCall c = { .m = m };

	return m->at_after == m->n_after && guarded(m->g, may_end, &c, NULL) == LLMC_OK && c.yes;
}

bool
matcher_ended(Matcher *m)
{
	LockedCall c = { .m = m };

	return m->at_after == m->n_after && guarded(m->g, must_end, &c, NULL) == LLMC_OK && c.yes;
}

/* Follows the text until it ends, does not match, or the call has made enough steps. */
static void
follow(LockedCall *c)
{
	Grammar *g = c->m->g;
	int32_t at = set_of(c->m);

	for (int k = 0; at && c->matched < c->n && k < MATCH_CHUNK; k++) {
		size_t len = 1;
		int32_t id = g->t.set[at].tokens ? special_at(g->lexicon, c->text + c->matched,
		                                              c->n - c->matched, &len)
		                                 : -1,
		        next = id >= 0 ? set_token(g, at, id) : 0;
		if (!next) {
			len = 1;
			next = set_step(g, at, g->m.cls[(uint8_t)c->text[c->matched]]);
		}
		if (!next) {
			c->yes = true;
			return;
		}
		at = c->m->set = next;
		c->matched += len;
	}
	c->yes = !at;
}

llmc_status
grammar_match(Grammar *g, const char *text, size_t n, bool *complete, size_t *n_matched,
              llmc_error *err)
{
	Matcher *m;

	*complete = false;
	*n_matched = 0;
	TRY(matcher_open(g, NULL, &m, err));
	LockedCall c = { .m = m, .text = text, .n = n };
	llmc_status status = LLMC_OK;
	while (status == LLMC_OK && !c.yes && c.matched < n)
		status = guarded(g, follow, &c, err);
	*n_matched = c.matched;
	*complete = status == LLMC_OK && c.matched == n && matcher_may_end(m);
	matcher_close(m);
	return status;
}

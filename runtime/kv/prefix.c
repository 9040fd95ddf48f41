/* The prefix cache of kv.h: pages in a hash table by (page before, own tokens), those without a holder also in a list by
 * age. A sequence lets go of its last page first, so that what follows a page is older than the page itself and goes first;
 * a page whose predecessor is gone all the same is never found again and ages out. */
#include "runtime/kv/prefix.h"
#include "runtime/kv/window.h"

#include <stdlib.h>
#include <string.h>

/* --- snapshots of states ----------------------------------------------------------------------------------------- */

/* Memory for n states of sequences, an array for each pool */
static void
states_free(Kv *kv, char **base, int32_t n)
{
	for (int i = 0; base && i < kv->plan->n_pool; i++)
		if (base[i])
			kv->mem.free(kv->mem.user, base[i], (size_t)plan_layer_state_bytes(&kv->plan->pool[i]) * (size_t)kv->plan->pool[i].n_layers * (size_t)n);
	free(base);
}

static bool
states_alloc(Kv *kv, char **base, int32_t n)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		void  *m = NULL;
		size_t bytes = (size_t)plan_layer_state_bytes(&kv->plan->pool[i]) * (size_t)kv->plan->pool[i].n_layers * (size_t)n;
		if (bytes && kv->mem.alloc(kv->mem.user, bytes, &m, NULL) != LLMC_OK)
			return false;
		base[i] = m;
	}
	return true;
}

static void
snaps_release(Kv *kv)
{
	states_free(kv, kv->snap_base, kv->n_snap);
	states_free(kv, kv->mark_base, kv->n_mark);
	free(kv->snap);
	free(kv->marked);
	kv->snap_base = kv->mark_base = NULL;
	kv->snap = NULL;
	kv->marked = NULL;
	kv->n_snap = kv->n_mark = 0;
}

llmc_status
snaps_open(Kv *kv, int32_t n, llmc_error *err)
{
	const Plan *p = kv->plan;

	kv->snap = calloc((size_t)n, sizeof *kv->snap);
	kv->snap_base = calloc((size_t)p->n_pool + 1, sizeof *kv->snap_base);
	if (!kv->snap || !kv->snap_base)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the snapshots of %d states", n);
	for (; kv->n_snap < n; kv->n_snap++)
		kv->snap[kv->n_snap].page = kv->snap[kv->n_snap].seq = -1;
	if (!states_alloc(kv, kv->snap_base, n))
		return error_set(err, LLMC_E_MEMORY, "out of memory: the prefix cache keeps %d states of sequences, %lld MB; without it (--no-prefix-cache), or with fewer sequences (--seqs), less is needed", n,
		                 (long long)(kv_state_bytes(p, n) >> 20));
	return LLMC_OK;
}

static char *
snap_at(const Kv *kv, int n, int32_t snap)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		if (p->state && n < p->n_layers)
			return (snap < kv->n_snap ? kv->snap_base[i] + ((size_t)n * (size_t)kv->n_snap + (size_t)snap) * (size_t)plan_layer_state_bytes(p)
			                          : kv->mark_base[i] + ((size_t)n * (size_t)kv->n_mark + (size_t)(snap - kv->n_snap)) * (size_t)plan_layer_state_bytes(p));
		n -= p->state ? p->n_layers : 0;
	}
	return NULL;
}

void
snap_copy(Kv *kv, int32_t snap, int32_t q, bool taken)
{
	char  *state;
	size_t bytes;

	for (int n = 0; (state = kv_state_at(kv, n, q, &bytes)) != NULL; n++)
		kv->mem.copy(kv->mem.user, taken ? snap_at(kv, n, snap) : state, taken ? state : snap_at(kv, n, snap), bytes);
}

llmc_status
kv_marks_open(Kv *kv, int32_t n, llmc_error *err)
{
	const Plan *p = kv->plan;

	if (!n || !plan_has_state(p))
		return LLMC_OK;
	kv->n_mark = n;
	kv->marked = calloc((size_t)n, sizeof *kv->marked);
	kv->mark_base = calloc((size_t)p->n_pool + 1, sizeof *kv->mark_base);
	if (!kv->marked || !kv->mark_base || !states_alloc(kv, kv->mark_base, n))
		return error_set(err, LLMC_E_MEMORY, "out of memory: tokens are guessed ahead, for which states of %d sequences are kept, %lld MB; without guesses (--speculate 0) none are", n,
		                 (long long)(kv_state_bytes(p, n) >> 20));
	return LLMC_OK;
}

bool
kv_seq_mark(Kv *kv, int32_t q)
{
	KvSeq *s = &kv->seq[q];

	for (int32_t i = 0; i < kv->n_mark && !s->mark; i++)
		if (!kv->marked[i]) {
			kv->marked[i] = true;
			s->mark = i + 1;
		}
	if (!s->mark)
		return false;
	s->mark_len = s->len;
	kv_do(kv, KV_TAKE, kv->n_snap + s->mark - 1, q);
	return true;
}

void
kv_seq_unmark(Kv *kv, int32_t q)
{
	if (kv->seq[q].mark)
		kv->marked[kv->seq[q].mark - 1] = false;
	kv->seq[q].mark = 0;
}

static void
snap_drop(Kv *kv, int32_t snap)
{
	if (kv->snap[snap].page >= 0)
		kv->cached[kv->snap[snap].page].snap = 0;
	kv->snap[snap].page = kv->snap[snap].seq = -1;
}

/* The one of this sequence that moves, else a free one, else the least recently used */
static int32_t
snap_choose(const Kv *kv, int32_t q, bool prompt)
{
	int32_t best = 0;

	for (int32_t i = 0; i < kv->n_snap; i++)
		if (kv->snap[i].page >= 0 && kv->snap[i].seq == q && kv->snap[i].prompt == prompt)
			return i;
	for (int32_t i = 0; i < kv->n_snap; i++) {
		if (kv->snap[i].page < 0)
			return i;
		if (kv->snap[i].used < kv->snap[best].used)
			best = i;
	}
	return best;
}

/* A sequence stands behind this page of the cache. */
static void
snap_take(Kv *kv, int32_t q, int32_t page, bool prompt)
{
	if (!kv->n_snap || kv->cached[page].snap)
		return;
	int32_t i = snap_choose(kv, q, prompt);
	snap_drop(kv, i);
	kv_do(kv, KV_TAKE, i, q);
	kv->snap[i] = (KvSnap){ .page = page, .seq = q, .prompt = prompt, .used = ++kv->n_used };
	kv->cached[page].snap = i + 1;
}

/* A new sequence goes on behind its last page, which has one. */
static void
snap_give(Kv *kv, int32_t q)
{
	KvSeq *s = &kv->seq[q];

	if (s->n_page == 0)
		return;
	int32_t i = kv->cached[s->page[s->n_page - 1]].snap - 1;
	kv->snap[i].used = ++kv->n_used;
	kv->snap[i].seq = -1; /* it is wanted here again */
	kv_do(kv, KV_GIVE, q, i);
}

void
prefix_leave(Kv *kv, int32_t q)
{
	for (int32_t i = 0; i < kv->n_snap; i++)
		if (kv->snap[i].seq == q)
			kv->snap[i].seq = -1;
}

void
prefix_release(Kv *kv)
{
	snaps_release(kv);
	free(kv->cached);
	free(kv->bucket);
}

/* --- pages --------------------------------------------------------------------------------------------------------- */

llmc_status
kv_prefix_open(Kv *kv, llmc_error *err)
{
	if (kv->cached && kv->bucket)
		return LLMC_OK;
	free(kv->cached);
	free(kv->bucket);
	const int64_t pages = (int64_t)kv->n_page + kv->host.n;
	for (kv->n_bucket = 16; kv->n_bucket < pages; kv->n_bucket *= 2)
		;
	kv->cached = calloc((size_t)pages + 1, sizeof *kv->cached);
	kv->bucket = malloc((size_t)kv->n_bucket * sizeof *kv->bucket);
	if (!kv->cached || !kv->bucket)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the prefix cache of %lld KV pages", (long long)pages);
	memset(kv->bucket, 0xff, (size_t)kv->n_bucket * sizeof *kv->bucket);
	return LLMC_OK;
}

static int32_t *
bucket_of(const Kv *kv, int64_t parent, const int32_t *tok)
{
	uint64_t h = (uint64_t)parent * 0x9e3779b97f4a7c15u;

	for (int i = 0; i < PLAN_KV_PAGE; i++) {
		h = (h ^ (uint32_t)tok[i]) * 0xff51afd7ed558ccdu;
		h ^= h >> 32;
	}
	return &kv->bucket[h & (uint64_t)(kv->n_bucket - 1)];
}

static int32_t
look_up(const Kv *kv, int64_t parent, const int32_t *tok)
{
	int32_t page = *bucket_of(kv, parent, tok);

	while (page >= 0 && (kv->cached[page].parent != parent || memcmp(kv->cached[page].tok, tok, sizeof kv->cached[page].tok)))
		page = kv->cached[page].next;
	return page;
}

/* Out of the list of those without a holder, or of those in host memory */
void
prefix_unlist(Kv *kv, int32_t page)
{
	const bool host = page >= kv->n_page;
	KvCached  *c = &kv->cached[page];

	*(c->older >= 0 ? &kv->cached[c->older].newer : host ? &kv->host.oldest : &kv->oldest) = c->newer;
	*(c->newer >= 0 ? &kv->cached[c->newer].older : host ? &kv->host.newest : &kv->newest) = c->older;
}

void
prefix_idle(Kv *kv, int32_t page)
{
	const bool host = page >= kv->n_page;
	int32_t   *oldest = host ? &kv->host.oldest : &kv->oldest, *newest = host ? &kv->host.newest : &kv->newest;

	kv->cached[page].older = *newest;
	kv->cached[page].newer = -1;
	*(*newest >= 0 ? &kv->cached[*newest].newer : oldest) = page;
	*newest = page;
}

void
prefix_forget(Kv *kv, int32_t page)
{
	KvCached *c = &kv->cached[page];

	if (!c->serial)
		return;
	int32_t *at = bucket_of(kv, c->parent, c->tok);
	while (*at != page)
		at = &kv->cached[*at].next;
	*at = c->next;
	c->serial = 0;
	host_uncopy(kv, page);
	if (c->snap)
		snap_drop(kv, c->snap - 1);
}

/* What page `from` is known as, in none of the lists, becomes page `to`'s, which is not known. */
static void
rename_page(Kv *kv, int32_t to, int32_t from)
{
	KvCached *c = &kv->cached[from];
	int32_t  *at = bucket_of(kv, c->parent, c->tok);

	while (*at != from)
		at = &kv->cached[*at].next;
	*at = to;
	kv->cached[to] = *c;
	if (c->snap)
		kv->snap[c->snap - 1].page = to;
	*c = (KvCached){ 0 };
}

int32_t
prefix_evict(Kv *kv)
{
	int32_t page = kv->oldest, host = host_copy(kv, page);

	prefix_unlist(kv, page);
	if (host < 0) {
		prefix_forget(kv, page);
		return page;
	}
	kv->cached[page].copy = 0;
	rename_page(kv, kv->n_page + host, page);
	prefix_idle(kv, kv->n_page + host);
	return page;
}

/* How many of the pages of a new sequence it can go on behind: there must be a snapshot where states are kept, and what windowed layers see */
static int32_t
deepest(const Kv *kv, const KvSeq *s)
{
	bool    states = plan_has_state(kv->plan);
	int32_t n = s->n_page;

	while (n > 0 && ((states && !kv->cached[s->page[n - 1]].snap) || !window_whole(kv, s, n * PLAN_KV_PAGE)))
		n--;
	return n;
}

/* A cached page becomes one of a sequence. In host memory it is in no list until it is somewhere else. */
static void
page_hold(Kv *kv, int32_t page)
{
	if (page >= kv->n_page) {
		prefix_unlist(kv, page);
	} else if (kv->refs[page]++ == 0) {
		host_uncopy(kv, page);
		prefix_unlist(kv, page);
		kv->n_free--;
	}
}

/* Pages that page_hold has given a new sequence, behind its first n, go back. */
static void
hold_less(Kv *kv, KvSeq *s, int32_t n)
{
	while (s->n_page > n) {
		int32_t page = s->page[--s->n_page];
		s->len -= PLAN_KV_PAGE;
		if (page >= kv->n_page)
			prefix_idle(kv, page);
		else
			kv_page_drop(kv, page);
	}
}

/* Those of a new sequence's pages that are in host memory become pages of the device, as many as there is room for and as it can go on behind. */
static void
bring(Kv *kv, KvSeq *s)
{
	int32_t room = kv->n_free, n = 0;

	while (n < s->n_page && (s->page[n] < kv->n_page || room-- > 0))
		n++;
	hold_less(kv, s, n);
	n = deepest(kv, s);
	hold_less(kv, s, n);
	for (int32_t i = 0; i < n; i++) {
		const int32_t from = s->page[i];
		if (from < kv->n_page)
			continue;
		int32_t page = s->page[i] = kv_page_take(kv);
		rename_page(kv, page, from);
		kv->cached[page].copy = from - kv->n_page + 1;
		kv->stale[page] = true;
	}
}

/* Its window pages that were copied with them find room before those that it has may lose theirs; then the copies. */
static void
fetch(Kv *kv, KvSeq *s)
{
	const int32_t behind = kv_behind(kv, s->len - KV_BACK);
	int32_t       n = 0;

	for (int32_t i = 0; i < s->n_page; i++)
		n += kv->cached[s->page[i]].copy > 0;
	for (int32_t i = 0; kv->window && n && i < s->n_page; i++)
		if (!kv_lacks(kv, i, behind) && kv_has_window(kv, s->page[i]))
			window_need(kv, s->page[i]);
	for (int32_t i = 0; kv->window && n && i < s->n_page; i++) {
		const int32_t page = s->page[i], copy = kv->cached[page].copy;
		if (kv_lacks(kv, i, behind) || !copy || !kv->host.whole[copy - 1] || !window_room(kv))
			continue;
		window_give(kv, page);
		window_need(kv, page);
	}
	for (int32_t i = 0; n && i < s->n_page; i++) {
		KvCached *c = &kv->cached[s->page[i]];
		if (!c->copy)
			continue;
		kv_do(kv, KV_IN, s->page[i], c->copy - 1);
		host_free(kv, c->copy - 1);
		c->copy = 0;
	}
	for (int32_t i = 0; kv->window && n && i < s->n_page; i++)
		if (!kv_lacks(kv, i, behind) && kv_has_window(kv, s->page[i]))
			window_leave(kv, s->page[i]);
}

int32_t
kv_prefix_find(Kv *kv, int32_t q, int64_t root, const int32_t *tok, int32_t n_tok)
{
	KvSeq *s = &kv->seq[q];

	if (!kv->cached)
		return 0;
	for (; s->len + PLAN_KV_PAGE < n_tok && s->n_page < kv->max_page; s->len += PLAN_KV_PAGE) {
		int32_t page = look_up(kv, s->n_page ? kv->cached[s->page[s->n_page - 1]].serial : root, tok + s->len);
		if (page < 0)
			break;
		page_hold(kv, page);
		s->page[s->n_page++] = page;
	}
	if (kv->host.n) {
		bring(kv, s);
		fetch(kv, s);
		s->coming = host_last(kv, s->page, s->n_page);
	}
	s->n_behind = kv->window ? s->n_page : 0; /* none is needed yet, but for sinks */
	for (int32_t i = 0; i < s->n_page && i < kv->sinks; i++)
		window_need(kv, s->page[i]);
	kv_seq_trim(kv, q, deepest(kv, s) * PLAN_KV_PAGE);
	if (plan_has_state(kv->plan))
		snap_give(kv, q);
	s->n_kept = s->n_page;
	s->kept_as = s->n_page ? kv->cached[s->page[s->n_page - 1]].serial : root;
	s->told_len = s->len;
	return s->len;
}

/* What a page is known as becomes another page's of the same content, which has its window page, or is not in host memory. */
static void
record_move(Kv *kv, int32_t to, int32_t from)
{
	host_uncopy(kv, from);
	if (from >= kv->n_page) {
		prefix_unlist(kv, from);
		host_free(kv, from - kv->n_page);
	} else if (kv->refs[from] == 0) {
		prefix_unlist(kv, from);
		kv->free_page[kv->n_stack++] = from;
	}
	rename_page(kv, to, from);
}

/* The page of the cache that holds what page n_kept of the sequence holds: its own, or another one with the same content, which stays */
static int32_t
page_known(Kv *kv, const KvSeq *s, const int32_t *own)
{
	int32_t page = look_up(kv, s->kept_as, own), mine = s->page[s->n_kept];

	if (page >= 0 && !kv->cached[mine].serial && (page >= kv->n_page || (!kv_has_window(kv, page) && kv_has_window(kv, mine)))) {
		record_move(kv, mine, page);
		page = mine;
	}
	if (page >= 0)
		return page;
	page = mine;
	KvCached *c = &kv->cached[page];
	if (c->serial) /* known as the successor of a page that is gone */
		return page;
	int32_t *at = bucket_of(kv, s->kept_as, own);
	*c = (KvCached){ .serial = ++kv->last_serial, .parent = s->kept_as, .next = *at };
	memcpy(c->tok, own, sizeof c->tok);
	return *at = page;
}

void
kv_prefix_keep(Kv *kv, int32_t q, int64_t root, const int32_t *tok)
{
	KvSeq *s = &kv->seq[q];
	bool   prompt = s->len - s->told_len > 1 && !s->mark; /* behind a mark there were guesses */

	if (!kv->cached)
		return;
	s->told_len = s->len;
	if (s->n_kept == 0)
		s->kept_as = root;
	for (; s->n_kept < s->len / PLAN_KV_PAGE; s->n_kept++) {
		int32_t page = page_known(kv, s, tok + (size_t)s->n_kept * PLAN_KV_PAGE);
		s->kept_as = kv->cached[page].serial;
		if ((s->n_kept + 1) * PLAN_KV_PAGE == s->len)
			snap_take(kv, q, page, prompt);
	}
}

int32_t
kv_prefix_idle(const Kv *kv)
{
	return kv->n_free - kv->n_stack;
}

const char *
kv_check(const Kv *kv)
{
	int32_t *held = calloc((size_t)kv->n_page + 1, sizeof *held), idle = 0, n_free = 0;
	const char *wrong = NULL;

	if (!held)
		return NULL;
	for (int32_t q = 0; q < kv->n_seq; q++) {
		const KvSeq *s = &kv->seq[q];
		if (s->used && (s->len > s->n_page * PLAN_KV_PAGE || s->n_kept > s->len / PLAN_KV_PAGE))
			wrong = "a sequence is longer than its pages";
		for (int32_t i = 0; s->used && i < s->n_page; i++)
			held[s->page[i]]++;
		if (kv->window && s->used && (s->n_behind > s->n_page || !window_whole(kv, s, s->len)))
			wrong = "a sequence lacks pages of its window";
	}
	for (int32_t i = 0; kv->window && i < kv->n_page; i++)
		if ((kv->needs[i] > 0 && kv->window[i] < 0) || kv->needs[i] > kv->refs[i] || (kv->window[i] >= 0 && kv->owner[kv->window[i]] != i))
			wrong = "a page's window page is not its own, or needed by nobody who holds it";
	for (int32_t i = 0; i < kv->n_stack; i++)
		if (held[kv->free_page[i]]++)
			wrong = "a free page is held, or free twice";
	for (int32_t i = kv->cached ? kv->oldest : -1; i >= 0; i = kv->cached[i].newer, idle++)
		if (held[i]++ || !kv->cached[i].serial || idle > kv->n_page)
			return free(held), "an idle page is held, free or not cached";
	for (int32_t i = 0; i < kv->n_page; i++) {
		n_free += kv->refs[i] == 0;
		if (held[i] != (kv->refs[i] ? kv->refs[i] : 1))
			wrong = "a page is held by others than its count says";
		if (kv->cached && kv->cached[i].serial && kv->refs[i] == 0 && look_up(kv, kv->cached[i].parent, kv->cached[i].tok) < 0)
			wrong = "a cached page cannot be found";
	}
	for (int32_t i = 0; i < kv->n_mark && !wrong; i++) {
		int32_t holders = 0;
		for (int32_t q = 0; q < kv->n_seq; q++)
			holders += kv->seq[q].mark == i + 1;
		if (holders != kv->marked[i])
			wrong = "a mark is not that of one sequence";
	}
	for (int32_t i = 0; i < kv->n_snap; i++)
		if (kv->snap[i].page >= 0 && (kv->cached[kv->snap[i].page].snap != i + 1 || !kv->cached[kv->snap[i].page].serial))
			wrong = "a snapshot is of a page that does not know it";
	if (n_free != kv->n_free || idle + kv->n_stack != n_free)
		wrong = "the number of free pages is wrong";
	if (host_check(kv))
		wrong = host_check(kv);
	free(held);
	return wrong;
}

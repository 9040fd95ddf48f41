/* Prefix cache (see kv.h): pages in a hash table keyed by (previous page, own tokens), unreferenced
 * pages also in an LRU list. A sequence releases its last page first, so a page is always evicted
 * after its successors. If a page still loses its predecessor, no prompt finds it any more, and it
 * ages out of the LRU list. */
#include "runtime/kv/prefix_cache.h"
#include "runtime/kv/kv_window.h"

#include <stdlib.h>
#include <string.h>

/* ---- snapshots of states ---- */

/* Allocate recurrent states of n sequences, one array per pool. */
static void
states_free(Kv *kv, char **base, int32_t n)
{
	for (int i = 0; base && i < kv->plan->n_pool; i++)
		if (base[i])
			kv->mem.free(kv->mem.user, base[i],
			             (size_t)plan_layer_state_bytes(&kv->plan->pool[i]) *
			                 (size_t)kv->plan->pool[i].n_layers * (size_t)n);
	free(base);
}

static bool
states_alloc(Kv *kv, char **base, int32_t n)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		void *m = NULL;
		size_t bytes = (size_t)plan_layer_state_bytes(&kv->plan->pool[i]) *
		               (size_t)kv->plan->pool[i].n_layers * (size_t)n;
		if (bytes && kv->mem.alloc(kv->mem.user, bytes, &m, NULL) != LLMC_OK)
			return false;
		base[i] = m;
	}
	return true;
}

static void
snapshots_release(Kv *kv)
{
	states_free(kv, kv->snap_base, kv->n_snapshot);
	states_free(kv, kv->mark_base, kv->n_mark);
	free(kv->snapshot);
	free(kv->marked);
	kv->snap_base = kv->mark_base = NULL;
	kv->snapshot = NULL;
	kv->marked = NULL;
	kv->n_snapshot = kv->n_mark = 0;
}

llmc_status
snapshots_open(Kv *kv, int32_t n, llmc_error *err)
{
	const Plan *p = kv->plan;

	kv->snapshot = calloc((size_t)n, sizeof *kv->snapshot);
	kv->snap_base = calloc((size_t)p->n_pool + 1, sizeof *kv->snap_base);
	if (!kv->snapshot || !kv->snap_base)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the snapshots of %d states",
		                 n);
	for (; kv->n_snapshot < n; kv->n_snapshot++)
		kv->snapshot[kv->n_snapshot].page = kv->snapshot[kv->n_snapshot].seq = -1;
	if (!states_alloc(kv, kv->snap_base, n))
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory: the prefix cache keeps %d states of sequences, "
		                 "%lld MB; without it (--no-prefix-cache), or with fewer sequences "
		                 "(--seqs), less is needed",
		                 n, (long long)(kv_state_bytes(p, n) >> 20));
	return LLMC_OK;
}

static char *
snapshot_at(const Kv *kv, int n, int32_t snapshot)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		if (p->state && n < p->n_layers)
			return (snapshot < kv->n_snapshot
			            ? kv->snap_base[i] +
			                  ((size_t)n * (size_t)kv->n_snapshot + (size_t)snapshot) *
			                      (size_t)plan_layer_state_bytes(p)
			            : kv->mark_base[i] + ((size_t)n * (size_t)kv->n_mark +
			                                  (size_t)(snapshot - kv->n_snapshot)) *
			                                     (size_t)plan_layer_state_bytes(p));
		n -= p->state ? p->n_layers : 0;
	}
	return NULL;
}

void
snapshot_copy(Kv *kv, int32_t snapshot, int32_t q, bool taken)
{
	char *state;
	size_t bytes;

	for (int n = 0; (state = kv_state_at(kv, n, q, &bytes)) != NULL; n++)
		kv->mem.copy(kv->mem.user, taken ? snapshot_at(kv, n, snapshot) : state,
		             taken ? state : snapshot_at(kv, n, snapshot), bytes);
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
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory: draft tokens need a second copy of the recurrent "
		                 "states of %d sequences, "
		                 "%lld MB; --speculate 0 turns them off",
		                 n, (long long)(kv_state_bytes(p, n) >> 20));
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
	kv_apply(kv, KV_SNAPSHOT, kv->n_snapshot + s->mark - 1, q);
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
snapshot_drop(Kv *kv, int32_t snapshot)
{
	if (kv->snapshot[snapshot].page >= 0)
		kv->cached[kv->snapshot[snapshot].page].snapshot = 0;
	kv->snapshot[snapshot].page = kv->snapshot[snapshot].seq = -1;
}

/* Choose a snapshot slot: this sequence's rolling one, else a free one, else the least recently
 * used. */
static int32_t
snapshot_choose(const Kv *kv, int32_t q, bool prompt)
{
	int32_t best = 0;

	for (int32_t i = 0; i < kv->n_snapshot; i++)
		if (kv->snapshot[i].page >= 0 && kv->snapshot[i].seq == q &&
		    kv->snapshot[i].prompt == prompt)
			return i;
	for (int32_t i = 0; i < kv->n_snapshot; i++) {
		if (kv->snapshot[i].page < 0)
			return i;
		if (kv->snapshot[i].used < kv->snapshot[best].used)
			best = i;
	}
	return best;
}

/* Save the states of sequence q, whose last position is the end of cached page `page`. */
static void
snapshot_save(Kv *kv, int32_t q, int32_t page, bool prompt)
{
	if (!kv->n_snapshot || kv->cached[page].snapshot)
		return;
	int32_t i = snapshot_choose(kv, q, prompt);
	snapshot_drop(kv, i);
	kv_apply(kv, KV_SNAPSHOT, i, q);
	kv->snapshot[i] =
	    (KvSnapshot){ .page = page, .seq = q, .prompt = prompt, .used = ++kv->n_used };
	kv->cached[page].snapshot = i + 1;
}

/* Load the snapshot of a new sequence's last page. */
static void
snapshot_restore(Kv *kv, int32_t q)
{
	KvSeq *s = &kv->seq[q];

	if (s->n_page == 0)
		return;
	int32_t i = kv->cached[s->page[s->n_page - 1]].snapshot - 1;
	kv->snapshot[i].used = ++kv->n_used;
	/* the snapshot is in use by a new sequence, so the old one must not replace it */
	kv->snapshot[i].seq = -1;
	kv_apply(kv, KV_RESTORE, q, i);
}

void
prefix_leave(Kv *kv, int32_t q)
{
	for (int32_t i = 0; i < kv->n_snapshot; i++)
		if (kv->snapshot[i].seq == q)
			kv->snapshot[i].seq = -1;
}

void
prefix_release(Kv *kv)
{
	snapshots_release(kv);
	free(kv->cached);
	free(kv->bucket);
}

/* ---- pages ---- */

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
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory for the prefix cache of %lld KV pages",
		                 (long long)pages);
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

	while (page >= 0 && (kv->cached[page].parent != parent ||
	                     memcmp(kv->cached[page].tok, tok, sizeof kv->cached[page].tok)))
		page = kv->cached[page].next;
	return page;
}

/* Remove a page from the LRU list of unreferenced pages, or of pages in host memory. */
void
prefix_unlist(Kv *kv, int32_t page)
{
	const bool host = page >= kv->n_page;
	KvCachedPage *c = &kv->cached[page];

	*(c->older >= 0 ? &kv->cached[c->older].newer
	  : host        ? &kv->host.oldest
	                : &kv->oldest) = c->newer;
	*(c->newer >= 0 ? &kv->cached[c->newer].older
	  : host        ? &kv->host.newest
	                : &kv->newest) = c->older;
}

void
prefix_idle(Kv *kv, int32_t page)
{
	const bool host = page >= kv->n_page;
	int32_t *oldest = host ? &kv->host.oldest : &kv->oldest,
	        *newest = host ? &kv->host.newest : &kv->newest;

	kv->cached[page].older = *newest;
	kv->cached[page].newer = -1;
	*(*newest >= 0 ? &kv->cached[*newest].newer : oldest) = page;
	*newest = page;
}

void
prefix_forget(Kv *kv, int32_t page)
{
	KvCachedPage *c = &kv->cached[page];

	if (!c->serial)
		return;
	int32_t *at = bucket_of(kv, c->parent, c->tok);
	while (*at != page)
		at = &kv->cached[*at].next;
	*at = c->next;
	c->serial = 0;
	host_uncopy(kv, page);
	if (c->snapshot)
		snapshot_drop(kv, c->snapshot - 1);
}

/* Move the cache record of page `from` to page `to`. `from` must be in no LRU list, `to` not
 * cached. */
static void
rename_page(Kv *kv, int32_t to, int32_t from)
{
	KvCachedPage *c = &kv->cached[from];
	int32_t *at = bucket_of(kv, c->parent, c->tok);

	while (*at != from)
		at = &kv->cached[*at].next;
	*at = to;
	kv->cached[to] = *c;
	if (c->snapshot)
		kv->snapshot[c->snapshot - 1].page = to;
	*c = (KvCachedPage){ 0 };
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

/* Return the largest number of found pages after which a new sequence can resume. The last of them
 * needs a snapshot if the model has recurrent states, and windowed layers need window pages. */
static int32_t
resumable_pages(const Kv *kv, const KvSeq *s)
{
	bool states = plan_has_state(kv->plan);
	int32_t n = s->n_page;

	while (n > 0 && ((states && !kv->cached[s->page[n - 1]].snapshot) ||
	                 !window_whole(kv, s, n * PLAN_KV_PAGE)))
		n--;
	return n;
}

/* Reference a cached page from a sequence. A page in host memory leaves its LRU list; swap_in_pages
 * or unref_pages_after deals with it later. */
static void
page_ref(Kv *kv, int32_t page)
{
	if (page >= kv->n_page) {
		prefix_unlist(kv, page);
	} else if (kv->refs[page]++ == 0) {
		host_uncopy(kv, page);
		prefix_unlist(kv, page);
		kv->n_free--;
	}
}

/* Release the pages after the first n that page_ref gave a new sequence. */
static void
unref_pages_after(Kv *kv, KvSeq *s, int32_t n)
{
	while (s->n_page > n) {
		int32_t page = s->page[--s->n_page];
		s->len -= PLAN_KV_PAGE;
		if (page >= kv->n_page)
			prefix_idle(kv, page);
		else
			kv_page_unref(kv, page);
	}
}

/* Give device pages to the pages of a new sequence that are in host memory. First drop pages from
 * the end: those for which no device page is free, then those after which the sequence cannot
 * resume. */
static void
swap_in_pages(Kv *kv, KvSeq *s)
{
	int32_t room = kv->n_free, n = 0;

	while (n < s->n_page && (s->page[n] < kv->n_page || room-- > 0))
		n++;
	unref_pages_after(kv, s, n);
	n = resumable_pages(kv, s);
	unref_pages_after(kv, s, n);
	for (int32_t i = 0; i < n; i++) {
		const int32_t from = s->page[i];
		if (from < kv->n_page)
			continue;
		int32_t page = s->page[i] = kv_page_alloc(kv);
		rename_page(kv, page, from);
		kv->cached[page].copy = from - kv->n_page + 1;
		kv->stale[page] = true;
	}
}

/* Queue the copies from host memory. First allocate window pages for the copied pages. Pages that
 * already have window pages are pinned meanwhile, so that they keep them. */
static void
fetch(Kv *kv, KvSeq *s)
{
	const int32_t windowless = kv_windowless_pages(kv, s->len - KV_MAX_ROLLBACK);
	int32_t n = 0;

	for (int32_t i = 0; i < s->n_page; i++)
		n += kv->cached[s->page[i]].copy > 0;
	for (int32_t i = 0; kv->window && n && i < s->n_page; i++)
		if (!kv_lacks_window(kv, i, windowless) && kv_has_window(kv, s->page[i]))
			window_pin(kv, s->page[i]);
	for (int32_t i = 0; kv->window && n && i < s->n_page; i++) {
		const int32_t page = s->page[i], copy = kv->cached[page].copy;
		if (kv_lacks_window(kv, i, windowless) || !copy || !kv->host.whole[copy - 1] ||
		    !window_available(kv))
			continue;
		window_alloc(kv, page);
		window_pin(kv, page);
	}
	for (int32_t i = 0; n && i < s->n_page; i++) {
		KvCachedPage *c = &kv->cached[s->page[i]];
		if (!c->copy)
			continue;
		kv_apply(kv, KV_SWAP_IN, s->page[i], c->copy - 1);
		host_free(kv, c->copy - 1);
		c->copy = 0;
	}
	for (int32_t i = 0; kv->window && n && i < s->n_page; i++)
		if (!kv_lacks_window(kv, i, windowless) && kv_has_window(kv, s->page[i]))
			window_unpin(kv, s->page[i]);
}

int32_t
kv_prefix_find(Kv *kv, int32_t q, int64_t root, const int32_t *tok, int32_t n_tok)
{
	KvSeq *s = &kv->seq[q];

	if (!kv->cached)
		return 0;
	for (; s->len + PLAN_KV_PAGE < n_tok && s->n_page < kv->max_page; s->len += PLAN_KV_PAGE) {
		int32_t page = look_up(
		    kv, s->n_page ? kv->cached[s->page[s->n_page - 1]].serial : root, tok + s->len);
		if (page < 0)
			break;
		page_ref(kv, page);
		s->page[s->n_page++] = page;
	}
	if (kv->host.n) {
		swap_in_pages(kv, s);
		fetch(kv, s);
		s->coming = host_last(kv, s->page, s->n_page);
	}
	/* at first the sequence needs no window page, except for sinks */
	s->n_windowless = kv->window ? s->n_page : 0;
	for (int32_t i = 0; i < s->n_page && i < kv->sinks; i++)
		window_pin(kv, s->page[i]);
	kv_seq_trim(kv, q, resumable_pages(kv, s) * PLAN_KV_PAGE);
	if (plan_has_state(kv->plan))
		snapshot_restore(kv, q);
	s->n_kept = s->n_page;
	s->prefix_parent = s->n_page ? kv->cached[s->page[s->n_page - 1]].serial : root;
	s->prefix_len = s->len;
	return s->len;
}

/* Move the record of page `from` to page `to` with equal content. `to` is better: it has a window
 * page, or `from` is in host memory. */
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

/* Return the cached page with the content of page n_kept of the sequence: its own page, or an
 * existing page with equal content. */
static int32_t
page_known(Kv *kv, const KvSeq *s, const int32_t *own)
{
	int32_t page = look_up(kv, s->prefix_parent, own), mine = s->page[s->n_kept];

	if (page >= 0 && !kv->cached[mine].serial &&
	    (page >= kv->n_page || (!kv_has_window(kv, page) && kv_has_window(kv, mine)))) {
		record_move(kv, mine, page);
		page = mine;
	}
	if (page >= 0)
		return page;
	page = mine;
	KvCachedPage *c = &kv->cached[page];
	/* the page has a record already, as successor of a page that was evicted: keep it */
	if (c->serial)
		return page;
	int32_t *at = bucket_of(kv, s->prefix_parent, own);
	*c = (KvCachedPage){ .serial = ++kv->last_serial, .parent = s->prefix_parent, .next = *at };
	memcpy(c->tok, own, sizeof c->tok);
	return *at = page;
}

void
kv_prefix_keep(Kv *kv, int32_t q, int64_t root, const int32_t *tok)
{
	KvSeq *s = &kv->seq[q];
	/* several rows are a prompt, unless they follow a mark: then they are draft tokens */
	bool prompt = s->len - s->prefix_len > 1 && !s->mark;

	if (!kv->cached)
		return;
	s->prefix_len = s->len;
	if (s->n_kept == 0)
		s->prefix_parent = root;
	for (; s->n_kept < s->len / PLAN_KV_PAGE; s->n_kept++) {
		int32_t page = page_known(kv, s, tok + (size_t)s->n_kept * PLAN_KV_PAGE);
		s->prefix_parent = kv->cached[page].serial;
		if ((s->n_kept + 1) * PLAN_KV_PAGE == s->len)
			snapshot_save(kv, q, page, prompt);
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
		if (s->used &&
		    (s->len > s->n_page * PLAN_KV_PAGE || s->n_kept > s->len / PLAN_KV_PAGE))
			wrong = "a sequence is longer than its pages";
		for (int32_t i = 0; s->used && i < s->n_page; i++)
			held[s->page[i]]++;
		if (kv->window && s->used &&
		    (s->n_windowless > s->n_page || !window_whole(kv, s, s->len)))
			wrong = "a sequence lacks pages of its window";
	}
	for (int32_t i = 0; kv->window && i < kv->n_page; i++)
		if ((kv->needs[i] > 0 && kv->window[i] < 0) || kv->needs[i] > kv->refs[i] ||
		    (kv->window[i] >= 0 && kv->owner[kv->window[i]] != i))
			wrong = "a page's window page is not its own, or not needed by any holder";
	for (int32_t i = 0; i < kv->n_stack; i++)
		if (held[kv->free_page[i]]++)
			wrong = "a free page is held, or free twice";
	for (int32_t i = kv->cached ? kv->oldest : -1; i >= 0; i = kv->cached[i].newer, idle++)
		if (held[i]++ || !kv->cached[i].serial || idle > kv->n_page)
			return free(held), "an idle page is held, free or not cached";
	for (int32_t i = 0; i < kv->n_page; i++) {
		n_free += kv->refs[i] == 0;
		if (held[i] != (kv->refs[i] ? kv->refs[i] : 1))
			wrong = "a page's count differs from its number of holders";
		if (kv->cached && kv->cached[i].serial && kv->refs[i] == 0 &&
		    look_up(kv, kv->cached[i].parent, kv->cached[i].tok) < 0)
			wrong = "a cached page cannot be found";
	}
	for (int32_t i = 0; i < kv->n_mark && !wrong; i++) {
		int32_t holders = 0;
		for (int32_t q = 0; q < kv->n_seq; q++)
			holders += kv->seq[q].mark == i + 1;
		if (holders != kv->marked[i])
			wrong = "a mark is not that of one sequence";
	}
	for (int32_t i = 0; i < kv->n_snapshot; i++)
		if (kv->snapshot[i].page >= 0 &&
		    (kv->cached[kv->snapshot[i].page].snapshot != i + 1 ||
		     !kv->cached[kv->snapshot[i].page].serial))
			wrong = "a snapshot is of a page that does not know it";
	if (n_free != kv->n_free || idle + kv->n_stack != n_free)
		wrong = "the number of free pages is wrong";
	if (host_check(kv))
		wrong = host_check(kv);
	free(held);
	return wrong;
}

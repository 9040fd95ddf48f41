/* See kv.h. Nothing here allocates after kv_open and kv_prefix_open. The prefix cache is in
 * prefix_cache.c. */
#include "runtime/kv/kv.h"
#include "runtime/kv/prefix_cache.h"
#include "runtime/kv/kv_window.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int64_t
kv_pages(int64_t kv_tokens, int64_t context, int64_t seqs, bool kv_tokens_given)
{
	int64_t n;

	if (kv_tokens_given)
		return kv_tokens / PLAN_KV_PAGE + (kv_tokens % PLAN_KV_PAGE != 0);
	n = context / PLAN_KV_PAGE + (context % PLAN_KV_PAGE != 0);
	return __builtin_mul_overflow(n, seqs, &n) ? -1 : n;
}

static int64_t
pool_bytes(const PlanPool *p, int64_t n_page, int64_t n_exact)
{
	int64_t one = plan_layer_page_bytes(p), exact = plan_layer_exact_bytes(p), bytes;

	if (one < 0 || exact < 0 || __builtin_mul_overflow(one, n_page, &bytes) ||
	    __builtin_mul_overflow(exact, n_exact, &exact) ||
	    __builtin_add_overflow(bytes, exact, &bytes) ||
	    __builtin_mul_overflow(bytes, (int64_t)p->n_layers, &bytes))
		return -1;
	return bytes;
}

int64_t
kv_bytes(const Plan *p, int64_t n_page)
{
	int64_t one = plan_page_bytes(p), all;

	return one < 0 || __builtin_mul_overflow(one, n_page, &all) ? -1 : all;
}

int64_t
kv_state_bytes(const Plan *p, int64_t seqs)
{
	int64_t sum = 0;

	for (int i = 0; i < p->n_pool; i++) {
		int64_t one = plan_layer_state_bytes(&p->pool[i]);
		if (one < 0 || __builtin_mul_overflow(one, seqs, &one) ||
		    __builtin_mul_overflow(one, (int64_t)p->pool[i].n_layers, &one) ||
		    __builtin_add_overflow(sum, one, &sum))
			return -1;
	}
	return sum;
}

static llmc_status
host_mem_alloc(void *user, size_t bytes, void **out, llmc_error *err)
{
	void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)user;
	*out = NULL;
	if (m == MAP_FAILED)
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	/* a hint: attention reads scattered pages of a few KiB, so huge pages save TLB misses */
	madvise(m, bytes, MADV_HUGEPAGE);
	*out = m;
	return LLMC_OK;
}

static void
host_mem_free(void *user, void *mem, size_t bytes)
{
	(void)user;
	munmap(mem, bytes);
}

static void
host_mem_copy(void *user, void *to, const void *from, size_t bytes)
{
	(void)user;
	memcpy(to, from, bytes);
}

static void
host_mem_clear(void *user, void *at, size_t bytes, size_t stride, int n)
{
	(void)user;
	for (int i = 0; i < n; i++)
		memset((char *)at + (size_t)i * stride, 0, bytes);
}

static void
host_mem_begin(void *user)
{
	(void)user;
}

static void
host_mem_number(void *user, uint32_t number)
{
	(void)user;
	(void)number;
}

static bool
host_mem_over(void *user, uint32_t number)
{
	host_mem_number(user, number);
	return true;
}

/* Host memory: copies complete before the call returns */
static const KvMem host_memory = { .alloc = host_mem_alloc,
	                           .free = host_mem_free,
	                           .copy = host_mem_copy,
	                           .clear = host_mem_clear,
	                           .read = host_mem_copy,
	                           .write = host_mem_copy,
	                           .pin = host_mem_alloc,
	                           .unpin = host_mem_free,
	                           .begin = host_mem_begin,
	                           .out = host_mem_copy,
	                           .in = host_mem_copy,
	                           .end = host_mem_number,
	                           .wait = host_mem_number,
	                           .over = host_mem_over };

llmc_status
kv_open(Kv *kv, const Plan *p, int32_t n_page, int32_t context, int32_t seqs, llmc_error *err)
{
	return kv_open_on(kv, NULL, p, n_page, kv_window_positions(p) ? n_page : 0, 0, context,
	                  seqs, err);
}

llmc_status
kv_open_on(Kv *kv, const KvMem *mem, const Plan *p, int32_t n_page, int32_t n_window,
           int32_t n_snapshot, int32_t context, int32_t seqs, llmc_error *err)
{
	*kv = (Kv){ .plan = p,
		    .mem = mem ? *mem : host_memory,
		    .n_page = n_page,
		    .n_free = n_page,
		    .n_stack = n_page,
		    .n_seq = seqs,
		    .n_window = n_window,
		    .oldest = -1,
		    .newest = -1 };
	context = (int32_t)kv_context(p, context);
	kv->max_page = context / PLAN_KV_PAGE + (context % PLAN_KV_PAGE != 0);
	TRY(window_open(kv, err));
	kv->stride = kv->window ? 2 * kv->max_page : kv->max_page;
	kv->free_page = calloc((size_t)n_page, sizeof *kv->free_page);
	kv->refs = calloc((size_t)n_page, sizeof *kv->refs);
	kv->drops = calloc((size_t)n_page, sizeof *kv->drops);
	kv->stale = calloc((size_t)n_page, sizeof *kv->stale);
	kv->seq = calloc((size_t)seqs, sizeof *kv->seq);
	kv->tables = calloc((size_t)seqs * (size_t)kv->stride, sizeof *kv->tables);
	kv->base = calloc((size_t)p->n_pool + 1, sizeof *kv->base);
	kv->pool_bytes = calloc((size_t)p->n_pool + 1, sizeof *kv->pool_bytes);
	if (!kv->free_page || !kv->refs || !kv->drops || !kv->stale || !kv->seq || !kv->tables ||
	    !kv->base || !kv->pool_bytes)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the tables of %d KV pages",
		                 n_page);
	for (int32_t i = 0; i < n_page; i++)
		kv->free_page[i] = n_page - 1 - i; /* page 0 first */
	for (int32_t i = 0; i < seqs; i++)
		kv->seq[i].page = kv->tables + (size_t)i * (size_t)kv->stride;
	for (int i = 0; i < p->n_pool; i++) {
		int64_t bytes =
		    p->pool[i].state
		        ? plan_layer_state_bytes(&p->pool[i]) * seqs * p->pool[i].n_layers
		        : pool_bytes(&p->pool[i], kv_pool_pages(kv, i), kv->n_window);
		void *m = NULL;
		if (bytes < 0 ||
		    (bytes && kv->mem.alloc(kv->mem.user, (size_t)bytes, &m, NULL) != LLMC_OK))
			return error_set(err, LLMC_E_MEMORY,
			                 "out of memory: the KV cache needs %lld MB; smaller "
			                 "limits (--context, --seqs) need less",
			                 (long long)((kv_bytes(p, n_page) -
			                              kv_window_bytes(p, n_page - kv->n_window) +
			                              kv_state_bytes(p, seqs)) >>
			                             20));
		kv->base[i] = m;
		kv->pool_bytes[i] = (size_t)bytes;
	}
	return n_snapshot && plan_has_state(p) ? snapshots_open(kv, n_snapshot, err) : LLMC_OK;
}

void
kv_release(Kv *kv)
{
	host_release(kv); /* wait for copies in flight before their pages are freed */
	for (int i = 0; kv->base && i < kv->plan->n_pool; i++)
		if (kv->base[i])
			kv->mem.free(kv->mem.user, kv->base[i], kv->pool_bytes[i]);
	free(kv->free_page);
	free(kv->refs);
	free(kv->drops);
	free(kv->stale);
	free(kv->seq);
	free(kv->tables);
	free(kv->base);
	free(kv->pool_bytes);
	prefix_release(kv);
	window_release(kv);
	*kv = (Kv){ 0 };
}

int64_t
kv_context(const Plan *p, int64_t context)
{
	const int64_t most = plan_segment(p);
	int64_t side = 1;

	if (!most)
		return context;
	while ((side + 1) * (side + 1) * p->merge <= most)
		side++;
	const int64_t narrow = (PLAN_KV_PAGE + side * p->merge - 1) / (side * p->merge);
	return (1 + (narrow > 2 ? narrow : 2)) * context;
}

int32_t
kv_pool_pages(const Kv *kv, int pool)
{
	return kv->window && kv->plan->pool[pool].keep ? kv->n_window : kv->n_page;
}

void *
kv_layer(const Kv *kv, int pool, int layer_slot)
{
	int64_t page = plan_layer_page_bytes(&kv->plan->pool[pool]),
	        exact = plan_layer_exact_bytes(&kv->plan->pool[pool]) * kv->n_window;

	if (kv->plan->pool[pool].state)
		return kv->base[pool] + (int64_t)layer_slot * kv->n_seq *
		                            plan_layer_state_bytes(&kv->plan->pool[pool]);
	return kv->base[pool] + (int64_t)layer_slot * (kv_pool_pages(kv, pool) * page + exact) +
	       exact;
}

/* Zero a page in every layer of every pool. */
static void
page_clear(Kv *kv, int32_t a)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		size_t bytes = (size_t)plan_layer_page_bytes(p);
		int32_t at = window_index(kv, i, a);
		char *layer = bytes ? kv_layer(kv, i, 0) : NULL,
		     *exact = layer ? window_exact(kv, i, layer, a) : NULL;
		size_t stride = layer ? (size_t)((char *)kv_layer(kv, i, 1) - layer) : 0;
		if (layer && at >= 0)
			kv->mem.clear(kv->mem.user, layer + (size_t)at * bytes, bytes, stride,
			              p->n_layers);
		if (exact)
			kv->mem.clear(kv->mem.user, exact, (size_t)plan_layer_exact_bytes(p),
			              stride, p->n_layers);
	}
}

static void
page_copy(Kv *kv, int32_t to, int32_t from)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		size_t bytes = (size_t)plan_layer_page_bytes(p);
		int32_t a = window_index(kv, i, to), b = window_index(kv, i, from);
		for (int l = 0; bytes && l < p->n_layers; l++) {
			char *layer = kv_layer(kv, i, l), *exact = window_exact(kv, i, layer, to),
			     *other = window_exact(kv, i, layer, from);
			if (a >= 0 && b >= 0)
				kv->mem.copy(kv->mem.user, layer + (size_t)a * bytes,
				             layer + (size_t)b * bytes, bytes);
			if (exact && other)
				kv->mem.copy(kv->mem.user, exact, other,
				             (size_t)plan_layer_exact_bytes(p));
		}
	}
}

static void
page_assign(Kv *kv, int32_t to, int32_t from)
{
	kv_apply(kv, KV_PAGE, to, from);
}

int32_t
kv_page_alloc(Kv *kv)
{
	int32_t page = kv->n_stack ? kv->free_page[--kv->n_stack] : prefix_evict(kv);

	window_drop(kv, page); /* an evicted page may still own a window page */
	kv->n_free--;
	kv->refs[page] = 1;
	return page;
}

/* Allocate a page that the next step writes; the step waits for copies that still use the page. */
static int32_t
page_alloc_step(Kv *kv)
{
	int32_t page = kv_page_alloc(kv);

	if (!kv->host.n)
		return page;
	host_ahead(kv);
	host_wait(kv, kv->host.moved[page]);
	return page;
}

void
kv_page_unref(Kv *kv, int32_t page)
{
	if (--kv->refs[page])
		return;
	kv->n_free++;
	if (kv->cached && kv->cached[page].serial)
		prefix_idle(kv, page);
	else {
		window_drop(kv, page);
		kv->free_page[kv->n_stack++] = page;
	}
}

int32_t
kv_seq_new(Kv *kv)
{
	for (int32_t q = 0; q < kv->n_seq; q++)
		if (!kv->seq[q].used) {
			kv->seq[q].used = true;
			kv->seq[q].len = kv->seq[q].n_page = kv->seq[q].n_windowless =
			    kv->seq[q].n_kept = kv->seq[q].prefix_len = 0;
			kv->seq[q].mark = 0;
			kv->seq[q].coming = kv->host.waited;
			return q;
		}
	return -1;
}

/* Return the recurrent state of sequence q in the n-th layer that has one; NULL past the last such
 * layer. */
char *
kv_state_at(const Kv *kv, int n, int32_t q, size_t *bytes)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		if (p->state && n < p->n_layers) {
			*bytes = (size_t)plan_layer_state_bytes(p);
			return (char *)kv_layer(kv, i, n) + (size_t)q * *bytes;
		}
		n -= p->state ? p->n_layers : 0;
	}
	return NULL;
}

static void
state_fork(Kv *kv, int32_t q, int32_t from)
{
	char *state;
	size_t bytes;

	for (int n = 0; (state = kv_state_at(kv, n, from, &bytes)) != NULL; n++)
		kv->mem.copy(kv->mem.user, kv_state_at(kv, n, q, &bytes), state, bytes);
}

void
kv_apply(Kv *kv, KvOp op, int32_t to, int32_t from)
{
	switch (op) {
	case KV_PAGE:
		if (from < 0)
			page_clear(kv, to);
		else
			page_copy(kv, to, from);
		break;
	case KV_FORK:
		state_fork(kv, to, from);
		break;
	case KV_SNAPSHOT:
		snapshot_copy(kv, to, from, true);
		break;
	case KV_RESTORE:
		snapshot_copy(kv, from, to, false);
		break;
	case KV_SWAP_OUT:
		host_out(kv, to, from);
		break;
	case KV_SWAP_IN:
		host_in(kv, to, from);
		break;
	case KV_WAIT:
		kv->mem.wait(kv->mem.user, (uint32_t)to);
		break;
	}
	if (kv->on_op)
		kv->on_op(kv->on_op_user, op, to, from);
}

int32_t
kv_seq_fork(Kv *kv, int32_t from)
{
	int32_t q = kv_seq_new(kv);

	if (q < 0)
		return q;
	KvSeq *to = &kv->seq[q], *s = &kv->seq[from];
	to->len = s->len;
	to->n_page = s->n_page;
	to->n_windowless = s->n_windowless;
	to->n_kept = s->n_kept;
	to->prefix_parent = s->prefix_parent;
	to->prefix_len = s->prefix_len;
	to->coming = s->coming;
	for (int32_t i = 0; i < s->n_page; i++) {
		to->page[i] = s->page[i];
		kv->refs[s->page[i]]++;
		if (window_sees(kv, to, i))
			window_pin(kv, s->page[i]);
	}
	if (plan_has_state(kv->plan))
		kv_apply(kv, KV_FORK, q, from);
	return q;
}

void
kv_seq_trim(Kv *kv, int32_t q, int32_t len)
{
	KvSeq *s = &kv->seq[q];
	int32_t keep = len / PLAN_KV_PAGE + (len % PLAN_KV_PAGE != 0);

	if (s->mark && len < s->mark_len)
		kv_seq_unmark(kv, q);
	if (s->mark && len == s->mark_len && len < s->len)
		kv_apply(kv, KV_RESTORE, q, kv->n_snapshot + s->mark - 1);
	while (s->n_page > keep) {
		int32_t page = s->page[--s->n_page];
		if (window_sees(kv, s, s->n_page))
			window_unpin(kv, page);
		kv_page_unref(kv, page);
	}
	s->n_windowless = s->n_windowless < s->n_page ? s->n_windowless : s->n_page;
	s->len = len;
	window_trim(kv, s);
	if (s->n_kept > len / PLAN_KV_PAGE)
		/* nothing is registered: the next kv_prefix_keep registers all pages */
		s->n_kept = 0;
}

void
kv_seq_free(Kv *kv, int32_t q)
{
	kv_seq_unmark(kv, q);
	kv_seq_trim(kv, q, 0);
	prefix_leave(kv, q);
	kv->seq[q].used = false;
}

static bool
writes_shared(const Kv *kv, const KvSeq *s)
{
	return s->len % PLAN_KV_PAGE != 0 &&
	       kv->refs[s->page[s->n_page - 1]] - kv->drops[s->page[s->n_page - 1]] > 1;
}

int64_t
kv_pages_needed(Kv *kv, const int32_t *q, const int32_t *add, size_t n)
{
	int64_t need = 0;

	for (size_t i = 0; i < n; i++) {
		const KvSeq *s = &kv->seq[q[i]];
		int64_t len = (int64_t)s->len + add[i];
		need += (len + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE - s->n_page;
		/* if all other sequences of a shared page copy it, the last one may write it in
		 * place */
		if (writes_shared(kv, s)) {
			kv->drops[s->page[s->n_page - 1]]++;
			need++;
		}
	}
	for (size_t i = 0; i < n; i++) {
		const KvSeq *s = &kv->seq[q[i]];
		if (s->n_page)
			kv->drops[s->page[s->n_page - 1]] = 0;
	}
	return need;
}

/* Give `page` a window page before a step writes it. Steps run after copies that still use that
 * window page. Returns true if another sequence's positions were in it. */
static bool
give_window(Kv *kv, int32_t page)
{
	const bool was = window_alloc(kv, page);

	if (kv->window && kv->host.n && kv->window[page] >= 0)
		host_wait(kv, kv->host.near[kv->window[page]]);
	return was;
}

void
kv_extend(Kv *kv, int32_t q, int32_t add)
{
	KvSeq *s = &kv->seq[q];
	int32_t want = (int32_t)(((int64_t)s->len + add + PLAN_KV_PAGE - 1) / PLAN_KV_PAGE);

	kv_seq_wait(kv, q);
	if (writes_shared(kv, s)) {
		int32_t *last = &s->page[s->n_page - 1], own = page_alloc_step(kv);
		give_window(kv, own);
		page_assign(kv, own, *last);
		kv->stale[own] = true;
		window_pin(kv, own);
		window_unpin(kv, *last);
		kv_page_unref(kv, *last);
		*last = own;
	} else if (s->len % PLAN_KV_PAGE != 0 && kv->cached) {
		prefix_forget(kv,
		              /* the last page was cut by a trim: new tokens will replace the
		               * removed ones, so it leaves the cache */
		              s->page[s->n_page - 1]);
	}
	while (s->n_page < want) {
		int32_t page = page_alloc_step(kv);
		/* a kernel may read past the last position and mask the result; NaN of an earlier
		 * owner must not be there */
		if (give_window(kv, page) || kv->stale[page])
			page_assign(kv, page, -1);
		kv->stale[page] = true;
		window_pin(kv, page);
		s->page[s->n_page++] = page;
	}
	window_table(kv, s);
}

void
kv_advance(Kv *kv, int32_t q, int32_t add)
{
	KvSeq *s = &kv->seq[q];

	s->len += add;
	window_grown(kv, s);
}

/* Called for each contiguous segment of pages or states, in the order in which a sequence is
 * saved */
typedef void segment_fn(Kv *kv, char *at, char *host, size_t bytes);

/* Run fn over the segments of pages; pages [from, to) have no window pages. */
static void
for_each_segment(Kv *kv, const int32_t *page, int32_t n_page, int32_t from, int32_t to, char *host,
                 segment_fn *fn)
{
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		size_t bytes = (size_t)plan_layer_page_bytes(p),
		       exact = (size_t)plan_layer_exact_bytes(p);
		for (int l = 0; bytes && l < p->n_layers; l++) {
			char *layer = kv_layer(kv, i, l);
			for (int32_t k = 0; k < n_page; k++) {
				const bool lacks = k >= from && k < to;
				if (!p->keep || !lacks) {
					fn(kv, layer + (size_t)window_index(kv, i, page[k]) * bytes,
					   host, bytes);
					host += bytes;
				}
				if (exact && !lacks) {
					fn(kv, window_exact(kv, i, layer, page[k]), host, exact);
					host += exact;
				}
			}
		}
	}
}

static void
segment_read(Kv *kv, char *at, char *host, size_t bytes)
{
	kv->mem.read(kv->mem.user, host, at, bytes);
}

static void
segment_write(Kv *kv, char *at, char *host, size_t bytes)
{
	kv->mem.write(kv->mem.user, at, host, bytes);
}

void
kv_pages_read(Kv *kv, const int32_t *page, int32_t n, int32_t windowless, void *host)
{
	for_each_segment(kv, page, n, kv->sinks, windowless, host, segment_read);
}

void
kv_pages_write(Kv *kv, const int32_t *page, int32_t n, int32_t windowless, const void *host)
{
	for_each_segment(kv, page, n, kv->sinks, windowless, (char *)(uintptr_t)host,
	                 segment_write); /* the cast is safe: segment_write only reads host */
}

void
kv_page_read(Kv *kv, int32_t page, bool lacks, void *host)
{
	for_each_segment(kv, &page, 1, 0, lacks, host, segment_read);
}

void
kv_page_write(Kv *kv, int32_t page, bool lacks, const void *host)
{
	for_each_segment(kv, &page, 1, 0, lacks, (char *)(uintptr_t)host,
	                 segment_write); /* the cast is safe: segment_write only reads host */
}

void
kv_seq_reserve(Kv *kv, int32_t q, int32_t len, int32_t windowless)
{
	KvSeq *s = &kv->seq[q];

	while (s->n_page < kv_seq_pages(len)) {
		int32_t page = s->page[s->n_page] = page_alloc_step(kv);
		kv->stale[page] = true;
		/* while the sequence is empty: the first pages get no window pages */
		if (s->n_page < windowless)
			s->n_windowless = s->n_page + 1;
		if (window_sees(kv, s, s->n_page++)) {
			give_window(kv, page);
			window_pin(kv, page);
		}
	}
	s->len = len;
	window_grown(kv, s);
}

static void
for_each_state(Kv *kv, int32_t q, char *host, segment_fn *fn)
{
	char *state;
	size_t bytes;

	for (int n = 0; (state = kv_state_at(kv, n, q, &bytes)) != NULL; n++, host += bytes)
		fn(kv, state, host, bytes);
}

void
kv_state_read(Kv *kv, int32_t q, void *host)
{
	for_each_state(kv, q, host, segment_read);
}

void
kv_state_write(Kv *kv, int32_t q, const void *host)
{
	/* the cast is safe: segment_write only reads host */
	for_each_state(kv, q, (char *)(uintptr_t)host, segment_write);
}

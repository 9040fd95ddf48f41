/* Prefix-cache pages in host memory (see kv.h). When a page is evicted, its record in the cache is
 * kept and then refers to a host page. The next candidates for eviction are copied in advance while
 * steps run, so that no step waits for a copy. When a prompt finds a page in host memory, the page
 * gets a device page, and the copy back overlaps with steps of other sequences. Records change when
 * a copy is queued, not when it completes: copies run in order, and a step waits for the copy
 * groups of its pages (moved, coming). */
#include "runtime/kv/prefix_cache.h"
#include "runtime/kv/kv_window.h"

#include <stdlib.h>

int64_t
kv_host_pages(const Plan *p)
{
	const int64_t one = plan_page_bytes(p), n = one > 0 ? p->kv_host / one : 0;

	return n < INT32_MAX / 2 ? n : INT32_MAX / 2;
}

llmc_status
kv_host_open(Kv *kv, int32_t n, int32_t ahead, llmc_error *err)
{
	KvHost *h = &kv->host;
	void *mem = NULL;

	if (n < 1)
		return LLMC_OK;
	h->page_bytes = (size_t)kv_bytes(kv->plan, 1);
	h->ahead = ahead;
	h->oldest = h->newest = -1;
	h->free_page = calloc((size_t)n, sizeof *h->free_page);
	h->whole = calloc((size_t)n, sizeof *h->whole);
	h->moved = calloc((size_t)kv->n_page, sizeof *h->moved);
	h->near = calloc((size_t)kv->n_window + 1, sizeof *h->near);
	if (!h->free_page || !h->whole || !h->moved || !h->near)
		return error_set(err, LLMC_E_MEMORY,
		                 "out of memory for the tables of %d KV pages in host memory", n);
	TRY(kv->mem.pin(kv->mem.user, (size_t)n * h->page_bytes, &mem, err));
	h->mem = mem;
	h->n = h->n_free = n;
	for (int32_t i = 0; i < n; i++)
		h->free_page[i] = n - 1 - i;
	return LLMC_OK;
}

void
host_release(Kv *kv)
{
	KvHost *h = &kv->host;

	if (h->mem)
		kv->mem.unpin(kv->mem.user, h->mem, (size_t)h->n * h->page_bytes);
	free(h->free_page);
	free(h->whole);
	free(h->moved);
	free(h->near);
}

int32_t
kv_host_used(const Kv *kv)
{
	return kv->host.n - kv->host.n_free;
}

/* ---- copies ---- */

/* Is group a later than group b? Group numbers wrap around. */
static bool
group_is_later(uint32_t a, uint32_t b)
{
	return a - b - 1 < INT32_MAX;
}

/* Copy a page between the device and its host page, segment by segment. */
static void
copy_page(Kv *kv, int32_t page, int32_t host, bool out)
{
	KvHost *h = &kv->host;
	KvMem *m = &kv->mem;
	char *to = h->mem + (size_t)host * h->page_bytes;

	m->begin(m->user);
	for (int i = 0; i < kv->plan->n_pool; i++) {
		const PlanPool *p = &kv->plan->pool[i];
		const size_t bytes = (size_t)plan_layer_page_bytes(p),
		             exact = (size_t)plan_layer_exact_bytes(p);
		const int32_t index = window_index(kv, i, page);
		for (int l = 0; bytes && l < p->n_layers; l++, to += bytes + exact) {
			char *layer = kv_layer(kv, i, l),
			     *own = layer + (size_t)(index < 0 ? 0 : index) * bytes,
			     *near = window_exact(kv, i, layer, page);
			if (index >= 0 && out)
				m->out(m->user, to, own, bytes);
			else if (index >= 0)
				m->in(m->user, own, to, bytes);
			if (near && out)
				m->out(m->user, to + bytes, near, exact);
			else if (near)
				m->in(m->user, near, to + bytes, exact);
		}
	}
	m->end(m->user, ++h->n_moved);
	h->moved[page] = h->n_moved;
	if (kv->window && kv->window[page] >= 0)
		h->near[kv->window[page]] = h->n_moved;
}

void
host_out(Kv *kv, int32_t to, int32_t page)
{
	copy_page(kv, page, to, true);
	kv->host.n_out++;
}

void
host_in(Kv *kv, int32_t page, int32_t from)
{
	copy_page(kv, page, from, false);
	kv->host.n_in++;
}

/* May the group still run? Both bounds are checked, because numbers wrap around and a very old one
 * could look new. */
static bool
group_may_run(const KvHost *h, uint32_t group)
{
	return h->n && group_is_later(group, h->waited) && !group_is_later(group, h->n_moved);
}

void
host_wait(Kv *kv, uint32_t group)
{
	if (!group_may_run(&kv->host, group))
		return;
	kv->host.waited = group;
	kv_apply(kv, KV_WAIT, (int32_t)group, -1);
}

uint32_t
host_last(const Kv *kv, const int32_t *page, int32_t n)
{
	uint32_t last = kv->host.waited;

	for (int32_t i = 0; i < n; i++)
		if (group_may_run(&kv->host, kv->host.moved[page[i]]) &&
		    group_is_later(kv->host.moved[page[i]], last))
			last = kv->host.moved[page[i]];
	return last;
}

bool
kv_seq_ready(Kv *kv, int32_t q)
{
	const uint32_t coming = kv->seq[q].coming;

	return !group_may_run(&kv->host, coming) || kv->mem.over(kv->mem.user, coming);
}

void
kv_seq_wait(Kv *kv, int32_t q)
{
	host_wait(kv, kv->seq[q].coming);
}

/* ---- allocation ---- */

void
host_free(Kv *kv, int32_t host)
{
	kv->host.free_page[kv->host.n_free++] = host;
}

/* Return a free host page, or evict the least recently used one; -1: none. */
static int32_t
host_alloc(Kv *kv)
{
	KvHost *h = &kv->host;

	if (!h->n_free) {
		const int32_t page = h->n ? h->oldest : -1;
		if (page < 0)
			return -1;
		prefix_unlist(kv, page);
		prefix_forget(kv, page);
		return page - kv->n_page;
	}
	return h->free_page[--h->n_free];
}

int32_t
host_copy(Kv *kv, int32_t page)
{
	int32_t host = kv->cached[page].copy - 1;

	if (host >= 0)
		return host;
	host = host_alloc(kv);
	if (host < 0)
		return -1;
	kv->host.whole[host] = kv_has_window(kv, page);
	kv->cached[page].copy = host + 1;
	kv_apply(kv, KV_SWAP_OUT, host, page);
	return host;
}

void
host_uncopy(Kv *kv, int32_t page)
{
	if (kv->cached[page].copy)
		host_free(kv, kv->cached[page].copy - 1);
	kv->cached[page].copy = 0;
}

void
host_ahead(Kv *kv)
{
	int32_t page = kv->host.n && kv->cached ? kv->oldest : -1;

	for (int32_t n = kv->n_stack; n < kv->host.ahead && page >= 0;
	     n++, page = kv->cached[page].newer)
		if (host_copy(kv, page) < 0)
			return;
}

const char *
host_check(const Kv *kv)
{
	const KvHost *h = &kv->host;
	int32_t held = 0, listed = 0;

	if (!h->n || !kv->cached)
		return NULL;
	for (int32_t i = 0; i < kv->n_page; i++) {
		held += kv->cached[i].copy > 0;
		if (kv->cached[i].copy && (!kv->cached[i].serial || kv->refs[i]))
			return "a page with a holder has a copy in host memory";
	}
	for (int32_t i = h->oldest; i >= 0; i = kv->cached[i].newer, listed++)
		if (i < kv->n_page || !kv->cached[i].serial || kv->cached[i].copy || listed > h->n)
			return "a page in host memory is not cached";
	return held + listed + h->n_free == h->n
	           ? NULL
	           : "the number of free pages in host memory is wrong";
}

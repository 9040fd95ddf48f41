/* Window pages (see kv.h). A page that no sequence sees any more keeps its window page until
 * another page needs one, which then takes the least recently needed window page. So a prompt with
 * a shared prefix still finds the last window of earlier prompts, and while window pages are
 * plentiful a sequence can be trimmed by more than KV_MAX_ROLLBACK. A step always gets enough
 * window pages: kv_window_pages counts the windows of all sequences and the rows of a step. */
#include "runtime/kv/kv_window.h"

#include <stdlib.h>
#include <string.h>

int64_t
kv_window_positions(const Plan *p)
{
	/* p->window covers all stages: the first stage assigns window pages for all, even if none
	 * of its own layers has a window */
	int64_t keep = p->window;

	if (p->prompt_whole)
		return 0;
	for (int i = 0; i < p->n_pool; i++) {
		const PlanPool *k = &p->pool[i];
		int64_t own = k->keep > k->recent ? k->keep : k->recent;
		own = own == 0 && k->sinks ? 1 : own;
		keep = own > keep ? own : keep;
	}
	if (keep < INT32_MAX / 2)
		return keep;
	return kv_exact_bytes(p, 1) ? INT32_MAX / 2 : 0;
}

/* Number of leading pages of a sequence that hold a sink of some layer */
static int32_t
sink_pages(const Plan *p)
{
	int64_t most = 0;

	for (int i = 0; i < p->n_pool; i++)
		most = p->pool[i].sinks > most ? p->pool[i].sinks : most;
	return (int32_t)(most / PLAN_KV_PAGE + (most % PLAN_KV_PAGE != 0));
}

static int64_t
bytes_of(const Plan *p, int64_t n, bool windows)
{
	int64_t sum = 0;

	for (int i = 0; i < p->n_pool; i++) {
		int64_t one = windows && p->pool[i].keep ? plan_layer_page_bytes(&p->pool[i]) : 0,
		        exact = plan_layer_exact_bytes(&p->pool[i]);
		if (one < 0 || exact < 0 || __builtin_add_overflow(one, exact, &one) ||
		    __builtin_mul_overflow(one, n, &one) ||
		    __builtin_mul_overflow(one, (int64_t)p->pool[i].n_layers, &one) ||
		    __builtin_add_overflow(sum, one, &sum))
			return -1;
	}
	return sum;
}

int64_t
kv_window_bytes(const Plan *p, int64_t n)
{
	return bytes_of(p, n, true);
}

int64_t
kv_exact_bytes(const Plan *p, int64_t n)
{
	return bytes_of(p, n, false);
}

int64_t
kv_windowless_bytes(const Plan *p, int32_t windowless)
{
	const int32_t sinks = sink_pages(p);

	return kv_window_bytes(p, windowless > sinks ? windowless - sinks : 0);
}

int64_t
kv_window_pages(const Plan *p, int64_t n_page, int64_t seqs, int64_t chunk)
{
	int64_t keep = kv_window_positions(p), n;

	if (!keep)
		return 0;
	/* 3 more: partly filled pages at both ends of the window, and the copy of a shared page */
	n = (keep - 1 + KV_MAX_ROLLBACK) / PLAN_KV_PAGE + 3 + sink_pages(p);
	n = n * (seqs + seqs / 2) + chunk / PLAN_KV_PAGE + 1;
	return n < n_page ? n : n_page;
}

llmc_status
window_open(Kv *kv, llmc_error *err)
{
	kv->keep = (int32_t)kv_window_positions(kv->plan);
	if (!kv->keep)
		return LLMC_OK;
	kv->sinks = sink_pages(kv->plan);
	kv->window = malloc((size_t)kv->n_page * sizeof *kv->window);
	kv->needs = calloc((size_t)kv->n_page, sizeof *kv->needs);
	kv->owner = malloc((size_t)kv->n_window * sizeof *kv->owner);
	kv->since = calloc((size_t)kv->n_window, sizeof *kv->since);
	kv->window_stale = calloc((size_t)kv->n_window, sizeof *kv->window_stale);
	if (!kv->window || !kv->needs || !kv->owner || !kv->since || !kv->window_stale)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the tables of %d KV pages",
		                 kv->n_page);
	memset(kv->window, 0xff, (size_t)kv->n_page * sizeof *kv->window);
	memset(kv->owner, 0xff, (size_t)kv->n_window * sizeof *kv->owner);
	return LLMC_OK;
}

void
window_release(Kv *kv)
{
	free(kv->window);
	free(kv->needs);
	free(kv->owner);
	free(kv->since);
	free(kv->window_stale);
}

int32_t
kv_windowless_pages(const Kv *kv, int32_t len)
{
	int64_t first = (int64_t)len - (kv->keep - 1);

	return kv->window && first > 0 ? (int32_t)(first / PLAN_KV_PAGE) : 0;
}

bool
kv_has_window(const Kv *kv, int32_t page)
{
	return !kv->window ||
	       (page < kv->n_page ? kv->window[page] >= 0 : kv->host.whole[page - kv->n_page]);
}

void
kv_set_window_page(Kv *kv, int32_t page, int32_t window)
{
	if (kv->window)
		kv->window[page] = window;
}

void
window_drop(Kv *kv, int32_t page)
{
	if (!kv->window || kv->window[page] < 0)
		return;
	kv->owner[kv->window[page]] = -1;
	kv->window[page] = -1;
}

/* Return a free window page, or else, of those that no sequence needs now, the one that was needed
 * least recently. */
static int32_t
choose(const Kv *kv)
{
	int32_t best = -1;

	for (int32_t w = 0; w < kv->n_window; w++) {
		if (kv->owner[w] < 0)
			return w;
		if (kv->needs[kv->owner[w]] == 0 && (best < 0 || kv->since[w] < kv->since[best]))
			best = w;
	}
	return best;
}

bool
window_available(const Kv *kv)
{
	return choose(kv) >= 0;
}

bool
window_alloc(Kv *kv, int32_t page)
{
	if (!kv->window)
		return false;
	int32_t w = kv->window[page] >= 0 ? kv->window[page] : choose(kv);
	if (kv->owner[w] >= 0)
		window_drop(kv, kv->owner[w]);
	kv->owner[w] = page;
	kv->window[page] = w;
	bool was = kv->window_stale[w];
	return kv->window_stale[w] = true, was;
}

void
window_pin(Kv *kv, int32_t page)
{
	if (kv->window)
		kv->needs[page]++;
}

void
window_unpin(Kv *kv, int32_t page)
{
	if (kv->window && --kv->needs[page] == 0 && kv->window[page] >= 0)
		kv->since[kv->window[page]] = ++kv->n_left;
}

void
window_advance(Kv *kv, KvSeq *s, int32_t windowless)
{
	if (!kv->window)
		return;
	for (; s->n_windowless < windowless; s->n_windowless++)
		if (s->n_windowless >= kv->sinks)
			window_unpin(kv, s->page[s->n_windowless]);
	while (s->n_windowless > windowless)
		if (--s->n_windowless >= kv->sinks)
			window_pin(kv, s->page[s->n_windowless]);
}

bool
window_sees(const Kv *kv, const KvSeq *s, int32_t i)
{
	return !kv_lacks_window(kv, i, s->n_windowless);
}

bool
kv_lacks_window(const Kv *kv, int32_t i, int32_t windowless)
{
	return i >= kv->sinks && i < windowless;
}

void
window_grown(Kv *kv, KvSeq *s)
{
	int32_t windowless = kv_windowless_pages(kv, s->len - KV_MAX_ROLLBACK);

	if (windowless > s->n_windowless)
		window_advance(kv, s, windowless);
}

void
window_trim(Kv *kv, KvSeq *s)
{
	int32_t windowless = s->n_page, least = kv_windowless_pages(kv, s->len - KV_MAX_ROLLBACK);

	if (!kv->window)
		return;
	while (windowless > least && kv_has_window(kv, s->page[windowless - 1]))
		windowless--;
	window_advance(kv, s, windowless);
}

bool
window_whole(const Kv *kv, const KvSeq *s, int32_t len)
{
	int32_t i = kv_seq_pages(len), from = kv_windowless_pages(kv, len);

	while (i > from && kv_has_window(kv, s->page[i - 1]))
		i--;
	if (i > from)
		return false;
	for (i = from < kv->sinks ? from : kv->sinks; i > 0 && kv_has_window(kv, s->page[i - 1]);
	     i--)
		;
	return i == 0;
}

bool
kv_can_trim(const Kv *kv, int32_t q, int32_t len)
{
	return window_whole(kv, &kv->seq[q], len);
}

void
window_table(Kv *kv, KvSeq *s)
{
	for (int32_t i = 0; i < kv->sinks && i < s->n_page; i++)
		s->page[kv->max_page + i] = kv->window[s->page[i]];
	for (int32_t i = s->n_windowless; kv->window && i < s->n_page; i++)
		s->page[kv->max_page + i] = kv->window[s->page[i]];
}

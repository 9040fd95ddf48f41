/* Interface between kv.c, prefix_cache.c and kv_window.c. Without windows these functions do
 * nothing. */
#ifndef LLMC_RUNTIME_KV_KV_WINDOW_H
#define LLMC_RUNTIME_KV_KV_WINDOW_H

#include "runtime/kv/kv.h"

llmc_status window_open(Kv *kv, llmc_error *err);
void window_release(Kv *kv);
bool window_available(const Kv *kv); /* can a page without a window page get one? */
/* gives a page a window page before a step writes it; true if the window page held positions of
 * another sequence */
bool window_alloc(Kv *kv, int32_t page);
void window_drop(Kv *kv, int32_t page); /* frees the window page of an unreferenced page */
void window_pin(Kv *kv, int32_t page);  /* one more, or one fewer, sequence needs its window page */
void window_unpin(Kv *kv, int32_t page);
/* raises n_windowless of s to `windowless` and unpins the pages in between */
void window_advance(Kv *kv, KvSeq *s, int32_t windowless);
/* call after s grew: keeps the window pages that s would see after a trim by KV_MAX_ROLLBACK */
void window_grown(Kv *kv, KvSeq *s);
/* call after a trim: pins the pages that s reads again, if their window pages still exist */
void window_trim(Kv *kv, KvSeq *s);
/* does s need the window page of its page i? */
bool window_sees(const Kv *kv, const KvSeq *s, int32_t i);
/* are all window pages present that s sees at length len? */
bool window_whole(const Kv *kv, const KvSeq *s, int32_t len);
void window_table(Kv *kv, KvSeq *s); /* stores window pages in the block table of s */
/* Return the index of a page in the pool's own numbering; -1: the page has no window page */
static inline int32_t
window_index(const Kv *kv, int pool, int32_t page)
{
	return kv->window && kv->plan->pool[pool].keep ? kv->window[page] : page;
}
/* Return the exact page of a page in the layer that starts at address `layer`; NULL: none */
static inline char *
window_exact(const Kv *kv, int pool, char *layer, int32_t page)
{
	int64_t bytes = plan_layer_exact_bytes(&kv->plan->pool[pool]);

	return bytes && kv->window && kv->window[page] >= 0 ? layer - (kv->window[page] + 1) * bytes
	                                                    : NULL;
}

#endif

/* Shared by kv.c, prefix_cache.c and kv_window.c. Without windows these functions do nothing. */
#ifndef LLMC_RUNTIME_KV_KV_WINDOW_H
#define LLMC_RUNTIME_KV_KV_WINDOW_H

#include "runtime/kv/kv.h"

llmc_status window_open(Kv *kv, llmc_error *err);
void window_release(Kv *kv);
bool window_room(const Kv *kv); /* can a page without a window page get one? */
/* give a page that will be written a window page; returns whether that has held positions of
 * another sequence */
bool window_alloc(Kv *kv, int32_t page);
void window_drop(Kv *kv, int32_t page); /* release the window page of a page without a holder */
/* one more sequence may see the page; window_unpin: one fewer */
void window_pin(Kv *kv, int32_t page);
void window_unpin(Kv *kv, int32_t page);
void window_advance(Kv *kv, KvSeq *s, int32_t behind); /* s needs its pages only from `behind` on */
void
window_grown(Kv *kv,
             KvSeq *s); /* s needs what it would see KV_MAX_ROLLBACK positions before its end */
void window_trim(Kv *kv, KvSeq *s); /* the same, for pages that still have a window page */
bool window_sees(const Kv *kv, const KvSeq *s,
                 int32_t i); /* does s need the window page of its page i? */
bool window_whole(const Kv *kv, const KvSeq *s,
                  int32_t len);      /* are the positions there that s sees at that length? */
void window_table(Kv *kv, KvSeq *s); /* write the window pages into the block table of s */
/* Number of page `page` in this pool; -1: it has none there */
static inline int32_t
window_place(const Kv *kv, int pool, int32_t page)
{
	return kv->window && kv->plan->pool[pool].keep ? kv->window[page] : page;
}
/* Exact page of page `page` in a layer of a pool, whose first page is `layer`; NULL: it has none */
static inline char *
window_exact(const Kv *kv, int pool, char *layer, int32_t page)
{
	int64_t bytes = plan_layer_exact_bytes(&kv->plan->pool[pool]);

	return bytes && kv->window && kv->window[page] >= 0 ? layer - (kv->window[page] + 1) * bytes
	                                                    : NULL;
}

#endif

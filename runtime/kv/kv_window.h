/* Between kv.c, prefix_cache.c and kv_window.c. All do nothing where there are no windows. */
#ifndef LLMC_RUNTIME_KV_KV_WINDOW_H
#define LLMC_RUNTIME_KV_KV_WINDOW_H

#include "runtime/kv/kv.h"

llmc_status window_open(Kv *kv, llmc_error *err);
void window_release(Kv *kv);
bool window_room(const Kv *kv);          /* is there a window page for a page that has none? */
bool window_alloc(Kv *kv, int32_t page); /* a page that will be written gets one; has that held
                                            positions of somebody else? */
void window_drop(Kv *kv, int32_t page);  /* a page that is nobody's lets go of its own */
void window_pin(Kv *kv, int32_t page);   /* one more sequence may see it, one less */
void window_unpin(Kv *kv, int32_t page);
void window_advance(Kv *kv, KvSeq *s, int32_t behind); /* s needs its pages from there on */
void
window_grown(Kv *kv,
             KvSeq *s); /* it needs what it would see KV_MAX_ROLLBACK positions before its end */
void window_trim(Kv *kv, KvSeq *s); /* the same, of the pages that still have a window page */
bool window_sees(const Kv *kv, const KvSeq *s,
                 int32_t i); /* does s need the window page of its page i? */
bool window_whole(const Kv *kv, const KvSeq *s,
                  int32_t len);      /* what s sees at that length is there */
void window_table(Kv *kv, KvSeq *s); /* window pages into the table of s */
/* Page `page` of a pool as the pool numbers it; -1: it is not there */
static inline int32_t
window_place(const Kv *kv, int pool, int32_t page)
{
	return kv->window && kv->plan->pool[pool].keep ? kv->window[page] : page;
}
/* The exact page of page `page` in a layer of a pool, whose first page is `layer`; NULL: it has
 * none */
static inline char *
window_exact(const Kv *kv, int pool, char *layer, int32_t page)
{
	int64_t bytes = plan_layer_exact_bytes(&kv->plan->pool[pool]);

	return bytes && kv->window && kv->window[page] >= 0 ? layer - (kv->window[page] + 1) * bytes
	                                                    : NULL;
}

#endif

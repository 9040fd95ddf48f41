/* Interface between kv.c, prefix_cache.c and kv_host.c. */
#ifndef LLMC_RUNTIME_KV_PREFIX_CACHE_H
#define LLMC_RUNTIME_KV_PREFIX_CACHE_H

#include "runtime/kv/kv.h"

/* adds a page to the LRU list: its last reference is gone */
void prefix_idle(Kv *kv, int32_t page);
/* evicts the least recently used unreferenced page, to host memory if possible; returns the page */
int32_t prefix_evict(Kv *kv);
/* kv.c: allocates a page, which copies in flight may still read or write */
int32_t kv_page_alloc(Kv *kv);
void kv_page_unref(Kv *kv, int32_t page); /* kv.c: drops one reference */
/* kv.c: recurrent state of sequence q in the n-th layer that has one */
char *kv_state_at(const Kv *kv, int n, int32_t q, size_t *bytes);
llmc_status snapshots_open(Kv *kv, int32_t n, llmc_error *err);
/* copies the states of a sequence to a snapshot (taken), or back */
void snapshot_copy(Kv *kv, int32_t snapshot, int32_t q, bool taken);
void prefix_release(Kv *kv);
void prefix_leave(Kv *kv,
                  int32_t q); /* when a sequence ends: its rolling snapshots become ordinary ones */
/* removes a referenced page from the cache; does nothing if the cache does not have it */
void prefix_forget(Kv *kv, int32_t page);
void prefix_unlist(Kv *kv, int32_t page); /* removes a page from its LRU list */

/* kv_host.c: without host memory these do nothing or return -1. These functions number host pages
 * from 0. */
void host_release(Kv *kv);
void host_out(Kv *kv, int32_t to, int32_t page);
void host_in(Kv *kv, int32_t page, int32_t from);
/* copies an unreferenced cached page unless it has a copy; -1: no host page free */
int32_t host_copy(Kv *kv, int32_t page);
void host_uncopy(Kv *kv, int32_t page); /* frees the copy of a page */
void host_free(Kv *kv, int32_t host);
void host_ahead(Kv *kv); /* copies the next pages to be evicted */
void host_wait(Kv *kv, uint32_t group);
/* latest copy group that touched these pages, or one that has been waited for */
uint32_t host_last(const Kv *kv, const int32_t *page, int32_t n);
const char *host_check(const Kv *kv);

#endif

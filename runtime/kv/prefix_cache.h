/* Shared by kv.c, prefix_cache.c and kv_host.c. */
#ifndef LLMC_RUNTIME_KV_PREFIX_CACHE_H
#define LLMC_RUNTIME_KV_PREFIX_CACHE_H

#include "runtime/kv/kv.h"

void prefix_idle(Kv *kv, int32_t page); /* its last holder has released it */
/* the least recently used page without a holder; its record is dropped or moves to host memory */
int32_t prefix_evict(Kv *kv);
int32_t kv_page_alloc(Kv *kv); /* kv.c: a page; pending copies may still read or write it */
void kv_page_unref(Kv *kv, int32_t page); /* kv.c: one holder fewer */
char *kv_state_at(const Kv *kv, int n, int32_t q,
                  size_t *bytes); /* kv.c: state of the n-th layer that has one */
llmc_status snapshots_open(Kv *kv, int32_t n, llmc_error *err);
void snapshot_copy(Kv *kv, int32_t snapshot, int32_t q,
                   bool taken); /* copy a sequence's states to a snapshot, or back */
void prefix_release(Kv *kv);
void prefix_leave(Kv *kv,
                  int32_t q); /* the sequence is freed: its snapshots stay and no longer move */
void prefix_forget(Kv *kv, int32_t page); /* a page gets a holder; fine if it is not in the cache */
void prefix_unlist(Kv *kv, int32_t page); /* remove the page from its list */

/* kv_host.c. Without host memory these functions do nothing or return -1. Host pages are numbered
 * from 0 here. */
void host_release(Kv *kv);
void host_out(Kv *kv, int32_t to, int32_t page);
void host_in(Kv *kv, int32_t page, int32_t from);
int32_t host_copy(Kv *kv,
                  /* copy a cached page without a holder, unless it has been copied; -1: no host
                   * page available */
                  int32_t page);
void host_uncopy(Kv *kv, int32_t page); /* drop the page's copy */
void host_free(Kv *kv, int32_t host);
void host_ahead(Kv *kv); /* start copies of the next pages to be evicted */
void host_wait(Kv *kv, uint32_t group);
uint32_t host_last(const Kv *kv, const int32_t *page,
                   /* wait for the groups that last copied these pages, unless a later group was
                    * waited for */
                   int32_t n);
const char *host_check(const Kv *kv);

#endif

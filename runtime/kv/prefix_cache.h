/* Between kv.c, prefix_cache.c and kv_host.c. */
#ifndef LLMC_RUNTIME_KV_PREFIX_CACHE_H
#define LLMC_RUNTIME_KV_PREFIX_CACHE_H

#include "runtime/kv/kv.h"

void prefix_idle(Kv *kv, int32_t page); /* its last holder has gone */
int32_t prefix_evict(Kv *kv);  /* the least recently used without a holder, forgotten, or in host
                                  memory from now on */
int32_t kv_page_alloc(Kv *kv); /* kv.c: a page, which copies beside steps may still read or write */
void kv_page_unref(Kv *kv, int32_t page); /* kv.c: one holder less */
char *kv_state_at(const Kv *kv, int n, int32_t q,
                  size_t *bytes); /* kv.c: of the n-th layer that has one */
llmc_status snapshots_open(Kv *kv, int32_t n, llmc_error *err);
void snapshot_copy(Kv *kv, int32_t snapshot, int32_t q,
                   bool taken); /* a sequence's states to a snapshot, or back */
void prefix_release(Kv *kv);
void prefix_leave(Kv *kv,
                  int32_t q); /* a sequence is no more: its snapshots stay, and move no longer */
void prefix_forget(Kv *kv,
                   int32_t page); /* a page with a holder; fine when it is not in the cache */
void prefix_unlist(Kv *kv, int32_t page); /* out of the list that it is in */

/* kv_host.c: all do nothing, or say -1, where there is no host memory. Pages of it are numbered
 * from 0 here. */
void host_release(Kv *kv);
void host_out(Kv *kv, int32_t to, int32_t page);
void host_in(Kv *kv, int32_t page, int32_t from);
int32_t
host_copy(Kv *kv,
          int32_t page); /* a cached page without a holder is copied, unless it was; -1: no room */
void host_uncopy(Kv *kv, int32_t page); /* its copy is not wanted */
void host_free(Kv *kv, int32_t host);
void host_ahead(Kv *kv); /* the next pages that would have to go are copied */
void host_wait(Kv *kv, uint32_t group);
uint32_t host_last(const Kv *kv, const int32_t *page,
                   int32_t n); /* of the groups that have copied these pages last; waited for
                                  already where none is later */
const char *host_check(const Kv *kv);

#endif

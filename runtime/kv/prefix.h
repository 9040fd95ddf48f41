/* Between kv.c and prefix.c. */
#ifndef LLMC_RUNTIME_KV_PREFIX_H
#define LLMC_RUNTIME_KV_PREFIX_H

#include "runtime/kv/kv.h"

void    prefix_idle(Kv *kv, int32_t page);   /* its last holder has gone */
int32_t prefix_evict(Kv *kv);                /* the least recently used without a holder, forgotten */
char   *kv_state_at(const Kv *kv, int n, int32_t q, size_t *bytes); /* kv.c: of the n-th layer that has one */
llmc_status snaps_open(Kv *kv, int32_t n, llmc_error *err);
void    snap_copy(Kv *kv, int32_t snap, int32_t q, bool taken); /* a sequence's states to a snapshot, or back */
void    prefix_release(Kv *kv);
void    prefix_leave(Kv *kv, int32_t q);     /* a sequence is no more: its snapshots stay, and move no longer */
void    prefix_forget(Kv *kv, int32_t page); /* a page with a holder; fine when it is not in the cache */

#endif

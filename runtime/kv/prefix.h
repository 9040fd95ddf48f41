/* Between kv.c and prefix.c. */
#ifndef LLMC_RUNTIME_KV_PREFIX_H
#define LLMC_RUNTIME_KV_PREFIX_H

#include "runtime/kv/kv.h"

void    prefix_idle(Kv *kv, int32_t page);   /* its last holder has gone */
int32_t prefix_evict(Kv *kv);                /* the least recently used without a holder, forgotten */
void    prefix_forget(Kv *kv, int32_t page); /* a page with a holder; fine when it is not in the cache */

#endif

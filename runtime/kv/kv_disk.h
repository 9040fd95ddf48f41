/* Pages of the prefix cache as files. A later server on the same folder finds them again, and so do
 * others that share it.
 *
 * A page is identified by a key: the SHA-256 of the previous page's key and the page's tokens. The
 * first key is a root, which names what the values depend on (checkpoint, plan, target, rotation).
 * A file holds key, tokens and checksums and is used only when all of them match; a damaged file is
 * deleted. A thread writes files and renames them when complete; pages that the disk is too slow
 * for are dropped. A full or broken disk is logged once and tried again later; no request fails
 * because of it. The folder must belong to this user alone, because pages contain what people have
 * written. When the files exceed the limit, the least recently used are deleted. */
#ifndef LLMC_RUNTIME_KV_KV_DISK_H
#define LLMC_RUNTIME_KV_KV_DISK_H

#include "plan/plan.h"

typedef struct KvDisk KvDisk;
typedef struct KvKey {
	char hex[65];
} KvKey;

typedef struct KvDiskCounts {
	uint64_t read, written, wrong, dropped;
} KvDiskCounts; /* pages */

/* root: see above. page_bytes: of a page's values. E_IO, E_INPUT: the folder cannot be created, or
 * other users have access. */
llmc_status kv_disk_open(const char *dir, int64_t max_bytes, const char *root, size_t page_bytes,
                         llmc_log_fn log, void *log_user, KvDisk **out, llmc_error *err);
/* Writes what is queued first. NULL is fine. */
void kv_disk_close(KvDisk *d);

/* The key before a sequence's first page; turns: whatever else its values depend on. kv_disk_next
 * gives the keys of its pages. One thread. */
KvKey kv_disk_root(const KvDisk *d, int64_t turns);
void kv_disk_next(KvKey *key, const int32_t tok[PLAN_KV_PAGE]);
/* Read the page's values into bytes [page_bytes]; false: not found. Also finds queued pages. */
bool kv_disk_load(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *bytes);
/* Should the page be saved? False if it has a file, is queued, or the queue is full. */
bool kv_disk_wants(KvDisk *d, const KvKey *key);
/* Memory of a page for kv_disk_save, which takes ownership; NULL: out of memory. */
void *kv_disk_page(KvDisk *d);
void kv_disk_drop(void *page);
void kv_disk_save(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *page);
/* Wait until everything queued is written or dropped. */
void kv_disk_flush(KvDisk *d);
KvDiskCounts kv_disk_counts(KvDisk *d);

#endif

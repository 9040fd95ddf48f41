/* Pages of the prefix cache as files, which later servers on the same folder reuse, and other
 * servers that share it.
 *
 * The key of a page is the SHA-256 of the previous page's key and the page's tokens. The first key
 * is derived from a root, which identifies everything that KV values depend on (checkpoint, plan,
 * target, rotations). A file holds key, tokens and checksums. It is used only if all of them match;
 * a damaged file is deleted. A background thread writes each file under a temporary name and
 * renames it when complete. Pages that exceed the write queue are dropped. A full or failing disk
 * is logged once and retried later; no request fails because of it. The folder must belong to this
 * user alone, because pages contain prompts of users. Above the size limit, the least recently used
 * files are deleted. */
#ifndef LLMC_RUNTIME_KV_KV_DISK_H
#define LLMC_RUNTIME_KV_KV_DISK_H

#include "plan/plan.h"

typedef struct KvDisk KvDisk;
typedef struct KvKey {
	char hex[65];
} KvKey;

typedef struct KvDiskCounts {
	uint64_t read, written, wrong, dropped;
} KvDiskCounts; /* in pages */

/* root: see above. page_bytes: size of a page's values. E_IO, E_INPUT: the folder cannot be created
 * or others have access to it. */
llmc_status kv_disk_open(const char *dir, int64_t max_bytes, const char *root, size_t page_bytes,
                         llmc_log_fn log, void *log_user, KvDisk **out, llmc_error *err);
/* Write all queued pages, then close. d may be NULL. */
void kv_disk_close(KvDisk *d);

/* Return the key before a sequence's first page; kv_disk_next derives the following ones. turns:
 * rotations that the values depend on. For one thread. */
KvKey kv_disk_root(const KvDisk *d, int64_t turns);
void kv_disk_next(KvKey *key, const int32_t tok[PLAN_KV_PAGE]);
/* Read the page's values into bytes [page_bytes], from its file or the write queue; false if the
 * page is in neither. */
bool kv_disk_load(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *bytes);
/* Returns whether the page has no file, is not queued, and the queue has space for it. */
bool kv_disk_wants(KvDisk *d, const KvKey *key);
/* Allocate a page buffer, to be passed to kv_disk_save, which owns it then; NULL: out of memory. */
void *kv_disk_page(KvDisk *d);
void kv_disk_drop(void *page);
void kv_disk_save(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *page);
/* Wait until each saved page is written or dropped. */
void kv_disk_flush(KvDisk *d);
KvDiskCounts kv_disk_counts(KvDisk *d);

#endif

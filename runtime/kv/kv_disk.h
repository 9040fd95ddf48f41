/* Pages of the prefix cache as files, found again by the next server on the same folder, and by
 * others that share it.
 *
 * A page is known by a key: the SHA-256 of the key of the page before it and its tokens; the first
 * by a root, which names what the values depend on (checkpoint, plan, target, turns). A file holds
 * key, tokens and sums, and is taken only when all of them are right; one that is wrong is deleted.
 * Files are written behind the engine's back by a thread and renamed when whole; what the disk
 * cannot keep up with is not written. A full or broken disk is said once and tried again later;
 * nothing fails by it. The folder is ours alone: pages hold what people have written. When the
 * files are larger than the limit, those that were not used for longest go. */
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

/* root: see above. page_bytes: of a page's values. E_IO, E_INPUT: the folder cannot be made or is
 * not ours alone. */
llmc_status kv_disk_open(const char *dir, int64_t max_bytes, const char *root, size_t page_bytes,
                         llmc_log_fn log, void *log_user, KvDisk **out, llmc_error *err);
/* What waits is written first. NULL is fine. */
void kv_disk_close(KvDisk *d);

/* The key before a sequence's first page; turns: what else its values depend on. Then page by page.
 * One thread. */
KvKey kv_disk_root(const KvDisk *d, int64_t turns);
void kv_disk_next(KvKey *key, const int32_t tok[PLAN_KV_PAGE]);
/* The page's values into bytes [page_bytes]; false: it is not there. Takes what waits to be written
 * as well. */
bool kv_disk_load(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *bytes);
/* Is there neither a file nor one on its way, and room for it? */
bool kv_disk_wants(KvDisk *d, const KvKey *key);
/* Memory of a page for kv_disk_save, which takes it over; NULL: out of memory. */
void *kv_disk_page(KvDisk *d);
void kv_disk_drop(void *page);
void kv_disk_save(KvDisk *d, const KvKey *key, const int32_t tok[PLAN_KV_PAGE], void *page);
/* Wait until all that was saved is written or given up. */
void kv_disk_flush(KvDisk *d);
KvDiskCounts kv_disk_counts(KvDisk *d);

#endif

/* Cache of built code across processes: shared objects, GPU images, objects of the emulator, and
 * output of compilers. The folder is $LLMC_CACHE/kernels, with one checksummed file per entry:
 * <key>.<kind> (base/checksummed_file.h). The key is the SHA-256 of everything the contents
 * depend on: source, flags, compiler. tools/build_cache.py reads and writes the same files.
 *
 *   readers   hold a shared flock on the entry's file from cache_find to cache_entry_release, and
 *             set its time of last use (mtime)
 *   writers   write under .tmp/, then rename; a file left by a killed writer is removed by a later
 *             one
 *   limit     .usage holds the total bytes of all entries. A writer that exceeds the limit removes
 *             the least recently used entries without a reader, down to 90 % of the limit. Renames
 *             and evictions happen under an exclusive flock on .usage.
 *
 * LLMC_CACHE_SIZE limits the cache [2G]; 0 disables it. LLMC_CACHE_STATS names a file that gets one
 * line per lookup: "hit so", "miss emu" or "damaged so", then the folder, or "-" if there is no
 * folder. */
#ifndef LLMC_BASE_BUILD_CACHE_H
#define LLMC_BASE_BUILD_CACHE_H

#include <stdint.h>

#include "base/error.h"
#include "base/strbuf.h"

typedef struct Cache {
	Strbuf dir;    /* "": nothing is cached */
	int64_t limit; /* bytes; 0: disabled */
} Cache;

typedef struct CacheEntry {
	Strbuf path;
	int held; /* descriptor that holds the lock, plus 1; 0: not locked */
} CacheEntry;

/* Parse LLMC_CACHE_SIZE into bytes; 0: disabled. E_INPUT: not a size. */
llmc_status cache_limit(int64_t *limit, llmc_error *err);
/* Open the cache at `root`, or at $LLMC_CACHE if root is NULL. E_IO: no file can be written there.
 * E_INPUT: other users may write to the folder, or LLMC_CACHE_SIZE is not a size. The cache may be
 * used after every status: after an error, or if it is disabled, lookups miss and stores are
 * dropped. */
llmc_status cache_open(Cache *c, const char *root, llmc_error *err);
void cache_close(Cache *c);
bool cache_keeps(const Cache *c);

/* Look up an entry. *e receives its path and stays locked until released; *out (may be NULL)
 * receives the contents. E_IO: no such entry; E_CHECK: damaged; E_INPUT: another user may have
 * written it. */
llmc_status cache_find(const Cache *c, const char *kind, const char *key, CacheEntry *e,
                       Strbuf *out, llmc_error *err);
/* Store an entry. If e is not NULL, it receives the path and holds the lock. */
llmc_status cache_put(const Cache *c, const char *kind, const char *key, const void *data, size_t n,
                      CacheEntry *e, llmc_error *err);
void cache_unlock(CacheEntry *e); /* releases the lock, but keeps the path */
/* Evict entries above the limit. Writers call it after they have released their own entries. */
void cache_trim(const Cache *c);
void cache_entry_release(CacheEntry *e);

/* Make a private folder for a compiler's output: in the cache if its disk has free space, else in
 * $TMPDIR. */
llmc_status cache_temporary(const Cache *c, Strbuf *dir, llmc_error *err);
void cache_temporary_remove(const char *dir); /* removes the files in it too */

/* Kind of entries that hold a program's output about itself (base/program.h). Such lookups concern
 * no compilation, so LLMC_CACHE_STATS omits them. */
#define CACHE_ANSWERS "cc"
/* Kind of entries that hold a compiler's messages about a source that it refused. A miss does not
 * lead to a compilation, so LLMC_CACHE_STATS counts hits only. */
#define CACHE_REFUSALS "log"

#endif

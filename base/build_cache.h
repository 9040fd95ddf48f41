/* Built code that outlives a process: shared objects, GPU images, objects of the emulator, and what
 * compilers reported. One folder, $LLMC_CACHE/kernels, and one file per entry: <key>.<kind>, sealed
 * (base/checksummed_file.h). The key is the SHA-256 of all that the contents depend on: source,
 * flags, compiler. tools/build_cache.py reads and writes the same files.
 *
 *   readers   hold a shared flock on the entry's file from cache_find to cache_entry_release, and set its time of last use (mtime)
 *   writers   write under .tmp/, then rename; killed at any moment they leave a file that a later writer removes
 *   bound     .usage holds the bytes of all entries. A writer that exceeds the limit removes the least recently used entries, those that no reader holds,
 *             down to 90 % of it. Renames and evictions happen under an exclusive flock on .usage.
 *
 * LLMC_CACHE_SIZE bounds the cache [2G]; 0 switches it off. LLMC_CACHE_STATS names a file that gets
 * a line per lookup: "hit so", "miss emu" or "damaged so", then the folder, "-" where there is
 * none. */
#ifndef LLMC_BASE_BUILD_CACHE_H
#define LLMC_BASE_BUILD_CACHE_H

#include <stdint.h>

#include "base/error.h"
#include "base/strbuf.h"

typedef struct Cache {
	Strbuf dir;    /* "": keeps nothing */
	int64_t limit; /* bytes; 0: switched off */
} Cache;

typedef struct CacheEntry {
	Strbuf path;
	int held; /* descriptor that holds the lock, plus 1; 0: none */
} CacheEntry;

/* LLMC_CACHE_SIZE in bytes; 0: switched off. E_INPUT: it is no size */
llmc_status cache_limit(int64_t *limit, llmc_error *err);
/* root: NULL, or a folder in place of $LLMC_CACHE. E_IO: it takes no files; E_INPUT: others may
 * write to it, or LLMC_CACHE_SIZE is no size. The cache is usable after every status: after an
 * error, and switched off, it holds nothing and keeps nothing. */
llmc_status cache_open(Cache *c, const char *root, llmc_error *err);
void cache_close(Cache *c);
bool cache_keeps(const Cache *c);

/* Look for an entry. e: its path, held until released; out: NULL, or its contents. E_IO: there is
 * none; E_CHECK: it is damaged; E_INPUT: others may have written it */
llmc_status cache_find(const Cache *c, const char *kind, const char *key, CacheEntry *e,
                       Strbuf *out, llmc_error *err);
/* Keep an entry, and hold it where e is not NULL. */
llmc_status cache_put(const Cache *c, const char *kind, const char *key, const void *data, size_t n,
                      CacheEntry *e, llmc_error *err);
void cache_unlock(CacheEntry *e); /* the path stays */
/* Evict what exceeds the limit: for a writer that held its entries and has released them. */
void cache_trim(const Cache *c);
void cache_entry_release(CacheEntry *e);

/* A new folder of our own for a compiler to write to: in the cache as long as its disk has free
 * space, else in $TMPDIR. */
llmc_status cache_temporary(const Cache *c, Strbuf *dir, llmc_error *err);
void cache_temporary_remove(const char *dir); /* with its files */

/* Kind of what a program reported about itself (base/program.h). No compilation, so lookups of it
 * are not in LLMC_CACHE_STATS. */
#define CACHE_ANSWERS "cc"

#endif

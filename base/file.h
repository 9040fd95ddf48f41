/* Files: mapping, reading whole, writing so that a crash or a full disk leaves no half-written
 * file. */
#ifndef LLMC_BASE_FILE_H
#define LLMC_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/error.h"

typedef struct FileMap {
	const unsigned char *data; /* NULL for an empty file */
	size_t size;
} FileMap;

llmc_status file_map(const char *path, FileMap *out, llmc_error *err); /* read-only, private */
void file_unmap(FileMap *m);
/* The same, unmapped with the arena or by arena_done. NULL: *err says why. */
FileMap *file_hold(Arena *a, const char *path, llmc_error *err);
llmc_status file_read(const char *path, size_t max_bytes, Strbuf *out, llmc_error *err);
/* Write to `path`.tmp.<pid>.<n> in the same folder, fsync, rename. A file that already holds these
 * bytes is left alone (its mtime stays). Only we may write to what is made, whatever the umask:
 * file_check_trusted takes it. */
llmc_status file_write(const char *path, const void *data, size_t size, llmc_error *err);
llmc_status file_mkdirs(const char *path, llmc_error *err); /* mkdir -p; mode 0755 & ~umask */
llmc_status file_mkdirs_private(const char *path, llmc_error *err); /* mkdir -p; new folders 0700 */
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/* Refuses with a sentence when path is not owned by us (or root) or others may write to it. */
llmc_status file_check_trusted(const char *path, llmc_error *err);
llmc_status file_check_stat(const char *path, const struct stat *st, llmc_error *err);
/* $LLMC_CACHE, else $XDG_CACHE_HOME/llmc, else ~/.cache/llmc: into out; E_IO when there is no home.
 */
llmc_status file_cache_dir(Strbuf *out, llmc_error *err);
/* dir + "/" + name, unless name is absolute; `out` is cleared first */
void file_join(Strbuf *out, const char *dir, const char *name);

/* Removes a folder and all that is in it; what cannot be removed stays. */
void file_remove_tree(const char *dir);

#endif

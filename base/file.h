/* Files: map, read whole, and write so that a crash or a full disk leaves no half-written file. */
#ifndef LLMC_BASE_FILE_H
#define LLMC_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/arena.h"
#include "base/error.h"

typedef struct FileMap {
	const unsigned char *data; /* NULL if the file is empty */
	size_t size;
} FileMap;

llmc_status file_map(const char *path, FileMap *out, llmc_error *err); /* read-only, private */
void file_unmap(FileMap *m);
/* Keep the process alive when a mapped file is truncated: missing pages read as zeros, and each
 * such fault is counted. A reader compares file_faults() before and after reading. */
llmc_status file_guard_install(llmc_error *err);
unsigned file_faults(void);
bool file_lost(const void *data); /* has the map that contains this address had a fault? */
void file_guard_add(const void *data, size_t n); /* called by file_map and file_unmap */
void file_guard_remove(const void *data);
/* Like file_map; unmapped with the arena or by arena_done. NULL on failure, with *err set. */
FileMap *file_hold(Arena *a, const char *path, llmc_error *err);
llmc_status file_read(const char *path, size_t max_bytes, Strbuf *out, llmc_error *err);
/* Check the beginning of a file. E_INPUT: it is a Git LFS pointer or an HTML page, which failed
 * downloads leave under the name of a model file. */
llmc_status file_check_content(const char *path, const void *data, size_t size, llmc_error *err);
/* Write to `path`.tmp.<pid>.<n> in the same folder, fsync, rename. A file that already has these
 * bytes is not rewritten, so its mtime does not change. Whatever the umask, only the owner may
 * write to the new file, so that file_check_trusted accepts it. */
llmc_status file_write(const char *path, const void *data, size_t size, llmc_error *err);
/* Write all n bytes, in several calls if necessary. False: errno has the reason. */
bool file_write_fd(int fd, const void *data, size_t n);
llmc_status file_mkdirs(const char *path, llmc_error *err); /* mkdir -p; mode 0755 & ~umask */
llmc_status file_mkdirs_private(const char *path, llmc_error *err); /* mkdir -p; new folders 0700 */
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/* Return an error if path is not owned by this user or root, or if other users may write to it. */
llmc_status file_check_trusted(const char *path, llmc_error *err);
llmc_status file_check_stat(const char *path, const struct stat *st, llmc_error *err);
/* Set out to $LLMC_CACHE, else $XDG_CACHE_HOME/llmc, else ~/.cache/llmc. E_IO if there is no home
 * folder. */
llmc_status file_cache_dir(Strbuf *out, llmc_error *err);
/* Return the absolute path of a file or folder; a copy of path if it does not exist. Links to
 * folders are resolved. A link to a file is not resolved: in a cache of downloads its target has no
 * suffix and no part number. */
char *file_absolute(Arena *a, const char *path);
/* Set out to dir + "/" + name, or to name if it is absolute. */
void file_join(Strbuf *out, const char *dir, const char *name);

/* Remove a folder and its contents, skipping what cannot be removed. */
void file_remove_tree(const char *dir);

#endif

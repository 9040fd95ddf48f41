/* Files of the source tree that are part of the library: templates, family files,
 * pretokenizers.yaml. */
#ifndef LLMC_BASE_EMBED_H
#define LLMC_BASE_EMBED_H

#include <stddef.h>

/* Return an embedded file by its path from the repository root; NULL: no such file. A NUL follows
 * the content; *size (may be NULL) does not count it. */
const char *embed_find(const char *path, size_t *size);
/* Return the embedded file with the name `name` in any folder below `folder`; *path (may be NULL)
 * receives its path. It is unique, because no two embedded templates of a target share a file
 * name. */
const char *embed_find_below(const char *folder, const char *name, const char **path);
/* Return the path of the i-th embedded file; NULL: there are fewer. */
const char *embed_path(size_t i);
/* Return the SHA-256 of the content in 64 digits, computed when the library was built. NULL: no
 * such file. */
const char *embed_sum(const char *path);

#endif

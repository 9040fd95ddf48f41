/* Files of the source tree that are part of the library: templates, family files,
 * pretokenizers.yaml. */
#ifndef LLMC_BASE_EMBED_H
#define LLMC_BASE_EMBED_H

#include <stddef.h>

/* Content of an embedded file by its path from the repository root, followed by a NUL that *size
 * (may be NULL) does not count. NULL: no such file. */
const char *embed_find(const char *path, size_t *size);
/* The same of the file `name`, in any folder below `folder`; *path (may be NULL) becomes its path.
 * No two embedded templates of a target have the same file name. */
const char *embed_find_below(const char *folder, const char *name, const char **path);
/* The content's SHA-256, 64 digits, which is known since the library was built. NULL: no such file
 */
const char *embed_sum(const char *path);

#endif

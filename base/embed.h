/* Files built into the library: configs/ and templates/, under their path from the root of the repository. */
#ifndef LLMC_BASE_EMBED_H
#define LLMC_BASE_EMBED_H

#include <stddef.h>

typedef struct EmbedFile {
	const char          *path; /* "configs/families/llama.yaml" */
	const unsigned char *data; /* followed by a NUL */
	size_t               size;
} EmbedFile;

const EmbedFile *embed_find(const char *path);   /* NULL: no such file */
const EmbedFile *embed_at(size_t i);             /* in order of path; NULL beyond the last */

#endif

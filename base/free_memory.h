/* Memory that this process can still allocate. */
#ifndef LLMC_BASE_FREE_MEMORY_H
#define LLMC_BASE_FREE_MEMORY_H

#include <stdint.h>

typedef struct FreeMemory {
	int64_t bytes;        /* INT64_MAX: unknown */
	int64_t total;        /* the host's memory, or the limit of the group; 0: unknown */
	char limited_by[160]; /* "MemAvailable" or the file of the limit */
} FreeMemory;

/* Return the smallest of MemAvailable and the free part of each limit of a control group; pages of
 * a group's file cache count as free. LLMC_FREE_MEMORY replaces it. root: prefix of paths, for
 * tests. */
FreeMemory free_memory(const char *root);

#endif

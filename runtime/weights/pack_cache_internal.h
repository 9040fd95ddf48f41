/* Format of the cache file of packed weights, for pack_cache.c and pack_map.c. */
#ifndef LLMC_RUNTIME_WEIGHTS_PACK_CACHE_INTERNAL_H
#define LLMC_RUNTIME_WEIGHTS_PACK_CACHE_INTERNAL_H

#include <sys/stat.h>

#include "base/file.h"
#include "runtime/weights/weights.h"

typedef struct PackHeader {
	char magic[16];
	char key[64];
	uint64_t bytes; /* bytes of the data, which starts at PACK_DATA_AT */
	uint64_t data_sum;
	char sum[64]; /* sha256 of the fields above */
} PackHeader;

/* bytes before the data; bytes that a thread sums at a time */
enum { PACK_DATA_AT = 4096, PACK_SLICE = 1 << 20 };

void pack_header(PackHeader *h, const char *hex, int64_t bytes, uint64_t data_sum);
/* Set dir to the folder of the key and path to its file. */
llmc_status pack_path(const char *hex, Strbuf *dir, Strbuf *path, llmc_error *err);
/* Create the temporary file path.tmp.*, which is locked until it is closed, and set tmp to its
 * name. First delete temporary files of processes that have ended, for all models: each is as large
 * as the weights, and a server that is killed while it packs may restart many times. -1: errno is
 * set */
int pack_temporary(const char *path, Strbuf *tmp);
/* Open a file of the cache for reading. The open file is checked, so that it cannot be exchanged
 * after the check. E_IO: another user can write to it. The caller closes *fd, also after an error,
 * unless it is -1. */
llmc_status pack_open(const char *path, int *fd, struct stat *st, llmc_error *err);
uint64_t pack_sum(void *data, int64_t bytes, Threads *threads);
bool pack_read_all(int fd, char *to, size_t n, int64_t at);

#endif

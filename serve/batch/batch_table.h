/* Entries of the table of batches. */
#ifndef LLMC_SERVE_BATCH_BATCH_TABLE_H
#define LLMC_SERVE_BATCH_BATCH_TABLE_H

#include "serve/batch/batch.h"

extern const char *const batch_status_name[N_BATCH_STATUS];
/* Return the string constant of a supported endpoint; NULL: unsupported */
const char *batch_endpoint(const char *s);
void batch_free(Batch *b);
/* Insert in order of creation, after batches of the same second. */
void batch_put(FileStore *st, Batch *b);
Batch *batch_find(FileStore *st, const char *id);
/* Remove a batch and its JSON file; lock held. */
void batch_drop(FileStore *st, Batch **at);

#endif

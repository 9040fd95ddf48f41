/* Inside of runtime/cuda: which way a message between ranks goes, by its size. See ways.c. */
#ifndef LLMC_RUNTIME_CUDA_WAYS_H
#define LLMC_RUNTIME_CUDA_WAYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* LLMC_NCCL: auto, never, always; another word is unknown. */
typedef enum WaysWanted { WAYS_AUTO, WAYS_OWN, WAYS_NCCL, WAYS_UNKNOWN } WaysWanted;
WaysWanted ways_wanted(void);

enum { WAYS_FROM = 11, WAYS_SIZES = 16 }; /* 2 KB, 4 KB, ... 64 MB */
typedef struct Ways { float us[2][WAYS_SIZES]; } Ways; /* ours, NCCL's: microseconds a message; 0: not measured. The cache's file begins with it */
bool ways_nccl(const Ways *w, int64_t bytes);

/* Time `times` messages of so many bytes by one way, on all ranks at once. */
typedef llmc_status (*ways_run_fn)(void *user, bool nccl, int64_t bytes, int times, double *seconds, llmc_error *err);
/* The faster way for messages up to most_bytes: as the cache has it for `machine`, else measured and kept there. */
llmc_status ways_choose(Ways *w, const char *machine, int64_t most_bytes, ways_run_fn run, void *user, llmc_error *err);

#endif

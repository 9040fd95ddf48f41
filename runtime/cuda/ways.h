/* Inside of runtime/cuda: which way a message between ranks goes, by its size. See ways.c. */
#ifndef LLMC_RUNTIME_CUDA_WAYS_H
#define LLMC_RUNTIME_CUDA_WAYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* LLMC_NCCL: auto, never, always; another word is unknown. */
typedef enum WaysWanted { WAYS_AUTO, WAYS_OWN, WAYS_NCCL, WAYS_UNKNOWN } WaysWanted;
WaysWanted ways_wanted(void);

/* Over peers' memory in one step or in two, or NCCL's gather. A set of ways has bit 1 << way. */
typedef enum Way { WAY_ONE_SHOT, WAY_TWO_SHOT, WAY_NCCL, N_WAY } Way;
/* What sums over peers' memory may go by. LLMC_PEER_SUMS: auto, one-shot, two-shot; 0: another word */
unsigned ways_of_peers(void);

enum { WAYS_FROM = 11, WAYS_SIZES = 16 }; /* 2 KB, 4 KB, ... 64 MB */
typedef struct Ways { float us[N_WAY][WAYS_SIZES]; } Ways; /* microseconds a message; 0: not measured. The cache's file begins with it */
/* Of a set of ways the one for messages of so many bytes; what was not measured is the first of the set. */
Way ways_best(const Ways *w, unsigned set, int64_t bytes);

/* Time `times` messages of so many bytes by one way, on all ranks at once. */
typedef llmc_status (*ways_run_fn)(void *user, Way way, int64_t bytes, int times, double *seconds, llmc_error *err);
/* What each of a set of ways takes for messages up to most_bytes: as the cache has it for `machine`, else measured and kept there. */
llmc_status ways_choose(Ways *w, const char *machine, unsigned set, int64_t most_bytes, ways_run_fn run, void *user, llmc_error *err);

#endif

/* Inside of runtime/cuda: which way a message between ranks goes, by its size. See
 * comm_algorithm.c. */
#ifndef LLMC_RUNTIME_CUDA_COMM_ALGORITHM_H
#define LLMC_RUNTIME_CUDA_COMM_ALGORITHM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* LLMC_NCCL: auto, never, always; another word is unknown. */
typedef enum CommAlgorithmMode {
	ALGO_MODE_AUTO,
	ALGO_MODE_OWN,
	ALGO_MODE_NCCL,
	ALGO_MODE_UNKNOWN
} CommAlgorithmMode;
CommAlgorithmMode comm_algorithm_mode(void);

/* Over peers' memory in one step or in two, or NCCL's gather. A set of ways has bit 1 << way. */
typedef enum CommAlgorithm { ALGO_ONE_SHOT, ALGO_TWO_SHOT, ALGO_NCCL, N_ALGO } CommAlgorithm;
/* What sums over peers' memory may go by. LLMC_PEER_SUMS: auto, one-shot, two-shot; 0: another word
 */
unsigned peer_algorithms(void);

enum { ALGO_MIN_LOG2_BYTES = 11, N_ALGO_SIZES = 16 }; /* 2 KB, 4 KB, ... 64 MB */
typedef struct CommAlgorithmTimes {
	float us[N_ALGO][N_ALGO_SIZES];
} CommAlgorithmTimes; /* microseconds a message; 0: not measured. The cache's file begins with it */
/* Of a set of ways the one for messages of so many bytes; what was not measured is the first of the
 * set. */
CommAlgorithm comm_algorithm_best(const CommAlgorithmTimes *w, unsigned set, int64_t bytes);

/* Time `times` messages of so many bytes by one way, on all ranks at once. */
typedef llmc_status (*comm_algorithm_run_fn)(void *user, CommAlgorithm algorithm, int64_t bytes,
                                             int times, double *seconds, llmc_error *err);
/* What each of a set of ways takes for messages up to most_bytes: as the cache has it for
 * `machine`, else measured and kept there. Once budget_s seconds are over, larger messages are left
 * out. */
llmc_status comm_algorithm_tune(CommAlgorithmTimes *w, const char *machine, unsigned set,
                                int64_t most_bytes, double budget_s, comm_algorithm_run_fn run,
                                void *user, llmc_error *err);

#endif

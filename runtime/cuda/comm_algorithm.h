/* Private to runtime/cuda: selects the algorithm of a message between ranks by its size. See
 * comm_algorithm.c. */
#ifndef LLMC_RUNTIME_CUDA_COMM_ALGORITHM_H
#define LLMC_RUNTIME_CUDA_COMM_ALGORITHM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* LLMC_NCCL: auto, never, always; any other word is unknown. */
typedef enum CommAlgorithmMode {
	ALGO_MODE_AUTO,
	ALGO_MODE_OWN,
	ALGO_MODE_NCCL,
	ALGO_MODE_UNKNOWN
} CommAlgorithmMode;
CommAlgorithmMode comm_algorithm_mode(void);

/* Peer memory with one exchange or two, or an NCCL gather. In a set, an algorithm is the bit 1 <<
 * algorithm. */
typedef enum CommAlgorithm { ALGO_ONE_SHOT, ALGO_TWO_SHOT, ALGO_NCCL, N_ALGO } CommAlgorithm;
/* Algorithms that an all-reduce over peer memory may use. LLMC_PEER_SUMS: auto, one-shot, two-shot;
 * returns 0 for any other word. */
unsigned peer_algorithms(void);

enum { ALGO_MIN_LOG2_BYTES = 11, N_ALGO_SIZES = 16 }; /* 2 KB, 4 KB, ... 64 MB */
/* Microseconds per message; 0: not measured. The cache file begins with this struct. */
typedef struct CommAlgorithmTimes {
	float us[N_ALGO][N_ALGO_SIZES];
} CommAlgorithmTimes;
/* Best of a set of algorithms for messages of this size; the first of the set if none was
 * measured. */
CommAlgorithm comm_algorithm_best(const CommAlgorithmTimes *w, unsigned set, int64_t bytes);

/* Measure `times` messages of this size with one algorithm, on all ranks at once. */
typedef llmc_status (*comm_algorithm_run_fn)(void *user, CommAlgorithm algorithm, int64_t bytes,
                                             int times, double *seconds, llmc_error *err);
/* Get the time of each algorithm of a set for messages up to most_bytes: from the cache entry of
 * `machine`, else by measuring, which writes the entry. After budget_s seconds larger messages are
 * not measured. */
llmc_status comm_algorithm_tune(CommAlgorithmTimes *w, const char *machine, unsigned set,
                                int64_t most_bytes, double budget_s, comm_algorithm_run_fn run,
                                void *user, llmc_error *err);

#endif

/* Importance of columns (llama.cpp's imatrix), read and written in both of its formats (the older
 * .dat, and GGUF). */
#ifndef LLMC_QUANT_IMATRIX_H
#define LLMC_QUANT_IMATRIX_H

#include "base/arena.h"
#include "base/error.h"

typedef struct ImatrixEntry {
	const char *name;    /* tensor name */
	int64_t cols, n_mat; /* n_mat: experts, else 1 */
	const float *mean;   /* [n_mat][cols] mean square of each column's inputs */
	double count;        /* number of inputs, of the first matrix */
} ImatrixEntry;

typedef struct Imatrix {
	size_t n, cap;
	ImatrixEntry *entry;
} Imatrix;

/* E_INPUT: no such file, or not in one of the formats */
llmc_status imatrix_read(const char *path, Arena *a, Imatrix *out, llmc_error *err);
/* Writes the older format if path ends in .dat, else GGUF. dataset: name of the calibration text */
llmc_status imatrix_write(const char *path, const Imatrix *m, const char *dataset, int chunks,
                          int chunk_tokens, llmc_error *err);
/* Returns the entry for a tensor of these sizes, or NULL. n_mat 0: any */
const ImatrixEntry *imatrix_find(const Imatrix *m, const char *name);
void imatrix_add(Imatrix *m, Arena *a, const ImatrixEntry *e);

#endif

/* Importance of columns: what llama.cpp calls an imatrix, read and written in both of its forms
 * (the old .dat, and GGUF). */
#ifndef LLMC_QUANT_IMATRIX_H
#define LLMC_QUANT_IMATRIX_H

#include "base/arena.h"
#include "base/error.h"

typedef struct ImatrixEntry {
	const char *name;    /* of the tensor */
	int64_t cols, n_mat; /* n_mat: experts, else 1 */
	const float *mean;   /* [n_mat][cols] mean of the squares of a column's inputs */
	double count;        /* inputs, of the first matrix */
} ImatrixEntry;

typedef struct Imatrix {
	size_t n, cap;
	ImatrixEntry *entry;
} Imatrix;

/* E_INPUT: no such file, or not in one of the forms */
llmc_status imatrix_read(const char *path, Arena *a, Imatrix *out, llmc_error *err);
/* The old form when path ends in .dat, else GGUF. dataset: what it was made from */
llmc_status imatrix_write(const char *path, const Imatrix *m, const char *dataset, int chunks,
                          int chunk_tokens, llmc_error *err);
/* Entry for a tensor of these sizes; NULL: there is none. n_mat 0: any */
const ImatrixEntry *imatrix_find(const Imatrix *m, const char *name);
void imatrix_add(Imatrix *m, Arena *a, const ImatrixEntry *e);

#endif

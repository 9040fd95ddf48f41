/* Comparison of a folder's graph with that of the GGUF file made from the folder */
#ifndef LLMC_COMPILER_IMPORT_EXPORT_COMPARE_H
#define LLMC_COMPILER_IMPORT_EXPORT_COMPARE_H

#include "compiler/graph.h"

bool export_nearly_equal(double a, double b, double rel);

/* Return whether both graphs compute the same results, op for op. */
bool export_graphs_agree(const Graph *a, const Graph *b);

/* Return the number of rows of a tensor before the first used one. */
int64_t export_rows_before(const Graph *g, size_t tensor);

/* Return the number to add to the weights of each norm of a to get those of b: [tensors of a], in
 * the arena. */
float *export_norms(const Graph *a, const Graph *b, Arena *arena);

#endif

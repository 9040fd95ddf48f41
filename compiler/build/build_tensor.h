/* Tensors of a graph and their sources in the checkpoint. */
#ifndef LLMC_COMPILER_BUILD_BUILD_TENSOR_H
#define LLMC_COMPILER_BUILD_BUILD_TENSOR_H

#include "compiler/build/build_model.h"
#include "compiler/graph.h"

/* build_source.c */
/* Find the rule of a role, alone or in a stack ("q+k+v"); *part receives its index in the stack. */
const TensorRule *source_rule_in(const TensorRule *rule, int n_rule, const char *role, int *part);
/* Count the rows before part `part` of a stacked rule, and of all parts. */
bool source_stack_rows(const Spec *s, int layer, const TensorRule *rule, int part, int64_t *before,
                       int64_t *total);
const char *tensor_id(Arena *a, const char *role, int layer, const char *suffix);
/* Merge blocks that are contiguous. */
void source_join(PlanSource *s);
int tensor_add(Graph *g, const char *id, StorageRule as, int64_t rows, int64_t cols,
               const PlanSource *src, int n_src, Loc loc);
/* Return the storage of a role whose rows in the file have `cols` elements; cols 0: vectors. */
StorageRule source_file_storage(Graph *g, const char *role, int layer, int64_t cols, Loc loc);
/* Return the storage in memory. A block holds neighbouring elements of one row of the file, so a
 * transposed matrix cannot keep it: packing dequantises and rounds each element once to 16 bits.
 * Rows divided by their norm cannot keep it either. */
StorageRule source_memory_storage(Graph *g, PlanSource *src, int n_src, StorageRule r, Loc loc);
const TensorRule *source_rule(Graph *g, const char *role, int *part, Loc loc);
/* Set the rows of the rule's tensor that belong to a role. */
bool source_rule_rows(Graph *g, int layer, const TensorRule *rule, const char *role, int part,
                      int64_t rows, PlanSource *src);

/* build_adapters.c */
/* Attach the adapter's delta to a matrix, found by Hugging Face module name and rows. Block types
 * that cannot hold the sum become f16: nothing is quantised twice. */
bool adapter_add(Graph *g, const char *role, int layer, int64_t rows, PlanSource *src,
                 StorageRule *as, Loc loc);
/* Attach adapters of experts: a pair of factors per expert if experts are modules, else the stacked
 * factors of gate and up together, and of down. */
bool adapter_add_experts(Graph *g, const TensorRule *rule, const char *role, int layer,
                         PlanSource *src, int n_src, int n_experts, int64_t rows, StorageRule *as);

#endif

/* Tensors of a graph and their sources in the checkpoint. */
#ifndef LLMC_COMPILER_BUILD_BUILD_TENSOR_H
#define LLMC_COMPILER_BUILD_BUILD_TENSOR_H

#include "compiler/build/build_model.h"
#include "compiler/graph.h"

/* build_source.c */
/* Find the rule of a role, alone or in a stack ("q+k+v"). *part receives the index of the role in
 * the stack. */
const TensorRule *source_rule_in(const TensorRule *rule, int n_rule, const char *role, int *part);
/* Count the rows of a stacked rule: those before part `part`, and all. */
bool source_stack_rows(const Spec *s, int layer, const TensorRule *rule, int part, int64_t *before,
                       int64_t *total);
const char *tensor_id(Arena *a, const char *role, int layer, const char *suffix);
/* Merge entries that are contiguous. */
void source_join(PlanSource *s);
int tensor_add(Graph *g, const char *id, StorageRule as, int64_t rows, int64_t cols,
               const PlanSource *src, int n_src, Loc loc);
/* Return the storage type of a role whose rows in the file have `cols` elements. cols 0: a
 * vector */
StorageRule source_file_storage(Graph *g, const char *role, int layer, int64_t cols, Loc loc);
/* Return the storage type in memory. It is that of the file, except in two cases. In a transposed
 * matrix, and in a matrix whose rows are divided by their norm, blocks of the file cannot be kept;
 * packing dequantises the elements and rounds each once to 16 bits. */
StorageRule source_memory_storage(Graph *g, PlanSource *src, int n_src, StorageRule r, Loc loc);
const TensorRule *source_rule(Graph *g, const char *role, int *part, Loc loc);
/* Set which rows of the rule's tensor belong to a role. */
bool source_rule_rows(Graph *g, int layer, const TensorRule *rule, const char *role, int part,
                      int64_t rows, PlanSource *src);

/* build_adapters.c */
/* Attach the adapter's delta to a matrix, which is found by its Hugging Face module name and rows.
 * If the block type cannot hold the sum, the matrix becomes f16, so nothing is quantised twice. */
bool adapter_add(Graph *g, const char *role, int layer, int64_t rows, PlanSource *src,
                 StorageRule *as, Loc loc);
/* Attach adapters of experts. If each expert is a module, each has a pair of factors; otherwise
 * there are stacked factors, of gate and up together and of down. */
bool adapter_add_experts(Graph *g, const TensorRule *rule, const char *role, int layer,
                         PlanSource *src, int n_src, int n_experts, int64_t rows, StorageRule *as);

#endif

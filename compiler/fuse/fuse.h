/* Internals of the fusion passes (fuse.c, fuse_mla.c, fuse_moe.c, fuse_lora.c): state of the graph
 * during rewriting, and helpers */
#ifndef LLMC_COMPILER_FUSE_FUSE_H
#define LLMC_COMPILER_FUSE_FUSE_H

#include "compiler/graph.h"
#include "compiler/template/template.h"

typedef struct FuseStack {
	int val[3], n, stacked;
} FuseStack;

typedef struct Fuse {
	Graph *g;
	const Templates *ts;
	int *uses;     /* [n_val] number of arguments that read the value */
	int *mat_uses; /* [n_val] number of these that are x of a plain matmul */
	size_t cap_uses;
	FuseStack *stack; /* stacked weights; layers that share the parts also share the stack */
	size_t n_stack, cap_stack;
} Fuse;

/* --- bookkeeping --- */
void fuse_recount(Fuse *f);
int fuse_uses(const Fuse *f, int v);
void fuse_drop(Fuse *f, Op *op);
void fuse_place(Fuse *f, Op *slot, const Op *fused);
Op *fuse_def(const Fuse *f, int v);
Op *fuse_only_def(const Fuse *f, int v, OpKind kind);
Op fuse_op(OpKind kind, const Op *like, const int *arg);
const char *fuse_name(const Fuse *f, int v);
bool fuse_accepted(const Fuse *f, const Op *op);
int fuse_stack(Fuse *f, int layer, const char *role, const int *val, int n);

/* --- fused input norm --- */
/* Input of a fused op before its norm, and the attributes of the norm. */
typedef struct NormInput {
	int x, nw, nb;
	const char *kind;
	double eps;
	int plus_one;
	int norm; /* output value of the norm; -1: no norm is fused */
} NormInput;

NormInput norm_input_none(int h);
NormInput norm_input_of(const Fuse *f, int h, int others);
void norm_input_set(Fuse *f, Op *op, const NormInput *n);

/* --- comparing, stacking --- */
bool fuse_same_num(const Op *a, const Op *b, const char *key);
bool fuse_same_arg(const Op *a, const Op *b, int arg);
bool fuse_both_have(const Op *a, const Op *b, int arg);
bool fuse_stack_matmuls(Fuse *f, int layer, const char *role, Op *const *mat, int n, int *weight,
                        int *bias);

/* --- passes; each returns its number of rewrites --- */
int fuse_mla(Fuse *f);
int fuse_moe(Fuse *f);
int fuse_lora_down(Fuse *f);
int fuse_lora_add(Fuse *f);
int fuse_lora_experts(Fuse *f);

#endif

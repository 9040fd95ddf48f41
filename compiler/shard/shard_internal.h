/* Internals of graph_shard: the state of the pass, cuts of weights, states of values, and one
 * function per op that has its own rule */
#ifndef LLMC_COMPILER_SHARD_SHARD_INTERNAL_H
#define LLMC_COMPILER_SHARD_SHARD_INTERNAL_H

#include "compiler/shard/shard.h"

typedef enum RowCut { CUT_NONE, CUT_ROWS, CUT_COLS } RowCut;

typedef enum StateKind { STATE_FULL, STATE_SPLIT, STATE_PARTIAL } StateKind;
typedef struct ValueState {
	StateKind kind;
	ShareKind by; /* STATE_SPLIT */
	int raw;      /* STATE_PARTIAL: this rank's term of the value */
	int bias[2];  /* STATE_PARTIAL: biases added after the sum; -1: none */
	int r;        /* STATE_PARTIAL: residual stream that is added, scaled; -1: none */
	double scale;
	int layer; /* layer and location of the all_reduce */
	Loc loc;
} ValueState;

typedef struct ShardPass {
	Graph *g;
	const Shard *s;
	ValueState *state; /* [n_val] states of the values of the whole graph */
	int rank;
} ShardPass;

/* shard_cut.c */
/* Cut these row ranges out of weight v and concatenate them. A row may occur twice. */
int shard_cut_rows(ShardPass *p, int v, const char *id, const ShardShare *range, int n_range);
/* Cut an adapter factor for a matrix that is split: columns of the A factor, or rows of the B
 * factor. Cuts are at whole blocks, or within one block. */
int shard_cut_factor(ShardPass *p, int v, ShardShare part);
/* Return this rank's share of n elements that are ordered like the quantity `by`. */
int64_t shard_own(const ShardPass *p, ShareKind by, int64_t n);
int64_t shard_own_first(const ShardPass *p, ShareKind by, int64_t n);
/* Like shard_cut_factor, for experts: whole experts, or for each expert some rows of the B factor
 * or some columns of the A factor. */
int shard_cut_expert_factor(ShardPass *p, int v, bool whole);
/* Return the quantity that applies in this layer instead of `by`. Windowed and wide layers have
 * their own. */
ShareKind shard_kind_in(const ShardPass *p, ShareKind by, int layer);
/* Return how a weight is cut; CUT_NONE if no rule applies to it. */
RowCut shard_cut_of(const ShardPass *p, int w, int layer, ShareKind *by);
/* Return whether the weight computes the logits: a separate head, or a tied embedding. A tied
 * embedding is also kept as a whole, because tokens look up its rows. */
bool shard_is_head(const ShardPass *p, const Op *op, int w);
/* Replace an argument of an op by this rank's part. */
void shard_cut_arg(ShardPass *p, Op *op, int arg, RowCut cut, ShareKind by, int parts,
                   const char *id);

/* shard_values.c */
/* Make a value full. If it is partial and has no all_reduce yet, insert one. */
void shard_make_full(ShardPass *p, int v);
/* Make the op's output v partial. The op then writes a value with another name, and v becomes the
 * output of the all_reduce. */
void shard_make_partial(ShardPass *p, Op *op, int arg, int bias);
void shard_append(ShardPass *p, const Op *op);
bool shard_is_split(const ShardPass *p, int v);
void shard_mark_split(ShardPass *p, int v, ShareKind by);
void shard_make_inputs_full(ShardPass *p, const Op *op);
/* Handle an op whose output is split like its first argument, and of which one attribute is
 * replaced by this rank's share. */
void shard_like_input(ShardPass *p, Op *op, const char *key);
/* Handle an op that needs the columns of all ranks, from argument X to Y of `width`: gather the
 * columns, compute all of them on each rank, and slice the rank's own. */
void shard_compute_on_all_ranks(ShardPass *p, Op *op, int X, int Y, int64_t width,
                                const char *what);
/* Apply the rule WHOLE, also to an op that is not split in this graph: all ranks compute it. */
void shard_whole(ShardPass *p, Op *op);

/* shard_recurrent.c */
/* Shard the stacked q, k and v of a delta rule. */
void shard_lin_qkv(ShardPass *p, Op *op);
/* Reduce a pool to the data that this rank stores per sequence. */
void shard_pool(const ShardPass *p, PlanPool *pool);

/* shard_matmul.c */
/* Restrict an op to the experts of this rank (parallel.experts: whole). Routing is the same on all
 * ranks, and each rank computes its own experts. */
void shard_local_experts(ShardPass *p, Op *op, int ID);

/* Functions for ops whose row in ops.def has OWN: they cut the op's weights, change its attributes,
 * and append it. */
#define SHARD_DECLARE_WHOLE
#define SHARD_DECLARE_ALONG(a)
#define SHARD_DECLARE_SPLIT(a)
#define SHARD_DECLARE_OWN(op) void shard_##op(ShardPass *p, Op *op);
#define OP(name, flags, args, attrs, shard, scratch, meaning) SHARD_DECLARE_##shard
#include "ops/ops.def"

#endif

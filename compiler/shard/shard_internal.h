/* Parts of graph_shard: the state of the pass, cuts of weights, states of values, and one function
 * per op that has a rule of its own. */
#ifndef LLMC_COMPILER_SHARD_SHARD_INTERNAL_H
#define LLMC_COMPILER_SHARD_SHARD_INTERNAL_H

#include "compiler/shard/shard.h"

typedef enum RowCut { CUT_NONE, CUT_ROWS, CUT_COLS } RowCut;

typedef enum StateKind { STATE_FULL, STATE_SPLIT, STATE_PARTIAL } StateKind;
typedef struct ValueState {
	StateKind kind;
	ShareKind by; /* STATE_SPLIT */
	int raw;      /* STATE_PARTIAL: the value with this rank's term */
	int bias[2];  /* STATE_PARTIAL: added after the sum; -1: none */
	int r;        /* STATE_PARTIAL: stream that is added, scaled; -1: none */
	double scale;
	int layer; /* layer and location for the all_reduce */
	Loc loc;
} ValueState;

typedef struct ShardPass {
	Graph *g;
	const Shard *s;
	ValueState *state; /* [n_val] of the whole graph */
	int rank;
} ShardPass;

/* shard_cut.c */
/* Cut these row ranges out of weight v, concatenated; rows may occur twice. */
int shard_cut_rows(ShardPass *p, int v, const char *id, const ShardShare *range, int n_range);
/* Cut an adapter factor for a matrix that is split: columns of the A factor, or rows of the B
 * factor, in whole blocks or within one. */
int shard_cut_factor(ShardPass *p, int v, ShardShare part);
/* Return this rank's part of n elements that are ordered like a share. */
int64_t shard_own(const ShardPass *p, ShareKind by, int64_t n);
int64_t shard_own_first(const ShardPass *p, ShareKind by, int64_t n);
/* The same for experts: whole experts, or for each expert some rows of the B factors or some
 * columns of the A factor. */
int shard_cut_expert_factor(ShardPass *p, int v, bool whole);
/* Return the share that applies in a layer instead of `by`: windowed and wide layers have their
 * own. */
ShareKind shard_kind_in(const ShardPass *p, ShareKind by, int layer);
/* Return how a weight is cut; CUT_NONE if no rule applies. */
RowCut shard_cut_of(const ShardPass *p, int w, int layer, ShareKind *by);
/* Return whether the weight gives the logits: a separate head, or the embedding. A tied embedding
 * is also kept whole, because tokens look up its rows. */
bool shard_is_head(const ShardPass *p, const Op *op, int w);
/* Replace an argument of an op by this rank's part. */
void shard_cut_arg(ShardPass *p, Op *op, int arg, RowCut cut, ShareKind by, int parts,
                   const char *id);

/* shard_values.c */
/* Make a value full: insert the all_reduce of a partial value if there is none yet. */
void shard_make_full(ShardPass *p, int v);
/* Make the op's output v partial: the op writes a value of another name, and v becomes the output
 * of the all_reduce. */
void shard_make_partial(ShardPass *p, Op *op, int arg, int bias);
void shard_append(ShardPass *p, const Op *op);
bool shard_is_split(const ShardPass *p, int v);
void shard_mark_split(ShardPass *p, int v, ShareKind by);
void shard_make_inputs_full(ShardPass *p, const Op *op);
/* Handle an op whose output is split like its first argument: an attribute becomes this rank's
 * part. */
void shard_like_input(ShardPass *p, Op *op, const char *key);
/* Handle an op that needs the columns of all ranks, from argument X to Y of `width`: gather them,
 * compute all on each rank, and slice the rank's own. */
void shard_compute_on_all_ranks(ShardPass *p, Op *op, int X, int Y, int64_t width,
                                const char *what);
/* Rule of WHOLE, and of an op that is not split in this graph: all ranks compute it. */
void shard_whole(ShardPass *p, Op *op);

/* shard_recurrent.c */
/* Shard the stacked q, k and v of a delta rule. */
void shard_lin_qkv(ShardPass *p, Op *op);
/* Reduce a pool to what this rank stores per sequence. */
void shard_pool(const ShardPass *p, PlanPool *pool);

/* shard_matmul.c */
/* Restrict an op to the experts of this rank (parallel.experts: whole): routing is the same on all
 * ranks, and each computes its own experts. */
void shard_local_experts(ShardPass *p, Op *op, int ID);

/* Rule of an op whose row in ops.def has OWN: cut its weights, change its attributes, append it. */
#define SHARD_DECLARE_WHOLE
#define SHARD_DECLARE_ALONG(a)
#define SHARD_DECLARE_SPLIT(a)
#define SHARD_DECLARE_OWN(op) void shard_##op(ShardPass *p, Op *op);
#define OP(name, flags, args, attrs, shard, scratch, meaning) SHARD_DECLARE_##shard
#include "ops/ops.def"

#endif

/* Graph: ops over values, in topological order. Values are indices, so dumps and comparisons are
 * stable. */
#ifndef LLMC_COMPILER_GRAPH_H
#define LLMC_COMPILER_GRAPH_H

#include "compiler/spec/spec.h"
#include "plan/plan.h"

typedef struct Value {
	const char *name; /* "L3.q"; weights: the role with its layer, "L3.qkv" */
	ValueKind kind;
	Dtype dtype;
	Dtype held[2];  /* an f32 VAL_ACT: as it lies in memory in decode and in mixed steps
	                   (narrow_bf16.c) */
	PlanSym rows;   /* VAL_ACT, VAL_ROPE: SYM_n_tok or SYM_n_out */
	int64_t dim[2]; /* act: [-, width]; weight: [rows, cols]; cols = 0 for a vector */
	int def;        /* op that makes it, -1: none */
	int tensor; /* VAL_WEIGHT: index in Graph.tensor; VAL_POOL: pool; VAL_ROPE: rope table */
	Loc loc;
} Value;

typedef struct Op {
	OpKind kind;
	int layer;            /* -1: outside the layers */
	int arg[OP_MAX_ARGS]; /* values by ARG(op, name), inputs first; -1: absent */
	int n_attr;
	Attr attr[OP_MAX_ATTRS]; /* in the order of the row */
	int n_makes;             /* values of the unfused graph that this op makes, for verify */
	const char *makes[PLAN_MAX_MAKES];
	Loc loc;
} Op;

typedef struct Graph {
	Arena *arena;
	Diag *diag;
	const Spec *spec;
	struct Peft *peft; /* the adapter of lora.path (formats/peft.h); NULL: none */
	size_t n_op, cap_op;
	Op *op;
	size_t n_val, cap_val;
	Value *val;
	size_t n_tensor, cap_tensor;
	PlanTensor *tensor; /* weights with their sources; layout is set by select */
	int n_pool;
	PlanPool *pool;
	int rank, ranks;   /* shard.c: 0 of 1 before it */
	int stage, stages; /* pipeline_stage.c: 0 of 1 before it */
	int64_t window;    /* pipeline_stage.c: the most that a pool of the whole model keeps */
	bool hands_rows;   /* val[rows] is handed out behind the step, beside the logits */
	int rows;
	int64_t n_params;          /* of the whole model, where this is a part of it */
	const struct Shard *shard; /* what it cut; NULL: nothing */
} Graph;

typedef struct Templates Templates; /* compiler/template/template.h */

/* build_model.c, infer_shapes.c, verify_graph.c, fuse.c, dump_graph.c: the passes, see each */
Graph *graph_build(const Spec *s, Diag *d, Arena *perm); /* NULL when d has errors */
void graph_infer(Graph *g);
void graph_verify(const Graph *g, const char *after); /* BUG()s on a broken invariant */
/* Rewrites made; a line a pass to log (may be NULL). An op is fused only where a template of ts
 * takes the result in both phases; ts NULL: wherever it is legal. */
int graph_fuse(Graph *g, const Templates *ts, Strbuf *log);
/* narrow_bf16.c: values that mixed steps of a GPU hold in the 16 bits that their products take;
 * their number */
int graph_narrow(Graph *g, const Templates *ts, Strbuf *log);
void graph_dump(const Graph *g, Strbuf *out);
/* pipeline_stage.c: the graph of one pipeline stage. False: d has errors. */
bool graph_stage(Graph *g, int stage);
/* shard.c: the graph of one rank. False: d has errors, which are those of all ranks. */
bool graph_shard(Graph *g, int rank);

/* The type of a value in memory in steps of a phase (PHASE_DECODE, PHASE_MIXED) */
static inline Dtype
value_dtype(const Value *v, int phase)
{
	return v->dtype == DT_F32 ? v->held[phase] : v->dtype;
}

/* graph.c: making and changing graphs */
Graph *graph_new(const Spec *s, Diag *d, Arena *perm);
int graph_value(Graph *g, ValueKind kind, const char *name, Loc loc); /* index */
/* An op at the end, all arguments -1. Pointers to ops and values last until the next is made. */
Op *graph_op(Graph *g, OpKind kind, int layer, Loc loc);
/* All arguments of an op by their names: op_args(op, OP_ARGS(matmul, .x = x, .w = w, .b = -1, .y =
 * y)). */
#define OP_ARGS(kind, ...)                                                                         \
	(const int *)&(struct args_##kind)                                                         \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}
void op_args(Op *op, const int *arg);
/* Attributes are given in the order of the op's row; anything else is a BUG. */
void op_set_int(Graph *g, Op *op, const char *key, int64_t v);
void op_change_int(Op *op, const char *key, int64_t v); /* of an attribute that it has */
void op_set_num(Graph *g, Op *op, const char *key, double v);
void op_set_word(Graph *g, Op *op, const char *key, const char *v);
void op_makes(Op *op, const char *value); /* once; dropped when there is no more room */
void graph_sweep(Graph *g); /* nops and values and tensors without use go; indices change */

/* build_tensor.c: the value of a weight; cols 0: a vector. suffix ".weight" or ".bias". A missing
 * name is an error in d. */
int build_weight(Graph *g, const char *role, int layer, const char *suffix, int64_t rows,
                 int64_t cols, Loc loc);
/* Slots of adapters for a role's matrix (adapters.slots): values of its factors a and b. False: it
 * has none. */
bool build_factors(Graph *g, const char *role, int layer, int64_t rows, int64_t cols, Loc loc,
                   int factor[2]);
/* The same of routed experts (adapters.expert_rank): of n_role matrices [rows, cols] that a row
 * goes through in each, side by side */
bool build_expert_factors(Graph *g, const char *const *role, int n_role, int layer, int n_experts,
                          int64_t rows, int64_t cols, Loc loc, int factor[2]);
/* Right factors of n matrices that x goes through, each of one, as one */
int graph_stack_factors(Graph *g, const char *name, const int *val, int n);
/* What the checkpoint has beside the matrix of a role for each of its columns (SCHEME_ORDER,
 * SCHEME_FACTOR): a vector */
int build_adapter_input(Graph *g, const char *role, int layer, const char *what, int64_t cols,
                        Loc loc);
/* Stacked experts: rows E * width */
int build_experts(Graph *g, const char *role, int layer, int n_experts, int64_t rows, int64_t cols,
                  Loc loc);
/* The order of columns of each expert of a role: a vector [n_experts * cols] */
int build_expert_orders(Graph *g, const char *role, int layer, int n_experts, int64_t cols,
                        Loc loc);
/* Matrix i of n that are alike, which the role's rule names as those of experts */
int build_one_of(Graph *g, const char *role, int layer, int i, int n, int64_t rows, int64_t cols,
                 Loc loc);
/* A table outside the layers with `rows` rows in the checkpoint and `all` in memory: the others are
 * its first */
int build_table(Graph *g, const char *role, int64_t rows, int64_t all, int64_t cols, Loc loc);
/* n tensors of one dtype and width (or vectors) as one, row under row; -1: they do not fit
 * together. */
int graph_stack(Graph *g, const char *name, const int *val, int n);

/* Shapes of all arguments; E_INPUT where attributes are out of range or break a rule: then they are
 * none. graph_shapes BUGs instead. */
llmc_status op_fits(const Graph *g, const Op *op, ArgShape out[OP_MAX_ARGS], llmc_error *err);
void graph_shapes(const Graph *g, const Op *op, ArgShape out[OP_MAX_ARGS]);

int64_t op_int(const Op *op, const char *name);
double op_num(const Op *op, const char *name);
const char *op_word(const Op *op, const char *name);

#endif

/* Graph of ops and values in topological order. A value is an index, so dumps and comparisons are
 * stable. */
#ifndef LLMC_COMPILER_GRAPH_H
#define LLMC_COMPILER_GRAPH_H

#include "compiler/spec/spec.h"
#include "plan/plan.h"

typedef struct Value {
	const char *name; /* "L3.q"; of a weight: "L3.qkv", the layer and the role */
	ValueKind kind;
	Dtype dtype;
	Dtype held[2];  /* VAL_ACT whose type is f32: type in memory per phase (narrow_bf16.c) */
	PlanSym rows;   /* VAL_ACT, VAL_ROPE: SYM_n_tok or SYM_n_out */
	int64_t dim[2]; /* activation: [-, width]; weight: [rows, cols]; cols 0: a vector */
	int def;        /* op that defines the value; -1: none */
	int tensor;     /* VAL_WEIGHT: index in Graph.tensor; VAL_POOL: index of the pool; VAL_ROPE:
	                   index of the rope table */
	Loc loc;
} Value;

typedef struct Op {
	OpKind kind;
	int layer;            /* -1: outside of the layers */
	int arg[OP_MAX_ARGS]; /* values by ARG(op, name), inputs first; -1: absent */
	int n_attr;
	Attr attr[OP_MAX_ATTRS]; /* in the order of the op's row in ops.def */
	int n_makes; /* number of values of the unfused graph that this op computes; llmc verify
	                compares them */
	const char *makes[PLAN_MAX_MAKES];
	Loc loc;
} Op;

typedef struct Graph {
	Arena *arena;
	Diag *diag;
	const Spec *spec;
	struct Peft *peft; /* adapter of lora.path (formats/peft.h); NULL: none */
	size_t n_op, cap_op;
	Op *op;
	size_t n_val, cap_val;
	Value *val;
	size_t n_tensor, cap_tensor;
	PlanTensor *tensor; /* weights with their sources; select_kernels.c sets the layout */
	int n_pool;
	PlanPool *pool;
	int rank, ranks;           /* set by shard.c; before, 0 and 1 */
	int stage, stages;         /* set by pipeline_stage.c; before, 0 and 1 */
	int partition, partitions; /* set by partition.c; before, 0 and 1 */
	int64_t window; /* set by pipeline_stage.c: longest window of any pool of the whole model */
	bool outputs_rows; /* val[rows] is an output of the step in addition to the logits */
	int rows;
	int64_t n_params; /* number of parameters of the whole model, even if the graph is only a
	                     part of it */
	const struct Shard *shard; /* the cut of shard.c; NULL: not sharded */
} Graph;

typedef struct Templates Templates; /* compiler/template/template.h */

/* Passes of build_model.c, infer_shapes.c, verify_graph.c, fuse.c and dump_graph.c. Each file
 * describes its pass. */
Graph *graph_build(const Spec *s, Diag *d, Arena *perm); /* NULL if d has errors */
void graph_infer(Graph *g);
void graph_verify(const Graph *g, const char *after); /* reports a bug if an invariant is broken */
/* Fuse ops and return the number of rewrites. *log (may be NULL) receives one line per pass. Ops
 * are fused only if a template of ts implements the result in both phases. ts NULL: whenever the
 * rewrite is legal */
int graph_fuse(Graph *g, const Templates *ts, Strbuf *log);
/* narrow_bf16.c: store values as bf16 in mixed steps of a GPU if all GEMMs that read them round
 * them to bf16 anyway. Returns their number. */
int graph_narrow(Graph *g, const Templates *ts, Strbuf *log);
void graph_dump(const Graph *g, Strbuf *out);
/* pipeline_stage.c: reduce the graph to one pipeline stage. Returns false if d has errors. */
bool graph_stage(Graph *g, int stage);
/* Reduce pools to those that the graph's ops use, with their layers numbered from 0. */
void graph_own_pools(Graph *g);
bool graph_keeps_state(const Graph *g); /* some pool holds recurrent states */
/* partition.c: reduce the graph to the part that runs on the GPU (0) or on the CPU (1). Returns
 * false if d has errors. */
bool graph_partition(Graph *g, int partition);
/* shard.c: reduce the graph to one rank. Returns false if d has errors, which are the same on all
 * ranks. */
bool graph_shard(Graph *g, int rank);

/* Return the type of a value in memory in a phase (PHASE_DECODE, PHASE_MIXED). */
static inline Dtype
value_dtype(const Value *v, int phase)
{
	return v->dtype == DT_F32 ? v->held[phase] : v->dtype;
}

/* graph.c: create and change graphs */
Graph *graph_new(const Spec *s, Diag *d, Arena *perm);
int graph_value(Graph *g, ValueKind kind, const char *name, Loc loc); /* returns its index */
/* Append an op, with -1 for all arguments. Adding ops or values invalidates pointers to earlier
 * ones. */
Op *graph_op(Graph *g, OpKind kind, int layer, Loc loc);
/* Arguments of an op by name: op_args(op, OP_ARGS(matmul, .x = x, .w = w, .b = -1, .y = y)). */
#define OP_ARGS(kind, ...)                                                                         \
	(const int *)&(struct args_##kind)                                                         \
	{                                                                                          \
		__VA_ARGS__                                                                        \
	}
void op_args(Op *op, const int *arg);
/* Set attributes in the order of the op's row; any other order is a bug. */
void op_set_int(Graph *g, Op *op, const char *key, int64_t v);
void op_change_int(Op *op, const char *key, int64_t v); /* the attribute must exist */
void op_set_num(Graph *g, Op *op, const char *key, double v);
void op_set_word(Graph *g, Op *op, const char *key, const char *v);
void op_makes(Op *op, const char *value); /* ignored if already listed or if the list is full */
void graph_sweep(Graph *g); /* removes nops and unused values and tensors; indices change */

/* build_tensor.c: make the value of a weight. cols 0: a vector; suffix: ".weight" or ".bias". If
 * the role has no name, an error goes to d. */
int build_weight(Graph *g, const char *role, int layer, const char *suffix, int64_t rows,
                 int64_t cols, Loc loc);
/* Make values for the factors a and b in adapter slots (adapters.slots) of a role's matrix. Returns
 * false if the model has no slots. */
bool build_factors(Graph *g, const char *role, int layer, int64_t rows, int64_t cols, Loc loc,
                   int factor[2]);
/* Like build_factors, for routed experts (adapters.expert_rank): n_role matrices [rows, cols] per
 * expert with the same input. */
bool build_expert_factors(Graph *g, const char *const *role, int n_role, int layer, int n_experts,
                          int64_t rows, int64_t cols, Loc loc, int factor[2]);
/* Stack the A factors of n matrices with a common input into one tensor. */
int graph_stack_factors(Graph *g, const char *name, const int *val, int n);
/* Make a vector that the checkpoint stores per column of a role's matrix: QUANT_FORMAT_ORDER or
 * QUANT_FORMAT_FACTOR. */
int build_adapter_input(Graph *g, const char *role, int layer, const char *what, int64_t cols,
                        Loc loc);
/* Make the stacked matrices of experts, with n_experts * rows rows. */
int build_experts(Graph *g, const char *role, int layer, int n_experts, int64_t rows, int64_t cols,
                  Loc loc);
/* Make the column orders of the experts of a role: a vector [n_experts * cols]. */
int build_expert_orders(Graph *g, const char *role, int layer, int n_experts, int64_t cols,
                        Loc loc);
/* Make matrix i of n matrices of equal shape. The role's rule names them like those of experts. */
int build_one_of(Graph *g, const char *role, int layer, int i, int n, int64_t rows, int64_t cols,
                 Loc loc);
/* Make a table outside of the layers with `rows` rows in the checkpoint and `all` rows in memory.
 * The additional rows are copies of row 0. */
int build_table(Graph *g, const char *role, int64_t rows, int64_t all, int64_t cols, Loc loc);
/* Concatenate the rows of n tensors. They must have one dtype and number of columns, or be vectors.
 * -1: they differ. */
int graph_stack(Graph *g, const char *name, const int *val, int n);

/* Compute the shapes of all arguments. Returns E_INPUT, without shapes, if attributes are out of
 * range or break a rule; graph_shapes reports a bug in that case. */
llmc_status op_fits(const Graph *g, const Op *op, ArgShape out[OP_MAX_ARGS], llmc_error *err);
void graph_shapes(const Graph *g, const Op *op, ArgShape out[OP_MAX_ARGS]);

int64_t op_int(const Op *op, const char *name);
double op_num(const Op *op, const char *name);
const char *op_word(const Op *op, const char *name);

#endif

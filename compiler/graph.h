/* Graph: ops over values, in topological order. Values are indices, so dumps and comparisons are stable. */
#ifndef LLMC_COMPILER_GRAPH_H
#define LLMC_COMPILER_GRAPH_H

#include "compiler/spec.h"
#include "runtime/plan/plan.h"

enum { OPF_ROW = 1, OPF_ELEM = 2, OPF_ATT = 4, OPF_FUSED = 8 };

typedef enum OpKind {
	OP_nop,
#define OP(name, in, out, flags, args, attrs, meaning) OP_##name,
#include "compiler/ops.def"
#undef OP
	OP_COUNT
} OpKind;

typedef struct OpInfo {
	const char *name;
	int         n_in, n_out;
	unsigned    flags;
	const char *args, *attrs, *meaning;
} OpInfo;
extern const OpInfo op_info[OP_COUNT];

enum { OP_MAX_IN = 10, OP_MAX_OUT = 2, OP_MAX_ATTR = 14 };

typedef enum ValueKind { VAL_ACT, VAL_WEIGHT, VAL_ROPE, VAL_POOL, VAL_ORDER } ValueKind;
typedef struct Value {
	const char *name;      /* "L3.q"; weights: the role with its layer, "L3.qkv" */
	ValueKind   kind;
	Dtype       dtype;
	PlanSym     rows;      /* VAL_ACT, VAL_ROPE: SYM_n_tok or SYM_n_out */
	int64_t     dim[2];    /* act: [-, width]; weight: [rows, cols]; cols = 0 for a vector */
	int         def;       /* op that makes it, -1: none */
	int         tensor;    /* VAL_WEIGHT: index in Graph.tensor; VAL_POOL: pool; VAL_ROPE: rope table */
	Loc         loc;
} Value;

typedef PlanAttr Attr;

typedef struct Op {
	OpKind  kind;
	int     layer;         /* -1: outside the layers */
	int     in[OP_MAX_IN]; /* -1: absent optional */
	int     out[OP_MAX_OUT];
	int     n_attr;
	Attr    attr[OP_MAX_ATTR]; /* in the order of the row */
	int     n_makes;       /* values of the unfused graph that this op makes, for verify */
	const char *makes[8];
	Loc     loc;
} Op;

typedef struct Graph {
	Arena *arena;
	Diag  *diag;
	const Spec *spec;
	size_t n_op, cap_op;
	Op    *op;
	size_t n_val, cap_val;
	Value *val;
	size_t n_tensor, cap_tensor;
	PlanTensor *tensor;    /* weights with their sources; layout is set by select */
	int    n_pool;
	PlanPool *pool;
} Graph;

typedef struct Templates Templates; /* compiler/template.h */

/* build.c, infer.c, verify.c, fuse.c, dump.c: the passes, see each */
Graph *graph_build(const Spec *s, Diag *d, Arena *perm);  /* NULL when d has errors */
void   graph_infer(Graph *g);
void   graph_verify(const Graph *g, const char *after);   /* BUG()s on a broken invariant */
/* Rewrites made; a line a pass to log (may be NULL). An op is fused only where a template of ts takes the result in both
 * phases; ts NULL: wherever it is legal. */
int    graph_fuse(Graph *g, const Templates *ts, Strbuf *log);
void   graph_dump(const Graph *g, Strbuf *out);

/* graph.c: making and changing graphs */
Graph *graph_new(const Spec *s, Diag *d, Arena *perm);
int    graph_value(Graph *g, ValueKind kind, const char *name, Loc loc);      /* index */
/* An op at the end, all inputs -1. Pointers to ops and values last until the next is made. */
Op    *graph_op(Graph *g, OpKind kind, int layer, Loc loc);
/* Attributes are given in the order of the op's row; anything else is a BUG. */
void   op_set_int(Graph *g, Op *op, const char *key, int64_t v);
void   op_set_num(Graph *g, Op *op, const char *key, double v);
void   op_set_word(Graph *g, Op *op, const char *key, const char *v);
void   op_makes(Op *op, const char *value);               /* once; dropped when there is no more room */
int    graph_uses(const Graph *g, int val);               /* inputs of ops that read it */
void   graph_sweep(Graph *g);                             /* nops and values and tensors without use go; indices change */

/* build_tensor.c: the value of a weight; cols 0: a vector. suffix ".weight" or ".bias". A missing name is an error in d. */
int    build_weight(Graph *g, const char *role, int layer, const char *suffix, int64_t rows, int64_t cols, Loc loc);
/* Stacked experts: rows E * width */
int    build_experts(Graph *g, const char *role, int layer, int n_experts, int64_t rows, int64_t cols, Loc loc);
/* n tensors of one dtype and width (or vectors) as one, row under row; -1: they do not fit together. */
int    graph_stack(Graph *g, const char *name, const int *val, int n);

/* What an argument of an op must be, from the op's attributes: the one place that knows shapes (infer.c). */
typedef struct ArgShape {
	ValueKind kind;
	Dtype     dtype;       /* VAL_ACT: f32 or i32 */
	int64_t   rows, cols;  /* VAL_WEIGHT: rows -1: any; cols 0: a vector. VAL_ACT, VAL_ROPE: cols is the width */
} ArgShape;
void   op_shapes(const Op *op, ArgShape out[PLAN_MAX_ARGS]);

/* The names of an op's arguments: "x?" style row text walked one at a time. opt says whether it may be absent. */
int    op_n_arg(OpKind kind);
int    op_arg_name(OpKind kind, int arg, char name[16], bool *opt);  /* length */
int    op_arg_value(const Op *op, int arg);               /* inputs, then outputs */

const Attr *op_attr(const Op *op, const char *name);      /* NULL: none */
int64_t     op_int(const Op *op, const char *name);
double      op_num(const Op *op, const char *name);
const char *op_word(const Op *op, const char *name);

#endif

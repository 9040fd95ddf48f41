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

/* build.c, infer.c, verify.c, fuse.c, dump.c: the passes, see each */
Graph *graph_build(const Spec *s, Diag *d, Arena *perm);
void   graph_infer(Graph *g);
void   graph_verify(const Graph *g, const char *after);   /* BUG()s on a broken invariant */
int    graph_fuse(Graph *g, Strbuf *log);                 /* rewrites made; a line a pass to log (may be NULL) */
void   graph_dump(const Graph *g, Strbuf *out);

const Attr *op_attr(const Op *op, const char *name);      /* NULL: none */
int64_t     op_int(const Op *op, const char *name);
double      op_num(const Op *op, const char *name);
const char *op_word(const Op *op, const char *name);

#endif

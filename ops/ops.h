/* Ops: the table of ops.def as data, the rules of attributes, and the shapes that follow from
 * attributes. The compiler (build, infer, verify, templates), the plan checker and the reference
 * all use these definitions. This module does not depend on graphs or plans. */
#ifndef LLMC_OPS_OPS_H
#define LLMC_OPS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/dtype.h"

typedef enum OpKind {
	OP_nop,
#define OP(name, ...) OP_##name,
#include "ops/ops.def"
	OP_COUNT
} OpKind;

enum { OP_MAX_ARGS = 12, OP_MAX_ATTRS = 16 };
enum {
	OPF_PER_TOKEN = 1,
	OPF_GATHER = 2,
	OPF_READS_KV = 4,
	OPF_COMM = 8,
	OPF_LORA = 16,
	OPF_EXPERTS = 32
};

/* Argument indices of an op by name: struct args_matmul { int x, w, b, y; }. ARG(matmul, w) is the
 * constant 1. */
#define IN(n) int n;
#define OPT(n) int n;
#define SAME(n) int n;
#define OPT_SAME(n) int n;
#define TABLE(n) int n;
#define OUT(n) int n;
#define OP(name, flags, args, attrs, shard, scratch, meaning)                                      \
	struct args_##name {                                                                       \
		args                                                                               \
	};
#include "ops/ops.def"
#undef IN
#undef OPT
#undef SAME
#undef OPT_SAME
#undef TABLE
#undef OUT
#define ARG(op, arg) ((int)(offsetof(struct args_##op, arg) / sizeof(int)))

typedef enum ArgRole {
	ROLE_IN,
	ROLE_OPT,
	ROLE_SAME,
	ROLE_OPT_SAME,
	ROLE_TABLE,
	ROLE_OUT
} ArgRole; /* documented in ops.def */

static inline bool
role_may_lack(ArgRole r)
{
	return r == ROLE_OPT || r == ROLE_OPT_SAME;
}

static inline bool
role_in_place(ArgRole r)
{
	return r == ROLE_SAME || r == ROLE_OPT_SAME;
}

typedef struct OpArg {
	const char *name;
	ArgRole role;
} OpArg;

typedef struct OpInfo {
	const char *name;
	unsigned flags;
	int n_in, n_arg; /* arguments: inputs first */
	OpArg arg[OP_MAX_ARGS];
	const char *attrs, *meaning; /* attrs: names separated by spaces */
} OpInfo;
extern const OpInfo op_info[OP_COUNT];

OpKind op_by_name(const char *name); /* OP_nop: no such op */

/* --- attributes: lists of an op in the graph, or of a step in a plan --- */

typedef enum AttrKind { ATTR_INT, ATTR_NUM, ATTR_WORD } AttrKind;
typedef struct Attr {
	const char *key;
	AttrKind kind;
	int64_t i;
	double f;
	const char *s;
} Attr;

const Attr *attr_find(const Attr *a, int n, const char *key); /* NULL: none */
/* Return an attribute's value; 0 or "" if it is missing or of another kind. */
int64_t attr_int(const Attr *a, int n, const char *key);
double attr_num(const Attr *a, int n, const char *key); /* also accepts an integer */
const char *attr_word(const Attr *a, int n, const char *key);
/* Return name and kind of the op's i-th attribute; NULL: the op has fewer */
const char *op_attr(OpKind op, int i, AttrKind *kind);
/* Checks that a list has exactly the op's attributes, in any order, each of its kind and within its
 * range */
llmc_status attr_check(OpKind op, const Attr *a, int n, llmc_error *err);

/* --- shapes (shapes.c) --- */

typedef enum ValueKind { VAL_ACT, VAL_WEIGHT, VAL_ROPE, VAL_POOL, VAL_ORDER } ValueKind;
/* Shape of a pool: pages of keys and values, pages of latents (mla), or one recurrent state
 * [kv_heads, k_dim, v_dim] of fp32 per sequence (state) */
typedef struct PoolShape {
	bool mla, state;
	int64_t kv_heads, k_dim, v_dim;
} PoolShape;

typedef struct ArgShape {
	ValueKind kind;
	Dtype dtype; /* VAL_ACT: f32 or i32 */
	/* VAL_WEIGHT: cols 0: a vector. VAL_ACT, VAL_ROPE: cols: elements per row */
	int64_t rows, cols;
	/* VAL_WEIGHT: number of equal parts that are read separately (experts, including
	 * those of other ranks); used: number of parts that a row of the step reads; both 1 for
	 * other weights */
	int64_t pieces, used;
	PoolShape pool; /* VAL_POOL */
} ArgShape;

/* Properties of the model that are not op attributes: table sizes, and the rank of a
 * tensor-parallel model. ranks 0: same as 1 */
typedef struct OpModel {
	int64_t vocab, max_positions;
	int rank, ranks;
} OpModel;

/* Compute the elements [*first, *first + *count) of rank `rank`, of `total` elements divided over
 * `ranks` ranks. Ranks get whole units, evenly; the first ranks get one unit more if there is a
 * remainder. The last unit may be short. *count is 0 if no unit is left for the rank. */
void op_share(int64_t total, int64_t unit, int ranks, int rank, int64_t *first, int64_t *count);

/* Computes the shape of each argument from attributes that attr_check has accepted. Returns NULL,
 * or the rule between attributes that is violated, in which case `out` is unspecified. Sizes above
 * 63 bits become INT64_MAX. */
const char *op_shapes(OpKind op, const Attr *a, int n, const OpModel *m, ArgShape out[OP_MAX_ARGS]);

#endif

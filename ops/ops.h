/* Ops: the table of ops.def as data, the shapes that follow from attributes, the attributes' rules.
 * Said once here, used by the compiler (build, infer, verify, templates), by the check of plans and
 * by the reference. Knows neither graphs nor plans. */
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

/* The arguments of an op by name: struct args_matmul { int x, w, b, y; }. As numbers: ARG(matmul,
 * w) is 1, a constant. */
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
} ArgRole; /* see ops.def */

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
	const char *attrs, *meaning; /* attrs: names with a space between them */
} OpInfo;
extern const OpInfo op_info[OP_COUNT];

OpKind op_by_name(const char *name); /* OP_nop: no such op */

/* --- attributes: lists of an op's in the graph, of a step's in a plan --- */

typedef enum AttrKind { ATTR_INT, ATTR_NUM, ATTR_WORD } AttrKind;
typedef struct Attr {
	const char *key;
	AttrKind kind;
	int64_t i;
	double f;
	const char *s;
} Attr;

const Attr *attr_find(const Attr *a, int n, const char *key); /* NULL: none */
/* What is not there, or of another kind, reads as 0 or "". */
int64_t attr_int(const Attr *a, int n, const char *key);
double attr_num(const Attr *a, int n, const char *key); /* of a whole number as well */
const char *attr_word(const Attr *a, int n, const char *key);
/* Name and kind of the i-th attribute of the op's row; NULL: it has fewer */
const char *op_attr(OpKind op, int i, AttrKind *kind);
/* Exactly the attributes of the op's row, in any order, each of its kind and within its range */
llmc_status attr_check(OpKind op, const Attr *a, int n, llmc_error *err);

/* --- shapes (shapes.c) --- */

typedef enum ValueKind { VAL_ACT, VAL_WEIGHT, VAL_ROPE, VAL_POOL, VAL_ORDER } ValueKind;
/* Pages of keys and values, pages of latents, or a state [kv_heads, k_dim, v_dim] of fp32 for each
 * sequence */
typedef struct PoolShape {
	bool mla, state;
	int64_t kv_heads, k_dim, v_dim;
} PoolShape;

typedef struct ArgShape {
	ValueKind kind;
	Dtype dtype;        /* VAL_ACT: f32 or i32 */
	int64_t rows, cols; /* VAL_WEIGHT: cols 0: a vector. VAL_ACT, VAL_ROPE: cols is the width */
	int64_t pieces, used; /* VAL_WEIGHT: equal parts of the rows that are read on their own
	                       * (experts, also those that other ranks have), and how many of them a
	                       * row of the step reads; else 1 */
	PoolShape pool;       /* VAL_POOL */
} ArgShape;

/* What is the model's and no op's: sizes of tables, and which of the ranks that it is split over
 * this is. ranks 0: as 1 */
typedef struct OpModel {
	int64_t vocab, max_positions;
	int rank, ranks;
} OpModel;

/* The share of rank k of n in `total` elements: whole units, dealt as evenly as they go, the first
 * ranks one more; the last unit may be short. Elements [*first, *first + *count); *count is 0 where
 * there are fewer units than ranks. */
void op_share(int64_t total, int64_t unit, int ranks, int rank, int64_t *first, int64_t *count);

/* What each argument must be, for attributes that attr_check has passed. NULL, or the rule that
 * they break among each other: then `out` says nothing. Sizes too large for 63 bits are INT64_MAX.
 */
const char *op_shapes(OpKind op, const Attr *a, int n, const OpModel *m, ArgShape out[OP_MAX_ARGS]);

#endif

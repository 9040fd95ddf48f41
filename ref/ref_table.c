/* Table of the reference: function and scratch size per op. */
#include "ref/ref_internal.h"

ref_fn *
ref_find(OpKind op)
{
	static ref_fn *const table[OP_COUNT] = {
#define OP(name, ...) [OP_##name] = ref_##name,
#include "ops/ops.def"
	};

	return table[op];
}

/* ---- scratch ---- */

/* Returns an attribute of a step; a negative value sets *ok to false. The type has 128 bits, so
 * that three 31-bit factors multiply without overflow. */
static __int128
attr(const PlanStep *step, const char *name, bool *ok)
{
	int64_t v = step_int(step, name);

	*ok &= v >= 0;
	return v;
}

#define A(name) attr(step, #name, &ok)
#define HAS(op, arg_) (step->arg[ARG(op, arg_)].kind != REF_NONE)
/* normed rows, the norm's vectors, then the matmul's row and bias */
#define NORM_LINEAR(rows, cols) (T * (cols) + 2 * (cols) + (rows))

int64_t
ref_scratch_floats(const PlanStep *step, int64_t n_tok, int64_t kv_len)
{
	const __int128 T = n_tok, KV = kv_len;
	__int128 n = 0;
	bool ok = n_tok >= 0 && kv_len >= 0;

	switch (step->op) {
#define OP(name, flags, args, attrs, shard, scratch, meaning)                                      \
	case OP_##name:                                                                            \
		n = scratch;                                                                       \
		break;
#include "ops/ops.def"
	case OP_nop:
	case OP_COUNT:
		break;
	}
	return ok && n >= 0 && n <= INT64_MAX ? (int64_t)n : -1;
}

/* The table of the reference: op to function, and scratch sizes. */
#include "ref/internal.h"

ref_fn *
ref_find(OpKind op)
{
	static ref_fn *const table[OP_COUNT] = {
#define OP(name, ...) [OP_##name] = ref_##name,
#include "ops/ops.def"
	};

	return table[op];
}

/* --- scratch ---------------------------------------------------------------------------------------------------- */

/* *sum += a * b * c, false on overflow or a negative factor */
static bool
add_product(int64_t *sum, int64_t a, int64_t b, int64_t c)
{
	int64_t p;

	return a >= 0 && b >= 0 && c >= 0 && !__builtin_mul_overflow(a, b, &p) && !__builtin_mul_overflow(p, c, &p) &&
	       !__builtin_add_overflow(*sum, p, sum);
}

/* norm_linear: normed rows, then the norm's vectors or the matmul's row and bias */
static bool
add_norm_linear(int64_t *sum, int64_t n_tok, int64_t rows, int64_t cols)
{
	return add_product(sum, n_tok, cols, 1) && add_product(sum, 2, cols, 1) && add_product(sum, rows, 1, 1);
}

/* Biases of all experts, where the step has them */
static bool
add_biases(int64_t *sum, const PlanStep *step, int arg, int64_t experts, int64_t each)
{
	return step->arg[arg].kind == REF_NONE || add_product(sum, experts, each, 1);
}

int64_t
ref_scratch_floats(const PlanStep *step, int64_t n_tok, int64_t kv_len)
{
	int64_t n = 0, rows = step_int(step, "rows"), cols = step_int(step, "cols"), hidden = step_int(step, "hidden");
	int64_t dim = step_int(step, "dim"), rank = step_int(step, "kv_rank"), experts = step_int(step, "n_experts");
	int64_t width = step_int(step, "width");
	bool    ok = true;

	switch (step->op) {
	case OP_all_reduce:
		ok = add_product(&n, 2, width, 1);
		break;
	case OP_embed_pos:
		return hidden;
	case OP_rmsnorm:
	case OP_layernorm: /* vectors, of each group where they are its own */
		ok = add_product(&n, 2, dim, step_int(step, "each") ? step_int(step, "groups") : 1);
		break;
	case OP_arrange: /* two vectors, a row, the norm's vectors */
		ok = add_product(&n, 5, width, 1);
		break;
	case OP_act: /* numbers of the function */
		return 2;
	case OP_conv1d:
		ok = add_product(&n, step_int(step, "taps") + 1, width, 1);
		break;
	case OP_delta_rule:
		ok = add_product(&n, 2, step_int(step, "k_dim"), 1) && add_product(&n, step_int(step, "v_heads"), step_int(step, "g_dim"), 1) &&
		     add_product(&n, step_int(step, "v_heads"), 1, 1);
		break;
	case OP_selective_scan:
		ok = add_product(&n, 3, step_int(step, "heads"), 1);
		break;
	case OP_channel_scan:
		ok = add_product(&n, step_int(step, "n_state") + 2, width, 1);
		break;
	case OP_norm_gate:
		ok = add_product(&n, step_int(step, "groups") + 1, dim, 1);
		break;
	case OP_matmul:
		ok = add_product(&n, rows, 1, 1) && add_product(&n, cols, 1, 1);
		break;
	case OP_kv_append: /* a row turned */
		return dim > step_int(step, "v_dim") ? dim : step_int(step, "v_dim");
	case OP_attention: /* sums in double, a row, sinks, scores */
		ok = add_product(&n, 3, step_int(step, "v_dim"), 1) && add_product(&n, 1, dim, 1) && add_product(&n, kv_len, 1, 1) &&
		     add_product(&n, step_int(step, "heads"), 1, 1);
		break;
	case OP_mla_append:
		return rank + step_int(step, "rope_dim");
	case OP_mla_attention:
		ok = add_product(&n, 2, n_tok, rank) && add_product(&n, rank, 1, 1) && add_product(&n, kv_len, 1, 1);
		break;
	case OP_index_select: /* a score and its position */
		ok = add_product(&n, 2, kv_len, 1);
		break;
	case OP_mla_query:
		ok = !__builtin_mul_overflow(step_int(step, "heads"), step_int(step, "nope_dim") + step_int(step, "rope_dim"), &rows) &&
		     add_product(&n, 3, rows, 1) && add_product(&n, 3, step_int(step, "q_rank"), 1) && add_product(&n, 3, rank, 1) &&
		     add_product(&n, step_int(step, "rope_dim"), 1, 1);
		break;
	case OP_mla_attend:
		ok = add_product(&n, kv_len, 1, 1) && add_product(&n, step_int(step, "nope_dim") + step_int(step, "v_dim"), 1, 1) && add_product(&n, 2, rank, 1);
		break;
	case OP_mla_value:
		return rank;
	case OP_gain:
		return 1;
	case OP_expert_gain:
		return experts;
	case OP_arrange_experts:
		ok = add_product(&n, experts, width, 1);
		break;
	case OP_moe_route:
		ok = add_product(&n, 3, experts, 1) && add_product(&n, step_int(step, "groups"), 1, 1);
		break;
	case OP_moe_ffn:
		ok = add_product(&n, n_tok, step_int(step, "top_k"), width) && add_product(&n, hidden, 1, 1) &&
		     add_product(&n, width, 1, 1) && add_biases(&n, step, ARG(moe_ffn, gate_b), experts, 2 * width) &&
		     add_biases(&n, step, ARG(moe_ffn, down_b), experts, hidden);
		break;
	case OP_norm_route:
		ok = !__builtin_add_overflow(experts, step_int(step, "mix"), &rows) && add_product(&n, n_tok, rows, 1) &&
		     add_norm_linear(&n, n_tok, rows, hidden) && add_product(&n, 3, experts, 1) && add_product(&n, step_int(step, "groups"), 1, 1);
		break;
	case OP_norm_moe_glu:
		ok = add_product(&n, n_tok, hidden, step_int(step, "spread")) && add_product(&n, 2, hidden, 1) && add_product(&n, n_tok, step_int(step, "shared"), 1) &&
		     add_biases(&n, step, ARG(norm_moe_glu, gate_b), experts, 2 * width);
		break;
	case OP_moe_down_add:
		ok = add_product(&n, n_tok, hidden, 1) && add_product(&n, width, 1, 1) && add_product(&n, step_int(step, "shared"), 1, 1) &&
		     add_biases(&n, step, ARG(moe_down_add, down_b), experts, hidden);
		break;
	case OP_norm_matmul:
	case OP_norm_act:
		ok = add_norm_linear(&n, n_tok, rows, cols);
		break;
	case OP_matmul_add:
		ok = add_product(&n, n_tok, rows, 1) && add_product(&n, rows, 1, 1) && add_product(&n, cols, 1, 1);
		break;
	case OP_norm_qkv:
		ok = !__builtin_add_overflow(step_int(step, "heads"), 2 * step_int(step, "kv_heads"), &rows) &&
		     !__builtin_mul_overflow(rows, dim, &rows) && add_product(&n, n_tok, rows, 1) &&
		     add_norm_linear(&n, n_tok, rows, hidden) && add_product(&n, 2, dim, 1);
		break;
	case OP_norm_glu:
		ok = add_product(&n, 2, n_tok, rows) && add_norm_linear(&n, n_tok, 2 * rows, cols);
		break;
	case OP_head:
		ok = add_product(&n, n_tok, cols, 1) && add_norm_linear(&n, n_tok, rows, cols);
		break;
	default: /* most ops work in place */
		break;
	}
	return ok ? n : -1;
}

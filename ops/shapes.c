/* Shapes of each op's arguments from its attributes, and rules between attributes. Only this file
 * defines them. A case lists the arguments by name. */
#include <string.h>

#include "ops/ops.h"
#include "templates/common/llmc_mla.h"

static int64_t
mul(int64_t a, int64_t b)
{
	int64_t n;

	return __builtin_mul_overflow(a, b, &n) ? INT64_MAX : n;
}

static int64_t
plus(int64_t a, int64_t b)
{
	int64_t n;

	return __builtin_add_overflow(a, b, &n) ? INT64_MAX : n;
}

static ArgShape
act(int64_t width)
{
	return (ArgShape){ .kind = VAL_ACT, .dtype = DT_F32, .rows = 1, .cols = width };
}

static ArgShape
ids(int64_t width)
{
	return (ArgShape){ .kind = VAL_ACT, .dtype = DT_I32, .rows = 1, .cols = width };
}

static ArgShape
mat(int64_t rows, int64_t cols)
{
	return (ArgShape){ .kind = VAL_WEIGHT,
		           .dtype = DT_F32,
		           .rows = rows,
		           .cols = cols,
		           .pieces = 1,
		           .used = 1 };
}

static ArgShape
vec(int64_t n)
{
	return mat(n, 0);
}

/* n matrices stacked on rows; a row of the step reads `used` of all matrices, local and remote */
static ArgShape
stack(int64_t n, int64_t n_remote_experts, int64_t used, int64_t rows, int64_t cols)
{
	ArgShape s = mat(mul(n, rows), cols);

	s.pieces = plus(n, n_remote_experts);
	s.used = used;
	return s;
}

static ArgShape
angles(int64_t dims)
{
	return (ArgShape){ .kind = VAL_ROPE, .dtype = DT_F32, .rows = 1, .cols = dims };
}

static ArgShape
gqa(int64_t kv_heads, int64_t k_dim, int64_t v_dim)
{
	return (ArgShape){ .kind = VAL_POOL,
		           .dtype = DT_F32,
		           .rows = 1,
		           .pool = { .kv_heads = kv_heads, .k_dim = k_dim, .v_dim = v_dim } };
}

static ArgShape
latent(int64_t rank, int64_t rope_dim)
{
	return (ArgShape){ .kind = VAL_POOL,
		           .dtype = DT_F32,
		           .rows = 1,
		           .pool = { .mla = true, .kv_heads = 1, .k_dim = rank + rope_dim } };
}

static ArgShape
state(int64_t heads, int64_t rows, int64_t cols)
{
	return (
	    ArgShape){ .kind = VAL_POOL,
		       .dtype = DT_F32,
		       .rows = 1,
		       .pool = { .state = true, .kv_heads = heads, .k_dim = rows, .v_dim = cols } };
}

/* Does the attribute `act` have a value that only some ops support? */
static bool
is_glu(const Attr *a, int n)
{
	return strcmp(attr_word(a, n, "act"), "swiglu_oai") == 0 ||
	       strcmp(attr_word(a, n, "act"), "silu_limit") == 0;
}

static bool
is_gate(const Attr *a, int n, const char *word)
{
	return strcmp(attr_word(a, n, "gate"), word) == 0;
}

static bool
is_xielu(const Attr *a, int n)
{
	return strcmp(attr_word(a, n, "act"), "xielu") == 0;
}

static ArgShape
order(void)
{
	return (ArgShape){ .kind = VAL_ORDER, .dtype = DT_F32, .rows = 1 };
}

/* struct shape_matmul { ArgShape x, w, b, y; } */
#define IN(n) ArgShape n;
#define OPT(n) ArgShape n;
#define SAME(n) ArgShape n;
#define OPT_SAME(n) ArgShape n;
#define TABLE(n) ArgShape n;
#define OUT(n) ArgShape n;
#define OP(name, flags, args, attrs, shard, scratch, meaning)                                      \
	struct shape_##name {                                                                      \
		args                                                                               \
	};
#include "ops/ops.def"

#define SET(op, ...) memcpy(out, &(struct shape_##op){ __VA_ARGS__ }, sizeof(struct shape_##op))
#define MUST(holds, rule)                                                                          \
	do {                                                                                       \
		if (!(holds))                                                                      \
			return rule;                                                               \
	} while (0)

void
op_share(int64_t total, int64_t unit, int ranks, int rank, int64_t *first, int64_t *count)
{
	int64_t units = total / unit + (total % unit != 0), per_group = units / ranks,
	        more = units % ranks;
	int64_t from = per_group * rank + (rank < more ? rank : more),
	        n = per_group + (rank < more);

	*first = from * unit;
	*count = n == 0 ? 0 : from + n == units ? total - *first : n * unit;
}

const char *
op_shapes(OpKind op, const Attr *a, int n, const OpModel *m, ArgShape out[OP_MAX_ARGS])
{
#define GET(key) key = attr_int(a, n, #key)
	const int64_t GET(rows), GET(cols), GET(hidden), GET(width), GET(dim), GET(heads),
	    GET(kv_heads), GET(v_dim), GET(kv_rank);
	const int64_t GET(nope_dim), GET(rope_dim), GET(rope_dims), GET(first), GET(count),
	    GET(n_experts), GET(n_remote_experts), GET(top_k), GET(x_rows_per_token), GET(groups);
	const int64_t GET(top_k_groups), GET(offset), GET(shared_gate), GET(shared), GET(q_rank),
	    GET(fused), GET(expand), GET(unit), GET(per_group), GET(chunk), GET(queued);
	const int64_t GET(rank), GET(slots), GET(head_stride), GET(k_heads), GET(v_heads),
	    GET(k_dim), GET(g_dim), GET(taps), GET(n_state), GET(index_top_k);
	const int64_t GET(alibi_first), GET(alibi_heads), GET(types), GET(mean);
	const int64_t qkv_rows = mul(heads + 2 * kv_heads, dim);
#undef GET

	switch (op) {
	case OP_nop:
	case OP_COUNT:
		break;
	case OP_embed:
		SET(embed, .w = mat(m->vocab, hidden), .y = act(hidden));
		break;
	case OP_embed_pos:
		SET(embed_pos, .x = act(hidden), .w = mat(m->max_positions + offset, hidden),
		    .y = act(hidden));
		break;
	case OP_embed_type:
		SET(embed_type, .x = act(hidden), .w = mat(types, hidden), .y = act(hidden));
		break;
	case OP_permute_cols:
		SET(permute_cols, .x = act(width), .nw = vec(width), .nb = vec(width),
		    .order = vec(width), .factor = vec(width), .y = act(width));
		break;
	case OP_rmsnorm:
		MUST(groups >= 1, "groups >= 1");
		SET(rmsnorm, .x = act(groups * dim), .w = vec(dim), .y = act(groups * dim));
		break;
	case OP_layernorm:
		MUST(groups >= 1, "groups >= 1");
		MUST(per_group <= 1, "per_group <= 1");
		SET(layernorm, .x = act(mul(groups, dim)),
		    .w = vec(per_group ? mul(groups, dim) : dim),
		    .b = vec(per_group ? mul(groups, dim) : dim), .y = act(mul(groups, dim)));
		break;
	case OP_clamp:
		MUST(attr_num(a, n, "limit") > 0, "limit > 0");
		SET(clamp, .x = act(width), .y = act(width));
		break;
	case OP_matmul:
		SET(matmul, .x = act(cols), .w = mat(rows, cols), .b = vec(rows), .y = act(rows));
		break;
	case OP_slice:
		MUST(first + count <= width, "first + count <= width");
		SET(slice, .x = act(width), .y = act(count));
		break;
	case OP_rope:
		MUST(first + rope_dims <= dim, "first + rope_dims <= dim");
		SET(rope, .x = act(heads * dim), .rope = angles(rope_dims), .y = act(heads * dim));
		break;
	case OP_rope_2d:
		MUST(rope_dims <= dim / 2, "rope_dims <= dim / 2");
		SET(rope_2d, .x = act(heads * dim), .rope = angles(rope_dims),
		    .rope2 = angles(rope_dims), .y = act(heads * dim));
		break;
	case OP_kv_append:
		SET(kv_append, .k = act(kv_heads * dim), .v = act(kv_heads * v_dim),
		    .kv = gqa(kv_heads, dim, v_dim), .done = order());
		break;
	case OP_kv_quantize_page:
		SET(kv_quantize_page, .kv = gqa(kv_heads, dim, v_dim), .done = order(),
		    .closed = order());
		break;
	case OP_attention:
		MUST(heads % kv_heads == 0, "heads is a multiple of kv_heads");
		MUST(chunk <= 1, "chunk <= 1");
		MUST(!alibi_heads || alibi_first + heads <= alibi_heads,
		     "alibi_first + heads <= alibi_heads");
		SET(attention, .q = act(heads * dim), .kv = gqa(kv_heads, dim, v_dim),
		    .done = order(), .sink = vec(heads), .y = act(heads * v_dim));
		break;
	case OP_mla_append:
		SET(mla_append, .latent = act(kv_rank), .rope_k = act(rope_dim),
		    .kv = latent(kv_rank, rope_dim), .done = order());
		break;
	case OP_mla_attention:
		SET(mla_attention, .q = act(heads * (nope_dim + rope_dim)),
		    .k_b = mat(mul(heads, nope_dim), kv_rank),
		    .v_b = mat(mul(heads, v_dim), kv_rank), .kv = latent(kv_rank, rope_dim),
		    .done = order(), .sel = ids(index_top_k), .y = act(heads * v_dim));
		break;
	case OP_index_append:
		SET(index_append, .k = act(dim), .kv = latent(dim, 0), .done = order());
		break;
	case OP_index_select:
		MUST(index_top_k >= 1, "index_top_k >= 1");
		MUST(attr_num(a, n, "scale") > 0, "scale > 0");
		SET(index_select, .q = act(mul(heads, dim)), .w = act(heads), .kv = latent(dim, 0),
		    .done = order(), .sel = ids(index_top_k));
		break;
	case OP_act:
		MUST(!is_glu(a, n), "act is not swiglu_oai or silu_limit, which need gate and up");
		SET(act, .x = act(width), .p = vec(2), .y = act(width));
		break;
	case OP_glu:
		MUST(!is_xielu(a, n), "act is not xielu, which needs parameters");
		MUST(attr_num(a, n, "limit") >= 0, "limit >= 0");
		SET(glu, .g = act(width), .u = act(width), .y = act(width));
		break;
	case OP_add:
		SET(add, .x = act(width), .r = act(width), .y = act(width));
		break;
	case OP_moe_route:
	case OP_norm_route:
		MUST(top_k <= n_experts, "top_k <= n_experts");
		MUST(groups <= 1 || n_experts % groups == 0, "n_experts is a multiple of groups");
		MUST(groups <= 1 || (top_k_groups >= 1 && top_k_groups <= groups),
		     "1 <= top_k_groups <= groups");
		MUST(shared_gate <= 1, "shared_gate <= 1");
		MUST(attr_num(a, n, "jitter") >= 0, "jitter >= 0");
		MUST(strcmp(attr_word(a, n, "score"), "sparsemixer") ||
		         (groups <= 1 && !attr_int(a, n, "renorm")),
		     "sparsemixer is used without groups and renorm");
		if (op == OP_norm_route) {
			SET(norm_route, .x = act(hidden), .nw = vec(hidden), .nb = vec(hidden),
			    .w = mat(n_experts + shared_gate, hidden), .logit_b = vec(n_experts),
			    .bias = vec(n_experts), .id = ids(top_k),
			    .weight = act(top_k + shared_gate));
			break;
		}
		SET(moe_route, .logits = act(n_experts), .bias = vec(n_experts), .id = ids(top_k),
		    .weight = act(top_k));
		break;
	case OP_moe_ffn:
		MUST(!is_xielu(a, n), "act is not xielu, which needs parameters");
		MUST(attr_num(a, n, "limit") >= 0, "limit >= 0");
		MUST(x_rows_per_token == 1 || x_rows_per_token == top_k,
		     "x_rows_per_token is 1 or top_k");
		SET(moe_ffn, .x = act(mul(x_rows_per_token, hidden)), .id = ids(top_k),
		    .weight = act(top_k),
		    .gate = stack(n_experts, n_remote_experts, top_k, width, hidden),
		    .up = stack(n_experts, n_remote_experts, top_k, width, hidden),
		    .down = stack(n_experts, n_remote_experts, top_k, hidden, width),
		    .gate_b = vec(mul(n_experts, width)), .up_b = vec(mul(n_experts, width)),
		    .down_b = vec(mul(n_experts, hidden)), .y = act(hidden));
		break;
	case OP_permute_expert_cols:
		SET(permute_expert_cols, .x = act(width), .id = ids(top_k),
		    .order = vec(mul(n_experts, width)), .y = act(mul(top_k, width)));
		break;
	case OP_gate_mul:
		MUST(groups >= 1 && width % groups == 0, "width is a multiple of groups");
		MUST(is_gate(a, n, "sigmoid") || is_gate(a, n, "softplus"),
		     "gate is sigmoid or softplus");
		SET(gate_mul, .x = act(width), .s = act(groups), .y = act(width));
		break;
	case OP_concat:
		SET(concat, .x = act(width), .z = act(count), .y = act(plus(width, count)));
		break;
	case OP_mul:
		SET(mul, .x = act(width), .z = act(width), .y = act(width));
		break;
	case OP_gaussian_topk:
		SET(gaussian_topk, .x = act(width), .y = act(width));
		break;
	case OP_match_rms:
		MUST(attr_num(a, n, "eps") > 0, "eps > 0");
		SET(match_rms, .x = act(width), .r = act(width), .y = act(width));
		break;
	case OP_stream_mix:
		MUST(groups >= 1 && groups <= 16, "1 <= groups <= 16");
		SET(stream_mix, .x = act(mul(groups, width)), .m = act(groups * groups),
		    .y = act(mul(groups, width)));
		break;
	case OP_stream_correct:
		MUST(groups >= 1 && groups <= 16, "1 <= groups <= 16");
		MUST(first < groups, "first < groups");
		SET(stream_correct, .x = act(mul(groups, width)), .a = act(width), .m = act(groups),
		    .y = act(mul(groups, width)));
		break;
	case OP_stream_add:
		MUST(groups >= 1 && groups <= 16, "1 <= groups <= 16");
		SET(stream_add, .x = act(mul(groups, width)), .z = act(width),
		    .y = act(mul(groups, width)));
		break;
	case OP_conv1d:
		MUST(taps >= 2, "taps >= 2");
		MUST(is_gate(a, n, "silu") || is_gate(a, n, "none"), "gate is silu or none");
		SET(conv1d, .x = act(width), .w = vec(mul(width, taps)), .b = vec(width),
		    .state = state(1, taps - 1, width), .y = act(width));
		break;
	case OP_delta_rule: {
		int64_t q = mul(k_heads, k_dim), v = mul(v_heads, v_dim), g = mul(v_heads, g_dim);
		MUST(v_heads % k_heads == 0, "v_heads is a multiple of k_heads");
		MUST(g_dim == 1 || g_dim == k_dim, "g_dim is 1 or k_dim");
		MUST(attr_num(a, n, "eps") > 0, "eps > 0");
		SET(delta_rule, .x = act(plus(mul(2, q), v)), .a = act(g), .b = act(v_heads),
		    .rate = vec(v_heads), .dt = vec(g), .state = state(v_heads, k_dim, v_dim),
		    .y = act(v));
		break;
	}
	case OP_selective_scan: {
		int64_t u = mul(heads, dim), part = mul(groups, n_state);
		double least = attr_num(a, n, "dt_min"), most = attr_num(a, n, "dt_max");
		MUST(groups >= 1 && heads % groups == 0, "heads is a multiple of groups");
		MUST(least >= 0 && (most == 0 || most >= least),
		     "0 <= dt_min <= dt_max, where dt_max is not 0");
		SET(selective_scan, .x = act(plus(u, mul(2, part))), .dt = act(heads),
		    .rate = vec(heads), .bias = vec(heads), .skip = vec(heads),
		    .state = state(heads, n_state, dim), .y = act(u));
		break;
	}
	case OP_channel_scan:
		SET(channel_scan, .x = act(width), .dt = act(width), .b = act(n_state),
		    .c = act(n_state), .rate = vec(mul(width, n_state)), .bias = vec(width),
		    .skip = vec(width), .state = state(1, width, n_state), .y = act(width));
		break;
	case OP_norm_gate:
		MUST(groups >= 1, "groups >= 1");
		MUST(is_gate(a, n, "silu") || is_gate(a, n, "sigmoid"), "gate is silu or sigmoid");
		SET(norm_gate, .x = act(mul(groups, dim)), .z = act(mul(groups, dim)),
		    .w = vec(strcmp(attr_word(a, n, "order"), "gate_first") ? dim
		                                                            : mul(groups, dim)),
		    .y = act(mul(groups, dim)));
		break;
	case OP_scale_cols:
		MUST(first + count <= width, "first + count <= width");
		SET(scale_cols, .x = act(width), .w = vec(1), .y = act(width));
		break;
	case OP_pos_scale:
		SET(pos_scale, .x = act(width), .y = act(width));
		break;
	case OP_expert_gain:
		MUST(top_k <= n_experts, "top_k <= n_experts");
		SET(expert_gain, .id = ids(top_k), .weight = act(top_k), .w = vec(n_experts),
		    .y = act(top_k));
		break;
	case OP_expert_input:
		SET(expert_input, .x = act(hidden), .weight = act(1), .y = act(hidden),
		    .one = act(1));
		break;
	case OP_softcap:
		MUST(attr_num(a, n, "softcap") >= 0, "softcap >= 0");
		SET(softcap, .x = act(width), .y = act(width));
		break;
	case OP_lora_down:
		SET(lora_down, .x = act(cols),
		    .a = stack(slots, 0, 1, mul(mul(count, rank), cols), 0),
		    .t = act(mul(count, rank)));
		break;
	case OP_lora_up:
		MUST(first < count, "first < count");
		SET(lora_up, .x = act(rows), .t = act(mul(count, rank)),
		    .b = stack(slots, 0, 1, mul(rank, rows), 0), .y = act(rows));
		break;
	case OP_lora_heads_down:
		MUST(cols <= width, "cols <= width");
		SET(lora_heads_down, .x = act(mul(heads, width)),
		    .a = stack(slots, 0, 1, mul(rank, plus(cols, mul(heads - 1, head_stride))), 0),
		    .t = act(mul(heads, rank)));
		break;
	case OP_lora_heads_up:
		MUST(cols <= width, "cols <= width");
		SET(lora_heads_up, .x = act(mul(heads, width)), .t = act(mul(heads, rank)),
		    .b = stack(slots, 0, 1, mul(rank, plus(cols, mul(heads - 1, head_stride))), 0),
		    .y = act(mul(heads, width)));
		break;
	case OP_lora_experts_down:
		MUST(top_k <= plus(n_experts, n_remote_experts),
		     "top_k <= n_experts + n_remote_experts");
		SET(lora_experts_down,
		    .x = act(attr_int(a, n, "per_group") ? mul(top_k, cols) : cols),
		    .id = ids(top_k),
		    .a = stack(mul(slots, n_experts), mul(slots, n_remote_experts), top_k,
		               mul(mul(count, rank), cols), 0),
		    .t = act(mul(top_k, mul(count, rank))));
		break;
	case OP_lora_experts_up:
		MUST(top_k <= plus(n_experts, n_remote_experts),
		     "top_k <= n_experts + n_remote_experts");
		SET(lora_experts_up, .t = act(mul(top_k, mul(count, rank))), .id = ids(top_k),
		    .b = stack(mul(slots, n_experts), mul(slots, n_remote_experts), top_k,
		               mul(mul(count, rank), rows), 0),
		    .y = act(mul(top_k, mul(count, rows))));
		break;
	case OP_lora_experts_add:
		MUST(top_k <= plus(n_experts, n_remote_experts),
		     "top_k <= n_experts + n_remote_experts");
		SET(lora_experts_add, .x = act(rows), .t = act(mul(top_k, rank)), .id = ids(top_k),
		    .weight = act(top_k),
		    .b = stack(mul(slots, n_experts), mul(slots, n_remote_experts), top_k,
		               mul(rank, rows), 0),
		    .y = act(rows));
		break;
	case OP_gather_rows:
		SET(gather_rows, .x = act(width), .y = act(width));
		break;
	case OP_merge_rows:
		MUST(mean <= 1, "mean <= 1");
		SET(merge_rows, .x = act(width), .y = act(mean ? width : mul(width, count)));
		break;
	case OP_scatter_rows:
		SET(scatter_rows, .x = act(width), .rows = act(width), .y = act(width));
		break;
	case OP_norm_matmul:
		SET(norm_matmul, .x = act(cols), .nw = vec(cols), .nb = vec(cols),
		    .w = mat(rows, cols), .b = vec(rows), .y = act(rows));
		break;
	case OP_matmul_add:
		SET(matmul_add, .x = act(cols), .w = mat(rows, cols), .b = vec(rows),
		    .r = act(rows), .y = act(rows));
		break;
	case OP_norm_qkv:
		MUST(rope_dims <= dim, "rope_dims <= dim");
		SET(norm_qkv, .x = act(hidden), .nw = vec(hidden), .nb = vec(hidden),
		    .w = mat(qkv_rows, hidden), .b = vec(qkv_rows), .qn = vec(dim), .kn = vec(dim),
		    .rope = angles(rope_dims), .kv = gqa(kv_heads, dim, dim), .q = act(heads * dim),
		    .done = order());
		break;
	case OP_mla_query: {
		int64_t plain = mul(heads, nope_dim + rope_dim), part = q_rank ? q_rank : plain,
		        latents = kv_rank + rope_dim;
		MUST(expand == 0 || nope_dim <= kv_rank, "nope_dim <= kv_rank where expand > 0");
		SET(mla_query, .a = act(part + (fused ? latents : 0)), .c = act(latents),
		    .qn = vec(part), .q_b = mat(plain, part), .kvn = vec(kv_rank),
		    .k_b = mat(mul(heads, nope_dim), kv_rank), .rope = angles(rope_dim),
		    .kv = latent(kv_rank, rope_dim), .q = act(mul(heads, latents)),
		    .done = order());
		break;
	}
	case OP_mla_attend:
		MUST(expand == 0 || (nope_dim <= kv_rank && v_dim <= kv_rank),
		     "nope_dim, v_dim <= kv_rank where expand > 0");
		MUST(expand != MLA_EXPAND_ALWAYS || index_top_k == 0,
		     "index_top_k needs the absorbed form: expand is not 1");
		SET(mla_attend, .q = act(mul(heads, kv_rank + rope_dim)),
		    .k_b = mat(mul(heads, nope_dim), kv_rank),
		    .v_b = mat(mul(heads, v_dim), kv_rank), .kv = latent(kv_rank, rope_dim),
		    .done = order(), .sel = ids(index_top_k), .o = act(mul(heads, kv_rank)));
		break;
	case OP_mla_value:
		MUST(expand == 0 || v_dim <= kv_rank, "v_dim <= kv_rank where expand > 0");
		SET(mla_value, .o = act(mul(heads, kv_rank)),
		    .v_b = mat(mul(heads, v_dim), kv_rank), .y = act(mul(heads, v_dim)));
		break;
	case OP_norm_glu:
		MUST(!is_xielu(a, n), "act is not xielu, which needs parameters");
		MUST(attr_num(a, n, "limit") >= 0, "limit >= 0");
		SET(norm_glu, .x = act(cols), .nw = vec(cols), .nb = vec(cols),
		    .w = mat(2 * rows, cols), .b = vec(2 * rows), .y = act(rows));
		break;
	case OP_norm_act:
		MUST(!is_glu(a, n) && !is_xielu(a, n),
		     "act is not swiglu_oai, silu_limit or xielu");
		SET(norm_act, .x = act(cols), .nw = vec(cols), .nb = vec(cols),
		    .w = mat(rows, cols), .b = vec(rows), .y = act(rows));
		break;
	case OP_norm_moe_glu:
		MUST(!is_xielu(a, n), "act is not xielu, which needs parameters");
		MUST(attr_num(a, n, "limit") >= 0, "limit >= 0");
		MUST(x_rows_per_token == 1 || x_rows_per_token == top_k,
		     "x_rows_per_token is 1 or top_k");
		MUST(x_rows_per_token == 1 ||
		         (shared == 0 && strcmp(attr_word(a, n, "norm"), "none") == 0),
		     "x_rows_per_token > 1 has no norm and no shared expert");
		SET(norm_moe_glu, .x = act(mul(x_rows_per_token, hidden)), .nw = vec(hidden),
		    .nb = vec(hidden), .id = ids(top_k),
		    .gate = stack(n_experts, n_remote_experts, top_k, width, hidden),
		    .up = stack(n_experts, n_remote_experts, top_k, width, hidden),
		    .gate_b = vec(mul(n_experts, width)), .up_b = vec(mul(n_experts, width)),
		    .s_gate = mat(shared, hidden), .s_up = mat(shared, hidden),
		    .add = act(mul(top_k, 2 * width)), .h = act(plus(mul(top_k, width), shared)));
		break;
	case OP_moe_down_add:
		MUST(shared_gate <= 1, "shared_gate <= 1");
		SET(moe_down_add, .h = act(plus(mul(top_k, width), shared)), .id = ids(top_k),
		    .weight = act(top_k + shared_gate),
		    .down = stack(n_experts, n_remote_experts, top_k, hidden, width),
		    .down_b = vec(mul(n_experts, hidden)), .s_down = mat(hidden, shared),
		    .r = act(hidden), .y = act(hidden));
		break;
	case OP_lm_head:
		SET(lm_head, .x = act(cols), .nw = vec(cols), .nb = vec(cols), .w = mat(rows, cols),
		    .logits = act(rows));
		break;
	case OP_all_reduce:
		SET(all_reduce, .x = act(width), .b = vec(width), .b2 = vec(width), .r = act(width),
		    .y = act(width));
		break;
	case OP_local_experts:
		MUST(first + count <= n_experts, "first + count <= n_experts");
		MUST(top_k <= n_experts, "top_k <= n_experts");
		SET(local_experts, .id = ids(top_k), .own = ids(top_k));
		break;
	case OP_stage_in:
		SET(stage_in, .y = act(hidden));
		break;
	case OP_send:
		MUST(width <= queued, "width <= queued");
		SET(send, .x = act(width), .sent = order());
		break;
	case OP_recv:
		MUST(width <= queued, "width <= queued");
		SET(recv, .y = act(width));
		break;
	case OP_all_gather: {
		int64_t from, own;
		MUST((width + unit - 1) / unit >= m->ranks, "at least one unit per rank");
		op_share(width, unit, m->ranks > 1 ? m->ranks : 1, m->ranks > 1 ? m->rank : 0,
		         &from, &own);
		SET(all_gather, .x = act(own), .y = act(width));
		break;
	}
	}
	return NULL;
}

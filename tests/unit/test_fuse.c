/* Fusion: ops that are fused, ops that must not be, and a second run that finds nothing more. */
#include "compiler_util.h"

#include "compiler/template/template.h"

static Graph *
fused(Bench *b, const char *family, const char *more)
{
	bench_spec(b, family, more);
	Graph *g = bench_graph(b);
	graph_fuse(g, NULL, NULL);
	return g;
}

static const char *
value_name(const Graph *g, int v)
{
	return v < 0 ? "-" : g->val[v].name;
}

/* Each block adds to the residual stream, which the next block reads. */
BENCH_TEST(fuse_keeps_the_residual_stream)
{
	Graph *g = fused(b, "llama", TINY_GQA TINY_FFN);

	assert_int_equal(g->n_op, 1 + 2 * 5 + 1);
	const Op *o = &g->op[3], *down = &g->op[5], *next = &g->op[6];
	assert_int_equal(o->kind, OP_matmul_add);
	assert_string_equal(value_name(g, o->arg[ARG(matmul_add, r)]), "x0");
	assert_string_equal(value_name(g, o->arg[ARG(matmul_add, y)]), "L0.mid");
	assert_int_equal(down->kind, OP_matmul_add);
	assert_int_equal(down->arg[ARG(matmul_add, r)], o->arg[ARG(matmul_add, y)]);
	assert_int_equal(next->arg[ARG(norm_qkv, x)], down->arg[ARG(matmul_add, y)]);
	assert_string_equal(value_name(g, next->arg[ARG(norm_qkv, x)]), "x1");
}

BENCH_TEST(a_second_run_finds_nothing)
{
	Graph *g = fused(b, "qwen3", TINY_GQA TINY_FFN);
	size_t n_op = g->n_op, n_tensor = g->n_tensor;

	assert_int_equal(graph_fuse(g, NULL, NULL), 0);
	assert_int_equal(g->n_op, n_op);
	assert_int_equal(g->n_tensor, n_tensor);
}

BENCH_TEST(qkv_absorbs_head_norms_and_rope)
{
	const Graph *g = fused(b, "qwen3", TINY_GQA TINY_FFN);
	const Op *op = graph_first(g, OP_norm_qkv);

	assert_string_equal(value_name(g, op->arg[ARG(norm_qkv, w)]), "L0.qkv");
	assert_string_equal(value_name(g, op->arg[ARG(norm_qkv, qn)]), "L0.q_norm");
	assert_string_equal(value_name(g, op->arg[ARG(norm_qkv, kn)]), "L0.k_norm");
	assert_string_equal(value_name(g, op->arg[ARG(norm_qkv, rope)]), "rope0");
	assert_string_equal(value_name(g, op->arg[ARG(norm_qkv, q)]), "L0.q_rope");
	assert_int_equal(op_int(op, "rope_dims"), 8);
	assert_int_equal(
	    graph_count(g, OP_rope) + graph_count(g, OP_rmsnorm) + graph_count(g, OP_kv_append), 0);
}

/* The outputs of a fused step keep their names from the unfused graph. */
BENCH_TEST(fused_outputs_keep_their_names)
{
	const Graph *g = fused(b, "llama", TINY_GQA TINY_FFN);
	const char *want[] = { "L0.q_rope", "L0.attn_in", "L0.q", "L0.k", "L0.k_rope", "L0.v" };
	const Op *op = graph_first(g, OP_norm_qkv);

	assert_int_equal(op->n_makes, 6);
	for (int i = 0; i < 6; i++)
		assert_string_equal(op->makes[i], want[i]);
}

BENCH_TEST(a_sandwich_norm_keeps_matmul_and_add_apart)
{
	const Graph *g = fused(b, "gemma2", TINY_GQA TINY_FFN);

	assert_int_equal(graph_count(g, OP_matmul_add), 0);
	assert_int_equal(graph_count(g, OP_add), 4);
	assert_int_equal(graph_count(g, OP_matmul), 4);
	assert_int_equal(graph_count(g, OP_norm_qkv), 2);
}

/* The residual branch reads the norm's output, so the norm remains a step, and no kernel repeats
 * it. */
BENCH_TEST(a_norm_that_the_residual_reads_stays)
{
	const Graph *g = fused(
	    b, "bloom", "attention: {n_heads: 4}\nffn: {width: 128}\nresidual: {from: norm}\n");

	assert_string_equal(op_word(graph_first(g, OP_norm_qkv), "norm"), "none");
	assert_string_equal(op_word(graph_first(g, OP_norm_act), "norm"), "none");
	assert_int_equal(graph_count(g, OP_layernorm), 1 + 2 * 2);
}

/* Two blocks share a norm: the kernels of both repeat the norm, and its own step is removed. */
BENCH_TEST(a_shared_norm_is_repeated)
{
	const Graph *g = fused(
	    b, "llama", TINY_GQA TINY_FFN "residual: {form: parallel}\nnorm: {ffn_in: false}\n");

	assert_string_equal(op_word(graph_first(g, OP_norm_qkv), "norm"), "rms");
	assert_string_equal(op_word(graph_first(g, OP_norm_glu), "norm"), "rms");
	assert_int_equal(graph_first(g, OP_norm_qkv)->arg[ARG(norm_qkv, nw)],
	                 graph_first(g, OP_norm_glu)->arg[ARG(norm_glu, nw)]);
	assert_int_equal(graph_count(g, OP_rmsnorm), 0);
}

/* Rows of one tensor have one type: if v has another one, the three stay separate in that layer,
 * and only there. */
BENCH_TEST(types_that_differ_are_not_stacked)
{
	const Graph *g =
	    fused(b, "llama",
	          TINY_GQA TINY_FFN
	          "storage: {default: q8_0, rules: [{tensor: v, layers: 1, type: q5_0}]}\n");

	assert_int_equal(graph_count(g, OP_norm_qkv), 1);
	assert_int_equal(graph_first(g, OP_norm_qkv)->layer, 0);
	assert_int_equal(graph_count(g, OP_norm_matmul), 3);
	assert_int_equal(graph_first(g, OP_norm_matmul)->layer, 1);
	assert_int_equal(graph_count(g, OP_rope), 2);
	assert_int_equal(graph_count(g, OP_kv_append), 1);
}

/* Six steps per layer, whatever the number of experts. */
BENCH_TEST(an_moe_layer_has_six_steps)
{
	bench_file(b, "mixtral");
	Graph *g = bench_graph(b);
	graph_fuse(g, NULL, NULL);

	int first = 0;
	while (g->op[first].kind != OP_norm_route)
		first++;
	const OpKind want[] = { OP_norm_qkv,   OP_attention,    OP_matmul_add,
		                OP_norm_route, OP_norm_moe_glu, OP_moe_down_add };
	for (int i = 0; i < 6; i++)
		assert_int_equal(g->op[first - 3 + i].kind, want[i]);
	const Op *route = &g->op[first], *glu = route + 1, *down = route + 2;
	assert_int_equal(graph_count(g, OP_rmsnorm) + graph_count(g, OP_moe_ffn) +
	                     graph_count(g, OP_moe_route) + graph_count(g, OP_add),
	                 0);
	assert_string_equal(op_word(route, "norm"), "rms");
	assert_string_equal(op_word(glu, "norm"), "rms");
	assert_int_equal(route->arg[ARG(norm_route, nw)], glu->arg[ARG(norm_moe_glu, nw)]);
	assert_int_equal(glu->arg[ARG(norm_moe_glu, s_gate)], -1);
	assert_int_equal(down->arg[ARG(moe_down_add, r)], glu->arg[ARG(norm_moe_glu, x)]);
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, weight)]),
	                    "L0.expert_weight");
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, y)]), "x1");
	assert_int_equal(op_int(glu, "shared"), 0);
	assert_int_equal(graph_fuse(g, NULL, NULL), 0);
}

/* The shared expert runs with the routed ones, and the row of its gate follows the rows of the
 * router. */
BENCH_TEST(a_shared_expert_joins_the_routed_ones)
{
	bench_file(b, "qwen2-moe");
	Graph *g = bench_graph(b);
	graph_fuse(g, NULL, NULL);

	const Op *route = graph_first(g, OP_norm_route), *glu = graph_first(g, OP_norm_moe_glu),
	         *down = graph_first(g, OP_moe_down_add);
	assert_int_equal(g->n_op, 1 + 5 + 6 + 1);
	assert_string_equal(value_name(g, route->arg[ARG(norm_route, w)]), "L1.router_mix");
	assert_int_equal(g->val[route->arg[ARG(norm_route, w)]].dim[0], 4 + 1);
	assert_int_equal(g->val[route->arg[ARG(norm_route, weight)]].dim[1], 2 + 1);
	assert_string_equal(value_name(g, glu->arg[ARG(norm_moe_glu, s_gate)]), "L1.s_gate");
	assert_string_equal(value_name(g, glu->arg[ARG(norm_moe_glu, s_up)]), "L1.s_up");
	assert_int_equal(g->val[glu->arg[ARG(norm_moe_glu, h)]].dim[1], 2 * 16 + 24);
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, s_down)]), "L1.s_down");
	assert_int_equal(op_int(down, "shared_gate"), 1);
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, y)]), "x2");
}

/* The gate has a type of its own: the routed experts' result is added to the shared expert's, and
 * both use the normed row. */
BENCH_TEST(a_shared_expert_may_stay_apart)
{
	bench_file(b, "qwen2-moe");
	b->spec->ffn.bias = false;
	Graph *g = bench_graph(b);
	for (size_t i = 0; i < g->n_val; i++)
		if (strcmp(g->val[i].name, "L1.s_mix") == 0 && g->val[i].kind == VAL_WEIGHT)
			g->tensor[g->val[i].tensor].dtype = DT_F32;
	graph_fuse(g, NULL, NULL);

	const Op *down = graph_first(g, OP_moe_down_add);
	assert_int_equal(op_int(graph_first(g, OP_norm_moe_glu), "shared"), 0);
	assert_int_equal(op_int(down, "shared_gate"), 0);
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, r)]), "L1.shared_gated");
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, y)]), "L1.ffn_out");
	assert_int_equal(graph_count(g, OP_gate_mul), 1);
	assert_int_equal(graph_count(g, OP_rmsnorm), 0);
}

/* With a norm after the experts, the fused op has no residual to add to. */
BENCH_TEST(an_moe_layer_may_have_no_residual)
{
	const Graph *g =
	    fused(b, "mixtral",
	          TINY_GQA "moe: {n_experts: 4, top_k: 2, width: 16}\nnorm: {ffn_out: true}\n"
	                   "tensors: {ffn_out_norm: .post_feedforward_layernorm}\n");
	const Op *down = graph_first(g, OP_moe_down_add);

	assert_int_equal(down->arg[ARG(moe_down_add, r)], -1);
	assert_string_equal(value_name(g, down->arg[ARG(moe_down_add, y)]), "L0.ffn_out");
	assert_int_equal(graph_count(g, OP_add), 2);
}

/* Templates for only two of the three ops do not fuse. */
BENCH_TEST(an_moe_layer_is_fused_completely_or_not)
{
	static const char route[] =
	    "//@op norm_route\n//@arg x in f32[n_tok, HIDDEN]\n//@arg nw? in f32[HIDDEN]\n//@arg "
	    "nb? in f32[HIDDEN]\n"
	    "//@arg w in packed\n//@arg bias? in f32[N_EXPERTS]\n//@arg id out i32[n_tok, TOP_K]\n"
	    "//@arg weight out f32[n_tok, TOP_K]\n";
	bench_file(b, "mixtral");
	Graph *g = bench_graph(b);
	Templates *ts = templates_none("cpu-v3", b->spec, &b->diag, &b->arena);

	assert_true(templates_add(ts, OP_norm_route, "test.c.in", route));
	assert_int_equal(graph_fuse(g, ts, NULL), 0);
	assert_int_equal(graph_count(g, OP_moe_ffn), 2);
}

BENCH_TEST(two_rope_axes_stay_on_their_own)
{
	bench_file(b, "chatglm1");
	Graph *g = bench_graph(b);
	graph_fuse(g, NULL, NULL);
	assert_int_equal(graph_count(g, OP_norm_qkv), 0);
	assert_int_equal(graph_count(g, OP_rope_2d), 4);
}

BENCH_TEST(head_with_a_bias_stays)
{
	const Graph *g = fused(b, "llama", TINY_GQA TINY_FFN "head: {bias: true}\n");

	assert_int_equal(graph_count(g, OP_lm_head), 0);
	assert_int_equal(graph_count(g, OP_gather_rows), 1);
	assert_string_equal(
	    value_name(g, g->op[g->n_op - 1].arg[op_info[g->op[g->n_op - 1].kind].n_in]), "logits");
}

BENCH_TEST(lm_head_absorbs_the_softcap)
{
	const Graph *g = fused(b, "gemma2", TINY_GQA TINY_FFN "head: {tied: true, cap: 30}\n");
	const Op *op = &g->op[g->n_op - 1];

	assert_int_equal(op->kind, OP_lm_head);
	assert_true(op_num(op, "softcap") == 30);
	assert_string_equal(value_name(g, op->arg[ARG(lm_head, w)]), "embed");
	assert_string_equal(value_name(g, op->arg[ARG(lm_head, logits)]), "logits");
}

/* Without a template nothing is fused, because fusion would only make the reference's steps
 * longer. */
BENCH_TEST(nothing_is_fused_without_templates)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	size_t n = g->n_op;

	assert_int_equal(
	    graph_fuse(g, templates_none("cpu-v3", b->spec, &b->diag, &b->arena), NULL), 0);
	assert_int_equal(g->n_op, n);
}

/* If the template has no fused norm, the norm remains its own step. */
BENCH_TEST(the_norm_stays_out_where_the_template_wants_it)
{
	static const char text[] =
	    "//@op norm_glu\n//@require NORM == none\n"
	    "//@arg x in f32[n_tok, COLS]\n//@arg nw? in f32[COLS]\n//@arg nb? in f32[COLS]\n"
	    "//@arg w in packed\n//@arg b? in f32[2*ROWS]\n//@arg y out f32[n_tok, ROWS]\n";
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Templates *ts = templates_none("cpu-v3", b->spec, &b->diag, &b->arena);

	assert_true(templates_add(ts, OP_norm_glu, "test.c.in", text));
	assert_int_equal(graph_fuse(g, ts, NULL), 2);
	assert_string_equal(op_word(graph_first(g, OP_norm_glu), "norm"), "none");
	assert_int_equal(graph_count(g, OP_rmsnorm), 2 * 2 + 1);
	assert_int_equal(graph_count(g, OP_matmul), 2 * 5 + 1);
}

#define TINY_MLA                                                                                   \
	"attention: {n_heads: 4, q_rank: 32, kv_rank: 32, nope_dim: 16, rope_dim: 8, v_dim: "      \
	"24}\nrope: {dims: 8}\nmoe: {n_experts: 0}\n"

BENCH_TEST(latent_attention_is_four_steps)
{
	const Graph *g = fused(b, "deepseek_v2", TINY_MLA TINY_FFN);
	const Op *a = graph_first(g, OP_norm_matmul), *query = graph_first(g, OP_mla_query),
	         *attend = graph_first(g, OP_mla_attend);

	assert_int_equal(g->n_op, 1 + 2 * 7 + 1);
	assert_string_equal(value_name(g, a->arg[ARG(norm_matmul, w)]), "L0.qkv_a");
	assert_string_equal(op_word(a, "norm"), "rms");
	assert_int_equal(op_int(a, "rows"), 32 + 32 + 8);
	assert_int_equal(query->arg[ARG(mla_query, a)], a->arg[ARG(norm_matmul, y)]);
	assert_int_equal(query->arg[ARG(mla_query, c)], -1);
	assert_string_equal(value_name(g, query->arg[ARG(mla_query, qn)]), "L0.q_a_norm");
	assert_string_equal(value_name(g, query->arg[ARG(mla_query, q_b)]), "L0.q_b");
	assert_int_equal(g->val[query->arg[ARG(mla_query, q)]].dim[1], 4 * (32 + 8));
	assert_int_equal(g->val[attend->arg[ARG(mla_attend, o)]].dim[1], 4 * 32);
	/* a query-key pair costs 2 * 32 + 8 absorbed and 16 + 8 + 24 expanded; expanding a position
	 * costs 32 * (16 + 24) */
	assert_int_equal(op_int(query, "expand"), (32 * 40 + 23) / 24);
	assert_int_equal(op_int(attend, "expand"), op_int(query, "expand"));
	assert_string_equal(value_name(g, graph_first(g, OP_mla_value)->arg[ARG(mla_value, y)]),
	                    "L0.attn");
	assert_int_equal(graph_count(g, OP_rope) + graph_count(g, OP_rmsnorm) +
	                     graph_count(g, OP_slice) + graph_count(g, OP_mla_append),
	                 0);
}

/* Query and latent weights of different types are two GEMMs, and the rest is the same. */
BENCH_TEST(latents_of_two_types_are_two_gemms)
{
	const Graph *g =
	    fused(b, "deepseek_v2",
	          TINY_MLA TINY_FFN
	          "storage: {default: q8_0, rules: [{tensor: kv_a, layers: 1, type: q5_0}]}\n");
	int n = 0;

	assert_int_equal(graph_count(g, OP_mla_query), 2);
	assert_int_equal(graph_count(g, OP_norm_matmul), 1 + 2);
	for (size_t i = 0; i < g->n_op; i++)
		if (g->op[i].kind == OP_mla_query) {
			assert_int_equal(op_int(&g->op[i], "fused"), n == 0);
			assert_string_equal(value_name(g, g->op[i].arg[ARG(mla_query, a)]),
			                    n == 0 ? "L0.qkv_a" : "L1.q_a");
			assert_string_equal(value_name(g, g->op[i].arg[ARG(mla_query, c)]),
			                    n == 0 ? "-" : "L1.kv_a");
			n++;
		}
}

/* In deterministic mode all rows use the absorbed form, because results must not depend on the
 * batch. */
BENCH_TEST(deterministic_latent_attention_is_absorbed)
{
	const Graph *g = fused(b, "deepseek_v2", TINY_MLA TINY_FFN "deterministic: true\n");

	assert_int_equal(op_int(graph_first(g, OP_mla_query), "expand"), 0);
	assert_int_equal(graph_first(g, OP_mla_attend)->arg[ARG(mla_attend, k_b)], -1);
	assert_int_equal(graph_first(g, OP_mla_attend)->arg[ARG(mla_attend, v_b)], -1);
}

/* If keys and values are as large as the latents, expansion saves nothing. */
BENCH_TEST(wide_heads_are_not_expanded)
{
	const Graph *g = fused(
	    b, "deepseek_v2",
	    "attention: {n_heads: 4, q_rank: 0, kv_rank: 16, nope_dim: 24, rope_dim: 8, v_dim: 8}\n"
	    "rope: {dims: 8}\nmoe: {n_experts: 0}\n" TINY_FFN);

	assert_int_equal(op_int(graph_first(g, OP_mla_query), "q_rank"), 0);
	assert_int_equal(op_int(graph_first(g, OP_mla_query), "expand"), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fuse_keeps_the_residual_stream),
		cmocka_unit_test(a_second_run_finds_nothing),
		cmocka_unit_test(qkv_absorbs_head_norms_and_rope),
		cmocka_unit_test(fused_outputs_keep_their_names),
		cmocka_unit_test(a_sandwich_norm_keeps_matmul_and_add_apart),
		cmocka_unit_test(a_norm_that_the_residual_reads_stays),
		cmocka_unit_test(a_shared_norm_is_repeated),
		cmocka_unit_test(types_that_differ_are_not_stacked),
		cmocka_unit_test(an_moe_layer_has_six_steps),
		cmocka_unit_test(a_shared_expert_joins_the_routed_ones),
		cmocka_unit_test(a_shared_expert_may_stay_apart),
		cmocka_unit_test(an_moe_layer_may_have_no_residual),
		cmocka_unit_test(an_moe_layer_is_fused_completely_or_not),
		cmocka_unit_test(two_rope_axes_stay_on_their_own),
		cmocka_unit_test(head_with_a_bias_stays),
		cmocka_unit_test(lm_head_absorbs_the_softcap),
		cmocka_unit_test(nothing_is_fused_without_templates),
		cmocka_unit_test(the_norm_stays_out_where_the_template_wants_it),
		cmocka_unit_test(latent_attention_is_four_steps),
		cmocka_unit_test(latents_of_two_types_are_two_gemms),
		cmocka_unit_test(deterministic_latent_attention_is_absorbed),
		cmocka_unit_test(wide_heads_are_not_expanded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

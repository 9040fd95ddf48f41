/* Selection of the template for an op, the layout of its weights, and the message if there is
 * none. */
#include "compiler_util.h"

#include "compiler/select_kernels.h"
#include "formats/layout.h"
#include "plan/target.h"

#define MATMUL_ARGS                                                                                \
	"//@arg x in f32[n_tok, COLS]\n//@arg w in packed\n//@arg b? in f32[ROWS]\n//@arg y out "  \
	"f32[n_tok, ROWS]\n"

static Templates *
matmul_only(Bench *b, const char *head)
{
	Templates *ts = templates_none("cpu-v3", b->spec, &b->diag, &b->arena);

	assert_true(templates_add(
	    ts, OP_matmul, "matmul.c.in",
	    arena_printf(&b->arena,
	                 "//@op matmul\n%s" MATMUL_ARGS
	                 "void ${SYMBOL}(void);\n/* ${ROWS} x ${COLS} ${W_DTYPE} */\n",
	                 head)));
	return ts;
}

static const PlanTensor *
tensor(const Graph *g, const char *id)
{
	for (size_t i = 0; i < g->n_tensor; i++)
		if (strcmp(g->tensor[i].id, id) == 0)
			return &g->tensor[i];
	fail_msg("no tensor %s", id);
	return NULL;
}

/* The seven matmuls of a layer have four shapes; more layers need no more kernels. */
BENCH_TEST(equal_steps_share_a_kernel)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Templates *ts = matmul_only(b, "");
	select_layouts(g, ts);
	Selection *sel = select_steps(g, ts, &b->diag);

	assert_non_null(sel);
	assert_int_equal(sel->n_kernel,
	                 4); /* 32x32 (q, o), 16x32 (k, v), 64x32 (gate, up), 32x64 (down) */
	for (int ph = 0; ph < PHASES; ph++)
		for (int i = 0; i < sel->n_step; i++)
			if (g->op[i].kind == OP_matmul && g->op[i].layer == 1)
				for (int k = 0; k < i; k++)
					if (g->op[k].kind == OP_matmul && g->op[k].layer == 0 &&
					    op_int(&g->op[k], "rows") ==
					        op_int(&g->op[i], "rows") &&
					    op_int(&g->op[k], "cols") == op_int(&g->op[i], "cols"))
						assert_int_equal(sel->step[ph][i].kernel,
						                 sel->step[0][k].kernel);
}

/* The template supports n_tok rows; the head works on the output rows, so the reference runs it. */
BENCH_TEST(templates_for_other_rows_are_not_used)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Selection *sel = select_steps(g, matmul_only(b, ""), &b->diag);

	assert_int_equal(g->op[g->n_op - 1].kind, OP_matmul);
	assert_int_equal(sel->step[0][g->n_op - 1].kernel, -1);
}

BENCH_TEST(one_warning_for_each_slow_op)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	select_steps(g, matmul_only(b, "//@phase decode\n"), &b->diag);
	const char *text = strbuf_str(&b->diag.text);
	int n = 0;

	for (const char *p = text; (p = strstr(p, "no tuned kernel for ")); p++)
		n++;
	/* embed rmsnorm matmul (mixed) rope kv_append attention add glu sample */
	assert_int_equal(n, 9);
	assert_int_equal(b->diag.n_warning, 9);
	assert_non_null(
	    strstr(text, "no tuned kernel for attention on cpu-v3: the slow reference runs it"));
}

BENCH_TEST(no_warnings_for_the_reference_target)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	assert_non_null(select_steps(bench_graph(b), NULL, &b->diag));
	assert_int_equal(b->diag.n_warning, 0);
}

BENCH_TEST(a_require_decides)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN "storage: {default: q8_0}\n");
	Graph *g = bench_graph(b);
	const Op *op = graph_first(g, OP_matmul);
	const Templates *yes = matmul_only(b, "//@require W_DTYPE in (q8_0, f16) and ROWS % 8 == 0 "
	                                      "and HAS_B == 0 and TARGET == v3\n");
	const Templates *no = matmul_only(b, "//@require W_DTYPE == f16\n");

	assert_non_null(templates_find(yes, g, op, PHASE_DECODE));
	assert_null(templates_find(no, g, op, PHASE_DECODE));
	assert_int_equal(b->diag.n_error, 0);
}

/* A weight of a GEMM is packed; a weight that is only gathered, or read only by the reference,
 * keeps the file's layout. */
BENCH_TEST(layouts_follow_the_use)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Templates *ts = matmul_only(b, "//@require ROWS == 16\n"); /* only k and v */
	select_layouts(g, ts);
	assert_string_equal(tensor(g, "embed")->layout, "row");
	assert_string_equal(tensor(g, "L0.q")->layout,
	                    target_layout(target_find("cpu-v3"), DT_BF16, 32, 32));
	assert_string_equal(tensor(g, "L0.attn_norm")->layout, "f32");
	select_steps(g, ts, &b->diag);
	assert_string_equal(tensor(g, "L0.k")->layout,
	                    target_layout(target_find("cpu-v3"), DT_BF16, 16, 32));
	assert_string_not_equal(tensor(g, "L0.k")->layout, "row");
	assert_string_equal(tensor(g, "L0.q")->layout, "row");
	assert_string_equal(tensor(g, "L0.attn_norm")->layout, "f32");
}

BENCH_TEST(a_tied_embedding_is_in_memory_once)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN "head: {tied: true}\n");
	Graph *g = bench_graph(b);
	select_layouts(g, templates_none("cpu-v3", b->spec, &b->diag, &b->arena));
	assert_int_equal(g->op[0].kind, OP_embed);
	assert_int_equal(g->op[0].arg[ARG(embed, w)], g->op[g->n_op - 1].arg[ARG(matmul, w)]);
	assert_string_equal(tensor(g, "embed")->layout,
	                    target_layout(target_find("cpu-v3"), DT_BF16, 96, 32));
}

/* Transposition would break up quantised blocks, so packing expands them. Rows of the file may be a
 * multiple of the block size even if the tensor's are not. */
BENCH_TEST(transposed_blocks_are_expanded)
{
	bench_spec(b, "deepseek_v2",
	           "checkpoint: gguf\nattention: {n_heads: 2, kv_rank: 40, nope_dim: 32, rope_dim: "
	           "8, v_dim: 32}\nrope: {dims: 8}\n"
	           "moe: {n_experts: 0}\nffn: {width: 64}\nstorage: {default: q8_0, rules: "
	           "[{tensor: v_b, type: f16}]}\n");
	Graph *g = bench_graph(b);
	const Templates *ts = templates_none("cpu-v3", b->spec, &b->diag, &b->arena);
	int n = 0;

	for (size_t i = 0; i < g->n_tensor; i++) {
		PlanTensor t = g->tensor[i];
		bool k_b = strcmp(t.id, "L0.k_b") == 0 || strcmp(t.id, "L1.k_b") == 0;
		n += k_b;
		assert_true(k_b == (t.src[0].stored != NULL));
		if (!k_b)
			continue;
		assert_string_equal(t.src[0].stored, "q8_0");
		assert_int_equal(t.dtype, DT_F16);
		assert_int_equal(t.rows, 2 * 32);
		assert_int_equal(t.cols, 40);
		assert_int_equal(t.src[0].cols, 32);
		templates_layout(ts, &t);
		assert_string_equal(t.layout, "r8");
	}
	assert_int_equal(n, 2);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_steps_share_a_kernel),
		cmocka_unit_test(templates_for_other_rows_are_not_used),
		cmocka_unit_test(one_warning_for_each_slow_op),
		cmocka_unit_test(no_warnings_for_the_reference_target),
		cmocka_unit_test(a_require_decides),
		cmocka_unit_test(layouts_follow_the_use),
		cmocka_unit_test(a_tied_embedding_is_in_memory_once),
		cmocka_unit_test(transposed_blocks_are_expanded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

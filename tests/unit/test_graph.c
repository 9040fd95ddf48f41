/* build, infer, verify: the graph of each primitive against its golden text, and rejected
 * descriptions. */
#include "compiler_util.h"

#include "base/file.h"

/* Unfused graph, then the graph with every valid fusion. LLMC_GOLDEN=1 writes the files instead;
 * review the diff. */
static void
check_golden(Bench *b, int n)
{
	const char *name = tiny_models[n];
	Strbuf have = { 0 }, want = { 0 }, path = { 0 };
	llmc_error err;

	bench_file(b, name);
	Graph *g = bench_graph(b);
	graph_dump(g, &have);
	strbuf_puts(&have, "\n--- fused ---\n\n");
	graph_fuse(g, NULL, NULL);
	graph_dump(g, &have);
	strbuf_printf(&path, "tests/golden/graphs/%s.graph", name);
	if (getenv("LLMC_GOLDEN")) {
		assert_int_equal(file_write(strbuf_str(&path), have.data, have.len, &err), LLMC_OK);
	} else {
		if (file_read(strbuf_str(&path), 1 << 24, &want, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		if (strcmp(strbuf_str(&have), strbuf_str(&want)) != 0) {
			size_t k = 0, line = 1;
			for (; have.data[k] && have.data[k] == want.data[k]; k++)
				line += have.data[k] == '\n';
			fail_msg("%s: line %zu differs: \"%.80s\"", strbuf_str(&path), line,
			         have.data + k);
		}
	}
	strbuf_release(&have);
	strbuf_release(&want);
	strbuf_release(&path);
}

static void
graphs_equal_their_goldens(void **state)
{
	(void)state;
	for (int i = 0; i < N_TINY; i++)
		bench_run(check_golden, i);
}

BENCH_TEST(row_counts_change_only_at_gather_rows)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	const Graph *g = bench_graph(b);
	bool picked = false;
	for (size_t i = 0; i < g->n_op; i++) {
		picked |= g->op[i].kind == OP_gather_rows;
		const Value *v = &g->val[g->op[i].arg[op_info[g->op[i].kind].n_in]];
		if (v->kind == VAL_ACT)
			assert_int_equal(v->rows, picked ? SYM_n_out : SYM_n_tok);
	}
	assert_true(picked);
	assert_string_equal(g->val[g->op[g->n_op - 1].arg[ARG(matmul, y)]].name, "logits");
}

BENCH_TEST(missing_tensor_name_is_an_error)
{
	/* llama's tensor map has no sandwich norms */
	bench_spec(b, "llama", TINY_GQA TINY_FFN "norm: {attn_out: true}\n");
	assert_null(graph_build(b->spec, &b->diag, &b->arena));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "attn_out_norm"));
}

BENCH_TEST(rows_must_be_whole_blocks)
{
	bench_spec(b, "llama", TINY_GQA "ffn: {width: 48}\nstorage: {default: q4_0}\n");
	assert_null(graph_build(b->spec, &b->diag, &b->arena));
	assert_non_null(
	    strstr(strbuf_str(&b->diag.text), "rows of down in layer 0 have 48 elements"));
}

/* Sizes that would overflow later are rejected at the start. */
BENCH_TEST(absurd_sizes_are_refused)
{
	bench_spec(b, "mixtral", TINY_GQA "moe: {n_experts: 65536, top_k: 2, width: 16777216}\n");
	b->spec->hidden = 1 << 20;
	assert_null(graph_build(b->spec, &b->diag, &b->arena));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "2^50 weights"));
	b->spec->n_layers = 4096;
	assert_null(graph_build(b->spec, &b->diag, &b->arena));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "moe.n_experts = 65536 in 4096 layers"));
}

/* q, k and v are in one tensor, stacked head by head; each of them has some rows of every head. */
#define TINY_LINEAR                                                                                \
	TINY_GQA TINY_FFN "linear: {layers: [0], k_heads: 2, v_heads: 4, k_dim: 8, v_dim: 8}\n"

/* q, k and v of a delta rule are one GEMM: the columns of x are reordered once */
BENCH_TEST(inputs_of_a_delta_rule_are_permuted_once)
{
	bench_spec(b, "qwen3_next",
	           TINY_LINEAR "storage: {rules: [{tensor: lin_q, type: u4_32, order: lin_q}, "
	                       "{tensor: lin_k, type: u4_32, order: lin_q}, "
	                       "{tensor: lin_v, type: u4_32, order: lin_q}, {tensor: lin_z, type: "
	                       "u4_32, order: lin_q}]}\n");
	const Graph *g = bench_graph(b);
	const Op *permute = graph_first(g, OP_permute_cols), *first = graph_first(g, OP_matmul);
	assert_int_equal(graph_count(g, OP_permute_cols), 1);
	assert_string_equal(g->val[first->arg[ARG(matmul, y)]].name, "L0.lin_qkv");
	assert_int_equal(first->arg[ARG(matmul, x)], permute->arg[ARG(permute_cols, y)]);
	bench_spec(b, "qwen3_next",
	           TINY_LINEAR "storage: {rules: [{tensor: lin_q, type: u4_32, order: lin_q}, "
	                       "{tensor: lin_k, type: u4_32}, {tensor: lin_v, type: u4_32}]}\n");
	assert_null(graph_build(b->spec, &b->diag, &b->arena));
	assert_non_null(strstr(strbuf_str(&b->diag.text),
	                       "q, k and v before a convolution must share one "
	                       "column order and one factor"));
}

BENCH_TEST(stacked_heads_are_split)
{
	bench_file(b, "gpt-neox");
	const Graph *g = bench_graph(b);
	int seen = 0;
	for (size_t i = 0; i < g->n_tensor; i++) {
		const PlanTensor *t = &g->tensor[i];
		const char *part = "qkv",
		           *at = strncmp(t->id, "L0.", 3) == 0 ? strchr(part, t->id[3]) : NULL;
		if (!at || t->id[4] != 0)
			continue;
		assert_int_equal(t->n_src, 1);
		assert_int_equal(t->src->rows, 96);
		assert_int_equal(t->src->first, 8 * (at - part));
		assert_int_equal(t->src->block, 8);
		assert_int_equal(t->src->stride, 24);
		assert_int_equal(t->src->n_block, 4);
		seen++;
	}
	assert_int_equal(seen, 3);
}

static void
verify_it(Bench *b, void *g)
{
	(void)b;
	graph_verify(g, "test");
}

static void
check_fault(Bench *b, int fault)
{
	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Graph *g = bench_graph(b);
	Op *op = &g->op[2];

	if (fault == 0) /* reads a value that is produced later */
		op->arg[ARG(matmul, x)] = g->op[9].arg[op_info[g->op[9].kind].n_in];
	else if (fault == 1) /* lacks its weight */
		op->arg[ARG(matmul, w)] = -1;
	else if (fault == 2) /* an attribute that contradicts the weight */
		op->attr[0].i++;
	else /* has no shape */
		op->n_attr--;
	assert_true(bench_bugs(b, verify_it, g));
}

static void
verify_finds_a_broken_graph(void **state)
{
	(void)state;
	for (int fault = 0; fault < 4; fault++)
		bench_run(check_fault, fault);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(graphs_equal_their_goldens),
		cmocka_unit_test(row_counts_change_only_at_gather_rows),
		cmocka_unit_test(missing_tensor_name_is_an_error),
		cmocka_unit_test(rows_must_be_whole_blocks),
		cmocka_unit_test(absurd_sizes_are_refused),
		cmocka_unit_test(inputs_of_a_delta_rule_are_permuted_once),
		cmocka_unit_test(stacked_heads_are_split),
		cmocka_unit_test(verify_finds_a_broken_graph),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

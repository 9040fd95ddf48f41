/* Models on a GPU and the CPU: each tensor has one reader, what one device sends the other
 * receives, and inconsistent plans are rejected. */
#include "tests/unit/compiler_util.h"

static const Plan *
plan_of(Bench *b, const Spec *s, int partition)
{
	const Compiled *c = s ? compile_rank(s, partition ? "cpu-v3" : "cuda-sm_80", partition,
	                                     true, &b->diag, &b->arena)
	                      : NULL;

	return c ? c->plan : NULL;
}

static const PlanTensor *
tensor_of(const Plan *p, const char *id)
{
	for (int i = 0; i < p->n_tensor; i++)
		if (strcmp(p->tensor[i].id, id) == 0)
			return &p->tensor[i];
	return NULL;
}

/* Widths of the values of an op, in order */
static int
crossings(const Plan *p, OpKind op, int64_t width[64])
{
	int n = 0;

	for (int i = 0; i < p->phase[1].n_step; i++)
		if (p->phase[1].step[i].op == op && n < 64)
			width[n++] = step_int(&p->phase[1].step[i], "width");
	return n;
}

static void
check_pair(const Plan *gpu, const Plan *cpu)
{
	int64_t sent[64], got[64];
	llmc_error err = { 0 };

	for (int way = 0; way < 2; way++) {
		const int n = crossings(way ? cpu : gpu, OP_send, sent);
		assert_int_equal(crossings(way ? gpu : cpu, OP_recv, got), n);
		assert_memory_equal(sent, got, (size_t)n * sizeof *sent);
	}
	assert_true(gpu->partition == 0 && cpu->partition == 1 && gpu->partitions == 2 &&
	            cpu->partitions == 2 && gpu->n_params == cpu->n_params);
	for (int k = 0; k < 2; k++)
		if (plan_check(k ? cpu : gpu, &err) != LLMC_OK)
			fail_msg("partition %d: %s", k, err.text);
	/* an embedding that is also the head is on both devices */
	for (int i = 0; i < gpu->n_tensor; i++)
		assert_true(!tensor_of(cpu, gpu->tensor[i].id) ||
		            !strncmp(gpu->tensor[i].id, "embed", 5));
}

BENCH_TEST(layers_of_the_cpu_are_not_on_the_gpu)
{
	static const char *const model[] = { "llama", "gemma2", "gpt2", "deepseek-v2" };

	for (size_t m = 0; m < sizeof model / sizeof *model; m++) {
		const char *const set[] = { "placement.gpu_layers=1", NULL };
		const Spec *s =
		    spec_from_file(arena_printf(&b->arena, "tests/golden/graphs/%s.yaml", model[m]),
		                   set, &b->diag, &b->arena);
		const Plan *gpu = plan_of(b, s, 0), *cpu = plan_of(b, s, 1);
		int64_t width[64];
		assert_true(gpu && cpu);
		check_pair(gpu, cpu);
		/* one value: the residual stream between the layers */
		assert_int_equal(crossings(cpu, OP_send, width), 1);
		assert_int_equal(width[0], s->hidden);
		assert_int_equal(crossings(gpu, OP_send, width), 0);
		for (int i = 0; i < cpu->phase[0].n_step; i++)
			assert_true(cpu->phase[0].step[i].layer < s->n_layers - 1);
	}
}

BENCH_TEST(experts_of_the_cpu_are_not_on_the_gpu)
{
	const char *const set[] = { "placement.cpu.experts=all", NULL };
	const Spec *s =
	    spec_from_file("tests/golden/graphs/qwen2-moe.yaml", set, &b->diag, &b->arena);
	const Plan *gpu = plan_of(b, s, 0), *cpu = plan_of(b, s, 1);
	int64_t width[64];

	assert_true(gpu && cpu);
	check_pair(gpu, cpu);
	int moe = 0;
	for (int l = 0; l < s->n_layers; l++)
		moe += s->moe.layer_in[l];
	assert_int_equal(crossings(gpu, OP_send, width), moe);
	assert_int_equal(crossings(gpu, OP_recv, width), moe);
	for (int i = 0; i < cpu->n_tensor; i++)
		assert_true(strstr(cpu->tensor[i].id, ".e_") ||
		            strstr(cpu->tensor[i].id, ".router"));
	assert_int_equal(cpu->n_pool, 0);
	/* the shared expert runs between the send and the recv of its layer */
	const PlanPhase *ph = &gpu->phase[1];
	int between = 0, open = 0;
	for (int i = 0; i < ph->n_step; i++) {
		open += ph->step[i].op == OP_send;
		open -= ph->step[i].op == OP_recv;
		between += open && ph->step[i].op != OP_send;
	}
	assert_true(between >= 2);
}

static const struct {
	const char *from, *to, *text;
} edits[] = {
	{ "\"partition\":0", "\"partition\":2", "partition: is 2" },
	{ "\"partitions\":2", "\"partitions\":3", "partitions: is 3" },
	{ "\"partition\":0,\"partitions\":2,\"window\":16,", "",
	  "recv: the plan is for one device" },
	{ "\"window\":16", "\"window\":15", "keeps 16 positions, but window is 15" },
	{ "\"window\":16,", "", "window" },
	{ "\"width\":32,\"queued\":32", "\"width\":64,\"queued\":32",
	  "recv: attributes violate the rule width <= queued" },
	{ "\"width\":32,\"queued\":32", "\"width\":64,\"queued\":64", "does not hold 64" },
	{ "\"partition\":0,", "\"output\":\"labels\",\"partition\":0,", "output" },
};

BENCH_TEST(inconsistent_plans_of_two_devices_are_rejected)
{
	Strbuf json = { 0 };
	llmc_error err = { 0 };
	Plan *q;

	bench_spec(b, "llama",
	           "attention: {n_heads: 6, n_kv_heads: 3, head_dim: 8, window: 16}\nffn: {width: "
	           "48}\nplacement: {gpu_layers: 1}\n");
	const Plan *p = plan_of(b, b->spec, 0);
	assert_non_null(p);
	plan_write(p, &json);
	for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
		const char *at = strstr(json.data, edits[i].from);
		if (!at)
			fail_msg("the plan does not hold %s", edits[i].from);
		const char *text = arena_printf(&b->arena, "%.*s%s%s", (int)(at - json.data),
		                                json.data, edits[i].to, at + strlen(edits[i].from));
		if (plan_read(text, strlen(text), "p.json", &b->arena, &q, &err) != LLMC_E_INPUT)
			fail_msg("%s is taken", edits[i].to);
		if (!strstr(err.text, edits[i].text))
			fail_msg("%s\n  expected: %s", err.text, edits[i].text);
	}
	strbuf_release(&json);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(layers_of_the_cpu_are_not_on_the_gpu),
		cmocka_unit_test(experts_of_the_cpu_are_not_on_the_gpu),
		cmocka_unit_test(inconsistent_plans_of_two_devices_are_rejected),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

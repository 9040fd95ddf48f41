/* Plans for GPUs: one passes through the reader unchanged, and the buffers of library GEMMs are
 * checked like those of a kernel. Edits replace the first occurrence of a string. */
#include "compiler_util.h"
#include "runtime/runtime.h"

static llmc_status
read_text(const char *text, Arena *a, Plan **out, llmc_error *err)
{
	arena_init(a);
	*err = (llmc_error){ 0 };
	if (setjmp(a->oom))
		return LLMC_E_MEMORY;
	return plan_read(text, strlen(text), "p.json", a, out, err);
}

static const char *
plan_text(Bench *b)
{
	Strbuf out = { 0 };

	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	const Compiled *c = compile_spec(b->spec, "cuda-sm_80", NULL, NULL, &b->diag, &b->arena);
	assert_non_null(c);
	plan_write(c->plan, &out);
	assert_false(out.failed);
	const char *text = arena_strdup(&b->arena, out.data);
	strbuf_release(&out);
	return text;
}

static int
count_gemms(const Plan *p)
{
	int n = 0;

	for (int i = 0; i < p->n_kernel; i++)
		n += plan_library_gemm(&p->kernel[i]) != NULL;
	return n;
}

BENCH_TEST(a_plan_is_read_back_unchanged)
{
	const char *text = plan_text(b);
	Strbuf again = { 0 };
	llmc_error err;
	Arena a;
	Plan *p;

	if (read_text(text, &a, &p, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	assert_int_equal(count_gemms(p), 4); /* in mixed steps: q/k/v, o, gate and up, down */
	plan_write(p, &again);
	assert_string_equal(again.data, text);
	strbuf_release(&again);
	arena_release(&a);
}

#define FIRST                                                                                      \
	"\"product\":{\"act\":11,\"w\":3,\"y\":15,\"add\":-1,\"beta\":0.0}" /* q, k, v: 64 rows of \
	                                                                       32 */

static const struct {
	const char *from, *to, *text;
} bad[] = {
	{ "\"act\":11", "\"act\":16", "launch[3].product.act: is 16, expected 0 .. 15" },
	{ "\"act\":5,\"w\":1", "\"act\":15,\"w\":1",
	  "a product must use arguments of this kernel" },
	{ "\"act\":11", "\"act\":0",
	  "act of a product must be an input or scratch with rows of f16 or bf16" },
	{ "\"act\":11", "\"act\":13",
	  "act of a product must be an input or scratch with rows of f16 or bf16" },
	{ "\"act\":11,\"w\":3", "\"act\":11,\"w\":0",
	  "w of a product must be a packed weight matrix" },
	{ "\"y\":15,", "\"y\":11,", "y of a product must be" },
	{ "\"y\":15,", "\"y\":0,", "y of a product must be" },
	{ "\"y\":15,", "\"y\":9,", "the library GEMM needs [32, 32]" }, /* q: too narrow */
	{ "\"add\":-1", "\"add\":-2", "is -2, expected -1 .. 15" },
	{ "\"add\":-1", "\"add\":0", "with the columns of y" },
	{ "\"beta\":0.0", "\"beta\":0", "expected a number with a point" },
	{ FIRST, FIRST ",\"fn\":\"x\"", "unknown key \"fn\"" },
	{ FIRST, "\"product\":{\"act\":11,\"w\":3,\"y\":15,\"add\":-1}",
	  "product.beta: is missing" },
	{ FIRST, "\"product\":3", "launch[3].product: is an integer" },
	{ "\"rows\":\"n_tok\"", "\"rows\":\"n_toks\"", "\"n_toks\" is not a symbol" },
	{ "\"most\":64", "\"most\":-1", "most: is -1" },
	{ "\"path\":\"own\"", "\"path\":\"both\"", "\"both\" is not any, own or library" },
	{ "{" FIRST "},", "", "a kernel without a product must have path any" },
	{ "{" FIRST "},", "{" FIRST "},{" FIRST "},", "at most one product" },
	{ "\"name\":\"raw\",\"dir\":\"scratch\",\"type\":\"f32\",\"extent\":{\"n_tok\":64}",
	  "\"name\":\"raw\",\"dir\":\"scratch\",\"type\":\"f32\",\"extent\":{\"n_tok\":56}",
	  "the library GEMM needs [56, 32]" },
	{ "\"name\":\"raw\",\"dir\":\"scratch\",\"type\":\"f32\",\"extent\":{\"n_tok\":64}",
	  "\"name\":\"raw\",\"dir\":\"scratch\",\"type\":\"f32\",\"extent\":{\"n_tok\":[64,2]}",
	  "y of a product must be" },
};

BENCH_TEST(each_broken_field_is_named)
{
	const char *text = plan_text(b);

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *at = strstr(text, bad[i].from);
		llmc_error err;
		Arena a;
		Plan *p;
		if (!at)
			fail_msg("the plan does not hold %s", bad[i].from);
		const char *other = arena_printf(&b->arena, "%.*s%s%s", (int)(at - text), text,
		                                 bad[i].to, at + strlen(bad[i].from));
		llmc_status s = read_text(other, &a, &p, &err);
		if (s != LLMC_E_INPUT || !strstr(err.text, bad[i].text))
			fail_msg("%s -> %s: expected %s, got: %s", bad[i].from, bad[i].to,
			         bad[i].text, s == LLMC_OK ? "(taken)" : err.text);
		arena_release(&a);
	}
}

/* The library reads 16-bit weights in file order; f32 tensors keep their type. */
BENCH_TEST(weights_of_a_library_gemm)
{
	const char *text = plan_text(b);
	static const char *const want[] = { "is bf16 in layout f32, a library multiplies by",
		                            "is f32 in layout row, a library multiplies by",
		                            "a library stores f32 or the type of the weights" };
	llmc_error err;
	Arena a;
	Plan *p;

	for (int i = 0; i < 3; i++) {
		assert_int_equal(read_text(text, &a, &p, &err), LLMC_OK);
		for (int k = 0; k < p->phase[1].n_step; k++) {
			const PlanStep *s = &p->phase[1].step[k];
			if (s->op != (i == 2 ? OP_norm_glu : OP_norm_qkv))
				continue;
			PlanTensor *t = &p->tensor[s->arg[3].index];
			if (i == 0)
				t->layout = "f32";
			else
				t->dtype = i == 1 ? DT_F32 : DT_F16;
		}
		assert_int_equal(plan_check(p, &err), LLMC_E_INPUT);
		if (!strstr(err.text, want[i]))
			fail_msg("expected %s, got: %s", want[i], err.text);
		arena_release(&a);
	}
}

static void
persistent_grid(Plan *p)
{
	p->kernel[p->persistent.kernel].launch[0].grid[0].sym = SYM_one;
}

static void
persistent_threads(Plan *p)
{
	p->kernel[p->persistent.kernel].launch[0].block = 128;
}

static void
persistent_other(Plan *p)
{
	p->persistent.kernel = p->persistent.body[1];
}

static void
persistent_shared(Plan *p)
{
	p->kernel[p->persistent.kernel].launch[0].shared -= 16;
}

static void
persistent_wide(Plan *p)
{
	p->kernel[p->persistent.body[1]].launch[0].block = 512;
}

static void
persistent_launches(Plan *p)
{
	PlanKernel *k = &p->kernel[p->persistent.body[1]];

	k->launch[k->n_launch++] = k->launch[0];
}

static void
persistent_fewer(Plan *p)
{
	p->persistent.n_body--;
}

static void
persistent_short(Plan *p)
{
	p->phase[0].n_step = 1;
}

/* A kernel of a persistent step runs every op, each with its own body. */
BENCH_TEST(a_persistent_step_is_checked)
{
	static const char yaml[] =
	    "llmc: 1\nname: tiny\nfamily: llama\nvocab_size: 96\nmax_positions: 64\nn_layers: "
	    "2\nhidden: 64\nstep: {persistent: always}\n"
	    "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 16}\nffn: {width: 128}\n";
	static const struct {
		void (*edit)(Plan *p);
		const char *text;
	} wrong[] = {
		{ persistent_grid, "one launch of a CTA of 256 threads per SM" },
		{ persistent_threads, "one launch of a CTA of 256 threads per SM" },
		{ persistent_other, "needs no arguments" },
		{ persistent_shared, "cannot run the body of" },
		{ persistent_wide, "cannot run the body of norm_qkv" },
		{ persistent_launches, "cannot run the body of norm_qkv" },
		{ persistent_fewer, "of phase decode has no body" },
		{ persistent_short, "a step of fewer than two ops" },
	};
	Strbuf text = { 0 }, again = { 0 };
	llmc_error err;
	Arena a;
	Plan *p;

	b->spec = spec_from_text("tiny.yaml", yaml, sizeof yaml - 1, NULL, &b->diag, &b->arena);
	const Compiled *c = compile_spec(b->spec, "cuda-sm_80", NULL, NULL, &b->diag, &b->arena);
	assert_non_null(c);
	assert_true(c->plan->persistent.n_body >= 6); /* layers share their bodies */
	plan_write(c->plan, &text);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		if (read_text(text.data, &a, &p, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		strbuf_clear(&again);
		plan_write(p, &again);
		assert_string_equal(again.data, text.data);
		wrong[i].edit(p);
		if (plan_check(p, &err) != LLMC_E_INPUT || !strstr(err.text, wrong[i].text))
			fail_msg("%zu: expected %s, got: %s", i, wrong[i].text, err.text);
		arena_release(&a);
	}
	char *at = strstr(strstr(text.data, "\"body\":["), "embed.");
	at[0] = 'X';
	assert_int_equal(read_text(text.data, &a, &p, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "is not a kernel of this plan"));
	arena_release(&a);
	strbuf_release(&text);
	strbuf_release(&again);
}

/* Decode kernels store partial results per SM: a session allocates enough for those of any GPU. */
BENCH_TEST(memory_per_sm)
{
	static const char yaml[] =
	    "llmc: 1\nname: tiny\nfamily: llama\nvocab_size: 96\nmax_positions: 64\nn_layers: "
	    "1\nhidden: 64\n"
	    "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 16}\nffn: {width: 128}\n";
	llmc_memory with = LLMC_INIT(llmc_memory), without = LLMC_INIT(llmc_memory);
	int64_t each = 0;

	b->spec = spec_from_text("tiny.yaml", yaml, sizeof yaml - 1, NULL, &b->diag, &b->arena);
	const Compiled *c = compile_spec(b->spec, "cuda-sm_80", NULL, NULL, &b->diag, &b->arena);
	assert_non_null(c);
	assert_int_equal(session_memory(c->plan, NULL, &with, NULL), LLMC_OK);
	for (int i = 0; i < c->plan->n_slot; i++) {
		PlanExtent *e = &c->plan->slot[i];
		if (e->sym != SYM_n_sm)
			continue;
		each += e->mul;
		*e = (PlanExtent){ SYM_one, 0, 1 };
	}
	assert_true(each > 0);
	assert_int_equal(session_memory(c->plan, NULL, &without, NULL), LLMC_OK);
	assert_true(with.scratch - without.scratch >= each * 224); /* the largest GPU */
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plan_is_read_back_unchanged),
		cmocka_unit_test(each_broken_field_is_named),
		cmocka_unit_test(weights_of_a_library_gemm),
		cmocka_unit_test(a_persistent_step_is_checked),
		cmocka_unit_test(memory_per_sm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

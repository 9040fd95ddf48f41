/* Values that mixed steps store in bf16, in both phases of the resulting plan. */
#include "compiler_util.h"

#include "compiler/template/template.h"

typedef struct Case {
	const char *target, *more; /* lines of YAML */
	OpKind makes;
	int arg; /* argument of the op: the value under test */
	Dtype decode, mixed;
} Case;

#define GLU OP_norm_glu, ARG(norm_glu, y)
#define EXPERTS                                                                                    \
	"attention: {n_heads: 4, n_kv_heads: 2, head_dim: 8}\nmoe: {n_experts: 4, top_k: 2, "      \
	"width: 64}\n"

static const Case cases[] = {
	{ "cuda-sm_80", TINY_GQA TINY_FFN, GLU, DT_F32, DT_BF16 },
	{ "cuda-sm_90a", TINY_GQA TINY_FFN, GLU, DT_F32, DT_BF16 },
	{ "cuda-sm_120a", TINY_GQA TINY_FFN, GLU, DT_F32, DT_BF16 },
	/* decode steps run the mixed kernels */
	{ "cuda-sm_90a", TINY_GQA TINY_FFN "deterministic: true\n", GLU, DT_BF16, DT_BF16 },
	/* no tensor cores for bf16; weight format with a scale per activation row; fp32 weights */
	{ "cuda-sm_75", TINY_GQA TINY_FFN, GLU, DT_F32, DT_F32 },
	{ "cuda-sm_90a", TINY_GQA TINY_FFN "storage: {default: f16}\n", GLU, DT_F32, DT_F32 },
	{ "cuda-sm_90a", TINY_GQA TINY_FFN "storage: {default: q8_0}\n", GLU, DT_F32, DT_F32 },
	{ "cuda-sm_90a", TINY_GQA TINY_FFN "storage: {default: f32}\n", GLU, DT_F32, DT_F32 },
	/* rows that are not a multiple of 16 bytes; a second reader; CPU */
	{ "cuda-sm_90a", TINY_GQA "ffn: {width: 60}\n", GLU, DT_F32, DT_F32 },
	{ "cuda-sm_90a", TINY_GQA TINY_FFN "adapters: {slots: 2, rank: 4}\n", OP_glu, ARG(glu, y),
	  DT_F32, DT_F32 },
	{ "cpu-v3", TINY_GQA TINY_FFN, GLU, DT_F32, DT_F32 },
	/* attention runs decode kernels in decode steps with any number of rows; the residual
	 * stream is added to */
	{ "cuda-sm_90a", TINY_GQA TINY_FFN, OP_attention, ARG(attention, y), DT_F32, DT_F32 },
	{ "cuda-sm_90a", TINY_GQA TINY_FFN, OP_matmul_add, ARG(matmul_add, y), DT_F32, DT_F32 },
	{ "cuda-sm_90a", EXPERTS, OP_norm_moe_glu, ARG(norm_moe_glu, h), DT_F32, DT_BF16 },
};

static const PlanBuffer *
output_buffer(const Plan *p, int phase, OpKind op, int arg)
{
	const PlanPhase *ph = &p->phase[phase];

	for (int i = 0; i < ph->n_step; i++)
		if (ph->step[i].op == op)
			return &p->buffer[ph->step[i].arg[arg].index];
	fail_msg("no %s in the plan for %s", op_info[op].name, p->target);
	return NULL;
}

static void
check_case(Bench *b, int n)
{
	const Case *c = &cases[n];
	llmc_error err;

	bench_spec(b, strstr(c->more, "moe") ? "mixtral" : "llama",
	           c->more); /* bf16 unless it specifies another type */
	const Compiled *made_of = compile_spec(b->spec, c->target, NULL, NULL, &b->diag, &b->arena);
	if (!made_of)
		fail_msg("case %d: %s", n, strbuf_str(&b->diag.text));
	const PlanBuffer *decode = output_buffer(made_of->plan, PHASE_DECODE, c->makes, c->arg),
	                 *mixed = output_buffer(made_of->plan, PHASE_MIXED, c->makes, c->arg);
	if (decode->dtype != c->decode || mixed->dtype != c->mixed)
		fail_msg("case %d: %s in decode steps, %s in mixed ones", n,
		         dtype_text(decode->dtype), dtype_text(mixed->dtype));
	assert_int_equal(decode->slot, mixed->slot);
	if (plan_check(made_of->plan, &err) != LLMC_OK)
		fail_msg("case %d: %s", n, err.text);
}

static void
values_have_the_type_of_their_gemms(void **state)
{
	(void)state;
	for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
		bench_run(check_case, i);
}

/* A plan is a file: a bf16 kernel rejects fp32 buffers and the reverse, and the reference accepts
 * only fp32. */
static void
wrong_type(Bench *b, int n)
{
	llmc_error err;

	bench_spec(b, "llama", TINY_GQA TINY_FFN);
	Plan *p =
	    (Plan *)compile_spec(b->spec, "cuda-sm_80", NULL, NULL, &b->diag, &b->arena)->plan;
	for (int ph = 0; ph < 2; ph++)
		for (int i = 0; i < p->phase[ph].n_step; i++) {
			PlanStep *s = &p->phase[ph].step[i];
			if (ph == n && s->op == OP_norm_glu)
				s->arg[ARG(norm_glu, y)].index =
				    (int)(output_buffer(p, 1 - n, OP_norm_glu, ARG(norm_glu, y)) -
				          p->buffer);
		}
	assert_int_not_equal(plan_check(p, &err), LLMC_OK);
	assert_non_null(strstr(err.text, "the kernel needs"));
}

static void
kernels_and_buffers_agree(void **state)
{
	(void)state;
	bench_run(wrong_type, 0);
	bench_run(wrong_type, 1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(values_have_the_type_of_their_gemms),
		cmocka_unit_test(kernels_and_buffers_agree),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

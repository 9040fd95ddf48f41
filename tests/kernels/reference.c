/* Runs one op with the reference, for the kernel tests (tests/cuda/test_cuda_ops.py):
 *
 *     reference OP N_TOK N_OUT [NAME=VALUE...]
 *
 * The values are the op's attributes. Input: int32 position and token id of each token, the output
 * rows, an adapter slot per token; then for each input of the op its number of floats as int64 (-1:
 * absent) and the floats. Output: the floats of each output. Sizes must match ops/shapes.c, with
 * n_tok or n_out rows. Pools are not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ref/ref.h"

static void *
take(size_t n)
{
	void *p = malloc(n + 1);

	if (!p || fread(p, 1, n, stdin) != n)
		exit((fprintf(stderr, "reference: the input ends early\n"), 2));
	return p;
}

static int
fail(const char *what, const char *name)
{
	fprintf(stderr, "reference: %s %s\n", what, name);
	return 2;
}

static const char *
given(char **argv, int argc, const char *key)
{
	size_t n = strlen(key);

	for (int i = 4; i < argc; i++)
		if (!strncmp(argv[i], key, n) && argv[i][n] == '=')
			return argv[i] + n + 1;
	return "";
}

int
main(int argc, char **argv)
{
	static PlanBuffer buffer[OP_MAX_ARGS];
	static PlanTensor tensor[OP_MAX_ARGS];
	PlanStep step = { .op = argc < 4 ? OP_nop : op_by_name(argv[1]), .kernel = -1 };
	const OpInfo *op = &op_info[step.op];
	const OpModel model = { .vocab = 1, .max_positions = 1 };
	llmc_step s = { .n_tok = argc < 4 ? 0 : atoi(argv[2]),
		        .n_out = argc < 4 ? 0 : atoi(argv[3]) };
	RefArg arg[OP_MAX_ARGS] = { 0 };
	ArgShape shape[OP_MAX_ARGS];
	PlanSym rows = SYM_n_tok;
	llmc_error err;

	if (step.op == OP_nop)
		return fail("usage: reference OP N_TOK N_OUT [NAME=VALUE...]", "");
	AttrKind kind;
	for (const char *key; (key = op_attr(step.op, step.n_attr, &kind)) != NULL; step.n_attr++) {
		const char *v = given(argv, argc, key);
		step.attr[step.n_attr] = (Attr){ .key = key,
			                         .kind = kind,
			                         .i = strtoll(v, NULL, 10),
			                         .f = strtod(v, NULL),
			                         .s = v };
	}
	if (attr_check(step.op, step.attr, step.n_attr, &err) != LLMC_OK)
		return fail(err.text, "");
	const char *rule = op_shapes(step.op, step.attr, step.n_attr, &model, shape);
	if (rule)
		return fail("attributes violate the rule", rule);
	s.pos = take((size_t)s.n_tok * 4);
	s.tok = take((size_t)s.n_tok * 4);
	s.out_row = take((size_t)s.n_out * 4);
	s.adapter = take((size_t)s.n_tok * 4); /* each row is a sequence */
	int32_t *row = calloc((size_t)s.n_tok + 1, sizeof *row);
	for (int32_t t = 0; row && t < s.n_tok; t++)
		row[t] = t;
	if (!row)
		return fail("out of memory", "");
	s.seq_of = s.seq = row;
	for (int k = 0; k < op->n_arg; k++) {
		const ArgShape *want = &shape[k];
		int64_t n = 0, cols = want->cols ? want->cols : want->rows;
		if (k < op->n_in) {
			int64_t *size = take(sizeof n);
			n = *size;
			free(size);
			if (n < 0)
				continue;
			arg[k].data = take((size_t)n * 4);
		}
		if (want->kind == VAL_ACT) {
			if (k == 0 && n != s.n_tok * cols)
				rows = SYM_n_out;
			buffer[k] =
			    (PlanBuffer){ .dtype = want->dtype,
				          .extent = { k >= op->n_in && op->flags & OPF_GATHER
				                          ? SYM_n_out
				                          : rows,
				                      cols, 1 } };
			arg[k].kind = REF_BUFFER;
			arg[k].buffer = &buffer[k];
			int64_t need =
			    (buffer[k].extent.sym == SYM_n_out ? s.n_out : s.n_tok) * cols;
			if (k < op->n_in && n != need)
				return fail("another size than ops/shapes.c has:", op->arg[k].name);
			if (k >= op->n_in && !(arg[k].data = calloc((size_t)need + 1, 4)))
				return fail("out of memory", "");
		} else if (want->kind == VAL_WEIGHT) {
			tensor[k] =
			    (PlanTensor){ .dtype = DT_F32,
				          .rows =
				              op->arg[k].role == ROLE_TABLE ? n / cols : want->rows,
				          .cols = want->cols,
				          .layout = want->cols ? "row" : "f32" };
			arg[k].kind = REF_TENSOR;
			arg[k].tensor = &tensor[k];
			if (n != tensor[k].rows * (want->cols ? want->cols : 1))
				return fail("another size than ops/shapes.c has:", op->arg[k].name);
		} else if (want->kind == VAL_ROPE) {
			arg[k].kind = REF_ROPE;
			if (n != s.n_tok * cols)
				return fail("another size than ops/shapes.c has:", op->arg[k].name);
		} else {
			return fail("this program has no pools:", op->arg[k].name);
		}
	}
	RefCall call = { .step = &step,
		         .s = &s,
		         .arg = arg,
		         .scratch = calloc((size_t)ref_scratch_floats(&step, s.n_tok, 1) + 1, 4) };
	if (!call.scratch)
		return fail("out of memory", "");
	ref_find(step.op)(&call);
	for (int k = op->n_in; k < op->n_arg; k++)
		fwrite(arg[k].data, 4,
		       (size_t)((buffer[k].extent.sym == SYM_n_out ? s.n_out : s.n_tok) *
		                buffer[k].extent.mul),
		       stdout);
	return 0;
}

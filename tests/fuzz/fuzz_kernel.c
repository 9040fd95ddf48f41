/* Expands arbitrary text as a kernel template of a matmul, for CPU or GPU, with fragments that it
 * may include. The template may be rejected with a message. The first byte selects the target. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler/select_kernels.h"
#include "compiler/template/template_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *
fragment(const char *path, size_t *size)
{
	const char *text =
	    strstr(path, "self.head") ? "//@let N = ROWS + 1\n//@include heads/self.head\n"
	    : strstr(path, ".head")
	        ? "//@let N = ROWS\n//@if HAS_B\n//@scratch s f32[N]\n//@else\n${N}\n//@end\n"
	        : NULL;
	*size = text ? strlen(text) : 0;
	return text;
}

static int
value(Graph *g, ValueKind kind, const char *name, int64_t rows, int64_t cols)
{
	int v = graph_value(g, kind, name, (Loc){ 0 });

	if (kind == VAL_WEIGHT) {
		g->tensor = arena_grow(g->arena, g->tensor, &g->cap_tensor, g->n_tensor + 1,
		                       sizeof *g->tensor);
		g->tensor[g->n_tensor] = (PlanTensor){ .id = name,
			                               .dtype = cols ? DT_BF16 : DT_F32,
			                               .rows = rows,
			                               .cols = cols,
			                               .layout = cols ? "row" : "f32" };
		g->val[v].tensor = (int)g->n_tensor++;
	}
	g->val[v].dim[0] = rows;
	g->val[v].dim[1] = cols;
	return v;
}

static void
expand(const char *target, const char *text, Arena *a, Diag *d)
{
	const Spec spec = { .deterministic = false };
	Graph *g = graph_new(&spec, d, a);
	Op *op = graph_op(g, OP_matmul, 0, (Loc){ 0 });

	op_set_int(g, op, "rows", 48);
	op_set_int(g, op, "cols", 64);
	op->arg[0] = value(g, VAL_ACT, "x", 1, 64);
	op->arg[1] = value(g, VAL_WEIGHT, "w", 48, 64);
	op->arg[2] = value(g, VAL_WEIGHT, "b", 48, 0);
	op->arg[3] = value(g, VAL_ACT, "y", 1, 48);
	graph_infer(g);
	Templates *ts = templates_none(target, &spec, d, a);
	ts->included = fragment;
	bool added = templates_add(ts, OP_matmul, "templates/cpu/t.c.in", text);
	const Kernel *k = NULL;
	bool taken = false;
	for (int phase = 0; added && phase < PHASES; phase++) {
		const Template *t = templates_find(ts, g, op, phase);
		taken |= t != NULL;
		if (t && (k = template_expand(ts, t, g, op, phase)) &&
		    (!k->text || !k->key || k->row.n_arg < 4))
			abort();
	}
	if ((!added || (taken && !k)) && d->n_error == 0) {
		fprintf(stderr, "fuzz_kernel: rejected without a message\n");
		abort();
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const targets[] = { "cpu-v3", "cuda-sm_80", "cuda-sm_90a",
		                               "cuda-sm_120a" };
	Arena *a = calloc(1, sizeof *a);
	Diag *d = calloc(1, sizeof *d);

	if (!a || !d || size == 0)
		goto done;
	arena_init(a);
	if (setjmp(a->oom))
		abort();
	diag_init(d, a);
	if (setjmp(d->bug)) {
		fprintf(stderr, "fuzz_kernel: %s\n", strbuf_str(&d->text));
		abort();
	}
	expand(targets[data[0] % 4], arena_strndup(a, (const char *)data + 1, size - 1), a, d);
	arena_release(a);
done:
	free(a);
	free(d);
	return 0;
}

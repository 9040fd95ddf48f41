/* Every op of ref/ against tests/golden/ops.txt, whose expected values torch computed
 * (tests/golden/make_ops.py). Also the check of plan steps: each case's step must pass it, and
 * broken copies of the step must not. Run from the root of the repository. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "formats/dequant.h"
#include "plan/plan_check.h"
#include "ref/ref.h"

enum { PAGES = 4 };

typedef struct Case {
	char op[32], name[32];
	PlanStep step;
	char key[OP_MAX_ATTRS][32], word[OP_MAX_ATTRS][32];
	llmc_step s;
	int32_t pos[64], pos2[64], seq_of[64], tok[64], kv_len[8], prefix_len[8], out_row[64],
	    table[2 * PAGES];
	int32_t q_start[9], seq[8];
	RefArg arg[PLAN_MAX_ARGS];
	PlanTensor tensor[PLAN_MAX_ARGS];
	PlanBuffer buffer[PLAN_MAX_ARGS];
	PlanPool pool[PLAN_MAX_ARGS];
	PlanRope rope[PLAN_MAX_ARGS];
	int64_t elems[PLAN_MAX_ARGS];
	int n_out, out_arg[8];
	int64_t out_n[8];
	float *out[8];
	Plan plan;
} Case;

static void
scan(FILE *f, const char *format, void *dst)
{
	assert_int_equal(fscanf(f, format, dst), 1);
}

static int64_t
scan_int(FILE *f)
{
	long long v;

	scan(f, "%lld", &v);
	return v;
}

static float *
scan_floats(FILE *f, int64_t n)
{
	float *p = calloc((size_t)n + 1, sizeof *p);

	assert_non_null(p);
	for (int64_t i = 0; i < n; i++)
		scan(f, "%f", &p[i]);
	return p;
}

/* Rows that are in a pool before the op runs are stored in the layout that plan.h documents, not by
 * the code under test. */
static void
pool_put(const PlanPool *p, char *base, int32_t page, int64_t at, const float *k, const float *v)
{
	char *q = base + page * plan_layer_page_bytes(p);

	for (int64_t h = 0; h < (p->mla ? 1 : p->kv_heads); h++)
		for (int64_t i = 0; i < p->k_dim + p->v_dim; i++) {
			bool is_k = i < p->k_dim;
			float x = is_k ? k[h * p->k_dim + i] : v[h * p->v_dim + i - p->k_dim];
			int64_t e = p->mla ? at * p->k_dim + i
			            : is_k ? (h * p->k_dim + i) * 32 + at
			                   : p->kv_heads * p->k_dim * 32 +
			                         (h * 32 + at) * p->v_dim + i - p->k_dim;

			if (p->k == KVT_F32)
				((float *)q)[e] = x;
			else
				((uint16_t *)q)[e] = f32_to_f16(x);
		}
}

static void
scan_pool(FILE *f, Case *c, int i)
{
	PlanPool *p = &c->pool[i];
	char dtype[16];
	int64_t rows, seqs = 0, len[8] = { 0 }, r = 0, v_dim, k_dim;
	float *k, *v;

	p->id = "pool";
	p->mla = scan_int(f) != 0;
	p->kv_heads = scan_int(f);
	p->k_dim = scan_int(f);
	p->v_dim = scan_int(f);
	p->n_layers = 1;
	scan(f, "%15s", dtype);
	p->k = p->v = kv_type_from_text(dtype);
	c->arg[i] = (RefArg){ .kind = REF_POOL, .pool = p };
	c->elems[i] = 2 * PAGES * plan_layer_page_bytes(p) / 4;
	c->arg[i].data = calloc((size_t)c->elems[i], 4);
	rows = scan_int(f);
	if (!rows)
		return;
	seqs = scan_int(f);
	for (int64_t q = 0; q < seqs; q++)
		len[q] = scan_int(f);
	/* a latent row is written as two parts, like k and v: rank, then the rope key */
	k_dim = p->mla ? c->step.attr[1].i : p->k_dim;
	v_dim = p->mla ? p->k_dim - k_dim : p->v_dim;
	k = scan_floats(f, rows * p->kv_heads * k_dim);
	v = scan_floats(f, rows * p->kv_heads * v_dim);
	for (int64_t q = 0; q < seqs; q++)
		for (int64_t at = 0; at < len[q]; at++, r++) {
			float row[64];
			float *kr = k + r * p->kv_heads * k_dim;

			if (p->mla) {
				memcpy(row, kr, (size_t)k_dim * sizeof *row);
				memcpy(row + k_dim, v + r * v_dim, (size_t)v_dim * sizeof *row);
				kr = row;
			}
			pool_put(p, c->arg[i].data, c->table[q * PAGES + at / 32], at % 32, kr,
			         v + r * p->kv_heads * v_dim);
		}
	free(k);
	free(v);
}

static void
scan_state(FILE *f, Case *c, int i)
{
	PlanPool *p = &c->pool[i];

	*p = (PlanPool){ .id = "state", .state = true, .k = KVT_F32, .v = KVT_F32, .n_layers = 1 };
	p->kv_heads = scan_int(f);
	p->k_dim = scan_int(f);
	p->v_dim = scan_int(f);
	c->elems[i] = scan_int(f) * plan_layer_state_bytes(p) / 4;
	c->arg[i] = (RefArg){ .kind = REF_POOL, .pool = p, .data = scan_floats(f, c->elems[i]) };
}

static void
set_buffer(Case *c, int i, int64_t n, Dtype dtype)
{
	/* in the file, ops on n_out rows have 2 such rows, of at least 3 tokens */
	bool out = (!strcmp(c->op, "gather_rows") && i == 1) ||
	           (!strcmp(c->op, "lm_head") && i == 4) ||
	           (!strcmp(c->op, "merge_rows") && i == 1);
	int64_t rows = out ? c->s.n_out : c->s.n_tok;

	c->elems[i] = n;
	c->buffer[i] = (PlanBuffer){ .id = "b",
		                     .dtype = dtype,
		                     .extent = { out ? SYM_n_out : SYM_n_tok, n / rows, 1 } };
	c->arg[i].kind = REF_BUFFER;
	c->arg[i].buffer = &c->buffer[i];
	assert_int_equal(n % rows, 0);
}

static void
scan_arg(FILE *f, Case *c, const char *what)
{
	int i = c->step.n_arg++;

	assert_in_range(i, 0, PLAN_MAX_ARGS - 1);
	c->arg[i] = (RefArg){ .kind = REF_NONE };
	if (!strcmp(what, "weight") || !strcmp(what, "vector")) {
		PlanTensor *t = &c->tensor[i];

		*t = (PlanTensor){ .id = "w", .dtype = DT_F32, .layout = "row" };
		t->rows = scan_int(f);
		t->cols = !strcmp(what, "weight") ? scan_int(f) : 0;
		c->arg[i] = (RefArg){ .kind = REF_TENSOR, .tensor = t };
		c->elems[i] = t->rows * (t->cols ? t->cols : 1);
		c->arg[i].data = scan_floats(f, c->elems[i]);
	} else if (!strcmp(what, "f32")) {
		int64_t n = scan_int(f);

		set_buffer(c, i, n, DT_F32);
		c->arg[i].data = scan_floats(f, n);
	} else if (!strcmp(what, "i32")) {
		int64_t n = scan_int(f);
		int32_t *p = calloc((size_t)n + 1, sizeof *p);

		set_buffer(c, i, n, DT_I32);
		for (int64_t j = 0; j < n; j++)
			p[j] = (int32_t)scan_int(f);
		c->arg[i].data = p;
	} else if (!strcmp(what, "room")) {
		char kind[8];
		int64_t n;

		scan(f, "%7s", kind);
		n = scan_int(f);
		set_buffer(c, i, n, strcmp(kind, "i32") ? DT_F32 : DT_I32);
		c->arg[i].data = malloc((size_t)n * 4);
		memset(c->arg[i].data, 0xff, (size_t)n * 4);
	} else if (!strcmp(what, "rope")) {
		c->rope[i].dims = (int)scan_int(f);
		c->rope[i].scaling = "none";
		c->arg[i].kind = REF_ROPE;
		c->arg[i].data = scan_floats(f, (int64_t)c->rope[i].dims * c->s.n_tok);
	} else if (!strcmp(what, "pool")) {
		scan_pool(f, c, i);
	} else if (!strcmp(what, "state")) {
		scan_state(f, c, i);
	} else {
		assert_string_equal(what, "none");
	}
	c->step.arg[i] = (PlanRef){ c->arg[i].kind, i, 0 };
}

static void
scan_step(FILE *f, Case *c)
{
	char key[16];
	int32_t *dst = NULL;
	int64_t n;

	scan(f, "%15s", key);
	n = scan_int(f);
	if (!strcmp(key, "pos")) {
		dst = c->pos;
		c->s.n_tok = (int32_t)n;
	} else if (!strcmp(key, "pos2")) {
		dst = c->pos2;
	} else if (!strcmp(key, "seq_of")) {
		dst = c->seq_of;
	} else if (!strcmp(key, "tok")) {
		dst = c->tok;
	} else if (!strcmp(key, "kv_len")) {
		dst = c->kv_len;
		c->s.n_seq = (int32_t)n;
	} else if (!strcmp(key, "prefix_len")) {
		dst = c->prefix_len;
	} else if (!strcmp(key, "out_row")) {
		dst = c->out_row;
		c->s.n_out = (int32_t)n;
	}
	assert_non_null(dst);
	assert_in_range(n, 0, 64);
	for (int64_t i = 0; i < n; i++)
		dst[i] = (int32_t)scan_int(f);
}

static bool
scan_case(FILE *f, Case *c)
{
	char what[16];

	memset(c, 0, sizeof *c);
	if (fscanf(f, "%15s", what) != 1)
		return false;
	assert_string_equal(what, "case");
	scan(f, "%31s", c->op);
	scan(f, "%31s", c->name);
	c->step.op = op_by_name(c->op);
	assert_int_not_equal(c->step.op, OP_nop);
	c->step.kernel = -1;
	c->s.tok = c->tok;
	c->s.pos = c->pos;
	c->s.pos2 = c->pos2;
	c->s.seq_of = c->seq_of;
	c->s.q_start = c->q_start;
	c->s.kv_len = c->kv_len;
	c->s.prefix_len = c->prefix_len;
	c->s.out_row = c->out_row;
	c->s.block_table = c->table;
	c->s.block_stride = PAGES;
	c->s.seq = c->seq;
	for (int i = 0; i < 8; i++)
		c->seq[i] = i;
	/* pages are shuffled, except in cases that compare the content of the whole pool */
	for (int i = 0; i < 2 * PAGES; i++)
		c->table[i] = strstr(c->op, "attention") ? (i * 5 + 3) % (2 * PAGES) : i;
	for (;;) {
		scan(f, "%15s", what);
		if (!strcmp(what, "end")) {
			for (int32_t t = 0; t < c->s.n_tok; t++)
				c->q_start[c->seq_of[t] + 1] = t + 1;
			break;
		}
		if (!strcmp(what, "attr")) {
			int i = c->step.n_attr++;
			Attr *a = &c->step.attr[i];
			char kind[4];

			scan(f, "%31s", c->key[i]);
			scan(f, "%3s", kind);
			a->key = c->key[i];
			a->kind = kind[0] == 'i' ? ATTR_INT : kind[0] == 'f' ? ATTR_NUM : ATTR_WORD;
			if (a->kind == ATTR_INT)
				a->i = scan_int(f);
			else if (a->kind == ATTR_NUM)
				scan(f, "%lf", &a->f);
			else
				scan(f, "%31s", c->word[i]);
			a->s = c->word[i];
		} else if (!strcmp(what, "step")) {
			scan_step(f, c);
		} else if (!strcmp(what, "out")) {
			int i = c->n_out++;

			c->out_arg[i] = (int)scan_int(f);
			c->out_n[i] = scan_int(f);
			c->out[i] = scan_floats(f, c->out_n[i]);
		} else {
			scan_arg(f, c, what);
		}
	}
	c->plan = (Plan){ .vocab = 7,
		          .max_positions = 5,
		          .n_tensor = PLAN_MAX_ARGS,
		          .tensor = c->tensor,
		          .n_buffer = PLAN_MAX_ARGS,
		          .buffer = c->buffer,
		          .n_pool = PLAN_MAX_ARGS,
		          .pool = c->pool,
		          .n_rope = PLAN_MAX_ARGS,
		          .rope = c->rope };
	return true;
}

static void
release(Case *c)
{
	for (int i = 0; i < c->step.n_arg; i++)
		free(c->arg[i].data);
	for (int i = 0; i < c->n_out; i++)
		free(c->out[i]);
}

static void
run(Case *c)
{
	int64_t max_kv = 1, n;
	RefCall call = { .step = &c->step, .s = &c->s, .arg = c->arg };

	for (int i = 0; i < c->s.n_seq; i++)
		if (c->kv_len[i] > max_kv)
			max_kv = c->kv_len[i];
	n = ref_scratch_floats(&c->step, c->s.n_tok, max_kv);
	assert_true(n >= 0);
	/* exactly the requested size: the sanitizer build reports an access beyond it */
	call.scratch = malloc((size_t)n * 4);
	assert_true(call.scratch || !n);
	ref_find(c->step.op)(&call);
	free(call.scratch);
}

static void
compare(const Case *c)
{
	for (int o = 0; o < c->n_out; o++) {
		const RefArg *a = &c->arg[c->out_arg[o]];

		assert_true(c->out_n[o] <= c->elems[c->out_arg[o]]);
		for (int64_t i = 0; i < c->out_n[o]; i++) {
			bool is_int = a->buffer && a->buffer->dtype == DT_I32;
			double got = is_int ? ((int32_t *)a->data)[i] : ((float *)a->data)[i];
			double want = c->out[o][i];

			if (!(fabs(got - want) <= 2e-6 * (1 + fabs(want))))
				fail_msg("%s %s: argument %d, element %lld is %.8g, expected %.8g",
				         c->op, c->name, c->out_arg[o], (long long)i, got, want);
		}
	}
}

static FILE *
open_cases(void)
{
	FILE *f = fopen("tests/golden/ops.txt", "r");

	assert_non_null(f);
	return f;
}

static void
test_values(void **state)
{
	FILE *f = open_cases();
	Case c;
	int n = 0;

	(void)state;
	for (; scan_case(f, &c); n++) {
		run(&c);
		compare(&c);
		release(&c);
	}
	fclose(f);
	assert_in_range(n, 50, 1000);
}

/* Elementwise ops, norms, rope, and the residual of matmul_add may write over their input. */
static void
test_in_place(void **state)
{
	static const char *const ops[] = { "act",        "glu",         "add",       "softcap",
		                           "clamp",      "scale_cols",  "pos_scale", "gate_mul",
		                           "rmsnorm",    "layernorm",   "rope",      "rope_2d",
		                           "matmul_add", "scatter_rows" };
	FILE *f = open_cases();
	Case c;

	(void)state;
	while (scan_case(f, &c)) {
		for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
			int in = !strcmp(c.op, "matmul_add") ? 3 : 0, out = c.step.n_arg - 1;

			if (strcmp(ops[i], c.op) != 0)
				continue;
			free(c.arg[out].data);
			c.arg[out].data = c.arg[in].data;
			run(&c);
			compare(&c);
			c.arg[out].data = NULL;
		}
		release(&c);
	}
	fclose(f);
}

static void
refused(Case *c, const char *how)
{
	llmc_error err = { 0 };

	if (plan_check_op(&c->plan, &c->step, &err) == LLMC_OK)
		fail_msg("%s %s: passed although %s", c->op, c->name, how);
	assert_true(err.text[0] != '\0');
}

static void
test_check(void **state)
{
	FILE *f = open_cases();
	Case c;

	(void)state;
	while (scan_case(f, &c)) {
		llmc_error err = { 0 };

		c.plan.merge = c.step.op == OP_merge_rows ? step_int(&c.step, "count") : 1;
		if (plan_check_op(&c.plan, &c.step, &err) != LLMC_OK)
			fail_msg("%s %s: %s", c.op, c.name, err.text);
		c.step.n_arg--;
		refused(&c, "an argument is missing");
		c.step.n_arg++;
		c.step.n_attr--;
		refused(&c, "an attribute is missing");
		c.step.n_attr++;
		for (int i = 0; i < c.step.n_attr; i++) {
			Attr a = c.step.attr[i];

			c.step.attr[i].kind = a.kind == ATTR_NUM ? ATTR_WORD : ATTR_NUM;
			refused(&c, "an attribute has another kind");
			c.step.attr[i] = a;
			c.step.attr[i].s = "nonsense";
			if (a.kind == ATTR_NUM)
				c.step.attr[i].f = NAN;
			if (a.kind == ATTR_INT)
				c.step.attr[i].i = -1;
			refused(&c, "an attribute is out of range");
			if (a.kind == ATTR_INT) {
				c.step.attr[i].i = (int64_t)1 << 40;
				refused(&c, "an attribute is out of range");
			}
			c.step.attr[i] = a;
		}
		for (int i = 0; i < c.step.n_arg; i++) {
			PlanRef r = c.step.arg[i];

			if (r.kind == REF_NONE)
				continue;
			c.step.arg[i].index = PLAN_MAX_ARGS;
			refused(&c, "an index is out of range");
			c.step.arg[i].index = -1;
			refused(&c, "an index is negative");
			c.step.arg[i] = r;
			c.step.arg[i].kind = r.kind == REF_POOL ? REF_BUFFER : REF_POOL;
			refused(&c, "an argument is of another kind");
			c.step.arg[i] = r;
			c.tensor[i].cols++;
			c.tensor[i].rows--;
			c.buffer[i].extent.mul--;
			c.pool[i].k_dim++;
			c.rope[i].dims += 2;
			refused(&c, "a shape is wrong");
			c.tensor[i].cols--;
			c.tensor[i].rows++;
			c.buffer[i].extent.mul++;
			c.pool[i].k_dim--;
			c.rope[i].dims -= 2;
		}
		assert_int_equal(plan_check_op(&c.plan, &c.step, &err), LLMC_OK);
		release(&c);
	}
	fclose(f);
}

static void
test_scratch_overflow(void **state)
{
	PlanStep step = { .op = OP_matmul_add,
		          .n_attr = 2,
		          .attr = { { .key = "rows", .kind = ATTR_INT, .i = INT32_MAX },
		                    { .key = "cols", .kind = ATTR_INT, .i = INT32_MAX } } };

	(void)state;
	assert_true(ref_scratch_floats(&step, 1, 1) > 0);
	assert_int_equal(ref_scratch_floats(&step, INT64_MAX / 2, 1), -1);
	step.attr[0].i = -5;
	assert_int_equal(ref_scratch_floats(&step, 1, 1), -1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_in_place),
		cmocka_unit_test(test_check),
		cmocka_unit_test(test_scratch_overflow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The op table: rows, attributes and shapes are consistent. Results of ops are tested in
 * tests/unit/test_ref_ops.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ops/ops.h"

static const OpModel model = { .vocab = 96, .max_positions = 64 };

/* Attributes that are valid for the row: integers `i` (or less, if they must be small), the first
 * word of each list */
static int
attributes(OpKind op, int64_t i, Attr a[OP_MAX_ATTRS])
{
	const struct {
		const char *key, *word;
	} words[] = {
		{ "norm", "rms" },
		{ "act", "gelu_tanh" },
		{ "mask", "prefix" },
		{ "style", "half" },
		{ "score", "softmax" },
		{ "group_score", "top2" },
		{ "gate", op == OP_gate_mul ? "softplus" : "silu" },
		{ "order", "norm_first" },
	};
	int n = 0;

	for (const char *key; (key = op_attr(op, n, &a[n].kind)) != NULL; n++) {
		AttrKind kind = a[n].kind;
		a[n] = (Attr){ .key = key, .kind = kind, .i = i, .f = 0.5 };
		for (size_t w = 0; w < sizeof words / sizeof *words; w++)
			if (!strcmp(words[w].key, key))
				a[n].s = words[w].word;
		if (!strcmp(key, "first") || !strcmp(key, "alibi_first"))
			a[n].i = 0;
		if (!strcmp(key, "rope_dims"))
			a[n].i = i / 2;
		if (!strcmp(key, "groups") || !strcmp(key, "shared_gate") ||
		    !strcmp(key, "per_group") || !strcmp(key, "chunk") || !strcmp(key, "mean") ||
		    !strcmp(key, "x_rows_per_token"))
			a[n].i = 1;
	}
	return n;
}

static void
arguments_have_fixed_indices(void **state)
{
	(void)state;
	assert_int_equal(ARG(matmul, x), 0);
	assert_int_equal(ARG(norm_qkv, rope), 7);
	assert_int_equal(ARG(norm_qkv, q), 9);
	for (int op = OP_nop + 1; op < OP_COUNT; op++) {
		const OpInfo *info = &op_info[op];
		assert_in_range(info->n_in, op == OP_stage_in || op == OP_recv ? 0 : 1,
		                info->n_arg - 1);
		assert_in_range(info->n_arg, info->n_in + 1, OP_MAX_ARGS);
		for (int k = 0; k < info->n_arg;
		     k++) { /* n_in assumes that inputs come first in the row */
			assert_int_equal(info->arg[k].role == ROLE_OUT, k >= info->n_in);
			for (int o = 0; o < k; o++)
				assert_string_not_equal(info->arg[k].name, info->arg[o].name);
		}
		assert_int_equal(op_by_name(info->name), op);
	}
	assert_int_equal(op_by_name("no_such_op"), OP_nop);
	assert_int_equal(op_by_name("nop"), OP_nop);
	assert_string_equal(op_info[OP_norm_qkv].arg[ARG(norm_qkv, kn)].name, "kn");
}

static void
each_attribute_is_known(void **state)
{
	(void)state;
	for (int op = OP_nop + 1; op < OP_COUNT; op++) {
		Attr a[OP_MAX_ATTRS + 1];
		llmc_error err;
		int n = attributes((OpKind)op, 8, a), words = 1;
		for (const char *p = op_info[op].attrs; *p; p++)
			words += *p == ' ';
		assert_in_range(n, 1, OP_MAX_ATTRS);
		if (n != words)
			fail_msg(
			    "%s: \"%s\": the attribute after number %d is in no list of ops.def",
			    op_info[op].name, op_info[op].attrs, n);
		if (attr_check((OpKind)op, a, n, &err) != LLMC_OK)
			fail_msg("%s", err.text);
		assert_int_equal(attr_check((OpKind)op, a, n - 1, &err), LLMC_E_INPUT);
	}
}

/* A `case` that forgets an argument leaves zeros. */
static void
each_argument_has_a_shape(void **state)
{
	(void)state;
	for (int op = OP_nop + 1; op < OP_COUNT; op++) {
		Attr a[OP_MAX_ATTRS + 1];
		ArgShape shape[OP_MAX_ARGS] = { 0 };
		const char *rule =
		    op_shapes((OpKind)op, a, attributes((OpKind)op, 8, a), &model, shape);
		if (rule)
			fail_msg("%s: %s", op_info[op].name, rule);
		for (int k = 0; k < op_info[op].n_arg; k++) {
			const ArgShape *s = &shape[k];
			bool ok = s->kind == VAL_ORDER;
			if (s->kind == VAL_ACT || s->kind == VAL_ROPE)
				ok = s->cols > 0 && (s->dtype == DT_F32 || s->dtype == DT_I32);
			else if (s->kind == VAL_WEIGHT)
				ok = s->rows > 0 && s->pieces >= 1 && s->used >= 1 &&
				     s->used <= s->pieces && s->rows % s->pieces == 0;
			else if (s->kind == VAL_POOL)
				ok = s->pool.kv_heads > 0 && s->pool.k_dim > 0;
			if (!ok)
				fail_msg("ops/shapes.c: %s has no shape for %s", op_info[op].name,
				         op_info[op].arg[k].name);
		}
	}
}

/* The largest valid attributes overflow nothing (checked by the sanitizer build), and no tensor is
 * that large. */
static void
no_size_overflows(void **state)
{
	(void)state;
	for (int op = OP_nop + 1; op < OP_COUNT; op++) {
		Attr a[OP_MAX_ATTRS + 1];
		ArgShape shape[OP_MAX_ARGS];
		int n = attributes((OpKind)op, INT32_MAX, a);
		if (op_shapes((OpKind)op, a, n, &model, shape))
			continue;
		for (int k = 0; k < op_info[op].n_arg; k++)
			assert_true(shape[k].rows >= 0 && shape[k].cols >= 0);
		if (op == OP_norm_qkv)
			assert_true(shape[ARG(norm_qkv, w)].rows == INT64_MAX);
	}
}

static void
rules_are_kept(void **state)
{
	static const struct {
		OpKind op;
		const char *key;
		int64_t i;
		double f;
		const char *rule;
	} bad[] = {
		{ OP_attention, "chunk", 2, 0, "chunk <= 1" },
		{ OP_attention, "heads", 9, 0, "heads is a multiple of kv_heads" },
		{ OP_attention, "alibi_first", 1, 0, "alibi_first + heads <= alibi_heads" },
		{ OP_slice, "count", 9, 0, "first + count <= width" },
		{ OP_rope, "rope_dims", 10, 0, "first + rope_dims <= dim" },
		{ OP_rope_2d, "rope_dims", 6, 0, "rope_dims <= dim / 2" },
		{ OP_norm_qkv, "rope_dims", 10, 0, "rope_dims <= dim" },
		{ OP_moe_route, "top_k", 9, 0, "top_k <= n_experts" },
		{ OP_moe_route, "groups", 3, 0, "n_experts is a multiple of groups" },
		{ OP_norm_route, "top_k", 9, 0, "top_k <= n_experts" },
		{ OP_norm_route, "shared_gate", 2, 0, "shared_gate <= 1" },
		{ OP_local_experts, "count", 9, 0, "first + count <= n_experts" },
		{ OP_moe_down_add, "shared_gate", 2, 0, "shared_gate <= 1" },
		{ OP_rmsnorm, "groups", 0, 0, "groups >= 1" },
		{ OP_softcap, "softcap", 8, -1, "softcap >= 0" },
		{ OP_clamp, "limit", 8, 0, "limit > 0" },
		{ OP_layernorm, "groups", 0, 0, "groups >= 1" },
		{ OP_layernorm, "per_group", 2, 0, "per_group <= 1" },
		{ OP_moe_route, "jitter", 8, -1, "jitter >= 0" },
		{ OP_gate_mul, "groups", 3, 0, "width is a multiple of groups" },
		{ OP_conv1d, "taps", 1, 0, "taps >= 2" },
		{ OP_delta_rule, "v_heads", 9, 0, "v_heads is a multiple of k_heads" },
		{ OP_delta_rule, "g_dim", 2, 0, "g_dim is 1 or k_dim" },
		{ OP_delta_rule, "eps", 0, 0, "eps > 0" },
		{ OP_scale_cols, "first", 1, 0, "first + count <= width" },
		{ OP_selective_scan, "groups", 5, 0, "heads is a multiple of groups" },
		{ OP_norm_gate, "groups", 0, 0, "groups >= 1" },
	};

	(void)state;
	for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
		Attr a[OP_MAX_ATTRS + 1];
		ArgShape shape[OP_MAX_ARGS];
		int n = attributes(bad[b].op, 8, a), at = 0;
		while (strcmp(a[at].key, bad[b].key) != 0)
			at++;
		a[at].i = bad[b].i;
		a[at].f = bad[b].f;
		const char *rule = op_shapes(bad[b].op, a, n, &model, shape);
		assert_non_null(rule);
		assert_string_equal(rule, bad[b].rule);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arguments_have_fixed_indices),
		cmocka_unit_test(each_attribute_is_known),
		cmocka_unit_test(each_argument_has_a_shape),
		cmocka_unit_test(no_size_overflows),
		cmocka_unit_test(rules_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

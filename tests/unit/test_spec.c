/* From description to Spec: layers, defaults that depend on other keys, selectors, overrides,
 * storage, tensor rules; and the resolved text, which is read back unchanged. */
#include <math.h>

#include "base/file.h"
#include "compiler/spec/family.h"
#include "compiler/spec/layer_list.h"
#include "tests/unit/compiler_util.h"
#include "tests/unit/locale_comma.h"

#define TEXT(b, text, set)                                                                         \
	spec_from_text("in.yaml", text, strlen(text), set, &(b)->diag, &(b)->arena)
#define HEAD                                                                                       \
	"llmc: 1\nname: t\nfamily: llama\nvocab_size: 300\nmax_positions: 256\nn_layers: "         \
	"4\nhidden: 96\n"
#define GOOD HEAD "attention: {n_heads: 6}\nffn: {width: 160}\n"

static const char *
diagnostics(Bench *b)
{
	return strbuf_str(&b->diag.text);
}

BENCH_TEST(defaults_depend_on_other_keys)
{
	Spec *s = TEXT(b, GOOD, NULL);

	assert_non_null(s);
	assert_int_equal(s->attention.n_kv_heads, 6);
	assert_int_equal(s->attention.head_dim, 16);
	assert_int_equal(s->attention.v_dim, 16);
	assert_int_equal(s->rope[0].dims, 16);
	assert_true(s->attention.scale == 0.25);
	assert_true(s->norm.latent_eps == s->norm.eps && s->norm.eps == 1e-5);
	assert_int_equal(s->storage_default, DT_BF16);
	assert_int_equal(s->kv.k, KVT_F16);
	assert_int_equal(s->n_rope, 1);
	assert_int_equal(s->attention.windowed[0], 0);
	assert_false(s->norm.bias);
}

BENCH_TEST(later_layers_hide_earlier_ones)
{
	static const char *const set[] = { "attention.n_kv_heads=2", "kv={dtype: f32}",
		                           "rope.theta=5e5", "ffn.act=gelu", NULL };
	Spec *s = TEXT(b, GOOD, set);

	assert_non_null(s);
	assert_int_equal(s->attention.n_kv_heads, 2);
	assert_int_equal(s->kv.v, KVT_F32);
	assert_true(s->rope[0].theta == 5e5);
	assert_int_equal(s->ffn.act, ACT_GELU);
	Spec *again = TEXT(b, GOOD, NULL);
	assert_string_not_equal(s->sha256, again->sha256);
	/* the family's section for a checkpoint format */
	Spec *hf = TEXT(b, GOOD, NULL);
	static const char *const gguf[] = { "checkpoint=gguf", NULL };
	Spec *gg = TEXT(b, GOOD, gguf);
	assert_string_equal(rule_for(hf->tensor_rule, hf->n_tensor_rule, "q")->name,
	                    "model.layers.{l}.self_attn.q_proj");
	assert_string_equal(rule_for(gg->tensor_rule, gg->n_tensor_rule, "q")->name,
	                    "blk.{l}.attn_q");
	assert_true(rule_for(gg->tensor_rule, gg->n_tensor_rule, "k")->rope_pairs);
	assert_false(rule_for(gg->tensor_rule, gg->n_tensor_rule, "v")->rope_pairs);
}

/* KV types: keys and values separately, and rejected values */
BENCH_TEST(kv_types_are_parsed)
{
	static const char *const set[] = { "kv.dtype=int6", "kv.v=int4", "kv.rotate=true", NULL };
	static const struct {
		const char *set[4], *want;
	} bad[] = {
		{ { "kv={k: int4c, window: 31}" },
		  "kv.k = int4c: pages of keys are quantised when they are full, kv.window of at "
		  "least 32 positions is needed" },
		{ { "kv={dtype: int4c, window: 32}" },
		  "kv.dtype = int4c: one of these is expected: f32 f16 bf16 f8 int8 f8_32 int8_32 "
		  "int6 int4; did you mean int" },
		{ { "kv={k: int4c, v: int4c, window: 32}" },
		  "kv.v = int4c: one of these is expected: f32 f16 bf16 f8 int8 f8_32 int8_32 int6 "
		  "int4; did you mean int" },
		{ { "kv.window=64" },
		  "--set:1:11: error: kv.window = 64: only quantised rows need it, keys are f16 "
		  "and "
		  "values f16" },
		{ { "kv={k: int8, sinks: 4}", "parallel.pp=2" },
		  "kv.sinks = 4: pipeline stages store all positions in one type" },
		{ { "kv.dtype=int9" },
		  "kv.dtype = int9: one of these is expected: f32 f16 bf16 f8 int8 f8_32 int8_32 "
		  "int6 int4; did you mean int" },
		{ { "kv.host=8X" }, "kv.host = 8X: a size such as 512M or 8G is expected" },
		{ { "kv.host=-1" }, "kv.host = -1 is out of range: at most 64T" },
		{ { "kv.host=65T" }, "kv.host = 65T is out of range: at most 64T" },
		{ { "kv.rotate=true" },
		  "--set:1:11: error: kv.rotate = true: only rows of quantised types are rotated, "
		  "keys are f16 and values f16" },
		{ { "attention.head_dim=6", "kv={dtype: int8, rotate: true}" },
		  "attention.head_dim = 6 is not a multiple of 4, which rotation needs" },
	};
	Spec *s = TEXT(b, GOOD, set);

	assert_non_null(s);
	assert_int_equal(s->kv.k, KVT_INT6);
	assert_int_equal(s->kv.v, KVT_INT4);
	assert_true(s->kv.rotate);
	assert_int_equal(s->kv.window + s->kv.sinks, 0);
	assert_int_equal(kv_row_bytes(s->kv.k, 80), 3 * 26);
	assert_int_equal(kv_row_bytes(s->kv.v, 64), 2 * 20);
	assert_int_equal(kv_row_bytes(KVT_INT8, 80), 82);
	assert_int_equal(kv_row_bytes(KVT_INT8_32, 80), 3 * 34);
	assert_int_equal(kv_of_latents(KVT_F8), KVT_F8_32);
	assert_int_equal(kv_of_latents(KVT_INT4), KVT_INT4);
	assert_int_equal(kv_rotation(80), 16);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *const given[] = { bad[i].set[0], bad[i].set[1], NULL };
		assert_null(TEXT(b, GOOD, given));
		if (!strstr(diagnostics(b), bad[i].want))
			fail_msg("%s", diagnostics(b));
	}
}

BENCH_TEST(errors_in_overrides_have_positions)
{
	static const char *const bad[] = { "attention.n_haeds=3", "hidden",      "=3", "hidden=",
		                           "hidden=wide",         "rope={theta", NULL };

	assert_null(TEXT(b, GOOD, bad));
	assert_non_null(strstr(
	    diagnostics(b),
	    "--set:1:1: error: unknown key attention.n_haeds; did you mean attention.n_heads?"));
	assert_non_null(strstr(diagnostics(b), "--set:1:1: error: --set needs key=value"));
	assert_non_null(
	    strstr(diagnostics(b), "--set:1:8: error: hidden = wide: an integer is expected"));
	assert_non_null(strstr(diagnostics(b), "not YAML"));
}

BENCH_TEST(values_have_source_positions)
{
	Spec *s = TEXT(b, GOOD, NULL);

	assert_int_equal(spec_loc(s, "attention.n_heads").line, 8);
	assert_int_equal(spec_loc(s, "attention.n_heads").col, 22);
	assert_string_equal(spec_loc(s, "attention.n_heads").src->name, "in.yaml");
	assert_int_equal(spec_loc(s, "attention.n_kv_heads").line, 0); /* a default */
	assert_string_equal(spec_get(s, &b->arena, "attention.n_kv_heads"), "6");
	assert_string_equal(spec_get(s, &b->arena, "ffn.kind"), "gated");
	assert_null(spec_get(s, &b->arena, "no.such.key"));
}

static void
selects(Bench *b, const char *yaml, int n, const char *want)
{
	uint8_t out[64];
	char have[65] = "";
	Node *node =
	    yaml_parse(yaml_source(&b->arena, "s", yaml, strlen(yaml)), &b->diag, &b->arena);

	assert_non_null(node);
	if (!selector_read(node, "key", n, out, &b->diag))
		fail_msg("%s: %s", yaml, diagnostics(b));
	for (int i = 0; i < n; i++)
		have[i] = out[i] ? '1' : '0';
	assert_string_equal(have, want);
	/* its text selects the same layers */
	uint8_t again[64];
	const char *text = selector_text(out, n, &b->arena);
	assert_true(selector_read(
	    yaml_parse(yaml_source(&b->arena, "s", text, strlen(text)), &b->diag, &b->arena), "key",
	    n, again, &b->diag));
	assert_memory_equal(out, again, (size_t)n);
}

BENCH_TEST(selectors)
{
	selects(b, "all", 6, "111111");
	selects(b, "none", 6, "000000");
	selects(b, "[]", 6, "000000");
	selects(b, "3", 6, "000100");
	selects(b, "\"0-2, 5\"", 6, "111001");
	selects(b, "[0, 4-5]", 6, "100011");
	selects(b, "{every: 2}", 6, "101010");
	selects(b, "{every: 2, at: 1}", 6, "010101");
	selects(b, "{from: 3}", 6, "000111");
	selects(b, "{from: 3, every: 2}", 8, "00001010");
	selects(b, "{not_every: 6, at: 5}", 13, "1111101111101");
	selects(b, "{every: 1, except: [0, 5]}", 6, "011110");
	selects(b, "{except: {from: 4}}", 6, "111100");
}

BENCH_TEST(storage_rules_in_order)
{
	Spec *s = TEXT(b,
	               GOOD "storage: {default: q4_0, rules: [{tensor: q.bias, type: f32}, "
	                    "{tensor: down, layers: \"0-1\", type: q6_k}, "
	                    "{tensor: down, type: q5_0}, {tensor: embed, layers: all, type: q8_0}, "
	                    "{layers: 3, type: f16}]}\n",
	               NULL);

	assert_non_null(s);
	assert_int_equal(spec_storage(s, "down", 0).dtype, DT_Q6_K);
	assert_int_equal(spec_storage(s, "down", 3).dtype, DT_Q5_0);
	assert_int_equal(spec_storage(s, "embed", -1).dtype, DT_Q8_0);
	assert_int_equal(spec_storage(s, "up", 3).dtype, DT_F16);
	assert_int_equal(spec_storage(s, "up", 2).dtype, DT_Q4_0);
	assert_int_equal(spec_storage(s, "head", -1).dtype, DT_Q4_0);
	assert_int_equal(spec_storage(s, "q.bias", 0).dtype, DT_F32);
	assert_int_equal(spec_storage(s, "q", 0).dtype, DT_Q4_0);
	assert_int_equal(spec_storage(s, "down.bias", 0).dtype, DT_Q6_K); /* follows its role */
	s = TEXT(b,
	         GOOD "storage: {rules: [{tensor: k, type: u4_32, order: q}, {tensor: o, type: "
	              "u4_32, factor: o}]}\n",
	         NULL);
	assert_non_null(s);
	assert_string_equal(spec_storage(s, "k", 0).order, "q");
	assert_null(spec_storage(s, "k", 0).factor);
	assert_string_equal(spec_storage(s, "o", 0).factor, "o");
	assert_non_null(strstr(s->yaml, "type: u4_32, order: q}"));
}

BENCH_TEST(tensor_rules_replace_by_role)
{
	Spec *s = TEXT(
	    b,
	    GOOD "tensors: {layer: \"blocks.{l}\", q+k+v: \".qkv | per_head transpose\", head: "
	         "/out, drop: [.mask, x]}\nnames: {prefix: top., replace: \"top.model.>m.\"}\n",
	    NULL);

	assert_non_null(s);
	const TensorRule *k = rule_for(s->tensor_rule, s->n_tensor_rule, "k");
	assert_string_equal(k->role, "q+k+v");
	assert_string_equal(k->name, "top.blocks.{l}.qkv");
	assert_true(k->per_head && k->transpose && !k->stacked && !k->whole);
	assert_string_equal(rule_for(s->tensor_rule, s->n_tensor_rule, "head")->name, "out");
	assert_string_equal(rule_for(s->tensor_rule, s->n_tensor_rule, "embed")->name,
	                    "m.embed_tokens");
	int n = 0, drops = 0;
	for (int i = 0; i < s->n_tensor_rule; i++) {
		n += rule_has_role(s->tensor_rule[i].role, "v");
		drops += strcmp(s->tensor_rule[i].role, "drop") == 0;
	}
	assert_int_equal(n, 1);
	assert_int_equal(drops, 3); /* including the family's */
}

BENCH_TEST(latent_attention_scale_follows_yarn)
{
	Spec *s =
	    TEXT(b,
	         "llmc: 1\nname: t\nfamily: deepseek_v2\nvocab_size: 300\nmax_positions: "
	         "256\nn_layers: 2\nhidden: 96\nffn: {width: 64}\n"
	         "attention: {n_heads: 4, kv_rank: 32, nope_dim: 16, rope_dim: 8, v_dim: 16}\n"
	         "rope: {scaling: {kind: yarn, factor: 40, original_positions: 64, mscale: 0.707, "
	         "mscale_all_dim: 0.707}}\n",
	         NULL);

	assert_non_null(s);
	assert_int_equal(s->attention.head_dim, 24);
	assert_int_equal(s->rope[0].dims, 8);
	double m = 0.1 * 0.707 * log(40) + 1;
	assert_true(fabs(s->attention.scale - m * m / sqrt(24)) < 1e-12);
	/* read back, the factor is not applied again */
	Spec *again = TEXT(b, s->yaml, NULL);
	assert_true(again->attention.scale == s->attention.scale);
}

static void
fixpoint(Bench *b, const char *path)
{
	Spec *s = spec_from_file(path, NULL, &b->diag, &b->arena);

	if (!s)
		fail_msg("%s", diagnostics(b));
	Spec *again =
	    spec_from_text("resolved", s->yaml, strlen(s->yaml), NULL, &b->diag, &b->arena);
	if (!again)
		fail_msg("%s", diagnostics(b));
	assert_string_equal(again->yaml, s->yaml);
	assert_string_equal(again->sha256, s->sha256);
	assert_int_equal(again->n_tensor_rule, s->n_tensor_rule);
}

BENCH_TEST(resolved_text_is_a_fixpoint)
{
	static const char *const name[] = { "smollm2-135m",  "llama2-7b",        "llama2-70b",
		                            "llama3-8b",     "llama3-70b",       "llama3.2-1b",
		                            "mistral-7b",    "qwen2.5-7b",       "qwen3-8b",
		                            "tiny",          "deepseek-v2-lite", "deepseek-v2",
		                            "deepseek-v3",   "mixtral-8x7b",     "qwen3-30b-a3b",
		                            "gemma2-9b",     "phi3-mini",        "glm4-9b",
		                            "chatglm3-6b",   "baichuan2-13b",    "bloom-7b1",
		                            "gpt-oss-20b",   "qwen3.5-9b",       "qwen3.5-35b-a3b",
		                            "gemma4-26b-a4b" };

	for (size_t i = 0; i < sizeof name / sizeof *name; i++)
		fixpoint(b, arena_printf(&b->arena, "configs/%s.yaml", name[i]));
	fixpoint(b, "tests/golden/yaml-errors/good/in.yaml");
}

BENCH_TEST(resolved_text_keeps_its_format)
{
	static const char *const gguf[] = { "checkpoint=gguf", NULL };
	Spec *s = TEXT(b, GOOD, NULL);

	assert_null(TEXT(b, s->yaml, gguf));
	assert_non_null(strstr(diagnostics(b), "has the tensor names of another format"));
}

/* Numbers are written and read with a decimal point in every locale. */
BENCH_TEST(numbers_do_not_follow_the_locale)
{
	static const char text[] =
	    GOOD "rope: {theta: 12345.5}\nnorm: {eps: 1.5e-6}\ntensors: {drop: x | all=0.5}\n";
	Spec *plain = TEXT(b, text, NULL);

	locale_comma();
	Spec *there = TEXT(b, text, NULL);
	setlocale(LC_ALL, "C");
	assert_string_equal(plain->yaml, there->yaml);
	assert_non_null(strstr(plain->yaml, "theta: 12345.5\n"));
	assert_non_null(strstr(plain->yaml, "eps: 1.5e-06\n"));
	assert_non_null(strstr(plain->yaml, "all=0.5"));
}

BENCH_TEST(text_survives_quoting)
{
	static const char *const words[] = { "a",
		                             "true",
		                             "1.5",
		                             "",
		                             "a: b",
		                             "# x",
		                             "\"q\"",
		                             "back\\slash",
		                             "new\nline",
		                             "tab\there",
		                             "\xe9\x97\xae {text}",
		                             "-x",
		                             "null",
		                             " lead",
		                             "{a}" };

	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		const char *text =
		    arena_printf(&b->arena, "k: %s\n", spec_quote(&b->arena, words[i]));
		Node *n = yaml_parse(yaml_source(&b->arena, "q", text, strlen(text)), &b->diag,
		                     &b->arena);
		if (!n)
			fail_msg("%s: %s", text, diagnostics(b));
		assert_string_equal(node_get(n, "k")->text, words[i]);
		double v;
		bool t;
		assert_false(node_num(node_get(n, "k"), &v) || node_bool(node_get(n, "k"), &t) ||
		             node_is_null(node_get(n, "k")));
	}
}

/* An allocation that fails anywhere ends in the arena's error jump; ASan reports leaks. */
static volatile long failing;

static void
failing_allocations(void **state)
{
	(void)state;
	for (failing = 1; failing < 4000; failing += failing < 60 ? 1 : 97) {
		Arena a;
		Diag d;
		volatile bool jumped = false;
		arena_init(&a);
		a.fail_after = failing;
		if (setjmp(a.oom) == 0) {
			diag_init(&d, &a);
			Spec *s = spec_from_text("in.yaml", GOOD, strlen(GOOD), NULL, &d, &a);
			assert_non_null(s);
		} else {
			jumped = true;
		}
		arena_release(&a);
		if (!jumped)
			return;
	}
	fail_msg("every allocation failed");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_depend_on_other_keys),
		cmocka_unit_test(later_layers_hide_earlier_ones),
		cmocka_unit_test(kv_types_are_parsed),
		cmocka_unit_test(errors_in_overrides_have_positions),
		cmocka_unit_test(values_have_source_positions),
		cmocka_unit_test(selectors),
		cmocka_unit_test(storage_rules_in_order),
		cmocka_unit_test(tensor_rules_replace_by_role),
		cmocka_unit_test(latent_attention_scale_follows_yarn),
		cmocka_unit_test(resolved_text_is_a_fixpoint),
		cmocka_unit_test(resolved_text_keeps_its_format),
		cmocka_unit_test(numbers_do_not_follow_the_locale),
		cmocka_unit_test(text_survives_quoting),
		cmocka_unit_test(failing_allocations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

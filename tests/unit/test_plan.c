/* The plan reader and checker: a plan is read completely, and each way to break it is rejected with
 * a message that names the position. Edits replace the first occurrence of a string. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/plan.h"
#include "tests/unit/tiny_plan.h"

static llmc_status
read_text(const char *text, size_t size, llmc_error *err, Arena *a, Plan **out)
{
	arena_init(a);
	*err = (llmc_error){ 0 };
	if (setjmp(a->oom))
		return LLMC_E_MEMORY;
	return plan_read(text, size, "p.json", a, out, err);
}

static char *
edited(const char *text, const char *from, const char *to)
{
	const char *at = strstr(text, from);
	size_t n = strlen(text) - strlen(from) + strlen(to) + 1;

	if (!at)
		fail_msg("the plan does not hold %s", from);
	char *s = malloc(n);
	assert_non_null(s);
	snprintf(s, n, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
	return s;
}

static void
a_plan_is_read_back_unchanged(void **state)
{
	llmc_error err;
	Arena a, b;
	Plan *p, *q;
	Strbuf first = { 0 }, second = { 0 };

	(void)state;
	assert_int_equal(read_text(tiny_plan, sizeof tiny_plan - 1, &err, &a, &p), LLMC_OK);
	assert_int_equal(p->n_tensor, 4);
	assert_int_equal(p->tensor[2].n_src, 2);
	assert_int_equal(p->n_eos, 2);
	assert_int_equal(p->phase[1].n_step, 5);
	const PlanStep *s = &p->phase[0].step[1];
	assert_int_equal(s->arg[8].kind, REF_POOL);
	assert_int_equal(s->arg[7].kind, REF_ROPE);
	assert_int_equal(s->arg[2].kind, REF_NONE);
	assert_int_equal(s->make[1].arg, -1);
	assert_int_equal(s->attr[5].kind, ATTR_NUM);
	assert_true(s->attr[5].f == 1e-5);
	assert_string_equal(s->attr[10].s, "half");
	assert_int_equal(p->slot[2].sym, SYM_n_tok);
	assert_int_equal(p->slot[2].mul, 24);
	plan_write(p, &first);
	assert_int_equal(read_text(first.data, first.len, &err, &b, &q), LLMC_OK);
	plan_write(q, &second);
	assert_string_equal(first.data, second.data);
	strbuf_release(&first);
	strbuf_release(&second);
	arena_release(&a);
	arena_release(&b);
}

/* Keys of a RoPE table with sections */
#define SECTIONS(n, interleaved, frequencies)                                                      \
	"\"axis\":0,\"sections\":[" n "],\"interleaved\":" interleaved                             \
	",\"frequencies\":\"" frequencies "\""

static const struct {
	const char *from, *to, *text;
} bad[] = {
	/* reader */
	{ "{\"format\":6", "{\"format\":6,", "not valid JSON: " },
	{ "\"format\":6,", "", "p.json: format: is missing: this is not a plan" },
	{ "\"format\":6", "\"format\":1",
	  "p.json: format: is 1, this llmc reads 6: compile the model again with this llmc" },
	{ "\"step_abi\":4", "\"step_abi\":7",
	  "p.json: step_abi: is 7, this llmc needs 4: compile the model again with "
	  "this llmc" },
	{ "\"vocab\":6,", "\"vocab\":6,\"vocab\":6,", "not valid JSON: duplicate object key" },
	{ "\"vocab\":6,", "", "p.json: vocab: is missing" },
	{ "\"vocab\":6,", "\"vocab\":6,\"colour\":6,",
	  "p.json: unknown key \"colour\"; this llmc reads plan format 6" },
	{ "\"vocab\":6", "\"vocab\":6.0",
	  "p.json: vocab: is a number with a point, expected an integer" },
	{ "\"vocab\":6", "\"vocab\":0", "p.json: vocab: is 0, expected 1 .. 2147483647" },
	{ "\"hard_limit\":false", "\"hard_limit\":0",
	  "p.json: hard_limit: is an integer, expected true or false" },
	{ "\"eos\":[2,3]", "\"eos\":[1,2,3,4,5,6,7,8,9]",
	  "p.json: eos: has 9 elements, expected 0 .. 8" },
	{ "\"eos\":[2,3]", "\"eos\":{}", "p.json: eos: is an object, expected an array" },
	{ "\"name\":\"tiny\"", "\"name\":null", "p.json: name: is null, expected a string" },
	{ "\"theta\":10000.0", "\"theta\":10000",
	  "p.json: rope[0].theta: is an integer, expected a number with a point or an exponent" },
	{ "\"logits\":\"logits\",", "\"logits\":\"emb\",",
	  "p.json: logits: \"emb\" is not a buffer of this plan" },
	{ "\"dtype\":\"f32\",\"rows\":6", "\"dtype\":\"f31\",\"rows\":6",
	  "p.json: tensor[0].dtype: unknown dtype \"f31\"" },
	{ "\"id\":\"qkv\"", "\"id\":\"norm\"", "p.json: the id \"norm\" is used twice" },
	{ "\"id\":\"q\"", "\"id\":\"norm\"", "p.json: the id \"norm\" is used twice" },
	{ "\"id\":\"qkv\"", "\"id\":\"q:v\"",
	  "p.json: tensor[2].id: \"q:v\" is not an id: ids are not empty and contain no ':'" },
	{ "\"block\":6", "\"block\":0",
	  "p.json: tensor[0].src[0].block: is 0, expected 1 .. 281474976710656" },
	{ "\"unit_rows\":false", "\"unit_rows\":\"no\"",
	  "p.json: tensor[0].src[0].unit_rows: is a string, expected true or false" },
	{ "\"extent\":{\"n_tok\":4}", "\"extent\":{\"n_toks\":4}",
	  "p.json: buffer[0].extent: unknown symbol \"n_toks\" in an extent" },
	{ "\"extent\":{\"n_tok\":4}", "\"extent\":{\"n_tok\":[4]}",
	  "p.json: buffer[0].extent: an extent with a divisor is [mul, div]" },
	{ "\"extent\":{\"n_tok\":4}", "\"extent\":\"big\"",
	  "p.json: buffer[0].extent: is not an extent: expected c, {\"n_tok\": mul} or {\"n_tok\": "
	  "[mul, div]}" },
	{ "\"slot\":0}", "\"slot\":3}", "p.json: buffer[0].slot: is 3, expected 0 .. 2" },
	{ "\"id\":\"decode\"", "\"id\":\"encode\"",
	  "p.json: phase: are \"encode\" and \"mixed\", expected \"decode\" and \"mixed\"" },
	{ "\"arg\":[\"emb\",\"x\"]", "\"arg\":[\"emb\",\"y\"]",
	  "p.json: phase[0].step[0].arg[1]: \"y\" is not a tensor or buffer of this plan" },
	{ "\"arg\":[\"emb\",\"x\"]", "\"arg\":[\"emb\",5]",
	  "p.json: phase[0].step[0].arg[1]: is an integer, expected a reference (a string or "
	  "null)" },
	{ "\"rope:0\"", "\"rope:1\"",
	  "p.json: phase[0].step[1].arg[7]: \"rope:1\" is not a rotary table of this plan" },
	{ "\"rope:0\"", "\"rope:00\"",
	  "p.json: phase[0].step[1].arg[7]: \"rope:00\" is not a rotary table of this plan" },
	{ "\"kv:kv:0\"", "\"kv:kv:1\"",
	  "p.json: phase[0].step[1].arg[8]: \"kv:kv:1\" is not a pool and layer of this plan" },
	{ "\"kv:kv:0\"", "\"kv:vk:0\"",
	  "p.json: phase[0].step[1].arg[8]: \"kv:vk:0\" is not a pool and layer of this plan" },
	{ "\"kernel\":null", "\"kernel\":\"k\"",
	  "p.json: phase[0].step[0].kernel: \"k\" is not a kernel of this plan" },
	{ "\"scale\":1.0", "\"scale\":true",
	  "p.json: phase[0].step[0].attr.scale: is true or false, expected an integer, a number or "
	  "a word" },
	{ "\"scale\":1.0", "\"scale\":[1]",
	  "p.json: phase[0].step[0].attr.scale: is an array, expected an integer, a number or a "
	  "word" },
	{ "\"arg\":1}]", "\"arg\":2}]",
	  "p.json: phase[0].step[0].make[0].arg: is 2, expected -1 .. 1" },
	{ "\"layer\":0", "\"layer\":1", "p.json: phase[0].step[1].layer: is 1, expected -1 .. 0" },

	/* tensors */
	{ "\"scale_cols\":0", "\"scale_cols\":64",
	  "p.json: tensor emb: f32 has a scale per block and cannot share scales" },
	{ "\"dtype\":\"f32\",\"rows\":8,\"cols\":4,\"layout\":\"r8\",\"scale_cols\":0",
	  "\"dtype\":\"u4_32\",\"rows\":8,\"cols\":96,\"layout\":\"r8\",\"scale_cols\":64",
	  "p.json: tensor qkv: 64 columns cannot share a scale: they are not a multiple of the "
	  "group size "
	  "of u4_32, or do not divide 96" },
	{ "\"layout\":\"r8\"", "\"layout\":\"r7\"", "p.json: tensor qkv: unknown layout \"r7\"" },
	{ "\"rows\":8,\"cols\":4", "\"rows\":9,\"cols\":4",
	  "p.json: tensor qkv has 9 rows, its sources give 8" },
	{ "\"first\":0,\"block\":6", "\"first\":1,\"block\":6",
	  "p.json: tensor emb: source emb.weight has 6 rows, its blocks reach row 7" },
	{ "\"stride\":6,\"n_block\":1", "\"stride\":6,\"n_block\":2",
	  "p.json: tensor emb: source emb.weight has 6 rows, its blocks reach row 12" },
	{ "\"stride\":6,\"n_block\":1", "\"stride\":281474976710656,\"n_block\":281474976710656",
	  "p.json: tensor emb: source emb.weight is too large" },
	{ "\"name\":\"emb.weight\",\"rows\":6,\"cols\":4",
	  "\"name\":\"emb.weight\",\"rows\":6,\"cols\":5",
	  "p.json: tensor emb: source emb.weight has rows of 5 elements, expected 4" },
	{ "\"rope_pairs\":0", "\"rope_pairs\":4",
	  "p.json: tensor emb: source emb.weight: 6 rows are not a multiple of the rotary "
	  "head size 4" },
	{ "\"stored\":null", "\"stored\":\"q9\"",
	  "p.json: tensor emb: source emb.weight: stored as \"q9\", which is not a weight type" },
	{ "\"stored\":null", "\"stored\":\"i32\"",
	  "p.json: tensor emb: source emb.weight: stored as \"i32\", which is not a weight type" },
	{ "\"stored\":null", "\"stored\":\"q4_0\"",
	  "p.json: tensor emb: source emb.weight: rows of 4 elements are not a multiple of the "
	  "q4_0 block size" },
	{ "\"stored\":null", "\"stored\":4",
	  "p.json: tensor[0].src[0].stored: is an integer, expected a string" },
	{ "\"transpose\":0", "\"transpose\":6",
	  "p.json: tensor emb: source emb.weight is [6, 4], not a stack of [4, 6] to transpose" },
	{ "\"dtype\":\"f32\",\"rows\":6", "\"dtype\":\"i32\",\"rows\":6",
	  "p.json: tensor emb: weights of type i32 are not supported" },
	{ "\"dtype\":\"f32\",\"rows\":6", "\"dtype\":\"q8_0\",\"rows\":6",
	  "p.json: tensor emb: rows of 4 elements are not a multiple of the q8_0 block size" },
	{ "\"layout\":\"f32\"", "\"layout\":\"r8\"",
	  "p.json: tensor norm: a vector of f32 in layout \"r8\" is not supported" },

	/* pools, RoPE tables */
	{ "\"k\":\"f32\"", "\"k\":\"q8_0\"",
	  "p.json: pool[0].k: \"q8_0\" is not a KV type; expected one of f32 f16 bf16 f8 "
	  "int8 f8_32 int8_32 int6 int4 int4c" },
	{ "\"rotate\":false", "\"rotate\":true",
	  "p.json: pool kv: f32 and f32 rows are not rotated" },
	{ "\"k\":\"f32\",\"v\":\"f32\"", "\"k\":\"int8\",\"v\":\"int4\"", NULL },
	{ "\"v\":\"f32\",\"rotate\":false", "\"v\":\"int6\",\"rotate\":1",
	  "p.json: pool[0].rotate: is an integer, expected true or false" },
	{ "\"k\":\"f32\",\"v\":\"f32\",\"rotate\":false,\"n_layers\":1,\"kv_heads\":1,\"k_dim\":2",
	  "\"k\":\"int4\",\"v\":\"int4\",\"rotate\":false,\"n_layers\":1,\"kv_heads\":1,\"k_dim\":"
	  "34",
	  "phase decode, step[1]: norm_qkv: pool kv differs from the op in head counts or "
	  "dimensions" },
	{ "\"keep\":0", "\"keep\":0,\"recent\":9,\"sinks\":1",
	  "p.json: pool kv: exact pages need quantised keys or values" },
	{ "\"keep\":0", "\"keep\":0,\"recent\":9", "p.json: pool[0].sinks: is missing" },
	{ "\"keep\":0", "\"keep\":0,\"recent\":9,\"sinks\":2000000",
	  "p.json: pool[0].sinks: is 2000000, expected 0 .. 1048576" },
	{ "{\"op\":\"attention\"",
	  "{\"op\":\"kv_quantize_page\",\"layer\":0,\"kernel\":null,\"arg\":[\"kv:kv:0\",null,null]"
	  ",\"attr\":{\"kv_heads\":1,\"dim\":2,\"v_dim\":2},\"make\":[],\"yaml_line\":0,"
	  "\"weight_bytes\":0,\"flops_per_row\":0},\n{\"op\":\"attention\"",
	  "kv_quantize_page: keys of pool kv need a per-channel type, but have f32" },
	{ "{\"op\":\"attention\"",
	  "{\"op\":\"mla_attention\",\"layer\":0,\"kernel\":null,\"arg\":[\"q\",\"o\",\"o\",\"kv:"
	  "kv:0\",null,null,\"att\"],"
	  "\"attr\":{\"heads\":1,\"kv_rank\":2,\"nope_dim\":2,\"rope_dim\":2,\"v_dim\":2,\"index_"
	  "top_k\":3,\"scale\":1.0},\"make\":[],\"yaml_line\":0,"
	  "\"weight_bytes\":0,\"flops_per_row\":0},\n{\"op\":\"attention\"",
	  "mla_attention: index_top_k is 3, but there is no argument sel" },
	{ "{\"op\":\"attention\"",
	  "{\"op\":\"mla_attend\",\"layer\":0,\"kernel\":null,\"arg\":[\"q\",null,null,\"kv:kv:0\","
	  "null,\"x\",\"att\"],"
	  "\"attr\":{\"heads\":1,\"kv_rank\":2,\"nope_dim\":2,\"rope_dim\":2,\"v_dim\":2,"
	  "\"expand\":0,\"index_top_k\":0,\"scale\":1.0},\"make\":[],\"yaml_line\":0,"
	  "\"weight_bytes\":0,\"flops_per_row\":0},\n{\"op\":\"attention\"",
	  "mla_attend: index_top_k is 0, but there is an argument sel" },
	{ "\"vocab\":6", "\"kv_host\":8192,\"vocab\":6", NULL },
	{ "\"vocab\":6", "\"kv_host\":0,\"vocab\":6", "p.json: kv_host: is 0, expected 1 .. " },
	{ "\"prompt_whole\":false", "\"kv_host\":8192,\"prompt_whole\":true",
	  "p.json: kv_host: the prefix cache does not hold pages" },
	{ "\"mla\":false", "\"mla\":true",
	  "p.json: pool kv: a latent pool has one head and no v_dim" },
	{ "\"scaling\":\"none\"", "\"scaling\":\"odd\"",
	  "p.json: rope[0]: unknown scaling \"odd\"" },
	{ "\"scaling\":\"none\"", "\"scaling\":\"longrope\"",
	  "p.json: rope[0]: scaling longrope has 0 short and 0 long factors, expected 1 of each" },
	{ "\"scaling\":\"none\"", "\"scaling\":\"yarn\"",
	  "p.json: rope[0]: scaling yarn has beta_fast 0 and beta_slow 0, they must be above 0" },
	{ "\"scaling\":\"none\"", "\"scaling\":\"llama3\"",
	  "p.json: rope[0]: scaling llama3 has low_freq_factor 0 and high_freq_factor 0, expected "
	  "0 < low < high" },
	{ "\"axis\":0", SECTIONS("1,1,1", "true", "restart"),
	  "p.json: rope[0]: interleaved sections have the frequencies of the whole head, not "
	  "\"restart\"" },
	{ "\"axis\":0", SECTIONS("0,1,1", "true", "alternate"),
	  "p.json: rope[0]: interleaved sections have the frequencies of the whole head, not "
	  "\"alternate\"" },
	{ "\"axis\":0", SECTIONS("1,1,1", "false", "restart"),
	  "p.json: rope[0]: sections add up to 3 pairs, dims is 2" },
	{ "\"axis\":0", SECTIONS("0,1,0", "false", "odd"),
	  "p.json: rope[0]: unknown frequencies \"odd\"" },
	{ "\"dims\":2", "\"dims\":3", "p.json: rope[0]: dims is 3, it must be even" },
	{ "\"theta\":10000.0", "\"theta\":1.0", "p.json: rope[0]: theta is 1, it must be above 1" },
	{ "\"short_factor\":[]", "\"short_factor\":[0.0]",
	  "p.json: rope[0]: a factor is not above 0" },

	/* memory */
	{ "{\"n_tok\":16}", "{\"n_tok\":15}",
	  "p.json: buffer x does not fit slot 0 for all values of the symbols" },
	{ "{\"n_tok\":16}", "{\"n_seq\":16}",
	  "p.json: buffer x does not fit slot 0 for all values of the symbols" },
	{ "{\"n_tok\":16}", "{\"n_tok\":[16,2]}",
	  "p.json: buffer x does not fit slot 0 for all values of the symbols" },
	{ "{\"n_tok\":16}", "16384",
	  "p.json: buffer x does not fit slot 0 for all values of the symbols" },
	{ "{\"n_tok\":24}", "{\"n_tok\":23}",
	  "p.json: buffer logits does not fit slot 2 for all values of the symbols" },
	{ "{\"n_tok\":24}", "{\"n_out\":24}",
	  "p.json: buffer att does not fit slot 2 for all values of the symbols" },
	{ "\"slot\":1}", "\"slot\":1,\"offset\":64}", "p.json: buffer[1]: unknown key \"offset\"" },
	{ "\"extent\":{\"n_out\":6}", "\"extent\":{\"n_out\":5}",
	  "p.json: buffer logits cannot hold the logits: expected f32, n_out rows of 6" },
	{ "\"id\":\"x\",\"dtype\":\"f32\"", "\"id\":\"x\",\"dtype\":\"q4_0\"",
	  "p.json: buffer x: activations of type q4_0 are not supported" },

	/* steps */
	{ "\"op\":\"embed\"", "\"op\":\"embod\"",
	  "p.json: phase[0].step[0].op: \"embod\" is not an op of this llmc" },
	{ "\"op\":\"embed\"", "\"op\":\"nop\"",
	  "p.json: phase[0].step[0].op: \"nop\" is not an op of this llmc" },
	{ "\"scale\":1.0", "\"scale\":1.0,\"tile\":8",
	  "p.json: phase decode, step[0]: embed: 3 attributes, expected 2: hidden scale" },
	{ "\"rope_dims\":2", "\"rope_dims\":4",
	  "step[1]: norm_qkv: attributes violate the rule rope_dims <= dim" },
	{ "\"arg\":[\"emb\",\"x\"]", "\"arg\":[\"emb\",\"x\",null]", "phase decode, step[0]" },
	{ "\"arg\":[\"emb\",\"x\"]", "\"arg\":[\"emb\",\"emb\"]", "phase decode, step[0]" },
	{ "\"attr\":{\"hidden\":4,\"scale\"", "\"attr\":{\"hidden\":8,\"scale\"",
	  "phase decode, step[0]" },
	{ "\"attr\":{\"rows\":6", "\"attr\":{\"rows\":7", "phase decode, step[4]" },
	{ "\"arg\":[\"emb\",\"x\"]", "\"arg\":[\"emb\",\"q\"]",
	  "p.json: phase decode, step[1] (norm_qkv): buffer x is read, but no step has written it "
	  "since its memory was reused" },
	{ "\"arg\":[\"att\",\"o\",null,\"x\",\"x\"]", "\"arg\":[\"q\",\"o\",null,\"x\",\"att\"]",
	  NULL },
	{ "\"id\":\"att\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":2",
	  "\"id\":\"att\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":0",
	  "p.json: phase decode, step[3] (matmul_add): buffer x is read, but no step has written "
	  "it since its memory was reused" },
	{ "\"id\":\"att\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":2}",
	  "\"id\":\"att\",\"dtype\":\"f32\",\"extent\":{\"n_tok\":4},\"slot\":1}",
	  "p.json: phase decode, step[2] (attention): buffers att and q share memory" },
};

static void
each_broken_field_is_named(void **state)
{
	int wrong = 0;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char *text = edited(tiny_plan, bad[i].from, bad[i].to);
		llmc_error err;
		Arena a;
		Plan *p;
		llmc_status s = read_text(text, strlen(text), &err, &a, &p);
		if (!bad[i].text) { /* a valid edit */
			if (s != LLMC_OK)
				print_error("%s -> %s: %s\n", bad[i].from, bad[i].to, err.text),
				    wrong++;
		} else if (s != LLMC_E_INPUT || !strstr(err.text, bad[i].text)) {
			print_error("%s -> %s: \"%s\", expected \"%s\"\n", bad[i].from, bad[i].to,
			            err.text, bad[i].text),
			    wrong++;
		}
		arena_release(&a);
		free(text);
	}
	assert_int_equal(wrong, 0);
}

static const char kernel_text[] =
    "\"kernel\":[{\"id\":\"k\",\"file\":\"kernels/k.c\",\"symbol\":\"k1\",\"arg\":["
    "{\"name\":\"w\",\"dir\":\"in\",\"type\":\"f32\",\"extent\":24},"
    "{\"name\":\"y\",\"dir\":\"out\",\"type\":\"f32\",\"extent\":{\"n_tok\":4}},"
    "{\"name\":\"tmp\",\"dir\":\"scratch\",\"type\":\"u8\",\"extent\":{\"n_tok\":16}}]}]";

static const struct {
	const char *from, *to, *text;
} bad_kernel[] = {
	{ "k1", "k1", NULL },
	{ "kernels/k.c", "../k.c",
	  "p.json: kernel k: file \"../k.c\" is not a path inside the artifact" },
	{ "kernels/k.c", "/k.c",
	  "p.json: kernel k: file \"/k.c\" is not a path inside the artifact" },
	{ "kernels/k.c", "a//k.c",
	  "p.json: kernel k: file \"a//k.c\" is not a path inside the artifact" },
	{ "\"k1\"", "\"1k\"", "p.json: kernel k: symbol \"1k\" is not the name of a C function" },
	{ "\"u8\"", "\"u9\"",
	  "p.json: kernel k: argument tmp has the type \"u9\", expected f32, f16, bf16, i32, i64, "
	  "u8 or packed" },
	{ "\"scratch\"", "\"sideways\"",
	  "p.json: kernel[0].arg[2].dir: \"sideways\" is not in, out, inout, pool, rope, "
	  "scratch or none" },
	{ "\"extent\":24", "\"extent\":25",
	  "step[0] (embed): argument w: tensor emb is smaller than what the kernel reads" },
	{ "\"type\":\"f32\",\"extent\":24", "\"type\":\"f16\",\"extent\":24",
	  "step[0] (embed): argument w is f32 in layout row, the kernel reads f16" },
	{ "\"extent\":{\"n_tok\":4}", "\"extent\":{\"n_tok\":5}",
	  "step[0] (embed): argument y: buffer x is smaller than what the kernel uses, for some "
	  "values of the symbols" },
	{ "\"extent\":{\"n_tok\":4}", "\"extent\":{\"n_part\":1}",
	  "step[0] (embed): argument y: buffer x is smaller than what the kernel uses, for some "
	  "values of the symbols" },
	{ "\"extent\":{\"n_tok\":16}", "\"extent\":{\"n_seq\":17}",
	  "step[0] (embed): argument tmp: buffer att is smaller than what the kernel uses, for "
	  "some values of the symbols" },
	{ "\"extent\":{\"n_tok\":16}", "\"extent\":{\"n_dec\":[64,4]}",
	  "step[0] (embed): argument tmp: buffer att is smaller than what the kernel uses, for "
	  "some values of the symbols" },
	{ "\"extent\":{\"n_tok\":16}", "\"extent\":{\"n_pre\":16}", NULL },
	{ "\"extent\":{\"n_tok\":16}", "\"extent\":16", NULL },
	{ "\"type\":\"f32\",\"extent\":{\"n_tok\":4}", "\"type\":\"i32\",\"extent\":{\"n_tok\":4}",
	  "step[0] (embed): argument y: buffer x is f32, the kernel needs i32" },
	{ "\"dir\":\"out\"", "\"dir\":\"none\"",
	  "step[0] (embed): argument y must be null: the kernel does not use it" },
	{ "\"dir\":\"in\"", "\"dir\":\"pool\"", "step[0] (embed): argument w must be a pool" },
	{ "\"dir\":\"in\"", "\"dir\":\"inout\"", "step[0] (embed): argument w must be a buffer" },
};

static void
kernel_arguments_are_bounded(void **state)
{
	int wrong = 0;

	(void)state;
	for (size_t i = 0; i < sizeof bad_kernel / sizeof *bad_kernel; i++) {
		char *k = edited(kernel_text, bad_kernel[i].from, bad_kernel[i].to);
		char *with = edited(tiny_plan, "\"kernel\":[]", k);
		char *text = edited(with, "\"kernel\":null,\"arg\":[\"emb\",\"x\"]",
		                    "\"kernel\":\"k\",\"arg\":[\"emb\",\"x\",\"att\"]");
		llmc_error err;
		Arena a;
		Plan *p;
		llmc_status s = read_text(text, strlen(text), &err, &a, &p);
		if (!bad_kernel[i].text && s != LLMC_OK)
			print_error("%s -> %s: %s\n", bad_kernel[i].from, bad_kernel[i].to,
			            err.text),
			    wrong++;
		if (bad_kernel[i].text &&
		    (s != LLMC_E_INPUT || !strstr(err.text, bad_kernel[i].text)))
			print_error("%s -> %s: \"%s\", expected \"%s\"\n", bad_kernel[i].from,
			            bad_kernel[i].to, err.text, bad_kernel[i].text),
			    wrong++;
		arena_release(&a);
		free(text);
		free(with);
		free(k);
	}
	assert_int_equal(wrong, 0);
}

/* A kernel may have more arguments than its op: an argument after the op's own is never an input
 * that the output may share. */
static void
arguments_beyond_the_op_share_nothing(void **state)
{
	static const char from[] = "\"kernel\":null,\"arg\":[\"att\",\"o\",null,\"x\",\"x\"]";
	static const char none[] =
	    "{\"name\":\"a\",\"dir\":\"none\",\"type\":\"f32\",\"extent\":0},";
	static const char rows[] =
	    "{\"name\":\"a\",\"dir\":\"%s\",\"type\":\"f32\",\"extent\":{\"n_tok\":4}}%s";
	Strbuf kernel = { 0 }, arg = { 0 };
	llmc_error err;
	Arena a;
	Plan *p;

	(void)state;
	strbuf_puts(
	    &kernel,
	    "\"kernel\":[{\"id\":\"k\",\"file\":\"kernels/k.c\",\"symbol\":\"k1\",\"arg\":[");
	strbuf_puts(&arg, "\"kernel\":\"k\",\"arg\":[\"att\",\"o\",null,\"x\",\"x\"");
	strbuf_printf(&kernel, rows, "in", ",");
	strbuf_puts(&kernel, "{\"name\":\"a\",\"dir\":\"in\",\"type\":\"packed\",\"extent\":0},");
	strbuf_puts(&kernel, none);
	strbuf_printf(&kernel, rows, "in", ",");
	strbuf_printf(&kernel, rows, "out", ",");
	for (int i = 5; i + 1 < PLAN_MAX_ARGS; i++) {
		strbuf_puts(&kernel, none);
		strbuf_puts(&arg, ",null");
	}
	strbuf_printf(&kernel, rows, "in", "]}]");
	strbuf_puts(&arg, ",\"x\"]");
	char *with = edited(tiny_plan, "\"kernel\":[]", strbuf_str(&kernel)),
	     *text = edited(with, from, strbuf_str(&arg));
	assert_int_equal(read_text(text, strlen(text), &err, &a, &p), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "step[3] (matmul_add): buffers x and x share memory"));
	arena_release(&a);
	free(text);
	free(with);
	strbuf_release(&kernel);
	strbuf_release(&arg);
}

/* Truncated anywhere, the text is rejected and nothing leaks (checked by the sanitizer build). */
static void
truncated_json_is_rejected(void **state)
{
	(void)state;
	for (size_t n = 0; n + 2 < sizeof tiny_plan; n += 37) {
		llmc_error err;
		Arena a;
		Plan *p;
		assert_int_equal(read_text(tiny_plan, n, &err, &a, &p), LLMC_E_INPUT);
		assert_null(p);
		arena_release(&a);
	}
}

static void
memory_may_run_out_anywhere(void **state)
{
	(void)state;
	for (volatile long k = 1; k < 2000; k++) {
		llmc_error err = { 0 };
		Arena a;
		Plan *p;
		arena_init(&a);
		a.fail_after = k;
		if (setjmp(a.oom)) {
			arena_release(&a);
			continue;
		}
		llmc_status s = plan_read(tiny_plan, sizeof tiny_plan - 1, "p.json", &a, &p, &err);
		arena_release(&a);
		assert_int_equal(s, LLMC_OK);
		assert_true(k > 50);
		return;
	}
	fail_msg("the plan needs more allocations than were tried");
}

static void
extents_do_not_overflow(void **state)
{
	const int64_t sym[SYM_COUNT] = { 1, 10, 3, 7, 3, 2, 4 };
	PlanExtent slot = { SYM_n_tok, 30, 1 };
	Plan p = { .n_slot = 1, .slot = &slot };

	(void)state;
	assert_int_equal(plan_extent_elems(&(PlanExtent){ SYM_n_tok, 5, 4 }, sym), 15);
	assert_int_equal(plan_extent_elems(&(PlanExtent){ SYM_n_tok, 5, 1 }, sym), 50);
	assert_int_equal(plan_extent_elems(&(PlanExtent){ SYM_one, 5, 1 }, sym), 5);
	assert_int_equal(plan_extent_elems(&(PlanExtent){ SYM_n_tok, INT64_MAX / 4, 1 }, sym), -1);
	assert_int_equal(plan_slot_bytes(&p, 0, sym), 512);
	slot.mul = INT64_MAX / 8;
	assert_int_equal(plan_slot_bytes(&p, 0, sym), -1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_plan_is_read_back_unchanged),
		cmocka_unit_test(each_broken_field_is_named),
		cmocka_unit_test(kernel_arguments_are_bounded),
		cmocka_unit_test(arguments_beyond_the_op_share_nothing),
		cmocka_unit_test(truncated_json_is_rejected),
		cmocka_unit_test(memory_may_run_out_anywhere),
		cmocka_unit_test(extents_do_not_overflow),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

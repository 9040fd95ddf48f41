/* The compiler as a whole: equal input gives equal bytes, the plan reader accepts the plans, and
 * exhausted memory is an error. */
#include "compiler_util.h"

#include <unistd.h>

#include "base/file.h"
#include "locale_comma.h"

static const char *const targets[] = { "ref", "cpu-generic", "cpu-v3", "cpu-v4" };

static const Compiled *
compile_ok(Bench *b, const char *target)
{
	const Compiled *c = compile_spec(b->spec, target, NULL, NULL, &b->diag, &b->arena);

	if (!c)
		fail_msg("%s", strbuf_str(&b->diag.text));
	return c;
}

static const ArtifactFile *
file_of(const Compiled *c, const char *path)
{
	for (size_t i = 0; i < c->n_file; i++)
		if (strcmp(c->file[i].path, path) == 0)
			return &c->file[i];
	fail_msg("%s was not written", path);
	return NULL;
}

/* ---- determinism ---- */

static void
same_files(const Compiled *a, const Compiled *b)
{
	assert_int_equal(a->n_file, b->n_file);
	for (size_t i = 0; i < a->n_file; i++) {
		assert_string_equal(a->file[i].path, b->file[i].path);
		assert_int_equal(a->file[i].size, b->file[i].size);
		assert_memory_equal(a->file[i].text, b->file[i].text, a->file[i].size);
	}
}

BENCH_TEST(same_input_same_bytes)
{
	static const char yaml[] = "llmc: 1\nname: tiny\nfamily: gemma3\nvocab_size: "
	                           "96\nmax_positions: 64\nn_layers: 3\nhidden: 32\n"
	                           "attention: {n_heads: 4, n_kv_heads: 2, head_dim: 8, score_cap: "
	                           "12.5}\nffn: {width: 48}\nhead: {tied: true}\n";
	const Compiled *c[2];
	Tempdir t;
	char cwd[1024];

	assert_int_equal(tempdir_open(&t), 0);
	assert_non_null(getcwd(cwd, sizeof cwd));
	for (int k = 0; k < 2; k++) {
		if (k) { /* compile again in another folder, and in a locale with a decimal comma */
			assert_int_equal(chdir(t.path), 0);
			locale_comma();
		}
		b->spec =
		    spec_from_text("tiny.yaml", yaml, sizeof yaml - 1, NULL, &b->diag, &b->arena);
		assert_non_null(b->spec);
		c[k] = compile_ok(b, "cpu-v3");
	}
	setlocale(LC_ALL, "C");
	assert_int_equal(chdir(cwd), 0);
	tempdir_close(&t);
	same_files(c[0], c[1]);
}

/* ---- the JSON form ---- */

static void
round_trip(Bench *b, int n)
{
	bench_file(b, tiny_models[n]);
	for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
		const Compiled *c = compile_ok(b, targets[t]);
		const ArtifactFile *f =
		    file_of(c, arena_printf(&b->arena, "plan-%s.json", targets[t]));
		Plan *p;
		llmc_error err;
		Strbuf again = { 0 };

		if (plan_read(f->text, f->size, f->path, &b->arena, &p, &err) != LLMC_OK ||
		    plan_check(p, &err) != LLMC_OK)
			fail_msg("%s: %s", tiny_models[n], err.text);
		plan_write(p, &again);
		assert_int_equal(again.len, f->size);
		assert_memory_equal(again.data, f->text, f->size);
		strbuf_release(&again);
	}
}

static void
the_reader_accepts_every_plan(void **state)
{
	(void)state;
	for (int i = 0; i < N_TINY; i++)
		bench_run(round_trip, i);
}

/* ---- files ---- */

BENCH_TEST(targets_share_an_artifact)
{
	Tempdir t;
	llmc_error err;
	const Compiled *c[3];
	Strbuf text = { 0 };

	assert_int_equal(tempdir_open(&t), 0);
	bench_file(b, "llama");
	for (int k = 0; k < 3; k++)
		c[k] = compile_ok(b, targets[k]);
	const char *dir = tempdir_file(&t, "a/b");
	for (int again = 0; again < 2; again++)
		if (artifact_write(c, 3, dir, &err) != LLMC_OK)
			fail_msg("%s", err.text);
	for (int k = 0; k < 3; k++)
		for (size_t i = 0; i < c[k]->n_file; i++) {
			strbuf_clear(&text);
			const char *path =
			    arena_printf(&b->arena, "%s/%s", dir, c[k]->file[i].path);
			assert_int_equal(file_read(path, 1 << 24, &text, &err), LLMC_OK);
			assert_int_equal(text.len, c[k]->file[i].size);
		}
	strbuf_release(&text);
	/* a folder that cannot be created is an error with a message */
	assert_int_equal(file_write(tempdir_file(&t, "plain"), "x", 1, &err), LLMC_OK);
	assert_int_not_equal(artifact_write(c, 1, tempdir_file(&t, "plain/x"), &err), LLMC_OK);
	assert_true(strlen(err.text) > 0);
	tempdir_close(&t);
}

BENCH_TEST(unknown_targets_and_stages_are_rejected)
{
	bench_file(b, "llama");
	assert_null(compile_spec(b->spec, "cpu-v9", NULL, NULL, &b->diag, &b->arena));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "cpu-v9"));
	assert_null(compile_spec(b->spec, "ref", "everything", NULL, &b->diag, &b->arena));
	assert_non_null(strstr(strbuf_str(&b->diag.text), "--dump=everything"));
}

/* a page of tiny-llama: two layers, 32 positions, keys and values of two heads of eight floats */
BENCH_TEST(host_memory_below_one_page_is_rejected)
{
	const char *set[] = { "kv.host=8192", "kv.dtype=f32", NULL };

	for (int i = 0; i < 2; i++) {
		b->spec =
		    spec_from_file("tests/golden/graphs/llama.yaml", set, &b->diag, &b->arena);
		assert_non_null(b->spec);
		assert_true((compile_spec(b->spec, "cuda-sm_80", NULL, NULL, &b->diag, &b->arena) !=
		             NULL) == (i == 0));
		set[0] = "kv.host=8191";
	}
	assert_non_null(strstr(strbuf_str(&b->diag.text),
	                       "kv.host = 8191: a page of this model has 8192 bytes"));
}

BENCH_TEST(every_stage_can_be_dumped)
{
	static const char *const stage[] = { "spec", "graph", "fuse", "order", "plan" };
	static const char *const has[] = { "n_layers: 2", "= rmsnorm ", "embed", "by reference",
		                           "memory" };

	bench_file(b, "llama");
	for (int i = 0; i < 5; i++) {
		Strbuf out = { 0 };
		assert_non_null(compile_spec(b->spec, "ref", stage[i], &out, &b->diag, &b->arena));
		if (!strstr(strbuf_str(&out), has[i]))
			fail_msg("--dump=%s has no \"%s\"", stage[i], has[i]);
		strbuf_release(&out);
	}
}

/* Equal layers are printed once, and every buffer and pool is in the table. */
BENCH_TEST(the_plan_text_folds_equal_layers)
{
	bench_file(b, "gemma2");
	const char *text = compile_ok(b, "ref")->plan_text;
	assert_non_null(strstr(text, "\nlayers 0\n"));
	assert_non_null(strstr(text, "\nlayers 1\n"));
	bench_file(b, "llama");
	text = compile_ok(b, "ref")->plan_text;
	assert_non_null(strstr(text, "\nlayers 0-1\n"));
	assert_non_null(strstr(text, "logits f32[96 x n_out]"));
}

BENCH_TEST(a_name_cannot_end_a_comment)
{
	const char *set[] = { "name=x */ int y; /*", NULL };

	b->spec = spec_from_file("tests/golden/graphs/llama.yaml", set, &b->diag, &b->arena);
	if (!b->spec)
		return; /* the description was rejected earlier, which is right too */
	const Compiled *c = compile_ok(b, "cpu-v3");
	for (size_t i = 0; i < c->n_file; i++)
		if (strncmp(c->file[i].path, "kernels/", 8) == 0)
			assert_null(strstr(c->file[i].text, "int y;"));
}

/* ---- lines ---- */

/* Steps and kernels refer to lines of the resolved description in the artifact, not of its input.
 * Each is the line of the key that the step comes from, including defaults. */
BENCH_TEST(line_numbers_refer_to_the_artifacts_description)
{
	static const struct {
		const char *op, *line;
	} want[] = {
		{ "embed", "vocab_size: 96" },   { "norm_qkv", "  n_heads: 4" },
		{ "attention", "  n_heads: 4" }, { "norm_glu", "  width: 48" },
		{ "lm_head", "  tied: false" },
	};
	size_t found = 0;

	bench_file(b, "llama");
	const Compiled *c = compile_ok(b, "cpu-v3");
	const char *yaml = file_of(c, "model.yaml")->text;
	for (int i = 0; i < c->plan->phase[0].n_step; i++) {
		const PlanStep *s = &c->plan->phase[0].step[i];
		const char *at = yaml;
		assert_true(s->yaml_line > 0);
		for (int n = 1; n < s->yaml_line; n++) {
			at = strchr(at, '\n');
			assert_non_null(at++);
		}
		for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
			if (strcmp(op_info[s->op].name, want[k].op) != 0)
				continue;
			if (strncmp(at, want[k].line, strlen(want[k].line)) != 0)
				fail_msg("%s: line %d is \"%.20s\"", op_info[s->op].name,
				         s->yaml_line, at);
			const ArtifactFile *f = file_of(c, c->plan->kernel[s->kernel].file);
			assert_non_null(
			    strstr(f->text, arena_printf(&b->arena, "lines of model.yaml: %d",
			                                 s->yaml_line)));
			found |= (size_t)1 << k;
		}
	}
	assert_int_equal(found, ((size_t)1 << sizeof want / sizeof *want) - 1);
}

/* ---- sizes and flops ---- */

BENCH_TEST(figures_match_the_model)
{
	bench_file(b, "llama");
	const Plan *p = compile_ok(b, "ref")->plan;
	/* counted by hand: the embedding and the head, two norms per layer and the final one; q, o,
	 * k, v; gate, up, down */
	int64_t layer = 2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32,
	        want = 2 * 96 * 32 + 32 + 2 * layer;
	int64_t bytes = 0, flops = 0;

	assert_int_equal(p->n_params, want);
	for (int i = 0; i < p->phase[0].n_step; i++) {
		bytes += p->phase[0].step[i].weight_bytes;
		flops += p->phase[0].step[i].flops_per_row;
	}
	/* the embedding gather and the norms are not GEMMs */
	assert_int_equal(flops, 2 * (want - 96 * 32 - 5 * 32));
	assert_int_equal(bytes,
	                 (want - 96 * 32) * 4); /* dtype f32; one row of the embedding is read */
	assert_int_equal(plan_layer_page_bytes(&p->pool[0]), 32 * 2 * 16 * 2);
}

/* ---- out of memory ---- */

/* The nth allocation of the arena fails: the call returns through the arena's error jump and leaks
 * nothing (checked by the leak sanitizer). Returns false if there were fewer allocations. */
static bool
nth_fails(long n, const char *target)
{
	Arena *arena = calloc(1, sizeof *arena);
	Diag *diag = calloc(1, sizeof *diag);
	volatile bool jumped = false;

	arena_init(arena);
	diag_init(diag, arena);
	if (setjmp(arena->oom) || setjmp(diag->bug)) {
		jumped = true;
	} else {
		const Spec *s =
		    spec_from_file("tests/golden/graphs/qwen2-moe.yaml", NULL, diag, arena);
		assert_non_null(s);
		arena->fail_after = arena->n_alloc + n;
		assert_non_null(compile_spec(s, target, NULL, NULL, diag, arena));
	}
	arena_release(arena);
	free(diag);
	free(arena);
	return jumped;
}

static void
each_failed_allocation_ends_cleanly(void **state)
{
	long n = 100000; /* in the first run n exceeds the number of allocations, so none fails */

	(void)state;
	assert_false(nth_fails(n, "cpu-v3"));
	for (n = 1; n < 40 && nth_fails(n, "cpu-v3"); n++)
		;
	assert_int_equal(n, 40);
	for (n = 40; nth_fails(n, "cpu-v3"); n += 101)
		;
	for (n = 1; nth_fails(n, "ref"); n += 151)
		;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(same_input_same_bytes),
		cmocka_unit_test(the_reader_accepts_every_plan),
		cmocka_unit_test(targets_share_an_artifact),
		cmocka_unit_test(unknown_targets_and_stages_are_rejected),
		cmocka_unit_test(host_memory_below_one_page_is_rejected),
		cmocka_unit_test(every_stage_can_be_dumped),
		cmocka_unit_test(the_plan_text_folds_equal_layers),
		cmocka_unit_test(a_name_cannot_end_a_comment),
		cmocka_unit_test(line_numbers_refer_to_the_artifacts_description),
		cmocka_unit_test(figures_match_the_model),
		cmocka_unit_test(each_failed_allocation_ends_cleanly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

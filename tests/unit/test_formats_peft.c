/* Tests how an adapter's factor pair is looked up by a module's name. The effect of adapters on
 * logits is tested in tests/e2e/test_adapters.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "formats/peft.h"
#include "tests/unit/tempdir.h"

/* An adapter of rank 1 for n modules of matrices [1, 1]: the i-th adds i + 1 */
static Peft *
adapter(const Tempdir *dir, const char *const *module, size_t n)
{
	llmc_error err = { 0 };
	Peft *p = NULL;
	FILE *f = fopen(tempdir_file(dir, "adapter_config.json"), "w");

	assert_non_null(f);
	fputs("{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1}", f);
	fclose(f);
	char *header = malloc(n * 400 + 16);
	size_t size = (size_t)sprintf(header, "{");
	for (size_t i = 0; i < n; i++)
		for (size_t side = 0; side < 2; side++)
			size += (size_t)sprintf(
			    header + size,
			    "%s\"base_model.model.%s.lora_%c.weight\": {\"dtype\": \"F32\", "
			    "\"shape\": [1, 1], \"data_offsets\": [%zu, %zu]}",
			    i || side ? ", " : "", module[i], side ? 'B' : 'A', 8 * i + 4 * side,
			    8 * i + 4 * side + 4);
	size += (size_t)sprintf(header + size, "}");
	const uint64_t length = size;
	f = fopen(tempdir_file(dir, "adapter_model.safetensors"), "wb");
	assert_non_null(f);
	fwrite(&length, sizeof length, 1, f);
	fwrite(header, 1, size, f);
	for (size_t i = 0; i < n; i++) {
		const float pair[2] = { 1, (float)i + 1 };
		fwrite(pair, sizeof pair, 1, f);
	}
	assert_int_equal(fclose(f), 0);
	free(header);
	if (peft_open(dir->path, 1, &p, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return p;
}

/* Value added to the module's only element; 0: nothing */
static float
added(Peft *p, const char *module)
{
	const PeftDelta *d;
	llmc_error err = { 0 };
	float x = 0;

	assert_int_equal(peft_delta(p, module, 1, 1, &d, &err), LLMC_OK);
	assert_int_equal(peft_has(p, module), d != NULL);
	if (d)
		peft_add(d, 0, 0, 1, &x);
	return x;
}

static void
a_name_or_its_end_finds_a_pair_and_two_ends_none(void **state)
{
	const char *const module[] = { "model.layers.1.mlp.up_proj",
		                       "model.layers.11.mlp.up_proj",
		                       "h.0.attn.c_attn",
		                       "model.h.3.mlp",
		                       "draft.h.3.mlp",
		                       "score" };
	Peft *p = adapter(*state, module, sizeof module / sizeof *module);

	assert_true(added(p, "model.layers.1.mlp.up_proj") == 1);
	assert_true(added(p, "layers.1.mlp.up_proj") == 1); /* the adapter's name is longer */
	assert_true(added(p, "language_model.model.layers.11.mlp.up_proj") == 2);
	assert_true(added(p, "transformer.h.0.attn.c_attn") == 3); /* the model's name is longer */
	assert_true(added(p, "1.mlp.up_proj") == 1);               /* does not match within "11" */
	assert_true(added(p, "mlp.up_proj") == 0);                 /* ambiguous: two layers */
	assert_true(added(p, "h.3.mlp") == 0);
	assert_true(added(p, "draft.h.3.mlp") == 5);
	assert_true(added(p, "model.layers.2.mlp.up_proj") == 0);
	assert_true(added(p, "a.score") == 6);
	assert_true(added(p, "") == 0);
	assert_string_equal(peft_unused(p), "model.h.3.mlp");
	peft_close(p);
}

static void
each_of_many_experts_has_its_own(void **state)
{
	enum { LAYERS = 7, EXPERTS = 67, N = LAYERS * EXPERTS };
	static char text[N][80];
	const char *module[N];

	for (int i = 0; i < N; i++) {
		snprintf(text[i], sizeof text[i], "model.layers.%d.mlp.experts.%d.down_proj",
		         i % LAYERS, i / LAYERS);
		module[i] = text[i];
	}
	Peft *p = adapter(*state, module, N);
	for (int i = 0; i < N; i++) {
		assert_true(added(p, text[i]) == (float)i + 1);
		assert_true(added(p, text[i] + strlen("model.")) == (float)i + 1);
	}
	assert_null(peft_unused(p));
	peft_close(p);
}

/* A factor without elements has no bytes, whatever its other dimension. */
static void
empty_factors_are_refused(void **state)
{
	static const char *const shape[][2] = { { "[1099511627776, 0]", "[0, 1099511627776]" },
		                                { "[0, 1]", "[1, 0]" },
		                                { "[1, 0]", "[0, 1]" } };
	static const char *const name[][2] = { { "m.lora_A.weight", "m.lora_B.weight" },
		                               { "m.lora_embedding_A", "m.lora_embedding_B" } };

	for (size_t i = 0; i < 6; i++) {
		llmc_error err = { 0 };
		Peft *p = NULL;
		char header[512];
		uint64_t n = (uint64_t)snprintf(
		    header, sizeof header,
		    "{\"%s\": {\"dtype\": \"F32\", \"shape\": %s, \"data_offsets\": [0, 0]}, "
		    "\"%s\": {\"dtype\": \"F32\", \"shape\": %s, \"data_offsets\": [0, 0]}}",
		    name[i % 2][0], shape[i / 2][0], name[i % 2][1], shape[i / 2][1]);
		FILE *f = fopen(tempdir_file(*state, "adapter_config.json"), "w");
		assert_non_null(f);
		fputs("{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1}", f);
		fclose(f);
		f = fopen(tempdir_file(*state, "adapter_model.safetensors"), "wb");
		assert_non_null(f);
		fwrite(&n, sizeof n, 1, f);
		fwrite(header, 1, n, f);
		fclose(f);
		assert_int_equal(peft_open(((const Tempdir *)*state)->path, 1, &p, &err),
		                 LLMC_E_INPUT);
		assert_non_null(strstr(err.text, "not empty"));
		assert_null(p);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_name_or_its_end_finds_a_pair_and_two_ends_none,
		                                tempdir_setup, tempdir_teardown),
		cmocka_unit_test_setup_teardown(empty_factors_are_refused, tempdir_setup,
		                                tempdir_teardown),
		cmocka_unit_test_setup_teardown(each_of_many_experts_has_its_own, tempdir_setup,
		                                tempdir_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Arbitrary bytes as a PEFT adapter: adapter_config.json, then adapter_model.safetensors. An
 * adapter that opens is applied to matrices of its own shapes and to matrices of other shapes. */
#include "formats/peft.h"
#include "formats/safetensors.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
apply(Peft *p, const char *module, int64_t rows, int64_t cols)
{
	float x[64] = { 0 };
	llmc_error err = { 0 };
	const PeftDelta *d;

	llmc_status status = peft_delta(p, module, rows, cols, &d, &err);
	if (status != LLMC_OK && (!err.text[0] || status == LLMC_E_BUG))
		abort();
	if (status != LLMC_OK || !d)
		return;
	if (d->cols != cols || (rows >= 0 && d->rows != rows))
		abort();
	for (int64_t row = 0; row < d->rows && row < 3; row++)
		peft_add(d, row, 0, cols < 64 ? cols : 64, x);
	if (d->rows && cols)
		peft_add(d, d->rows - 1, cols - 1, 1, x);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const modules[] = { "model.layers.0.self_attn.q_proj", "q_proj",
		                               "model.embed_tokens", "lm_head",
		                               "model.layers.0.mlp.experts#gate_up_proj" };
	const uint8_t *config;
	llmc_error err = { 0 };
	char name[200];
	Peft *p;

	folder_make();
	size_t n = part(&data, &size, &config);
	folder_put("adapter_config.json", config, n);
	folder_put("adapter_model.safetensors", data, size);
	llmc_status status = peft_open(folder, 1, &p, &err);
	if (status != LLMC_OK) {
		if (p || !err.text[0] || status == LLMC_E_BUG)
			abort();
		return 0;
	}
	for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
		peft_has(p, modules[i]);
		peft_experts(p, "model.layers.0.mlp", "down_proj", 4, 8, name, sizeof name);
		apply(p, modules[i], 4, 8);
		apply(p, modules[i], 8, 4);
		apply(p, modules[i], -1, 8);
	}
	peft_unused(p);
	peft_close(p);
	return 0;
}

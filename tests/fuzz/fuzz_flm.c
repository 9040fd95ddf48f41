/* Opens arbitrary bytes as a FastLLM model, which may be rejected. In a model that opens, all data
 * is within the file, rows can be dequantised, and the vocabulary tokenizes a string. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "formats/flm.h"
#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok)
{
	if (!ok)
		abort();
}

static void
tensors(const Flm *f, const uint8_t *data, size_t size)
{
	static uint8_t row[1 << 20];

	for (size_t i = 0; i < f->n_tensor; i++) {
		const FlmTensor *t = &f->tensor[i];
		const uint8_t *at = t->data;
		check(t->bytes >= 0 && !t->data == (t->made != NULL));
		check(!at || (at >= data && at + t->bytes <= data + size));
		int64_t bytes = t->made ? dtype_row_bytes(t->dtype, t->made->cols) : 0;
		check(!t->made || bytes > 0);
		if (t->made && bytes <= (int64_t)sizeof row) {
			(void)quant_format_row(t->made, 0, row);
			(void)quant_format_row(t->made, t->made->rows - 1, row);
		}
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	llmc_error err = { 0 };
	llmc_tokenizer *t;
	int32_t ids[64];
	size_t n;
	Flm f;
	Arena a;

	arena_init(&a);
	if (!setjmp(a.oom)) {
		if (flm_read(&a, data, size, "fuzz", &f, &err) == LLMC_OK)
			tensors(&f, data, size);
		else
			check(err.code == LLMC_E_INPUT && strncmp(err.text, "fuzz: ", 6) == 0);
	}
	arena_release(&a);
	if (text_open_flm(data, size, "fuzz", &t, &err) == LLMC_OK) {
		(void)llmc_tokenize(t, "ab  c\n<FLM_FIX_TOKEN_1>", 23, LLMC_PARSE_SPECIAL, ids, 64,
		                    &n, &err);
		llmc_tokenizer_close(t);
	}
	return 0;
}

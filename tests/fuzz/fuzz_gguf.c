/* Opens arbitrary bytes as a GGUF file, which may be rejected. A file that opens is read with every
 * function of the reader. */
#include <stdlib.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok)
{
	if (!ok)
		abort();
}

static void
read_strings(const Gguf *g, const char *key, size_t count, const uint8_t *data, size_t size)
{
	GgufStr s;

	for (size_t i = 0; i < count; i++) {
		check(gguf_arr_str(g, key, i, &s));
		check((const uint8_t *)s.s >= data && s.n <= size &&
		      (const uint8_t *)s.s + s.n <= data + size);
	}
	check(!gguf_arr_str(g, key, count, &s));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Gguf *g;
	llmc_error err = { 0 };
	float row[256];

	if (gguf_open_memory(data, size, "fuzz", &g, &err) != LLMC_OK) {
		check(!g && err.code == LLMC_E_INPUT && strncmp(err.text, "fuzz: ", 6) == 0);
		return 0;
	}
	for (size_t i = 0; i < gguf_n_keys(g); i++) {
		const char *key = gguf_key_at(g, i);
		GgufType type, elem;
		GgufStr s;
		size_t count;
		int64_t n;
		double x;

		check(gguf_type(g, key, &type, &elem, &count));
		gguf_int(g, key, &n);
		gguf_num(g, key, &x);
		check(gguf_str(g, key, &s) == (type == GGUF_STR));
		if (type == GGUF_ARR && elem == GGUF_STR)
			read_strings(g, key, count, data, size);
		else if (type == GGUF_ARR)
			for (size_t k = 0; k < count; k++)
				check(gguf_arr_num(g, key, k, &x));
	}
	const uint8_t *end = data;
	for (size_t i = 0; i < gguf_n_tensors(g); i++) {
		const GgufTensor *t = gguf_tensor_at(g, i);
		check(gguf_tensor(g, t->name) == t);
		check((t->dtype == DT_NONE) == (t->data == NULL));
		if (!t->data)
			continue;
		const uint8_t *at = t->data;
		check(at >= data && t->bytes > 0 && (size_t)t->bytes <= size &&
		      at + t->bytes <= data + size);
		if (at + t->bytes > end)
			end = at + t->bytes;
		if (quant_format_ggml(t->ggml_type)) {
			uint8_t *made = malloc((size_t)dtype_row_bytes(t->dtype, t->dim[0]));
			if (t->made) {
				quant_format_row(t->made, 0, made);
				quant_format_row(t->made, t->made->rows - 1, made);
			}
			free(made);
			continue;
		}
		dequant_row(t->dtype, at, row, dtype_info(t->dtype)->block_elems);
	}
	check(end <= data + size);
	gguf_close(g);
	return 0;
}

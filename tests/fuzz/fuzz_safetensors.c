/* Arbitrary bytes as a safetensors file: opened or rejected; an opened file covers the data exactly
 * once. Files of torch.save are read as well: their tensors may be anywhere in the file, or in
 * separate memory. */
#include <stdlib.h>
#include <string.h>

#include "formats/safetensors.h"
#include "formats/torch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok)
{
	if (!ok)
		abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Safetensors *s;
	llmc_error err = { 0 };
	uint64_t header;
	int64_t sum = 0;

	if (safetensors_open_memory(data, size, "fuzz", &s, &err) != LLMC_OK) {
		check(!s && err.code == LLMC_E_INPUT && strncmp(err.text, "fuzz: ", 6) == 0);
		return 0;
	}
	const bool torch = torch_is(data, size);
	header = 0;
	if (!torch)
		memcpy(&header, data, sizeof header);
	for (size_t i = 0; i < safetensors_n(s); i++) {
		const StTensor *t = safetensors_at(s, i);
		check(safetensors_find(s, t->name) == t);
		check(t->n_dims >= 0 && t->n_dims <= 8 && t->bytes >= 0);
		sum += t->bytes;
		check(t->data);
		if (t->dtype != DT_NONE) {
			const uint8_t *at = t->data;
			int64_t n = 1;
			for (int d = 0; d < t->n_dims; d++)
				n *= t->dim[d];
			check(dtype_row_bytes(t->dtype, n) == t->bytes);
			check(t->copied ? torch
			                : at >= data + (torch ? 0 : 8 + header) &&
			                      at + t->bytes <= data + size);
		}
	}
	check(torch || (uint64_t)sum == size - 8 - header);
	safetensors_close(s);
	return 0;
}

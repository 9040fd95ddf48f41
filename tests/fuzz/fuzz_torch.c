/* Arbitrary bytes as a file of torch.save, or as a bare pickle: read or rejected. All data that is
 * read is within the file or in separate memory. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "formats/pickle.h"
#include "formats/safetensors.h"
#include "formats/torch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok)
{
	if (!ok)
		abort();
}

static void
bare(const uint8_t *data, size_t size)
{
	const PickleValue *v = NULL;
	llmc_error err = { 0 };
	size_t at = 0;
	Arena a;

	arena_init(&a);
	if (!setjmp(a.oom)) {
		llmc_status s = pickle_read(&a, data, size, &at, "fuzz", &v, NULL, &err);
		check(s == LLMC_OK
		          ? v && at <= size
		          : err.code == LLMC_E_INPUT && strncmp(err.text, "fuzz: ", 6) == 0);
		if (s == LLMC_OK)
			(void)pickle_get(v, "model");
	}
	arena_release(&a);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	llmc_error err = { 0 };
	Safetensors *s;
	/* the loop reads the elements, so that a sanitizer checks their addresses */
	static volatile uint8_t sink;

	if (!torch_is(data, size)) {
		bare(data, size);
		return 0;
	}
	if (safetensors_open_memory(data, size, "fuzz", &s, &err) != LLMC_OK) {
		check(!s && err.code == LLMC_E_INPUT);
		return 0;
	}
	for (size_t i = 0; i < safetensors_n(s); i++) {
		const StTensor *t = safetensors_at(s, i);
		const uint8_t *at = t->data;
		check(t->n_dims >= 0 && t->n_dims <= 8 && t->bytes >= 0 && at);
		check(t->copied || (at >= data && at + t->bytes <= data + size));
		for (int64_t k = 0; k < t->bytes && k < 4096; k++)
			sink = at[k];
		(void)sink;
	}
	safetensors_close(s);
	return 0;
}

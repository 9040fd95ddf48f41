/* Any tensors beside each other, in any shapes, as a quantised matrix: refused, or made without a look beyond a tensor. The first bytes choose
 * the configuration, then each tensor has a type and a shape; its data is as long as these say, and not a byte longer. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "formats/scheme.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct Tensor { const char *name, *type; int bytes, n_dims; int64_t dim[4]; void *data; } Tensor;
typedef struct File { Tensor t[8]; int n; } File;

static const char *const names[] = { "m.qweight", "m.scales", "m.qzeros", "m.g_idx", "m.weight", "m.weight_packed", "m.weight_scale",
	"m.weight_zero_point", "m.weight_shape", "m.weight_g_idx", "m.weight_scale_inv", "m.SCB", "m.weight_scales", "m.input_scale", "m.bias",
	"m.weight_global_scale", "m.weight_scale_2", "me_blocks", "me_scales", "m.pre_quant_scale", "m._weight_qdata", "m._weight_scale", "m._weight_zero_point",
	"m.weight.absmax", "m.weight.quant_map", "m.weight.quant_state.bitsandbytes__nf4", "m.weight.nested_absmax", "m.weight.nested_quant_map",
	"m.W_q", "m.scale", "m.zero", "m.shape", "m.nbits", "m.group_size", "m.axis" };
static const struct { const char *name; int bytes; } types[] = { { "I32", 4 }, { "F16", 2 }, { "BF16", 2 }, { "F32", 4 }, { "I8", 1 },
	{ "F8_E4M3", 1 }, { "I64", 8 }, { "U8", 1 } };
static const char *const configs[] = { NULL, "{", "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 3}}",
	"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"gptq_v2\"}}",
	"{\"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemm\"}}",
	"{\"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemv\", \"group_size\": 32}}",
	"{\"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemv\", \"group_size\": 1}}",
	"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [16, 32]}}",
	"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [-1, 9223372036854775807]}}",
	"{\"quantization_config\": {\"quant_method\": \"gptq\", \"checkpoint_format\": \"marlin\"}}" };

static const char *const states[] = { "{\"blocksize\": 64, \"shape\": [8, 96]}", "{\"blocksize\": 32, \"shape\": [16, 32], \"nested_blocksize\": 256, \"nested_offset\": 0.5}",
	"{\"blocksize\": 64, \"shape\": [2147483648, 2147483648]}", "{\"blocksize\": 7, \"shape\": [3, 5]}" };

static bool
find(const void *user, const char *name, SchemeTensor *out)
{
	const File *f = user;

	for (int i = 0; i < f->n; i++)
		if (strcmp(f->t[i].name, name) == 0) {
			*out = (SchemeTensor){ name, f->t[i].type, f->t[i].n_dims, f->t[i].dim, f->t[i].data };
			return true;
		}
	return false;
}

static void
rows_of(const SchemeMatrix *m)
{
	uint8_t *row = malloc((size_t)dtype_row_bytes(m->dtype, m->cols));

	for (int64_t r = 0; r < m->rows; r += m->rows > 64 ? m->rows - 1 : 1)
		scheme_row(m, r, row);
	free(row);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* sizes that fit each other now and then */
	static const int64_t sizes[] = { 0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 96, 128, 256, 33, 7 };
	File f = { .n = 0 };
	Arena a;

	if (size < 2)
		return 0;
	const char *config = configs[data[0] % (sizeof configs / sizeof *configs)];
	for (size_t i = 1; i + 5 <= size && f.n < 8; i += 5) {
		Tensor *t = &f.t[f.n++];
		int64_t n = 1;
		*t = (Tensor){ .name = names[data[i] % (sizeof names / sizeof *names)], .type = types[data[i + 1] % 8].name,
			.bytes = types[data[i + 1] % 8].bytes, .n_dims = data[i + 2] % 4, .dim = { sizes[data[i + 3] % 16], sizes[data[i + 3] / 16], sizes[data[i + 4] % 16] } };
		for (int d = 0; d < t->n_dims; d++)
			n *= t->dim[d];
		t->data = malloc((size_t)n * (size_t)t->bytes + (n == 0));
		for (int64_t k = 0; k < n * t->bytes; k++)
			((uint8_t *)t->data)[k] = t->bytes == 8 || data[i + 4] & 0x40 ? (uint8_t)(k % 8 ? 0 : data[i + 4]) : (uint8_t)(k * 37 + data[i + 4]);
	}
	/* JSON that is read, now and then */
	for (int i = 0; i < f.n; i++)
		if (strstr(f.t[i].name, "quant_state") && f.t[i].n_dims == 1 && f.t[i].bytes == 1) {
			const char *const said = states[f.t[i].dim[0] % 4];
			free(f.t[i].data);
			f.t[i].dim[0] = (int64_t)strlen(said);
			f.t[i].data = malloc(strlen(said));
			memcpy(f.t[i].data, said, strlen(said));
		}
	arena_init(&a);
	if (setjmp(a.oom))
		abort();
	Schemes *s;
	llmc_error err = { 0 };
	if (schemes_open(&a, config, config ? strlen(config) : 0, &s, &err) != LLMC_OK)
		abort();
	for (int i = 0; i < f.n; i++) {
		const char *parts[SCHEME_MAX_PARTS], *name;
		SchemeMatrix *m = NULL;
		int n_part;
		if (scheme_matrix(s, f.t[i].name, find, &f, &m, &name, parts, &n_part, &err) == LLMC_OK && m)
			rows_of(m);
		else if (!m && err.code != LLMC_OK && (err.code != LLMC_E_INPUT || !*err.text))
			abort();
	}
	arena_release(&a);
	for (int i = 0; i < f.n; i++)
		free(f.t[i].data);
	return 0;
}

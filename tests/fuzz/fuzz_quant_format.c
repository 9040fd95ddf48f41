/* Builds a quantised matrix from arbitrary tensors in any shapes. The tensors are rejected, or the
 * matrix is built without an access beyond a tensor. The first bytes select the configuration, then
 * each tensor has a type and a shape; its data has exactly the size that both imply. */
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/quant_format_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = { "m.qweight",
	                             "m.scales",
	                             "m.qzeros",
	                             "m.g_idx",
	                             "m.weight",
	                             "m.weight_packed",
	                             "m.weight_scale",
	                             "m.weight_zero_point",
	                             "m.weight_shape",
	                             "m.weight_g_idx",
	                             "m.weight_scale_inv",
	                             "m.SCB",
	                             "m.weight_scales",
	                             "m.input_scale",
	                             "m.bias",
	                             "m.weight_global_scale",
	                             "m.weight_scale_2",
	                             "me_blocks",
	                             "me_scales",
	                             "m.pre_quant_scale",
	                             "m._weight_qdata",
	                             "m._weight_scale",
	                             "m._weight_zero_point",
	                             "m.weight.absmax",
	                             "m.weight.quant_map",
	                             "m.weight.quant_state.bitsandbytes__nf4",
	                             "m.weight.nested_absmax",
	                             "m.weight.nested_quant_map",
	                             "m.W_q",
	                             "m.scale",
	                             "m.zero",
	                             "m.shape",
	                             "m.nbits",
	                             "m.group_size",
	                             "m.axis",
	                             "m.biases",
	                             "m.qbiases",
	                             "m.gate_up_proj",
	                             "m.gate_up_proj_scale_inv",
	                             "m.qscale_weight" };
static const struct {
	const char *name;
	int bytes;
} types[] = { { "I32", 4 },     { "F16", 2 }, { "BF16", 2 }, { "F32", 4 }, { "I8", 1 },
	      { "F8_E4M3", 1 }, { "I64", 8 }, { "U8", 1 },   { "U32", 4 }, { "F8_E8M0", 1 } };
static const char *const configs[] = {
	NULL,
	"{",
	"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 3}}",
	"{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, "
	"\"checkpoint_format\": \"gptq_v2\"}}",
	"{\"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemm\"}}",
	"{\"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemv\", "
	"\"group_size\": 32}}",
	"{\"quantization_config\": {\"quant_method\": \"awq\", \"version\": \"gemv\", "
	"\"group_size\": 1}}",
	"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [16, 32]}}",
	"{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [-1, "
	"9223372036854775807]}}",
	"{\"quantization_config\": {\"quant_method\": \"gptq\", \"checkpoint_format\": "
	"\"marlin\"}}",
	"{\"quantization\": {\"bits\": 4, \"group_size\": 32, \"m\": {\"bits\": 3}}}",
	"{\"quantization_config\": {\"bits\": 4, \"group_size\": 32, \"mode\": \"mxfp4\"}}",
	"{\"quantization_config\": {\"bits\": 4, \"group_size\": 16, \"mode\": \"nvfp4\"}}",
	"{\"quantization_config\": {\"bits\": 8, \"group_size\": 32, \"mode\": \"mxfp8\"}}",
	"{\"quantization_config\": {\"quant_method\": \"quark\", \"global_quant_config\": "
	"{\"weight\": {\"dtype\": \"int4\", \"group_size\": 32}}, \"export\": {\"pack_method\": "
	"\"reorder\"}}}",
	"{\"quantization_config\": {\"quant_method\": \"quark\", \"global_quant_config\": "
	"{\"weight\": {\"dtype\": \"uint4\"}}}}",
	"{\"quantization_config\": {\"quant_method\": \"bitnet\"}}",
	"{\"quantization_config\": {\"quant_method\": \"metal\", \"bits\": 4, \"group_size\": 32}}",
	"{\"quantization_config\": {\"quant_method\": \"auto-round\", \"packing_format\": "
	"\"auto_round:auto_awq\", \"bits\": 4, \"group_size\": 32}}"
};

static const char *const states[] = {
	"{\"blocksize\": 64, \"shape\": [8, 96]}",
	("{\"blocksize\": 32, \"shape\": [16, 32], \"nested_blocksize\": 256, "
	 "\"nested_offset\": 0.5}"),
	"{\"blocksize\": 64, \"shape\": [2147483648, 2147483648]}",
	"{\"blocksize\": 7, \"shape\": [3, 5]}",
};

static void
rows_of(const QuantFormatMatrix *m)
{
	uint8_t *row = malloc((size_t)dtype_row_bytes(m->dtype, m->cols));

	for (int64_t r = 0; r < m->rows; r += m->rows > 64 ? m->rows - 1 : 1)
		quant_format_row(m, r, row);
	free(row);
	if (!m->order && !m->factor)
		return;
	float *y = malloc((size_t)m->cols * sizeof *y);
	quant_format_row_f32(m, m->rows - 1, y);
	for (int64_t j = 0; m->order && j < m->cols; j++) /* the order names each column once */
		if (!(m->order[j] >= 0 && m->order[j] < (float)m->cols))
			abort();
	free(y);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* there are few sizes, so that some of them match each other */
	static const int64_t sizes[] = {
		0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 96, 128, 256, 33, 7
	};
	QuantFormatFile f = { .n = 0 };
	int64_t dim[8][4];
	void *own[8];
	Arena a;

	if (size < 2)
		return 0;
	const char *config = configs[data[0] % (sizeof configs / sizeof *configs)];
	for (size_t i = 1; i + 5 <= size && f.n < 8; i += 5) {
		const int at = f.n++,
		          bytes = types[data[i + 1] % (sizeof types / sizeof *types)].bytes;
		QuantFormatTensor *t = &f.t[at];
		int64_t n = 1;
		memcpy(dim[at],
		       (int64_t[]){ sizes[data[i + 3] % 16], sizes[data[i + 3] / 16],
		                    sizes[data[i + 4] % 16], 0 },
		       sizeof dim[at]);
		*t = (QuantFormatTensor){
			.name = names[data[i] % (sizeof names / sizeof *names)],
			.type = types[data[i + 1] % (sizeof types / sizeof *types)].name,
			.n_dims = data[i + 2] % 4,
			.dim = dim[at]
		};
		for (int d = 0; d < t->n_dims; d++)
			n *= t->dim[d];
		own[at] = malloc((size_t)n * (size_t)bytes + (n == 0));
		for (int64_t k = 0; k < n * bytes; k++)
			((uint8_t *)own[at])[k] = bytes == 8 || data[i + 4] & 0x40
			                              ? (uint8_t)(k % 8 ? 0 : data[i + 4])
			                              : (uint8_t)(k * 37 + data[i + 4]);
		/* some inputs get valid JSON */
		if (strstr(t->name, "quant_state") && t->n_dims == 1 && bytes == 1) {
			const char *const said = states[t->dim[0] % 4];
			free(own[at]);
			dim[at][0] = (int64_t)strlen(said);
			own[at] = malloc(strlen(said));
			memcpy(own[at], said, strlen(said));
		}
		t->data = own[at];
	}
	arena_init(&a);
	if (setjmp(a.oom))
		abort();
	QuantFormats *s;
	llmc_error err = { 0 };
	if (quant_formats_open(&a, config, config ? strlen(config) : 0, &s, &err) != LLMC_OK)
		abort();
	for (int i = 0; i < f.n; i++) {
		const char *parts[QUANT_FORMAT_MAX_PARTS], *name;
		QuantFormatMatrix *m = NULL;
		int n_part;
		if (quant_format_matrix(s, f.t[i].name, quant_format_file_find, &f, &m, &name,
		                        parts, &n_part, &err) == LLMC_OK &&
		    m)
			rows_of(m);
		else if (!m && err.code != LLMC_OK && (err.code != LLMC_E_INPUT || !*err.text))
			abort();
	}
	arena_release(&a);
	for (int i = 0; i < f.n; i++)
		free(own[i]);
	return 0;
}

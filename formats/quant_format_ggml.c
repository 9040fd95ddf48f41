/* Converts GGUF blocks of types that llmc has no kernels for to blocks of a type that holds their
 * values exactly. */
#include <math.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/quant_format_fit.h"
#include "templates/common/llmc_groups.h"

const QuantFormatGgml *
quant_format_ggml(uint32_t type)
{
	static const QuantFormatGgml known[] = { { GGML_NVFP4, DT_NVFP4, 64, 36 },
		                                 { GGML_Q1_0, DT_U2_128, 128, 18 },
		                                 { GGML_Q2_0, DT_U2_32, 64, 18 } };

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].type == type)
			return &known[i];
	return NULL;
}

QuantFormatMatrix *
quant_format_of_ggml(Arena *a, uint32_t type, const void *data, int64_t rows, int64_t cols,
                     const void *scale, int64_t n)
{
	QuantFormatMatrix *m = NEW(a, QuantFormatMatrix, 1);

	*m = (QuantFormatMatrix){ .dtype = quant_format_ggml(type)->dtype,
		                  .rows = rows,
		                  .cols = cols,
		                  .ggml = data,
		                  .ggml_type = type,
		                  .ggml_scale = scale,
		                  .n_ggml_scale = n };
	return m;
}

/* Converts an NVFP4 block: four unsigned scales (0x7f means 0), then 8 bytes each; low nibbles are
 * its first 8 columns, high nibbles its last 8 */
static void
nvfp4_block(const uint8_t *b, float whole, uint8_t *to)
{
	memcpy(to, &whole, 4);
	for (int j = 0; j < 4; j++)
		to[4 + j] = (b[j] & 0x7f) == 0x7f ? 0 : b[j] & 0x7f;
	memset(to + 8, 0, 32);
	for (int i = 0; i < 64; i++)
		llmc_group_put(to + 8, 64, 4, i,
		               b[4 + i / 16 * 8 + i % 8] >> (i % 16 / 8 * 4) & 15);
}

/* Converts Q1_0 and Q2_0: an f16, then codes of one bit (a sign: becomes 0 or 2, zero point 1) or
 * two bits (zero point 1), lowest first */
static bool
low_bit_block(const uint8_t *b, int bits, int elems, DtypeGroup g, uint8_t *to)
{
	const int block = g.scale_bytes + g.zero_bytes + g.columns * g.bits / 8;
	uint16_t d;

	memset(to, 0, (size_t)(elems / g.columns * block));
	for (int i = 0; i < elems; i++) {
		uint8_t *at = to + i / g.columns * block;
		const int code = b[2 + i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1);
		if (i % g.columns == 0) {
			memcpy(at, b, 2);
			at[2] = 1;
		}
		llmc_group_put(at + 3, g.columns, g.bits, i % g.columns,
		               bits == 1 ? 2 * code : code);
	}
	memcpy(&d, b, 2);
	return isfinite(f16_to_f32(d));
}

bool
quant_format_ggml_row(const QuantFormatMatrix *m, int64_t row, uint8_t *to)
{
	const QuantFormatGgml *k = quant_format_ggml(m->ggml_type);
	const uint8_t *b = m->ggml + row * (m->cols / k->elems) * k->bytes;
	const int64_t out = dtype_row_bytes(m->dtype, k->elems);
	float whole = 1;
	bool good = true;

	if (m->ggml_scale)
		memcpy(&whole, m->ggml_scale + 4 * (row / (m->rows / m->n_ggml_scale)), 4);
	for (int64_t i = 0; i < m->cols; i += k->elems, b += k->bytes, to += out) {
		if (k->type == GGML_NVFP4)
			nvfp4_block(b, whole, to);
		else
			good &= low_bit_block(b, k->type == GGML_Q1_0 ? 1 : 2, k->elems,
			                      dtype_group(m->dtype), to);
	}
	return good && isfinite(whole);
}

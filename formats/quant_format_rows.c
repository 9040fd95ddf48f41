/* Converts rows of a matrix that quant_format.c has fitted. Shapes were checked there, so every
 * index lies within its tensor. */
#include <math.h>
#include <string.h>

#include "formats/dequant.h"
#include "formats/quant_format_fit.h"
#include "templates/common/llmc_groups.h"

/* Extracts field `at` along the plane's packed axis, at index `other` of the other axis */
static inline uint32_t
field(const QuantFormatPlane *p, int64_t at, int64_t other)
{
	const int64_t bit = ((at & ~(int64_t)7) + p->place[at & 7]) * p->bits,
	              word = bit / p->element;
	const int shift = (int)(bit % p->element), mask = (1 << p->bits) - 1;
	const uint8_t *e = p->data + (word * p->step + other * p->other_step) * (p->element / 8);
	uint32_t v, next;

	if (p->element == 8)
		return (uint32_t)((*e >> shift) + p->add) & (uint32_t)mask;
	memcpy(&v, e, 4);
	v >>= shift;
	if (shift + p->bits > 32) {
		memcpy(&next, e + p->step * 4, 4);
		v |= next << (32 - shift);
	}
	return (v + (uint32_t)p->add) & (uint32_t)mask;
}

/* FastLLM: divides a group's range, extended to include 0, into equal steps; the zero point is the
 * step nearest to 0 */
static float
range_at(const QuantFormatMatrix *m, int64_t row, int64_t group, int *zero)
{
	const int64_t groups = (m->cols - 1) / m->block_cols + 1;
	const float top = (float)((1 << m->code.bits) - 1);
	float pair[2];

	memcpy(pair, m->range + 8 * (row * groups + group), sizeof pair);
	const float lo = pair[0] < 0 ? pair[0] : 0, hi = pair[1] > 0 ? pair[1] : 0,
	            scale = (hi - lo) / top, z = -lo / scale;
	*zero = z > 0 ? (int)floorf((z < top ? z : top) + 0.5f) : 0; /* also NaN: empty range */
	return isnan(pair[0]) || isnan(pair[1]) ? NAN : scale;
}

/* Scale of the group, without the factor of the whole tensor */
static float
scale_at(const QuantFormatMatrix *m, int64_t row, int64_t group)
{
	int zero;

	if (m->range)
		return range_at(m, row, group, &zero);
	const int64_t r = row / m->block_rows, i = m->scale_by_out ? r * m->scale.dim[1] + group
	                                                           : group * m->scale.dim[1] + r;

	if (m->scale.element == 8)
		return strcmp(m->scale.type, "F8_E4M3") == 0 ? e4m3_to_f32(m->scale.data[i])
		                                             : e8m0_to_f32(m->scale.data[i]);
	const float f = quant_format_number(m->scale.type, m->scale.data, i);
	return m->divides ? 1 / f : m->over > 0 ? f / m->over : f;
}

/* Returns the code of (row, column k) in CUTLASS's interleaved order: two outputs interleaved in
 * tiles of 64 inputs, each 16 inputs in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, and bytes
 * 1 and 2 of each four swapped */
static uint8_t
eetq_code(const QuantFormatMatrix *m, int64_t row, int64_t k)
{
	static const uint8_t place[16] = { 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15 };
	int64_t i =
	    row / 2 * 2 * m->cols + k / 64 * 128 + row % 2 * 64 + k % 64 / 16 * 16 + place[k % 16];

	i = (i & ~(int64_t)3) | (i % 4 == 1 ? 2 : i % 4 == 2 ? 1 : i % 4);
	return m->code.data[i];
}

static int
code_at(const QuantFormatMatrix *m, int64_t row, int64_t k)
{
	if (m->eetq)
		return eetq_code(m, row, k);
	if (m->quarters) { /* bit pairs of one byte are a quarter of the rows apart */
		const int64_t each = m->code.dim[0];
		return m->code.data[row % each * m->cols + k] >> 2 * (row / each) & 3;
	}
	/* codes are packed independently of rows; the first of two codes is in the high bits */
	if (m->range) {
		const int64_t i = row * m->cols + k;
		return m->code.bits == 8 ? m->code.data[i]
		                         : m->code.data[i / 2] >> (i % 2 ? 0 : 4) & 15;
	}
	const int v = (int)(m->code_along_out ? field(&m->code, row, k) : field(&m->code, k, row));
	return v ^ m->flip;
}

static int
zero_at(const QuantFormatMatrix *m, int64_t row, int64_t group)
{
	if (m->range) {
		int zero;
		range_at(m, row, group, &zero);
		return zero;
	}
	if (!m->zero.data)
		return m->middle;
	const int v =
	    (int)(m->zero_along_out ? field(&m->zero, row, group) : field(&m->zero, group, row));
	return m->offset ? (int8_t)v + 128 : v ^ m->flip;
}

static int64_t
group_at(const QuantFormatMatrix *m, int64_t k)
{
	int32_t group;

	if (!m->column_group)
		return k / m->block_cols;
	memcpy(&group, m->column_group + 4 * k, 4);
	return group;
}

static int64_t
column_at(const QuantFormatMatrix *m, int64_t j)
{
	return m->order ? (int64_t)m->order[j] : j;
}

/* Offset added to scale * code */
static float
least_at(const QuantFormatMatrix *m, int64_t row, int64_t group, float scale)
{
	if (!m->least.data)
		return -scale * (float)zero_at(m, row, group);
	const int64_t r = row / m->block_rows;
	return quant_format_number(m->least.type, m->least.data,
	                           m->scale_by_out ? r * m->scale.dim[1] + group
	                                           : group * m->scale.dim[1] + r);
}

static bool
group_row(const QuantFormatMatrix *m, int64_t row, uint8_t *to)
{
	const DtypeGroup g = dtype_group(m->dtype);

	for (int64_t k0 = 0; k0 < m->cols; k0 += g.columns, to += g.columns * g.bits / 8) {
		const int64_t group = group_at(m, column_at(m, k0));
		const float scale = scale_at(m, row, group) * m->whole;
		if (!isfinite(scale))
			return false;
		if (g.scale_bytes == 4) {
			memcpy(to, &scale, 4);
		} else {
			uint16_t h = f32_to_f16(scale); /* exact: it was stored as f16 */
			memcpy(to, &h, 2);
		}
		to += g.scale_bytes;
		if (g.zero_bytes == 4) {
			const float least = least_at(m, row, group, scale);
			if (!isfinite(least))
				return false;
			memcpy(to, &least, 4);
		} else if (g.zero_bytes) {
			*to = (uint8_t)zero_at(m, row, group);
		}
		to += g.zero_bytes;
		memset(to, 0, (size_t)(g.columns * g.bits / 8));
		for (int i = 0; i < g.columns; i++)
			llmc_group_put(to, g.columns, g.bits, i,
			               code_at(m, row, column_at(m, k0 + i)));
	}
	return true;
}

/* MXFP4, NVFP4: scale bytes are copied unchanged */
static bool
fp4_row(const QuantFormatMatrix *m, int64_t row, uint8_t *to)
{
	const int columns = dtype_info(m->dtype)->block_elems, each = (int)m->block_cols;

	for (int64_t k0 = 0; k0 < m->cols; k0 += columns, to += columns / 2) {
		if (m->dtype == DT_NVFP4) {
			memcpy(to, &m->whole, 4);
			to += 4;
		}
		for (int64_t k = k0; k < k0 + columns; k += each) {
			const int64_t i = m->scale_by_out ? row * m->scale.dim[1] + k / each
			                                  : k / each * m->scale.dim[1] + row;
			if (!isfinite(scale_at(m, row, k / each)))
				return false;
			*to++ = m->scale.data[i];
		}
		memset(to, 0, (size_t)columns / 2);
		for (int i = 0; i < columns; i++)
			llmc_group_put(to, columns, 4, i, code_at(m, row, k0 + i));
	}
	return true;
}

/* Handles any form, one value at a time */
bool
quant_format_row_f32(const QuantFormatMatrix *m, int64_t row, float *to)
{
	for (int64_t k = 0; k < m->cols; k++) {
		const int64_t group = group_at(m, k);
		float scale = scale_at(m, row, group) * m->whole;
		if (m->column_scale)
			scale *= m->column_scale[k];
		if (!isfinite(scale))
			return false;
		const int code = code_at(m, row, k);
		if (m->least.data) {
			to[k] = scale * (float)code + least_at(m, row, group, scale);
			if (!isfinite(to[k]))
				return false;
			continue;
		}
		to[k] = scale * (m->codes == QUANT_FORMAT_E2M1 ? e2m1_to_f32((uint8_t)code)
		                 : m->codes == QUANT_FORMAT_E4M3
		                     ? e4m3_to_f32((uint8_t)code)
		                     : (float)(code - zero_at(m, row, group)));
	}
	return true;
}

bool
quant_format_row(const QuantFormatMatrix *m, int64_t row, void *dst)
{
	if (m->ggml)
		return quant_format_ggml_row(m, row, dst);
	if (m->flat)
		return quant_format_flat_row(m, row, dst);
	if (m->hqq)
		return quant_format_hqq_row(m, row, dst);
	if (m->dtype == DT_F32)
		return quant_format_row_f32(m, row, dst);
	return m->codes == QUANT_FORMAT_E2M1 ? fp4_row(m, row, dst) : group_row(m, row, dst);
}

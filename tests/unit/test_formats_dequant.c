/* Conversions against the gguf package (tests/golden/dequant.bin, made by make_dequant.py) and
 * against arithmetic on the definitions of fp16 and bf16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "formats/dequant.h"

static uint32_t
bits(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}

static float
from_bits(uint32_t u)
{
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

static void
blocks_match_the_gguf_package(void **state)
{
	FileMap m;
	llmc_error err;
	int seen_from[DT_COUNT] = { 0 }, seen_to[DT_COUNT] = { 0 };

	(void)state;
	if (file_map("tests/golden/dequant.bin", &m, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	for (size_t at = 0; at < m.size;) {
		uint32_t n, size;
		char kind = (char)m.data[at], name[8] = { 0 };
		memcpy(name, m.data + at + 1, 7);
		memcpy(&n, m.data + at + 8, 4);
		memcpy(&size, m.data + at + 12, 4);
		const unsigned char *floats = m.data + at + 16, *blocks = floats + 4 * n;
		at += 16 + 4 * n + size;
		assert_true(at <= m.size);
		Dtype d = dtype_from_text(name);
		assert_true(d != DT_NONE);
		assert_int_equal(dtype_row_bytes(d, n), size);
		float *x = malloc(4 * n);
		unsigned char *b = malloc(size + 1);
		if (kind == 'D') {
			/* unaligned by one byte: sources need no alignment */
			memcpy(b + 1, blocks, size);
			dequant_row(d, b + 1, x, n);
			for (uint32_t i = 0; i < n; i++) {
				float want;
				memcpy(&want, floats + 4 * i, 4);
				if (bits(x[i]) != bits(want))
					fail_msg("%s element %u: %a, expected %a", name, i, x[i],
					         want);
			}
			seen_from[d] = 1;
		} else {
			memcpy(x, floats, 4 * n);
			assert_true(quant_row(d, x, b, n));
			for (uint32_t i = 0; i < size; i++)
				if (b[i] != blocks[i])
					fail_msg("%s byte %u: %02x, expected %02x", name, i, b[i],
					         blocks[i]);
			seen_to[d] = 1;
		}
		free(x);
		free(b);
	}
	file_unmap(&m);
	for (int d = DT_Q4_0; d <= DT_TQ2_0; d++) {
		/* tested below by the definitions of these types */
		if (d == DT_MXFP4 || d == DT_NVFP4)
			continue;
		assert_true(seen_from[d]);
		assert_true(seen_to[d] || d >= DT_Q4_K);
	}
}

/* Value of an IEEE number with `exp` and `frac` bits, not infinite or NaN. */
static double
value_of(uint32_t h, int exp, int frac)
{
	int bias = (1 << (exp - 1)) - 1, e = (int)(h >> frac) & ((1 << exp) - 1);
	double m = h & ((1u << frac) - 1), sign = h >> (exp + frac) ? -1 : 1;

	return e ? sign * ldexp(m + (1 << frac), e - bias - frac)
	         : sign * ldexp(m, 1 - bias - frac);
}

static void
every_f16_and_bf16_has_its_value(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 65536; h++) {
		float f = f16_to_f32((uint16_t)h), b = bf16_to_f32((uint16_t)h);
		if ((h & 0x7c00) != 0x7c00)
			assert_int_equal(bits(f), bits((float)value_of(h, 5, 10)));
		else
			assert_true(h & 0x3ff ? isnan(f) : isinf(f) && !signbit(f) == !(h >> 15));
		if ((h & 0x7f80) != 0x7f80)
			assert_int_equal(bits(b), bits((float)value_of(h, 8, 7)));
		else
			assert_true(h & 0x7f ? isnan(b) : isinf(b));
		/* round trip */
		if (!isnan(f))
			assert_int_equal(f32_to_f16(f), h);
		else
			assert_true(isnan(f16_to_f32(f32_to_f16(f))));
		if (!isnan(b))
			assert_int_equal(f32_to_bf16(b), h);
		else
			assert_true(isnan(bf16_to_f32(f32_to_bf16(b))));
	}
}

/* value = scale * (code - zero), by hand; every e4m3 code against its definition, and back */
static void
groups_dequantise_by_their_definition(void **state)
{
	(void)state;
	for (Dtype d = DT_U4_32; d <= DT_F8_128; d++) {
		const DtypeGroup g = dtype_group(d);
		uint8_t b[160] = { 0 }, again[160] = { 0 };
		float y[128];

		assert_int_equal(g.scale_bytes + (g.values == VALUES_INT) + g.columns * g.bits / 8,
		                 dtype_info(d)->block_bytes);
		for (int first = 0; first < 256; first += g.columns) {
			const float scale = 0.0625f;
			uint16_t half = 0x2c00;
			if (g.scale_bytes == 2)
				memcpy(b, &half, 2);
			else
				memcpy(b, &scale, 4);
			uint8_t *q = b + g.scale_bytes;
			if (g.values == VALUES_INT)
				*q++ = g.bits == 8 ? 131 : 5;
			for (int i = 0; i < g.columns; i++)
				if (g.bits == 8)
					q[i] = (uint8_t)(first + i);
				else
					q[i / 32 * 16 + i % 16] =
					    (uint8_t)((i + first / 32) % 16 * 17);
			dequant_row(d, b, y, g.columns);
			for (int i = 0; i < g.columns; i++) {
				if (g.values == VALUES_E4M3 && ((first + i) & 0x7f) == 0x7f)
					assert_true(isnan(y[i]));
				else if (g.values == VALUES_E4M3)
					assert_true(
					    y[i] ==
					    scale * (float)value_of((uint32_t)(first + i), 4, 3));
				else if (g.bits == 8)
					assert_true(y[i] == scale * (float)(first + i - 131));
				else
					assert_true(y[i] == scale * (float)((i / 16 * 16 + i % 16 +
					                                     first / 32) %
					                                        16 -
					                                    5));
			}
			for (int i = 0; g.values == VALUES_E4M3 && i < g.columns; i++)
				if (isnan(y[i]))
					q[i] &= 0x80, y[i] = 0 * (q[i] ? -1.0f : 1.0f);
			y[0] = g.values == VALUES_E4M3 ? -448 * scale : y[0];
			q[0] = g.values == VALUES_E4M3 ? 0xfe : q[0];
			assert_true(quant_row(d, y, again, g.columns));
			if (g.values == VALUES_E4M3)
				for (int i = 0; i < g.columns; i++)
					assert_int_equal(again[4 + i], q[i]);
		}
	}
}

/* Groups of other bit widths and with minima: single bits are at the positions that
 * templates/common/llmc_groups.h documents, and packing them gives the original bytes */
static void
group_bits_are_at_documented_positions(void **state)
{
	(void)state;
	for (Dtype d = DT_U2_32; d <= DT_M8_64; d++) {
		const DtypeGroup g = dtype_group(d);
		const int head = g.scale_bytes + g.zero_bytes;
		const float scale = 0.5f, least = -2.25f;
		const uint16_t half = 0x3800;
		float y[128], x[128];

		assert_int_equal(g.zero_bytes, dtype_text(d)[0] == 'm' ? 4 : 1);
		for (int i = 0; i < g.columns; i++)
			for (int bit = 0; bit < g.bits; bit++) {
				uint8_t b[80] = { 0 };
				memcpy(b,
				       g.scale_bytes == 2 ? (const void *)&half
				                          : (const void *)&scale,
				       (size_t)g.scale_bytes);
				if (g.zero_bytes == 4)
					memcpy(b + 4, &least, 4);
				else
					b[2] = 1;
				const int piece = i / 32, at = i % 32;
				if (g.bits == 8)
					b[head + i] = (uint8_t)(1 << bit);
				else if (g.bits == 4)
					b[head + piece * 16 + at % 16] =
					    (uint8_t)(1 << (bit + at / 16 * 4));
				else if (bit < 2)
					b[head + piece * 8 + at / 16 * 4 + at % 4] =
					    (uint8_t)(1 << (bit + at % 16 / 4 * 2));
				else
					b[head + g.columns / 4 + piece * 4 + at % 4] =
					    (uint8_t)(1 << at / 4);
				dequant_row(d, b, y, g.columns);
				for (int k = 0; k < g.columns; k++)
					assert_true(y[k] ==
					            scale * (float)(k == i ? 1 << bit : 0) +
					                (g.zero_bytes == 4 ? least : -scale));
			}
		uint8_t all[80];
		for (int i = 0; i < g.columns; i++) /* all codes */
			x[i] = 0.25f * (float)(i * 7 % (1 << g.bits)) -
			       (g.zero_bytes == 4 ? 1 : 0.25f);
		x[0] = 0.25f * (float)((1 << g.bits) - 1) - (g.zero_bytes == 4 ? 1 : 0.25f);
		x[1] = g.zero_bytes == 4 ? -1 : -0.25f;
		assert_true(quant_row(d, x, all, g.columns));
		dequant_row(d, all, y, g.columns);
		for (int i = 0; i < g.columns; i++)
			assert_true(fabsf(y[i] - x[i]) < 1e-5f);
	}
}

/* Dequantises every E2M1 code at every position, and every scale, by their definitions; quantising
 * gives the codes back */
static void
four_bit_floats_dequantise_by_their_definition(void **state)
{
	static const Dtype types[] = { DT_MXFP4,  DT_NVFP4,  DT_NF4_32,
		                       DT_NF4_64, DT_FP4_32, DT_FP4_64 };

	(void)state;
	for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
		const Dtype d = types[t];
		const int columns = dtype_info(d)->block_elems,
		          head = dtype_info(d)->block_bytes - columns / 2;
		for (int first = 0; first < 16; first++) {
			uint8_t b[64] = { 0 }, again[64] = { 0 };
			float y[64], back[64], d32 = 0.375f;
			if (d == DT_MXFP4)
				b[0] = 120; /* 2^-7 */
			else
				memcpy(b, &d32, 4);
			if (d == DT_NVFP4)
				memcpy(b + 4, (uint8_t[]){ 0x30, 0x3c, 0x7e, 0x01 },
				       4); /* 0.5, 1.5, 448, 2^-9 */
			for (int i = 0; i < columns; i++)
				b[head + i / 32 * 16 + i % 16] |=
				    (uint8_t)((i + first) % 16 << i % 32 / 16 * 4);
			dequant_row(d, b, y, columns);
			for (int i = 0; i < columns; i++) {
				static const float nv[] = { 0.5f, 1.5f, 448, 0x1p-9f };
				const int code = (i + first) % 16;
				const float *table = dtype_codes(dtype_group(d).values);
				const float want = (code & 8 ? -1.0f : 1.0f) *
				                   (float)value_of((uint32_t)code & 7, 2, 1);
				const float scale = d == DT_MXFP4   ? 0x1p-7f
				                    : d == DT_NVFP4 ? d32 * nv[i / 16]
				                                    : d32;
				assert_true(y[i] == scale * (table ? table[code] : want));
			}
			assert_true(quant_row(d, y, again, columns));
			dequant_row(d, again, back, columns);
			for (int i = 0; i < columns && d != DT_NVFP4; i++)
				assert_true(back[i] == y[i]);
		}
	}
	assert_true(isnan(e8m0_to_f32(255)) && e8m0_to_f32(0) == 0x1p-127f &&
	            e8m0_to_f32(254) == 0x1p127f);
}

/* Rounding between two neighbours: the midpoint goes to the even neighbour; the next float on
 * either side of the midpoint goes to the nearer neighbour. */
static void
rounding_is_to_nearest_even(void **state)
{
	(void)state;
	for (uint32_t h = 0; h < 0x7bff; h++) {
		float mid = (float)((value_of(h, 5, 10) + value_of(h + 1, 5, 10)) / 2);
		for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
			float s = sign ? -1.0f : 1.0f;
			assert_int_equal(f32_to_f16(s * mid), sign | (h + (h & 1)));
			assert_int_equal(f32_to_f16(s * nextafterf(mid, 0)), sign | h);
			assert_int_equal(f32_to_f16(s * nextafterf(mid, INFINITY)), sign | (h + 1));
		}
	}
	assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
	assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
	assert_int_equal(f32_to_f16(-1e30f), 0xfc00);
	assert_int_equal(f32_to_f16(1e-30f), 0);
	assert_int_equal(f32_to_f16(from_bits(1)), 0);
	for (uint32_t h = 0; h < 0x7f7f; h++) {
		float mid = from_bits(h << 16 | 0x8000);
		assert_int_equal(f32_to_bf16(mid), h + (h & 1));
		assert_int_equal(f32_to_bf16(-mid), 0x8000 | (h + (h & 1)));
		assert_int_equal(f32_to_bf16(from_bits(h << 16 | 0x7fff)), h);
		assert_int_equal(f32_to_bf16(from_bits(h << 16 | 0x8001)), h + 1);
	}
	assert_int_equal(f32_to_bf16(from_bits(0x7f7fffff)), 0x7f80);
	assert_true(isnan(bf16_to_f32(f32_to_bf16(from_bits(0x7f800001)))));
}

/* Round trip: no element moves by more than a step of its block's grid. The K formats have no
 * reference without a search; their bound is half a step, plus what rounding of the scales to 6
 * (Q6_K: 8) bits may add. */
static void
quantised_values_stay_near(void **state)
{
	static const struct {
		Dtype d;
		float steps;
	} row[] = {
		{ DT_F32, INFINITY }, { DT_F16, 1024 },   { DT_BF16, 128 }, { DT_Q8_0, 127 },
		{ DT_Q4_0, 7 },       { DT_Q4_1, 7.5f },  { DT_Q5_0, 15 },  { DT_Q5_1, 15.5f },
		{ DT_Q4_K, 7.5f },    { DT_Q5_K, 15.5f }, { DT_Q6_K, 31 },
	};
	float x[2048], y[2048];
	unsigned char b[2048 * 4];
	uint32_t seed = 1;

	(void)state;
	for (int i = 0; i < 2048; i++) {
		seed = seed * 1664525 + 1013904223;
		x[i] = ((float)(seed >> 8) / (1 << 23) - 1) * (i < 1024 ? 0.02f : 3.0f);
	}
	x[100] = 0;
	for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
		const int span = dtype_info(row[r].d)->block_elems == 256 ? 256 : 32;
		assert_true(quant_row(row[r].d, x, b, 2048));
		dequant_row(row[r].d, b, y, 2048);
		for (int i = 0; i < 2048; i++) {
			float top = 0;
			for (int j = i / span * span; j < (i / span + 1) * span; j++)
				top = fmaxf(top, fabsf(x[j]));
			float slack = span == 256 ? 1.6f : 1.01f;
			if (!(fabsf(x[i] - y[i]) <= top / row[r].steps * slack))
				fail_msg("%s element %d: %g became %g (largest %g)",
				         dtype_text(row[r].d), i, x[i], y[i], top);
		}
	}
	/* zeros stay zeros, constants nearly stay */
	memset(x, 0, sizeof x);
	for (int i = 1024; i < 2048; i++)
		x[i] = -0.75f;
	for (size_t r = 0; r < sizeof row / sizeof *row; r++) {
		assert_true(quant_row(row[r].d, x, b, 2048));
		dequant_row(row[r].d, b, y, 2048);
		for (int i = 0; i < 2048; i++)
			assert_true(fabsf(x[i] - y[i]) <= fabsf(x[i]) * 0.01f);
	}
	assert_false(quant_row(DT_I32, x, b, 1));
	assert_false(quant_row(DT_I64, x, b, 1));
	assert_false(quant_row(DT_NONE, x, b, 1));
}

static void
noise_has_the_requested_size(void **state)
{
	float y[1024];
	unsigned char b[2048];

	(void)state;
	for (Dtype d = DT_Q2_K; d <= DT_TQ2_0; d++) {
		double sum = 0, mean = 0;
		assert_false(quant_row(d, y, b, 256));
		noise_row(d, 0.02f, b, 1024);
		dequant_row(d, b, y, 1024);
		for (int i = 0; i < 1024; i++) {
			sum += (double)y[i] * y[i];
			mean += y[i];
		}
		assert_float_equal(sqrt(sum / 1024), 0.02, 1e-4);
		assert_true(fabs(mean / 1024) < 0.01);
	}
}

static void
integers_become_floats(void **state)
{
	int32_t a[3] = { -1, 0, 16777217 };
	int64_t b[2] = { -5000000000, 7 };
	float y[3];

	(void)state;
	dequant_row(DT_I32, a, y, 3);
	assert_true(y[0] == -1 && y[1] == 0 && y[2] == 16777216);
	dequant_row(DT_I64, b, y, 2);
	assert_true(y[0] == -5e9f && y[1] == 7);
	y[0] = 3;
	dequant_row(DT_F32, NULL, y, 0);
	assert_true(y[0] == 3);
}

static void
dtype_table_answers(void **state)
{
	(void)state;
	for (int d = 0; d < DT_COUNT; d++) {
		const DtypeInfo *t = dtype_info((Dtype)d);
		assert_int_equal(dtype_from_text(t->text), d);
		assert_int_equal(dtype_from_ggml((uint32_t)t->ggml_type),
		                 t->ggml_type < 0 ? DT_NONE : d);
		if (*t->safetensors)
			assert_int_equal(
			    dtype_from_safetensors(t->safetensors, strlen(t->safetensors)), d);
		if (t->ggml_type >= 0)
			assert_non_null(ggml_type_name((uint32_t)t->ggml_type));
		assert_int_equal(dtype_row_bytes((Dtype)d, 3 * t->block_elems), 3 * t->block_bytes);
		if (t->block_elems > 1)
			assert_int_equal(dtype_row_bytes((Dtype)d, t->block_elems + 1), -1);
	}
	assert_int_equal(dtype_from_text("q9_9"), DT_NONE);
	assert_int_equal(dtype_from_ggml(4), DT_NONE);
	assert_int_equal(dtype_from_safetensors("", 0), DT_NONE);
	assert_int_equal(dtype_from_safetensors("F3", 2), DT_NONE);
	assert_string_equal(ggml_type_name(10), "Q2_K");
	assert_null(ggml_type_name(4));
	assert_null(ggml_type_name(4000000000u));
	assert_string_equal(dtype_text(DT_NONE), "none");
	assert_int_equal(dtype_row_bytes(DT_F32, INT64_MAX), -1);
	assert_int_equal(dtype_row_bytes(DT_F32, -4), -1);
	assert_int_equal(dtype_row_bytes(DT_NONE, 4), -1);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_match_the_gguf_package),
		cmocka_unit_test(every_f16_and_bf16_has_its_value),
		cmocka_unit_test(rounding_is_to_nearest_even),
		cmocka_unit_test(quantised_values_stay_near),
		cmocka_unit_test(noise_has_the_requested_size),
		cmocka_unit_test(integers_become_floats),
		cmocka_unit_test(groups_dequantise_by_their_definition),
		cmocka_unit_test(group_bits_are_at_documented_positions),
		cmocka_unit_test(four_bit_floats_dequantise_by_their_definition),
		cmocka_unit_test(dtype_table_answers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

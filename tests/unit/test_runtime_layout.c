/* Layouts against formats/dequant.c: in whatever order the bytes are packed, a row reads back bit
 * for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "formats/dequant.h"
#include "formats/layout.h"
#include "plan/plan.h"
#include "plan/target.h"

static const Dtype weight_types[] = { DT_F32,        DT_F16,    DT_BF16,   DT_Q4_0,   DT_Q4_1,
	                              DT_Q5_0,       DT_Q5_1,   DT_Q8_0,   DT_Q4_K,   DT_Q5_K,
	                              DT_Q6_K,       DT_MXFP4,  DT_NVFP4,  DT_U4_32,  DT_U8_128_F32,
	                              DT_F8_32,      DT_NF4_32, DT_NF4_64, DT_FP4_64,
#define X(name, ...) DT_##name,
	                              CODE_DTYPES(X)
#undef X
};

static uint32_t
next(uint32_t *seed)
{
	*seed ^= *seed << 13, *seed ^= *seed >> 17, *seed ^= *seed << 5;
	return *seed;
}

/* Random bytes, without exponents of infinity or NaN, whose payloads may change. */
static void
fill(Dtype d, uint8_t *p, int64_t rows, int64_t cols, uint32_t seed)
{
	int64_t n = rows * dtype_row_bytes(d, cols);

	for (int64_t i = 0; i < n; i++)
		p[i] = (uint8_t)(next(&seed) >> 11);
	int block = dtype_info(d)->block_bytes;
	for (int64_t i = 0; i < n; i += block)
		switch (d) {
		case DT_F32:
		case DT_NVFP4:
		case DT_U8_128_F32:
		case DT_F8_32:
		case DT_NF4_32:
		case DT_NF4_64:
		case DT_FP4_64:
			p[i + 3] &= 0xbf;
			break;
		case DT_MXFP4:
			p[i] &= 0x7f;
			break;
		case DT_Q6_K:
			p[i + 209] &= 0xbf;
			break;
		case DT_Q2_K:
			p[i + 81] &= 0xbf;
			p[i + 83] &= 0xbf;
			break;
		case DT_Q3_K:
			p[i + 109] &= 0xbf;
			break;
		case DT_IQ1_M:
			p[i + 55] &= 0xbf;
			break;
		case DT_TQ1_0:
			p[i + 53] &= 0xbf;
			break;
		case DT_TQ2_0:
			p[i + 65] &= 0xbf;
			break;
		case DT_Q4_1:
		case DT_Q5_1:
		case DT_Q4_K:
		case DT_Q5_K:
			p[i + 3] &= 0xbf; /* fall through */
		default:
			p[i + 1] &= 0xbf;
			break;
		}
	for (int64_t r = 0; dtype_row_factor(d) && r < rows; r++)
		for (int64_t i = block; i < n / rows; i += block)
			memcpy(p + r * (n / rows) + i, p + r * (n / rows), 4);
}

static void
a_packed_row_reads_back_as_the_file_row(void **state)
{
	static const char *const names[] = { "row", "f32", "r4", "r8", "r16" };

	(void)state;
	for (size_t n = 0; n < 5; n++)
		for (size_t i = 0; i < sizeof weight_types / sizeof *weight_types; i++) {
			Dtype d = weight_types[i];
			const Layout *l = layout_find(names[n]);
			int64_t cols = 256 * 3, rows = 32;
			PlanTensor t = { .id = "t",
				         .dtype = d,
				         .rows = rows,
				         .cols = cols,
				         .layout = names[n] };
			int64_t row_bytes = dtype_row_bytes(d, cols), one = l->group_bytes(d, cols);
			uint8_t *file = malloc((size_t)(rows * row_bytes));
			uint8_t *packed = malloc((size_t)plan_tensor_bytes(&t));
			float want[256 * 3], got[256 * 3];

			fill(d, file, rows, cols, 7 + (uint32_t)i);
			assert_int_equal(plan_tensor_bytes(&t), rows / l->group * one);
			for (int64_t r = 0; r < rows; r += l->group)
				l->pack(d, cols, file + r * row_bytes, packed + r / l->group * one);
			for (int64_t r = 0; r < rows; r++) {
				dequant_row(d, file + r * row_bytes, want, cols);
				memset(got, 0xff, sizeof got);
				plan_tensor_row(&t, packed, r, got);
				assert_memory_equal(want, got, sizeof want);
			}
			free(file);
			free(packed);
		}
}

/* For every number of blocks, including planes whose last 16 bytes are half empty. */
static void
planes_read_back_as_the_file_row(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof weight_types / sizeof *weight_types; i++)
		for (int64_t blocks = 1; blocks <= 9; blocks++) {
			Dtype d = weight_types[i];
			int64_t cols = blocks * dtype_info(d)->block_elems, rows = 3,
			        file_row = dtype_row_bytes(d, cols);
			PlanTensor t = { .id = "t",
				         .dtype = d,
				         .rows = rows,
				         .cols = cols,
				         .layout = target_layout(target_find("cuda-sm_90a"), d,
				                                 rows, cols) };
			const Layout *l = layout_find(t.layout);
			float want[9 * 256], got[9 * 256];

			assert_string_equal(t.layout,
			                    dtype_info(d)->block_elems > 1 ? "planes" : "row");
			assert_int_equal(l->group, 1);
			int64_t one = l->group_bytes(d, cols);
			assert_int_equal(plan_tensor_bytes(&t), rows * one);
			if (dtype_info(d)->block_elems > 1) {
				assert_int_equal(one % 16, 0);
				const int64_t less = dtype_row_factor(d)
				                         ? 4 * (blocks - 1)
				                         : 0; /* once per row, not per block */
				assert_in_range(
				    one, file_row - less,
				    (file_row - less) * (dtype_kind(d) ? 123 : 100) / 100 + 4 * 15);
			}
			uint8_t *file = malloc((size_t)(rows * file_row)),
			        *packed = malloc((size_t)(rows * one));
			fill(d, file, rows, cols, 11 + (uint32_t)i);
			memset(packed, 0xee, (size_t)(rows * one));
			for (int64_t r = 0; r < rows; r++)
				l->pack(d, cols, file + r * file_row, packed + r * one);
			for (int64_t r = 0; r < rows; r++) {
				dequant_row(d, file + r * file_row, want, cols);
				memset(got, 0xff, sizeof got);
				plan_tensor_row(&t, packed, r, got);
				assert_memory_equal(want, got, (size_t)cols * sizeof *want);
			}
			free(file);
			free(packed);
		}
}

/* The order that kernels expect, byte by byte: Q5_1 in three blocks. */
static void
planes_are_stored_field_by_field(void **state)
{
	uint8_t file[3 * 24], packed[112];

	(void)state;
	for (int i = 0; i < 72; i++)
		file[i] = (uint8_t)(i + 1);
	assert_int_equal(layout_find("planes")->group_bytes(DT_Q5_1, 96), 48 + 16 + 16);
	memset(packed, 0xee, sizeof packed);
	layout_find("planes")->pack(DT_Q5_1, 96, file, packed);
	for (int b = 0; b < 3; b++) {
		assert_memory_equal(packed + 16 * b, file + 24 * b + 8, 16);
		assert_memory_equal(packed + 48 + 4 * b, file + 24 * b + 4, 4);
		assert_memory_equal(packed + 64 + 4 * b, file + 24 * b, 4);
	}
	for (int i = 0; i < 4; i++)
		assert_int_equal(packed[60 + i] | packed[76 + i], 0);
	assert_int_equal(packed[80], 0xee);
	assert_int_equal(layout_find("planes")->group_bytes(DT_Q5_1, 40), -1);
	assert_int_equal(layout_find("planes")->group_bytes(DT_BF16, 64), -1);
	assert_int_equal(layout_find("planes")->group_bytes(DT_Q8_0, INT64_MAX - 31), -1);
}

/* Q5_K's pairs of columns in five words: column e is e - 1 in sub-block 5, all others are 0. */
static void
q5_k_planes_hold_three_pairs_per_word(void **state)
{
	uint8_t file[176] = { 0 }, packed[176];
	uint32_t w[5], want[5] = { 0 };

	(void)state;
	for (int e = 1; e < 32; e++) {
		const uint32_t v = (uint32_t)e - 1;
		file[48 + 64 + e] = (uint8_t)((v & 15) << 4); /* nibbles of sub-blocks 4 and 5 */
		file[16 + e] = (uint8_t)(v >> 4 << 5);
		if (e < 30) {
			want[e / 6] |= v << (e % 2 * 16 + e / 2 % 3 * 5);
		} else {
			for (int bit = 0; bit < 5; bit++)
				want[bit] |= (v >> bit & 1) << (e % 2 * 16 + 15);
		}
	}
	layout_find("planes")->pack(DT_Q5_K, 256, file, packed);
	memcpy(w, packed + 5 * 16, 16);
	memcpy(w + 4, packed + 128 + 5 * 4, 4);
	for (int i = 0; i < 5; i++)
		assert_int_equal(w[i], want[i]);
	for (int i = 0; i < 128 + 32; i++)
		assert_true(packed[i] == 0 || i / 16 == 5 || i / 4 == 32 + 5);
}

static void
sizes_are_whole_groups_and_close_to_the_file(void **state)
{
	(void)state;
	PlanTensor t = { .id = "t", .dtype = DT_Q4_1, .rows = 9, .cols = 64, .layout = "r8" };
	assert_int_equal(plan_tensor_bytes(&t), 16 * 40);
	t.cols = 48; /* not a multiple of the block size */
	assert_int_equal(plan_tensor_bytes(&t), -1);
	t.layout = "unheard of";
	assert_int_equal(plan_tensor_bytes(&t), -1);
	PlanTensor v = { .id = "v", .dtype = DT_F16, .rows = 10, .cols = 0, .layout = "f32" };
	assert_int_equal(plan_tensor_bytes(&v), 40);
	PlanTensor huge = {
		.id = "h", .dtype = DT_F32, .rows = INT64_MAX / 2, .cols = 64, .layout = "r16"
	};
	assert_int_equal(plan_tensor_bytes(&huge), -1);
	for (size_t i = 0; i < sizeof weight_types / sizeof *weight_types; i++) {
		Dtype d = weight_types[i];
		int64_t file = 16 * (dtype_row_bytes(d, 512) - (dtype_row_factor(d) ? 4 * 7 : 0)),
		        packed = layout_find("r16")->group_bytes(d, 512);
		assert_true(packed >= file &&
		            packed <= file + file * (dtype_kind(d) ? 23 : 3) / 100);
		assert_int_equal(packed, 4 * layout_find("r4")->group_bytes(d, 512));
		assert_int_equal(packed, 2 * layout_find("r8")->group_bytes(d, 512));
	}
}

static void
a_vector_is_one_row(void **state)
{
	float want[3] = { 1, -2, 0.5f }, got[3];
	uint16_t half[3] = { f32_to_f16(1), f32_to_f16(-2), f32_to_f16(0.5f) };
	PlanTensor t = { .id = "v", .dtype = DT_F16, .rows = 3, .layout = "row" };

	(void)state;
	plan_tensor_row(&t, half, 0, got);
	assert_memory_equal(want, got, sizeof want);
}

static void
targets_get_what_their_kernels_stream(void **state)
{
	(void)state;
	assert_string_equal(target_layout(target_find("cpu-v3"), DT_Q4_1, 576, 576), "r8");
	assert_string_equal(target_layout(target_find("cpu-generic"), DT_F16, 5, 7), "r4");
	assert_string_equal(target_layout(target_find("cpu-v4"), DT_Q6_K, 10, 256), "r16");
	assert_string_equal(target_layout(target_find("ref"), DT_Q4_1, 576, 576), "row");
	assert_string_equal(target_layout(target_find("cpu-v3"), DT_Q4_1, 576, 33), "row");
	assert_string_equal(target_layout(target_find("cpu-v3"), DT_I32, 576, 32), "row");
	assert_string_equal(target_layout(target_find("cpu-v3"), DT_F32, 576, 0), "row");
	assert_null(layout_find("r9"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_packed_row_reads_back_as_the_file_row),
		cmocka_unit_test(planes_read_back_as_the_file_row),
		cmocka_unit_test(planes_are_stored_field_by_field),
		cmocka_unit_test(q5_k_planes_hold_three_pairs_per_word),
		cmocka_unit_test(sizes_are_whole_groups_and_close_to_the_file),
		cmocka_unit_test(a_vector_is_one_row),
		cmocka_unit_test(targets_get_what_their_kernels_stream),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

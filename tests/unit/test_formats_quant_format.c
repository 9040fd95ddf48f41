/* Quantisation formats that no small supported model has: gpt-oss's experts, in blocks of MXFP4.
 * The others are in tests/e2e/test_quantised_checkpoints.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "formats/dequant.h"
#include "tests/unit/quant_format_file.h"

enum { EXPERTS = 3, ROWS = 5, GROUPS = 2 };

static void
blocks_of_experts_are_rows_of_mxfp4(void **state)
{
	static const float value[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };
	const int64_t block_dim[] = { EXPERTS, ROWS, GROUPS, 16 },
	              scale_dim[] = { EXPERTS, ROWS, GROUPS };
	uint8_t blocks[EXPERTS][ROWS][GROUPS][16], scales[EXPERTS][ROWS][GROUPS], row[2 * 17];
	const char *parts[QUANT_FORMAT_MAX_PARTS], *name = NULL;
	float y[32 * GROUPS];
	llmc_error err = { 0 };
	QuantFormatMatrix *m;
	QuantFormats *s;
	Arena a;
	int n_part;

	(void)state;
	for (size_t i = 0; i < sizeof blocks; i++)
		(&blocks[0][0][0][0])[i] = (uint8_t)(i * 37 + 11);
	for (size_t i = 0; i < sizeof scales; i++)
		(&scales[0][0][0])[i] = (uint8_t)(110 + i);
	arena_init(&a);
	if (setjmp(a.oom))
		fail();
	QuantFormatFile f = { { { "mlp.experts.down_proj_blocks", "U8", 4, block_dim, blocks },
		                { "mlp.experts.down_proj_scales", "U8", 3, scale_dim, scales } },
		              2 };
	assert_int_equal(quant_formats_open(&a, NULL, 0, &s, &err), LLMC_OK);
	assert_int_equal(quant_format_matrix(s, f.t[0].name, quant_format_file_find, &f, &m, &name,
	                                     parts, &n_part, &err),
	                 LLMC_OK);
	assert_non_null(m);
	assert_string_equal(name, "mlp.experts.down_proj");
	assert_int_equal(n_part, 2);
	assert_int_equal(m->dtype, DT_MXFP4);
	assert_int_equal(m->rows, EXPERTS * ROWS);
	assert_int_equal(m->stack, EXPERTS);
	assert_int_equal(m->cols, 32 * GROUPS);
	for (int r = 0; r < EXPERTS * ROWS; r++) {
		assert_true(quant_format_row(m, r, row));
		dequant_row(m->dtype, row, y, m->cols);
		for (int k = 0; k < m->cols; k++) {
			const int code =
			    blocks[r / ROWS][r % ROWS][k / 32][k % 32 / 2] >> k % 2 * 4 & 15;
			const float scale =
			    (float)(1 << (scales[r / ROWS][r % ROWS][k / 32] - 110)) * 0x1p-17f;
			assert_true(y[k] == (code & 8 ? -scale : scale) * value[code & 7]);
		}
	}
	/* too few scales, and scales with a wrong type */
	const int64_t short_dim[] = { EXPERTS, ROWS, GROUPS - 1 };
	f.t[1].dim = short_dim;
	assert_int_equal(quant_format_matrix(s, f.t[0].name, quant_format_file_find, &f, &m, &name,
	                                     parts, &n_part, &err),
	                 LLMC_E_INPUT);
	f.t[1].dim = scale_dim;
	scales[0][1][1] = 255;
	assert_int_equal(quant_format_matrix(s, f.t[0].name, quant_format_file_find, &f, &m, &name,
	                                     parts, &n_part, &err),
	                 LLMC_OK);
	assert_true(quant_format_row(m, 0, row));
	assert_false(quant_format_row(m, 1, row));
	arena_release(&a);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_of_experts_are_rows_of_mxfp4),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

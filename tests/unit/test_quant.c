/* Quantisation: grids against the dequantised blocks, the factor of a Hessian, and error
 * compensation against rounding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "formats/dequant.h"
#include "formats/block_quantize.h"
#include "quant/gptq.h"
#include "quant/gram.h"

static uint64_t state = 1;

static float
noise(void)
{
	float sum = 0;

	for (int i = 0; i < 4; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(state >> 40) / 16777216.0f - .5f;
	}
	return sum * 1.7f;
}

static const Dtype types[] = { DT_Q4_0, DT_Q4_1,   DT_Q5_0,   DT_Q5_1,  DT_Q8_0,
	                       DT_Q4_K, DT_Q5_K,   DT_Q6_K,   DT_MXFP4, DT_Q2_K,
	                       DT_Q3_K, DT_IQ4_NL, DT_IQ4_XS, DT_U4_32, DT_U4_128_F32 };
enum { N_TYPES = sizeof types / sizeof *types };

/* Every code of a grid dequantises to the grid's value, and the nearest code is the nearest
 * value. */
static void
grids_equal_dequantised_codes(void **unused)
{
	float x[GRID_MAX], w[GRID_MAX], y[GRID_MAX];
	int8_t code[GRID_MAX];
	uint8_t block[512];
	BlockGrid g;

	(void)unused;
	for (int k = 0; k < N_TYPES; k++)
		for (int round = 0; round < 40; round++) {
			int n = dtype_info(types[k])->block_elems;
			float shift = round % 4 == 1   ? 3.0f
			              : round % 4 == 2 ? -3.0f
			                               : 0,
			      size = powf(10, (float)(round % 7) - 4);
			for (int i = 0; i < n; i++) {
				x[i] = round == 5 ? 0 : (noise() + shift) * size;
				w[i] = round % 3 ? 1 : fabsf(noise());
			}
			grid_choose(types[k], x, w, &g);
			for (int i = 0; i < n; i++) {
				code[i] = (int8_t)grid_code(&g, i, x[i]);
				assert_in_range(code[i] - g.low, 0, g.high - g.low);
				for (int c = code[i] - 1; c <= code[i] + 1; c++)
					if (c >= g.low && c <= g.high)
						assert_true(
						    fabsf(grid_value(&g, i, code[i]) - x[i]) <=
						    fabsf(grid_value(&g, i, c) - x[i]) * 1.00001f +
						        1e-12f);
			}
			grid_pack(types[k], &g, code, block);
			dequant_row(types[k], block, y, n);
			for (int i = 0; i < n; i++)
				assert_true(y[i] == grid_value(&g, i, code[i]));
		}
}

/* The scale search beats min/max scaling in the sum that it minimises, in which large elements
 * weigh more; with eight bits there is little to gain. */
static void
searching_beats_the_range(void **unused)
{
	float x[2048], y[2048], w[2048];
	uint8_t block[2048 * 2];

	(void)unused;
	for (int k = 0; k < N_TYPES; k++) {
		double range = 0, found = 0;
		for (int i = 0; i < 2048; i++)
			x[i] = noise() * (i % 37 ? 1 : 3);
		for (int i = 0, n = dtype_info(types[k])->block_elems; i < 2048; i += n)
			quantize_weights(x + i, NULL, w + i, n);
		/* groups of integers are symmetric, like the grid */
		if (!quant_row_shared(types[k], 0, true, x, block, 2048))
			continue;
		dequant_row(types[k], block, y, 2048);
		for (int i = 0; i < 2048; i++)
			range += (double)w[i] * (double)(y[i] - x[i]) * (double)(y[i] - x[i]);
		quantize_row(types[k], x, NULL, block, 2048);
		dequant_row(types[k], block, y, 2048);
		for (int i = 0; i < 2048; i++)
			found += (double)w[i] * (double)(y[i] - x[i]) * (double)(y[i] - x[i]);
		assert_true(found < range * (types[k] == DT_Q8_0 ? 1.02 : .99));
	}
}

/* X'X of correlated inputs whose columns have different magnitudes */
static void
hessian(float *h, int n, int samples)
{
	float *x = malloc((size_t)n * sizeof *x), *mix = malloc(8 * (size_t)n * sizeof *mix);

	memset(h, 0, (size_t)n * (size_t)n * sizeof *h);
	for (int i = 0; i < 8 * n; i++)
		mix[i] = noise();
	for (int t = 0; t < samples; t++) {
		float source[8];
		for (int k = 0; k < 8; k++)
			source[k] = noise();
		for (int i = 0; i < n; i++) {
			x[i] = noise() * .5f;
			for (int k = 0; k < 8; k++)
				x[i] += source[k] * mix[k * n + i];
			x[i] *= i % 29 ? 1 : 6;
		}
		for (int i = 0; i < n; i++)
			for (int j = 0; j < n; j++)
				h[i * n + j] += x[i] * x[j] / (float)samples;
	}
	free(x);
	free(mix);
}

static double
loss(const float *h, const float *w, const float *v, int rows, int n)
{
	double sum = 0;

	for (int r = 0; r < rows; r++)
		for (int i = 0; i < n; i++) {
			double e = 0;
			for (int j = 0; j < n; j++)
				e += (double)h[i * n + j] * (double)(w[r * n + j] - v[r * n + j]);
			sum += e * (double)(w[r * n + i] - v[r * n + i]);
		}
	return sum;
}

/* R R' is the Hessian with its damping, also for sizes that are not a multiple of the panel
 * size. */
static void
the_factor_reproduces_the_hessian(void **unused)
{
	Threads *two;

	(void)unused;
	assert_int_equal(threads_open(2, &two, NULL), LLMC_OK);
	for (int n = 40; n <= 320; n += 140) {
		float *h = malloc((size_t)(n * n) * sizeof *h),
		      *f = malloc((size_t)(n * n) * sizeof *f);
		double mean = 0;
		hessian(h, n, 3 * n);
		for (int i = 0; i < n; i++)
			mean += (double)h[i * n + i] / n;
		memcpy(f, h, (size_t)(n * n) * sizeof *f);
		gptq_damp(f, n, .01);
		memcpy(h, f, (size_t)(n * n) * sizeof *h);
		gptq_factor(f, n, two);
		for (int i = 0; i < n; i += 7)
			for (int j = i; j < n; j += 3) {
				double sum = 0;
				for (int k = j; k < n; k++)
					sum += (double)(i == k ? f[k * n + k]
					                       : f[i * n + k] * f[k * n + k]) *
					       (double)(j == k ? f[k * n + k]
					                       : f[j * n + k] * f[k * n + k]);
				double want = (double)h[i * n + j];
				assert_true(fabs(sum - want) <= 2e-4 * sqrt((double)h[i * n + i] *
				                                            (double)h[j * n + j]) +
				                                    2e-4 * mean);
			}
		free(h);
		free(f);
	}
	threads_close(two);
}

/* Compensation more than halves the loss of importance-weighted rounding, and the number of threads
 * changes nothing. */
static void
compensation_lowers_the_loss(void **unused)
{
	enum { ROWS = 21, COLS = 512 };
	static float w[ROWS * COLS], v[ROWS * COLS], importance[COLS];
	static uint8_t one[ROWS * COLS * 2], other[ROWS * COLS * 2];
	float *h = malloc(COLS * COLS * sizeof *h), *f = malloc(COLS * COLS * sizeof *f),
	      *full = malloc(COLS * COLS * sizeof *full);
	Threads *alone, *two;

	(void)unused;
	assert_int_equal(threads_open(1, &alone, NULL), LLMC_OK);
	assert_int_equal(threads_open(2, &two, NULL), LLMC_OK);
	hessian(h, COLS, 1500);
	for (int i = 0; i < COLS; i++)
		importance[i] = h[i * COLS + i];
	for (int i = 0; i < ROWS * COLS; i++)
		w[i] = noise();
	for (int k = 0; k < N_TYPES; k++) {
		int64_t bytes = dtype_row_bytes(types[k], COLS);
		for (int r = 0; r < ROWS; r++) {
			quantize_row(types[k], w + r * COLS, importance, one + r * bytes, COLS);
			dequant_row(types[k], one + r * bytes, v + r * COLS, COLS);
		}
		double rounded = loss(h, w, v, ROWS, COLS);
		memcpy(full, h, COLS * COLS * sizeof *full);
		gptq_damp(full, COLS, .01);
		memcpy(f, full, COLS * COLS * sizeof *f);
		gptq_factor(f, COLS, alone);
		GptqRows job = { DT_F32, types[k], w, one, ROWS, COLS, f, full, 0 };
		assert_true(gptq_rows(&job, alone));
		for (int r = 0; r < ROWS; r++)
			dequant_row(types[k], one + r * bytes, v + r * COLS, COLS);
		double compensated = loss(full, w, v, ROWS, COLS);
		job.passes = 2;
		assert_true(gptq_rows(&job, alone));
		memcpy(f, full, COLS * COLS * sizeof *f);
		gptq_factor(f, COLS, two);
		job.dst = other;
		assert_true(gptq_rows(&job, two));
		assert_memory_equal(one, other, (size_t)(ROWS * bytes));
		for (int r = 0; r < ROWS; r++)
			dequant_row(types[k], one + r * bytes, v + r * COLS, COLS);
		assert_true(loss(full, w, v, ROWS, COLS) <
		            compensated); /* each iteration of a pass lowers the loss */
		compensated = loss(h, w, v, ROWS, COLS);
		assert_true(compensated < .5 * rounded);
	}
	threads_close(alone);
	threads_close(two);
	free(h);
	free(f);
	free(full);
}

/* The sums equal sums in double of the rounded rows that tiles read. Two rounds add up, and the
 * number of threads changes nothing. */
typedef struct Add {
	Gram *g;
	Threads *threads;
	const float *x;
	int64_t rows, n;
	float *h;
} Add;

static void
add(void *user, int part, int n_parts)
{
	const Add *a = user;

	(void)n_parts;
	gram_add(a->g, a->threads, part, a->x, a->rows, a->n, a->h);
}

static void
gram_matrices_equal_double_sums(void **unused)
{
	enum { MOST = 300 };
	static const int shape[][2] = {
		{ 1, 1 }, { 37, 53 }, { 64, 32 }, { 31, 300 }, { 100, 16 }
	};
	static float x[MOST * MOST], h[2][MOST * MOST];

	(void)unused;
	for (int k = 0; k < 5; k++)
		for (int tiles = 0; tiles < 2; tiles++) {
			const int rows = shape[k][0], n = shape[k][1];
			for (int i = 0; i < rows * n; i++)
				x[i] = noise() * (i % 7 ? 1 : 30);
			memset(h, 0, sizeof h);
			bool has = true;
			for (int n_threads = 1; n_threads <= 2; n_threads++) {
				Threads *t;
				Gram g;
				assert_int_equal(threads_open(n_threads, &t, NULL), LLMC_OK);
				gram_open(&g, t);
				has = g.tiles;
				g.tiles = tiles && has;
				assert_true(gram_room(&g, rows, n));
				for (int round = 0; round < 2; round++)
					threads_run(t, add,
					            &(Add){ &g, t, x, rows, n, h[n_threads - 1] });
				gram_release(&g);
				threads_close(t);
			}
			for (int i = 0; i < rows * n && tiles && has; i++)
				x[i] = bf16_to_f32(f32_to_bf16(x[i]));
			for (int i = 0; i < n; i++)
				for (int j = 0; j <= i; j++) {
					double want = 0, size = 0;
					for (int r = 0; r < rows; r++) {
						want +=
						    2 * (double)x[r * n + i] * (double)x[r * n + j];
						size += 2 * fabs((double)x[r * n + i] *
						                 (double)x[r * n + j]);
					}
					assert_true(fabs((double)h[0][i * n + j] - want) <=
					            1e-5 * size + 1e-30);
					assert_true(h[0][i * n + j] == h[1][i * n + j]);
				}
		}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grids_equal_dequantised_codes),
		cmocka_unit_test(searching_beats_the_range),
		cmocka_unit_test(the_factor_reproduces_the_hessian),
		cmocka_unit_test(compensation_lowers_the_loss),
		cmocka_unit_test(gram_matrices_equal_double_sums),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

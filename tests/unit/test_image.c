/* Image processors of hostile folders: settings that contradict each other give a message, with
 * the memory of an ordinary image. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "image/prepare.h"

static ImageRules
rules_of(const char *preprocessor, const char *config, llmc_status expected)
{
	json_t *p = json_parse(preprocessor, strlen(preprocessor), 0, NULL, NULL),
	       *c = json_parse(config, strlen(config), 0, NULL, NULL);
	ImageFiles files = { .preprocessor = p, .config = c };
	ImageRules r;
	llmc_error err = { 0 };

	assert_non_null(p);
	assert_non_null(c);
	assert_int_equal(image_rules_json(&files, &r, &err), expected);
	json_decref(p);
	json_decref(c);
	return r;
}

/* Prepare a black image; *tiles: 0 on an error. */
static llmc_status
prepare(const ImageRules *r, int32_t width, int32_t height, int32_t *tiles)
{
	ImagePixels im = { width, height, 3, NULL };
	ImageRows rows;
	llmc_error err = { 0 };

	im.pixel = calloc((size_t)height, (size_t)width * 3);
	assert_non_null(im.pixel);
	llmc_status s = image_prepare(r, &im, &rows, &err);
	*tiles = s == LLMC_OK ? rows.n_tile : 0;
	if (s == LLMC_OK)
		image_rows_release(&rows);
	image_release(&im);
	return s;
}

static void
tiles_of_an_image_that_is_not_resized_are_counted(void **state)
{
	const char *config =
	    "{\"model_type\": \"idefics3\", \"vision_config\": {\"patch_size\": 14}}";
	ImageRules r = rules_of("{\"do_resize\": false, \"size\": {\"longest_edge\": 16}, "
	                        "\"max_image_size\": {\"longest_edge\": 28}}",
	                        config, LLMC_OK);
	int32_t n;

	(void)state;
	assert_int_equal(prepare(&r, 560, 280, &n), LLMC_OK);
	assert_int_equal(n, 20 * 10 + 1);
	assert_int_equal(prepare(&r, 2800, 2800, &n), LLMC_E_INPUT); /* 10000 tiles */
}

static void
a_step_without_pixels_before_a_crop_is_refused(void **state)
{
	ImageRules r = rules_of("{\"size\": {\"longest_edge\": 64}, \"patch_size\": 16}",
	                        "{\"model_type\": \"pixtral\"}", LLMC_OK);
	int32_t n;

	(void)state;
	r.center_crop = true;
	r.crop_height = r.crop_width = 64;
	assert_int_equal(prepare(&r, 1000, 1, &n), LLMC_E_INPUT);
	assert_int_equal(prepare(&r, 1, 1000, &n), LLMC_E_INPUT);
	assert_int_equal(prepare(&r, 100, 90, &n), LLMC_OK);
}

static void
a_narrow_image_is_not_padded_to_a_huge_square(void **state)
{
	ImageRules r = rules_of("{\"do_pad\": true, \"image_mean\": [1e300, -1e300, 0.5]}",
	                        "{\"model_type\": \"llava\", "
	                        "\"vision_config\": {\"patch_size\": 14}}",
	                        LLMC_OK);
	int32_t n;

	(void)state;
	assert_int_equal(prepare(&r, 65000, 1, &n), LLMC_E_INPUT);
	assert_int_equal(prepare(&r, 1, 1 << 26, &n), LLMC_E_INPUT);
	assert_int_equal(prepare(&r, 30, 20, &n), LLMC_OK);
}

static void
numbers_of_tokens_and_sides_are_bounded(void **state)
{
	const char *internvl = "{\"model_type\": \"internvl\", "
	                       "\"vision_config\": {\"patch_size\": 14}, "
	                       "\"image_seq_length\": 16777216}";
	ImageRules r = rules_of("{}", internvl, LLMC_OK);
	int32_t n;

	(void)state;
	assert_int_equal(prepare(&r, 640, 480, &n), LLMC_E_INPUT);
	rules_of("{\"size\": {\"height\": 4194304, \"width\": 4194304}, \"max_patches\": 999}",
	         internvl, LLMC_E_INPUT);
	rules_of("{\"size\": {\"longest_edge\": 16777216}}", "{\"model_type\": \"pixtral\"}",
	         LLMC_E_INPUT);
}

/* LLaVA-NeXT's processor without `cut`, which no file sets today */
static void
a_grid_of_tiles_does_not_depend_on_the_switch_that_cuts(void **state)
{
	ImageRules r = rules_of("{}",
	                        "{\"model_type\": \"llava_next\", "
	                        "\"vision_config\": {\"patch_size\": 14}}",
	                        LLMC_OK);
	int32_t n;

	(void)state;
	r.shortest = r.crop_height = r.crop_width = 336;
	r.cut = false;
	assert_int_equal(prepare(&r, 640, 480, &n), LLMC_OK);
	assert_int_equal(n, 5);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tiles_of_an_image_that_is_not_resized_are_counted),
		cmocka_unit_test(a_step_without_pixels_before_a_crop_is_refused),
		cmocka_unit_test(a_narrow_image_is_not_padded_to_a_huge_square),
		cmocka_unit_test(numbers_of_tokens_and_sides_are_bounded),
		cmocka_unit_test(a_grid_of_tiles_does_not_depend_on_the_switch_that_cuts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Decodes arbitrary bytes as an image, within the limit of pixels; the image may be rejected. A
 * decoded image is prepared for three processors; its rows, tiles and text agree. */
#include <stdlib.h>
#include <string.h>

#include "image/prepare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS = 1 << 12 };

static void
check(bool ok)
{
	if (!ok)
		abort();
}

static const ImageRules rules[] = {
	{ .resize = IMAGE_RESIZE_SMART,
	  .do_resize = true,
	  .filter = IMAGE_BICUBIC,
	  .min_pixels = 784,
	  .max_pixels = 9000,
	  .patch = 14,
	  .merge = 2,
	  .token_square = 2,
	  .temporal = 2,
	  .model_patch = 1,
	  .do_rescale = true,
	  .rescale = 1 / 255.0,
	  .token = "<t>" },
	{ .resize = IMAGE_RESIZE_EVEN,
	  .do_resize = true,
	  .filter = IMAGE_LANCZOS,
	  .longest = 96,
	  .tiling = IMAGE_TILE_SPLIT,
	  .cut = true,
	  .tile = 32,
	  .patch = 8,
	  .merge = 1,
	  .token_square = 2,
	  .temporal = 1,
	  .model_patch = 1,
	  .text = IMAGE_TEXT_GRID,
	  .token = "<t>" },
	{ .resize = IMAGE_RESIZE_SIZE,
	  .do_resize = true,
	  .filter = IMAGE_BILINEAR,
	  .shortest = 28,
	  .center_crop = true,
	  .crop_height = 30,
	  .crop_width = 28,
	  .pad_square = true,
	  .patch = 7,
	  .merge = 1,
	  .token_square = 1,
	  .temporal = 1,
	  .model_patch = 1,
	  .token = "<t>" },
};

static void
prepare(const ImageRules *r, const ImagePixels *im)
{
	ImageRows rows, sizes;
	llmc_error err = { 0 };
	static volatile float sink;
	int64_t n = 0, tokens = 0;

	if (image_prepare(r, im, &rows, &err) != LLMC_OK) {
		check(err.code == LLMC_E_INPUT && !rows.value && !rows.tile);
		return;
	}
	for (int32_t i = 0; i < rows.n_tile; i++) {
		check(rows.tile[i].first_row == n);
		n += (int64_t)rows.tile[i].grid_h * rows.tile[i].grid_w;
	}
	check(n == rows.n_row);
	for (int64_t i = 0; i < n * rows.row_elems; i++)
		sink = rows.value[i];
	(void)sink;
	for (const char *p = strbuf_str(&rows.text); (p = strstr(p, r->token)); p++)
		tokens++;
	check(tokens == rows.n_token);
	check(image_measure(r, im->width, im->height, &sizes, &err) == LLMC_OK);
	check(sizes.n_row == n && sizes.n_token == tokens);
	image_rows_release(&sizes);
	image_rows_release(&rows);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	ImageLimits limits = { .max_pixels = PIXELS, .max_bytes = 1 << 20 };
	ImagePixels im;
	llmc_error err = { 0 };
	static volatile uint8_t sink;

	if (image_decode(data, size, &limits, &im, &err) != LLMC_OK) {
		check((err.code == LLMC_E_INPUT || err.code == LLMC_E_MISSING) && !im.pixel &&
		      err.text[0]);
		return 0;
	}
	check(im.width > 0 && im.height > 0 && (im.channels == 3 || im.channels == 4));
	check((int64_t)im.width * im.height <= PIXELS);
	for (int32_t i = 0; i < im.width * im.height * im.channels; i++)
		sink = im.pixel[i];
	(void)sink;
	for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
		prepare(&rules[i], &im);
	image_release(&im);
	return 0;
}

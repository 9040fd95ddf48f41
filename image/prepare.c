#include "image/prepare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "image/layout.h"

/* Maximum number of tokens of an image; a limit of its own, because the text is written before the
 * model's context is known */
enum { MAX_TOKENS = 1 << 20 };

/* Return the side, in pixels, of the square that a row holds */
static int32_t
row_patch(const ImageRules *r)
{
	return r->patch * r->model_patch;
}

/* ---- sizes and text ---- */

static int64_t
tile_tokens(const ImageRules *r, const ImageTile *t)
{
	if (r->tokens_per_tile)
		return r->tokens_per_tile;
	return (int64_t)(t->grid_h / r->token_square) * (t->grid_w / r->token_square) +
	       r->extra_tokens - r->drop_token;
}

/* Return the number of tokens of an image in tiles without padding: the tokens of the whole image,
 * then those of each row of the grid, with one token for the end of the row. The first tile is the
 * whole image. */
static int64_t
unpadded_tokens(const ImageRules *r, const ImageRows *rows, int32_t width, int32_t height)
{
	const ImageTile *t = rows->tile;
	int64_t high = (int64_t)t->grid_h * rows->tiles_h,
	        wide = (int64_t)t->grid_w * rows->tiles_w;

	if ((double)width / height > (double)wide / (double)high) {
		double v = height * ((double)wide / width);
		high -= (high - (int64_t)(rint(v * 1e7) / 1e7)) / 2 * 2;
	} else {
		double v = width * ((double)high / height);
		wide -= (wide - (int64_t)(rint(v * 1e7) / 1e7)) / 2 * 2;
	}
	return high * wide + high + tile_tokens(r, t);
}

static void
put_tokens(const ImageRules *r, Strbuf *b, int64_t n)
{
	for (; n > 0; n--)
		strbuf_puts(b, r->token);
}

static void
put_run(const ImageRules *r, Strbuf *b, int64_t n)
{
	strbuf_puts(b, r->before);
	put_tokens(r, b, n);
	strbuf_puts(b, r->after);
}

static void
put_rows(const ImageRules *r, Strbuf *b, const ImageTile *t)
{
	int32_t high = t->grid_h / r->token_square, wide = t->grid_w / r->token_square;

	strbuf_puts(b, r->before);
	for (int32_t y = 0; y < high; y++) {
		put_tokens(r, b, wide);
		strbuf_puts(b, y + 1 < high ? r->row_end : r->after);
	}
}

static void
put_grid(const ImageRules *r, Strbuf *b, const ImageRows *rows)
{
	for (int32_t y = 0; y < rows->tiles_h; y++) {
		for (int32_t x = 0; x < rows->tiles_w; x++) {
			strbuf_printf(b, "%s<row_%d_col_%d>", r->fake, y + 1, x + 1);
			put_tokens(r, b, tile_tokens(r, &rows->tile[y * rows->tiles_w + x]));
		}
		strbuf_puts(b, "\n");
	}
	if (rows->tiles_h)
		strbuf_puts(b, "\n");
	strbuf_printf(b, "%s%s", r->fake, r->global);
	put_tokens(r, b, tile_tokens(r, &rows->tile[rows->n_tile - 1]));
	strbuf_puts(b, r->fake);
}

static void
put_crops(const ImageRules *r, Strbuf *b, const ImageRows *rows)
{
	if (rows->n_tile == 1) {
		put_run(r, b, tile_tokens(r, rows->tile));
		return;
	}
	strbuf_puts(b, "Here is the original image ");
	put_run(r, b, tile_tokens(r, rows->tile));
	strbuf_puts(b, " and here are some crops to help you see better ");
	for (int32_t i = 1; i < rows->n_tile; i++) {
		strbuf_puts(b, i > 1 ? " " : "");
		put_run(r, b, tile_tokens(r, &rows->tile[i]));
	}
}

static llmc_status
put_text(const ImageRules *r, ImageRows *rows, llmc_error *err)
{
	switch (r->text) {
	case IMAGE_TEXT_RUN:
		put_run(r, &rows->text, rows->n_token);
		break;
	case IMAGE_TEXT_ROWS:
		put_rows(r, &rows->text, rows->tile);
		break;
	case IMAGE_TEXT_GRID:
		put_grid(r, &rows->text, rows);
		break;
	case IMAGE_TEXT_CROPS:
		put_crops(r, &rows->text, rows);
		break;
	}
	return rows->text.failed
	           ? error_set(err, LLMC_E_MEMORY, "No memory for the tokens of an image.")
	           : LLMC_OK;
}

/* Fill sizes, tiles and text from the layout. */
static llmc_status
describe(const ImageRules *r, const ImageLayout *l, int32_t width, int32_t height, ImageRows *out,
         llmc_error *err)
{
	int32_t side = row_patch(r);

	*out = (ImageRows){ .n_tile = l->n_view, .tiles_h = l->tiles_h, .tiles_w = l->tiles_w };
	out->row_elems = 3 * r->temporal * side * side;
	out->tile = calloc((size_t)l->n_view, sizeof *out->tile);
	if (!out->tile)
		return error_set(err, LLMC_E_MEMORY, "No memory for %d tiles of an image.",
		                 l->n_view);
	for (int32_t i = 0; i < l->n_view; i++) {
		ImageTile *t = &out->tile[i];
		*t = (ImageTile){ l->view[i].size.height / side, l->view[i].size.width / side,
			          out->n_row };
		if (t->grid_h < r->token_square || t->grid_w < r->token_square ||
		    t->grid_h % r->merge || t->grid_w % r->merge)
			return error_set(
			    err, LLMC_E_INPUT,
			    "The image of %d x %d pixels has %d x %d patches of %d x %d, "
			    "which make no token.",
			    width, height, t->grid_w, t->grid_h, side, side);
		out->n_row += (int64_t)t->grid_h * t->grid_w;
		out->n_token += tile_tokens(r, t);
	}
	if (r->tiling == IMAGE_TILE_ANYRES)
		out->n_token = unpadded_tokens(r, out, width, height);
	if (out->n_token > MAX_TOKENS)
		return error_set(err, LLMC_E_INPUT,
		                 "The image of %d x %d pixels would have %lld tokens; at most %d "
		                 "are possible.",
		                 width, height, (long long)out->n_token, MAX_TOKENS);
	return put_text(r, out, err);
}

/* ---- pixels ---- */

/* Composite on white, with the rounding of Pillow's alpha_composite. */
static uint8_t
on_white(uint32_t v, uint32_t alpha)
{
	uint32_t sum = (v * alpha + 255 * (255 - alpha) + 128) << 7;

	return (uint8_t)(((sum >> 8) + sum) >> 15);
}

/* Convert the image to RGB and paste it into the square of the layout. */
static llmc_status
to_rgb(const ImageRules *r, const ImagePixels *im, const ImageLayout *l, ImagePixels *out,
       llmc_error *err)
{
	*out = (ImagePixels){ .width = l->original.width,
		              .height = l->original.height,
		              .channels = 3 };
	size_t n = (size_t)out->width * (size_t)out->height;
	out->pixel = malloc(3 * n);
	if (!out->pixel)
		return error_set(err, LLMC_E_MEMORY, "No memory for an image of %d x %d pixels.",
		                 out->width, out->height);
	if (out->width != im->width || out->height != im->height) {
		uint8_t colour[3];
		for (int c = 0; c < 3; c++)
			colour[c] = (uint8_t)fmin(fmax(r->mean[c] * 255, 0), 255);
		for (size_t i = 0; i < 3 * n; i++)
			out->pixel[i] = colour[i % 3];
	}
	const uint8_t *from = im->pixel;
	for (int32_t y = 0; y < im->height; y++) {
		uint8_t *to =
		    out->pixel +
		    ((size_t)(y + l->paste_y) * (size_t)out->width + (size_t)l->paste_x) * 3;
		for (int32_t x = 0; x < im->width; x++, from += im->channels, to += 3)
			for (int c = 0; c < 3; c++)
				to[c] = im->channels == 4 ? on_white(from[c], from[3]) : from[c];
	}
	return LLMC_OK;
}

/* Paste an image into a larger canvas of black pixels. */
static llmc_status
paste(ImagePixels *im, int32_t y, int32_t x, ImageBox canvas, llmc_error *err)
{
	ImagePixels to = { .width = canvas.width, .height = canvas.height, .channels = 3 };

	if (im->width == to.width && im->height == to.height)
		return LLMC_OK;
	to.pixel = calloc((size_t)to.height, 3 * (size_t)to.width);
	if (!to.pixel)
		return error_set(err, LLMC_E_MEMORY, "No memory for an image of %d x %d pixels.",
		                 to.width, to.height);
	for (int32_t i = 0; i < im->height; i++)
		memcpy(to.pixel + ((size_t)(y + i) * (size_t)to.width + (size_t)x) * 3,
		       im->pixel + (size_t)i * (size_t)im->width * 3, 3 * (size_t)im->width);
	image_release(im);
	*im = to;
	return LLMC_OK;
}

static int32_t
clamp_to(int32_t v, int32_t most)
{
	return v < 0 ? 0 : v > most ? most : v;
}

/* Run the steps of the layout up to the base image. */
static llmc_status
make_base(const ImageRules *r, const ImageLayout *l, const ImagePixels *original, ImagePixels *base,
          llmc_error *err)
{
	const ImagePixels *from = original;
	ImagePixels half = { 0 };
	llmc_status status = LLMC_OK;

	for (int32_t i = 0; i < l->n_step && status == LLMC_OK; i++) {
		ImageSize s = l->step[i];
		bool last = i + 1 == l->n_step;
		ImageBox c = last ? l->canvas : (ImageBox){ 0, 0, s.height, s.width };
		int32_t y = clamp_to(c.y, s.height), x = clamp_to(c.x, s.width);
		ImageBox window = { y, x, clamp_to(c.y + c.height, s.height) - y,
			            clamp_to(c.x + c.width, s.width) - x };
		ImagePixels to = { 0 };
		status = image_resize(from, (ImageBox){ 0, 0, from->height, from->width }, s.height,
		                      s.width, window, r->filter, r->backend, &to, err);
		if (status == LLMC_OK)
			status = paste(&to, y - c.y, x - c.x, c, err);
		image_release(&half);
		half = to;
		from = &half;
	}
	*base = half;
	return status;
}

/* ---- rows ---- */

/* Value of each 8-bit sample per channel, with the roundings of the backend */
typedef struct ImageScale {
	float of[3][256];
} ImageScale;

static float
scaled(const ImageRules *r, int c, int v)
{
	float mean = (float)r->mean[c], std = (float)r->std[c], x = (float)v;

	if (r->backend == IMAGE_PILLOW) {
		x = r->do_rescale ? (float)(v * r->rescale) : x;
		return r->do_normalize ? (x - mean) / std : x;
	}
	if (!r->do_normalize)
		return r->do_rescale ? x * (float)r->rescale : x;
	float full = r->do_rescale ? (float)(1.0 / r->rescale) : 1;
	return (x - mean * full) / (std * full);
}

static void
put_row(const ImageRules *r, const ImageScale *scale, const ImagePixels *im, int32_t y, int32_t x,
        float *to)
{
	int32_t side = row_patch(r);

	if (r->channel_last) {
		for (int32_t i = 0; i < side; i++) {
			const uint8_t *p =
			    im->pixel + ((size_t)(y + i) * (size_t)im->width + (size_t)x) * 3;
			for (int32_t k = 0; k < 3 * side; k++)
				*to++ = scale->of[k % 3][p[k]];
		}
		return;
	}
	for (int c = 0; c < 3; c++) {
		const float *first = to;
		for (int32_t i = 0; i < side; i++) {
			const uint8_t *p =
			    im->pixel + ((size_t)(y + i) * (size_t)im->width + (size_t)x) * 3;
			for (int32_t k = 0; k < side; k++)
				*to++ = scale->of[c][p[3 * k + c]];
		}
		for (int32_t t = 1; t < r->temporal; t++, to += side * side)
			memcpy(to, first, (size_t)(side * side) * sizeof *to);
	}
}

/* Fill the rows of one tile; patches of a merged square are adjacent. */
static void
put_tile(const ImageRules *r, const ImageScale *scale, const ImagePixels *im, const ImageTile *t,
         ImageRows *out)
{
	int32_t m = r->merge, side = row_patch(r), wide = t->grid_w / m;
	int64_t n = (int64_t)t->grid_h * t->grid_w;

	for (int64_t i = 0; i < n; i++) {
		int32_t in = (int32_t)(i % (m * m)), square = (int32_t)(i / (m * m));
		int32_t y = square / wide * m + in / m, x = square % wide * m + in % m;
		int64_t row = t->first_row + i;
		put_row(r, scale, im, y * side, x * side, out->value + row * out->row_elems);
		out->position[2 * row] = y;
		out->position[2 * row + 1] = x;
	}
}

static llmc_status
put_views(const ImageRules *r, const ImageLayout *l, const ImagePixels *original,
          const ImagePixels *base, ImageRows *out, llmc_error *err)
{
	ImageScale scale;

	for (int c = 0; c < 3; c++)
		for (int v = 0; v < 256; v++)
			scale.of[c][v] = scaled(r, c, v);
	out->value = malloc((size_t)out->n_row * (size_t)out->row_elems * sizeof *out->value);
	out->position = malloc((size_t)out->n_row * 2 * sizeof *out->position);
	if (!out->value || !out->position)
		return error_set(err, LLMC_E_MEMORY, "No memory for %lld patches of an image.",
		                 (long long)out->n_row);
	for (int32_t i = 0; i < l->n_view; i++) {
		const ImageView *v = &l->view[i];
		ImageBox window = { 0, 0, v->size.height, v->size.width };
		ImagePixels im;
		TRY(image_resize(v->of_base ? base : original, v->part, v->size.height,
		                 v->size.width, window, r->filter, r->backend, &im, err));
		put_tile(r, &scale, &im, &out->tile[i], out);
		image_release(&im);
	}
	return LLMC_OK;
}

llmc_status
image_measure(const ImageRules *r, int32_t width, int32_t height, ImageRows *out, llmc_error *err)
{
	ImageLayout l;

	*out = (ImageRows){ 0 };
	llmc_status status = image_layout(r, width, height, &l, err);
	if (status == LLMC_OK)
		status = describe(r, &l, width, height, out, err);
	image_layout_release(&l);
	if (status != LLMC_OK)
		image_rows_release(out);
	return status;
}

llmc_status
image_prepare(const ImageRules *r, const ImagePixels *im, ImageRows *out, llmc_error *err)
{
	ImageLayout l;
	ImagePixels rgb = { 0 }, base = { 0 };

	*out = (ImageRows){ 0 };
	llmc_status status = image_layout(r, im->width, im->height, &l, err);
	if (status == LLMC_OK)
		status = describe(r, &l, im->width, im->height, out, err);
	if (status == LLMC_OK)
		status = to_rgb(r, im, &l, &rgb, err);
	if (status == LLMC_OK)
		status = make_base(r, &l, &rgb, &base, err);
	if (status == LLMC_OK)
		status = put_views(r, &l, &rgb, &base, out, err);
	image_release(&rgb);
	image_release(&base);
	image_layout_release(&l);
	if (status != LLMC_OK)
		image_rows_release(out);
	return status;
}

void
image_rows_release(ImageRows *rows)
{
	free(rows->value);
	free(rows->position);
	free(rows->tile);
	strbuf_release(&rows->text);
	*rows = (ImageRows){ 0 };
}

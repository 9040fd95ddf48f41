/* PNG by libpng. This file expands palettes, low bit depths and transparent colours, with the same
 * results as Pillow. libpng reports errors by longjmp, which does not leave this file. */
#include "image/decode.h"

#ifdef LLMC_HAVE_PNG

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

typedef struct PngReader {
	png_structp png;
	png_infop info;
	const uint8_t *data;
	size_t n, at;
	jmp_buf fail;
	llmc_status status;
	llmc_error *err;
	png_bytep *row;
} PngReader;

/* Colours of a file, for expand_row */
typedef struct PngColours {
	int type, depth;
	bool has_key; /* one colour is transparent */
	/* samples of the transparent colour, as stored; of 16 bits the upper 8 */
	uint8_t key[3];
	uint8_t entry[256][4]; /* palette, RGBA */
} PngColours;

static void
on_error(png_structp png, png_const_charp text)
{
	PngReader *r = png_get_error_ptr(png);

	if (r->status == LLMC_OK)
		r->status = error_set(r->err, LLMC_E_INPUT, "The PNG image is damaged: %s.", text);
	longjmp(r->fail, 1);
}

static void
on_warning(png_structp png, png_const_charp text)
{
	(void)png, (void)text;
}

static png_voidp
allocate(png_structp png, png_alloc_size_t n)
{
	PngReader *r = png_get_mem_ptr(png);
	void *p = malloc(n);

	if (!p)
		r->status = error_set(r->err, LLMC_E_MEMORY, "No memory to decode a PNG image.");
	return p;
}

static void
release(png_structp png, png_voidp p)
{
	(void)png;
	free(p);
}

static void
read_bytes(png_structp png, png_bytep to, size_t n)
{
	PngReader *r = png_get_io_ptr(png);

	/* The checksum of the pixels, and the rest of the file after it, may be absent. */
	bool checksum = (png_get_io_state(png) & PNG_IO_MASK_LOC) == PNG_IO_CHUNK_CRC;
	if (checksum && r->at == r->n) {
		memset(to, 0, n);
		return;
	}
	if (n > r->n - r->at) {
		r->status = image_truncated("PNG", r->err);
		longjmp(r->fail, 1);
	}
	memcpy(to, r->data + r->at, n);
	r->at += n;
}

static void
read_colours(const PngReader *r, PngColours *c)
{
	png_colorp palette = NULL;
	png_bytep alpha = NULL;
	png_color_16p key = NULL;
	int n_palette = 0, n_alpha = 0;

	c->type = png_get_color_type(r->png, r->info);
	c->depth = png_get_bit_depth(r->png, r->info);
	if (c->type == PNG_COLOR_TYPE_PALETTE) {
		png_get_PLTE(r->png, r->info, &palette, &n_palette);
		png_get_tRNS(r->png, r->info, &alpha, &n_alpha, NULL);
		for (int i = 0; i < 256; i++) {
			png_color rgb = i < n_palette ? palette[i] : (png_color){ 0 };
			uint8_t a = alpha && i < n_alpha ? alpha[i] : 255;
			memcpy(c->entry[i], (uint8_t[]){ rgb.red, rgb.green, rgb.blue, a }, 4);
		}
		c->has_key = n_alpha > 0;
	} else if (png_get_tRNS(r->png, r->info, NULL, NULL, &key) && key) {
		bool grey = c->type == PNG_COLOR_TYPE_GRAY;
		c->has_key = true;
		int shift = c->depth == 16 ? 8 : 0;
		c->key[0] = (uint8_t)((grey ? key->gray : key->red) >> shift);
		c->key[1] = (uint8_t)((grey ? key->gray : key->green) >> shift);
		c->key[2] = (uint8_t)((grey ? key->gray : key->blue) >> shift);
	}
}

/* Expand stored samples in place, from the tail of the row to its beginning. */
static void
expand_row(const PngColours *c, const uint8_t *from, uint8_t *to, int32_t width, int32_t channels)
{
	bool grey = !(c->type & PNG_COLOR_MASK_COLOR), alpha = c->type & PNG_COLOR_MASK_ALPHA;
	int samples = (grey ? 1 : 3) + alpha;
	int scale = c->depth == 1 ? 255 : c->depth == 2 ? 85 : c->depth == 4 ? 17 : 1;

	if (c->type == PNG_COLOR_TYPE_PALETTE) {
		for (int32_t x = 0; x < width; x++)
			memcpy(to + (ptrdiff_t)x * channels, c->entry[from[x]], (size_t)channels);
		return;
	}
	for (int32_t x = 0; x < width; x++, from += samples, to += channels) {
		uint8_t v[4];
		bool same = c->has_key;
		for (int i = 0; i < 3; i++) {
			uint8_t stored = from[grey ? 0 : i];
			v[i] = (uint8_t)(stored * scale);
			same = same && stored == c->key[i];
		}
		v[3] = alpha ? from[samples - 1] : same ? 0 : 255;
		memcpy(to, v, (size_t)channels);
	}
}

/* Read and expand all rows. Interlaced images need all rows at once. */
static llmc_status
read_rows(PngReader *r, ImagePixels *im)
{
	PngColours colours = { 0 };
	int32_t samples = png_get_channels(r->png, r->info);

	read_colours(r, &colours);
	png_set_strip_16(r->png);
	png_set_packing(r->png);
	png_set_interlace_handling(r->png);
	png_read_update_info(r->png, r->info);
	r->row = malloc((size_t)im->height * sizeof *r->row);
	if (!r->row)
		return error_set(r->err, LLMC_E_MEMORY, "No memory to decode a PNG image.");
	for (int32_t y = 0; y < im->height; y++)
		r->row[y] = image_row_tail(im, y, samples);
	png_read_image(r->png, r->row);
	for (int32_t y = 0; y < im->height; y++)
		expand_row(&colours, r->row[y], image_row(im, y), im->width, im->channels);
	return LLMC_OK;
}

static llmc_status
read_image(PngReader *r, const ImageLimits *limits, ImagePixels *out)
{
	r->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, r, on_error, on_warning, r,
	                                  allocate, release);
	r->info = r->png ? png_create_info_struct(r->png) : NULL;
	if (!r->info)
		return error_set(r->err, LLMC_E_MEMORY, "No memory to decode a PNG image.");
	png_set_read_fn(r->png, r, read_bytes);
	/* other optional chunks are not stored; sizes are checked by image_allocate */
	png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
	png_set_keep_unknown_chunks(r->png, PNG_HANDLE_CHUNK_AS_DEFAULT, (png_const_bytep) "eXIf",
	                            1);
	png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
	png_set_crc_action(r->png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
	png_read_info(r->png, r->info);
	int type = png_get_color_type(r->png, r->info);
	bool alpha = type & PNG_COLOR_MASK_ALPHA || png_get_valid(r->png, r->info, PNG_INFO_tRNS);
	TRY(image_allocate("PNG", png_get_image_width(r->png, r->info),
	                   png_get_image_height(r->png, r->info), alpha ? 4 : 3, limits, out,
	                   r->err));
	return read_rows(r, out);
}

/* Read the orientation from an eXIf chunk, which may come after the pixels. The end of the file may
 * be absent.
 */
static int
read_orientation(PngReader *r)
{
	png_bytep exif = NULL;
	png_uint_32 n = 0;
	llmc_error *err = r->err;

	r->err = NULL; /* ignore damage after the pixels */
	if (!setjmp(r->fail))
		png_read_end(r->png, r->info);
	r->err = err;
	r->status = LLMC_OK;
	return png_get_eXIf_1(r->png, r->info, &n, &exif) ? exif_orientation(exif, n) : 1;
}

llmc_status
image_png(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
          llmc_error *err)
{
	PngReader r = { .data = data, .n = n, .err = err };

	if (!setjmp(r.fail))
		r.status = read_image(&r, limits, out);
	if (r.status == LLMC_OK)
		r.status = image_orient(out, read_orientation(&r), err);
	free(r.row);
	png_destroy_read_struct(&r.png, &r.info, NULL);
	return r.status;
}

#endif

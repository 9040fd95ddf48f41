/* BMP: headers from OS/2 1 to Windows 5; palettes, RLE4, RLE8, 16 to 32 bits with any masks. Bytes
 * without a mask, such as the fourth of 32-bit pixels, are ignored. */
#include <string.h>

#include "image/decode.h"

enum { BMP_RAW, BMP_RLE8, BMP_RLE4, BMP_BITFIELDS, FILE_HEADER = 14, CORE_HEADER = 12 };

typedef struct BmpMask {
	uint32_t mask;
	int shift;
	uint32_t max;
} BmpMask;

typedef struct BmpReader {
	const uint8_t *data;
	size_t n, pixels; /* offset of the pixels */
	llmc_error *err;
	size_t header;
	int64_t width, height;
	bool from_top;
	uint32_t bits, compression, colours;
	BmpMask mask[4]; /* red, green, blue, alpha */
	uint8_t entry[256][3];
} BmpReader;

static uint32_t
number(const BmpReader *r, size_t at, int bytes)
{
	return image_number(r->data, r->n, at, bytes, true);
}

static llmc_status
read_header(BmpReader *r)
{
	size_t at = FILE_HEADER;

	r->header = number(r, at, 4);
	r->pixels = number(r, 10, 4);
	if (r->header != CORE_HEADER && r->header != 40 && r->header != 52 && r->header != 56 &&
	    r->header != 64 && r->header != 108 && r->header != 124)
		return error_set(r->err, LLMC_E_INPUT,
		                 "The BMP image has an unknown header of %zu bytes.", r->header);
	if (r->n < at + r->header)
		return image_truncated("BMP", r->err);
	if (r->header == CORE_HEADER) {
		r->width = number(r, at + 4, 2);
		r->height = number(r, at + 6, 2);
		r->bits = number(r, at + 10, 2);
	} else {
		r->width = (int32_t)number(r, at + 4, 4);
		r->height = (int32_t)number(r, at + 8, 4);
		r->bits = number(r, at + 14, 2);
		r->compression = number(r, at + 16, 4);
		r->colours = number(r, at + 32, 4);
	}
	r->from_top = r->height < 0;
	r->height = r->from_top ? -r->height : r->height;
	if (r->bits != 1 && r->bits != 4 && r->bits != 8 && r->bits != 16 && r->bits != 24 &&
	    r->bits != 32)
		return error_set(r->err, LLMC_E_INPUT,
		                 "The BMP image has %u bits per pixel; 1, 4, 8, 16, "
		                 "24 or 32 are possible.",
		                 r->bits);
	bool fits = r->compression == BMP_RAW || (r->compression == BMP_RLE8 && r->bits == 8) ||
	            (r->compression == BMP_RLE4 && r->bits == 4) ||
	            (r->compression == BMP_BITFIELDS && r->bits >= 16);
	if (!fits)
		return error_set(
		    r->err, LLMC_E_INPUT,
		    "The BMP image has compression %u with %u bits per pixel, which is not "
		    "supported.",
		    r->compression, r->bits);
	return LLMC_OK;
}

static llmc_status
set_mask(BmpReader *r, int i, uint32_t mask)
{
	BmpMask *m = &r->mask[i];

	*m = (BmpMask){ .mask = mask };
	if (!mask)
		return LLMC_OK;
	m->shift = __builtin_ctz(mask);
	m->max = mask >> m->shift;
	if (m->max & (m->max + 1))
		return error_set(r->err, LLMC_E_INPUT,
		                 "The BMP image has a mask with a gap, 0x%08x.", mask);
	return LLMC_OK;
}

static llmc_status
read_masks(BmpReader *r)
{
	static const uint32_t rgb555[] = { 0x7c00, 0x3e0, 0x1f, 0 },
	                      rgb888[] = { 0xff0000, 0xff00, 0xff, 0 };
	uint32_t mask[4];

	memcpy(mask, r->bits == 16 ? rgb555 : rgb888, sizeof mask);
	if (r->compression == BMP_BITFIELDS) {
		/* masks follow a header of 40 bytes and are within a longer one; alpha has one from
		 * 56 bytes on */
		for (int i = 0; i < 4; i++)
			mask[i] = i < 3 || r->header >= 56
			              ? number(r, FILE_HEADER + 40 + 4 * (size_t)i, 4)
			              : 0;
		if (!(mask[0] | mask[1] | mask[2] | mask[3]))
			memcpy(mask, (uint32_t[]){ 0xff0000, 0xff00, 0xff, 0xff000000 },
			       sizeof mask);
	}
	for (int i = 0; i < 4; i++)
		TRY(set_mask(r, i, mask[i]));
	return LLMC_OK;
}

static llmc_status
read_palette(BmpReader *r)
{
	size_t step = r->header == CORE_HEADER ? 3 : 4, at = FILE_HEADER + r->header;

	if (r->bits > 8)
		return LLMC_OK;
	if (!r->colours)
		r->colours = 1u << r->bits;
	if (r->colours > 65536)
		return error_set(r->err, LLMC_E_INPUT, "The BMP image has a palette of %u colours.",
		                 r->colours);
	if (r->n - at < step * r->colours)
		return image_truncated("BMP", r->err);
	if (r->pixels == at)
		/* in some files the offset of the pixels does not include the palette */
		r->pixels += step * r->colours;
	for (uint32_t i = 0; i < r->colours && i < 256; i++) {
		const uint8_t *p = r->data + at + step * i;
		memcpy(r->entry[i], (uint8_t[]){ p[2], p[1], p[0] }, 3);
	}
	return LLMC_OK;
}

static uint8_t
channel(const BmpMask *m, uint32_t v)
{
	return m->max ? (uint8_t)((uint64_t)((v & m->mask) >> m->shift) * 255 / m->max) : 0;
}

static void
read_row(const BmpReader *r, const uint8_t *from, uint8_t *to, int32_t channels)
{
	for (int64_t x = 0; x < r->width; x++, to += channels) {
		if (r->bits <= 8) {
			size_t bit = (size_t)x * r->bits;
			int index = from[bit / 8] >> (8 - r->bits - bit % 8) & ((1 << r->bits) - 1);
			memcpy(to, r->entry[index], 3);
			continue;
		}
		uint32_t v = 0;
		for (uint32_t i = 0; i < r->bits / 8; i++)
			v |= (uint32_t)*from++ << 8 * i;
		for (int c = 0; c < channels; c++)
			to[c] = channel(&r->mask[c], v);
	}
}

static uint8_t *
row_of(const BmpReader *r, const ImagePixels *im, int64_t y)
{
	return image_row(im, r->from_top ? y : r->height - 1 - y);
}

static llmc_status
read_raw(const BmpReader *r, ImagePixels *im)
{
	size_t used = ((size_t)r->width * r->bits + 7) / 8, stride = (used + 3) / 4 * 4;

	for (int64_t y = 0; y < r->height; y++) {
		size_t at = r->pixels + stride * (size_t)y;
		if (at > r->n || r->n - at < used)
			return image_truncated("BMP", r->err);
		read_row(r, r->data + at, row_of(r, im, y), im->channels);
	}
	return LLMC_OK;
}

/* Position in an RLE image: number of pixels decoded so far, in the order of the file */
typedef struct BmpRle {
	int64_t at, end, x;
} BmpRle;

static void
put(const BmpReader *r, const ImagePixels *im, BmpRle *z, int index)
{
	if (z->at >= z->end)
		return;
	memcpy(row_of(r, im, z->at / r->width) + z->at % r->width * im->channels, r->entry[index],
	       3);
	z->at++;
}

/* Decode `count` pixels of one run, or of single values. Values are 4 or 8 bits. */
static void
put_values(const BmpReader *r, const ImagePixels *im, BmpRle *z, const uint8_t *p, int count,
           bool run)
{
	bool half = r->bits == 4;

	for (int i = 0; i < count; i++) {
		uint8_t v = p[run ? 0 : half ? i / 2 : i];
		put(r, im, z, !half ? v : i % 2 ? v & 15 : v >> 4);
	}
}

static void
put_zeros(const BmpReader *r, const ImagePixels *im, BmpRle *z, int64_t n)
{
	while (n-- > 0 && z->at < z->end)
		put(r, im, z, 0);
}

static llmc_status
read_rle(const BmpReader *r, ImagePixels *im)
{
	enum { END_OF_LINE, END_OF_BITMAP, DELTA };
	BmpRle z = { .end = r->width * r->height };
	size_t at = r->pixels;

	while (z.at < z.end) {
		if (at > r->n || r->n - at < 2)
			return image_truncated("BMP", r->err);
		int count = r->data[at], code = r->data[at + 1];
		at += 2;
		if (count) {
			int64_t left = r->width - z.x;
			count = count < left ? count : left > 0 ? (int)left : 0;
			put_values(r, im, &z, r->data + at - 1, count, true);
			z.x += count;
		} else if (code == END_OF_LINE) {
			put_zeros(r, im, &z, (r->width - z.at % r->width) % r->width);
			z.x = 0;
		} else if (code == END_OF_BITMAP) {
			put_zeros(r, im, &z, z.end - z.at);
		} else if (code == DELTA) {
			if (r->n - at < 2)
				return image_truncated("BMP", r->err);
			put_zeros(r, im, &z, r->data[at] + r->data[at + 1] * r->width);
			z.x = z.at % r->width;
			at += 2;
		} else {
			size_t bytes = r->bits == 4 ? (size_t)(code + 1) / 2 : (size_t)code;
			if (r->n - at < bytes)
				return image_truncated("BMP", r->err);
			put_values(r, im, &z, r->data + at, code, false);
			z.x += code;
			at += bytes;
			at += at % 2;
		}
	}
	return LLMC_OK;
}

llmc_status
image_bmp(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
          llmc_error *err)
{
	BmpReader r = { .data = data, .n = n, .err = err };

	if (n < FILE_HEADER + CORE_HEADER)
		return image_truncated("BMP", err);
	TRY(read_header(&r));
	TRY(read_masks(&r));
	TRY(read_palette(&r));
	if (!r.pixels)
		r.pixels = FILE_HEADER + r.header + (r.bits <= 8 ? 4 * (size_t)r.colours : 0);
	TRY(image_allocate("BMP", r.width, r.height, r.mask[3].mask && r.bits == 32 ? 4 : 3, limits,
	                   out, err));
	return r.compression == BMP_RLE8 || r.compression == BMP_RLE4 ? read_rle(&r, out)
	                                                              : read_raw(&r, out);
}

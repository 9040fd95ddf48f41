/* Functions that decoders share. Each decoder reads its format from memory into ImagePixels; the
 * caller releases the image, even after an error. */
#ifndef LLMC_IMAGE_DECODE_H
#define LLMC_IMAGE_DECODE_H

#include <stddef.h>

#include "image/image.h"

typedef llmc_status ImageDecoder(const uint8_t *data, size_t n, const ImageLimits *limits,
                                 ImagePixels *out, llmc_error *err);
/* the first three exist only if llmc was built with their libraries */
ImageDecoder image_jpeg, image_png, image_webp, image_gif, image_bmp;

/* Check a size that a header announces against the limits, then allocate black pixels. */
llmc_status image_allocate(const char *format, int64_t width, int64_t height, int32_t channels,
                           const ImageLimits *limits, ImagePixels *out, llmc_error *err);
llmc_status image_truncated(const char *format, llmc_error *err);

/* Integer of 1 to 4 bytes at an offset; 0 if the data ends before or within it. */
static inline uint32_t
image_number(const uint8_t *data, size_t n, size_t at, int bytes, bool little_endian)
{
	uint32_t v = 0;

	if (at > n || n - at < (size_t)bytes)
		return 0;
	for (int i = 0; i < bytes; i++)
		v |= (uint32_t)data[at + (size_t)i] << 8 * (little_endian ? i : bytes - 1 - i);
	return v;
}

static inline uint8_t *
image_row(const ImagePixels *im, int64_t y)
{
	return im->pixel + (size_t)y * (size_t)im->width * (size_t)im->channels;
}

/* Return the position in a row at which its encoded samples are stored: at the end, so that they
 * can be expanded in place from left to right. */
static inline uint8_t *
image_row_tail(const ImagePixels *im, int64_t y, int32_t samples)
{
	return image_row(im, y) + (size_t)im->width * (size_t)(im->channels - samples);
}

/* Orientation 1 to 8 of a TIFF header as EXIF stores it; 1 if there is none. */
int exif_orientation(const uint8_t *tiff, size_t n);
/* Rotate and mirror an image that is stored with this orientation, so that it is upright. */
llmc_status image_orient(ImagePixels *im, int orientation, llmc_error *err);

#endif

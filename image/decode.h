/* Shared by the decoders. Each reads its format from memory into ImagePixels; the caller releases
 * the image, also after an error. */
#ifndef LLMC_IMAGE_DECODE_H
#define LLMC_IMAGE_DECODE_H

#include <stddef.h>

#include "image/image.h"

/* Check a size that a header announces against the limits, then allocate black pixels. */
llmc_status image_allocate(const char *format, int64_t width, int64_t height, int32_t channels,
                           const ImageLimits *limits, ImagePixels *out, llmc_error *err);

static inline uint8_t *
image_row(const ImagePixels *im, int64_t y)
{
	return im->pixel + (size_t)y * (size_t)im->width * (size_t)im->channels;
}

#endif

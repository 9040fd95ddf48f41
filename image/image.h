/* Images: bytes of a file -> pixels -> rows of the patch embedding, as the model's processor makes
 * them. Bytes are untrusted: sizes are checked against limits before memory is allocated. */
#ifndef LLMC_IMAGE_IMAGE_H
#define LLMC_IMAGE_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Pixels of 8 bits per channel, rows from the top, without padding. Greyscale and palettes are
 * expanded; 16 bits, CMYK and YCCK are reduced to 8-bit RGB as Pillow does; EXIF orientation is
 * applied. */
typedef struct ImagePixels {
	int32_t width, height;
	int32_t channels; /* 3: RGB, 4: RGBA, not premultiplied */
	uint8_t *pixel;   /* [height, width, channels] */
} ImagePixels;

typedef struct ImageLimits {
	int64_t max_pixels; /* limit of width times height, for the file and for its canvas */
	int64_t max_bytes;  /* limit of the size of the encoded file */
} ImageLimits;
#define IMAGE_LIMITS_DEFAULT                                                                       \
	((ImageLimits){ .max_pixels = (int64_t)64 << 20, .max_bytes = (int64_t)32 << 20 })

/* Decode JPEG, PNG, WebP, GIF (first frame) or BMP, recognised by their first bytes. E_INPUT: the
 * bytes are not such an image, or are damaged, or exceed a limit. E_MISSING: this build lacks the
 * library for the format. Release the image with image_release. */
llmc_status image_decode(const void *data, size_t n, const ImageLimits *limits, ImagePixels *out,
                         llmc_error *err);
/* Copy pixels of 1, 3 or 4 channels. stride: bytes from one row to the next; 0: no padding. */
llmc_status image_from_pixels(const uint8_t *pixel, int32_t width, int32_t height, int32_t channels,
                              size_t stride, const ImageLimits *limits, ImagePixels *out,
                              llmc_error *err);
void image_release(ImagePixels *im);
/* Formats of this build, as text: "JPEG, PNG, WebP, GIF, BMP" */
const char *image_formats(void);

#endif

/* Resampling of RGB images, bit-exact with Pillow's or torch's for 8-bit pixels. */
#ifndef LLMC_IMAGE_RESAMPLE_H
#define LLMC_IMAGE_RESAMPLE_H

#include "image/prepare.h"

/* Rectangle of pixels */
typedef struct ImageBox {
	int32_t y, x, height, width;
} ImageBox;

/* Resize the part `from` of an RGB image to height x width, and store the part `window` of the
 * result in out, whose window.height x window.width pixels are allocated. */
llmc_status image_resize(const ImagePixels *im, ImageBox from, int32_t height, int32_t width,
                         ImageBox window, ImageFilter filter, ImageBackend backend,
                         ImagePixels *out, llmc_error *err);

#endif

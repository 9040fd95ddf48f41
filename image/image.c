/* Images of the caller's pixels, and what all decoders share: limits, messages, allocation. */
#include "image/image.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "image/decode.h"

llmc_status
image_truncated(const char *format, llmc_error *err)
{
	return error_set(err, LLMC_E_INPUT, "The %s image is truncated.", format);
}

llmc_status
image_allocate(const char *format, int64_t width, int64_t height, int32_t channels,
               const ImageLimits *limits, ImagePixels *out, llmc_error *err)
{
	if (width < 1 || height < 1 || width > INT32_MAX || height > INT32_MAX)
		return error_set(err, LLMC_E_INPUT, "The %s image has a size of %lld x %lld.",
		                 format, (long long)width, (long long)height);
	if (width > limits->max_pixels / height)
		return error_set(err, LLMC_E_INPUT,
		                 "The %s image has %lld x %lld pixels; at most %lld are accepted. "
		                 "Reduce the image.",
		                 format, (long long)width, (long long)height,
		                 (long long)limits->max_pixels);
	*out = (ImagePixels){ .width = (int32_t)width,
		              .height = (int32_t)height,
		              .channels = channels };
	out->pixel = calloc((size_t)height, (size_t)width * (size_t)channels);
	if (!out->pixel)
		return error_set(err, LLMC_E_MEMORY,
		                 "No memory for an image of %lld x %lld pixels.", (long long)width,
		                 (long long)height);
	return LLMC_OK;
}

llmc_status
image_from_pixels(const uint8_t *pixel, int32_t width, int32_t height, int32_t channels,
                  size_t stride, const ImageLimits *limits, ImagePixels *out, llmc_error *err)
{
	*out = (ImagePixels){ 0 };
	if (channels != 1 && channels != 3 && channels != 4)
		return error_set(err, LLMC_E_RANGE,
		                 "The image has %d channels; 1, 3 or 4 are possible.", channels);
	if (stride && width > 0 && stride / (size_t)channels < (size_t)width)
		return error_set(
		    err, LLMC_E_RANGE,
		    "The stride of %zu bytes is shorter than a row of %d pixels of %d channels.",
		    stride, width, channels);
	if (height > 0 && stride > PTRDIFF_MAX / (size_t)height)
		return error_set(err, LLMC_E_RANGE,
		                 "A stride of %zu bytes and %d rows exceed the address space.",
		                 stride, height);
	TRY(image_allocate("given", width, height, channels == 1 ? 3 : channels, limits, out, err));
	size_t row = (size_t)width * (size_t)channels;
	for (int32_t y = 0; y < height; y++) {
		const uint8_t *from = pixel + (size_t)y * (stride ? stride : row);
		uint8_t *to = image_row(out, y);
		if (channels != 1) {
			memcpy(to, from, row);
			continue;
		}
		for (int32_t x = 0; x < width; x++)
			memset(to + 3 * (size_t)x, from[x], 3);
	}
	return LLMC_OK;
}

void
image_release(ImagePixels *im)
{
	free(im->pixel);
	*im = (ImagePixels){ 0 };
}

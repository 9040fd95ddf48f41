/* WebP by libwebp. An animation's first frame is placed on the canvas. */
#include "image/decode.h"

#ifdef LLMC_HAVE_WEBP

#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>

static llmc_status
failure(VP8StatusCode code, llmc_error *err)
{
	switch (code) {
	case VP8_STATUS_OK:
		return LLMC_OK;
	case VP8_STATUS_OUT_OF_MEMORY:
		return error_set(err, LLMC_E_MEMORY, "No memory to decode a WebP image.");
	case VP8_STATUS_SUSPENDED:
	case VP8_STATUS_NOT_ENOUGH_DATA:
		return image_truncated("WebP", err);
	case VP8_STATUS_INVALID_PARAM:
	case VP8_STATUS_BITSTREAM_ERROR:
	case VP8_STATUS_UNSUPPORTED_FEATURE:
	case VP8_STATUS_USER_ABORT:
		break;
	}
	return error_set(err, LLMC_E_INPUT, "The WebP image is damaged.");
}

/* Decode a frame. libwebp reports some failed allocations as damage, such as those of an alpha
 * plane. So a frame that fails is decoded a second time if there is enough memory for its
 * planes. */
static VP8StatusCode
decode(const uint8_t *data, size_t n, WebPDecoderConfig *config)
{
	const WebPDecoderConfig first = *config;
	const size_t planes = 5 * (size_t)config->input.width * (size_t)config->input.height;
	VP8StatusCode code = WebPDecode(data, n, config);

	WebPFreeDecBuffer(&config->output);
	if (code == VP8_STATUS_OK || code == VP8_STATUS_OUT_OF_MEMORY)
		return code;
	void *probe = malloc(planes);
	free(probe);
	if (!probe)
		return VP8_STATUS_OUT_OF_MEMORY;
	*config = first;
	code = WebPDecode(data, n, config);
	WebPFreeDecBuffer(&config->output);
	return code;
}

/* Decode one frame into the canvas at x, y. Checks that the frame fits the canvas. */
static llmc_status
read_frame(const uint8_t *data, size_t n, int x, int y, ImagePixels *im, llmc_error *err)
{
	WebPDecoderConfig config;

	if (!WebPInitDecoderConfig(&config))
		return error_set(err, LLMC_E_MISSING,
		                 "The library libwebp has another version than its "
		                 "headers at build time. Build llmc again.");
	TRY(failure(WebPGetFeatures(data, n, &config.input), err));
	if (x < 0 || y < 0 || config.input.width > im->width - x ||
	    config.input.height > im->height - y)
		return error_set(err, LLMC_E_INPUT,
		                 "The WebP image has a frame outside its canvas.");
	size_t stride = (size_t)im->width * (size_t)im->channels;
	config.output.colorspace = im->channels == 4 ? MODE_RGBA : MODE_RGB;
	config.output.is_external_memory = 1;
	config.output.u.RGBA.rgba = image_row(im, y) + (size_t)x * (size_t)im->channels;
	config.output.u.RGBA.stride = (int)stride;
	config.output.u.RGBA.size = stride * (size_t)(config.input.height - 1) +
	                            (size_t)config.input.width * (size_t)im->channels;
	return failure(decode(data, n, &config), err);
}

/* Content of the first chunk with this tag; NULL: none. A damaged chunk ends the search. */
static const uint8_t *
find_chunk(const uint8_t *data, size_t n, const char *tag, size_t *size)
{
	size_t at = 12;

	while (n >= 8 && at <= n - 8) {
		size_t bytes = image_number(data, n, at + 4, 4, true);
		if (bytes > n - 8 - at)
			return NULL;
		if (memcmp(data + at, tag, 4) == 0) {
			*size = bytes;
			return data + at + 8;
		}
		at += 8 + bytes + bytes % 2;
	}
	return NULL;
}

/* Decode the first frame of an animation, at its position on the canvas. */
static llmc_status
read_animation(const uint8_t *data, size_t n, ImagePixels *im, llmc_error *err)
{
	enum { FRAME_HEADER = 16 }; /* x / 2, y / 2 and other fields, of 3 bytes each */
	size_t size;
	const uint8_t *frame = find_chunk(data, n, "ANMF", &size);

	if (!frame || size < FRAME_HEADER)
		return image_truncated("WebP", err);
	return read_frame(frame + FRAME_HEADER, size - FRAME_HEADER,
	                  2 * (int)image_number(frame, size, 0, 3, true),
	                  2 * (int)image_number(frame, size, 3, 3, true), im, err);
}

static int
orientation(const uint8_t *data, size_t n)
{
	size_t size;
	const uint8_t *tiff = find_chunk(data, n, "EXIF", &size);

	if (!tiff)
		return 1;
	size_t skip = size > 6 && memcmp(tiff, "Exif\0", 6) == 0 ? 6 : 0;
	return exif_orientation(tiff + skip, size - skip);
}

llmc_status
image_webp(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
           llmc_error *err)
{
	WebPBitstreamFeatures f;

	TRY(failure(WebPGetFeatures(data, n, &f), err));
	if (n < 12 || image_number(data, n, 4, 4, true) > n - 8)
		return image_truncated("WebP", err);
	TRY(image_allocate("WebP", f.width, f.height, f.has_alpha ? 4 : 3, limits, out, err));
	TRY(f.has_animation ? read_animation(data, n, out, err)
	                    : read_frame(data, n, 0, 0, out, err));
	return image_orient(out, orientation(data, n), err);
}

#endif

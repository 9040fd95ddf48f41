/* WebP by libwebp. An animation's first frame is placed on the canvas. */
#include "image/decode.h"

#ifdef LLMC_HAVE_WEBP

#include <stdlib.h>
#include <string.h>

#include <webp/decode.h>
#include <webp/demux.h>

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

/* Decode one frame into the canvas at x, y. Its size is checked against the canvas. */
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
	VP8StatusCode code = WebPDecode(data, n, &config);
	WebPFreeDecBuffer(&config.output);
	return failure(code, err);
}

/* Read the first frame and the orientation of a file with a canvas. */
static llmc_status
read_chunks(WebPDemuxer *demux, ImagePixels *im, llmc_error *err)
{
	WebPIterator frame;
	WebPChunkIterator exif;
	int orientation = 1;

	if (!WebPDemuxGetFrame(demux, 1, &frame))
		return image_truncated("WebP", err);
	llmc_status status = frame.complete ? read_frame(frame.fragment.bytes, frame.fragment.size,
	                                                 frame.x_offset, frame.y_offset, im, err)
	                                    : image_truncated("WebP", err);
	WebPDemuxReleaseIterator(&frame);
	TRY(status);
	if (WebPDemuxGetChunk(demux, "EXIF", 1, &exif)) {
		const uint8_t *tiff = exif.chunk.bytes;
		size_t n = exif.chunk.size, skip = n > 6 && memcmp(tiff, "Exif\0", 6) == 0 ? 6 : 0;
		orientation = exif_orientation(tiff + skip, n - skip);
		WebPDemuxReleaseChunkIterator(&exif);
	}
	return image_orient(im, orientation, err);
}

llmc_status
image_webp(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
           llmc_error *err)
{
	WebPBitstreamFeatures f;
	WebPDemuxState state;
	WebPData file = { data, n };

	TRY(failure(WebPGetFeatures(data, n, &f), err));
	TRY(image_allocate("WebP", f.width, f.height, f.has_alpha ? 4 : 3, limits, out, err));
	WebPDemuxer *demux = WebPDemuxPartial(&file, &state);
	if (!demux)
		return state == WEBP_DEMUX_PARSE_ERROR
		           ? error_set(err, LLMC_E_INPUT, "The WebP image is damaged.")
		           : error_set(err, LLMC_E_MEMORY, "No memory to decode a WebP image.");
	llmc_status status =
	    state == WEBP_DEMUX_DONE ? read_chunks(demux, out, err) : image_truncated("WebP", err);
	WebPDemuxDelete(demux);
	return status;
}

#else

llmc_status
image_webp(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
           llmc_error *err)
{
	(void)data, (void)n, (void)limits, (void)out;
	return image_not_built("WebP", "libwebp", err);
}

#endif

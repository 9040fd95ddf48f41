/* JPEG by libjpeg-turbo, with the settings of Pillow: accurate integer DCT, smooth upsampling.
 * libjpeg reports errors by longjmp, which does not leave this file. */
#include "image/decode.h"

#ifdef LLMC_HAVE_JPEG

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

/* Maximum number of scans of a progressive file, each of which costs a pass over the image.
 * Encoders write fewer than 70. */
enum { MAX_SCANS = 256 };

typedef struct JpegReader {
	struct jpeg_decompress_struct codec;
	struct jpeg_error_mgr mgr;
	struct jpeg_source_mgr source;
	struct jpeg_progress_mgr progress;
	jmp_buf fail;
	llmc_status status;
	llmc_error *err;
} JpegReader;

static void
on_error(j_common_ptr codec)
{
	JpegReader *r = codec->client_data;
	char text[JMSG_LENGTH_MAX];

	if (codec->err->msg_code == JERR_OUT_OF_MEMORY ||
	    codec->err->msg_code == JERR_NO_BACKING_STORE) {
		r->status = error_set(r->err, LLMC_E_MEMORY, "No memory to decode a JPEG image.");
	} else {
		codec->err->format_message(codec, text);
		r->status = error_set(r->err, LLMC_E_INPUT, "The JPEG image is damaged: %s.", text);
	}
	longjmp(r->fail, 1);
}

/* Handle a warning about damaged data: ignore it, so that the decoder continues, as in Pillow. */
static void
on_message(j_common_ptr codec, int level)
{
	(void)codec, (void)level;
}

static void
no_output(j_common_ptr codec)
{
	(void)codec;
}

static void
on_progress(j_common_ptr codec)
{
	JpegReader *r = codec->client_data;

	if (r->codec.input_scan_number <= MAX_SCANS)
		return;
	r->status =
	    error_set(r->err, LLMC_E_INPUT, "The JPEG image has more than %d scans.", MAX_SCANS);
	longjmp(r->fail, 1);
}

static void
no_source_action(j_decompress_ptr codec)
{
	(void)codec;
}

/* Suspend decoding at the end of the data; the caller then reports a truncated file. */
static boolean
suspend(j_decompress_ptr codec)
{
	(void)codec;
	return FALSE;
}

static void
skip(j_decompress_ptr codec, long n)
{
	size_t left = codec->src->bytes_in_buffer;
	size_t step = n > 0 ? (size_t)n : 0;

	step = step < left ? step : left;
	codec->src->next_input_byte += step;
	codec->src->bytes_in_buffer -= step;
}

static void
expand_row(const uint8_t *from, uint8_t *to, int32_t width, int channels)
{
	for (int32_t x = 0; x < width; x++, from += channels, to += 3) {
		if (channels == 1) {
			memset(to, from[0], 3);
			continue;
		}
		/* Adobe stores CMYK inverted, so a sample is the share of the light that the ink
		 * lets through. */
		uint32_t key = from[3];
		for (int c = 0; c < 3; c++) {
			uint32_t absorbed = (255u - from[c]) * key + 128;
			to[c] = (uint8_t)(key - ((absorbed >> 8) + absorbed) / 256);
		}
	}
}

static llmc_status
read_rows(JpegReader *r, ImagePixels *out)
{
	struct jpeg_decompress_struct *c = &r->codec;
	JSAMPARRAY raw = NULL;

	if (c->output_components != 3)
		raw = c->mem->alloc_sarray((j_common_ptr)c, JPOOL_IMAGE,
		                           c->output_width * (JDIMENSION)c->output_components, 1);
	while (c->output_scanline < c->output_height) {
		uint8_t *to = image_row(out, c->output_scanline);
		if (jpeg_read_scanlines(c, raw ? raw : &to, 1) != 1)
			return image_truncated("JPEG", r->err);
		if (raw)
			expand_row(raw[0], to, out->width, c->output_components);
	}
	return jpeg_finish_decompress(c) ? LLMC_OK : image_truncated("JPEG", r->err);
}

static int
orientation(const struct jpeg_decompress_struct *c)
{
	for (jpeg_saved_marker_ptr m = c->marker_list; m; m = m->next)
		if (m->data_length > 6 && memcmp(m->data, "Exif\0", 6) == 0)
			return exif_orientation(m->data + 6, m->data_length - 6);
	return 1;
}

static llmc_status
read_image(JpegReader *r, const ImageLimits *limits, ImagePixels *out)
{
	struct jpeg_decompress_struct *c = &r->codec;

	jpeg_create_decompress(c);
	c->client_data = r;
	c->src = &r->source;
	c->progress = &r->progress;
	/* memory for coefficients of a progressive file: 2 bytes per sample of at most 4
	 * components */
	int64_t most = (int64_t)1 << 40, pixels = limits->max_pixels,
	        memory = (pixels < most ? pixels : most) * 8 + (1 << 24);
	c->mem->max_memory_to_use = (long)memory;
	jpeg_save_markers(c, JPEG_APP0 + 1, 0xffff);
	if (jpeg_read_header(c, TRUE) != JPEG_HEADER_OK)
		return image_truncated("JPEG", r->err);
	if (c->num_components != 1 && c->num_components != 3 && c->num_components != 4)
		return error_set(r->err, LLMC_E_INPUT,
		                 "The JPEG image has %d components; 1, 3 or 4 are possible.",
		                 c->num_components);
	TRY(image_allocate("JPEG", c->image_width, c->image_height, 3, limits, out, r->err));
	c->out_color_space = c->num_components == 1   ? JCS_GRAYSCALE
	                     : c->num_components == 3 ? JCS_RGB
	                                              : JCS_CMYK;
	int turn = orientation(c); /* read now, because the end of decoding frees the markers */
	if (!jpeg_start_decompress(c))
		return image_truncated("JPEG", r->err);
	TRY(read_rows(r, out));
	return image_orient(out, turn, r->err);
}

llmc_status
image_jpeg(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
           llmc_error *err)
{
	JpegReader r = {
		.err = err,
		.source = { .next_input_byte = data,
		            .bytes_in_buffer = n,
		            .init_source = no_source_action,
		            .fill_input_buffer = suspend,
		            .skip_input_data = skip,
		            .resync_to_restart = jpeg_resync_to_restart,
		            .term_source = no_source_action },
		.progress = { .progress_monitor = on_progress },
	};

	r.codec.err = jpeg_std_error(&r.mgr);
	r.codec.client_data = &r;
	r.mgr.error_exit = on_error;
	r.mgr.emit_message = on_message;
	r.mgr.output_message = no_output;
	if (!setjmp(r.fail))
		r.status = read_image(&r, limits, out);
	jpeg_destroy_decompress(&r.codec);
	return r.status;
}

#endif

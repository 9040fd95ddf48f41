/* Recognises formats by their first bytes. */
#include "image/decode.h"

#include <string.h>

#ifdef LLMC_HAVE_JPEG
#define JPEG_DECODER image_jpeg
#define JPEG_NAME "JPEG, "
#else
#define JPEG_DECODER NULL
#define JPEG_NAME ""
#endif
#ifdef LLMC_HAVE_PNG
#define PNG_DECODER image_png
#define PNG_NAME "PNG, "
#else
#define PNG_DECODER NULL
#define PNG_NAME ""
#endif
#ifdef LLMC_HAVE_WEBP
#define WEBP_DECODER image_webp
#define WEBP_NAME "WebP, "
#else
#define WEBP_DECODER NULL
#define WEBP_NAME ""
#endif

typedef struct ImageMagic {
	const char *name;
	size_t at; /* offset of the mark */
	const char *mark;
	size_t n;
	ImageDecoder *decode; /* NULL: known, but not read */
	const char *package;  /* library that the decoder needs; NULL: none */
} ImageMagic;

/* The mark of BMP comes last, because it is short. */
static const ImageMagic magic[] = {
	{ "JPEG", 0, "\xff\xd8\xff", 3, JPEG_DECODER, "libjpeg-turbo" },
	{ "PNG", 0, "\x89PNG\r\n\x1a\n", 8, PNG_DECODER, "libpng" },
	{ "WebP", 8, "WEBP", 4, WEBP_DECODER, "libwebp" },
	{ "GIF", 0, "GIF87a", 6, image_gif, NULL },
	{ "GIF", 0, "GIF89a", 6, image_gif, NULL },
	{ "TIFF", 0, "II*\0", 4, NULL, NULL },
	{ "TIFF", 0, "MM\0*", 4, NULL, NULL },
	{ "AVIF", 4, "ftypavif", 8, NULL, NULL },
	{ "HEIC", 4, "ftyphei", 7, NULL, NULL },
	{ "HEIC", 4, "ftypmif1", 8, NULL, NULL },
	{ "JPEG XL", 0, "\xff\x0a", 2, NULL, NULL },
	{ "JPEG XL", 4, "JXL \r\n\x87\n", 8, NULL, NULL },
	{ "JPEG 2000", 4, "jP  \r\n\x87\n", 8, NULL, NULL },
	{ "JPEG 2000", 0, "\xff\x4f\xff\x51", 4, NULL, NULL },
	{ "Photoshop", 0, "8BPS", 4, NULL, NULL },
	{ "PDF", 0, "%PDF", 4, NULL, NULL },
	{ "SVG", 0, "<svg", 4, NULL, NULL },
	{ "icon", 0, "\0\0\1\0", 4, NULL, NULL },
	{ "BMP", 0, "BM", 2, image_bmp, NULL },
};

const char *
image_formats(void)
{
	return JPEG_NAME PNG_NAME WEBP_NAME "GIF, BMP";
}

static llmc_status
unknown(const uint8_t *data, size_t n, llmc_error *err)
{
	char hex[3 * 4 + 1] = "";

	for (size_t i = 0; i < 4 && i < n; i++) {
		const char digits[] = "0123456789abcdef";
		memcpy(hex + 3 * i, (char[]){ ' ', digits[data[i] >> 4], digits[data[i] & 15], 0 },
		       4);
	}
	return error_set(
	    err, LLMC_E_INPUT,
	    "The data is no image that llmc reads (%zu bytes, first bytes%s). It reads %s.", n, hex,
	    image_formats());
}

llmc_status
image_decode(const void *data, size_t n, const ImageLimits *limits, ImagePixels *out,
             llmc_error *err)
{
	*out = (ImagePixels){ 0 };
	if (limits->max_bytes > 0 && n > (size_t)limits->max_bytes)
		return error_set(err, LLMC_E_INPUT,
		                 "The image has %zu bytes; at most %lld are accepted.", n,
		                 (long long)limits->max_bytes);
	for (size_t i = 0; i < sizeof magic / sizeof magic[0]; i++) {
		const ImageMagic *m = &magic[i];
		if (n < m->at + m->n || memcmp((const char *)data + m->at, m->mark, m->n) != 0)
			continue;
		if (!m->decode && m->package)
			return error_set(
			    err, LLMC_E_MISSING,
			    "This build of llmc has no decoder for %s; it reads %s. Install %s and "
			    "build llmc again, or convert the image.",
			    m->name, image_formats(), m->package);
		if (!m->decode)
			return error_set(
			    err, LLMC_E_INPUT,
			    "The image is a %s file, which llmc does not read. Convert it to "
			    "one of %s.",
			    m->name, image_formats());
		llmc_status status = m->decode(data, n, limits, out, err);
		if (status != LLMC_OK)
			image_release(out);
		return status;
	}
	return unknown(data, n, err);
}

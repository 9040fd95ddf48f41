/* Reads the orientation of photographs, which EXIF stores, and turns them upright. */
#include <stdlib.h>
#include <string.h>

#include "image/decode.h"

typedef struct Tiff {
	const uint8_t *data;
	size_t n;
	bool little;
} Tiff;

static uint32_t
number(const Tiff *t, size_t at, int bytes)
{
	return image_number(t->data, t->n, at, bytes, t->little);
}

int
exif_orientation(const uint8_t *tiff, size_t n)
{
	enum { ORIENTATION = 0x0112, BYTE = 1, SHORT = 3, LONG = 4 };
	Tiff t = { tiff, n, n > 1 && tiff[0] == 'I' };

	if (n < 8 || (memcmp(tiff, "II", 2) && memcmp(tiff, "MM", 2)) || number(&t, 2, 2) != 42)
		return 1;
	size_t at = number(&t, 4, 4);
	uint32_t entries = number(&t, at, 2);
	for (uint32_t i = 0; i < entries; i++) {
		size_t entry = at + 2 + 12 * (size_t)i;
		if (entry + 12 > n)
			break;
		if (number(&t, entry, 2) != ORIENTATION)
			continue;
		uint32_t type = number(&t, entry + 2, 2);
		int bytes = type == BYTE ? 1 : type == SHORT ? 2 : type == LONG ? 4 : 0;
		uint32_t v =
		    bytes && number(&t, entry + 4, 4) == 1 ? number(&t, entry + 8, bytes) : 1;
		return v >= 1 && v <= 8 ? (int)v : 1;
	}
	return 1;
}

/* Offset in pixels of the first pixel of the upright image, and of one step right and down. */
typedef struct Steps {
	int64_t start, right, down;
} Steps;

static Steps
steps(int orientation, int64_t w, int64_t h)
{
	switch (orientation) {
	case 2:
		return (Steps){ w - 1, -1, w };
	case 3:
		return (Steps){ w * h - 1, -1, -w };
	case 4:
		return (Steps){ w * (h - 1), 1, -w };
	case 5:
		return (Steps){ 0, w, 1 };
	case 6:
		return (Steps){ w * (h - 1), -w, 1 };
	case 7:
		return (Steps){ w * h - 1, -w, -1 };
	case 8:
		return (Steps){ w - 1, w, -1 };
	default:
		return (Steps){ 0, 1, w };
	}
}

llmc_status
image_orient(ImagePixels *im, int orientation, llmc_error *err)
{
	if (orientation <= 1 || orientation > 8)
		return LLMC_OK;
	ImagePixels to = *im;
	size_t c = (size_t)im->channels;
	if (orientation >= 5) {
		to.width = im->height;
		to.height = im->width;
	}
	to.pixel = malloc((size_t)to.width * (size_t)to.height * c);
	if (!to.pixel)
		return error_set(err, LLMC_E_MEMORY,
		                 "No memory to rotate an image of %d x %d pixels.", im->width,
		                 im->height);
	Steps s = steps(orientation, im->width, im->height);
	uint8_t *p = to.pixel;
	for (int64_t y = 0; y < to.height; y++)
		for (int64_t x = 0; x < to.width; x++, p += c)
			memcpy(p, im->pixel + (size_t)(s.start + y * s.down + x * s.right) * c, c);
	free(im->pixel);
	*im = to;
	return LLMC_OK;
}

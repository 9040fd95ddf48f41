/* GIF: the first frame on its canvas, as Pillow shows it. The canvas is filled with the transparent
 * colour, or with the first one of the palette. */
#include <string.h>

#include "image/decode.h"

enum { LZW_CODES = 4096, CLEAR_BITS_MAX = 8 };

typedef struct GifReader {
	const uint8_t *data;
	size_t n, at;
	llmc_error *err;
	int transparent; /* index; -1: none */
	uint8_t entry[256][3];
} GifReader;

/* A string of the LZW dictionary: its last byte, its first byte, and the string without the last
 * byte. */
typedef struct GifString {
	uint16_t before;
	uint8_t last, first;
} GifString;

typedef struct GifLzw {
	GifReader *r;
	size_t block_left; /* bytes of the current sub-block */
	uint32_t bits;
	int n_bits;
	GifString code[LZW_CODES];
	uint8_t stack[LZW_CODES];
} GifLzw;

/* Frame within the canvas, and the position of the next pixel in it */
typedef struct GifFrame {
	int32_t left, top, width, height;
	bool interlaced;
	int pass;
	int32_t x, y, rows_done;
} GifFrame;

static bool
has_bytes(const GifReader *r, size_t n)
{
	return r->n - r->at >= n;
}

static int32_t
word(const uint8_t *p)
{
	return p[0] | p[1] << 8;
}

static llmc_status
read_palette(GifReader *r, uint8_t flags)
{
	size_t n = (size_t)2 << (flags & 7);

	for (int i = 0; i < 256; i++)
		/* default colours for entries that the file lacks, as in Pillow */
		memset(r->entry[i], i, 3);
	if (!(flags & 0x80))
		return LLMC_OK;
	if (!has_bytes(r, 3 * n))
		return image_truncated("GIF", r->err);
	memset(r->entry, 0, sizeof r->entry);
	memcpy(r->entry, r->data + r->at, 3 * n);
	r->at += 3 * n;
	return LLMC_OK;
}

static llmc_status
skip_blocks(GifReader *r)
{
	for (;;) {
		if (!has_bytes(r, 1))
			return image_truncated("GIF", r->err);
		size_t n = r->data[r->at++];
		if (!n)
			return LLMC_OK;
		if (!has_bytes(r, n))
			return image_truncated("GIF", r->err);
		r->at += n;
	}
}

/* Read blocks up to the descriptor of the first frame. */
static llmc_status
find_frame(GifReader *r)
{
	for (;;) {
		if (!has_bytes(r, 1))
			return image_truncated("GIF", r->err);
		uint8_t kind = r->data[r->at++];
		if (kind == ',')
			return LLMC_OK;
		if (kind == ';')
			return error_set(r->err, LLMC_E_INPUT, "The GIF file has no image.");
		if (kind != '!')
			continue; /* skip stray bytes, as Pillow does */
		if (!has_bytes(r, 6))
			return image_truncated("GIF", r->err);
		const uint8_t *p = r->data + r->at;
		if (p[0] == 0xf9 && p[1] == 4)
			r->transparent = p[2] & 1 ? p[5] : -1;
		r->at++;
		TRY(skip_blocks(r));
	}
}

/* Return the next code of `size` bits; -1 at the end of the data. */
static int
next_code(GifLzw *z, int size)
{
	GifReader *r = z->r;

	while (z->n_bits < size) {
		if (!z->block_left) {
			if (!has_bytes(r, 1) || !r->data[r->at])
				return -1;
			z->block_left = r->data[r->at++];
		}
		if (!has_bytes(r, 1))
			return -1;
		z->bits |= (uint32_t)r->data[r->at++] << z->n_bits;
		z->n_bits += 8;
		z->block_left--;
	}
	int code = (int)(z->bits & ((1u << size) - 1));
	z->bits >>= size;
	z->n_bits -= size;
	return code;
}

/* Advance to the next row, in the order of the four passes of an interlaced frame. */
static void
next_row(GifFrame *f)
{
	static const int32_t first[] = { 0, 4, 2, 1 }, step[] = { 8, 8, 4, 2 };

	f->x = 0;
	f->rows_done++;
	f->y += f->interlaced ? step[f->pass] : 1;
	while (f->interlaced && f->y >= f->height && f->pass < 3)
		f->y = first[++f->pass];
}

static void
put(const GifReader *r, ImagePixels *im, GifFrame *f, uint8_t index)
{
	if (f->rows_done >= f->height)
		return;
	uint8_t *p = image_row(im, f->top + f->y) + (ptrdiff_t)(f->left + f->x) * im->channels;
	memcpy(p, r->entry[index], 3);
	if (im->channels == 4)
		p[3] = index == r->transparent ? 0 : 255;
	if (++f->x == f->width)
		next_row(f);
}

static llmc_status
read_lzw(GifLzw *z, ImagePixels *im, GifFrame *f)
{
	GifReader *r = z->r;

	if (!has_bytes(r, 1))
		return image_truncated("GIF", r->err);
	int bits = r->data[r->at++];
	if (bits < 1 || bits > CLEAR_BITS_MAX)
		return error_set(r->err, LLMC_E_INPUT,
		                 "The GIF image is damaged: it has codes of %d bits.", bits);
	int clear = 1 << bits, next = clear + 2, size = bits + 1, before = -1;
	for (int i = 0; i < clear; i++)
		z->code[i] = (GifString){ .last = (uint8_t)i, .first = (uint8_t)i };
	while (f->rows_done < f->height) {
		int code = next_code(z, size), top = 0;
		if (code < 0 || code == clear + 1)
			return image_truncated("GIF", r->err);
		if (code == clear) {
			next = clear + 2;
			size = bits + 1;
			before = -1;
			continue;
		}
		if (code > next || (code == next && before < 0) || (before < 0 && code > clear))
			return error_set(r->err, LLMC_E_INPUT,
			                 "The GIF image is damaged: code %d is undefined.", code);
		if (before >= 0 && next < LZW_CODES) {
			uint8_t last = z->code[code == next ? before : code].first;
			z->code[next++] =
			    (GifString){ (uint16_t)before, last, z->code[before].first };
			if (next == 1 << size && size < 12)
				size++;
		}
		before = code;
		for (; code > clear; code = z->code[code].before)
			z->stack[top++] = z->code[code].last;
		z->stack[top++] = (uint8_t)code;
		while (top)
			put(r, im, f, z->stack[--top]);
	}
	return LLMC_OK;
}

static void
fill(const GifReader *r, ImagePixels *im)
{
	int index = r->transparent >= 0 ? r->transparent : 0;
	size_t n = (size_t)im->width * (size_t)im->height;

	for (size_t i = 0; i < n; i++)
		memcpy(im->pixel + i * (size_t)im->channels, r->entry[index], 3);
}

llmc_status
image_gif(const uint8_t *data, size_t n, const ImageLimits *limits, ImagePixels *out,
          llmc_error *err)
{
	GifReader r = { .data = data, .n = n, .at = 13, .err = err, .transparent = -1 };

	if (n < 13)
		return image_truncated("GIF", err);
	int32_t width = word(data + 6), height = word(data + 8);
	TRY(read_palette(&r, data[10]));
	TRY(find_frame(&r));
	if (!has_bytes(&r, 9))
		return image_truncated("GIF", err);
	const uint8_t *p = data + r.at;
	r.at += 9;
	GifFrame f = { .left = word(p),
		       .top = word(p + 2),
		       .width = word(p + 4),
		       .height = word(p + 6),
		       .interlaced = p[8] & 0x40 };
	width = width < f.left + f.width ? f.left + f.width : width;
	height = height < f.top + f.height ? f.top + f.height : height;
	if (p[8] & 0x80)
		TRY(read_palette(&r, p[8]));
	TRY(image_allocate("GIF", width, height, r.transparent >= 0 ? 4 : 3, limits, out, err));
	fill(&r, out);
	if (f.width == 0 || f.height == 0)
		return LLMC_OK;
	GifLzw z = { .r = &r };
	return read_lzw(&z, out, &f);
}

/* Decode and prepare images for the tests of this folder. Results go to standard output, one record
 * per image: status, sizes and lengths as int32, strings and arrays.
 *
 *   pixels decode [-p max_pixels] FILE...
 *   pixels rows RULES FILE...   RULES: JSON {"preprocessor": ..., "processor": ..., "config": ...}, or an mmproj GGUF
 *   pixels sizes RULES WIDTHxHEIGHT... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "image/image.h"

static void
put(int32_t v)
{
	fwrite(&v, sizeof v, 1, stdout);
}

static void
put_text(const char *s, size_t n)
{
	put((int32_t)n);
	fwrite(s, 1, n, stdout);
}

static llmc_status
decode(const char *path, const ImageLimits *limits, ImagePixels *im, llmc_error *err)
{
	FileMap file;

	TRY(file_map(path, &file, err));
	/* exact size, so that a sanitizer reports reads beyond it */
	uint8_t *copy = malloc(file.size + !file.size);
	if (file.size)
		memcpy(copy, file.data, file.size);
	llmc_status status = image_decode(copy, file.size, limits, im, err);
	free(copy);
	file_unmap(&file);
	return status;
}

static void
put_decoded(const char *path, const ImageLimits *limits)
{
	ImagePixels im = { 0 };
	llmc_error err = { 0 };

	put(decode(path, limits, &im, &err));
	put_text(err.text, strlen(err.text));
	put(im.width);
	put(im.height);
	put(im.channels);
	fwrite(im.pixel, (size_t)im.channels, (size_t)im.width * (size_t)im.height, stdout);
	image_release(&im);
}

int
main(int argc, char **argv)
{
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	int i = 2;

	if (argc < 3)
		return 2;
	if (strcmp(argv[i], "-p") == 0) {
		limits.max_pixels = atoll(argv[i + 1]);
		i += 2;
	}
	for (; i < argc; i++)
		put_decoded(argv[i], &limits);
	return 0;
}

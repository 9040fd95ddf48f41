/* Decode and prepare images for the tests of this folder. Results go to standard output, one record
 * per image: status and sizes as int32, strings with their length, arrays.
 *
 *   pixels decode [-p max_pixels] FILE...
 *   pixels rows RULES FILE...              with rows of patches, if the file is decoded
 *   pixels sizes RULES WIDTHxHEIGHT...     without them
 *
 * RULES is a JSON file with preprocessor, processor, config and tokenizer. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "image/prepare.h"

static void
put(int32_t v)
{
	fwrite(&v, sizeof v, 1, stdout);
}

static void
put_text(const char *s)
{
	put((int32_t)strlen(s));
	fwrite(s, 1, strlen(s), stdout);
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
	put_text(err.text);
	put(im.width);
	put(im.height);
	put(im.channels);
	fwrite(im.pixel, (size_t)im.channels, (size_t)im.width * (size_t)im.height, stdout);
	image_release(&im);
}

static void
put_rows(llmc_status status, const llmc_error *err, const ImageRows *r)
{
	put(status);
	put_text(err->text);
	put_text(strbuf_str(&r->text));
	put((int32_t)r->n_token);
	put(r->tiles_h);
	put(r->tiles_w);
	put(r->n_tile);
	for (int32_t i = 0; i < r->n_tile; i++) {
		put(r->tile[i].grid_h);
		put(r->tile[i].grid_w);
	}
	put(r->value ? (int32_t)r->n_row : 0);
	put(r->row_elems);
	if (!r->value)
		return;
	fwrite(r->position, 2 * sizeof *r->position, (size_t)r->n_row, stdout);
	fwrite(r->value, (size_t)r->row_elems * sizeof *r->value, (size_t)r->n_row, stdout);
}

static llmc_status
prepare(const ImageRules *rules, const char *arg, bool with_rows, ImageRows *rows, llmc_error *err)
{
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	ImagePixels im = { 0 };
	int w, h;

	if (!with_rows)
		return sscanf(arg, "%dx%d", &w, &h) == 2
		           ? image_measure(rules, w, h, rows, err)
		           : error_set(err, LLMC_E_INPUT, "%s is no size.", arg);
	TRY(decode(arg, &limits, &im, err));
	llmc_status status = image_prepare(rules, &im, rows, err);
	image_release(&im);
	return status;
}

static llmc_status
read_rules(const char *path, ImageRules *out, llmc_error *err)
{
	Strbuf text = { 0 };

	TRY(file_read(path, 1 << 20, &text, err));
	json_t *j = json_parse(strbuf_str(&text), text.len, 0, NULL, NULL);
	strbuf_release(&text);
	ImageFiles files = { json_object_get(j, "preprocessor"), json_object_get(j, "processor"),
		             json_object_get(j, "config"), json_object_get(j, "tokenizer"),
		             json_object_get(j, "mmproj") };
	llmc_status status = image_rules_json(&files, out, err);
	json_decref(j);
	return status;
}

static int
all_rows(int argc, char **argv)
{
	ImageRules rules;
	llmc_error err = { 0 };
	llmc_status status = read_rules(argv[2], &rules, &err);

	for (int i = 3; i < argc; i++) {
		ImageRows rows = { 0 };
		llmc_status s = status;
		if (s == LLMC_OK) {
			err = (llmc_error){ 0 };
			s = prepare(&rules, argv[i], strcmp(argv[1], "rows") == 0, &rows, &err);
		}
		put_rows(s, &err, &rows);
		image_rows_release(&rows);
	}
	return 0;
}

int
main(int argc, char **argv)
{
	ImageLimits limits = IMAGE_LIMITS_DEFAULT;
	int i = 2;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "decode") != 0)
		return all_rows(argc, argv);
	if (strcmp(argv[i], "-p") == 0) {
		limits.max_pixels = atoll(argv[i + 1]);
		i += 2;
	}
	for (; i < argc; i++)
		put_decoded(argv[i], &limits);
	return 0;
}

/* Arbitrary bytes as an image that a vision tower reads: decoding, the processor of the model,
 * tiles and the tower itself. The first byte selects the detail and after how many calls of go_on
 * the tower stops. A call that only counts gives equal text and an equal number of rows; the text
 * contains the image token once per row. */
#include <math.h>
#include <stdint.h>

#include "tests/fuzz/tiny_tower.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIXELS = 1 << 14, LOW = 1, MAX_CALLS = 4 };

static void
check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "fuzz_tower: %s\n", what);
	abort();
}

static bool
some_calls(void *user)
{
	int *left = user;

	return (*left)-- > 0;
}

static size_t
count(const char *text, const char *token)
{
	size_t n = 0;

	for (; (text = strstr(text, token)) != NULL; text += strlen(token))
		n++;
	return n;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static llmc_tower *tower;
	llmc_read_options o = LLMC_INIT(llmc_read_options);
	llmc_tower_image *counted = NULL, *im = NULL;
	llmc_error err = { 0 };
	int left;

	tower = tower ? tower : tiny_tower();
	if (size == 0)
		return 0;
	o.max_pixels = PIXELS;
	o.low = *data & LOW;
	o.count_only = true;
	llmc_status first = llmc_tower_read(tower, data + 1, size - 1, &o, &counted, &err);
	check(first == LLMC_OK ? counted != NULL : !counted && err.text[0],
	      "no image and no error");
	o.count_only = false;
	left = *data >> 1 & 7;
	const bool stops = left < MAX_CALLS, at_once = stops && !left;
	if (stops)
		o.go_on = some_calls, o.user = &left;
	llmc_status s = llmc_tower_read(tower, data + 1, size - 1, &o, &im, &err);
	if (at_once) /* the tower stops before the image is decoded */
		check(s == LLMC_E_CANCELLED, "an image is decoded although the caller stops");
	else
		check(s == first || (s == LLMC_E_CANCELLED && first == LLMC_OK && stops),
		      "counting and reading differ");
	if (s == LLMC_OK) {
		llmc_image_part a = LLMC_INIT(llmc_image_part), b = a;
		llmc_tower_image_part(counted, &a);
		llmc_tower_image_part(im, &b);
		const char *text = llmc_tower_image_text(im);
		check(!strcmp(text, llmc_tower_image_text(counted)) && a.n_row == b.n_row &&
		          b.n_row > 0 && !a.row && b.row,
		      "counting and reading give different rows");
		check(count(text, llmc_tower_token(tower)) == (size_t)b.n_row,
		      "the text has not one token per row");
		for (int64_t i = 0; i < (int64_t)b.n_row * TINY_TOWER_HIDDEN; i++)
			check(isfinite(b.row[i]), "a row is not finite");
	}
	llmc_tower_image_close(counted);
	llmc_tower_image_close(im);
	return 0;
}

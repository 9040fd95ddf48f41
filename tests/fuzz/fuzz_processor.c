/* Reads arbitrary JSON as the configuration of an image processor. The result is rules or a
 * message. Rules give sizes and text, or a message, for images of several sizes; a small image can
 * be prepared with them. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "image/prepare.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok)
{
	if (!ok)
		abort();
}

static void
use(const ImageRules *r)
{
	static const int32_t sizes[][2] = { { 1, 1 },    { 3, 2 },       { 640, 480 },
		                            { 1, 3000 }, { 9000, 7000 }, { 1 << 26, 1 } };
	llmc_error err = { 0 };
	ImageRows rows;
	bool small = false;

	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
		if (image_measure(r, sizes[i][0], sizes[i][1], &rows, &err) != LLMC_OK) {
			check((err.code == LLMC_E_INPUT || err.code == LLMC_E_MEMORY) &&
			      !rows.tile);
			continue;
		}
		check(rows.n_row > 0 && rows.n_tile > 0 && rows.row_elems > 0);
		small = i == 1 && rows.n_row * rows.row_elems < 1 << 20;
		image_rows_release(&rows);
	}
	uint8_t pixel[3 * 2 * 3] = { 9, 200, 31 };
	ImagePixels im = { .width = 3, .height = 2, .channels = 3, .pixel = pixel };
	if (small && image_prepare(r, &im, &rows, &err) == LLMC_OK)
		image_rows_release(&rows);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *j = json_parse((const char *)data, size, 0, NULL, NULL);
	llmc_error err = { 0 };
	ImageRules rules;

	if (!j)
		return 0;
	ImageFiles files = { json_object_get(j, "preprocessor"), json_object_get(j, "processor"),
		             json_object_get(j, "config"), json_object_get(j, "tokenizer"),
		             json_object_get(j, "mmproj") };
	if (image_rules_json(&files, &rules, &err) == LLMC_OK)
		use(&rules);
	else
		check(err.code == LLMC_E_INPUT && err.text[0]);
	json_decref(j);
	return 0;
}

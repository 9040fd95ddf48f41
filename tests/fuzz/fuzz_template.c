/* Renders arbitrary text as a chat template, within limits of time and memory; the text may be
 * rejected with a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char vars[] = "{\"messages\":[{\"role\":\"system\",\"content\":\"Be "
                           "brief.\"},{\"role\":\"user\",\"content\":\"Hi <b> \\u00e9\"},"
                           "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":"
                           "\"function\",\"function\":{\"name\":\"f\","
                           "\"arguments\":{\"x\":1,\"y\":[1.5,true,null]}}}]}],\"tools\":[{"
                           "\"type\":\"function\",\"function\":{\"name\":\"f\","
                           "\"parameters\":{\"type\":\"object\"}}}],\"add_generation_prompt\":true,"
                           "\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *out = NULL;
	size_t n = 0;
	llmc_error err = { 0 };

	llmc_status status = text_render((const char *)data, size, "fuzz", vars, &out, &n, &err);
	if (status == LLMC_OK ? !out : out || !err.text[0] || status == LLMC_E_BUG) {
		fprintf(stderr, "fuzz_template: status %d, text '%s'\n", status, err.text);
		abort();
	}
	free(out);
	return 0;
}

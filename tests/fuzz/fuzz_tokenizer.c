/* Arbitrary bytes as a tokenizer: tokenizer.json (starts with '{'), a GGUF's vocabulary (starts
 * with "GGUF"), or tokenizer.model (a rank file if its first line looks like one). An opened one
 * encodes strings, among them the end of the input itself, and decodes them, as a whole and token
 * by token. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf.h"
#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fuzz_tokenizer: %s\n", what);
		abort();
	}
}

static void
decode(const llmc_tokenizer *t, const int32_t *ids, size_t n, bool skip_special)
{
	static char whole[1 << 16];
	size_t need = 0, at = 0, len;
	llmc_stream *s;
	const char *text;
	llmc_error err;

	llmc_status status =
	    llmc_detokenize(t, ids, n, skip_special, whole, sizeof whole, &need, &err);
	if (status != LLMC_OK)
		return;
	check(utf8_valid(whole, need), "decoded text is not UTF-8");
	if (llmc_stream_open(t, skip_special, &s, &err) != LLMC_OK)
		return;
	for (size_t i = 0; i <= n; i++) {
		status = llmc_stream_feed(s, i < n ? ids[i] : -1, &text, &len, &err);
		if (status != LLMC_OK)
			break;
		check(at + len <= need && memcmp(whole + at, text, len) == 0,
		      "the stream says another text than the whole");
		at += len;
	}
	check(status != LLMC_OK || at == need, "the stream leaves text out");
	llmc_stream_close(s);
}

static void
encode_and_decode(const llmc_tokenizer *t, const char *text, size_t n)
{
	static int32_t ids[4096];
	size_t need = 0;
	llmc_error err;

	for (int flags = 0; flags <= (LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL); flags++) {
		if (llmc_tokenize(t, text, n, flags, ids, sizeof ids / sizeof *ids, &need, &err) !=
		    LLMC_OK)
			continue;
		for (size_t i = 0; i < need; i++)
			check(ids[i] >= 0 && ids[i] < llmc_tokenizer_size(t), "an id out of range");
		decode(t, ids, need, flags & 1);
	}
}

static llmc_status
open_any(const uint8_t *data, size_t size, llmc_tokenizer **t, llmc_error *err)
{
	if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
		Gguf *g;
		llmc_status status = gguf_open_memory(data, size, "fuzz", &g, err);
		if (status != LLMC_OK)
			return status;
		status = text_open_gguf(g, "fuzz", t, err);
		gguf_close(g);
		return status;
	}
	if (size && data[0] == '{')
		return text_open_json((const char *)data, size, "fuzz", t, err);
	if (text_has_ranks((const char *)data, size)) { /* the file may have any number of ranks */
		int32_t lines = 0;
		for (size_t i = 0; i < size; i++)
			lines += data[i] == '\n';
		return text_open_ranks((const char *)data, size, lines + 256, "fuzz", t, err);
	}
	return text_open_spm((const char *)data, size, "fuzz", t, err);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const text[] = { "", "Hello  world 123",
		                            " \n\tna\xc3\xafve \xe4\xb8\xad\xe6\x96\x87<s>",
		                            "\xff\x80 a" };
	llmc_tokenizer *t = NULL;
	llmc_error err = { 0 };
	int32_t ids[64];

	llmc_status status = open_any(data, size, &t, &err);
	if (status != LLMC_OK) {
		check(!t && err.text[0] && status != LLMC_E_BUG, "rejected without a message");
		return 0;
	}
	for (size_t i = 0; i < sizeof text / sizeof *text; i++)
		encode_and_decode(t, text[i], strlen(text[i]));
	size_t tail = size < 100 ? size : 100;
	encode_and_decode(t, (const char *)data + size - tail, tail);
	/* decode ids in an order that encoding would not produce */
	for (int i = 0; i < 64; i++)
		ids[i] =
		    (int32_t)((uint32_t)i * 2654435761u %
		              (uint32_t)(llmc_tokenizer_size(t) + (llmc_tokenizer_size(t) == 0)));
	if (llmc_tokenizer_size(t) > 0)
		decode(t, ids, 64, false);
	for (int32_t id = -1; id <= llmc_tokenizer_size(t); id++) {
		const char *s = llmc_token_text(t, id);
		check(!s || strlen(s) < 2 * size + 64, "a token longer than its file");
	}
	llmc_tokenizer_close(t);
	return 0;
}

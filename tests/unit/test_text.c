/* Untrusted tokenizer files: a malformed file is rejected with a message that names the position.
 * Calls with wrong arguments are rejected, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/deadline.h"
#include "text/text.h"

static void
json_refused(const char *text, const char *want)
{
	llmc_tokenizer *t = (llmc_tokenizer *)1;
	llmc_error err = { 0 };

	llmc_status status = text_open_json(text, strlen(text), "file.json", &t, &err);
	if (status != LLMC_E_INPUT)
		fail_msg("%.200s: status %d %s", text, status, err.text);
	assert_null(t);
	assert_non_null(strstr(err.text, "file.json: "));
	if (!strstr(err.text, want))
		fail_msg("%.200s: expected '%s' in '%s'", text, want, err.text);
}

#define MODEL(x) "{\"model\": {" x "}}"
#define BPE(x) MODEL("\"type\": \"BPE\", " x)
#define WITH(x)                                                                                    \
	"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": " \
	"[\"a b\"]}, " x "}"

static void
bad_json(void **state)
{
	(void)state;
	json_refused("", "line 1");
	json_refused("{", "line 1");
	json_refused("[]", "no object \"model\"");
	json_refused("{\"model\": 5}", "no object \"model\"");
	json_refused("{\"a\": \"\\u0000\", }", "line 1");
	json_refused(MODEL("\"type\": \"Syllables\""),
	             "\"Syllables\"; BPE, Unigram, WordPiece and WordLevel are supported");
	json_refused(MODEL("\"type\": \"WordPiece\""), "not an object");
	json_refused(BPE("\"vocab\": []"), "not an object");
	json_refused(BPE("\"vocab\": {\"a\": -1}"), "no number from 0");
	json_refused(BPE("\"vocab\": {\"a\": 1.5}"), "no number from 0");
	json_refused(BPE("\"vocab\": {\"a\": 99999999999}"), "no number from 0");
	json_refused(BPE("\"vocab\": {\"a\": 16000000}"), "but ids up to 16000000");
	json_refused(BPE("\"vocab\": {\"a\": 0}, \"merges\": {}"), "merges is not an array");
	json_refused(BPE("\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]"), "merges[0]: no space");
	json_refused(BPE("\"vocab\": {\"a\": 0}, \"merges\": [5]"), "merges[0]");
	json_refused(BPE("\"vocab\": {\"a\": 0}, \"merges\": [[\"a\", 5]]"), "merges[0]");
	json_refused(BPE("\"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]"),
	             "the second is not in the vocabulary");
	json_refused(BPE("\"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]"),
	             "the result is not in the vocabulary");
	json_refused(MODEL("\"type\": \"Unigram\", \"vocab\": {}"), "not an array");
	json_refused(MODEL("\"type\": \"Unigram\", \"vocab\": [[\"a\"]]"), "vocab[0]");
	json_refused(MODEL("\"type\": \"Unigram\", \"vocab\": [[\"a\", -1]], \"unk_id\": 7"),
	             "unk_id is outside");
	json_refused(WITH("\"added_tokens\": 5"), "added_tokens is not an array");
	json_refused(WITH("\"added_tokens\": [{\"id\": -5}]"), "added_tokens[0]: id");
	json_refused(WITH("\"added_tokens\": [{\"id\": 5}]"), "added_tokens[0]: content");
}

static void
bad_pipeline(void **state)
{
	char *deep = malloc(100000), *p = deep;

	(void)state;
	json_refused(WITH("\"normalizer\": {\"type\": \"Magic\"}"),
	             "normalizer: type \"Magic\" is not supported");
	json_refused(WITH("\"normalizer\": {}"), "type \"\" is not supported");
	json_refused(WITH("\"normalizer\": {\"type\": \"Replace\"}"), "pattern");
	json_refused(
	    WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}"),
	    "precompiled_charsmap");
	json_refused(WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": "
	                  "\"/////w==\"}"),
	             "precompiled_charsmap");
	json_refused(WITH("\"pre_tokenizer\": {\"type\": \"Magic\"}"),
	             "pre_tokenizer: type \"Magic\"");
	json_refused(WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Odd\"}"),
	             "\"Odd\" is not supported");
	json_refused(WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", "
	                  "\"pattern\": {\"Regex\": \"(a\"}}"),
	             "cannot compile the expression `(a`");
	json_refused(WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"xy\"}"),
	             "not one character");
	json_refused(WITH("\"decoder\": {\"type\": \"Magic\"}"), "decoder: type \"Magic\"");
	json_refused(WITH("\"decoder\": {\"type\": \"Strip\", \"content\": \"x\", \"start\": -1}"),
	             "decoder Strip");
	json_refused(WITH("\"post_processor\": {\"type\": \"Magic\"}"),
	             "post_processor: type \"Magic\"");
	json_refused(WITH("\"post_processor\": {\"type\": \"TemplateProcessing\"}"),
	             "no array \"single\"");
	json_refused(WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
	                  "[{\"SpecialToken\": {\"id\": \"x\"}}]}"),
	             "no ids for the special token \"x\"");
	json_refused(WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
	                  "[{\"SpecialToken\": {\"id\": \"x\"}}], "
	                  "\"special_tokens\": {\"x\": {\"ids\": [77]}}}"),
	             "no id in 0 to 2");
	p += sprintf(p, "{\"model\": {\"type\": \"BPE\", \"vocab\": {}}, \"decoder\": ");
	for (int i = 0; i < 100; i++)
		p += sprintf(p, "{\"type\": \"Sequence\", \"decoders\": [");
	for (int i = 0; i < 100; i++)
		p += sprintf(p, "]}");
	sprintf(p, "}");
	json_refused(deep, "nested deeper");
	free(deep);
}

/* A protobuf message, built by hand. */
typedef struct Msg {
	char b[4096];
	size_t n;
} Msg;

static void
put_varint(Msg *m, uint64_t v)
{
	for (; v > 127; v >>= 7)
		m->b[m->n++] = (char)(v | 128);
	m->b[m->n++] = (char)v;
}

static void
put_bytes(Msg *m, int field, const void *p, size_t n)
{
	put_varint(m, (uint64_t)field << 3 | 2);
	put_varint(m, n);
	memcpy(m->b + m->n, p, n);
	m->n += n;
}

static void
put_int(Msg *m, int field, uint64_t v)
{
	put_varint(m, (uint64_t)field << 3);
	put_varint(m, v);
}

static Msg
piece(const char *text, float score, int type)
{
	Msg m = { .n = 0 };

	put_bytes(&m, 1, text, strlen(text));
	m.b[m.n++] = 2 << 3 | 5;
	memcpy(m.b + m.n, &score, 4);
	m.n += 4;
	put_int(&m, 3, (uint64_t)type);
	return m;
}

static void
put_piece(Msg *m, const char *text, float score, int type)
{
	Msg p = piece(text, score, type);
	put_bytes(m, 1, p.b, p.n);
}

static void
spm_refused(const Msg *m, const char *want)
{
	llmc_tokenizer *t = (llmc_tokenizer *)1;
	llmc_error err = { 0 };
	char *exact = malloc(m->n + 1); /* so that ASan reports a read past the end */

	assert_non_null(exact);
	memcpy(exact, m->b, m->n);
	llmc_status status = text_open_spm(exact, m->n, "file.model", &t, &err);
	free(exact);
	if (status != LLMC_E_INPUT)
		fail_msg("expected '%s', got status %d %s", want, status, err.text);
	assert_null(t);
	if (!strstr(err.text, want))
		fail_msg("expected '%s' in '%s'", want, err.text);
}

static Msg
sound_model(void)
{
	Msg m = { .n = 0 }, trainer = { .n = 0 }, norm = { .n = 0 };

	put_piece(&m, "<unk>", 0, TT_UNKNOWN);
	put_piece(&m, "<s>", 0, TT_CONTROL);
	put_piece(&m, "</s>", 0, TT_CONTROL);
	put_piece(&m, "\xE2\x96\x81", -1, TT_NORMAL);
	put_piece(&m, "a", -2, TT_NORMAL);
	put_piece(&m,
	          "\xE2\x96\x81"
	          "a",
	          -0.5f, TT_NORMAL);
	put_int(&trainer, 3, 2);
	put_bytes(&m, 2, trainer.b, trainer.n);
	put_int(&norm, 4, 0);
	put_bytes(&m, 3, norm.b, norm.n);
	return m;
}

static void
malformed_protobuf(void **state)
{
	Msg m = { .n = 0 }, inner = { .n = 0 }, good = sound_model();
	float nan = 0.0f / 0.0f;

	(void)state;
	spm_refused(&m, "no pieces");
	for (size_t cut = 1; cut < good.n; cut++) { /* every truncation that ends within a field */
		Msg part = good;
		llmc_tokenizer *t;
		llmc_error err;
		part.n = cut;
		llmc_status status = text_open_spm(part.b, part.n, "m", &t, &err);
		assert_true(status == LLMC_OK || (status == LLMC_E_INPUT && err.text[0]));
		if (status == LLMC_OK)
			llmc_tokenizer_close(t);
	}
	memcpy(m.b, "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01",
	       11); /* a token of 2^64 - 1 bytes */
	m.n = 11;
	spm_refused(&m, "damaged");
	memcpy(m.b, "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F",
	       11); /* a length beyond 64 bits */
	spm_refused(&m, "damaged");
	memset(m.b, 0x80, 40); /* a varint without an end */
	m.n = 40;
	spm_refused(&m, "damaged");
	memcpy(m.b, "\x0B\x0C", 2); /* groups, which the format does not use */
	m.n = 2;
	spm_refused(&m, "damaged");
	m.n = 0;
	put_int(&m, 1, 5); /* a token that is a number */
	spm_refused(&m, "damaged");

	m = good;
	put_piece(&m, "x", nan, TT_NORMAL);
	spm_refused(&m, "not a finite number");
	m = good;
	put_piece(&m, "x", 0, 9);
	spm_refused(&m, "unknown type");
	m = good;
	put_bytes(&inner, 1, "x", 1);
	inner.b[1] = 100; /* a string longer than its message */
	put_bytes(&m, 1, inner.b, inner.n);
	spm_refused(&m, "damaged");
	m = good;
	inner.n = 0;
	put_int(&inner, 3, 3);
	put_bytes(&m, 2, inner.b, inner.n);
	spm_refused(&m, "model type 3");
	m = good;
	inner.n = 0;
	put_bytes(&inner, 2, "\xFF\xFF\xFF\xFF....", 8);
	put_bytes(&m, 3, inner.b, inner.n);
	spm_refused(&m, "precompiled_charsmap: its header gives the trie 4294967295 bytes");
}

/* A character map whose trie points outside itself gives no match, and reads nothing. */
static void
malformed_charsmap(void **state)
{
	Msg m = sound_model(), norm = { .n = 0 };
	char map[4 + 1024 + 4];
	uint32_t size = 1024;
	int32_t ids[8];
	size_t n;
	llmc_tokenizer *t;
	llmc_error err;

	(void)state;
	for (int fill = 0; fill < 256; fill += 15) {
		Msg all = m;
		memset(map, fill, sizeof map);
		memcpy(map, &size, 4);
		norm.n = 0;
		put_bytes(&norm, 2, map, sizeof map);
		put_bytes(&all, 3, norm.b, norm.n);
		assert_int_equal(text_open_spm(all.b, all.n, "m", &t, &err), LLMC_OK);
		llmc_tokenize(t, "a\xC3\xA9", 3, 0, ids, 8, &n, &err);
		llmc_tokenizer_close(t);
	}
}

static void
arguments(void **state)
{
	Msg m = sound_model();
	llmc_tokenizer *t;
	llmc_stream *s;
	llmc_error err;
	int32_t ids[8], bad[] = { 4, 99 };
	char buf[8];
	size_t n = 0;

	(void)state;
	assert_int_equal(text_open_spm(m.b, m.n, "m", &t, &err), LLMC_OK);
	assert_int_equal(llmc_tokenizer_size(t), 6);
	assert_int_equal(llmc_tokenize(t, "a a", 3, LLMC_ADD_SPECIAL, ids, 8, &n, &err), LLMC_OK);
	assert_int_equal(n, 3);
	assert_int_equal(ids[0], 1);
	assert_int_equal(ids[1], 5);
	assert_int_equal(llmc_tokenize(t, "a a", 3, 0, ids, 1, &n, &err), LLMC_E_RANGE);
	assert_int_equal(n, 2);
	assert_int_equal(llmc_tokenize(t, "a a", 3, 0, NULL, 0, &n, NULL), LLMC_E_RANGE);
	assert_int_equal(n, 2);
	assert_int_equal(llmc_tokenize(t, "", 0, 0, NULL, 0, &n, NULL), LLMC_OK);
	assert_int_equal(llmc_tokenize(t, NULL, 3, 0, ids, 8, &n, &err), LLMC_E_RANGE);
	ids[0] = ids[1] = 5;
	assert_int_equal(llmc_detokenize(t, ids, 2, true, buf, sizeof buf, &n, &err), LLMC_OK);
	assert_string_equal(buf, "a a");
	assert_int_equal(llmc_detokenize(t, ids, 2, true, buf, 3, &n, &err), LLMC_E_RANGE);
	assert_int_equal(n, 3);
	assert_int_equal(llmc_detokenize(t, bad, 2, true, buf, sizeof buf, &n, &err), LLMC_E_RANGE);
	assert_non_null(strstr(err.text, "ids[1] = 99 is no token id; ids are 0 to 5"));
	assert_null(llmc_token_text(t, -1));
	assert_null(llmc_token_text(t, 6));
	assert_string_equal(llmc_token_text(t, 4), "a");
	assert_int_equal(llmc_token_bytes(t, 5, buf, sizeof buf, &n, &err), LLMC_OK);
	assert_string_equal(buf, " a");
	assert_int_equal(llmc_token_bytes(t, 5, buf, 2, &n, &err), LLMC_E_RANGE);
	assert_int_equal(n, 2);
	assert_int_equal(llmc_token_bytes(t, 6, buf, sizeof buf, &n, &err), LLMC_E_INPUT);
	assert_true(llmc_token_is_special(t, 1) && !llmc_token_is_special(t, 5) &&
	            !llmc_token_is_special(t, 6));
	assert_false(llmc_has_chat_template(t) || llmc_has_chat_template(NULL));
	assert_int_equal(text_bos(t), 1);
	assert_true(text_is_eos(t, 2));
	assert_false(text_is_eos(t, 1));
	assert_int_equal(llmc_chat(t, "[]", NULL, buf, sizeof buf, &n, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "no chat template"));
	assert_int_equal(llmc_stream_open(t, true, &s, &err), LLMC_OK);
	assert_int_equal(llmc_stream_feed(s, 6, NULL, NULL, &err), LLMC_E_RANGE);
	assert_int_equal(llmc_stream_feed(s, -2, NULL, NULL, &err), LLMC_E_RANGE);
	assert_int_equal(llmc_stream_feed(s, 5, NULL, &n, &err), LLMC_OK);
	assert_int_equal(n, 1);
	llmc_stream_close(s);
	llmc_stream_close(NULL);
	llmc_tokenizer_close(t);
	llmc_tokenizer_close(NULL);
	assert_int_equal(llmc_tokenizer_open("/nonexistent/x", &t, &err), LLMC_E_IO);
	assert_int_equal(llmc_tokenizer_open("tests/unit", &t, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "neither tokenizer.json nor tokenizer.model"));
}

/* Long text without a split point takes linear time; quadratic time would take seconds. */
static void
long_input_takes_linear_time(void **state)
{
	static const char json[] = WITH("\"decoder\": {\"type\": \"Fuse\"}");
	size_t len = (size_t)1 << 21, n;
	char *text = malloc(len);
	int32_t *ids = malloc(len * sizeof *ids);
	llmc_tokenizer *t;
	llmc_error err;
	Msg m = sound_model();

	(void)state;
	assert_true(text && ids);
	for (size_t i = 0; i < len; i++)
		text[i] = i % 2 ? 'b' : 'a';
	assert_int_equal(text_open_json(json, sizeof json - 1, "j", &t, &err), LLMC_OK);
	assert_int_equal(llmc_tokenize(t, text, len, 0, ids, len, &n, &err), LLMC_OK);
	assert_int_equal(n, len / 2);
	assert_int_equal(ids[n - 1], 2);
	llmc_tokenizer_close(t);
	assert_int_equal(text_open_spm(m.b, m.n, "m", &t, &err), LLMC_OK);
	memset(text, 'a', len);
	assert_int_equal(llmc_tokenize(t, text, len, 0, ids, len, &n, &err), LLMC_OK);
	assert_int_equal(n, len);
	llmc_tokenizer_close(t);
	free(text);
	free(ids);
}

static void
utf8(void **state)
{
	static const struct {
		const char *in, *want;
	} row[] = {
		{ "a\xC3", "a\xEF\xBF\xBD" },
		{ "\xF0\x9F\xA6x", "\xEF\xBF\xBDx" },
		{ "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" },
		{ "\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD" },
		{ "\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" },
		{ "\xE4\xBD\xA0", "\xE4\xBD\xA0" },
	};
	Strbuf b = { 0 };

	(void)state;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		strbuf_clear(&b);
		utf8_add_lossy(&b, row[i].in, strlen(row[i].in));
		assert_string_equal(strbuf_str(&b), row[i].want);
	}
	strbuf_release(&b);
	assert_int_equal(utf8_whole("a\xE4\xBD", 3), 1);
	assert_int_equal(utf8_whole("a\xE4\xBD\xA0", 4), 4);
	assert_int_equal(utf8_whole("\xF0\x9F\xA6", 3), 0);
	assert_int_equal(utf8_whole("\xE4"
	                            "a",
	                            2),
	                 2);
	/* these bytes can never become a character */
	assert_int_equal(utf8_whole("\xED\xA0", 2), 2);
	for (unsigned c = 0; c < 256; c++)
		assert_int_equal(bytelevel_byte(bytelevel_char((unsigned char)c)), (int)c);
}

/* Normalizers that multiply the length of their input, each applied to the previous output, are
 * stopped. */
static void
normalizers_that_multiply(void **state)
{
	static const char rule[] =
	    "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%0*d\"}";
	char one[1400], text[8000];
	llmc_tokenizer *t = NULL;
	llmc_error err = { 0 };
	int32_t ids[4];
	size_t n;

	(void)state;
	snprintf(one, sizeof one, rule, 1000, 0);
	for (char *c = strstr(one, "\"content\": \"") + 12; *c == '0'; c++)
		*c = 'a';
	snprintf(text, sizeof text,
	         "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}, "
	         "\"normalizer\": "
	         "{\"type\": \"Sequence\", \"normalizers\": [%s, %s, %s, %s]}}",
	         one, one, one, one);
	if (text_open_json(text, strlen(text), "file.json", &t, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	assert_int_equal(llmc_tokenize(t, "a", 1, 0, ids, 4, &n, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "normalizer makes more than"));
	llmc_tokenizer_close(t);
}

static llmc_tokenizer *
opened(const char *json)
{
	llmc_tokenizer *t = NULL;
	llmc_error err = { 0 };

	if (text_open_json(json, strlen(json), "file.json", &t, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return t;
}

static char *
repeated(const char *head, const char *s, int n, const char *tail)
{
	Strbuf b = { 0 };

	strbuf_puts(&b, head);
	for (int i = 0; i < n; i++) {
		if (i && *s == '{')
			strbuf_putc(&b, ',');
		strbuf_puts(&b, s);
	}
	strbuf_puts(&b, tail);
	assert_false(b.failed);
	return b.data;
}

/* The bound holds for the whole text, not for each part between added tokens. */
static void
normalizers_that_multiply_each_part(void **state)
{
	char *many = repeated("", "a", 60000, "");
	char *text = repeated("", "a<s>", 1000, "");
	Strbuf b = { 0 };
	llmc_error err = { 0 };
	size_t n;

	(void)state;
	strbuf_printf(&b,
	              "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"<s>\": 1}, "
	              "\"merges\": []}, \"added_tokens\": [{\"id\": 1, \"content\": \"<s>\", "
	              "\"special\": false}], \"normalizer\": {\"type\": \"Replace\", \"pattern\": "
	              "{\"String\": \"a\"}, \"content\": \"%s\"}}",
	              many);
	llmc_tokenizer *t = opened(b.data);
	assert_int_equal(llmc_tokenize(t, text, strlen(text), 0, NULL, 0, &n, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "normalizer makes more than"));
	llmc_tokenizer_close(t);
	strbuf_release(&b);
	free(many);
	free(text);
}

/* A ByteLevel pre-tokenizer doubles the bytes of text beyond ASCII; 40 of them multiply by 2^40. */
static void
pre_tokenizers_that_multiply(void **state)
{
	char *json = repeated("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": "
	                      "[]}, \"pre_tokenizer\": {\"type\": \"Sequence\", "
	                      "\"pretokenizers\": [",
	                      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
	                      "\"use_regex\": false}",
	                      40, "]}}");
	llmc_tokenizer *t = opened(json);
	llmc_error err = { 0 };
	size_t n;

	(void)state;
	assert_int_equal(llmc_tokenize(t, "\xc3\xa9", 2, 0, NULL, 0, &n, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "pre-tokenizers make more than"));
	llmc_tokenizer_close(t);
	free(json);
}

/* Decoders that multiply their input stop, in detokenize and in streams. */
static void
decoders_that_multiply(void **state)
{
	char *one = repeated("{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, "
	                     "\"content\": \"",
	                     "a", 1000, "\"}");
	char *json = repeated("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": "
	                      "[]}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [",
	                      one, 4, "]}}");
	llmc_tokenizer *t = opened(json);
	llmc_error err = { 0 };
	llmc_stream *s;
	const int32_t id = 0;
	const char *text;
	size_t n;

	(void)state;
	assert_int_equal(llmc_detokenize(t, &id, 1, false, NULL, 0, &n, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "decoder makes more than"));
	assert_int_equal(llmc_stream_open(t, false, &s, &err), LLMC_OK);
	assert_int_equal(llmc_stream_feed(s, id, &text, &n, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "decoder makes more than"));
	llmc_stream_close(s);
	llmc_tokenizer_close(t);
	free(one);
	free(json);
}

/* Steps call each other, so a file of a million of them would use up the stack. */
static void
too_many_steps(void **state)
{
	static const char *const form[][2] = {
		{ "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [", "{\"type\": \"Fuse\"}" },
		{ "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [",
		  "{\"type\": \"NFC\"}" },
	};

	(void)state;
	for (int i = 0; i < 2; i++) {
		Strbuf head = { 0 };
		strbuf_printf(&head,
		              "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, "
		              "\"merges\": []}, %s",
		              form[i][0]);
		char *json = repeated(head.data, form[i][1], TEXT_MAX_STEPS + 1, "]}}");
		json_refused(json, "at most 64 of each");
		free(json);
		strbuf_release(&head);
	}
}

/* A thread whose time limit has passed leaves every loop over its input. */
static void
tokenizing_ends_at_the_time_limit(void **state)
{
	static const char *const models[] = {
		WITH("\"pre_tokenizer\": null"),
		WITH("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, "
		     "\"content\": \"a\"}"),
		WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \".\"}, "
		     "\"behavior\": \"Isolated\", \"invert\": false}"),
		"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", -1], [\"aa\", -2]], "
		"\"unk_id\": "
		"0}}",
	};
	char *text = repeated("", "a", 50000, "");
	llmc_error err;
	size_t n;

	(void)state;
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		llmc_tokenizer *t = opened(models[i]);
		deadline_set(clock_now());
		assert_int_equal(llmc_tokenize(t, text, strlen(text), 0, NULL, 0, &n, &err),
		                 LLMC_E_CANCELLED);
		assert_non_null(strstr(err.text, "time limit"));
		deadline_set(clock_now() + 1e6);
		assert_int_equal(llmc_tokenize(t, text, strlen(text), 0, NULL, 0, &n, &err),
		                 LLMC_E_RANGE); /* without a buffer the call counts all ids */
		assert_true(n > 0);
		deadline_set(0);
		llmc_tokenizer_close(t);
	}
	free(text);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_json),
		cmocka_unit_test(bad_pipeline),
		cmocka_unit_test(malformed_protobuf),
		cmocka_unit_test(malformed_charsmap),
		cmocka_unit_test(arguments),
		cmocka_unit_test(long_input_takes_linear_time),
		cmocka_unit_test(utf8),
		cmocka_unit_test(normalizers_that_multiply),
		cmocka_unit_test(normalizers_that_multiply_each_part),
		cmocka_unit_test(pre_tokenizers_that_multiply),
		cmocka_unit_test(decoders_that_multiply),
		cmocka_unit_test(too_many_steps),
		cmocka_unit_test(tokenizing_ends_at_the_time_limit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

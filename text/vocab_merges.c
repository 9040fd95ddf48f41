/* Byte-level BPE in the files of GPT-2: vocab.json, merges.txt, and added_tokens.json (MOSS,
 * CodeGen). They are converted to the equivalent tokenizer.json. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

static llmc_status
read_object(Arena *a, const char *path, json_t **out, llmc_error *err)
{
	Strbuf *text = arena_strbuf(a);
	json_error_t why;

	TRY(file_read(path, TEXT_MAX_FILE, text, err));
	*out = json_read(a, strbuf_str(text), text->len, JSON_REJECT_DUPLICATES, &why);
	strbuf_release(text);
	if (!json_is_object(*out))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: a JSON object of tokens and their numbers is expected", path);
	return LLMC_OK;
}

/* Reads lines with "a b". The first line may be #version. */
static llmc_status
read_lines(Arena *a, const char *path, json_t *merges, llmc_error *err)
{
	Strbuf *text = arena_strbuf(a);

	TRY(file_read(path, TEXT_MAX_FILE, text, err));
	const char *p = strbuf_str(text), *end = p + text->len;
	for (bool first = true; p < end; first = false) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		size_t n = (size_t)((nl ? nl : end) - p);
		size_t use = n && p[n - 1] == '\r' ? n - 1 : n;
		if (use && !(first && *p == '#') &&
		    json_array_append_new(merges, json_stringn(p, use)) != 0)
			return error_set(err, LLMC_E_INPUT, "%s: a line is not valid UTF-8", path);
		p += n + 1;
	}
	strbuf_release(text);
	return LLMC_OK;
}

static llmc_status
add_tokens(const json_t *tokens, json_t *added, llmc_error *err)
{
	const char *name;
	json_t *id;

	json_object_foreach ((json_t *)tokens, name, id) {
		json_t *one = json_pack("{s:O, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content",
		                        name, "single_word", 0, "lstrip", 0, "rstrip", 0,
		                        "normalized", 0, "special", 1);
		if (!one || json_array_append_new(added, one) != 0)
			return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	return LLMC_OK;
}

static llmc_status
load(Arena *a, const char *dir, llmc_tokenizer **out, llmc_error *err)
{
	const char *vocab_path = arena_printf(a, "%s/vocab.json", dir),
	           *merges_path = arena_printf(a, "%s/merges.txt", dir);
	const char *added_path = arena_printf(a, "%s/added_tokens.json", dir);
	json_t *vocab, *tokens;

	if (!file_exists(merges_path))
		return error_set(err, LLMC_E_INPUT,
		                 "%s: vocab.json is there, merges.txt is not: fetch it", dir);
	json_t *merges = json_array(), *added = json_array();
	json_hold(a, merges);
	json_hold(a, added);
	TRY(read_object(a, vocab_path, &vocab, err));
	TRY(read_lines(a, merges_path, merges, err));
	if (file_exists(added_path)) {
		TRY(read_object(a, added_path, &tokens, err));
		TRY(add_tokens(tokens, added, err));
	}
	json_t *root =
	    json_pack("{s:O, s:n, s:{s:s, s:b, s:b}, s:{s:s}, s:{s:s, s:O, s:O}}", "added_tokens",
	              added, "normalizer", "pre_tokenizer", "type", "ByteLevel", "add_prefix_space",
	              0, "use_regex", 1, "decoder", "type", "ByteLevel", "model", "type", "BPE",
	              "vocab", vocab, "merges", merges);
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_hold(a, root);
	if (!text)
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory", dir);
	arena_defer(a, free, text);
	return text_open_json(text, strlen(text), vocab_path, out, err);
}

llmc_status
text_open_merges(const char *dir, llmc_tokenizer **out, llmc_error *err)
{
	Arena a;

	*out = NULL;
	arena_init(&a);
	llmc_status status = setjmp(a.oom) ? error_set(err, LLMC_E_MEMORY, "%s: out of memory", dir)
	                                   : load(&a, dir, out, err);
	arena_release(&a);
	return status;
}

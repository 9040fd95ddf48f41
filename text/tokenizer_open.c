/* Opens a tokenizer by path. Reads also the other files of a Hugging Face folder:
 * tokenizer_config.json, special_tokens_map.json, generation_config.json, config.json,
 * chat_template.jinja. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/flm.h"

typedef struct SideFiles { /* files in the same folder; each may be missing */
	llmc_tokenizer *t;
	json_t *config, *map, *generation, *model, *chat;
	Strbuf *jinja;
	bool spm; /* the tokenizer came from tokenizer.model */
} SideFiles;

static bool
read_file(Arena *a, const char *path, Strbuf *text)
{
	if (!file_exists(path))
		return false;
	llmc_status status = file_read(path, TEXT_MAX_FILE, text, NULL);
	if (text->failed)
		arena_out(a);
	return status == LLMC_OK && text->len;
}

/* Returns NULL if the file does not exist or is not JSON. */
static json_t *
read_json(const SideFiles *s, const char *dir, const char *name)
{
	Arena *a = &s->t->arena;
	const char *path = arena_printf(a, "%s/%s", dir, name);
	Strbuf *text = arena_strbuf(a);
	json_error_t why;
	json_t *root = NULL;

	if (read_file(a, path, text))
		root = json_read(a, text->data, text->len, JSON_ALLOW_NUL, &why);
	strbuf_release(text);
	return root;
}

/* Returns the id of a token that is given as a string, or as an object with "content". */
static int32_t
token_of(const SideFiles *s, const json_t *v)
{
	const json_t *c = json_is_object(v) ? json_object_get(v, "content") : v;
	return json_is_string(c) ? text_find(s->t, json_string_value(c), json_string_length(c))
	                         : -1;
}

static int32_t
named(const SideFiles *s, const char *key, int32_t otherwise)
{
	int32_t id = token_of(s, json_object_get(s->config, key));

	if (id < 0)
		id = token_of(s, json_object_get(s->map, key));
	return id >= 0 ? id : otherwise;
}

static void
add_eos_of(llmc_tokenizer *t, const json_t *v)
{
	json_t *item;
	size_t i;

	if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < t->n_ids)
		eos_add(t, (int32_t)json_integer_value(v));
	json_array_foreach (v, i, item)
		if (json_is_integer(item) && json_integer_value(item) >= 0 &&
		    json_integer_value(item) < t->n_ids)
			eos_add(t, (int32_t)json_integer_value(item));
}

static const char *
template_named(llmc_tokenizer *t, const json_t *v, const char *name)
{
	json_t *item;
	size_t i;

	json_array_foreach (v, i, item) {
		const char *n = json_string_value(json_object_get(item, "name"));
		const json_t *text = json_object_get(item, "template");
		if (n && strcmp(n, name) == 0 && json_is_string(text))
			return arena_strndup(&t->arena, json_string_value(text),
			                     json_string_length(text));
	}
	return NULL;
}

static void
take_templates(const SideFiles *s)
{
	llmc_tokenizer *t = s->t;
	const json_t *v = json_object_get(s->config, "chat_template");

	char *response =
	    json_is_object(json_object_get(s->config, "response_template"))
	        ? json_dumps(json_object_get(s->config, "response_template"), JSON_COMPACT)
	        : NULL;
	if (response)
		arena_defer(&t->arena, free, response);
	t->response = response;
	if (s->jinja->len) {
		t->chat = arena_strndup(&t->arena, s->jinja->data, s->jinja->len);
		return;
	}
	if (json_object_get(s->chat, "chat_template"))
		v = json_object_get(s->chat, "chat_template");
	if (json_is_string(v))
		t->chat = arena_strndup(&t->arena, json_string_value(v), json_string_length(v));
	if (json_is_array(v)) {
		t->chat = template_named(t, v, "default");
		t->chat_tools = template_named(t, v, "tool_use");
		if (!t->chat)
			t->chat = t->chat_tools;
	}
}

static void
add_end(llmc_tokenizer *t, int32_t **list, size_t *n, int32_t id)
{
	*list = NEW(&t->arena, int32_t, 1);
	(*list)[0] = id;
	*n = 1;
}

static void
take_side(const SideFiles *s)
{
	llmc_tokenizer *t = s->t;
	const json_t *bos = json_object_get(s->config, "add_bos_token"),
	             *eos = json_object_get(s->config, "add_eos_token");

	t->bos = named(s, "bos_token", t->bos);
	t->unk = named(s, "unk_token", t->unk);
	t->pad = named(s, "pad_token", t->pad);
	/* The generation config lists all end tokens. The tokenizer's own end token comes first. */
	int32_t main_eos = named(s, "eos_token", -1), old[TEXT_MAX_EOS], n_old = t->n_eos;
	memcpy(old, t->eos, sizeof old);
	if (main_eos >= 0) {
		t->n_eos = 0;
		eos_add(t, main_eos);
		for (int32_t i = 0; i < n_old; i++)
			eos_add(t, old[i]);
	}
	add_eos_of(t, json_object_get(s->generation, "eos_token_id"));
	if (!json_object_get(s->generation, "eos_token_id"))
		add_eos_of(t, json_object_get(s->model, "eos_token_id"));
	if (t->bos < 0 && json_is_integer(json_object_get(s->model, "bos_token_id"))) {
		json_int_t id = json_integer_value(json_object_get(s->model, "bos_token_id"));
		t->bos = id >= 0 && id < t->n_ids ? (int32_t)id : -1;
	}
	/* without a post-processor, add_bos_token and add_eos_token decide */
	if (s->spm && json_is_false(bos))
		t->n_prefix = 0;
	if (!t->n_prefix && json_is_true(bos) && t->bos >= 0)
		add_end(t, &t->prefix, &t->n_prefix, t->bos);
	if (!t->n_suffix && json_is_true(eos) && t->n_eos)
		add_end(t, &t->suffix, &t->n_suffix, t->eos[0]);
	take_templates(s);
}

/* Reads the files that belong to the tokenizer from its folder. */
static llmc_status
read_side(llmc_tokenizer *t, const char *dir, bool spm, llmc_error *err)
{
	SideFiles s = { .t = t, .spm = spm };
	Arena *a = &t->arena;

	if (setjmp(a->oom))
		return error_set(err, LLMC_E_MEMORY, "tokenizer: out of memory");
	s.jinja = arena_strbuf(a);
	s.config = read_json(&s, dir, "tokenizer_config.json");
	s.map = read_json(&s, dir, "special_tokens_map.json");
	s.generation = read_json(&s, dir, "generation_config.json");
	s.model = read_json(&s, dir, "config.json");
	s.chat = read_json(&s, dir, "chat_template.json");
	read_file(a, arena_printf(a, "%s/chat_template.jinja", dir), s.jinja);
	const char *class = json_string_value(json_object_get(s.config, "tokenizer_class"));
	if (spm && class && strcmp(class, "ChatGLMTokenizer") == 0) {
		TRY(ice_tokens(t, t->n_ids, err));
		TRY(tokenizer_finish(t, err));
	}
	take_side(&s);
	json_t *const done[] = { s.config, s.map, s.generation, s.model, s.chat };
	for (size_t i = 0; i < sizeof done / sizeof *done; i++)
		arena_done(a, done[i]);
	strbuf_release(s.jinja);
	return LLMC_OK;
}

/* Returns an integer from a JSON file in the same folder; 0: there is none. */
static json_int_t
sibling_int(const char *path, const char *file, const char *key)
{
	const char *slash = strrchr(path, '/');
	Strbuf name = { 0 }, text = { 0 };
	json_int_t out = 0;
	bool no_memory;
	json_error_t why;

	strbuf_add(&name, path, slash ? (size_t)(slash - path + 1) : 0);
	strbuf_puts(&name, file);
	if (!name.failed && file_exists(strbuf_str(&name)) &&
	    file_read(strbuf_str(&name), TEXT_MAX_FILE, &text, NULL) == LLMC_OK && text.len) {
		json_t *root = json_parse(text.data, text.len, JSON_ALLOW_NUL, &why, &no_memory);
		out = json_integer_value(json_object_get(root, key));
		json_decref(root);
	}
	strbuf_release(&name);
	strbuf_release(&text);
	return out;
}

/* Reads num_image_tokens of tokenizer_config.json: the number of ids that the first checkpoints
 * reserve for images. */
static llmc_status
open_ice(const char *path, const FileMap *map, llmc_tokenizer **out, llmc_error *err)
{
	const json_int_t shift = sibling_int(path, "tokenizer_config.json", "num_image_tokens");

	if (shift < 0 || shift > 1 << 20)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: num_image_tokens of tokenizer_config.json is %lld", path,
		                 (long long)shift);
	return text_open_ice((const char *)map->data, map->size, (int32_t)shift, path, out, err);
}

static llmc_status
open_file(const char *path, llmc_tokenizer **out, bool *spm, bool *absent, llmc_error *err)
{
	FileMap map;
	llmc_status status;

	*spm = false;
	TRY(file_map(path, &map, err));
	if (map.size > TEXT_MAX_FILE && !flm_name(path) &&
	    !(map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0)) {
		file_unmap(&map);
		return error_set(err, LLMC_E_INPUT,
		                 "%s: larger than %zu bytes: no tokenizer has that", path,
		                 TEXT_MAX_FILE);
	}
	status = file_check_content(path, map.data, map.size, err);
	if (status != LLMC_OK) {
		file_unmap(&map);
		return status;
	}
	if (map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0) {
		Gguf *g;
		status = gguf_open(path, &g, err);
		if (status == LLMC_OK) {
			GgufStr model;
			*absent = !gguf_str(g, GGUF_VOCAB "model", &model);
			status = text_open_gguf(g, path, out, err);
			gguf_close(g);
		}
	} else if (flm_name(path)) {
		status = text_open_flm(map.data, map.size, path, out, err);
	} else if (ends_with(path, "ice_text.model")) {
		/* *spm stays false, because no tokens are added */
		status = open_ice(path, &map, out, err);
	} else if (ends_with(path, ".json") || (map.size && map.data[0] == '{')) {
		status = text_open_json((const char *)map.data, map.size, path, out, err);
	} else if (text_has_ranks((const char *)map.data, map.size)) {
		const json_int_t ids = sibling_int(path, "params.json", "vocab_size");
		status = text_open_ranks((const char *)map.data, map.size,
		                         ids > 0 && ids <= TEXT_MAX_IDS ? (int32_t)ids : 0, path,
		                         out, err);
	} else {
		*spm = true;
		status = text_open_spm((const char *)map.data, map.size, path, out, err);
	}
	file_unmap(&map);
	return status;
}

llmc_status
tokenizer_open(const char *path, llmc_tokenizer **out, bool *absent, llmc_error *err)
{
	static const char *const names[] = { "tokenizer.json", "tokenizer.model",
		                             "spiece.model",   "sentencepiece.bpe.model",
		                             "ice_text.model", "vocab.json" };
	Strbuf file = { 0 }, dir = { 0 };
	llmc_status status = LLMC_OK;
	bool spm;

	*absent = false;
	*out = NULL;
	if (file_is_dir(path)) {
		size_t i, n = sizeof names / sizeof *names;
		for (i = 0; i < n; i++) {
			file_join(&file, path, names[i]);
			if (file_exists(strbuf_str(&file)))
				break;
		}
		strbuf_puts(&dir, path);
		*absent = i == n;
		if (i == n && !file.failed)
			status = error_set(err, LLMC_E_INPUT,
			                   "%s: the folder holds neither tokenizer.json nor "
			                   "tokenizer.model nor vocab.json",
			                   path);
	} else {
		const char *slash = strrchr(path, '/');
		strbuf_puts(&file, path);
		strbuf_add(&dir, slash ? path : ".", slash ? (size_t)(slash - path + 1) : 1);
	}
	if (status == LLMC_OK && (file.failed || dir.failed))
		status = error_set(err, LLMC_E_MEMORY, "%s: out of memory", path);
	const bool merges = file_is_dir(path) && ends_with(strbuf_str(&file), "/vocab.json");
	if (status == LLMC_OK && merges) {
		spm = false;
		status = text_open_merges(path, out, err);
	} else if (status == LLMC_OK) {
		status = open_file(strbuf_str(&file), out, &spm, absent, err);
	}
	/* if the file has the standard name, the other files belong to it */
	if (status == LLMC_OK && (merges || ends_with(strbuf_str(&file), "tokenizer.json") ||
	                          ends_with(strbuf_str(&file), ".model")))
		status = read_side(*out, strbuf_str(&dir), spm, err);
	if (status != LLMC_OK && *out) {
		llmc_tokenizer_close(*out);
		*out = NULL;
	}
	strbuf_release(&file);
	strbuf_release(&dir);
	return status;
}

llmc_status
llmc_tokenizer_open(const char *path, llmc_tokenizer **out, llmc_error *err)
{
	bool absent;

	if (!path || !out)
		return error_set(err, LLMC_E_RANGE, "llmc_tokenizer_open: a pointer is NULL");
	return tokenizer_open(path, out, &absent, err);
}

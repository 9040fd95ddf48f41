/* Inserts LLMC_BREAKs into special tokens of messages, so that they are tokenized as text. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/chat_template.h"
#include "serve/dialects/tokenize.h"

/* Must text in messages not become special tokens? This concerns all of them, or only the token of
 * images */
static bool
breaks(const ServedModel *model)
{
	return model->srv->opt.special_text || model->back.tower;
}

int
chat_flags(const ServedModel *model)
{
	return LLMC_PARSE_SPECIAL | (breaks(model) ? LLMC_BREAKS : 0);
}

void
chat_unbreak(const ServedModel *model, char *text, size_t *n)
{
	const size_t len = strlen(LLMC_BREAK);
	size_t to = 0;

	if (!breaks(model))
		return;
	for (size_t i = 0; i < *n; i++)
		if (*n - i >= len && !memcmp(text + i, LLMC_BREAK, len))
			i += len - 1;
		else
			text[to++] = text[i];
	*n = to;
}

/* Return a string with a break in each image token, and without other breaks. */
static char *
break_images(ServedModel *model, const char *s, size_t n, size_t *n_out, Problem *p)
{
	const char *token = llmc_tower_token(model->back.tower);
	const size_t len = strlen(token), cut = strlen(LLMC_BREAK);
	size_t first;
	Strbuf b = { 0 };

	utf8_next(token, len, &first);
	for (size_t i = 0; i < n;)
		if (n - i >= cut && !memcmp(s + i, LLMC_BREAK, cut)) {
			strbuf_puts(&b, "\xEF\xBF\xBD"); /* U+FFFD */
			i += cut;
		} else if (len > first && n - i >= len && !memcmp(s + i, token, len)) {
			strbuf_add(&b, token, first);
			strbuf_puts(&b, LLMC_BREAK);
			i += first;
		} else {
			strbuf_putc(&b, s[i++]);
		}
	*n_out = b.len;
	strbuf_putc(&b, 0);
	if (!b.failed)
		return b.data;
	strbuf_release(&b);
	problem_memory(p);
	return NULL;
}

/* Return a string with breaks in its special tokens. NULL: with a Problem. */
static char *
break_string(ServedModel *model, const char *s, size_t n, size_t *n_out, Problem *p)
{
	size_t cap = 2 * n + 64;
	llmc_error err = { 0 };

	if (!model->srv->opt.special_text)
		return break_images(model, s, n, n_out, p);
	for (;;) {
		char *out = malloc(cap);
		llmc_status status =
		    out ? llmc_break_special(model->back.tok, s, n, out, cap, n_out, &err)
		        : LLMC_E_MEMORY;
		if (status == LLMC_OK)
			return out;
		free(out);
		if (status != LLMC_E_RANGE || *n_out < cap) {
			problem_of(p, status, 400, "messages", "%s", err.text);
			return NULL;
		}
		cap = *n_out + 1;
	}
}

/* Return a copy of a value in which all strings, and keys of objects, have breaks in their special
 * tokens. `message`: v is a message; its role stays unchanged, because one_message has checked
 * it. */
static json_t *
broken_copy(ServedModel *model, const json_t *v, bool message, Problem *p)
{
	json_t *out = NULL, *x, *y = NULL;
	const char *key;
	char *s;
	size_t i, n;

	if (json_is_string(v)) {
		s = break_string(model, json_string_value(v), json_string_length(v), &n, p);
		out = s ? json_stringn(s, n) : NULL;
		free(s);
	} else if (json_is_array(v)) {
		out = json_array();
		json_array_foreach ((json_t *)(uintptr_t)v, i, x)
			if (!out || !(y = broken_copy(model, x, false, p)) ||
			    json_array_append_new(out, y) != 0)
				goto fail;
	} else if (json_is_object(v)) {
		out = json_object();
		json_object_foreach ((json_t *)(uintptr_t)v, key, x) {
			bool role = message && !strcmp(key, "role");
			s = break_string(model, key, strlen(key), &n, p);
			y = !s ? NULL : role ? json_incref(x) : broken_copy(model, x, false, p);
			bool ok = out && y && json_object_set(out, s, y) == 0;
			json_decref(y);
			free(s);
			if (!ok)
				goto fail;
		}
	} else {
		return json_incref((json_t *)(uintptr_t)v);
	}
	return out;
fail:
	json_decref(out);
	return NULL;
}

bool
chat_break(ServedModel *model, json_t *messages, json_t **options, json_t **tools, Problem *p)
{
	json_t *m, *copy;
	size_t i;

	if (!breaks(model))
		return true;
	json_array_foreach (messages, i, m)
		if (!(copy = broken_copy(model, m, true, p)) ||
		    json_array_set_new(messages, i, copy) != 0)
			goto fail;
	if (!(copy = broken_copy(model, *options, false, p)))
		goto fail;
	json_decref(*options);
	*options = copy;
	if (!*tools)
		return true;
	if (!(copy = broken_copy(model, *tools, false, p)))
		goto fail;
	json_decref(*tools);
	*tools = copy;
	return true;
fail:
	return p->status ? false : problem_memory(p);
}

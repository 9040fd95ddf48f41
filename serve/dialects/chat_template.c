/* Contents of messages in the form that the chat template reads, and the template itself. */
#include "serve/dialects/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static llmc_status
apply(ServedModel *model, const json_t *messages, const json_t *options, char **text, size_t *n,
      llmc_error *err)
{
	char *m = json_dumps_numbers(messages, JSON_COMPACT),
	     *opt = json_dumps_numbers(options, JSON_COMPACT);
	size_t cap = 8192;
	llmc_status status = LLMC_E_MEMORY;

	while (m && opt) {
		*text = malloc(cap);
		status =
		    *text ? llmc_chat(model->back.tok, m, opt, *text, cap, n, err) : LLMC_E_MEMORY;
		if (status == LLMC_OK)
			break;
		free(*text);
		*text = NULL;
		if (status != LLMC_E_RANGE || *n < cap)
			break;
		cap = *n + 1;
	}
	free(m);
	free(opt);
	return status;
}

/* Report whether the template shows the text of a message with this content. Takes over the
 * content. *failed is set if the template could not be applied for a reason outside of it, such as
 * memory. */
static bool
shows(ServedModel *model, const json_t *options, json_t *content, const char *word, bool *failed)
{
	json_t *m = json_pack("[{s:s,s:o}]", "role", "user", "content", content);
	char *text = NULL;
	size_t n;
	llmc_error err;
	const llmc_status status = m ? apply(model, m, options, &text, &n, &err) : LLMC_E_MEMORY;
	/* a template for strings would print a list in the notation of a list, with 'type' */
	const bool shown = status == LLMC_OK && strstr(text, word) && !strstr(text, "'type'") &&
	                   !strstr(text, "\"type\"");

	*failed |= status != LLMC_OK && status != LLMC_E_INPUT;
	free(text);
	json_decref(m);
	return shown;
}

int
chat_forms(ServedModel *model, const json_t *options)
{
	static const char word[] = "llmc-probe-7";
	const json_t *template = json_object_get(options, "chat_template");
	bool failed = false;

	if (!template && model->parts)
		return model->parts;
	json_t *o = template ? json_pack("{s:O}", "chat_template", template) : json_object();
	json_t *list = json_pack("[{s:s,s:s}]", "type", "text", "text", word);
	int parts = PARTS_KNOWN;
	parts |= shows(model, o, json_string(word), word, &failed) ? PARTS_STRINGS : 0;
	parts |= shows(model, o, list, word, &failed) ? PARTS_LISTS : 0;
	json_decref(o);
	if (!template && !failed)
		model->parts = parts;
	return parts;
}

/* Return a content as a string, with the placeholders of its images. */
static json_t *
content_string(ServedModel *model, const json_t *content)
{
	Strbuf b = { 0 };
	size_t i;
	json_t *part, *out;

	json_array_foreach ((json_t *)(uintptr_t)content, i, part) {
		const json_t *text = json_object_get(part, "text");
		strbuf_puts(&b, i ? "\n" : "");
		if (text)
			strbuf_add(&b, json_string_value(text), json_string_length(text));
		else
			strbuf_puts(&b, llmc_tower_placeholder(model->back.tower));
	}
	out = b.failed ? NULL : json_stringn(strbuf_str(&b), b.len);
	strbuf_release(&b);
	return out;
}

/* Return a copy of the messages with contents in the form that the template reads. If the template
 * reads lists, images stay parts of lists. NULL: out of memory. */
static json_t *
convert_contents(ServedModel *model, const json_t *messages, int parts)
{
	const bool lists = parts & PARTS_LISTS, only_lists = lists && !(parts & PARTS_STRINGS);
	json_t *out = json_array(), *m;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)messages, i, m) {
		json_t *content = json_object_get(m, "content"), *copy = json_copy(m), *made = NULL;
		if (only_lists && json_is_string(content))
			made = json_pack("[{s:s,s:O}]", "type", "text", "text", content);
		else if (!lists && json_is_array(content))
			made = content_string(model, content);
		else
			made = json_incref(content);
		bool ok = (!made || json_object_set(copy, "content", made) == 0) &&
		          (made || !content) && json_array_append(out, copy) == 0;
		json_decref(made);
		json_decref(copy);
		if (!ok) {
			json_decref(out);
			return NULL;
		}
	}
	return out;
}

static llmc_status
apply_converted(ServedModel *model, const json_t *messages, const json_t *options, int forms,
                char **text, size_t *n, llmc_error *err)
{
	json_t *m = convert_contents(model, messages, forms);
	llmc_status status = m ? apply(model, m, options, text, n, err) : LLMC_E_MEMORY;

	json_decref(m);
	return status;
}

/* Replace null contents with "". Some templates test for null, others append the content to a
 * string. */
static bool
empty_nulls(json_t *messages)
{
	json_t *m;
	size_t i;
	bool any = false;

	json_array_foreach (messages, i, m)
		if (json_is_null(json_object_get(m, "content")) &&
		    json_object_set_new(m, "content", json_string("")) == 0)
			any = true;
	return any;
}

bool
chat_apply(ServedModel *model, json_t *messages, const json_t *options, int forms, char **text,
           size_t *n, Problem *p)
{
	llmc_error err = { 0 };
	llmc_status status = apply_converted(model, messages, options, forms, text, n, &err);

	if (status == LLMC_E_INPUT && empty_nulls(messages))
		status = apply_converted(model, messages, options, forms, text, n, &err);
	return status == LLMC_OK ||
	       problem_of(p, status, 400,
	                  json_object_get(options, "chat_template") ? "chat_template" : "messages",
	                  "The chat template refuses these messages: %s", err.text);
}

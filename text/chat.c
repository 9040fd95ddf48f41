/* llmc_chat: selects a chat template, and sets the variables that transformers passes to
 * templates. */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static bool
set_token(json_t *vars, const char *name, const llmc_tokenizer *t, int32_t id)
{
	const char *s = llmc_token_text(t, id);
	json_t *v = s ? json_stringn(s, t->tok[id].n) : NULL;

	/* A missing token is an empty string in templates, so that it prints as nothing and can be
	 * concatenated. */
	return json_object_set_new(vars, name, v ? v : json_string("")) == 0;
}

/* Parses JSON; on NULL, *err describes the problem. */
static json_t *
parse(const char *text, const char *what, llmc_error *err)
{
	json_error_t why;
	bool no_memory;
	json_t *v =
	    json_parse(text, strlen(text), JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, &why, &no_memory);

	if (no_memory)
		error_set(err, LLMC_E_MEMORY, "%s: out of memory", what);
	else if (!v)
		error_set(err, LLMC_E_INPUT, "%s: line %d, column %d: %s", what, why.line,
		          why.column, why.text);
	return v;
}

static llmc_status
variables(const llmc_tokenizer *t, const char *messages, const char *options, json_t *vars,
          llmc_error *err)
{
	llmc_error why = { 0 };
	json_t *m = parse(messages, "messages", &why),
	       *o = options && *options && m ? parse(options, "options", &why) : NULL, *v;
	const char *key;
	bool ok = true;

	if (!why.code && !json_is_array(m))
		error_set(&why, LLMC_E_INPUT,
		          "messages: not an array of {\"role\": ..., \"content\": ...}");
	if (!why.code && o && !json_is_object(o))
		error_set(&why, LLMC_E_INPUT, "options: not an object");
	if (why.code) {
		json_decref(m);
		json_decref(o);
		return error_set(err, why.code, "%s", why.text);
	}
	ok &= json_object_set_new(vars, "messages", m) == 0;
	/* transformers always passes these three variables */
	ok &= json_object_set_new(vars, "tools", json_null()) == 0;
	ok &= json_object_set_new(vars, "documents", json_null()) == 0;
	ok &= json_object_set_new(vars, "add_generation_prompt", json_false()) == 0;
	ok &= set_token(vars, "bos_token", t, t->bos) &&
	      set_token(vars, "eos_token", t, t->n_eos ? t->eos[0] : -1);
	ok &= set_token(vars, "unk_token", t, t->unk) && set_token(vars, "pad_token", t, t->pad);
	json_object_foreach (o, key, v)
		ok &= json_object_set(vars, key, v) == 0;
	json_decref(o);
	return ok ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "llmc_chat: out of memory");
}

bool
llmc_has_chat_template(const llmc_tokenizer *t)
{
	return t && t->chat;
}

const char *
llmc_chat_template(const llmc_tokenizer *t)
{
	return t ? t->chat : NULL;
}

llmc_status
llmc_chat(const llmc_tokenizer *t, const char *messages_json, const char *options_json, char *buf,
          size_t cap, size_t *need, llmc_error *err)
{
	Strbuf out = { 0 };

	if (!t || !messages_json || (cap && !buf))
		return error_set(err, LLMC_E_RANGE, "llmc_chat: a pointer is NULL");
	json_t *vars = json_object(), *other = NULL;
	llmc_status status = vars ? variables(t, messages_json, options_json, vars, err)
	                          : error_set(err, LLMC_E_MEMORY, "llmc_chat: out of memory");
	if (status == LLMC_OK) {
		const json_t *tools = json_object_get(vars, "tools");
		const char *source =
		    t->chat_tools && json_array_size(tools) ? t->chat_tools : t->chat;
		other = json_incref(json_object_get(vars, "chat_template"));
		json_object_del(vars, "chat_template");
		size_t n = source ? strlen(source) : 0;
		if (json_is_string(other)) {
			source = json_string_value(other);
			n = json_string_length(other);
		}
		if (other && !json_is_string(other) && !json_is_null(other))
			status = error_set(err, LLMC_E_INPUT, "chat_template: not a string");
		else if (!source)
			status = error_set(err, LLMC_E_INPUT,
			                   "this tokenizer has no chat template: the model was not "
			                   "made for chat");
		else
			status = text_render_vars(source, n, "chat template", vars, &out, err);
	}
	if (status == LLMC_OK) {
		if (need)
			*need = out.len;
		if (out.len >= cap)
			status = error_set(
			    err, LLMC_E_RANGE,
			    "llmc_chat: %zu bytes and a NUL do not fit into a buffer of %zu",
			    out.len, cap);
		else
			memcpy(buf, strbuf_str(&out), out.len + 1);
	}
	json_decref(other);
	json_decref(vars);
	strbuf_release(&out);
	return status;
}

llmc_status
text_render(const char *source, size_t n, const char *name, const char *vars_json, char **out,
            size_t *n_out, llmc_error *err)
{
	llmc_error why;
	Strbuf text = { 0 };
	json_t *vars = parse(vars_json ? vars_json : "{}", "variables", &why);

	*out = NULL;
	*n_out = 0;
	if (!vars)
		return error_set(err, why.code, "%s: %s", name, why.text);
	llmc_status status = text_render_vars(source, n, name, vars, &text, err);
	json_decref(vars);
	if (status != LLMC_OK) {
		strbuf_release(&text);
		return status;
	}
	*n_out = text.len;
	*out = text.data ? text.data : calloc(1, 1);
	return *out ? LLMC_OK : error_set(err, LLMC_E_MEMORY, "%s: out of memory", name);
}

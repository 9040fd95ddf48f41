/* Ollama dialect: POST /api/chat, /api/generate and the other calls of its clients. Streams consist
 * of lines of JSON, and are the default. A body is translated to an OpenAI chat body, whose reader
 * checks it. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/fim.h"
#include "serve/dialects/keep_alive.h"
#include "serve/dialects/ollama.h"
#include "serve/dialects/openai.h"

typedef struct Ollama {
	OpenAi base; /* filled by openai_read */
	bool chat;   /* false: /api/generate, whose answers have "response" instead of "message" */
	bool unload; /* keep_alive is 0 */
} Ollama;

static const char type_lines[] = "application/x-ndjson";

/* ---- errors ---- */

/* Append an error in the wording of Ollama, which clients match on. */
static void
error_object(const Problem *p, Strbuf *b)
{
	char text[256];

	if (p->most)
		snprintf(text, sizeof text,
		         "the input length exceeds the context length: %lld tokens > %lld",
		         (long long)(p->n_prompt + p->n_new), (long long)p->most);
	else if (p->model[0])
		snprintf(text, sizeof text, "model '%s' not found", p->model);
	json_printf(b, "{\"error\":%s}", p->most || p->model[0] ? text : p->text);
}

void
ollama_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	error_object(p, &b);
	req_answer(r, p->status, type_json, &b);
}

/* ---- requests ---- */

/* Translate "options". Options that configure the runner, such as num_ctx or num_gpu, are ignored:
 * they are server settings here. */
static bool
read_options(const json_t *in, json_t *out, Problem *p)
{
	const json_t *o = json_object_get(in, "options"), *most = json_object_get(o, "num_predict");

	if (o && !json_is_null(o) && !json_is_object(o))
		return problem(p, 400, "options", "options: expected an object, but got %s",
		               json_type_name(o));
	fields_copy(FIELDS_OLLAMA_CHAT, in, out);
	if (most && !json_is_null(most)) {
		if (!json_is_integer(most) || json_integer_value(most) == 0)
			return problem(p, 400, "num_predict",
			               "options.num_predict: expected an integer other than 0");
		json_object_set_new(
		    out, "max_tokens",
		    json_integer(json_integer_value(most) < 0 ? -1 : json_integer_value(most)));
	}
	return true;
}

static bool
read_think(const json_t *think, json_t *out, Problem *p)
{
	const char *effort = json_string_value(think);

	if (!think || json_is_null(think))
		return true;
	if (json_is_boolean(think))
		return json_object_set_new(
		           out, "chat_template_kwargs",
		           json_pack("{s:b}", "enable_thinking", json_is_true(think))) == 0 ||
		       problem_memory(p);
	if (!effort || (strcmp(effort, "high") != 0 && strcmp(effort, "medium") != 0 &&
	                strcmp(effort, "low") != 0))
		return problem(p, 400, "think",
		               "think: expected true, false, \"high\", \"medium\" or \"low\"");
	return json_object_set_new(
	           out, "chat_template_kwargs",
	           json_pack("{s:s,s:b}", "reasoning_effort", effort, "enable_thinking", 1)) == 0 ||
	       problem_memory(p);
}

/* Translate the fields that chat and generate share. */
json_t *
ollama_translate(const json_t *in, Problem *p)
{
	json_t *format = json_object_get(in, "format");
	const json_t *name = json_object_get(in, "model"), *stream = json_object_get(in, "stream"),
	             *logprobs = json_object_get(in, "logprobs");
	json_t *out = json_object();

	if (!out)
		problem_memory(p);
	if (!out || !read_options(in, out, p) || !read_think(json_object_get(in, "think"), out, p))
		goto fail;
	if (stream && !json_is_null(stream) && !json_is_boolean(stream)) {
		problem(p, 400, "stream", "stream: expected true or false, but got %s",
		        json_type_name(stream));
		goto fail;
	}
	json_object_set_new(out, "stream", json_boolean(!json_is_false(stream)));
	if (json_is_string(name)) {
		json_object_set(out, "model", (json_t *)(uintptr_t)name);
	} else if (name && !json_is_null(name)) {
		problem(p, 400, "model", "model: expected a string, but got %s",
		        json_type_name(name));
		goto fail;
	}
	if (json_is_object(format)) {
		json_object_set_new(out, "response_format",
		                    json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema",
		                              "json_schema", "name", "format", "schema", format));
	} else if (json_is_string(format) && !strcmp(json_string_value(format), "json")) {
		json_object_set_new(out, "response_format",
		                    json_pack("{s:s}", "type", "json_object"));
	} else if (format && !json_is_null(format) &&
	           !(json_is_string(format) && !json_string_length(format))) {
		problem(p, 400, "format", "format: expected \"json\" or a JSON schema");
		goto fail;
	}
	if (json_object_get(in, "keep_alive"))
		json_object_set(out, "keep_alive", json_object_get(in, "keep_alive"));
	if (logprobs)
		json_object_set(out, "logprobs", (json_t *)(uintptr_t)logprobs);
	int64_t top = 0;
	if (!field_int(in, "top_logprobs", 0, LLMC_MAX_TOP, &top, NULL, p))
		goto fail;
	if (json_is_true(logprobs) && json_object_get(in, "top_logprobs"))
		json_object_set(out, "top_logprobs", json_object_get(in, "top_logprobs"));
	return out;
fail:
	json_decref(out);
	return NULL;
}

/* Return a content with images, which come before the text as in Ollama's own prompts; new
 * reference. NULL with a Problem. */
static json_t *
image_content(const json_t *images, const json_t *text, const char *where, Problem *p)
{
	json_t *out = json_array(), *image;
	char key[96];
	size_t i;

	if (!json_is_array(images))
		problem(p, 400, where, "%s: expected an array of strings, but got %s", where,
		        json_type_name(images));
	json_array_foreach ((json_t *)(uintptr_t)images, i, image) {
		snprintf(key, sizeof key, "%s[%zu]", where, i);
		if (!json_is_string(image))
			problem(p, 400, key, "%s: expected base64, but got %s", key,
			        json_type_name(image));
		else
			json_array_append_new(out, image_part_base64(image, key));
	}
	if (json_is_string(text) && json_string_length(text))
		json_array_append_new(out, json_pack("{s:s,s:O}", "type", "text", "text", text));
	if (!p->status)
		return out;
	json_decref(out);
	return NULL;
}

/* Copy messages; those with images get a list of parts as their content. */
static json_t *
chat_messages(const json_t *in, Problem *p)
{
	json_t *out = json_array(), *m;
	char where[64];
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)in, i, m) {
		const json_t *images = json_object_get(m, "images");
		json_t *copy = json_copy(m);
		if (images && !json_is_null(images) &&
		    !(json_is_array(images) && !json_array_size(images))) {
			snprintf(where, sizeof where, "messages[%zu].images", i);
			json_t *content =
			    image_content(images, json_object_get(m, "content"), where, p);
			if (content)
				json_object_set_new(copy, "content", content);
			json_object_del(copy, "images");
		}
		json_array_append_new(out, copy);
	}
	if (out && !p->status)
		return out;
	json_decref(out);
	if (!p->status)
		problem_memory(p);
	return NULL;
}

static json_t *
chat_body(const json_t *in, Problem *p)
{
	json_t *messages = json_object_get(in, "messages");
	json_t *out = ollama_translate(in, p);

	if (out && json_is_array(messages) && json_array_size(messages)) {
		json_t *list = chat_messages(messages, p);
		if (!list) {
			json_decref(out);
			return NULL;
		}
		json_object_set_new(out, "messages", list);
	} else if (out && messages && !json_is_null(messages) && !json_is_array(messages)) {
		json_object_set(out, "messages", messages);
	}
	if (out && json_object_get(in, "tools"))
		json_object_set(out, "tools", json_object_get(in, "tools"));
	return out;
}

static json_t *
generate_body(const json_t *in, Problem *p)
{
	json_t *prompt = json_object_get(in, "prompt"), *system = json_object_get(in, "system"),
	       *suffix = json_object_get(in, "suffix"), *images = json_object_get(in, "images"),
	       *out = ollama_translate(in, p);
	bool raw = false, any = json_array_size(images) > 0;

	if (!out)
		return NULL;
	if (!field_bool(in, "raw", &raw, p))
		goto fail;
	if (system && !json_is_null(system) && !json_is_string(system)) {
		problem(p, 400, "system", "system: expected a string, but got %s",
		        json_type_name(system));
		goto fail;
	}
	if (images && !json_is_null(images) && !json_is_array(images)) {
		problem(p, 400, "images", "images: expected an array of strings, but got %s",
		        json_type_name(images));
		goto fail;
	}
	if (!any && (!prompt || json_is_null(prompt) ||
	             (json_is_string(prompt) && !json_string_length(prompt))))
		return out;
	if (prompt && !json_is_null(prompt) && !json_is_string(prompt)) {
		problem(p, 400, "prompt", "prompt: expected a string");
		goto fail;
	}
	if (suffix && !json_is_null(suffix) && !json_is_string(suffix)) {
		problem(p, 400, "suffix", "suffix: expected a string, but got %s",
		        json_type_name(suffix));
		goto fail;
	}
	if (any && (raw || json_string_length(suffix))) {
		problem(p, 400, "images", "images: not possible with raw or suffix");
		goto fail;
	}
	if (raw || json_string_length(suffix)) {
		json_object_set(out, "prompt", prompt);
		if (json_string_length(suffix))
			json_object_set(out, "suffix", suffix);
		return out;
	}
	json_t *messages = json_array();
	if (json_is_string(system) && json_string_length(system))
		json_array_append_new(messages,
		                      json_pack("{s:s,s:O}", "role", "system", "content", system));
	json_t *content = any ? image_content(images, prompt, "images", p) : json_incref(prompt);
	if (content)
		json_array_append_new(messages,
		                      json_pack("{s:s,s:o}", "role", "user", "content", content));
	json_object_set_new(out, "messages", messages);
	if (content)
		return out;
fail:
	json_decref(out);
	return NULL;
}

/* Read the body of /api/generate. A request without a prompt only loads the model, which has
 * happened by now, or unloads it with keep_alive 0. */
static bool
read_generate(Generation *g, const json_t *o, Problem *p)
{
	const json_t *prompt = json_object_get(o, "prompt"),
	             *most = json_object_get(o, "max_tokens");
	double keep;

	if (!keep_alive_read(g->req, o, &keep, p))
		return false;
	((Ollama *)gen_own(g))->unload = keep == 0;
	if (!prompt)
		return !json_object_get(o, "messages") || openai_read_chat(g, o, p);
	g->max_new = most ? (int32_t)json_integer_value(most) : -1;
	const FimParts parts = { .prefix = prompt,
		                 .suffix = json_object_get(o, "suffix"),
		                 .param = "suffix" };
	if (parts.suffix)
		return openai_read_logprobs(g, o, p) && gen_prompts(g, 1, p) &&
		       fim_prompt(g, &g->sub[0], &parts, p) &&
		       openai_fits(g, g->sub[0].n_tok, "prompt", p);
	return openai_read_logprobs(g, o, p) && gen_prompts(g, 1, p) &&
	       tokenize_prompt(g->model, json_string_value(prompt), json_string_length(prompt),
	                       LLMC_PARSE_SPECIAL | LLMC_ADD_SPECIAL, (size_t)g->model->max_input,
	                       &g->sub[0].tok, &g->sub[0].n_tok, p) &&
	       openai_fits(g, g->sub[0].n_tok, "prompt", p);
}

static bool
read_chat(Generation *g, const json_t *o, Problem *p)
{
	((Ollama *)gen_own(g))->chat = true;
	return read_generate(g, o, p);
}

/* ---- answers ---- */

/* Append {"model":... with text, reasoning, calls and log probabilities. These arguments are JSON
 * without brackets; each may be empty. */
static void
line_open(const Generation *g, Strbuf *b, const char *text, size_t n, const Strbuf *thinking,
          const Strbuf *calls, Strbuf *places)
{
	bool chat = ((const Ollama *)gen_own(g))->chat;

	json_printf(b, "{\"model\":%s,\"created_at\":", g->model->name);
	json_time(b, time(NULL));
	strbuf_puts(b,
	            chat ? ",\"message\":{\"role\":\"assistant\",\"content\":" : ",\"response\":");
	json_str(b, text, n);
	if (thinking && thinking->len) {
		strbuf_puts(b, ",\"thinking\":");
		json_str(b, strbuf_str(thinking), thinking->len);
	}
	if (chat && calls && calls->len) {
		strbuf_puts(b, ",\"tool_calls\":[");
		strbuf_add(b, strbuf_str(calls), calls->len);
		strbuf_putc(b, ']');
	}
	strbuf_puts(b, chat ? "}," : ",");
	if (places && places->len) {
		strbuf_puts(b, "\"logprobs\":[");
		strbuf_add(b, strbuf_str(places), places->len);
		strbuf_puts(b, "],");
		strbuf_clear(places);
	}
}

static void
push(Generation *g, Strbuf *b)
{
	strbuf_putc(b, '\n');
	if (!b->failed)
		req_push(g->req, b->data, b->len);
	strbuf_release(b);
}

static void
line(Generation *g, Choice *c, const char *text, size_t n, const Strbuf *thinking,
     const Strbuf *calls)
{
	Strbuf b = { 0 };

	line_open(g, &b, text, n, thinking, calls, &c->col[2]);
	strbuf_puts(&b, "\"done\":false}");
	push(g, &b);
}

static void
on_piece(Generation *g, Choice *c, llmc_piece_kind kind, int32_t call, const char *text, size_t n)
{
	switch (kind) {
	case LLMC_PIECE_TEXT:
		openai_places_of(c, n, &c->col[2]);
		if (g->stream && n)
			line(g, c, text, n, NULL, NULL);
		else
			strbuf_add(&c->text, text, n);
		break;
	case LLMC_PIECE_REASONING:
		strbuf_add(&c->reasoning, text, n);
		if (g->stream && n) {
			line(g, c, "", 0, &c->reasoning, NULL);
			strbuf_clear(&c->reasoning);
		}
		break;
	case LLMC_PIECE_CALL:
		c->n_calls = call + 1;
		strbuf_puts(&c->call,
		            c->call.len ? ",{\"function\":{\"name\":" : "{\"function\":{\"name\":");
		json_str(&c->call, text, n);
		strbuf_puts(&c->call, ",\"arguments\":");
		strbuf_clear(&c->held);
		break;
	case LLMC_PIECE_ARGUMENTS:
		strbuf_add(&c->held, text, n);
		break;
	/* Ollama's arguments are an object, not a string; those of a truncated call are no object
	 * and are dropped */
	case LLMC_PIECE_DONE: {
		bool no_memory;
		json_t *o = json_parse(strbuf_str(&c->held), c->held.len,
		                       JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, NULL, &no_memory);
		c->call.failed |= no_memory;
		if (json_is_object(o))
			strbuf_add(&c->call, strbuf_str(&c->held), c->held.len);
		else
			strbuf_puts(&c->call, "{}");
		json_decref(o);
		strbuf_puts(&c->call, "}}");
		if (g->stream) {
			line(g, c, "", 0, NULL, &c->call);
			strbuf_clear(&c->call);
		}
		break;
	}
	}
}

static void
on_token(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	openai_place(g, c, ev);
	gen_pieces(g, c, ev, false, on_piece);
}

static void
on_finish(Generation *g, SubRequest *sub, Choice *c, const llmc_event *ev)
{
	(void)sub;
	gen_pieces(g, c, ev, true, on_piece);
}

static void
on_done(Generation *g)
{
	Choice none = { 0 }, *c = g->n_sub ? &g->choice[0] : &none;
	int32_t n_prompt, n_new, n_cached;
	Strbuf b = { 0 };

	gen_sums(g, &n_prompt, &n_new, &n_cached);
	line_open(g, &b, strbuf_str(&c->text), c->text.len, &c->reasoning, &c->call,
	          &c->col[2]); /* empty in a stream */
	strbuf_puts(&b, "\"done\":true,");
	json_printf(
	    &b,
	    "\"done_reason\":%s,\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%"
	    "d,\"prompt_eval_duration\":%lld,\"eval_count\":%d,\"eval_duration\":%lld}",
	    !g->n_sub ? ((const Ollama *)gen_own(g))->unload ? "unload" : "load"
	    : c->finish == LLMC_FINISH_LENGTH ? "length"
	                                      : "stop",
	    (long long)(1e9 * (clock_now() - g->req->t_start)), n_prompt,
	    (long long)(1e9 * g->prefill_s), n_new, (long long)(1e9 * g->decode_s));
	if (g->stream)
		push(g, &b);
	else
		req_answer(g->req, 200, type_json, &b);
}

static void
failed(Generation *g, const Problem *p)
{
	Strbuf b = { 0 };

	if (!g->stream) {
		req_problem(g->req, p);
		return;
	}
	error_object(p, &b);
	push(g, &b);
}

static const Dialect dialect = {
	.own_bytes = sizeof(Ollama),
	.defaults = LLMC_DEFAULT_OLLAMA,
	.pieces = true,
	.stream_type = type_lines,
	.token = on_token,
	.finish = on_finish,
	.done = on_done,
	.problem = failed,
};

void
ollama_chat(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "",
		                           .max_stop = OTHERS_MAX_STOP,
		                           .translate = chat_body,
		                           .fields = FIELDS_OLLAMA_CHAT,
		                           .read = read_chat };

	openai_handle(r, &dialect, &route);
}

void
ollama_generate(Req *r)
{
	static const OpenAiRoute route = { .id_prefix = "",
		                           .max_stop = OTHERS_MAX_STOP,
		                           .translate = generate_body,
		                           .fields = FIELDS_OLLAMA_GENERATE,
		                           .read = read_generate };

	openai_handle(r, &dialect, &route);
}

/* Tokenisation without generation, in vLLM's, TGI's and llama.cpp's forms. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/models/model.h"
#include "serve/http/route.h"
#include "serve/dialects/tokenize.h"

enum {
	OF_LIST = 32,
	OF_PLACES = 64
}; /* upper bound of the answer, in bytes per byte of the body: each byte may be a token */

/* Parse the body as an object, if the memory limit allows the largest possible answer. */
static json_t *
begin(Req *r, size_t each, Problem *p)
{
	if (!req_charge(r, each * r->body.len)) {
		problem_busy(p);
		return NULL;
	}
	json_t *o = body_object(&r->body, p);
	if (!o)
		req_release(r, each * r->body.len);
	return o;
}

static void
end(Req *r, size_t each, json_t *o, Strbuf *b, const Problem *p)
{
	if (o)
		/* from here on the bytes of the answer itself are counted */
		req_release(r, each * r->body.len);
	json_decref(o);
	if (!p->status)
		req_answer(r, 200, type_json, b);
	else
		req_problem(r, p);
	strbuf_release(b);
}

/* Tokenize {"prompt": text} or {"messages": [...]}; answers {"count", "max_model_len", "tokens",
 * "token_strs"}. */
static void
tokenize_object(Req *r, json_t *o, Strbuf *b, Problem *p)
{
	const json_t *prompt = json_object_get(o, "prompt");
	bool chat = !prompt && json_object_get(o, "messages"), special = !chat, strs = false;
	char *text = NULL;
	size_t n = 0, n_tok = 0;
	int32_t *tok = NULL;
	Strbuf piece = { 0 };

	if (!field_bool(o, "add_special_tokens", &special, p) ||
	    !field_bool(o, "return_token_strs", &strs, p))
		return;
	if (chat) {
		if (!chat_prompt(r, o, &text, &n, p))
			return;
	} else if (!json_is_string(prompt)) {
		problem(p, 400, "prompt",
		        prompt ? "Invalid type for 'prompt': expected a string, but got %s instead."
		               : "Missing required parameter: 'prompt' or 'messages'; got %s.",
		        json_type_name(prompt));
		return;
	}
	bool ok = tokenize_prompt(r->model, chat ? text : json_string_value(prompt),
	                          chat ? n : json_string_length(prompt),
	                          (chat ? chat_flags(r->model) : LLMC_PARSE_SPECIAL) |
	                              (special ? LLMC_ADD_SPECIAL : 0),
	                          SIZE_MAX, &tok, &n_tok, p);
	free(text);
	if (!ok)
		return;
	json_printf(b, "{\"count\":%lld,\"max_model_len\":%d,\"tokens\":[", (long long)n_tok,
	            r->model->max_total);
	for (size_t i = 0; i < n_tok; i++)
		strbuf_printf(b, i ? ",%d" : "%d", tok[i]);
	strbuf_puts(b, "],\"token_strs\":");
	if (strs) {
		for (size_t i = 0; i < n_tok; i++) {
			strbuf_clear(&piece);
			token_bytes(r->model->back.tok, tok[i], &piece);
			strbuf_putc(b, i ? ',' : '[');
			json_str(b, strbuf_str(&piece), piece.len);
		}
		strbuf_puts(b, n_tok ? "]}" : "[]}");
	} else {
		strbuf_puts(b, "null}");
	}
	free(tok);
	strbuf_release(&piece);
}

void
text_tokenize(Req *r)
{
	Problem p = { 0 };
	Strbuf b = { 0 };
	json_t *o = begin(r, OF_LIST, &p);

	if (o)
		tokenize_object(r, o, &b, &p);
	end(r, OF_LIST, o, &b, &p);
}

void
ids_add(Ids *to, const int32_t *id, size_t n)
{
	if (!to->id || to->n + n > to->cap) {
		size_t cap = 2 * (to->n + n) + 16;
		int32_t *grown = realloc(to->id, cap * sizeof *grown);
		if (!grown) {
			to->failed = true;
			return;
		}
		to->id = grown;
		to->cap = cap;
	}
	if (n)
		memcpy(to->id + to->n, id, n * sizeof *id);
	to->n += n;
}

bool
token_ids(const json_t *list, int32_t vocab, const char *where, int32_t **ids, size_t *n,
          Problem *p)
{
	const json_t *v;
	size_t i;

	*n = 0;
	*ids = malloc((json_array_size(list) + 1) * sizeof **ids);
	if (!*ids)
		return problem_memory(p);
	json_array_foreach (list, i, v) {
		const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
		if (id < 0 || id >= vocab)
			return problem(p, 400, where,
			               "Invalid '%s': element %zu is not a token id; expected "
			               "integers from 0 to %d.",
			               where, i, vocab - 1);
		(*ids)[(*n)++] = (int32_t)id;
	}
	return true;
}

/* Detokenize {"tokens": [ids]}; the answer is "prompt" for vLLM and "content" for llama.cpp. */
void
text_detokenize(Req *r)
{
	ServedModel *m = r->model;
	Problem p = { 0 };
	json_t *o = body_object(&r->body, &p), *list = json_object_get(o, "tokens");
	size_t n, need = 0;
	int32_t *tok = NULL;
	char *text = NULL;
	Strbuf b = { 0 };

	if (!o)
		goto out;
	if (!m->back.tok) {
		problem(&p, 400, NULL, "This model has no tokenizer.");
		goto out;
	}
	if (!json_is_array(list)) {
		problem(&p, 400, "tokens",
		        "Invalid type for 'tokens': expected an array of token ids, but got %s "
		        "instead.",
		        json_type_name(list));
		goto out;
	}
	if (!token_ids(list, llmc_tokenizer_size(m->back.tok), "tokens", &tok, &n, &p))
		goto out;
	if (!detokenize_prompt(m, tok, n, &text, &need, &p))
		goto out;
	strbuf_puts(&b, "{\"prompt\":");
	json_str(&b, text, need);
	strbuf_puts(&b, ",\"content\":");
	json_str(&b, text, need);
	strbuf_putc(&b, '}');
	req_answer(r, 200, type_json, &b);
out:
	json_decref(o);
	free(tok);
	free(text);
	if (p.status)
		req_problem(r, &p);
}

/* Write TGI's list of tokens with their byte offsets in the text. */
static void
tgi_list(const ServedModel *m, const char *text, size_t n_text, const int32_t *tok, size_t n_tok,
         Strbuf *b)
{
	Strbuf piece = { 0 };
	size_t at = 0;

	strbuf_putc(b, '[');
	for (size_t i = 0; i < n_tok; i++) {
		strbuf_clear(&piece);
		token_bytes(m->back.tok, tok[i], &piece);
		const char *t = strbuf_str(&piece);
		size_t n = piece.len, skip = 0;
		/* tokens that the tokenizer added at the start (prefix space, bos) have no offset
		 * in the text */
		if (!(n <= n_text - at && memcmp(text + at, t, n) == 0) && n && *t == ' ' &&
		    n - 1 <= n_text - at && memcmp(text + at, t + 1, n - 1) == 0)
			skip = 1;
		size_t len = n - skip <= n_text - at && memcmp(text + at, t + skip, n - skip) == 0
		                 ? n - skip
		                 : 0;
		json_printf(b, i ? ",{\"id\":%d,\"text\":" : "{\"id\":%d,\"text\":", tok[i]);
		json_str(b, t, n);
		strbuf_printf(b, ",\"start\":%zu,\"stop\":%zu}", at, at + len);
		at += len;
	}
	strbuf_putc(b, ']');
	strbuf_release(&piece);
}

/* Write llama.cpp's answer. {"content": text} gives {"tokens": [ids]}; with_pieces gives [{"id",
 * "piece": text, or a list of bytes if it is not UTF-8}]. */
static void
tokenize_content(Req *r, json_t *o, Strbuf *b, Problem *p)
{
	const json_t *content = json_object_get(o, "content");
	bool special = false, parse = true, pieces = false;
	int32_t *tok = NULL;
	size_t n_tok = 0;
	Strbuf piece = { 0 };

	if (!field_bool(o, "add_special", &special, p) ||
	    !field_bool(o, "parse_special", &parse, p) || !field_bool(o, "with_pieces", &pieces, p))
		return;
	if (!json_is_string(content)) {
		problem(p, 400, "content",
		        "Invalid type for 'content': expected a string, but got %s instead.",
		        json_type_name(content));
		return;
	}
	if (!tokenize_prompt(r->model, json_string_value(content), json_string_length(content),
	                     (parse ? LLMC_PARSE_SPECIAL : 0) | (special ? LLMC_ADD_SPECIAL : 0),
	                     SIZE_MAX, &tok, &n_tok, p))
		return;
	strbuf_puts(b, "{\"tokens\":[");
	for (size_t i = 0; i < n_tok; i++) {
		strbuf_puts(b, i ? "," : "");
		if (!pieces) {
			strbuf_printf(b, "%d", tok[i]);
			continue;
		}
		strbuf_clear(&piece);
		token_bytes(r->model->back.tok, tok[i], &piece);
		const char *at = strbuf_str(&piece);
		strbuf_printf(b, "{\"id\":%d,\"piece\":", tok[i]);
		if (utf8_valid(at, piece.len))
			json_str(b, at, piece.len);
		for (size_t k = 0; k < piece.len && !utf8_valid(at, piece.len); k++)
			strbuf_printf(b, k ? ",%d" : "[%d", (unsigned char)at[k]);
		strbuf_puts(b, utf8_valid(at, piece.len) ? "}" : "]}");
	}
	strbuf_puts(b, "]}");
	free(tok);
	strbuf_release(&piece);
}

/* Handle /tokenize: TGI's body {"inputs": text}, vLLM's {"prompt"} or {"messages"}, or llama.cpp's
 * {"content"}. */
void
text_tgi_tokenize(Req *r)
{
	Problem p = { 0 };
	json_t *o = begin(r, OF_PLACES, &p), *inputs = json_object_get(o, "inputs");
	int32_t *tok = NULL;
	size_t n_tok;
	Strbuf b = { 0 };

	if (o && !inputs && (json_object_get(o, "prompt") || json_object_get(o, "messages"))) {
		tokenize_object(r, o, &b, &p);
	} else if (o && !inputs && json_object_get(o, "content")) {
		tokenize_content(r, o, &b, &p);
	} else if (o && !json_is_string(inputs)) {
		problem(&p, 422, NULL,
		        inputs ? "Failed to deserialize the JSON body into the target type: "
		                 "inputs: invalid type: %s, expected a string"
		               : "Failed to deserialize the JSON body into the target type: "
		                 "missing field `inputs`, got %s",
		        json_type_name(inputs));
		p.type = "plain";
	} else if (o && tokenize_prompt(
	                    r->model, json_string_value(inputs), json_string_length(inputs),
	                    LLMC_PARSE_SPECIAL | LLMC_ADD_SPECIAL, SIZE_MAX, &tok, &n_tok, &p)) {
		tgi_list(r->model, json_string_value(inputs), json_string_length(inputs), tok,
		         n_tok, &b);
	}
	free(tok);
	end(r, OF_PLACES, o, &b, &p);
}

void
text_chat_tokenize(Req *r)
{
	Problem p = { 0 };
	json_t *o = begin(r, OF_PLACES, &p);
	char *text = NULL;
	size_t n = 0, n_tok = 0;
	int32_t *tok = NULL;
	Strbuf b = { 0 };

	if (o && chat_prompt(r, o, &text, &n, &p) &&
	    tokenize_prompt(r->model, text, n, chat_flags(r->model), SIZE_MAX, &tok, &n_tok, &p)) {
		chat_unbreak(r->model, text, &n);
		strbuf_puts(&b, "{\"tokenize_response\":");
		tgi_list(r->model, text, n, tok, n_tok, &b);
		strbuf_puts(&b, ",\"templated_text\":");
		json_str(&b, text, n);
		strbuf_putc(&b, '}');
	}
	free(text);
	free(tok);
	end(r, OF_PLACES, o, &b, &p);
}

void
lcpp_template(Req *r)
{
	Problem p = { 0 };
	json_t *o = begin(r, OF_LIST, &p);
	char *text = NULL;
	size_t n = 0;
	Strbuf b = { 0 };

	if (o && chat_prompt(r, o, &text, &n, &p)) {
		chat_unbreak(r->model, text, &n);
		strbuf_puts(&b, "{\"prompt\":");
		json_str(&b, text, n);
		strbuf_putc(&b, '}');
	}
	free(text);
	end(r, OF_LIST, o, &b, &p);
}

/* Tokens and text, without a generation: vLLM's and TGI's forms. */
#include <stdlib.h>
#include <string.h>

#include "runtime/serve/serve.h"

static json_t *
body(Req *r, Problem *p)
{
	json_t *o = body_parse(strbuf_str(&r->body), r->body.len, p);

	if (o && !json_is_object(o)) {
		problem(p, 400, NULL, "The body must be a JSON object, but is %s.", json_type_name(o));
		json_decref(o);
		return NULL;
	}
	return o;
}

/* {"prompt": text} or {"messages": [...]} -> {"count", "max_model_len", "tokens", "token_strs"} */
static void
tokenize_object(Req *r, json_t *o, Problem *p)
{
	const json_t *prompt = json_object_get(o, "prompt");
	bool chat = !prompt && json_object_get(o, "messages"), special = !chat, strs = false;
	char *text = NULL;
	size_t n = 0, n_tok = 0;
	int32_t *tok = NULL;
	Strbuf b = { 0 }, piece = { 0 };

	if (!field_bool(o, "add_special_tokens", &special, p) || !field_bool(o, "return_token_strs", &strs, p))
		return;
	if (chat) {
		if (!chat_prompt(r->srv, o, &text, &n, p))
			return;
	} else if (!json_is_string(prompt)) {
		problem(p, 400, "prompt", prompt ? "Invalid type for 'prompt': expected a string, but got %s instead." : "Missing required parameter: 'prompt' or 'messages'; got %s.",
		        json_type_name(prompt));
		return;
	}
	bool ok = tokenize_prompt(r->srv, chat ? text : json_string_value(prompt), chat ? n : json_string_length(prompt),
	                          LLMC_PARSE_SPECIAL | (special ? LLMC_ADD_SPECIAL : 0), &tok, &n_tok, p);
	free(text);
	if (!ok)
		return;
	json_printf(&b, "{\"count\":%lld,\"max_model_len\":%d,\"tokens\":[", (long long)n_tok, r->srv->max_total);
	for (size_t i = 0; i < n_tok; i++)
		strbuf_printf(&b, i ? ",%d" : "%d", tok[i]);
	strbuf_puts(&b, "],\"token_strs\":");
	if (strs) {
		for (size_t i = 0; i < n_tok; i++) {
			strbuf_clear(&piece);
			token_bytes(r->srv->back.tok, tok[i], &piece);
			strbuf_putc(&b, i ? ',' : '[');
			json_str(&b, strbuf_str(&piece), piece.len);
		}
		strbuf_puts(&b, n_tok ? "]}" : "[]}");
	} else {
		strbuf_puts(&b, "null}");
	}
	free(tok);
	strbuf_release(&piece);
	req_answer(r, 200, type_json, &b);
}

void
text_tokenize(Req *r)
{
	Problem p = { 0 };
	json_t *o = body(r, &p);

	if (o)
		tokenize_object(r, o, &p);
	json_decref(o);
	if (p.status)
		req_problem(r, &p);
}

/* {"tokens": [ids]} -> {"prompt": text} */
void
text_detokenize(Req *r)
{
	Server *s = r->srv;
	Problem p = { 0 };
	json_t *o = body(r, &p), *list = json_object_get(o, "tokens"), *v;
	size_t n = json_array_size(list), i, need = 0, cap = 8 * n + 64;
	int32_t *tok = NULL;
	char *text = NULL;
	llmc_error err = { 0 };
	Strbuf b = { 0 };

	if (!o)
		goto out;
	if (!s->back.tok) {
		problem(&p, 400, NULL, "This model has no tokenizer.");
		goto out;
	}
	if (!json_is_array(list)) {
		problem(&p, 400, "tokens", "Invalid type for 'tokens': expected an array of token ids, but got %s instead.", json_type_name(list));
		goto out;
	}
	tok = malloc((n + 1) * sizeof *tok);
	if (!tok)
		goto no_memory;
	json_array_foreach(list, i, v) {
		if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= llmc_tokenizer_size(s->back.tok)) {
			problem(&p, 400, "tokens", "Invalid 'tokens': element %zu is no token id; expected integers from 0 to %d.", i, llmc_tokenizer_size(s->back.tok) - 1);
			goto out;
		}
		tok[i] = (int32_t)json_integer_value(v);
	}
	for (;;) {
		text = malloc(cap);
		if (!text)
			goto no_memory;
		llmc_status status = llmc_detokenize(s->back.tok, tok, n, false, text, cap, &need, &err);
		if (status == LLMC_OK)
			break;
		free(text);
		text = NULL;
		if (status != LLMC_E_RANGE || need < cap) {
			problem(&p, 400, "tokens", "%s", err.text);
			goto out;
		}
		cap = need + 1;
	}
	strbuf_puts(&b, "{\"prompt\":");
	json_str(&b, text, need);
	strbuf_putc(&b, '}');
	req_answer(r, 200, type_json, &b);
	goto out;
no_memory:
	problem(&p, 500, NULL, "out of memory");
out:
	json_decref(o);
	free(tok);
	free(text);
	if (p.status)
		req_problem(r, &p);
}

/* TGI: a list of tokens with the bytes' places in the text. */
static void
tgi_list(const Server *s, const char *text, size_t n_text, const int32_t *tok, size_t n_tok, Strbuf *b)
{
	Strbuf piece = { 0 };
	size_t at = 0;

	strbuf_putc(b, '[');
	for (size_t i = 0; i < n_tok; i++) {
		strbuf_clear(&piece);
		token_bytes(s->back.tok, tok[i], &piece);
		const char *t = strbuf_str(&piece);
		size_t n = piece.len, skip = 0;
		/* what the tokenizer put in front (a prefix space, bos) has no place in the text */
		if (!(n <= n_text - at && memcmp(text + at, t, n) == 0) && n && *t == ' ' && n - 1 <= n_text - at && memcmp(text + at, t + 1, n - 1) == 0)
			skip = 1;
		size_t len = n - skip <= n_text - at && memcmp(text + at, t + skip, n - skip) == 0 ? n - skip : 0;
		json_printf(b, i ? ",{\"id\":%d,\"text\":" : "{\"id\":%d,\"text\":", tok[i]);
		json_str(b, t, n);
		strbuf_printf(b, ",\"start\":%zu,\"stop\":%zu}", at, at + len);
		at += len;
	}
	strbuf_putc(b, ']');
	strbuf_release(&piece);
}

/* Body of a generation: {"inputs": text}; vLLM's clients send {"prompt"} or {"messages"} to the same path. */
void
text_tgi_tokenize(Req *r)
{
	Problem p = { 0 };
	json_t *o = body(r, &p), *inputs = json_object_get(o, "inputs");
	int32_t *tok = NULL;
	size_t n_tok;
	Strbuf b = { 0 };

	if (o && !inputs && (json_object_get(o, "prompt") || json_object_get(o, "messages"))) {
		tokenize_object(r, o, &p);
	} else if (o && !json_is_string(inputs)) {
		problem(&p, 422, NULL, inputs ? "Failed to deserialize the JSON body into the target type: inputs: invalid type: %s, expected a string" : "Failed to deserialize the JSON body into the target type: missing field `inputs`, got %s",
		        json_type_name(inputs));
		p.type = "plain";
	} else if (o && tokenize_prompt(r->srv, json_string_value(inputs), json_string_length(inputs), LLMC_PARSE_SPECIAL | LLMC_ADD_SPECIAL, &tok, &n_tok, &p)) {
		tgi_list(r->srv, json_string_value(inputs), json_string_length(inputs), tok, n_tok, &b);
		req_answer(r, 200, type_json, &b);
	}
	json_decref(o);
	free(tok);
	if (p.status)
		req_problem(r, &p);
}

void
text_chat_tokenize(Req *r)
{
	Problem p = { 0 };
	json_t *o = body(r, &p);
	char *text = NULL;
	size_t n = 0, n_tok = 0;
	int32_t *tok = NULL;
	Strbuf b = { 0 };

	if (o && chat_prompt(r->srv, o, &text, &n, &p) && tokenize_prompt(r->srv, text, n, LLMC_PARSE_SPECIAL, &tok, &n_tok, &p)) {
		strbuf_puts(&b, "{\"tokenize_response\":");
		tgi_list(r->srv, text, n, tok, n_tok, &b);
		strbuf_puts(&b, ",\"templated_text\":");
		json_str(&b, text, n);
		strbuf_putc(&b, '}');
		req_answer(r, 200, type_json, &b);
	}
	json_decref(o);
	free(text);
	free(tok);
	if (p.status)
		req_problem(r, &p);
}

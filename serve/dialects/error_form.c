/* Errors in the forms of OpenAI and of llama.cpp. */
#include "serve/dialects/error_form.h"

#include "base/json.h"
#include "serve/http/route.h"

static const char *
openai_type(const Problem *p)
{
	return p->type            ? p->type
	       : p->status == 429 ? "rate_limit_error"
	       : p->status >= 500 ? "server_error"
	                          : "invalid_request_error";
}

static void
put_openai(Strbuf *b, const Problem *p)
{
	json_printf(b, "{\"error\":{\"message\":%s,\"type\":%s,\"param\":%s,\"code\":%s}}", p->text,
	            openai_type(p), p->param[0] ? p->param : NULL, p->code);
}

static const char *
lcpp_type(int status)
{
	switch (status) {
	case 401:
		return "authentication_error";
	case 403:
		return "permission_error";
	case 404:
		return "not_found_error";
	case 429:
		return "rate_limit_error";
	case 501:
		return "not_supported_error";
	case 503:
		return "unavailable_error";
	default:
		return status >= 500 ? "server_error" : "invalid_request_error";
	}
}

static void
put_lcpp(Strbuf *b, const Problem *p)
{
	Strbuf text = { 0 };

	if (p->most)
		strbuf_printf(&text,
		              "The request exceeds the available context size: %lld tokens > %lld "
		              "tokens. Shorten the prompt, or start the server with a larger "
		              "--context.",
		              (long long)(p->n_prompt + p->n_new), (long long)p->most);
	json_printf(b, "{\"error\":{\"code\":%d,\"message\":%s,\"type\":%s,\"param\":%s", p->status,
	            text.len ? strbuf_str(&text) : p->text,
	            p->most ? "exceed_context_size_error" : lcpp_type(p->status),
	            p->param[0] ? p->param : NULL);
	if (p->most)
		json_printf(b, ",\"n_prompt_tokens\":%lld,\"n_ctx\":%lld", (long long)p->n_prompt,
		            (long long)p->most);
	strbuf_puts(b, "}}");
	strbuf_release(&text);
}

void
openai_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	put_openai(&b, p);
	req_answer(r, p->status, type_json, &b);
}

void
lcpp_problem(Req *r, const Problem *p)
{
	Strbuf b = { 0 };

	put_lcpp(&b, p);
	req_answer(r, p->status, type_json, &b);
}

void
error_end(Generation *g, const Problem *p)
{
	Strbuf b = { 0 };

	if (!g->stream) {
		req_problem(g->req, p);
		return;
	}
	strbuf_puts(&b, "data: ");
	(g->req->route->problem == lcpp_problem ? put_lcpp : put_openai)(&b, p);
	strbuf_puts(&b, "\n\n");
	req_push(g->req, strbuf_str(&b), b.len);
	strbuf_release(&b);
}

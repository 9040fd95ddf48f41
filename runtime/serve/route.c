/* Which path is answered by what. */
#include <string.h>

#include "runtime/serve/serve.h"

static const Route route[] = {
	/* method, path, prefix, open, tgi, json, work, handler */
	{ "POST", "/v1/chat/completions", false, false, false, true, true, openai_chat },
	{ "POST", "/v1/completions", false, false, false, true, true, openai_completions },
	{ "GET", "/v1/models", false, false, false, false, false, info_models },
	{ "GET", "/v1/models/", true, false, false, false, false, info_model },
	{ "POST", "/v1/tokenize", false, false, false, true, true, text_tokenize },
	{ "POST", "/v1/detokenize", false, false, false, true, true, text_detokenize },
	{ "POST", "/detokenize", false, false, false, true, true, text_detokenize },
	{ "POST", "/tokenize", false, false, true, true, true, text_tgi_tokenize },
	{ "POST", "/chat_tokenize", false, false, true, true, true, text_chat_tokenize },
	{ "POST", "/generate", false, false, true, true, true, tgi_generate },
	{ "POST", "/generate_stream", false, false, true, true, true, tgi_generate_stream },
	{ "POST", "/", false, false, true, true, true, tgi_compat },
	{ "POST", "/invocations", false, false, true, true, true, tgi_compat },
	{ "GET", "/info", false, false, true, false, false, info_tgi },
	{ "GET", "/health", false, true, true, false, true, info_health },
	{ "GET", "/ping", false, true, true, false, true, info_health },
	{ "GET", "/metrics", false, false, false, false, false, metrics_text },
	{ "GET", "/version", false, false, false, false, false, info_version },
	{ "GET", "/status.json", false, false, false, false, false, info_status },
	{ "GET", "/docs", false, true, false, false, false, page_docs },
	{ "GET", "/openapi.json", false, true, false, false, false, page_openapi },
	{ "GET", "/chat", false, true, false, false, false, page_chat },
	{ "GET", "/status", false, true, false, false, false, page_status },
	{ "GET", "/page/", true, true, false, false, false, page_asset },
};
/* a browser sees the page, TGI's clients ask for health here */
static const Route root_page = { "GET", "/", false, true, false, false, false, page_chat };
static const Route root_health = { "GET", "/", false, true, true, false, true, info_health };

const Route *
route_find(const char *method, const char *path, bool html, const char **tail, bool *wrong_method)
{
	if (!strcmp(method, "HEAD"))
		method = "GET";
	*wrong_method = false;
	if (!strcmp(path, "/") && !strcmp(method, "GET"))
		return html ? &root_page : &root_health;
	for (size_t i = 0; i < sizeof route / sizeof *route; i++) {
		size_t n = strlen(route[i].path);
		if (route[i].prefix ? strncmp(path, route[i].path, n) != 0 || !path[n] : strcmp(path, route[i].path) != 0)
			continue;
		if (strcmp(method, route[i].method) != 0) {
			*wrong_method = true;
			continue;
		}
		*tail = path + n;
		return &route[i];
	}
	return NULL;
}

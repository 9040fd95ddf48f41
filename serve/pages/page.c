/* Files embedded in the library: chat page, status page, description of the routes. */
#include <stdlib.h>
#include <string.h>

#include "base/embed.h"
#include "base/text.h"
#include "serve/http/request.h"
#include "serve/http/route.h"

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src "
                             "'self' data:; connect-src 'self'; "
                             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static void
answer(Req *r, const char *path, const char *type)
{
	size_t n;
	const char *data = embed_find(path, &n);

	if (!data) {
		Problem p;
		problem(&p, 404, NULL, "%s does not exist.", r->path);
		req_problem(r, &p);
		return;
	}
	/* the policy is longer than the 128 bytes of a header buffer */
	r->policy = policy;
	req_head(r, "X-Content-Type-Options", "nosniff");
	req_head(r, "Referrer-Policy", "no-referrer");
	req_head(r, "Cache-Control", "no-cache");
	req_answer_file(r, type, data, n);
}

void
page_chat(Req *r)
{
	answer(r, "serve/pages/assets/chat.html", type_html);
}

void
page_status(Req *r)
{
	answer(r, "serve/pages/assets/status.html", type_html);
}

void
page_docs(Req *r)
{
	if (r->wants_html)
		answer(r, "serve/pages/assets/docs.html", type_html);
	else
		page_openapi(r);
}

void
page_openapi(Req *r)
{
	answer(r, "serve/pages/assets/openapi.json", type_json);
}

/* Send /page/NAME: a script, a style or an image. Only embedded files exist. */
void
page_asset(Req *r)
{
	static const struct {
		const char *end, *type;
	} kind[] = {
		{ ".js", "text/javascript; charset=utf-8" },
		{ ".css", "text/css; charset=utf-8" },
		{ ".svg", "image/svg+xml" },
		{ ".html", type_html },
		{ ".json", type_json },
	};
	char path[320];

	snprintf(path, sizeof path, "serve/pages/assets/%s", r->tail);
	for (size_t i = 0; i < sizeof kind / sizeof *kind; i++)
		if (ends_with(r->tail, kind[i].end)) {
			answer(r, path, kind[i].type);
			return;
		}
	answer(r, "", type_text);
}

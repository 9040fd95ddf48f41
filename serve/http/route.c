/* The route table, from the rows of serve/http/routes.def. */
#include "serve/http/route.h"

const Route serve_routes[] = {
#define ROUTE(m, p, h, e, f) { .method = m, .path = p, .handle = h, .problem = e, .flags = f },
#include "serve/http/routes.def"
#undef ROUTE
	{ .below = "/v1/messages/",
	  /* errors of paths without a route, in the form of the dialect of their prefix */
	  .problem = anthropic_problem },
	{ .below = "/api/", .problem = ollama_problem },
	{ .problem = openai_problem },
};

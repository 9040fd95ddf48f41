/* Handlers and error writers of all routes, declared from routes.def. */
#ifndef LLMC_SERVE_HTTP_ROUTE_H
#define LLMC_SERVE_HTTP_ROUTE_H

#include "serve/http/request.h"

#define ROUTE(method, path, handle, problem, flags)                                                \
	void handle(Req *r);                                                                       \
	void problem(Req *r, const Problem *p);
#include "serve/http/routes.def"
#undef ROUTE

#endif

/* Handlers and problems of all routes, declared by their rows. */
#ifndef LLMC_SERVE_ROUTE_H
#define LLMC_SERVE_ROUTE_H

#include "serve/req.h"

#define ROUTE(method, path, handle, problem, flags) \
	void handle(Req *r);                         \
	void problem(Req *r, const Problem *p);
#include "serve/routes.def"
#undef ROUTE

#endif

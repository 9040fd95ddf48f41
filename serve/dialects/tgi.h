/* TGI dialect: types and functions that its reader and its answers share. */
#ifndef LLMC_SERVE_DIALECTS_TGI_H
#define LLMC_SERVE_DIALECTS_TGI_H

#include "serve/dialects/generation.h"

typedef struct Tgi { /* per-generation state of the dialect */
	bool details, full_text, seeded;
	bool in_list; /* a complete answer is wrapped in an array */
} Tgi;

static inline Tgi *
tgi_own(const Generation *g)
{
	return gen_own(g);
}

extern const Dialect tgi_dialect;
void tgi_frame_problem(Req *r, const Problem *p); /* send it as a frame of a stream */

#endif

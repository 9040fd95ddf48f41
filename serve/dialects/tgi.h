/* TGI's dialect: what its two files share. */
#ifndef LLMC_SERVE_DIALECTS_TGI_H
#define LLMC_SERVE_DIALECTS_TGI_H

#include "serve/dialects/generation.h"

typedef struct Tgi { /* of a generation, beside what the engine knows */
	bool details, full_text, seeded;
	bool in_list; /* a whole answer comes in an array */
} Tgi;

static inline Tgi *
tgi_own(const Generation *g)
{
	return gen_own(g);
}

extern const Dialect tgi_dialect;
void tgi_frame_problem(Req *r, const Problem *p); /* as a frame of a stream */

#endif

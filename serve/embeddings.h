/* Texts that become vectors: what embeddings and scores share. */
#ifndef LLMC_SERVE_EMBEDDINGS_H
#define LLMC_SERVE_EMBEDDINGS_H

#include "serve/gen.h"

/* How the request wants its vectors, into g->er. False with a Problem, also where the model makes text. */
bool   embeddings_pool(Gen *g, const json_t *o, Problem *p);
size_t embeddings_most(const Gen *g); /* texts of one request */
/* One text, or ids of one, at `what`[i] of the body; cut: to the context, where it is longer. */
bool   embeddings_text(const Gen *g, const json_t *v, const char *what, size_t i, bool cut, Sub *sub, Problem *p);

#endif

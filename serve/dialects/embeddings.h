/* Texts that become vectors: what embeddings and scores share. */
#ifndef LLMC_SERVE_DIALECTS_EMBEDDINGS_H
#define LLMC_SERVE_DIALECTS_EMBEDDINGS_H

#include "serve/dialects/generation.h"

/* How the request wants its vectors, into g->er. False with a Problem, also where the model makes
 * text. */
bool embeddings_pool(Generation *g, const json_t *o, Problem *p);
size_t embeddings_most(const Generation *g); /* texts of one request */
/* ids [n] of a text, tokenized with these flags of LLMC_ADD_*, become at most `most`: the text is
 * cut, not what its tokenizer puts behind it, which models are trained to pool. How many there are
 * now. */
size_t embeddings_cut(const Generation *g, int flags, int32_t *ids, size_t n, size_t most);
/* One text, or ids of one, at `what`[i] of the body; cut: to the context, where it is longer. */
bool embeddings_text(const Generation *g, const json_t *v, const char *what, size_t i, bool cut,
                     SubRequest *sub, Problem *p);

#endif

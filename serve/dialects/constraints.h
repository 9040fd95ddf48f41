/* Constraints of requests: OpenAI's response_format, vLLM's guided_* and structured_outputs,
 * llama.cpp's grammar and json_schema, TGI's grammar. */
#ifndef LLMC_SERVE_DIALECTS_CONSTRAINTS_H
#define LLMC_SERVE_DIALECTS_CONSTRAINTS_H

#include "serve/dialects/generation.h"

/* Cache of the most recently used grammars with their masks. */
typedef struct Grammars Grammars;
Grammars *grammars_open(void); /* NULL: out of memory */
void grammars_close(Grammars *c);

/* Compile `text` or take it from the cache; the caller closes the grammar. param: request field
 * named in the Problem. */
bool grammar_of(ServedModel *m, llmc_grammar_kind kind, const char *text, size_t n,
                const llmc_grammar_options *opt, const char *param, llmc_grammar **out, Problem *p);
/* Read the constraint of a body into g->grammar and g->form; refuses more than one constraint. */
bool grammar_read(Generation *g, const json_t *body, Problem *p);
/* Read TGI's constraint: {"type": "json" | "json_schema" | "regex" | "grammar", "value": ...} */
bool grammar_read_typed(Generation *g, const json_t *v, const char *param, Problem *p);

#endif

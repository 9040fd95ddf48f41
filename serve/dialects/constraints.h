/* Constraints of requests: OpenAI's response_format, vLLM's guided_* and structured_outputs,
 * llama.cpp's grammar and json_schema, TGI's grammar. */
#ifndef LLMC_SERVE_DIALECTS_CONSTRAINTS_H
#define LLMC_SERVE_DIALECTS_CONSTRAINTS_H

#include "serve/dialects/generation.h"

/* The grammars that were used last, for their masks: a request with the same schema finds them
 * made. */
typedef struct Grammars Grammars;
Grammars *grammars_open(void); /* NULL: out of memory */
void grammars_close(Grammars *c);

/* The grammar of a text, kept or compiled; it is the caller's to close. param: the field it stands
 * in, for the Problem. */
bool grammar_of(ServedModel *m, llmc_grammar_kind kind, const char *text, size_t n,
                const llmc_grammar_options *opt, const char *param, llmc_grammar **out, Problem *p);
/* What a body asks for, into g->grammar and g->form: at most one constraint. */
bool grammar_read(Generation *g, const json_t *body, Problem *p);
/* TGI's: {"type": "json" | "json_schema" | "regex" | "grammar", "value": ...} */
bool grammar_read_typed(Generation *g, const json_t *v, const char *param, Problem *p);

#endif

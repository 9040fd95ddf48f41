/* Tools of a chat: which the model may call, how its template has them, and what reads its answer.
 */
#ifndef LLMC_SERVE_DIALECTS_CHAT_TOOLS_H
#define LLMC_SERVE_DIALECTS_CHAT_TOOLS_H

#include "serve/dialects/generation.h"
#include "serve/dialects/tokenize.h"

typedef struct ToolUse {
	json_t *tools;    /* owned; NULL: none */
	json_t *formats;  /* owned: of tools by name, the grammar of their one text; NULL: none */
	const char *only; /* the one that must be called; into the body */
	bool forced;      /* some call must come */
	bool strict;      /* a schema that cannot be compiled is an error */
	bool one;         /* no calls side by side */
} ToolUse;

/* tools, tool_choice and parallel_tool_calls of a body, which lives as long as *use. */
bool tools_read(const json_t *body, ToolUse *use, Problem *p);
void tools_release(ToolUse *use);
/* The messages with the tools in them, for a template that has no place for tools; a new reference,
 * NULL: out of memory. */
json_t *messages_with_tools(ServedModel *model, const json_t *messages, const json_t *tools);
/* Readers of the choices, and the grammar of calls, for the prompt as it is rendered. */
bool tools_begin(Generation *g, const ToolUse *use, const char *prompt, size_t n, Problem *p);

#endif

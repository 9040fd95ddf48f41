/* Tools of a chat: selects the tools that the model may call, shows them to the model, and reads
 * its calls. */
#ifndef LLMC_SERVE_DIALECTS_CHAT_TOOLS_H
#define LLMC_SERVE_DIALECTS_CHAT_TOOLS_H

#include "serve/dialects/generation.h"
#include "serve/dialects/tokenize.h"

typedef struct ToolUse {
	json_t *tools;    /* owned; NULL: none */
	json_t *formats;  /* owned: grammar of each custom tool's input, by tool name; NULL: none */
	const char *only; /* name of the tool that must be called; points into the body */
	bool forced;      /* at least one call is required */
	bool strict;      /* a schema that cannot be compiled is an error */
	bool one;         /* at most one call */
} ToolUse;

/* Read tools, tool_choice and parallel_tool_calls. The body must outlive *use. */
bool tools_read(const json_t *body, ToolUse *use, Problem *p);
void tools_release(ToolUse *use);
/* Return the messages with the tools listed in the system message, for a template without tool
 * support. New reference; NULL: out of memory. */
json_t *messages_with_tools(ServedModel *model, const json_t *messages, const json_t *tools);
/* Create a reader for each choice, and the grammar of calls, for a rendered prompt. */
bool tools_begin(Generation *g, const ToolUse *use, const char *prompt, size_t n, Problem *p);

#endif

/* Custom tools of OpenAI's interfaces: tools whose input is one string. The model sees a function
 * of one string argument. */
#ifndef LLMC_SERVE_DIALECTS_CUSTOM_TOOLS_H
#define LLMC_SERVE_DIALECTS_CUSTOM_TOOLS_H

#include "serve/dialects/generation.h"

#define CUSTOM_INPUT "input" /* name of the function's argument */
#define CUSTOM_NAMES                                                                               \
	"\x7F"                                                                                     \
	"custom" /* key of a translated body, whose value has the names of the custom tools */

/* Read the format of tool i of the request. tool: {"name", "description", "format"}. */
bool custom_format(const json_t *tool, size_t i, json_t **out, Problem *p);
json_t *custom_function(const json_t *tool);
/* Translate the custom tools, choices and calls of a chat body; a new reference, or NULL with a
 * Problem. */
json_t *custom_chat(const json_t *in, Problem *p);
bool custom_is_name(const json_t *names, const char *name, size_t n);
/* Collect the arguments of a call in c->held and append the new part of the input string to *out,
 * with escapes decoded. last: no part follows, so arguments without an "input" string are appended
 * unchanged. */
void custom_input_begin(Choice *c);
void custom_input(Choice *c, const char *text, size_t n, bool last, Strbuf *out);

#endif

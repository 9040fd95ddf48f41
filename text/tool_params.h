/* Parameters of tools, as readers of calls need them: names, and JSON types of the values. */
#ifndef LLMC_TEXT_TOOL_PARAMS_H
#define LLMC_TEXT_TOOL_PARAMS_H

#include <jansson.h>

#include "base/json_schema.h"
#include "text/text.h"

enum { ANY_NUMBER = T_INTEGER | T_NUMBER };

typedef struct ToolParam {
	const char *name;
	int types;           /* T_ bits that the schema allows */
	const json_t *words; /* strings of enum or const, if the value is one of them; NULL: none */
} ToolParam;
typedef struct Tool {
	const char *name;
	const json_t *parameters; /* schema; NULL: none */
	ToolParam *param;
	size_t n;
	const json_t *format; /* grammar of the only parameter, a string; NULL: none */
} Tool;

/* Resolves the tools of OpenAI's array [*n]. Strings belong to `tools`. */
Tool *tools_resolve(Arena *a, const json_t *tools, size_t *n);
const Tool *tool_find(const Tool *tools, size_t n, const char *name, size_t n_name);
/* NULL: the tool does not list it. */
const ToolParam *tool_param(const Tool *tool, const char *name, size_t n);
/* Types of any argument, listed or not. Sets *no_memory if memory runs out. */
int tool_param_types(const Tool *tool, const char *name, size_t n, bool *no_memory);
int value_type(const json_t *v);

#endif

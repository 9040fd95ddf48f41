/* Output functions of the parser of tool calls */
#ifndef LLMC_TEXT_TOOL_CALLS_INTERNAL_H
#define LLMC_TEXT_TOOL_CALLS_INTERNAL_H

#include "text/tool_calls.h"

/* tool_calls_emit.c */
bool call_is_name(char c);
/* Returns a marker without its surrounding whitespace, because models vary that. */
ByteSpan call_core(const char *s);
void emit_piece(llmc_calls *c, llmc_piece_kind kind, const char *s, size_t n);
/* Consumes the first n bytes of the held input. */
void call_drop(llmc_calls *c, size_t n);
/* at: offset of the text in the output */
void call_emit_text(llmc_calls *c, size_t at, const char *s, size_t n);
void call_begin(llmc_calls *c, const char *mark, size_t n);
const Tool *call_tool(const llmc_calls *c, const char *name, size_t n);
bool call_is_word(const ToolParam *p, const char *s, size_t n);
/* Emits the value of a pair as JSON. The value is a string if its marker requires one, or if the
 * schema allows strings and the value is not JSON of another allowed type. For other types, some
 * models write Python literals. */
void call_pair(llmc_calls *c, ByteSpan key, ByteSpan value, bool text);

#endif

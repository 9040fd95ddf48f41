/* Opens and closes the parser of tool calls: loads the marks of a format and the tools of a
 * request. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/tool_calls.h"
#include "text/tool_calls_internal.h"

/* Returns whether s ends with the marker, ignoring whitespace. */
static bool
ends_with(const char *s, size_t n, ByteSpan mark)
{
	while (n && is_blank(s[n - 1]))
		n--;
	return mark.n && n >= mark.n && memcmp(s + n - mark.n, mark.s, mark.n) == 0;
}

/* Loads the row of the format and its marks. Returns an error if there is no memory. */
static llmc_status
read_row(llmc_calls *c, const llmc_tokenizer *t, llmc_error *err)
{
	if (setjmp(c->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
	const CallRow *row;
	TRY(call_format(t, &row, err));
	c->row = *row;
	ByteSpan mark = call_core(c->row.section[0] ? c->row.section[0] : c->row.open);
	c->mark = mark.n && !(c->row.bare && c->row.section[0])
	              ? arena_strndup(&c->arena, mark.s, mark.n)
	              : NULL;
	for (int i = 0; i < 2 && c->row.think[0] && c->row.think[1]; i++) {
		mark = call_core(c->row.think[i]);
		c->reasoning[i] = arena_strndup(&c->arena, mark.s, mark.n);
	}
	return LLMC_OK;
}

static llmc_status
resolve_tools(llmc_calls *c, llmc_error *err)
{
	if (setjmp(c->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "out of memory for the tools");
	c->tool = tools_resolve(&c->arena, c->tools, &c->n_tool);
	return LLMC_OK;
}

llmc_status
llmc_calls_open(const llmc_tokenizer *t, const char *prompt, size_t n_prompt,
                const char *tools_json, llmc_calls **out, llmc_error *err)
{
	llmc_calls *c = calloc(1, sizeof *c);

	*out = NULL;
	if (!c)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
	arena_init(&c->arena);
	c->call = -1;
	llmc_status status = read_row(c, t, err);
	if (status != LLMC_OK) {
		llmc_calls_close(c);
		return status;
	}
	bool no_memory = false;
	if (tools_json)
		c->tools = json_parse(tools_json, strlen(tools_json),
		                      JSON_ALLOW_NUL | JSON_KEEP_NUMBERS, NULL, &no_memory);
	if (no_memory) {
		llmc_calls_close(c);
		return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
	}
	if (!json_array_size(c->tools)) {
		json_decref(c->tools);
		c->tools = NULL;
	}
	status = resolve_tools(c, err);
	if (status != LLMC_OK) {
		llmc_calls_close(c);
		return status;
	}
	/* optional text that may follow the opening marker */
	ByteSpan begun = call_core(c->row.think[2]);
	while (n_prompt && is_blank(prompt[n_prompt - 1]))
		n_prompt--;
	if (ends_with(prompt, n_prompt, begun))
		n_prompt -= begun.n;
	c->in_prompt = ends_with(prompt, n_prompt, call_core(c->row.think[0]));
	c->state = c->in_prompt ? AT_REASONING : AT_TEXT;
	*out = c;
	return LLMC_OK;
}

void
llmc_calls_close(llmc_calls *c)
{
	if (!c)
		return;
	json_decref(c->tools);
	strbuf_release(&c->hold);
	strbuf_release(&c->raw);
	strbuf_release(&c->word);
	strbuf_release(&c->early);
	strbuf_release(&c->out);
	arena_release(&c->arena);
	free(c);
}

const char *
llmc_calls_mark(const llmc_calls *c, llmc_mark which)
{
	switch (which) {
	case LLMC_MARK_ROW:
		return c->row.name;
	case LLMC_MARK_REASONING:
		return c->row.think[0];
	case LLMC_MARK_REASONING_END:
		return c->in_prompt ? c->row.think[1] : NULL;
	case LLMC_MARK_CALL:
		return c->mark;
	case LLMC_MARK_SYSTEM:
		return c->row.system;
	}
	return NULL;
}

bool
llmc_calls_reasoning(const llmc_calls *c, const char *marks[2])
{
	if (!c->reasoning[1])
		return false;
	marks[0] = c->in_prompt ? "" : c->reasoning[0];
	marks[1] = c->reasoning[1];
	return true;
}

size_t
llmc_calls_at(const llmc_calls *c)
{
	return c->at;
}

/* Parts of text and arguments of calls, as the parser of tool calls emits them */
#include <string.h>

#include "base/json.h"
#include "text/tool_calls.h"
#include "text/tool_calls_internal.h"

bool
call_is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '-' || c == '.';
}

ByteSpan
call_core(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	while (n && is_blank(*s))
		s++, n--;
	while (n && is_blank(s[n - 1]))
		n--;
	return (ByteSpan){ s, n };
}

void
emit_piece(llmc_calls *c, llmc_piece_kind kind, const char *s, size_t n)
{
	if (n || kind == LLMC_PIECE_CALL || kind == LLMC_PIECE_DONE)
		c->fn(c->user, kind, kind < LLMC_PIECE_CALL ? -1 : c->call, s, n);
}

void
call_drop(llmc_calls *c, size_t n)
{
	Strbuf *b = &c->hold;

	memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
	if (b->cap)
		b->data[b->len] = 0;
	c->gone += n;
}

void
call_emit_pending(llmc_calls *c)
{
	emit_piece(c, LLMC_PIECE_ARGUMENTS, strbuf_str(&c->out), c->out.len);
	strbuf_clear(&c->out);
}

void
call_emit_text(llmc_calls *c, size_t at, const char *s, size_t n)
{
	while (c->trim && n && is_blank(*s))
		at++, s++, n--;
	if (!n)
		return;
	c->at = at;
	c->trim = false;
	c->said = true;
	emit_piece(c, LLMC_PIECE_TEXT, s, n);
}

void
call_begin(llmc_calls *c, const char *mark, size_t n)
{
	strbuf_clear(&c->raw);
	strbuf_add(&c->raw, mark, n);
	c->raw_at = c->gone;
	strbuf_clear(&c->early);
	strbuf_clear(&c->word);
	c->named = c->any = c->in_list = false;
	c->state = c->row.body == BODY_JSON ? J_NEXT : c->row.body == BODY_ARRAY ? J_LIST : AT_NAME;
}

void
call_name(llmc_calls *c, const char *s, size_t n)
{
	c->call++;
	c->named = true;
	emit_piece(c, LLMC_PIECE_CALL, s, n);
	strbuf_clear(&c->raw);
	if (c->early.len) {
		c->any = true;
		emit_piece(c, LLMC_PIECE_ARGUMENTS, strbuf_str(&c->early), c->early.len);
	}
	strbuf_clear(&c->early);
}

void
call_end(llmc_calls *c)
{
	call_emit_pending(c);
	if (!c->any)
		/* a call always has arguments, at least an empty object */
		emit_piece(c, LLMC_PIECE_ARGUMENTS, "{}", 2);
	emit_piece(c, LLMC_PIECE_DONE, "", 0);
	c->named = false;
}

/* Gives up parsing a call. Text without a name so far is emitted as text. */
void
call_fail(llmc_calls *c)
{
	c->state = AT_TEXT;
	if (c->named) {
		call_end(c);
		return;
	}
	c->trim = false;
	call_emit_text(c, c->raw_at, strbuf_str(&c->raw), c->raw.len);
	strbuf_clear(&c->raw);
}

const Tool *
call_tool(const llmc_calls *c, const char *name, size_t n)
{
	return tool_find(c->tool, c->n_tool, name, n);
}

bool
call_is_word(const ToolParam *p, const char *s, size_t n)
{
	json_t *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)(p ? p->words : NULL), i, v)
		if (json_string_length(v) == n && !memcmp(json_string_value(v), s, n))
			return true;
	return false;
}

/* Returns whether a value without quotes is JSON of a type that its parameter allows, other than a
 * string. */
static bool
call_is_json(llmc_calls *c, ByteSpan value, int types)
{
	bool no_memory = false;

	if (!(types & ~T_STRING))
		return false;
	json_t *v =
	    json_parse(value.s, value.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL, &no_memory);
	c->out.failed |= no_memory;
	int type = v ? value_type(v) : 0;
	/* a number beyond the types of C */
	bool number = !v && json_number_syntax(value.s, value.n);
	json_decref(v);
	if (number)
		return types & ANY_NUMBER || !(types & T_STRING);
	if (types == T_ALL || !(types & T_STRING))
		return type != 0;
	return type & types & ~T_STRING;
}

void
call_pair(llmc_calls *c, ByteSpan key, ByteSpan value, bool text)
{
	int types = text ? T_STRING : tool_param_types(c->now, key.s, key.n, &c->out.failed);

	strbuf_puts(&c->out, c->any ? ", " : "{");
	json_str(&c->out, key.s, key.n);
	strbuf_puts(&c->out, ": ");
	if (call_is_json(c, value, types))
		strbuf_add(&c->out, value.s, value.n);
	else if (!(types & T_STRING))
		literal_put(&c->out, value, NULL);
	else
		json_str(&c->out, value.s, value.n);
	c->any = true;
}

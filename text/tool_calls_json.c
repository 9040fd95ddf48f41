/* Calls written as JSON, byte by byte: {"name": ..., "arguments": ...} or a list of these. Bytes of
 * the arguments pass through unchanged. */
#include <string.h>

#include "text/tool_calls.h"

/* Handles one byte of a JSON value. Returns 0: the value continues, 1: last byte, 2: the byte
 * follows the value. */
int
call_value_byte(llmc_calls *c, char x)
{
	if (c->in_text) {
		if (c->escaped)
			c->escaped = false;
		else if (x == '\\')
			c->escaped = true;
		else if (x == '"') {
			c->in_text = false;
			return c->depth == 0;
		}
		return 0;
	}
	if (x == '"') {
		c->in_text = c->started = true;
		return 0;
	}
	if (x == '{' || x == '[') {
		c->depth++;
		c->started = true;
		return 0;
	}
	if (x == '}' || x == ']')
		return c->depth == 0 ? 2 : --c->depth == 0;
	if (c->depth == 0 && c->started && (x == ',' || is_blank(x)))
		return 2;
	c->started |= !is_blank(x);
	return 0;
}

void
call_value_begin(llmc_calls *c)
{
	c->depth = 0;
	c->in_text = c->escaped = c->started = false;
}

void
call_argument_byte(llmc_calls *c, char x)
{
	Strbuf *to = c->named ? &c->out : &c->early;

	if (!to->len && !c->any && is_blank(x))
		return;
	if (c->named)
		c->any = true;
	strbuf_putc(to, x);
}

static bool
is_key(const llmc_calls *c, int which)
{
	static const char *const also[2][3] = { { "name", "tool_name", "function" },
		                                { "arguments", "parameters", "input" } };
	const char *s = strbuf_str(&c->word);

	if (c->row.key[which] && !strcmp(s, c->row.key[which]))
		return true;
	for (int i = 0; i < 3; i++)
		if (!strcmp(s, also[which][i]))
			return true;
	return false;
}

static void
object_ends(llmc_calls *c)
{
	if (!c->named) {
		call_fail(c);
		return;
	}
	call_end(c);
	strbuf_clear(&c->raw);
	c->state = c->in_list ? J_LIST : AT_CLOSE;
}

/* Handles one byte of {"name": ..., "arguments": ...}, or of a list of these. Returns false if it
 * did not consume the byte. */
bool
call_json_byte(llmc_calls *c, char x)
{
	int end;

	if (!c->named)
		strbuf_putc(&c->raw, x);
	switch (c->state) {
	case J_LIST: /* [, or the byte after an object of the list */
		if (is_blank(x) || x == ',')
			return true;
		if (x == '[' && !c->in_list) {
			c->in_list = true;
			c->state = J_LIST;
		} else if (x == '{') {
			c->state = J_OBJECT;
			strbuf_clear(&c->early);
			c->any = false;
		} else if (x == ']' && c->in_list) {
			c->state = AT_CLOSE;
			strbuf_clear(&c->raw);
		} else {
			call_fail(c);
		}
		return true;
	case J_NEXT:
		if (x == '{')
			c->state = J_OBJECT;
		else if (!is_blank(x))
			call_fail(c);
		return true;
	case J_OBJECT:
		if (x == '"') {
			c->state = J_IN_KEY;
			strbuf_clear(&c->word);
		} else if (x == '}') {
			object_ends(c);
		} else if (!is_blank(x) && x != ',') {
			call_fail(c);
		}
		return true;
	case J_IN_KEY:
		if (x == '"')
			c->state = J_COLON;
		else if (c->word.len < MAX_NAME)
			strbuf_putc(&c->word, x);
		else
			call_fail(c);
		return true;
	case J_COLON:
		if (x == ':') {
			c->state = J_VALUE;
			call_value_begin(c);
		} else if (!is_blank(x)) {
			call_fail(c);
		}
		return true;
	case J_VALUE:
		if (is_blank(x))
			return true;
		if (!c->row.key[0] && !c->named && c->word.len && x == '{') {
			/* the key of this object is the name */
			char name[MAX_NAME + 1];
			size_t n = c->word.len;
			memcpy(name, strbuf_str(&c->word), n);
			c->state = J_ARGUMENTS;
			call_name(c, name, n);
			break;
		}
		if (!c->named && is_key(c, 0) && x == '"') {
			c->state = J_NAME;
			strbuf_clear(&c->word);
			return true;
		}
		if (is_key(c, 1) && !c->any) {
			c->state = x == '"' ? J_ARGUMENTS_TEXT : J_ARGUMENTS;
			if (x == '"')
				return true;
		} else {
			c->state = J_OTHER;
		}
		break; /* first byte of the value */
	case J_NAME:
		if (x == '"') {
			char name[MAX_NAME + 1];
			size_t n = c->word.len;
			memcpy(name, strbuf_str(&c->word), n);
			c->state = J_OBJECT;
			call_name(c, name, n);
		} else if (c->word.len < MAX_NAME) {
			strbuf_putc(&c->word, x);
		} else {
			call_fail(c);
		}
		return true;
	case J_ARGUMENTS_TEXT: /* JSON inside a string, as in the OpenAI API */
		if (c->escaped) {
			c->escaped = false;
			call_argument_byte(c, x == 'n'   ? '\n'
			                      : x == 't' ? '\t'
			                      : x == 'r' ? '\r'
			                                 : x);
		} else if (x == '\\') {
			c->escaped = true;
		} else if (x == '"') {
			c->state = J_OBJECT;
		} else {
			call_argument_byte(c, x);
		}
		return true;
	default:
		break;
	}
	end = call_value_byte(c, x);
	if (end != 2 && c->state == J_ARGUMENTS)
		call_argument_byte(c, x);
	if (end)
		c->state = J_OBJECT;
	if (end == 2 && !c->named && c->raw.len)
		c->raw.len--;
	return end != 2;
}

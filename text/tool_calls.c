/* Parses an output as it is generated: text, reasoning, tool calls. Arguments pass through as the
 * model writes them. A possible marker is held back; what turns out not to be a call is text, never
 * an error. */
#include "text/tool_calls.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static bool
is_name(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == '_' || c == '-' || c == '.';
}

/* Returns a marker without surrounding whitespace, which models vary. */
static ByteSpan
core(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	while (n && is_blank(*s))
		s++, n--;
	while (n && is_blank(s[n - 1]))
		n--;
	return (ByteSpan){ s, n };
}

static void
emit_piece(llmc_calls *c, llmc_piece_kind kind, const char *s, size_t n)
{
	if (n || kind == LLMC_PIECE_CALL || kind == LLMC_PIECE_DONE)
		c->fn(c->user, kind, kind < LLMC_PIECE_CALL ? -1 : c->call, s, n);
}

/* Consumes the first n bytes of the held input. */
static void
drop(llmc_calls *c, size_t n)
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

/* at: offset in the output */
static void
emit_text(llmc_calls *c, size_t at, const char *s, size_t n)
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

/* ---- a call ---- */

static void
begin_call(llmc_calls *c, const char *mark, size_t n)
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
		emit_piece(c, LLMC_PIECE_ARGUMENTS, "{}", 2); /* a call always has arguments */
	emit_piece(c, LLMC_PIECE_DONE, "", 0);
	c->named = false;
}

/* Gives up parsing a call: what has no name yet is text. */
void
call_fail(llmc_calls *c)
{
	c->state = AT_TEXT;
	if (c->named) {
		call_end(c);
		return;
	}
	c->trim = false;
	emit_text(c, c->raw_at, strbuf_str(&c->raw), c->raw.len);
	strbuf_clear(&c->raw);
}

static const Tool *
tool_named(const llmc_calls *c, const char *name, size_t n)
{
	return tool_find(c->tool, c->n_tool, name, n);
}

static bool
is_word(const ToolParam *p, const char *s, size_t n)
{
	json_t *v;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)(p ? p->words : NULL), i, v)
		if (json_string_length(v) == n && !memcmp(json_string_value(v), s, n))
			return true;
	return false;
}

/* Returns whether a value without quotes is JSON and no string, by the types of its parameter. */
static bool
is_json_value(llmc_calls *c, ByteSpan value, int types)
{
	bool no_memory = false;

	if (!(types & ~T_STRING))
		return false;
	json_t *v =
	    json_parse(value.s, value.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL, &no_memory);
	c->out.failed |= no_memory;
	int type = v ? value_type(v) : 0;
	bool number = !v && json_number_syntax(value.s, value.n); /* beyond the types of C */
	json_decref(v);
	if (number)
		return types & ANY_NUMBER || !(types & T_STRING);
	if (types == T_ALL || !(types & T_STRING))
		return type != 0;
	return type & types & ~T_STRING;
}

/* Emits the value of a pair as JSON. It is a string if the schema allows strings and it is no JSON
 * of another allowed type, or if its marker demands a string. Some models write Python literals for
 * other types. */
static void
pair(llmc_calls *c, ByteSpan key, ByteSpan value, bool text)
{
	int types = text ? T_STRING : tool_param_types(c->now, key.s, key.n, &c->out.failed);

	strbuf_puts(&c->out, c->any ? ", " : "{");
	json_str(&c->out, key.s, key.n);
	strbuf_puts(&c->out, ": ");
	if (is_json_value(c, value, types))
		strbuf_add(&c->out, value.s, value.n);
	else if (!(types & T_STRING))
		literal_put(&c->out, value, NULL);
	else
		json_str(&c->out, value.s, value.n);
	c->any = true;
}

/* ---- steps: each consumes some of the held input, or returns false to wait for more ---- */

static size_t
begins(ByteSpan mark, const Strbuf *h)
{
	size_t n = h->len < mark.n ? h->len : mark.n;

	return mark.n && memcmp(strbuf_str(h), mark.s, n) == 0 ? n : 0;
}

/* Matches a marker at h, allowing any amount of whitespace where it has some. Returns 2: complete,
 * *len bytes; 1: all of h, more is needed; 0: no match. */
static int
mark_at(const char *h, size_t n, ByteSpan mark, size_t *len)
{
	size_t x = 0;

	for (size_t i = 0; i < mark.n;) {
		if (is_blank(mark.s[i])) {
			while (i < mark.n && is_blank(mark.s[i]))
				i++;
			while (x < n && is_blank(h[x]))
				x++;
			continue;
		}
		if (x == n)
			return 1;
		if (h[x++] != mark.s[i++])
			return 0;
	}
	*len = x;
	return mark.n ? 2 : 0;
}

/* Finds a parameter of the tool at h, before any of the marks; *n_key: its bytes, *len: those of
 * the mark too, *which: the mark. Returns 2: found, 1: more input is needed, 0: none. */
static int
own_key(const llmc_calls *c, const char *h, size_t n, const ByteSpan *mark, int n_mark, bool quotes,
        const ToolParam **param, size_t *len, int *which)
{
	int result = 0;
	size_t longest = 0;

	for (size_t i = 0; c->now && i < c->now->n; i++) {
		const ToolParam *p = &c->now->param[i];
		size_t k = strlen(p->name);
		for (int q = 0; q < (quotes ? 3 : 1); q++) {
			char around = "\0\"'"[q];
			size_t lead = around != 0, have = n < k + 2 * lead ? n : k + 2 * lead;
			bool fits = true;
			for (size_t x = 0; fits && x < have; x++)
				fits = h[x] == (lead && (x == 0 || x == k + 1) ? around
				                                               : p->name[x - lead]);
			if (!fits)
				continue;
			size_t at = have;
			while (at < n && is_blank(h[at]))
				at++;
			if (have < k + 2 * lead || at == n) {
				result = result ? result : 1;
				continue;
			}
			for (int m = 0; m < n_mark; m++) {
				size_t bytes;
				int is = mark_at(h + at, n - at, mark[m], &bytes);
				if (is == 2 && (result != 2 || k > longest)) {
					result = 2;
					longest = k;
					*param = p;
					*len = at + bytes;
					*which = m;
				} else if (is == 1 && result == 0) {
					result = 1;
				}
			}
		}
	}
	return result;
}

/* Returns the first occurrence of a marker, or NULL. */
static const char *
find_mark(const char *h, size_t n, ByteSpan mark, size_t *len)
{
	const char *end = h + n;

	for (const char *p = h; mark.n && (p = memchr(p, mark.s[0], (size_t)(end - p))); p++)
		if (mark_at(p, (size_t)(end - p), mark, len) == 2)
			return p;
	return NULL;
}

static void
skip_blanks(llmc_calls *c)
{
	size_t n = 0;

	while (n < c->hold.len && is_blank(c->hold.data[n]))
		n++;
	if (n)
		drop(c, n);
}

/* Finds text or reasoning before the first marker; *at: index of the marker, -1 none. Returns false
 * if more input is needed. */
static bool
up_to(llmc_calls *c, const ByteSpan *mark, int n, bool last, size_t *len, int *at)
{
	const char *h = strbuf_str(&c->hold);
	size_t keep = 0;

	*at = -1;
	*len = c->hold.len;
	for (int i = 0; i < n; i++) {
		const char *p = mark[i].n ? memmem(h, c->hold.len, mark[i].s, mark[i].n) : NULL;
		if (p && (size_t)(p - h) < *len) {
			*len = (size_t)(p - h);
			*at = i;
		}
		for (size_t k = 1; k < mark[i].n && k <= c->hold.len;
		     k++) /* prefix of a marker at the end */
			if (memcmp(h + c->hold.len - k, mark[i].s, k) == 0 && k > keep)
				keep = k;
	}
	if (*at < 0 && !last)
		*len = c->hold.len - keep;
	return *at >= 0 || *len > 0;
}

static bool
text_step(llmc_calls *c, bool last)
{
	const CallRow *r = &c->row;
	ByteSpan mark[4 + MAX_ALSO + MAX_DROP];
	size_t len;
	int at, n = 0;

	if (r->bare && !c->said) { /* an output that is only an object */
		skip_blanks(c);
		ByteSpan also = core(r->bare);
		size_t k = begins(also, &c->hold);
		if (k && k == also.n) {
			drop(c, k);
			return true;
		}
		if (k && !last)
			return false;
		if (c->hold.len && c->hold.data[0] == '{' && c->tools && r->body == BODY_JSON) {
			begin_call(c, "", 0);
			return true;
		}
		if (c->hold.len && c->hold.data[0] == '[' && c->tools && r->body == BODY_LITERALS) {
			begin_call(c, "[", 1);
			drop(c, 1);
			return true;
		}
	}
	mark[n++] = core(r->think[0]);
	mark[n++] = c->tools && !r->bare ? core(r->section[0]) : (ByteSpan){ 0 };
	mark[n++] = c->tools ? core(r->open) : (ByteSpan){ 0 };
	for (int i = 0; i < r->n_also; i++)
		mark[n++] = c->tools ? core(r->also[i]) : (ByteSpan){ 0 };
	for (int i = 0; i < r->n_drop; i++)
		mark[n++] = core(r->drop[i]);
	if (!up_to(c, mark, n, last, &len, &at))
		return false;
	/* hold whitespace before a marker and at the end: it may precede a call */
	size_t end = len;
	while ((at >= 0 || !last) && end && is_blank(c->hold.data[end - 1]))
		end--;
	if (at < 0 && end == 0 && len)
		return false;
	emit_text(c, c->gone, strbuf_str(&c->hold), at >= 0 ? end : end ? end : len);
	drop(c, at >= 0 ? len : end ? end : len);
	if (at < 0)
		return true;
	if (at == 0)
		c->state = AT_REASONING;
	else if (at == 1)
		c->state = AT_BETWEEN;
	else if (at < 3 + r->n_also)
		begin_call(c, mark[at].s, mark[at].n);
	drop(c, mark[at].n);
	return true;
}

static bool
reasoning_step(llmc_calls *c, bool last)
{
	ByteSpan mark = core(c->row.think[1]);
	size_t len;
	int at;

	if (!up_to(c, &mark, 1, last, &len, &at))
		return false;
	emit_piece(c, LLMC_PIECE_REASONING, strbuf_str(&c->hold), len);
	drop(c, len);
	if (at == 0) {
		drop(c, mark.n);
		c->state = AT_TEXT;
		c->trim = true;
	}
	return true;
}

static bool
between_step(llmc_calls *c, bool last)
{
	ByteSpan open = core(c->row.open), end = core(c->row.section[1]);

	skip_blanks(c);
	while (c->hold.len && c->hold.data[0] == ';' && c->row.bare) {
		drop(c, 1);
		skip_blanks(c);
	}
	if (!c->hold.len)
		return false;
	if ((c->row.bare || !open.n) && c->row.body == BODY_JSON && c->hold.data[0] == '{') {
		begin_call(c, "", 0);
		return true;
	}
	/* separator of two calls in a list */
	if (c->row.body == BODY_LITERALS && c->hold.data[0] == ',') {
		drop(c, 1);
		return true;
	}
	size_t k = begins(open, &c->hold), m = begins(end, &c->hold);
	if ((k && k == open.n) ||
	    (!open.n && c->row.body == BODY_LITERALS && is_name(c->hold.data[0]))) {
		begin_call(c, open.n ? open.s : "", open.n);
		drop(c, k);
	} else if (m && m == end.n) {
		drop(c, m);
		c->state = AT_TEXT;
		c->trim = true;
	} else if (k == c->hold.len || m == c->hold.len) {
		if (!last)
			return false;
		drop(c, c->hold.len); /* an incomplete marker */
	} else {
		c->state = AT_TEXT;
		c->trim = true;
	}
	return true;
}

static bool
name_step(llmc_calls *c, bool last)
{
	ByteSpan end = core(c->row.name_until ? c->row.name_until : c->row.name_end);

	if (!end.n) { /* the name ends at the first character that names cannot have */
		skip_blanks(c);
		if (!c->hold.len)
			return false;
	}
	const char *h = strbuf_str(&c->hold), *p = NULL;
	size_t names = 0, len = c->hold.len, skip = 0; /* length of a valid name; bytes before it */
	ByteSpan before = core(c->row.name_from);

	if (before.n) { /* skip the number of the call */
		p = memmem(h, len < MAX_HEAD ? len : MAX_HEAD, before.s, before.n);
		if (!p && !last && len < MAX_HEAD)
			return false;
		skip = p ? (size_t)(p - h) + before.n : 0;
		h += skip;
		len -= skip;
	}
	while (names < len && is_name(h[names]))
		names++;
	if (end.n)
		p = memmem(h, len < MAX_HEAD ? len : MAX_HEAD, end.s, end.n);
	else
		p = names < len ? h + names : NULL;
	if (before.n && !skip)
		p = NULL;
	if (!p) {
		if (!last && len < MAX_HEAD && (c->row.body != BODY_LITERALS || names == len))
			return false;
		call_fail(c);
		return true;
	}
	size_t n = (size_t)(p - h), from = 0;
	/* without an opening marker, only the name of a tool begins a call */
	if (c->row.body == BODY_LITERALS && (names != n || (c->row.bare && !tool_named(c, h, n)))) {
		call_fail(c);
		return true;
	}
	while (from < n && is_blank(h[from]))
		from++;
	size_t to = from;
	while (to < n && is_name(h[to]))
		to++;
	if (to == from || to - from > MAX_NAME) {
		call_fail(c);
		return true;
	}
	strbuf_clear(&c->word);
	strbuf_add(&c->word, h + from, to - from);
	c->now = tool_named(c, h + from, to - from);
	call_name(c, h + from, to - from);
	drop(c, skip + n + end.n);
	call_value_begin(c);
	c->scan = (LiteralScan){ 0 };
	c->state = c->row.body == BODY_PAIRS      ? AT_PAIR
	           : c->row.body == BODY_LITERALS ? AT_LITERAL
	                                          : AT_ARGUMENTS;
	return true;
}

static bool
arguments_step(llmc_calls *c)
{
	size_t i = 0;
	int end = 0;

	for (; i < c->hold.len && !end; i++) {
		end = call_value_byte(c, c->hold.data[i]);
		if (end != 2)
			call_argument_byte(c, c->hold.data[i]);
		else
			break;
	}
	call_emit_pending(c);
	drop(c, i);
	if (end) {
		call_end(c);
		c->state = AT_CLOSE;
	}
	return end != 0;
}

/* Returns whether another argument or the end of the call can follow an end mark, h being what
 * comes after it: 2 yes, 1 if more input is needed, 0 no. */
static int
follows_value(const llmc_calls *c, const char *h, size_t n)
{
	const CallRow *r = &c->row;
	ByteSpan open = core(r->pair[0]), close = core(r->close);
	size_t len, skip = 0, head = 0, tail = close.n;

	while (skip < n && is_blank(h[skip]))
		skip++;
	h += skip;
	n -= skip;
	if (r->to_close || !close.n)
		return 2;
	while (head < close.n && !is_blank(close.s[head]))
		head++;
	while (tail && !is_blank(close.s[tail - 1]))
		tail--;
	ByteSpan next[] = { open, { close.s, head }, { close.s + tail, close.n - tail } };
	int best = 0;
	for (int i = 0; i < 3; i++) {
		int is = mark_at(h, n, next[i], &len);
		best = is > best ? is : best;
	}
	return best;
}

/* Finds the mark that ends a value: the first one after which the call can go on. NULL: there is
 * none, or *wait for more input. */
static const char *
value_end(const llmc_calls *c, const char *value, size_t n, ByteSpan end, bool last, bool *wait)
{
	const char *first = NULL, *h = value + n;

	*wait = false;
	for (const char *p = value; end.n && (p = memmem(p, (size_t)(h - p), end.s, end.n)) != NULL;
	     p++) {
		first = first ? first : p;
		int is = follows_value(c, p + end.n, (size_t)(h - p) - end.n);
		if (is == 2 || (is == 1 && last))
			return p;
		*wait = is == 1;
		if (*wait)
			return NULL;
	}
	return last ? first : NULL;
}

/* Emits a value without the line ends that belong to the format. A listed string keeps them. */
static void
put_pair(llmc_calls *c, ByteSpan key, const ToolParam *p, ByteSpan v, bool text)
{
	const CallRow *r = &c->row;
	/* if values are exact, only markers with a line end have one */
	bool exact = r->pair[3] || (c->now && c->now->format);
	size_t mid = r->pair[1] ? strlen(r->pair[1]) : 0;
	bool before = v.n && *v.s == '\n' && (!exact || (mid && r->pair[1][mid - 1] == '\n')),
	     after = v.n > before && v.s[v.n - 1] == '\n' &&
	             (!exact || (r->pair[2] && *r->pair[2] == '\n'));

	for (int i = 3; i >= 0; i--) {
		bool cut = i & 1, end = i & 2;
		if ((cut && !before) || (end && !after))
			continue;
		if (is_word(p, v.s + cut, v.n - cut - end)) {
			pair(c, key, (ByteSpan){ v.s + cut, v.n - cut - end }, true);
			return;
		}
	}
	pair(c, key, (ByteSpan){ v.s + before, v.n - before - after }, text);
}

static bool
pair_step(llmc_calls *c, bool last)
{
	const CallRow *r = &c->row;
	ByteSpan open = core(r->pair[0]), end = core(r->pair[2]), close = core(r->close),
	         mid[2] = { core(r->pair[1]), core(r->pair[3]) };
	int n_mid = r->pair[3] ? 2 : 1, which = 0;

	skip_blanks(c);
	const char *h = strbuf_str(&c->hold), *stop = h + c->hold.len;
	size_t k = begins(open, &c->hold);
	if (k && k == open.n) {
		const ToolParam *param = NULL;
		const char *key = h + k, *p = NULL;
		size_t len = 0, other = 0;
		int own =
		    own_key(c, key, (size_t)(stop - key), mid, n_mid, false, &param, &len, &which);
		if (own == 1 && !last)
			return false;
		ByteSpan name = { param ? param->name : key, param ? strlen(param->name) : 0 };
		if (own == 2) {
			p = key + len;
		} else {
			const char *q = find_mark(key, (size_t)(stop - key), mid[0], &len),
			           *json = find_mark(key, (size_t)(stop - key), mid[1], &other);
			which = json && (!q || json < q);
			q = which ? json : q;
			p = q ? q + (which ? other : len) : NULL;
			while (q && key < q && is_blank(*key))
				key++;
			name = (ByteSpan){ key, q ? (size_t)(q - key) : 0 };
		}
		bool wait = false;
		const char *at = p ? value_end(c, p, (size_t)(stop - p), end, last, &wait) : NULL;
		if (at) {
			put_pair(c, name, param, (ByteSpan){ p, (size_t)(at - p) },
			         r->pair[3] && !which);
			call_emit_pending(c);
			drop(c, (size_t)(at - h) + end.n);
			return true;
		}
		if (!last)
			return false;
	} else if (!last && (!c->hold.len || k == c->hold.len ||
	                     (begins(close, &c->hold) == c->hold.len && c->hold.len < close.n))) {
		return false;
	}
	if (c->any)
		strbuf_putc(&c->out, '}');
	call_end(c);
	c->state = AT_CLOSE;
	return true;
}

/* Returns the key of an argument that the tool does not list, without quotes; empty: not a key */
static ByteSpan
key_of(const char *s, size_t n)
{
	size_t names = 0;

	while (n && is_blank(s[n - 1]))
		n--;
	if (n > 1 && (s[0] == '"' || s[0] == '\'') && s[n - 1] == s[0])
		return (ByteSpan){ s + 1, n - 2 };
	while (names < n && !strchr("\"'()[]{},", s[names]))
		names++;
	return (ByteSpan){ s, names == n ? n : 0 };
}

/* Parses key=value once its end has come. A value without a key is dropped, since its parameter is
 * unknown. */
static bool
literal_step(llmc_calls *c)
{
	ByteSpan mid = core(c->row.pair[1]);

	if (!c->scan.at) {
		const ToolParam *param = NULL;
		size_t len = 0;
		int which;
		skip_blanks(c);
		if (!c->hold.len)
			return false;
		int own = own_key(c, strbuf_str(&c->hold), c->hold.len, &mid, 1, true, &param, &len,
		                  &which);
		if (own == 1)
			return false;
		c->scan = (LiteralScan){ .at = own == 2 ? len : 0 };
		c->scan.value = c->scan.at;
		c->scan.param = own == 2 ? param->name : NULL;
	}
	const char *h = strbuf_str(&c->hold);
	if (!literal_ends(&c->scan, h, c->hold.len, c->row.quote))
		return false;
	size_t n = c->scan.at, from = c->scan.value;
	ByteSpan key = { c->scan.param, c->scan.param ? strlen(c->scan.param) : 0 };
	if (!c->scan.param) {
		const char *p = mid.n ? memmem(h, n, mid.s, mid.n) : NULL;
		key = p ? key_of(h, (size_t)(p - h)) : (ByteSpan){ 0 };
		from = p ? (size_t)(p - h) + mid.n : 0;
	}
	if (key.n || c->scan.param) {
		strbuf_puts(&c->out, c->any ? ", " : "{");
		json_str(&c->out, key.s, key.n);
		strbuf_puts(&c->out, ": ");
		literal_put(&c->out, (ByteSpan){ h + from, n - from }, c->row.quote);
		c->any = true;
	}
	bool more = h[n] == ',';
	if (!more && c->any)
		strbuf_putc(&c->out, '}');
	call_emit_pending(c);
	drop(c, n + 1);
	c->scan = (LiteralScan){ 0 };
	if (!more) {
		call_end(c);
		c->state = AT_CLOSE;
	}
	return true;
}

static bool
close_step(llmc_calls *c, bool last)
{
	ByteSpan close = core(c->row.close);

	skip_blanks(c);
	const char *h = strbuf_str(&c->hold);
	size_t k = 0;
	int is = mark_at(h, c->hold.len, close, &k);
	if (is == 1 && !last)
		return false;
	const char *p =
	    c->row.to_close && close.n ? memmem(h, c->hold.len, close.s, close.n) : NULL;
	if (c->row.to_close && !p && !last)
		return false;
	drop(c, p ? (size_t)(p - h) + close.n : is == 1 ? c->hold.len : k);
	c->state = AT_BETWEEN;
	return true;
}

static bool
step(llmc_calls *c, bool last)
{
	switch (c->state) {
	case AT_TEXT:
		return text_step(c, last);
	case AT_REASONING:
		return reasoning_step(c, last);
	case AT_BETWEEN:
		return between_step(c, last);
	case AT_NAME:
		return name_step(c, last);
	case AT_ARGUMENTS:
		return arguments_step(c);
	case AT_PAIR:
		return pair_step(c, last);
	case AT_LITERAL:
		return literal_step(c);
	case AT_CLOSE:
		return close_step(c, last);
	default:
		break;
	}
	size_t i = 0;
	while (i < c->hold.len && c->state >= J_LIST)
		i += call_json_byte(c, c->hold.data[i]);
	if (c->named)
		call_emit_pending(c);
	drop(c, i);
	return i > 0;
}

llmc_status
llmc_calls_feed(llmc_calls *c, const char *text, size_t n, bool last, llmc_piece_fn fn, void *user,
                llmc_error *err)
{
	c->fn = fn;
	c->user = user;
	strbuf_add(&c->hold, text, n);
	while (c->hold.len && step(c, last))
		;
	if (last && c->state != AT_TEXT && c->state != AT_REASONING && c->state != AT_BETWEEN &&
	    c->state != AT_CLOSE) {
		/* incomplete output: a named call stays a call with the arguments it has; without a
		 * name it is text, or after other calls it is dropped */
		if (c->named) {
			call_end(c);
		} else if (c->call < 0) {
			emit_text(c, c->raw_at, strbuf_str(&c->raw), c->raw.len);
			emit_text(c, c->gone, strbuf_str(&c->hold), c->hold.len);
		}
		c->state = AT_TEXT;
	}
	if (c->hold.failed || c->raw.failed || c->word.failed || c->early.failed || c->out.failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
	return LLMC_OK;
}

/* Returns whether s ends with the marker, ignoring whitespace. */
static bool
ends_with(const char *s, size_t n, ByteSpan mark)
{
	while (n && is_blank(s[n - 1]))
		n--;
	return mark.n && n >= mark.n && memcmp(s + n - mark.n, mark.s, mark.n) == 0;
}

/* Loads the format row; returns an error if memory runs out. */
static llmc_status
read_row(llmc_calls *c, const llmc_tokenizer *t, llmc_error *err)
{
	if (setjmp(c->arena.oom))
		return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
	TRY(call_row(t, &c->arena, &c->row, err));
	ByteSpan mark = core(c->row.section[0] ? c->row.section[0] : c->row.open);
	c->mark = mark.n && !(c->row.bare && c->row.section[0])
	              ? arena_strndup(&c->arena, mark.s, mark.n)
	              : NULL;
	for (int i = 0; i < 2 && c->row.think[0] && c->row.think[1]; i++) {
		mark = core(c->row.think[i]);
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
	ByteSpan begun = core(c->row.think[2]); /* optional text after the opening marker */
	while (n_prompt && is_blank(prompt[n_prompt - 1]))
		n_prompt--;
	if (ends_with(prompt, n_prompt, begun))
		n_prompt -= begun.n;
	c->in_prompt = ends_with(prompt, n_prompt, core(c->row.think[0]));
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

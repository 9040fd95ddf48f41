/* Parses an output as it is generated into text, reasoning and tool calls. Arguments are passed on
 * as the model writes them. Text that may be the beginning of a marker is held back. If it turns
 * out not to be a call it is text, never an error. */
#include <string.h>

#include "base/json.h"
#include "text/tool_calls.h"
#include "text/tool_calls_internal.h"

static size_t
begins(ByteSpan mark, const Strbuf *h)
{
	size_t n = h->len < mark.n ? h->len : mark.n;

	return mark.n && memcmp(strbuf_str(h), mark.s, n) == 0 ? n : 0;
}

/* Matches a marker at h, allowing any amount of whitespace where the marker has some. Returns 2:
 * complete, with *len bytes; 1: all of h matches, and more input is needed; 0: no match. */
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

/* Finds a parameter of the tool at h that one of the marks follows. *n_key: length of the
 * parameter; *len: length including the mark; *which: index of the mark. Returns 2: found, 1: more
 * input is needed, 0: none. */
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
		call_drop(c, n);
}

/* Finds the text or reasoning before the first marker. *at: index of the marker, -1: none. Returns
 * false if more input is needed. */
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
		     k++) /* the input may end with the beginning of a marker */
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

	if (r->bare && !c->said) { /* the output is nothing but an object */
		skip_blanks(c);
		ByteSpan also = call_core(r->bare);
		size_t k = begins(also, &c->hold);
		if (k && k == also.n) {
			call_drop(c, k);
			return true;
		}
		if (k && !last)
			return false;
		if (c->hold.len && c->hold.data[0] == '{' && c->tools && r->body == BODY_JSON) {
			call_begin(c, "", 0);
			return true;
		}
		if (c->hold.len && c->hold.data[0] == '[' && c->tools && r->body == BODY_LITERALS) {
			call_begin(c, "[", 1);
			call_drop(c, 1);
			return true;
		}
	}
	mark[n++] = call_core(r->think[0]);
	mark[n++] = c->tools && !r->bare ? call_core(r->section[0]) : (ByteSpan){ 0 };
	mark[n++] = c->tools ? call_core(r->open) : (ByteSpan){ 0 };
	for (int i = 0; i < r->n_also; i++)
		mark[n++] = c->tools ? call_core(r->also[i]) : (ByteSpan){ 0 };
	for (int i = 0; i < r->n_drop; i++)
		mark[n++] = call_core(r->drop[i]);
	if (!up_to(c, mark, n, last, &len, &at))
		return false;
	/* Whitespace before a marker and at the end is held, because a call may follow. */
	size_t end = len;
	while ((at >= 0 || !last) && end && is_blank(c->hold.data[end - 1]))
		end--;
	if (at < 0 && end == 0 && len)
		return false;
	call_emit_text(c, c->gone, strbuf_str(&c->hold), at >= 0 ? end : end ? end : len);
	call_drop(c, at >= 0 ? len : end ? end : len);
	if (at < 0)
		return true;
	if (at == 0)
		c->state = AT_REASONING;
	else if (at == 1)
		c->state = AT_BETWEEN;
	else if (at < 3 + r->n_also)
		call_begin(c, mark[at].s, mark[at].n);
	call_drop(c, mark[at].n);
	return true;
}

static bool
reasoning_step(llmc_calls *c, bool last)
{
	ByteSpan mark = call_core(c->row.think[1]);
	size_t len;
	int at;

	if (!up_to(c, &mark, 1, last, &len, &at))
		return false;
	emit_piece(c, LLMC_PIECE_REASONING, strbuf_str(&c->hold), len);
	call_drop(c, len);
	if (at == 0) {
		call_drop(c, mark.n);
		c->state = AT_TEXT;
		c->trim = true;
	}
	return true;
}

static bool
between_step(llmc_calls *c, bool last)
{
	ByteSpan open = call_core(c->row.open), end = call_core(c->row.section[1]);

	skip_blanks(c);
	while (c->hold.len && c->hold.data[0] == ';' && c->row.bare) {
		call_drop(c, 1);
		skip_blanks(c);
	}
	if (!c->hold.len)
		return false;
	if ((c->row.bare || !open.n) && c->row.body == BODY_JSON && c->hold.data[0] == '{') {
		call_begin(c, "", 0);
		return true;
	}
	/* the separator of two calls in a list */
	if (c->row.body == BODY_LITERALS && c->hold.data[0] == ',') {
		call_drop(c, 1);
		return true;
	}
	size_t k = begins(open, &c->hold), m = begins(end, &c->hold);
	if ((k && k == open.n) ||
	    (!open.n && c->row.body == BODY_LITERALS && call_is_name(c->hold.data[0]))) {
		call_begin(c, open.n ? open.s : "", open.n);
		call_drop(c, k);
	} else if (m && m == end.n) {
		call_drop(c, m);
		c->state = AT_TEXT;
		c->trim = true;
	} else if (k == c->hold.len || m == c->hold.len) {
		if (!last)
			return false;
		call_drop(c, c->hold.len); /* the rest is an incomplete marker */
	} else {
		c->state = AT_TEXT;
		c->trim = true;
	}
	return true;
}

static bool
name_step(llmc_calls *c, bool last)
{
	ByteSpan end = call_core(c->row.name_until ? c->row.name_until : c->row.name_end);

	if (!end.n) { /* the name ends at the first character that no name can contain */
		skip_blanks(c);
		if (!c->hold.len)
			return false;
	}
	const char *h = strbuf_str(&c->hold), *p = NULL;
	/* names: length of a valid name; skip: bytes before the name */
	size_t names = 0, len = c->hold.len, skip = 0;
	ByteSpan before = call_core(c->row.name_from);

	if (before.n) { /* skips the number of the call */
		p = memmem(h, len < MAX_HEAD ? len : MAX_HEAD, before.s, before.n);
		if (!p && !last && len < MAX_HEAD)
			return false;
		skip = p ? (size_t)(p - h) + before.n : 0;
		h += skip;
		len -= skip;
	}
	while (names < len && call_is_name(h[names]))
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
	/* if there is no opening marker, only the name of a tool begins a call */
	if (c->row.body == BODY_LITERALS && (names != n || (c->row.bare && !call_tool(c, h, n)))) {
		call_fail(c);
		return true;
	}
	while (from < n && is_blank(h[from]))
		from++;
	size_t to = from;
	while (to < n && call_is_name(h[to]))
		to++;
	if (to == from || to - from > MAX_NAME) {
		call_fail(c);
		return true;
	}
	strbuf_clear(&c->word);
	strbuf_add(&c->word, h + from, to - from);
	c->now = call_tool(c, h + from, to - from);
	call_name(c, h + from, to - from);
	call_drop(c, skip + n + end.n);
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
	call_drop(c, i);
	if (end) {
		call_end(c);
		c->state = AT_CLOSE;
	}
	return end != 0;
}

/* Returns whether another argument or the end of the call can follow an end mark. h: input after
 * the mark. Returns 2: yes, 1: more input is needed, 0: no. */
static int
follows_value(const llmc_calls *c, const char *h, size_t n)
{
	const CallRow *r = &c->row;
	ByteSpan open = call_core(r->pair[0]), close = call_core(r->close);
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

/* Finds the mark that ends a value: the first one after which the call can go on. Returns NULL if
 * there is none, or with *wait if more input is needed. */
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

/* Emits a value without the line ends that belong to the format. If the value is one of the strings
 * that the schema lists, its line ends are kept. */
static void
put_pair(llmc_calls *c, ByteSpan key, const ToolParam *p, ByteSpan v, bool text)
{
	const CallRow *r = &c->row;
	/* if values are exact, only markers that contain a line end remove one */
	bool exact = r->pair[3] || (c->now && c->now->format);
	size_t mid = r->pair[1] ? strlen(r->pair[1]) : 0;
	bool before = v.n && *v.s == '\n' && (!exact || (mid && r->pair[1][mid - 1] == '\n')),
	     after = v.n > before && v.s[v.n - 1] == '\n' &&
	             (!exact || (r->pair[2] && *r->pair[2] == '\n'));

	for (int i = 3; i >= 0; i--) {
		bool cut = i & 1, end = i & 2;
		if ((cut && !before) || (end && !after))
			continue;
		if (call_is_word(p, v.s + cut, v.n - cut - end)) {
			call_pair(c, key, (ByteSpan){ v.s + cut, v.n - cut - end }, true);
			return;
		}
	}
	call_pair(c, key, (ByteSpan){ v.s + before, v.n - before - after }, text);
}

static bool
pair_step(llmc_calls *c, bool last)
{
	const CallRow *r = &c->row;
	ByteSpan open = call_core(r->pair[0]), end = call_core(r->pair[2]),
	         close = call_core(r->close),
	         mid[2] = { call_core(r->pair[1]), call_core(r->pair[3]) };
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
			call_drop(c, (size_t)(at - h) + end.n);
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

/* Returns the key of an argument that the tool does not list, without quotes; empty: it is not a
 * key. */
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

/* Parses key=value when its end has been received. A value without a key is dropped, because its
 * parameter is unknown. */
static bool
literal_step(llmc_calls *c)
{
	ByteSpan mid = call_core(c->row.pair[1]);

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
	call_drop(c, n + 1);
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
	ByteSpan close = call_core(c->row.close);

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
	call_drop(c, p ? (size_t)(p - h) + close.n : is == 1 ? c->hold.len : k);
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
	call_drop(c, i);
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
		/* The output is incomplete. A call with a name stays a call with the arguments
		 * received so far. A call without a name becomes text or, after other calls, is
		 * dropped. */
		if (c->named) {
			call_end(c);
		} else if (c->call < 0) {
			call_emit_text(c, c->raw_at, strbuf_str(&c->raw), c->raw.len);
			call_emit_text(c, c->gone, strbuf_str(&c->hold), c->hold.len);
		}
		c->state = AT_TEXT;
	}
	if (c->hold.failed || c->raw.failed || c->word.failed || c->early.failed || c->out.failed)
		return error_set(err, LLMC_E_MEMORY, "out of memory for an answer");
	return LLMC_OK;
}

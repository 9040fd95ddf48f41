/* response_template of tokenizer_config.json: a checkpoint's description of its output, as
 * transformers reads it. It is converted to a row. Descriptions that a row cannot express (a regex
 * that is more than a string with named groups, values of other types) are ignored; configs/formats
 * then applies. */
#include <string.h>

#include "base/json.h"
#include "text/tool_calls.h"

/* Returns the end of the group that begins at s, or NULL. */
static const char *
group_end(const char *s)
{
	int depth = 0;
	bool class = false;

	for (; *s; s++) {
		if (*s == '\\') {
			if (!*++s)
				return NULL;
		} else if (class) {
			class = *s != ']';
		} else if (*s == '[') {
			class = true;
			s += s[1] == ']' || (s[1] == '^' && s[2] == ']') ? 1 : 0;
		} else if (*s == '(') {
			depth++;
		} else if (*s == ')' && --depth == 0) {
			return s + 1;
		}
	}
	return NULL;
}

/* Returns the name of a group at s, or NULL. */
static const char *
group_name(const char *s)
{
	if (!strncmp(s, "(?P<", 4))
		return s + 4;
	return !strncmp(s, "(?<", 3) && s[3] != '=' && s[3] != '!' ? s + 3 : NULL;
}

/* Reads the literal text of a regex up to a group of this name (NULL: to the end), and sets *at
 * after the group. A run of whitespace becomes a line end, because models vary it and the parser
 * allows this. Returns false if the regex is not literal. */
static bool
plain_text(Arena *a, const char **at, const char *group, const char **out)
{
	Strbuf *b = arena_strbuf(a);
	const char *s = *at, *end;

	while (*s) {
		if (*s == '(') {
			const char *name = group_name(s);
			end = group_end(s);
			if (!end)
				return false;
			if (name && group && !strncmp(name, group, strlen(group)) &&
			    name[strlen(group)] == '>') {
				group = NULL;
				s = end;
				break;
			}
			if (strncmp(s, "(?:", 3) != 0 || *end != '?')
				return false;
			s = end + 1; /* optional text is skipped */
			continue;
		}
		char x = *s++;
		bool blank = x == ' ' || x == '\n', any = false;
		if (x == '\\') {
			x = *s++;
			any = x == 's';
			blank = any || x == 'n';
			if (any || x == 'n')
				x = '\n';
			else if (!x || strchr("0123456789", x) || (x >= 'a' && x <= 'z') ||
			         (x >= 'A' && x <= 'Z'))
				return false;
		} else if (strchr(".*+?[|^$)", x)) {
			return false;
		}
		if (*s && strchr("*+?", *s)) {
			if (!blank)
				return false;
			s += s[1] == '?' ? 2 : 1;
		} else if (any) {
			return false; /* a whitespace character that the regex does not specify */
		}
		strbuf_putc(b, x);
	}
	if (b->failed)
		arena_out(a);
	*out = arena_strndup(a, strbuf_str(b), b->len);
	*at = s;
	return !group;
}

/* Reads a marker: a string, the first of several strings, or a literal regex. NULL: it has another
 * form */
static const char *
mark_of(Arena *a, const json_t *field, const char *key, const char *pattern)
{
	const json_t *v = json_object_get(field, key);
	const char *text = json_string_value(json_is_array(v) ? json_array_get(v, 0) : v),
	           *at = json_string_value(json_object_get(field, pattern)), *out;

	if (text)
		return *text ? arena_strdup(a, text) : NULL;
	return at && plain_text(a, &at, NULL, &out) && *out ? out : NULL;
}

/* Returns name of "{content.name}"; NULL: the string has another form. */
static const char *
placeholder(Arena *a, const json_t *v, const char *root)
{
	const char *s = json_string_value(v);
	size_t n = s ? strlen(s) : 0, k = strlen(root);

	return n > k + 2 && s[0] == '{' && s[n - 1] == '}' && !strncmp(s + 1, root, k)
	           ? arena_strndup(a, s + 1 + k, n - k - 2)
	           : NULL;
}

static bool
is_text(const json_t *v, const char *text)
{
	return json_is_string(v) && !strcmp(json_string_value(v), text);
}

/* Converts the field of calls in the description to the fields of a row. */
static bool
calls_of(Arena *a, const json_t *field, CallRow *r)
{
	const json_t *how = json_object_get(field, "transform"),
	             *args = json_object_get(field, "content_args"),
	             *delims = json_object_get(args, "string_delims");
	const json_t *call =
	    json_object_get(how, "function") ? json_object_get(how, "function") : how;
	const json_t *name = json_object_get(call, "name"),
	             *arguments = json_object_get(call, "arguments");
	const char *content = json_string_value(json_object_get(field, "content")),
	           *at = json_string_value(json_object_get(field, "open_pattern"));
	bool each = json_is_true(json_object_get(field, "transform_each"));

	r->close = mark_of(a, field, "close", "close_pattern");
	if (!content || !name || !arguments)
		return false;
	/* the text before the arguments is the name of the tool */
	if (is_text(name, "{name}") && is_text(arguments, "{content}")) {
		if (!at || !plain_text(a, &at, "name", &r->open) ||
		    !plain_text(a, &at, NULL, &r->name_end))
			return false;
		if (!strcmp(content, "xml-inline")) {
			const char *tag = json_string_value(json_object_get(args, "tag_pattern"));
			r->body = BODY_PAIRS;
			return r->name_end[0] && tag && plain_text(a, &tag, "key", &r->pair[0]) &&
			       plain_text(a, &tag, "value", &r->pair[1]) &&
			       plain_text(a, &tag, NULL, &r->pair[2]) && r->pair[0][0] &&
			       r->pair[1][0] && r->pair[2][0];
		}
		if (strcmp(content, "json") != 0)
			return false;
		if (!json_is_true(json_object_get(args, "unquoted_keys"))) {
			r->body = BODY_NAMED;
			return r->name_end[0] != 0;
		}
		if (r->name_end[0]) /* the object begins directly after the name */
			return false;
		r->body = BODY_LITERALS;
		r->name_end = "{";
		r->pair[0] = "";
		r->pair[1] = ":";
		r->pair[2] = ",";
		const char *quote = json_string_value(json_array_get(json_array_get(delims, 0), 0)),
		           *end = json_string_value(json_array_get(json_array_get(delims, 0), 1));
		r->quote = quote && end && !strcmp(quote, end) ? arena_strdup(a, quote) : NULL;
		return r->quote && json_array_size(delims) == 1;
	}
	r->open = mark_of(a, field, "open", "open_pattern");
	r->key[0] = placeholder(a, name, each ? "" : "content.");
	r->key[1] = placeholder(a, arguments, each ? "" : "content.");
	r->body = each ? BODY_ARRAY : BODY_JSON;
	return r->open && r->key[0] && r->key[1] && !strcmp(content, "json");
}

static bool
same(const char *a, const char *b)
{
	return a && b && !strcmp(a, b);
}

void
call_row_own(const char *text, Arena *a, CallRow *row)
{
	static const char *const thoughts[] = { "reasoning_content", "thinking", "reasoning" };
	json_error_t why;
	const json_t *root = json_read(a, text, strlen(text), 0, &why),
	             *fields = json_object_get(root, "fields"), *f = NULL;
	CallRow r = { .name = "response_template" };
	const json_t *version = json_object_get(root, "version");

	if (version && json_integer_value(version) != 1)
		return;
	for (int i = 0; i < 3 && !f; i++)
		f = json_object_get(fields, thoughts[i]);
	const char *open = mark_of(a, f, "open", "open_pattern"),
	           *close = mark_of(a, f, "close", "close_pattern");
	if (open && close) {
		row->think[0] = open;
		row->think[1] = close;
	}
	/* if a row of configs/formats has the same opening marker, that row is used, because it
	 * also has separators and variants */
	if (!calls_of(a, json_object_get(fields, "tool_calls"), &r) ||
	    (r.body == row->body && same(r.open, row->open)))
		return;
	r.think[0] = row->think[0];
	r.think[1] = row->think[1];
	f = json_object_get(fields, "content");
	const char *marks[] = { mark_of(a, f, "open", "open_pattern"),
		                mark_of(a, f, "close", "close_pattern") };
	for (int i = 0; i < 2; i++)
		if (marks[i])
			r.drop[r.n_drop++] = marks[i];
	r.to_close = r.body == BODY_PAIRS;
	*row = r;
}

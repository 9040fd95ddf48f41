/* Applies the table of request fields, serve/fields.def. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "llmc.h"
#include "serve/dialects/fields.h"

typedef enum FieldState {
	FIELD_DONE,
	FIELD_COPIED,
	FIELD_MADE,
	FIELD_ALIAS,
	FIELD_REFUSED
} FieldState;

typedef struct FieldRow {
	int routes;
	FieldState state;
	const char *name; /* path in the client's body */
	/* field of the chat body, or for an alias the name of the field itself; NULL: none */
	const char *chat;
	const char *harmless; /* values that disable a refused field, separated by '|' */
	const char *advice;   /* sentence about what to use instead of a refused field */
} FieldRow;

enum { /* names without prefix, for the rows */
#define ROUTES(set, name, paths) set = FIELDS_##set,
#include "serve/field_routes.def"
#undef ROUTES
};

/* Fields that are ignored, or that a route reads by itself, need no row at run time. */
#define DONE(routes, name)
#define IGNORED(routes, name, why)
#define COPIED(routes, name, chat) { routes, FIELD_COPIED, name, chat, NULL, NULL },
#define MADE(routes, name, chat) { routes, FIELD_MADE, name, chat, NULL, NULL },
#define ALIAS(routes, name, own) { routes, FIELD_ALIAS, name, own, NULL, NULL },
#define REFUSED(routes, name, harmless, advice)                                                    \
	{ routes, FIELD_REFUSED, name, NULL, harmless, advice },
static const FieldRow table[] = {
#include "serve/fields.def"
};

enum { N_TABLE = sizeof table / sizeof *table };
enum { MAX_PATH = 64 };
static const int ollama = OLLAMA_CHAT | OLLAMA_GENERATE;

/* Find the value of a path; NULL: absent. */
static json_t *
value_at(const json_t *o, const char *path)
{
	char key[MAX_PATH];

	for (const char *dot; (dot = strchr(path, '.')) != NULL; path = dot + 1) {
		snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
		o = json_object_get(o, key);
	}
	return json_object_get(o, path);
}

/* ---- refusals ---- */

static bool
is_word(const json_t *v, const char *word, size_t n)
{
	char *end;

	if (json_is_string(v))
		return json_string_length(v) == n && !memcmp(json_string_value(v), word, n);
	if (json_is_boolean(v))
		return n == (json_is_true(v) ? 4 : 5) &&
		       !memcmp(word, json_is_true(v) ? "true" : "false", n);
	double x = strtod(word, &end);
	return json_is_number(v) && end == word + n && json_number_value(v) == x;
}

static bool
is_harmless(const json_t *v, const char *words)
{
	if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)) ||
	    (json_is_array(v) && !json_array_size(v)) ||
	    (json_is_object(v) && !json_object_size(v)))
		return true;
	if (json_array_size(v) == 1)
		v = json_array_get(v, 0);
	while (*words) {
		size_t n = strcspn(words, "|");
		if (is_word(v, words, n))
			return true;
		words += n + (words[n] == '|');
	}
	return false;
}

bool
fields_check(int route, const json_t *body, Problem *p)
{
	for (const FieldRow *f = table; f < table + N_TABLE; f++) {
		if (!(f->routes & route) || f->state != FIELD_REFUSED ||
		    is_harmless(value_at(body, f->name), f->harmless))
			continue;
		if (route == MESSAGES)
			problem(p, 400, f->name, "%s: not supported by this server. %s", f->name,
			        f->advice);
		else if (route & (ollama | OLLAMA_EMBED))
			problem(p, 400, f->name, "%s is not supported by this server. %s", f->name,
			        f->advice);
		else
			problem(p, 400, f->name,
			        "The '%s' parameter is not supported by this server. %s", f->name,
			        f->advice);
		p->code = "unsupported_parameter";
		return false;
	}
	return true;
}

/* ---- translation to a chat body ---- */

static void
copy(json_t *v, json_t *chat, const char *key)
{
	if (v && !json_is_null(v))
		json_object_set(chat, key, v);
}

void
fields_copy(int route, const json_t *body, json_t *chat)
{
	size_t n_option;
	const llmc_option *option = llmc_sampling_options(&n_option);
	const json_t *from = route & ollama      ? json_object_get(body, "options")
	                     : route & RESPONSES ? body
	                                         : NULL;

	for (const llmc_option *k = option; from && k < option + n_option; k++) {
		json_t *alias = route & ollama && k->alias ? json_object_get(from, k->alias) : NULL;
		copy(alias ? alias : json_object_get(from, k->name), chat, k->name);
	}
	for (const FieldRow *f = table; f < table + N_TABLE; f++)
		if (f->routes & route && f->state == FIELD_COPIED)
			copy(value_at(body, f->name), chat, f->chat);
}

/* Set the value of a path of at most two names. Creates or copies the object in between, so that
 * the caller's is unchanged. */
static bool
set_at(json_t *o, const char *path, json_t *v)
{
	const char *dot = strchr(path, '.');
	char key[MAX_PATH];

	if (!dot)
		return json_object_set(o, path, v) == 0;
	snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
	json_t *old = json_object_get(o, key),
	       *inner = json_is_object(old) ? json_copy(old) : json_object();
	return inner && json_object_set(inner, dot + 1, v) == 0
	           ? json_object_set_new(o, key, inner) == 0
	           : (json_decref(inner), false);
}

json_t *
fields_aliases(int route, const json_t *body)
{
	json_t *out = NULL;

	for (const FieldRow *f = table; f < table + N_TABLE; f++) {
		if (!(f->routes & route) || f->state != FIELD_ALIAS)
			continue;
		json_t *v = value_at(body, f->name), *own = value_at(body, f->chat);
		if (!v || json_is_null(v) || (own && !json_is_null(own)))
			continue;
		out = out ? out : json_copy((json_t *)(uintptr_t)body);
		if (!out || !set_at(out, f->chat, v)) {
			json_decref(out);
			return NULL;
		}
	}
	return out ? out : json_incref((json_t *)(uintptr_t)body);
}

/* Report whether s begins with the word, and one of `ends` or the end of s follows. */
static bool
begins_with_word(const char *s, const char *word, const char *ends)
{
	size_t n = strlen(word);

	return !strncmp(s, word, n) && strchr(ends, s[n]); /* strchr also accepts the end of s */
}

/* Find the client's name of the chat field at s. Returns the length of the chat field's name; 0:
 * the names are equal. */
static size_t
name_at(int route, const char *s, const char *ends, char name[MAX_PATH])
{
	size_t n_option;
	const llmc_option *option = llmc_sampling_options(&n_option);

	for (const FieldRow *f = table; f < table + N_TABLE; f++)
		if (f->routes & route && f->chat && f->state != FIELD_ALIAS &&
		    begins_with_word(s, f->chat, ends)) {
			snprintf(name, MAX_PATH, "%s", f->name);
			return strlen(f->chat);
		}
	for (const llmc_option *k = option; route & ollama && k < option + n_option; k++)
		if (begins_with_word(s, k->name, ends)) {
			snprintf(name, MAX_PATH, "options.%s", k->alias ? k->alias : k->name);
			return strlen(k->name);
		}
	return 0;
}

void
fields_rename(int route, Problem *p)
{
	char name[MAX_PATH];
	size_t n = name_at(route, p->param, ".[", name);
	Strbuf b = { 0 };

	if (n) {
		strbuf_puts(&b, name);
		strbuf_puts(&b, p->param + n);
		snprintf(p->param, sizeof p->param, "%s", strbuf_str(&b));
		strbuf_clear(&b);
	}
	for (const char *s = p->text; *s;) {
		strbuf_putc(&b, *s++);
		if (s[-1] == '\'' && (n = name_at(route, s, ".['", name)) > 0) {
			strbuf_puts(&b, name);
			s += n;
		}
	}
	if (!b.failed)
		snprintf(p->text, sizeof p->text, "%.*s",
		         (int)utf8_whole(strbuf_str(&b),
		                         b.len < sizeof p->text ? b.len : sizeof p->text - 1),
		         strbuf_str(&b));
	strbuf_release(&b);
}

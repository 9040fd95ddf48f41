/* Tools of a chat. A grammar constrains calls. If a call is required, the grammar applies from the
 * first token. If calls are optional, it applies from the call mark on. If the request has its own
 * grammar, both are joined. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "serve/dialects/constraints.h"
#include "serve/dialects/chat_tools.h"

enum { MAX_NAME = 256 };

/* Report whether v is a name that every call format can write and read without escapes. */
static bool
is_name(const json_t *v)
{
	static const char chars[] =
	    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
	size_t n = json_string_length(v);

	return n && n <= MAX_NAME && strspn(json_string_value(v), chars) == n;
}

static const json_t *
tool_named(const json_t *tools, const char *name)
{
	json_t *tool;
	size_t i;

	json_array_foreach ((json_t *)(uintptr_t)tools, i, tool)
		if (!strcmp(json_string_value(
		                json_object_get(json_object_get(tool, "function"), "name")),
		            name))
			return tool;
	return NULL;
}

/* Check one tool. names: names of the tools before it, to which its own is added. */
static bool
check_tool(const json_t *tool, json_t *names, size_t i, Problem *p)
{
	const char *type = json_string_value(json_object_get(tool, "type"));
	const json_t *f = json_object_get(tool, "function"), *name = json_object_get(f, "name"),
	             *parameters = json_object_get(f, "parameters");
	const json_t *strict = json_object_get(f, "strict"),
	             *about = json_object_get(f, "description");

	if (!type || strcmp(type, "function") != 0 || !json_is_string(name))
		return problem(p, 400, "tools",
		               "Invalid 'tools[%zu]': expected an object of type 'function' with a "
		               "'function' that has a 'name'.",
		               i);
	if (!is_name(name))
		return problem(p, 400, "tools",
		               "Invalid 'tools[%zu].function.name': expected 1 to %d letters, "
		               "digits, underscores, dashes and dots, but got '%.150s'.",
		               i, MAX_NAME, json_string_value(name));
	if (json_object_get(names, json_string_value(name)))
		return problem(p, 400, "tools",
		               "Invalid 'tools[%zu].function.name': there is a tool '%s' already.",
		               i, json_string_value(name));
	if (about && !json_is_null(about) && !json_is_string(about))
		return problem(p, 400, "tools",
		               "Invalid type for 'tools[%zu].function.description': expected a "
		               "string, but got %s instead.",
		               i, json_type_name(about));
	if (strict && !json_is_null(strict) && !json_is_boolean(strict))
		return problem(p, 400, "tools",
		               "Invalid type for 'tools[%zu].function.strict': expected a boolean, "
		               "but got %s instead.",
		               i, json_type_name(strict));
	if (parameters && !json_is_null(parameters) && !json_is_object(parameters))
		return problem(p, 400, "tools",
		               "Invalid 'tools[%zu].function.parameters': expected a JSON schema, "
		               "but got %s instead.",
		               i, json_type_name(parameters));
	return json_object_set_new(names, json_string_value(name), json_true()) == 0 ||
	       problem_memory(p);
}

/* Read {"mode": "auto" | "required", "tools": [...]}: keep the listed tools only. */
static bool
read_allowed(const json_t *allowed, ToolUse *use, Problem *p)
{
	const json_t *mode = json_object_get(allowed, "mode"),
	             *list = json_object_get(allowed, "tools");
	const char *word = json_string_value(mode);
	json_t *some, *one;
	size_t i;

	if (mode && !json_is_null(mode) &&
	    !(word && (!strcmp(word, "auto") || !strcmp(word, "required"))))
		return problem(
		    p, 400, "tool_choice",
		    "Invalid 'tool_choice': the mode of 'allowed_tools' is 'auto' or 'required'.");
	if (json_array_size(list) == 0)
		return problem(
		    p, 400, "tool_choice",
		    "Invalid 'tool_choice': 'allowed_tools' has a list of 'tools', at least one.");
	some = json_array();
	json_array_foreach ((json_t *)(uintptr_t)list, i, one) {
		const char *name =
		    json_string_value(json_object_get(json_object_get(one, "function"), "name"));
		const json_t *tool = name ? tool_named(use->tools, name) : NULL;
		if (!tool || json_array_append(some, (json_t *)(uintptr_t)tool) != 0) {
			json_decref(some);
			return problem(p, 400, "tool_choice",
			               "Invalid 'tool_choice': 'allowed_tools' names a tool that "
			               "'tools' does not have.");
		}
	}
	json_decref(use->tools);
	use->tools = some;
	use->forced = word && !strcmp(word, "required");
	return true;
}

static bool
read_choice(const json_t *choice, ToolUse *use, bool *none, Problem *p)
{
	const char *word = json_string_value(choice),
	           *type = json_string_value(json_object_get(choice, "type"));

	if (!choice || json_is_null(choice) || (word && !strcmp(word, "auto")))
		return true;
	if (word && !strcmp(word, "none"))
		return *none = true;
	if (word && (!strcmp(word, "required") || !strcmp(word, "any")))
		return use->forced = true;
	if (type && !strcmp(type, "allowed_tools"))
		return read_allowed(json_object_get(choice, "allowed_tools"), use, p);
	const char *name =
	    json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
	if (!name)
		return problem(p, 400, "tool_choice",
		               "Invalid 'tool_choice': expected 'none', 'auto', 'required' or an "
		               "object with a 'function' that has a 'name'.");
	if (!tool_named(use->tools, name))
		return problem(p, 400, "tool_choice",
		               "Invalid 'tool_choice': there is no tool '%.100s'.", name);
	use->only = name;
	use->one = true; /* with a named function there is exactly one call */
	return use->forced = true;
}

static bool
is_grammar(const json_t *format)
{
	const char *type = json_string_value(json_object_get(format, "type")),
	           *syntax = json_string_value(json_object_get(format, "syntax"));

	return type && !strcmp(type, "grammar") && syntax &&
	       (!strcmp(syntax, "lark") || !strcmp(syntax, "regex")) &&
	       json_is_string(json_object_get(format, "definition"));
}

/* Move grammars of custom tools, {"format": {"type": "grammar", ...}} next to a function, from
 * *tools to use->formats. The prompt does not show them. */
static bool
take_formats(json_t **tools, ToolUse *use, Problem *p)
{
	json_t *out = json_array(), *tool;
	bool ok = out;
	size_t i;

	json_array_foreach (*tools, i, tool) {
		json_t *own = json_object_get(tool, "format"),
		       *format = is_grammar(own) ? own : NULL,
		       *bare = format ? json_copy(tool) : json_incref(tool);
		if (format && bare) {
			json_object_del(bare, "format");
			use->formats = use->formats ? use->formats : json_object();
			ok = ok && json_object_set(use->formats,
			                           json_string_value(json_object_get(
			                               json_object_get(tool, "function"), "name")),
			                           format) == 0;
		}
		ok = ok && json_array_append_new(out, bare) == 0;
	}
	json_decref(*tools);
	*tools = out;
	return ok || problem_memory(p);
}

bool
tools_read(const json_t *o, ToolUse *use, Problem *p)
{
	json_t *tools = json_object_get(o, "tools"), *choice = json_object_get(o, "tool_choice"),
	       *tool;
	bool parallel = true, none = false;
	size_t i;

	*use = (ToolUse){ 0 };
	if (!field_bool(o, "parallel_tool_calls", &parallel, p))
		return false;
	if (tools && !json_is_null(tools) && !json_is_array(tools))
		return problem(p, 400, "tools",
		               "Invalid type for 'tools': expected an array, but got %s instead.",
		               json_type_name(tools));
	json_t *names = json_object();
	bool ok = names || problem_memory(p);
	json_array_foreach (tools, i, tool) {
		ok = ok && check_tool(tool, names, i, p);
		use->strict |=
		    json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
	}
	json_decref(names);
	if (!ok)
		return false;
	use->tools = json_array_size(tools) ? json_incref(tools) : NULL;
	use->one = !parallel;
	ok = (!use->tools || take_formats(&use->tools, use, p)) &&
	     read_choice(choice, use, &none, p);
	if (ok && use->forced && !use->tools)
		ok = problem(p, 400, "tool_choice", "Invalid 'tool_choice': there are no tools.");
	if (!ok || none)
		tools_release(use);
	return ok;
}

void
tools_release(ToolUse *use)
{
	json_decref(use->tools);
	json_decref(use->formats);
	use->tools = use->formats = NULL;
}

/* ---- templates without tool support ---- */

static bool
add_tool(Strbuf *b, const json_t *tool)
{
	char *text = json_dumps_numbers(json_object_get(tool, "function"), JSON_COMPACT);

	strbuf_puts(b, text ? text : "");
	strbuf_putc(b, '\n');
	free(text);
	return text != NULL;
}

/* Convert calls and results of earlier turns to plain messages. */
static json_t *
plain_message(const json_t *m)
{
	const char *role = json_string_value(json_object_get(m, "role")),
	           *content = json_string_value(json_object_get(m, "content"));
	json_t *calls = json_object_get(m, "tool_calls"), *call;
	Strbuf b = { 0 };
	size_t i;

	if (!strcmp(role, "tool") || !strcmp(role, "function")) {
		strbuf_printf(&b, "<tool_response>\n%s\n</tool_response>", content ? content : "");
		role = "user";
	} else if (json_array_size(calls)) {
		strbuf_puts(&b, content ? content : "");
		json_array_foreach (calls, i, call) {
			const json_t *f = json_object_get(call, "function");
			char *arguments = json_dumps_numbers(json_object_get(f, "arguments"),
			                                     JSON_COMPACT | JSON_ENCODE_ANY);
			strbuf_printf(
			    &b,
			    "%s<tool_call>\n{\"name\": \"%s\", \"arguments\": %s}\n</tool_call>",
			    b.len ? "\n" : "", json_string_value(json_object_get(f, "name")),
			    arguments ? arguments : "{}");
			free(arguments);
		}
	} else {
		return json_incref((json_t *)(uintptr_t)m);
	}
	json_t *out =
	    b.failed ? NULL : json_pack("{s:s, s:s}", "role", role, "content", strbuf_str(&b));
	strbuf_release(&b);
	return out;
}

json_t *
messages_with_tools(ServedModel *model, const json_t *messages, const json_t *tools)
{
	llmc_calls *c = NULL;
	json_t *out = json_array(), *m, *tool;
	Strbuf list = { 0 }, text = { 0 };
	const char *system;
	size_t i;
	bool ok = out && llmc_calls_open(model->back.tok, "", 0, NULL, &c, NULL) == LLMC_OK;

	system = ok ? llmc_calls_mark(c, LLMC_MARK_SYSTEM) : NULL;
	json_array_foreach ((json_t *)(uintptr_t)tools, i, tool)
		ok = ok && add_tool(&list, tool);
	if (list.len)
		list.data[--list.len] = 0;
	const char *place = system ? strstr(system, "{tools}") : NULL;
	const json_t *first = json_array_get(messages, 0);
	bool has_system =
	    first && !strcmp(json_string_value(json_object_get(first, "role")), "system");
	if (has_system)
		strbuf_printf(&text, "%s\n\n",
		              json_string_value(json_object_get(first, "content")));
	if (place) {
		strbuf_add(&text, system, (size_t)(place - system));
		strbuf_puts(&text, strbuf_str(&list));
		strbuf_puts(&text, place + strlen("{tools}"));
	}
	ok = ok && !list.failed && !text.failed &&
	     json_array_append_new(
	         out, json_pack("{s:s, s:s}", "role", "system", "content", strbuf_str(&text))) == 0;
	json_array_foreach ((json_t *)(uintptr_t)messages, i, m)
		if (i || !has_system)
			ok = ok && json_array_append_new(out, plain_message(m)) == 0;
	llmc_calls_close(c);
	strbuf_release(&list);
	strbuf_release(&text);
	if (!ok) {
		json_decref(out);
		return NULL;
	}
	return out;
}

/* ---- the answer ---- */

static char *
rules(const llmc_calls *c, const char *only, int flags)
{
	size_t cap = 4096, need = 0;

	for (;;) {
		char *buf = malloc(cap);
		llmc_status status =
		    buf ? llmc_calls_rules(c, only, flags, buf, cap, &need, NULL) : LLMC_E_MEMORY;
		if (status == LLMC_OK)
			return buf;
		free(buf);
		if (status != LLMC_E_RANGE || need < cap)
			return NULL;
		cap = need + 1;
	}
}

/* Apply the grammar only after these strings; first NULL: from the start of the answer. */
static bool
wait_for(Generation *g, const char *first, const char *second, Problem *p)
{
	const char *text[] = { first, second };
	int n = 0;

	for (int i = 0; i < 2; i++)
		if (text[i] && !(g->after[n++] = strdup(text[i])))
			return problem_memory(p);
	g->ep.grammar_after = n ? (const char *const *)g->after : NULL;
	return true;
}

/* Return the grammar of calls. With an optional call and a constraint of the request, the answer
 * matches one or the other. NULL: this model has no call format. */
static char *
forced_text(const Generation *g, const ToolUse *use, const llmc_calls *c, int flags, Problem *p)
{
	char *text = rules(c, use->only, flags);

	if (!text || use->forced || !g->grammar)
		return text;
	Strbuf both = { 0 };
	strbuf_printf(&both, "{\"alt\":[%s,%s]}", strbuf_str(&g->form), text);
	free(text);
	if (both.failed) {
		strbuf_release(&both);
		problem_memory(p);
		return NULL;
	}
	return both.data;
}

/* Compile the grammar of calls. If a schema does not compile, the arguments may be any object; with
 * strict tools this is an error. */
static bool
force(Generation *g, const ToolUse *use, const llmc_calls *c, Problem *p)
{
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);
	const char *mark = llmc_calls_mark(c, LLMC_MARK_CALL),
	           *end = llmc_calls_mark(c, LLMC_MARK_REASONING_END);
	bool free_text = !use->forced && !g->grammar;
	int flags = (use->one ? LLMC_CALLS_ONE : 0) | (free_text ? LLMC_CALLS_BEGUN : 0);

	/* without a mark the beginning of a call is unknown, so no grammar applies */
	if (free_text && !mark)
		return true;
	opt.strict = use->strict;
	opt.additional = LLMC_ADDITIONAL_CLOSED;
	opt.compact = !use->forced && g->compact;
	for (int turn = 0; turn < 2; turn++) {
		char *text = forced_text(g, use, c, flags | (turn ? LLMC_CALLS_FREE : 0), p);
		llmc_grammar *made = NULL;
		if (!text && p->status)
			return false;
		if (!text && use->forced)
			return problem(
			    p, 400, "tool_choice",
			    "This model has no known call format: a call cannot be required.");
		/* the model has no call format: the answer is text, under the request's constraint
		 * if there is one */
		if (!text)
			return g->grammar ? wait_for(g, end, NULL, p) : true;
		bool ok = grammar_of(g->model, LLMC_GRAMMAR_PARTS, text, strlen(text), &opt,
		                     "tools", &made, p);
		free(text);
		if (ok) {
			llmc_grammar_close(g->grammar);
			g->grammar = made;
			break;
		}
		if (use->strict || turn || p->status != 400)
			return false;
		*p = (Problem){ 0 };
	}
	g->calls_only = use->forced;
	return wait_for(g, end, free_text ? mark : NULL, p);
}

/* Return the tools for llmc_calls, with their grammars, as JSON. NULL with a Problem. */
static char *
tools_text(Generation *g, const ToolUse *use, Problem *p)
{
	json_t *all = json_array(), *tool;
	llmc_grammar_options opt = LLMC_INIT(llmc_grammar_options);
	bool ok = all;
	size_t i;

	json_array_foreach (use->tools, i, tool) {
		const char *name =
		    json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
		json_t *format = json_object_get(use->formats, name),
		       *with = format ? json_copy(tool) : json_incref(tool);
		const json_t *text = json_object_get(format, "definition");
		const char *syntax = json_string_value(json_object_get(format, "syntax"));
		if (format && ok) { /* report a mistake in the format as a mistake of its tool */
			llmc_grammar *made = NULL;
			char param[400];
			snprintf(param, sizeof param, "%s.format.definition", name);
			ok = grammar_of(g->model,
			                !strcmp(syntax, "lark") ? LLMC_GRAMMAR_LARK
			                                        : LLMC_GRAMMAR_REGEX,
			                json_string_value(text), json_string_length(text), &opt,
			                param, &made, p);
			llmc_grammar_close(made);
			if (!ok)
				snprintf(p->param, sizeof p->param, "tools");
		}
		ok = ok && with && (!format || json_object_set(with, "format", format) == 0) &&
		     json_array_append(all, with) == 0;
		json_decref(with);
	}
	char *out = ok ? json_dumps_numbers(all, JSON_COMPACT) : NULL;
	json_decref(all);
	if (!out && !p->status)
		problem_memory(p);
	return out;
}

bool
tools_begin(Generation *g, const ToolUse *use, const char *prompt, size_t n, Problem *p)
{
	if (!use->tools && (!g->dialect->pieces || atomic_load(&g->model->plain_chat)))
		return true; /* no readers are needed: answers of this model are text only */
	char *tools = use->tools ? tools_text(g, use, p) : NULL;
	llmc_error err = { 0 };

	if (use->tools && !tools)
		return false;
	for (int32_t i = 0; i < g->n; i++) {
		llmc_status status = llmc_calls_open(g->model->back.tok, prompt, n, tools,
		                                     &g->choice[i].calls, &err);
		if (status != LLMC_OK) {
			free(tools);
			return problem_of(p, status, 500, NULL, "%s", err.text);
		}
	}
	free(tools);
	llmc_calls *first = g->choice[0].calls;
	if (llmc_calls_reasoning(first, g->reasoning))
		/* stop strings apply to the answer only, not to the reasoning */
		g->ep.stop_ignore = g->reasoning;
	if (use->tools) {
		g->er.show_special = true; /* call marks may be special tokens */
		return force(g, use, first, p);
	}
	if (!llmc_calls_mark(first, LLMC_MARK_REASONING)) {
		/* no reasoning and no calls: all output is text */
		for (int32_t i = 0; i < g->n; i++) {
			llmc_calls_close(g->choice[i].calls);
			g->choice[i].calls = NULL;
		}
		atomic_store(&g->model->plain_chat, true);
		return true;
	}
	g->er.show_special = true;
	if (g->grammar && !wait_for(g, llmc_calls_mark(first, LLMC_MARK_REASONING_END), NULL, p))
		return false;
	if (g->join_reasoning && !g->hide_reasoning) {
		g->marks = first; /* owns the strings of g->reasoning */
		g->choice[0].calls = NULL;
		for (int32_t i = 1; i < g->n; i++) {
			llmc_calls_close(g->choice[i].calls);
			g->choice[i].calls = NULL;
		}
	}
	return true;
}

/* Settings of a long-running command from three sources, weakest first: a YAML file, environment
 * variables, the command line. Settings of the first two are inserted as options before those of
 * the command line, so all are parsed and checked in the same way. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "cli/cli.h"

typedef struct ArgList {
	char **v;
	int n, cap;
} ArgList;

static void
push(ArgList *a, char *text)
{
	if (a->n + 1 >= a->cap) {
		a->cap = a->cap ? 2 * a->cap : 64;
		char **v = realloc(a->v, (size_t)a->cap * sizeof *v);
		if (!v)
			text = NULL;
		else
			a->v = v;
	}
	if (!text) {
		complain("out of memory");
		exit(EXIT_MACHINE);
	}
	a->v[a->n++] = text;
	a->v[a->n] = NULL;
}

static const Opt *
find(const Opt *opt, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (opt[i].kind != OPT_GROUP && !strcmp(opt[i].name, name))
			return &opt[i];
	return NULL;
}

/* Add one setting; `where` is its origin for messages. */
static void
setting(ArgList *a, const Opt *o, const char *value, const char *where)
{
	char *text = NULL;

	if (o->kind == OPT_FLAG) {
		static const char *const yes[] = { "true", "1", "yes", "on" }, *const no[] = {
			"false", "0", "no", "off", ""
		};
		for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
			if (!strcasecmp(value, yes[i])) {
				if (asprintf(&text, "--%s", o->name) < 0)
					text = NULL;
				push(a, text);
				return;
			}
		for (size_t i = 0; i < sizeof no / sizeof *no; i++)
			if (!strcasecmp(value, no[i]))
				return;
		complain("%s: %s: expected true or false, found %s", where, o->name, value);
		exit(EXIT_INPUT);
	}
	if (asprintf(&text, "--%s=%s", o->name, value) < 0)
		text = NULL;
	push(a, text);
}

/* Read a flat mapping from option names to scalars, or to lists for options that may be
 * repeated. */
static void
from_file(ArgList *a, ArgList *model, const char *path, const Opt *opt, size_t n_opt)
{
	FILE *f = fopen(path, "rb");
	yaml_parser_t parser;
	yaml_event_t ev;
	const Opt *o = NULL;
	bool is_model = false, have_key = false;
	int depth = 0;
	char where[1200];

	if (!f) {
		complain("%s: %s", path, strerror(errno));
		exit(EXIT_INPUT);
	}
	if (!yaml_parser_initialize(&parser)) {
		complain("out of memory");
		exit(EXIT_MACHINE);
	}
	yaml_parser_set_input_file(&parser, f);
	for (bool end = false; !end;) {
		if (!yaml_parser_parse(&parser, &ev)) {
			complain("%s:%zu:%zu: %s", path, parser.problem_mark.line + 1,
			         parser.problem_mark.column + 1, parser.problem);
			exit(EXIT_INPUT);
		}
		snprintf(where, sizeof where, "%s:%zu", path, ev.start_mark.line + 1);
		switch (ev.type) {
		case YAML_MAPPING_START_EVENT:
			if (++depth > 1 || have_key) {
				complain("%s: expected a value, found a mapping; settings are a "
				         "flat list of NAME: VALUE",
				         where);
				exit(EXIT_INPUT);
			}
			break;
		case YAML_SEQUENCE_START_EVENT:
			if ((!is_model && (!o || o->kind != OPT_LIST)) || depth != 1) {
				complain("%s: a list is not allowed here", where);
				exit(EXIT_INPUT);
			}
			depth++;
			break;
		case YAML_SEQUENCE_END_EVENT:
			depth--;
			have_key = false;
			break;
		case YAML_SCALAR_EVENT: {
			char *text = (char *)ev.data.scalar.value;
			if (depth == 0) {
				complain("%s: expected NAME: VALUE lines", where);
				exit(EXIT_INPUT);
			}
			if (depth == 1 && !have_key) {
				for (char *c = text; *c; c++)
					if (*c == '_')
						*c = '-';
				is_model = !strcmp(text, "model");
				o = find(opt, n_opt, text);
				model->n = is_model ? 0 : model->n;
				if ((!o || !strcmp(text, "config")) && !is_model) {
					const char *near = opt_nearest(opt, n_opt, text);
					complain("%s: %s: no such setting; %s%s%s", where, text,
					         near ? "did you mean "
					              : "llmc serve --help lists them",
					         near ? near : "", near ? "?" : "");
					exit(EXIT_INPUT);
				}
				have_key = true;
				break;
			}
			if (is_model) {
				push(model, strdup(text));
			} else {
				setting(a, o, text, where);
			}
			if (depth == 1)
				have_key = false;
			break;
		}
		case YAML_MAPPING_END_EVENT:
			depth--;
			break;
		case YAML_ALIAS_EVENT:
			complain("%s: YAML aliases are not allowed here", where);
			exit(EXIT_INPUT);
		case YAML_STREAM_END_EVENT:
			end = true;
			break;
		case YAML_NO_EVENT:
		case YAML_STREAM_START_EVENT:
		case YAML_DOCUMENT_START_EVENT:
		case YAML_DOCUMENT_END_EVENT:
			break;
		}
		yaml_event_delete(&ev);
	}
	yaml_parser_delete(&parser);
	fclose(f);
}

char **
settings_merge(const char *prefix, const Opt *opt, size_t n_opt, int argc, char **argv, int *n_out,
               List *models)
{
	ArgList a = { 0 }, m = { 0 };
	const char *config = NULL;
	char name[128];

	if (opt_describing()) /* opt_describe needs only the table, not the user's settings */
		return argv;
	snprintf(name, sizeof name, "%sCONFIG", prefix);
	config = getenv(name);
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--"))
			break;
		if (!strncmp(argv[i], "--config=", 9))
			config = argv[i] + 9;
		else if (!strcmp(argv[i], "--config") && i + 1 < argc)
			config = argv[i + 1];
	}
	push(&a, argv[0]);
	if (config && *config)
		from_file(&a, &m, config, opt, n_opt);
	for (size_t i = 0; i < n_opt; i++) {
		if (opt[i].kind == OPT_GROUP)
			continue;
		snprintf(name, sizeof name, "%s%s", prefix, opt[i].name);
		for (char *c = name; *c; c++)
			*c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
		const char *value = getenv(name);
		if (value && strcmp(opt[i].name, "config") != 0 &&
		    strcmp(opt[i].name, "model") != 0)
			setting(&a, &opt[i], value, name);
	}
	snprintf(name, sizeof name, "%sMODEL", prefix);
	if (getenv(name)) {
		m.n = 0;
		push(&m, getenv(name));
	}
	*models = (List){ (const char **)(uintptr_t)m.v, (size_t)m.n };
	for (int i = 1; i < argc; i++)
		push(&a, argv[i]);
	*n_out = a.n;
	return a.v;
}

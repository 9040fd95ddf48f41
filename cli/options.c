/* Parses command lines by a table of options, and prints help from the same table. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "base/number.h"
#include "cli/cli.h"

const Command *const *commands;
size_t n_commands;

const Command *
command_find(const char *name)
{
	for (size_t i = 0; i < n_commands; i++)
		if (!strcmp(name, commands[i]->name))
			return commands[i];
	return NULL;
}

bool
list_add(List *l, const char *value)
{
	const char **v = realloc(l->v, (l->n + 2) * sizeof *v);

	if (!v)
		return false;
	v[l->n++] = value;
	v[l->n] = NULL;
	l->v = v;
	return true;
}

/* Return the spelling of an option on the command line. Rows of LLMC_SAMPLING_OPTIONS have names of
 * C fields, in which '_' becomes '-'. */
const char *
opt_dashed(const char *name, char buf[OPT_NAME_SIZE])
{
	snprintf(buf, OPT_NAME_SIZE, "%s", name);
	for (char *c = buf; *c; c++)
		*c = *c == '_' ? '-' : *c;
	return buf;
}

/* Write the default of a number, which is its value before parsing, if the help text does not give
 * it. */
void
opt_default_text(const Opt *o, char buf[OPT_DEFAULT_SIZE])
{
	char number[NUMBER_SIZE];

	*buf = 0;
	if (strchr(o->help, '['))
		return;
	if (o->kind == OPT_INT)
		snprintf(buf, OPT_DEFAULT_SIZE, " [%d]", *(const int32_t *)o->to);
	if (o->kind == OPT_U64)
		snprintf(buf, OPT_DEFAULT_SIZE, " [%llu]",
		         (unsigned long long)*(const uint64_t *)o->to);
	if (o->kind == OPT_FLOAT) {
		number_plain(number, *(const float *)o->to, 6);
		snprintf(buf, OPT_DEFAULT_SIZE, " [%s]", number);
	}
}

static void
print_help(const Command *cmd, const Opt *opt, size_t n_opt)
{
	printf("%s\n\nusage: llmc %s %s\n", cmd->summary, cmd->name, cmd->usage);
	for (size_t i = 0; i < n_opt; i++) {
		char left[96], name[64], letter[8] = "    ", own[OPT_DEFAULT_SIZE];
		if (opt[i].kind == OPT_GROUP) {
			printf("\n%s:\n", opt[i].name);
			continue;
		}
		if (opt[i].letter)
			snprintf(letter, sizeof letter, "-%c, ", opt[i].letter);
		snprintf(left, sizeof left, "%s--%s%s%s", letter, opt_dashed(opt[i].name, name),
		         opt[i].arg ? " " : "", opt[i].arg ? opt[i].arg : "");
		opt_default_text(&opt[i], own);
		printf("  %-28s %s%s\n", left, opt[i].help, own);
	}
	printf("\nexamples:\n%s", cmd->examples);
}

int
opt_usage_error(const Command *cmd, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	complain("%s: %s; llmc %s --help shows the options", cmd->name, text, cmd->name);
	return EXIT_INPUT;
}

static void
wrong(const Command *cmd, const Opt *o, const char *value, const char *want)
{
	char name[64];

	exit(opt_usage_error(cmd, "--%s %s: expected %s", opt_dashed(o->name, name), value, want));
}

static int64_t
integer(const Command *cmd, const Opt *o, const char *value, int64_t lo, int64_t hi)
{
	char *end;

	errno = 0;
	long long x = strtoll(value, &end, 10);
	if (end == value || *end || errno || x < lo || x > hi)
		wrong(cmd, o, value, "an integer");
	return x;
}

static int64_t
bytes(const Command *cmd, const Opt *o, const char *value)
{
	int64_t n;

	if (!strcmp(value, "0") && o->kind == OPT_BYTES0)
		return 0;
	if (!bytes_parse(value, &n))
		wrong(cmd, o, value,
		      o->kind == OPT_BYTES0 ? "0, or a size such as 512M or 8G"
		                            : "a size of at least 1, such as 512M or 8G");
	return n;
}

/* destinations of the options that were given */
static struct {
	const void *to[256];
	size_t n;
} parsed;

bool
opt_given(const void *to)
{
	for (size_t i = 0; i < parsed.n; i++)
		if (parsed.to[i] == to)
			return true;
	return false;
}

static void
store(const Command *cmd, const Opt *o, const char *value)
{
	char *end;
	double x;

	if (parsed.n < sizeof parsed.to / sizeof *parsed.to && !opt_given(o->to))
		parsed.to[parsed.n++] = o->to;

	switch (o->kind) {
	case OPT_FLAG:
		*(bool *)o->to = true;
		break;
	case OPT_INT:
		*(int32_t *)o->to = (int32_t)integer(cmd, o, value, INT32_MIN, INT32_MAX);
		break;
	case OPT_INT64:
		*(int64_t *)o->to = integer(cmd, o, value, INT64_MIN, INT64_MAX);
		break;
	case OPT_U64:
		errno = 0;
		*(uint64_t *)o->to = strtoull(value, &end, 10);
		if (end == value || *end || errno || *value == '-')
			wrong(cmd, o, value, "an integer of at least 0");
		break;
	case OPT_FLOAT:
		if (!number_parse(value, &x) || fabs(x) > 1e30)
			wrong(cmd, o, value, "a number");
		*(float *)o->to = (float)x;
		break;
	case OPT_BYTES:
	case OPT_BYTES0:
		*(int64_t *)o->to = bytes(cmd, o, value);
		break;
	case OPT_SIZES: {
		char first[32];
		const size_t n = strcspn(value, ",");
		snprintf(first, sizeof first, "%.*s", (int)n, value);
		((int64_t *)o->to)[0] = bytes(cmd, o, first);
		((int64_t *)o->to)[1] = value[n] ? bytes(cmd, o, value + n + 1) : 0;
		break;
	}
	case OPT_TEXT:
		*(const char **)o->to = value;
		break;
	case OPT_LIST: {
		if (!list_add(o->to, value)) {
			complain("out of memory");
			exit(EXIT_MACHINE);
		}
		break;
	}
	case OPT_GROUP:
		break;
	}
}

static const Opt *
find(const Opt *opt, size_t n_opt, const char *name, size_t len, char letter)
{
	char own[64], typed[64], given[64];

	snprintf(typed, sizeof typed, "%.*s", (int)len, name ? name : "");
	opt_dashed(typed, given); /* --max_tokens counts as --max-tokens */
	for (size_t i = 0; i < n_opt; i++) {
		if (opt[i].kind == OPT_GROUP)
			continue;
		if (letter ? opt[i].letter == letter
		           : strcmp(opt_dashed(opt[i].name, own), given) == 0)
			return &opt[i];
	}
	return NULL;
}

void
opt_help(Opt *opt, size_t n_opt, const void *to, const char *help)
{
	for (size_t i = 0; i < n_opt; i++)
		if (opt[i].to == to && opt[i].kind != OPT_GROUP)
			opt[i].help = help;
}

const char *
opt_nearest(const Opt *opt, size_t n_opt, const char *name)
{
	enum { MAX_OPTIONS = 160, PREFIX = 3 };
	static char own[MAX_OPTIONS][64];
	const char *all[MAX_OPTIONS];
	size_t n = 0, len = strlen(name);

	for (size_t i = 0; i < n_opt && n < MAX_OPTIONS; i++)
		if (opt[i].kind != OPT_GROUP) {
			all[n] = opt_dashed(opt[i].name, own[n]);
			n++;
		}
	for (size_t i = 0; len >= PREFIX && i < n; i++)
		if (strncmp(all[i], name, len) == 0)
			return all[i];
	return nearest_text(name, all, n);
}

/* Report an unknown option and exit. */
static void
unknown(const Command *cmd, const Opt *opt, size_t n_opt, const char *a)
{
	char typed[64], name[64];

	snprintf(typed, sizeof typed, "%.*s", (int)strcspn(a, "="), a);
	const bool is_long = a[1] == '-';
	const char *near = opt_nearest(opt, n_opt, opt_dashed(typed + 1 + is_long, name));
	if (!is_long && (strlen(name) < 4 || !near || strcmp(near, name) != 0))
		near = NULL; /* after a single dash, suggest an option only if a dash is missing */
	if (is_long && !near && nearest_text(name, (const char *const[]){ "help" }, 1))
		near = "help";
	const ForeignOption *h = is_long && !near ? foreign_option_nearest(name) : NULL;
	if (h) {
		const bool is_model = !strcmp(h->own, OPT_MODEL) || !strcmp(h->own, OPT_HUB_MODEL);
		if (is_model || h->advice || find(opt, n_opt, h->own, strlen(h->own), 0))
			/* without an equivalent in this command there is no suggestion */
			near = h->spelled + 2;
	}
	if (!near)
		exit(opt_usage_error(cmd, "%s: no such option", a));
	complain("%s: %s: no such option; did you mean --%s?", cmd->name, a, near);
	exit(EXIT_INPUT);
}

/* An option as typed: its row, and the value attached to it */
typedef struct TypedOption {
	const Opt *opt;
	const char *value; /* attached value; NULL: the value is the next argument */
	bool model;        /* the value is the MODEL argument; opt is NULL */
	bool hub;          /* with `model`: the value is a repository without the prefix hf: */
} TypedOption;

static bool
takes_text(const Opt *o)
{
	return o->kind == OPT_TEXT || o->kind == OPT_LIST;
}

static TypedOption
look_up(const Command *cmd, const Opt *opt, size_t n_opt, const char *a)
{
	const bool is_long = a[1] == '-';
	size_t len = strcspn(a, "=");
	TypedOption t = { 0 };

	t.value = a[len] ? a + len + 1 : NULL;
	t.opt = is_long ? find(opt, n_opt, a + 2, len - 2, 0) : find(opt, n_opt, NULL, 0, a[1]);
	if (t.opt && (is_long || !a[2] || (a[2] == '=' && !takes_text(t.opt))))
		return t;
	const Opt *letter = t.opt;
	const ForeignOption *h = foreign_option_find(a, len);
	if (h && h->own) {
		t.hub = !strcmp(h->own, OPT_HUB_MODEL);
		t.model = t.hub || !strcmp(h->own, OPT_MODEL);
		t.opt = t.model ? NULL : find(opt, n_opt, h->own, strlen(h->own), 0);
		if (t.model || t.opt)
			return t;
	}
	if (h && h->advice) {
		complain("%s: %.*s: %s", cmd->name, (int)len, a, h->advice);
		exit(EXIT_INPUT);
	}
	/* a value attached to a letter: -n64, but -ngl is not -n with the value gl */
	if (!letter || find(opt, n_opt, a + 1, len - 1, 0) || /* -prompt */
	    (!takes_text(letter) && !strchr("+-.0123456789", a[2])))
		unknown(cmd, opt, n_opt, a);
	return (TypedOption){ .opt = letter, .value = a + 2 };
}

/* Receiver of an option table, set by opt_describe; fn NULL: commands run normally */
static struct {
	opt_table_fn fn;
	void *user;
	jmp_buf back;
} describe;

bool
opt_describing(void)
{
	return describe.fn != NULL;
}

void
opt_describe(const Command *cmd, opt_table_fn fn, void *user)
{
	char name[OPT_NAME_SIZE];

	snprintf(name, sizeof name, "%s", cmd->name);
	describe.fn = fn;
	describe.user = user;
	/* opt_parse jumps back here. A command holds no resource when it calls opt_parse, so the
	 * jump leaks nothing. */
	if (setjmp(describe.back) == 0)
		cmd->run(1, (char *[]){ name, NULL });
	describe.fn = NULL;
}

/* "hf:" and the name of a repository */
static const char *
hub_name(const char *repo)
{
	static List kept; /* kept until the process ends */
	size_t cap = strlen(repo) + 4;
	char *name = malloc(cap);

	if (!name || !list_add(&kept, name)) {
		complain("out of memory");
		exit(EXIT_MACHINE);
	}
	snprintf(name, cap, "%s%s", llmc_is_model_name(repo) ? "" : "hf:", repo);
	return name;
}

size_t
opt_parse(const Command *cmd, const Opt *opt, size_t n_opt, int argc, char **argv,
          const char **args, size_t max_args)
{
	size_t n = 0;
	bool only_args = false;

	if (describe.fn) {
		describe.fn(describe.user, cmd, opt, n_opt);
		longjmp(describe.back, 1);
	}
	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *value = NULL;
		if (only_args || a[0] != '-' || !a[1]) {
			if (n == max_args)
				exit(opt_usage_error(cmd, "%s: one argument too many", a));
			args[n++] = a;
			continue;
		}
		if (!strcmp(a, "--")) {
			only_args = true;
			continue;
		}
		if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
			print_help(cmd, opt, n_opt);
			exit(0);
		}
		const TypedOption t = look_up(cmd, opt, n_opt, a);
		const Opt *o = t.opt;
		value = t.value;
		if (t.model) {
			if (!value && i + 1 == argc)
				exit(opt_usage_error(cmd, "%s: needs a value", a));
			if (n == max_args)
				exit(opt_usage_error(cmd, "%s: the model is named twice", a));
			value = value ? value : argv[++i];
			args[n++] = t.hub ? hub_name(value) : value;
			continue;
		}
		if (o->kind == OPT_FLAG ? value != NULL : !value && i + 1 == argc)
			exit(opt_usage_error(
			    cmd, o->kind == OPT_FLAG ? "%s: takes no value" : "%s: needs a value",
			    a));
		if (o->kind != OPT_FLAG && !value)
			value = argv[++i];
		store(cmd, o, value);
	}
	return n;
}

/* llmc man: manual pages, written from the option tables. llmc(1) is cli/llmc.1 with the list of
 * commands filled in. */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/embed.h"
#include "cli/cli.h"

/* Print text for roff: escapes characters that would begin a request, and prints dashes so that
 * they can be copied. */
static void
roff(FILE *f, const char *text)
{
	for (const char *c = text; *c; c++) {
		if ((*c == '.' || *c == '\'') && (c == text || c[-1] == '\n'))
			fputs("\\&", f);
		if (*c == '-')
			fputs("\\-", f);
		else if (*c == '\\')
			fputs("\\e", f);
		else if (*c == '\'')
			fputs("\\(aq", f);
		else if (*c == '`')
			fputs("\\(ga", f);
		else if (*c == '~')
			fputs("\\(ti", f);
		else if (*c == '^')
			fputs("\\(ha", f);
		else
			fputc(*c, f);
	}
}

/* Write the name of the page of a command: bench serve -> llmc-bench-serve */
static void
page_name(const Command *cmd, char name[OPT_NAME_SIZE])
{
	snprintf(name, OPT_NAME_SIZE, "llmc-%s", cmd->name);
	for (char *c = name; *c; c++)
		*c = *c == ' ' ? '-' : *c;
}

static void
title(FILE *f, const char *name)
{
	fputs(".TH ", f);
	for (const char *c = name; *c; c++)
		fputc(*c >= 'a' && *c <= 'z' ? *c - 'a' + 'A' : *c, f);
	fprintf(f, " 1 \"\" \"llmc %s\" \"llmc\"\n", llmc_version());
}

static void
option(FILE *f, const Opt *o)
{
	char name[OPT_NAME_SIZE], own[OPT_DEFAULT_SIZE];

	fputs(".TP\n", f);
	if (o->letter)
		fprintf(f, "\\fB\\-%c\\fR, ", o->letter);
	fputs("\\fB\\-\\-", f);
	roff(f, opt_dashed(o->name, name));
	fputs("\\fR", f);
	if (o->arg) {
		fputs(" \\fI", f);
		roff(f, o->arg);
		fputs("\\fR", f);
	}
	fputc('\n', f);
	opt_default_text(o, own);
	roff(f, o->help);
	roff(f, own);
	fputc('\n', f);
}

static void
command_page(void *user, const Command *cmd, const Opt *opt, size_t n_opt)
{
	FILE *f = user;
	char name[OPT_NAME_SIZE];

	page_name(cmd, name);
	title(f, name);
	fputs(".SH NAME\n", f);
	roff(f, name);
	fputs(" \\- ", f);
	roff(f, cmd->summary);
	fputs("\n.SH SYNOPSIS\n\\fBllmc ", f);
	roff(f, cmd->name);
	fputs("\\fR ", f);
	roff(f, cmd->usage);
	fputs("\n.SH OPTIONS\n", f);
	for (size_t i = 0; i < n_opt; i++) {
		if (opt[i].kind != OPT_GROUP) {
			option(f, &opt[i]);
			continue;
		}
		fputs(".SS ", f);
		roff(f, opt[i].name);
		fputc('\n', f);
	}
	fputs(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nlist the options\n"
	      ".SH EXAMPLES\n.nf\n",
	      f);
	roff(f, cmd->examples);
	fputs(".fi\n.SH SEE ALSO\n.BR llmc (1)\n", f);
}

static void
main_page(FILE *f)
{
	static const char mark[] = ".\\\" COMMANDS\n";
	const char *page = embed_find("cli/llmc.1", NULL), *at = strstr(page, mark);
	char name[OPT_NAME_SIZE];

	title(f, "llmc");
	fwrite(page, 1, (size_t)(at - page), f);
	for (size_t i = 0; i < n_commands; i++) {
		page_name(commands[i], name);
		fputs(".TP\n.BR ", f);
		roff(f, name);
		fputs(" (1)\n", f);
		roff(f, commands[i]->summary);
		fputc('\n', f);
	}
	fputs(at + sizeof mark - 1, f);
}

/* Write a page to a file in dir. */
static bool
page_file(const char *dir, const char *name, const Command *cmd)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/%s.1", dir, name);
	FILE *f = fopen(path, "w");
	if (f && cmd)
		opt_describe(cmd, command_page, f);
	else if (f)
		main_page(f);
	bool good = f && !ferror(f);
	if (f)
		good &= fclose(f) == 0;
	if (!good)
		complain("%s: cannot write: %s", path, strerror(errno));
	return good;
}

static int
man(int argc, char **argv)
{
	const char *out = NULL, *args[2] = { NULL };
	const Opt opt[] = {
		{ OPT_GROUP, 0, "Output", NULL, NULL, NULL },
		{ OPT_TEXT, 'o', "out", "DIR", &out, "write all pages to files in this folder" },
	};
	char name[OPT_NAME_SIZE];

	const size_t n = OPT_PARSE(&cmd_man, opt, argc, argv, args);
	if (out && n)
		return opt_usage_error(&cmd_man, "--out writes all pages; name no command");
	if (out) {
		bool good = page_file(out, "llmc", NULL);
		for (size_t i = 0; i < n_commands && good; i++) {
			page_name(commands[i], name);
			good = page_file(out, name, commands[i]);
		}
		return good ? 0 : EXIT_MACHINE;
	}
	if (n == 0) {
		main_page(stdout);
		return 0;
	}
	snprintf(name, sizeof name, "%s%s%s", args[0], n == 2 ? " " : "", n == 2 ? args[1] : "");
	const Command *cmd = command_find(name);
	if (!cmd)
		return opt_usage_error(&cmd_man, "%s: no such command", name);
	opt_describe(cmd, command_page, stdout);
	return 0;
}

const Command cmd_man = {
	"man",
	"[COMMAND] [--out DIR]",
	"write the manual page of a command",
	"  llmc man run | man -l -\n"
	"  llmc man --out ~/.local/share/man/man1\n",
	man,
};

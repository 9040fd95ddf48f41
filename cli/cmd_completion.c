/* llmc completion: writes completion scripts for shells from the option tables.
 *
 * Each script has one fixed part, which finds the command on the line, and one part per command.
 * The script looks for a command of two words, such as "bench serve", before it looks for the first
 * word alone. */
#include <string.h>

#include "cli/cli.h"

/* Values that an option or argument takes */
typedef enum Values { VALUES_ANY, VALUES_WORDS, VALUES_FILES } Values;

static Values
values_of(const char *arg)
{
	static const char *const file[] = { "FILE", "DIR", "PATH", "MODEL" };

	if (strchr(arg, '|') && !arg[strspn(arg, "abcdefghijklmnopqrstuvwxyz0123456789|_-")])
		return VALUES_WORDS;
	for (size_t i = 0; i < sizeof file / sizeof *file; i++)
		if (!strncmp(arg, file[i], strlen(file[i])))
			return VALUES_FILES;
	return VALUES_ANY;
}

/* Print a placeholder such as "cpu|cuda|ref" as words. */
static void
print_words(const char *arg)
{
	for (const char *c = arg; *c && *c != ' '; c++)
		putchar(*c == '|' ? ' ' : *c);
}

static void
print_command_names(bool two_words)
{
	const char *gap = "";

	for (size_t i = 0; i < n_commands; i++) {
		const bool two = strchr(commands[i]->name, ' ') != NULL;
		if (two != two_words)
			continue;
		printf(two ? "%s'%s'" : "%s%s", gap, commands[i]->name);
		gap = " ";
	}
}

/* Print text inside single quotes of a shell. `escaped` characters get a backslash. */
static void
print_quoted(const char *text, const char *escaped, const char *quote)
{
	for (const char *c = text; *c; c++) {
		if (*c == '\'')
			fputs(quote, stdout);
		else if (strchr(escaped, *c))
			printf("\\%c", *c);
		else
			putchar(*c);
	}
}

/* Find the values of a command's first argument: words, commands or files */
static Values
argument_of(const Command *cmd, char words[OPT_NAME_SIZE])
{
	snprintf(words, OPT_NAME_SIZE, "%.*s", (int)strcspn(cmd->usage, " "), cmd->usage);
	if (values_of(words) == VALUES_WORDS)
		return VALUES_WORDS;
	return strstr(cmd->usage, "COMMAND") || words[0] == '[' ? VALUES_ANY : VALUES_FILES;
}

static void
bash_command(void *user, const Command *cmd, const Opt *opt, size_t n_opt)
{
	char name[OPT_NAME_SIZE], words[OPT_NAME_SIZE];
	const Values argument = argument_of(cmd, words);

	(void)user;
	printf("\t'%s')\n\t\toptions='", cmd->name);
	for (size_t i = 0; i < n_opt; i++)
		if (opt[i].kind != OPT_GROUP)
			printf("--%s ", opt_dashed(opt[i].name, name));
	printf("--help'\n");
	if (argument == VALUES_WORDS) {
		printf("\t\targuments='");
		print_words(words);
		printf("'\n");
	} else if (argument == VALUES_ANY && strstr(cmd->usage, "COMMAND")) {
		printf("\t\targuments=$commands\n");
	} else if (argument == VALUES_FILES) {
		printf("\t\tfiles=1\n");
	}
	printf("\t\tcase $prev in\n");
	for (size_t i = 0; i < n_opt; i++) {
		if (opt[i].kind == OPT_GROUP || opt[i].kind == OPT_FLAG)
			continue;
		printf("\t\t");
		if (opt[i].letter)
			printf("-%c | ", opt[i].letter);
		printf("--%s) ", opt_dashed(opt[i].name, name));
		const Values v = values_of(opt[i].arg);
		if (v == VALUES_WORDS) {
			printf("value=words arguments='");
			print_words(opt[i].arg);
			printf("' ;;\n");
		} else {
			printf("value=%s ;;\n", v == VALUES_FILES ? "files" : "any");
		}
	}
	printf("\t\tesac\n\t\t;;\n");
}

static void
bash_script(void)
{
	printf("_llmc() {\n\tlocal commands='");
	print_command_names(false);
	printf("'\n\tlocal two=(");
	print_command_names(true);
	fputs(")\n"
	      "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
	      "\tlocal cmd=${COMP_WORDS[1]} options= arguments= files= value= pair\n"
	      "\tCOMPREPLY=()\n"
	      "\t# readline splits --option=value at the sign\n"
	      "\tif [[ $cur == = ]]; then\n"
	      "\t\tcur=\n"
	      "\telif [[ $prev == = ]]; then\n"
	      "\t\tprev=${COMP_WORDS[COMP_CWORD - 2]}\n"
	      "\tfi\n"
	      "\tif ((COMP_CWORD == 1)); then\n"
	      "\t\tcompopt -o filenames\n"
	      "\t\tmapfile -t COMPREPLY < <(compgen -W \"$commands --help --version\" -- \"$cur\"; "
	      "compgen -f -- \"$cur\")\n"
	      "\t\treturn\n"
	      "\tfi\n"
	      "\tfor pair in \"${two[@]}\"; do\n"
	      "\t\tif ((COMP_CWORD > 2)) && [[ $pair == \"$cmd ${COMP_WORDS[2]}\" ]]; then\n"
	      "\t\t\tcmd=$pair\n"
	      "\t\telif ((COMP_CWORD == 2)) && [[ $pair == \"$cmd \"* ]]; then\n"
	      "\t\t\targuments+=\" ${pair#* }\"\n"
	      "\t\tfi\n"
	      "\tdone\n"
	      "\t# llmc MODEL is llmc run MODEL\n"
	      "\t[[ \" $commands \" == *\" ${cmd%% *} \"* ]] || cmd=run\n"
	      "\tcase $cmd in\n",
	      stdout);
	for (size_t i = 0; i < n_commands; i++)
		opt_describe(commands[i], bash_command, NULL);
	fputs("\tesac\n"
	      "\tcase $value in\n"
	      "\tany) return ;;\n"
	      "\twords) options= files= ;;\n"
	      "\tfiles) options= arguments= files=1 ;;\n"
	      "\t'') [[ $cur == -* ]] && arguments=$options files= ;;\n"
	      "\tesac\n"
	      "\tmapfile -t COMPREPLY < <(compgen -W \"$arguments\" -- \"$cur\")\n"
	      "\tif [[ -n $files ]]; then\n"
	      "\t\tcompopt -o filenames\n"
	      "\t\tmapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$cur\")\n"
	      "\tfi\n"
	      "}\n"
	      "complete -F _llmc llmc\n",
	      stdout);
}

/* Print values as an action of zsh's _arguments */
static void
zsh_action(const char *arg, Values v)
{
	printf(":");
	print_quoted(arg, ":\\", "'\\''");
	printf(":");
	if (v == VALUES_FILES) {
		printf("_files");
	} else if (v == VALUES_WORDS) {
		putchar('(');
		print_words(arg);
		putchar(')');
	}
}

static void
zsh_command(void *user, const Command *cmd, const Opt *opt, size_t n_opt)
{
	char name[OPT_NAME_SIZE], words[OPT_NAME_SIZE];

	(void)user;
	printf("\t'%s')\n\t\t_arguments -s -S \\\n", cmd->name);
	for (size_t i = 0; i < n_opt; i++) {
		if (opt[i].kind == OPT_GROUP)
			continue;
		const bool flag = opt[i].kind == OPT_FLAG, again = opt[i].kind == OPT_LIST;
		opt_dashed(opt[i].name, name);
		printf("\t\t\t");
		if (opt[i].letter && !again)
			printf("'(-%c --%s)'", opt[i].letter, name);
		if (again)
			printf("'*'");
		if (opt[i].letter)
			printf("{-%c%s,--%s%s}", opt[i].letter, flag ? "" : "+", name,
			       flag ? "" : "=");
		else
			printf("--%s%s", name, flag ? "" : "=");
		printf("'[");
		print_quoted(opt[i].help, "[]:\\", "'\\''");
		putchar(']');
		if (!flag)
			zsh_action(opt[i].arg, values_of(opt[i].arg));
		printf("' \\\n");
	}
	printf("\t\t\t--help'[list the options]'");
	const Values argument = argument_of(cmd, words);
	if (argument != VALUES_ANY) {
		printf(" \\\n\t\t\t'*");
		zsh_action(words, argument);
		putchar('\'');
	} else if (strstr(cmd->usage, "COMMAND")) {
		printf(" \\\n\t\t\t'*:COMMAND:(");
		print_command_names(false);
		printf(")'");
	}
	printf("\n\t\t;;\n");
}

static void
zsh_script(void)
{
	printf("#compdef llmc\n"
	       "_llmc() {\n"
	       "\tlocal -a commands two\n"
	       "\tlocal cmd=$words[2]\n"
	       "\tcommands=(\n");
	for (size_t i = 0; i < n_commands; i++)
		if (!strchr(commands[i]->name, ' ')) {
			printf("\t\t'%s:", commands[i]->name);
			print_quoted(commands[i]->summary, ":\\", "'\\''");
			printf("'\n");
		}
	printf("\t)\n\ttwo=(");
	print_command_names(true);
	printf(")\n"
	       "\tif ((CURRENT == 2)); then\n"
	       "\t\t_describe command commands\n"
	       "\t\t_files\n"
	       "\t\treturn\n"
	       "\tfi\n"
	       "\tif ((CURRENT > 3 && ${two[(Ie)$cmd $words[3]]})); then\n"
	       "\t\tcmd=\"$cmd $words[3]\"\n"
	       "\t\tshift words\n"
	       "\t\t((CURRENT--))\n"
	       "\telif ((CURRENT == 3 && ${#two[(r)$cmd *]})); then\n"
	       "\t\tcompadd -- ${${(M)two:#$cmd *}#* }\n"
	       "\tfi\n"
	       "\t# llmc MODEL is llmc run MODEL\n"
	       "\tif ((${commands[(I)${cmd%%%% *}:*]})); then\n"
	       "\t\tshift words\n"
	       "\t\t((CURRENT--))\n"
	       "\telse\n"
	       "\t\tcmd=run\n"
	       "\tfi\n"
	       "\tcase $cmd in\n");
	for (size_t i = 0; i < n_commands; i++)
		opt_describe(commands[i], zsh_command, NULL);
	printf("\tesac\n"
	       "}\n"
	       "# autoloaded as a function, or sourced\n"
	       "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
	       "\t_llmc \"$@\"\n"
	       "else\n"
	       "\tcompdef _llmc llmc\n"
	       "fi\n");
}

static void
fish_command(void *user, const Command *cmd, const Opt *opt, size_t n_opt)
{
	char name[OPT_NAME_SIZE], words[OPT_NAME_SIZE];
	const Values argument = argument_of(cmd, words);

	(void)user;
	for (size_t i = 0; i < n_opt; i++) {
		if (opt[i].kind == OPT_GROUP)
			continue;
		printf("complete -c llmc -n '__llmc_is \"%s\"' -l %s", cmd->name,
		       opt_dashed(opt[i].name, name));
		if (opt[i].letter)
			printf(" -s %c", opt[i].letter);
		if (opt[i].kind != OPT_FLAG) {
			const Values v = values_of(opt[i].arg);
			printf(v == VALUES_FILES ? " -r -F" : " -x");
			if (v == VALUES_WORDS) {
				printf(" -a '");
				print_words(opt[i].arg);
				putchar('\'');
			}
		}
		printf(" -d '");
		print_quoted(opt[i].help, "\\", "\\'");
		printf("'\n");
	}
	if (argument == VALUES_WORDS || strstr(cmd->usage, "COMMAND")) {
		printf("complete -c llmc -n '__llmc_is \"%s\"' -f -a '", cmd->name);
		if (argument == VALUES_WORDS)
			print_words(words);
		else
			print_command_names(false);
		printf("'\n");
	}
}

static void
fish_script(void)
{
	printf("function __llmc_is\n"
	       "    set -l word (commandline -opc)\n"
	       "    set -l cmd ''\n"
	       "    if contains -- \"$word[2] $word[3]\" ");
	print_command_names(true);
	printf("\n"
	       "        set cmd \"$word[2] $word[3]\"\n"
	       "    else if contains -- \"$word[2]\" ");
	print_command_names(false);
	printf("\n"
	       "        set cmd \"$word[2]\"\n"
	       "    else if set -q word[2] # llmc MODEL is llmc run MODEL\n"
	       "        set cmd run\n"
	       "    end\n"
	       "    test \"$cmd\" = \"$argv[1]\"\n"
	       "end\n");
	for (size_t i = 0; i < n_commands; i++) {
		const char *gap = strchr(commands[i]->name, ' ');
		printf("complete -c llmc -n '__llmc_is \"%.*s\"' -a %s -d '",
		       gap ? (int)(gap - commands[i]->name) : 0, commands[i]->name,
		       gap ? gap + 1 : commands[i]->name);
		print_quoted(commands[i]->summary, "\\", "\\'");
		printf("'\n");
	}
	for (size_t i = 0; i < n_commands; i++)
		opt_describe(commands[i], fish_command, NULL);
}

static int
completion(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*write)(void);
	} shell[] = { { "bash", bash_script }, { "zsh", zsh_script }, { "fish", fish_script } };
	const char *args[1] = { NULL };
	const Opt opt[] = { { OPT_GROUP, 0, "Shells: bash, zsh, fish", NULL, NULL, NULL } };

	if (OPT_PARSE(&cmd_completion, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_completion, "name a shell: bash, zsh or fish");
	for (size_t i = 0; i < sizeof shell / sizeof *shell; i++)
		if (!strcmp(args[0], shell[i].name)) {
			printf("# completion of llmc %s for %s, written by `llmc completion %s`\n",
			       llmc_version(), args[0], args[0]);
			shell[i].write();
			return 0;
		}
	return opt_usage_error(&cmd_completion, "%s: expected bash, zsh or fish", args[0]);
}

const Command cmd_completion = {
	"completion",
	"bash|zsh|fish",
	"write the completion script of a shell",
	"  llmc completion bash >~/.local/share/bash-completion/completions/llmc\n"
	"  llmc completion zsh >~/.zfunc/_llmc          ~/.zfunc is a folder of fpath\n"
	"  llmc completion fish >~/.config/fish/completions/llmc.fish\n",
	completion,
};

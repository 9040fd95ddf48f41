/* llmc: runs a subcommand. */
#include <string.h>
#include <unistd.h>

#include "base/nearest.h"
#include "base/text.h"
#include "cli/cli.h"

static const Command *const table[] = {
	&cmd_run,      &cmd_chat,        &cmd_serve,     &cmd_import,   &cmd_compile, &cmd_plan,
	&cmd_bench,    &cmd_bench_serve, &cmd_bench_mla, &cmd_quantize, &cmd_verify,  &cmd_eval,
	&cmd_tokenize, &cmd_embed,       &cmd_pull,      &cmd_list,     &cmd_rm,      &cmd_cache,
	&cmd_doctor,   &cmd_completion,  &cmd_man,
};

static void
help(FILE *f)
{
	fprintf(f,
	        "llmc %s, a static compiler for language models\n\n"
	        "usage: llmc COMMAND [options]       llmc COMMAND --help shows options and "
	        "examples\n"
	        "       llmc MODEL [options]         the same as llmc run MODEL\n\n",
	        llmc_version());
	for (size_t i = 0; i < n_commands; i++)
		if (!strchr(commands[i]->name, ' '))
			fprintf(f, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(f,
	        "\nA model is a GGUF file, a Hugging Face folder, a YAML description, a generated "
	        "folder,\nor a name that is downloaded once: hf:ORG/REPO, hf:ORG/REPO:QUANT, "
	        "https://.../FILE.gguf\n\n"
	        "examples:\n"
	        "  llmc run model.gguf --prompt \"The capital of France is\"\n"
	        "  llmc chat hf:bartowski/SmolLM2-135M-Instruct-GGUF\n"
	        "  llmc compile configs/llama2-70b.yaml\n");
}

/* Commands of other tools, with the equivalent in llmc */
static const struct {
	const char *name, *advice;
} foreign[] = {
	{ "ls", "run `llmc list`" },
	{ "download", "run `llmc pull hf:ORG/REPO`" },
	{ "ps", "run `curl http://127.0.0.1:8000/v1/models` to list the models of a server" },
	{ "show", "run `llmc plan MODEL`" },
	{ "create", "run `llmc import MODEL` to write a description" },
	{ "convert", "GGUF files and Hugging Face folders open without conversion" },
	{ "build", "run `llmc compile MODEL`" },
};

static int
unknown(const char *name)
{
	const char *all[32];
	size_t n = 0;

	for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
		if (!strcmp(name, foreign[i].name)) {
			complain("%s: no such command; %s", name, foreign[i].advice);
			return EXIT_INPUT;
		}
	for (size_t i = 0; i < n_commands && n < sizeof all / sizeof *all; i++)
		all[n++] = commands[i]->name;
	const char *near = nearest_text(name, all, n);
	if (near)
		complain("%s: no such command; did you mean llmc %s?", name, near);
	else
		complain("%s: no such command, and no such model file or folder; llmc --help lists "
		         "the commands",
		         name);
	return EXIT_INPUT;
}

/* True if the first argument is a model or an option rather than a command: `llmc model.gguf`,
 * `llmc -m model.gguf`. */
static bool
names_model(const char *s)
{
	return s[0] == '-' || strchr(s, '/') || llmc_is_model_name(s) || ends_with(s, ".gguf") ||
	       ends_with(s, ".yaml") || ends_with(s, ".yml") || access(s, F_OK) == 0;
}

static int
run_command(const Command *c, int argc, char **argv)
{
	int code = c->run(argc, argv);

	if (fflush(stdout) != 0 && code == 0) {
		complain("stdout: cannot write");
		code = EXIT_MACHINE;
	}
	return code;
}

int
main(int argc, char **argv)
{
	llmc_guard_files(NULL);
	commands = table;
	n_commands = sizeof table / sizeof *table;
	if (argc < 2) {
		help(stderr);
		return EXIT_INPUT;
	}
	const bool asks_help = !strcmp(argv[1], "help");
	const Command *c = asks_help && argc > 2 ? command_find(argv[2]) : command_find(argv[1]);
	if (asks_help && c) { /* as in `llmc help run` */
		char *help_argv[] = { argv[2], "--help", NULL };
		return run_command(c, 2, help_argv);
	}
	if (asks_help && argc > 2)
		return unknown(argv[2]);
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || asks_help) {
		help(stdout);
		return 0;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
		printf("llmc %s\n", llmc_version());
		return 0;
	}
	if (c)
		return run_command(c, argc - 1, argv + 1);
	return names_model(argv[1]) ? run_command(&cmd_run, argc, argv) : unknown(argv[1]);
}

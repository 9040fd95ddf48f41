/* llmc: run a subcommand. */
#include <string.h>

#include "cli/cli.h"

static const Command *const command[] = { &cmd_run,     &cmd_chat, &cmd_serve,    &cmd_import,
	                                  &cmd_compile, &cmd_plan, &cmd_bench,    &cmd_quantize,
	                                  &cmd_verify,  &cmd_eval, &cmd_tokenize, &cmd_cache,
	                                  &cmd_doctor };
enum { N_COMMANDS = sizeof command / sizeof *command };

static void
help(FILE *f)
{
	fprintf(f,
	        "llmc %s, a static compiler for language models\n\n"
	        "usage: llmc COMMAND [options]       llmc COMMAND --help shows options and "
	        "examples\n\n",
	        llmc_version());
	for (int i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", command[i]->name, command[i]->summary);
	fprintf(f, "\nA model is a YAML description, a generated folder, a Hugging Face folder, a "
	           "GGUF file or a FastLLM model (.flm).\n\n"
	           "examples:\n"
	           "  llmc run model.gguf --prompt \"The capital of France is\"\n"
	           "  llmc chat model.gguf\n"
	           "  llmc compile configs/llama2-70b.yaml\n");
}

int
main(int argc, char **argv)
{
	if (argc < 2) {
		help(stderr);
		return EXIT_INPUT;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		help(stdout);
		return 0;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("llmc %s\n", llmc_version());
		return 0;
	}
	for (int i = 0; i < N_COMMANDS; i++)
		if (!strcmp(argv[1], command[i]->name)) {
			int code = command[i]->run(argc - 1, argv + 1);
			if (fflush(stdout) != 0 && code == 0) {
				complain("stdout: cannot write");
				code = EXIT_MACHINE;
			}
			return code;
		}
	complain("%s: no such command; llmc --help lists them", argv[1]);
	return EXIT_INPUT;
}

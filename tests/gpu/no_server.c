/* Command `serve` of a binary for machines without the web server's libraries */
#include "cli/cli.h"

static int
serve(int argc, char **argv)
{
	(void)argc, (void)argv;
	complain("this llmc was built without its server (tests/gpu/pack.sh)");
	return EXIT_MACHINE;
}

const Command cmd_serve = { "serve", "", "not in this build", "", serve };

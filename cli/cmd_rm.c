/* llmc rm: remove downloaded models. */
#include "cli/cli.h"

static int
rm(int argc, char **argv)
{
	enum { MAX_NAMES = 64 };
	bool quiet = false;
	const char *args[MAX_NAMES];
	const Opt opt[] = {
		{ OPT_FLAG, 'q', "quiet", NULL, &quiet, "print nothing on success" },
	};
	size_t n = OPT_PARSE(&cmd_rm, opt, argc, argv, args);

	if (!n)
		return opt_usage_error(&cmd_rm, "name a model; llmc list shows the names");
	for (size_t i = 0; i < n; i++) {
		llmc_error err = { 0 };
		int64_t freed;
		char size[32];
		if (llmc_pulled_remove(args[i], &freed, &err) != LLMC_OK)
			return fail_with(&err);
		if (!quiet)
			printf("%s: removed, %s\n", args[i], human_bytes((double)freed, size));
	}
	return 0;
}

const Command cmd_rm = {
	"rm",
	"NAME...",
	"remove downloaded models from the cache, which other programs share",
	"  llmc rm hf:ORG/REPO                 all revisions and quantisations\n"
	"  llmc rm hf:ORG/REPO:Q8_0            one quantisation\n"
	"  llmc rm https://example.org/model.gguf\n",
	rm,
};

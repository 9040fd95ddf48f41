/* llmc pull: download models by name. */
#include <string.h>

#include "cli/cli.h"

static int
pull(int argc, char **argv)
{
	enum { MAX_NAMES = 64 };
	bool quiet = false, json = false;
	const char *args[MAX_NAMES];
	const Opt opt[] = {
		{ OPT_FLAG, 'q', "quiet", NULL, &quiet, "print no progress" },
		{ OPT_FLAG, 0, "json", NULL, &json, "print one JSON array of names and paths" },
	};
	size_t n = OPT_PARSE(&cmd_pull, opt, argc, argv, args);

	if (!n)
		return opt_usage_error(&cmd_pull, "name a model, such as hf:ORG/REPO");
	for (size_t i = 0; i < n; i++) {
		char path[PATH_MAX];
		llmc_error err = { 0 };
		if (!llmc_is_model_name(args[i]) && strchr(args[i], '/')) {
			complain("%s: not the name of a model; did you mean hf:%s?", args[i],
			         args[i]);
			return EXIT_INPUT;
		}
		if (model_pull(args[i], true, quiet || json, path, &err) != LLMC_OK)
			return fail_with(&err);
		if (!json) {
			printf("%s\n", path);
			continue;
		}
		printf(i ? ",{\"name\":" : "[{\"name\":");
		json_text(stdout, args[i], strlen(args[i]));
		printf(",\"path\":");
		json_text(stdout, path, strlen(path));
		printf("}");
	}
	if (json)
		printf("]\n");
	return 0;
}

const Command cmd_pull = {
	"pull",
	"NAME... [options]",
	"download a model by its name and print its path",
	"  llmc pull hf:HuggingFaceTB/SmolLM2-135M-Instruct         a folder of Hugging Face\n"
	"  llmc pull hf:bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0   one quantisation, all its "
	"parts\n"
	"  llmc pull hf:ORG/REPO:model-f16.gguf                     one file\n"
	"  llmc pull hf:ORG/REPO@v1.0                               a branch, tag or commit\n"
	"  llmc pull https://example.org/model.gguf\n"
	"  HF_TOKEN=hf_... llmc pull hf:ORG/GATED                   a private or gated model\n"
	"  llmc run hf:ORG/REPO:Q4_K_M --prompt \"Hello\"             every command takes such "
	"names\n",
	pull,
};

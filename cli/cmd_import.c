/* llmc import: convert a Hugging Face folder or GGUF to a YAML description. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static void
log_warning(void *user, int level, const char *line)
{
	(void)user;
	if (level == LLMC_LOG_WARNING)
		fprintf(stderr, "%s\n", line);
}

static int
import(int argc, char **argv)
{
	const char *out = NULL, *args[1] = { NULL };
	bool json = false;
	llmc_options o = LLMC_INIT(llmc_options);
	const Opt opt[] = {
		{ OPT_TEXT, 'o', "output", "FILE", &out, "YAML file to write [standard output]" },
		OPT_ALLOW_UNKNOWN_KEYS(o.allow_unknown_keys),
		{ OPT_FLAG, 0, "json", NULL, &json, "{\"yaml\":\"...\"}" },
	};
	llmc_error err = { 0 };
	char *yaml = NULL;
	int code = 0;

	if (OPT_PARSE(&cmd_import, opt, argc, argv, args) == 0)
		return opt_usage_error(&cmd_import, "name a Hugging Face folder or a GGUF file");
	o.log = log_warning;
	if (model_path(&args[0], json, &err) != LLMC_OK ||
	    llmc_import(args[0], &o, &yaml, &err) != LLMC_OK)
		return fail_with(&err);
	if (out) {
		FILE *f = fopen(out, "wb");
		bool ok = f && fputs(yaml, f) >= 0;
		if (!f || fclose(f) != 0 || !ok) {
			complain("%s: cannot write", out);
			code = EXIT_MACHINE;
		}
	}
	if (json) {
		printf("{\"yaml\":");
		json_text(stdout, yaml, strlen(yaml));
		printf("}\n");
	} else if (!out) {
		fputs(yaml, stdout);
	}
	llmc_free(yaml);
	return code;
}

const Command cmd_import = {
	"import",
	"SRC [-o FILE]",
	"write the YAML description of a Hugging Face folder or a GGUF file",
	"  llmc import model.gguf -o model.yaml\n"
	"  llmc import ./Qwen2.5-7B-Instruct\n"
	"  llmc import ./brand-new-model --allow-unknown-keys -o model.yaml\n",
	import,
};

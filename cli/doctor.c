/* llmc doctor: what this machine has, and what to install. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static int
doctor(int argc, char **argv)
{
	bool json = false;
	const char *args[1];
	const Opt opt[] = { { OPT_FLAG, 0, "json", NULL, &json, "the same as one JSON document" } };
	llmc_error err = { 0 };
	char *text;

	OPT_PARSE(&cmd_doctor, opt, argc, argv, args);
	if (llmc_doctor(&text, &err) != LLMC_OK)
		return fail_with(&err);
	if (json) {
		printf("%s\n", text);
	} else {
		/* the document's lines without its punctuation: one source for both forms */
		for (const char *p = text; *p;) {
			size_t n = strcspn(p, "\n");
			char line[1024];
			size_t k = 0;
			for (size_t i = 0; i < n && k + 1 < sizeof line; i++)
				if (!strchr("{}\"", p[i]) && !(p[i] == ',' && i + 1 == n))
					line[k++] = p[i];
			line[k] = 0;
			if (strspn(line, " ") < k)
				printf("%s\n", line + (k > 2 && line[0] == ' ' ? 2 : 0));
			p += n + (p[n] == '\n');
		}
		printf("read bandwidth: %.1f GB/s with all threads, %.1f GB/s with one\n", llmc_bandwidth(0, 0.3) / 1e9, llmc_bandwidth(1, 0.3) / 1e9);
	}
	bool cc = strstr(text, "\"compiler\": {\n    \"found\": true") != NULL;
	llmc_free(text);
	if (!cc) {
		complain("no C compiler: install one (apt-get install gcc), or use artifacts made with --aot");
		return EXIT_MACHINE;
	}
	return 0;
}

const Command cmd_doctor = {
	"doctor", "[--json]", "processor, compiler, libraries: found, missing, what to install",
	"  llmc doctor\n",
	doctor,
};

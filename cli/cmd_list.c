/* llmc list: show the models that can be used by name without a download. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli/cli.h"

/* Return the JSON array of llmc_pulled, malloc'd; NULL with *err set. */
static char *
pulled(llmc_error *err)
{
	size_t cap = 1 << 16, need = 0;

	for (;;) {
		char *buf = malloc(cap);
		if (!buf) {
			err->code = LLMC_E_MEMORY;
			snprintf(err->text, sizeof err->text, "out of memory");
			return NULL;
		}
		llmc_status s = llmc_pulled(buf, cap, &need, err);
		if (s == LLMC_OK)
			return buf;
		free(buf);
		if (s != LLMC_E_RANGE || need < cap)
			return NULL;
		cap = need + 4096;
	}
}

static void
print_table(const json_t *list)
{
	size_t i, wide = 4;
	const json_t *e;

	json_array_foreach (list, i, e) {
		size_t n = strlen(json_text_of(e, "name"));
		wide = n > wide ? n : wide;
	}
	if (!json_array_size(list))
		fprintf(stderr, "no models yet; `llmc pull hf:ORG/REPO` downloads one\n");
	else
		printf("%-*s  %10s  %s\n", (int)wide, "NAME", "SIZE", "DOWNLOADED");
	json_array_foreach (list, i, e) {
		char size[32], day[32] = "";
		time_t at = (time_t)json_integer_value(json_object_get(e, "modified"));
		struct tm t;
		if (localtime_r(&at, &t))
			strftime(day, sizeof day, "%Y-%m-%d", &t);
		double bytes = (double)json_integer_value(json_object_get(e, "bytes"));
		char *name = strdup(json_text_of(e, "name"));
		if (name) /* any program may have named the folders: make names safe to print */
			utf8_make_printable(name, false);
		printf("%-*s  %10s  %s%s\n", (int)wide, name ? name : "", human_bytes(bytes, size),
		       day,
		       json_is_true(json_object_get(e, "complete"))
		           ? ""
		           : "  incomplete: llmc pull resumes it");
		free(name);
	}
}

static int
list(int argc, char **argv)
{
	bool json = false;
	const char *args[1];
	llmc_error err = { 0 };
	const Opt opt[] = {
		{ OPT_FLAG, 0, "json", NULL, &json, "print one JSON document" },
	};

	if (OPT_PARSE(&cmd_list, opt, argc, argv, args))
		return opt_usage_error(&cmd_list, "%s: takes no argument", args[0]);
	char *text = pulled(&err);
	if (!text)
		return fail_with(&err);
	if (json) {
		printf("%s\n", text);
	} else {
		json_t *root = json_parse(text, strlen(text), 0, NULL, NULL);
		print_table(root);
		json_decref(root);
	}
	free(text);
	return 0;
}

const Command cmd_list = {
	"list",
	"[--json]",
	"show the models that were downloaded, by llmc or another program",
	"  llmc list\n"
	"  llmc list --json                    with paths\n"
	"  HF_HUB_CACHE=/models llmc list      another cache\n",
	list,
};

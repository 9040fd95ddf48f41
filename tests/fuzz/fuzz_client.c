/* Reads arbitrary bytes as the answer of a server to `llmc bench serve`, cut into chunks of a
 * network connection, and as the settings file of `llmc serve`. The fuzzer includes both source
 * files to reach their static functions. Where the command would exit, the fuzzer goes on with the
 * next input. */
#include <setjmp.h>
#include <yaml.h>

#include "cli/cli.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* the command never frees its settings */
const char *__asan_default_options(void);
const char *
__asan_default_options(void)
{
	return "detect_leaks=0";
}

/* Resources of the settings file that are open when the command exits. */
static FILE *opened;
static yaml_parser_t *parsing;
static yaml_event_t *event;

static FILE *
open_settings(const char *path, const char *mode)
{
	return opened = fopen(path, mode);
}

static int
parse_settings(yaml_parser_t *p, yaml_event_t *e)
{
	parsing = p;
	event = e;
	return yaml_parser_parse(p, e);
}

static void
close_settings(void)
{
	if (event)
		yaml_event_delete(event);
	if (parsing)
		yaml_parser_delete(parsing);
	if (opened)
		fclose(opened);
}

static jmp_buf ended;
_Noreturn static void
leave(int code)
{
	longjmp(ended, code + 1);
}

#define exit leave
#include "cli/load_generator.c"
#define fopen open_settings
#define yaml_parser_parse parse_settings
#define yaml_parser_t static yaml_parser_t
#define yaml_event_t static yaml_event_t
#include "cli/settings.c"
#undef yaml_parser_t
#undef yaml_event_t
#undef yaml_parser_parse
#undef fopen
#undef exit

static void
answer(const uint8_t *data, size_t size)
{
	LoadRequest r = { .new_tokens = -1, .prompt_tokens = -1 };
	LoadRun l = { 0 };
	LoadConn c = { .r = &r, .fd = -1, .left = -1 };
	size_t step = size ? data[0] % 64 + 1 : 1;
	bool ok = true;

	for (size_t i = 1; ok && i < size; i += step)
		ok = take(&l, &c, (const char *)data + i, i + step < size ? step : size - i);
	if (r.n_token > r.cap || c.line_len > c.line_cap ||
	    memchr(r.error, 0, sizeof r.error) == NULL)
		abort();
	free(c.line);
	free(r.token_at);
}

static void
settings(const uint8_t *data, size_t size)
{
	static bool flag;
	static int32_t number;
	static const char *text;
	static List list;
	static const Opt opt[] = {
		{ OPT_GROUP, 0, "Group", NULL, NULL, NULL },
		{ OPT_FLAG, 0, "log-json", NULL, &flag, "" },
		{ OPT_INT, 'p', "port", "N", &number, "" },
		{ OPT_TEXT, 0, "host", "ADDRESS", &text, "" },
		{ OPT_LIST, 0, "lora", "PATH", &list, "" },
	};
	char config[300], *argv[] = { (char *)"serve", config, NULL };
	List models = { 0 };
	int n = 0;

	folder_make();
	snprintf(config, sizeof config, "--config=%s", folder_put("serve.yaml", data, size));
	opened = NULL;
	parsing = NULL;
	event = NULL;
	if (setjmp(ended)) {
		close_settings();
		return;
	}
	char **all =
	    settings_merge("LLMC_FUZZ_", opt, sizeof opt / sizeof *opt, 2, argv, &n, &models);
	for (int i = 0; i < n; i++)
		if (!all[i])
			abort();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] % 2)
		answer(data + 1, size - 1);
	else if (size)
		settings(data + 1, size - 1);
	return 0;
}

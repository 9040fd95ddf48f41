/* Published config.json files against facts about the models: the combined result of import and
 * resolution. Each folder of tests/golden/config-fixtures holds config.json, perhaps
 * generation_config.json, and facts: lines "key = value" of the resolved description ("~" before a
 * number: to nine digits), or one line "error = words of the message". If transformers.json exists,
 * it is config.json as rewritten by transformers in its current spelling: the facts must hold for
 * this file, too. */
#include <dirent.h>
#include <math.h>

#include "base/file.h"
#include "formats/yaml.h"
#include "tests/unit/compiler_util.h"
#include "tests/unit/tempdir.h"

#define TOP "tests/golden/config-fixtures"

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static size_t
folders(Bench *b, char **name, size_t cap)
{
	DIR *dir = opendir(TOP);
	size_t n = 0;

	assert_non_null(dir);
	for (struct dirent *e; (e = readdir(dir));)
		if (e->d_name[0] != '.' &&
		    file_is_dir(arena_printf(&b->arena, TOP "/%s", e->d_name)) && n < cap)
			name[n++] = arena_strdup(&b->arena, e->d_name);
	closedir(dir);
	qsort(name, n, sizeof *name, by_name);
	return n;
}

static bool
agrees(const char *have, const char *want)
{
	double x, y;

	if (strcmp(have, want) == 0)
		return true;
	if (*want == '~')
		return number_parse(want + 1, &x) && number_parse(have, &y) &&
		       fabs(x - y) <= 1e-9 * fabs(x);
	return number_parse(want, &x) && number_parse(have, &y) && x == y;
}

static int
check_facts(Bench *b, const char *name, const Spec *spec, char *facts)
{
	int n = 0;
	char *save = NULL;

	for (char *line = strtok_r(facts, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *eq = strstr(line, " = ");
		assert_non_null(eq);
		*eq = 0;
		if (strcmp(line, "error") == 0) {
			if (spec || !strstr(strbuf_str(&b->diag.text), eq + 3))
				fail_msg("%s: the message lacks \"%s\":\n%s", name, eq + 3,
				         strbuf_str(&b->diag.text));
			n++;
			continue;
		}
		if (!spec)
			fail_msg("%s: %s", name, strbuf_str(&b->diag.text));
		const char *have = spec_get(spec, &b->arena, line);
		if (!have || !agrees(have, eq + 3))
			fail_msg("%s: %s is %s, the model has %s", name, line,
			         have ? have : "no key", eq + 3);
		n++;
	}
	return n;
}

static Tempdir temp;

static void
one_folder(Bench *b, const char *name, const char *dir)
{
	Strbuf facts = { 0 };
	llmc_error err = { 0 };
	Spec *spec = NULL;

	assert_int_equal(
	    file_read(arena_printf(&b->arena, TOP "/%s/facts", name), 1 << 16, &facts, &err),
	    LLMC_OK);
	char *yaml = import_yaml(dir, &(ImportOptions){ 0 }, &b->diag, &b->arena, &err);
	if (yaml)
		spec = spec_from_text("imported", yaml, strlen(yaml), NULL, &b->diag, &b->arena);
	assert_true(check_facts(b, name, spec, facts.data) > 0);
	strbuf_release(&facts);
	if (!spec)
		return;
	/* no warnings: import handles every key of a published config.json. A warning that the
	 * vision or audio part is left out is allowed. */
	if (b->diag.n_warning &&
	    !strstr(strbuf_str(&b->diag.text), "only the language model is imported"))
		fail_msg("%s: %s", name, strbuf_str(&b->diag.text));
	/* the resolved description is read back unchanged */
	Spec *again =
	    spec_from_text("resolved", spec->yaml, strlen(spec->yaml), NULL, &b->diag, &b->arena);
	assert_non_null(again);
	assert_string_equal(again->yaml, spec->yaml);
	assert_string_equal(again->sha256, spec->sha256);
}

static void
published(Bench *b, int at)
{
	char *name[128];

	assert_true((size_t)at < folders(b, name, 128));
	one_folder(b, name[at], arena_printf(&b->arena, TOP "/%s", name[at]));
}

/* A folder with transformers.json as its config.json */
static void
written_again(Bench *b, int at)
{
	static const char *const file[][2] = { { "transformers.json", "config.json" },
		                               { "generation_config.json",
		                                 "generation_config.json" } };
	char *name[128];
	llmc_error err = { 0 };
	int n = 0;

	assert_true((size_t)at < folders(b, name, 128));
	for (int i = 0; i < 2; i++) {
		const char *from = arena_printf(&b->arena, TOP "/%s/%s", name[at], file[i][0]),
		           *to = tempdir_file(&temp, file[i][1]);
		Strbuf text = { 0 };
		remove(to);
		if (!file_exists(from))
			continue;
		assert_int_equal(file_read(from, 1 << 20, &text, &err), LLMC_OK);
		FILE *f = fopen(to, "wb");
		assert_non_null(f);
		assert_int_equal(fwrite(text.data, 1, text.len, f), text.len);
		assert_int_equal(fclose(f), 0);
		strbuf_release(&text);
		n += i == 0;
	}
	if (n)
		one_folder(b, name[at], temp.path);
}

static int n_folders;

static void
count(Bench *b, int n)
{
	char *name[128];

	n_folders = (int)folders(b, name, 128);
	assert_true(n_folders >= n);
}

static void
published_configs(void **state)
{
	(void)state;
	bench_run(count, 40);
	for (int i = 0; i < n_folders; i++) {
		bench_run(published, i);
		bench_run(written_again, i);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(published_configs) };

	if (tempdir_open(&temp))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&temp);
	return failed;
}

/* Every mistake that a description can contain, and its message:
 * tests/golden/yaml-errors/<mistake>/in.yaml against want.err. LLMC_GOLDEN=1 writes want.err anew;
 * review the diff. */
#include <dirent.h>

#include "base/file.h"
#include "tests/unit/compiler_util.h"

#define TOP "tests/golden/yaml-errors"

static char *name[256];
static int n_name;

static int
by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void
find_cases(void)
{
	DIR *dir = opendir(TOP);

	assert_non_null(dir);
	for (struct dirent *e; (e = readdir(dir));)
		if (e->d_name[0] != '.' && n_name < 256)
			name[n_name++] = strdup(e->d_name);
	closedir(dir);
	qsort(name, (size_t)n_name, sizeof *name, by_name);
}

static void
check_case(Bench *b, int at)
{
	const char *in = arena_printf(&b->arena, TOP "/%s/in.yaml", name[at]),
	           *want = arena_printf(&b->arena, TOP "/%s/want.err", name[at]);
	Strbuf text = { 0 }, golden = { 0 };
	llmc_error err = { 0 };

	assert_int_equal(file_read(in, 1 << 20, &text, &err), LLMC_OK);
	Spec *s = spec_from_text("in.yaml", strbuf_str(&text), text.len, NULL, &b->diag, &b->arena);
	strbuf_release(&text);
	assert_int_equal(s == NULL, strcmp(name[at], "good") != 0);
	assert_int_equal(s == NULL, b->diag.n_error > 0);
	const char *have = strbuf_str(&b->diag.text);
	if (getenv("LLMC_GOLDEN")) {
		assert_int_equal(file_write(want, have, strlen(have), &err), LLMC_OK);
		return;
	}
	if (file_read(want, 1 << 20, &golden, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	if (strcmp(have, strbuf_str(&golden)) != 0)
		fail_msg("%s: wanted\n%s\nfound\n%s", name[at], strbuf_str(&golden), have);
	strbuf_release(&golden);
}

static void
every_mistake_has_its_message(void **state)
{
	(void)state;
	find_cases();
	assert_true(n_name > 40);
	for (int i = 0; i < n_name; i++)
		bench_run(check_case, i);
	for (int i = 0; i < n_name; i++)
		free(name[i]);
}

int
main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_mistake_has_its_message) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

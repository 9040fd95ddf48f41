/* base/file: mapping, reading whole files, atomic writes, folders, trust. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/unit/tempdir.h"

static int
n_files(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void
written_bytes_are_read_back(void **state)
{
	const Tempdir *dir = *state;
	const char *path = tempdir_file(dir, "f");
	static char big[100000];
	llmc_error err;
	FileMap m;
	Strbuf b = { 0 };

	for (size_t i = 0; i < sizeof big; i++)
		big[i] = (char)(i * 31 % 251);
	assert_int_equal(file_write(path, big, sizeof big, &err), LLMC_OK);
	assert_int_equal(n_files(dir->path), 1);
	assert_int_equal(file_map(path, &m, &err), LLMC_OK);
	assert_int_equal(m.size, sizeof big);
	assert_memory_equal(m.data, big, sizeof big);
	file_unmap(&m);
	assert_null(m.data);
	file_unmap(&m);
	assert_int_equal(file_read(path, sizeof big, &b, &err), LLMC_OK);
	assert_int_equal(b.len, sizeof big);
	assert_memory_equal(b.data, big, sizeof big);
	assert_int_equal(file_read(path, sizeof big - 1, &b, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "larger than 99999 bytes"));
	/* empty file */
	assert_int_equal(file_write(path, NULL, 0, &err), LLMC_OK);
	assert_int_equal(file_map(path, &m, &err), LLMC_OK);
	assert_null(m.data);
	assert_int_equal(m.size, 0);
	assert_int_equal(file_read(path, 0, &b, &err), LLMC_OK);
	assert_string_equal(strbuf_str(&b), "");
	strbuf_release(&b);
}

static void
unchanged_files_are_left_alone(void **state)
{
	const char *path = tempdir_file(*state, "f");
	struct stat a, b;
	llmc_error err;

	assert_int_equal(file_write(path, "same", 4, &err), LLMC_OK);
	assert_int_equal(utimes(path, (struct timeval[2]){ { 1000, 0 }, { 1000, 0 } }), 0);
	assert_int_equal(stat(path, &a), 0);
	assert_int_equal(file_write(path, "same", 4, &err), LLMC_OK);
	assert_int_equal(stat(path, &b), 0);
	assert_int_equal(b.st_mtime, 1000);
	assert_int_equal(a.st_ino, b.st_ino);
	assert_int_equal(file_write(path, "sane", 4, &err), LLMC_OK);
	assert_int_equal(stat(path, &b), 0);
	assert_int_not_equal(b.st_mtime, 1000);
}

/* A write that fails half-way keeps the old file and leaves no other file. A limit on file sizes
 * simulates a full disk. */
static void
failed_writes_leave_the_old_file(void **state)
{
	const Tempdir *dir = *state;
	const char *path = tempdir_file(dir, "f");
	struct rlimit old, small;
	static char big[100000];
	llmc_error err;
	Strbuf b = { 0 };

	assert_int_equal(file_write(path, "old", 3, &err), LLMC_OK);
	void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = old;
	small.rlim_cur = 5000;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	llmc_status status = file_write(path, big, sizeof big, &err);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	signal(SIGXFSZ, was);
	assert_int_equal(status, LLMC_E_IO);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(file_read(path, 100, &b, &err), LLMC_OK);
	assert_string_equal(strbuf_str(&b), "old");
	assert_int_equal(n_files(dir->path), 1);
	assert_int_equal(file_write(tempdir_file(dir, "no/such/f"), "x", 1, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, "cannot create"));
	strbuf_release(&b);
}

static void
errors_name_missing_and_special_files(void **state)
{
	const Tempdir *dir = *state;
	const char *path = tempdir_file(dir, "absent");
	llmc_error err;
	FileMap m;
	Strbuf b = { 0 };

	assert_int_equal(file_map(path, &m, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, path));
	assert_non_null(strstr(err.text, "No such file"));
	assert_int_equal(file_map(dir->path, &m, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, "not a regular file"));
	assert_int_equal(file_read(path, 10, &b, &err), LLMC_E_IO);
	assert_int_equal(file_read(dir->path, 10, &b, NULL), LLMC_E_IO);
	assert_false(file_exists(path));
	assert_true(file_exists(dir->path));
	assert_true(file_is_dir(dir->path));
	assert_false(file_is_dir("/dev/null"));
	strbuf_release(&b);
}

static void
folders_are_made(void **state)
{
	const Tempdir *dir = *state;
	const char *deep = tempdir_file(dir, "a/b/c/"), *mine = tempdir_file(dir, "p/q");
	struct stat st;
	llmc_error err;

	assert_int_equal(file_mkdirs(deep, &err), LLMC_OK);
	assert_int_equal(file_mkdirs(deep, &err), LLMC_OK);
	assert_true(file_is_dir(deep));
	assert_int_equal(file_mkdirs_private(mine, &err), LLMC_OK);
	assert_int_equal(stat(mine, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(file_write(tempdir_file(dir, "plain"), "x", 1, &err), LLMC_OK);
	assert_int_equal(file_mkdirs(tempdir_file(dir, "plain"), &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, "plain"));
	assert_int_equal(file_mkdirs(tempdir_file(dir, "plain/under"), &err), LLMC_E_IO);
	assert_int_equal(file_mkdirs("", &err), LLMC_E_IO);
}

static void
files_that_others_may_write_are_not_trusted(void **state)
{
	const char *path = tempdir_file(*state, "code.so");
	llmc_error err;

	assert_int_equal(file_write(path, "x", 1, &err), LLMC_OK);
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(file_check_trusted(path, &err), LLMC_OK);
	assert_int_equal(chmod(path, 0664), 0);
	assert_int_equal(file_check_trusted(path, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, "others may write to it (mode 664)"));
	assert_int_equal(chmod(path, 0602), 0);
	assert_int_equal(file_check_trusted(path, &err), LLMC_E_IO);
	assert_int_equal(file_check_trusted(tempdir_file(*state, "gone"), &err), LLMC_E_IO);
	/* the folder is sticky, so other users cannot replace our files */
	assert_int_equal(file_check_trusted("/tmp", &err), LLMC_OK);
}

static void
cache_folder_follows_the_environment(void **state)
{
	Strbuf b = { 0 };
	llmc_error err;

	(void)state;
	setenv("HOME", "/home/x", 1);
	unsetenv("LLMC_CACHE");
	unsetenv("XDG_CACHE_HOME");
	assert_int_equal(file_cache_dir(&b, &err), LLMC_OK);
	assert_string_equal(strbuf_str(&b), "/home/x/.cache/llmc");
	/* the XDG specification does not allow relative paths, so the variable is ignored */
	setenv("XDG_CACHE_HOME", "relative", 1);
	assert_int_equal(file_cache_dir(&b, &err), LLMC_OK);
	assert_string_equal(strbuf_str(&b), "/home/x/.cache/llmc");
	setenv("XDG_CACHE_HOME", "/cache", 1);
	assert_int_equal(file_cache_dir(&b, &err), LLMC_OK);
	assert_string_equal(strbuf_str(&b), "/cache/llmc");
	setenv("LLMC_CACHE", "/own", 1);
	assert_int_equal(file_cache_dir(&b, &err), LLMC_OK);
	assert_string_equal(strbuf_str(&b), "/own");
	unsetenv("LLMC_CACHE");
	unsetenv("XDG_CACHE_HOME");
	unsetenv("HOME");
	assert_int_equal(file_cache_dir(&b, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, "LLMC_CACHE"));

	file_join(&b, "dir", "name");
	assert_string_equal(strbuf_str(&b), "dir/name");
	file_join(&b, "dir", "/name");
	assert_string_equal(strbuf_str(&b), "/name");
	file_join(&b, "", "name");
	assert_string_equal(strbuf_str(&b), "name");
	file_join(&b, NULL, "name");
	assert_string_equal(strbuf_str(&b), "name");
	strbuf_release(&b);
}

/* The read of a truncated map returns zeros; without the guard it ends the process by SIGBUS. The
 * other map is intact. */
static void
a_truncated_map_reads_as_zeros(void **state)
{
	const Tempdir *dir = *state;
	static char big[100000];
	llmc_error err;
	FileMap cut, whole;
	char path[2][600];

	memset(big, 7, sizeof big);
	for (int i = 0; i < 2; i++) {
		snprintf(path[i], sizeof path[i], "%s", tempdir_file(dir, i ? "whole" : "cut"));
		assert_int_equal(file_write(path[i], big, sizeof big, &err), LLMC_OK);
		assert_int_equal(file_map(path[i], i ? &whole : &cut, &err), LLMC_OK);
	}
	assert_int_equal(file_guard_install(&err), LLMC_OK);
	unsigned before = file_faults();
	assert_int_equal(truncate(path[0], 50), 0);
	const volatile unsigned char *bytes = cut.data;
	assert_int_equal(bytes[0], 7);
	assert_int_equal(file_faults(), before);
	assert_int_equal(bytes[50000], 0);
	assert_int_equal(bytes[99999], 0);
	assert_int_equal(file_faults(), before + 1);
	assert_memory_equal(whole.data, big, sizeof big);
	file_unmap(&cut);
	file_unmap(&whole);
	signal(SIGBUS, SIG_DFL);
}

/* A FIFO in a model's folder must not block a thread until another process writes to it. */
static void
fifos_are_no_files(void **state)
{
	const Tempdir *dir = *state;
	const char *path = tempdir_file(dir, "fifo");
	llmc_error err;
	FileMap m;
	Strbuf b = { 0 };

	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(file_map(path, &m, &err), LLMC_E_IO);
	assert_non_null(strstr(err.text, "not a regular file"));
	assert_int_equal(file_read(path, 100, &b, &err), LLMC_E_IO);
	assert_int_equal(file_read("/dev/null", 100, &b, &err), LLMC_OK);
	strbuf_release(&b);
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, tempdir_setup, tempdir_teardown)
	const struct CMUnitTest tests[] = {
		T(written_bytes_are_read_back),
		T(unchanged_files_are_left_alone),
		T(failed_writes_leave_the_old_file),
		T(errors_name_missing_and_special_files),
		T(a_truncated_map_reads_as_zeros),
		T(folders_are_made),
		T(files_that_others_may_write_are_not_trusted),
		T(fifos_are_no_files),
		cmocka_unit_test(cache_folder_follows_the_environment),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

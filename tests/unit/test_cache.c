/* The cache of built code. Entries are read back complete or not at all, whatever happens to
 * writers, files and the disk. The size limit holds, and the least recently used entries are
 * evicted first, except those in use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/build_cache.h"
#include "base/file.h"
#include "base/program.h"
#include "base/checksummed_file.h"
#include "base/sha256.h"
#include "tests/unit/tempdir.h"

static Tempdir dir;

/* An empty cache, limited to `size` (NULL: the default). */
static void
fresh(Cache *c, const char *size)
{
	llmc_error err;

	tempdir_remove(dir.path);
	mkdir(dir.path, 0700);
	setenv("LLMC_CACHE", tempdir_file(&dir, "cache"), 1);
	size ? setenv("LLMC_CACHE_SIZE", size, 1) : unsetenv("LLMC_CACHE_SIZE");
	if (cache_open(c, NULL, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	assert_true(cache_keeps(c));
}

static void
key_of(int n, char key[65])
{
	Sha256 sum;

	sha256_init(&sum);
	sha256_add(&sum, &n, sizeof n);
	sha256_hex(&sum, key);
}

/* Contents of entry n: bytes determined by n, and also the length if `bytes` is 0 */
static void
contents_of(int n, size_t bytes, Strbuf *out)
{
	strbuf_clear(out);
	for (size_t i = 0; i < (bytes ? bytes : 1000 + (size_t)n * 37 % 5000); i++)
		strbuf_putc(out, (char)(n * 31 + (int)(i * 7) % 251));
}

static llmc_status
put(const Cache *c, int n, size_t bytes, CacheEntry *e)
{
	Strbuf text = { 0 };
	char key[65];

	key_of(n, key);
	contents_of(n, bytes, &text);
	llmc_status status = cache_put(c, "so", key, text.data, text.len, e, NULL);
	strbuf_release(&text);
	return status;
}

/* Returns whether entry n exists; if so, checks its contents. */
static bool
is_cached(const Cache *c, int n, size_t bytes)
{
	Strbuf text = { 0 }, got = { 0 };
	CacheEntry e = { 0 };
	char key[65];

	key_of(n, key);
	contents_of(n, bytes, &text);
	llmc_status status = cache_find(c, "so", key, &e, &got, NULL);
	bool same =
	    status != LLMC_OK || (got.len == text.len && !memcmp(got.data, text.data, got.len));
	strbuf_release(&text);
	strbuf_release(&got);
	cache_entry_release(&e);
	assert_true(same);
	assert_true(status == LLMC_OK || status == LLMC_E_IO);
	return status == LLMC_OK;
}

static void
path_of(const Cache *c, int n, char path[900])
{
	char key[65];

	key_of(n, key);
	snprintf(path, 900, "%.700s/%s.so", strbuf_str(&c->dir), key);
}

/* Set the last use of entry n to so many seconds after 2001. */
static void
used_at(const Cache *c, int n, time_t s)
{
	const struct timespec t[2] = { { .tv_sec = 1000000000 + s }, { .tv_sec = 1000000000 + s } };
	char path[900];

	path_of(c, n, path);
	assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

/* Number of files below a folder of the cache, and their bytes */
static int
files(const Cache *c, const char *below, int64_t *bytes)
{
	char path[900];
	struct stat st;
	int n = 0;

	snprintf(path, sizeof path, "%.700s%s", strbuf_str(&c->dir), below);
	DIR *d = opendir(path);
	*bytes = 0;
	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		if (e->d_name[0] != '.' && fstatat(dirfd(d), e->d_name, &st, 0) == 0) {
			n++;
			*bytes += st.st_size;
		}
	if (d)
		closedir(d);
	return n;
}

static void
entries_are_read_back(void **state)
{
	Cache c;
	CacheEntry e = { 0 };
	int64_t bytes;
	char path[900];
	struct stat st;

	(void)state;
	fresh(&c, NULL);
	assert_false(is_cached(&c, 1, 0));
	assert_int_equal(put(&c, 1, 0, NULL), LLMC_OK);
	assert_int_equal(put(&c, 2, 0, &e), LLMC_OK);
	path_of(&c, 2, path);
	assert_string_equal(strbuf_str(&e.path), path);
	cache_entry_release(&e);
	for (int i = 1; i <= 2; i++)
		assert_true(is_cached(&c, i, 0));
	assert_false(is_cached(&c, 3, 0));
	/* the kind is part of the key, the contents may be any bytes, and files are readable by
	 * their owner only */
	char key[65];
	key_of(1, key);
	assert_int_equal(cache_put(&c, "emu", key, "\0\1", 2, NULL, NULL), LLMC_OK);
	assert_true(is_cached(&c, 1, 0));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(files(&c, "", &bytes), 3);
	assert_int_equal(files(&c, "/.tmp", &bytes), 0);
	cache_close(&c);
}

static void
damaged_entries_are_not_used(void **state)
{
	Cache c;
	CacheEntry e = { 0 };
	llmc_error err;
	char path[900], key[65], other[900];
	struct stat st;

	(void)state;
	fresh(&c, NULL);
	path_of(&c, 1, path);
	key_of(1, key);
	for (int how = 0; how < 6; how++) {
		assert_int_equal(put(&c, 1, 0, NULL), LLMC_OK);
		assert_int_equal(stat(path, &st), 0);
		int fd = open(path, O_RDWR);
		assert_true(fd >= 0);
		const off_t flip = how == 3 ? 500 : how == 4 ? st.st_size - 100 : -1;
		if (how < 3)
			assert_int_equal(ftruncate(fd, how == 0   ? 0
			                               : how == 1 ? 100
			                                          : st.st_size - 1),
			                 0);
		char byte;
		if (flip >= 0) {
			assert_int_equal(pread(fd, &byte, 1, flip), 1);
			byte ^= 4;
			assert_int_equal(pwrite(fd, &byte, 1, flip), 1);
		}
		close(fd);
		if (how == 5) { /* an entry has the name of another entry */
			assert_int_equal(put(&c, 2, 0, NULL), LLMC_OK);
			path_of(&c, 2, other);
			assert_int_equal(rename(other, path), 0);
		}
		assert_int_equal(cache_find(&c, "so", key, &e, NULL, &err), LLMC_E_CHECK);
		assert_non_null(strstr(err.text, how == 5 ? "built from another source"
		                                          : "damaged or cut off"));
		assert_int_equal(e.held, 0);
		/* a writer replaces the damaged entry */
		assert_int_equal(put(&c, 1, 0, NULL), LLMC_OK);
		assert_true(is_cached(&c, 1, 0));
	}
	chmod(path, 0622);
	assert_int_equal(cache_find(&c, "so", key, &e, NULL, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "others may write to it"));
	cache_entry_release(&e);
	cache_close(&c);
	chmod(tempdir_file(&dir, "cache/kernels"), 0777);
	assert_int_equal(cache_open(&c, NULL, &err), LLMC_E_INPUT);
	assert_false(cache_keeps(&c));
	cache_close(&c);
}

/* Ten entries of 10,000 bytes fit; the eleventh reduces the cache to 90 %. */
static void
least_recently_used_entries_are_evicted(void **state)
{
	const size_t size = 10000 - CHECKSUM_TRAILER_BYTES;
	Cache c;
	CacheEntry held = { 0 };
	char key[65];
	int64_t bytes;

	(void)state;
	fresh(&c, "100000");
	for (int i = 0; i < 10; i++) {
		assert_int_equal(put(&c, i, size, NULL), LLMC_OK);
		used_at(&c, i, i);
	}
	assert_int_equal(files(&c, "", &bytes), 10);
	assert_int_equal(bytes, 100000);
	assert_true(is_cached(&c, 0, size)); /* most recently used */
	key_of(2, key);
	/* entry 1 is in use, so it is kept although its time is the oldest */
	assert_int_equal(cache_find(&c, "so", key, &held, NULL, NULL), LLMC_OK);
	used_at(&c, 2, 0);
	assert_int_equal(put(&c, 10, size, NULL), LLMC_OK);
	assert_int_equal(files(&c, "", &bytes), 9);
	assert_true(bytes <= 90000);
	for (int i = 0; i <= 10; i++)
		assert_int_equal(is_cached(&c, i, size), i != 1 && i != 3);
	/* after its release the entry is evicted next */
	cache_entry_release(&held);
	used_at(&c, 2, 0);
	assert_int_equal(put(&c, 11, size, NULL), LLMC_OK);
	assert_int_equal(put(&c, 12, size, NULL), LLMC_OK);
	assert_false(is_cached(&c, 2, size));
	assert_true(is_cached(&c, 12, size));
	/* the stored byte count is missing, or wrong for this cache: entries are counted again */
	assert_int_equal(truncate(tempdir_file(&dir, "cache/kernels/.usage"), 5), 0);
	for (int i = 20; i < 60; i++)
		assert_int_equal(put(&c, i, size, NULL), LLMC_OK);
	files(&c, "", &bytes);
	assert_true(bytes <= 100000);
	cache_close(&c);
}

static void
switched_off(void **state)
{
	Cache c;
	CacheEntry e = { 0 };
	llmc_error err;
	char key[65];

	(void)state;
	fresh(&c, NULL);
	cache_close(&c);
	tempdir_remove(tempdir_file(&dir, "cache"));
	setenv("LLMC_CACHE_SIZE", "0", 1);
	assert_int_equal(cache_open(&c, NULL, &err), LLMC_OK);
	assert_false(cache_keeps(&c));
	key_of(1, key);
	assert_int_equal(put(&c, 1, 0, NULL), LLMC_E_IO);
	assert_int_equal(cache_find(&c, "so", key, &e, NULL, &err), LLMC_E_IO);
	assert_false(file_exists(tempdir_file(&dir, "cache")));
	cache_close(&c);
	setenv("LLMC_CACHE_SIZE", "much", 1);
	assert_int_equal(cache_open(&c, NULL, &err), LLMC_E_INPUT);
	assert_non_null(strstr(err.text, "LLMC_CACHE_SIZE is \"much\": expected a size"));
	assert_false(cache_keeps(&c));
	unsetenv("LLMC_CACHE_SIZE");
	cache_close(&c);
	cache_entry_release(&e);
}

/* Write and read a few entries at random, in a cache that always evicts. A reader finds an entry as
 * it was written, or none; an entry in use is not evicted. */
static int
worker(unsigned seed)
{
	Cache c;
	CacheEntry e = { 0 };

	if (cache_open(&c, NULL, NULL) != LLMC_OK)
		return 1;
	for (int i = 0; i < 300; i++) {
		int n = rand_r(&seed) % 30;
		if (rand_r(&seed) % 2) {
			if (put(&c, n, 0, &e) != LLMC_OK)
				return 2;
			if (access(strbuf_str(&e.path), R_OK) != 0)
				return 3;
			cache_entry_release(&e);
		} else {
			Strbuf want = { 0 }, got = { 0 };
			char key[65];
			key_of(n, key);
			contents_of(n, 0, &want);
			llmc_status status = cache_find(&c, "so", key, &e, &got, NULL);
			if (status != LLMC_OK && status != LLMC_E_IO)
				return 4;
			if (status == LLMC_OK &&
			    (got.len != want.len || memcmp(got.data, want.data, got.len)))
				return 5;
			if (status == LLMC_OK && access(strbuf_str(&e.path), R_OK) != 0)
				return 6;
			cache_entry_release(&e);
			strbuf_release(&want);
			strbuf_release(&got);
		}
	}
	cache_close(&c);
	return 0;
}

static void
many_processes_at_once(void **state)
{
	enum { N = 8 };
	Cache c;
	pid_t pid[N];
	int code;
	int64_t bytes;

	(void)state;
	fresh(&c, "60000");
	for (int i = 0; i < N; i++)
		if ((pid[i] = fork()) == 0)
			_exit(worker((unsigned)i));
	for (int i = 0; i < N; i++) {
		assert_int_equal(waitpid(pid[i], &code, 0), pid[i]);
		assert_int_equal(code, 0);
	}
	assert_int_equal(files(&c, "/.tmp", &bytes), 0);
	assert_int_equal(put(&c, 100, 0, NULL), LLMC_OK); /* no entry is in use any more */
	files(&c, "", &bytes);
	assert_true(bytes <= 60000);
	cache_close(&c);
}

/* Writers killed at any moment: entries are complete or absent, no lock remains, and temporary
 * files are removed once they are old. */
static void
killed_writers_leave_no_partial_entry(void **state)
{
	Cache c;
	Strbuf tmp = { 0 };
	unsigned seed = 7;
	int64_t bytes;
	int left;

	(void)state;
	fresh(&c, "60000");
	for (int round = 0; round < 200; round++) {
		pid_t pid = fork();
		if (pid == 0)
			for (unsigned i = 0;; i++)
				if (worker(i))
					_exit(1);
		assert_true(pid > 0);
		usleep((useconds_t)(rand_r(&seed) % 4000));
		kill(pid, SIGKILL);
		int code;
		assert_int_equal(waitpid(pid, &code, 0), pid);
		assert_true(WIFSIGNALED(code));
		if (round % 10 == 0)
			for (int n = 0; n < 30; n++)
				is_cached(&c, n, 0);
	}
	/* the next writer works, and the byte count becomes right after some writes */
	assert_int_equal(put(&c, 100, 0, NULL), LLMC_OK);
	assert_true(is_cached(&c, 100, 0));
	left = files(&c, "/.tmp", &bytes);
	char path[900];
	snprintf(path, sizeof path, "%.700s/.tmp", strbuf_str(&c.dir));
	DIR *d = opendir(path);
	const struct timespec old[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };
	for (struct dirent *e; (e = readdir(d)) != NULL;)
		if (e->d_name[0] != '.')
			utimensat(dirfd(d), e->d_name, old, 0);
	closedir(d);
	assert_int_equal(cache_temporary(&c, &tmp, NULL), LLMC_OK);
	assert_non_null(strstr(strbuf_str(&tmp), "/cache/kernels/.tmp/"));
	if (files(&c, "/.tmp", &bytes) != 1)
		fail_msg("some of %d temporary files were not removed", left);
	cache_temporary_remove(strbuf_str(&tmp));
	assert_int_equal(files(&c, "/.tmp", &bytes), 0);
	strbuf_release(&tmp);
	cache_close(&c);
}

/* With a limit on file sizes, writes fail like on a full disk. */
static void
writes_beyond_the_file_size_limit_fail(void **state)
{
	const struct rlimit tight = { 3000, 3000 };
	Cache c;
	int code;

	(void)state;
	fresh(&c, NULL);
	assert_int_equal(put(&c, 1, 2000, NULL), LLMC_OK);
	pid_t pid = fork();
	if (pid == 0) {
		llmc_error err = { 0 };
		int64_t bytes;
		char key[65], text[5000] = "";
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &tight);
		key_of(2, key);
		bool ok = cache_put(&c, "so", key, text, sizeof text, NULL, &err) == LLMC_E_IO &&
		          strstr(err.text, "cannot write: File too large") &&
		          files(&c, "/.tmp", &bytes) == 0 && files(&c, "", &bytes) == 1 &&
		          is_cached(&c, 1, 2000) && put(&c, 3, 100, NULL) == LLMC_OK;
		_exit(ok ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &code, 0), pid);
	assert_int_equal(code, 0);
	assert_true(is_cached(&c, 3, 100));
	cache_close(&c);
}

/* Create a namespace in which this process may mount: as root, else as root of a user namespace */
static bool
may_mount(void)
{
	char map[64];
	int fd, n = snprintf(map, sizeof map, "0 %u 1", (unsigned)geteuid());

	if (unshare(CLONE_NEWNS) != 0) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
		    (fd = open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC)) < 0)
			return false;
		bool mapped = write(fd, map, (size_t)n) == n;
		close(fd);
		if (!mapped)
			return false;
	}
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* Run the test on a private 64 KB disk; return 77 if the kernel does not allow to mount one */
static int
on_a_small_disk(void)
{
	Cache c;
	llmc_error err = { 0 };
	Strbuf tmp = { 0 };
	int64_t bytes;
	int n = 0;

	if (!may_mount() || mount("none", dir.path, "tmpfs", 0, "size=64k,mode=700") != 0)
		return 77;
	if (cache_open(&c, NULL, &err) != LLMC_OK)
		return 1;
	while (n < 100 && put(&c, n, 9000, NULL) == LLMC_OK)
		n++;
	char key[65], text[9000] = "";
	key_of(200, key);
	if (n < 2 || n > 7 ||
	    cache_put(&c, "so", key, text, sizeof text, NULL, &err) != LLMC_E_IO ||
	    !strstr(err.text, "cannot write: No space left on device"))
		return 2;
	for (int i = 0; i < n; i++)
		if (!is_cached(&c, i, 9000))
			return 3;
	if (files(&c, "/.tmp", &bytes) != 0)
		return 4;
	/* compilers must write to another disk */
	if (cache_temporary(&c, &tmp, NULL) != LLMC_OK || strstr(strbuf_str(&tmp), dir.path))
		return 5;
	cache_temporary_remove(strbuf_str(&tmp));
	return file_exists(strbuf_str(&tmp)) ? 6 : 0;
}

static void
a_full_disk(void **state)
{
	Cache c;
	int code;

	(void)state;
	fresh(&c, NULL);
	cache_close(&c);
	pid_t pid = fork();
	if (pid == 0)
		_exit(on_a_small_disk());
	assert_int_equal(waitpid(pid, &code, 0), pid);
	assert_true(WIFEXITED(code));
	if (WEXITSTATUS(code) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(code), 0);
}

static void
lookups_are_counted(void **state)
{
	Cache c;
	CacheEntry e = { 0 };
	char key[65], path[900], got[3000] = "";

	(void)state;
	fresh(&c, NULL);
	setenv("LLMC_CACHE_STATS", tempdir_file(&dir, "stats"), 1);
	is_cached(&c, 1, 0);
	put(&c, 1, 0, NULL);
	is_cached(&c, 1, 0);
	path_of(&c, 1, path);
	assert_int_equal(truncate(path, 10), 0);
	key_of(1, key);
	cache_find(&c, "so", key, &e, NULL, NULL);
	/* the answer of a tool is not a compilation */
	cache_find(&c, CACHE_ANSWERS, key, &e, NULL, NULL);
	cache_close(&c);
	cache_find(&c, "emu", key, &e, NULL, NULL); /* the cache is off, so this must be compiled */
	unsetenv("LLMC_CACHE_STATS");
	cache_entry_release(&e);
	FILE *f = fopen(tempdir_file(&dir, "stats"), "r");
	assert_non_null(f);
	(void)!fread(got, 1, sizeof got - 1, f);
	fclose(f);
	char *real = realpath(tempdir_file(&dir, "cache/kernels"), NULL), want[3000];
	assert_non_null(real);
	snprintf(want, sizeof want,
	         "miss so %s\nhit so %s\ndamaged so %s\nmiss so %s\nmiss emu -\n", real, real, real,
	         real);
	free(real);
	assert_string_equal(got, want);
}

static void
compilers_are_identified_by_their_files(void **state)
{
	char one[65], two[65], path[600];
	Cache c;

	(void)state;
	fresh(&c, NULL);
	cache_close(&c);
	assert_true(program_key("/bin/sh", "--version", one));
	assert_true(program_key("/bin/sh", "--version", two));
	assert_string_equal(one, two);
	assert_true(program_key("/bin/sh", "--help", two));
	assert_string_not_equal(one, two);
	/* a compiler that is a script is not cached by its contents, because it may run another
	 * program next time */
	snprintf(path, sizeof path, "%s/cc", dir.path);
	FILE *f = fopen(path, "w");
	fputs("#!/bin/sh\nexec cc \"$@\"\n", f);
	fclose(f);
	assert_false(program_key(path, "--version", one));
	snprintf(path, sizeof path, "%s/ccache", dir.path);
	f = fopen(path, "w");
	fputs("\177ELF and so on", f);
	fclose(f);
	assert_false(program_key(path, "--version", one));
	assert_false(program_key("/nonexistent/cc", "--version", one));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_read_back),
		cmocka_unit_test(damaged_entries_are_not_used),
		cmocka_unit_test(least_recently_used_entries_are_evicted),
		cmocka_unit_test(switched_off),
		cmocka_unit_test(many_processes_at_once),
		cmocka_unit_test(killed_writers_leave_no_partial_entry),
		cmocka_unit_test(writes_beyond_the_file_size_limit_fail),
		cmocka_unit_test(a_full_disk),
		cmocka_unit_test(lookups_are_counted),
		cmocka_unit_test(compilers_are_identified_by_their_files),
	};

	if (tempdir_open(&dir))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	tempdir_close(&dir);
	return failed;
}

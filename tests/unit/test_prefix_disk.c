/* Prefix pages as files: a saved page is read back unchanged, also by the next server process and
 * before it is written. Files that are damaged, truncated, or of other tokens or another model are
 * not used and are deleted. The size limit holds, and a full disk is not an error. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "runtime/engine/engine.h"
#include "runtime/kv/kv_disk.h"
#include "tempdir.h"

enum { BYTES = 1000 };

static Tempdir temp;
static char *const dir = temp.path;
static int n_logged;

static void
on_log(void *user, int level, const char *line)
{
	(void)user;
	(void)level;
	assert_non_null(strstr(line, "cannot be written"));
	n_logged++;
}

static KvDisk *
open_disk(const char *root, int64_t most)
{
	KvDisk *d;
	llmc_error err;

	if (kv_disk_open(dir, most, root, BYTES, on_log, NULL, &d, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return d;
}

/* Key of page n of a sequence that begins with `text`. */
static KvKey
key_of(const KvDisk *d, int text, int n, int32_t tok[PLAN_KV_PAGE])
{
	KvKey key = kv_disk_root(d, -5);

	for (int p = 0; p <= n; p++) {
		for (int i = 0; i < PLAN_KV_PAGE; i++)
			tok[i] = text * 1000 + p * PLAN_KV_PAGE + i;
		kv_disk_next(&key, tok);
	}
	return key;
}

static void
put(KvDisk *d, int text, int n)
{
	int32_t tok[PLAN_KV_PAGE];
	KvKey key = key_of(d, text, n, tok);

	if (!kv_disk_wants(d, &key))
		return;
	char *page = kv_disk_page(d);
	assert_non_null(page);
	memset(page, text + n, BYTES);
	kv_disk_save(d, &key, tok, page);
}

static bool
get(KvDisk *d, int text, int n)
{
	int32_t tok[PLAN_KV_PAGE];
	char page[BYTES];
	KvKey key = key_of(d, text, n, tok);

	if (!kv_disk_load(d, &key, tok, page))
		return false;
	for (int i = 0; i < BYTES; i++)
		assert_int_equal((unsigned char)page[i], text + n);
	return true;
}

static int
set_up(void **state)
{
	(void)state;
	n_logged = 0;
	return tempdir_open(&temp);
}

static int
tear_down(void **state)
{
	(void)state;
	tempdir_close(&temp);
	return 0;
}

static void
pages_are_read_back(void **state)
{
	KvDisk *d = open_disk("a", 1 << 20);

	(void)state;
	for (int n = 0; n < 5; n++) {
		assert_false(get(d, 1, n));
		put(d, 1, n);
		assert_true(get(d, 1, n)); /* written or still queued */
	}
	kv_disk_flush(d);
	assert_int_equal(kv_disk_counts(d).written, 5);
	put(d, 1, 3); /* exists already */
	kv_disk_close(d);
	d = open_disk("a", 1 << 20);
	KvDisk *same_folder = open_disk("a", 1 << 20), *other = open_disk("b", 1 << 20);
	for (int n = 0; n < 5; n++)
		assert_true(get(d, 1, n) && get(same_folder, 1, n) && !get(other, 1, n) &&
		            !get(d, 2, n));
	put(same_folder, 7, 0);
	kv_disk_flush(same_folder);
	assert_true(get(d, 7, 0)); /* while both servers run */
	assert_int_equal(kv_disk_counts(d).written, 0);
	assert_int_equal(kv_disk_counts(d).wrong, 0);
	kv_disk_close(d);
	kv_disk_close(same_folder);
	kv_disk_close(other);
	kv_disk_close(NULL);
}

/* Path of the only file of the folder, or the n-th; returns the number of files */
static int
files(char *path, size_t cap, int n)
{
	DIR *at = opendir(dir);
	int seen = 0;

	for (struct dirent *e; (e = readdir(at));)
		if (e->d_name[0] != '.' && seen++ == n && path)
			snprintf(path, cap, "%s/%s", dir, e->d_name);
	closedir(at);
	return seen;
}

/* A file is never used, and is deleted if possible, if any byte is flipped, if it is truncated
 * anywhere, if it has trailing bytes or another page's bytes, or if it is a folder or a link. */
static void
damaged_files_are_not_used(void **state)
{
	KvDisk *d = open_disk("a", 1 << 20);
	char path[600], moved[600], good[2000], bad[2000];

	(void)state;
	put(d, 1, 0);
	kv_disk_flush(d);
	assert_int_equal(files(path, sizeof path, 0), 1);
	FILE *f = fopen(path, "rb");
	size_t size = fread(good, 1, sizeof good, f), times = 0;
	fclose(f);
	assert_true(size > BYTES && size < sizeof good);
	for (size_t i = 0; i < size + 4; i += i < 250 ? 7 : 41) {
		size_t n = i < size ? size : i == size ? 0 : i == size + 1 ? size - 1 : size + 1;
		memcpy(bad, good, size);
		if (i < size)
			bad[i] ^= 0x10;
		f = fopen(path, "wb");
		assert_int_equal(fwrite(bad, 1, n, f), n);
		fclose(f);
		assert_false(get(d, 1, 0));
		assert_int_equal(access(path, F_OK), -1);
		times++;
	}
	for (size_t cut = 0; cut < size; cut += 97) {
		f = fopen(path, "wb");
		fwrite(good, 1, cut, f);
		fclose(f);
		assert_false(get(d, 1, 0));
		times++;
	}
	f = fopen(path, "wb"); /* complete again */
	fwrite(good, 1, size, f);
	fclose(f);
	assert_true(get(d, 1, 0));
	snprintf(moved, sizeof moved, "%s/moved", dir);
	rename(path, moved);
	assert_int_equal(symlink(moved, path), 0);
	assert_false(get(d, 1, 0));
	unlink(path);
	/* another page's content under this name */
	put(d, 2, 0);
	kv_disk_flush(d);
	int32_t tok[PLAN_KV_PAGE];
	KvKey key = key_of(d, 2, 0, tok);
	snprintf(bad, sizeof bad, "%s/%s.kv", dir, key.hex);
	assert_int_equal(rename(bad, path), 0);
	assert_false(get(d, 1, 0));
	assert_int_equal(kv_disk_counts(d).wrong, times + 1);
	kv_disk_close(d);
	unlink(moved);
}

static void
least_recently_used_pages_go_first(void **state)
{
	KvDisk *d = open_disk("a", 20 * (BYTES + 300));

	(void)state;
	for (int n = 0; n < 12; n++)
		put(d, 1, n);
	kv_disk_flush(d);
	for (int n = 0; n < 200; n++) {
		char path[600];
		struct timespec old[2] = { { .tv_sec = 1000 + n }, { .tv_sec = 1000 + n } };
		put(d, 2 + n % 30, n / 30);
		kv_disk_flush(d);
		int32_t tok[PLAN_KV_PAGE];
		KvKey key = key_of(d, 2 + n % 30, n / 30, tok);
		snprintf(path, sizeof path, "%s/%s.kv", dir, key.hex);
		utimensat(AT_FDCWD, path, old, 0); /* the pages were used long ago, in this order */
		assert_true(get(d, 1, 0));         /* this page is used all the time */
	}
	assert_in_range(files(NULL, 0, 0), 10, 21);
	kv_disk_close(d);
	/* the limit is smaller than one page: it is deleted when the next page is written */
	d = open_disk("a", 1);
	put(d, 9, 9);
	kv_disk_flush(d);
	assert_in_range(files(NULL, 0, 0), 0, 1);
	kv_disk_close(d);
}

/* A full disk, simulated by a limit on file sizes. */
static void
a_full_disk_is_only_a_warning(void **state)
{
	struct rlimit was, little = { .rlim_cur = 500, .rlim_max = RLIM_INFINITY };
	KvDisk *d = open_disk("a", 1 << 20);

	(void)state;
	put(d, 1, 0);
	kv_disk_flush(d);
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	little.rlim_max = was.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
	for (int n = 1; n < 6; n++)
		put(d, 1, n);
	kv_disk_flush(d);
	setrlimit(RLIMIT_FSIZE, &was);
	assert_int_equal(kv_disk_counts(d).written, 1);
	assert_int_equal(kv_disk_counts(d).dropped, 5);
	assert_int_equal(n_logged, 1);
	assert_int_equal(files(NULL, 0, 0), 1);
	assert_true(get(d, 1, 0) && !get(d, 1, 1));
	kv_disk_close(d);
}

/* The limit applies to the folder, not to each server. */
static void
servers_share_the_limit(void **state)
{
	KvDisk *d[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		d[i] = open_disk("a", 32 * (BYTES + 300));
	for (int n = 0; n < 100; n++) { /* 25 pages each */
		put(d[n % 4], n, 0);
		kv_disk_flush(d[n % 4]);
	}
	for (int i = 0; i < 4; i++)
		kv_disk_close(d[i]);
	assert_in_range(files(NULL, 0, 0), 20, 45);
}

/* A temporary file of a server with the same pid, in another container or left by an earlier
 * process. */
static void
existing_temporary_names_are_skipped(void **state)
{
	char path[4096];

	(void)state;
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/.made-%ld-%d", dir, (long)getpid(), i);
		FILE *f = fopen(path, "wb");
		assert_non_null(f);
		fclose(f);
	}
	KvDisk *d = open_disk("a", 1 << 20);
	put(d, 1, 0);
	kv_disk_flush(d);
	assert_int_equal(kv_disk_counts(d).written, 1);
	assert_true(get(d, 1, 0) && n_logged == 0);
	kv_disk_close(d);
	assert_int_equal(access(path, F_OK), 0); /* not our file */
}

static void
the_folder_is_private(void **state)
{
	char below[300];
	KvDisk *d;
	llmc_error err;
	struct stat st;

	(void)state;
	snprintf(below, sizeof below, "%s/a/b", dir);
	assert_int_equal(kv_disk_open(below, 1, "a", BYTES, NULL, NULL, &d, &err), LLMC_OK);
	kv_disk_close(d);
	assert_int_equal(stat(below, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	chmod(below, 0750);
	assert_int_equal(kv_disk_open(below, 1, "a", BYTES, NULL, NULL, &d, &err), LLMC_E_INPUT);
	assert_non_null(
	    strstr(err.text, "must belong to this user and be closed to others (chmod 700)"));
	assert_null(d);
}

/* ---- with a model ---- */

enum { PROMPT = 100, NEW = 30 };

/* Answer to a prompt from an engine that uses the folder, and the number of prompt tokens found. */
static int32_t
answer(llmc_model *m, int32_t tok[NEW])
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_request r = LLMC_INIT(llmc_request);
	llmc_event ev = LLMC_INIT(llmc_event);
	int32_t prompt[PROMPT], n = 0;
	llmc_engine *e;
	llmc_error err;
	int64_t id = 0;

	o.limits = &l;
	o.prefix_dir = dir;
	l.context = 160;
	l.seqs = 2;
	l.chunk = 48;
	l.kv_tokens = 256;
	l.n_threads = 1;
	for (int i = 0; i < PROMPT; i++)
		prompt[i] = 3 + i * 7 % 280;
	p.max_tokens = NEW;
	p.ignore_eos = true;
	r.tok = prompt;
	r.n_tok = PROMPT;
	r.params = &p;
	if (llmc_engine_open(m, &o, &e, &err) != LLMC_OK ||
	    llmc_submit(e, &r, &id, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	do {
		assert_int_equal(llmc_next(e, id, -1, &ev, &err), LLMC_OK);
		assert_int_not_equal(ev.kind, LLMC_EVENT_ERROR);
		if (ev.kind == LLMC_EVENT_TOKEN)
			tok[n++] = ev.token;
	} while (!ev.last);
	assert_int_equal(n, NEW);
	int32_t found = ev.n_cached;
	llmc_counts c = LLMC_INIT(llmc_counts);
	llmc_engine_stats(e, &c);
	assert_int_equal(c.prefix_read, found);
	llmc_event_release(&ev);
	llmc_engine_close(e, -1);
	return found;
}

static void
a_restart_finds_cached_prompts(void **state)
{
	llmc_options o = LLMC_INIT(llmc_options);
	int32_t first[NEW], again[NEW];
	llmc_model *m, *other;
	llmc_error err;
	char path[600];

	(void)state;
	o.random_weights = true;
	o.n_threads = 1;
	if (llmc_open("configs/tiny.yaml", &o, &m, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	assert_int_equal(answer(m, first), 0);
	assert_int_equal(files(NULL, 0, 0),
	                 (PROMPT + NEW - 1) / PLAN_KV_PAGE); /* pages of prompt and answer */
	assert_int_equal(answer(m, again), 96);
	assert_memory_equal(first, again, sizeof first);
	/* one page is damaged: the pages before it are found, the damaged one is written again, and
	 * the answer does not change */
	assert_true(files(path, sizeof path, 1) > 1);
	assert_int_equal(truncate(path, 100), 0);
	assert_in_range(answer(m, again), 0, 96);
	assert_memory_equal(first, again, sizeof first);
	assert_int_equal(answer(m, again), 96);
	/* another KV type makes another model, whose pages have other contents */
	const char *set[] = { "kv.dtype=f32", NULL };
	o.set = set;
	assert_int_equal(llmc_open("configs/tiny.yaml", &o, &other, &err), LLMC_OK);
	assert_int_equal(answer(other, again), 0);
	llmc_close(other);
	llmc_close(m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pages_are_read_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(damaged_files_are_not_used, set_up, tear_down),
		cmocka_unit_test_setup_teardown(least_recently_used_pages_go_first, set_up,
		                                tear_down),
		cmocka_unit_test_setup_teardown(a_full_disk_is_only_a_warning, set_up, tear_down),
		cmocka_unit_test_setup_teardown(servers_share_the_limit, set_up, tear_down),
		cmocka_unit_test_setup_teardown(existing_temporary_names_are_skipped, set_up,
		                                tear_down),
		cmocka_unit_test_setup_teardown(the_folder_is_private, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_restart_finds_cached_prompts, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

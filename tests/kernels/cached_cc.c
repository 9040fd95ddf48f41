/* C compiler of tests that start with an empty cache of built code. A kernel that it compiled
 * before, for any test, comes from the cache of the test run instead:
 *
 *   LLMC_CC=build/cached_cc   a command line of runtime/cpu/cpu_compile.c is looked up; any other
 *                             one runs the compiler
 *   LLMC_TEST_CC              the compiler [cc]
 *   LLMC_TEST_CC_CACHE        root of the cache of the test run; without it nothing is cached
 *
 * The key is the compiler's version, the flags, the kernel and all headers of its folder, but no
 * path of the model. Only successful compilations are kept. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/program.h"
#include "base/sha256.h"
#include "base/text.h"
#include "runtime/build/kernel_build.h"

enum { MAX_BYTES = 1 << 28, NO_COMPILER = 127 };

typedef struct Command {
	const char *include, *output, *source; /* NULL: absent */
	bool piped;                            /* -pipe: a command line of the runtime */
} Command;

/* Returns the text after the first comment, which names the description's file; the whole text if
 * the compiler may end that comment elsewhere. */
static const char *
body(const char *text)
{
	const char *end = build_source_body(text);

	return memchr(text, '\\', (size_t)(end - text)) ? text : end;
}

/* Adds a file with its name; false if it cannot be read. */
static bool
add_file(Sha256 *sum, const char *name, const char *path)
{
	Strbuf text = { 0 };
	bool ok = file_read(path, MAX_BYTES, &text, NULL) == LLMC_OK;

	if (ok) {
		const char *from = body(strbuf_str(&text));
		const uint64_t n = strlen(from);
		sha256_add(sum, name, strlen(name) + 1);
		sha256_add(sum, &n, sizeof n);
		sha256_add(sum, from, n);
	}
	strbuf_release(&text);
	return ok;
}

/* Adds the headers of a folder and of its subfolders, in the order of their names. */
static bool
add_headers(Sha256 *sum, const char *dir)
{
	struct dirent **entry;
	int n = scandir(dir, &entry, NULL, alphasort);
	bool ok = n >= 0;

	for (int i = 0; i < n; i++) {
		const char *name = entry[i]->d_name;
		Strbuf path = { 0 };
		file_join(&path, dir, name);
		if (name[0] == '.' || path.failed)
			ok &= !path.failed;
		else if (file_is_dir(strbuf_str(&path)))
			ok = ok && add_headers(sum, strbuf_str(&path));
		else if (!ends_with(name, ".c"))
			ok = ok && add_file(sum, name, strbuf_str(&path));
		strbuf_release(&path);
		free(entry[i]);
	}
	if (n >= 0)
		free(entry);
	return ok;
}

/* Finds the paths of a command line, and adds its other arguments to the sum. */
static Command
read_command(char **arg, Sha256 *sum)
{
	Command c = { 0 };

	for (int i = 1; arg[i]; i++) {
		if (!strcmp(arg[i], "-o") && arg[i + 1])
			c.output = arg[++i];
		else if (!strncmp(arg[i], "-I", 2) && !c.include)
			c.include = arg[i] + 2;
		else if (ends_with(arg[i], ".c") && !c.source)
			c.source = arg[i];
		else
			sha256_add(sum, arg[i], strlen(arg[i]) + 1);
		c.piped |= !strcmp(arg[i], "-pipe");
	}
	return c;
}

/* Computes the key of a command line; false if its output is not cached. */
static bool
key_of(const Cache *cache, char **arg, Command *c, char key[65])
{
	char *version[] = { arg[0], (char *)"--version", NULL };
	Strbuf text = { 0 };
	Sha256 sum;

	sha256_init(&sum);
	*c = read_command(arg, &sum);
	bool ok = c->piped && c->include && c->output && c->source && cache_keeps(cache) &&
	          program_answer(cache, version, &text);
	if (ok)
		sha256_add(&sum, text.data, text.len);
	ok = ok && add_file(&sum, "source", c->source) && add_headers(&sum, c->include);
	strbuf_release(&text);
	sha256_hex(&sum, key);
	return ok;
}

/* Writes as a compiler does: the file itself, not a temporary one next to it. */
static bool
write_output(const char *path, const Strbuf *object)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0777);
	bool ok = fd >= 0;
	ssize_t n;

	for (size_t done = 0; ok && done < object->len; done += (size_t)n)
		if ((n = write(fd, object->data + done, object->len - done)) <= 0)
			ok = false;
	if (fd >= 0)
		ok &= close(fd) == 0;
	if (!ok) {
		perror(path);
		unlink(path);
	}
	return ok;
}

/* Runs the compiler and returns its exit status; ends by the signal that ended it. */
static int
compile(char **arg)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		execv(arg[0], arg);
		_exit(NO_COMPILER);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0)
		return NO_COMPILER;
	if (WIFSIGNALED(status))
		raise(WTERMSIG(status));
	return WEXITSTATUS(status);
}

int
main(int argc, char **arg)
{
	const char *own = getenv("LLMC_TEST_CC"), *root = getenv("LLMC_TEST_CC_CACHE");
	char cc[4096], key[65];
	Strbuf object = { 0 };
	CacheEntry entry = { 0 };
	Cache cache = { 0 };
	Command c;
	int code = 0;

	(void)argc;
	if (!program_find(own && *own ? own : "cc", cc, sizeof cc)) {
		fprintf(stderr, "cached_cc: no C compiler found\n");
		return NO_COMPILER;
	}
	arg[0] = cc;
	/* apply to the cache of the test */
	unsetenv("LLMC_CACHE_STATS");
	unsetenv("LLMC_CACHE_SIZE");
	if (!root || cache_open(&cache, root, NULL) != LLMC_OK || !key_of(&cache, arg, &c, key)) {
		execv(cc, arg);
		return NO_COMPILER;
	}
	if (cache_find(&cache, "test", key, &entry, &object, NULL) == LLMC_OK) {
		code = write_output(c.output, &object) ? 0 : 1;
	} else if ((code = compile(arg)) == 0 &&
	           file_read(c.output, MAX_BYTES, &object, NULL) == LLMC_OK) {
		(void)cache_put(&cache, "test", key, object.data, object.len, NULL, NULL);
	}
	cache_entry_release(&entry);
	strbuf_release(&object);
	cache_close(&cache);
	return code;
}

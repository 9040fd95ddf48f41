/* The system's C compiler: finding it, running it without a shell, and the flags of each target. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plan/target.h"
#include "runtime/cpu/cpu_kernels.h"

extern char **environ;

/* stdin from nowhere, stdout and stderr into the pipe; signals as a fresh process has them, whatever the host program
 * ignores or blocks, so that Ctrl-C ends the compiler too. */
static int
start(char *const argv[], int to, pid_t *pid)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	sigset_t none, all;
	int rc;

	if ((rc = posix_spawn_file_actions_init(&files)) != 0)
		return rc;
	if ((rc = posix_spawnattr_init(&attr)) != 0) {
		posix_spawn_file_actions_destroy(&files);
		return rc;
	}
	sigemptyset(&none);
	sigemptyset(&all);
	for (int s = 1; s < 32; s++)
		if (s != SIGKILL && s != SIGSTOP)
			sigaddset(&all, s);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	if ((rc = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0)) == 0 &&
	    (rc = posix_spawn_file_actions_adddup2(&files, to, 1)) == 0 &&
	    (rc = posix_spawn_file_actions_adddup2(&files, to, 2)) == 0)
		rc = posix_spawn(pid, argv[0], &files, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&files);
	return rc;
}

llmc_status
cc_run(char *const argv[], size_t cap, Strbuf *out, int *code, llmc_error *err)
{
	char piece[4096];
	int fd[2], state = 0, rc;
	pid_t pid;

	strbuf_clear(out);
	if (pipe2(fd, O_CLOEXEC) < 0)
		return error_set(err, LLMC_E_IO, "cannot start %s: %s", argv[0], strerror(errno));
	rc = start(argv, fd[1], &pid);
	close(fd[1]);
	if (rc) {
		close(fd[0]);
		return error_set(err, LLMC_E_IO, "cannot start %s: %s", argv[0], strerror(rc));
	}
	for (;;) {
		ssize_t n = read(fd[0], piece, sizeof piece);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		if (out->len < cap)
			strbuf_add(out, piece, (size_t)n < cap - out->len ? (size_t)n : cap - out->len);
	}
	close(fd[0]);
	while ((rc = waitpid(pid, &state, 0)) < 0 && errno == EINTR)
		;
	/* a host program that ignores SIGCHLD takes the status away: then what was made tells */
	*code = rc < 0 ? 0 : WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
	return LLMC_OK;
}

/* Run the compiler argv[0] with arguments (NULL-terminated), or take its answer from the cache while its file stays the same. false: it does not run, or
 * fails. *out holds its output either way. */
static bool
ask(char *const argv[], Strbuf *out)
{
	Strbuf question = { 0 }, answer = { 0 };
	Cache cache = { 0 };
	CacheEntry entry = { 0 };
	char key[65];
	int code = 1;

	for (int i = 1; argv[i]; i++)
		strbuf_printf(&question, "%s ", argv[i]);
	bool known = !question.failed && cache_program_key(argv[0], strbuf_str(&question), key);
	if (known && cache_open(&cache, NULL, NULL) == LLMC_OK && cache_find(&cache, CACHE_ANSWERS, key, &entry, &answer, NULL) == LLMC_OK && answer.len) {
		code = answer.data[0] != '0';
		strbuf_clear(out);
		strbuf_add(out, answer.data + 1, answer.len - 1);
	} else if (cc_run(argv, 1024, out, &code, NULL) != LLMC_OK) {
		code = 1;
	} else if (known && code < 128) {
		strbuf_clear(&answer);
		strbuf_printf(&answer, "%d%s", code != 0, strbuf_str(out));
		if (!answer.failed)
			(void)cache_put(&cache, CACHE_ANSWERS, key, answer.data, answer.len, NULL, NULL);
	}
	strbuf_release(&question);
	strbuf_release(&answer);
	cache_entry_release(&entry);
	cache_close(&cache);
	return code == 0 && !out->failed;
}

llmc_status
cc_find(char *path, size_t path_cap, char *version, size_t version_cap, llmc_error *err)
{
	const char *own = getenv("LLMC_CC");
	const char *name[] = { own && *own ? own : "cc", "gcc", "clang" };
	size_t n = own && *own ? 1 : sizeof name / sizeof *name;

	for (size_t i = 0; i < n; i++) {
		Strbuf text = { 0 };
		if (!file_find_program(name[i], path, path_cap))
			continue;
		char *argv[] = { path, (char *)"--version", NULL };
		bool ok = ask(argv, &text) && text.len;
		if (ok)
			snprintf(version, version_cap, "%.*s", (int)strcspn(strbuf_str(&text), "\n"), strbuf_str(&text));
		strbuf_release(&text);
		if (ok)
			return LLMC_OK;
	}
	if (path_cap)
		path[0] = 0;
	if (version_cap)
		version[0] = 0;
	if (own && *own)
		return error_set(err, LLMC_E_MISSING,
		                 "LLMC_CC is \"%s\", which is no C compiler that runs; unset it or give the path of gcc or clang", own);
	return error_set(err, LLMC_E_MISSING,
	                 "no C compiler found (cc, gcc or clang): llmc compiles the model's kernels with it; install one (`apt "
	                 "install gcc libc6-dev`), name one in LLMC_CC, or run without it, slowly, with --device ref");
}

/* Does the compiler take the flags of a target? said: what it has to say otherwise */
static bool
takes(const char *cc, const Target *t, Strbuf *said)
{
	char flags[512], *argv[64], *save = NULL;
	int  n = 0;

	if (snprintf(flags, sizeof flags, "%s", t->cflags) >= (int)sizeof flags)
		return false;
	argv[n++] = (char *)cc;
	for (char *w = strtok_r(flags, " ", &save); w && n < 56; w = strtok_r(NULL, " ", &save))
		argv[n++] = w;
	argv[n++] = (char *)"-Werror"; /* clang warns of what it does not know */
	argv[n++] = (char *)"-fsyntax-only";
	argv[n++] = (char *)"-x";
	argv[n++] = (char *)"c";
	argv[n++] = (char *)"/dev/null";
	argv[n] = NULL;
	return ask(argv, said);
}

const char *
cc_target(const char *target, char *why, size_t cap)
{
	char cc[1024], version[512];
	int at = 0;
	Strbuf said = { 0 };
	const char *best = NULL;

	why[0] = 0;
	if (cc_find(cc, sizeof cc, version, sizeof version, NULL) != LLMC_OK)
		return NULL;
	while (target_at(at) && strcmp(target_at(at)->name, target) != 0)
		at++;
	for (; at >= 0 && !best && target_at(at); at--) {
		const Target *t = target_at(at);
		if (t->kind != TARGET_CPU || !isa_runs(t->name))
			continue;
		if (takes(cc, t, &said))
			best = t->name;
		else if (!*why)
			snprintf(why, cap, "%s (%s) cannot compile for %s: %.*s", cc, version, t->name, (int)strcspn(strbuf_str(&said), "\n"), strbuf_str(&said));
	}
	strbuf_release(&said);
	return best;
}

llmc_status
cc_flags(const char *target, char ***flags, char **text, llmc_error *err)
{
	const char *extra = getenv("LLMC_KERNEL_CFLAGS");
	Strbuf b = { 0 };
	size_t n = 0;
	char *save = NULL;

	strbuf_printf(&b, "-std=gnu11 -fPIC -shared -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror %s %s",
	              target_find(target)->cflags, extra ? extra : "");
	*flags = b.failed ? NULL : calloc(b.len / 2 + 2, sizeof **flags);
	if (!*flags) {
		strbuf_release(&b);
		return error_set(err, LLMC_E_MEMORY, "out of memory");
	}
	*text = b.data;
	for (char *w = strtok_r(b.data, " \t\n", &save); w; w = strtok_r(NULL, " \t\n", &save))
		(*flags)[n++] = w;
	return LLMC_OK;
}

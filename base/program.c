#include "base/program.h"

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

#include "base/sha256.h"

bool
program_find(const char *name, char *path, size_t cap)
{
	const char *dirs = getenv("PATH");
	struct stat st;

	if (strchr(name, '/'))
		return (size_t)snprintf(path, cap, "%s", name) < cap && access(path, X_OK) == 0;
	for (dirs = dirs ? dirs : "/usr/bin:/bin"; *dirs;) {
		size_t n = strcspn(dirs, ":");
		if (n && (size_t)snprintf(path, cap, "%.*s/%s", (int)n, dirs, name) < cap &&
		    access(path, X_OK) == 0 && stat(path, &st) == 0 && S_ISREG(st.st_mode))
			return true;
		dirs += n + (dirs[n] == ':');
	}
	return false;
}

extern char **environ;

/* Spawn argv with stdin from /dev/null, and stdout and stderr to the pipe. Signals are reset to
 * their defaults, whatever the host program ignores or blocks, so that Ctrl-C also ends the
 * compiler. */
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
program_run(char *const argv[], size_t cap, Strbuf *out, int *code, llmc_error *err)
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
			strbuf_add(out, piece,
			           (size_t)n < cap - out->len ? (size_t)n : cap - out->len);
	}
	close(fd[0]);
	while ((rc = waitpid(pid, &state, 0)) < 0 && errno == EINTR)
		;
	/* If the host program ignores SIGCHLD, the status is lost: report 0, and let the caller
	 * check the output file. */
	*code = rc < 0 ? 0 : WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
	return LLMC_OK;
}

bool
program_key(const char *path, const char *question, char key[65])
{
	static const char *const wrapper[] = { "ccache", "distcc", "icecc", "sccache" };
	char head[4] = "", *real = realpath(path, NULL);
	const char *slash = real ? strrchr(real, '/') : NULL;
	struct stat st;
	Sha256 sum;
	int fd = real ? open(real, O_RDONLY | O_CLOEXEC) : -1;
	bool known =
	    fd >= 0 && fstat(fd, &st) == 0 && read(fd, head, 4) == 4 && !memcmp(head, "\177ELF", 4);

	for (size_t i = 0; known && i < sizeof wrapper / sizeof *wrapper; i++)
		known = !slash || strcmp(slash + 1, wrapper[i]) != 0;
	if (fd >= 0)
		close(fd);
	if (known) {
		const int64_t of[] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };
		sha256_init(&sum);
		sha256_add(&sum, real, strlen(real) + 1);
		sha256_add(&sum, of, sizeof of);
		sha256_add(&sum, question, strlen(question) + 1);
		sha256_hex(&sum, key);
	}
	free(real);
	return known;
}

bool
program_answer(const Cache *cache, char *const argv[], Strbuf *out)
{
	Strbuf question = { 0 }, answer = { 0 };
	CacheEntry entry = { 0 };
	char key[65];
	int code = 1;

	for (int i = 1; argv[i]; i++)
		strbuf_printf(&question, "%s ", argv[i]);
	bool known = !question.failed && program_key(argv[0], strbuf_str(&question), key);
	if (known && cache_find(cache, CACHE_ANSWERS, key, &entry, &answer, NULL) == LLMC_OK &&
	    answer.len) {
		code = answer.data[0] != '0';
		strbuf_clear(out);
		strbuf_add(out, answer.data + 1, answer.len - 1);
	} else if (program_run(argv, 1024, out, &code, NULL) != LLMC_OK) {
		code = 1;
	} else if (known && code < 128) {
		strbuf_clear(&answer);
		strbuf_printf(&answer, "%d%s", code != 0, strbuf_str(out));
		if (!answer.failed)
			(void)cache_put(cache, CACHE_ANSWERS, key, answer.data, answer.len, NULL,
			                NULL);
	}
	strbuf_release(&question);
	strbuf_release(&answer);
	cache_entry_release(&entry);
	return code == 0 && !out->failed;
}

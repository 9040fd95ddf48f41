/* Shared objects from kernel sources: several compilers at once, each into a temporary name that is renamed when whole.
 *
 * An object ends with the checksum of what precedes it, which the loader of ELF does not look at. So a file that was cut
 * off or damaged is found before it is opened (a truncated object may well kill the process that maps it), and two
 * processes that build the same one cannot mix theirs up. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"
#include "runtime/cpu/build.h"

enum { MAX_FLAGS = 256, STALE_S = 600 };
static const char mark[8] = "llmc so2"; /* format of the seal */
enum { SEAL_BYTES = 64 + 64 + sizeof mark }; /* key of the source, checksum of all before it, mark */

typedef struct Crew {
	Kernels        *k;
	atomic_int      next;
	pthread_mutex_t lock;
	pthread_cond_t  news;
	int             done;
} Crew;

static void
checksum(const void *data, size_t n, char hex[65])
{
	Sha256 s;

	sha256_init(&s);
	sha256_add(&s, data, n);
	sha256_hex(&s, hex);
}

llmc_status
object_check(const char *path, const char *source_key, llmc_error *err)
{
	FileMap m;
	char hex[65];

	if (!file_exists(path))
		return error_set(err, LLMC_E_IO, "%s: no such file", path);
	if (file_check_trusted(path, err) != LLMC_OK)
		return LLMC_E_INPUT;
	TRY(file_map(path, &m, err));
	const unsigned char *end = m.data + m.size;
	bool whole = m.size > SEAL_BYTES && !memcmp(end - sizeof mark, mark, sizeof mark);
	if (whole) {
		checksum(m.data, m.size - SEAL_BYTES + 64, hex);
		whole = !memcmp(end - SEAL_BYTES + 64, hex, 64);
	}
	bool ours = whole && !memcmp(end - SEAL_BYTES, source_key, 64);
	file_unmap(&m);
	if (!whole)
		return error_set(err, LLMC_E_CHECK, "%s: damaged or cut off", path);
	return ours ? LLMC_OK : error_set(err, LLMC_E_CHECK, "%s: built from another source", path);
}

/* Append the key and the checksum of everything up to it. */
static llmc_status
seal(const char *path, const char *source_key, llmc_error *err)
{
	FileMap m;
	Sha256 sum;
	char hex[65];

	TRY(file_map(path, &m, err));
	sha256_init(&sum);
	sha256_add(&sum, m.data, m.size);
	sha256_add(&sum, source_key, 64);
	sha256_hex(&sum, hex);
	file_unmap(&m);
	FILE *f = fopen(path, "abe");
	bool ok = f && fwrite(source_key, 1, 64, f) == 64 && fwrite(hex, 1, 64, f) == 64 &&
	          fwrite(mark, 1, sizeof mark, f) == sizeof mark && fflush(f) == 0 && (fsync(fileno(f)) == 0 || errno == EINVAL);
	int code = errno;
	if (f && fclose(f) != 0 && ok) {
		ok = false;
		code = errno;
	}
	return ok ? LLMC_OK : error_set(err, LLMC_E_IO, "%s: cannot write: %s", path, strerror(code));
}

static llmc_status
run_compiler(const Kernels *k, Unit *u, const char *tmp, bool lenient, Strbuf *text, int *code)
{
	char *argv[MAX_FLAGS + 16], include[1024];
	int n = 0;

	argv[n++] = (char *)k->cc;
	for (int i = 0; k->flag[i] && n < MAX_FLAGS; i++)
		argv[n++] = k->flag[i];
	if (lenient)
		argv[n++] = (char *)"-Wno-error";
	snprintf(include, sizeof include, "-I%s", strbuf_str(&k->root));
	argv[n++] = include;
	argv[n++] = (char *)"-pipe"; /* no files of its own to be left in /tmp */
	argv[n++] = (char *)"-o";
	argv[n++] = (char *)tmp;
	argv[n++] = (char *)strbuf_str(&u->source);
	argv[n++] = (char *)"-lm";
	argv[n] = NULL;
	return cc_run(argv, 1200, text, code, &u->error);
}

static llmc_status
compile(const Kernels *k, Unit *u, int number)
{
	char tmp[2048];
	const char *object = strbuf_str(&u->object), *slash = strrchr(object, '/');
	Strbuf text = { 0 }, again = { 0 };
	llmc_status status;
	int code = 0;

	if (snprintf(tmp, sizeof tmp, "%.*s/tmp.%ld.%d.so", (int)(slash - object), object, (long)getpid(), number) >=
	    (int)sizeof tmp)
		return error_set(&u->error, LLMC_E_IO, "%s: name too long", object);
	TRY_GOTO(run_compiler(k, u, tmp, false, &text, &code));
	if (code != 0 && code < 128) { /* a compiler may know warnings that ours do not: they are no reason to stop */
		TRY_GOTO(run_compiler(k, u, tmp, true, &again, &code));
		u->warned = code == 0;
	}
	if (code >= 128) {
		status = error_set(&u->error, LLMC_E_CANCELLED, "%s: the compiler %s was stopped by signal %d", u->file, k->cc,
		                   code - 128);
		goto fail;
	}
	if (code != 0 || !file_exists(tmp)) {
		status = error_set(&u->error, LLMC_E_MISSING, "%s: %s cannot compile it:\n%s", strbuf_str(&u->source), k->cc,
		                   strbuf_str(&text));
		goto fail;
	}
	TRY_GOTO(seal(tmp, u->source_key, &u->error));
	if (chmod(tmp, 0755) < 0 || rename(tmp, object) < 0)
		status = error_set(&u->error, LLMC_E_IO, "%s: cannot write: %s", object, strerror(errno));
fail:
	if (status != LLMC_OK)
		unlink(tmp);
	strbuf_release(&text);
	strbuf_release(&again);
	return status;
}

static void *
crew_main(void *arg)
{
	Crew *c = arg;

	for (int i; (i = atomic_fetch_add(&c->next, 1)) < c->k->n_unit;) {
		Unit *u = &c->k->unit[i];
		if (u->ready)
			continue;
		u->status = compile(c->k, u, i);
		pthread_mutex_lock(&c->lock);
		u->ready = u->status == LLMC_OK;
		c->done++;
		/* what failed once fails again: start no more */
		if (!u->ready)
			atomic_store(&c->next, c->k->n_unit);
		pthread_cond_signal(&c->news);
		pthread_mutex_unlock(&c->lock);
	}
	pthread_mutex_lock(&c->lock);
	c->done += 1 << 16; /* one of the crew has left */
	pthread_cond_signal(&c->news);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* Temporary files of processes that died while they compiled. */
static void
sweep(const char *object)
{
	char dir[1024], path[2048];
	const char *slash = strrchr(object, '/');
	struct stat st;

	snprintf(dir, sizeof dir, "%.*s", (int)(slash - object), object);
	DIR *d = opendir(dir);
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d)) != NULL;) {
		long pid = !strncmp(e->d_name, "tmp.", 4) ? strtol(e->d_name + 4, NULL, 10) : 0;
		if (pid <= 0 || (kill((pid_t)pid, 0) == 0 || errno != ESRCH))
			continue;
		snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
		if (stat(path, &st) == 0 && time(NULL) - st.st_mtime > STALE_S)
			unlink(path);
	}
	closedir(d);
}

llmc_status
kernels_compile(Kernels *k, llmc_error *err)
{
	Crew c = { .k = k };
	pthread_t thread[64];
	int n_thread = 0, n_job, todo = 0, shown = 0, crew;
	const char *first = NULL;
	sigset_t all, was;

	for (int i = 0; i < k->n_unit; i++)
		if (!k->unit[i].ready) {
			todo++;
			first = strbuf_str(&k->unit[i].object);
		}
	if (!todo)
		return LLMC_OK;
	sweep(first);
	n_job = k->opt.n_jobs > 0 ? k->opt.n_jobs : topology_threads();
	n_job = n_job > todo ? todo : n_job > 64 ? 64 : n_job;
	kernels_say(k, LLMC_LOG_INFO, "compiling %d kernel%s for %s with %s", todo, todo == 1 ? "" : "s", k->plan->target,
	            k->cc);
	pthread_mutex_init(&c.lock, NULL);
	pthread_cond_init(&c.news, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	while (n_thread < n_job && pthread_create(&thread[n_thread], NULL, crew_main, &c) == 0)
		n_thread++;
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (!n_thread) /* then the caller alone */
		crew_main(&c);
	crew = n_thread ? n_thread : 1;
	pthread_mutex_lock(&c.lock);
	for (;;) {
		int done = c.done & 0xffff;
		bool left = c.done >> 16 == crew;
		if (done > shown && (done == todo || done - shown >= (todo + 7) / 8)) {
			shown = done;
			pthread_mutex_unlock(&c.lock);
			kernels_say(k, LLMC_LOG_INFO, "compiled %d of %d kernels", done, todo);
			pthread_mutex_lock(&c.lock);
			continue;
		}
		if (left)
			break;
		pthread_cond_wait(&c.news, &c.lock);
	}
	pthread_mutex_unlock(&c.lock);
	for (int i = 0; i < n_thread; i++)
		pthread_join(thread[i], NULL);
	pthread_mutex_destroy(&c.lock);
	pthread_cond_destroy(&c.news);
	for (int i = 0; i < k->n_unit; i++) {
		if (k->unit[i].status != LLMC_OK) {
			if (err)
				*err = k->unit[i].error;
			return k->unit[i].status;
		}
		if (k->unit[i].warned)
			kernels_say(k, LLMC_LOG_WARNING, "%s: %s warns about it", k->unit[i].file, k->cc);
	}
	return LLMC_OK;
}

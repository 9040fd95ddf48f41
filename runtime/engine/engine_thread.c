/* Start threads of an engine. */
#include <signal.h>
#include <string.h>

#include "base/error.h"
#include "runtime/engine/engine_internal.h"

llmc_status
thread_start(void *(*fn)(void *user), void *user, pthread_t *out, llmc_error *err)
{
	sigset_t all, was;

	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* truncated files: base/file_guard.c */
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int failed = pthread_create(out, NULL, fn, user);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return failed ? error_set(err, LLMC_E_MEMORY,
	                          "cannot start a thread of the engine: "
	                          "%s",
	                          strerror(failed))
	              : LLMC_OK;
}

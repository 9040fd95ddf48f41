#include "base/thread.h"

#include <signal.h>

int
thread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *user), void *user)
{
	sigset_t all, was;

	sigfillset(&all);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int rc = pthread_create(out, attr, fn, user);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return rc;
}

/* Threads of the library. */
#ifndef LLMC_BASE_THREAD_H
#define LLMC_BASE_THREAD_H
#include <pthread.h>

/* Create a thread with signals blocked, so that the host program's own threads handle them. SIGBUS
 * is not blocked, because a thread that reads a truncated file handles it (base/file_guard.c).
 * Return 0 or an error number.
 */
int thread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *user), void *user);
#endif

/* A counter that wakes a thread waiting in poll(2) or a poller, by eventfd(2): the only file that
 * uses it. A port to another system replaces wakeup.c, by a pipe for example.
 *
 * A wakeup is a file descriptor, readable while its counter is above 0, and closed by close(2). */
#ifndef LLMC_BASE_WAKEUP_H
#define LLMC_BASE_WAKEUP_H
#include <stdbool.h>
#include <stdint.h>

/* A new counter of 0; -1 on failure, with errno. */
int wakeup_open(void);
/* Add n to the counter. A signal handler may call it. Nothing happens if the counter is full: the
 * waiting thread is awake then. */
void wakeup_add(int fd, uint64_t n);
/* Set the counter to 0 and return its value before. Does not wait. */
uint64_t wakeup_take(int fd);
#endif

/* A counter that wakes a thread waiting in poll(2) or a poller, by eventfd(2), which only wakeup.c
 * uses. A port to another system replaces wakeup.c, by a pipe for example.
 *
 * A wakeup is a file descriptor, readable while its counter is above 0, and closed by close(2). */
#ifndef LLMC_BASE_WAKEUP_H
#define LLMC_BASE_WAKEUP_H
#include <stdbool.h>
#include <stdint.h>

/* Create a counter with value 0; -1 on failure, with errno. */
int wakeup_open(void);
/* Add n to the counter. A signal handler may call it. If the counter is full nothing happens: the
 * waiting thread has been woken anyway. */
void wakeup_add(int fd, uint64_t n);
/* Set the counter to 0 and return its previous value. Does not wait. */
uint64_t wakeup_take(int fd);
#endif

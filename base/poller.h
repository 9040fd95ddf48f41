/* Wait for events of many file descriptors, by epoll(7), which only poller.c uses. A port to
 * another system replaces poller.c, by kqueue for example.
 *
 * A poller is a file descriptor, closed by close(2). Threads may share it. */
#ifndef LLMC_BASE_POLLER_H
#define LLMC_BASE_POLLER_H
#include <stdbool.h>

/* Events of a descriptor. POLLER_FAILED is reported even if it is not requested. */
enum {
	POLLER_READ = 1,   /* bytes, a connection or the end of the stream can be read */
	POLLER_WRITE = 2,  /* bytes can be written */
	POLLER_ENDED = 4,  /* the peer will send nothing more */
	POLLER_FAILED = 8, /* an error, or both directions are closed */
};

typedef struct PollerEvent {
	unsigned events; /* POLLER_* */
	void *data;      /* given by poller_add or poller_change */
} PollerEvent;

/* Create a poller; -1 on failure, with errno. */
int poller_open(void);
/* Report events of fd, together with `data`, until poller_remove. False on failure, with errno. */
bool poller_add(int poller, int fd, unsigned events, void *data);
/* Report other events, or other data, of an added descriptor. False on failure, with errno. */
bool poller_change(int poller, int fd, unsigned events, void *data);
/* Call it before close(fd): a process that is being started has a copy of fd until exec, so events
 * would still be reported. */
void poller_remove(int poller, int fd);
/* Write up to cap (1 to 64) events to out and return their number; 0 after ms milliseconds (-1: no
 * limit) or a signal; -1 on failure, with errno. */
int poller_wait(int poller, PollerEvent *out, int cap, int ms);
#endif

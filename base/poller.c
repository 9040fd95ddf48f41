#include "base/poller.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#define MOST 64

static const struct {
	unsigned ours;
	uint32_t epoll;
} flags[] = {
	{ POLLER_READ, EPOLLIN },
	{ POLLER_WRITE, EPOLLOUT },
	{ POLLER_ENDED, EPOLLRDHUP },
	{ POLLER_FAILED, EPOLLERR | EPOLLHUP },
};
#define N_FLAGS (sizeof flags / sizeof *flags)

int
poller_open(void)
{
	return epoll_create1(EPOLL_CLOEXEC);
}

static bool
control(int poller, int op, int fd, unsigned events, void *data)
{
	struct epoll_event e = { .data.ptr = data };

	for (size_t i = 0; i < N_FLAGS; i++)
		e.events |= events & flags[i].ours ? flags[i].epoll : 0;
	return epoll_ctl(poller, op, fd, &e) == 0;
}

bool
poller_add(int poller, int fd, unsigned events, void *data)
{
	return control(poller, EPOLL_CTL_ADD, fd, events, data);
}

bool
poller_change(int poller, int fd, unsigned events, void *data)
{
	return control(poller, EPOLL_CTL_MOD, fd, events, data);
}

void
poller_remove(int poller, int fd)
{
	(void)control(poller, EPOLL_CTL_DEL, fd, 0, NULL);
}

int
poller_wait(int poller, PollerEvent *out, int cap, int ms)
{
	struct epoll_event e[MOST];
	int n = epoll_wait(poller, e, cap < MOST ? cap : MOST, ms);

	if (n < 0)
		return errno == EINTR ? 0 : -1;
	for (int i = 0; i < n; i++) {
		out[i] = (PollerEvent){ .data = e[i].data.ptr };
		for (size_t k = 0; k < N_FLAGS; k++)
			out[i].events |= e[i].events & flags[k].epoll ? flags[k].ours : 0;
	}
	return n;
}

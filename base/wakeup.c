#include "base/wakeup.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

int
wakeup_open(void)
{
	return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void
wakeup_add(int fd, uint64_t n)
{
	int before = errno;

	while (write(fd, &n, sizeof n) < 0 && errno == EINTR)
		;
	errno = before;
}

uint64_t
wakeup_take(int fd)
{
	uint64_t n = 0;

	while (read(fd, &n, sizeof n) < 0 && errno == EINTR)
		;
	return n;
}

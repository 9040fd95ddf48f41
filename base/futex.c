#include "base/futex.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool
futex_wait(atomic_ullong *word, uint32_t value, bool shared, double seconds)
{
	struct timespec most = { .tv_sec = (time_t)seconds };

	most.tv_nsec = (long)((seconds - (double)most.tv_sec) * 1e9);
	return syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value,
	               seconds > 0 ? &most : NULL, NULL, 0) >= 0 ||
	       errno != ETIMEDOUT;
}

void
futex_wake(atomic_ullong *word, bool shared)
{
	(void)syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL,
	              NULL, 0);
}

/* Guard of mapped files. A file that is truncated while it is mapped raises SIGBUS on the next read
 * of a missing page. The handler replaces the rest of the map by zero pages and counts the fault,
 * so that the reader can finish and report an error. The table of maps is global, because a signal
 * handler cannot reach it otherwise. */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"

enum { MAX_MAPS = 4096 };

static struct {
	/* address range of a map; from 0: free entry; from 1: entry being set */
	atomic_uintptr_t from, to;
	atomic_uint faults;
} maps[MAX_MAPS];
static atomic_uint n_faults;
static struct sigaction previous;
static uintptr_t page_bytes;

void
file_guard_add(const void *data, size_t n)
{
	for (int i = 0; i < MAX_MAPS; i++) {
		uintptr_t none = 0;
		if (atomic_load(&maps[i].from) == 0 &&
		    atomic_compare_exchange_strong(&maps[i].from, &none, 1)) {
			atomic_store(&maps[i].to, (uintptr_t)data + n);
			atomic_store(&maps[i].faults, 0);
			atomic_store(&maps[i].from, (uintptr_t)data);
			return;
		}
	}
}

void
file_guard_remove(const void *data)
{
	for (int i = 0; i < MAX_MAPS; i++)
		if (atomic_load(&maps[i].from) == (uintptr_t)data) {
			atomic_store(&maps[i].from, 0);
			return;
		}
}

static void
on_fault(int sig, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;

	(void)sig, (void)context;
	for (int i = 0; i < MAX_MAPS; i++) {
		uintptr_t from = atomic_load(&maps[i].from), to = atomic_load(&maps[i].to);
		if (from < 2 || at < from || at >= to)
			continue;
		uintptr_t page = at / page_bytes * page_bytes;
		if (mmap((void *)page, to - page, PROT_READ | PROT_WRITE,
		         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
			break;
		atomic_fetch_add(&maps[i].faults, 1);
		atomic_fetch_add(&n_faults, 1);
		return;
	}
	/* not a guarded map: restore the previous handler, for which the read faults again */
	sigaction(SIGBUS, &previous, NULL);
}

llmc_status
file_guard_install(llmc_error *err)
{
	struct sigaction sa = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
	return sigaction(SIGBUS, &sa, &previous) == 0
	           ? LLMC_OK
	           : error_set(err, LLMC_E_IO, "the handler of SIGBUS cannot be installed");
}

unsigned
file_faults(void)
{
	return atomic_load(&n_faults);
}

bool
file_lost(const void *data)
{
	for (int i = 0; i < MAX_MAPS; i++) {
		uintptr_t from = atomic_load(&maps[i].from), to = atomic_load(&maps[i].to);
		if (from >= 2 && (uintptr_t)data >= from && (uintptr_t)data < to)
			return atomic_load(&maps[i].faults) > 0;
	}
	return false;
}

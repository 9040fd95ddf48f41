/* Measures read bandwidth as decode uses it: each thread streams through its own part of a
 * buffer much larger than the caches, in several streams, without synchronising. The first
 * thread reads the clock now and then. The best window is the result, because other programs can
 * only lower it. */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/free_memory.h"
#include "runtime/cpu/cpu.h"

typedef uint64_t WideWord __attribute__((vector_size(64)));

enum {
	SLICE = 1 << 14,
	AHEAD = 64,
	STREAMS = 4
}; /* in units of WideWord: 1 MB between reads of the clock, prefetch distance 4 KB */
static const double WINDOW_S = 10e-3;

typedef struct Count {
	_Alignas(64) atomic_ullong slices;
	uint64_t sum;
} Count; /* one cache line per thread */

typedef struct Read {
	WideWord *data;
	int64_t n; /* slices */
	double end, best;
	atomic_bool stop;
	Count of[TOPOLOGY_MAX];
} Read;

static void
fill_part(void *user, int part, int n_parts)
{
	Read *r = user;
	int64_t from = r->n * part / n_parts, to = r->n * (part + 1) / n_parts;

	memset(r->data + from * SLICE, 1,
	       (size_t)(to - from) * SLICE *
	           sizeof *r->data); /* first touch: pages on the reading thread's node */
}

static uint64_t
read_slice(const WideWord *p)
{
	enum { N = SLICE / STREAMS };
	WideWord a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

	for (int i = 0; i < N; i++) {
		__builtin_prefetch(p + i + AHEAD);
		__builtin_prefetch(p + N + i + AHEAD);
		__builtin_prefetch(p + 2 * N + i + AHEAD);
		__builtin_prefetch(p + 3 * N + i + AHEAD);
		a += p[i];
		b += p[N + i];
		c += p[2 * N + i];
		d += p[3 * N + i];
	}
	a += b + c + d;
	return a[0] + a[7];
}

static void
touch_pages(Read *r, int n_parts, double *since, unsigned long long *before)
{
	double now = clock_now();
	unsigned long long all = 0;

	if (now - *since < WINDOW_S)
		return;
	for (int i = 0; i < n_parts; i++)
		all += atomic_load_explicit(&r->of[i].slices, memory_order_relaxed);
	double rate = (double)(all - *before) * SLICE * sizeof(WideWord) / (now - *since);
	r->best = rate > r->best ? rate : r->best;
	*since = now;
	*before = all;
	if (now >= r->end)
		atomic_store(&r->stop, true);
}

static void
read_part(void *user, int part, int n_parts)
{
	Read *r = user;
	int64_t from = r->n * part / n_parts, to = r->n * (part + 1) / n_parts, i = from;
	unsigned long long before = 0;
	double since = clock_now();

	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		r->of[part].sum +=
		    /* the result is used, so the reads are not optimised away */
		    read_slice(r->data + i * SLICE);
		atomic_fetch_add_explicit(&r->of[part].slices, 1, memory_order_relaxed);
		i = i + 1 < to ? i + 1 : from;
		if (part == 0)
			touch_pages(r, n_parts, &since, &before);
	}
}

int64_t
cpu_bandwidth_bytes(int64_t cache, int64_t available)
{
	const int64_t least = 256 << 20, most = (int64_t)2 << 30;
	int64_t bytes = 4 * cache;

	bytes = bytes < least ? least : bytes > most ? most : bytes;
	return available > 0 && bytes > available / 4 ? available / 4 : bytes;
}

static int64_t
slices(int n_threads)
{
	const int64_t available = free_memory("").bytes;
	int64_t n = cpu_bandwidth_bytes(topology_cache_bytes(""), available) /
	            (SLICE * (int64_t)sizeof(WideWord));

	return n < n_threads ? n_threads : n;
}

double
cpu_bandwidth_seconds(double seconds)
{
	const double most = 60;

	return seconds > 0 ? seconds < most ? seconds : most : 0; /* NaN: 0 */
}

double
cpu_bandwidth(int n_threads, double seconds)
{
	Threads *t;
	double best = 0;

	if (n_threads < 1)
		n_threads = topology_threads();
	if (threads_open(n_threads, &t, NULL) != LLMC_OK)
		return 0;
	int64_t n = slices(n_threads);
	size_t bytes = (size_t)n * SLICE * sizeof(WideWord);
	char *m = mmap(NULL, bytes + sizeof(Read), PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m != MAP_FAILED) {
		(void)madvise(m, bytes, MADV_HUGEPAGE);
		Read *r = (Read *)(void *)(m + bytes);
		r->data = (WideWord *)(void *)m;
		r->n = n;
		threads_run(t, fill_part, r);
		r->end = clock_now() + cpu_bandwidth_seconds(seconds);
		threads_run(t, read_part, r);
		best = r->best;
		munmap(m, bytes + sizeof *r);
	}
	threads_close(t);
	return best;
}

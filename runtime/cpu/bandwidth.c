/* Read bandwidth: all threads sum their part of a block much larger than the caches, over and over; the best round counts,
 * since noise of others only takes away. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "runtime/cpu/cpu.h"

typedef uint64_t Wide __attribute__((vector_size(64)));

typedef struct Read {
	const Wide *data;
	int64_t     n;      /* of Wide */
	uint64_t    sum[TOPOLOGY_MAX][8]; /* a line a thread */
	bool        fill;
} Read;

static void
read_part(void *user, int part, int n_parts)
{
	Read *r = user;
	int64_t from = r->n * part / n_parts, to = r->n * (part + 1) / n_parts;
	Wide a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
	int64_t i = from;

	if (r->fill) { /* its own pages, near the thread that reads them */
		memset((void *)(r->data + from), 1, (size_t)(to - from) * sizeof *r->data);
		return;
	}
	for (; i + 4 <= to; i += 4) {
		__builtin_prefetch(r->data + i + 32);
		__builtin_prefetch(r->data + i + 33);
		__builtin_prefetch(r->data + i + 34);
		__builtin_prefetch(r->data + i + 35);
		a += r->data[i];
		b += r->data[i + 1];
		c += r->data[i + 2];
		d += r->data[i + 3];
	}
	a += b + c + d;
	r->sum[part][0] += a[0] + a[7]; /* so that the reads are needed */
}

double
cpu_bandwidth(int n_threads, double seconds)
{
	enum { MB = 256 };
	const size_t bytes = (size_t)MB << 20;
	Threads *t;
	double best = 0;
	Read *r;

	if (n_threads < 1)
		n_threads = topology_threads();
	if (threads_open(n_threads, &t, NULL) != LLMC_OK)
		return 0;
	void *m = mmap(NULL, bytes + sizeof *r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED) {
		threads_close(t);
		return 0;
	}
	r = (Read *)((char *)m + bytes);
	r->data = m;
	r->n = (int64_t)(bytes / sizeof(Wide));
	r->fill = true;
	threads_run(t, read_part, r);
	r->fill = false;
	double end = clock_now() + seconds;
	do {
		double start = clock_now();
		threads_run(t, read_part, r);
		double rate = (double)bytes / (clock_now() - start);
		best = rate > best ? rate : best;
	} while (clock_now() < end);
	munmap(m, bytes + sizeof *r);
	threads_close(t);
	return best;
}

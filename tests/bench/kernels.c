/* Measures one matmul kernel with many weights: bytes per second in decode (compared with a plain
 * read of the same bytes) and operations per second in prefill (2 per multiply-add). Started by
 * kernels.py; not a test.
 *
 *   kernels KERNEL.so SYMBOL ROWS COLS GROUP_BYTES GROUPS THREADS N_TOK [ARG POSITION OF w, x, y,
 * scratch] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "templates/common/llmc_step.h"

enum { MAX_THREADS = 16, ROUNDS = 9 };

static struct {
	llmc_kernel *fn;
	llmc_step step;
	int threads, n_mats;
	size_t mat_bytes;
	char *mats;
	void *arg[16];
	int w_at;
	volatile int phase[MAX_THREADS * 32];
	double read_s[ROUNDS], run_s[ROUNDS];
} g;

static double
now(void)
{
	struct timespec t;
	/* One thread is timed by its CPU time, so that other programs do not count. */
	clock_gettime(g.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void
barrier(int id, int *epoch)
{
	++*epoch;
	__atomic_store_n(&g.phase[id * 32], *epoch, __ATOMIC_RELEASE);
	for (int i = 0; i < g.threads; i++)
		for (int spin = 0; __atomic_load_n(&g.phase[i * 32], __ATOMIC_ACQUIRE) < *epoch;
		     spin++)
			if (spin > 2000)
				sched_yield();
}

static volatile uint64_t sink;

static void
read_share(int id)
{
	size_t all = g.mat_bytes * (size_t)g.n_mats, share = all / (size_t)g.threads / 256 * 256;
	const char *p = g.mats + share * (size_t)id;
	typedef uint64_t v4 __attribute__((vector_size(32), aligned(32)));
	v4 s = { 0 }, t = { 0 };
	for (size_t i = 0; i < share; i += 64) {
		__builtin_prefetch(p + i + 2048);
		s ^= *(const v4 *)(const void *)(p + i);
		t ^= *(const v4 *)(const void *)(p + i + 32);
	}
	s ^= t;
	sink = s[0] ^ s[1] ^ s[2] ^ s[3];
}

static void *
thread(void *user)
{
	int id = (int)(intptr_t)user, epoch = 0;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(id, &set);
	pthread_setaffinity_np(pthread_self(), sizeof set, &set);
	void *arg[16];
	memcpy(arg, g.arg, sizeof arg);
	for (int r = 0; r < ROUNDS; r++) {
		barrier(id, &epoch);
		double t0 = now();
		read_share(id);
		barrier(id, &epoch);
		double t1 = now();
		for (int m = 0; m < g.n_mats; m++) {
			arg[g.w_at] = g.mats + (size_t)m * g.mat_bytes;
			g.fn(&g.step, arg, id, g.threads);
			barrier(id, &epoch);
		}
		if (id == 0) {
			g.read_s[r] = t1 - t0;
			g.run_s[r] = now() - t1;
		}
	}
	return NULL;
}

static int
cmp(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int
main(int argc, char **argv)
{
#if defined(__x86_64__)
	syscall(SYS_arch_prctl, 0x1023,
	        18); /* ARCH_REQ_XCOMP_PERM: request tile registers, if the processor has them */
#endif
	if (argc < 13)
		return 2;
	void *lib = dlopen(argv[1], RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	*(void **)&g.fn = dlsym(lib, argv[2]);
	long rows = atol(argv[3]), cols = atol(argv[4]);
	g.mat_bytes = (size_t)atol(argv[5]) * (size_t)atol(argv[6]);
	g.threads = atoi(argv[7]);
	int n_tok = atoi(argv[8]);
	g.w_at = atoi(argv[9]);
	int x_at = atoi(argv[10]), y_at = atoi(argv[11]), scratch_at = atoi(argv[12]);
	/* MiB of weights: more than the last-level cache, unless the cache is to be timed */
	const char *mib = getenv("BENCH_MIB");
	size_t want = mib ? (size_t)atol(mib) << 20 : n_tok < 32 ? 96u << 20 : 8u << 20;
	g.n_mats = (int)(want / g.mat_bytes) + 1;
	g.mats = aligned_alloc(4096, (g.mat_bytes * (size_t)g.n_mats + 65536) / 4096 * 4096);
	uint32_t *u = (uint32_t *)(void *)g.mats, seed = 1;
	for (size_t i = 0; i < g.mat_bytes * (size_t)g.n_mats / 4; i++) {
		seed = seed * 1664525 + 1013904223;
		u[i] = ((seed >> 3) & 0x83ff83ff) |
		       0x28002800; /* small but normal as f16, bf16 and f32 */
	}
	float *x = aligned_alloc(64, (size_t)n_tok * (size_t)cols * 4 + 64),
	      *y = aligned_alloc(64, (size_t)n_tok * (size_t)rows * 4 + 64);
	for (long i = 0; i < n_tok * cols; i++)
		x[i] = (float)(i * 37 % 101) / 50 - 1;
	memset(y, 0, (size_t)n_tok * (size_t)rows * 4);
	g.arg[x_at] = x;
	g.arg[y_at] = y;
	if (argc > 13)
		g.arg[atoi(argv[13])] = y; /* residual */
	g.arg[scratch_at] =
	    aligned_alloc(4096, ((size_t)g.threads * (size_t)cols * 1024 + 8191) / 4096 * 4096);
	int32_t *pos = calloc((size_t)n_tok, 4);
	g.step = (llmc_step){ .n_tok = n_tok,
		              .n_dec = n_tok,
		              .n_seq = n_tok,
		              .n_out = n_tok,
		              .pos = pos,
		              .seq_of = pos,
		              .out_row = pos };
	pthread_t th[MAX_THREADS];
	for (int i = 0; i < g.threads; i++)
		pthread_create(&th[i], NULL, thread, (void *)(intptr_t)i);
	for (int i = 0; i < g.threads; i++)
		pthread_join(th[i], NULL);
	double ratio[ROUNDS];
	for (int i = 0; i < ROUNDS; i++)
		ratio[i] = g.read_s[i] / g.run_s[i];
	qsort(ratio, ROUNDS, sizeof *ratio, cmp);
	qsort(g.read_s, ROUNDS, sizeof *ratio, cmp);
	qsort(g.run_s, ROUNDS, sizeof *ratio, cmp);
	double bytes = (double)g.mat_bytes * g.n_mats, run = g.run_s[ROUNDS / 2];
	printf("%5.1f us a call, %6.2f GB/s, read %6.2f GB/s, share of it %.2f, %7.1f GOPS (best "
	       "%.1f)\n",
	       run / g.n_mats * 1e6, bytes / run * 1e-9, bytes / g.read_s[ROUNDS / 2] * 1e-9,
	       ratio[ROUNDS / 2], 2.0 * (double)rows * (double)cols * n_tok * g.n_mats / run * 1e-9,
	       2.0 * (double)rows * (double)cols * n_tok * g.n_mats / g.run_s[0] * 1e-9);
	return 0;
}

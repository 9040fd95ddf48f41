/* Measures the peak of the processor's tile unit: `tiles THREADS` prints the operations per second
 * of int8 and bf16 tile instructions with operands in registers, on all threads together, the best
 * of some runs. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	ARCH_REQ_XCOMP_PERM = 0x1023,
	XFEATURE_XTILEDATA = 18,
	MAX_THREADS = 256,
	ROUNDS = 200000,
	RUNS = 5
};

static pthread_barrier_t meet;
static int bf16;
static int n_threads;
static double first[MAX_THREADS], last[MAX_THREADS];

static double
now(void)
{
	struct timespec t;

	/* see kernels.c: one thread is timed by its CPU time */
	clock_gettime(n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Uses four accumulators, of two by two operands, so that no instruction waits for the preceding
 * one */
static void *
work(void *user)
{
	struct {
		uint8_t palette, start, pad[14];
		uint16_t colsb[16];
		uint8_t rows[16];
	} config = { .palette = 1 };
	int me = (int)(intptr_t)user;

	for (int i = 0; i < 8; i++) {
		config.colsb[i] = 64;
		config.rows[i] = 16;
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(config));
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	_tile_zero(4);
	_tile_zero(5);
	_tile_zero(6);
	_tile_zero(7);
	pthread_barrier_wait(&meet);
	first[me] = now();
	for (int i = 0; i < ROUNDS; i++) {
		if (bf16) {
			_tile_dpbf16ps(0, 4, 6);
			_tile_dpbf16ps(1, 4, 7);
			_tile_dpbf16ps(2, 5, 6);
			_tile_dpbf16ps(3, 5, 7);
		} else {
			_tile_dpbssd(0, 4, 6);
			_tile_dpbssd(1, 4, 7);
			_tile_dpbssd(2, 5, 6);
			_tile_dpbssd(3, 5, 7);
		}
	}
	last[me] = now();
	_tile_release();
	return NULL;
}

static double
rate(int threads)
{
	double best = 0;

	n_threads = threads;

	for (int run = 0; run < RUNS; run++) {
		pthread_t t[MAX_THREADS];
		double begin = 1e300, end = 0;
		pthread_barrier_init(&meet, NULL, (unsigned)threads);
		for (int i = 0; i < threads; i++)
			if (pthread_create(&t[i], NULL, work, (void *)(intptr_t)i))
				exit(1);
		for (int i = 0; i < threads; i++) {
			pthread_join(t[i], NULL);
			begin = first[i] < begin ? first[i] : begin;
			end = last[i] > end ? last[i] : end;
		}
		double ops =
		    2.0 * 16 * 16 * (bf16 ? 32 : 64) * 4 * ROUNDS * threads / (end - begin);
		best = ops > best ? ops : best;
	}
	return best;
}

int
main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;

	if (threads < 1 || threads > MAX_THREADS ||
	    syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)) {
		fprintf(stderr, "tiles: no permission to use them\n");
		return 1;
	}
	double int8 = rate(threads);
	bf16 = 1;
	printf("{\"int8\": %.4g, \"bf16\": %.4g}\n", int8, rate(threads));
	return 0;
}

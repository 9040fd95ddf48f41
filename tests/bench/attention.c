/* Measures attention of one decode row on one thread, by several kernels in turn: microseconds per
 * layer, the least of all rounds. kv.py builds and runs it.
 *
 *   attention DEPTH LAYERS ROUNDS HEADS DIM (LIBRARY SYMBOL BYTES_OF_A_PAGE WORK_FLOATS)...
 *
 * Layers are contiguous, so that most of them are not in the caches. Pages hold small f16 values
 * for every type, since times do not depend on values. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "templates/common/llmc_step.h"

enum { MOST = 16, PAGE = 32 };

typedef struct Case {
	llmc_kernel *kernel;
	char *pool;
	float *work;
	size_t layer; /* bytes per layer */
	double best;
} Case;

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *
room(size_t bytes)
{
	const size_t huge = 2 << 20;
	void *p = aligned_alloc(huge, (bytes + huge - 1) / huge * huge);

	if (!p)
		exit(2);
	madvise(p, bytes, MADV_HUGEPAGE); /* the runtime gives the same advice for its cache */
	return p;
}

int
main(int argc, char **argv)
{
	if (argc < 10 || (argc - 6) % 4 || (argc - 6) / 4 > MOST)
		return 2;
	const int depth = atoi(argv[1]), layers = atoi(argv[2]), rounds = atoi(argv[3]),
	          heads = atoi(argv[4]), dim = atoi(argv[5]);
	const int n_page = (depth + PAGE - 1) / PAGE, n = (argc - 6) / 4;
	int32_t *table = room((size_t)n_page * sizeof *table), zero = 0, start[2] = { 0, 1 },
	        pos = depth - 1, len = depth;
	int32_t *ticket = calloc(1024, sizeof *ticket);
	float *q = room((size_t)(heads * dim) * sizeof *q),
	      *y = room((size_t)(heads * dim) * sizeof *y);
	float *part_o = room((size_t)(128 * 8 * dim) * sizeof *part_o),
	      *part_ml = room((size_t)128 * 8 * 2 * sizeof *part_ml);
	Case c[MOST];
	unsigned x = 1;
	llmc_step s = { .n_tok = 1,
		        .n_dec = 1,
		        .n_seq = 1,
		        .n_out = 1,
		        .tok = &zero,
		        .pos = &pos,
		        .pos2 = &zero,
		        .seq_of = &zero,
		        .q_start = start,
		        .kv_len = &len,
		        .prefix_len = &zero,
		        .out_row = &zero,
		        .block_table = table,
		        .block_stride = n_page };

	for (int i = 0; i < n_page; i++)
		table[i] = i;
	for (int i = 0; i < heads * dim; i++)
		q[i] = (float)(i * 37 % 101 - 50) / 50;
	for (int i = 0; i < n; i++) {
		void *so = dlopen(argv[6 + 4 * i], RTLD_NOW);
		if (!so || !(c[i].kernel = (llmc_kernel *)dlsym(so, argv[7 + 4 * i]))) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		c[i].layer = (size_t)atoll(argv[8 + 4 * i]) * (size_t)n_page;
		c[i].pool = room(c[i].layer * (size_t)layers);
		c[i].work = room((size_t)atoll(argv[9 + 4 * i]) * sizeof *c[i].work);
		c[i].best = 1e9;
		for (size_t j = 0; j < c[i].layer * (size_t)layers / 2; j++) {
			x = x * 1664525u + 1013904223u;
			((uint16_t *)(void *)c[i].pool)[j] =
			    (uint16_t)(0x2c00 | (x >> 22 & 0x3ff) | (x >> 16 & 0x8000));
		}
	}
	for (int r = 0; r < rounds; r++)
		for (int i = 0; i < n; i++)
			for (int l = 0; l < layers; l++) {
				void *a[] = { q,      c[i].pool + (size_t)l * c[i].layer,
					      NULL,   NULL,
					      y,      c[i].work,
					      part_o, part_ml,
					      ticket };
				double t = now();
				c[i].kernel(&s, a, 0, 1);
				t = now() - t;
				c[i].best = t < c[i].best ? t : c[i].best;
			}
	for (int i = 0; i < n; i++)
		printf("%.1f\n", c[i].best * 1e6);
	return 0;
}

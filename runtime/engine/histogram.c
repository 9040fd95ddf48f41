/* Histograms with the buckets of llmc.h. Values are compared with the bounds, because a logarithm
 * could round to the next bucket. */
#include <math.h>

#include "runtime/engine/engine_internal.h"

static void
count(llmc_histogram *h, int bucket, double v)
{
	h->bucket[bucket < 0 ? 0 : bucket >= LLMC_BUCKETS ? LLMC_BUCKETS - 1 : bucket]++;
	h->n++;
	h->sum += v;
}

void
histogram_seconds(llmc_histogram *h, double s)
{
	double bound = 0.0001 * 1.5;
	int k = 0;

	for (; k < LLMC_BUCKETS - 1 && s > bound; k++)
		bound *= 1.5;
	count(h, k, s);
}

void
histogram_count(llmc_histogram *h, double n)
{
	int k = 0;

	for (; k < LLMC_BUCKETS - 1 && n > ldexp(1, k); k++)
		;
	count(h, k, n);
}

/* Mirostat (arXiv:2007.14966) 1 and 2. */
#include <math.h>

#include "runtime/sample/sampler.h"

float
sample_mirostat_tau(const llmc_params *p)
{
	return p->mirostat_tau > 0 ? p->mirostat_tau : 5;
}

/* Move the candidates that Mirostat 1 keeps to the front, and return their number. The number
 * follows from the exponent of Zipf's law, fitted to the 100 most likely candidates. */
static int32_t
keep_by_zipf(Candidate *cand, int32_t n, int32_t vocab, double mu)
{
	enum { FITTED = 100 };
	int32_t left = n, taken = 0, keep = 1;
	double products = 0, squares = 0;
	float before_it = 0;

	candidates_heapify(cand, n);
	for (; taken < FITTED && left; taken++) {
		float v = candidates_heap_take(cand, &left).v;
		if (taken) {
			double t = log((taken + 1.0) / taken);
			products += t * log((double)before_it / (double)v);
			squares += t * t;
		}
		before_it = v;
	}
	if (n > 1) {
		double s = products / squares, e = s - 1,
		       k = pow(e * pow(2, mu) / (1 - pow(vocab, -e)), 1 / s);
		keep = k >= n ? n : k >= 1 ? (int32_t)k : 1; /* NaN: 1 */
	}
	for (; taken < keep; taken++)
		candidates_heap_take(cand, &left);
	candidates_reverse_end(cand, n, taken);
	return keep;
}

/* Keep candidates of at most mu bits of surprise; if there are none, the most likely one. */
static int32_t
keep_by_surprise(Candidate *cand, int32_t n, double mu)
{
	const double least = candidates_sum(cand, n) * pow(2, -mu);
	const int32_t best = candidates_best(cand, n);
	int32_t kept = 0;

	candidates_swap(cand, 0, best);
	for (int32_t i = 0; i < n; i++)
		if (i == 0 || cand[i].v >= least)
			cand[kept++] = cand[i];
	return kept;
}

int32_t
sample_mirostat(const SampleScratch *m, const llmc_params *p, int32_t best, double at, double *mu)
{
	const float max = m->work[best] / p->temperature,
	            eta = p->mirostat_eta > 0 ? p->mirostat_eta : 0.1f;
	Candidate *cand = m->cand;
	int32_t n = 0, id;

	if (m->work[best] == INFINITY || max == INFINITY || max == -INFINITY)
		return best;
	sample_weights(m->work, m->vocab, p->temperature, max);
	for (int32_t i = 0; i < m->vocab; i++)
		if (m->work[i] > 0)
			cand[n++] = (Candidate){ m->work[i], i };
	n = p->mirostat == 1 ? keep_by_zipf(cand, n, m->vocab, *mu)
	                     : keep_by_surprise(cand, n, *mu);
	const double sum = candidates_sum(cand, n);
	id = candidates_draw(cand, n, at * sum);
	const double surprise = -log2(m->work[id] / sum);
	*mu -= (double)eta * (surprise - (double)sample_mirostat_tau(p));
	return id;
}

/* Sampling from logits in scratch memory by temperature, top-k, top-p, min-p, typical-p, XTC and
 * Mirostat. Nothing is sorted as a whole: a histogram over the leading bits finds the bucket of the
 * cut-off, and only that bucket is sorted. */
#include <math.h>
#include <string.h>

#include "formats/float_bits.h"
#include "runtime/sample/sampler.h"

enum { N_BUCKET = 4096 };

/* Map a float to an integer of the same order. */
static uint32_t
bucket_of(float v)
{
	uint32_t u = bits_of_float(v + 0.0f); /* -0 and 0 are equal */

	return (u ^ (u >> 31 ? 0xffffffffu : 0x80000000u)) >> 20;
}

/* Return the k-th largest of v [n], which is reordered; 1 <= k <= n. Hoare's selection, median of
 * three. */
static float
kth_largest(float *v, int32_t n, int32_t k)
{
	int32_t lo = 0, hi = n - 1, want = k - 1;

	while (lo < hi) {
		float a = v[lo], b = v[lo + (hi - lo) / 2], c = v[hi];
		float pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
		int32_t i = lo, j = hi;
		while (i <= j) {
			while (v[i] > pivot)
				i++;
			while (v[j] < pivot)
				j--;
			if (i <= j) {
				float t = v[i];
				v[i++] = v[j];
				v[j--] = t;
			}
		}
		if (want <= j)
			hi = j;
		else if (want >= i)
			lo = i;
		else
			break;
	}
	return v[want];
}

/* Like kth_largest over a whole vocabulary, which is not reordered; some [n] is scratch memory. */
static float
kth_of_many(const float *v, int32_t n, int32_t k, float *some)
{
	int32_t count[N_BUCKET] = { 0 }, m = 0, b = N_BUCKET - 1;

	for (int32_t i = 0; i < n; i++)
		count[bucket_of(v[i])]++;
	for (; count[b] < k; b--)
		k -= count[b];
	for (int32_t i = 0; i < n; i++)
		if (bucket_of(v[i]) == (uint32_t)b)
			some[m++] = v[i];
	return kth_largest(some, m, k);
}

float
sample_kth_largest(const SampleScratch *m, int32_t k)
{
	return kth_of_many(m->work, m->vocab, k, (float *)m->cand);
}

/* Does a precede b? The larger value first, then the lower id. */
static bool
before(Candidate a, Candidate b)
{
	return a.v > b.v || (a.v == b.v && a.id < b.id);
}

static void
heap_sift(Candidate *heap, int32_t n, int32_t at)
{
	Candidate c = heap[at];

	for (;;) {
		int32_t child = 2 * at + 1;
		if (child >= n)
			break;
		if (child + 1 < n && before(heap[child + 1], heap[child]))
			child++;
		if (!before(heap[child], c))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = c;
}

/* Remove the top of the heap and store it after the remaining entries. */
static Candidate
heap_take(Candidate *heap, int32_t *left)
{
	Candidate top = heap[0];

	heap[0] = heap[--*left];
	heap_sift(heap, *left, 0);
	heap[*left] = top;
	return top;
}

static void
heapify(Candidate *heap, int32_t n)
{
	for (int32_t i = n / 2; i-- > 0;)
		heap_sift(heap, n, i);
}

/* Move the last `kept` entries of cand [n] to the front in reverse order: the best comes first. */
static void
bring_forward(Candidate *cand, int32_t n, int32_t kept)
{
	for (int32_t i = 0, j = n - 1; i < kept && i < j; i++, j--) {
		Candidate t = cand[i];
		cand[i] = cand[j];
		cand[j] = t;
	}
}

static void
swap(Candidate *cand, int32_t a, int32_t b)
{
	Candidate t = cand[a];

	cand[a] = cand[b];
	cand[b] = t;
}

/* Put candidates into buckets by weight, which is in (0, 1]. */
static int32_t
weight_bucket(float v)
{
	uint32_t b = bits_of_float(v) >> 19;

	return b < N_BUCKET / 2 ? (int32_t)b : N_BUCKET / 2 - 1;
}

/* Select the largest candidates until their weights reach top_p of the sum. After the call cand
 * begins with n_larger candidates of higher buckets, unsorted. Next are n_sorted candidates,
 * sorted, of the bucket in which the sum is reached, then the rest. */
void
sample_cut_top_p(Candidate *cand, int32_t n, double top_p, int32_t *n_larger, int32_t *n_sorted)
{
	double in[N_BUCKET / 2] = { 0 }, all = 0, sum = 0;
	int32_t b = N_BUCKET / 2 - 1, larger = 0, at = 0, end = n, kept = 0;

	for (int32_t i = 0; i < n; i++)
		in[weight_bucket(cand[i].v)] += cand[i].v;
	for (int32_t i = 0; i <= b; i++)
		all += in[i];
	/* stop at the last bucket, even if rounding keeps the sum too low */
	while (b > 0 && sum + in[b] < top_p * all)
		sum += in[b--];
	while (at < end) { /* partition: higher buckets, this bucket, lower ones */
		int32_t k = weight_bucket(cand[at].v);
		if (k > b)
			swap(cand, larger++, at++);
		else if (k == b)
			at++;
		else
			swap(cand, at, --end);
	}
	int32_t left = at - larger, bucket = left;
	heapify(cand + larger, left);
	for (; left && (larger + kept == 0 || sum < top_p * all); kept++)
		sum += heap_take(cand + larger, &left).v;
	bring_forward(cand + larger, bucket, kept);
	*n_larger = larger;
	*n_sorted = kept;
}

void
sample_sort(Candidate *cand, int32_t n, int32_t kept)
{
	int32_t left = n;

	kept = kept < n ? kept : n;
	heapify(cand, n);
	while (left > n - kept)
		heap_take(cand, &left);
	bring_forward(cand, n, kept);
}

/* Return the candidate at which the running sum of weights exceeds `at`; the last one if rounding
 * leaves none. */
int32_t
sample_cumulative(const Candidate *cand, int32_t n, double at)
{
	for (int32_t i = 0; i < n - 1; i++) {
		if (at < cand[i].v)
			return cand[i].id;
		at -= cand[i].v;
	}
	return cand[n - 1].id;
}

/* Keep candidates of at least min_p times the largest weight, which is 1. */
static int32_t
keep_min_p(Candidate *cand, int32_t n, float min_p)
{
	int32_t kept = 0;

	for (int32_t i = 0; i < n; i++)
		if (cand[i].v >= min_p)
			cand[kept++] = cand[i];
	return kept;
}

/* Sample as if the candidates were sorted, the largest first; only the bucket of the result is
 * sorted. This order fixes the result of a seed on every target. */
static int32_t
sample_cumulative_sorted(Candidate *cand, int32_t n, double at)
{
	double in[N_BUCKET / 2] = { 0 }, all = 0;
	int32_t b = N_BUCKET / 2 - 1, m = 0, lowest = b;

	for (int32_t i = 0; i < n; i++) {
		int32_t k = weight_bucket(cand[i].v);
		in[k] += cand[i].v;
		lowest = k < lowest ? k : lowest;
	}
	for (int32_t i = b; i >= lowest; i--)
		all += in[i];
	at *= all;
	for (; b > lowest && at >= in[b]; b--)
		at -= in[b];
	for (int32_t i = 0; i < n; i++)
		if (weight_bucket(cand[i].v) == b)
			swap(cand, m++, i);
	sample_sort(cand, m, m);
	return sample_cumulative(cand, m, at);
}

double
sample_sum(const Candidate *cand, int32_t n)
{
	double sum = 0;

	for (int32_t i = 0; i < n; i++)
		sum += cand[i].v;
	return sum;
}

double
sample_entropy(const Candidate *cand, int32_t n, double sum)
{
	double entropy = 0;

	for (int32_t i = 0; i < n; i++)
		if (cand[i].v > 0)
			entropy -= cand[i].v / sum * log(cand[i].v / sum);
	return entropy;
}

/* Keep the candidates whose information (-log p) is nearest to the entropy, until their weights
 * reach typical_p of the sum. weight is indexed by token id. */
static int32_t
keep_typical(Candidate *cand, int32_t n, const float *weight, double typical_p)
{
	const double all = sample_sum(cand, n), entropy = sample_entropy(cand, n, all);
	double sum = 0;
	int32_t left = n, kept = 0;
	float last = 0;

	for (int32_t i = 0; i < n; i++)
		cand[i].v =
		    cand[i].v > 0 ? -(float)fabs(-log(cand[i].v / all) - entropy) : -INFINITY;
	heapify(cand, n);
	/* as in transformers: the candidate that reaches the mass stays, with its ties */
	while (left && (sum < typical_p * all || cand[0].v == last)) {
		Candidate c = heap_take(cand, &left);
		last = c.v;
		sum += weight[c.id];
		kept++;
	}
	bring_forward(cand, n, kept);
	for (int32_t i = 0; i < kept; i++)
		cand[i].v = weight[cand[i].id];
	return kept;
}

/* ---- after the cuts: XTC, then temperature ---- */

double
sample_xtc_threshold(const llmc_params *p)
{
	return (double)(p->xtc_threshold > 0 ? p->xtc_threshold : 0.1f);
}

bool
sample_has_xtc(const llmc_params *p)
{
	return p->xtc_probability > 0 && sample_xtc_threshold(p) <= 0.5 && !p->mirostat;
}

/* Drop all candidates that reach the threshold except the least likely of them. */
static int32_t
drop_top_choices(Candidate *cand, int32_t n, double threshold)
{
	const double least = threshold * sample_sum(cand, n);
	Candidate last = { 0 };
	int32_t reach = 0, kept = 0;

	for (int32_t i = 0; i < n; i++)
		if (cand[i].v >= least && (reach++ == 0 || before(last, cand[i])))
			last = cand[i];
	if (reach < 2)
		return n;
	for (int32_t i = 0; i < n; i++)
		if (cand[i].v < least || cand[i].id == last.id)
			cand[kept++] = cand[i];
	return kept;
}

/* With exponent 1 the result is the middle of the range if the entropy of the candidates is half of
 * the maximum. */
double
sample_temperature(const llmc_params *p, const Candidate *cand, int32_t n)
{
	const double least = fmax(0, (double)p->temperature - (double)p->dynatemp_range),
	             most = (double)p->temperature + (double)p->dynatemp_range,
	             exponent = p->dynatemp_exponent > 0 ? (double)p->dynatemp_exponent : 1;

	if (p->dynatemp_range <= 0 || n < 2)
		return (double)p->temperature;
	const double entropy = sample_entropy(cand, n, sample_sum(cand, n));
	return least + (most - least) * pow(entropy / log(n), exponent);
}

static int32_t
best_of(const Candidate *cand, int32_t n)
{
	int32_t best = 0;

	for (int32_t i = 1; i < n; i++)
		if (before(cand[i], cand[best]))
			best = i;
	return best;
}

/* Draw from weights to which no temperature has been applied. */
static int32_t
draw_late(const llmc_params *p, Candidate *cand, int32_t n, SampleRandom r)
{
	if (sample_has_xtc(p) && r.chance < (double)p->xtc_probability)
		n = drop_top_choices(cand, n, sample_xtc_threshold(p));
	const Candidate best = cand[best_of(cand, n)];
	const double temperature = p->temperature > 0 ? sample_temperature(p, cand, n) : 0;
	if (!(temperature > 0))
		return best.id;
	for (int32_t i = 0; i < n; i++)
		cand[i].v = (float)exp(log((double)cand[i].v / best.v) / temperature);
	return sample_cumulative(cand, n, r.at * sample_sum(cand, n));
}

/* Does temperature come after all other steps? */
static bool
is_late(const llmc_params *p)
{
	return sample_has_xtc(p) || p->dynatemp_range > 0;
}

int32_t
sample_draw(const SampleScratch *m, const llmc_params *p, int32_t best, SampleRandom r)
{
	const bool late = is_late(p);
	const float temperature = late ? 1 : p->temperature;
	float max = m->work[best] / temperature, floor = -INFINITY;
	Candidate *cand = m->cand;
	bool nucleus = p->top_p > 0 && p->top_p < 1, typical = p->typical_p > 0 && p->typical_p < 1;
	int32_t n = 0;
	double at = r.at;

	if (m->work[best] == INFINITY || max == INFINITY ||
	    max == -INFINITY) /* so close to 0 that weights overflow: greedy */
		return best;
	if (p->top_k > 0 && p->top_k < m->vocab) {
		floor = sample_kth_largest(m, p->top_k);
		for (int32_t i = 0; i < m->vocab; i++) {
			/* tokens that tie with the k-th stay, as in transformers */
			if (m->work[i] < floor)
				continue;
			sample_weights(&m->work[i], 1, temperature, max);
			if (m->work[i] > 0)
				cand[n++] = (Candidate){ m->work[i], i };
		}
	} else {
		double sum = sample_weights(m->work, m->vocab, temperature, max);
		/* no option excludes tokens, so no list of candidates is needed */
		if (!nucleus && !typical && !late && p->min_p <= 0) {
			at *= sum;
			for (int32_t i = 0; i < m->vocab; i++) {
				if (at < m->work[i])
					return i;
				at -= m->work[i];
			}
			return best;
		}
		for (int32_t i = 0; i < m->vocab; i++)
			if (m->work[i] > 0)
				cand[n++] = (Candidate){ m->work[i], i };
	}
	if (nucleus) {
		int32_t larger, sorted;
		sample_cut_top_p(cand, n, p->top_p, &larger, &sorted);
		n = larger + sorted;
		if (typical)
			sample_sort(cand, larger, larger);
	}
	if (p->min_p > 0)
		n = keep_min_p(cand, n, p->min_p);
	if (typical)
		n = keep_typical(cand, n, m->work, p->typical_p);
	if (n == 0)
		return best;
	if (late)
		return draw_late(p, cand, n, r);
	if (nucleus && !typical)
		return sample_cumulative_sorted(cand, n, at);
	return sample_cumulative(cand, n, at * sample_sum(cand, n));
}

/* ---- top-n-sigma and Mirostat ---- */

void
sample_top_n_sigma(float *v, int32_t n, float largest, float n_sigma)
{
	double sum = 0, squares = 0;
	int32_t n_valid = 0;

	if (largest == INFINITY)
		return;
	for (int32_t i = 0; i < n; i++)
		if (v[i] != -INFINITY) {
			sum += v[i];
			n_valid++;
		}
	const double mean = sum / n_valid;
	for (int32_t i = 0; i < n; i++)
		if (v[i] != -INFINITY)
			squares += (v[i] - mean) * (v[i] - mean);
	const double least = largest - n_sigma * sqrt(squares / n_valid);
	for (int32_t i = 0; i < n; i++)
		if (v[i] < least)
			v[i] = -INFINITY;
}

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

	heapify(cand, n);
	for (; taken < FITTED && left; taken++) {
		float v = heap_take(cand, &left).v;
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
		heap_take(cand, &left);
	bring_forward(cand, n, taken);
	return keep;
}

/* Keep candidates of at most mu bits of surprise; if there are none, the most likely one. */
static int32_t
keep_by_surprise(Candidate *cand, int32_t n, double mu)
{
	const double least = sample_sum(cand, n) * pow(2, -mu);
	const int32_t best = best_of(cand, n);
	int32_t kept = 0;

	swap(cand, 0, best);
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
	const double sum = sample_sum(cand, n);
	id = sample_cumulative(cand, n, at * sum);
	const double surprise = -log2(m->work[id] / sum);
	*mu -= (double)eta * (surprise - (double)sample_mirostat_tau(p));
	return id;
}

/* Sampling from logits in scratch memory by temperature, top-k, top-p, min-p and typical-p. Nothing
 * is sorted as a whole: a histogram over the leading bits finds the bucket of the cut-off, and only
 * that bucket is sorted. */
#include <math.h>
#include <string.h>

#include "runtime/sample/sampler.h"

enum { N_BUCKET = 4096 };

static uint32_t
bits_of(float v)
{
	uint32_t u;

	memcpy(&u, &v, sizeof u);
	return u;
}

/* Map a float to an integer of the same order. */
static uint32_t
bucket_of(float v)
{
	uint32_t u = bits_of(v + 0.0f); /* -0 and 0 are equal */

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

/* The same over a whole vocabulary, without reordering it; some [n] is scratch memory. */
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

/* Remove the top of the heap; it moves to the slot after the remaining ones. */
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

/* Reverse the last `kept` of cand [n] to the front, so that the best comes first. */
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
	uint32_t b = bits_of(v) >> 19;

	return b < N_BUCKET / 2 ? (int32_t)b : N_BUCKET / 2 - 1;
}

/* Select the largest candidates until their weights reach top_p of the sum. First come n_larger
 * candidates of higher buckets, unsorted; then n_sorted of the bucket in which the sum is reached,
 * sorted; then the rest. */
static void
cut_top_p(Candidate *cand, int32_t n, double top_p, int32_t *n_larger, int32_t *n_sorted)
{
	double in[N_BUCKET / 2] = { 0 }, all = 0, sum = 0;
	int32_t b = N_BUCKET / 2 - 1, larger = 0, at = 0, end = n, kept = 0;

	for (int32_t i = 0; i < n; i++)
		in[weight_bucket(cand[i].v)] += cand[i].v;
	for (int32_t i = 0; i <= b; i++)
		all += in[i];
	/* rounding must not lead past the last bucket */
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

static void
put_in_order(Candidate *cand, int32_t n)
{
	int32_t left = n;

	heapify(cand, n);
	while (left)
		heap_take(cand, &left);
	bring_forward(cand, n, n);
}

/* Return the candidate at which the running sum of weights exceeds `at`; the last one if rounding
 * leaves none. */
static int32_t
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
	put_in_order(cand, m);
	return sample_cumulative(cand, m, at);
}

/* Keep the candidates whose information is nearest to the entropy until their weights reach
 * typical_p of the sum; weight [] by id. */
static int32_t
keep_typical(Candidate *cand, int32_t n, const float *weight, double typical_p)
{
	double all = 0, entropy = 0, sum = 0;
	int32_t left = n, kept = 0;
	float last = 0;

	for (int32_t i = 0; i < n; i++)
		all += cand[i].v;
	for (int32_t i = 0; i < n; i++)
		if (cand[i].v > 0)
			entropy -= cand[i].v / all * log(cand[i].v / all);
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

int32_t
sample_draw(const SampleScratch *m, const llmc_params *p, int32_t best, double at)
{
	float max = m->work[best] / p->temperature, floor = -INFINITY;
	Candidate *cand = m->cand;
	bool nucleus = p->top_p > 0 && p->top_p < 1, typical = p->typical_p > 0 && p->typical_p < 1;
	int32_t n = 0;
	double sum = 0;

	if (m->work[best] == INFINITY || max == INFINITY ||
	    max == -INFINITY) /* a temperature close to 0 */
		return best;
	if (p->top_k > 0 && p->top_k < m->vocab) {
		floor = kth_of_many(m->work, m->vocab, p->top_k,
		                    /* scratch: the candidate list is not filled yet */
		                    (float *)cand);
		for (int32_t i = 0; i < m->vocab; i++) {
			if (m->work[i] < floor) /* ties of the last one stay, as in transformers */
				continue;
			sample_weights(&m->work[i], 1, p->temperature, max);
			if (m->work[i] > 0)
				cand[n++] = (Candidate){ m->work[i], i };
		}
	} else {
		sum = sample_weights(m->work, m->vocab, p->temperature, max);
		if (!nucleus && !typical &&
		    p->min_p <= 0) { /* no token is excluded: no list is needed */
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
		cut_top_p(cand, n, p->top_p, &larger, &sorted);
		n = larger + sorted;
		if (typical)
			put_in_order(cand, larger);
	}
	if (p->min_p > 0)
		n = keep_min_p(cand, n, p->min_p);
	if (typical)
		n = keep_typical(cand, n, m->work, p->typical_p);
	if (n == 0)
		return best;
	if (nucleus && !typical)
		return sample_cumulative_sorted(cand, n, at);
	sum = 0;
	for (int32_t i = 0; i < n; i++)
		sum += cand[i].v;
	return sample_cumulative(cand, n, at * sum);
}

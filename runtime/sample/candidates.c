/* Lists of candidates: selection, sums and draws. Nothing is sorted as a whole: a histogram over
 * the leading bits finds the bucket of the cut-off, and only that bucket is sorted. */
#include <math.h>

#include "formats/float_bits.h"
#include "runtime/sample/candidates.h"

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
candidates_kth_largest(const SampleScratch *m, int32_t k)
{
	return kth_of_many(m->work, m->vocab, k, (float *)m->cand);
}

static void
heap_sift(Candidate *heap, int32_t n, int32_t at)
{
	Candidate c = heap[at];

	for (;;) {
		int32_t child = 2 * at + 1;
		if (child >= n)
			break;
		if (child + 1 < n && candidate_before(heap[child + 1], heap[child]))
			child++;
		if (!candidate_before(heap[child], c))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = c;
}

Candidate
candidates_heap_take(Candidate *heap, int32_t *left)
{
	Candidate top = heap[0];

	heap[0] = heap[--*left];
	heap_sift(heap, *left, 0);
	heap[*left] = top;
	return top;
}

void
candidates_heapify(Candidate *heap, int32_t n)
{
	for (int32_t i = n / 2; i-- > 0;)
		heap_sift(heap, n, i);
}

void
candidates_reverse_end(Candidate *cand, int32_t n, int32_t kept)
{
	for (int32_t i = 0, j = n - 1; i < kept && i < j; i++, j--) {
		Candidate t = cand[i];
		cand[i] = cand[j];
		cand[j] = t;
	}
}

void
candidates_swap(Candidate *cand, int32_t a, int32_t b)
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
candidates_cut_top_p(Candidate *cand, int32_t n, double top_p, int32_t *n_larger, int32_t *n_sorted)
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
			candidates_swap(cand, larger++, at++);
		else if (k == b)
			at++;
		else
			candidates_swap(cand, at, --end);
	}
	int32_t left = at - larger, bucket = left;
	candidates_heapify(cand + larger, left);
	for (; left && (larger + kept == 0 || sum < top_p * all); kept++)
		sum += candidates_heap_take(cand + larger, &left).v;
	candidates_reverse_end(cand + larger, bucket, kept);
	*n_larger = larger;
	*n_sorted = kept;
}

void
candidates_sort(Candidate *cand, int32_t n, int32_t kept)
{
	int32_t left = n;

	kept = kept < n ? kept : n;
	candidates_heapify(cand, n);
	while (left > n - kept)
		candidates_heap_take(cand, &left);
	candidates_reverse_end(cand, n, kept);
}

int32_t
candidates_draw(const Candidate *cand, int32_t n, double at)
{
	for (int32_t i = 0; i < n - 1; i++) {
		if (at < cand[i].v)
			return cand[i].id;
		at -= cand[i].v;
	}
	return cand[n - 1].id;
}

int32_t
candidates_draw_sorted(Candidate *cand, int32_t n, double at)
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
			candidates_swap(cand, m++, i);
	candidates_sort(cand, m, m);
	return candidates_draw(cand, m, at);
}

double
candidates_sum(const Candidate *cand, int32_t n)
{
	double sum = 0;

	for (int32_t i = 0; i < n; i++)
		sum += cand[i].v;
	return sum;
}

double
candidates_entropy(const Candidate *cand, int32_t n, double sum)
{
	double entropy = 0;

	for (int32_t i = 0; i < n; i++)
		if (cand[i].v > 0)
			entropy -= cand[i].v / sum * log(cand[i].v / sum);
	return entropy;
}

int32_t
candidates_best(const Candidate *cand, int32_t n)
{
	int32_t best = 0;

	for (int32_t i = 1; i < n; i++)
		if (candidate_before(cand[i], cand[best]))
			best = i;
	return best;
}

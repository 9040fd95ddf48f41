/* A token drawn from the logits of scratch by temperature, top-k, top-p, min-p and typical-p. Nothing is sorted whole: top-k
 * selects, the others take from a heap as much as they keep. */
#include <math.h>
#include <string.h>

#include "runtime/sample.h"

/* The k-th largest of v [n], which is reordered; 1 <= k <= n. Hoare's selection, median of three. */
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

/* a before b: the larger, of equals the lower id */
static bool
before(Cand a, Cand b)
{
	return a.v > b.v || (a.v == b.v && a.id < b.id);
}

static void
sift(Cand *heap, int32_t n, int32_t at)
{
	Cand c = heap[at];

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

/* Take the first of the heap out; it comes to lie behind what is left. */
static Cand
take(Cand *heap, int32_t *left)
{
	Cand top = heap[0];

	heap[0] = heap[--*left];
	sift(heap, *left, 0);
	heap[*left] = top;
	return top;
}

static void
heapify(Cand *heap, int32_t n)
{
	for (int32_t i = n / 2; i-- > 0;)
		sift(heap, n, i);
}

/* The last `kept` of cand [n], which lie last first, come to the front in order. */
static void
bring_forward(Cand *cand, int32_t n, int32_t kept)
{
	for (int32_t i = 0, j = n - 1; i < kept && i < j; i++, j--) {
		Cand t = cand[i];
		cand[i] = cand[j];
		cand[j] = t;
	}
}

/* Keep the largest candidates until their weights reach top_p of all. */
static int32_t
keep_top_p(Cand *cand, int32_t n, double top_p)
{
	double all = 0, sum = 0;
	int32_t left = n, kept = 0;

	for (int32_t i = 0; i < n; i++)
		all += cand[i].v;
	heapify(cand, n);
	for (; left && (kept == 0 || sum < top_p * all); kept++)
		sum += take(cand, &left).v;
	bring_forward(cand, n, kept);
	return kept;
}

/* Keep those whose information is nearest to the entropy until they weigh typical_p of all; weight [] by id. */
static int32_t
keep_typical(Cand *cand, int32_t n, const float *weight, double typical_p)
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
		cand[i].v = cand[i].v > 0 ? -(float)fabs(-log(cand[i].v / all) - entropy) : -INFINITY;
	heapify(cand, n);
	/* as transformers: the one that reaches the mass stays, and with it those as near as it */
	while (left && (sum < typical_p * all || cand[0].v == last)) {
		Cand c = take(cand, &left);
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
	Cand *cand = m->cand;
	int32_t n = 0;
	double sum = 0;

	if (m->work[best] == INFINITY || max == INFINITY)
		return best;
	if (p->top_k > 0 && p->top_k < m->vocab) {
		float *copy = (float *)cand; /* free until the candidates are listed */
		memcpy(copy, m->work, (size_t)m->vocab * sizeof *copy);
		floor = kth_largest(copy, m->vocab, p->top_k);
		for (int32_t i = 0; i < m->vocab; i++)
			if (m->work[i] < floor) /* ties of the last stay, as in transformers */
				m->work[i] = -INFINITY;
	}
	sample_weights(m->work, m->vocab, p->temperature, max);
	for (int32_t i = 0; i < m->vocab; i++)
		if (m->work[i] > 0)
			cand[n++] = (Cand){ m->work[i], i };
	if (p->top_p > 0 && p->top_p < 1)
		n = keep_top_p(cand, n, p->top_p);
	if (p->min_p > 0) { /* the largest weight is 1 */
		int32_t kept = 0;
		for (int32_t i = 0; i < n; i++)
			if (cand[i].v >= p->min_p)
				cand[kept++] = cand[i];
		n = kept;
	}
	if (p->typical_p > 0 && p->typical_p < 1)
		n = keep_typical(cand, n, m->work, p->typical_p);
	for (int32_t i = 0; i < n; i++)
		sum += cand[i].v;
	at *= sum;
	for (int32_t i = 0; i < n; i++) {
		if (at < cand[i].v)
			return cand[i].id;
		at -= cand[i].v;
	}
	return n ? cand[n - 1].id : best; /* rounding used up the sum */
}

/* Picking a token: penalties, temperature, top-k, top-p, min-p, in the order and with the rules of transformers'
 * processors; presence and frequency penalties as OpenAI defines them, beside the repetition penalty.
 *
 * The n-th pick of a sampler uses the random number of (seed, n) and nothing else, so a pick can be repeated. Nothing is
 * sorted whole: top-k selects, top-p takes from a heap as much as it keeps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct Cand { float v; int32_t id; } Cand; /* value: logit, later weight */

struct llmc_sampler {
	int32_t     vocab;
	llmc_params p;
	bool        penalties;
	float      *work;      /* [vocab] */
	Cand       *cand;      /* [vocab] */
	int32_t    *n_output;  /* [vocab] times in the output */
	bool       *seen;      /* [vocab] in prompt or output */
	int32_t    *touched;   /* [vocab] ids that were seen */
	int32_t     n_touched;
	uint64_t    n_pick;
};

static bool
within(float v, float min, float max)
{
	return v >= min && v <= max; /* false for NaN */
}

static llmc_status
check_params(const llmc_params *p, llmc_error *err)
{
	if (!within(p->temperature, 0, 1e6f))
		return error_set(err, LLMC_E_RANGE, "temperature is %g, it must be 0 (greedy) or above", (double)p->temperature);
	if (p->top_k < 0)
		return error_set(err, LLMC_E_RANGE, "top_k is %d, it must be 0 (off) or above", p->top_k);
	if (!within(p->top_p, 0, 1))
		return error_set(err, LLMC_E_RANGE, "top_p is %g, it must be within 0 .. 1", (double)p->top_p);
	if (!within(p->min_p, 0, 1))
		return error_set(err, LLMC_E_RANGE, "min_p is %g, it must be within 0 .. 1", (double)p->min_p);
	if (!within(p->repetition_penalty, 0, 1e6f))
		return error_set(err, LLMC_E_RANGE, "repetition_penalty is %g, it must be above 0", (double)p->repetition_penalty);
	if (!within(p->presence_penalty, -1e6f, 1e6f) || !within(p->frequency_penalty, -1e6f, 1e6f))
		return error_set(err, LLMC_E_RANGE, "presence_penalty and frequency_penalty must be finite numbers");
	return LLMC_OK;
}

llmc_status
llmc_sampler_open(int32_t vocab, const llmc_params *p, llmc_sampler **out, llmc_error *err)
{
	llmc_params own = { 0 };

	if (!out)
		return error_set(err, LLMC_E_RANGE, "no place for the sampler was given");
	*out = NULL;
	if (p)
		memcpy(&own, p, p->size < sizeof own ? p->size : sizeof own);
	if (vocab < 1)
		return error_set(err, LLMC_E_RANGE, "a vocabulary of %d tokens cannot be sampled from", vocab);
	TRY(check_params(&own, err));
	llmc_sampler *s = calloc(1, sizeof *s);
	if (s) {
		s->vocab = vocab;
		s->p = own;
		s->p.stop = NULL; /* not ours to keep */
		if (s->p.repetition_penalty == 0)
			s->p.repetition_penalty = 1;
		s->penalties = s->p.repetition_penalty != 1 || own.presence_penalty != 0 || own.frequency_penalty != 0;
		s->work = calloc((size_t)vocab, sizeof *s->work);
		s->cand = calloc((size_t)vocab, sizeof *s->cand);
		s->n_output = calloc((size_t)vocab, sizeof *s->n_output);
		s->seen = calloc((size_t)vocab, sizeof *s->seen);
		s->touched = calloc((size_t)vocab, sizeof *s->touched);
	}
	if (!s || !s->work || !s->cand || !s->n_output || !s->seen || !s->touched) {
		llmc_sampler_close(s);
		return error_set(err, LLMC_E_MEMORY, "out of memory for a sampler of %d tokens", vocab);
	}
	*out = s;
	return LLMC_OK;
}

void
llmc_sampler_close(llmc_sampler *s)
{
	if (!s)
		return;
	free(s->work);
	free(s->cand);
	free(s->n_output);
	free(s->seen);
	free(s->touched);
	free(s);
}

void
llmc_sampler_reset(llmc_sampler *s)
{
	for (int32_t i = 0; i < s->n_touched; i++) {
		s->seen[s->touched[i]] = false;
		s->n_output[s->touched[i]] = 0;
	}
	s->n_touched = 0;
	s->n_pick = 0;
}

void
llmc_sampler_accept(llmc_sampler *s, int32_t id, bool is_prompt)
{
	if (id < 0 || id >= s->vocab)
		return;
	if (!s->seen[id]) {
		s->seen[id] = true;
		s->touched[s->n_touched++] = id;
	}
	s->n_output[id] += !is_prompt && s->n_output[id] < INT32_MAX;
}

static uint64_t
mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* splitmix64, at the n-th place of the stream that the seed chooses; in [0, 1) */
static double
random_at(uint64_t seed, uint64_t n)
{
	uint64_t start = mix(seed + 0x9e3779b97f4a7c15u);

	return (double)(mix(start + (n + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

typedef float   Lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(32)));

/* The largest, the first of equals; NaN: E_CHECK. Eight at a time: this runs for every token. */
static llmc_status
largest(const float *v, int32_t n, int32_t *at, llmc_error *err)
{
	Lanes   top = { -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY };
	Mask    nan = { 0 };
	float   most = -INFINITY;
	int32_t i = 0, bad = 0;

	for (; i + 8 <= n; i += 8) {
		Lanes x = *(const Lanes *)(v + i);
		Mask  more = x > top;
		nan |= x != x;
		top = (Lanes)(((Mask)x & more) | ((Mask)top & ~more));
	}
	for (int k = 0; k < 8; k++) {
		bad |= nan[k];
		most = top[k] > most ? top[k] : most;
	}
	for (; i < n; i++) {
		bad |= v[i] != v[i];
		most = v[i] > most ? v[i] : most;
	}
	if (bad) {
		for (i = 0; v[i] == v[i]; i++)
			;
		return error_set(err, LLMC_E_CHECK,
		                 "the logits hold NaN (token %d): weights or kernels are broken, try `llmc verify`", i);
	}
	if (most == -INFINITY)
		return error_set(err, LLMC_E_CHECK, "all logits are minus infinity: no token can be picked");
	for (i = 0; v[i] != most; i++)
		;
	*at = i;
	return LLMC_OK;
}

static void
penalise(llmc_sampler *s)
{
	const llmc_params *p = &s->p;

	for (int32_t i = 0; i < s->n_touched; i++) {
		int32_t id = s->touched[i];
		float *v = &s->work[id];
		*v = *v < 0 ? *v * p->repetition_penalty : *v / p->repetition_penalty;
		if (s->n_output[id])
			*v -= p->frequency_penalty * (float)s->n_output[id] + p->presence_penalty;
	}
}

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

/* Keep the largest candidates until their weights reach top_p of all; they end in cand[0 .. return), in order. */
static int32_t
keep_top_p(Cand *cand, int32_t n, double top_p)
{
	double all = 0, sum = 0;
	int32_t left = n, kept = 0;

	for (int32_t i = 0; i < n; i++)
		all += cand[i].v;
	for (int32_t i = n / 2; i-- > 0;)
		sift(cand, n, i);
	/* the root goes to the end of the heap's room, which shrinks; so the kept ones lie at the end, last first */
	while (left && (kept == 0 || sum < top_p * all)) {
		Cand top = cand[0];
		cand[0] = cand[--left];
		sift(cand, left, 0);
		cand[left] = top;
		sum += top.v;
		kept++;
	}
	for (int32_t i = 0, j = n - 1; i < kept && i < j; i++, j--) {
		Cand t = cand[i];
		cand[i] = cand[j];
		cand[j] = t;
	}
	return kept;
}

static int32_t
draw(llmc_sampler *s, int32_t best)
{
	const llmc_params *p = &s->p;
	float max = s->work[best] / p->temperature, floor = -INFINITY;
	int32_t n = 0;
	double sum = 0;

	if (s->work[best] == INFINITY || max == INFINITY)
		return best;
	if (p->top_k > 0 && p->top_k < s->vocab) {
		float *copy = (float *)s->cand; /* free until the candidates are listed */
		memcpy(copy, s->work, (size_t)s->vocab * sizeof *copy);
		floor = kth_largest(copy, s->vocab, p->top_k);
	}
	for (int32_t i = 0; i < s->vocab; i++) {
		if (s->work[i] < floor) /* ties of the last stay, as in transformers */
			continue;
		float d = s->work[i] / p->temperature - max;
		s->cand[n++] = (Cand){ d < -100 ? 0 : expf(d), i };
	}
	if (p->top_p > 0 && p->top_p < 1)
		n = keep_top_p(s->cand, n, p->top_p);
	if (p->min_p > 0) { /* the largest weight is 1 */
		int32_t kept = 0;
		for (int32_t i = 0; i < n; i++)
			if (s->cand[i].v >= p->min_p)
				s->cand[kept++] = s->cand[i];
		n = kept;
	}
	for (int32_t i = 0; i < n; i++)
		sum += s->cand[i].v;
	double at = random_at(p->seed, s->n_pick) * sum;
	int32_t last = best;
	for (int32_t i = 0; i < n; i++) {
		if (s->cand[i].v <= 0)
			continue;
		last = s->cand[i].id;
		if (at < s->cand[i].v)
			return last;
		at -= s->cand[i].v;
	}
	return last; /* rounding used up the sum */
}

static float
log_probability(const float *v, int32_t n, int32_t max_at, int32_t id)
{
	double sum = 0, max = v[max_at];

	if (v[max_at] == INFINITY)
		return v[id] == INFINITY ? 0 : -INFINITY;
	for (int32_t i = 0; i < n; i++)
		sum += exp(v[i] - max);
	return (float)(v[id] - max - log(sum));
}

llmc_status
llmc_sampler_pick(llmc_sampler *s, const float *logits, int32_t *id, float *logprob, llmc_error *err)
{
	int32_t raw_best, best;

	TRY(largest(logits, s->vocab, &raw_best, err));
	best = raw_best;
	if (s->p.temperature > 0 || (s->penalties && s->n_touched)) {
		memcpy(s->work, logits, (size_t)s->vocab * sizeof *s->work);
		if (s->penalties) {
			penalise(s);
			TRY(largest(s->work, s->vocab, &best, err));
		}
	}
	*id = s->p.temperature > 0 ? draw(s, best) : best;
	s->n_pick++;
	if (logprob)
		*logprob = log_probability(logits, s->vocab, raw_best, *id);
	return LLMC_OK;
}

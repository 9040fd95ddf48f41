/* Candidates of a sampled token: tokens with a value, which is a logit or a weight. */
#ifndef LLMC_RUNTIME_SAMPLE_CANDIDATES_H
#define LLMC_RUNTIME_SAMPLE_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Candidate {
	float v;
	int32_t id;
} Candidate;
/* Scratch memory for one sampled token, shared by all samplers of a thread */
typedef struct SampleScratch {
	int32_t vocab;
	float *work;     /* [vocab] */
	Candidate *cand; /* [vocab] */
} SampleScratch;

/* Does a precede b? The larger value first, then the lower id. */
static inline bool
candidate_before(Candidate a, Candidate b)
{
	return a.v > b.v || (a.v == b.v && a.id < b.id);
}

void candidates_swap(Candidate *cand, int32_t a, int32_t b);
/* A heap whose top precedes all others. candidates_heap_take removes the top, which moves to the
 * slot after the remaining ones. */
void candidates_heapify(Candidate *heap, int32_t n);
Candidate candidates_heap_take(Candidate *heap, int32_t *left);
/* Move the last `kept` entries of cand [n] to the front in reverse order, so that those taken from
 * a heap have the best first. */
void candidates_reverse_end(Candidate *cand, int32_t n, int32_t kept);
/* Sort the `kept` largest values to the front, the largest first; ties go to the lower id. */
void candidates_sort(Candidate *cand, int32_t n, int32_t kept);
/* Index of the largest value; ties go to the lower id. */
int32_t candidates_best(const Candidate *cand, int32_t n);
/* The k-th largest of m->work, 1 <= k <= vocab; the candidates are scratch memory. */
float candidates_kth_largest(const SampleScratch *m, int32_t k);

/* Values that are weights, in (0, 1] */
/* Bring the largest weights that reach top_p of the sum to the front: first *n_larger unsorted
 * ones, then *n_sorted sorted ones. */
void candidates_cut_top_p(Candidate *cand, int32_t n, double top_p, int32_t *n_larger,
                          int32_t *n_sorted);
/* Sum of weights, and the entropy in nats of weights with this sum */
double candidates_sum(const Candidate *cand, int32_t n);
double candidates_entropy(const Candidate *cand, int32_t n, double sum);
/* Return the id of the candidate at which the running sum of weights exceeds `at`; the last one if
 * rounding leaves none. */
int32_t candidates_draw(const Candidate *cand, int32_t n, double at);
/* The same as if the candidates were sorted, the largest first, with `at` as a share of the sum;
 * only the bucket of the result is sorted. This order fixes the result of a seed on every target.
 */
int32_t candidates_draw_sorted(Candidate *cand, int32_t n, double at);

#endif

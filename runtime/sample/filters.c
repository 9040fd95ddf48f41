/* Filters of the CPU: which tokens may be sampled, and with which probability. There are two ways.
 *
 * sample_draw has the order of sampler.h, that of transformers: filters shorten a list of weights.
 *
 * sample_chain has a request's own order, as llama.cpp defines it (--samplers, `samplers`). The
 * state between two samplers is the logits alone: a token that one of them drops has the logit
 * -inf. So a sampler may come at any position, several times, or not at all. */
#include <math.h>
#include <string.h>

#include "runtime/sample/sampler.h"

/* Names of samplers with their letters: llama.cpp's own, then other spellings */
#define NAMED(letter, name) { #letter, name },
static const struct {
	char letter[2];
	const char *name;
} names[] = {
	LLMC_SAMPLERS(NAMED){ "s", "top-n-sigma" },
	{ "k", "top-k" },
	{ "y", "typ-p" },
	{ "y", "typ" },
	{ "y", "typical_p" },
	{ "y", "typical-p" },
	{ "y", "typical" },
	{ "p", "top-p" },
	{ "p", "nucleus" },
	{ "m", "min-p" },
	{ "t", "temp" },
};

/* ---- orders of requests ---- */

static char
letter_of(const char *name, size_t n)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i].name) == n && !memcmp(names[i].name, name, n))
			return names[i].letter[0];
	return 0;
}

static llmc_status
unknown(const char *text, size_t n, llmc_error *err)
{
#define LISTED(letter, name) name ", "
	static const char list[] = LLMC_SAMPLERS(LISTED);

	return error_set(err, LLMC_E_RANGE,
	                 "no sampler is called '%.*s'; samplers are %sor the letters %s",
	                 n < 40 ? (int)n : 40, text, list, LLMC_SAMPLER_LETTERS);
}

llmc_status
sampler_order(const char *text, char out[LLMC_MAX_SAMPLERS + 1], llmc_error *err)
{
	size_t all = strlen(text), n = 0;
	const bool named = strchr(text, ';') || letter_of(text, all);

	out[0] = 0;
	for (const char *at = text; *at;) {
		size_t len = named ? strcspn(at, ";") : 1;
		const bool known = strchr(LLMC_SAMPLER_LETTERS, *at);
		char letter = named ? letter_of(at, len) : known ? *at : 0;
		if (!letter)
			return named ? unknown(at, len, err) : unknown(text, all, err);
		if (n == LLMC_MAX_SAMPLERS)
			return error_set(err, LLMC_E_RANGE, "at most %d samplers are possible",
			                 LLMC_MAX_SAMPLERS);
		out[n++] = letter;
		out[n] = 0;
		at += len;
		at += named && *at == ';';
	}
	return LLMC_OK;
}

bool
sampler_has_order(const llmc_params *p)
{
	return !p->mirostat && (p->samplers || p->min_keep > 1);
}

/* ---- both orders ---- */

static double
xtc_threshold(const llmc_params *p)
{
	return (double)(p->xtc_threshold > 0 ? p->xtc_threshold : 0.1f);
}

bool
sample_has_xtc(const llmc_params *p)
{
	return p->xtc_probability > 0 && xtc_threshold(p) <= 0.5 && !p->mirostat;
}

/* Does temperature come after all other steps? */
static bool
is_late(const llmc_params *p)
{
	return sample_has_xtc(p) || p->dynatemp_range > 0;
}

/* With exponent 1 the result is the middle of the range if the entropy of the candidates is half of
 * the maximum. */
static double
temperature_of(const llmc_params *p, const Candidate *cand, int32_t n)
{
	const double least = fmax(0, (double)p->temperature - (double)p->dynatemp_range),
	             most = (double)p->temperature + (double)p->dynatemp_range,
	             exponent = p->dynatemp_exponent > 0 ? (double)p->dynatemp_exponent : 1;

	if (p->dynatemp_range <= 0 || n < 2)
		return (double)p->temperature;
	const double entropy = candidates_entropy(cand, n, candidates_sum(cand, n));
	return least + (most - least) * pow(entropy / log(n), exponent);
}

static void
cut_top_n_sigma(float *v, int32_t n, float largest, float n_sigma)
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

llmc_status
sampler_order_of(const llmc_params *p, char out[LLMC_MAX_SAMPLERS + 1], llmc_error *err)
{
	if (p->samplers)
		return sampler_order(p->samplers, out, err);
	/* the order of sampler.h as letters, because min_keep exists in chains only */
	strcpy(out, is_late(p) ? "edskpmyxt" : "edstkpmy");
	return LLMC_OK;
}

/* ---- the order of sampler.h: lists of weights ---- */

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

/* Keep the candidates whose information (-log p) is nearest to the entropy, until their weights
 * reach typical_p of the sum. weight is indexed by token id. */
static int32_t
keep_typical(Candidate *cand, int32_t n, const float *weight, double typical_p)
{
	const double all = candidates_sum(cand, n), entropy = candidates_entropy(cand, n, all);
	double sum = 0;
	int32_t left = n, kept = 0;
	float last = 0;

	for (int32_t i = 0; i < n; i++)
		cand[i].v =
		    cand[i].v > 0 ? -(float)fabs(-log(cand[i].v / all) - entropy) : -INFINITY;
	candidates_heapify(cand, n);
	/* as in transformers: the candidate that reaches the mass stays, with its ties */
	while (left && (sum < typical_p * all || cand[0].v == last)) {
		Candidate c = candidates_heap_take(cand, &left);
		last = c.v;
		sum += weight[c.id];
		kept++;
	}
	candidates_reverse_end(cand, n, kept);
	for (int32_t i = 0; i < kept; i++)
		cand[i].v = weight[cand[i].id];
	return kept;
}

/* Drop all candidates that reach the threshold except the least likely of them. */
static int32_t
drop_top_choices(Candidate *cand, int32_t n, double threshold)
{
	const double least = threshold * candidates_sum(cand, n);
	Candidate last = { 0 };
	int32_t reach = 0, kept = 0;

	for (int32_t i = 0; i < n; i++)
		if (cand[i].v >= least && (reach++ == 0 || candidate_before(last, cand[i])))
			last = cand[i];
	if (reach < 2)
		return n;
	for (int32_t i = 0; i < n; i++)
		if (cand[i].v < least || cand[i].id == last.id)
			cand[kept++] = cand[i];
	return kept;
}

/* Draw from weights to which no temperature has been applied. */
static int32_t
draw_late(const llmc_params *p, Candidate *cand, int32_t n, SampleRandom r)
{
	if (sample_has_xtc(p) && r.chance < (double)p->xtc_probability)
		n = drop_top_choices(cand, n, xtc_threshold(p));
	const Candidate best = cand[candidates_best(cand, n)];
	const double temperature = p->temperature > 0 ? temperature_of(p, cand, n) : 0;
	if (!(temperature > 0))
		return best.id;
	for (int32_t i = 0; i < n; i++)
		cand[i].v = (float)exp(log((double)cand[i].v / best.v) / temperature);
	return candidates_draw(cand, n, r.at * candidates_sum(cand, n));
}

int32_t
sample_draw(const SampleScratch *m, const llmc_params *p, int32_t best, SampleRandom r)
{
	if (p->top_n_sigma > 0)
		cut_top_n_sigma(m->work, m->vocab, m->work[best], p->top_n_sigma);
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
		floor = candidates_kth_largest(m, p->top_k);
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
		candidates_cut_top_p(cand, n, p->top_p, &larger, &sorted);
		n = larger + sorted;
		if (typical)
			candidates_sort(cand, larger, larger);
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
		return candidates_draw_sorted(cand, n, at);
	return candidates_draw(cand, n, at * candidates_sum(cand, n));
}

/* ---- orders of requests: logits ---- */

/* List the tokens that are left with weights relative to the largest logit; returns their number.
 */
static int32_t
list_candidates(const SampleScratch *m, float largest)
{
	int32_t n = 0;

	for (int32_t i = 0; i < m->vocab; i++)
		if (m->work[i] != -INFINITY)
			m->cand[n++] = (Candidate){ expf(m->work[i] - largest), i };
	return n;
}

static void
drop(const SampleScratch *m, int32_t from, int32_t end)
{
	for (int32_t i = from; i < end; i++)
		m->work[m->cand[i].id] = -INFINITY;
}

/* Keep the `kept` likeliest tokens. Tokens are compared by logit, because small weights underflow
 * to 0. */
static void
keep_likeliest(const SampleScratch *m, int32_t n, int32_t kept)
{
	for (int32_t i = 0; i < n; i++)
		m->cand[i].v = m->work[m->cand[i].id];
	candidates_sort(m->cand, n, kept);
	drop(m, kept, n);
}

static void
cut_top_k(const SampleScratch *m, int32_t k)
{
	int32_t larger = 0;

	if (k <= 0 || k >= m->vocab)
		return;
	const float least = candidates_kth_largest(m, k);
	for (int32_t i = 0; i < m->vocab; i++)
		larger += m->work[i] > least;
	for (int32_t i = 0, equal = k - larger; i < m->vocab; i++)
		if (m->work[i] < least || (m->work[i] == least && equal-- <= 0))
			m->work[i] = -INFINITY;
}

static void
cut_mass(const SampleScratch *m, float largest, double top_p, int32_t min_keep)
{
	int32_t larger, sorted;

	if (!(top_p > 0 && top_p < 1))
		return;
	const int32_t n = list_candidates(m, largest);
	candidates_cut_top_p(m->cand, n, top_p, &larger, &sorted);
	if (larger + sorted < min_keep)
		keep_likeliest(m, n, min_keep);
	else
		drop(m, larger + sorted, n);
}

static void
cut_min_p(const SampleScratch *m, float largest, float min_p, int32_t min_keep)
{
	int32_t kept = 0;

	if (min_p <= 0)
		return;
	const float least = largest + logf(min_p);
	for (int32_t i = 0; i < m->vocab; i++)
		kept += m->work[i] >= least;
	if (kept < min_keep) {
		keep_likeliest(m, list_candidates(m, largest), min_keep);
		return;
	}
	for (int32_t i = 0; i < m->vocab; i++)
		if (m->work[i] < least)
			m->work[i] = -INFINITY;
}

static void
cut_typical(const SampleScratch *m, float largest, double typical_p, int32_t min_keep)
{
	Candidate *cand = m->cand;
	double sum = 0;
	int32_t kept = 0;

	if (!(typical_p > 0 && typical_p < 1))
		return;
	const int32_t n = list_candidates(m, largest);
	const double all = candidates_sum(cand, n), entropy = candidates_entropy(cand, n, all);
	for (int32_t i = 0; i < n; i++)
		cand[i].v = -(float)fabs(log(all) - (m->work[cand[i].id] - largest) - entropy);
	candidates_sort(cand, n, n);
	while (kept < n && (kept < min_keep || sum <= typical_p))
		sum += exp((double)(m->work[cand[kept++].id] - largest)) / all;
	drop(m, kept, n);
}

/* Drop all tokens that reach the threshold except the least likely of them. */
static void
cut_xtc(const SampleScratch *m, const llmc_params *p, float largest, double chance)
{
	int32_t reach = 0, last = 0;

	if (!sample_has_xtc(p) || chance >= (double)p->xtc_probability)
		return;
	const int32_t n = list_candidates(m, largest);
	const double least = xtc_threshold(p) * candidates_sum(m->cand, n);
	/* in order of ids, so among equal tokens the last one has the highest id */
	for (int32_t i = 0; i < n; i++)
		if (m->cand[i].v >= least &&
		    (reach++ == 0 || m->work[m->cand[i].id] <= m->work[last]))
			last = m->cand[i].id;
	for (int32_t i = 0; reach > 1 && n - (reach - 1) >= p->min_keep && i < n; i++)
		if (m->cand[i].v >= least && m->cand[i].id != last)
			m->work[m->cand[i].id] = -INFINITY;
}

static void
apply_temperature(const SampleScratch *m, const llmc_params *p, float largest)
{
	const int32_t n = p->dynatemp_range > 0 ? list_candidates(m, largest) : 0;
	const double t = p->temperature > 0 ? temperature_of(p, m->cand, n) : 0;
	bool found = false;

	/* a temperature so close to 0 that the division overflows selects the largest logit, as 0
	 * does */
	const bool divides = t > 0 && isfinite((float)((double)largest / t));
	for (int32_t i = 0; i < m->vocab; i++) {
		float *v = &m->work[i];
		if (divides) {
			*v = (float)((double)*v / t);
		} else if (*v < largest || found) {
			*v = -INFINITY;
		} else {
			found = true;
		}
	}
}

int32_t
sample_chain(const SampleScratch *m, const llmc_params *p, const char *order, const ChainOwner *own,
             SampleRandom r)
{
	int32_t best;

	for (const char *c = order; *c; c++) {
		if (sample_largest(m->work, m->vocab, &best, NULL) != LLMC_OK)
			return -1;
		const float largest = m->work[best];
		if (largest == INFINITY)
			return best;
		switch (*c) {
		case 'e':
			own->penalise(own->sampler, m);
			break;
		case 'd':
			own->dry(own->sampler, m);
			break;
		case 's':
			if (p->top_n_sigma > 0)
				cut_top_n_sigma(m->work, m->vocab, largest, p->top_n_sigma);
			break;
		case 'k':
			cut_top_k(m, p->top_k);
			break;
		case 'y':
			cut_typical(m, largest, (double)p->typical_p, p->min_keep);
			break;
		case 'p':
			cut_mass(m, largest, (double)p->top_p, p->min_keep);
			break;
		case 'm':
			cut_min_p(m, largest, p->min_p, p->min_keep);
			break;
		case 'i':
			if (!sample_infill(m, own, list_candidates(m, largest)))
				return -1;
			break;
		case 'x':
			cut_xtc(m, p, largest, r.chance);
			break;
		default:
			apply_temperature(m, p, largest);
			break;
		}
	}
	if (sample_largest(m->work, m->vocab, &best, NULL) != LLMC_OK)
		return -1;
	if (m->work[best] == INFINITY)
		return best;
	const int32_t n = list_candidates(m, m->work[best]);
	return candidates_draw(m->cand, n, r.at * candidates_sum(m->cand, n));
}

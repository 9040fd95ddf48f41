/* A request's own order of samplers, as llama.cpp defines them (--samplers, `samplers`). The state
 * between two samplers is the logits alone: a token that one of them drops has the logit -inf. So a
 * sampler may come at any position, several times, or not at all. */
#include <math.h>
#include <string.h>

#include "runtime/sample/sampler.h"

/* Letter and names of each sampler; the first name is llama.cpp's own. */
static const struct {
	char letter;
	const char *name[6];
} kind[] = {
	{ 'e', { "penalties" } },
	{ 'd', { "dry" } },
	{ 's', { "top_n_sigma", "top-n-sigma" } },
	{ 'k', { "top_k", "top-k" } },
	{ 'y', { "typ_p", "typ-p", "typ", "typical_p", "typical-p", "typical" } },
	{ 'p', { "top_p", "top-p", "nucleus" } },
	{ 'm', { "min_p", "min-p" } },
	{ 'x', { "xtc" } },
	{ 'i', { "infill" } },
	{ 't', { "temperature", "temp" } },
};
enum { N_KIND = sizeof kind / sizeof *kind, N_NAME = sizeof kind->name / sizeof *kind->name };

/* ---- orders ---- */

static char
letter_of(const char *name, size_t n)
{
	for (size_t i = 0; i < N_KIND; i++)
		for (size_t k = 0; k < N_NAME && kind[i].name[k]; k++)
			if (strlen(kind[i].name[k]) == n && !memcmp(kind[i].name[k], name, n))
				return kind[i].letter;
	return 0;
}

static bool
is_letter(char c)
{
	for (size_t i = 0; i < N_KIND; i++)
		if (kind[i].letter == c)
			return true;
	return false;
}

static llmc_status
unknown(const char *text, size_t n, llmc_error *err)
{
	return error_set(err, LLMC_E_RANGE,
	                 "no sampler is called '%.*s'; samplers are penalties, dry, "
	                 "top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature and infill, or "
	                 "the letters edskypmxti",
	                 n < 40 ? (int)n : 40, text);
}

llmc_status
sampler_order(const char *text, char out[SAMPLERS_MAX + 1], llmc_error *err)
{
	size_t all = strlen(text), n = 0;
	const bool names = strchr(text, ';') || letter_of(text, all);

	out[0] = 0;
	for (const char *at = text; *at;) {
		size_t len = names ? strcspn(at, ";") : 1;
		char letter = names ? letter_of(at, len) : is_letter(*at) ? *at : 0;
		if (!letter)
			return names ? unknown(at, len, err) : unknown(text, all, err);
		if (n == SAMPLERS_MAX)
			return error_set(err, LLMC_E_RANGE, "at most %d samplers are possible",
			                 SAMPLERS_MAX);
		out[n++] = letter;
		out[n] = 0;
		at += len;
		at += names && *at == ';';
	}
	return LLMC_OK;
}

bool
sampler_has_order(const llmc_params *p)
{
	return !p->mirostat && (p->samplers || p->min_keep > 1);
}

/* ---- samplers ---- */

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
	sample_sort(m->cand, n, kept);
	drop(m, kept, n);
}

static void
cut_top_k(const SampleScratch *m, int32_t k)
{
	int32_t larger = 0;

	if (k <= 0 || k >= m->vocab)
		return;
	const float least = sample_kth_largest(m, k);
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
	sample_cut_top_p(m->cand, n, top_p, &larger, &sorted);
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
	const double all = sample_sum(cand, n), entropy = sample_entropy(cand, n, all);
	for (int32_t i = 0; i < n; i++)
		cand[i].v = -(float)fabs(log(all) - (m->work[cand[i].id] - largest) - entropy);
	sample_sort(cand, n, n);
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
	const double least = sample_xtc_threshold(p) * sample_sum(m->cand, n);
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
	const double t = p->temperature > 0 ? sample_temperature(p, m->cand, n) : 0;
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
				sample_top_n_sigma(m->work, m->vocab, largest, p->top_n_sigma);
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
	return sample_cumulative(m->cand, n, r.at * sample_sum(m->cand, n));
}

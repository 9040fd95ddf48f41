/* See draft.h. */
#include "runtime/draft/draft.h"

#include <stdlib.h>
#include <string.h>

enum {
	MAX_MATCH = 48,      /* longest measured match, in tokens */
	MAX_CANDIDATES = 24, /* candidate positions compared per lookup */
	/* age in recorded steps from which a measured time is replaced by the estimate, so that
	 * drafting is tried again */
	STALE = 512,
	/* tokens after the end of a copied span where a single equal token counts as a match */
	NEAR = 12,
	RETRY_STEPS = 100, /* steps after which an unprofitable draft model is tried once more */
};

/* Cost of a further row relative to the first, until steps have been measured. It is small because
 * all rows of a step share one read of the weights, and an underestimate, so that draft tokens are
 * tried once. */
static const double ROW_SHARE = 0.12;
static const float prior[DRAFT_BINS] = { 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.88f, 0.93f,
	                                 0.7f, 0.7f, 0.7f, 0.7f, 0.7f, 0.7f, 0.7f,  0.7f };
/* weights of the prior and of the session's statistics, in draft tokens */
static const float PRIOR_WEIGHT = 4, SESSION_WEIGHT = 3;
static const float KEEP_TEXT = 0.97f,
                   KEEP_SESSION = 0.999f; /* decay of the counts per recorded draft token */
/* Minimum expected speedup of a step with draft tokens, because measured times are noisy. */
static const double MARGIN = 1.02;

int32_t
draft_rows(const Plan *p)
{
	int64_t rows = DRAFT_MOST + 1;

	/* MLA has two forms. Draft rows must use the one that single rows use (llmc_mla.h), for
	 * every number of preceding positions that is at least the number of draft rows. */
	for (int ph = 0; ph < p->n_phase; ph++)
		for (int i = 0; i < p->phase[ph].n_step; i++) {
			int64_t expand = step_int(&p->phase[ph].step[i], "expand");
			if (expand > 1 && expand * 2 / 3 < rows)
				rows = expand * 2 / 3;
		}
	return rows < 1 ? 1 : (int32_t)rows;
}

Draft *
draft_new(int32_t capacity)
{
	Draft *d = calloc(1, sizeof *d);
	uint32_t heads = 64;

	while (heads < (uint32_t)capacity)
		heads *= 2;
	if (!d)
		return NULL;
	d->capacity = capacity;
	d->next = -1;
	d->mask = heads - 1;
	for (int k = 0; k < 2; k++) {
		d->last[k] = malloc(heads * sizeof *d->last[k]);
		d->before[k] = malloc((size_t)capacity * sizeof *d->before[k]);
		if (!d->last[k] || !d->before[k]) {
			draft_free(d);
			return NULL;
		}
		memset(d->last[k], 0xff, heads * sizeof *d->last[k]);
	}
	return d;
}

void
draft_free(Draft *d)
{
	if (!d)
		return;
	for (int k = 0; k < 2; k++) {
		free(d->last[k]);
		free(d->before[k]);
	}
	free(d);
}

/* Hash the bigram (k 0) or trigram (k 1) that ends at `at`. */
static uint32_t
hash(const Draft *d, const int32_t *tok, int32_t at, int k)
{
	uint64_t h = (uint32_t)tok[at] * 0x9e3779b97f4a7c15u;

	for (int i = 1; i < k + 2; i++)
		h = (h ^ (h >> 29) ^ (uint32_t)tok[at - i]) * 0xbf58476d1ce4e5b9u;
	return (uint32_t)(h >> 32) & d->mask;
}

/* Return the length of the common suffix of the prefixes that end at a and at b > a. */
static int32_t
match(const int32_t *tok, int32_t a, int32_t b)
{
	int32_t n = 0;

	while (n < MAX_MATCH && n <= a && tok[a - n] == tok[b - n])
		n++;
	return n;
}

static int
bin(int32_t n)
{
	static const int32_t from[DRAFT_MATCHES] = { 0, 2, 3, 4, 6, 9, 16, 32 };
	int b = DRAFT_MATCHES - 1;

	while (n < from[b])
		b--;
	return b;
}

static float
chance(const Draft *d, const Drafter *of, int b)
{
	float all = (of->odds.hit[b] + PRIOR_WEIGHT * prior[b]) / (of->odds.all[b] + PRIOR_WEIGHT);

	return (d->odds.hit[b] + SESSION_WEIGHT * all) / (d->odds.all[b] + SESSION_WEIGHT);
}

void
draft_look_up(Draft *d, const Drafter *of, const int32_t *tok, int32_t n, int32_t most)
{
	int32_t best = -1;
	float odds = 1;

	d->n = d->run = d->match = 0;
	most = most < DRAFT_MOST ? most : DRAFT_MOST;
	most = most < n - 2 ? most
	                    /* at most as many draft rows as preceding positions: draft_rows assumes
	                     * this limit */
	                    : n - 2;
	if (n > d->capacity || n < 3 || most < 1 || of->eager)
		return;
	/* add n-grams up to the token before the last; the last one has no successor yet */
	for (int32_t at = d->n_seen; at < n - 1; at++)
		for (int k = 0; k < 2; k++)
			if (at > k) {
				int32_t *last = &d->last[k][hash(d, tok, at, k)];
				d->before[k][at] = *last;
				*last = at;
			}
	d->n_seen = n - 1;
	for (int k = 1; k >= 0 && best < 0; k--) {
		if (n < k + 2)
			continue;
		int32_t at = d->last[k][hash(d, tok, n - 1, k)];
		for (int tried = 0; at >= 0 && tried < MAX_CANDIDATES && d->match < MAX_MATCH;
		     tried++, at = d->before[k][at]) {
			int32_t length = match(tok, at, n - 1);
			/* on a tie the latest position wins */
			if (length >= k + 2 && length > d->match) {
				d->match = length;
				best = at;
			}
		}
	}
	/* after a copied span ends, the sequence often continues a few tokens further on in the
	 * source, so in that range a match of one token is enough */
	for (int32_t at = d->next; best < 0 && at >= 0 && at < d->next + NEAR && at < n - 1; at++)
		if (tok[at] == tok[n - 1]) {
			d->match = 1;
			best = at;
		}
	if (best < 0)
		return;
	d->from = best + 1;
	d->n = most;
	for (int32_t i = 0; i < d->n;
	     i++) { /* past the end of the sequence the draft repeats its own tokens */
		d->tok[i] = best + 1 + i < n ? tok[best + 1 + i] : d->tok[best + 1 + i - n];
		d->bin[i] = (int8_t)bin(d->match + i);
		odds *= chance(d, of, d->bin[i]);
		d->odds_at[i] = odds;
	}
}

static int
model_bin(int32_t at)
{
	return DRAFT_MATCHES + (at < DRAFT_MATCHES ? at : DRAFT_MATCHES - 1);
}

void
draft_from_model(Draft *d, const Drafter *of, int32_t n)
{
	float odds = 1;

	d->n = n;
	d->match = 0;
	for (int32_t i = 0; i < n; i++) {
		d->bin[i] = (int8_t)model_bin(i);
		odds *= chance(d, of, d->bin[i]);
		d->odds_at[i] = odds;
	}
}

static void
count(DraftStats *o, int b, bool hit, float keep)
{
	o->hit[b] = o->hit[b] * keep + (hit ? 1 : 0);
	o->all[b] = o->all[b] * keep + 1;
}

void
draft_update(Draft *d, Drafter *of, const int32_t *tok, int32_t n_new)
{
	int32_t right = 0;

	for (int32_t i = 0; i < d->n && i < n_new; i++) {
		bool hit = d->tok[i] == tok[i];
		count(&d->odds, d->bin[i], hit, KEEP_TEXT);
		count(&of->odds, d->bin[i], hit, KEEP_SESSION);
		if (!hit)
			break;
		right++;
	}
	if (d->n && d->match)
		d->next = d->from + right;
	d->n = d->run = 0;
}

/* ---- step times ---- */

static double
estimated_time(const Drafter *of, int32_t n_seqs, int32_t rows)
{
	return of->plain[n_seqs].s * (1 + ROW_SHARE * (rows - 1)) / (1 + ROW_SHARE * (n_seqs - 1)) *
	       (of->factor > 0 ? of->factor : 1);
}

static double
chain_time(const Drafter *of, int32_t n_seqs, int32_t rows)
{
	const DraftTime *t = &of->chain[rows];

	return t->s > 0 && of->n_measured - t->at < STALE ? t->s : estimated_time(of, n_seqs, rows);
}

/* Update a running mean. Other programs can only make steps longer, so a shorter time gets more
 * weight. */
static void
update_mean(double *to, double x, double up)
{
	if (*to <= 0)
		*to = x;
	else
		*to += (x < *to ? 0.5 : up) * ((x < 3 * *to ? x : 3 * *to) - *to);
}

void
drafter_record_step(Drafter *of, int32_t rows, bool drafted, double seconds)
{
	if (rows < 1 || rows > DRAFT_ROWS || !(seconds > 0))
		return;
	DraftTime *t = drafted ? &of->chain[rows] : &of->plain[rows];
	if (of->n_measured - t->at >= STALE)
		t->s = 0;
	update_mean(&t->s, seconds, 0.1);
	t->at = ++of->n_measured;
	if (drafted && of->plain[1].s > 0)
		update_mean(&of->factor, t->s / (of->plain[1].s * (1 + ROW_SHARE * (rows - 1))),
		            0.2);
}

/* Expected time of a step without draft tokens. */
static double
base_time(const Drafter *of, int32_t n_seqs, int32_t rerun)
{
	return rerun ? chain_time(of, n_seqs, n_seqs + rerun) : of->plain[n_seqs].s;
}

/* Expected time of a step with `more` draft rows that are all accepted with probability `odds`.
 * With recurrent states, the accepted rows of a partly rejected draft run a second time, which
 * costs as much again. */
static double
rows_time(const Drafter *of, int32_t n_seqs, int32_t rerun, int32_t more, double odds)
{
	double t = chain_time(of, n_seqs, n_seqs + rerun + more),
	       extra = t - base_time(of, n_seqs, rerun);

	return of->states && extra > 0 ? t + (1 - odds) * extra : t;
}

/* Distribute up to `most` rows over the drafts. Each row goes to the sequence whose next draft
 * token is most likely. Returns the number of rows with the highest expected tokens per second, if
 * that is above `best`; else 0. */
static int32_t
distribute_rows(const Drafter *of, Draft *const *d, int32_t n, int32_t n_seqs, int32_t rerun,
                int32_t most, double best)
{
	double expect = n_seqs;
	int32_t best_rows = 0;

	for (int32_t i = 0; i < n; i++)
		d[i]->run = 0;
	for (int32_t r = 1; r <= most; r++) {
		Draft *next = NULL;
		for (int32_t i = 0; i < n; i++)
			if (d[i]->run < d[i]->n &&
			    (!next || d[i]->odds_at[d[i]->run] > next->odds_at[next->run]))
				next = d[i];
		if (!next)
			break;
		expect += (double)next->odds_at[next->run++];
		double odds = 1;
		for (int32_t i = 0; i < n; i++)
			odds *= d[i]->run ? (double)d[i]->odds_at[d[i]->run - 1] : 1;
		double speed = expect / rows_time(of, n_seqs, rerun, r, odds);
		if (speed > best) {
			best = speed;
			best_rows = r;
		}
	}
	return best_rows;
}

/* The draft model's own time is not counted here: it has already been spent. */
void
drafter_choose_length(const Drafter *of, Draft *const *d, int32_t n, int32_t n_seqs, int32_t rerun,
                      int32_t rows)
{
	const int32_t free_rows = DRAFT_ROWS - n_seqs - rerun;
	int32_t run = 0;

	rows = rows < free_rows ? rows : free_rows;
	if (of->eager)
		run = rows;
	else if (free_rows > 0 && n_seqs >= 1 && n_seqs <= DRAFT_MAX_SEQS &&
	         of->plain[n_seqs].s > 0)
		run = distribute_rows(of, d, n, n_seqs, rerun, rows,
		                      n_seqs / base_time(of, n_seqs, rerun) * MARGIN);
	distribute_rows(of, d, n, n_seqs, rerun, run, 0);
}

void
drafter_record_model_step(Drafter *of, double seconds)
{
	update_mean(&of->model.s, seconds, 0.1);
	of->model.at = of->n_measured;
}

int32_t
draft_model_length(Drafter *of, Draft *const *d, int32_t n, int32_t n_seqs, int32_t rerun,
                   int32_t most)
{
	const int32_t free_rows = DRAFT_ROWS - n_seqs - rerun;
	int32_t best_most = 0;

	if (n >= 1 && of->eager)
		return most < free_rows / n ? most : free_rows / n;
	if (n < 1 || free_rows < n || n_seqs > DRAFT_MAX_SEQS ||
	    of->plain[n_seqs].s <=
	        /* n may exceed the free rows, because swapped-in sequences join a step that also
	         * has recomputed rows */
	        0)
		return 0;
	double expect = n_seqs, odds[DRAFT_MAX_SEQS],
	       best = n_seqs / base_time(of, n_seqs, rerun) * MARGIN;
	for (int32_t i = 0; i < n; i++)
		odds[i] = 1;
	for (int32_t k = 1; k <= most && n * k <= free_rows; k++) {
		double all = 1;
		for (int32_t i = 0; i < n; i++) {
			odds[i] *= (double)chance(d[i], of, model_bin(k - 1));
			expect += odds[i];
			all *= odds[i];
		}
		double speed =
		    expect / (rows_time(of, n_seqs, rerun, n * k, all) + k * of->model.s);
		if (speed > best) {
			best = speed;
			best_most = k;
		}
	}
	of->model_idle = best_most ? 0 : of->model_idle + 1;
	/* acceptance rate and times change: try again now and then */
	if (best_most == 0 && of->model_idle % RETRY_STEPS == 0)
		return most < 2 ? most : 2;
	return best_most;
}

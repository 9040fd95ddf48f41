/* See draft.h. */
#include "runtime/draft/draft.h"

#include <stdlib.h>
#include <string.h>

enum {
	LONGEST = 48, /* of a match that is measured */
	TRIED = 24,   /* places that are compared */
	STALE = 512, /* measured steps after which a time is assumed again, so that a chain is tried
	                again */
	NEAR = 12,   /* tokens behind a copy's end where one token alone is a match */
	ASK_AGAIN = 100, /* steps after which a model that was not worth it guesses once more */
};

/* Before anything is measured: rows of a chain share their weights, so each costs a fraction of the
 * first. On the low side, so that a chain is tried once. */
static const double ROW_SHARE = 0.12;
static const float prior[DRAFT_BINS] = { 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.88f, 0.93f,
	                                 0.7f, 0.7f, 0.7f, 0.7f, 0.7f, 0.7f, 0.7f,  0.7f };
static const float PRIOR_WEIGHT = 4, SESSION_WEIGHT = 3; /* in guesses */
static const float KEEP_TEXT = 0.97f,
                   KEEP_SESSION = 0.999f; /* of what was counted, at each guess that is counted */
/* A step with guesses must be expected to be faster by so much: what is measured is rough. */
static const double MARGIN = 1.02;

int32_t
draft_rows(const Plan *p)
{
	int64_t rows = DRAFT_MOST + 1;

	/* latent attention has two forms: rows of a chain must take the one that single rows take
	 * (llmc_mla.h) for any number of positions before them that is not below their own */
	for (int ph = 0; ph < p->n_phase; ph++)
		for (int i = 0; i < p->phase[ph].n_step; i++) {
			int64_t expand = step_int(&p->phase[ph].step[i], "expand");
			if (expand > 1 && expand * 2 / 3 < rows)
				rows = expand * 2 / 3;
		}
	return rows < 1 ? 1 : (int32_t)rows;
}

Draft *
draft_new(int32_t room)
{
	Draft *d = calloc(1, sizeof *d);
	uint32_t heads = 64;

	while (heads < (uint32_t)room)
		heads *= 2;
	if (!d)
		return NULL;
	d->room = room;
	d->next = -1;
	d->mask = heads - 1;
	for (int k = 0; k < 2; k++) {
		d->last[k] = malloc(heads * sizeof *d->last[k]);
		d->before[k] = malloc((size_t)room * sizeof *d->before[k]);
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

/* Of the pair (k 0) or triple (k 1) that ends at `at` */
static uint32_t
hash(const Draft *d, const int32_t *tok, int32_t at, int k)
{
	uint64_t h = (uint32_t)tok[at] * 0x9e3779b97f4a7c15u;

	for (int i = 1; i < k + 2; i++)
		h = (h ^ (h >> 29) ^ (uint32_t)tok[at - i]) * 0xbf58476d1ce4e5b9u;
	return (uint32_t)(h >> 32) & d->mask;
}

/* Of how many tokens is what ends at `a` what ends at `b` > a? */
static int32_t
match(const int32_t *tok, int32_t a, int32_t b)
{
	int32_t n = 0;

	while (n < LONGEST && n <= a && tok[a - n] == tok[b - n])
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
	most = most < n - 2
	           ? most
	           : n - 2; /* no more rows than positions before them: draft_rows counts on it */
	if (n > d->room || n < 3 || most < 1 || of->eager)
		return;
	/* up to the token before the last: what ends with the last has nothing behind it */
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
		for (int tried = 0; at >= 0 && tried < TRIED && d->match < LONGEST;
		     tried++, at = d->before[k][at]) {
			int32_t length = match(tok, at, n - 1);
			if (length >= k + 2 && length > d->match) { /* of equals the latest */
				d->match = length;
				best = at;
			}
		}
	}
	/* a text that was being copied often goes on a little further in its source: there the last
	 * token alone is enough */
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
	     i++) { /* where what followed reaches the end, the guesses follow themselves */
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

/* ---- time ---- */

static double
assumed(const Drafter *of, int32_t texts, int32_t rows)
{
	return of->plain[texts].s * (1 + ROW_SHARE * (rows - 1)) / (1 + ROW_SHARE * (texts - 1)) *
	       (of->factor > 0 ? of->factor : 1);
}

static double
chain_time(const Drafter *of, int32_t texts, int32_t rows)
{
	const DraftTime *t = &of->chain[rows];

	return t->s > 0 && of->n_measured - t->at < STALE ? t->s : assumed(of, texts, rows);
}

/* Other programs make steps longer, never shorter: a shorter time is believed sooner. */
static void
follow(double *to, double x, double up)
{
	if (*to <= 0)
		*to = x;
	else
		*to += (x < *to ? 0.5 : up) * ((x < 3 * *to ? x : 3 * *to) - *to);
}

void
drafter_record_step(Drafter *of, int32_t rows, bool guesses, double seconds)
{
	if (rows < 1 || rows > DRAFT_ROWS || !(seconds > 0))
		return;
	DraftTime *t = guesses ? &of->chain[rows] : &of->plain[rows];
	if (of->n_measured - t->at >= STALE)
		t->s = 0;
	follow(&t->s, seconds, 0.1);
	t->at = ++of->n_measured;
	if (guesses && of->plain[1].s > 0)
		follow(&of->factor, t->s / (of->plain[1].s * (1 + ROW_SHARE * (rows - 1))), 0.2);
}

/* Of a step without guesses */
static double
base_time(const Drafter *of, int32_t texts, int32_t again)
{
	return again ? chain_time(of, texts, texts + again) : of->plain[texts].s;
}

/* What so many more rows take, of which the odds are that all come true: else they run once more
 * where there are states, at what they have cost. */
static double
rows_time(const Drafter *of, int32_t texts, int32_t again, int32_t more, double odds)
{
	double t = chain_time(of, texts, texts + again + more),
	       extra = t - base_time(of, texts, again);

	return of->states && extra > 0 ? t + (1 - odds) * extra : t;
}

/* Give `most` rows to guesses, the likeliest of all texts next. How many of them give the most
 * tokens by time, if that is more than `best`; else 0. */
static int32_t
hand_out(const Drafter *of, Draft *const *d, int32_t n, int32_t texts, int32_t again, int32_t most,
         double best)
{
	double expect = texts;
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
		double speed = expect / rows_time(of, texts, again, r, odds);
		if (speed > best) {
			best = speed;
			best_rows = r;
		}
	}
	return best_rows;
}

/* What a smaller model costs is spent by then. */
void
drafter_choose_length(const Drafter *of, Draft *const *d, int32_t n, int32_t texts, int32_t again,
                      int32_t rows)
{
	const int32_t room = DRAFT_ROWS - texts - again;
	int32_t run = 0;

	rows = rows < room ? rows : room;
	if (of->eager)
		run = rows;
	else if (room > 0 && texts >= 1 && texts <= DRAFT_MAX_SEQS && of->plain[texts].s > 0)
		run = hand_out(of, d, n, texts, again, rows,
		               texts / base_time(of, texts, again) * MARGIN);
	hand_out(of, d, n, texts, again, run, 0);
}

void
drafter_record_model_step(Drafter *of, double seconds)
{
	follow(&of->model.s, seconds, 0.1);
	of->model.at = of->n_measured;
}

int32_t
draft_model_length(Drafter *of, Draft *const *d, int32_t n, int32_t texts, int32_t again,
                   int32_t most)
{
	const int32_t room = DRAFT_ROWS - texts - again;
	int32_t best_most = 0;

	if (n >= 1 && of->eager)
		return most < room / n ? most : room / n;
	if (n < 1 || room < n || texts > DRAFT_MAX_SEQS ||
	    of->plain[texts].s <=
	        0) /* texts that come back from host memory stand beside rows that run again */
		return 0;
	double expect = texts, odds[DRAFT_MAX_SEQS],
	       best = texts / base_time(of, texts, again) * MARGIN;
	for (int32_t i = 0; i < n; i++)
		odds[i] = 1;
	for (int32_t k = 1; k <= most && n * k <= room; k++) {
		double all = 1;
		for (int32_t i = 0; i < n; i++) {
			odds[i] *= (double)chance(d[i], of, model_bin(k - 1));
			expect += odds[i];
			all *= odds[i];
		}
		double speed = expect / (rows_time(of, texts, again, n * k, all) + k * of->model.s);
		if (speed > best) {
			best = speed;
			best_most = k;
		}
	}
	of->model_idle = best_most ? 0 : of->model_idle + 1;
	if (best_most == 0 &&
	    of->model_idle % ASK_AGAIN == 0) /* odds and times change: look now and then */
		return most < 2 ? most : 2;
	return best_most;
}

/* Speculative decoding: draft tokens from earlier occurrences of a sequence's last tokens (prompt
 * lookup) or from a smaller draft model. Draft tokens run after the sequence's last token in the
 * same step. The sampler samples every row as usual, and a draft token is accepted if it equals the
 * sampled token. So the output is the same with and without drafts, and a rejected draft token
 * costs only the time of its row.
 *
 *   Draft    per sequence: positions of its bigrams and trigrams, and its acceptance statistics
 *   Drafter  per session: measured step times by number of rows, and acceptance statistics
 *
 * The number of draft tokens maximises expected tokens per second: tokens of a step from the
 * acceptance probabilities, divided by the expected step time. Proposed tokens are compared with
 * the sampled tokens even if they did not run, so the statistics stay current while drafting is
 * off. Calls come from one thread at a time. */
#ifndef LLMC_RUNTIME_DRAFT_H
#define LLMC_RUNTIME_DRAFT_H

#include "plan/plan.h"

enum {
	DRAFT_MOST = 15,
	DRAFT_ROWS = 32,
	DRAFT_MAX_SEQS = 8,
	DRAFT_MATCHES = 8,
	DRAFT_BINS = 2 * DRAFT_MATCHES
};

/* Accepted and total draft tokens. Bins of lookup come first, indexed by match length; bins of the
 * draft model follow, indexed by position in the draft. */
typedef struct DraftStats {
	float hit[DRAFT_BINS], all[DRAFT_BINS];
} DraftStats;

typedef struct DraftTime {
	double s;
	uint64_t at;
} DraftTime; /* s: seconds, 0: never measured; `at`: number of steps recorded at that time */

typedef struct Drafter {
	DraftTime plain[DRAFT_ROWS + 1],
	    /* times by number of rows: steps without draft tokens (plain) and with draft tokens
	     * (chain) */
	    chain[DRAFT_ROWS + 1];
	/* measured time of steps with draft tokens over the estimate from ROW_SHARE */
	double factor;
	DraftTime model;    /* one step of the draft model */
	int32_t model_idle; /* consecutive steps in which the draft model was unprofitable */
	uint64_t n_measured;
	DraftStats odds;
	bool states; /* recurrent states: after a rejection the accepted rows run again */
	bool eager;  /* for tests: draft with the draft model only, and run all of its tokens */
} Drafter;

typedef struct Draft {
	int32_t capacity; /* capacity in tokens of the sequence */
	int32_t n_seen;   /* tokens that are in the tables */
	/* position in the sequence from which the latest draft was copied, and the position after
	 * its accepted tokens; -1: none */
	int32_t from, next;
	uint32_t mask;
	int32_t *last[2];   /* [mask + 1] by hash: latest position of a bigram, trigram; -1: none */
	int32_t *before[2]; /* [capacity] previous position with the same hash */
	DraftStats odds;
	/* current step */
	/* draft tokens, and the length of their match (0: none) */
	int32_t tok[DRAFT_MOST], n, match;
	int8_t bin[DRAFT_MOST];    /* bin of each token in DraftStats */
	int32_t run;               /* number of draft tokens that run in the step */
	float odds_at[DRAFT_MOST]; /* probability that all tokens up to this one are accepted */
} Draft;

/* Return the largest number of rows per sequence in a step (draft tokens + 1) whose results are
 * bit-identical to those of single rows, provided that at least as many positions precede them; 1:
 * no draft tokens. */
int32_t draft_rows(const Plan *p);

Draft *draft_new(int32_t capacity); /* NULL: out of memory */
void draft_free(Draft *d);
/* Draft up to `most` tokens into d->tok and d->n. tok [n]: the sequence, which has only grown since
 * the last call. */
void draft_look_up(Draft *d, const Drafter *of, const int32_t *tok, int32_t n, int32_t most);
/* Return the number of tokens that the draft model should draft per sequence; 0 if drafting would
 * not be faster. The step has `n_seqs` sequences; n of them have no lookup draft. rerun: rows of
 * the step that are recomputed, in addition to one row per sequence. */
int32_t draft_model_length(Drafter *of, Draft *const *d, int32_t n, int32_t n_seqs, int32_t rerun,
                           int32_t most);
/* Register n tokens of the draft model, which are in d->tok. */
void draft_from_model(Draft *d, const Drafter *of, int32_t n);
void drafter_record_model_step(Drafter *of, double seconds);
/* Set d[i]->run for a step with `n_seqs` sequences, n of which have drafts; at most `rows` draft
 * tokens. rerun: as above. */
void drafter_choose_length(const Drafter *of, Draft *const *d, int32_t n, int32_t n_seqs,
                           int32_t rerun, int32_t rows);
/* Update the statistics with the n_new tokens that were sampled where d->tok was drafted. */
void draft_update(Draft *d, Drafter *of, const int32_t *tok, int32_t n_new);
/* Record the duration of a decode step of `rows` rows: one per sequence, plus draft tokens if
 * `drafted`. */
void drafter_record_step(Drafter *of, int32_t rows, bool drafted, double seconds);

#endif

/* Drafts: what a text may go on with, guessed from where its last tokens stood before, or by a
 * smaller model, and run behind its last token in one step. The sampler picks at every row as
 * always; a guess is kept while the pick is the guess. So a text has the same tokens with drafts
 * and without, and a wrong guess costs its row's time alone.
 *
 *   Draft    of one text: where pairs and triples of its tokens stand, and how often its guesses were right
 *   Drafter  of a session: what its steps take by rows, measured, and how often guesses were right
 * in all its texts
 *
 * How many guesses run is chosen by what is expected of them: tokens of a step by the odds, over
 * the step's time. Guesses are compared with what came whether they ran or not, so odds are learnt
 * while nothing is drafted. One thread at a time. */
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

/* By the length of the match that a guess rests on; behind them, of a smaller model's guesses, by
 * their place */
typedef struct DraftStats {
	float hit[DRAFT_BINS], all[DRAFT_BINS];
} DraftStats;

typedef struct DraftTime {
	double s;
	uint64_t at;
} DraftTime; /* s 0: never measured; `at` in measured steps */

typedef struct Drafter {
	DraftTime plain[DRAFT_ROWS + 1],
	    chain[DRAFT_ROWS + 1]; /* by rows: of steps without guesses, and with some */
	double factor;             /* chains against what is assumed before they are measured */
	DraftTime model;           /* of a step of the smaller model */
	int32_t model_idle;        /* times that its guesses were not worth it, in a row */
	uint64_t n_measured;
	DraftStats odds;
	bool states; /* where a guess is wrong, what was right beside it runs again */
	bool eager;  /* for tests: a smaller model alone guesses, and all that it says runs */
} Drafter;

typedef struct Draft {
	int32_t room;       /* tokens of the text at most */
	int32_t n_seen;     /* tokens that are in the tables */
	int32_t from, next; /* the place whose followers were guessed last, and the one that comes
	                       after those that came true; -1: none */
	uint32_t mask;
	int32_t *last[2];   /* [mask + 1] place of the latest pair, triple of a hash; -1: none */
	int32_t *before[2]; /* [room] the one before it */
	DraftStats odds;
	/* of the step */
	int32_t tok[DRAFT_MOST], n, match; /* guesses, the length of their match (0: none) */
	int8_t bin[DRAFT_MOST];            /* their odds' place */
	int32_t run;                       /* of them in the step */
	float odds_at[DRAFT_MOST];         /* of all up to here being right */
} Draft;

/* Rows of a step that one sequence of this model may have with guesses and keep the bits of single
 * rows, where no fewer positions are before them; 1: no guesses. */
int32_t draft_rows(const Plan *p);

Draft *draft_new(int32_t room); /* NULL: out of memory */
void draft_free(Draft *d);
/* tok [n]: the text, which has only grown since the last call. d->n guesses, at most `most`. */
void draft_look_up(Draft *d, const Drafter *of, const int32_t *tok, int32_t n, int32_t most);
/* As many guesses of a smaller model as are worth its steps and the rows behind them, for a step of
 * so many texts of which n are without a better guess; 0: none. again: rows of the step beside a
 * single one of each text. */
int32_t draft_model_length(Drafter *of, Draft *const *d, int32_t n, int32_t texts, int32_t again,
                           int32_t most);
/* n guesses of it are in d->tok. */
void draft_from_model(Draft *d, const Drafter *of, int32_t n);
void drafter_record_model_step(Drafter *of, double seconds);
/* Set d[i]->run for a step of so many texts, n of which have guesses; rows guesses at most. again:
 * as above. */
void drafter_choose_length(const Drafter *of, Draft *const *d, int32_t n, int32_t texts,
                           int32_t again, int32_t rows);
/* The n_new tokens that came instead of d->tok. */
void draft_update(Draft *d, Drafter *of, const int32_t *tok, int32_t n_new);
/* A step of so many rows, all of them single ones of their texts or guesses behind them, took so
 * long. */
void drafter_record_step(Drafter *of, int32_t rows, bool guesses, double seconds);

#endif

/* What the matrices of a model multiply when it reads a text: the inputs of each, seen by a probe
 * of a plan of unfused steps.
 *
 * A run that wants Hessians of some inputs stops behind the last of them, between two layers, and
 * keeps what the later ones read of each window; the next run goes on from there. So the text
 * passes each layer once, whatever part of the Hessians fits the memory. */
#ifndef LLMC_QUANT_CALIBRATE_H
#define LLMC_QUANT_CALIBRATE_H

#include "quant/imatrix.h"
#include "runtime/runtime.h"
#include "runtime/threads/threads.h"

/* One value that one or several matrices multiply */
typedef struct CalibrationInput {
	int layer;          /* -1: outside the layers */
	int64_t cols, seen; /* seen: rows so far */
	double *squares;    /* [cols] sums */
	double *share; /* [cols] sums of squares of rows of length 1; calibration_run leaves their
	                  mean, where rows have been seen */
	bool hessian;  /* wanted by calibration_run */
	float *h;      /* [cols][cols] X'X / seen, lower triangle; NULL: not wanted or taken, or of
	                  experts */
	/* of a mixture, whose experts see a part of the rows each */
	const PlanStep *experts; /* the step; NULL: every row meets every matrix */
	int n_experts, top_k;
	float *squares_of; /* [n_experts][cols] sums over the rows of each */
	int64_t *seen_of;  /* [n_experts] */
	float *row;        /* [seen][cols] when hessian is wanted: the rows themselves, */
	int32_t *chosen;   /* [seen][top_k] and their experts */
	int n_name;
	const char **name; /* tensors of the checkpoint */
} CalibrationInput;

typedef struct Calibration Calibration;

/* plan outlives it. All in the arena but the Hessians, which calibration_drop frees */
Calibration *calibration_new(const Plan *plan, Arena *a);
int calibration_n(const Calibration *c);
CalibrationInput *calibration_at(Calibration *c, int i);
CalibrationInput *calibration_find(Calibration *c,
                                   const char *tensor); /* NULL: no matrix product reads it */
/* Inputs of one piece of the model are seen in one run: there is no place within it where the text
 * can be stopped. */
int calibration_piece(const Calibration *c, int i);
/* Have all inputs been seen? */
bool calibration_whole(const Calibration *c);
/* Run windows [n][width] of tokens through the session, whose chunk and n_out suit, and gather
 * squares (once: where none have been seen) and the Hessians that are wanted: as far as these
 * reach, or, when none is, to the end. Goes on where the last run stopped, with the same windows,
 * or begins anew where that is too far. progress returns false: E_CANCELLED. */
llmc_status calibration_run(Calibration *c, Session *s, Threads *threads, const int32_t *tok,
                            int32_t n, int32_t width,
                            bool (*progress)(void *user, int32_t done, int32_t of), void *user,
                            llmc_error *err);
void calibration_drop(Calibration *c);    /* Hessians and rows */
void calibration_release(Calibration *c); /* and what was kept to go on */
void calibration_imatrix(const Calibration *c, Arena *a, Imatrix *out);

#endif

/* What the matrices of a model multiply when it reads a text: the inputs of each, seen by a probe of a plan of unfused steps. */
#ifndef LLMC_QUANT_CALIBRATE_H
#define LLMC_QUANT_CALIBRATE_H

#include "quant/imatrix.h"
#include "runtime/runtime.h"
#include "runtime/threads/threads.h"

/* One value that one or several matrices multiply */
typedef struct CalibrationInput {
	int          layer;      /* -1: outside the layers */
	int64_t      cols, seen; /* seen: rows so far */
	double      *squares;    /* [cols] sums */
	bool         hessian;    /* wanted by calibration_run */
	float       *h;          /* [cols][cols] X'X / seen, lower triangle; NULL: not wanted or taken */
	int          n_name;
	const char **name;       /* tensors of the checkpoint */
} CalibrationInput;

typedef struct Calibration Calibration;

/* plan outlives it. All in the arena but the Hessians, which calibration_drop frees */
Calibration      *calibration_new(const Plan *plan, Arena *a);
int               calibration_n(const Calibration *c);
CalibrationInput *calibration_at(Calibration *c, int i);
CalibrationInput *calibration_find(Calibration *c, const char *tensor); /* NULL: no matrix product reads it */
/* Run windows [n][width] of tokens through the session, whose chunk and n_out suit, and gather squares (once: where none have been seen) and
 * the Hessians that are wanted. progress returns false: E_CANCELLED. */
llmc_status       calibration_run(Calibration *c, Session *s, Threads *threads, const int32_t *tok, int32_t n, int32_t width,
                                  bool (*progress)(void *user, int32_t done, int32_t of), void *user, llmc_error *err);
void              calibration_drop(Calibration *c);
void              calibration_imatrix(const Calibration *c, Arena *a, Imatrix *out);

#endif

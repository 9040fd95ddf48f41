/* Calibration: captures the inputs of a model's matrices while it processes sample text, with a
 * probe on a plan of unfused steps.
 *
 * A run that needs Hessians of some inputs stops after the last of them, at a boundary between
 * layers. It keeps the values that later steps read, per window, and the next run continues from
 * there. So the text passes through each layer once, no matter how many Hessians fit in memory. */
#ifndef LLMC_QUANT_CALIBRATE_H
#define LLMC_QUANT_CALIBRATE_H

#include "quant/imatrix.h"
#include "runtime/runtime.h"
#include "runtime/threads/threads.h"

/* One value that is the input of one or more matrices */
typedef struct CalibrationInput {
	int layer;          /* -1: outside of the layers */
	int64_t cols, seen; /* seen: rows so far */
	double *squares;    /* [cols] sums of squares */
	/* [cols] sums of squares of rows normalised to length 1; after calibration_run their
	 * mean */
	double *share;
	bool hessian; /* set by the caller: calibration_run computes h */
	/* [cols][cols] X'X / seen, lower triangle; NULL: not requested, released, or per expert */
	float *h;
	/* MoE layers, where each expert sees a subset of the rows */
	const PlanStep *experts; /* the MoE step; NULL: every matrix sees every row */
	int n_experts, top_k;
	float *squares_of; /* [n_experts][cols] sums of squares over each expert's rows */
	int64_t *seen_of;  /* [n_experts] rows of each expert */
	float *row;        /* [seen][cols] if hessian is set: the rows */
	int32_t *chosen;   /* [seen][top_k] their experts */
	int n_name;
	const char **name; /* checkpoint tensors of the matrices that read it */
} CalibrationInput;

typedef struct Calibration Calibration;

/* plan must outlive the result. All memory is in the arena, except the Hessians, which
 * calibration_drop frees */
Calibration *calibration_new(const Plan *plan, Arena *a);
int calibration_n(const Calibration *c);
CalibrationInput *calibration_at(Calibration *c, int i);
/* NULL: no matmul uses the tensor */
CalibrationInput *calibration_find(Calibration *c, const char *tensor);
/* Returns the segment of the model that input i belongs to. One run covers a whole segment, since
 * there is no boundary inside it. */
int calibration_segment(const Calibration *c, int i);
/* Returns whether all inputs have been seen */
bool calibration_whole(const Calibration *c);
/* Runs windows [n][width] of tokens through the session, whose chunk and n_out must fit. Gathers
 * squares once per input, and the requested Hessians. It stops after the last requested Hessian, or
 * at the end if there is none. It continues where the last run stopped, with the same windows; if a
 * requested input comes before that, it starts again. progress returns false: E_CANCELLED. */
llmc_status calibration_run(Calibration *c, Session *s, Threads *threads, const int32_t *tok,
                            int32_t n, int32_t width,
                            bool (*progress)(void *user, int32_t done, int32_t of), void *user,
                            llmc_error *err);
void calibration_drop(Calibration *c);    /* frees Hessians and rows */
void calibration_release(Calibration *c); /* also frees the values kept between runs */
void calibration_imatrix(const Calibration *c, Arena *a, Imatrix *out);

#endif

/* What errors of a matrix cost the model, measured: noise like that of rounding is added to what
 * one matrix product makes while a text is read, and the divergence of the logits from those
 * without is what it costs. */
#ifndef LLMC_QUANT_SENSITIVITY_H
#define LLMC_QUANT_SENSITIVITY_H

#include "runtime/runtime.h"

typedef struct Sensitivity {
	const char *name; /* tensor of the checkpoint */
	double
	    energy;  /* mean over its outputs of E (w x)^2 / |x|^2, columns taken as uncorrelated */
	double cost; /* found: nats of KL divergence for an error that is all of the energy, as
	                small errors grow; 0: nothing reads it */
} Sensitivity;

/* tok [n_tok]; the session's chunk and n_out hold as many. One forward a matrix. progress returns
 * false: E_CANCELLED. */
llmc_status sensitivity_measure(Sensitivity *m, int n, const Plan *plan, Session *s,
                                const int32_t *tok, int32_t n_tok,
                                bool (*progress)(void *user, int32_t done, int32_t of), void *user,
                                llmc_error *err);

#endif

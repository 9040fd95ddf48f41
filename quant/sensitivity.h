/* Measures the cost of errors in a matrix: adds noise, similar to that of rounding, to the output
 * of one matmul while sample text is processed. The cost is the KL divergence from the logits
 * without noise. */
#ifndef LLMC_QUANT_SENSITIVITY_H
#define LLMC_QUANT_SENSITIVITY_H

#include "runtime/runtime.h"

typedef struct Sensitivity {
	const char *name; /* checkpoint tensor */
	/* mean over its outputs of E (w x)^2 / |x|^2, assuming uncorrelated columns */
	double energy;
	/* result: nats of KL divergence per unit of relative error energy, extrapolated from small
	 * errors; 0: no step uses it */
	double cost;
} Sensitivity;

/* tok [n_tok]; the session's chunk and n_out must hold them. Runs one forward pass per matrix.
 * progress returns false: E_CANCELLED. */
llmc_status sensitivity_measure(Sensitivity *m, int n, const Plan *plan, Session *s,
                                const int32_t *tok, int32_t n_tok,
                                bool (*progress)(void *user, int32_t done, int32_t of), void *user,
                                llmc_error *err);

#endif

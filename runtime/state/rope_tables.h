/* RoPE angles: frequencies of a table for one sequence, and the cosines and sines of a step. */
#ifndef LLMC_RUNTIME_STATE_ROPE_TABLES_H
#define LLMC_RUNTIME_STATE_ROPE_TABLES_H

#include "plan/plan.h"

/* Compute frequencies [dims / 2] and the factor of cos and sin for a sequence of at most `length`
 * positions. factors[0..1]: see PlanRope.factors_tensor, [dims / 2] each, or NULL. */
void rope_frequencies(const PlanRope *r, int64_t length, const float *const factors[2],
                      double *freq, double *factor);
/* Return which position rotates pair k: 0 time, 1 row, 2 column */
int rope_position(const PlanRope *r, int k);
/* Fill one row: cos of dims / 2 angles, then sin. Without sections pos[0] is read only. */
void rope_row(const PlanRope *r, const double *freq, double factor, const int32_t pos[3],
              float *dst);

#endif

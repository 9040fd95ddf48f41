/* Shared by the two halves of plan_check: the tables, and the steps over them. */
#ifndef LLMC_RUNTIME_PLAN_CHECK_H
#define LLMC_RUNTIME_PLAN_CHECK_H

#include "runtime/plan/plan.h"

/* a, elements of a_bytes, is at most b, elements of b_bytes, for all values of the symbols. */
bool        plan_extent_within(const PlanExtent *a, int64_t a_bytes, const PlanExtent *b, int64_t b_bytes);
llmc_status plan_check_steps(const Plan *p, llmc_error *err);

#endif

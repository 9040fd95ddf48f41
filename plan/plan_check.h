/* The parts of plan_check: tables (plan_check.c), steps (plan_check_steps.c), the op of one step
 * (plan_check_op.c). */
#ifndef LLMC_PLAN_PLAN_CHECK_H
#define LLMC_PLAN_PLAN_CHECK_H

#include "plan/plan.h"

llmc_status plan_check_steps(const Plan *p, llmc_error *err);
llmc_status plan_check_op(const Plan *p, const PlanStep *step, llmc_error *err);

#endif

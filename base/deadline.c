#include "base/deadline.h"

#include "base/clock.h"

static _Thread_local double limit;

void
deadline_set(double at)
{
	limit = at;
}

double
deadline_at(void)
{
	return limit;
}

bool
deadline_passed(void)
{
	return limit > 0 && clock_now() >= limit;
}

llmc_status
deadline_error(llmc_error *err)
{
	return error_set(err, LLMC_E_CANCELLED, "the time limit of this request has passed");
}

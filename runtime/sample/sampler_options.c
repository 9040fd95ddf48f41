/* LLMC_SAMPLING_OPTIONS as a table, and range checks by it. */
#include <math.h>

#include "runtime/sample/sampler.h"

#define ROW(kind_, name_, least_, most_, http_least_, http_most_, http_default_, alias_, text_)    \
	{ .kind = LLMC_OPTION_##kind_,                                                             \
	  .name = #name_,                                                                          \
	  .alias = alias_,                                                                         \
	  .text = text_,                                                                           \
	  .offset = offsetof(llmc_params, name_),                                                  \
	  .least = least_,                                                                         \
	  .most = most_,                                                                           \
	  .http_least = http_least_,                                                               \
	  .http_most = http_most_,                                                                 \
	  .http_default = http_default_ },

static const llmc_option option[] = { LLMC_SAMPLING_OPTIONS(ROW) };

const llmc_option *
llmc_sampling_options(size_t *n)
{
	*n = sizeof option / sizeof *option;
	return option;
}

llmc_status
sampler_check_options(const llmc_params *p, llmc_error *err)
{
	for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
		const llmc_option *o = &option[i];
		const void *field = (const char *)p + o->offset;
		if (o->kind == LLMC_OPTION_BOOL)
			continue;
		double x = o->kind == LLMC_OPTION_INT ? *(const int32_t *)field
		                                      : (double)*(const float *)field;
		if (x >= o->least && x <= o->most)
			continue;
		if (o->most >= 1e6 && o->least == 0)
			return error_set(err, LLMC_E_RANGE,
			                 "%s is %g, it must be a finite number of at least 0",
			                 o->name, x);
		return error_set(err, LLMC_E_RANGE, "%s is %g, valid values are %g to %g", o->name,
		                 x, o->least, o->most);
	}
	return LLMC_OK;
}

/* LLMC_SAMPLING_OPTIONS as a table, and range checks by it. */
#include <math.h>

#include "runtime/sample/sampler.h"

#define ROW(kind_, name_, rule_, least_, most_, http_least_, http_most_, openai_, llama_cpp_,      \
            ollama_, alias_, hf_, gguf_, text_, note_, http_note_)                                 \
	{ .kind = LLMC_OPTION_##kind_,                                                             \
	  .rule = LLMC_OPTION_##rule_,                                                             \
	  .name = #name_,                                                                          \
	  .alias = alias_,                                                                         \
	  .hf = hf_,                                                                               \
	  .gguf = gguf_,                                                                           \
	  .text = text_ note_,                                                                     \
	  .offset = offsetof(llmc_params, name_),                                                  \
	  .least = least_,                                                                         \
	  .most = most_,                                                                           \
	  .http_least = http_least_,                                                               \
	  .http_most = http_most_,                                                                 \
	  .http_default = { openai_, llama_cpp_, ollama_ } },

static const llmc_option option[] = { LLMC_SAMPLING_OPTIONS(ROW) };

const llmc_option *
llmc_sampling_options(size_t *n)
{
	*n = sizeof option / sizeof *option;
	return option;
}

double
sampler_option_value(const llmc_option *o, const llmc_params *p)
{
	const void *field = (const char *)p + o->offset;

	return o->kind == LLMC_OPTION_BOOL  ? *(const bool *)field
	       : o->kind == LLMC_OPTION_INT ? *(const int32_t *)field
	                                    : (double)*(const float *)field;
}

bool
sampler_option_acts(const llmc_option *o, const llmc_params *p)
{
	const double x = sampler_option_value(o, p);

	switch (o->rule) {
	case LLMC_OPTION_OFF_0:
		return x != 0;
	case LLMC_OPTION_OFF_0_1:
	case LLMC_OPTION_ABOVE_0:
		return x != 0 && x != 1;
	case LLMC_OPTION_PART:
	case LLMC_OPTION_PART_0:
		break;
	}
	return false;
}

bool
sampler_has_penalties(const llmc_params *p)
{
	return (p->repetition_penalty != 0 && p->repetition_penalty != 1) ||
	       p->presence_penalty != 0 || p->frequency_penalty != 0;
}

llmc_status
sampler_check_options(const llmc_params *p, llmc_error *err)
{
	for (size_t i = 0; i < sizeof option / sizeof *option; i++) {
		const llmc_option *o = &option[i];
		if (o->kind == LLMC_OPTION_BOOL)
			continue;
		double x = sampler_option_value(o, p);
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

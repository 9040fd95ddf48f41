/* Fields of LLMC_SAMPLING_OPTIONS in a request in OpenAI's form. 0 over HTTP may differ from 0 in
 * llmc_params. */
#include <float.h>
#include <math.h>

#include "serve/dialects/sampling_fields.h"

/* Is the field there, with the value 0? */
static bool
is_zero(const json_t *o, const char *key)
{
	const json_t *v = json_object_get(o, key);

	return json_is_number(v) && json_number_value(v) == 0;
}

double
sampling_default(const llmc_option *k, size_t row, const SamplingDefaults *defaults)
{
	const llmc_advice *a = defaults->advice;

	if (!a || row >= 64 || !(a->set >> row & 1))
		return k->http_default[defaults->server];
	const void *field = (const char *)&a->params + k->offset;
	return k->kind == LLMC_OPTION_INT ? *(const int32_t *)field : (double)*(const float *)field;
}

/* Read one field. `x` is its default. */
static bool
read_option(const json_t *o, const llmc_option *k, double x, llmc_params *to, Problem *p)
{
	void *field = (char *)to + k->offset;
	const json_t *own = json_object_get(o, k->name);
	const char *name = k->alias && (!own || json_is_null(own)) ? k->alias : k->name;
	int64_t n = (int64_t)x;

	switch (k->kind) {
	case LLMC_OPTION_BOOL:
		return field_bool(o, name, field, p);
	case LLMC_OPTION_INT:
		if (!field_int(o, name, (int64_t)k->http_least, (int64_t)k->http_most, &n, NULL, p))
			return false;
		*(int32_t *)field = (int32_t)fmax((double)n, k->least);
		return true;
	case LLMC_OPTION_FLOAT:
		if (!field_num(o, name, k->http_least, k->http_most, &x, NULL, p))
			return false;
		x = (double)(float)x; /* 0 if it is too small for a float */
		if (k->rule == LLMC_OPTION_ABOVE_0 && !(x > 0))
			return problem(p, 400, name, "Invalid '%s': it must be greater than 0.",
			               name);
		/* 0 in llmc_params would be the default */
		if (k->rule == LLMC_OPTION_PART_0 && !(x > 0))
			x = (double)FLT_MIN;
		*(float *)field = (float)fmax(x, k->least);
	}
	return true;
}

bool
sampling_read(const json_t *o, const SamplingDefaults *defaults, bool ordered, llmc_params *to,
              Problem *p)
{
	size_t n_option;
	const llmc_option *option = llmc_sampling_options(&n_option);

	for (size_t i = 0; i < n_option; i++)
		if (option[i].http_least <= option[i].http_most &&
		    !read_option(o, &option[i], sampling_default(&option[i], i, defaults), to, p))
			return false;
	/* over HTTP top_p 0 selects the most likely token */
	if (to->top_p == 0 && ordered)
		to->top_p = FLT_MIN;
	else if (to->top_p == 0)
		to->top_k = 1, to->top_p = 1;
	/* as in llama.cpp: penalties of the last 0 tokens, and DRY of the last 0 tokens */
	if (is_zero(o, "repeat_last_n")) {
		to->repetition_penalty = 1;
		to->presence_penalty = to->frequency_penalty = 0;
	}
	if (is_zero(o, "dry_penalty_last_n"))
		to->dry_multiplier = 0;
	return true;
}

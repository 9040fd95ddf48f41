/* Fields of LLMC_SAMPLING_OPTIONS in a request in OpenAI's form. */
#ifndef LLMC_SERVE_DIALECTS_SAMPLING_FIELDS_H
#define LLMC_SERVE_DIALECTS_SAMPLING_FIELDS_H

#include "serve/http/json_body.h"

/* Values of fields that a request omits */
typedef struct SamplingDefaults {
	const llmc_advice *advice; /* the model's, which comes first; NULL: none */
	llmc_option_default server;
} SamplingDefaults;

/* Value of option number `row` in a request that omits it */
double sampling_default(const llmc_option *k, size_t row, const SamplingDefaults *defaults);

/* Read the fields by their own name or the alias. `ordered`: the request has an order of samplers
 * (llmc_params.samplers). */
bool sampling_read(const json_t *o, const SamplingDefaults *defaults, bool ordered, llmc_params *to,
                   Problem *p);

#endif

/* llama.cpp's own form of generation, of POST /completion, /completions and /infill: the answer has
 * the text of one choice, why it ended, and the settings that applied. lcpp is short for
 * llama.cpp. */
#ifndef LLMC_SERVE_DIALECTS_LCPP_H
#define LLMC_SERVE_DIALECTS_LCPP_H

#include "serve/dialects/openai.h"

typedef struct LineLimit LineLimit;

typedef struct Lcpp {
	OpenAi base;
	int64_t id_slot;            /* the requested slot; -1: none */
	bool return_tokens;         /* whole answers have token ids; streams always have them */
	int64_t n_indent, limit_ms; /* n_indent and t_max_predict_ms; 0, and limit_ms <= 0: off */
	LineLimit *line;            /* [choices] state of these two; NULL: both are off */
	json_t *fields;             /* response_fields; NULL: all */
} Lcpp;

extern const Dialect lcpp_dialect;
/* Return the body with the names and values that openai_handle reads. */
json_t *lcpp_translate(const json_t *in, Problem *p);
/* Read the fields of this form, without prompts: gen_prompts comes after it. */
bool lcpp_read(Generation *g, const json_t *o, Problem *p);
/* Complete the reading, once the prompts are known: the limits by line and the settings that the
 * answer repeats. */
bool lcpp_begin(Generation *g, const json_t *o, Problem *p);

#endif

/* Sampling that the authors of a model advise, from the files of its checkpoint. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/number.h"
#include "base/sized_struct.h"
#include "formats/gguf.h"

static const llmc_option *
option_named(const char *name, size_t *row)
{
	size_t n;
	const llmc_option *o = llmc_sampling_options(&n);

	for (*row = 0; *row < n; ++*row)
		if (!strcmp(o[*row].name, name))
			return &o[*row];
	return NULL;
}

/* Take one value, unless it is out of the option's range. */
static void
advise(llmc_advice *a, const char *name, double value)
{
	size_t row, n = strlen(a->text);
	const llmc_option *o = option_named(name, &row);
	char number[NUMBER_SIZE];

	if (!o || row >= 64 || !(value >= o->http_least && value <= o->http_most))
		return;
	void *field = (char *)&a->params + o->offset;
	if (o->kind == LLMC_OPTION_INT)
		*(int32_t *)field = (int32_t)(value > o->least ? value : o->least);
	else
		*(float *)field = (float)value;
	a->set |= (uint64_t)1 << row;
	number_plain(number, value, 6);
	snprintf(a->text + n, sizeof a->text - n, "%s%s %s", n ? ", " : "", name, number);
}

/* transformers samples only with do_sample, at temperature 1 unless another is given. */
static void
read_generation(const json_t *j, llmc_advice *a)
{
	static const char *const keys[] = { "temperature", "top_k",     "top_p",
		                            "min_p",       "typical_p", "repetition_penalty" };
	const json_t *sample = json_object_get(j, "do_sample");

	if (json_is_true(sample) && !json_is_number(json_object_get(j, "temperature")))
		advise(a, "temperature", 1);
	for (size_t i = 0; !json_is_false(sample) && i < sizeof keys / sizeof *keys; i++) {
		const json_t *v = json_object_get(j, keys[i]);
		if (json_is_number(v))
			advise(a, keys[i], json_number_value(v));
	}
	snprintf(a->source, sizeof a->source, "generation_config.json");
}

static void
read_gguf(const char *path, llmc_advice *a)
{
	static const char *const keys[][2] = { { "temp", "temperature" },
		                               { "top_k", "top_k" },
		                               { "top_p", "top_p" },
		                               { "min_p", "min_p" },
		                               { "penalty_repeat", "repetition_penalty" },
		                               { "penalty_last_n", "repeat_last_n" },
		                               { "xtc_probability", "xtc_probability" },
		                               { "xtc_threshold", "xtc_threshold" },
		                               { "mirostat", "mirostat" },
		                               { "mirostat_tau", "mirostat_tau" },
		                               { "mirostat_eta", "mirostat_eta" } };
	Gguf *g;
	char key[64];
	double value;

	if (gguf_open(path, &g, NULL) != LLMC_OK)
		return;
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		snprintf(key, sizeof key, "general.sampling.%s", keys[i][0]);
		if (gguf_num(g, key, &value))
			advise(a, keys[i][1], value);
	}
	gguf_close(g);
	snprintf(a->source, sizeof a->source, "GGUF");
}

void
advice_read(const char *path, Arena *a, llmc_advice *out)
{
	*out = LLMC_INIT(llmc_advice);
	out->params.size = sizeof out->params;
	if (file_is_dir(path)) {
		json_t *j = folder_json(path, "generation_config.json", a);
		read_generation(j, out);
		if (j)
			arena_done(a, j);
	} else {
		read_gguf(path, out);
	}
}

void
llmc_sampling_advice(const llmc_model *m, llmc_advice *out)
{
	llmc_advice a = m->advice;

	a.size = sizeof a;
	SIZED_GIVE(out, a);
}

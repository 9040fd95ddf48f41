/* Reads the sampling parameters that the authors of a model recommend from the files of its
 * checkpoint. */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/file.h"
#include "base/number.h"
#include "base/sized_struct.h"
#include "formats/gguf.h"

/* Take the value of a number, unless it is out of its range. */
static void
advise(llmc_advice *a, size_t row, double value)
{
	size_t n_option, n = strlen(a->text);
	const llmc_option *o = llmc_sampling_options(&n_option) + row;
	char number[NUMBER_SIZE];

	/* the field's value, which may be 0 */
	const double x = o->kind == LLMC_OPTION_FLOAT ? (double)(float)value : value;
	if (row >= 64 || o->kind == LLMC_OPTION_BOOL ||
	    !(value >= o->http_least && value <= o->http_most) ||
	    (o->rule == LLMC_OPTION_ABOVE_0 && x <= 0))
		return;
	void *field = (char *)&a->params + o->offset;
	if (o->kind == LLMC_OPTION_INT)
		*(int32_t *)field = (int32_t)(value > o->least ? value : o->least);
	else
		*(float *)field = (float)x;
	a->set |= (uint64_t)1 << row;
	number_plain(number, value, 6);
	snprintf(a->text + n, sizeof a->text - n, "%s%s %s", n ? ", " : "", o->name, number);
}

/* Read generation_config.json. transformers samples only with do_sample, and at temperature 1
 * unless the file sets another. */
static void
read_generation(const json_t *j, llmc_advice *a)
{
	size_t n;
	const llmc_option *o = llmc_sampling_options(&n);
	const json_t *sample = json_object_get(j, "do_sample");

	for (size_t i = 0; !json_is_false(sample) && i < n; i++) {
		const json_t *v = o[i].hf ? json_object_get(j, o[i].hf) : NULL;
		if (json_is_number(v))
			advise(a, i, json_number_value(v));
		else if (json_is_true(sample) && o[i].hf && !strcmp(o[i].hf, "temperature"))
			advise(a, i, 1);
	}
	snprintf(a->source, sizeof a->source, "generation_config.json");
}

static void
read_gguf(const char *path, llmc_advice *a)
{
	size_t n;
	const llmc_option *o = llmc_sampling_options(&n);
	Gguf *g;
	char key[64];
	double value;

	if (gguf_open(path, &g, NULL) != LLMC_OK)
		return;
	for (size_t i = 0; i < n; i++) {
		if (!o[i].gguf)
			continue;
		snprintf(key, sizeof key, "general.sampling.%s", o[i].gguf);
		if (gguf_num(g, key, &value))
			advise(a, i, value);
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

/* RoPE scalings, computed as in transformers' modeling_rope_utils: frequencies are rounded to fp32
 * as in that file. Angles are then computed in double, so that large positions such as 131071 keep
 * their precision. */
#include "runtime/state/rope_tables.h"

#include <math.h>
#include <string.h>

static bool
scaling_is(const PlanRope *r, const char *scaling)
{
	return !strcmp(r->scaling, scaling);
}

/* Return the dimension that makes `turns` full rotations within the original context length. */
static double
yarn_dim(const PlanRope *r, double turns)
{
	return r->dims * log(r->original_positions / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static double
mscale(double factor, double scale)
{
	return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static void
yarn(const PlanRope *r, double *freq, double *factor)
{
	double low = yarn_dim(r, r->beta_fast), high = yarn_dim(r, r->beta_slow);
	int half = r->dims / 2;

	if (r->truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = low > 0 ? low : 0;
	high = high < r->dims - 1 ? high : r->dims - 1;
	if (low == high)
		high += 0.001;
	for (int i = 0; i < half; i++) {
		double ramp = (i - low) / (high - low);
		ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
		freq[i] = freq[i] / r->factor * ramp + freq[i] * (1 - ramp);
	}
	if (r->attention_factor > 0)
		*factor = r->attention_factor;
	else if (r->mscale != 0 && r->mscale_all_dim != 0)
		*factor = mscale(r->factor, r->mscale) / mscale(r->factor, r->mscale_all_dim);
	else
		*factor = mscale(r->factor, 1);
}

static void
llama3(const PlanRope *r, double *freq)
{
	double low = r->original_positions / r->low_freq_factor,
	       high = r->original_positions / r->high_freq_factor;

	for (int i = 0; i < r->dims / 2; i++) {
		double wave = 2 * M_PI / freq[i];
		if (wave > low) {
			freq[i] /= r->factor;
		} else if (wave >= high) {
			double smooth = (r->original_positions / wave - r->low_freq_factor) /
			                (r->high_freq_factor - r->low_freq_factor);
			freq[i] = (1 - smooth) * freq[i] / r->factor + smooth * freq[i];
		}
	}
}

int
rope_position(const PlanRope *r, int k)
{
	const int *n = r->section;

	if (!plan_rope_sections(r))
		return 0;
	if (r->interleaved)
		return k % 3 && k < 3 * n[k % 3] ? k % 3 : 0;
	return k < n[0] ? 0 : k < n[0] + n[1] ? 1 : 2;
}

/* Frequencies of contiguous sections that do not follow each other in the head's order */
static void
section_frequencies(const PlanRope *r, double theta, double *freq)
{
	for (int a = 0, i = 0; a < 3; a++)
		for (int j = 0; j < r->section[a]; j++, i++)
			freq[i] = 1 / pow(theta, strcmp(r->frequencies, "alternate") == 0
			                             ? 2.0 * (2 * j + a - 1) / r->dims
			                             : (double)j / r->section[a]);
}

void
rope_frequencies(const PlanRope *r, int64_t length, const float *const factors[2], double *freq,
                 double *factor)
{
	double theta = r->theta;
	int half = r->dims / 2;
	bool beyond = (double)length > r->original_positions;

	*factor = 1;
	if (scaling_is(r, "dynamic") && beyond)
		theta *= pow(r->factor * (double)length / r->original_positions - (r->factor - 1),
		             (double)r->dims / (r->dims - 2));
	for (int i = 0; i < half; i++)
		freq[i] = 1 / pow(theta, 2.0 * i / r->dims);
	if (plan_rope_sections(r) && strcmp(r->frequencies, "whole") != 0)
		section_frequencies(r, theta, freq);
	if (scaling_is(r, "proportional")) {
		int turning = (int)(r->turning * r->dims / 2);
		for (int i = 0; i < half; i++)
			freq[i] = i < turning ? freq[i] / r->factor : 0;
	} else if (scaling_is(r, "linear")) {
		for (int i = 0; i < half; i++)
			freq[i] /= r->factor;
	} else if (scaling_is(r, "yarn")) {
		yarn(r, freq, factor);
	} else if (scaling_is(r, "llama3")) {
		llama3(r, freq);
	} else if (scaling_is(r, "longrope")) {
		const double *list = beyond ? r->long_factor : r->short_factor;
		int n = beyond ? r->n_long : r->n_short;
		for (int i = 0; i < half && i < n; i++)
			freq[i] /= list[i];
		if (r->attention_factor > 0)
			*factor = r->attention_factor;
		else if (r->factor > 1)
			*factor = sqrt(1 + log(r->factor) / log(r->original_positions));
	}
	/* a single factor tensor applies to every length; the length selects one of two, as with
	 * the two lists of longrope */
	const float *tensor = factors[1] && !beyond ? factors[1] : factors[0];
	for (int i = 0; i < half; i++) {
		if (tensor)
			freq[i] /= tensor[i];
		freq[i] = (float)freq[i];
	}
}

void
rope_row(const PlanRope *r, const double *freq, double factor, const int32_t pos[3], float *dst)
{
	int half = r->dims / 2;

	for (int i = 0; i < half; i++) {
		double s, c;
		sincos((double)pos[rope_position(r, i)] * freq[i], &s, &c);
		dst[i] = (float)(c * factor);
		dst[half + i] = (float)(s * factor);
	}
}

/* The sampler against transformers' logits processors: these printed the expected distribution of
 * each setting; they have no presence and frequency penalties, which follow OpenAI's definition.
 * Many seeded samples must follow the distribution. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/sample/sampler.h"

enum { V = 12, DRAWS = 20000 };

static const float logits[V] = { 1.5f, -0.25f, 3, 0.5f, 2.75f, -4, 2, 0, 1.25f, -1, 2.5f, 0.75f };
static const int32_t prompt[] = { 2, 5, 5, 1 }, output[] = { 4, 4, 10 };

typedef struct Case {
	struct {
		float temperature;
		int32_t top_k;
		float top_p, min_p, repetition, presence, frequency;
	} p;
	double want[V];
} Case;

static const Case cases[] = {
	{ { 1.0f, 0, 0, 0, 1, 0, 0 },
	  { 0.064762, 0.0112539, 0.290243, 0.0238246, 0.226042, 0.000264667, 0.106774, 0.0144504,
	    0.0504367, 0.00531599, 0.176041, 0.0305914 } },
	{ { 0.7f, 0, 0, 0, 1, 0, 0 },
	  { 0.0430797, 0.00353619, 0.367201, 0.0103241, 0.25692, 1.66709e-05, 0.088, 0.00505407,
	    0.0301417, 0.00121121, 0.17976, 0.0147556 } },
	{ { 2.0f, 5, 0, 0, 1, 0, 0 },
	  { 0.126295, 0, 0.267366, 0, 0.235949, 0, 0.162166, 0, 0, 0, 0.208225, 0 } },
	{ { 1.0f, 0, 0.8f, 0, 1, 0, 0 },
	  { 0.0749679, 0, 0.335983, 0, 0.261664, 0, 0.123601, 0, 0, 0, 0.203784, 0 } },
	{ { 1.3f, 0, 0.5f, 0, 1, 0, 0 },
	  { 0, 0, 0.39908, 0, 0.329262, 0, 0, 0, 0, 0, 0.271658, 0 } },
	{ { 1.5f, 0, 0, 0.3f, 1, 0, 0 },
	  { 0.097952, 0, 0.266261, 0, 0.225385, 0, 0.136703, 0, 0.0829145, 0, 0.190784, 0 } },
	{ { 1.2f, 7, 0.9f, 0.1f, 1, 0, 0 },
	  { 0.0836534, 0, 0.291979, 0, 0.237068, 0, 0.126894, 0, 0.0679212, 0, 0.192484, 0 } },
	{ { 1.0f, 0, 0, 0, 1.5f, 0, 0 },
	  { 0.1117, 0.0171297, 0.184161, 0.041092, 0.155889, 6.17793e-05, 0.184161, 0.0249235,
	    0.0869917, 0.00916886, 0.131957, 0.0527631 } },
	{ { 0.9f, 4, 0.95f, 0, 1.3f, 0.5f, 0.25f },
	  { 0.167963, 0, 0.412065, 0, 0, 0, 0.292745, 0, 0.127226, 0, 0, 0 } },
	{ { 1.0f, 0, 0.05f, 0, 1, 0, 0 }, { 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
	{ { 1.0f, 3, 0, 0, 0.8f, -1, -0.5f },
	  { 0, 0, 0.113574, 0, 0.613976, 0, 0, 0, 0, 0, 0.27245, 0 } },
};

static llmc_sampler *
open_case(const Case *c, uint64_t seed)
{
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_sampler *s;

	p.temperature = c->p.temperature;
	p.top_k = c->p.top_k;
	p.top_p = c->p.top_p;
	p.min_p = c->p.min_p;
	p.repetition_penalty = c->p.repetition;
	p.presence_penalty = c->p.presence;
	p.frequency_penalty = c->p.frequency;
	p.seed = seed;
	assert_int_equal(llmc_sampler_open(V, &p, &s, NULL), LLMC_OK);
	for (size_t i = 0; i < sizeof prompt / sizeof *prompt; i++)
		llmc_sampler_accept(s, prompt[i], true);
	for (size_t i = 0; i < sizeof output / sizeof *output; i++)
		llmc_sampler_accept(s, output[i], false);
	return s;
}

static void
samples_follow_transformers(void **state)
{
	(void)state;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		int count[V] = { 0 };
		llmc_sampler *s = open_case(&cases[c], 7);
		for (int i = 0; i < DRAWS; i++) {
			int32_t id = -1;
			assert_int_equal(llmc_sampler_sample(s, logits, &id, NULL, NULL), LLMC_OK);
			count[id]++;
		}
		for (int i = 0; i < V; i++) {
			double p = cases[c].want[i], sigma = sqrt(p * (1 - p) * DRAWS);
			if (fabs(count[i] - p * DRAWS) > 4 * sigma + (p > 0 ? 1 : 0))
				fail_msg(
				    "case %zu: token %d was drawn %d times of %d, expected %.1f", c,
				    i, count[i], DRAWS, p * DRAWS);
		}
		llmc_sampler_close(s);
	}
}

/* Greedy with penalties is the mode of the penalised distribution. */
static void
greedy_is_the_largest_after_penalties(void **state)
{
	static const int32_t want[] = { 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4 };

	(void)state;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		Case greedy = cases[c];
		float logprob;
		int32_t id;
		greedy.p.temperature = 0;
		llmc_sampler *s = open_case(&greedy, 0);
		assert_int_equal(llmc_sampler_sample(s, logits, &id, &logprob, NULL), LLMC_OK);
		assert_int_equal(id, want[c]);
		/* logprob of the unchanged distribution, which is that of the first case */
		assert_true(fabs(logprob - log(cases[0].want[id])) < 1e-5);
		llmc_sampler_close(s);
	}
}

static void
samples_depend_on_seed_and_position(void **state)
{
	llmc_sampler *a = open_case(&cases[0], 1), *b = open_case(&cases[0], 1),
	             *c = open_case(&cases[0], 2);
	int32_t first[64], x, differ = 0;

	(void)state;
	for (int i = 0; i < 64; i++) {
		assert_int_equal(llmc_sampler_sample(a, logits, &first[i], NULL, NULL), LLMC_OK);
		assert_int_equal(llmc_sampler_sample(b, logits, &x, NULL, NULL), LLMC_OK);
		assert_int_equal(x, first[i]);
		assert_int_equal(llmc_sampler_sample(c, logits, &x, NULL, NULL), LLMC_OK);
		differ += x != first[i];
	}
	assert_true(differ > 20);
	llmc_sampler_reset(a);
	for (int i = 0; i < 64; i++) { /* no penalties here: the history does not matter */
		assert_int_equal(llmc_sampler_sample(a, logits, &x, NULL, NULL), LLMC_OK);
		assert_int_equal(x, first[i]);
	}
	llmc_sampler_close(a);
	llmc_sampler_close(b);
	llmc_sampler_close(c);
}

static void
reset_forgets_the_history(void **state)
{
	Case c = { .p = { 0, 0, 0, 0, 4, 0, 0 } };
	llmc_sampler *s = open_case(&c, 0);
	int32_t id;

	(void)state;
	llmc_sampler_accept(s, 6, true);
	llmc_sampler_accept(s, -1, true); /* invalid tokens are ignored */
	llmc_sampler_accept(s, V, false);
	assert_int_equal(llmc_sampler_sample(s, logits, &id, NULL, NULL), LLMC_OK);
	assert_int_equal(id, 0);
	llmc_sampler_reset(s);
	assert_int_equal(llmc_sampler_sample(s, logits, &id, NULL, NULL), LLMC_OK);
	assert_int_equal(id, 2);
	llmc_sampler_close(s);
}

static int
by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x < y) - (x > y);
}

static float
next_number(FILE *f)
{
	float v;

	assert_int_equal(fscanf(f, "%f", &v), 1);
	return v;
}

/* A case of tests/golden/make_sample.py; its lists are stored in the given arrays. */
static llmc_params
read_case(FILE *f, llmc_bias bias[8], llmc_sequence bad[8], int32_t ids[8][8])
{
	llmc_params p = LLMC_INIT(llmc_params);

	p.temperature = next_number(f);
	p.top_k = (int32_t)next_number(f);
	p.top_p = next_number(f);
	p.min_p = next_number(f);
	p.typical_p = next_number(f);
	p.repetition_penalty = next_number(f);
	p.min_tokens = (int32_t)next_number(f);
	p.watermark = next_number(f) > 0;
	p.n_logit_bias = (int32_t)next_number(f);
	for (int i = 0; i < p.n_logit_bias; i++) {
		bias[i].id = (int32_t)next_number(f);
		bias[i].value = next_number(f);
	}
	p.n_bad_words = (int32_t)next_number(f);
	for (int i = 0; i < p.n_bad_words; i++) {
		bad[i] = (llmc_sequence){ ids[i], (size_t)next_number(f) };
		for (size_t k = 0; k < bad[i].n; k++)
			ids[i][k] = (int32_t)next_number(f);
	}
	p.logit_bias = bias;
	p.bad_words = bad;
	return p;
}

/* Processors whose distributions transformers wrote into tests/golden/sample.txt. */
static void
samples_follow_the_goldens(void **state)
{
	enum { N = 48 };
	static const int32_t eos[] = { 7, 9 };
	FILE *f = fopen("tests/golden/sample.txt", "r");
	float v[N], top = 0;
	SampleScratch m;

	(void)state;
	assert_non_null(f);
	assert_int_equal(sample_scratch_open(N, &m, NULL), LLMC_OK);
	for (int i = 0; i < N; i++)
		v[i] = next_number(f);
	int n_case = (int)next_number(f);
	assert_true(n_case >= 14);
	for (int c = 0; c < n_case; c++) {
		llmc_bias bias[8];
		llmc_sequence bad[8];
		int32_t ids[8][8], id;
		int count[N] = { 0 };
		llmc_sampler *s;
		llmc_params p = read_case(f, bias, bad, ids);
		p.seed = 3;
		assert_int_equal(sampler_open(N, &p, eos, 2, &s, NULL), LLMC_OK);
		memset(ids, 0x7f, sizeof ids); /* the sampler has its own copy */
		memset(bad, 0x7f, sizeof bad);
		memset(bias, 0x7f, sizeof bias);
		for (size_t i = 0; i < sizeof prompt / sizeof *prompt; i++)
			llmc_sampler_accept(s, prompt[i], true);
		for (size_t i = 0; i < sizeof output / sizeof *output; i++)
			llmc_sampler_accept(s, output[i], false);
		for (int i = 0; i < DRAWS; i++) {
			assert_int_equal(sampler_sample(s, &m, v, &id, NULL), LLMC_OK);
			count[id]++;
		}
		for (int i = 0; i < N; i++) {
			double want = next_number(f), sigma = sqrt(want * (1 - want) * DRAWS);
			top = want > top ? (float)want : top;
			if (fabs(count[i] - want * DRAWS) > 4 * sigma + (want > 0 ? 1 : 0))
				fail_msg(
				    "case %d: token %d was drawn %d times of %d, expected %.1f", c,
				    i, count[i], DRAWS, want * DRAWS);
		}
		llmc_sampler_close(s);
	}
	assert_true(top > 0.2);
	sample_scratch_release(&m);
	/* the watermark's token sets, for large vocabularies */
	long vocab, last, n, sum;
	int lines = 0;
	for (; fscanf(f, "%ld %ld %ld %ld", &vocab, &last, &n, &sum) == 4; lines++) {
		float *gain = calloc((size_t)vocab, sizeof *gain);
		int32_t *order = calloc((size_t)vocab, sizeof *order);
		assert_non_null(gain);
		assert_non_null(order);
		sample_watermark(gain, (int32_t)vocab, (int32_t)last, 2, order);
		for (long i = 0; i < vocab; i++) {
			n -= gain[i] == 2;
			sum -= gain[i] == 2 ? i * i % 1000003 : 0;
			assert_true(gain[i] == 0 || gain[i] == 2);
		}
		assert_int_equal(n, 0);
		assert_int_equal(sum, 0);
		free(gain);
		free(order);
	}
	assert_int_equal(lines, 7);
	fclose(f);
}

/* Vectorised exp against the C library's; argmax against a sort. */
static void
logprobs_agree_with_the_library(void **state)
{
	enum { N = 1003 };
	static float v[N], w[N];
	llmc_logprob best[20];
	uint64_t r = 5;

	(void)state;
	for (int scale = 1; scale < 1000; scale *= 9) {
		double sum = 0;
		for (int i = 0; i < N; i++) {
			r = r * 6364136223846793005u + 1442695040888963407u;
			v[i] = (float)scale * ((float)(r >> 40) / (1 << 24) - 0.5f);
		}
		v[scale % N] = v[scale % 7] = (float)scale; /* two equal values */
		memcpy(w, v, sizeof v);
		double mine = sample_weights(w, N, 1, (float)scale);
		for (int i = 0; i < N; i++) {
			double e = exp((double)(v[i] - (float)scale));
			sum += e;
			if (fabs(w[i] - e) > 3e-7 * e + 2e-38)
				fail_msg("exp(%g) is %g, not %g", v[i] - (float)scale, w[i], e);
		}
		assert_true(fabs(mine - sum) < 1e-6 * sum);
		memcpy(w, v, sizeof v);
		qsort(w, N, sizeof *w, by_value);
		for (int32_t id = 0; id < N; id += 100) {
			float lp = sample_logprobs(v, N, id, best, 20);
			assert_true(fabs(lp - (v[id] - scale - log(sum))) < 1e-5 * (1 + fabs(lp)));
		}
		const int32_t some[] = { 7, 0, N - 1, 7 };
		assert_int_equal(sample_logprobs_of(v, N, some, 4, best), 4);
		for (int k = 0; k < 4; k++) {
			const double want = v[some[k]] - scale - log(sum);
			assert_int_equal(best[k].id, some[k]);
			assert_true(fabs(best[k].logprob - want) < 1e-5 * (1 + fabs(want)));
		}
		sample_logprobs(v, N, 0, best, 20);
		for (int k = 0; k < 20; k++) {
			assert_true(v[best[k].id] == w[k]);
			assert_true(fabs(best[k].logprob - (w[k] - scale - log(sum))) <
			            1e-5 * (1 + fabs(best[k].logprob)));
			assert_true(k == 0 || best[k - 1].logprob > best[k].logprob ||
			            best[k - 1].id < best[k].id);
		}
	}
}

/* Selection and heap on a large vocabulary with many ties, against a full sort. */
static void
large_vocabularies_agree_with_a_sort(void **state)
{
	enum { N = 50000 };
	float *v = malloc(N * sizeof *v), *sorted = malloc(N * sizeof *sorted);
	uint64_t r = 99;

	(void)state;
	assert_non_null(v);
	assert_non_null(sorted);
	for (int i = 0; i < N; i++) {
		r = r * 6364136223846793005u + 1442695040888963407u;
		v[i] = (float)(int)(r >> 52) / 512; /* few distinct values */
	}
	memcpy(sorted, v, N * sizeof *v);
	qsort(sorted, N, sizeof *v, by_value);
	for (int k = 1; k < N; k = k * 3 + 1)
		for (int with_p = 0; with_p < 2; with_p++) {
			llmc_params p = LLMC_INIT(llmc_params);
			llmc_sampler *s;
			int32_t id;
			p.temperature = 50; /* nearly flat: every candidate has a chance */
			p.top_k = k;
			p.top_p = with_p ? 0.5f : 0;
			assert_int_equal(llmc_sampler_open(N, &p, &s, NULL), LLMC_OK);
			for (int i = 0; i < 20; i++) {
				assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL),
				                 LLMC_OK);
				assert_true(v[id] >= sorted[k - 1]);
			}
			llmc_sampler_close(s);
		}
	free(v);
	free(sorted);
}

static void
broken_logits_are_rejected(void **state)
{
	float bad[V];
	llmc_error err;
	int32_t id = 77;
	llmc_sampler *s = open_case(&cases[0], 1);

	(void)state;
	memcpy(bad, logits, sizeof bad);
	bad[3] = NAN;
	assert_int_equal(llmc_sampler_sample(s, bad, &id, NULL, &err), LLMC_E_CHECK);
	assert_string_equal(
	    err.text,
	    "the logits hold NaN (token 3): weights or kernels are broken, try `llmc verify`");
	bad[3] = INFINITY;
	assert_int_equal(llmc_sampler_sample(s, bad, &id, NULL, &err), LLMC_OK);
	assert_int_equal(id, 3);
	for (int i = 0; i < V; i++)
		bad[i] = -INFINITY;
	assert_int_equal(llmc_sampler_sample(s, bad, &id, NULL, &err), LLMC_E_CHECK);
	assert_string_equal(err.text, "all logits are minus infinity: no token can be sampled");
	bad[9] = 0;
	assert_int_equal(llmc_sampler_sample(s, bad, &id, NULL, &err), LLMC_OK);
	assert_int_equal(id, 9);
	llmc_sampler_close(s);
}

static void
settings_out_of_range_are_rejected(void **state)
{
	static const struct {
		size_t at;
		float f;
		int32_t i;
		const char *text;
	} bad[] = {
		{ offsetof(llmc_params, temperature), -1, 0,
		  "temperature is -1, it must be a finite number of at least 0" },
		{ offsetof(llmc_params, temperature), NAN, 0, NULL },
		{ offsetof(llmc_params, top_k), 0, -3,
		  "top_k is -3, it must be a finite number of at least 0" },
		{ offsetof(llmc_params, top_p), 1.5f, 0, "top_p is 1.5, valid values are 0 to 1" },
		{ offsetof(llmc_params, min_p), -0.5f, 0,
		  "min_p is -0.5, valid values are 0 to 1" },
		{ offsetof(llmc_params, repetition_penalty), -2, 0,
		  "repetition_penalty is -2, it must be a finite number of at least 0" },
		{ offsetof(llmc_params, typical_p), 1.5f, 0,
		  "typical_p is 1.5, valid values are 0 to 1" },
		{ offsetof(llmc_params, min_tokens), 0, -1,
		  "min_tokens is -1, it must be a finite number of at least 0" },
		{ offsetof(llmc_params, n_bad_words), 0, 1,
		  "stop_tokens, logit_bias, bad_words or allowed_tokens has a count without a "
		  "list" },
		{ offsetof(llmc_params, presence_penalty), INFINITY, 0,
		  "presence_penalty is inf, valid values are -1e+06 to 1e+06" },
	};
	llmc_error err;
	llmc_sampler *s;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		llmc_params p = LLMC_INIT(llmc_params);
		if (bad[i].i)
			memcpy((char *)&p + bad[i].at, &bad[i].i, sizeof bad[i].i);
		else
			memcpy((char *)&p + bad[i].at, &bad[i].f, sizeof bad[i].f);
		assert_int_equal(llmc_sampler_open(V, &p, &s, &err), LLMC_E_RANGE);
		assert_null(s);
		if (bad[i].text)
			assert_string_equal(err.text, bad[i].text);
	}
	assert_int_equal(llmc_sampler_open(0, NULL, &s, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "a vocabulary of 0 tokens cannot be sampled from");
	assert_int_equal(llmc_sampler_open(V, NULL, &s, NULL), LLMC_OK); /* greedy */
	llmc_sampler_close(s);
	llmc_sampler_close(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(samples_follow_transformers),
		cmocka_unit_test(greedy_is_the_largest_after_penalties),
		cmocka_unit_test(samples_follow_the_goldens),
		cmocka_unit_test(logprobs_agree_with_the_library),
		cmocka_unit_test(samples_depend_on_seed_and_position),
		cmocka_unit_test(reset_forgets_the_history),
		cmocka_unit_test(large_vocabularies_agree_with_a_sort),
		cmocka_unit_test(broken_logits_are_rejected),
		cmocka_unit_test(settings_out_of_range_are_rejected),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The samplers that llama.cpp defines: penalties of a window, DRY, XTC, top-n-sigma, dynamic
 * temperature and Mirostat, against tests/golden/make_samplers.py, which computes them from their
 * definitions. */
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
#include "tempdir.h"
#include "tiny_grammar.h"

enum { V = 48, DRAWS = 8000, MAX_LIST = 128 };

static double
next_number(FILE *f)
{
	double v;

	assert_int_equal(fscanf(f, "%lf", &v), 1);
	return v;
}

static int32_t
next_list(FILE *f, int32_t list[MAX_LIST])
{
	int32_t n = (int32_t)next_number(f);

	assert_in_range(n, 0, MAX_LIST);
	for (int32_t i = 0; i < n; i++)
		list[i] = (int32_t)next_number(f);
	return n;
}

typedef struct Case {
	llmc_params p;
	int32_t prompt[MAX_LIST], output[MAX_LIST], n_prompt, n_output;
	DryBreakers *breakers;
	char order[LLMC_MAX_SAMPLERS + 2];
	bool pieces; /* tokens have strings */
	double want[V];
} Case;

static void
read_case(FILE *f, Case *c)
{
	int32_t list[8][MAX_LIST];
	llmc_sequence seq[8];

	c->p = (llmc_params)LLMC_INIT(llmc_params);
	c->p.temperature = (float)next_number(f);
	c->p.top_k = (int32_t)next_number(f);
	c->p.top_p = (float)next_number(f);
	c->p.min_p = (float)next_number(f);
	c->p.repetition_penalty = (float)next_number(f);
	c->p.presence_penalty = (float)next_number(f);
	c->p.frequency_penalty = (float)next_number(f);
	c->p.repeat_last_n = (int32_t)next_number(f);
	c->p.dry_multiplier = (float)next_number(f);
	c->p.dry_base = (float)next_number(f);
	c->p.dry_allowed_length = (int32_t)next_number(f);
	c->p.dry_penalty_last_n = (int32_t)next_number(f);
	c->p.xtc_probability = (float)next_number(f);
	c->p.xtc_threshold = (float)next_number(f);
	c->p.top_n_sigma = (float)next_number(f);
	c->p.dynatemp_range = (float)next_number(f);
	c->p.dynatemp_exponent = (float)next_number(f);
	c->p.typical_p = (float)next_number(f);
	c->p.min_keep = (int32_t)next_number(f);
	c->n_prompt = next_list(f, c->prompt);
	c->n_output = next_list(f, c->output);
	int32_t n = (int32_t)next_number(f);
	assert_in_range(n, 0, 8);
	for (int32_t i = 0; i < n; i++)
		seq[i] = (llmc_sequence){ list[i], (size_t)next_list(f, list[i]) };
	assert_int_equal(dry_breakers_of(V, seq, n, &c->breakers, NULL), LLMC_OK);
	c->order[0] = 0;
	n = fscanf(f, " \"%33[^\"]", c->order);
	assert_int_equal(n, c->order[0] ? 1 : 0);
	assert_int_equal(fgetc(f), '"');
	c->pieces = c->order[0] == '+';
	if (strcmp(c->order, "-") != 0)
		c->p.samplers = c->order + c->pieces;
	if (strchr(c->order, 'i')) { /* the token that ends the text */
		static const int32_t end = 7;
		c->p.stop_tokens = &end;
		c->p.n_stop_tokens = 1;
	}
	for (int i = 0; i < V; i++)
		c->want[i] = next_number(f);
}

/* Read the strings of the tokens, and open a tokenizer that has them. */
static llmc_tokenizer *
read_pieces(FILE *f, const Tempdir *dir)
{
	const char *path = tempdir_file(dir, "tokenizer.json");
	FILE *to = fopen(path, "w");
	llmc_tokenizer *t = NULL;
	llmc_error err = { 0 };

	assert_non_null(to);
	fputs("{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"merges\":[],"
	      "\"vocab\":{",
	      to);
	for (int i = 0; i < V; i++) {
		char text[16];
		assert_int_equal(fscanf(f, "%15s", text), 1);
		fprintf(to, "%s\"%s\":%d", i ? "," : "", text, i);
	}
	fputs("}}}", to);
	fclose(to);
	if (llmc_tokenizer_open(path, &t, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return t;
}

static llmc_sampler *
open_case(const Case *c, const llmc_tokenizer *pieces)
{
	llmc_sampler *s;

	assert_int_equal(llmc_sampler_open(V, &c->p, &s, NULL), LLMC_OK);
	sampler_set_breakers(s, c->breakers);
	if (c->pieces)
		sampler_set_tokenizer(s, pieces);
	for (int32_t i = 0; i < c->n_prompt; i++)
		llmc_sampler_accept(s, c->prompt[i], true);
	for (int32_t i = 0; i < c->n_output; i++)
		llmc_sampler_accept(s, c->output[i], false);
	return s;
}

static void
draws_follow_the_definitions(void **state)
{
	FILE *f = fopen("tests/golden/samplers.txt", "r");
	float v[V];

	assert_non_null(f);
	for (int i = 0; i < V; i++)
		v[i] = (float)next_number(f);
	llmc_tokenizer *pieces = read_pieces(f, *state);
	int n_case = (int)next_number(f);
	assert_true(n_case >= 200);
	for (int k = 0; k < n_case; k++) {
		int count[V] = { 0 };
		Case c;
		read_case(f, &c);
		c.p.seed = (uint64_t)k;
		llmc_sampler *s = open_case(&c, pieces);
		for (int pass = 0; pass < 2; pass++) {
			for (int i = 0; i < DRAWS / 2; i++) {
				int32_t id = -1;
				assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL),
				                 LLMC_OK);
				count[id]++;
			}
			/* a sampler that is used again has no history */
			llmc_sampler_close(s);
			c.p.seed += 1000;
			s = open_case(&c, pieces);
			llmc_sampler_reset(s);
			for (int32_t i = 0; i < c.n_prompt; i++)
				llmc_sampler_accept(s, c.prompt[i], true);
			for (int32_t i = 0; i < c.n_output; i++)
				llmc_sampler_accept(s, c.output[i], false);
		}
		for (int i = 0; i < V; i++) {
			double p = c.want[i], sigma = sqrt(p * (1 - p) * DRAWS);
			if (fabs(count[i] - p * DRAWS) > 4.5 * sigma + (p > 0 ? 1 : 0))
				fail_msg(
				    "case %d: token %d was drawn %d times of %d, expected %.1f", k,
				    i, count[i], DRAWS, p * DRAWS);
		}
		llmc_sampler_close(s);
		dry_breakers_close(c.breakers);
	}
	llmc_tokenizer_close(pieces);
	fclose(f);
}

/* If no token is likely, the infill sampler ends the text, unless the request forbids an end at
 * this position. */
static void
infill_does_not_end_where_it_is_forbidden(void **state)
{
	enum { N = 300, END = 2, OTHER = 4 };
	static float v[N];
	const int32_t end = END, other = OTHER, list[] = { 1, 8, 9, 10, 11, 12, 13 };
	const llmc_bias never = { END, -INFINITY };
	const llmc_sequence word = { &end, 1 };
	Grammar *g = tiny_grammar("[a-z]0[a-z]0");

	(void)state;
	for (int k = 0; k < 7; k++) {
		llmc_params p = LLMC_INIT(llmc_params);
		llmc_sampler *s;
		SampleScratch m;
		p.temperature = 1;
		p.samplers = "i";
		p.stop_tokens = k == 6 ? &other : NULL;
		p.n_stop_tokens = k == 6;
		p.min_tokens = k == 1;
		p.n_bad_words = k == 2;
		p.bad_words = &word;
		p.n_logit_bias = k == 3 || k == 6;
		p.logit_bias = &never;
		p.n_allowed_tokens = k == 4 ? 7 : 0;
		p.allowed_tokens = list;
		p.grammar = k == 5 ? g : NULL;
		assert_int_equal(sampler_open(N, &p, &end, 1, &s, NULL), LLMC_OK);
		assert_int_equal(sample_scratch_open(N, &m, NULL), LLMC_OK);
		for (int i = 0; i < N; i++)
			v[i] = i == END || i == OTHER ? -20 : 0;
		for (int i = 0; i < 200; i++) {
			int32_t id = -1;
			assert_int_equal(sampler_sample(s, &m, v, &id, NULL), LLMC_OK);
			if (k == 0 || k == 6) /* another end may be allowed */
				assert_int_equal(id, k ? OTHER : END);
			else
				assert_int_not_equal(id, END);
			assert_true(k != 5 || id < 26);
		}
		sample_scratch_release(&m);
		llmc_sampler_close(s);
	}
	grammar_close(g);
}

/* The logits of make_samplers.py */
static void
lcg_logits(uint64_t seed, int n, double deviation, float *out)
{
	uint64_t r = seed;

	for (int i = 0; i < n; i++) {
		double x = -6;
		for (int k = 0; k < 12; k++) {
			r = r * 6364136223846793005u + 1442695040888963407u;
			x += (double)(r >> 40) / (1 << 24);
		}
		out[i] = (float)(x * deviation);
	}
}

/* Draws with random numbers from a grid: each token is drawn in proportion to its probability, up
 * to rounding, and changes mu by the definition. */
static void
mirostat_follows_its_definition(void **state)
{
	enum { MOST = 1000, GRID = 1500 };
	FILE *f = fopen("tests/golden/mirostat.txt", "r");
	static float logits[MOST];
	static int count[MOST];
	static double after[MOST];
	SampleScratch m;
	double version;
	int n_case = 0;

	(void)state;
	assert_non_null(f);
	for (; fscanf(f, "%lf", &version) == 1; n_case++) {
		llmc_params p = LLMC_INIT(llmc_params);
		int32_t best;
		p.mirostat = (int32_t)version;
		p.mirostat_tau = (float)next_number(f);
		p.mirostat_eta = (float)next_number(f);
		double mu = next_number(f);
		p.temperature = (float)next_number(f);
		uint64_t seed = (uint64_t)next_number(f);
		int n = (int)next_number(f);
		double deviation = next_number(f);
		int kept = (int)next_number(f), n_drawn = 0;
		/* 0 is the default in llmc_params */
		p.mirostat_eta = p.mirostat_eta > 0 ? p.mirostat_eta : 1e-30f;
		assert_in_range(n, 1, MOST);
		lcg_logits(seed, n, deviation, logits);
		assert_int_equal(sample_scratch_open(n, &m, NULL), LLMC_OK);
		memset(count, 0, sizeof count);
		for (int i = 0; i < GRID; i++) {
			double now = mu;
			memcpy(m.work, logits, (size_t)n * sizeof *logits);
			assert_int_equal(sample_largest(m.work, n, &best, NULL), LLMC_OK);
			int32_t id = sample_mirostat(&m, &p, best, (i + 0.5) / GRID, &now);
			n_drawn += !count[id]++;
			after[id] = now;
		}
		assert_true(n_drawn <= kept);
		for (int i = 0, listed = kept < 40 ? kept : 40; i < listed; i++) {
			int id = (int)next_number(f);
			double want = next_number(f), want_mu = next_number(f);
			if (fabs(count[id] - want * GRID) > 1.5)
				fail_msg("case %d: token %d was drawn %d times, expected %.2f",
				         n_case, id, count[id], want * GRID);
			if (count[id] && fabs(after[id] - want_mu) > 1e-4)
				fail_msg("case %d: token %d leads to mu %g, expected %g", n_case,
				         id, after[id], want_mu);
		}
		sample_scratch_release(&m);
	}
	assert_int_equal(n_case, 30);
	fclose(f);
}

/* Each step moves mu by the error of one token. So over many tokens the mean surprise is tau, if mu
 * stays bounded. */
static void
mirostat_approaches_its_target(void **state)
{
	enum { N = 1000, STEPS = 3000 };
	static float v[N];
	SampleScratch m;

	(void)state;
	lcg_logits(5, N, 1.5, v);
	assert_int_equal(sample_scratch_open(N, &m, NULL), LLMC_OK);
	for (int version = 1; version <= 2; version++) {
		llmc_params p = LLMC_INIT(llmc_params);
		double mu = 30; /* far from the value that mu approaches */
		uint64_t r = 1;
		int32_t best;
		p.temperature = 1;
		p.mirostat = version;
		p.mirostat_tau = 4;
		assert_int_equal(sample_largest(v, N, &best, NULL), LLMC_OK);
		for (int i = 0; i < STEPS; i++) {
			r = r * 6364136223846793005u + 1442695040888963407u;
			memcpy(m.work, v, sizeof v);
			sample_mirostat(&m, &p, best, (double)(r >> 40) / (1 << 24), &mu);
		}
		assert_true(mu > 3 && mu < 9);
	}
	sample_scratch_release(&m);
}

/* The state of Mirostat belongs to the sampler: reset begins again, and every token follows from
 * seed and history. */
static void
mirostat_repeats_its_tokens(void **state)
{
	enum { N = 1000, STEPS = 200 };
	static float v[N];
	int32_t first[STEPS], id;
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_sampler *s;

	(void)state;
	lcg_logits(5, N, 1.5, v);
	p.temperature = 1;
	p.mirostat = 2;
	p.top_k = 2; /* Mirostat ignores top_k */
	assert_int_equal(llmc_sampler_open(N, &p, &s, NULL), LLMC_OK);
	for (int pass = 0; pass < 2; pass++) {
		int differ = 0;
		for (int i = 0; i < STEPS; i++) {
			assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL), LLMC_OK);
			if (pass)
				assert_int_equal(id, first[i]);
			first[i] = id;
			differ += i > 1 && id != first[0] && id != first[1];
		}
		assert_true(differ > STEPS / 2);
		llmc_sampler_reset(s);
	}
	llmc_sampler_close(s);
}

/* The cost of penalties and DRY is linear in the length of the history. */
static void
long_histories_are_kept(void **state)
{
	enum { N = 200000 };
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_sampler *s;
	float v[V] = { 0 };
	int32_t id;

	(void)state;
	p.dry_multiplier = 1;
	p.repetition_penalty = 2;
	p.repeat_last_n = 5;
	v[7] = 3;
	v[9] = 2.5f;
	assert_int_equal(llmc_sampler_open(V, &p, &s, NULL), LLMC_OK);
	for (int i = 0; i < N; i++)
		llmc_sampler_accept(s, i % 6, i < N / 2);
	/* the repetition of N tokens would continue with N % 6; it has the largest logit */
	v[N % 6] = 1e30f;
	assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL), LLMC_OK);
	assert_int_equal(id, 7);
	/* 7 is penalised for the next five tokens */
	llmc_sampler_accept(s, 7, false);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL), LLMC_OK);
		assert_int_equal(id, N % 6);
		v[N % 6] = 0;
		assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL), LLMC_OK);
		assert_int_equal(id, 9);
		v[N % 6] = 1e30f;
		llmc_sampler_accept(s, 20 + i, false);
	}
	v[N % 6] = 0;
	assert_int_equal(llmc_sampler_sample(s, v, &id, NULL, NULL), LLMC_OK);
	assert_int_equal(id, 7);
	llmc_sampler_close(s);
}

static void
orders_are_letters(void **state)
{
	static const struct {
		const char *samplers, *want;
		float xtc, threshold, range;
	} with[] = {
		{ .want = "edstkpmy" },
		{ .xtc = 0.5f, .want = "edskpmyxt" },
		{ .xtc = 0.5f, .threshold = 0.5f, .want = "edskpmyxt" },
		{ .xtc = 0.5f, .threshold = 0.6f, .want = "edstkpmy" },
		{ .range = 0.5f, .want = "edskpmyxt" },
		{ .samplers = "", .xtc = 0.5f, .want = "" },
		{ .samplers = "temp;nucleus;typical", .want = "tpy" },
		{ .samplers = "temperature", .want = "t" },
		{ .samplers = "temp;;xtc" },
		{ .samplers = "kz" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
		llmc_params p = LLMC_INIT(llmc_params);
		char order[LLMC_MAX_SAMPLERS + 1];
		size_t need;
		p.samplers = with[i].samplers;
		p.xtc_probability = with[i].xtc;
		p.xtc_threshold = with[i].threshold;
		p.dynatemp_range = with[i].range;
		llmc_status s = llmc_sampler_order(&p, order, sizeof order, &need, NULL);
		assert_int_equal(s, with[i].want ? LLMC_OK : LLMC_E_RANGE);
		if (!with[i].want)
			continue;
		assert_string_equal(order, with[i].want);
		assert_int_equal(need, strlen(order));
		assert_int_equal(llmc_sampler_order(&p, order, need, NULL, NULL), LLMC_E_RANGE);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(draws_follow_the_definitions, tempdir_setup,
		                                tempdir_teardown),
		cmocka_unit_test(infill_does_not_end_where_it_is_forbidden),
		cmocka_unit_test(mirostat_follows_its_definition),
		cmocka_unit_test(mirostat_approaches_its_target),
		cmocka_unit_test(mirostat_repeats_its_tokens),
		cmocka_unit_test(long_histories_are_kept),
		cmocka_unit_test(orders_are_letters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Samplers: parameters, the token history for penalties, and sampling. See sampler.h for the order
 * of the logit processors. */
#include "runtime/sample/sampler.h"
#include "base/random.h"
#include "base/sized_struct.h"
#include "grammar/grammar.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct llmc_sampler {
	int32_t vocab;
	llmc_params p; /* parameters, whose arrays are the sampler's own copies */
	int32_t *ids;  /* storage of stop_tokens and of the tokens of bad_words */
	int32_t n_eos, eos[16];
	/* penalties: some penalty counts tokens; changes: some option modifies logits */
	bool penalties, changes;
	bool window;       /* penalties count the last repeat_last_n tokens */
	int32_t *n_output; /* [vocab] number of occurrences in the output, or in the window */
	bool *seen;        /* [vocab] occurs in prompt or output */
	int32_t *touched;  /* [vocab] ids with `seen` set */
	int32_t n_touched;
	int32_t *tail; /* [n_tail] the last tokens, newest last */
	int32_t n_tail, tail_cap;
	int32_t n_new;
	/* all tokens, for DRY and for a window; lost: a token is missing because memory ran out */
	int32_t *hist, n_hist, hist_cap;
	bool keeps_hist, lost;
	const DryBreakers *breakers;
	const llmc_tokenizer *tok; /* NULL: unknown */
	int32_t *count;            /* [hist_cap] scratch memory of DRY */
	double mu;                 /* state of Mirostat */
	bool chain; /* the letters in `order` (filters.c) replace the order of sampler.h */
	char order[LLMC_MAX_SAMPLERS + 1];
	uint64_t n_sampled;
	SampleScratch own;  /* used by llmc_sampler_sample */
	Thinking *thinking; /* NULL: no limit */
	Matcher *matcher;   /* position of the output in the grammar; NULL: none */
	/* [(vocab + 31) / 32] tokens that the grammar allows next, valid if `masked` */
	uint32_t *mask;
	bool masked, all;  /* masked: mask is valid; all: the grammar allows every token */
	uint32_t *allowed; /* mask of allowed_tokens; NULL: all tokens */
};

static llmc_status
check_id(const char *what, int32_t id, int32_t vocab, llmc_error *err)
{
	if (id < 0 || id >= vocab)
		return error_set(err, LLMC_E_RANGE, "%s holds %d, tokens are 0 .. %d", what, id,
		                 vocab - 1);
	return LLMC_OK;
}

static llmc_status
check_lists(const llmc_params *p, int32_t vocab, llmc_error *err)
{
	if (p->n_stop_tokens < 0 || p->n_logit_bias < 0 || p->n_bad_words < 0 ||
	    (p->n_stop_tokens && !p->stop_tokens) || (p->n_logit_bias && !p->logit_bias) ||
	    (p->n_bad_words && !p->bad_words) || p->n_allowed_tokens < 0 ||
	    (p->n_allowed_tokens && !p->allowed_tokens))
		return error_set(err, LLMC_E_RANGE,
		                 "stop_tokens, logit_bias, bad_words or allowed_tokens has a count "
		                 "without a list");
	for (int32_t i = 0; i < p->n_allowed_tokens; i++)
		TRY(check_id("allowed_tokens", p->allowed_tokens[i], vocab, err));
	for (int32_t i = 0; i < p->n_stop_tokens; i++)
		TRY(check_id("stop_tokens", p->stop_tokens[i], vocab, err));
	for (int32_t i = 0; i < p->n_logit_bias; i++) {
		TRY(check_id("logit_bias", p->logit_bias[i].id, vocab, err));
		/* rejects NaN and +infinity; -infinity is allowed */
		if (!(p->logit_bias[i].value < INFINITY))
			return error_set(err, LLMC_E_RANGE,
			                 "logit_bias of token %d is NaN "
			                 "or +infinity",
			                 p->logit_bias[i].id);
	}
	for (int32_t i = 0; i < p->n_bad_words; i++) {
		if (p->bad_words[i].n < 1 || p->bad_words[i].n > 4096 || !p->bad_words[i].tok)
			return error_set(err, LLMC_E_RANGE,
			                 "bad_words %d has %zu tokens, possible are 1 .. 4096", i,
			                 p->bad_words[i].n);
		for (size_t k = 0; k < p->bad_words[i].n; k++)
			TRY(check_id("bad_words", p->bad_words[i].tok[k], vocab, err));
	}
	return LLMC_OK;
}

llmc_status
sampler_check(const llmc_params *p, int32_t vocab, llmc_error *err)
{
	char order[LLMC_MAX_SAMPLERS + 1];

	TRY(sampler_check_options(p, err));
	if (p->samplers)
		TRY(sampler_order(p->samplers, order, err));
	if (p->speculate < -1 || p->speculate > LLMC_MAX_SPECULATE)
		return error_set(err, LLMC_E_RANGE,
		                 "speculate is %d, possible are -1 (off), 0 (default) and 1 .. %d",
		                 p->speculate, LLMC_MAX_SPECULATE);
	return check_lists(p, vocab, err);
}

llmc_params
sampler_params(const llmc_params *p)
{
	llmc_params own = LLMC_INIT(llmc_params);

	SIZED_TAKE(own, p);
	return own;
}

llmc_status
sample_scratch_open(int32_t vocab, SampleScratch *out, llmc_error *err)
{
	*out = (SampleScratch){ .vocab = vocab };
	out->work = calloc((size_t)vocab, sizeof *out->work);
	out->cand = calloc((size_t)vocab, sizeof *out->cand);
	if (out->work && out->cand)
		return LLMC_OK;
	sample_scratch_release(out);
	return error_set(err, LLMC_E_MEMORY, "out of memory for sampling from %d tokens", vocab);
}

void
sample_scratch_release(SampleScratch *s)
{
	free(s->work);
	free(s->cand);
	*s = (SampleScratch){ 0 };
}

/* Copy the lists; false: out of memory. */
static bool
copy_lists(llmc_sampler *s, const llmc_params *p)
{
	size_t n = (size_t)p->n_stop_tokens, at = 0, longest = 1;

	for (int32_t i = 0; i < p->n_bad_words; i++) {
		n += p->bad_words[i].n;
		longest = p->bad_words[i].n > longest ? p->bad_words[i].n : longest;
	}
	llmc_sequence *bad = calloc((size_t)p->n_bad_words + 1, sizeof *bad);
	llmc_bias *bias = calloc((size_t)p->n_logit_bias + 1, sizeof *bias);
	s->ids = calloc(n + 1, sizeof *s->ids);
	s->p.bad_words = bad;
	s->p.logit_bias = bias;
	s->p.stop_tokens = s->ids;
	s->tail_cap = (int32_t)longest;
	s->tail = calloc(longest, sizeof *s->tail);
	if (!bad || !bias || !s->ids || !s->tail)
		return false;
	if (p->n_stop_tokens)
		memcpy(s->ids, p->stop_tokens, (size_t)p->n_stop_tokens * sizeof *s->ids);
	at = (size_t)p->n_stop_tokens;
	if (p->n_logit_bias)
		memcpy(bias, p->logit_bias, (size_t)p->n_logit_bias * sizeof *bias);
	for (int32_t i = 0; i < p->n_bad_words; i++) {
		memcpy(s->ids + at, p->bad_words[i].tok, p->bad_words[i].n * sizeof *s->ids);
		bad[i] = (llmc_sequence){ s->ids + at, p->bad_words[i].n };
		at += p->bad_words[i].n;
	}
	return true;
}

/* Make the mask of allowed_tokens; false: out of memory. */
static bool
copy_allowed(llmc_sampler *s, const llmc_params *p)
{
	if (!p->n_allowed_tokens)
		return true;
	s->allowed = calloc(((size_t)s->vocab + 31) / 32, sizeof *s->allowed);
	for (int32_t i = 0; s->allowed && i < p->n_allowed_tokens; i++)
		s->allowed[p->allowed_tokens[i] >> 5] |= 1u << (p->allowed_tokens[i] & 31);
	return s->allowed != NULL;
}

llmc_status
sampler_open(int32_t vocab, const llmc_params *p, const int32_t *eos, int32_t n_eos,
             llmc_sampler **out, llmc_error *err)
{
	llmc_params own = sampler_params(p);

	*out = NULL;
	if (vocab < 1)
		return error_set(err, LLMC_E_RANGE,
		                 "a vocabulary of %d tokens cannot be sampled from", vocab);
	TRY(sampler_check(&own, vocab, err));
	llmc_sampler *s = calloc(1, sizeof *s);
	bool ok = s != NULL;
	if (s) {
		s->vocab = vocab;
		s->p = own;
		s->p.stop = NULL; /* the caller owns these arrays */
		s->chain = sampler_has_order(&own);
		if (s->chain)
			sampler_order_of(&own, s->order, NULL); /* sampler_check has checked it */
		s->p.samplers = NULL;
		s->p.dry_sequence_breakers = s->p.thinking = NULL;
		s->p.bad_words = NULL;
		s->p.logit_bias = NULL;
		s->p.allowed_tokens = NULL;
		s->n_eos = n_eos < 16 ? n_eos : 16;
		if (s->n_eos)
			memcpy(s->eos, eos, (size_t)s->n_eos * sizeof *eos);
		if (s->p.repetition_penalty == 0)
			s->p.repetition_penalty = 1;
		s->penalties = sampler_has_penalties(&own);
		s->window = s->penalties && own.repeat_last_n != 0;
		s->keeps_hist = s->window || own.dry_multiplier > 0;
		s->mu = 2 * (double)sample_mirostat_tau(&own);
		s->changes = s->penalties || own.n_logit_bias || own.n_bad_words ||
		             own.min_tokens || own.watermark || own.dry_multiplier > 0;
		ok = copy_lists(s, &own) && copy_allowed(s, &own);
		if (ok && s->penalties) {
			s->n_output = calloc((size_t)vocab, sizeof *s->n_output);
			s->seen = calloc((size_t)vocab, sizeof *s->seen);
			s->touched = calloc((size_t)vocab, sizeof *s->touched);
			ok = s->n_output && s->seen && s->touched;
		}
	}
	if (!ok) {
		llmc_sampler_close(s);
		return error_set(err, LLMC_E_MEMORY, "out of memory for a sampler of %d tokens",
		                 vocab);
	}
	s->p.grammar = NULL;
	s->p.grammar_after = NULL;
	if (own.grammar) {
		s->mask = calloc(((size_t)vocab + 31) / 32, sizeof *s->mask);
		llmc_status status =
		    s->mask ? matcher_open(own.grammar, own.grammar_after, &s->matcher, err)
		            : error_set(err, LLMC_E_MEMORY,
		                        "out of memory for a sampler of %d tokens", vocab);
		if (status != LLMC_OK) {
			llmc_sampler_close(s);
			return status;
		}
	}
	*out = s;
	return LLMC_OK;
}

llmc_status
sampler_limit_thinking(llmc_sampler *s, const llmc_tokenizer *t, const llmc_params *p,
                       llmc_error *err)
{
	if (!p->thinking)
		return LLMC_OK;
	if (!s->mask)
		s->mask = calloc(((size_t)s->vocab + 31) / 32, sizeof *s->mask);
	if (!s->mask)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a sampler of %d tokens",
		                 s->vocab);
	return thinking_open(t, s->vocab, p->thinking, p->thinking_budget, &s->thinking, err);
}

bool
sampler_uses_breakers(const llmc_params *p)
{
	return p->dry_multiplier > 0;
}

void
sampler_set_breakers(llmc_sampler *s, const DryBreakers *b)
{
	s->breakers = b;
}

void
sampler_set_tokenizer(llmc_sampler *s, const llmc_tokenizer *t)
{
	s->tok = t;
}

bool
sampler_at_end(const llmc_sampler *s)
{
	return s->matcher && matcher_ended(s->matcher);
}

void
sampler_advance(llmc_sampler *s)
{
	s->n_sampled++;
}

bool
sampler_stops_at(const llmc_sampler *s, int32_t id)
{
	for (int32_t i = 0; i < s->p.n_stop_tokens; i++)
		if (s->p.stop_tokens[i] == id)
			return true;
	return false;
}

llmc_status
llmc_sampler_open(int32_t vocab, const llmc_params *p, llmc_sampler **out, llmc_error *err)
{
	if (!out)
		return error_set(err, LLMC_E_RANGE, "the output pointer of the sampler is NULL");
	TRY(sampler_open(vocab, p, NULL, 0, out, err));
	llmc_status status = sample_scratch_open(vocab, &(*out)->own, err);
	if (status != LLMC_OK) {
		llmc_sampler_close(*out);
		*out = NULL;
	}
	return status;
}

void
llmc_sampler_close(llmc_sampler *s)
{
	if (!s)
		return;
	free((void *)(uintptr_t)s->p.bad_words);
	free((void *)(uintptr_t)s->p.logit_bias);
	free(s->ids);
	free(s->tail);
	free(s->n_output);
	free(s->seen);
	free(s->touched);
	free(s->hist);
	free(s->count);
	sample_scratch_release(&s->own);
	thinking_close(s->thinking);
	matcher_close(s->matcher);
	free(s->mask);
	free(s->allowed);
	free(s);
}

void
llmc_sampler_reset(llmc_sampler *s)
{
	for (int32_t i = 0; i < s->n_touched; i++) {
		s->seen[s->touched[i]] = false;
		s->n_output[s->touched[i]] = 0;
	}
	s->n_touched = s->n_tail = s->n_new = s->n_hist = 0;
	s->n_sampled = 0;
	s->mu = 2 * (double)sample_mirostat_tau(&s->p);
	s->lost = false;
	s->masked = false;
	if (s->matcher)
		matcher_reset(s->matcher);
	if (s->thinking)
		thinking_reset(s->thinking);
}

static void
remember(llmc_sampler *s, int32_t id)
{
	if (s->n_hist == s->hist_cap) {
		int32_t cap = s->hist_cap ? 2 * s->hist_cap : 1024;
		int32_t *hist = realloc(s->hist, (size_t)cap * sizeof *hist);
		s->hist = hist ? hist : s->hist;
		int32_t *count = realloc(s->count, (size_t)cap * sizeof *count);
		s->count = count ? count : s->count;
		s->lost |= !hist || !count;
		if (s->lost)
			return;
		s->hist_cap = cap;
	}
	s->hist[s->n_hist++] = id;
}

void
llmc_sampler_accept(llmc_sampler *s, int32_t id, bool is_prompt)
{
	if (id < 0 || id >= s->vocab)
		return;
	if (s->n_tail == s->tail_cap)
		memmove(s->tail, s->tail + 1, (size_t)--s->n_tail * sizeof *s->tail);
	s->tail[s->n_tail++] = id;
	s->n_new += !is_prompt;
	if (s->matcher && !is_prompt) {
		/* if the grammar forbids the token, it allows no token after it: the next sample
		 * returns the error */
		matcher_accept(s->matcher, id, NULL);
		s->masked = false;
	}
	if (s->thinking && !is_prompt)
		thinking_accept(s->thinking, id);
	if (s->keeps_hist)
		remember(s, id);
	if (!s->penalties)
		return;
	if (!s->seen[id]) {
		s->seen[id] = true;
		s->touched[s->n_touched++] = id;
	}
	s->n_output[id] += (s->window || !is_prompt) && s->n_output[id] < INT32_MAX;
	if (s->window && s->p.repeat_last_n > 0 && s->n_hist > s->p.repeat_last_n)
		s->n_output[s->hist[s->n_hist - 1 - s->p.repeat_last_n]]--;
}

/* splitmix64: n-th number of the stream that the seed selects; in [0, 1) */
static double
random_at(uint64_t seed, uint64_t n)
{
	uint64_t start = random_mix(seed + 0x9e3779b97f4a7c15u);

	return (double)(random_mix(start + (n + 1) * 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

static void
penalise(llmc_sampler *s, const SampleScratch *m)
{
	const llmc_params *p = &s->p;

	if (!s->penalties)
		return;
	for (int32_t i = 0; i < s->n_touched; i++) {
		int32_t id = s->touched[i];
		float *v = &m->work[id];
		if (s->window && !s->n_output[id])
			continue;
		*v = *v < 0 ? *v * p->repetition_penalty : *v / p->repetition_penalty;
		if (s->n_output[id])
			*v -= p->frequency_penalty * (float)s->n_output[id] + p->presence_penalty;
	}
}

static void
dry(llmc_sampler *s, const SampleScratch *m)
{
	if (s->p.dry_multiplier > 0)
		sample_dry(m, &s->p, s->hist, s->n_hist, s->breakers, s->count);
}

static bool
is_end(const llmc_sampler *s, int32_t id)
{
	for (int32_t i = 0; i < s->n_eos && !s->p.ignore_eos; i++)
		if (s->eos[i] == id)
			return true;
	return sampler_stops_at(s, id);
}

/* Return an end token that is still allowed; -1: there is none. */
static int32_t
allowed_end(const llmc_sampler *s, const float *work)
{
	for (int32_t i = 0; i < s->n_eos && !s->p.ignore_eos; i++)
		if (s->eos[i] >= 0 && s->eos[i] < s->vocab && work[s->eos[i]] != -INFINITY)
			return s->eos[i];
	for (int32_t i = 0; i < s->p.n_stop_tokens; i++)
		if (work[s->p.stop_tokens[i]] != -INFINITY)
			return s->p.stop_tokens[i];
	return -1;
}

/* Exclude the last token of a bad word if the output ends with the tokens before it. Exclude end
 * tokens while the output has fewer than min_tokens tokens. */
static void
forbid(llmc_sampler *s, float *work)
{
	for (int32_t i = 0; i < s->p.n_bad_words; i++) {
		const llmc_sequence *w = &s->p.bad_words[i];
		int32_t before = (int32_t)w->n - 1;
		if (before <= s->n_tail && memcmp(s->tail + s->n_tail - before, w->tok,
		                                  (size_t)before * sizeof *w->tok) == 0)
			work[w->tok[before]] = -INFINITY;
	}
	if (s->n_new >= s->p.min_tokens)
		return;
	for (int32_t i = 0; i < s->n_eos && !s->p.ignore_eos; i++)
		if (s->eos[i] >= 0 && s->eos[i] < s->vocab)
			work[s->eos[i]] = -INFINITY;
	for (int32_t i = 0; i < s->p.n_stop_tokens; i++)
		work[s->p.stop_tokens[i]] = -INFINITY;
}

/* Token that must come next; -1: any. */
static int32_t
forced(const llmc_sampler *s)
{
	return s->thinking ? thinking_forced(s->thinking) : -1;
}

bool
sampler_has_grammar(const llmc_sampler *s)
{
	return s->matcher || s->thinking || s->allowed;
}

bool
sampler_mask_is_slow(const llmc_sampler *s)
{
	return s->matcher && !s->masked && forced(s) < 0 && !matcher_knows(s->matcher);
}

static llmc_status
make_mask(llmc_sampler *s, llmc_error *err)
{
	size_t n = ((size_t)s->vocab + 31) / 32;
	uint32_t some = 0;

	TRY(matcher_mask(s->matcher, s->mask, n, &s->all, err));
	if (s->all && s->allowed)
		memcpy(s->mask, s->allowed, n * sizeof *s->mask);
	else if (s->all)
		return LLMC_OK;
	for (size_t w = 0; s->allowed && w < n; w++)
		s->mask[w] &= s->allowed[w];
	s->all = false;
	if (s->n_eos &&
	    matcher_may_end(
	        s->matcher)) /* a model may have end tokens that its tokenizer does not have */
		for (int32_t i = 0; i < s->n_eos; i++)
			if (s->eos[i] >= 0 && s->eos[i] < s->vocab)
				s->mask[s->eos[i] >> 5] |= 1u << (s->eos[i] & 31);
	for (size_t w = 0; w < n; w++)
		some |= s->mask[w];
	return some ? LLMC_OK : error_set(err, LLMC_E_CHECK, "the grammar allows no token here");
}

llmc_status
sampler_mask(llmc_sampler *s, const uint32_t **bits, llmc_error *err)
{
	const int32_t id = forced(s);

	*bits = NULL;
	if (id >= 0) {
		memset(s->mask, 0, ((size_t)s->vocab + 31) / 32 * sizeof *s->mask);
		s->mask[id >> 5] = 1u << (id & 31);
		s->masked = false;
		*bits = s->mask;
		return LLMC_OK;
	}
	if (!s->matcher) {
		*bits = s->allowed;
		return LLMC_OK;
	}
	if (!s->masked)
		/* set only on success: after an error the next call fails again and returns it */
		TRY(make_mask(s, err));
	s->masked = true;
	*bits = s->all ? NULL : s->mask;
	return LLMC_OK;
}

/* Exclude all tokens whose bit is not set. */
static void
forbid_others(const uint32_t *bits, float *work, int32_t vocab)
{
	for (int32_t at = 0; at < vocab; at += 32) {
		uint32_t out = ~bits[at >> 5];
		int32_t n = vocab - at < 32 ? vocab - at : 32;
		if (out == UINT32_MAX) {
			for (int32_t k = 0; k < n; k++)
				work[at + k] = -INFINITY;
			continue;
		}
		for (out &= UINT32_MAX >> (32 - n); out; out &= out - 1)
			work[at + __builtin_ctz(out)] = -INFINITY;
	}
}

/* Apply biases and penalties to the logits. */
static llmc_status
change(llmc_sampler *s, const SampleScratch *m, llmc_error *err)
{
	if (s->lost)
		return error_set(err, LLMC_E_MEMORY, "out of memory for the tokens of a sampler");
	for (int32_t i = 0; i < s->p.n_logit_bias; i++)
		m->work[s->p.logit_bias[i].id] += s->p.logit_bias[i].value;
	if (s->p.watermark && s->n_tail)
		sample_watermark(m->work, s->vocab, s->tail[s->n_tail - 1], 2, (int32_t *)m->cand);
	if (!s->chain) {
		penalise(s, m);
		dry(s, m);
	}
	forbid(s, m->work);
	return LLMC_OK;
}

/* Draw a token from the logits in m->work; `best` is the index of the largest. */
static int32_t
draw(llmc_sampler *s, const SampleScratch *m, int32_t best)
{
	/* any constant: gives decisions other than the token a random stream of their own */
	const uint64_t chances = 0x6a09e667f3bcc909u;
	const SampleRandom r = { random_at(s->p.seed, s->n_sampled),
		                 sample_has_xtc(&s->p)
		                     ? random_at(s->p.seed ^ chances, s->n_sampled)
		                     : 0 };

	if (s->chain)
		return sample_chain(m, &s->p, s->order,
		                    &(ChainOwner){ .sampler = s,
		                                   .penalise = penalise,
		                                   .dry = dry,
		                                   .is_end = is_end,
		                                   .end = allowed_end(s, m->work),
		                                   .tok = s->tok },
		                    r);
	if (s->p.mirostat)
		return sample_mirostat(m, &s->p, best, r.at, &s->mu);
	return sample_draw(m, &s->p, best, r);
}

llmc_status
sampler_sample(llmc_sampler *s, const SampleScratch *m, const float *logits, int32_t *id,
               llmc_error *err)
{
	/* XTC removes the largest logits even if the rest is greedy */
	const bool draws = s->p.temperature > 0 || sample_has_xtc(&s->p) || s->chain,
	           copied = draws || s->changes;
	const uint32_t *bits;
	int32_t best;

	TRY(sample_largest(logits, s->vocab, &best, err));
	/* a forced token is returned whatever the other options do to its logit */
	if (forced(s) >= 0) {
		*id = forced(s);
		s->n_sampled++;
		return LLMC_OK;
	}
	TRY(sampler_mask(s, &bits, err));
	if (copied)
		memcpy(m->work, logits, (size_t)s->vocab * sizeof *m->work);
	if (copied && bits)
		forbid_others(bits, m->work, s->vocab);
	if (!s->changes && bits)
		TRY(sample_largest_of(logits, s->vocab, bits, &best, err));
	if (s->changes) {
		TRY(change(s, m, err));
		TRY(sample_largest(m->work, s->vocab, &best, err));
	}
	*id = draws ? draw(s, m, best) : best;
	if (*id < 0)
		return error_set(err, LLMC_E_CHECK, "the samplers leave no token");
	s->n_sampled++;
	return LLMC_OK;
}

llmc_status
llmc_sampler_sample(llmc_sampler *s, const float *logits, int32_t *id, float *logprob,
                    llmc_error *err)
{
	TRY(sampler_sample(s, &s->own, logits, id, err));
	if (logprob)
		*logprob = sample_logprobs(logits, s->vocab, *id, NULL, 0);
	return LLMC_OK;
}

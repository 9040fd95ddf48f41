/* Sampling, inside of the library. What changes the logits runs in this order, that of
 * transformers' processors and of TGI: grammar, logit_bias, watermark, repetition, frequency and
 * presence penalty, bad words, min_tokens, temperature, top_k, top_p, min_p, typical_p The n-th
 * pick of a sampler uses the random number of (seed, n) and nothing else, so it can be repeated
 * anywhere. */
#ifndef LLMC_RUNTIME_SAMPLE_SAMPLER_H
#define LLMC_RUNTIME_SAMPLE_SAMPLER_H

#include "base/error.h"

/* Memory of one pick, shared by all samplers of a thread. */
typedef struct Candidate {
	float v;
	int32_t id;
} Candidate;
typedef struct SampleScratch {
	int32_t vocab;
	float *work;     /* [vocab] */
	Candidate *cand; /* [vocab] */
} SampleScratch;

llmc_status sample_scratch_open(int32_t vocab, SampleScratch *out, llmc_error *err);
void sample_scratch_release(SampleScratch *s);

/* sampler_open: as llmc_sampler_open, without memory for picks; params are copied whole. eos: what
 * min_tokens keeps away. */
llmc_status sampler_open(int32_t vocab, const llmc_params *p, const int32_t *eos, int32_t n_eos,
                         llmc_sampler **out, llmc_error *err);
llmc_status sampler_sample(llmc_sampler *s, const SampleScratch *m, const float *logits,
                           int32_t *id, llmc_error *err);
/* Ranges and, with a vocabulary, ids. */
llmc_status sampler_check_options(const llmc_params *p,
                                  llmc_error *err); /* sampler_options.c: numbers in range */
llmc_status sampler_check(const llmc_params *p, int32_t vocab, llmc_error *err);
/* The caller's struct, of whatever size, in ours. */
llmc_params sampler_params(const llmc_params *p);
/* Somebody else has made this pick: the next is one further. */
void sampler_advance(llmc_sampler *s);
/* Its grammar is complete, and nothing can follow: the text ends here. */
bool sampler_at_end(const llmc_sampler *s);
/* What its grammar lets come next: a bit a token, (vocab + 31) / 32 words, the sampler's own until
 * it accepts a token; *bits NULL: everything. Made once a place of the text: who asks before the
 * pick spares it the time. Any thread, but nothing else of the sampler meanwhile. E_CHECK: nothing
 * may come. */
llmc_status sampler_mask(llmc_sampler *s, const uint32_t **bits, llmc_error *err);
/* Has it a grammar? And is making its next mask work, more than a copy? */
bool sampler_has_grammar(const llmc_sampler *s);
bool sampler_mask_is_slow(const llmc_sampler *s);
/* One of its stop_tokens? */
bool sampler_stops_at(const llmc_sampler *s, int32_t id);

/* Logprob of id and the n_top likeliest of softmax(logits), likeliest first, of equals the lower
 * id. */
float sample_logprobs(const float *logits, int32_t vocab, int32_t id, llmc_logprob *top,
                      int32_t n_top);

/* softmax.c */
/* The largest, the first of equals; NaN, or nothing above -inf: E_CHECK. */
llmc_status sample_largest(const float *v, int32_t n, int32_t *at, llmc_error *err);
/* The same of those whose bit is set; v holds no NaN. */
llmc_status sample_largest_of(const float *v, int32_t n, const uint32_t *bits, int32_t *at,
                              llmc_error *err);
/* v[i] = exp(v[i] / temperature - max); sum of all */
double sample_weights(float *v, int32_t n, float temperature, float max);

/* sample_token.c: m->work holds logits, `best` the place of the largest; at in [0, 1) */
int32_t sample_draw(const SampleScratch *m, const llmc_params *p, int32_t best, double at);

/* watermark.c: add `gain` to the half of the logits that `last` chooses, in the order of torch's
 * generator */
void sample_watermark(float *v, int32_t n, int32_t last, float gain, int32_t *order);

#endif

/* Sampling, internal to the library. Logit processors run in this order, that of transformers and
 * of TGI:
 *
 *   grammar, logit_bias, watermark, repetition, frequency and presence penalty, bad words,
 *   min_tokens, temperature, top_k, top_p, min_p, typical_p
 *
 * The n-th token of a sampler uses only the random number of (seed, n), so it can be reproduced
 * anywhere. */
#ifndef LLMC_RUNTIME_SAMPLE_SAMPLER_H
#define LLMC_RUNTIME_SAMPLE_SAMPLER_H

#include "base/error.h"

/* Scratch memory for one sampled token, shared by all samplers of a thread */
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

/* Like llmc_sampler_open, without scratch memory; copies params. eos: tokens that min_tokens
 * excludes. */
llmc_status sampler_open(int32_t vocab, const llmc_params *p, const int32_t *eos, int32_t n_eos,
                         llmc_sampler **out, llmc_error *err);
llmc_status sampler_sample(llmc_sampler *s, const SampleScratch *m, const float *logits,
                           int32_t *id, llmc_error *err);
/* Check ranges and, with a vocabulary, token ids. */
llmc_status sampler_check_options(const llmc_params *p,
                                  llmc_error *err); /* sampler_options.c: numbers in range */
llmc_status sampler_check(const llmc_params *p, int32_t vocab, llmc_error *err);
/* Copy the caller's struct of any size to the library's. */
llmc_params sampler_params(const llmc_params *p);
/* Count a token that the device or the caller sampled: skip one random number. */
void sampler_advance(llmc_sampler *s);
/* Is the grammar complete with nothing to follow? The output ends here. */
bool sampler_at_end(const llmc_sampler *s);
/* Compute the mask of tokens that the grammar allows next: one bit per token, (vocab + 31) / 32
 * words, owned by the sampler and valid until it accepts a token. *bits NULL: every token. The mask
 * is kept until then, so a call before sampling saves time there. Any thread, but the sampler must
 * not be used meanwhile. E_CHECK: no token is allowed. */
llmc_status sampler_mask(llmc_sampler *s, const uint32_t **bits, llmc_error *err);
/* sampler_has_grammar: does it have a grammar? sampler_mask_is_slow: does its next mask take more
 * than a copy? */
bool sampler_has_grammar(const llmc_sampler *s);
bool sampler_mask_is_slow(const llmc_sampler *s);
/* Is id one of its stop_tokens? */
bool sampler_stops_at(const llmc_sampler *s, int32_t id);

/* Return the log probability of id, and fill top with the n_top most likely tokens of
 * softmax(logits), in descending order; ties go to the lower id. */
float sample_logprobs(const float *logits, int32_t vocab, int32_t id, llmc_logprob *top,
                      int32_t n_top);

/* softmax.c */
/* Index of the largest value, the first of ties. E_CHECK: NaN, or nothing above -inf. */
llmc_status sample_largest(const float *v, int32_t n, int32_t *at, llmc_error *err);
/* The same over values whose bit is set; v holds no NaN. */
llmc_status sample_largest_of(const float *v, int32_t n, const uint32_t *bits, int32_t *at,
                              llmc_error *err);
/* v[i] = exp(v[i] / temperature - max); returns the sum */
double sample_weights(float *v, int32_t n, float temperature, float max);

/* sample_token.c: m->work holds logits, `best` is the index of the largest; at in [0, 1) */
int32_t sample_draw(const SampleScratch *m, const llmc_params *p, int32_t best, double at);

/* watermark.c: add `gain` to the half of the logits that token `last` selects, as torch's generator
 * shuffles them */
void sample_watermark(float *v, int32_t n, int32_t last, float gain, int32_t *order);

#endif

/* Sampling, internal to the library. Logit processors run in this order, that of transformers and
 * of TGI:
 *
 *   grammar, logit_bias, watermark, repetition, frequency and presence penalty, DRY, bad words,
 *   min_tokens, top_n_sigma, temperature, top_k, top_p, min_p, typical_p
 *
 * XTC and a dynamic temperature are defined on probabilities before temperature, as in llama.cpp.
 * If either is used, XTC and then temperature run last. Mirostat replaces top_n_sigma and
 * everything after temperature. A request may set its own order (`samplers`; filters.c) for
 * all processors except grammar, logit_bias, watermark, bad words and min_tokens.
 *
 * The n-th token of a sampler uses only the random number that belongs to (seed, n), so it can be
 * reproduced on any machine. */
#ifndef LLMC_RUNTIME_SAMPLE_SAMPLER_H
#define LLMC_RUNTIME_SAMPLE_SAMPLER_H

#include "base/error.h"
#include "runtime/sample/candidates.h"

llmc_status sample_scratch_open(int32_t vocab, SampleScratch *out, llmc_error *err);
void sample_scratch_release(SampleScratch *s);

/* Like llmc_sampler_open, without scratch memory; copies params. eos: tokens that min_tokens
 * excludes. */
llmc_status sampler_open(int32_t vocab, const llmc_params *p, const int32_t *eos, int32_t n_eos,
                         llmc_sampler **out, llmc_error *err);
llmc_status sampler_sample(llmc_sampler *s, const SampleScratch *m, const float *logits,
                           int32_t *id, llmc_error *err);
/* Token sequences that end a repetition for DRY, shared by samplers. dry_breakers_open converts
 * strings to tokens; strings NULL: the default breakers. */
typedef struct DryBreakers DryBreakers;
llmc_status dry_breakers_open(const llmc_tokenizer *t, const char *const *strings,
                              DryBreakers **out, llmc_error *err);
/* Make breakers from token sequences, for vocabularies without strings. */
llmc_status dry_breakers_of(int32_t vocab, const llmc_sequence *seq, int32_t n, DryBreakers **out,
                            llmc_error *err);
DryBreakers *dry_breakers_ref(DryBreakers *b);
void dry_breakers_close(DryBreakers *b); /* NULL is allowed */
/* Does the sampler use breakers? They must outlive it. */
bool sampler_uses_breakers(const llmc_params *p);
void sampler_set_breakers(llmc_sampler *s, const DryBreakers *b);
/* thinking.c: limit of the reasoning. thinking_forced: token that must come next; -1: any. */
typedef struct Thinking Thinking;
llmc_status thinking_open(const llmc_tokenizer *t, int32_t vocab, const char *const *marks,
                          int32_t budget, Thinking **out, llmc_error *err);
void thinking_close(Thinking *k); /* NULL is allowed */
void thinking_reset(Thinking *k);
int32_t thinking_forced(const Thinking *k);
void thinking_accept(Thinking *k, int32_t id);
/* Limit the reasoning as the parameters specify; no limit without them. */
llmc_status sampler_limit_thinking(llmc_sampler *s, const llmc_tokenizer *t, const llmc_params *p,
                                   llmc_error *err);
/* sampler_options.c: the field of an option; does it have an effect by itself? */
double sampler_option_value(const llmc_option *o, const llmc_params *p);
bool sampler_option_acts(const llmc_option *o, const llmc_params *p);
bool sampler_has_penalties(const llmc_params *p);
/* Check the ranges of parameters (sampler_options.c); sampler_check also checks token ids against a
 * vocabulary. */
llmc_status sampler_check_options(const llmc_params *p, llmc_error *err);
llmc_status sampler_check(const llmc_params *p, int32_t vocab, llmc_error *err);
/* Copy the caller's struct of any size to the library's. */
llmc_params sampler_params(const llmc_params *p);
/* Count a token that the device or the caller sampled: skip one random number. */
void sampler_advance(llmc_sampler *s);
/* Is the grammar complete, and allows no further token? Then the output ends here. */
bool sampler_at_end(const llmc_sampler *s);
/* Compute the mask of tokens that the grammar, or the limit of the reasoning, allows next: one bit
 * per token, (vocab + 31) / 32 words, owned by the sampler and valid until it accepts a token.
 * *bits NULL: every token. Sampling uses the same mask, so a call in advance saves time there. Call
 * it from any thread, while no other thread uses the sampler. E_CHECK: no token is allowed. */
llmc_status sampler_mask(llmc_sampler *s, const uint32_t **bits, llmc_error *err);
/* sampler_has_grammar: does the sampler have masks? sampler_mask_is_slow: does the next mask take
 * longer than a copy? */
bool sampler_has_grammar(const llmc_sampler *s);
bool sampler_mask_is_slow(const llmc_sampler *s);
/* Is id one of the sampler's stop_tokens? */
bool sampler_stops_at(const llmc_sampler *s, int32_t id);

/* Return the log probability of id, and fill top with the n_top most likely tokens of
 * softmax(logits), in descending order; ties go to the lower id. */
float sample_logprobs(const float *logits, int32_t vocab, int32_t id, llmc_logprob *top,
                      int32_t n_top);
/* Number of tokens whose logit is at least that of id. */
int32_t sample_rank(const float *logits, int32_t vocab, int32_t id);
/* Write the log probabilities of the tokens id [n] to out [n]. Returns n. */
int32_t sample_logprobs_of(const float *logits, int32_t vocab, const int32_t *id, int32_t n,
                           llmc_logprob *out);

/* softmax.c */
/* Find the index of the largest value, the first of ties. E_CHECK: a value is NaN, or all are
 * -inf. */
llmc_status sample_largest(const float *v, int32_t n, int32_t *at, llmc_error *err);
/* Like sample_largest, over the values whose bit is set; v must hold no NaN. */
llmc_status sample_largest_of(const float *v, int32_t n, const uint32_t *bits, int32_t *at,
                              llmc_error *err);
/* v[i] = exp(v[i] / temperature - max); returns the sum */
double sample_weights(float *v, int32_t n, float temperature, float max);

/* filters.c: m->work holds logits, `best` is the index of the largest */
typedef struct SampleRandom {
	double at, chance; /* in [0, 1): selects the token; decides whether XTC applies */
} SampleRandom;
bool sample_has_xtc(const llmc_params *p);
int32_t sample_draw(const SampleScratch *m, const llmc_params *p, int32_t best, SampleRandom r);

/* An order of samplers. sampler_order converts names separated by ';', or letters, to
 * letters. sampler_has_order: do these parameters use sample_chain? sampler_order_of: the letters
 * of its order */
llmc_status sampler_order(const char *text, char out[LLMC_MAX_SAMPLERS + 1], llmc_error *err);
bool sampler_has_order(const llmc_params *p);
llmc_status sampler_order_of(const llmc_params *p, char out[LLMC_MAX_SAMPLERS + 1],
                             llmc_error *err);
/* Sample from m->work by the samplers whose letters are in `order`; -1: no token is left. */
typedef struct ChainOwner { /* samplers that depend on the tokens so far */
	llmc_sampler *sampler;
	void (*penalise)(llmc_sampler *s, const SampleScratch *m);
	void (*dry)(llmc_sampler *s, const SampleScratch *m);
	bool (*is_end)(const llmc_sampler *s, int32_t id); /* does the token end the text? */
	int32_t end;               /* a token that ends the text and is allowed next; -1: none */
	const llmc_tokenizer *tok; /* NULL: tokens have no text */
} ChainOwner;
int32_t sample_chain(const SampleScratch *m, const llmc_params *p, const char *order,
                     const ChainOwner *own, SampleRandom r);

/* Mirostat; *mu is its state, updated by the token. It begins at twice sample_mirostat_tau. */
float sample_mirostat_tau(const llmc_params *p);
int32_t sample_mirostat(const SampleScratch *m, const llmc_params *p, int32_t best, double at,
                        double *mu);

/* Infill: of the candidates m->cand [n] with their weights, keep end tokens, or the tokens of which
 * the model is sure. False: out of memory. */
bool sample_infill(const SampleScratch *m, const ChainOwner *own, int32_t n);
/* Set the tokenizer that sample_infill uses; it must outlive the sampler. */
void sampler_set_tokenizer(llmc_sampler *s, const llmc_tokenizer *t);

/* dry.c: penalise tokens that continue a repetition. hist [n]: all tokens, the newest last; count
 * [n] is scratch memory. m->work holds logits; the candidates are scratch memory. breakers may be
 * NULL. */
void sample_dry(const SampleScratch *m, const llmc_params *p, const int32_t *hist, int32_t n,
                const DryBreakers *breakers, int32_t *count);

/* watermark.c: add `gain` to half of the logits. Token `last` seeds torch's generator, whose
 * shuffle selects them */
void sample_watermark(float *v, int32_t n, int32_t last, float gain, int32_t *order);

#endif

/* The tokens of one request computed without the engine: prefill in one sequence, then one
 * llmc_forward per token and a sampler on the host. The oracle of the engine's tests. */
#ifndef LLMC_TESTS_ALONE_H
#define LLMC_TESTS_ALONE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "api/api.h"
#include "runtime/sample/sampler.h"

static inline bool
alone_is_eos(const Plan *plan, int32_t id)
{
	for (int i = 0; i < plan->n_eos; i++)
		if (plan->eos[i] == id)
			return true;
	return false;
}

/* Returns the number of new tokens in out [max_tokens], without the token that ends the output. */
static inline int32_t
alone_generate(llmc_session *s, const int32_t *prompt, int32_t n_prompt, const llmc_params *p,
               int32_t *out, llmc_finish *finish)
{
	const Plan *plan = s->model->plan;
	const llmc_limits *lim = session_limits_of(s->s);
	const int32_t room = lim->context - n_prompt + 1,
	              most = p->max_tokens < room ? p->max_tokens : room;
	float *logits = calloc((size_t)plan->vocab, sizeof *logits);
	int32_t n = 0, id = -1;
	llmc_sampler *sampler;
	SampleScratch scratch;
	llmc_error err;
	llmc_seq q;

	assert_non_null(logits);
	assert_int_equal(sample_scratch_open((int32_t)plan->vocab, &scratch, &err), LLMC_OK);
	assert_int_equal(
	    sampler_open((int32_t)plan->vocab, p, plan->eos, plan->n_eos, &sampler, &err), LLMC_OK);
	assert_int_equal(llmc_seq_new(s, n_prompt + most - 1, &q, &err), LLMC_OK);
	for (int32_t at = 0, rows; at < n_prompt; at += rows) {
		rows = n_prompt - at < lim->chunk ? n_prompt - at : lim->chunk;
		llmc_chunk c = {
			.seq = q, .tok = prompt + at, .n_tok = rows, .n_out = at + rows == n_prompt
		};
		assert_int_equal(llmc_forward(s, &c, 1, c.n_out ? logits : NULL, &err), LLMC_OK);
	}
	for (int32_t i = 0; i < n_prompt; i++)
		llmc_sampler_accept(sampler, prompt[i], true);
	for (*finish = LLMC_FINISH_LENGTH; n < most;) {
		assert_int_equal(sampler_sample(sampler, &scratch, logits, &id, &err), LLMC_OK);
		*finish = !p->ignore_eos && alone_is_eos(plan, id) ? LLMC_FINISH_EOS
		          : sampler_stops_at(sampler, id)          ? LLMC_FINISH_TOKEN
		                                                   : LLMC_FINISH_LENGTH;
		if (*finish != LLMC_FINISH_LENGTH)
			break;
		llmc_sampler_accept(sampler, id, false);
		out[n++] = id;
		if (sampler_at_end(sampler)) {
			*finish = LLMC_FINISH_EOS;
			break;
		}
		llmc_chunk c = { .seq = q, .tok = &id, .n_tok = 1, .n_out = 1 };
		if (n < most)
			assert_int_equal(llmc_forward(s, &c, 1, logits, &err), LLMC_OK);
	}
	llmc_seq_free(s, q);
	llmc_sampler_close(sampler);
	sample_scratch_release(&scratch);
	free(logits);
	return n;
}

#endif

/* A whole request for tests of the CUDA runtime: open a model, generate, close it. */
#ifndef TESTS_UNIT_CUDA_WHOLE_H
#define TESTS_UNIT_CUDA_WHOLE_H

#include "tests/unit/cuda_util.h"

enum { PROMPT = 5, NEW = 6 };
static const int32_t prompt[PROMPT] = { 1, 2, 3, 4, 5 };

static inline bool
keep_id(void *user, int32_t id, const char *text, size_t n)
{
	int32_t **at = user;

	(void)text, (void)n;
	*(*at)++ = id;
	return true;
}

/* Generate n_new tokens in a session of the model; ids in out */
static inline llmc_status
greedy(llmc_model *m, int n_new, int32_t *out, llmc_error *err)
{
	llmc_session *s = NULL;
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_params p = LLMC_INIT(llmc_params);

	l.context = 128;
	l.chunk = 16;
	p.max_tokens = n_new;
	p.ignore_eos = true;
	llmc_status status = llmc_session_open(m, &l, &s, err);
	if (status == LLMC_OK)
		status = llmc_generate(s, prompt, PROMPT, &p, keep_id, &out, NULL, err);
	llmc_session_close(s);
	return status;
}

/* Open, generate, close. arch: architecture to compile for; NULL: the device's own */
static inline llmc_status
whole(const char *device, const char *arch, int n_new, int32_t *out, llmc_error *err)
{
	llmc_model *m = NULL;
	llmc_status status = open_tiny(device, arch, &m, err);

	if (status == LLMC_OK)
		status = greedy(m, n_new, out, err);
	llmc_close(m);
	return status;
}

#endif

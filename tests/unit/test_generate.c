/* llmc_generate on a tiny model: it gives the tokens of plain forwards and a sampler, next to other
 * sequences of the session and after a cancellation. If those sequences leave too few pages, there
 * is an error. A grammar may have fewer tokens than the model. */
#include <string.h>

#include "tests/unit/alone.h"
#include "tests/unit/tiny_grammar.h"

enum { CONTEXT = 128, N_PROMPT = 40, N_NEW = 24 };

static llmc_model *model;
static int32_t prompt[CONTEXT];

typedef struct Output {
	int32_t id[CONTEXT];
	int32_t n, most;
} Output;

static bool
on_token(void *user, int32_t id, const char *text, size_t n_bytes)
{
	Output *h = user;

	(void)text;
	(void)n_bytes;
	h->id[h->n++] = id;
	return h->n < h->most;
}

static int
open_model(void **state)
{
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_error err;

	(void)state;
	o.random_weights = true;
	o.n_threads = 1;
	for (int32_t i = 0; i < CONTEXT; i++)
		prompt[i] = 3 + i * 7 % 290;
	return llmc_open("configs/tiny.yaml", &o, &model, &err) != LLMC_OK;
}

static int
close_model(void **state)
{
	(void)state;
	llmc_close(model);
	return 0;
}

static llmc_session *
session_with(int64_t kv_tokens)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_session *s;
	llmc_error err;

	l.context = CONTEXT;
	l.seqs = 2;
	l.kv_tokens = kv_tokens;
	l.n_threads = 1;
	if (llmc_session_open(model, &l, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return s;
}

static llmc_params
greedy(void)
{
	llmc_params p = LLMC_INIT(llmc_params);

	p.max_tokens = N_NEW;
	p.ignore_eos = true;
	return p;
}

/* Add another sequence of n positions to the session. */
static llmc_seq
occupy(llmc_session *s, int32_t n)
{
	llmc_error err;
	llmc_seq q;

	assert_int_equal(llmc_seq_new(s, 0, &q, &err), LLMC_OK);
	llmc_chunk c = { .seq = q, .tok = prompt, .n_tok = n };
	assert_int_equal(llmc_forward(s, &c, 1, NULL, &err), LLMC_OK);
	return q;
}

static void
tokens_equal_those_of_plain_forwards(void **state)
{
	llmc_session *s = session_with(2 * CONTEXT);
	llmc_result res = LLMC_INIT(llmc_result);
	llmc_params p = greedy();
	int32_t want[N_NEW];
	llmc_finish finish;
	llmc_error err;

	(void)state;
	assert_int_equal(alone_generate(s, prompt, N_PROMPT, &p, want, &finish), N_NEW);
	llmc_seq other = occupy(s, 33);
	for (int i = 0; i < 2; i++) { /* the second request uses draft statistics of the first */
		Output h = { .most = CONTEXT };
		assert_int_equal(llmc_generate(s, prompt, N_PROMPT, &p, on_token, &h, &res, &err),
		                 LLMC_OK);
		assert_int_equal(h.n, N_NEW);
		assert_memory_equal(h.id, want, sizeof want);
		assert_int_equal(res.finish, LLMC_FINISH_LENGTH);
		assert_int_equal(res.n_prompt, N_PROMPT);
		assert_int_equal(res.n_new, N_NEW);
	}
	assert_int_equal(llmc_seq_len(s, other), 33);
	llmc_session_close(s);
}

static void
cancelled_requests_count_their_tokens(void **state)
{
	llmc_session *s = session_with(CONTEXT);
	llmc_params p = greedy();
	llmc_error err;

	(void)state;
	for (int32_t most = 1; most <= N_NEW; most += 5) {
		llmc_result res = LLMC_INIT(llmc_result);
		llmc_stats st = LLMC_INIT(llmc_stats);
		Output h = { .most = most };
		assert_int_equal(llmc_generate(s, prompt, N_PROMPT, &p, on_token, &h, &res, &err),
		                 LLMC_OK);
		assert_int_equal(h.n, most);
		assert_int_equal(res.n_new, most);
		assert_int_equal(res.finish, LLMC_FINISH_CANCEL);
		llmc_session_stats(s, &st);
		assert_int_equal(st.kv_pages_used, 0);
	}
	llmc_session_close(s);
}

static void
other_sequences_leave_too_few_pages(void **state)
{
	llmc_session *s = session_with(CONTEXT);
	llmc_params p = greedy();
	Output h = { .most = CONTEXT };
	llmc_error err;

	(void)state;
	llmc_seq other = occupy(s, CONTEXT -
	                               /* two pages are free, which is enough for the prompt but not
	                                * for the output */
	                               2 * LLMC_KV_PAGE);
	p.max_tokens = 2 * LLMC_KV_PAGE;
	assert_int_equal(llmc_generate(s, prompt, N_PROMPT, &p, on_token, &h, NULL, &err),
	                 LLMC_E_FULL);
	assert_non_null(strstr(err.text, "other sequences"));
	llmc_seq_free(s, other);
	h.n = 0;
	assert_int_equal(llmc_generate(s, prompt, N_PROMPT, &p, on_token, &h, NULL, &err), LLMC_OK);
	assert_int_equal(h.n, p.max_tokens);
	llmc_session_close(s);
}

/* A model without a tokenizer whose vocabulary is padded, as models are: 280 tokens of 300. */
static void
grammars_may_lack_the_padding_of_a_vocabulary(void **state)
{
	llmc_session *s = session_with(0);
	llmc_params p = greedy();
	Output h = { .most = CONTEXT };
	llmc_error err;

	(void)state;
	p.ignore_eos = false;
	p.grammar = tiny_grammar_of(280, "d0d0e9");
	assert_int_equal(llmc_generate(s, prompt, N_PROMPT, &p, on_token, &h, NULL, &err), LLMC_OK);
	assert_true(h.n >= 3 && h.id[1] == 3 && h.id[2] == 'e' - 'a' + 9 * 26);
	grammar_close(p.grammar);
	p.grammar = tiny_grammar_of(256, "d0"); /* the number of tokens of a grammar over bytes */
	assert_int_equal(llmc_generate(s, prompt, N_PROMPT, &p, on_token, &h, NULL, &err),
	                 LLMC_E_INPUT);
	grammar_close(p.grammar);
	llmc_session_close(s);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tokens_equal_those_of_plain_forwards),
		cmocka_unit_test(cancelled_requests_count_their_tokens),
		cmocka_unit_test(other_sequences_leave_too_few_pages),
		cmocka_unit_test(grammars_may_lack_the_padding_of_a_vocabulary),
	};

	return cmocka_run_group_tests(tests, open_model, close_model);
}

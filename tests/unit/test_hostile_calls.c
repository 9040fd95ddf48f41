/* Hostile arguments at each function of llmc.h: counts, ids, sizes and numbers out of range, empty
 * and missing buffers, structs of other versions, calls after the end of an engine, and threads
 * that do all of this at once. A bad argument is an error with a sentence, and changes nothing: the
 * model generates the same tokens at the end. Pointers that the contract requires are valid here.
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "include/llmc.h"
#include "tests/unit/tempdir.h"
#include "tests/unit/waiting.h"

enum { VOCAB = 300, NEW = 4, BIG = INT32_MAX };

static const char vocabulary[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":"
    "\"BPE\",\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"\\u0120\":3},\"merges\":[]},"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
    "\"decoder\":{\"type\":\"ByteLevel\"}}";
static const int32_t odd[] = { -1, INT32_MIN, BIG, BIG - 1, VOCAB, 1 << 30, -2 };
enum { ODD = sizeof odd / sizeof *odd };

static llmc_model *model;
static llmc_tokenizer *tokenizer;
static Tempdir dir;
static char tokenizer_file[300], deep_tower[300];
static int32_t greedy_tokens[NEW];

/* Checks print and count, because cmocka's assertions may not be used on other threads. */
static atomic_int n_wrong;

static void
must(bool holds, const llmc_error *e, llmc_status s, const char *call, int line)
{
	if (holds)
		return;
	fprintf(stderr, "%s:%d: %s: status %d, \"%s\"\n", __FILE__, line, call, (int)s,
	        e ? e->text : "");
	atomic_fetch_add(&n_wrong, 1);
}

#define MUST(x) must((x), NULL, LLMC_OK, #x, __LINE__)

/* Checks that a call with a bad argument is an error, with and without err */
#define REFUSED(call)                                                                              \
	do {                                                                                       \
		llmc_error e_ = { 0 }, *err = &e_;                                                 \
		llmc_status s_ = (call);                                                           \
		must(s_ != LLMC_OK && e_.code == s_ && strlen(e_.text) >= 10, &e_, s_, #call,      \
		     __LINE__);                                                                    \
		err = NULL;                                                                        \
		s_ = (call);                                                                       \
		MUST(s_ != LLMC_OK);                                                               \
	} while (0)
/* Checks that a call does not crash; any result is right */
#define RUNS(call)                                                                                 \
	do {                                                                                       \
		llmc_error e_ = { 0 }, *err = &e_;                                                 \
		llmc_status s_ = (call);                                                           \
		must(s_ == LLMC_OK || (e_.code == s_ && e_.text[0]), &e_, s_, #call, __LINE__);    \
	} while (0)
#define WORKS(call)                                                                                \
	do {                                                                                       \
		llmc_error e_ = { 0 }, *err = &e_;                                                 \
		llmc_status s_ = (call);                                                           \
		must(s_ == LLMC_OK, &e_, s_, #call, __LINE__);                                     \
	} while (0)

static bool
keep_id(void *user, int32_t id, const char *text, size_t n)
{
	int32_t **at = user;

	(void)text, (void)n;
	*(*at)++ = id;
	return true;
}

static bool
stop_at_once(void *user, int32_t id, const char *text, size_t n)
{
	(void)user, (void)id, (void)text, (void)n;
	return false;
}

static llmc_session *
open_session(void)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_session *s = NULL;

	l.context = 64;
	l.seqs = 2;
	l.chunk = 16;
	WORKS(llmc_session_open(model, &l, &s, err));
	return s;
}

static void
still_generates(void)
{
	static const int32_t tok[] = { 1, 2, 3 };
	llmc_params p = LLMC_INIT(llmc_params);
	int32_t got[NEW + 1] = { 0 }, *at = got;
	llmc_session *s = open_session();

	p.max_tokens = NEW;
	p.ignore_eos = true;
	WORKS(llmc_generate(s, tok, 3, &p, keep_id, &at, NULL, err));
	llmc_session_close(s);
	if (!greedy_tokens[0] && !greedy_tokens[1])
		memcpy(greedy_tokens, got, sizeof greedy_tokens);
	MUST(memcmp(got, greedy_tokens, sizeof greedy_tokens) == 0);
}

/* ---- one function per group of the header ---- */

static void
names(void)
{
	for (int i = 0; i < ODD; i++) {
		MUST(llmc_status_name((llmc_status)odd[i]) &&
		     llmc_status_text((llmc_status)odd[i]));
		MUST(llmc_finish_name((llmc_finish)odd[i]));
	}
	llmc_gpu g = LLMC_INIT(llmc_gpu);
	for (int i = 0; i < ODD; i++)
		MUST(!llmc_gpu_at(odd[i], &g));
	REFUSED(llmc_gpu_find("", &g, err));
	REFUSED(llmc_gpu_find("no such GPU", &g, err));
	MUST(!llmc_is_model_name(""));
	char buf[4];
	size_t need = 0;
	REFUSED(llmc_pull("", NULL, buf, sizeof buf, &need, err));
	REFUSED(llmc_pull("hf:../..", NULL, buf, sizeof buf, &need, err));
	REFUSED(llmc_pulled_remove("hf:../../x", NULL, err));
	REFUSED(llmc_pulled_remove("", NULL, err));
	void *data = NULL;
	size_t n = 0;
	REFUSED(llmc_fetch("", NULL, &data, &n, err));
	REFUSED(llmc_fetch("file:///etc/passwd", NULL, &data, &n, err));
}

static void
opening(void)
{
	static const char *const devices[] = { "",       "cuda:",     "cuda:-1", "cuda:99999999999",
		                               "cuda:,", "cuda:0,0,", "gpu",     "cpu " };
	static const char *const sets[] = { "",         "=",         "x",
		                            "=1",       "hidden=-1", "hidden=99999999999999999999",
		                            "a.b.c.d=1" };
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_model *m = NULL;

	o.no_weights = true;
	REFUSED(llmc_open("", &o, &m, err));
	REFUSED(llmc_open("/nonexistent", NULL, &m, err));
	REFUSED(llmc_open("/dev/null", NULL, &m, err));
	REFUSED(llmc_open("/", NULL, &m, err));
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
		o.device = devices[i];
		REFUSED(llmc_open("configs/tiny.yaml", &o, &m, err));
		MUST(!m);
	}
	o.device = NULL;
	for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
		const char *set[] = { sets[i], NULL };
		o.set = set;
		REFUSED(llmc_open("configs/tiny.yaml", &o, &m, err));
	}
	o.set = NULL;
	o.arch = "no such arch";
	REFUSED(llmc_open("configs/tiny.yaml", &o, &m, err));
	o.arch = NULL;
	o.tower = true;
	RUNS(llmc_open("configs/tiny.yaml", &o, &m, err)); /* a description names its part */
	llmc_close(m);
	o.tower = false;
	o.size = SIZE_MAX; /* a later version */
	WORKS(llmc_open("configs/tiny.yaml", &o, &m, err));
	llmc_session *s = NULL;
	llmc_engine *e = NULL;
	REFUSED(llmc_session_open(m, NULL, &s, err));
	REFUSED(llmc_engine_open(m, NULL, &e, err));
	REFUSED(llmc_follow(m, err));
	llmc_retain(m);
	llmc_close(m);
	llmc_close(m);
	llmc_close(NULL);
	llmc_free(NULL);
	llmc_tokenizer *t = NULL;
	REFUSED(llmc_tokenizer_open("", &t, err));
	REFUSED(llmc_tokenizer_open("/dev/null", &t, err));
	llmc_tokenizer_close(NULL);
	char *text = NULL;
	REFUSED(llmc_import("/nonexistent", NULL, &text, err));
	REFUSED(llmc_compile("/nonexistent", dir.path, NULL, err));
	llmc_quantize_result q = LLMC_INIT(llmc_quantize_result);
	REFUSED(llmc_quantize("/nonexistent", "/nonexistent/out.gguf", NULL, &q, err));
}

static void
limits(void)
{
	static const int32_t bad[] = { -1, INT32_MIN, BIG };
	llmc_session *s = NULL;
	llmc_engine *e = NULL;
	llmc_memory mem = LLMC_INIT(llmc_memory);
	llmc_rank_info rank = LLMC_INIT(llmc_rank_info);
	llmc_fitted fit = LLMC_INIT(llmc_fitted);
	int32_t seqs;

	for (size_t field = 0; field < 9; field++)
		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
			llmc_limits l = LLMC_INIT(llmc_limits);
			int32_t *const f[] = { &l.context,   &l.seqs,      &l.chunk, &l.n_out,
				               &l.n_threads, &l.snapshots, &l.marks };
			if (field < 7)
				*f[field] = bad[i];
			else
				*(field == 7 ? &l.kv_tokens : &l.host_tokens) =
				    bad[i] == BIG ? INT64_MAX : bad[i];
			llmc_engine_options o = LLMC_INIT(llmc_engine_options);
			o.limits = &l;
			s = NULL;
			e = NULL;
			RUNS(llmc_session_open(model, &l, &s, err));
			llmc_session_close(s);
			RUNS(llmc_engine_open(model, &o, &e, err));
			llmc_engine_close(e, 0);
			RUNS(llmc_memory_for(model, &l, &mem, err));
			RUNS(llmc_fit(model, INT64_MAX, &l, &seqs, err));
			RUNS(llmc_fit(model, INT64_MIN, &l, &seqs, err));
			RUNS(llmc_fit_limits(model, &l, INT64_MAX, &fit, err));
			RUNS(llmc_fit_limits(model, &l, -1, &fit, err));
			RUNS(llmc_rank_for(model, 0, &l, &rank, err));
		}
	for (int i = 0; i < ODD; i++)
		REFUSED(llmc_rank_for(model, odd[i], NULL, &rank, err));
	for (size_t size = 0; size <= 8; size += 8) {
		llmc_limits l = { .size = size };
		RUNS(llmc_session_open(model, &l, &s, err));
		llmc_session_close(s);
	}
}

static void
sequences(void)
{
	static const int32_t tok[20] = { 1, 2, 3 };
	static float logits[20 * VOCAB];
	static char saved[1 << 18];
	llmc_session *s = open_session();
	llmc_seq q, r;
	size_t need = 0;
	int32_t ids[4];

	WORKS(llmc_seq_new(s, 0, &q, err));
	for (int i = 0; i < ODD; i++) {
		RUNS(llmc_seq_new(s, odd[i], &r, err));
		REFUSED(llmc_seq_fork(s, odd[i], &r, err));
		REFUSED(llmc_seq_trim(s, odd[i], 0, err));
		REFUSED(llmc_seq_trim(s, q, odd[i], err));
		REFUSED(llmc_seq_mark(s, odd[i], err));
		REFUSED(llmc_seq_save(s, odd[i], saved, sizeof saved, &need, err));
		REFUSED(llmc_seq_adapt(s, odd[i], 0, err));
		REFUSED(llmc_seq_adapt(s, q, odd[i], err));
		llmc_seq_unmark(s, odd[i]);
		MUST(llmc_seq_len(s, odd[i]) == -1);
		llmc_seq_free(s, odd[i]);
		llmc_params p = LLMC_INIT(llmc_params);
		REFUSED(llmc_sample_params(s, odd[i], &p, tok, 3, err));
		for (int k = 0; k < 4; k++) {
			llmc_chunk c = { .seq = q, .tok = tok, .n_tok = 1, .n_out = 1 };
			int32_t bad_tok[1] = { odd[i] };
			if (k == 0)
				c.seq = odd[i];
			else if (k == 1)
				c.n_tok = odd[i];
			else if (k == 2)
				c.n_out = odd[i];
			else
				c.tok = bad_tok;
			REFUSED(llmc_forward(s, &c, 1, logits, err));
			REFUSED(llmc_queue_step(s, &c, 1, err));
			REFUSED(llmc_forward_rows(s, &c, 1, NULL, logits, NULL, err));
			llmc_image_rows rows = { .row = logits };
			REFUSED(llmc_forward_images(s, &c, 1, &rows, logits, err));
		}
	}
	llmc_chunk c = { .seq = q, .tok = tok, .n_tok = 2, .n_out = 1 }, many[40];
	for (int i = 0; i < 40; i++)
		many[i] = c;
	REFUSED(llmc_forward(s, many, 40, logits, err)); /* one sequence twice */
	REFUSED(llmc_forward(s, NULL, 1, logits, err));
	REFUSED(llmc_forward(s, &c, 0, logits, err));
	c.tok = NULL;
	REFUSED(llmc_forward(s, &c, 1, logits, err));
	c.tok = tok;
	c.n_tok = 20; /* above the chunk */
	REFUSED(llmc_forward(s, &c, 1, logits, err));
	REFUSED(llmc_op_times(s, NULL, NULL, err));
	REFUSED(llmc_take_sampled(s, ids, NULL, err));
	REFUSED(llmc_embed(s, tok, 3, LLMC_POOL_MEAN, true, logits, err));
	c.n_tok = 2;
	WORKS(llmc_forward(s, &c, 1, NULL, err)); /* logits may be NULL */
	REFUSED(llmc_seq_save(s, q, NULL, 0, &need, err));
	MUST(need && need <= sizeof saved);
	WORKS(llmc_seq_save(s, q, saved, sizeof saved, &need, err));
	for (size_t n = 0; n < need; n += n < 200 ? 1 : 997)
		REFUSED(llmc_seq_load(s, saved, n, &r, err));
	REFUSED(llmc_seq_load(s, NULL, 0, &r, err));
	llmc_stats stats = { .size = 16 };
	llmc_session_stats(s, &stats);
	llmc_session_close(s);
	llmc_session_close(NULL);
}

static void
generating(void)
{
	static const int32_t tok[] = { 1, 2, 3 };
	static const float bad[] = { NAN, INFINITY, -INFINITY, -1, 1e30f };
	llmc_session *s = open_session();
	llmc_sampler *sampler = NULL;
	llmc_result res = LLMC_INIT(llmc_result);
	size_t n_option;
	const llmc_option *option = llmc_sampling_options(&n_option);
	float logits[VOCAB] = { 0 };
	char order[LLMC_MAX_SAMPLERS + 1];
	int32_t id;

	for (size_t i = 0; i < n_option; i++)
		for (size_t k = 0; k < 5; k++) {
			llmc_params p = LLMC_INIT(llmc_params);
			p.max_tokens = 2;
			char *at = (char *)&p + option[i].offset;
			if (option[i].kind == LLMC_OPTION_FLOAT)
				memcpy(at, &bad[k], sizeof bad[k]);
			else if (option[i].kind == LLMC_OPTION_INT)
				memcpy(at, &odd[k], sizeof odd[k]);
			else
				break;
			RUNS(llmc_generate(s, tok, 3, &p, NULL, NULL, &res, err));
			sampler = NULL;
			RUNS(llmc_sampler_open(VOCAB, &p, &sampler, err));
			if (sampler)
				RUNS(llmc_sampler_sample(sampler, logits, &id, NULL, err));
			llmc_sampler_close(sampler);
		}
	for (int i = 0; i < ODD; i++) {
		const int32_t list[1] = { odd[i] };
		const llmc_bias bias = { odd[i], 1 }, nan = { 1, NAN };
		const llmc_sequence word = { list, 1 }, endless = { list, SIZE_MAX },
		                    none = { NULL, 1 };
		llmc_params p[9];
		for (int k = 0; k < 9; k++)
			p[k] = LLMC_INIT(llmc_params);
		p[0].n_stop_tokens = 1, p[0].stop_tokens = list;
		p[1].n_logit_bias = 1, p[1].logit_bias = &bias;
		p[2].n_logit_bias = 1, p[2].logit_bias = &nan;
		p[3].n_bad_words = 1, p[3].bad_words = &word;
		p[4].n_bad_words = 1, p[4].bad_words = &endless;
		p[5].n_bad_words = 1, p[5].bad_words = &none;
		p[6].n_allowed_tokens = 1, p[6].allowed_tokens = list;
		p[7].n_stop_tokens = odd[i]; /* no list */
		p[8].speculate = odd[i] == -1 ? -2 : odd[i];
		for (int k = 0; k < 9; k++) {
			REFUSED(llmc_generate(s, tok, 3, &p[k], NULL, NULL, NULL, err));
			REFUSED(llmc_sampler_open(VOCAB, &p[k], &sampler, err));
		}
		REFUSED(llmc_generate(s, list, 1, NULL, NULL, NULL, NULL, err));
		llmc_params q = LLMC_INIT(llmc_params);
		q.max_tokens = odd[i];
		RUNS(llmc_generate(s, tok, 3, &q, stop_at_once, NULL, &res, err));
		q.samplers = "top_k;;no such sampler";
		REFUSED(llmc_generate(s, tok, 3, &q, NULL, NULL, NULL, err));
		REFUSED(llmc_sampler_order(&q, order, sizeof order, NULL, err));
	}
	REFUSED(llmc_sampler_order(NULL, NULL, 0, NULL, err));
	WORKS(llmc_sampler_order(NULL, order, sizeof order, NULL, err));
	REFUSED(llmc_generate(s, tok, 0, NULL, NULL, NULL, NULL, err));
	REFUSED(llmc_generate(s, NULL, 0, NULL, NULL, NULL, NULL, err));
	REFUSED(llmc_generate(s, tok, SIZE_MAX, NULL, NULL, NULL, NULL, err));
	REFUSED(llmc_generate_text(s, "", NULL, NULL, NULL, NULL, err));
	REFUSED(llmc_sampler_open(0, NULL, &sampler, err));
	REFUSED(llmc_sampler_open(-1, NULL, &sampler, err));
	WORKS(llmc_sampler_open(VOCAB, NULL, &sampler, err));
	for (int i = 0; i < ODD; i++) {
		llmc_sampler_accept(sampler, odd[i], true);
		llmc_sampler_accept(sampler, odd[i], false);
	}
	for (int i = 0; i < VOCAB; i++)
		logits[i] = NAN;
	REFUSED(llmc_sampler_sample(sampler, logits, &id, NULL, err));
	llmc_sampler_reset(sampler);
	llmc_sampler_close(sampler);
	llmc_sampler_close(NULL);
	llmc_session_close(s);
}

static void
texts(void)
{
	const llmc_tokenizer *t = tokenizer;
	int32_t ids[8];
	char buf[64];
	size_t need = 0, n;
	const char *text;
	llmc_stream *stream = NULL;

	for (int i = 0; i < ODD; i++) {
		MUST(!llmc_token_text(t, odd[i]));
		REFUSED(llmc_token_bytes(t, odd[i], buf, sizeof buf, &need, err));
		(void)llmc_token_is_special(t, odd[i]);
		RUNS(llmc_tokenize(t, "ab", 2, odd[i], ids, 8, &need, err));
		RUNS(llmc_detokenize(t, &odd[i], 1, false, buf, sizeof buf, &need, err));
		WORKS(llmc_stream_open(t, true, &stream, err));
		RUNS(llmc_stream_feed(stream, odd[i], &text, &n, err));
		llmc_stream_close(stream);
	}
	llmc_stream_close(NULL);
	WORKS(llmc_tokenize(t, NULL, 0, 0, NULL, 0, &need, err));
	MUST(need == 0);
	REFUSED(llmc_tokenize(t, "abab", 4, 0, NULL, 0, &need, err));
	MUST(need == 4);
	RUNS(llmc_tokenize(t, "\xff\xfe\xc0\x80\0a", 6, 0, ids, 8, &need, err));
	REFUSED(llmc_detokenize(t, NULL, 0, true, NULL, 0, &need, err)); /* the NUL does not fit */
	MUST(need == 0);
	(void)llmc_tokenize_least(t, NULL, 0);
	RUNS(llmc_break_special(t, NULL, 0, NULL, 0, &need, err));
	REFUSED(llmc_break_special(t, "<s>a", 4, buf, 1, &need, err));
	static const char *const json[] = {
		"", "{", "[1]", "[{}]", "null", "[[[[", "{\"role\":1}"
	};
	for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
		REFUSED(llmc_chat(t, json[i], NULL, buf, sizeof buf, &need, err));
		RUNS(llmc_chat(t, "[]", json[i], buf, sizeof buf, &need, err));
		llmc_calls *c = NULL;
		RUNS(llmc_calls_open(t, "", 0, json[i], &c, err));
		llmc_calls_close(c);
	}
	llmc_calls *c = NULL;
	llmc_tokenizer *own = NULL;
	WORKS(llmc_tokenizer_open(tokenizer_file, &own, err));
	WORKS(llmc_calls_open(own, NULL, 0, NULL, &c, err));
	llmc_tokenizer_close(own); /* llmc.h: "the tokenizer may be closed before the parser" */
	for (int i = 0; i < ODD; i++)
		(void)llmc_calls_mark(c, (llmc_mark)odd[i]);
	RUNS(llmc_calls_feed(c, NULL, 0, true, NULL, NULL, err));
	REFUSED(llmc_calls_rules(c, "no such tool", -1, buf, sizeof buf, &need, err));
	llmc_calls_close(c);
	llmc_calls_close(NULL);
	llmc_fim fim = LLMC_INIT(llmc_fim);
	MUST(!llmc_fim_tokens(t, &fim));
}

static void
grammars(void)
{
	llmc_grammar *g = NULL;
	llmc_matcher *m = NULL;
	uint32_t bits[8] = { 0 };
	bool complete;
	size_t n;

	for (int i = 0; i < ODD; i++)
		REFUSED(
		    llmc_grammar_open(tokenizer, (llmc_grammar_kind)odd[i], "a", 1, NULL, &g, err));
	for (int kind = LLMC_GRAMMAR_JSON_SCHEMA; kind <= LLMC_GRAMMAR_LARK; kind++) {
		RUNS(llmc_grammar_open(tokenizer, (llmc_grammar_kind)kind, NULL, 0, NULL, &g, err));
		llmc_grammar_close(g);
		REFUSED(llmc_grammar_open(tokenizer, (llmc_grammar_kind)kind, "((((\0[", 6, NULL,
		                          &g, err));
	}
	llmc_tokenizer *own = NULL;
	WORKS(llmc_tokenizer_open(tokenizer_file, &own, err));
	WORKS(llmc_grammar_open(own, LLMC_GRAMMAR_REGEX, "(a|b)*", 6, NULL, &g, err));
	llmc_tokenizer_close(own);
	WORKS(llmc_matcher_open(g, &m, err));
	llmc_grammar_close(g); /* the matcher keeps the grammar */
	for (int i = 0; i < ODD; i++)
		REFUSED(llmc_matcher_accept(m, odd[i], err));
	RUNS(llmc_matcher_mask(m, NULL, 0, err));
	WORKS(llmc_matcher_mask(m, bits, 8, err));
	MUST(bits[1] == 0);
	(void)llmc_matcher_may_end(m), (void)llmc_matcher_ended(m);
	llmc_matcher_reset(m);
	llmc_matcher_close(m);
	llmc_matcher_close(NULL);
	WORKS(llmc_grammar_open(NULL, LLMC_GRAMMAR_REGEX, "a", 1, NULL, &g, err));
	WORKS(llmc_grammar_match(g, NULL, 0, &complete, &n, err));
	RUNS(llmc_grammar_match(g, "\0\xff", 2, &complete, &n, err));
	/* the tokens of this grammar are bytes, not the model's tokens */
	llmc_session *s = open_session();
	llmc_params p = LLMC_INIT(llmc_params);
	p.grammar = g;
	REFUSED(llmc_generate(s, &(int32_t){ 1 }, 1, &p, NULL, NULL, NULL, err));
	llmc_session_close(s);
	llmc_grammar_close(g);
	llmc_grammar_close(NULL);
}

static void
images(void)
{
	static const uint8_t pixel[4 * 4 * 4] = { 0 };
	llmc_image *im = NULL;
	llmc_image_processor *p = NULL;

	REFUSED(llmc_image_decode(NULL, 0, 0, &im, err));
	REFUSED(llmc_image_decode(pixel, sizeof pixel, 0, &im, err));
	REFUSED(llmc_image_decode("GIF89a", 6, INT64_MIN, &im, err));
	for (int i = 0; i < ODD; i++) {
		REFUSED(
		    llmc_image_from_pixels(pixel, odd[i] == VOCAB ? 0 : odd[i], 4, 3, 0, &im, err));
		REFUSED(
		    llmc_image_from_pixels(pixel, 4, odd[i] == VOCAB ? 0 : odd[i], 3, 0, &im, err));
		REFUSED(llmc_image_from_pixels(pixel, 4, 4, odd[i], 0, &im, err));
	}
	REFUSED(llmc_image_from_pixels(pixel, 4, 4, 3, 1, &im, err)); /* rows overlap */
	REFUSED(llmc_image_from_pixels(pixel, 4, 4, 3, SIZE_MAX, &im, err));
	llmc_image_close(NULL);
	REFUSED(llmc_image_processor_open("/nonexistent", &p, err));
	REFUSED(llmc_image_processor_open(dir.path, &p, err));
	llmc_image_processor_close(NULL);
	llmc_error e = { 0 };
	llmc_status deep = llmc_image_processor_open(deep_tower, &p, &e);
	must(deep == LLMC_E_INPUT && strstr(e.text, "cannot be read"), &e, deep, deep_tower,
	     __LINE__);
	llmc_tower *t = NULL;
	REFUSED(llmc_tower_open(model, NULL, &t, err));
	llmc_tower_close(NULL);
	llmc_tower_image_close(NULL);
}

static void
requests(void)
{
	static const int32_t tok[] = { 1, 2, 3 };
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_engine *e = NULL;
	llmc_event ev = LLMC_INIT(llmc_event);
	int64_t id = 0;

	for (int i = 0; i < ODD; i++) {
		llmc_engine_options bad[5];
		for (int k = 0; k < 5; k++)
			bad[k] = LLMC_INIT(llmc_engine_options);
		bad[0].max_concurrent_requests = odd[i];
		bad[1].max_batch_prefill_tokens = odd[i];
		bad[2].max_batch_total_tokens = odd[i];
		bad[3].waiting_served_ratio = i % 2 ? NAN : -1;
		bad[4].speculate = odd[i];
		for (int k = 0; k < 5; k++) {
			e = NULL;
			RUNS(llmc_engine_open(model, &bad[k], &e, err));
			llmc_engine_close(e, 0);
		}
	}
	l.context = 64;
	l.seqs = 2;
	o.limits = &l;
	WORKS(llmc_engine_open(model, &o, &e, err));
	for (int i = 0; i < ODD; i++) {
		const int32_t list[1] = { odd[i] };
		const float row[8] = { 0 };
		const llmc_image_part part = { .row = row, .n_row = odd[i] };
		llmc_request r[12];
		for (int k = 0; k < 12; k++)
			r[k] = (llmc_request){ .size = sizeof *r, .tok = tok, .n_tok = 3 };
		r[0].tok = list, r[0].n_tok = 1;
		r[1].n = odd[i];
		r[2].best_of = odd[i];
		r[3].n_top = odd[i];
		r[4].deadline_s = i % 2 ? NAN : -1;
		r[5].pool = (llmc_pool)odd[i];
		r[6].adapter = odd[i];
		r[7].n_pool_tok = odd[i], r[7].pool_tok = tok;
		r[8].n_pool_tok = 1, r[8].pool_tok = list;
		r[9].images = &part, r[9].n_images = 1;
		r[10].n_tok = SIZE_MAX;
		r[11].tok = NULL;
		for (int k = 0; k < 12; k++)
			REFUSED(llmc_submit(e, &r[k], &id, err));
		REFUSED(llmc_next(e, odd[i], 0, &ev, err));
		llmc_cancel(e, odd[i]);
		llmc_forget(e, odd[i]);
	}
	llmc_next(e, INT64_MIN, 0, &ev, NULL);
	llmc_cancel(e, INT64_MAX);
	llmc_request whole = LLMC_INIT(llmc_request);
	whole.tok = tok;
	whole.n_tok = 3;
	whole.deadline_s = 1e300;
	whole.n_first = SIZE_MAX;
	WORKS(llmc_submit(e, &whole, &id, err));
	llmc_cancel(e, id);
	llmc_cancel(e, id);
	REFUSED(llmc_engine_replace_weights(e, "/nonexistent", NULL, err));
	llmc_counts counts = { .size = 8 };
	llmc_engine_stats(e, &counts);
	RUNS(llmc_engine_drain(e, INT_MIN, err));
	REFUSED(llmc_submit(e, &whole, &id, err)); /* the engine is drained */
	llmc_event_release(&ev);
	llmc_event_release(&ev);
	llmc_engine_close(e, BIG);
	llmc_engine_close(NULL, 0);
}

static void
servers(void)
{
	llmc_engine *e = NULL;
	llmc_server *s = NULL;
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_engine_options eo = LLMC_INIT(llmc_engine_options);

	l.context = 64;
	eo.limits = &l;
	WORKS(llmc_engine_open(model, &eo, &e, err));
	for (int i = 0; i < ODD; i++) {
		llmc_serve_options o[8];
		for (int k = 0; k < 8; k++)
			o[k] = LLMC_INIT(llmc_serve_options);
		o[0].port = odd[i] == VOCAB ? 65536 : odd[i];
		o[1].max_input_length = odd[i];
		o[2].validation_workers = odd[i] == VOCAB ? -3 : odd[i];
		o[3].max_connections = odd[i];
		o[4].max_body_bytes = odd[i];
		o[5].header_timeout_s = i % 2 ? NAN : -1;
		o[6].request_timeout_s = i % 2 ? NAN : -1;
		o[7].max_images = odd[i];
		for (int k = 0; k < 8; k++) {
			s = NULL;
			RUNS(llmc_serve_open(model, e, &o[k], &s, err));
			if (s)
				llmc_serve_close(s);
		}
	}
	llmc_serve_options o = LLMC_INIT(llmc_serve_options);
	o.host = "0.0.0.0";
	REFUSED(llmc_serve_open(model, e, &o, &s, err));
	o.host = "no such host.invalid";
	REFUSED(llmc_serve_open(model, e, &o, &s, err));
	o.host = NULL;
	o.keys = "/nonexistent";
	REFUSED(llmc_serve_open(model, e, &o, &s, err));
	REFUSED(llmc_serve_open_models(NULL, 0, NULL, &s, err));
	REFUSED(llmc_serve_open_models(NULL, -1, NULL, &s, err));
	llmc_serve_close(NULL);
	llmc_engine_close(e, 0);
}

static void
measuring(void)
{
	llmc_prediction p = LLMC_INIT(llmc_prediction);
	llmc_machine machine = LLMC_INIT(llmc_machine);
	llmc_placement place = LLMC_INIT(llmc_placement);
	llmc_model_info info = { .size = 16 };
	llmc_advice advice = { .size = 8 };
	char buf[4];
	size_t need = 0;
	int32_t adapter;

	for (int i = 0; i < ODD; i++) {
		RUNS(llmc_predict(model, "h100", i % 2, odd[i], 1, &p, err));
		RUNS(llmc_predict(model, "h100", i % 2, 1, odd[i], &p, err));
		REFUSED(llmc_adapter_unload(model, odd[i], err));
		REFUSED(llmc_verify(model, &odd[i], 1, NULL, NULL, err));
	}
	REFUSED(llmc_predict(model, "", false, 1, 1, &p, err));
	REFUSED(llmc_place(model, NULL, &machine, &place, err));
	REFUSED(llmc_predict_two(model, &machine, 1, 1, &p, err));
	REFUSED(llmc_verify(model, NULL, 0, NULL, NULL, err));
	REFUSED(llmc_adapter_load(model, "", NAN, &adapter, err));
	REFUSED(llmc_adapter_load(model, dir.path, 1, &adapter, err));
	REFUSED(llmc_get(model, "", buf, sizeof buf, &need, err));
	REFUSED(llmc_get(model, "no.such.key", buf, sizeof buf, &need, err));
	REFUSED(llmc_get(model, "family", NULL, 0, &need, err));
	llmc_info(model, &info);
	llmc_sampling_advice(model, &advice);
	(void)llmc_bandwidth(-1, -1);
	(void)llmc_bandwidth(1, NAN);
	llmc_eval_options eo = LLMC_INIT(llmc_eval_options);
	llmc_eval_result er = LLMC_INIT(llmc_eval_result);
	for (int i = 0; i < ODD; i++) {
		eo.window = odd[i];
		eo.max_windows = 1;
		RUNS(llmc_eval(model, NULL, &eo, &er, err));
		llmc_eval_release(&er);
	}
}

/* ---- all at once ---- */

static void (*const group[])(void) = { names,    opening, limits,   sequences, generating, texts,
	                               grammars, images,  requests, servers,   measuring };

static void *
run_groups(void *arg)
{
	const size_t n = sizeof group / sizeof *group, first = (size_t)(uintptr_t)arg;

	for (size_t i = 0; i < n; i++)
		group[(first + i * 3) % n]();
	return NULL;
}

static void
one_thread(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof group / sizeof *group; i++)
		group[i]();
	still_generates();
	assert_int_equal(n_wrong, 0);
}

static void
threads_at_once(void **state)
{
	pthread_t t[3];

	(void)state;
	for (size_t i = 0; i < 3; i++)
		MUST(pthread_create(&t[i], NULL, run_groups, (void *)(uintptr_t)(i * 4)) == 0);
	for (size_t i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	still_generates();
	assert_int_equal(n_wrong, 0);
}

/* One engine; its requests end while other threads submit, wait, cancel, forget and drain */
static llmc_engine *shared_engine;

static void *
use_engine(void *arg)
{
	static const int32_t tok[] = { 5, 6, 7 };
	const unsigned number = (unsigned)(uintptr_t)arg;
	llmc_event ev = LLMC_INIT(llmc_event);
	llmc_params p = LLMC_INIT(llmc_params);
	llmc_error e;

	p.max_tokens = 6;
	p.ignore_eos = true;
	for (unsigned i = 0; i < 30; i++) {
		llmc_request r = LLMC_INIT(llmc_request);
		llmc_counts c = LLMC_INIT(llmc_counts);
		int64_t id = 0;
		r.tok = tok;
		r.n_tok = 3;
		r.params = &p;
		llmc_status s = llmc_submit(shared_engine, &r, &id, &e);
		MUST(s == LLMC_OK || s == LLMC_E_CANCELLED || s == LLMC_E_BUSY);
		if (s == LLMC_OK && (i + number) % 3 == 0)
			/* cancel this request or that of another thread */
			llmc_cancel(shared_engine, id - (i % 2));
		if (s == LLMC_OK && (i + number) % 7 == 0) {
			llmc_forget(shared_engine, id);
			id = 0;
		}
		llmc_engine_stats(shared_engine, &c);
		for (bool last = s != LLMC_OK || !id; !last; last |= ev.last)
			if (llmc_next(shared_engine, id, (int)(1000 * wait_scaled(WAIT_HANG_S)),
			              &ev, &e) != LLMC_OK)
				break;
		if (number == 2 && i == 25)
			RUNS(llmc_engine_drain(shared_engine, 0, err));
	}
	llmc_event_release(&ev);
	return NULL;
}

static void
an_engine_is_drained_while_others_use_it(void **state)
{
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	pthread_t t[3];

	(void)state;
	l.context = 64;
	l.seqs = 3;
	o.limits = &l;
	WORKS(llmc_engine_open(model, &o, &shared_engine, err));
	for (size_t i = 0; i < 3; i++)
		MUST(pthread_create(&t[i], NULL, use_engine, (void *)(uintptr_t)i) == 0);
	for (size_t i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	llmc_engine_close(shared_engine, 0);
	still_generates();
	assert_int_equal(n_wrong, 0);
}

/* Sessions and engines keep their model open. */
static void
a_model_is_closed_before_its_sessions(void **state)
{
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_model *m = NULL;
	llmc_session *s = NULL;
	int32_t got[8], *at = got;
	llmc_params p = LLMC_INIT(llmc_params);

	(void)state;
	o.device = "ref";
	o.random_weights = true;
	WORKS(llmc_open("configs/tiny.yaml", &o, &m, err));
	WORKS(llmc_session_open(m, NULL, &s, err));
	llmc_close(m);
	p.max_tokens = 2;
	p.ignore_eos = true;
	WORKS(llmc_generate(s, &(int32_t){ 1 }, 1, &p, keep_id, &at, NULL, err));
	assert_int_equal(at - got, 2);
	llmc_session_close(s);
}

/* A GGUF tower with one key of thousands of levels */
static bool
write_deep_tower(void)
{
	enum { LEVELS = 30000 };
	const uint64_t head[2] = { 0, 1 }, n_key = 6 + 2 * LEVELS;
	const uint32_t version = 3, value[2] = { 4, 1 };
	FILE *f = fopen(deep_tower, "w");

	if (!f)
		return false;
	fwrite("GGUF", 4, 1, f);
	fwrite(&version, sizeof version, 1, f);
	fwrite(head, sizeof head, 1, f);
	fwrite(&n_key, sizeof n_key, 1, f);
	fputs("clip.", f);
	for (int i = 0; i < LEVELS; i++)
		fputs("a.", f);
	fputs("a", f);
	fwrite(value, sizeof value, 1, f);
	return fclose(f) == 0;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_thread),
		cmocka_unit_test(threads_at_once),
		cmocka_unit_test(an_engine_is_drained_while_others_use_it),
		cmocka_unit_test(a_model_is_closed_before_its_sessions),
	};
	llmc_options o = LLMC_INIT(llmc_options);
	llmc_error e;

	if (tempdir_open(&dir) != 0)
		return 1;
	snprintf(tokenizer_file, sizeof tokenizer_file, "%s/tokenizer.json", dir.path);
	snprintf(deep_tower, sizeof deep_tower, "%s/mmproj.gguf", dir.path);
	FILE *f = fopen(tokenizer_file, "w");
	if (!f || fwrite(vocabulary, strlen(vocabulary), 1, f) != 1 || fclose(f) != 0 ||
	    !write_deep_tower())
		return 1;
	o.device = "ref";
	o.random_weights = true;
	o.n_threads = 1;
	if (llmc_open("configs/tiny.yaml", &o, &model, &e) != LLMC_OK ||
	    llmc_tokenizer_open(tokenizer_file, &tokenizer, &e) != LLMC_OK) {
		print_error("%s\n", e.text);
		return 1;
	}
	still_generates();
	if (getenv("TEST_ONLY"))
		cmocka_set_test_filter(getenv("TEST_ONLY"));
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	llmc_tokenizer_close(tokenizer);
	llmc_close(model);
	tempdir_close(&dir);
	return rc;
}

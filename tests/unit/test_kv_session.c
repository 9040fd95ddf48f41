/* Sessions on a hand-written plan, which the reference runs on random weights: a prompt in one
 * chunk, in several and token by token gives the same bits, and so do batches, forks and trims.
 * Rejected calls change nothing, and a step allocates nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/cpu/cpu.h"
#include "runtime/state/session_state.h"
#include "tests/unit/tiny_plan.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
#define COUNTS 0
#else
#define COUNTS 1
static atomic_long n_alloc;
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t each);
void *
malloc(size_t n)
{
	n_alloc++;
	return __libc_malloc(n);
}
void *
calloc(size_t n, size_t each)
{
	n_alloc++;
	return __libc_calloc(n, each);
}
#endif

enum { VOCAB = 6, LONG = 100 };

static Arena arena;
static Plan *plan;
static Runtime *rt;

static int
set_up(void **state)
{
	const RuntimeOptions o = { .random_weights = true, .n_threads = 2 };

	(void)state;
	arena_init(&arena);
	if (setjmp(arena.oom))
		return 1;
	return plan_read(tiny_plan, sizeof tiny_plan - 1, "tiny", &arena, &plan, NULL) != LLMC_OK ||
	       runtime_open(plan, &o, &rt, NULL) != LLMC_OK;
}

static int
tear_down(void **state)
{
	(void)state;
	runtime_close(rt);
	arena_release(&arena);
	return 0;
}

static Session *
open_session(int32_t context, int32_t seqs, int32_t chunk, int32_t n_out, int64_t kv_tokens,
             int threads)
{
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_error err;
	Session *s;

	l.context = context;
	l.seqs = seqs;
	l.chunk = chunk;
	l.n_out = n_out;
	l.kv_tokens = kv_tokens;
	l.n_threads = threads;
	if (session_open(rt, &l, &s, &err) != LLMC_OK)
		fail_msg("%s", err.text);
	return s;
}

static void
tokens(int32_t *tok, int n, unsigned seed)
{
	for (int i = 0; i < n; i++) {
		seed = seed * 1664525u + 1013904223u;
		tok[i] = (int32_t)(seed >> 16) % VOCAB;
	}
}

static llmc_seq
new_seq(Session *s)
{
	llmc_seq q;

	assert_int_equal(session_seq_new(s, 0, &q, NULL), LLMC_OK);
	return q;
}

static void
feed(Session *s, llmc_seq q, const int32_t *tok, int n, float *logits)
{
	const llmc_chunk c = { q, tok, n, logits ? n : 0 };
	llmc_error err;

	if (session_forward(s, &c, 1, logits, &err) != LLMC_OK)
		fail_msg("%s", err.text);
}

/* Logits of all prefill rows, run in one chunk on one thread: all other ways must match them bit
 * for bit. */
static void
baseline(const int32_t *tok, int n, float *logits)
{
	Session *s = open_session(128, 1, 128, 128, 0, 1);

	feed(s, new_seq(s), tok, n, logits);
	session_close(s);
}

static void
prefill_chunks_make_no_difference(void **state)
{
	static float want[LONG][VOCAB], got[LONG][VOCAB];
	int32_t tok[LONG];

	(void)state;
	tokens(tok, LONG, 1);
	baseline(tok, LONG, want[0]);
	for (int threads = 1; threads <= 3; threads++)
		for (int piece = 1; piece <= 64; piece = piece * 3 + 1) {
			Session *s = open_session(128, 2, 64, 64, 0, threads);
			llmc_seq q = new_seq(s);
			for (int at = 0; at < LONG; at += piece)
				feed(s, q, tok + at, LONG - at < piece ? LONG - at : piece,
				     got[at]);
			assert_int_equal(session_seq_len(s, q), LONG);
			assert_memory_equal(want, got, sizeof want);
			session_close(s);
		}
}

/* Three sequences of different lengths in one batch, single tokens among longer chunks, logits in
 * the caller's order. */
static void
other_sequences_make_no_difference(void **state)
{
	static float want[3][60][VOCAB], got[64][VOCAB];
	int32_t tok[3][60];
	int at[3] = { 0, 0, 0 };
	unsigned r = 5;

	(void)state;
	Session *s = open_session(128, 3, 64, 64, 0, 2);
	llmc_seq q[3];
	for (int i = 0; i < 3; i++) {
		tokens(tok[i], 60, 10 + (unsigned)i);
		baseline(tok[i], 60, want[i][0]);
		q[i] = new_seq(s);
	}
	while (at[0] < 60 || at[1] < 60 || at[2] < 60) {
		llmc_chunk c[3];
		size_t n = 0;
		int rows[3], turn = (int)(r >> 20) % 3;
		for (int i = 0; i < 3; i++) {
			int seq = (i + turn) % 3;
			r = r * 1664525u + 1013904223u;
			int count = r >> 28 & 1 ? 1 : 1 + (int)(r >> 16 & 15);
			if (at[seq] + count > 60)
				count = 60 - at[seq];
			if (!count || (r >> 24 & 7) == 0)
				continue;
			c[n] = (llmc_chunk){ q[seq], tok[seq] + at[seq], count,
				             (int32_t)(r >> 10) % (count + 1) };
			if (c[n].n_out < 0)
				c[n].n_out = 0;
			rows[n++] = seq;
		}
		if (!n)
			continue;
		assert_int_equal(session_forward(s, c, n, got[0], NULL), LLMC_OK);
		float(*g)[VOCAB] = got;
		for (size_t i = 0; i < n; i++) {
			int seq = rows[i], first = at[seq] + c[i].n_tok - c[i].n_out;
			assert_memory_equal(want[seq][first], g, (size_t)c[i].n_out * sizeof *g);
			g += c[i].n_out;
			at[seq] += c[i].n_tok;
		}
	}
	session_close(s);
}

static void
forks_and_trims_keep_their_prefix(void **state)
{
	static float want[LONG][VOCAB], other[LONG][VOCAB], got[LONG][VOCAB];
	int32_t a[LONG], b[LONG];
	llmc_seq fork;

	(void)state;
	tokens(a, LONG, 1);
	tokens(b, LONG, 2);
	memcpy(b, a, 40 * sizeof *b);
	baseline(a, LONG, want[0]);
	baseline(b, LONG, other[0]);
	Session *s = open_session(128, 2, 128, 128, 0, 2);
	llmc_seq q = new_seq(s);
	feed(s, q, a, 40, NULL);
	assert_int_equal(session_seq_fork(s, q, &fork, NULL), LLMC_OK);
	assert_int_equal(session_seq_len(s, fork), 40);
	const llmc_chunk both[] = { { q, a + 40, 60, 60 }, { fork, b + 40, 60, 60 } };
	assert_int_equal(session_forward(s, both, 1, got[0], NULL), LLMC_OK);
	assert_memory_equal(want[40], got, 60 * sizeof *got);
	assert_int_equal(session_forward(s, both + 1, 1, got[0], NULL), LLMC_OK);
	assert_memory_equal(other[40], got, 60 * sizeof *got);
	/* trim to the common prefix, then the other continuation */
	assert_int_equal(session_seq_trim(s, q, 40, NULL), LLMC_OK);
	feed(s, q, b + 40, 60, got[0]);
	assert_memory_equal(other[40], got, 60 * sizeof *got);
	assert_int_equal(session_seq_trim(s, q, 0, NULL), LLMC_OK);
	feed(s, q, a, LONG, got[0]);
	assert_memory_equal(want, got, sizeof want);
	session_close(s);
}

static void
expect_error(Session *s, const llmc_chunk *c, size_t n, llmc_status want, const char *text)
{
	llmc_error err = { 0 };
	llmc_stats before = LLMC_INIT(llmc_stats), after = LLMC_INIT(llmc_stats);

	session_stats(s, &before);
	assert_int_equal(session_forward(s, c, n, NULL, &err), want);
	assert_string_equal(err.text, text);
	session_stats(s, &after);
	assert_memory_equal(&before, &after, sizeof before);
}

static void
rejected_calls_change_nothing(void **state)
{
	static const int32_t tok[80] = { 1, 2, 3 }, wrong[] = { 0, 6 };
	llmc_error err;
	llmc_seq a, b, c;

	(void)state;
	Session *s = open_session(64, 2, 48, 2, 96, 1);
	a = new_seq(s);
	b = new_seq(s);
	assert_int_equal(session_seq_new(s, 0, &c, &err), LLMC_E_FULL);
	assert_string_equal(err.text, "all 2 sequences of this session are taken; free one or open "
	                              "a session with more (seqs)");
	assert_int_equal(session_seq_fork(s, a, &c, &err), LLMC_E_FULL);
	assert_int_equal(session_seq_new(s, 65, &c, &err), LLMC_E_RANGE);
	assert_string_equal(err.text,
	                    "a sequence of 65 positions does not fit the context of 64 (context)");
	feed(s, a, tok, 20, NULL);
	expect_error(s, NULL, 0, LLMC_E_RANGE, "no chunk to run");
	expect_error(s, &(llmc_chunk){ 7, tok, 1, 0 }, 1, LLMC_E_RANGE,
	             "chunk 0: there is no sequence 7 in this session");
	expect_error(s, &(llmc_chunk){ -1, tok, 1, 0 }, 1, LLMC_E_RANGE,
	             "chunk 0: there is no sequence -1 in this session");
	expect_error(s, &(llmc_chunk){ a, tok, 0, 0 }, 1, LLMC_E_RANGE,
	             "chunk 0: 0 tokens, at least one is needed");
	expect_error(s, &(llmc_chunk){ a, tok, 2, 3 }, 1, LLMC_E_RANGE,
	             "chunk 0: logits of 3 rows are wanted, the chunk has 2");
	expect_error(s, &(llmc_chunk){ a, wrong, 2, 0 }, 1, LLMC_E_RANGE,
	             "chunk 0: token 1 is 6, ids are 0 .. 5");
	expect_error(s, &(llmc_chunk){ a, tok, 45, 0 }, 1, LLMC_E_RANGE,
	             "chunk 0: sequence 0 holds 20 positions, 45 more do not fit the context of 64 "
	             "(context)");
	expect_error(s, &(llmc_chunk){ b, tok, 49, 0 }, 1, LLMC_E_RANGE,
	             "49 tokens in one step, the session allows 48 (chunk)");
	expect_error(s, &(llmc_chunk){ b, tok, 5, 3 }, 1, LLMC_E_RANGE,
	             "logits of 3 rows are wanted, the session allows 2 (n_out)");
	const llmc_chunk twice[] = { { a, tok, 1, 0 }, { b, tok, 1, 0 }, { a, tok, 1, 0 } };
	expect_error(s, twice, 3, LLMC_E_RANGE,
	             "chunk 2: sequence 0 has another chunk in this call already");
	feed(s, b, tok, 40, NULL); /* three pages, all in use */
	expect_error(
	    s, &(llmc_chunk){ a, tok, 13, 0 }, 1, LLMC_E_FULL,
	    "this step needs 1 KV pages of 32 positions, 0 of 3 are free; free or trim a sequence, "
	    "or open a session with more "
	    "(kv_tokens)");
	feed(s, a, tok, 12, NULL); /* its last page has exactly that free space */
	assert_int_equal(session_seq_len(s, a), 32);
	assert_int_equal(session_seq_trim(s, a, 33, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "sequence 0 has 32 positions, it cannot be trimmed to 33");
	assert_int_equal(session_seq_trim(s, 9, 0, &err), LLMC_E_RANGE);
	assert_int_equal(session_seq_len(s, 9), -1);
	session_seq_free(s, 9);
	session_seq_free(s, b);
	assert_int_equal(session_seq_len(s, b), -1);
	feed(s, a, tok, 13, NULL);
	session_close(s);
}

static void
limits_are_checked(void **state)
{
	static const struct {
		llmc_limits l;
		const char *text;
	} bad[] = {
		{ { .context = -1 }, "limit context is -1, possible are 1 .. 268435456" },
		{ { .seqs = 70000 }, "limit seqs is 70000, possible are 1 .. 65536" },
		{ { .chunk = -5 }, "limit chunk is -5, possible are 1 .. 268435456" },
		{ { .n_out = -1 }, "limit n_out is -1, possible are 1 .. 512" },
		{ { .kv_tokens = -1 }, "limit kv_tokens is -1, possible are 1 .. 34359738336" },
		{ { .n_threads = 2000 }, "limit n_threads is 2000, possible are 1 .. 1024" },
		{ { .snapshots = -1 },
		  "limit snapshots is -1, possible are 1 .. 1024, or 0: none" },
	};
	llmc_limits l = LLMC_INIT(llmc_limits), out;
	llmc_memory m = LLMC_INIT(llmc_memory);
	llmc_error err;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		l = bad[i].l;
		l.size = sizeof l;
		assert_int_equal(session_limits(plan, &l, &out, &err), LLMC_E_RANGE);
		assert_string_equal(err.text, bad[i].text);
	}
	assert_int_equal(session_limits(plan, NULL, &out, NULL), LLMC_OK);
	assert_int_equal(out.context, 256); /* from the model */
	assert_int_equal(out.seqs, 1);
	assert_int_equal(out.chunk, 512);
	assert_int_equal(out.n_out, 1);
	assert_int_equal(out.kv_tokens, 256);
	assert_true(out.n_threads >= 1);
	Plan hard = *plan;
	hard.hard_limit = true;
	l = (llmc_limits){ .size = sizeof l, .context = 257 };
	assert_int_equal(session_limits(&hard, &l, &out, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "limit context is 257, possible are 1 .. 256: as it is built "
	                              "the model has no positions beyond");
	/* memory by hand: weights 96 + 16 + 128 + 64; a position holds 1 head of 2 + 2 floats */
	l = (llmc_limits){
		.size = sizeof l, .context = 64, .seqs = 3, .chunk = 10, .n_out = 2, .n_threads = 1
	};
	assert_int_equal(session_memory(plan, &l, &m, NULL), LLMC_OK);
	assert_int_equal(m.weights, 304);
	assert_int_equal(m.kv_per_token, 16);
	assert_int_equal(m.kv, 3 * 64 * 16);
	assert_int_equal(m.scratch,
	                 3 * 256); /* 16, 16 and 24 bytes for each of 10 rows, each rounded up */
}

static void
a_step_allocates_nothing_and_is_counted(void **state)
{
	int32_t tok[64];
	float logits[VOCAB];
	llmc_stats st = LLMC_INIT(llmc_stats);

	(void)state;
	tokens(tok, 64, 3);
	Session *s = open_session(128, 2, 64, 1, 0, 2);
	llmc_seq q = new_seq(s), f;
#if COUNTS
	long before = n_alloc;
#endif
	feed(s, q, tok, 50, NULL);
	for (int i = 0; i < 10; i++) {
		const llmc_chunk c = { q, tok + i, 1, 1 };
		assert_int_equal(session_forward(s, &c, 1, logits, NULL), LLMC_OK);
	}
	assert_int_equal(session_seq_fork(s, q, &f, NULL), LLMC_OK);
	feed(s, f, tok, 40, NULL);
#if COUNTS
	assert_int_equal(n_alloc, before);
#endif
	session_stats(s, &st);
	assert_int_equal(st.forwards, 12);
	assert_int_equal(st.tokens, 50 + 10 + 40);
	assert_int_equal(st.steps_run, 12 * 5);
	/* the reference runs all steps of a forward between two barriers; RoPE angles of many rows
	 * take one more */
	assert_int_equal(st.barriers, 12 + 2);
	assert_int_equal(st.weight_bytes, 128 + 64 + 96);
	assert_int_equal(st.kv_pages_used, 1 + 1 + 1 + 2);
	assert_int_equal(st.kv_pages_total, 8);
	session_close(s);
}

typedef struct ProbeLog {
	int n;
	char names[256];
} ProbeLog;

static bool
on_value(void *user, const PlanStep *step, const char *name, Dtype dtype, void *data, int64_t rows,
         int64_t width)
{
	ProbeLog *h = user;
	size_t n = strlen(h->names);

	(void)step;
	assert_non_null(data);
	assert_int_equal(dtype, DT_F32);
	snprintf(h->names + n, sizeof h->names - n, "%s %dx%d;", name, (int)rows, (int)width);
	h->n++;
	return false;
}

static void
the_probe_receives_each_value(void **state)
{
	static const int32_t tok[] = { 1, 2, 3 };
	ProbeLog h = { 0 };

	(void)state;
	Session *s = open_session(32, 1, 8, 2, 0, 2);
	session_set_probe(s, on_value, &h);
	const llmc_chunk c = { new_seq(s), tok, 3, 2 };
	assert_int_equal(session_forward(s, &c, 1, NULL, NULL), LLMC_OK);
	assert_string_equal(h.names, "embed 3x4;L0.q 3x4;logits 2x6;");
	session_close(s);
}

/* A prompt with bidirectional attention (prefix-LM) runs in one chunk, and can only be trimmed as a
 * whole. */
static void
a_bidirectional_prefix_stays_whole(void **state)
{
	static const int32_t tok[20] = { 1, 2, 3, 4, 5, 1, 1 };
	llmc_limits l = { .size = sizeof l, .context = 64, .chunk = 10, .n_threads = 1 };
	const RuntimeOptions o = { .random_weights = true, .n_threads = 1 };
	Plan whole = *plan;
	Runtime *own;
	Session *s;
	llmc_error err;

	(void)state;
	whole.prompt_whole = true;
	whole.prefix_end = 5;
	assert_int_equal(runtime_open(&whole, &o, &own, NULL), LLMC_OK);
	assert_int_equal(session_open(own, &l, &s, NULL), LLMC_OK);
	llmc_seq q = new_seq(s);
	expect_error(s, &(llmc_chunk){ q, tok, 11, 0 }, 1, LLMC_E_RANGE,
	             "11 tokens in one step, the session allows 10 (chunk); the prompts of this "
	             "model run in one chunk");
	feed(s, q, tok, 7, NULL); /* token 5 ends the prefix after four positions */
	assert_int_equal(session_seq_trim(s, q, 3, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, "the first 4 positions of sequence 0 attend to each other: "
	                              "it can be trimmed to 0 or to at least 4");
	assert_int_equal(session_seq_trim(s, q, 4, NULL), LLMC_OK);
	assert_int_equal(session_seq_trim(s, q, 0, NULL), LLMC_OK);
	feed(s, q, tok + 1, 3, NULL); /* without an end token all of it is prefix */
	assert_int_equal(session_seq_trim(s, q, 2, NULL), LLMC_E_RANGE);
	session_close(s);
	runtime_close(own);
}

/* The tiny plan with a window of 9 positions: pages before the window are released. A session for
 * many sequences has enough window pages to keep all of one sequence, one for a single sequence has
 * not. Both give the same bits, through forks, trims, saved sequences and reused prompts. */
enum { FAR = 700 };

static Plan *
edited_plan(const char *const edit[][2], const char *refused)
{
	static char text[sizeof tiny_plan + 256];
	const char *from = tiny_plan;
	char *to = text;
	llmc_error err;
	Plan *p;

	while (*from) {
		int k = 0;
		while (edit[k][0] && strncmp(from, edit[k][0], strlen(edit[k][0])))
			k++;
		if (!edit[k][0])
			*to++ = *from++;
		else {
			to += sprintf(to, "%s", edit[k][1]);
			from += strlen(edit[k][0]);
		}
	}
	if (plan_read(text, (size_t)(to - text), "tiny", &arena, &p, &err) != LLMC_OK) {
		assert_non_null(refused);
		assert_non_null(strstr(err.text, refused));
		return NULL;
	}
	return p;
}

/* sinks: of the plan's pool; see: text of the error for a trim that is too long */
static void
check_freed_pages(Plan *windowed, int sinks, const char *see)
{
	const RuntimeOptions o = { .random_weights = true, .n_threads = 2 };
	static float want[FAR][VOCAB], got[FAR][VOCAB], other[40][VOCAB];
	static char saved[2][1 << 14];
	int32_t tok[FAR], b[40];
	size_t need[2];
	llmc_error err;
	llmc_seq full, q, fork;
	Runtime *was = rt;
	Session *s[2];

	assert_int_equal(runtime_open(windowed, &o, &rt, &err), LLMC_OK);
	tokens(tok, FAR, 3);
	tokens(b, 40, 4);
	s[0] = open_session(FAR, 16, 64, 64, 0, 1);
	s[1] = open_session(FAR, 2, 16, 16, 0, 2);
	assert_true(s[0]->kv.n_window > FAR / PLAN_KV_PAGE &&
	            s[1]->kv.n_window < FAR / PLAN_KV_PAGE);
	full = new_seq(s[0]);
	for (int at = 0; at < FAR; at += 64)
		feed(s[0], full, tok + at, FAR - at < 64 ? FAR - at : 64, want[at]);
	q = new_seq(s[1]);
	for (int at = 0; at < 600; at += 15)
		feed(s[1], q, tok + at, 15, got[at]);
	assert_memory_equal(want, got, 600 * sizeof *want);
	assert_null(kv_check(&s[1]->kv));
	/* a short trim always works, a long one only if window pages were plentiful */
	assert_int_equal(session_seq_trim(s[1], q, 570, NULL), LLMC_OK);
	assert_int_equal(session_seq_trim(s[1], q, 100, &err), LLMC_E_RANGE);
	assert_string_equal(err.text, see);
	assert_int_equal(session_seq_len(s[1], q), 570);
	assert_int_equal(session_seq_fork(s[0], full, &fork, NULL), LLMC_OK);
	assert_int_equal(session_seq_trim(s[0], fork, 570, NULL), LLMC_OK);
	feed(s[0], fork, b, 40, other[0]);
	assert_int_equal(session_seq_trim(s[0], fork, 100, NULL), LLMC_OK);
	feed(s[0], fork, tok + 100, 60, got[100]);
	assert_memory_equal(want[100], got[100], 60 * sizeof *want);
	/* two continuations, run in sequence */
	assert_int_equal(session_seq_fork(s[1], q, &fork, NULL), LLMC_OK);
	for (int at = 0; at < 40; at += 10)
		feed(s[1], fork, b + at, 10, got[at]);
	assert_memory_equal(other, got, sizeof other);
	for (int at = 570; at < FAR; at += 13)
		feed(s[1], q, tok + at, 13, got[at]);
	assert_memory_equal(want[570], got[570], (FAR - 570) * sizeof *want);
	assert_null(kv_check(&s[1]->kv));
	/* saved data is equal for both: only the visible window pages */
	session_seq_free(s[1], fork);
	assert_int_equal(session_seq_trim(s[0], full, FAR - 20, NULL), LLMC_OK);
	assert_int_equal(session_seq_trim(s[1], q, FAR - 20, NULL), LLMC_OK);
	assert_int_equal(session_seq_save(s[0], full, saved[0], sizeof saved[0], &need[0], NULL),
	                 LLMC_OK);
	assert_int_equal(session_seq_save(s[1], q, saved[1], sizeof saved[1], &need[1], NULL),
	                 LLMC_OK);
	assert_true(need[0] == need[1]);
	if (!sinks)
		assert_true(need[0] < 3 * (size_t)plan_layer_page_bytes(&rt->plan->pool[0]) + 256);
	else
		assert_true(need[0] < 22 * (size_t)plan_layer_page_bytes(&rt->plan->pool[0]) +
		                          5 * (size_t)plan_layer_exact_bytes(&rt->plan->pool[0]) +
		                          256);
	session_seq_free(s[1], q);
	for (int k = 0; k < 2; k++) {
		assert_int_equal(session_seq_load(s[1 - k], saved[k], need[k], &q, NULL), LLMC_OK);
		feed(s[1 - k], q, tok + FAR - 20, 12, got[0]);
		assert_memory_equal(want[FAR - 20], got, 12 * sizeof *want);
		assert_null(kv_check(&s[1 - k]->kv));
		session_seq_free(s[1 - k], q);
	}
	/* a prompt resumes where an earlier one's window is still present */
	assert_int_equal(kv_prefix_open(&s[1]->kv, NULL), LLMC_OK);
	for (int round = 0; round < 3; round++) {
		q = new_seq(s[1]);
		int found = session_prefix_find(s[1], q, tok, FAR);
		assert_int_equal(found, round == 1 ? 672 : 0);
		for (int at = found; at < FAR; at += 15) {
			feed(s[1], q, tok + at, FAR - at < 15 ? FAR - at : 15, got[at]);
			session_prefix_keep(s[1], q, tok);
		}
		assert_memory_equal(want[found], got[found], (size_t)(FAR - found) * sizeof *want);
		assert_null(kv_check(&s[1]->kv));
		session_seq_free(s[1], q);
		/* other sequences take the window pages */
		for (int k = 0; round == 1 && k < 2; k++) {
			q = new_seq(s[1]);
			tok[0] = 5 - tok[0];
			for (int at = 0; at < 690; at += 15)
				feed(s[1], q, tok + at, 15, NULL);
			tok[0] = 5 - tok[0];
			session_seq_free(s[1], q);
		}
	}
	session_close(s[0]);
	session_close(s[1]);
	runtime_close(rt);
	rt = was;
}

static void
freed_window_pages_change_nothing(void **state)
{
	static const char *const narrow[][2] = { { "\"window\":0", "\"window\":9" },
		                                 { "\"keep\":0", "\"keep\":8" },
		                                 { NULL, NULL } };
	static const char *const fits[][2] = { { "\"window\":0", "\"window\":9" },
		                               { "\"keep\":0", "\"keep\":9" },
		                               { NULL, NULL } };

	(void)state;
	assert_null(edited_plan(
	    narrow, "attention: a window of 9 positions (0: all) over pool kv, which keeps 8"));
	check_freed_pages(edited_plan(fits, NULL), 0,
	                  "sequence 0 cannot be trimmed to 100: layers of this model see "
	                  "the last 9 positions, and older ones are no longer kept");
}

/* Quantised rows, with exact pages for the last 9 and the first 8 positions. */
static void
freed_exact_pages_change_nothing(void **state)
{
	static const char *const plain[][2] = {
		{ "\"keep\":0", "\"keep\":0,\"recent\":9,\"sinks\":8" }, { NULL, NULL }
	};
	static const char *const fits[][2] = {
		{ "\"keep\":0", "\"keep\":0,\"recent\":9,\"sinks\":8" },
		{ "\"k\":\"f32\",\"v\":\"f32\"", "\"k\":\"int8\",\"v\":\"int8\"" },
		{ NULL, NULL }
	};

	(void)state;
	assert_null(edited_plan(plain, "pool kv: exact pages need quantised keys or values"));
	check_freed_pages(
	    edited_plan(fits, NULL), 8,
	    "sequence 0 cannot be trimmed to 100: layers of this model see the last 9 positions, "
	    "or read them in 16 bit (kv.window), and older ones are no longer kept");
}

static void
plans_of_other_targets_are_rejected(void **state)
{
	const RuntimeOptions o = { .random_weights = true, .n_threads = 1 };
	Plan other = *plan;
	Runtime *none;
	llmc_error err;

	(void)state;
	other.target = "gpu-x";
	assert_int_equal(runtime_open(&other, &o, &none, &err), LLMC_E_INPUT);
	assert_string_equal(err.text,
	                    "the plan is for target \"gpu-x\", which this llmc does not support");
	assert_null(none);
	if (!isa_runs("cpu-v4")) {
		other.target = "cpu-v4";
		assert_int_equal(runtime_open(&other, &o, &none, &err), LLMC_E_MISSING);
		assert_non_null(
		    strstr(err.text, "the plan is for cpu-v4, this processor runs cpu-"));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prefill_chunks_make_no_difference),
		cmocka_unit_test(other_sequences_make_no_difference),
		cmocka_unit_test(forks_and_trims_keep_their_prefix),
		cmocka_unit_test(rejected_calls_change_nothing),
		cmocka_unit_test(limits_are_checked),
		cmocka_unit_test(a_step_allocates_nothing_and_is_counted),
		cmocka_unit_test(the_probe_receives_each_value),
		cmocka_unit_test(a_bidirectional_prefix_stays_whole),
		cmocka_unit_test(freed_window_pages_change_nothing),
		cmocka_unit_test(freed_exact_pages_change_nothing),
		cmocka_unit_test(plans_of_other_targets_are_rejected),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* A session on the emulated GPU compared with one of the reference interpreter: the same calls in
 * random order give the same logits and sampled tokens. The calls include forks (copy on write),
 * trims, save and load, mixed steps, several decode buckets, and tokens from the host or the
 * device. */
#include "tests/unit/cuda_util.h"

#include <math.h>

#include "runtime/engine/engine.h"
#include "runtime/state/session_state.h"
#include "tests/unit/tempdir.h"
#include "tests/unit/tiny_grammar.h"

enum { SEQS = 5, CHUNK = 24, CONTEXT = 120, VOCAB = 300 };

typedef struct Pair {
	llmc_model *m[2];
	llmc_session *s[2];
	llmc_seq q[SEQS][2]; /* -1: none */
	bool fed[SEQS];      /* its next token was sampled on the device */
	int32_t next[SEQS];  /* greedy token of the reference */
} Pair;

static uint32_t seed = 1;

static int32_t
random_below(int32_t n)
{
	seed = seed * 1664525u + 1013904223u;
	return (int32_t)((seed >> 8) % (uint32_t)n);
}

/* mask NULL: all tokens */
static int32_t
best_of(const float *v, const uint32_t *mask)
{
	int32_t at = -1;

	for (int32_t i = 0; i < VOCAB; i++)
		if (!mask || mask[i / 32] >> i % 32 & 1)
			at = at < 0 || v[i] > v[at] ? i : at;
	return at;
}

static int32_t
best(const float *v)
{
	return best_of(v, NULL);
}

#define OK(call)                                                                                   \
	do {                                                                                       \
		llmc_error e_ = { 0 };                                                             \
		llmc_error *err = &e_;                                                             \
		if ((call) != LLMC_OK)                                                             \
			fail_msg("%s: %s", #call, e_.text);                                        \
	} while (0)

/* Run one step of some sequences in both sessions. ahead: the device feeds the tokens to the
 * step. */
static void
step(Pair *p, bool ahead)
{
	static float want[SEQS * VOCAB], got[SEQS * VOCAB];
	static int32_t tok[SEQS][CHUNK];
	static uint32_t bits[SEQS][(VOCAB + 31) / 32];
	const uint32_t *mask[SEQS] = { NULL };
	llmc_chunk c[2][SEQS];
	int32_t seq_of[SEQS], ids[SEQS], free_rows = CHUNK, n = 0;
	bool decode = random_below(3) > 0, masked = ahead && random_below(3) == 0;

	for (int32_t i = 0; i < SEQS; i++) {
		int32_t len = p->q[i][0] < 0 ? 0 : session_seq_len(p->s[0]->s, p->q[i][0]),
		        most = CONTEXT - len;
		if (p->q[i][0] < 0 || most < 1 || free_rows < 1 || random_below(4) == 0)
			continue;
		int32_t k =
		    decode || most < 2 || free_rows < 2
		        ? 1
		        : 1 + random_below((most < free_rows ? most : free_rows) < 9 ? 2 : 9);
		for (int32_t t = 0; t < k; t++)
			tok[i][t] = random_below(VOCAB);
		bool feed = ahead && p->fed[i] && len > 0 && k == 1;
		if (feed)
			tok[i][0] = p->next[i];
		c[0][n] = (llmc_chunk){ .seq = p->q[i][0], .tok = tok[i], .n_tok = k, .n_out = 1 };
		c[1][n] = c[0][n];
		c[1][n].seq = p->q[i][1];
		if (feed)
			c[1][n].tok = NULL;
		seq_of[n++] = i;
		free_rows -= k;
	}
	if (!n)
		return;
	OK(llmc_forward(p->s[0], c[0], (size_t)n, want, err));
	if (masked) { /* mask some of the rows; a mask allows few or many tokens */
		for (int32_t i = 0; i < n; i++) {
			int32_t few = random_below(2) ? 1 : 200;
			memset(bits[i], 0, sizeof bits[i]);
			for (int32_t k = 0; k < few; k++) {
				int32_t id = random_below(VOCAB);
				bits[i][id / 32] |= 1u << id % 32;
			}
			mask[i] = random_below(3) ? bits[i] : NULL;
		}
		OK(session_queue_rows(p->s[1]->s, c[1], (size_t)n, err));
		OK(session_queue_sample(p->s[1]->s, mask, err));
		OK(session_take_sampled(p->s[1]->s, ids, NULL, err));
	} else if (ahead) {
		OK(session_queue_step(p->s[1]->s, c[1], (size_t)n, err));
		OK(session_take_sampled(p->s[1]->s, ids, NULL, err));
	} else {
		OK(llmc_forward(p->s[1], c[1], (size_t)n, got, err));
		for (int32_t i = 0; i < n * VOCAB; i++)
			if (!(fabsf(got[i] - want[i]) < 2e-4f))
				fail_msg("logit %d of chunk %d: %g, the reference has %g",
				         i % VOCAB, i / VOCAB, (double)got[i], (double)want[i]);
	}
	for (int32_t i = 0; i < n; i++) {
		p->next[seq_of[i]] = best_of(want + i * VOCAB, mask[i]);
		if (ahead)
			assert_int_equal(ids[i], p->next[seq_of[i]]);
		p->fed[seq_of[i]] = ahead;
	}
}

static void
new_seq(Pair *p, int32_t i)
{
	llmc_params greedy = LLMC_INIT(llmc_params);

	for (int k = 0; k < 2; k++)
		OK(llmc_seq_new(p->s[k], 0, &p->q[i][k], err));
	OK(session_sample_params(p->s[1]->s, p->q[i][1], &greedy, NULL, 0, NULL, 0, err));
	p->fed[i] = false;
}

static void
free_seq(Pair *p, int32_t i)
{
	for (int k = 0; k < 2; k++) {
		llmc_seq_free(p->s[k], p->q[i][k]);
		p->q[i][k] = -1;
	}
}

static void
save_and_load(Pair *p, int32_t i)
{
	for (int k = 0; k < 2; k++) {
		size_t need = 0;
		llmc_error e;
		session_seq_save(p->s[k]->s, p->q[i][k], NULL, 0, &need, &e);
		char *buf = malloc(need);
		assert_non_null(buf);
		OK(session_seq_save(p->s[k]->s, p->q[i][k], buf, need, &need, err));
		llmc_seq_free(p->s[k], p->q[i][k]);
		OK(session_seq_load(p->s[k]->s, buf, need, &p->q[i][k], err));
		free(buf);
	}
	p->fed[i] = false;
	llmc_params greedy = LLMC_INIT(llmc_params);
	OK(session_sample_params(p->s[1]->s, p->q[i][1], &greedy, NULL, 0, NULL, 0, err));
}

static void
fork_seq(Pair *p, int32_t from, int32_t to)
{
	llmc_params greedy = LLMC_INIT(llmc_params);

	for (int k = 0; k < 2; k++)
		OK(llmc_seq_fork(p->s[k], p->q[from][k], &p->q[to][k], err));
	OK(session_sample_params(p->s[1]->s, p->q[to][1], &greedy, NULL, 0, NULL, 0, err));
	p->fed[to] = false;
}

static void
many_steps_of(const char *const *set, int steps)
{
	Pair p;
	llmc_limits l = LLMC_INIT(llmc_limits);

	l.context = CONTEXT;
	l.seqs = SEQS;
	l.chunk = CHUNK;
	for (int i = 0; i < SEQS; i++)
		p.q[i][0] = p.q[i][1] = -1;
	for (int k = 0; k < 2; k++) {
		OK(shared_tiny(k ? "cuda" : "ref", NULL, set, &p.m[k], err));
		OK(llmc_session_open(p.m[k], &l, &p.s[k], err));
	}
	for (int i = 0; i < steps; i++) {
		int32_t a = random_below(SEQS), b = random_below(SEQS);
		if (p.q[a][0] < 0) {
			new_seq(&p, a);
			continue;
		}
		switch (random_below(12)) {
		case 0:
			free_seq(&p, a);
			break;
		case 1:
			if (p.q[b][0] < 0)
				fork_seq(&p, a, b);
			break;
		case 2: {
			int32_t len = session_seq_len(p.s[0]->s, p.q[a][0]);
			for (int k = 0; k < 2; k++)
				OK(llmc_seq_trim(p.s[k], p.q[a][k], len / 2, err));
			break;
		}
		case 3:
			if (session_seq_len(p.s[0]->s, p.q[a][0]) > 0)
				save_and_load(&p, a);
			break;
		default:
			step(&p, random_below(3) > 0);
		}
	}
	/* prepare graphs of every size: no later step captures one */
	OK(session_prepare(p.s[1]->s, err));
	long made = emu_count("cuGraphInstantiateWithFlags");
	for (int32_t i = 0; i < SEQS; i++)
		if (p.q[i][0] < 0)
			new_seq(&p, i);
	for (int i = 0; i < 12; i++)
		step(&p, true);
	assert_true(made >= 4); /* for 1, 2, 4 and 8 sequences */
	assert_int_equal(emu_count("cuGraphInstantiateWithFlags"), made);
	for (int k = 0; k < 2; k++)
		llmc_session_close(p.s[k]);
}

static void
many_steps(void **state)
{
	(void)state;
	many_steps_of(NULL, getenv("LLMC_CHECK_ALL") ? 90 : 45);
}

/* One layer of three has a sliding window, whose pages have a numbering of their own. */
static void
many_steps_with_windows(void **state)
{
	static const char *const set[] = { "attention.window=21", "attention.window_layers=[1]",
		                           NULL };

	(void)state;
	many_steps_of(set, getenv("LLMC_CHECK_ALL") ? 60 : 30);
}

/* A decode step of two rows cannot be queued, because there is no memory for its graph, while both
 * sequences start a page. It can be repeated, and the results equal the reference's. */
static void
a_failed_step_is_queued_again(void **state)
{
	enum { PROMPT = 32, NEW = 12 };
	static int32_t got[2][2][NEW];
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_model *m[2];
	llmc_session *s[2];
	int32_t tok[2][PROMPT];
	float logits[VOCAB];

	(void)state;
	l.context = CONTEXT;
	l.seqs = 2;
	l.chunk = CHUNK;
	for (int k = 0; k < 2; k++) {
		OK(shared_tiny(k ? "cuda" : "ref", NULL, NULL, &m[k], err));
		OK(llmc_session_open(m[k], &l, &s[k], err));
	}
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < 2; i++) {
			llmc_seq q;
			OK(llmc_seq_new(s[k], 0, &q, err));
			for (int at = 0; at < PROMPT; at += 16) {
				for (int t = at; t < at + 16; t++)
					tok[i][t] = (7 * t + 31 * i) % VOCAB;
				const llmc_chunk c = { .seq = q,
					               .tok = tok[i] + at,
					               .n_tok = 16,
					               .n_out = at + 16 == PROMPT };
				if (k == 0) {
					OK(llmc_forward(s[k], &c, 1, logits, err));
				} else {
					if (at == 0)
						OK(session_sample_params(s[k]->s, q, &greedy, NULL,
						                         0, NULL, 0, err));
					OK(session_queue_step(s[k]->s, &c, 1, err));
				}
			}
			if (k)
				OK(session_take_sampled(s[k]->s, &got[1][i][0], NULL, err));
			for (int n = 0; k == 0 && n < NEW; n++) {
				const llmc_chunk c = {
					.seq = q, .tok = &got[0][i][n], .n_tok = 1, .n_out = 1
				};
				got[0][i][n] = best(logits);
				OK(llmc_forward(s[k], &c, 1, logits, err));
			}
		}
	const llmc_chunk both[2] = { { .seq = 0, .n_tok = 1, .n_out = 1 },
		                     { .seq = 1, .n_tok = 1, .n_out = 1 } };
	emu_fail("cuGraphInstantiateWithFlags", 1, 2);
	assert_int_equal(session_queue_step(s[1]->s, both, 2, NULL), LLMC_E_MEMORY);
	emu_fail(NULL, 0, 0);
	for (int n = 1; n < NEW; n++) {
		int32_t id[2];
		OK(session_queue_step(s[1]->s, both, 2, err));
		OK(session_take_sampled(s[1]->s, id, NULL, err));
		got[1][0][n] = id[0];
		got[1][1][n] = id[1];
	}
	assert_memory_equal(got[0], got[1], sizeof got[0]);
	for (int k = 0; k < 2; k++)
		llmc_session_close(s[k]);
}

/* Steps whose samples are never read, one queued after another: closing waits for them, and nothing
 * leaks. */
static void
sessions_close_with_steps_in_flight(void **state)
{
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_chunk c = { .n_tok = 1, .n_out = 1 };
	const int32_t prompt[4] = { 1, 2, 3, 4 };

	(void)state;
	l.context = CONTEXT;
	l.seqs = 2;
	for (int steps = 1; steps <= 2; steps++) {
		llmc_model *m;
		llmc_session *s;
		OK(shared_tiny("cuda", NULL, NULL, &m, err));
		const long before = emu_leaks();
		OK(llmc_session_open(m, &l, &s, err));
		OK(llmc_seq_new(s, 0, &c.seq, err));
		OK(session_sample_params(s->s, c.seq, &greedy, NULL, 0, NULL, 0, err));
		c.tok = prompt;
		c.n_tok = 4;
		for (int i = 0; i < steps; i++) {
			OK(session_queue_step(s->s, &c, 1, err));
			/* later steps read the token that the previous step sampled */
			c.tok = NULL;
			c.n_tok = 1;
		}
		llmc_session_close(s);
		assert_int_equal(emu_leaks(), before);
	}
}

/* A step that waits for its masks blocks other steps. */
static void
samples_are_read_in_order(void **state)
{
	static uint32_t none[(VOCAB + 31) / 32];
	const uint32_t *mask = none;
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_limits l = LLMC_INIT(llmc_limits);
	const int32_t prompt[4] = { 1, 2, 3, 4 };
	llmc_chunk c = { .tok = prompt, .n_tok = 4, .n_out = 1 };
	llmc_model *m;
	llmc_session *s;
	int32_t id;

	(void)state;
	l.context = CONTEXT;
	l.seqs = 2;
	OK(shared_tiny("cuda", NULL, NULL, &m, err));
	OK(llmc_session_open(m, &l, &s, err));
	OK(llmc_seq_new(s, 0, &c.seq, err));
	OK(session_sample_params(s->s, c.seq, &greedy, NULL, 0, NULL, 0, err));
	assert_int_equal(session_queue_sample(s->s, &mask, NULL), LLMC_E_RANGE);
	OK(session_queue_rows(s->s, &c, 1, err));
	c.tok = NULL;
	c.n_tok = 1;
	assert_int_equal(session_queue_step(s->s, &c, 1, NULL), LLMC_E_BUSY);
	OK(session_queue_sample(s->s, &mask, err)); /* no token is allowed */
	assert_int_equal(session_take_sampled(s->s, &id, NULL, NULL), LLMC_E_CHECK);
	assert_int_equal(id, -1);
	llmc_session_close(s);
}

typedef struct Answer {
	int32_t id[40], n;
	llmc_finish finish;
} Answer;

/* Run n requests at once, each with or without a grammar. host: sample on the host, as with top
 * logprobs. */
static void
run_engine(Engine *e, Grammar *const *g, const llmc_params *p, int n, bool host, Answer *out)
{
	static const int32_t prompt[5] = { 9, 8, 7, 6, 5 };
	llmc_event ev = LLMC_INIT(llmc_event);
	int64_t id[8];

	engine_pause(e, true);
	for (int i = 0; i < n; i++) {
		llmc_request r = LLMC_INIT(llmc_request);
		llmc_params own = *p;
		own.grammar = g[i];
		own.seed = 40 + (uint64_t)i;
		r.tok = prompt;
		r.n_tok = (size_t)(2 + i % 4);
		r.params = &own;
		r.n_top = host;
		OK(engine_submit(e, &r, &id[i], err));
	}
	engine_pause(e, false);
	for (int i = 0; i < n; i++) {
		out[i].n = 0;
		do {
			OK(engine_next(e, id[i], -1, &ev, err));
			if (ev.kind == LLMC_EVENT_ERROR)
				fail_msg("%s", ev.text);
			if (ev.kind == LLMC_EVENT_TOKEN)
				out[i].id[out[i].n++] = ev.token;
		} while (!ev.last);
		out[i].finish = ev.finish;
	}
	llmc_event_release(&ev);
}

/* With grammars the device samples under masks, which a separate thread or the engine's own
 * computes during the step: the tokens equal those sampled on the host. */
static void
grammar_masks_on_the_device_equal_the_hosts(void **state)
{
	enum { N = 3 };
	llmc_engine_options o = LLMC_INIT(llmc_engine_options);
	llmc_limits l = LLMC_INIT(llmc_limits);
	llmc_params p[2] = { LLMC_INIT(llmc_params), LLMC_INIT(llmc_params) };
	Grammar *g[N] = { tiny_grammar("([a-f][0-4]){3,6}"), NULL,
		          tiny_grammar("(a0|b1|([x-z][0-9])*q2){1,9}") };
	llmc_model *m;
	llmc_session *s;
	Engine *e;

	(void)state;
	o.limits = &l;
	o.speculate = -1;
	l.context = CONTEXT;
	l.seqs = N;
	l.chunk = CHUNK;
	p[1].temperature = 1.2f;
	p[1].top_p = 0.9f;
	p[1].repetition_penalty = 1.3f;
	OK(shared_tiny("cuda", NULL, NULL, &m, err));
	for (int ahead = 0; ahead < 2; ahead++) {
		static Answer want[N], got[N];
		llmc_limits lim = engine_limits(m->plan, &o);
		OK(llmc_session_open(m, &lim, &s, err));
		OK(engine_open(s->s, NULL, &o, &e, err));
		OK(engine_set_mask_thread(e, ahead, err));
		p[ahead].max_tokens = 7;
		run_engine(e, g, &p[ahead], N, true, want);
		long down = emu_count("cuMemcpyDtoHAsync_v2");
		run_engine(e, g, &p[ahead], N, false, got);
		assert_int_equal(emu_count("cuMemcpyDtoHAsync_v2"),
		                 down); /* no logits were copied to the host */
		for (int i = 0; i < N; i++) {
			assert_int_equal(got[i].n, want[i].n);
			assert_int_equal(got[i].finish, want[i].finish);
			assert_memory_equal(got[i].id, want[i].id,
			                    (size_t)want[i].n * sizeof want[i].id[0]);
		}
		engine_close(e, -1);
		llmc_session_close(s);
	}
	for (int i = 0; i < N; i++)
		if (g[i])
			grammar_close(g[i]);
}

/* Each step in flight has its own masks: they allow each sequence a single token, which it must
 * sample. */
static void
masks_in_flight(void **state)
{
	static uint32_t bits[2][(VOCAB + 31) / 32];
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_limits l = LLMC_INIT(llmc_limits);
	const int32_t prompt[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } };
	llmc_chunk c[2];
	llmc_model *m;
	llmc_session *s;

	(void)state;
	l.context = CONTEXT;
	l.seqs = 2;
	OK(shared_tiny("cuda", NULL, NULL, &m, err));
	OK(llmc_session_open(m, &l, &s, err));
	for (int i = 0; i < 2; i++) {
		c[i] = (llmc_chunk){ .tok = prompt[i], .n_tok = 3, .n_out = 1 };
		OK(llmc_seq_new(s, 0, &c[i].seq, err));
		OK(session_sample_params(s->s, c[i].seq, &greedy, NULL, 0, NULL, 0, err));
	}
	for (int round = 0; round < 8; round++) {
		int32_t want[2], got;
		for (int i = 0; i < 2; i++) {
			const uint32_t *mask = bits[i];
			want[i] = random_below(VOCAB);
			memset(bits[i], 0, sizeof bits[i]);
			bits[i][want[i] / 32] = 1u << want[i] % 32;
			OK(session_queue_rows(s->s, &c[i], 1, err));
			OK(session_queue_sample(s->s, &mask, err));
			c[i].tok = NULL;
			c[i].n_tok = 1;
		}
		for (int i = 0; i < 2; i++) {
			OK(session_take_sampled(s->s, &got, NULL, err));
			assert_int_equal(got, want[i]);
		}
	}
	llmc_session_close(s);
}

/* Prompts come and go in a session with few pages, whose prefix cache is swapped to host memory and
 * back. Half of them are cancelled with their steps in flight, and other sequences take their
 * pages. The token after each equals the reference's. */
static void
pages_of_steps_in_flight(void **state)
{
	enum { PROMPTS = 4, LONGEST = 97 };
	static const int32_t length[PROMPTS] = { 70, LONGEST, 40, 66 };
	static const char *const set[] = { "kv.host=1M", "attention.window=40",
		                           "attention.window_layers=[0]", NULL };
	static int32_t tok[PROMPTS][LONGEST];
	static float logits[VOCAB];
	llmc_params greedy = LLMC_INIT(llmc_params);
	llmc_limits l = LLMC_INIT(llmc_limits);
	int32_t want[PROMPTS], id;
	llmc_model *m[2];
	llmc_session *s[2];
	llmc_seq q;
	const long before = emu_leaks();

	(void)state;
	l.context = CONTEXT;
	l.seqs = 1;
	l.chunk = LONGEST;
	for (int k = 0; k < 2; k++) {
		if (k) {
			l.kv_tokens = 160; /* five pages; a prompt takes up to four */
			l.host_tokens = 512;
		}
		OK(open_tiny_with(k ? "cuda" : "ref", NULL, set + !k, &m[k], err));
		OK(llmc_session_open(m[k], &l, &s[k], err));
	}
	for (int p = 0; p < PROMPTS; p++) {
		const llmc_chunk c = { .tok = tok[p], .n_tok = length[p], .n_out = 1 };
		for (int i = 0; i < length[p]; i++)
			tok[p][i] = (7 * i + 31 * p) % VOCAB;
		OK(llmc_seq_new(s[0], 0, &q, err));
		llmc_chunk whole = c;
		whole.seq = q;
		OK(llmc_forward(s[0], &whole, 1, logits, err));
		want[p] = best(logits);
		llmc_seq_free(s[0], q);
	}
	Kv *kv = &s[1]->s->kv;
	OK(kv_prefix_open(kv, err));
	for (int round = 0; round < 20; round++) {
		const int p = random_below(PROMPTS);
		/* the request is cancelled at this length */
		const int32_t end = round % 2 ? length[p] : random_below(length[p]);
		OK(llmc_seq_new(s[1], 0, &q, err));
		OK(session_sample_params(s[1]->s, q, &greedy, NULL, 0, NULL, 0, err));
		for (int32_t at = session_prefix_find(s[1]->s, q, tok[p], length[p]); at < end;) {
			const int32_t left = length[p] - at, some = 1 + random_below(2 * CHUNK),
			              n = random_below(3) && some < left ? some : left;
			const llmc_chunk c = {
				.seq = q, .tok = tok[p] + at, .n_tok = n, .n_out = n == left
			};
			OK(session_queue_step(s[1]->s, &c, 1, err));
			session_prefix_keep(s[1]->s, q, tok[p]);
			at += n;
			if (at < length[p])
				continue;
			OK(session_take_sampled(s[1]->s, &id, NULL, err));
			assert_int_equal(id, want[p]);
		}
		llmc_seq_free(s[1], q);
	}
	assert_true(kv->host.n_in > 6 && kv->host.n_out > 6);
	for (int k = 0; k < 2; k++) {
		llmc_session_close(s[k]);
		llmc_close(m[k]);
	}
	assert_int_equal(emu_leaks(), before);
}

int
main(void)
{
	char dir[4096];
	Tempdir cache;

	if (!emulator(dir)) {
		printf("1..0 # skipped: the emulator is not built (make emu-lib)\n");
		return 0;
	}
	if (getenv("TEST_SEED"))
		seed = (uint32_t)atoi(getenv("TEST_SEED"));
	if (getenv("TEST_ONLY"))
		cmocka_set_test_filter(getenv("TEST_ONLY"));
	if (tempdir_open(&cache) != 0)
		return 1;
	setenv("LLMC_CACHE", cache.path, 1);
	const struct CMUnitTest tests[] = { cmocka_unit_test(many_steps),
		                            cmocka_unit_test(many_steps_with_windows),
		                            cmocka_unit_test(a_failed_step_is_queued_again),
		                            cmocka_unit_test(sessions_close_with_steps_in_flight),
		                            cmocka_unit_test(samples_are_read_in_order),
		                            cmocka_unit_test(masks_in_flight),
		                            cmocka_unit_test(pages_of_steps_in_flight),
		                            cmocka_unit_test(
		                                grammar_masks_on_the_device_equal_the_hosts) };
	int rc = no_findings(close_shared(cmocka_run_group_tests(tests, NULL, NULL)));
	tempdir_close(&cache);
	return rc;
}

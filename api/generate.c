/* llmc_generate: prefill in chunks, then sample token by token. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "runtime/sample/sample.h"
#include "runtime/stop.h"
#include "base/sized.h"

typedef struct Generate {
	llmc_session   *s;
	llmc_params     p;
	llmc_token_fn   on_token;
	void           *user;
	llmc_sampler   *sampler;
	SampleScratch   scratch;
	llmc_stream    *stream; /* NULL: the model has no tokenizer */
	Stop           *stop;
	Draft          *draft;  /* NULL: nothing is guessed */
	int32_t        *text;   /* [n_prompt + most] with a draft: all tokens */
	int32_t         n_text;
	int32_t         fed[1 + DRAFT_MOST], n_again; /* of the step: what runs again, the token, guesses behind it */
	int32_t         mark;   /* positions in front of them, where there are states */
} Generate;

static bool
is_eos(const Plan *plan, int32_t id)
{
	for (int i = 0; i < plan->n_eos; i++)
		if (plan->eos[i] == id)
			return true;
	return false;
}

/* Text of a token (id -1: what is left) through detokeniser and stop strings to the caller. */
static llmc_status
emit(Generate *g, int32_t id, bool *stopped, bool *cancelled, llmc_error *err)
{
	const char *text = "";
	size_t n = 0;

	if (g->stream && id < llmc_tokenizer_size(g->s->model->tokenizer)) /* vocabularies are often padded beyond the tokenizer's */
		TRY(llmc_stream_feed(g->stream, id, &text, &n, err));
	TRY(stop_feed(g->stop, text, n, id < 0, &text, &n, stopped, err));
	if ((id >= 0 || n) && g->on_token && !g->on_token(g->user, id, text, n))
		*cancelled = true;
	return LLMC_OK;
}

/* A new token: *done when it is the last, for the reason in res->finish. */
static llmc_status
take(Generate *g, int32_t id, int32_t most, llmc_result *res, bool *done, llmc_error *err)
{
	bool stopped = false, cancelled = false;

	*done = true;
	if (!g->p.ignore_eos && is_eos(g->s->model->plan, id)) {
		res->finish = LLMC_FINISH_EOS;
		return LLMC_OK;
	}
	if (sampler_stops_at(g->sampler, id)) {
		res->finish = LLMC_FINISH_TOKEN;
		return LLMC_OK;
	}
	llmc_sampler_accept(g->sampler, id, false);
	res->n_new++;
	TRY(emit(g, id, &stopped, &cancelled, err));
	if (stopped || cancelled)
		res->finish = cancelled ? LLMC_FINISH_CANCEL : LLMC_FINISH_STOP;
	else
		*done = res->n_new == most;
	if (!*done && sampler_at_end(g->sampler)) {
		res->finish = LLMC_FINISH_EOS;
		*done = true;
	}
	return LLMC_OK;
}

/* The prompt, chunk by chunk; the last row's logits, or with `ahead` its pick, are what follows. */
static llmc_status
prefill(Generate *g, llmc_seq q, const int32_t *tok, size_t n_tok, bool ahead, llmc_error *err)
{
	int32_t chunk = session_limits_of(g->s->s)->chunk;

	for (size_t at = 0; at < n_tok;) {
		int32_t n = n_tok - at < (size_t)chunk ? (int32_t)(n_tok - at) : chunk;
		llmc_chunk c = { .seq = q, .tok = tok + at, .n_tok = n, .n_out = at + (size_t)n == n_tok };
		if (ahead)
			TRY(session_queue_step(g->s->s, &c, 1, err));
		else
			TRY(session_forward(g->s->s, &c, 1, c.n_out ? g->s->logits : NULL, err));
		at += (size_t)n;
	}
	return LLMC_OK;
}

/* The token behind the text, with guesses behind it; *guesses: how many. In front of it run those that the sequence has been trimmed by though they were right. */
static llmc_status
forward(Generate *g, llmc_seq q, int32_t id, int32_t room, int32_t *guesses, llmc_error *err)
{
	Drafter *of = &g->s->drafter;

	*guesses = 0;
	g->fed[g->n_again] = id;
	if (g->draft) {
		const int32_t before = session_seq_len(g->s->s, q); /* draft_rows counts on no fewer of them than rows */
		int32_t rows = (g->s->most_rows < before ? g->s->most_rows : before) - 1 - g->n_again;
		if (g->p.speculate > 0 && g->p.speculate < rows)
			rows = g->p.speculate;
		draft_look_up(g->draft, of, g->text, g->n_text, rows < room ? rows : room);
		drafter_choose(of, &g->draft, 1, 1, g->n_again, rows);
		*guesses = g->draft->run;
		if (*guesses && !g->n_again && session_seq_mark(g->s->s, q, NULL) != LLMC_OK)
			*guesses = 0; /* other sequences have the marks */
		if (*guesses && !g->n_again)
			g->mark = session_seq_len(g->s->s, q);
		memcpy(g->fed + g->n_again + 1, g->draft->tok, (size_t)*guesses * sizeof *g->fed);
	}
	llmc_chunk c = { .seq = q, .tok = g->fed, .n_tok = g->n_again + 1 + *guesses, .n_out = 1 + *guesses };
	double start = clock_now();
	TRY(session_forward(g->s->s, &c, 1, g->s->logits, err));
	if (g->draft && (*guesses || !g->n_again))
		drafter_measured(of, c.n_tok, *guesses > 0, clock_now() - start);
	return LLMC_OK;
}

/* Of `guesses` behind the token that was fed the first `right` have come true: what was guessed wrong leaves the sequence. Where there are states all leaves it that was
 * fed since its mark, and what was right runs again. */
static llmc_status
take_back(Generate *g, llmc_seq q, int32_t guesses, int32_t right, llmc_error *err)
{
	const bool back = right < guesses && g->s->drafter.states;

	g->n_again = back ? g->n_again + 1 + right : 0;
	return right == guesses ? LLMC_OK : session_seq_trim(g->s->s, q, back ? g->mark : session_seq_len(g->s->s, q) - (guesses - right), err);
}

/* The host picks, row by row, while the picks are what was guessed. */
static llmc_status
decode(Generate *g, llmc_seq q, int32_t most, llmc_result *res, double *first, llmc_error *err)
{
	size_t vocab = (size_t)g->s->model->plan->vocab;
	int32_t guesses = 0;

	for (bool done = false; !done;) {
		int32_t id = -1, came = 0;
		bool right = true;
		while (right && !done) {
			TRY(sampler_sample(g->sampler, &g->scratch, g->s->logits + (size_t)came * vocab, &id, err));
			if (res->n_new == 0)
				*first = clock_now();
			TRY(take(g, id, most, res, &done, err));
			right = came < guesses && g->draft->tok[came] == id;
			came++;
			if (g->draft)
				g->text[g->n_text++] = id;
		}
		if (g->draft)
			draft_learn(g->draft, &g->s->drafter, g->text + g->n_text - came, came);
		if (done)
			break;
		TRY(take_back(g, q, guesses, came - 1, err));
		/* the last new token is never fed back */
		TRY(forward(g, q, id, most - res->n_new - 1, &guesses, err));
	}
	return LLMC_OK;
}

/* The device picks: the next step is on its way before the token of this one is looked at. */
static llmc_status
decode_ahead(Generate *g, llmc_seq q, int32_t most, llmc_result *res, double *first, llmc_error *err)
{
	int32_t queued = 1; /* the prompt's own */

	for (bool done = false; !done;) {
		llmc_chunk c = { .seq = q, .n_tok = 1, .n_out = 1 };
		int32_t id;
		if (queued < most) {
			TRY(session_queue_step(g->s->s, &c, 1, err));
			queued++;
		}
		TRY(session_take_sampled(g->s->s, &id, NULL, err));
		if (res->n_new == 0)
			*first = clock_now();
		TRY(take(g, id, most, res, &done, err));
	}
	return LLMC_OK;
}

static llmc_status
run(Generate *g, llmc_seq q, const int32_t *tok, size_t n_tok, int32_t most, llmc_result *res, llmc_error *err)
{
	bool ahead = session_can_sample(g->s->s, &g->p), stopped = false, cancelled = false;
	double t0 = clock_now();

	if (ahead)
		TRY(session_sample_params(g->s->s, q, &g->p, tok, n_tok, NULL, 0, err));
	TRY(prefill(g, q, tok, n_tok, ahead, err));
	for (size_t i = 0; i < n_tok; i++)
		llmc_sampler_accept(g->sampler, tok[i], true);
	if (!ahead && g->p.speculate >= 0 && g->s->most_rows > 1) { /* without memory nothing is guessed */
		g->text = malloc((n_tok + (size_t)most) * sizeof *g->text);
		g->draft = g->text ? draft_new((int32_t)n_tok + most) : NULL;
		if (g->draft)
			memcpy(g->text, tok, n_tok * sizeof *tok);
		g->n_text = (int32_t)n_tok;
	}
	double t1 = clock_now(), first = t1; /* decoding is timed from the first new token */
	res->n_prompt = (int32_t)n_tok;
	res->finish = LLMC_FINISH_LENGTH;
	if (ahead)
		TRY(decode_ahead(g, q, most, res, &first, err));
	else
		TRY(decode(g, q, most, res, &first, err));
	res->prefill_s = (ahead ? first : t1) - t0;
	res->decode_s = clock_now() - first;
	if (res->finish == LLMC_FINISH_LENGTH || res->finish == LLMC_FINISH_EOS || res->finish == LLMC_FINISH_TOKEN) {
		TRY(emit(g, -1, &stopped, &cancelled, err));
		if (stopped)
			res->finish = LLMC_FINISH_STOP;
	}
	return LLMC_OK;
}

llmc_status
llmc_generate(llmc_session *s, const int32_t *tok, size_t n_tok, const llmc_params *p, llmc_token_fn on_token, void *user,
              llmc_result *res, llmc_error *err)
{
	Generate g = { .s = s, .p = LLMC_INIT(llmc_params), .on_token = on_token, .user = user };
	llmc_result out = LLMC_INIT(llmc_result);
	const llmc_limits *lim = session_limits_of(s->s);
	llmc_status status;
	llmc_seq q = -1;

	SIZED_TAKE(g.p, p);
	if (s->model->plan->output != LLMC_OUTPUT_LOGITS)
		return error_set(err, LLMC_E_INPUT, "this model makes vectors of texts (head.kind = %s), no text: llmc_embed", plan_output_name[s->model->plan->output]);
	if (n_tok == 0)
		return error_set(err, LLMC_E_INPUT, "the prompt is empty: a model needs at least one token to continue");
	if (n_tok > (size_t)lim->context)
		return error_set(err, LLMC_E_RANGE, "the prompt has %zu tokens, the context holds %d; open the session with a larger context", n_tok, lim->context);
	if (s->model->plan->prompt_whole && n_tok > (size_t)lim->chunk)
		return error_set(err, LLMC_E_RANGE, "this model reads its prompt in one piece: %zu tokens do not fit a chunk of %d; raise the chunk limit", n_tok, lim->chunk);
	/* the last new token is never fed back: it needs no place */
	int32_t room = lim->context - (int32_t)n_tok + 1, most = g.p.max_tokens == 0 ? 256 : g.p.max_tokens;
	if (most < 0 || most > room)
		most = room;
	TRY_GOTO(sample_scratch_open((int32_t)s->model->plan->vocab, &g.scratch, err));
	TRY_GOTO(sampler_open((int32_t)s->model->plan->vocab, &g.p, s->model->plan->eos, s->model->plan->n_eos, &g.sampler, err));
	TRY_GOTO(stop_open(g.p.stop, &g.stop, err));
	if (s->model->tokenizer)
		TRY_GOTO(llmc_stream_open(s->model->tokenizer, true, &g.stream, err));
	TRY_GOTO(session_seq_new(s->s, (int32_t)n_tok + most - 1, &q, err));
	TRY_GOTO(run(&g, q, tok, n_tok, most, &out, err));
fail:
	session_drop_sampled(s->s);
	if (q >= 0)
		session_seq_free(s->s, q);
	llmc_stream_close(g.stream);
	draft_free(g.draft);
	free(g.text);
	stop_close(g.stop);
	llmc_sampler_close(g.sampler);
	sample_scratch_release(&g.scratch);
	if (status == LLMC_OK && res)
		SIZED_GIVE(res, out);
	return status;
}

llmc_status
llmc_generate_text(llmc_session *s, const char *prompt, const llmc_params *p, llmc_token_fn on_token, void *user,
                   llmc_result *res, llmc_error *err)
{
	const llmc_tokenizer *t = s->model->tokenizer;
	size_t n_bytes = strlen(prompt), cap = n_bytes + 16, n = 0;

	if (!t)
		return error_set(err, LLMC_E_INPUT, "the model has no tokenizer: use llmc_generate with ids");
	for (;;) {
		int32_t *ids = malloc(cap * sizeof *ids);
		if (!ids)
			return error_set(err, LLMC_E_MEMORY, "out of memory");
		llmc_status status = llmc_tokenize(t, prompt, n_bytes, LLMC_ADD_SPECIAL | LLMC_PARSE_SPECIAL, ids, cap, &n, err);
		if (status == LLMC_OK)
			status = llmc_generate(s, ids, n, p, on_token, user, res, err);
		free(ids);
		if (status != LLMC_E_RANGE || n <= cap)
			return status;
		cap = n;
	}
}

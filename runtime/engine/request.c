/* A request inside the engine, and the output of its choices. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "runtime/engine/engine_internal.h"
#include "base/sized_struct.h"

enum { MAX_POOL_TOK = 1024 };

/* ---- validation and opening ---- */

static llmc_status
check_request(const Engine *e, const llmc_request *r, const llmc_params *p, llmc_error *err)
{
	if (r->n_tok == 0 || !r->tok)
		return error_set(
		    err, LLMC_E_INPUT,
		    "the prompt is empty: a model needs at least one token to continue");
	if (r->n_tok > (size_t)e->lim.context)
		return error_set(err, LLMC_E_RANGE,
		                 "the prompt has %zu tokens, the context holds %d of the model's "
		                 "%lld positions",
		                 r->n_tok, e->lim.context, (long long)e->plan->max_positions);
	for (size_t i = 0; i < r->n_tok; i++)
		if (r->tok[i] < 0 || r->tok[i] >= e->plan->vocab)
			return error_set(err, LLMC_E_RANGE,
			                 "token %zu of the prompt is %d, ids are 0 .. %lld", i,
			                 r->tok[i], (long long)e->plan->vocab - 1);
	if (r->n_pool_tok < 0 || r->n_pool_tok > (r->pool ? MAX_POOL_TOK : LLMC_MAX_TOP) ||
	    (r->n_pool_tok && (e->plan->output != LLMC_OUTPUT_LOGITS || r->pool == LLMC_POOL_MEAN)))
		return error_set(err, LLMC_E_RANGE,
		                 "n_pool_tok is %d: up to %d tokens, for a model that "
		                 "generates text, with pool last, cls or none",
		                 r->n_pool_tok, r->pool ? MAX_POOL_TOK : LLMC_MAX_TOP);
	for (int32_t i = 0; i < r->n_pool_tok; i++)
		if (!r->pool_tok || r->pool_tok[i] < 0 || r->pool_tok[i] >= e->plan->vocab)
			return error_set(
			    err, LLMC_E_RANGE,
			    "pool_tok is NULL or holds an invalid token id; ids are 0 .. %lld",
			    (long long)e->plan->vocab - 1);
	if (e->plan->output == LLMC_OUTPUT_LOGITS && r->pool && !r->n_pool_tok)
		return error_set(err, LLMC_E_INPUT,
		                 "this model generates text, not vectors: open it with "
		                 "head.kind=hidden for its last hidden states");
	if (e->plan->output != LLMC_OUTPUT_LOGITS && !r->pool)
		return error_set(err, LLMC_E_INPUT,
		                 "this model returns vectors (head.kind = %s), not text",
		                 plan_output_name[e->plan->output]);
	if (r->pool > LLMC_POOL_CLS ||
	    (r->pool && (r->n > 1 || r->best_of > 1 || r->prompt_logprobs)))
		return error_set(err, LLMC_E_RANGE,
		                 "pool is %d: it must be valid, and a pooled request has "
		                 "one choice and no prompt log probabilities",
		                 (int)r->pool);
	if (r->n < 0 || r->n > LLMC_MAX_CHOICES)
		return error_set(err, LLMC_E_RANGE, "n is %d, possible are 1 .. %d", r->n,
		                 LLMC_MAX_CHOICES);
	if (r->best_of && (r->best_of < (r->n ? r->n : 1) || r->best_of > LLMC_MAX_CHOICES))
		return error_set(err, LLMC_E_RANGE, "best_of is %d, possible are n (%d) .. %d",
		                 r->best_of, r->n ? r->n : 1, LLMC_MAX_CHOICES);
	if (r->n_top < 0 || r->n_top > LLMC_MAX_TOP)
		return error_set(err, LLMC_E_RANGE, "n_top is %d, possible are 0 .. %d", r->n_top,
		                 LLMC_MAX_TOP);
	if (!(r->deadline_s >= 0))
		return error_set(err, LLMC_E_RANGE,
		                 "deadline_s is %g, it must be 0 (none) or above", r->deadline_s);
	return sampler_check(p, (int32_t)e->plan->vocab, err);
}

/* Maximum number of new tokens. The last token is never an input, so it needs no position. */
static int32_t
most_new(const Engine *e, const llmc_request *r, const llmc_params *p)
{
	int64_t room = e->lim.context - (int64_t)r->n_tok + 1, most = r->pool ? 1
	                                                              : p->max_tokens == 0
	                                                                  ? 256
	                                                                  : p->max_tokens;

	if (most > room)
		return (int32_t)room;
	if (most > 0)
		return (int32_t)most;
	/* no limit given: as many as the context and the pages allow */
	int64_t pages = e->sched_lim.pages * PLAN_KV_PAGE - (int64_t)r->n_tok + 1,
	        n = r->best_of ? r->best_of
	            : r->n     ? r->n
	                       : 1;
	room = pages < room ? pages : room;
	if (e->sched_lim.total_tokens && (e->sched_lim.total_tokens - (int64_t)r->n_tok) / n < room)
		room = (e->sched_lim.total_tokens - (int64_t)r->n_tok) / n;
	return (int32_t)(room > 0 ? room : 1);
}

static llmc_status
open_choice(Engine *e, EngineRequest *j, int32_t i, const llmc_request *r, llmc_params *p,
            llmc_error *err)
{
	RequestChoice *c = &j->choice[i];

	c->seq = &j->req->seq[i];
	c->device_n = -1;
	c->draft_session = -1;
	p->seed = j->p.seed + (uint64_t)i;
	TRY(sampler_open((int32_t)e->plan->vocab, p, e->plan->eos, e->plan->n_eos, &c->sampler,
	                 err));
	sampler_set_breakers(c->sampler, j->breakers);
	sampler_set_tokenizer(c->sampler, e->tok);
	TRY(sampler_limit_thinking(c->sampler, e->tok, p, err));
	for (size_t k = 0; k < r->n_tok; k++)
		llmc_sampler_accept(c->sampler, r->tok[k], true);
	TRY(stop_open(p->stop, p->stop_ignore, &c->stop, err));
	if (e->tok)
		TRY(llmc_stream_open(e->tok, !r->show_special, &c->stream, err));
	return LLMC_OK;
}

/* Return the request's DRY breakers. Converting breaker strings to tokens reads the whole
 * vocabulary, so the breakers of the last request are kept. */
static llmc_status
open_breakers(Engine *e, const llmc_params *p, DryBreakers **out, llmc_error *err)
{
	Strbuf key = { 0 };

	*out = NULL;
	if (!sampler_uses_breakers(p) || !e->tok)
		return LLMC_OK;
	strbuf_putc(&key, p->dry_sequence_breakers ? 'L' : 'D');
	for (const char *const *s = p->dry_sequence_breakers; s && *s; s++)
		strbuf_add(&key, *s, strlen(*s) + 1);
	pthread_mutex_lock(&e->lock);
	if (e->breakers && !key.failed && key.len == e->breakers_key.len &&
	    memcmp(key.data, e->breakers_key.data, key.len) == 0)
		*out = dry_breakers_ref(e->breakers);
	pthread_mutex_unlock(&e->lock);
	if (!*out) {
		llmc_status status = dry_breakers_open(e->tok, p->dry_sequence_breakers, out, err);
		if (status != LLMC_OK || key.failed) {
			strbuf_release(&key);
			return status;
		}
		pthread_mutex_lock(&e->lock);
		DryBreakers *old = e->breakers;
		Strbuf old_key = e->breakers_key;
		e->breakers = dry_breakers_ref(*out);
		e->breakers_key = key;
		pthread_mutex_unlock(&e->lock);
		dry_breakers_close(old);
		key = old_key;
	}
	strbuf_release(&key);
	return LLMC_OK;
}

/* Return the key that stands for a row of an image among token ids, in the scheduler and the prefix
 * cache. It is never the id of a token */
static int32_t
image_key(uint64_t key, int32_t row)
{
	uint64_t x = random_mix(key + (uint64_t)(row + 1) * 0x9E3779B97F4A7C15u);

	return (int32_t)(x & 0x7FFFFFFF) - INT32_MAX - 1;
}

/* Set the RoPE positions of a prompt: time, row and column. Text counts up in all three. All tokens
 * of an image have the same time, and their own row and column. Text after an image continues from
 * the largest of these values. */
static llmc_status
place_images(const Engine *e, EngineRequest *j, const llmc_request *r,
             const llmc_image_part *images, llmc_error *err)
{
	const size_t n = (size_t)j->req->bound + 1;
	int32_t next = 0, in_image = 0;
	size_t image = 0;

	for (size_t i = 0; i < r->n_images; i++)
		if ((int64_t)images[i].height * images[i].width != images[i].n_row)
			return error_set(
			    err, LLMC_E_INPUT,
			    "image %zu has %d rows, its height and width are %d and %d", i,
			    images[i].n_row, images[i].height, images[i].width);
	j->rope_at = calloc(3 * n, sizeof *j->rope_at);
	if (!j->rope_at)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a request");
	for (size_t i = 0; i < n; i++) {
		const bool is_image = i < r->n_tok && r->tok[i] == e->plan->image_token;
		const llmc_image_part *part = is_image ? &images[image] : NULL;
		j->rope_at[i] = next;
		j->rope_at[n + i] = next + (part ? in_image / part->width : 0);
		j->rope_at[2 * n + i] = next + (part ? in_image % part->width : 0);
		if (!part) {
			next++;
		} else if (++in_image == part->n_row) {
			next += part->height > part->width ? part->height : part->width;
			in_image = 0;
			image++;
		}
	}
	return LLMC_OK;
}

/* Copy the image rows. The rows belong to the image tokens of the prompt, in order. */
static llmc_status
copy_images(const Engine *e, EngineRequest *j, const llmc_request *r, const llmc_image_part *images,
            llmc_error *err)
{
	const size_t width = (size_t)plan_row_width(e->plan);
	size_t n_row = 0, n_token = 0, at = 0, image = 0;
	int32_t in_image = 0;

	for (size_t i = 0; i < r->n_images; i++) {
		const llmc_image_part *part = &images[i];
		if (!part->row || part->n_row < 1 || part->height < 0 || part->width < 0)
			return error_set(err, LLMC_E_RANGE,
			                 "image %zu has %s, %d rows, height %d and width %d", i,
			                 part->row ? "rows" : "no rows", part->n_row, part->height,
			                 part->width);
		n_row += (size_t)part->n_row;
	}
	for (size_t i = 0; i < r->n_tok; i++)
		n_token += r->tok[i] == e->plan->image_token;
	if (n_row != n_token)
		return error_set(err, LLMC_E_INPUT,
		                 "the prompt has %zu image tokens, its %zu images have %zu rows",
		                 n_token, r->n_images, n_row);
	j->image_row = calloc(n_row * width + 1, sizeof *j->image_row);
	j->image_at = calloc((size_t)j->req->bound + 1, sizeof *j->image_at);
	j->image_prompt = calloc(r->n_tok, sizeof *j->image_prompt);
	if (!j->image_row || !j->image_at || !j->image_prompt)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a request");
	memcpy(j->image_prompt, r->tok, r->n_tok * sizeof *r->tok);
	for (size_t i = 0, to = 0; i < r->n_images; i++) {
		const size_t floats = (size_t)images[i].n_row * width;
		memcpy(j->image_row + to, images[i].row, floats * sizeof *j->image_row);
		to += floats;
	}
	for (int32_t i = 0; i <= j->req->bound; i++) {
		j->image_at[i] = -1;
		if ((size_t)i >= r->n_tok || r->tok[i] != e->plan->image_token)
			continue;
		while (in_image >= images[image].n_row) {
			image++;
			in_image = 0;
		}
		for (int32_t k = 0; k < j->req->n_seq; k++)
			j->req->seq[k].tok[i] = image_key(images[image].key, in_image);
		in_image++;
		j->image_at[i] = (int32_t)at++;
	}
	j->speculate = 0; /* drafts are looked up in the prompt */
	if (e->plan->image_whole)
		j->req->image_at = j->image_at;
	return plan_three_positions(e->plan) ? place_images(e, j, r, images, err) : LLMC_OK;
}

static llmc_status
open_images(const Engine *e, EngineRequest *j, const llmc_request *r, llmc_error *err)
{
	if (!r->n_images)
		return LLMC_OK;
	if (!r->images)
		return error_set(err, LLMC_E_RANGE, "n_images is %zu without images", r->n_images);
	if (e->plan->vision != VISION_ROWS)
		return error_set(err, LLMC_E_INPUT,
		                 "this model was opened without images (vision.part)");
	if (r->pool || r->prompt_logprobs)
		return error_set(err, LLMC_E_INPUT, "a prompt with images has no %s",
		                 r->pool ? "pooled vector" : "log probabilities of its tokens");
	if (r->n_images > r->n_tok) /* an image has at least one token */
		return error_set(err, LLMC_E_INPUT, "the prompt has %zu tokens and %zu images",
		                 r->n_tok, r->n_images);
	llmc_image_part *images = calloc(r->n_images, sizeof *images);
	if (!images)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a request");
	for (size_t i = 0; i < r->n_images; i++)
		SIZED_TAKE_AT(images[i], r->images, i);
	llmc_status status = copy_images(e, j, r, images, err);
	free(images);
	return status;
}

llmc_status
request_open(Engine *e, const llmc_request *request, EngineRequest **out, llmc_error *err)
{
	llmc_request r = LLMC_INIT(llmc_request);
	llmc_status status;

	*out = NULL;
	SIZED_TAKE(r, request);
	llmc_params p = sampler_params(r.params);
	TRY(check_request(e, &r, &p, err));
	EngineRequest *j = calloc(1, sizeof *j);
	if (!j)
		return error_set(err, LLMC_E_MEMORY, "out of memory for a request");
	clock_cond_init(&j->cond);
	j->user = r.user;
	j->p = p;
	j->n = r.n ? r.n : 1;
	j->best_of = r.best_of ? r.best_of : j->n;
	j->n_top = r.n_top;
	j->logprobs = r.logprobs || r.n_top || r.n_pool_tok || j->best_of > j->n;
	j->prompt_logprobs = r.prompt_logprobs;
	j->keep_stop = r.keep_stop;
	j->speculate = r.pool                                           ? 0
	               : p.speculate == 0 || p.speculate > e->speculate ? e->speculate
	               : p.speculate < 0                                ? 0
	                                                                : p.speculate;
	j->pool = r.pool;
	j->normalize = r.normalize;
	j->submitted = clock_now();
	j->deadline = r.deadline_s > 0 ? j->submitted + r.deadline_s : 0;
	j->req = sched_req_new(r.tok, (int32_t)r.n_tok, most_new(e, &r, &p), j->best_of);
	j->choice = calloc((size_t)j->best_of, sizeof *j->choice);
	j->spare = calloc(1, sizeof *j->spare + 1);
	j->n_pooled = r.n_pool_tok ? r.n_pool_tok : j->pool ? (int32_t)plan_out_width(e->plan) : 0;
	if (j->pool)
		j->pooled = calloc((size_t)j->n_pooled, sizeof *j->pooled);
	if (r.n_pool_tok)
		j->pool_tok = calloc((size_t)r.n_pool_tok, sizeof *j->pool_tok);
	if (j->pool_tok)
		memcpy(j->pool_tok, r.pool_tok, (size_t)r.n_pool_tok * sizeof *j->pool_tok);
	if (!j->req || !j->choice || !j->spare || (j->pool && !j->pooled) ||
	    (r.n_pool_tok && !j->pool_tok)) {
		status = error_set(err, LLMC_E_MEMORY, "out of memory for a request");
		goto fail;
	}
	j->req->user = j;
	j->req->priority = r.priority;
	TRY_GOTO(runtime_adapter_ref(e->session->rt, r.adapter, false, err));
	j->held = e->session->rt;
	j->req->adapter = r.adapter;
	j->req->salt = r.prefix_salt;
	j->req->client = r.client;
	j->req->n_first = r.n_first < r.n_tok ? (int32_t)r.n_first : 0;
	j->req->prompt_rows = r.prompt_logprobs || j->pool > LLMC_POOL_LAST;
	TRY_GOTO(open_images(e, j, &r, err));
	const char *why = sched_reject_reason(&e->sched_lim, j->req);
	if (why) {
		status = error_set(
		    err, LLMC_E_RANGE,
		    "the request (%zu tokens, %d new ones, %d choices) cannot run here: %s",
		    r.n_tok, j->req->max_new, j->best_of, why);
		goto fail;
	}
	TRY_GOTO(open_breakers(e, &p, &j->breakers, err));
	for (int32_t i = 0; i < j->best_of; i++)
		TRY_GOTO(open_choice(e, j, i, &r, &p, err));
	if (r.prompt_logprobs && e->tok)
		TRY_GOTO(llmc_stream_open(e->tok, false, &j->prompt_stream, err));
	j->on_device = j->best_of == 1 && !j->pool && !r.prompt_logprobs && !r.n_top &&
	               !r.n_pool_tok && session_can_mask(e->session, &p);
	j->p.grammar = NULL;
	j->p.grammar_after = NULL;
	/* the caller owns the lists; samplers and stop strings have copies */
	j->p.stop_tokens = NULL;
	j->p.stop = j->p.stop_ignore = NULL;
	j->p.logit_bias = NULL;
	j->p.bad_words = NULL;
	j->p.allowed_tokens = NULL;
	j->p.dry_sequence_breakers = j->p.thinking = NULL;
	j->p.samplers = NULL;
	j->p.n_stop_tokens = j->p.n_logit_bias = j->p.n_bad_words = j->p.n_allowed_tokens = 0;
	*out = j;
	return LLMC_OK;
fail:
	request_free(j);
	return status;
}

void
request_free(EngineRequest *j)
{
	for (int32_t i = 0; j->choice && i < j->best_of; i++) {
		llmc_sampler_close(j->choice[i].sampler);
		llmc_stream_close(j->choice[i].stream);
		stop_close(j->choice[i].stop);
		draft_free(j->choice[i].draft);
		mtp_rows_free(&j->choice[i].head);
		event_list_free(&j->choice[i].held);
	}
	free(j->choice);
	free(j->image_row);
	free(j->image_at);
	free(j->image_prompt);
	free(j->rope_at);
	dry_breakers_close(j->breakers);
	llmc_stream_close(j->prompt_stream);
	event_list_free(&j->out);
	event_list_free(&j->events);
	if (j->held)
		runtime_adapter_unref(j->held, j->req->adapter);
	sched_req_free(j->req);
	free(j->spare);
	free(j->pooled);
	free(j->pool_tok);
	pthread_cond_destroy(&j->cond);
	free(j);
}

/* ---- events ---- */

static Event *
event_new(const EngineRequest *j, llmc_event_kind kind, int32_t index, const llmc_logprob *top,
          int32_t n_top, int32_t n_vector, const char *text, size_t n_bytes)
{
	size_t vector_bytes = (size_t)n_vector * sizeof(float),
	       top_bytes = (size_t)n_top * sizeof *top;
	Event *v = malloc(sizeof *v + vector_bytes + top_bytes + n_bytes + 1);

	if (!v)
		return NULL;
	v->ev = (llmc_event){ .size = sizeof v->ev,
		              .kind = kind,
		              .request = j->id,
		              .user = j->user,
		              .index = index,
		              .token = -1,
		              .n_top = n_top,
		              .n_bytes = n_bytes,
		              .stop = -1,
		              .time_s = clock_now(),
		              .memory_ = v };
	v->next = NULL;
	if (n_top)
		memcpy(v->data + vector_bytes, top, top_bytes);
	if (n_bytes)
		memcpy(v->data + vector_bytes + top_bytes, text, n_bytes);
	v->data[vector_bytes + top_bytes + n_bytes] = 0;
	/* the caller fills in the values */
	v->ev.vector = n_vector ? (const float *)(const void *)v->data : NULL;
	v->ev.n_vector = n_vector;
	v->ev.top = n_top ? (const llmc_logprob *)(const void *)(v->data + vector_bytes) : NULL;
	v->ev.text = v->data + vector_bytes + top_bytes;
	return v;
}

/* Emit an event of a choice now, or hold it until the best choices are known. */
static void
emit_event(EngineRequest *j, RequestChoice *c, Event *v)
{
	event_list_add(c && j->best_of > j->n ? &c->held : &j->out, v);
}

void
request_fail(Engine *e, EngineRequest *j, llmc_status status, const char *text)
{
	if (j->over)
		return;
	Event *v = event_new(j, LLMC_EVENT_ERROR, 0, NULL, 0, 0, text, strlen(text));
	if (!v) { /* use the preallocated event with a constant message */
		static const char out[] = "out of memory";
		v = j->spare;
		j->spare = NULL;
		v->ev = (llmc_event){ .size = sizeof v->ev,
			              .kind = LLMC_EVENT_ERROR,
			              .request = j->id,
			              .user = j->user,
			              .token = -1,
			              .stop = -1,
			              .text = out,
			              .n_bytes = sizeof out - 1,
			              .time_s = clock_now(),
			              .memory_ = v };
	}
	v->ev.status = status;
	v->ev.last = true;
	v->ev.n_prompt = j->req->n_prompt;
	sched_cancel(e->sched, j->req);
	j->over = true;
	e->now.failed++;
	event_list_add(&j->out, v);
}

static bool
no_memory(Engine *e, EngineRequest *j)
{
	request_fail(e, j, LLMC_E_MEMORY, "out of memory");
	return false;
}

/* Does the tokenizer have this token? A model's vocabulary is often padded beyond the size of its
 * tokenizer. */
static bool
has_text(const Engine *e, int32_t id)
{
	return id < llmc_tokenizer_size(e->tok);
}

void
request_rows(Engine *e, EngineRequest *j, int32_t at, int32_t n, const float *rows, int32_t n_rows)
{
	const int64_t width = plan_out_width(e->plan);

	for (int32_t i = at + n - n_rows; i < at + n; i++, rows += width) {
		if (i < j->n_reported || i >= j->req->n_prompt)
			continue; /* pooled before, or not a row of the prompt */
		j->n_reported = i + 1;
		if (j->pool == LLMC_POOL_MEAN ||
		    i == (j->pool == LLMC_POOL_CLS ? 0 : j->req->n_prompt - 1))
			for (int32_t k = 0; k < j->n_pooled; k++)
				j->pooled[k] += rows[j->pool_tok ? j->pool_tok[k] : k];
	}
}

/* Report prompt tokens that the rows [at, at + n) predict, in order and each once. */
bool
request_prompt(Engine *e, EngineRequest *j, int32_t at, int32_t n, const float *logits)
{
	const int32_t *tok = j->req->seq[0].tok;
	int32_t vocab = (int32_t)e->plan->vocab;

	for (int32_t i = at; i <= at + n && i < j->req->n_prompt; i++) {
		llmc_logprob top[LLMC_MAX_TOP];
		const char *text = "";
		float logprob = NAN;
		int32_t n_top = 0, rank = 0;
		size_t n_bytes = 0;
		llmc_error err;
		if (i != j->n_reported)
			continue; /* reported in an earlier chunk, before the tokens ran again */
		if (i > 0) {
			n_top = j->n_top < vocab ? j->n_top : vocab;
			const float *row = logits + (size_t)(i - 1 - at) * (size_t)vocab;
			logprob = sample_logprobs(row, vocab, tok[i], top, n_top);
			rank = sample_rank(row, vocab, tok[i]);
		}
		if (j->prompt_stream && has_text(e, tok[i]) &&
		    llmc_stream_feed(j->prompt_stream, tok[i], &text, &n_bytes, &err) != LLMC_OK) {
			request_fail(e, j, err.code, err.text);
			return false;
		}
		Event *v = event_new(j, LLMC_EVENT_PROMPT, 0, top, n_top, 0, text, n_bytes);
		if (!v)
			return no_memory(e, j);
		v->ev.token = tok[i];
		v->ev.logprob = logprob;
		v->ev.rank = rank;
		event_list_add(&j->out, v);
		j->n_reported++;
	}
	return true;
}

static bool
is_among(const int32_t *ids, int32_t n, int32_t id)
{
	for (int32_t i = 0; i < n; i++)
		if (ids[i] == id)
			return true;
	return false;
}

/* Convert a token (-1: flush) to a string, through the detokeniser and the stop strings. */
static llmc_status
text_of(const Engine *e, EngineRequest *j, RequestChoice *c, int32_t id, const char **text,
        size_t *n, bool *stopped, llmc_error *err)
{
	const char *raw = "";
	size_t n_raw = 0;

	if (c->stream && has_text(e, id))
		TRY(llmc_stream_feed(c->stream, id, &raw, &n_raw, err));
	TRY(stop_feed(c->stop, raw, n_raw, id < 0, text, n, stopped, err));
	if (j->keep_stop) {
		*text = raw;
		*n = n_raw;
	}
	return LLMC_OK;
}

bool
request_token(Engine *e, EngineRequest *j, RequestChoice *c, const SampledToken *p,
              llmc_finish *finish, bool *finished)
{
	const char *text;
	bool stopped = false;
	llmc_error err;
	size_t n;

	*finished = true;
	if (!j->p.ignore_eos && is_among(e->plan->eos, e->plan->n_eos, p->id)) {
		*finish = LLMC_FINISH_EOS;
		return true;
	}
	if (sampler_stops_at(c->sampler, p->id)) {
		*finish = LLMC_FINISH_TOKEN;
		return true;
	}
	llmc_sampler_accept(c->sampler, p->id, false);
	c->n_new++;
	c->sum_logprob += j->logprobs ? p->logprob : 0;
	if (text_of(e, j, c, p->id, &text, &n, &stopped, &err) != LLMC_OK) {
		request_fail(e, j, err.code, err.text);
		return false;
	}
	Event *v = event_new(j, LLMC_EVENT_TOKEN, c->seq->index, p->top, p->n_top, 0, text, n);
	if (!v)
		return no_memory(e, j);
	v->ev.token = p->id;
	v->ev.logprob = j->logprobs ? p->logprob : 0;
	emit_event(j, c, v);
	e->now.new_tokens++;
	bool at_end = sampler_at_end(c->sampler);
	*finish = stopped ? LLMC_FINISH_STOP : at_end ? LLMC_FINISH_EOS : LLMC_FINISH_LENGTH;
	*finished = stopped || at_end || c->n_new == j->req->max_new;
	return true;
}

static double
mean_logprob(const RequestChoice *c)
{
	return c->n_new ? c->sum_logprob / c->n_new : -INFINITY;
}

/* Emit the n best choices as choices 0 .. n-1, best first; in a tie the earlier choice wins. */
static void
emit_best(EngineRequest *j)
{
	for (int32_t k = 0; k < j->n; k++) {
		RequestChoice *best = NULL;
		for (int32_t i = 0; i < j->best_of; i++)
			if (j->choice[i].held.first &&
			    (!best || mean_logprob(&j->choice[i]) > mean_logprob(best)))
				best = &j->choice[i];
		while (best && best->held.first) {
			Event *v = best->held.first;
			best->held.first = v->next;
			v->ev.index = k;
			event_list_add(&j->out, v);
		}
	}
}

void
request_finish(Engine *e, EngineRequest *j, RequestChoice *c, llmc_finish finish,
               const SampledToken *p)
{
	double now = clock_now();
	const char *text = "";
	bool stopped = false;
	llmc_error err;
	size_t n = 0;

	sched_finish(e->sched, c->seq);
	if (finish != LLMC_FINISH_STOP &&
	    text_of(e, j, c, -1, &text, &n, &stopped, &err) != LLMC_OK) {
		request_fail(e, j, err.code, err.text);
		return;
	}
	if (stopped && finish == LLMC_FINISH_LENGTH)
		finish = LLMC_FINISH_STOP;
	bool by_token =
	    p && ((finish == LLMC_FINISH_EOS && is_among(e->plan->eos, e->plan->n_eos, p->id)) ||
	          finish == LLMC_FINISH_TOKEN);
	const int32_t width = j->pool && finish == LLMC_FINISH_LENGTH ? j->n_pooled : 0;
	Event *v = event_new(j, LLMC_EVENT_FINISH, c->seq->index, by_token ? p->top : NULL,
	                     by_token ? p->n_top : 0, width, text, n);
	if (!v) {
		no_memory(e, j);
		return;
	}
	llmc_event *ev = &v->ev;
	if (width)
		pool_vector(j->pooled, width, j->pool == LLMC_POOL_MEAN ? j->req->n_prompt : 1,
		            j->normalize, (float *)(void *)v->data);
	if (by_token) {
		ev->token = p->id;
		ev->logprob = j->logprobs ? p->logprob : 0;
	}
	ev->finish = finish;
	ev->stop = finish == LLMC_FINISH_STOP ? stop_which(c->stop) : -1;
	ev->n_prompt = j->req->n_prompt;
	ev->n_new = c->n_new;
	ev->n_cached = j->req->n_cached;
	ev->n_preempted = c->seq->n_preempted;
	ev->sum_logprob = c->sum_logprob;
	ev->queue_s = (j->started > 0 ? j->started : now) - j->submitted;
	ev->prefill_s = j->started > 0 ? (j->first > 0 ? j->first : now) - j->started : 0;
	ev->decode_s = j->first > 0 ? now - j->first : 0;
	c->done = true;
	emit_event(j, c, v);
	e->now.finished[finish]++;
	histogram_count(&e->now.request_new, c->n_new);
	if (++j->n_done < j->best_of)
		return;
	if (j->best_of > j->n)
		emit_best(j);
	j->out.last->ev.last = true;
	j->over = true;
	histogram_seconds(&e->now.request_s, now - j->submitted);
	if (j->first > 0)
		histogram_seconds(&e->now.decode_s, now - j->first);
}

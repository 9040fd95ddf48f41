/* Fake engine for tests of the code around an engine: each choice repeats its prompt, one token per
 * step. It has no thread: the caller of next() runs the steps. While `hold` is set, everything
 * waits. `fail_at` makes the n-th step fail. Once `gone` is set, its device is lost, and its
 * requests fail. */
#ifndef LLMC_TESTS_FAKE_ENGINE_H
#define LLMC_TESTS_FAKE_ENGINE_H

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/serve.h"

enum { FAKE_LIVE = 256, FAKE_CHOICES = 128 };

typedef struct FakeLive {
	int64_t id;
	int32_t *tok, n_tok, n, max_tokens, made;
	bool prompt_told, want_prompt, cancelled, logprobs;
	int32_t n_top;
	void *user;
	llmc_stream *stream[FAKE_CHOICES];
} FakeLive;

typedef struct FakeEvent {
	struct FakeEvent *next;
	llmc_event ev;
	char text[64];
	llmc_logprob top[20];
} FakeEvent;

typedef struct Fake {
	pthread_mutex_t lock;
	pthread_cond_t some;
	const llmc_tokenizer *tok;
	FakeLive *live[FAKE_LIVE];
	FakeEvent *first, **end, *held;
	int n_live, max_live, step_ms, vocab;
	int64_t next_id, steps, fail_at, tokens;
	atomic_bool hold, gone;
} Fake;

static inline void
fake_init(Fake *f, const llmc_tokenizer *tok, int max_live)
{
	*f = (Fake){ .tok = tok, .max_live = max_live };
	pthread_mutex_init(&f->lock, NULL);
	pthread_cond_init(&f->some, NULL);
	f->end = &f->first;
	f->vocab = tok ? llmc_tokenizer_size(tok) : 100;
}

static inline llmc_status
fake_submit(void *self, const llmc_request *r, int64_t *id, llmc_error *err)
{
	Fake *f = self;
	FakeLive *l = NULL;

	if (f->gone)
		return error_set(err, LLMC_E_DEVICE, "rank 1 of 2 is lost");
	pthread_mutex_lock(&f->lock);
	if (f->n_live >= f->max_live) {
		pthread_mutex_unlock(&f->lock);
		return error_set(err, LLMC_E_BUSY, "the queue is full");
	}
	for (int i = 0; i < FAKE_LIVE && !l; i++)
		if (!f->live[i])
			l = f->live[i] = calloc(1, sizeof *l);
	f->n_live++;
	*l = (FakeLive){ .id = ++f->next_id,
		         .n_tok = (int32_t)r->n_tok,
		         .n = r->best_of > r->n ? r->n
		              : r->n            ? r->n
		                                : 1,
		         .user = r->user,
		         .max_tokens = r->params->max_tokens ? r->params->max_tokens : 256,
		         .want_prompt = r->prompt_logprobs,
		         .logprobs = r->logprobs,
		         .n_top = r->n_top };
	if (l->n > FAKE_CHOICES || l->n_top > 20 || l->max_tokens < 1 || r->n_tok == 0)
		abort(); /* the server must reject such a request before */
	l->tok = malloc(r->n_tok * sizeof *l->tok);
	memcpy(l->tok, r->tok, r->n_tok * sizeof *l->tok);
	for (int i = 0; i < l->n && f->tok; i++)
		llmc_stream_open(f->tok, !r->show_special, &l->stream[i], NULL);
	*id = l->id;
	pthread_cond_signal(&f->some);
	pthread_mutex_unlock(&f->lock);
	return LLMC_OK;
}

static inline FakeEvent *
fake_event(Fake *f, const FakeLive *l, llmc_event_kind kind, int index, int32_t token)
{
	FakeEvent *e = calloc(1, sizeof *e);

	e->ev = LLMC_INIT(llmc_event);
	e->ev.kind = kind;
	e->ev.request = l->id;
	e->ev.user = l->user;
	e->ev.index = index;
	e->ev.token = token;
	e->ev.text = e->text;
	e->ev.n_prompt = l->n_tok;
	e->ev.n_new = l->made;
	e->ev.stop = -1;
	if (l->logprobs && token >= 0) {
		e->ev.logprob = -0.5f;
		for (int i = 0; i < l->n_top; i++)
			e->top[i] = (llmc_logprob){ (token + i) % f->vocab, i ? -INFINITY : -0.5f };
		e->ev.n_top = l->n_top;
		e->ev.top = e->top;
	}
	*f->end = e;
	f->end = &e->next;
	return e;
}

static inline void
fake_text(FakeEvent *e, llmc_stream *s, int32_t id)
{
	const char *text;
	size_t n;

	if (s && llmc_stream_feed(s, id, &text, &n, NULL) == LLMC_OK && n < sizeof e->text) {
		memcpy(e->text, text, n);
		e->ev.n_bytes = n;
	}
}

static inline void
fake_step(Fake *f)
{
	f->steps++;
	for (int k = 0; k < FAKE_LIVE; k++) {
		FakeLive *l = f->live[k];
		if (!l)
			continue;
		bool fail = f->gone || (f->fail_at && f->steps >= f->fail_at),
		     over = l->cancelled || fail;
		for (int i = 0; l->want_prompt && !l->prompt_told && i < l->n_tok; i++)
			fake_event(f, l, LLMC_EVENT_PROMPT, 0, l->tok[i])->ev.logprob =
			    i ? -1.25f : NAN;
		l->prompt_told = true;
		l->made += !over;
		for (int i = 0; i < l->n && !fail; i++) {
			if (!over) {
				int32_t id = l->tok[(l->made - 1) % l->n_tok];
				fake_text(fake_event(f, l, LLMC_EVENT_TOKEN, i, id), l->stream[i],
				          id);
				f->tokens++;
			}
			if (over || l->made == l->max_tokens) {
				FakeEvent *e = fake_event(f, l, LLMC_EVENT_FINISH, i, -1);
				e->ev.finish = over ? LLMC_FINISH_CANCEL : LLMC_FINISH_LENGTH;
				e->ev.last = i == l->n - 1;
				fake_text(e, l->stream[i], -1);
			}
		}
		if (fail) {
			FakeEvent *e = fake_event(f, l, LLMC_EVENT_ERROR, 0, -1);
			e->ev.status = f->gone ? LLMC_E_DEVICE : LLMC_E_CHECK;
			e->ev.last = true;
			snprintf(e->text, sizeof e->text,
			         f->gone ? "rank 1 of 2 is lost" : "the model gave NaN");
		}
		if (over || l->made == l->max_tokens) {
			for (int i = 0; i < l->n; i++)
				llmc_stream_close(l->stream[i]);
			free(l->tok);
			free(l);
			f->live[k] = NULL;
			f->n_live--;
		}
	}
	if (f->fail_at && f->steps >= f->fail_at)
		f->fail_at = 0;
}

static inline llmc_status
fake_next(void *self, int timeout_ms, llmc_event *ev, llmc_error *err)
{
	Fake *f = self;

	pthread_mutex_lock(&f->lock);
	free(f->held);
	f->held = NULL;
	if (f->gone && !f->first && f->n_live)
		fake_step(f);
	if (f->gone && !f->first) {
		pthread_mutex_unlock(&f->lock);
		return error_set(err, LLMC_E_DEVICE, "rank 1 of 2 is lost");
	}
	bool stuck = f->hold;
	for (int k = 0; k < FAKE_LIVE && f->hold; k++)
		stuck &= !(f->live[k] && f->live[k]->cancelled);
	if (!f->first && (f->n_live == 0 || stuck) && timeout_ms) {
		struct timespec t;
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += 10000000;
		if (t.tv_nsec >= 1000000000) {
			t.tv_sec++;
			t.tv_nsec -= 1000000000;
		}
		pthread_cond_timedwait(&f->some, &f->lock, &t);
	} else if (!f->first && f->n_live) {
		struct timespec t = { f->step_ms / 1000, f->step_ms % 1000 * 1000000L };
		pthread_mutex_unlock(&f->lock);
		nanosleep(&t, NULL);
		pthread_mutex_lock(&f->lock);
		fake_step(f);
	}
	FakeEvent *e = f->first;
	if (e) {
		f->first = e->next;
		if (!f->first)
			f->end = &f->first;
		f->held = e;
		*ev = e->ev;
	} else {
		*ev = LLMC_INIT(llmc_event);
	}
	pthread_mutex_unlock(&f->lock);
	return LLMC_OK;
}

static inline void
fake_release(llmc_event *ev)
{
	(void)ev;
}

static inline void
fake_cancel(void *self, int64_t id)
{
	Fake *f = self;

	pthread_mutex_lock(&f->lock);
	for (int k = 0; k < FAKE_LIVE; k++)
		if (f->live[k] && f->live[k]->id == id)
			f->live[k]->cancelled = true;
	pthread_cond_signal(&f->some);
	pthread_mutex_unlock(&f->lock);
}

static inline void
fake_stats(void *self, llmc_counts *out)
{
	Fake *f = self;

	pthread_mutex_lock(&f->lock);
	out->running = f->n_live;
	out->steps = (uint64_t)f->steps;
	out->new_tokens = (uint64_t)f->tokens;
	out->drafts = out->accepted =
	    (uint64_t)f->tokens; /* the fake engine accepts one in four draft tokens */
	out->drafted = 4 * (uint64_t)f->tokens;
	out->kv_pages_total = FAKE_LIVE;
	out->kv_pages_used = f->n_live;
	pthread_mutex_unlock(&f->lock);
}

static inline Backend
fake_backend(Fake *f, int context)
{
	Backend b = { .self = f,
		      .submit = fake_submit,
		      .next = fake_next,
		      .release = fake_release,
		      .cancel = fake_cancel,
		      .stats = fake_stats,
		      .tok = f->tok,
		      .dtype = "float32",
		      .max_concurrent = f->max_live,
		      .max_waiting_tokens = 20 };

	b.limits = LLMC_INIT(llmc_limits);
	b.limits.context = context;
	b.limits.seqs = 16;
	b.limits.kv_tokens = 16 * context;
	b.info = LLMC_INIT(llmc_model_info);
	snprintf(b.info.name, sizeof b.info.name, "fake");
	snprintf(b.info.target, sizeof b.info.target, "fake");
	b.info.vocab = f->vocab;
	b.info.bos = -1;
	b.info.has_tokenizer = f->tok != NULL;
	b.info.has_chat_template = llmc_has_chat_template(f->tok);
	return b;
}

#endif

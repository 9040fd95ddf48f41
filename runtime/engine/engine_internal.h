/* Inside of the engine. Who touches what: `lock` guards what is marked so; the rest belongs to the
 * engine's thread, or to nobody once the job is in the inbox. */
#ifndef LLMC_RUNTIME_ENGINE_ENGINE_INTERNAL_H
#define LLMC_RUNTIME_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>

#include "base/clock.h"
#include "runtime/draft/draft.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/scheduler.h"
#include "runtime/sample/sampler.h"
#include "runtime/state/session_state.h"
#include "runtime/sample/stop_strings.h"

enum { N_BUCKET = 1024 };
/* A guess by what followed before that is so sure is taken before a second model is asked. */
#define SURE 0.75f

typedef struct Event {
	llmc_event ev;
	struct Event *next;
	char data[]; /* vector, top, then text */
} Event;
typedef struct EventList {
	Event *first, *last;
} EventList;

/* Rows of the model that its head has not read: those of the positions at .. at + n - 1 of a text
 */
typedef struct MtpRows {
	float *row; /* [cap, hidden] */
	int32_t at, n, cap;
	bool holes; /* some before were missed: its pages are of no use to others */
} MtpRows;

typedef struct RequestChoice {
	SchedSeq *seq;
	llmc_sampler *sampler;
	llmc_stream *stream; /* NULL: no tokenizer */
	Stop *stop;
	int32_t n_new;
	Draft *draft;           /* NULL: none yet */
	llmc_seq draft_session; /* its sequence in the session of a second model; -1: none */
	MtpRows head;           /* where the second model is the head of the first */
	double sum_logprob;
	bool done;
	double latest; /* time of its last token */
	int32_t
	    device_n; /* the device knows how to sample after as many tokens (-1: not at all) ... */
	int32_t device_stay; /* ... since it was preempted for so many times */
	EventList held;      /* best_of: until it is known which are told */
} RequestChoice;

typedef struct EngineRequest {
	int64_t id;
	void *user;
	llmc_params p; /* its lists are the samplers', its stops gone */
	int32_t n, best_of, n_top;
	bool logprobs, prompt_logprobs, keep_stop;
	llmc_pool pool; /* NONE: it makes text */
	bool normalize;
	double *pooled;              /* [n_pooled] sum of the rows that make its vector */
	int32_t n_pooled, *pool_tok; /* elements of it; which of a row's they are, NULL: all */
	bool on_device;              /* the session can sample its tokens */
	int32_t speculate;           /* guesses that run ahead at most; 0: none */
	double submitted, deadline;  /* 0: none */
	SchedReq *req;
	Runtime *held;         /* it holds the request's adapter; NULL: not yet */
	RequestChoice *choice; /* [best_of] */
	llmc_stream *prompt_stream;
	int32_t n_reported;         /* tokens of the prompt told with their logprobs */
	int32_t n_done;             /* choices */
	double started, first;      /* times; 0: not yet */
	bool over;                  /* all told */
	EventList out;              /* of this step */
	Event *spare;               /* for the failure when memory is out */
	struct EngineRequest *next; /* in the inbox, then in work */
	/* lock */
	int refs;                    /* the table, the engine's thread, waiting callers */
	bool in_table, cancel, gone; /* gone: nobody will ask */
	EventList events;
	int n_waiting;
	pthread_cond_t cond;
	struct EngineRequest *chain; /* in its bucket */
	bool is_ready;
	struct EngineRequest *ready_next; /* jobs with mail */
} EngineRequest;

typedef struct SampledToken { /* one choice's token of the step */
	EngineRequest *job;
	RequestChoice *c;
	const float *logits; /* of the row; those of guesses behind it follow */
	int32_t id, n_top;
	float logprob;
	llmc_logprob top[LLMC_MAX_TOP];
	llmc_status status;
	llmc_error err;
} SampledToken;

typedef struct Masks Masks;

struct Engine {
	Session *session;
	bool ranks; /* it may lose one while nothing runs */
	const Plan *plan;
	const llmc_tokenizer *tok;
	llmc_limits lim;
	SchedLimits sched_lim;
	int32_t max_jobs;
	llmc_log_fn log;
	void *log_user;
	int fd;
	pthread_t thread;
	bool has_thread;
	pthread_condattr_t monotonic;
	/* the engine's thread */
	Sched *sched;
	EngineRequest *work;   /* taken in, not over; in order of arrival */
	float *logits;         /* [n_out, vocab] */
	float **row;           /* [seqs] logits of each chunk of the step */
	SampledToken *sampled; /* [seqs] */
	Masks *masks;          /* NULL: no core is left for its thread */
	const uint32_t **mask; /* [seqs] of the step's choices */
	int32_t n_sampled;
	int32_t *ids; /* [seqs] sampled by the device, and their logprobs */
	float *logprobs;
	int n_scratch;
	SampleScratch *scratch; /* [n_scratch] one for each thread that samples */
	int64_t swap_used, swap_max;
	double token_s, copy_bytes_s; /* measured: a token of a prompt; saving KV */
	int32_t speculate;            /* guesses that run ahead at most; 0: none */
	Drafter drafter;
	engine_draft_fn draft_fn; /* a test's; NULL: looked up, where it is expected to pay */
	void *draft_fn_user;
	bool has_drafts;        /* the step under way has some */
	Session *draft_session; /* of a smaller model that guesses, or of the model's own head;
	                           NULL: none */
	bool is_head;
	bool rows;             /* the step under way has left the rows of all its chunks */
	float *draft_rows_buf; /* [DRAFT_MAX_SEQS, hidden] is_head: of its last guesses */
	float *draft_logits;   /* [its n_out, its vocab] */
	int32_t draft_chunk;   /* tokens that it catches up with in one step */
	int32_t step_tokens;   /* of the step under way */
	bool is_prefill;
	int32_t *n_tok_was; /* [seqs] known tokens of each chunk's choice before it */
	bool check;
	bool is_inline; /* runs on the thread of the caller of engine_run_request */
	bool is_ahead;  /* inline, on a device that samples: the next step of the only sequence is
	                   queued */
	llmc_counts now;
	/* lock */
	pthread_mutex_t lock;
	pthread_cond_t wake; /* the engine's thread has something to do */
	pthread_cond_t any;  /* mail for LLMC_ANY, or nothing left to wait for */
	pthread_cond_t idle; /* a job is over */
	EngineRequest *inbox, *inbox_last;
	EngineRequest *bucket[N_BUCKET];
	EngineRequest *ready, *ready_last;
	int64_t last_id;
	int32_t n_jobs;   /* not over */
	int32_t n_table;  /* jobs that callers may ask for */
	int32_t n_cancel; /* flags that the thread has not seen */
	int64_t n_events;
	bool draining, cut, stop, paused;
	llmc_error dead; /* code != OK: the device has failed */
	uint64_t refused;
	llmc_counts counts;
};

/* engine.c */
void *engine_run(void *e);           /* the thread */
void engine_update_stats(Engine *e); /* gauges and the scheduler's counts */
bool engine_step(Engine *e);         /* plan and run one step; false: nothing can run */
void engine_end_job(Engine *e, EngineRequest *j,
                    llmc_finish finish); /* finish the choices that are still open */

/* engine_open.c */
llmc_status thread_start(void *(*fn)(void *user), void *user, pthread_t *out,
                         llmc_error *err); /* without signals, which are the program's */

/* grammar_masks.c: a thread makes the masks of the samplers that are added before masks_begin.
 * masks_end: from here on they are the caller's again; what has not been made is made by who asks
 * for it, or, with `rest`, now, by both. Around each step; NULL is fine. */
llmc_status masks_open(int32_t most, Masks **out, llmc_error *err);
void masks_close(Masks *m);
void masks_add(Masks *m, llmc_sampler *s);
void masks_begin(Masks *m);
void masks_end(Masks *m, bool rest);

/* draft_model.c: guesses of d[i] for the texts q[i], where it pays; what is certain of a text stays
 * in its sequence */
void draft_model_propose(Engine *e, SchedSeq *const *q, Draft *const *d, int32_t n, int32_t texts,
                         int32_t again);
void draft_model_commit(Engine *e, RequestChoice *c, int32_t certain);
void draft_model_sweep(Engine *e); /* sequences of texts that have ended */
void draft_model_drop(Engine *e, RequestChoice *c);

/* mtp_head.c: rows [n, hidden] of the positions from `at` on of the text q, all of whose next
 * tokens are known */
void mtp_rows_add(Engine *e, RequestChoice *c, const SchedSeq *q, int32_t at, int32_t n,
                  const float *rows);
void mtp_rows_consume(Engine *e, RequestChoice *c, const SchedSeq *q,
                      int32_t n); /* the head has read the first n */
void mtp_rows_free(MtpRows *h);

/* request.c */
llmc_status request_open(Engine *e, const llmc_request *r, EngineRequest **out, llmc_error *err);
void request_free(EngineRequest *j);
/* Answers of a choice: events on j->out (or held). Each returns false when the request has failed
 * on the way. */
/* Rows [at, at + n) of a prompt that becomes a vector; rows: those that the step gave of them, at
 * its end. */
void request_rows(Engine *e, EngineRequest *j, int32_t at, int32_t n, const float *rows,
                  int32_t n_rows);
bool request_prompt(Engine *e, EngineRequest *j, int32_t at, int32_t n, const float *logits);
bool request_token(Engine *e, EngineRequest *j, RequestChoice *c, const SampledToken *p,
                   llmc_finish *finish, bool *finished);
void request_finish(Engine *e, EngineRequest *j, RequestChoice *c, llmc_finish finish,
                    const SampledToken *p);
void request_fail(Engine *e, EngineRequest *j, llmc_status status, const char *text);

/* event_list.c */
void event_list_add(EventList *l, Event *ev);
void event_list_free(EventList *l);

/* events.c */
/* Hand the events of the step over and let go of jobs that are over. */
void events_flush(Engine *e);
void events_close(Engine *e);

/* histogram.c */
void histogram_seconds(llmc_histogram *h, double s);
void histogram_count(llmc_histogram *h, double n);

#endif

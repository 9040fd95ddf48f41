/* Internals of the engine. `lock` guards the fields below a "lock" comment. The engine's thread
 * owns the rest, once a request is in the inbox. */
#ifndef LLMC_RUNTIME_ENGINE_ENGINE_INTERNAL_H
#define LLMC_RUNTIME_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "runtime/draft/draft.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/scheduler.h"
#include "runtime/sample/sampler.h"
#include "runtime/state/session_state.h"
#include "runtime/sample/stop_strings.h"

enum { N_BUCKET = 1024 };
/* If a draft found by lookup is at least this likely to be accepted, it is used and the second
 * model does not run. */
#define SURE 0.75f

typedef struct Event {
	llmc_event ev;
	struct Event *next;
	char data[]; /* vector, top log probabilities, then the string */
} Event;
typedef struct EventList {
	Event *first, *last;
} EventList;

/* Rows of the model that its head has not read: positions at .. at + n - 1 of a sequence */
typedef struct MtpRows {
	float *row; /* [cap, plan_row_width of the head], the model's rows at the front */
	int32_t at, n, cap;
	/* earlier rows are missing, so pages of the head's sequence must not enter the prefix
	 * cache */
	bool holes;
} MtpRows;

typedef struct RequestChoice {
	SchedSeq *seq;
	llmc_sampler *sampler;
	llmc_stream *stream; /* NULL: no tokenizer */
	Stop *stop;
	int32_t n_new;
	Draft *draft;           /* NULL: none yet */
	llmc_seq draft_session; /* sequence in the second model's session; -1: none */
	MtpRows head;           /* used if the second model is a head */
	double sum_logprob;
	bool done;
	double latest; /* time of the choice's last token */
	/* values of n_new (-1: none) and n_preempted for which the device has sampling state */
	int32_t device_n, device_preempted;
	EventList held; /* best_of: events held until the best choices are known */
} RequestChoice;

typedef struct EngineRequest {
	int64_t id;
	void *user;
	llmc_params p; /* sampling parameters without lists, which the samplers have copied */
	int32_t n, best_of, n_top;
	bool logprobs, prompt_logprobs, keep_stop;
	llmc_pool pool; /* NONE: the request generates tokens */
	bool normalize;
	/* image rows; [bound] index of each position's row, or -1; the prompt. The scheduler's copy
	 * of the prompt has keys of images in place of image tokens. NULL: no images */
	float *image_row;
	int32_t *image_at, *image_prompt;
	int32_t
	    *rope_at;   /* [3, bound + 1] RoPE positions with images; NULL: those of the sequence */
	double *pooled; /* [n_pooled] sum of the rows that form the vector */
	/* length of `pooled`; token ids to pool, NULL: the whole row. Without pool: the tokens
	 * whose log probabilities are reported */
	int32_t n_pooled, *pool_tok;
	DryBreakers *breakers;      /* NULL: the samplers need no breakers */
	bool on_device;             /* the session's device can sample the tokens */
	int32_t speculate;          /* maximum number of draft tokens; 0: none */
	double submitted, deadline; /* 0: none */
	SchedReq *req;
	/* runtime in which the request holds a reference to its adapter; NULL: none yet */
	Runtime *held;
	RequestChoice *choice; /* [best_of] */
	llmc_stream *prompt_stream;
	int32_t n_reported;         /* prompt tokens reported with their log probabilities */
	int32_t n_done;             /* finished choices */
	double started, first;      /* times; 0: not yet */
	bool over;                  /* all events are emitted */
	EventList out;              /* events of this step */
	Event *spare;               /* preallocated for the error event when memory runs out */
	struct EngineRequest *next; /* in the inbox, then in `work` */
	/* lock */
	int refs; /* held by the table, the engine's thread and waiting callers */
	bool in_table, cancel, gone; /* gone: no caller will take the request's events */
	EventList events;
	int n_waiting;
	pthread_cond_t cond;
	struct EngineRequest *chain; /* in its hash bucket */
	bool is_ready;
	struct EngineRequest *ready_next; /* requests with events */
} EngineRequest;

typedef struct SampledToken { /* token of one choice in this step */
	EngineRequest *job;
	RequestChoice *c;
	const float *logits; /* row of the token; rows of its draft tokens follow */
	int32_t id, n_top;
	float logprob;
	llmc_logprob top[LLMC_MAX_TOP];
	llmc_status status;
	llmc_error err;
} SampledToken;

/* Call to run while no request runs (engine_call_when_idle) */
typedef struct IdleCall {
	llmc_status (*fn)(void *user, llmc_error *err);
	void *user;
	bool cut, done;
	llmc_status status;
	llmc_error err;
} IdleCall;

typedef struct Masks Masks;

struct Engine {
	Session *session;
	bool ranks; /* several ranks, one of which may be lost while no step runs */
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
	/* owned by the engine's thread */
	Sched *sched;
	EngineRequest *work;   /* accepted and not over, in order of arrival */
	float *logits;         /* [n_out, vocab] */
	float **row;           /* [seqs] logits of each chunk of the step */
	StepRows *images;      /* [seqs] rows of images of each chunk of the step */
	SampledToken *sampled; /* [seqs] */
	Masks *masks;          /* NULL: no spare core for its thread */
	const uint32_t **mask; /* [seqs] masks of the step's choices */
	int32_t n_sampled;
	int32_t *ids; /* [seqs] tokens sampled by the device, with their log probabilities */
	float *logprobs;
	int n_scratch;
	SampleScratch *scratch; /* [n_scratch] one per thread that samples */
	int64_t swap_used, swap_max;
	/* measured: seconds per prompt token; bytes per second of a KV save */
	double token_s, copy_bytes_s;
	int32_t speculate; /* maximum number of draft tokens; 0: none */
	Drafter drafter;
	engine_draft_fn draft_fn; /* set by a test; NULL: lookup, when it is expected to pay */
	void *draft_fn_user;
	bool has_drafts; /* the current step has draft tokens */
	/* smaller draft model, or a head that reads the model's rows; NULL: none */
	Session *draft_session;
	bool is_head;
	bool rows; /* the current step has left the rows of all its chunks */
	/* [DRAFT_MAX_SEQS, plan_row_width] for a head: rows of its last draft tokens; their columns
	 * for the model's part are 0 */
	float *draft_rows_buf;
	float *draft_logits; /* [n_out, plan_out_width] of the draft session */
	/* most tokens per sequence that the draft model catches up with in one step */
	int32_t draft_chunk;
	int32_t step_tokens; /* tokens of the current step */
	bool is_prefill;
	int32_t *n_tok_was; /* [seqs] known tokens of each chunk's choice before the step */
	bool check;
	bool is_inline; /* runs on the thread of the caller of engine_run_request */
	/* inline, on a device that samples: the next step of the only sequence is queued */
	bool is_ahead;
	llmc_counts now;
	/* lock */
	pthread_mutex_t lock;
	pthread_cond_t wake; /* the engine's thread has work */
	pthread_cond_t any;  /* an event for LLMC_ANY, or nothing left to wait for */
	pthread_cond_t idle; /* a request is over */
	EngineRequest *inbox, *inbox_last;
	EngineRequest *bucket[N_BUCKET];
	EngineRequest *ready, *ready_last;
	int64_t last_id;
	int32_t n_jobs;   /* requests that are not over */
	int32_t n_table;  /* requests whose events callers may still take */
	int32_t n_cancel; /* `cancel` flags that the thread has not handled */
	int64_t n_events;
	bool draining, cut, stop, paused;
	IdleCall *idle_call; /* NULL: none; new requests stay in the inbox until it is done */
	/* breakers of the last request that used DRY, and its strings, each with a NUL; NULL: none
	 */
	DryBreakers *breakers;
	Strbuf breakers_key;
	llmc_error dead; /* code != OK: the device has failed */
	uint64_t refused;
	llmc_counts counts;
};

/* engine.c */
void *engine_run(void *e);           /* the thread */
void engine_update_stats(Engine *e); /* gauges and the scheduler's counters */
bool engine_step(Engine *e);         /* plan and run one step; false: nothing can run */
/* finish the choices that are still open */
void engine_end_job(Engine *e, EngineRequest *j, llmc_finish finish);

/* idle_call.c */
void engine_run_idle_call(Engine *e); /* run the call that waits; no request runs; lock held */

/* engine_open.c: starts a thread with all signals blocked; signals belong to the program */
llmc_status thread_start(void *(*fn)(void *user), void *user, pthread_t *out, llmc_error *err);

/* grammar_masks.c: a thread computes the masks of the samplers that were added before masks_begin.
 * masks_end returns the samplers to the caller. With `rest`, both threads first compute the
 * remaining masks; without it, a sampler computes its missing mask when it samples. Called around
 * each step; m may be NULL. */
llmc_status masks_open(int32_t most, Masks **out, llmc_error *err);
void masks_close(Masks *m);
void masks_add(Masks *m, llmc_sampler *s);
void masks_begin(Masks *m);
void masks_end(Masks *m, bool rest);

/* draft_model.c: propose draft tokens d[i] for sequences q[i] where it pays. draft_model_commit
 * keeps the first `certain` tokens of the draft model's sequence and removes the others. */
void draft_model_propose(Engine *e, SchedSeq *const *q, Draft *const *d, int32_t n, int32_t n_seqs,
                         int32_t again);
void draft_model_commit(Engine *e, RequestChoice *c, int32_t certain);
void draft_model_sweep(Engine *e); /* drop the draft sequences of choices that have ended */

/* mtp_head.c: add the rows [n, plan_rows_width] of n positions of sequence q, from `at` on. The
 * next token of each position must be known. */
void mtp_rows_add(Engine *e, RequestChoice *c, const SchedSeq *q, int32_t at, int32_t n,
                  const float *rows);
/* the head has read the first n rows */
void mtp_rows_consume(Engine *e, RequestChoice *c, const SchedSeq *q, int32_t n);
void mtp_rows_free(MtpRows *h);
/* Free the second model's sequence of an output, and the rows kept for it. */
void draft_sequence_drop(Engine *e, RequestChoice *c);

/* request.c */
llmc_status request_open(Engine *e, const llmc_request *r, EngineRequest **out, llmc_error *err);
void request_free(EngineRequest *j);
/* Output of a choice: events on j->out (or held). Each function returns false if the request
 * failed. */
/* Pool the rows of prefill chunk [at, at + n). `rows` holds the last n_rows of them. */
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
/* Move the events of the step to the callers' queues and release requests that are over. */
void events_flush(Engine *e);
void events_close(Engine *e);

/* histogram.c */
void histogram_seconds(llmc_histogram *h, double s);
void histogram_count(llmc_histogram *h, double n);

#endif

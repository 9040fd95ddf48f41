/* Inside of the engine. Who touches what: `lock` guards what is marked so; the rest belongs to the engine's thread, or to
 * nobody once the job is in the inbox. */
#ifndef LLMC_RUNTIME_ENGINE_INSIDE_H
#define LLMC_RUNTIME_ENGINE_INSIDE_H

#include <pthread.h>

#include "base/clock.h"
#include "runtime/draft/draft.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/sched.h"
#include "runtime/sample/sample.h"
#include "runtime/state/state.h"
#include "runtime/stop.h"

enum { N_BUCKET = 1024 };
/* A guess by what followed before that is so sure is taken before a second model is asked. */
#define SURE 0.75f

typedef struct Event {
	llmc_event    ev;
	struct Event *next;
	char          data[];   /* vector, top, then text */
} Event;
typedef struct EventList { Event *first, *last; } EventList;

/* Rows of the model that its head has not read: those of the positions at .. at + n - 1 of a text */
typedef struct HeadRows {
	float  *row;             /* [cap, hidden] */
	int32_t at, n, cap;
	bool    holes;           /* some before were missed: its pages are of no use to others */
} HeadRows;

typedef struct JobChoice {
	SchedSeq     *seq;
	llmc_sampler *sampler;
	llmc_stream  *stream;    /* NULL: no tokenizer */
	Stop         *stop;
	int32_t       n_new;
	Draft        *draft;     /* NULL: none yet */
	llmc_seq      second;    /* its sequence in the session of a second model; -1: none */
	HeadRows      head;      /* where the second model is the head of the first */
	double        sum_logprob;
	bool          done;
	double        latest;    /* time of its last token */
	int32_t       device_n;  /* the device knows how to sample after as many tokens (-1: not at all) ... */
	int32_t       device_stay; /* ... since it was preempted for so many times */
	EventList     held;      /* best_of: until it is known which are told */
} JobChoice;

typedef struct Job {
	int64_t     id;
	void       *user;
	llmc_params p;           /* its lists are the samplers', its stops gone */
	int32_t     n, best_of, n_top;
	bool        logprobs, prompt_logprobs, keep_stop;
	llmc_pool   pool;        /* NONE: it makes text */
	bool        normalize;
	double     *pooled;      /* [n_pooled] sum of the rows that make its vector */
	int32_t     n_pooled, *pool_tok; /* elements of it; which of a row's they are, NULL: all */
	bool        on_device;   /* the session can sample its tokens */
	int32_t     speculate;   /* guesses that run ahead at most; 0: none */
	double      submitted, deadline; /* 0: none */
	SchedReq   *req;
	Runtime    *held;        /* it holds the request's adapter; NULL: not yet */
	JobChoice     *choice;      /* [best_of] */
	llmc_stream *prompt_stream;
	int32_t     n_told;      /* tokens of the prompt told with their logprobs */
	int32_t     n_done;      /* choices */
	double      started, first; /* times; 0: not yet */
	bool        over;        /* all told */
	EventList   out;         /* of this step */
	Event      *spare;       /* for the failure when memory is out */
	struct Job *next;        /* in the inbox, then in work */
	/* lock */
	int         refs;        /* the table, the engine's thread, waiting callers */
	bool        in_table, cancel, gone; /* gone: nobody will ask */
	EventList   mail;
	int         n_waiting;
	pthread_cond_t cond;
	struct Job *chain;       /* in its bucket */
	bool        is_ready;
	struct Job *ready_next;  /* jobs with mail */
} Job;

typedef struct Sampled {     /* one choice's token of the step */
	Job         *job;
	JobChoice      *c;
	const float *logits;     /* of the row; those of guesses behind it follow */
	int32_t      id, n_top;
	float        logprob;
	llmc_logprob top[LLMC_MAX_TOP];
	llmc_status  status;
	llmc_error   err;
} Sampled;

typedef struct Masks Masks;

struct Engine {
	Session *session;
	bool        ranks;       /* it may lose one while nothing runs */
	const Plan *plan;
	const llmc_tokenizer *tok;
	llmc_limits lim;
	SchedLimits sched_lim;
	int32_t     max_jobs;
	llmc_log_fn log;
	void       *log_user;
	int         fd;
	pthread_t   thread;
	bool        has_thread;
	pthread_condattr_t monotonic;
	/* the engine's thread */
	Sched      *sched;
	Job        *work;        /* taken in, not over; in order of arrival */
	float      *logits;      /* [n_out, vocab] */
	float     **row;        /* [seqs] logits of each chunk of the step */
	Sampled    *sampled;     /* [seqs] */
	Masks      *masks;       /* NULL: no core is left for its thread */
	const uint32_t **mask;   /* [seqs] of the step's choices */
	int32_t     n_sampled;
	int32_t    *ids;         /* [seqs] sampled by the device, and their logprobs */
	float      *logprobs;
	int         n_scratch;
	SampleScratch *scratch;  /* [n_scratch] one for each thread that samples */
	int64_t     swap_used, swap_max;
	double      token_s, copy_bytes_s; /* measured: a token of a prompt; saving KV */
	int32_t     speculate;   /* guesses that run ahead at most; 0: none */
	Drafter     drafter;
	engine_guess_fn guess;   /* a test's; NULL: looked up, where it is expected to pay */
	void       *guess_user;
	bool        guesses;     /* the step under way has some */
	Session    *second;      /* of a smaller model that guesses, or of the model's own head; NULL: none */
	bool        is_head;
	bool        rows;        /* the step under way has left the rows of all its chunks */
	float      *second_rows; /* [DRAFT_TEXTS, hidden] is_head: of its last guesses */
	float      *second_logits; /* [its n_out, its vocab] */
	int32_t     second_chunk; /* tokens that it catches up with in one step */
	int32_t     step_tokens; /* of the step under way */
	bool        is_prefill;
	int32_t    *n_tok_was;   /* [seqs] known tokens of each chunk's choice before it */
	bool        check;
	bool        is_inline;   /* runs on the thread of the caller of engine_run_request */
	bool        is_ahead;    /* inline, on a device that samples: the next step of the only sequence is queued */
	llmc_counts now;
	/* lock */
	pthread_mutex_t lock;
	pthread_cond_t  wake;    /* the engine's thread has something to do */
	pthread_cond_t  any;     /* mail for LLMC_ANY, or nothing left to wait for */
	pthread_cond_t  idle;    /* a job is over */
	Job        *inbox, *inbox_last;
	Job        *bucket[N_BUCKET];
	Job        *ready, *ready_last;
	int64_t     last_id;
	int32_t     n_jobs;      /* not over */
	int32_t     n_table;     /* jobs that callers may ask for */
	int32_t     n_cancel;    /* flags that the thread has not seen */
	int64_t     n_mail;
	bool        draining, cut, stop, paused;
	llmc_error  dead;        /* code != OK: the device has failed */
	uint64_t    refused;
	llmc_counts counts;
};

/* engine.c */
void  *engine_run(void *e);      /* the thread */
void   engine_note(Engine *e);   /* gauges and the scheduler's counts */
bool   engine_step(Engine *e);   /* plan and run one step; false: nothing can run */
void   engine_end_job(Engine *e, Job *j, llmc_finish finish); /* finish the choices that are still open */

/* open.c */
llmc_status thread_start(void *(*fn)(void *user), void *user, pthread_t *out, llmc_error *err); /* without signals, which are the program's */

/* masks.c: a thread makes the masks of the samplers that are added before masks_begin. masks_end: from here on they are the caller's again; what has not been made is
 * made by who asks for it, or, with `rest`, now, by both. Around each step; NULL is fine. */
llmc_status masks_open(int32_t most, Masks **out, llmc_error *err);
void        masks_close(Masks *m);
void        masks_add(Masks *m, llmc_sampler *s);
void        masks_begin(Masks *m);
void        masks_end(Masks *m, bool rest);

/* second.c: guesses of d[i] for the texts q[i], where it pays; what is certain of a text stays in its sequence */
void        second_guess(Engine *e, SchedSeq *const *q, Draft *const *d, int32_t n, int32_t texts, int32_t again);
void        second_settle(Engine *e, JobChoice *c, int32_t certain);
void        second_forget(Engine *e); /* sequences of texts that have ended */
void        second_drop(Engine *e, JobChoice *c);

/* head.c: rows [n, hidden] of the positions from `at` on of the text q, all of whose next tokens are known */
void        head_take(Engine *e, JobChoice *c, const SchedSeq *q, int32_t at, int32_t n, const float *rows);
void        head_read(Engine *e, JobChoice *c, const SchedSeq *q, int32_t n); /* the head has read the first n */
void        head_drop(HeadRows *h);

/* job.c */
llmc_status job_open(Engine *e, const llmc_request *r, Job **out, llmc_error *err);
void        job_free(Job *j);
/* Answers of a choice: events on j->out (or held). Each returns false when the request has failed on the way. */
/* Rows [at, at + n) of a prompt that becomes a vector; rows: those that the step gave of them, at its end. */
void        job_rows(Engine *e, Job *j, int32_t at, int32_t n, const float *rows, int32_t n_rows);
bool        job_prompt(Engine *e, Job *j, int32_t at, int32_t n, const float *logits);
bool        job_token(Engine *e, Job *j, JobChoice *c, const Sampled *p, llmc_finish *finish, bool *finished);
void        job_finish(Engine *e, Job *j, JobChoice *c, llmc_finish finish, const Sampled *p);
void        job_fail(Engine *e, Job *j, llmc_status status, const char *text);

/* event.c */
void        event_list_add(EventList *l, Event *ev);
void        event_list_free(EventList *l);

/* mail.c */
/* Hand the events of the step over and let go of jobs that are over. */
void        mail_flush(Engine *e);
void        mail_close(Engine *e);

/* counts.c */
void        count_seconds(llmc_histogram *h, double s);
void        count_things(llmc_histogram *h, double n);

#endif

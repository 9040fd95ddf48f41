/* The scheduler: which pieces of which requests run in the next step, who is preempted when pages
 * run out, who comes next. It knows no threads, no clock and no model: sequences and pages are
 * reached through SchedOps, so that a simulation can stand in for them.
 *
 *   request  a prompt and 1 .. n choices to continue it; waits in order of priority and arrival,
 * then has started
 *   choice   its tokens so far; once started it is RUNNING (has a sequence), ASIDE (has none: its tokens run again, or
 *            its saved KV is loaded) or DONE. Choices after the first begin as copies of it when
 * the prompt has run.
 *
 * Age is (priority, arrival, choice), the lower priority first. Rules: a running choice gets pages
 * by preempting younger ones, never older ones, so the oldest always advances; what was preempted
 * goes on before anything younger starts; new requests start in order, and take the places of
 * choices of a worse priority. One thread. */
#ifndef LLMC_RUNTIME_ENGINE_SCHEDULER_H
#define LLMC_RUNTIME_ENGINE_SCHEDULER_H

#include "base/error.h"

typedef struct Sched Sched;
typedef struct SchedReq SchedReq;

typedef struct SchedOps {
	void *user;
	llmc_status (*seq_new)(void *user, const SchedReq *req, llmc_seq *out,
	                       llmc_error *err); /* of req->bound positions, with req->adapter */
	llmc_status (*seq_fork)(void *user, llmc_seq from, llmc_seq *out, llmc_error *err);
	void (*seq_free)(void *user, llmc_seq q);
	void (*seq_trim)(void *user, llmc_seq q, int32_t len);
	bool (*seq_mark)(
	    void *user, llmc_seq q,
	    bool on); /* of models with states: it can be trimmed to here; false: not now */
	int64_t (*pages_need)(void *user, const llmc_seq *q, const int32_t *add, size_t n);
	int64_t (*pages_free)(void *user);
	int32_t (*prefix_find)(void *user, llmc_seq q, const int32_t *tok,
	                       int32_t n); /* positions found, < n */
	void (*prefix_keep)(void *user, llmc_seq q, const int32_t *tok);
	bool (*here)(void *user,
	             llmc_seq q); /* have the pages that were found come? Until then a sequence
	                             waits, unless there is nothing else to do */
	/* Save a sequence of n_tok positions if that is cheaper than to compute it again; NULL: it
	 * is not. */
	void *(*save)(void *user, llmc_seq q, int32_t n_tok);
	bool (*load)(void *user, void *saved, llmc_seq *out); /* releases saved when true */
	void (*drop)(void *user, void *saved);
} SchedOps;

typedef struct SchedLimits {
	int32_t seqs, chunk, n_out;
	int32_t prefill;      /* tokens of prompts in a step */
	int64_t pages;        /* in all */
	int64_t total_tokens; /* prompts + new tokens of all that have started; 0: no bound */
	float waiting_ratio;  /* see llmc_engine_options */
	int32_t max_waiting_steps;
	bool prompt_whole;
	bool no_prefix;
	bool page_aligned; /* a prefix ends where a step has ended: a piece of a prompt ends at its
	                      last border of pages, one before it at any border; less than a page
	                      left of a step is no other prompt's, unless that ends in it */
	bool states;       /* a sequence can be trimmed to where it was marked, and nowhere else */
	int32_t draft_rows_max; /* of a chunk with guesses, which has no more than there are
	                           positions before it either; 0: no bound */
} SchedLimits;

typedef enum SchedState { SEQ_NEW, SEQ_RUNNING, SEQ_PREEMPTED, SEQ_DONE } SchedState;

typedef struct SchedSeq {
	SchedReq *req;
	int32_t index;
	SchedState state;
	llmc_seq q;             /* RUNNING: its sequence, else -1 */
	int32_t *tok;           /* [n_prompt + max_new] */
	int32_t n_tok, n_done;  /* known; in the KV */
	int32_t n_preempted;    /* times preempted */
	int32_t at;             /* its chunk of the step, or -1 */
	bool marked, again;     /* marked in front of its guesses; again: some were wrong, so its
	                           sequence is back there, and what was right runs once more */
	int32_t mark;           /* tokens in front of its mark */
	int32_t n_draft_tokens; /* guesses behind its last token in this step; its KV holds them
	                           until sched_commit_drafts */
	void *saved;            /* ASIDE: saved KV of n_saved positions, or NULL */
	int32_t n_saved;
	struct SchedSeq *older, *younger; /* in the queue of its state */
} SchedSeq;

struct SchedReq {
	uint64_t order;
	int32_t adapter;  /* that its sequences run with */
	uint64_t salt;    /* of its prompt's pages in the prefix cache */
	int32_t priority; /* the lower, the sooner */
	int32_t n_prompt, max_new, n_seq;
	int32_t bound;    /* positions of a sequence at most */
	bool prompt_rows; /* logits of every row of the prompt are wanted */
	bool started, forked;
	int32_t n_cached; /* of the prompt, found when it started */
	int32_t n_open;   /* choices that are not DONE */
	SchedSeq *seq;    /* [n_seq] */
	void *user;
	SchedReq *next; /* waiting */
};

typedef struct SchedQueue {
	SchedSeq *oldest, *youngest;
	int32_t n;
} SchedQueue;

struct Sched {
	SchedLimits lim;
	SchedOps ops;
	uint64_t n_order;
	SchedReq *first, *last; /* waiting */
	int32_t n_waiting;
	SchedQueue running, preempted;
	int32_t reserved;     /* sequences promised to choices that are still to fork */
	int64_t total_tokens; /* of started requests */
	int32_t steps_since_start;
	int32_t n_started; /* requests that the last step started */
	bool only_waiting; /* nothing else is to be done: who waits for pages runs, and waits on the
	                      device */
	/* the step */
	int32_t n_chunk;
	llmc_chunk *chunk;    /* [seqs] */
	SchedSeq **chunk_seq; /* [seqs] whose it is */
	llmc_seq *q;          /* [seqs + 1] for pages_need */
	int32_t *add;
	/* counts */
	uint64_t n_preempted, n_saved, n_loaded, prefix_queries, prefix_hits;
};

llmc_status sched_open(const SchedLimits *lim, const SchedOps *ops, Sched **out, llmc_error *err);
void sched_close(Sched *s); /* no request may be left */

/* A request on its own: any thread. NULL: out of memory. */
SchedReq *sched_req_new(const int32_t *prompt, int32_t n_prompt, int32_t max_new, int32_t n_seq);
void sched_req_free(SchedReq *r);
/* NULL, or why it could never run. */
const char *sched_reject_reason(const SchedLimits *lim, const SchedReq *r);
void sched_submit(Sched *s, SchedReq *r);
/* Take a request out, wherever it is: its open choices are DONE, what they held is free. */
void sched_cancel(Sched *s, SchedReq *r);

/* Decide about a step: fills chunk and chunk_seq; the number of chunks, 0 when there is nothing to
 * do. */
int32_t sched_plan(Sched *s);
/* May chunk i, the single row of a choice that is being continued or what runs again of one, have
 * guesses behind it? */
bool sched_may_draft(const Sched *s, int32_t i);
/* Rows that the step has room for beside those planned. */
int32_t sched_spare_rows(const Sched *s);
/* Put guesses behind the token of chunk i, as many of n as room and free pages allow; the number
 * put. Logits of all its rows are wanted. Guesses never preempt anybody. */
int32_t sched_add_drafts(Sched *s, int32_t i, const int32_t *tok, int32_t n);
/* Chunk i has run. True: its last row says how its choice goes on; sched_push or sched_finish must
 * follow, for a request that was not forked and has more choices sched_fork first, then for each
 * choice. */
bool sched_chunk_done(Sched *s, int32_t i);
bool sched_must_fork(const SchedSeq *c);
llmc_status sched_fork(Sched *s, SchedReq *r, llmc_error *err);
/* The next token; true: it is the next guess, so that the row behind it says how the choice goes
 * on. */
bool sched_push(Sched *s, SchedSeq *c, int32_t id);
/* After all pushes of a step: guesses that have not come true leave the KV. */
void sched_commit_drafts(Sched *s, SchedSeq *c);
void sched_finish(Sched *s, SchedSeq *c);

/* The invariants of queues and counts, in time linear in what is in work. NULL, or what is wrong.
 */
const char *sched_check(const Sched *s);

#endif

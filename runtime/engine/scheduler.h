/* The scheduler: which chunks of which requests run in the next step, which choice is preempted
 * when pages run out, which request starts next. It depends on no thread, clock or model, and calls
 * the session through SchedOps, so that a simulation can replace the session.
 *
 *   request  a prompt and 1 .. n choices that continue it; waits by priority and arrival
 *   choice   its tokens so far. Once started it is RUNNING (has a sequence), PREEMPTED (has none;
 *            its tokens are computed again or its saved KV is loaded) or DONE. Choices after the
 *            first are forked from it when the prompt has run.
 *
 * Age is (priority, start, choice); the lower priority number is older. Rules:
 * - A running choice gets pages by preempting younger ones, never older ones: the oldest always
 * advances.
 * - A preempted choice resumes before anything younger starts.
 * - New requests start by priority. They may preempt choices of a worse priority. Within a
 * priority, clients take turns (sched_clients.c): the next request is that of the client with the
 * fewest tokens, and the requests of a client start in order of arrival. A client that runs several
 * choices yields some to a client that runs at least two fewer; a choice that yielded becomes the
 * youngest.
 *
 * One thread only. */
#ifndef LLMC_RUNTIME_ENGINE_SCHEDULER_H
#define LLMC_RUNTIME_ENGINE_SCHEDULER_H

#include "base/error.h"

typedef struct Sched Sched;
typedef struct SchedReq SchedReq;

typedef struct SchedOps {
	void *user;
	/* opens a sequence for req->bound positions with req->adapter */
	llmc_status (*seq_new)(void *user, const SchedReq *req, llmc_seq *out, llmc_error *err);
	llmc_status (*seq_fork)(void *user, llmc_seq from, llmc_seq *out, llmc_error *err);
	void (*seq_free)(void *user, llmc_seq q);
	void (*seq_trim)(void *user, llmc_seq q, int32_t len);
	bool (*seq_mark)(void *user, llmc_seq q,
	                 /* models with recurrent states: mark the current position, to which the
	                  * sequence can be trimmed later; false: no mark is free */
	                 bool on);
	int64_t (*pages_need)(void *user, const llmc_seq *q, const int32_t *add, size_t n);
	int64_t (*pages_free)(void *user);
	int32_t (*prefix_find)(void *user, llmc_seq q, const int32_t *tok,
	                       int32_t n); /* number of positions found, < n */
	void (*prefix_keep)(void *user, llmc_seq q, const int32_t *tok);
	bool (*here)(void *user,
	             /* are the pages found in host memory loaded? A sequence waits for them, unless
	              * nothing else can run */
	             llmc_seq q);
	/* Save a sequence of n_tok positions if that is cheaper than computing it again; else
	 * return NULL. */
	void *(*save)(void *user, llmc_seq q, int32_t n_tok);
	bool (*load)(void *user, void *saved, llmc_seq *out); /* releases `saved` if true */
	void (*drop)(void *user, void *saved);
} SchedOps;

typedef struct SchedLimits {
	int32_t seqs, chunk, n_out;
	int32_t prefill;      /* prompt tokens per step */
	int64_t pages;        /* total */
	int64_t total_tokens; /* prompts + new tokens of all started requests; 0: no limit */
	float waiting_ratio;  /* see llmc_engine_options */
	int32_t max_waiting_steps;
	bool prompt_whole;
	bool no_prefix;
	/* for recurrent states, whose prefixes can be cached only where a step ended: a chunk of a
	 * prompt ends at the prompt's last page boundary or at an earlier one, except for the last
	 * chunk. Less than a page of space in a step goes to another prompt only if that prompt
	 * ends in it */
	bool page_aligned;
	bool states; /* a sequence can be trimmed only to its mark */
	/* maximum rows of a chunk with draft tokens, which also must not exceed the number of
	 * positions before the chunk; 0: no limit */
	int32_t draft_rows_max;
} SchedLimits;

typedef enum SchedState { SEQ_NEW, SEQ_RUNNING, SEQ_PREEMPTED, SEQ_DONE } SchedState;

typedef struct SchedSeq {
	SchedReq *req;
	int32_t index;
	SchedState state;
	llmc_seq q;            /* RUNNING: its sequence, else -1 */
	int32_t *tok;          /* [n_prompt + max_new] */
	int32_t n_tok, n_done; /* known tokens; tokens in the KV cache */
	int32_t n_preempted;   /* number of preemptions */
	int32_t at;            /* index of its chunk in the step, or -1 */
	/* marked: there is a mark before its draft tokens; again: some draft tokens were rejected,
	 * so the sequence is back at the mark and its accepted tokens run again */
	bool marked, again;
	bool blocked; /* decode left no space for a chunk that runs as a whole */
	bool yielded; /* PREEMPTED for the request of another client */
	uint64_t age; /* number of its request's start, or of its last yield */
	int32_t mark; /* number of tokens before the mark */
	/* draft tokens after its last token in this step; in the KV cache until
	 * sched_commit_drafts */
	int32_t n_draft_tokens;
	void *saved; /* PREEMPTED: saved KV of n_saved positions, or NULL */
	int32_t n_saved;
	struct SchedSeq *older, *younger; /* in the queue of its state */
} SchedSeq;

/* Client with requests that wait or run */
typedef struct SchedClient {
	uint64_t id;
	/* prompt tokens of started requests and new tokens; raised when its first request begins to
	 * wait */
	double served;
	int32_t n_req, n_waiting;
	int32_t n_held; /* sequences that it runs, and those reserved for forks */
	struct SchedClient *next;
} SchedClient;

struct SchedReq {
	uint64_t order;
	uint64_t client;  /* set before sched_submit */
	SchedClient *of;  /* after it */
	bool may_yield;   /* others may yield to it: not tried yet */
	int32_t adapter;  /* LoRA adapter of its sequences */
	int32_t n_first;  /* tokens before those of the second token type; 0: all */
	uint64_t salt;    /* salt of its prompt's pages in the prefix cache */
	int32_t priority; /* a lower number runs first */
	int32_t n_prompt, max_new, n_seq;
	int32_t bound; /* maximum number of positions of a sequence */
	/* [n_prompt]: image of each prompt token (-1: none). Tokens of one image run in one chunk.
	 * NULL: chunks may end anywhere */
	const int32_t *image_at;
	bool prompt_rows; /* logits of every prompt row are wanted */
	bool started, forked;
	int32_t n_cached; /* prompt tokens found in the prefix cache at the start */
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
	int32_t n_yielded; /* preempted choices that yielded */
	uint64_t n_age;
	SchedClient *client;      /* with requests */
	int32_t n_turns;          /* clients with waiting requests */
	double turn;              /* tokens that a client with waiting requests got on average */
	SchedClient spare_client; /* client of requests that arrive while memory is short */
	int32_t reserved;         /* sequences reserved for choices that have not been forked yet */
	int64_t total_tokens;     /* sum over started requests */
	int32_t steps_since_start;
	int32_t n_started; /* requests that the last step started */
	/* nothing else can run, so choices run although their pages are still being copied, and the
	 * device waits for the copies */
	bool only_waiting;
	/* the step */
	int32_t n_chunk;
	llmc_chunk *chunk;    /* [seqs] */
	SchedSeq **chunk_seq; /* [seqs] choice of each chunk */
	llmc_seq *q;          /* [seqs + 1] for pages_need */
	int32_t *add;
	/* counts */
	uint64_t n_preempted, n_saved, n_loaded, prefix_queries, prefix_hits;
};

llmc_status sched_open(const SchedLimits *lim, const SchedOps *ops, Sched **out, llmc_error *err);
void sched_close(Sched *s); /* no request may be left */

/* Make a request; any thread. NULL: out of memory. */
SchedReq *sched_req_new(const int32_t *prompt, int32_t n_prompt, int32_t max_new, int32_t n_seq);
void sched_req_free(SchedReq *r);
/* Return the reason why the request could never run, or NULL. */
const char *sched_reject_reason(const SchedLimits *lim, const SchedReq *r);
void sched_submit(Sched *s, SchedReq *r);
/* Remove a request in any state: its open choices become DONE and release their sequences. */
void sched_cancel(Sched *s, SchedReq *r);

/* Plan a step: fill chunk and chunk_seq. Returns the number of chunks, 0 if there is nothing to
 * run. */
int32_t sched_plan(Sched *s);
/* May draft tokens follow chunk i? It must be a decode chunk of a choice: one row, or accepted
 * tokens that run again. */
bool sched_may_draft(const Sched *s, int32_t i);
/* Number of rows that the planned step has left. */
int32_t sched_spare_rows(const Sched *s);
/* Add up to n draft tokens to chunk i, as rows and free pages allow; returns the number added.
 * Logits of all its rows are wanted. Draft tokens never preempt a choice. */
int32_t sched_add_drafts(Sched *s, int32_t i, const int32_t *tok, int32_t n);
/* Record that chunk i has run. True: its last row gives the next token. If sched_must_fork, call
 * sched_fork first; then call sched_push or sched_finish for each choice. */
bool sched_chunk_done(Sched *s, int32_t i);
bool sched_must_fork(const SchedSeq *c);
llmc_status sched_fork(Sched *s, SchedReq *r, llmc_error *err);
/* Append the next token. True: it equals the next draft token, so the row after it is valid. */
bool sched_push(Sched *s, SchedSeq *c, int32_t id);
/* Remove rejected draft tokens from the KV cache, after all pushes of a step. */
void sched_commit_drafts(Sched *s, SchedSeq *c);
void sched_finish(Sched *s, SchedSeq *c);

/* Check the invariants of queues and counts, in time linear in the number of requests. Returns
 * NULL, or the violation. */
const char *sched_check(const Sched *s);

#endif

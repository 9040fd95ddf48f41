/* Parts of the scheduler. */
#ifndef LLMC_RUNTIME_ENGINE_SCHEDULER_INTERNAL_H
#define LLMC_RUNTIME_ENGINE_SCHEDULER_INTERNAL_H

#include "runtime/engine/scheduler.h"

/* scheduler_queue.c */
int64_t sched_pages_of(int64_t n_tok);
int64_t sched_cost(const SchedReq *r);
bool sched_before(const SchedReq *a, const SchedReq *b);
bool sched_older(const SchedSeq *a, const SchedSeq *b);
void sched_enqueue(SchedQueue *u, SchedSeq *c);
void sched_dequeue(SchedQueue *u, SchedSeq *c);
/* Number of sequences reserved for the other choices of a request that has not forked yet */
int32_t sched_reserve(const SchedReq *r);
void sched_preempt(Sched *s, SchedSeq *c);
/* Set or clear SchedSeq.yielded and count it */
void sched_set_yielded(Sched *s, SchedSeq *c, bool yielded);
/* Remove a request from the waiting ones */
void sched_unwait(Sched *s, SchedReq *r);
/* Keep the first `certain` tokens of a choice and remove the rest. With recurrent states the
 * sequence returns to its mark, and the certain tokens after it run again at the start of the next
 * step. */
void sched_rollback(Sched *s, SchedSeq *c, int32_t certain);

/* scheduler_clients.c */
/* Add a request that begins to wait to its client; out of memory: to any client */
void sched_client_add(Sched *s, SchedReq *r);
void sched_client_remove(Sched *s, SchedReq *r); /* the request is over */
/* Count the tokens of a prompt that starts, or new tokens. Tokens that run again are not counted.
 */
void sched_client_charge(Sched *s, SchedReq *r, int32_t n_tok);
SchedReq *sched_next(const Sched *s); /* waiting request that starts next; NULL: none waits */
/* Choice that yields its sequence to a waiting request; NULL: none */
SchedSeq *sched_yields_to(const Sched *s, const SchedReq *r);
/* Would a choice, resumed now, yield again? */
bool sched_would_yield(const SchedSeq *c, const SchedReq *next);

#endif

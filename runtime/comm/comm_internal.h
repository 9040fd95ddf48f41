/* Between the files of comm/: a rank's end is the first member of what a way of talking keeps. */
#ifndef LLMC_RUNTIME_COMM_COMM_INTERNAL_H
#define LLMC_RUNTIME_COMM_COMM_INTERNAL_H

#include <stdatomic.h>

#include "runtime/comm/comm.h"

typedef struct CommOps {
	bool (*sum)(Comm *c, int part, const CommReduce *s);
	bool (*join)(Comm *c, int part, const CommGather *j);
	bool (*send)(Comm *c, const void *data, size_t n);
	bool (*receive)(Comm *c, void *data, size_t n);
	bool (*collect)(Comm *c, const void *data, size_t n, void *all);
	bool (*hand)(Comm *c, const void *data, size_t n);
	bool (*take)(Comm *c, void *data, size_t n);
	void (*end)(Comm *c);
	bool (*ended)(const Comm *c);
	void (*why)(const Comm *c, char *text,
	            size_t n); /* it has ended: why; the same for all ranks that know. Untouched:
	                          nobody has said */
	void (*close)(Comm *c);
} CommOps;

/* How much longer than within a step of all ranks one waits over stages, for whole steps of the
 * others */
enum { COMM_STAGES_PATIENCE = 20 };

struct Comm {
	const CommOps *ops;
	int rank, ranks;
	int team, first; /* ranks first .. first + team - 1 are those of this stage */
	atomic_ullong
	    *where; /* what comm_set_position said last, where others see it; NULL: nobody looks */
};

/* "in step 7, layer 3, all_reduce", "behind step 7": what comm_set_position has left */
void comm_position_text(uint64_t where, char *text, size_t n);

static inline Comm
comm_of(const CommOps *ops, int rank, CommShape shape)
{
	return (Comm){ .ops = ops,
		       .rank = rank,
		       .ranks = shape.ranks,
		       .team = shape.team,
		       .first = rank / shape.team * shape.team };
}

/* Who is handed what this rank has made, and by whom it is */
static inline int
comm_next_stage_rank(const Comm *c)
{
	return (c->rank + c->team) % c->ranks;
}

static inline int
comm_prev_stage_rank(const Comm *c)
{
	return (c->rank + c->ranks - c->team) % c->ranks;
}

/* sum: elements [at, at + n) of the x of all ranks, added; the other terms are added to it and the
 * result goes to y. */
void comm_finish_sum(const CommReduce *s, int64_t at, int64_t n, float *sum);

/* What part p of `parts` sends of the rows of rank k of a team of `ranks`, which lie one after the
 * other: elements [at, end), of rows of `count` columns that begin at column `first` of the whole.
 */
typedef struct CommStream {
	int64_t first, count, at, end;
} CommStream;
CommStream comm_stream(const CommGather *j, int ranks, int rank, int part, int parts);
/* Elements [at, end) of rank k's rows, to their places in y. */
void comm_place(const CommGather *j, const CommStream *s, int64_t at, int64_t end, const float *x);

/* liveness.c: signs of life of ranks that are processes, in memory that all see, or that this one
 * keeps of what it has heard. Each rank has a thread that counts its beat up, ten times a second,
 * and looks whether those of the others grow: a process that is stopped, or gone, counts no more,
 * however long the step takes that it is in, and also between steps. */
typedef struct Heartbeat {
	_Alignas(64) atomic_ullong beat, where, space;
	atomic_int pid;
} Heartbeat;
typedef struct LivenessWatch LivenessWatch;
enum { COMM_POLL_MS = 100 }; /* between two looks */
#define COMM_LEFT UINT64_MAX /* the beat of a rank that has closed its watch */
/* life [ranks], zero before the first one begins. exchange(user), or NULL: at each look, before it,
 * where signs do not come by themselves. missed(user, k, gone) once: rank k has been still for
 * timeout_s seconds, or its process has ended. Both on a thread of their own. A rank that has not
 * begun, or has closed its watch, is not missed. */
llmc_status watch_open(Heartbeat *heartbeat, int rank, int ranks, int timeout_s,
                       void (*exchange)(void *user),
                       void (*missed)(void *user, int rank, bool gone), void *user,
                       LivenessWatch **out, llmc_error *err);
void watch_close(LivenessWatch *w); /* NULL is fine */

/* shm_comm.c: memory of comm_shm_bytes bytes, zero, seen by all ranks, aligned to 64; each makes
 * its end over it. timeout_s: how long a rank, a process of its own, may be late in a step, or give
 * no sign of life; 0: for ever, they are threads of one process. release(user) is called when the
 * end is closed. */
size_t comm_shm_bytes(CommShape shape);
llmc_status comm_shm(void *memory, int rank, CommShape shape, int timeout_s,
                     void (*release)(void *user), void *user, Comm **out, llmc_error *err);

#endif

/* Shared by the files of comm/: a rank's endpoint is the first member of every transport's
 * struct. */
#ifndef LLMC_RUNTIME_COMM_COMM_INTERNAL_H
#define LLMC_RUNTIME_COMM_COMM_INTERNAL_H

#include <stdatomic.h>

#include "runtime/comm/comm.h"

typedef struct CommOps {
	bool (*all_reduce)(Comm *c, int part, const CommReduce *s);
	bool (*all_gather)(Comm *c, int part, const CommGather *j);
	bool (*send)(Comm *c, const void *data, size_t n);
	bool (*receive)(Comm *c, void *data, size_t n);
	bool (*gather_to_root)(Comm *c, const void *data, size_t n, void *all);
	bool (*pipe_send)(Comm *c, const void *data, size_t n);
	bool (*pipe_receive)(Comm *c, void *data, size_t n);
	void (*end)(Comm *c);
	bool (*ended)(const Comm *c);
	void (*why)(const Comm *c, char *text,
	            /* reason why the group has ended, equal on all ranks that have it; text is left
	             * unchanged if the reason is unknown */
	            size_t n);
	void (*close)(Comm *c);
} CommOps;

/* Timeout factor for pipeline stages: a rank that waits for a stage, sends a step or requests pages
 * may wait for whole steps of other ranks. */
enum { COMM_STAGES_PATIENCE = 20 };

struct Comm {
	const CommOps *ops;
	int rank, ranks;
	int team, first; /* this stage has ranks first .. first + team - 1 */
	/* latest value of comm_set_position, in memory that other ranks read; NULL: none */
	atomic_ullong *where;
};

/* "in step 7, layer 3, all_reduce" or "after step 7": the text of a value of comm_set_position */
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

/* Rank that receives this rank's result; comm_prev_stage_rank: the rank that sends its result to
 * this one */
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

/* Finish elements [at, at + n): `sum` holds the sum of x over all ranks. Adds the other terms and
 * writes y. */
void comm_finish_sum(const CommReduce *s, int64_t at, int64_t n, float *sum);

/* Share of part p in the contiguous rows of rank k: elements [at, end). The rows have `count`
 * columns and start at column `first` of the full width. A team has `ranks` ranks, each with
 * `parts` parts. */
typedef struct CommStream {
	int64_t first, count, at, end;
} CommStream;
CommStream comm_stream(const CommGather *j, int ranks, int rank, int part, int parts);
/* Write elements [at, end) of rank k's rows to their columns in y. */
void comm_store_columns(const CommGather *j, const CommStream *s, int64_t at, int64_t end,
                        const float *x);

/* liveness.c: heartbeats of ranks that are processes, in shared memory or in this rank's record of
 * received messages. A thread of each rank increments its own counter ten times per second and
 * checks that the others' counters grow. A long step does not stop the heartbeat. A stopped or dead
 * process does, even between steps. */
typedef struct Heartbeat {
	_Alignas(64) atomic_ullong beat, where, space;
	atomic_int pid;
} Heartbeat;
typedef struct LivenessWatch LivenessWatch;
enum { COMM_POLL_MS = 100 }; /* interval between two checks */
#define COMM_LEFT UINT64_MAX /* counter value of a rank that has closed its watch */
/* heartbeat [ranks], zero before the first rank starts. exchange(user) runs before each check; NULL
 * if heartbeats are in shared memory. missed(user, k, gone) runs once, when rank k's heartbeat has
 * not changed for timeout_s seconds or its process has ended. Both callbacks run on the watch's own
 * thread. Ranks that have not started, or have closed their watch, are never reported. */
llmc_status watch_open(Heartbeat *heartbeat, int rank, int ranks, int timeout_s,
                       void (*exchange)(void *user),
                       void (*missed)(void *user, int rank, bool gone), void *user,
                       LivenessWatch **out, llmc_error *err);
void watch_close(LivenessWatch *w); /* NULL is fine */

/* shm_comm.c: each rank creates its endpoint in `memory`: comm_shm_bytes zeroed bytes, aligned to
 * 64 and shared by all ranks. timeout_s: how long a rank process may be late in a step, or have no
 * heartbeat; 0: no limit, because the ranks are threads of one process. release(user) is called
 * when the endpoint is closed. */
size_t comm_shm_bytes(CommShape shape);
llmc_status comm_shm(void *memory, int rank, CommShape shape, int timeout_s,
                     void (*release)(void *user), void *user, Comm **out, llmc_error *err);

#endif

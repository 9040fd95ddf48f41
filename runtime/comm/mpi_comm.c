/* Steps of ranks without shared memory, through MPI: several hosts.
 *
 * MPI's own reductions are not used, because their order depends on sizes and positions: with Open
 * MPI and three ranks, a row alone and the same row among others give different bits. Terms are
 * gathered and added here in the order of ranks.
 *
 * Heartbeats are messages too: the liveness.c thread of each rank exchanges about ten per second
 * with the thread of rank 0, including the rank's position. Rank 0 detects the loss of any rank;
 * the other ranks detect the loss of rank 0. Either loss ends the group and the job. A program
 * whose MPI does not accept calls from several threads at once has no such thread. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/comm/mpi_internal.h"

/* TAG_PIPE, TAG_HEARTBEAT: message tags. LATE_CHECKS: further checks before a late step counts as a
 * failure, so that a missing heartbeat, which identifies the lost rank, is reported first. */
enum {
	GATHER_FLOATS = 1 << 15,
	PIPE_CHUNK = 1 << 24,
	TAG_PIPE = 7,
	TAG_HEARTBEAT = 8,
	POLL_US = 200,
	LATE_CHECKS = 20
};

/* A pipe message whose send may not have completed yet */
typedef struct PendingSend {
	struct PendingSend *next;
	MpiHandle request;
	char data[];
} PendingSend;

/* Heartbeat message; beat COMM_LEFT: the last one */
typedef struct HeartbeatMessage {
	uint64_t beat, where;
} HeartbeatMessage;
/* Heartbeats to and from one rank. At most one message is in flight per direction. A message holds
 * the state at the time the previous one completed. */
typedef struct MpiPeer {
	HeartbeatMessage from, to;
	MpiHandle getting, putting;
	bool under_way, left, last_sent;
	char host[60];
} MpiPeer;

typedef struct MpiComm {
	Comm c;
	PendingSend *out; /* linked list, oldest first */
	MpiWorld *w;
	MpiHandle team;       /* communicator of this stage's ranks */
	MpiHandle talk;       /* communicator of all ranks, for heartbeats */
	float *all;           /* [ranks][GATHER_FLOATS] */
	float *own;           /* [GATHER_FLOATS] */
	Heartbeat *heartbeat; /* [ranks] received heartbeats, and this rank's own */
	MpiPeer *peer;        /* [ranks] rank 0 uses all entries, the others that of rank 0 */
	LivenessWatch *watch; /* NULL: losses are not detected */
	bool watched;
	int timeout_s, late_s; /* limits in seconds: without a heartbeat; late in a step */
	atomic_int lost;       /* 1 + the rank that is lost */
	/* this rank's beat when it began to wait for its team; 0: not waiting */
	atomic_ullong waiting_since;
	atomic_bool ended, late;
} MpiComm;

/* ---- heartbeats ---- */

static bool
is_peer(const MpiComm *t, int k)
{
	return k != t->c.rank && (k == 0 || t->c.rank == 0);
}

/* Process received heartbeats and post the next receive; false: rank k has left or cannot be
 * reached */
static bool
receive_heartbeat(MpiComm *t, int k)
{
	MpiPeer *p = &t->peer[k];
	MpiWorld *w = t->w;
	char status[256];

	for (int done = 1; !p->left;) {
		if (MPI_CALL(w, test, &p->getting, &done, status))
			return false;
		if (!done)
			return true;
		atomic_store(&t->heartbeat[k].where, p->from.where);
		atomic_store(&t->heartbeat[k].beat, p->from.beat);
		p->left = p->from.beat == COMM_LEFT;
		if (!p->left && MPI_CALL(w, irecv, &p->from, sizeof p->from, w->byte, k,
		                         TAG_HEARTBEAT, t->talk, &p->getting))
			return false;
	}
	return false;
}

/* Send a heartbeat to rank k, unless the previous one is still in flight */
static bool
send_heartbeat(MpiComm *t, int k, uint64_t beat)
{
	MpiPeer *p = &t->peer[k];
	MpiWorld *w = t->w;
	char status[256];
	int done = 1;

	if (p->under_way && (MPI_CALL(w, test, &p->putting, &done, status) || !done))
		return false;
	p->to = (HeartbeatMessage){ beat, atomic_load(&t->heartbeat[t->c.rank].where) };
	p->under_way = !MPI_CALL(w, isend, &p->to, sizeof p->to, w->byte, k, TAG_HEARTBEAT, t->talk,
	                         &p->putting);
	return p->under_way;
}

/* Called before each check of liveness.c */
static void
exchange(void *user)
{
	MpiComm *t = user;
	const uint64_t since = atomic_load(&t->waiting_since),
	               now = atomic_load(&t->heartbeat[t->c.rank].beat);

	if (since && now - since > (uint64_t)t->late_s * (1000 / COMM_POLL_MS) + LATE_CHECKS) {
		atomic_store(&t->late, true);
		atomic_store(&t->ended, true);
		atomic_store(&t->w->lost, true);
		return;
	}
	for (int k = 0; k < t->c.ranks; k++)
		if (is_peer(t, k)) {
			(void)send_heartbeat(t, k, atomic_load(&t->heartbeat[t->c.rank].beat));
			(void)receive_heartbeat(t, k);
		}
}

/* Exchange a last heartbeat with all, so that nothing is in flight when the communicator is freed.
 * Waits while the others have heartbeats, and at most the timeout without one. */
static void
exchange_last_heartbeats(MpiComm *t)
{
	char status[256];
	int64_t checks =
	    0; /* counted, not timed: stopping and continuing the whole job must lose no rank */

	for (bool all = false; !all;) {
		all = true;
		for (int k = 0; k < t->c.ranks; k++) {
			MpiPeer *p = &t->peer[k];
			const uint64_t beat = atomic_load(&t->heartbeat[k].beat);
			int done = 0;
			if (!is_peer(t, k))
				continue;
			p->last_sent = p->last_sent || send_heartbeat(t, k, COMM_LEFT);
			const bool left = !receive_heartbeat(t, k);
			all = p->last_sent && left &&
			      MPI_CALL(t->w, test, &p->putting, &done, status) == 0 && done && all;
			checks = atomic_load(&t->heartbeat[k].beat) == beat ? checks : 0;
		}
		if (all)
			return;
		if (atomic_load(&t->w->lost) ||
		    ++checks > (int64_t)t->timeout_s * (1000000 / POLL_US)) {
			atomic_store(&t->w->lost, true);
			return;
		}
		nanosleep(&(struct timespec){ .tv_nsec = POLL_US * 1000 }, NULL);
	}
}

static void
on_peer_lost(void *user, int rank, bool gone)
{
	MpiComm *t = user;

	(void)gone; /* unknown: the process may be on another host */
	atomic_store(&t->lost, 1 + rank);
	atomic_store(&t->ended, true);
	atomic_store(&t->w->lost, true);
}

/* ---- in a step ---- */

/* Gather n floats of all ranks of `of` in t->all. */
static bool
gather(MpiComm *t, MpiHandle of, const float *x, int64_t n)
{
	if (atomic_load(&t->ended))
		return false;
	atomic_store(&t->waiting_since, t->watch ? atomic_load(&t->heartbeat[t->c.rank].beat) : 0);
	const bool ok = mpi_gather(t->w, of, x, (size_t)n * sizeof *x, t->all);
	atomic_store(&t->waiting_since, 0);
	if (ok)
		return true;
	atomic_store(&t->w->lost, true);
	atomic_store(&t->ended, true);
	return false;
}

/* Only one part calls MPI; the others wait at the barrier after the step. */
static bool
mpi_comm_all_reduce(Comm *c, int part, const CommReduce *s)
{
	MpiComm *t = (MpiComm *)c;
	const int64_t n = s->rows * s->width;

	for (int64_t at = 0; part == 0 && at < n; at += GATHER_FLOATS) {
		int64_t count = n - at < GATHER_FLOATS ? n - at : GATHER_FLOATS;
		if (!gather(t, t->team, s->x + at, count))
			return false;
		for (int k = 1; k < c->team; k++)
			for (int64_t i = 0; i < count; i++)
				t->all[i] += t->all[k * count + i];
		comm_finish_sum(s, at, count, t->all);
	}
	return !atomic_load(&t->ended);
}

static bool
mpi_comm_all_gather(Comm *c, int part, const CommGather *j)
{
	MpiComm *t = (MpiComm *)c;
	CommStream own = comm_stream(j, c->team, c->rank - c->first, 0, 1),
	           most = comm_stream(j, c->team, 0, 0, 1);

	for (int64_t at = 0; part == 0 && at < most.end; at += GATHER_FLOATS) {
		int64_t count = most.end - at < GATHER_FLOATS ? most.end - at : GATHER_FLOATS,
		        left = own.end - at < count ? own.end - at : count;
		if (left > 0)
			memcpy(t->own, j->x + at, (size_t)left * sizeof *t->own);
		if (!gather(t, t->team, t->own, count))
			return false;
		for (int k = 0; k < c->team && j->y; k++) {
			CommStream of = comm_stream(j, c->team, k, 0, 1);
			comm_store_columns(j, &of, at, at + count < of.end ? at + count : of.end,
			                   t->all + k * count);
		}
	}
	return !atomic_load(&t->ended);
}

static bool
mpi_comm_send(Comm *c, const void *data, size_t n)
{
	MpiComm *t = (MpiComm *)c;

	return !atomic_load(&t->ended) && mpi_world_broadcast(t->w, data, n);
}

static bool
mpi_comm_receive(Comm *c, void *data, size_t n)
{
	MpiComm *t = (MpiComm *)c;

	return !atomic_load(&t->ended) && mpi_world_receive(t->w, data, n);
}

static bool
mpi_comm_gather_to_root(Comm *c, const void *data, size_t n, void *all)
{
	MpiComm *t = (MpiComm *)c;
	const int64_t floats = (int64_t)(n / sizeof(float));
	const float *x = data;

	for (int64_t at = 0; at < floats; at += GATHER_FLOATS) {
		int64_t count = floats - at < GATHER_FLOATS ? floats - at : GATHER_FLOATS;
		if (!gather(t, t->w->world, x + at, count))
			return false;
		for (int k = 0; k < c->ranks && all; k++)
			memcpy((float *)all + k * floats + at, t->all + k * count,
			       (size_t)count * sizeof(float));
	}
	return !atomic_load(&t->ended);
}

/* Free completed sends; all: wait for the others too. */
static bool
mpi_comm_clear(MpiComm *t, bool all)
{
	char status[256];
	int done = 1;

	while (t->out && done) {
		PendingSend *p = t->out;
		if (all ? !mpi_finish(t->w, &p->request, true)
		        : MPI_CALL(t->w, test, &p->request, &done, status))
			return false;
		if (!done)
			break;
		t->out = p->next;
		free(p);
	}
	return true;
}

static bool
mpi_comm_pipe_send(Comm *c, const void *data, size_t n)
{
	MpiComm *t = (MpiComm *)c;
	MpiWorld *w = t->w;
	PendingSend **end = &t->out;

	if (atomic_load(&t->ended) || !mpi_comm_clear(t, false))
		return false;
	for (size_t at = 0; at < n; at += PIPE_CHUNK) {
		size_t bytes = n - at < PIPE_CHUNK ? n - at : PIPE_CHUNK;
		PendingSend *p = malloc(sizeof *p + bytes);
		if (!p)
			return false;
		*p = (PendingSend){ 0 };
		memcpy(p->data, (const char *)data + at, bytes);
		if (MPI_CALL(w, isend, p->data, (int)bytes, w->byte, comm_next_stage_rank(c),
		             TAG_PIPE, w->world, &p->request)) {
			free(p);
			return false;
		}
		while (*end)
			end = &(*end)->next;
		*end = p;
	}
	return true;
}

static bool
mpi_comm_pipe_receive(Comm *c, void *data, size_t n)
{
	MpiComm *t = (MpiComm *)c;
	MpiWorld *w = t->w;
	MpiHandle request = NULL;

	for (size_t at = 0; at < n && !atomic_load(&t->ended); at += PIPE_CHUNK) {
		size_t bytes = n - at < PIPE_CHUNK ? n - at : PIPE_CHUNK;
		if (MPI_CALL(w, irecv, (char *)data + at, (int)bytes, w->byte,
		             comm_prev_stage_rank(c), TAG_PIPE, w->world, &request) ||
		    !mpi_finish(w, &request, true))
			return false;
	}
	return !atomic_load(&t->ended);
}

static void
mpi_comm_end(Comm *c)
{
	MpiComm *t = (MpiComm *)c;

	atomic_store(&t->ended, true);
	atomic_store(&t->w->lost, true);
}

static bool
mpi_comm_ended(const Comm *c)
{
	return atomic_load(&((const MpiComm *)c)->ended);
}

static void
mpi_comm_why(const Comm *c, char *text, size_t n)
{
	const MpiComm *t = (const MpiComm *)c;
	const int k = atomic_load(&t->lost) - 1;
	char where[100];

	if (!mpi_comm_ended(c))
		return;
	if (k < 0) {
		if (atomic_load(&t->late))
			snprintf(text, n,
			         "a rank of this job is late: no answer for %d s in a step",
			         t->late_s);
		else
			snprintf(text, n, "a rank of this job cannot be reached");
		return;
	}
	comm_position_text(atomic_load(&t->heartbeat[k].where), where, sizeof where);
	snprintf(text, n, "rank %d of %d (host %s) is lost: no answer for %d s %s", k, c->ranks,
	         t->peer[k].host, t->timeout_s, where);
}

static void
mpi_comm_free(MpiComm *t)
{
	free(t->all);
	free(t->own);
	free(t->heartbeat);
	free(t->peer);
	free(t);
}

static void
mpi_comm_close(Comm *c)
{
	MpiComm *t = (MpiComm *)c;

	watch_close(t->watch);
	if (!mpi_comm_ended(c) && t->watched)
		exchange_last_heartbeats(t);
	/* the memory is not freed, because pending messages use it; the process ends soon */
	if (mpi_comm_ended(c) || atomic_load(&t->w->lost))
		return;
	(void)mpi_comm_clear(t, true);
	t->w->comm_free(&t->talk);
	t->w->comm_free(&t->team);
	mpi_comm_free(t);
}

typedef struct RankName {
	char host[60];
	bool own_thread;
} RankName;

/* Create own communicators, exchange host names, post the first heartbeats. All ranks. */
static llmc_status
join_world(MpiComm *t, llmc_error *err)
{
	MpiWorld *w = t->w;
	RankName own = { .own_thread = w->own_thread },
	         *all = calloc((size_t)t->c.ranks, sizeof *all);

	if (!all)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", t->c.ranks);
	snprintf(own.host, sizeof own.host, "%s", w->name);
	bool good = w->split(w->world, t->c.first, w->rank_, &t->team) == 0 &&
	            w->dup(w->world, &t->talk) == 0 &&
	            mpi_gather(w, w->world, &own, sizeof own, all);
	t->watched = good;
	for (int k = 0; good && k < t->c.ranks; k++) {
		memcpy(t->peer[k].host, all[k].host, sizeof all[k].host - 1);
		t->watched = t->watched && all[k].own_thread;
	}
	for (int k = 0; t->watched && k < t->c.ranks; k++)
		if (is_peer(t, k))
			good = good && MPI_CALL(w, irecv, &t->peer[k].from,
			                        sizeof(HeartbeatMessage), w->byte, k, TAG_HEARTBEAT,
			                        t->talk, &t->peer[k].getting) == 0;
	free(all);
	return good ? LLMC_OK
	            : error_set(
	                  err, LLMC_E_DEVICE,
	                  "MPI cannot create a communicator of ranks %d to %d (MPI_Comm_split)",
	                  t->c.first, t->c.first + t->c.team - 1);
}

llmc_status
comm_mpi(MpiWorld *w, CommShape shape, Comm **out, llmc_error *err)
{
	static const CommOps ops = { .all_reduce = mpi_comm_all_reduce,
		                     .all_gather = mpi_comm_all_gather,
		                     .send = mpi_comm_send,
		                     .receive = mpi_comm_receive,
		                     .gather_to_root = mpi_comm_gather_to_root,
		                     .pipe_send = mpi_comm_pipe_send,
		                     .pipe_receive = mpi_comm_pipe_receive,
		                     .end = mpi_comm_end,
		                     .ended = mpi_comm_ended,
		                     .why = mpi_comm_why,
		                     .close = mpi_comm_close };
	const size_t n = (size_t)w->ranks;
	MpiComm *t = calloc(1, sizeof *t);

	if (!t)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", w->ranks);
	*t = (MpiComm){ .c = comm_of(&ops, w->rank_, shape),
		        .w = w,
		        .timeout_s = comm_timeout(),
		        .late_s = comm_timeout() * (shape.onward ? COMM_STAGES_PATIENCE : 1) };
	t->all = malloc(n * GATHER_FLOATS * sizeof *t->all);
	t->own = calloc(GATHER_FLOATS, sizeof *t->own);
	t->heartbeat = aligned_alloc(_Alignof(Heartbeat), n * sizeof *t->heartbeat);
	t->peer = calloc(n, sizeof *t->peer);
	if (!t->all || !t->own || !t->heartbeat || !t->peer) {
		mpi_comm_free(t);
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", w->ranks);
	}
	memset(t->heartbeat, 0, n * sizeof *t->heartbeat);
	t->c.where = &t->heartbeat[w->rank_].where;
	llmc_status status = join_world(t, err);
	if (status == LLMC_OK && t->watched)
		status = watch_open(t->heartbeat, w->rank_, w->ranks, t->timeout_s, exchange,
		                    on_peer_lost, t, &t->watch, err);
	if (status != LLMC_OK) {
		mpi_comm_free(t);
		return status;
	}
	*out = &t->c;
	return LLMC_OK;
}

/* Ranks that share memory: flags, slots and a ring buffer in one block.
 *
 * A message goes through slots in chunks. Part p of each rank copies its chunk into its slot and
 * sets its flag to the chunk's number. It waits for the flags of part p of the other ranks, then
 * reads their slots. Part p of a rank synchronises only with part p of the others, so no barrier is
 * needed.
 *
 * Each part has two slots, used alternately. Chunk e + 2 overwrites the slot of chunk e. This is
 * safe, because the writer has seen all flags at e + 1, and a rank sets its flag to e + 1 only
 * after it has read chunk e.
 *
 * Waiting spins for a bounded time, then sleeps on a futex, as in threads.c. The time that a rank
 * may take is counted in checks, not by the clock, so no rank counts as lost after the whole job
 * was stopped and continued. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/align.h"
#include "base/futex.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/threads/threads.h"

typedef enum MissedRank { LATE_IN_STEP, STILL, GONE } MissedRank;
/* lost = 1 + rank + REASON_STEP * reason; floats per slot; bytes of the ring */
enum { REASON_STEP = 1 << 16, CHUNK = 4096, RING = 1 << 18 };

/* A counter that only grows, written by one thread. Its low half is the futex. */
typedef struct ShmLine {
	_Alignas(64) atomic_ullong at;
	atomic_int asleep; /* a thread sleeps or is about to */
} ShmLine;

/* The start of the shared memory. It is followed by
 *
 *   one ShmLine per rank          bytes consumed from the ring
 *   two per rank                  bytes written to its pipe to the next stage, and consumed
 *   one per rank                  chunks for rank 0
 *   one per rank and part         flags
 *   one Heartbeat per rank
 *   the ring
 *   slots [2][ranks][parts][CHUNK], slots for rank 0 [2][ranks][CHUNK]
 *   the pipes */
typedef struct ShmBlock {
	atomic_bool ended;
	/* 1 + the first rank that was found lost, plus REASON_STEP times the kind of loss */
	atomic_int lost;
	ShmLine written; /* bytes that rank 0 has written to the ring */
} ShmBlock;

/* Ranks in different processes share these words, so the atomics must be lock-free. */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2 &&
                   ATOMIC_BOOL_LOCK_FREE == 2,
               "atomics of shared memory need no lock");
_Static_assert(sizeof(ShmLine) == 64 && sizeof(Heartbeat) == 192 && sizeof(ShmBlock) == 128 &&
                   offsetof(ShmBlock, written) == 64,
               "lines of the block");

typedef struct ShmLocal {
	_Alignas(64) uint64_t chunk;
} ShmLocal;

typedef struct ShmComm {
	Comm c;
	ShmBlock *b;
	ShmLine *taken, *put, *got, *gathered, *flag;
	char *ring, *pipe; /* pipe: the pipe of rank 0, followed by those of ranks 1, 2, ... */
	float *slot, *gather_slot;
	CommShape shape;
	double spin; /* seconds before sleeping */
	int parts, timeout_s,
	    still_s; /* limits: timeout_s within a step; still_s without a heartbeat */
	uint64_t at; /* bytes sent or received */
	uint64_t pipe_sent, pipe_received, collected;
	ShmLocal *part; /* [parts] chunks that each part has sent */
	Heartbeat *heartbeat;
	LivenessWatch *watch; /* NULL: ranks are threads of this process */
	void (*release)(void *user);
	void *user;
} ShmComm;

/* ---- waiting ---- */

/* Rank k is lost: end the group. Only the first report counts, because every rank that waits for k
 * reports it. */
static void
mark_rank_lost(ShmComm *s, int k, MissedRank how)
{
	if (!atomic_load(&s->b->ended)) /* after the end, ranks leave one by one and are not lost */
		atomic_compare_exchange_strong(&s->b->lost, &(int){ 0 },
		                               1 + k + REASON_STEP * (int)how);
	atomic_store(&s->b->ended, true);
}

static void
line_set(ShmLine *l, uint64_t v)
{
	atomic_store(&l->at, v);
	/* Sequentially consistent with line_wait: either the sleeper sees the new value, or this
	 * thread sees that it sleeps. */
	if (atomic_load(&l->asleep) && atomic_exchange(&l->asleep, 0))
		futex_wake(&l->at, true);
}

/* Wait until the line, which rank `of` writes, reaches v; most_s: time limit in seconds, 0:
 * none. */
static bool
line_wait(ShmComm *s, ShmLine *l, uint64_t v, int of, int most_s)
{
	int checks = 0;

	if (threads_spin_for(&l->at, v, s->spin, NULL))
		return !atomic_load_explicit(&s->b->ended, memory_order_relaxed);
	for (uint64_t now; (now = atomic_load(&l->at)) < v && !atomic_load(&s->b->ended);) {
		atomic_store(&l->asleep, 1);
		if (atomic_load(&l->at) != now)
			continue;
		checks += !futex_wait(&l->at, (uint32_t)now, true, COMM_POLL_MS * 1e-3);
		if (most_s && checks > most_s * (1000 / COMM_POLL_MS))
			mark_rank_lost(s, of, LATE_IN_STEP);
	}
	return !atomic_load(&s->b->ended);
}

/* ---- opening ---- */

/* Bytes of a rank's pipe. Each rank of the last stage has one, but only its first rank uses it. */
static size_t
pipe_bytes(int rank, CommShape c)
{
	return ALIGN_UP(rank + c.team >= c.ranks ? c.back : c.onward, 64);
}

static size_t
lay_out(ShmComm *s, char *base, CommShape c)
{
	size_t at = ALIGN_UP(sizeof(ShmBlock), 64), lines = at;
	const size_t n = (size_t)c.ranks, p = (size_t)c.parts;

	at += (4 * n + n * p) * sizeof(ShmLine) + n * sizeof(Heartbeat);
	if (base) {
		s->b = (ShmBlock *)base;
		s->taken = (ShmLine *)(base + lines);
		s->put = s->taken + n;
		s->got = s->put + n;
		s->gathered = s->got + n;
		s->flag = s->gathered + n;
		s->heartbeat = (Heartbeat *)(s->flag + n * p);
		s->ring = base + at;
		s->slot = (float *)(base + at + RING);
		s->gather_slot = s->slot + 2 * n * p * CHUNK;
		s->pipe = (char *)(s->gather_slot + 2 * n * CHUNK);
	}
	return at + RING + 2 * n * (p + 1) * CHUNK * sizeof(float) +
	       (n - (size_t)c.team) * ALIGN_UP(c.onward, 64) + ALIGN_UP(c.back, 64);
}

size_t
comm_shm_bytes(CommShape shape)
{
	return lay_out(NULL, NULL, shape);
}

static void
shm_end(Comm *c)
{
	ShmComm *s = (ShmComm *)c;

	atomic_store(&s->b->ended, true);
	futex_wake(&s->b->written.at, true);
	for (int i = 0; i < c->ranks * (4 + s->parts); i++) /* taken, put, got, gathered, flag */
		futex_wake(&s->taken[i].at, true);
}

static bool
shm_ended(const Comm *c)
{
	return atomic_load(&((const ShmComm *)c)->b->ended);
}

static void
shm_why(const Comm *c, char *text, size_t n)
{
	const ShmComm *s = (const ShmComm *)c;
	const int lost = atomic_load(&s->b->lost), k = lost % REASON_STEP - 1;
	const MissedRank missed = (MissedRank)(lost / REASON_STEP);
	char where[100], host[60] = "", how[40] = "its process has ended";

	if (lost <= 0 || k < 0 || k >= c->ranks)
		return;
	gethostname(host, sizeof host - 1);
	comm_position_text(atomic_load(&s->heartbeat[k].where), where, sizeof where);
	if (missed != GONE)
		snprintf(how, sizeof how, "no answer for %d s",
		         missed == STILL ? s->still_s : s->timeout_s);
	snprintf(text, n, "rank %d of %d (host %s) is lost: %s %s", k, c->ranks, host, how, where);
}

static void
shm_close(Comm *c)
{
	ShmComm *s = (ShmComm *)c;

	watch_close(s->watch);
	s->release(s->user);
	free(s->part);
	free(s);
}

/* Called by the watch when another rank has no heartbeat. */
static void
on_heartbeat_missed(void *user, int rank, bool gone)
{
	ShmComm *s = user;

	mark_rank_lost(s, rank, gone ? GONE : STILL);
	shm_end(&s->c); /* wakes all waiting threads */
}

/* ---- in a step ---- */

static float *
slot_of(const ShmComm *s, uint64_t chunk, int rank, int part)
{
	return s->slot + ((((chunk & 1) * (size_t)s->c.ranks + (size_t)rank) * (size_t)s->parts) +
	                  (size_t)part) *
	                     CHUNK;
}

/* Write n floats to this part's slot and wait until all ranks of the team have done so. */
static bool
exchange(ShmComm *s, int part, const float *x, int64_t n, uint64_t *chunk)
{
	const uint64_t e = *chunk = ++s->part[part].chunk;

	if (n > 0)
		memcpy(slot_of(s, e, s->c.rank, part), x, (size_t)n * sizeof *x);
	line_set(&s->flag[s->c.rank * s->parts + part], e);
	for (int k = s->c.first; k < s->c.first + s->c.team; k++)
		if (k != s->c.rank &&
		    !line_wait(s, &s->flag[k * s->parts + part], e, k, s->timeout_s))
			return false;
	return true;
}

static bool
shm_all_reduce(Comm *c, int part, const CommReduce *j)
{
	ShmComm *s = (ShmComm *)c;
	const int64_t n = j->rows * j->width, lines = (n + 15) / 16;
	int64_t at = lines * part / s->parts * 16, end = lines * (part + 1) / s->parts * 16;
	uint64_t e;

	for (end = end < n ? end : n; at < end; at += CHUNK) {
		int64_t count = end - at < CHUNK ? end - at : CHUNK;
		float sum[CHUNK];
		if (!exchange(s, part, j->x + at, count, &e))
			return false;
		for (int k = 0; k < c->team; k++) {
			const float *x = slot_of(s, e, c->first + k, part);
			if (k == 0)
				memcpy(sum, x, (size_t)count * sizeof *sum);
			for (int64_t i = 0; k > 0 && i < count; i++)
				sum[i] += x[i];
		}
		comm_finish_sum(j, at, count, sum);
	}
	return true;
}

static bool
shm_all_gather(Comm *c, int part, const CommGather *j)
{
	ShmComm *s = (ShmComm *)c;
	int64_t most = 0;
	uint64_t e;

	for (int k = 0; k < c->team; k++) {
		CommStream of = comm_stream(j, c->team, k, part, s->parts);
		most = of.end - of.at > most ? of.end - of.at : most;
	}
	for (int64_t from = 0; from < most; from += CHUNK) {
		CommStream own = comm_stream(j, c->team, c->rank - c->first, part, s->parts);
		int64_t left = own.end - own.at - from;
		if (!exchange(s, part, j->x + own.at + from, left < CHUNK ? left : CHUNK, &e))
			return false;
		for (int k = 0; k < c->team && j->y; k++) {
			CommStream of = comm_stream(j, c->team, k, part, s->parts);
			int64_t end = of.at + from + CHUNK < of.end ? of.at + from + CHUNK : of.end;
			comm_store_columns(j, &of, of.at + from, end,
			                   slot_of(s, e, c->first + k, part));
		}
	}
	return true;
}

/* ---- bytes from rank 0 ---- */

/* Contiguous bytes available in the ring from the current position */
static size_t
ring_chunk(const ShmComm *s, size_t n)
{
	size_t run = RING - s->at % RING, most = run < RING / 2 ? run : RING / 2;

	return n < most ? n : most;
}

static bool
shm_send(Comm *c, const void *data, size_t n)
{
	ShmComm *s = (ShmComm *)c;
	const char *from = data;

	while (n) {
		size_t chunk = ring_chunk(s, n);
		for (int k = 1; k < c->ranks; k++)
			if (s->at + chunk > RING &&
			    !line_wait(s, &s->taken[k], s->at + chunk - RING, k, s->timeout_s))
				return false;
		memcpy(s->ring + s->at % RING, from, chunk);
		s->at += chunk;
		line_set(&s->b->written, s->at);
		from += chunk;
		n -= chunk;
	}
	return !shm_ended(c);
}

static bool
shm_receive(Comm *c, void *data, size_t n)
{
	ShmComm *s = (ShmComm *)c;
	char *to = data;

	while (n) {
		size_t chunk = ring_chunk(s, n);
		if (!line_wait(s, &s->b->written, s->at + chunk, 0, 0))
			return false;
		memcpy(to, s->ring + s->at % RING, chunk);
		s->at += chunk;
		line_set(&s->taken[c->rank], s->at);
		to += chunk;
		n -= chunk;
	}
	return true;
}

/* ---- bytes to rank 0 ---- */

static bool
shm_gather_to_root(Comm *c, const void *data, size_t n, void *all)
{
	ShmComm *s = (ShmComm *)c;
	const size_t most = CHUNK * sizeof(float);

	for (size_t at = 0; at < n; at += most) {
		const size_t count = n - at < most ? n - at : most;
		const uint64_t e = ++s->collected;
		float *gather_slot = s->gather_slot + (size_t)(e & 1) * (size_t)c->ranks *
		                                          CHUNK; /* two slots, used alternately */
		memcpy(gather_slot + (size_t)c->rank * CHUNK, (const char *)data + at, count);
		line_set(&s->gathered[c->rank], e);
		for (int k = 0; k < c->ranks; k++)
			if (k != c->rank && !line_wait(s, &s->gathered[k], e, k, s->timeout_s))
				return false;
		for (int k = 0; k < c->ranks && all; k++)
			memcpy((char *)all + (size_t)k * n + at, gather_slot + (size_t)k * CHUNK,
			       count);
	}
	return !shm_ended(c);
}

/* ---- bytes from stage to stage ---- */

static char *
pipe_of(const ShmComm *s, int rank)
{
	return s->pipe + (size_t)rank * ALIGN_UP(s->shape.onward, 64);
}

static bool
shm_pipe_send(Comm *c, const void *data, size_t n)
{
	ShmComm *s = (ShmComm *)c;
	const size_t capacity = pipe_bytes(c->rank, s->shape);
	const char *from = data;

	while (n) {
		if (s->pipe_sent >= capacity &&
		    !line_wait(s, &s->got[c->rank], s->pipe_sent - capacity + 1,
		               comm_next_stage_rank(c), 0))
			return false;
		size_t free = capacity - (size_t)(s->pipe_sent - atomic_load(&s->got[c->rank].at)),
		       run = capacity - s->pipe_sent % capacity;
		run = run < free ? run : free;
		run = run < n ? run : n;
		memcpy(pipe_of(s, c->rank) + s->pipe_sent % capacity, from, run);
		s->pipe_sent += run;
		line_set(&s->put[c->rank], s->pipe_sent);
		from += run;
		n -= run;
	}
	return !shm_ended(c);
}

static bool
shm_pipe_receive(Comm *c, void *data, size_t n)
{
	ShmComm *s = (ShmComm *)c;
	const int of = comm_prev_stage_rank(c);
	const size_t capacity = pipe_bytes(of, s->shape);
	char *to = data;

	while (n) {
		if (!line_wait(s, &s->put[of], s->pipe_received + 1, of,
		               c->rank ? 0 : s->timeout_s))
			return false;
		size_t there = (size_t)(atomic_load(&s->put[of].at) - s->pipe_received),
		       run = capacity - s->pipe_received % capacity;
		run = run < there ? run : there;
		run = run < n ? run : n;
		memcpy(to, pipe_of(s, of) + s->pipe_received % capacity, run);
		s->pipe_received += run;
		line_set(&s->got[of], s->pipe_received);
		to += run;
		n -= run;
	}
	return true;
}

/* Seconds of spinning. A launcher may bind each process to some processors, so the topology of this
 * process does not cover the other ranks. */
static double
spin_of(CommShape shape, bool processes)
{
	Topology top;

	topology_here(&top);
	if (processes)
		top = (Topology){ .n_allowed = (int)sysconf(_SC_NPROCESSORS_ONLN) };
	int64_t threads = (int64_t)shape.ranks * shape.parts;
	return threads_spin(&top, threads < TOPOLOGY_MAX ? (int)threads : TOPOLOGY_MAX + 1);
}

llmc_status
comm_shm(void *memory, int rank, CommShape shape, int timeout_s, void (*release)(void *user),
         void *user, Comm **out, llmc_error *err)
{
	static const CommOps ops = { .all_reduce = shm_all_reduce,
		                     .all_gather = shm_all_gather,
		                     .send = shm_send,
		                     .receive = shm_receive,
		                     .gather_to_root = shm_gather_to_root,
		                     .pipe_send = shm_pipe_send,
		                     .pipe_receive = shm_pipe_receive,
		                     .end = shm_end,
		                     .ended = shm_ended,
		                     .why = shm_why,
		                     .close = shm_close };
	ShmComm *s = calloc(1, sizeof *s);

	*out = NULL;
	if (s)
		s->part = aligned_alloc(64, (size_t)shape.parts * sizeof *s->part);
	if (!s || !s->part) {
		free(s);
		return error_set(err, LLMC_E_MEMORY, "out of memory for rank %d", rank);
	}
	memset(s->part, 0, (size_t)shape.parts * sizeof *s->part);
	s->shape = shape;
	lay_out(s, memory, shape);
	s->c = comm_of(&ops, rank, shape);
	s->parts = shape.parts;
	s->spin = spin_of(shape, timeout_s > 0);
	s->timeout_s = shape.onward ? COMM_STAGES_PATIENCE * timeout_s : timeout_s;
	s->still_s = timeout_s;
	s->release = release;
	s->user = user;
	s->c.where = timeout_s ? &s->heartbeat[rank].where : NULL;
	llmc_status status = timeout_s ? watch_open(s->heartbeat, rank, shape.ranks, timeout_s,
	                                            NULL, on_heartbeat_missed, s, &s->watch, err)
	                               : LLMC_OK;
	if (status != LLMC_OK) {
		free(s->part);
		free(s);
		return status;
	}
	*out = &s->c;
	return LLMC_OK;
}

/* ---- threads of one process ---- */

typedef struct ShmMemory {
	atomic_int users;
	void *at;
	size_t bytes;
} ShmMemory; /* zeroed pages, allocated on first touch */

static void
memory_release(void *user)
{
	ShmMemory *m = user;

	if (atomic_fetch_sub(&m->users, 1) > 1)
		return;
	munmap(m->at, m->bytes);
	free(m);
}

llmc_status
comm_threads(CommShape shape, Comm **out, llmc_error *err)
{
	const int ranks = shape.ranks;
	size_t bytes = comm_shm_bytes(shape);
	ShmMemory *m = calloc(1, sizeof *m);
	llmc_status status = LLMC_OK;

	for (int r = 0; r < ranks; r++)
		out[r] = NULL;
	if (m)
		m->at = mmap(NULL, m->bytes = bytes, PROT_READ | PROT_WRITE,
		             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (!m || m->at == MAP_FAILED) {
		free(m);
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", ranks);
	}
	atomic_store(&m->users, 1);
	for (int r = 0; r < ranks && status == LLMC_OK; r++) {
		status = comm_shm(m->at, r, shape, 0, memory_release, m, &out[r], err);
		if (status == LLMC_OK)
			atomic_fetch_add(&m->users, 1);
	}
	for (int r = 0; r < ranks && status != LLMC_OK; r++) {
		comm_close(out[r]);
		out[r] = NULL;
	}
	memory_release(m);
	return status;
}

/* Emulated NCCL. Ranks are communicators with the same id, in one or several threads or in
 * processes of one machine. A collective is one operation in each rank's stream; all start when all
 * ranks have queued theirs and their predecessors have finished. Between processes, a rank waits
 * for the predecessors of its operation, then writes the data that it sends to shared memory
 * (CommScratch). The operation starts when all ranks have written their data. */
#include "../core/stream_library.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API(ret, name, args)                                                                       \
	__attribute__((visibility("default"))) ret name args;                                      \
	__attribute__((visibility("default"))) ret name args
enum {
	OK_,
	UNHANDLED_CUDA,
	SYSTEM_ERROR,
	INTERNAL_ERROR,
	INVALID_ARGUMENT,
	INVALID_USAGE,
	IN_PROGRESS = 7
};
enum { I32 = 2, F16 = 6, F32 = 7, BF16 = 9 };
enum { SUM, PROD, MAX, MIN, AVG };
enum { MAX_RANKS = 8, IN_FLIGHT = 64 };

typedef struct {
	char internal[128];
} Id;
typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST } Kind;
typedef struct {
	Kind kind;
	int type, op, root;
	size_t count;
} CollectiveDesc;
typedef struct {
	CollectiveDesc desc;
	int n_queued, n_done;
	uint64_t number, seq[MAX_RANKS];
	const void *send[MAX_RANKS];
	char *result;
} NcclRendezvous;
enum { ROOM_TURNS = 4, ROOM_BYTES = 8 << 20 /* bytes per rank and collective */ };
/* Shared memory of the processes of a group, in a file named after the id. It holds the ranks that
 * have joined, the number of collectives that each rank has written and read, and the data of the
 * latest ones. */
typedef struct CommScratch {
	atomic_int joined, pid[MAX_RANKS];
	atomic_ullong brought[MAX_RANKS], taken[MAX_RANKS];
	CollectiveDesc desc[ROOM_TURNS][MAX_RANKS];
	char part[ROOM_TURNS][MAX_RANKS][ROOM_BYTES];
} CommScratch;
typedef struct CallGroup {
	struct CallGroup *next;
	CommScratch *room;
	bool apart; /* true if some ranks are in other processes */
	Id id;
	int n, n_joined, n_left;
	uint64_t next_of[MAX_RANKS];
	NcclRendezvous rendezvous[IN_FLIGHT];
	bool bad, aborted;
} CallGroup;
typedef struct {
	CallGroup *group;
	int rank, device;
} NcclComm;
typedef struct {
	NcclComm comm;
	CollectiveDesc desc;
	const void *send;
	void *recv;
	uint64_t number;
} GroupCall;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CallGroup *groups;
/* nesting of ncclGroupStart; inside a group, joining does not wait for the other ranks */
static __thread int depth;

static const char *const texts[] = {
	"no error",       "unhandled cuda error", "unhandled system error",
	"internal error", "invalid argument",     "invalid usage"
};
API(const char *, ncclGetErrorString, (int r))
{
	return r >= 0 && r <= 5 ? texts[r] : "unknown result code";
}
API(const char *, ncclGetLastError, (NcclComm * c))
{
	(void)c;
	return "";
}
API(int, ncclGetVersion, (int *v))
{
	if (!v)
		return INVALID_ARGUMENT;
	*v = 22703;
	return OK_;
}

API(int, ncclGetUniqueId, (Id * id))
{
	static unsigned counter;

	if (!id)
		return INVALID_ARGUMENT;
	if (emu_library_call("ncclGetUniqueId"))
		return SYSTEM_ERROR;
	memset(id, 0, sizeof *id);
	snprintf(id->internal, sizeof id->internal, "/llmc-emu-nccl-%d-%u", (int)getpid(),
	         __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED));
	int fd = shm_open(id->internal, O_CREAT | O_EXCL | O_RDWR, 0600);
	if (fd < 0 && errno == EEXIST) { /* left by a killed process with the same id */
		shm_unlink(id->internal);
		fd = shm_open(id->internal, O_CREAT | O_EXCL | O_RDWR, 0600);
	}
	if (fd < 0 || ftruncate(fd, sizeof(CommScratch))) /* untouched pages take no memory */
		return SYSTEM_ERROR;
	close(fd);
	return OK_;
}

API(int, ncclGroupStart, (void))
{
	depth++;
	return OK_;
}
API(int, ncclGroupEnd, (void))
{
	return depth-- > 0 ? OK_ : (depth = 0, INVALID_USAGE);
}

static CommScratch *
room_of(const Id *id)
{
	int fd = shm_open(id->internal, O_RDWR, 0600);
	void *p = fd < 0
	              ? MAP_FAILED
	              : mmap(NULL, sizeof(CommScratch), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (fd >= 0)
		close(fd);
	return p == MAP_FAILED ? NULL : p;
}

/* Returns whether all ranks have joined and their locations are therefore known. */
static bool
complete(CallGroup *g)
{
	if (atomic_load(&g->room->joined) < g->n)
		return false;
	for (int i = 0; i < g->n; i++)
		g->apart = g->apart || atomic_load(&g->room->pid[i]) != (int)getpid();
	return true;
}

static int
init(NcclComm **out, int n, Id id, int rank, bool wait)
{
	CallGroup *g;

	if (!out || n < 1 || n > MAX_RANKS || rank < 0 || rank >= n)
		return INVALID_ARGUMENT;
	if (emu_library_call(wait ? "ncclCommInitRank" : "ncclCommInitRankConfig") ||
	    emu_library_device() < 0)
		return UNHANDLED_CUDA;
	pthread_mutex_lock(&lock);
	for (g = groups; g && memcmp(&g->id, &id, sizeof id); g = g->next)
		;
	if (!g) {
		g = calloc(1, sizeof *g);
		g->id = id;
		g->n = n;
		g->room = room_of(&id);
		g->next = groups;
		groups = g;
	}
	if (!g->room || g->n != n || atomic_load(&g->room->pid[rank])) {
		pthread_mutex_unlock(&lock);
		return INVALID_ARGUMENT;
	}
	g->n_joined++;
	atomic_store(&g->room->pid[rank], (int)getpid());
	if (atomic_fetch_add(&g->room->joined, 1) + 1 == n)
		shm_unlink(id.internal);
	while (wait && !depth && !complete(g)) {
		pthread_mutex_unlock(&lock);
		usleep(1000);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	*out = calloc(1, sizeof **out);
	**out = (NcclComm){ g, rank, emu_library_device() };
	return OK_;
}

API(int, ncclCommInitRank, (NcclComm * *out, int n, Id id, int rank))
{
	return init(out, n, id, rank, true);
}

/* Fields of version 2.14; fields after `blocking` keep their defaults. */
typedef struct {
	size_t size;
	unsigned magic, version;
	int blocking;
} NcclInitConfig;
API(int, ncclCommInitRankConfig, (NcclComm * *out, int n, Id id, int rank, const NcclInitConfig *c))
{
	if (!c || c->size < sizeof *c || c->magic != 0xcafebeef || c->blocking < 0 ||
	    c->blocking > 1)
		return INVALID_ARGUMENT;
	int r = init(out, n, id, rank, c->blocking);
	return r == OK_ && !c->blocking ? IN_PROGRESS : r;
}

API(int, ncclCommDestroy, (NcclComm * c))
{
	if (!c)
		return INVALID_ARGUMENT;
	pthread_mutex_lock(&lock);
	shm_unlink(c->group->id.internal); /* removes the file even if some ranks have not joined */
	if (++c->group->n_left == c->group->n_joined)
		for (CallGroup **g = &groups; *g; g = &(*g)->next)
			if (*g == c->group) {
				/* the group's memory is kept, because operations may still refer to
				 * it */
				*g = c->group->next;
				break;
			}
	pthread_mutex_unlock(&lock);
	free(c);
	return OK_;
}
/* Aborts a communicator. Operations of all its ranks that wait in streams end without effect. */
API(int, ncclCommAbort, (NcclComm * c))
{
	if (c)
		__atomic_store_n(&c->group->aborted, true, __ATOMIC_SEQ_CST);
	return ncclCommDestroy(c);
}
API(int, ncclCommCount, (const NcclComm *c, int *n))
{
	return c && n ? (*n = c->group->n, OK_) : INVALID_ARGUMENT;
}
API(int, ncclCommUserRank, (const NcclComm *c, int *n))
{
	return c && n ? (*n = c->rank, OK_) : INVALID_ARGUMENT;
}
API(int, ncclCommCuDevice, (const NcclComm *c, int *n))
{
	return c && n ? (*n = c->device, OK_) : INVALID_ARGUMENT;
}
API(int, ncclCommGetAsyncError, (NcclComm * c, int *r))
{
	return c && r ? (*r = c->group->bad         ? INVALID_USAGE
	                      : !complete(c->group) ? IN_PROGRESS
	                                            : OK_,
	                 OK_)
	              : INVALID_ARGUMENT;
}

static size_t
elem(int type)
{
	return type == F16 || type == BF16 ? 2 : type == F32 || type == I32 ? 4 : 0;
}

/* Assigns the call to a collective: calls of all ranks with the same number are one collective. The
 * caller holds the driver's lock. */
static void
queued(void *blob, uint64_t seq)
{
	GroupCall *c = blob;
	CallGroup *g = c->comm.group;

	c->number = g->next_of[c->comm.rank]++;
	NcclRendezvous *m = &g->rendezvous[c->number % IN_FLIGHT];
	if (!m->n_queued || m->number != c->number) {
		free(m->result);
		*m = (NcclRendezvous){ .desc = c->desc, .number = c->number };
	}
	if (memcmp(&m->desc, &c->desc, sizeof m->desc))
		g->bad =
		    true; /* the ranks' calls differ, so the collective never starts, as on a GPU */
	m->seq[c->comm.rank] = seq;
	m->send[c->comm.rank] = c->send;
	m->n_queued++;
}

/* Between processes: writes this rank's data when its turn has come. Returns whether all ranks have
 * written theirs. */
static bool
ready_apart(const GroupCall *c, const NcclRendezvous *m)
{
	CallGroup *g = c->comm.group;
	CommScratch *room = g->room;
	const int turn = (int)(c->number % ROOM_TURNS), rank = c->comm.rank;

	if (g->bad)
		return false;
	if (atomic_load(&room->brought[rank]) == c->number &&
	    emu_library_came_first(m->seq[rank])) {
		for (int k = 0; k < g->n; k++)
			if (atomic_load(&room->taken[k]) + ROOM_TURNS <= c->number)
				return false;
		memcpy(room->part[turn][rank], c->send, elem(c->desc.type) * c->desc.count);
		room->desc[turn][rank] = c->desc;
		atomic_store(&room->brought[rank], c->number + 1);
	}
	for (int k = 0; k < g->n; k++)
		if (atomic_load(&room->brought[k]) <= c->number)
			return false;
	for (int k = 0; k < g->n; k++)
		g->bad = g->bad || memcmp(&room->desc[turn][k], &c->desc, sizeof c->desc);
	return !g->bad;
}

static bool
ready(void *blob)
{
	const GroupCall *c = blob;
	const NcclRendezvous *m = &c->comm.group->rendezvous[c->number % IN_FLIGHT];

	if (__atomic_load_n(&c->comm.group->aborted, __ATOMIC_SEQ_CST))
		return true;
	if (c->comm.group->apart)
		return ready_apart(c, m);
	if (c->comm.group->bad || m->n_queued != c->comm.group->n)
		return false;
	for (int i = 0; !m->result && i < c->comm.group->n; i++)
		if (!emu_library_came_first(m->seq[i]))
			return false;
	return true;
}

static float
as_float(const void *p, int type, size_t i)
{
	uint32_t u;
	float f;

	if (type == F32)
		return ((const float *)p)[i];
	if (type == I32)
		return (float)((const int *)p)[i];
	uint16_t h = ((const uint16_t *)p)[i];
	if (type == BF16) {
		u = (uint32_t)h << 16;
	} else { /* f16: an exact multiplication adjusts the exponent's bias */
		u = (uint32_t)(h & 0x7fff) << 13;
		memcpy(&f, &u, 4);
		f *= (h >> 10 & 31) == 31 ? __builtin_inff() : 0x1p112f;
		return h >> 15 ? -f : f;
	}
	memcpy(&f, &u, 4);
	return f;
}

static void
put_float(void *p, int type, size_t i, float v)
{
	uint32_t u, s;

	if (type == F32) {
		((float *)p)[i] = v;
	} else if (type == I32) {
		((int *)p)[i] = (int)v;
	} else if (type == BF16) {
		memcpy(&u, &v, 4);
		((uint16_t *)p)[i] = (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
	} else {
		memcpy(&u, &v, 4);
		s = u >> 16 & 0x8000;
		u &= 0x7fffffff;
		if (u >= 0x47800000) {
			u = 0x7c00;
		} else if (u < 0x38800000) { /* subnormal: the addition rounds */
			float f;
			memcpy(&f, &u, 4);
			f += 0.5f;
			memcpy(&u, &f, 4);
			u -= 0x3f000000;
		} else {
			u = (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13;
		}
		((uint16_t *)p)[i] = (uint16_t)(s | u);
	}
}

/* Computes the result for all ranks: a gather concatenates, a reduction adds in rank order in
 * fp32. */
static void
compute(NcclRendezvous *m, int n)
{
	size_t size = elem(m->desc.type), count = m->desc.count;

	if (m->desc.kind == BROADCAST) {
		m->result = malloc(size * count + 1);
		memcpy(m->result, m->send[m->desc.root], size * count);
	} else if (m->desc.kind == ALL_GATHER) {
		m->result = malloc(size * count * (size_t)n + 1);
		for (int i = 0; i < n; i++)
			memcpy(m->result + size * count * (size_t)i, m->send[i], size * count);
	} else {
		size_t all = m->desc.kind == REDUCE_SCATTER ? count * (size_t)n : count;
		m->result = malloc(size * all + 1);
		for (size_t i = 0; i < all; i++) {
			float v = as_float(m->send[0], m->desc.type, i);
			for (int r = 1; r < n; r++) {
				float x = as_float(m->send[r], m->desc.type, i);
				v = m->desc.op == MAX    ? (x > v ? x : v)
				    : m->desc.op == MIN  ? (x < v ? x : v)
				    : m->desc.op == PROD ? v * x
				                         : v + x;
			}
			put_float(m->result, m->desc.type, i, m->desc.op == AVG ? v / (float)n : v);
		}
	}
}

static void
run(void *blob)
{
	GroupCall *c = blob;
	CallGroup *g = c->comm.group;
	NcclRendezvous *m = &g->rendezvous[c->number % IN_FLIGHT];
	size_t bytes = elem(m->desc.type) * m->desc.count;

	if (g->aborted)
		return;
	if (g->apart) { /* between processes only gathers are supported */
		for (int k = 0; k < g->n; k++)
			memcpy((char *)c->recv + bytes * (size_t)k,
			       g->room->part[c->number % ROOM_TURNS][k], bytes);
		atomic_store(&g->room->taken[c->comm.rank], c->number + 1);
		return;
	}
	if (!m->result)
		compute(m, g->n);
	if (m->desc.kind == ALL_GATHER)
		memcpy(c->recv, m->result, bytes * (size_t)g->n);
	else
		memcpy(c->recv,
		       m->result +
		           (m->desc.kind == REDUCE_SCATTER ? bytes * (size_t)c->comm.rank : 0),
		       bytes);
	if (++m->n_done == g->n)
		m->n_queued = 0;
}

static int
collective(const char *name, CollectiveDesc desc, const void *send, void *recv, NcclComm *c,
           void *stream)
{
	GroupCall call = { .desc = desc, .send = send, .recv = recv };
	LibraryWork w = {
		.name = name, .run = run, .queued = queued, .ready = ready, .n_touch = 2
	};

	if (!c || !elem(desc.type) || desc.op < 0 || desc.op > AVG || !desc.count ||
	    desc.root < 0 || desc.root >= c->group->n)
		return INVALID_ARGUMENT;
	if (emu_library_call(name))
		return UNHANDLED_CUDA;
	if (!complete(c->group) || (c->group->apart && (desc.kind != ALL_GATHER ||
	                                                elem(desc.type) * desc.count > ROOM_BYTES)))
		return INVALID_USAGE;
	size_t n = elem(desc.type) * desc.count,
	       in = desc.kind == REDUCE_SCATTER ? n * (size_t)c->group->n : n,
	       out = desc.kind == ALL_GATHER ? n * (size_t)c->group->n : n;
	if (!emu_library_memory(send, in) || !emu_library_memory(recv, out))
		return INVALID_ARGUMENT;
	call.comm = *c;
	w.touch[0].p = (void *)(uintptr_t)send;
	w.touch[0].n = in;
	w.touch[1].p = recv;
	w.touch[1].n = out;
	w.touch[1].write = true;
	return emu_library_queue(stream, &w, &call, sizeof call) ? UNHANDLED_CUDA : OK_;
}

API(int, ncclAllReduce,
    (const void *send, void *recv, size_t count, int type, int op, NcclComm *c, void *stream))
{
	return collective(
	    "ncclAllReduce",
	    (CollectiveDesc){ .kind = ALL_REDUCE, .type = type, .op = op, .count = count }, send,
	    recv, c, stream);
}

API(int, ncclAllGather,
    (const void *send, void *recv, size_t count, int type, NcclComm *c, void *stream))
{
	return collective("ncclAllGather",
	                  (CollectiveDesc){ .kind = ALL_GATHER, .type = type, .count = count },
	                  send, recv, c, stream);
}

API(int, ncclReduceScatter,
    (const void *send, void *recv, size_t count, int type, int op, NcclComm *c, void *stream))
{
	return collective(
	    "ncclReduceScatter",
	    (CollectiveDesc){ .kind = REDUCE_SCATTER, .type = type, .op = op, .count = count },
	    send, recv, c, stream);
}

API(int, ncclBroadcast,
    (const void *send, void *recv, size_t count, int type, int root, NcclComm *c, void *stream))
{
	return collective(
	    "ncclBroadcast",
	    (CollectiveDesc){ .kind = BROADCAST, .type = type, .root = root, .count = count }, send,
	    recv, c, stream);
}

/* Ranks as threads of this process, or as processes that a launcher has started. Rank 0 has the books: sequences, pages, who runs next. It tells the others what it does as records, in order: a new
 * sequence (whose rotation depends on its length), a page copied or cleared, a step with its arrays. They do the same to their own memory;
 * page numbers are the same everywhere, pages hold the heads of their rank. Within a step the ranks meet in its collectives alone.
 *
 * A rank has its share of the processors from before its memory is touched, so that memory lies near them. */
#include "runtime/ranks.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/state/rope.h"

enum { SAY_S = 2 }; /* how long rank 0 waits to hear why the group has ended */

typedef enum RecordKind { RECORD_STEP, RECORD_AGAIN, RECORD_SEQUENCE, RECORD_PAGE, RECORD_SIZES, RECORD_READ, RECORD_WRITE, RECORD_CLOSE, RECORD_OPEN, RECORD_END } RecordKind;
/* STEP: a phase, then the session's block. AGAIN: the same block once more. SEQUENCE: a its number, b the length it is bound by. PAGE: a is to
 * be as b; b -1: zero. SIZES: each tells the bytes of a page. READ, WRITE: the numbers of a pages follow, and travel in b floats a rank.
 * Between sessions: OPEN: limits follow, a session is opened; END: there are no more. */
typedef struct Record { int32_t kind, a, b, more; } Record;

typedef struct Follower {
	Session   *lead;
	Runtime   *rt;
	Comm      *comm;
	pthread_t  thread;
	bool       started, over, echo; /* over: it follows no more; echo: because others have ended */
	int        rank, ranks;
	struct Group *group;
	Session  *session;  /* once it has been opened */
	llmc_status status;
	llmc_error err;
} Follower;

typedef struct Group {
	int      n;          /* followers */
	Comm    *lead;
	pthread_mutex_t lock;
	pthread_cond_t  opened;
	int      n_opened;
	Follower follower[];
} Group;

/* ---------------------------------------------------------------- places ---- */

RankPlace
ranks_enter(int rank, int ranks)
{
	const char *pin = getenv("LLMC_PIN");
	RankPlace   p = { 0 };
	Topology   *top = ranks > 1 && !(pin && !strcmp(pin, "0")) ? calloc(1, sizeof *top) : NULL;
	cpu_set_t   mine;

	if (!top)
		return p;
	topology_here(top);
	CPU_ZERO(&mine);
	for (int i = top->n_core * rank / ranks; i < top->n_core * (rank + 1) / ranks; i++)
		CPU_SET(top->core[i], &mine);
	if (ranks <= top->n_core && pthread_getaffinity_np(pthread_self(), sizeof p.was, &p.was) == 0)
		p.moved = pthread_setaffinity_np(pthread_self(), sizeof mine, &mine) == 0;
	free(top);
	return p;
}

void
ranks_leave(const RankPlace *p)
{
	if (p->moved)
		(void)pthread_setaffinity_np(pthread_self(), sizeof p->was, &p->was);
}

/* ---------------------------------------------------------------- leading ---- */

static bool
leads(const Session *s)
{
	return s->comm && comm_rank(s->comm) == 0;
}

static bool
tell(Session *s, Record r)
{
	return comm_send(s->comm, &r, sizeof r);
}

bool
ranks_step(Session *s, int phase)
{
	return !leads(s) || (tell(s, (Record){ .kind = RECORD_STEP, .a = phase }) && comm_send(s->comm, s->block, (size_t)s->block_bytes));
}

void
ranks_sequence(Session *s, llmc_seq q, int32_t length_bound)
{
	if (leads(s))
		tell(s, (Record){ .kind = RECORD_SEQUENCE, .a = q, .b = length_bound });
}

static void
page_told(void *user, int32_t to, int32_t from)
{
	tell(user, (Record){ .kind = RECORD_PAGE, .a = to, .b = from });
}

static bool
step_again(Session *s, int phase)
{
	return tell(s, (Record){ .kind = RECORD_AGAIN, .a = phase });
}

/* From here on the session of rank 0 tells the others. */
static void
lead(Session *s)
{
	s->kv.told = page_told;
	s->kv.told_user = s;
	s->again = step_again;
}

/* ---------------------------------------------------------------- pages out and in ---- */

/* n floats of each rank, side by side in y of rank 0; no arithmetic touches them. By one thread in the place of all parts. */
static bool
join(Session *s, const float *x, float *y, int64_t n)
{
	const CommJoin j = { .x = x, .y = y, .rows = 1, .width = n * comm_ranks(s->comm), .unit = n };

	for (int part = 0; part < s->lim.n_threads; part++)
		if (!comm_join(s->comm, part, &j))
			return false;
	return true;
}

static bool
join_sizes(Session *s, float *all)
{
	const int64_t own = kv_bytes(s->plan, 1);
	float         x[2];

	memcpy(x, &own, sizeof own);
	return join(s, x, all, 2);
}

int64_t
ranks_pages_bytes(Session *s, int32_t n)
{
	int64_t sum = 0;

	if (!leads(s))
		return n * kv_bytes(s->plan, 1);
	if (!s->page_bytes) {
		int64_t *all = calloc((size_t)comm_ranks(s->comm), sizeof *all);
		if (!all || !tell(s, (Record){ .kind = RECORD_SIZES }) || !join_sizes(s, (float *)(void *)all)) {
			free(all);
			return -1;
		}
		s->page_bytes = all;
	}
	for (int k = 0; k < comm_ranks(s->comm); k++)
		sum += s->page_bytes[k];
	return n * sum;
}

/* Floats of a rank's part of a message: the most that one has */
static int32_t
most_floats(const Session *s)
{
	int64_t most = 0;

	for (int k = 0; k < comm_ranks(s->comm); k++)
		most = s->page_bytes[k] > most ? s->page_bytes[k] : most;
	return (int32_t)(most / 4 + (most % 4 != 0));
}

/* Where page i of n of rank k begins in what is saved */
static char *
saved_at(const Session *s, const void *host, int32_t n, int k, int32_t i)
{
	char *at = (char *)(uintptr_t)host;

	for (int j = 0; j < k; j++)
		at += n * s->page_bytes[j];
	return at + i * s->page_bytes[k];
}

/* A page at a time, `floats` of each rank. host: rank 0's, with the pages of all; NULL on the others. */
static bool
pages_move(Session *s, RecordKind kind, const int32_t *page, int32_t n, int32_t floats, char *host)
{
	const int    ranks = comm_ranks(s->comm), rank = comm_rank(s->comm);
	const size_t each = (size_t)floats * sizeof(float);
	float       *all = calloc((size_t)ranks + 1, each), *own = all + (size_t)ranks * (size_t)floats;
	bool         ok = all != NULL;

	for (int32_t i = 0; i < n && ok && kind == RECORD_READ; i++) {
		kv_pages_read(&s->kv, page + i, 1, own);
		ok = join(s, own, host ? all : NULL, floats);
		for (int k = 0; k < ranks && ok && host; k++)
			memcpy(saved_at(s, host, n, k, i), all + (size_t)k * (size_t)floats, (size_t)s->page_bytes[k]);
	}
	for (int32_t i = 0; i < n && ok && kind == RECORD_WRITE; i++) {
		for (int k = 0; k < ranks && host; k++)
			memcpy(all + (size_t)k * (size_t)floats, saved_at(s, host, n, k, i), (size_t)s->page_bytes[k]);
		ok = host ? comm_send(s->comm, all, (size_t)ranks * each) : comm_receive(s->comm, all, (size_t)ranks * each);
		if (ok)
			kv_pages_write(&s->kv, page + i, 1, all + (size_t)rank * (size_t)floats);
	}
	free(all);
	if (!ok)
		comm_end(s->comm);
	return ok;
}

static bool
pages_lead(Session *s, RecordKind kind, const int32_t *page, int32_t n, const void *host)
{
	if (ranks_pages_bytes(s, 1) < 0 || !tell(s, (Record){ .kind = kind, .a = n, .b = most_floats(s) }))
		return false;
	return comm_send(s->comm, page, (size_t)n * sizeof *page) && pages_move(s, kind, page, n, most_floats(s), (char *)(uintptr_t)host);
}

bool
ranks_pages_read(Session *s, const int32_t *page, int32_t n, void *host)
{
	if (leads(s))
		return pages_lead(s, RECORD_READ, page, n, host);
	kv_pages_read(&s->kv, page, n, host);
	return true;
}

bool
ranks_pages_write(Session *s, const int32_t *page, int32_t n, const void *host)
{
	if (leads(s))
		return pages_lead(s, RECORD_WRITE, page, n, host);
	kv_pages_write(&s->kv, page, n, host);
	return true;
}

static bool
pages_follow(Session *s, const Record *r)
{
	int32_t *page = calloc((size_t)r->a + 1, sizeof *page);
	bool     ok = page && comm_receive(s->comm, page, (size_t)r->a * sizeof *page) && pages_move(s, (RecordKind)r->kind, page, r->a, r->b, NULL);

	free(page);
	if (!ok)
		comm_end(s->comm);
	return ok;
}

/* ---------------------------------------------------------------- following ---- */

/* Until rank 0 closes the session, or the group has ended; the failure of a step of its own. */
static llmc_status
follow(Session *s, llmc_error *err)
{
	llmc_status status;
	Record r;

	while (comm_receive(s->comm, &r, sizeof r)) {
		switch ((RecordKind)r.kind) {
		case RECORD_STEP:
			if (!comm_receive(s->comm, s->block, (size_t)s->block_bytes))
				return LLMC_OK;
			/* fall through */
		case RECORD_AGAIN:
			TRY(s->device->enter(s, err));
			status = s->device->forward(s, r.a, NULL, err);
			s->device->leave(s);
			TRY(status);
			break;
		case RECORD_SEQUENCE:
			session_turn(s, r.a, r.b);
			s->seq[r.a].fresh = true;
			break;
		case RECORD_PAGE:
			kv_page_as(&s->kv, r.a, r.b);
			break;
		case RECORD_SIZES:
			if (!join_sizes(s, NULL))
				return LLMC_OK;
			break;
		case RECORD_READ:
		case RECORD_WRITE:
			if (!pages_follow(s, &r))
				return LLMC_OK;
			break;
		case RECORD_CLOSE:
		case RECORD_OPEN: /* not within a session */
		case RECORD_END:
			return LLMC_OK;
		}
	}
	return LLMC_OK;
}

static void *
follower_main(void *arg)
{
	Follower *f = arg;
	Group    *g = f->group;
	Session  *s = NULL;

	(void)ranks_enter(f->rank, f->ranks);
	f->status = session_open_rank(f->rt, &f->lead->lim, f->comm, &s, &f->err);
	pthread_mutex_lock(&g->lock);
	f->session = s;
	g->n_opened++;
	pthread_cond_signal(&g->opened);
	pthread_mutex_unlock(&g->lock);
	if (f->status != LLMC_OK)
		return NULL;
	llmc_error  why = { 0 };
	llmc_status status = follow(s, &why);
	bool        echo = comm_ended(s->comm);
	pthread_mutex_lock(&g->lock);
	f->status = status;
	f->err = why;
	f->over = true;
	f->echo = echo;
	pthread_cond_signal(&g->opened);
	pthread_mutex_unlock(&g->lock);
	if (status != LLMC_OK)
		comm_end(s->comm);
	return NULL; /* the session stays until all ranks have stopped: they may write to its memory */
}

llmc_status
ranks_why(Session *s, llmc_status own, llmc_error *err)
{
	Group *g = s->group;

	if (own == LLMC_OK || !g)
		return own;
	if (!comm_ended(g->lead)) {
		comm_end(g->lead); /* the others wait for this rank */
		return own;
	}
	struct timespec most;
	clock_gettime(CLOCK_REALTIME, &most);
	most.tv_sec += SAY_S;
	pthread_mutex_lock(&g->lock);
	for (int rc = 0; rc == 0;) {
		int n_over = 0;
		for (int k = 0; k < g->n; k++) {
			const Follower *f = &g->follower[k];
			n_over += f->over;
			/* of those that failed by themselves, not because others have */
			if (f->over && f->status != LLMC_OK && !f->echo) {
				own = error_set(err, f->status, "rank %d of %d: %s", k + 1, g->n + 1, f->err.text);
				n_over = g->n;
				break;
			}
		}
		if (n_over == g->n)
			break;
		rc = pthread_cond_timedwait(&g->opened, &g->lock, &most);
	}
	pthread_mutex_unlock(&g->lock);
	return own;
}

static llmc_status
start(Group *g, Follower *f, llmc_error *err)
{
	sigset_t all, was;

	/* the host program's signals go to its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int rc = pthread_create(&f->thread, NULL, follower_main, f);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (rc)
		return error_set(err, LLMC_E_MEMORY, "cannot start rank %d of %d: %s", f->rank, g->n + 1, strerror(rc));
	f->started = true;
	return LLMC_OK;
}

/* Between stages lie all rows of a forward and all its logits: nobody waits for a receiver that waits for somebody else. */
static CommRoom
room_of(const Session *s)
{
	if (s->plan->stages < 2)
		return (CommRoom){ 0 };
	return (CommRoom){ (size_t)s->lim.chunk * (size_t)s->plan->hidden * sizeof(float), (size_t)s->lim.n_out * (size_t)plan_out_width(s->plan) * sizeof(float) };
}

llmc_status
ranks_open(Session *s, llmc_error *err)
{
	const int   n = s->rt->n_rank - 1;
	llmc_status status = LLMC_OK;
	int         n_started = 0;
	Comm       *end[PLAN_MAX_RANKS];

	Group *g = s->group = calloc(1, sizeof *g + (size_t)n * sizeof *g->follower);
	if (!g)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", n + 1);
	TRY(comm_local(n + 1, s->lim.n_threads, room_of(s), end, err));
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->opened, NULL);
	g->n = n;
	g->lead = s->comm = end[0];
	for (int k = 0; k < n; k++)
		g->follower[k] = (Follower){ .lead = s, .rt = s->rt->rank[k + 1], .comm = end[k + 1], .rank = k + 1, .ranks = n + 1, .group = g };
	for (; n_started < n && status == LLMC_OK; n_started += status == LLMC_OK)
		status = start(g, &g->follower[n_started], err);
	pthread_mutex_lock(&g->lock);
	while (g->n_opened < n_started)
		pthread_cond_wait(&g->opened, &g->lock);
	pthread_mutex_unlock(&g->lock);
	for (int k = 0; k < n && status == LLMC_OK; k++)
		if (g->follower[k].status != LLMC_OK) {
			status = g->follower[k].status;
			if (err)
				*err = g->follower[k].err;
		}
	if (status == LLMC_OK && s->device->join) {
		Session *rank[PLAN_MAX_RANKS] = { s };
		for (int k = 0; k < n; k++)
			rank[k + 1] = g->follower[k].session;
		status = s->device->join(rank, n + 1, err);
	}
	lead(s);
	return status;
}

/* ---------------------------------------------------------------- processes ---- */

llmc_status
ranks_announce(Runtime *rt, const llmc_limits *lim, llmc_error *err)
{
	const Record r = { .kind = RECORD_OPEN };

	if (!rt->world || world_rank(rt->world) > 0)
		return LLMC_OK;
	if (world_send(rt->world, &r, sizeof r) && world_send(rt->world, lim, sizeof *lim))
		return LLMC_OK;
	return error_set(err, LLMC_E_DEVICE, "ranks of this job cannot be reached");
}

llmc_status
ranks_meet(Session **s, Runtime *rt, llmc_status own, llmc_error *err)
{
	llmc_error  why = { 0 };
	llmc_status status;

	if (own != LLMC_OK && err)
		why = *err;
	TRY_GOTO(world_agree(rt->world, own, &why, err));
	TRY_GOTO(world_comm(rt->world, (*s)->lim.n_threads, room_of(*s), &(*s)->comm, err));
	if (comm_rank((*s)->comm) == 0)
		lead(*s);
	return LLMC_OK;
fail:
	if (own == LLMC_OK)
		session_close(*s);
	*s = NULL;
	return status;
}

llmc_status
ranks_follow(Runtime *rt, llmc_error *err)
{
	Record      r;
	llmc_limits lim;

	while (world_receive(rt->world, &r, sizeof r)) {
		if (r.kind == RECORD_END)
			return LLMC_OK;
		if (!world_receive(rt->world, &lim, sizeof lim))
			break;
		Session    *s = NULL;
		llmc_status status = session_open_rank(rt, &lim, NULL, &s, err);
		if (ranks_meet(&s, rt, status, err) != LLMC_OK)
			continue; /* rank 0 has been told, and says what to do */
		status = follow(s, err);
		if (status != LLMC_OK)
			comm_end(s->comm);
		if (status == LLMC_OK && comm_ended(s->comm))
			status = comm_error(s->comm, err);
		session_close(s);
		TRY(status);
	}
	return error_set(err, LLMC_E_DEVICE, "rank 0 cannot be reached");
}

void
ranks_dismiss(Runtime *rt)
{
	if (rt->world && rt->led && world_rank(rt->world) == 0)
		(void)world_send(rt->world, &(Record){ .kind = RECORD_END }, sizeof(Record));
}

/* ---------------------------------------------------------------- the end ---- */

void
ranks_close(Session *s)
{
	Group *g = s->group;

	free(s->page_bytes);
	s->page_bytes = NULL;
	if (!g && s->comm && s->rt->world) {
		if (comm_rank(s->comm) == 0)
			(void)tell(s, (Record){ .kind = RECORD_CLOSE });
		comm_close(s->comm);
		s->comm = NULL;
		s->kv.told = NULL;
	}
	if (!g)
		return;
	if (s->comm) {
		if (!tell(s, (Record){ .kind = RECORD_CLOSE }))
			comm_end(s->comm);
		for (int k = 0; k < g->n; k++)
			if (g->follower[k].started)
				pthread_join(g->follower[k].thread, NULL);
		for (int k = 0; k < g->n; k++) {
			session_close(g->follower[k].session);
			comm_close(g->follower[k].comm);
		}
		comm_close(g->lead);
		pthread_cond_destroy(&g->opened);
		pthread_mutex_destroy(&g->lock);
	}
	s->kv.told = NULL;
	s->comm = NULL;
	s->group = NULL;
	free(g);
}

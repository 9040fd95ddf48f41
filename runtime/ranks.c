/* Ranks as threads of this process, or as processes started by a launcher. Rank 0 does the
 * bookkeeping: sequences, pages, scheduling. It broadcasts each action as a record, in order: a new
 * sequence with its maximum length (for RoPE), a copied or cleared page, a copied state, a step
 * with its arrays. The other ranks repeat the actions on their own memory. Page numbers and window
 * page numbers are the same on all ranks; each page holds the heads of its rank. Within a step,
 * ranks synchronise only in collectives.
 *
 * A rank is pinned to its share of the processors before it touches its memory, so that the memory
 * is on the NUMA node of these processors. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "runtime/ranks.h"
#include "runtime/ranks_internal.h"

enum { REASON_WAIT_MS = 2000 }; /* how long rank 0 waits for the reason why the group has ended */

typedef struct Follower {
	Session *lead;
	Runtime *rt;
	Comm *comm;
	pthread_t thread;
	/* over: the rank has stopped following; echo: it stopped because another rank had */
	bool started, over, echo;
	int rank, ranks;
	struct RankThreads *group;
	Session *session; /* NULL until opened */
	llmc_status status;
	llmc_error err;
} Follower;

typedef struct RankThreads {
	int n; /* number of followers */
	Comm *lead;
	pthread_mutex_t lock;
	pthread_cond_t opened;
	int n_opened;
	Follower follower[];
} RankThreads;

RankAffinity
ranks_pin_cpus(int rank, int ranks)
{
	const char *pin = getenv("LLMC_PIN");
	RankAffinity p = { 0 };
	Topology *top = ranks > 1 && !(pin && !strcmp(pin, "0")) ? calloc(1, sizeof *top) : NULL;
	cpu_set_t mine;

	if (!top)
		return p;
	topology_here(top);
	CPU_ZERO(&mine);
	for (int i = top->n_core * rank / ranks; i < top->n_core * (rank + 1) / ranks; i++)
		CPU_SET(top->core[i], &mine);
	if (ranks <= top->n_core &&
	    pthread_getaffinity_np(pthread_self(), sizeof p.was, &p.was) == 0)
		p.moved = pthread_setaffinity_np(pthread_self(), sizeof mine, &mine) == 0;
	free(top);
	return p;
}

void
ranks_unpin_cpus(const RankAffinity *p)
{
	if (p->moved)
		(void)pthread_setaffinity_np(pthread_self(), sizeof p->was, &p->was);
}

/* Run the step that the session's arrays describe. */
static llmc_status
follow_step(Session *s, int phase, llmc_error *err)
{
	if (!ranks_step_fits(s, phase))
		return ranks_bad_message(s, "a step", err);
	TRY(s->device->enter(s, err));
	llmc_status status = s->device->forward(s, phase, NULL, err);
	s->device->leave(s);
	return status;
}

static llmc_status
follow_kv(Session *s, const Record *r, llmc_error *err)
{
	if (!ranks_kv_op_fits(s, r))
		return ranks_bad_message(s, "an operation on pages", err);
	if (ranks_is_page((KvOp)r->more, 0))
		kv_set_window_page(&s->kv, r->a, r->window[0]);
	if (ranks_is_page((KvOp)r->more, 1) && r->b >= 0)
		kv_set_window_page(&s->kv, r->b, r->window[1]);
	kv_apply(&s->kv, (KvOp)r->more, r->a, r->b);
	return LLMC_OK;
}

llmc_status
ranks_follow_session(Session *s, llmc_error *err)
{
	Record r;

	while (comm_receive(s->comm, &r, sizeof r)) {
		switch ((RecordKind)r.kind) {
		case RECORD_STEP:
			if (!comm_receive(s->comm, s->block, (size_t)s->block_bytes))
				return LLMC_OK;
			/* fall through */
		case RECORD_AGAIN:
			TRY(follow_step(s, r.a, err));
			break;
		case RECORD_SEQUENCE:
			if (!ranks_sequence_fits(s, &r))
				return ranks_bad_message(s, "a sequence", err);
			session_set_rope(s, r.a, r.b);
			s->seq[r.a].fresh = true;
			s->adapter[r.a] = r.more;
			break;
		case RECORD_ADAPTER:
			if (!adapters_has_slot(s->rt, r.a))
				return ranks_bad_message(s, "an adapter slot", err);
			TRY(adapters_receive(s->rt, r.a, s->comm, err));
			break;
		case RECORD_KV:
			TRY(follow_kv(s, &r, err));
			break;
		case RECORD_SIZES:
			if (!ranks_collect_sizes(s, NULL))
				return LLMC_OK;
			break;
		case RECORD_READ:
		case RECORD_WRITE:
			TRY(ranks_follow_transfer(s, &r, err));
			break;
		case RECORD_CLOSE:
			return LLMC_OK;
		case RECORD_OPEN: /* sent between sessions only */
		case RECORD_END:
		default:
			return ranks_bad_message(s, "a record", err);
		}
	}
	return LLMC_OK;
}

static void *
follower_main(void *arg)
{
	Follower *f = arg;
	RankThreads *g = f->group;
	Session *s = NULL;

	/* with two devices the GPU's rank needs no share: the CPU's part uses all processors */
	if (f->rt->plan->partitions < 2)
		(void)ranks_pin_cpus(f->rank, f->ranks);
	f->status = session_open_rank(f->rt, &f->lead->lim, f->comm, &s, &f->err);
	pthread_mutex_lock(&g->lock);
	f->session = s;
	g->n_opened++;
	pthread_cond_signal(&g->opened);
	pthread_mutex_unlock(&g->lock);
	if (f->status != LLMC_OK)
		return NULL;
	llmc_error why = { 0 };
	llmc_status status = ranks_follow_session(s, &why);
	bool echo = comm_ended(s->comm);
	pthread_mutex_lock(&g->lock);
	f->status = status;
	f->err = why;
	f->over = true;
	f->echo = echo;
	pthread_cond_signal(&g->opened);
	pthread_mutex_unlock(&g->lock);
	if (status != LLMC_OK)
		comm_end(s->comm);
	/* the session is closed later, after all ranks have stopped, because they may write to its
	 * memory */
	return NULL;
}

llmc_status
ranks_error(Session *s, llmc_status own, llmc_error *err)
{
	RankThreads *g = s->group;

	if (own != LLMC_OK && !g && s->comm && s->rt->world)
		/* end the group, because the other processes wait for this rank */
		comm_end(s->comm);
	if (own == LLMC_OK || !g)
		return own;
	if (!comm_ended(g->lead)) {
		comm_end(g->lead); /* end the group, because the other ranks wait for this one */
		return own;
	}
	struct timespec most;
	clock_after(&most, REASON_WAIT_MS);
	pthread_mutex_lock(&g->lock);
	for (int rc = 0; rc == 0;) {
		int n_over = 0;
		for (int k = 0; k < g->n; k++) {
			const Follower *f = &g->follower[k];
			n_over += f->over;
			/* report the rank that failed first, not ranks that stopped because of
			 * it */
			if (f->over && f->status != LLMC_OK && !f->echo) {
				own = error_set(err, f->status, "rank %d of %d: %s", k + 1,
				                g->n + 1, f->err.text);
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
start(RankThreads *g, Follower *f, llmc_error *err)
{

	int rc = thread_create(&f->thread, NULL, follower_main, f);
	if (rc)
		return error_set(err, LLMC_E_MEMORY, "cannot start rank %d of %d: %s", f->rank,
		                 g->n + 1, strerror(rc));
	f->started = true;
	return LLMC_OK;
}

/* Bytes of the values that are between two devices at a time; `op`: count the values that this
 * device sends, or those that it receives */
static size_t
crossing_bytes(const Session *s, OpKind op)
{
	int64_t queued = 1;

	for (int i = 0; i < s->plan->phase[1].n_step; i++) {
		const PlanStep *st = &s->plan->phase[1].step[i];
		queued = st->op == op ? step_int(st, "queued") : queued;
	}
	return (size_t)s->lim.chunk * (size_t)queued * sizeof(float);
}

/* Buffers between stages hold all rows of a forward call and all of its logits. So a sender never
 * waits for a receiver that itself waits to send. */
static CommShape
shape_of(const Session *s)
{
	CommShape c = {
		.ranks = s->plan->ranks * s->plan->stages,
		.team = s->plan->ranks,
		.parts = s->device->join ? 1 : s->lim.n_threads
	}; /* with a GPU, one host thread per rank communicates */

	if (s->plan->partitions > 1) {
		c.ranks = 2;
		c.onward = crossing_bytes(s, OP_send);
		c.back = crossing_bytes(s, OP_recv);
	}
	if (s->plan->stages > 1) {
		c.onward = (size_t)s->lim.chunk * (size_t)s->plan->hidden * sizeof(float);
		c.back = (size_t)s->lim.n_out * (size_t)plan_out_width(s->plan) * sizeof(float);
	}
	return c;
}

llmc_status
ranks_open(Session *s, llmc_error *err)
{
	const int n = s->rt->n_rank - 1;
	llmc_status status = LLMC_OK;
	int n_started = 0;
	Comm *end[PLAN_MAX_RANKS];

	RankThreads *g = s->group = calloc(1, sizeof *g + (size_t)n * sizeof *g->follower);
	if (!g)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", n + 1);
	TRY(comm_threads(shape_of(s), end, err));
	pthread_mutex_init(&g->lock, NULL);
	clock_cond_init(&g->opened);
	g->n = n;
	g->lead = s->comm = end[0];
	for (int k = 0; k < n; k++)
		g->follower[k] = (Follower){ .lead = s,
			                     .rt = s->rt->rank[k + 1],
			                     .comm = end[k + 1],
			                     .rank = k + 1,
			                     .ranks = n + 1,
			                     .group = g };
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
	/* join the ranks of each stage; stages communicate through this process only */
	if (status == LLMC_OK && s->device->join && s->plan->ranks > 1) {
		Session *rank[PLAN_MAX_RANKS] = { s };
		for (int k = 0; k < n; k++)
			rank[k + 1] = g->follower[k].session;
		for (int k = 0; k <= n && status == LLMC_OK; k += s->plan->ranks)
			status = s->device->join(rank + k, s->plan->ranks, err);
	}
	ranks_lead(s);
	return status;
}

llmc_status
ranks_announce(Runtime *rt, const llmc_limits *lim, llmc_error *err)
{
	const Record r = { .kind = RECORD_OPEN };

	if (!rt->world || mpi_world_rank(rt->world) > 0)
		return LLMC_OK;
	if (mpi_world_broadcast(rt->world, &r, sizeof r) &&
	    mpi_world_broadcast(rt->world, lim, sizeof *lim))
		return LLMC_OK;
	return error_set(err, LLMC_E_DEVICE, "ranks of this job cannot be reached");
}

llmc_status
ranks_rendezvous(Session **s, Runtime *rt, llmc_status own, llmc_error *err)
{
	llmc_error why = { 0 };
	llmc_status status;

	if (own != LLMC_OK && err)
		why = *err;
	TRY_GOTO(mpi_world_agree(rt->world, own, &why, err));
	TRY_GOTO(mpi_world_comm(rt->world, shape_of(*s), &(*s)->comm, err));
	if ((*s)->device->join && (*s)->plan->ranks > 1) {
		status = (*s)->device->join(s, 1, &why);
		/* a rank is lost: do not call mpi_world_agree, which would wait for it */
		if (comm_ended((*s)->comm)) {
			status = status != LLMC_OK ? error_set(err, status, "%s", why.text)
			                           : comm_error((*s)->comm, err);
			goto fail;
		}
		TRY_GOTO(mpi_world_agree(rt->world, status, &why, err));
	}
	if (comm_rank((*s)->comm) == 0)
		ranks_lead(*s);
	return LLMC_OK;
fail:
	if (own == LLMC_OK && (*s)->comm)
		comm_end((*s)->comm);
	if (own == LLMC_OK)
		session_close(*s);
	*s = NULL;
	return status;
}

llmc_status
ranks_follow(Runtime *rt, llmc_error *err)
{
	Record r;
	llmc_limits lim;

	while (mpi_world_receive(rt->world, &r, sizeof r)) {
		if (r.kind == RECORD_END)
			return LLMC_OK;
		if (r.kind != RECORD_OPEN)
			return error_set(err, LLMC_E_CHECK,
			                 "rank %d received a record of rank 0 that is not possible "
			                 "between sessions: all ranks need the same build of llmc",
			                 mpi_world_rank(rt->world));
		if (!mpi_world_receive(rt->world, &lim, sizeof lim))
			break;
		Session *s = NULL;
		llmc_status status = session_open_rank(rt, &lim, NULL, &s, err);
		if (ranks_rendezvous(&s, rt, status, err) != LLMC_OK)
			/* ignore the error: rank 0 has received it and decides how to continue */
			continue;
		status = ranks_follow_session(s, err);
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
	if (rt->world && rt->led && mpi_world_rank(rt->world) == 0)
		(void)mpi_world_broadcast(rt->world, &(Record){ .kind = RECORD_END },
		                          sizeof(Record));
}

void
ranks_close(Session *s)
{
	RankThreads *g = s->group;

	free(s->kept);
	s->kept = NULL;
	if (!g && s->comm && s->rt->world) {
		if (comm_rank(s->comm) == 0)
			(void)ranks_broadcast(s, (Record){ .kind = RECORD_CLOSE });
		s->kv.on_op = NULL;
	}
	if (!g)
		return;
	if (s->comm) {
		if (!ranks_broadcast(s, (Record){ .kind = RECORD_CLOSE }))
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
	s->kv.on_op = NULL;
	s->comm = NULL;
	s->group = NULL;
	free(g);
}

/* Ranks as threads of this process, or as processes started by a launcher. Rank 0 does the
 * bookkeeping: sequences, pages, scheduling. It broadcasts its actions as records, in order: a new
 * sequence (whose RoPE depends on its length), a page copied or cleared, a state copied, a step
 * with its arrays. The other ranks repeat them on their own memory. Page numbers and window page
 * numbers are the same on all ranks; each page holds the heads of its rank. Within a step, ranks
 * synchronise only in collectives.
 *
 * A rank is pinned to its share of the processors before it touches its memory, so that the memory
 * is local to their NUMA node. */
#include "runtime/ranks.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/state/rope_tables.h"

enum { REASON_WAIT_S = 2 }; /* how long rank 0 waits for the reason why the group has ended */

typedef enum RecordKind {
	RECORD_STEP,
	RECORD_AGAIN,
	RECORD_SEQUENCE,
	RECORD_ADAPTER,
	RECORD_KV,
	RECORD_SIZES,
	RECORD_READ,
	RECORD_WRITE,
	RECORD_CLOSE,
	RECORD_OPEN,
	RECORD_END
} RecordKind;
/* Kinds of records, with fields a, b and more:
 *   STEP      a: phase; the session's block follows
 *   AGAIN     a: phase; run the same block again
 *   SEQUENCE  a: sequence, b: its maximum length, more: its adapter slot
 *   ADAPTER   a: slot; for processes, the slot's new content follows (lora_adapters.c)
 *   KV        more: KvOp with operands a and b (kv.h), and the window pages of both
 *   SIZES     each rank reports the bytes that it saves
 *   READ, WRITE  a pages and the recurrent states of sequence b (-1: none). Floats per rank for
 *             either, page numbers and window page numbers follow, then the data. The first `more`
 *             pages have no window pages
 * Between sessions:
 *   OPEN      limits follow; open a session
 *   END       no more sessions */
typedef struct Record {
	int32_t kind, a, b, more, window[2];
} Record;

typedef struct Follower {
	Session *lead;
	Runtime *rt;
	Comm *comm;
	pthread_t thread;
	/* over: stopped following; echo: because other ranks had stopped */
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

/* ---- CPU affinity ---- */

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

/* ---- leading ---- */

static bool
leads(const Session *s)
{
	return s->comm && comm_rank(s->comm) == 0;
}

static bool
broadcast_record(Session *s, Record r)
{
	return comm_send(s->comm, &r, sizeof r);
}

bool
ranks_step(Session *s, int phase)
{
	return !leads(s) || (broadcast_record(s, (Record){ .kind = RECORD_STEP, .a = phase }) &&
	                     comm_send(s->comm, s->block, (size_t)s->block_bytes));
}

void
ranks_sequence(Session *s, llmc_seq q, int32_t length_bound)
{
	if (leads(s) && !adapters_known(s->rt, s->adapter[q]) &&
	    broadcast_record(s, (Record){ .kind = RECORD_ADAPTER, .a = s->adapter[q] }))
		adapters_send(s->rt, s->adapter[q], s->comm);
	if (leads(s))
		broadcast_record(s, (Record){ .kind = RECORD_SEQUENCE,
		                              .a = q,
		                              .b = length_bound,
		                              .more = s->adapter[q] });
}

/* Is the first (which 0) or second operand of a KvOp a device page? */
static bool
is_page(KvOp op, int which)
{
	return op == KV_PAGE || op == (which ? KV_SWAP_OUT : KV_SWAP_IN);
}

static void
on_kv_op(void *user, KvOp op, int32_t to, int32_t from)
{
	const int32_t *window = ((Session *)user)->kv.window, a = is_page(op, 0) ? to : -1,
	              b = is_page(op, 1) ? from : -1;

	broadcast_record(user, (Record){ .kind = RECORD_KV,
	                                 .a = to,
	                                 .b = from,
	                                 .more = (int32_t)op,
	                                 .window = { window && a >= 0 ? window[a] : -1,
	                                             window && b >= 0 ? window[b] : -1 } });
}

static bool
step_again(Session *s, int phase)
{
	return broadcast_record(s, (Record){ .kind = RECORD_AGAIN, .a = phase });
}

/* From here on, broadcast the actions of rank 0's session. */
static void
lead(Session *s)
{
	s->kv.on_op = on_kv_op;
	s->kv.on_op_user = s;
	s->rerun = step_again;
}

/* ---- saving and restoring pages and states ---- */

static RankSizes
own_sizes(const Plan *p)
{
	return (RankSizes){ kv_bytes(p, 1), kv_state_bytes(p, 1) };
}

static bool
collect_sizes(Session *s, RankSizes *all)
{
	const RankSizes own = own_sizes(s->plan);

	return comm_gather_to_root(s->comm, &own, sizeof own, all);
}

static bool
request_sizes(Session *s, RankSizes *all)
{
	return broadcast_record(s, (Record){ .kind = RECORD_SIZES }) && collect_sizes(s, all);
}

/* Sizes that each rank saves; NULL: the group has ended */
static const RankSizes *
all_rank_sizes(Session *s)
{
	if (!s->kept) {
		RankSizes *all = calloc((size_t)comm_ranks(s->comm), sizeof *all);
		if (!all || !request_sizes(s, all)) {
			free(all);
			return NULL;
		}
		s->kept = all;
	}
	return s->kept;
}

void
ranks_exchange_sizes(Session *s)
{
	if (leads(s) && s->plan->stages > 1 && s->kept)
		(void)request_sizes(s, s->kept);
	else if (leads(s) && s->plan->stages > 1)
		(void)all_rank_sizes(s);
}

int64_t
ranks_saved_bytes(Session *s, int32_t n, int32_t windowless, bool states)
{
	const RankSizes own = own_sizes(s->plan), *all = leads(s) ? all_rank_sizes(s) : &own;
	const int ranks = leads(s) ? comm_ranks(s->comm) : 1;
	int64_t sum = 0;

	for (int k = 0; all && k < ranks; k++)
		sum += n * all[k].page + (states ? all[k].state : 0);
	return !all ? -1 : leads(s) ? sum : sum - kv_windowless_bytes(s->plan, windowless);
}

/* Floats per rank in a message: the maximum over the ranks */
static int32_t
most_floats(const Session *s, bool states)
{
	int64_t most = 0;

	for (int k = 0; k < comm_ranks(s->comm); k++) {
		int64_t own = states ? s->kept[k].state : s->kept[k].page;
		most = own > most ? own : most;
	}
	return (int32_t)(most / 4 + (most % 4 != 0));
}

/* Address of page i of n of rank k in the saved data; i = n: of its recurrent states */
static char *
saved_at(const Session *s, const void *host, int32_t n, int k, int32_t i)
{
	char *at = (char *)(uintptr_t)host;

	for (int j = 0; j < (i < n ? k : comm_ranks(s->comm)); j++)
		at += n * s->kept[j].page;
	for (int j = 0; i == n && j < k; j++)
		at += s->kept[j].state;
	return i < n ? at + i * s->kept[k].page : at;
}

/* Transfer of saved data through memory with a slot per rank: segment i is page i of n, and segment
 * n holds the states of sequence q */
typedef struct Transfer {
	RecordKind kind;
	const int32_t *page;
	int32_t n, windowless, floats[2];
	llmc_seq q;
	char *host;
} Transfer; /* host: saved data on rank 0; NULL on the others */

static bool
transfer_segment(Session *s, const Transfer *m, int32_t i, float *all)
{
	const bool states = i == m->n;
	const int ranks = comm_ranks(s->comm);
	const int64_t floats = m->floats[states];
	const size_t each = (size_t)floats * sizeof(float);
	float *own = all + (m->kind == RECORD_READ ? ranks : comm_rank(s->comm)) * floats;
	bool ok;

	if (m->kind == RECORD_READ) {
		if (states)
			kv_state_read(&s->kv, m->q, own);
		else
			kv_page_read(&s->kv, m->page[i], kv_lacks_window(&s->kv, i, m->windowless),
			             own);
		ok = comm_gather_to_root(s->comm, own, each, m->host ? all : NULL);
		for (int k = 0; k < ranks && ok && m->host; k++)
			memcpy(saved_at(s, m->host, m->n, k, i), all + k * floats,
			       (size_t)(states ? s->kept[k].state : s->kept[k].page));
		return ok;
	}
	for (int k = 0; k < ranks && m->host; k++)
		memcpy(all + k * floats, saved_at(s, m->host, m->n, k, i),
		       (size_t)(states ? s->kept[k].state : s->kept[k].page));
	ok = m->host ? comm_send(s->comm, all, (size_t)ranks * each)
	             : comm_receive(s->comm, all, (size_t)ranks * each);
	if (ok && states)
		kv_state_write(&s->kv, m->q, own);
	else if (ok)
		kv_page_write(&s->kv, m->page[i], kv_lacks_window(&s->kv, i, m->windowless), own);
	return ok;
}

/* Transfer one page at a time, then the states. The slot of each rank has the size of the largest
 * rank and of a page with its window page. */
static bool
transfer_pages(Session *s, const Transfer *m)
{
	const int32_t most = m->floats[0] > m->floats[1] ? m->floats[0] : m->floats[1];
	float *all = calloc((size_t)comm_ranks(s->comm) + 1, (size_t)most * sizeof *all + 1);
	bool ok = all != NULL;

	for (int32_t i = 0; i < m->n && ok; i++)
		ok = transfer_segment(s, m, i, all);
	if (m->q >= 0 && ok)
		ok = transfer_segment(s, m, m->n, all);
	free(all);
	if (!ok)
		comm_end(s->comm);
	return ok;
}

static bool
lead_transfer(Session *s, RecordKind kind, const int32_t *page, int32_t n, int32_t windowless,
              llmc_seq q, const void *host)
{
	int32_t *window = calloc((size_t)n + 1, sizeof *window);

	for (int32_t i = 0; window && i < n; i++)
		window[i] = s->kv.window ? s->kv.window[page[i]] : -1;
	bool ok = window && all_rank_sizes(s);
	const Transfer m = { .kind = kind,
		             .page = page,
		             .n = n,
		             .windowless = windowless,
		             .floats = { ok ? most_floats(s, false) : 0,
		                         ok ? most_floats(s, true) : 0 },
		             .q = q,
		             .host = (char *)(uintptr_t)host };
	ok = ok &&
	     broadcast_record(s, (Record){ .kind = kind, .a = n, .b = q, .more = windowless }) &&
	     comm_send(s->comm, m.floats, sizeof m.floats) &&
	     comm_send(s->comm, page, (size_t)n * sizeof *page) &&
	     comm_send(s->comm, window, (size_t)n * sizeof *window);
	free(window);
	return ok && transfer_pages(s, &m);
}

bool
ranks_save(Session *s, const int32_t *page, int32_t n, int32_t windowless, llmc_seq q, void *host)
{
	if (leads(s))
		return lead_transfer(s, RECORD_READ, page, n, windowless, q, host);
	kv_pages_read(&s->kv, page, n, windowless, host);
	if (q >= 0)
		kv_state_read(&s->kv, q,
		              (char *)host + kv_bytes(s->plan, n) -
		                  kv_windowless_bytes(s->plan, windowless));
	return true;
}

bool
ranks_restore(Session *s, const int32_t *page, int32_t n, int32_t windowless, llmc_seq q,
              const void *host)
{
	if (leads(s))
		return lead_transfer(s, RECORD_WRITE, page, n, windowless, q, host);
	kv_pages_write(&s->kv, page, n, windowless, host);
	if (q >= 0)
		kv_state_write(&s->kv, q,
		               (const char *)host + kv_bytes(s->plan, n) -
		                   kv_windowless_bytes(s->plan, windowless));
	return true;
}

static bool
follow_transfer(Session *s, const Record *r)
{
	int32_t *page = calloc((size_t)r->a + 1, sizeof *page),
	        *window = calloc((size_t)r->a + 1, sizeof *window);
	Transfer m = { .kind = (RecordKind)r->kind,
		       .page = page,
		       .n = r->a,
		       .windowless = r->more,
		       .q = r->b };
	bool ok = page && window && comm_receive(s->comm, m.floats, sizeof m.floats) &&
	          comm_receive(s->comm, page, (size_t)r->a * sizeof *page) &&
	          comm_receive(s->comm, window, (size_t)r->a * sizeof *window);

	for (int32_t i = 0; ok && i < r->a; i++)
		kv_set_window_page(&s->kv, page[i], window[i]);
	ok = ok && transfer_pages(s, &m);
	free(page);
	free(window);
	if (!ok)
		comm_end(s->comm);
	return ok;
}

/* ---- following ---- */

/* Follow rank 0 until it closes the session or the group ends. Returns an error only for a step
 * that failed on this rank. */
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
			session_set_rope(s, r.a, r.b);
			s->seq[r.a].fresh = true;
			s->adapter[r.a] = r.more;
			break;
		case RECORD_ADAPTER:
			TRY(adapters_receive(s->rt, r.a, s->comm, err));
			break;
		case RECORD_KV:
			if (is_page((KvOp)r.more, 0))
				kv_set_window_page(&s->kv, r.a, r.window[0]);
			if (is_page((KvOp)r.more, 1) && r.b >= 0)
				kv_set_window_page(&s->kv, r.b, r.window[1]);
			kv_apply(&s->kv, (KvOp)r.more, r.a, r.b);
			break;
		case RECORD_SIZES:
			if (!collect_sizes(s, NULL))
				return LLMC_OK;
			break;
		case RECORD_READ:
		case RECORD_WRITE:
			if (!follow_transfer(s, &r))
				return LLMC_OK;
			break;
		case RECORD_CLOSE:
		case RECORD_OPEN: /* not sent during a session */
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
	RankThreads *g = f->group;
	Session *s = NULL;

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
	llmc_status status = follow(s, &why);
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
	/* the session is closed after all ranks have stopped, because they may write to its
	 * memory */
	return NULL;
}

llmc_status
ranks_error(Session *s, llmc_status own, llmc_error *err)
{
	RankThreads *g = s->group;

	if (own != LLMC_OK && !g && s->comm && s->rt->world)
		comm_end(s->comm); /* the other processes wait for this rank */
	if (own == LLMC_OK || !g)
		return own;
	if (!comm_ended(g->lead)) {
		comm_end(g->lead); /* the other ranks wait for this one */
		return own;
	}
	struct timespec most;
	clock_gettime(CLOCK_REALTIME, &most);
	most.tv_sec += REASON_WAIT_S;
	pthread_mutex_lock(&g->lock);
	for (int rc = 0; rc == 0;) {
		int n_over = 0;
		for (int k = 0; k < g->n; k++) {
			const Follower *f = &g->follower[k];
			n_over += f->over;
			/* report a rank that failed first, not one that stopped because of it */
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
	sigset_t all, was;

	/* signals of the host program go to its own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int rc = pthread_create(&f->thread, NULL, follower_main, f);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	if (rc)
		return error_set(err, LLMC_E_MEMORY, "cannot start rank %d of %d: %s", f->rank,
		                 g->n + 1, strerror(rc));
	f->started = true;
	return LLMC_OK;
}

/* Buffers between stages hold all rows of a forward and all of its logits. So no sender waits for a
 * receiver that itself waits to send. */
static CommShape
shape_of(const Session *s)
{
	CommShape c = {
		.ranks = s->plan->ranks * s->plan->stages,
		.team = s->plan->ranks,
		.parts = s->device->join ? 1 : s->lim.n_threads
	}; /* with a GPU, one host thread per rank communicates */

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
	pthread_cond_init(&g->opened, NULL);
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
	if (status == LLMC_OK && s->device->join &&
	    /* join the ranks of each stage; stages communicate through this process only */
	    s->plan->ranks > 1) {
		Session *rank[PLAN_MAX_RANKS] = { s };
		for (int k = 0; k < n; k++)
			rank[k + 1] = g->follower[k].session;
		for (int k = 0; k <= n && status == LLMC_OK; k += s->plan->ranks)
			status = s->device->join(rank + k, s->plan->ranks, err);
	}
	lead(s);
	return status;
}

/* ---- processes ---- */

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
		/* a rank is lost: mpi_world_agree would wait for it */
		if (comm_ended((*s)->comm)) {
			status = status != LLMC_OK ? error_set(err, status, "%s", why.text)
			                           : comm_error((*s)->comm, err);
			goto fail;
		}
		TRY_GOTO(mpi_world_agree(rt->world, status, &why, err));
	}
	if (comm_rank((*s)->comm) == 0)
		lead(*s);
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
		if (!mpi_world_receive(rt->world, &lim, sizeof lim))
			break;
		Session *s = NULL;
		llmc_status status = session_open_rank(rt, &lim, NULL, &s, err);
		if (ranks_rendezvous(&s, rt, status, err) != LLMC_OK)
			continue; /* rank 0 has the status and decides how to continue */
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
	if (rt->world && rt->led && mpi_world_rank(rt->world) == 0)
		(void)mpi_world_broadcast(rt->world, &(Record){ .kind = RECORD_END },
		                          sizeof(Record));
}

/* ---- the end ---- */

void
ranks_close(Session *s)
{
	RankThreads *g = s->group;

	free(s->kept);
	s->kept = NULL;
	if (!g && s->comm && s->rt->world) {
		if (comm_rank(s->comm) == 0)
			(void)broadcast_record(s, (Record){ .kind = RECORD_CLOSE });
		s->kv.on_op = NULL;
	}
	if (!g)
		return;
	if (s->comm) {
		if (!broadcast_record(s, (Record){ .kind = RECORD_CLOSE }))
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

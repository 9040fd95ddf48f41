/* Ranks on GPUs of one stage: each rank's peer memory (templates/cuda/comm/comm.h), access to the
 * peer memory of other ranks, the choice of algorithm per message, and the end of the group. Either
 * one process has all ranks, one thread per rank, or a launcher has started one process per rank.
 * Processes use NCCL, which rank_processes.c has connected.
 *
 * The group ends if a rank is late in a step by LLMC_COMM_TIMEOUT seconds or a device fails: a flag
 * in host memory makes all waiting kernels return, and their results are invalid. A separate thread
 * checks for late ranks, because the threads that run steps wait for their own GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "runtime/cuda/rank_group.h"

enum {
	POLL_MS = 100,
	FIRST_MS = 30000 /* additional time for the ranks' first collective */
};
#define TUNE_S 1.0 /* seconds for measuring algorithms, at the first start on a machine */
enum {
	GATHER = 1 << 20 /* floats that NCCL gathers at a time, of all ranks; at least one row */
};

static int64_t
now_ms(void)
{
	return (int64_t)(clock_now() * 1000) + 1;
}

/* ---- windows ---- */

/* Floats of the longest row that a rank sends */
static int64_t
longest(const Session *s)
{
	int64_t most = 1;

	for (int ph = 0; ph < s->plan->n_phase; ph++)
		for (int i = 0; i < s->plan->phase[ph].n_step; i++) {
			const PlanStep *st = &s->plan->phase[ph].step[i];
			if (!(op_info[st->op].flags & OPF_COMM))
				continue;
			int64_t width = step_int(st, "width"), first, own;
			if (st->op == OP_all_gather) {
				op_share(width, step_int(st, "unit"), s->plan->ranks, 0, &first,
				         &own);
				width = own + step_int(st, "unit");
			}
			most = width > most ? width : most;
		}
	return most;
}

bool
cuda_window_lay_out(CudaSession *c, const Session *s, BumpAllocator *b)
{
	const int64_t n = s->plan->ranks;
	CudaWindow *w = &c->window;

	if (n < 2)
		return true;
	BUMP(b, w->peers, 1);
	BUMP(b, w->epoch, LLMC_LANES);
	BUMP(b, w->flag, n * LLMC_LANES);
	BUMP(b, w->slot, 2 * n * LLMC_LANES * LLMC_CHUNK);
	w->room = GATHER / n > longest(s) ? GATHER / n : longest(s);
	BUMP(b, w->gather, n * w->room);
	return n <= LLMC_PEERS;
}

llmc_status
cuda_window_clear(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	size_t n = (size_t)c->s->plan->ranks;

	if (n < 2)
		return LLMC_OK;
	CUDA_TRY(d,
	         d->api.set8(cuda_address(c->window.epoch), 0, LLMC_LANES * sizeof *c->window.epoch,
	                     c->stream),
	         "clearing flags");
	/* Zero the slots, because a gather may read more than was written: rows of a graph that the
	 * step does not have, and padding of shares to the size of the largest. */
	CUDA_TRY(d, d->api.set8(c->slots, 0, (size_t)session_lay_out_slots(c->s), c->stream),
	         "clearing memory of ranks");
	CUDA_TRY(d,
	         d->api.set8(cuda_address(c->window.gather), 0,
	                     n * (size_t)c->window.room * sizeof(float), c->stream),
	         "clearing memory of ranks");
	CUDA_TRY(d,
	         d->api.set8(cuda_address(c->window.flag), 0,
	                     n * LLMC_LANES * sizeof *c->window.flag, c->stream),
	         "clearing flags");
	return LLMC_OK;
}

/* ---- the end ---- */

void
cuda_group_end(CudaSession *c)
{
	CudaGroup *g = c->group;

	if (!g)
		return;
	if (g->word)
		atomic_store(&g->word->end, 1);
	nccl_abort(g->nccl);
	if (c->s->comm)
		comm_end(c->s->comm);
}

/* The ranks that a step reports as late, from the flags of the kernels. */
static int
late_ranks(const CudaGroup *g, int *step)
{
	for (int r = 0; r < g->n; r++)
		for (int i = 0; i < LLMC_LANES * LLMC_PEERS; i++)
			if (g->word->late[r][i]) {
				*step = (int)g->word->late[r][i] - 1;
				return i % LLMC_PEERS;
			}
	return -1;
}

llmc_status
cuda_group_check(CudaSession *c, int phase, llmc_error *err)
{
	CudaGroup *g = c->group;
	int step = 0, late;

	if (g && g->single_local && atomic_load(&g->lost) >= 0)
		return error_set(err, LLMC_E_DEVICE,
		                 "rank %d of %d: no message from the ranks of its stage for %d s",
		                 comm_rank(c->s->comm), comm_ranks(c->s->comm), g->timeout_s);
	if (cuda_uses_host_comm(c) && comm_ended(c->s->comm))
		return comm_error(c->s->comm, err);
	if (!g || !g->word || !atomic_load(&g->word->end))
		return LLMC_OK;
	late = late_ranks(g, &step);
	const PlanPhase *p = &c->s->plan->phase[phase];
	const int first = c->s->plan->stage * g->n,
	          n = c->s->plan->stages * g->n; /* among the ranks of all stages */
	if (late < 0 && atomic_load(&g->lost) >= 0)
		return error_set(
		    err, LLMC_E_DEVICE,
		    "rank %d of %d is lost: it started no step for %d s while others were in one",
		    first + atomic_load(&g->lost), n, g->timeout_s);
	if (late < 0 || step >= p->n_step)
		return comm_error(c->s->comm, err);
	const PlanStep *st = &p->step[step];
	return error_set(
	    err, LLMC_E_DEVICE,
	    "rank %d of %d (cuda:%d) is lost: no answer in op %s, layer %d (step %d of the plan)",
	    first + late, n, g->rank[late].c ? g->rank[late].c->m->dev.number : -1,
	    op_info[st->op].name, st->layer, step);
}

void
cuda_group_step(CudaSession *c, bool runs)
{
	if (c->group)
		atomic_store(&c->group->rank[c->s->plan->rank - c->group->first].since,
		             runs ? now_ms() : 0);
	if (c->group && c->group->single_local && runs)
		comm_set_position(c->s->comm, c->n_steps, -1, OP_all_reduce);
}

static void *
watch_ranks(void *arg)
{
	CudaGroup *g = arg;

	pthread_mutex_lock(&g->lock);
	while (!g->over) {
		struct timespec at;
		clock_after(&at, POLL_MS);
		pthread_cond_timedwait(&g->changed, &g->lock, &at);
		bool end = !g->over && comm_ended(g->rank[0].c->s->comm), late = false;
		for (int r = 0; r < g->n && !g->over; r++) {
			int64_t since = atomic_load(&g->rank[r].since);
			late = late || (since && now_ms() - since > (int64_t)g->timeout_s * 1000);
		}
		for (int r = 0; r < g->n && late && !end && !g->over; r++)
			if (g->single_local || !atomic_load(&g->rank[r].since))
				atomic_store(&g->lost, r);
		if (end || late) {
			cuda_group_end(g->rank[0].c);
			break;
		}
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* ---- opening ---- */

static llmc_status
enable_peer_access(CudaDevice *a, CudaDevice *b, llmc_error *err)
{
	CUresult r = a->api.peer_enable(b->ctx, 0);
	if (r != CU_OK && r != CU_PEERS_ALREADY)
		return cuda_error(a, r, err, "opening the memory of GPU %d to GPU %d", b->number,
		                  a->number);
	return LLMC_OK;
}

/* Map the peer memory of every rank to addresses of this rank. */
static llmc_status
map_peer_windows(CudaGroup *g, int rank, llmc_error *err)
{
	CudaSession *c = g->rank[rank].c;
	CudaDevice *d = &c->m->dev;
	llmc_peers p = { .rank = rank, .ranks = g->n, .epoch = c->window.epoch };
	CUdeviceptr word;

	for (int k = 0; k < g->n; k++) {
		p.flag[k] = g->rank[k].c->window.flag;
		p.slot[k] = g->rank[k].c->window.slot;
		if (k != rank && g->peers)
			TRY(enable_peer_access(d, &g->rank[k].c->m->dev, err));
	}
	CUDA_TRY(d, d->api.host_device_ptr(&word, g->word, 0), "mapping pinned memory");
	p.end = (const unsigned *)(uintptr_t)word;
	p.late = (unsigned *)(uintptr_t)(word + offsetof(GroupFlags, late) +
	                                 (size_t)rank * sizeof g->word->late[0]);
	CUDA_TRY(d, d->api.copy_up(cuda_address(c->window.peers), &p, sizeof p, c->stream),
	         "copying the ranks' addresses to GPU %d", d->number);
	CUDA_TRY(d, d->api.stream_sync(c->stream), "copying the ranks' addresses to GPU %d",
	         d->number);
	return LLMC_OK;
}

static void
group_free(CudaGroup *g)
{
	if (g->started)
		pthread_join(g->thread, NULL);
	pthread_cond_destroy(&g->changed);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

static llmc_status
start(CudaGroup *g, llmc_error *err)
{

	int rc = thread_create(&g->thread, NULL, watch_ranks, g);
	g->started = rc == 0;
	return rc ? error_set(err, LLMC_E_MEMORY, "cannot start a thread: %s", strerror(rc))
	          : LLMC_OK;
}

/* ---- algorithm selection ---- */

typedef struct CommTrial {
	CudaGroup *g;
	int rank, times;
	int64_t rows;
	CommAlgorithm algorithm;
	double seconds;
	llmc_status status;
	llmc_error err;
} CommTrial;

/* The first all_reduce of a decode step; NULL: none */
static const CudaStep *
any_sum(const CudaSession *c)
{
	for (int i = 0; i < c->s->plan->phase[0].n_step; i++)
		if (c->step[0][i].step->op == OP_all_reduce)
			return &c->step[0][i];
	return NULL;
}

static llmc_status
run_trial(CommTrial *t, llmc_error *err)
{
	CudaSession *c = t->g->rank[t->rank].c;
	CudaDevice *d = &c->m->dev;
	const int n[4] = { (int)t->rows, (int)t->rows, (int)t->rows, (int)t->rows };

	TRY(cuda_enter(d, err));
	CUresult r = d->api.copy_up(cuda_address(c->st.s_n), n, sizeof n, c->stream);
	r = r == CU_OK ? d->api.stream_sync(c->stream) : r;
	llmc_status status =
	    r == CU_OK ? LLMC_OK : cuda_error(d, r, err, "measuring messages between ranks");
	double from = clock_now();
	atomic_store(&t->g->rank[t->rank].since, now_ms() + FIRST_MS);
	for (int i = 0; i < t->times && status == LLMC_OK; i++)
		status = cuda_collective_run(c, any_sum(c), t->algorithm, t->rows, err);
	r = d->api.stream_sync(c->stream);
	t->seconds = clock_now() - from;
	cuda_group_step(c, false);
	if (status == LLMC_OK && r == CU_OK)
		r = d->api.set8(cuda_address(c->st.s_n), 0, sizeof n, c->stream);
	if (status == LLMC_OK && r != CU_OK)
		status = cuda_error(d, r, err, "measuring messages between ranks");
	cuda_leave(d);
	return status;
}

static void *
trial_main(void *arg)
{
	CommTrial *t = arg;

	t->status = run_trial(t, &t->err);
	if (t->status != LLMC_OK) /* the others wait for this rank */
		cuda_group_end(t->g->rank[t->rank].c);
	return NULL;
}

static llmc_status
time_algorithm(void *user, CommAlgorithm algorithm, int64_t bytes, int times, double *seconds,
               llmc_error *err)
{
	CudaGroup *g = user;
	CommTrial t[LLMC_PEERS];
	pthread_t thread[LLMC_PEERS];
	int64_t row = any_sum(g->rank[0].c)->comm.width * (int64_t)sizeof(float),
	        most = g->rank[0].c->s->sym[SYM_n_tok];
	llmc_status status = LLMC_OK;
	int n = 0;

	*seconds = 0;
	for (; n < g->n && status == LLMC_OK; n++) {
		t[n] = (CommTrial){ .g = g,
			            .rank = n,
			            .times = times,
			            .rows = bytes < row ? 1 : bytes / row,
			            .algorithm = algorithm };
		t[n].rows = t[n].rows < most ? t[n].rows : most;
		if (pthread_create(&thread[n], NULL, trial_main, &t[n])) {
			status = error_set(err, LLMC_E_MEMORY, "cannot start a thread");
			cuda_group_end(g->rank[0].c); /* the other threads wait for it */
			break;
		}
	}
	for (int k = 0; k < n; k++) {
		pthread_join(thread[k], NULL);
		*seconds = t[k].seconds > *seconds ? t[k].seconds : *seconds;
		if (t[k].status != LLMC_OK && status == LLMC_OK) {
			status = t[k].status;
			if (err)
				*err = t[k].err;
		}
	}
	return status == LLMC_OK ? cuda_group_check(g->rank[0].c, 0, err) : status;
}

/* Bytes of the largest all-reduce of a step */
static int64_t
most_bytes(const CudaSession *c)
{
	return c->s->sym[SYM_n_tok] * any_sum(c)->comm.width * (int64_t)sizeof(float);
}

/* Run NCCL once with every message size. It connects ranks when it first uses an algorithm for a
 * size, which needs a call on all ranks; later one rank may capture a graph alone. */
static llmc_status
connect_sizes(CudaGroup *g, llmc_error *err)
{
	const CudaSession *c = g->rank[0].c;
	double s;

	if (!any_sum(c))
		return LLMC_OK;
	for (int64_t bytes = (int64_t)1 << ALGO_MIN_LOG2_BYTES; bytes < 2 * most_bytes(c);
	     bytes *= 2)
		TRY(time_algorithm(g, ALGO_NCCL, bytes, 1, &s, err));
	return LLMC_OK;
}

static llmc_status
choose(CudaGroup *g, llmc_error *err)
{
	const CudaSession *c = g->rank[0].c;
	const CudaDevice *d = &c->m->dev;
	char machine[512];

	if (!any_sum(c))
		return LLMC_OK;
	snprintf(machine, sizeof machine, "%s %d %d %d ranks %d nccl %d ways %u", d->name, d->cc,
	         d->n_sm, d->driver, g->n, g->nccl ? nccl_version(g->nccl) : 0, g->set);
	for (int k = 0; k < g->n; k++) /* the links between pairs of GPUs may differ */
		snprintf(machine + strlen(machine), sizeof machine - strlen(machine), " %d",
		         g->rank[k].c->m->dev.number);
	return comm_algorithm_tune(&g->algorithms, machine, g->set, most_bytes(c), TUNE_S,
	                           time_algorithm, g, err);
}

/* Set up peer memory, NCCL or both, as available and requested. */
static llmc_status
connect(CudaGroup *g, llmc_error *err)
{
	CommAlgorithmMode wanted = comm_algorithm_mode();
	unsigned own = peer_algorithms();
	llmc_error why = { 0 };
	CudaDevice *dev[LLMC_PEERS];
	llmc_status status = LLMC_OK;

	if (wanted == ALGO_MODE_UNKNOWN)
		return error_set(err, LLMC_E_INPUT,
		                 "LLMC_NCCL is \"%s\", expected auto, always or never",
		                 getenv("LLMC_NCCL"));
	if (!own)
		return error_set(err, LLMC_E_INPUT,
		                 "LLMC_PEER_SUMS is \"%s\", expected auto, one-shot or two-shot",
		                 getenv("LLMC_PEER_SUMS"));
	g->peers = true;
	for (int k = 0; k < g->n; k++)
		for (int j = 0; j < g->n; j++) {
			CudaDevice *d = &g->rank[k].c->m->dev;
			int can = 1;
			if (j != k)
				CUDA_TRY(d, d->api.can_peer(&can, d->dev, g->rank[j].c->m->dev.dev),
				         "querying peer access from GPU %d to GPU %d", d->number,
				         g->rank[j].c->m->dev.number);
			g->peers = g->peers && can;
		}
	for (int k = 0; k < g->n; k++)
		dev[k] = &g->rank[k].c->m->dev;
	if (wanted != ALGO_MODE_OWN)
		status = nccl_open(dev, g->n, g->timeout_s, &g->nccl, &why);
	if (status != LLMC_OK && (wanted == ALGO_MODE_NCCL || status != LLMC_E_MISSING))
		return error_set(err, status, "%s", why.text);
	if (wanted == ALGO_MODE_NCCL)
		g->peers = false;
	if (!g->peers && !g->nccl)
		return error_set(err, LLMC_E_MISSING,
		                 "GPUs do not reach each other's memory (`nvidia-smi topo -p2p "
		                 "rw`), and ranks without NCCL need that%s%s",
		                 why.text[0] ? ": " : "; LLMC_NCCL is \"never\"", why.text);
	g->set = (g->peers ? own : 0) | (g->nccl ? 1u << ALGO_NCCL : 0);
	return LLMC_OK;
}

llmc_status
cuda_group_open(Session *const *rank, int n, llmc_error *err)
{
	const bool single_local = cuda_uses_host_comm(rank[0]->on);
	CudaModel *m = rank[0]->rt->model;
	void *word = NULL;

	if (single_local && !m->nccl)
		return LLMC_OK; /* neither: collectives go through the host */
	CudaGroup *g = calloc(1, sizeof *g);
	if (!g)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", n);
	pthread_mutex_init(&g->lock, NULL);
	clock_cond_init(&g->changed);
	g->n = n;
	g->single_local = single_local;
	g->first = single_local ? rank[0]->plan->rank : 0;
	atomic_init(&g->lost, -1);
	g->timeout_s = comm_timeout();
	atomic_init(&g->users, n);
	for (int r = 0; r < n; r++) {
		CudaSession *c = rank[r]->on;
		c->group = g; /* each session leaves the group when it is closed */
		g->rank[r].c = c;
	}
	g->dev = &m->dev;
	if (single_local) {
		g->nccl = m->nccl;
		g->set = 1u << ALGO_NCCL;
		TRY(start(g, err));
		return connect_sizes(g, err);
	}
	TRY(cuda_enter(g->dev, err));
	CUresult r =
	    g->dev->api.host_alloc(&word, sizeof *g->word, CU_HOST_PORTABLE | CU_HOST_MAPPED);
	cuda_leave(g->dev);
	CUDA_TRY(g->dev, r, "pinning memory for ranks");
	g->word = word;
	memset(word, 0, sizeof *g->word);
	TRY(connect(g, err));
	for (int k = 0; k < n; k++) {
		CudaDevice *d = &g->rank[k].c->m->dev;
		TRY(cuda_enter(d, err));
		llmc_status status = map_peer_windows(g, k, err);
		cuda_leave(d);
		TRY(status);
	}
	/* watch before the first collective: if peer access is reported but does not work, a
	 * collective never ends */
	TRY(start(g, err));
	if (g->nccl)
		TRY(connect_sizes(g, err));
	/* several algorithms are available */
	return g->set & (g->set - 1) ? choose(g, err) : LLMC_OK;
}

/* The first session that leaves stops the watch thread. The last one frees the flags, in the
 * context of the first rank, which owns them. By then the threads of the other ranks have ended. */
void
cuda_group_leave(CudaSession *c)
{
	CudaGroup *g = c->group;

	if (!g)
		return;
	if (c->s->comm && comm_ended(c->s->comm))
		cuda_group_end(c);
	pthread_mutex_lock(&g->lock);
	g->over = true;
	pthread_cond_signal(&g->changed);
	pthread_mutex_unlock(&g->lock);
	c->group = NULL;
	if (atomic_fetch_sub(&g->users, 1) > 1)
		return;
	GroupFlags *word = g->word;
	CudaDevice *d = g->dev;
	if (!g->single_local)
		nccl_close(g->nccl);
	group_free(g);
	if (word && d->api.ctx_push(d->ctx) == CU_OK) {
		CUDA_RELEASE(d->api.host_free(word));
		cuda_leave(d);
	}
}

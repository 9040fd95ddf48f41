/* Ranks on GPUs of one process: each rank's window (templates/common/cuda_comm.h), who sees whose, and the steps between ranks as launches.
 *
 * A rank that is late in a step for LLMC_COMM_TIMEOUT seconds ends the group, and so does one whose device fails: a word of the host's memory
 * says so to all kernels that wait, which return, and what they made is worth nothing. A thread looks after that, since those that
 * run steps wait for their own GPU. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "runtime/cuda/session.h"

enum { LOOK_MS = 100 };

/* What the host and all GPUs see: pinned. */
typedef struct Word {
	_Atomic unsigned end;
	unsigned         pad[15];
	unsigned         late[LLMC_PEERS][LLMC_LANES * LLMC_PEERS]; /* of each rank's kernels, as llmc_peers says */
} Word;

typedef struct Member {
	CudaSession    *c;
	_Atomic int64_t since;  /* ms: a step has run from then on; 0: none runs */
} Member;

struct CudaGroup {
	int             n, timeout_s;
	atomic_int      users;
	CudaDevice     *dev;    /* of rank 0, whose pinned memory this is */
	Word           *word;
	Member          rank[LLMC_PEERS];
	pthread_t       thread;
	bool            started;
	pthread_mutex_t lock;
	pthread_cond_t  changed;
	bool            over;
};

static int64_t
now_ms(void)
{
	return (int64_t)(clock_now() * 1000) + 1;
}

/* ---------------------------------------------------------------- windows ---- */

bool
cuda_window_lay_out(CudaSession *c, const Session *s, Bump *b)
{
	const int64_t n = s->plan->ranks;
	CudaWindow   *w = &c->window;

	if (n < 2)
		return true;
	BUMP(b, w->peers, 1);
	BUMP(b, w->epoch, LLMC_LANES);
	BUMP(b, w->flag, n * LLMC_LANES);
	BUMP(b, w->slot, 2 * n * LLMC_LANES * LLMC_PIECE);
	return n <= LLMC_PEERS;
}

llmc_status
cuda_window_clear(CudaSession *c, llmc_error *err)
{
	CudaDevice *d = &c->m->dev;
	size_t      n = (size_t)c->s->plan->ranks;

	if (n < 2)
		return LLMC_OK;
	CUDA_TRY(d, d->api.set8((CUdeviceptr)(uintptr_t)c->window.epoch, 0, LLMC_LANES * sizeof *c->window.epoch, c->stream), "clearing flags");
	CUDA_TRY(d, d->api.set8((CUdeviceptr)(uintptr_t)c->window.flag, 0, n * LLMC_LANES * sizeof *c->window.flag, c->stream), "clearing flags");
	return LLMC_OK;
}

/* ---------------------------------------------------------------- steps ---- */

llmc_status
cuda_collective_bind(CudaSession *c, CudaStep *k, int number, llmc_error *err)
{
	const PlanStep  *st = k->step;
	llmc_collective *to = &k->comm;
	const Session   *s = c->s;
	bool             sum = st->op == OP_all_reduce;
	const void      *arg[LLMC_CALL_ARGS] = { 0 };
	const PlanRef   *y = &st->arg[op_info[st->op].n_arg - 1];

	if (s->plan->ranks > LLMC_PEERS)
		return error_set(err, LLMC_E_MISSING, "parallel.tp = %d: GPUs of one machine are at most %d ranks", s->plan->ranks, LLMC_PEERS);
	for (int a = 0; a < st->n_arg && a < LLMC_CALL_ARGS; a++)
		arg[a] = session_argument(s, &st->arg[a]);
	bool out = s->plan->buffer[y->index].extent.sym == SYM_n_out;
	*to = (llmc_collective){ .peers = c->window.peers, .rows = c->st.s_n + (out ? 3 : 0), .scale = 1, .width = (int)step_int(st, "width"), .step = number };
	if (sum) {
		to->x = arg[ARG(all_reduce, x)];
		to->b = arg[ARG(all_reduce, b)];
		to->b2 = arg[ARG(all_reduce, b2)];
		to->r = arg[ARG(all_reduce, r)];
		to->scale = (float)step_num(st, "scale");
	} else {
		to->x = arg[ARG(all_gather, x)];
		for (int r = 0; r < s->plan->ranks; r++) {
			int64_t first, count;
			op_share(to->width, step_int(st, "unit"), s->plan->ranks, r, &first, &count);
			to->first[r] = (int)first;
			to->first[r + 1] = (int)(first + count);
		}
	}
	to->y = session_argument(s, y);
	return LLMC_OK;
}

/* ---------------------------------------------------------------- the end ---- */

void
cuda_group_end(CudaSession *c)
{
	CudaGroup *g = c->group;

	if (!g)
		return;
	if (g->word)
		atomic_store(&g->word->end, 1);
	if (c->s->comm)
		comm_end(c->s->comm);
}

/* Which step let go of whom: as many as the kernels have told. */
static int
told(const CudaGroup *g, int *step)
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
	int        step = 0, late;

	if (!g || !g->word || !atomic_load(&g->word->end))
		return LLMC_OK;
	late = told(g, &step);
	const PlanPhase *p = &c->s->plan->phase[phase];
	if (late < 0 || step >= p->n_step)
		return comm_error(c->s->comm, err);
	const PlanStep *st = &p->step[step];
	return error_set(err, LLMC_E_DEVICE, "rank %d of %d (cuda:%d) is lost: no answer in op %s, layer %d (step %d of the plan)", late, g->n,
	                 g->rank[late].c ? g->rank[late].c->m->dev.number : -1, op_info[st->op].name, st->layer, step);
}

void
cuda_group_step(CudaSession *c, bool runs)
{
	if (c->group)
		atomic_store(&c->group->rank[c->s->plan->rank].since, runs ? now_ms() : 0);
}

static void *
look_after(void *arg)
{
	CudaGroup *g = arg;

	pthread_mutex_lock(&g->lock);
	while (!g->over) {
		struct timespec at;
		clock_gettime(CLOCK_REALTIME, &at);
		at.tv_nsec += LOOK_MS * 1000000L;
		at.tv_sec += at.tv_nsec / 1000000000L;
		at.tv_nsec %= 1000000000L;
		pthread_cond_timedwait(&g->changed, &g->lock, &at);
		bool end = !g->over && comm_ended(g->rank[0].c->s->comm);
		for (int r = 0; r < g->n && !g->over; r++) {
			int64_t since = atomic_load(&g->rank[r].since);
			end = end || (since && now_ms() - since > (int64_t)g->timeout_s * 1000);
		}
		if (end) {
			cuda_group_end(g->rank[0].c);
			break;
		}
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* ---------------------------------------------------------------- opening ---- */

static llmc_status
see(CudaDevice *a, CudaDevice *b, llmc_error *err)
{
	int can = 0;

	CUDA_TRY(a, a->api.can_peer(&can, a->dev, b->dev), "asking whether GPU %d reaches GPU %d", a->number, b->number);
	if (!can)
		return error_set(err, LLMC_E_MISSING, "GPU %d (%s) does not reach the memory of GPU %d (%s): ranks need GPUs of one kind with NVLink or PCIe "
		                 "between them (`nvidia-smi topo -p2p rw`)", a->number, a->name, b->number, b->name);
	CUresult r = a->api.peer_enable(b->ctx, 0);
	if (r != CU_OK && r != CU_PEERS_ALREADY)
		return cuda_error(a, r, err, "opening the memory of GPU %d to GPU %d", b->number, a->number);
	return LLMC_OK;
}

/* The window of every rank as this one sees them. */
static llmc_status
introduce(CudaGroup *g, int rank, llmc_error *err)
{
	CudaSession *c = g->rank[rank].c;
	CudaDevice  *d = &c->m->dev;
	llmc_peers   p = { .rank = rank, .ranks = g->n, .epoch = c->window.epoch };
	CUdeviceptr  word;

	for (int k = 0; k < g->n; k++) {
		p.flag[k] = g->rank[k].c->window.flag;
		p.slot[k] = g->rank[k].c->window.slot;
		if (k != rank)
			TRY(see(d, &g->rank[k].c->m->dev, err));
	}
	CUDA_TRY(d, d->api.host_device_ptr(&word, g->word, 0), "mapping pinned memory");
	p.end = (const unsigned *)(uintptr_t)word;
	p.late = (unsigned *)(uintptr_t)(word + offsetof(Word, late) + (size_t)rank * sizeof g->word->late[0]);
	CUDA_TRY(d, d->api.copy_up((CUdeviceptr)(uintptr_t)c->window.peers, &p, sizeof p, c->stream), "copying the ranks' addresses to GPU %d", d->number);
	CUDA_TRY(d, d->api.stream_sync(c->stream), "copying the ranks' addresses to GPU %d", d->number);
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
	sigset_t all, was;

	sigfillset(&all); /* the host program's signals go to its own threads */
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int rc = pthread_create(&g->thread, NULL, look_after, g);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	g->started = rc == 0;
	return rc ? error_set(err, LLMC_E_MEMORY, "cannot start a thread: %s", strerror(rc)) : LLMC_OK;
}

llmc_status
cuda_group_open(Session *const *rank, int n, llmc_error *err)
{
	const char *timeout = getenv("LLMC_COMM_TIMEOUT");
	CudaGroup  *g = calloc(1, sizeof *g);
	void       *word = NULL;

	if (!g)
		return error_set(err, LLMC_E_MEMORY, "out of memory for %d ranks", n);
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
	g->n = n;
	g->timeout_s = timeout && atoi(timeout) > 0 ? atoi(timeout) : 30;
	atomic_init(&g->users, n);
	for (int r = 0; r < n; r++) {
		CudaSession *c = rank[r]->on;
		c->group = g; /* each gives its share back when it is closed */
		g->rank[r].c = c;
	}
	g->dev = &g->rank[0].c->m->dev;
	TRY(cuda_enter(g->dev, err));
	CUresult r = g->dev->api.host_alloc(&word, sizeof *g->word, CU_HOST_PORTABLE | CU_HOST_MAPPED);
	cuda_leave(g->dev);
	CUDA_TRY(g->dev, r, "pinning memory for ranks");
	g->word = word;
	memset(word, 0, sizeof *g->word);
	for (int k = 0; k < n; k++) {
		CudaDevice *d = &g->rank[k].c->m->dev;
		TRY(cuda_enter(d, err));
		llmc_status status = introduce(g, k, err);
		cuda_leave(d);
		TRY(status);
	}
	return start(g, err);
}

/* With the first one to go nobody is looked after any more. The last one frees the word: rank 0, whose memory it is; the others' threads have
 * ended by then. */
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
	Word *word = g->word;
	group_free(g);
	if (word)
		CUDA_RELEASE(c->m->dev.api.host_free(word));
}

/* Runs the threads of one block as fibers. A warp runs lane by lane until all its lanes wait. Warps
 * run in a random order, which is drawn again at barriers. Fibers of a block switch directly to
 * each other. They return to the host fiber when no fiber is ready, when one spins, and sometimes
 * after a barrier. */
#include "switch.h"
#include "../cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPIN_LIMIT = 400000 };

/* The device header reads these fields. */
_Static_assert(offsetof(Thread, bid) == 12 && offsetof(Thread, bdim) == 24 &&
                   offsetof(Thread, gdim) == 36 && offsetof(Thread, lane) == 48 &&
                   offsetof(Thread, warp) == 56 && offsetof(Thread, cluster_rank) == 60,
               "layout of Thread");
_Static_assert(offsetof(Thread, sp) == 64 && offsetof(Thread, vc) == 128 &&
                   offsetof(Thread, cp) == 192 && sizeof(Thread) == 256,
               "lines of Thread");

Thread *emu_cur;
Thread emu_host;
bool emu_check;
int emu_arch;
uint64_t emu_progress;
static uint64_t spins, spin_progress;
bool emu_give_up;
static bool failed;

static void
go(Thread *n)
{
	Thread *o = emu_cur;

	if (o == n)
		return;
	fiber_go(o, n);
}

/* Gives each warp a random priority and direction of lanes, so that one warp may run far ahead of
 * the others. */
static void
shuffle(EmuBlock *b)
{
	for (int i = 0; i < b->nw; i++)
		b->warp_at[i] = (uint8_t)i;
	for (int i = b->nw - 1; i > 0; i--) {
		int j = (int)emu_random_below((uint64_t)i + 1);
		uint8_t x = b->warp_at[i];
		b->warp_at[i] = b->warp_at[j];
		b->warp_at[j] = x;
	}
	uint64_t down = emu_random();
	b->any_ready = 0;
	for (int i = 0; i < b->nw; i++) {
		Warp *w = &b->warp[b->warp_at[i]];
		w->rank_bit = 1u << i;
		w->before = w->rank_bit - 1;
		w->down = (int)(down >> b->warp_at[i] & 1);
		if (w->ready)
			b->any_ready |= w->rank_bit;
	}
}

Thread *
block_pick(EmuBlock *b)
{
	if (!b->any_ready)
		return &emu_host;
	int i = b->warp_at[__builtin_ctz(b->any_ready)];
	Warp *w = &b->warp[i];
	int lane = warp_first(w, w->ready);
	w->ready &= ~(1u << lane);
	if (!w->ready)
		b->any_ready &= b->any_ready - 1;
	return &b->t[i * 32 + lane];
}

/* Returns any ready thread except this one: spinning lanes must not starve the lanes between
 * them. */
static Thread *
pick_other(EmuBlock *b, const Thread *self)
{
	int start = (int)emu_random_below((uint64_t)b->nw);

	for (int i = 0; i < b->nw; i++) {
		int w = (start + i) % b->nw;
		uint32_t m = b->warp[w].ready & ~(w == (int)self->warp ? 1u << self->lane : 0);
		if (!m)
			continue;
		for (int skip = (int)emu_random_below((uint64_t)__builtin_popcount(m)); skip;
		     skip--)
			m &= m - 1;
		int lane = __builtin_ctz(m);
		b->warp[w].ready &= ~(1u << lane);
		if (!b->warp[w].ready)
			b->any_ready &= ~b->warp[w].rank_bit;
		return &b->t[w * 32 + lane];
	}
	return &emu_host;
}

void
block_wake(EmuBlock *b, int warp, uint32_t lanes)
{
	if (!lanes)
		return;
	for (uint32_t m = lanes; m; m &= m - 1)
		b->t[warp * 32 + __builtin_ctz(m)].state = T_READY;
	b->warp[warp].ready |= lanes;
	b->any_ready |= b->warp[warp].rank_bit;
}

void
block_wait(ThreadState why, Site at)
{
	Thread *t = emu_cur;

	t->at = at;
	fiber_wait(t, why);
}

uint64_t
block_spins(void)
{
	return spin_progress == emu_progress ? spins : 0;
}

/* Reports a wait that cannot end. The report lists the devices without queued work, because one of
 * them probably has to write the value that this kernel waits for. */
static NORETURN void
report_endless_wait(const Thread *t, Site at)
{
	char idle[64] = "";

	for (int d = 0; d < 8; d++)
		if (d != t->blk->op->device && emu_peers(t->blk->op->device, d) &&
		    !timeline_busy(d))
			snprintf(idle + strlen(idle), sizeof idle - strlen(idle), "%s%d",
			         *idle ? ", " : "", d);
	emu_die(CUDA_ERROR_LAUNCH_TIMEOUT, at,
	        "spins forever on device %d: the value it waits for is never written%s%s%s",
	        t->blk->op->device, *idle ? "; nothing is queued on device " : "", idle,
	        *idle ? ", which is late, skipped its part or has ended" : "");
}

/* Lets other threads, of this block and of others, run while this one spins. If all threads spin,
 * only another thread of the program can end the wait, by queueing work on another device;
 * timeline_run handles this case. */
void
block_yield(Site at)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;

	if (spin_progress != emu_progress) {
		spin_progress = emu_progress;
		spins = 0;
	} else if (emu_give_up ||
	           (++spins > SPIN_LIMIT &&
	            emu_contexts() < 2)) { /* with several devices, the number of spins depends on
		                              timing, so it is not counted */
		mbar_stuck(t, at);
		if (emu_contexts() > 1)
			report_endless_wait(t, at);
		emu_die(CUDA_ERROR_LAUNCH_TIMEOUT, at,
		        "spins forever: the value it waits for is never written");
	}
	t->state = T_READY;
	t->at = at;
	Thread *n = emu_random_below(4) ? pick_other(b, t) : &emu_host;
	t->w->ready |= 1u << t->lane;
	b->any_ready |= t->w->rank_bit;
	if (n == &emu_host)
		shuffle(b);
	go(n);
	t->state = T_RUN;
}

void
block_abandon(void)
{
	failed = true;
	go(&emu_host);
	abort();
}

static void
entry(void)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;

	t->state = T_RUN;
	b->op->fn->invoke(b->op->param);
	Warp *w = t->w;
	for (int i = 0; i < w->n_rendezvous; i++)
		if (w->rendezvous[i].mask >> t->lane & 1)
			emu_die(
			    CUDA_ERROR_LAUNCH_FAILED, w->rendezvous[i].at,
			    "a lane left the kernel while others wait for it in a warp collective");
	if (t->wg)
		wgmma_leave(t);
	if (t->bulk.n)
		store_leave(t);
	if (b->live == 1 && mbar_inflight(b))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, t->at,
		        "the block leaves the kernel while a bulk copy into its shared memory is "
		        "in flight");
	if (b->live == 1 && emu_check)
		mbar_leave(b, t->at);
	if (b->arrived)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, b->bar_at,
		        "divergent barrier: a thread left the kernel while others wait at "
		        "__syncthreads");
	emu_progress++;
	b->live--;
	w->alive &= ~(1u << t->lane);
	if (!b->live && b->op->n_unit && !b->triggered) {
		b->triggered = true;
		b->op->n_triggered++;
	}
	t->state = T_DONE;
	go(block_pick(b));
	abort();
}

/* A step starts thousands of blocks, so arrays of threads are kept for later blocks, with their
 * stacks and queues. */
enum { KEPT = 16 };
static struct {
	Thread *t;
	Dim d;
} kept[KEPT];

static Thread *
threads_take(Dim d)
{
	for (int i = 0; i < KEPT; i++)
		if (kept[i].t && !memcmp(&kept[i].d, &d, sizeof d)) {
			Thread *t = kept[i].t;
			kept[i].t = NULL;
			return t;
		}
	unsigned n = d.x * d.y * d.z;
	Thread *t = emu_alloc_lines(sizeof *t * n + sizeof(Fragments) * ((n + 31) / 32));
	for (unsigned i = 0; i < n; i++) {
		t[i].tid[0] = i % d.x, t[i].tid[1] = i / d.x % d.y, t[i].tid[2] = i / (d.x * d.y);
		t[i].bdim[0] = d.x, t[i].bdim[1] = d.y, t[i].bdim[2] = d.z;
		t[i].lin = i, t[i].lane = i & 31, t[i].warp = i >> 5;
		t[i].stack = fiber_stack();
	}
	return t;
}

static void
threads_give(Thread *t, Dim d)
{
	static unsigned at;
	unsigned i = at++ % KEPT;

	for (unsigned k = 0; k < KEPT; k++)
		if (!kept[(i + k) % KEPT].t) {
			i = (i + k) % KEPT;
			break;
		}
	if (kept[i].t) {
		Dim o = kept[i].d;
		for (unsigned k = 0; k < o.x * o.y * o.z; k++) {
			fiber_stack_free(kept[i].t[k].stack);
			copy_free(&kept[i].t[k]);
		}
		free(kept[i].t);
	}
	kept[i].t = t;
	kept[i].d = d;
}

EmuBlock *
block_start(EmuOp *op, uint32_t index, Cluster *cluster, unsigned rank)
{
	Dim d = op->block, g = op->grid;
	int nt = (int)(d.x * d.y * d.z), nw = (nt + 31) / 32;
	EmuBlock *b = emu_alloc_lines(offsetof(EmuBlock, warp) + sizeof b->warp[0] * (size_t)nw);
	const uint32_t x = index % g.x, y = index / g.x % g.y, z = index / (g.x * g.y);

	b->op = op;
	b->index = index;
	b->buid = op->buid0 + index;
	b->nt = nt;
	b->nw = nw;
	b->live = nt;
	b->cluster = cluster;
	b->cluster_rank = rank;
	b->t = threads_take(d);
	for (int i = 0; i < nt; i++) {
		Thread *t = &b->t[i];
		t->bid[0] = x, t->bid[1] = y, t->bid[2] = z;
		t->gdim[0] = g.x, t->gdim[1] = g.y, t->gdim[2] = g.z;
		t->cluster_rank = rank;
		t->blk = b;
		t->w = &b->warp[i / 32];
		t->state = T_READY;
		memset(&t->vc, 0, offsetof(Thread, cp) - offsetof(Thread, vc));
		t->sp = fiber_prepare(t->stack, (unsigned)i, entry);
	}
	for (int w = 0; w < nw; w++) {
		int n = nt - w * 32;
		b->warp[w].ready = b->warp[w].alive = n >= 32 ? ~0u : (1u << n) - 1;
		b->warp[w].frag = (Fragments *)(b->t + nt) + w;
	}
	shuffle(b);
	/* The arena has the dynamic part first, then the static objects. A static object has the
	 * same offset in all blocks of a kernel. */
	b->arena = region_new(R_SHARED, (size_t)op->dyn);
	b->arena->blk = b;
	b->arena->dyn = op->dyn;
	memset(b->arena->lo, 0xff, op->dyn);
	shared_start(b);
	if (emu_check) {
		shadow_clear(b->arena, 0, op->dyn);
		for (int i = 0; i < nt; i++)
			clock_start(&b->t[i]);
	}
	return b;
}

void
block_free(EmuBlock *b)
{
	bool wg = b->wg != NULL;

	if (emu_check)
		clock_leave(b);
	for (int i = 0; i < b->nt; i++) {
		Thread *t = &b->t[i];
		if (emu_check)
			clock_stop(t);
		copy_forget(t);
		if (t->bulk.s)
			store_forget(t);
		wg = wg || t->wg;
	}
	for (int i = 0; i < 16; i++)
		known_drop(b->named[i].known);
	mbar_forget(b);
	if (wg)
		wgmma_forget(b);
	free(b->acquired);
	region_drop(b->arena);
	threads_give(b->t, b->op->block);
	free(b);
}

bool
block_has_ready(const EmuBlock *b)
{
	return b->any_ready;
}

bool
block_done(const EmuBlock *b)
{
	return !b->live;
}

bool
block_slice(EmuBlock *b)
{
	failed = false;
	if (emu_check)
		shadow_forget();
	emu_cur = &emu_host;
	go(block_pick(b));
	emu_cur = NULL;
	return !failed;
}

/* ---- called by kernels ---- */

EXPORT void
emu_syncthreads(const char *file, int line)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	Site at = { file, line };

	if (b->live != b->nt)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "divergent barrier: __syncthreads after a thread of the block has left the "
		        "kernel");
	if (b->arrived &&
	    (b->bar_at.line != line || (b->bar_at.file != file && strcmp(b->bar_at.file, file))))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "divergent barrier: other threads of the block wait at another "
		        "__syncthreads, in line %d",
		        b->bar_at.line);
	if (unlikely(b->zero_at.line))
		emu_die(
		    CUDA_ERROR_LAUNCH_FAILED, at,
		    "__syncthreads is named barrier 0, which line %d uses for a part of the block",
		    b->zero_at.line);
	b->bar_at = at;
	if (++b->arrived < b->nt) {
		t->at = at;
		fiber_wait(t, T_BARRIER);
		return;
	}
	b->arrived = 0;
	b->bar_epoch++;
	emu_progress++;
	if (emu_check)
		clock_block_barrier(b);
	for (int w = 0; w < b->nw;
	     /* for all warps; lane states need no update, because the lanes run before any state is
	      * read */
	     w++) {
		b->warp[w].ready = b->warp[w].alive;
		b->any_ready |= b->warp[w].rank_bit;
	}
	t->w->ready &= ~(1u << t->lane);
	if (!t->w->ready)
		b->any_ready &= ~t->w->rank_bit;
	uint64_t dice = emu_random();
	if (!(dice & 3))
		shuffle(b);
	/* The last thread to arrive would otherwise always run first after a barrier, and other
	 * blocks would never run in between. */
	if (b->op->n_res > 1 && !(dice >> 8 & 15)) {
		block_wake(b, (int)t->warp, 1u << t->lane);
		go(&emu_host);
		t->state = T_RUN;
	} else if (dice >> 16 & 1) {
		block_wake(b, (int)t->warp, 1u << t->lane);
		go(block_pick(b));
		t->state = T_RUN;
	}
}

/* __syncthreads_count, _and and _or: counts the threads whose predicate is set. */
EXPORT unsigned
emu_syncthreads_count(int p, const char *file, int line)
{
	EmuBlock *b = emu_cur->blk;
	unsigned n = 0;

	emu_cur->arg = !!p;
	emu_syncthreads(file, line);
	for (int i = 0; i < b->nt; i++)
		n += (unsigned)b->t[i].arg;
	emu_syncthreads(file, line);
	return n;
}

static void
named(int id, int n, bool wait, Site at)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;

	if (id < 0 || id > 15)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "named barrier %d: there are 16", id);
	if (n <= 0 || n % 32 || n > (b->nt + 31) / 32 * 32)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "named barrier %d for %d threads: must be a multiple of 32 within the "
		        "block's %d",
		        id, n, b->nt);
	if (!id && n < b->nt) {
		if (b->bar_at.line)
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "named barrier 0 for %d threads: it is __syncthreads (line %d), "
			        "use another number",
			        n, b->bar_at.line);
		b->zero_at = at;
	}
	NamedBar *bar = &b->named[id];
	if (bar->arrived && bar->want != n)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "named barrier %d for %d threads, others wait in it for %d (line %d)", id,
		        n, bar->want, bar->at.line);
	bar->want = n;
	bar->at = at;
	KnownClocks *mine = NULL;
	if (emu_check) {
		mine = clock_publish(t);
		bar->known = known_join(bar->known, mine);
		known_drop(mine);
	}
	if (++bar->arrived < n) {
		if (!wait)
			return;
		bar->waiting[t->warp] |= 1u << t->lane;
		block_wait(T_NAMED, at);
		return;
	}
	emu_progress++;
	if (wait)
		bar->waiting[t->warp] |= 1u << t->lane;
	for (int w = 0; w < b->nw; w++) {
		for (uint32_t m = bar->waiting[w]; m; m &= m - 1)
			if (emu_check)
				clock_acquire(&b->t[w * 32 + __builtin_ctz(m)], bar->known);
		block_wake(b, w, bar->waiting[w] & ~(w == (int)t->warp ? 1u << t->lane : 0));
	}
	memset(bar->waiting, 0, sizeof bar->waiting);
	bar->arrived = 0;
	known_drop(bar->known);
	bar->known = NULL;
	t->state = T_RUN;
}

EXPORT void
emu_named_sync(int id, int n, const char *file, int line)
{
	named(id, n, true, (Site){ file, line });
}

EXPORT void
emu_named_arrive(int id, int n, const char *file, int line)
{
	named(id, n, false, (Site){ file, line });
}

/* Releases a barrier over several blocks: a cluster or a grid. For a cluster, arrive and wait are
 * separate operations. */
static void
release_all(EmuBlock **b, int n, ThreadState why)
{
	emu_progress++;
	if (emu_check)
		clock_blocks(b, n);
	for (int i = 0; i < n; i++)
		for (int w = 0; w < b[i]->nw; w++) {
			uint32_t m = 0;
			for (int l = 0; l < 32 && w * 32 + l < b[i]->nt; l++)
				if (b[i]->t[w * 32 + l].state == why)
					m |= 1u << l;
			block_wake(b[i], w, m);
		}
}

EXPORT void
emu_grid_sync(const char *file, int line)
{
	Site at = { file, line };
	Thread *t = emu_cur;
	EmuOp *op = t->blk->op;

	if (!op->cooperative)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "grid barrier in a launch that is not cooperative");
	uint64_t all = (uint64_t)op->n_block * (uint64_t)t->blk->nt;
	if (t->blk->live != t->blk->nt)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "grid barrier after a thread of the block has left the kernel");
	if (++op->grid_arrived < all) {
		block_wait(T_GRID, at);
		return;
	}
	op->grid_arrived = 0;
	op->grid_epoch++;
	t->state = T_GRID;
	release_all(op->res, op->n_res, T_GRID);
	go(&emu_host);
	t->state = T_RUN;
}

EXPORT void
emu_cluster_arrive(const char *file, int line)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	Site at = { file, line };

	if (t->in_cluster)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "second cluster arrive without a wait in between");
	t->in_cluster = true;
	b->cluster->arrived++;
}

EXPORT void
emu_cluster_wait(const char *file, int line)
{
	Thread *t = emu_cur;
	Cluster *c = t->blk->cluster;
	Site at = { file, line };

	if (!t->in_cluster)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "cluster wait without an arrive before");
	t->in_cluster = false;
	int all = 0, waiting = 1;
	for (int i = 0; i < c->n; i++) {
		all += c->b[i]->nt;
		for (int k = 0; k < c->b[i]->nt; k++)
			waiting += c->b[i]->t[k].state == T_CLUSTER;
		if (c->b[i]->live != c->b[i]->nt)
			emu_die(
			    CUDA_ERROR_LAUNCH_FAILED, at,
			    "cluster barrier after a thread of the cluster has left the kernel");
	}
	/* Simplification: the barrier completes when all threads wait, not when all have arrived.
	 * Threads still overlap between their arrival and their wait. */
	if (waiting < all) {
		block_wait(T_CLUSTER, at);
		return;
	}
	c->arrived = 0;
	t->state = T_CLUSTER;
	release_all(c->b, c->n, T_CLUSTER);
	go(&emu_host);
	t->state = T_RUN;
}

EXPORT unsigned
emu_cluster_size(void)
{
	return (unsigned)emu_cur->blk->cluster->n;
}

/* Returns the address in another block's shared memory with the same offset as `p` has in this
 * block's. */
EXPORT void *
emu_cluster_map(const void *p, unsigned rank, const char *file, int line)
{
	Site at = { file, line };
	EmuBlock *b = emu_cur->blk;

	if (rank >= (unsigned)b->cluster->n)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "cluster rank %u of a cluster of %d", rank,
		        b->cluster->n);
	if ((const char *)p < b->arena->lo || (const char *)p >= b->arena->hi)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "address is not in this block's shared memory");
	return b->cluster->b[rank]->arena->lo + ((const char *)p - b->arena->lo);
}

/* Programmatic dependent launch */
EXPORT void
emu_gdc_wait(const char *file, int line)
{
	Thread *t = emu_cur;
	EmuOp *op = t->blk->op;

	for (;;) {
		bool all = true;
		for (int i = 0; i < op->n_prog; i++)
			all = all && op_done(op->prog[i]);
		if (all)
			break;
		block_wait(T_GRIDDEP, (Site){ file, line });
	}
	t->gdc_waited = true;
	op->any_waited = true;
	if (emu_check) {
		clock_waited(t);
		shadow_more_ordered();
	}
}

EXPORT void
emu_gdc_launch(void)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;

	b->op->any_trigger = true;
	b->op->early_trigger = b->op->early_trigger || !t->gdc_waited;
	if (++b->n_trigger >= b->live && !b->triggered) {
		b->triggered = true;
		b->op->n_triggered++;
	}
}

EXPORT void
emu_spin(const char *file, int line)
{
	block_yield((Site){ file, line });
}

EXPORT void
emu_trap(const char *file, int line)
{
	emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, (Site){ file, line }, "the kernel executed a trap");
}

/* Work of all streams as one graph of operations. Queueing an operation does not run it, except at
 * random times. Waits of the host run operations in a random order that the edges allow. A kernel
 * with a programmatic edge may start as soon as its predecessor has started, and usually does: its
 * code before the wait then runs before the predecessor has written anything.
 *
 * Checking mode keeps for each operation the set of operations ordered before it: `before` at its
 * start, `after` once it has waited for its programmatic predecessors. Operations that the host has
 * waited for leave the window.
 *
 * Kernels of several devices communicate while they run. Clocks that threads of one kernel acquire
 * from another running kernel also hold for later operations. Operations pass them on, and so does
 * the host once it has waited (`from`, `waited`, `acquired`), except for those that `before` and
 * `after` imply. */
#include "emu.h"
#include "../cuda_api.h"
#include "stream_library.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 3, SPIN = 4000, HELD = 300 };

uint64_t timeline_base = 1;
static uint64_t next_seq = 1;
static uint32_t next_buid = 1;
static EmuOp *ring[TIMELINE];
static OpSet host_known;
/* clocks of blocks that may still run, acquired from operations for which the host has waited */
static KnownClocks *host_acquired;
static uint64_t *running; /* kernels in flight */
static int n_running, cap_running;
static uint64_t first_open = 1; /* all earlier operations have finished */
__thread bool emu_in_host_fn;

static bool
set_has(const OpSet *s, uint64_t seq)
{
	return s->w[seq % TIMELINE / 64] >> (seq % 64) & 1;
}

static void
set_put(OpSet *s, uint64_t seq)
{
	s->w[seq % TIMELINE / 64] |= 1ull << (seq % 64);
}

static void
set_join(OpSet *a, const OpSet *b)
{
	for (int i = 0; i < TIMELINE / 64; i++)
		a->w[i] |= b->w[i];
}

EmuOp *
op_at(uint64_t seq)
{
	return seq >= timeline_base && seq < next_seq ? ring[seq % TIMELINE] : NULL;
}

bool
op_done(uint64_t seq)
{
	EmuOp *op = op_at(seq);
	return !op || op->state == OP_DONE;
}

static EmuOp *recent; /* last result of op_of_buid */

EmuOp *
op_of_buid(uint32_t buid)
{
	if (likely(recent && buid - recent->buid0 < recent->n_block))
		return recent;
	uint64_t lo = timeline_base, hi = next_seq;

	while (lo < hi) { /* last operation that starts at or below */
		uint64_t mid = (lo + hi) / 2;
		if (ring[mid % TIMELINE]->buid0 <= buid)
			lo = mid + 1;
		else
			hi = mid;
	}
	return recent = lo > timeline_base ? ring[(lo - 1) % TIMELINE] : NULL;
}

bool
op_before(uint64_t a, const EmuOp *b, bool waited)
{
	return a < timeline_base || set_has(waited ? &b->after : &b->before, a);
}

void
op_forget(OpSet *of, uint64_t seq)
{
	of->w[seq % TIMELINE / 64] &= ~(1ull << (seq % 64));
}

/* Returns whether op (NULL: the host) does not yet imply the clocks of a block. */
static bool
is_new(uint32_t buid, const void *user)
{
	const EmuOp *op = user, *of = op_of_buid(buid);

	return of && of != op &&
	       !(op ? op_before(of->seq, op, op->any_waited) : set_has(&host_known, of->seq));
}

/* Called when the host has waited for op. */
static void
host_acquires(const EmuOp *op)
{
	host_acquired = known_join(host_acquired, op->acquired);
}

void
op_acquires(EmuOp *op, const OpSet *of)
{
	if (emu_contexts() < 2)
		return;
	set_join(&op->before, of);
	set_join(&op->after, of);
	shadow_more_ordered();
}

void
op_notified(const EmuOp *op, bool waited, OpSet *of)
{
	if (emu_contexts() > 1)
		set_join(of, waited ? &op->after : &op->before);
}

EmuOp *
op_new(EmuOpKind kind, const char *name)
{
	EmuOp *op = emu_alloc(sizeof *op);

	op->kind = kind;
	op->name = name;
	op->n_block = 1;
	return op;
}

bool
op_known(uint64_t seq)
{
	return emu_check ? set_has(&host_known, seq) : op_done(seq);
}

const EmuOp *
timeline_uses(bool (*uses)(const EmuOp *op, const void *what), const void *what)
{
	for (uint64_t s = timeline_base; s < next_seq; s++)
		if (!op_known(s) && uses(ring[s % TIMELINE], what))
			return ring[s % TIMELINE];
	return NULL;
}

static void
op_free(EmuOp *op)
{
	pinned_drop(op);
	if (recent == op)
		recent = NULL;
	free(op->dep);
	free(op->prog);
	free(op->param);
	free(op->param_mem);
	free(op->order);
	free(op->res);
	free(op->stage);
	free(op->work);
	known_drop(op->from);
	known_drop(op->waited);
	known_drop(op->acquired);
	free(op);
}

static void
advance_base(void)
{
	while (timeline_base < next_seq) {
		EmuOp *op = ring[timeline_base % TIMELINE];
		if (op->state != OP_DONE || (emu_check && !set_has(&host_known, timeline_base)))
			break;
		ring[timeline_base % TIMELINE] = NULL;
		timeline_base++;
		op_free(op);
	}
	if (first_open < timeline_base)
		first_open = timeline_base;
}

static uint64_t *
copy_seqs(const uint64_t *s, int *n)
{
	uint64_t *c = emu_alloc(sizeof *c * (size_t)(*n + 1));
	int k = 0;

	for (int i = 0; i < *n; i++)
		if (op_at(s[i]))
			c[k++] = s[i];
	*n = k;
	return c;
}

void
op_add(EmuOp *op, const uint64_t *dep, int n_dep, const uint64_t *prog, int n_prog)
{
	/* If more operations are in flight than the window holds, proceed as if the host had
	 * waited. */
	if (next_seq - timeline_base >= TIMELINE - 1) {
		timeline_run_all();
		timeline_known_all(-1);
		if (emu_error) {
			op_free(op);
			return;
		}
	}
	op->seq = next_seq++;
	op->buid0 = next_buid;
	next_buid += op->n_block;
	/* an older operation may have used this number's index in the sets */
	if (emu_check) {
		op_forget(&host_known, op->seq);
		sync_renumber(op->seq);
		for (uint64_t s = timeline_base; s < op->seq; s++) {
			op_forget(&ring[s % TIMELINE]->before, op->seq);
			op_forget(&ring[s % TIMELINE]->after, op->seq);
		}
		op->before = host_known;
		op->from = known_ref(host_acquired);
	}
	op->n_dep = n_dep;
	op->dep = copy_seqs(dep, &op->n_dep);
	op->n_prog = n_prog;
	op->prog = copy_seqs(prog, &op->n_prog);
	ring[op->seq % TIMELINE] = op;
	pinned_queued(op);
	if (op->work && op->work->queued)
		op->work->queued(op->work + 1, op->seq);
}

/* Limits per SM, from the table of compute capabilities in the CUDA programming guide */
const EmuSm *
emu_sm(void)
{
	static const EmuSm table[] = {
		{ 70, 2048, 32, 96 },   { 75, 1024, 16, 64 },   { 80, 2048, 32, 164 },
		{ 86, 1536, 16, 100 },  { 87, 1536, 16, 164 },  { 89, 1536, 24, 100 },
		{ 90, 2048, 32, 228 },  { 100, 2048, 32, 228 }, { 103, 2048, 32, 228 },
		{ 120, 1536, 24, 100 }, { 121, 1536, 24, 100 },
	};
	size_t i = 0;

	while (i + 1 < sizeof table / sizeof *table && table[i].arch != emu_arch)
		i++;
	return &table[i];
}

int
func_residency(const Func *f, int threads, uint32_t dyn)
{
	int max_threads = emu_sm()->threads, blocks = emu_sm()->blocks;
	uint32_t smem = (uint32_t)emu_sm()->shared_kb << 10;
	uint32_t need = f->static_bytes + dyn + (emu_arch >= 80 ? 1024 : 0);
	int warps = (threads + 31) / 32 * 32;

	if (threads <= 0)
		return 0;
	int n = max_threads / warps;
	if (n > blocks)
		n = blocks;
	if (need && (uint32_t)n > smem / need)
		n = (int)(smem / need);
	/* assumes 64 registers per thread for every kernel */
	if (n > 65536 / (64 * warps))
		n = 65536 / (64 * warps);
	return n;
}

/* ---- starting and ending ---- */

static bool
startable(EmuOp *op)
{
	for (int i = 0; i < op->n_dep; i++)
		if (!op_done(op->dep[i]))
			return false;
	if (op->work && op->work->ready && !op->work->ready(op->work + 1))
		return false;
	op->depth = 0;
	for (int i = 0; i < op->n_prog; i++) {
		EmuOp *p = op_at(op->prog[i]);
		if (!p || p->state == OP_DONE)
			continue;
		if (p->state != OP_RUNNING || p->depth + 1 >= MAX_DEPTH)
			return false;
		/* a predecessor whose threads wait before they trigger does so only once all of its
		 * blocks have triggered */
		if (!p->early_trigger && p->n_triggered < p->n_block)
			return false;
		op->depth = p->depth + 1 > op->depth ? p->depth + 1 : op->depth;
	}
	return true;
}

/* Returns whether all threads of a kernel waited before they triggered dependents. If so, the
 * dependents are ordered after everything that the kernel waited for. */
static bool
held(const EmuOp *op)
{
	return op->any_trigger && op->any_waited && !op->early_trigger;
}

/* Sets the operations ordered before op when it starts. The end of a full predecessor implies all
 * that is ordered before it. A programmatic predecessor implies only what was ordered before its
 * own start, or before its wait if it is held. */
static void
sets_at_start(EmuOp *op)
{
	if (!emu_check)
		return;
	for (int i = 0; i < op->n_dep; i++) {
		EmuOp *d = op_at(op->dep[i]);
		if (d) {
			set_join(&op->before, d->any_waited ? &d->after : &d->before);
			set_put(&op->before, d->seq);
			op->from = known_join(op->from, d->acquired);
		}
	}
	for (int i = 0; i < op->n_prog; i++) {
		EmuOp *d = op_at(op->prog[i]);
		if (d)
			set_join(&op->before, held(d) ? &d->after : &d->before);
	}
	op->after = op->before;
	op->waited = known_ref(op->from);
}

static void
sets_at_wait(EmuOp *op)
{
	op->after = op->before;
	for (int i = 0; i < op->n_prog; i++) {
		EmuOp *d = op_at(op->prog[i]);
		if (d) {
			set_join(&op->after, d->any_waited ? &d->after : &d->before);
			set_put(&op->after, d->seq);
			op->waited = known_join(op->waited, d->acquired);
		}
	}
}

static void
finish(EmuOp *op)
{
	const char *where;
	Region *r;

	op->state = OP_DONE;
	if (emu_check)
		op->acquired = known_keep(
		    known_join(op->acquired, op->kind == OP_KERNEL ? NULL : op->from), is_new, op);
	if (op->kind == OP_KERNEL) {
		for (int i = 0; i < n_running; i++)
			if (running[i] == op->seq)
				running[i--] = running[--n_running];
		if (!n_running)
			sync_reset(false);
		r = region_damage(&where);
		if (r) {
			emu_note("kernel '%s': out-of-bounds write found after it ran, %s of a "
			         "device allocation of %zu bytes%s",
			         op->name, where, r->bytes,
			         n_running ? " (other kernels run at the same time)" : "");
			emu_error = CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		prefetch_kernel_ended(op);
	}
	/* Kernels that wait for this one by griddepcontrol continue once all their predecessors
	 * have finished. */
	for (int i = 0; i < n_running; i++) {
		EmuOp *o = op_at(running[i]);
		bool all = o->n_prog > 0, mine = false;
		for (int k = 0; k < o->n_prog; k++) {
			all = all && op_done(o->prog[k]);
			mine = mine || o->prog[k] == op->seq;
		}
		if (!all || !mine)
			continue;
		if (emu_check)
			sets_at_wait(o);
		o->depth = 0;
		for (int k = 0; k < o->n_res; k++)
			for (int t = 0; t < o->res[k]->nt; t++)
				if (o->res[k]->t[t].state == T_GRIDDEP)
					block_wake(o->res[k], t / 32, 1u << (t & 31));
	}
	emu_progress++;
	while (first_open < next_seq && ring[first_open % TIMELINE]->state == OP_DONE)
		first_open++;
	if (!emu_check)
		advance_base();
}

static void
start_kernel(EmuOp *op)
{
	unsigned per = op->cluster.x * op->cluster.y * op->cluster.z;
	int residency =
	        func_residency(op->fn, (int)(op->block.x * op->block.y * op->block.z), op->dyn),
	    most;

	op->state = OP_RUNNING;
	op->n_unit = op->n_block / per;
	op->order = emu_alloc(sizeof *op->order * op->n_unit);
	for (uint32_t i = 0; i < op->n_unit; i++)
		op->order[i] = i;
	if (emu_random() & 1)
		for (uint32_t i = op->n_unit - 1; i > 0; i--) {
			uint32_t j = (uint32_t)emu_random_below(i + 1u), x = op->order[i];
			op->order[i] = op->order[j];
			op->order[j] = x;
		}
	residency = residency < 1 ? 1 : residency;
	most = (int)emu_random_below(4) + 1;
	most = most < residency ? most : residency;
	op->max_res = op->cooperative ? (int)op->n_block : most * (int)per;
	op->res = emu_alloc(sizeof *op->res * (size_t)op->max_res);
	if (n_running == cap_running) {
		cap_running = cap_running ? 2 * cap_running : 16;
		running = realloc(running, sizeof *running * (size_t)cap_running);
	}
	running[n_running++] = op->seq;
	sets_at_start(op);
	if (op->n_prog) {
		bool all = true;
		for (int i = 0; i < op->n_prog; i++)
			all = all && op_done(op->prog[i]);
		if (all && emu_check)
			sets_at_wait(op);
	}
}

static void
library(EmuOp *op)
{
	LibraryWork *w = op->work;

	for (int i = 0; emu_check && i < w->n_touch && !emu_error; i++) {
		size_t at;
		if (w->touch[i].write)
			continue;
		shadow_host_read(op, w->touch[i].p, w->touch[i].n);
		if (!emu_error && !shadow_written(w->touch[i].p, w->touch[i].n, &at)) {
			char *where = region_describe((char *)w->touch[i].p + at);
			emu_note("%s: read of unwritten memory: %s", op->name, where);
			free(where);
			emu_error = CUDA_ERROR_LAUNCH_FAILED;
		}
	}
	for (int i = 0; emu_check && i < w->n_touch && !emu_error; i++)
		if (w->touch[i].write)
			shadow_host_write(op, w->touch[i].p, w->touch[i].n);
	if (!emu_error)
		w->run(w + 1);
}

static void
start_other(EmuOp *op)
{
	sets_at_start(op);
	size_t n = op->bytes;
	switch (op->kind) {
	case OP_COPY:
		if (emu_check) {
			Region *s = region_of(op->src), *d = region_of(op->dst);
			size_t at;
			if (!op->stage)
				shadow_host_read(op, op->src, n);
			if (!emu_error && s && s->cell && !(d && d->cell) &&
			    !shadow_written(op->src, n, &at)) {
				char *where = region_describe(op->src + at),
				     *who = shadow_neighbour(op->src + at);
				emu_note(
				    "%s to the host: unwritten output: byte %zu of %zu was "
				    "never written (%s); the bytes before it were written by %s",
				    op->name, at, n, where, who ? who : "no thread");
				free(where);
				free(who);
				emu_error = CUDA_ERROR_LAUNCH_FAILED;
			}
			if (!emu_error)
				shadow_host_write(op, op->dst, n);
		}
		pinned_copy(op);
		if (emu_check && !op->stage)
			shadow_copy_written(op->dst, op->src, n);
		break;
	case OP_SET:
		if (emu_check)
			shadow_host_write(op, op->dst, n);
		for (size_t i = 0; i < n; i += (size_t)op->value_size)
			memcpy(op->dst + i, &op->value, (size_t)op->value_size);
		break;
	case OP_HOST:
		if (op->work)
			library(op);
		else {
			emu_in_host_fn = true;
			pinned_host(op->host_fn, op->host_arg);
			emu_in_host_fn = false;
		}
		break;
	case OP_KERNEL:
	case OP_EMPTY:
		break;
	}
	finish(op);
}

static void
admit(EmuOp *op)
{
	unsigned per = op->cluster.x * op->cluster.y * op->cluster.z;
	Dim g = op->grid, c = op->cluster;

	while (op->next < op->n_unit && op->n_res + (int)per <= op->max_res) {
		uint32_t u = op->order[op->next++], gx = g.x / c.x, gy = g.y / c.y;
		uint32_t ux = u % gx * c.x, uy = u / gx % gy * c.y, uz = u / (gx * gy) * c.z;
		Cluster *cl = emu_alloc(sizeof *cl);
		cl->n = (int)per;
		cl->live_blocks = (int)per;
		for (unsigned i = 0; i < per; i++) {
			uint32_t x = ux + i % c.x, y = uy + i / c.x % c.y, z = uz + i / (c.x * c.y);
			cl->b[i] = block_start(op, x + g.x * (y + g.y * z), cl, i);
			op->res[op->n_res++] = cl->b[i];
		}
	}
}

static void
release_blocks(EmuOp *op)
{
	for (int i = 0; i < op->n_res; i++) {
		EmuBlock *b = op->res[i];
		if (!block_done(b) || b->counted)
			continue;
		b->counted = true;
		if (--b->cluster->live_blocks)
			continue;
		/* A cluster is freed as a whole, because another of its blocks may have read this
		 * block's shared memory until now. */
		Cluster *c = b->cluster;
		for (int k = 0; k < c->n; k++) {
			for (int j = 0; j < op->n_res; j++)
				if (op->res[j] == c->b[k]) {
					op->res[j] = op->res[--op->n_res];
					break;
				}
			block_free(c->b[k]);
		}
		free(c);
		op->n_done++;
		i = -1;
	}
}

void
timeline_drop(void)
{
	for (int i = 0; i < n_running; i++) {
		EmuOp *op = op_at(running[i]);
		for (int k = 0; k < op->n_res; k++) {
			Cluster *c = op->res[k]->cluster;
			if (!--c->n)
				free(c);
			block_free(op->res[k]);
		}
		op->n_res = 0;
	}
	n_running = 0;
	sync_reset(true);
	while (timeline_base < next_seq) {
		EmuOp *op = ring[timeline_base % TIMELINE];
		ring[timeline_base++ % TIMELINE] = NULL;
		op_free(op);
	}
	first_open = timeline_base;
	memset(&host_known, 0, sizeof host_known);
	known_drop(host_acquired);
	host_acquired = NULL;
}

static void
deadlock(void)
{
	static const char *const waits[] = {
		[T_BARRIER] = "waits at __syncthreads for threads that never arrive",
		[T_WARP] = "waits in a warp collective for lanes that never arrive",
		[T_NAMED] = "waits at a named barrier for threads that never arrive",
		[T_GRID] = "waits at a grid barrier for threads that never arrive",
		[T_CLUSTER] = "waits at a cluster barrier for threads that never arrive",
		[T_GRIDDEP] = "waits for a kernel that never ends",
		[T_WGMMA] = "waits for a matrix instruction that other threads of its warpgroup do "
		            "not wait for"
	};

	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < n_running; i++) {
			EmuOp *op = op_at(running[i]);
			for (int k = 0; k < op->n_res; k++)
				for (int t = 0; t < op->res[k]->nt; t++) {
					Thread *x = &op->res[k]->t[t];
					if (x->state == T_DONE || x->state == T_READY ||
					    (pass == 0 && x->state == T_GRIDDEP))
						continue;
					char *text = emu_format("deadlock: %s", waits[x->state]);
					emu_finding(x, CUDA_ERROR_LAUNCH_TIMEOUT, x->at, text);
					free(text);
					return;
				}
		}
	emu_note("nothing queued can run");
	emu_error = CUDA_ERROR_LAUNCH_FAILED;
}

/* Returns whether an operation of a library waits for operations that the host has not queued
 * yet. */
static bool
gated(void)
{
	for (uint64_t s = first_open; s < next_seq; s++) {
		const EmuOp *op = ring[s % TIMELINE];
		if (op->state == OP_QUEUED && op->work && op->work->ready &&
		    !op->work->ready(op->work + 1))
			return true;
	}
	return false;
}

bool
timeline_busy(int device)
{
	for (uint64_t s = first_open; s < next_seq; s++)
		if (ring[s % TIMELINE]->state != OP_DONE && ring[s % TIMELINE]->device == device)
			return true;
	return false;
}

/* Time for which a wait has lasted without progress on any device */
typedef struct StallTimer {
	uint64_t progress; /* value of emu_progress when the timer was last reset */
	long ms;
} StallTimer;

/* Lets other threads of the program call the driver. Returns false when the time limit has
 * passed. */
static bool
wait_for_others(StallTimer *stall)
{
	if (stall->progress != emu_progress)
		*stall = (StallTimer){ .progress = emu_progress };
	if (stall->ms++ >= emu_env("LLMC_EMU_PATIENCE", 60000))
		return false;
	emu_let_others_run();
	return true;
}

/* Waits if another thread of the program may still queue the work that this wait needs. Returns
 * false if there is no such thread, or if the time limit has passed. */
static bool
wait_for_host(StallTimer *stall)
{
	if (emu_error || !gated())
		return false;
	if (wait_for_others(stall))
		return true;
	emu_note("a collective waits for ranks that never call it, or that call another one");
	emu_error = CUDA_ERROR_LAUNCH_TIMEOUT;
	return false;
}

/* Handles the case that all kernels spin. They may wait for a device to which another thread has
 * yet to give work. */
static void
check_spinning(StallTimer *stall)
{
	if (emu_contexts() > 1 && block_spins() > SPIN && !wait_for_others(stall))
		emu_give_up = true;
}

/* Returns a device to suspend for some time, so that the other devices see it arrive late; -1:
 * none. */
static int
held_back(void)
{
	static int device = -1, left;

	if (emu_contexts() < 2)
		return -1;
	if (left-- <= 0) {
		left = (int)emu_random_below(HELD);
		device = emu_random_below(3) ? (int)emu_random_below(8) : -1;
	}
	return device;
}

/* Runs one step of the schedule. Returns false if nothing is left, or after a finding. */
static bool
step(void)
{
	EmuOp *cand[TIMELINE], *early = NULL;
	int n = 0;

	if (emu_error)
		return false;
	emu_signals();
	bool open = false;
	for (uint64_t s = first_open; s < next_seq; s++) {
		EmuOp *op = ring[s % TIMELINE];
		open = open || op->state != OP_DONE;
		if (op->state == OP_QUEUED && startable(op)) {
			if (op->depth)
				early = op;
			cand[n++] = op;
		}
		if (n >= 32)
			break;
	}
	if (!open)
		return false;
	if (early && emu_random_below(8)) {
		start_kernel(early);
		admit(early);
		return true;
	}
	for (int i = 0; i < n_running; i++) {
		EmuOp *op = op_at(running[i]);
		admit(op);
		bool ready = false;
		for (int k = 0; k < op->n_res && !ready; k++)
			ready = block_has_ready(op->res[k]);
		/* A kernel that has not reached its wait is preferred over its predecessor. */
		if (ready && op->depth && emu_random_below(4)) {
			cand[0] = op;
			n = 1;
			break;
		}
		if (ready)
			cand[n++] = op;
	}
	if (!n) {
		if (n_running || !gated())
			deadlock();
		return false;
	}
	int held_device = held_back(), others = 0;
	for (int i = 0; i < n; i++)
		if (cand[i]->device != held_device) {
			EmuOp *first = cand[others];
			cand[others++] = cand[i];
			cand[i] = first;
		}
	EmuOp *op = cand[emu_random_below((uint64_t)(others ? others : n))];
	if (op->state == OP_QUEUED) {
		if (op->kind == OP_KERNEL)
			start_kernel(op);
		else
			start_other(op);
		return !emu_error;
	}
	int k = (int)emu_random_below((uint64_t)op->n_res);
	while (!block_has_ready(op->res[k]))
		k = (k + 1) % op->n_res;
	if (!block_slice(op->res[k]))
		return false;
	release_blocks(op);
	if (op->n_done == op->n_unit)
		finish(op);
	return !emu_error;
}

void
timeline_run(const uint64_t *seq, int n)
{
	StallTimer stall = { 0 };

	for (int i = 0; i < n && !emu_error; i++)
		while (!op_done(seq[i]) && (step() || (!op_done(seq[i]) && wait_for_host(&stall))))
			check_spinning(&stall);
	emu_give_up = false;
}

void
timeline_run_all(void)
{
	StallTimer stall = { 0 };

	while (step() || wait_for_host(&stall))
		check_spinning(&stall);
	emu_give_up = false;
}

void
timeline_run_device(void)
{
	StallTimer stall = { 0 };
	int device = emu_device();

	if (emu_contexts() < 2 || device < 0) {
		timeline_run_all();
		return;
	}
	while (timeline_busy(device) && (step() || wait_for_host(&stall)))
		check_spinning(&stall);
	emu_give_up = false;
}

void
timeline_some(void)
{
	if (emu_random_below(3))
		return;
	for (uint64_t n = emu_random_below(40); n && step(); n--)
		;
}

void
timeline_known(const uint64_t *seq, int n)
{
	if (emu_check)
		for (int i = 0; i < n; i++) {
			EmuOp *op = op_at(seq[i]);
			if (!op || op->state != OP_DONE)
				continue;
			set_join(&host_known, op->any_waited ? &op->after : &op->before);
			set_put(&host_known, op->seq);
			host_acquires(op);
		}
	host_acquired = known_keep(host_acquired, is_new, NULL);
	pinned_settle();
	advance_base();
}

void
timeline_known_all(int device)
{
	if (emu_check)
		for (uint64_t s = timeline_base; s < next_seq; s++)
			if (ring[s % TIMELINE]->state == OP_DONE &&
			    (device < 0 || emu_contexts() < 2 ||
			     ring[s % TIMELINE]->device == device)) {
				set_put(&host_known, s);
				host_acquires(ring[s % TIMELINE]);
			}
	host_acquired = known_keep(host_acquired, is_new, NULL);
	pinned_settle();
	advance_base();
}

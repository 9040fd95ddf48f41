/* Shadow cells: for every two bytes, the last writer and the readers since. A race is an access
 * that is not ordered after the last write of another thread, or a write that is not ordered after
 * all reads, whatever the order in which fibers ran.
 *
 * A word of a cell: block instance (32 bits) | thread (10) | clock (17) | 5 flag bits.
 *
 *   w flags   1, 2: bytes written; 4: by an atomic; 8: by an asynchronous copy that has landed;
 *             16: by an atomic of less than device scope; or, without 4, by a
 *             bulk or tensor copy of that thread
 *   r flags   1, 2: bytes read; 4, 8: bytes ever written; 16: the thread and clock fields are the
 *             number of a set of readers
 *
 * Sets of readers have numbers (reader_sets.c), since many cells share the same set. Set 0 means
 * that threads in several blocks of one launch have read. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

#define WORD(buid, thread, clk)                                                                    \
	((uint64_t)(buid) << 32 | (uint64_t)(thread) << 22 | (uint64_t)(clk) << 5)
#define BUID(x) ((uint32_t)((x) >> 32))
#define THREAD(x) ((unsigned)((x) >> 22) & 1023)
#define CLK(x) ((uint32_t)((x) >> 5) & 0x1ffff)
#define SET(x) ((uint32_t)((x) >> 5) & 0x7ffffff)
enum { W_ATOMIC = 4, W_ASYNC = 8, W_NARROW = 16, W_COPY = 16, R_SET = 16, R_INIT = 12 };

/* ---- pages of large regions that have no cells yet ---- */
static void
materialise(Region *r, size_t page)
{
	size_t c0 = page * 2048, end = (r->bytes + 1) / 2;

	if (!r->lazy || r->page_cells[page])
		return;
	r->page_cells[page] = 1;
	if (!r->page_w[page])
		return;
	for (size_t c = c0; c < c0 + 2048 && c < end; c++)
		r->cell[c] = (Cell){ r->page_w[page] | 3, R_INIT };
}

/* Source positions: the low 31 bits of an address in the kernel's object, or with P_SITE the number
 * of a wrapper's call (emu_site). */
enum { P_SITE = (int)(1u << 31) };

static inline uint32_t
place_of(const void *pc, Site at)
{
	return pc        ? (uint32_t)(uintptr_t)pc & ~(uint32_t)P_SITE
	       : at.file ? emu_site(at) | (uint32_t)P_SITE
	                 : 0;
}

/* Describes the thread of access `other`, and the access's source position if `place` is known. */
static char *
access_text(uint64_t other, uint32_t place)
{
	const EmuOp *op = op_of_buid(BUID(other));
	unsigned nt = op && op->kind == OP_KERNEL ? op->block.x * op->block.y * op->block.z : 0;
	char *who = emu_access_name(BUID(other), (other & W_ASYNC) ? nt : THREAD(other));
	char *line = op && op->kind == OP_KERNEL && place ? emu_place_of(op, place) : NULL;
	char *text = emu_format("; the other: %s%s%s", who, line ? ", " : "", line ? line : "");

	free(who);
	free(line);
	return text;
}

/* place: source position of the other access; 0: unknown */
static void
die_with_place(int code, const void *pc, Site at, const void *p, size_t n, const char *fmt,
               uint64_t other, uint32_t place)
{
	char *where = region_describe(p), *who = other ? access_text(other, place) : NULL;

	emu_die_at(code, pc, at, "%s: %zu bytes, %s%s", fmt, n, where, who ? who : "");
}

static COLD void
written_constant(const Region *r, const void *p, size_t n, const void *pc, Site at)
{
	const EmuOp *op = emu_cur->blk->op;
	size_t off = (size_t)((const char *)p - r->lo);

	for (size_t c = off / 2; r->constant && c < (off + n + 1) / 2; c++)
		if (r->constant[c] == (uint32_t)op->seq)
			die_with_place(
			    CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n,
			    "write to memory that this kernel has read through the read-only path",
			    r->cell[c].r & R_SET ? 0 : r->cell[c].r, r->place[c].r);
}

static bool
set_known(const Thread *t, uint64_t r, uint64_t *culprit)
{
	const uint32_t buid = BUID(r);
	const uint32_t *own = buid == t->blk->buid ? t->vc->c : NULL;

	for (const EmuRun *x = readers_run(buid, SET(r)); x; x = readers_run(buid, x->parent)) {
		const uint32_t first = (x->at >> 17) * 32, clk = x->at & 0x1ffff;
		for (uint32_t m = x->lanes; m; m &= m - 1) {
			uint32_t thread = first + (uint32_t)__builtin_ctz(m);
			if (own ? thread == t->lin || own[thread] >= clk
			        : clock_after(t, buid, thread, clk))
				continue;
			*culprit = WORD(buid, thread, clk);
			return false;
		}
	}
	return true;
}

/* Checks against readers in several blocks. Readers of another launch must be ordered before this
 * launch. Within one launch only a grid barrier or an acquire orders them. */
static bool
launch_known(const Thread *t, uint64_t r)
{
	const EmuOp *op = op_of_buid(BUID(r));

	if (!op)
		return true;
	if (op == t->blk->op)
		return clock_acquired(t);
	return op_before(op->seq, t->blk->op, t->gdc_waited);
}

/* Adds a launch to the readers r and returns the result. Readers in concurrent launches are a set
 * of launches, stored with block instance 0, which no launch has. */
static uint64_t
launches_add(uint64_t r, uint64_t seq)
{
	uint32_t from = SET(r);

	if (BUID(r)) {
		const EmuOp *old = op_of_buid(BUID(r));
		from = old ? launches_with(0, old->seq) : 0;
	}
	return (uint64_t)launches_with(from, seq) << 5 | R_SET;
}

/* Returns whether a launch in the set is not ordered before op, and if so sets *first to one. */
static bool
launches_open(uint64_t r, const EmuOp *op, bool waited, const EmuOp **first)
{
	for (uint32_t id = SET(r); id;) {
		const EmuOp *o = op_at(launches_next(&id));
		if (o && o != op && !op_before(o->seq, op, waited)) {
			*first = o;
			return true;
		}
	}
	return false;
}

static bool
launches_has(uint64_t r, const EmuOp *op)
{
	for (uint32_t id = SET(r); id;)
		if (launches_next(&id) == op->seq)
			return true;
	return false;
}

static inline void
read_cell(Cell *c, Thread *t, uint64_t me, unsigned mask)
{
	uint64_t r = c->r;
	unsigned keep = (unsigned)r & R_INIT, both = ((unsigned)r & 3) | mask;

	if (!(r >> 5) || (r | 31) == (me | 31)) {
		c->r = me | keep | both;
		return;
	}
	if ((r & R_SET) && !SET(r) && BUID(r) == t->blk->op->buid0 &&
	    both == ((unsigned)r & 3)) /* several blocks of this launch are recorded already */
		return;
	if (BUID(r) == t->blk->buid) {
		if (r & R_SET) {
			uint64_t unknown;
			if (set_known(t, r, &unknown)) {
				c->r = me | keep | mask;
				return;
			}
		} else if (THREAD(r) == THREAD(me) || clock_after(t, BUID(r), THREAD(r), CLK(r))) {
			c->r = me | keep | mask;
			return;
		}
		c->r = (uint64_t)t->blk->buid << 32 |
		       (uint64_t)readers_add(BUID(r), SET(r), !(r & R_SET), SET(me)) << 5 | R_SET |
		       keep | both;
		return;
	}
	const EmuOp *op = t->blk->op, *open;
	if (!BUID(r)) {
		if (!launches_has(r, op))
			c->r = (launches_open(r, op, t->gdc_waited, &open)
			            ? launches_add(r, op->seq) | both
			            : me | mask) |
			       keep;
	} else if (BUID(r) - op->buid0 < op->n_block) /* another block of this launch */
		c->r = (uint64_t)op->buid0 << 32 | R_SET | keep | both;
	else if (!op_of_buid(BUID(r)) || op_before(op_of_buid(BUID(r))->seq, op, t->gdc_waited))
		c->r = me | keep | mask;
	else
		c->r = launches_add(r, op->seq) | keep | both;
}

/* Returns whether two atomics are synchronised. They race if the scope of either does not include
 * the other's thread. */
static bool
in_scope(const Thread *t, uint64_t w, int scope)
{
	const Cluster *c = t->blk->cluster;
	const EmuOp *by = emu_contexts() > 1 ? op_of_buid(BUID(w)) : NULL;

	if (by && by->device != t->blk->op->device)
		return scope == ACCESS_SYSTEM && !(w & W_NARROW);
	if (scope == ACCESS_SYSTEM)
		scope = ACCESS_DEVICE;
	if ((scope == 1 && !(w & W_NARROW)) || BUID(w) == t->blk->buid)
		return true;
	for (int i = 0; scope < 3 && i < c->n; i++)
		if (c->b[i]->buid == BUID(w))
			return true;
	return false;
}

/* Checks an access to shared memory of another block of the cluster. That block must have started,
 * and must not exit before the access is complete (mbar_leave checks this). */
static COLD void
shadow_peer(Thread *t, EmuBlock *o, const void *p, size_t n, const void *pc, Site at)
{
	if (!clock_after_any(t, o->buid))
		die_with_place(
		    CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n,
		    "access to another block's shared memory, not ordered after the start "
		    "of that block (cluster_sync)",
		    0, 0);
	if (!o->far_clk[t->cluster_rank])
		o->far_clk[t->cluster_rank] = emu_alloc(sizeof(uint32_t) * (size_t)t->blk->nt);
	o->far_clk[t->cluster_rank][t->lin] = t->clk;
	o->far_at = at;
	o->far_pc = pc;
}

/* Checks an access to memory of another device. It needs peer access, and atomics need system
 * scope. */
static COLD void
shadow_far(Thread *t, const Region *r, const void *p, size_t n, bool narrow, const void *pc,
           Site at)
{
	int from = t->blk->op->device;

	if (!emu_peers(from, r->device)) {
		char *where = region_describe(p);
		emu_die_at(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at,
		           "access from device %d to memory of device %d without peer access "
		           "(cuCtxEnablePeerAccess): %zu bytes, %s",
		           from, r->device, n, where);
	}
	if (narrow)
		die_with_place(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n,
		               "an atomic without the system's scope on memory of another device",
		               0, 0);
}

/* Returns the thread of this block or cluster that an entry of a cell names. NULL: the entry names
 * another cluster, a copy or a matrix instruction. */
static const Thread *
thread_of(const EmuBlock *b, uint64_t word)
{
	for (int i = 0; i < b->cluster->n; i++) {
		const EmuBlock *o = b->cluster->b[i];
		if (o->buid == BUID(word))
			return THREAD(word) < (unsigned)o->nt ? &o->t[THREAD(word)] : NULL;
	}
	return NULL;
}

static COLD void
no_proxy_fence(const Region *g, const Cell *c, bool write, bool wrote, uint64_t other,
               uint32_t place, Site at)
{
	char *what = emu_format(
	    "asynchronous %s of memory that a thread %s without a later fence_proxy_async%s",
	    write ? "write" : "read", wrote ? "wrote" : "read",
	    g->kind == R_SHARED ? "" : "_global");

	die_with_place(CUDA_ERROR_LAUNCH_FAILED, NULL, at, g->lo + (c - g->cell) * 2, 2, what,
	               other, place);
}

/* Returns whether a proxy fence follows the read. It may be one of the reading thread, or one of
 * the issuing thread that is ordered after the read. */
static bool
read_fenced(const Thread *t, uint64_t r, bool global)
{
	const Thread *by = thread_of(t->blk, r);

	return !by || clock_proxy_fenced(by, by, CLK(r), global) ||
	       clock_proxy_fenced(t, by, CLK(r), global);
}

/* Checks one cell of a bulk or tensor copy, which accesses memory through the asynchronous proxy. A
 * proxy fence must follow earlier writes by threads, and earlier reads of memory that the copy
 * overwrites. Threads of other clusters are not checked. */
static void
copy_fenced(const Thread *t, const Region *g, const Cell *c, const CellSites *place, unsigned mask,
            bool write, Site at)
{
	const bool global = g->kind != R_SHARED;
	const uint64_t w = c->w, r = c->r;
	const Thread *by = (w & mask) && !(w & W_ASYNC) && (w & (W_ATOMIC | W_COPY)) != W_COPY
	                       ? thread_of(t->blk, w)
	                       : NULL;

	if (by && !clock_proxy_fenced(by, by, CLK(w), global))
		no_proxy_fence(g, c, write, true, w, place->w, at);
	if (!write || !(r & mask) || !(r >> 5))
		return;
	for (const EmuRun *x = r & R_SET && BUID(r) ? readers_run(BUID(r), SET(r)) : NULL; x;
	     x = readers_run(BUID(r), x->parent))
		for (uint32_t m = x->lanes; m; m &= m - 1) {
			uint64_t one =
			    WORD(BUID(r), (x->at >> 17) * 32 + (uint32_t)__builtin_ctz(m),
			         x->at & 0x1ffff);
			if (!read_fenced(t, one, global))
				no_proxy_fence(g, c, true, false, one, place->r, at);
		}
	if (!(r & R_SET) && !read_fenced(t, r, global))
		no_proxy_fence(g, c, true, false, r & ~31ull, place->r, at);
}

/* Cached results of shadow_access for the running thread, used by shadow_read and shadow_write
 * below */
typedef struct {
	uint64_t me, before, after;
} ShadowStep; /* how a read changes a cell's readers */
static struct {
	ShadowStep step[16];
	struct {
		const EmuOp *op;
		bool waited;
		uint32_t buid, n;
	} over[4]; /* launches whose writes are all ordered before the writes of op */
	unsigned n_over;
	uint64_t free_me, free; /* readers after which the thread is ordered */
	Region *region[4];      /* most recently used first */
} seen;

static inline ShadowStep *
step_of(uint64_t r)
{
	return &seen.step[r * 0x9e3779b97f4a7c15ull >> 60];
}

/* One access of a thread, as shadow_access checks it */
typedef struct Access {
	Thread *t;
	const void *p;
	size_t n;
	bool write, by_copy,
	    system; /* by_copy: by an asynchronous copy; system: atomic of system scope */
	int atomic;
	const void *pc;
	Site at;
	uint64_t me;
	uint32_t place;
} Access;

static void
illegal(const Access *x, const char *what)
{
	die_with_place(CUDA_ERROR_ILLEGAL_ADDRESS, x->pc, x->at, x->p, x->n, what, 0, 0);
}

/* Checks bounds within shared memory. */
static void
check_shared(const Access *x, Region *r)
{
	Thread *t = x->t;
	EmuBlock *o = r->blk;

	if (o != t->blk && (!o || o->cluster != t->blk->cluster))
		illegal(x, "access to shared memory of a block outside of the cluster");
	if (!o->live)
		illegal(x, "access to shared memory of a block that has left the kernel");
	if (unlikely(o != t->blk && !x->by_copy))
		shadow_peer(t, o, x->p, x->n, x->pc, x->at);
	if (!shared_within(r, x->p, x->n))
		illegal(x, x->write ? "out-of-bounds write to shared memory"
		                    : "out-of-bounds read of shared memory");
}

/* Checks that the range lies in one region. Returns it, or NULL if it has no shadow cells. */
static Region *
region_checked(const Access *x)
{
	const char *a = x->p;
	Region *r = region_of(x->p);

	if (unlikely(!r)) {
		if (fiber_owns(x->p))
			illegal(x, "access to another thread's local memory");
		illegal(x, x->write ? "out-of-bounds write" : "out-of-bounds read");
		return NULL;
	}
	if (unlikely(a + x->n > r->hi))
		illegal(x, x->write ? "out-of-bounds write" : "out-of-bounds read");
	if (r->kind == R_SHARED)
		check_shared(x, r);
	if (!r->cell) {
		if (r->kind == R_PINNED)
			pinned_used(x->p, x->n, x->write);
		return NULL;
	}
	if (unlikely(r->device >= 0 && r->device != x->t->blk->op->device))
		shadow_far(x->t, r, x->p, x->n, x->atomic && !x->system, x->pc, x->at);
	return r;
}

/* Allocates the cells of pages that have only a writer so far. Returns false for a read, because
 * such pages do not record readers. */
static bool
pages_ready(const Access *x, Region *r, size_t off)
{
	size_t page = off / 4096, last = (off + x->n - 1) / 4096;

	for (; page <= last; page++) {
		if (r->page_cells[page])
			continue;
		if (x->write)
			materialise(r, page);
		else if (!r->page_w[page])
			die_with_place(CUDA_ERROR_LAUNCH_FAILED, x->pc, x->at, x->p, x->n,
			               "read of unwritten memory", 0, 0);
		else if (!clock_after(x->t, BUID(r->page_w[page]), 0, 1))
			die_with_place(CUDA_ERROR_LAUNCH_FAILED, x->pc, x->at, x->p, x->n,
			               "race: read not ordered after the write", r->page_w[page],
			               0);
		else
			return false;
	}
	return true;
}

/* Checks that the access is ordered after w, the last write of a cell. */
static inline void
check_writer(const Access *x, uint64_t w, unsigned mask, const CellSites *here)
{
	Thread *t = x->t;

	if (!(w & mask) || !((w ^ x->me) >> 22 || (w & W_ASYNC)))
		return;
	if (x->atomic && (w & W_ATOMIC) && in_scope(t, w, x->system ? ACCESS_SYSTEM : x->atomic))
		return;
	if (clock_after(t, BUID(w), w & W_ASYNC ? (unsigned)CLOCK_ASYNC(t->blk) : THREAD(w),
	                CLK(w)))
		return;
	die_with_place(CUDA_ERROR_LAUNCH_FAILED, x->pc, x->at, x->p, x->n,
	               x->atomic && (w & W_ATOMIC)
	                   ? "race: two atomics, and the scope of one excludes the thread of the "
	                     "other"
	               : x->write ? "race: write not ordered after another write"
	                          : "race: read not ordered after the write",
	               w, here->w);
}

/* Checks that a write is ordered after rd, the readers of a cell. */
static inline void
check_readers(const Access *x, uint64_t rd, const CellSites *here)
{
	Thread *t = x->t;
	uint64_t culprit = rd & ~31ull;
	const EmuOp *open = NULL;
	bool ok = !(rd & R_SET)
	              ? (rd ^ x->me) >> 22 == 0 || clock_after(t, BUID(rd), THREAD(rd), CLK(rd))
	          : !SET(rd) ? launch_known(t, rd)
	          : BUID(rd) ? set_known(t, rd, &culprit)
	                     : !launches_open(rd, t->blk->op, t->gdc_waited, &open);

	if (open)
		culprit = WORD(open->buid0, 0, 1) | W_ASYNC;
	if (!ok)
		die_with_place(CUDA_ERROR_LAUNCH_FAILED, x->pc, x->at, x->p, x->n,
		               "race: write not ordered after the read",
		               rd & R_SET && !SET(rd) ? culprit | W_ASYNC : culprit, here->r);
}

/* Records a write to the bytes `mask` of a cell. */
static inline void
note_write(const Access *x, Region *r, Cell *c, CellSites *here, unsigned mask)
{
	const uint64_t rd = c->r;

	if ((rd & mask) && rd >> 5)
		check_readers(x, rd, here);
	if (unlikely(x->by_copy))
		copy_fenced(x->t, r, c, here, mask, true, x->at);
	here->w = x->place;
	c->w = x->me | mask |
	       (x->atomic    ? x->atomic > 1 ? W_ATOMIC | W_NARROW : W_ATOMIC
	        : x->by_copy ? W_COPY
	                     : 0);
	c->r = (rd & 3 & ~mask ? rd & ~(uint64_t)mask : rd & R_INIT) | (uint64_t)mask << 2;
}

void
shadow_access(const void *p, size_t n, bool write, int atomic, const void *pc, Site at)
{
	Thread *t = emu_cur;
	Access x = { .t = t,
		     .p = p,
		     .n = n,
		     .write = write,
		     .by_copy = atomic == ACCESS_COPY,
		     .system = atomic == ACCESS_SYSTEM,
		     .pc = pc,
		     .at = at };

	x.atomic = x.system ? ACCESS_DEVICE : x.by_copy ? 0 : atomic;
	if (!t || !t->blk || (size_t)((const char *)p - t->stack) < emu_stack_bytes)
		return;
	Region *r = region_checked(&x);
	if (!r)
		return;
	size_t off = (size_t)((const char *)p - r->lo);
	if (r->lazy && !pages_ready(&x, r, off))
		return;
	x.me = WORD(t->blk->buid, t->lin, t->clk);
	x.place = place_of(pc, at);
	/* Neighbouring cells usually have the same history, so the last result is kept. */
	uint64_t known = 0, before = 1, after = 0;
	if (write && unlikely(t->blk->op->any_constant))
		written_constant(r, p, n, pc, at);
	for (size_t b = off; b < off + n;) {
		unsigned mask = b & 1 ? 2 : off + n - b >= 2 ? 3 : 1;
		Cell *c = r->cell + b / 2;
		CellSites *here = r->place + b / 2;
		uint64_t w = c->w, rd = c->r;
		b += b & 1 ? 1 : 2;
		if (!write && ((rd >> 2) & mask) != mask)
			die_with_place(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n,
			               w & 3
			                   ? "read of the target of an asynchronous copy that has "
			                     "not been waited for"
			                   : "read of unwritten memory",
			               w, here->w);
		if (w != known)
			check_writer(&x, w, mask, here);
		known = mask == 3 ? w : 0;
		if (write) {
			note_write(&x, r, c, here, mask);
			continue;
		}
		if (unlikely(x.by_copy))
			copy_fenced(t, r, c, here, mask, false, at);
		if (x.atomic)
			continue;
		here->r = x.place;
		if (rd == before && mask == 3) {
			c->r = after;
			continue;
		}
		read_cell(c, t, x.me, mask);
		before = mask == 3 ? rd : 1;
		after = c->r;
		if (mask == 3)
			*step_of(rd) = (ShadowStep){ x.me, rd, after };
	}
}

/* ---- fast path: most accesses find a cell like the previous one; all other accesses take the slow
 * path ---- */

void
shadow_forget(void)
{
	memset(&seen, 0, sizeof seen);
}

void
shadow_more_ordered(void)
{
	memset(seen.step, 0, sizeof seen.step);
}

static inline bool
is_over(const Thread *t, uint32_t buid)
{
	for (int i = 0; i < 4; i++)
		if (buid - seen.over[i].buid < seen.over[i].n && seen.over[i].op == t->blk->op &&
		    seen.over[i].waited == t->gdc_waited)
			return true;
	return false;
}

static inline bool
write_is_known(const Thread *t, uint64_t w, uint64_t me)
{
	if (!(w & 3) || ((w ^ me) >> 22 == 0 && !(w & W_ASYNC)))
		return true;
	if (BUID(w) == t->blk->buid)
		return t->vc->c[w & W_ASYNC ? (unsigned)CLOCK_ASYNC(t->blk) : THREAD(w)] >= CLK(w);
	return !(w & W_ASYNC) && is_over(t, BUID(w));
}

static inline bool
readers_are_known(const Thread *t, uint64_t r, uint64_t me)
{
	if (!(r & 3) || !(r >> 5) || (seen.free == r && seen.free_me == me))
		return true;
	if (BUID(r) != t->blk->buid)
		return (!(r & R_SET) || !SET(r)) && is_over(t, BUID(r));
	return !(r & R_SET) && ((r ^ me) >> 22 == 0 || t->vc->c[THREAD(r)] >= CLK(r));
}

/* Returns the cells of an access and their source positions, if the access is in the same object or
 * region as the previous one. *lazy: set if the page has no cells. */
static inline Cell *
cells_of(const Thread *t, const char *p, size_t n, CellSites **place, uint64_t *lazy)
{
	const EmuBlock *b = t->blk;
	size_t off = (size_t)(p - b->arena->lo);

	if (((uintptr_t)p | n) & 1)
		return NULL;
	if (off - b->span_lo < b->span_n && off - b->span_lo + n <= b->span_n) {
		*place = b->arena->place + off / 2;
		return b->arena->cell + off / 2;
	}
	Region *r = seen.region[0];
	if (!r)
		return NULL;
	if (unlikely(p < r->lo || p + n > r->hi)) {
		int i = 1;
		while (i < 4 && (r = seen.region[i]) && (p < r->lo || p + n > r->hi))
			i++;
		if (i == 4 || !r)
			return NULL;
		seen.region[i] = seen.region[0];
		seen.region[0] = r;
	}
	off = (size_t)(p - r->lo);
	if (unlikely(r->lazy)) {
		if (off / 4096 != (off + n - 1) / 4096)
			return NULL;
		if (!r->page_cells[off / 4096] && !(*lazy = r->page_w[off / 4096]))
			return NULL;
	}
	*place = r->place + off / 2;
	return r->cell + off / 2;
}

/* Updates the cache after the slow path. w, r: words of a cell before the access. */
static COLD void
remember(Thread *t, const void *p, uint64_t w, uint64_t r, bool write)
{
	Region *g = region_of(p);
	const EmuOp *mine = t->blk->op;
	uint64_t other[2] = { w & 3 ? w : 0,
		              write && r & 3 && (!(r & R_SET) || !SET(r)) ? r & ~31ull : 0 };

	if (g && g->kind == R_SHARED && g->blk == t->blk) {
		shared_span(t->blk, p);
	} else if (g && g->cell && g->kind == R_DEVICE && g != seen.region[0]) {
		int i = 1;
		while (i < 3 && seen.region[i] && seen.region[i] != g)
			i++;
		for (; i > 0; i--)
			seen.region[i] = seen.region[i - 1];
		seen.region[0] = g;
	}
	for (int i = 0; i < 2; i++) {
		const uint32_t buid = BUID(other[i]);
		if (!other[i] || buid - mine->buid0 < mine->n_block || is_over(t, buid))
			continue;
		const EmuOp *o = op_of_buid(buid);
		if (o && !op_before(o->seq, mine, t->gdc_waited))
			continue;
		unsigned k = seen.n_over++ % 4;
		seen.over[k].op = mine;
		seen.over[k].waited = t->gdc_waited;
		/* the operation is forgotten, so all earlier ones are ordered before op too */
		seen.over[k].buid = o ? o->buid0 : 0;
		seen.over[k].n = o ? o->n_block : buid + 1;
	}
	if (write && r & R_SET && SET(r)) {
		seen.free = r;
		seen.free_me = WORD(t->blk->buid, t->lin, t->clk);
	}
}

static __attribute__((noinline)) void
long_way(Thread *t, const void *p, size_t n, bool write, const void *pc, Site at)
{
	uint64_t w = 0, r = 0;

	if (t && t->blk) {
		Region *g = region_of(p);
		if (g && g->cell && (const char *)p + n <= g->hi) {
			size_t off = (size_t)((const char *)p - g->lo);
			if (g->lazy && !g->page_cells[off / 4096]) {
				w = g->page_w[off / 4096] | 3;
			} else {
				w = g->cell[off / 2].w;
				r = g->cell[off / 2].r;
			}
		}
	}
	shadow_access(p, n, write, false, pc, at);
	if (t && t->blk)
		remember(t, p, w, r, write);
}

void
shadow_read(const void *p, size_t n, const void *pc, Site at)
{
	Thread *t = emu_cur;
	uint64_t lazy = 0;

	if (unlikely(!t || !t->blk)) {
		long_way(t, p, n, false, pc, at);
		return;
	}
	const uint64_t me = WORD(t->blk->buid, t->lin, t->clk);
	const uint32_t place = place_of(pc, at);
	CellSites *here = NULL;
	Cell *c = cells_of(t, p, n, &here, &lazy);
	if (lazy && is_over(t, BUID(lazy)))
		return;
	if (unlikely(!c || lazy))
		goto slow;
	for (size_t i = 0; i < n / 2; i++) {
		uint64_t w = c[i].w, r = c[i].r;
		if ((r & R_INIT) != R_INIT || !write_is_known(t, w, me))
			goto slow;
		here[i].r = place;
		ShadowStep *s = step_of(r);
		if (s->before == r && s->me == me) {
			c[i].r = s->after;
		} else if (!(r >> 5) || ((r ^ me) >> 5 == 0 && !(r & R_SET))) {
			c[i].r = me | R_INIT | 3;
		} else {
			read_cell(&c[i], t, me, 3);
			*s = (ShadowStep){ me, r, c[i].r };
		}
	}
	return;
slow:
	long_way(t, p, n, false, pc, at);
}

void
shadow_write(const void *p, size_t n, const void *pc, Site at)
{
	Thread *t = emu_cur;
	uint64_t lazy = 0;

	if (unlikely(!t || !t->blk)) {
		long_way(t, p, n, true, pc, at);
		return;
	}
	const uint64_t me = WORD(t->blk->buid, t->lin, t->clk);
	CellSites *here = NULL;
	Cell *c = cells_of(t, p, n, &here, &lazy);
	bool ok = c && !lazy && !t->blk->op->any_constant;
	for (size_t i = 0; ok && i < n / 2; i++)
		ok = write_is_known(t, c[i].w, me) && readers_are_known(t, c[i].r, me);
	if (unlikely(!ok)) {
		long_way(t, p, n, true, pc, at);
		return;
	}
	const uint32_t place = place_of(pc, at);
	for (size_t i = 0; i < n / 2; i++) {
		c[i] = (Cell){ me | 3, R_INIT };
		here[i].w = place;
	}
}

void
shadow_read_only(const void *p, size_t n, Site at)
{
	Region *r = region_of(p);
	EmuOp *op = emu_cur->blk->op;

	if (!r || !r->cell || r->kind != R_DEVICE)
		return;
	for (size_t off = (size_t)((const char *)p - r->lo), c = off / 2; c < (off + n + 1) / 2;
	     c++)
		if ((r->cell[c].w & 3) && BUID(r->cell[c].w) - op->buid0 < op->n_block)
			die_with_place(
			    CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n,
			    "read through the read-only path of memory that this kernel writes",
			    r->cell[c].w, r->place[c].w);
	op->any_constant = true;
	region_constant(r, p, n, (uint32_t)op->seq);
}

void
shadow_clear(Region *r, size_t off, size_t n)
{
	if (r->cell && n)
		memset(r->cell + off / 2, 0, ((off + n + 1) / 2 - off / 2) * sizeof(Cell));
}

void
shadow_inflight(void *p, size_t n)
{
	Region *r = region_of(p);

	if (!r || !r->cell)
		return;
	size_t off = (size_t)((char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++)
		r->cell[c].r &= ~(uint64_t)R_INIT;
}

/* Records that the block's asynchronous copies wrote the bytes of a completed bulk copy. A thread
 * that waits for the mbarrier acquires the clock of these copies. */
void
shadow_async_write(EmuBlock *b, void *p, size_t n, Site at)
{
	Region *r = region_of(p);

	if (!r || !r->cell)
		return;
	size_t off = (size_t)((char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++) {
		r->cell[c] = (Cell){ WORD(b->buid, 0, b->async_clk) | W_ASYNC | 3, R_INIT };
		r->place[c].w = place_of(NULL, at);
	}
}

/* Registers a later read of shared memory by a matrix instruction or bulk store. The bytes must
 * already have been written, by copies or by threads with a proxy fence. No thread may write them
 * before it is ordered after the reader (entry `slot` at `clk`). */
void
shadow_async_read(const void *p, size_t n, int slot, uint32_t clk, Site at)
{
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	Region *r = region_of(p);

	if (!r || r->kind != R_SHARED || r->blk != b || !shared_within(r, p, n))
		die_with_place(CUDA_ERROR_ILLEGAL_ADDRESS, NULL, at, p, n,
		               "asynchronous read outside of the block's shared memory", 0, 0);
	uint64_t me = WORD(b->buid, slot, clk);
	size_t off = (size_t)((const char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++) {
		Cell *x = r->cell + c;
		CellSites *here = r->place + c;
		uint64_t w = x->w;
		if ((x->r & R_INIT) != R_INIT)
			die_with_place(CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n,
			               w & 3 ? "asynchronous read of the target of a copy that has "
			                       "not been waited for"
			                     : "asynchronous read of unwritten memory",
			               w, here->w);
		if ((w & 3) && ((w & W_ASYNC) || BUID(w) != b->buid || THREAD(w) != t->lin) &&
		    !clock_after(t, BUID(w), w & W_ASYNC ? (unsigned)CLOCK_ASYNC(b) : THREAD(w),
		                 CLK(w)))
			die_with_place(CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n,
			               "race: asynchronous read not ordered after the write", w,
			               here->w);
		if ((w & 3) && !(w & W_ASYNC) && BUID(w) == b->buid &&
		    !clock_proxy_fenced(&b->t[THREAD(w)], &b->t[THREAD(w)], CLK(w), false))
			die_with_place(CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n,
			               "asynchronous read of memory that a thread wrote without a "
			               "later fence_proxy_async",
			               w, here->w);
		here->r = place_of(NULL, at);
		if ((x->r | 31) != (me | 31) || (x->r & 3) != 3)
			read_cell(x, t, me, 3);
	}
}

/* ---- copies, fills and the host ---- */

static void
host_race(EmuOp *op, const char *p, uint64_t other, uint32_t place, const char *what)
{
	char *where = region_describe(p), *who = access_text(other, place);

	emu_note("%s: %s %s%s", op->name, what, where, who);
	free(where);
	free(who);
	emu_error = CUDA_ERROR_LAUNCH_FAILED;
}

static bool
host_after(const EmuOp *op, uint64_t word)
{
	const EmuOp *w = op_of_buid(BUID(word));

	return !w || w == op || op_before(w->seq, op, true);
}

void
shadow_host_write(EmuOp *op, void *p, size_t n)
{
	Region *r = region_of(p);
	uint64_t me = WORD(op->buid0, 0, 1);

	if (!r || !r->cell || !n)
		return;
	size_t off = (size_t)((char *)p - r->lo), c = off / 2, end = (off + n + 1) / 2;
	while (c < end) {
		size_t page = c / 2048;
		if (r->lazy && !r->page_cells[page]) {
			if (c % 2048 == 0 && end - c >= 2048) {
				if (r->page_w[page] && !host_after(op, r->page_w[page])) {
					host_race(op, r->lo + c * 2, r->page_w[page], 0,
					          "race: write not ordered after another write");
					return;
				}
				r->page_w[page] = me;
				c += 2048;
				continue;
			}
			materialise(r, page);
		}
		Cell *x = r->cell + c;
		unsigned mask =
		    (c == off / 2 && (off & 1) ? 2 : 3) & (c == end - 1 && (off + n) & 1 ? 1 : 3);
		if ((x->w & 3) && !host_after(op, x->w)) {
			host_race(op, r->lo + c * 2, x->w, r->place[c].w,
			          "race: write not ordered after another write");
			return;
		}
		const EmuOp *open = NULL;
		if ((x->r & 3) && x->r >> 5 &&
		    (BUID(x->r) ? !host_after(op, x->r) : launches_open(x->r, op, true, &open))) {
			uint64_t other = open           ? (uint64_t)open->buid0 << 32 | 0xffc00000u
			                 : x->r & R_SET ? x->r | 0xffc00000u
			                                : x->r;
			host_race(op, r->lo + c * 2, other, r->place[c].r,
			          "race: write not ordered after the read");
			return;
		}
		x->w = me | mask;
		x->r = (x->r & R_INIT) | (uint64_t)mask << 2;
		c++;
	}
}

void
shadow_host_read(EmuOp *op, const void *p, size_t n)
{
	Region *r = region_of(p);

	if (!r || !r->cell || !n)
		return;
	size_t off = (size_t)((const char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++) {
		uint64_t w = r->cell[c].w;
		if (r->lazy && !r->page_cells[c / 2048])
			w = r->page_w[c / 2048] ? r->page_w[c / 2048] | 3 : 0;
		if ((w & 3) && !host_after(op, w)) {
			host_race(op, r->lo + c * 2, w, r->place[c].w,
			          "race: read not ordered after the write");
			return;
		}
		if (!r->lazy) {
			uint64_t rd = r->cell[c].r;
			const EmuOp *open;
			bool others =
			    (rd & 3) && rd >> 5 &&
			    (BUID(rd) ? !host_after(op, rd) : launches_open(rd, op, true, &open));
			r->cell[c].r =
			    (rd & R_INIT) |
			    (others ? launches_add(rd, op->seq) : WORD(op->buid0, 0, 1)) | 3;
		}
	}
}

bool
shadow_written(const void *p, size_t n, size_t *at)
{
	Region *r = region_of(p);

	if (!r || !r->cell)
		return true;
	size_t off = (size_t)((const char *)p - r->lo);
	for (size_t b = off; b < off + n; b++) {
		bool ok = r->lazy && !r->page_cells[b / 4096]
		              ? r->page_w[b / 4096] != 0
		              : r->cell[b / 2].r >> (2 + (b & 1)) & 1;
		if (!ok) {
			*at = b - off;
			return false;
		}
	}
	return true;
}

/* Called after a copy between device addresses. Marks target bytes as unwritten if their source
 * bytes are unwritten. */
void
shadow_copy_written(void *dst, const void *src, size_t n)
{
	Region *d = region_of(dst);
	size_t at, done = 0;

	while (d && d->cell && done < n &&
	       !shadow_written((const char *)src + done, n - done, &at)) {
		size_t b = (size_t)((char *)dst - d->lo) + done + at;
		materialise(d, b / 4096);
		d->cell[b / 2].r &= ~(4ull << (b & 1));
		done += at + 1;
	}
}

/* Returns the writer of the nearest bytes before an unwritten position, as allocated text. That
 * thread should probably have written the position too. NULL: no written bytes nearby. */
char *
shadow_neighbour(const void *p)
{
	Region *r = region_of(p);

	if (!r || !r->cell || r->lazy)
		return NULL;
	size_t c = (size_t)((const char *)p - r->lo) / 2;
	for (int i = 0; i < 2048 && c > 0; i++, c--)
		if (r->cell[c].w & 3)
			return emu_access_name(BUID(r->cell[c].w), THREAD(r->cell[c].w));
	return NULL;
}

bool
shadow_read_since(const Region *r, const char *p, size_t n, uint32_t buid, uint64_t seq)
{
	const size_t off = (size_t)(p - r->lo);

	for (size_t c = off / 2; c < (off + n + 1) / 2; c++) {
		const uint64_t word = r->cell[c].r;
		if (BUID(word) >= buid || BUID(r->cell[c].w) >= buid)
			return true;
		for (uint32_t id = !BUID(word) && word & R_SET ? SET(word) : 0; id;)
			if (launches_next(&id) >= seq)
				return true;
	}
	return false;
}

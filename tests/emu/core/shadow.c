/* Shadow cells: for every two bytes who wrote last and who read since. An access that nothing orders after the last write of
 * another thread, or a write not ordered after all reads, is a race, whatever the order in which the fibers happened to run.
 *
 * A word of a cell: block instance (32 bits) | thread (10) | clock (17) | 5 flag bits.
 *   w flags: 1, 2 bytes written; 4 by an atomic; 8 by an asynchronous copy
 *   r flags: 1, 2 bytes read; 4, 8 bytes ever written; 16 the thread and clock fields are the number of a set of readers
 * Reader sets are interned, since many cells have the same readers. Set 0 stands for readers in several blocks of one launch. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

#define WORD(buid, thread, clk) ((uint64_t)(buid) << 32 | (uint64_t)(thread) << 22 | (uint64_t)(clk) << 5)
#define BUID(x) ((uint32_t)((x) >> 32))
#define THREAD(x) ((unsigned)((x) >> 22) & 1023)
#define CLK(x) ((uint32_t)((x) >> 5) & 0x1ffff)
#define SET(x) ((uint32_t)((x) >> 5) & 0x7ffffff)
enum { W_ATOMIC = 4, W_ASYNC = 8, R_SET = 16, R_INIT = 12 };
enum { MAX_SETS = 1 << 17, MEMO = 1 << 18 };

/* ---- interned sets of readers of one block: entries thread << 17 | clock, oldest first ---- */
typedef struct { int n; uint32_t e[]; } Readers;
static Readers *set[MAX_SETS];
static uint32_t set_base = 1, n_set;
static struct { uint64_t key; uint32_t id; } memo[MEMO];

static Readers *
readers(uint32_t id)
{
	return id >= set_base && id < set_base + n_set ? set[id - set_base] : NULL;
}

/* from: the cell's r word, a single reader or a set; e: one more. */
static uint32_t
readers_add(uint64_t from, uint32_t e)
{
	uint64_t key = (from >> 5 & 0x7ffffff) << 28 | (uint64_t)e << 1 | (from & R_SET ? 1 : 0);
	uint32_t h = (uint32_t)(key * 0x9e3779b97f4a7c15ull >> 46);

	key |= 1ull << 63;
	if (memo[h].key == key && readers(memo[h].id))
		return memo[h].id;
	if (n_set == MAX_SETS - 1) { /* forget all: cells that still name old sets lose their readers */
		for (uint32_t i = 0; i < n_set; i++)
			free(set[i]);
		set_base += n_set;
		n_set = 0;
	}
	Readers *old = from & R_SET ? readers(SET(from)) : NULL;
	uint32_t single = SET(from);
	int n = old ? old->n : from & R_SET ? 0 : 1;
	const uint32_t *src = old ? old->e : &single;
	for (int i = 0; i < n; i++)
		if (src[i] == e && old)
			return memo[h].key = key, memo[h].id = SET(from);
	Readers *s = emu_alloc(sizeof *s + sizeof s->e[0] * (size_t)(n + 1));
	for (int i = 0; i < n; i++)
		if (src[i] >> 17 != e >> 17)
			s->e[s->n++] = src[i];
	s->e[s->n++] = e;
	set[n_set] = s;
	memo[h].key = key;
	memo[h].id = set_base + n_set++;
	return memo[h].id;
}

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

static void
text_and_die(int code, const void *pc, Site at, const void *p, size_t n, const char *fmt, uint64_t other)
{
	char *where = region_describe(p);
	Op *op = op_of_buid(BUID(other));
	unsigned nt = op && op->kind == OP_KERNEL ? op->block.x * op->block.y * op->block.z : 0;
	char *who = other ? emu_who_uid(BUID(other), (other & W_ASYNC) ? nt : THREAD(other)) : NULL;

	emu_die_at(code, pc, at, "%s: %zu bytes %s%s%s", fmt, n, where, who ? "; the other: " : "", who ? who : "");
}

static bool
set_known(const Thread *t, uint64_t r, uint64_t *culprit)
{
	const Readers *s = readers(SET(r));

	if (!s)
		return true;
	for (int i = 0; i < s->n; i++) {
		unsigned thread = s->e[i] >> 17;
		uint32_t clk = s->e[i] & 0x1ffff;
		if ((BUID(r) != t->blk->buid || thread != t->lin) && !clock_knows(t, BUID(r), thread, clk)) {
			*culprit = WORD(BUID(r), thread, clk);
			return false;
		}
	}
	return true;
}

/* Readers in several blocks: another launch must be ordered before; within one only a grid barrier or an acquire is. */
static bool
launch_known(const Thread *t, uint64_t r)
{
	const Op *op = op_of_buid(BUID(r));

	if (!op)
		return true;
	if (op == t->blk->op)
		return t->kn != NULL;
	return op_before(op->seq, t->blk->op, t->gdc_waited);
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
	if ((r & R_SET) && !SET(r) && BUID(r) == t->blk->op->buid0 && both == ((unsigned)r & 3)) /* several blocks of this launch already */
		return;
	if (BUID(r) == t->blk->buid) {
		if (r & R_SET) {
			const Readers *s = readers(SET(r));
			uint64_t dummy;
			if (!s || (clock_knows(t, BUID(r), s->e[0] >> 17, s->e[0] & 0x1ffff) && set_known(t, r, &dummy))) {
				c->r = me | keep | mask;
				return;
			}
		} else if (THREAD(r) == THREAD(me) || clock_knows(t, BUID(r), THREAD(r), CLK(r))) {
			c->r = me | keep | mask;
			return;
		}
		c->r = (uint64_t)t->blk->buid << 32 | (uint64_t)readers_add(r, (uint32_t)(me >> 5) & 0x7ffffff) << 5 | R_SET | keep | both;
		return;
	}
	const Op *op = t->blk->op;
	if (BUID(r) - op->buid0 < op->n_block) /* another block of this launch */
		c->r = (uint64_t)op->buid0 << 32 | R_SET | keep | both;
	else if (!op_of_buid(BUID(r)) || op_before(op_of_buid(BUID(r))->seq, op, t->gdc_waited))
		c->r = me | keep | mask;
	/* else: a concurrent launch reads too; the older reader stays */
}

void
shadow_access(const void *p, size_t n, bool write, bool atomic, const void *pc, Site at)
{
	Thread *t = emu_cur;
	const char *a = p;

	if (!t || !t->blk || (size_t)(a - t->stack) < emu_stack_bytes)
		return;
	Region *r = region_of(p);
	if (unlikely(!r)) {
		if (fiber_owns(p))
			text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n, "access to another thread's local memory", 0);
		text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n, write ? "out-of-bounds write" : "out-of-bounds read", 0);
		return;
	}
	if (unlikely(a + n > r->hi))
		text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n, write ? "out-of-bounds write" : "out-of-bounds read", 0);
	if (r->kind == R_SHARED) {
		Block *o = r->blk;
		if (o != t->blk && (!o || o->cluster != t->blk->cluster))
			text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n, "access to shared memory of a block outside of the cluster", 0);
		if (!o->live)
			text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n, "access to shared memory of a block that has left the kernel", 0);
		if (!shared_within(r, a, n))
			text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, pc, at, p, n, write ? "out-of-bounds write to shared memory" : "out-of-bounds read of shared memory", 0);
	}
	if (!r->cell)
		return;
	size_t off = (size_t)(a - r->lo);
	if (r->lazy) {
		size_t page = off / 4096, last = (off + n - 1) / 4096;
		for (; page <= last; page++)
			if (!r->page_cells[page]) {
				if (write) {
					materialise(r, page);
				} else if (!r->page_w[page]) {
					text_and_die(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n, "read of memory that nothing wrote", 0);
				} else if (!clock_knows(t, BUID(r->page_w[page]), 0, 1)) {
					text_and_die(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n, "race: read with nothing that orders it after the write",
					             r->page_w[page]);
				} else {
					return; /* readers of such pages are not kept */
				}
			}
	}
	uint64_t me = WORD(t->blk->buid, t->lin, t->clk), known = 0, before = 1, after = 0; /* neighbours mostly have the same history */
	for (size_t b = off; b < off + n;) {
		unsigned mask = b & 1 ? 2 : off + n - b >= 2 ? 3 : 1;
		Cell *c = r->cell + b / 2;
		uint64_t w = c->w, rd = c->r, culprit;
		b += b & 1 ? 1 : 2;
		if (!write && ((rd >> 2) & mask) != mask)
			text_and_die(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n,
			             w & 3 ? "read of the target of an asynchronous copy that has not been waited for" : "read of memory that nothing wrote", w);
		if (w != known && (w & mask) && ((w ^ me) >> 22 || (w & W_ASYNC)) && !(atomic && (w & W_ATOMIC))
		    && !clock_knows(t, BUID(w), w & W_ASYNC ? (unsigned)CLOCK_ASYNC(t->blk) : THREAD(w), CLK(w)))
			text_and_die(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n,
			             write ? "race: write with nothing that orders it after another write" : "race: read with nothing that orders it after the write", w);
		known = mask == 3 ? w : 0;
		if (!write) {
			if (atomic)
				continue;
			if (rd == before && mask == 3) {
				c->r = after;
			} else {
				read_cell(c, t, me, mask);
				before = mask == 3 ? rd : 1;
				after = c->r;
			}
			continue;
		}
		if ((rd & mask) && rd >> 5) {
			culprit = rd & ~31ull;
			bool ok = !(rd & R_SET) ? (rd ^ me) >> 22 == 0 || clock_knows(t, BUID(rd), THREAD(rd), CLK(rd))
			        : SET(rd) ? set_known(t, rd, &culprit) : launch_known(t, rd);
			if (!ok)
				text_and_die(CUDA_ERROR_LAUNCH_FAILED, pc, at, p, n, "race: write with nothing that orders it after the read",
				             rd & R_SET && !SET(rd) ? culprit | W_ASYNC : culprit);
		}
		c->w = me | mask | (atomic ? W_ATOMIC : 0);
		c->r = (rd & 3 & ~mask ? rd & ~(uint64_t)mask : rd & R_INIT) | (uint64_t)mask << 2;
	}
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

/* A bulk copy lands: written by the block's copies, whose clock the mbarrier hands on. */
void
shadow_async_write(Block *b, void *p, size_t n, Site at)
{
	Region *r = region_of(p);

	(void)at;
	if (!r || !r->cell)
		return;
	size_t off = (size_t)((char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++)
		r->cell[c] = (Cell){ WORD(b->buid, 0, b->async_clk) | W_ASYNC | 3, R_INIT };
}

/* Shared memory that a matrix instruction or a bulk store reads some time from now on: what it needs must be there already, written by
 * copies or fenced by its writers, and nobody may write before the reader is known to be done (entry `slot` at `clk`). */
void
shadow_async_read(const void *p, size_t n, int slot, uint32_t clk, Site at)
{
	Thread *t = emu_cur;
	Block *b = t->blk;
	Region *r = region_of(p);

	if (!r || r->kind != R_SHARED || r->blk != b || !shared_within(r, p, n))
		text_and_die(CUDA_ERROR_ILLEGAL_ADDRESS, NULL, at, p, n, "asynchronous read outside of the block's shared memory", 0);
	uint64_t me = WORD(b->buid, slot, clk);
	size_t off = (size_t)((const char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++) {
		Cell *x = r->cell + c;
		uint64_t w = x->w;
		if ((x->r & R_INIT) != R_INIT)
			text_and_die(CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n,
			             w & 3 ? "asynchronous read of the target of a copy that has not been waited for" : "asynchronous read of memory that nothing wrote", w);
		if ((w & 3) && ((w & W_ASYNC) || BUID(w) != b->buid || THREAD(w) != t->lin)
		    && !clock_knows(t, BUID(w), w & W_ASYNC ? (unsigned)CLOCK_ASYNC(b) : THREAD(w), CLK(w)))
			text_and_die(CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n, "race: asynchronous read with nothing that orders it after the write", w);
		if ((w & 3) && !(w & W_ASYNC) && BUID(w) == b->buid && CLK(w) > b->t[THREAD(w)].proxy_clk)
			text_and_die(CUDA_ERROR_LAUNCH_FAILED, NULL, at, p, n,
			             "asynchronous read of what a thread wrote without fence_proxy_async behind it", w);
		if ((x->r | 31) != (me | 31) || (x->r & 3) != 3)
			read_cell(x, t, me, 3);
	}
}

/* ---- copies, fills and the host ---- */

static void
host_race(Op *op, const char *p, size_t n, uint64_t other, const char *what)
{
	char *where = region_describe(p), *who = emu_who_uid(BUID(other), THREAD(other));

	(void)n;
	emu_note("%s: %s %s; the other: %s", op->name, what, where, who);
	free(where);
	free(who);
	emu_error = CUDA_ERROR_LAUNCH_FAILED;
}

static bool
host_knows(const Op *op, uint64_t word)
{
	const Op *w = op_of_buid(BUID(word));

	return !w || w == op || op_before(w->seq, op, true);
}

void
shadow_host_write(Op *op, void *p, size_t n)
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
				if (r->page_w[page] && !host_knows(op, r->page_w[page])) {
					host_race(op, r->lo + c * 2, n, r->page_w[page], "race: writes with nothing that orders it after another write");
					return;
				}
				r->page_w[page] = me;
				c += 2048;
				continue;
			}
			materialise(r, page);
		}
		Cell *x = r->cell + c;
		unsigned mask = (c == off / 2 && (off & 1) ? 2 : 3) & (c == end - 1 && (off + n) & 1 ? 1 : 3);
		if ((x->w & 3) && !host_knows(op, x->w)) {
			host_race(op, r->lo + c * 2, n, x->w, "race: writes with nothing that orders it after another write");
			return;
		}
		if ((x->r & 3) && x->r >> 5 && !host_knows(op, x->r)) {
			host_race(op, r->lo + c * 2, n, x->r & R_SET ? x->r | 0xffc00000u : x->r, "race: writes with nothing that orders it after the read");
			return;
		}
		x->w = me | mask;
		x->r = (x->r & R_INIT) | (uint64_t)mask << 2;
		c++;
	}
}

void
shadow_host_read(Op *op, const void *p, size_t n)
{
	Region *r = region_of(p);

	if (!r || !r->cell || !n)
		return;
	size_t off = (size_t)((const char *)p - r->lo);
	for (size_t c = off / 2; c < (off + n + 1) / 2; c++) {
		uint64_t w = r->cell[c].w;
		if (r->lazy && !r->page_cells[c / 2048])
			w = r->page_w[c / 2048] ? r->page_w[c / 2048] | 3 : 0;
		if ((w & 3) && !host_knows(op, w)) {
			host_race(op, r->lo + c * 2, n, w, "race: reads with nothing that orders it after the write");
			return;
		}
		if (!r->lazy)
			r->cell[c].r = (r->cell[c].r & R_INIT) | WORD(op->buid0, 0, 1) | 3;
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
		bool ok = r->lazy && !r->page_cells[b / 4096] ? r->page_w[b / 4096] != 0 : r->cell[b / 2].r >> (2 + (b & 1)) & 1;
		if (!ok) {
			*at = b - off;
			return false;
		}
	}
	return true;
}

/* After a copy between device addresses: what was not written there is not written here either. */
void
shadow_copy_written(void *dst, const void *src, size_t n)
{
	Region *d = region_of(dst);
	size_t at, done = 0;

	while (d && d->cell && done < n && !shadow_written((const char *)src + done, n - done, &at)) {
		size_t b = (size_t)((char *)dst - d->lo) + done + at;
		materialise(d, b / 4096);
		d->cell[b / 2].r &= ~(4ull << (b & 1));
		done += at + 1;
	}
}

/* Who wrote the nearest bytes before a place that nobody wrote: most likely the one who forgot it. To be freed; NULL: nobody near. */
char *
shadow_neighbour(const void *p)
{
	Region *r = region_of(p);

	if (!r || !r->cell || r->lazy)
		return NULL;
	size_t c = (size_t)((const char *)p - r->lo) / 2;
	for (int i = 0; i < 2048 && c > 0; i++, c--)
		if (r->cell[c].w & 3)
			return emu_who_uid(BUID(r->cell[c].w), THREAD(r->cell[c].w));
	return NULL;
}

/* mbarriers. A phase counts pending arrivals and the bytes that bulk copies have yet to deliver.
 * The state is kept here, by address. The eight bytes in shared memory hold a marker, so that an
 * overwrite is detected. A bulk copy destroys its target when issued and completes when a thread
 * tests the barrier. A multicast is one copy per block of its mask, with the same offsets in each
 * block. */
#include "emu.h"
#include "../cuda_api.h"
#include "tensor_map.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
	void *dst;
	const void *src;
	unsigned n;
	const TensorMap *map;
	int c[5];
	uint64_t sum;
	Site at;
} Bulk;

typedef struct Mbar {
	const void *p;
	uint32_t count, left, thread, clk;
	uint64_t phase;
	int64_t tx;
	KnownClocks *gather, *done;
	Bulk *bulk;
	int n_bulk,
	    n_cp; /* n_bulk: bulk copies in flight; n_cp: arrivals that wait for cp.async copies */
} Mbar;

static EmuBlock *
owner(const void *p, Site at)
{
	Region *r = region_of(p);

	if ((uintptr_t)p & 7)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned mbarrier: it needs 8 bytes at a multiple of 8");
	if (!r || r->kind != R_SHARED || !r->blk)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at, "mbarrier outside of shared memory");
	return r->blk;
}

static uint64_t
mark_of(const void *p)
{
	return (uintptr_t)p * 0x9e3779b97f4a7c15ull ^ 0x6d62617272696572ull;
}

static Mbar *
mbar_of(const void *p, Site at)
{
	Thread *t = emu_cur;
	EmuBlock *b = owner(p, at);

	if (b != t->blk && (b->cluster != t->blk->cluster || !b->live))
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        b->live ? "mbarrier of a block outside of the cluster"
		                : "mbarrier of a block of the cluster that has left the kernel");

	for (int i = 0; i < b->n_mbar; i++) {
		Mbar *m = &b->mbar[i];
		if (m->p != p)
			continue;
		if (emu_check && (b != t->blk || m->thread != t->lin) &&
		    !clock_after(t, b->buid, m->thread, m->clk))
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "race: use of an mbarrier that is not ordered after its "
			        "initialisation");
		if (*(const uint64_t *)p != mark_of(p))
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "the mbarrier was overwritten after its initialisation");
		return m;
	}
	emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "mbarrier used before it was initialised");
}

static void
release(Mbar *m)
{
	known_drop(m->gather);
	known_drop(m->done);
	free(m->bulk);
}

void
mbar_forget(EmuBlock *b)
{
	for (int i = 0; i < b->n_mbar; i++)
		release(&b->mbar[i]);
	for (int i = 0; i < 16; i++)
		free(b->far_clk[i]);
	free(b->mbar);
	b->mbar = NULL;
	b->n_mbar = 0;
}

/* Returns whether bulk copies are in flight. A copy that completed after the end of the block would
 * write into the next block's memory. */
bool
mbar_inflight(const EmuBlock *b)
{
	for (int i = 0; i < b->n_mbar; i++)
		if (b->mbar[i].n_bulk)
			return true;
	return false;
}

/* Checks, in checking mode, that the exit of the block's last thread is ordered after all accesses
 * of other blocks to its barriers and shared memory. */
void
mbar_leave(EmuBlock *b, Site at)
{
	for (int r = 0; r < b->cluster->n; r++)
		for (int i = 0; b->far_clk[r] && i < b->nt; i++) {
			bool known = !b->far_clk[r][i];
			for (int k = 0; k < b->nt && !known; k++)
				known = clock_after(&b->t[k], b->cluster->b[r]->buid, (unsigned)i,
				                    b->far_clk[r][i]);
			if (!known)
				emu_die_at(CUDA_ERROR_LAUNCH_FAILED, b->far_pc,
				           b->far_at.line ? b->far_at : at,
				           "the block leaves the kernel, not ordered after the "
				           "accesses of block %d of its cluster to its shared "
				           "memory (cluster_sync)",
				           r);
		}
}

void
emu_mbar_init(void *p, unsigned count, const char *file, int line)
{
	Site at = { file, line };
	EmuBlock *b = owner(p, at);
	Mbar *m = NULL;

	if (!count || count >= 1u << 20)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "mbarrier for %u arrivals", count);
	for (int i = 0; i < b->n_mbar; i++)
		if (b->mbar[i].p == p)
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "mbarrier initialised again without mbar_inval");
	b->mbar = realloc(b->mbar, sizeof *m * (size_t)(b->n_mbar + 1));
	m = &b->mbar[b->n_mbar++];
	*(uint64_t *)p = mark_of(p);
	*m = (Mbar){
		.p = p, .count = count, .left = count, .thread = emu_cur->lin, .clk = emu_cur->clk
	};
}

void
emu_mbar_inval(void *p, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(p, at);
	EmuBlock *b = owner(p, at);

	if (m->n_bulk || m->n_cp)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "mbarrier invalidated while copies that arrive at it are in flight");
	release(m);
	*m = b->mbar[--b->n_mbar];
	memset(p, 0xff, 8);
}

static void
advance(Mbar *m)
{
	if (m->left || m->tx)
		return;
	if (m->n_bulk)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, m->bulk[0].at,
		        "a phase of the mbarrier completed while %u bytes of a bulk copy are in "
		        "flight: its bytes were not expected (mbar_expect)",
		        m->bulk[0].n);
	m->phase++;
	m->left = m->count;
	known_drop(m->done);
	m->done = m->gather;
	m->gather = NULL;
	emu_progress++;
}

emu_u64
emu_mbar_arrive(void *p, unsigned count, unsigned tx_bytes, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(p, at);
	uint64_t phase = m->phase;

	m->tx += tx_bytes;
	if (count > m->left)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "mbarrier: more arrivals than the %u it was initialised for", m->count);
	if (emu_check && count) {
		KnownClocks *k = clock_publish(emu_cur);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->left -= count;
	advance(m);
	return phase;
}

/* Arrives at the barrier at the same offset in block `rank` of the cluster. */
void
emu_mbar_arrive_cluster(void *p, unsigned rank, const char *file, int line)
{
	Site at = { file, line };
	Thread *t = emu_cur;
	EmuBlock *b = t->blk;
	Mbar *m = mbar_of(emu_cluster_map(p, rank, file, line), at);

	if (rank == b->cluster_rank) {
		emu_mbar_arrive(p, 1, 0, file, line);
		return;
	}
	if (!m->left)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "mbarrier: more arrivals than the %u it was initialised for", m->count);
	if (emu_check) {
		EmuBlock *o = b->cluster->b[rank];
		if (!o->far_clk[b->cluster_rank])
			o->far_clk[b->cluster_rank] = emu_alloc(sizeof(uint32_t) * (size_t)b->nt);
		o->far_clk[b->cluster_rank][t->lin] = t->clk;
		o->far_at = at;
		o->far_pc = NULL;
		KnownClocks *k = clock_publish(t);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->left--;
	emu_progress++;
	advance(m);
}

void
mbar_late_arrive(Thread *t, void *bar, Site at)
{
	Mbar *m = mbar_of(bar, at);

	if (!t) {
		m->n_cp++;
		return;
	}
	if (m->n_cp)
		m->n_cp--;
	if (!m->left)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "mbarrier: more arrivals than the %u it was initialised for", m->count);
	if (emu_check) {
		KnownClocks *k = clock_publish(t);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->left--;
	emu_progress++;
	advance(m);
}

/* Completes the cp.async copies of a random thread that has a pending arrival at this barrier. */
static void
land_cp(Mbar *m)
{
	EmuBlock *b = emu_cur->blk;
	int start = (int)emu_random_below((uint64_t)b->nt);

	for (int i = 0; i < b->nt; i++) {
		Thread *t = &b->t[(start + i) % b->nt];
		for (int k = 0; k < t->cp.n_arr; k++)
			if (t->cp.arr[k].bar == m->p) {
				copy_complete(t, m->p);
				return;
			}
	}
}

/* Completes one copy in flight of the barrier. */
static void
complete(Mbar *m, Site at)
{
	Thread *t = emu_cur;
	int i = (int)emu_random_below((uint64_t)m->n_bulk);
	Bulk c = m->bulk[i];
	Region *r = region_of(c.dst);
	EmuBlock *b = r && r->blk ? r->blk : t->blk;

	if (emu_check && c.sum != (c.map ? tensor_sum(c.map, c.c) : emu_sum(0, c.src, c.n)))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, c.at,
		        "the source of a bulk copy was written while the copy was in flight");
	m->bulk[i] = m->bulk[--m->n_bulk];
	if (c.map)
		tensor_get(c.map, c.c, c.dst, b->arena->lo);
	else
		memcpy(c.dst, c.src, c.n);
	if (emu_check) {
		b->async_clk++;
		shadow_async_write(b, c.dst, c.n, at);
		KnownClocks *k = clock_async(b);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->tx -= c.n;
	emu_progress++;
	advance(m);
}

static struct {
	const Thread *t;
	const void *p;
	Site at;
} polled;

void
mbar_stuck(const Thread *t, Site at)
{
	if (polled.t != t || polled.at.line != at.line)
		return;
	const Mbar *m = mbar_of(polled.p, at);
	emu_die(CUDA_ERROR_LAUNCH_TIMEOUT, at,
	        "waits forever at an mbarrier for %u arrivals: its phase (parity %u) lacks %u of "
	        "them and %ld bytes",
	        m->count, (unsigned)(m->phase & 1), m->left, (long)m->tx);
}

/* Returns whether the phase of this parity has completed. */
int
emu_mbar_test(void *p, unsigned parity, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(p, at);

	if (owner(p, at) != emu_cur->blk)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "a thread may wait at mbarriers of its own block only");

	if ((m->phase & 1) == (parity & 1)) {
		uint64_t dice = emu_random();
		if (m->n_bulk && (dice & 1))
			complete(m, at);
		else if (m->n_cp && (dice & 3))
			land_cp(m);
		else {
			polled.t = emu_cur;
			polled.p = p;
			polled.at = at;
			block_yield(at);
		}
		m = mbar_of(p, at);
		if ((m->phase & 1) == (parity & 1))
			return 0;
	}
	if (emu_check)
		clock_acquire(emu_cur, m->done);
	return 1;
}

static void
issue(Mbar *m, Bulk b, Site at)
{
	Region *r = region_of(b.dst);

	if (!r || r->kind != R_SHARED || (size_t)(r->hi - (char *)b.dst) < b.n)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "%s copy of %u bytes: the target is not shared memory",
		        b.map ? "tensor" : "bulk", b.n);
	if (r->blk != owner(m->p, at))
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "bulk copy into the memory of one block that arrives at the mbarrier of "
		        "another one");
	if (emu_check)
		shadow_access(b.dst, b.n, true, ACCESS_COPY, NULL, at);
	memset(b.dst, 0xff, b.n);
	if (emu_check)
		shadow_inflight(b.dst, b.n);
	m->bulk = realloc(m->bulk, sizeof *m->bulk * (size_t)(m->n_bulk + 1));
	m->bulk[m->n_bulk++] = b;
}

/* mask 0: no multicast; dst and bar are used as given */
static void
issue_all(void *bar, Bulk b, int mask, Site at)
{
	Cluster *c = emu_cur->blk->cluster;
	void *dst = b.dst;

	if (!mask) {
		issue(mbar_of(bar, at), b, at);
		return;
	}
	if (mask >> c->n)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "multicast to the blocks of mask 0x%x of a cluster of %d", (unsigned)mask,
		        c->n);
	for (int r = 0; r < c->n; r++)
		if (mask >> r & 1) {
			Mbar *m = mbar_of(emu_cluster_map(bar, (unsigned)r, at.file, at.line), at);
			b.dst = emu_cluster_map(dst, (unsigned)r, at.file, at.line);
			issue(m, b, at);
		}
}

static void
bulk_load(void *dst, const void *src, unsigned n, void *bar, int mask, Site at)
{
	if (((uintptr_t)dst | (uintptr_t)src | n) & 15)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned bulk copy: addresses and size must be multiples of 16");
	if (emu_check)
		shadow_access(src, n, false, ACCESS_COPY, NULL, at);
	issue_all(bar,
	          (Bulk){ .dst = dst,
	                  .src = src,
	                  .n = n,
	                  .at = at,
	                  .sum = emu_check ? emu_sum(0, src, n) : 0 },
	          mask, at);
}

void
emu_bulk_load(void *dst, const void *src, unsigned n, void *bar, const char *file, int line)
{
	bulk_load(dst, src, n, bar, 0, (Site){ file, line });
}

void
emu_bulk_load_multicast(void *dst, const void *src, unsigned n, void *bar, unsigned mask,
                        const char *file, int line)
{
	Site at = { file, line };

	if (!mask)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "multicast to no block: its mask is 0");
	bulk_load(dst, src, n, bar, (int)mask, at);
}

/* rows: number of rows of the box that must have been written */
static void
tensor_load(void *dst, const void *map, int rank, const int *c, int rows, void *bar, int mask,
            Site at)
{
	const TensorMap *t = tensor_map_at(map, rank, at);
	Bulk b = { .dst = dst, .n = (unsigned)tensor_box_bytes(t), .map = t };

	if ((uintptr_t)dst & 127)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned tensor copy: the address in shared memory must be a multiple "
		        "of 128");
	tensor_place(t, c, false, at);
	if (emu_check && rows > 0) {
		TensorMap first = *t;
		if (rank > 1 && first.box[1] > (unsigned)rows)
			first.box[1] = (unsigned)rows;
		tensor_touch(&first, c, false, at);
	}
	b.at = at;
	b.sum = emu_check ? tensor_sum(t, c) : 0;
	memcpy(b.c, c, sizeof *c * (size_t)rank);
	issue_all(bar, b, mask, at);
}

/* cp.async.bulk.tensor: loads the box at these coordinates (in elements, innermost first). Elements
 * outside the tensor become zero. */
void
emu_tensor_load(void *dst, const void *map, int rank, const int *c, void *bar, const char *file,
                int line)
{
	tensor_load(dst, map, rank, c, INT_MAX, bar, 0, (Site){ file, line });
}

/* Same, for a kernel that uses only the first rows of the box. The memory of the other rows may be
 * unwritten. */
void
emu_tensor_load_rows(void *dst, const void *map, const int *c, int rows, void *bar,
                     const char *file, int line)
{
	tensor_load(dst, map, 2, c, rows, bar, 0, (Site){ file, line });
}

void
emu_tensor_load_multicast(void *dst, const void *map, int rank, const int *c, int rows, void *bar,
                          unsigned mask, const char *file, int line)
{
	Site at = { file, line };

	if (!mask)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "multicast to no block: its mask is 0");
	tensor_load(dst, map, rank, c, rows, bar, (int)mask, at);
}

/* cp.async.bulk.prefetch: moves no data; checks that the memory exists. */
void
emu_bulk_prefetch(const void *p, unsigned n, const char *file, int line)
{
	Site at = { file, line };

	if (((uintptr_t)p | n) & 15)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned bulk prefetch: address and size must be multiples of 16");
	prefetch_note(p, n, at);
}

void
emu_prefetch(const void *p, const char *file, int line)
{
	/* the line that contains p */
	const char *from = (const char *)((uintptr_t)p & ~(uintptr_t)127);
	const Region *r = region_of(p);
	const size_t left = r && r->lo <= from ? (size_t)(r->hi - from) : 1;

	prefetch_note(left > 1 ? from : p, left < 128 ? left : 128, (Site){ file, line });
}

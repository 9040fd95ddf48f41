/* mbarriers: phases with a count of arrivals and of bytes that bulk copies still have to bring. The state is kept here, by address;
 * the eight bytes in shared memory stay what they are. A bulk copy destroys its target when issued and lands when somebody has
 * asked the barrier for it. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

typedef struct { void *dst; const void *src; unsigned n; const TensorMap *map; int c[5]; } Bulk;

typedef struct Mbar {
	const void *p;
	uint32_t count, left, thread, clk;
	uint64_t phase;
	int64_t tx;
	Known *gather, *done;
	Bulk *bulk;
	int n_bulk, n_cp; /* copies on their way; arrivals that wait for copies by cp.async */
} Mbar;

static Block *
owner(const void *p, Site at)
{
	Region *r = region_of(p);

	if ((uintptr_t)p & 7)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at, "misaligned mbarrier: it needs 8 bytes at a multiple of 8");
	if (!r || r->kind != R_SHARED || !r->blk)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at, "mbarrier outside of shared memory");
	return r->blk;
}

static Mbar *
mbar_of(const void *p, Site at)
{
	Thread *t = emu_cur;
	Block *b = owner(p, at);

	for (int i = 0; i < b->n_mbar; i++) {
		Mbar *m = &b->mbar[i];
		if (m->p != p)
			continue;
		if (emu_check && (b != t->blk || m->thread != t->lin) && !clock_knows(t, b->buid, m->thread, m->clk))
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "race: mbarrier used with nothing that orders it after its initialisation");
		return m;
	}
	emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "mbarrier used before it was initialised");
}

void
mbar_forget(Block *b)
{
	for (int i = 0; i < b->n_mbar; i++) {
		known_drop(b->mbar[i].gather);
		known_drop(b->mbar[i].done);
		free(b->mbar[i].bulk);
	}
	free(b->mbar);
	b->mbar = NULL;
	b->n_mbar = 0;
}

/* A copy that the block leaves behind would write into the next block's memory. */
bool
mbar_inflight(const Block *b)
{
	for (int i = 0; i < b->n_mbar; i++)
		if (b->mbar[i].n_bulk)
			return true;
	return false;
}

void
emu_mbar_init(void *p, unsigned count, const char *file, int line)
{
	Site at = { file, line };
	Block *b = owner(p, at);
	Mbar *m = NULL;

	if (!count || count >= 1u << 20)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "mbarrier for %u arrivals", count);
	for (int i = 0; i < b->n_mbar; i++)
		if (b->mbar[i].p == p)
			m = &b->mbar[i];
	if (m) {
		known_drop(m->gather);
		known_drop(m->done);
		free(m->bulk);
	} else {
		b->mbar = realloc(b->mbar, sizeof *m * (size_t)(b->n_mbar + 1));
		m = &b->mbar[b->n_mbar++];
	}
	*m = (Mbar){ .p = p, .count = count, .left = count, .thread = emu_cur->lin, .clk = emu_cur->clk };
}

void
emu_mbar_inval(void *p, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(p, at);
	Block *b = owner(p, at);

	known_drop(m->gather);
	known_drop(m->done);
	free(m->bulk);
	*m = b->mbar[--b->n_mbar];
}

static void
advance(Mbar *m)
{
	if (m->left || m->tx)
		return;
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
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "mbarrier: more arrivals than the %u it was initialised for", m->count);
	if (emu_check && count) {
		Known *k = clock_publish(emu_cur);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->left -= count;
	advance(m);
	return phase;
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
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "mbarrier: more arrivals than the %u it was initialised for", m->count);
	if (emu_check) {
		Known *k = clock_publish(t);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->left--;
	emu_progress++;
	advance(m);
}

/* Somebody's copies by cp.async land. */
static void
land_cp(Mbar *m)
{
	Block *b = emu_cur->blk;
	int start = (int)emu_random_below((uint64_t)b->nt);

	for (int i = 0; i < b->nt; i++) {
		Thread *t = &b->t[(start + i) % b->nt];
		for (int k = 0; k < t->cp.n_arr; k++)
			if (t->cp.arr[k].bar == m->p) {
				copy_land(t, m->p);
				return;
			}
	}
}

/* One outstanding copy of the barrier lands. */
static void
land(Mbar *m, Site at)
{
	Thread *t = emu_cur;
	int i = (int)emu_random_below((uint64_t)m->n_bulk);
	Bulk c = m->bulk[i];
	Region *r = region_of(c.dst);
	Block *b = r && r->blk ? r->blk : t->blk;

	m->bulk[i] = m->bulk[--m->n_bulk];
	if (c.map)
		tensor_get(c.map, c.c, c.dst, b->arena->lo);
	else
		memcpy(c.dst, c.src, c.n);
	if (emu_check) {
		b->async_clk++;
		shadow_async_write(b, c.dst, c.n, at);
		Known *k = clock_async(b);
		m->gather = known_join(m->gather, k);
		known_drop(k);
	}
	m->tx -= c.n;
	emu_progress++;
	advance(m);
}

/* Whether the phase of this parity is over. */
int
emu_mbar_test(void *p, unsigned parity, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(p, at);

	if ((m->phase & 1) == (parity & 1)) {
		uint64_t dice = emu_random();
		if (m->n_bulk && (dice & 1))
			land(m, at);
		else if (m->n_cp && (dice & 3))
			land_cp(m);
		else
			block_yield(at);
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
	if (emu_check)
		shadow_access(b.dst, b.n, true, false, NULL, at);
	memset(b.dst, 0xff, b.n);
	if (emu_check)
		shadow_inflight(b.dst, b.n);
	m->bulk = realloc(m->bulk, sizeof *m->bulk * (size_t)(m->n_bulk + 1));
	m->bulk[m->n_bulk++] = b;
}

void
emu_bulk_load(void *dst, const void *src, unsigned n, void *bar, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(bar, at);
	Region *r = region_of(dst);

	if (((uintptr_t)dst | (uintptr_t)src | n) & 15)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at, "misaligned bulk copy: addresses and size must be multiples of 16");
	if (!r || r->kind != R_SHARED || (size_t)(r->hi - (char *)dst) < n)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at, "bulk copy of %u bytes: the target is not shared memory", n);
	if (emu_check)
		shadow_access(src, n, false, false, NULL, at);
	issue(m, (Bulk){ .dst = dst, .src = src, .n = n }, at);
}

/* cp.async.bulk.tensor: a box of the tensor at these coordinates (elements, innermost first); outside of it zeros. */
void
emu_tensor_load(void *dst, const void *map, int rank, const int *c, void *bar, const char *file, int line)
{
	Site at = { file, line };
	Mbar *m = mbar_of(bar, at);
	Region *r = region_of(dst);
	const TensorMap *t = tensor_map_at(map, rank, at);
	size_t n = tensor_box_bytes(t);

	if ((uintptr_t)dst & 127)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at, "misaligned tensor copy: the place in shared memory must be a multiple of 128");
	if (!r || r->kind != R_SHARED || (size_t)(r->hi - (char *)dst) < n)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at, "tensor copy of %zu bytes: the target is not shared memory", n);
	if (emu_check)
		tensor_touch(t, c, false, at);
	Bulk b = { .dst = dst, .n = (unsigned)n, .map = t };
	memcpy(b.c, c, sizeof *c * (size_t)rank);
	issue(m, b, at);
}

/* Sets of readers within one block, identified by numbers. A set is a run of lanes of one warp that
 * read at one clock, plus an older set that the run extends. Adding a reader thus creates a new set
 * of 16 bytes, and lanes that read one after another extend one run. Numbers are reused: old sets
 * are forgotten and count as empty. */
#include "emu.h"

enum { RUNS = 1 << 22, NUMBERS = 1 << 27, MANY = 96 };
#define CLOCK 0x1ffffu

static EmuRun run[RUNS];
static uint32_t last; /* number of the newest set; 0 is the empty one */

const EmuRun *
readers_run(uint32_t buid, uint32_t id)
{
	const EmuRun *x = &run[id % RUNS];

	return id && (last - id) % NUMBERS < RUNS - 1 && x->buid == buid ? x : NULL;
}

static uint32_t
add(uint32_t buid, uint32_t parent, uint32_t lanes, uint32_t at, uint32_t n)
{
	last = (last + 1) % NUMBERS;
	last += !last;
	run[last % RUNS] = (EmuRun){ parent, lanes, buid, at, n };
	return last;
}

/* Rebuilds a long set, with only the latest read of each thread. */
static uint32_t
shorten(uint32_t buid, uint32_t id)
{
	uint32_t newest[1024] = { 0 }, to = 0, n = 0;

	for (const EmuRun *x = readers_run(buid, id); x; x = readers_run(buid, x->parent))
		for (uint32_t m = x->lanes; m; m &= m - 1) {
			uint32_t *e = &newest[(x->at >> 17) * 32 + (uint32_t)__builtin_ctz(m)];
			*e = (x->at & CLOCK) > *e ? x->at & CLOCK : *e;
		}
	for (uint32_t w = 0; w < 32; w++)
		for (uint32_t l = 0; l < 32; l++) {
			uint32_t lanes = 0, clk = newest[w * 32 + l];
			for (uint32_t k = l; clk && k < 32; k++)
				if (newest[w * 32 + k] == clk) {
					lanes |= 1u << k;
					newest[w * 32 + k] = 0;
				}
			if (lanes)
				to = add(buid, to, lanes, w << 17 | clk, ++n);
		}
	return to;
}

uint32_t
readers_add(uint32_t buid, uint32_t from, bool single, uint32_t e)
{
	const uint32_t at = e >> 22 << 17 | (e & CLOCK), lane = 1u << (e >> 17 & 31);

	if (single)
		from = add(buid, 0, 1u << (from >> 17 & 31), from >> 22 << 17 | (from & CLOCK), 1);
	const EmuRun *top = readers_run(buid, from);
	for (const EmuRun *x = top; x; x = readers_run(buid, x->parent))
		if (x->at == at && x->lanes & lane)
			return from;
	if (!top)
		return add(buid, 0, lane, at, 1);
	if (top->at == at)
		return add(buid, top->parent, top->lanes | lane, at, top->n);
	if (top->n % MANY == MANY - 1)
		from = shorten(buid, from);
	return add(buid, from, lane, at, readers_run(buid, from)->n + 1);
}

/* ---- sets of launches ---- */
enum { LAUNCH_SETS = 1 << 14, LAUNCH_MEMO = 1 << 10 };
static struct {
	uint32_t rest;
	uint64_t seq;
} launches[LAUNCH_SETS];
static uint32_t launches_base = 1, n_launches;
static uint32_t launches_memo[LAUNCH_MEMO];

static bool
launches_there(uint32_t id)
{
	return id - launches_base < n_launches;
}

uint32_t
launches_with(uint32_t set, uint64_t seq)
{
	uint32_t
	    *m = &launches_memo[(seq * 0x9e3779b97f4a7c15ull ^ set * 0xc2b2ae3d27d4eb4full) >> 54],
	    k = *m - launches_base;

	if (launches_there(*m) && launches[k].seq == seq && launches[k].rest == set)
		return *m;
	if (n_launches == LAUNCH_SETS) { /* cells that still refer to old sets lose their readers */
		launches_base += n_launches;
		n_launches = 0;
		set = 0;
	}
	launches[n_launches].rest = set;
	launches[n_launches].seq = seq;
	return *m = launches_base + n_launches++;
}

uint64_t
launches_next(uint32_t *set)
{
	uint32_t k = *set - launches_base;
	bool there = launches_there(*set);

	*set = there ? launches[k].rest : 0;
	return there ? launches[k].seq : 0;
}

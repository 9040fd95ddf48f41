/* Sets of readers of one block, by number. A set is a run of lanes of one warp with one clock, and the set that it grew from; so a set
 * that gets one more is a new set of 16 bytes, and lanes that read in turn make one run. The numbers come round: sets of long ago are
 * forgotten, and who asks for them is told that they are empty. */
#include "emu.h"

enum { RUNS = 1 << 22, NUMBERS = 1 << 27, MANY = 96 };
#define CLOCK 0x1ffffu

static Run run[RUNS];
static uint32_t last; /* the newest set's number; 0 is none */

const Run *
readers_run(uint32_t buid, uint32_t id)
{
	const Run *x = &run[id % RUNS];

	return id && (last - id) % NUMBERS < RUNS - 1 && x->buid == buid ? x : NULL;
}

static uint32_t
add(uint32_t buid, uint32_t parent, uint32_t lanes, uint32_t at, uint32_t n)
{
	last = (last + 1) % NUMBERS;
	last += !last;
	run[last % RUNS] = (Run){ parent, lanes, buid, at, n };
	return last;
}

/* For each thread only its newest reads: a long set becomes as short as can be. */
static uint32_t
shorten(uint32_t buid, uint32_t id)
{
	uint32_t newest[1024] = { 0 }, to = 0, n = 0;

	for (const Run *x = readers_run(buid, id); x; x = readers_run(buid, x->parent))
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
	const Run *top = readers_run(buid, from);
	for (const Run *x = top; x; x = readers_run(buid, x->parent))
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

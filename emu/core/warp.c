/* Warp collectives. The lanes of a mask rendezvous, and the last lane to arrive computes the
 * results of all lanes. Only EMU_W_SYNC orders memory. */
#include "switch.h"
#include "../cuda_api.h"
#include "../device/warp_ops.h"

#include <math.h>
#include <string.h>

static float
f32(uint64_t bits)
{
	float f;
	uint32_t u = (uint32_t)bits;

	memcpy(&f, &u, 4);
	return f;
}

static uint64_t
bits32(float f)
{
	uint32_t u;

	memcpy(&u, &f, 4);
	return u;
}

/* Butterflies over all 32 lanes, in the order of __shfl_xor_sync(16, 8, 4, 2, 1) */
static void
butterfly(int op, Thread *t, uint32_t mask, Site at)
{
	float v[32], u[32];

	if (mask != ~0u)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "a warp's sum, max or min needs all 32 lanes (mask 0x%08x)", mask);
	for (int l = 0; l < 32; l++)
		v[l] = f32(t[l].io[0]);
	for (int o = 16; o; o >>= 1) {
		for (int l = 0; l < 32; l++)
			u[l] = op == EMU_W_SUM_F32   ? v[l] + v[l ^ o]
			       : op == EMU_W_MAX_F32 ? fmaxf(v[l], v[l ^ o])
			                             : fminf(v[l], v[l ^ o]);
		memcpy(v, u, sizeof v);
	}
	for (int l = 0; l < 32; l++)
		t[l].io[0] = bits32(v[l]);
}

static void
reduce(int op, Thread *t, uint32_t mask)
{
	uint32_t acc = 0;
	bool first = true;

	for (uint32_t m = mask; m; m &= m - 1) {
		uint32_t v = (uint32_t)t[__builtin_ctz(m)].io[0];
		if (first)
			acc = v;
		else if (op == EMU_W_RED_ADD)
			acc += v;
		else if (op == EMU_W_RED_MIN)
			acc = v < acc ? v : acc;
		else if (op == EMU_W_RED_MAX)
			acc = v > acc ? v : acc;
		else if (op == EMU_W_RED_MIN_S)
			acc = (int32_t)v < (int32_t)acc ? v : acc;
		else if (op == EMU_W_RED_MAX_S)
			acc = (int32_t)v > (int32_t)acc ? v : acc;
		else if (op == EMU_W_RED_AND)
			acc &= v;
		else if (op == EMU_W_RED_OR)
			acc |= v;
		else
			acc ^= v;
		first = false;
	}
	for (uint32_t m = mask; m; m &= m - 1)
		t[__builtin_ctz(m)].io[0] = acc;
}

static void
shuffle_lanes(int op, Thread *t, uint32_t mask, Site at)
{
	uint64_t in[32];

	for (int l = 0; l < 32; l++)
		in[l] = (mask >> l & 1) ? t[l].io[0] : ~0ull;
	for (uint32_t m = mask; m; m &= m - 1) {
		int l = __builtin_ctz(m), w = (int)(t[l].io[1] >> 32),
		    a = (int)(uint32_t)t[l].io[1], base = l & ~(w - 1), s;
		if (w <= 0 || w > 32 || (w & (w - 1)))
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "shuffle width %d: a power of two up to 32 is needed", w);
		switch (op) {
		case EMU_W_SHFL_XOR:
			s = l ^ a;
			s = s < base + w ? s : l;
			break;
		case EMU_W_SHFL_UP:
			s = l - a;
			s = s >= base ? s : l;
			break;
		case EMU_W_SHFL_DOWN:
			s = l + a;
			s = s < base + w ? s : l;
			break;
		default:
			s = base + (a & (w - 1));
			break;
		}
		if (s < 0 || s > 31 || !(mask >> s & 1))
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "shuffle from an inactive lane: lane %d reads lane %d, which is "
			        "not in the mask 0x%08x",
			        l, s, mask);
		t[l].io[0] = in[s];
	}
}

static void
vote(int op, Thread *t, uint32_t mask)
{
	uint32_t ballot = 0, match[32] = { 0 };
	bool all = true;

	for (uint32_t m = mask; m; m &= m - 1) {
		int l = __builtin_ctz(m);
		ballot |= (uint32_t)(t[l].io[0] != 0) << l;
		for (uint32_t k = mask; k; k &= k - 1)
			match[l] |= (uint32_t)(t[l].io[0] == t[__builtin_ctz(k)].io[0])
			            << __builtin_ctz(k);
		all = all && match[l] == mask;
	}
	for (uint32_t m = mask; m; m &= m - 1) {
		int l = __builtin_ctz(m);
		t[l].io[0] = op == EMU_W_BALLOT      ? ballot
		             : op == EMU_W_MATCH_ANY ? match[l]
		             : all                   ? mask
		                                     : 0;
	}
}

static void
complete(int op, EmuBlock *b, int warp, uint32_t mask, uint64_t arg, Site at)
{
	Thread *t = &b->t[warp * 32];

	if (op >= EMU_W_MMA_BF16_16816) {
		if (mask != ~0u)
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "mma needs all 32 lanes (mask 0x%08x)", mask);
		mma_run(op, b->warp[warp].frag);
		return;
	}
	switch (op) {
	case EMU_W_SYNC:
		if (emu_check)
			clock_warp(b, warp, mask);
		return;
	case EMU_W_SHFL:
	case EMU_W_SHFL_XOR:
	case EMU_W_SHFL_UP:
	case EMU_W_SHFL_DOWN:
		shuffle_lanes(op, t, mask, at);
		return;
	case EMU_W_BALLOT:
	case EMU_W_MATCH_ANY:
	case EMU_W_MATCH_ALL:
		vote(op, t, mask);
		return;
	case EMU_W_SUM_F32:
	case EMU_W_MAX_F32:
	case EMU_W_MIN_F32:
		butterfly(op, t, mask, at);
		return;
	case EMU_W_LDMATRIX:
	case EMU_W_LDMATRIX_T:
	case EMU_W_STMATRIX:
		mma_ldmatrix(op, (int)arg, mask, t, at);
		return;
	default:
		reduce(op, t, mask);
	}
}

static bool
same(const Rendezvous *m, int op, uint32_t mask, Site at)
{
	return m->mask == mask && m->op == op && m->at.line == at.line && m->at.file == at.file;
}

/* Returns the rendezvous for this mask, or a new one. */
static __attribute__((noinline)) Rendezvous *
find_rendezvous(Thread *t, int op, uint32_t mask, Site at)
{
	Warp *w = t->w;
	Rendezvous *m = NULL;

	if (!(mask >> t->lane & 1))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "the calling lane %u is not in the mask 0x%08x", t->lane, mask);
	if (mask & ~w->alive)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "warp collective with an inactive lane: the mask 0x%08x names lanes 0x%08x "
		        "that have exited or do not exist",
		        mask, mask & ~w->alive);
	/* Another mask may overlap this one. Its lanes arrive here later, or the block is stuck. */
	for (int i = 0; i < w->n_rendezvous && !m; i++)
		if (w->rendezvous[i].mask == mask)
			m = &w->rendezvous[i];
	if (m && !same(m, op, mask, at) &&
	    (m->op != op || m->at.line != at.line || strcmp(m->at.file, at.file)))
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
		        "lanes of a warp disagree about the collective: others wait in line %d "
		        "with the same mask 0x%08x",
		        m->at.line, mask);
	if (!m) {
		if (w->n_rendezvous == 8)
			emu_die(CUDA_ERROR_LAUNCH_FAILED, at,
			        "more than 8 groups of one warp in collectives");
		m = &w->rendezvous[w->n_rendezvous++];
		*m = (Rendezvous){ mask, 0, op, at };
	}
	return m;
}

/* Joins a collective. io: operands, and results on return. The last lane to arrive computes the
 * results of all lanes. */
static inline __attribute__((always_inline)) void
warp_rendezvous(int op, uint32_t mask, uint64_t *io, uint64_t arg, Site at)
{
	Thread *t = emu_cur;
	Warp *w = t->w;
	const uint32_t bit = 1u << t->lane;
	Rendezvous *m = w->rendezvous;

	t->io = io;
	t->at = at;
	if (unlikely(w->n_rendezvous != 1 || !same(m, op, mask, at) || !(mask & bit)))
		m = find_rendezvous(t, op, mask, at);
	m->arrived |= bit;
	if (m->arrived != mask) {
		fiber_wait(t, T_WARP);
		return;
	}
	*m = w->rendezvous[--w->n_rendezvous];
	emu_progress++;
	complete(op, t->blk, (int)t->warp, mask, arg, at);
	/* lane states need no update, because the lanes run before any state is read */
	if (mask & ~bit) {
		w->ready |= mask & ~bit;
		t->blk->any_ready |= w->rank_bit;
	}
}

EXPORT emu_u64
emu_warp(int op, unsigned mask, emu_u64 value, emu_u64 arg, const char *file, int line)
{
	emu_u64 io[2] = { value, arg };

	warp_rendezvous(op, mask, io, arg, (Site){ file, line });
	return io[0];
}

EXPORT emu_four
emu_mma(int op, emu_words a, emu_u64 b, emu_four c, const char *file, int line)
{
	Fragments *f = emu_cur->w->frag;
	unsigned lane = emu_cur->lane;

	f->a[lane] = a;
	f->b[lane] = b;
	f->c[lane] = c;
	warp_rendezvous(op, ~0u, NULL, 0, (Site){ file, line });
	return f->c[lane];
}

EXPORT emu_words
emu_ldmatrix(int op, int n, const void *row, const char *file, int line)
{
	emu_u64 io[2] = { (uintptr_t)row, 0 };

	warp_rendezvous(op, ~0u, io, (emu_u64)n, (Site){ file, line });
	return (emu_words){ io[0], io[1] };
}

EXPORT void
emu_stmatrix(void *row, emu_words v, const char *file, int line)
{
	emu_u64 io[3] = { (uintptr_t)row, v.a, v.b };

	warp_rendezvous(EMU_W_STMATRIX, ~0u, io, 4, (Site){ file, line });
}

/* Returns the calling lane alone. There is no rendezvous, because a kernel cannot rely on which
 * lanes happen to be active. */
EXPORT unsigned
emu_activemask(const char *file, int line)
{
	emu_die(CUDA_ERROR_LAUNCH_FAILED, (Site){ file, line },
	        "__activemask does not return a mask that a kernel may rely on; pass the mask as "
	        "an argument");
}

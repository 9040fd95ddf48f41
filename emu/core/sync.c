/* Atomics and fences. Fibers are sequentially consistent, so values never show that synchronisation
 * is missing. The checking mode shows it: only a release and an acquire (or fences around relaxed
 * atomics) pass a thread's clocks on. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

/* Clocks released at an address, separately for each scope: all devices, one device, one cluster
 * (identified by its first block), one block. `ops`: operations ordered before the releasing
 * threads. */
typedef struct AtomicCell {
	const void *p;
	KnownClocks *all, *gpu, *cluster, *block;
	uint32_t cuid, buid, from; /* from: bit mask of devices that have released to all */
	int device;                /* device of `gpu` */
	OpSet ops, gpu_ops;
} AtomicCell;

static AtomicCell *place;
static int n_place, cap_place;

static AtomicCell *
place_of(const void *p, bool make)
{
	for (int i = 0; i < n_place; i++)
		if (place[i].p == p)
			return &place[i];
	if (!make)
		return NULL;
	if (n_place == cap_place) {
		cap_place = cap_place ? 2 * cap_place : 64;
		place = realloc(place, sizeof *place * (size_t)cap_place);
	}
	place[n_place] = (AtomicCell){ .p = p };
	return &place[n_place++];
}

static void
forget(AtomicCell *s)
{
	known_drop(s->all);
	known_drop(s->gpu);
	known_drop(s->cluster);
	known_drop(s->block);
	*s = (AtomicCell){ .p = s->p };
}

void
sync_reset(bool all)
{
	int n = 0;

	for (int i = 0; i < n_place; i++)
		if (!all && place[i].all && emu_contexts() > 1)
			place[n++] = place[i];
		else
			forget(&place[i]);
	n_place = n;
}

void
sync_renumber(uint64_t seq)
{
	for (int i = 0; i < n_place; i++) {
		op_forget(&place[i].ops, seq);
		op_forget(&place[i].gpu_ops, seq);
	}
}

static void
publish(AtomicCell *s, Thread *t, KnownClocks *k, int scope)
{
	uint32_t cuid = t->blk->cluster->b[0]->buid;
	EmuOp *op = t->blk->op;

	if (scope == EMU_GPU) {
		if (s->device != op->device) {
			known_drop(s->gpu);
			s->gpu = NULL;
			s->gpu_ops = (OpSet){ 0 };
			s->device = op->device;
		}
		s->gpu = known_join(s->gpu, k);
		op_notified(op, t->gdc_waited, &s->gpu_ops);
		return;
	}
	if (scope == EMU_CLUSTER) {
		if (s->cuid != cuid) {
			known_drop(s->cluster);
			s->cluster = NULL;
			s->cuid = cuid;
		}
		s->cluster = known_join(s->cluster, k);
		return;
	}
	if (scope != EMU_CTA) {
		s->all = known_join(s->all, k);
		s->from |= 1u << op->device;
		op_notified(op, t->gdc_waited, &s->ops);
		return;
	}
	if (s->buid != t->blk->buid) {
		known_drop(s->block);
		s->block = NULL;
		s->buid = t->blk->buid;
	}
	s->block = known_join(s->block, k);
}

/* Orders t after the operations of a release: at once, or at the next fence. */
static void
acquire_clock(Thread *t, const OpSet *of, bool now)
{
	if (emu_contexts() < 2)
		return;
	if (now) {
		op_acquires(t->blk->op, of);
		return;
	}
	OpSet **acquired = &t->blk->acquired;
	if (!*acquired)
		*acquired = emu_alloc(sizeof **acquired);
	for (size_t i = 0; i < sizeof of->w / sizeof *of->w; i++)
		(*acquired)->w[i] |= of->w[i];
}

static void
order_memory(Thread *t, const void *p, int kind, int order, int scope)
{
	bool block_only = scope == EMU_CTA;

	if (kind != EMU_STORE) {
		AtomicCell *s = place_of(p, false);
		if (s) {
			bool now = order == EMU_ACQUIRE || order == EMU_ACQ_REL;
			KnownClocks *got = NULL;
			/* A reader with block scope acquires only what its own block released,
			 * whatever the scope of the release. A reader with device scope acquires
			 * only from its own device. */
			bool wide = scope == EMU_SYS || !(s->from & ~(1u << t->blk->op->device));
			if ((!block_only && wide) || region_of(p) == t->blk->arena) {
				got = known_join(got, s->all);
				acquire_clock(t, &s->ops, now);
			}
			if ((!block_only && s->device == t->blk->op->device) ||
			    region_of(p) == t->blk->arena) {
				got = known_join(got, s->gpu);
				acquire_clock(t, &s->gpu_ops, now);
			}
			if (s->cuid == t->blk->cluster->b[0]->buid &&
			    (!block_only || region_of(p) == t->blk->arena))
				got = known_join(got, s->cluster);
			if (s->buid == t->blk->buid)
				got = known_join(got, s->block);
			if (now)
				clock_acquire(t, got);
			else
				t->pending = known_join(t->pending, got);
			known_drop(got);
		}
	}
	if (kind == EMU_LOAD)
		return;
	AtomicCell *s = place_of(p, true);
	if (kind == EMU_STORE) { /* a plain store ends the release sequence */
		forget(s);
	}
	if (order == EMU_RELEASE || order == EMU_ACQ_REL) {
		KnownClocks *k = clock_publish(t);
		publish(s, t, k, scope);
		known_drop(k);
	} else if (t->fence) {
		publish(s, t, t->fence, t->fence_cta ? EMU_CTA : scope);
	}
}

/* Must be called before the atomic operation itself, which then runs without a switch of fibers. */
void
emu_atomic(void *p, unsigned n, int kind, int order, int scope, const char *file, int line)
{
	Thread *t = emu_cur;
	Site at = { file, line };

	if ((uintptr_t)p & (n - 1))
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned atomic: %u bytes at an address that is not a multiple of %u", n,
		        n);
	/* A polling thread must let others run. Before a modification, other threads sometimes run
	 * too. */
	if (kind == EMU_LOAD || kind == EMU_CAS)
		block_yield(at);
	else
		emu_progress++;
	if (kind == EMU_RMW && !(emu_random() & 7))
		block_yield(at);
	if (!emu_check)
		return;
	size_t gap;
	if ((kind == EMU_RMW || kind == EMU_CAS) && !shadow_written(p, n, &gap)) {
		char *where = region_describe(p);
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "atomic on unwritten memory: %u bytes, %s", n,
		        where);
	}
	shadow_access(p, n, kind != EMU_LOAD,
	              scope == EMU_CTA       ? ACCESS_BLOCK
	              : scope == EMU_CLUSTER ? ACCESS_CLUSTER
	              : scope == EMU_SYS     ? ACCESS_SYSTEM
	                                     : ACCESS_DEVICE,
	              NULL, at);
	order_memory(t, p, kind, order, scope);
}

void
emu_fence(int scope, const char *file, int line)
{
	Thread *t = emu_cur;

	t->at = (Site){ file, line };
	if (!emu_check)
		return;
	clock_acquire(t, t->pending);
	known_drop(t->pending);
	t->pending = NULL;
	if (t->blk->acquired)
		op_acquires(t->blk->op, t->blk->acquired);
	known_drop(t->fence);
	t->fence = clock_publish(t);
	t->fence_cta = scope == EMU_CTA;
}

/* Inlined switch from one fiber to another */
#ifndef EMU_CORE_SWITCH_H
#define EMU_CORE_SWITCH_H

#include "emu.h"

/* Switches stacks. A stack that is not running holds a resume address, then the frame pointer. The
 * compiler saves all other registers. The switch jumps instead of returning, because all fibers
 * wait in the same few places and a jump keeps the CPU's return predictor in step. */
static inline __attribute__((always_inline)) void
fiber_switch(void **save, void *load)
{
	__asm__ volatile("pushq %%rbp\n\tleaq 1f(%%rip), %%rax\n\tpushq %%rax\n\tmovq %%rsp, "
	                 "(%%rdi)\n\tmovq %%rsi, %%rsp\n\tpopq %%rax\n\tjmp *%%rax\n"
	                 "1:\tpopq %%rbp"
	                 : "+D"(save), "+S"(load)
	                 :
	                 : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13",
	                   "r14", "r15", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
	                   "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
	                   "xmm13", "xmm14", "xmm15");
}

static inline __attribute__((always_inline)) void
fiber_go(Thread *from, Thread *to)
{
	emu_cur = to;
	fiber_switch(&from->sp, to->sp);
}

Thread *block_pick(EmuBlock *b); /* returns the next ready thread and marks it as running; the
                                    host's fiber if no thread is ready */

static inline int
warp_first(const Warp *w, uint32_t lanes)
{
	return w->down ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes);
}

/* Suspends the running thread. Usually the next lane of its warp continues, so the stack of the
 * lane after that one is prefetched. */
static inline __attribute__((always_inline)) void
fiber_wait(Thread *t, ThreadState why)
{
	EmuBlock *b = t->blk;
	Warp *w = t->w;
	uint32_t m = w->ready;
	Thread *n, *lane0 = t - t->lane;

	t->state = why;
	if (likely(m && !(b->any_ready & w->before))) {
		int lane = warp_first(w, m);
		n = lane0 + lane;
		m &= ~(1u << lane);
		w->ready = m;
		if (m) {
			const Thread *after = lane0 + warp_first(w, m);
			const char *sp = after->sp;
			__builtin_prefetch(sp);
			__builtin_prefetch(sp + 64);
			__builtin_prefetch(sp + 128);
			__builtin_prefetch(&after->vc);
			__builtin_prefetch(w->down ? &after[-1].sp : &after[1].sp);
		} else {
			b->any_ready &= ~w->rank_bit;
		}
	} else {
		n = block_pick(b);
	}
	fiber_go(t, n);
	t->state = T_RUN;
}

#endif

/* cp.async. A copy destroys its target when issued, and fills it when the issuing thread waits for
 * the copy's group. This file also has vector loads and stores, which check the alignment that
 * hardware requires. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

static COLD void
grow(CpQueue *q)
{
	uint32_t cap = q->cap ? 2 * q->cap : 16;
	CpCopy *c = emu_alloc(sizeof *c * cap);

	for (uint32_t i = q->landed; i != q->issued; i++)
		c[i & (cap - 1)] = q->copy[i & (q->cap - 1)];
	free(q->copy);
	q->copy = c;
	q->cap = cap;
}

void
emu_cp_async(void *dst, const void *src, unsigned n, unsigned src_n, const char *file, int line)
{
	Thread *t = emu_cur;
	CpQueue *q = &t->cp;
	Site at = { file, line };
	const Region *arena = t->blk->arena;

	if (n != 4 && n != 8 && n != 16)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, at, "cp.async of %u bytes: 4, 8 or 16", n);
	if (((uintptr_t)dst | (uintptr_t)src) & (n - 1))
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned cp.async: both addresses must be multiples of %u", n);
	if ((size_t)((char *)dst - arena->lo) >= (size_t)(arena->hi - arena->lo))
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "cp.async: the target is not this block's shared memory");
	if (emu_check) {
		if (src_n)
			shadow_read(src, src_n < n ? src_n : n, NULL, at);
		shadow_write(dst, n, NULL, at);
	}
	if (q->issued - q->landed == q->cap)
		grow(q);
	CpCopy *c = &q->copy[q->issued++ & (q->cap - 1)];
	c->dst = dst, c->src = src, c->n = n, c->src_n = src_n < n ? src_n : n, c->at = at;
	if (likely(c->src_n == 16)) {
		memcpy(c->was, src, 16);
		memset(dst, 0xff, 16);
	} else {
		memcpy(c->was, src, c->src_n);
		memset(dst, 0xff, n);
	}
	if (emu_check)
		shadow_inflight(dst, n);
}

void
emu_cp_commit(void)
{
	CpQueue *q = &emu_cur->cp;

	if (q->n_group == q->cap_group) {
		q->cap_group = (short)(q->cap_group ? 2 * q->cap_group : 16);
		q->group = realloc(q->group, sizeof *q->group * (size_t)q->cap_group);
	}
	q->group[q->n_group++] = q->issued;
}

/* Completes the copies before number `upto`, and performs the arrivals that depend on them. */
static void
finish(Thread *t, uint32_t upto)
{
	CpQueue *q = &t->cp;
	Thread *self = emu_cur;
	Site at = { 0 };
	int k = 0;

	emu_cur = t; /* the copies belong to t, whichever thread completes them */
	for (; (int32_t)(upto - q->landed) > 0; q->landed++) {
		CpCopy *c = &q->copy[q->landed & (q->cap - 1)];
		if (emu_check)
			shadow_write(c->dst, c->n, NULL, c->at);
		emu_words was, is;
		memcpy(&was, c->was, 16);
		memcpy(&is, c->src_n == 16 ? c->src : c->was, 16);
		if (was.a != is.a || was.b != is.b ||
		    (c->src_n != 16 && memcmp(c->was, c->src, c->src_n)))
			emu_die(CUDA_ERROR_LAUNCH_FAILED, c->at,
			        "the source of cp.async was written while the copy was in flight");
		if (likely(c->src_n == 16)) {
			memcpy(c->dst, &was, 16);
		} else {
			memcpy(c->dst, c->was, c->src_n);
			memset((char *)c->dst + c->src_n, 0, c->n - c->src_n);
		}
		at = c->at;
	}
	for (int i = 0; i < q->n_arr; i++) {
		CpArrival a = q->arr[i];
		if ((int32_t)(a.upto - q->landed) > 0)
			q->arr[k++] = a;
		else
			mbar_late_arrive(t, a.bar, at);
	}
	q->n_arr = k;
	emu_cur = self;
}

void
copy_complete(Thread *t, const void *bar)
{
	for (int i = 0; i < t->cp.n_arr; i++)
		if (t->cp.arr[i].bar == bar) {
			finish(t, t->cp.arr[i].upto);
			return;
		}
}

void
emu_cp_wait(int left)
{
	CpQueue *q = &emu_cur->cp;
	int done = q->n_group - left;

	if (done <= 0)
		return;
	uint32_t upto = q->group[done - 1];
	if ((int32_t)(upto - q->landed) > 0)
		finish(emu_cur, upto);
	for (int i = done; i < q->n_group; i++)
		q->group[i - done] = q->group[i];
	q->n_group -= done;
}

void
emu_cp_wait_all(void)
{
	finish(emu_cur, emu_cur->cp.issued);
	emu_cur->cp.n_group = 0;
}

/* cp.async.mbarrier.arrive.noinc: this thread arrives at the barrier when its copies so far have
 * landed. */
void
emu_cp_arrive(void *bar, const char *file, int line)
{
	CpQueue *q = &emu_cur->cp;
	Site at = { file, line };

	if (q->issued == q->landed) {
		mbar_late_arrive(emu_cur, bar, at);
		return;
	}
	if (q->n_arr == q->cap_arr) {
		q->cap_arr = (short)(q->cap_arr ? 2 * q->cap_arr : 8);
		q->arr = realloc(q->arr, sizeof *q->arr * (size_t)q->cap_arr);
	}
	q->arr[q->n_arr++] = (CpArrival){ q->issued, bar };
	mbar_late_arrive(NULL, bar, at);
}

/* Resets the queues of a finished block but keeps their memory. */
void
copy_forget(Thread *t)
{
	t->cp.issued = t->cp.landed = 0;
	t->cp.n_group = t->cp.n_arr = 0;
}

void
copy_free(Thread *t)
{
	free(t->cp.copy);
	free(t->cp.group);
	free(t->cp.arr);
}

void
emu_misaligned(unsigned n, int write, const char *file, int line)
{
	emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, (Site){ file, line },
	        "misaligned vector %s: %u bytes at an address that is not a multiple of %u",
	        write ? "store" : "load", n, n);
}

emu_words
emu_load(const void *p, unsigned n, const char *file, int line)
{
	emu_words v = { 0, 0 };

	if (unlikely((uintptr_t)p & (n - 1)))
		emu_misaligned(n, 0, file, line);
	if (emu_check)
		shadow_read(p, n, NULL, (Site){ file, line });
	if (likely(n == 16))
		memcpy(&v, p, 16);
	else
		memcpy(&v, p, n);
	return v;
}

/* ld.global.nc: no thread may write the memory while the kernel runs. */
emu_words
emu_load_const(const void *p, unsigned n, const char *file, int line)
{
	emu_words v = emu_load(p, n, file, line);

	if (emu_check)
		shadow_read_only(p, n, (Site){ file, line });
	return v;
}

void
emu_store(void *p, emu_words v, unsigned n, const char *file, int line)
{
	if (unlikely((uintptr_t)p & (n - 1)))
		emu_misaligned(n, 1, file, line);
	if (emu_check)
		shadow_write(p, n, NULL, (Site){ file, line });
	memcpy(p, &v, n);
}

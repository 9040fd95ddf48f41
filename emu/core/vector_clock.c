/* Happens-before tracking. A thread's clock is incremented whenever the thread publishes (barrier,
 * release, fence). Clocks of its own block are a vector, those of other blocks a sorted list of
 * such vectors. Vectors and lists are shared between threads and copied on write, so a block
 * barrier costs one vector. The entries after those of threads (CLOCK_ASYNC and up) belong to the
 * block's asynchronous copies and matrix instructions. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

enum { CLOCK_MAX = (1 << 17) - 2 };

VC *
vc_new(int n)
{
	VC *v = emu_alloc(sizeof *v + sizeof v->c[0] * (size_t)n);

	v->ref = 1;
	v->n = n;
	return v;
}

VC *
vc_ref(VC *v)
{
	v->ref++;
	return v;
}

void
vc_drop(VC *v)
{
	if (v && !--v->ref)
		free(v);
}

static VC *
vc_own(VC *v) /* consumes v; returns a copy that no other thread shares */
{
	if (v->ref == 1)
		return v;
	VC *c = vc_new(v->n);
	memcpy(c->c, v->c, sizeof v->c[0] * (size_t)v->n);
	vc_drop(v);
	return c;
}

static bool
vc_covers(const VC *a, const VC *b)
{
	uint32_t less = 0;

	if (a == b)
		return true;
	for (int i = 0; i < a->n; i++)
		less |= a->c[i] < b->c[i];
	return !less;
}

static VC *
vc_join(VC *a, VC *b) /* consumes a */
{
	if (a == b || vc_covers(a, b))
		return a;
	if (vc_covers(b, a)) {
		vc_drop(a);
		return vc_ref(b);
	}
	a = vc_own(a);
	for (int i = 0; i < a->n; i++)
		a->c[i] = a->c[i] > b->c[i] ? a->c[i] : b->c[i];
	return a;
}

KnownClocks *
known_ref(KnownClocks *k)
{
	if (k)
		k->ref++;
	return k;
}

void
known_drop(KnownClocks *k)
{
	if (!k || --k->ref)
		return;
	for (int i = 0; i < k->n; i++)
		vc_drop(k->e[i].vc);
	free(k);
}

static bool
known_covers(const KnownClocks *a, const KnownClocks *b)
{
	int i = 0;

	for (int j = 0; j < b->n; j++) {
		while (i < a->n && a->e[i].buid < b->e[j].buid)
			i++;
		if (i == a->n || a->e[i].buid != b->e[j].buid || !vc_covers(a->e[i].vc, b->e[j].vc))
			return false;
	}
	return true;
}

KnownClocks *
known_join(KnownClocks *a, const KnownClocks *b)
{
	if (!b || a == b || !b->n)
		return a;
	if (!a)
		return known_ref((KnownClocks *)b);
	if (known_covers(a, b))
		return a;
	KnownClocks *k = emu_alloc(sizeof *k + sizeof k->e[0] * (size_t)(a->n + b->n));
	int i = 0, j = 0;

	k->ref = 1;
	while (i < a->n || j < b->n) {
		uint32_t x = i < a->n ? a->e[i].buid : ~0u, y = j < b->n ? b->e[j].buid : ~0u;
		k->e[k->n].buid = x < y ? x : y;
		VC *v = x <= y ? vc_ref(a->e[i].vc) : vc_ref(b->e[j].vc);
		if (x == y)
			v = vc_join(v, b->e[j].vc);
		k->e[k->n++].vc = v;
		i += x <= y;
		j += y <= x;
	}
	known_drop(a);
	return k;
}

KnownClocks *
known_keep(KnownClocks *k, bool (*keep)(uint32_t buid, const void *user), const void *user)
{
	int n = 0;

	for (int i = 0; k && i < k->n; i++)
		n += keep(k->e[i].buid, user);
	if (!k || n == k->n)
		return k;
	KnownClocks *less = n ? emu_alloc(sizeof *less + sizeof less->e[0] * (size_t)n) : NULL;
	for (int i = 0; i < k->n && less; i++)
		if (keep(k->e[i].buid, user)) {
			less->e[less->n].buid = k->e[i].buid;
			less->e[less->n++].vc = vc_ref(k->e[i].vc);
		}
	if (less)
		less->ref = 1;
	known_drop(k);
	return less;
}

static void
tick(Thread *t)
{
	if (++t->clk > CLOCK_MAX)
		emu_die(CUDA_ERROR_LAUNCH_FAILED, t->at,
		        "more synchronisation in one kernel than the checking mode can count");
}

void
clock_start(Thread *t)
{
	t->clk = 1;
	t->vc = t->lin ? vc_ref(t->blk->t[0].vc) : vc_new(CLOCK_N(t->blk));
	t->kn = known_ref(t->blk->op->from);
}

void
clock_waited(Thread *t)
{
	KnownClocks *all = t->blk->op->waited;

	if (clock_acquired(t)) {
		t->kn = known_join(t->kn, all);
	} else if (all) { /* t has acquired nothing beyond what its block has */
		known_drop(t->kn);
		t->kn = known_ref(all);
	}
}

bool
clock_acquired(const Thread *t)
{
	return t->kn && t->kn != t->blk->op->from && t->kn != t->blk->op->waited;
}

void
clock_stop(Thread *t)
{
	vc_drop(t->vc);
	known_drop(t->kn);
	known_drop(t->fence);
	known_drop(t->pending);
	for (int i = 0; t->proxy && i < 2; i++) {
		vc_drop(t->proxy->vc[i]);
		known_drop(t->proxy->kn[i]);
	}
	free(t->proxy);
}

KnownClocks *
clock_publish(Thread *t)
{
	KnownClocks *one = emu_alloc(sizeof *one + sizeof one->e[0]);

	t->vc = vc_own(t->vc);
	t->vc->c[t->lin] = t->clk;
	one->ref = one->n = 1;
	one->e[0].buid = t->blk->buid;
	one->e[0].vc = vc_ref(t->vc);
	tick(t);
	return known_join(one, t->kn);
}

void
clock_acquire(Thread *t, const KnownClocks *k)
{
	uint32_t self = t->blk->buid;
	bool other = false;

	if (!k)
		return;
	for (int i = 0; i < k->n; i++)
		if (k->e[i].buid == self)
			t->vc = vc_join(t->vc, k->e[i].vc);
		else
			other = true;
	if (other)
		t->kn = known_join(
		    t->kn, k); /* k may contain an entry of t's own block, which is harmless */
	shadow_more_ordered();
}

static KnownClocks *
join_kn(EmuBlock *b, int first, int end, uint32_t lanes)
{
	KnownClocks *kn = NULL;
	const KnownClocks *last = NULL;

	for (int i = first; i < end; i++)
		if ((lanes >> (i & 31) & 1) && b->t[i].kn != last) {
			last = b->t[i].kn;
			kn = known_join(kn, last);
		}
	return kn;
}

void
clock_leave(EmuBlock *b)
{
	if (emu_contexts() < 2)
		return;
	KnownClocks *kn = join_kn(b, 0, b->nt, ~0u);
	b->op->acquired = known_join(b->op->acquired, kn);
	known_drop(kn);
}

void
clock_block_barrier(EmuBlock *b)
{
	VC *v = vc_new(CLOCK_N(b));
	KnownClocks *kn = join_kn(b, 0, b->nt, ~0u);

	for (int i = 0; i < b->nt; i++) {
		v->c[i] = b->t[i].clk;
		for (int k = b->nt; k < CLOCK_N(b); k++)
			if (b->t[i].vc->c[k] > v->c[k])
				v->c[k] = b->t[i].vc->c[k];
	}
	for (int i = 0; i < b->nt; i++) {
		Thread *t = &b->t[i];
		vc_drop(t->vc);
		t->vc = vc_ref(v);
		known_drop(t->kn);
		t->kn = known_ref(kn);
		tick(t);
	}
	vc_drop(v);
	known_drop(kn);
}

void
clock_warp(EmuBlock *b, int warp, uint32_t lanes)
{
	int first = warp * 32, end = first + 32 < b->nt ? first + 32 : b->nt;
	VC *v = vc_ref(b->t[first + __builtin_ctz(lanes)].vc), *last = v;
	KnownClocks *kn = join_kn(b, first, end, lanes);

	for (int i = first; i < end; i++)
		if ((lanes >> (i & 31) & 1) && b->t[i].vc != last) {
			last = b->t[i].vc;
			v = vc_join(v, last);
		}
	v = vc_own(v);
	for (int i = first; i < end; i++)
		if (lanes >> (i & 31) & 1)
			v->c[i] = b->t[i].clk;
	for (int i = first; i < end; i++)
		if (lanes >> (i & 31) & 1) {
			vc_drop(b->t[i].vc);
			b->t[i].vc = vc_ref(v);
			known_drop(b->t[i].kn);
			b->t[i].kn = known_ref(kn);
			tick(&b->t[i]);
		}
	vc_drop(v);
	known_drop(kn);
}

void
clock_blocks(EmuBlock **b, int n)
{
	KnownClocks *all = NULL;

	for (int i = 0; i < n; i++) {
		clock_block_barrier(b[i]);
		KnownClocks *one = emu_alloc(sizeof *one + sizeof one->e[0]);
		one->ref = one->n = 1;
		one->e[0].buid = b[i]->buid;
		one->e[0].vc = vc_ref(b[i]->t[0].vc);
		one = known_join(one, b[i]->t[0].kn);
		all = known_join(all, one);
		known_drop(one);
	}
	for (int i = 0; i < n; i++)
		for (int k = 0; k < b[i]->nt; k++) {
			known_drop(b[i]->t[k].kn);
			b[i]->t[k].kn = known_ref(all);
		}
	known_drop(all);
}

bool
clock_after(const Thread *t, uint32_t buid, unsigned thread, uint32_t clk)
{
	const EmuOp *op = t->blk->op;
	const KnownClocks *k = t->kn;

	if (buid == t->blk->buid)
		return t->vc->c[thread] >= clk;
	if (k)
		for (int lo = 0, hi = k->n; lo < hi;) {
			int mid = (lo + hi) / 2;
			if (k->e[mid].buid == buid)
				return k->e[mid].vc->c[(int)thread < k->e[mid].vc->n
				                           ? (int)thread
				                           : k->e[mid].vc->n - 1] >= clk ||
				       (buid - op->buid0 >= op->n_block &&
				        (!op_of_buid(buid) ||
				         op_before(op_of_buid(buid)->seq, op, t->gdc_waited)));
			if (k->e[mid].buid < buid)
				lo = mid + 1;
			else
				hi = mid;
		}
	if (buid - op->buid0 < op->n_block)
		return false;
	const EmuOp *w = op_of_buid(buid);
	return !w || op_before(w->seq, op, t->gdc_waited);
}

bool
clock_after_any(const Thread *t, uint32_t buid)
{
	for (int i = 0; t->kn && i < t->kn->n; i++)
		if (t->kn->e[i].buid == buid)
			return true;
	return false;
}

KnownClocks *
clock_async(EmuBlock *b)
{
	VC *v = vc_new(CLOCK_N(b));
	KnownClocks *one = emu_alloc(sizeof *one + sizeof one->e[0]);

	v->c[b->nt] = b->async_clk;
	one->ref = one->n = 1;
	one->e[0].buid = b->buid;
	one->e[0].vc = v;
	return one;
}

void
clock_order_after(Thread *t, int slot, uint32_t clk)
{
	if (t->vc->c[slot] >= clk)
		return;
	t->vc = vc_own(t->vc);
	t->vc->c[slot] = clk;
}

/* Proxy fence of t. Asynchronous copies and matrix instructions ordered after it may read what the
 * thread has written so far, and overwrite what it has read or written. */
void
clock_proxy_fence(Thread *t, bool global)
{
	if (!t->proxy)
		t->proxy = emu_alloc(sizeof *t->proxy);
	t->proxy->clk[global] = t->clk;
	vc_drop(t->proxy->vc[global]);
	t->proxy->vc[global] = vc_ref(t->vc);
	known_drop(t->proxy->kn[global]);
	t->proxy->kn[global] = known_ref(t->kn);
	tick(t);
}

bool
clock_proxy_fenced(const Thread *t, const Thread *by, uint32_t clk, bool global)
{
	const ProxyFences *f = t->proxy;

	if (!f || !f->vc[global])
		return false;
	if (by == t)
		return f->clk[global] >= clk;
	if (by->blk == t->blk)
		return f->vc[global]->c[by->lin] >= clk;
	for (int i = 0; f->kn[global] && i < f->kn[global]->n; i++)
		if (f->kn[global]->e[i].buid == by->blk->buid)
			return f->kn[global]->e[i].vc->c[by->lin] >= clk;
	return false;
}

/* Tiles of tensor maps, and bulk copies out of shared memory. In shared memory a box is stored
 * innermost dimension first. The swizzle permutes its 16-byte vectors: address bits from 4 on are
 * XORed with those from 7 on. */
#include "emu.h"
#include "tensor_map.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

/* a store; n 0 marks the end of a group */
typedef struct TmaStore {
	void *dst;
	const char *src;
	unsigned n;
	const TensorMap *map;
	int c[5];
	char *taken;
	uint32_t clk;
	Site at;
} TmaStore;

const TensorMap *
tensor_map_at(const void *p, int rank, Site at)
{
	const TensorMap *m = p;
	Region *r = region_of(p);

	if ((uintptr_t)p & 127)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned tensor map: it needs a multiple of 128");
	if (r && r->kind == R_SHARED)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at, "the tensor map is in shared memory");
	if (emu_check &&
	    r) /* a map passed as a parameter is on the host's stack here, not in a region */
		shadow_access(p, 128, false, false, NULL, at);
	if (m->magic != TENSOR_MAGIC)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "the argument of the tensor copy is not a tensor map");
	if (m->rank != rank)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "tensor copy with %d coordinates, the tensor map has %d dimensions", rank,
		        m->rank);
	return m;
}

/* This behaviour was observed on an H100; the manual does not mention it. */
void
tensor_place(const TensorMap *m, const int *c, bool store, Site at)
{
	if ((int64_t)c[0] * m->elem % 16)
		emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
		        "tensor copy at %d innermost: that must be a multiple of 16 bytes", c[0]);
	for (int i = 0; store && i < m->rank; i++)
		if (c[i] < 0)
			emu_die(CUDA_ERROR_ILLEGAL_INSTRUCTION, at,
			        "tensor store at coordinate %d: coordinates must not be negative",
			        c[i]);
	if (store && (int64_t)m->dim[0] * m->elem % 16 &&
	    c[0] + (int64_t)m->box[0] > (int64_t)m->dim[0])
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "tensor store at the end of rows of %lld bytes, not a multiple of 16: it "
		        "writes beyond them",
		        (long long)m->dim[0] * m->elem);
}

size_t
tensor_box_bytes(const TensorMap *m)
{
	size_t n = m->elem;

	for (int i = 0; i < m->rank; i++)
		n *= m->box[i];
	return n;
}

static size_t
swizzled(const TensorMap *m, size_t a)
{
	return !m->swizzle ? a : a ^ ((a >> 7 & (m->swizzle / 16u - 1)) << 4);
}

typedef void (*TmaRow)(const TensorMap *m, char *global, size_t k, size_t lo, size_t hi, void *arg);

/* Calls fn for every row of the box with its address in memory (NULL if outside the tensor), its
 * index k in the box, and the range [lo, hi) of its elements inside the tensor. */
static void
rows(const TensorMap *m, const int *c, TmaRow fn, void *arg)
{
	size_t n = 1, at[5] = { 0 };

	for (int i = 1; i < m->rank; i++)
		n *= m->box[i];
	for (size_t k = 0; k < n; k++) {
		char *g = (char *)(uintptr_t)m->addr;
		bool inside = true;
		for (int i = 1; i < m->rank; i++) {
			long x = (long)c[i] + (long)(at[i] * m->step[i]);
			inside = inside && x >= 0 && (uint64_t)x < m->dim[i];
			g += inside ? (size_t)x * m->stride[i - 1] : 0;
		}
		size_t lo = 0, hi = 0;
		if (inside) {
			while (lo < m->box[0] && (long)c[0] + (long)(lo * m->step[0]) < 0)
				lo++;
			for (hi = lo; hi < m->box[0] &&
			              (uint64_t)((long)c[0] + (long)(hi * m->step[0])) < m->dim[0];)
				hi++;
			g += (long)c[0] * m->elem;
		}
		fn(m, inside && hi > lo ? g : NULL, k, lo, hi, arg);
		for (int i = 1; i < m->rank && ++at[i] == m->box[i]; i++)
			at[i] = 0;
	}
}

typedef struct {
	bool write;
	Site at;
} TensorAccess;

static void
touch_row(const TensorMap *m, char *g, size_t k, size_t lo, size_t hi, void *arg)
{
	const TensorAccess *t = arg;

	(void)k;
	if (!g)
		return;
	if (m->step[0] == 1)
		shadow_access(g + lo * m->elem, (hi - lo) * m->elem, t->write, ACCESS_COPY, NULL,
		              t->at);
	else
		for (size_t i = lo; i < hi; i++)
			shadow_access(g + i * m->step[0] * m->elem, m->elem, t->write, ACCESS_COPY,
			              NULL, t->at);
}

void
tensor_touch(const TensorMap *m, const int *c, bool write, Site at)
{
	TensorAccess t = { write, at };

	rows(m, c, touch_row, &t);
}

static void
sum_row(const TensorMap *m, char *g, size_t k, size_t lo, size_t hi, void *arg)
{
	uint64_t *sum = arg;

	(void)k;
	for (size_t i = lo; g && i < hi; i += m->step[0] == 1 ? hi - lo : 1)
		*sum = emu_sum(*sum, g + i * m->step[0] * m->elem,
		               m->step[0] == 1 ? (hi - lo) * m->elem : m->elem);
}

uint64_t
tensor_sum(const TensorMap *m, const int *c)
{
	uint64_t sum = 0;

	rows(m, c, sum_row, &sum);
	return sum;
}

typedef struct {
	char *shared;
	const char *arena;
	bool put;
} Move;

static void
move_row(const TensorMap *m, char *g, size_t k, size_t lo, size_t hi, void *arg)
{
	const Move *v = arg;
	size_t row = (size_t)(v->shared - v->arena) + k * m->box[0] * m->elem;

	for (size_t i = 0; i < m->box[0]; i++) {
		char *s = (char *)(uintptr_t)v->arena + swizzled(m, row + i * m->elem);
		char *e = g + i * m->step[0] * m->elem;
		bool inside = g && i >= lo && i < hi;
		if (v->put && inside)
			memcpy(e, s, m->elem);
		else if (!v->put && inside)
			memcpy(s, e, m->elem);
		else if (!v->put)
			memset(s, m->nan_fill ? 0xff : 0, m->elem);
	}
}

void
tensor_get(const TensorMap *m, const int *c, char *shared, const char *arena)
{
	Move v = { shared, arena, false };

	rows(m, c, move_row, &v);
}

void
tensor_put(const TensorMap *m, const int *c, const char *shared, const char *arena)
{
	Move v = { (char *)(uintptr_t)shared, arena, true };

	rows(m, c, move_row, &v);
}

/* ---- out of shared memory ---- */

static void
push(StoreQueue *q, TmaStore s)
{
	if (q->n == q->cap) {
		q->cap = q->cap ? 2 * q->cap : 8;
		q->s = realloc(q->s, sizeof *q->s * (size_t)q->cap);
	}
	q->s[q->n++] = s;
}

static void
add(TmaStore s)
{
	Thread *t = emu_cur;
	StoreQueue *q = &t->bulk;
	Region *r = region_of(s.src);

	if (!r || r->kind != R_SHARED || r->blk != t->blk || (size_t)(r->hi - s.src) < s.n)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, s.at,
		        "bulk store of %u bytes: the source is not this block's shared memory",
		        s.n);
	s.clk = ++t->blk->store_clk;
	if (emu_check)
		shadow_async_read(s.src, s.n, CLOCK_STORE(t->blk), s.clk, s.at);
	push(q, s);
}

void
emu_bulk_store(void *dst, const void *src, unsigned n, const char *file, int line)
{
	Site at = { file, line };
	Region *r = region_of(dst);

	if (((uintptr_t)dst | (uintptr_t)src | n) & 15)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned bulk store: addresses and size must be multiples of 16");
	if (!r || r->kind == R_SHARED || (size_t)(r->hi - (char *)dst) < n)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "bulk store of %u bytes: the target is not device memory", n);
	add((TmaStore){ .dst = dst, .src = src, .n = n, .at = at });
	if (emu_check)
		shadow_access(dst, n, true, ACCESS_COPY, NULL, at);
	memset(dst, 0xff, n);
	if (emu_check)
		shadow_inflight(dst, n);
}

void
emu_tensor_store(const void *map, int rank, const int *c, const void *src, const char *file,
                 int line)
{
	Site at = { file, line };
	const TensorMap *m = tensor_map_at(map, rank, at);
	TmaStore s = { .src = src, .n = (unsigned)tensor_box_bytes(m), .map = m, .at = at };

	if ((uintptr_t)src & 127)
		emu_die(CUDA_ERROR_MISALIGNED_ADDRESS, at,
		        "misaligned tensor copy: the address in shared memory must be a multiple "
		        "of 128");
	tensor_place(m, c, true, at);
	memcpy(s.c, c, sizeof *c * (size_t)rank);
	if (emu_check)
		tensor_touch(m, c, true, at);
	add(s);
}

void
emu_bulk_commit(void)
{
	StoreQueue *q = &emu_cur->bulk;

	push(q, (TmaStore){ 0 }); /* end of a group */
}

/* Reads the source of a store. */
static void
take(Thread *t, TmaStore *s)
{
	if (s->taken || !s->n)
		return;
	s->taken = emu_alloc(s->n);
	memcpy(s->taken, s->src, s->n);
	if (emu_check)
		clock_order_after(t, CLOCK_STORE(t->blk), s->clk);
}

static void
put(Thread *t, TmaStore *s)
{
	take(t, s);
	if (!s->n)
		return;
	if (s->map) {
		/* Uses the saved image of the box, placed so that its address has the same low bits
		 * as the source. */
		size_t low = (size_t)(s->src - t->blk->arena->lo) & 1023;
		char *image = emu_alloc(s->n + 1024);
		memcpy(image + low, s->taken, s->n);
		if (emu_check)
			tensor_touch(s->map, s->c, true, s->at);
		tensor_put(s->map, s->c, image + low, image);
		free(image);
	} else {
		if (emu_check)
			shadow_access(s->dst, s->n, true, ACCESS_COPY, NULL, s->at);
		memcpy(s->dst, s->taken, s->n);
	}
	free(s->taken);
	s->taken = NULL;
}

void
emu_bulk_wait(int left, int read_only)
{
	Thread *t = emu_cur;
	StoreQueue *q = &t->bulk;
	int ends = 0, upto = 0;

	for (int i = 0; i < q->n; i++)
		ends += !q->s[i].n;
	for (int i = 0; i < q->n && ends > left; i++)
		if (!q->s[i].n) {
			ends--;
			upto = i + 1;
		}
	for (int i = 0; i < upto; i++)
		if (read_only)
			take(t, &q->s[i]);
		else
			put(t, &q->s[i]);
	if (read_only)
		return;
	memmove(q->s, q->s + upto, sizeof *q->s * (size_t)(q->n - upto));
	q->n -= upto;
}

void
store_leave(Thread *t)
{
	StoreQueue *q = &t->bulk;

	for (int i = 0; i < q->n; i++) {
		if (q->s[i].n && !q->s[i].taken)
			emu_die(CUDA_ERROR_LAUNCH_FAILED, q->s[i].at,
			        "a thread leaves the kernel before its bulk store has read shared "
			        "memory (bulk_wait_read)");
		put(t, &q->s[i]);
	}
	q->n = 0;
}

void
store_forget(Thread *t)
{
	for (int i = 0; i < t->bulk.n; i++)
		free(t->bulk.s[i].taken);
	free(t->bulk.s);
	t->bulk = (StoreQueue){ 0 };
}

void
emu_proxy_fence(int global)
{
	if (emu_check)
		clock_proxy_fence(emu_cur, global);
}

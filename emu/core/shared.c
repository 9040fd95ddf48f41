/* Shared memory of a block: one arena. A static object gets its offset when a thread of the kernel
 * first uses it; the offset is the same in all blocks. Gaps between objects belong to no object. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>

enum { GAP = 64 };

/* Poisons all static objects that are new to the block. */
void
shared_start(EmuBlock *b)
{
	const Func *f = b->op->fn;

	for (int k = b->n_obj; k < f->n_obj; k++) {
		char *q = b->arena->lo + shared_static_base(b->op->dyn) + f->obj[k].off;
		memset(q, 0xff, f->obj[k].n);
		if (emu_check)
			shadow_clear(b->arena, (size_t)(q - b->arena->lo), f->obj[k].n);
	}
	b->n_obj = f->n_obj;
}

EXPORT void *
emu_shared_static(const void *site, size_t n, size_t align, const char *name, const char *type,
                  const char *file, int line)
{
	EmuBlock *b = emu_cur->blk;
	Func *f = b->op->fn;
	Site at = { file, line };
	int i;

	for (i = 0; i < f->n_obj; i++)
		if (f->obj[i].site == site)
			break;
	if (i == f->n_obj) {
		f->obj = realloc(f->obj, sizeof *f->obj * (size_t)(f->n_obj + 1));
		uint32_t off = GAP;
		if (i)
			off = f->obj[i - 1].off + f->obj[i - 1].n + GAP;
		off = (uint32_t)((off + align - 1) / align * align + 15) / 16 * 16;
		f->obj[f->n_obj++] = (SharedObj){ site, name, type, off, (uint32_t)n, at };
		f->static_bytes += (uint32_t)n;
		if (f->static_bytes > 48u << 10)
			emu_die(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, at,
			        "static shared memory of %u bytes: the limit is 49152",
			        f->static_bytes);
	}
	/* A new object is added to all blocks of the launch, because another block of the cluster
	 * may access a block's copy before that block does. */
	if (b->n_obj <= i) {
		for (int k = 0; k < b->op->n_res; k++)
			shared_start(b->op->res[k]);
		shared_start(b);
	}
	return b->arena->lo + shared_static_base(b->op->dyn) + f->obj[i].off;
}

EXPORT void *
emu_shared_arena(size_t n, const char *name, const char *type, const char *file, int line)
{
	EmuBlock *b = emu_cur->blk;

	if (n > b->op->dyn)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, (Site){ file, line },
		        "the launch has %u bytes of dynamic shared memory, the kernel needs %zu",
		        b->op->dyn, n);
	if (n) {
		b->op->fn->arena = name;
		b->op->fn->arena_type = type;
	}
	return b->arena->lo;
}

uint32_t
shared_static_base(uint32_t dyn)
{
	return (dyn + GAP + 127) / 128 * 128;
}

/* Returns whether [p, p+n) is in one object of the arena. */
bool
shared_within(const Region *r, const char *p, size_t n)
{
	size_t off = (size_t)(p - r->lo);
	const Func *f = r->blk->op->fn;

	if (off + n <= r->dyn)
		return true;
	size_t base = shared_static_base(r->dyn);
	for (int i = 0; i < f->n_obj; i++)
		if (off >= base + f->obj[i].off && off + n <= base + f->obj[i].off + f->obj[i].n)
			return true;
	return false;
}

void
shared_span(EmuBlock *b, const char *p)
{
	const uint32_t off = (uint32_t)(p - b->arena->lo), base = shared_static_base(b->op->dyn);
	const Func *f = b->op->fn;

	b->span_lo = 0;
	b->span_n = off < b->op->dyn ? b->op->dyn : 0;
	for (int i = 0; !b->span_n && i < f->n_obj; i++)
		if (off - base - f->obj[i].off < f->obj[i].n) {
			b->span_lo = base + f->obj[i].off;
			b->span_n = f->obj[i].n;
		}
}

/* Memory that kernels may access: device allocations between guard pages and patterned zones,
 * pinned host memory, shared memory of blocks, data of modules. Freed device memory stays reserved
 * but unmapped for some time, so that a late access faults. */
#include "emu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 65536, ARENA = 448 << 10, HOLES = 256 };
#define LAZY_BYTES ((size_t)16 << 20)
#define POISON_MAX ((size_t)4 << 30)

static Region **all; /* sorted by address */
static int n_all, cap_all;
static Region *recent, *recent2;
static Region *free_arena[64];
static int n_free_arena;
static struct {
	char *p;
	size_t n;
} hole[HOLES];
static unsigned n_hole;

static void *
map(size_t n, int prot)
{
	void *p = mmap(NULL, n, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static void
insert(Region *r)
{
	int i;

	if (n_all == cap_all) {
		cap_all = cap_all ? 2 * cap_all : 64;
		all = realloc(all, sizeof *all * (size_t)cap_all);
	}
	for (i = n_all++; i > 0 && all[i - 1]->lo > r->lo; i--)
		all[i] = all[i - 1];
	all[i] = r;
}

static void
extract(Region *r)
{
	int i = 0;

	while (all[i] != r)
		i++;
	memmove(all + i, all + i + 1, sizeof *all * (size_t)(n_all - i - 1));
	n_all--;
	if (recent == r)
		recent = NULL;
	if (recent2 == r)
		recent2 = NULL;
}

Region *
region_new(RegionKind kind, size_t bytes)
{
	if (kind == R_SHARED && n_free_arena) {
		Region *r = free_arena[--n_free_arena];
		insert(r);
		return r;
	}
	Region *r = emu_alloc(sizeof *r);
	r->device = kind == R_DEVICE ? emu_device() : -1;
	size_t want = kind == R_SHARED ? ARENA : bytes;
	size_t body = (want + 255 + 4095) / 4096 * 4096;
	r->kind = kind;
	r->map_bytes = body + 2 * GUARD;
	r->base = map(r->map_bytes, PROT_NONE);
	if (!r->base || mprotect(r->base + GUARD, body, PROT_READ | PROT_WRITE)) {
		if (r->base)
			munmap(r->base, r->map_bytes);
		free(r);
		return NULL;
	}
	char *end = r->base + GUARD + body;
	r->lo = kind == R_SHARED ? r->base + GUARD : end - (want + 255) / 256 * 256;
	r->hi = r->lo + want;
	r->bytes = want;
	if (kind == R_DEVICE) {
		memset(r->base + GUARD, 0xfd, (size_t)(r->lo - r->base) - GUARD);
		memset(r->hi, 0xfd, (size_t)(end - r->hi));
		if (want <= POISON_MAX)
			memset(r->lo, 0xff, want);
	}
	if (emu_check && (kind == R_DEVICE || kind == R_SHARED)) {
		size_t cells = (want + 1) / 2 + 1, pages = want / 4096 + 2;
		r->cell = map(cells * sizeof(Cell), PROT_READ | PROT_WRITE);
		r->place = map(cells * sizeof(CellSites), PROT_READ | PROT_WRITE);
		r->lazy = want >= LAZY_BYTES;
		if (r->lazy) {
			r->page_w = map(pages * 8, PROT_READ | PROT_WRITE);
			r->page_cells = map(pages, PROT_READ | PROT_WRITE);
		}
		if (!r->cell || !r->place || (r->lazy && (!r->page_w || !r->page_cells)))
			abort();
	}
	insert(r);
	return r;
}

Region *
region_adopt(RegionKind kind, void *lo, size_t bytes)
{
	Region *r = emu_alloc(sizeof *r);

	r->kind = kind;
	r->device = -1;
	r->lo = lo;
	r->hi = r->lo + bytes;
	r->bytes = bytes;
	insert(r);
	return r;
}

void
region_drop(Region *r)
{
	extract(r);
	prefetch_forget(r);
	r->blk = NULL;
	if (r->kind == R_SHARED && n_free_arena < 64) {
		free_arena[n_free_arena++] = r;
		return;
	}
	size_t cells = (r->bytes + 1) / 2 + 1;
	if (r->cell) {
		munmap(r->cell, cells * sizeof(Cell));
		munmap(r->place, cells * sizeof(CellSites));
	}
	if (r->constant)
		munmap(r->constant, cells * sizeof *r->constant);
	if (r->page_w) {
		munmap(r->page_w, (r->bytes / 4096 + 2) * 8);
		munmap(r->page_cells, r->bytes / 4096 + 2);
	}
	if (r->base) {
		unsigned i = n_hole++ % HOLES;
		if (hole[i].p)
			munmap(hole[i].p, hole[i].n);
		if (mmap(r->base, r->map_bytes, PROT_NONE,
		         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		         0) == MAP_FAILED)
			abort();
		hole[i].p = r->base;
		hole[i].n = r->map_bytes;
	}
	free(r);
}

void
region_constant(Region *r, const void *p, size_t n, uint32_t launch)
{
	if (!r->constant)
		r->constant =
		    map(((r->bytes + 1) / 2 + 1) * sizeof *r->constant, PROT_READ | PROT_WRITE);
	size_t off = (size_t)((const char *)p - r->lo);
	for (size_t c = off / 2; r->constant && c < (off + n + 1) / 2; c++)
		r->constant[c] = launch;
}

Region *
region_of(const void *p)
{
	const char *c = p;

	if (recent && c >= recent->lo && c < recent->hi)
		return recent;
	if (recent2 && c >= recent2->lo && c < recent2->hi) {
		Region *r = recent2;
		recent2 = recent;
		recent = r;
		return r;
	}
	int lo = 0, hi = n_all;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (c >= all[mid]->hi)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == n_all || c < all[lo]->lo)
		return NULL;
	recent2 = recent;
	recent = all[lo];
	return recent;
}

static char *
shared_text(const Func *f, const char *name, const char *type, size_t off, uint32_t bytes)
{
	char *member = type ? member_of(f, type, off) : NULL;
	char *text = member ? emu_format("at %s of the shared %s (%u bytes)", member, name, bytes)
	                    : emu_format("at byte %zu of the shared %s (%u bytes)", off,
	                                 name ? name : "arena", bytes);

	free(member);
	return text;
}

/* Describes an address relative to a kernel parameter: the nearest pointer at or below it in the
 * same allocation, by its name in the source ("#define ARG_x ... a[2]"). NULL: there is none. */
static char *
parameter_text(const Region *r, const char *p)
{
	const EmuOp *op = emu_cur && emu_cur->blk ? emu_cur->blk->op : NULL;
	const char *best = NULL;
	char *text = NULL;

	for (int i = 0; op && i < op->fn->n_param; i++)
		for (uint32_t at = 0; at + 8 <= op->fn->param_size[2 * i]; at += 8) {
			const char *q;
			memcpy(&q, (const char *)op->param[i] + at, 8);
			if (q < r->lo || q > p || q <= best)
				continue;
			best = q;
			free(text);
			text = func_argument(op->fn, i, at);
		}
	if (!text)
		return NULL;
	char *place = emu_format("at byte %zu of %s", (size_t)(p - best), text);
	free(text);
	return place;
}

/* Describes an address by the nearest object, as allocated text. */
char *
region_describe(const void *p)
{
	const char *c = p;
	Region *r = region_of(p), *near = NULL;

	if (r && r->kind == R_SHARED) {
		const Func *f = r->blk ? r->blk->op->fn : NULL;
		size_t off = (size_t)(c - r->lo), base = shared_static_base(r->dyn);
		if (off < r->dyn || !f)
			return shared_text(f, f ? f->arena : NULL, f ? f->arena_type : NULL, off,
			                   r->dyn);
		for (int i = 0; i < f->n_obj; i++)
			if (off >= base + f->obj[i].off && off < base + f->obj[i].off + f->obj[i].n)
				return shared_text(f, f->obj[i].name, f->obj[i].type,
				                   off - base - f->obj[i].off, f->obj[i].n);
		return emu_format("in shared memory, outside of every object");
	}
	char *parameter = r && r->kind == R_DEVICE ? parameter_text(r, c) : NULL;
	if (parameter) {
		char *text = emu_format("%s (byte %zu of a device allocation of %zu bytes)",
		                        parameter, (size_t)(c - r->lo), r->bytes);
		free(parameter);
		return text;
	}
	if (r)
		return emu_format("at byte %zu of %s of %zu bytes", (size_t)(c - r->lo),
		                  r->kind == R_PINNED   ? "pinned host memory"
		                  : r->kind == R_MODULE ? "the module's data"
		                                        : "a device allocation",
		                  r->bytes);
	for (unsigned i = 0; i < HOLES; i++)
		if (hole[i].p && c >= hole[i].p && c < hole[i].p + hole[i].n)
			return emu_format("at %p in a device allocation that was freed", p);
	for (int i = 0; i < n_all; i++)
		if (all[i]->base && c >= all[i]->base && c < all[i]->base + all[i]->map_bytes)
			near = all[i];
	if (near)
		return emu_format("%zu bytes %s %s of %zu bytes",
		                  c >= near->hi ? (size_t)(c - near->hi) : (size_t)(near->lo - c),
		                  c >= near->hi ? "after the end of" : "before",
		                  near->kind == R_SHARED ? "shared memory" : "a device allocation",
		                  near->bytes);
	return emu_format("at %p, which is not device memory", p);
}

Region *
region_damage(const char **where)
{
	for (int i = 0; i < n_all; i++) {
		Region *r = all[i];
		if (r->kind != R_DEVICE)
			continue;
		char *end = r->base + r->map_bytes - GUARD;
		/* Checks only the last 256 bytes of the zone before the allocation. There are many
		 * allocations, and this touches at most one page for each. */
		char *from = r->lo - 256 > r->base + GUARD ? r->lo - 256 : r->base + GUARD;
		for (char *p = from; p < r->lo; p++)
			if (*p != (char)0xfd) {
				memset(from, 0xfd, (size_t)(r->lo - from));
				*where = "before the start";
				return r;
			}
		for (char *p = r->hi; p < end; p++)
			if (*p != (char)0xfd) {
				memset(r->hi, 0xfd, (size_t)(end - r->hi));
				*where = "after the end";
				return r;
			}
	}
	return NULL;
}

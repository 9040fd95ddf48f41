/* Checks of prefetches to L2. A prefetch moves no data, so no result shows a mistake. The bytes
 * must be device memory. In checking mode, one of the next kernels must read the prefetched
 * bytes. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* REACH: one of this many following kernels of the device must read the prefetched bytes. LINE:
 * span of bytes of which at least one must be read. */
enum { REACH = 5, LINE = 128, MANY = 1 << 16 };

typedef struct Prefetch {
	const char *p;
	size_t n;
	const char *kernel; /* name of the launch, kept because the launch may be forgotten before
	                       the check */
	uint64_t seq;
	uint32_t buid;
	int later, device; /* later: number of kernels that have ended since the prefetch */
	Site at;
} Prefetch;

static Prefetch *pending;
static int n_pending, cap_pending;
static long long total; /* bytes of all prefetches so far */

/* Writes the total to the file LLMC_EMU_PREFETCHED, for tests of programs. */
static __attribute__((destructor)) void
write_total(void)
{
	const char *path = getenv("LLMC_EMU_PREFETCHED");
	FILE *f = path && *path && total ? fopen(path, "w") : NULL;

	if (!f)
		return;
	fprintf(f, "%lld\n", total);
	fclose(f);
}

/* Returns whether a kernel prefetches for itself. Such a kernel may read only part of a line. All
 * prefetches for later kernels are in one source file. */
static bool
for_itself(Site at)
{
	return at.file && strstr(at.file, "cuda/") && !strstr(at.file, "runtime/prefetch.h");
}

void
prefetch_note(const void *p, size_t n, Site at)
{
	const EmuOp *op = emu_cur->blk->op;
	const Region *r = region_of(p);
	Prefetch *last = n_pending ? &pending[n_pending - 1] : NULL;

	if (!r || r->kind == R_SHARED || (size_t)(r->hi - (const char *)p) < n)
		emu_die(CUDA_ERROR_ILLEGAL_ADDRESS, at,
		        "prefetch of %zu bytes that are not device memory", n);
	total += (long long)n;
	if (!emu_check || r->kind != R_DEVICE || r->lazy || n == 0 || for_itself(at))
		return;
	if (last && last->seq == op->seq && last->p + last->n == (const char *)p &&
	    last->at.line == at.line) {
		last->n += n;
		return;
	}
	if (n_pending == MANY)
		return;
	if (n_pending == cap_pending) {
		cap_pending = cap_pending ? 2 * cap_pending : 64;
		pending = realloc(pending, sizeof *pending * (size_t)cap_pending);
		if (!pending)
			abort();
	}
	pending[n_pending++] = (Prefetch){ .p = p,
		                           .n = n,
		                           .kernel = strdup(op->name),
		                           .seq = op->seq,
		                           .buid = op->buid0,
		                           .device = op->device,
		                           .at = at };
}

/* Returns the first prefetched line that no thread has read since, or NULL. */
static const char *
unread(const Prefetch *f)
{
	for (size_t at = 0; at < f->n; at += LINE) {
		const size_t n = f->n - at < LINE ? f->n - at : LINE;
		const Region *r = region_of(f->p + at);
		if (r && r->cell && !shadow_read_since(r, f->p + at, n, f->buid, f->seq))
			return f->p + at;
	}
	return NULL;
}

void
prefetch_kernel_ended(const EmuOp *op)
{
	int k = 0;

	for (int i = 0; i < n_pending; i++) {
		Prefetch *f = &pending[i];
		const char *line = NULL;
		f->later += f->device == op->device && op->seq > f->seq;
		if (f->later >= REACH)
			line = unread(f);
		if (line && !emu_error) {
			char *where = region_describe(line);
			emu_note("kernel '%s', %s:%d: none of the next %d kernels reads what it "
			         "prefetched to L2 (%zu bytes), %s",
			         f->kernel, f->at.file ? f->at.file : "?", f->at.line, REACH, f->n,
			         where);
			free(where);
			emu_error = CUDA_ERROR_LAUNCH_FAILED;
		}
		if (f->later >= REACH)
			free((void *)(uintptr_t)f->kernel);
		else
			pending[k++] = *f;
	}
	n_pending = k;
}

void
prefetch_forget(const Region *r)
{
	int k = 0;

	for (int i = 0; i < n_pending; i++)
		if (pending[i].p >= r->lo && pending[i].p < r->hi)
			free((void *)(uintptr_t)pending[i].kernel);
		else
			pending[k++] = pending[i];
	n_pending = k;
}

/* Checks, in checking mode, of host accesses to pinned memory. No hook sees these accesses, but
 * their effects are visible. The target of a copy keeps its poison until the host has waited for
 * the copy. The source must hold the same bytes at that time as when the copy was queued. */
#include "emu.h"
#include "../cuda_api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { POISON = 0xfb };
static int n_open; /* operations whose checks are not finished */

static bool
pinned(const void *p)
{
	const Region *r = region_of(p);
	return r && r->kind == R_PINNED;
}

static bool
overlap(const char *a, size_t n, const char *b, size_t m)
{
	return a < b + m && b < a + n;
}

/* Returns whether a copy queued earlier has yet to read memory that this operation writes. */
static bool
still_read(const EmuOp *by)
{
	for (uint64_t s = timeline_base; s < by->seq; s++) {
		const EmuOp *op = op_at(s);
		if (op && op->state != OP_DONE && op->kind == OP_COPY && !op->stage &&
		    overlap(op->src, op->bytes, by->dst, by->bytes))
			return true;
	}
	return false;
}

/* Returns whether a host function queued earlier has yet to run. Such a function may read any
 * pinned memory. */
static bool
host_to_run(const EmuOp *by)
{
	for (uint64_t s = timeline_base; s < by->seq; s++) {
		const EmuOp *op = op_at(s);
		if (op && op->state != OP_DONE && op->kind == OP_HOST && !op->work)
			return true;
	}
	return false;
}

static void
forget(EmuOp *op)
{
	op->watched = false;
	n_open--;
}

/* Checks that the source is unchanged since the copy was queued. */
static void
check_source(EmuOp *op)
{
	forget(op);
	if (emu_error || op->sum == emu_sum(0, op->src, op->bytes))
		return;
	char *where = region_describe(op->src);
	emu_note("%s: the host wrote to its source while the copy was queued: %zu bytes %s",
	         op->name, op->bytes, where);
	free(where);
	emu_error = CUDA_ERROR_LAUNCH_FAILED;
}

/* Must be called before the device or an emulated copy changes pinned memory. Finished copies that
 * read the memory, and for which the host has not waited, are checked now, against its current
 * content. Unfinished copies are no longer checked. */
static void
changes(const char *p, size_t n)
{
	for (uint64_t s = timeline_base; n_open && op_at(s); s++) {
		EmuOp *op = op_at(s);
		if (!op->watched || !overlap(op->src, op->bytes, p, n))
			continue;
		if (op->state == OP_DONE)
			check_source(op);
		else
			forget(op);
	}
}

/* Called when an operation is queued. */
void
pinned_queued(EmuOp *op)
{
	if (op->kind != OP_COPY || op->stage)
		return;
	if (op->host_dst && pinned(op->dst) && !still_read(op) && !host_to_run(op)) {
		changes(op->dst, op->bytes);
		memset(op->dst, POISON, op->bytes);
	}
	if (!emu_check || !pinned(op->src))
		return;
	op->watched = true;
	op->sum = emu_sum(0, op->src, op->bytes);
	n_open++;
}

static void
make_visible(EmuOp *op)
{
	changes(op->dst, op->bytes);
	memcpy(op->dst, op->held, op->bytes);
	free(op->held);
	op->held = NULL;
	n_open--;
}

/* Called when the device accesses these bytes: finished copies to them become visible to it. */
void
pinned_used(const void *p, size_t n, bool write)
{
	for (uint64_t s = timeline_base; n_open && op_at(s); s++) {
		EmuOp *op = op_at(s);
		if (op->held && overlap(op->dst, op->bytes, p, n))
			make_visible(op);
	}
	if (write)
		changes(p, n);
}

/* Runs a host function of a stream. The function may read anything, and may write the sources of
 * later copies, because it is ordered before them. A change that the program made to such a source
 * before the function runs is still reported. */
void
pinned_host(void (*fn)(void *), void *arg)
{
	for (uint64_t s = timeline_base; n_open && op_at(s); s++) {
		EmuOp *op = op_at(s);
		if (op->held)
			make_visible(op);
		op->intact = op->watched && op->sum == emu_sum(0, op->src, op->bytes);
	}
	fn(arg);
	for (uint64_t s = timeline_base; n_open && op_at(s); s++) {
		EmuOp *op = op_at(s);
		if (op->watched && op->intact)
			op->sum = emu_sum(0, op->src, op->bytes);
	}
}

/* Reads memory of the host; returns false if it is not mapped. */
bool
emu_host_read(void *dst, const void *src, size_t n)
{
	struct iovec to = { dst, n }, from = { (void *)(uintptr_t)src, n };

	return (size_t)process_vm_readv(getpid(), &to, 1, &from, 1, 0) == n;
}

static bool
move(char *dst, const char *src, size_t n)
{
	struct iovec to = { dst, n }, from = { (void *)(uintptr_t)src, n };

	if (!region_of(src))
		return emu_host_read(dst, src, n);
	if (!region_of(dst))
		return (size_t)process_vm_writev(getpid(), &from, 1, &to, 1, 0) == n;
	memmove(dst, src, n);
	return true;
}

void
pinned_copy(EmuOp *op)
{
	if (op->stage) {
		memcpy(op->dst, op->stage, op->bytes);
		return;
	}
	if (emu_check && pinned(op->src))
		pinned_used(op->src, op->bytes, false);
	if (emu_check && pinned(op->dst)) {
		pinned_used(op->dst, op->bytes, true);
		op->held = malloc(op->bytes);
		if (op->held) {
			n_open++;
			memcpy(op->held, op->src, op->bytes);
			return;
		}
	}
	if (!move(op->dst, op->src, op->bytes)) {
		emu_note("%s: the host memory at %p is no longer mapped when the copy runs",
		         op->name, region_of(op->src) ? (void *)op->dst : (void *)op->src);
		emu_error = CUDA_ERROR_ILLEGAL_ADDRESS;
	}
}

/* Called when the host has waited for the operation. */
static void
settle(EmuOp *op)
{
	if (op->held)
		make_visible(op);
	if (op->watched)
		check_source(op);
}

void
pinned_settle(void)
{
	for (uint64_t s = timeline_base; n_open && op_at(s); s++)
		if (op_at(s)->state == OP_DONE && op_known(s))
			settle(op_at(s));
}

/* Called when the operation is discarded after an error. */
void
pinned_drop(EmuOp *op)
{
	n_open -= (op->held != NULL) + op->watched;
	free(op->held);
	op->held = NULL;
	op->watched = false;
}

/* Services for the other emulated libraries: queueing in a stream, counting, injected failures. */
#include "driver.h"
#include "../core/stream_library.h"

#include <stdlib.h>
#include <string.h>

int
emu_library_call(const char *name)
{
	enum { NAMES = 64 };
	static struct {
		char name[64];
		int counter;
	} seen[NAMES];
	static int none = -1;
	CUresult refused = CUDA_SUCCESS;
	int *counter = &none;

	for (int i = 0; i < NAMES && counter == &none; i++) {
		if (!seen[i].name[0]) {
			strncpy(seen[i].name, name, sizeof seen[i].name - 1);
			seen[i].counter = -1;
		}
		if (!strcmp(seen[i].name, name)) {
			counter = &seen[i].counter;
			name = seen[i].name;
		}
	}
	Guard g = driver_enter(counter, name, ANYTIME, &refused);
	driver_leave(&g);
	return refused;
}

int
emu_library_queue(void *stream, const LibraryWork *w, const void *blob, size_t bytes)
{
	ENTER(emu_library_queue, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(stream, &s);
	if (r)
		return r;
	EmuOp *op = op_new(OP_HOST, w->name);
	op->work_bytes = sizeof *w + bytes;
	op->work = emu_alloc(op->work_bytes);
	memcpy(op->work, w, sizeof *w);
	memcpy(op->work + 1, blob, bytes);
	return stream_add(s, op, false);
}

bool
emu_library_came_first(uint64_t seq)
{
	const EmuOp *op = op_at(seq);

	for (int i = 0; op && i < op->n_dep; i++)
		if (!op_done(op->dep[i]))
			return false;
	return true;
}

bool
emu_library_memory(const void *p, size_t n)
{
	return memory_is_device((uintptr_t)p, n) || memory_is_pinned(p, n);
}

int
emu_library_arch(void)
{
	return emu_arch;
}

int
emu_library_device(void)
{
	return driver_context ? driver_context->device : -1;
}

/* Work of a library that stands in for one of NVIDIA's. The work is queued in a stream, as a kernel
 * is. When its turn comes it runs as a whole. libcuda.so.1 exports these functions for the other
 * libraries of emu/. */
#ifndef LLMC_EMU_CORE_STREAM_LIBRARY_H
#define LLMC_EMU_CORE_STREAM_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORK_TOUCHES = 5 };

typedef struct LibraryWork {
	const char *name;
	void (*run)(void *blob);
	/* optional: called when queued (once per graph launch) */
	void (*queued)(void *blob, uint64_t seq);
	/* optional: whether other operations of the library allow this one to start */
	bool (*ready)(void *blob);
	struct {
		void *p;
		size_t n;
		bool write;
	} touch[WORK_TOUCHES];
	int n_touch;
} LibraryWork;

#pragma GCC visibility push(default)
/* Counts a call by name, as for driver calls. Returns the CUDA error with which the call must fail,
 * or 0. */
int emu_library_call(const char *name);
/* The blob is copied; a graph copies it again at each launch. */
int emu_library_queue(void *stream, const LibraryWork *w, const void *blob, size_t bytes);
bool
emu_library_came_first(uint64_t seq); /* whether all predecessors of the operation have finished */
bool emu_library_memory(const void *p, size_t n);
int emu_library_arch(void);
int emu_library_device(void); /* device of the calling thread's context */
#pragma GCC visibility pop

#endif

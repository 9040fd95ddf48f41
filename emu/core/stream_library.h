/* Work of a library that stands in for one of NVIDIA's: queued in a stream like a kernel, done at
 * once when its turn comes. Exported by libcuda.so.1 for the other libraries of this room. */
#ifndef LLMC_EMU_CORE_STREAM_LIBRARY_H
#define LLMC_EMU_CORE_STREAM_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WORK_TOUCHES = 5 };

typedef struct LibraryWork {
	const char *name;
	void (*run)(void *blob);
	void (*queued)(void *blob, uint64_t seq); /* NULL, or: it has its place among the operations
	                                             (once a launch of a graph) */
	bool (*ready)(void *blob); /* NULL, or: may it start, as far as others of its kind go? */
	struct {
		void *p;
		size_t n;
		bool write;
	} touch[WORK_TOUCHES];
	int n_touch;
} LibraryWork;

#pragma GCC visibility push(default)
/* The CUDA error that the call fails with (counted and made to fail by name, like the driver's
 * own), or 0. */
int emu_library_call(const char *name);
/* The blob is copied; graphs copy it again. */
int emu_library_queue(void *stream, const LibraryWork *w, const void *blob, size_t bytes);
bool emu_library_came_first(uint64_t seq); /* is all done that the operation waits for? */
bool emu_library_memory(const void *p, size_t n);
int emu_library_arch(void);
int emu_library_device(void); /* of the calling thread's context */
#pragma GCC visibility pop

#endif

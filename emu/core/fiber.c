/* Fiber stacks and switches. A stack has a guard page below it as long as the number of mappings
 * allows. A pattern at its low end detects overflow without a guard page. */
#include "emu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK = 256, MAX_GUARDS = 16384, PATTERN = 64 };

size_t emu_stack_bytes = 77824; /* an odd number of pages, so that stacks do not share cache sets */

static char **free_stack, **chunk_lo;
static int n_free, n_chunk, n_guard;

static void
grow(void)
{
	size_t bytes = emu_stack_bytes * CHUNK;
	char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (m == MAP_FAILED)
		abort();
	chunk_lo = realloc(chunk_lo, sizeof *chunk_lo * (size_t)(n_chunk + 1));
	chunk_lo[n_chunk++] = m;
	free_stack =
	    realloc(free_stack,
	            sizeof *free_stack * (size_t)(n_chunk * CHUNK)); /* capacity for all stacks */
	for (int i = CHUNK - 1; i >= 0; i--) {
		char *s = m + emu_stack_bytes * (size_t)i;
		if (n_guard < MAX_GUARDS && !mprotect(s, 4096, PROT_NONE))
			n_guard++;
		else
			memset(s, 0x5a, PATTERN);
		free_stack[n_free++] = s;
	}
}

char *
fiber_stack(void)
{
	if (!n_free)
		grow();
	return free_stack[--n_free];
}

void
fiber_stack_free(char *stack)
{
	free_stack[n_free++] = stack;
}

bool
fiber_owns(const void *p)
{
	for (int i = 0; i < n_chunk; i++)
		if ((const char *)p >= chunk_lo[i] &&
		    (const char *)p < chunk_lo[i] + emu_stack_bytes * CHUNK)
			return true;
	return false;
}

/* Prepares the frame that fiber_switch loads. The frame's offset varies with `color`, so that the
 * tops of different stacks use different cache sets. */
void *
fiber_prepare(char *stack, unsigned color, void (*entry)(void))
{
	uint64_t *s = (uint64_t *)(stack + emu_stack_bytes - 64 - color * 64 % 4096);

	s -= 3; /* aligned as after a call */
	s[0] = 0;
	*--s = (uint64_t)(uintptr_t)entry;
	return s;
}

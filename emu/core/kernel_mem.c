/* Linked into every kernel object. Compilers turn loops and struct copies into calls of these
 * functions. The checking mode needs versions that report their accesses. */
#include <stddef.h>

#define HIDDEN __attribute__((visibility("hidden")))
void emu_mem_copy(void *d, const void *s, size_t n, const void *pc);
void emu_mem_set(void *d, int c, size_t n, const void *pc);
HIDDEN void *memcpy(void *restrict d, const void *restrict s, size_t n);
HIDDEN void *memmove(void *d, const void *s, size_t n);
HIDDEN void *memset(void *d, int c, size_t n);

void *
memcpy(void *restrict d, const void *restrict s, size_t n)
{
	emu_mem_copy(d, s, n, __builtin_return_address(0));
	return d;
}

void *
memmove(void *d, const void *s, size_t n)
{
	emu_mem_copy(d, s, n, __builtin_return_address(0));
	return d;
}

void *
memset(void *d, int c, size_t n)
{
	emu_mem_set(d, c, n, __builtin_return_address(0));
	return d;
}

/* Arena allocation. Allocations live until the arena is released; none is freed on its own.
 *
 * Out of memory does not return: arena_alloc jumps to arena->oom, which the owner of the arena has
 * set with setjmp. Code that allocates from an arena must therefore hold no resource that it would
 * have to release itself. It registers files, parsers and heap strings with arena_defer, and
 * arena_release releases those that are left. Under ASan the gap after each allocation is poisoned.
 * One thread at a time. */
#ifndef LLMC_BASE_ARENA_H
#define LLMC_BASE_ARENA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

typedef struct ArenaBlock ArenaBlock;
typedef struct ArenaDefer ArenaDefer;
typedef struct Arena {
	ArenaBlock *head;
	ArenaDefer *defer;  /* callbacks of arena_release, last registered first */
	jmp_buf oom;        /* jump target when memory is out; set before the first allocation */
	size_t total_bytes; /* bytes allocated with malloc so far */
	long fail_after;    /* tests: number of the allocation that fails (from 1); 0: none */
	long n_alloc;
} Arena;

void arena_init(Arena *a); /* zeroes *a; the caller then sets a->oom */
/* runs the deferred calls, last registered first, and frees all memory */
void arena_release(Arena *a);
/* Register fn(p) to run at arena_release. If memory runs out during the registration, fn(p) runs at
 * once, before the jump. */
void arena_defer(Arena *a, void (*fn)(void *), void *p);
void arena_done(Arena *a, void *p); /* runs the deferred call of p now and unregisters it */
Strbuf *arena_strbuf(Arena *a);     /* released with the arena, or earlier by the caller */
void arena_out(Arena *a) __attribute__((noreturn)); /* reports out of memory: longjmp to a->oom */
/* zeroed, 16-byte aligned; checks n * elem_bytes */
void *arena_alloc(Arena *a, size_t n, size_t elem_bytes);
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n); /* copies n bytes and adds a NUL */
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(Arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0), nonnull(2)));
/* Grow an array: return p, or a copy with capacity for at least `need` elements, and update
 * *cap. */
void *arena_grow(Arena *a, void *p, size_t *cap, size_t need, size_t elem_bytes);

#define NEW(a, Type, n) ((Type *)arena_alloc((a), (size_t)(n), sizeof(Type)))

#endif

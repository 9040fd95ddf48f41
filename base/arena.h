/* Arena allocation: pieces live until the arena goes; nobody frees a single one.
 *
 * Out of memory does not return: arena_alloc jumps to arena->oom, which whoever opened the arena
 * has set with setjmp. Code that allocates from an arena therefore keeps no resource that only it
 * can release: files, parsers and heap texts are handed to the arena with arena_defer, and go with
 * it at the latest. Under ASan the gap behind each piece is poisoned. One thread at a time. */
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
	ArenaDefer *defer; /* what arena_release calls, the latest first */
	jmp_buf oom; /* where arena_alloc goes when memory is out: set before the first alloc */
	size_t total_bytes; /* taken from malloc so far */
	long fail_after;    /* tests: the allocation with this number (from 1) fails; 0: never */
	long n_alloc;
} Arena;

void arena_init(Arena *a);    /* zeroes; the caller sets a->oom */
void arena_release(Arena *a); /* calls what was deferred, the latest first, and frees every piece */
/* fn(p) when the arena goes: also at once, before the jump, when there is no memory to remember it
 * in. */
void arena_defer(Arena *a, void (*fn)(void *), void *p);
void arena_done(Arena *a, void *p); /* what was deferred for p now, and not again */
Strbuf *arena_strbuf(Arena *a);     /* goes with the arena; releasing it earlier is fine */
void arena_out(Arena *a) __attribute__((noreturn)); /* memory is out: the jump */
void *arena_alloc(Arena *a, size_t n,
                  size_t elem_bytes); /* zeroed, 16-byte aligned; checks n * elem_bytes */
char *arena_strdup(Arena *a, const char *s);
char *arena_strndup(Arena *a, const char *s, size_t n); /* n bytes and a NUL */
char *arena_printf(Arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(Arena *a, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0), nonnull(2)));
/* Array that grows: returns p or a copy with room for at least `need` elements; *cap is updated. */
void *arena_grow(Arena *a, void *p, size_t *cap, size_t need, size_t elem_bytes);

#define NEW(a, Type, n) ((Type *)arena_alloc((a), (size_t)(n), sizeof(Type)))

#endif

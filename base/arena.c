#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifdef HAVE_ASAN
#include <sanitizer/asan_interface.h>
#define GAP 16
#else
#define GAP 0
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

struct ArenaBlock {
	ArenaBlock *next;
	size_t cap, used;
	_Alignas(16) unsigned char data[];
};

struct ArenaDefer {
	ArenaDefer *next;
	void (*fn)(void *);
	void *p;
};

void
arena_init(Arena *a)
{
	memset(a, 0, sizeof *a);
}

void
arena_release(Arena *a)
{
	for (ArenaDefer *d = a->defer; d; d = d->next)
		d->fn(d->p);
	a->defer = NULL;
	for (ArenaBlock *b = a->head, *next; b; b = next) {
		next = b->next;
		ASAN_UNPOISON_MEMORY_REGION(b->data, b->cap);
		free(b);
	}
	a->head = NULL;
	a->total_bytes = 0;
}

void
arena_out(Arena *a)
{
	longjmp(a->oom, 1);
}

/* Return zeroed memory, or NULL when malloc fails. */
static void *
alloc(Arena *a, size_t n, size_t elem_bytes)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, elem_bytes, &bytes) || bytes > SIZE_MAX / 2)
		return NULL;
	bytes = (bytes + GAP + 15) & ~(size_t)15;
	if (++a->n_alloc == a->fail_after)
		return NULL;
	ArenaBlock *b = a->head;
	if (!b || b->cap - b->used < bytes) {
		size_t cap = bytes > (1 << 15) ? bytes : (size_t)1 << 16;
		b = malloc(sizeof *b + cap);
		if (!b)
			return NULL;
		*b = (ArenaBlock){ .cap = cap };
		ASAN_POISON_MEMORY_REGION(b->data, cap);
		/* A large allocation that has a block of its own is linked after the head, so that
		 * the free space of the head stays in use. */
		if (a->head && bytes == cap) {
			b->next = a->head->next;
			a->head->next = b;
		} else {
			b->next = a->head;
			a->head = b;
		}
		a->total_bytes += sizeof *b + cap;
	}
	void *p = b->data + b->used;
	b->used += bytes;
	ASAN_UNPOISON_MEMORY_REGION(p, n * elem_bytes);
	return memset(p, 0, n * elem_bytes);
}

void *
arena_alloc(Arena *a, size_t n, size_t elem_bytes)
{
	void *p = alloc(a, n, elem_bytes);

	if (!p)
		arena_out(a);
	return p;
}

void
arena_defer(Arena *a, void (*fn)(void *), void *p)
{
	ArenaDefer *d = alloc(a, 1, sizeof *d);

	if (!d) {
		fn(p);
		arena_out(a);
	}
	*d = (ArenaDefer){ .next = a->defer, .fn = fn, .p = p };
	a->defer = d;
}

void
arena_done(Arena *a, void *p)
{
	for (ArenaDefer **at = &a->defer; *at; at = &(*at)->next)
		if ((*at)->p == p) {
			ArenaDefer *d = *at;
			*at = d->next;
			d->fn(p);
			return;
		}
}

static void
release_strbuf(void *p)
{
	strbuf_release(p);
}

Strbuf *
arena_strbuf(Arena *a)
{
	Strbuf *b = NEW(a, Strbuf, 1);

	arena_defer(a, release_strbuf, b);
	return b;
}

char *
arena_strndup(Arena *a, const char *s, size_t n)
{
	char *p = arena_alloc(a, n + 1, 1);
	if (n)
		memcpy(p, s, n);
	return p;
}

char *
arena_strdup(Arena *a, const char *s)
{
	return arena_strndup(a, s, strlen(s));
}

char *
arena_vprintf(Arena *a, const char *fmt, va_list ap)
{
	va_list again;

	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0)
		n = 0;
	char *p = arena_alloc(a, (size_t)n + 1, 1);
	vsnprintf(p, (size_t)n + 1, fmt, ap);
	return p;
}

char *
arena_printf(Arena *a, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	char *p = arena_vprintf(a, fmt, ap);
	va_end(ap);
	return p;
}

void *
arena_grow(Arena *a, void *p, size_t *cap, size_t need, size_t elem_bytes)
{
	if (need <= *cap)
		return p;
	size_t to = *cap ? *cap * 2 : 8;
	if (to < need)
		to = need;
	void *q = arena_alloc(a, to, elem_bytes);
	if (*cap)
		memcpy(q, p, *cap * elem_bytes);
	*cap = to;
	return q;
}

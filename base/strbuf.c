#include "base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool
reserve(Strbuf *b, size_t more)
{
	if (b->failed)
		return false;
	if (more < b->cap - b->len)
		return true;
	size_t cap = b->cap ? b->cap : 64;
	while (cap - b->len <= more) {
		if (cap > ((size_t)1 << 60)) {
			b->failed = true;
			return false;
		}
		cap *= 2;
	}
	char *p = realloc(b->data, cap);
	if (!p) {
		b->failed = true;
		return false;
	}
	b->data = p;
	b->cap = cap;
	return true;
}

void
strbuf_release(Strbuf *b)
{
	free(b->data);
	*b = (Strbuf){ 0 };
}

void
strbuf_drop(Strbuf *b, size_t n)
{
	if (n)
		memmove(b->data, b->data + n, b->len - n);
	b->len -= n;
}

void
strbuf_clear(Strbuf *b)
{
	b->len = 0;
	if (b->data)
		b->data[0] = 0;
}

void
strbuf_add(Strbuf *b, const void *bytes, size_t n)
{
	if (!reserve(b, n))
		return;
	if (n)
		memcpy(b->data + b->len, bytes, n);
	b->len += n;
	b->data[b->len] = 0;
}

void
strbuf_puts(Strbuf *b, const char *s)
{
	strbuf_add(b, s, strlen(s));
}

void
strbuf_putc(Strbuf *b, char c)
{
	strbuf_add(b, &c, 1);
}

void
strbuf_vprintf(Strbuf *b, const char *fmt, va_list ap)
{
	va_list again;

	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, again);
	va_end(again);
	if (n < 0 || !reserve(b, (size_t)n))
		return;
	vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
	b->len += (size_t)n;
}

void
strbuf_printf(Strbuf *b, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	strbuf_vprintf(b, fmt, ap);
	va_end(ap);
}

const char *
strbuf_str(const Strbuf *b)
{
	return b->data ? b->data : "";
}

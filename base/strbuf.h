/* A growing byte string on the heap. If an allocation fails, the buffer becomes `failed` and later
 * appends do nothing, so the caller checks once at the end. data is NUL-terminated whenever len > 0
 * (NULL before). */
#ifndef LLMC_BASE_STRBUF_H
#define LLMC_BASE_STRBUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct Strbuf {
	char *data;
	size_t len, cap;
	bool failed;
} Strbuf;

void strbuf_release(Strbuf *b);
void strbuf_clear(Strbuf *b);
void strbuf_drop(Strbuf *b, size_t n); /* remove the first n bytes, n <= len */
void strbuf_add(Strbuf *b, const void *bytes, size_t n);
void strbuf_puts(Strbuf *b, const char *s);
void strbuf_putc(Strbuf *b, char c);
void strbuf_printf(Strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strbuf_vprintf(Strbuf *b, const char *fmt, va_list ap);
const char *strbuf_str(const Strbuf *b); /* never NULL: "" when empty */

#endif

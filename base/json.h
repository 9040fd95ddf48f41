/* JSON text. Written: the caller writes the structure, these the values within it. Read: by
 * jansson, into an arena's care. */
#ifndef LLMC_BASE_JSON_H
#define LLMC_BASE_JSON_H

#include <stdbool.h>
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"

void json_str(Strbuf *b, const char *s,
              size_t n); /* quoted and escaped; bytes that are not UTF-8 become U+FFFD */
void json_num(Strbuf *b, double v, int digits); /* as number_text; null when it is not finite */
/* JSON by a format: %s a quoted string (NULL: null), %d, %lld, and %g a number of at most nine
 * digits; the rest stands for itself. */
void json_printf(Strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void json_time(Strbuf *b, time_t t); /* "2026-05-04T03:02:01Z" */
/* How a character is written within a string: its escape, or "" when it stands for itself. ascii:
 * all but ASCII is escaped. */
void json_escape(char out[16], int32_t cp, bool ascii);

/* json_loadb, which takes want of memory for a mistake in the text: NULL with *no_memory when that
 * was it. */
json_t *json_parse(const char *text, size_t n, size_t flags, json_error_t *why, bool *no_memory);
/* The same of text as Python writes it: Infinity, -Infinity and NaN are null. */
json_t *json_read_python(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why);
/* The same with a tree that goes with the arena (or earlier, by arena_done); memory that is out
 * jumps. NULL: not JSON. */
json_t *json_read(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why);

const char *json_text_of(const json_t *o,
                         const char *key); /* the string of a key; "": it has none */

#endif

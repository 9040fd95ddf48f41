/* JSON. Writing: the caller writes the structure, and these functions write the values. Reading:
 * json_parse.c creates jansson's values; json_read returns a tree that an arena owns. */
#ifndef LLMC_BASE_JSON_H
#define LLMC_BASE_JSON_H

#include <stdbool.h>
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/arena.h"

/* quoted and escaped; bytes that are not UTF-8 become U+FFFD */
void json_str(Strbuf *b, const char *s, size_t n);
void json_num(Strbuf *b, double v, int digits); /* like number_text; null if not finite */
/* printf for JSON: %s writes a quoted string (NULL: null), %d and %lld write integers, %g writes a
 * number of at most nine digits. Other characters are copied unchanged. */
void json_printf(Strbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void json_time(Strbuf *b, time_t t); /* "2026-05-04T03:02:01Z" */
/* Set out to the escape of a character in a string, or to "" if it needs none. ascii: also escape
 * characters outside of ASCII. */
void json_escape(char out[16], int32_t cp, bool ascii);

/* Parse JSON like json_loadb, with JSON_DECODE_ANY, JSON_ALLOW_NUL and JSON_REJECT_DUPLICATES. NULL
 * on an error; *no_memory: the reason was lack of memory. why and no_memory may be NULL. jansson's
 * own json_load* functions corrupt memory when an allocation fails and must not be called. */
json_t *json_parse(const char *text, size_t n, size_t flags, json_error_t *why, bool *no_memory);
/* Flags of json_parse: numbers that int64 or double cannot hold become strings of a mark and their
 * digits (kept numbers), instead of an error. json_dumps_numbers writes them as numbers again. */
enum { JSON_KEEP_INTEGERS = 1 << 20, JSON_KEEP_REALS = 1 << 21 };
#define JSON_KEEP_NUMBERS ((size_t)JSON_KEEP_INTEGERS | JSON_KEEP_REALS)
json_t *json_keep_number(const char *digits);
const char *json_kept_digits(const json_t *v); /* NULL: v is not a kept number */
/* value, rounded if v is a kept number; 0: not a number */
double json_number_of(const json_t *v);
bool json_is_any_number(const json_t *v);                /* true also for a kept number */
char *json_dumps_numbers(const json_t *v, size_t flags); /* released with free() */
/* Like json_read, for JSON written by Python: Infinity and -Infinity in a list, which Python writes
 * for an absent limit, become null. NaN, and Infinity elsewhere, are errors. */
json_t *json_read_python(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why);
void json_hold(Arena *a, json_t *v); /* the arena takes the reference; v may be NULL */
/* Like json_parse, but the arena owns the tree (arena_done releases it earlier) and lack of memory
 * jumps to oom. NULL: not JSON. */
json_t *json_read(Arena *a, const char *text, size_t n, size_t flags, json_error_t *why);

/* Return the length of the JSON number, of any size, at the beginning of s; 0: there is none.
 * *real: it has a fraction or an exponent. json_number_syntax: all of s is a number. */
size_t json_number_length(const char *s, size_t n, bool *real);
bool json_number_syntax(const char *s, size_t n);
/* the string value of a key; "" if it has none */
const char *json_text_of(const json_t *o, const char *key);
const char *json_string_of(const json_t *o, const char *key); /* the same, but NULL */

#endif

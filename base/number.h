/* Decimal numbers to text and back, with a point whatever the locale says. */
#ifndef LLMC_BASE_NUMBER_H
#define LLMC_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

enum { NUMBER_SIZE = 32, NUMBER_EXACT = 17 };

/* The whole of text is a decimal number: sign, digits, point, exponent. False: it is not one, or no
 * double holds it. */
bool number_parse(const char *text, double *out);
/* The whole of text is a size above 0 in bytes: a number, and K, M, G or T, of 1024, with or
 * without iB or B. */
bool bytes_parse(const char *text, int64_t *out);
/* The fewest digits that read back as v, at most `digits` of them (NUMBER_EXACT: no limit), spelt
 * as Python's repr and JSON spell a float: 1.0, 0.0001, 1e-05, 1.5e+16; nan, inf, -inf. */
void number_text(char out[NUMBER_SIZE], double v, int digits);
void number_plain(char out[NUMBER_SIZE], double v,
                  int digits); /* the same, integers without a point */

int double_order(const void *a, const void *b); /* for qsort: ascending doubles */

#endif

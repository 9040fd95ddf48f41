/* Decimal numbers to text and back, with a decimal point in every locale. */
#ifndef LLMC_BASE_NUMBER_H
#define LLMC_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

enum { NUMBER_SIZE = 32, NUMBER_EXACT = 17 };

/* Parse text as one decimal number: sign, digits, point, exponent. False: not a number, or not
 * representable as a double. */
bool number_parse(const char *text, double *out);
/* Parse text as a size above 0 in bytes: a number and an optional K, M, G or T (powers of 1024),
 * with or without iB or B. */
bool bytes_parse(const char *text, int64_t *out);
/* "1.5 GiB"; returns buf */
const char *human_bytes(double bytes, char buf[32]);
/* Write v with the fewest digits that parse back to v, at most `digits` (NUMBER_EXACT: no limit).
 * The spelling is that of floats in Python's repr and JSON: 1.0, 0.0001, 1e-05, 1.5e+16; nan, inf,
 * -inf. */
void number_text(char out[NUMBER_SIZE], double v, int digits);
/* like number_text, but integers have no point */
void number_plain(char out[NUMBER_SIZE], double v, int digits);

/* Return the double with the fewest decimal digits that rounds to v: 0.6 for 0.6f. */
double number_of_float(float v);

/* Return the value of a hexadecimal digit; -1: another character */
static inline int
hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 32;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Return the byte that the "%XX" at c encodes; -1: there is none */
static inline int
percent_byte(const char *c)
{
	int hi = c[0] == '%' ? hex_digit(c[1]) : -1, lo = hi < 0 ? -1 : hex_digit(c[2]);

	return lo < 0 ? -1 : hi << 4 | lo;
}

int double_order(const void *a, const void *b); /* for qsort: ascending doubles */

#endif

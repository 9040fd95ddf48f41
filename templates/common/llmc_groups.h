/* Codes in a block of GROUP_DTYPES (formats/dtype.h), in the byte order of the block; shared with
 * the host.
 *
 *   8 bits   in order
 *   4 bits   per 32 columns: byte b has column b low and 16 + b high
 *   2 bits   per 32 columns: byte 4 h + c has column 16 h + 4 k + c in bits 2 k
 *   3 bits   low two bits of all columns as for 2 bits; then third bits, four bytes per 32 columns:
 *            byte c has bit i for column 4 i + c */
#ifndef LLMC_GROUPS_H
#define LLMC_GROUPS_H

#include <stdint.h>

#define LLMC_GROUPS_FN static inline __attribute__((always_inline, unused))

/* Returns the code of column i in a block of `columns`. */
LLMC_GROUPS_FN int
llmc_group_code(const uint8_t *q, int columns, int bits, int i)
{
	const int piece = i / 32, at = i % 32;

	if (bits == 8)
		return q[i];
	if (bits == 4)
		return q[piece * 16 + at % 16] >> at / 16 * 4 & 15;
	const int low = q[piece * 8 + at / 16 * 4 + at % 4] >> at % 16 / 4 * 2 & 3;
	return bits == 2 ? low : low | (q[columns / 4 + piece * 4 + at % 4] >> at / 4 & 1) << 2;
}

/* Sets the code of column i; its bits must be 0 before. */
LLMC_GROUPS_FN void
llmc_group_put(uint8_t *q, int columns, int bits, int i, int v)
{
	const int piece = i / 32, at = i % 32;

	if (bits == 8) {
		q[i] = (uint8_t)v;
	} else if (bits == 4) {
		q[piece * 16 + at % 16] |= (uint8_t)(v << at / 16 * 4);
	} else {
		q[piece * 8 + at / 16 * 4 + at % 4] |= (uint8_t)((v & 3) << at % 16 / 4 * 2);
		if (bits == 3)
			q[columns / 4 + piece * 4 + at % 4] |= (uint8_t)(v >> 2 << at / 4);
	}
}

#endif

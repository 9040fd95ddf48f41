/* Layouts: the order in which a tensor lies in memory. "row" and "f32" are known everywhere; the
 * packed ones are what the CPU kernels of a target stream. One table says, for each layout, its
 * size, how to pack a group of rows from file order, and how to read a row back as fp32 (reference,
 * gather of a tied embedding, tests). */
#ifndef LLMC_FORMATS_LAYOUT_H
#define LLMC_FORMATS_LAYOUT_H

#include "formats/dtype.h"

typedef struct Layout {
	const char *name; /* "row", "f32", "r8" (8 rows interleaved), ... */
	int group;        /* rows packed together (rows are padded to a multiple with zeros) */
	/* bytes of one group of rows; -1: dtype or cols do not fit */
	int64_t (*group_bytes)(Dtype d, int64_t cols);
	/* src: `group` rows in file order, dtype_row_bytes apart */
	void (*pack)(Dtype d, int64_t cols, const void *src, void *dst);
	/* row r of the group at `packed` as fp32 */
	void (*row)(Dtype d, int64_t cols, const void *packed, int r, float *dst);
} Layout;

const Layout *layout_find(const char *name); /* NULL: unknown */
/* A whole tensor, [rows, cols]; cols 0: a vector of `rows` elements, which is one row. -1: does not
 * fit */
int64_t layout_bytes(const char *layout, Dtype d, int64_t rows, int64_t cols);
/* Row of a tensor in memory, dequantised: dst [cols] (a vector: row 0 is all of it) */
void layout_row(const char *layout, Dtype d, int64_t rows, int64_t cols, const void *data,
                int64_t row, float *dst);

#endif

/* Layouts: the order of a tensor in memory. Every target supports "row" and "f32". CPU kernels read
 * packed layouts as a stream. A table holds, for each layout, its size, how to pack a row group
 * from file order, and how to read a row back as fp32 (reference, gather of a tied embedding,
 * tests). */
#ifndef LLMC_FORMATS_LAYOUT_H
#define LLMC_FORMATS_LAYOUT_H

#include "formats/dtype.h"

typedef struct Layout {
	const char *name; /* "row", "f32", "r8" (8 rows interleaved), ... */
	int group; /* rows per row group (the row count is padded to a multiple with zeros) */
	/* bytes of one row group; -1: dtype or cols do not fit */
	int64_t (*group_bytes)(Dtype d, int64_t cols);
	/* src: `group` rows in file order, dtype_row_bytes apart */
	void (*pack)(Dtype d, int64_t cols, const void *src, void *dst);
	/* row r of the row group at `packed` as fp32 */
	void (*row)(Dtype d, int64_t cols, const void *packed, int r, float *dst);
} Layout;

const Layout *layout_find(const char *name); /* NULL: unknown */
/* Size of a whole tensor [rows, cols]; cols 0: a vector of `rows` elements, stored as one row. -1:
 * dtype or cols do not fit */
int64_t layout_bytes(const char *layout, Dtype d, int64_t rows, int64_t cols);
/* Dequantises one row of a tensor in memory: dst [cols] (a vector is row 0) */
void layout_row(const char *layout, Dtype d, int64_t rows, int64_t cols, const void *data,
                int64_t row, float *dst);

#endif

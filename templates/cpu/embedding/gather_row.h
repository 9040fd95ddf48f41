/* Dequantises one row of a matrix, rounded as in formats/dequant.c; for embedding lookups.
 *
 *   r4, r8, r16 of this target:  cpu/weights/weights.h decodes VL rows, of which one lane is used
 *   row (file order):            a block of one row, element by element
 *   f32:                         a row of W_f32
 *
 * Bytes: one row. In a packed layout these are the cache lines of the whole row group, because rows
 * are interleaved. */
#ifndef LLMC_CPU_EMBEDDING_GATHER_ROW_H
#define LLMC_CPU_EMBEDDING_GATHER_ROW_H

#include "cpu/weights/file_block.h"
#include "cpu/weights/weights.h"

typedef struct Table {
	Weight w;
	int packed; /* 1: row groups of VL rows; 0: file order */
	int cols;
} Table;

#define TABLE_row(weight, columns) ((Table){ weight, 0, columns })
#define TABLE_f32(weight, columns) ((Table){ W_f32, 0, columns })
#define TABLE_r4(weight, columns) ((Table){ weight, 1, columns })
#define TABLE_r8 TABLE_r4
#define TABLE_r16 TABLE_r4

enum { GATHER_MOST = 256 };

/* number of columns per gather step, at most GATHER_MOST */
LLMC_INLINE int
gather_columns(const Table t)
{
	return !w_is_float(t.w) || t.w.group ? w_columns(t.w) : t.cols % 16 ? 1 : 16;
}

/* ---- one lane of a packed block ---- */
LLMC_INLINE void
gather_lane(const Weight w, const w_at k, int lane, float *y)
{
	const int whole = w.group && !w.affine, zero = whole ? w_zeros(w, k.head)[lane] : 0;

	LLMC_UNROLL
	for (int i = 0; i < 8; i++) {
		float d = w_scale(w, k, i / 4 * (w.halves - 1))[lane],
		      m = w.min && !whole ? w_min(w, k, i / 4 * (w.halves - 1))[lane] : 0;
		uint32_t q = (uint32_t)w_bytes(w, k, i)[lane];
		for (int c = 0; c < 4; c++) {
			int v = (int)(q >> 8 * c & 255) - w_offset(w) - zero;
			y[4 * i + c] = w.min && !whole ? d * (float)v + m : d * (float)v;
		}
	}
}

/* Gathers steps [p0, p1) of gather_columns of the row into y[0 ...] */
LLMC_INLINE void
gather(const Table t, const uint8_t *data, int64_t row, int p0, int p1, float *y)
{
	const Weight w = t.w;
	const int n = gather_columns(t), lane = (int)(row % VL);
	const uint8_t *group = data + row / VL * w_group_bytes(w, t.cols);
	const uint8_t *line = data + row * (t.cols / w_columns(w)) * file_bytes(w);

	for (int64_t p = p0; p < p1; p++, y += n) {
		if (w_is_float(w) && (t.packed || !w.group)) {
			for (int64_t c = 0; c < n; c++)
				y[c] = t.packed ? w_column(w, group, p * n + c)[lane]
				                : file_float(w, line + (p * n + c) * file_bytes(w));
		} else if (t.packed) {
			for (int b = 0; b < w_together(w); b++)
				gather_lane(w, w_block(w, group, (int)p * w_together(w) + b), lane,
				            y + 32 * b);
		} else {
			file_block(w, line + p * file_bytes(w), y);
		}
	}
}

#endif

/* Quantises fp32 to blocks and searches for the scales. First it chooses the grid of a block (the
 * values that its stored scales can represent) for the least weighted squared error; then it rounds
 * elements to that grid. The two steps are separate functions, so that GPTQ's error compensation
 * can round to the same grid. quant_row (dequant.h) derives the scale from the range of a block
 * instead, which is faster but less accurate. */
#ifndef LLMC_FORMATS_BLOCK_QUANTIZE_H
#define LLMC_FORMATS_BLOCK_QUANTIZE_H

#include "formats/dtype.h"

enum { GRID_MAX = 256, GRID_SUBS = 16 };

/* Representable values of one block: element i of sub-block s = i / sub is scale[s] * level +
 * base[s], with level = code or a table entry level[code]. */
typedef struct BlockGrid {
	int sub;             /* elements per scale and base */
	int low, high;       /* code range */
	const int8_t *level; /* [high + 1], ascending; NULL: level = code */
	float scale[GRID_SUBS], base[GRID_SUBS];
	/* stored form */
	uint16_t d, m; /* f16 bits: scale, and the base that is added or subtracted */
	int8_t part[GRID_SUBS], min_part[GRID_SUBS]; /* multiples of d and m per sub-block */
} BlockGrid;

/* Returns whether the type has a grid: GGUF blocks, and 4-bit groups whose zero point is the middle
 * code (those with f32 scales: only scales that are exact in bf16) */
bool grid_has(Dtype d);
/* x, w [block_elems]: elements and the weight (>= 0) of each squared error. Non-finite x gives
 * unspecified scales. */
void grid_choose(Dtype d, const float *x, const float *w, BlockGrid *g);
/* Returns the code whose value is nearest to x at element i */
int grid_code(const BlockGrid *g, int i, float x);
float grid_value(const BlockGrid *g, int i, int code);
/* Sets the scale and base of sub-block k to the nearest values that can be stored with the block's
 * d and m, moved by part_step and min_step steps (0 for types with one level). Returns false if
 * there are no such values. */
bool grid_move(Dtype d, BlockGrid *g, int k, float scale, float base, int part_step, int min_step);
/* Packs code [block_elems], each within low .. high, into the stored block */
void grid_pack(Dtype d, const BlockGrid *g, const int8_t *code, void *block);

/* Quantises n elements, a multiple of the block size. importance [n]: mean square of each column's
 * inputs; NULL: uniform. */
void quantize_row(Dtype d, const float *x, const float *importance, void *dst, int64_t n);
/* Error weights of one block as quantize_row uses them: w [n] from importance, larger for large
 * elements */
void quantize_weights(const float *x, const float *importance, float *w, int n);

#endif

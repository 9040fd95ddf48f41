/* fp32 to blocks, with scales searched for: the grid of a block (the values that its stored scales
 * allow) is chosen for the least weighted squared error, then elements are rounded onto it. The two
 * are apart, so that error compensation can round onto the same grid. quant_row (dequant.h) takes
 * the range of a block instead, which is quicker and worse. */
#ifndef LLMC_FORMATS_BLOCK_QUANTIZE_H
#define LLMC_FORMATS_BLOCK_QUANTIZE_H

#include "formats/dtype.h"

enum { GRID_MAX = 256, GRID_SUBS = 16 };

/* The values of one block: element i of sub-block s = i / sub may be scale[s] * level + base[s],
 * level = code, or level[code] of a table. */
typedef struct BlockGrid {
	int sub;             /* elements that share scale and base */
	int low, high;       /* codes */
	const int8_t *level; /* [high + 1], rising; NULL: the code itself */
	float scale[GRID_SUBS], base[GRID_SUBS];
	/* as the block stores them */
	uint16_t d, m; /* f16 of the block: scale, and what is added or subtracted */
	int8_t part[GRID_SUBS], min_part[GRID_SUBS]; /* multiples of d, of m */
} BlockGrid;

/* Types that have grids: blocks of GGUF, and groups of four bits with the middle code as zero point
 * (of those with f32 scales: scales that bf16 has) */
bool grid_has(Dtype d);
/* x, w [block_elems]: elements, and how much the square of each one's error counts (>= 0). Not
 * finite x gives unspecified scales. */
void grid_choose(Dtype d, const float *x, const float *w, BlockGrid *g);
/* The code whose value is nearest to x as element i */
int grid_code(const BlockGrid *g, int i, float x);
float grid_value(const BlockGrid *g, int i, int code);
/* The nearest scale and base to these that the type can store for sub-block k, of the block's d and
 * m, and so many steps beside it (types of one level have no steps). false: there is none. */
bool grid_move(Dtype d, BlockGrid *g, int k, float scale, float base, int part_step, int min_step);
/* code [block_elems] within low .. high -> the stored block */
void grid_pack(Dtype d, const BlockGrid *g, const int8_t *code, void *block);

/* n elements, a whole number of blocks. importance [n]: what the square of each column's inputs is
 * on average; NULL: all the same. */
void quantize_row(Dtype d, const float *x, const float *importance, void *dst, int64_t n);
/* How much the error of each element of a block counts, as quantize_row takes it: w [n] from
 * importance, and more for large elements */
void quantize_weights(const float *x, const float *importance, float *w, int n);

#endif

/* Types that are codes (templates/common/llmc_codes.h) in the layouts of layout_packed.h. All sizes
 * are of one block of one row. */
#ifndef LLMC_FORMATS_LAYOUT_CODES_H
#define LLMC_FORMATS_LAYOUT_CODES_H

#include "formats/dtype.h"

/* Bytes of a block, in packed layouts and in planes; 0: another type */
int codes_bytes(Dtype d);
/* A block of R rows, row_bytes apart, to dst; and row r of it as values */
void codes_pack(Dtype d, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R);
void codes_read(Dtype d, const uint8_t *packed, int R, int r, float *y);

/* Planes: their bytes a block, words first; `block`, of codes_bytes, has them one after the other
 */
void codes_planes(Dtype d, int bytes[4]);
void codes_plane_pack(Dtype d, const uint8_t *src, uint8_t *block);
void codes_plane_read(Dtype d, const uint8_t *block, float *y);

#endif

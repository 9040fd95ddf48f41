/* CODE_DTYPES (templates/common/llmc_codes.h) in the layouts of layout_packed.h. All sizes are per
 * block of one row. */
#ifndef LLMC_FORMATS_LAYOUT_CODES_H
#define LLMC_FORMATS_LAYOUT_CODES_H

#include "formats/dtype.h"

/* Bytes of a block, in packed layouts and in planes; 0: another type */
int codes_bytes(Dtype d);
/* codes_pack: packs a block of R rows, row_bytes apart, to dst. codes_read: dequantises row r of
 * it */
void codes_pack(Dtype d, const uint8_t *src, int64_t row_bytes, uint8_t *dst, int R);
void codes_read(Dtype d, const uint8_t *packed, int R, int r, float *y);

/* Planes: bytes[4] per block, words first; `block` [codes_bytes] holds them consecutively */
void codes_planes(Dtype d, int bytes[4]);
void codes_plane_pack(Dtype d, const uint8_t *src, uint8_t *block);
void codes_plane_read(Dtype d, const uint8_t *block, float *y);

#endif

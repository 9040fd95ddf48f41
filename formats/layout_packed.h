/* Packed layouts r4, r8 and r16: row groups of R = 4, 8 or 16 interleaved rows. One vector register
 * holds the same columns of R rows, so a dot product needs no horizontal sum. The kernels' view of
 * the same bytes is templates/cpu/weights/weights.h.
 *
 * A row group is a sequence of blocks along the columns. "dwords" below: for each j, R dwords. The
 * dword of row r holds the bytes of columns 4j .. 4j+3 (for nibbles: low 4j + c, high 16 + 4j + c).
 *
 *   F32 F16 BF16  1 column    R elements
 *   Q8_0          32 columns  R f16 d, 8 dwords
 *   Q4_0          32          R f16 d, 4 dwords of nibbles
 *   Q4_1          32          R f16 d, R f16 m, 4 dwords of nibbles
 *   Q5_0          32          R f16 d, R dwords of fifth bits, 4 dwords of nibbles
 *   Q5_1          32          R f16 d, R f16 m, R dwords of fifth bits, 4 dwords of nibbles
 *   Q4_K          256         R f16 d, R f16 dmin, 8 x (R u8 scale, R u8 min), 8 x Q4 block without d, m
 *   Q5_K          256         the same with 8 x Q5 blocks
 *   Q6_K          256         R f16 d, 16 x R s8 scale, 8 x (4 dwords of nibbles, 2 dwords of upper pairs)
 *   CODE_DTYPES   block       R f16 d, R f16 m if the type has mins, scale bytes of all 32-column groups,
 *                             extra index bits, dwords in the order of
 * templates/common/llmc_codes.h
 *   MXFP4         32          R u8 e, 4 dwords of nibbles
 *   NVFP4         64          R f32 d before the first block; R u8 s per 16 columns, 2 x 4 dwords of nibbles
 *
 * Extra index bits (upper bits; for iq1 also bits 12 .. 15 of `high`): dwords for all 32-column
 * groups. Byte c belongs to index 4j + c. It holds 8, 4 or 2 groups, the first in the lowest bits
 * (iq3_s: j = 0, then j = 1).
 *
 * Fifth bits: byte c of a row's dword has bit j for column 4j + c and bit 4 + j for column 16 + 4j
 * + c. Upper pairs: byte c of dword 0 has bits 2j, 2j+1 for column 4j + c; dword 1 the same for
 * column 16 + 4j + c.
 *
 * Size compared with the file: Q4_K and Q5_K keep 8-bit instead of 6-bit scales, 2.8 and 2.3 %
 * more. CODE_DTYPES keep 8-bit scales and all eight signs: IQ4_XS 1.5 %, Q3_K, IQ3_S and IQ1_M 4 %,
 * IQ3_XXS 8 %, IQ2_XS and IQ2_XXS 11 and 12 %. TQ1_0 is packed as TQ2_0, 22 %. All others have the
 * file's size.
 *
 * The layout "planes" for block formats on a GPU: within a row, each field of all blocks is stored
 * contiguously. So neighbouring threads read neighbouring bytes in 16-byte accesses. The kernels'
 * view is templates/cuda/weights/weights.h. Bytes per block:
 *
 *   Q4_0  qs 16, d 2             Q4_1  qs 16, dm 4            Q5_0  qs 16, qh 4, d 2       Q5_1  qs 16, qh 4, dm 4
 *   Q8_0  qs 32, d 2             Q4_K  qs 128, head 16        Q5_K  qs 128, qh 32, head 16
 *   Q6_K  ql 128, qh 64, scales 16, d 2                       MXFP4 qs 16, e 1             NVFP4 qs 32, scales 4; d 4 per row
 *   CODE_DTYPES  words of all 32-column groups (with three words: the first two); third words; per
 * group the scales and the upper bits of indices; d, m
 *
 * The bytes of a field are ggml's, except for Q5_K, MXFP4 and NVFP4. A plane is padded with zeros
 * to 16 bytes, so all rows keep that alignment.
 *
 * Q5_K: each 32 columns have five words, four in qs and the fifth in qh. Column 2 p + h has its 5
 * bits in half h of word p / 3, from bit 5 (p % 3) on. Columns 30 and 31 have bit i in bit 15 of
 * the halves of word i. So a kernel extracts a pair of columns with one mask.
 *
 * MXFP4 and NVFP4: word i of 32 columns holds columns 4 i .. 4 i + 3 and 16 + 4 i .. 16 + 4 i + 3.
 * Sign and magnitude of a column are bits 15 and 9 to 11 of a half of one of these (rot n: rotated
 * left by n bits):
 *
 *   word              columns 4 i and, in the upper half, 4 i + 2
 *   rot 3             4 i + 1 and + 3
 *   rot 7 ^ rot 10    16 + 4 i and + 2
 *   rot 7 ^ rot 12    16 + 4 i + 1 and + 3
 *
 * This lets a kernel extract eight columns with 8 instructions. */
#ifndef LLMC_FORMATS_LAYOUT_PACKED_H
#define LLMC_FORMATS_LAYOUT_PACKED_H

#include "formats/dtype.h"

int64_t packed4_bytes(Dtype d, int64_t cols);
void packed4_pack(Dtype d, int64_t cols, const void *src, void *dst);
void packed4_row(Dtype d, int64_t cols, const void *packed, int r, float *dst);

int64_t packed8_bytes(Dtype d, int64_t cols);
void packed8_pack(Dtype d, int64_t cols, const void *src, void *dst);
void packed8_row(Dtype d, int64_t cols, const void *packed, int r, float *dst);

int64_t packed16_bytes(Dtype d, int64_t cols);
void packed16_pack(Dtype d, int64_t cols, const void *src, void *dst);
void packed16_row(Dtype d, int64_t cols, const void *packed, int r, float *dst);

/* Returns the number of bytes at the start of a file block that are equal in all blocks of a row. A
 * packed row stores them once, before its blocks; planes store them after the last plane. */
int layout_whole_bytes(Dtype d);

/* bytes of a row; -1: not a block format, or cols is not a multiple of the block size */
int64_t planes_bytes(Dtype d, int64_t cols);
void planes_pack(Dtype d, int64_t cols, const void *src, void *dst);
void planes_row(Dtype d, int64_t cols, const void *packed, int r, float *dst);

#endif

/* Packed layouts r4, r8 and r16: R = 4, 8 or 16 rows interleaved, so that one vector register holds
 * the same columns of R rows and a dot product needs no horizontal sum. The kernels' view of the
 * same bytes is templates/cpu/weights/weights.h.
 *
 * A group is a sequence of blocks along the columns. "dwords" below: for each j, R dwords, the one
 * of row r holding the bytes of columns 4j .. 4j+3 (for nibbles: low 4j + c, high 16 + 4j + c).
 *
 *   F32 F16 BF16  1 column    R elements
 *   Q8_0          32 columns  R f16 d, 8 dwords
 *   Q4_0          32          R f16 d, 4 dwords of nibbles
 *   Q4_1          32          R f16 d, R f16 m, 4 dwords of nibbles
 *   Q5_0          32          R f16 d, R dwords of fifth bits, 4 dwords of nibbles
 *   Q5_1          32          R f16 d, R f16 m, R dwords of fifth bits, 4 dwords of nibbles
 *   Q4_K          256         R f16 d, R f16 dmin, 8 x (R u8 scale, R u8 minimum), 8 x Q4 block without d, m
 *   Q5_K          256         the same with 8 x Q5 blocks
 *   Q6_K          256         R f16 d, 16 x R s8 scale, 8 x (4 dwords of nibbles, 2 dwords of upper pairs)
 *   codes         block       R f16 d, R f16 m where there are minima, bytes of scales of all its 32 columns, what stands beside indices, dwords: the
 *                             types of CODE_DTYPES, whose words are those of
 * templates/common/llmc_codes.h
 *
 *   MXFP4         32          R u8 e, 4 dwords of nibbles
 *   NVFP4         64          R f32 d in front of the first block; R u8 s for each 16 columns, 2 x 4 dwords of nibbles
 *
 * Beside indices (upper bits, and of iq1 the bits 12 .. 15 of `high`): dwords for all 32 columns,
 * byte c that of index 4j + c, of 8, 4 or 2 times 32 columns in the lowest bits, the next ones, ...
 * (iq3_s: j = 0, then j = 1). Fifth bits: byte c of a row's dword has bit j for column 4j + c and
 * bit 4 + j for column 16 + 4j + c. Upper pairs: byte c of dword 0 has bits 2j, 2j+1 for column 4j
 * + c; dword 1 the same for column 16 + 4j + c. Q4_K and Q5_K keep scales of 8 bits instead of
 * 6: 2.8 and 2.3 % more than the file. Types that are codes keep scales of 8 bits and all eight
 * signs: IQ4_XS 1.5 %, Q3_K, IQ3_S and IQ1_M 4 %, IQ3_XXS 8 %, IQ2_XS and IQ2_XXS 11 and 12 %;
 * TQ1_0 is packed as TQ2_0, 22 %. All others are the file's size.
 *
 * The layout "planes" of block formats on a GPU: within a row, one field of all its blocks after
 * the other, so that neighbouring threads read neighbouring bytes in whole 16-byte accesses. The
 * kernels' view is templates/cuda/weights/weights.h.
 *
 *   Q4_0  qs 16, d 2             Q4_1  qs 16, dm 4            Q5_0  qs 16, qh 4, d 2       Q5_1  qs 16, qh 4, dm 4
 *   Q8_0  qs 32, d 2             Q4_K  qs 128, head 16        Q5_K  qs 128, qh 32, head 16
 *   Q6_K  ql 128, qh 64, scales 16, d 2                       MXFP4 qs 16, e 1             NVFP4 qs 32, scales 4; d 4, of the row
 *   codes words (of three the first two) of all 32 columns; third words; of each 32 columns scales
 * and upper bits of indices; d, m
 *
 * bytes a block; the bytes of a field are ggml's, but for those of Q5_K, MXFP4 and NVFP4. Q5_K:
 * each 32 columns have five words, four in qs and the fifth in qh. Column 2 p + h has its 5 bits in
 * half h of word p / 3, from bit 5 (p % 3) on; columns 30 and 31 have bit i in bit 15 of the halves
 * of word i. So a kernel takes pairs of columns out with one mask. MXFP4 and NVFP4: word i of 32
 * columns has columns 4 i .. 4 i + 3 and 16 + 4 i .. 16 + 4 i + 3. Sign and magnitude of a column
 * are bits 15 and 9 to 11 of a half of: the word (columns 4 i and, in the upper half, 4 i + 2), the
 * word turned left by 3 (4 i + 1 and + 3), its turn by 7 xor its turn by 10 (16 + 4 i and + 2), its
 * turn by 7 xor its turn by 12 (16 + 4 i + 1 and + 3). So a kernel takes eight of them out with
 * eight instructions. A plane is padded with zeros to 16 bytes, so rows keep that alignment. */
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

int64_t planes_bytes(
    Dtype d,
    int64_t cols); /* of a row; -1: no block format, or cols is no whole number of blocks */
void planes_pack(Dtype d, int64_t cols, const void *src, void *dst);
void planes_row(Dtype d, int64_t cols, const void *packed, int r, float *dst);

#endif

/* The layout "planes" of block formats on a GPU: within a row, one field of all its blocks after the other, so that neighbouring
 * threads read neighbouring bytes in whole 16-byte accesses. The kernels' view is templates/common/cuda_weights.h.
 *
 *   Q4_0  qs 16, d 2             Q4_1  qs 16, dm 4            Q5_0  qs 16, qh 4, d 2       Q5_1  qs 16, qh 4, dm 4
 *   Q8_0  qs 32, d 2             Q4_K  qs 128, head 16        Q5_K  qs 128, qh 32, head 16
 *   Q6_K  ql 128, qh 64, scales 16, d 2
 *
 * bytes a block; the bytes of a field are ggml's. A plane is padded with zeros to 16 bytes, so rows keep that alignment. */
#ifndef LLMC_RUNTIME_LAYOUT_PLANES_H
#define LLMC_RUNTIME_LAYOUT_PLANES_H

#include "formats/dtype.h"

int64_t planes_bytes(Dtype d, int64_t cols); /* of a row; -1: no block format, or cols is no whole number of blocks */
void    planes_pack(Dtype d, int64_t cols, const void *src, void *dst);
void    planes_row(Dtype d, int64_t cols, const void *packed, int r, float *dst);

#endif

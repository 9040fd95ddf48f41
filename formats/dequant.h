/* Exact conversion of stored elements to fp32 (block formats as ggml defines them), and the way
 * back for random weights, `storage:` rules and tests (round to nearest; block formats as ggml's
 * reference quantisers). */
#ifndef LLMC_FORMATS_DEQUANT_H
#define LLMC_FORMATS_DEQUANT_H

#include "formats/dtype.h"

/* n elements, a whole number of blocks; src needs no alignment */
void dequant_row(Dtype d, const void *src, float *dst, int64_t n);
/* F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, and simple (not ggml's searching) Q4_K, Q5_K, Q6_K;
 * false: no such way back */
bool quant_row(Dtype d, const float *src, void *dst, int64_t n);
/* Of GROUP_DTYPES: so many columns share a scale and a zero point (0: those of a block; n is a
 * whole number of them), and symmetric codes have no zero point but the middle, as EETQ and
 * symmetric GPTQ. Other types: quant_row. */
bool quant_row_shared(Dtype d, int64_t scale_cols, bool symmetric, const float *src, void *dst,
                      int64_t n);
/* Of CODE_DTYPES, which have no way back here: any codes, with scales such that the root of the
 * mean square is rms */
void noise_row(Dtype d, float rms, void *dst, int64_t n);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* nearest even */
float bf16_to_f32(uint16_t h);
float e4m3_to_f32(uint8_t b); /* OCP 8-bit float */
float e8m0_to_f32(uint8_t e); /* 2^(e - 127), 255: NaN */
float e2m1_to_f32(uint8_t b); /* of the low 4 bits */
uint16_t f32_to_bf16(float f);

#endif

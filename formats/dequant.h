/* Converts stored elements to fp32 exactly (block formats as ggml defines them). Also quantises by
 * range, for random weights, `storage:` rules and tests: rounds to nearest, block formats like
 * ggml's reference quantisers. */
#ifndef LLMC_FORMATS_DEQUANT_H
#define LLMC_FORMATS_DEQUANT_H

#include "formats/dtype.h"

/* n: a multiple of the block size; src needs no alignment */
void dequant_row(Dtype d, const void *src, float *dst, int64_t n);
/* Quantises n elements to F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, GROUP_DTYPES, MXFP4, NVFP4,
 * and simple Q4_K, Q5_K, Q6_K (without ggml's scale search). Returns false for any other type. */
bool quant_row(Dtype d, const float *src, void *dst, int64_t n);
/* Quantises to GROUP_DTYPES: `scale_cols` columns share a scale and a zero point (0: one block). n
 * is a multiple of scale_cols. symmetric: the zero point is the middle code, as in EETQ and
 * symmetric GPTQ. Other types: same as quant_row. */
bool quant_row_shared(Dtype d, int64_t scale_cols, bool symmetric, const float *src, void *dst,
                      int64_t n);
/* Fills dst with random codes of CODE_DTYPES, which quant_row does not support. Scales are chosen
 * so that the root mean square is `rms` */
void noise_row(Dtype d, float rms, void *dst, int64_t n);

float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* nearest even */
float bf16_to_f32(uint16_t h);
float e4m3_to_f32(uint8_t b); /* OCP 8-bit float */
float e8m0_to_f32(uint8_t e); /* 2^(e - 127), 255: NaN */
float e2m1_to_f32(uint8_t b); /* low 4 bits */
uint16_t f32_to_bf16(float f);

/* Factor that undoes a scale; 0 for a scale of 0, so that a row of zeros stays one */
static inline float
scale_inverse(float d)
{
	return d != 0 ? 1 / d : 0;
}

#endif

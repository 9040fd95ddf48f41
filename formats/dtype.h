/* Element types of stored tensors, and their block geometry. */
#ifndef LLMC_FORMATS_DTYPE_H
#define LLMC_FORMATS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Groups of columns with one scale and one zero point: value = scale * (code - zero). safetensors
 * quantisation formats store these in several tensors (formats/quant_format.h). A block holds the
 * scale (f16, or f32 if the name has it), the zero point (u8), and codes of 2, 3, 4 or 8 bits in
 * the order of templates/common/llmc_groups.h.
 *
 *   m         value = scale * code + minimum, both f32, for zero points that are not integers
 *   f8        no zero point; codes are e4m3 (OCP 8-bit floating point)
 *   nf4, fp4  no zero point; a code is an index into bitsandbytes' 16 values (dtype_codes) */
#define GROUP_DTYPES(X)                                                                            \
	X(U4_32, "u4_32", 32, 19, -1, "")                                                          \
	X(U4_128, "u4_128", 128, 67, -1, "")                                                       \
	X(U4_32_F32, "u4_32_f32", 32, 21, -1, "")                                                  \
	X(U4_128_F32, "u4_128_f32", 128, 69, -1, "")                                               \
	X(U8_32, "u8_32", 32, 35, -1, "")                                                          \
	X(U8_128, "u8_128", 128, 131, -1, "")                                                      \
	X(U8_32_F32, "u8_32_f32", 32, 37, -1, "")                                                  \
	X(U8_128_F32, "u8_128_f32", 128, 133, -1, "")                                              \
	X(F8_32, "f8_32", 32, 36, -1, "")                                                          \
	X(F8_128, "f8_128", 128, 132, -1, "")                                                      \
	X(NF4_32, "nf4_32", 32, 20, -1, "")                                                        \
	X(NF4_64, "nf4_64", 64, 36, -1, "")                                                        \
	X(FP4_32, "fp4_32", 32, 20, -1, "")                                                        \
	X(FP4_64, "fp4_64", 64, 36, -1, "")                                                        \
	X(U2_32, "u2_32", 32, 11, -1, "")                                                          \
	X(U2_128, "u2_128", 128, 35, -1, "")                                                       \
	X(U3_32, "u3_32", 32, 15, -1, "")                                                          \
	X(U3_128, "u3_128", 128, 51, -1, "")                                                       \
	X(M2_32, "m2_32", 32, 16, -1, "")                                                          \
	X(M2_64, "m2_64", 64, 24, -1, "")                                                          \
	X(M3_32, "m3_32", 32, 20, -1, "")                                                          \
	X(M3_64, "m3_64", 64, 32, -1, "")                                                          \
	X(M4_32, "m4_32", 32, 24, -1, "")                                                          \
	X(M4_64, "m4_64", 64, 40, -1, "")                                                          \
	X(M8_32, "m8_32", 32, 40, -1, "")                                                          \
	X(M8_64, "m8_64", 64, 72, -1, "")

/* case labels: GROUP_DTYPES(DTYPE_CASE) covers all group types in a switch */
#define DTYPE_CASE(name, text, elems, bytes, ggml, st) case DT_##name:

/* MXFP4 and NVFP4: 4-bit floats (E2M1: a sign, and 0 .5 1 1.5 2 3 4 6), 32 columns in the nibble
 * order of q4_0, after the scales:
 *
 *   MXFP4  a byte e: the scale is 2^(e - 127)
 *   NVFP4  an f32 d, the same in all blocks of a row, and four e4m3 s, one per 16 columns: the
 * scale is d * s
 *
 * A packed row stores d once (layout_packed.h). In a GGUF, NVFP4 blocks have no d (quant_format.h).
 */

/* GGUF types whose weights are codes (templates/common/llmc_codes.h) */
#define CODE_DTYPES(X)                                                                             \
	X(Q2_K, "q2_k", 256, 84, 10, "")                                                           \
	X(Q3_K, "q3_k", 256, 110, 11, "")                                                          \
	X(IQ4_NL, "iq4_nl", 32, 18, 20, "")                                                        \
	X(IQ4_XS, "iq4_xs", 256, 136, 23, "")                                                      \
	X(IQ3_S, "iq3_s", 256, 110, 21, "")                                                        \
	X(IQ3_XXS, "iq3_xxs", 256, 98, 18, "")                                                     \
	X(IQ2_S, "iq2_s", 256, 82, 22, "")                                                         \
	X(IQ2_XS, "iq2_xs", 256, 74, 17, "")                                                       \
	X(IQ2_XXS, "iq2_xxs", 256, 66, 16, "")                                                     \
	X(IQ1_S, "iq1_s", 256, 50, 19, "")                                                         \
	X(IQ1_M, "iq1_m", 256, 56, 29, "")                                                         \
	X(TQ1_0, "tq1_0", 256, 54, 34, "")                                                         \
	X(TQ2_0, "tq2_0", 256, 66, 35, "")

/*        NAME  text    elems bytes ggml safetensors */
#define WEIGHT_DTYPES(X)                                                                           \
	X(F32, "f32", 1, 4, 0, "F32")                                                              \
	X(F16, "f16", 1, 2, 1, "F16")                                                              \
	X(BF16, "bf16", 1, 2, 30, "BF16")                                                          \
	X(Q4_0, "q4_0", 32, 18, 2, "")                                                             \
	X(Q4_1, "q4_1", 32, 20, 3, "")                                                             \
	X(Q5_0, "q5_0", 32, 22, 6, "")                                                             \
	X(Q5_1, "q5_1", 32, 24, 7, "")                                                             \
	X(Q8_0, "q8_0", 32, 34, 8, "")                                                             \
	X(Q4_K, "q4_k", 256, 144, 12, "")                                                          \
	X(Q5_K, "q5_k", 256, 176, 13, "")                                                          \
	X(Q6_K, "q6_k", 256, 210, 14, "")                                                          \
	X(MXFP4, "mxfp4", 32, 17, 39, "")                                                          \
	X(NVFP4, "nvfp4", 64, 40, -1, "")                                                          \
	CODE_DTYPES(X)                                                                             \
	GROUP_DTYPES(X)
#define DTYPE_LIST(X)                                                                              \
	WEIGHT_DTYPES(X)                                                                           \
	X(I32, "i32", 1, 4, 26, "I32")                                                             \
	X(I64, "i64", 1, 8, 27, "I64")

/* "f32 f16 ...": types in which a description may have weights stored */
#define WEIGHT_WORD(name, text, elems, bytes, ggml, st) " " text
#define WEIGHT_WORDS (&(WEIGHT_DTYPES(WEIGHT_WORD))[1])

typedef enum Dtype {
	DT_NONE = -1,
#define X(name, text, elems, bytes, ggml, st) DT_##name,
	DTYPE_LIST(X)
#undef X
	    DT_COUNT
} Dtype;

typedef struct DtypeInfo {
	const char *text; /* spelling in YAML and plan */
	int block_elems;  /* elements per block, along the contiguous dimension */
	int block_bytes;
	int ggml_type;           /* GGUF type number; -1: none */
	const char *safetensors; /* name in a safetensors header, "" if it has none */
} DtypeInfo;

/* Composition of a GROUP_DTYPES block; columns 0: not such a type */
typedef enum DtypeValues { VALUES_INT, VALUES_E4M3, VALUES_NF4, VALUES_FP4 } DtypeValues;
typedef struct DtypeGroup {
	int columns, bits, scale_bytes;
	int zero_bytes; /* 1: u8 zero point; 4: f32 minimum; 0: neither. Stored after the scale */
	DtypeValues values;
} DtypeGroup;

/* Returns the llmc_codes_kind (templates/common/llmc_codes.h) of a CODE_DTYPES type; 0: another
 * type */
int dtype_kind(Dtype d);
const DtypeInfo *dtype_info(Dtype d); /* d must be valid */
DtypeGroup dtype_group(Dtype d);
/* Returns the type like d with groups of `columns`; DT_NONE: none */
Dtype dtype_regroup(Dtype d, int columns);
bool dtype_is_float(Dtype d);            /* f32, f16, bf16 */
bool dtype_row_factor(Dtype d);          /* does every block of a row begin with the same factor? */
const float *dtype_codes(DtypeValues v); /* [16] for VALUES_NF4 and VALUES_FP4; NULL: others */
const char *dtype_text(Dtype d);
Dtype dtype_from_text(const char *text); /* DT_NONE: unknown */
Dtype dtype_from_ggml(uint32_t type);
Dtype dtype_from_safetensors(const char *name, size_t n);
/* for errors; includes types llmc does not read; NULL: unknown */
const char *ggml_type_name(uint32_t type);
/* Bytes of n elements in one row; -1 if n is not a multiple of the block size or the size
 * overflows. */
int64_t dtype_row_bytes(Dtype d, int64_t n_elems);

#endif

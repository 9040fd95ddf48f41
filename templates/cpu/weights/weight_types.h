/* Formats of weights as compile-time constants, and their sizes in the packed layouts. */
#ifndef LLMC_CPU_WEIGHTS_WEIGHT_TYPES_H
#define LLMC_CPU_WEIGHTS_WEIGHT_TYPES_H

#include "cpu/gemm/int_dot.h"
#include "common/llmc_codes.h"
#include "common/llmc_groups.h"

/* Encoding of codes that are not plain integers */
enum {
	W_E4M3 = 1, /* 8-bit floats */
	W_E2M1,     /* 4-bit floats, read as integers of twice the value */
	W_NF4,
	W_FP4, /* values in w_table */
};

typedef struct Weight {
	int bits;   /* bits per element; 16 and 32: floats */
	int brain;  /* 16-bit elements: 1 for bf16, 0 for f16 */
	int min;    /* 1: elements are unsigned and a min is added */
	int super;  /* 1: eight blocks share d and m, and each has a byte scale of its own */
	int halves; /* scales per block: 1 (32 columns) or 2 (16 each) */
	/* number of columns that share a scale and a zero point, which is converted to a min; 0: no
	 * such groups */
	int group;
	int wide;   /* 1: the group's scale is fp32 */
	int affine; /* 1: the group has an fp32 minimum in place of the zero point */
	int code;   /* encoding of values (W_*); groups with an encoding have no zero point */
	/* formats of codes: an llmc_codes_kind, which determines the words; `bits` is then the
	 * number of bits of the bytes that w_bytes returns */
	int kind;
} Weight;

#define W_f32 ((Weight){ .bits = 32 })
#define W_f16 ((Weight){ .bits = 16 })
#define W_bf16 ((Weight){ .bits = 16, .brain = 1 })
#define W_q4_0 ((Weight){ .bits = 4, .halves = 1 })
#define W_q4_1 ((Weight){ .bits = 4, .halves = 1, .min = 1 })
#define W_q5_0 ((Weight){ .bits = 5, .halves = 1 })
#define W_q5_1 ((Weight){ .bits = 5, .halves = 1, .min = 1 })
#define W_q8_0 ((Weight){ .bits = 8, .halves = 1 })
#define W_q4_k ((Weight){ .bits = 4, .halves = 1, .min = 1, .super = 1 })
#define W_q5_k ((Weight){ .bits = 5, .halves = 1, .min = 1, .super = 1 })
#define W_q6_k ((Weight){ .bits = 6, .halves = 2, .super = 1 })
#define W_codes(which, halves_, min_)                                                              \
	((Weight){ .bits = llmc_codes_of(which).bits,                                              \
	           .halves = halves_,                                                              \
	           .min = min_,                                                                    \
	           .super = (which) != CODES_iq4_nl,                                               \
	           .kind = which })
#define W_q2_k W_codes(CODES_q2_k, 2, 1)
#define W_q3_k W_codes(CODES_q3_k, 2, 0)
#define W_iq4_nl W_codes(CODES_iq4_nl, 1, 0)
#define W_iq4_xs W_codes(CODES_iq4_xs, 1, 0)
#define W_iq3_s W_codes(CODES_iq3_s, 1, 0)
#define W_iq3_xxs W_codes(CODES_iq3_xxs, 1, 0)
#define W_iq2_s W_codes(CODES_iq2_s, 2, 0)
#define W_iq2_xs W_codes(CODES_iq2_xs, 2, 0)
#define W_iq2_xxs W_codes(CODES_iq2_xxs, 1, 0)
#define W_iq1_s W_codes(CODES_iq1_s, 1, 0)
#define W_iq1_m W_codes(CODES_iq1_m, 2, 0)
#define W_tq1_0 W_codes(CODES_tq1_0, 1, 0)
#define W_tq2_0 W_codes(CODES_tq2_0, 1, 0)
#define W_group(b, columns, w)                                                                     \
	((Weight){ .bits = b, .halves = 1, .min = 1, .group = columns, .wide = w })
#define W_u4_32 W_group(4, 32, 0)
#define W_u4_128 W_group(4, 128, 0)
#define W_u4_32_f32 W_group(4, 32, 1)
#define W_u4_128_f32 W_group(4, 128, 1)
#define W_u8_32 W_group(8, 32, 0)
#define W_u8_128 W_group(8, 128, 0)
#define W_u8_32_f32 W_group(8, 32, 1)
#define W_u8_128_f32 W_group(8, 128, 1)
#define W_u2_32 W_group(2, 32, 0)
#define W_u2_128 W_group(2, 128, 0)
#define W_u3_32 W_group(3, 32, 0)
#define W_u3_128 W_group(3, 128, 0)
#define W_affine(b, columns)                                                                       \
	((Weight){ .bits = b, .halves = 1, .min = 1, .group = columns, .wide = 1, .affine = 1 })
#define W_m2_32 W_affine(2, 32)
#define W_m2_64 W_affine(2, 64)
#define W_m3_32 W_affine(3, 32)
#define W_m3_64 W_affine(3, 64)
#define W_m4_32 W_affine(4, 32)
#define W_m4_64 W_affine(4, 64)
#define W_m8_32 W_affine(8, 32)
#define W_m8_64 W_affine(8, 64)
#define W_float(b, columns, kind) ((Weight){ .bits = b, .group = columns, .wide = 1, .code = kind })
#define W_f8_32 W_float(8, 32, W_E4M3)
#define W_f8_128 W_float(8, 128, W_E4M3)
#define W_nf4_32 W_float(4, 32, W_NF4)
#define W_nf4_64 W_float(4, 64, W_NF4)
#define W_fp4_32 W_float(4, 32, W_FP4)
#define W_fp4_64 W_float(4, 64, W_FP4)
#define W_mxfp4 ((Weight){ .bits = 4, .halves = 1, .code = W_E2M1 })
#define W_nvfp4 ((Weight){ .bits = 4, .halves = 2, .code = W_E2M1 })

/* LLMC_WEIGHTS: mask of the weight kinds in the kernel, defined before this file is included. 1:
 * integer blocks; 2: floats, read column by column; 4: CODE_DTYPES. Code for other kinds is
 * excluded here, because the C compiler would inline it a hundred times before it removes it. */
#ifndef LLMC_WEIGHTS
#define LLMC_WEIGHTS 7
#endif
#define w_is_float(w)                                                                              \
	((LLMC_WEIGHTS & 2) &&                                                                     \
	 (LLMC_WEIGHTS == 2 || (w).bits >= 16 || ((w).code && (w).code != W_E2M1)))
#define w_is_coded(w) ((LLMC_WEIGHTS & 4) && (LLMC_WEIGHTS == 4 || (w).kind))

/* Returns the number of bits of the bytes that w_bytes returns. */
LLMC_INLINE int
w_width(const Weight w)
{
	return w.code == W_E2M1 ? 5 : w.bits;
}

/* offset that w_bytes adds to an element */
LLMC_INLINE int
w_offset(const Weight w)
{
	if (w.code == W_E2M1)
		return 12;
	if (w_is_coded(w))
		return llmc_codes_of((llmc_codes_kind)w.kind).zero;
	return w.min && w.bits < 8 ? 0 : 1 << (w.bits - 1);
}

/* ---- sizes, in bytes of a row group ---- */
LLMC_INLINE int
w_quant_bytes(const Weight w)
{
	if (w_is_coded(w))
		return llmc_codes_of((llmc_codes_kind)w.kind).words * 4 * VL;
	return (w.bits == 6 ? 24 : w.bits * 4) * VL;
}

/* bytes of a group's zero point */
LLMC_INLINE int
w_zero_bytes(const Weight w)
{
	return w.affine ? 4 : !w.code;
}

/* bytes of scales before a block or a superblock */
LLMC_INLINE int
w_head_bytes(const Weight w)
{
	const llmc_codes_shape s = llmc_codes_of((llmc_codes_kind)w.kind);

	if (w_is_coded(w))
		return (2 + 2 * s.min + s.columns / 32 * (s.scales + s.high)) * VL;
	if (w.super)
		return (w.min ? 4 + 8 * 2 : 2 + 8 * w.halves) * VL;
	if (w.group)
		return (2 + 2 * w.wide + w_zero_bytes(w)) * VL;
	if (w.code)
		return w.halves == 1 ? VL : 4 * VL;
	return (w.min ? 4 : 2) * VL;
}

/* bytes of row factors (nvfp4: fp32) before all blocks */
LLMC_INLINE int
w_whole_bytes(const Weight w)
{
	return w.code == W_E2M1 && w.halves == 2 ? 4 * VL : 0;
}

/* number of columns that share scales */
LLMC_INLINE int
w_columns(const Weight w)
{
	return w.group         ? w.group
	       : w_is_float(w) ? 1
	       : w.super       ? 256
	                       : 32 * (1 + (w.code && w.halves == 2));
}

/* number of blocks that share the data of w_shared */
LLMC_INLINE int
w_together(const Weight w)
{
	return w.super ? 8 : w_columns(w) > 32 ? w_columns(w) / 32 : 1;
}

/* bytes per column or per block; shared scales are divided among their blocks, rounded up */
LLMC_INLINE int
w_block_bytes(const Weight w)
{
	if (w_is_float(w))
		return w.bits * VL / 8;
	return w_quant_bytes(w) + (w_head_bytes(w) + w_together(w) - 1) / w_together(w);
}

LLMC_INLINE int
w_columns_bytes(const Weight w)
{
	if (w_is_float(w))
		return w.bits * VL * w_columns(w) / 8 + (w.group ? w_head_bytes(w) : 0);
	return w_head_bytes(w) + w_together(w) * w_quant_bytes(w);
}

LLMC_INLINE int64_t
w_group_bytes(const Weight w, int cols)
{
	return w_whole_bytes(w) + (int64_t)(cols / w_columns(w)) * w_columns_bytes(w);
}

#endif

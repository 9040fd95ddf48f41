/* Weights in the packed layouts (order of bytes: runtime/weights/layout_packed.h): W_<dtype> is defined before inclusion.
 *
 *   W_FLOAT           1: elements are read as fp32 (w_column); 0: integers with scales, in blocks of 32 columns
 *   W_GROUP_BYTES     a group of VL rows
 *   w_block(group,b)  what is needed of block b; then
 *     w_bytes(k,i)    columns 4i .. 4i+3 as unsigned bytes: the weight plus W_OFFSET
 *     w_words(k,i)    columns (2i, 2i+2) for even i, (2i-1, 2i+1) for odd i, as signed words, the weight itself
 *     w_scale(k,h)    fp32 scales of half h (W_HALVES = 2: of 16 columns each; 1: of the block)
 *     w_min(k)        W_MIN = 1: what is added to each element
 * W_TOGETHER blocks share what w_shared reads for them.
 * i is a constant wherever these are called, so shared loads and shifts are made once. */
#ifndef LLMC_CPU_WEIGHTS_H
#define LLMC_CPU_WEIGHTS_H

#include "common/cpu_dot.h"

/* VL halves at p; where there is no instruction, without going through the lanes one by one */
LLMC_INLINE vf
w_halves(const uint8_t *p)
{
#if VL == 4
	vi h = vi_of_u16(p), em = (h & vi_all(0x7fff)) << 13;
	vf f = (vf)em * (vf)vi_all(0x77800000);
	vi special = (vi)(em >= vi_all(0x0f800000)) & vi_all(0x7f800000);
	return (vf)((vi)f | special | (h & vi_all(0x8000)) << 16);
#else
	return vf_load_f16((const f16 *)p);
#endif
}

#if defined(W_f32) || defined(W_f16) || defined(W_bf16)

#define W_FLOAT 1
#ifdef W_f32
#define W_COLUMN_BYTES (4 * VL)
#else
#define W_COLUMN_BYTES (2 * VL)
#endif
#define W_GROUP_BYTES ((int64_t)COLS * W_COLUMN_BYTES)

LLMC_INLINE vf
w_column(const uint8_t *group, int64_t k)
{
	const uint8_t *p = group + k * W_COLUMN_BYTES;
#if defined(W_f32)
	return vf_load((const float *)p);
#elif defined(W_f16)
	return w_halves(p);
#else
	return (vf)(vi_of_u16(p) << 16);
#endif
}

#else

#define W_FLOAT 0
#define W_BLOCKS (COLS / 32)
_Static_assert(COLS % 32 == 0, "rows are whole blocks");
#if defined(W_q4_0) || defined(W_q4_1) || defined(W_q4_k)
#define W_BITS 4
#elif defined(W_q5_0) || defined(W_q5_1) || defined(W_q5_k)
#define W_BITS 5
#elif defined(W_q6_k)
#define W_BITS 6
#elif defined(W_q8_0)
#define W_BITS 8
#else
#error "weights of a type that has no packed layout"
#endif
#if defined(W_q4_1) || defined(W_q5_1) || defined(W_q4_k) || defined(W_q5_k)
#define W_MIN 1
#define W_OFFSET 0
#else
#define W_MIN 0
#define W_OFFSET (1 << (W_BITS - 1))
#endif
#if defined(W_q4_k) || defined(W_q5_k) || defined(W_q6_k)
#define W_SUPER 1
_Static_assert(COLS % 256 == 0, "rows are whole super-blocks");
#else
#define W_SUPER 0
#endif
#if W_BITS == 6
#define W_HALVES 2
#else
#define W_HALVES 1
#endif

/* bytes: of scales before a block, of its elements */
#define W_QUANT_BYTES ((W_BITS == 6 ? 24 : W_BITS * 4) * VL)
#if W_SUPER
#define W_HEAD_BYTES ((W_BITS == 6 ? 18 : 20) * VL)
#define W_SUPER_BYTES (W_HEAD_BYTES + 8 * W_QUANT_BYTES)
#define W_GROUP_BYTES ((int64_t)(COLS / 256) * W_SUPER_BYTES)
#define W_BLOCK_BYTES ((W_SUPER_BYTES + 7) / 8)
#else
#define W_HEAD_BYTES ((W_MIN ? 4 : 2) * VL)
#define W_BLOCK_BYTES (W_HEAD_BYTES + W_QUANT_BYTES)
#define W_GROUP_BYTES ((int64_t)W_BLOCKS * W_BLOCK_BYTES)
#endif

#define W_TOGETHER (W_SUPER ? 8 : 1)

typedef struct w_at {
	const uint8_t *head, *quant;
	int            sub;      /* which of the super-block */
	vf             d;        /* of the super-block, or the block */
#if W_MIN
	vf             m;
#endif
} w_at;

/* the first block, b = 0, W_TOGETHER, ..., and the scales it shares */
LLMC_INLINE w_at
w_shared(const uint8_t *group, int b)
{
	w_at k;
#if W_SUPER
	k.head = group + (int64_t)(b / 8) * W_SUPER_BYTES;
#else
	k.head = group + (int64_t)b * W_BLOCK_BYTES;
#endif
	k.quant = k.head + W_HEAD_BYTES;
	k.sub = 0;
	k.d = w_halves(k.head);
#if W_MIN
	k.m = w_halves(k.head + 2 * VL);
	if (W_SUPER)
		k.m = -k.m;
#endif
	return k;
}

LLMC_INLINE w_at
w_next(w_at k)
{
	k.quant += W_QUANT_BYTES;
	k.sub++;
	return k;
}

LLMC_INLINE w_at
w_block(const uint8_t *group, int b)
{
	w_at k = w_shared(group, b / W_TOGETHER * W_TOGETHER);

	k.sub = b % W_TOGETHER;
	k.quant += k.sub * W_QUANT_BYTES;
	return k;
}

LLMC_INLINE vi
w_bytes(w_at k, int i)
{
#if W_BITS == 8
	return vi_load(k.quant + 4 * VL * i) ^ vi_all((int32_t)0x80808080);
#elif W_BITS == 4
	vi v = vi_load(k.quant + 4 * VL * (i & 3));
	return (i < 4 ? v : v >> 4) & vi_all(0x0f0f0f0f);
#elif W_BITS == 5
	vi v = vi_load(k.quant + 4 * VL * (1 + (i & 3))), h = vi_load(k.quant);
	vi top = i < 4 ? h << (4 - i) : h >> (i - 4);
	return ((i < 4 ? v : v >> 4) & vi_all(0x0f0f0f0f)) | (top & vi_all(0x10101010));
#else
	vi v = vi_load(k.quant + 4 * VL * (i & 3)), h = vi_load(k.quant + 4 * VL * (4 + i / 4));
	vi top = (i & 3) == 3 ? h >> 2 : h << (4 - 2 * (i & 3));
	return ((i < 4 ? v : v >> 4) & vi_all(0x0f0f0f0f)) | (top & vi_all(0x30303030));
#endif
}

LLMC_INLINE vi
w_words(w_at k, int i)
{
#if W_BITS == 8
	vw v = (vw)vi_load(k.quant + 4 * VL * (i / 2));
	return (vi)(i & 1 ? v >> 8 : v << 8 >> 8);
#else
	vi v = w_bytes(k, i / 2);
	vi u = i & 1 ? v >> 8 : v;
	u &= vi_all(0x00ff00ff);
#if W_MIN
	return u;
#else
	return (vi)((vw)u - (vw)vi_all(W_OFFSET * 0x10001));
#endif
#endif
}

LLMC_INLINE vf
w_small(const uint8_t *p, int is_signed)
{
	return vf_of_vi(is_signed ? vi_of_s8(p) : vi_of_u8(p));
}

LLMC_INLINE vf
w_scale(w_at k, int half)
{
#if W_BITS == 6
	return k.d * w_small(k.head + 2 * VL + (2 * k.sub + half) * VL, 1);
#elif W_SUPER
	(void)half;
	return k.d * w_small(k.head + 4 * VL + 2 * k.sub * VL, 0);
#else
	(void)half;
	return k.d;
#endif
}

#if W_MIN
LLMC_INLINE vf
w_min(w_at k)
{
#if W_SUPER
	return k.m * w_small(k.head + 4 * VL + (2 * k.sub + 1) * VL, 0);
#else
	return k.m;
#endif
}
#endif

#endif
#endif

/* AMX tile registers and operations on them, for GEMM (cpu/gemm/amx.h) and attention
 * (cpu/attention/attention_amx.h).
 *
 * A register has up to 16 rows of 64 bytes. C += A B: rows of A are rows of C; each row of B holds
 * pairs of bf16 (quadruples of int8) of 16 columns. Before a kernel runs, the process must have
 * requested the use of AMX from the operating system (runtime/cpu/isa.c). */
#ifndef LLMC_CPU_GEMM_AMX_TILES_H
#define LLMC_CPU_GEMM_AMX_TILES_H

#include "cpu/math/vector.h"

#if defined(LLMC_TILES)
enum { AMX_TILE = 1024 }; /* bytes per register */

typedef struct amx_config {
	uint8_t palette, start, none[14];
	uint16_t bytes[16]; /* bytes per row of each register */
	uint8_t rows[16];
} amx_config;

#define AMX_LOAD(r, p, stride)                                                                     \
	__asm__ volatile("tileloadd (%0,%1,1), %%tmm" #r ::"r"(p), "r"((int64_t)(stride))          \
	                 : "memory")
/* loads a tile past L1, for data that is used once */
#define AMX_PASS(r, p, stride)                                                                     \
	__asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #r ::"r"(p), "r"((int64_t)(stride))        \
	                 : "memory")
#define AMX_STORE(r, p, stride)                                                                    \
	__asm__ volatile("tilestored %%tmm" #r ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride))      \
	                 : "memory")
#define AMX_ZERO(r) __asm__ volatile("tilezero %tmm" #r)
#define AMX_INT8(c, a, b) __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #c)
#define AMX_BF16(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

/* Registers 0 to 3: results; 4, 5: activations; 6, 7: weights. columns: bytes per row of A */
LLMC_INLINE void
amx_begin(int tokens, int columns)
{
	_Alignas(64) amx_config c = { .palette = 1 };

	for (int r = 0; r < 8; r++) {
		c.rows[r] = (uint8_t)(r < 6 ? tokens : columns / 4);
		c.bytes[r] = (uint16_t)(r == 4 || r == 5 ? columns : 64);
	}
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

LLMC_INLINE void
amx_end(void)
{
	__asm__ volatile("tilerelease");
}

/* ---- pairs of bf16 in each lane: x low, y high ---- */
typedef uint32_t amx_bits __attribute__((vector_size(64), may_alias));

/* truncates both to bf16 */
LLMC_INLINE vi
amx_two(vi x, vi y)
{
	return (vi)_mm512_ternarylogic_epi32((__m512i)y, (__m512i)vi_set1((int32_t)0xffff0000),
	                                     (__m512i)((amx_bits)x >> 16), 0xea);
}

/* truncates to bf16; for f16 values, this part and the remainder are both exact */
LLMC_INLINE vf
amx_cut(vf x)
{
	return (vf)((vi)x & vi_set1((int32_t)0xffff0000));
}

/* Splits x and y into `parts` tiles; exact for bf16 (one part) and f16 (two) */
LLMC_INLINE void
amx_put_exact(const int parts, vf x, vf y, uint8_t *to)
{
	*(vi *)(void *)to = amx_two((vi)x, (vi)y);
	if (parts == 2)
		*(vi *)(void *)(to + AMX_TILE) =
		    amx_two((vi)(x - amx_cut(x)), (vi)(y - amx_cut(y)));
}

/* Splits x and y into two parts, each rounded to nearest: relative error 2^-17 */
LLMC_INLINE void
amx_put_rounded(vf x, vf y, uint8_t *to)
{
	const vi half = vi_set1(0x8000);
	const vi hx = (vi)x + half, hy = (vi)y + half;

	*(vi *)(void *)to = amx_two(hx, hy);
	*(vi *)(void *)(to + AMX_TILE) =
	    amx_two((vi)(x - amx_cut((vf)hx)) + half, (vi)(y - amx_cut((vf)hy)) + half);
}

/* Transposes 16 x 16 lanes */
LLMC_INLINE void
amx_transpose(const uint8_t *from, uint8_t *to)
{
	__m512i a[16], b[16];

	LLMC_UNROLL
	for (int i = 0; i < 16; i++)
		a[i] = _mm512_loadu_si512(from + i * 64);
	LLMC_UNROLL
	for (int i = 0; i < 16; i += 2) {
		b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
		b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
	}
	LLMC_UNROLL
	for (int i = 0; i < 16;
	     i += 4) { /* a[i + c], lanes 4 k .. 4 k + 3: column 4 k + c of rows i .. i + 3 */
		a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
		a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
		a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
		a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
	}
	LLMC_UNROLL
	for (int c = 0; c < 4; c++) {
		const __m512i x = _mm512_shuffle_i32x4(a[c], a[4 + c], 0x88),
		              y = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0x88);
		const __m512i z = _mm512_shuffle_i32x4(a[c], a[4 + c], 0xdd),
		              u = _mm512_shuffle_i32x4(a[8 + c], a[12 + c], 0xdd);
		_mm512_storeu_si512(to + c * 64, _mm512_shuffle_i32x4(x, y, 0x88));
		_mm512_storeu_si512(to + (4 + c) * 64, _mm512_shuffle_i32x4(z, u, 0x88));
		_mm512_storeu_si512(to + (8 + c) * 64, _mm512_shuffle_i32x4(x, y, 0xdd));
		_mm512_storeu_si512(to + (12 + c) * 64, _mm512_shuffle_i32x4(z, u, 0xdd));
	}
}

/* Dot i of six: rows (tiles hi and lo at a) with columns (`parts` tiles at b and, if wide, also
 * `apart` bytes later). Results: c0 and c1 */
#define AMX_PAIR(i, c0, c1, parts, wide, a, b, apart)                                              \
	do {                                                                                       \
		if ((i) == 0) {                                                                    \
			AMX_LOAD(4, a, 64);                                                        \
			AMX_LOAD(6, b, 64);                                                        \
			AMX_BF16(c0, 4, 6);                                                        \
		} else if ((i) == 1 && (wide)) {                                                   \
			AMX_LOAD(7, (b) + (apart), 64);                                            \
			AMX_BF16(c1, 4, 7);                                                        \
		} else if ((i) == 2) {                                                             \
			AMX_LOAD(5, (a) + AMX_TILE, 64);                                           \
			AMX_BF16(c0, 5, 6);                                                        \
		} else if ((i) == 3 && (wide)) {                                                   \
			AMX_BF16(c1, 5, 7);                                                        \
		} else if ((i) == 4 && (parts) == 2) {                                             \
			AMX_LOAD(6, (b) + AMX_TILE, 64);                                           \
			AMX_BF16(c0, 4, 6);                                                        \
		} else if ((i) == 5 && (parts) == 2 && (wide)) {                                   \
			AMX_LOAD(7, (b) + (apart) + AMX_TILE, 64);                                 \
			AMX_BF16(c1, 4, 7);                                                        \
		}                                                                                  \
	} while (0)
/* Interleaves dots with packing. Used in a switch over packed rows 0 to 15: these cases issue dots
 * `first` .. first + 5 of `of`. */
#define AMX_CASES(first, of, ...)                                                                  \
	case ((first) + 1) * 16 / (of) - 1:                                                        \
		AMX_PAIR(0, __VA_ARGS__);                                                          \
		break;                                                                             \
	case ((first) + 2) * 16 / (of) - 1:                                                        \
		AMX_PAIR(1, __VA_ARGS__);                                                          \
		break;                                                                             \
	case ((first) + 3) * 16 / (of) - 1:                                                        \
		AMX_PAIR(2, __VA_ARGS__);                                                          \
		break;                                                                             \
	case ((first) + 4) * 16 / (of) - 1:                                                        \
		AMX_PAIR(3, __VA_ARGS__);                                                          \
		break;                                                                             \
	case ((first) + 5) * 16 / (of) - 1:                                                        \
		AMX_PAIR(4, __VA_ARGS__);                                                          \
		break;                                                                             \
	case ((first) + 6) * 16 / (of) - 1:                                                        \
		AMX_PAIR(5, __VA_ARGS__);                                                          \
		break;

/* Prefetches the i-th of `of` slices to L2. A prefetch to L1 would delay the loads of the tiles. */
LLMC_INLINE void
amx_prefetch_l2(const char *p, const int bytes, int i, const int of)
{
	const int lines = bytes / 64;

	for (int at = i * lines / of; at < (i + 1) * lines / of; at++)
		__builtin_prefetch(p + at * 64, 0, 2);
}
#endif

#endif

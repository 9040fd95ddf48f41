/* Weights: one trait per storage type, w_<dtype><COLS>. Only this trait depends on how the type's
 * bytes are stored. The GPU layouts are "row" for f32, f16, bf16 and "planes" for block formats
 * (formats/layout_packed.h). A new block format is one more trait: docs/adding-a-block-type.md.
 *
 *   COLS, ROW       columns; bytes per row
 *   BLOCK, PACKED   weights per block (1: elements); whether they must be unpacked
 *   BF16            1: multiplied as bf16, otherwise as f16
 *
 * A row is read as units, tiles or a stream. All values equal those of formats/dequant.c, except
 * for one rounding less where a minimum is added.
 *
 * Units (GEMV without tensor cores, gather, experts): the weights that a thread reads at a time,
 * mostly by one 16-byte load.
 *
 *   UNIT, UNITS       weights per unit (f32 4, f16 and bf16 8, block formats 32); units per row
 *   load(row, u)      issues the loads of a unit's bytes to registers (`raw`)
 *   decode(r, u, v)   converts raw to UNIT floats, in the order of column(u, i). i = 0..15 are
 *                     neighbouring columns, and so are 16..31, which begin SPAN columns after the
 *                     first, so a thread reads both nibbles of a byte.
 *
 * A dot product over a row:
 *
 *   for (u = lane; u < W::UNITS; u += 32)
 *           W::decode(W::load(row, u), u, v), sum += v[i] * x[W::column(u, i)];
 *
 * If rows of f32, f16 or bf16 are not a multiple of 16 bytes (not WHOLE), elements are loaded one
 * by one. Only the first width(u) weights of the last unit exist; the others are zeros. Loads are
 * never ld.global.nc, so they may precede griddep_wait.
 *
 * Tiles (PACKED: prefill through shared memory): W::tile iterates over units, of which a pair
 * covers 64 neighbouring columns.
 *
 *   tile::load(row, u), tile::column(u, i)   as above
 *   tile::eight(r, u, c)                     weights 8 c .. 8 c + 7 of the unit as f16, neighbours
 *   tile::bytes(r, u, c, b, d, m)            these weights as bytes (w_bytes), for integer GEMMs:
 *                                            HALVES 1: a scale per 32 columns, 2: per 16;
 *                                            HAS_MIN 1: m is not always 0
 *
 * Stream (decode, from sm_80 on): with W::stream, a warp reads sixteen rows, in two groups of
 * eight. Lane 4 g + t has a part of row g of each group.
 *
 *   UNIT, CHUNKS     columns per unit of these rows; chunks per unit. A chunk is 8 weights per
 *                    lane, 32 columns per row, two mma.
 *   stage            a group's unit in shared memory
 *   fragment         a lane's part of a unit in registers
 *   offset           byte offset in a row of what lane t loads of a unit, for each of PLANES planes
 *   prefetch         cp.async of a unit from these offsets to its stage, 16 bytes per lane and
 *                    fewer for scales
 *   load             stage to registers, after it has arrived. A lane reads only bytes that it
 *                    copied itself, except for fields that its quad shares (QUADS: __syncwarp
 * before and after).
 *   scales           values that the chunks of a unit share
 *   chunk<false>     registers of an mma: weight times GAIN, rounded to 11 bits
 *   chunk<true>      block formats whose scales follow the mma: codes without scale and zero point
 *                    (integers times W_WHOLE), divided by part(c, i), a power of two for the i-th
 *                    of the four pairs of columns. The factor of w_row_factor<W> is applied in
 *                    addition to GAIN and UNDO.
 *   SPLIT            scales of a lane's columns: 0: one for all of them; 1: one for those of col
 *                    and one for those of col2, both shared with lane t ^ 1, and lane t gets the
 *                    sums of sub-block t of the four; 2: one for each, not shared
 *   add              adds the sums of two rows (low: of col or all, high: of col2) to totals, times
 *                    scales. x: the sums of the same columns of x, times SUM * W_WHOLE. Totals are
 *                    1 / UNDO times the result.
 *   col, col2        columns of a lane's chunk: 0..3 from each of the two on; with NIBBLES, each
 *                    four are in the order 0 2 1 3, so that one AND unpacks a pair of nibbles
 *   MINS             1: the mma multiplies integers, codes times their sub-block's scale; one more
 *                    mma multiplies the sub-blocks' minima (s.mins) by sums of x; the block's two
 *                    factors (factors) are applied in f32 afterwards
 *   TAIL             columns of a row's last unit, if that unit is partial; lanes beyond these
 *                    columns load the row's last bytes again, and x is 0 there
 *   BATCH            chunks whose norm weights fit in registers at a time
 *
 * GAIN keeps small scales out of f16's subnormals. The argument `unit` of load, scales and chunk
 * only has to be right modulo 8. (8 is the number of warps of a CTA, and units of a warp are a
 * multiple of 8 apart.) */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_H

#include "cuda/math/half2.h"

/* Operand of a kernel: `rows` rows of W, `stride` bytes apart, all times `scale`. half: byte offset
 * from a row of the first half to the same row of the second half. If gate and up are separate
 * matrices, it is the offset from one matrix to the other (w_pair). */
template <class W> struct w_matrix {
	const unsigned char *w;
	int rows;
	long long stride, half;
	float scale;

	__device__ __forceinline__ explicit w_matrix(const void *w, int rows,
	                                             long long stride = W::ROW, float scale = 1.0f)
	    : w((const unsigned char *)w), rows(rows), stride(stride), half(rows / 2 * stride),
	      scale(scale)
	{
	}
	__device__ __forceinline__ const unsigned char *
	row(long long r) const
	{
		return w + r * stride;
	}
};

/* Makes two matrices of `rows` rows each the halves of one matrix. */
template <class W> DEV w_matrix<W>
w_pair(const void *first, const void *second, int rows)
{
	w_matrix<W> m(first, 2 * rows);

	m.half = (const unsigned char *)second - (const unsigned char *)first;
	return m;
}

/* Bytes of a plane that has `blocks` fields of `bytes` bytes */
DEV constexpr int
w_plane(int blocks, int bytes)
{
	return (blocks * bytes + 15) / 16 * 16;
}

DEV unsigned short
w_u16(const unsigned char *p)
{
	return *(const unsigned short *)p;
}
DEV unsigned
w_word(const uint4 &q, int i)
{
	return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w;
}

/* Loads 16 bytes of weights. again: other threads need these bytes too, so they are cached in L1 */
DEV uint4
w_read(const unsigned char *p, bool again)
{
	return again ? ld_v4(p) : ld_v4_stream(p);
}

/* ---- units and tiles: bytes as floats ---- */

/* Byte k of a word as a float + 2^23. A conversion from integer would take four times as long. */
#define W_BYTE(word, k) __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + (k)))
#define W_2_23 8388608.0f

/* Moves bits 0..3 of `bits` to bit 4 of the four bytes. */
DEV unsigned
w_fifth(unsigned bits)
{
	return ((bits & 15) * 0x00204081u & 0x01010101u) << 4;
}

/* Low or high nibbles of four bytes */
DEV unsigned
w_nibbles(unsigned v, int high)
{
	return v >> 4 * high & 0x0f0f0f0fu;
}

/* Eight nibbles as indices into a table of sixteen bytes. The four nibbles in the low half are
 * looked up at a time. prmt selects from only eight bytes, and uses bit 3 to replicate a sign.
 * Therefore both halves of the table are looked up by `at`, and `which` selects one of the two
 * results. */
struct w_sixteen {
	unsigned at, which;
	__device__ __forceinline__ w_sixteen
	half(int i) const
	{
		return { at >> 16 * i, which >> 16 * i };
	}
};

DEV w_sixteen
w_sixteen_of(unsigned v)
{
	return { v & 0x77777777u, h2_select(v >> 1, 0x44444444u, 0x32103210u) };
}
/* a .. d: the four words of the table */
DEV unsigned
w_of_sixteen(const w_sixteen &n, unsigned a, unsigned b, unsigned c, unsigned d)
{
	return byte_choose(byte_choose(a, b, n.at), byte_choose(c, d, n.at), n.which);
}

/* Units and tiles of a format with units of 32, from its `bytes`: F::bytes(r, u, c, b, d, m)
 * returns weights 8 c .. 8 c + 7 of unit u as (b - F::ZERO) * d + m. */
template <class F> struct w_bytes : F {
	typedef w_bytes tile;

	template <class R> DEV void
	decode(const R &r, int u, float (&v)[32])
	{
#pragma unroll
		for (int c = 0; c < 4; c++) {
			unsigned b[2];
			float d, m;
			F::bytes(r, u, c, b, d, m);
#pragma unroll
			for (int i = 0; i < 8; i++)
				v[8 * c + i] =
				    fmaf(d, W_BYTE(b[i / 4], i % 4) - (W_2_23 + F::ZERO), m);
		}
	}

	template <class R> DEV uint4
	eight(const R &r, int u, int c)
	{
		unsigned b[2], p[4];
		float d, m;

		F::bytes(r, u, c, b, d, m);
#pragma unroll
		for (int i = 0; i < 4; i++)
			p[i] = pack_f16(
			    fmaf(W_BYTE(b[i / 2], i % 2 * 2) - (W_2_23 + F::ZERO), d, m),
			    fmaf(W_BYTE(b[i / 2], i % 2 * 2 + 1) - (W_2_23 + F::ZERO), d, m));
		return make_uint4(p[0], p[1], p[2], p[3]);
	}
};

/* decode, for a format that has W::four(r, c, e, v), which returns weights 8 c + 4 e .. 8 c + 4 e +
 * 3 of a unit */
template <class W> DEV void
w_decode_fours(const typename W::raw &r, float (&v)[32])
{
#pragma unroll
	for (int i = 0; i < 8; i++) {
		float f[4];
		W::four(r, i / 2, i % 2, f);
#pragma unroll
		for (int k = 0; k < 4; k++)
			v[4 * i + k] = f[k];
	}
}

/* Factor of a whole row, which W::stream does not apply to sums. HAS 0: there is no such factor */
template <class W> struct w_row_factor {
	enum { HAS = 0 };
	DEV float
	of(const unsigned char *)
	{
		return 1.0f;
	}
};

/* Packs a pair in the 16-bit type of W. */
template <class W> DEV unsigned
w_pack(float lo, float hi)
{
	return W::BF16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
}

#if __CUDA_ARCH__ >= 800
/* d += a b in the 16-bit type of W */
template <class W> DEV void
w_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
	if (W::BF16)
		mma_bf16_m16n8k16(d, a, b, d);
	else
		mma_f16_m16n8k16(d, a, b, d);
}

/* ---- streams: pairs of nibbles as halves ---- */

/* Clamps the offset of 16 bytes to a plane of `plane` bytes, for a partial last unit. */
template <int TAIL> DEV unsigned
w_within(int at, int plane)
{
	return (unsigned)(TAIL ? min(at, plane - 16) : at);
}

/* Converts a code in the low mantissa bits of 1024 to its value minus the format's zero point; for
 * w_high the code is multiplied by 16. */
template <int ZERO> DEV unsigned
w_low(unsigned v)
{
	return h2_add(v, (0xe400u + ZERO) * 0x10001u); /* 1024 + v - (1024 + zero) */
}

template <int ZERO> DEV unsigned
w_high(unsigned v)
{
	return h2_fma(v, 0x2c002c00u,
	              (0xd400u + ZERO * 16) * 0x10001u); /* (1024 + 16 v) / 16 - (64 + zero) */
}

/* Unit of the integers of chunk<true>: subnormal halves, which tensor cores multiply as they are */
#define W_WHOLE 0x1p-24f

/* Scales of the low nibbles and of the high ones. m: values to add */
struct w_nibble_scale {
	unsigned d[2], m[2];
};

#define W_GAIN 64.0f /* for block formats whose sub-blocks have no minima */
#define W_GAIN_H 0x54005400u

/* Unpacks a chunk from a word of nibbles. low, high: bits to set above the low and high nibbles:
 * 1024 (unless WHOLE), and bits 4.. (low) or 8.. (high) of the codes. Index 0 has bytes 0 and 2,
 * index 1 bytes 1 and 3. S has ADDS (m is added) and ZERO */
template <class S, bool WHOLE> DEV void
w_nibble_chunk(unsigned (&b)[4], unsigned word, const unsigned (&low)[2], const unsigned (&high)[2],
               const w_nibble_scale &s)
{
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const unsigned v = word >> 8 * i;
		const unsigned a = h2_select(v, 0x000f000fu, low[i]),
		               h = h2_select(v, 0x00f000f0u, high[i]);
		if (WHOLE) {
			b[i] = a;
			b[2 + i] = h;
		} else if (S::ADDS) {
			b[i] = h2_fma(w_low<S::ZERO>(a), s.d[0], s.m[0]);
			b[2 + i] = h2_fma(w_high<S::ZERO>(h), s.d[1], s.m[1]);
		} else {
			b[i] = h2_mul(w_low<S::ZERO>(a), s.d[0]);
			b[2 + i] = h2_mul(w_high<S::ZERO>(h), s.d[1]);
		}
	}
}
#endif

#include "cuda/weights/weights_elements.h"
#include "cuda/weights/weights_blocks.h"
#include "cuda/weights/weights_k.h"
#include "cuda/weights/weights_groups.h"
#include "cuda/weights/weights_fp4.h"
#include "cuda/weights/weights_codes.h"

#endif

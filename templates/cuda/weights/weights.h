/* Weights: one struct a storage type, w_<dtype><COLS>, which alone knows the type's bytes, for the
 * layouts of a GPU ("row" for f32, f16, bf16, "planes" for block formats: formats/layout_packed.h).
 * A new block format is one more of them: docs/adding-a-block-type.md.
 *
 *   COLS, ROW       columns; bytes of a row
 *   BLOCK, PACKED   weights of a block, 1: elements; whether blocks are taken apart
 *   BF16            1: products are those of bf16, otherwise of f16
 *
 * A row is read in one of three ways. All values are formats/dequant.c's, but for one rounding less
 * where a minimum is added.
 *
 * Units (products without tensor cores, gather, experts): what a thread reads at one time, mostly
 * by one 16-byte load.
 *   UNIT, UNITS     weights of a unit (f32 4, f16 and bf16 8, block formats 32); units of a row
 *   load(row, u)    a unit's bytes into registers, without waiting for them: `raw`
 *   decode(r, u, v) raw to UNIT floats, in the order of column(u, i): i = 0..15 are neighbours, and
 * so are 16..31, which begin SPAN columns after the first. A thread thus reads both nibbles of a
 * byte.
 *   So a dot product is   for (u = lane; u < W::UNITS; u += 32) { W::decode(W::load(row, u), u, v); sum += v[i] * x[W::column(u, i)]; }
 *   Where rows of f32, f16, bf16 are no whole number of 16 bytes (not WHOLE), loads are by element,
 * and only the first width(u) weights of the last unit are there: the others are zeros beyond the
 * row. No load is ld.global.nc: they may stand before griddep_wait.
 *
 * Tiles (PACKED: prefill through shared memory): W::tile is a way through units of which a pair
 * covers 64 neighbouring columns.
 *   tile::load(row, u), tile::column(u, i)   as above
 *   tile::eight(r, u, c)                     weights 8 c .. 8 c + 7 of the unit as f16: neighbours
 *
 * W::stream (decode, from sm_80 on): sixteen rows go through a warp together, two groups of eight;
 * lane 4 g + t has a part of row g of each.
 *   UNIT            columns of a unit of these rows
 *   CHUNKS          a unit comes apart in so many chunks of 8 weights a lane: 32 columns a row, two mma
 *   stage, fragment a group's unit in shared memory; a lane's part of it in registers
 *   place           bytes from a row's begin to what lane t asks for of a unit in each of PLANES planes
 *   prefetch, load  cp.async of a unit from these places to its stage, 16 bytes a lane and less for
 * scales; the stage to registers, when it has come. A lane loads what it asked for itself, but for
 * fields that its quad shares (QUADS: the warp meets before and after)
 *   scales, chunk   what a unit's chunks share; a chunk as registers of an mma: chunk<false> as weight times GAIN, rounded to 11 bits;
 *                   chunk<true> (block formats, whose scales come after the mma) as the format's
 * numbers without their scale and zero point (whole ones times W_WHOLE), over part(c, i): of the
 * i-th of its four pairs of columns, a power of two w_row_factor<W> comes on top of GAIN and UNDO
 *   SPLIT           whose scales those of a lane's columns are: 0 one for all of them; 1 one for those in col and one for those in col2, both shared
 *                   with lane t ^ 1: lane t takes the sums of sub-block t of the four; 2 one for
 * each, its own
 *   add             two rows' sums (low: in col or all, high: in col2) to totals: times scales, with x, the sums of x that belong to them times SUM
 *                   W_WHOLE. Totals come out 1 / UNDO times as large
 *   col, col2       columns of a lane's chunk: 0..3 from each of the two on; where NIBBLES, each four in the order 0 2 1 3 (nibbles are taken
 *                   apart by one and)
 *   MINS            1: the mma sees whole numbers, nibbles times their sub-block's scale, and in one mma more the sub-blocks' minima (s.mins)
 *                   times sums of x; the block's two factors (factors) come after, in f32
 *   TAIL            a row's last unit has so many columns, where not 0; lanes beyond them ask for its last bytes again. x is 0 there
 *   BATCH           chunks of norm weights that registers leave room for
 * GAIN keeps small scales out of f16's subnormals. `unit` of load, scales and chunk need only be
 * right modulo 8, the warps of a block: a warp's units are that far apart, and so what they look at
 * in it does not change. */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_H

#include "cuda/math/half2.h"

/* A matrix as a kernel takes it: `rows` rows of W, `apart` bytes from one to the next, all times
 * `scale`. half: bytes from a row of its first half to the same one of its second; of gate and up
 * that are matrices of their own, from one to the other (w_pair). */
template <class W> struct w_matrix {
	const unsigned char *w;
	int rows;
	long long apart, half;
	float scale;

	__device__ __forceinline__ explicit w_matrix(const void *w, int rows,
	                                             long long apart = W::ROW, float scale = 1.0f)
	    : w((const unsigned char *)w), rows(rows), apart(apart), half(rows / 2 * apart),
	      scale(scale)
	{
	}
	__device__ __forceinline__ const unsigned char *
	row(long long r) const
	{
		return w + r * apart;
	}
};

/* Two matrices of `rows` rows each as the halves of one */
template <class W> DEV w_matrix<W>
w_pair(const void *first, const void *second, int rows)
{
	w_matrix<W> m(first, 2 * rows);

	m.half = (const unsigned char *)second - (const unsigned char *)first;
	return m;
}

/* Bytes of a plane of `blocks` fields */
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

/* 16 bytes of weights. again: other threads will want them too, so L1 keeps them */
DEV uint4
w_read(const unsigned char *p, bool again)
{
	return again ? ld_v4(p) : ld_v4_stream(p);
}

/* ---- units and tiles: bytes as floats ---- */

/* Byte k of a word as a float + 2^23: an integer conversion would take four times as long. */
#define W_BYTE(word, k) __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + (k)))
#define W_2_23 8388608.0f

/* bits 0..3 of `bits` to bit 4 of the four bytes */
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

/* Eight nibbles as names of entries of a table of sixteen bytes, the four in the low half at a
 * time. prmt knows eight bytes, and takes bit 3 for something else: at is what it looks up in both
 * halves of the table, which then chooses between the two. */
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
/* the table's words */
DEV unsigned
w_of_sixteen(const w_sixteen &n, unsigned a, unsigned b, unsigned c, unsigned d)
{
	return byte_choose(byte_choose(a, b, n.at), byte_choose(c, d, n.at), n.which);
}

/* Both views of a format of units of 32, from its `bytes`: F::bytes(r, u, c, b, d, m) are weights 8
 * c .. 8 c + 7 of unit u as (b - F::ZERO) * d + m. */
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

/* decode of a format that has W::four(r, c, e, v): weights 8 c + 4 e .. 8 c + 4 e + 3 of a unit */
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

/* A factor that all columns of a row have, which W::stream leaves out of sums; HAS 0: none */
template <class W> struct w_row_factor {
	enum { HAS = 0 };
	DEV float
	of(const unsigned char *)
	{
		return 1.0f;
	}
};

/* A pair in the 16 bits of W's products */
template <class W> DEV unsigned
w_pack(float lo, float hi)
{
	return W::BF16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
}

#if __CUDA_ARCH__ >= 800
/* d += a b, in the 16 bits of W's products */
template <class W> DEV void
w_mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
	if (W::BF16)
		mma_bf16_m16n8k16(d, a, b, d);
	else
		mma_f16_m16n8k16(d, a, b, d);
}

/* ---- streams: pairs of nibbles as halves ---- */

/* Place of 16 bytes in a plane of that many; with a tail, its last ones at most */
template <int TAIL> DEV unsigned
w_within(int at, int plane)
{
	return (unsigned)(TAIL ? min(at, plane - 16) : at);
}

/* A value in the low bits of 1024, or times 16, as what it is: less the format's zero */
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

/* What chunk<true> makes whole numbers of: halves below the normal ones, which the tensor cores
 * take as they are */
#define W_WHOLE 0x1p-24f

/* of the low halves and of the high ones; m: what is added */
struct w_nibble_scale {
	unsigned d[2], m[2];
};

#define W_GAIN 64.0f /* of block formats without sub-blocks' minima */
#define W_GAIN_H 0x54005400u

/* A chunk from a word of nibbles. low, high: what stands above them, 1024 (not WHOLE) and bits 4..
 * of low[], 8.. of high[]; index: bytes 0 and 2, bytes 1 and 3. S: ADDS (something is added), ZERO
 */
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

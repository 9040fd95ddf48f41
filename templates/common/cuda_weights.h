/* Reading rows of weights: one struct a dtype, `w_${W_DTYPE}<COLS>`, for the layouts of a GPU ("row" for f32, f16, bf16, "planes" for
 * block formats: runtime/weights/layout_planes.h).
 *
 *   ROW     bytes of a row; row r is at base + r * ROW
 *   UNIT    weights of a unit: what one thread reads at a time, mostly by one 16-byte load (f32 4, f16 and bf16 8, block formats 32)
 *   UNITS   units of a row
 *   load    a unit's bytes into registers, without waiting for them: `raw`
 *   decode  raw to UNIT floats, in the order of column(u, i): i = 0..15 are neighbours, and so are 16..31, which begin SPAN columns
 *           after the first. A thread thus reads both nibbles of a byte.
 *
 * So a dot product is   for (u = lane; u < W::UNITS; u += 32) { W::decode(W::load(row, u), v); sum += v[i] * x[W::column(u, i)]; }
 * Where rows of f32, f16, bf16 are no whole number of 16 bytes (not WHOLE), loads are by element, and only the first width(u) weights of the
 * last unit are there: the others are zeros beyond the row.
 * Values are formats/dequant.c's, but for one rounding less where a minimum is added. No load is ld.global.nc: they may stand before griddep_wait. */
#ifndef LLMC_CUDA_WEIGHTS_H
#define LLMC_CUDA_WEIGHTS_H

#include "common/cuda_math.h"

DEV constexpr long long w_plane(long long blocks, int bytes) { return (blocks * bytes + 15) / 16 * 16; }

/* Byte k of a word as a float + 2^23: an integer conversion would take four times as long. */
#define W_BYTE(word, k) __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + (k)))
#define W_2_23 8388608.0f

DEV unsigned short w_u16(const unsigned char *p) { return *(const unsigned short *)p; }

/* v[0..15] = a[0] * byte + b[0], v[16..31] likewise with the second set of four words */
DEV void
w_scale(const unsigned (&lo)[4], const unsigned (&hi)[4], float zero, float a0, float b0, float a1, float b1, float (&v)[32])
{
#pragma unroll
	for (int i = 0; i < 16; i++) {
		v[i] = fmaf(a0, W_BYTE(lo[i / 4], i % 4) - (W_2_23 + zero), b0);
		v[16 + i] = fmaf(a1, W_BYTE(hi[i / 4], i % 4) - (W_2_23 + zero), b1);
	}
}

/* nibbles of 16 bytes: the low ones, the high ones */
DEV void
w_nibbles(uint4 q, unsigned (&lo)[4], unsigned (&hi)[4])
{
	const unsigned w[4] = { q.x, q.y, q.z, q.w };
#pragma unroll
	for (int j = 0; j < 4; j++) {
		lo[j] = w[j] & 0x0f0f0f0fu;
		hi[j] = w[j] >> 4 & 0x0f0f0f0fu;
	}
}

/* bits 0..3 of `bits` to bit 4 of the four bytes */
DEV unsigned w_fifth(unsigned bits) { return ((bits & 15) * 0x00204081u & 0x01010101u) << 4; }

/* ---- element types -------------------------------------------------------------------------------------------------- */
template <int COLS_, int SIZE> struct w_elements {
	enum { COLS = COLS_, UNIT = 16 / SIZE, UNITS = (COLS_ + UNIT - 1) / UNIT, SPAN = 16 };
	static constexpr long long ROW = (long long)COLS_ * SIZE;
	static constexpr bool WHOLE = ROW % 16 == 0;
	typedef uint4 raw;

	DEV int column(int u, int i) { return u * UNIT + i; }
	DEV int width(int u) { return WHOLE || u < UNITS - 1 ? (int)UNIT : COLS - u * UNIT; }

	DEV raw
	load(const void *row, int u)
	{
		const unsigned char *p = (const unsigned char *)row + u * 16;
		if (WHOLE)
			return ld_v4_stream(p);
		unsigned w[4] = { 0, 0, 0, 0 };
		const int n = width(u);
#pragma unroll
		for (int i = 0; i < UNIT; i++)
			if (i < n) {
				if (SIZE == 4)
					w[i % 4] = ld_v1(p + 4 * i);
				else
					w[i / 2] |= (unsigned)w_u16(p + 2 * i) << i % 2 * 16;
			}
		return make_uint4(w[0], w[1], w[2], w[3]);
	}
};

template <int COLS_> struct w_f32 : w_elements<COLS_, 4> {
	DEV void
	decode(uint4 r, float (&v)[4])
	{
		v[0] = __uint_as_float(r.x), v[1] = __uint_as_float(r.y), v[2] = __uint_as_float(r.z), v[3] = __uint_as_float(r.w);
	}
};

template <int COLS_> struct w_f16 : w_elements<COLS_, 2> {
	DEV void
	decode(uint4 r, float (&v)[8])
	{
		v[0] = f16_lo(r.x), v[1] = f16_hi(r.x), v[2] = f16_lo(r.y), v[3] = f16_hi(r.y);
		v[4] = f16_lo(r.z), v[5] = f16_hi(r.z), v[6] = f16_lo(r.w), v[7] = f16_hi(r.w);
	}
};

template <int COLS_> struct w_bf16 : w_elements<COLS_, 2> {
	DEV void
	decode(uint4 r, float (&v)[8])
	{
		v[0] = bf16_lo(r.x), v[1] = bf16_hi(r.x), v[2] = bf16_lo(r.y), v[3] = bf16_hi(r.y);
		v[4] = bf16_lo(r.z), v[5] = bf16_hi(r.z), v[6] = bf16_lo(r.w), v[7] = bf16_hi(r.w);
	}
};

/* ---- blocks of 32 --------------------------------------------------------------------------------------------------- */
/* ONE: bytes of d (and m); FIFTH: bytes of upper bits */
template <int COLS_, int FIFTH, int ONE> struct w_blocks {
	enum { COLS = COLS_, UNIT = 32, UNITS = COLS_ / 32, SPAN = 16 };
	static constexpr long long QH = 16LL * UNITS, D = QH + w_plane(UNITS, FIFTH), ROW = D + w_plane(UNITS, ONE);
	struct raw { uint4 q; unsigned qh, d; };

	DEV int column(int u, int i) { return u * 32 + i; }
	DEV int width(int) { return 32; }

	DEV raw
	load(const void *row, int u)
	{
		const unsigned char *p = (const unsigned char *)row;
		raw r;
		r.q = ld_v4_stream(p + 16 * u);
		r.qh = FIFTH ? ld_v1(p + QH + 4 * u) : 0;
		r.d = ONE == 4 ? ld_v1(p + D + 4 * u) : w_u16(p + D + 2 * u);
		return r;
	}

	DEV void
	decode(const raw &r, float (&v)[32])
	{
		unsigned lo[4], hi[4];
		w_nibbles(r.q, lo, hi);
		if (FIFTH) {
#pragma unroll
			for (int j = 0; j < 4; j++) {
				lo[j] |= w_fifth(r.qh >> 4 * j);
				hi[j] |= w_fifth(r.qh >> (16 + 4 * j));
			}
		}
		const float d = f16_lo(r.d), m = ONE == 4 ? f16_hi(r.d) : 0;
		w_scale(lo, hi, ONE == 4 ? 0 : FIFTH ? 16 : 8, d, m, d, m, v);
	}
};
template <int COLS_> struct w_q4_0 : w_blocks<COLS_, 0, 2> {};
template <int COLS_> struct w_q4_1 : w_blocks<COLS_, 0, 4> {};
template <int COLS_> struct w_q5_0 : w_blocks<COLS_, 4, 2> {};
template <int COLS_> struct w_q5_1 : w_blocks<COLS_, 4, 4> {};

template <int COLS_> struct w_q8_0 {
	enum { COLS = COLS_, UNIT = 32, UNITS = COLS_ / 32, SPAN = 16 };
	static constexpr long long D = 32LL * UNITS, ROW = D + w_plane(UNITS, 2);
	struct raw { uint4 lo, hi; unsigned d; };

	DEV int column(int u, int i) { return u * 32 + i; }
	DEV int width(int) { return 32; }

	DEV raw
	load(const void *row, int u)
	{
		const unsigned char *p = (const unsigned char *)row;
		raw r;
		r.lo = ld_v4_stream(p + 32 * u);
		r.hi = ld_v4_stream(p + 32 * u + 16);
		r.d = w_u16(p + D + 2 * u);
		return r;
	}

	DEV void
	decode(const raw &r, float (&v)[32])
	{
		/* offset by 128, so that bytes are unsigned */
		const unsigned lo[4] = { r.lo.x ^ 0x80808080u, r.lo.y ^ 0x80808080u, r.lo.z ^ 0x80808080u, r.lo.w ^ 0x80808080u };
		const unsigned hi[4] = { r.hi.x ^ 0x80808080u, r.hi.y ^ 0x80808080u, r.hi.z ^ 0x80808080u, r.hi.w ^ 0x80808080u };
		const float d = f16_lo(r.d);
		w_scale(lo, hi, 128, d, 0, d, 0, v);
	}
};

/* ---- blocks of 256 -------------------------------------------------------------------------------------------------- */
/* Scale and minimum j of the twelve bytes behind d and dmin */
DEV void
w_scale_min(uint4 head, int j, float &scale, float &min)
{
	const int s = j % 4 * 8;
	unsigned a, b;
	if (j < 4) {
		a = head.y >> s & 63;
		b = head.z >> s & 63;
	} else {
		a = (head.w >> s & 15) | (head.y >> (s + 6) & 3) << 4;
		b = (head.w >> (s + 4) & 15) | (head.z >> (s + 6) & 3) << 4;
	}
	scale = f16_lo(head.x) * (float)a;
	min = f16_hi(head.x) * (float)b;
}

/* Unit u: 16 bytes of nibbles, columns of sub-block 2k (low) and 2k + 1 (high) */
template <int COLS_, bool FIFTH> struct w_super {
	enum { COLS = COLS_, UNIT = 32, UNITS = COLS_ / 32, SPAN = 32, BLOCKS = COLS_ / 256 };
	static constexpr long long QH = 128LL * BLOCKS, HEAD = QH + (FIFTH ? 32LL * BLOCKS : 0), ROW = HEAD + 16LL * BLOCKS;
	struct raw { uint4 q, qh, head; int sub; };

	DEV int column(int u, int i) { return u / 2 * 64 + u % 2 * 16 + (i < 16 ? i : i + 16); }
	DEV int width(int) { return 32; }

	DEV raw
	load(const void *row, int u)
	{
		const unsigned char *p = (const unsigned char *)row;
		raw r;
		r.q = ld_v4_stream(p + 16 * u);
		r.qh = FIFTH ? ld_v4_stream(p + QH + u / 8 * 32 + u % 2 * 16) : make_uint4(0, 0, 0, 0);
		r.head = ld_v4_stream(p + HEAD + u / 8 * 16);
		r.sub = u % 8 / 2 * 2;
		return r;
	}

	DEV void
	decode(const raw &r, float (&v)[32])
	{
		unsigned lo[4], hi[4];
		float a0, b0, a1, b1;
		w_nibbles(r.q, lo, hi);
		if (FIFTH) {
			const unsigned h[4] = { r.qh.x, r.qh.y, r.qh.z, r.qh.w };
#pragma unroll
			for (int j = 0; j < 4; j++) {
				lo[j] |= (h[j] >> r.sub & 0x01010101u) << 4;
				hi[j] |= (h[j] >> (r.sub + 1) & 0x01010101u) << 4;
			}
		}
		w_scale_min(r.head, r.sub, a0, b0);
		w_scale_min(r.head, r.sub + 1, a1, b1);
		w_scale(lo, hi, 0, a0, -b0, a1, -b1, v);
	}
};
template <int COLS_> struct w_q4_k : w_super<COLS_, false> {};
template <int COLS_> struct w_q5_k : w_super<COLS_, true> {};

/* Unit u: 16 bytes of low nibbles, columns of group a (low) and a + 2 (high) of half a block */
template <int COLS_> struct w_q6_k {
	enum { COLS = COLS_, UNIT = 32, UNITS = COLS_ / 32, SPAN = 64, BLOCKS = COLS_ / 256 };
	static constexpr long long QH = 128LL * BLOCKS, SCALES = QH + 64LL * BLOCKS, D = SCALES + 16LL * BLOCKS, ROW = D + w_plane(BLOCKS, 2);
	struct raw { uint4 ql, qh; float d; int lo, hi, shift; };

	DEV int column(int u, int i) { return u / 4 * 128 + u % 4 * 16 + (i < 16 ? i : i + 48); }
	DEV int width(int) { return 32; }

	DEV raw
	load(const void *row, int u)
	{
		const unsigned char *p = (const unsigned char *)row;
		const signed char *s = (const signed char *)p + SCALES + u / 4 * 8 + u % 4;
		raw r;
		r.ql = ld_v4_stream(p + 16 * u);
		r.qh = ld_v4_stream(p + QH + u / 4 * 32 + u % 2 * 16);
		r.d = f16_lo(w_u16(p + D + u / 8 * 2));
		r.lo = s[0];
		r.hi = s[4];
		r.shift = u % 4 / 2 * 2;
		return r;
	}

	DEV void
	decode(const raw &r, float (&v)[32])
	{
		unsigned lo[4], hi[4];
		const unsigned h[4] = { r.qh.x, r.qh.y, r.qh.z, r.qh.w };
		w_nibbles(r.ql, lo, hi);
#pragma unroll
		for (int j = 0; j < 4; j++) {
			lo[j] |= (h[j] >> r.shift & 0x03030303u) << 4;
			hi[j] |= (h[j] >> (r.shift + 4) & 0x03030303u) << 4;
		}
		w_scale(lo, hi, 32, r.d * (float)r.lo, 0, r.d * (float)r.hi, 0, v);
	}
};

#endif

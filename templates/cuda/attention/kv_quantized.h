/* Storage of K and V rows in a page: kv_plane<E, D>. E is kv_f32, kv_f16 or kv_bf16
 * (cuda/attention/kv_cache.h) or a quantised type: kv_f8, kv_int8, kv_int6, kv_int4, and for keys
 * only kv_int4c (formats/kv_type.h defines the rows). A plane is the 32 rows of a head:
 *
 *   plain   [32][D]
 *   8 bits  [32][D], scale [32]; kv_f8_32, kv_int8_32: [32][32 G], scale [32][G]
 *   4 bits  [32][16 G]: byte i of a group has elements i and i + 16; scale and zero [32][G][2]
 *   int4c   codes as 4 bits; scale and zero per channel, over the page's positions, [32 G][2]
 *   6 bits  as 4 bits, +32; then two high bits [32][8 G]: byte i has elements i, i + 8, i + 16,
 *           i + 24; scale [32][G]
 *
 * G is the number of groups of 32 elements. All readers compute value = code * scale + zero in
 * fp32.
 *
 * kv_plane<E, D, true> rotates rows of a quantised type as they are stored (kv_rotate), and sets
 * ROTATED. Readers rotate the other operand: the query, or the weighted sum of V.
 *
 * Rows may also be stored exactly, in pages of their own (kv_exact_page). These pages have planes
 * of kv_exact's type, and their rows are rotated if those of the quantised page are. */
#ifndef LLMC_CUDA_ATTENTION_KV_QUANTIZED_H
#define LLMC_CUDA_ATTENTION_KV_QUANTIZED_H

#include "cuda/attention/kv_cache.h"

/* Converts an integer below 2^23 without a conversion instruction, because those have a low
 * throughput. */
DEV float
kv_small(unsigned u)
{
	return __uint_as_float(0x4b000000u | u) - 8388608.0f;
}

/* math: type in which tensor cores multiply the values */
struct kv_int8 {
	typedef kv_f16 math;
	typedef unsigned char elem;
	enum { UNQUANTISED = 0, BITS = 8, GROUPED = 0, SCALES = 1, MOST = 127 };
	DEV float
	value(unsigned c)
	{
		return kv_small(c ^ 128) - 128.0f;
	}
	DEV unsigned
	code(float v)
	{
		return (unsigned)(int)rintf(fminf(fmaxf(v, -127.0f), 127.0f)) & 255;
	}
};

struct kv_f8 {
	typedef kv_f16 math;
	typedef unsigned char elem;
	enum { UNQUANTISED = 0, BITS = 8, GROUPED = 0, SCALES = 1, MOST = 448 };
	/* Except for the sign, an e4m3 shifted by one bit is a half with a different exponent
	 * bias. */
	DEV float
	value(unsigned c)
	{
		return f16_to_f32((unsigned short)((c & 0x80) << 8 | (c & 0x7f) << 7)) * 256.0f;
	}

	DEV unsigned
	code(float v)
	{
		return f32_to_e4m3(v);
	}
};

struct kv_int8_32 : kv_int8 {
	enum { GROUPED = 1 };
};
struct kv_f8_32 : kv_f8 {
	enum { GROUPED = 1 };
};

struct kv_int6 {
	typedef kv_f16 math;
	typedef unsigned char elem;
	enum { UNQUANTISED = 0, BITS = 6, GROUPED = 1, SCALES = 1, MOST = 31 };
	DEV float
	value(unsigned c)
	{
		return kv_small(c) - 32.0f;
	}
	DEV unsigned
	code(float v)
	{
		return (unsigned)((int)rintf(fminf(fmaxf(v, -31.0f), 31.0f)) + 32);
	}
};

struct kv_int4 {
	typedef kv_f16 math;
	typedef unsigned char elem;
	enum { UNQUANTISED = 0, BITS = 4, GROUPED = 1, SCALES = 2, MOST = 15 };
	DEV float
	value(unsigned c)
	{
		return kv_small(c);
	}
	DEV unsigned
	code(float v)
	{
		return (unsigned)(int)rintf(fminf(fmaxf(v, 0.0f), 15.0f));
	}
};

/* Keys only: the rows of a page are quantised together when the page is full. */
struct kv_int4c : kv_int4 {
	enum { CHANNELS = 1 };
};

/* Type of the exact copy of a row */
template <class E, bool UNQUANTISED = E::UNQUANTISED> struct kv_exact {
	typedef E type;
};
template <class E> struct kv_exact<E, false> {
	typedef kv_f16 type;
};

/* Returns the exact page of position `pos` of sequence `seq` (plan/plan.h). pool: the layer's first
 * page; exact pages are stored before it, in descending order. windowed: pages of the pool are
 * window pages too, so a page and its exact page have the same number. Otherwise the second half of
 * the block table has the number of the exact page. */
DEV char *
kv_exact_page(const llmc_step &s, const void *pool, long long exact_bytes, int windowed, int seq,
              int pos)
{
	const int *table =
	    s.block_table + (long long)seq * s.block_stride + (windowed ? 0 : s.block_stride / 2);

	return (char *)pool - (table[pos / KV_PAGE] + 1) * exact_bytes;
}

/* Multiplies a row of D elements by Hadamard matrices, whose size is the largest power of two that
 * divides D; the rotation is its own inverse. Each lane of a warp holds M elements of the row:
 * lane, lane + 32, ... (zeros beyond D). All lanes call. */
template <int D, int M> DEV void
kv_rotate(float (&z)[M])
{
	constexpr int N = D & -D;
	float scale = 1;

#pragma unroll
	for (int half = 1; half < N; half *= 2)
#pragma unroll
		for (int m = 0; m < M; m++) {
			if (half < 32) {
				const float other = __shfl_xor_sync(~0u, z[m], half % 32);
				z[m] = lane_id() & half ? other - z[m] : z[m] + other;
			} else if (!(m & half / 32)) {
				const float a = z[m], b = z[(m + half / 32) % M];
				z[m] = a + b;
				z[(m + half / 32) % M] = a - b;
			}
		}
#pragma unroll
	for (int n = N; n > 1; n /= 4)
		scale *= n == 2 ? 0.70710678118654752f : 0.5f;
#pragma unroll
	for (int m = 0; m < M; m++)
		z[m] = __fmul_rn(z[m], scale);
}

/* Applies kv_rotate to n rows in memory, `apart` elements apart, by the warps of a CTA. The caller
 * puts barriers between this and other accesses. */
template <int D> DEV void
kv_rotate_rows(float *rows, int n, int apart, int warp, int warps)
{
	enum { M = (D + 31) / 32 };

	for (int r = warp; r < n; r += warps) {
		float z[M];
#pragma unroll
		for (int m = 0; m < M; m++)
			z[m] =
			    (int)lane_id() + 32 * m < D ? rows[r * apart + lane_id() + 32 * m] : 0;
		kv_rotate<D>(z);
#pragma unroll
		for (int m = 0; m < M; m++)
			if ((int)lane_id() + 32 * m < D)
				rows[r * apart + lane_id() + 32 * m] = z[m];
	}
}

/* Plain rows. If WHOLE, VEC elements are read at once. M: elements per lane (lane, lane + 32,
 * ...) */
template <class E, int D, bool ROTATE_ = false,
          bool UNQUANTISED_ = E::UNQUANTISED> struct kv_plane {
	typedef typename E::elem elem;
	enum {
		UNQUANTISED = 1,
		ROTATED = 0,
		VEC = E::VEC,
		WHOLE = D % VEC == 0,
		M = (D + 31) / 32,
		BYTES = KV_PAGE * D * (int)sizeof(elem)
	};

	/* Load elements d .. d + VEC of row j; load one element. */
	DEV void
	load(const void *p, int j, int d, float (&x)[VEC])
	{
		E::unpack(ld_v4((const elem *)p + j * D + d), x);
	}
	DEV float
	get(const void *p, int j, int d)
	{
		return E::get(((const elem *)p)[j * D + d]);
	}

	DEV void
	set(void *p, int j, int d, float x)
	{
		((elem *)p)[j * D + d] = E::put(x);
	}

	/* Stores row `at`; all lanes of a warp call. */
	DEV void
	put(void *p, int at, const float (&z)[M])
	{
#pragma unroll
		for (int m = 0; m < M; m++)
			if ((int)lane_id() + 32 * m < D)
				((elem *)p)[at * D + (int)lane_id() + 32 * m] = E::put(z[m]);
	}
};

template <class E, int D, bool ROTATE_> struct kv_plane<E, D, ROTATE_, false> {
	typedef unsigned char elem;
	enum {
		UNQUANTISED = 0,
		ROTATED = ROTATE_,
		VEC = 8,
		WHOLE = D % 8 == 0,
		M = (D + 31) / 32,
		G = E::GROUPED ? M : 1,
		CODES = E::GROUPED ? G * 4 * E::BITS : D, /* bytes of codes per row */
		NIBBLES = E::BITS < 8,                    /* two elements per byte */
		HIGH = KV_PAGE * 16 * G, /* byte offset of the high bits in the plane */
		BYTES = KV_PAGE * (CODES + 2 * E::SCALES * G)
	};

	DEV const unsigned short *
	scales(const void *p, int j, int d)
	{
		return (const unsigned short *)((const unsigned char *)p + KV_PAGE * CODES) +
		       (j * G + (E::GROUPED ? d / 32 : 0)) * E::SCALES;
	}

	DEV float
	number(unsigned code, float scale, float zero)
	{
		return E::SCALES == 2 ? fmaf(E::value(code), scale, zero) : E::value(code) * scale;
	}

	DEV void
	load(const void *p, int j, int d, float (&x)[VEC])
	{
		const unsigned char *at =
		    (const unsigned char *)p +
		    (NIBBLES ? (j * G + d / 32) * 16 + d % 16 : j * CODES + d);
		const unsigned short *s = scales(p, j, d);
		const float scale = f16_to_f32(s[0]),
		            zero = E::SCALES == 2 ? f16_to_f32(s[1]) : 0.0f;
		const int shift = d % 32 / 16 * 4;
		uint2 c = ld_v2(at), h = {};

		if (E::BITS == 6)
			h = ld_v2((const unsigned char *)p + HIGH + (j * G + d / 32) * 8);
		if (NIBBLES) {
			c.x = c.x >> shift & 0x0f0f0f0fu;
			c.y = c.y >> shift & 0x0f0f0f0fu;
		}
		if (E::BITS == 6) {
			const int two = d % 32 / 8 * 2;
			c.x |= (h.x >> two & 0x03030303u) << 4;
			c.y |= (h.y >> two & 0x03030303u) << 4;
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			x[i] = number((i < 4 ? c.x : c.y) >> i % 4 * 8 & 255, scale, zero);
	}

	DEV float
	get(const void *p, int j, int d)
	{
		const unsigned char *at = (const unsigned char *)p;
		const unsigned short *s = scales(p, j, d);
		unsigned c;

		if (NIBBLES)
			c = at[(j * G + d / 32) * 16 + d % 16] >> d % 32 / 16 * 4 & 15;
		else
			c = at[j * CODES + d];
		if (E::BITS == 6)
			c |= (at[HIGH + (j * G + d / 32) * 8 + d % 8] >> d % 32 / 8 * 2 & 3) << 4;
		return number(c, f16_to_f32(s[0]), E::SCALES == 2 ? f16_to_f32(s[1]) : 0.0f);
	}

	/* Does nothing: put stores whole rows. */
	DEV void
	set(void *, int, int, float)
	{
	}

	DEV void
	put(void *p, int at, const float (&row)[M])
	{
		const int lane = (int)lane_id();
		unsigned char *to = (unsigned char *)p;
		float most = 0, z[M];

#pragma unroll
		for (int m = 0; m < M; m++)
			z[m] = row[m];
		if (ROTATED)
			kv_rotate<D>(z);

		if (!E::GROUPED) {
#pragma unroll
			for (int m = 0; m < M; m++)
				most = fmaxf(most, lane + 32 * m < D ? fabsf(z[m]) : 0.0f);
			most = warp_max(most);
		}
#pragma unroll
		for (int m = 0; m < M; m++) {
			const bool here = lane + 32 * m < D;
			float zero = 0, scale;
			unsigned short *s = (unsigned short *)scales(p, at, 32 * m), zero_half = 0;
			if (E::SCALES == 2) {
				zero_half = kv_f16::put(warp_min(here ? z[m] : 3.4e38f));
				zero = f16_to_f32(zero_half);
				scale = (warp_max(here ? z[m] : -3.4e38f) - zero) / (float)E::MOST;
			} else {
				scale = (E::GROUPED ? warp_max(here ? fabsf(z[m]) : 0.0f) : most) /
				        (float)E::MOST;
			}
			const unsigned short half = kv_f16::put(fmaxf(scale, 0.0f));
			scale = f16_to_f32(half);
			unsigned c =
			    here ? E::code((z[m] - zero) * (scale > 0 ? 1.0f / scale : 0.0f)) : 0;
			if (!NIBBLES) {
				if (here || E::GROUPED)
					to[at * CODES + lane + 32 * m] = (unsigned char)c;
			} else {
				const unsigned other = __shfl_down_sync(~0u, c, 16),
				               b = __shfl_down_sync(~0u, c, 8),
				               d = __shfl_down_sync(~0u, c, 24);
				if (lane < 16)
					to[(at * G + m) * 16 + lane] =
					    (unsigned char)((c & 15) | other << 4);
				if (E::BITS == 6 && lane < 8)
					to[HIGH + (at * G + m) * 8 + lane] =
					    (unsigned char)(c >> 4 | b >> 4 << 2 | other >> 4 << 4 |
					                    d >> 4 << 6);
			}
			if (lane == 0 && (E::GROUPED || m == 0)) {
				s[0] = half;
				if (E::SCALES == 2)
					s[1] = zero_half;
			}
		}
	}
};

/* Keys quantised per channel */
template <int D, bool ROTATE_> struct kv_plane<kv_int4c, D, ROTATE_, false> {
	typedef unsigned char elem;
	enum {
		UNQUANTISED = 0,
		ROTATED = 0,
		VEC = 8,
		WHOLE = D % 8 == 0,
		M = (D + 31) / 32,
		G = M,
		CODES = 16 * G,
		BYTES = KV_PAGE * CODES + 4 * 32 * G
	};

	DEV unsigned short *
	scales(const void *p, int d)
	{
		return (unsigned short *)((char *)p + KV_PAGE * CODES) + 2 * d;
	}

	DEV void
	load(const void *p, int j, int d, float (&x)[VEC])
	{
		const uint2 c = ld_v2((const unsigned char *)p + (j * G + d / 32) * 16 + d % 16);
		const uint4 a = ld_v4(scales(p, d)), b = ld_v4(scales(p, d + 4));
		const unsigned s[8] = { a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w };
		const int shift = d % 32 / 16 * 4;
#pragma unroll
		for (int i = 0; i < 8; i++)
			x[i] = fmaf(kv_int4::value((i < 4 ? c.x : c.y) >> (i % 4 * 8 + shift) & 15),
			            f16_lo(s[i]), f16_hi(s[i]));
	}

	DEV float
	get(const void *p, int j, int d)
	{
		const unsigned c =
		    ((const unsigned char *)p)[(j * G + d / 32) * 16 + d % 16] >> d % 32 / 16 * 4 &
		    15;

		return fmaf(kv_int4::value(c), f16_to_f32(scales(p, d)[0]),
		            f16_to_f32(scales(p, d)[1]));
	}

	DEV void
	set(void *, int, int, float)
	{
	}
	DEV void
	put(void *, int, const float (&)[M])
	{
	}

	/* Quantises a full page from its exact rows [32][D]. All lanes of a warp call. */
	DEV void
	close(void *p, const unsigned short *exact)
	{
		const int lane = (int)lane_id();

#pragma unroll 1
		for (int m = 0; m < M; m++) {
			const int d = lane + 32 * m;
			const bool here = d < D;
			float lo = 3.4e38f, hi = -3.4e38f;
			for (int j = 0; j < KV_PAGE; j++) {
				const float x = here ? f16_to_f32(exact[j * D + d]) : 0.0f;
				lo = fminf(lo, x);
				hi = fmaxf(hi, x);
			}
			const unsigned short zero_half = kv_f16::put(lo);
			const float zero = f16_to_f32(zero_half);
			const unsigned short half =
			    kv_f16::put(fmaxf((hi - zero) / (float)kv_int4::MOST, 0.0f));
			const float scale = f16_to_f32(half),
			            inverse = scale > 0 ? 1.0f / scale : 0.0f;
			for (int j = 0; j < KV_PAGE; j++) {
				const unsigned c = here
				                       ? kv_int4::code(
				                             (f16_to_f32(exact[j * D + d]) - zero) *
				                             inverse)
				                       : 0,
				               other = __shfl_down_sync(~0u, c, 16);
				if (lane < 16)
					((unsigned char *)p)[(j * G + m) * 16 + lane] =
					    (unsigned char)(c | other << 4);
			}
			scales(p, d)[0] = half;
			scales(p, d)[1] = zero_half;
		}
	}
};

#endif

/* Weights with codes: q2_k, q3_k, iq1 to iq4, tq1_0 and tq2_0 (contract: cuda/weights/weights.h).
 * templates/common/llmc_codes.h describes the words of 32 columns. A row has these planes, each
 * with the data of all its blocks: words (the first two, if there are three); third words; side
 * bytes (per 32 columns: scales, then the bits of grid indices above 8); d and, for formats with
 * minima, m.
 *
 * A type defines how eight bytes are extracted from the words (pair), and their scale. Stream, tile
 * and unit are the same for all types. Four bytes take 2 to 3 instructions from nibbles or two-bit
 * codes, and 6 from the table of sixteen. A grid takes one load from L1 per eight weights (iq3:
 * four). */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_CODES_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_CODES_H

#define LLMC_GRID static __device__ const unsigned
#include "common/llmc_grids.h"

/* Registers of a thread for 32 columns. side: has the scales in its low bytes */
struct w_codes_raw {
	unsigned w[4], side, d;
};

/* BLOCK: number of columns that share d (and m, if MIN); HALVES: scales per 32 columns; WORDS:
 * number of words; SIDE: number of side bytes, of which SCALES are scales; ZERO: zero point of
 * bytes */
template <int BLOCK_, int HALVES_, int MIN_, int SCALES_, int HIGH_, int WORDS_,
          int ZERO_> struct w_codes_shape {
	enum {
		BLOCK = BLOCK_,
		HALVES = HALVES_,
		MIN = MIN_,
		SCALES = SCALES_,
		SIDE = SCALES_ + HIGH_,
		WORDS = WORDS_,
		ZERO = ZERO_
	};
	typedef w_codes_raw raw;

	enum {
		MIXED = 0
	}; /* 1: the type has halves(b, r, c, above), which takes fewer instructions than pair and
	      unpacking */
	/* Return the factor of d, and the factor of -m. */
	DEV float
	scale(const raw &, int)
	{
		return 1.0f;
	}
	DEV float
	least(const raw &, int)
	{
		return 0;
	}
	DEV unsigned
	high(const raw &r)
	{
		return r.side >> 8 * SCALES;
	} /* upper bits of grid indices */
};

/* ---- bytes of columns 4 c .. 4 c + 3 (lo) and of 16 + 4 c .. 16 + 4 c + 3 (hi) ---- */

DEV void
w_pairs(unsigned &lo, unsigned &hi, const w_codes_raw &r, int c)
{
	lo = r.w[0] >> 2 * c & 0x03030303u;
	hi = r.w[1] >> 2 * c & 0x03030303u;
}

/* Sign bits or third bits of columns 4 i .. 4 i + 3, as bytes of 0 or 1 */
DEV unsigned
w_bits(unsigned word, int i)
{
	return word >> i & 0x01010101u;
}

/* Magnitudes + ZERO, negated in bytes where `sign` is 1 */
template <int ZERO> DEV unsigned
w_signed(unsigned v, unsigned sign)
{
	return (v ^ sign * (2 * ZERO - 1)) + sign;
}

struct w_kind_q2_k : w_codes_shape<256, 2, 1, 2, 0, 2, 0> {
	DEV void
	pair(unsigned &lo, unsigned &hi, const raw &r, int c)
	{
		w_pairs(lo, hi, r, c);
	}
	DEV float
	scale(const raw &r, int h)
	{
		return (float)(r.side >> 8 * h & 15);
	}
	DEV float
	least(const raw &r, int h)
	{
		return (float)(r.side >> (8 * h + 4) & 15);
	}
};

struct w_kind_q3_k : w_codes_shape<256, 2, 0, 2, 0, 3, 4> {
	DEV void
	pair(unsigned &lo, unsigned &hi, const raw &r, int c)
	{
		w_pairs(lo, hi, r, c);
		lo |= w_bits(r.w[2], c) << 2;
		hi |= w_bits(r.w[2], 4 + c) << 2;
	}
	DEV float
	scale(const raw &r, int h)
	{
		return (float)(signed char)(r.side >> 8 * h);
	}
};

struct w_kind_tq2_0 : w_codes_shape<256, 1, 0, 0, 0, 2, 1> {
	DEV void
	pair(unsigned &lo, unsigned &hi, const raw &r, int c)
	{
		w_pairs(lo, hi, r, c);
	}
};

template <int BLOCK, int SCALES> struct w_kind_iq4 : w_codes_shape<BLOCK, 1, 0, SCALES, 0, 4, 128> {
	enum { MIXED = 1 };
	typedef w_codes_raw raw;

	/* looks up two bytes of nibbles: columns 4 c + 2 i, 16 later, 4 c + 2 i + 1, 16 later */
	DEV unsigned
	mixed(const w_sixteen &k, int i)
	{
		return w_of_sixteen(k.half(i), 0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);
	}
	DEV void
	pair(unsigned &lo, unsigned &hi, const raw &r, int c)
	{
		const w_sixteen k = w_sixteen_of(r.w[c]);
		const unsigned a = mixed(k, 0), b = mixed(k, 1);

		lo = __byte_perm(a, b, 0x6420);
		hi = __byte_perm(a, b, 0x7531);
	}
	/* Pairs of columns from 4 c, 4 c + 2, 16 + 4 c and 16 + 4 c + 2 on. Each is a pair of
	 * halves whose low byte is the code and whose high byte is one of `above`. */
	DEV void
	halves(unsigned (&b)[4], const raw &r, int c, unsigned above)
	{
		const w_sixteen k = w_sixteen_of(r.w[c]);
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const unsigned v = mixed(k, i);
			b[i] = __byte_perm(v, above, 0x4240);
			b[2 + i] = __byte_perm(v, above, 0x4341);
		}
	}
	DEV float
	scale(const raw &r, int)
	{
		return SCALES ? (float)(signed char)r.side : 1.0f;
	}
};

typedef w_kind_iq4<32, 0> w_kind_iq4_nl;
typedef w_kind_iq4<256, 1> w_kind_iq4_xs;

/* ---- grids ---- */

/* Grids of four: K::four(r, i) returns columns 4 i .. 4 i + 3 */
struct w_kind_iq3_s : w_codes_shape<256, 1, 0, 1, 1, 3, 16> {
	DEV unsigned
	four(const raw &r, int i)
	{
		const unsigned v =
		    llmc_grid_iq3_s[(r.w[i / 4] >> i % 4 * 8 & 255) | (high(r) >> i & 1) << 8];
		return w_signed<ZERO>(2 * v + 0x11111111u, w_bits(r.w[2], i));
	}
	DEV void
	pair(unsigned &lo, unsigned &hi, const raw &r, int c)
	{
		lo = four(r, c), hi = four(r, 4 + c);
	}
	DEV float
	scale(const raw &r, int)
	{
		return (float)(r.side & 255);
	}
};

/* magnitudes 4, 12, .. 52, and 62 */
struct w_kind_iq3_xxs : w_codes_shape<256, 1, 0, 1, 0, 3, 64> {
	DEV unsigned
	four(const raw &r, int i)
	{
		const unsigned v = llmc_grid_iq3_xxs[r.w[i / 4] >> i % 4 * 8 & 255];
		return w_signed<ZERO>(8 * v + 0x44444444u + (v + 0x01010101u >> 2 & 0x02020202u),
		                      w_bits(r.w[2], i));
	}
	DEV void
	pair(unsigned &lo, unsigned &hi, const raw &r, int c)
	{
		lo = four(r, c), hi = four(r, 4 + c);
	}
	DEV float
	scale(const raw &r, int)
	{
		return 0.25f * (float)(r.side & 255);
	}
};

/* Grids of eight: returns the word of the i-th group of eight. Its nibbles are columns 0, 4, 1, 5,
 * 2, 6, 3, 7. A nibble has two bits of magnitude, so prmt finds a column's byte in a table of four
 * per sign. UPPER: bits of an index above 8 */
template <int UPPER> DEV unsigned
w_eight(const unsigned *grid, unsigned word, unsigned high, int i)
{
	return grid[(word >> i * 8 & 255) |
	            (UPPER ? (high >> UPPER * i & ((1 << UPPER) - 1)) << 8 : 0)];
}

/* For kinds K with mixed(v, r, i): returns the bytes of the i-th group of eight. v[0] has columns
 * 0, 4, 1, 5, v[1] columns 2, 6, 3, 7. */
template <class K> struct w_eights {
	/* columns 4 c .. and 16 + 4 c .. are halves of groups c / 2 and 2 + c / 2 */
	DEV void
	pair(unsigned &lo, unsigned &hi, const w_codes_raw &r, int c)
	{
		const unsigned at = c % 2 ? 0x7531 : 0x6420;
		unsigned v[2], w[2];

		K::mixed(v, r, c / 2);
		K::mixed(w, r, 2 + c / 2);
		lo = __byte_perm(v[0], v[1], at);
		hi = __byte_perm(w[0], w[1], at);
	}
	DEV void
	halves(unsigned (&b)[4], const w_codes_raw &r, int c, unsigned above)
	{
#pragma unroll
		for (int h = 0; h < 2; h++) {
			unsigned v[2];
			K::mixed(v, r, 2 * h + c / 2);
			b[2 * h] = __byte_perm(v[0], above, c % 2 ? 0x4341 : 0x4240);
			b[2 * h + 1] = __byte_perm(v[1], above, c % 2 ? 0x4341 : 0x4240);
		}
	}
};

/* magnitudes 8, 25 and 43, with signs, all + 64; the grid is G::grid() */
template <class G, int HALVES, int HIGH> struct w_kind_iq2
    : w_codes_shape<256, HALVES, 0, 1, HIGH, 2, 64>,
      w_eights<w_kind_iq2<G, HALVES, HIGH>> {
	typedef w_codes_shape<256, HALVES, 0, 1, HIGH, 2, 64> B;
	enum { MIXED = 1 };
	typedef w_codes_raw raw;

	DEV void
	mixed(unsigned (&v)[2], const raw &r, int i)
	{
		/* signs: bits 2 i and 2 i + 1 of byte k belong to columns k and 4 + k */
		const unsigned first =
		    h2_select(i ? r.w[1] >> (2 * i - 2) : r.w[1] << 2, 0x04040404u,
		              w_eight<HIGH * 2>(G::grid(), r.w[0], B::high(r), i));
		const unsigned at =
		    h2_select(i == 3 ? r.w[1] >> 1 : r.w[1] << (5 - 2 * i), 0x40404040u, first);
#pragma unroll
		for (int e = 0; e < 2; e++)
			v[e] = byte_choose(0x006b5948u, 0x00152738u, at >> 16 * e);
	}
	DEV float
	scale(const raw &r, int h)
	{
		return 0.125f *
		       (float)(HALVES == 2 ? (r.side >> 4 * h & 15) * 2 + 1 : r.side & 255);
	}
};
struct w_grid_iq2_s {
	DEV const unsigned *
	grid()
	{
		return llmc_grid_iq2_s;
	}
};
struct w_grid_iq2_xs {
	DEV const unsigned *
	grid()
	{
		return llmc_grid_iq2_xs;
	}
};
struct w_grid_iq2_xxs {
	DEV const unsigned *
	grid()
	{
		return llmc_grid_iq2_xxs;
	}
};
typedef w_kind_iq2<w_grid_iq2_s, 2, 1> w_kind_iq2_s;
typedef w_kind_iq2<w_grid_iq2_xs, 2, 1> w_kind_iq2_xs;
typedef w_kind_iq2<w_grid_iq2_xxs, 1, 0> w_kind_iq2_xxs;

/* -1, 0 or 1, plus or minus an eighth; all of it times 8, + 16. MEDIUM: iq1_m, which has the sign
 * of the eighth per group of eight, and a scale per 16 columns */
template <int MEDIUM> struct w_kind_iq1 : w_codes_shape<256, 1 + MEDIUM, 0, MEDIUM, 2, 1, 16>,
                                          w_eights<w_kind_iq1<MEDIUM>> {
	typedef w_codes_shape<256, 1 + MEDIUM, 0, MEDIUM, 2, 1, 16> B;
	enum { MIXED = 1 };
	typedef w_codes_raw raw;

	DEV void
	mixed(unsigned (&v)[2], const raw &r, int i)
	{
		const unsigned h = B::high(r), less = h >> (MEDIUM ? 12 + i : 15) & 1,
		               table = 0x00191109u - less * 0x00020202u;
		const unsigned at = w_eight<3>(llmc_grid_iq1, r.w[0], h, i);
#pragma unroll
		for (int e = 0; e < 2; e++)
			v[e] = byte_choose(table, 0, at >> 16 * e);
	}
	DEV float
	scale(const raw &r, int h)
	{
		return 0.125f *
		       (float)((MEDIUM ? r.side >> 4 * h & 7 : B::high(r) >> 12 & 7) * 2 + 1);
	}
};
typedef w_kind_iq1<0> w_kind_iq1_s;
typedef w_kind_iq1<1> w_kind_iq1_m;

/* ---- all kinds ---- */

/* Loads words from a plane with 4, 8 or 16 bytes per unit. */
template <int WORDS> DEV void
w_words(unsigned (&w)[4], const unsigned char *p, bool again)
{
	if (WORDS == 4) {
		const uint4 q = w_read(p, again);
		w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w;
	} else if (WORDS == 2) {
		const uint2 q = ld_v2(p);
		w[0] = q.x, w[1] = q.y;
	} else {
		w[0] = ld_v1(p);
	}
}

template <int COLS_, class K> struct w_coded {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 16,
		BLOCK = K::BLOCK,
		BLOCKS = COLS_ / K::BLOCK,
		PACKED = 1,
		BF16 = 0,
		HALVES = K::HALVES,
		HAS_MIN = K::MIN,
		ZERO = K::ZERO,
		FIRST = K::WORDS == 3 ? 2 : K::WORDS, /* words of the first plane */
		FACTORS = K::MIN ? 4 : 2              /* bytes of d and m */
	};
	static constexpr int THIRD = w_plane(UNITS, 4 * FIRST),
	                     SIDE = THIRD + (K::WORDS == 3 ? w_plane(UNITS, 4) : 0),
	                     D = SIDE + w_plane(UNITS, K::SIDE);
	static constexpr long long ROW = D + w_plane(BLOCKS, FACTORS);
	typedef w_codes_raw raw;

	DEV int
	column(int u, int i)
	{
		return u * 32 + i;
	}
	DEV int
	width(int)
	{
		return 32;
	}

	DEV raw
	load(const unsigned char *row, int u, bool again = false)
	{
		const unsigned char *const side = row + SIDE + K::SIDE * u;
		raw r;

		r.w[1] = r.w[2] = r.w[3] = r.side = 0;
		w_words<FIRST>(r.w, row + 4 * FIRST * u, again);
		if (K::WORDS == 3)
			r.w[2] = ld_v1(row + THIRD + 4 * u);
		if (K::SIDE == 2)
			r.side = w_u16(side);
		else if (K::SIDE)
			r.side = K::SIDE == 3 ? side[0] | side[1] << 8 | side[2] << 16 : side[0];
		r.d = K::MIN ? ld_v1(row + D + 4 * (u * 32 / BLOCK))
		             : w_u16(row + D + 2 * (u * 32 / BLOCK));
		return r;
	}

	/* weights 8 c .. 8 c + 7 are in half c / 2 of the 32 columns; pair() returns both halves */
	DEV void
	bytes(const raw &r, int, int c, unsigned (&b)[2], float &d, float &m)
	{
		unsigned other;
#pragma unroll
		for (int e = 0; e < 2; e++)
			if (c < 2)
				K::pair(b[e], other, r, c * 2 + e);
			else
				K::pair(other, b[e], r, c * 2 - 4 + e);
		d = f16_lo(r.d) * K::scale(r, K::HALVES == 2 ? c / 2 : 0);
		m = K::MIN ? -(f16_hi(r.d) * K::least(r, c / 2)) : 0;
	}

#if __CUDA_ARCH__ >= 800
	/* Lane t has 32 of the unit's 128 columns. The side bytes of a quad's 128 columns are SIDE
	 * words; each of the first lanes loads one of them, and the last lane loads d. */
	struct stream {
		enum {
			UNIT = 128,
			CHUNKS = 4,
			HAS_THIRD = K::WORDS == 3,
			PLANES = 2 + HAS_THIRD,
			QUADS = 1,
			NIBBLES = 0,
			MINS = 0,
			SPLIT = K::HALVES == 2 ? 2 : 0,
			TAIL = COLS % UNIT,
			BATCH = 2
		};
		static constexpr float GAIN = W_GAIN, SUM = K::MIN ? 1 : -K::ZERO, UNDO = 0x1p24f;
		struct alignas(16) stage {
			unsigned q[32 * FIRST], more[32], third[HAS_THIRD ? 32 : 1];
		};
		struct fragment {
			raw r;
		};
		struct scale {
			unsigned d[2], m[2];
		};

		/* plane 1: side bytes and d; plane 2: third words */
		DEV constexpr int
		offset(int plane, int unit, int t)
		{
			return plane == 0    ? unit * 16 * FIRST + t * 4 * FIRST
			       : plane == 2  ? THIRD + unit * 16 + t * 4
			       : BLOCK == 32 ? D + unit * 8 + t / 2 * 4
			       : t < K::SIDE ? SIDE + unit * 4 * K::SIDE + t * 4
			                     : D + unit * FACTORS / 2 / 4 * 4;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			static_assert(TAIL % 32 == 0 && K::SIDE < 4,
			              "rows of whole blocks; a lane left for d");
			if (FIRST == 4)
				cp_async_16_fill(&s.q[4 * lane], row + w_within<TAIL>(at[0], THIRD),
				                 bytes);
			else if (FIRST == 2)
				cp_async_8(&s.q[2 * lane], row + (unsigned)at[0]);
			else
				cp_async_4(&s.q[lane], row + (unsigned)at[0]);
			cp_async_4(&s.more[lane], row + (unsigned)at[1]);
			if (HAS_THIRD)
				cp_async_4(&s.third[HAS_THIRD ? lane : 0],
				           row + (unsigned)at[PLANES - 1]);
		}

		DEV void
		load(fragment &u, const stage &s, int unit, int lane)
		{
			const int first = lane & ~3;
			const unsigned char *const side =
			    (const unsigned char *)&s.more[first] + K::SIDE * (lane & 3);
			raw &r = u.r;

			r.w[1] = r.w[2] = r.w[3] = r.side = 0;
			if (FIRST == 4) {
				const uint4 q = *(const uint4 *)&s.q[4 * lane];
				r.w[0] = q.x, r.w[1] = q.y, r.w[2] = q.z, r.w[3] = q.w;
			} else if (FIRST == 2) {
				const uint2 q = *(const uint2 *)&s.q[2 * lane];
				r.w[0] = q.x, r.w[1] = q.y;
			} else {
				r.w[0] = s.q[lane];
			}
			if (HAS_THIRD)
				r.w[2] = s.third[HAS_THIRD ? lane : 0];
			if (K::SIDE == 2)
				r.side = *(const unsigned short *)side;
			else if (K::SIDE)
				r.side =
				    K::SIDE == 3 ? side[0] | side[1] << 8 | side[2] << 16 : side[0];
			if (BLOCK == 32)
				r.d = ((const unsigned short *)s.more)[2 * lane + (lane & 1)];
			else
				r.d = K::MIN ? s.more[first + 3]
				             : ((const unsigned short *)&s
				                    .more[first + 3])[unit >> 1 & 1];
		}

		DEV constexpr float
		part(int, int)
		{
			return 1.0f;
		}
		DEV int
		col(int unit, int c, int t)
		{
			return unit * 128 + t * 32 + c * 4;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return col(unit, c, t) + 16;
		}

		DEV void
		scales(scale &s, const fragment &u, int, int)
		{
#pragma unroll
			for (int h = 0; h < 2; h++) {
				const float d = f16_lo(u.r.d) *
				                K::scale(u.r, K::HALVES == 2 ? h : 0) * GAIN,
				            m = K::MIN ? -(f16_hi(u.r.d) * K::least(u.r, h) * GAIN)
				                       : 0;
				s.d[h] = pack_f16(d, d);
				s.m[h] = K::MIN ? pack_f16(m, m) : 0;
			}
		}

		DEV void
		add(float (&total)[2], const fragment (&u)[2], const float (&low)[2],
		    const float (&high)[2], float2 x, int, int)
		{
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const raw &r = u[i].r;
				const float d = f16_lo(r.d);
				if (K::MIN) {
					total[i] = fmaf(
					    d,
					    fmaf(K::scale(r, 0), low[i], K::scale(r, 1) * high[i]),
					    total[i]);
					total[i] =
					    fmaf(-f16_hi(r.d),
					         fmaf(K::least(r, 0), x.x, K::least(r, 1) * x.y),
					         total[i]);
				} else if (K::HALVES == 2) {
					total[i] = fmaf(d,
					                fmaf(K::scale(r, 0), low[i] + x.x,
					                     K::scale(r, 1) * (high[i] + x.y)),
					                total[i]);
				} else {
					total[i] = fmaf(d * K::scale(r, 0), low[i] + x.x, total[i]);
				}
			}
		}

		template <bool WHOLE> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int)
		{
			const unsigned above = WHOLE ? 0 : 0x64646464u;
			if constexpr (K::MIXED) {
				K::halves(b, u.r, c, above);
			} else {
				unsigned v[2];
				K::pair(v[0], v[1], u.r, c);
#pragma unroll
				for (int i = 0; i < 4; i++)
					b[i] =
					    __byte_perm(v[i / 2], above, i % 2 ? 0x4342 : 0x4140);
			}
#pragma unroll
			for (int i = 0; i < 4 && !WHOLE; i++) {
				const unsigned x = h2_add(b[i], (0xe400u + K::ZERO) * 0x10001u);
				b[i] = K::MIN ? h2_fma(x, s.d[i / 2], s.m[i / 2])
				              : h2_mul(x, s.d[i / 2]);
			}
		}
	};
#endif
};
template <int COLS> struct w_q2_k : w_bytes<w_coded<COLS, w_kind_q2_k>> {
};
template <int COLS> struct w_q3_k : w_bytes<w_coded<COLS, w_kind_q3_k>> {
};
template <int COLS> struct w_iq4_nl : w_bytes<w_coded<COLS, w_kind_iq4_nl>> {
};
template <int COLS> struct w_iq4_xs : w_bytes<w_coded<COLS, w_kind_iq4_xs>> {
};
template <int COLS> struct w_iq3_s : w_bytes<w_coded<COLS, w_kind_iq3_s>> {
};
template <int COLS> struct w_iq3_xxs : w_bytes<w_coded<COLS, w_kind_iq3_xxs>> {
};
template <int COLS> struct w_iq2_s : w_bytes<w_coded<COLS, w_kind_iq2_s>> {
};
template <int COLS> struct w_iq2_xs : w_bytes<w_coded<COLS, w_kind_iq2_xs>> {
};
template <int COLS> struct w_iq2_xxs : w_bytes<w_coded<COLS, w_kind_iq2_xxs>> {
};
template <int COLS> struct w_iq1_s : w_bytes<w_coded<COLS, w_kind_iq1_s>> {
};
template <int COLS> struct w_iq1_m : w_bytes<w_coded<COLS, w_kind_iq1_m>> {
};
template <int COLS> struct w_tq1_0 : w_bytes<w_coded<COLS, w_kind_tq2_0>> {
};
template <int COLS> struct w_tq2_0 : w_bytes<w_coded<COLS, w_kind_tq2_0>> {
};

#endif

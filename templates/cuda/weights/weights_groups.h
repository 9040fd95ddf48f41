/* Weights in groups of 32 to 128 columns (contract: cuda/weights/weights.h). A group of integers
 * has a scale, and a zero point (u2_* to u8_*) or a minimum (m2_* to m8_*). A group of floats has a
 * scale: f8_* (e4m3), nf4_*, fp4_* (tables of 16, formats/dtype.c). Planes of a row: codes (of
 * three-bit codes the low two bits); scales (f16 or f32); zero points (bytes) or minima (f32);
 * third bits. Codes of 32 columns have the order of templates/common/llmc_groups.h. */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_GROUPS_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_GROUPS_H

/* Converts two e4m3, in the upper bytes of the halves of v, to f16 of their value / 256,
 * exactly. */
DEV unsigned
w_e4m3(unsigned v)
{
	return (v & 0x80008000u) | (v & 0x7f007f00u) >> 1;
}

/* Tables of nf4 and fp4, as f32 and as f16. w_code_word::value is byte BYTE of entries 4 I .. 4 I +
 * 3. */
template <bool FP4> DEV constexpr unsigned
w_code_f32(int i)
{
	constexpr unsigned nf4[16] = { 0xbf800000, 0xbf3239b1, 0xbf066b30, 0xbeca32a0,
		                       0xbe91a24d, 0xbe3d353f, 0xbdba7871, 0x0,
		                       0x3da2faff, 0x3e24cae3, 0x3e7c04dd, 0x3ead033a,
		                       0x3ee1a4b8, 0x3f1007ab, 0x3f3913b3, 0x3f800000 };
	constexpr unsigned fp4[16] = { 0x0,        0x3baaaaab, 0x3f2aaaab, 0x3f800000,
		                       0x3eaaaaab, 0x3f000000, 0x3e2aaaab, 0x3e800000,
		                       0x0,        0xbbaaaaab, 0xbf2aaaab, 0xbf800000,
		                       0xbeaaaaab, 0xbf000000, 0xbe2aaaab, 0xbe800000 };
	return FP4 ? fp4[i] : nf4[i];
}

template <bool FP4> DEV constexpr unsigned
w_code_f16(int i)
{
	constexpr unsigned nf4[16] = { 0xbc00, 0xb992, 0xb833, 0xb652, 0xb48d, 0xb1ea,
		                       0xadd4, 0x0,    0x2d18, 0x3126, 0x33e0, 0x3568,
		                       0x370d, 0x3880, 0x39c9, 0x3c00 };
	constexpr unsigned fp4[16] = {
		0x0, 0x1d55, 0x3955, 0x3c00, 0x3555, 0x3800, 0x3155, 0x3400,
		0x0, 0x9d55, 0xb955, 0xbc00, 0xb555, 0xb800, 0xb155, 0xb400
	};
	return FP4 ? fp4[i] : nf4[i];
}

template <bool FP4, bool HALF, int BYTE, int I> struct w_code_word {
	DEV constexpr unsigned
	at(int i)
	{
		return ((HALF ? w_code_f16<FP4>(i) : w_code_f32<FP4>(i)) >> 8 * BYTE & 255)
		       << 8 * (i % 4);
	}
	static constexpr unsigned value = at(4 * I) | at(4 * I + 1) | at(4 * I + 2) | at(4 * I + 3);
};

/* Byte BYTE of the entries that the four nibbles in the low half of c select. The upper eight
 * entries of fp4 are the negated lower ones, so a table of eight is enough, except for the byte
 * that contains the sign. */
template <bool FP4, bool HALF, int BYTE> DEV unsigned
w_code_bytes(const w_sixteen &c)
{
	typedef w_code_word<FP4, HALF, BYTE, 0> t0;
	typedef w_code_word<FP4, HALF, BYTE, 1> t1;
	typedef w_code_word<FP4, HALF, BYTE, 2> t2;
	typedef w_code_word<FP4, HALF, BYTE, 3> t3;

	return FP4 && BYTE < (HALF ? 1 : 3)
	           ? byte_choose(t0::value, t1::value, c.at)
	           : w_of_sixteen(c, t0::value, t1::value, t2::value, t3::value);
}

/* The low (or high) nibbles of four bytes as table indices, in the order of the bytes */
DEV w_sixteen
w_codes_of(unsigned v, int high)
{
	const unsigned n = v >> 4 * high & 0x0f0f0f0fu, pairs = (n | n >> 4) & 0x00ff00ffu;

	return w_sixteen_of(pairs | pairs >> 8);
}

enum { W_INT, W_E4M3, W_NF4, W_FP4 };

/* ZERO: bytes of the zero point (1) or minimum (4) of each group; 0: the group has neither */
template <int COLS_, int BITS, int GROUP, int SCALE, int KIND,
          int ZERO = KIND == W_INT> struct w_groups {
	enum {
		FLOATS = KIND != W_INT,
		TABLE = KIND == W_NF4 || KIND == W_FP4,
		AFFINE = ZERO == 4,
		SUB4 = BITS < 4,
		THIRD = BITS == 3
	};
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 16,
		BLOCK = GROUP,
		PACKED = 1,
		BF16 = 0,
		BYTES = SUB4 ? 8 : 4 * BITS
	};
	static constexpr int D = w_plane(COLS_ / GROUP, GROUP / 32 * BYTES),
	                     Z = D + w_plane(COLS_ / GROUP, SCALE),
	                     T = Z + (ZERO ? w_plane(COLS_ / GROUP, ZERO) : 0);
	static constexpr long long ROW = T + (THIRD ? w_plane(COLS_ / GROUP, GROUP / 8) : 0);
	typedef w_groups tile;
	struct raw {
		uint4 q[(BYTES + 15) / 16];
		unsigned third, d, z;
	}; /* SUB4: q[0] has two words */

	/* codes of columns 4 i .. 4 i + 3 of 32, with two or three bits each */
	DEV unsigned
	sub4_codes(unsigned low, unsigned high, unsigned third, int i)
	{
		const unsigned v = (i < 4 ? low : high) >> 2 * (i & 3) & 0x03030303u;
		return THIRD ? v | (third >> i & 0x01010101u) << 2 : v;
	}

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
		const int g = u * 32 / GROUP;
		raw r;
		if (SUB4) {
			const uint2 q = ld_v2(row + BYTES * u);
			r.q[0] = make_uint4(q.x, q.y, 0, 0);
		}
#pragma unroll
		for (int i = 0; i < BYTES / 16; i++)
			r.q[i] = w_read(row + BYTES * u + 16 * i, again);
		r.third = THIRD ? ld_v1(row + T + 4 * u) : 0;
		r.d = SCALE == 4 ? ld_v1(row + D + 4 * g) : w_u16(row + D + 2 * g);
		r.z = !ZERO ? 0 : AFFINE ? ld_v1(row + Z + 4 * g) : row[Z + g];
		return r;
	}

	DEV float
	scale(const raw &r)
	{
		return SCALE == 4 ? __uint_as_float(r.d) : f16_lo(r.d);
	}

	/* weights 8 c + 4 e .. 8 c + 4 e + 3, exact */
	DEV void
	four(const raw &r, int c, int e, float (&v)[4])
	{
		if (TABLE) {
			const w_sixteen k = w_codes_of(w_word(r.q[0], c % 2 * 2 + e), c / 2);
			const unsigned b0 = w_code_bytes < KIND == W_FP4, false, 0 > (k),
			               b1 = w_code_bytes < KIND == W_FP4, false, 1 > (k);
			const unsigned b2 = w_code_bytes < KIND == W_FP4, false, 2 > (k),
			               b3 = w_code_bytes < KIND == W_FP4, false, 3 > (k);
			const float d = scale(r);
#pragma unroll
			for (int i = 0; i < 4; i++)
				v[i] = __uint_as_float(__byte_perm(
				           __byte_perm(b0, b1, i | (4 + i) << 4),
				           __byte_perm(b2, b3, i | (4 + i) << 4), 0x5410)) *
				       d;
			return;
		}
		const unsigned b = BITS == 8 ? w_word(r.q[BITS == 8 ? c / 2 : 0], c % 2 * 2 + e)
		                   : SUB4    ? sub4_codes(r.q[0].x, r.q[0].y, r.third, 2 * c + e)
		                             : w_nibbles(w_word(r.q[0], c % 2 * 2 + e), c / 2);
		if (FLOATS) {
			const unsigned lo = w_e4m3(b << 8 & 0xff00ff00u),
			               hi = w_e4m3(
			                   b & 0xff00ff00u); /* bytes 0 and 2, then bytes 1 and 3 */
			const float d = scale(r) * 256.0f;
			v[0] = f16_lo(lo) * d, v[1] = f16_lo(hi) * d, v[2] = f16_hi(lo) * d,
			v[3] = f16_hi(hi) * d;
			return;
		}
		const float zero = W_2_23 + (AFFINE ? 0.0f : (float)r.z), d = scale(r);
#pragma unroll
		for (int i = 0; i < 4; i++)
			v[i] = AFFINE ? fmaf(W_BYTE(b, i) - zero, d, __uint_as_float(r.z))
			              : (W_BYTE(b, i) - zero) * d;
	}

	/* Like four, from a table of f16 */
	DEV void
	half_four(const raw &r, int c, int e, float (&v)[4])
	{
		const w_sixteen k = w_codes_of(w_word(r.q[0], c % 2 * 2 + e), c / 2);
		const unsigned low = w_code_bytes < KIND == W_FP4, true, 0 > (k),
		               high = w_code_bytes < KIND == W_FP4, true, 1 > (k);
		const unsigned p = __byte_perm(low, high, 0x5140),
		               q = __byte_perm(low, high, 0x7362);
		const float d = scale(r);

		v[0] = f16_lo(p) * d, v[1] = f16_hi(p) * d, v[2] = f16_lo(q) * d,
		v[3] = f16_hi(q) * d;
	}

	DEV void
	decode(const raw &r, int, float (&v)[32])
	{
		w_decode_fours<w_groups>(r, v);
	}

	DEV uint4
	eight(const raw &r, int, int c)
	{
		float a[4], b[4];

		if (TABLE) { /* from entries in f16, which need half as many registers */
			half_four(r, c, 0, a);
			half_four(r, c, 1, b);
		} else {
			four(r, c, 0, a);
			four(r, c, 1, b);
		}
		return make_uint4(pack_f16(a[0], a[1]), pack_f16(a[2], a[3]), pack_f16(b[0], b[1]),
		                  pack_f16(b[2], b[3]));
	}

#if __CUDA_ARCH__ >= 800
	/* Lane t has 32 of the unit's 128 columns, or 16 columns of 8 bits. Scales and zero points
	 * are loaded together with those of neighbours, 4 bytes at a time. */
	struct stream {
		enum {
			PART = BITS == 8 ? 16 : 32,
			UNIT = 4 * PART,
			CHUNKS = PART / 8,
			PLANES = FLOATS ? 2 : 3 + THIRD,
			QUADS = 0,
			NIBBLES = BITS == 4 && !TABLE,
			MINS = 0,
			SPLIT = 0,
			ADDS = 0,
			TAIL = COLS % UNIT,
			BATCH = 2
		};
		static constexpr float GAIN = W_GAIN, SUM = 1,
		                       UNDO = TABLE    ? 1.0f
		                              : FLOATS ? 256.0f
		                                       : 0x1p24f;
		struct stage {
			uint4 q[SUB4 ? 16 : 32];
			unsigned d[32], z[FLOATS ? 1 : 32], third[THIRD ? 32 : 1];
		};
		struct fragment {
			uint4 q;
			unsigned d, z, third;
		};
		struct scale {
			unsigned d, zero, zero_high, m;
		}; /* zero: -(1024 + z), zero_high: -(64 + z) */

		/* converts codes minus the zero point to weights */
		DEV unsigned
		times(unsigned x, const scale &s)
		{
			return AFFINE ? h2_fma(x, s.d, s.m) : h2_mul(x, s.d);
		}

		DEV constexpr float
		part(int, int i)
		{
			return BITS == 4 && !TABLE && i >= 2 ? 0x1p-4f : 1.0f;
		}
		DEV constexpr int
		group(int unit, int t)
		{
			return (unit * UNIT + t * PART) / GROUP;
		}

		DEV constexpr int
		offset(int plane, int unit, int t)
		{
			return plane == 0   ? (unit * 4 + t) * (SUB4 ? 8 : 16)
			       : plane == 1 ? D + group(unit, t) * SCALE / 4 * 4
			       : plane == 2 ? Z + group(unit, t) * (AFFINE ? 4 : 1) / 4 * 4
			                    : T + unit * 16 + t * 4;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			static_assert(TAIL % 32 == 0, "rows of whole groups");
			if (SUB4)
				cp_async_8((unsigned *)s.q + 2 * lane, row + (unsigned)at[0]);
			else
				cp_async_16_fill(&s.q[SUB4 ? 0 : lane],
				                 row + w_within<TAIL>(at[0], D), bytes);
			cp_async_4(&s.d[lane], row + (unsigned)at[1]);
			if (!FLOATS)
				cp_async_4(&s.z[FLOATS ? 0 : lane],
				           row + (unsigned)at[FLOATS ? 0 : 2]);
			if (THIRD)
				cp_async_4(&s.third[THIRD ? lane : 0],
				           row + (unsigned)at[PLANES - 1]);
		}

		DEV void
		load(fragment &u, const stage &s, int unit, int lane)
		{
			const int g = group(unit, lane & 3);

			if (SUB4) {
				const uint2 q = *(const uint2 *)((const unsigned *)s.q + 2 * lane);
				u.q = make_uint4(q.x, q.y, 0, 0);
			} else {
				u.q = s.q[SUB4 ? 0 : lane];
			}
			u.d = SCALE == 4 ? s.d[lane]
			                 : ((const unsigned short *)s.d)[2 * lane + (g & 1)];
			u.z = FLOATS   ? 0
			      : AFFINE ? s.z[FLOATS ? 0 : lane]
			               : ((const unsigned char *)s.z)[4 * lane + (g & 3)];
			u.third = THIRD ? s.third[THIRD ? lane : 0] : 0;
		}

		DEV int
		col(int unit, int c, int t)
		{
			return unit * UNIT + t * PART + c * (BITS == 8 ? 8 : 4);
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return col(unit, c, t) + (BITS == 8 ? 4 : 16);
		}

		DEV void
		scales(scale &s, const fragment &u, int, int)
		{
			const float gain = KIND == W_E4M3 ? 256.0f * W_GAIN : W_GAIN;

			if (SCALE == 4) {
				const float d = __uint_as_float(u.d) * gain;
				s.d = pack_f16(d, d);
			} else {
				s.d = h2_mul(h2_twice(u.d), W_GAIN_H);
			}
			const unsigned zero = AFFINE ? 0 : u.z;
			s.zero = (0xe400u + zero) * 0x10001u;
			s.zero_high = (0xd400u + zero * 16) * 0x10001u;
			const float m = AFFINE ? __uint_as_float(u.z) * gain : 0;
			s.m = AFFINE ? pack_f16(m, m) : 0;
		}

		DEV void
		add(float (&total)[2], const fragment (&u)[2], const float (&low)[2],
		    const float (&)[2], float2 x, int, int)
		{
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const float d =
				    SCALE == 4 ? __uint_as_float(u[i].d) : f16_lo(u[i].d);
				if (AFFINE)
					total[i] =
					    fmaf(d, low[i],
					         fmaf(__uint_as_float(u[i].z), x.x, total[i]));
				else
					total[i] = fmaf(
					    d, FLOATS ? low[i] : fmaf(-(float)u[i].z, x.x, low[i]),
					    total[i]);
			}
		}

		template <bool WHOLE> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int)
		{
			if (TABLE) {
				/* columns 2 i and 2 i + 1, and the columns 16 later */
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const w_sixteen k = w_sixteen_of(w_word(u.q, c)).half(i);
					const unsigned low = w_code_bytes < KIND == W_FP4, true,
					               0 > (k), high = w_code_bytes < KIND == W_FP4,
					               true, 1 > (k);
#pragma unroll
					for (int h = 0; h < 2; h++) {
						const unsigned v =
						    __byte_perm(low, high, h ? 0x7351 : 0x6240);
						b[2 * h + i] = WHOLE ? v : h2_mul(v, s.d);
					}
				}
			}
#pragma unroll
			for (int h = 0; h < 2 && SUB4; h++) {
				const unsigned v = sub4_codes(u.q.x, u.q.y, u.third, 4 * h + c);
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const unsigned at = i ? 0x4342 : 0x4140;
					b[2 * h + i] =
					    WHOLE ? __byte_perm(v, 0, at)
					          : times(h2_add(__byte_perm(v, 0x64646464u, at),
					                         s.zero),
					                  s);
				}
			}
#pragma unroll
			for (int i = 0; i < 2 && !TABLE && !SUB4; i++) {
				if (BITS == 4) {
					const unsigned v = w_word(u.q, c) >> 8 * i,
					               one = WHOLE ? 0 : 0x64006400u;
					if (WHOLE) {
						b[i] = h2_select(v, 0x000f000fu, one);
						b[2 + i] = h2_select(v, 0x00f000f0u, one);
						continue;
					}
					b[i] = times(h2_add(h2_select(v, 0x000f000fu, one), s.zero),
					             s);
					b[2 + i] = times(h2_fma(h2_select(v, 0x00f000f0u, one),
					                        0x2c002c00u, s.zero_high),
					                 s);
					continue;
				}
				const unsigned v = w_word(u.q, c * 2 + i);
#pragma unroll
				for (int h = 0; h < 2; h++)
					if (FLOATS) {
						const unsigned e =
						    w_e4m3(__byte_perm(v, 0, h ? 0x3424 : 0x1404));
						b[2 * i + h] = WHOLE ? e : h2_mul(e, s.d);
					} else if (WHOLE)
						b[2 * i + h] =
						    __byte_perm(v, 0, h ? 0x4342 : 0x4140);
					else
						b[2 * i + h] =
						    times(h2_add(__byte_perm(v, 0x64646464u,
						                             h ? 0x4342 : 0x4140),
						                 s.zero),
						          s);
			}
		}
	};
#endif
};
template <int COLS> struct w_u4_32 : w_groups<COLS, 4, 32, 2, W_INT> {
};
template <int COLS> struct w_u4_128 : w_groups<COLS, 4, 128, 2, W_INT> {
};
template <int COLS> struct w_u4_32_f32 : w_groups<COLS, 4, 32, 4, W_INT> {
};
template <int COLS> struct w_u4_128_f32 : w_groups<COLS, 4, 128, 4, W_INT> {
};
template <int COLS> struct w_u8_32 : w_groups<COLS, 8, 32, 2, W_INT> {
};
template <int COLS> struct w_u8_128 : w_groups<COLS, 8, 128, 2, W_INT> {
};
template <int COLS> struct w_u8_32_f32 : w_groups<COLS, 8, 32, 4, W_INT> {
};
template <int COLS> struct w_u8_128_f32 : w_groups<COLS, 8, 128, 4, W_INT> {
};
template <int COLS> struct w_u2_32 : w_groups<COLS, 2, 32, 2, W_INT> {
};
template <int COLS> struct w_u2_128 : w_groups<COLS, 2, 128, 2, W_INT> {
};
template <int COLS> struct w_u3_32 : w_groups<COLS, 3, 32, 2, W_INT> {
};
template <int COLS> struct w_u3_128 : w_groups<COLS, 3, 128, 2, W_INT> {
};
template <int COLS> struct w_m2_32 : w_groups<COLS, 2, 32, 4, W_INT, 4> {
};
template <int COLS> struct w_m2_64 : w_groups<COLS, 2, 64, 4, W_INT, 4> {
};
template <int COLS> struct w_m3_32 : w_groups<COLS, 3, 32, 4, W_INT, 4> {
};
template <int COLS> struct w_m3_64 : w_groups<COLS, 3, 64, 4, W_INT, 4> {
};
template <int COLS> struct w_m4_32 : w_groups<COLS, 4, 32, 4, W_INT, 4> {
};
template <int COLS> struct w_m4_64 : w_groups<COLS, 4, 64, 4, W_INT, 4> {
};
template <int COLS> struct w_m8_32 : w_groups<COLS, 8, 32, 4, W_INT, 4> {
};
template <int COLS> struct w_m8_64 : w_groups<COLS, 8, 64, 4, W_INT, 4> {
};
template <int COLS> struct w_f8_32 : w_groups<COLS, 8, 32, 4, W_E4M3> {
};
template <int COLS> struct w_f8_128 : w_groups<COLS, 8, 128, 4, W_E4M3> {
};
template <int COLS> struct w_nf4_32 : w_groups<COLS, 4, 32, 4, W_NF4> {
};
template <int COLS> struct w_nf4_64 : w_groups<COLS, 4, 64, 4, W_NF4> {
};
template <int COLS> struct w_fp4_32 : w_groups<COLS, 4, 32, 4, W_FP4> {
};
template <int COLS> struct w_fp4_64 : w_groups<COLS, 4, 64, 4, W_FP4> {
};

#endif

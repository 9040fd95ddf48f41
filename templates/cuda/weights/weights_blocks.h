/* Weights in blocks of 32: q4_0, q4_1, q5_0, q5_1 and q8_0 (contract: cuda/weights/weights.h).
 * Planes of a row: nibbles (or bytes); fifth bits, if there are any; then, for each block, the f16
 * scale d, followed by the minimum m if the format has minima. */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_BLOCKS_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_BLOCKS_H

/* 16 bytes per block: byte i has weight i in its low nibble and weight i + 16 in the high one.
 * FIFTH: bytes of a block's fifth bits, or 0. HEAD: 2 for d, 4 for d and m. Without a minimum, the
 * zero point is the middle of the range. */
template <int COLS_, int FIFTH, int HEAD> struct w_nibble_blocks {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 16,
		BLOCK = 32,
		PACKED = 1,
		BF16 = 0,
		HALVES = 1,
		HAS_MIN = HEAD == 4,
		ZERO = HEAD == 4 ? 0
		       : FIFTH   ? 16
		                 : 8
	};
	static constexpr int QH = w_plane(UNITS, 16), D = QH + w_plane(UNITS, FIFTH);
	static constexpr long long ROW = D + w_plane(UNITS, HEAD);
	struct raw {
		uint4 q;
		unsigned qh, d;
	};

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
		raw r;
		r.q = w_read(row + 16 * u, again);
		r.qh = FIFTH ? ld_v1(row + QH + 4 * u) : 0;
		r.d = HEAD == 4 ? ld_v1(row + D + 4 * u) : w_u16(row + D + 2 * u);
		return r;
	}

	DEV void
	bytes(const raw &r, int, int c, unsigned (&b)[2], float &d, float &m)
	{
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = w_nibbles(w_word(r.q, c % 2 * 2 + e), c / 2) |
			       (FIFTH ? w_fifth(r.qh >> (c * 8 + e * 4)) : 0);
		d = f16_lo(r.d);
		m = HEAD == 4 ? f16_hi(r.d) : 0;
	}

#if __CUDA_ARCH__ >= 800
	/* Lane t has block t of four. A 2-byte scale is loaded together with that of the
	 * neighbouring lane. */
	struct stream {
		enum {
			UNIT = 128,
			CHUNKS = 4,
			PLANES = FIFTH ? 3 : 2,
			QUADS = 0,
			NIBBLES = 1,
			MINS = 0,
			SPLIT = 0,
			ADDS = HEAD == 4,
			ZERO = w_nibble_blocks::ZERO,
			TAIL = COLS % UNIT,
			BATCH = 4
		};
		static constexpr float GAIN = W_GAIN, SUM = HEAD == 4 ? 1 : -ZERO, UNDO = 0x1p24f;
		struct stage {
			uint4 q[32];
			unsigned d[FIFTH ? 64 : 32];
		}; /* fifth bits follow the scales */
		struct fragment {
			uint4 q;
			unsigned d, h;
		};
		typedef w_nibble_scale scale;

		DEV constexpr int
		offset(int plane, int unit, int t)
		{
			return plane == 0   ? unit * 64 + t * 16
			       : plane == 1 ? D + unit * 4 * HEAD + t * HEAD / 4 * 4
			                    : QH + unit * 16 + t * 4;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			static_assert(TAIL % 32 == 0, "rows of whole blocks");
			cp_async_16_fill(&s.q[lane], row + w_within<TAIL>(at[0], QH), bytes);
			cp_async_4(&s.d[lane], row + (unsigned)at[1]);
			if (FIFTH)
				cp_async_4(&s.d[32 + lane], row + (unsigned)at[PLANES - 1]);
		}

		DEV void
		load(fragment &u, const stage &s, int, int lane)
		{
			u.q = s.q[lane];
			u.d = HEAD == 4 ? s.d[lane]
			                : ((const unsigned short *)s.d)[2 * lane + (lane & 1)];
			u.h = FIFTH ? s.d[32 + lane] : 0;
		}

		DEV constexpr float
		part(int, int i)
		{
			return i < 2 ? 1.0f : 0x1p-4f;
		}
		DEV int
		col(int unit, int c, int t)
		{
			return unit * 128 + t * 32 + c * 4;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return unit * 128 + t * 32 + 16 + c * 4;
		}

		DEV void
		scales(scale &s, const fragment &u, int, int)
		{
			s.d[0] = s.d[1] = h2_mul(h2_twice(u.d), W_GAIN_H);
			s.m[0] = s.m[1] = HEAD == 2 ? 0 : h2_mul(h2_twice_hi(u.d), W_GAIN_H);
		}

		DEV void
		add(float (&total)[2], const fragment (&u)[2], const float (&low)[2],
		    const float (&)[2], float2 x, int, int)
		{
#pragma unroll
			for (int i = 0; i < 2; i++)
				total[i] = HEAD == 4 ? fmaf(f16_hi(u[i].d), x.x,
				                            fmaf(f16_lo(u[i].d), low[i], total[i]))
				                     : fmaf(f16_lo(u[i].d), low[i] + x.x, total[i]);
		}

		template <bool WHOLE> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int)
		{
			const unsigned one = WHOLE ? 0 : 0x64006400u;
			unsigned low[2] = { one, one }, high[2] = { one, one };

			if (FIFTH) {
				/* each bit together with the bit two positions above, 16 bits
				 * apart */
				const unsigned a = __byte_perm(u.h, u.h >> 2, 0x5410),
				               h = __byte_perm(u.h, u.h >> 2, 0x7632);
#pragma unroll
				for (int i = 0; i < 2; i++) {
					const int at = 4 * c + i;
					low[i] = h2_select(at < 4 ? a << (4 - at) : a >> (at - 4),
					                   0x00100010u, one);
					high[i] = h2_select(at < 8 ? h << (8 - at) : h >> (at - 8),
					                    0x01000100u, one);
				}
			}
			w_nibble_chunk<stream, WHOLE>(b, w_word(u.q, c), low, high, s);
		}
	};
#endif
};
template <int COLS> struct w_q4_0 : w_bytes<w_nibble_blocks<COLS, 0, 2>> {
};
template <int COLS> struct w_q4_1 : w_bytes<w_nibble_blocks<COLS, 0, 4>> {
};
template <int COLS> struct w_q5_0 : w_bytes<w_nibble_blocks<COLS, 4, 2>> {
};
template <int COLS> struct w_q5_1 : w_bytes<w_nibble_blocks<COLS, 4, 4>> {
};

/* 32 signed bytes per block */
template <int COLS_> struct w_byte_blocks {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 16,
		BLOCK = 32,
		PACKED = 1,
		BF16 = 0,
		HALVES = 1,
		HAS_MIN = 0,
		ZERO = 128
	};
	static constexpr int D = w_plane(UNITS, 32);
	static constexpr long long ROW = D + w_plane(UNITS, 2);
	struct raw {
		uint4 q[2];
		unsigned d;
	};

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
		raw r;
		r.q[0] = w_read(row + 32 * u, again);
		r.q[1] = w_read(row + 32 * u + 16, again);
		r.d = w_u16(row + D + 2 * u);
		return r;
	}

	DEV void
	bytes(const raw &r, int, int c, unsigned (&b)[2], float &d, float &m)
	{
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = w_word(r.q[c / 2], c % 2 * 2 + e) ^
			       0x80808080u; /* adds 128, which makes the bytes unsigned */
		d = f16_lo(r.d);
		m = 0;
	}

#if __CUDA_ARCH__ >= 800
	/* A lane has 16 columns of block t / 2. Scales are loaded in pairs. */
	struct stream {
		enum {
			UNIT = 64,
			CHUNKS = 2,
			PLANES = 2,
			QUADS = 0,
			NIBBLES = 0,
			MINS = 0,
			SPLIT = 0,
			TAIL = COLS % UNIT,
			BATCH = 4
		};
		static constexpr float GAIN = W_GAIN, SUM = -128, UNDO = 0x1p24f;
		struct stage {
			uint4 q[32];
			unsigned d[32];
		};
		struct fragment {
			uint4 q;
			unsigned d;
		};
		struct scale {
			unsigned d;
		};

		DEV constexpr int
		offset(int plane, int unit, int t)
		{
			return plane == 0 ? unit * 64 + t * 16 : D + unit * 4;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			static_assert(TAIL % 32 == 0, "rows of whole blocks");
			cp_async_16_fill(&s.q[lane], row + w_within<TAIL>(at[0], D), bytes);
			cp_async_4(&s.d[lane], row + (unsigned)at[1]);
		}

		DEV void
		load(fragment &u, const stage &s, int, int lane)
		{
			u.q = s.q[lane];
			u.d = ((const unsigned short *)s.d)[2 * lane + (lane >> 1 & 1)];
		}

		DEV constexpr float
		part(int, int)
		{
			return 1.0f;
		}
		DEV int
		col(int unit, int c, int t)
		{
			return unit * 64 + t * 16 + c * 8;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return col(unit, c, t) + 4;
		}
		DEV void
		scales(scale &s, const fragment &u, int, int)
		{
			s.d = h2_mul(h2_twice(u.d), W_GAIN_H);
		}

		DEV void
		add(float (&total)[2], const fragment (&u)[2], const float (&low)[2],
		    const float (&)[2], float2 x, int, int)
		{
			total[0] = fmaf(f16_lo(u[0].d), low[0] + x.x, total[0]);
			total[1] = fmaf(f16_lo(u[1].d), low[1] + x.x, total[1]);
		}

		template <bool WHOLE> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int)
		{
#pragma unroll
			for (int i = 0; i < 2; i++) {
				/* byte + 128 in the low mantissa bits of 1024 */
				const unsigned v = w_word(u.q, c * 2 + i) ^ 0x80808080u;
				if (WHOLE) {
					b[2 * i] = __byte_perm(v, 0, 0x4140);
					b[2 * i + 1] = __byte_perm(v, 0, 0x4342);
					continue;
				}
				b[2 * i] = h2_mul(
				    h2_add(__byte_perm(v, 0x64646464u, 0x4140), 0xe480e480u), s.d);
				b[2 * i + 1] = h2_mul(
				    h2_add(__byte_perm(v, 0x64646464u, 0x4342), 0xe480e480u), s.d);
			}
		}
	};
#endif
};
template <int COLS> struct w_q8_0 : w_bytes<w_byte_blocks<COLS>> {
};

#endif

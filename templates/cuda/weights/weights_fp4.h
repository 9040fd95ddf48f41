/* 4-bit floats (E2M1) with 8-bit scales: mxfp4 and nvfp4 (contract: cuda/weights/weights.h). Planes
 * of a row: four words per 32 columns (formats/layout_packed.h), where word i has columns 4 i .. 4
 * i + 3 and 16 + 4 i .. 16 + 4 i + 3; a scale byte per 32 columns (mxfp4: a power of two) or per 16
 * (nvfp4: e4m3); for nvfp4, one f32 factor per row. */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_FP4_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_FP4_H

DEV unsigned
w_reorder(unsigned v, int k)
{
	return __funnelshift_r(v, v, 32 - k);
}

/* Converts a word of eight E2M1 to f16 of their value / 2^14. The result is exact, also for
 * subnormals. b[0] has columns 0 and 2, b[1] 1 and 3, b[2] 16 and 18, b[3] 17 and 19. In a half,
 * the sign must be in bit 15 and the magnitude in bits 9 to 11. Four rotations of a word cannot
 * bring all columns there, so the last two results are XORs of rotations. */
DEV void
w_e2m1(unsigned (&b)[4], unsigned v)
{
	const unsigned mask = 0x8e008e00u, both = w_reorder(v, 7);

	b[0] = v & mask;
	b[1] = w_reorder(v, 3) & mask;
	b[2] = (both ^ w_reorder(v, 10)) & mask;
	b[3] = (both ^ w_reorder(v, 12)) & mask;
}
#define W_E2M1 16384.0f
#define W_E2M1_H 0x74007400u

/* 2 ^ (e - 127) */
DEV float
w_power(unsigned e)
{
	return fmaxf(__uint_as_float(e << 23), 5.8774717541114375e-39f);
}
/* value of an unsigned e4m3 */
DEV float
w_e4m3_scale(unsigned b)
{
	return f16_lo(b << 7) * 256.0f;
}
/* two unsigned e4m3 as halves, divided by 256 */
DEV unsigned
w_e4m3_pair(unsigned s)
{
	return __byte_perm(s, 0, 0x4140) << 7;
}

template <int COLS_, bool NV> struct w_fp4_blocks {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 16,
		BLOCK = NV ? 64 : 32,
		PACKED = 1,
		BF16 = 0,
		SCALES = NV ? 2 : 1
	};
	static constexpr int S = w_plane(UNITS, 16), D = S + w_plane(UNITS, SCALES);
	static constexpr long long ROW = D + (NV ? w_plane(1, 4) : 0);
	typedef w_fp4_blocks tile;
	struct raw {
		uint4 q;
		unsigned s, d;
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
		r.s = NV ? w_u16(row + S + 2 * u) : row[S + u];
		r.d = NV ? ld_v1(row + D) : 0;
		return r;
	}

	/* factor of half h of the 32 columns */
	DEV float
	factor(unsigned s, unsigned d, int h)
	{
		return NV ? __uint_as_float(d) * w_e4m3_scale(s >> 8 * h & 255) : w_power(s);
	}

	/* weights 8 c + 4 e .. 8 c + 4 e + 3, exact */
	DEV void
	four(const raw &r, int c, int e, float (&v)[4])
	{
		unsigned b[4];
		w_e2m1(b, w_word(r.q, c % 2 * 2 + e));
		const unsigned even = b[c / 2 * 2], odd = b[c / 2 * 2 + 1];
		const float d = factor(r.s, r.d, c / 2);

		v[0] = f16_lo(even) * W_E2M1 * d, v[1] = f16_lo(odd) * W_E2M1 * d,
		v[2] = f16_hi(even) * W_E2M1 * d, v[3] = f16_hi(odd) * W_E2M1 * d;
	}

	DEV void
	decode(const raw &r, int, float (&v)[32])
	{
		w_decode_fours<w_fp4_blocks>(r, v);
	}

	DEV uint4
	eight(const raw &r, int, int c)
	{
		float a[4], b[4];

		four(r, c, 0, a);
		four(r, c, 1, b);
		return make_uint4(pack_f16(a[0], a[1]), pack_f16(a[2], a[3]), pack_f16(b[0], b[1]),
		                  pack_f16(b[2], b[3]));
	}

#if __CUDA_ARCH__ >= 800
	/* Lane t has 32 of the unit's 128 columns. The scales are loaded together with those of a
	 * neighbour (mxfp4: with those of the whole unit). */
	struct stream {
		enum {
			UNIT = 128,
			CHUNKS = 4,
			PLANES = 2,
			QUADS = 0,
			NIBBLES = 1,
			MINS = 0,
			SPLIT = NV ? 2 : 0,
			ADDS = 0,
			TAIL = COLS_ % UNIT,
			BATCH = 2
		};
		static constexpr float GAIN = NV ? 0x1p-9f : W_GAIN, SUM = 1,
		                       UNDO = NV ? W_E2M1 * 256 : W_E2M1;
		struct stage {
			uint4 q[32];
			unsigned s[32];
		};
		struct fragment {
			uint4 q;
			unsigned s;
		};
		struct scale {
			unsigned d[2];
		};

		DEV constexpr float
		part(int, int)
		{
			return 1.0f;
		}

		DEV constexpr int
		offset(int plane, int unit, int t)
		{
			return plane == 0 ? unit * 64 + t * 16
			                  : S + unit * 4 * SCALES + t * SCALES / 4 * 4;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			static_assert(TAIL % 32 == 0, "rows of whole blocks");
			cp_async_16_fill(&s.q[lane], row + w_within<TAIL>(at[0], S), bytes);
			cp_async_4(&s.s[lane], row + (unsigned)at[1]);
		}

		DEV void
		load(fragment &u, const stage &s, int, int lane)
		{
			u.q = s.q[lane];
			u.s = NV ? ((const unsigned short *)s.s)[2 * lane + (lane & 1)]
			         : ((const unsigned char *)s.s)[4 * lane + (lane & 3)];
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
			if (NV) { /* GAIN leaves headroom for W_E2M1, so nothing is rounded */
				const unsigned d = h2_mul(w_e4m3_pair(u.s), 0x70007000u);
				s.d[0] = h2_twice(d);
				s.d[1] = h2_twice_hi(d);
			} else {
				const float a = w_power(u.s) * GAIN;
				s.d[0] = s.d[1] = pack_f16(a, a);
			}
		}

		DEV void
		add(float (&total)[2], const fragment (&u)[2], const float (&low)[2],
		    const float (&high)[2], float2, int, int)
		{
#pragma unroll
			for (int i = 0; i < 2; i++)
				total[i] =
				    NV ? fmaf(f16_lo(w_e4m3_pair(u[i].s)), low[i],
				              fmaf(f16_hi(w_e4m3_pair(u[i].s)), high[i], total[i]))
				       : fmaf(w_power(u[i].s), low[i], total[i]);
		}

		template <bool WHOLE> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int)
		{
			w_e2m1(b, w_word(u.q, c));
			/* mxfp4: both factors multiplied would overflow for scales >= 2^-4, so
			 * they are applied one by one */
#pragma unroll
			for (int i = 0; i < 4 && !WHOLE; i++)
				b[i] = h2_mul(NV ? b[i] : h2_mul(b[i], W_E2M1_H), s.d[i / 2]);
		}
	};
#endif
};
template <int COLS> struct w_mxfp4 : w_fp4_blocks<COLS, false> {
};
template <int COLS> struct w_nvfp4 : w_fp4_blocks<COLS, true> {
};

template <int COLS> struct w_row_factor<w_nvfp4<COLS>> {
	enum { HAS = 1 };
	DEV float
	of(const unsigned char *row)
	{
		return __uint_as_float(ld_v1(row + w_nvfp4<COLS>::D));
	}
};

#endif

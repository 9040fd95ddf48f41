/* Weights in blocks of 256: q4_k, q5_k and q6_k (contract: cuda/weights/weights.h). Sub-blocks have
 * integer scales, which multiply the block's f16 factors. */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_K_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_K_H

/* Scale and minimum of sub-block j, from a head of q4_k or q5_k. A head has f16 d and dmin, then
 * twelve bytes with a 6-bit scale and a 6-bit minimum for each of 8 sub-blocks of 32. Each value of
 * the first four sub-blocks is in 6 bits of one byte. Those of the other four have 4 bits in one
 * word and 2 bits in another. */
DEV void
w_k_head(const uint4 &head, int j, float &d, float &m)
{
	const int s = j % 4 * 8;
	const unsigned sc =
	    j < 4 ? head.y >> s & 63 : (head.w >> s & 15) | (head.y >> (s + 6) & 3) << 4;
	const unsigned mn =
	    j < 4 ? head.z >> s & 63 : (head.w >> (s + 4) & 15) | (head.z >> (s + 6) & 3) << 4;

	d = f16_lo(head.x) * (float)sc;
	m = -(f16_hi(head.x) * (float)mn);
}

/* Planes of q4_k: nibbles, then heads. The low nibbles of 32 bytes are one sub-block, the high ones
 * the next. Unit u: 16 bytes of nibbles, which are columns of sub-blocks 2 k and 2 k + 1. */
template <int COLS_> struct w_k_fours {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 32,
		BLOCKS = COLS_ / 256,
		BLOCK = 256,
		PACKED = 1,
		BF16 = 0,
		HALVES = 1,
		HAS_MIN = 1,
		ZERO = 0
	};
	static constexpr int MORE = 128 * BLOCKS,
	                     HEAD = MORE; /* MORE: offset of the second plane */
	static constexpr long long ROW = HEAD + 16 * BLOCKS;
	struct raw {
		uint4 q, head;
	};

	DEV int
	column(int u, int i)
	{
		return u / 2 * 64 + u % 2 * 16 + (i < 16 ? i : i + 16);
	}
	DEV int
	width(int)
	{
		return 32;
	}

	DEV raw
	load(const unsigned char *row, int u, bool again = false)
	{
		return { w_read(row + 16 * u, again), w_read(row + HEAD + u / 8 * 16, again) };
	}

	DEV void
	bytes(const raw &r, int u, int c, unsigned (&b)[2], float &d, float &m)
	{
		w_k_head(r.head, u % 8 / 2 * 2 + c / 2, d, m);
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = w_nibbles(w_word(r.q, c % 2 * 2 + e), c / 2);
	}

#if __CUDA_ARCH__ >= 800
	/* Lane t has half of sub-blocks (t & 2) and (t & 2) + 1 of the unit's four. */
	struct order {
		enum { PLANES = 2, SPLIT = 1, NIBBLES = 1, BATCH = 1 };
		struct stage {
			uint4 q[32], d[8];
		};
		struct fragment {
			uint4 q, d;
		};

		DEV constexpr int
		more(int, int)
		{
			return 0;
		}
		DEV void
		prefetch(stage &, const unsigned char *, const int (&)[PLANES], int)
		{
		}
		DEV void
		load(fragment &, const stage &, int)
		{
		}
		DEV constexpr int
		low(int t)
		{
			return t & 2;
		} /* sub-blocks of col and of col2 */
		DEV constexpr int
		high(int t)
		{
			return (t & 2) + 1;
		}
		DEV int
		col(int unit, int c, int t)
		{
			return unit * 128 + (t >> 1) * 64 + (t & 1) * 16 + c * 4;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return col(unit, c, t) + 32;
		}
		DEV constexpr float
		part(int, int i)
		{
			return i < 2 ? 1.0f : 0x1p-4f;
		}

		DEV void
		whole(unsigned (&b)[4], const fragment &u, int c)
		{
			const unsigned v = w_word(u.q, c);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				b[i] = v >> 8 * i & 0x000f000fu;
				b[2 + i] = v >> 8 * i & 0x00f000f0u;
			}
		}
	};
#endif
};

/* Extracts pair p of 16 from five words (formats/layout_packed.h). A word has three pairs, with 5
 * bits in both of its halves, and one bit of each value of the last pair. Pairs p = 3 k + 1 below
 * the 15th are returned multiplied by 32. */
DEV unsigned
w_five(const uint4 &q, unsigned more, int p)
{
	const unsigned w = p / 3 < 4 ? w_word(q, p / 3) : more, top = 0x80008000u;

	if (p < 15)
		return p % 3 == 0   ? w & 0x001f001fu
		       : p % 3 == 1 ? w & 0x03e003e0u
		                    : w >> 10 & 0x001f001fu;
	unsigned v = q.x & top;
	v = h2_select(q.y, top, v >> 1);
	v = h2_select(q.z, top, v >> 1);
	v = h2_select(q.w, top, v >> 1);
	return h2_select(more, top, v >> 1) >> 11;
}

/* Planes of q5_k: four words per sub-block, then fifth words, then heads. Unit u: sub-block u. */
template <int COLS_> struct w_k_fives {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		SPAN = 16,
		BLOCKS = COLS_ / 256,
		BLOCK = 256,
		PACKED = 1,
		BF16 = 0,
		HALVES = 1,
		HAS_MIN = 1,
		ZERO = 0
	};
	static constexpr int MORE = 128 * BLOCKS, HEAD = MORE + 32 * BLOCKS;
	static constexpr long long ROW = HEAD + 16 * BLOCKS;
	struct raw {
		uint4 q, head;
		unsigned more;
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
		return { w_read(row + 16 * u, again), w_read(row + HEAD + u / 8 * 16, again),
			 ld_v1(row + MORE + 4 * u) };
	}

	DEV void
	bytes(const raw &r, int u, int c, unsigned (&b)[2], float &d, float &m)
	{
		unsigned p[4];

		w_k_head(r.head, u % 8, d, m);
#pragma unroll
		for (int i = 0; i < 4; i++)
			p[i] = w_five(r.q, r.more, 4 * c + i) >>
			       (4 * c + i < 15 && (4 * c + i) % 3 == 1 ? 5 : 0);
		b[0] = __byte_perm(p[0], p[1], 0x6420);
		b[1] = __byte_perm(p[2], p[3], 0x6420);
	}

#if __CUDA_ARCH__ >= 800
	/* Lane t has sub-block t of the unit's four. */
	struct order {
		enum { PLANES = 3, SPLIT = 0, NIBBLES = 0, BATCH = 1 };
		struct stage {
			uint4 q[32], d[8];
			unsigned more[32];
		};
		struct fragment {
			uint4 q, d;
			unsigned more;
		};

		DEV constexpr int
		more(int unit, int t)
		{
			return MORE + unit * 16 + t * 4;
		}
		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane)
		{
			cp_async_4(&s.more[lane], row + (unsigned)at[2]);
		}
		DEV void
		load(fragment &u, const stage &s, int lane)
		{
			u.more = s.more[lane];
		}
		DEV constexpr int
		low(int t)
		{
			return t;
		}
		DEV constexpr int
		high(int t)
		{
			return t;
		}
		DEV int
		col(int unit, int c, int t)
		{
			return unit * 128 + t * 32 + c * 8;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return col(unit, c, t) + 4;
		}
		DEV constexpr float
		part(int c, int i)
		{
			return 4 * c + i < 15 && (4 * c + i) % 3 == 1 ? 0x1p-5f : 1.0f;
		}

		DEV void
		whole(unsigned (&b)[4], const fragment &u, int c)
		{
#pragma unroll
			for (int i = 0; i < 4; i++)
				b[i] = w_five(u.q, u.more, 4 * c + i);
		}
	};
#endif
};

#if __CUDA_ARCH__ >= 800
/* Stream of q4_k and q5_k (F). They differ in the order of their weights, F::order. */
template <class F> struct w_k_stream : F::order {
	typedef typename F::order O;
	enum {
		COLS = F::COLS,
		UNIT = 128,
		CHUNKS = 4,
		QUADS = 1,
		MINS = 1,
		TAIL = COLS % UNIT,
		PLANES = O::PLANES
	};
	static constexpr float GAIN = 1.0f, SUM = -1, UNDO = 0x1p48f;
	typedef typename O::stage stage;
	typedef typename O::fragment fragment;
	struct scale {
		unsigned d[2], mins;
	}; /* d[0]: for pairs with part() 1, d[1]: for other pairs; mins: of col and of col2 */

	DEV constexpr int
	offset(int plane, int unit, int t)
	{
		return plane == 0   ? unit * 64 + t * 16
		       : plane == 1 ? F::HEAD + (unit >> 1) * 16 + t * 4
		                    : O::more(unit, t);
	}

	/* A lane needs most of the block's head, so each lane of a quad copies a quarter of it. */
	DEV void
	prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
	         unsigned bytes)
	{
		cp_async_16_fill(&s.q[lane], row + (unsigned)at[0], bytes);
		cp_async_4((unsigned *)s.d + lane, row + (unsigned)at[1]);
		O::prefetch(s, row, at, lane);
	}

	DEV void
	load(fragment &u, const stage &s, int, int lane)
	{
		u.q = s.q[lane];
		u.d = s.d[lane >> 2];
		O::load(u, s, lane);
	}

	/* d and dmin */
	DEV unsigned
	factors(const fragment &u)
	{
		return u.d.x;
	}

	/* Scales times part() and times 2^10, so that multiplied by W_WHOLE they are normal halves;
	 * minima */
	DEV void
	scales(scale &s, const fragment &u, int unit, int t)
	{
		const bool second = unit & 1;
		const unsigned own = second ? 0x0f0f0f0fu : 0x3f3f3f3fu,
		               more = second ? 0x30303030u : 0, at = O::low(t) | O::high(t) << 8;
		const unsigned sc = ((second ? u.d.w : u.d.y) & own) | (u.d.y >> 2 & more);
		const unsigned mn = ((second ? u.d.w >> 4 : u.d.z) & own) | (u.d.z >> 2 & more);

		/* bytes in the low mantissa bits of 1024, minus 1024 */
		const unsigned both =
		    h2_add(__byte_perm(sc, 0x64646464u, 0x4040 + at), 0xe400e400u);
		s.mins = h2_add(__byte_perm(mn, 0x64646464u, 0x4040 + at), 0xe400e400u);
		s.d[0] = h2_mul(h2_twice(both), 0x64006400u);
		s.d[1] = h2_mul(h2_twice_hi(both), O::SPLIT == 1 ? 0x54005400u : 0x50005000u);
	}

	/* Lane t has sub-block t of the unit's four. Bytes of both rows are extracted together, 16
	 * bits apart, as subnormal halves. */
	DEV void
	add(float (&total)[2], const fragment (&u)[2], const float (&low)[2], const float (&)[2],
	    float2 x, int unit, int t)
	{
		const bool second = unit & 1;
		const unsigned own = second ? 0x000f000fu : 0x003f003fu,
		               more = second ? 0x00300030u : 0, at = 0x0400 + t * 0x0101;
		const unsigned y = __byte_perm(u[0].d.y, u[1].d.y, at),
		               z = __byte_perm(u[0].d.z, u[1].d.z, at),
		               w = __byte_perm(u[0].d.w, u[1].d.w, at);
		const unsigned sc = h2_select(second ? w : y, own, y >> 2 & more),
		               mn = h2_select(second ? w >> 4 : z, own, z >> 2 & more);

#pragma unroll
		for (int i = 0; i < 2; i++) {
			const unsigned d = factors(u[i]);
			total[i] =
			    fmaf(f16_lo(d), (i ? f16_hi(sc) : f16_lo(sc)) * low[i], total[i]);
			total[i] = fmaf(f16_hi(d), (i ? f16_hi(mn) : f16_lo(mn)) * x.x, total[i]);
		}
	}

	/* chunk<false>: weights times 2^-14, exact */
	template <bool WHOLE> DEV void
	chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int)
	{
		O::whole(b, u, c);
#pragma unroll
		for (int i = 0; i < 4; i++)
			b[i] = WHOLE ? b[i] : h2_mul(b[i], s.d[O::part(c, i) < 1]);
	}
};
#endif
template <int COLS> struct w_q4_k : w_bytes<w_k_fours<COLS>> {
#if __CUDA_ARCH__ >= 800
	typedef w_k_stream<w_k_fours<COLS>> stream;
#endif
};
template <int COLS> struct w_q5_k : w_bytes<w_k_fives<COLS>> {
#if __CUDA_ARCH__ >= 800
	typedef w_k_stream<w_k_fives<COLS>> stream;
#endif
};

/* Planes: low nibbles; two upper bits; signed scales of 16 sub-blocks of 16; f16 d. In each half of
 * a block, weights i, i + 32, i + 64 and i + 96 are the low and high nibbles of bytes i and i + 32.
 * Their upper bits share byte i of that plane. */
template <int COLS_> struct w_q6_k_planes {
	enum {
		COLS = COLS_,
		UNIT = 32,
		UNITS = COLS_ / 32,
		BLOCKS = COLS_ / 256,
		BLOCK = 256,
		PACKED = 1,
		BF16 = 0,
		HALVES = 2,
		HAS_MIN = 0,
		SPAN = 16,
		ZERO = 32
	};
	static constexpr int QH = 128 * BLOCKS, SCALES = QH + 64 * BLOCKS, D = SCALES + 16 * BLOCKS;
	static constexpr long long ROW = D + w_plane(BLOCKS, 2);

	DEV int
	width(int)
	{
		return 32;
	}

	/* four weights, from their nibbles and the upper bits number `part`, 0 to 3 */
	DEV unsigned
	four(unsigned q, unsigned h, int part)
	{
		return w_nibbles(q, part / 2) | (h >> 2 * part & 0x03030303u) << 4;
	}
	DEV float
	factor(unsigned d, unsigned scale)
	{
		return f16_lo(d) * (float)(signed char)scale;
	}
};

/* Unit u: 16 bytes of low nibbles, which are columns of group a (low) and a + 2 (high) of half a
 * block. */
template <int COLS> struct w_q6_k_units : w_q6_k_planes<COLS> {
	typedef w_q6_k_planes<COLS> P;
	enum { SPAN = 64 };
	struct raw {
		uint4 q, qh;
		unsigned d;
		int lo, hi;
	};

	DEV int
	column(int u, int i)
	{
		return u / 4 * 128 + u % 4 * 16 + (i < 16 ? i : i + 48);
	}

	DEV raw
	load(const unsigned char *row, int u)
	{
		const signed char *s = (const signed char *)row + P::SCALES + u / 4 * 8 + u % 4;
		raw r;
		r.q = ld_v4_stream(row + 16 * u);
		r.qh = ld_v4_stream(row + P::QH + u / 4 * 32 + u % 2 * 16);
		r.d = w_u16(row + P::D + u / 8 * 2);
		r.lo = s[0];
		r.hi = s[4];
		return r;
	}

	DEV void
	bytes(const raw &r, int u, int c, unsigned (&b)[2], float &d, float &m)
	{
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = P::four(w_word(r.q, c % 2 * 2 + e), w_word(r.qh, c % 2 * 2 + e),
			               u % 4 / 2 + c / 2 * 2);
		d = P::factor(r.d, c < 2 ? r.lo : r.hi);
		m = 0;
	}
};

/* Unit u: 32 neighbouring columns, which are the low or the high nibbles of 32 bytes. */
template <int COLS> struct w_q6_k_tile : w_q6_k_planes<COLS> {
	typedef w_q6_k_planes<COLS> P;
	struct raw {
		uint4 q[2], qh[2];
		unsigned d, scales;
	};

	DEV int
	column(int u, int i)
	{
		return u * 32 + i;
	}

	DEV raw
	load(const unsigned char *row, int u, bool again)
	{
		raw r;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			r.q[i] = w_read(row + u / 4 * 64 + u % 2 * 32 + i * 16, again);
			r.qh[i] = w_read(row + P::QH + u / 4 * 32 + i * 16, again);
		}
		r.scales = w_u16(row + P::SCALES + u * 2);
		r.d = w_u16(row + P::D + u / 8 * 2);
		return r;
	}

	DEV void
	bytes(const raw &r, int u, int c, unsigned (&b)[2], float &d, float &m)
	{
#pragma unroll
		for (int e = 0; e < 2; e++)
			b[e] = P::four(w_word(r.q[c / 2], c % 2 * 2 + e),
			               w_word(r.qh[c / 2], c % 2 * 2 + e), u % 4);
		d = P::factor(r.d, r.scales >> c / 2 * 8 & 255);
		m = 0;
	}
};

template <int COLS_> struct w_q6_k : w_bytes<w_q6_k_units<COLS_>> {
	typedef w_q6_k_planes<COLS_> P;
	typedef w_bytes<w_q6_k_tile<COLS_>> tile;

#if __CUDA_ARCH__ >= 800
	struct stream {
		enum {
			UNIT = 128,
			CHUNKS = 4,
			PLANES = 3,
			QUADS = 1,
			NIBBLES = 1,
			MINS = 0,
			SPLIT = 2,
			ADDS = 0,
			ZERO = 32,
			TAIL = COLS_ % UNIT,
			BATCH = 2
		};
		static constexpr float GAIN = W_GAIN, SUM = -32, UNDO = 0x1p24f;
		struct stage {
			uint4 q[32], h[16];
			unsigned s[32];
		};
		struct fragment {
			uint4 q, h;
			uint2 s;
			unsigned d;
		};
		typedef w_nibble_scale scale;

		DEV constexpr float
		part(int, int i)
		{
			return i < 2 ? 1.0f : 0x1p-4f;
		}

		/* plane 2: lanes 0 and 1 load two words of scales, lanes 2 and 3 the word that
		 * contains the block's d */
		DEV constexpr int
		offset(int plane, int unit, int t)
		{
			return plane == 0   ? unit * 64 + t * 16
			       : plane == 1 ? P::QH + unit * 32 + t * 8
			       : t < 2      ? P::SCALES + unit * 8 + t * 4
			                    : P::D + (unit >> 2) * 4;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			cp_async_16_fill(&s.q[lane], row + (unsigned)at[0], bytes);
			cp_async_8((uint2 *)s.h + lane, row + (unsigned)at[1]);
			cp_async_4(&s.s[lane], row + (unsigned)at[2]);
		}

		DEV void
		load(fragment &u, const stage &s, int unit, int lane)
		{
			u.q = s.q[lane];
			u.h = s.h[(lane >> 2) * 2 + (lane & 1)];
			u.s = *(const uint2 *)&s.s[lane & ~3];
			u.d = ((const unsigned short *)&s.s[(lane & ~3) + 2])[unit >> 1 & 1];
		}

		DEV int
		col(int unit, int c, int t)
		{
			return unit * 128 + t * 16 + c * 4;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return unit * 128 + 64 + t * 16 + c * 4;
		}

		DEV void
		scales(scale &s, const fragment &u, int, int t)
		{
			const float d = f16_lo(u.d) * GAIN;
			const float a = d * (float)(signed char)(u.s.x >> 8 * t),
			            b = d * (float)(signed char)(u.s.y >> 8 * t);

			s.d[0] = pack_f16(a, a);
			s.d[1] = pack_f16(b, b);
			s.m[0] = s.m[1] = 0;
		}

		DEV void
		add(float (&total)[2], const fragment (&u)[2], const float (&low)[2],
		    const float (&high)[2], float2 x, int, int t)
		{
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const float a = (float)(signed char)(u[i].s.x >> 8 * t),
				            b = (float)(signed char)(u[i].s.y >> 8 * t);
				total[i] =
				    fmaf(f16_lo(u[i].d), fmaf(a, low[i] + x.x, b * (high[i] + x.y)),
				         total[i]);
			}
		}

		template <bool WHOLE> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &s, int, int c, int t)
		{
			const unsigned one = WHOLE ? 0 : 0x64006400u, z = w_word(u.h, c) >> (t & 2);
			const unsigned low[2] = { h2_select(z << 4, 0x00300030u, one),
				                  h2_select(z >> 4, 0x00300030u, one) };
			const unsigned high[2] = { h2_select(z << 4, 0x03000300u, one),
				                   h2_select(z >> 4, 0x03000300u, one) };

			w_nibble_chunk<stream, WHOLE>(b, w_word(u.q, c), low, high, s);
		}
	};
#endif
};

#endif

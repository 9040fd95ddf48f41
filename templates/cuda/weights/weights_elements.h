/* Weights as elements: f32, f16 and bf16 (contract: cuda/weights/weights.h). A row is its columns
 * in order. */
#ifndef LLMC_CUDA_WEIGHTS_WEIGHTS_ELEMENTS_H
#define LLMC_CUDA_WEIGHTS_WEIGHTS_ELEMENTS_H

template <int COLS_, int SIZE> struct w_elements {
	enum {
		COLS = COLS_,
		UNIT = 16 / SIZE,
		UNITS = (COLS_ + UNIT - 1) / UNIT,
		SPAN = 16,
		BLOCK = 1,
		PACKED = 0
	};
	static constexpr long long ROW = (long long)COLS_ * SIZE;
	static constexpr bool WHOLE = ROW % 16 == 0;
	typedef uint4 raw;

	DEV int
	column(int u, int i)
	{
		return u * UNIT + i;
	}
	DEV int
	width(int u)
	{
		return WHOLE || u < UNITS - 1 ? (int)UNIT : COLS - u * UNIT;
	}

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

/* A lane has 8 neighbouring columns of 32 */
template <int COLS> struct w_halves : w_elements<COLS, 2> {
#if __CUDA_ARCH__ >= 800
	struct stream {
		enum {
			UNIT = 32,
			CHUNKS = 1,
			PLANES = 1,
			QUADS = 0,
			NIBBLES = 0,
			MINS = 0,
			TAIL = COLS % UNIT,
			BATCH = 4
		};
		static constexpr float GAIN = 1.0f;
		struct stage {
			uint4 q[32];
		};
		struct fragment {
			uint4 q;
		};
		struct scale {
		};

		DEV constexpr float
		part(int, int)
		{
			return 1.0f;
		}
		DEV constexpr int
		offset(int, int unit, int t)
		{
			return unit * 64 + t * 16;
		}

		DEV void
		prefetch(stage &s, const unsigned char *row, const int (&at)[PLANES], int lane,
		         unsigned bytes)
		{
			static_assert(TAIL % 8 == 0, "rows of whole 16 bytes");
			cp_async_16_fill(&s.q[lane], row + w_within<TAIL>(at[0], COLS * 2), bytes);
		}

		DEV void
		load(fragment &u, const stage &s, int, int lane)
		{
			u.q = s.q[lane];
		}
		DEV int
		col(int unit, int, int t)
		{
			return unit * 32 + t * 8;
		}
		DEV int
		col2(int unit, int c, int t)
		{
			return col(unit, c, t) + 4;
		}
		DEV void
		scales(scale &, const fragment &, int, int)
		{
		}
		template <bool> DEV void
		chunk(unsigned (&b)[4], const fragment &u, const scale &, int, int, int)
		{
			b[0] = u.q.x, b[1] = u.q.y, b[2] = u.q.z, b[3] = u.q.w;
		}
	};
#endif
};

template <int COLS> struct w_f32 : w_elements<COLS, 4> {
	enum { BF16 = 0 };
	DEV void
	decode(uint4 r, int, float (&v)[4])
	{
		v[0] = __uint_as_float(r.x), v[1] = __uint_as_float(r.y),
		v[2] = __uint_as_float(r.z), v[3] = __uint_as_float(r.w);
	}
};

template <int COLS> struct w_f16 : w_halves<COLS> {
	enum { BF16 = 0 };
	DEV void
	decode(uint4 r, int, float (&v)[8])
	{
		v[0] = f16_lo(r.x), v[1] = f16_hi(r.x), v[2] = f16_lo(r.y), v[3] = f16_hi(r.y);
		v[4] = f16_lo(r.z), v[5] = f16_hi(r.z), v[6] = f16_lo(r.w), v[7] = f16_hi(r.w);
	}
};

template <int COLS> struct w_bf16 : w_halves<COLS> {
	enum { BF16 = 1 };
	DEV void
	decode(uint4 r, int, float (&v)[8])
	{
		v[0] = bf16_lo(r.x), v[1] = bf16_hi(r.x), v[2] = bf16_lo(r.y), v[3] = bf16_hi(r.y);
		v[4] = bf16_lo(r.z), v[5] = bf16_hi(r.z), v[6] = bf16_lo(r.w), v[7] = bf16_hi(r.w);
	}
};

#endif

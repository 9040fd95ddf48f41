/* Integer GEMM for `activations: i8`. This file has stages of bytes for the tiles of
 * cuda/gemm/gemm.h, and multiplies by mma.sync m16n8k32 of signed bytes (m16n8k16 for scales per 16
 * columns).
 *
 *   per block of 32 columns (or half of one):
 *     i    = sum of q_w q_x                     exact, by the tensor cores
 *     acc  = fma(i d_w, d_x, acc)               one chain per result, in the order of the blocks
 *     acc  = fma(m_w, d_x sum of q_x, acc)      formats with minima
 *
 * q_x and d_x are a row's integers and its scales per 32 columns, as `activations: i8` defines them
 * on CPUs (cpu/gemm/quantize_act.h). Results of formats without minima have the same bits as on
 * CPUs. Results of formats with minima may differ, because CPUs add the minima in a second chain.
 *
 * Integer sums start at the bits of the float 1.5 * 2^23. Since |i| <= 32 * 128 * 127 < 2^22, the
 * result is the float 1.5 * 2^23 + i, without a conversion. The fma that multiplies by d_w also
 * subtracts 1.5 * 2^23 * d_w. That is exact if d_w has at most 19 significant bits, because 1.5 *
 * 2^23 has two. For scales with more bits (int8_full_scale), a separate instruction subtracts.
 *
 * A stage has 64 columns: BM rows of activations, then BN rows of weights, in the order of
 * gemm_chunk_offset for 32 elements of 16 bits. The scales of all stages follow the ring:
 * activations [BM][block], as in memory, then weights [block or half][BN]. ldmatrix of pairs of
 * bytes yields the fragments of m16n8k32.
 *
 * Issue slots per 32 columns of the large tile, per warp and 16 mma: 6 ldmatrix, 8 to 12 loads of
 * scales, 64 x 2 fma (64 x 3 with minima). Per mma this is 9 to 14 issue slots of a scheduler; the
 * tensor core takes 8 cycles on sm_80 and 16 on sm_86, sm_89 and sm_120a. With f16, the mma of the
 * same columns take 16 cycles, or 64 where fp32 sums run at half rate. */
#ifndef LLMC_CUDA_GEMM_GEMM_INT8_H
#define LLMC_CUDA_GEMM_GEMM_INT8_H

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/quantize_act.h"

/* IS is 1 if scales of the weights F have more than 19 significant bits. */
template <class F> struct int8_full_scale {
	enum { IS = 0 };
};

/* Quantised activations of n rows, in a kernel's scratch: bytes [n][COLS], then WORDS floats per
 * row and block of 32 columns. These are the scale, and the scale times the sum of the integers
 * (per half, if the weights have a minimum per half). If the number of blocks is odd, a block of
 * zeros follows the last one. */
template <class W> struct int8_rows {
	typedef typename W::tile F;
	enum {
		COLS = W::COLS,
		WORDS = F::HAS_MIN && F::HALVES == 2 ? 4 : 2,
		PADDED = (COLS + 63) / 64 * 64,
		SCALE_BYTES = PADDED / 32 * WORDS * 4
	};
	static_assert(COLS + SCALE_BYTES <= COLS * 2 + (128 - COLS % 128) % 128 * 2,
	              "rows fit the scratch of 16-bit activations");
	unsigned char *at;
	int n;

	__device__ __forceinline__ unsigned char *
	row(int t) const
	{
		return at + (long long)t * COLS;
	}
	__device__ __forceinline__ unsigned char *
	scales(int t) const
	{
		return at + (long long)n * COLS + (long long)t * SCALE_BYTES;
	}
};

/* Sum over the lanes that hold the same 16 columns (LANES 4) or 32 columns (LANES 8). */
template <int LANES> DEV int
int8_sum(int v)
{
#pragma unroll
	for (int i = 1; i < LANES; i *= 2)
		v += __shfl_xor_sync(0xffffffffu, v, i);
	return v;
}

/* Norms and quantises the CTA's row x to row t of `to`. *scale, the factor of the row's results, is
 * set to 1. */
template <class W, class NORM, class X> DEV void
quantize_act_int8(const X *x, const norm_vectors &norm, const quantize_act_gain<W, NORM> &gain,
                  const int8_rows<W> &to, int t, float *scale)
{
	SHARED(quantize_act_shared, s);
	typedef int8_rows<W> R;
	constexpr int N = quantize_act_groups<W>();
	float v[N][4];

	quantize_act_load<W, NORM>(x, norm, gain, s, v);
	if (threadIdx.x == 0)
		*scale = 1;
#pragma unroll
	for (int i = 0; i < N; i++) {
		const int k = ((int)threadIdx.x + i * GEMM_THREADS) * 4;
		unsigned top = 0; /* compared as integers, NaN is larger than infinity, and infinity
		                     larger than all other values */
#pragma unroll
		for (int c = 0; c < 4; c++)
			top = max(top, __float_as_uint(v[i][c]) & 0x7fffffffu);
#pragma unroll
		for (int l = 1; l < 8; l *= 2)
			top = max(top, __shfl_xor_sync(0xffffffffu, top, l));
		const float peak = __uint_as_float(top);
		const bool finite = top < 0x7f800000u, some = finite && !(peak < 1e-30f);
		const float inverse = some ? 127.0f / peak : 0.0f;
		const float d = some     ? __fmul_rn(peak, 1.0f / 127.0f)
		                : finite ? 0.0f
		                         : __uint_as_float(0x7fc00000u);
		unsigned bytes = 0;
		int sum = 0;
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const int q = some ? (int)rintf(__fmul_rn(v[i][c], inverse)) : 0;
			sum += q;
			bytes |= (unsigned)(q & 255) << 8 * c;
		}
		if (k < R::COLS)
			st_v1(to.row(t) + k, bytes);
		if constexpr (R::WORDS == 4) {
			const float half = __fmul_rn(d, (float)int8_sum<4>(sum));
			const float other = __shfl_xor_sync(0xffffffffu, half, 4);
			if (k < R::PADDED && threadIdx.x % 8 == 0)
				st_v4(to.scales(t) + k / 32 * 16,
				      make_uint4(__float_as_uint(d), __float_as_uint(half),
				                 __float_as_uint(other), 0));
		} else {
			const float all = __fmul_rn(d, (float)int8_sum<8>(sum));
			if (k < R::PADDED && threadIdx.x % 8 == 0)
				st_v2(to.scales(t) + k / 32 * 8,
				      make_uint2(__float_as_uint(d), __float_as_uint(all)));
		}
	}
}

/* Configuration of an integer GEMM. The members have the meaning that they have in gemm_config. One
 * CTA runs per SM. */
template <class W_, int ROWS_, int SHARE_ = 1> struct gemm_int8_config {
	typedef W_ W;
	typedef typename W::tile F;
	enum {
		ROWS = ROWS_,
		COLS = W::COLS / 2, /* pairs of bytes */
		SHARE = SHARE_,
		SOURCE = GEMM_INT8,
		BLOCKS = 1,
		SHARED = 98304,
		SUBS = 2 * F::HALVES, /* number of scales of a row of weights per stage */
		W_WORDS =
		    1 +
		    F::HAS_MIN, /* floats per scale: the scale, and the minimum if there is one */
		X_WORDS = int8_rows<W>::WORDS
	};
	static_assert(F::SPAN == 16 || F::HALVES == 1, "a unit has whole halves of blocks");

	template <int BM, int BN> DEV constexpr int
	scale_bytes()
	{
		return BM * 8 * X_WORDS + BN * 4 * SUBS * W_WORDS;
	}
	template <int BM, int BN> DEV constexpr int
	stages()
	{
		constexpr int N = SHARED / ((BM + BN) * 64 + scale_bytes<BM, BN>());
		return N < 4 ? N : 4;
	}
	typedef gemm_tile<64, 64, 32, 32, 16, stages<64, 64>()> middle;
	typedef middle small;
	typedef gemm_tile<128, 128, 32, 64, 32, stages<128, 128>()> large;
	static_assert(large::STAGES >= 2, "shared memory");
};

/* Weights of a tile as signed bytes. A thread handles units of 32 weights; neighbouring units form
 * a pair. */
template <class G, class T> struct gemm_int8_weights {
	typedef typename G::F F;
	enum { UNITS = T::BN * 2 };
	const unsigned char *row;
	int r, u, unit; /* r: row of the tile; u: unit within the stage; unit: unit within the row
	                   of the matrix */
	typename F::raw raw;

	__device__ __forceinline__
	gemm_int8_weights(const w_matrix<typename G::W> &w, int n0)
	    : r((int)threadIdx.x / 2), u((int)threadIdx.x % 2), unit(0)
	{
		row = w.row(min(n0 + gemm_column<G, T>(r), G::ROWS - 1)) +
		      (gemm_second<G, T>(r) ? w.half : 0);
	}

	__device__ __forceinline__ bool
	mine() const
	{
		return UNITS == GEMM_THREADS || (int)threadIdx.x < UNITS;
	}
	__device__ __forceinline__ bool
	in_range() const
	{
		return G::W::COLS % 64 == 0 || unit < F::UNITS;
	}

	__device__ __forceinline__ void
	load(int k0)
	{
		unit = k0 / 32 + u;
		if (mine() && in_range())
			raw = F::load(row, unit, true);
	}

	DEV unsigned
	signed_bytes(unsigned b)
	{
		return F::ZERO == 0 ? b : (b + (128 - F::ZERO) * 0x01010101u) ^ 0x80808080u;
	}

	/* Stores 16 weights of the unit, and their scale if this thread has it. */
	__device__ __forceinline__ void
	half(unsigned char *to, float *scales, int h) const
	{
		unsigned q[4] = { 0, 0, 0, 0 };
		float d = 0, m = 0;

		if (in_range())
#pragma unroll
			for (int c = 0; c < 2; c++) {
				unsigned b[2];
				F::bytes(raw, unit, 2 * h + c, b, d, m);
				q[2 * c] = signed_bytes(b[0]);
				q[2 * c + 1] = signed_bytes(b[1]);
			}
		st_v4(to + gemm_chunk_offset<T>(r, F::column(u, 16 * h) / 16),
		      make_uint4(q[0], q[1], q[2], q[3]));
		if (F::HALVES == 2 || h == (F::SPAN == 32 ? u : 0)) {
			float *const at =
			    scales + ((F::HALVES == 2 ? 2 * u + h : u) * T::BN + r) * G::W_WORDS;
			at[0] = d;
			if (F::HAS_MIN)
				at[G::W_WORDS - 1] = m;
		}
	}

	__device__ __forceinline__ void
	store(unsigned char *to, float *scales) const
	{
		if (!mine())
			return;
		half(to, scales, 0);
		half(to, scales, 1);
	}
};

/* Copies the scales of a stage's activations; rows past n get zeros. */
template <class G, class T> DEV void
gemm_int8_scales(const int8_rows<typename G::W> &x, unsigned char *to, int m0, int n, int step)
{
	constexpr int CHUNKS = G::X_WORDS / 2; /* 16-byte chunks per row */

#pragma unroll
	for (int i = (int)threadIdx.x; i < T::BM * CHUNKS; i += GEMM_THREADS) {
		const int r = i / CHUNKS, c = i % CHUNKS;
		cp_async_16_fill(to + i * 16, x.scales(m0 + r) + (step * CHUNKS + c) * 16,
		                 m0 + r < n ? 16 : 0);
	}
}

template <class G, class T> struct gemm_stages<G, T, GEMM_INT8> {
	typedef typename G::W W;
	typedef typename G::F F;
	static constexpr int STEPS = (W::COLS + 63) / 64, X_SCALES = T::BM * 8 * G::X_WORDS,
	                     SCALES = G::template scale_bytes<T::BM, T::BN>();
	static constexpr float START = 12582912.0f;
	unsigned char *smem;

	__device__ __forceinline__ explicit gemm_stages(unsigned char *smem) : smem(smem) {}
	__device__ __forceinline__ void
	end()
	{
	}
	__device__ __forceinline__ unsigned char *
	scales(int s) const
	{
		return smem + T::BYTES + s * SCALES;
	}

	/* Adds i d_w d_x to acc, for the four sums of an mma. */
	DEV void
	add(float (&acc)[4], const int (&i)[4], const float (&d)[2], const float (&x)[2])
	{
#pragma unroll
		for (int c = 0; c < 4; c++) {
			const float v =
			    int8_full_scale<F>::IS
			        ? __fmul_rn(__int_as_float(i[c]) - START, d[c & 1])
			        : fmaf(__int_as_float(i[c]), d[c & 1], __fmul_rn(d[c & 1], -START));
			acc[c] = fmaf(v, x[c >> 1], acc[c]);
		}
	}
	DEV void
	add_min(float (&acc)[4], const float (&m)[2], const float (&sum)[2])
	{
#pragma unroll
		for (int c = 0; c < 4; c++)
			acc[c] = fmaf(m[c & 1], sum[c >> 1], acc[c]);
	}

	/* Scales and minima of a lane's columns, for block (or half) `sub` */
	DEV void
	of_columns(const unsigned char *at, int sub, int n, float (&d)[2], float (&m)[2])
	{
		const unsigned char *p = at + X_SCALES + (sub * T::BN + n) * 4 * G::W_WORDS;

		if constexpr (F::HAS_MIN) {
			const uint4 v = ld_v4(p);
			d[0] = __uint_as_float(v.x), m[0] = __uint_as_float(v.y);
			d[1] = __uint_as_float(v.z), m[1] = __uint_as_float(v.w);
		} else {
			const uint2 v = ld_v2(p);
			d[0] = __uint_as_float(v.x), d[1] = __uint_as_float(v.y);
			m[0] = m[1] = 0;
		}
	}

	/* Scale and sums (per half) of row m, for block b */
	DEV void
	of_row(const unsigned char *at, int m, int b, float &d, float (&sum)[2])
	{
		const unsigned char *p = at + (m * 2 + b) * 4 * G::X_WORDS;

		if constexpr (G::X_WORDS == 4) {
			const uint4 v = ld_v4(p);
			d = __uint_as_float(v.x);
			sum[0] = __uint_as_float(v.y), sum[1] = __uint_as_float(v.z);
		} else if constexpr (F::HAS_MIN) {
			const uint2 v = ld_v2(p);
			d = __uint_as_float(v.x);
			sum[0] = sum[1] = __uint_as_float(v.y);
		} else {
			d = __uint_as_float(ld_v1(p));
			sum[0] = sum[1] = 0;
		}
	}

	DEV void
	multiply(const unsigned char *stage, const unsigned char *at, int wm, int wn,
	         float (&acc)[T::MT][T::NT][4])
	{
		const int lane = (int)lane_id();
		const int ra = wm * T::WM + (lane & 15), ca = lane >> 4;
		const int rb = wn * T::WN + (lane & 7) + (lane >> 4 << 3), cb = lane >> 3 & 1;
		const int start[4] = { 0x4b400000, 0x4b400000, 0x4b400000, 0x4b400000 };

#pragma unroll 1 /* if unrolled, ptxas hoists loads until registers spill */
		for (int b = 0; b < 2; b++) {
			unsigned w[T::NT][2];
			float d[F::HALVES][T::NT][2], m[F::HALVES][T::NT][2];
#pragma unroll
			for (int j = 0; j < T::NT; j++) {
#pragma unroll
				for (int h = 0; h < F::HALVES; h++)
					of_columns(at, b * F::HALVES + h,
					           wn * T::WN + j * 8 + (lane & 3) * 2, d[h][j],
					           m[h][j]);
				if (j % 2)
					continue;
				unsigned r[4];
				ldmatrix_x4(r, stage + T::A_BYTES +
				                   gemm_chunk_offset<T>(rb, 2 * b + cb) +
				                   j * 8 * 64);
				w[j][0] = r[0];
				w[j][1] = r[1];
				w[j + 1][0] = r[2];
				w[j + 1][1] = r[3];
			}
#pragma unroll
			for (int i = 0; i < T::MT; i++) {
				unsigned a[4];
				float x[2], sum[2][2], of[2];
				ldmatrix_x4(a, stage + gemm_chunk_offset<T>(ra, 2 * b + ca) +
				                   i * 16 * 64);
#pragma unroll
				for (int h = 0; h < 2; h++) {
					of_row(at, wm * T::WM + i * 16 + h * 8 + (lane >> 2), b,
					       x[h], of);
					sum[0][h] = of[0];
					sum[1][h] = of[1];
				}
#pragma unroll
				for (int j = 0; j < T::NT; j++) {
					int t[4];
					if constexpr (F::HALVES == 1) {
						mma_s8_m16n8k32(t, a, w[j], start);
						add(acc[i][j], t, d[0][j], x);
						if (F::HAS_MIN)
							add_min(acc[i][j], m[0][j], sum[0]);
					} else {
#pragma unroll
						for (int h = 0; h < 2; h++) {
							const unsigned ah[2] = { a[2 * h],
								                 a[2 * h + 1] },
							               wh[1] = { w[j][h] };
							mma_s8_m16n8k16(t, ah, wh, start);
							add(acc[i][j], t, d[(F::HALVES - 1) & h][j],
							    x);
							if (F::HAS_MIN)
								add_min(acc[i][j],
								        m[(F::HALVES - 1) & h][j],
								        sum[h]);
						}
					}
				}
			}
		}
	}

	__device__ __forceinline__ void
	mainloop(const gemm_operands<W> &in, int m0, int n0, int wm, int wn,
	         float (&acc)[T::MT][T::NT][4])
	{
		const int8_rows<W> x = { (unsigned char *)in.act, in.n };
		gemm_int8_weights<G, T> weights(in.w, n0);
		gemm_activations<G, T> rows(in.act, m0, in.n);

		__syncthreads(); /* all warps have read the last tile */
#pragma unroll
		for (int s = 0; s < T::STAGES - 1; s++) {
			if (s < STEPS) {
				unsigned char *stage = smem + s * T::STAGE_BYTES;
				rows.prefetch(stage, s * T::BK);
				gemm_int8_scales<G, T>(x, scales(s), m0, in.n, s);
				weights.load(s * 64);
				weights.store(stage + T::A_BYTES, (float *)(scales(s) + X_SCALES));
			}
			cp_async_commit();
		}
		int at = 0, into = T::STAGES - 1;
#pragma unroll 1
		for (int step = 0; step < STEPS; step++) {
			cp_async_wait<T::STAGES - 2>();
			__syncthreads();
			unsigned char *stage = smem + into * T::STAGE_BYTES;
			const int next = step + T::STAGES - 1;
			if (next < STEPS) {
				rows.prefetch(stage, next * T::BK);
				gemm_int8_scales<G, T>(x, scales(into), m0, in.n, next);
				weights.load(next * 64);
			}
			cp_async_commit();
			multiply(smem + at * T::STAGE_BYTES, scales(at), wm, wn, acc);
			if (next < STEPS)
				weights.store(stage + T::A_BYTES,
				              (float *)(scales(into) + X_SCALES));
			at = at + 1 == T::STAGES ? 0 : at + 1;
			into = into + 1 == T::STAGES ? 0 : into + 1;
		}
		cp_async_wait_all();
	}
};

#endif

/* Experts in prefill or a large batch: grouped GEMMs on tensor cores, with the tiles of
 * cuda/gemm/gemm.h.
 *
 *   sort           id --> slots: pairs of a row and an expert, by expert (cuda/moe/moe_sort.h)
 *   quantize_act   x --> act: rows in 16 bits at their slots; those of an expert are contiguous
 *   up             per expert: act (gate, up)^T --> act(gate) * up --> h, in 16 bits
 *   down           per expert: h down^T --> z, in the order of pairs
 *   main           y = sum of a row's z times their weights, in the order of experts
 *
 * The tile scheduler iterates over (expert, tile). The rows of an expert form as many full tiles of
 * 128 as possible; the remaining rows use a tile of 16, 64 or 128. All large tiles run first, then
 * the middle ones, then the small ones, so that CTAs end together. An expert without rows has no
 * tile, and its weights are not read. Weights of other experts are read once per 128 rows (bands of
 * 8 tiles along M share them in L2).
 *
 * h has the 16-bit type of down's weights. f16 needs a power-of-two scale, which must be known
 * before the row is complete. h is roughly the gate result times the up result, so the scale of
 * its row is the square of that of the row of x (moe_h_scale). If x is larger by 2^n, the mantissa
 * bits of h stay the same. In models with normed x, the largest element of h is then about 2^-4 ..
 * 2^4. This is 2^11 below the f16 maximum, and 2^10 above loss of precision. Larger values are
 * clamped at 65504.
 *
 * Bytes in addition to the weights, per pair: act 2 H written and read, h 2 F, z 4 H. */
#ifndef LLMC_CUDA_MOE_MOE_GEMM_H
#define LLMC_CUDA_MOE_MOE_GEMM_H

#include "cuda/gemm/gemm.h"
#include "cuda/lora/lora.h"
#include "cuda/gemm/quantize_act.h"
#include "cuda/moe/moe.h"
#include "cuda/moe/moe_sort.h"

/* gemm_config with cp.async on every GPU: the rows of an expert may begin anywhere, while boxes of
 * tensor maps may not. The tile scheduler over experts needs registers. Weights that are unpacked
 * would then spill at 128 registers, so they get more. */
template <class W, int ROWS, int ARCH, int SHARE = 1> struct moe_gemm_config
    : gemm_config<W, ROWS, ARCH, SHARE> {
	enum { TMA = 0, BLOCKS = W::PACKED ? 1 : 2 };
};

/* Returns the scale factor of a row's h. x: scale of the row of x, a power of two (about the row's
 * largest element divided by 2^13 .. 2^14) */
template <class X, class H> DEV float
moe_h_scale(float x)
{
	const float s = fminf(fmaxf(x, 8.8817842e-16f), 1.1258999e15f); /* 2^-50 .. 2^50 */

	return H::BF16 ? 1.0f : X::BF16 ? 16.0f : s * s * 16777216.0f;
}

/* Divides two values of h by the scale of their row and packs them. */
template <class H> DEV unsigned
moe_h_pack(float a, float b, float scale)
{
	if (H::BF16)
		return pack_bf16(a, b);
	/* s: 1 / scale, a power of two */
	const float s = __uint_as_float((254u << 23) - __float_as_uint(scale)), most = 65504.0f;
	return pack_f16(fminf(fmaxf(a * s, -most), most), fminf(fmaxf(b * s, -most), most));
}

/* Layout of rows of COLS 16-bit values: row-major */
template <int COLS> struct moe_row_major {
	unsigned short *at;
	__device__ __forceinline__
	moe_row_major(void *rows, int t, int)
	    : at((unsigned short *)rows + (long long)t * COLS)
	{
	}
	__device__ __forceinline__ unsigned short *
	operator+(int k) const
	{
		return at + k;
	}
};

/* Returns the bias of expert e, or NULL. b has ROWS elements per expert. */
template <int ROWS> DEV const float *
moe_bias(const float *b, int e)
{
	return b ? b + (long long)e * ROWS : 0;
}

/* h = F(v + vb, u + ub) for one expert, where v is gate and u is up. vb, ub: biases of the expert,
 * or NULL; rows: h of the expert's first row; n: number of rows; PLACE: layout of h; scale [n] */
template <class W, int WIDTH, float (*F)(float, float), class PLACE> struct moe_glu {
	void *rows;
	const float *scale;
	int n;
	const float *vb, *ub;
	template <int OUT> __device__ __forceinline__ void
	prefetch(int, int) const
	{
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int col, float (&v)[N][C], float (&u)[N][C]) const
	{
		const PLACE to(rows, m, n);
		const float s = W::BF16 ? 1.0f : scale[m];

		gemm_bias<WIDTH>(vb, col, v);
		gemm_bias<WIDTH>(ub, col, u);
#pragma unroll
		for (int j = 0; j < N; j++) {
			const int k = col + 4 * C * j;
			unsigned p[C / 2];
#pragma unroll
			for (int c = 0; c < C; c += 2)
				p[c / 2] = moe_h_pack<W>(F(v[j][c], u[j][c]),
				                         F(v[j][c + 1], u[j][c + 1]), s);
			if (k >= WIDTH)
				continue;
			if constexpr (C == 4)
				st_v2(to + k, make_uint2(p[0], p[1]));
			else
				st_v1(to + k, p[0]);
		}
	}
};

/* z + b for the pairs of one expert. pair [n]; b: bias of the expert, or NULL */
template <int WIDTH> struct moe_scatter {
	float *z;
	const int *pair;
	const float *b;
	template <int OUT> __device__ __forceinline__ void
	prefetch(int, int) const
	{
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int col, float (&v)[N][C], float (&)[N][C]) const
	{
		float *to = z + (long long)pair[m] * WIDTH;

		gemm_bias<WIDTH>(b, col, v);
#pragma unroll
		for (int j = 0; j < N; j++)
			gemm_write<WIDTH>(to, col + 4 * C * j, v[j]);
	}
};

/* h = F(v + vb, u + ub), in the activation type Y, for expert e. Choice k of row t is stored at h[t
 * * STRIDE + k * WIDTH]. The expert's pairs begin at pair[first]; pair NULL: the shared expert,
 * which follows the K choices. vb, ub: biases of all experts, or NULL; add: terms that adapters
 * add, per pair. Addresses that depend on e are computed here, after the mainloop, because the
 * mainloop has no registers for them. */
template <int WIDTH, int K, int STRIDE, int WIDE, float (*F)(float, float), class Y,
          class ADD = moe_added_none> struct moe_glu_rows {
	Y *h;
	const int *pair;
	int first, e;
	const float *vb, *ub;
	ADD add;
	template <int OUT> __device__ __forceinline__ void
	prefetch(int, int) const
	{
	}
	template <int N, int C> __device__ __forceinline__ void
	store(int m, int col, float (&v)[N][C], float (&u)[N][C]) const
	{
		const int own = pair ? pair[first + m] : 0, t = pair ? own / K : m,
		          k = pair ? own % K : K;
		Y *to = h + (long long)t * STRIDE + k * WIDTH;

		gemm_bias<WIDE>(moe_bias<WIDTH>(vb, e), col, v);
		gemm_bias<WIDE>(moe_bias<WIDTH>(ub, e), col, u);
		if constexpr (!same_type<ADD, moe_added_none>::value) {
			const float *const a = add.of(own);
			gemm_bias<WIDE>(a, col, v);
			gemm_bias<WIDE>(a ? a + WIDTH : 0, col, u);
		}
#pragma unroll
		for (int j = 0; j < N; j++) {
#pragma unroll
			for (int c = 0; c < C; c++)
				v[j][c] = F(v[j][c], u[j][c]);
			gemm_write<WIDE>(to, col + 4 * C * j, v[j]);
		}
	}
};

/* Operands of a grouped GEMM, which has one problem per expert. Rows of act [pairs, W::COLS] and
 * their scales are sorted by expert. Matrices of ROWS rows are stacked. PAIR: there are two stacks,
 * gate and up. maps: tensor maps of the weights, for kernels that use them */
template <class W_, int E_, int ROWS_, int PAIR> struct moe_grouped_operands {
	typedef W_ W;
	enum { E = E_, ROWS = ROWS_ };
	const void *first, *second;
	const int *range;
	const unsigned short *act;
	const float *scale;
	const tensor_map *maps;

	__device__ __forceinline__ const int *
	counts() const
	{
		return range + E;
	}
	__device__ __forceinline__ gemm_operands<W>
	operands(int e) const
	{
		const long long at = range[e], skip = (long long)e * ROWS * W::ROW;
		const unsigned char *w = (const unsigned char *)first + skip;

		return { act + at * W::COLS,
			 scale + at,
			 PAIR ? w_pair<W>(w, (const unsigned char *)second + skip, ROWS)
			      : w_matrix<W>(w, ROWS),
			 range[E + e],
			 maps,
			 e * ROWS };
	}
};

/* Operands and epilogue of a grouped GEMM. Results are, in this order of the structs: h in 16 bits
 * in the layout PLACE; h in rows of type Y; z in the order of pairs. */
template <class W, class DOWN, int E, int F, float (*ACT)(float, float),
          class PLACE> struct moe_up_gemm : moe_grouped_operands<W, E, F, 1> {
	typedef moe_glu<DOWN, F, ACT, PLACE> epilogue;
	unsigned short *h;
	const float *h_scale, *gate_b, *up_b;
	__device__ __forceinline__ epilogue
	store(int e) const
	{
		const long long at = this->range[e];
		return { h + at * F, h_scale + at, this->range[E + e], moe_bias<F>(gate_b, e),
			 moe_bias<F>(up_b, e) };
	}
};

template <class W, int E, int K, int F, int STRIDE, float (*ACT)(float, float), class Y,
          class ADD> struct moe_glu_gemm : moe_grouped_operands<W, E, F, 1> {
	typedef moe_glu_rows<F, K, STRIDE, F, ACT, Y, ADD> epilogue;
	Y *h;
	const int *pair;
	const float *gate_b, *up_b;
	ADD add;
	__device__ __forceinline__ epilogue
	store(int e) const
	{
		return { h, pair, this->range[e], e, gate_b, up_b, add };
	}
};

template <class W, int E, int H> struct moe_down_gemm : moe_grouped_operands<W, E, H, 0> {
	typedef moe_scatter<H> epilogue;
	float *z;
	const int *pair;
	const float *down_b;
	__device__ __forceinline__ epilogue
	store(int e) const
	{
		return { z, pair + this->range[e], moe_bias<H>(down_b, e) };
	}
};

/* Norms row x of the pair in slot `at`, and rounds it to this slot of act [pairs, W::COLS], where
 * rows are sorted by expert. PLACE: as in moe_glu */
template <class W, int E, class NORM, class PLACE, class X> DEV void
moe_quantize_act(const X *x, const norm_vectors &norm, int at, int e, const int *range,
                 unsigned short *act, float *scale)
{
	const int first = range[e];

	quantize_act_row<W, NORM>(
	    x, norm, PLACE(act + (long long)first * W::COLS, at - first, range[E + e]), scale + at);
}

/* Number of tiles of BM rows for an expert with `count` rows. After full tiles of 128, the
 * remaining rows use the smallest tile that holds them. */
template <int BM, int ACROSS> struct moe_tiles {
	DEV int
	of(int count)
	{
		const int tail = count & 127;
		return ACROSS * (BM == 128  ? (count >> 7) + (tail > 64)
		                 : BM == 64 ? tail > 16 && tail <= 64
		                            : tail > 0 && tail <= 16);
	}
};

/* Runs all tiles of shape T of a grouped GEMM. before: number of tiles of other shapes that ran
 * before; with it, the load of CTAs stays even. Returns the sum of both numbers of tiles. */
template <class G, class T, class P> DEV int
moe_gemm_tile_loop(unsigned char *smem, const P &of, int before)
{
	constexpr int OUT = T::BN / G::SHARE, ACROSS = (G::ROWS + OUT - 1) / OUT;
	gemm_stages<G, T> stages(smem);
	moe_tile_scheduler<P::E, moe_tiles<T::BM, ACROSS>> scheduler;
	const int grid = (int)gridDim.x;
	int e, at;

#pragma unroll 1
	for (int t = ((int)blockIdx.x + grid - before % grid) % grid;
	     scheduler.find(of.counts(), t, e, at); t += grid) {
		const gemm_operands<typename G::W> in = of.operands(e);
		const int high = T::BM == 128 ? (in.n >> 7) + ((in.n & 127) > 64)
		                              : 1; /* number of tiles along M */
		const int band = at / (8 * ACROSS), local = at - band * (8 * ACROSS),
		          height = min(high - band * 8, 8);
		const int m0 = T::BM == 128 ? (band * 8 + local % height) * 128 : in.n & ~127;
		const int n0 = local / height * OUT;
		const typename P::epilogue epilogue = of.store(e);
		const int wm = (int)warp_id() / T::WARPS_N, wn = (int)warp_id() % T::WARPS_N;
		float acc[T::MT][T::NT][4];
		gemm_clear<T>(acc);
		stages.mainloop(in, m0, n0, wm, wn, acc);
		gemm_epilogue<G, T>(acc, in, m0, n0, wm, wn, epilogue);
	}
	return before + scheduler.before;
}

/* Runs all tiles of a grouped GEMM and returns the number of tiles. */
template <class G, class P> DEV int
moe_gemm(const P &of)
{
	SHARED_BYTES(smem);

	const int large = moe_gemm_tile_loop<G, typename G::large>(smem, of, 0),
	          middle = moe_gemm_tile_loop<G, typename G::middle>(smem, of, large);
	return moe_gemm_tile_loop<G, typename G::small>(smem, of, middle);
}

/* Runs the GEMM of the shared expert, which has all rows, after those of the routed experts.
 * before: number of tiles of the routed experts */
template <class G, class T, class E> DEV void
moe_gemm_tiles(const gemm_operands<typename G::W> &in, const E &e, int before)
{
	SHARED_BYTES(smem);
	gemm_stages<G, T> stages(smem);

	gemm_tile_loop(stages, in, e, before);
}

template <class G, class E> DEV void
moe_gemm_shared(const gemm_operands<typename G::W> &in, const E &e, int before)
{
	if (in.n <= 16)
		moe_gemm_tiles<G, typename G::small>(in, e, before);
	else if (in.n <= 64)
		moe_gemm_tiles<G, typename G::middle>(in, e, before);
	else
		moe_gemm_tiles<G, typename G::large>(in, e, before);
}

/* y [n, H] = scale * r + the sum of weight [n, K + SHARED_GATE] * z [n * K, H] in the order of
 * experts, + the shared expert's row (SHARED). Rows of the shared expert follow those of all pairs;
 * with SHARED_GATE its weight is the last of a row. r may be NULL. blockIdx.x: row; blockIdx.y:
 * chunk of 1024 columns */
template <int H, int K, int SHARED_, int SHARED_GATE> DEV void
moe_sum(const int *id, const float *weight, const float *z, const float *r, float scale, float *y,
        int n)
{
	struct Shared {
		int order[K];
	};
	SHARED(Shared, s);
	const int t = (int)blockIdx.x, c = ((int)blockIdx.y * 256 + (int)threadIdx.x) * 4;

	if (t >= n)
		return;
	moe_order<K>(id + (long long)t * K, s.order);
	__syncthreads();
	if (c >= H)
		return;
	float sum[4] = { 0, 0, 0, 0 };
	if (r) {
		gemm_read<H>(r + (long long)t * H, c, sum);
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i] *= scale;
	}
	for (int k = 0; k < K + SHARED_; k++) {
		const int at = k < K ? s.order[k] : K;
		if (at < 0)
			continue;
		const float w =
		    k < K || SHARED_GATE ? weight[(long long)t * (K + SHARED_GATE) + at] : 1.0f;
		float v[4];
		gemm_read<H>(z + (k < K ? (long long)t * K + at : (long long)n * K + t) * H, c, v);
#pragma unroll
		for (int i = 0; i < 4; i++)
			sum[i] = fmaf(w, v[i], sum[i]);
	}
	gemm_write<H>(y + (long long)t * H, c, sum);
}

#endif

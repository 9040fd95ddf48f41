/* Experts of a prompt or a large batch: grouped products on tensor cores, by the tiles of
 * cuda/gemm/gemm.h.
 *
 *   sort   id --> places: pairs of a row and an expert, by expert (cuda/moe/moe_sort.h)
 *   prep   x --> act: rows in 16 bits at their places, so that an expert's rows are neighbours
 *   up     for each expert: act (gate, up)^T --> act(gate) * up --> h, in 16 bits
 *   down   for each expert: h down^T --> z, at the pair's own place
 *   main   y = sum of a row's z times their weights, in the order of experts
 *
 * moe_gemm walks over (expert, tile): of an expert's rows as many tiles of 128 as are full, and one
 * of 16, 64 or 128 for what is left. All large ones come first, then the middle, then the small, so
 * that blocks end together. An expert that nobody chose has no tile, and its weights are not read;
 * others are read once for each 128 rows (bands of 8 tiles of rows share them in L2).
 *
 * h has the 16 bits that down's weights ask for. Half floats want a power of two, which must be
 * known before the row is: h is about a product of two results, so it is taken from the row of x,
 * squared (moe_h_scale): a row that is larger by 2^n has h in the same digits. Its largest element
 * then comes to about 2^-4 .. 2^4 in models with normed x, 2^11 below what f16 holds and 2^10 above
 * where it loses digits; what is beyond is cut off at 65504.
 *
 * Bytes beside the weights, for each pair: act 2 H written and read, h 2 F, z 4 H. */
#ifndef LLMC_CUDA_MOE_MOE_GEMM_H
#define LLMC_CUDA_MOE_MOE_GEMM_H

#include "cuda/gemm/gemm.h"
#include "cuda/lora/lora.h"
#include "cuda/gemm/quantize_act.h"
#include "cuda/moe/moe.h"
#include "cuda/moe/moe_sort.h"

/* gemm_config by cp.async on every GPU: experts' rows begin anywhere, tensor maps' boxes do not.
 * The way over experts costs registers: ptxas spills at 128 where weights are unpacked */
template <class W, int ROWS, int ARCH, int SHARE = 1> struct moe_gemm_config
    : gemm_config<W, ROWS, ARCH, SHARE> {
	enum { TMA = 0, BLOCKS = W::PACKED ? 1 : 2 };
};

/* What h of a row is to be multiplied by, for the scale of its x (a power of two: 1 / 2^13 .. 1 /
 * 2^14 of the largest element) */
template <class X, class H> DEV float
moe_h_scale(float x)
{
	const float s = fminf(fmaxf(x, 8.8817842e-16f), 1.1258999e15f); /* 2^-50 .. 2^50 */

	return H::BF16 ? 1.0f : X::BF16 ? 16.0f : s * s * 16777216.0f;
}

/* Two values of h, by what their row's scale says */
template <class H> DEV unsigned
moe_h_pack(float a, float b, float scale)
{
	if (H::BF16)
		return pack_bf16(a, b);
	const float s = __uint_as_float((254u << 23) - __float_as_uint(scale)),
	            most = 65504.0f; /* 1 / scale */
	return pack_f16(fminf(fmaxf(a * s, -most), most), fminf(fmaxf(b * s, -most), most));
}

/* Rows of COLS 16-bit values as they are */
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

/* Of a bias of ROWS elements an expert, or NULL, expert e's */
template <int ROWS> DEV const float *
moe_bias(const float *b, int e)
{
	return b ? b + (long long)e * ROWS : 0;
}

/* h = F(v + vb, u + ub): v gate, u up, of one expert, whose biases are vb and ub, or NULL. rows: h
 * of its first row; n rows; PLACE: where values stand; scale [n] */
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

/* z + b of one expert's pairs; pair [n]; b: its bias, or NULL */
template <int WIDTH> struct moe_spread {
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

/* h = F(v + vb, u + ub) as steps hold it (Y), of row t and its choice k at h[t * APART + k *
 * WIDTH], of expert e; its pairs from pair[first] on, or pair NULL: the shared one, behind the K
 * choices; vb, ub: biases of all experts, or NULL; add: what adapters add to pairs. What is e's own
 * is found here, behind the products, which leave no registers for it */
template <int WIDTH, int K, int SEPARATE_HALVES, int WIDE, float (*F)(float, float), class Y,
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
		Y *to = h + (long long)t * SEPARATE_HALVES + k * WIDTH;

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

/* One product for each expert: what is multiplied. Rows of act [pairs, W::COLS] and their scales
 * stand by expert; matrices of ROWS rows, stacked, or two such (PAIR: gate and up). MAPS: where
 * among them, for products that copy by them */
template <class W_, int E_, int ROWS_, int PAIR> struct moe_factors {
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

/* What becomes of an expert's results: h in 16 bits by its places, PLACE; h by rows, as Y; z by
 * pairs */
template <class W, class DOWN, int E, int F, float (*ACT)(float, float),
          class PLACE> struct moe_product_up : moe_factors<W, E, F, 1> {
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

template <class W, int E, int K, int F, int SEPARATE_HALVES, float (*ACT)(float, float), class Y,
          class ADD> struct moe_product_glu : moe_factors<W, E, F, 1> {
	typedef moe_glu_rows<F, K, SEPARATE_HALVES, F, ACT, Y, ADD> epilogue;
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

template <class W, int E, int H> struct moe_product_down : moe_factors<W, E, H, 0> {
	typedef moe_spread<H> epilogue;
	float *z;
	const int *pair;
	const float *down_b;
	__device__ __forceinline__ epilogue
	store(int e) const
	{
		return { z, pair + this->range[e], moe_bias<H>(down_b, e) };
	}
};

/* The block's place of the list: row x of its pair, normed, to its place among the expert's in act
 * [pairs, W::COLS]. PLACE as of moe_glu */
template <class W, int E, class NORM, class PLACE, class X> DEV void
moe_quantize_act(const X *x, const norm_vectors &norm, int at, int e, const int *range,
                 unsigned short *act, float *scale)
{
	const int first = range[e];

	quantize_act_row<W, NORM>(
	    x, norm, PLACE(act + (long long)first * W::COLS, at - first, range[E + e]), scale + at);
}

/* Tiles of BM rows of an expert with `count`: what is left after whole tiles of 128 goes by the
 * smallest tile that holds it */
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

/* All tiles T of a product's experts; before: tiles of other kinds that came before, so that blocks
 * stay evenly busy. The number of both */
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
		const int high =
		    T::BM == 128 ? (in.n >> 7) + ((in.n & 127) > 64) : 1; /* tiles of rows */
		const int band = at / (8 * ACROSS), local = at - band * (8 * ACROSS),
		          height = min(high - band * 8, 8);
		const int m0 = T::BM == 128 ? (band * 8 + local % height) * 128 : in.n & ~127;
		gemm_tile_compute<G, T>(stages, in, m0, local / height * OUT, of.store(e));
	}
	return before + scheduler.before;
}

/* Their number */
template <class G, class P> DEV int
moe_gemm(const P &of)
{
	SHARED_BYTES(smem);

	const int large = moe_gemm_tile_loop<G, typename G::large>(smem, of, 0),
	          middle = moe_gemm_tile_loop<G, typename G::middle>(smem, of, large);
	return moe_gemm_tile_loop<G, typename G::small>(smem, of, middle);
}

/* The shared expert's product, of all rows, behind those of the others: before, their tiles */
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

/* y [n, H] = scale * r + the sum of weight [n, K + MIX] * z [n * K, H] in the order of experts, +
 * the shared expert's row (SHARED), which is behind those of all pairs, for MIX times the last
 * weight; r NULL: without. blockIdx.x the row, blockIdx.y 1024 of its columns */
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

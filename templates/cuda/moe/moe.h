/* Code shared by the kernels for experts: the order in which a row's experts are summed, and the
 * matmul of a decode step. In that matmul, a warp streams rows of the selected experts from memory
 * for one or a few rows of x. */
#ifndef LLMC_CUDA_MOE_MOE_H
#define LLMC_CUDA_MOE_MOE_H

#include "cuda/runtime/step.h"
#include "cuda/weights/weights.h"

template <class A, class B> struct same_type {
	enum { value = 0 };
};
template <class A> struct same_type<A, A> {
	enum { value = 1 };
};

/* Sorts a row's experts, by all threads of the CTA. order[i] is the index in id[0 .. K) of the i-th
 * lowest expert, or -1 if another rank has it. */
template <int K> DEV void
moe_order(const int *id, int *order)
{
	for (int k = threadIdx.x; k < K; k += blockDim.x) {
		int before = 0;
		for (int o = 0; o < K; o++)
			before += id[o] < id[k] || (id[o] == id[k] && o < k);
		order[before] = id[k] < 0 ? -1 : k;
	}
}

/* Compiler barrier: values are reloaded after it instead of being kept in registers, which are
 * scarce here. */
DEV void
moe_compiler_barrier()
{
	asm volatile("" ::: "memory");
}

/* Multiplies unit u, decoded to v, by the same columns of x[t], and adds the result to sum[t]. */
template <class W, int T> DEV void
moe_unit(const float (&v)[W::UNIT], const float *const (&x)[T], int u, float (&sum)[T])
{
#pragma unroll
	for (int t = 0; t < T; t++) {
		if (W::COLS % W::UNIT == 0) {
#pragma unroll
			for (int i = 0; i < W::UNIT; i += 4) {
				uint4 f = ld_v4(x[t] + W::column(u, i));
				sum[t] = fmaf(v[i], __uint_as_float(f.x), sum[t]);
				sum[t] = fmaf(v[i + 1], __uint_as_float(f.y), sum[t]);
				sum[t] = fmaf(v[i + 2], __uint_as_float(f.z), sum[t]);
				sum[t] = fmaf(v[i + 3], __uint_as_float(f.w), sum[t]);
			}
		} else {
#pragma unroll
			for (int i = 0; i < W::UNIT; i++)
				if (i < W::width(u))
					sum[t] = fmaf(v[i], x[t][W::column(u, i)], sum[t]);
		}
		if (W::UNIT > 8)
			moe_compiler_barrier();
	}
}

/* Number of units of a row that a lane holds at a time: about 128 bytes */
template <class W> struct moe_depth {
	enum { value = sizeof(typename W::raw) <= 16 ? 8 : sizeof(typename W::raw) <= 32 ? 4 : 2 };
};

/* Multiplies this lane's part of row w[r] of W by x[t], and adds the result to sum[r][t]. All lanes
 * of a warp call. */
template <class W, int R, int T> DEV void
moe_rows(const unsigned char *const (&w)[R], const float *const (&x)[T], float (&sum)[R][T])
{
	enum {
		DEEP = moe_depth<W>::value / R / (T > 1 ? 2 : 1),
		N = DEEP > 0 ? DEEP : 1,
		STEP = 32 * N
	};

	for (int first = 0; first < W::UNITS; first += STEP) {
		const int u0 = first + lane_id();
		typename W::raw raw[N][R];
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int r = 0; r < R; r++)
				if (W::UNITS % STEP == 0 || u0 + 32 * n < W::UNITS)
					raw[n][r] = W::load(w[r], u0 + 32 * n);
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int r = 0; r < R; r++) {
				if (W::UNITS % STEP == 0 || u0 + 32 * n < W::UNITS) {
					float v[W::UNIT];
					W::decode(raw[n][r], u0 + 32 * n, v);
					moe_unit<W, T>(v, x, u0 + 32 * n, sum[r]);
				}
				/* A barrier that ptxas keeps. Without it both rows are decoded at
				 * once, and registers spill. */
				if (R > 1 && W::UNIT > 8)
					__syncwarp();
			}
	}
}

#endif

/* Mainloop by wgmma of the swap-AB GEMM (cuda/gemm/gemm_swap_ab.h), for 17 to 64 rows and weights
 * that must be unpacked. There are two warpgroups. A warp's 32 rows of W are its parts of two m64,
 * so lanes hold the same weights and sums as with mma.sync. Operand A comes from registers. Operand
 * B, rows of a, is read from the stage, once per 64 rows of W.
 *
 *   chunk c of a step   four register sets of A in rotation, two if a step has two chunks:
 *     unpack to A       while the tensor cores run chunks c - 1 and c - 2 (two sets: c - 1),
 *                       of this step or the last ones of the previous step
 *     4 wgmma, commit   two k16 of both m64
 *     wait              for chunk c - 2 (c - 1): frees a set of A and, before the end of a step,
 *                       the whole stage of the previous step
 *
 * Tiles have 32 or 64 rows; for 16, wgmma takes more instructions than mma.sync. A stage is
 * refilled one step later than with mma.sync (AHEAD). A stage stores columns in groups of eight: 16
 * bytes per row of a, as a descriptor without swizzle needs them. Lane t of A has columns 2 t and 2
 * t + 1 of each group. Within a chunk, word i of lane t is at index t of group i. */
#ifndef LLMC_CUDA_GEMM_GEMM_SWAP_AB_SM90_H
#define LLMC_CUDA_GEMM_GEMM_SWAP_AB_SM90_H

#include "cuda/gemm/gemm_swap_ab.h"
#include "cuda/ptx/wgmma.h"

/* Destination of a row of a: groups of eight columns, as in a stage; each group has all n rows. For
 * up to 16 rows the layout is that of swap_ab_act. */
struct swap_ab_sm90_four {
	unsigned char *at;
	unsigned group_stride;
	bool nibbles;
};

DEV void
st_v2(const swap_ab_sm90_four &to, uint2 v)
{
	if (to.nibbles)
		v = make_uint2(__byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632));
	if (to.group_stride) {
		st_v1(to.at, v.x);
		st_v1(to.at + to.group_stride, v.y);
	} else {
		st_v2(to.at, v);
	}
}

template <class W> struct swap_ab_sm90_act {
	typedef typename W::stream S;
	static constexpr int COLS =
	    (W::COLS + S::UNIT - 1) / S::UNIT * S::UNIT; /* padded to a multiple of the unit */
	unsigned char *row;
	unsigned group_stride; /* bytes between column groups; 0: layout of swap_ab_act */

	__device__ __forceinline__
	swap_ab_sm90_act(void *act, int t, int n, int rows)
	    : row((unsigned char *)act + t * (swap_ab_16_rows(rows) ? swap_ab_act<W>::ROW : 16)),
	      group_stride(swap_ab_16_rows(rows) ? 0 : (unsigned)n * 16)
	{
	}
	/* destination of columns k .. k + 3 */
	__device__ __forceinline__ swap_ab_sm90_four
	operator+(int k) const
	{
		const swap_ab_position<W> p(k);
		const int chunk = k / S::UNIT * S::CHUNKS + p.chunk;

		return { row + (group_stride ? (chunk * 4 + p.half * 2) * group_stride + p.lane * 4
			                     : (unsigned)(chunk * 64 + p.lane * 16 + p.half * 8)),
			 group_stride, S::NIBBLES != 0 };
	}
};

DEV void
swap_ab_sm90_wgmma(float (&d)[4][4], const unsigned (&a)[4], unsigned long long b)
{
	wgmma_f16_m64n32k16_ra((float(&)[16])d, a, b, 1);
}
DEV void
swap_ab_sm90_wgmma(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b)
{
	wgmma_f16_m64n64k16_ra((float(&)[32])d, a, b, 1);
}

template <class G, class T> struct swap_ab_mainloop<G, T, true> {
	typedef typename G::S S;
	enum {
		SETS = S::CHUNKS % 4 ? 2 : 4,
		LEFT =
		    SETS == 4
		        ? 2
		        : 1 /* number of chunks that the tensor cores may still be multiplying */,
		ROWS = T::NT * 8,
		EIGHTS = S::CHUNKS * 4,
		EACH = SWAP_AB_THREADS /
		       ROWS /* number of column groups that the CTA loads at a time */
	};
	static_assert(S::CHUNKS % 2 == 0 && T::KW <= 2 && !G::W::BF16,
	              "sets of A in turns; a warpgroup has one unit; halves");
	const unsigned char *act; /* this thread's row */
	unsigned group_stride;
	bool is;
	unsigned a[SETS][2][2][4];

	__device__ __forceinline__
	swap_ab_mainloop(const void *act, int count, int n)
	    : act((const unsigned char *)act + (int)threadIdx.x % ROWS * 16),
	      group_stride((unsigned)count * 16), is((int)threadIdx.x % ROWS < n)
	{
	}

	__device__ __forceinline__ void
	issue_loads(unsigned char *stage, int at) const
	{
#pragma unroll
		for (int i = 0; i < T::A_CHUNKS; i++) {
			const int k = i * EACH + (int)threadIdx.x / ROWS;
			const bool in =
			    is && (G::UNITS % T::KW == 0 || at * T::KW + k / EIGHTS < G::UNITS);
			cp_async_16_fill(
			    stage + T::W_BYTES + (i * SWAP_AB_THREADS + (int)threadIdx.x) * 16,
			    act + (in ? (at * T::KW * EIGHTS + k) * group_stride : 0), in ? 16 : 0);
		}
	}
	/* Relies on a barrier to make cp.async data that has been waited for visible to the tensor
	 * cores, as CUTLASS and Triton do. The PTX manual requires a fence, but ptxas compiles that
	 * fence to membar.cta too, which waits for all copies of the ring in flight. Each step
	 * would then take as long as a load from memory. The emulator follows the manual. */
	__device__ __forceinline__ void
	share() const
	{
#ifdef LLMC_EMU
		fence_proxy_async();
#endif
	}
	__device__ __forceinline__ void
	multiply(const unsigned char *stage, int wm, int wk, int unit, float (&acc)[2][T::NT][4])
	{
		if (G::UNITS % T::KW &&
		    unit >= G::UNITS) /* after the last step of a tile, finish() follows */
			return;
		const unsigned long long b =
		    smem_desc(stage + T::W_BYTES + wk * T::UNIT_BYTES, ROWS * 16, 128, 0);
		/* Shared memory offsets are in the low word only. The shuffle shows the compiler
		 * that the value is uniform in a warp, so that it advances descriptors in uniform
		 * registers. Without the shuffle, each descriptor took two moves to a uniform
		 * register, after the wgmma that read the previous descriptor. */
		const unsigned start = __shfl_sync(0xffffffffu, (unsigned)b, 0),
		               rest = (unsigned)(b >> 32);
		const swap_ab_unit<G> w(((const swap_ab_weights<S> *)stage)[wk * T::MW + wm], unit);
#pragma unroll
		for (int c = 0; c < S::CHUNKS; c++) {
			unsigned(&now)[2][2][4] = a[c % SETS];
			w.get(now, c);
			wgmma_fence();
#pragma unroll
			for (int k = 0; k < 2; k++)
#pragma unroll
				for (int i = 0; i < 2; i++)
					swap_ab_sm90_wgmma(acc[i], now[i][k],
					                   (unsigned long long)rest << 32 |
					                       (start + (c * 4 + k * 2) * ROWS));
			wgmma_commit();
			wgmma_wait<LEFT>();
		}
	}
	__device__ __forceinline__ void
	finish(float (&acc)[2][T::NT][4]) const
	{
		wgmma_wait<0>();
#pragma unroll
		for (int i = 0; i < 2; i++)
			wgmma_pin((float(&)[T::NT * 4]) acc[i]);
	}
};

#endif

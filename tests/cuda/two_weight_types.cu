/* GEMMs and GEMVs of several formats, sizes and matrices in one kernel, which was impossible when
 * they were macros. */
#include "cuda/gemm/gemm.h"
#include "cuda/gemv/gemv_rows.h"

enum { ROWS = 43 };

/* rows: number of rows that the launch was sized for */
struct args {
	const int *n;
	int rows, unused;
	const unsigned char *a, *b, *c;
	const float *x, *scale;
	const unsigned short *act_a, *act_b;
	float *y[3], *part, *squares;
	int *count;
};

/* y[0] = a x, y[1] = b x with fewer columns, y[2] = gelu(b x), separated by barriers, since they
 * share the CTA's memory */
template <class A, class B> DEV void
two_gemv(const args &p)
{
	const llmc_step s = { p.n };
	const gemv_scratch scratch = { p.part, 0, p.squares, p.count };
	const gemv_rows<ROWS> e = { s, p.y[0] }, f = { s, p.y[1] };
	const gemv_rows<ROWS, act_gelu> g = { s, p.y[2] };
	pdl_gate gate;

	gemv<gemv_config<A, norm_none, 90>>(gate, p.rows, p.x, norm_vectors(),
	                                    w_matrix<A>(p.a, ROWS), e, scratch);
	__syncthreads();
	gemv<gemv_config<B, norm_none, 90>>(gate, p.rows, p.x, norm_vectors(),
	                                    w_matrix<B>(p.b, ROWS), f, scratch);
	__syncthreads();
	gemv<gemv_config<B, norm_none, 90>>(gate, p.rows, p.x, norm_vectors(),
	                                    w_matrix<B>(p.b, ROWS), g, scratch);
}

extern "C" __global__ void __launch_bounds__(256, 1) gemvs(const args p)
{
	two_gemv<w_q4_k<512>, w_bf16<328>>(p);
}

/* y[0] = x a^T, y[1] = x c^T in one loop over the tiles of both; y[2] = x b^T in another format */
extern "C" __global__ void __launch_bounds__(256, 1) gemms(const args p)
{
	typedef w_q6_k<256> A;
	typedef w_bf16<328> B;
	typedef gemm_config<A, ROWS, 80> G;
	typedef gemm_config<B, ROWS, 80> F;
	SHARED_BYTES(smem);
	const gemm_operands<A> first = { p.act_a, p.scale, w_matrix<A>(p.a, ROWS), *p.n },
	                       second = { p.act_a, p.scale, w_matrix<A>(p.c, ROWS), *p.n };
	const gemm_operands<B> third = { p.act_b, 0, w_matrix<B>(p.b, ROWS), *p.n };
	const gemm_store<ROWS, act_none> e = { p.y[0], 0 }, f = { p.y[1], 0 }, g = { p.y[2], 0 };
	gemm_stages<G, G::middle> stages(smem);

	gemm_tile_loop(stages, second, f, gemm_tile_loop(stages, first, e));
	stages.end();
	gemm_run<F>(third, g);
}

/* Rows beyond 8 GB of a matrix: its base pointer is that far before the rows that exist, so no
 * other memory is needed. */
struct far_rows : gemv_rows<ROWS> {
	enum { FAR = 14000000 };
	__device__ __forceinline__
	far_rows(const llmc_step &s, float *y)
	    : gemv_rows<ROWS>{ s, y }
	{
	}
	DEV int
	row(int group, int n)
	{
		return FAR + gemv_rows<ROWS>::row(group, n);
	}
};

extern "C" __global__ void __launch_bounds__(256, 1) gemv_far(const args p)
{
	typedef w_bf16<328> B;
	const llmc_step s = { p.n };
	const gemv_scratch scratch = { p.part, 0, p.squares, p.count };
	const far_rows e(s, p.y[0]);
	pdl_gate gate;

	gemv<gemv_config<B, norm_none, 90>>(
	    gate, p.rows, p.x, norm_vectors(),
	    w_matrix<B>(p.b - (long long)far_rows::FAR * B::ROW, ROWS), e, scratch);
}

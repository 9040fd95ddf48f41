/* Kernels of conformance.cu that need sm_90. test_conformance.py instantiates the kernels between
 * marks for each number of dimensions and each shape of wgmma. */
#include "cuda/ptx/wgmma_e4m3.h"

struct args {
	unsigned *x, *y;
	int n;
};
struct alignas(128) map_args {
	tensor_map from, to;
	unsigned *x, *y;
	int at[5], put[5];
};
struct bars {
	mbar_t b[2];
};
struct alignas(128) box {
	unsigned x[64];
};

/* A box of N dimensions that extends beyond its tensor is copied to a position where it extends
 * beyond another. */
extern "C" __global__ void __launch_bounds__(32) box_Nd(const __grid_constant__ map_args p)
{
	SHARED_STORAGE(box, s);
	SHARED(bars, b);
	if (threadIdx.x == 0) {
		tensor_prefetch(&p.from);
		mbar_init(&b.b[0], 1);
		fence_mbar_init();
		mbar_arrive_expect(&b.b[0], BYTES);
		tensor_load_Nd(s.x, &p.from, AT, &b.b[0]);
		mbar_wait(&b.b[0], 0);
		tensor_store_Nd(&p.to, PUT, s.x);
		bulk_commit();
		bulk_wait_read<0>();
		bulk_wait<0>();
	}
}

/* A map in global memory */
extern "C" __global__ void __launch_bounds__(32) far_map(const __grid_constant__ map_args p)
{
	SHARED_STORAGE(box, s);
	SHARED(bars, b);
	const tensor_map *m = (const tensor_map *)p.x;
	if (threadIdx.x == 0) {
		mbar_init(&b.b[0], 1);
		fence_tensor_map(m);
		mbar_arrive_expect(&b.b[0], 128);
		tensor_load_2d(s.x, m, 0, 1, &b.b[0]);
	}
	__syncthreads();
	mbar_wait(&b.b[0], 0);
	p.y[threadIdx.x] = s.x[threadIdx.x];
}

/* Threads write shared memory, one thread stores it. */
extern "C" __global__ void __launch_bounds__(32) bulk_out(const args p)
{
	SHARED_STORAGE(box, s);
	bulk_prefetch_l2(p.x, 128);
	s.x[threadIdx.x] = p.x[threadIdx.x] + 1;
	s.x[32 + threadIdx.x] = p.x[threadIdx.x] + 2;
	p.y[threadIdx.x] = p.y[32 + threadIdx.x] = 0; /* the stores come after these */
	fence_proxy_async();
	fence_proxy_async_global();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(p.y, s.x, 128);
		bulk_commit();
		bulk_store(p.y + 32, s.x + 32, 128);
		bulk_commit();
		bulk_wait_read<1>();
		bulk_wait_read<0>();
		bulk_wait<0>();
	}
}

/* Each block of a cluster of two loads half of x and of a tensor to both blocks; both arrive at
 * both; each reads what the other loaded. */
extern "C" __global__ void __launch_bounds__(32) multicast(const __grid_constant__ map_args p)
{
	struct alignas(128) tile {
		unsigned x[64], z[64], w[32];
	};
	SHARED_STORAGE(tile, s);
	SHARED(bars, b);
	const unsigned t = threadIdx.x, me = cluster_rank();
	unsigned *y = p.y + 160 * blockIdx.x;
	if (t == 0) {
		mbar_init(&b.b[0], 1);
		mbar_init(&b.b[1], 2);
	}
	cluster_sync();
	if (t == 0) {
		mbar_arrive_expect(&b.b[0], 512);
		bulk_load_multicast(s.x + 32 * me, p.x + 32 * me, 128, &b.b[0], 3);
		tensor_load_2d_multicast(s.z + 32 * me, &p.from, 0, (int)me, &b.b[0], 3);
	}
	s.w[t] = 1000 * me + t;
	__syncthreads();
	if (t == 0) {
		mbar_arrive_cluster(&b.b[1], 0);
		mbar_arrive_cluster(&b.b[1], 1);
	}
	mbar_wait(&b.b[0], 0);
	for (unsigned i = t; i < 64; i += 32) {
		y[i] = s.x[i];
		y[64 + i] = s.z[i];
	}
	mbar_wait(&b.b[1], 0);
	cluster_sync();
	y[128 + t] = *cluster_map(&s.w[t ^ 1], me ^ 1);
	cluster_sync();
}

/* A warpgroup releases registers and another takes them; both keep their values. */
extern "C" __global__ void __launch_bounds__(256, 1) registers(const args p)
{
	unsigned v = p.x[threadIdx.x];
	if (threadIdx.x < 128) {
		reg_dec<40>();
		p.y[threadIdx.x] = v + 1;
	} else {
		reg_inc<232>();
		p.y[threadIdx.x] = v + 2;
	}
}

struct alignas(1024) wg_tile {
	unsigned short a[64 * 16], b[16 * 256];
};

/* x: a [64][16], then b, [n][16] or, with n contiguous, [16][n]; without swizzle: groups of eight
 * rows of 16 bytes, contiguous. */
__device__ __forceinline__ void
wg_fill(wg_tile &s, const args p, int n, bool bt)
{
	const unsigned short *x = (const unsigned short *)p.x;
	for (int i = threadIdx.x; i < 64 * 16; i += 128)
		s.a[(i / 16 / 8 * 2 + i % 16 / 8) * 64 + i / 16 % 8 * 8 + i % 8] = x[i];
	for (int i = threadIdx.x; i < 16 * n; i += 128)
		s.b[bt ? (i / n / 8 * (n / 8) + i % n / 8) * 64 + i / n % 8 * 8 + i % n % 8
		       : (i / 16 / 8 * 2 + i % 16 / 8) * 64 + i / 16 % 8 * 8 + i % 8] =
		    x[64 * 16 + i];
	fence_proxy_async();
	__syncthreads();
}

/* y [64][N] = row + 2 column + a b; of e4m3, a pair of codes stands for a 16-bit value */
extern "C" __global__ void __launch_bounds__(128) k_WGMMA(const args p)
{
	SHARED_STORAGE(wg_tile, s);
	const int t = threadIdx.x, w = t / 32, g = t % 32 / 4, q = t % 4;
	float d[NUMBER / 2];
	unsigned ra[4];
	wg_fill(s, p, NUMBER, TURNED);
	for (int i = 0; i < 4; i++)
		ra[i] = p.x[((16 * w + g + 8 * (i & 1)) * 16 + 2 * q + 8 * (i >> 1)) / 2];
	for (int i = 0; i < NUMBER / 2; i++)
		d[i] = (float)(16 * w + g + 8 * (i / 2 % 2) + 2 * (8 * (i / 4) + 2 * q + i % 2));
	wgmma_fence();
	WGMMA(d, OPERAND_A,
	      TURNED ? smem_desc(s.b, NUMBER / 8 * 128, 128, 0) : smem_desc(s.b, 128, 256, 0), p.n);
	wgmma_commit();
	wgmma_wait<0>();
	wgmma_pin(d);
	for (int i = 0; i < NUMBER / 2; i++)
		((float *)
		     p.y)[(16 * w + g + 8 * (i / 2 % 2)) * NUMBER + 8 * (i / 4) + 2 * q + i % 2] =
		    d[i];
	if (p.n < 0)
		p.y[0] = ra[0] + ra[1] + ra[2] + ra[3]; /* used in any case */
}

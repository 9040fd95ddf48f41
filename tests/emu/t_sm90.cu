/* Correct kernels with tiles of tensor maps, warpgroup matrix instructions, bulk stores and
 * arrivals of copies */
#include "cuda/ptx/wgmma.h"

struct alignas(128) Args {
	tensor_map m[4];
	float *c;
	const unsigned short *a;
	unsigned *u;
	int n;
};

/* c [64][128] = a [64][64 k] b [128][64 k]^T, both as tiles with a swizzle of S bytes and S/2
 * values of K each */
template <int S> __device__ void
tiles(const Args &p)
{
	struct alignas(1024) S_ {
		unsigned short a[64 * 64], b[128 * 64];
	};
	SHARED_STORAGE(S_, s);
	struct Bars {
		mbar_t full;
	};
	SHARED(Bars, bar);
	if (threadIdx.x == 0)
		mbar_init(&bar.full, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&bar.full, sizeof(S_));
		for (int k = 0; k < 64; k += S / 2) {
			tensor_load_2d(s.a + k * 64, &p.m[0], k, 0, &bar.full);
			tensor_load_2d(s.b + k * 128, &p.m[1], k, 0, &bar.full);
		}
	}
	mbar_wait(&bar.full, 0);
	float d[64];
	wgmma_fence();
	for (int k = 0; k < 64; k += 16) {
		int tile = k / (S / 2), in = k % (S / 2);
		wgmma_bf16_m64n128k16(d, smem_desc(s.a + tile * 64 * (S / 2) + in, 16, 8 * S, S),
		                      smem_desc(s.b + tile * 128 * (S / 2) + in, 16, 8 * S, S),
		                      k != 0);
	}
	wgmma_commit();
	wgmma_wait<0>();
	wgmma_pin(d);
	int w = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
	for (int j = 0; j < 16; j++)
		for (int h = 0; h < 2; h++)
			for (int e = 0; e < 2; e++)
				p.c[(16 * w + g + 8 * h) * 128 + 8 * j + 2 * q + e] =
				    d[4 * j + 2 * h + e];
}
extern "C" __global__ void __launch_bounds__(128) tiles32(const __grid_constant__ Args p)
{
	tiles<32>(p);
}
extern "C" __global__ void __launch_bounds__(128) tiles64(const __grid_constant__ Args p)
{
	tiles<64>(p);
}
extern "C" __global__ void __launch_bounds__(128) tiles128(const __grid_constant__ Args p)
{
	tiles<128>(p);
}

/* c [64][64] = a [64][32 k] b [32 k][64]: a from registers, b with N contiguous; swizzle 128 and
 * none. Two groups in flight. */
template <int SWIZZLE> __device__ void
rows(const Args &p)
{
	struct alignas(1024) S_ {
		unsigned short b[32 * 64];
	};
	SHARED_STORAGE(S_, s);
	int t = threadIdx.x, w = t / 32, g = t % 32 / 4, q = t % 4;
	for (int i = t; i < 32 * 64; i += 128) {
		int k = i / 64, n = i % 64, at;
		if (SWIZZLE)
			at = (k / 8) * 512 + (k % 8) * 64 + ((n / 8) ^ (k % 8)) * 8 + n % 8;
		else /* 8 x 8 blocks; those of one k are contiguous */
			at = ((k / 8) * 8 + n / 8) * 64 + (k % 8) * 8 + n % 8;
		s.b[at] = p.a[64 * 32 + i];
	}
	fence_proxy_async();
	__syncthreads();
	float d[32];
	unsigned a[2][4];
	for (int k = 0; k < 2; k++)
		for (int i = 0; i < 4; i++) {
			const unsigned short *x =
			    p.a + (16 * w + g + 8 * (i & 1)) * 32 + 16 * k + 2 * q + 8 * (i >> 1);
			a[k][i] = x[0] | (unsigned)x[1] << 16;
		}
	for (int i = 0; i < 32; i++)
		d[i] = 1;
	for (int k = 0; k < 2; k++) {
		wgmma_fence();
		unsigned long long b = SWIZZLE ? smem_desc(s.b + k * 1024, 0, 1024, 128)
		                               : smem_desc(s.b + k * 1024, 1024, 128, 0);
		wgmma_bf16_m64n64k16_ra_bt(d, a[k], b, 1);
		wgmma_commit();
	}
	wgmma_wait<1>();
	wgmma_wait<0>();
	wgmma_pin(d);
	for (int i = 0; i < 32; i++)
		p.c[(16 * w + g + 8 * (i / 2 % 2)) * 64 + 8 * (i / 4) + 2 * q + i % 2] = d[i];
}
extern "C" __global__ void __launch_bounds__(128) rows128(const __grid_constant__ Args p)
{
	rows<128>(p);
}
extern "C" __global__ void __launch_bounds__(128) rows0(const __grid_constant__ Args p)
{
	rows<0>(p);
}

/* Producers use cp.async whose completion arrives at the barrier. K is contiguous without swizzle:
 * groups of eight rows of 16 bytes. f16, two warpgroups, the second one multiplies. Results are
 * stored by a bulk store. */
extern "C" __global__ void __launch_bounds__(256) roles(const __grid_constant__ Args p)
{
	struct alignas(1024) S_ {
		unsigned short a[64 * 16], b[32 * 16];
		float c[64 * 32];
	};
	SHARED_STORAGE(S_, s);
	struct Bars {
		mbar_t landed, full;
	};
	SHARED(Bars, bar);
	if (threadIdx.x == 0) {
		mbar_init(&bar.landed, 128);
		mbar_init(&bar.full, 128);
	}
	fence_mbar_init();
	__syncthreads();
	int t = threadIdx.x % 128, w = t / 32, g = t % 32 / 4, q = t % 4;
	if (threadIdx.x < 128) {
		reg_dec<40>();
		for (int i = t; i < 64 * 2; i += 128)
			cp_async_16(s.a + ((i / 2 / 8) * 2 + i % 2) * 64 + i / 2 % 8 * 8,
			            p.a + i / 2 * 16 + i % 2 * 8);
		for (int i = t; i < 32 * 2; i += 128)
			cp_async_16(s.b + ((i / 2 / 8) * 2 + i % 2) * 64 + i / 2 % 8 * 8,
			            p.a + 1024 + i / 2 * 16 + i % 2 * 8);
		cp_async_arrive(&bar.landed);
		mbar_wait(&bar.landed, 0);
		cp_async_wait_all();
		fence_proxy_async();
		mbar_arrive(&bar.full);
	} else {
		reg_inc<232>();
		mbar_wait(&bar.full, 0);
		float d[16];
		wgmma_fence();
		wgmma_f16_m64n32k16(d, smem_desc(s.a, 128, 256, 0), smem_desc(s.b, 128, 256, 0), 0);
		wgmma_commit();
		wgmma_wait<0>();
		wgmma_pin(d);
		for (int i = 0; i < 16; i++)
			s.c[(16 * w + g + 8 * (i / 2 % 2)) * 32 + 8 * (i / 4) + 2 * q + i % 2] =
			    d[i];
		fence_proxy_async();
		bar_sync(1, 128);
		if (t == 0) {
			bulk_store(p.c, s.c, sizeof s.c);
			bulk_commit();
			bulk_wait_read<0>();
		}
	}
}

/* A 3-dimensional box that extends beyond the tensor on two sides is copied to another map's
 * tensor. */
extern "C" __global__ void __launch_bounds__(32) boxes(const __grid_constant__ Args p)
{
	struct alignas(128) S_ {
		float x[8 * 4 * 2];
	};
	SHARED_STORAGE(S_, s);
	struct Bars {
		mbar_t full;
	};
	SHARED(Bars, bar);
	if (threadIdx.x == 0) {
		mbar_init(&bar.full, 1);
		mbar_arrive_expect(&bar.full, sizeof s);
		tensor_load_3d(s.x, &p.m[2], 4, 2, 0, &bar.full);
		mbar_wait(&bar.full, 0);
		tensor_store_3d(&p.m[3], 0, 0, 1, s.x);
		bulk_commit();
		bulk_wait<0>();
	}
}

/* Every wrapper once, so that real NVRTC sees the PTX of all of them on every architecture that has them. Not run. */
#include "common/cuda_step.h"
#include "common/cuda_math.h"

struct tile { unsigned short m[64][64]; unsigned u[256]; float f[256]; };
struct barriers { unsigned long long b[4]; };

extern "C" __global__ void __launch_bounds__(256)
memory(void *p)
{
	SHARED(tile, t);
	SHARED_ARENA(tile, big);
	SHARED_BYTES(bytes);
	unsigned *u = (unsigned *)p + 64 * threadIdx.x;
	uint4 v = ld_v4(u), s = ld_v4_stream(u + 4), c = ld_v4_const(u + 8);
	uint2 w = ld_v2(u + 12);
	prefetch_l2(u + 128);
	v.x += ld_v1(u + 14) + s.x + s.y + s.z + s.w + c.x + c.y + c.z + c.w + w.x + w.y;
	st_v4(&t.u[threadIdx.x & ~3], v);
	st_v4(&big.u[threadIdx.x & ~3], v);
	bytes[threadIdx.x] = 1;
	__syncthreads();
	v = ld_v4(&t.u[threadIdx.x & ~3]);
	st_v4(u, v);
	st_v2(u + 4, w);
	st_v1(u + 6, v.x + lane_id() + warp_id());
	bar_sync(1, 256);
	if (warp_id() & 1)
		bar_arrive(2, 256);
	else
		bar_sync(2, 256);
	float f = big.f[threadIdx.x];
	u[7] = __float_as_uint(warp_sum(f) + warp_max(f) + warp_min(f)) + bytes[threadIdx.x ^ 1];
	u[8] = f32_to_f16(f) + f32_to_bf16(f) + pack_bf16(f, f + 1) + pack_f16(f, f + 1);
	u[9] = __float_as_uint(f16_to_f32((unsigned short)u[10]) + bf16_to_f32((unsigned short)u[11]) + f16_hi(u[12]) + bf16_hi(u[12]));
}

#define ORDERS(s, T) \
	T *p_##s##T = (T *)p; \
	st_release_##s(p_##s##T, ld_acquire_##s(p_##s##T)); \
	st_relaxed_##s(p_##s##T, ld_relaxed_##s(p_##s##T)); \
	atom_add_acq_rel_##s(p_##s##T, (T)1); \
	atom_add_release_##s(p_##s##T, (T)1); \
	atom_add_relaxed_##s(p_##s##T, (T)1);
typedef unsigned long long u64;

extern "C" __global__ void __launch_bounds__(256)
order(void *p)
{
	{ ORDERS(cta, int) ORDERS(cta, unsigned) ORDERS(cta, float) ORDERS(cta, u64) }
	{ ORDERS(gpu, int) ORDERS(gpu, unsigned) ORDERS(gpu, float) ORDERS(gpu, u64) }
	{ ORDERS(sys, int) ORDERS(sys, unsigned) ORDERS(sys, float) ORDERS(sys, u64) }
#if __CUDA_ARCH__ >= 900
	{ ORDERS(cluster, int) ORDERS(cluster, unsigned) ORDERS(cluster, float) ORDERS(cluster, u64) }
#endif
	grid_sync();
}

extern "C" __global__ void __launch_bounds__(32)
matrix(float *y, int *z)
{
	SHARED(tile, t);
	unsigned r1[1], r2[2], r4[4];
	float d[4] = { 0, 0, 0, 0 };
	int i4[4] = { 0, 0, 0, 0 }, i2[2] = { 0, 0 };

	for (int i = 0; i < 64; i++)
		t.m[i][threadIdx.x] = (unsigned short)i;
	__syncthreads();
	ldmatrix_x1(r1, t.m[lane_id()]);
	ldmatrix_x2(r2, t.m[lane_id()]);
	ldmatrix_x4(r4, t.m[lane_id()]);
	mma_f16_m16n8k8(d, r2, r1, d);
	mma_s8_m8n8k16(i2, r1, r1, i2);
	ldmatrix_x1_trans(r1, t.m[lane_id()]);
	ldmatrix_x2_trans(r2, t.m[lane_id()]);
	ldmatrix_x4_trans(r4, t.m[lane_id()]);
#if __CUDA_ARCH__ >= 800
	mma_bf16_m16n8k16(d, r4, r2, d);
	mma_f16_m16n8k16(d, r4, r2, d);
	mma_tf32_m16n8k8(d, r4, r2, d);
	mma_bf16_m16n8k8(d, r2, r1, d);
	mma_s8_m16n8k32(i4, r4, r2, i4);
	mma_s8_m16n8k16(i4, r2, r1, i4);
#endif
#if __CUDA_ARCH__ >= 900
	stmatrix_x4(t.m[lane_id()], r4);
	__syncthreads();
#endif
	y[threadIdx.x] = d[0] + d[1] + d[2] + d[3] + t.m[threadIdx.x][0] + r4[0];
	z[threadIdx.x] = i4[0] + i4[1] + i4[2] + i4[3] + i2[0] + i2[1];
}

#if __CUDA_ARCH__ >= 800
extern "C" __global__ void __launch_bounds__(128)
copies(const unsigned *x, unsigned *y)
{
	SHARED(tile, t);
	SHARED(barriers, m);

	if (threadIdx.x == 0)
		for (int i = 0; i < 3; i++)
			mbar_init(&m.b[i], i == 1 ? 1 : 128);
	__syncthreads();
	cp_async_4(&t.u[threadIdx.x], x + threadIdx.x);
	cp_async_commit();
	cp_async_wait<1>();
	cp_async_wait<0>();
	if (threadIdx.x < 32) {
		cp_async_8(&t.u[128 + 2 * threadIdx.x], x + 2 * threadIdx.x);
		cp_async_16(&t.f[4 * threadIdx.x], x + 4 * threadIdx.x);
		cp_async_16_fill(&t.f[128 + 4 * threadIdx.x], x + 4 * threadIdx.x, threadIdx.x & 15);
	}
	cp_async_wait_all();
	mbar_arrive(&m.b[0]);
	mbar_wait(&m.b[0], 0);
	y[threadIdx.x] = t.u[threadIdx.x] + mbar_test(&m.b[0], 1);
#if __CUDA_ARCH__ >= 900
	PDL_WAIT();
	PDL_LAUNCH();
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_expect(&m.b[1], 256);
		bulk_load(&t.m[0], x, 256, &m.b[1]);
		mbar_arrive_expect(&m.b[1], 256);
		bulk_load(&t.m[2], x, 256, &m.b[1]);
	}
	mbar_wait(&m.b[1], 0);
	cluster_sync();
	y[threadIdx.x] += *cluster_map(&t.u[threadIdx.x], (cluster_rank() + 1) % cluster_size());
	cluster_arrive();
	cluster_wait();
#endif
	__syncthreads();
	if (threadIdx.x == 0)
		mbar_inval(&m.b[0]);
}
#endif

/* One kernel per wrapper, with a known result. test_conformance.py runs them on the emulator, and
 * on a GPU if there is one, so the PTX and the emulator's definition must give the same result. It
 * removes kernels that an architecture lacks. */
#include "cuda/math/half2.h"
#include "cuda/math/math.h"
#include "cuda/ptx/tma.h"

struct args {
	unsigned *x, *y;
	int n;
};
struct tile {
	unsigned u[1024];
};
struct bars {
	unsigned long long b[4];
};

extern "C" __global__ void __launch_bounds__(256) convert(const args p)
{
	for (int i = blockIdx.x * 256 + threadIdx.x; i < p.n; i += gridDim.x * 256) {
		const float f = __uint_as_float(p.x[i]);
		unsigned *y = p.y + 6 * i;
		y[0] = f32_to_f16(f);
		y[1] = f32_to_bf16(f);
		y[2] = __float_as_uint(f16_to_f32((unsigned short)i));
		y[3] = __float_as_uint(bf16_to_f32((unsigned short)i));
		y[4] = pack_f16(f, 2.5f);
		y[5] = pack_bf16(f, 2.5f);
	}
}

extern "C" __global__ void __launch_bounds__(32) access(const args p)
{
	SHARED(tile, s);
	SHARED_STORAGE(tile, big);
	SHARED_BYTES(bytes);
	const int t = threadIdx.x;
	unsigned *y = p.y + 24 * t;
	prefetch_l2(p.x);
	st_v4(y, ld_v4(p.x + 4 * t));
	st_v4(y + 4, ld_v4_stream(p.x + 4 * t));
	st_v4(y + 8, ld_v4_const(p.x + 4 * t));
	st_v2(y + 12, ld_v2(p.x + 2 * t));
	st_v1(y + 14, ld_v1(p.x + t));
	st_v4(s.u + 4 * t, ld_v4(p.x + 4 * t));
	st_v2(big.u + 2 * t, ld_v2(p.x + 2 * t));
	__syncthreads();
	y[15] = s.u[4 * (31 - t) + 1];
	y[16] = ld_v2(big.u + 2 * (31 - t)).y;
	y[17] = ((unsigned *)bytes)[t];
	y[18] = lane_id() + 100 * warp_id();
	const float f = __uint_as_float(p.x[t]);
	y[19] = __float_as_uint(warp_sum(f));
	y[20] = __float_as_uint(warp_max(f));
	y[21] = __float_as_uint(warp_min(f));
	y[22] = 0;
	y[23] = 0;
}

/* Warps 0 and 1 send values to warps 2 and 3, which add; bar_arrive does not wait. */
extern "C" __global__ void __launch_bounds__(128) named(const args p)
{
	SHARED(tile, s);
	if (warp_id() < 2) {
		s.u[threadIdx.x] = p.x[threadIdx.x];
		bar_arrive(3, 128);
	} else {
		bar_sync(3, 128);
		p.y[threadIdx.x - 64] = s.u[threadIdx.x - 64] + 1;
	}
}

/* y: sums that all blocks add to, then what the last block saw */
extern "C" __global__ void __launch_bounds__(64) orders(const args p)
{
	SHARED(tile, s);
	int *i = (int *)p.y;
	float *f = (float *)p.y + 4;
	unsigned long long *l = (unsigned long long *)p.y + 4;
	if (threadIdx.x == 63)
		p.y[64 + blockIdx.x] = blockIdx.x + 1;
	__syncthreads();
	if (threadIdx.x == 0) {
		atom_add_relaxed_gpu(i, 3);
		atom_add_relaxed_sys(f, 0.5f);
		atom_add_release_gpu(l, 1ull << 33);
		st_relaxed_gpu(i + 2, 7);
		s.u[0] = atom_add_acq_rel_gpu((unsigned *)i + 1, 1u);
	}
	__syncthreads();
	if (s.u[0] == gridDim.x - 1) {
		unsigned sum = 0;
		for (unsigned b = threadIdx.x; b < gridDim.x; b += 64)
			sum += p.y[64 + b];
		s.u[1 + threadIdx.x] = sum;
		__syncthreads();
		if (threadIdx.x == 0) {
			sum = 0;
			for (int k = 0; k < 64; k++)
				sum += s.u[1 + k];
			st_release_gpu(i + 12, (int)(sum + ld_relaxed_gpu(i + 2)));
			st_release_sys(i + 13, ld_acquire_gpu(i) + ld_acquire_sys(i + 2));
		}
	}
}

/* Values of every type and scope: loads, stores and sums as seen by one thread. x: one word of 8
 * bytes each; y: six of 8 bytes each */
#define ONE(s, T, k)                                                                               \
	{                                                                                          \
		T *q = (T *)(p.x + 2 * (k));                                                       \
		T *o = (T *)(p.y + 12 * (k));                                                      \
		o[0] = ld_relaxed_##s(q);                                                          \
		st_relaxed_##s(q, (T)5);                                                           \
		o[1] = ld_acquire_##s(q);                                                          \
		st_release_##s(q, (T)7);                                                           \
		o[2] = atom_add_relaxed_##s(q, (T)1);                                              \
		o[3] = atom_add_release_##s(q, (T)2);                                              \
		o[4] = atom_add_acq_rel_##s(q, (T)3);                                              \
		o[5] = ld_relaxed_##s(q);                                                          \
	}
#define FOUR(s, k)                                                                                 \
	ONE(s, int, k)                                                                             \
	ONE(s, unsigned, k + 1) ONE(s, float, k + 2) ONE(s, unsigned long long, k + 3)
extern "C" __global__ void __launch_bounds__(32) scopes(const args p)
{
	if (threadIdx.x)
		return;
	FOUR(cta, 0)
	FOUR(gpu, 4)
	FOUR(sys, 8)
#if __CUDA_ARCH__ >= 900
	FOUR(cluster, 12)
#endif
}

/* Every block reads what another one wrote, twice; a cooperative launch. */
extern "C" __global__ void __launch_bounds__(64) grids(const args p)
{
	const unsigned n = gridDim.x, b = blockIdx.x, t = threadIdx.x;
	p.y[64 * b + t] = p.x[64 * b + t] + 1;
	grid_sync();
	const unsigned v = p.y[64 * ((b + 1) % n) + (t ^ 1)];
	grid_sync();
	p.y[64 * b + t] = v + 1;
}

/* x: pairs of halves a, b, c; y: add, mul, fma, bits */
extern "C" __global__ void __launch_bounds__(256) halves(const args p)
{
	for (int i = blockIdx.x * 256 + threadIdx.x; i < p.n; i += gridDim.x * 256) {
		const unsigned a = p.x[3 * i], b = p.x[3 * i + 1], c = p.x[3 * i + 2];
		unsigned *y = p.y + 7 * i;
		y[0] = h2_add(a, b);
		y[1] = h2_mul(a, b);
		y[2] = h2_fma(a, b, c);
		y[3] = h2_select(a, b, c);
		y[4] = h2_twice(a);
		y[5] = h2_twice_hi(a);
		y[6] = byte_choose(a, b, c);
	}
}

/* x: rows of 16 bytes; y: registers of x1, x2, x4, then transposed */
extern "C" __global__ void __launch_bounds__(32) matrices(const args p)
{
	SHARED(tile, s);
	unsigned r1[1], r2[2], r4[4], *y = p.y + 14 * threadIdx.x;
	for (int i = threadIdx.x; i < 128; i += 32)
		s.u[i] = p.x[i];
	__syncthreads();
	const void *row = s.u + 4 * lane_id();
	ldmatrix_x1(r1, row);
	ldmatrix_x2(r2, row);
	ldmatrix_x4(r4, row);
	y[0] = r1[0];
	for (int i = 0; i < 2; i++)
		y[1 + i] = r2[i];
	for (int i = 0; i < 4; i++)
		y[3 + i] = r4[i];
	ldmatrix_x1_trans(r1, row);
	ldmatrix_x2_trans(r2, row);
	ldmatrix_x4_trans(r4, row);
	y[7] = r1[0];
	for (int i = 0; i < 2; i++)
		y[8 + i] = r2[i];
	for (int i = 0; i < 4; i++)
		y[10 + i] = r4[i];
}

/* x: registers of a, b and c of each lane, consecutively. test_conformance.py repeats it for every
 * mma. */
extern "C" __global__ void __launch_bounds__(32) k_MMA(const args p)
{
	unsigned a[NA], b[NB], *x = p.x + (NA + NB + NC) * threadIdx.x;
	TYPE c[NC], d[NC];
	for (int i = 0; i < NA; i++)
		a[i] = x[i];
	for (int i = 0; i < NB; i++)
		b[i] = x[NA + i];
	for (int i = 0; i < NC; i++)
		c[i] = ((TYPE *)x)[NA + NB + i];
	MMA(d, a, b, c);
	for (int i = 0; i < NC; i++)
		((TYPE *)p.y)[NC * threadIdx.x + i] = d[i];
}

/* from sm_80 on */
extern "C" __global__ void __launch_bounds__(32) copies(const args p)
{
	SHARED(tile, s);
	const int t = threadIdx.x;
	cp_async_4(s.u + t, p.x + t);
	cp_async_commit();
	cp_async_8(s.u + 32 + 2 * t, p.x + 2 * t);
	cp_async_commit();
	cp_async_16(s.u + 96 + 4 * t, p.x + 4 * t);
	cp_async_16_fill(s.u + 224 + 4 * t, p.x + 4 * t, t & 15);
	cp_async_wait<1>();
	__syncthreads();
	p.y[t] = s.u[31 - t];
	cp_async_commit();
	cp_async_wait<0>();
	__syncthreads();
	for (int i = 0; i < 10; i++)
		p.y[32 + 32 * i + t] = s.u[32 + 32 * i + 31 - t];
	cp_async_4(s.u + t, p.x + 64 + t);
	cp_async_wait_all();
	__syncthreads();
	p.y[352 + t] = s.u[t ^ 1];
}

/* The completion of copies is an arrival. */
extern "C" __global__ void __launch_bounds__(64) landings(const args p)
{
	SHARED(tile, s);
	SHARED(bars, b);
	if (threadIdx.x == 0)
		mbar_init(&b.b[0], 64);
	__syncthreads();
	cp_async_16(s.u + 4 * threadIdx.x, p.x + 4 * threadIdx.x);
	cp_async_arrive(&b.b[0]);
	mbar_wait(&b.b[0], 0);
	for (int i = 0; i < 4; i++)
		p.y[64 * i + threadIdx.x] = s.u[255 - (64 * i + threadIdx.x)];
	cp_async_wait_all();
}

/* Two phases of a barrier that all threads arrive at */
extern "C" __global__ void __launch_bounds__(64) barriers(const args p)
{
	SHARED(tile, s);
	SHARED(bars, b);
	if (threadIdx.x == 0)
		mbar_init(&b.b[0], 64);
	__syncthreads();
	for (unsigned k = 0; k < 2; k++) {
		s.u[64 * k + threadIdx.x] = p.x[64 * k + threadIdx.x];
		mbar_arrive(&b.b[0]);
		if (threadIdx.x < 32)
			mbar_wait(&b.b[0], k);
		else
			while (!mbar_test(&b.b[0], k))
				;
		p.y[64 * k + threadIdx.x] = s.u[64 * k + (threadIdx.x ^ 33)];
	}
	__syncthreads();
	if (threadIdx.x == 0)
		mbar_inval(&b.b[0]);
}

/* from sm_90 on */
/* Bulk copies, with two ways to expect them; 512 bytes */
extern "C" __global__ void __launch_bounds__(64) bulk(const args p)
{
	SHARED(tile, s);
	SHARED(bars, b);
	if (threadIdx.x == 0) {
		mbar_init(&b.b[0], 1);
		mbar_init(&b.b[1], 1);
	}
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&b.b[0], 512);
		bulk_load(s.u, p.x, 256, &b.b[0]);
		bulk_load(s.u + 64, p.x + 64, 256, &b.b[0]);
		mbar_expect(&b.b[1], 64);
		bulk_load(s.u + 512, p.x + 4, 64, &b.b[1]);
		mbar_arrive(&b.b[1]);
	}
	mbar_wait(&b.b[0], 0);
	mbar_wait(&b.b[1], 0);
	p.y[threadIdx.x] = s.u[threadIdx.x];
	p.y[64 + threadIdx.x] = s.u[64 + threadIdx.x];
	if (threadIdx.x < 16)
		p.y[128 + threadIdx.x] = s.u[512 + threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(32) stmatrices(const args p)
{
	SHARED(tile, s);
	unsigned r[4];
	for (int i = 0; i < 4; i++)
		r[i] = p.x[4 * threadIdx.x + i];
	stmatrix_x4(s.u + 4 * lane_id(), r);
	__syncthreads();
	for (int i = 0; i < 4; i++)
		p.y[32 * i + threadIdx.x] = s.u[32 * i + threadIdx.x];
}

/* Two blocks read each other's shared memory. */
extern "C" __global__ void __launch_bounds__(32) clusters(const args p)
{
	SHARED(tile, s);
	PDL_WAIT();
	PDL_LAUNCH();
	const unsigned me = cluster_rank(), n = cluster_size();
	s.u[threadIdx.x] = p.x[32 * blockIdx.x + threadIdx.x];
	cluster_sync();
	const unsigned v = *cluster_map(&s.u[threadIdx.x ^ 1], (me + 1) % n);
	cluster_arrive();
	cluster_wait(); /* no block exits while it is read */
	p.y[32 * blockIdx.x + threadIdx.x] = v + 1000 * n;
}

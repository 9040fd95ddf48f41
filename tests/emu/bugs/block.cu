// Planted bugs within a block. BUG 1 has them, BUG 0 is the correct twin. A line that a finding may
// name is marked with // and the kernel's name.
struct Args { float *a, *b, *c; int n; unsigned *u; };

extern "C" __global__ void
missing_barrier(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = a.a[threadIdx.x]; // missing_barrier
	if (!BUG)
		__syncthreads();
	a.c[threadIdx.x] = s.x[127 - threadIdx.x]; // missing_barrier
}

extern "C" __global__ void
divergent_barrier(Args a)
{
	if (!BUG || threadIdx.x < 64)
		__syncthreads(); // divergent_barrier
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
divergent_places(Args a)
{
	if (BUG && threadIdx.x < 64)
		__syncthreads(); // divergent_places
	else
		__syncthreads(); // divergent_places
	a.c[threadIdx.x] = 1;
}

/* The barrier at the end of the loop only protects the reuse of s. */
extern "C" __global__ void
reuse_barrier(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	float v = 0;
	for (int i = 0; i < 4; i++) {
		s.x[threadIdx.x] = a.a[i * 128 + threadIdx.x]; // reuse_barrier
		__syncthreads();
		v += s.x[127 - threadIdx.x]; // reuse_barrier
		if (!BUG)
			__syncthreads();
	}
	a.c[threadIdx.x] = v;
}

/* Lanes read what other lanes of their warp wrote: shuffles do not order memory. */
extern "C" __global__ void
missing_syncwarp(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = a.a[threadIdx.x]; // missing_syncwarp
	if (BUG)
		__shfl_sync(~0u, 1, 0);
	else
		__syncwarp();
	a.c[threadIdx.x] = s.x[threadIdx.x ^ 1]; // missing_syncwarp
}

extern "C" __global__ void
inactive_lane(Args a)
{
	unsigned m = BUG ? 0xffffu : ~0u;
	if (threadIdx.x < 16 || !BUG)
		a.c[threadIdx.x] = __shfl_sync(m, a.a[threadIdx.x], 20); // inactive_lane
}

extern "C" __global__ void
full_mask(Args a)
{
	if (threadIdx.x < (BUG ? 20 : 32))
		a.c[threadIdx.x] = __shfl_sync(~0u, a.a[threadIdx.x], 0); // full_mask
}

extern "C" __global__ void
named_count(Args a)
{
	struct S { float x[64]; };
	SHARED(S, s);
	if (threadIdx.x < 64) {
		s.x[threadIdx.x] = a.a[threadIdx.x];
		if (!BUG || threadIdx.x < 32)
			bar_sync(1, 64); // named_count
		a.c[threadIdx.x] = s.x[63 - threadIdx.x]; // named_count
	}
}

extern "C" __global__ void
mbarrier_race(Args a)
{
	struct S { mbar_t b; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.b, 128);
	if (!BUG)
		__syncthreads();
	mbar_arrive(&s.b); // mbarrier_race
	mbar_wait(&s.b, 0); // mbarrier_race
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
empty_wait(Args a)
{
	struct S { mbar_t b; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.b, 128 + BUG);
	__syncthreads();
	mbar_arrive(&s.b);
	mbar_wait(&s.b, 0); // empty_wait
	a.c[threadIdx.x] = 1;
}

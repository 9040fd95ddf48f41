// Planted bugs in prefetches to L2
struct Args { float *a, *b, *c; int n; unsigned *u; };

extern "C" __global__ void
prefetch_beyond(Args a)
{
	for (int i = threadIdx.x * 32; i < 4096 + 32 * BUG; i += 128 * 32)
		prefetch_l2(a.a + i); // prefetch_beyond
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
prefetch_bulk_beyond(Args a)
{
	if (threadIdx.x == 0)
		bulk_prefetch_l2(a.a + 2048, 8192 + 16 * BUG); // prefetch_bulk_beyond
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
prefetch_bulk_odd(Args a)
{
	if (threadIdx.x == 0)
		bulk_prefetch_l2(a.a + BUG, 4096); // prefetch_bulk_odd
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
prefetch_shared(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 0;
	prefetch_l2(BUG ? s.x : a.a); // prefetch_shared
	a.c[threadIdx.x] = s.x[threadIdx.x];
}

// The next kernels read a.a
extern "C" __global__ void
prefetch_wrong(Args a)
{
	if (threadIdx.x == 0)
		bulk_prefetch_l2(BUG ? a.b : a.a, 2048); // prefetch_wrong
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
prefetch_too_much(Args a)
{
	prefetch_l2(a.a + threadIdx.x / 32 * 32 + (BUG && threadIdx.x >= 96 ? 512 : 0)); // prefetch_too_much
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
reader(Args a)
{
	for (int i = threadIdx.x; i < a.n; i += blockDim.x)
		a.c[i] = a.a[i];
}

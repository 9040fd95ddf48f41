// Planted bugs in asynchronous copies, dependent launches and order between blocks
struct Args { float *a, *b, *c; int n; unsigned *u; };

extern "C" __global__ void
copy_wait(Args a)
{
	struct alignas(16) S { float x[128]; };
	SHARED(S, s);
	if (threadIdx.x < 32) {
		cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x); // copy_wait
		cp_async_commit();
		if (!BUG)
			cp_async_wait<0>();
	}
	__syncthreads();
	a.c[threadIdx.x] = s.x[threadIdx.x]; // copy_wait
}

/* All warps copy, only the first one waits. */
extern "C" __global__ void
one_warp_waits(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x); // one_warp_waits
	cp_async_commit();
	if (!BUG || threadIdx.x < 32)
		cp_async_wait<0>();
	__syncthreads();
	a.c[threadIdx.x] = s.x[511 - threadIdx.x]; // one_warp_waits
}

/* Two stages: the barrier at the end keeps a fast warp from filling the stage that a slow one still
 * reads. */
extern "C" __global__ void
ring_tail(Args a)
{
	struct alignas(16) S { float x[2][512]; };
	SHARED(S, s);
	float v = 0;
	cp_async_16(s.x[0] + 4 * threadIdx.x, a.a + 4 * threadIdx.x);
	cp_async_commit();
	for (int i = 0; i < 4; i++) {
		if (i < 3)
			cp_async_16(s.x[(i + 1) & 1] + 4 * threadIdx.x, a.a + 512 * (i + 1) + 4 * threadIdx.x); // ring_tail
		cp_async_commit();
		cp_async_wait<1>();
		__syncthreads();
		v += s.x[i & 1][511 - threadIdx.x]; // ring_tail
		if (!BUG)
			__syncthreads();
	}
	a.c[threadIdx.x] = v;
}

/* Writes b, which the next kernel reads. */
extern "C" __global__ void
produce(Args a)
{
	griddep_wait();
	griddep_launch();
	a.b[threadIdx.x] = a.a[threadIdx.x] + 1; // no_wait early_write warp_wait overlap two_streams early_read
}

extern "C" __global__ void
no_wait(Args a)
{
	if (!BUG)
		griddep_wait();
	a.c[threadIdx.x] = a.b[threadIdx.x]; // no_wait
}

extern "C" __global__ void
warp_wait(Args a)
{
	if (!BUG || threadIdx.x < 32)
		griddep_wait();
	a.c[threadIdx.x] = a.b[threadIdx.x]; // warp_wait
}

/* The predecessor reads a.a. */
extern "C" __global__ void
early_write(Args a)
{
	if (!BUG)
		griddep_wait();
	a.a[threadIdx.x] = 7; // early_write
	if (BUG)
		griddep_wait();
}

/* Runs between produce and early_read. A kernel that waits before it triggers its dependents orders
 * them after its own predecessors. */
extern "C" __global__ void
hold(Args a)
{
	if (BUG)
		griddep_launch();
	griddep_wait();
	if (!BUG)
		griddep_launch();
	a.c[128 + threadIdx.x] = 2;
}

extern "C" __global__ void
early_read(Args a)
{
	a.c[threadIdx.x] = a.b[threadIdx.x]; // early_read
	griddep_wait();
}

/* Scratch b is still used by the kernel before the predecessor: this kernel waits, but the
 * predecessor did not. */
extern "C" __global__ void
between(Args a)
{
	griddep_launch();
	if (!BUG)
		griddep_wait();
	a.c[128 + threadIdx.x] = 2;
}

extern "C" __global__ void
overlap(Args a)
{
	griddep_wait();
	a.b[threadIdx.x] = 3; // overlap
}

extern "C" __global__ void
two_streams(Args a)
{
	a.c[threadIdx.x] = a.b[threadIdx.x]; // two_streams
}

extern "C" __global__ void
scratch(Args a)
{
	a.b[threadIdx.x] = a.a[threadIdx.x]; // scratch
	__syncthreads();
	a.c[a.n + threadIdx.x] = a.b[127 - threadIdx.x]; // scratch
}

extern "C" __global__ void
flag(Args a)
{
	if (threadIdx.x)
		return;
	if (blockIdx.x == 0) {
		a.b[0] = 5; // flag
		if (BUG)
			st_relaxed_gpu(a.u, 1u);
		else
			st_release_gpu(a.u, 1u);
	} else {
		while (ld_acquire_gpu(a.u) != 1)
			;
		a.c[0] = a.b[0]; // flag
	}
}

extern "C" __global__ void
flag_scope(Args a)
{
	if (threadIdx.x)
		return;
	if (blockIdx.x == 0) {
		a.b[0] = 5; // flag_scope
		if (BUG)
			st_release_cta(a.u, 1u);
		else
			st_release_gpu(a.u, 1u);
	} else {
		while (ld_acquire_gpu(a.u) != 1) // flag_scope
			;
		a.c[0] = a.b[0]; // flag_scope
	}
}

/* The last block adds what the others wrote; without the fence it may not see it. */
extern "C" __global__ void
last_block(Args a)
{
	struct S { int last; };
	SHARED(S, s);
	a.b[blockIdx.x * blockDim.x + threadIdx.x] = 1; // last_block
	__syncthreads();
	if (threadIdx.x == 0) {
		if (!BUG)
			__threadfence();
		s.last = atomicAdd(a.u, 1u) == gridDim.x - 1;
		__threadfence();
	}
	__syncthreads();
	if (s.last) {
		float v = 0;
		for (unsigned i = 0; i < gridDim.x; i++)
			v += a.b[i * blockDim.x + threadIdx.x]; // last_block
		a.c[threadIdx.x] = v;
	}
}

extern "C" __global__ void
grid_race(Args a)
{
	a.b[blockIdx.x * blockDim.x + threadIdx.x] = 1; // grid_race
	if (!BUG)
		grid_sync();
	a.c[blockIdx.x * blockDim.x + threadIdx.x] = a.b[((blockIdx.x + 1) % gridDim.x) * blockDim.x + threadIdx.x]; // grid_race
}

/* A block exits while its neighbour still reads its shared memory. */
extern "C" __global__ void
cluster_exit(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1;
	if (!BUG)
		cluster_sync();
	a.c[blockIdx.x * blockDim.x + threadIdx.x] = cluster_map(s.x, cluster_rank() ^ 1)[threadIdx.x]; // cluster_exit
	if (!BUG)
		cluster_sync();
}

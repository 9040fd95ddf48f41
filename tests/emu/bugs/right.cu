// Correct kernels that resemble wrong ones: no finding in either mode, with any seed.
struct Args { float *a, *b, *c; int n; unsigned *u; };
struct alignas(128) Tile { float x[128]; };

/* The last block passes a result to all others through a flag with release and acquire. */
extern "C" __global__ void
broadcast(Args a)
{
	if (blockIdx.x == gridDim.x - 1) {
		a.b[threadIdx.x] = a.a[threadIdx.x] + 1;
		__syncthreads();
		if (threadIdx.x == 0)
			st_release_gpu(a.u, 1u);
	} else {
		if (threadIdx.x == 0)
			while (ld_acquire_gpu(a.u) != 1)
				;
		__syncthreads();
		a.c[blockIdx.x * 128 + threadIdx.x] = a.b[threadIdx.x];
	}
}

/* The same with fences around relaxed accesses, each thread on its own */
extern "C" __global__ void
fences(Args a)
{
	unsigned *flag = a.u + threadIdx.x;
	if (blockIdx.x == 0) {
		a.b[threadIdx.x] = 7;
		__threadfence();
		st_relaxed_gpu(flag, 1u);
	} else {
		while (ld_relaxed_gpu(flag) != 1)
			;
		__threadfence();
		a.c[threadIdx.x] = a.b[threadIdx.x];
	}
}

/* Split-KV: the last block combines the parts and resets the counter for the next launch. */
extern "C" __global__ void
splits(Args a)
{
	struct S { unsigned last; };
	SHARED(S, s);
	a.b[blockIdx.x * 128 + threadIdx.x] = a.a[threadIdx.x] + blockIdx.x;
	__syncthreads();
	if (threadIdx.x == 0)
		s.last = atom_add_acq_rel_gpu(a.u, 1u) == gridDim.x - 1;
	__syncthreads();
	if (!s.last)
		return;
	float v = 0;
	for (unsigned i = 0; i < gridDim.x; i++)
		v += a.b[i * 128 + threadIdx.x];
	a.c[threadIdx.x] = v;
	if (threadIdx.x == 0)
		*a.u = 0;
}

/* A lock around a sum in memory */
extern "C" __global__ void
lock(Args a)
{
	if (threadIdx.x)
		return;
	while (atomicCAS(a.u, 0u, 1u) != 0)
		__nanosleep(20);
	__threadfence();
	a.c[0] += 1;
	__threadfence();
	atomicExch(a.u, 0u);
}

/* Tickets: blocks proceed in the order of arrival. */
extern "C" __global__ void
tickets(Args a)
{
	struct S { unsigned mine; };
	SHARED(S, s);
	if (threadIdx.x == 0) {
		s.mine = atom_add_relaxed_gpu(a.u, 1u);
		while (ld_acquire_gpu(a.u + 32) != s.mine)
			;
	}
	__syncthreads();
	a.c[threadIdx.x] = a.c[threadIdx.x] + 1;
	__syncthreads();
	if (threadIdx.x == 0)
		st_release_gpu(a.u + 32, s.mine + 1);
}

/* A histogram: atomics of block scope in shared memory, of device scope in global memory */
extern "C" __global__ void
histogram(Args a)
{
	struct S { unsigned n[16]; };
	SHARED(S, s);
	if (threadIdx.x < 16)
		s.n[threadIdx.x] = 0;
	__syncthreads();
	atom_add_relaxed_cta(&s.n[threadIdx.x % 16], 1u);
	__syncthreads();
	if (threadIdx.x < 16)
		atomicAdd(&a.u[threadIdx.x], s.n[threadIdx.x]);
}

/* Halves of a warp with their own masks, in different branches */
extern "C" __global__ void
masks(Args a)
{
	float v = a.a[threadIdx.x];
	if (lane_id() < 16)
		for (int o = 8; o; o >>= 1)
			v += __shfl_xor_sync(0xffffu, v, o);
	else
		for (int o = 8; o; o >>= 1)
			v = max(v, __shfl_xor_sync(0xffff0000u, v, o));
	__syncwarp();
	a.c[threadIdx.x] = __shfl_sync(~0u, v, lane_id() ^ 31);
}

/* Warps at different named barriers, and all at barrier 0 */
extern "C" __global__ void
named(Args a)
{
	struct S { float x[2][64]; };
	SHARED(S, s);
	int half = threadIdx.x / 64, i = threadIdx.x % 64;
	for (int k = 0; k < 3; k++) {
		s.x[half][i] = a.a[i] + k;
		bar_sync(1 + half, 64);
		a.c[threadIdx.x] = s.x[half][63 - i];
		bar_sync(1 + half, 64);
	}
	bar_sync(0, 128);
	__syncthreads();
	a.c[threadIdx.x] += s.x[half ^ 1][i];
}

/* Lanes pass bytes to each other, and to other warps after the barrier. */
extern "C" __global__ void
bytes(Args a)
{
	struct S { unsigned char x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = (unsigned char)(threadIdx.x * 3);
	__syncwarp();
	unsigned v = s.x[threadIdx.x ^ 1];
	__syncthreads();
	a.c[threadIdx.x] = (float)(v + s.x[127 - threadIdx.x]);
}

/* Three stages of cp.async with one barrier per step: the stage being filled was read before the
 * last barrier. */
extern "C" __global__ void
three_stages(Args a)
{
	struct alignas(16) S { float x[3][512]; };
	SHARED(S, s);
	float v = 0;
	for (int i = 0; i < 2; i++) {
		cp_async_16(s.x[i] + 4 * threadIdx.x, a.a + 512 * i + 4 * threadIdx.x);
		cp_async_commit();
	}
	for (int i = 0; i < 7; i++) {
		cp_async_wait<1>();
		__syncthreads();
		if (i + 2 < 7)
			cp_async_16(s.x[(i + 2) % 3] + 4 * threadIdx.x, a.a + 512 * (i + 2) + 4 * threadIdx.x);
		cp_async_commit();
		v += s.x[i % 3][511 - threadIdx.x];
	}
	a.c[threadIdx.x] = v;
}

/* Producer and consumers of a ring with mbarriers. One lane of each warp releases the stage after
 * __syncwarp. Also mbar_test with both outcomes. */
extern "C" __global__ void
ring(Args a)
{
	struct S { Tile stage[2]; mbar_t full[2], empty[2]; };
	SHARED(S, s);
	if (threadIdx.x == 0) {
		for (int i = 0; i < 2; i++) {
			mbar_init(&s.full[i], 1);
			mbar_init(&s.empty[i], 4);
		}
		fence_mbar_init();
	}
	__syncthreads();
	if (warp_id() == 4) {
		if (lane_id() == 0)
			for (int i = 0; i < 9; i++) {
				mbar_wait(&s.empty[i & 1], (i / 2 & 1) ^ 1);
				fence_proxy_async();
				mbar_arrive_expect(&s.full[i & 1], sizeof(Tile));
				bulk_load(&s.stage[i & 1], a.a + 128 * i, 256, &s.full[i & 1]);
				bulk_load(s.stage[i & 1].x + 64, a.a + 128 * i + 64, 256, &s.full[i & 1]);
			}
	} else {
		float v = 0;
		for (int i = 0; i < 9; i++) {
			if (!mbar_test(&s.full[i & 1], i / 2 & 1))
				mbar_wait(&s.full[i & 1], i / 2 & 1);
			v += s.stage[i & 1].x[127 - threadIdx.x];
			__syncwarp();
			if (lane_id() == 0)
				mbar_arrive(&s.empty[i & 1]);
		}
		a.c[threadIdx.x] = v;
	}
	__syncthreads();
	if (threadIdx.x == 0) { /* the next part of the kernel uses other counts */
		mbar_inval(&s.full[0]);
		mbar_init(&s.full[0], 160);
	}
	__syncthreads();
	mbar_arrive(&s.full[0]);
	mbar_wait(&s.full[0], 0);
}

/* Output through a bulk store, twice from the same buffer */
extern "C" __global__ void
store_twice(Args a)
{
	SHARED(Tile, s);
	for (int i = 0; i < 2; i++) {
		s.x[threadIdx.x] = a.a[threadIdx.x] + i;
		fence_proxy_async();
		__syncthreads();
		if (threadIdx.x == 0) {
			bulk_store(a.c + 128 * i, &s, sizeof s);
			bulk_commit();
			bulk_wait_read<0>();
		}
		__syncthreads();
	}
	if (threadIdx.x == 0)
		bulk_wait<0>();
	__syncthreads();
	a.b[threadIdx.x] = a.c[128 + threadIdx.x];
}

/* Each block of a cluster sends to the other one and reads what arrived, with separate arrive and
 * wait. */
extern "C" __global__ void
exchange(Args a)
{
	struct S { float x[128]; unsigned n; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		s.n = 0;
	cluster_sync();
	cluster_map(s.x, cluster_rank() ^ 1)[threadIdx.x] = a.a[threadIdx.x];
	atom_add_relaxed_cluster(cluster_map(&s.n, cluster_rank() ^ 1), 1u);
	cluster_arrive();
	float v = a.a[threadIdx.x + 128];
	cluster_wait();
	a.c[blockIdx.x * 128 + threadIdx.x] = v + s.x[127 - threadIdx.x] + s.n;
}

/* Rounds of a cooperative grid, with two buffers */
extern "C" __global__ void
rounds(Args a)
{
	int n = gridDim.x * 128, i = blockIdx.x * 128 + threadIdx.x;
	float *from = a.b, *to = a.c;
	for (int k = 0; k < 3; k++) {
		to[i] = from[(i + 128) % n] + 1;
		grid_sync();
		float *x = from;
		from = to;
		to = x;
	}
}

/* A chain of dependent kernels: weights are loaded early, all threads wait, some blocks do nothing
 * else. */
extern "C" __global__ void
produce(Args a)
{
	float w = a.a[threadIdx.x];
	griddep_launch();
	griddep_wait();
	a.b[threadIdx.x] = a.b[threadIdx.x] + w;
}

extern "C" __global__ void
depend(Args a)
{
	struct alignas(16) S { float x[128]; };
	SHARED(S, s);
	if (threadIdx.x < 32)
		cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x); /* read-only data */
	cp_async_commit();
	griddep_launch();
	griddep_wait();
	cp_async_wait<0>();
	__syncthreads();
	if (threadIdx.x < 100)
		a.c[threadIdx.x] = a.b[threadIdx.x] * s.x[127 - threadIdx.x];
}

/* Indices and shifts within their types; a read-only table; registers by index */
extern "C" __global__ void
numbers(Args a)
{
	float acc[4] = { 0, 1, 2, 3 };
	unsigned h = threadIdx.x * 2654435761u;
	long off = (long)(a.n * 128 - 1) * 65536;
	h ^= h >> 15 | h << 17;
	a.c[threadIdx.x] = __ldg(&a.a[h % 128]) + acc[h & 3] + (float)(off >> 33) + (float)(int)(0x80000000u + h);
}

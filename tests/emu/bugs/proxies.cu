// Planted bugs in bulk and tensor copies over bytes that threads have written or read: a proxy
// fence is required in between.
struct Args { float *a, *b, *c; int n; unsigned *u; };
struct alignas(128) Tile { float x[128]; };
struct Stage { Tile x; mbar_t full, empty; };

__device__ __forceinline__ void
begin(Stage &s, unsigned readers)
{
	if (threadIdx.x == 0) {
		mbar_init(&s.full, 1);
		mbar_init(&s.empty, readers);
	}
	__syncthreads();
}

/* The threads clear the tile before a copy fills it. */
extern "C" __global__ void
load_over_writes(Args a)
{
	SHARED(Stage, s);
	s.x.x[threadIdx.x] = 0; // load_over_writes
	if (!BUG)
		fence_proxy_async();
	begin(s, 1);
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.a, sizeof s.x, &s.full); // load_over_writes
	}
	mbar_wait(&s.full, 0);
	a.c[threadIdx.x] = s.x.x[127 - threadIdx.x];
}

/* Only one thread has written, to the middle of the tile. */
extern "C" __global__ void
load_over_one(Args a)
{
	SHARED(Stage, s);
	if (threadIdx.x == 77)
		s.x.x[90] = 1; // load_over_one
	if (!BUG || threadIdx.x != 77)
		fence_proxy_async();
	begin(s, 1);
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.a, sizeof s.x, &s.full); // load_over_one
	}
	mbar_wait(&s.full, 0);
	a.c[threadIdx.x] = s.x.x[127 - threadIdx.x];
}

/* The second tile overwrites what all threads have read; they fence. */
extern "C" __global__ void
load_over_reads(Args a)
{
	SHARED(Stage, s);
	float v = 0;
	begin(s, 1);
	for (int i = 0; i < 2; i++) {
		if (threadIdx.x == 0) {
			mbar_arrive_expect(&s.full, sizeof s.x);
			bulk_load(&s.x, a.a + 128 * i, sizeof s.x, &s.full); // load_over_reads
		}
		mbar_wait(&s.full, i);
		v += s.x.x[127 - threadIdx.x]; // load_over_reads
		if (!BUG)
			fence_proxy_async();
		__syncthreads();
	}
	a.c[threadIdx.x] = v;
}

/* The producer fences before it waits for the readers of the stage. */
extern "C" __global__ void
fence_early(Args a)
{
	SHARED(Stage, s);
	begin(s, 128);
	if (threadIdx.x == 128) {
		for (int i = 0; i < 3; i++) {
			if (BUG)
				fence_proxy_async();
			mbar_wait(&s.empty, (i & 1) ^ 1);
			if (!BUG)
				fence_proxy_async();
			mbar_arrive_expect(&s.full, sizeof s.x);
			bulk_load(&s.x, a.a + 128 * i, sizeof s.x, &s.full); // fence_early
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 3; i++) {
			mbar_wait(&s.full, i & 1);
			v += s.x.x[127 - threadIdx.x]; // fence_early
			mbar_arrive(&s.empty);
		}
		a.c[threadIdx.x] = v;
	}
}

/* A thread fences that is neither the reader nor the one that issues the copy. */
extern "C" __global__ void
fence_elsewhere(Args a)
{
	SHARED(Stage, s);
	float v = 0;
	begin(s, 1);
	for (int i = 0; i < 2; i++) {
		if (threadIdx.x == 0) {
			mbar_arrive_expect(&s.full, sizeof s.x);
			bulk_load(&s.x, a.a + 128 * i, sizeof s.x, &s.full); // fence_elsewhere
		}
		mbar_wait(&s.full, i);
		if (threadIdx.x < 32)
			v += s.x.x[127 - threadIdx.x]; // fence_elsewhere
		__syncthreads();
		if (BUG ? threadIdx.x >= 32 : threadIdx.x == 0)
			fence_proxy_async();
	}
	a.c[threadIdx.x] = v;
}

/* Each block of a cluster of two fills half of both tiles per round; threads of both have read
 * them. */
extern "C" __global__ void
multicast_over_reads(Args a)
{
	SHARED_STORAGE(Stage, s);
	const unsigned rank = cluster_rank();
	float v = 0;
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	cluster_sync();
	for (int i = 0; i < 2; i++) {
		if (threadIdx.x == 0) {
			if (!BUG)
				fence_proxy_async();
			mbar_arrive_expect(&s.full, 512);
			bulk_load_multicast(s.x.x + 64 * rank, a.a + 128 * i + 64 * rank, 256, &s.full, 3); // multicast_over_reads
		}
		mbar_wait(&s.full, i);
		v += s.x.x[127 - threadIdx.x]; // multicast_over_reads
		cluster_sync();
	}
	a.c[blockIdx.x * 128 + threadIdx.x] = v;
}

/* The threads have cleared the output; the fence covers shared memory only. */
extern "C" __global__ void
store_over_writes(Args a)
{
	SHARED(Tile, s);
	s.x[threadIdx.x] = 1;
	a.c[threadIdx.x] = 0; // store_over_writes
	fence_proxy_async();
	if (!BUG)
		fence_proxy_async_global();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(a.c, &s, sizeof s); // store_over_writes
		bulk_commit();
		bulk_wait<0>();
	}
}

/* A residual stream: the threads read it, then a copy stores over it. */
extern "C" __global__ void
store_over_reads(Args a)
{
	SHARED(Tile, s);
	s.x[threadIdx.x] = a.c[threadIdx.x] + 1; // store_over_reads
	fence_proxy_async();
	if (!BUG)
		fence_proxy_async_global();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(a.c, &s, sizeof s); // store_over_reads
		bulk_commit();
		bulk_wait<0>();
	}
}

/* A copy loads the block's own output. */
extern "C" __global__ void
load_of_writes(Args a)
{
	SHARED(Stage, s);
	a.b[threadIdx.x] = 2; // load_of_writes
	if (!BUG)
		fence_proxy_async_global();
	begin(s, 1);
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.b, sizeof s.x, &s.full); // load_of_writes
	}
	mbar_wait(&s.full, 0);
	a.c[threadIdx.x] = s.x.x[127 - threadIdx.x];
}

/* A box of a tensor map (u) overwrites what threads have read. */
extern "C" __global__ void
box_over_reads(Args a)
{
	SHARED(Stage, s);
	float v = 0;
	begin(s, 1);
	for (int i = 0; i < 2; i++) {
		if (threadIdx.x == 0) {
			fence_tensor_map((const tensor_map *)a.u);
			if (!BUG)
				fence_proxy_async();
			mbar_arrive_expect(&s.full, sizeof s.x);
			tensor_load_1d(&s.x, (const tensor_map *)a.u, 128 * i, &s.full); // box_over_reads
		}
		mbar_wait(&s.full, i);
		v += s.x.x[127 - threadIdx.x]; // box_over_reads
		__syncthreads();
	}
	a.b[threadIdx.x] = v;
}

/* A box of a tensor map is stored over what the threads wrote there. */
extern "C" __global__ void
box_over_writes(Args a)
{
	SHARED(Tile, s);
	s.x[threadIdx.x] = 1;
	a.c[threadIdx.x] = 0; // box_over_writes
	fence_proxy_async();
	if (!BUG)
		fence_proxy_async_global();
	__syncthreads();
	if (threadIdx.x == 0) {
		fence_tensor_map((const tensor_map *)a.u);
		tensor_store_1d((const tensor_map *)a.u, 0, &s); // box_over_writes
		bulk_commit();
		bulk_wait<0>();
	}
}

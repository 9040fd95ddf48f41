// Correct uses of vector add, a reduction, collectives, matrix instructions and asynchronous copies
struct Args {
	float *a, *b, *c;
	int n;
	unsigned *u;
};

extern "C" __global__ void __launch_bounds__(256) add(Args a)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < a.n)
		a.c[i] = a.a[i] + a.b[i];
}

extern "C" __global__ void
add_many(const float *x, const float *y, float *z, int n, float scale)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		z[i] = (x[i] + y[i]) * scale;
}

/* c[block] = sum; the last block to finish adds all sums into c[gridDim.x]. */
extern "C" __global__ void
sum(Args a)
{
	struct S {
		float part[8];
		int last;
	};
	SHARED(S, s);
	float v = 0;
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += gridDim.x * blockDim.x)
		v += a.a[i];
	v = warp_sum(v);
	if (lane_id() == 0)
		s.part[warp_id()] = v;
	__syncthreads();
	if (threadIdx.x == 0) {
		float t = 0;
		for (unsigned w = 0; w < blockDim.x / 32; w++)
			t += s.part[w];
		a.c[blockIdx.x] = t;
		__threadfence();
		s.last = atomicAdd(a.u, 1u) == gridDim.x - 1;
		__threadfence();
		if (s.last) {
			float all = 0;
			for (unsigned b = 0; b < gridDim.x; b++)
				all += a.c[b];
			a.c[gridDim.x] = all;
		}
	}
}

/* u[0..]: results of collectives by lane, each checked on the host */
extern "C" __global__ void
warp(Args a)
{
	unsigned l = lane_id(), *u = a.u;
	u[l] = __shfl_sync(~0u, l * 3, 5);
	u[32 + l] = __shfl_xor_sync(~0u, l, 1);
	u[64 + l] = __shfl_up_sync(~0u, l, 2);
	u[96 + l] = __shfl_down_sync(~0u, l, 4, 8);
	u[128 + l] = __ballot_sync(~0u, l & 1);
	u[160 + l] = __match_any_sync(~0u, l / 8);
	u[192 + l] = __reduce_add_sync(~0u, l);
	u[224 + l] = (unsigned)__reduce_max_sync(~0u, (int)l - 40);
	if (l < 16)
		u[256 + l] = __reduce_min_sync(0xffffu, l + 7);
	else
		u[256 + l] = __reduce_min_sync(0xffff0000u, l + 7);
	int p;
	u[288 + l] = __match_all_sync(~0u, 7, &p) + p;
	u[320 + l] = __byte_perm(0x03020100, 0x07060504, 0x6240) + __any_sync(~0u, l == 3) +
	             (unsigned)__dp4a(0x01ff0203, 0x01010101, 10);
}

/* c = a (16 x 16, row major bf16 in a.u) times b (16 x 8, stored as b^T), through cp.async,
 * ldmatrix and mma. */
extern "C" __global__ void
mma(Args a)
{
	struct alignas(16) Tile {
		unsigned short a[16][16], b[8][16];
	};
	SHARED_STORAGE(Tile, t);
	unsigned l = lane_id();
	cp_async_16((char *)t.a + l * 16, (const char *)a.u + l * 16);
	if (l < 16)
		cp_async_16((char *)t.b + l * 16, (const char *)a.u + 512 + l * 16);
	cp_async_commit();
	cp_async_wait<0>();
	__syncwarp();
	unsigned fa[4], fb[2];
	float d[4] = { 0, 0, 0, 0 };
	ldmatrix_x4(fa, &t.a[(l & 7) + (l & 8)][l & 16 ? 8 : 0]);
	ldmatrix_x2(fb, &t.b[l & 7][l & 8 ? 8 : 0]);
	mma_bf16_m16n8k16(d, fa, fb, d);
	unsigned g = l / 4, q = l % 4;
	st_v2(&a.c[g * 8 + 2 * q], make_uint2(__float_as_uint(d[0]), __float_as_uint(d[1])));
	st_v2(&a.c[(g + 8) * 8 + 2 * q], make_uint2(__float_as_uint(d[2]), __float_as_uint(d[3])));
}

/* The same with int8, k = 32, fragments loaded from memory: a.u holds A (16 x 32), then B^T (8 x
 * 32). */
extern "C" __global__ void
mma_int8(Args a)
{
	unsigned g = lane_id() / 4, q = lane_id() % 4, fa[4], fb[2];
	int d[4] = { 1, 1, 1, 1 };
	for (int i = 0; i < 4; i++)
		fa[i] = a.u[(g + 8 * (i & 1)) * 8 + q + 4 * (i >> 1)];
	for (int i = 0; i < 2; i++)
		fb[i] = a.u[128 + g * 8 + q + 4 * i];
	mma_s8_m16n8k32(d, fa, fb, d);
	for (int i = 0; i < 4; i++)
		a.c[(g + 8 * (i >> 1)) * 8 + 2 * q + (i & 1)] = (float)d[i];
}

/* Warp 0 fills two stages by bulk copies, the others add them: mbarriers in both directions. */
extern "C" __global__ void
ring(Args a)
{
	struct alignas(16) Ring {
		float stage[2][64];
		mbar_t full[2], empty[2];
	};
	SHARED(Ring, r);
	int tiles = a.n / 64;
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1);
			mbar_init(&r.empty[i], 64);
		}
	__syncthreads();
	if (warp_id() == 0) {
		if (lane_id() == 0)
			for (int i = 0; i < tiles; i++) {
				int s = i & 1;
				mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1);
				/* the copy overwrites what the other warps have read */
				fence_proxy_async();
				mbar_arrive_expect(&r.full[s], 256);
				bulk_load(r.stage[s], a.a + i * 64, 256, &r.full[s]);
			}
	} else {
		int k = threadIdx.x - 32;
		float v = 0;
		for (int i = 0; i < tiles; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1);
			v += r.stage[s][k];
			mbar_arrive(&r.empty[s]);
		}
		a.c[k] = v;
	}
}

/* Named barriers: half of the block produces, half consumes. */
extern "C" __global__ void
halves(Args a)
{
	struct S {
		float x[64];
	};
	SHARED(S, s);
	int t = threadIdx.x;
	for (int i = 0; i < 3; i++) {
		if (t < 64) {
			if (i)
				bar_sync(2, 128);
			s.x[t] = a.a[t] * (i + 1);
			bar_arrive(1, 128);
		} else {
			bar_sync(1, 128);
			a.c[i * 64 + t - 64] = s.x[(t + 1) & 63];
			if (i < 2)
				bar_arrive(2, 128);
		}
	}
}

/* Clusters of two: each block reads the other's shared memory. */
extern "C" __global__ void
cluster(Args a)
{
	struct S {
		float x[32];
	};
	SHARED(S, s);
	s.x[threadIdx.x] = a.a[blockIdx.x * 32 + threadIdx.x];
	cluster_sync();
	float *other = cluster_map(s.x, cluster_rank() ^ 1);
	a.c[blockIdx.x * 32 + threadIdx.x] = other[threadIdx.x];
	cluster_sync();
}

/* Every block writes, all synchronise, every block reads its neighbour. */
extern "C" __global__ void
grid(Args a)
{
	a.b[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x;
	grid_sync();
	a.c[blockIdx.x * blockDim.x + threadIdx.x] =
	    a.b[((blockIdx.x + 1) % gridDim.x) * blockDim.x + threadIdx.x];
}

/* A flag from block to block, with release and acquire */
extern "C" __global__ void
chain(Args a)
{
	if (threadIdx.x == 0) {
		float before = 0;
		if (blockIdx.x) {
			while (ld_acquire_gpu(a.u) != blockIdx.x)
				;
			before = a.c[blockIdx.x - 1];
		}
		a.c[blockIdx.x] = before + 1;
		st_release_gpu(a.u, blockIdx.x + 1);
	}
}

/* One of a chain of dependent kernels: reads weights before the wait, the predecessor's output
 * after it. */
extern "C" __global__ void
step(Args a)
{
	float w = a.a[threadIdx.x];
	griddep_launch();
	griddep_wait();
	a.c[threadIdx.x] += w;
}

/* u[1 + n] = number of earlier arrivals */
extern "C" __global__ void
note(Args a)
{
	if (threadIdx.x == 0)
		a.u[1 + a.n] = atomicAdd(a.u, 1u);
}

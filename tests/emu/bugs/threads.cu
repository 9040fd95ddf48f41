// More planted bugs within a block: reductions, masks, named barriers, memory, as they occur in
// kernels of language models
struct Args { float *a, *b, *c; int n; unsigned *u; };

/* Two consecutive block reductions share scratch. The second may write before all threads have read
 * the first result. */
static __device__ float
block_sum(float v, float (&part)[4], bool fence)
{
	v = warp_sum(v);
	if (lane_id() == 0)
		part[warp_id()] = v; // reduce_twice
	__syncthreads();
	v = part[0] + part[1] + part[2] + part[3]; // reduce_twice
	if (fence)
		__syncthreads();
	return v;
}

extern "C" __global__ void
reduce_twice(Args a)
{
	struct S { float part[4]; };
	SHARED(S, s);
	float x = block_sum(a.a[threadIdx.x], s.part, !BUG);
	a.c[threadIdx.x] = x + block_sum(a.a[threadIdx.x] * x, s.part, !BUG);
}

/* Only thread 0 adds the warps' sums; the others read the result without a barrier. */
extern "C" __global__ void
reduce_broadcast(Args a)
{
	struct S { float part[4], all; };
	SHARED(S, s);
	float v = warp_sum(a.a[threadIdx.x]);
	if (lane_id() == 0)
		s.part[warp_id()] = v;
	__syncthreads();
	if (threadIdx.x == 0)
		s.all = s.part[0] + s.part[1] + s.part[2] + s.part[3]; // reduce_broadcast
	if (!BUG)
		__syncthreads();
	a.c[threadIdx.x] = s.all; // reduce_broadcast
}

/* Scratch for four warps, launched with more */
extern "C" __global__ void
reduce_warps(Args a)
{
	struct S { float part[4]; };
	SHARED(S, s);
	if (lane_id() == 0 && (BUG || warp_id() < 4))
		s.part[warp_id()] = 1; // reduce_warps
	__syncthreads();
	a.c[threadIdx.x] = 0;
}

/* The scratch is summed over the number of warps of an earlier launch: the last entries are
 * unwritten. */
extern "C" __global__ void
reduce_few(Args a)
{
	struct S { float part[8]; };
	SHARED(S, s);
	float v = warp_sum(a.a[threadIdx.x]);
	if (lane_id() == 0)
		s.part[warp_id()] = v;
	__syncthreads();
	v = 0;
	for (unsigned w = 0; w < (BUG ? 8 : blockDim.x / 32); w++)
		v += s.part[w]; // reduce_few
	a.c[threadIdx.x] = v;
}

/* A warp sum under a condition that holds for some lanes only */
extern "C" __global__ void
half_warp_sum(Args a)
{
	float v = a.a[threadIdx.x];
	if (!BUG || threadIdx.x % 32 < 16)
		v = warp_sum(v); // half_warp_sum
	a.c[threadIdx.x] = v;
}

/* A block of 48 threads: the second warp is half full. */
extern "C" __global__ void
half_warp_block(Args a)
{
	float v = a.a[threadIdx.x];
	if (!BUG)
		v = threadIdx.x < 32 ? warp_sum(v) : v;
	else
		v = warp_sum(v); // half_warp_block
	a.c[threadIdx.x] = v;
}

extern "C" __global__ void
mask_without_me(Args a)
{
	unsigned m = BUG ? 0xfffffffeu : ~0u;
	a.c[threadIdx.x] = __shfl_down_sync(m, a.a[threadIdx.x], 1); // mask_without_me
}

/* Two branches of one warp are at different shuffles with the full mask. */
extern "C" __global__ void
two_shuffles(Args a)
{
	float v = a.a[threadIdx.x], w;
	if (BUG && threadIdx.x % 32 < 16)
		w = __shfl_xor_sync(~0u, v, 1); // two_shuffles
	else
		w = __shfl_xor_sync(~0u, v, 2); // two_shuffles
	a.c[threadIdx.x] = w;
}

/* The partner is in the other half, which has its own mask. */
extern "C" __global__ void
other_half(Args a)
{
	unsigned m = threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u;
	a.c[threadIdx.x] = __shfl_xor_sync(m, a.a[threadIdx.x], BUG ? 16 : 8); // other_half
}

/* __syncwarp with a mask without the writer */
extern "C" __global__ void
syncwarp_mask(Args a)
{
	struct S { float x; };
	SHARED(S, s);
	if (threadIdx.x == 31)
		s.x = a.a[0]; // syncwarp_mask
	if (!BUG)
		__syncwarp();
	else if (threadIdx.x < 31)
		__syncwarp(0x7fffffffu);
	a.c[threadIdx.x] = s.x; // syncwarp_mask
}

/* __syncwarp where a block barrier is needed */
extern "C" __global__ void
syncwarp_block(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = a.a[threadIdx.x]; // syncwarp_block
	if (BUG)
		__syncwarp();
	else
		__syncthreads();
	a.c[threadIdx.x] = s.x[threadIdx.x ^ 32]; // syncwarp_block
}

/* The number of iterations depends on the thread. */
extern "C" __global__ void
barrier_in_loop(Args a)
{
	for (int i = threadIdx.x; i < (BUG ? 130 : 256); i += 128)
		__syncthreads(); // barrier_in_loop
	a.c[threadIdx.x] = 1;
}

/* Threads beyond the row exit before the block's barrier. */
extern "C" __global__ void
early_return(Args a)
{
	struct S { float x[128]; };
	SHARED(S, s);
	if (BUG && threadIdx.x >= 100)
		return;
	s.x[threadIdx.x] = a.a[threadIdx.x];
	__syncthreads(); // early_return
	a.c[threadIdx.x] = s.x[threadIdx.x ^ 1];
}

/* bar_arrive does not wait. */
extern "C" __global__ void
arrive_and_read(Args a)
{
	struct S { float x[64]; };
	SHARED(S, s);
	if (threadIdx.x < 64)
		s.x[threadIdx.x] = a.a[threadIdx.x]; // arrive_and_read
	if (BUG && threadIdx.x >= 64)
		bar_arrive(1, 128);
	else
		bar_sync(1, 128);
	if (threadIdx.x >= 64)
		a.c[threadIdx.x] = s.x[threadIdx.x - 64]; // arrive_and_read
}

/* Producer and consumer of a named barrier pass different thread counts. */
extern "C" __global__ void
named_disagree(Args a)
{
	if (threadIdx.x < 32)
		bar_arrive(3, BUG ? 64 : 128); // named_disagree
	else
		bar_sync(3, 128); // named_disagree
	a.c[threadIdx.x] = 1;
}

extern "C" __global__ void
named_odd(Args a)
{
	if (threadIdx.x < 64)
		bar_sync(2, BUG ? 48 : 64); // named_odd
	a.c[threadIdx.x] = 1;
}

/* Barrier 0 is __syncthreads. */
extern "C" __global__ void
named_zero(Args a)
{
	__syncthreads(); // named_zero
	if (threadIdx.x < 64)
		bar_sync(BUG ? 0 : 1, 64); // named_zero
	__syncthreads(); // named_zero
	a.c[threadIdx.x] = 1;
}

/* The producer refills its only buffer without waiting for the consumer. */
extern "C" __global__ void
named_overrun(Args a)
{
	struct S { float x[64]; };
	SHARED(S, s);
	int t = threadIdx.x;
	for (int i = 0; i < 3; i++) {
		if (t < 64) {
			if (i && !BUG)
				bar_sync(2, 128);
			s.x[t] = a.a[t] * (i + 1); // named_overrun
			bar_arrive(1, 128); // named_overrun
		} else {
			bar_sync(1, 128); // named_overrun
			a.c[i * 64 + t - 64] = s.x[(t + 1) & 63]; // named_overrun
			if (i < 2 && !BUG)
				bar_arrive(2, 128);
		}
	}
}

/* A counter in shared memory is incremented before all threads see its zero. */
extern "C" __global__ void
counter_zero(Args a)
{
	struct S { unsigned n; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		s.n = 0; // counter_zero
	if (!BUG)
		__syncthreads();
	atomicAdd(&s.n, 1u); // counter_zero
	__syncthreads();
	a.c[threadIdx.x] = s.n;
}

/* A counter is read while other threads still increment it. */
extern "C" __global__ void
counter_read(Args a)
{
	struct S { unsigned n; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		s.n = 0;
	__syncthreads();
	atomicAdd(&s.n, 1u); // counter_read
	if (!BUG)
		__syncthreads();
	a.c[threadIdx.x] = s.n; // counter_read
}

/* A sum without atomics */
extern "C" __global__ void
plain_sum(Args a)
{
	if (BUG)
		a.c[0] += a.a[threadIdx.x]; // plain_sum
	else
		atomicAdd(&a.c[0], a.a[threadIdx.x]);
}

/* volatile does not order memory. */
extern "C" __global__ void
volatile_flag(Args a)
{
	struct S { unsigned flag; float x; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		s.flag = 0;
	__syncthreads();
	if (threadIdx.x == 0) {
		s.x = a.a[0]; // volatile_flag
		if (BUG)
			*(volatile unsigned *)&s.flag = 1; // volatile_flag
		else
			st_release_cta(&s.flag, 1u);
	} else if (threadIdx.x == 64) {
		if (BUG)
			for (int i = 0; i < 100 && !*(volatile unsigned *)&s.flag; i++) // volatile_flag
				;
		else
			while (!ld_acquire_cta(&s.flag))
				;
		a.c[0] = s.x; // volatile_flag
	}
}

/* Bytes: neighbouring threads write the two halves of one shadow cell. */
extern "C" __global__ void
bytes(Args a)
{
	struct S { unsigned char x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = (unsigned char)threadIdx.x; // bytes
	if (!BUG)
		__syncthreads();
	a.c[threadIdx.x] = s.x[(threadIdx.x + 64) & 127]; // bytes
}

/* The row has an odd number of columns; its last 16-byte load crosses the end of the tensor. */
extern "C" __global__ void
odd_columns(Args a)
{
	const int cols = BUG ? 4098 : 4096;
	uint4 v = make_uint4(0, 0, 0, 0);
	for (int i = 4 * threadIdx.x; i < cols; i += 512)
		v.x += ld_v4(a.a + i).x; // odd_columns
	a.c[threadIdx.x] = (float)v.x;
}

/* Position -1 of a convolution or of a shifted row */
extern "C" __global__ void
before_first(Args a)
{
	int i = threadIdx.x;
	a.c[i] = BUG || i ? a.a[i - 1] : 0; // before_first
}

/* An offset into a large tensor that does not fit in 32 bits */
extern "C" __global__ void
wide_offset(Args a)
{
	int row = a.n * 128 - 1, cols = 65536;
	long last = BUG ? row * cols : (long)row * cols; // wide_offset
	a.c[threadIdx.x] = (float)(last >> 20);
}

/* A shift by the full width: 0 on a GPU, unchanged on a CPU */
extern "C" __global__ void
wide_shift(Args a)
{
	unsigned m = ~0u >> (32 - (threadIdx.x % 32 + (BUG ? 0 : 1))); // wide_shift
	a.c[threadIdx.x] = (float)m;
}

/* An index table without the bound of the tensor */
extern "C" __global__ void
wild_index(Args a)
{
	int page = BUG && threadIdx.x == 77 ? 1 << 20 : 0;
	a.c[threadIdx.x] = a.b[page * 32l + threadIdx.x]; // wild_index
}

/* An array in registers is indexed by the row within the block instead of the row within the
 * thread. */
extern "C" __global__ void
register_index(Args a)
{
	float acc[8];
	for (int i = 0; i < 8; i++)
		acc[i] = a.a[i];
	a.c[threadIdx.x] = acc[BUG ? threadIdx.x / 8 : threadIdx.x & 7]; // register_index
}

/* The second array of the arena starts inside the first one. */
extern "C" __global__ void
arena_overlap(Args a)
{
	SHARED_BYTES(arena);
	float *x = (float *)arena, *y = x + (BUG ? 96 : 128);
	x[threadIdx.x] = a.a[threadIdx.x]; // arena_overlap
	y[threadIdx.x] = 1; // arena_overlap
	__syncthreads();
	a.c[threadIdx.x] = x[threadIdx.x] + y[127 - threadIdx.x];
}

/* The arena's struct is larger than the dynamic shared memory of the launch. */
extern "C" __global__ void
arena_small(Args a)
{
	struct S { float x[BUG ? 160 : 128]; };
	SHARED_STORAGE(S, s); // arena_small
	s.x[threadIdx.x] = 1;
	a.c[threadIdx.x] = s.x[threadIdx.x];
}

/* Reads through the read-only path what the kernel itself has written. */
extern "C" __global__ void
const_path(Args a)
{
	a.b[threadIdx.x] = a.a[threadIdx.x]; // const_path
	__syncthreads();
	a.c[threadIdx.x] = BUG ? __ldg(&a.b[127 - threadIdx.x]) : a.b[127 - threadIdx.x]; // const_path
}

/* The reverse: an ordered write to memory that was read through the read-only path. The read-only
 * cache may hold the old value for another block. */
extern "C" __global__ void
const_written(Args a)
{
	const float x = BUG ? __ldg(&a.b[127 - threadIdx.x]) : a.b[127 - threadIdx.x];
	__syncthreads();
	a.b[threadIdx.x] = x; // const_written
	a.c[threadIdx.x] = x;
}

/* Rows beyond the sequence keep the previous content of shared memory. */
extern "C" __global__ void
masked_rows(Args a)
{
	struct S { float k[128]; };
	SHARED(S, s);
	int n = 100;
	if (threadIdx.x < n)
		s.k[threadIdx.x] = a.a[threadIdx.x];
	else if (!BUG)
		s.k[threadIdx.x] = 0;
	__syncthreads();
	float v = 0;
	for (int i = 0; i < 128; i++)
		v += s.k[i] * (i < n ? 1.f : 0.f); // masked_rows
	a.c[threadIdx.x] = v;
}

/* A pointer to a local is passed to another thread by a shuffle. */
extern "C" __global__ void
local_by_shuffle(Args a)
{
	float mine = a.a[threadIdx.x];
	float *p = __shfl_sync(~0u, &mine, BUG ? 0 : lane_id());
	a.c[threadIdx.x] = *p; // local_by_shuffle
}

extern "C" __global__ void
ldmatrix_half(Args a)
{
	struct alignas(16) S { unsigned short x[16][16]; };
	SHARED(S, s);
	for (int i = threadIdx.x; i < 256; i += 32)
		s.x[i / 16][i % 16] = 0;
	__syncwarp();
	unsigned r[4] = { 0, 0, 0, 0 };
	if (!BUG || threadIdx.x < 16)
		ldmatrix_x4(r, &s.x[threadIdx.x & 15][threadIdx.x & 16 ? 8 : 0]); // ldmatrix_half
	a.c[threadIdx.x] = (float)r[0];
}

extern "C" __global__ void
ldmatrix_row(Args a)
{
	enum { W = BUG ? 18 : 24 };
	struct alignas(16) S { unsigned short x[16][W]; };
	SHARED(S, s);
	for (int i = threadIdx.x; i < 16 * W; i += 32)
		s.x[i / W][i % W] = 0;
	__syncwarp();
	unsigned r[4];
	ldmatrix_x4(r, &s.x[threadIdx.x & 15][threadIdx.x & 16 ? 8 : 0]); // ldmatrix_row
	a.c[threadIdx.x] = (float)r[0];
}

/* Lanes read fragments that other lanes wrote, with only a shuffle in between. */
extern "C" __global__ void
ldmatrix_race(Args a)
{
	struct alignas(16) S { unsigned short x[8][8]; };
	SHARED(S, s);
	s.x[threadIdx.x / 4][2 * (threadIdx.x & 3)] = 1; // ldmatrix_race
	s.x[threadIdx.x / 4][2 * (threadIdx.x & 3) + 1] = 1; // ldmatrix_race
	if (!BUG)
		__syncwarp();
	unsigned r[1];
	ldmatrix_x1(r, s.x[threadIdx.x & 7]); // ldmatrix_race
	a.c[threadIdx.x] = (float)r[0];
}

extern "C" __global__ void
mma_in_branch(Args a)
{
	unsigned fa[4] = { 0, 0, 0, 0 }, fb[2] = { 0, 0 };
	float d[4] = { 0, 0, 0, 0 };
	if (!BUG || threadIdx.x < 24)
		mma_bf16_m16n8k16(d, fa, fb, d); // mma_in_branch
	a.c[threadIdx.x] = d[0];
}

/* A counter that is never set to zero */
extern "C" __global__ void
counter_never(Args a)
{
	struct S { unsigned n; };
	SHARED(S, s);
	if (!BUG && threadIdx.x == 0)
		s.n = 0;
	__syncthreads();
	atomicAdd(&s.n, 1u); // counter_never
	__syncthreads();
	a.c[threadIdx.x] = s.n;
}

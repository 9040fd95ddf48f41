// Planted bugs in warpgroup matrix instructions, in bulk stores, and in the writes of threads that
// they read
struct Args { float *a, *b, *c; int n; unsigned *u; };
struct alignas(1024) Tiles { unsigned short a[64 * 64], b[64 * 64]; };

/* Both operands, 64 x 64, rows of 128 bytes; the values do not matter here. */
static __device__ void
fill(Tiles &s, bool fence)
{
	for (int i = threadIdx.x; i < 64 * 64; i += 128)
		s.a[i] = s.b[i] = 0x3f80;
	if (fence)
		fence_proxy_async();
	__syncthreads();
}

static __device__ unsigned long long desc(const unsigned short *p) { return smem_desc(p, 16, 1024, 128); }

extern "C" __global__ void
wgmma_no_wait(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), 0);
	wgmma_commit();
	if (!BUG)
		wgmma_wait<0>();
	p.c[threadIdx.x] = d[3]; // wgmma_no_wait
	if (BUG)
		wgmma_wait<0>();
}

extern "C" __global__ void
wgmma_wait_one(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32], e[32];
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), 0);
	wgmma_commit();
	wgmma_fence();
	wgmma_bf16_m64n64k16(e, desc(s.a), desc(s.b), 0);
	wgmma_commit();
	wgmma_wait<BUG>();
	p.c[threadIdx.x] = d[3] + e[3]; // wgmma_wait_one
	wgmma_wait<0>();
}

extern "C" __global__ void
wgmma_no_fence(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	fill(s, true);
	for (int i = 0; i < 32; i++)
		d[i] = 1;
	if (!BUG)
		wgmma_fence();
	wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), 1); // wgmma_no_fence
	wgmma_commit();
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

extern "C" __global__ void
wgmma_no_proxy_fence(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	fill(s, !BUG);
	wgmma_fence();
	wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), 0); // wgmma_no_proxy_fence
	wgmma_commit();
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

/* The next tile is written while the instruction may still read this one. */
extern "C" __global__ void
wgmma_reuse(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	fill(s, true);
	for (int k = 0; k < 2; k++) {
		wgmma_fence();
		wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), k); // wgmma_reuse
		wgmma_commit();
		if (!BUG)
			wgmma_wait<0>();
		__syncthreads();
		if (k == 0) {
			s.a[threadIdx.x] = 0; // wgmma_reuse
			fence_proxy_async();
		}
		__syncthreads();
	}
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

extern "C" __global__ void
wgmma_registers(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	unsigned a[4] = { 1, 2, 3, 4 };
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n64k16_ra(d, a, desc(s.b), 0);
	wgmma_commit();
	if (!BUG)
		wgmma_wait<0>();
	a[threadIdx.x & 3] = 7; // wgmma_registers
	wgmma_wait<0>();
	wgmma_fence();
	wgmma_bf16_m64n64k16_ra(d, a, desc(s.b), 1);
	wgmma_commit();
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

extern "C" __global__ void
wgmma_registers_in_turns(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	unsigned a[2][4] = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } };
	fill(s, true);
	for (int k = 0; k < 2; k++) {
		wgmma_fence();
		wgmma_bf16_m64n64k16_ra(d, a[k], desc(s.b), k);
		wgmma_commit();
	}
	wgmma_wait<1>();
	a[BUG][threadIdx.x & 3] = 7; // wgmma_registers_in_turns
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0] + a[1][0];
}

extern "C" __global__ void
wgmma_three_warps(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32] = { 0 };
	fill(s, true);
	if (!BUG || threadIdx.x >= 32) {
		wgmma_fence();
		wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), 0);
		wgmma_commit();
		wgmma_wait<0>(); // wgmma_three_warps
	}
	p.c[threadIdx.x] = d[0];
}

/* Two warps pass other operands. */
extern "C" __global__ void
wgmma_disagree(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n64k16(d, desc(BUG && threadIdx.x >= 64 ? s.b : s.a), desc(s.b), 0); // wgmma_disagree
	wgmma_commit();
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

/* One row further the swizzle pattern is different. */
extern "C" __global__ void
wgmma_swizzle(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[16];
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n32k16(d, desc(s.a), desc(s.b + (BUG ? 64 : 512)), 0); // wgmma_swizzle
	wgmma_commit();
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

extern "C" __global__ void
wgmma_beyond(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[64];
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n128k16(d, desc(s.a), desc(BUG ? s.b : s.a), 0); // wgmma_beyond
	wgmma_commit();
	wgmma_wait<0>();
	p.c[threadIdx.x] = d[0];
}

extern "C" __global__ void
wgmma_leave(Args p)
{
	SHARED_STORAGE(Tiles, s);
	float d[32];
	fill(s, true);
	wgmma_fence();
	wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), 0); // wgmma_leave
	wgmma_commit();
	if (!BUG)
		wgmma_wait<0>();
	p.c[threadIdx.x] = 0;
}

/* A ring of one stage: the bulk copy of the second tile must wait for the warps that multiply the
 * first. */
extern "C" __global__ void
ring_refill(Args p)
{
	SHARED_STORAGE(Tiles, s);
	struct Bars { mbar_t full, empty; };
	SHARED(Bars, bar);
	if (threadIdx.x == 0) {
		mbar_init(&bar.full, 1);
		mbar_init(&bar.empty, 4);
	}
	__syncthreads();
	if (threadIdx.x < 128) {
		float d[32];
		for (int k = 0; k < 2; k++) {
			mbar_wait(&bar.full, k);
			wgmma_fence();
			wgmma_bf16_m64n64k16(d, desc(s.a), desc(s.b), k); // ring_refill
			wgmma_commit();
			if (BUG && k == 0 && lane_id() == 0)
				mbar_arrive(&bar.empty);
			wgmma_wait<0>();
			if (!BUG && k == 0 && lane_id() == 0)
				mbar_arrive(&bar.empty);
		}
		p.c[threadIdx.x] = d[0];
	} else if (threadIdx.x == 128) {
		for (int k = 0; k < 2; k++) {
			if (k)
				mbar_wait(&bar.empty, 0);
			mbar_arrive_expect(&bar.full, sizeof s);
			bulk_load(&s, p.a, sizeof s, &bar.full); // ring_refill
		}
	}
}

extern "C" __global__ void
bulk_not_waited(Args p)
{
	struct alignas(128) S { float x[128]; };
	SHARED(S, s);
	struct Bars { mbar_t full; };
	SHARED(Bars, bar);
	if (threadIdx.x == 0)
		mbar_init(&bar.full, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&bar.full, sizeof s);
		bulk_load(&s, p.a, sizeof s, &bar.full); // bulk_not_waited
	}
	if (!BUG || threadIdx.x < 32)
		mbar_wait(&bar.full, 0);
	p.c[threadIdx.x] = s.x[threadIdx.x]; // bulk_not_waited
}

/* The copy must arrive, not the thread. */
extern "C" __global__ void
copy_arrive(Args p)
{
	struct alignas(16) S { float x[128]; };
	SHARED(S, s);
	struct Bars { mbar_t full; };
	SHARED(Bars, bar);
	if (threadIdx.x == 0)
		mbar_init(&bar.full, 32);
	__syncthreads();
	if (threadIdx.x < 32) {
		cp_async_16(s.x + 4 * threadIdx.x, p.a + 4 * threadIdx.x); // copy_arrive
		if (BUG)
			mbar_arrive(&bar.full);
		else
			cp_async_arrive(&bar.full);
	}
	mbar_wait(&bar.full, 0);
	p.c[threadIdx.x] = s.x[threadIdx.x]; // copy_arrive
	cp_async_wait_all();
}

extern "C" __global__ void
store_no_proxy_fence(Args p)
{
	struct alignas(128) S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1;
	if (!BUG)
		fence_proxy_async();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(p.c, &s, sizeof s); // store_no_proxy_fence
		bulk_commit();
		bulk_wait<0>();
	}
}

extern "C" __global__ void
store_reuse(Args p)
{
	struct alignas(128) S { float x[128]; };
	SHARED(S, s);
	for (int i = 0; i < 2; i++) {
		s.x[threadIdx.x] = i; // store_reuse
		fence_proxy_async();
		__syncthreads();
		if (threadIdx.x == 0) {
			bulk_store(p.c + 128 * i, &s, sizeof s); // store_reuse
			bulk_commit();
			if (!BUG)
				bulk_wait_read<0>();
		}
		__syncthreads();
	}
	if (threadIdx.x == 0)
		bulk_wait<0>();
}

extern "C" __global__ void
store_leave(Args p)
{
	struct alignas(128) S { float x[128]; };
	SHARED(S, s);
	s.x[threadIdx.x] = 1;
	fence_proxy_async();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(p.c, &s, sizeof s); // store_leave
		bulk_commit();
		if (!BUG)
			bulk_wait_read<0>();
	}
}

extern "C" __global__ void
too_many_registers(Args p)
{
	if (threadIdx.x < 128)
		reg_dec<40>(); // too_many_registers
	else if (threadIdx.x < 256 || !BUG)
		reg_inc<232>(); // too_many_registers
	else
		reg_inc<248>(); // too_many_registers
	p.c[threadIdx.x] = 1;
}

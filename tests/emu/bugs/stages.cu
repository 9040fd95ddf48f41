// Planted bugs in stages: groups of asynchronous copies, mbarriers and their parities, tiles loaded
// by bulk copies
struct Args { float *a, *b, *c; int n; unsigned *u; };
struct alignas(128) Tile { float x[128]; };

/* Three stages in flight; the last tiles wait for one group too few. */
extern "C" __global__ void
group_tail(Args a)
{
	struct alignas(16) S { float x[3][512]; };
	SHARED(S, s);
	float v = 0;
	for (int i = 0; i < 2; i++) {
		cp_async_16(s.x[i] + 4 * threadIdx.x, a.a + 512 * i + 4 * threadIdx.x);
		cp_async_commit();
	}
	for (int i = 0; i < 4; i++) {
		if (i + 2 < 4)
			cp_async_16(s.x[(i + 2) % 3] + 4 * threadIdx.x, a.a + 512 * (i + 2) + 4 * threadIdx.x); // group_tail
		if (!BUG || i + 2 < 4)
			cp_async_commit();
		cp_async_wait<2>();
		__syncthreads();
		v += s.x[i % 3][511 - threadIdx.x]; // group_tail
		__syncthreads();
	}
	a.c[threadIdx.x] = v;
	cp_async_wait_all();
}

extern "C" __global__ void
no_commit(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x); // no_commit
	if (!BUG)
		cp_async_commit();
	cp_async_wait<0>();
	__syncthreads();
	a.c[threadIdx.x] = s.x[511 - threadIdx.x]; // no_commit
	cp_async_wait_all();
}

/* The copy is waited for, but other threads read without a barrier. */
extern "C" __global__ void
wait_no_barrier(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x); // wait_no_barrier
	cp_async_commit();
	cp_async_wait<0>();
	if (!BUG)
		__syncthreads();
	a.c[threadIdx.x] = s.x[511 - threadIdx.x]; // wait_no_barrier
}

extern "C" __global__ void
copy_misaligned(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x + 2 * BUG); // copy_misaligned
	cp_async_wait_all();
	a.c[threadIdx.x] = s.x[4 * threadIdx.x];
}

/* The tail of a row is copied whole instead of being filled with zeros. */
extern "C" __global__ void
copy_beyond(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	int left = (4098 - 3584 - 4 * (int)threadIdx.x - 2) * 4;
	cp_async_16_fill(s.x + 4 * threadIdx.x, a.a + 3584 + 4 * threadIdx.x + (threadIdx.x == 127 ? 4 * BUG : 0), left < 16 ? (left < 0 ? 0 : left) : 16); // copy_beyond
	cp_async_wait_all();
	a.c[threadIdx.x] = s.x[4 * threadIdx.x];
}

/* The source changes before the copy has been waited for. */
extern "C" __global__ void
copy_source(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	cp_async_16(s.x + 4 * threadIdx.x, a.b + 4 * threadIdx.x); // copy_source
	cp_async_commit();
	if (!BUG)
		cp_async_wait<0>();
	__syncthreads();
	a.b[threadIdx.x] = 3; // copy_source
	cp_async_wait<0>(); // copy_source
	a.c[threadIdx.x] = s.x[4 * threadIdx.x];
}

/* An ordinary write to a stage whose copy is in flight */
extern "C" __global__ void
copy_target(Args a)
{
	struct alignas(16) S { float x[512]; };
	SHARED(S, s);
	cp_async_16(s.x + 4 * threadIdx.x, a.a + 4 * threadIdx.x); // copy_target
	cp_async_commit();
	if (!BUG)
		cp_async_wait<0>();
	__syncthreads();
	if (threadIdx.x == 0)
		s.x[511] = 0; // copy_target
	cp_async_wait<0>();
	__syncthreads();
	a.c[threadIdx.x] = s.x[511 - threadIdx.x]; // copy_target
}

/* ---- mbarriers: one producer (thread 128), 128 consumers, a ring of two stages, six tiles ---- */
struct alignas(128) Ring { Tile stage[2]; mbar_t full[2], empty[2]; };

/* The consumer waits for the same parity in each round. */
extern "C" __global__ void
ring_parity(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_parity
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_parity
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_parity
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_parity
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], (BUG ? 0 : i / 2 & 1)); // ring_parity
			v += r.stage[s].x[127 - threadIdx.x]; // ring_parity
			mbar_arrive(&r.empty[s]); // ring_parity
		}
		a.c[threadIdx.x] = v;
	}
}

/* The first wait for an empty stage must pass: its parity is the previous one. */
extern "C" __global__ void
ring_empty_parity(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_empty_parity
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (BUG ? i / 2 & 1 : (i / 2 & 1) ^ 1)); // ring_empty_parity
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_empty_parity
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_empty_parity
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_empty_parity
			v += r.stage[s].x[127 - threadIdx.x]; // ring_empty_parity
			mbar_arrive(&r.empty[s]); // ring_empty_parity
		}
		a.c[threadIdx.x] = v;
	}
}

/* The full barrier counts all lanes of the producer, but only one arrives. */
extern "C" __global__ void
ring_full_count(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], (BUG ? 32 : 1)); // ring_full_count
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_full_count
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_full_count
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_full_count
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_full_count
			v += r.stage[s].x[127 - threadIdx.x]; // ring_full_count
			mbar_arrive(&r.empty[s]); // ring_full_count
		}
		a.c[threadIdx.x] = v;
	}
}

/* The empty barrier counts one arrival per warp, but every thread arrives. */
extern "C" __global__ void
ring_empty_count(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_empty_count
			mbar_init(&r.empty[i], (BUG ? 4 : 128));
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_empty_count
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_empty_count
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_empty_count
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_empty_count
			v += r.stage[s].x[127 - threadIdx.x]; // ring_empty_count
			mbar_arrive(&r.empty[s]); // ring_empty_count
		}
		a.c[threadIdx.x] = v;
	}
}

/* Lane 0 of each warp releases the stage, but the barrier counts every thread. */
extern "C" __global__ void
ring_few_release(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_few_release
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_few_release
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_few_release
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_few_release
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_few_release
			v += r.stage[s].x[127 - threadIdx.x]; // ring_few_release
			if (!BUG || lane_id() == 0)
				mbar_arrive(&r.empty[s]); // ring_few_release
		}
		a.c[threadIdx.x] = v;
	}
}

/* Lane 0 of each warp releases the stage before its warp has finished. */
extern "C" __global__ void
ring_elected(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_elected
			mbar_init(&r.empty[i], 4);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_elected
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_elected
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_elected
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_elected
			v += r.stage[s].x[127 - threadIdx.x]; // ring_elected
			if (!BUG)
				__syncwarp();
			if (lane_id() == 0)
				mbar_arrive(&r.empty[s]); // ring_elected
		}
		a.c[threadIdx.x] = v;
	}
}

/* Fewer bytes are expected than arrive. */
extern "C" __global__ void
ring_bytes_few(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_bytes_few
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_bytes_few
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], (BUG ? 256 : 512)); // ring_bytes_few
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_bytes_few
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_bytes_few
			v += r.stage[s].x[127 - threadIdx.x]; // ring_bytes_few
			mbar_arrive(&r.empty[s]); // ring_bytes_few
		}
		a.c[threadIdx.x] = v;
	}
}

/* More bytes are expected than arrive. */
extern "C" __global__ void
ring_bytes_many(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_bytes_many
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_bytes_many
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], (BUG ? 1024 : 512)); // ring_bytes_many
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_bytes_many
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_bytes_many
			v += r.stage[s].x[127 - threadIdx.x]; // ring_bytes_many
			mbar_arrive(&r.empty[s]); // ring_bytes_many
		}
		a.c[threadIdx.x] = v;
	}
}

/* The producer does not wait for an empty stage. */
extern "C" __global__ void
ring_no_empty(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_no_empty
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			if (!BUG)
				mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_no_empty
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_no_empty
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_no_empty
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_no_empty
			v += r.stage[s].x[127 - threadIdx.x]; // ring_no_empty
			mbar_arrive(&r.empty[s]); // ring_no_empty
		}
		a.c[threadIdx.x] = v;
	}
}

/* The consumer releases the stage before it has read it. */
extern "C" __global__ void
ring_early(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_early
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_early
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_early
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_early
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.full[s], i / 2 & 1); // ring_early
			if (BUG)
				mbar_arrive(&r.empty[s]); // ring_early
			v += r.stage[s].x[127 - threadIdx.x]; // ring_early
			if (!BUG)
				mbar_arrive(&r.empty[s]); // ring_early
		}
		a.c[threadIdx.x] = v;
	}
}

/* One lane of each warp waits for the tile, the others read. */
extern "C" __global__ void
ring_one_lane(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_one_lane
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_one_lane
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_one_lane
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_one_lane
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			if (!BUG || lane_id() == 0)
				mbar_wait(&r.full[s], i / 2 & 1);
			v += r.stage[s].x[127 - threadIdx.x]; // ring_one_lane
			mbar_arrive(&r.empty[s]); // ring_one_lane
		}
		a.c[threadIdx.x] = v;
	}
}

/* The result of mbar_test is ignored. */
extern "C" __global__ void
ring_ignored(Args a)
{
	SHARED(Ring, r);
	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&r.full[i], 1); // ring_ignored
			mbar_init(&r.empty[i], 128);
		}
	__syncthreads();
	if (threadIdx.x == 128) {
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			mbar_wait(&r.empty[s], (i / 2 & 1) ^ 1); // ring_ignored
			fence_proxy_async();
			mbar_arrive_expect(&r.full[s], 512); // ring_ignored
			bulk_load(&r.stage[s], a.a + 128 * i, 512, &r.full[s]); // ring_ignored
		}
	} else if (threadIdx.x < 128) {
		float v = 0;
		for (int i = 0; i < 6; i++) {
			int s = i & 1;
			if (BUG)
				mbar_test(&r.full[s], i / 2 & 1);
			else
				mbar_wait(&r.full[s], i / 2 & 1);
			v += r.stage[s].x[127 - threadIdx.x]; // ring_ignored
			mbar_arrive(&r.empty[s]); // ring_ignored
		}
		a.c[threadIdx.x] = v;
	}
}

/* Two tiles on one barrier, but only the bytes of one are expected. */
extern "C" __global__ void
two_tiles(Args a)
{
	struct S { Tile x, y; mbar_t full; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, BUG ? sizeof s.x : 2 * sizeof s.x);
		bulk_load(&s.x, a.a, sizeof s.x, &s.full); // two_tiles
		bulk_load(&s.y, a.a + 128, sizeof s.y, &s.full); // two_tiles
	}
	mbar_wait(&s.full, 0);
	a.c[threadIdx.x] = s.x.x[threadIdx.x] + s.y.x[threadIdx.x]; // two_tiles
}

/* Initialised again while the tile is in flight */
extern "C" __global__ void
init_again(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	if (threadIdx.x == 0) {
		mbar_init(&s.full, 1);
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.a, sizeof s.x, &s.full); // init_again
		if (BUG)
			mbar_init(&s.full, 1); // init_again
	}
	__syncthreads();
	mbar_wait(&s.full, 0); // init_again
	a.c[threadIdx.x] = s.x.x[threadIdx.x]; // init_again
}

/* Another part of the kernel initialises an existing barrier, which must be invalidated first. */
extern "C" __global__ void
init_twice(Args a)
{
	struct S { mbar_t b; };
	SHARED(S, s);
	for (int i = 0; i < 2; i++) {
		if (threadIdx.x == 0) {
			if (i && !BUG)
				mbar_inval(&s.b);
			mbar_init(&s.b, 128); // init_twice
		}
		__syncthreads();
		mbar_arrive(&s.b);
		mbar_wait(&s.b, 0); // init_twice
		__syncthreads();
	}
	a.c[threadIdx.x] = 1;
}

/* A tile that is longer than its buffer overwrites the barrier after it. */
extern "C" __global__ void
over_barrier(Args a)
{
	SHARED_BYTES(arena);
	float *x = (float *)arena;
	mbar_t *b = (mbar_t *)(arena + 512);
	if (threadIdx.x == 0)
		mbar_init(b, 128);
	__syncthreads();
	x[threadIdx.x + (BUG && threadIdx.x == 127)] = 1;
	mbar_arrive(b); // over_barrier
	mbar_wait(b, 0); // over_barrier
	a.c[threadIdx.x] = 1;
}

/* The mbarrier is initialised before the block barrier, but by a thread that takes no part in
 * it. */
extern "C" __global__ void
init_late(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	if (BUG)
		__syncthreads();
	if (threadIdx.x == 0) {
		mbar_init(&s.full, 1); // init_late
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.a, sizeof s.x, &s.full);
	}
	if (!BUG)
		__syncthreads();
	mbar_wait(&s.full, 0); // init_late
	a.c[threadIdx.x] = s.x.x[threadIdx.x];
}

extern "C" __global__ void
bulk_odd(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		unsigned n = BUG ? 4 * 99 : 4 * 100;
		mbar_arrive_expect(&s.full, n);
		bulk_load(&s.x, a.a, n, &s.full); // bulk_odd
	}
	mbar_wait(&s.full, 0);
	if (threadIdx.x < 99)
		a.c[threadIdx.x] = s.x.x[threadIdx.x];
}

/* The last tile of the tensor is copied whole. */
extern "C" __global__ void
bulk_beyond(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.a + 4096 - 128 + 4 * BUG, sizeof s.x, &s.full); // bulk_beyond
	}
	mbar_wait(&s.full, 0);
	a.c[threadIdx.x] = s.x.x[threadIdx.x];
}

/* A short tile: the rest of the stage holds the previous tile, here nothing. */
extern "C" __global__ void
bulk_short(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	unsigned n = 4 * 96;
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	if (!BUG && threadIdx.x >= 96)
		s.x.x[threadIdx.x] = 0;
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, n);
		bulk_load(&s.x, a.a, n, &s.full);
	}
	mbar_wait(&s.full, 0);
	a.c[threadIdx.x] = s.x.x[127 - threadIdx.x]; // bulk_short
}

/* The source of a bulk copy changes while the copy is in flight. */
extern "C" __global__ void
bulk_source(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		mbar_arrive_expect(&s.full, sizeof s.x);
		bulk_load(&s.x, a.b, sizeof s.x, &s.full); // bulk_source
	}
	if (!BUG)
		mbar_wait(&s.full, 0);
	__syncthreads();
	a.b[threadIdx.x] = 3; // bulk_source
	mbar_wait(&s.full, 0); // bulk_source
	a.c[threadIdx.x] = s.x.x[threadIdx.x];
}

/* The block reads the target of its bulk store without waiting. */
extern "C" __global__ void
store_read_back(Args a)
{
	struct S { Tile x; };
	SHARED(S, s);
	s.x.x[threadIdx.x] = 1;
	fence_proxy_async();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(a.b, &s.x, sizeof s.x); // store_read_back
		bulk_commit();
		if (BUG)
			bulk_wait_read<0>();
		else
			bulk_wait<0>();
	}
	__syncthreads();
	a.c[threadIdx.x] = a.b[threadIdx.x]; // store_read_back
}

/* The store is waited for, but was never committed to a group. */
extern "C" __global__ void
store_no_commit(Args a)
{
	struct S { Tile x; };
	SHARED(S, s);
	s.x.x[threadIdx.x] = 1;
	fence_proxy_async();
	__syncthreads();
	if (threadIdx.x == 0) {
		bulk_store(a.c, &s.x, sizeof s.x); // store_no_commit
		if (!BUG)
			bulk_commit();
		bulk_wait<0>();
	}
	__syncthreads();
	s.x.x[threadIdx.x] = 2; // store_no_commit
}

/* The parity belongs to the round of the ring, not to the tile: a kernel that iterates over the
 * ring again must continue counting. */
extern "C" __global__ void
ring_again(Args a)
{
	struct S { Tile x; mbar_t full; };
	SHARED(S, s);
	if (threadIdx.x == 0)
		mbar_init(&s.full, 1);
	__syncthreads();
	for (int row = 0; row < 2; row++) {
		if (threadIdx.x == 0) {
			fence_proxy_async();
			mbar_arrive_expect(&s.full, sizeof s.x);
			bulk_load(&s.x, a.a + 128 * row, sizeof s.x, &s.full); // ring_again
		}
		mbar_wait(&s.full, BUG ? 0 : row);
		a.c[128 * row + threadIdx.x] = s.x.x[127 - threadIdx.x]; // ring_again
		__syncthreads();
	}
}

/* The threads normalise the tile in place, then a bulk store writes it; the issuing thread fenced
 * before the others had written. */
extern "C" __global__ void
fence_before(Args a)
{
	struct S { Tile x; };
	SHARED(S, s);
	s.x.x[threadIdx.x] = a.a[threadIdx.x];
	if (!BUG)
		fence_proxy_async();
	__syncthreads();
	if (threadIdx.x == 0) {
		if (BUG)
			fence_proxy_async();
		bulk_store(a.c, &s.x, sizeof s.x); // fence_before
		bulk_commit();
		bulk_wait<0>();
	}
}

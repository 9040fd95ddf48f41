// Planted bugs in two blocks that feed each other: a ring of two stages, each block loads half of a
// stage and multicasts it to both.
struct Args { float *a, *b, *c; int n; unsigned *u; };
struct alignas(128) Ring { float x[2][128]; mbar_t full[2], empty[2]; };
enum { STEPS = 6, INIT = 1, LEAVE, OWN, MASK, BEYOND, BYTES, LATE };

template <int WRONG> static __device__ void
ring(Args p)
{
	SHARED(Ring, s);
	const unsigned rank = cluster_rank();

	if (threadIdx.x == 0)
		for (int i = 0; i < 2; i++) {
			mbar_init(&s.full[i], 1);
			mbar_init(&s.empty[i], WRONG == OWN ? 1 : 2);
		}
	if (WRONG == INIT)
		__syncthreads();
	else
		cluster_sync();
	if (threadIdx.x == 0) {
		for (int k = 0; k < STEPS; k++) {
			const int at = k % 2;
			mbar_wait(&s.empty[at], (k / 2 & 1) ^ 1); // cluster_leave cluster_mask cluster_late
			fence_proxy_async();
			mbar_arrive_expect(&s.full[at], WRONG == BYTES ? 256 : 512);
			bulk_load_multicast(s.x[at] + 64 * rank, p.a + 128 * k + 64 * rank, 256, &s.full[at], WRONG == MASK ? 1 << rank : WRONG == BEYOND ? 7 : 3); // cluster_init cluster_own cluster_beyond cluster_bytes
		}
	} else if (threadIdx.x >= 32) {
		float sum = 0;
		for (int k = 0; k < (WRONG == LATE && rank ? STEPS - 1 : STEPS); k++) {
			const int at = k % 2;
			mbar_wait(&s.full[at], k / 2 & 1); // cluster_leave cluster_mask cluster_bytes cluster_late
			for (int i = 0; i < 4; i++)
				sum += s.x[at][lane_id() + 32 * i]; // cluster_own cluster_bytes
			__syncwarp();
			if (WRONG == OWN ? lane_id() == 0 : lane_id() < 2)
				mbar_arrive_cluster(&s.empty[at], WRONG == OWN ? rank : lane_id()); // cluster_leave
		}
		p.c[blockIdx.x * 32 + lane_id()] = sum;
	}
	if (WRONG != LEAVE)
		cluster_sync(); // cluster_late
}

extern "C" __global__ void cluster_init(Args p) { ring<BUG ? INIT : 0>(p); }
extern "C" __global__ void cluster_leave(Args p) { ring<BUG ? LEAVE : 0>(p); }
extern "C" __global__ void cluster_own(Args p) { ring<BUG ? OWN : 0>(p); }
extern "C" __global__ void cluster_mask(Args p) { ring<BUG ? MASK : 0>(p); }
extern "C" __global__ void cluster_beyond(Args p) { ring<BUG ? BEYOND : 0>(p); }
extern "C" __global__ void cluster_bytes(Args p) { ring<BUG ? BYTES : 0>(p); }
extern "C" __global__ void cluster_late(Args p) { ring<BUG ? LATE : 0>(p); }

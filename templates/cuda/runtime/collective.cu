/* All-reduce and all-gather over the memory of peers; templates/common/cuda_comm.h has the protocol. A block is a lane. */
#include "common/cuda_ptx.h"
#include "common/cuda_comm.h"

/* Elements [at, end) of a message of n that a lane has: whole lines of 16 while there are such. */
static __device__ void
share_of(long long n, int lane, long long &at, long long &end)
{
	long long each = (n + LLMC_LANES - 1) / LLMC_LANES;

	each = each < LLMC_LANE_LEAST ? LLMC_LANE_LEAST : (each + 15) / 16 * 16;
	at = each * lane < n ? each * lane : n;
	end = at + each < n ? at + each : n;
}

static __device__ void
copy(float *to, const float *from, int n)
{
	for (int i = 4 * threadIdx.x; i < n; i += 4 * LLMC_LANE_THREADS)
		if (i + 4 <= n)
			st_v4((float4 *)(to + i), ld_v4((const float4 *)(from + i)));
		else
			for (int k = i; k < n; k++)
				to[k] = from[k];
}

/* Element i of the message, with what comes after the ranks' terms. */
static __device__ void
put_sum(const llmc_collective &c, long long i, float sum)
{
	const int column = (int)(i % c.width);

	if (c.b)
		sum += c.b[column];
	if (c.b2)
		sum += c.b2[column];
	c.y[i] = c.r ? sum + c.scale * c.r[i] : sum;
}

/* A lane's end of a message: the piece that goes, how far the others are */
struct lane_state { int ended; };
struct Lane {
	const llmc_peers &p;
	lane_state       &s;
	int               number, step, ranks;
	unsigned          piece;

	/* Of rank `of`: what `from` has sent it of the piece */
	__device__ __forceinline__ float *
	slot(int of, int from) const
	{
		return p.slot[of] + (((long long)(piece & 1) * p.ranks + from) * LLMC_LANES + number) * LLMC_PIECE;
	}

	/* The next piece: part(k, n) is what rank k gets of it, n elements */
	template <class F> __device__ __forceinline__ void
	push(const F &part)
	{
		piece++;
		for (int j = 1; j < ranks; j++) {
			const int    k = (p.rank + j) % ranks;
			int          n;
			const float *x = part(k, n);
			copy(slot(k, p.rank), x, n);
		}
	}

	/* Thread k tells rank k, and hears from it. False: the group has ended. */
	__device__ __forceinline__ bool
	meet()
	{
		const int k = (int)threadIdx.x;

		__syncthreads();
		if (k < ranks && k != p.rank) {
			st_release_sys(p.flag[k] + p.rank * LLMC_LANES + number, piece);
			const unsigned *own = p.flag[p.rank] + k * LLMC_LANES + number;
			for (int looks = 1; (int)(ld_acquire_sys(own) - piece) < 0; looks++)
				if (looks % LLMC_LOOK == 0 && ld_relaxed_sys(p.end)) {
					p.late[number * LLMC_PEERS + k] = (unsigned)step + 1;
					s.ended = 1;
					break;
				}
		}
		__syncthreads();
		return !s.ended;
	}

	/* Elements 0 .. n - 1 of what has come, added in the order of ranks, to their places from `at` on; x: this rank's */
	__device__ __forceinline__ void
	sum(const llmc_collective &c, const float *x, long long at, int n) const
	{
		for (int i = (int)threadIdx.x; i < n; i += LLMC_LANE_THREADS) {
			float sum = p.rank == 0 ? x[i] : slot(p.rank, 0)[i];
			for (int k = 1; k < ranks; k++)
				sum += k == p.rank ? x[i] : slot(p.rank, k)[i];
			put_sum(c, at + i, sum);
		}
	}
};

/* The block is a lane of the message, which goes as message(lane) says; false: the group has ended. */
template <class F> static __device__ __forceinline__ void
run_lane(const llmc_collective &c, const F &message)
{
	SHARED(lane_state, s);
	Lane l = { *c.peers, s, (int)blockIdx.x, c.step, c.peers->ranks, c.peers->epoch[blockIdx.x] };

	if (threadIdx.x == 0)
		s.ended = 0;
	if (!message(l))
		return;
	__syncthreads();
	if (threadIdx.x == 0)
		l.p.epoch[l.number] = l.piece;
}

extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_all_reduce(const llmc_collective c)
{
	run_lane(c, [&](Lane &l) {
		long long at, end;

		share_of((long long)*c.rows * c.width, l.number, at, end);
		for (; at < end; at += LLMC_PIECE) {
			const int n = end - at < LLMC_PIECE ? (int)(end - at) : LLMC_PIECE;
			l.push([&](int, int &own) { own = n; return c.x + at; });
			if (!l.meet())
				return false;
			l.sum(c, c.x + at, at, n);
		}
		return true;
	});
}

/* In two steps: a lane takes as many pieces at a time as there are ranks, one of them for each to add up and to hand out. Either step is a piece of the
 * protocol: the terms go to the rank that adds them, then what they make, with biases and residual, goes to all. So a message of n elements
 * takes 2 (ranks - 1) / ranks * n from each rank, not (ranks - 1) * n, and a second meeting. */
extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_all_reduce_two_shot(const llmc_collective c)
{
	run_lane(c, [&](Lane &l) {
		const int rank = l.p.rank, ranks = l.ranks;
		long long at, end;

		share_of((long long)*c.rows * c.width, l.number, at, end);
		for (; at < end; at += (long long)ranks * LLMC_PIECE) {
			const int n = end - at < (long long)ranks * LLMC_PIECE ? (int)(end - at) : ranks * LLMC_PIECE;
			const int each = ((n + ranks - 1) / ranks + 3) / 4 * 4; /* of a rank, the last ones less: whole accesses of 16 bytes */
			const int first = min(rank * each, n), own = min(each, n - first);
			l.push([&](int k, int &of) {
				const int from = min(k * each, n);
				of = min(each, n - from);
				return c.x + at + from;
			});
			if (!l.meet())
				return false;
			l.sum(c, c.x + at + first, at + first, own);
			__syncthreads();
			l.push([&](int, int &of) { of = own; return (const float *)c.y + at + first; });
			if (!l.meet())
				return false;
			for (int k = 0; k < ranks; k++)
				if (k != rank)
					copy(c.y + at + min(k * each, n), l.slot(rank, k), min(each, n - min(k * each, n)));
		}
		return true;
	});
}

/* Shares of ranks differ by a unit at most: a rank whose lane is done takes part with nothing until all are. */
extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_all_gather(const llmc_collective c)
{
	run_lane(c, [&](Lane &l) {
		const int rank = l.p.rank, ranks = l.ranks, rows = *c.rows;
		long long most = 0, at, end;

		for (int k = 0; k < ranks; k++) {
			share_of((long long)rows * (c.first[k + 1] - c.first[k]), l.number, at, end);
			most = end - at > most ? end - at : most;
		}
		for (long long from = 0; from < most; from += LLMC_PIECE) {
			share_of((long long)rows * (c.first[rank + 1] - c.first[rank]), l.number, at, end);
			const long long left = end - at - from;
			l.push([&](int, int &own) {
				own = left < 0 ? 0 : left < LLMC_PIECE ? (int)left : LLMC_PIECE;
				return c.x + at + from;
			});
			if (!l.meet())
				return false;
			for (int k = 0; k < ranks; k++) {
				const int first = c.first[k], width = c.first[k + 1] - first;
				share_of((long long)rows * width, l.number, at, end);
				const long long last = at + from + LLMC_PIECE < end ? at + from + LLMC_PIECE : end;
				const float *x = k == rank ? c.x + at + from : l.slot(rank, k);
				for (long long i = at + from + threadIdx.x; i < last; i += LLMC_LANE_THREADS)
					c.y[i / width * c.width + first + i % width] = x[i - at - from];
			}
		}
		return true;
	});
}

/* ---- behind a library's all-gather ---- */

extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_add_ranks(const llmc_gathered g)
{
	const long long all = (long long)*g.c.rows * g.c.width - g.at, n = g.n < all ? g.n : all;

	for (long long i = (long long)blockIdx.x * LLMC_LANE_THREADS + threadIdx.x; i < n; i += (long long)gridDim.x * LLMC_LANE_THREADS) {
		float sum = g.from[i];
		for (int k = 1; k < g.ranks; k++)
			sum += g.from[k * g.stride + i];
		put_sum(g.c, g.at + i, sum);
	}
}

/* A block a row */
extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_place_ranks(const llmc_gathered g)
{
	const long long row = g.at + blockIdx.x;

	if (row >= *g.c.rows)
		return;
	for (int k = 0; k < g.ranks; k++) {
		const int first = g.c.first[k], width = g.c.first[k + 1] - first;
		const float *x = g.from + k * g.stride + (long long)blockIdx.x * width;
		for (int i = (int)threadIdx.x; i < width; i += LLMC_LANE_THREADS)
			g.c.y[row * g.c.width + first + i] = x[i];
	}
}

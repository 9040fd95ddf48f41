/* All-reduce and all-gather over peer memory, with the protocol of templates/cuda/comm/comm.h. A
 * lane of the protocol is a CTA. */
#include "cuda/ptx/ptx.h"
#include "cuda/comm/comm.h"

struct lane_state {
	int ended;
};

/* Returns the share [at, end) of a lane in a message of n elements. As far as possible, shares are
 * multiples of 16 elements. */
static __device__ void
share_of(long long n, int lane, long long &at, long long &end)
{
	long long each = (n + LLMC_LANES - 1) / LLMC_LANES;

	each = each < LLMC_LANE_LEAST ? LLMC_LANE_LEAST : (each + 15) / 16 * 16;
	at = each * lane < n ? each * lane : n;
	end = at + each < n ? at + each : n;
}

static __device__ float *
slot_of(const llmc_peers &p, int of, unsigned chunk, int from, int lane)
{
	return p.slot[of] +
	       (((long long)(chunk & 1) * p.ranks + from) * LLMC_LANES + lane) * LLMC_CHUNK;
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

/* Stores element i of the message, after adding bias and residual. */
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

/* Returns element i of a chunk, summed in the order of ranks. x: this rank's term */
static __device__ float
sum_of(const llmc_peers &p, const float *x, unsigned chunk, int lane, int i)
{
	float sum = p.rank == 0 ? x[i] : slot_of(p, p.rank, chunk, 0, lane)[i];

	for (int k = 1; k < p.ranks; k++)
		sum += k == p.rank ? x[i] : slot_of(p, p.rank, chunk, k, lane)[i];
	return sum;
}

/* Exchanges flags: thread k sets this rank's flag in the memory of rank k, and waits for the flag
 * of rank k. Returns false if the group has ended. */
static __device__ bool
exchange_flags(const llmc_peers &p, lane_state &s, unsigned chunk, int lane, int step)
{
	const int k = (int)threadIdx.x;

	__syncthreads();
	if (k < p.ranks && k != p.rank) {
		st_release_sys(p.flag[k] + p.rank * LLMC_LANES + lane, chunk);
		const unsigned *own = p.flag[p.rank] + k * LLMC_LANES + lane;
		for (int looks = 1; (int)(ld_acquire_sys(own) - chunk) < 0; looks++)
			if (looks % LLMC_POLLS == 0 && ld_relaxed_sys(p.end)) {
				p.late[lane * LLMC_PEERS + k] = (unsigned)step + 1;
				s.ended = 1;
				break;
			}
	}
	__syncthreads();
	return !s.ended;
}

extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_all_reduce(const llmc_collective c)
{
	SHARED(lane_state, s);
	const llmc_peers &p = *c.peers;
	const int lane = (int)blockIdx.x, ranks = p.ranks;
	unsigned chunk = p.epoch[lane];
	long long at, end;

	if (threadIdx.x == 0)
		s.ended = 0;
	share_of((long long)*c.rows * c.width, lane, at, end);
	for (; at < end; at += LLMC_CHUNK) {
		const int n = end - at < LLMC_CHUNK ? (int)(end - at) : LLMC_CHUNK;
		chunk++;
		for (int j = 1; j < ranks; j++) {
			const int k = (p.rank + j) % ranks;
			copy(slot_of(p, k, chunk, p.rank, lane), c.x + at, n);
		}
		if (!exchange_flags(p, s, chunk, lane, c.step))
			return;
		for (int i = (int)threadIdx.x; i < n; i += LLMC_LANE_THREADS)
			put_sum(c, at + i, sum_of(p, c.x + at, chunk, lane, i));
	}
	__syncthreads();
	if (threadIdx.x == 0)
		p.epoch[lane] = chunk;
}

/* Two-shot all-reduce. A lane processes as many chunks at a time as there are ranks. Each rank adds
 * one of these chunks and distributes the result. Each shot is one chunk of the protocol: first the
 * terms go to the rank that adds them; then the sums, with biases and residual, go to all ranks. A
 * rank sends 2 (ranks - 1) / ranks * n elements instead of (ranks - 1) * n, at the cost of a second
 * rendezvous. */
extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_all_reduce_two_shot(const llmc_collective c)
{
	SHARED(lane_state, s);
	const llmc_peers &p = *c.peers;
	const int lane = (int)blockIdx.x, ranks = p.ranks;
	unsigned chunk = p.epoch[lane];
	long long at, end;

	if (threadIdx.x == 0)
		s.ended = 0;
	share_of((long long)*c.rows * c.width, lane, at, end);
	for (; at < end; at += (long long)ranks * LLMC_CHUNK) {
		const int n =
		    end - at < (long long)ranks * LLMC_CHUNK ? (int)(end - at) : ranks * LLMC_CHUNK;
		/* elements per rank, a multiple of 16 bytes; the last rank has fewer */
		const int each = ((n + ranks - 1) / ranks + 3) / 4 * 4;
		const int first = min(p.rank * each, n), own = min(each, n - first);
		chunk++;
		for (int j = 1; j < ranks; j++) {
			const int k = (p.rank + j) % ranks, from = min(k * each, n);
			copy(slot_of(p, k, chunk, p.rank, lane), c.x + at + from,
			     min(each, n - from));
		}
		if (!exchange_flags(p, s, chunk, lane, c.step))
			return;
		for (int i = (int)threadIdx.x; i < own; i += LLMC_LANE_THREADS)
			put_sum(c, at + first + i, sum_of(p, c.x + at + first, chunk, lane, i));
		__syncthreads();
		chunk++;
		for (int j = 1; j < ranks; j++)
			copy(slot_of(p, (p.rank + j) % ranks, chunk, p.rank, lane),
			     c.y + at + first, own);
		if (!exchange_flags(p, s, chunk, lane, c.step))
			return;
		for (int k = 0; k < ranks; k++)
			if (k != p.rank)
				copy(c.y + at + min(k * each, n),
				     slot_of(p, p.rank, chunk, k, lane),
				     min(each, n - min(k * each, n)));
	}
	__syncthreads();
	if (threadIdx.x == 0)
		p.epoch[lane] = chunk;
}

/* All-gather. Shares of ranks differ by at most one unit. A rank whose lane is done sends empty
 * chunks until all ranks are done. */
extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_all_gather(const llmc_collective c)
{
	SHARED(lane_state, s);
	const llmc_peers &p = *c.peers;
	const int lane = (int)blockIdx.x, ranks = p.ranks, rows = *c.rows;
	unsigned chunk = p.epoch[lane];
	long long most = 0, at, end;

	if (threadIdx.x == 0)
		s.ended = 0;
	for (int k = 0; k < ranks; k++) {
		share_of((long long)rows * (c.first[k + 1] - c.first[k]), lane, at, end);
		most = end - at > most ? end - at : most;
	}
	for (long long from = 0; from < most; from += LLMC_CHUNK) {
		chunk++;
		share_of((long long)rows * (c.first[p.rank + 1] - c.first[p.rank]), lane, at, end);
		const long long left = end - at - from;
		const int own = left < 0 ? 0 : left < LLMC_CHUNK ? (int)left : LLMC_CHUNK;
		for (int j = 1; j < ranks; j++) {
			const int k = (p.rank + j) % ranks;
			copy(slot_of(p, k, chunk, p.rank, lane), c.x + at + from, own);
		}
		if (!exchange_flags(p, s, chunk, lane, c.step))
			return;
		for (int k = 0; k < ranks; k++) {
			const int first = c.first[k], width = c.first[k + 1] - first;
			share_of((long long)rows * width, lane, at, end);
			const long long last =
			    at + from + LLMC_CHUNK < end ? at + from + LLMC_CHUNK : end;
			const float *x =
			    k == p.rank ? c.x + at + from : slot_of(p, p.rank, chunk, k, lane);
			for (long long i = at + from + threadIdx.x; i < last;
			     i += LLMC_LANE_THREADS)
				c.y[i / width * c.width + first + i % width] = x[i - at - from];
		}
	}
	__syncthreads();
	if (threadIdx.x == 0)
		p.epoch[lane] = chunk;
}

/* ---- after an all-gather by a library ---- */

extern "C" __global__ void __launch_bounds__(LLMC_LANE_THREADS)
llmc_add_ranks(const llmc_gathered g)
{
	const long long all = (long long)*g.c.rows * g.c.width - g.at, n = g.n < all ? g.n : all;

	for (long long i = (long long)blockIdx.x * LLMC_LANE_THREADS + threadIdx.x; i < n;
	     i += (long long)gridDim.x * LLMC_LANE_THREADS) {
		float sum = g.from[i];
		for (int k = 1; k < g.ranks; k++)
			sum += g.from[k * g.stride + i];
		put_sum(g.c, g.at + i, sum);
	}
}

/* One CTA per row */
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

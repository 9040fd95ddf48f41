/* Sampling from one row of logits, by a CTA of 512 threads, with the results of
 * runtime/sample/sampler.c. Weights have the same bits as there, and their sums are integers, so
 * the order of addition does not matter. Every threshold is found by counting elements above a
 * value or before an id; nothing is sorted. If several CTAs share a row, each makes a shortlist of
 * the largest logits of its parts. Top-k, and usually top-p, is computed from the shortlists. */
#ifndef LLMC_CUDA_SAMPLING_SAMPLE_H
#define LLMC_CUDA_SAMPLING_SAMPLE_H

#include "cuda/ptx/ptx.h"
#include "cuda/sampling/sampler_state.h"

enum {
	SAMPLE_THREADS = 512,
	SAMPLE_WARPS = 16,
	SAMPLE_STEPS = 7,
	SAMPLE_SHORTLIST = 8192,
	SAMPLE_MOST_K = 256,
	SAMPLE_NUCLEUS = 128,
	SAMPLE_AT_ONCE = 8
};
typedef unsigned long long u64;

struct sample_shared {
	u64 part[SAMPLE_WARPS][SAMPLE_STEPS];
	u64 sum[SAMPLE_STEPS];
	float top[SAMPLE_THREADS], best[SAMPLE_WARPS];
	int id[SAMPLE_WARPS], bad[SAMPLE_WARPS];
	double seen_sum[LLMC_SAMPLE_PARTS * SAMPLE_WARPS]; /* per warp and part of the CTA */
	float seen_max[LLMC_SAMPLE_PARTS * SAMPLE_WARPS], most[LLMC_SAMPLE_PARTS];
	int seen_id[LLMC_SAMPLE_PARTS * SAMPLE_WARPS]; /* -1: the warp has seen a NaN */
	int last, shortlist[SAMPLE_SHORTLIST];
};

/* Long functions with several callers are not inlined. */
#define NOINLINE static __device__ __noinline__
#define SAMPLE_FN __device__ __forceinline__
#define SAMPLE_NONE __uint_as_float(0xff800000u) /* -inf */

/* Returns whether v ranks before w: it is larger, or equal with a lower id. */
DEV bool
sample_before(float v, int id, float w, int of)
{
	return v > w || (v == w && id < of);
}

/* exp for x <= 0; 0 below -87. The operations are those of runtime/sample/softmax.c, without
 * contraction to FMA. */
DEV float
sample_exp(float x)
{
	const bool live = x > -87.0f;
	if (!live)
		x = 0;
	float n = __fadd_rn(__fmul_rn(x, 1.44269504f), 12582912.0f);
	const unsigned e = __float_as_uint(n);
	n = __fadd_rn(n, -12582912.0f);
	x = __fadd_rn(x, -__fmul_rn(n, 0.693359375f));
	x = __fadd_rn(x, -__fmul_rn(n, -2.12194440e-4f));
	float y = __fadd_rn(__fmul_rn(x, 1.9875691500e-4f), 1.3981999507e-3f);
	y = __fadd_rn(__fmul_rn(y, x), 8.3334519073e-3f);
	y = __fadd_rn(__fmul_rn(y, x), 4.1665795894e-2f);
	y = __fadd_rn(__fmul_rn(y, x), 1.6666665459e-1f);
	y = __fadd_rn(__fmul_rn(y, x), 5.0000001201e-1f);
	y = __fadd_rn(__fadd_rn(__fmul_rn(y, __fmul_rn(x, x)), x), 1.0f);
	return live ? __uint_as_float(__float_as_uint(y) + ((e - 0x4b400000u) << 23)) : 0.0f;
}

/* Converts a weight of at most 1 to units of 2^-44. A 64-bit sum of 2^18 such values does not
 * overflow. */
DEV u64
sample_mass(float w)
{
	return (u64)(w * 17592186044416.0f + 0.5f);
}

/* Maps a value to an unsigned key with the same order. */
DEV unsigned
sample_key(float v)
{
	const unsigned u = __float_as_uint(v == 0 ? 0.0f : v); /* -0 equals 0 */
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

DEV float
sample_value(unsigned key)
{
	return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

DEV u64
sample_add(u64 v)
{
#pragma unroll
	for (int d = 16; d; d >>= 1)
		v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

/* Adds the counters of all threads of the CTA into s.sum. */
NOINLINE void
sample_total(sample_shared &s, const u64 (&v)[SAMPLE_STEPS])
{
#pragma unroll
	for (int k = 0; k < SAMPLE_STEPS; k++) {
		const u64 all = sample_add(v[k]);
		if (lane_id() == 0)
			s.part[warp_id()][k] = all;
	}
	__syncthreads();
	if (threadIdx.x < SAMPLE_STEPS) {
		u64 all = 0;
#pragma unroll 1
		for (int w = 0; w < SAMPLE_WARPS; w++)
			all += s.part[w][threadIdx.x];
		s.sum[threadIdx.x] = all;
	}
	__syncthreads();
}

/* Sum of one counter over the CTA, returned to every thread */
DEV u64
sample_sum(sample_shared &s, u64 v)
{
	v = sample_add(v);
	if (lane_id() == 0)
		s.part[warp_id()][0] = v;
	__syncthreads();
	v = 0;
#pragma unroll 1
	for (int w = 0; w < SAMPLE_WARPS; w++)
		v += s.part[w][0];
	__syncthreads();
	return v;
}

/* Amount of element i of a row, and its key. The amount is 1 (counts) or the weight (masses). */
struct sample_counts {
	const float *v;
	SAMPLE_FN u64
	amount(int) const
	{
		return 1;
	}
	SAMPLE_FN unsigned
	key(int i) const
	{
		return sample_key(v[i]);
	}
};

struct sample_masses {
	const float *v;
	SAMPLE_FN u64
	amount(int i) const
	{
		return sample_mass(v[i]);
	}
	SAMPLE_FN unsigned
	key(int i) const
	{
		return sample_key(v[i]);
	}
};

/* Amount 1 for elements with one given key; used by sample_walk */
struct sample_equals {
	const float *v;
	unsigned at;
	SAMPLE_FN u64
	amount(int i) const
	{
		return sample_key(v[i]) == at;
	}
};

/* Elements [first, first + n) of a row, or n listed ones, in ascending order of id */
struct sample_list {
	const int *id;
	int n, first;
};

DEV int
sample_at(const sample_list &l, int i)
{
	return l.id ? l.id[i] : l.first + i;
}

/* Returns the largest key for which the amounts of elements with this key or a larger one exceed
 * `target`. Such a key must exist. *above: amount of elements with larger keys. Each round
 * determines three bits. */
template <class F> NOINLINE unsigned
sample_search(sample_shared &s, const F &f, const sample_list &l, u64 target, u64 *above)
{
	unsigned low = 0; /* the amount at or above the key `low` exceeds target */
	u64 over =
	    0; /* amount at or above the smallest key tried so far that did not exceed target */

#pragma unroll 1
	for (int shift = 30; shift >= 0; shift -= 3) {
		const int steps =
		    shift == 30 ? 3
		                : SAMPLE_STEPS; /* with 32 bits, the first round determines two */
		u64 sum[SAMPLE_STEPS] = {};
#pragma unroll 1
		for (int i = threadIdx.x; i < l.n; i += SAMPLE_THREADS) {
			const int id = sample_at(l, i);
			const unsigned key = f.key(id);
			if (key < low)
				continue;
			const u64 a = f.amount(id);
			const unsigned digit =
			    shift == 30 ? key >> 30 : min((key - low) >> shift, 8u);
#pragma unroll
			for (int k = 0; k < SAMPLE_STEPS; k++)
				if (digit > (unsigned)k)
					sum[k] += a;
		}
		sample_total(s, sum);
		int d = 0; /* s.sum is descending */
		while (d < steps && s.sum[d] > target)
			d++;
		if (d < steps)
			over = s.sum[d];
		low += (unsigned)d << shift;
		__syncthreads();
	}
	*above = over;
	return low;
}

/* Returns the first index of the list at which the running sum of amounts exceeds target, or -1.
 * The list is divided among the warps; then the share that contains the index is divided again. */
template <class F> NOINLINE int
sample_walk(sample_shared &s, const F &f, const sample_list &l, u64 target)
{
	int first = 0, n = l.n;

	for (;;) {
		const int piece = (n + SAMPLE_WARPS - 1) / SAMPLE_WARPS;
		const int lo = first + min(warp_id() * piece, (unsigned)n),
		          hi = first + min((warp_id() + 1) * piece, (unsigned)n);
		u64 sum = 0;
		for (int i = lo + lane_id(); i < hi; i += 32)
			sum += f.amount(sample_at(l, i));
		sum = sample_add(sum);
		if (lane_id() == 0)
			s.part[warp_id()][0] = sum;
		__syncthreads();
		int w = 0;
		while (w < SAMPLE_WARPS && s.part[w][0] <= target) {
			target -= s.part[w][0];
			w++;
		}
		__syncthreads();
		if (w == SAMPLE_WARPS)
			return -1;
		first += w * piece;
		n = min(piece, n - w * piece);
		if (piece == 1)
			return first;
	}
}

/* Stores in `to`, as a list in the same order, the elements of a row or list whose key is at least
 * `least`. `to` must not be the memory of l. */
NOINLINE sample_list
sample_keep(sample_shared &s, const float *v, const sample_list &l, unsigned least, int *to)
{
	const int piece = (l.n + SAMPLE_WARPS - 1) / SAMPLE_WARPS;
	const int lo = min(warp_id() * piece, (unsigned)l.n),
	          hi = min((warp_id() + 1) * piece, (unsigned)l.n);
	u64 mine = 0;

	for (int i = lo + lane_id(); i < hi; i += 32)
		mine += sample_key(v[sample_at(l, i)]) >= least;
	mine = sample_add(mine);
	if (lane_id() == 0)
		s.part[warp_id()][0] = mine;
	__syncthreads();
	int at = 0, n = 0;
#pragma unroll 1
	for (int w = 0; w < SAMPLE_WARPS; w++) {
		if (w == (int)warp_id())
			at = n;
		n += (int)s.part[w][0];
	}
	for (int i0 = lo; i0 < hi; i0 += 32) {
		const int i = i0 + lane_id(), id = i < hi ? sample_at(l, i) : 0;
		const bool in = i < hi && sample_key(v[id]) >= least;
		const unsigned votes = __ballot_sync(0xffffffffu, in);
		if (in)
			to[at + __popc(votes & ((1u << lane_id()) - 1))] = id;
		at += __popc(votes);
	}
	__syncthreads();
	return sample_list{ to, n, 0 };
}

/* Returns the minimum length of a part's shortlist; 0: no shortlist is made. */
DEV int
sample_wants(const llmc_slot &slot, int vocab)
{
	if (!(slot.temperature > 0))
		return 0;
	if (slot.top_k > 0 && slot.top_k < vocab)
		return slot.top_k <= SAMPLE_MOST_K ? slot.top_k : 0;
	return slot.top_p > 0 && slot.top_p < 1 ? SAMPLE_NUCLEUS : 0;
}

/* Stores in `to` at least the k largest elements of part l of a row, with all ties. The threshold
 * *least is the k-th largest of the threads' maxima (`mine`). */
DEV int
sample_shortlist(sample_shared &s, const float *v, float mine, const sample_list &l, int k, int *to,
                 unsigned *least)
{
	u64 above;

	__syncthreads();
	s.top[threadIdx.x] = mine;
	__syncthreads();
	const sample_counts f = { s.top };
	*least = sample_search(s, f, sample_list{ 0, SAMPLE_THREADS, 0 }, k - 1, &above);
	return sample_keep(s, v, l, *least, to).n;
}

/* ---- the draw ---- */
DEV u64
sample_mix(u64 x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Returns the n-th random number of a seed, in [0, 1). */
DEV double
sample_random(u64 seed, u64 n)
{
	const u64 start = sample_mix(seed + 0x9e3779b97f4a7c15u);
	return (double)(sample_mix(start + (n + 1) * 0x9e3779b97f4a7c15u) >> 11) *
	       (1.0 / 9007199254740992.0);
}

NOINLINE u64
sample_mass_of(sample_shared &s, const float *w, const sample_list &l, unsigned least)
{
	u64 sum = 0;
#pragma unroll 4
	for (int i = threadIdx.x; i < l.n; i += SAMPLE_THREADS) {
		const float v = w[sample_at(l, i)];
		if (sample_key(v) >= least)
			sum += sample_mass(v);
	}
	return sample_sum(s, sum);
}

/* Samples an id from the logits `v` of a row. The largest logit, `top`, belongs to id `best`.
 * shortlist: merged shortlists, if any; they contain all logits with keys from `whole` up, and the
 * k largest. w, ids: [vocab] of scratch; w may alias v */
DEV int
sample_draw(sample_shared &s, const llmc_slot &slot, const float *v, int vocab, float top, int best,
            const sample_list &shortlist, unsigned whole, float *w, int *ids)
{
	const float max_v = top / slot.temperature, temperature = slot.temperature;
	const double at = sample_random(slot.seed, slot.n_sampled);
	const bool nucleus = slot.top_p > 0 && slot.top_p < 1;
	sample_list l = { 0, vocab, 0 };
	u64 above, all = 0, target;

	if (top == -SAMPLE_NONE || max_v == -SAMPLE_NONE ||
	    max_v == SAMPLE_NONE) /* the temperature is almost 0 */
		return best;
	if (slot.top_k > 0 && slot.top_k < vocab) {
		const sample_counts f = { v };
		const sample_list &from = shortlist.id ? shortlist : l;
		l = sample_keep(s, v, from, sample_search(s, f, from, slot.top_k - 1, &above),
		                ids); /* ties with the k-th are kept */
	}
	/* Not unrolled. w may alias v for the compiler, and does so with penalties, so loads are
	 * issued before the stores. */
#pragma unroll 1
	for (int first = threadIdx.x; first < l.n; first += SAMPLE_AT_ONCE * SAMPLE_THREADS) {
		int id[SAMPLE_AT_ONCE];
		float e[SAMPLE_AT_ONCE];
#pragma unroll
		for (int k = 0; k < SAMPLE_AT_ONCE; k++) {
			const int i = first + k * SAMPLE_THREADS;
			id[k] = i < l.n ? sample_at(l, i) : -1;
			e[k] = id[k] < 0 ? SAMPLE_NONE : v[id[k]];
		}
#pragma unroll
		for (int k = 0; k < SAMPLE_AT_ONCE; k++) {
			e[k] = sample_exp(__fadd_rn(e[k] / temperature, -max_v));
			e[k] = !nucleus && e[k] < slot.min_p ? 0.0f : e[k];
			all += sample_mass(e[k]);
			if (id[k] >= 0)
				w[id[k]] = e[k];
		}
	}
	all = sample_sum(s, all);
	const sample_masses f = { w };
	if (!nucleus) { /* in ascending order of id */
		target = (u64)(at * (double)all);
		return sample_at(l, sample_walk(s, f, l, target < all ? target : all - 1));
	}
	/* the largest ones, until their sum reaches top_p of the total */
	const double want = -floor(-((double)slot.top_p * (double)all));
	target = want<1 ? 1 : want>(double) all ? all : (u64)want;
	/* weight at `whole` plus a margin, because exp is not strictly monotonic in the last
	 * bits */
	if (!l.id && shortlist.id) {
		const float edge = sample_exp(__fadd_rn(sample_value(whole) / temperature, -max_v));
		if (sample_mass_of(s, w, shortlist, sample_key(edge) + 8) >= target)
			l = shortlist;
	}
	const unsigned cut = sample_search(s, f, l, target - 1, &above);
	u64 one = sample_mass(sample_value(cut)),
	    kept = above + (target - above + one - 1) / one * one;
	if (sample_value(cut) < slot.min_p)
		kept = sample_mass_of(s, w, l, sample_key(slot.min_p));
	target = (u64)(at * (double)kept);
	target = target < kept ? target : kept - 1;
	const unsigned key = sample_search(s, f, l, target, &above);
	one = sample_mass(sample_value(key));
	const sample_equals same = { w, key };
	return sample_at(l, sample_walk(s, same, l, (target - above) / one));
}

#endif

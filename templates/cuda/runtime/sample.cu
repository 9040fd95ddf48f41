/* Last kernel of a step. For every row of logits it samples the next token, computes the token's
 * log probability and updates the state of the sequence (templates/cuda/sampling/sampler_state.h).
 * A row has LLMC_SAMPLE_PARTS parts, whatever the number of CTAs that share the row. Each CTA scans
 * its parts, and the last CTA to finish a row samples its token. */
#include "cuda/sampling/sample.h"

enum { AT_ONCE = 8 }; /* logits in flight per thread */
/* Results of a part of a row, stored as doubles in `part` */
enum {
	PART_MAX,
	PART_SUM,
	PART_BEST,
	PART_ID,
	PART_BAD,
	PART_SHORTLIST,
	PART_LEAST,
	PART_WORDS = 8
};

/* Applies the penalties to a logit, without contraction to FMA, as runtime/sample/sampler.c
 * does. */
DEV float
penalised(const llmc_slot &slot, float v, int count)
{
	if (count == 0)
		return v;
	v = v < 0 ? __fmul_rn(v, slot.repetition_penalty) : v / slot.repetition_penalty;
	if (count & LLMC_COUNT)
		v = __fadd_rn(
		    v, -__fadd_rn(__fmul_rn(slot.frequency_penalty, (float)(count & LLMC_COUNT)),
		                  slot.presence_penalty));
	return v;
}

/* Returns the mask of allowed tokens for row o; NULL: all tokens are allowed. */
DEV const unsigned *
mask_of(const llmc_state &p, int o)
{
	const int at = p.mask_at ? p.mask_at[o] : -1;
	return at < 0 ? 0 : p.mask + (long long)at * ((p.vocab + 31) / 32);
}

/* Best of N lanes (of equal values, the lower id) and whether any lane has a bad value. Returned to
 * all lanes. */
template <int N> DEV void
warp_best(float &v, int &id, int &bad)
{
#pragma unroll
	for (int d = N / 2; d; d >>= 1) {
		const float ov = __shfl_xor_sync(0xffffffffu, v, d);
		const int oid = __shfl_xor_sync(0xffffffffu, id, d);
		bad |= __shfl_xor_sync(0xffffffffu, bad, d);
		if (sample_before(ov, oid, v, id)) {
			v = ov;
			id = oid;
		}
	}
}

/* Sum over N lanes, returned to all lanes */
template <int N> DEV double
lanes_sum(double v)
{
#pragma unroll
	for (int d = N / 2; d; d >>= 1)
		v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

/* Best over the CTA */
DEV void
best_of(sample_shared &s, float &v, int &id, int &bad)
{
	warp_best<32>(v, id, bad);
	if (lane_id() == 0) {
		s.best[warp_id()] = v;
		s.id[warp_id()] = id;
		s.bad[warp_id()] = bad;
	}
	__syncthreads();
	v = s.best[lane_id() % SAMPLE_WARPS];
	id = s.id[lane_id() % SAMPLE_WARPS];
	bad = s.bad[lane_id() % SAMPLE_WARPS];
	warp_best<SAMPLE_WARPS>(v, id, bad);
}

/* Elements [first, hi) of a row: the part of a row that is left. Each thread of the CTA processes
 * AT_ONCE of them at a time. */
struct part_span {
	int part, first, hi;
};

DEV part_span
part_of(int vocab, int part)
{
	const int piece = (vocab + LLMC_SAMPLE_PARTS - 1) / LLMC_SAMPLE_PARTS,
	          lo = min(part * piece, vocab);
	return part_span{ part, lo, min(lo + piece, vocab) };
}

DEV void
issue_loads(float (&raw)[AT_ONCE], const float *v, const part_span &at)
{
	v += at.first + threadIdx.x;
#pragma unroll
	for (int k = 0; k < AT_ONCE; k++)
		raw[k] = (int)threadIdx.x < at.hi - at.first - k * SAMPLE_THREADS
		             ? v[k * SAMPLE_THREADS]
		             : SAMPLE_NONE;
}

/* Running maximum of a thread over the logits of a part */
struct running_max {
	float most;
	int id;
};

DEV void
update_max(running_max &a, bool &bad, const float (&raw)[AT_ONCE], int first)
{
	float most = raw[0];
	int at = 0;

#pragma unroll
	for (int k = 0; k < AT_ONCE; k++) {
		bad |= raw[k] != raw[k];
		const bool more = raw[k] > most; /* ids ascend, so of equal values the first wins */
		most = more ? raw[k] : most;
		at = more ? k : at;
	}
	if (most > a.most) {
		a.most = most;
		a.id = first + (int)threadIdx.x + at * SAMPLE_THREADS;
	}
}

/* Finds the largest logit of each of the CTA's parts of row o, before mask and penalties, and
 * stores it in s.most and p.part. Returns the number of parts. The first logits, `raw`, are already
 * in flight. A warp issues 8 loads of the next span before it processes the current 8. It waits for
 * other warps only at the end. */
DEV int
largest(sample_shared &s, const llmc_state &p, int o, float (&raw)[AT_ONCE], part_span at)
{
	const float *v = p.logits + (long long)o * p.vocab;
	running_max a = { SAMPLE_NONE, 0x7fffffff };
	bool bad = false; /* whether this part or an earlier one has a NaN; one NaN decides the
	                     status of the row */
	int n = 0;        /* finished parts */

#pragma unroll 1
	while (at.part < LLMC_SAMPLE_PARTS) {
		float later[AT_ONCE];
		part_span next = { at.part, at.first + AT_ONCE * SAMPLE_THREADS, at.hi };
		if (next.first >= next.hi)
			next = part_of(p.vocab, at.part + (int)gridDim.x);
		if (next.part < LLMC_SAMPLE_PARTS)
			issue_loads(later, v, next);
		update_max(a, bad, raw, at.first);
		if (next.part != at.part) {
			const float most = warp_max(a.most);
			int id = a.most == most ? a.id : 0x7fffffff;
#pragma unroll
			for (int d = 16; d; d >>= 1)
				id = min(id, __shfl_xor_sync(0xffffffffu, id, d));
			bad = __any_sync(0xffffffffu, bad);
			if (lane_id() == 0) {
				s.seen_max[n * SAMPLE_WARPS + warp_id()] = most;
				s.seen_id[n * SAMPLE_WARPS + warp_id()] = bad ? -1 : id;
			}
			a = running_max{ SAMPLE_NONE, 0x7fffffff };
			n++;
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			raw[k] = later[k];
		at = next;
	}
	__syncthreads();
	/* 16 lanes per part */
	const int of = threadIdx.x / SAMPLE_WARPS;
	float most = of < n ? s.seen_max[threadIdx.x] : SAMPLE_NONE;
	int id = of < n ? s.seen_id[threadIdx.x] : 0, broken = id < 0;
	warp_best<SAMPLE_WARPS>(most, id, broken);
	if (of < n && threadIdx.x % SAMPLE_WARPS == 0) {
		double *to =
		    p.part +
		    ((long long)o * LLMC_SAMPLE_PARTS + blockIdx.x + of * gridDim.x) * PART_WORDS;
		to[PART_MAX] = to[PART_BEST] = s.most[of] = most;
		to[PART_ID] = id;
		to[PART_BAD] = broken;
	}
	return n;
}

/* Computes maximum and sum of exp of the CTA's parts of row o. exp is that of
 * runtime/sample/softmax.c, and the sum is in double. Log probabilities therefore equal those of
 * the host and do not depend on the number of CTAs per row.
 *
 * Computed for 64 rows of 128256 logits (33 MB) with 16 parts per CTA: the first read takes 11 us
 * at 3 TB/s, which hides 200 instructions per part and warp. The second read comes from L2 (6 us).
 * It takes about 27 instructions per logit: 230 x 16 parts x 4 warps per scheduler, 9 us. Each part
 * also waits for L2 once, 16 x 0.5 us. */
DEV void
weigh(sample_shared &s, const llmc_state &p, int o, float (&raw)[AT_ONCE], part_span at)
{
	const float *v = p.logits + (long long)o * p.vocab;
	const int n = largest(s, p, o, raw, at), of = threadIdx.x / SAMPLE_WARPS;

	__syncthreads();
#pragma unroll 1
	for (int i = 0; i < n; i++) {
		const float most = s.most[i];
		double sum = 0;
		part_span l = part_of(p.vocab, (int)blockIdx.x + i * (int)gridDim.x);
#pragma unroll 1
		for (; l.first < l.hi && most > SAMPLE_NONE;
		     l.first += AT_ONCE * SAMPLE_THREADS) { /* otherwise all weights are 0 */
			issue_loads(raw, v, l);
#pragma unroll
			for (int k = 0; k < AT_ONCE; k++)
				sum += (double)sample_exp(__fadd_rn(raw[k], -most));
		}
		sum = lanes_sum<32>(sum);
		if (lane_id() == 0)
			s.seen_sum[i * SAMPLE_WARPS + warp_id()] = sum;
	}
	__syncthreads();
	const double sum = lanes_sum<SAMPLE_WARPS>(of < n ? s.seen_sum[threadIdx.x] : 0);
	if (of < n && threadIdx.x % SAMPLE_WARPS == 0)
		p.part[((long long)o * LLMC_SAMPLE_PARTS + blockIdx.x + of * gridDim.x) *
		           PART_WORDS +
		       PART_SUM] = sum;
}

/* Applies mask and penalties to one part of row o and makes its shortlist. Updates the results that
 * `weigh` stored. */
DEV void
shortlist_part(sample_shared &s, const llmc_state &p, const llmc_slot &slot, const unsigned *mask,
               int slot_at, int o, int part)
{
	const part_span l = part_of(p.vocab, part);
	const int lo = l.first, hi = l.hi;
	const float *v = p.logits + (long long)o * p.vocab;
	const int *count = p.counts + (long long)slot_at * p.vocab;
	float *w = (float *)(p.work + (long long)o * p.vocab), best = SAMPLE_NONE;
	int *ids = (int *)w + p.vocab, best_id = 0x7fffffff, bad = 0, shortlist = 0;
	unsigned least = 0;
	const int wanted = sample_wants(slot, p.vocab);

	/* Not unrolled. For the compiler w may alias v, so in an unrolled loop each load would wait
	 * for the preceding store. Here loads are issued together before any store. */
#pragma unroll 1
	for (int first = lo + threadIdx.x; first < hi; first += AT_ONCE * SAMPLE_THREADS) {
		float raw[AT_ONCE];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			raw[k] =
			    first + k * SAMPLE_THREADS < hi ? v[first + k * SAMPLE_THREADS] : 0;
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			const int i = first + k * SAMPLE_THREADS;
			float x = raw[k];
			if (i >= hi)
				break;
			if (mask && !(mask[i >> 5] >> (i & 31) & 1))
				x = SAMPLE_NONE;
			if (slot.penalties)
				x = penalised(slot, x, count[i]);
			if (mask || slot.penalties)
				w[i] = x;
			bad |= raw[k] != raw[k] || x != x;
			if (sample_before(x, i, best, best_id)) {
				best = x;
				best_id = i;
			}
		}
	}
	const float mine = best;
	best_of(s, best, best_id, bad);
	if (wanted && !bad) /* the barrier in best_of orders this CTA's stores to w */
		shortlist =
		    sample_shortlist(s, mask || slot.penalties ? w : v, mine,
		                     sample_list{ 0, hi - lo, lo }, wanted, ids + lo, &least);
	if (threadIdx.x == 0) {
		double *to = p.part + ((long long)o * LLMC_SAMPLE_PARTS + part) * PART_WORDS;
		to[PART_BEST] = best;
		to[PART_ID] = best_id;
		to[PART_BAD] = bad;
		to[PART_SHORTLIST] = shortlist;
		to[PART_LEAST] = least;
	}
}

/* Merges the shortlists of a row's parts in shared memory; returns an empty list if they are too
 * long. Lane i holds part i in `part`. *whole: highest of the shortlists' lowest keys */
DEV sample_list
gather(sample_shared &s, const llmc_state &p, const double *part, const int *ids, unsigned *whole)
{
	const int piece = (p.vocab + LLMC_SAMPLE_PARTS - 1) / LLMC_SAMPLE_PARTS,
	          shortlist = (int)part[PART_SHORTLIST];
	int n = 0;

	*whole = (unsigned)part[PART_LEAST];
#pragma unroll
	for (int d = 16; d; d >>= 1)
		*whole = max(*whole, __shfl_xor_sync(0xffffffffu, *whole, d));
#pragma unroll 1
	for (int k = 0; k < LLMC_SAMPLE_PARTS; k++) {
		const int more = __shfl_sync(0xffffffffu, shortlist, k);
		for (int i = threadIdx.x; i < more && n + i < SAMPLE_SHORTLIST; i += SAMPLE_THREADS)
			s.shortlist[n + i] = ids[k * piece + i];
		n += more;
	}
	__syncthreads();
	return n <= SAMPLE_SHORTLIST ? sample_list{ s.shortlist, n, 0 } : sample_list{ 0, 0, 0 };
}

/* Samples from row o, once all its parts are finished, and stores the result. In every warp, each
 * lane has one part. */
DEV void
sample_row(sample_shared &s, const llmc_state &p, const llmc_slot &slot, const unsigned *mask,
           int slot_at, int o, unsigned number)
{
	static_assert(LLMC_SAMPLE_PARTS == 32, "parts of a row are lanes");
	const float *v = p.logits + (long long)o * p.vocab;
	float *w = (float *)(p.work + (long long)o * p.vocab);
	const double *part = p.part + ((long long)o * LLMC_SAMPLE_PARTS + lane_id()) * PART_WORDS;
	const float top = (float)part[PART_MAX], most = warp_max(top);
	float best = (float)part[PART_BEST];
	int best_id = (int)part[PART_ID], bad = part[PART_BAD] != 0;
	double all = part[PART_SUM];

	warp_best<32>(best, best_id, bad);
	const int status = bad ? 1 : most == SAMPLE_NONE || best == SAMPLE_NONE ? 2 : 0;
	int id = best_id;
	if (status == 0 && slot.temperature > 0) {
		int *ids = (int *)w + p.vocab;
		unsigned whole = 0;
		sample_list shortlist = { 0, 0, 0 };
		if (sample_wants(slot, p.vocab))
			shortlist = gather(s, p, part, ids, &whole);
		id = sample_draw(s, slot, mask || slot.penalties ? w : v, p.vocab, best, id,
		                 shortlist, whole, w, ids);
	}
	if (warp_id())
		return;
	all = lanes_sum<32>(all > 0 ? all * exp((double)top - (double)most) : 0);
	if (threadIdx.x)
		return;
	llmc_sampled *to = p.sampled + (unsigned)number % LLMC_RING * (long long)p.max_out + o;
	const float x = id == best_id && !slot.penalties
	                    ? best
	                    : v[id]; /* the sampled token is usually `best`, which saves a load */
	float logprob = 0;
	if (status == 0 && most == -SAMPLE_NONE) /* a logit of +inf has all the weight */
		logprob = x == -SAMPLE_NONE ? 0 : SAMPLE_NONE;
	else if (status == 0)
		logprob = (float)((double)x - ((double)most + log(all)));
	to->id = status ? 0 : id;
	to->logprob = logprob;
	to->status = status;
	if (status)
		return;
	llmc_slot *mine = p.slot + slot_at;
	mine->last = id;
	mine->n_sampled = slot.n_sampled + 1;
	if (slot.penalties) {
		int *count = p.counts + (long long)slot_at * p.vocab + id;
		if ((*count & LLMC_COUNT) < LLMC_COUNT)
			*count += 1;
	}
}

extern "C" __global__ void __launch_bounds__(512, 1)
llmc_sample(const llmc_state p)
{
	SHARED(sample_shared, s);

	PDL_WAIT();
	const int n = p.s_n[3];
	const unsigned number = *p.now;
	if (n == 0 && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
		st_release_sys(p.count, number + 1);
	for (int o = blockIdx.y; o < n; o += gridDim.y) {
		const part_span first = part_of(p.vocab, blockIdx.x);
		float raw[AT_ONCE];
		issue_loads(raw, p.logits + (long long)o * p.vocab, first);
		/* issued before the slot is looked up, which takes four dependent loads */
		__syncwarp();
		const int slot_at = p.slot_of[p.s_seq_of[p.s_out_row[o]]];
		const llmc_slot slot = p.slot[slot_at];
		const unsigned *mask = mask_of(p, o);
		weigh(s, p, o, raw, first);
		if (mask || slot.penalties || sample_wants(slot, p.vocab))
#pragma unroll 1
			for (int part = blockIdx.x; part < LLMC_SAMPLE_PARTS; part += gridDim.x) {
				/* no warp uses s for the previous part any more, and p.part has the
				 * results of weigh */
				__syncthreads();
				shortlist_part(s, p, slot, mask, slot_at, o, part);
			}
		__syncthreads();
		if (threadIdx.x == 0)
			s.last = atom_add_acq_rel_gpu(p.row_done + o, 1u) == gridDim.x - 1;
		__syncthreads();
		if (!s.last)
			continue;
		sample_row(s, p, slot, mask, slot_at, o, number);
		if (threadIdx.x == 0) {
			p.row_done[o] = 0;
			__threadfence_system();
			if (atom_add_acq_rel_gpu(p.all_done, 1u) == (unsigned)n - 1) {
				*p.all_done = 0;
				st_release_sys(p.count, number + 1);
			}
		}
	}
}

/* Last kernel of a step: the next token of every row of logits, its logprob, and the state of its
 * sequence. templates/cuda/sampling/sampler_state.h says what is picked. A row has
 * LLMC_SAMPLE_PARTS parts, however many blocks share it: each looks through its parts, the last one
 * to finish does what remains. */
#include "cuda/sampling/sample.h"

enum { AT_ONCE = 8 }; /* logits of a thread that are on their way */
/* What a part of a row found; in `part`, as doubles */
enum { PART_MAX, PART_SUM, PART_BEST, PART_ID, PART_BAD, PART_FEW, PART_LEAST, PART_WORDS = 8 };

/* The logit after penalties, contracted nowhere: as runtime/sample/sampler.c */
DEV float
penalised(const llmc_slot &slot, float v, int count)
{
	if (count == 0)
		return v;
	v = v < 0 ? __fmul_rn(v, slot.repetition) : v / slot.repetition;
	if (count & LLMC_COUNT)
		v = __fadd_rn(v, -__fadd_rn(__fmul_rn(slot.frequency, (float)(count & LLMC_COUNT)),
		                            slot.presence));
	return v;
}

/* The bits of what may be picked in row o; 0: anything. */
DEV const unsigned *
mask_of(const llmc_state &p, int o)
{
	const int at = p.mask_at ? p.mask_at[o] : -1;
	return at < 0 ? 0 : p.mask + (long long)at * ((p.vocab + 31) / 32);
}

/* The best of N lanes, of equals the lower id, and whether any was bad: to all of them. */
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

/* The sum of N lanes, to all of them */
template <int N> DEV double
lanes_sum(double v)
{
#pragma unroll
	for (int d = N / 2; d; d >>= 1)
		v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}

/* The best over the block */
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

/* Elements [first, hi) of a row, the rest of a part: the block's threads have AT_ONCE of them each.
 */
struct rest {
	int part, first, hi;
};

DEV rest
part_of(int vocab, int part)
{
	const int piece = (vocab + LLMC_SAMPLE_PARTS - 1) / LLMC_SAMPLE_PARTS,
	          lo = min(part * piece, vocab);
	return rest{ part, lo, min(lo + piece, vocab) };
}

DEV void
issue_loads(float (&raw)[AT_ONCE], const float *v, const rest &at)
{
	v += at.first + threadIdx.x;
#pragma unroll
	for (int k = 0; k < AT_ONCE; k++)
		raw[k] = (int)threadIdx.x < at.hi - at.first - k * SAMPLE_THREADS
		             ? v[k * SAMPLE_THREADS]
		             : SAMPLE_NONE;
}

/* What a thread has found in the logits of a part */
struct seen {
	float most;
	int id;
};

DEV void
see(seen &a, bool &bad, const float (&raw)[AT_ONCE], int first)
{
	float most = raw[0];
	int at = 0;

#pragma unroll
	for (int k = 0; k < AT_ONCE; k++) {
		bad |= raw[k] != raw[k];
		const bool more = raw[k] > most; /* ids rise: the first of equals stays */
		most = more ? raw[k] : most;
		at = more ? k : at;
	}
	if (most > a.most) {
		a.most = most;
		a.id = first + (int)threadIdx.x + at * SAMPLE_THREADS;
	}
}

/* The largest of the block's parts of row o as they are, without mask or penalties, into s.most and
 * p.part; their number. `raw` is the first of it, which has been asked for. A warp has its 8 loads
 * of the next part on their way while it looks at the last 8, and no barrier makes it wait for the
 * others before the end. */
DEV int
largest(sample_shared &s, const llmc_state &p, int o, float (&raw)[AT_ONCE], rest at)
{
	const float *v = p.logits + (long long)o * p.vocab;
	seen a = { SAMPLE_NONE, 0x7fffffff };
	bool bad = false; /* in this part or one before: the row's it is */
	int n = 0;        /* parts that are done */

#pragma unroll 1
	while (at.part < LLMC_SAMPLE_PARTS) {
		float later[AT_ONCE];
		rest next = { at.part, at.first + AT_ONCE * SAMPLE_THREADS, at.hi };
		if (next.first >= next.hi)
			next = part_of(p.vocab, at.part + (int)gridDim.x);
		if (next.part < LLMC_SAMPLE_PARTS)
			issue_loads(later, v, next);
		see(a, bad, raw, at.first);
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
			a = seen{ SAMPLE_NONE, 0x7fffffff };
			n++;
		}
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			raw[k] = later[k];
		at = next;
	}
	__syncthreads();
	/* 16 lanes a part */
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

/* The block's parts of row o: what is the largest, and what all weigh beside it, by the exp of
 * runtime/sample/softmax.c and added in double, so that log probabilities are the host's and the
 * same however many blocks share the row.
 *
 * 64 rows of 128256 are 33 MB, 16 parts a block: at 3 TB/s 11 us, behind which 200 instructions a
 * part and warp hide. A second time they come out of L2, 6 us, with some 27 instructions a logit:
 * 230 x 16 parts x 4 warps of a scheduler, 9 us, and for each part the way to L2, 16 x 0.5 us. */
DEV void
weigh(sample_shared &s, const llmc_state &p, int o, float (&raw)[AT_ONCE], rest at)
{
	const float *v = p.logits + (long long)o * p.vocab;
	const int n = largest(s, p, o, raw, at), of = threadIdx.x / SAMPLE_WARPS;

	__syncthreads();
#pragma unroll 1
	for (int i = 0; i < n; i++) {
		const float most = s.most[i];
		double sum = 0;
		rest l = part_of(p.vocab, (int)blockIdx.x + i * (int)gridDim.x);
#pragma unroll 1
		for (; l.first < l.hi && most > SAMPLE_NONE;
		     l.first += AT_ONCE * SAMPLE_THREADS) { /* else none of them weighs anything */
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

/* What mask, penalties and short lists make of one part of row o, over what `weigh` said of it. */
DEV void
look(sample_shared &s, const llmc_state &p, const llmc_slot &slot, const unsigned *mask,
     int slot_at, int o, int part)
{
	const rest l = part_of(p.vocab, part);
	const int lo = l.first, hi = l.hi;
	const float *v = p.logits + (long long)o * p.vocab;
	const int *count = p.counts + (long long)slot_at * p.vocab;
	float *w = (float *)(p.work + (long long)o * p.vocab), best = SAMPLE_NONE;
	int *ids = (int *)w + p.vocab, best_id = 0x7fffffff, bad = 0, few = 0;
	unsigned least = 0;
	const int wanted = sample_wants(slot, p.vocab);

	/* logits are asked for together: w might be v, for all that the compiler knows, and each
	 * would wait for what is stored before it */
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
	if (wanted && !bad) /* this block's part of w is behind best_of's barrier */
		few = sample_shortlist(s, mask || slot.penalties ? w : v, mine,
		                       sample_list{ 0, hi - lo, lo }, wanted, ids + lo, &least);
	if (threadIdx.x == 0) {
		double *to = p.part + ((long long)o * LLMC_SAMPLE_PARTS + part) * PART_WORDS;
		to[PART_BEST] = best;
		to[PART_ID] = best_id;
		to[PART_BAD] = bad;
		to[PART_FEW] = few;
		to[PART_LEAST] = least;
	}
}

/* The lists that the parts of a row made, in one, in shared memory; none where it is too long.
 * `part` is the lane's. *whole: the highest of the keys that the parts listed down to. */
DEV sample_list
gather(sample_shared &s, const llmc_state &p, const double *part, const int *ids, unsigned *whole)
{
	const int piece = (p.vocab + LLMC_SAMPLE_PARTS - 1) / LLMC_SAMPLE_PARTS,
	          few = (int)part[PART_FEW];
	int n = 0;

	*whole = (unsigned)part[PART_LEAST];
#pragma unroll
	for (int d = 16; d; d >>= 1)
		*whole = max(*whole, __shfl_xor_sync(0xffffffffu, *whole, d));
#pragma unroll 1
	for (int k = 0; k < LLMC_SAMPLE_PARTS; k++) {
		const int more = __shfl_sync(0xffffffffu, few, k);
		for (int i = threadIdx.x; i < more && n + i < SAMPLE_FEW; i += SAMPLE_THREADS)
			s.few[n + i] = ids[k * piece + i];
		n += more;
	}
	__syncthreads();
	return n <= SAMPLE_FEW ? sample_list{ s.few, n, 0 } : sample_list{ 0, 0, 0 };
}

/* All parts of row o are there, one a lane of every warp: pick, and note it. */
DEV void
settle(sample_shared &s, const llmc_state &p, const llmc_slot &slot, const unsigned *mask,
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
		sample_list few = { 0, 0, 0 };
		if (sample_wants(slot, p.vocab))
			few = gather(s, p, part, ids, &whole);
		id = sample_draw(s, slot, mask || slot.penalties ? w : v, p.vocab, best, id, few,
		                 whole, w, ids);
	}
	if (warp_id())
		return;
	all = lanes_sum<32>(all > 0 ? all * exp((double)top - (double)most) : 0);
	if (threadIdx.x)
		return;
	llmc_sampled *to = p.sampled + (unsigned)number % LLMC_RING * (long long)p.max_out + o;
	const float x = id == best_id && !slot.penalties
	                    ? best
	                    : v[id]; /* most often there is no need to ask */
	float logprob = 0;
	if (status == 0 && most == -SAMPLE_NONE) /* one token takes all */
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
		const rest first = part_of(p.vocab, blockIdx.x);
		float raw[AT_ONCE];
		issue_loads(raw, p.logits + (long long)o * p.vocab, first);
		__syncwarp(); /* asked for before the slot is looked up, by four loads, each of
		                 which needs the last */
		const int slot_at = p.slot_of[p.s_seq_of[p.s_out_row[o]]];
		const llmc_slot slot = p.slot[slot_at];
		const unsigned *mask = mask_of(p, o);
		weigh(s, p, o, raw, first);
		if (mask || slot.penalties || sample_wants(slot, p.vocab))
#pragma unroll 1
			for (int part = blockIdx.x; part < LLMC_SAMPLE_PARTS; part += gridDim.x) {
				__syncthreads(); /* the part before is done with s, and p.part is as
				                    weigh left it */
				look(s, p, slot, mask, slot_at, o, part);
			}
		__syncthreads();
		if (threadIdx.x == 0)
			s.last = atom_add_acq_rel_gpu(p.row_done + o, 1u) == gridDim.x - 1;
		__syncthreads();
		if (!s.last)
			continue;
		settle(s, p, slot, mask, slot_at, o, number);
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

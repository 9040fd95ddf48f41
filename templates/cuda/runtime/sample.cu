/* Last kernel of a step: the next token of every row of logits, its logprob, and the state of its sequence. templates/common/cuda_state.h
 * says what is picked. A row has LLMC_PICK_PARTS parts, however many blocks share it: each looks through its parts, the last one to finish does what remains. */
#include "common/cuda_sample.h"

enum { AT_ONCE = 8 }; /* logits of a thread that are on their way */
/* What a part of a row found; in `part`, as doubles */
enum { PART_MAX, PART_SUM, PART_BEST, PART_ID, PART_BAD, PART_FEW, PART_LEAST, PART_WORDS = 8 };

/* The logit after penalties, contracted nowhere: as runtime/sample/sample.c */
DEV float
penalised(const llmc_slot &slot, float v, int count)
{
	if (count == 0)
		return v;
	v = v < 0 ? __fmul_rn(v, slot.repetition) : v / slot.repetition;
	if (count & LLMC_COUNT)
		v = __fadd_rn(v, -__fadd_rn(__fmul_rn(slot.frequency, (float)(count & LLMC_COUNT)), slot.presence));
	return v;
}

/* The bits of what may be picked in row o; 0: anything. */
DEV const unsigned *
mask_of(const llmc_state &p, int o)
{
	const int at = p.mask_at ? p.mask_at[o] : -1;
	return at < 0 ? 0 : p.mask + (long long)at * ((p.vocab + 31) / 32);
}

/* The largest, the best (of equals the lower id) and whether any was bad, over the block; all threads get them. */
DEV void
best_of(pick_shared &s, float &most, float &v, int &id, int &bad)
{
#pragma unroll
	for (int d = 16; d; d >>= 1) {
		const float ov = __shfl_xor_sync(0xffffffffu, v, d);
		const int oid = __shfl_xor_sync(0xffffffffu, id, d);
		bad |= __shfl_xor_sync(0xffffffffu, bad, d);
		if (pick_before(ov, oid, v, id)) {
			v = ov;
			id = oid;
		}
	}
	most = warp_max(most);
	if (lane_id() == 0) {
		s.top[warp_id()] = most;
		s.best[warp_id()] = v;
		s.id[warp_id()] = id;
		s.bad[warp_id()] = bad;
	}
	__syncthreads();
#pragma unroll 1
	for (int w = 0; w < PICK_WARPS; w++) {
		most = fmaxf(most, s.top[w]);
		bad |= s.bad[w];
		if (pick_before(s.best[w], s.id[w], v, id)) {
			v = s.best[w];
			id = s.id[w];
		}
	}
}

/* One part of row o into p.part */
DEV void
look(pick_shared &s, const llmc_state &p, const llmc_slot &slot, const unsigned *mask, int slot_at, int o, int part)
{
	const int piece = (p.vocab + LLMC_PICK_PARTS - 1) / LLMC_PICK_PARTS;
	const int lo = min(part * piece, p.vocab), hi = min(lo + piece, p.vocab);
	const float *v = p.logits + (long long)o * p.vocab;
	const int *count = p.counts + (long long)slot_at * p.vocab;
	float *w = (float *)(p.work + (long long)o * p.vocab), most = PICK_NONE, best = PICK_NONE;
	int *ids = (int *)w + p.vocab, best_id = 0x7fffffff, bad = 0, few = 0;
	unsigned least = 0;
	const int wanted = pick_wants(slot, p.vocab);
	double sum = 0;

	/* logits are asked for together: w might be v, for all that the compiler knows, and each would wait for what is stored before it */
	for (int first = lo + threadIdx.x; first < hi; first += AT_ONCE * PICK_THREADS) {
		float raw[AT_ONCE];
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++)
			raw[k] = first + k * PICK_THREADS < hi ? v[first + k * PICK_THREADS] : 0;
#pragma unroll
		for (int k = 0; k < AT_ONCE; k++) {
			const int i = first + k * PICK_THREADS;
			float x = raw[k];
			if (i >= hi)
				break;
			if (mask && !(mask[i >> 5] >> (i & 31) & 1))
				x = PICK_NONE;
			if (slot.penalties)
				x = penalised(slot, x, count[i]);
			if (mask || slot.penalties)
				w[i] = x;
			bad |= raw[k] != raw[k] || x != x;
			if (raw[k] > most)
				most = raw[k];
			if (pick_before(x, i, best, best_id)) {
				best = x;
				best_id = i;
			}
		}
	}
	const float mine = best;
	best_of(s, most, best, best_id, bad);
	if (most > PICK_NONE) /* else none of them weighs anything */
#pragma unroll 8
		for (int i = lo + threadIdx.x; i < hi; i += PICK_THREADS)
			sum += (double)pick_exp(__fadd_rn(v[i], -most));
	if (wanted && !bad) /* this block's part of w is behind best_of's barrier */
		few = pick_shortlist(s, mask || slot.penalties ? w : v, mine, pick_list{ 0, hi - lo, lo }, wanted, ids + lo, &least);
	for (int d = 16; d; d >>= 1)
		sum += __shfl_xor_sync(0xffffffffu, sum, d);
	if (lane_id() == 0)
		s.add[warp_id()] = sum;
	__syncthreads();
	if (threadIdx.x == 0) {
		double *to = p.part + ((long long)o * LLMC_PICK_PARTS + part) * PART_WORDS;
		sum = 0;
#pragma unroll 1
		for (int k = 0; k < PICK_WARPS; k++)
			sum += s.add[k];
		to[PART_MAX] = most;
		to[PART_SUM] = sum;
		to[PART_BEST] = best;
		to[PART_ID] = best_id;
		to[PART_BAD] = bad;
		to[PART_FEW] = few;
		to[PART_LEAST] = least;
	}
}

/* The lists of a row's parts in one, in shared memory; none where they are too long or were not made. *whole: the highest of the keys that
 * the parts listed down to. */
DEV pick_list
gather(pick_shared &s, const llmc_state &p, const llmc_slot &slot, const double *part, const int *ids, unsigned *whole)
{
	const int piece = (p.vocab + LLMC_PICK_PARTS - 1) / LLMC_PICK_PARTS;
	int n = 0;

	if (!pick_wants(slot, p.vocab))
		return pick_list{ 0, 0, 0 };
#pragma unroll 1
	for (int k = 0; k < LLMC_PICK_PARTS; k++, part += PART_WORDS) {
		const int more = (int)part[PART_FEW];
		*whole = max(*whole, (unsigned)part[PART_LEAST]);
		for (int i = threadIdx.x; i < more && n + i < PICK_FEW; i += PICK_THREADS)
			s.few[n + i] = ids[k * piece + i];
		n += more;
	}
	__syncthreads();
	return n <= PICK_FEW ? pick_list{ s.few, n, 0 } : pick_list{ 0, 0, 0 };
}

/* All parts of row o are there: pick, and note it. */
DEV void
settle(pick_shared &s, const llmc_state &p, const llmc_slot &slot, const unsigned *mask, int slot_at, int o, unsigned number)
{
	const float *v = p.logits + (long long)o * p.vocab;
	float *w = (float *)(p.work + (long long)o * p.vocab), most = PICK_NONE, best = PICK_NONE;
	int id = 0x7fffffff, bad = 0;

	for (int i = threadIdx.x; i < LLMC_PICK_PARTS * PART_WORDS; i += PICK_THREADS)
		if (i % PART_WORDS <= PART_LEAST)
			s.found[i] = p.part[(long long)o * LLMC_PICK_PARTS * PART_WORDS + i];
	__syncthreads();
	const double *part = s.found;
#pragma unroll 1
	for (int k = 0; k < LLMC_PICK_PARTS; k++, part += PART_WORDS) {
		most = fmaxf(most, (float)part[PART_MAX]);
		bad |= part[PART_BAD] != 0;
		if (pick_before((float)part[PART_BEST], (int)part[PART_ID], best, id)) {
			best = (float)part[PART_BEST];
			id = (int)part[PART_ID];
		}
	}
	const int status = bad ? 1 : most == PICK_NONE || best == PICK_NONE ? 2 : 0;
	if (status == 0 && slot.temperature > 0) {
		int *ids = (int *)w + p.vocab;
		unsigned whole = 0;
		const pick_list few = gather(s, p, slot, s.found, ids, &whole);
		id = pick_draw(s, slot, mask || slot.penalties ? w : v, p.vocab, best, id, few, whole, w, ids);
	}
	if (threadIdx.x < LLMC_PICK_PARTS) {
		double *mine = s.found + threadIdx.x * PART_WORDS;
		if (mine[PART_SUM] > 0)
			mine[PART_SUM] *= exp(mine[PART_MAX] - (double)most);
	}
	__syncthreads();
	if (threadIdx.x)
		return;
	double all = 0;
#pragma unroll 1
	for (int k = 0; k < LLMC_PICK_PARTS; k++)
		if (s.found[k * PART_WORDS + PART_SUM] > 0)
			all += s.found[k * PART_WORDS + PART_SUM];
	llmc_picked *to = p.picked + (unsigned)number % LLMC_RING * (long long)p.max_out + o;
	float logprob = 0;
	if (status == 0 && most == -PICK_NONE) /* one token takes all */
		logprob = v[id] == -PICK_NONE ? 0 : PICK_NONE;
	else if (status == 0)
		logprob = (float)((double)v[id] - ((double)most + log(all)));
	to->id = status ? 0 : id;
	to->logprob = logprob;
	to->status = status;
	if (status)
		return;
	llmc_slot *mine = p.slot + slot_at;
	mine->last = id;
	mine->n_pick = slot.n_pick + 1;
	if (slot.penalties) {
		int *count = p.counts + (long long)slot_at * p.vocab + id;
		if ((*count & LLMC_COUNT) < LLMC_COUNT)
			*count += 1;
	}
}

extern "C" __global__ void __launch_bounds__(512, 1)
llmc_sample(const llmc_state p)
{
	SHARED(pick_shared, s);

	PDL_WAIT();
	const int n = p.s_n[3];
	const unsigned number = *p.now;
	if (n == 0 && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
		st_release_sys(p.count, number + 1);
	for (int o = blockIdx.y; o < n; o += gridDim.y) {
		const int slot_at = p.slot_of[p.s_seq_of[p.s_out_row[o]]];
		const llmc_slot slot = p.slot[slot_at];
		const unsigned *mask = mask_of(p, o);
#pragma unroll 1
		for (int part = blockIdx.x; part < LLMC_PICK_PARTS; part += gridDim.x) {
			__syncthreads(); /* the part before is done with s; the slot of the row before has been read by all */
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

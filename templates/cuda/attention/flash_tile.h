/* Work scheduling shared by the flash attention kernels of mixed steps: work items, their order,
 * and the combination of a row's parts.
 *
 * A pair is a row of one sequence and a query head. A tile is ROWS pairs of one group of heads,
 * with the head as the fast index, so K and V are read once for all pairs. If K and V are computed
 * in rounds (MADE slots per round), each launch is a round, and y holds the sums between rounds. A
 * tile of few pairs is split into segments of SEGMENT positions, with one CTA for each segment. The
 * last CTA to finish combines the segments. CTAs fetch work items from a counter, long items first:
 * the last sequence first (decode rows precede prefill rows), and within a sequence the tiles that
 * see most positions.
 *
 * F (flash_config or flash90_config) derives from flash_parts, which adds ROWS, SEGMENT and the
 * layout of parts to an att_config. */
#ifndef LLMC_CUDA_ATTENTION_FLASH_TILE_H
#define LLMC_CUDA_ATTENTION_FLASH_TILE_H

#include "cuda/attention/attention.h"
#include "cuda/attention/kv_mma.h"

/* Attention A with tiles of ROWS_ pairs and segments of SEGMENT_ positions */
template <class A, int ROWS_, int SEGMENT_> struct flash_parts : A {
	enum {
		ROWS = ROWS_,
		SEGMENT = SEGMENT_,
		/* largest number of pairs of a tile that may be split */
		PART_ROWS = (A::G + 15) / 16 * 16,
		PARTS = PART_ROWS <= ROWS && !A::MADE ? 1024 : 0, /* capacity for parts */
		PART = PART_ROWS * (A::V + 2) /* floats per part: o, then m and l of each pair */
	};
};

DEV float
flash_exp2(float x)
{
#ifdef LLMC_EMU
	return exp2f(x);
#else
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#endif
}

DEV float
flash_reciprocal(float x)
{
#ifdef LLMC_EMU
	return 1.0f / x;
#else
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#endif
}

/* att_score with a softcap that needs two special-function instructions: tanh x = 1 - 2 / (e^2x +
 * 1). The error is about 2^-22 of the cap, which is less than the error of 16-bit scores. */
template <class F> DEV float
flash_score(float product, float slope, int distance)
{
	if constexpr (F::SCORES::SOFTCAP > 0) {
		const float s = flash_reciprocal(
		    flash_exp2(product * (2 * ATT_LOG2E * F::SCORES::SCALE / F::SCORES::SOFTCAP)) +
		    1.0f);
		const float t =
		    fmaf(-2 * ATT_LOG2E * F::SCORES::SOFTCAP, s, ATT_LOG2E * F::SCORES::SOFTCAP);
		return F::SCORES::ALIBI > 0 ? fmaf(slope * ATT_LOG2E, (float)distance, t) : t;
	}
	return att_score<F>(product, slope, distance);
}

template <class F> DEV unsigned
flash_pack(float lo, float hi)
{
	return F::E::put(lo) | (unsigned)F::E::put(hi) << 16;
}

/* Packs weights. They are at most 1, so no clamp is needed. */
template <class F> DEV unsigned
flash_pack_weights(float lo, float hi)
{
	return kv_mma<typename F::E>::pair(lo, hi);
}

/* A work item */
typedef struct FlashWork {
	int seq, row0, rows; /* sequence; its first row and number of rows */
	int first, pairs;    /* first pair of the tile within the sequence, and number of pairs */
	int kv_head;
	int lo,
	    hi; /* positions that are read: all that the pairs attend to, or those of one segment */
	/* parts: number of segments of a split tile, else 0; part: index of this segment; slot:
	 * index of the tile's first part in scratch */
	int parts, part, slot;
	int base; /* with MADE: slot of position 0 in this round */
	/* begun: earlier rounds have left sums in y; open: later rounds will continue with the
	 * sums */
	short begun, open;
} FlashWork;

/* Sets the positions to which the pairs [first, first + pairs) attend. */
template <class F> DEV void
flash_range(const llmc_step &s, FlashWork &w)
{
	const AttRange a = att_range<F>(s, w.seq, s.pos[w.row0 + w.first / F::G]);
	const AttRange b = att_range<F>(s, w.seq, s.pos[w.row0 + (w.first + w.pairs - 1) / F::G]);

	w.lo = a.lo;
	w.hi = b.hi;
}

/* Inclusive prefix sum over the warp */
DEV int
flash_upto(int v)
{
#pragma unroll
	for (int d = 1; d < 32; d *= 2) {
		const int other = __shfl_up_sync(~0u, v, d);
		v += (int)lane_id() >= d ? other : 0;
	}
	return v;
}

/* Finds work item `item` of the step, over all kv heads, and stores it in `to`. Returns false if
 * there are no more. All lanes of one warp call. */
template <class F> DEV bool
flash_find(const llmc_step &s, int item, FlashWork &to)
{
	const int lane = (int)lane_id(), n_seq = s.n[2];
	int slots = 0; /* part slots that earlier sequences have */
	bool found = false;

	for (int base = 0; base < n_seq; base += 32) {
		FlashWork w = {};
		int tiles = 0, need = 0;
		w.seq = n_seq - 1 - (base + lane);
		if (w.seq >= 0) {
			w.row0 = s.q_start[w.seq];
			w.rows = F::takes(s, w.seq) ? s.q_start[w.seq + 1] - w.row0 : 0;
			tiles = (w.rows * F::G + F::ROWS - 1) / F::ROWS;
			if (F::PARTS > 0 && w.rows > 0 && w.rows * F::G <= F::PART_ROWS) {
				w.pairs = w.rows * F::G;
				flash_range<F>(s, w);
				need = (w.hi + F::SEGMENT - 1) / F::SEGMENT - w.lo / F::SEGMENT;
				need = need > 1 ? need : 0;
			}
		}
		/* sequences get slots in order, until there are no more */
		const int slots_upto = slots + flash_upto(need * F::KV_HEADS);
		w.parts = need > 0 && slots_upto <= F::PARTS ? need : 0;
		const int mine = (w.parts ? w.parts : tiles) * F::KV_HEADS, upto = flash_upto(mine);
		int at = item - (upto - mine); /* index within this sequence */
		if (at >= 0 && at < mine) {
			w.kv_head = at % F::KV_HEADS;
			at /= F::KV_HEADS;
			w.part = at;
			w.slot = slots_upto - (need * F::KV_HEADS - w.kv_head * need);
			/* the last tiles attend to the most positions */
			w.first = w.parts ? 0 : (tiles - 1 - at) * F::ROWS;
			w.pairs = min((int)F::ROWS, w.rows * F::G - w.first);
			flash_range<F>(s, w);
			if (w.parts) {
				const int segment = (w.lo / F::SEGMENT + at) * F::SEGMENT;
				w.lo = max(w.lo, segment);
				w.hi = min(w.hi, segment + F::SEGMENT);
			}
			to = w;
			found = true;
		}
		item -= __shfl_sync(~0u, upto, 31);
		slots = __shfl_sync(~0u, slots_upto, 31);
		if (item < 0)
			break;
	}
	return __any_sync(~0u, found);
}

/* With MADE: clips tile w to the positions of this round. Sets pairs to 0 if no position is left.
 * All lanes of the warp that found w call. */
template <class F> DEV void
flash_clip(const llmc_step &s, FlashWork &w)
{
	if constexpr (F::MADE) {
		__syncwarp();
		const int base = F::base(s, w.seq);
		__syncwarp();
		if (lane_id() == 0) {
			w.base = base;
			w.begun = w.lo < -base;
			w.open = w.hi > F::MADE - base;
			w.lo = max(w.lo, -base);
			w.hi = max(w.lo, min(w.hi, F::MADE - base));
			w.pairs = w.lo < w.hi ? w.pairs : 0;
		}
		__syncwarp();
	}
}

/* Address of m and l of a pair, where they are kept between rounds */
template <class F> DEV float *
flash_kept(float *parts, const FlashWork &w, int pair)
{
	const int at = w.first + pair;

	return parts +
	       ((long long)(w.row0 + at / F::G) * F::HEADS + w.kv_head * F::G + at % F::G) * 2;
}

/* Merges m2, l2 into m, l. The caller must multiply previous sums by a, and added sums by b. */
DEV void
flash_merge(float &m, float &l, float m2, float l2, float &a, float &b)
{
	const float top = fmaxf(m, m2);

	a = flash_exp2(m - top);
	b = flash_exp2(m2 - top);
	m = top;
	l = fmaf(l, a, __fmul_rn(l2, b));
}

/* Returns the sink of a pair's head, or NULL. */
template <class F> DEV const float *
flash_sink(const float *sink, const FlashWork &w, int at)
{
	return sink ? sink + w.kv_head * F::G + at % F::G : 0;
}

/* Combines all parts of a tile in order, in the CTA that finished last. `thread` of `threads`
 * threads calls. */
template <class F> DEV void
flash_gather(const FlashWork &w, const float *sink, float *y, const float *parts, int thread,
             int threads)
{
	const float *part = parts + (long long)w.slot * F::PART;

	for (int at = thread; at < w.pairs * F::V; at += threads) {
		const int pair = at / F::V, d = at % F::V;
		float m = ATT_NONE, l = 0, o = 0, a, b;
		for (int i = 0; i < w.parts; i++) {
			const float *ml =
			    part + (long long)i * F::PART + F::PART_ROWS * F::V + pair * 2;
			flash_merge(m, l, ml[0], ml[1], a, b);
			o = fmaf(o, a, __fmul_rn(part[(long long)i * F::PART + at], b));
		}
		y[((long long)(w.row0 + pair / F::G) * F::HEADS + w.kv_head * F::G + pair % F::G) *
		      F::Y_STRIDE +
		  d] = __fmul_rn(o, 1.0f / (l + att_sink(flash_sink<F>(sink, w, pair), m)));
	}
}

#endif

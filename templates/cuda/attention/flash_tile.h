/* What the kernels of attention for mixed steps share: pieces of work, how they are found, how
 * parts of a row are put together.
 *
 * A tile is ROWS pairs of a row of one sequence and a query head of one group, the head running
 * faster: K and V are read once for all of them. Where K and V are made for the step (MADE: places
 * of a round), a launch is a round, and sums wait in y for the next one. A tile of few pairs is cut
 * into segments of SEGMENT positions: a block a segment, the last one to end puts them together.
 * Blocks fetch their next piece of work from a counter; long ones come first: sequences from the
 * last one, since decode rows stand before prompts, and of a sequence the tiles that see most.
 *
 * F, of flash_config or flash90_config, is an att_config with ROWS and SEGMENT and, by flash_parts,
 * what is said of parts. */
#ifndef LLMC_CUDA_ATTENTION_FLASH_TILE_H
#define LLMC_CUDA_ATTENTION_FLASH_TILE_H

#include "cuda/attention/attention.h"
#include "cuda/attention/kv_mma.h"

/* An attention A, whose tiles have ROWS_ pairs and whose segments SEGMENT_ positions */
template <class A, int ROWS_, int SEGMENT_> struct flash_parts : A {
	enum {
		ROWS = ROWS_,
		SEGMENT = SEGMENT_,
		PART_ROWS = (A::G + 15) / 16 * 16, /* pairs of a tile that may be cut */
		PARTS = PART_ROWS <= ROWS && !A::MADE ? 1024 : 0, /* in memory */
		PART = PART_ROWS * (A::V + 2) /* floats of a part: o, then m and l of each pair */
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

/* att_score with a bound that costs two instructions of the special unit: tanh x = 1 - 2 / (e^2x +
 * 1), which is off by some 2^-22 of the bound (scores of 16-bit numbers are off by more). */
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

/* weights are at most 1 */
template <class F> DEV unsigned
flash_pack_weights(float lo, float hi)
{
	return kv_mma<typename F::E>::pair(lo, hi);
}

/* What a block works on. */
typedef struct FlashWork {
	int seq, row0, rows; /* sequence; its first row and how many */
	int first,
	    pairs; /* first pair of the tile among the sequence's, and how many the tile has */
	int kv_head;
	int lo, hi; /* positions read: all that the pairs see, or the part of it in one segment */
	int parts, part, slot; /* parts: 0, or of how many segments this is number `part`; slot: of
	                          the tile's first part in memory */
	int base; /* where K and V are made in rounds: place of position 0 in this round's */
	short begun, open; /* 1: rounds before have left sums in y; rounds behind this one will go
	                      on with them */
} FlashWork;

/* Positions that the tile of pairs [first, first + pairs) sees. */
template <class F> DEV void
flash_range(const llmc_step &s, FlashWork &w)
{
	const AttRange a = att_range<F>(s, w.seq, s.pos[w.row0 + w.first / F::G]);
	const AttRange b = att_range<F>(s, w.seq, s.pos[w.row0 + (w.first + w.pairs - 1) / F::G]);

	w.lo = a.lo;
	w.hi = b.hi;
}

/* v of this lane and of those before it */
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

/* Work number `item` of the step, of all kv heads, to `to`; false: there are no more. All lanes of
 * one warp call. */
template <class F> DEV bool
flash_find(const llmc_step &s, int item, FlashWork &to)
{
	const int lane = (int)lane_id(), n_seq = s.n[2];
	int slots = 0; /* of the sequences before */
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
		/* slots in the order of sequences, as long as there are some */
		const int slots_upto = slots + flash_upto(need * F::KV_HEADS);
		w.parts = need > 0 && slots_upto <= F::PARTS ? need : 0;
		const int mine = (w.parts ? w.parts : tiles) * F::KV_HEADS, upto = flash_upto(mine);
		int at = item - (upto - mine); /* number within this sequence */
		if (at >= 0 && at < mine) {
			w.kv_head = at % F::KV_HEADS;
			at /= F::KV_HEADS;
			w.part = at;
			w.slot = slots_upto - (need * F::KV_HEADS - w.kv_head * need);
			w.first =
			    w.parts ? 0 : (tiles - 1 - at) * F::ROWS; /* the last ones see most */
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

/* With K and V made in rounds: what of tile w is in this round's places; without pairs, if nothing
 * is. All lanes of the warp that found it call. */
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

/* Place in memory of m and l of a pair, between rounds */
template <class F> DEV float *
flash_kept(float *parts, const FlashWork &w, int pair)
{
	const int at = w.first + pair;

	return parts +
	       ((long long)(w.row0 + at / F::G) * F::HEADS + w.kv_head * F::G + at % F::G) * 2;
}

/* m, l with m2, l2 put to them; what goes before is to be multiplied by a, what comes by b */
DEV void
flash_merge(float &m, float &l, float m2, float l2, float &a, float &b)
{
	const float top = fmaxf(m, m2);

	a = flash_exp2(m - top);
	b = flash_exp2(m2 - top);
	m = top;
	l = fmaf(l, a, __fmul_rn(l2, b));
}

/* Of the heads' sinks [HEADS], or NULL, that of a pair's head */
template <class F> DEV const float *
flash_sink(const float *sink, const FlashWork &w, int at)
{
	return sink ? sink + w.kv_head * F::G + at % F::G : 0;
}

/* The block that ended last: all parts of the tile, in order, by `threads` threads of which this is
 * number `thread`. */
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
		      F::Y_APART +
		  d] = __fmul_rn(o, 1.0f / (l + att_sink(flash_sink<F>(sink, w, pair), m)));
	}
}

#endif

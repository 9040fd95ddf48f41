/* State and protocol of decoding without waiting for the host. The device has the sampling
 * parameters and the last token of each sequence. For each step, the host writes a note with the
 * participating sequences. Two kernels of the runtime use this state. Both take one argument that
 * is constant for the life of a session, so that graphs can be replayed unchanged:
 *
 *     extern "C" __global__ void llmc_begin(const llmc_state p)     first kernel of a step
 *     extern "C" __global__ void llmc_sample(const llmc_state p)    last kernel of a step
 *
 * The host includes this file too, so it is plain C. The host must not dereference the pointers,
 * which are device addresses.
 *
 * Notes and sampled tokens are in pinned host memory, which the device must not read through a
 * cache (no cached or nc loads). There are LLMC_RING of each, and at most two steps are in flight.
 * *p.count is the number of finished steps and thus the number of the current step. The note of
 * this step is at (const char *)p.note + (number % LLMC_RING) * p.note_stride, its results at
 * p.sampled + (number % LLMC_RING) * p.max_out. A note has one row per row of the launched graph.
 * Pinned memory is slow, and reads of one address by many CTAs wait for each other (0.9 us each on
 * an H100), so a CTA reads only its own row, in one access.
 *
 * llmc_begin: 128 threads, one CTA per row that the graph was sized for. CTA 0 stores number =
 * *p.count to *p.now for llmc_sample.
 *
 * If note != 0 and w.n >= 0, with w = row r of the note, row r < w.n becomes row r and sequence r
 * of the step:
 *
 *     s_tok[r]                        w.tok, or slot[w.slot].last if w.tok < 0
 *     s_pos[r], s_pos2[r]             w.pos, w.pos2
 *     s_seq_of[r], s_q_start[r]       r; and s_q_start[w.n] = w.n
 *     s_kv_len[r], s_prefix_len[r]    w.pos + 1, w.prefix_len
 *     slot_of[r]                      w.slot
 *     s_out_row[w.out_at]             r, if w.out_at >= 0
 *     s_block_table[r][j]             tables[w.slot][j] for w.table_from <= j <= w.pos / 32, except
 *                                     for j == w.page_at >= 0: the new page w.page, which is stored
 *                                     in tables too. If window_at > 0, the same for the
 *                                     window pages at window_at + j, with new page w.window
 *     s_n[0..3]                       w.n, w.n, w.n, w.n_out, by CTA 0
 *
 * If note == 0 or w.n < 0, the host has copied all arrays of the step (and slot_of, rope_pos,
 * rope_y, rope_x) to the device. Only s_tok[r] < 0 is replaced by slot[-1 - s_tok[r]].last.
 *
 * In both cases llmc_begin computes the angles of row r for every RoPE table i < n_rope, with d =
 * rope[i].dims, f = rope[i].freq_at, pos = rope[i].axis ? pos2 : rope_pos (with sections: that of
 * the pair), and slot the row's slot:
 *
 *     angle                           (double)pos * freq[slot][f + k], k < d / 2
 *     rope[i].dst[r * d + k]          (float)(cos(angle) * factor[slot][i])
 *     rope[i].dst[r * d + d / 2 + k]  the same with sin
 *
 * These are computed in double, so that position 131071 keeps its precision and the angles equal
 * those of the host.
 *
 * llmc_sample: 512 threads, grid (at most LLMC_SAMPLE_PARTS, rows). CTAs stride over rows o <
 * s_n[3] of logits in y, and over the parts of a row in x. The sequence of row o has slot
 * slot_of[s_seq_of[s_out_row[o]]]. The last CTA to finish a row (row_done[o], with release and
 * acquire; reset to zero) samples its token. The rules are those of runtime/sample/sampler.c,
 * applied to logits[o * vocab ...]:
 *
 *   - Mask: if mask_at != 0 and m = mask_at[o] >= 0, a token whose bit in mask[m] is clear counts
 * as -inf. NaN is detected before the mask is applied.
 *   - Status 1: a NaN. Status 2: all logits are -inf. Otherwise 0. With another status than 0 the
 *     slot is unchanged and the id is 0.
 *   - Penalties, with c = counts[slot][id]: if c != 0 (token in prompt or output), v = v < 0 ? v
 *     * repetition_penalty : v / repetition_penalty. If c & LLMC_COUNT, v -= frequency_penalty *
 *     (c & LLMC_COUNT) + presence_penalty.
 *   - temperature == 0: the largest, the first of equal ones. Else weights exp(v / temperature -
 *     max).
 *   - top_k > 0: values below the k-th largest are dropped (ties stay).
 *   - 0 < top_p < 1: the largest are kept (lower id first on ties) until their sum reaches top_p
 *     of the total. min_p > 0: weights below min_p are dropped.
 *   - The result is the first candidate whose running sum exceeds random(seed, n_sampled) * sum,
 *     in ascending order of id, or in the order of top_p if that is in effect.
 *   - The log probability is that of the unchanged logits (no penalties, no temperature).
 *
 * Then slot.last = id, slot.n_sampled += 1, with penalties counts[slot][id] += 1 (up to
 * LLMC_COUNT), and sampled[(number % LLMC_RING) * max_out + o] = { id, logprob, status }. When all
 * rows are done, or if there are none, one thread stores *p.count = number + 1. Logits are
 * unchanged; work[o * vocab ...] is scratch of the row. */
#ifndef LLMC_CUDA_SAMPLING_SAMPLER_STATE_H
#define LLMC_CUDA_SAMPLING_SAMPLER_STATE_H

enum { LLMC_RING = 4, LLMC_MAX_ROPE = 8, LLMC_SAMPLE_PARTS = 32 };
enum {
	LLMC_SEEN = 1 << 30,
	LLMC_COUNT = LLMC_SEEN - 1
}; /* bits of a count: bit 30: occurs in the prompt; the rest: occurrences in the output */

/* Sampling options that the GPU computes, by their names in llmc_params, from which the host copies
 * them. Requests with others are sampled on the host. */
#define LLMC_SLOT_OPTIONS(X) \
	X(float, temperature) \
	X(float, top_p) \
	X(float, min_p) \
	X(float, repetition_penalty) \
	X(float, presence_penalty) \
	X(float, frequency_penalty) \
	X(int, top_k)
#define LLMC_SLOT_FIELD(type, name) type name;

typedef struct llmc_slot { /* state of one sequence of the session */
	LLMC_SLOT_OPTIONS(LLMC_SLOT_FIELD)
	int penalties; /* has penalties that count tokens */
	int last;      /* token that its last step sampled */
	unsigned long long seed, n_sampled;
} llmc_slot;

typedef struct llmc_note_row { /* a multiple of the sector size */
	/* totals of the step, in every row of the note; n < 0: the host has copied the step's
	 * arrays */
	int n, n_out;
	int slot, tok, pos, rope_pos, pos2, prefix_len, out_at, table_from, page_at, page, window;
	int rope_y, rope_x; /* row and column of the token, for tables with sections */
	int pad[1];
} llmc_note_row;

typedef struct llmc_sampled {
	int id;
	float logprob;
	int status, pad;
} llmc_sampled;

typedef struct llmc_work {
	float v;
	int id;
} llmc_work;

typedef struct llmc_rope_table {
	float *dst;
	int dims, axis, freq_at;
	/* pairs rotated by rope_pos, rope_y and rope_x. sections 0: all by one position; 1: in this
	 * order; 2: pair k by position k % 3 if k < 3 * section[k % 3], else by rope_pos */
	int sections, section[3], pad;
} llmc_rope_table;

typedef struct llmc_state {
	/* step arrays, as in llmc_step */
	int *s_n, *s_tok, *s_pos, *s_pos2, *s_seq_of, *s_q_start, *s_kv_len, *s_prefix_len,
	    *s_out_row, *s_block_table;
	int *rope_pos, *rope_y, *rope_x; /* [n_tok], mixed steps only */
	int *slot_of;                    /* [n_seq] slot of each sequence of the step */
	/* indexed by slot */
	llmc_slot *slot;      /* [seqs] */
	int *tables;          /* [seqs, block_stride] */
	int *counts;          /* [seqs, vocab] */
	const float *freq;    /* [seqs, n_freq] */
	const double *factor; /* [seqs, n_rope] */
	/* sampling */
	const float *logits;  /* [n_out, vocab] */
	const int *mask_at;   /* [max_out] mask index per row, -1: none; NULL: no row has one */
	const unsigned *mask; /* [max_out, (vocab + 31) / 32] one bit per token */
	llmc_work *work;      /* [max_out, vocab] */
	double *part;         /* [max_out, LLMC_SAMPLE_PARTS, 8] results per part of a row */
	unsigned *row_done;   /* [max_out] zero between steps */
	unsigned *all_done;   /* zero between steps */
	/* pinned host memory */
	/* [LLMC_RING] of note_stride bytes; NULL: the host has copied the step's arrays */
	const llmc_note_row *note;
	llmc_sampled *sampled;
	unsigned *count, *now;
	llmc_rope_table rope[LLMC_MAX_ROPE];
	int n_rope, n_freq, block_stride, vocab, max_out, note_stride;
	int window_at; /* offset of window pages in a row of `tables`; 0: none */
} llmc_state;

#endif

/* What decoding without the host needs on the device: for every sequence how its tokens are picked
 * and which was the last, and for every step a note from the host that says which sequences take
 * part. Two kernels of the runtime use it, both with one argument, the same for the life of a
 * session (graphs replay without a change):
 *
 *     extern "C" __global__ void llmc_begin(const llmc_state p)     first kernel of a step
 *     extern "C" __global__ void llmc_sample(const llmc_state p)    last kernel of a step
 *
 * The host includes this file too: plain C, no pointer of it is followed there.
 *
 * Notes and picks lie in pinned host memory that the device reads and writes as it stands (never
 * through a cached or nc load). There are LLMC_RING of each; the host has at most two steps under
 * way. The step's number comes from *p.count, the number of steps that have ended: its note is at
 * (const char *)p.note + (number % LLMC_RING) * p.note_stride, its picks at p.picked + (number %
 * LLMC_RING) * p.max_out. A note has a row for each row of the graph that is launched. Pinned
 * memory is slow, and reads of one place by many blocks wait for each other (an H100 took 0.9 us
 * for each): a block reads its own row alone, in one go.
 *
 * llmc_begin: 128 threads, one block a row of the largest step that the graph is for. Block 0
 * stores number = *p.count to *p.now, where llmc_sample finds it. note != 0 and w.n >= 0, with w =
 * the note's row r: row r < w.n of the note becomes row r and sequence r of the step.
 *     s_tok[r]     w.tok, or slot[w.slot].last where w.tok < 0
 *     s_pos[r] s_pos2[r]                             w.pos, w.pos2
 *     s_seq_of[r] = r, s_q_start[r] = r              and s_q_start[w.n] = w.n
 *     s_kv_len[r] = w.pos + 1, s_prefix_len[r] = w.prefix_len, slot_of[r] = w.slot
 *     s_out_row[w.out_at] = r                        where w.out_at >= 0
 *     s_block_table[r * block_stride + j] = tables[w.slot * block_stride + j]  for w.table_from <=
 * j <= w.pos / 32, but for j == w.page_at (when >= 0) the new page w.page, which is stored to
 * tables[...] as well; where window_at > 0 the same for the window pages, at window_at + j, the new
 * one w.window
 *     s_n[0..3] = w.n, w.n, w.n, w.n_out             by block 0
 *   note == 0, or w.n < 0: the host has copied all the step's arrays (and slot_of, rope_pos) to the
 * device. Only s_tok[r] < 0 becomes slot[-1 - s_tok[r]].last Both: angles of row r, for every rope
 * table i < n_rope with d = rope[i].dims and f = rope[i].freq_at: pos = rope[i].axis ? pos2 :
 * rope_pos (of the note's row, or rope_pos[r]; slot = w.slot or slot_of[s_seq_of[r]]) angle =
 * (double)pos * freq[slot * n_freq + f + k], k < d / 2 rope[i].dst[r * d + k] = (float)(cos(angle)
 * * factor[slot * n_rope + i]), [... + d / 2 + k] the same with sin. In double throughout: position
 * 131071 keeps its digits, and the host's angles are the same.
 *
 * llmc_sample: 512 threads, grid (at most LLMC_SAMPLE_PARTS, rows). Blocks of y stride over the
 * rows o < s_n[3] of logits, those of x over its parts. The sequence of row o is
 * slot_of[s_seq_of[s_out_row[o]]]. The blocks of a row share its work; the last to finish
 * (row_done[o], with release and acquire; left zero) does what remains. It picks as
 * runtime/sample/sampler.c does, from logits[o * vocab ...]: mask_at is not 0 and m = mask_at[o] >=
 * 0: a token without its bit in mask[m * ((vocab + 31) / 32) ...] counts as -inf; NaN counts before
 * that NaN: status 1. All -inf: status 2. Otherwise status 0. penalties != 0: with c = counts[slot
 * * vocab + id]: where c != 0 (seen in prompt or output) v = v < 0 ? v * repetition : v /
 * repetition; where c & LLMC_COUNT, v -= frequency * (c & LLMC_COUNT) + presence temperature == 0:
 * the largest, the first of equals. Else weights exp(v / temperature - max); top_k > 0: those below
 * the k-th largest value fall out (ties stay); 0 < top_p < 1: the largest (of equals the lower id
 * first) until their sum reaches top_p of all, in that order; min_p > 0: those below min_p fall
 * out; then the first whose running sum exceeds random_at(seed, n_pick) * sum, candidates in
 * ascending id, or in the order of top_p when that is on. Sums in double. logprob of the pick under
 * the unchanged logits (no penalties, no temperature) then slot.last = id, slot.n_pick += 1, with
 * penalties counts[...] += 1 (below LLMC_COUNT), and picked[(number % LLMC_RING) * max_out + o] = {
 * id, logprob, status }. A status other than 0 leaves the slot as it is, id 0. When all rows are
 * done (also when there is none) one thread stores *p.count = number + 1. Logits are left as they
 * are; work[o * vocab ...] is scratch of the row. */
#ifndef LLMC_CUDA_SAMPLING_SAMPLER_STATE_H
#define LLMC_CUDA_SAMPLING_SAMPLER_STATE_H

enum { LLMC_RING = 4, LLMC_MAX_ROPE = 8, LLMC_SAMPLE_PARTS = 32 };
enum {
	LLMC_SEEN = 1 << 30,
	LLMC_COUNT = LLMC_SEEN - 1
}; /* of a count: bit 30: in the prompt; below: times in the output */

typedef struct llmc_slot { /* a sequence of the session */
	float temperature, top_p, min_p, repetition, presence, frequency;
	int top_k, penalties;
	int last; /* token that its last step picked */
	int pad;
	unsigned long long seed, n_sampled;
} llmc_slot;

typedef struct llmc_note_row { /* a whole number of sectors */
	int n,
	    n_out; /* of the step, in every row of the note; n < 0: the step's arrays are there */
	int slot, tok, pos, rope_pos, pos2, prefix_len, out_at, table_from, page_at, page, window;
	int pad[3];
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
	int dims, axis, freq_at, pad;
} llmc_rope_table;

typedef struct llmc_state {
	/* the step's arrays, as llmc_step has them */
	int *s_n, *s_tok, *s_pos, *s_pos2, *s_seq_of, *s_q_start, *s_kv_len, *s_prefix_len,
	    *s_out_row, *s_block_table;
	int *rope_pos; /* [n_tok], mixed steps only */
	int *slot_of;  /* [n_seq] slot of each sequence of the step */
	/* by slot */
	llmc_slot *slot;      /* [seqs] */
	int *tables;          /* [seqs, block_stride] */
	int *counts;          /* [seqs, vocab] */
	const float *freq;    /* [seqs, n_freq] */
	const double *factor; /* [seqs, n_rope] */
	/* picking */
	const float *logits;  /* [n_out, vocab] */
	const int *mask_at;   /* [max_out] which mask the row has, -1: none; NULL: no row has one */
	const unsigned *mask; /* [max_out, (vocab + 31) / 32] a bit a token */
	llmc_work *work;      /* [max_out, vocab] */
	double *part; /* [max_out, LLMC_SAMPLE_PARTS, 8] partial results of the parts of a row */
	unsigned *row_done; /* [max_out] zero between steps */
	unsigned *all_done; /* zero between steps */
	/* the host's */
	const llmc_note_row
	    *note; /* [LLMC_RING] of note_stride bytes; NULL: the step's arrays are there */
	llmc_sampled *sampled;
	unsigned *count, *now;
	llmc_rope_table rope[LLMC_MAX_ROPE];
	int n_rope, n_freq, block_stride, vocab, max_out, note_stride;
	int window_at; /* window pages in a row of a table: so far behind the pages; 0: none */
} llmc_state;

#endif

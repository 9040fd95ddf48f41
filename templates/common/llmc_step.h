/* llmc_step: all values that change between steps. A CPU kernel is a function
 *
 *     void k(const llmc_step *s, void *const *a, int part, int n_parts)
 *
 * a has its arguments, which are fixed for the life of the session. n_parts threads run the same
 * call in parallel, each with its own part. The division of work must not change any bit of the
 * result. The rows of a step are decode rows (one per sequence) first, then the chunks of the other
 * sequences. This file includes no other one, because emitted kernels include it. */
#ifndef LLMC_STEP_H
#define LLMC_STEP_H

#include <stdint.h>

typedef struct llmc_step {
	int32_t n_tok;       /* rows of this step */
	int32_t n_dec;       /* rows [0, n_dec) are decode rows: sequence i has the single row i */
	int32_t n_seq;       /* sequences of this step, in row order */
	int32_t n_out;       /* rows of logits needed */
	const int32_t *tok;  /* [n_tok] ids */
	const int32_t *pos;  /* [n_tok] positions */
	const int32_t *pos2; /* [n_tok] second position (2-D rotary) or token type; zeros if the
	                        model has neither */
	const int32_t *seq_of;     /* [n_tok] index of the row's sequence in the step, 0 .. n_seq */
	const int32_t *q_start;    /* [n_seq + 1] first row of each sequence */
	const int32_t *kv_len;     /* [n_seq] positions in the cache after this step */
	const int32_t *prefix_len; /* [n_seq] leading positions that all rows attend to (prefix
	                              mask); zeros otherwise */
	const int32_t *out_row;    /* [n_out] rows whose logits are needed, ascending */
	const int32_t
	    *block_table; /* [n_seq, block_stride] page numbers; position p is in page p / 32 */
	int32_t block_stride;
	/* [n_seq] index of each sequence in the session, and thus in the pools of recurrent
	 * states */
	const int32_t *seq;
	/* adapter slot of a sequence, indexed by the values of `seq`; negative: no adapter */
	const int32_t *adapter;
} llmc_step;

typedef void llmc_kernel(const llmc_step *s, void *const *a, int part, int n_parts);

#endif

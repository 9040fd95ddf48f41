/* What every CUDA kernel is called with:
 *
 *     extern "C" __global__ void k(const llmc_call p)
 *
 * by value, and the same for the life of a session (but for rows and round, which are the
 * launch's): graphs replay without a change. All that varies between steps lies behind the pointers
 * of p.s, in device memory. Rows of the step: decode rows (one a sequence) first, then the chunks
 * of the others. The grid may be made for more rows than the step has. */
#ifndef LLMC_CUDA_RUNTIME_STEP_H
#define LLMC_CUDA_RUNTIME_STEP_H

typedef struct llmc_step {
	const int *n;          /* [4] n_tok, n_dec, n_seq, n_out */
	const int *tok;        /* [n_tok] ids */
	const int *pos;        /* [n_tok] positions */
	const int *pos2;       /* [n_tok] second position (2-D rotary), else zeros */
	const int *seq_of;     /* [n_tok] sequence of the step */
	const int *q_start;    /* [n_seq + 1] first row of each sequence */
	const int *kv_len;     /* [n_seq] positions held after this step */
	const int *prefix_len; /* [n_seq] positions that all rows see (prefix mask), else zeros */
	const int *out_row;    /* [n_out] rows whose logits are wanted, ascending */
	const int
	    *block_table; /* [n_seq, block_stride] page numbers; position j is in page j / 32 */
	const int *seq; /* [n_seq] numbers of the sequences in the session: their places in pools of
	                   states */
	const int *adapter; /* by those numbers: the slot of a sequence's adapter; below 0: none */
	int block_stride;
	int rows;  /* rows that the launch was made for: the bucket of its graph, n_tok <= rows; 0:
	              unknown */
	int round; /* of a launch with rounds: which one */
} llmc_step;

enum { LLMC_CALL_ARGS = 16 };

typedef struct llmc_call {
	llmc_step s;
	void *a[LLMC_CALL_ARGS]; /* the op's arguments in the order of ops.def, then scratch; NULL
	                            where the op lacks one */
} llmc_call;

#define N_TOK(p) ((p).s.n[0])
#define N_DEC(p) ((p).s.n[1])
#define N_SEQ(p) ((p).s.n[2])
#define N_OUT(p) ((p).s.n[3])

#endif

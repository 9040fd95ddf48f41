/* Argument of every CUDA kernel:
 *
 *     extern "C" __global__ void k(const llmc_call p)
 *
 * The argument is passed by value. It is constant for the life of a session, so that graphs can be
 * replayed unchanged; only rows and round differ between launches. Everything that varies between
 * steps is in device memory, at the pointers of p.s. The rows of a step are decode rows (one per
 * sequence) first, then the chunks of the other sequences. The grid may be sized for more rows than
 * the step has. */
#ifndef LLMC_CUDA_RUNTIME_STEP_H
#define LLMC_CUDA_RUNTIME_STEP_H

typedef struct llmc_step {
	const int *n;      /* [4] n_tok, n_dec, n_seq, n_out */
	const int *tok;    /* [n_tok] ids */
	const int *pos;    /* [n_tok] second position (2-D rotary) or token type; zeros if the model
	                      has neither */
	const int *pos2;   /* [n_tok] second position (2-D rotary) or token type; zeros if the model
	                      has neither */
	const int *seq_of; /* [n_tok] index of the row's sequence in the step */
	const int *q_start;    /* [n_seq + 1] first row of each sequence */
	const int *kv_len;     /* [n_seq] positions in the cache after this step */
	const int *prefix_len; /* [n_seq] leading positions that all rows attend to (prefix mask);
	                          zeros otherwise */
	const int *out_row;    /* [n_out] rows whose logits are needed, ascending */
	const int
	    *block_table; /* [n_seq, block_stride] page numbers; position j is in page j / 32 */
	/* [n_seq] index of each sequence in the session, and thus in the pools of recurrent
	 * states */
	const int *seq;
	/* adapter slot of a sequence, indexed by the values of `seq`; negative: no adapter */
	const int *adapter;
	int block_stride;
	/* number of rows the launch was sized for (bucket of its graph); n_tok is at most this; 0:
	 * unknown */
	int rows;
	int round; /* index of the round, for launches with rounds */
} llmc_step;

enum { LLMC_CALL_ARGS = 16, LLMC_PREFETCHES = 3 };

/* Weights of a later op that a decode kernel prefetches to L2 (cuda/runtime/prefetch.h): n slices,
 * which begin at `at` and are `stride` bytes apart; of each slice, the first `bytes` bytes. n 0:
 * none */
typedef struct llmc_prefetch {
	const unsigned char *at;
	long long stride;
	unsigned bytes;
	int n;
} llmc_prefetch;

typedef struct llmc_call {
	llmc_step s;
	/* arguments of the op in the order of ops.def, then scratch; NULL for absent arguments */
	void *a[LLMC_CALL_ARGS];
	/* next: one slice per CTA that reads the tensor. experts: matrices of all experts; those of
	 * the first n selected experts are prefetched, `bytes` per CTA */
	llmc_prefetch next[LLMC_PREFETCHES], experts;
} llmc_call;

/* One op of a persistent decode step (cuda/runtime/persistent.h). Its size is a multiple of 16
 * bytes, because it is copied to shared memory by 16 bytes. */
typedef struct llmc_task {
	llmc_call call;
	int body; /* index in the kernel's switch */
	int wait; /* counter that must be full before results of other ops may be read; -1: none */
	int done; /* counter that each CTA adds 1 to once it has stored its results */
	int reserved; /* 0 */
} llmc_task;

/* Argument of a persistent decode step: the ops in order, at least two. Each counter grows by the
 * number of CTAs per step, so between steps all counters are equal. */
typedef struct llmc_tasks {
	const llmc_task *task; /* [n] */
	unsigned *count;       /* counters, which must be equal initially, e.g. 0 */
	int n;
} llmc_tasks;

#define N_TOK(p) ((p).s.n[0])
#define N_DEC(p) ((p).s.n[1])
#define N_SEQ(p) ((p).s.n[2])
#define N_OUT(p) ((p).s.n[3])

#endif

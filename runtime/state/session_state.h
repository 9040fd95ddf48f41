/* Runtime and Session as seen by runtime/, which drives them, and by the devices, which run them.
 * Includes the interfaces of session_memory.c and rope_tables.c. */
#ifndef LLMC_RUNTIME_STATE_SESSION_STATE_H
#define LLMC_RUNTIME_STATE_SESSION_STATE_H

#include <pthread.h>

#include "runtime/comm/comm.h"
#include "runtime/device.h"
#include "runtime/kv/kv.h"
#include "runtime/threads/threads.h"

/* fair_lock.c: queue of threads that use the processors of a model */
typedef struct FairLock {
	pthread_mutex_t lock;
	pthread_cond_t next;
	/* first: number of the running turn; last: number of the next turn to be given */
	uint64_t first, last;
} FairLock;
void fair_lock_init(FairLock *t);
void fair_lock_release(FairLock *t);

struct Runtime {
	const Plan *plan;
	const Device *device;
	Weights *weights;
	/* number of times that the weights were replaced. Pages of earlier weights have other
	 * prefix-cache roots. After the first replacement no page is written to disk or read from
	 * it */
	uint64_t n_replaced;
	void *model;          /* owned by the device */
	float *(*factors)[2]; /* [n_rope] RoPE factors stored in the checkpoint, or NULL */
	/* [plan_out_width] token of each column of a draft checkpoint's logits; NULL: the column */
	int32_t *draft_token;
	/* lora_adapters.c: contents of the adapter slots; NULL: the plan has no slots */
	struct Adapters *adapters;
	int n_threads; /* per rank */
	FairLock processors;
	RuntimeTimes times;
	/* on rank 0 of several in this process: their runtimes, its own first; else 0 */
	int n_rank;
	Runtime **rank;
	/* the other ranks of the world have opened the model and wait for rank 0 */
	bool led;
	MpiWorld *world; /* connection to the other ranks if they are processes; else NULL */
	/* [n_all] on rank 0 of a world with adapter slots: the plans of all ranks */
	const Plan *const *all;
	int n_all;
};

typedef struct SeqState {
	int32_t length_bound;
	int32_t prefix_len; /* positions visible to every row; 0: none */
	int32_t mark;       /* with two-axis RoPE: first-axis position of rows after the prefix */
	/* with images: difference between RoPE position and position, for tokens after the last
	 * image */
	int32_t rope_shift;
	/* number of positions up to the last token that came with its own RoPE positions, or that
	 * belongs to an image whose tokens attend to each other */
	int32_t n_placed;
	int32_t n_first; /* encoder: tokens before those of the second token type; 0: all */
	int32_t adapter; /* id; 0: none */
	/* its prefix-cache pages are found only by sequences with the same salt; 0: none */
	uint64_t salt;
	bool in_step;   /* the sequence has a chunk in the forward call that is being checked */
	bool fresh;     /* its RoPE frequencies have not been copied to the device yet */
	double *freq;   /* [sum of dims / 2 over the tables] */
	double *factor; /* [n_rope] */
} SeqState;

typedef struct StepSize {
	int32_t n_tok, n_dec, n_seq, n_out;
} StepSize;

/* Bytes that a rank saves: per page, and for the recurrent states of a sequence */
typedef struct RankSizes {
	int64_t page, state;
} RankSizes;

struct Session {
	Runtime *rt;
	const Plan *plan;
	const Device *device;
	llmc_limits lim;
	int64_t sym[SYM_COUNT]; /* upper bounds */
	/* rows of the last step of each phase, and the weight bytes it read */
	int32_t counted_rows[2];
	int64_t weight_bytes[2];
	char *state; /* allocation of all fields below, up to `on` */
	size_t state_bytes;
	bool two_axes;    /* some RoPE table rotates by pos2 */
	SeqState *seq;    /* [seqs] */
	int32_t *adapter; /* [seqs] adapter slot; -1: none */
	/* inputs of the step, see llmc_step.h. From size to block_table they are one contiguous
	 * `block`, which devices may copy as a whole */
	char *block;
	int64_t block_bytes;
	StepSize *size;
	/* rope_y, rope_x: rows and columns of tokens, for tables with sections */
	int32_t *tok, *pos, *pos2, *rope_pos, *rope_y, *rope_x, *seq_of, *q_start, *kv_len,
	    *prefix_len, *out_row, *block_table;
	/* windows of a tower as the sequences of a step (PlanPool.segment); NULL without windows:
	 * sizes, [n_tok] position in the window and its number, [windows + 1] first row, [windows]
	 * rows, [windows, segment_pages] pages */
	StepSize *segments;
	int32_t *segment_pos, *segment_of, *segment_start, *segment_len, *segment_table;
	int32_t segment_pages;
	int32_t *order; /* [n_seq] chunk index of each sequence of the step */
	/* [n_seq] sequence id in the session of each sequence of the step; part of the block */
	int32_t *step_seq;
	int32_t *add;      /* [n_seq] number of rows of each sequence of the step */
	int32_t *out_base; /* [n_seq] per chunk: index of its first row of logits in the step */

	/* device state, addressed by its kernels */
	void *on;
	Kv kv;
	char *slots;      /* memory of all slots */
	char **slot;      /* [n_slot] */
	float **rope;     /* [n_rope] angles [chunk, dims] */
	Threads *threads; /* host threads, idle between steps; NULL: the caller's thread only */

	Comm *comm;                         /* connection to the other ranks; NULL: single rank */
	struct RankThreads *group;          /* rank 0: the rank threads, see ranks.c */
	struct MicroBatches *micro_batches; /* rank 0 of a pipeline: see forward.c; else NULL */
	RankSizes *kept; /* [ranks] sizes that each rank saves; NULL until first needed */
	/* for op_times: called before the step is run again; may be NULL. Returns false if the
	 * group has ended */
	bool (*rerun)(Session *s, int phase);

	struct KvDisk *disk; /* prefix-cache pages as files; NULL: none */
	char *disk_page;     /* buffer for one page */

	/* rows that come with the tokens of the next forward, per chunk; NULL: none */
	const StepRows *rows_in;
	/* hidden rows of the last forward call, if the plan outputs them and the device has copied
	 * them to the host; NULL: the rows are in their slot */
	const float *rows;

	session_probe_fn probe;
	void *probe_user;
	int span_from, span_to; /* range of plan steps that a forward runs, if span_to > 0 */
	llmc_stats stats;
};

/* ---- session_memory.c: sizes and addresses ---- */

/* Bump allocator with alignment `align`; with base NULL it only counts. */
typedef struct BumpAllocator {
	char *base;
	int64_t at, align;
	bool over;
} BumpAllocator;
void *bump(BumpAllocator *b, int64_t n, size_t elem_bytes);
#define BUMP(b, p, n) ((p) = bump((b), (n), sizeof *(p)))

/* Store the device, plan and limits in *s, in the form that state_bytes and open of the device
 * need. */
void session_set_limits(Session *s, const Device *d, const Plan *p, const llmc_limits *lim);
int64_t session_lay_out(Session *s, char *base); /* returns the bytes of the state; -1: overflow */
/* Return the bytes of all slots, -1 on overflow. If s->slots is set, assigns each slot its
 * address. */
int64_t session_lay_out_slots(Session *s);
/* Like session_memory, for limits that session_limits has validated. */
llmc_status session_need(const Device *d, const Plan *plan, const llmc_limits *lim,
                         llmc_memory *out, llmc_error *err);
void *session_map(int64_t bytes); /* zeroed; NULL: out of memory */
void session_unmap(void *m, int64_t bytes);
int64_t session_pages(const llmc_limits *l);
int64_t session_window_pages(const Plan *p, const llmc_limits *l);
int32_t session_snapshots(const llmc_limits *l); /* number of snapshots for all sequences */
int64_t session_max_page(const Session *s);      /* per sequence */
/* entries per block table: equal to kv.stride, but available before kv is open */
int64_t session_table_stride(const Session *s);
/* windows.c. Positions that n rows of a chunk take in the KV cache: in a tower with windows
 * (PlanPool.segment) each window begins in a page of its own. */
int32_t session_positions(const Session *s, int32_t chunk, int32_t n);
/* Check that the windows of a chunk of n rows fit the block table of a sequence. */
llmc_status session_check_windows(const Session *s, size_t chunk, int32_t n, llmc_error *err);
/* Number of pages that the n chunks of a step need; the arrays `order` and `add` are set */
int64_t session_pages_needed(Session *s, const llmc_chunk *chunk, size_t n);
/* Turn each window of sequence i of the step, n rows from `row` on, into a sequence. */
void session_fill_segments(Session *s, int32_t i, int32_t row, int32_t n);
/* Does the plan step read a pool whose sequences are the windows of a tower? */
bool session_sees_segments(const Session *s, const PlanStep *step);
/* does the plan step use window pages? Then it reads the block tables from entry max_page on */
bool session_sees_window(const Session *s, const PlanStep *step);
void *session_argument(const Session *s, const PlanRef *r); /* address for kernels */
/* Copy the rows of rows_in from chunk order to the row order of the step */
void session_given(const Session *s, float *to);
/* Set a sequence's RoPE frequencies, which depend on its maximum length. */
void session_set_rope(Session *s, llmc_seq q, int32_t length_bound);
/* runtime.c: read factors_tensor[k] of a table, [dims / 2]. The caller frees it; NULL: the table
 * has no such tensor. */
llmc_status rope_factors_read(const PlanRope *r, int k, const Checkpoint *c, float **out,
                              llmc_error *err);
/* Open the session of a single rank; the caller keeps owning comm. */
llmc_status session_open_rank(Runtime *rt, const llmc_limits *lim, Comm *comm, Session **out,
                              llmc_error *err);
/* lora_adapters.c: slot of an adapter to which the caller holds a reference, and a key of its
 * content, which does not depend on the folder or machine */
int adapter_slot(const Runtime *rt, int32_t adapter);
uint64_t adapter_key(const Runtime *rt, int32_t adapter); /* 0: none */
/* Return the adapter with this key and take a reference; 0: it is not loaded */
int32_t adapter_of_key(Runtime *rt, uint64_t key);
llmc_status adapters_open(Runtime *rt, llmc_error *err);
/* Is slot the number of an adapter slot of this runtime? */
bool adapters_has_slot(const Runtime *rt, int slot);
/* adapters_known: do all processes have the content of this slot? True for a negative slot.
 * adapters_send broadcasts it from rank 0, and each rank stores its shard. If the group has ended,
 * a later call reports that. */
bool adapters_known(const Runtime *rt, int slot);
void adapters_send(Runtime *rt, int slot, Comm *comm);
llmc_status adapters_receive(Runtime *rt, int slot, Comm *comm, llmc_error *err);
void adapters_close(Runtime *rt);
/* forward.c: buffers of rank 0 for forwards over pipeline stages */
llmc_status forward_open(Session *s, llmc_error *err);
void forward_close(Session *s);
/* Add the cost of a plan step, with the current step's sizes, to *t: runs, bytes and operations. */
void session_op_cost(const Session *s, const PlanStep *step, llmc_op_time *t);
/* Return the number of rows of a value to pass to the probe in this step; -1: values of this kind
 * are not probed */
int64_t session_probe_rows(const Session *s, const PlanStep *step, const PlanMake *m);

#endif

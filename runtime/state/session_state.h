/* What a Runtime and a Session are made of: runtime/ drives them, devices run them, both know this.
 * Below both: session_memory.c, rope_tables.c. */
#ifndef LLMC_RUNTIME_STATE_SESSION_STATE_H
#define LLMC_RUNTIME_STATE_SESSION_STATE_H

#include "runtime/comm/comm.h"
#include "runtime/device.h"
#include "runtime/kv/kv.h"
#include "runtime/threads/threads.h"

struct Runtime {
	const Plan *plan;
	const Device *device;
	Weights *weights;
	void *model;          /* the device's */
	float *(*factors)[2]; /* [n_rope] rotary factors that the checkpoint holds, or NULL */
	struct Adapters
	    *adapters; /* lora_adapters.c: what the slots hold; NULL: the plan has none */
	int n_threads; /* of each rank */
	RuntimeTimes times;
	int n_rank; /* rank 0 of several in this process: their runtimes, itself the first; else 0
	             */
	Runtime **rank;
	bool led; /* the ranks of the world are those of an open model, and wait for rank 0 */
	MpiWorld *world;        /* ranks are processes: the others' end; NULL */
	const Plan *const *all; /* [n_all] on rank 0 of them, where there are slots for adapters:
	                           the plans of all */
	int n_all;
};

typedef struct SeqState {
	int32_t length_bound;
	int32_t prefix_len; /* positions that every row sees; 0: none */
	int32_t mark; /* position that rows after the prefix turn by, when rotation has two axes */
	int32_t adapter; /* its number; 0: none */
	uint64_t salt;   /* its pages are found by sequences of the same one; 0: none */
	bool in_step;    /* of the forward that is being checked */
	bool fresh;      /* the device has not taken its rotary frequencies yet */
	double *freq;    /* [sum of dims / 2 over the tables] */
	double *factor;  /* [n_rope] */
} SeqState;

typedef struct StepSize {
	int32_t n_tok, n_dec, n_seq, n_out;
} StepSize;

/* Bytes that a rank keeps: of a page, and of a sequence's states */
typedef struct RankSizes {
	int64_t page, state;
} RankSizes;

struct Session {
	Runtime *rt;
	const Plan *plan;
	const Device *device;
	llmc_limits lim;
	int64_t sym[SYM_COUNT]; /* largest values */
	int32_t
	    weighed[2]; /* rows of the last step of each phase, and the weight bytes that it read */
	int64_t weight_bytes[2];
	char *state; /* memory of all below, up to the device's own */
	size_t state_bytes;
	bool two_axes;    /* a table turns by pos2 */
	SeqState *seq;    /* [seqs] */
	int32_t *adapter; /* [seqs] slots of their adapters; -1: none */
	/* of the step, as llmc_step.h says; from size to block_table in one piece, `block`, which
	 * devices may copy whole */
	char *block;
	int64_t block_bytes;
	StepSize *size;
	int32_t *tok, *pos, *pos2, *rope_pos, *seq_of, *q_start, *kv_len, *prefix_len, *out_row,
	    *block_table;
	int32_t *order;    /* [n_seq] chunk of each sequence of the step */
	int32_t *step_seq; /* [n_seq] its number in the session; in the block */
	int32_t *add;      /* [n_seq] its rows */
	int32_t *out_base; /* [n_seq] first row of logits of a chunk, in the step's order */

	/* the device's: addresses that its kernels know */
	void *on;
	Kv kv;
	char *slots;      /* memory of all slots */
	char **slot;      /* [n_slot] */
	float **rope;     /* [n_rope] angles [chunk, dims] */
	Threads *threads; /* of the host, idle between steps; NULL: the caller's alone */

	Comm *comm;                           /* to the other ranks; NULL: alone */
	struct RankThreads *group;            /* rank 0: the others, in ranks.c */
	struct ForwardPieces *pieces;         /* rank 0 of several stages: forward.c's; NULL */
	RankSizes *kept;                      /* [ranks] once somebody has asked; NULL */
	bool (*again)(Session *s, int phase); /* op_times: the step is about to run as it was; NULL:
	                                         nobody asks. False: the group has ended */

	struct KvDisk *disk; /* pages of prompts as files; NULL: none */
	char *disk_page;     /* of one page */

	const float *const
	    *given; /* rows that come with the tokens of the next forward, by chunks; NULL: none */
	const float *rows; /* of the last forward, of a plan that hands them out, where the device
	                      has copied them to; NULL: in their slot */

	session_probe_fn probe;
	void *probe_user;
	int span_from, span_to; /* steps that a forward runs, where span_to > 0 */
	llmc_stats stats;
};

/* ---- session_memory.c: what a session takes, and where things lie in it ---- */

/* Hands out pieces of memory at multiples of `align`; with base NULL it only counts. */
typedef struct BumpAllocator {
	char *base;
	int64_t at, align;
	bool over;
} BumpAllocator;
void *bump(BumpAllocator *b, int64_t n, size_t elem_bytes);
#define BUMP(b, p, n) ((p) = bump((b), (n), sizeof *(p)))

/* The limits of a session on a device, in *s: what its open and state_bytes go by. */
void session_set_limits(Session *s, const Device *d, const Plan *p, const llmc_limits *lim);
int64_t session_lay_out(Session *s, char *base); /* bytes of the state; -1: overflow */
/* Bytes of all slots; -1: overflow. With s->slots each gets its address. */
int64_t session_lay_out_slots(Session *s);
/* As session_memory, of limits that session_limits has passed. */
llmc_status session_need(const Device *d, const Plan *plan, const llmc_limits *lim,
                         llmc_memory *out, llmc_error *err);
void *session_map(int64_t bytes); /* zeroed; NULL: out of memory */
void session_unmap(void *m, int64_t bytes);
int64_t session_pages(const llmc_limits *l);
int64_t session_window_pages(const Plan *p, const llmc_limits *l);
int32_t session_snapshots(const llmc_limits *l); /* of states, of all sequences */
int64_t session_max_page(const Session *s);      /* of one sequence */
int64_t session_table_stride(const Session *s);  /* of block tables: kv.stride, before kv is open */
bool session_sees_window(const Session *s,
                         const PlanStep *step); /* is its pool one of window pages? It takes the
                                                   tables from max_page on */
void *session_argument(const Session *s, const PlanRef *r); /* its address for kernels */
/* Rows that came with the tokens of a step, from the order of chunks into that of the step */
void session_given(const Session *s, float *to);
/* A sequence's rotary frequencies, which depend on the length that it is bound by. */
void session_set_rope(Session *s, llmc_seq q, int32_t length_bound);
/* session_open of one rank alone; comm stays the caller's. */
llmc_status session_open_rank(Runtime *rt, const llmc_limits *lim, Comm *comm, Session **out,
                              llmc_error *err);
/* lora_adapters.c: the slot of an adapter that the caller holds, and what it holds as a number that
 * is the same wherever its files are loaded */
int adapter_slot(const Runtime *rt, int32_t adapter);
uint64_t adapter_key(const Runtime *rt, int32_t adapter); /* 0: none */
/* The adapter of this key, held; 0: it is not loaded */
int32_t adapter_of_key(Runtime *rt, uint64_t key);
llmc_status adapters_open(Runtime *rt, llmc_error *err);
/* Do all processes have what this slot holds (below 0: none)? Else rank 0 tells them, and each
 * takes what is its own. A group that has ended says so later. */
bool adapters_known(const Runtime *rt, int slot);
void adapters_send(Runtime *rt, int slot, Comm *comm);
llmc_status adapters_receive(Runtime *rt, int slot, Comm *comm, llmc_error *err);
void adapters_close(Runtime *rt);
/* forward.c: what the steps of rank 0 take over stages */
llmc_status forward_open(Session *s, llmc_error *err);
void forward_close(Session *s);
/* Add a step of the plan, as the session's step has it, to what is told of its op: runs, bytes and
 * operations. */
void session_op_cost(const Session *s, const PlanStep *step, llmc_op_time *t);
/* Rows of a value that a probe is told of in this step; -1: it is told of others only */
int64_t session_probe_rows(const Session *s, const PlanStep *step, const PlanMake *m);

#endif

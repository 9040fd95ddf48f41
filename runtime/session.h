/* Inside of Runtime and Session, for the files of runtime/ only. */
#ifndef LLMC_RUNTIME_SESSION_H
#define LLMC_RUNTIME_SESSION_H

#include "runtime/cpu/cpu.h"
#include "runtime/cuda/cuda.h"
#include "runtime/kv.h"
#include "runtime/runtime.h"
#include "runtime/weights/weights.h"

struct Runtime {
	const Plan  *plan;
	Weights     *weights;
	Kernels     *kernels;   /* NULL: the reference runs every step, or a device does */
	CudaModel   *cuda;      /* NULL: not on a GPU */
	float     *(*factors)[2]; /* [n_rope] rotary factors that the checkpoint holds, or NULL */
	int          n_threads;
	RuntimeTimes times;
};

/* A step as it is called: all that is fixed for the life of the session. */
typedef struct StepRun {
	const PlanStep *step;
	llmc_kernel    *kernel;  /* NULL: the reference */
	ref_fn         *ref;
	bool            meet;    /* a barrier follows */
	void           *a[PLAN_MAX_ARGS];
	RefArg          arg[PLAN_MAX_ARGS]; /* reference only */
} StepRun;

typedef struct PhaseRun {
	int      n_step;
	StepRun *step;
	int64_t  weight_bytes, n_meet;
} PhaseRun;

typedef struct SeqState {
	int32_t length_bound;
	int32_t prefix_len;      /* positions that every row sees; 0: none */
	int32_t mark;            /* position that rows after the prefix turn by, when rotation has two axes */
	bool    in_step;         /* of the forward that is being checked */
	bool    fresh;           /* its rotary frequencies are not yet on the device */
	double *freq;            /* [sum of dims / 2 over the tables] */
	double *factor;          /* [n_rope] */
} SeqState;

struct Session {
	Runtime    *rt;
	const Plan *plan;
	llmc_limits lim;
	int64_t     sym[SYM_COUNT]; /* largest values */
	Threads    *threads;
	CudaSession *cuda;          /* NULL: not on a GPU */
	Kv          kv;
	char       *slots;          /* memory of all slots (an address of the device, on a GPU) */
	size_t      slots_bytes;
	char       *state;          /* memory of all below */
	size_t      state_bytes;
	bool        two_axes;       /* a table turns by pos2 */

	char      **slot;           /* [n_slot] */
	SeqState   *seq;            /* [seqs] */
	float     **rope;           /* [n_rope] angles [chunk, dims] */
	float      *scratch;        /* of reference steps */
	PhaseRun    phase[2];
	/* of the step, as llmc_step.h says; from n to block_table in one piece, `block`, which a GPU has too */
	char       *block;
	int64_t     block_bytes;
	int32_t    *n;              /* [4] n_tok, n_dec, n_seq, n_out */
	int32_t    *tok, *pos, *pos2, *rope_pos, *seq_of, *q_start, *kv_len, *prefix_len, *out_row, *block_table;
	int32_t    *order;          /* [n_seq] chunk of each sequence of the step */
	int32_t    *step_seq;       /* [n_seq] its number in the session; in the block */
	int32_t    *add;            /* [n_seq] its rows */
	int32_t    *out_base;       /* [n_seq] first row of logits of a chunk, in the step's order */
	llmc_step   step;

	session_probe_fn probe;
	void       *probe_user;
	llmc_stats  stats;
};

/* session.c */
int64_t     session_pages(const llmc_limits *l);
int64_t     session_max_page(const Session *s);               /* of one sequence */
void        session_place_slots(Session *s);                  /* slot[] within slots */
/* walk.c: where an argument lies */
void       *session_argument(const Session *s, const PlanRef *r);
/* walk.c */
llmc_status session_bind(Session *s, llmc_error *err);        /* fills phase[].step */
void        session_walk(Session *s, const PhaseRun *phase);  /* runs s->step */

#endif

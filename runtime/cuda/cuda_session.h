/* Inside of runtime/cuda: a session's memory on the device and its steps. */
#ifndef LLMC_RUNTIME_CUDA_CUDA_SESSION_H
#define LLMC_RUNTIME_CUDA_CUDA_SESSION_H

#include "runtime/cuda/cuda_model.h"
#include "runtime/state/session_state.h"
#include "templates/cuda/comm/comm.h"
#include "templates/cuda/sampling/sampler_state.h"
#include "templates/cuda/runtime/step.h"

enum { CUDA_COPIES = 64 };
enum {
	CUDA_BUCKETS = 18,
	CUDA_MAX_IN_FLIGHT = 2
}; /* 1, 2, 4, ... 65536 and the session's own number of sequences */

/* The second parameter of kernels with tensor maps */
typedef struct CudaMaps {
	_Alignas(128) unsigned char map[PLAN_MAX_MAP][128];
} CudaMaps;

/* A step of the plan, ready to be launched. */
typedef struct CudaStep {
	const PlanStep *step;
	const PlanKernel *kernel;
	const CUfunction *fn; /* [n_launch] */
	llmc_call call;
	CudaMaps *maps;         /* NULL: none */
	llmc_collective comm;   /* of a step between ranks, whose kernel has no launches */
	struct CudaSession *of; /* of a step between ranks that are processes (host_staged_comm.c),
	                           once it has been launched */
	bool slots;  /* it changes nothing where no sequence of the step has an adapter */
	bool of_out; /* it has as many rows as logits are wanted */
} CudaStep;

/* Of a rank, on its device: what the other ranks write to, and where those have theirs. */
typedef struct CudaWindow {
	llmc_peers *peers;
	unsigned *epoch, *flag;
	float *slot, *gather;
	int64_t room; /* floats of a rank in gather */
} CudaWindow;
typedef struct CudaGroup CudaGroup; /* rank_group.c */

typedef struct CublasLt CublasLt; /* cublaslt.h */
typedef struct LtChoice LtChoice;

/* A step under way that picks. */
typedef struct CudaInFlight {
	unsigned number;    /* of the step */
	int32_t n;          /* picks */
	bool kept;          /* picks are in `pick` already */
	int32_t *at;        /* [max_out] row of logits of each pick, in the order of the chunks */
	llmc_sampled *pick; /* [max_out] */
} CudaInFlight;

typedef struct CudaSession {
	CudaModel *m;
	Session *s;
	CUstream stream;
	CUdeviceptr slots, state;
	CudaStep *step[2];
	CudaMaps *maps;    /* of all steps that have some */
	CublasLt *lt;      /* NULL: all products are our own */
	CudaWindow window; /* with other ranks */
	CudaGroup *group;  /* NULL: alone, or the others are not known yet */
	llmc_state st;     /* the argument of begin and sample */
	int32_t max_out, n_freq, n_bucket, bucket[CUDA_BUCKETS];
	CUgraphExec graph[2][2][CUDA_BUCKETS]; /* [picks][some sequence has an adapter][bucket] */
	bool adapted; /* a sequence of the step that is launched or captured has an adapter */
	bool skips;   /* the plan has steps that only those need */
	/* pinned: a ring of LLMC_RING each */
	char *pinned; /* blocks, notes, picks, logits, rows between stages */
	char *block;  /* the step's arrays, block_bytes each */
	char *note;
	llmc_sampled *sampled;
	char *masks;           /* as they lie on the device, mask_bytes each */
	float *logits;         /* [n_out, vocab] */
	float *brought, *made; /* of ranks that are processes: what this one says in a step between
	                          ranks, and what all make of it; NULL */
	int64_t n_met;         /* steps of this session, for who misses this rank */
	float *came, *goes; /* of stages: [n_tok, hidden] of the one before, and for the next one */
	CUdeviceptr stage_in[2]; /* where that is to lie, in each phase */
	CUdeviceptr block_to;    /* where the arrays lie on the device */
	int *mask_at;   /* and masks of tokens, one behind the other: which one a row of logits has
	                   ... */
	unsigned *mask; /* ... and [max_out, (vocab + 31) / 32] */
	int64_t mask_bytes;  /* of both */
	bool sample_pending; /* a step has been queued without its picks */
	CUevent event[LLMC_RING];
	bool busy[LLMC_RING];
	unsigned number; /* steps that pick or could have, so far */
	CudaInFlight flight[CUDA_MAX_IN_FLIGHT];
	int32_t n_flight;
	/* what the device's tables hold */
	int32_t *table;               /* [seqs, kv.stride] */
	int32_t *row_seq, *row_pages; /* [n_seq] sequence whose first row_pages pages row i of the
	                                 step's table holds; -1 */
	int32_t *counts;              /* [vocab] for uploading */
	float *freq;                  /* [n_freq] for uploading */
	int32_t *adapter;             /* [seqs] slots of sequences' adapters, on the device */
	/* cuda_kv_mem.c: copies of pages beside steps, to and from host memory */
	CUstream copies; /* NULL: there are none */
	CUevent reached; /* what the steps' stream had been given when a group of copies began */
	CUevent copied[CUDA_COPIES]; /* the end of group i, and of those before it, in place i %
	                                CUDA_COPIES */
	/* of calls that return nothing */
	llmc_status failed;
	llmc_error why;
} CudaSession;

/* cuda_session.c: as the members of Device */
int64_t cuda_state_bytes(const Session *s, int64_t host_bytes);
llmc_status cuda_session_open(Session *s, const llmc_memory *need, llmc_error *err);
void cuda_session_close(Session *s);
llmc_status cuda_session_enter(Session *s, llmc_error *err);
void cuda_session_leave(Session *s);

/* cuda_kv_mem.c: where the pages of a session are; what its copies beside steps took goes once the
 * pages have been freed */
KvMem cuda_pages(CudaSession *c);
void cuda_pages_close(CudaSession *c, bool current);

/* tensor_map.c: fills the maps of steps whose arguments are bound */
llmc_status cuda_bind_maps(CudaSession *c, llmc_error *err);

/* cublaslt.c, and cublaslt_autotune.c to open: cuBLASLt for the products of mixed steps. Bytes of
 * its workspace on the device, at most */
int64_t cublaslt_bytes(const Session *s);
/* Once steps are bound, before the first one runs: choices made, by measuring where the cache has
 * none. */
llmc_status cublaslt_open(CudaSession *c, llmc_error *err);
void cublaslt_close(CudaSession *c);
/* How the library does the product of this step of n rows; NULL: our own kernels do it. */
LtChoice *cublaslt_choice(CudaSession *c, const CudaStep *k, int64_t n);
/* Queue it. Refused by the library: by->library is 0 then, and nothing has been queued. */
llmc_status cublaslt_matmul(CudaSession *c, const CudaStep *k, LtChoice *by, int64_t n,
                            llmc_error *err);

/* cuda_step.c: as the members of Device, and inside */
llmc_status cuda_forward(Session *s, int phase, const float **logits, llmc_error *err);
llmc_status cuda_prepare(Session *s, llmc_error *err);
/* The failure of an earlier call that returned nothing, or LLMC_OK. */
llmc_status cuda_session_check(CudaSession *c, llmc_error *err);
/* A step's samples, which the ring's next entry would overwrite, go with its flight. */
void cuda_in_flight_save(CudaSession *c, CudaInFlight *f);
/* Wait until the ring's entry of the next step is free. */
llmc_status cuda_ring_take(CudaSession *c, llmc_error *err);
/* Values of the symbols in a step */
void cuda_symbols(const CudaSession *c, int64_t sym[SYM_COUNT], int64_t n_tok, int64_t n_dec,
                  int64_t n_seq, int64_t n_out);
/* PROGRAMMATIC: it may start before what was launched before it has ended. TOGETHER: all its blocks
 * are on the device at a time. */
typedef enum LaunchEdge { PLAIN, PROGRAMMATIC, TOGETHER } LaunchEdge;
llmc_status cuda_launch(CudaSession *c, CUfunction f, const char *name, const int64_t grid[3],
                        int block, int cluster, int64_t shared, LaunchEdge edge, void *arg,
                        void *maps, llmc_error *err);
/* The launches of one kernel, the product as `by` says (NULL: our own way); `only`: those alone
 * that the other way has not. */
llmc_status cuda_launch_kernel(CudaSession *c, CudaStep *k, const int64_t sym[SYM_COUNT],
                               LtChoice *by, bool only, llmc_error *err);
llmc_status cuda_bind(CudaSession *c, llmc_error *err);
/* Sequences of the step that have new rotary frequencies */
llmc_status cuda_upload_freq(CudaSession *c, llmc_error *err);
/* The note of the next step, a row for each of its sequences; what all of its rows say of the step
 */
llmc_note_row *cuda_note(CudaSession *c);
void cuda_note_rows(CudaSession *c, int32_t n, int32_t n_out);
/* The step's arrays, whole; a note that says so. */
llmc_status cuda_upload_step(CudaSession *c, llmc_error *err);
llmc_status cuda_launch_mixed(CudaSession *c, int phase, bool pick, llmc_error *err);
llmc_status cuda_launch_decode(CudaSession *c, int32_t rows, bool pick, llmc_error *err);
/* The picks of a step that was launched without; masked: by the masks that have been copied */
llmc_status cuda_launch_sample(CudaSession *c, int64_t n_out, bool masked, llmc_error *err);
llmc_status cuda_graph(CudaSession *c, int bucket, bool pick, bool adapted,
                       llmc_error *err); /* captured when it is not there yet */
/* profile.c: as the member of Device */
llmc_status cuda_op_times(Session *s, int phase, llmc_op_time_fn fn, void *user, llmc_error *err);
/* For it: the step of op i as it is launched for so many rows, and the launches of one kernel of
 * the step that ran last */
CudaStep *cuda_step_for(CudaSession *c, int phase, int i, int64_t rows);
bool cuda_has_adapter(const Session *s); /* a sequence of the step */
llmc_status cuda_launch_again(CudaSession *c, int phase, const PlanKernel *only, llmc_error *err);

/* rank_group.c: ranks on GPUs. The window's place in the state (false: more ranks than it is made
 * for), and its flags at zero */
bool cuda_window_lay_out(CudaSession *c, const Session *s, BumpAllocator *b);
llmc_status cuda_window_clear(CudaSession *c, llmc_error *err);
/* The launch of a step between ranks, in k->comm. number: of the step in its phase */
llmc_status cuda_collective_bind(CudaSession *c, CudaStep *k, int number, llmc_error *err);
/* As the member `join` of Device; a session leaves when it is closed. */
llmc_status cuda_group_open(Session *const *rank, int n, llmc_error *err);
void cuda_group_leave(CudaSession *c);
/* The launches of a step between ranks, of so many rows at most, or of as many as its graph has */
llmc_status cuda_collective_launch(CudaSession *c, CudaStep *k, const int64_t sym[SYM_COUNT],
                                   llmc_error *err);
/* host_staged_comm.c: ranks that are processes. Does this session talk to others so? Its pinned
 * memory, once steps are bound; a step between ranks, of so many rows */
bool cuda_uses_host_comm(const CudaSession *c);
llmc_status cuda_host_comm_open(CudaSession *c, llmc_error *err);
void cuda_host_comm_close(CudaSession *c);
llmc_status cuda_host_comm_launch(CudaSession *c, CudaStep *k, int64_t rows, llmc_error *err);
/* pipeline_stages.c: step i of a phase brings what the stage before hands on. Around the launches
 * of a step: it is waited for, and copied to the GPU; what is handed on is copied from there, and
 * goes when the GPU is done. Of one stage they do nothing. */
llmc_status cuda_stage_bind(CudaSession *c, int phase, int i, llmc_error *err);
llmc_status cuda_stage_take(CudaSession *c, int phase, llmc_error *err);
llmc_status cuda_stage_fetch(CudaSession *c, llmc_error *err);
llmc_status cuda_stage_hand(CudaSession *c, llmc_error *err);
/* A step begins, or is over: one that takes too long ends the group. */
void cuda_group_step(CudaSession *c, bool runs);
/* The ranks end: kernels that wait return, and every step from now on fails. Any thread. */
void cuda_group_end(CudaSession *c);
/* E_DEVICE, and who was late where: the group has ended, and what the step made is worth nothing.
 */
llmc_status cuda_group_check(CudaSession *c, int phase, llmc_error *err);

/* cuda_sampler.c: as the member of Device */
extern const DeviceSampler cuda_sampler;

#endif

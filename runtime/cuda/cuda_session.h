/* Private to runtime/cuda: a session's memory on the device and its steps. */
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
	CudaMaps *maps;       /* NULL: none */
	llmc_collective comm; /* arguments of a collective, whose kernel has no launches */
	/* set once a collective between processes (host_staged_comm.c) has been launched */
	struct CudaSession *of;
	bool slots;  /* a no-op if no sequence of the step has an adapter */
	bool of_out; /* the step has one row per row of logits */
} CudaStep;

/* Peer memory of a rank, on its device: the memory that other ranks write to, and the addresses of
 * the other ranks' memory. */
typedef struct CudaWindow {
	llmc_peers *peers;
	unsigned *epoch, *flag;
	float *slot, *gather;
	int64_t room; /* floats per rank in gather */
} CudaWindow;
typedef struct CudaGroup CudaGroup; /* rank_group.c */

typedef struct CublasLt CublasLt; /* cublaslt.h */
typedef struct LtChoice LtChoice;

/* A step in flight that samples. */
typedef struct CudaInFlight {
	unsigned number; /* number of the step */
	int32_t n;       /* samples */
	bool kept;       /* samples have been copied to `sampled` */
	int32_t *at;     /* [max_out] row of logits of each sample, in the order of the chunks */
	llmc_sampled *sampled; /* [max_out] */
} CudaInFlight;

typedef struct CudaSession {
	CudaModel *m;
	Session *s;
	CUstream stream;
	CUdeviceptr slots, state;
	CudaStep *step[2];
	CudaMaps *maps;    /* maps of all steps that have some */
	CublasLt *lt;      /* NULL: all GEMMs run our own kernels */
	CudaWindow window; /* peer memory of ranks */
	CudaGroup *group;  /* NULL: one rank, or the others are not connected yet */
	llmc_state st;     /* argument of begin and sample */
	int32_t max_out, n_freq, n_bucket, bucket[CUDA_BUCKETS];
	/* [samples on the device][some sequence has an adapter][bucket] */
	CUgraphExec graph[2][2][CUDA_BUCKETS];
	bool adapted; /* some sequence of the step being launched or captured has an adapter */
	bool skips;   /* the plan has steps for adapters only */
	/* pinned: a ring of LLMC_RING entries each */
	char *pinned; /* blocks, notes, samples, logits, rows between stages */
	char *block;  /* arrays of the step, block_bytes each */
	char *note;
	llmc_sampled *sampled;
	char *masks;   /* in the layout of the device, mask_bytes each */
	float *logits; /* [n_out, vocab] */
	/* for ranks that are processes: this rank's contribution to a collective, and its result;
	 * else NULL */
	float *comm_in, *comm_out;
	/* model on two devices: a value that goes to the CPU, and one that comes from it */
	float *crossing[2];
	/* steps of this session, for error messages of waiting ranks */
	int64_t n_steps;
	/* pipeline stages: [n_tok, hidden] from the previous one, and for the next one */
	float *received, *stage_out;
	CUdeviceptr stage_in[2]; /* destination of `received` in each phase */
	CUdeviceptr block_to;    /* the arrays on the device */
	int *mask_at;            /* index of the mask of each row of logits; the masks follow */
	unsigned *mask;          /* masks [max_out, (vocab + 31) / 32] */
	int64_t mask_bytes;      /* size of mask_at and the masks */
	bool sample_pending;     /* a step has been queued without sampling */
	CUevent event[LLMC_RING];
	bool busy[LLMC_RING];
	unsigned number; /* number of steps so far that sample on the device or could have */
	CudaInFlight flight[CUDA_MAX_IN_FLIGHT];
	int32_t n_flight;
	/* copies of the device's tables on the host */
	int32_t *table; /* [seqs, kv.stride] */
	/* [n_seq] sequence whose first row_pages pages row i of the step's block table holds; -1 */
	int32_t *row_seq, *row_pages;
	int32_t *counts;  /* [vocab] staging for uploads */
	float *freq;      /* [n_freq] staging for uploads */
	int32_t *adapter; /* [seqs] adapter slots of sequences, on the device */
	/* cuda_persistent.c, on the device: tasks [3][steps], counters [steps] */
	llmc_task *task;
	unsigned *task_count;
	/* most rows of a decode step that is one persistent kernel; 0: each op is a launch */
	int32_t persistent_rows;
	/* cuda_kv_mem.c: background copies of pages, to and from host memory */
	CUstream copies; /* NULL: none */
	CUevent reached; /* state of the steps' stream when a group of copies began */
	/* entry i % CUDA_COPIES: recorded at the end of copy group i */
	CUevent copied[CUDA_COPIES];
	/* first error of calls that return void */
	llmc_status failed;
	llmc_error why;
} CudaSession;

/* cuda_session.c: members of Device */
int64_t cuda_state_bytes(const Session *s, int64_t host_bytes);
llmc_status cuda_session_open(Session *s, const llmc_memory *need, llmc_error *err);
void cuda_session_close(Session *s);
llmc_status cuda_session_enter(Session *s, llmc_error *err);
void cuda_session_leave(Session *s);

/* cuda_kv_mem.c: memory of a session's pages. cuda_pages_close frees the buffers of background
 * copies, after the pages */
KvMem cuda_pages(CudaSession *c);
void cuda_pages_close(CudaSession *c, bool current);

/* cuda_prefetch.c: set the bytes that a decode step prefetches to L2. Call it after the step's
 * arguments are bound. */
void cuda_bind_prefetch(const CudaSession *c, CudaStep *k);
/* Slices of one tensor `at`. budget: bytes that the plan prefetches; allowed: bytes that this
 * device's L2 may hold */
llmc_prefetch cuda_prefetch_slices(const void *at, int64_t tensor_bytes, const PlanPrefetch *f,
                                   int64_t budget, int64_t allowed, int n_sm);

/* cuda_persistent.c: persistent decode steps. Lay out their memory in the session's state */
void cuda_persistent_lay_out(CudaSession *c, const Session *s, BumpAllocator *b);
/* Write the lists of tasks for up to persistent_rows rows, once steps are bound. */
llmc_status cuda_persistent_bind(CudaSession *c, llmc_error *err);

/* tensor_map.c: fill the maps of steps whose arguments are bound */
llmc_status cuda_bind_maps(CudaSession *c, llmc_error *err);

/* cublaslt.c and cublaslt_autotune.c: cuBLASLt for GEMMs of mixed steps. Upper bound of its
 * workspace on the device, in bytes */
int64_t cublaslt_bytes(const Session *s);
/* Call when steps are bound, before the first one runs: loads choices from the cache and measures
 * the missing ones. */
llmc_status cublaslt_open(CudaSession *c, llmc_error *err);
void cublaslt_close(CudaSession *c);
/* The library's choice for the GEMM of this step with n rows; NULL: our own kernels run. */
LtChoice *cublaslt_choice(CudaSession *c, const CudaStep *k, int64_t n);
/* Queue the GEMM of a step. If the library rejects it, by->library becomes 0 and nothing has been
 * queued. */
llmc_status cublaslt_matmul(CudaSession *c, const CudaStep *k, LtChoice *by, int64_t n,
                            llmc_error *err);

/* cuda_step.c: members of Device, and internals */
llmc_status cuda_forward(Session *s, int phase, const float **logits, llmc_error *err);
llmc_status cuda_prepare(Session *s, llmc_error *err);
/* Return the error of an earlier call that returned void, or LLMC_OK. */
llmc_status cuda_session_check(CudaSession *c, llmc_error *err);
/* Move a step's samples out of the ring, whose entry will be reused. */
void cuda_in_flight_save(CudaSession *c, CudaInFlight *f);
/* Wait until the next step's ring entry is free. */
llmc_status cuda_ring_take(CudaSession *c, llmc_error *err);
/* Values of the symbols in a step */
void cuda_symbols(const CudaSession *c, int64_t sym[SYM_COUNT], int64_t n_tok, int64_t n_dec,
                  int64_t n_seq, int64_t n_out);
/* PROGRAMMATIC: may start before the previous launch has ended. TOGETHER: all its CTAs are resident
 * at the same time. */
typedef enum LaunchEdge { PLAIN, PROGRAMMATIC, TOGETHER } LaunchEdge;
llmc_status cuda_launch(CudaSession *c, CUfunction f, const char *name, const int64_t grid[3],
                        int block, int cluster, int64_t shared, LaunchEdge edge, void *arg,
                        void *maps, llmc_error *err);
/* Launch a kernel; `by`: choice of cuBLASLt (NULL: our own kernels); `only`: just the launches that
 * the library replaces. */
llmc_status cuda_launch_kernel(CudaSession *c, CudaStep *k, const int64_t sym[SYM_COUNT],
                               LtChoice *by, bool only, llmc_error *err);
llmc_status cuda_bind(CudaSession *c, llmc_error *err);
/* Upload new rotary frequencies of the step's sequences */
llmc_status cuda_upload_freq(CudaSession *c, llmc_error *err);
/* The note of the next step, one row per sequence; sets the fields that describe the step */
llmc_note_row *cuda_note(CudaSession *c);
void cuda_note_rows(CudaSession *c, int32_t n, int32_t n_out);
/* Upload all of the step's arrays, with a note that makes kernels use them. */
llmc_status cuda_upload_step(CudaSession *c, llmc_error *err);
llmc_status cuda_launch_mixed(CudaSession *c, int phase, bool sampling, llmc_error *err);
llmc_status cuda_launch_decode(CudaSession *c, int32_t rows, bool sampling, llmc_error *err);
/* Sample after a step that was launched without sampling; masked: apply the masks that have been
 * copied */
llmc_status cuda_launch_sample(CudaSession *c, int64_t n_out, bool masked, llmc_error *err);
/* captured at first use */
llmc_status cuda_graph(CudaSession *c, int bucket, bool sampling, bool adapted, llmc_error *err);
/* profile.c: member of Device */
llmc_status cuda_op_times(Session *s, int phase, llmc_op_time_fn fn, void *user, llmc_error *err);
/* For profile.c: cuda_step_for returns the step of op i in the form that `rows` rows use;
 * cuda_launch_again repeats the launches of one kernel of the last step */
CudaStep *cuda_step_for(CudaSession *c, int phase, int i, int64_t rows);
bool cuda_has_adapter(const Session *s); /* some sequence of the step has one */
llmc_status cuda_launch_again(CudaSession *c, int phase, const PlanKernel *only, llmc_error *err);

/* rank_group.c: ranks on GPUs. cuda_window_lay_out reserves peer memory in the session's state
 * (false: too many ranks); cuda_window_clear zeroes its flags */
bool cuda_window_lay_out(CudaSession *c, const Session *s, BumpAllocator *b);
llmc_status cuda_window_clear(CudaSession *c, llmc_error *err);
/* Set up the launch of a collective, in k->comm. number: index of the step in its phase */
llmc_status cuda_collective_bind(CudaSession *c, CudaStep *k, int number, llmc_error *err);
/* Member `join` of Device; closing a session leaves the group. */
llmc_status cuda_group_open(Session *const *rank, int n, llmc_error *err);
void cuda_group_leave(CudaSession *c);
/* Launch a collective for at most this many rows, or for the rows of its graph */
llmc_status cuda_collective_launch(CudaSession *c, CudaStep *k, const int64_t sym[SYM_COUNT],
                                   llmc_error *err);
/* host_staged_comm.c, for ranks that are processes: does this session use it; open its pinned
 * memory, after steps are bound; run a collective for this many rows */
bool cuda_uses_host_comm(const CudaSession *c);
llmc_status cuda_host_comm_open(CudaSession *c, llmc_error *err);
void cuda_host_comm_close(CudaSession *c);
llmc_status cuda_host_comm_launch(CudaSession *c, CudaStep *k, int64_t rows, llmc_error *err);
/* pipeline_stages.c: step i of a phase receives the previous stage's result. Around the launches of
 * a step, cuda_stage_receive waits for it and copies it to the GPU; cuda_stage_fetch copies this
 * stage's result from the GPU, cuda_stage_send sends it when the GPU is done. No-ops with one
 * stage. */
llmc_status cuda_stage_bind(CudaSession *c, int phase, int i, llmc_error *err);
llmc_status cuda_stage_receive(CudaSession *c, int phase, llmc_error *err);
llmc_status cuda_stage_fetch(CudaSession *c, llmc_error *err);
llmc_status cuda_stage_send(CudaSession *c, llmc_error *err);
/* two_devices.c, for a model on this GPU and the CPU: open pinned memory for a value that crosses,
 * after steps are bound; queue a send or recv of this many rows */
llmc_status cuda_crossing_open(CudaSession *c, llmc_error *err);
void cuda_crossing_close(CudaSession *c);
llmc_status cuda_crossing_launch(CudaSession *c, CudaStep *k, int64_t rows, llmc_error *err);
/* Report that a step begins (runs) or is over. A step that takes too long ends the group. */
void cuda_group_step(CudaSession *c, bool runs);
/* End the group: waiting kernels return, and all later steps fail. Any thread. */
void cuda_group_end(CudaSession *c);
/* E_DEVICE if the group has ended, with the late rank and its position; the step's results are
 * invalid. */
llmc_status cuda_group_check(CudaSession *c, int phase, llmc_error *err);

/* cuda_sampler.c: member of Device */
extern const DeviceSampler cuda_sampler;

#endif

/* The runtime's private contract: what api/ joins behind llmc.h. Never prints, exits, aborts; no
 * globals.
 *
 *   Runtime  plan + weights + kernels: immutable after open, shared by sessions
 *   Session  KV pages, buffers, threads: one caller at a time */
#ifndef LLMC_RUNTIME_H
#define LLMC_RUNTIME_H

#include "base/error.h"
#include "plan/plan.h"

typedef struct Runtime Runtime;
typedef struct MpiWorld MpiWorld; /* comm/world.h */
typedef struct Session Session;

typedef struct RuntimeOptions {
	const char *artifact; /* folder with kernels/ (and aot/); NULL for target ref */
	const char
	    *weights;  /* checkpoint file or folder; NULL: plan->weights relative to artifact */
	int n_threads; /* of each rank, also for packing and compiling; 0: topology's, shared among
	                  them */
	int device;    /* number of the GPU, for targets that are for one */
	const int *devices; /* [ranks] the same of each rank; NULL: device */
	bool random_weights;
	bool cache_packed;
	bool cache_warned;  /* that the cache takes no files has been said already */
	size_t stage_bytes; /* as in WeightsOptions */
	MpiWorld *world;    /* the plan is for this process' rank of them; NULL: there are none. It
	                       outlives the runtime */
	const Plan *const *all; /* [n_all] of rank 0 of a world whose plans have slots for adapters:
	                           the plans of all ranks; they outlive the runtime */
	int n_all;
	llmc_log_fn log;
	void *log_user;
} RuntimeOptions;

typedef struct RuntimeTimes {
	double compile_s, pack_s, load_s;
} RuntimeTimes;

/* plan (already read and checked) must outlive the runtime. */
llmc_status runtime_open(const Plan *plan, const RuntimeOptions *opt, Runtime **out,
                         llmc_error *err);
/* The plans of all ranks, of which rank 0's stands for the model: its sessions are all ranks'. n 1:
 * as runtime_open. */
llmc_status runtime_open_ranks(const Plan *const *plan, int n, const RuntimeOptions *opt,
                               Runtime **out, llmc_error *err);
/* A rank other than 0 of a world: do what rank 0 does, until it closes its runtime. E_DEVICE: ranks
 * are lost. */
llmc_status runtime_follow(Runtime *rt, llmc_error *err);
/* Texts of the checkpoint's content and of what all plans have alike, the same for all ranks, and
 * of what the plan does together with other ranks of its stage, the same for those. hex: 16 digits
 * each */
void runtime_fingerprint(const Runtime *rt, char checkpoint[17], char plan[17], char together[17]);
/* All ranks of the world have opened theirs, and all call this: from here on rank 0 tells the
 * others when to end. */
llmc_status runtime_lead(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err);
void runtime_close(Runtime *rt);
RuntimeTimes runtime_times(const Runtime *rt);
/* Does the artifact ship built kernels of this target that run here as they are? number: of the GPU
 */
bool runtime_ships(const char *artifact, const char *target, int number);
/* Build the kernels of an artifact into its aot/<target>/ folder with a manifest (`llmc compile
 * --aot`). */
llmc_status runtime_build_aot(const Plan *plan, const char *artifact, llmc_log_fn log,
                              void *log_user, llmc_error *err);

/* lora_adapters.c: low-rank adapters in the slots of a plan that has some (PlanTensor.factor), for
 * sequences that ask for one. An adapter's number is never used twice; 0 is none. A slot is free
 * again when an adapter has been dropped and nobody holds it any more. Any thread. E_INPUT: no
 * slots, no such folder, an adapter of another model or of too large a rank; E_FULL: all slots are
 * taken */
llmc_status runtime_adapter_load(Runtime *rt, const char *folder, double scale, int32_t *adapter,
                                 llmc_error *err);
llmc_status runtime_adapter_drop(Runtime *rt, int32_t adapter,
                                 llmc_error *err); /* E_RANGE: there is none of this number */
/* It stays until let go; E_RANGE: it is not loaded, or it has been dropped, unless somebody holds
 * it and this is `again`. 0: nothing to do */
llmc_status runtime_adapter_ref(Runtime *rt, int32_t adapter, bool again, llmc_error *err);
void runtime_adapter_unref(Runtime *rt, int32_t adapter);

/* Defaults filled in, ranges checked against the plan. */
llmc_status session_limits(const Plan *plan, const llmc_limits *lim, llmc_limits *out,
                           llmc_error *err);
llmc_status session_memory(const Plan *plan, const llmc_limits *lim, llmc_memory *out,
                           llmc_error *err);
/* Called after each step of a forward with each value that the step makes and holds in memory
 * (verify): f32, or i32 for the experts that a router chose. What it writes to data [rows, width]
 * is what later steps read; it returns whether it did. */
typedef bool (*session_probe_fn)(void *user, const PlanStep *step, const char *value, Dtype dtype,
                                 void *data, int64_t rows, int64_t width);
llmc_status session_open(Runtime *rt, const llmc_limits *lim, Session **out, llmc_error *err);
void session_close(Session *s);
void session_set_probe(Session *s, session_probe_fn fn, void *user);
/* Forwards run the steps from .. to - 1 of their phase alone; to 0: all. Memory of values stays
 * where it is: what earlier steps have made is what the caller left there, in the places that a
 * probe was shown. Pages and state are those of the sequence of this forward. On processors; GPUs
 * run all. */
void session_set_step_range(Session *s, int from, int to);
const llmc_limits *session_limits_of(const Session *s);
llmc_status session_seq_new(Session *s, int32_t length_bound, llmc_seq *out, llmc_error *err);
/* A sequence without positions runs with this adapter from here on; 0: with none. It holds it until
 * it is freed; a fork, and a sequence loaded from the bytes of one that was saved, have it as well.
 * E_RANGE: no such sequence or adapter, or it has positions already */
llmc_status session_seq_adapt(Session *s, llmc_seq q, int32_t adapter, llmc_error *err);
/* Pages that a new sequence, its forks and what is loaded of it saved keep in the prefix cache are
 * found by sequences of the same salt alone; 0: none. */
void session_seq_salt(Session *s, llmc_seq q, uint64_t salt);
llmc_status session_seq_fork(Session *s, llmc_seq from, llmc_seq *out, llmc_error *err);
llmc_status session_seq_trim(Session *s, llmc_seq q, int32_t len, llmc_error *err);
llmc_status session_seq_mark(Session *s, llmc_seq q, llmc_error *err);
void session_seq_unmark(Session *s, llmc_seq q);
int32_t session_seq_len(const Session *s, llmc_seq q);
void session_seq_free(Session *s, llmc_seq q);
/* session_kv.c: see llmc_seq_save; and for the engine: a new sequence begins with the pages that
 * the prefix cache (once kv_prefix_open has made one) holds of the prompt, and all its tokens are
 * told after each step. */
llmc_status session_seq_save(Session *s, llmc_seq q, void *buf, size_t cap, size_t *need,
                             llmc_error *err);
int64_t session_seq_bytes(Session *s,
                          int32_t len); /* of what is saved of a sequence of so many positions, but
                                           for its head; below 0: ranks are lost */
llmc_status session_seq_load(Session *s, const void *buf, size_t n, llmc_seq *out, llmc_error *err);
int32_t session_prefix_find(Session *s, llmc_seq q, const int32_t *tok,
                            int32_t n_tok); /* positions found */
void session_prefix_keep(Session *s, llmc_seq q, const int32_t *tok);
/* From now on pages of the prefix cache are files in dir as well, max_bytes of them at most
 * (kv/disk.h). extra: what else the values depend on. */
llmc_status session_prefix_dir(Session *s, const char *dir, int64_t max_bytes, const char *extra,
                               llmc_log_fn log, void *log_user, llmc_error *err);
/* Positions of pages read from there, written, found wrong. */
void session_prefix_counts(Session *s, uint64_t *read, uint64_t *written, uint64_t *wrong);
/* A sum of n rows as a vector: their mean, divided by its length where asked. out [width] */
void pool_vector(const double *sum, int64_t width, int32_t n, bool normalize, float *out);
llmc_status session_forward(Session *s, const llmc_chunk *chunk, size_t n, float *logits,
                            llmc_error *err);
/* The same with the rows that come with each chunk's tokens, [n_tok, hidden] each, where the plan
 * takes rows; elsewhere came is NULL. */
llmc_status session_forward_rows(Session *s, const llmc_chunk *chunk, size_t n,
                                 const float *const *came, float *logits, llmc_error *err);
/* Of a plan that hands out rows: those of this chunk of the last forward, [n_tok, hidden], until
 * the next one. */
const float *session_rows(const Session *s, size_t chunk);
/* Between steps: false, and E_DEVICE with why in err: a rank is lost, no step will run any more. A
 * session alone is whole. */
bool session_check_ranks(const Session *s, llmc_error *err);
void session_stats(const Session *s, llmc_stats *out);
/* Do now what first steps would do later: decode graphs of every size (GPU). */
llmc_status session_prepare(Session *s, llmc_error *err);
/* As llmc_op_times. */
llmc_status session_op_times(Session *s, llmc_op_time_fn fn, void *user, llmc_error *err);

/* Decoding without waiting for the host (GPU). A step is queued and the call returns; the tokens
 * that it samples are read later, and the next step may take them before the host has seen them:
 *
 *     session_sample_params(s, q, params, prompt, n_prompt, NULL, 0);
 *     session_queue_step(s, the prompt's chunk, n_out 1);
 *     for (;;) {
 *             session_queue_step(s, a chunk of q with tok NULL, n_tok 1, n_out 1); // takes what
 * the step before sampled
 *             session_take_sampled(s, &id, &logprob);                              // what that was
 *     }
 *
 * Can this session sample by these parameters on its device? */
bool session_can_sample(const Session *s, const llmc_params *p);
/* How tokens of a sequence are sampled from now on. Penalties count prompt and output; the first
 * token is number n_output of the seed's stream: a sequence that was preempted goes on where it
 * was. */
llmc_status session_sample_params(Session *s, llmc_seq q, const llmc_params *p,
                                  const int32_t *prompt, size_t n_prompt, const int32_t *output,
                                  size_t n_output, llmc_error *err);
/* Queue a step. n_out of a chunk is 0, or 1: a token is sampled from its last row. Two steps that
 * sample may be under way; a third is E_BUSY. E_RANGE, E_FULL as session_forward. Sequences may be
 * trimmed and freed while steps are under way. */
llmc_status session_queue_step(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
/* Under a grammar the host says what may come next. Such a step runs first; while it does, masks
 * are made, which go to the device in one copy, and then tokens are sampled:
 *
 *     session_queue_rows(s, chunks);   // as session_queue_step, but for the sampling
 *     session_queue_sample(s, masks);
 *     session_take_sampled(s, &id, &logprob);
 *
 * Can tokens by these parameters be sampled so? session_sample_params is told the same without the
 * grammar. */
bool session_can_mask(const Session *s, const llmc_params *p);
llmc_status session_queue_rows(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
/* mask: of each chunk with n_out = 1, in their order, a bit a token in (vocab + 31) / 32 words,
 * read during the call; NULL: anything may come. Until then no other step is taken. E_RANGE: no
 * step waits for it. */
llmc_status session_queue_sample(Session *s, const uint32_t *const *mask, llmc_error *err);
/* Wait for the oldest step that samples: its tokens and (when not NULL) their logprobs, a chunk
 * with n_out = 1 each, in the order of its chunks. E_RANGE: no step is under way. E_CHECK: logits
 * were NaN or all minus infinity; ids are -1 there. */
llmc_status session_take_sampled(Session *s, int32_t *ids, float *logprobs, llmc_error *err);
/* Forget what steps under way sample. */
void session_drop_sampled(Session *s);

#endif

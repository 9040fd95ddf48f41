/* Internal interface of the runtime, which api/ exports as llmc.h. Never prints, exits or aborts;
 * has no globals.
 *
 *   Runtime  plan + weights + kernels, shared by sessions; immutable after open, except that
 *            session_replace_weights exchanges the weights
 *   Session  KV pages, buffers, threads: one caller at a time */
#ifndef LLMC_RUNTIME_H
#define LLMC_RUNTIME_H

#include "base/error.h"
#include "plan/plan.h"

typedef struct Runtime Runtime;
typedef struct MpiWorld MpiWorld; /* see comm/mpi_world.h */
typedef struct Session Session;

typedef struct RuntimeOptions {
	const char *artifact; /* folder with kernels/ (and aot/); NULL for target ref */
	/* checkpoint file or folder; NULL: plan->weights relative to the artifact */
	const char *weights;
	/* threads per rank, also for packing and compiling; 0: topology_threads() divided by the
	 * number of ranks */
	int n_threads;
	int device;         /* GPU number, for GPU targets */
	const int *devices; /* [ranks] GPU number per rank; NULL: device */
	bool random_weights;
	bool cache_packed;
	bool cache_warned;  /* the warning about an unwritable cache has been logged */
	bool can_divide;    /* a part of the model could run on the CPU: messages suggest it */
	bool skip_built;    /* do not use the kernels below aot/ */
	size_t stage_bytes; /* see WeightsOptions */
	/* group of rank processes, one of which is this process with its own plan; NULL: none. Must
	 * outlive the runtime */
	MpiWorld *world;
	/* [n_all] on rank 0 of a world whose plans have adapter slots: plans of all ranks, which
	 * must outlive the runtime */
	const Plan *const *all;
	int n_all;
	/* for a model on two devices: plan of the other device; NULL: one device */
	const Plan *other;
	llmc_log_fn log;
	void *log_user;
} RuntimeOptions;

typedef struct RuntimeTimes {
	double compile_s, pack_s, load_s;
} RuntimeTimes;

/* plan (already read and checked) must outlive the runtime. */
llmc_status runtime_open(const Plan *plan, const RuntimeOptions *opt, Runtime **out,
                         llmc_error *err);
/* Open the plans of all ranks in this process. Rank 0's plan represents the model, and its sessions
 * use all ranks. n 1: like runtime_open. */
llmc_status runtime_open_ranks(const Plan *const *plan, int n, const RuntimeOptions *opt,
                               Runtime **out, llmc_error *err);
/* Follow rank 0 until it closes its runtime; for all other ranks of a world. E_DEVICE: ranks are
 * lost. */
llmc_status runtime_follow(Runtime *rt, llmc_error *err);
/* Write three hashes of 16 hex digits: of the checkpoint's content, of the properties that the
 * plans of all ranks share, and of those that the plans of a stage share. */
void runtime_fingerprint(const Runtime *rt, char checkpoint[17], char plan[17], char together[17]);
/* Called by all ranks of a world after each has opened its runtime. From here on rank 0 decides
 * when the others end. */
llmc_status runtime_lead(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err);
void runtime_close(Runtime *rt);

/* Weights of another checkpoint, packed for the plan of an open runtime */
struct Weights;
/* Read a checkpoint and pack all of it, on threads of its own, while steps run. The file may change
 * after the call. The caller passes *out to session_replace_weights, or to weights_close. E_INPUT:
 * a tensor is missing or has another shape, the file is damaged, or rt cannot replace weights;
 * E_FULL: no memory for a second copy. rt is unchanged. */
llmc_status runtime_prepare_weights(const Runtime *rt, const char *path, int n_threads,
                                    struct Weights **out, llmc_error *err);
/* Make w the weights of the session's runtime and close the old ones; on failure close w. The
 * session must be the only one of the runtime, without sequences and without a running step. Pages
 * of its prefix cache are not found any more. */
llmc_status session_replace_weights(Session *s, struct Weights *w, llmc_error *err);
RuntimeTimes runtime_times(const Runtime *rt);
/* Lock and unlock the model's processors. An engine takes one turn per step and a vision tower one
 * per tile, so that neither waits for more than one turn of the other. Turns are given in order of
 * arrival. Any thread; a turn ends on the thread that began it. */
void runtime_lock_processors(Runtime *rt);
void runtime_unlock_processors(Runtime *rt);
/* Does the artifact contain built kernels of this target that run on this machine? number: of the
 * GPU */
bool runtime_ships(const char *artifact, const char *target, int number);
/* Build the kernels of an artifact into its aot/<target>/ folder with a manifest (`llmc compile
 * --aot`). */
llmc_status runtime_build_aot(const Plan *plan, const char *artifact, llmc_log_fn log,
                              void *log_user, llmc_error *err);

/* lora_adapters.c: LoRA adapters in the slots of a plan that has some (PlanTensor.factor), for
 * sequences that select an adapter. An adapter id is never reused; 0 means none. A slot becomes
 * free after its adapter has been dropped and its last reference released. Any thread. E_INPUT: no
 * slots, no such folder, an adapter of another model or with too large a rank. E_FULL: all slots
 * are in use. */
llmc_status runtime_adapter_load(Runtime *rt, const char *folder, double scale, int32_t *adapter,
                                 llmc_error *err);
/* E_RANGE: no adapter has this id */
llmc_status runtime_adapter_drop(Runtime *rt, int32_t adapter, llmc_error *err);
/* Take a reference, which keeps the adapter until runtime_adapter_unref. E_RANGE: the adapter is
 * not loaded, or has been dropped. With `again`, a dropped adapter that is still referenced is
 * allowed. Adapter 0: does nothing. */
llmc_status runtime_adapter_ref(Runtime *rt, int32_t adapter, bool again, llmc_error *err);
void runtime_adapter_unref(Runtime *rt, int32_t adapter);

/* Fill in defaults and check the ranges against the plan. */
llmc_status session_limits(const Plan *plan, const llmc_limits *lim, llmc_limits *out,
                           llmc_error *err);
llmc_status session_memory(const Plan *plan, const llmc_limits *lim, llmc_memory *out,
                           llmc_error *err);
/* Callback for `llmc verify`, called after each step of a forward call with each value that the
 * step has written to memory: f32, or i32 for the experts that a router selected. It may overwrite
 * data [rows, width], which later steps read; it returns true if it has. */
typedef bool (*session_probe_fn)(void *user, const PlanStep *step, const char *value, Dtype dtype,
                                 void *data, int64_t rows, int64_t width);
llmc_status session_open(Runtime *rt, const llmc_limits *lim, Session **out, llmc_error *err);
void session_close(Session *s);
void session_set_probe(Session *s, session_probe_fn fn, void *user);
/* Let forwards run only steps from .. to - 1 of their phase; to 0: all steps. Values of earlier
 * steps are read from memory as they are: the caller stores them at the addresses that it got from
 * a probe. Pages and recurrent states are those of the sequence. CPU only; GPUs run all steps. */
void session_set_step_range(Session *s, int from, int to);
const llmc_limits *session_limits_of(const Session *s);
llmc_status session_seq_new(Session *s, int32_t length_bound, llmc_seq *out, llmc_error *err);
/* Select the adapter of a sequence without positions; 0: none. The sequence holds a reference until
 * it is freed. Forks inherit it, and so do sequences loaded from saved bytes. E_RANGE: no such
 * sequence or adapter, or the sequence already has positions. */
llmc_status session_seq_adapt(Session *s, llmc_seq q, int32_t adapter, llmc_error *err);
/* Give tokens from n_first on the second token type of an encoder; 0: none of them. */
void session_seq_pair(Session *s, llmc_seq q, int32_t n_first);
/* Set the salt of a new sequence. Pages that it, its forks, or sequences loaded from its saved
 * bytes register in the prefix cache are found only by sequences with the same salt; 0: none. */
void session_seq_salt(Session *s, llmc_seq q, uint64_t salt);
llmc_status session_seq_fork(Session *s, llmc_seq from, llmc_seq *out, llmc_error *err);
llmc_status session_seq_trim(Session *s, llmc_seq q, int32_t len, llmc_error *err);
llmc_status session_seq_mark(Session *s, llmc_seq q, llmc_error *err);
void session_seq_unmark(Session *s, llmc_seq q);
int32_t session_seq_len(const Session *s, llmc_seq q);
void session_seq_free(Session *s, llmc_seq q);
/* session_kv.c: see llmc_seq_save. For the engine: once kv_prefix_open has enabled the prefix
 * cache, a new sequence starts with the cached pages of its prompt, and all its tokens are
 * registered after each step. */
llmc_status session_seq_save(Session *s, llmc_seq q, void *buf, size_t cap, size_t *need,
                             llmc_error *err);
/* size of a saved sequence of len positions without its header; negative: ranks are lost */
int64_t session_seq_bytes(Session *s, int32_t len);
llmc_status session_seq_load(Session *s, const void *buf, size_t n, llmc_seq *out, llmc_error *err);
/* number of positions found */
int32_t session_prefix_find(Session *s, llmc_seq q, const int32_t *tok, int32_t n_tok);
void session_prefix_keep(Session *s, llmc_seq q, const int32_t *tok);
/* From now on also store pages of the prefix cache as files in dir, at most max_bytes of them
 * (kv/kv_disk.h). extra: further data that the values depend on. */
llmc_status session_prefix_dir(Session *s, const char *dir, int64_t max_bytes, const char *extra,
                               llmc_log_fn log, void *log_user, llmc_error *err);
/* Numbers of positions whose pages were read from the folder, written to it, or found damaged. */
void session_prefix_counts(Session *s, uint64_t *read, uint64_t *written, uint64_t *wrong);
/* Pool a sum of n rows to a vector: their mean, divided by its length if `normalize`. out
 * [width] */
void pool_vector(const double *sum, int64_t width, int32_t n, bool normalize, float *out);
llmc_status session_forward(Session *s, const llmc_chunk *chunk, size_t n, float *logits,
                            llmc_error *err);
/* Like session_forward, with the rows of each chunk's tokens, [n_tok, plan_row_width] each, if the
 * plan takes rows; `came` is NULL for other plans. */
llmc_status session_forward_rows(Session *s, const llmc_chunk *chunk, size_t n,
                                 const float *const *came, float *logits, llmc_error *err);
/* Rows of a chunk, of plan_row_width elements; row NULL: it has none. */
typedef struct StepRows { /* fields of llmc_image_rows */
	const float *row;
	const int32_t *at;
	const int32_t *pos[3];
	const int32_t *number;
	const int32_t *window;
} StepRows;
/* Like session_forward, for a plan with vision.part: rows [n]. n_out of a tower's chunk is its
 * number of patches divided by vision.merge. NULL: no chunk has rows. */
llmc_status session_forward_images(Session *s, const llmc_chunk *chunk, size_t n,
                                   const StepRows *rows, float *logits, llmc_error *err);
/* Set the image rows of the chunks of the next session_queue_step or session_queue_rows, which
 * reads them during that call. */
void session_queue_images(Session *s, const StepRows *rows);
/* For a plan that outputs hidden rows: the rows of this chunk of the last forward, [n_tok,
 * plan_rows_width], valid until the next one. */
const float *session_rows(const Session *s, size_t chunk);
/* Call between steps: returns false, with E_DEVICE and the reason in err, if a rank is lost and no
 * step can run any more. Always true for a single rank. */
bool session_check_ranks(const Session *s, llmc_error *err);
void session_stats(const Session *s, llmc_stats *out);
/* Do the one-time work of first steps now: a GPU captures decode graphs of every size. */
llmc_status session_prepare(Session *s, llmc_error *err);
/* See llmc_op_times. */
llmc_status session_op_times(Session *s, llmc_op_time_fn fn, void *user, llmc_error *err);

/* Decoding without waiting for the host (GPU). session_queue_step queues a step and returns. The
 * host reads the sampled tokens later; the next step may use them before that:
 *
 *     session_sample_params(s, q, params, prompt, n_prompt, NULL, 0);
 *     session_queue_step(s, the prompt's chunk, n_out 1);
 *     for (;;) {
 *             // a chunk of q with tok NULL, n_tok 1, n_out 1 takes the token of the step before
 *             session_queue_step(s, chunk);
 *             session_take_sampled(s, &id, &logprob); // that token
 *     }
 *
 * Can this session sample with these parameters on its device? */
bool session_can_sample(const Session *s, const llmc_params *p);
/* Set the sampling parameters of a sequence from now on. Penalties count prompt and output. The
 * next token uses random number n_output of the seed's stream, so a preempted sequence continues
 * with the same random numbers. */
llmc_status session_sample_params(Session *s, llmc_seq q, const llmc_params *p,
                                  const int32_t *prompt, size_t n_prompt, const int32_t *output,
                                  size_t n_output, llmc_error *err);
/* Queue a step. n_out of a chunk is 0, or 1 to sample a token from its last row. At most two
 * sampling steps may be in flight; a third is E_BUSY. E_RANGE, E_FULL: as session_forward.
 * Sequences may be trimmed and freed while steps are in flight. */
llmc_status session_queue_step(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
/* With a grammar, the host supplies the mask of allowed tokens. The step runs first. Meanwhile the
 * host computes the masks, which go to the device in one copy, and then tokens are sampled:
 *
 *     session_queue_rows(s, chunks);   // like session_queue_step, without sampling
 *     session_queue_sample(s, masks);
 *     session_take_sampled(s, &id, &logprob);
 *
 * Can tokens with these parameters be sampled this way? session_sample_params gets the same
 * parameters without the grammar. */
bool session_can_mask(const Session *s, const llmc_params *p);
llmc_status session_queue_rows(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
/* Sample from the step that session_queue_rows has queued. mask: for each chunk with n_out = 1, in
 * order, one bit per token in (vocab + 31) / 32 words, read during the call; NULL: all tokens are
 * allowed. Until this call, no other step is accepted. E_RANGE: no step waits for masks. */
llmc_status session_queue_sample(Session *s, const uint32_t *const *mask, llmc_error *err);
/* Wait for the oldest sampling step and return its tokens and (if not NULL) their logprobs, one per
 * chunk with n_out = 1, in the order of the chunks. E_RANGE: no step is in flight. E_CHECK: logits
 * were NaN or all minus infinity; the id is -1 then. */
llmc_status session_take_sampled(Session *s, int32_t *ids, float *logprobs, llmc_error *err);
/* Discard the samples of steps in flight. */
void session_drop_sampled(Session *s);

#endif

/* A device: what runs the steps of a plan. Runtime, sessions and the engine know one through this
 * table alone; runtime/cpu/ and runtime/cuda/ fill it in, and another one would be a folder beside
 * them and a line in runtime.c.
 *
 *   Memory     Weights, KV pages and the plan's slots lie where the device wants them: session->slot[], kv_layer() and tensor() are
 *              addresses for its kernels, which the host adds to and does not follow. What a step
 * is made of (session->block: sizes, ids, positions, block tables; shapes in state/state.h) lies in
 * host memory, is filled before `forward` or `step`, and may be filled again when these return.
 *   Ownership  model_open makes what model_close frees; open makes session->on, kv and slots, close
 * frees them, also after an open that failed half-way. Plan, weights and session outlive what the
 * device makes of them.
 *   Threads    A model serves sessions on any threads at once. A session has one caller at a time; between enter and leave the calling
 *              thread belongs to the device (its context is current), so every enter that succeeded
 * has its leave.
 *   Errors     A status and its sentence. What failed within a call that returns nothing (pages: KvMem) is told by the next enter.
 *              After LLMC_E_DEVICE only close and model_close are of use; they work on a lost
 * device too. */
#ifndef LLMC_RUNTIME_DEVICE_H
#define LLMC_RUNTIME_DEVICE_H

#include "plan/target.h"
#include "runtime/runtime.h"
#include "runtime/weights/weights.h"

/* Tokens chosen on the device itself, so that decoding does not wait for the host (see
 * session_queue_step). */
typedef struct DeviceSampler {
	bool (*can)(const Session *s, const llmc_params *p);
	/* As session_sample_params, of parameters that `can` and sampler_check have passed. */
	llmc_status (*params)(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt,
	                      size_t n_prompt, const int32_t *output, size_t n_output,
	                      llmc_error *err);
	/* A step is about to be filled: is there room for what it samples? As enter where it
	 * succeeds; E_BUSY: too many under way. */
	llmc_status (*begin)(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
	/* Queue the step that the session's arrays describe; with `decode` every chunk is one row,
	 * and its block tables need not be filled. Without `pick` it samples when that is called,
	 * with masks as of session_queue_sample. */
	llmc_status (*step)(Session *s, const llmc_chunk *chunk, size_t n, bool decode, bool pick,
	                    llmc_error *err);
	llmc_status (*sample)(Session *s, const uint32_t *const *mask, llmc_error *err);
	llmc_status (*take)(Session *s, int32_t *ids, float *logprobs,
	                    llmc_error *err); /* as session_take_sampled */
	void (*drop)(Session *s);
} DeviceSampler;

typedef struct Device {
	/* ---- the machine. number: of a GPU, 0 elsewhere ---- */
	/* The target of plans that suits it best. E_MISSING: there is no such device here; E_RANGE:
	 * not of this number */
	llmc_status (*best_target)(int number, char out[32], llmc_error *err);
	/* Can plans of this target run, as far as is known before anything is opened? */
	llmc_status (*check_target)(const char *target, llmc_error *err);
	/* True when the machine cannot run the target; `why`: the reason, cut at `cap`. NULL in
	 * devices that know only through check_target. */
	bool (*lacks)(const char *target, char *why, size_t cap);
	/* The best target up to `target` whose flags the host's compiler accepts, NULL if there is
	 * none; `why`: what it refuses. NULL in devices without a host compiler. */
	const char *(*compiler_target)(const char *target, char *why, size_t cap);
	/* Does an artifact ship built kernels of this target that run there as they are? */
	bool (*ships)(const char *artifact, const char *target, int number);
	double (*bandwidth)(int number, int n_threads,
	                    double seconds); /* read bytes/s; 0: it could not be measured */
	llmc_status (*describe)(
	    char **json,
	    llmc_error *err); /* for doctor: an object (free() it); NULL: nothing to say */
	int max_sm;           /* largest value of the plan's n_sm */

	/* ---- a model: kernels and weights ---- */
	/* weights has been opened; it is packed from here. opt->n_threads > 0 */
	llmc_status (*model_open)(const Plan *plan, const RuntimeOptions *opt, Weights *weights,
	                          void **out, RuntimeTimes *times, llmc_error *err);
	void (*model_close)(void *model);
	const void *(*tensor)(const void *model,
	                      int tensor); /* its address for kernels, which only read it */
	/* Write into a tensor for adapters, elements that no running step reads. Any thread; done
	 * when it returns. */
	llmc_status (*put)(void *model, int tensor, int64_t offset, const void *data, size_t bytes,
	                   llmc_error *err);
	/* Ranks that are processes have all opened theirs, and all call this: their devices find a
	 * way to talk. NULL: it goes through the host */
	llmc_status (*meet)(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err);
	/* Compile the kernels ahead of time into the artifact, with a manifest. */
	llmc_status (*build_aot)(const Plan *plan, const char *artifact, llmc_log_fn log,
	                         void *log_user, llmc_error *err);

	/* ---- a session ---- */
	/* Bytes of the device's memory beside slots and pages, from limits and symbols; host_bytes:
	 * what the session has in the host's. -1: overflow */
	int64_t (*state_bytes)(const Session *s, int64_t host_bytes);
	/* The session's own state has been laid out. need: what the limits take */
	llmc_status (*open)(Session *s, const llmc_memory *need, llmc_error *err);
	void (*close)(Session *s);
	/* The sessions of all ranks have been opened, of a stage all that are of this process: they
	 * get to know each other before their first step. NULL: they need not; each is on its own
	 * thread from now on. */
	llmc_status (*join)(Session *const *rank, int n, llmc_error *err);
	/* Around anything that may touch pages: the device is this session's, and has not failed.
	 */
	llmc_status (*enter)(Session *s, llmc_error *err);
	void (*leave)(Session *s);
	/* Run the step that the session's arrays describe. *logits: [n_out, vocab] in host memory
	 * until the next step; logits NULL: not wanted. A session with a probe is told what each
	 * step of the plan has made. */
	llmc_status (*forward)(Session *s, int phase, const float **logits, llmc_error *err);
	llmc_status (*prepare)(
	    Session *s,
	    llmc_error *err); /* as session_prepare; NULL: there is nothing to prepare */
	/* As llmc_op_times, of the step that ran last; NULL: single ops are not measured there.
	 * s->again, where it is set, before each run */
	llmc_status (*op_times)(Session *s, int phase, llmc_op_time_fn fn, void *user,
	                        llmc_error *err);
	const DeviceSampler *sampler; /* NULL: tokens are sampled on the host */
} Device;

/* runtime.c: of a kind of target, and for plans of a target */
const Device *device_of(TargetKind kind);
llmc_status device_find(const char *target, const Device **out, llmc_error *err);

#endif

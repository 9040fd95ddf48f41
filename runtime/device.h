/* Interface to a device, which runs the steps of a plan. Runtime, sessions and the engine use a
 * device through this table only. runtime/cpu/ and runtime/cuda/ implement it; a new device is a
 * folder next to them and a line in runtime.c.
 *
 *   Memory     Weights, KV pages and the plan's slots are in device memory: session->slot[],
 *              kv_layer() and tensor() are addresses for kernels. The host does arithmetic on them
 *              but never dereferences them. The inputs of a step (session->block: sizes, ids,
 *              positions, block tables; see state/session_state.h) are in host memory. They are
 *              filled before `forward` or `step` and may be overwritten after these return.
 *   Ownership  model_close frees what model_open allocates. close frees session->on, kv and slots,
 *              which open allocates, also after an open that failed half-way. Plan, weights and
 *              session outlive the device's objects.
 *   Threads    A model serves sessions on any threads at once. A session has one caller at a time.
 *              Between enter and leave the device's context is current on the calling thread, so
 *              every successful enter needs its leave.
 *   Errors     A status and a message. The failure of a call without a return value (pages: KvMem)
 *              is reported by the next enter. After LLMC_E_DEVICE only close and model_close may be
 *              called; they also work on a lost device. */
#ifndef LLMC_RUNTIME_DEVICE_H
#define LLMC_RUNTIME_DEVICE_H

#include "base/free_memory.h"
#include "plan/target.h"
#include "runtime/runtime.h"
#include "runtime/weights/weights.h"

/* Sampling on the device, so that decoding does not wait for the host (see session_queue_step). */
typedef struct DeviceSampler {
	bool (*can)(const Session *s, const llmc_params *p);
	/* Like session_sample_params; the parameters have passed `can` and sampler_check. */
	llmc_status (*params)(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt,
	                      size_t n_prompt, const int32_t *output, size_t n_output,
	                      llmc_error *err);
	/* Called before a step is filled: checks that its samples fit in the queue. Like enter if
	 * it succeeds; E_BUSY: too many steps in flight. */
	llmc_status (*begin)(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
	/* Queue the step that the session's arrays describe. With `decode` every chunk is one row,
	 * and its block tables need not be filled. Without `sampling` sampling waits for `sample`,
	 * which receives the masks of session_queue_sample. */
	llmc_status (*step)(Session *s, const llmc_chunk *chunk, size_t n, bool decode,
	                    bool sampling, llmc_error *err);
	llmc_status (*sample)(Session *s, const uint32_t *const *mask, llmc_error *err);
	llmc_status (*take)(Session *s, int32_t *ids, float *logprobs,
	                    llmc_error *err); /* like session_take_sampled */
	void (*drop)(Session *s);
} DeviceSampler;

typedef struct Device {
	/* ---- the machine. number: of the GPU, 0 elsewhere ---- */
	/* Return the best target for this device. E_MISSING: no such device in this machine;
	 * E_RANGE: no device of this number. */
	llmc_status (*best_target)(int number, char out[32], llmc_error *err);
	/* Check whether plans of this target can run, as far as is known before anything is
	 * opened. */
	llmc_status (*check_target)(const char *target, llmc_error *err);
	/* Returns true if the machine cannot run the target; `why`: the reason, cut at `cap`. NULL
	 * for devices that can only use check_target. */
	bool (*lacks)(const char *target, char *why, size_t cap);
	/* Return the best target up to `target` whose flags the host's compiler accepts; `why`:
	 * flags that it rejects. Without a compiler, but with prebuilt kernels: the next older
	 * target. NULL if there is none. NULL for devices without a host compiler. */
	const char *(*compiler_target)(const char *target, char *why, size_t cap);
	/* Does the artifact contain built kernels of this target that run on this device? */
	bool (*ships)(const char *artifact, const char *target, int number);
	/* Memory that models and sessions can still allocate. */
	FreeMemory (*free_memory)(int number);
	double (*bandwidth)(int number, int n_threads,
	                    double seconds); /* read bandwidth in bytes/s; 0: not measured */
	llmc_status (*describe)(
	    char **json,
	    /* for `llmc doctor`: a JSON object (free() it); NULL: nothing to report */
	    llmc_error *err);
	int max_sm; /* upper bound of the plan's n_sm */

	/* ---- a model: kernels and weights ---- */
	/* weights has been opened; the device packs tensors from it. opt->n_threads > 0 */
	llmc_status (*model_open)(const Plan *plan, const RuntimeOptions *opt, Weights *weights,
	                          void **out, RuntimeTimes *times, llmc_error *err);
	void (*model_close)(void *model);
	const void *(*tensor)(const void *model,
	                      int tensor); /* address for kernels, which only read it */
	/* Write into an adapter tensor, to elements that no running step reads. Any thread;
	 * complete on return. */
	llmc_status (*put)(void *model, int tensor, int64_t offset, const void *data, size_t bytes,
	                   llmc_error *err);
	/* Use packed weights instead of those of the session's model from the next step on. No step
	 * runs. On success the caller closes the old ones. NULL: not supported. */
	llmc_status (*replace)(Session *s, Weights *w, llmc_error *err);
	/* Called by all ranks, if they are processes, after each has opened its model: the devices
	 * set up direct communication. NULL: they communicate through the host. */
	llmc_status (*meet)(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err);
	/* Compile the kernels ahead of time into the artifact, and write a manifest. */
	llmc_status (*build_aot)(const Plan *plan, const char *artifact, llmc_log_fn log,
	                         void *log_user, llmc_error *err);

	/* ---- a session ---- */
	/* Bytes of device memory besides slots and pages, from limits and symbols. host_bytes: the
	 * session's host memory. -1: overflow. */
	int64_t (*state_bytes)(const Session *s, int64_t host_bytes);
	/* The session's own state has been laid out. need: memory for the limits. */
	llmc_status (*open)(Session *s, const llmc_memory *need, llmc_error *err);
	void (*close)(Session *s);
	/* Called after the sessions of all ranks (of one stage, in this process) have been opened:
	 * they exchange addresses before their first step. From then on each is used on its own
	 * thread. NULL: not needed. */
	llmc_status (*join)(Session *const *rank, int n, llmc_error *err);
	/* Required around any access to pages: makes the device current and fails if it has
	 * failed. */
	llmc_status (*enter)(Session *s, llmc_error *err);
	void (*leave)(Session *s);
	/* Run the step that the session's arrays describe. *logits: [n_out, vocab] in host memory,
	 * valid until the next step; logits NULL: not wanted. If the session has a probe, passes it
	 * the values of each step of the plan. */
	llmc_status (*forward)(Session *s, int phase, const float **logits, llmc_error *err);
	llmc_status (*prepare)(
	    Session *s, llmc_error *err); /* like session_prepare; NULL: nothing to prepare */
	/* Like llmc_op_times, for the last step. Calls s->rerun, if set, before each run. NULL: the
	 * device cannot measure single ops. */
	llmc_status (*op_times)(Session *s, int phase, llmc_op_time_fn fn, void *user,
	                        llmc_error *err);
	const DeviceSampler *sampler; /* NULL: sampling runs on the host */
} Device;

/* runtime.c: device for a kind of target, and for a target's name */
const Device *device_of(TargetKind kind);
llmc_status device_find(const char *target, const Device **out, llmc_error *err);

#endif

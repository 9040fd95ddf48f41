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
 *              which open allocates, even if open failed half-way. Plan, weights and
 *              session outlive the device's objects.
 *   Threads    A model serves sessions on any threads at once. A session has one caller at a time.
 *              Between enter and leave the device's context is current on the calling thread, so
 *              every successful enter must be followed by a leave.
 *   Errors     A status and a message. The failure of a call without a return value (pages: KvMem)
 *              is reported by the next enter. After LLMC_E_DEVICE only close and model_close may be
 *              called; they also work on a lost device. */
#ifndef LLMC_RUNTIME_DEVICE_H
#define LLMC_RUNTIME_DEVICE_H

#include "base/free_memory.h"
#include "plan/target.h"
#include "runtime/runtime.h"
#include "runtime/weights/weights.h"

/* Functions of a device that samples, so that decoding does not wait for the host (see
 * session_queue_step). */
typedef struct DeviceSampler {
	bool (*can)(const Session *s, const llmc_params *p);
	/* Like session_sample_params; the parameters have passed `can` and sampler_check. */
	llmc_status (*params)(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt,
	                      size_t n_prompt, const int32_t *output, size_t n_output,
	                      llmc_error *err);
	/* Called before the arrays of a step are filled: checks that its samples fit in the queue,
	 * then does what enter does. E_BUSY: too many steps in flight. */
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
	/* ---- the machine. number: GPU number; 0 for other devices ---- */
	/* Return the best target for this device. E_MISSING: no such device in this machine;
	 * E_RANGE: no device of this number. */
	llmc_status (*best_target)(int number, char out[32], llmc_error *err);
	/* Check whether plans of this target can run, without opening a device. */
	llmc_status (*check_target)(const char *target, llmc_error *err);
	/* Return true if the machine cannot run the target; `why`: the reason, truncated to `cap`.
	 * NULL: only check_target can find out. */
	bool (*lacks)(const char *target, char *why, size_t cap);
	/* Return the best target up to `target` whose flags the host's compiler accepts; `why`:
	 * flags that it rejects. Without a compiler, but with prebuilt kernels, return the next
	 * older target. Return NULL if there is none. The member is NULL for devices without a host
	 * compiler. */
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
	/* Open a model. The caller has opened `weights`, from which the device packs tensors, and
	 * opt->n_threads > 0 */
	llmc_status (*model_open)(const Plan *plan, const RuntimeOptions *opt, Weights *weights,
	                          void **out, RuntimeTimes *times, llmc_error *err);
	void (*model_close)(void *model);
	const void *(*tensor)(const void *model,
	                      int tensor); /* address for kernels, which only read it */
	/* Write into an adapter tensor, to elements that no running step reads. Any thread;
	 * complete on return. */
	llmc_status (*put)(void *model, int tensor, int64_t offset, const void *data, size_t bytes,
	                   llmc_error *err);
	/* Replace the weights of the session's model by w from the next step on. No step runs
	 * during the call. On success the caller closes the old weights. NULL: not supported. */
	llmc_status (*replace)(Session *s, Weights *w, llmc_error *err);
	/* Called by all ranks, if they are processes, after each has opened its model: the devices
	 * set up direct communication. NULL: they communicate through the host. */
	llmc_status (*meet)(Runtime *rt, llmc_log_fn log, void *log_user, llmc_error *err);
	/* Compile the kernels ahead of time into the artifact, and write a manifest. */
	llmc_status (*build_aot)(const Plan *plan, const char *artifact, llmc_log_fn log,
	                         void *log_user, llmc_error *err);

	/* ---- a session ---- */
	/* Return the bytes of device memory besides slots and pages, from limits and symbols.
	 * host_bytes: the session's host memory. -1: overflow. */
	int64_t (*state_bytes)(const Session *s, int64_t host_bytes);
	/* Open the device's part of a session whose own state has been laid out. need: memory for
	 * the limits. */
	llmc_status (*open)(Session *s, const llmc_memory *need, llmc_error *err);
	void (*close)(Session *s);
	/* Called after the sessions of all ranks (of one stage, in this process) have been opened:
	 * the devices exchange addresses before the first step. From then on each session is used
	 * on its own thread. NULL: not needed. */
	llmc_status (*join)(Session *const *rank, int n, llmc_error *err);
	/* Required around any access to pages: makes the device current. Returns an error if the
	 * device is lost. */
	llmc_status (*enter)(Session *s, llmc_error *err);
	void (*leave)(Session *s);
	/* Run the step that the session's arrays describe. *logits: [n_out, vocab] in host memory,
	 * valid until the next step; logits NULL: not wanted. If the session has a probe, passes it
	 * the values of each step of the plan. */
	llmc_status (*forward)(Session *s, int phase, const float **logits, llmc_error *err);
	llmc_status (*prepare)(
	    Session *s, llmc_error *err); /* like session_prepare; NULL: nothing to prepare */
	/* Like llmc_op_times, for the last step. Before each run it calls s->rerun, if set. NULL:
	 * the device cannot measure single ops. */
	llmc_status (*op_times)(Session *s, int phase, llmc_op_time_fn fn, void *user,
	                        llmc_error *err);
	const DeviceSampler *sampler; /* NULL: sampling runs on the host */
} Device;

/* runtime.c: find the device for a kind of target, or for a target's name */
const Device *device_of(TargetKind kind);
llmc_status device_find(const char *target, const Device **out, llmc_error *err);

#endif

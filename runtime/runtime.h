/* The runtime's private contract: what api/ joins behind llmc.h. Never prints, exits, aborts; no globals.
 *
 *   Runtime  plan + weights + kernels: immutable after open, shared by sessions
 *   Session  KV pages, buffers, threads: one caller at a time */
#ifndef LLMC_RUNTIME_H
#define LLMC_RUNTIME_H

#include "base/error.h"
#include "ref/ref.h"
#include "runtime/plan/plan.h"

typedef struct Runtime Runtime;
typedef struct Session Session;

typedef struct RuntimeOptions {
	const char *artifact;      /* folder with kernels/ (and aot/); NULL for target ref */
	const char *weights;       /* checkpoint file or folder; NULL: plan->weights relative to artifact */
	int         n_threads;     /* for packing and compiling; 0: topology's */
	int         device;        /* number of the GPU, for targets cuda-... */
	bool        random_weights;
	bool        cache_packed;
	size_t      stage_bytes;   /* as in WeightsOptions */
	llmc_log_fn log;
	void       *log_user;
} RuntimeOptions;

typedef struct RuntimeTimes { double compile_s, pack_s, load_s; } RuntimeTimes;

/* plan (already read and checked) must outlive the runtime. */
llmc_status runtime_open(const Plan *plan, const RuntimeOptions *opt, Runtime **out, llmc_error *err);
void        runtime_close(Runtime *rt);
const Plan *runtime_plan(const Runtime *rt);
RuntimeTimes runtime_times(const Runtime *rt);
const void *runtime_tensor(const Runtime *rt, int tensor);   /* data in its layout */
/* Does the artifact ship built kernels of this target that run here as they are? device: number of the GPU */
bool        runtime_ships(const char *artifact, const char *target, int device);
/* Build the kernels of an artifact into its aot/<target>/ folder with a manifest (`llmc compile --aot`). */
llmc_status runtime_build_aot(const Plan *plan, const char *artifact, llmc_log_fn log, void *log_user, llmc_error *err);

/* Defaults filled in, ranges checked against the plan. */
llmc_status session_limits(const Plan *plan, const llmc_limits *lim, llmc_limits *out, llmc_error *err);
llmc_status session_memory(const Plan *plan, const llmc_limits *lim, llmc_memory *out, llmc_error *err);
/* Called after each step of a forward with each value that the step makes and holds in memory (verify). */
typedef void (*session_probe_fn)(void *user, const PlanStep *step, const char *value, const float *data,
                                 int64_t rows, int64_t width);
llmc_status session_open(Runtime *rt, const llmc_limits *lim, Session **out, llmc_error *err);
void        session_close(Session *s);
void        session_set_probe(Session *s, session_probe_fn fn, void *user);
const llmc_limits *session_limits_of(const Session *s);
llmc_status session_seq_new(Session *s, int32_t length_bound, llmc_seq *out, llmc_error *err);
llmc_status session_seq_fork(Session *s, llmc_seq from, llmc_seq *out, llmc_error *err);
llmc_status session_seq_trim(Session *s, llmc_seq q, int32_t len, llmc_error *err);
int32_t     session_seq_len(const Session *s, llmc_seq q);
void        session_seq_free(Session *s, llmc_seq q);
/* session_kv.c: see llmc_seq_save; and for the engine: a new sequence begins with the pages that the prefix cache (once
 * kv_prefix_open has made one) holds of the prompt, and all its tokens are told after each step. */
llmc_status session_seq_save(Session *s, llmc_seq q, void *buf, size_t cap, size_t *need, llmc_error *err);
llmc_status session_seq_load(Session *s, const void *buf, size_t n, llmc_seq *out, llmc_error *err);
int32_t     session_prefix_find(Session *s, llmc_seq q, const int32_t *tok, int32_t n_tok); /* positions found */
void        session_prefix_keep(Session *s, llmc_seq q, const int32_t *tok);
llmc_status session_forward(Session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err);
void        session_stats(const Session *s, llmc_stats *out);
/* Do now what first steps would do later: decode graphs of every size (GPU). */
llmc_status session_prepare(Session *s, llmc_error *err);
/* As llmc_op_times. */
llmc_status session_op_times(Session *s, llmc_op_time_fn fn, void *user, llmc_error *err);

/* Decoding without waiting for the host (GPU). A step is queued and the call returns; the tokens that it picks are read
 * later, and the next step may take them before the host has seen them:
 *
 *     session_pick_params(s, q, params, prompt, n_prompt);
 *     session_step(s, the prompt's chunk, n_out 1);
 *     for (;;) {
 *             session_step(s, a chunk of q with tok NULL, n_tok 1, n_out 1);   // takes what the step before picked
 *             session_picked(s, &id, &logprob);                                // what that was
 *     }
 *
 * Can this session pick tokens by these parameters on its device? */
bool        session_can_pick(const Session *s, const llmc_params *p);
/* How tokens of a sequence are picked from now on. Penalties count prompt and output; the first pick is number n_output of
 * the seed's stream: a sequence that was put aside goes on where it was. */
llmc_status session_pick_resume(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt, size_t n_prompt,
                                const int32_t *output, size_t n_output, llmc_error *err);
llmc_status session_pick_params(Session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt, size_t n_prompt,
                                llmc_error *err);
/* Queue a step. n_out of a chunk is 0, or 1: a token is picked from its last row. Two steps that pick may be under way; a
 * third is E_BUSY. E_RANGE, E_FULL as session_forward. Sequences may be trimmed and freed while steps are under way. */
llmc_status session_step(Session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
/* Wait for the oldest step that picks: its tokens and (when not NULL) their logprobs, a chunk with n_out = 1 each, in the
 * order of its chunks. E_RANGE: no step is under way. E_CHECK: logits were NaN or all minus infinity; ids are -1 there. */
llmc_status session_picked(Session *s, int32_t *ids, float *logprobs, llmc_error *err);
/* Forget the picks of steps under way. */
void        session_step_drop(Session *s);

/* cuda/ */
/* Best target for GPU number `device` of this machine; E_MISSING: no driver, no GPU; E_RANGE: no such number. */
llmc_status cuda_target(int device, char out[32], llmc_error *err);
/* Do images of a target that were built ahead of time run on that GPU? false also when there is none. */
bool        cuda_target_built_runs(int device, const char *target);
/* What `llmc doctor` says of CUDA: a JSON object (free() it) with driver, NVRTC, devices, cuBLASLt, NCCL, each found or with
 * how to get it. */
llmc_status cuda_describe(char **json, llmc_error *err);

/* Read bytes/s of a GPU's memory; 0: it could not be measured. */
double      cuda_bandwidth(int device);

/* cpu/ */
int    topology_threads(void);                                /* real cores within affinity mask and cgroup quota, >= 1 */
int    topology_describe(char *buf, size_t cap);              /* a sentence for doctor; as snprintf */
/* best target of this processor: "cpu-v4", "cpu-v3", "cpu-generic" */
const char *isa_best(void);
bool   isa_runs(const char *target);                          /* by cpuid */
double cpu_bandwidth(int n_threads, double seconds);          /* read bytes/s */
/* The C compiler that kernels are built with ($LLMC_CC, cc, gcc, clang): path and version line; E_MISSING when there is none */
llmc_status cc_find(char *path, size_t path_cap, char *version, size_t version_cap, llmc_error *err);

#endif

/* What api/ shares between its files: the structs behind the opaque handles. */
#ifndef LLMC_API_H
#define LLMC_API_H

#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "compiler/compile.h"
#include "plan/target.h"
#include "runtime/comm/mpi_world.h"
#include "runtime/device.h"
#include "runtime/draft/draft.h"

/* "cuda:2" -> 1 number, 2; "cuda" -> none, any will do; "cuda:0,3" -> 2 of them, one a rank */
typedef struct GpuList {
	bool any;
	int n, number[PLAN_MAX_RANKS];
} GpuList; /* any: it is a GPU */

struct llmc_model {
	atomic_int refs;
	Arena arena; /* spec, plan, texts */
	const Spec *spec;
	const Plan *plan;  /* of this process' first rank */
	const Plan **rank; /* [spec->tp] of all ranks; of another process': NULL */
	int first, n_own;  /* ranks of this process */
	MpiWorld *world;   /* ranks that a launcher has started; NULL */
	const char *plan_text, *plan_json;
	char *source;           /* the path that was opened, absolute: verify opens it again */
	char *artifact;         /* folder with the generated files; NULL: none have been written */
	char *temporary;        /* the same when it goes once the model is open */
	char *weights;          /* absolute path of the checkpoint, or NULL */
	const char *const *set; /* overrides in force, NULL-terminated */
	bool random_weights;
	bool unfused; /* each op of the graph is a step, for probes */
	int n_threads;
	int gpu;      /* number of the first GPU; -1: none */
	GpuList gpus; /* as the caller named them; then one for each rank of this process */
	llmc_tokenizer *tokenizer; /* NULL: none */
	Runtime *rt;               /* NULL when opened with no_weights */
	double compile_s, load_s;
};

struct llmc_session {
	llmc_model *model;
	Session *s;
	struct Engine *generate; /* the inline engine of llmc_generate; NULL until its first call */
};

/* Has a row the same bits whatever rows run beside it? What guesses need. */
bool model_rows_alike(const llmc_model *m);

/* What a path is. */
typedef enum SourceKind {
	SOURCE_YAML,
	SOURCE_ARTIFACT,
	SOURCE_HF,
	SOURCE_GGUF,
	SOURCE_FLM
} SourceKind;
llmc_status source_kind(const char *path, SourceKind *kind, llmc_error *err);

/* Spec of any source. Warnings go to log. */
llmc_status source_spec(const char *path, SourceKind kind, const char *const *set,
                        const char *weights, bool allow_unknown_keys, Arena *arena, llmc_log_fn log,
                        void *log_user, const Spec **out, llmc_error *err);
llmc_status device_gpus(const char *device, GpuList *out, llmc_error *err);
/* "cpu" or "cuda" and an arch (NULL: what is at hand) -> "cpu-v3", "cuda-sm_90a"; "ref" -> "ref";
 * E_INPUT for unknown words */
llmc_status target_name(const char *device, const char *arch, bool must_run, char out[32],
                        llmc_error *err);

/* As llmc_open, with a plan of unfused steps, of which nothing is kept in the cache but built
 * kernels. */
llmc_status model_open_unfused(const char *path, const llmc_options *opt, llmc_model **out,
                               llmc_error *err);

/* Copy a string into (buf, cap, *need) as llmc.h promises. */
llmc_status copy_out(const char *s, size_t n, char *buf, size_t cap, size_t *need, llmc_error *err);

#endif

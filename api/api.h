/* Types and helpers shared by the files of api/: the structs of the opaque handles. */
#ifndef LLMC_API_H
#define LLMC_API_H

#include <stdatomic.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "compiler/compile.h"
#include "plan/target.h"
#include "runtime/comm/mpi_world.h"
#include "runtime/device.h"
#include "runtime/draft/draft.h"

/* GPUs of --device. "cuda:2" is one number; "cuda:0,3" one number per rank; "cuda" leaves the
 * choice open. */
typedef struct GpuList {
	bool any;
	int n, number[PLAN_MAX_RANKS];
} GpuList; /* any: a GPU, but no number given */

typedef struct InputPrompts {
	const llmc_input_prompt *list;
	size_t n;
} InputPrompts;

typedef struct Labels {
	const char **name; /* [n] */
	size_t n;
	bool several; /* several: labels are independent, so any number of them may apply */
} Labels;

struct llmc_model {
	atomic_int refs;
	Arena arena; /* memory of spec, plan and strings */
	const Spec *spec;
	const Plan *plan;    /* plan of this process's first rank */
	const Plan **rank;   /* [n_rank] plans of all ranks; NULL for ranks in other processes */
	int n_rank;          /* ranks of all stages, or the two devices of placement.cpu */
	int first, n_own;    /* ranks of this process */
	char cpu_target[32]; /* target of the part on the CPU if there are two devices; else "" */
	MpiWorld *world;     /* ranks that a launcher has started; NULL: none */
	const char *plan_text, *plan_json;
	char *source;           /* path that was opened, absolute; verify opens it again */
	char *artifact;         /* folder of the generated files; NULL: not written */
	char *temporary;        /* artifact folder to remove once the model is open; NULL: none */
	char *checkpoint;       /* absolute path of the checkpoint, or NULL */
	char *weights;          /* equal to checkpoint, but NULL with random weights */
	const char *mmproj;     /* file with the vision tower of a GGUF model, or NULL */
	const char *const *set; /* overrides in force, NULL-terminated */
	bool random_weights;
	bool no_weights, no_fit, cache_packed; /* as in llmc_options */
	int64_t host_memory;
	bool unfused; /* one step per op of the graph, for probes */
	/* artifact is a folder of the cache or `temporary`, which only llmc writes */
	bool in_cache;
	bool skip_built; /* the artifact's built kernels are not trusted */
	int n_threads;
	int gpu; /* index of the first GPU; -1: none */
	/* GPUs that the caller names; later one GPU per rank of this process */
	GpuList gpus;
	llmc_tokenizer *tokenizer; /* NULL: none */
	llmc_advice advice;        /* sampling parameters that the model's files recommend */
	InputPrompts prompts;
	Labels labels;
	Runtime *rt; /* NULL when opened with no_weights */
	double compile_s, load_s;
};

struct llmc_session {
	llmc_model *model;
	Session *s;
	struct Engine *generate; /* engine of llmc_generate; NULL until its first call */
};

struct llmc_engine {
	llmc_session *session, *second; /* session, and session of the draft model or NULL */
	struct Engine *e;
};

/* True if the result of a row does not depend on other rows of its step. Speculative decoding needs
 * this. */
bool model_rows_independent(const llmc_model *m);

/* Kind of file or folder that a path names. */
typedef enum SourceKind {
	SOURCE_YAML,
	SOURCE_ARTIFACT,
	SOURCE_HF,
	SOURCE_GGUF,
	SOURCE_FLM
} SourceKind;
llmc_status source_kind(const char *path, SourceKind *kind, llmc_error *err);

/* Read the Spec of any source. Warnings go to log. */
llmc_status source_spec(const char *path, SourceKind kind, const char *const *set,
                        const char *weights, const ImportOptions *o, Arena *arena, llmc_log_fn log,
                        void *log_user, const Spec **out, llmc_error *err);
/* For llmc_options.images: describe the model with images, if its checkpoint has a tower. */
llmc_status model_add_images(llmc_model *m, const char *path, SourceKind kind,
                             const llmc_options *opt, llmc_error *err);
/* api_mmproj.c: find the file with the tower of a GGUF model that is opened with images, check it,
 * and add the image token to m->set. The file is opt->mmproj, or one in the folder of the model. If
 * a file from the folder does not fit, the model opens without it and with a warning, unless images
 * are required. */
llmc_status model_find_mmproj(llmc_model *m, const char *path, SourceKind kind,
                              const llmc_options *opt, llmc_error *err);
/* True if an override is vision.part=rows. */
bool set_has_rows(const char *const *set);
/* Append an override; returns a list in the arena */
const char *const *set_with(const char *const *set, const char *one, Arena *arena);
/* Return the checkpoint of the model: the caller's, else the one that the description names
 * (relative to its file), else the source itself. NULL: none. */
char *source_weights(const char *source, SourceKind kind, const Spec *spec, const llmc_options *opt,
                     Arena *arena);
/* Return the model that provides tensors to its draft checkpoint, in the arena; NULL: none */
const ImportModel *import_model(const llmc_model *m, Arena *arena);
/* For llmc_options.draft: add an output of the rows that the draft checkpoint reads to the
 * description. m->weights is set.
 */
llmc_status model_add_draft(llmc_model *m, const char *path, SourceKind kind,
                            const llmc_options *opt, llmc_error *err);
/* Check that a draft checkpoint fits m. E_INPUT: m does not output the rows that it reads, or has
 * other tokens. */
llmc_status model_check_draft(const llmc_model *m, const llmc_model *draft, llmc_error *err);
llmc_status device_gpus(const char *device, GpuList *out, llmc_error *err);
/* Name a target: device "cpu" or "cuda" with an arch (NULL: the arch of this machine) gives
 * "cpu-v3" or "cuda-sm_90a"; "ref" gives "ref". E_INPUT: unknown device or arch. */
llmc_status target_name(const char *device, const char *arch, bool must_run, char out[32],
                        llmc_error *err);

/* Copy the caller's limits, which may be NULL. Limits that are 0 get the values of the
 * description. */
llmc_limits limits_take(const llmc_model *m, const llmc_limits *lim);
/* Refuse a model whose weights leave no memory for the smallest session on this host. */
llmc_status fit_weights(const llmc_model *m, llmc_error *err);
/* Choose context and kv_tokens that are 0 by free memory, and refuse a session that exceeds it. */
llmc_status fit_session(const llmc_model *m, llmc_limits *lim, llmc_error *err);
/* Like fit_session, for an engine: called before the defaults of its limits are set. */
llmc_status fit_engine(const llmc_model *m, const llmc_engine_options *o, llmc_limits *lim,
                       llmc_error *err);

/* Variant of llmc_open for a plan with unfused steps. The cache stores its built kernels only. */
llmc_status model_open_unfused(const char *path, const llmc_options *opt, llmc_model **out,
                               llmc_error *err);

/* ---- api_image.c ---- */

const struct ImageRules *image_processor_rules(const llmc_image_processor *p);

/* ---- artifact_trust.c ---- */

typedef struct TrustPlans { /* plans of an artifact for one target */
	int n;
	const char *const *file; /* [n] names in the artifact */
	const Plan *const *plan;
} TrustPlans;
/* Compare an artifact with the files of these compiled plans. E_INPUT: a file differs, or there is
 * an unknown file that a kernel could include. */
llmc_status artifact_compare(const char *artifact, const Compiled *const *made, size_t n, Arena *a,
                             llmc_error *err);
/* Record in the cache that the sources of these plans may run, and that this user's compile has
 * built aot/<name>/ for each of the n_built names. If n_built > 0, a failure is logged. */
void artifact_mark_trusted(const char *artifact, const TrustPlans *t, const char *const *built,
                           int n_built, Arena *a, llmc_log_fn log, void *log_user);
bool artifact_sources_trusted(const char *artifact, const TrustPlans *t, Arena *a);
bool artifact_built_trusted(const char *artifact, const char *name, Arena *a);

/* Read a JSON file of a checkpoint's folder. NULL: there is none, or it is not JSON. The arena owns
 * the tree; arena_done releases it earlier. */
json_t *folder_json(const char *folder, const char *name, Arena *a);
/* Read the sampling advice of a checkpoint, a GGUF or a folder. *out stays empty if there is none,
 * or if it cannot be read. */
void advice_read(const char *path, Arena *a, llmc_advice *out);
/* Read the prompts of an embedding model from a folder of sentence-transformers; *out stays empty
 * for other folders. */
void prompts_read(const char *folder, Arena *a, InputPrompts *out);
/* Read the names of n labels from a folder or a GGUF file; NULL: neither has names, so labels are
 * numbered. */
void labels_read(const char *path, size_t n, Arena *a, Labels *out);

/* Check that the grammar of p, if any, fits the model. E_INPUT: the tokens of the grammar's
 * tokenizer differ from those of the model's tokenizer; if the model has none, only their number is
 * compared. p may be NULL. */
llmc_status api_check_grammar(const llmc_model *m, const llmc_params *p, llmc_error *err);

/* Copy a string into (buf, cap, *need) as specified in llmc.h. */
llmc_status copy_out(const char *s, size_t n, char *buf, size_t cap, size_t *need, llmc_error *err);

#endif

/* The llmc command: one thin file a subcommand, over llmc.h; of the library's inside only base/
 * (JSON text, numbers).
 *
 * Exit codes: 0 done, 1 the user's input is wrong, 2 the machine lacks something, 3 a check failed,
 * 130 interrupted. Results go to stdout, progress and complaints to stderr. */
#ifndef LLMC_CLI_H
#define LLMC_CLI_H

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "llmc.h"

enum { EXIT_INPUT = 1, EXIT_MACHINE = 2, EXIT_CHECK = 3, EXIT_INTERRUPTED = 130 };

/* One option of a command line; `--name value`, `--name=value`, `-s value`. */
typedef enum OptKind {
	OPT_FLAG,
	OPT_INT,
	OPT_INT64,
	OPT_FLOAT,
	OPT_U64,
	OPT_TEXT,
	OPT_LIST,
	OPT_BYTES,
	OPT_GROUP
} OptKind;
typedef struct Opt {
	OptKind kind;
	char letter;      /* 0: none */
	const char *name; /* group: its heading */
	const char *arg;  /* name of the value in the help */
	void *to; /* bool, int32_t, int64_t, float, uint64_t, const char *, List; bytes: int64_t */
	const char *help;
} Opt;
typedef struct List {
	const char **v;
	size_t n;
} List;                                    /* v is NULL-terminated once n > 0 */
bool list_add(List *l, const char *value); /* which stays where it is; false: out of memory */

typedef struct Command {
	const char *name, *usage, *summary, *examples;
	int (*run)(int argc, char **argv);
} Command;

/* Options shared by commands that open a model. */
typedef struct Common {
	const char *device, *arch, *weights, *kv, *quantize, *lora, *out_dir;
	const char *mtp; /* of --draft mtp: "mtp.part=rows" or "mtp.part=head"; NULL */
	int32_t threads, tp, pp;
	List set;
	bool quiet, verbose, json, random_weights, cache_packed, allow_unknown_keys;
	int32_t context, seqs, chunk;
	int64_t memory; /* bytes; 0: not limited */
} Common;
#define OPT_ALLOW_UNKNOWN_KEYS(flag)                                                               \
	{ OPT_FLAG,                                                                                \
	  0,                                                                                       \
	  "allow-unknown-keys",                                                                    \
	  NULL,                                                                                    \
	  &(flag),                                                                                 \
	  "warn of keys and tensors of a checkpoint that its family does not know, instead of "    \
	  "refusing" }
#define OPT_COMMON(c)                                                                                   \
	{ OPT_GROUP, 0, "Model", NULL, NULL, NULL },                                                    \
	    { OPT_TEXT,                                                                                 \
	      0,                                                                                        \
	      "device",                                                                                 \
	      "cpu|cuda|ref",                                                                           \
	      &(c).device,                                                                              \
	      "where to run: cpu, cuda, cuda:N or cuda:0,1 (a rank each), or ref, the plain fp32 "      \
	      "interpreter [cpu]" },                                                                    \
	    { OPT_TEXT,                                                                                 \
	      0,                                                                                        \
	      "arch",                                                                                   \
	      "NAME",                                                                                   \
	      &(c).arch,                                                                                \
	      "what kernels are made for: generic, v3, vnni, v4, amx; sm_80, sm_90a, ... [what "        \
	      "is at hand]" },                                                                          \
	    { OPT_INT, 't',          "threads",                                                         \
	      "N",     &(c).threads, "threads [real cores within quota and affinity]" },                \
	    { OPT_TEXT, 'w',          "weights",                                                        \
	      "PATH",   &(c).weights, "checkpoint, when the model does not say" },                      \
	    { OPT_FLAG,                                                                                 \
	      0,                                                                                        \
	      "random-weights",                                                                         \
	      NULL,                                                                                     \
	      &(c).random_weights,                                                                      \
	      "no checkpoint: seeded noise" },                                                          \
	    { OPT_FLAG,          0,                                                                     \
	      "cache-packed",    NULL,                                                                  \
	      &(c).cache_packed, "keep packed weights in the cache and read them next time" },          \
	    OPT_ALLOW_UNKNOWN_KEYS((c).allow_unknown_keys),                                             \
	    { OPT_LIST,    0,        "set",                                                             \
	      "KEY=VALUE", &(c).set, "override a key of the description; may be repeated" },            \
	    { OPT_TEXT,                                                                                 \
	      0,                                                                                        \
	      "quantize",                                                                               \
	      "SCHEME",                                                                                 \
	      &(c).quantize,                                                                            \
	      "quantise a 16-bit checkpoint while it is read: q4_k, q8_0, eetq, awq, ... (same "        \
	      "as --set quant.scheme=)" },                                                              \
	    { OPT_TEXT,                                                                                 \
	      0,                                                                                        \
	      "lora",                                                                                   \
	      "DIR",                                                                                    \
	      &(c).lora,                                                                                \
	      "add a low-rank adapter that PEFT has saved to the weights (same as --set "               \
	      "lora.path=)" },                                                                          \
	    { OPT_TEXT,                                                                                 \
	      0,                                                                                        \
	      "kv",                                                                                     \
	      "TYPE",                                                                                   \
	      &(c).kv,                                                                                  \
	      "type of cached keys and values: f16, f32, bf16, int8, f8, int8_32, f8_32, int6, "        \
	      "int4 (same as --set kv.dtype=)" },                                                       \
	    { OPT_INT, 0,       "pp",                                                                   \
	      "N",     &(c).pp, "pipeline stages, of contiguous layers (same as --set parallel.pp=)" }, \
	    { OPT_INT,                                                                                  \
	      0,                                                                                        \
	      "tp",                                                                                     \
	      "N",                                                                                      \
	      &(c).tp,                                                                                  \
	      "ranks that share each layer: threads of this process, or GPUs (same as --set "           \
	      "parallel.tp=); under mpirun as many as it starts" },                                     \
	    { OPT_TEXT,     0,                                                                          \
	      "artifact",   "DIR",                                                                      \
	      &(c).out_dir, "write the generated files here [the cache]" },                             \
	    { OPT_GROUP, 0, "Limits", NULL, NULL, NULL },                                               \
	    { OPT_INT,                                                                                  \
	      'c',                                                                                      \
	      "context",                                                                                \
	      "N",                                                                                      \
	      &(c).context,                                                                             \
	      "positions of one sequence [what the model was trained for, at most 4096]" },             \
	    { OPT_INT, 0, "seqs", "N", &(c).seqs, "sequences at once [1]" },                            \
	    { OPT_INT, 0, "chunk", "N", &(c).chunk, "tokens of one prefill step [512]" },               \
	    { OPT_BYTES, 0, "memory", "SIZE", &(c).memory, "refuse to use more than this, as 8G" },     \
	    { OPT_GROUP, 0, "Output", NULL, NULL, NULL },                                               \
	    { OPT_FLAG, 0, "json", NULL, &(c).json, "one JSON document on stdout, nothing else" },      \
	    { OPT_FLAG, 'q', "quiet", NULL, &(c).quiet, "no progress" },                                \
	    { OPT_FLAG, 'v', "verbose", NULL, &(c).verbose, "say more" }

typedef struct Sampling {
	llmc_params p; /* speculate 0: never, unlike in llmc.h */
	List stop;
} Sampling;
#define OPT_KIND_FLOAT OPT_FLOAT, "X"
#define OPT_KIND_INT OPT_INT, "N"
#define OPT_KIND_BOOL OPT_FLAG, NULL
#define OPT_ROW(kind, arg, field, text) { kind, 0, #field, arg, &smp.p.field, text },
#define OPT_ROW_OF(...) OPT_ROW(__VA_ARGS__)
#define OPT_SAMPLING_ROW(kind, field, least, most, http_least, http_most, http_default, alias,     \
                         text)                                                                     \
	OPT_ROW_OF(OPT_KIND_##kind, field, text)
/* Needs a Sampling smp. Rows of LLMC_SAMPLING_OPTIONS are options of the same name, written with
 * dashes. */
#define OPT_SAMPLING                                                                                    \
	{ OPT_GROUP, 0, "Sampling", NULL, NULL, NULL },                                                 \
	    { OPT_INT,           'n',                                                                   \
	      "max-tokens",      "N",                                                                   \
	      &smp.p.max_tokens, "largest number of new tokens; -1: until the context is full [256]" }, \
	    LLMC_SAMPLING_OPTIONS(OPT_SAMPLING_ROW){ OPT_U64,     0,                                    \
		                                     "seed",      "N",                                  \
		                                     &smp.p.seed, "same seed, same tokens [0]" },       \
	    { OPT_LIST, 0, "stop", "TEXT", &smp.stop, "stop at this string; may be repeated" },         \
	    { OPT_INT,                                                                                  \
	      0,                                                                                        \
	      "speculate",                                                                              \
	      "N",                                                                                      \
	      &smp.p.speculate,                                                                         \
	      "draft up to N tokens per step by n-gram lookup where that is faster; the output "        \
	      "is the same; 0: never [15]" }
#define OPT_DRAFT(to)                                                                              \
	{ OPT_TEXT,                                                                                \
	  0,                                                                                       \
	  "draft",                                                                                 \
	  "MODEL",                                                                                 \
	  &(to),                                                                                   \
	  "a smaller model of the same tokenizer that guesses as well; mtp: the head for that in " \
	  "the model's own checkpoint [none]" }

/* Parse argv; positional arguments go to args (at most max_args). Prints and exits on --help and on
 * mistakes. */
size_t opt_parse(const Command *cmd, const Opt *opt, size_t n_opt, int argc, char **argv,
                 const char **args, size_t max_args);
#define OPT_PARSE(cmd, opt, argc, argv, args)                                                      \
	opt_parse(cmd, opt, sizeof(opt) / sizeof *(opt), argc, argv, args,                         \
	          sizeof(args) / sizeof *(args))
/* Settings from a YAML file (--config), environment variables and the command line; the last wins:
 * the arguments with those of the file and the environment in front. A variable is prefix + NAME of
 * the option in capitals, as LLMC_SERVE_PORT. *models: what the file or the environment names, for
 * a command line that names none. Prints and exits on mistakes. */
char **settings_merge(const char *prefix, const Opt *opt, size_t n_opt, int argc, char **argv,
                      int *n_out, List *models);
int opt_usage_error(const Command *cmd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "llmc: text" in red on a terminal; returns the exit code that goes with the status */
int fail_with(const llmc_error *err);
int exit_code(llmc_status s);
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A line of progress on stderr; on a terminal the next one replaces it */
void progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);
bool colour_on(FILE *f);

/* The llmc_options of Common, log to stderr; they point into *out, which stays where it is, and set
 * is free()d. False: out of memory. */
typedef struct OpenOptions {
	llmc_options o;
	const char **set;
	char kv[64], tp[64], pp[64], quantize[64], lora[PATH_MAX + 16];
} OpenOptions;
bool options_of(const Common *c, bool no_weights, OpenOptions *out);
llmc_status open_model(Common *c, const char *path, bool no_weights, llmc_model **m,
                       llmc_error *err);
llmc_limits limits_of(const Common *c);
/* Refuses when weights + KV + scratch exceed --memory. */
llmc_status check_memory(const llmc_model *m, const Common *c, const llmc_limits *lim,
                         llmc_error *err);
llmc_params params_of(const Sampling *s);

/* The model that guesses ("mtp": the head in the model's own checkpoint), where the other one runs;
 * what it takes goes from *memory, where that is bounded. Before its model is opened:
 * draft_prepare. */
void draft_prepare(Common *c, const char *draft);
llmc_status draft_open(const Common *c, const char *path, const char *draft, const llmc_limits *lim,
                       int64_t *memory, llmc_model **out, llmc_error *err);
/* Who makes the tokens of run and chat */
typedef struct TokenSource {
	llmc_session *s;
	llmc_engine *e;
	llmc_model *draft;
} TokenSource; /* a session, or, with a draft, an engine */
llmc_status token_source_open(Common *c, llmc_model *m, const char *path, const char *draft,
                              const Sampling *smp, llmc_limits *lim, TokenSource *out,
                              llmc_error *err);
llmc_status token_source_run(TokenSource *s, const int32_t *tok, size_t n_tok, const llmc_params *p,
                             llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err);
void token_source_drafts(const TokenSource *s, char *buf,
                         size_t cap); /* a line's end: how many came true; empty without a draft */
void token_source_close(TokenSource *s);

/* "1,2,3" -> ids; false on anything else. *ids is malloc'd. */
bool parse_ids(const char *text, int32_t **ids, size_t *n);
bool write_npy(const char *path, const float *x, size_t rows,
               size_t cols); /* NumPy's .npy, format 1.0 */
bool parse_sizes(const char *text, int32_t *v, size_t cap, size_t *n);
/* file's content, "-": stdin; NULL with a complaint */
char *read_all(const char *path, size_t *n);
/* tokenize into malloc'd ids */
llmc_status tokenize_alloc(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags,
                           int32_t **ids, size_t *n, llmc_error *err);
llmc_status chat_alloc(const llmc_tokenizer *t, const char *messages, const char *options,
                       char **text, size_t *n, llmc_error *err);
const char *human_bytes(double bytes, char buf[32]);
double now(void);                                 /* seconds, monotonic */
void json_text(FILE *f, const char *s, size_t n); /* quoted and escaped; invalid UTF-8 as U+FFFD */

/* Ctrl-C: sets a flag the first time, ends the process the second time. */
void interrupt_install(void);
bool interrupted(void);

extern const Command cmd_import, cmd_compile, cmd_plan, cmd_run, cmd_chat, cmd_serve, cmd_bench,
    cmd_bench_serve, cmd_bench_mla, cmd_verify, cmd_eval, cmd_quantize, cmd_tokenize, cmd_cache,
    cmd_doctor;

#endif

/* Shared parts of the llmc command. Each subcommand is one thin file over llmc.h. Of the library's
 * internal headers they use only base/ (JSON text, numbers).
 *
 * Exit codes: 0 done, 1 the user's input is wrong, 2 the machine lacks something, 3 a check failed,
 * 130 interrupted. Results go to stdout, progress and errors to stderr. */
#ifndef LLMC_CLI_H
#define LLMC_CLI_H

#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/number.h"
#include "llmc.h"

enum { EXIT_INPUT = 1, EXIT_MACHINE = 2, EXIT_CHECK = 3, EXIT_INTERRUPTED = 130 };

/* One option of a command line: `--name value`, `--name=value` or `-s value`. */
typedef enum OptKind {
	OPT_FLAG,
	OPT_INT,
	OPT_INT64,
	OPT_FLOAT,
	OPT_U64,
	OPT_TEXT,
	OPT_LIST,
	OPT_BYTES,
	OPT_BYTES0, /* a size that may be 0 */
	OPT_SIZES,  /* one or two sizes, "24G,64G": int64_t [2] */
	OPT_GROUP
} OptKind;
typedef struct Opt {
	OptKind kind;
	char letter;      /* one-letter name; 0: none */
	const char *name; /* OPT_GROUP: the heading */
	const char *arg;  /* placeholder of the value in the help */
	/* destination: bool, int32_t, int64_t, float, uint64_t, const char * or List; bytes:
	 * int64_t */
	void *to;
	const char *help;
} Opt;
typedef struct List {
	const char **v;
	size_t n;
} List; /* v is NULL-terminated if n > 0 */
/* stores the pointer, without a copy; false: out of memory */
bool list_add(List *l, const char *value);

typedef struct Command {
	const char *name, *usage, *summary, *examples;
	int (*run)(int argc, char **argv);
} Command;

/* Options shared by commands that open a model. */
typedef struct Common {
	const char *device, *arch, *weights, *kv, *quantize, *lora, *out_dir;
	const char *mmproj;        /* file with the vision tower of a GGUF model */
	const char *chat_template; /* replaces that of the model; NULL: none */
	const char *device_option; /* option that sets device, for messages; NULL: --device */
	/* draft head or model that the model will be used with: "mtp" or a path; NULL: none */
	const char *draft;
	/* model for which this one drafts; NULL: this is not a draft model */
	const llmc_model *draft_of;
	bool mtp_head;        /* open the model's MTP head instead of the model */
	const char *fit_mode; /* "auto", "never"; NULL: auto */
	bool images;          /* open the model with images (vision.part=rows) */
	bool images_if_any;   /* open it with images if it has a vision tower */
	int32_t threads, tp, pp;
	List offload, override_tensor;
	int32_t n_cpu_moe;
	/* placement chosen by --offload auto; text empty: not chosen yet */
	llmc_placement placed;
	float host_bandwidth;    /* bandwidth of host memory in GB/s; 0: measure it */
	const char *machine_gpu; /* GPU named by `llmc plan --gpu`; NULL: the GPU of this machine */
	List set;
	bool quiet, verbose, json, random_weights, cache_packed, allow_unknown_keys, trust_artifact;
	int32_t context, seqs, chunk;
	int64_t memory[2]; /* bytes of the device, and with --offload of the host; 0: no limit */
	/* limits of the session that will be opened; open_model chooses those that are 0, or
	 * refuses the model. NULL: no session */
	llmc_limits *fit;
	char fit_text[512]; /* the chosen limits, in one line */
} Common;
#define OPT_FIT(c)                                                                                 \
	{ OPT_GROUP, 0, "Memory", NULL, NULL, NULL },                                              \
	    { OPT_TEXT,                                                                            \
	      0,                                                                                   \
	      "fit",                                                                               \
	      "auto|never",                                                                        \
	      &(c).fit_mode,                                                                       \
	      "auto: choose context and KV by the free memory and refuse what exceeds it; never: " \
	      "context of at most 4096, and no check [auto]" }
/* clang-format off: a table */
#define OPT_MMPROJ(c)                                                                              \
	{ OPT_TEXT,                                                                                \
	  0,                                                                                       \
	  "mmproj",                                                                                \
	  "FILE",                                                                                  \
	  &(c).mmproj,                                                                             \
	  "vision tower of a GGUF model, a file or a name as of a model "                          \
	  "[the file mmproj*.gguf next to the model]" }
#define OPT_CHAT_TEMPLATE(c)                                                                       \
	{ OPT_TEXT,                                                                                \
	  0,                                                                                       \
	  "chat-template",                                                                         \
	  "NAME|FILE",                                                                             \
	  &(c).chat_template,                                                                      \
	  "Jinja template instead of the model's own: a file, its text, or chatml, command-r, "    \
	  "gemma, llama2, llama3, phi3, vicuna, zephyr [the model's]" }
#define OPT_ALLOW_UNKNOWN_KEYS(flag)                                                               \
	{ OPT_FLAG,                                                                                \
	  0,                                                                                       \
	  "allow-unknown-keys",                                                                    \
	  NULL,                                                                                    \
	  &(flag),                                                                                 \
	  "warn about checkpoint keys and tensors that the family does not know, instead "         \
	  "of refusing" }
#define OPT_OFFLOAD(c)                                                                             \
	{ OPT_LIST,                                                                                \
	  0,                                                                                       \
	  "offload",                                                                               \
	  "auto|N|RULE",                                                                           \
	  &(c).offload,                                                                            \
	  "divide the model between a GPU and the CPU: N last layers on the GPU, or what "         \
	  "runs "                                                                                  \
	  "on the CPU: experts, experts=0-9, layers=0-3, embedding; may be repeated; auto: "       \
	  "the "                                                                                   \
	  "fastest that fits" },                                                                   \
	    { OPT_INT,                                                                             \
	      0,                                                                                   \
	      "n-cpu-moe",                                                                         \
	      "N",                                                                                 \
	      &(c).n_cpu_moe,                                                                      \
	      "routed experts of the N first layers run on the CPU, the rest on a GPU [0]" },      \
	    { OPT_LIST,                                                                            \
	      0,                                                                                   \
	      "override-tensor",                                                                   \
	      "REGEX=CPU",                                                                         \
	      &(c).override_tensor,                                                                \
	      "place tensors by their GGUF names, as in llama.cpp: routed experts (exps=CPU), "    \
	      "whole layers or token_embd; may be repeated" }
#define OPT_COMMON(c)                                                                                  \
	{ OPT_GROUP, 0, "Model", NULL, NULL, NULL },                                                   \
	    { OPT_TEXT,                                                                                \
	      0,                                                                                       \
	      "device",                                                                                \
	      "cpu|cuda|ref",                                                                          \
	      &(c).device,                                                                             \
	      "device: cpu, cuda, cuda:N, cuda:0,1 (one rank per GPU), or ref, the fp32 "              \
	      "interpreter [cpu]" },                                                                   \
	    { OPT_TEXT,                                                                                \
	      0,                                                                                       \
	      "arch",                                                                                  \
	      "NAME",                                                                                  \
	      &(c).arch,                                                                               \
	      "instruction set or GPU architecture: generic, v3, vnni, v4, amx, neon, i8mm; "          \
	      "sm_80, "                                                                                \
	      "sm_90a, ... [the best that runs here]" },                                               \
	    { OPT_INT, 't',          "threads",                                                        \
	      "N",     &(c).threads, "number of threads [physical cores within quota and affinity]" }, \
	    { OPT_TEXT, 'w',          "weights",                                                       \
	      "PATH",   &(c).weights, "checkpoint file or folder, if the model names none" },          \
	    { OPT_FLAG,                                                                                \
	      0,                                                                                       \
	      "random-weights",                                                                        \
	      NULL,                                                                                    \
	      &(c).random_weights,                                                                     \
	      "fill the weights with seeded noise instead of reading a checkpoint" },                  \
	    { OPT_FLAG,                                                                                \
	      0,                                                                                       \
	      "cache-packed",                                                                          \
	      NULL,                                                                                    \
	      &(c).cache_packed,                                                                       \
	      "map packed weights from a file of the cache, which "                                    \
	      "processes share and which may exceed the memory" },                                     \
	    OPT_ALLOW_UNKNOWN_KEYS((c).allow_unknown_keys),                                            \
	    { OPT_FLAG,                                                                                \
	      0,                                                                                       \
	      "trust-artifact",                                                                        \
	      NULL,                                                                                    \
	      &(c).trust_artifact,                                                                     \
	      "run the code of a generated folder as it is, also if it was changed or built "          \
	      "elsewhere" },                                                                           \
	    { OPT_LIST,    0,        "set",                                                            \
	      "KEY=VALUE", &(c).set, "override a key of the description; may be repeated" },           \
	    { OPT_TEXT,                                                                                \
	      0,                                                                                       \
	      "quantize",                                                                              \
	      "FORMAT",                                                                                \
	      &(c).quantize,                                                                           \
	      "quantise a 16-bit checkpoint while loading: q4_k, q8_0, eetq, awq, ... (same "          \
	      "as --set quant.method=)" },                                                             \
	    { OPT_TEXT,  0,                                                                            \
	      "lora",    "DIR",                                                                        \
	      &(c).lora, "merge a PEFT LoRA adapter into the weights (same as --set lora.path=)" },    \
	    { OPT_TEXT,                                                                                \
	      0,                                                                                       \
	      "kv",                                                                                    \
	      "TYPE",                                                                                  \
	      &(c).kv,                                                                                 \
	      "type of the KV cache: f16, bf16, f8, int8, int6, int4, ... "                            \
	      "(same as --set kv.dtype=)" },                                                           \
	    { OPT_INT, 0,                                                                              \
	      "pp",    "N",                                                                            \
	      &(c).pp, "pipeline stages of contiguous layers (same as --set parallel.pp=) [1]" },      \
	    { OPT_INT,                                                                                 \
	      0,                                                                                       \
	      "tp",                                                                                    \
	      "N",                                                                                     \
	      &(c).tp,                                                                                 \
	      "tensor-parallel ranks: threads of this process, or GPUs (same as --set "                \
	      "parallel.tp=) [under mpirun: the number of processes]" },                               \
	    OPT_OFFLOAD(c), { OPT_TEXT,     0,                                                         \
		              "artifact",   "DIR",                                                     \
		              &(c).out_dir, "folder for the generated files [the cache]" },            \
	    { OPT_GROUP, 0, "Limits", NULL, NULL, NULL },                                              \
	    { OPT_INT,                                                                                 \
	      'c',                                                                                     \
	      "context",                                                                               \
	      "N",                                                                                     \
	      &(c).context,                                                                            \
	      "positions per sequence [run, chat, serve, embed: the model's, as far as "               \
	      "memory allows; plan: at most 4096; others: what they need]" },                          \
	    { OPT_INT, 0, "seqs", "N", &(c).seqs, "sequences that run at a time [1]" },                \
	    { OPT_INT, 0, "chunk", "N", &(c).chunk, "prompt tokens per step [512]" },                  \
	    { OPT_SIZES,                                                                               \
	      0,                                                                                       \
	      "memory",                                                                                \
	      "SIZE",                                                                                  \
	      &(c).memory,                                                                             \
	      "limit of memory, for example 8G; with --offload, 24G,64G is for GPU and CPU" },         \
	    { OPT_GROUP, 0, "Output", NULL, NULL, NULL },                                              \
	    { OPT_FLAG, 0, "json", NULL, &(c).json, "print one JSON document and nothing else" },      \
	    { OPT_FLAG, 'q', "quiet", NULL, &(c).quiet, "print no progress" },                         \
	    { OPT_FLAG, 'v', "verbose", NULL, &(c).verbose, "print debug messages" }
/* clang-format on */

typedef struct Sampling {
	llmc_params p; /* speculate 0: never (in llmc.h -1) */
	List stop, breakers;
	const char *by; /* --sampling: "model", "neutral"; NULL: the command's default */
} Sampling;
#define OPT_SAMPLING_BY(to, help) { OPT_TEXT, 0, "sampling", "model|neutral", &(to), help }
#define OPT_ADDITIONAL(to, help)                                                                   \
	{ OPT_TEXT, 0, "additional-properties", "auto|closed|open", &(to), help }
#define ADDITIONAL_UNKNOWN "--additional-properties %s: expected auto, closed or open"
#define OPT_KIND_FLOAT OPT_FLOAT, "X"
#define OPT_KIND_INT OPT_INT, "N"
#define OPT_KIND_BOOL OPT_FLAG, NULL
#define OPT_ROW(kind, arg, field, text) { kind, 0, #field, arg, &smp->p.field, text },
#define OPT_ROW_OF(...) OPT_ROW(__VA_ARGS__)
#define OPT_SAMPLING_ROW(kind, field, rule, least, most, http_least, http_most, openai, llama_cpp, \
                         ollama, alias, hf, gguf, text, note, http_note)                           \
	OPT_ROW_OF(OPT_KIND_##kind, field, text note)
/* Sampling options. The caller declares a Sampling *smp. Rows of LLMC_SAMPLING_OPTIONS become
 * options of the same name, with dashes. */
/* clang-format off: a table */
#define OPT_SAMPLING                                                                               \
	{ OPT_GROUP, 0, "Sampling", NULL, NULL, NULL },                                            \
	    { OPT_INT,                                                                             \
	      'n',                                                                                 \
	      "max-tokens",                                                                        \
	      "N",                                                                                 \
	      &smp->p.max_tokens,                                                                  \
	      "largest number of new tokens; -1: until the context is full [256]" },               \
	    LLMC_SAMPLING_OPTIONS(OPT_SAMPLING_ROW){                                               \
		    OPT_U64,      0,                                                               \
		    "seed",       "N",                                                             \
		    &smp->p.seed, "seed of sampling; the same seed gives the same tokens [0]"      \
	    },                                                                                     \
	    { OPT_LIST,                                                                            \
	      0,                                                                                   \
	      "dry-sequence-breaker",                                                              \
	      "TEXT",                                                                              \
	      &smp->breakers,                                                                      \
	      "DRY: a string that ends a repetition; may be repeated; none: no string [newline, "  \
	      "colon, quote, asterisk]" },                                                         \
	    { OPT_TEXT,                                                                            \
	      0,                                                                                   \
	      "samplers",                                                                          \
	      "ORDER",                                                                             \
	      &smp->p.samplers,                                                                    \
	      "llama.cpp's order of samplers: names separated by ';', or letters "                 \
	      "of " LLMC_SAMPLER_LETTERS "; others are off [llmc's order]" },                      \
	    { OPT_LIST, 0, "stop", "TEXT", &smp->stop, "stop at this string; may be repeated" },   \
	    { OPT_INT,                                                                             \
	      0,                                                                                   \
	      "speculate",                                                                         \
	      "N",                                                                                 \
	      &smp->p.speculate,                                                                   \
	      "draft up to N tokens per step by n-gram lookup where that is faster; the "          \
	      "output is the same; 0: never [15]" }
#define OPT_DRAFT(to)                                                                              \
	{ OPT_TEXT,                                                                                \
	  0,                                                                                       \
	  "draft",                                                                                 \
	  "MODEL",                                                                                 \
	  &(to),                                                                                   \
	  "draft model with the same tokenizer, or an EAGLE-3 draft checkpoint; mtp: the MTP "     \
	  "head in the model's own checkpoint [none]" }
/* clang-format on */

/* Option of another engine: an option of llmc with the same meaning, or an explanation */
#define OPT_MODEL ""        /* the value is the MODEL argument */
#define OPT_HUB_MODEL "hf:" /* the value is the MODEL argument, a name without the prefix hf: */
typedef struct ForeignOption {
	const char *spelled;
	const char *own; /* name of the option of llmc; NULL: no option has this meaning */
	/* explanation for commands without that option; NULL: the option is unknown to them */
	const char *advice;
} ForeignOption;
const ForeignOption *foreign_option_find(const char *spelled, size_t len);
/* Return the foreign option whose long spelling, without dashes, is nearest to a name. Only options
 * with an equivalent in llmc count. NULL: none. */
const ForeignOption *foreign_option_nearest(const char *name);
/* Message if a command line names no model */
#define NO_MODEL "name a model: a GGUF file, a folder, a description, or hf:ORG/REPO"
/* True if the command line, or a setting, has set the option that is stored in `to`. */
bool opt_given(const void *to);
/* Replace the help of the option that is stored in `to`. */
void opt_help(Opt *opt, size_t n_opt, const void *to, const char *help);
/* Return the option name nearest to a misspelt one; NULL: none is close. Valid until the next
 * call. */
const char *opt_nearest(const Opt *opt, size_t n_opt, const char *name);

/* Parse argv. Positional arguments go to args (at most max_args). On --help and on mistakes it
 * prints and exits. */
size_t opt_parse(const Command *cmd, const Opt *opt, size_t n_opt, int argc, char **argv,
                 const char **args, size_t max_args);
#define OPT_PARSE(cmd, opt, argc, argv, args)                                                      \
	opt_parse(cmd, opt, sizeof(opt) / sizeof *(opt), argc, argv, args,                         \
	          sizeof(args) / sizeof *(args))
/* Merge settings from a YAML file (--config), environment variables and the command line; the last
 * wins. Returns the arguments, preceded by those of file and environment. A variable is prefix plus
 * the option's name in capitals, such as LLMC_SERVE_PORT. *models: models of the file or
 * environment, used if the command line names none. On mistakes it prints and exits. */
char **settings_merge(const char *prefix, const Opt *opt, size_t n_opt, int argc, char **argv,
                      int *n_out, List *models);
int opt_usage_error(const Command *cmd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Commands in the order of `llmc --help`; main() sets them. A command of two words, such as "bench
 * serve", comes after the command of its first word */
extern const Command *const *commands;
extern size_t n_commands;
const Command *command_find(const char *name);
/* Pass the option table of a command to fn. The command runs until it calls opt_parse with its
 * table, and no further. */
typedef void (*opt_table_fn)(void *user, const Command *cmd, const Opt *opt, size_t n_opt);
void opt_describe(const Command *cmd, opt_table_fn fn, void *user);
bool opt_describing(void);
/* Return the name of an option as it is typed, without its dashes */
enum { OPT_NAME_SIZE = 64 };
const char *opt_dashed(const char *name, char buf[OPT_NAME_SIZE]);
/* Write the default of a number in brackets if its help does not give one; else an empty string */
enum { OPT_DEFAULT_SIZE = 48 };
void opt_default_text(const Opt *o, char buf[OPT_DEFAULT_SIZE]);

/* Print "llmc: text" (red on a terminal) and return the exit code of the status. */
int fail_with(const llmc_error *err);
int exit_code(llmc_status s);
void complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Print a line of progress if stderr is a terminal. The next one overwrites it. */
void progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);
/* Print a notice on stderr; on a terminal the next progress line overwrites it. */
void notice(const char *line);
/* Write generated text, or text of a vocabulary, to stdout and flush. On a terminal, control
 * characters that could steer it become '?', because a model may repeat them from an untrusted
 * prompt. */
void print_generated(const char *s, size_t n);
bool colour_on(FILE *f);

/* Fill llmc_options from Common, with the log on stderr. They point into *out, so *out must not
 * move. The caller frees out->set. */
enum { MAX_OFFLOAD = 16, MAX_OVERRIDES = 4096 };
typedef struct OpenOptions {
	llmc_options o;
	const char **set;
	char placed[MAX_OFFLOAD][128], tensors[MAX_OVERRIDES], kv[64], tp[64], pp[64], quantize[64],
	    lora[PATH_MAX + 16];
} OpenOptions;
llmc_status options_of(const Common *c, bool no_weights, OpenOptions *out, llmc_error *err);
/* offload.c: return --device; by default a GPU if the model is divided */
const char *offload_device(const Common *c);
double offload_host_bandwidth(const Common *c); /* bytes/s */
/* true with --offload auto, as long as open_model has not chosen */
bool offload_must_choose(const Common *c);
/* Append the overrides of --offload, --n-cpu-moe and --override-tensor, at most MAX_OFFLOAD.
 * E_INPUT: a bad value, or --device names no GPU. */
llmc_status offload_set(const Common *c, OpenOptions *own, const char **set, size_t *n,
                        llmc_error *err);
llmc_status open_model(Common *c, const char *path, bool no_weights, llmc_model **m,
                       llmc_error *err);
llmc_limits limits_of(const Common *c);
/* Refuse a model if weights + KV + scratch exceed --memory. */
llmc_status check_memory(const llmc_model *m, const Common *c, const llmc_limits *lim,
                         llmc_error *err);
llmc_params params_of(const Sampling *s);
/* Check --sampling. False: it is neither NULL, "model" nor "neutral". */
bool sampling_known(const char *by);
/* With `use`, set options that were not given to the values that the model recommends. Report the
 * options in effect. */
void sampling_advice(const llmc_model *m, Sampling *s, bool use, bool quiet);
/* Return a seed that differs from run to run */
uint64_t fresh_seed(void);

/* Open the draft c->draft on the device of its model m, which was opened from `path`. Its memory is
 * subtracted from *memory if that is limited. With lim and memory NULL, only open its plan. */
llmc_status draft_open(const Common *c, const llmc_model *m, const char *path,
                       const llmc_limits *lim, int64_t *memory, llmc_model **out, llmc_error *err);
/* images.c: image files of a prompt, through the model's vision tower */
typedef struct PromptImages {
	llmc_tower *tower;
	llmc_tower_image **image; /* [n] */
	llmc_image_part *part;
	size_t n;
} PromptImages;
/* Read and prepare the files. Release with prompt_images_close, also after an error. */
llmc_status prompt_images_open(const Common *c, llmc_model *m, const List *files, PromptImages *out,
                               llmc_error *err);
/* Replace the placeholders of the chat template by the tokens of the images, in order. Without
 * `chat`, placeholders are optional; images without a placeholder come first. *text is
 * reallocated. */
llmc_status prompt_images_text(const PromptImages *im, bool chat, char **text, size_t *n_bytes,
                               llmc_error *err);
void prompt_images_close(PromptImages *im);

/* Source of the tokens of run and chat: a session, or an engine if there is a draft model */
typedef struct TokenSource {
	llmc_session *s;
	llmc_engine *e;
	llmc_model *draft;
	const llmc_image_part *image; /* images of the next run; an engine is needed */
	size_t n_image;
} TokenSource;
llmc_status token_source_open(Common *c, llmc_model *m, const char *path, const Sampling *smp,
                              llmc_limits *lim, TokenSource *out, llmc_error *err);
llmc_status token_source_run(TokenSource *s, const int32_t *tok, size_t n_tok, const llmc_params *p,
                             llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err);
/* writes the end of a status line: accepted draft tokens; empty without a draft model */
void token_source_drafts(const TokenSource *s, char *buf, size_t cap);
void token_source_close(TokenSource *s);

/* Parse "1,2,3" into ids; false on anything else. *ids is malloc'd. */
bool parse_ids(const char *text, int32_t **ids, size_t *n);
/* NumPy's .npy, format 1.0 */
bool write_npy(const char *path, const float *x, size_t rows, size_t cols);
bool parse_sizes(const char *text, int32_t *v, size_t cap, size_t *n);
/* Read a file, or stdin for "-"; prints an error and returns NULL on failure. */
char *read_all(const char *path, size_t *n);
/* Tokenize into malloc'd ids. */
llmc_status tokenize_alloc(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags,
                           int32_t **ids, size_t *n, llmc_error *err);
llmc_status chat_alloc(const llmc_tokenizer *t, const char *messages, const char *options,
                       char **text, size_t *n, llmc_error *err);
/* Print quoted and escaped; invalid UTF-8 becomes U+FFFD. */
void json_text(FILE *f, const char *s, size_t n);

/* Download a model by its name with a progress bar on stderr, and write its path. update: check for
 * a newer revision. */
llmc_status model_pull(const char *name, bool update, bool quiet, char path[PATH_MAX],
                       llmc_error *err);
/* Replace the name of a model (hf:..., https://...) by its path, after a download if it is not in
 * the cache. A path stays unchanged. */
llmc_status model_path(const char **path, bool quiet, llmc_error *err);

/* Handle Ctrl-C: the first sets a flag, the second ends the process. */
void interrupt_install(void);
bool interrupted(void);

extern const Command cmd_import, cmd_compile, cmd_plan, cmd_run, cmd_chat, cmd_serve, cmd_bench,
    cmd_bench_serve, cmd_bench_mla, cmd_verify, cmd_eval, cmd_quantize, cmd_tokenize, cmd_embed,
    cmd_cache, cmd_pull, cmd_list, cmd_rm, cmd_doctor, cmd_completion, cmd_man;

#endif

/* llmc.h: the public header of llmc, a static compiler for language models. It is one file, so that
 * a program or a generator of bindings needs this file and the library only.
 *
 *     llmc_model *m;  llmc_session *s;  llmc_error err;
 *     if (llmc_open("smollm2.gguf", NULL, &m, &err) != LLMC_OK) ...     err.text is a sentence
 *     llmc_session_open(m, NULL, &s, &err);
 *     llmc_generate_text(s, "Hello", &params, on_token, user, &result, &err);
 *     llmc_session_close(s);  llmc_close(m);
 *
 * Handles
 *   model      immutable after open, reference counted, usable from any thread
 *   session    KV cache, scratch and worker threads; used by one thread at a time; several
 *              sessions of one model may run in different threads
 *   engine     a session with its own thread that serves many requests; any thread may call
 *   tokenizer, grammar         immutable, any thread
 *   stream, sampler, matcher   one thread at a time
 *
 * Every call that can fail returns llmc_status and fills *err; err may be NULL. The library never
 * prints, exits or aborts. It installs no signal handler, changes no locale and keeps no global
 * state. Callbacks run on the calling thread, except log callbacks of engines and servers, which
 * have their own threads. Option and result structs begin with their size: use LLMC_INIT(type). In
 * an array of them all have the size of the first. Structs without a size never change.
 *
 * Text is UTF-8. The caller owns output buffers: (buf, cap, *need), where *need is the number of
 * bytes or elements required, without the terminating NUL. If cap is too small the call returns
 * LLMC_E_RANGE. */
#ifndef LLMC_H
#define LLMC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LLMC_VERSION "0.1.0"
#if defined(__GNUC__)
#define LLMC_API __attribute__((visibility("default")))
#else
#define LLMC_API
#endif

/* Values are fixed, so programs may store them. llmc_status_text() returns the text. E_INPUT
 * includes missing model and weight files; E_IO means that the operating system refused a read or
 * write. */
#define LLMC_STATUS_LIST(X)                                                                        \
	X(OK, 0, "done")                                                                           \
	X(E_INPUT, -1, "the input is wrong")                                                       \
	X(E_IO, -2, "a file cannot be read or written")                                            \
	X(E_MEMORY, -3, "out of memory")                                                           \
	X(E_RANGE, -4, "an argument is out of range")                                              \
	X(E_FULL, -5, "no free KV pages or sequences")                                             \
	X(E_MISSING, -6, "the machine lacks something")                                            \
	X(E_DEVICE, -7, "the device failed")                                                       \
	X(E_BUG, -8, "a fault of llmc itself")                                                     \
	X(E_CANCELLED, -9, "stopped by the caller")                                                \
	X(E_CHECK, -10, "a check failed")                                                          \
	X(E_BUSY, -11, "overloaded")
typedef enum llmc_status {
#define X(name, value, text) LLMC_##name = value,
	LLMC_STATUS_LIST(X)
#undef X
} llmc_status;

typedef struct llmc_error {
	llmc_status code;
	char text[2044]; /* one or more sentences, lines separated by \n */
} llmc_error;

typedef struct llmc_model llmc_model;
typedef struct llmc_session llmc_session;
typedef struct llmc_tokenizer llmc_tokenizer;
typedef struct llmc_stream llmc_stream;
typedef struct llmc_sampler llmc_sampler;
typedef struct llmc_engine llmc_engine;
typedef struct llmc_grammar llmc_grammar;
typedef struct llmc_matcher llmc_matcher;
typedef int32_t llmc_seq; /* sequence number within its session, >= 0 */

/* Initialiser that sets `size` and zeroes the rest:  llmc_options o = LLMC_INIT(llmc_options); */
#ifdef __cplusplus
extern "C++" template <typename Type> inline Type
llmc_init_()
{
	Type t = Type();
	t.size = sizeof(Type);
	return t;
}
#define LLMC_INIT(Type) llmc_init_<Type>()
#else
#define LLMC_INIT(Type) ((Type){ .size = sizeof(Type) })
#endif

LLMC_API const char *llmc_version(void);
LLMC_API const char *llmc_status_name(llmc_status s); /* "LLMC_E_FULL" */
LLMC_API const char *llmc_status_text(llmc_status s);

/* ---- five calls that run a model ---- */

/* Receives notices and progress, without a newline, on the caller's thread. PROGRESS lines count
 * up, for example "compiled 12 of 31 kernels"; each replaces the previous one. */
typedef void (*llmc_log_fn)(void *user, int level, const char *line);
enum { LLMC_LOG_WARNING = 1, LLMC_LOG_INFO = 2, LLMC_LOG_DEBUG = 3, LLMC_LOG_PROGRESS = 4 };

typedef struct llmc_options {
	size_t size;
	/* "cpu", "cuda", "cuda:N", "cuda:0,1" (one GPU per rank), "ref"; NULL: cpu */
	const char *device;
	/* instruction set or GPU architecture: "v3", "v4", "generic", "sm_80"; NULL: the best that
	 * this machine supports (of an artifact: the best that the artifact contains) */
	const char *arch;
	/* checkpoint file or folder, relative to the working directory, for a model that names
	 * none */
	const char *weights;
	const char *out_dir; /* folder for the generated artifact; NULL: the cache */
	/* overrides of the description, "key=value"; NULL-terminated, or NULL */
	const char *const *set;
	/* default number of threads of the model's sessions, also used for packing; 0: physical
	 * cores within the CPU quota */
	int n_threads;
	/* fill the weights with seeded noise instead of reading a checkpoint (for benchmarks) */
	bool random_weights;
	bool no_weights; /* compile and query only: sessions cannot be opened */
	/* on a CPU: map packed weights from a cache file, which the first open creates. Processes
	 * share its pages, and the file may be larger than memory */
	bool cache_packed;
	llmc_log_fn log;
	void *log_user;
	/* MPI_Comm of a program that has initialised MPI (MPI_THREAD_SERIALIZED or higher). The
	 * processes of the communicator are the ranks, and all of them must make this call. NULL:
	 * all processes that a launcher has started. llmc duplicates the communicator; the program
	 * still finalises MPI */
	const void *mpi_comm;
	/* accept configuration keys that the family does not know, with a warning */
	bool allow_unknown_keys;
	/* run the code in a generated folder as it is. By default, kernels are refused if they
	 * differ from those that llmc makes from the folder's model.yaml, and kernels that were
	 * built on another machine are not used */
	bool trust_artifact;
	/* called on the caller's thread when the plan is ready, before kernels are built and
	 * weights are read. Queries of m already work, for example llmc_fit_limits. If it returns
	 * an error, llmc_open fails with that error. Not called with no_weights. NULL: none */
	llmc_status (*planned)(void *user, const llmc_model *m, llmc_error *err);
	void *planned_user;
	/* allocate without regard to free memory: limits have the defaults that llmc_limits gives
	 * for no_fit, and nothing is refused. By default, llmc_open refuses weights that do not fit
	 * (E_FULL) before it reads them */
	bool no_fit;
	/* open the vision tower of a Hugging Face folder or of an mmproj GGUF file instead of a
	 * language model (llmc_forward_images) */
	bool tower;
	/* open the model with images (vision.part=rows) if its folder, or a GGUF file next to it,
	 * has a vision tower and an image processor that llmc supports. Otherwise the model reads
	 * text only; there is a warning if it has a tower. llmc_model_info.reads_images reports the
	 * result */
	bool images;
	/* for a model on two devices (placement): limit of the host memory for weights, KV and
	 * scratch of the CPU's part; 0: free memory */
	int64_t host_memory;
	/* file with the vision tower of a GGUF model (mmproj-*.gguf); the model is then opened with
	 * images. NULL: with `images`, such a file next to the model, if there is one */
	const char *mmproj;
	/* open the model so that it returns the rows that this draft reads. "mtp": the model's own
	 * MTP head; or the path of a draft checkpoint (EAGLE-3), which names the layers. The path
	 * of any other model has no effect, because such drafts read no rows. NULL: none */
	const char *draft;
	/* for a draft checkpoint: its target model, which was opened with this checkpoint as
	 * `draft`. The target provides the embedding and output matrix if the checkpoint lacks
	 * them. Only read during the call. NULL: path is not a draft checkpoint */
	const llmc_model *draft_of;
	/* Jinja template that replaces the model's chat template: a file, the name of one of the
	 * library's (chatml, ...), or a source text with {{ or {%; NULL: the model's */
	const char *chat_template;
} llmc_options;

/* ---- models by name ---- */

/* Return whether the string is the name of a model: hf:ORG/REPO[@REVISION][:QUANT or :FILE], a
 * model of Hugging Face, or the https:// (or http://) address of a GGUF file. llmc_pull returns a
 * path for llmc_open. Models are stored in the cache of Hugging Face, which other programs share.
 * Environment variables that apply: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE,
 * HF_HUB_DOWNLOAD_TIMEOUT, https_proxy, CURL_CA_BUNDLE. */
LLMC_API bool llmc_is_model_name(const char *s);

typedef struct llmc_pull_state {
	size_t size;
	/* file that has just been completed; NULL: only the counts have changed */
	const char *file;
	int64_t file_bytes; /* size of `file` */
	/* one line that explains what the pull is waiting for; NULL: it is not waiting */
	const char *note;
	int32_t n_files, n_done;    /* files to download; 0: not known yet */
	int64_t bytes, total_bytes; /* total sizes of these files; bytes that earlier pulls received
	                               count as done */
	int64_t received;           /* bytes that this pull has received */
} llmc_pull_state;

typedef struct llmc_pull_options {
	size_t size;
	/* look for a newer revision on the server, even if the model is in the cache */
	bool update;
	bool offline; /* use no network, as with HF_HUB_OFFLINE=1 */
	/* called on the caller's thread several times per second. Return false to stop the pull
	 * (LLMC_E_CANCELLED); the next pull of the name resumes it */
	bool (*progress)(void *user, const llmc_pull_state *st);
	void *user;
} llmc_pull_options;

/* Find a model by its name, download it if it is not in the cache, and write the path of its file
 * or folder to (buf, cap, *need). Processes that pull the same model share one download. E_INPUT:
 * there is no such model, or no access to it. E_IO: the network, the server or the disk failed; the
 * received part is kept. E_CHECK: size or hash is wrong. E_MISSING: libcurl is not installed. */
LLMC_API llmc_status llmc_pull(const char *name, const llmc_pull_options *opt, char *buf,
                               size_t cap, size_t *need, llmc_error *err);
/* Write the models in the caches as a JSON array of objects with name, path, bytes, complete, and
 * modified (seconds since 1970). */
LLMC_API llmc_status llmc_pulled(char *buf, size_t cap, size_t *need, llmc_error *err);
/* Remove a model from the cache; the name may include :QUANT. *freed: freed bytes of disk; may be
 * NULL */
LLMC_API llmc_status llmc_pulled_remove(const char *name, int64_t *freed, llmc_error *err);

/* Install a handler of SIGBUS for the process. If a checkpoint is truncated or replaced in place
 * while it is read, llmc_open and llmc_adapter_load then return E_IO, and other models keep
 * working. Without the handler the signal ends the process. Call once, before other threads
 * start. */
LLMC_API llmc_status llmc_guard_files(llmc_error *err);

/* Open a YAML description, a generated folder, a Hugging Face folder, a FastLLM model (.flm) or a
 * GGUF file. Imports and compiles as needed. Release *out with llmc_close. */
LLMC_API llmc_status llmc_open(const char *path, const llmc_options *opt, llmc_model **out,
                               llmc_error *err);
LLMC_API void llmc_retain(llmc_model *m);
/* NULL is allowed; the model stays open until its sessions are closed */
LLMC_API void llmc_close(llmc_model *m);

enum { /* values that the comments below refer to */
       /* context of a model opened with no_fit, if the model supports more */
       LLMC_DEFAULT_CONTEXT = 4096,
       /* KV capacity, in contexts: of an engine with no_fit, and of each model of a server with
	* several models */
       LLMC_DEFAULT_KV_CONTEXTS = 4,
       LLMC_DEFAULT_CONCURRENT_REQUESTS = 128,
       LLMC_DEFAULT_WAITING_TOKENS = 20,
       /* images per request of a server */
       LLMC_DEFAULT_IMAGES = 16,
       /* one snapshot follows the prefill of a sequence, one its decode */
       LLMC_DEFAULT_SNAPSHOTS = 2,
       /* upper bound for an engine that drafts tokens; the engine uses as many marks as sequences
	* may draft at once */
       LLMC_DEFAULT_MARKS = 8,
       LLMC_MAX_CHOICES = 128,  /* choices per request */
       LLMC_MAX_SPECULATE = 15, /* draft tokens per step */
       LLMC_MAX_TOP = 20,       /* alternatives per position */
       LLMC_MAX_SAMPLERS = 32,  /* samplers of an order (llmc_params.samplers) */
};

#define LLMC_DEFAULT_PREFIX_DIR_BYTES ((int64_t)8 << 30)
#define LLMC_DEFAULT_BATCH_DIR_BYTES ((int64_t)1 << 30)
#define LLMC_DEFAULT_IMAGE_CACHE_BYTES ((int64_t)256 << 20)

/* Limits of a session. 0 selects the default in brackets, or that of the description (`limits`). KV
 * memory and scratch are allocated once, with the sizes that these limits require. On a CPU the sum
 * is checked before (E_FULL), unless the model was opened with no_fit. */
typedef struct llmc_limits {
	size_t size;
	/* positions per sequence [depends on free memory, see llmc_fit_limits; with no_fit, and for
	 * llmc_memory_for: min(the model's, LLMC_DEFAULT_CONTEXT)] */
	int32_t context;
	int32_t seqs;  /* concurrent sequences [1] */
	int32_t chunk; /* tokens per step [512] */
	int32_t n_out; /* rows of logits per step [seqs; if the output is not logits: chunk] */
	/* positions of all sequences together [depends on free memory, at most context * seqs; with
	 * no_fit: context * seqs] */
	int64_t kv_tokens;
	int n_threads; /* number of threads [the model's] */
	/* snapshots of recurrent state per sequence, kept for shared prefixes; models without
	 * recurrent state ignore it [LLMC_DEFAULT_SNAPSHOTS for an engine with a prefix cache;
	 * otherwise 0] */
	int32_t snapshots;
	/* positions whose pages the prefix cache of a GPU may keep in host memory [for an engine:
	 * the capacity of kv.host; otherwise 0] */
	int64_t host_tokens;
	/* number of sequences that may be marked at the same time (llmc_seq_mark); models without
	 * recurrent state ignore it [LLMC_DEFAULT_MARKS for an engine that drafts tokens; otherwise
	 * 0] */
	int32_t marks;
} llmc_limits;

/* Run as a rank other than 0 of a program that mpirun or srun has started as several processes.
 * Each process calls llmc_open, which waits for the others and assigns a rank (llmc_info). Rank 0
 * then uses the model as usual. Every other rank calls llmc_follow, which repeats the steps of rank
 * 0's sessions and returns when rank 0 closes the model. One model per process. E_DEVICE: a rank is
 * lost; E_RANGE: called on rank 0. */
LLMC_API llmc_status llmc_follow(llmc_model *m, llmc_error *err);

LLMC_API llmc_status llmc_session_open(llmc_model *m, const llmc_limits *lim, llmc_session **out,
                                       llmc_error *err);
LLMC_API void llmc_session_close(llmc_session *s);

/* Contents of an output row. Most models return logits. An embedding model, or one opened with
 * "head.kind=hidden", returns its last hidden states, and a classifier returns label scores. Models
 * of the last two kinds produce vectors (llmc_embed, llmc_request.pool), not text. */
typedef enum llmc_output { LLMC_OUTPUT_LOGITS, LLMC_OUTPUT_HIDDEN, LLMC_OUTPUT_LABELS } llmc_output;
/* Pooling of a sequence's output rows into one vector */
/* no pooling; the last row; the mean of all rows; the first row */
typedef enum llmc_pool { LLMC_POOL_NONE, LLMC_POOL_LAST, LLMC_POOL_MEAN, LLMC_POOL_CLS } llmc_pool;

typedef struct llmc_bias {
	int32_t id;
	float value;
} llmc_bias;
typedef struct llmc_sequence {
	const int32_t *tok;
	size_t n;
} llmc_sequence;

/* Sampling options. These rows define the fields of llmc_params, range checks, command-line options
 * and their help, HTTP fields and their documentation, the advice of models and the Python binding.
 *
 *   X(kind, name, rule, least, most,
 *     http_least, http_most, openai, llama_cpp, ollama, alias, hf, gguf,
 *     text, note, http_note)
 *
 *   kind          FLOAT, INT (int32_t) or BOOL
 *   rule          effect of the values 0 and 1: llmc_option_rule
 *   least, most   valid values of the field
 *   http_*        valid values over HTTP, raised to `least`; least > most: not an HTTP field
 *   openai .. ollama  default over HTTP in the dialect of that server
 *   alias         name in the HTTP interfaces of llama.cpp and Ollama; NULL: the name of the row
 *   hf            key in generation_config.json; NULL: none
 *   gguf          key general.sampling.* of a GGUF file; NULL: none
 *   text, note    one line of help, in two parts
 *   http_note     note over HTTP; NULL: `note` */
#define LLMC_SAMPLING_OPTIONS(X) \
	X(FLOAT, temperature, OFF_0, 0, 1e6, 0, 2, 1, 0.8, 0.8, NULL, "temperature", "temp", \
	  "divide the logits by this", "; 0: greedy", NULL) \
	X(INT, top_k, OFF_0, 0, INT32_MAX, -1, INT32_MAX, 0, 40, 40, NULL, "top_k", "top_k", \
	  "sample from the N most likely tokens", "; 0: off", "; 0 or -1: off") \
	X(FLOAT, top_p, OFF_0_1, 0, 1, 0, 1, 1, 0.95, 0.9, NULL, "top_p", "top_p", \
	  "sample from the most likely tokens that reach this probability", "; 0 or 1: off", "; 0: the most likely token; 1: off") \
	X(FLOAT, min_p, OFF_0, 0, 1, 0, 1, 0, 0.05, 0, NULL, "min_p", "min_p", \
	  "drop tokens below this share of the most likely one's probability", "; 0: off", NULL) \
	X(FLOAT, typical_p, OFF_0_1, 0, 1, 0, 1, 0, 0, 0, NULL, "typical_p", NULL, \
	  "locally typical sampling (arXiv:2202.00666) with this mass", "; 0 or 1: off", NULL) \
	X(FLOAT, repetition_penalty, ABOVE_0, 0, 1e6, 0, 100, 1, 1, 1, "repeat_penalty", "repetition_penalty", "penalty_repeat", \
	  "divide logits of tokens of prompt and output (arXiv:1909.05858)", "; 0 or 1: off", "; 1: off") \
	X(FLOAT, presence_penalty, OFF_0, -1e6, 1e6, -2, 2, 0, 0, 0, NULL, NULL, NULL, \
	  "subtract from the logits of tokens of the output", "; 0: off", NULL) \
	X(FLOAT, frequency_penalty, OFF_0, -1e6, 1e6, -2, 2, 0, 0, 0, NULL, NULL, NULL, \
	  "subtract per occurrence in the output", "; 0: off", NULL) \
	X(INT, min_tokens, OFF_0, 0, INT32_MAX, 0, INT32_MAX, 0, 0, 0, NULL, NULL, NULL, \
	  "no end of sequence and no stop token before this many new tokens", "; 0: off", NULL) \
	X(BOOL, ignore_eos, PART, 0, 1, 0, 1, 0, 0, 0, NULL, NULL, NULL, \
	  "continue after the end of sequence", "", NULL) \
	X(BOOL, watermark, OFF_0, 0, 1, 1, 0, 0, 0, 0, NULL, NULL, NULL, \
	  "add 2 to the logits of half of the tokens, selected by the last one (arXiv:2301.10226)", "", NULL) \
	X(INT, repeat_last_n, PART_0, -1, INT32_MAX, -1, INT32_MAX, 0, 64, 64, NULL, NULL, "penalty_last_n", \
	  "all three penalties count the last N tokens of prompt and output", "; -1: all; 0: as each penalty states", "; -1: all; 0: no penalty") \
	X(FLOAT, dry_multiplier, OFF_0, 0, 1e6, 0, 100, 0, 0, 0, NULL, NULL, NULL, \
	  "DRY: scale of the penalty of tokens that continue a repetition", "; 0: off", NULL) \
	X(FLOAT, dry_base, PART, 0, 1e6, 0, 100, 1.75, 1.75, 1.75, NULL, NULL, NULL, \
	  "DRY: factor per token of the repetition", "; below 1: 1.75", NULL) \
	X(INT, dry_allowed_length, PART, 0, INT32_MAX, 1, INT32_MAX, 2, 2, 2, NULL, NULL, NULL, \
	  "DRY: longest repetition without a growing penalty", "; 0: 2", "") \
	X(INT, dry_penalty_last_n, PART_0, 0, INT32_MAX, -1, INT32_MAX, -1, -1, -1, NULL, NULL, NULL, \
	  "DRY: number of last tokens that are searched", "; 0: all", "; -1: all; 0: no DRY") \
	X(FLOAT, xtc_probability, OFF_0, 0, 1, 0, 1, 0, 0, 0, NULL, NULL, "xtc_probability", \
	  "XTC: probability of removing the most likely tokens", "; 0: off", NULL) \
	X(FLOAT, xtc_threshold, PART_0, 0, 1, 0, 1, 0.1, 0.1, 0.1, NULL, NULL, "xtc_threshold", \
	  "XTC: keep only the least likely token of those that reach this probability", "; 0: 0.1; above 0.5: off", "; above 0.5: off") \
	X(FLOAT, top_n_sigma, OFF_0, 0, 1e6, -1, 1e6, 0, 0, 0, NULL, NULL, NULL, \
	  "drop tokens whose logit is more than N standard deviations below the largest", "; 0: off", "; 0 or -1: off") \
	X(FLOAT, dynatemp_range, OFF_0, 0, 1e6, 0, 100, 0, 0, 0, NULL, NULL, NULL, \
	  "choose a temperature at most this far from temperature, by the entropy", "; 0: off", NULL) \
	X(FLOAT, dynatemp_exponent, PART_0, 0, 1e6, 0, 100, 1, 1, 1, NULL, NULL, NULL, \
	  "exponent of the entropy in the choice of the temperature", "; 0: 1", "") \
	X(INT, mirostat, OFF_0, 0, 2, 0, 2, 0, 0, 0, NULL, NULL, "mirostat", \
	  "Mirostat 1 or 2 (arXiv:2007.14966) instead of top_k and all later samplers", "; 0: off", NULL) \
	X(FLOAT, mirostat_tau, PART_0, 0, 1e6, 0, 100, 5, 5, 5, NULL, NULL, "mirostat_tau", \
	  "Mirostat: target surprise in bits", "; 0: 5", "") \
	X(FLOAT, mirostat_eta, PART_0, 0, 1e6, 0, 100, 0.1, 0.1, 0.1, NULL, NULL, "mirostat_eta", \
	  "Mirostat: learning rate", "; 0: 0.1", "") \
	X(INT, min_keep, PART, 0, INT32_MAX, 0, INT32_MAX, 0, 0, 0, NULL, NULL, NULL, \
	  "top_p, min_p, typical_p and XTC leave at least N tokens", "", NULL)
/* Samplers that may be ordered (llmc_params.samplers): letter and name */
#define LLMC_SAMPLERS(X) \
	X(e, "penalties") \
	X(d, "dry") \
	X(s, "top_n_sigma") \
	X(k, "top_k") \
	X(y, "typ_p") \
	X(p, "top_p") \
	X(m, "min_p") \
	X(x, "xtc") \
	X(t, "temperature") \
	X(i, "infill")
#define LLMC_SAMPLER_LETTER(letter, name) #letter
#define LLMC_SAMPLER_LETTERS LLMC_SAMPLERS(LLMC_SAMPLER_LETTER)
#define LLMC_OPTION_TYPE_FLOAT float
#define LLMC_OPTION_TYPE_INT int32_t
#define LLMC_OPTION_TYPE_BOOL bool
#define LLMC_OPTION_FIELD(kind, name, ...) LLMC_OPTION_TYPE_##kind name;

/* default of llmc_params.dry_sequence_breakers */
#define LLMC_DRY_BREAKERS "\n", ":", "\"", "*"

typedef struct llmc_params { /* LLMC_INIT selects greedy decoding of up to 256 new tokens */
	size_t size;
	LLMC_SAMPLING_OPTIONS(LLMC_OPTION_FIELD)
	uint64_t seed;
	int32_t max_tokens; /* number of new tokens; 0: 256; -1: until the context is full */
	/* stop strings, NULL-terminated, or NULL; they are removed from the text */
	const char *const *stop;
	int32_t n_stop_tokens, n_logit_bias, n_bad_words;
	const int32_t *stop_tokens;     /* ids that end the output, and are not part of it */
	const llmc_bias *logit_bias;    /* added to the logits; -INFINITY forbids a token */
	const llmc_sequence *bad_words; /* token sequences that never appear */
	/* grammar that the output must match; the output ends when nothing can follow. NULL: none.
	 * Calls that copy the parameters keep the grammar open. E_INPUT if the grammar was made for
	 * another tokenizer than the model's */
	llmc_grammar *grammar;
	/* strings that must be generated, in this order, before the grammar applies (for example
	 * the end of reasoning, or the start of a tool call); NULL-terminated. NULL: the grammar
	 * applies at once */
	const char *const *grammar_after;
	/* draft tokens per step, 1 .. LLMC_MAX_SPECULATE; 0: the engine's default; -1: none. Does
	 * not change the output */
	int32_t speculate;
	/* two strings between which stop strings do not apply (reasoning). If the first is empty,
	 * the reasoning begins where the output begins. NULL: stop strings always apply */
	const char *const *stop_ignore;
	/* DRY: strings that end a repetition, NULL-terminated; NULL: LLMC_DRY_BREAKERS. Needs a
	 * tokenizer, so llmc_sampler_open ignores it */
	const char *const *dry_sequence_breakers;
	/* two strings around the reasoning. If the first is empty, the reasoning begins where the
	 * output begins. After thinking_budget tokens of reasoning the second string is forced.
	 * NULL: no limit. Needs a tokenizer, so llmc_sampler_open ignores it */
	const char *const *thinking;
	int32_t thinking_budget;
	/* 0: any token may be sampled; otherwise only those in allowed_tokens, ends of sequence
	 * included */
	int32_t n_allowed_tokens;
	const int32_t *allowed_tokens;
	/* order of samplers, with llama.cpp's names separated by ';', or with one letter for each
	 * (LLMC_SAMPLERS). Samplers that are not listed do not run; without temperature, the
	 * temperature is 1. Mirostat ignores the order. "": no samplers; NULL: the library's
	 * order */
	const char *samplers;
} llmc_params;

/* A row of LLMC_SAMPLING_OPTIONS at run time, for programs that access options by name */
typedef enum llmc_option_kind {
	LLMC_OPTION_FLOAT,
	LLMC_OPTION_INT,
	LLMC_OPTION_BOOL
} llmc_option_kind;
/* Rule of an option: which values have no effect */
typedef enum llmc_option_rule {
	LLMC_OPTION_OFF_0,   /* 0 */
	LLMC_OPTION_OFF_0_1, /* 0 and 1 */
	LLMC_OPTION_ABOVE_0, /* 0 and 1; over HTTP 0 is an error */
	LLMC_OPTION_PART,    /* all, unless another option is on, of which it is a part */
	/* the same, and 0 selects a default; over HTTP 0 is a value like others */
	LLMC_OPTION_PART_0
} llmc_option_rule;
/* Servers with defaults of their own */
typedef enum llmc_option_default {
	LLMC_DEFAULT_OPENAI,
	LLMC_DEFAULT_LLAMA_CPP,
	LLMC_DEFAULT_OLLAMA,
	LLMC_DEFAULT_COUNT
} llmc_option_default;
typedef struct llmc_option {
	llmc_option_kind kind;
	llmc_option_rule rule;
	const char *name, *alias, *hf, *gguf, *text;
	size_t offset; /* byte offset of the field in llmc_params */
	double least, most;
	/* http_least > http_most: not an HTTP field */
	double http_least, http_most, http_default[LLMC_DEFAULT_COUNT];
} llmc_option;
LLMC_API const llmc_option *llmc_sampling_options(size_t *n); /* static memory */

/* Sampling that the authors of a model advise, in generation_config.json of a Hugging Face folder,
 * or in general.sampling.* of a GGUF file */
typedef struct llmc_advice {
	size_t size;
	llmc_params params; /* the advised fields of LLMC_SAMPLING_OPTIONS; others are 0 */
	uint64_t set;       /* bit i: the field in row i of llmc_sampling_options is advised */
	char source[32];    /* "generation_config.json" or "GGUF" */
	char text[256]; /* for example "temperature 0.6, top_p 0.95"; empty: there is no advice */
} llmc_advice;
LLMC_API void llmc_sampling_advice(const llmc_model *m, llmc_advice *out);

typedef enum llmc_finish {
	LLMC_FINISH_LENGTH, /* max_tokens was reached, or the context is full */
	LLMC_FINISH_EOS,
	LLMC_FINISH_STOP, /* a stop string */
	LLMC_FINISH_CANCEL,
	LLMC_FINISH_TOKEN,    /* a stop token */
	LLMC_FINISH_DEADLINE, /* only with an engine */
	LLMC_FINISH_COUNT,
} llmc_finish;
/* "length", "eos", "stop", "cancel", "token", "deadline" */
LLMC_API const char *llmc_finish_name(llmc_finish f);

typedef struct llmc_result {
	size_t size;
	llmc_finish finish;
	int32_t n_prompt, n_new;
	double prefill_s, decode_s; /* decode_s starts with the first new token */
} llmc_result;

/* Receives a new token and the text that has become final with it. The text may be empty, does not
 * end inside a character, and is valid only during the call. Return false to stop; finish is then
 * LLMC_FINISH_CANCEL. */
typedef bool (*llmc_token_fn)(void *user, int32_t id, const char *text, size_t n_bytes);

/* Prefill and decode on the caller's thread, in a new sequence that is freed at the end. `tok`: ids
 * as returned by llmc_tokenize. E_INPUT: the prompt is empty; E_RANGE: the prompt does not fit the
 * context, or an id is out of range; E_FULL: the session's other sequences leave too few pages. */
LLMC_API llmc_status llmc_generate(llmc_session *s, const int32_t *tok, size_t n_tok,
                                   const llmc_params *p, llmc_token_fn on_token, void *user,
                                   llmc_result *res, llmc_error *err);
LLMC_API llmc_status llmc_generate_text(llmc_session *s, const char *prompt, const llmc_params *p,
                                        llmc_token_fn on_token, void *user, llmc_result *res,
                                        llmc_error *err);

/* ---- query a model ---- */

typedef struct llmc_model_info {
	size_t size;
	char name[128], family[64], target[64]; /* target: "cpu-v3", "cuda-sm_90a", "ref", ... */
	int32_t vocab;                          /* rows of logits */
	int32_t n_layers, hidden;
	int32_t max_positions; /* context length that the model was trained for */
	bool hard_limit;       /* max_positions cannot be exceeded, because positions are learned */
	int32_t n_eos, eos[8];
	int32_t bos; /* -1: none */
	bool has_tokenizer, has_chat_template;
	int64_t n_params;
	int64_t weight_bytes;             /* bytes of packed weights, as held in memory */
	int64_t token_bytes;              /* weight bytes read per decoded token */
	double load_s, compile_s, pack_s; /* seconds that opening took, by phase */
	int32_t rank, ranks; /* first rank of this process, and number of ranks (parallel.tp) */
	/* contents of a row of llmc_forward; out_width: floats per row, which is vocab for
	 * logits */
	llmc_output output;
	int32_t out_width;
	/* pooling that the model was trained with; NONE: unknown, so the caller must choose */
	llmc_pool pool;
	bool normalize; /* whether vectors are divided by their length */
	/* a GPU and the CPU run the model (placement); weight_bytes and token_bytes are those of
	 * the GPU */
	bool two_devices;
	bool reads_images; /* prompts may have images (llmc_tower_open, llmc_request.images) */
	/* llmc_forward_rows: elements of an input row and of an output row; 0: there are none. In
	 * an input row of a draft checkpoint, the draft's own row begins at own_at */
	int64_t row_in, row_out, own_at;
} llmc_model_info;
/* the caller sets info->size */
LLMC_API void llmc_info(const llmc_model *m, llmc_model_info *info);

/* Write the value of a key of the resolved description, for example "attention.n_heads". E_INPUT:
 * there is no such key */
LLMC_API llmc_status llmc_get(const llmc_model *m, const char *key, char *buf, size_t cap,
                              size_t *need, llmc_error *err);

/* Strings that an embedding model expects before inputs of some kinds, for example "query" and
 * "document" (`prompts` of config_sentence_transformers.json). usual: the string before any input,
 * unless the caller selects another. Pointers are valid as long as the model. *n 0: there are none,
 * or the model's pooling excludes them. */
typedef struct llmc_input_prompt {
	const char *name, *text;
	bool usual;
} llmc_input_prompt;
LLMC_API const llmc_input_prompt *llmc_input_prompts(const llmc_model *m, size_t *n);

/* Return the names of a classifier's labels, [*n] in the order of its output: id2label of
 * config.json, or classifier.output_labels of a GGUF file, otherwise LABEL_0, LABEL_1, ...
 * *several: the labels are independent, so each has its own probability. Valid as long as the
 * model. *n 0: the model is not a classifier. */
LLMC_API const char *const *llmc_labels(const llmc_model *m, size_t *n, bool *several);

typedef struct llmc_memory {
	size_t size;
	int64_t weights, kv, scratch, state; /* bytes */
	int64_t kv_per_token;                /* bytes of KV per position */
	int64_t kv_per_seq; /* bytes of recurrent state per sequence, part of kv; 0: the model has
	                       none */
	/* bytes that are not needed because sliding-window layers keep only their window; 0: the
	 * model has no such layers */
	int64_t kv_saved;
	/* bytes of limits.snapshots and limits.marks for all sequences, part of kv */
	int64_t kv_snapshots;
	/* bytes of 16-bit copies of recent and first positions (kv.window, kv.sinks), part of kv;
	 * 0: none */
	int64_t kv_exact;
	/* bytes of pinned host memory that an engine allocates for KV pages (kv.host); not part of
	 * kv; 0: none */
	int64_t kv_host;
} llmc_memory;
LLMC_API llmc_status llmc_memory_for(const llmc_model *m, const llmc_limits *lim, llmc_memory *out,
                                     llmc_error *err);
/* One rank of a model that is split over several ranks (parallel.tp), or the whole model. A size is
 * 0 if the model has no such part. */
typedef struct llmc_rank_info {
	size_t size;
	llmc_memory memory; /* llmc_rank_for sets memory.size */
	/* attention heads; kv_heads 0: every rank has the whole latent */
	int32_t heads, kv_heads;
	int64_t ffn, expert, shared, vocab; /* columns of feed-forwards; rows of the LM head */
	int32_t sums, joins;                /* all-reduces and all-gathers per step */
	/* bytes per row of a step that the rank contributes to these */
	int64_t sum_bytes, join_bytes;
} llmc_rank_info;
/* E_RANGE: there is no such rank, or it belongs to another process. */
LLMC_API llmc_status llmc_rank_for(const llmc_model *m, int32_t rank, const llmc_limits *lim,
                                   llmc_rank_info *out, llmc_error *err);
/* Return the largest number of sequences of lim->context positions that fit into `bytes`; 0: not
 * even one fits. */
LLMC_API llmc_status llmc_fit(const llmc_model *m, int64_t bytes, const llmc_limits *lim,
                              int32_t *seqs, llmc_error *err);
/* Limits that the device's free memory allows */
typedef struct llmc_fitted {
	size_t size;
	llmc_limits limits; /* the caller's limits, with context and kv_tokens filled in */
	llmc_memory memory; /* memory that these limits require */
	/* free: bytes that are free; INT64_MAX: unknown. need: bytes of these for weights (unless
	 * they are loaded already), KV and scratch */
	int64_t free, need;
	char limited_by[160]; /* source of `free`: "MemAvailable", a file of a cgroup, "GPU 0" */
	char text[512];       /* one line: the choice and its reason */
} llmc_fitted;
/* Fill in the limits that are 0. context becomes the model's context, or less: the KV of one
 * sequence may take at most half of the host memory that weights and scratch leave (on a GPU, all
 * of it but a margin). kv_tokens becomes context * seqs, or less by the same rule, but at least one
 * context. bytes: limit of weights, KV and scratch together (0: none); if the model was opened with
 * no_weights, it replaces the free memory. E_FULL: the sum exceeds the free memory or `bytes`; the
 * message has a table and remedies. With no_fit the free memory is not read. */
LLMC_API llmc_status llmc_fit_limits(const llmc_model *m, const llmc_limits *lim, int64_t bytes,
                                     llmc_fitted *out, llmc_error *err);
LLMC_API const char *llmc_plan_text(const llmc_model *m); /* plan.txt; valid as long as the model */
LLMC_API const char *llmc_plan_json(const llmc_model *m);
LLMC_API const char *llmc_model_yaml(const llmc_model *m); /* the resolved description */

/* ---- text ---- */

/* belongs to the model; NULL: the model has none */
LLMC_API const llmc_tokenizer *llmc_model_tokenizer(const llmc_model *m);
/* Open tokenizer.json, tokenizer.model, a folder with one of these (or with ice_text.model, or with
 * vocab.json and merges.txt), a GGUF file (a vocabulary without weights is enough) or an .flm
 * file. */
LLMC_API llmc_status llmc_tokenizer_open(const char *path, llmc_tokenizer **out, llmc_error *err);
LLMC_API void llmc_tokenizer_close(llmc_tokenizer *t);
LLMC_API int32_t llmc_tokenizer_size(const llmc_tokenizer *t);

enum {
	LLMC_ADD_SPECIAL = 1,   /* add the prefix and suffix of the model (bos, eos) */
	LLMC_PARSE_SPECIAL = 2, /* recognise special tokens in the text */
	/* for the first string of a pair that forms one input: adds the prefix that tokenizer(text,
	 * text_pair) of transformers adds */
	LLMC_ADD_FIRST = 4,
	/* for the second string of the pair: adds separator and suffix. The pair is the
	 * concatenation of both lists of ids */
	LLMC_ADD_SECOND = 8,
	/* LLMC_BREAK in the text is removed; an added token that it interrupts is treated as
	 * text */
	LLMC_BREAKS = 16,
};
#define LLMC_BREAK "\xEF\xB7\x90" /* U+FDD0, a noncharacter */
LLMC_API llmc_status llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes,
                                   int flags, int32_t *ids, size_t cap, size_t *need,
                                   llmc_error *err);
/* Copy an untrusted string and insert an LLMC_BREAK into each special token. The copy can be part
 * of a prompt that is tokenized with LLMC_PARSE_SPECIAL | LLMC_BREAKS, for example as the content
 * of a message. An LLMC_BREAK in the string becomes U+FFFD. */
LLMC_API llmc_status llmc_break_special(const llmc_tokenizer *t, const char *text, size_t n_bytes,
                                        char *buf, size_t cap, size_t *need, llmc_error *err);
/* Return a lower bound of the number of ids that llmc_tokenize returns, without tokenizing. Use it
 * to reject an input that is too long. */
LLMC_API size_t llmc_tokenize_least(const llmc_tokenizer *t, const char *text, size_t n_bytes);
/* Convert ids to text, as the tokenizer's own decoder does. Invalid UTF-8 becomes U+FFFD.
 * skip_special omits special tokens. */
LLMC_API llmc_status llmc_detokenize(const llmc_tokenizer *t, const int32_t *ids, size_t n,
                                     bool skip_special, char *buf, size_t cap, size_t *need,
                                     llmc_error *err);
/* Return the token as its vocabulary spells it, for example with "Ġ" or "▁" for a space; NULL:
 * there is no such id. */
LLMC_API const char *llmc_token_text(const llmc_tokenizer *t, int32_t id);
/* Write the bytes that a token adds to an output. They may be part of a character, or contain NUL.
 * For a special token they are its name. E_INPUT: there is no such id. */
LLMC_API llmc_status llmc_token_bytes(const llmc_tokenizer *t, int32_t id, char *buf, size_t cap,
                                      size_t *need, llmc_error *err);
/* whether skip_special omits the token */
LLMC_API bool llmc_token_is_special(const llmc_tokenizer *t, int32_t id);

/* Tokens that mark the parts of a prompt whose middle is missing (fill-in-the-middle), as ids or
 * -1. The prompt is
 *
 *     prefix <its text> suffix <its text> middle
 *
 * or, with suffix_first, suffix <its text> prefix <its text> middle. repo and file mark the names
 * of a repository and of a file, which may precede this. stop: tokens that end the generated
 * middle, in addition to the end of the sequence */
typedef struct llmc_fim {
	size_t size;
	int32_t prefix, suffix, middle, repo, file;
	bool suffix_first;
	int32_t n_stop, stop[12];
} llmc_fim;
/* returns false if the tokenizer has no such tokens */
LLMC_API bool llmc_fim_tokens(const llmc_tokenizer *t, llmc_fim *out);

LLMC_API bool llmc_has_chat_template(const llmc_tokenizer *t);
/* source text of the template; NULL: there is none */
LLMC_API const char *llmc_chat_template(const llmc_tokenizer *t);
/* Apply the chat template.
 *   messages_json   [{"role":"user","content":"..."}, ...]
 *   options_json    variables: {"add_generation_prompt":true,"tools":[...]}, or NULL;
 *                   "chat_template" replaces the model's template
 *
 * E_INPUT: the message is the text that the template passes to raise_exception. */
LLMC_API llmc_status llmc_chat(const llmc_tokenizer *t, const char *messages_json,
                               const char *options_json, char *buf, size_t cap, size_t *need,
                               llmc_error *err);

/* Incremental detokeniser: takes ids, and returns the text that can no longer change. */
LLMC_API llmc_status llmc_stream_open(const llmc_tokenizer *t, bool skip_special, llmc_stream **out,
                                      llmc_error *err);
/* *text is valid until the next call. id -1 returns the text that is still held back */
LLMC_API llmc_status llmc_stream_feed(llmc_stream *s, int32_t id, const char **text,
                                      size_t *n_bytes, llmc_error *err);
LLMC_API void llmc_stream_close(llmc_stream *s);

/* ---- images ---- */

/* Pixels of an image, upright, with 8 bits per channel. Immutable; any thread may use it. */
typedef struct llmc_image llmc_image;
/* Decode JPEG, PNG, WebP, GIF (first frame) or BMP.
 *   max_pixels   limit of width times height, checked before memory is allocated; 0: 67,108,864
 *
 * E_INPUT: the data is not such an image, is damaged, or exceeds the limit. E_MISSING: this build
 * of llmc lacks the decoder. */
LLMC_API llmc_status llmc_image_decode(const void *data, size_t n, int64_t max_pixels,
                                       llmc_image **out, llmc_error *err);
/* Copy pixels of 1 (grey), 3 (RGB) or 4 (RGBA) channels, rows from the top. stride: bytes from one
 * row to the next; 0: rows have no padding */
LLMC_API llmc_status llmc_image_from_pixels(const uint8_t *pixel, int32_t width, int32_t height,
                                            int32_t channels, size_t stride, llmc_image **out,
                                            llmc_error *err);
/* Return [height, width, channels], valid until the image is closed. channels: 3 or 4 */
LLMC_API const uint8_t *llmc_image_pixels(const llmc_image *im, int32_t *width, int32_t *height,
                                          int32_t *channels);
LLMC_API void llmc_image_close(llmc_image *im); /* NULL is allowed */

/* Preprocessing of images for a model, equal to that of the model's image processor in
 * transformers. Immutable; any thread may use it. */
typedef struct llmc_image_processor llmc_image_processor;
/* Read preprocessor_config.json, processor_config.json, tokenizer_config.json and config.json of a
 * model's folder, or the keys of an mmproj GGUF file. E_INPUT: names the class, step or value that
 * llmc does not support. */
LLMC_API llmc_status llmc_image_processor_open(const char *path, llmc_image_processor **out,
                                               llmc_error *err);
LLMC_API void llmc_image_processor_close(llmc_image_processor *p); /* NULL is allowed */

/* Patches of one image. llmc_image_patches_release releases all of it. */
typedef struct llmc_image_patches {
	size_t size;
	void *owner;      /* memory of all arrays below */
	const float *row; /* [n_row, width], the values of one patch per row */
	int64_t n_row;
	int32_t width;
	const int32_t *pos[2]; /* [n_row] each: row and column of a patch in its tile */
	/* number of tiles, which are in the order of `row`; height and width of each tile in
	 * patches */
	int32_t n_tile;
	const int32_t *tile_height, *tile_width;
	/* grid of the tiles into which the image was cut, not counting a tile with the whole image;
	 * 0: not cut */
	int32_t tiles_high, tiles_wide;
	/* n_token: number of embeddings that the vision tower makes of the image; text: replaces
	 * `placeholder` in the prompt, and contains `token` n_token times */
	int64_t n_token;
	const char *text, *placeholder, *token;
} llmc_image_patches;
/* Prepare an image. E_INPUT: the processor does not accept its shape. */
LLMC_API llmc_status llmc_image_prepare(const llmc_image_processor *p, const llmc_image *im,
                                        llmc_image_patches *out, llmc_error *err);
LLMC_API void llmc_image_patches_release(llmc_image_patches *patches);

/* ---- reasoning and tools ---- */

/* Parser for reasoning and tool calls, in the format of the model's chat template
 * (configs/formats/calls.yaml). The parser receives the output as it is generated, with special
 * tokens as text, and reports its parts.
 *
 *     llmc_calls_open(tokenizer, prompt, n_prompt, tools_json, &c, &err);
 *     llmc_calls_feed(c, text, n, false, on_piece, user, &err);      for each chunk of output
 *     llmc_calls_feed(c, "", 0, true, on_piece, user, &err);         at the end
 *
 * `prompt` is the rendered template, `tools_json` OpenAI's array. One thread at a time. Output that
 * cannot be parsed as a call is reported as text, never as an error. */
typedef struct llmc_calls llmc_calls;
typedef enum llmc_piece_kind {
	LLMC_PIECE_TEXT,
	LLMC_PIECE_REASONING,
	LLMC_PIECE_CALL,      /* a call begins; the text is the complete name of the tool */
	LLMC_PIECE_ARGUMENTS, /* the next part of the arguments: JSON, with the bytes that the model
	                         wrote */
	LLMC_PIECE_DONE,      /* the call has ended */
} llmc_piece_kind;
/* call: index of the call, from 0; -1 for parts that are not in a call */
typedef void (*llmc_piece_fn)(void *user, llmc_piece_kind kind, int32_t call, const char *text,
                              size_t n_bytes);
/* tools_json NULL: only reasoning is parsed. The tokenizer may be closed before the parser. If the
 * only parameter of a tool is a string, the tool may have a grammar for it next to its `function`:
 * "format": {"type": "grammar", "syntax": "lark" or "regex", "definition"}. llmc_calls_rules
 * enforces it. */
LLMC_API llmc_status llmc_calls_open(const llmc_tokenizer *t, const char *prompt, size_t n_prompt,
                                     const char *tools_json, llmc_calls **out, llmc_error *err);
LLMC_API llmc_status llmc_calls_feed(llmc_calls *c, const char *text, size_t n_bytes, bool last,
                                     llmc_piece_fn fn, void *user, llmc_error *err);
LLMC_API void llmc_calls_close(llmc_calls *c);
/* Set marks to the strings before and after reasoning. If the prompt has already opened the
 * reasoning, the first is empty. Valid as long as the parser. false: the format has no reasoning */
LLMC_API bool llmc_calls_reasoning(const llmc_calls *c, const char *marks[2]);
/* Called inside fn: byte offset of the current LLMC_PIECE_TEXT in the output */
LLMC_API size_t llmc_calls_at(const llmc_calls *c);
typedef enum llmc_mark {
	LLMC_MARK_ROW,           /* name of the format */
	LLMC_MARK_REASONING,     /* opens the reasoning */
	LLMC_MARK_REASONING_END, /* ends reasoning, also if the prompt has opened it */
	LLMC_MARK_CALL,          /* opens a call */
	/* system prompt that lists the tools ({tools}), for a template that has no variable for
	 * tools */
	LLMC_MARK_SYSTEM,
} llmc_mark;
/* NULL: there is none; valid as long as the parser */
LLMC_API const char *llmc_calls_mark(const llmc_calls *c, llmc_mark which);
/* Write a grammar of kind LLMC_GRAMMAR_PARTS that allows only calls of these tools, with arguments
 * that match the tool's schema. only: name of the one tool that is allowed; NULL: all are. E_INPUT:
 * there is no such tool, or the model's call format is unknown */
enum {
	LLMC_CALLS_ONE = 1, /* exactly one call */
	/* LLMC_MARK_CALL has already been generated, so the grammar starts after it */
	LLMC_CALLS_BEGUN = 2,
	LLMC_CALLS_FREE = 4, /* arguments may be any object, whatever the schema */
};
LLMC_API llmc_status llmc_calls_rules(const llmc_calls *c, const char *only, int flags, char *buf,
                                      size_t cap, size_t *need, llmc_error *err);

/* ---- images ---- */

/* Rows of one image of a prompt, which replace the embeddings of its tokens. key: hash of the data
 * from which the rows were made; equal images share pages of the prefix cache */
typedef struct llmc_image_part {
	size_t size;
	const float *row; /* [n_row, hidden] */
	int32_t n_row;
	uint64_t key;
	/* number of rows and columns of the tokens, for models whose RoPE has sections; 0:
	 * unknown */
	int32_t height, width;
} llmc_image_part;

/* The vision tower of a model: encoded images -> rows of the language model.
 *
 *     llmc_tower_open(model, NULL, &tower, &err);          model: opened with "vision.part=rows"
 *     llmc_tower_read(tower, bytes, n, NULL, &image, &err);   JPEG, PNG, WebP, GIF, BMP
 *     llmc_tower_image_text(image)                            replaces llmc_tower_placeholder(tower)
 *                                                             in the rendered chat template
 *     llmc_tower_image_part(image, &part)                     request.images: of all, in order
 *
 * Any thread may use a tower, which runs one image at a time. Tiles of images and steps of the
 * model's engines run in order of arrival. */
typedef struct llmc_tower llmc_tower;
typedef struct llmc_tower_image llmc_tower_image;
typedef struct llmc_read_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	int64_t max_pixels; /* limit of width times height [67,108,864] */
	bool low; /* prepare only the whole image, at the size of one tile; E_INPUT: the model does
	             not use tiles */
	/* return only the text and the number of rows: the tower does not run, and rows are NULL */
	bool count_only;
	/* called before the image is decoded and before each tile; return false to stop with
	 * E_CANCELLED [always true] */
	bool (*go_on)(void *user);
	void *user;
} llmc_read_options;
/* Open the tower in the checkpoint of the model. opt: as for the model (device, arch, log); NULL:
 * the CPU. If the tower or the model is opened with no_weights, the tower only counts tokens and
 * bytes. E_INPUT: the model reads text only, or its folder lacks the configuration of the image
 * processor */
LLMC_API llmc_status llmc_tower_open(llmc_model *m, const llmc_options *opt, llmc_tower **out,
                                     llmc_error *err);
LLMC_API void llmc_tower_close(llmc_tower *t); /* NULL is allowed */
/* Return the text that stands for an image in the output of the chat template. */
LLMC_API const char *llmc_tower_placeholder(const llmc_tower *t);
/* Return the text of the token whose embeddings the rows replace. The placeholder contains it. */
LLMC_API const char *llmc_tower_token(const llmc_tower *t);
/* Return the memory of weights and buffers. Waits for a tile that is running. */
LLMC_API int64_t llmc_tower_bytes(llmc_tower *t);
/* Decode an image, prepare it as the model's processor does, and run the tower. E_INPUT: the bytes
 * are not an image, are damaged, or exceed the limits of pixels and bytes */
LLMC_API llmc_status llmc_tower_read(llmc_tower *t, const void *data, size_t n,
                                     const llmc_read_options *opt, llmc_tower_image **out,
                                     llmc_error *err);
LLMC_API void llmc_tower_image_close(llmc_tower_image *im); /* NULL is allowed */
LLMC_API const char *llmc_tower_image_text(const llmc_tower_image *im);
/* The rows are valid until the image is closed. */
LLMC_API void llmc_tower_image_part(const llmc_tower_image *im, llmc_image_part *out);

/* Options for fetching the file of an http:// or https:// URL that a third party has chosen,
 * without access to private networks */
typedef struct llmc_fetch_options {
	size_t size;
	/* hosts that are allowed, "a.example,b.example:8443,*.c.example"; "*": all. Entries without
	 * a port allow ports 80 and 443. A host name may resolve to public addresses only; an
	 * allowed numeric address is not restricted */
	const char *hosts;
	int64_t max_bytes;         /* [32 MiB] */
	double timeout_s;          /* seconds for the whole fetch, redirects included [10] */
	bool (*go_on)(void *user); /* called repeatedly; return false to stop with E_CANCELLED
	                              [always true] */
	void *user;
} llmc_fetch_options;
/* *data must be freed with llmc_free. Redirects are followed if their URL passes the same checks. A
 * connection uses exactly the address that was checked. E_INPUT: the URL or an address is not
 * allowed, or the file is too large. E_IO: the server cannot be reached, is too slow or returns an
 * error. E_MISSING: libcurl is not installed. */
LLMC_API llmc_status llmc_fetch(const char *url, const llmc_fetch_options *opt, void **data,
                                size_t *n, llmc_error *err);

/* ---- grammars ---- */

/* A grammar restricts generation: at each position it allows exactly the tokens after which the
 * output can still match. Set it in llmc_params.grammar, or run it as a matcher next to your own
 * sampler.
 *
 *     llmc_grammar_open(tokenizer, LLMC_GRAMMAR_JSON_SCHEMA, schema, n, NULL, &g, &err);
 *     params.grammar = g;
 *     llmc_generate_text(session, prompt, &params, ...);
 *     llmc_grammar_close(g);
 *
 * Schemas: properties are generated in the order of `properties`, whether required or not.
 * llmc_additional decides about properties that are not listed. White space between JSON tokens is
 * bounded (one space, or two newlines and twenty spaces), and so is the number of digits.
 * docs/constrained.md lists the keywords. */
typedef enum llmc_grammar_kind {
	LLMC_GRAMMAR_JSON,        /* any JSON object; the text argument is ignored */
	LLMC_GRAMMAR_JSON_SCHEMA, /* a JSON schema */
	/* regular expression that must match the whole output; without look-around and
	 * back-references */
	LLMC_GRAMMAR_REGEX,
	LLMC_GRAMMAR_GBNF,   /* llama.cpp's format: rules, with `root` as the start */
	LLMC_GRAMMAR_CHOICE, /* one of a JSON array of strings */
	/* fixed strings between schemas and expressions, as JSON; see docs/constrained.md */
	LLMC_GRAMMAR_PARTS,
	/* Lark's format without its lexer features: rules, with `start` as the start; see
	 * docs/constrained.md */
	LLMC_GRAMMAR_LARK,
} llmc_grammar_kind;

/* Whether an object that lists properties, but has no additionalProperties, may have other
 * properties, and whether an array with prefixItems, but without items, may have more elements. For
 * arguments of calls that are not written as JSON, AUTO is CLOSED. */
typedef enum llmc_additional {
	LLMC_ADDITIONAL_AUTO,   /* only if the schema names its dialect by a string `$schema` */
	LLMC_ADDITIONAL_CLOSED, /* no */
	LLMC_ADDITIONAL_OPEN,   /* yes, as JSON Schema defines it */
} llmc_additional;

typedef struct llmc_grammar_options {
	size_t size;
	bool compact; /* no white space between JSON tokens */
	/* the defaults of JSON Schema: any other properties, any type, unlimited white space and
	 * digits */
	bool standard;
	bool strict; /* keywords that cannot be enforced are errors instead of being ignored */
	llmc_additional additional; /* LLMC_ADDITIONAL_; `standard` implies OPEN */
} llmc_grammar_options;

/* Parse a grammar. Any thread may call. The tokenizer may be closed before the grammar. t NULL: the
 * tokens are the 256 bytes, which is enough for llmc_grammar_match. E_INPUT: a syntax error or an
 * unsupported keyword; the message contains its path or position. Grammars are reference counted:
 * each retain needs a close. */
LLMC_API llmc_status llmc_grammar_open(const llmc_tokenizer *t, llmc_grammar_kind kind,
                                       const char *text, size_t n_bytes,
                                       const llmc_grammar_options *opt, llmc_grammar **out,
                                       llmc_error *err);
LLMC_API void llmc_grammar_retain(llmc_grammar *g);
/* NULL is allowed; matchers and samplers keep their grammar open */
LLMC_API void llmc_grammar_close(llmc_grammar *g);

/* Match a string against a grammar, without a model. *complete: the whole string is an output of
 * the grammar. *n_matched: length in bytes of the longest prefix of the string that is also a
 * prefix of an output. If the grammar has special tokens, their names in the string match them.
 * E_RANGE, E_MEMORY: the grammar is too ambiguous for the bounds of the matcher. */
LLMC_API llmc_status llmc_grammar_match(llmc_grammar *g, const char *text, size_t n_bytes,
                                        bool *complete, size_t *n_matched, llmc_error *err);

/* Position of one output in a grammar.
 *   mask     bit `id & 31` of bits[id >> 5] is set if the token may come next; bits beyond the
 *            vocabulary are 0. End-of-sequence tokens are allowed when the output may end
 *   accept   E_INPUT: the token is not allowed
 *
 * E_RANGE, E_MEMORY: the grammar is too ambiguous for the bounds of the matcher. */
LLMC_API llmc_status llmc_matcher_open(llmc_grammar *g, llmc_matcher **out, llmc_error *err);
LLMC_API void llmc_matcher_close(llmc_matcher *m);
LLMC_API llmc_status llmc_matcher_mask(llmc_matcher *m, uint32_t *bits, size_t n_words,
                                       llmc_error *err);
LLMC_API llmc_status llmc_matcher_accept(llmc_matcher *m, int32_t id, llmc_error *err);
LLMC_API bool llmc_matcher_may_end(llmc_matcher *m); /* whether the output so far is complete */
/* whether the output is complete and nothing can follow */
LLMC_API bool llmc_matcher_ended(llmc_matcher *m);
LLMC_API void llmc_matcher_reset(llmc_matcher *m); /* returns to the start of the grammar */

/* ---- sessions and sampling ---- */

/* Create a sequence. E_FULL: the session already has limits.seqs sequences. length_bound: largest
 * number of prompt and new tokens (0: the context), which selects RoPE tables that depend on the
 * length */
LLMC_API llmc_status llmc_seq_new(llmc_session *s, int32_t length_bound, llmc_seq *out,
                                  llmc_error *err);
/* the copy shares pages with the original */
LLMC_API llmc_status llmc_seq_fork(llmc_session *s, llmc_seq from, llmc_seq *out, llmc_error *err);
/* Drop all positions from `len` on. E_RANGE: a window layer has freed positions that it would need
 * again (this never happens if `len` is at most 32 positions below the current length); or, in
 * models with RoPE positions of images or whose images attend to themselves, `len` is neither 0 nor
 * after the last image */
LLMC_API llmc_status llmc_seq_trim(llmc_session *s, llmc_seq q, int32_t len, llmc_error *err);
/* Mark the current position of a sequence with recurrent state. Such a sequence can be trimmed only
 * to 0 or to its last mark. Does nothing for models without recurrent state. E_FULL: limits.marks
 * marks are in use. A mark is dropped when its sequence is freed or trimmed to an earlier
 * position */
LLMC_API llmc_status llmc_seq_mark(llmc_session *s, llmc_seq q, llmc_error *err);
LLMC_API void llmc_seq_unmark(llmc_session *s, llmc_seq q);
/* -1: there is no such sequence */
LLMC_API int32_t llmc_seq_len(const llmc_session *s, llmc_seq q);
LLMC_API void llmc_seq_free(llmc_session *s, llmc_seq q);
/* Serialise the KV of a sequence; create a sequence from these bytes in any session of the same
 * model and target. E_INPUT: the bytes are damaged or from another model; E_FULL: there are too few
 * pages */
LLMC_API llmc_status llmc_seq_save(llmc_session *s, llmc_seq q, void *buf, size_t cap, size_t *need,
                                   llmc_error *err);
LLMC_API llmc_status llmc_seq_load(llmc_session *s, const void *buf, size_t n, llmc_seq *out,
                                   llmc_error *err);

/* LoRA adapters in PEFT format, selected per sequence, for models opened with adapter slots
 * ("adapters.slots=4", "adapters.rank=16"). One step can have sequences with different adapters and
 * without one. Adapter ids are never reused. Any thread may call, also while sessions run.
 *   load    E_INPUT: the model has no slots, the folder does not exist, or the adapter is for another
 *           model, for modules without slots or of too large a rank; E_FULL: all slots are in use.
 *           scale multiplies the adapter's own scale; 1: as trained
 *   unload  No new sequence can select the adapter. Its slot is free once the last sequence and
 *           request that use it end. E_RANGE: no such adapter */
LLMC_API llmc_status llmc_adapter_load(llmc_model *m, const char *folder, double scale,
                                       int32_t *adapter, llmc_error *err);
LLMC_API llmc_status llmc_adapter_unload(llmc_model *m, int32_t adapter, llmc_error *err);
LLMC_API int llmc_adapter_slots(const llmc_model *m); /* 0: the model has none */
/* Select the adapter of an empty sequence; 0: none. Forks inherit the adapter, and so do sequences
 * loaded from the saved bytes of the sequence. E_RANGE: there is no such sequence or adapter, or
 * the sequence is not empty */
LLMC_API llmc_status llmc_seq_adapt(llmc_session *s, llmc_seq q, int32_t adapter, llmc_error *err);

typedef struct llmc_chunk {
	llmc_seq seq;
	const int32_t *tok; /* [n_tok], 0 <= id < vocab */
	int32_t n_tok;      /* >= 1 */
	int32_t n_out;      /* the last n_out rows of the chunk return logits, 0 .. n_tok */
} llmc_chunk;

/* Run chunks of different sequences through the model in one step. Blocks; allocates nothing.
 *   logits [sum of n_out, llmc_model_info.out_width] fp32, owned by the caller; chunks in order;
 *          NULL skips the copy
 *
 * E_RANGE, E_FULL: nothing ran, and no sequence has changed. E_DEVICE: from now on only
 * llmc_session_close() is allowed. */
LLMC_API llmc_status llmc_forward(llmc_session *s, const llmc_chunk *chunk, size_t n, float *logits,
                                  llmc_error *err);
/* Variant of llmc_forward for a model and its draft head: an MTP head of the same description
 * (mtp.part) or a draft checkpoint (EAGLE-3). The model returns hidden rows; the head takes one row
 * with each token. Token i + 1 of a sequence goes with row i of the model or, for later draft
 * tokens, with row i of the head. An input row of a draft checkpoint is a row of the model followed
 * by zeros, or own_at zeros followed by a row of the head.
 *   came   [sum of n_tok, llmc_model_info.row_in] input rows of a head; NULL for the model
 *   rows   [sum of n_tok, llmc_model_info.row_out] output, owned by the caller; chunks in order;
 *          NULL skips the copy
 *
 * E_RANGE also if the model neither takes nor returns rows. */
LLMC_API llmc_status llmc_forward_rows(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                       const float *came, float *logits, float *rows,
                                       llmc_error *err);
/* Return the token of each column of a draft checkpoint's logits, [*n]; NULL: the token is the
 * number of the column. Valid as long as the model. */
LLMC_API const int32_t *llmc_draft_tokens(const llmc_model *m, size_t *n);

/* Rows that come with the tokens of a chunk: patches of images, or rows of a vision tower.
 *   row      [-, width] rows. Tower: width is vision.width, and token i of the chunk, whose id is 0, is
 *            patch i. Language model: width is hidden, and row at[i] replaces the embedding
 *            of token i
 *   at       [n_tok] index of a token's row, -1: none; NULL for a tower
 *   pos      [n_tok] each. Tower: time, row and column of a patch. Language model whose rope has
 *            sections: RoPE positions of the tokens; later chunks without `pos`
 *            continue from the largest position of the last token. NULL: the positions of the
 * sequence
 *   number   tower with learned positions: [n_tok] number of a patch's learned position. Else NULL
 *   window   tower with windows (attention.window_kind segments): [n_tok] number of a patch's
 *            window, from 0 on; patches of a window are adjacent. Else NULL
 * */
typedef struct llmc_image_rows {
	size_t size;
	const float *row;
	const int32_t *at;
	const int32_t *pos[3];
	const int32_t *number;
	const int32_t *window;
} llmc_image_rows;
/* Variant of llmc_forward for two kinds of models: a vision tower, whose chunks are images with
 * n_out = n_tok / vision.merge rows of output; and a language model that was opened with
 * "vision.part=rows". rows: one per chunk; its arrays are only read during the call. E_RANGE also
 * if the model takes no such rows */
LLMC_API llmc_status llmc_forward_images(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                         const llmc_image_rows *rows, float *logits,
                                         llmc_error *err);

/* Compute the vector of one input, for a model whose output is hidden states or label scores. Rows
 * are pooled, then divided by the vector's length if `normalize`. Runs in a new sequence, which is
 * freed at the end.
 *   out  [out_width] fp32, owned by the caller
 *
 * E_INPUT: there are no tokens, no pooling is selected, or the output is logits; E_RANGE, E_FULL:
 * as in llmc_forward. */
LLMC_API llmc_status llmc_embed(llmc_session *s, const int32_t *tok, size_t n_tok, llmc_pool pool,
                                bool normalize, float *out, llmc_error *err);

/* Decode without waiting for the host: each token is sampled on the device and fed to the next step
 * before the host has read it. Sessions on a GPU can do this if the sampling parameters need
 * nothing from the host between steps; sessions on a CPU cannot.
 *
 *     llmc_sample_params(s, q, &params, prompt, n_prompt, &err);
 *     llmc_queue_step(s, &prompt_chunk, 1, &err);              n_out is 1
 *     for (;;) {
 *             llmc_queue_step(s, &next_chunk, 1, &err);        tok NULL: the token sampled last
 *             llmc_take_sampled(s, &id, NULL, &err);           reads that token
 *     }
 *
 * llmc_queue_step queues a step and returns. One token is sampled from the last row of each chunk
 * with n_out 1. Two steps may be in flight; a third is E_BUSY. llmc_take_sampled waits for the
 * oldest step and returns the ids (and logprobs, if not NULL) of that step's chunks with n_out 1,
 * in order. */
LLMC_API bool llmc_can_sample(const llmc_session *s, const llmc_params *p);
LLMC_API llmc_status llmc_sample_params(llmc_session *s, llmc_seq q, const llmc_params *p,
                                        const int32_t *prompt, size_t n_prompt, llmc_error *err);
LLMC_API llmc_status llmc_queue_step(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                     llmc_error *err);
LLMC_API llmc_status llmc_take_sampled(llmc_session *s, int32_t *ids, float *logprobs,
                                       llmc_error *err);

/* Time of each op of a step. An op is its kernel in all layers, run repeatedly on the data of the
 * last llmc_forward. On a GPU the kernel alone is timed; on a CPU the kernel within the step, with
 * the barrier after it. llmc_op_times blocks and calls fn on this thread, once per kernel in step
 * order; fn must not use the session. Afterwards the sequences of the step and their forks have
 * invalid values and must be freed. E_RANGE: no step has run, or one of its sequences has been
 * freed or trimmed since; E_MEMORY. A step that is not measured has no overhead. */
typedef struct llmc_op_time {
	const char *op;       /* name as in llmc plan; valid as long as the model */
	int32_t n;            /* launches per step */
	double seconds;       /* sum over all launches */
	int64_t weight_bytes; /* bytes of weights that all launches read */
	bool library;         /* true: cuBLASLt computes its matmul */
	int64_t cache_bytes;  /* bytes of the KV cache that attention reads */
	int64_t ops;          /* multiplications and additions of matmuls and attention */
} llmc_op_time;
typedef void (*llmc_op_time_fn)(void *user, const llmc_op_time *t);
LLMC_API llmc_status llmc_op_times(llmc_session *s, llmc_op_time_fn fn, void *user,
                                   llmc_error *err);

enum { LLMC_KV_PAGE = 32 }; /* positions per page of keys and values */

typedef struct llmc_stats {
	size_t size;
	int64_t steps_run; /* kernels and reference ops run by this session */
	int64_t barriers;  /* thread barriers passed */
	int64_t forwards, tokens;
	/* weight bytes that the last forward has read, according to the plan */
	int64_t weight_bytes;
	int64_t kv_pages_used, kv_pages_total; /* pages of LLMC_KV_PAGE positions */
	/* bytes of the routed experts that steps selected, for a mapped file; bytes of these that
	 * were not in memory and were read ahead. While nothing is missing from memory, only
	 * samples are counted */
	int64_t expert_bytes, expert_read_bytes;
} llmc_stats;
LLMC_API void llmc_session_stats(const llmc_session *s, llmc_stats *out);

LLMC_API llmc_status llmc_sampler_open(int32_t vocab, const llmc_params *p, llmc_sampler **out,
                                       llmc_error *err);
LLMC_API void llmc_sampler_close(llmc_sampler *s);
/* Write the order in which samplers run, with one letter for each: p->samplers, or the library's
 * order for these options. At most LLMC_MAX_SAMPLERS letters */
LLMC_API llmc_status llmc_sampler_order(const llmc_params *p, char *buf, size_t cap, size_t *need,
                                        llmc_error *err);
LLMC_API void llmc_sampler_reset(llmc_sampler *s);
/* Record a token of the prompt (is_prompt) or of the output. Penalties count these tokens. */
LLMC_API void llmc_sampler_accept(llmc_sampler *s, int32_t id, bool is_prompt);
/* Sample from logits [vocab], which are not changed. logprob (may be NULL) is that of the unchanged
 * distribution. E_CHECK: a logit is NaN */
LLMC_API llmc_status llmc_sampler_sample(llmc_sampler *s, const float *logits, int32_t *id,
                                         float *logprob, llmc_error *err);

/* ---- engine: many requests ---- */

/* An engine is a session with its own thread. Callers submit requests and receive events:
 *
 *     llmc_engine_open(m, NULL, &e, &err);
 *     llmc_request r = LLMC_INIT(llmc_request);   r.tok = ids;   r.n_tok = n;
 *     llmc_submit(e, &r, &id, &err);
 *     llmc_event ev = LLMC_INIT(llmc_event);
 *     do
 *         llmc_next(e, id, -1, &ev, &err);        ev.text is the next part of the output
 *     while (!ev.last);
 *     llmc_event_release(&ev);   llmc_engine_close(e, 0);
 *
 * All running requests advance together, one token per step (continuous batching). Prompts are
 * prefilled in chunks in the same steps, within the budgets below. Requests start in order of
 * arrival. When KV pages run out, the youngest request is preempted. Its pages move to host memory
 * or are recomputed later, whichever is faster. A preempted request resumes before any newer
 * request starts. Requests with a shared prefix share its pages while these are cached. A request
 * generates the same tokens as if it ran alone: always on a CPU, on a GPU with `deterministic:
 * true`. Random numbers depend on seed, choice and position only.
 *
 * Any thread may call. Events of one request arrive in order. If two threads wait for the same
 * request, each event goes to one of them. */
typedef struct llmc_engine_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	/* limits of the session; seqs is the largest batch [seqs: 16; with no_fit, kv_tokens:
	 * LLMC_DEFAULT_KV_CONTEXTS contexts] */
	const llmc_limits *limits;
	/* number of requests that may wait or run at the same time; further ones are refused
	 * [LLMC_DEFAULT_CONCURRENT_REQUESTS] */
	int32_t max_concurrent_requests;
	/* largest number of prompt tokens per step [limits.chunk] */
	int32_t max_batch_prefill_tokens;
	/* a request starts only if the sum of prompt + max_tokens, over it and all running
	 * requests, is at most this [0: if its prompt fits] */
	int64_t max_batch_total_tokens;
	/* while requests decode, others start only when waiting / running reaches this ratio [0: at
	 * once] */
	float waiting_served_ratio;
	/* ... or after this many steps in which none has started [LLMC_DEFAULT_WAITING_TOKENS] */
	int32_t max_waiting_tokens;
	bool no_prefix_cache;
	/* host memory for the KV of preempted requests [0: it is recomputed]. Set either this or
	 * kv.host, whose pages can hold that KV too */
	int64_t swap_bytes;
	llmc_log_fn log; /* called on the engine's threads */
	void *log_user;
	/* largest number of draft tokens per step; used if few requests run and drafting is faster;
	 * -1: no drafting [LLMC_MAX_SPECULATE; on GPUs without deterministic: true no drafting] */
	int32_t speculate;
	/* folder for files of prefix pages, which later runs and other engines of the same model
	 * read [none] */
	const char *prefix_dir;
	int64_t prefix_dir_bytes; /* largest size of that folder in bytes
	                             [LLMC_DEFAULT_PREFIX_DIR_BYTES] */
	/* draft model, which the engine keeps open. It is a smaller model with the same tokenizer;
	 * the same checkpoint opened with mtp.part=head, if the model was opened with
	 * mtp.part=rows; or a draft checkpoint (llmc_options.draft and draft_of) [none] */
	llmc_model *draft;
} llmc_engine_options;

LLMC_API llmc_status llmc_engine_open(llmc_model *m, const llmc_engine_options *opt,
                                      llmc_engine **out, llmc_error *err);
/* Refuse new requests (llmc_submit returns E_CANCELLED), and wait until all others are served, at
 * most drain_ms (< 0: no limit). Then end the remaining ones with LLMC_FINISH_CANCEL. Events stay
 * readable. E_CANCELLED: some requests were ended */
LLMC_API llmc_status llmc_engine_drain(llmc_engine *e, int drain_ms, llmc_error *err);
/* Drain, then free. No other call on the engine may be running or follow. NULL is allowed. */
LLMC_API void llmc_engine_close(llmc_engine *e, int drain_ms);
/* Return the limits in force; valid as long as the engine. */
LLMC_API const llmc_limits *llmc_engine_limits(const llmc_engine *e);

typedef struct llmc_request {
	size_t size;
	const int32_t *tok; /* [n_tok] the prompt */
	size_t n_tok;
	const llmc_params *params; /* NULL: greedy, 256 tokens */
	int32_t n;                 /* number of choices [1]; choice i samples with seed + i */
	/* number of choices to generate; when all are complete, the n with the best mean logprob
	 * are returned [n] */
	int32_t best_of;
	/* report the log probability of each new token, from the distribution before sampling
	 * options change it */
	bool logprobs;
	bool prompt_logprobs; /* ... and that of each prompt token, as LLMC_EVENT_PROMPT */
	int32_t n_top;        /* number of most likely tokens that are reported per position, 0 ..
	                         LLMC_MAX_TOP */
	/* return stop strings as part of the text; no text is then held back or cut, and the text
	 * ends with the token that completes a stop string */
	bool keep_stop;
	bool show_special; /* special tokens appear in the text */
	/* seconds after llmc_submit until the request ends with LLMC_FINISH_DEADLINE [none] */
	double deadline_s;
	void *user; /* returned in every event */
	/* return the pooled vector of the prompt instead of generating; required if the model's
	 * output is not logits */
	llmc_pool pool;
	bool normalize;   /* divide the vector by its length */
	int32_t priority; /* requests with a lower value start sooner and may preempt others [0] */
	int32_t adapter;  /* id from llmc_adapter_load [none] */
	/* [n_pool_tok] ids. With `pool` (last or first row), a model with logits returns the logits
	 * of these tokens as the vector (for rerankers). Without `pool`, `top` of a new token has
	 * the log probabilities of these tokens, in this order, instead of the most likely ones; at
	 * most LLMC_MAX_TOP ids, and not with best_of */
	const int32_t *pool_tok;
	int32_t n_pool_tok;
	/* requests share cached prefix pages only with requests that have the same salt [0] */
	uint64_t prefix_salt;
	/* number of tokens in the first sequence of a pair; an encoder with token types gives the
	 * second type to the tokens after them [all] */
	size_t n_first;
	/* images of the prompt, in order (llmc_tower_image_part), for a model that was opened with
	 * "vision.part=rows". The prompt must have as many image tokens (vision.token) as the
	 * images have rows [none] */
	const llmc_image_part *images;
	size_t n_images;
	/* Client that sends the request, any number: clients of one priority take turns. The next
	 * request to start is that of the client whose tokens are fewest, and a client that runs
	 * several sequences gives one up for a client that runs at least two fewer [0] */
	uint64_t client;
} llmc_request;

/* Submit a request. All data to which it points is copied. *id is > 0, and an engine never reuses
 * an id. E_BUSY, at once: max_concurrent_requests are running or waiting. E_INPUT: there are no
 * tokens. E_RANGE: an id or a parameter is out of range, the prompt does not fit the context, or
 * the request could not run even alone. E_CANCELLED: the engine is being drained. E_DEVICE: the
 * engine has failed. */
LLMC_API llmc_status llmc_submit(llmc_engine *e, const llmc_request *r, int64_t *id,
                                 llmc_error *err);

typedef enum llmc_event_kind {
	LLMC_EVENT_NONE, /* there was no event within the timeout */
	/* a prompt token (prompt_logprobs): token, logprob (NaN for the first), top, text; index
	 * 0 */
	LLMC_EVENT_PROMPT,
	LLMC_EVENT_TOKEN, /* a new token: token, text, logprob, top */
	/* a choice is complete: finish and counts; text has the rest that was held back, if any */
	LLMC_EVENT_FINISH,
	LLMC_EVENT_ERROR, /* the request has failed: status; text is the message */
} llmc_event_kind;

typedef struct llmc_logprob {
	int32_t id;
	float logprob;
} llmc_logprob;

typedef struct llmc_event {
	size_t size;
	llmc_event_kind kind;
	/* the request has no further event: all its choices are complete, or it has failed. Its id
	 * becomes invalid */
	bool last;
	int64_t request;
	void *user;
	int32_t index; /* choice, 0 .. n-1 */
	int32_t token; /* FINISH: the eos or stop token that ended the choice, with logprob and top;
	                  otherwise -1 */
	float logprob; /* if requested, otherwise 0 */
	int32_t n_top;
	const llmc_logprob *top; /* [n_top] most likely first */
	/* text that has become final with this token, NUL-terminated. It does not end inside a
	 * character, and may be empty */
	const char *text;
	size_t n_bytes;
	double time_s; /* CLOCK_MONOTONIC at the time of the event */
	/* FINISH and ERROR */
	llmc_status status; /* ERROR */
	llmc_finish finish;
	int32_t stop;            /* FINISH_STOP: index of the stop string; otherwise -1 */
	int32_t n_prompt, n_new; /* n_new is the number of TOKEN events, so it does not count the
	                            eos or stop token */
	int32_t n_cached;        /* number of prompt tokens found in the prefix cache */
	int32_t n_preempted;     /* how often the choice was preempted */
	double sum_logprob;      /* sum over the new tokens, with logprobs or best_of */
	/* seconds until the request started, from then until its first new token, and from then
	 * until its end */
	double queue_s, prefill_s, decode_s;
	void *memory_;       /* owns the memory of top, text and vector */
	const float *vector; /* [n_vector] FINISH of a request with `pool`; otherwise NULL */
	int32_t n_vector;
	int32_t rank; /* PROMPT: number of tokens that are at least as likely as this one, itself
	                 included; 0 for the first token */
} llmc_event;

#define LLMC_ANY 0 /* selects any request */
/* Return the next event of a request, within timeout_ms (< 0: no limit). Initialise ev with
 * LLMC_INIT and reuse it; the memory to which it points is valid until the next call. E_RANGE:
 * there is no such request, or its last event has been returned. With LLMC_ANY, if no event is
 * left: E_CANCELLED: the engine is drained; E_DEVICE: the engine has failed, even if no request was
 * running. */
LLMC_API llmc_status llmc_next(llmc_engine *e, int64_t id, int timeout_ms, llmc_event *ev,
                               llmc_error *err);
LLMC_API void llmc_event_release(llmc_event *ev);
/* Stop a request. Its pages are free within one step, and its open choices finish with
 * LLMC_FINISH_CANCEL. May be called repeatedly, also for requests that have ended. */
LLMC_API void llmc_cancel(llmc_engine *e, int64_t id);
/* Stop a request and drop all its events. */
LLMC_API void llmc_forget(llmc_engine *e, int64_t id);
/* Return a descriptor for poll(). It is readable while llmc_next(e, LLMC_ANY, 0, ...) would return
 * an event. Do not read or close it. */
LLMC_API int llmc_engine_fd(const llmc_engine *e);

enum { LLMC_BUCKETS = 36 };
/* Number of values per bucket, not cumulative. Bucket k has the values above bucket k - 1 that are
 * at most 0.0001 * 1.5^(k+1) seconds, or for counts at most 2^k. The last bucket has the rest. */
typedef struct llmc_histogram {
	uint64_t bucket[LLMC_BUCKETS], n;
	double sum;
} llmc_histogram;

typedef struct llmc_counts {
	size_t size;
	/* current values */
	int32_t running, waiting, preempted; /* running: choices in the batch; waiting: requests
	                                        that have not started; preempted: choices */
	int32_t batch_size;                  /* choices in the last step */
	/* sum of prompt + max_tokens over all requests that have started */
	int64_t batch_max_tokens;
	int64_t kv_pages_total, kv_pages_used,
	    /* cached: pages kept for later prompts, which are freed when needed and do not count as
	     * used */
	    kv_pages_cached;
	int64_t swap_bytes_used;
	double last_step_s;
	/* totals since the engine was opened */
	uint64_t steps, prefill_steps;        /* all steps; steps with prefill */
	uint64_t requests;                    /* requests accepted */
	uint64_t finished[LLMC_FINISH_COUNT]; /* choices, by reason */
	uint64_t failed, refused; /* failed: requests that failed while running; refused: requests
	                             refused because the queue was full */
	uint64_t prompt_tokens, new_tokens;
	uint64_t prefix_queries, prefix_hits; /* number of prompt tokens looked up; number found */
	uint64_t preemptions, swaps_out, swaps_in;
	llmc_histogram prefill_step_s, decode_step_s; /* seconds */
	llmc_histogram queue_s, first_token_s, inter_token_s, prefill_s, decode_s, request_s;
	/* counts instead of seconds; start_size: number of requests that started in the same
	 * step */
	llmc_histogram step_tokens, start_size;
	llmc_histogram request_prompt, request_new, request_max_new, request_n;
	/* drafts: number of drafts; drafted: draft tokens verified; accepted: draft tokens
	 * accepted */
	uint64_t drafts, drafted, accepted;
	/* number of positions in prefix pages that were read from files, written to files, and
	 * found damaged */
	uint64_t prefix_read, prefix_written, prefix_wrong;
	/* number of accepted draft tokens, by position in the draft */
	uint64_t accepted_at[LLMC_MAX_SPECULATE];
	/* current number of host pages of KV (kv.host) */
	int64_t host_pages_total, host_pages_used;
	uint64_t host_out, host_in; /* total number of positions copied to host memory, and back */
} llmc_counts;
LLMC_API void llmc_engine_stats(llmc_engine *e, llmc_counts *out); /* the caller sets out->size */

typedef struct llmc_replace_options {
	size_t size;
	bool cancel_running; /* end running requests with CANCEL [they finish with the old weights]
	                      */
	int32_t n_threads;   /* threads that pack, in addition to those of the steps [1] */
} llmc_replace_options;
/* Replace the weights of an engine's model in place by those of a checkpoint (file or folder) with
 * the same tensors and shapes, as reinforcement learning does after each update. The checkpoint is
 * read and packed while steps run; it may be changed or removed after the call. Then, for a moment,
 * no request runs: running ones finish first, and new ones wait in order. Later requests use only
 * the new weights and no cached prefix of the old ones; prefix_dir is no longer used. The engine's
 * session must be the only one of its model. The call blocks; any thread may call while the engine
 * is open. E_INPUT: a tensor is missing or has another shape, the file is damaged, or the model has
 * adapter slots or several devices; E_FULL: there is no memory for a second copy; E_RANGE: another
 * replacement is waiting. After an error before the exchange, the old weights stay in force.
 * E_DEVICE: the exchange failed, and the engine cannot be used any more. */
LLMC_API llmc_status llmc_engine_replace_weights(llmc_engine *e, const char *path,
                                                 const llmc_replace_options *opt, llmc_error *err);

/* ---- HTTP server ---- */

/* HTTP server over an engine: routes of OpenAI, TGI, Anthropic and Ollama, listed in
 * docs/serving.md.
 *
 *     llmc_serve_options o = LLMC_INIT(llmc_serve_options);   o.port = 8000;
 *     llmc_serve_open(m, e, &o, &server, &err);    serves from here on, on its own threads
 *     llmc_serve_drain(server);                    optional, see below
 *     llmc_serve_stop(server);                     refuses new requests
 *     llmc_serve_wait(server, 30000);              waits until running requests are answered
 *     llmc_serve_close(server);                    then llmc_engine_close and llmc_close
 *
 * After llmc_serve_drain, /health returns 503 while requests are still accepted. Routers then send
 * new requests elsewhere before the port closes.
 *
 * The server takes all events of the engine (LLMC_ANY), so no other code may call llmc_next on that
 * engine. */
typedef struct llmc_server llmc_server;
/* 0 or NULL selects the default in brackets; strings are copied */
typedef struct llmc_serve_options {
	size_t size;
	const char *host;  /* address or name to listen on [127.0.0.1] */
	int32_t port;      /* [0: the operating system chooses; llmc_serve_port returns the port] */
	bool allow_remote; /* allow a host beyond loopback without a key */
	const char *api_key;    /* clients send "Authorization: Bearer KEY" [no key] */
	const char *model_name; /* name of the model in the API [the model's own] */
	/* origin of web pages that may call, or "*" [only the server's own] */
	const char *allow_origin;
	int32_t max_input_length, max_total_tokens; /* [context - 1, context] */
	/* limits of TGI's routes [2, 4, 5] */
	int32_t max_best_of, max_stop_sequences, max_top_n_tokens;
	int32_t validation_workers; /* threads that check and tokenize requests [2] */
	int64_t max_body_bytes;     /* largest request body [2 MB] */
	int32_t max_connections, max_connections_per_client; /* [1000, no limit] */
	/* seconds until the header of a request must be complete, and after that its body [10,
	 * 60] */
	double header_timeout_s, body_timeout_s;
	double idle_timeout_s; /* seconds after which an idle connection is closed [75] */
	/* seconds after which a request fails; includes the time for templates and grammars [no
	 * limit] */
	double request_timeout_s;
	/* options that were given to llmc_engine_open, for /info [all defaults] */
	const llmc_engine_options *engine;
	bool log_json; /* request lines as JSON objects */
	/* one line per request, LLMC_LOG_INFO; called on the server's threads, one at a time */
	llmc_log_fn log;
	void *log_user;
	/* Host headers that are accepted when no key is set, "a.example,b.example" or "*" for all.
	 * Addresses, localhost and `host` are always accepted [on loopback none, otherwise all] */
	const char *allow_host;
	/* file of additional keys with limits, one line per key: NAME KEY [requests=N] [tokens=N]
	 * [priority=N] [none] */
	const char *keys;
	/* OTLP/HTTP endpoint that receives spans of requests, for example http://127.0.0.1:4318
	 * [none] */
	const char *otlp;
	/* serve /metrics, /v1/models, /get_load and /model_info without a key, for routers and
	 * scrapers */
	bool open_probes;
	/* llmc_serve_open_models: memory of all engines together. To make space, the least recently
	 * used engine is closed [no limit] */
	int64_t memory_bytes;
	/* llmc_serve_open_models: folder from which clients may load PEFT adapters with
	 * /v1/load_lora_adapter [not allowed] */
	const char *lora_dir;
	/* close an engine that has been idle for this number of seconds [never] */
	double sleep_after_s;
	/* folder of /v1/files and /v1/batches, which no other server may use. Batches survive a
	 * restart [these routes are off] */
	const char *batch_dir;
	int64_t batch_dir_bytes; /* largest size of that folder in bytes
	                            [LLMC_DEFAULT_BATCH_DIR_BYTES] */
	/* let all keys of `keys` share cached prefix pages. A client can then find out, from
	 * cached_tokens and from times, what other clients have sent [each key has its own] */
	bool share_prefix;
	/* treat special tokens in messages, names, tools and tool results as text [they are special
	 * tokens, as in the reference implementations] */
	bool special_text;
	/* ignore the models' sampling advice: fields that a request omits have the default of the
	 * dialect [the advice is the default in the dialects of OpenAI, Anthropic and Ollama] */
	bool neutral_sampling;
	/* for schemas of requests without `strict`; schemas of calls and strict schemas are closed
	 * [AUTO] */
	llmc_additional additional;
	int64_t image_pixels; /* largest width times height of an image [67,108,864] */
	int32_t max_images;   /* images per request [LLMC_DEFAULT_IMAGES] */
	/* size of the rows of images that are kept for later requests, for example the next turn of
	 * a chat; negative: none are kept [LLMC_DEFAULT_IMAGE_CACHE_BYTES] */
	int64_t image_cache_bytes;
	/* hosts of http(s) URLs of images that requests may contain, as in llmc_fetch_options [URLs
	 * are refused] */
	const char *allow_image_urls;
	/* llmc_serve_open_models: folder of models that clients may use by name, in addition to
	 * `models` (which may then be empty): NAME.gguf, NAME.flm, a folder NAME, or ORG/NAME. It
	 * is read again by each request for another name [none] */
	const char *models_dir;
	/* llmc_serve_open_models: clients may also use the models that llmc_pulled lists */
	bool models_pulled;
	/* options and engine_options for the models of models_dir and models_pulled; its other
	 * fields are ignored [those of the first of `models`] */
	const struct llmc_serve_model *found;
	/* folder with checkpoints by which POST /v1/weights may replace weights in place [not
	 * allowed] */
	const char *weights_dir;
	/* further names of the first model: "a,b"; "*" is any name of no other model, and not with
	 * models_dir and models_pulled [none] */
	const char *aliases;
	/* variables of chat templates that requests omit: a JSON object [none] */
	const char *chat_template_kwargs;
} llmc_serve_options;

/* A model that the server opens and closes as needed. All data to which it points must stay
 * unchanged until llmc_serve_close. */
typedef struct llmc_serve_model {
	size_t size;
	const char *name;                          /* name in the API [the model's own] */
	const char *path;                          /* path, as for llmc_open */
	const llmc_options *options;               /* [all defaults] */
	const llmc_engine_options *engine_options; /* [all defaults, with the model's limits] */
	/* a model that is open already; the server then owns it and `engine`, even if the call
	 * fails */
	llmc_model *model;
	llmc_engine *engine; /* engine over `model`; NULL: the first request opens one */
	/* for an adapter: name of the model to which the adapter belongs [none] */
	const char *parent;
	/* folder of an adapter, which runs in a slot of the parent's engine (llmc_adapter_load);
	 * path and options must then be the parent's [none] */
	const char *adapter;
	/* vision tower of `model`, if the model was opened with images; the server then owns it.
	 * For models that the server opens with options.images, it opens the tower too [none] */
	llmc_tower *tower;
} llmc_serve_model;

/* Start a server for one model. E_INPUT: an option is out of range, or the host is beyond loopback
 * without api_key and allow_remote; E_IO: the server cannot listen on the address. */
LLMC_API llmc_status llmc_serve_open(llmc_model *m, llmc_engine *e, const llmc_serve_options *opt,
                                     llmc_server **out, llmc_error *err);
/* Serve several models on one port. A request that names no model uses the first. Each model is
 * compiled in this call, so that errors are found at once, and opened by its first request. E_FULL:
 * one model alone exceeds memory_bytes. Also returns all errors of llmc_open. */
LLMC_API llmc_status llmc_serve_open_models(const llmc_serve_model *models, int32_t n,
                                            const llmc_serve_options *opt, llmc_server **out,
                                            llmc_error *err);
LLMC_API int llmc_serve_port(const llmc_server *s);
/* Return the server's URL, for example "http://127.0.0.1:8000"; valid as long as the server. */
LLMC_API const char *llmc_serve_url(const llmc_server *s);
LLMC_API void llmc_serve_drain(llmc_server *s);
LLMC_API void llmc_serve_stop(llmc_server *s);
/* Return whether all requests have been answered. */
LLMC_API bool llmc_serve_wait(llmc_server *s, int timeout_ms);
/* Read the file llmc_serve_options.keys again. From now on, requests with removed keys get 401;
 * running requests continue. On an error nothing changes. Any thread may call. */
LLMC_API llmc_status llmc_serve_reload_keys(llmc_server *s, llmc_error *err);
/* Return whether an engine has failed, because its device, its files or a rank is lost: /health
 * returns 503. Requests and health checks open the model again, except a model with several ranks.
 * Any thread may call. */
LLMC_API bool llmc_serve_failed(llmc_server *s);
LLMC_API void llmc_serve_close(llmc_server *s); /* ends running requests; NULL is allowed */

/* ---- compiling, checking, measuring ---- */

/* Convert a Hugging Face folder, a GGUF or an .flm file to a YAML description. opt->log receives
 * unknown keys. */
LLMC_API llmc_status llmc_import(const char *src, const llmc_options *opt, char **yaml_out,
                                 llmc_error *err);
typedef struct llmc_compile_options {
	size_t size;
	const char *target; /* "cpu", "cuda", "ref"; NULL: cpu */
	/* comma-separated list: "v3,v4", "sm_80,sm_90a"; NULL: the architecture of this machine */
	const char *arch;
	const char *const *set; /* as in llmc_options */
	/* a stage that is written to dump_out, instead of an artifact: "spec", "graph", "fuse",
	 * "order" or "plan" */
	const char *dump;
	char **dump_out;
	bool aot; /* also build the kernels and include them in the artifact */
	llmc_log_fn log;
	void *log_user;
	bool allow_unknown_keys; /* as in llmc_options */
} llmc_compile_options;
/* Compile a YAML file to an artifact folder. Nothing is written on failure. */
LLMC_API llmc_status llmc_compile(const char *yaml_path, const char *out_dir,
                                  const llmc_compile_options *opt, llmc_error *err);
/* frees strings returned by llmc_import, llmc_compile and llmc_doctor */
LLMC_API void llmc_free(void *p);

typedef struct llmc_verify_row {
	int32_t layer;     /* -1: outside of the layers */
	const char *value; /* name of the graph value, for example "L3.attn" */
	const char *op;    /* op of the step that has computed the value */
	/* max |a - b|; max |b|; allowed max_err / range. For expert indices: number of rows with
	 * another choice; number of rows */
	double max_err, range, tolerance;
	bool ok;
	/* [rows, width] from the reference, valid during the call; NULL for indices of experts or
	 * positions */
	const float *want;
	int64_t rows, width;
} llmc_verify_row;
typedef void (*llmc_verify_fn)(void *user, const llmc_verify_row *row);
/* Run the plan and the fp32 reference on the same tokens, and compare every value that the plan's
 * steps name. If router scores tie within rounding and the plan selects other experts, the row
 * continues with the reference's choice. E_CHECK: *err names the first op beyond its tolerance. */
LLMC_API llmc_status llmc_verify(llmc_model *m, const int32_t *tok, size_t n_tok,
                                 llmc_verify_fn on_row, void *user, llmc_error *err);

/* ---- quality ---- */

/* Distance of a modified model (for example a quantised one) from the original, measured on an
 * evaluation corpus that is cut into windows */
/* A mean with its 95 % confidence interval, computed from the spread between windows. The bounds
 * are NaN if there is only one window */
typedef struct llmc_interval {
	double mean, low, high;
} llmc_interval;
typedef struct llmc_eval_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	const char *text; /* [n_bytes] UTF-8 [a corpus in the library] */
	size_t n_bytes;
	int32_t window;      /* tokens per window; windows are independent [512] */
	int32_t max_windows; /* [as many as the corpus has] */
	int32_t chunk;       /* tokens per step [128] */
	int32_t n_threads;   /* [the model's] */
	bool (*progress)(void *user, int32_t done, int32_t of,
	                 const llmc_interval *kl); /* called after each window; return false to stop
	                                              with E_CANCELLED */
	void *user;
} llmc_eval_options;
typedef struct llmc_eval_result {
	size_t size;
	int32_t window, n_windows;
	int64_t n_tokens;         /* number of predicted tokens: window - 1 per window */
	llmc_interval perplexity; /* perplexity of the model */
	/* relative to the reference; 0 without one */
	/* log_ratio: ln(perplexity / reference perplexity), computed from differences per token */
	llmc_interval reference_perplexity, log_ratio;
	/* sum p ln(p / q) per token in nats, where p are the probabilities of the reference */
	llmc_interval kl;
	/* share of positions at which both have the same most likely token */
	llmc_interval agreement;
	double kl_median, kl_90, kl_99, kl_999, kl_max;
	float *kl_sorted; /* [n_tokens] KL per token, ascending; freed by llmc_eval_release */
} llmc_eval_result;
/* Compare a model with a reference. Reference NULL: perplexity only. E_INPUT: the vocabularies
 * differ, there is no tokenizer, or the corpus is shorter than a window. */
LLMC_API llmc_status llmc_eval(llmc_model *m, llmc_model *reference, const llmc_eval_options *opt,
                               llmc_eval_result *res, llmc_error *err);
LLMC_API void llmc_eval_release(llmc_eval_result *res);
/* Draw the distribution of KL per token as SVG text; free it with llmc_free. */
LLMC_API llmc_status llmc_eval_plot(const llmc_eval_result *res, const char *title, char **svg,
                                    llmc_error *err);

/* ---- quantising ---- */

typedef struct llmc_quantize_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	/* type of matrices. GGUF: "q4_k", "q8_0", ... [q4_k]; if the columns of a matrix are not a
	 * multiple of the block size, it gets the next type with blocks of 32. From folder to
	 * folder: "int4", "int8", "fp8", "mxfp4" [int4] */
	const char *type;
	const char *head; /* type of the LM head, or of a tied embedding [q6_k] */
	/* "gptq": error compensation by Hessians of a calibration corpus; "awq": importance of
	 * columns, with column factors folded into norms; "weighted": importance only; "nearest":
	 * rounding only [gptq] */
	const char *method;
	/* importance matrix, in llama.cpp's old format or GGUF [computed from the corpus] */
	const char *imatrix;
	/* file that receives the computed importance matrix; ".dat": the old format */
	const char *imatrix_out;
	const char *text; /* [n_bytes] calibration corpus [one in the library] */
	size_t n_bytes;
	int32_t window, n_windows; /* tokens per window, number of windows [512, 64] */
	/* memory for Hessians [512 MiB]. A layer needs 4 * inputs^2 bytes per matrix, and gets them
	 * even if they exceed this limit. In any case the corpus passes each layer once */
	int64_t hessian_bytes;
	/* fraction of each diagonal element of Hessians that is added to the element [6 * columns /
	 * tokens, within 0.03 .. 1] */
	float damp;
	int32_t n_threads; /* [physical cores within quota] */
	/* doing: name of a finished tensor, and done: bytes of the input; or doing NULL, and done:
	 * windows of the corpus. Return false to stop (E_CANCELLED) */
	bool (*progress)(void *user, const char *doing, int64_t done, int64_t of);
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* int4: columns per scale, 32 or 128 [128 if it divides the columns of all matrices] */
	int32_t group;
	/* GGUF, instead of type: average number of bits per weight. A type is selected per matrix
	 * so that the total cost is least; sizes and errors are measured. Every method then needs
	 * the corpus */
	float bits;
	/* with `bits`: called once per matrix with the selected type. error: share of the output
	 * energy that is lost without compensation; cost: expected KL divergence in nats from this
	 * matrix alone. May be NULL */
	void (*chose)(void *user, const char *tensor, const char *type, double bits, double error,
	              double cost);
} llmc_quantize_options;
typedef struct llmc_quantize_result {
	size_t size;
	/* n_resumed: tensors that an earlier run had completed */
	int32_t n_tensors, n_quantized, n_resumed;
	int64_t in_bytes, out_bytes;
	double bits; /* average bits per weight of the quantised matrices */
	double calibrate_s, seconds;
} llmc_quantize_result;
/* Quantise a model.
 *   GGUF -> GGUF            llama.cpp's block types
 *   safetensors -> folder   layout of compressed-tensors, all weights in one file
 *   folder -> GGUF          if `out` ends in .gguf; includes the tokenizer, as llama.cpp's converter
 *                           writes it. Types "f32", "f16" and "bf16" directly, others through
 *                           OUT.partial.16.gguf
 *
 * On one machine every run writes the same bytes, for any number of threads. `out` must not exist;
 * it is created when it is complete. After a stop or failure the finished part stays as
 * OUT.partial, and the next call with the same input and options resumes from there. E_INPUT:
 * options are wrong, `out` exists, or the folder's model has no GGUF form; E_IO: for example, the
 * disk is full. */
LLMC_API llmc_status llmc_quantize(const char *in, const char *out,
                                   const llmc_quantize_options *opt, llmc_quantize_result *res,
                                   llmc_error *err);

/* A GPU in the table that llmc_predict uses, with figures from its data sheet */
typedef struct llmc_gpu {
	size_t size;
	/* for example "h100", "H100 SXM", "sm_90a"; source: origin of the figures */
	const char *name, *title, *arch, *source;
	int32_t sms;
	int64_t memory;   /* bytes */
	double bandwidth; /* bytes/s */
	double peak;      /* flop/s of dense 16-bit matrix instructions with fp32 accumulation */
	double launch_s;  /* seconds that one more kernel in a CUDA graph takes */
	/* link to the other GPUs of the host, and origin of its figures */
	const char *link, *link_source;
	/* bytes/s that one GPU sends; latency in seconds of a small all-reduce */
	double link_bandwidth, link_latency_s;
} llmc_gpu;
/* Return entry i of the table; false after the last. */
LLMC_API bool llmc_gpu_at(int i, llmc_gpu *out);
/* Find a GPU by its name in the table, or by the name that its driver reports ("NVIDIA H100 80GB
 * HBM3"). E_INPUT: the message lists all names */
LLMC_API llmc_status llmc_gpu_find(const char *name, llmc_gpu *out, llmc_error *err);

typedef struct llmc_prediction {
	size_t size;
	/* per step: bytes of weights, KV and activations that are read; number of floating-point
	 * operations */
	int64_t bytes, flops;
	int32_t launches; /* kernel launches per step */
	double seconds, tokens_per_s;
	/* limit with the largest part of the time: "bandwidth", "compute", "launches" or "links" */
	const char *bound;
	int32_t sums;      /* collectives per step */
	int64_t sum_bytes; /* bytes that a rank sends per step in these collectives */
	double link_s;     /* seconds that the collectives take */
	/* llmc_predict_two: bytes that the CPU reads, and the seconds this takes */
	int64_t host_bytes;
	double host_s;
} llmc_prediction;
/* Predict the time of one step by arithmetic. A step is decode of `rows` sequences of `context`
 * positions, or prefill of the last `rows` of `context` positions. Open the model for device cuda
 * (no_weights is enough). With tensor parallelism, values are those of the rank with the largest
 * share, with each rank on its own GPU. With pipeline stages, values are sums over all stages, and
 * tokens_per_s assumes one step in flight per stage. */
LLMC_API llmc_status llmc_predict(const llmc_model *m, const char *gpu, bool prefill, int32_t rows,
                                  int32_t context, llmc_prediction *out, llmc_error *err);

/* A GPU and its host, for models on two devices (placement). Fields that are 0 or NULL stand for
 * the free memory of this machine, and for figures from the GPU's data sheet. */
typedef struct llmc_machine {
	size_t size;
	const char *gpu;               /* name in the table of llmc_gpu */
	int64_t gpu_bytes, host_bytes; /* memory that the model may use */
	double gpu_bandwidth;          /* bytes/s */
	double host_bandwidth;         /* bytes/s; must be above 0, see llmc_bandwidth */
	double link_bandwidth;         /* bytes/s between GPU and host */
	double link_latency_s; /* seconds that a value takes between the devices, in addition to its
	                          bytes */
} llmc_machine;
/* Division of a model. The last gpu_layers layers run on the GPU, except for the routed experts of
 * the first moe_layers layers. If all of the model is on the GPU, gpu_layers is its n_layers and
 * moe_layers is 0. */
typedef struct llmc_placement {
	size_t size;
	int32_t gpu_layers, moe_layers; /* placement.gpu_layers, placement.cpu.moe_layers */
	/* bytes on each device; both are counted in the GPU's layouts */
	int64_t gpu_bytes, host_bytes;
	char text[256]; /* one line that describes the division */
} llmc_placement;
/* Choose the division that fits and has the fastest decode step. Open the model for device cuda
 * without placement (no_weights is enough). lim: limits of the session; NULL or 0: defaults as for
 * llmc_memory_for. E_FULL: no division fits */
LLMC_API llmc_status llmc_place(const llmc_model *m, const llmc_limits *lim,
                                const llmc_machine *machine, llmc_placement *out, llmc_error *err);
/* Like llmc_predict, for decode steps of a model on two devices. machine->gpu and host_bandwidth
 * must be set. The devices are assumed to work one at a time: seconds is the sum of the GPU's time,
 * link_s and host_s. */
LLMC_API llmc_status llmc_predict_two(const llmc_model *m, const llmc_machine *machine,
                                      int32_t rows, int32_t context, llmc_prediction *out,
                                      llmc_error *err);

/* Measure the bandwidth, in bytes/s, with which n_threads read this machine's memory, for about
 * `seconds` (at most 60). */
LLMC_API double llmc_bandwidth(int n_threads, double seconds);
/* Measure the bandwidth, in bytes/s, with which the memory of the model's weights is read; this is
 * GPU memory if the model runs on a GPU. 0: it could not be measured. */
LLMC_API double llmc_bandwidth_of(const llmc_model *m, int n_threads, double seconds);
/* Describe this machine as a JSON document; free it with llmc_free. */
LLMC_API llmc_status llmc_doctor(char **json_out, llmc_error *err);

#ifdef __cplusplus
}
#endif
#endif

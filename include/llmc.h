/* llmc.h: the public header of llmc, a static compiler for language models.
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
 * Every call that can fail returns llmc_status and fills *err, which may be NULL. The library never
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

/* Values are fixed, so programs may store them. llmc_status_text() returns the text. A missing
 * model or weight file is E_INPUT; E_IO means that the system refused a read or write. */
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

/* Set `size`, zero the rest:  llmc_options o = LLMC_INIT(llmc_options); */
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
 * up, such as "compiled 12 of 31 kernels"; each replaces the one before. */
typedef void (*llmc_log_fn)(void *user, int level, const char *line);
enum { LLMC_LOG_WARNING = 1, LLMC_LOG_INFO = 2, LLMC_LOG_DEBUG = 3, LLMC_LOG_PROGRESS = 4 };

typedef struct llmc_options {
	size_t size;
	const char *device; /* "cpu", "cuda", "cuda:N", "cuda:0,1" (a GPU for each rank), "ref";
	                       NULL: cpu */
	/* instruction set or GPU architecture: "v3", "v4", "generic", "sm_80"; NULL: the best that
	 * this machine supports (for an artifact: the best that the artifact contains) */
	const char *arch;
	/* checkpoint file or folder, relative to the working directory, if the model names none */
	const char *weights;
	const char *out_dir; /* folder for the generated artifact; NULL: the cache */
	const char *const
	    *set; /* "key=value" overrides of the description; NULL-terminated, or NULL */
	/* default for the model's sessions, also used for packing; 0: physical cores within the CPU
	 * quota */
	int n_threads;
	/* fill the weights with seeded noise instead of reading a checkpoint (for benchmarks) */
	bool random_weights;
	bool no_weights; /* compile and query only: sessions cannot be opened */
	/* on a CPU: map packed weights from a file of the cache, which is made at the first open.
	 * Processes share its pages, and it may exceed the memory */
	bool cache_packed;
	llmc_log_fn log;
	void *log_user;
	/* MPI_Comm of a program that has initialised MPI (MPI_THREAD_SERIALIZED or higher). Its
	 * processes are the ranks, and all make this call. NULL: all processes that a launcher has
	 * started. llmc duplicates the communicator; the program still finalises MPI */
	const void *mpi_comm;
	/* accept configuration keys that the family does not know, with a warning */
	bool allow_unknown_keys;
	/* run the code of a generated folder as it is. Otherwise kernels that differ from those
	 * that llmc makes of its model.yaml are refused, and kernels that were built elsewhere are
	 * not used */
	bool trust_artifact;
	/* called on the caller's thread when the plan is ready, before kernels are built and
	 * weights read. Queries of m work, such as llmc_fit_limits. An error ends llmc_open with
	 * it. Not called with no_weights; NULL: none */
	llmc_status (*planned)(void *user, const llmc_model *m, llmc_error *err);
	void *planned_user;
	/* allocate without regard to free memory: sessions and engines get the defaults of
	 * llmc_limits for no_fit, and nothing is refused. Otherwise llmc_open refuses weights that
	 * do not fit (E_FULL) before it reads them */
	bool no_fit;
	/* open the vision tower of a Hugging Face folder instead of its language model, or that in
	 * an mmproj GGUF file (llmc_forward_images) */
	bool tower;
	/* open the model with images (vision.part=rows) if its folder, or a GGUF file next to it,
	 * has a vision tower and an image processor that llmc supports; otherwise it reads text
	 * only, with a warning if there is a tower. llmc_model_info.reads_images reports the result
	 */
	bool images;
	/* limit of the CPU's memory for its part of a model on two devices (placement), of weights,
	 * KV and scratch; 0: what is free */
	int64_t host_memory;
	/* file with the vision tower of a GGUF model (mmproj-*.gguf), which is then opened with
	 * images; NULL: with `images`, the one next to the model, if there is one */
	const char *mmproj;
	/* open the model with the rows that this draft reads: "mtp" for its own MTP head, or the
	 * path of a draft checkpoint (EAGLE-3), from which it takes the layers. Another model needs
	 * no rows, and its path changes nothing. NULL: none */
	const char *draft;
	/* Target model; it was opened with this checkpoint as `draft`. Its weights supply the
	 * embedding and output matrix that the checkpoint lacks. Only read during the call. NULL:
	 * path is no draft checkpoint */
	const llmc_model *draft_of;
	/* Jinja template that replaces the model's chat template: a file, the name of one of the
	 * library's (chatml, ...), or a source text with {{ or {%; NULL: the model's */
	const char *chat_template;
} llmc_options;

/* ---- models by name ---- */

/* A name is hf:ORG/REPO[@REVISION][:QUANT or :FILE], a model of Hugging Face, or the https:// (or
 * http://) address of a GGUF file. llmc_pull makes it a path for llmc_open. Models are kept in the
 * cache of Hugging Face, which other programs share. Variables that apply: HF_TOKEN, HF_ENDPOINT,
 * HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_HUB_DOWNLOAD_TIMEOUT, https_proxy, CURL_CA_BUNDLE. */
LLMC_API bool llmc_is_model_name(const char *s);

typedef struct llmc_pull_state {
	size_t size;
	const char *file;   /* file that is complete now; NULL: this call is a change of counts */
	int64_t file_bytes; /* its size */
	const char *note;   /* one line about what the pull waits for; NULL: nothing */
	int32_t n_files, n_done;    /* files to download; 0: not known yet */
	int64_t bytes, total_bytes; /* sizes of these files; parts of earlier pulls count as done */
	int64_t received;           /* bytes that this pull has received */
} llmc_pull_state;

typedef struct llmc_pull_options {
	size_t size;
	bool update;  /* look for a newer revision on the server, also if a model is here */
	bool offline; /* use no network, as with HF_HUB_OFFLINE=1 */
	/* called on the caller's thread several times per second; false stops the pull
	 * (LLMC_E_CANCELLED). The next pull of the name resumes it */
	bool (*progress)(void *user, const llmc_pull_state *st);
	void *user;
} llmc_pull_options;

/* Find a model by its name, or download it, and write the path of its file or folder to (buf, cap,
 * *need). Processes that pull the same model share one download. E_INPUT: no such model, or no
 * access to it. E_IO: the network, the server or the disk failed; the part that was received is
 * kept. E_CHECK: size or hash is wrong. E_MISSING: libcurl is not installed. */
LLMC_API llmc_status llmc_pull(const char *name, const llmc_pull_options *opt, char *buf,
                               size_t cap, size_t *need, llmc_error *err);
/* Write the models in the caches as a JSON array of objects: name, path, bytes, complete, modified
 * (seconds since 1970). */
LLMC_API llmc_status llmc_pulled(char *buf, size_t cap, size_t *need, llmc_error *err);
/* Remove a model from the cache, with or without :QUANT. *freed: bytes on the disk; may be NULL. */
LLMC_API llmc_status llmc_pulled_remove(const char *name, int64_t *freed, llmc_error *err);

/* Install a handler of SIGBUS for the process: when a checkpoint is truncated or replaced in place
 * while it is read, llmc_open and llmc_adapter_load return E_IO, and other models live on. Without
 * it the signal ends the process. Call once, before other threads start. */
LLMC_API llmc_status llmc_guard_files(llmc_error *err);

/* Open a YAML description, a generated folder, a Hugging Face folder, a FastLLM model (.flm) or a
 * GGUF file. Imports and compiles as needed. Release *out with llmc_close. */
LLMC_API llmc_status llmc_open(const char *path, const llmc_options *opt, llmc_model **out,
                               llmc_error *err);
LLMC_API void llmc_retain(llmc_model *m);
/* NULL is allowed; sessions keep their model open */
LLMC_API void llmc_close(llmc_model *m);

enum { /* values that the comments below refer to */
       /* context of a model opened with no_fit, if the model's is longer */
       LLMC_DEFAULT_CONTEXT = 4096,
       /* KV capacity in contexts: of an engine with no_fit, of each model of a server with several
	*/
       LLMC_DEFAULT_KV_CONTEXTS = 4,
       LLMC_DEFAULT_CONCURRENT_REQUESTS = 128,
       LLMC_DEFAULT_WAITING_TOKENS = 20,
       /* images per request of a server */
       LLMC_DEFAULT_IMAGES = 16,
       /* one follows the prefill of a sequence, one its decode */
       LLMC_DEFAULT_SNAPSHOTS = 2,
       /* upper bound for an engine that drafts tokens: the number of sequences that draft at once,
	* never more than the engine's sequences */
       LLMC_DEFAULT_MARKS = 8,
       LLMC_MAX_CHOICES = 128,  /* choices per request */
       LLMC_MAX_SPECULATE = 15, /* draft tokens per step */
       LLMC_MAX_TOP = 20,       /* alternatives per position */
};

#define LLMC_DEFAULT_PREFIX_DIR_BYTES ((int64_t)8 << 30)
#define LLMC_DEFAULT_BATCH_DIR_BYTES ((int64_t)1 << 30)
#define LLMC_DEFAULT_IMAGE_CACHE_BYTES ((int64_t)256 << 20)

/* Limits of a session; 0 selects the default in brackets, or that of the description (`limits`). KV
 * memory and scratch are allocated once, with the sizes that these limits need. On a CPU the sum is
 * checked first (E_FULL), unless the model was opened with no_fit. */
typedef struct llmc_limits {
	size_t size;
	/* positions per sequence [by the free memory, see llmc_fit_limits; with no_fit, and for
	 * llmc_memory_for: min(the model's, LLMC_DEFAULT_CONTEXT)] */
	int32_t context;
	int32_t seqs;  /* concurrent sequences [1] */
	int32_t chunk; /* tokens per step [512] */
	int32_t n_out; /* rows of logits per step [seqs; chunk if the output is not logits] */
	/* positions of all sequences together [by the free memory, at most context * seqs; with
	 * no_fit: context * seqs] */
	int64_t kv_tokens;
	int n_threads; /* [the model's] */
	/* recurrent-state snapshots per sequence, kept for shared prefixes; unused by models
	 * without recurrent state [LLMC_DEFAULT_SNAPSHOTS for an engine with a prefix cache; else
	 * 0] */
	int32_t snapshots;
	/* positions whose pages the prefix cache of a GPU may keep in host memory [an engine: the
	 * capacity of kv.host; else 0] */
	int64_t host_tokens;
	/* sequences that may be marked at once (llmc_seq_mark); unused by models without recurrent
	 * state [LLMC_DEFAULT_MARKS for an engine that drafts tokens; else 0] */
	int32_t marks;
} llmc_limits;

/* Run as a rank other than 0 of a program that mpirun or srun started as several processes. Each
 * process calls llmc_open, which waits for the others and assigns a rank (llmc_info). Rank 0 then
 * uses the model as usual. Every other rank calls llmc_follow, which mirrors rank 0's sessions and
 * returns when rank 0 closes the model. One model per process. E_DEVICE: ranks are lost; E_RANGE:
 * called on rank 0. */
LLMC_API llmc_status llmc_follow(llmc_model *m, llmc_error *err);

LLMC_API llmc_status llmc_session_open(llmc_model *m, const llmc_limits *lim, llmc_session **out,
                                       llmc_error *err);
LLMC_API void llmc_session_close(llmc_session *s);

/* Contents of an output row. Most models return logits. An embedding model, or one opened with
 * "head.kind=hidden", returns its last hidden states, and a classifier returns label scores. Models
 * of the last two kinds produce vectors (llmc_embed, llmc_request.pool), not text. */
typedef enum llmc_output { LLMC_OUTPUT_LOGITS, LLMC_OUTPUT_HIDDEN, LLMC_OUTPUT_LABELS } llmc_output;
/* Pooling of a sequence's output rows into one vector */
/* none, the last, the mean of all, the first */
typedef enum llmc_pool { LLMC_POOL_NONE, LLMC_POOL_LAST, LLMC_POOL_MEAN, LLMC_POOL_CLS } llmc_pool;

typedef struct llmc_bias {
	int32_t id;
	float value;
} llmc_bias;
typedef struct llmc_sequence {
	const int32_t *tok;
	size_t n;
} llmc_sequence;

/* Sampling options. The fields of llmc_params, range checks, command-line options and their help,
 * HTTP fields and their documentation, the advice of models and the Python binding are generated
 * from these rows.
 *
 *   X(kind, name, rule, least, most,
 *     http_least, http_most, openai, llama_cpp, ollama, alias, hf, gguf,
 *     text, note, http_note)
 *
 *   kind          FLOAT, INT (int32_t) or BOOL
 *   rule          effect of the values 0 and 1: llmc_option_rule
 *   least, most   valid values of the field
 *   http_*        valid values over HTTP, raised to `least`; least > most: not an HTTP field
 *   openai .. ollama  default over HTTP in the dialects of that server
 *   alias         name in the HTTP interfaces of llama.cpp and Ollama, or NULL: the same
 *   hf            key in generation_config.json, or NULL
 *   gguf          key general.sampling.* of a GGUF, or NULL
 *   text, note    one line of help, in two parts
 *   http_note     note over HTTP, or NULL: the same */
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
/* The library's order, and that with XTC or a dynamic temperature */
#define LLMC_SAMPLER_ORDER "edstkpmy"
#define LLMC_SAMPLER_ORDER_LATE "edskpmyxt"
#define LLMC_OPTION_TYPE_FLOAT float
#define LLMC_OPTION_TYPE_INT int32_t
#define LLMC_OPTION_TYPE_BOOL bool
#define LLMC_OPTION_FIELD(kind, name, ...) LLMC_OPTION_TYPE_##kind name;

typedef struct llmc_params { /* LLMC_INIT gives greedy decoding of up to 256 new tokens */
	size_t size;
	LLMC_SAMPLING_OPTIONS(LLMC_OPTION_FIELD)
	uint64_t seed;
	int32_t max_tokens;      /* new tokens; 0: 256; -1: until the context is full */
	const char *const *stop; /* stop strings, NULL-terminated, or NULL; removed from the text */
	int32_t n_stop_tokens, n_logit_bias, n_bad_words;
	const int32_t *stop_tokens;     /* ids that end the text; not part of it */
	const llmc_bias *logit_bias;    /* added to the logits; -INFINITY forbids a token */
	const llmc_sequence *bad_words; /* token sequences that never appear */
	/* grammar that the output must match; the output ends when nothing can follow. NULL: none.
	 * Calls that copy the parameters keep the grammar open. E_INPUT if its tokens are not
	 * those of the model's tokenizer */
	llmc_grammar *grammar;
	/* strings that must be generated, in this order, before the grammar applies (end of
	 * reasoning, start of a tool call); NULL-terminated. NULL: it applies at once */
	const char *const *grammar_after;
	/* draft tokens per step, 1 .. LLMC_MAX_SPECULATE; 0: the engine's default; -1: none. Does
	 * not change the output */
	int32_t speculate;
	/* two strings between which stop strings do not apply (reasoning); the first may be empty:
	 * the output begins there. NULL: they always apply */
	const char *const *stop_ignore;
	/* DRY: strings that end a repetition, NULL-terminated; NULL: newline, colon, quote and
	 * asterisk. Used where there is a tokenizer: llmc_sampler_open ignores them */
	const char *const *dry_sequence_breakers;
	/* two strings around the reasoning; the first may be empty: the output begins there. After
	 * thinking_budget tokens of reasoning the second string is forced. NULL: no limit. Needs a
	 * tokenizer: llmc_sampler_open ignores it */
	const char *const *thinking;
	int32_t thinking_budget;
	/* 0: any token may be sampled; else only these, ends of sequence included */
	int32_t n_allowed_tokens;
	const int32_t *allowed_tokens;
	/* order of samplers, as llama.cpp defines them: names separated by ';', or letters
	 * (LLMC_SAMPLERS). Others do not sample; without temperature it is 1. Mirostat
	 * ignores it. "": no samplers; NULL: the library's order */
	const char *samplers;
} llmc_params;

/* The rows of LLMC_SAMPLING_OPTIONS at run time, for programs that read options by name. */
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
	size_t offset; /* offset of the field in llmc_params, bytes */
	double least, most;
	/* http_least > http_most: not an HTTP field */
	double http_least, http_most, http_default[LLMC_DEFAULT_COUNT];
} llmc_option;
LLMC_API const llmc_option *llmc_sampling_options(size_t *n); /* static memory */

/* Sampling that the authors of a model advise: generation_config.json of a Hugging Face folder, or
 * general.sampling.* of a GGUF. */
typedef struct llmc_advice {
	size_t size;
	llmc_params params; /* the advised fields of LLMC_SAMPLING_OPTIONS; others are 0 */
	uint64_t set;       /* bit i: the field of row i of llmc_sampling_options is advised */
	char source[32];    /* "generation_config.json" or "GGUF" */
	char text[256];     /* "temperature 0.6, top_p 0.95"; empty: no advice */
} llmc_advice;
LLMC_API void llmc_sampling_advice(const llmc_model *m, llmc_advice *out);

typedef enum llmc_finish {
	LLMC_FINISH_LENGTH, /* max_tokens, or the context is full */
	LLMC_FINISH_EOS,
	LLMC_FINISH_STOP, /* a stop string */
	LLMC_FINISH_CANCEL,
	LLMC_FINISH_TOKEN,    /* a stop token */
	LLMC_FINISH_DEADLINE, /* engine only */
	LLMC_FINISH_COUNT,
} llmc_finish;
LLMC_API const char *
llmc_finish_name(llmc_finish f); /* "length", "eos", "stop", "cancel", "token", "deadline" */

typedef struct llmc_result {
	size_t size;
	llmc_finish finish;
	int32_t n_prompt, n_new;
	double prefill_s, decode_s; /* decode_s counts from the first new token on */
} llmc_result;

/* Receives a new token and the text that became final with it (may be empty, never part of a
 * character; valid during the call only). Return false to stop: finish is then
 * LLMC_FINISH_CANCEL. */
typedef bool (*llmc_token_fn)(void *user, int32_t id, const char *text, size_t n_bytes);

/* Prefill and decode on the caller's thread in a new sequence, which is freed at the end. `tok`
 * holds ids as llmc_tokenize returns them. E_INPUT: the prompt is empty; E_RANGE: the prompt does
 * not fit the context or an id is out of range; E_FULL: the session's other sequences leave too few
 * pages. */
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
	int32_t max_positions; /* context length the model was trained for */
	bool hard_limit;       /* learned positions: max_positions cannot be exceeded */
	int32_t n_eos, eos[8];
	int32_t bos; /* -1: none */
	bool has_tokenizer, has_chat_template;
	int64_t n_params;
	int64_t weight_bytes;             /* packed, as held in memory */
	int64_t token_bytes;              /* weight bytes read per decoded token */
	double load_s, compile_s, pack_s; /* durations of opening, seconds */
	int32_t rank, ranks; /* first rank of this process, and number of ranks (parallel.tp) */
	/* contents of a row of llmc_forward, and its floats: vocab for logits */
	llmc_output output;
	int32_t out_width;
	/* pooling that the model was trained with; NONE: unknown, the caller must choose */
	llmc_pool pool;
	bool normalize; /* whether vectors are divided by their length */
	/* a GPU and the CPU run it (placement); weight_bytes and token_bytes are the GPU's */
	bool two_devices;
	bool reads_images; /* prompts may have images (llmc_tower_open, llmc_request.images) */
	/* llmc_forward_rows: elements of an input row and of an output row; 0: it has none. A draft
	 * checkpoint's own rows begin at own_at of an input row */
	int64_t row_in, row_out, own_at;
} llmc_model_info;
/* the caller sets info->size */
LLMC_API void llmc_info(const llmc_model *m, llmc_model_info *info);

/* Value of a key of the resolved description, such as "attention.n_heads". E_INPUT: no such key. */
LLMC_API llmc_status llmc_get(const llmc_model *m, const char *key, char *buf, size_t cap,
                              size_t *need, llmc_error *err);

/* Strings that an embedding model expects before inputs of some kinds, such as "query" and
 * "document": `prompts` of config_sentence_transformers.json. usual: before any input unless the
 * caller names another. They live as long as the model; *n 0: none, or the pooling excludes them.
 */
typedef struct llmc_input_prompt {
	const char *name, *text;
	bool usual;
} llmc_input_prompt;
LLMC_API const llmc_input_prompt *llmc_input_prompts(const llmc_model *m, size_t *n);

/* Names of the labels of a classifier, [*n] in the order of its output: id2label of config.json or
 * classifier.output_labels of a GGUF file, else LABEL_0, LABEL_1, ... *several: the labels are
 * independent, so each has a probability of its own. They live as long as the model; *n 0: the
 * model is not a classifier. */
LLMC_API const char *const *llmc_labels(const llmc_model *m, size_t *n, bool *several);

typedef struct llmc_memory {
	size_t size;
	int64_t weights, kv, scratch, state; /* bytes */
	int64_t kv_per_token;                /* bytes of KV per position */
	int64_t kv_per_seq; /* bytes of recurrent state per sequence, part of kv; 0: none */
	/* bytes saved because sliding-window layers keep only their window; 0: no such layers */
	int64_t kv_saved;
	/* bytes of limits.snapshots and limits.marks for all sequences, part of kv */
	int64_t kv_snapshots;
	/* bytes of 16-bit copies of recent and first positions (kv.window, kv.sinks), part of kv;
	 * 0: none */
	int64_t kv_exact;
	/* bytes of pinned host memory that an engine allocates for KV pages (kv.host), not part of
	 * kv; 0: none */
	int64_t kv_host;
} llmc_memory;
LLMC_API llmc_status llmc_memory_for(const llmc_model *m, const llmc_limits *lim, llmc_memory *out,
                                     llmc_error *err);
/* One rank of a model that is split over several (parallel.tp), or the whole model. A size is 0 if
 * the model has no such part. */
typedef struct llmc_rank_info {
	size_t size;
	llmc_memory memory; /* the call sets memory.size */
	/* attention heads; kv_heads 0: every rank holds the whole latent */
	int32_t heads, kv_heads;
	int64_t ffn, expert, shared, vocab; /* columns of feed-forwards; rows of the LM head */
	int32_t sums, joins;                /* all-reduces and all-gathers per step */
	int64_t sum_bytes, join_bytes; /* bytes that the rank contributes per row of the step */
} llmc_rank_info;
/* E_RANGE: no such rank, or it belongs to another process. */
LLMC_API llmc_status llmc_rank_for(const llmc_model *m, int32_t rank, const llmc_limits *lim,
                                   llmc_rank_info *out, llmc_error *err);
/* Largest number of sequences of lim->context positions that fits into `bytes`; 0: not even one. */
LLMC_API llmc_status llmc_fit(const llmc_model *m, int64_t bytes, const llmc_limits *lim,
                              int32_t *seqs, llmc_error *err);
/* Limits that the device's free memory allows. */
typedef struct llmc_fitted {
	size_t size;
	llmc_limits limits; /* the caller's, with context and kv_tokens filled in */
	llmc_memory memory; /* for these limits */
	/* bytes that are free, and bytes of them that weights (unless they are loaded), KV and
	 * scratch take. free INT64_MAX: unknown */
	int64_t free, need;
	char limited_by[160]; /* source of `free`: "MemAvailable", a file of a cgroup, "GPU 0" */
	char text[512];       /* one line: the choice and its reason */
} llmc_fitted;
/* Fill in the limits that are 0. context: the model's, or less if the KV of one sequence would take
 * more than half of the host's memory that weights and scratch leave, or, on a GPU, all but a
 * margin. kv_tokens: context * seqs, or less by the same rule, but at least one context. bytes:
 * limit of weights, KV and scratch together, instead of the free memory if the model was opened
 * with no_weights; 0: none. E_FULL: the sum exceeds the free memory or `bytes`; the message has a
 * table and remedies. With no_fit the free memory is not read. */
LLMC_API llmc_status llmc_fit_limits(const llmc_model *m, const llmc_limits *lim, int64_t bytes,
                                     llmc_fitted *out, llmc_error *err);
LLMC_API const char *llmc_plan_text(const llmc_model *m); /* plan.txt; lives as long as the model */
LLMC_API const char *llmc_plan_json(const llmc_model *m);
LLMC_API const char *llmc_model_yaml(const llmc_model *m); /* the resolved description */

/* ---- text ---- */

LLMC_API const llmc_tokenizer *llmc_model_tokenizer(const llmc_model *m); /* borrowed; NULL: none */
/* Open tokenizer.json, tokenizer.model, a folder that holds one (or ice_text.model, or vocab.json
 * and merges.txt), a GGUF (a vocabulary without weights is enough) or an .flm. */
LLMC_API llmc_status llmc_tokenizer_open(const char *path, llmc_tokenizer **out, llmc_error *err);
LLMC_API void llmc_tokenizer_close(llmc_tokenizer *t);
LLMC_API int32_t llmc_tokenizer_size(const llmc_tokenizer *t);

enum {
	LLMC_ADD_SPECIAL = 1,   /* add the model's own prefix and suffix (bos, eos) */
	LLMC_PARSE_SPECIAL = 2, /* recognise special tokens in the text */
	/* first string of a pair that forms one input: adds the prefix of transformers'
	 * tokenizer(text, text_pair) */
	LLMC_ADD_FIRST = 4,
	/* second string of the pair: adds separator and suffix. The pair is the concatenation of
	 * both id lists */
	LLMC_ADD_SECOND = 8,
	/* LLMC_BREAK in the text is no part of it: an added token that it interrupts is text */
	LLMC_BREAKS = 16,
};
#define LLMC_BREAK "\xEF\xB7\x90" /* U+FDD0, a noncharacter */
LLMC_API llmc_status llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes,
                                   int flags, int32_t *ids, size_t cap, size_t *need,
                                   llmc_error *err);
/* Copy an untrusted string, with a LLMC_BREAK in each special token. It can then be part of a
 * prompt that is tokenized with LLMC_PARSE_SPECIAL | LLMC_BREAKS: for example as the content of a
 * message. A LLMC_BREAK in the string becomes U+FFFD. */
LLMC_API llmc_status llmc_break_special(const llmc_tokenizer *t, const char *text, size_t n_bytes,
                                        char *buf, size_t cap, size_t *need, llmc_error *err);
/* Lower bound of the number of ids that llmc_tokenize returns, computed without tokenizing. Use it
 * to reject an input that is too long. */
LLMC_API size_t llmc_tokenize_least(const llmc_tokenizer *t, const char *text, size_t n_bytes);
/* Convert ids to text as the tokenizer's own decoder does; invalid UTF-8 becomes U+FFFD.
 * skip_special omits special tokens. */
LLMC_API llmc_status llmc_detokenize(const llmc_tokenizer *t, const int32_t *ids, size_t n,
                                     bool skip_special, char *buf, size_t cap, size_t *need,
                                     llmc_error *err);
/* The token as its vocabulary spells it, for example with "Ġ" or "▁" for a space; NULL: no such
 * id */
LLMC_API const char *llmc_token_text(const llmc_tokenizer *t, int32_t id);
/* Bytes that a token adds to an output: possibly part of a character, possibly NUL. For a special
 * token, its name. E_INPUT: no such id. */
LLMC_API llmc_status llmc_token_bytes(const llmc_tokenizer *t, int32_t id, char *buf, size_t cap,
                                      size_t *need, llmc_error *err);
LLMC_API bool llmc_token_is_special(const llmc_tokenizer *t,
                                    int32_t id); /* true: skip_special omits it */

/* Marks of a prompt whose middle is missing (fill-in-the-middle), ids or -1. The prompt is
 *
 *     prefix <its text> suffix <its text> middle
 *
 * or, with suffix_first, suffix <its text> prefix <its text> middle. repo, file: marks before the
 * names of a repository and of a file, which may come before that. stop: tokens that end the
 * generated middle, besides the end of the sequence. */
typedef struct llmc_fim {
	size_t size;
	int32_t prefix, suffix, middle, repo, file;
	bool suffix_first;
	int32_t n_stop, stop[12];
} llmc_fim;
LLMC_API bool llmc_fim_tokens(const llmc_tokenizer *t, llmc_fim *out); /* false: it has none */

LLMC_API bool llmc_has_chat_template(const llmc_tokenizer *t);
/* source text of the template; NULL: none */
LLMC_API const char *llmc_chat_template(const llmc_tokenizer *t);
/* Apply the chat template.
 *   messages_json   [{"role":"user","content":"..."}, ...]
 *   options_json    variables: {"add_generation_prompt":true,"tools":[...]}, or NULL;
 *                   "chat_template" replaces the model's template
 *
 * E_INPUT carries the text that the template passes to raise_exception. */
LLMC_API llmc_status llmc_chat(const llmc_tokenizer *t, const char *messages_json,
                               const char *options_json, char *buf, size_t cap, size_t *need,
                               llmc_error *err);

/* Incremental detokeniser: feed ids, get the text that can no longer change. */
LLMC_API llmc_status llmc_stream_open(const llmc_tokenizer *t, bool skip_special, llmc_stream **out,
                                      llmc_error *err);
/* *text is valid until the next call; id -1 flushes the text that is still held back */
LLMC_API llmc_status llmc_stream_feed(llmc_stream *s, int32_t id, const char **text,
                                      size_t *n_bytes, llmc_error *err);
LLMC_API void llmc_stream_close(llmc_stream *s);

/* ---- images ---- */

/* Pixels of an image, upright and with 8 bits per channel. Immutable; any thread may use it. */
typedef struct llmc_image llmc_image;
/* Decode JPEG, PNG, WebP, GIF (first frame) or BMP.
 *   max_pixels   limit of width times height, checked before memory is allocated; 0: 67,108,864
 *
 * E_INPUT: no such image, damaged, or over the limit. E_MISSING: this build of llmc lacks the
 * decoder. */
LLMC_API llmc_status llmc_image_decode(const void *data, size_t n, int64_t max_pixels,
                                       llmc_image **out, llmc_error *err);
/* Copy pixels of 1 (grey), 3 (RGB) or 4 (RGBA) channels, rows from the top. stride: bytes from one
 * row to the next; 0: no padding. */
LLMC_API llmc_status llmc_image_from_pixels(const uint8_t *pixel, int32_t width, int32_t height,
                                            int32_t channels, size_t stride, llmc_image **out,
                                            llmc_error *err);
/* Return [height, width, channels], valid until the image is closed. channels: 3 or 4 */
LLMC_API const uint8_t *llmc_image_pixels(const llmc_image *im, int32_t *width, int32_t *height,
                                          int32_t *channels);
LLMC_API void llmc_image_close(llmc_image *im); /* NULL is allowed */

/* Preprocessing of a model, as its image processor in transformers does it. Immutable; any thread
 * may use it. */
typedef struct llmc_image_processor llmc_image_processor;
/* Read preprocessor_config.json, processor_config.json, tokenizer_config.json and config.json of a
 * model's folder, or the keys of an mmproj GGUF file. E_INPUT names a class, step or value that
 * llmc does not support. */
LLMC_API llmc_status llmc_image_processor_open(const char *path, llmc_image_processor **out,
                                               llmc_error *err);
LLMC_API void llmc_image_processor_close(llmc_image_processor *p); /* NULL is allowed */

/* Patches of one image. All of it is released by llmc_image_patches_release. */
typedef struct llmc_image_patches {
	size_t size;
	void *owner;      /* memory of all arrays below */
	const float *row; /* [n_row, width], the values of one patch per row */
	int64_t n_row;
	int32_t width;
	const int32_t *pos[2]; /* [n_row] each: row and column of a patch in its tile */
	/* n_tile tiles, ordered as in `row`; height and width of each, in patches */
	int32_t n_tile;
	const int32_t *tile_height, *tile_width;
	/* grid of the tiles that the image was cut into, without the whole image; 0: not cut */
	int32_t tiles_high, tiles_wide;
	/* embeddings that the vision tower makes of the image; text that replaces `placeholder` in
	 * the prompt and contains `token` n_token times */
	int64_t n_token;
	const char *text, *placeholder, *token;
} llmc_image_patches;
/* Prepare an image. E_INPUT: the processor refuses its shape. */
LLMC_API llmc_status llmc_image_prepare(const llmc_image_processor *p, const llmc_image *im,
                                        llmc_image_patches *out, llmc_error *err);
LLMC_API void llmc_image_patches_release(llmc_image_patches *patches);

/* ---- reasoning and tools ---- */

/* Parser for reasoning and tool calls, in the format of the model's chat template
 * (configs/formats/calls.yaml). It takes the output as it is generated, with special tokens as
 * text, and reports its parts.
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
	LLMC_PIECE_CALL,      /* a call begins; text is the complete tool name */
	LLMC_PIECE_ARGUMENTS, /* more of the arguments: JSON, the model's own bytes */
	LLMC_PIECE_DONE,      /* the call is over */
} llmc_piece_kind;
/* call: index of the call, from 0; -1 for parts outside a call */
typedef void (*llmc_piece_fn)(void *user, llmc_piece_kind kind, int32_t call, const char *text,
                              size_t n_bytes);
/* tools_json NULL: reasoning only. The tokenizer may be closed before the parser. A tool whose only
 * parameter is a string may carry a grammar next to its `function`: "format": {"type": "grammar",
 * "syntax": "lark" or "regex", "definition"}; llmc_calls_rules enforces it. */
LLMC_API llmc_status llmc_calls_open(const llmc_tokenizer *t, const char *prompt, size_t n_prompt,
                                     const char *tools_json, llmc_calls **out, llmc_error *err);
LLMC_API llmc_status llmc_calls_feed(llmc_calls *c, const char *text, size_t n_bytes, bool last,
                                     llmc_piece_fn fn, void *user, llmc_error *err);
LLMC_API void llmc_calls_close(llmc_calls *c);
/* Set marks to the strings before and after reasoning; the first is empty if the prompt has opened
 * it. Valid as long as the parser. false: the format has no reasoning */
LLMC_API bool llmc_calls_reasoning(const llmc_calls *c, const char *marks[2]);
/* inside fn: byte offset of the LLMC_PIECE_TEXT in the output */
LLMC_API size_t llmc_calls_at(const llmc_calls *c);
typedef enum llmc_mark {
	LLMC_MARK_ROW,           /* name of the format */
	LLMC_MARK_REASONING,     /* opens the reasoning */
	LLMC_MARK_REASONING_END, /* ends reasoning that the prompt has opened */
	LLMC_MARK_CALL,          /* opens a call */
	/* system prompt that lists the tools ({tools}), for a template without a slot for them */
	LLMC_MARK_SYSTEM,
} llmc_mark;
LLMC_API const char *llmc_calls_mark(const llmc_calls *c,
                                     llmc_mark which); /* NULL: none; valid as long as the parser */
/* Write a grammar of kind LLMC_GRAMMAR_PARTS that allows only calls of these tools, with arguments
 * that match each tool's schema. only: name of the one tool to allow; NULL: any. E_INPUT: no such
 * tool, or the model's call format is unknown. */
enum {
	LLMC_CALLS_ONE = 1, /* one call, not several */
	/* LLMC_MARK_CALL has been generated already: the grammar starts after it */
	LLMC_CALLS_BEGUN = 2,
	LLMC_CALLS_FREE = 4, /* arguments are any object, regardless of the schemas */
};
LLMC_API llmc_status llmc_calls_rules(const llmc_calls *c, const char *only, int flags, char *buf,
                                      size_t cap, size_t *need, llmc_error *err);

/* ---- images ---- */

/* Rows of one image of a prompt: they replace the embeddings of its tokens. key: hash of what the
 * rows were made from; equal images share pages of the prefix cache */
typedef struct llmc_image_part {
	size_t size;
	const float *row; /* [n_row, hidden] */
	int32_t n_row;
	uint64_t key;
	/* rows and columns of the tokens, for models whose RoPE has sections; 0: unknown */
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
 * Any thread may use a tower; it runs one image at a time. Its tiles take turns with the steps of
 * the model's engines, in order of arrival. */
typedef struct llmc_tower llmc_tower;
typedef struct llmc_tower_image llmc_tower_image;
typedef struct llmc_read_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	int64_t max_pixels; /* limit of width times height [67,108,864] */
	bool low; /* the whole image at the size of one tile; E_INPUT: the model uses no tiles */
	/* only the text and the number of rows: the tower does not run, and rows are NULL */
	bool count_only;
	/* called before the image is decoded and before each tile; false: E_CANCELLED [always
	 * true] */
	bool (*go_on)(void *user);
	void *user;
} llmc_read_options;
/* Open the tower in the checkpoint of the model. opt: as for the model (device, arch, log); NULL:
 * the CPU. With no_weights, of the tower or the model, it counts tokens and bytes only. E_INPUT:
 * the model reads text only, or its folder lacks the description of the images.
 */
LLMC_API llmc_status llmc_tower_open(llmc_model *m, const llmc_options *opt, llmc_tower **out,
                                     llmc_error *err);
LLMC_API void llmc_tower_close(llmc_tower *t); /* NULL is allowed */
/* Text that stands for an image in the chat template's output */
LLMC_API const char *llmc_tower_placeholder(const llmc_tower *t);
/* Text of the token whose embeddings the rows replace; part of the placeholder */
LLMC_API const char *llmc_tower_token(const llmc_tower *t);
/* Memory of weights and buffers; waits for a tile that runs */
LLMC_API int64_t llmc_tower_bytes(llmc_tower *t);
/* Decode an image, prepare it as the model's processor does, and run the tower. E_INPUT: the bytes
 * are no image, are damaged, or exceed the limits of pixels and bytes. */
LLMC_API llmc_status llmc_tower_read(llmc_tower *t, const void *data, size_t n,
                                     const llmc_read_options *opt, llmc_tower_image **out,
                                     llmc_error *err);
LLMC_API void llmc_tower_image_close(llmc_tower_image *im); /* NULL is allowed */
LLMC_API const char *llmc_tower_image_text(const llmc_tower_image *im);
/* The rows are valid until the image is closed. */
LLMC_API void llmc_tower_image_part(const llmc_tower_image *im, llmc_image_part *out);

/* Fetch the file of an http:// or https:// URL that a third party has chosen, without reaching
 * private networks. */
typedef struct llmc_fetch_options {
	size_t size;
	/* hosts that are allowed, "a.example,b.example:8443,*.c.example"; "*": all. Without a port,
	 * 80 and 443. A host that is a name must have public addresses only; a numeric address is
	 * allowed as it is */
	const char *hosts;
	int64_t max_bytes;         /* [32 MiB] */
	double timeout_s;          /* for all of it, redirects included [10] */
	bool (*go_on)(void *user); /* called now and then; false: E_CANCELLED [always true] */
	void *user;
} llmc_fetch_options;
/* *data is freed with llmc_free. Redirects are followed if their URL passes the same checks. The
 * address that a connection uses is the one that is checked. E_INPUT: the URL or an address is not
 * allowed, or the file is too large. E_IO: the server cannot be reached, is too slow or answers
 * with an error. E_MISSING: there is no libcurl. */
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
 * Schemas: properties appear in the order of `properties`, whether required or not. Other
 * properties: llmc_additional. White space between JSON
 * tokens is bounded (one space, or two newlines and twenty spaces), and so is the number of digits.
 * docs/constrained.md lists the keywords. */
typedef enum llmc_grammar_kind {
	LLMC_GRAMMAR_JSON,        /* any JSON object; the text argument is ignored */
	LLMC_GRAMMAR_JSON_SCHEMA, /* a JSON schema */
	/* regular expression that matches the whole output; no look-around, no back-references */
	LLMC_GRAMMAR_REGEX,
	LLMC_GRAMMAR_GBNF,   /* llama.cpp's format: rules, with `root` as the start */
	LLMC_GRAMMAR_CHOICE, /* one of a JSON array of strings */
	/* JSON: fixed strings between schemas and expressions; docs/constrained.md */
	LLMC_GRAMMAR_PARTS,
	/* Lark's format without lexer features: rules, with `start` as the start;
	 * docs/constrained.md */
	LLMC_GRAMMAR_LARK,
} llmc_grammar_kind;

/* Whether an object that lists properties, but has no additionalProperties, may have others, and an
 * array with prefixItems, but without items, more elements. Arguments of calls in other notations
 * than JSON follow AUTO as CLOSED. */
typedef enum llmc_additional {
	LLMC_ADDITIONAL_AUTO,   /* if the schema names its dialect with a string `$schema` */
	LLMC_ADDITIONAL_CLOSED, /* no */
	LLMC_ADDITIONAL_OPEN,   /* yes, as JSON Schema defines it */
} llmc_additional;

typedef struct llmc_grammar_options {
	size_t size;
	bool compact; /* no white space between JSON tokens */
	/* JSON Schema's own defaults: any other properties, any type, unlimited white space and
	 * digits */
	bool standard;
	bool strict; /* keywords that cannot be enforced are errors; otherwise they are ignored */
	llmc_additional additional; /* LLMC_ADDITIONAL_; `standard` implies OPEN */
} llmc_grammar_options;

/* Parse a grammar. Any thread. The tokenizer may be closed before the grammar. t NULL: the tokens
 * are the 256 bytes, which is enough for llmc_grammar_match. E_INPUT: a syntax error or an
 * unsupported keyword; the message names its path or position. Reference counted: each retain needs
 * a close. */
LLMC_API llmc_status llmc_grammar_open(const llmc_tokenizer *t, llmc_grammar_kind kind,
                                       const char *text, size_t n_bytes,
                                       const llmc_grammar_options *opt, llmc_grammar **out,
                                       llmc_error *err);
LLMC_API void llmc_grammar_retain(llmc_grammar *g);
/* NULL is allowed; matchers and samplers keep their grammar open */
LLMC_API void llmc_grammar_close(llmc_grammar *g);

/* Match a string against a grammar without a model. *complete: the whole string is an output of the
 * grammar. *n_matched: bytes of the longest prefix with which an output can begin. Names of special
 * tokens in the string stand for these tokens where the grammar has them. E_RANGE, E_MEMORY: the
 * grammar is too ambiguous for the matcher's bounds. */
LLMC_API llmc_status llmc_grammar_match(llmc_grammar *g, const char *text, size_t n_bytes,
                                        bool *complete, size_t *n_matched, llmc_error *err);

/* Position of one output in a grammar.
 *   mask     bit `id & 31` of bits[id >> 5] is set if the token may come next; bits beyond the
 *            vocabulary are 0. End-of-sequence tokens are allowed when the output may end
 *   accept   E_INPUT: the token is not allowed
 *
 * E_RANGE, E_MEMORY: the grammar is too ambiguous for the matcher's bounds. */
LLMC_API llmc_status llmc_matcher_open(llmc_grammar *g, llmc_matcher **out, llmc_error *err);
LLMC_API void llmc_matcher_close(llmc_matcher *m);
LLMC_API llmc_status llmc_matcher_mask(llmc_matcher *m, uint32_t *bits, size_t n_words,
                                       llmc_error *err);
LLMC_API llmc_status llmc_matcher_accept(llmc_matcher *m, int32_t id, llmc_error *err);
LLMC_API bool llmc_matcher_may_end(llmc_matcher *m); /* the output so far is complete */
/* the output is complete and nothing can follow */
LLMC_API bool llmc_matcher_ended(llmc_matcher *m);
LLMC_API void llmc_matcher_reset(llmc_matcher *m); /* return to the start */

/* ---- sessions and sampling ---- */

/* Create a sequence. E_FULL: the session already has limits.seqs sequences. length_bound: largest
 * number of prompt and new tokens (0: the context); selects length-dependent RoPE tables. */
LLMC_API llmc_status llmc_seq_new(llmc_session *s, int32_t length_bound, llmc_seq *out,
                                  llmc_error *err);
LLMC_API llmc_status llmc_seq_fork(llmc_session *s, llmc_seq from, llmc_seq *out,
                                   llmc_error *err); /* shares pages */
/* Drop all positions from `len` on. E_RANGE also if a window layer has freed some that it needs
 * again (never up to len + 32 positions). E_RANGE if `len` is neither 0 nor after the last image,
 * in models with RoPE positions of images or whose images attend to themselves. */
LLMC_API llmc_status llmc_seq_trim(llmc_session *s, llmc_seq q, int32_t len, llmc_error *err);
/* Mark the current position of a sequence with recurrent state. Such a sequence can be trimmed only
 * to 0 or to its last mark. Does nothing for other models. E_FULL: limits.marks are in use. A mark
 * is dropped when its sequence is freed or trimmed to an earlier position. */
LLMC_API llmc_status llmc_seq_mark(llmc_session *s, llmc_seq q, llmc_error *err);
LLMC_API void llmc_seq_unmark(llmc_session *s, llmc_seq q);
LLMC_API int32_t llmc_seq_len(const llmc_session *s, llmc_seq q); /* -1: no such sequence */
LLMC_API void llmc_seq_free(llmc_session *s, llmc_seq q);
/* Serialise the KV of a sequence, and create a sequence from those bytes in any session of the same
 * model and target. E_INPUT: the bytes are damaged or from another model; E_FULL: too few pages. */
LLMC_API llmc_status llmc_seq_save(llmc_session *s, llmc_seq q, void *buf, size_t cap, size_t *need,
                                   llmc_error *err);
LLMC_API llmc_status llmc_seq_load(llmc_session *s, const void *buf, size_t n, llmc_seq *out,
                                   llmc_error *err);

/* LoRA adapters in PEFT format, selected per sequence, for models opened with adapter slots
 * ("adapters.slots=4", "adapters.rank=16"). One step can hold sequences with different adapters and
 * with none. Adapter ids are never reused. Any thread, also while sessions run.
 *   load    E_INPUT: the model has no slots, the folder does not exist, or the adapter is for another
 *           model, for modules without slots or of too large a rank; E_FULL: all slots are in use.
 *           scale multiplies the adapter's own scale; 1: as trained
 *   unload  No new sequence can select the adapter. Its slot is free once the last sequence and
 *           request that use it end. E_RANGE: no such adapter */
LLMC_API llmc_status llmc_adapter_load(llmc_model *m, const char *folder, double scale,
                                       int32_t *adapter, llmc_error *err);
LLMC_API llmc_status llmc_adapter_unload(llmc_model *m, int32_t adapter, llmc_error *err);
LLMC_API int llmc_adapter_slots(const llmc_model *m); /* 0: the model has none */
/* Select the adapter of an empty sequence; 0: none. Forks inherit it, and so do sequences loaded
 * from its saved bytes. E_RANGE: no such sequence or adapter, or the sequence is not empty. */
LLMC_API llmc_status llmc_seq_adapt(llmc_session *s, llmc_seq q, int32_t adapter, llmc_error *err);

typedef struct llmc_chunk {
	llmc_seq seq;
	const int32_t *tok; /* [n_tok], 0 <= id < vocab */
	int32_t n_tok;      /* >= 1 */
	int32_t n_out;      /* number of last rows whose logits are returned, 0 .. n_tok */
} llmc_chunk;

/* Run chunks of different sequences through the model in one step. Blocks; allocates nothing.
 *   logits [sum of n_out, llmc_model_info.out_width] fp32, owned by the caller; chunks in order;
 *          NULL skips the copy
 *
 * E_RANGE, E_FULL: nothing ran, no sequence changed. E_DEVICE: from now on only
 * llmc_session_close() is allowed. */
LLMC_API llmc_status llmc_forward(llmc_session *s, const llmc_chunk *chunk, size_t n, float *logits,
                                  llmc_error *err);
/* Variant of llmc_forward for a model and its draft head: an MTP head of the same description
 * (mtp.part) or a draft checkpoint (EAGLE-3). The model returns hidden rows; the head takes one row
 * with each token. Token i + 1 of a sequence is paired with row i of the model or, for later draft
 * tokens, with row i of the head. An input row of a draft checkpoint is a row of the model followed
 * by zeros, or own_at zeros followed by a row of the head.
 *   came   [sum of n_tok, llmc_model_info.row_in] input rows of a head; NULL for the model
 *   rows   [sum of n_tok, llmc_model_info.row_out] output, owned by the caller; chunks in order;
 *          NULL skips the copy
 *
 * E_RANGE: also if the model neither takes nor returns rows. */
LLMC_API llmc_status llmc_forward_rows(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                       const float *came, float *logits, float *rows,
                                       llmc_error *err);
/* Token of each column of a draft checkpoint's logits, [*n]; NULL: the column's number. They live
 * as long as the model. */
LLMC_API const int32_t *llmc_draft_tokens(const llmc_model *m, size_t *n);

/* Rows that come with the tokens of a chunk: patches of images, or rows of a vision tower.
 *   row      [-, width] rows. Tower: width is vision.width, and token i of the chunk, whose id is 0, is
 *            patch i. Language model: width is hidden, and row at[i] replaces the embedding of
 * token i
 *   at       [n_tok] index of a token's row, -1: none; NULL for a tower
 *   pos      [n_tok] each. Tower: time, row and column of a patch. Language model whose rope has
 *            sections: RoPE positions of the tokens; those of later chunks without `pos` continue
 *            from the largest one of the last token. NULL: the positions of the sequence
 *   number   tower with learned positions: [n_tok] number of a patch's learned position. Else NULL
 *   window   tower with windows (attention.window_kind segments): [n_tok] number of a patch's
 *            window, from 0 on; patches of a window are adjacent. Else NULL
 */
typedef struct llmc_image_rows {
	size_t size;
	const float *row;
	const int32_t *at;
	const int32_t *pos[3];
	const int32_t *number;
	const int32_t *window;
} llmc_image_rows;
/* Variant of llmc_forward for a vision tower, whose chunks are images with n_out = n_tok /
 * vision.merge rows of output, and for a language model that was opened with "vision.part=rows".
 * rows: one per chunk; its arrays are read only during the call. E_RANGE: also if the model takes
 * no such rows. */
LLMC_API llmc_status llmc_forward_images(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                         const llmc_image_rows *rows, float *logits,
                                         llmc_error *err);

/* Compute the vector of one input, for a model whose output is hidden states or label scores. Rows
 * are pooled, then divided by the vector's length if `normalize`. Runs in a new sequence, which is
 * freed at the end.
 *   out  [out_width] fp32, owned by the caller
 *
 * E_INPUT: no tokens, no pooling selected, or the output is logits; E_RANGE, E_FULL as in
 * llmc_forward. */
LLMC_API llmc_status llmc_embed(llmc_session *s, const int32_t *tok, size_t n_tok, llmc_pool pool,
                                bool normalize, float *out, llmc_error *err);

/* Decode without waiting for the host: each token is sampled on the device and fed to the next step
 * before the host has read it. Sessions on a GPU can do so if no stop rule of the parameters
 * needs the host; sessions on a CPU cannot.
 *
 *     llmc_sample_params(s, q, &params, prompt, n_prompt, &err);
 *     llmc_queue_step(s, &prompt_chunk, 1, &err);              n_out is 1
 *     for (;;) {
 *             llmc_queue_step(s, &next_chunk, 1, &err);        tok NULL: the token sampled last
 *             llmc_take_sampled(s, &id, NULL, &err);           reads that token
 *     }
 *
 * llmc_queue_step queues a step and returns. One token is sampled from the last row of each
 * chunk with n_out 1. Two steps may be in flight; a third is E_BUSY. llmc_take_sampled waits for
 * the oldest step and returns the ids (and logprobs, if not NULL) of its chunks with n_out 1, in
 * order. */
LLMC_API bool llmc_can_sample(const llmc_session *s, const llmc_params *p);
LLMC_API llmc_status llmc_sample_params(llmc_session *s, llmc_seq q, const llmc_params *p,
                                        const int32_t *prompt, size_t n_prompt, llmc_error *err);
LLMC_API llmc_status llmc_queue_step(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                     llmc_error *err);
LLMC_API llmc_status llmc_take_sampled(llmc_session *s, int32_t *ids, float *logprobs,
                                       llmc_error *err);

/* Time of each op of a step: its kernel in all layers, run repeatedly on the data of the last
 * llmc_forward. A GPU times the kernel alone; a CPU times it within the step, including the barrier
 * after it. llmc_op_times blocks and calls fn on this thread, once per kernel in step order; fn
 * must not use the session. Afterwards the step's sequences and their forks hold invalid values:
 * free them. E_RANGE: no step has run, or one of its sequences has been freed or trimmed since;
 * E_MEMORY. A step that is not measured has no overhead. */
typedef struct llmc_op_time {
	const char *op;       /* as in llmc plan; lives as long as the model */
	int32_t n;            /* launches per step */
	double seconds;       /* seconds of all launches together */
	int64_t weight_bytes; /* weight bytes that they read */
	bool library;         /* true: cuBLASLt computes its matmul */
	int64_t cache_bytes;  /* bytes of KV that attention reads */
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
	int64_t weight_bytes; /* weight bytes that the last forward read, according to the plan */
	int64_t kv_pages_used, kv_pages_total; /* pages of LLMC_KV_PAGE positions */
	/* bytes of routed experts of a mapped file that steps chose, and bytes of them that were
	 * not in memory and were read ahead. While nothing is missing, only samples are counted. */
	int64_t expert_bytes, expert_read_bytes;
} llmc_stats;
LLMC_API void llmc_session_stats(const llmc_session *s, llmc_stats *out);

LLMC_API llmc_status llmc_sampler_open(int32_t vocab, const llmc_params *p, llmc_sampler **out,
                                       llmc_error *err);
LLMC_API void llmc_sampler_close(llmc_sampler *s);
LLMC_API void llmc_sampler_reset(llmc_sampler *s);
/* Record a token of the prompt (is_prompt) or of the output; penalties count them. */
LLMC_API void llmc_sampler_accept(llmc_sampler *s, int32_t id, bool is_prompt);
/* Sample from logits [vocab], which are not changed; logprob (may be NULL) is taken from the
 * unchanged distribution. NaN logits: E_CHECK. */
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
 * arrival. When KV pages run out, the youngest request is preempted: its pages move to host memory
 * or are recomputed later, whichever is cheaper. It resumes before any newer request starts.
 * Requests with a shared prefix share its pages while these are cached. A request generates the
 * tokens that it would get alone: always on a CPU, on a GPU with `deterministic: true`. Random
 * numbers depend on seed, choice and position only.
 *
 * Any thread may call. Events of one request arrive in order; two threads that wait for the same
 * request share its events. */
typedef struct llmc_engine_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	/* limits of the session; seqs is the largest batch [seqs 16; with no_fit kv_tokens
	 * LLMC_DEFAULT_KV_CONTEXTS contexts] */
	const llmc_limits *limits;
	/* requests that may wait or run at a time; more are refused
	 * [LLMC_DEFAULT_CONCURRENT_REQUESTS] */
	int32_t max_concurrent_requests;
	int32_t max_batch_prefill_tokens; /* prompt tokens per step [limits.chunk] */
	/* a request starts only if prompt + max_tokens of all running ones and its own fit [0: if
	 * its prompt fits] */
	int64_t max_batch_total_tokens;
	/* while others decode, requests start once waiting / running reaches this ratio [0: at
	 * once] */
	float waiting_served_ratio;
	/* ... or after this many steps without a start [LLMC_DEFAULT_WAITING_TOKENS] */
	int32_t max_waiting_tokens;
	bool no_prefix_cache;
	/* host memory for the KV of preempted requests [0: they are recomputed]. Set only one of
	 * this and kv.host, which holds their pages as well */
	int64_t swap_bytes;
	llmc_log_fn log; /* called on the engine's threads */
	void *log_user;
	/* draft tokens per step, used when few requests run and drafting is faster; -1: none
	 * [LLMC_MAX_SPECULATE; none on GPUs without deterministic: true] */
	int32_t speculate;
	/* folder that keeps prefix pages as files, for restarts and for other engines of the same
	 * model [none] */
	const char *prefix_dir;
	int64_t prefix_dir_bytes; /* upper bound of its bytes [LLMC_DEFAULT_PREFIX_DIR_BYTES] */
	/* draft model, which the engine keeps open: a smaller model with the same tokenizer, the
	 * same checkpoint opened with mtp.part=head (and the model with mtp.part=rows), or a draft
	 * checkpoint (llmc_options.draft and draft_of) [none] */
	llmc_model *draft;
} llmc_engine_options;

LLMC_API llmc_status llmc_engine_open(llmc_model *m, const llmc_engine_options *opt,
                                      llmc_engine **out, llmc_error *err);
/* Refuse new requests (llmc_submit returns E_CANCELLED) and wait until all are served, at most
 * drain_ms (< 0: no limit); then end the rest with LLMC_FINISH_CANCEL. Events stay readable.
 * E_CANCELLED: requests were cut short. */
LLMC_API llmc_status llmc_engine_drain(llmc_engine *e, int drain_ms, llmc_error *err);
/* Drain, then free. No other call may be running or follow. NULL is allowed. */
LLMC_API void llmc_engine_close(llmc_engine *e, int drain_ms);
/* limits in force; valid as long as the engine */
LLMC_API const llmc_limits *llmc_engine_limits(const llmc_engine *e);

typedef struct llmc_request {
	size_t size;
	const int32_t *tok; /* [n_tok] the prompt */
	size_t n_tok;
	const llmc_params *params; /* NULL: greedy, 256 tokens */
	int32_t n;                 /* number of choices [1]; choice i samples with seed + i */
	/* choices to generate; the n with the best mean logprob are returned when all are complete
	 * [n] */
	int32_t best_of;
	/* report the log probability of each new token, before sampling options change it */
	bool logprobs;
	bool prompt_logprobs; /* ... and of each prompt token, as LLMC_EVENT_PROMPT */
	int32_t n_top;        /* most likely tokens reported per position, 0 .. LLMC_MAX_TOP */
	/* return stop strings as part of the text instead of holding text back and cutting it; the
	 * text ends with the token that completes one */
	bool keep_stop;
	bool show_special; /* special tokens appear in the text */
	/* seconds after llmc_submit until the request ends with LLMC_FINISH_DEADLINE [none] */
	double deadline_s;
	void *user; /* returned in every event */
	/* return the prompt's pooled vector instead of generating; required if the model's output
	 * is not logits */
	llmc_pool pool;
	bool normalize;   /* divide the vector by its length */
	int32_t priority; /* a lower value starts sooner and may preempt others [0] */
	int32_t adapter;  /* adapter id from llmc_adapter_load [none] */
	/* [n_pool_tok] ids: with `pool` (last or first row), a model with logits returns the logits
	 * of these tokens as the vector (rerankers). Without `pool`, `top` of a new token holds the
	 * log probabilities of these tokens, in this order, instead of the most likely ones: at
	 * most LLMC_MAX_TOP, and not with best_of */
	const int32_t *pool_tok;
	int32_t n_pool_tok;
	/* requests share cached prefix pages only with requests of the same salt [0] */
	uint64_t prefix_salt;
	/* tokens of the first sequence of a pair: an encoder with token types gives those after it
	 * the second type [all] */
	size_t n_first;
	/* images of the prompt, in order (llmc_tower_image_part), for a model that was opened with
	 * "vision.part=rows". The prompt has as many image tokens (vision.token) as they have rows
	 * [none] */
	const llmc_image_part *images;
	size_t n_images;
	/* Client that sends the request, any number: clients of one priority take turns. The next
	 * request to start is that of the client whose tokens are fewest, and a client that runs
	 * several sequences gives one up for a client that runs at least two fewer [0] */
	uint64_t client;
} llmc_request;

/* Submit a request. All data that it points to is copied. *id is > 0 and never reused by an engine.
 * E_BUSY, at once: max_concurrent_requests are running or waiting. E_INPUT: no tokens. E_RANGE: an
 * id or a parameter is out of range, the prompt does not fit the context, or the request could not
 * run even alone. E_CANCELLED: the engine is being drained. E_DEVICE: the engine has failed. */
LLMC_API llmc_status llmc_submit(llmc_engine *e, const llmc_request *r, int64_t *id,
                                 llmc_error *err);

typedef enum llmc_event_kind {
	LLMC_EVENT_NONE, /* no event within the timeout */
	/* a prompt token (prompt_logprobs): token, logprob (NaN for the first), top, text; index
	 * 0 */
	LLMC_EVENT_PROMPT,
	LLMC_EVENT_TOKEN, /* a new token: token, text, logprob, top */
	/* a choice is complete: finish and counts; text holds any rest that was held back */
	LLMC_EVENT_FINISH,
	LLMC_EVENT_ERROR, /* the request failed: status; text is the message */
} llmc_event_kind;

typedef struct llmc_logprob {
	int32_t id;
	float logprob;
} llmc_logprob;

typedef struct llmc_event {
	size_t size;
	llmc_event_kind kind;
	/* no further event of this request: all choices are complete, or it failed. Its id becomes
	 * invalid */
	bool last;
	int64_t request;
	void *user;
	int32_t index; /* choice, 0 .. n-1 */
	int32_t
	    token; /* FINISH: the eos or stop token that ended it, with logprob and top, else -1 */
	float logprob; /* if requested, else 0 */
	int32_t n_top;
	const llmc_logprob *top; /* [n_top] most likely first */
	/* text that became final with this token: never part of a character; may be empty;
	 * NUL-terminated */
	const char *text;
	size_t n_bytes;
	double time_s; /* CLOCK_MONOTONIC when the event was made */
	/* FINISH and ERROR */
	llmc_status status; /* ERROR */
	llmc_finish finish;
	int32_t stop;            /* FINISH_STOP: index of the stop string, else -1 */
	int32_t n_prompt, n_new; /* n_new counts TOKEN events, so not the eos or stop token */
	int32_t n_cached;        /* prompt tokens found in the prefix cache */
	int32_t n_preempted;     /* times preempted */
	double sum_logprob;      /* sum over the new tokens (logprobs or best_of) */
	/* seconds until it started, then until its first new token, then until its end */
	double queue_s, prefill_s, decode_s;
	void *memory_;       /* owns the memory of top, text and vector */
	const float *vector; /* [n_vector] FINISH of a request with `pool`; otherwise NULL */
	int32_t n_vector;
	int32_t
	    rank; /* PROMPT: tokens that are at least as likely, itself included; the first: 0 */
} llmc_event;

#define LLMC_ANY 0 /* any request */
/* Return the next event of a request, within timeout_ms (< 0: no limit). Initialise ev with
 * LLMC_INIT and reuse it; the memory that it points to is valid until the next call. E_RANGE: no
 * such request, or its last event has been returned. With LLMC_ANY and no event left: E_CANCELLED:
 * the engine is drained; E_DEVICE: it has failed, even if no request was running. */
LLMC_API llmc_status llmc_next(llmc_engine *e, int64_t id, int timeout_ms, llmc_event *ev,
                               llmc_error *err);
LLMC_API void llmc_event_release(llmc_event *ev);
/* Stop a request: its pages are free within one step, and its open choices finish with
 * LLMC_FINISH_CANCEL. May be repeated, also for requests that have ended. */
LLMC_API void llmc_cancel(llmc_engine *e, int64_t id);
/* Stop a request and drop all its events. */
LLMC_API void llmc_forget(llmc_engine *e, int64_t id);
/* Descriptor for poll(), readable while llmc_next(e, LLMC_ANY, 0, ...) would return an event. Do
 * not read or close it. */
LLMC_API int llmc_engine_fd(const llmc_engine *e);

enum { LLMC_BUCKETS = 36 };
/* Counts of values per bucket, not cumulative. Bucket k holds values <= 0.0001 * 1.5^(k+1) seconds,
 * or <= 2^k for counts, that are above bucket k - 1; the last bucket holds the rest. */
typedef struct llmc_histogram {
	uint64_t bucket[LLMC_BUCKETS], n;
	double sum;
} llmc_histogram;

typedef struct llmc_counts {
	size_t size;
	/* current values */
	int32_t running, waiting,
	    preempted;      /* choices in the batch; requests not started; choices preempted */
	int32_t batch_size; /* choices in the last step */
	int64_t batch_max_tokens; /* prompt + max_tokens of all that have started */
	int64_t kv_pages_total, kv_pages_used,
	    /* cached: kept for later prompts and freed when needed; not counted as used */
	    kv_pages_cached;
	int64_t swap_bytes_used;
	double last_step_s;
	/* totals since the engine was opened */
	uint64_t steps, prefill_steps;        /* all steps; steps with prefill */
	uint64_t requests;                    /* requests accepted */
	uint64_t finished[LLMC_FINISH_COUNT]; /* choices, by reason */
	uint64_t failed, refused; /* failed while running; refused because the queue was full */
	uint64_t prompt_tokens, new_tokens;
	uint64_t prefix_queries, prefix_hits; /* prompt tokens looked up, found */
	uint64_t preemptions, swaps_out, swaps_in;
	llmc_histogram prefill_step_s, decode_step_s; /* seconds */
	llmc_histogram queue_s, first_token_s, inter_token_s, prefill_s, decode_s, request_s;
	/* counts, not seconds; start_size: requests that started in the same step */
	llmc_histogram step_tokens, start_size;
	llmc_histogram request_prompt, request_new, request_max_new, request_n;
	/* times drafted; draft tokens verified; draft tokens accepted */
	uint64_t drafts, drafted, accepted;
	/* positions of prefix pages read from files, written to files, and found damaged */
	uint64_t prefix_read, prefix_written, prefix_wrong;
	/* draft tokens accepted, by position in the draft */
	uint64_t accepted_at[LLMC_MAX_SPECULATE];
	int64_t host_pages_total, host_pages_used; /* host pages of KV at present (kv.host) */
	uint64_t host_out, host_in; /* total positions copied to host memory, and back */
} llmc_counts;
LLMC_API void llmc_engine_stats(llmc_engine *e, llmc_counts *out); /* the caller sets out->size */

typedef struct llmc_replace_options {
	size_t size;
	bool cancel_running; /* end running requests (CANCEL) [they finish with the old weights] */
	int32_t n_threads;   /* threads that pack, besides those of the steps [1] */
} llmc_replace_options;
/* Replace the weights of an engine's model in place by those of a checkpoint (file or folder) with
 * the same tensors and shapes, as reinforcement learning does after each update. The checkpoint is
 * read and packed while steps run; it may be changed or removed after the call. Then no request
 * runs for a moment: running ones finish first, and new ones wait in order. Every later request
 * sees the new weights only, and no cached prefix of the old ones; prefix_dir is not used any more.
 * The engine's session must be the only one of its model. Blocks; any thread, while the engine is
 * open. E_INPUT: a tensor is missing or has another shape, the file is damaged, or the model has
 * adapter slots or several devices; E_FULL: no memory for a second copy; E_RANGE: another
 * replacement is waiting. On an error before the exchange the old weights stay in force; E_DEVICE:
 * the exchange failed and the engine is lost. */
LLMC_API llmc_status llmc_engine_replace_weights(llmc_engine *e, const char *path,
                                                 const llmc_replace_options *opt, llmc_error *err);

/* ---- HTTP server ---- */

/* HTTP server over an engine: routes of OpenAI, TGI, Anthropic and Ollama, listed in
 * docs/serving.md.
 *
 *     llmc_serve_options o = LLMC_INIT(llmc_serve_options);   o.port = 8000;
 *     llmc_serve_open(m, e, &o, &server, &err);    answers from here on, on its own threads
 *     llmc_serve_drain(server);                    optional, see below
 *     llmc_serve_stop(server);                     refuses new requests
 *     llmc_serve_wait(server, 30000);              waits until running requests are answered
 *     llmc_serve_close(server);                    then llmc_engine_close and llmc_close
 *
 * After llmc_serve_drain, /health returns 503 while requests are still accepted. Routers then send
 * new requests elsewhere before the port closes.
 *
 * The server takes all events of the engine (LLMC_ANY): no other code may call llmc_next on it
 * meanwhile. */
typedef struct llmc_server llmc_server;
/* 0 or NULL selects the default in brackets; strings are copied */
typedef struct llmc_serve_options {
	size_t size;
	const char *host;       /* address or name to listen on [127.0.0.1] */
	int32_t port;           /* [0: the kernel chooses; llmc_serve_port returns it] */
	bool allow_remote;      /* allow a host beyond loopback without a key */
	const char *api_key;    /* clients send "Authorization: Bearer KEY" [no key] */
	const char *model_name; /* name of the model in the API [the model's own] */
	/* origin of a web page that may call, or "*" [only the server's own] */
	const char *allow_origin;
	int32_t max_input_length, max_total_tokens; /* [context - 1, context] */
	/* limits of TGI's routes [2, 4, 5] */
	int32_t max_best_of, max_stop_sequences, max_top_n_tokens;
	int32_t validation_workers; /* threads that check and tokenize requests [2] */
	int64_t max_body_bytes;     /* largest request body [2 MB] */
	int32_t max_connections, max_connections_per_client; /* [1000, no limit] */
	/* seconds until the header, and then the body, of a request must be complete [10, 60] */
	double header_timeout_s, body_timeout_s;
	double idle_timeout_s; /* seconds after which an idle connection is closed [75] */
	/* seconds after which a request fails, templates and grammars included [no limit] */
	double request_timeout_s;
	/* options given to llmc_engine_open, shown by /info [all defaults] */
	const llmc_engine_options *engine;
	bool log_json; /* request lines as JSON objects */
	/* one line per request, LLMC_LOG_INFO; called on the server's threads, one at a time */
	llmc_log_fn log;
	void *log_user;
	/* Host names accepted when no key is set, "a.example,b.example" or "*" for all. Addresses,
	 * localhost and `host` are always accepted [none on loopback, else all] */
	const char *allow_host;
	/* file of further keys with limits, one line per key: NAME KEY [requests=N] [tokens=N]
	 * [priority=N] [none] */
	const char *keys;
	/* OTLP/HTTP endpoint for spans of requests, such as http://127.0.0.1:4318 [none] */
	const char *otlp;
	/* serve /metrics, /v1/models, /get_load and /model_info without a key, for routers and
	 * scrapers */
	bool open_probes;
	/* llmc_serve_open_models: memory of all engines together; the least recently used engine is
	 * closed to make space [no limit] */
	int64_t memory_bytes;
	/* llmc_serve_open_models: folder from which clients may load PEFT adapters with
	 * /v1/load_lora_adapter [not allowed] */
	const char *lora_dir;
	/* close an engine that has been idle for this many seconds [never] */
	double sleep_after_s;
	/* folder of /v1/files and /v1/batches; no other server may use it. Batches survive a
	 * restart [routes are off] */
	const char *batch_dir;
	int64_t batch_dir_bytes; /* upper bound of its bytes [LLMC_DEFAULT_BATCH_DIR_BYTES] */
	/* share cached prefix pages between the keys of `keys`, which lets a client find out by
	 * cached_tokens and by time what others have sent [each key has its own] */
	bool share_prefix;
	/* keep special tokens in messages, names, tools and tool results as text [they are special
	 * tokens, as in the reference implementations] */
	bool special_text;
	/* ignore the models' sampling advice: fields that a request omits have each dialect's own
	 * default [the advice is the default in the dialects of OpenAI, Anthropic and Ollama] */
	bool neutral_sampling;
	/* schemas of requests without `strict`; calls and strict schemas are closed [AUTO] */
	llmc_additional additional;
	int64_t image_pixels; /* largest width times height of an image [67,108,864] */
	int32_t max_images;   /* images per request [LLMC_DEFAULT_IMAGES] */
	/* rows of images that are kept for later requests, such as the next turn of a chat;
	 * negative: none [LLMC_DEFAULT_IMAGE_CACHE_BYTES] */
	int64_t image_cache_bytes;
	/* hosts of http(s) URLs of images, as in llmc_fetch_options [URLs are refused] */
	const char *allow_image_urls;
	/* llmc_serve_open_models: folder of models that clients may use by name, in addition to
	 * `models`, which may then be none: NAME.gguf, NAME.flm, a folder NAME, or ORG/NAME; read
	 * anew by each request for another name [none] */
	const char *models_dir;
	/* llmc_serve_open_models: clients may also use the models that llmc_pulled lists */
	bool models_pulled;
	/* options and engine_options of these models; the other fields are not read [those of the
	 * first of `models`] */
	const struct llmc_serve_model *found;
	/* folder from which POST /v1/weights may replace weights in place [not allowed] */
	const char *weights_dir;
	/* further names of the first model: "a,b"; "*" is any name of no other model, and not with
	 * models_dir and models_pulled [none] */
	const char *aliases;
	/* variables of chat templates that requests omit: a JSON object [none] */
	const char *chat_template_kwargs;
} llmc_serve_options;

/* Model that the server opens and closes as needed. All that it points to must stay unchanged until
 * llmc_serve_close. */
typedef struct llmc_serve_model {
	size_t size;
	const char *name;                          /* name in the API [the model's own] */
	const char *path;                          /* path, as for llmc_open */
	const llmc_options *options;               /* [all defaults] */
	const llmc_engine_options *engine_options; /* [all defaults, with the model's limits] */
	/* model that is open already; the server then owns it and `engine`, also on failure */
	llmc_model *model;
	llmc_engine *engine; /* engine over `model`; NULL: opened by the first request */
	const char *parent;  /* for an adapter: name of the model that it changes [none] */
	/* folder of an adapter that runs in a slot of the parent's engine (llmc_adapter_load); set
	 * path and options to the parent's [none] */
	const char *adapter;
	/* vision tower of `model`, if that was opened with images; the server then owns it. Models
	 * that the server opens get theirs from it, if options.images is set [none] */
	llmc_tower *tower;
} llmc_serve_model;

/* Start a server for one model. E_INPUT: an option is out of range, or the host is beyond loopback
 * without api_key and allow_remote; E_IO: cannot listen on the address. */
LLMC_API llmc_status llmc_serve_open(llmc_model *m, llmc_engine *e, const llmc_serve_options *opt,
                                     llmc_server **out, llmc_error *err);
/* Serve several models on one port; a request that names none goes to the first. Each model is
 * compiled here, so that errors show at once, and opened on its first request. E_FULL: one model
 * alone exceeds memory_bytes; also all errors of llmc_open. */
LLMC_API llmc_status llmc_serve_open_models(const llmc_serve_model *models, int32_t n,
                                            const llmc_serve_options *opt, llmc_server **out,
                                            llmc_error *err);
LLMC_API int llmc_serve_port(const llmc_server *s);
/* "http://127.0.0.1:8000"; valid as long as the server */
LLMC_API const char *llmc_serve_url(const llmc_server *s);
LLMC_API void llmc_serve_drain(llmc_server *s);
LLMC_API void llmc_serve_stop(llmc_server *s);
/* true: all requests are answered */
LLMC_API bool llmc_serve_wait(llmc_server *s, int timeout_ms);
/* Read the file of llmc_serve_options.keys again. Removed keys get 401 from now on; running
 * requests continue. On an error nothing changes. Any thread. */
LLMC_API llmc_status llmc_serve_reload_keys(llmc_server *s, llmc_error *err);
/* True if an engine has failed for good: its device or a rank is lost. /health returns 503 and
 * requests fail until the server is closed. Any thread. */
LLMC_API bool llmc_serve_failed(llmc_server *s);
LLMC_API void llmc_serve_close(llmc_server *s); /* ends running requests; NULL is allowed */

/* ---- compiling, checking, measuring ---- */

/* Convert a Hugging Face folder, GGUF or .flm to a YAML description. Unknown keys are reported
 * through opt->log. */
LLMC_API llmc_status llmc_import(const char *src, const llmc_options *opt, char **yaml_out,
                                 llmc_error *err);
typedef struct llmc_compile_options {
	size_t size;
	const char *target; /* "cpu", "cuda", "ref"; NULL: cpu */
	/* comma-separated list: "v3,v4", "sm_80,sm_90a"; NULL: that of this machine */
	const char *arch;
	const char *const *set; /* as in llmc_options */
	/* stage to write to dump_out instead of an artifact: "spec", "graph", "fuse", "order" or
	 * "plan" */
	const char *dump;
	char **dump_out;
	bool aot; /* also build the kernels and ship them in the artifact */
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
	int32_t layer;     /* -1: outside the layers */
	const char *value; /* graph value, such as "L3.attn" */
	const char *op;    /* op of the step that computed it */
	/* max |a - b|; max |b|; allowed max_err / range. For expert indices: rows with another
	 * choice; rows */
	double max_err, range, tolerance;
	bool ok;
	/* [rows, width] from the reference, valid during the call; NULL for expert or position
	 * indices */
	const float *want;
	int64_t rows, width;
} llmc_verify_row;
typedef void (*llmc_verify_fn)(void *user, const llmc_verify_row *row);
/* Run the plan and the fp32 reference on the same tokens, and compare every value that the plan's
 * steps name. Where router scores tie within rounding and the plan selects other experts, its row
 * continues with the reference's choice. E_CHECK: *err names the first op beyond its tolerance. */
LLMC_API llmc_status llmc_verify(llmc_model *m, const int32_t *tok, size_t n_tok,
                                 llmc_verify_fn on_row, void *user, llmc_error *err);

/* ---- quality ---- */

/* Distance of a modified (for example quantised) model from the original, on an evaluation corpus
 * that is cut into windows. */
/* mean with its 95 % confidence interval, from the spread between windows; bounds are NaN if there
 * is one window */
typedef struct llmc_interval {
	double mean, low, high;
} llmc_interval;
typedef struct llmc_eval_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	const char *text; /* [n_bytes] UTF-8 [a corpus that is part of the library] */
	size_t n_bytes;
	int32_t window;      /* tokens per window; windows are independent [512] */
	int32_t max_windows; /* [as many as the corpus fills] */
	int32_t chunk;       /* tokens per step [128] */
	int32_t n_threads;   /* [the model's] */
	bool (*progress)(void *user, int32_t done, int32_t of,
	                 const llmc_interval *kl); /* after each window; false: stop, E_CANCELLED */
	void *user;
} llmc_eval_options;
typedef struct llmc_eval_result {
	size_t size;
	int32_t window, n_windows;
	int64_t n_tokens;         /* tokens predicted: window - 1 per window */
	llmc_interval perplexity; /* perplexity of the model */
	/* relative to the reference; 0 without one */
	/* log_ratio: ln(perplexity / reference perplexity), from differences per token */
	llmc_interval reference_perplexity, log_ratio;
	/* sum p ln(p / q) per token in nats, with p the probabilities of the reference */
	llmc_interval kl;
	llmc_interval agreement; /* share of tokens with the same most likely token */
	double kl_median, kl_90, kl_99, kl_999, kl_max;
	float *kl_sorted; /* [n_tokens] ascending; freed by llmc_eval_release */
} llmc_eval_result;
/* Compare a model with a reference; NULL: perplexity only. E_INPUT: the vocabularies differ, there
 * is no tokenizer, or the corpus is shorter than a window. */
LLMC_API llmc_status llmc_eval(llmc_model *m, llmc_model *reference, const llmc_eval_options *opt,
                               llmc_eval_result *res, llmc_error *err);
LLMC_API void llmc_eval_release(llmc_eval_result *res);
/* Draw the distribution of KL per token as SVG text; free it with llmc_free. */
LLMC_API llmc_status llmc_eval_plot(const llmc_eval_result *res, const char *title, char **svg,
                                    llmc_error *err);

/* ---- quantising ---- */

typedef struct llmc_quantize_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	/* type of matrices. GGUF: "q4_k", "q8_0", ... [q4_k]; a matrix whose columns are not a
	 * multiple of the block size gets the next type with blocks of 32. Folder to folder:
	 * "int4", "int8", "fp8", "mxfp4" [int4] */
	const char *type;
	const char *head; /* type of the LM head, and of a tied embedding [q6_k] */
	/* "gptq": error compensation from Hessians of a calibration corpus; "awq": importance,
	 * with column factors folded into norms; "weighted": importance only; "nearest":
	 * rounding [gptq] */
	const char *method;
	/* importance matrix, in llama.cpp's old format or GGUF [computed from the corpus] */
	const char *imatrix;
	/* file that receives the computed importance matrix; ".dat": the old format */
	const char *imatrix_out;
	const char *text; /* [n_bytes] calibration corpus [one that is part of the library] */
	size_t n_bytes;
	int32_t window, n_windows; /* tokens per window, number of windows [512, 64] */
	/* memory for Hessians [512 MiB]. A layer needs 4 * inputs^2 bytes per matrix and gets them
	 * even beyond this limit. The corpus passes each layer once in any case */
	int64_t hessian_bytes;
	/* fraction that is added to the diagonal of Hessians [6 * columns / tokens, within 0.03 ..
	 * 1] */
	float damp;
	int32_t n_threads; /* [physical cores within quota] */
	/* doing: name of a finished tensor, with bytes of the input done; NULL: windows of the
	 * corpus done. Return false to stop (E_CANCELLED) */
	bool (*progress)(void *user, const char *doing, int64_t done, int64_t of);
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* int4: columns per scale, 32 or 128 [128 if it divides the columns of all matrices] */
	int32_t group;
	/* GGUF, instead of type: average bits per weight. Types are selected per matrix for the
	 * least total cost; sizes and errors are measured. Every method then needs the corpus */
	float bits;
	/* with `bits`: called once per matrix with the selected type. error: share of the output
	 * energy lost without compensation; cost: expected KL divergence in nats from this matrix
	 * alone; may be NULL */
	void (*chose)(void *user, const char *tensor, const char *type, double bits, double error,
	              double cost);
} llmc_quantize_options;
typedef struct llmc_quantize_result {
	size_t size;
	int32_t n_tensors, n_quantized, n_resumed; /* resumed: completed by an earlier run */
	int64_t in_bytes, out_bytes;
	double bits; /* bits per weight of the quantised matrices */
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
 * it appears when it is complete. After a stop or failure the finished part stays as OUT.partial,
 * and the next call with the same input and options resumes from it. E_INPUT: wrong options, `out`
 * exists, or the folder's model has no GGUF form; E_IO: for example a full disk. */
LLMC_API llmc_status llmc_quantize(const char *in, const char *out,
                                   const llmc_quantize_options *opt, llmc_quantize_result *res,
                                   llmc_error *err);

/* GPU in the table that llmc_predict uses, with figures of its data sheet. */
typedef struct llmc_gpu {
	size_t size;
	/* "h100", "H100 SXM", "sm_90a"; source: origin of the figures */
	const char *name, *title, *arch, *source;
	int32_t sms;
	int64_t memory;   /* bytes */
	double bandwidth; /* bytes/s */
	double peak;      /* flop/s of dense 16-bit matrix instructions with fp32 accumulation */
	double launch_s;  /* seconds that one more kernel in a CUDA graph costs */
	/* link to the host's other GPUs, and origin of its figures */
	const char *link, *link_source;
	/* bytes/s that one GPU sends; latency of a small all-reduce */
	double link_bandwidth, link_latency_s;
} llmc_gpu;
/* Entry i of the table; false after the last. */
LLMC_API bool llmc_gpu_at(int i, llmc_gpu *out);
/* Find a GPU by its name in the table or by the name that its driver reports ("NVIDIA H100 80GB
 * HBM3"). E_INPUT lists all names. */
LLMC_API llmc_status llmc_gpu_find(const char *name, llmc_gpu *out, llmc_error *err);

typedef struct llmc_prediction {
	size_t size;
	/* per step: bytes of weights, KV and activations that are read; floating-point
	 * operations */
	int64_t bytes, flops;
	int32_t launches; /* kernel launches per step */
	double seconds, tokens_per_s;
	/* largest part of the time: "bandwidth", "compute", "launches" or "links" */
	const char *bound;
	int32_t sums;      /* collectives per step */
	int64_t sum_bytes; /* bytes per step and rank that the collectives send */
	double link_s;     /* seconds of the collectives */
	/* llmc_predict_two: bytes that the CPU reads, and its seconds */
	int64_t host_bytes;
	double host_s;
} llmc_prediction;
/* Predict the time of one step by arithmetic: decode of `rows` sequences of `context` positions, or
 * prefill of the last `rows` of `context` positions. Open the model for device cuda (no_weights is
 * enough). With tensor parallelism the values are those of the rank with the largest share, each
 * rank on its own GPU. With pipeline stages they are sums over all stages, and tokens_per_s assumes
 * one step in flight per stage. */
LLMC_API llmc_status llmc_predict(const llmc_model *m, const char *gpu, bool prefill, int32_t rows,
                                  int32_t context, llmc_prediction *out, llmc_error *err);

/* A GPU and its host, for models on two devices (placement). Fields that are 0 or NULL: what this
 * machine has free, and figures of the GPU's data sheet. */
typedef struct llmc_machine {
	size_t size;
	const char *gpu;               /* name in the table of llmc_gpu */
	int64_t gpu_bytes, host_bytes; /* memory that the model may take */
	double gpu_bandwidth;          /* bytes/s */
	double host_bandwidth;         /* bytes/s; must be above 0, see llmc_bandwidth */
	double link_bandwidth;         /* bytes/s between them */
	double link_latency_s;         /* seconds of a value that crosses, besides its bytes */
} llmc_machine;
/* The last gpu_layers layers run on the GPU, but for the routed experts of the first moe_layers
 * layers. All on the GPU: gpu_layers is the model's n_layers and moe_layers is 0. */
typedef struct llmc_placement {
	size_t size;
	int32_t gpu_layers, moe_layers; /* placement.gpu_layers, placement.cpu.moe_layers */
	int64_t gpu_bytes, host_bytes;  /* on each device, both counted in the GPU's layouts */
	char text[256];                 /* one line: the choice */
} llmc_placement;
/* Choose the division with the fastest decode step that fits. Open the model for device cuda
 * without placement (no_weights is enough). lim: of the session; NULL or 0: defaults as for
 * llmc_memory_for. E_FULL: no division fits. */
LLMC_API llmc_status llmc_place(const llmc_model *m, const llmc_limits *lim,
                                const llmc_machine *machine, llmc_placement *out, llmc_error *err);
/* Like llmc_predict, for decode steps of a model on two devices. machine->gpu and host_bandwidth
 * must be set. The devices are taken to work in turn: seconds is the sum of the GPU's time, link_s
 * and host_s. */
LLMC_API llmc_status llmc_predict_two(const llmc_model *m, const llmc_machine *machine,
                                      int32_t rows, int32_t context, llmc_prediction *out,
                                      llmc_error *err);

/* Measure the read bandwidth of this machine in bytes/s with n_threads, for about `seconds`,
 * 60 at most. */
LLMC_API double llmc_bandwidth(int n_threads, double seconds);
/* Measure the read bandwidth, in bytes/s, of the memory that holds the model's weights: GPU memory
 * if it runs on a GPU. 0: could not be measured. */
LLMC_API double llmc_bandwidth_of(const llmc_model *m, int n_threads, double seconds);
/* Describe this machine as a JSON document; free it with llmc_free. */
LLMC_API llmc_status llmc_doctor(char **json_out, llmc_error *err);

#ifdef __cplusplus
}
#endif
#endif

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
 * have their own threads. Option and result structs begin with their size: use LLMC_INIT(type).
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

/* Codes are pinned: programs may store them. The text is what llmc_status_text() says. A model, or
 * weights, that were named and are not there are E_INPUT; E_IO is what the system refuses. */
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

/* Progress and notices ("compiling 12 of 31 kernels"), on the caller's thread, without a newline.
 */
typedef void (*llmc_log_fn)(void *user, int level, const char *line);
enum { LLMC_LOG_WARNING = 1, LLMC_LOG_INFO = 2, LLMC_LOG_DEBUG = 3 };

typedef struct llmc_options {
	size_t size;
	const char *device; /* "cpu", "cuda", "cuda:N", "cuda:0,1" (a GPU for each rank), "ref";
	                       NULL: cpu */
	/* "v3", "v4", "generic", "sm_80"; NULL: the best that runs here (for an artifact: the best
	 * that it ships) */
	const char *arch;
	/* checkpoint file or folder if the model does not name one (relative to the cwd) */
	const char *weights;
	const char *out_dir; /* where to write the generated artifact; NULL: the cache */
	const char *const
	    *set; /* "key=value" overrides of the description; NULL-terminated, or NULL */
	/* default for sessions of this model, also used for packing; 0: physical cores within
	 * quota */
	int n_threads;
	/* no checkpoint: fill the weights with seeded noise (for benchmarks) */
	bool random_weights;
	bool no_weights; /* compile and query only: sessions cannot be opened */
	/* keep packed weights in the cache and read them at the next open */
	bool cache_packed;
	llmc_log_fn log;
	void *log_user;
	/* MPI_Comm of a program that has initialised MPI (MPI_THREAD_SERIALIZED or higher). Its
	 * processes are the ranks and all make this call. NULL: all processes that a launcher has
	 * started. It is duplicated here; finalising MPI stays the program's job */
	const void *mpi_comm;
	/* accept configuration keys that the family does not know, with a warning */
	bool allow_unknown_keys;
} llmc_options;

/* Open a YAML description, a generated folder, a Hugging Face folder, a FastLLM model (.flm) or a
 * GGUF file; import and compile as needed. Release *out with llmc_close. */
LLMC_API llmc_status llmc_open(const char *path, const llmc_options *opt, llmc_model **out,
                               llmc_error *err);
LLMC_API void llmc_retain(llmc_model *m);
/* NULL is allowed; sessions keep their model open */
LLMC_API void llmc_close(llmc_model *m);

enum { /* values that the comments below refer to */
       LLMC_DEFAULT_CONTEXT = 4096,
       LLMC_DEFAULT_CONCURRENT_REQUESTS = 128,
       LLMC_DEFAULT_WAITING_TOKENS = 20,
       /* one moves with the prompt of a sequence, one with its answer */
       LLMC_DEFAULT_SNAPSHOTS = 2,
       /* of an engine that drafts tokens, at most its number of sequences: it drafts for that many
	* at once */
       LLMC_DEFAULT_MARKS = 8,
       LLMC_MAX_CHOICES = 128,  /* choices per request */
       LLMC_MAX_SPECULATE = 15, /* draft tokens per step */
       LLMC_MAX_TOP = 20,       /* alternatives per position */
};

#define LLMC_DEFAULT_PREFIX_DIR_BYTES ((int64_t)8 << 30)
#define LLMC_DEFAULT_BATCH_DIR_BYTES ((int64_t)1 << 30)

/* Limits of a session; 0 selects the default in brackets. KV memory and scratch are allocated once,
 * for exactly these limits. */
typedef struct llmc_limits {
	size_t size;
	int32_t context;   /* positions per sequence [min(the model's, LLMC_DEFAULT_CONTEXT)] */
	int32_t seqs;      /* concurrent sequences [1] */
	int32_t chunk;     /* tokens per step [512] */
	int32_t n_out;     /* rows of logits per step [seqs; chunk if the output is not logits] */
	int64_t kv_tokens; /* positions of all sequences together [context * seqs] */
	int n_threads;     /* [the model's] */
	/* recurrent-state snapshots per sequence, kept for shared prefixes; unused by models
	 * without recurrent state [LLMC_DEFAULT_SNAPSHOTS for an engine with prefix cache; else
	 * 0] */
	int32_t snapshots;
	/* positions of pages in host memory, for the prefix cache of a GPU [for an engine, the
	 * capacity of kv.host; else 0] */
	int64_t host_tokens;
	/* sequences that may be marked at once (llmc_seq_mark); unused by models without recurrent
	 * state [LLMC_DEFAULT_MARKS for an engine that drafts tokens; else 0] */
	int32_t marks;
} llmc_limits;

/* Run as a rank other than 0 of a program that mpirun or srun started as several processes. Each
 * process calls llmc_open, which waits for the others and assigns a rank (llmc_info). Rank 0 then
 * uses the model as usual. The others call llmc_follow, which mirrors rank 0's sessions and returns
 * when rank 0 closes the model. One model per process. E_DEVICE: ranks are lost; E_RANGE: called on
 * rank 0. */
LLMC_API llmc_status llmc_follow(llmc_model *m, llmc_error *err);

LLMC_API llmc_status llmc_session_open(llmc_model *m, const llmc_limits *lim, llmc_session **out,
                                       llmc_error *err);
LLMC_API void llmc_session_close(llmc_session *s);

/* Contents of an output row. Most models return logits. An embedding model, or one opened with
 * "head.kind=hidden", returns its last hidden states, and a classifier returns label scores. Models
 * of the last two kinds produce vectors (llmc_embed, llmc_request.pool), not text. */
typedef enum llmc_output { LLMC_OUTPUT_LOGITS, LLMC_OUTPUT_HIDDEN, LLMC_OUTPUT_LABELS } llmc_output;
/* Rows of a text that are pooled into its vector */
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

/* Sampling options. The fields of llmc_params, range checks, command line, HTTP fields, help texts
 * and the Python binding are made from these rows.
 *
 *   X(kind, name, least, most, http_least, http_most, http_default, alias, text)
 *
 *   kind          FLOAT, INT (int32_t) or BOOL
 *   least, most   valid values of the field
 *   http_*        range and default of the field in the OpenAI dialect, whose other dialects map theirs to it
 *   alias         name in other engines' APIs, or NULL
 *   text          one line of help */
#define LLMC_SAMPLING_OPTIONS(X) \
	X(FLOAT, temperature, 0, 1e6, 0, 2, 1, NULL, "divide the logits by this; 0: greedy") \
	X(INT, top_k, 0, INT32_MAX, -1, INT32_MAX, 0, NULL, "sample from the N most likely tokens; 0: off") \
	X(FLOAT, top_p, 0, 1, 0, 1, 1, NULL, "sample from the most likely tokens that reach this probability; 0 or 1: off") \
	X(FLOAT, min_p, 0, 1, 0, 1, 0, NULL, "drop tokens below this share of the most likely one's probability; 0: off") \
	X(FLOAT, typical_p, 0, 1, 0, 1, 0, NULL, "locally typical sampling (arXiv:2202.00666) with this mass; 0 or 1: off") \
	X(FLOAT, repetition_penalty, 0, 1e6, 0, 100, 1, "repeat_penalty", "divide logits of tokens of prompt and output (arXiv:1909.05858); 0 or 1: off") \
	X(FLOAT, presence_penalty, -1e6, 1e6, -2, 2, 0, NULL, "subtract from the logits of tokens of the output; 0: off") \
	X(FLOAT, frequency_penalty, -1e6, 1e6, -2, 2, 0, NULL, "subtract per occurrence in the output; 0: off") \
	X(INT, min_tokens, 0, INT32_MAX, 0, INT32_MAX, 0, NULL, "no end of sequence and no stop token before this many new tokens; 0: off") \
	X(BOOL, ignore_eos, 0, 1, 0, 1, 0, NULL, "continue after the end of sequence") \
	X(BOOL, watermark, 0, 1, 1, 0, 0, NULL, "add 2 to the logits of half of the tokens, selected by the last one (arXiv:2301.10226)")
#define LLMC_OPTION_TYPE_FLOAT float
#define LLMC_OPTION_TYPE_INT int32_t
#define LLMC_OPTION_TYPE_BOOL bool
#define LLMC_OPTION_FIELD(kind, name, ...) LLMC_OPTION_TYPE_##kind name;

typedef struct llmc_params { /* LLMC_INIT gives greedy decoding of up to 256 new tokens */
	size_t size;
	LLMC_SAMPLING_OPTIONS(LLMC_OPTION_FIELD)
	uint64_t seed;
	int32_t max_tokens;      /* new tokens; 0: 256; -1: as many as the context holds */
	const char *const *stop; /* stop strings, NULL-terminated, or NULL; removed from the text */
	int32_t n_stop_tokens, n_logit_bias, n_bad_words;
	const int32_t *stop_tokens;     /* ids that end the text; not part of it */
	const llmc_bias *logit_bias;    /* added to the logits; -INFINITY forbids a token */
	const llmc_sequence *bad_words; /* token sequences that never appear */
	/* grammar that the text must match; the text ends where nothing can follow. NULL: any text.
	 * The copy keeps it open */
	llmc_grammar *grammar;
	/* strings that must have been generated, in this order, before the grammar applies (end of
	 * reasoning, mark of a tool call); NULL-terminated, or NULL: it applies at once */
	const char *const *grammar_after;
	/* draft tokens per step, 1 .. LLMC_MAX_SPECULATE; 0: the engine's default; -1: none. The
	 * text is the same */
	int32_t speculate;
} llmc_params;

/* The rows of LLMC_SAMPLING_OPTIONS at run time, for programs that read options by name. */
typedef enum llmc_option_kind {
	LLMC_OPTION_FLOAT,
	LLMC_OPTION_INT,
	LLMC_OPTION_BOOL
} llmc_option_kind;
typedef struct llmc_option {
	llmc_option_kind kind;
	const char *name, *alias, *text;
	size_t offset; /* offset of the field in llmc_params, bytes */
	double least, most;
	/* http_least > http_most: not an HTTP field */
	double http_least, http_most, http_default;
} llmc_option;
LLMC_API const llmc_option *llmc_sampling_options(size_t *n); /* static memory */

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
 * holds ids as returned by llmc_tokenize. E_INPUT: empty prompt; E_RANGE: the prompt does not
 * fit the context or an id is out of range; E_FULL: other sequences of the session leave too few
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
	int32_t max_positions; /* context length of training */
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
} llmc_model_info;
/* the caller sets info->size */
LLMC_API void llmc_info(const llmc_model *m, llmc_model_info *info);

/* Value of a key of the resolved description, such as "attention.n_heads". E_INPUT: no such key. */
LLMC_API llmc_status llmc_get(const llmc_model *m, const char *key, char *buf, size_t cap,
                              size_t *need, llmc_error *err);

typedef struct llmc_memory {
	size_t size;
	int64_t weights, kv, scratch, state; /* bytes */
	int64_t kv_per_token;                /* bytes of KV per position */
	int64_t kv_per_seq; /* bytes of recurrent state per sequence, part of kv; 0: none */
	/* bytes saved because windowed layers keep only their window; 0: no such layers */
	int64_t kv_saved;
	/* bytes of limits.snapshots and limits.marks of all sequences, part of kv */
	int64_t kv_snapshots;
	/* bytes of kv with recent and first positions in 16 bits (kv.window, kv.sinks); 0: none */
	int64_t kv_exact;
	/* bytes of pinned host memory that an engine allocates for pages in addition to kv
	 * (kv.host); 0: none */
	int64_t kv_host;
} llmc_memory;
LLMC_API llmc_status llmc_memory_for(const llmc_model *m, const llmc_limits *lim, llmc_memory *out,
                                     llmc_error *err);
/* One rank of a model that is split over several (parallel.tp), or the whole model. Sizes are 0 if
 * the model has no such part. */
typedef struct llmc_rank_info {
	size_t size;
	llmc_memory memory; /* memory.size is set as well */
	/* attention heads; kv_heads 0: every rank holds the whole latent */
	int32_t heads, kv_heads;
	int64_t ffn, expert, shared, vocab; /* columns of feed-forwards; rows of the LM head */
	int32_t sums, joins;                /* all-reduces and all-gathers per step */
	int64_t sum_bytes, join_bytes;      /* bytes that the rank contributes per row */
} llmc_rank_info;
/* E_RANGE: no such rank, or it belongs to another process. */
LLMC_API llmc_status llmc_rank_for(const llmc_model *m, int32_t rank, const llmc_limits *lim,
                                   llmc_rank_info *out, llmc_error *err);
/* Largest number of sequences of lim->context positions that fits into `bytes`; 0: not even one. */
LLMC_API llmc_status llmc_fit(const llmc_model *m, int64_t bytes, const llmc_limits *lim,
                              int32_t *seqs, llmc_error *err);
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
	/* first of two texts that form one input: adds the prefix of transformers' tokenizer(text,
	 * text_pair) */
	LLMC_ADD_FIRST = 4,
	/* second of the two: adds separator and suffix. The concatenated ids of both are the
	 * pair */
	LLMC_ADD_SECOND = 8,
};
LLMC_API llmc_status llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes,
                                   int flags, int32_t *ids, size_t cap, size_t *need,
                                   llmc_error *err);
/* Lower bound of the number of ids that llmc_tokenize returns, without tokenizing; rejects texts
 * that are too long cheaply. */
LLMC_API size_t llmc_tokenize_least(const llmc_tokenizer *t, const char *text, size_t n_bytes);
/* Text of ids as the tokenizer's decoder returns it; invalid UTF-8 becomes U+FFFD. skip_special
 * omits special tokens. */
LLMC_API llmc_status llmc_detokenize(const llmc_tokenizer *t, const int32_t *ids, size_t n,
                                     bool skip_special, char *buf, size_t cap, size_t *need,
                                     llmc_error *err);
/* Text of ids as the tokenizer's decoder returns it; invalid UTF-8 becomes U+FFFD. skip_special
 * omits special tokens. */
LLMC_API const char *llmc_token_text(const llmc_tokenizer *t, int32_t id);
/* Bytes that a token stands for in a text: possibly part of a character, possibly NUL. A special
 * token returns its name. E_INPUT: no such id. */
LLMC_API llmc_status llmc_token_bytes(const llmc_tokenizer *t, int32_t id, char *buf, size_t cap,
                                      size_t *need, llmc_error *err);
LLMC_API bool llmc_token_is_special(const llmc_tokenizer *t,
                                    int32_t id); /* what skip_special leaves out */

LLMC_API bool llmc_has_chat_template(const llmc_tokenizer *t);
/* source of the template; NULL: none */
LLMC_API const char *llmc_chat_template(const llmc_tokenizer *t);
/* Apply the chat template. messages_json: [{"role":"user","content":"..."}, ...]; options_json (may
 * be NULL):
 * {"add_generation_prompt":true,"tools":[...], ...} become variables of the template. E_INPUT
 * carries the template's raise_exception text. */
LLMC_API llmc_status llmc_chat(const llmc_tokenizer *t, const char *messages_json,
                               const char *options_json, char *buf, size_t cap, size_t *need,
                               llmc_error *err);

/* Incremental detokeniser: feed ids, get the text that can no longer change. */
LLMC_API llmc_status llmc_stream_open(const llmc_tokenizer *t, bool skip_special, llmc_stream **out,
                                      llmc_error *err);
/* *text is valid until the next call; id -1 flushes what is held back */
LLMC_API llmc_status llmc_stream_feed(llmc_stream *s, int32_t id, const char **text,
                                      size_t *n_bytes, llmc_error *err);
LLMC_API void llmc_stream_close(llmc_stream *s);

/* ---- reasoning and tools ---- */

/* Reader of answers with reasoning and tool calls, in the format of the model's chat template
 * (configs/formats/calls.yaml). It takes the answer as it is generated, with special tokens as
 * text, and reports its parts.
 *
 *     llmc_calls_open(tokenizer, prompt, n_prompt, tools_json, &c, &err);   prompt: as rendered by the template; tools: OpenAI's array
 *     llmc_calls_feed(c, text, n, false, on_piece, user, &err);             per chunk of text; the final call has last = true
 *
 * One thread at a time. Whatever cannot be parsed as a call is reported as text, never as an
 * error. */
typedef struct llmc_calls llmc_calls;
typedef enum llmc_piece_kind {
	LLMC_PIECE_TEXT,
	LLMC_PIECE_REASONING,
	LLMC_PIECE_CALL,      /* a call begins; text is the complete tool name */
	LLMC_PIECE_ARGUMENTS, /* more of the arguments: JSON, the model's own bytes */
	LLMC_PIECE_DONE,      /* the call is over */
} llmc_piece_kind;
/* call: its index, from 0; otherwise -1 */
typedef void (*llmc_piece_fn)(void *user, llmc_piece_kind kind, int32_t call, const char *text,
                              size_t n_bytes);
/* tools_json NULL: reasoning only. The tokenizer may be closed before the reader. A tool whose only
 * parameter is a string may carry a grammar next to its `function`: "format": {"type": "grammar",
 * "syntax": "lark" or "regex", "definition"}; llmc_calls_rules enforces it. */
LLMC_API llmc_status llmc_calls_open(const llmc_tokenizer *t, const char *prompt, size_t n_prompt,
                                     const char *tools_json, llmc_calls **out, llmc_error *err);
LLMC_API llmc_status llmc_calls_feed(llmc_calls *c, const char *text, size_t n_bytes, bool last,
                                     llmc_piece_fn fn, void *user, llmc_error *err);
LLMC_API void llmc_calls_close(llmc_calls *c);
/* within fn: byte offset of the LLMC_PIECE_TEXT in the answer */
LLMC_API size_t llmc_calls_at(const llmc_calls *c);
typedef enum llmc_mark {
	LLMC_MARK_ROW,           /* name of the format */
	LLMC_MARK_REASONING,     /* opens the reasoning */
	LLMC_MARK_REASONING_END, /* ends the reasoning if the prompt has opened it */
	LLMC_MARK_CALL,          /* opens a call */
	LLMC_MARK_SYSTEM, /* introduces tools ({tools}) if the template has no slot for them */
} llmc_mark;
LLMC_API const char *llmc_calls_mark(const llmc_calls *c,
                                     llmc_mark which); /* NULL: none; lives as long as the reader */
/* Write a grammar of kind LLMC_GRAMMAR_PARTS that allows only calls of the tools, each with
 * arguments that match its schema. only NULL: any tool. E_INPUT: no such tool, or a model without a
 * known format. */
enum {
	LLMC_CALLS_ONE = 1,   /* one call, not several */
	LLMC_CALLS_BEGUN = 2, /* LLMC_MARK_CALL has been generated: the grammar starts after it */
	LLMC_CALLS_FREE = 4,  /* arguments are any object, regardless of the schemas */
};
LLMC_API llmc_status llmc_calls_rules(const llmc_calls *c, const char *only, int flags, char *buf,
                                      size_t cap, size_t *need, llmc_error *err);

/* ---- grammars ---- */

/* A grammar restricts generation: at each position it allows exactly the tokens after which the
 * text can still match. Set it in llmc_params.grammar, or use it as a matcher next to your own
 * sampler.
 *
 *     llmc_grammar_open(tokenizer, LLMC_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), NULL, &g,
 * &err);
 *     params.grammar = g;   llmc_generate_text(session, prompt, &params, ...);   llmc_grammar_close(g);
 *
 * Schemas: properties appear in the order of `properties`, whether required or not. Other
 * properties are allowed only if additionalProperties is written. One space or line end may stand
 * between tokens, never a run of them. Numbers have a bounded number of digits. docs/constrained.md
 * lists the keywords. */
typedef enum llmc_grammar_kind {
	LLMC_GRAMMAR_JSON,        /* any JSON object; text is ignored */
	LLMC_GRAMMAR_JSON_SCHEMA, /* a JSON schema */
	/* the whole text matches a regular expression without look-around and back-references */
	LLMC_GRAMMAR_REGEX,
	LLMC_GRAMMAR_GBNF,   /* llama.cpp's format: rules, with `root` as the start */
	LLMC_GRAMMAR_CHOICE, /* one of a JSON array of strings */
	/* JSON: fixed strings between schemas and expressions; docs/constrained.md */
	LLMC_GRAMMAR_PARTS,
	/* Lark's format without lexer features: rules, with `start` as the start;
	 * docs/constrained.md */
	LLMC_GRAMMAR_LARK,
} llmc_grammar_kind;

typedef struct llmc_grammar_options {
	size_t size;
	bool compact; /* no white space between JSON tokens */
	/* JSON Schema's defaults: other properties, any type, unbounded white space and digits */
	bool standard;
	bool strict; /* an unenforced keyword is an error instead of being ignored */
} llmc_grammar_options;

/* Any thread; takes about as long as parsing the text. The tokenizer may be closed before the
 * grammar. E_INPUT: a syntax error or an unsupported keyword; the message names its path or
 * position. Reference counted: each retain needs a close. */
LLMC_API llmc_status llmc_grammar_open(const llmc_tokenizer *t, llmc_grammar_kind kind,
                                       const char *text, size_t n_bytes,
                                       const llmc_grammar_options *opt, llmc_grammar **out,
                                       llmc_error *err);
LLMC_API void llmc_grammar_retain(llmc_grammar *g);
/* NULL is allowed; matchers and samplers keep theirs open */
LLMC_API void llmc_grammar_close(llmc_grammar *g);

/* Position of one text in a grammar. mask: bit `id & 31` of bits[id >> 5] is set if the token may
 * come next; [n_words], words beyond the vocabulary become 0. End-of-text tokens are allowed where
 * the text may end. accept: E_INPUT if the token is not allowed. E_RANGE, E_MEMORY: the grammar is
 * too ambiguous for its bounds. */
LLMC_API llmc_status llmc_matcher_open(llmc_grammar *g, llmc_matcher **out, llmc_error *err);
LLMC_API void llmc_matcher_close(llmc_matcher *m);
LLMC_API llmc_status llmc_matcher_mask(llmc_matcher *m, uint32_t *bits, size_t n_words,
                                       llmc_error *err);
LLMC_API llmc_status llmc_matcher_accept(llmc_matcher *m, int32_t id, llmc_error *err);
LLMC_API bool llmc_matcher_may_end(llmc_matcher *m); /* the text so far is complete */
/* the text is complete and nothing can follow */
LLMC_API bool llmc_matcher_ended(llmc_matcher *m);
LLMC_API void llmc_matcher_reset(llmc_matcher *m); /* return to the start */

/* ---- sessions and sampling ---- */

/* Create a sequence, whose KV lies in pages of the session. E_FULL: all `seqs` of the limits are in
 * use. length_bound: largest prompt + new tokens (0: the context); selects length-dependent rope
 * tables. */
LLMC_API llmc_status llmc_seq_new(llmc_session *s, int32_t length_bound, llmc_seq *out,
                                  llmc_error *err);
LLMC_API llmc_status llmc_seq_fork(llmc_session *s, llmc_seq from, llmc_seq *out,
                                   llmc_error *err); /* shares pages */
/* Drop the positions from len on. E_RANGE also if a windowed layer no longer holds positions that
 * it would need again; it holds them if the sequence has not exceeded len + 32. */
LLMC_API llmc_status llmc_seq_trim(llmc_session *s, llmc_seq q, int32_t len, llmc_error *err);
/* Mark the current position of a sequence with recurrent state. Such a sequence can be trimmed only
 * to 0 or to its last mark. Does nothing for other models. E_FULL: all `marks` of the limits are in
 * use. A mark is dropped with its sequence, or when the sequence is trimmed below it. */
LLMC_API llmc_status llmc_seq_mark(llmc_session *s, llmc_seq q, llmc_error *err);
LLMC_API void llmc_seq_unmark(llmc_session *s, llmc_seq q);
LLMC_API int32_t llmc_seq_len(const llmc_session *s, llmc_seq q); /* -1: no such sequence */
LLMC_API void llmc_seq_free(llmc_session *s, llmc_seq q);
/* Save the KV of a sequence as bytes, and create a sequence from them in any session of the same
 * model and target. E_INPUT: the bytes are damaged or from another model; E_FULL: too few pages. */
LLMC_API llmc_status llmc_seq_save(llmc_session *s, llmc_seq q, void *buf, size_t cap, size_t *need,
                                   llmc_error *err);
LLMC_API llmc_status llmc_seq_load(llmc_session *s, const void *buf, size_t n, llmc_seq *out,
                                   llmc_error *err);

/* LoRA adapters in PEFT format, selected per sequence, for models opened with slots
 * ("adapters.slots=4", "adapters.rank=16"). Sequences with different adapters, and with none, run
 * in one step. An adapter's number is never reused. Any thread, also while sessions run.
 *   load    E_INPUT: no slots, no such folder, an adapter of another model, of modules without
 *           slots or of too large a rank; E_FULL: all slots are in use. scale multiplies the
 *           adapter's own scale; 1: as trained
 *   unload  no new sequence can select it; its slot is free when the last sequence and request
 *           that use it end. E_RANGE: no such adapter */
LLMC_API llmc_status llmc_adapter_load(llmc_model *m, const char *folder, double scale,
                                       int32_t *adapter, llmc_error *err);
LLMC_API llmc_status llmc_adapter_unload(llmc_model *m, int32_t adapter, llmc_error *err);
LLMC_API int llmc_adapter_slots(const llmc_model *m); /* 0: the model has none */
/* Run an empty sequence, its forks and copies loaded from its saved bytes with this adapter; 0:
 * with none. E_RANGE: no such sequence or adapter, or the sequence has positions */
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
 * E_RANGE, E_FULL: nothing ran, no sequence changed. E_DEVICE: only llmc_session_close() is allowed
 * now. */
LLMC_API llmc_status llmc_forward(llmc_session *s, const llmc_chunk *chunk, size_t n, float *logits,
                                  llmc_error *err);
/* llmc_forward for the two models that one description gives (mtp.part): the model, which returns
 * its rows, and its MTP head, whose tokens come with rows. Token i + 1 of a sequence comes with row
 * i of the model, or with row i of the head for later draft tokens.
 *   came  [sum of n_tok, hidden] of a head; else NULL
 *   rows  [sum of n_tok, hidden] after the final norm, owned by the caller; chunks in order;
 *         NULL skips the copy
 * E_RANGE: also if the model neither takes nor returns rows. */
LLMC_API llmc_status llmc_forward_rows(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                       const float *came, float *logits, float *rows,
                                       llmc_error *err);

/* Vector of a text, for a model whose output is not logits: hidden states or label scores, pooled,
 * and divided by the vector's length if `normalize`. Runs in a new sequence, which is freed at the
 * end.
 *   out  [out_width] fp32, owned by the caller
 * E_INPUT: no tokens, no pool, or the output is logits; E_RANGE, E_FULL as llmc_forward. */
LLMC_API llmc_status llmc_embed(llmc_session *s, const int32_t *tok, size_t n_tok, llmc_pool pool,
                                bool normalize, float *out, llmc_error *err);

/* Decode without waiting for the host: the device samples tokens and feeds them to the next step
 * before the host has seen them. GPU sessions can, for parameters without stop rules that need the
 * host; CPU sessions cannot.
 *
 *     llmc_sample_params(s, q, &params, prompt, n_prompt, &err);
 *     llmc_queue_step(s, the prompt's chunk with n_out 1, 1, &err);
 *     for (;;) {
 *             llmc_queue_step(s, a chunk of q with tok NULL, n_tok 1, n_out 1, 1, &err);   uses the token sampled last
 *             llmc_take_sampled(s, &id, NULL, &err);                                      reads that token
 *     }
 *
 * llmc_queue_step queues a step and returns; a token is sampled from the last row of each chunk
 * with n_out 1. Two steps may be in flight; a third is E_BUSY. llmc_take_sampled waits for the
 * oldest and returns ids (and logprobs, if not NULL) of its chunks with n_out 1, in order. */
LLMC_API bool llmc_can_sample(const llmc_session *s, const llmc_params *p);
LLMC_API llmc_status llmc_sample_params(llmc_session *s, llmc_seq q, const llmc_params *p,
                                        const int32_t *prompt, size_t n_prompt, llmc_error *err);
LLMC_API llmc_status llmc_queue_step(llmc_session *s, const llmc_chunk *chunk, size_t n,
                                     llmc_error *err);
LLMC_API llmc_status llmc_take_sampled(llmc_session *s, int32_t *ids, float *logprobs,
                                       llmc_error *err);

/* Time of each op of a step: its kernel in all layers, run repeatedly on the data of the last
 * llmc_forward. A GPU times it alone, a CPU within the step, with the barrier after it. Blocks, and
 * calls fn once per kernel in the order of the step, on this thread; fn must not use the session.
 * The step's sequences and their forks hold invalid values afterwards: free them. E_RANGE before a
 * step, or if one of its sequences has been freed or trimmed since; E_MEMORY. Steps that are not
 * measured pay nothing. */
typedef struct llmc_op_time {
	const char *op;       /* as in llmc plan; lives as long as the model */
	int32_t n;            /* launches in one step */
	double seconds;       /* seconds of all of them */
	int64_t weight_bytes; /* weight bytes that they read */
	bool library;         /* cuBLASLt computes its matmul */
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
	int64_t weight_bytes; /* weight bytes that the last forward read, by the plan */
	int64_t kv_pages_used, kv_pages_total; /* pages of LLMC_KV_PAGE positions */
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
 *         llmc_next(e, id, -1, &ev, &err);        ev.text is the next text
 *     while (!ev.last);
 *     llmc_event_release(&ev);   llmc_engine_close(e, 0);
 *
 * All running requests advance together, one token per step. Prompts are prefilled in chunks in the
 * same steps, within the budgets below. Requests start in order of arrival. When KV pages run out,
 * the youngest request is preempted: its pages move to host memory or are recomputed later,
 * whichever is cheaper, and it resumes before any newer request starts. Requests share the pages of
 * a common prefix while these last. A request's tokens are those that it would get alone: always on
 * a CPU, on a GPU with `deterministic: true`. Random numbers depend on seed, choice and position
 * only.
 *
 * Any thread may call. Events of one request arrive in order; two threads that wait for the same
 * request share its events. */
typedef struct llmc_engine_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	/* limits of the session; seqs [16]: the largest batch; kv_tokens [4 contexts] */
	const llmc_limits *limits;
	/* requests waiting and running; more are refused [LLMC_DEFAULT_CONCURRENT_REQUESTS] */
	int32_t max_concurrent_requests;
	int32_t max_batch_prefill_tokens; /* prompt tokens per step [limits.chunk] */
	/* a request starts if prompts + max_tokens of all fit [0: if its prompt fits] */
	int64_t max_batch_total_tokens;
	/* during decode, requests start if this share of the batch is waiting [0: at once] */
	float waiting_served_ratio;
	int32_t max_waiting_tokens; /* ... or after this many steps without a start
	                               [LLMC_DEFAULT_WAITING_TOKENS] */
	bool no_prefix_cache;
	/* host memory for KV of preempted requests [0: they are recomputed]; excludes kv.host,
	 * which holds their pages */
	int64_t swap_bytes;
	llmc_log_fn log; /* called on the engine's threads */
	void *log_user;
	/* draft tokens per step, used if few requests run and it is faster; -1: none
	 * [LLMC_MAX_SPECULATE; none on GPUs without deterministic: true] */
	int32_t speculate;
	/* folder that keeps prefix pages as files, for restarts and for engines of the same model
	 * [none] */
	const char *prefix_dir;
	int64_t prefix_dir_bytes; /* upper bound of its bytes [LLMC_DEFAULT_PREFIX_DIR_BYTES] */
	/* draft model: a smaller model with the same tokenizer, or the same checkpoint opened with
	 * mtp.part=head (and the model with mtp.part=rows) [none]; the engine keeps it open */
	llmc_model *draft;
} llmc_engine_options;

LLMC_API llmc_status llmc_engine_open(llmc_model *m, const llmc_engine_options *opt,
                                      llmc_engine **out, llmc_error *err);
/* Refuse new requests (llmc_submit returns E_CANCELLED) and wait until all are served, at most
 * drain_ms (< 0: no limit); then end the rest with LLMC_FINISH_CANCEL. Events stay readable.
 * E_CANCELLED: some were cut short. */
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
	/* choices generated; the n with the best mean logprob are returned at the end [n] */
	int32_t best_of;
	/* log probability of each new token, in the unchanged distribution */
	bool logprobs;
	bool prompt_logprobs; /* the same for each prompt token, as LLMC_EVENT_PROMPT */
	int32_t n_top;        /* most likely tokens reported per position, 0 .. LLMC_MAX_TOP */
	/* do not hold back or cut text for stop strings; the text ends with the token that
	 * completes one */
	bool keep_stop;
	bool show_special; /* special tokens appear in the text */
	/* seconds after llmc_submit at which it ends with LLMC_FINISH_DEADLINE [none] */
	double deadline_s;
	void *user; /* returned in every event */
	/* pool the prompt into a vector instead of generating; required if the model's output is
	 * not logits */
	llmc_pool pool;
	bool normalize;   /* divide the vector by its length */
	int32_t priority; /* lower starts sooner and may preempt others [0] */
	int32_t adapter;  /* adapter to run with, from llmc_adapter_load [none] */
	/* [n_pool_tok] ids: with `pool` (last or first row), a model with logits returns the logits
	 * of these tokens as the vector */
	const int32_t *pool_tok;
	int32_t n_pool_tok;
	/* cached prefix pages are shared only by requests with the same salt [0] */
	uint64_t prefix_salt;
} llmc_request;

/* Submit a request; everything that it points to is copied. *id > 0 is never reused by an engine.
 * E_BUSY, at once: max_concurrent_requests are running or waiting. E_INPUT: no tokens. E_RANGE: an
 * id is out of range, the prompt does not fit the context, a parameter is out of range, or the
 * request could not run even alone. E_CANCELLED: the engine is being drained. E_DEVICE: the engine
 * has failed. */
LLMC_API llmc_status llmc_submit(llmc_engine *e, const llmc_request *r, int64_t *id,
                                 llmc_error *err);

typedef enum llmc_event_kind {
	LLMC_EVENT_NONE,   /* no event within the timeout */
	LLMC_EVENT_PROMPT, /* a token of the prompt (prompt_logprobs): token, logprob (NaN: the
	                      first), top, text; index 0 */
	LLMC_EVENT_TOKEN,  /* a new token: token, text, logprob, top */
	LLMC_EVENT_FINISH, /* a choice is complete: finish and counts; text is what was held back */
	LLMC_EVENT_ERROR,  /* the request failed: status; text is the message */
} llmc_event_kind;

typedef struct llmc_logprob {
	int32_t id;
	float logprob;
} llmc_logprob;

typedef struct llmc_event {
	size_t size;
	llmc_event_kind kind;
	/* last event of this request: all choices are complete, or it failed; its id becomes
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
	int32_t stop;            /* FINISH_STOP: which string, else -1 */
	int32_t n_prompt, n_new; /* n_new counts TOKEN events: not the token that ended it */
	int32_t n_cached;        /* prompt tokens found in the prefix cache */
	int32_t n_preempted;     /* times preempted */
	double sum_logprob;      /* sum over the new tokens (logprobs or best_of) */
	/* seconds of waiting, until the first new token, and from then on */
	double queue_s, prefill_s, decode_s;
	void *memory_;       /* owns what top, text and vector point to */
	const float *vector; /* [n_vector] FINISH of a request with `pool`; otherwise NULL */
	int32_t n_vector;
} llmc_event;

#define LLMC_ANY 0 /* any request */
/* Next event of a request, within timeout_ms (< 0: no limit). Initialise ev with LLMC_INIT and
 * reuse it: what it points to is valid until the next call. E_RANGE: no such request, or its last
 * event has been taken. With LLMC_ANY, if no event is left: E_CANCELLED: the engine is drained;
 * E_DEVICE: it has failed, even if no request was running. */
LLMC_API llmc_status llmc_next(llmc_engine *e, int64_t id, int timeout_ms, llmc_event *ev,
                               llmc_error *err);
LLMC_API void llmc_event_release(llmc_event *ev);
/* Stop a request: its pages are free within one step, its open choices finish with
 * LLMC_FINISH_CANCEL. May be repeated, also for requests that have ended. */
LLMC_API void llmc_cancel(llmc_engine *e, int64_t id);
/* llmc_cancel, and drop all events of the request. */
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
	/* now */
	int32_t running, waiting,
	    preempted;      /* choices in the batch; requests not started; choices preempted */
	int32_t batch_size; /* choices of the last step */
	int64_t batch_max_tokens; /* prompts + max_tokens of all that have started */
	int64_t kv_pages_total, kv_pages_used,
	    kv_pages_cached; /* cached: kept for later prompts, free when needed; not in used */
	int64_t swap_bytes_used;
	double last_step_s;
	/* since open */
	uint64_t steps, prefill_steps;        /* all; those with prompt chunks */
	uint64_t requests;                    /* requests taken from the inbox */
	uint64_t finished[LLMC_FINISH_COUNT]; /* choices, by reason */
	uint64_t failed, refused;             /* requests that failed; refused by a full queue */
	uint64_t prompt_tokens, new_tokens;
	uint64_t prefix_queries, prefix_hits; /* prompt tokens looked up, found */
	uint64_t preemptions, swaps_out, swaps_in;
	llmc_histogram prefill_step_s, decode_step_s; /* seconds */
	llmc_histogram queue_s, first_token_s, inter_token_s, prefill_s, decode_s, request_s;
	/* counts; start_size: requests that started together */
	llmc_histogram step_tokens, start_size;
	llmc_histogram request_prompt, request_new, request_max_new, request_n;
	/* drafts; draft tokens that ran; draft tokens accepted */
	uint64_t drafts, drafted, accepted;
	/* positions of prefix pages read from files, written to files, and found damaged */
	uint64_t prefix_read, prefix_written, prefix_wrong;
	uint64_t accepted_at[LLMC_MAX_SPECULATE];  /* accepted, by distance from the last token */
	int64_t host_pages_total, host_pages_used; /* current host pages of KV (kv.host) */
	uint64_t host_out, host_in; /* since open: positions copied to host memory, and back */
} llmc_counts;
LLMC_API void llmc_engine_stats(llmc_engine *e, llmc_counts *out); /* the caller sets out->size */

/* ---- HTTP server ---- */

/* Routes of OpenAI, TGI, Anthropic and Ollama over an engine; docs/serving.md lists them.
 *
 *     llmc_serve_options o = LLMC_INIT(llmc_serve_options);   o.port = 8000;
 *     llmc_serve_open(m, e, &o, &server, &err);      answers from here on, on its own threads
 *     llmc_serve_drain(server);                      optional: /health returns 503 while requests are still accepted, so that
 *                                                    routers send new ones elsewhere before the
 * port closes
 *     llmc_serve_stop(server);                       refuses new requests
 *     llmc_serve_wait(server, 30000);                waits until running requests are answered
 *     llmc_serve_close(server);                      then llmc_engine_close and llmc_close
 *
 * The server takes all events of the engine (LLMC_ANY): no other code may call llmc_next on it
 * meanwhile. */
typedef struct llmc_server llmc_server;
/* 0 or NULL selects the default in brackets; strings are copied */
typedef struct llmc_serve_options {
	size_t size;
	const char *host;       /* address or name to listen on [127.0.0.1] */
	int32_t port;           /* [0: the kernel chooses; llmc_serve_port returns it] */
	bool allow_remote;      /* listen beyond loopback without a key */
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
	/* seconds for a complete head, for a complete body [10, 60] */
	double header_timeout_s, body_timeout_s;
	double idle_timeout_s;    /* seconds after which an idle connection is closed [75] */
	double request_timeout_s; /* seconds after which a generation fails [no limit] */
	/* options given to llmc_engine_open, shown by /info [all defaults] */
	const llmc_engine_options *engine;
	bool log_json; /* request lines as JSON objects */
	/* one line per request, LLMC_LOG_INFO; called on the server's threads, one at a time */
	llmc_log_fn log;
	void *log_user;
	/* "a.example,b.example", or "*" for all: accepted Host names if no key is set, in addition
	 * to addresses, localhost and host [none on loopback, else all] */
	const char *allow_host;
	/* file of keys with limits, in addition to api_key; one line each: NAME KEY [requests=N]
	 * [tokens=N] [priority=N] [none] */
	const char *keys;
	/* OTLP/HTTP endpoint for spans of requests, such as http://127.0.0.1:4318 [none] */
	const char *otlp;
	/* no key for /metrics, /v1/models, /get_load and /model_info, which routers and scrapers
	 * read */
	bool open_probes;
	/* llmc_serve_open_models: memory of all engines together; the least recently used are
	 * closed to make space [no limit] */
	int64_t memory_bytes;
	/* llmc_serve_open_models: folder from which clients may load PEFT adapters with
	 * /v1/load_lora_adapter [not allowed] */
	const char *lora_dir;
	/* close an engine that has been idle for this many seconds [never] */
	double sleep_after_s;
	/* folder of /v1/files and /v1/batches, used by this server only; its batches survive a
	 * restart [routes are off] */
	const char *batch_dir;
	int64_t batch_dir_bytes; /* upper bound of its bytes [LLMC_DEFAULT_BATCH_DIR_BYTES] */
} llmc_serve_options;

/* Model that the server opens and closes as needed. What it points to must not change until
 * llmc_serve_close. */
typedef struct llmc_serve_model {
	size_t size;
	const char *name;                          /* name in the API [its own] */
	const char *path;                          /* as in llmc_open */
	const llmc_options *options;               /* [all defaults] */
	const llmc_engine_options *engine_options; /* [all defaults, with limits of the model] */
	/* model that is open already, with an engine over it; the server owns both from here on,
	 * also on failure */
	llmc_model *model;
	llmc_engine *engine; /* NULL: opened by the first request */
	const char *parent;  /* for an adapter: name of the model that it changes [none] */
	/* folder of an adapter that runs in a slot of the parent's engine (llmc_adapter_load); path
	 * and options are the parent's [none] */
	const char *adapter;
} llmc_serve_model;

/* E_INPUT: an option is out of range, or a host beyond loopback without api_key and allow_remote;
 * E_IO: cannot listen on the address. */
LLMC_API llmc_status llmc_serve_open(llmc_model *m, llmc_engine *e, const llmc_serve_options *opt,
                                     llmc_server **out, llmc_error *err);
/* Serve several models on one port; requests that name none go to the first. Each is compiled here,
 * so that errors show at once, and opened on its first request. E_FULL: one does not fit
 * memory_bytes by itself; also all errors of llmc_open. */
LLMC_API llmc_status llmc_serve_open_models(const llmc_serve_model *models, int32_t n,
                                            const llmc_serve_options *opt, llmc_server **out,
                                            llmc_error *err);
LLMC_API int llmc_serve_port(const llmc_server *s);
/* "http://127.0.0.1:8000"; valid as long as the server */
LLMC_API const char *llmc_serve_url(const llmc_server *s);
LLMC_API void llmc_serve_drain(llmc_server *s);
LLMC_API void llmc_serve_stop(llmc_server *s);
/* true: no request is running any more */
LLMC_API bool llmc_serve_wait(llmc_server *s, int timeout_ms);
/* Read the file of llmc_serve_options.keys again. Keys that are gone get 401 from here on; running
 * requests continue. An error changes nothing. Any thread. */
LLMC_API llmc_status llmc_serve_reload_keys(llmc_server *s, llmc_error *err);
/* Whether an engine has failed for good: its device or a rank is lost. /health returns 503 and
 * requests fail until the server is closed. Any thread. */
LLMC_API bool llmc_serve_failed(llmc_server *s);
LLMC_API void llmc_serve_close(llmc_server *s); /* ends running requests; NULL is allowed */

/* ---- compiling, checking, measuring ---- */

/* Convert an HF folder, GGUF or .flm to the text of a YAML description; unknown keys are reported
 * through opt->log. */
LLMC_API llmc_status llmc_import(const char *src, const llmc_options *opt, char **yaml_out,
                                 llmc_error *err);
typedef struct llmc_compile_options {
	size_t size;
	const char *target;     /* "cpu", "cuda", "ref"; NULL: cpu */
	const char *arch;       /* comma list: "v3,v4", "sm_80,sm_90a"; NULL: what is at hand */
	const char *const *set; /* as in llmc_options */
	/* "spec", "graph", "fuse", "order", "plan": write this stage to dump_out, and nothing
	 * else */
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
	/* max |a - b|, max |b|, allowed max_err / range; for experts: rows with another choice,
	 * rows */
	double max_err, range, tolerance;
	bool ok;
	/* [rows, width] from the reference, valid during the call; NULL for indices of experts or
	 * positions */
	const float *want;
	int64_t rows, width;
} llmc_verify_row;
typedef void (*llmc_verify_fn)(void *user, const llmc_verify_row *row);
/* Run the plan and the fp32 reference on the same tokens and compare every value that the plan's
 * steps name. A row whose router scores tie within rounding and that selected other experts
 * continues with the reference's. E_CHECK: *err names the first op beyond its tolerance. */
LLMC_API llmc_status llmc_verify(llmc_model *m, const int32_t *tok, size_t n_tok,
                                 llmc_verify_fn on_row, void *user, llmc_error *err);

/* ---- quality ---- */

/* Distance of a modified model (quantised, for example) from the original, over a text cut into
 * windows. */
/* 95 % interval, from the spread between windows; NaN bounds: one window */
typedef struct llmc_interval {
	double mean, low, high;
} llmc_interval;
typedef struct llmc_eval_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	const char *text; /* [n_bytes] UTF-8 [a text that is part of the library] */
	size_t n_bytes;
	int32_t window;      /* tokens per window; windows are independent [512] */
	int32_t max_windows; /* [as many as the text fills] */
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
	/* compared with the reference; 0 without one */
	/* ln(perplexity / that of the reference), from differences per token */
	llmc_interval reference_perplexity, log_ratio;
	/* sum p ln(p / q) per token in nats, with p the probabilities of the reference */
	llmc_interval kl;
	llmc_interval agreement; /* share of tokens with the same most likely token */
	double kl_median, kl_90, kl_99, kl_999, kl_max;
	float *kl_sorted; /* [n_tokens] ascending; freed by llmc_eval_release */
} llmc_eval_result;
/* Compare a model with a reference. reference NULL: perplexity only. E_INPUT: the vocabularies
 * differ, there is no tokenizer, or the text is shorter than a window. */
LLMC_API llmc_status llmc_eval(llmc_model *m, llmc_model *reference, const llmc_eval_options *opt,
                               llmc_eval_result *res, llmc_error *err);
LLMC_API void llmc_eval_release(llmc_eval_result *res);
/* Draw the distribution of KL per token as SVG text; free it with llmc_free. */
LLMC_API llmc_status llmc_eval_plot(const llmc_eval_result *res, const char *title, char **svg,
                                    llmc_error *err);

/* ---- quantising ---- */

typedef struct llmc_quantize_options { /* 0 or NULL selects the default in brackets */
	size_t size;
	/* type of matrices. GGUF: "q4_k", "q8_0", ... [q4_k]; if the columns are not a multiple of
	 * the block size, the next type with blocks of 32. Folder to folder: "int4", "int8", "fp8",
	 * "mxfp4" [int4] */
	const char *type;
	const char *head; /* type of the LM head, and of a tied embedding [q6_k] */
	/* "gptq": error compensation by Hessians of a text; "awq": importance, with column factors
	 * folded into norms; "weighted": importance only; "nearest": neither [gptq] */
	const char *method;
	/* file with importance, llama.cpp's old format or GGUF [computed from the text] */
	const char *imatrix;
	/* file that receives the importance computed from the text; ".dat": the old format */
	const char *imatrix_out;
	const char *text; /* [n_bytes] calibration text [one that is part of the library] */
	size_t n_bytes;
	int32_t window, n_windows; /* tokens per window, number of windows [512, 64] */
	/* memory for Hessians; a layer needs 4 * inputs^2 bytes per matrix, and gets them even
	 * beyond this [512 MiB]. The text passes each layer once in any case */
	int64_t hessian_bytes;
	/* share that is added to the diagonal of Hessians [0: 6 * columns / tokens, 0.03 to 1] */
	float damp;
	int32_t n_threads; /* [physical cores within quota] */
	/* doing: a finished tensor and bytes of the input, or NULL and windows of the text; false:
	 * stop, E_CANCELLED */
	bool (*progress)(void *user, const char *doing, int64_t done, int64_t of);
	void *user;
	llmc_log_fn log;
	void *log_user;
	/* int4: columns per scale, 32 or 128 [128 if it divides the columns of all matrices] */
	int32_t group;
	/* GGUF, instead of type: average bits per weight; types are selected per matrix for the
	 * least cost of their errors, both measured. Every method then reads the text */
	float bits;
	/* with bits: called once per matrix with the selected type; error: share of the output
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
 *   GGUF -> GGUF              an ordinary file of blocks
 *   safetensors -> folder     layout of compressed-tensors, all weights in one file
 *   folder -> GGUF            if `out` ends in .gguf; includes the tokenizer, as llama.cpp's converter
 *                             writes it: types "f32", "f16" and "bf16" directly, others through
 *                             OUT.partial.16.gguf
 *
 * The bytes are the same in each run on one machine, for any number of threads. `out` must not
 * exist; it appears when it is complete. After a stop or failure the finished part stays as
 * OUT.partial, and the next call with the same input and options resumes from it. E_INPUT: options,
 * `out` exists, or the folder's model has no GGUF form; E_IO: for example a full disk. */
LLMC_API llmc_status llmc_quantize(const char *in, const char *out,
                                   const llmc_quantize_options *opt, llmc_quantize_result *res,
                                   llmc_error *err);

/* GPU of the table that predictions use, with figures of its data sheet. */
typedef struct llmc_gpu {
	size_t size;
	/* "h100", "H100 SXM", "sm_90a"; source: origin of the figures */
	const char *name, *title, *arch, *source;
	int32_t sms;
	int64_t memory;   /* bytes */
	double bandwidth; /* bytes/s */
	double peak;      /* flop/s of dense 16-bit matrix instructions with fp32 accumulation */
	double launch_s;  /* cost of one more kernel in a graph, seconds */
	/* link to the other GPUs of its host, and origin of its figures */
	const char *link, *link_source;
	/* bytes/s that one GPU sends; latency of a small all-reduce */
	double link_bandwidth, link_latency_s;
} llmc_gpu;
/* entry i of the table; false after the last */
LLMC_API bool llmc_gpu_at(int i, llmc_gpu *out);
/* Find a GPU by its name in the table or by the name that its driver reports ("NVIDIA H100 80GB
 * HBM3"). E_INPUT lists all names */
LLMC_API llmc_status llmc_gpu_find(const char *name, llmc_gpu *out, llmc_error *err);

typedef struct llmc_prediction {
	size_t size;
	/* per step: bytes of weights, KV and activations read; operations */
	int64_t bytes, flops;
	int32_t launches; /* kernels */
	double seconds, tokens_per_s;
	const char *bound; /* "bandwidth", "compute", "launches" or "links": the largest part */
	int32_t sums;      /* collectives per step */
	int64_t sum_bytes; /* bytes of them, per rank */
	double link_s;     /* time of them */
} llmc_prediction;
/* Predict one step by arithmetic: decode of `rows` sequences of `context` positions, or a prefill
 * of the last `rows` of `context` positions. For a model over ranks the values are those of one
 * rank with its own GPU; the largest share counts. For pipeline stages bytes, seconds and the other
 * values are of all stages together, and tokens_per_s assumes as many steps in flight as stages.
 * The model must be opened for device cuda (no_weights is enough). */
LLMC_API llmc_status llmc_predict(const llmc_model *m, const char *gpu, bool prefill, int32_t rows,
                                  int32_t context, llmc_prediction *out, llmc_error *err);

/* Measure the read bandwidth of this machine in bytes/s with n_threads, for about `seconds`. */
LLMC_API double llmc_bandwidth(int n_threads, double seconds);
/* Measure the read bandwidth of the memory that the model runs from: the GPU's own on a GPU. 0:
 * could not be measured. */
LLMC_API double llmc_bandwidth_of(const llmc_model *m, int n_threads, double seconds);
/* Describe this machine as a JSON document; free it with llmc_free. */
LLMC_API llmc_status llmc_doctor(char **json_out, llmc_error *err);

#ifdef __cplusplus
}
#endif
#endif

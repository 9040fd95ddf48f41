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
 *   session    KV cache, scratch and worker threads of one user of a model; one thread at a time;
 *              sessions of one model may run in different threads
 *   engine     a session with a thread of its own that serves many requests at once; any thread may call
 *   tokenizer, grammar  immutable, any thread
 *   stream, sampler, matcher: one thread at a time
 *
 * Every call that can fail returns llmc_status and fills *err (which may be NULL). The library never prints,
 * exits or aborts, installs no signal handler, changes no locale and keeps no global state; callbacks run on
 * the thread that called, but for the logs of engines and servers, which have threads of their own. Option and result structs begin with their size: use LLMC_INIT(type).
 * Text is UTF-8. Output buffers are the caller's: (buf, cap, *need) with *need the bytes or elements
 * wanted, terminating NUL not counted; when cap is too small the call returns LLMC_E_RANGE. */
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

/* Codes are pinned: programs may store them. The text is what llmc_status_text() says. A model, or weights, that were named
 * and are not there are E_INPUT; E_IO is what the system refuses. */
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
	char        text[2044]; /* one or several sentences, lines separated by \n */
} llmc_error;

typedef struct llmc_model     llmc_model;
typedef struct llmc_session   llmc_session;
typedef struct llmc_tokenizer llmc_tokenizer;
typedef struct llmc_stream    llmc_stream;
typedef struct llmc_sampler   llmc_sampler;
typedef struct llmc_engine    llmc_engine;
typedef struct llmc_grammar   llmc_grammar;
typedef struct llmc_matcher   llmc_matcher;
typedef int32_t               llmc_seq; /* number of a sequence within its session, >= 0 */

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

/* ------------------------------------------------------------------ five calls that run a model ---- */

/* Progress and notices ("compiling 12 of 31 kernels"), on the caller's thread, without a newline. */
typedef void (*llmc_log_fn)(void *user, int level, const char *line);
enum { LLMC_LOG_WARNING = 1, LLMC_LOG_INFO = 2, LLMC_LOG_DEBUG = 3 };

typedef struct llmc_options {
	size_t      size;
	const char *device;     /* "cpu", "cuda", "cuda:N", "cuda:0,1" (a GPU for each rank), "ref"; NULL: cpu */
	const char *arch;       /* "v3", "v4", "generic", "sm_80"; NULL: the best that runs here, of an artifact the best that it has or ships built */
	const char *weights;    /* checkpoint file or folder, when the model does not say (relative to the cwd) */
	const char *out_dir;    /* where to write the generated artifact; NULL: the cache */
	const char *const *set; /* "key=value" overrides of the description; NULL-terminated, or NULL */
	int         n_threads;  /* default of this model's sessions, also used for packing; 0: real cores in the quota */
	bool        random_weights;  /* no checkpoint: fill with seeded noise (bench) */
	bool        no_weights;      /* compile and query only: sessions cannot be opened */
	bool        cache_packed;    /* keep packed weights in the cache and read them next time */
	llmc_log_fn log;
	void       *log_user;
	const void *mpi_comm;   /* an MPI_Comm of a program that has started MPI (MPI_THREAD_SERIALIZED or more), whose processes are the ranks and all
	                         * make this call; NULL: all that a launcher has started. Read and duplicated here; MPI stays the program's to end */
	bool        allow_unknown_keys; /* a checkpoint's configuration may have keys that its family does not know: a warning, no error */
} llmc_options;

/* Open whatever the command line can: a YAML description, a generated folder, a Hugging Face folder, a FastLLM model (.flm) or a GGUF
 * file; import and compile as needed. *out is released with llmc_close. */
LLMC_API llmc_status llmc_open(const char *path, const llmc_options *opt, llmc_model **out, llmc_error *err);
LLMC_API void        llmc_retain(llmc_model *m);
LLMC_API void        llmc_close(llmc_model *m); /* NULL is fine; sessions keep their model alive */

enum { /* numbers that the comments below say */
	LLMC_DEFAULT_CONTEXT = 4096,
	LLMC_DEFAULT_CONCURRENT_REQUESTS = 128,
	LLMC_DEFAULT_WAITING_TOKENS = 20,
	LLMC_DEFAULT_SNAPSHOTS = 2, /* one moves with a sequence's prompt, one with its answer */
	LLMC_DEFAULT_MARKS = 8,     /* of an engine that guesses, and no more than its sequences: it guesses for as many texts at once */
	LLMC_MAX_CHOICES = 128, /* of a request */
	LLMC_MAX_SPECULATE = 15, /* tokens guessed ahead in one step */
	LLMC_MAX_TOP = 20,      /* alternatives of a place */
};

#define LLMC_DEFAULT_PREFIX_DIR_BYTES ((int64_t)8 << 30)
#define LLMC_DEFAULT_BATCH_DIR_BYTES ((int64_t)1 << 30)

/* Limits of a session; 0 takes the default in brackets. KV memory and scratch are allocated once, for exactly these. */
typedef struct llmc_limits {
	size_t  size;
	int32_t context;   /* positions of one sequence [min(the model's, LLMC_DEFAULT_CONTEXT)] */
	int32_t seqs;      /* sequences at once [1] */
	int32_t chunk;     /* tokens of one step [512] */
	int32_t n_out;     /* rows of logits of one step [seqs; chunk where the output is no logits] */
	int64_t kv_tokens; /* positions of all sequences together [context * seqs] */
	int     n_threads; /* [the model's] */
	int32_t snapshots; /* of a sequence's states, kept for prompts that begin alike; models whose layers keep none have none
	                    * [an engine LLMC_DEFAULT_SNAPSHOTS, without its prefix cache 0; else 0] */
	int64_t host_tokens; /* positions of pages in host memory, for the prefix cache of a GPU [an engine as many as kv.host has room for; else 0] */
	int32_t marks;     /* of sequences at once, by llmc_seq_mark; models whose layers keep no states need none [an engine that guesses tokens
	                    * LLMC_DEFAULT_MARKS; else 0] */
} llmc_limits;

/* In a program that mpirun or srun has started as several processes each calls llmc_open, which waits for the others and gives each its
 * rank (llmc_info). Rank 0 then does what it likes with the model; the others call this, do as rank 0's sessions do, and return when rank 0
 * closes the model. One model a process. E_DEVICE: ranks are lost; E_RANGE: rank 0 called. */
LLMC_API llmc_status llmc_follow(llmc_model *m, llmc_error *err);

LLMC_API llmc_status llmc_session_open(llmc_model *m, const llmc_limits *lim, llmc_session **out,
                                       llmc_error *err);
LLMC_API void        llmc_session_close(llmc_session *s);

/* What a row of a model's output is: most models give logits; a model for embeddings, or one opened with "head.kind=hidden", gives its last hidden
 * states, and a classifier scores of its labels. Such a model makes vectors (llmc_embed, llmc_request.pool), no text. */
typedef enum llmc_output { LLMC_OUTPUT_LOGITS, LLMC_OUTPUT_HIDDEN, LLMC_OUTPUT_LABELS } llmc_output;
/* Which rows of a text become its vector */
typedef enum llmc_pool { LLMC_POOL_NONE, LLMC_POOL_LAST, LLMC_POOL_MEAN, LLMC_POOL_CLS } llmc_pool; /* the last, the mean of all, the first */

typedef struct llmc_bias { int32_t id; float value; } llmc_bias;
typedef struct llmc_sequence { const int32_t *tok; size_t n; } llmc_sequence;

/* Sampling options. The fields of llmc_params, range checks, command line, HTTP fields, help texts and the Python binding
 * are made from these rows.
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
#define LLMC_OPTION_TYPE_INT   int32_t
#define LLMC_OPTION_TYPE_BOOL  bool
#define LLMC_OPTION_FIELD(kind, name, ...) LLMC_OPTION_TYPE_##kind name;

typedef struct llmc_params { /* LLMC_INIT gives greedy decoding of up to 256 new tokens */
	size_t   size;
	LLMC_SAMPLING_OPTIONS(LLMC_OPTION_FIELD)
	uint64_t seed;
	int32_t  max_tokens;        /* new tokens; 0: 256; -1: as many as the context holds */
	const char *const *stop;    /* stop strings, NULL-terminated, or NULL; cut from the text */
	int32_t  n_stop_tokens, n_logit_bias, n_bad_words;
	const int32_t       *stop_tokens; /* ids that end the text; not part of it */
	const llmc_bias     *logit_bias;  /* added to the logits; -INFINITY forbids */
	const llmc_sequence *bad_words;   /* sequences of tokens that never appear */
	llmc_grammar *grammar;      /* the text is of this grammar, and ends where nothing can follow; NULL: any. Kept by who copies the params */
	const char *const *grammar_after; /* texts that must have come, one behind the other, before the grammar begins (the end of a reasoning, the mark of a
	                             * call); NULL-terminated, or NULL: it begins at once */
	int32_t  speculate;         /* guessed tokens that run in one step at most, 1 .. LLMC_MAX_SPECULATE; 0: the engine's; -1: none. The text is the same */
} llmc_params;

/* The rows of LLMC_SAMPLING_OPTIONS at run time, for programs that read options by name. */
typedef enum llmc_option_kind { LLMC_OPTION_FLOAT, LLMC_OPTION_INT, LLMC_OPTION_BOOL } llmc_option_kind;
typedef struct llmc_option {
	llmc_option_kind kind;
	const char      *name, *alias, *text;
	size_t           offset;              /* of the field in llmc_params, bytes */
	double           least, most;
	double           http_least, http_most, http_default; /* http_least > http_most: no field of its own there */
} llmc_option;
LLMC_API const llmc_option *llmc_sampling_options(size_t *n); /* static memory */

typedef enum llmc_finish {
	LLMC_FINISH_LENGTH,   /* max_tokens, or the context is full */
	LLMC_FINISH_EOS,
	LLMC_FINISH_STOP,     /* a stop string */
	LLMC_FINISH_CANCEL,
	LLMC_FINISH_TOKEN,    /* a stop token */
	LLMC_FINISH_DEADLINE, /* engine only */
	LLMC_FINISH_COUNT,
} llmc_finish;
LLMC_API const char *llmc_finish_name(llmc_finish f); /* "length", "eos", "stop", "cancel", "token", "deadline" */

typedef struct llmc_result {
	size_t      size;
	llmc_finish finish;
	int32_t     n_prompt, n_new;
	double      prefill_s, decode_s; /* decode_s counts from the first new token on */
} llmc_result;

/* A new token and the text that became certain with it (may be empty, never half a character; text is valid during
 * the call only). Return false to stop: finish is then LLMC_FINISH_CANCEL. */
typedef bool (*llmc_token_fn)(void *user, int32_t id, const char *text, size_t n_bytes);

/* Prefill and decode on the caller's thread in a sequence of its own, freed at the end. `tok` ids as llmc_tokenize
 * gives them. E_INPUT: empty prompt; E_RANGE: prompt does not fit the context or an id is no token. */
LLMC_API llmc_status llmc_generate(llmc_session *s, const int32_t *tok, size_t n_tok, const llmc_params *p,
                                   llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err);
LLMC_API llmc_status llmc_generate_text(llmc_session *s, const char *prompt, const llmc_params *p,
                                        llmc_token_fn on_token, void *user, llmc_result *res, llmc_error *err);

/* ------------------------------------------------------------------------------ query a model ---- */

typedef struct llmc_model_info {
	size_t  size;
	char    name[128], family[64], target[64]; /* target: "cpu-v3", "cuda-sm_90a", "ref", ... */
	int32_t vocab;          /* rows of logits */
	int32_t n_layers, hidden;
	int32_t max_positions;  /* trained */
	bool    hard_limit;     /* learned positions: no step beyond max_positions */
	int32_t n_eos, eos[8];
	int32_t bos;            /* -1: none */
	bool    has_tokenizer, has_chat_template;
	int64_t n_params;
	int64_t weight_bytes;   /* packed, as held in memory */
	int64_t token_bytes;    /* weight bytes streamed for one decoded token */
	double  load_s, compile_s, pack_s; /* what opening took */
	int32_t rank, ranks;    /* this process' first rank, of those that the model is split over (parallel.tp) */
	llmc_output output;     /* what a row of llmc_forward is, and its floats: vocab of logits */
	int32_t out_width;
	llmc_pool pool;         /* how this model was trained to make a vector of a text; NONE: the caller must know */
	bool    normalize;      /* and whether that is divided by its length */
} llmc_model_info;
LLMC_API void llmc_info(const llmc_model *m, llmc_model_info *info); /* info->size set by the caller */

/* Text of a key of the resolved description, as "attention.n_heads". E_INPUT: no such key. */
LLMC_API llmc_status llmc_get(const llmc_model *m, const char *key, char *buf, size_t cap, size_t *need,
                              llmc_error *err);

typedef struct llmc_memory {
	size_t  size;
	int64_t weights, kv, scratch, state; /* bytes */
	int64_t kv_per_token;                /* bytes of KV for one position */
	int64_t kv_per_seq;                  /* bytes of the states of one sequence, which are part of kv; 0: the model has none */
	int64_t kv_saved;                    /* bytes that kv takes less because layers that see a window keep no more than they see; 0: none does */
	int64_t kv_snapshots;                /* bytes of limits.snapshots of all sequences, and of limits.marks, which are part of kv */
	int64_t kv_exact;                    /* bytes of kv that hold recent and first positions in 16 bit (kv.window, kv.sinks); 0: none are */
	int64_t kv_host;                     /* bytes of pinned host memory that an engine takes for pages beside kv (kv.host); 0: none */
} llmc_memory;
LLMC_API llmc_status llmc_memory_for(const llmc_model *m, const llmc_limits *lim, llmc_memory *out, llmc_error *err);
/* One rank of a model that is split over several (parallel.tp), or all of one that is not. Sizes are 0 where the model has none. */
typedef struct llmc_rank_info {
	size_t  size;
	llmc_memory memory;                  /* memory.size is set as well */
	int32_t heads, kv_heads;             /* of attention; kv_heads 0: the latent, whole */
	int64_t ffn, expert, shared, vocab;  /* columns of feed-forwards, rows of the head */
	int32_t sums, joins;                 /* all-reduces and all-gathers of a step */
	int64_t sum_bytes, join_bytes;       /* that the rank brings to them, for a row */
} llmc_rank_info;
/* E_RANGE: there is no such rank, or it is another process'. */
LLMC_API llmc_status llmc_rank_for(const llmc_model *m, int32_t rank, const llmc_limits *lim, llmc_rank_info *out, llmc_error *err);
/* The largest number of sequences of lim->context positions that fit into `bytes` altogether; 0: not even one. */
LLMC_API llmc_status llmc_fit(const llmc_model *m, int64_t bytes, const llmc_limits *lim, int32_t *seqs,
                              llmc_error *err);
LLMC_API const char *llmc_plan_text(const llmc_model *m); /* plan.txt; lives as long as the model */
LLMC_API const char *llmc_plan_json(const llmc_model *m);
LLMC_API const char *llmc_model_yaml(const llmc_model *m); /* the resolved description */

/* ---------------------------------------------------------------------------------------- text ---- */

LLMC_API const llmc_tokenizer *llmc_model_tokenizer(const llmc_model *m); /* borrowed; NULL: none */
/* tokenizer.json, tokenizer.model, a folder that holds one (or ice_text.model, or vocab.json and merges.txt), a GGUF (a vocabulary without
 * weights is enough) or an .flm */
LLMC_API llmc_status llmc_tokenizer_open(const char *path, llmc_tokenizer **out, llmc_error *err);
LLMC_API void        llmc_tokenizer_close(llmc_tokenizer *t);
LLMC_API int32_t     llmc_tokenizer_size(const llmc_tokenizer *t);

enum {
	LLMC_ADD_SPECIAL   = 1, /* add the model's own prefix and suffix (bos, eos) */
	LLMC_PARSE_SPECIAL = 2, /* recognise special tokens in the text */
	LLMC_ADD_FIRST     = 4, /* the text is the first of two that are one input: what stands in front of it, as transformers' tokenizer(text, text_pair) has it ... */
	LLMC_ADD_SECOND    = 8, /* ... or the second: what stands between them, and behind it. The ids of both, one behind the other, are the pair */
};
LLMC_API llmc_status llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags,
                                   int32_t *ids, size_t cap, size_t *need, llmc_error *err);
/* A number of ids that llmc_tokenize gives at least, without tokenizing: what is too long by this need not be tried. */
LLMC_API size_t      llmc_tokenize_least(const llmc_tokenizer *t, const char *text, size_t n_bytes);
/* Text of ids as the tokenizer's decoder gives it; invalid UTF-8 becomes U+FFFD. skip_special leaves special tokens out. */
LLMC_API llmc_status llmc_detokenize(const llmc_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                     char *buf, size_t cap, size_t *need, llmc_error *err);
/* The raw vocabulary entry; NULL when id is none. Lives as long as the tokenizer. */
LLMC_API const char *llmc_token_text(const llmc_tokenizer *t, int32_t id);
/* The bytes that a token stands for in a text: not always whole characters, and maybe NUL. A special token gives its
 * name. E_INPUT: id is none. */
LLMC_API llmc_status llmc_token_bytes(const llmc_tokenizer *t, int32_t id, char *buf, size_t cap, size_t *need,
                                      llmc_error *err);
LLMC_API bool        llmc_token_is_special(const llmc_tokenizer *t, int32_t id); /* what skip_special leaves out */

LLMC_API bool llmc_has_chat_template(const llmc_tokenizer *t);
LLMC_API const char *llmc_chat_template(const llmc_tokenizer *t); /* its text; NULL: none */
/* Apply the chat template. messages_json: [{"role":"user","content":"..."}, ...]; options_json (may be NULL):
 * {"add_generation_prompt":true,"tools":[...], ...} become variables of the template. E_INPUT carries the template's
 * raise_exception text. */
LLMC_API llmc_status llmc_chat(const llmc_tokenizer *t, const char *messages_json, const char *options_json,
                               char *buf, size_t cap, size_t *need, llmc_error *err);

/* Incremental detokeniser: feed ids, get the text that can no longer change. */
LLMC_API llmc_status llmc_stream_open(const llmc_tokenizer *t, bool skip_special, llmc_stream **out, llmc_error *err);
/* *text is valid until the next call; id -1 flushes what is held back */
LLMC_API llmc_status llmc_stream_feed(llmc_stream *s, int32_t id, const char **text, size_t *n_bytes,
                                      llmc_error *err);
LLMC_API void        llmc_stream_close(llmc_stream *s);

/* -------------------------------------------------------------------------- reasoning and tools ---- */

/* An answer is more than text: a model's reasoning, and calls of tools, written in the format that its chat template was made for
 * (configs/formats/calls.yaml). A reader takes the answer's text as it comes, special tokens shown, and tells its pieces.
 *
 *     llmc_calls_open(tokenizer, prompt, n_prompt, tools_json, &c, &err);   prompt: as the template made it; tools: OpenAI's array
 *     llmc_calls_feed(c, text, n, false, on_piece, user, &err);             for each new text, at last with last = true
 *
 * One thread at a time. What cannot be read as a call is text, never an error. */
typedef struct llmc_calls llmc_calls;
typedef enum llmc_piece_kind {
	LLMC_PIECE_TEXT,
	LLMC_PIECE_REASONING,
	LLMC_PIECE_CALL,      /* a call begins: the tool's name, whole */
	LLMC_PIECE_ARGUMENTS, /* more of its arguments: JSON, the model's own bytes */
	LLMC_PIECE_DONE,      /* the call is over */
} llmc_piece_kind;
typedef void (*llmc_piece_fn)(void *user, llmc_piece_kind kind, int32_t call, const char *text, size_t n_bytes); /* call: its number, from 0; else -1 */
/* tools_json NULL: reasoning alone. The tokenizer need not outlive it. A tool whose one parameter is a text may have a grammar of it beside its `function`:
 * "format": {"type": "grammar", "syntax": "lark" or "regex", "definition"}; llmc_calls_rules holds it to that. */
LLMC_API llmc_status llmc_calls_open(const llmc_tokenizer *t, const char *prompt, size_t n_prompt, const char *tools_json, llmc_calls **out,
                                     llmc_error *err);
LLMC_API llmc_status llmc_calls_feed(llmc_calls *c, const char *text, size_t n_bytes, bool last, llmc_piece_fn fn, void *user, llmc_error *err);
LLMC_API void        llmc_calls_close(llmc_calls *c);
LLMC_API size_t      llmc_calls_at(const llmc_calls *c); /* within fn: at which byte of the answer the LLMC_PIECE_TEXT begins */
typedef enum llmc_mark {
	LLMC_MARK_ROW,           /* name of the format */
	LLMC_MARK_REASONING,     /* what opens a reasoning */
	LLMC_MARK_REASONING_END, /* what ends it, where the prompt has opened it */
	LLMC_MARK_CALL,          /* what opens a call */
	LLMC_MARK_SYSTEM,        /* what tells of tools ({tools}) where the template has no place for them */
} llmc_mark;
LLMC_API const char *llmc_calls_mark(const llmc_calls *c, llmc_mark which); /* NULL: none; lives as long as the reader */
/* A text of kind LLMC_GRAMMAR_PARTS that allows calls of the tools alone, each with arguments of its schema. only NULL: of any tool.
 * E_INPUT: no such tool, or a model without a known format. */
enum {
	LLMC_CALLS_ONE = 1,   /* one call, not several */
	LLMC_CALLS_BEGUN = 2, /* LLMC_MARK_CALL has come: what stands behind it */
	LLMC_CALLS_FREE = 4,  /* arguments are any object, whatever the schemas say */
};
LLMC_API llmc_status llmc_calls_rules(const llmc_calls *c, const char *only, int flags, char *buf, size_t cap, size_t *need, llmc_error *err);

/* ------------------------------------------------------------------------------------ grammars ---- */

/* What a text may be: a grammar allows at each place those tokens alone with which the text can still become one of its texts. It goes into
 * llmc_params.grammar, or beside a sampler of the caller's own as a matcher.
 *
 *     llmc_grammar_open(tokenizer, LLMC_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), NULL, &g, &err);
 *     params.grammar = g;   llmc_generate_text(session, prompt, &params, ...);   llmc_grammar_close(g);
 *
 * Schemas: properties come in the order of `properties`, optional ones or not; others do not come unless additionalProperties is written; between tokens
 * stands a space or a line end, never a run of them; digits of a number have a bound. docs/constrained.md has the keywords. */
typedef enum llmc_grammar_kind {
	LLMC_GRAMMAR_JSON,        /* any JSON object; text is not looked at */
	LLMC_GRAMMAR_JSON_SCHEMA, /* a JSON schema */
	LLMC_GRAMMAR_REGEX,       /* the whole text matches a regular expression, without look-around and back-references */
	LLMC_GRAMMAR_GBNF,        /* llama.cpp's form: rules, of which `root` is the text */
	LLMC_GRAMMAR_CHOICE,      /* one of a JSON array of strings */
	LLMC_GRAMMAR_PARTS,       /* JSON: fixed texts around schemas and expressions; docs/constrained.md */
	LLMC_GRAMMAR_LARK,        /* Lark's form, without what needs a lexer: rules, of which `start` is the text; docs/constrained.md */
} llmc_grammar_kind;

typedef struct llmc_grammar_options {
	size_t size;
	bool   compact;   /* no blanks between the tokens of JSON */
	bool   standard;  /* what is not written is as JSON Schema has it: other properties, any type, blanks and digits without a bound */
	bool   strict;    /* a keyword that is not enforced is an error, instead of being ignored */
} llmc_grammar_options;

/* Any thread; takes about as long as reading the text. The tokenizer need not outlive the grammar. E_INPUT: a mistake in the text, or what is not
 * supported: the sentence names the path and the keyword, or the place. Counted: each retain wants a close. */
LLMC_API llmc_status llmc_grammar_open(const llmc_tokenizer *t, llmc_grammar_kind kind, const char *text, size_t n_bytes,
                                       const llmc_grammar_options *opt, llmc_grammar **out, llmc_error *err);
LLMC_API void        llmc_grammar_retain(llmc_grammar *g);
LLMC_API void        llmc_grammar_close(llmc_grammar *g); /* NULL is fine; matchers and samplers keep theirs alive */

/* A place in one text. mask: bit `id & 31` of bits[id >> 5] is set for a token that may come; [n_words], words beyond the vocabulary become 0. Tokens that end a text
 * are allowed where it may end. accept: E_INPUT when the token is not allowed. E_RANGE, E_MEMORY: the grammar is too ambiguous for its bounds. */
LLMC_API llmc_status llmc_matcher_open(llmc_grammar *g, llmc_matcher **out, llmc_error *err);
LLMC_API void        llmc_matcher_close(llmc_matcher *m);
LLMC_API llmc_status llmc_matcher_mask(llmc_matcher *m, uint32_t *bits, size_t n_words, llmc_error *err);
LLMC_API llmc_status llmc_matcher_accept(llmc_matcher *m, int32_t id, llmc_error *err);
LLMC_API bool        llmc_matcher_may_end(llmc_matcher *m); /* the text is complete as it stands */
LLMC_API bool        llmc_matcher_ended(llmc_matcher *m);   /* and nothing can follow */
LLMC_API void        llmc_matcher_reset(llmc_matcher *m);   /* back to the beginning */

/* ------------------------------------------------------------------------- sessions and sampling ---- */

/* A sequence: its tokens' KV in pages of the session. E_FULL: all `seqs` of the limits are taken.
 * length_bound: prompt + new tokens at most (0: the context); fixes length-dependent rope tables. */
LLMC_API llmc_status llmc_seq_new(llmc_session *s, int32_t length_bound, llmc_seq *out, llmc_error *err);
LLMC_API llmc_status llmc_seq_fork(llmc_session *s, llmc_seq from, llmc_seq *out, llmc_error *err); /* shares pages */
/* Forget from len on. E_RANGE as well where layers see a window and positions that they would see again are no longer kept: they always are where the
 * sequence has not been longer than len + 32. */
LLMC_API llmc_status llmc_seq_trim(llmc_session *s, llmc_seq q, int32_t len, llmc_error *err);
/* Where layers keep a state, which is that of the last position, a sequence is trimmed to 0 or to where it was marked last. Nothing is done for other models.
 * E_FULL: all `marks` of the limits are taken. A mark goes with its sequence, or when that is trimmed below it. */
LLMC_API llmc_status llmc_seq_mark(llmc_session *s, llmc_seq q, llmc_error *err);
LLMC_API void        llmc_seq_unmark(llmc_session *s, llmc_seq q);
LLMC_API int32_t     llmc_seq_len(const llmc_session *s, llmc_seq q); /* -1: no such sequence */
LLMC_API void        llmc_seq_free(llmc_session *s, llmc_seq q);
/* The KV of a sequence as bytes, and a new sequence from them, in any session of the same model on the same target.
 * E_INPUT: the bytes are damaged or of another model; E_FULL: no place. */
LLMC_API llmc_status llmc_seq_save(llmc_session *s, llmc_seq q, void *buf, size_t cap, size_t *need, llmc_error *err);
LLMC_API llmc_status llmc_seq_load(llmc_session *s, const void *buf, size_t n, llmc_seq *out, llmc_error *err);

/* Low-rank adapters that PEFT has saved, chosen for each sequence, of a model opened with slots for them ("adapters.slots=4", "adapters.rank=16"): sequences of
 * several adapters, and of none, run in one step. An adapter's number is never used twice. Any thread, also while sessions run.
 *   load: E_INPUT: the model has no slots, no such folder, an adapter of another model, of modules without slots or of too large a rank; E_FULL: all slots are
 *         taken. scale: factor beside the adapter's own; 1: as it was trained
 *   unload: nobody may choose it any more; its slot is free when the last sequence and request that have it end. E_RANGE: there is none of this number */
LLMC_API llmc_status llmc_adapter_load(llmc_model *m, const char *folder, double scale, int32_t *adapter, llmc_error *err);
LLMC_API llmc_status llmc_adapter_unload(llmc_model *m, int32_t adapter, llmc_error *err);
LLMC_API int         llmc_adapter_slots(const llmc_model *m); /* 0: the model has none */
/* A sequence without positions runs with this adapter from here on, its forks and what is loaded of it saved as well; 0: with none.
 * E_RANGE: no such sequence or adapter, or it has positions */
LLMC_API llmc_status llmc_seq_adapt(llmc_session *s, llmc_seq q, int32_t adapter, llmc_error *err);

typedef struct llmc_chunk {
	llmc_seq       seq;
	const int32_t *tok;   /* [n_tok], 0 <= id < vocab */
	int32_t        n_tok; /* >= 1 */
	int32_t        n_out; /* logits wanted of the last n_out rows, 0 .. n_tok */
} llmc_chunk;

/* Run chunks of different sequences through the model in one step.
 *   logits [sum of n_out, llmc_model_info.out_width] fp32, the caller's; chunks in order; NULL skips the copy
 * E_RANGE, E_FULL: nothing ran, no sequence changed. E_DEVICE: only llmc_session_close() is allowed now.
 * Blocks; allocates nothing. */
LLMC_API llmc_status llmc_forward(llmc_session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err);
/* The same for models that a description has made two of (mtp.part): the model, whose rows are handed out, and the head that guesses, whose
 * tokens come with rows: token i + 1 of a text with row i of the model, or of the head itself for guesses further on.
 *   came [sum of n_tok, hidden] of a head; else NULL
 *   rows [sum of n_tok, hidden] as the final norm leaves them, the caller's; chunks in order; NULL skips the copy
 * E_RANGE: also where the model takes or hands out no rows. */
LLMC_API llmc_status llmc_forward_rows(llmc_session *s, const llmc_chunk *chunk, size_t n, const float *came, float *logits, float *rows, llmc_error *err);

/* The vector of a text, of a model whose output is no logits: hidden states or scores of labels, pooled, divided by the vector's length where
 * `normalize` says so. In a sequence of its own, freed at the end.
 *   out [out_width] fp32, the caller's
 * E_INPUT: no tokens, no pool, or the model's output is logits; E_RANGE, E_FULL as llmc_forward. */
LLMC_API llmc_status llmc_embed(llmc_session *s, const int32_t *tok, size_t n_tok, llmc_pool pool, bool normalize, float *out, llmc_error *err);

/* Decoding without waiting for the host: tokens are picked on the device, and the next step takes them before the host has
 * seen them. Sessions on a GPU can, for parameters without stop rules that need the host; CPU sessions cannot.
 *
 *     llmc_sample_params(s, q, &params, prompt, n_prompt, &err);
 *     llmc_queue_step(s, the prompt's chunk with n_out 1, 1, &err);
 *     for (;;) {
 *             llmc_queue_step(s, a chunk of q with tok NULL, n_tok 1, n_out 1, 1, &err);   takes what the step before picked
 *             llmc_take_sampled(s, &id, NULL, &err);                                      what that was
 *     }
 *
 * llmc_queue_step queues a step and returns; a token is picked from the last row of each chunk with n_out 1. Two steps may be under way, a
 * third is E_BUSY. llmc_take_sampled waits for the oldest: ids (and logprobs, when not NULL) of its chunks with n_out 1, in order. */
LLMC_API bool        llmc_can_sample(const llmc_session *s, const llmc_params *p);
LLMC_API llmc_status llmc_sample_params(llmc_session *s, llmc_seq q, const llmc_params *p, const int32_t *prompt, size_t n_prompt,
                                      llmc_error *err);
LLMC_API llmc_status llmc_queue_step(llmc_session *s, const llmc_chunk *chunk, size_t n, llmc_error *err);
LLMC_API llmc_status llmc_take_sampled(llmc_session *s, int32_t *ids, float *logprobs, llmc_error *err);

/* What each op of a step takes: its kernel in all layers, run again and again on what the last llmc_forward left; on a GPU by itself, on a
 * processor within the step, with the barrier behind it. Blocks, and calls fn (in this thread; it must not use the session) once a kernel, in the
 * step's order. The values of that step's sequences, and of their forks, are worth nothing afterwards: free them. E_RANGE before a step, or
 * when one of its sequences has been freed or trimmed since; E_MEMORY. A step that is not measured pays nothing for this. */
typedef struct llmc_op_time {
	const char *op;           /* as in llmc plan; lives as long as the model */
	int32_t     n;            /* launches in one step */
	double      seconds;      /* of all of them */
	int64_t     weight_bytes; /* that they read */
	bool        library;      /* cuBLASLt does its product */
	int64_t     cache_bytes;  /* of KV that attention reads */
	int64_t     ops;          /* multiplications and additions of products and attention */
} llmc_op_time;
typedef void (*llmc_op_time_fn)(void *user, const llmc_op_time *t);
LLMC_API llmc_status llmc_op_times(llmc_session *s, llmc_op_time_fn fn, void *user, llmc_error *err);

enum { LLMC_KV_PAGE = 32 }; /* positions of a page of keys and values */

typedef struct llmc_stats {
	size_t  size;
	int64_t steps_run;      /* kernels and reference ops run by this session */
	int64_t barriers;       /* stages run: threads wait for each other after each */
	int64_t forwards, tokens;
	int64_t weight_bytes;   /* weight bytes that the last forward streamed, by the plan */
	int64_t kv_pages_used, kv_pages_total; /* of LLMC_KV_PAGE positions */
} llmc_stats;
LLMC_API void llmc_session_stats(const llmc_session *s, llmc_stats *out);

LLMC_API llmc_status llmc_sampler_open(int32_t vocab, const llmc_params *p, llmc_sampler **out, llmc_error *err);
LLMC_API void        llmc_sampler_close(llmc_sampler *s);
LLMC_API void        llmc_sampler_reset(llmc_sampler *s);
/* Tell of a token of the prompt (is_prompt) or of the output: penalties count them. */
LLMC_API void        llmc_sampler_accept(llmc_sampler *s, int32_t id, bool is_prompt);
/* Pick from logits [vocab] (left as they are); logprob (may be NULL) is that of the unchanged distribution.
 * NaN logits: E_CHECK. */
LLMC_API llmc_status llmc_sampler_sample(llmc_sampler *s, const float *logits, int32_t *id, float *logprob,
                                       llmc_error *err);

/* -------------------------------------------------------------------- engine: many requests ---- */

/* An engine is a session with a thread of its own. Requests go in, events come out:
 *
 *     llmc_engine_open(m, NULL, &e, &err);
 *     llmc_request r = LLMC_INIT(llmc_request);   r.tok = ids;   r.n_tok = n;
 *     llmc_submit(e, &r, &id, &err);                               launch it ...
 *     llmc_event ev = LLMC_INIT(llmc_event);
 *     do                                                           ... and fetch tokens, now or later
 *         llmc_next(e, id, -1, &ev, &err);
 *     while (!ev.last);
 *     llmc_event_release(&ev);   llmc_engine_close(e, 0);
 *
 * All running requests advance together, a token each per step; prompts run in pieces beside them, within the budgets
 * below. First come, first served: when KV pages run out the youngest request is preempted (its pages moved to host
 * memory or computed again later, whichever is cheaper) and goes on before any newer one starts. Prompts that begin
 * alike share pages while these last. A request's tokens are what it would get alone: on the CPU always, on a GPU with
 * `deterministic: true`; random draws depend on the seed, the choice and the position only.
 *
 * Any thread may call. Events of one request come in order; two threads that wait for the same request share them. */
typedef struct llmc_engine_options { /* 0 or NULL takes the default in brackets */
	size_t  size;
	const llmc_limits *limits;          /* of the session; seqs [16]: the largest batch; kv_tokens [4 contexts] */
	int32_t max_concurrent_requests;    /* waiting and running, more are refused [LLMC_DEFAULT_CONCURRENT_REQUESTS] */
	int32_t max_batch_prefill_tokens;   /* of prompts in one step [limits.chunk] */
	int64_t max_batch_total_tokens;     /* a request starts when prompts + max_tokens of all fit [0: when its prompt fits] */
	float   waiting_served_ratio;       /* while others decode, requests start when this share of the batch waits [0: at once] */
	int32_t max_waiting_tokens;         /* ... or after this many steps without a start [LLMC_DEFAULT_WAITING_TOKENS] */
	bool    no_prefix_cache;
	int64_t swap_bytes;                 /* host memory for KV of requests preempted [0: they are computed again]; not beside kv.host, where their pages go */
	llmc_log_fn log;                    /* on the engine's threads */
	void   *log_user;
	int32_t speculate;                  /* tokens guessed ahead in one step at most, where few requests run and it pays; -1: none
	                                     * [LLMC_MAX_SPECULATE; none on GPUs without deterministic: true] */
	const char *prefix_dir;             /* folder of prefix pages as files, shared by restarts and by engines of the same model [none] */
	int64_t prefix_dir_bytes;           /* of its files at most [LLMC_DEFAULT_PREFIX_DIR_BYTES] */
	llmc_model *draft;                  /* a smaller model of the same tokenizer that guesses as well, or the same checkpoint opened with mtp.part=head, and the model
	                                     * with mtp.part=rows [none]; the engine keeps it alive */
} llmc_engine_options;

LLMC_API llmc_status llmc_engine_open(llmc_model *m, const llmc_engine_options *opt, llmc_engine **out, llmc_error *err);
/* No more requests (submit says E_CANCELLED); wait until all are served, at most drain_ms (< 0: as long as it takes),
 * then end the rest with LLMC_FINISH_CANCEL. Events stay readable. E_CANCELLED: some were cut short. */
LLMC_API llmc_status llmc_engine_drain(llmc_engine *e, int drain_ms, llmc_error *err);
/* Drain, then free. No other call may be running or follow. NULL is fine. */
LLMC_API void        llmc_engine_close(llmc_engine *e, int drain_ms);
LLMC_API const llmc_limits *llmc_engine_limits(const llmc_engine *e); /* in force; lives as long as the engine */

typedef struct llmc_request {
	size_t         size;
	const int32_t *tok;          /* [n_tok] the prompt */
	size_t         n_tok;
	const llmc_params *params;   /* NULL: greedy, 256 tokens */
	int32_t        n;            /* choices [1]; the i-th samples with seed + i */
	int32_t        best_of;      /* choices made, of which the n with the best mean logprob are told at the end [n] */
	bool           logprobs;     /* of each new token, in the unchanged distribution */
	bool           prompt_logprobs; /* and of each token of the prompt, as LLMC_EVENT_PROMPT */
	int32_t        n_top;        /* and of as many likeliest tokens of each place, 0 .. LLMC_MAX_TOP */
	bool           keep_stop;    /* text is not held back nor cut for stop strings: it ends with the token that completes one */
	bool           show_special; /* special tokens appear in the text */
	double         deadline_s;   /* ends with LLMC_FINISH_DEADLINE as many seconds after llmc_submit [none] */
	void          *user;         /* comes back in every event */
	llmc_pool      pool;         /* the vector of the prompt instead of new tokens; wanted where the model's output is no logits */
	bool           normalize;    /* and divided by its length */
	int32_t        priority;     /* the lower, the sooner it starts, in place of others where it must [0] */
	int32_t        adapter;      /* that it runs with, as llmc_adapter_load gave it [none] */
	const int32_t *pool_tok;     /* [n_pool_tok] tokens: with `pool` a model that makes text gives their logits, of the row that pool says (the last or the first), as the vector */
	int32_t        n_pool_tok;
	uint64_t       prefix_salt;  /* pages of its prompt are found again by requests of the same number alone [0] */
} llmc_request;

/* Copies all that the request points to. *id > 0 is never used twice by an engine.
 * E_BUSY, at once: max_concurrent_requests are in work. E_INPUT: no tokens. E_RANGE: an id is no token, the prompt does
 * not fit the context, a parameter is out of range, or the request could not run even alone. E_CANCELLED: the engine
 * is being drained. E_DEVICE: it has failed. */
LLMC_API llmc_status llmc_submit(llmc_engine *e, const llmc_request *r, int64_t *id, llmc_error *err);

typedef enum llmc_event_kind {
	LLMC_EVENT_NONE,   /* nothing came within the time */
	LLMC_EVENT_PROMPT, /* a token of the prompt (prompt_logprobs): token, logprob (NaN: the first), top, text; index 0 */
	LLMC_EVENT_TOKEN,  /* a new token: token, text, logprob, top */
	LLMC_EVENT_FINISH, /* a choice is complete: finish and counts; text is what was held back */
	LLMC_EVENT_ERROR,  /* the request failed: status, text is the sentence */
} llmc_event_kind;

typedef struct llmc_logprob { int32_t id; float logprob; } llmc_logprob;

typedef struct llmc_event {
	size_t      size;
	llmc_event_kind kind;
	bool        last;         /* of this request: all choices are complete, or it failed; its id is forgotten */
	int64_t     request;
	void       *user;
	int32_t     index;        /* choice, 0 .. n-1 */
	int32_t     token;        /* FINISH: the eos or stop token that ended it, with logprob and top, else -1 */
	float       logprob;      /* when asked for, else 0 */
	int32_t     n_top;
	const llmc_logprob *top;  /* [n_top] likeliest first */
	const char *text;         /* became certain with this token: never half a character; may be empty; NUL-terminated */
	size_t      n_bytes;
	double      time_s;       /* CLOCK_MONOTONIC when the event was made */
	/* FINISH and ERROR */
	llmc_status status;       /* ERROR */
	llmc_finish finish;
	int32_t     stop;         /* FINISH_STOP: which string, else -1 */
	int32_t     n_prompt, n_new; /* n_new counts TOKEN events: not the token that ended it */
	int32_t     n_cached;     /* of the prompt, found in the prefix cache */
	int32_t     n_preempted;  /* times preempted */
	double      sum_logprob;  /* of the new tokens (logprobs or best_of) */
	double      queue_s, prefill_s, decode_s; /* waiting; until the first new token; from there on */
	void       *memory_;      /* what top, text and vector point to */
	const float *vector;      /* [n_vector] FINISH of a request with `pool`; NULL else */
	int32_t     n_vector;
} llmc_event;

#define LLMC_ANY 0 /* of any request */
/* The next event of a request, within timeout_ms (< 0: as long as it takes). ev, set up with LLMC_INIT, is reused from
 * call to call: what it points to lasts until then. E_RANGE: no such request, or its last event has been taken. Of LLMC_ANY, when there is no event left:
 * E_CANCELLED: the engine is drained; E_DEVICE: it has failed, also where no request ran. */
LLMC_API llmc_status llmc_next(llmc_engine *e, int64_t id, int timeout_ms, llmc_event *ev, llmc_error *err);
LLMC_API void        llmc_event_release(llmc_event *ev);
/* Stop a request: its pages are free within a step, its open choices finish with LLMC_FINISH_CANCEL. Any number of
 * times, also for requests that are gone. */
LLMC_API void        llmc_cancel(llmc_engine *e, int64_t id);
/* As llmc_cancel, and nobody will ask for its events any more: they are dropped. */
LLMC_API void        llmc_forget(llmc_engine *e, int64_t id);
/* A descriptor for poll(): readable while llmc_next(e, LLMC_ANY, 0, ...) has something. Do not read or close it. */
LLMC_API int         llmc_engine_fd(const llmc_engine *e);

enum { LLMC_BUCKETS = 36 };
/* Counts of values per bucket, not cumulative. Bucket k holds what is <= 0.0001 * 1.5^(k+1) seconds, or <= 2^k things,
 * and above the bucket before; the last holds the rest. */
typedef struct llmc_histogram { uint64_t bucket[LLMC_BUCKETS], n; double sum; } llmc_histogram;

typedef struct llmc_counts {
	size_t  size;
	/* now */
	int32_t running, waiting, preempted; /* choices in the batch; requests not started; choices preempted */
	int32_t batch_size;                  /* choices of the last step */
	int64_t batch_max_tokens;            /* prompts + max_tokens of all that have started */
	int64_t kv_pages_total, kv_pages_used, kv_pages_cached; /* cached: kept for later prompts, free when needed; not in used */
	int64_t swap_bytes_used;
	double  last_step_s;
	/* since open */
	uint64_t steps, prefill_steps;       /* all; those with a piece of a prompt */
	uint64_t requests;                   /* taken in */
	uint64_t finished[LLMC_FINISH_COUNT]; /* choices, by reason */
	uint64_t failed, refused;            /* requests; by a full queue */
	uint64_t prompt_tokens, new_tokens;
	uint64_t prefix_queries, prefix_hits; /* tokens of prompts looked up, found */
	uint64_t preemptions, swaps_out, swaps_in;
	llmc_histogram prefill_step_s, decode_step_s;  /* seconds */
	llmc_histogram queue_s, first_token_s, inter_token_s, prefill_s, decode_s, request_s;
	llmc_histogram step_tokens, start_size;        /* things; start_size: requests that started together */
	llmc_histogram request_prompt, request_new, request_max_new, request_n;
	uint64_t drafts, drafted, accepted;            /* guesses at the next tokens; tokens of them that ran; that came true */
	uint64_t prefix_read, prefix_written, prefix_wrong; /* positions of prefix pages: from files, to files, of files that were damaged */
	uint64_t accepted_at[LLMC_MAX_SPECULATE];      /* the same by place behind the last token */
	int64_t  host_pages_total, host_pages_used;    /* now, of KV in host memory (kv.host) */
	uint64_t host_out, host_in;                    /* since open: positions copied there, and back */
} llmc_counts;
LLMC_API void llmc_engine_stats(llmc_engine *e, llmc_counts *out); /* out->size set by the caller */

/* ------------------------------------------------------------------------------- HTTP server ---- */

/* OpenAI's, TGI's, Anthropic's and Ollama's routes over an engine; docs/serving.md lists them.
 *
 *     llmc_serve_options o = LLMC_INIT(llmc_serve_options);   o.port = 8000;
 *     llmc_serve_open(m, e, &o, &server, &err);      answers from here on, on threads of its own
 *     llmc_serve_drain(server);                      optional: /health says 503 while all requests are still taken, so that
 *                                                    routers send new ones elsewhere before the port closes
 *     llmc_serve_stop(server);                       no new requests
 *     llmc_serve_wait(server, 30000);                those in work are answered
 *     llmc_serve_close(server);                      then llmc_engine_close and llmc_close
 *
 * The server takes all events of the engine (LLMC_ANY): nobody else may call llmc_next on it meanwhile. */
typedef struct llmc_server llmc_server;
typedef struct llmc_serve_options { /* 0 or NULL takes the default in brackets; texts are copied */
	size_t      size;
	const char *host;          /* address or name to listen on [127.0.0.1] */
	int32_t     port;          /* [0: the kernel chooses, llmc_serve_port tells] */
	bool        allow_remote;  /* listen beyond loopback without a key */
	const char *api_key;       /* wanted as "Authorization: Bearer KEY" [none] */
	const char *model_name;    /* as clients know it [the model's own] */
	const char *allow_origin;  /* a web page's origin that may call, or "*" [none but the server's own] */
	int32_t     max_input_length, max_total_tokens; /* [context - 1, context] */
	int32_t     max_best_of, max_stop_sequences, max_top_n_tokens; /* of TGI's routes [2, 4, 5] */
	int32_t     validation_workers; /* threads that check and tokenize requests [2] */
	int64_t     max_body_bytes;     /* of one request [2 MB] */
	int32_t     max_connections, max_connections_per_client; /* [1000, no limit] */
	double      header_timeout_s, body_timeout_s; /* a whole head or body must come within [10, 60] */
	double      idle_timeout_s;     /* a connection without traffic is closed after [75] */
	double      request_timeout_s;  /* generation ends with an error after [none] */
	const llmc_engine_options *engine; /* as given to llmc_engine_open: /info tells of them [all defaults] */
	bool        log_json;           /* request lines as JSON objects */
	llmc_log_fn log;                /* a line per request, LLMC_LOG_INFO; on the server's threads, one at a time */
	void       *log_user;
	const char *allow_host;         /* "a.example,b.example", or "*" for all: names that a request may be meant for where no
	                                 * key is set, beside addresses, localhost and host [none on loopback, else all] */
	const char *keys;               /* file of keys with limits, a line each: NAME KEY [requests=N] [tokens=N] [priority=N], beside api_key [none] */
	const char *otlp;               /* spans of requests go there, as http://127.0.0.1:4318: OpenTelemetry's OTLP over HTTP [nowhere] */
	bool        open_probes;        /* what routers and scrapers read needs no key: /metrics, /v1/models, /get_load, /model_info */
	int64_t     memory_bytes;       /* llmc_serve_open_models: that engines take together; those used longest ago are closed for others [no limit] */
	const char *lora_dir;           /* llmc_serve_open_models: clients may load PEFT adapters from below this folder, by /v1/load_lora_adapter [they may not] */
	double      sleep_after_s;      /* and those that nobody has asked for so long [never] */
	const char *batch_dir;          /* folder of /v1/files and /v1/batches, this server's alone; it and its batches survive a restart [they are not there] */
	int64_t     batch_dir_bytes;    /* of its files at most [LLMC_DEFAULT_BATCH_DIR_BYTES] */
} llmc_serve_options;

/* A model that the server opens and closes by itself. What it points to stays as it is until llmc_serve_close. */
typedef struct llmc_serve_model {
	size_t      size;
	const char *name;          /* what clients call it [its own] */
	const char *path;          /* as llmc_open */
	const llmc_options *options;         /* [all defaults] */
	const llmc_engine_options *engine_options; /* their limits by default those of the model [all defaults] */
	llmc_model *model;         /* open already, with an engine over it, both the server's from here on, also on failure; */
	llmc_engine *engine;       /* NULL: when it is first asked for */
	const char *parent;        /* of an adapter, the name of the model it changes [none] */
	const char *adapter;       /* folder of an adapter that runs in a slot of parent's engine (llmc_adapter_load); path and options are parent's [none] */
} llmc_serve_model;

/* E_INPUT: an option is out of range, or a host beyond loopback without api_key and allow_remote; E_IO: the address
 * cannot be listened on. */
LLMC_API llmc_status llmc_serve_open(llmc_model *m, llmc_engine *e, const llmc_serve_options *opt, llmc_server **out,
                                     llmc_error *err);
/* Several models behind one port, the first for requests that name none: each is compiled here, so that mistakes are told, and opened when it is asked for.
 * Also E_FULL: one does not fit into memory_bytes by itself; and what llmc_open returns. */
LLMC_API llmc_status llmc_serve_open_models(const llmc_serve_model *models, int32_t n, const llmc_serve_options *opt, llmc_server **out, llmc_error *err);
LLMC_API int         llmc_serve_port(const llmc_server *s);
LLMC_API const char *llmc_serve_url(const llmc_server *s); /* "http://127.0.0.1:8000"; lives as long as the server */
LLMC_API void        llmc_serve_drain(llmc_server *s);
LLMC_API void        llmc_serve_stop(llmc_server *s);
LLMC_API bool        llmc_serve_wait(llmc_server *s, int timeout_ms); /* true: nothing is in work any more */
/* The file of llmc_serve_options.keys again: who has no line any more gets 401 from here on, what runs goes on. An error leaves all as it was. Any thread. */
LLMC_API llmc_status llmc_serve_reload_keys(llmc_server *s, llmc_error *err);
/* An engine of it has failed for good: its device, or a rank, is lost. /health says 503, and its requests fail, until the server is closed. Any thread. */
LLMC_API bool        llmc_serve_failed(llmc_server *s);
LLMC_API void        llmc_serve_close(llmc_server *s); /* ends what is in work; NULL is fine */

/* ------------------------------------------------------------- compiling, checking, measuring ---- */

/* HF folder, GGUF or .flm -> text of a YAML description; unknown keys are reported through opt->log. */
LLMC_API llmc_status llmc_import(const char *src, const llmc_options *opt, char **yaml_out, llmc_error *err);
typedef struct llmc_compile_options {
	size_t      size;
	const char *target;     /* "cpu", "cuda", "ref"; NULL: cpu */
	const char *arch;       /* comma list: "v3,v4", "sm_80,sm_90a"; NULL: what is at hand */
	const char *const *set; /* as in llmc_options */
	const char *dump;       /* "spec", "graph", "fuse", "order", "plan": text to dump_out, nothing is written */
	char      **dump_out;
	bool        aot;        /* also build the kernels and ship them in the artifact */
	llmc_log_fn log;
	void       *log_user;
	bool        allow_unknown_keys; /* as in llmc_options */
} llmc_compile_options;
/* YAML file -> artifact folder. Nothing is written when it fails. */
LLMC_API llmc_status llmc_compile(const char *yaml_path, const char *out_dir, const llmc_compile_options *opt,
                                  llmc_error *err);
LLMC_API void        llmc_free(void *p); /* strings that llmc_import, llmc_compile and llmc_doctor handed over */

typedef struct llmc_verify_row {
	int32_t     layer;      /* -1: outside the layers */
	const char *value;      /* graph value, as "L3.attn" */
	const char *op;         /* the step that made it */
	double      max_err, range, tolerance; /* max |a - b|, max |b|, allowed max_err / range; experts: rows that chose others, rows */
	bool        ok;
	const float *want;      /* [rows, width], what the reference made, during the call; NULL: numbers of experts or of positions */
	int64_t     rows, width;
} llmc_verify_row;
typedef void (*llmc_verify_fn)(void *user, const llmc_verify_row *row);
/* Run the plan and the fp32 reference on the same tokens, compare every value that the plan's steps name. Where a row chose other experts, whose
 * scores were as near as rounding, it goes on with the reference's.
 * E_CHECK: *err names the first op beyond its tolerance. */
LLMC_API llmc_status llmc_verify(llmc_model *m, const int32_t *tok, size_t n_tok, llmc_verify_fn on_row, void *user,
                                 llmc_error *err);

/* ------------------------------------------------------------------------------------ quality ---- */

/* How far a copy of a model (quantised, say) is from the model itself, over a text cut into windows. */
typedef struct llmc_interval { double mean, low, high; } llmc_interval; /* 95 %, from the spread between windows; NaN bounds: one window */
typedef struct llmc_eval_options { /* 0 or NULL takes the default in brackets */
	size_t      size;
	const char *text;       /* [n_bytes] UTF-8 [the text that comes with the library] */
	size_t      n_bytes;
	int32_t     window;     /* tokens that are seen together, each window for itself [512] */
	int32_t     max_windows; /* [all that the text fills] */
	int32_t     chunk;      /* tokens of one step [128] */
	int32_t     n_threads;  /* [the model's] */
	bool      (*progress)(void *user, int32_t done, int32_t of, const llmc_interval *kl); /* after each window; false: stop, E_CANCELLED */
	void       *user;
} llmc_eval_options;
typedef struct llmc_eval_result {
	size_t  size;
	int32_t window, n_windows;
	int64_t n_tokens;              /* predicted: window - 1 of each window */
	llmc_interval perplexity;      /* of the model */
	/* beside the reference; 0 without one */
	llmc_interval reference_perplexity, log_ratio; /* ln(perplexity / the reference's): differences token by token */
	llmc_interval kl;              /* sum p ln(p / q) of a token in nats, p the reference's probabilities */
	llmc_interval agreement;       /* share of tokens with the same likeliest token */
	double  kl_median, kl_90, kl_99, kl_999, kl_max;
	float  *kl_sorted;             /* [n_tokens] rising; released by llmc_eval_release */
} llmc_eval_result;
/* reference NULL: perplexity alone. E_INPUT: vocabularies differ, no tokenizer, or a text shorter than a window. */
LLMC_API llmc_status llmc_eval(llmc_model *m, llmc_model *reference, const llmc_eval_options *opt, llmc_eval_result *res, llmc_error *err);
LLMC_API void        llmc_eval_release(llmc_eval_result *res);
/* A drawing of the KL of tokens as SVG text: which share of them lies above what; release with llmc_free. */
LLMC_API llmc_status llmc_eval_plot(const llmc_eval_result *res, const char *title, char **svg, llmc_error *err);

/* ------------------------------------------------------------------------------------ quantising ---- */

typedef struct llmc_quantize_options { /* 0 or NULL takes the default in brackets */
	size_t      size;
	const char *type;       /* of matrices. GGUF: "q4_k", "q8_0", ... [q4_k]; columns that are no whole block take the next type of 32. Folder to folder: "int4", "int8", "fp8", "mxfp4" [int4] */
	const char *head;       /* of the output's matrix, and of an embedding that is the output's too [q6_k] */
	const char *method;     /* "gptq": errors compensated by Hessians of a text; "awq": importance, with factors of columns folded into norms; "weighted": importance alone; "nearest": neither [gptq] */
	const char *imatrix;    /* importance from this file, llama.cpp's old form or GGUF [from the text] */
	const char *imatrix_out; /* and what the text gave to this one; ".dat": the old form */
	const char *text;       /* [n_bytes] to calibrate with [the one that comes with the library] */
	size_t      n_bytes;
	int32_t     window, n_windows; /* tokens seen together, windows of them [512, 64] */
	int64_t     hessian_bytes; /* of memory for Hessians; one layer needs (4 * inputs^2) a matrix, and is taken where it needs more [512 MiB]. The text passes each layer once whatever it is */
	float       damp;       /* share by which the diagonal of Hessians grows [0: 6 * columns / tokens, 0.03 to 1] */
	int32_t     n_threads;  /* [real cores in the quota] */
	/* doing: a tensor that is done and bytes of the input, or NULL and windows of the text; false: stop, E_CANCELLED */
	bool      (*progress)(void *user, const char *doing, int64_t done, int64_t of);
	void       *user;
	llmc_log_fn log;
	void       *log_user;
	int32_t     group;      /* int4: columns that share a scale, 32 or 128 [128 where all matrices have whole ones] */
	float       bits;       /* GGUF, instead of type: a weight, on average; types of matrices are chosen for the least cost of their errors, both measured. Every method reads the text then */
	/* with bits: what was chosen, once a matrix; error: share of the energy of its outputs that is lost without compensation; cost: nats of KL divergence that
	 * this is expected to cost alone; may be NULL */
	void      (*chose)(void *user, const char *tensor, const char *type, double bits, double error, double cost);
} llmc_quantize_options;
typedef struct llmc_quantize_result {
	size_t  size;
	int32_t n_tensors, n_quantized, n_resumed; /* resumed: found done by an earlier run */
	int64_t in_bytes, out_bytes;
	double  bits;           /* a weight of the quantised matrices */
	double  calibrate_s, seconds;
} llmc_quantize_result;
/* A GGUF file -> a GGUF file of blocks, an ordinary one; a folder of safetensors -> a folder in the layout of compressed-tensors, all weights in one file;
 * a folder -> a GGUF where the name of `out` ends in .gguf, with the folder's tokenizer, as llama.cpp's converter writes it: types "f32", "f16" and "bf16" at once, others by way of OUT.partial.16.gguf. The same bytes from run to run on one machine, for any number of threads. `out` must not exist; it
 * appears when it is complete. Stopped or failed, what is done stays as OUT.partial, and the next call with the same input and options goes on from there.
 * E_INPUT: options, `out` is there, or a folder's model that no GGUF describes; E_IO: the disk is full, say. */
LLMC_API llmc_status llmc_quantize(const char *in, const char *out, const llmc_quantize_options *opt, llmc_quantize_result *res, llmc_error *err);

/* A GPU of the table behind predictions; figures of its data sheet. */
typedef struct llmc_gpu {
	size_t      size;
	const char *name, *title, *arch, *source; /* "h100", "H100 SXM", "sm_90a"; where the figures are from */
	int32_t     sms;
	int64_t     memory;    /* bytes */
	double      bandwidth; /* bytes/s */
	double      peak;      /* flop/s of 16-bit matrix instructions with fp32 sums, dense */
	double      launch_s;  /* what one more kernel in a graph costs */
	const char *link, *link_source; /* to the other GPUs of its host, and where its figures are from */
	double      link_bandwidth, link_latency_s; /* bytes/s that one GPU sends; of a sum of few bytes */
} llmc_gpu;
LLMC_API bool        llmc_gpu_at(int i, llmc_gpu *out); /* the i-th of the table; false behind the last */
/* By its name here, or the one that its driver tells ("NVIDIA H100 80GB HBM3"). E_INPUT names all */
LLMC_API llmc_status llmc_gpu_find(const char *name, llmc_gpu *out, llmc_error *err);

typedef struct llmc_prediction {
	size_t      size;
	int64_t     bytes, flops;  /* of one step: weights, KV and activations read; operations */
	int32_t     launches;      /* kernels */
	double      seconds, tokens_per_s;
	const char *bound;         /* "bandwidth", "compute", "launches" or "links": the largest part */
	int32_t     sums;          /* ops between ranks of the step */
	int64_t     sum_bytes;     /* that they add and join, of one rank */
	double      link_s;        /* what they take */
} llmc_prediction;
/* One step by arithmetic alone: decode of `rows` sequences of `context` positions, or a prefill of the last `rows` of
 * `context` positions. Of a model over ranks: one of each, on a GPU of its own; the largest share counts. Of one over pipeline stages: bytes,
 * seconds and all else of the whole way; tokens_per_s with as many steps in flight as stages. The model must have been opened for device cuda (no_weights will do). */
LLMC_API llmc_status llmc_predict(const llmc_model *m, const char *gpu, bool prefill, int32_t rows, int32_t context,
                                  llmc_prediction *out, llmc_error *err);

/* Read bandwidth of this machine in bytes/s with n_threads, measured for about `seconds`. */
LLMC_API double llmc_bandwidth(int n_threads, double seconds);
/* The same for what the model runs on: a GPU's own memory where it runs on one. 0: could not be measured. */
LLMC_API double llmc_bandwidth_of(const llmc_model *m, int n_threads, double seconds);
/* What this machine has, as a JSON document; release with llmc_free. */
LLMC_API llmc_status llmc_doctor(char **json_out, llmc_error *err);

#ifdef __cplusplus
}
#endif
#endif

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
 *   tokenizer  immutable, any thread
 *   stream, sampler: one thread at a time
 *
 * Every call that can fail returns llmc_status and fills *err (which may be NULL). The library never prints,
 * exits or aborts, installs no signal handler, changes no locale and keeps no global state; callbacks run on
 * the thread that called. Option and result structs begin with their size: use LLMC_INIT(type).
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

/* Codes are pinned: programs may store them. The comment is what llmc_status_text() says. */
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
	const char *device;     /* "cpu", "ref"; NULL: cpu */
	const char *arch;       /* "v3", "v4", "generic"; NULL: the best that this processor runs */
	const char *weights;    /* checkpoint file or folder, when the model does not say (relative to the cwd) */
	const char *out_dir;    /* where to write the generated artifact; NULL: the cache */
	const char *const *set; /* "key=value" overrides of the description; NULL-terminated, or NULL */
	int         n_threads;  /* default of this model's sessions, also used for packing; 0: real cores in the quota */
	bool        random_weights;  /* no checkpoint: fill with seeded noise (bench) */
	bool        no_weights;      /* compile and query only: sessions cannot be opened */
	bool        cache_packed;    /* keep packed weights in the cache and map them next time */
	llmc_log_fn log;
	void       *log_user;
} llmc_options;

/* Open whatever the command line can: a YAML description, a generated folder, a Hugging Face folder or a GGUF
 * file; import and compile as needed. *out is released with llmc_close. */
LLMC_API llmc_status llmc_open(const char *path, const llmc_options *opt, llmc_model **out, llmc_error *err);
LLMC_API void        llmc_retain(llmc_model *m);
LLMC_API void        llmc_close(llmc_model *m); /* NULL is fine; sessions keep their model alive */

/* Limits of a session; 0 takes the default in brackets. KV memory and scratch are allocated once, for exactly these. */
typedef struct llmc_limits {
	size_t  size;
	int32_t context;   /* positions of one sequence [min(the model's, 4096)] */
	int32_t seqs;      /* sequences at once [1] */
	int32_t chunk;     /* tokens of one step [512] */
	int32_t n_out;     /* rows of logits of one step [seqs] */
	int64_t kv_tokens; /* positions of all sequences together [context * seqs] */
	int     n_threads; /* [the model's] */
} llmc_limits;

LLMC_API llmc_status llmc_session_open(llmc_model *m, const llmc_limits *lim, llmc_session **out,
                                       llmc_error *err);
LLMC_API void        llmc_session_close(llmc_session *s);

typedef struct llmc_params { /* LLMC_INIT gives greedy decoding of up to 256 new tokens */
	size_t   size;
	float    temperature;       /* 0: greedy */
	int32_t  top_k;             /* 0: off */
	float    top_p;             /* 0 or 1: off */
	float    min_p;             /* 0: off */
	float    repetition_penalty; /* 0 or 1: off; as transformers: over prompt and output */
	float    presence_penalty, frequency_penalty; /* 0: off; as OpenAI: over the output */
	uint64_t seed;
	int32_t  max_tokens;        /* new tokens; 0: 256; -1: as many as the context holds */
	bool     ignore_eos;
	const char *const *stop;    /* stop strings, NULL-terminated, or NULL; cut from the text */
} llmc_params;

typedef enum llmc_finish { LLMC_FINISH_LENGTH, LLMC_FINISH_EOS, LLMC_FINISH_STOP, LLMC_FINISH_CANCEL } llmc_finish;

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
	char    name[128], family[64], target[64]; /* target: "cpu-v3", "ref", ... */
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
} llmc_model_info;
LLMC_API void llmc_info(const llmc_model *m, llmc_model_info *info); /* info->size set by the caller */

/* Text of a key of the resolved description, as "attention.n_heads". E_INPUT: no such key. */
LLMC_API llmc_status llmc_get(const llmc_model *m, const char *key, char *buf, size_t cap, size_t *need,
                              llmc_error *err);

typedef struct llmc_memory {
	size_t  size;
	int64_t weights, kv, scratch, state; /* bytes */
	int64_t kv_per_token;                /* bytes of KV for one position */
} llmc_memory;
LLMC_API llmc_status llmc_memory_for(const llmc_model *m, const llmc_limits *lim, llmc_memory *out, llmc_error *err);
/* The largest number of sequences of lim->context positions that fit into `bytes` altogether; 0: not even one. */
LLMC_API llmc_status llmc_fit(const llmc_model *m, int64_t bytes, const llmc_limits *lim, int32_t *seqs,
                              llmc_error *err);
LLMC_API const char *llmc_plan_text(const llmc_model *m); /* plan.txt; lives as long as the model */
LLMC_API const char *llmc_plan_json(const llmc_model *m);
LLMC_API const char *llmc_model_yaml(const llmc_model *m); /* the resolved description */

/* ---------------------------------------------------------------------------------------- text ---- */

LLMC_API const llmc_tokenizer *llmc_model_tokenizer(const llmc_model *m); /* borrowed; NULL: none */
/* tokenizer.json, tokenizer.model, a folder that holds one, or a GGUF (a vocabulary without weights is enough) */
LLMC_API llmc_status llmc_tokenizer_open(const char *path, llmc_tokenizer **out, llmc_error *err);
LLMC_API void        llmc_tokenizer_close(llmc_tokenizer *t);
LLMC_API int32_t     llmc_tokenizer_size(const llmc_tokenizer *t);

enum {
	LLMC_ADD_SPECIAL   = 1, /* add the model's own prefix and suffix (bos, eos) */
	LLMC_PARSE_SPECIAL = 2, /* recognise special tokens in the text */
};
LLMC_API llmc_status llmc_tokenize(const llmc_tokenizer *t, const char *text, size_t n_bytes, int flags,
                                   int32_t *ids, size_t cap, size_t *need, llmc_error *err);
/* Text of ids as the tokenizer's decoder gives it; invalid UTF-8 becomes U+FFFD. skip_special leaves special tokens out. */
LLMC_API llmc_status llmc_detokenize(const llmc_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                                     char *buf, size_t cap, size_t *need, llmc_error *err);
/* The raw vocabulary entry; NULL when id is none. Lives as long as the tokenizer. */
LLMC_API const char *llmc_token_text(const llmc_tokenizer *t, int32_t id);

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

/* ------------------------------------------------------------------------- sessions and sampling ---- */

/* A sequence: its tokens' KV in pages of the session. E_FULL: all `seqs` of the limits are taken.
 * length_bound: prompt + new tokens at most (0: the context); fixes length-dependent rope tables. */
LLMC_API llmc_status llmc_seq_new(llmc_session *s, int32_t length_bound, llmc_seq *out, llmc_error *err);
LLMC_API llmc_status llmc_seq_fork(llmc_session *s, llmc_seq from, llmc_seq *out, llmc_error *err); /* shares pages */
LLMC_API llmc_status llmc_seq_trim(llmc_session *s, llmc_seq q, int32_t len, llmc_error *err);      /* forget from len on */
LLMC_API int32_t     llmc_seq_len(const llmc_session *s, llmc_seq q); /* -1: no such sequence */
LLMC_API void        llmc_seq_free(llmc_session *s, llmc_seq q);

typedef struct llmc_chunk {
	llmc_seq       seq;
	const int32_t *tok;   /* [n_tok], 0 <= id < vocab */
	int32_t        n_tok; /* >= 1 */
	int32_t        n_out; /* logits wanted of the last n_out rows, 0 .. n_tok */
} llmc_chunk;

/* Run chunks of different sequences through the model in one step.
 *   logits [sum of n_out, vocab] fp32, the caller's; chunks in order; NULL skips the copy
 * E_RANGE, E_FULL: nothing ran, no sequence changed. E_DEVICE: only llmc_session_close() is allowed now.
 * Blocks; allocates nothing. */
LLMC_API llmc_status llmc_forward(llmc_session *s, const llmc_chunk *chunk, size_t n, float *logits, llmc_error *err);

typedef struct llmc_stats {
	size_t  size;
	int64_t steps_run;      /* kernels and reference ops run by this session */
	int64_t barriers;       /* thread barriers passed */
	int64_t forwards, tokens;
	int64_t weight_bytes;   /* weight bytes that the last forward streamed, by the plan */
	int64_t kv_pages_used, kv_pages_total;
} llmc_stats;
LLMC_API void llmc_session_stats(const llmc_session *s, llmc_stats *out);

LLMC_API llmc_status llmc_sampler_open(int32_t vocab, const llmc_params *p, llmc_sampler **out, llmc_error *err);
LLMC_API void        llmc_sampler_close(llmc_sampler *s);
LLMC_API void        llmc_sampler_reset(llmc_sampler *s);
/* Tell of a token of the prompt (is_prompt) or of the output: penalties count them. */
LLMC_API void        llmc_sampler_accept(llmc_sampler *s, int32_t id, bool is_prompt);
/* Pick from logits [vocab] (left as they are); logprob (may be NULL) is that of the unchanged distribution.
 * NaN logits: E_CHECK. */
LLMC_API llmc_status llmc_sampler_pick(llmc_sampler *s, const float *logits, int32_t *id, float *logprob,
                                       llmc_error *err);

/* ------------------------------------------------------------- compiling, checking, measuring ---- */

/* HF folder or GGUF -> text of a YAML description; unknown keys are reported through opt->log. */
LLMC_API llmc_status llmc_import(const char *src, const llmc_options *opt, char **yaml_out, llmc_error *err);
typedef struct llmc_compile_options {
	size_t      size;
	const char *target;     /* "cpu", "ref" */
	const char *arch;       /* comma list: "v3,v4"; NULL: this processor */
	const char *const *set; /* as in llmc_options */
	const char *dump;       /* "spec", "graph", "fuse", "order", "plan": text to dump_out, nothing is written */
	char      **dump_out;
	bool        aot;        /* also build the kernels and ship them in the artifact */
	llmc_log_fn log;
	void       *log_user;
} llmc_compile_options;
/* YAML file -> artifact folder. Nothing is written when it fails. */
LLMC_API llmc_status llmc_compile(const char *yaml_path, const char *out_dir, const llmc_compile_options *opt,
                                  llmc_error *err);
LLMC_API void        llmc_free(void *p); /* strings that llmc_import and llmc_compile handed over */

typedef struct llmc_verify_row {
	int32_t     layer;      /* -1: outside the layers */
	const char *value;      /* graph value, as "L3.attn" */
	const char *op;         /* the step that made it */
	double      max_err, range, tolerance; /* max |a - b|, max |b|, allowed max_err / range */
	bool        ok;
} llmc_verify_row;
typedef void (*llmc_verify_fn)(void *user, const llmc_verify_row *row);
/* Run the plan and the fp32 reference on the same tokens, compare every value that the plan's steps name.
 * E_CHECK: *err names the first op beyond its tolerance. */
LLMC_API llmc_status llmc_verify(llmc_model *m, const int32_t *tok, size_t n_tok, llmc_verify_fn on_row, void *user,
                                 llmc_error *err);

/* Read bandwidth of this machine in bytes/s with n_threads, measured for about `seconds`. */
LLMC_API double llmc_bandwidth(int n_threads, double seconds);
/* What this machine has, as a JSON document; release with llmc_free. */
LLMC_API llmc_status llmc_doctor(char **json_out, llmc_error *err);

#ifdef __cplusplus
}
#endif
#endif

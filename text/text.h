/* Text: tokenization, detokenization and chat templates.
 *
 * A tokenizer is a pipeline with these stages, whatever file it was read from:
 *   added tokens found in the raw text -> normalizers -> added tokens found in the normalized text
 *   -> pre-tokenizers -> model (BPE by merges, BPE by scores, unigram, WordPiece, WordLevel) ->
 *   prefix and suffix ids
 *
 * Detokenization is a chain of decoders that runs incrementally. Full detokenization feeds all
 * tokens to that chain at once.
 *
 * An open tokenizer is immutable and has its own arena. Every call uses a separate arena for
 * scratch. All input is untrusted: files, text, ids, templates. */
#ifndef LLMC_TEXT_H
#define LLMC_TEXT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <jansson.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "llmc.h"
#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "formats/gguf.h"

#define TEXT_MAX_FILE ((size_t)256 << 20) /* tokenizer.json and tokenizer.model */
#define TEXT_MAX_TOKEN ((size_t)1 << 16)  /* bytes of one vocabulary entry */
#define TEXT_MAX_IDS (1 << 24)
#define TEXT_MAX_EOS 16
/* pre-tokenizers, normalizers and decoders per tokenizer; limited because they call each other
 * recursively */
#define TEXT_MAX_STEPS 64

typedef struct ByteSpan {
	const char *s;
	size_t n;
} ByteSpan;

/* ---- characters (unicode.c) ---- */

/* returns s if valid, else a copy with U+FFFD */
ByteSpan utf8_sanitize(Arena *a, const char *s, size_t n);
bool cp_is_space(uint32_t cp);   /* White_Space */
bool cp_is_word(uint32_t cp);    /* \w */
bool cp_is_punct(uint32_t cp);   /* ASCII punctuation and category P */
bool cp_is_numeric(uint32_t cp); /* category N */

/* ---- maps (hash_map.c) ---- */

typedef struct StrMap { /* string -> number >= 0; keys are not copied */
	ByteSpan *key;
	int32_t *value;
	size_t cap, n;
} StrMap;
void strmap_put(StrMap *m, Arena *a, ByteSpan key, int32_t value); /* replaces */
int32_t strmap_get(const StrMap *m, const char *s, size_t n);      /* -1: there is no such key */

typedef struct PairMap { /* (a, b) -> rank and merged id */
	uint64_t *key;   /* key + 1; 0: free */
	int32_t *rank, *id;
	size_t cap, n;
} PairMap;
/* the last value wins */
void pairmap_put(PairMap *m, Arena *a, int32_t left, int32_t right, int32_t rank, int32_t id);
bool pairmap_get(const PairMap *m, int32_t left, int32_t right, int32_t *rank, int32_t *id);

typedef struct Trie {   /* byte trie; node 0 is the root */
	uint64_t *edge; /* (node << 8 | byte) + 1 -> child; 0: free */
	uint32_t *child;
	int32_t *value; /* [node]; -1: no key ends here */
	size_t cap, n_edges, n_nodes, cap_nodes;
} Trie;
void trie_init(Trie *t, Arena *a);
void trie_put(Trie *t, Arena *a, ByteSpan key, int32_t value);
/* 0: there is no such child */
uint32_t trie_step(const Trie *t, uint32_t node, unsigned char byte);

/* ---- the tokenizer ---- */

/* Token types of sentencepiece and of tokenizer.ggml.token_type. */
enum { TT_NORMAL = 1, TT_UNKNOWN = 2, TT_CONTROL = 3, TT_USER = 4, TT_UNUSED = 5, TT_BYTE = 6 };

typedef struct Token {
	const char *s; /* NUL-terminated; NULL: the id is unused */
	uint32_t n;
	uint8_t type;
	bool special; /* omitted with skip_special */
	double score; /* sentencepiece and GGUF files store it as float */
} Token;

typedef struct AddedToken {
	int32_t id;
	ByteSpan text;
	bool special, lstrip, rstrip, normalized, single_word;
} AddedToken;

typedef enum NormalizerKind {
	NORMALIZE_NFC,
	NORMALIZE_NFD,
	NORMALIZE_NFKC,
	NORMALIZE_NFKD,
	NORMALIZE_LOWER,
	NORMALIZE_STRIP,
	NORMALIZE_STRIP_ACCENTS,
	NORMALIZE_PREPEND,
	NORMALIZE_REPLACE,
	NORMALIZE_PRECOMPILED,
	NORMALIZE_NMT,
	NORMALIZE_BYTELEVEL,
	NORMALIZE_SPM,
	NORMALIZE_ICE,
	NORMALIZE_BERT,
} NormalizerKind;

typedef struct Charsmap {
	const uint32_t *unit; /* double array of darts-clone */
	size_t n_units;
	ByteSpan text; /* replacements, each ended by a NUL */
} Charsmap;

typedef struct Normalizer {
	NormalizerKind kind;
	bool left, right;    /* lstrip and rstrip: also match adjacent spaces */
	bool clean, spread;  /* NORMALIZE_BERT. clean: remove control characters; spread: put spaces
	                        around ideographs */
	bool accents, lower; /* NORMALIZE_BERT: strip accents; lower case */
	ByteSpan content;    /* prepend, replace */
	pcre2_code *regex;
	size_t n_literal; /* number of bytes that the regex matches; 0: not constant */
	Charsmap map;
	/* NORMALIZE_SPM: steps of sentencepiece */
	bool dummy_prefix, remove_extra, escape, suffix;
	const Trie *user; /* user-defined tokens, which pass unchanged; NULL: none */
} Normalizer;

typedef enum SplitMode {
	SPLIT_REMOVED,
	SPLIT_ISOLATED,
	SPLIT_PREVIOUS,
	SPLIT_NEXT,
	SPLIT_CONTIGUOUS
} SplitMode;
typedef enum PreKind { PRE_SPLIT, PRE_BYTES, PRE_PREFIX_SPACE, PRE_METASPACE, PRE_CLASS } PreKind;
typedef enum CharClass { CLASS_DIGIT, CLASS_PUNCT, CLASS_SPACE, CLASS_WORD, CLASS_CHAR } CharClass;
typedef enum Prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } Prepend;

typedef struct PreTokenizer {
	PreKind kind;
	pcre2_code *regex;
	SplitMode mode;
	bool invert;
	CharClass cls;
	uint32_t cp; /* CLASS_CHAR */
	ByteSpan replacement;
	Prepend prepend;
	bool split; /* metaspace */
} PreTokenizer;

typedef enum DecKind {
	DEC_BYTELEVEL,
	DEC_METASPACE,
	DEC_REPLACE,
	DEC_BYTE_FALLBACK,
	DEC_FUSE,
	DEC_STRIP,
	DEC_SUFFIX,
	DEC_SPM,
	DEC_JOIN_SPACES,
	DEC_WORDPIECE,
} DecKind;

typedef struct Dec {
	DecKind kind;
	pcre2_code *regex; /* replace by expression */
	ByteSpan pattern;  /* replace by text, suffix */
	ByteSpan content;
	uint32_t cp; /* metaspace, strip */
	Prepend prepend;
	int start, stop;
	/* DEC_SPM: whether the first leading space is removed, or all of them */
	bool strip_first, strip_all;
	bool clean; /* DEC_WORDPIECE: no spaces before punctuation */
	ByteSpan unk_surface;
} Dec;

typedef enum ModelKind {
	MODEL_BPE,
	MODEL_SCORES,
	MODEL_UNIGRAM,
	MODEL_WORDPIECE,
	MODEL_WORDLEVEL
} ModelKind;

typedef struct PendingText { /* data of another module, which is created when first needed */
	pthread_mutex_t lock;
	void *p;
	void (*drop)(void *p); /* called when the tokenizer is closed */
} PendingText;

typedef struct CallFormat CallFormat; /* text/tool_calls.h */

struct llmc_tokenizer {
	Arena arena;
	PendingText *kept;
	ModelKind model;
	Token *tok;
	int32_t n_ids;
	StrMap vocab;         /* tokens that the model can produce from text */
	PairMap merges;       /* MODEL_BPE */
	Trie pieces;          /* MODEL_UNIGRAM; MODEL_WORDPIECE: tokens that begin a word */
	Trie inner;           /* MODEL_WORDPIECE: tokens inside a word, without word_prefix */
	int32_t longest_word; /* MODEL_WORDPIECE: a word with more characters becomes the unknown
	                         token */
	Trie user;            /* MODEL_SCORES: tokens that match as a whole and never merge */
	bool spm; /* use the rules of sentencepiece where they differ from tokenizer.json */
	bool byte_fallback, fuse_unk, ignore_merges;
	int32_t byte_id[256]; /* ids of the tokens <0xNN>; -1: none */
	/* unknown token of the model; -1: there is none, and unknown text is dropped */
	int32_t unk_id;
	double min_score, max_score;
	ByteSpan word_prefix, word_suffix;
	size_t longest; /* largest number of bytes that become one id; 0: unlimited */
	bool strips;    /* `longest` does not count spaces, because any number of them may vanish */
	bool solid[256]; /* bytes that become at least part of an id; `longest` does not count other
	                    bytes */

	AddedToken *added;
	size_t n_added, cap_added;
	Trie added_raw, added_norm; /* values are indices in `added` */
	Trie special;               /* special tokens, as written and as normalized */

	Normalizer *norm;
	size_t n_norm, cap_norm;
	PreTokenizer *pre;
	size_t n_pre, cap_pre;
	Dec *dec;
	size_t n_dec, cap_dec;
	int32_t *prefix, *suffix; /* ids added with LLMC_ADD_SPECIAL */
	size_t n_prefix, n_suffix;
	/* two sequences get ids before the first, between both, and after the second; false: each
	 * sequence is encoded alone */
	bool has_pair;
	int32_t *pair[3];
	size_t n_pair[3];

	int32_t bos, unk, pad; /* -1: none */
	llmc_fim fim;          /* tokens that the keys of the file name; prefix -1: none */
	int32_t eos[TEXT_MAX_EOS];
	int32_t n_eos;
	const char *chat, *chat_tools; /* templates, or NULL */
	const char *response;          /* response_template of tokenizer_config.json, or NULL */
	/* set by the first llmc_calls_open, in any thread */
	_Atomic(CallFormat *) call_format;

	pcre2_code **regex; /* all compiled regexes, for closing */
	size_t n_regex, cap_regex;
	pcre2_match_context *limits;
	Strbuf scratch; /* used by the loader */
};

/* ---- interface to other modules ---- */

llmc_status text_open_gguf(const Gguf *g, const char *name, llmc_tokenizer **out, llmc_error *err);
/* ice_text.model of icetk. shift: number of ids before the first token (num_image_tokens) */
llmc_status text_open_ice(const char *data, size_t n, int32_t shift, const char *name,
                          llmc_tokenizer **out, llmc_error *err);
/* Opens a folder with vocab.json and merges.txt. */
llmc_status text_open_merges(const char *dir, llmc_tokenizer **out, llmc_error *err);
/* Opens a tokenizer.model with base64 bytes and ranks. n_ids: number of ids of the model, 0:
 * unknown. text_is_ranks checks the first line */
llmc_status text_open_ranks(const char *data, size_t n, int32_t n_ids, const char *name,
                            llmc_tokenizer **out, llmc_error *err);
bool text_has_ranks(const char *data, size_t n);
llmc_status text_open_flm(const uint8_t *data, size_t n, const char *name, llmc_tokenizer **out,
                          llmc_error *err);
/* Writes the keys tokenizer.* of a GGUF file with n_ids ids, for the tokenizer of a folder.
 * E_INPUT: GGUF cannot express the tokenizer, or its GGUF form would tokenize differently. */
struct GgufHead;
llmc_status text_export_gguf(const char *folder, int32_t n_ids, struct GgufHead *head,
                             llmc_error *err);
/* Opens a tokenizer from memory, for fuzzers and tests. `name` is used in errors. */
llmc_status text_open_json(const char *data, size_t n, const char *name, llmc_tokenizer **out,
                           llmc_error *err);
llmc_status text_open_spm(const char *data, size_t n, const char *name, llmc_tokenizer **out,
                          llmc_error *err);

/* Returns the end tokens [*n]. */
const int32_t *text_eos(const llmc_tokenizer *t, int32_t *n);
int32_t text_bos(const llmc_tokenizer *t); /* -1: none */
bool text_is_eos(const llmc_tokenizer *t, int32_t id);
/* id of a token string; -1: none */
int32_t text_find(const llmc_tokenizer *t, const char *s, size_t n);
/* Renders a template. `name` is used in errors. *out is released with free(). */
llmc_status text_render(const char *source, size_t n, const char *name, const char *vars_json,
                        char **out, size_t *n_out, llmc_error *err);

/* out NULL: only the syntax is checked. */
llmc_status text_render_vars(const char *source, size_t n, const char *name, const json_t *vars,
                             Strbuf *out, llmc_error *err);

/* ---- building (tokenizer.c, vocab_*.c) ---- */

llmc_tokenizer *tokenizer_new(llmc_error *err); /* NULL: out of memory */
/* id < n_ids; the text is copied */
void tokenizer_set(llmc_tokenizer *t, int32_t id, ByteSpan text);
ByteSpan span_copy(Arena *a, ByteSpan s);
ByteSpan text_base64(Arena *a, ByteSpan in); /* decodes base64; empty: not base64 */
Normalizer *normalizer_add(llmc_tokenizer *t, NormalizerKind kind);
PreTokenizer *pre_add(llmc_tokenizer *t, PreKind kind);
Dec *dec_add(llmc_tokenizer *t, DecKind kind);
/* Adds a pre-tokenizer that splits at characters of a class. */
void pre_class(llmc_tokenizer *t, CharClass cls, SplitMode mode);
/* Appends an id to a list [*n] in the arena of t. */
void ids_push(llmc_tokenizer *t, int32_t **v, size_t *n, int32_t id);
llmc_status regex_compile(llmc_tokenizer *t, const char *what, ByteSpan pattern, pcre2_code **out,
                          llmc_error *err);
llmc_status charsmap_read(Arena *a, ByteSpan blob, Charsmap *out, llmc_error *err);
/* Adds the pre-tokenizers of an entry of configs/pretokenizers.yaml. */
llmc_status pretokenizer_load(llmc_tokenizer *t, ByteSpan name, bool *add_bos, llmc_error *err);
/* Returns whether configs/pretokenizers.yaml lists the name among tokenizers that merge
 * characters. */
bool pretokenizer_characters(ByteSpan name);
/* Finds the first entry with these regexes (each NUL-terminated, n bytes in total) and this value
 * of ignore_merges, and copies its name. Returns false if there is none. */
bool pretokenizer_name(const char *exprs, size_t n, bool ignore_merges, char name[64]);
/* Tokens after the ranks of a tokenizer.model: the entry of configs/pretokenizers.yaml for this
 * number of ranks, or for a model of n_ids ids (0: unknown). named [n_named] are pointers into the
 * entry, each NUL-terminated. */
typedef struct RankTokens {
	char pretokenizer[64], bos[64], others[64];
	int32_t n, n_named, others_from;
} RankTokens;
bool pretokenizer_ranks(int32_t ranks, int32_t n_ids, RankTokens *out, Strbuf *named);
/* Opens the list end_of_generation of configs/pretokenizers.yaml in t->scratch; end_list_has
 * searches it. */
bool end_list_open(llmc_tokenizer *t);
bool ends_generation(const llmc_tokenizer *t, ByteSpan token);
void eos_add(llmc_tokenizer *t, int32_t id);
llmc_status added_add(llmc_tokenizer *t, AddedToken a, llmc_error *err);
/* Implements llmc_tokenizer_open. *absent: the folder or file has no tokenizer, so the error is not
 * a fault */
llmc_status tokenizer_open(const char *path, llmc_tokenizer **out, bool *absent, llmc_error *err);
/* Replace the chat template. `what`: the name of a template in configs/chat_templates/, a file, or
 * a template's own source; NULL: keep it. E_INPUT: `what` is none of these, its syntax is wrong, or
 * t is NULL. */
llmc_status tokenizer_set_template(llmc_tokenizer *t, const char *what, llmc_error *err);
/* Last step of every loader: finds byte ids, builds the matcher of added tokens, and sets
 * limits. */
llmc_status tokenizer_finish(llmc_tokenizer *t, llmc_error *err);
/* vocab_pipeline.c: loads the normalizer, pre-tokenizer and post-processor of tokenizer.json */
llmc_status json_load_pipeline(llmc_tokenizer *t, json_t *root, llmc_error *err);

/* ---- icetk's additions to sentencepiece (icetk.c) ---- */

enum { ICE_BLANKS = 80 }; /* longest run of spaces for which there is a token */
/* Adds the tokens for runs of spaces of ice_text.model. Must be called after the vocabulary is
 * complete and before other normalizers are added */
llmc_status ice_blanks(llmc_tokenizer *t, llmc_error *err);
/* Adds the tokens of later versions. Must be called before tokenizer_finish */
llmc_status ice_tokens(llmc_tokenizer *t, int32_t first, llmc_error *err);

/* ---- encoding ---- */

typedef struct TokenPiece {
	ByteSpan text;
	int32_t id; /* id of an added token; -1: the segment is text */
	bool first; /* whether the segment begins where the input begins */
} TokenPiece;

typedef struct TokenPieces {
	TokenPiece *v;
	size_t n, cap;
} TokenPieces;

typedef struct PreToken {
	char *s;
	size_t cap;
} PreToken;

typedef struct Enc { /* one call of llmc_tokenize */
	const llmc_tokenizer *t;
	Arena arena; /* the caller sets its oom jump */
	pcre2_match_data *match;
	int flags;
	int32_t *ids;
	size_t n_ids, cap_ids;
	PreToken *word;   /* [n_pre] of pretok.c, reused across segments */
	void *sym, *heap; /* buffers of bpe.c, reused across words */
	size_t cap_sym, cap_heap;
	size_t max_normal; /* number of bytes that normalizers may still write in this call */
	size_t max_word;   /* largest number of bytes that a pre-tokenizer may make of a segment */
	size_t work;       /* work since the time limit was last checked, in bytes examined */
	llmc_error *err;
} Enc;

enum { ENC_LATE = 2 }; /* value of the jump to arena.oom if the time limit has passed */
/* Count work. Leaves the call by a jump when the time limit of the thread's request has passed. */
void enc_work(Enc *e, size_t bytes);
/* Return the value of the longest key with which s [n] begins, and its length; -1 and 0 if there is
 * none. */
int32_t enc_longest(Enc *e, const Trie *trie, const char *s, size_t n, size_t *len);
/* Run `body` with an arena and a match object. If memory or time runs out, the call returns an
 * error that begins with `name`. */
typedef llmc_status enc_body(Enc *e, void *arg);
llmc_status enc_run(Enc *e, const char *name, enc_body *body, void *arg);

void enc_push(Enc *e, int32_t id);
void piece_push(Enc *e, TokenPieces *p, ByteSpan text, int32_t id, bool first);
/* Iterates over matches as find_iter of the oniguruma binding does. rc < 0: a limit was reached */
typedef struct RegexIter {
	size_t at, last_end;
	bool has_last;
} RegexIter;
/* returns 1: found, 0: none, < 0: error of PCRE2 */
int regex_next(pcre2_code *re, pcre2_match_data *md, pcre2_match_context *mc, ByteSpan text,
               RegexIter *it, size_t *start, size_t *end);
llmc_status regex_failed(llmc_error *err, int rc);
llmc_status normalize(Enc *e, ByteSpan in, ByteSpan *out);
ByteSpan ice_normalize(Enc *e, ByteSpan in);
llmc_status normalize_spm(Enc *e, const Normalizer *n, ByteSpan in, ByteSpan *out);
/* Stops after more than e->max_normal bytes of output. */
ByteSpan charsmap_apply(Enc *e, const Charsmap *m, ByteSpan in);
/* Finds the longest key of the map with which s begins, and returns its length (0: there is none)
 * and replacement. shortest: finds the shortest key instead */
size_t charsmap_find(const Charsmap *m, const char *s, size_t n, bool shortest, ByteSpan *out);
/* Passes a segment through the pre-tokenizers from index k on, and the resulting words through the
 * model. */
llmc_status encode_words(Enc *e, size_t k, TokenPiece in);
llmc_status added_split(Enc *e, const Trie *trie, TokenPiece in, TokenPieces *out);
llmc_status model_encode(Enc *e, ByteSpan text);
llmc_status bpe_encode(Enc *e, ByteSpan text);
llmc_status scores_encode(Enc *e, ByteSpan text);
llmc_status unigram_encode(Enc *e, ByteSpan text);
llmc_status wordpiece_encode(Enc *e, ByteSpan word); /* wordpiece.c */
llmc_status wordlevel_encode(Enc *e, ByteSpan word);
/* Adds a token to the tries of MODEL_WORDPIECE. word_prefix must have been set. */
void wordpiece_add(llmc_tokenizer *t, ByteSpan token, int32_t id);
/* Collects the tokens, the range of their scores and the unknown token from the token types, as
 * sentencepiece does. */
void unigram_pieces(llmc_tokenizer *t);
llmc_status encode(Enc *e, ByteSpan text);

/* ---- breaks in special tokens (break_special.c) ---- */

const char *break_find(ByteSpan text); /* returns the first LLMC_BREAK; NULL: none */
size_t break_count(ByteSpan text);
ByteSpan break_next(ByteSpan *rest); /* returns the part before the first break and removes it */
ByteSpan break_remove(Arena *a, ByteSpan text);
/* Returns whether a token is special and is not the unknown token. */
bool token_is_mark(const llmc_tokenizer *t, int32_t id);
uint32_t bytelevel_char(unsigned char byte);
int bytelevel_byte(uint32_t cp); /* -1: none */

#endif

/* Text: ids from text, text from ids, chat prompts from messages.
 *
 * A tokenizer is a pipeline with one form, whatever file it was read from:
 *   added tokens found in the raw text -> normalizers -> added tokens found in the normalized text
 *   -> pre-tokenizers -> model (BPE by merges, BPE by scores, unigram) -> prefix and suffix ids
 * and back: decoders, run incrementally; the whole detokenization is the incremental one, fed at
 * once.
 *
 * The tokenizer is immutable once open: it lives in its own arena, and every call takes its scratch
 * from an arena of its own. All input is untrusted: files, text, ids, templates. */
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
#define TEXT_MAX_PRE 64 /* pre-tokenizers: each is a call within the other's */

typedef struct ByteSpan {
	const char *s;
	size_t n;
} ByteSpan;

/* ---- characters (unicode.c) ---- */

ByteSpan utf8_sanitize(Arena *a, const char *s,
                       size_t n); /* the same bytes when valid, else a copy with U+FFFD */
bool cp_is_space(uint32_t cp);    /* White_Space */
bool cp_is_word(uint32_t cp);     /* \w */
bool cp_is_punct(uint32_t cp);    /* ASCII punctuation and category P */
bool cp_is_numeric(uint32_t cp);  /* category N */

/* ---- maps (hash_map.c) ---- */

typedef struct StrMap { /* text -> number >= 0; keys are not copied */
	ByteSpan *key;
	int32_t *value;
	size_t cap, n;
} StrMap;
void strmap_put(StrMap *m, Arena *a, ByteSpan key, int32_t value); /* replaces */
int32_t strmap_get(const StrMap *m, const char *s, size_t n);      /* -1: none */

typedef struct PairMap { /* (a, b) -> rank and merged id */
	uint64_t *key;   /* 0 is free: keys are stored + 1 */
	int32_t *rank, *id;
	size_t cap, n;
} PairMap;
void pairmap_put(PairMap *m, Arena *a, int32_t left, int32_t right, int32_t rank,
                 int32_t id); /* last wins */
bool pairmap_get(const PairMap *m, int32_t left, int32_t right, int32_t *rank, int32_t *id);

typedef struct Trie {   /* byte trie; node 0 is the root */
	uint64_t *edge; /* (node << 8 | byte) + 1 -> child; 0 is free */
	uint32_t *child;
	int32_t *value; /* of node; -1: no key ends here */
	size_t cap, n_edges, n_nodes, cap_nodes;
} Trie;
void trie_init(Trie *t, Arena *a);
void trie_put(Trie *t, Arena *a, ByteSpan key, int32_t value);
uint32_t trie_step(const Trie *t, uint32_t node, unsigned char byte); /* 0: no such child */

/* ---- the tokenizer ---- */

/* Values of the piece types of sentencepiece and of tokenizer.ggml.token_type. */
enum { TT_NORMAL = 1, TT_UNKNOWN = 2, TT_CONTROL = 3, TT_USER = 4, TT_UNUSED = 5, TT_BYTE = 6 };

typedef struct Token {
	const char *s; /* NUL-terminated; NULL: no such id */
	uint32_t n;
	uint8_t type;
	bool special; /* left out by skip_special */
	double score; /* files of sentencepiece and GGUF hold floats */
} Token;

typedef struct Added {
	int32_t id;
	ByteSpan text;
	bool special, lstrip, rstrip, normalized, single_word;
} Added;

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
} NormalizerKind;

typedef struct Charsmap {
	const uint32_t *unit; /* double array of darts-clone */
	size_t n_units;
	ByteSpan text; /* replacements, each ended by a NUL */
} Charsmap;

typedef struct Normalizer {
	NormalizerKind kind;
	bool left, right; /* strip */
	ByteSpan content; /* prepend, replace */
	pcre2_code *regex;
	size_t n_literal; /* bytes that the regex matches; 0: any number */
	Charsmap map;
	/* NORMALIZE_SPM: what sentencepiece does */
	bool dummy_prefix, remove_extra, escape, suffix;
	const Trie *user; /* user-defined pieces pass unchanged; NULL: none */
} Normalizer;

typedef enum SplitMode {
	SPLIT_REMOVED,
	SPLIT_ISOLATED,
	SPLIT_PREVIOUS,
	SPLIT_NEXT,
	SPLIT_CONTIGUOUS
} SplitMode;
typedef enum PreKind { PRE_SPLIT, PRE_BYTES, PRE_PREFIX_SPACE, PRE_METASPACE, PRE_CLASS } PreKind;
typedef enum CharClass { CLASS_DIGIT, CLASS_PUNCT, CLASS_SPACE, CLASS_CHAR } CharClass;
typedef enum Prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } Prepend;

typedef struct Pre {
	PreKind kind;
	pcre2_code *regex;
	SplitMode mode;
	bool invert;
	CharClass cls;
	uint32_t cp; /* CLASS_CHAR */
	ByteSpan replacement;
	Prepend prepend;
	bool split; /* metaspace */
} Pre;

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
} DecKind;

typedef struct Dec {
	DecKind kind;
	pcre2_code *regex; /* replace by expression */
	ByteSpan pattern;  /* replace by text, suffix */
	ByteSpan content;
	uint32_t cp; /* metaspace, strip */
	Prepend prepend;
	int start, stop;
	bool strip_first, strip_all; /* DEC_SPM: what becomes of the leading space */
	ByteSpan unk_surface;
} Dec;

typedef enum ModelKind { MODEL_BPE, MODEL_SCORES, MODEL_UNIGRAM } ModelKind;

typedef struct PendingText { /* what a room above keeps with a tokenizer, made when first wanted */
	pthread_mutex_t lock;
	void *p;
	void (*drop)(void *p); /* when the tokenizer goes */
} PendingText;

struct llmc_tokenizer {
	Arena arena;
	PendingText *kept;
	ModelKind model;
	Token *tok;
	int32_t n_ids;
	StrMap vocab;   /* what the model finds in text */
	PairMap merges; /* MODEL_BPE */
	Trie pieces;    /* MODEL_UNIGRAM */
	Trie user;      /* MODEL_SCORES: pieces taken whole, never merged */
	bool has_user;
	bool spm; /* rules of sentencepiece where those of tokenizer.json differ */
	bool byte_fallback, fuse_unk, ignore_merges;
	int32_t byte_id[256]; /* of <0xNN>; -1: none */
	int32_t unk_id;       /* of the model; -1: none, unknown text is dropped */
	double min_score, max_score;
	ByteSpan word_prefix, word_suffix;
	size_t longest;  /* no more bytes of a text become one id; 0: there is no bound */
	bool strips;     /* but for spaces, of which any number may vanish */
	bool solid[256]; /* and for bytes that are not of these */

	Added *added;
	size_t n_added, cap_added;
	Trie added_raw, added_norm; /* values are indices into added */

	Normalizer *norm;
	size_t n_norm, cap_norm;
	Pre *pre;
	size_t n_pre, cap_pre;
	Dec *dec;
	size_t n_dec, cap_dec;
	int32_t *prefix, *suffix; /* added with LLMC_ADD_SPECIAL */
	size_t n_prefix, n_suffix;
	bool has_pair; /* how two texts become one input: in front of the first, between them,
	                  behind the second; else each as one alone */
	int32_t *pair[3];
	size_t n_pair[3];

	int32_t bos, unk, pad; /* -1: none */
	int32_t eos[TEXT_MAX_EOS];
	int32_t n_eos;
	const char *chat, *chat_tools; /* templates, or NULL */
	const char *response;          /* response_template of tokenizer_config.json, or NULL */

	pcre2_code **regex; /* all that were compiled, for close */
	size_t n_regex, cap_regex;
	pcre2_match_context *limits;
	Strbuf scratch; /* of the loader */
};

/* ---- for other rooms ---- */

llmc_status text_open_gguf(const Gguf *g, const char *name, llmc_tokenizer **out, llmc_error *err);
/* icetk's ice_text.model; shift: numbers in front of the first piece (num_image_tokens) */
llmc_status text_open_ice(const char *data, size_t n, int32_t shift, const char *name,
                          llmc_tokenizer **out, llmc_error *err);
/* A folder with vocab.json and merges.txt */
llmc_status text_open_merges(const char *dir, llmc_tokenizer **out, llmc_error *err);
/* A tokenizer.model of bytes and ranks; n_ids: as the model has, 0: not known. And does the text
 * begin with a line of such a file? */
llmc_status text_open_ranks(const char *data, size_t n, int32_t n_ids, const char *name,
                            llmc_tokenizer **out, llmc_error *err);
bool text_has_ranks(const char *data, size_t n);
llmc_status text_open_flm(const uint8_t *data, size_t n, const char *name, llmc_tokenizer **out,
                          llmc_error *err);
/* The keys tokenizer.* of a GGUF for a folder's tokenizer, with n_ids ids. E_INPUT: GGUF files have
 * no form for it, or what they have would cut text in another way */
struct GgufHead;
llmc_status text_export_gguf(const char *folder, int32_t n_ids, struct GgufHead *head,
                             llmc_error *err);
/* From memory: what fuzzers and tests use. `name` is for errors. */
llmc_status text_open_json(const char *data, size_t n, const char *name, llmc_tokenizer **out,
                           llmc_error *err);
llmc_status text_open_spm(const char *data, size_t n, const char *name, llmc_tokenizer **out,
                          llmc_error *err);

/* End tokens [*n]. */
const int32_t *text_eos(const llmc_tokenizer *t, int32_t *n);
int32_t text_bos(const llmc_tokenizer *t); /* -1: none */
bool text_is_eos(const llmc_tokenizer *t, int32_t id);
int32_t text_find(const llmc_tokenizer *t, const char *s,
                  size_t n); /* id of a token's text; -1: none */
/* Render a template given as text; `name` is for errors. */
llmc_status text_render(const char *source, size_t n, const char *name, const char *vars_json,
                        char **out, size_t *n_out,
                        llmc_error *err); /* *out is released with free() */

llmc_status text_render_vars(const char *source, size_t n, const char *name, const json_t *vars,
                             Strbuf *out, llmc_error *err);

/* ---- building (tokenizer.c, load_*.c) ---- */

llmc_tokenizer *tokenizer_new(llmc_error *err);                   /* NULL: out of memory */
void tokenizer_set(llmc_tokenizer *t, int32_t id, ByteSpan text); /* id < n_ids; copies */
ByteSpan span_copy(Arena *a, ByteSpan s);
ByteSpan text_base64(Arena *a, ByteSpan in); /* what it stands for; other letters are passed over */
Normalizer *normalizer_add(llmc_tokenizer *t, NormalizerKind kind);
Pre *pre_add(llmc_tokenizer *t, PreKind kind);
Dec *dec_add(llmc_tokenizer *t, DecKind kind);
llmc_status regex_compile(llmc_tokenizer *t, const char *what, ByteSpan pattern, pcre2_code **out,
                          llmc_error *err);
llmc_status charsmap_read(Arena *a, ByteSpan blob, Charsmap *out, llmc_error *err);
/* The entry of configs/pretokenizers.yaml with this name becomes pre-tokenizers. */
llmc_status pretokenizer_load(llmc_tokenizer *t, ByteSpan name, bool *add_bos, llmc_error *err);
/* Whether the same file lists this name among those whose merges are of characters. */
bool pretokenizer_characters(ByteSpan name);
/* The first name of the entry with these expressions (each ended by a NUL, n bytes together) and
 * this way with pieces that are in the vocabulary: copied to `name`. false: none has them */
bool pretokenizer_name(const char *exprs, size_t n, bool ignore_merges, char name[64]);
/* What stands behind the ranks of a tokenizer.model: the entry of the same file for so many, or for
 * a model of n_ids (0: not known). named [n_named]: to it, each ended by a NUL */
typedef struct RankTokens {
	char pretokenizer[64], bos[64], others[64];
	int32_t n, n_named, others_from;
} RankTokens;
bool pretokenizer_ranks(int32_t ranks, int32_t n_ids, RankTokens *out, Strbuf *named);
/* The list end_of_generation of the same file, held in t->scratch: open it, then ask. */
bool end_list_open(llmc_tokenizer *t);
bool ends_generation(const llmc_tokenizer *t, ByteSpan token);
void eos_add(llmc_tokenizer *t, int32_t id);
llmc_status added_add(llmc_tokenizer *t, Added a, llmc_error *err);
/* Last step of every loader: finds byte ids, builds what matches added tokens, sets limits. */
llmc_status tokenizer_finish(llmc_tokenizer *t, llmc_error *err);
llmc_status json_load_pipeline(llmc_tokenizer *t, json_t *root,
                               llmc_error *err); /* vocab_pipeline.c */

/* ---- icetk's additions to sentencepiece (icetk.c) ---- */

enum { ICE_BLANKS = 80 }; /* spaces that one piece stands for, at most */
llmc_status ice_blanks(
    llmc_tokenizer *t,
    llmc_error *err); /* ice_text.model; once the vocabulary is there, before other normalizers */
llmc_status
ice_tokens(llmc_tokenizer *t, int32_t first,
           llmc_error *err); /* those that came later; tokenizer_finish comes after it */

/* ---- encoding ---- */

typedef struct TokenPiece {
	ByteSpan text;
	int32_t id; /* an added token; -1: text */
	bool first; /* begins where the text begins */
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
	Arena arena; /* oom is set by the caller */
	pcre2_match_data *match;
	int flags;
	int32_t *ids;
	size_t n_ids, cap_ids;
	PreToken *word;   /* [n_pre] of pretok.c, kept from piece to piece */
	void *sym, *heap; /* of bpe.c, kept from word to word */
	size_t cap_sym, cap_heap;
	llmc_error *err;
} Enc;

void enc_push(Enc *e, int32_t id);
void piece_push(Enc *e, TokenPieces *p, ByteSpan text, int32_t id, bool first);
/* Next match from *at on, as find_iter of the oniguruma binding: false when there is none. rc < 0:
 * limits */
typedef struct RegexIter {
	size_t at, last_end;
	bool has_last;
} RegexIter;
int regex_next(pcre2_code *re, pcre2_match_data *md, pcre2_match_context *mc, ByteSpan text,
               RegexIter *it, size_t *start, size_t *end); /* 1 found, 0 none, < 0 error of PCRE2 */
llmc_status regex_failed(llmc_error *err, int rc);
llmc_status normalize(Enc *e, ByteSpan in, ByteSpan *out);
ByteSpan ice_normalize(Enc *e, ByteSpan in);
llmc_status normalize_spm(Enc *e, const Normalizer *n, ByteSpan in, ByteSpan *out);
ByteSpan charsmap_apply(Arena *a, const Charsmap *m, ByteSpan in);
/* Longest key of the map that begins s: its bytes (0: none) and replacement. shortest: the first
 * key met instead */
size_t charsmap_find(const Charsmap *m, const char *s, size_t n, bool shortest, ByteSpan *out);
/* A piece through the pre-tokenizers from number k on, and its words through the model. */
llmc_status encode_words(Enc *e, size_t k, TokenPiece in);
llmc_status added_split(Enc *e, const Trie *trie, TokenPiece in, TokenPieces *out);
llmc_status model_encode(Enc *e, ByteSpan text);
llmc_status bpe_encode(Enc *e, ByteSpan text);
llmc_status scores_encode(Enc *e, ByteSpan text);
llmc_status unigram_encode(Enc *e, ByteSpan text);
/* Pieces, the range of their scores and the unknown token, from the types of all tokens as
 * sentencepiece has them. */
void unigram_pieces(llmc_tokenizer *t);
llmc_status encode(Enc *e, ByteSpan text);
uint32_t bytelevel_char(unsigned char byte);
int bytelevel_byte(uint32_t cp); /* -1: none */

#endif

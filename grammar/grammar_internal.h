/* Inside of grammar/. */
#ifndef LLMC_GRAMMAR_GRAMMAR_INTERNAL_H
#define LLMC_GRAMMAR_GRAMMAR_INTERNAL_H

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

#include "base/arena.h"
#include "base/strbuf.h"
#include "grammar/grammar.h"

enum {
	N_SLICE = 3,  /* of tries: plain tokens of any length, of at most 32 and of 12 characters */
	N_BRIEF = 32, /* characters of plain tokens that have masks by their number */
	MAX_TOKEN = 512,     /* bytes of a token that a grammar allows; longer ones never */
	MAX_DEPTH = 512,     /* of a stack */
	MAX_CONFS = 1 << 16, /* of a set */
	MAX_STATES = 1 << 21,
	MAX_EDGES = 1 << 23,
	MAX_EX = 1 << 21, /* nodes of expressions */
	CUT_DEPTH = 4,    /* frames of a stack that a cached mask knows */
};

/* ---- expressions (expression.c) ---- */

typedef enum ExprKind {
	EXPR_BYTES, /* n bytes */
	EXPR_CHARS, /* one character of n ranges, as UTF-8 */
	EXPR_SEQ,   /* n parts; none: the empty text */
	EXPR_ALT,   /* one of n parts; none: nothing at all */
	EXPR_REP,   /* part[0], min to max times; max -1: any number */
	EXPR_RULE,  /* rule `min` */
	EXPR_ORDER, /* parts in their order with part[n] between those that come; how[i] says which
	               must */
	EXPR_TOKEN, /* token `min` */
	EXPR_MULTIPLE, /* decimal digits without leading zeros: a multiple of `min` */
} ExprKind;
enum { ORDER_MUST, ORDER_MAY, ORDER_ANY }; /* how[]: once; once or not; any number of times */

typedef struct Range {
	uint32_t lo, hi;
} Range; /* characters, both included */
typedef struct Expr Expr;
struct Expr {
	ExprKind kind;
	int32_t n, min, max;
	union {
		const char *bytes;
		const Range *range;
		Expr *const *part;
	};
	const uint8_t *how;
};
typedef struct ExprList {
	Expr **v;
	size_t n, cap;
} ExprList;

typedef struct GrammarBuilder { /* a grammar on its way from text to automaton */
	Arena *a;
	llmc_error *err;
	jmp_buf fault; /* where build_fail goes, with *err set */
	size_t n_ex;
	Expr **rule; /* bodies; number 0 is the root */
	size_t n_rule, cap_rule, cap_name;
	const char **name; /* of rules, for errors; NULL: it has none */
	const TokenVocab *lexicon;
	llmc_grammar_options opt;
	const char *place;   /* in front of what build_fail says; NULL: nothing */
	const char *nothing; /* a place of the schema that no value fits; NULL: none was seen */
	/* shared rules of JSON, -1: not made yet */
	int32_t json_string, json_value, json_object, json_array, json_number;
} GrammarBuilder;

void build_fail(GrammarBuilder *b, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
Expr *expr_new(GrammarBuilder *b, ExprKind kind);
Expr *expr_bytes(GrammarBuilder *b, const char *s, size_t n);
Expr *expr_text(GrammarBuilder *b, const char *s);
Expr *expr_chars(GrammarBuilder *b, const Range *range, size_t n);
Expr *expr_char(GrammarBuilder *b, uint32_t lo, uint32_t hi);
Expr *expr_rep(GrammarBuilder *b, Expr *x, int32_t min, int32_t max);
Expr *expr_list(GrammarBuilder *b, ExprKind kind, const ExprList *l);
Expr *expr_seq(GrammarBuilder *b, int n, ...);
Expr *expr_alt(GrammarBuilder *b, int n, ...);
Expr *expr_rule(GrammarBuilder *b, int32_t rule);
Expr *expr_token(GrammarBuilder *b, int32_t id);
void expr_push(GrammarBuilder *b, ExprList *l, Expr *x);
int32_t rule_new(GrammarBuilder *b); /* its body is set later: b->rule[] */
void expr_rule_name(GrammarBuilder *b, int32_t rule,
                    const char *name); /* what errors call it: its place and its name */
Expr *expr_none(GrammarBuilder *b);    /* matches nothing */
Expr *expr_empty(GrammarBuilder *b);

/* A set of characters: sorted and joined in place; what is left, and the complement over all of
 * Unicode but surrogates. */
size_t ranges_join(Range *r, size_t n);
size_t ranges_invert(const Range *r, size_t n, Range *out); /* out has n + 2 places */

/* ---- front ends ---- */

/* regex_grammar.c: search: what is not anchored may have any text around it; json: characters
 * become those of a JSON string's inside; fold: letters of ASCII in both cases; dot_all: . takes
 * line ends too; no_lazy: repetitions that take as little as they can are refused */
typedef struct RegexFlags {
	bool json, search, fold, dot_all, no_lazy;
} RegexFlags;
Expr *regex_read(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags);
Expr *regex_chars(GrammarBuilder *b, const Range *r, size_t n,
                  RegexFlags flags);                                           /* one character */
Expr *lark_read(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags); /* of flags, json */
Expr *gbnf_read(GrammarBuilder *b, const char *s, size_t n); /* the rules, and root's */
Expr *schema_read(GrammarBuilder *b, const char *s, size_t n);
Expr *schema_of(GrammarBuilder *b, const json_t *schema, const json_t *root, const char *path);
Expr *choice_read(GrammarBuilder *b, const char *s, size_t n);
Expr *kind_read(GrammarBuilder *b, llmc_grammar_kind kind, const char *s,
                size_t n); /* grammar_open.c: by the reader of its kind */
Expr *structural_tags_read(GrammarBuilder *b, const char *s, size_t n);
/* json_grammar.c: JSON's own parts */
Expr *json_ws(GrammarBuilder *b);
Expr *json_any_string(GrammarBuilder *b);
Expr *json_string_char(GrammarBuilder *b);
Expr *json_escapes(GrammarBuilder *b, const char *letters);
Expr *json_any_number(GrammarBuilder *b, bool integer);
Expr *json_any_value(GrammarBuilder *b);
Expr *json_any_object(GrammarBuilder *b);
Expr *json_any_array(GrammarBuilder *b);
Expr *json_literal(GrammarBuilder *b, const json_t *v); /* this value, and no other */
Expr *json_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how); /* { ... } */
Expr *json_items(GrammarBuilder *b, const ExprList *first, Expr *rest, int32_t min,
                 int32_t max);                                 /* [ ... ] */
Expr *json_key(GrammarBuilder *b, const char *name, size_t n); /* "name": */
Expr *json_quoted(GrammarBuilder *b, const char *s, size_t n);
/* number_range.c */
typedef struct Bound {
	bool set, open;
	bool negative;
	char whole[40], frac[40];
} Bound; /* |bound| as digits */
Expr *number_range(GrammarBuilder *b, const Bound *lo, const Bound *hi, bool integer);
void bound_read(Bound *out, const json_t *v, bool open);

/* ---- the automaton ---- */

enum { EDGE_EPS, EDGE_BYTE, EDGE_CALL, EDGE_REP, EDGE_TOKEN };
typedef struct Edge {
	uint8_t kind, lo, hi;
	bool tail;       /* CALL: what called returns to the caller's own caller */
	int32_t to, arg; /* CALL: first state; REP: number of the Rep; TOKEN: id */
} Edge;
typedef struct Repeat {
	int32_t start, min, max;
} Repeat; /* max -1: none */
enum { STATE_END = 1, STATE_EATS = 2 };
typedef struct Automaton {
	Edge *edge;
	int32_t *first; /* [n_state + 1] */
	uint8_t *flags;
	Repeat *rep;
	int32_t n_state, n_edge, n_rep, start;
	int n_class;                    /* of bytes that no edge tells apart */
	uint8_t cls[256], byte_of[256]; /* of a byte; a byte of a class */
	bool has_tokens;
} Automaton;

llmc_status automaton_make(GrammarBuilder *b, Expr *root, Automaton *out,
                           llmc_error *err); /* arrays on the heap */
void automaton_release(Automaton *m);

/* ---- the vocabulary (vocabulary.c) ---- */

typedef struct TrieNode {
	int32_t token; /* -1: none ends here */
	uint32_t skip; /* nodes of this subtree, itself included */
	uint16_t depth;
	uint8_t byte;
} TrieNode;
typedef struct TokenTrie {
	TrieNode *v;
	size_t n, cap;
} TokenTrie;
struct TokenVocab {
	atomic_int refs;
	int32_t n_tok;
	char *bytes;
	uint32_t *at; /* [n_tok + 1] into bytes */
	uint8_t *special;
	int32_t *same;   /* the next token of the same bytes; -1: none */
	size_t n_words;  /* of a mask */
	int32_t longest; /* bytes of a token in the tries */
	TokenTrie all, rest[N_SLICE];
	uint32_t *plain[N_SLICE]; /* masks of what rest leaves out: tokens of characters that JSON
	                             strings hold as they are */
	int32_t limit[N_SLICE];   /* characters, at most, of those */
	uint32_t *brief; /* [N_BRIEF + 1][n_words] the same of at most so many characters */
};

/* ---- sets (state_sets.c) ---- */

typedef struct Frame {
	int32_t parent, edge, count, depth, canon[N_SLICE];
} Frame; /* 0: the empty stack, 1: what was cut off */
enum { FRAME_EMPTY, FRAME_BOTTOM };
typedef struct Config {
	int32_t q, f;
} Config;
typedef struct Uncertain {
	const TokenTrie *trie;
	uint32_t node;
	uint32_t path;
} Uncertain; /* path: of its bytes, in Tables.path */
typedef struct Set {
	uint32_t at, n; /* its confs */
	bool accept, tokens;
	int8_t plain; /* its slice; -1: not known, N_SLICE: none, N_SLICE + 1 + n: plain tokens of n
	                 characters are allowed and no longer ones */
	int32_t canon[N_SLICE], cut; /* -1: not known */
	uint32_t *mask;              /* of the set cut; NULL: not made */
	uint32_t *exact;             /* of itself; NULL: not kept */
	Uncertain *unc;
	uint32_t n_unc;
} Set;

typedef struct HashIndex {
	int32_t *at;
	size_t cap, n;
} HashIndex;
typedef struct Tables {
	Frame *frame;
	size_t n_frame, cap_frame;
	HashIndex frames;
	Config *conf;
	size_t n_conf, cap_conf;
	Set *set;
	size_t n_set, cap_set;
	HashIndex sets; /* set 0 is dead */
	int32_t *next;
	size_t cap_next; /* [set][class]: set * 2 + touched; -1: not known */
	uint8_t *path;
	size_t n_path, cap_path;
	size_t heap; /* bytes of masks and of uncertain places */
} Tables;

struct llmc_grammar {
	atomic_int refs;
	TokenVocab *lexicon;
	Automaton m;
	int32_t *eos, n_eos;
	int32_t limit[N_SLICE];
	pthread_mutex_t lock; /* all below, and what matchers hold */
	Tables t;
	Matcher *matchers;
	int32_t start; /* set; -1: not made */
	jmp_buf fault; /* of the call that runs */
	llmc_error *err;
	/* the set that is being made */
	Config *tmp;
	size_t n_tmp, cap_tmp;
	uint32_t *seen;
	size_t cap_seen;
	uint32_t stamp;
	uint64_t *seen_key;
	bool accept, touched;
	size_t work;    /* confs looked at by this call */
	int32_t *stack; /* [longest + 2] of a walk */
	uint8_t *path;  /* [longest + 2] */
	Uncertain *unc;
	size_t n_unc, cap_unc;
};

struct llmc_matcher {
	Grammar *g;
	Matcher *next, *prev; /* of the grammar, under its lock */
	int32_t set;          /* 0: dead; -1: not begun */
	char **after;         /* owned */
	int32_t n_after, at_after;
	size_t matched; /* bytes of after[at_after] that the end of the text is */
	bool ended;     /* an end token came */
};

void grammar_fault(Grammar *g, llmc_status status, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void tables_release(Tables *t);
size_t tables_bytes(const Grammar *g);
int32_t set_start(Grammar *g);
int32_t set_step(Grammar *g, int32_t s,
                 int cls); /* g->touched is set when the step looked below a cut */
int32_t set_token(Grammar *g, int32_t s, int32_t id);
int32_t set_canon(Grammar *g, int32_t s, int slice);
int32_t set_cut(Grammar *g, int32_t s);
void tables_renew(Grammar *g); /* forget all but where the matchers are */
/* token_mask.c: of set s, in words of the lexicon; valid until the next call */
const uint32_t *set_mask(Grammar *g, int32_t s, uint32_t *room);

#endif

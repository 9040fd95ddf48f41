/* Internal declarations of grammar/. */
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
	/* number of tries: plain tokens of any length, of at most 32 and of 12 characters */
	N_SLICE = 3,
	/* longest length, in characters, for which plain tokens have a mask of their own */
	N_BRIEF = 32,
	MAX_TOKEN = 512,     /* longest allowed token in bytes */
	MAX_DEPTH = 512,     /* stack depth */
	MAX_CONFS = 1 << 16, /* (state, stack) pairs per set */
	MAX_STATES = 1 << 21,
	MAX_EDGES = 1 << 23,
	MAX_EX = 1 << 21, /* expression nodes */
	CUT_DEPTH = 4,    /* stack frames that a cached mask depends on */
};

/* ---- expressions (expression.c) ---- */

typedef enum ExprKind {
	EXPR_BYTES, /* n bytes */
	EXPR_CHARS, /* one character in n ranges, as UTF-8 */
	EXPR_SEQ,   /* n parts; none: the empty string */
	EXPR_ALT,   /* one of n parts; none: matches nothing */
	EXPR_REP,   /* part[0], min to max times; max -1: any number */
	EXPR_RULE,  /* rule `min` */
	EXPR_ORDER, /* parts in order, separated by part[n]; how[i] is an ORDER_ value */
	/* n <= MAX_UNORDERED parts, each at most once, in any order. Bits of `must` mark required
	 * parts. part[n] separates them; part[n + 1] may come any number of times (NULL: nothing
	 * else may come) */
	EXPR_UNORDERED,
	EXPR_TOKEN, /* token with id `min` */
	/* number without sign and with at most n decimals; written with all n decimals and without
	 * the point, it is a multiple of `min`
	 */
	EXPR_MULTIPLE,
	EXPR_GRAPH,  /* paths of a graph, from node 0 to an accepting one */
	EXPR_ANCHOR, /* only for language.c: `min` is an ANCHOR_ value */
} ExprKind;
/* start and end of the string, \b and \B of ECMA-262 */
enum { ANCHOR_START, ANCHOR_END, ANCHOR_WORD, ANCHOR_NO_WORD };
/* characters that a key without quotes cannot contain */
#define BARE_KEY_ENDS ",:=()[]{}\"'\n\t\r"
/* limit of digits, because models may continue a number without end */
enum { JSON_MAX_DIGITS = 400 };
enum { MAX_UNORDERED = 62 };
enum { ORDER_MUST, ORDER_MAY, ORDER_ANY }; /* exactly once; at most once; any number of times */

typedef struct Range {
	uint32_t lo, hi;
} Range; /* code points, inclusive */
typedef struct Expr Expr;
struct Expr {
	ExprKind kind;
	int32_t n, min, max;
	uint64_t must; /* EXPR_UNORDERED */
	union {
		const char *bytes;
		const Range *range;
		Expr *const *part;
		const struct SymbolGraph *graph;
	};
	const uint8_t *how;
};
typedef struct GraphEdge {
	int32_t from, to;
	Expr *x; /* one character */
} GraphEdge;
typedef struct SymbolGraph {
	int32_t n, n_edge; /* nodes, edges */
	GraphEdge *edge;
	const uint8_t *accept; /* [n] */
	bool counted;          /* paths have min to max edges (max -1: unlimited) */
	int32_t min, max;
	/* [n] if counted: lengths of the shortest and longest non-empty rest of a path from each
	 * node; lo -1: there is none, hi -1: unlimited */
	const int32_t *lo, *hi;
} SymbolGraph;
typedef struct ExprList {
	Expr **v;
	size_t n, cap;
} ExprList;

/* Notation of the arguments of a call if it is not JSON (structural_tags.c). */
typedef enum StyleKind { STYLE_JSON, STYLE_PYTHON, STYLE_QUOTED, N_STYLE } StyleKind;
typedef struct ValueStyle {
	StyleKind kind;    /* form of values: JSON, Python literals, or strings between `quote` */
	bool raw;          /* strings are written without quotes or escapes, up to `end` */
	const char *quote; /* NULL: strings as in JSON */
	/* strings around an argument: before its key (open), before a string (value), before
	 * another value (json), after the value (end), and between two arguments */
	const char *open, *value, *json, *end, *between;
} ValueStyle;

typedef struct CategoryRun CategoryRun; /* regex_property.c */
typedef struct PropertyRanges PropertyRanges;
typedef struct MadeLanguage MadeLanguage; /* language.c */
enum { N_LANGUAGE_BUCKET = 64 };
typedef struct GrammarBuilder { /* state of one compilation from source to automaton */
	Arena *a;
	llmc_error *err;
	jmp_buf fault; /* target of build_fail, which sets *err */
	size_t n_ex;
	Expr **rule; /* rule bodies; rule 0 is the root */
	size_t n_rule, cap_rule, cap_name;
	const char **name; /* [cap_name] rule names for errors; NULL: unnamed */
	const TokenVocab *lexicon;
	llmc_grammar_options opt;
	const char *place;     /* prefix of messages of build_fail; NULL: none */
	const char *nothing;   /* path of a schema that no value can match; NULL: none found */
	size_t language_steps; /* work of language.c, which is bounded */
	MadeLanguage *language[N_LANGUAGE_BUCKET]; /* languages made so far */
	/* number of nodes visited since the time limit was checked */
	uint32_t work;
	const ValueStyle *style; /* form of values in a call; NULL: JSON */
	const CategoryRun *run;  /* [n_run] categories of all characters; NULL: not read yet */
	size_t n_run;
	PropertyRanges *property; /* list of the properties that were read */
	size_t n_range;           /* ranges of all classes of regular expressions */
	/* shared rules of JSON values, per style; -1: not built yet */
	int32_t json_string[N_STYLE], json_value[N_STYLE], json_object[N_STYLE],
	    json_array[N_STYLE];
} GrammarBuilder;

void build_fail(GrammarBuilder *b, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
/* Count a node visited. Fails when the time limit of the thread's request has passed. */
void build_work(GrammarBuilder *b);
void build_work_of(GrammarBuilder *b, size_t n); /* the same for n nodes */
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
/* makes a rule, whose body the caller sets in b->rule[] later */
int32_t rule_new(GrammarBuilder *b);
/* sets the location and name that errors show */
void expr_rule_name(GrammarBuilder *b, int32_t rule, const char *name);
Expr *expr_none(GrammarBuilder *b);
Expr *expr_empty(GrammarBuilder *b);

/* Sets of characters. ranges_join sorts and merges in place and returns the new count.
 * ranges_invert writes the complement over all code points. */
size_t ranges_join(Range *r, size_t n);
size_t ranges_invert(const Range *r, size_t n, Range *out); /* out has n + 2 elements */

/* ---- front ends ---- */

/* Flags of regex_grammar.c. search: unanchored ends match anywhere in a string. json: characters
 * are written as in a JSON string. fold: ASCII letters match in both cases. dot_all: `.` matches
 * line ends too. no_lazy: lazy quantifiers are an error. ecma: \s has all white space of ECMA-262
 * and `.` no line end of it. operand: the result is for language.c. */
typedef struct RegexFlags {
	bool json, search, fold, dot_all, no_lazy, ecma, operand;
} RegexFlags;
/* Reads a regex for language.c: anchors may have any position; flags.json is ignored. */
Expr *regex_operand(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags);
Expr *regex_read(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags);
/* Characters of a property of Unicode: a general category by one of its names ("Lu",
 * "Uppercase_Letter", "gc=Lu"), a script ("Script=Greek"), a binary property ("Alphabetic"), Any or
 * ASCII. Returns the number of ranges; 0: not known. The
 * ranges are sorted, do not touch, and are read once per property. */
size_t regex_property(GrammarBuilder *b, const char *name, const Range **out);
/* Matches one character of the ranges, either plain or as written in a JSON string */
Expr *regex_chars(GrammarBuilder *b, const Range *r, size_t n, RegexFlags flags);
/* Writes the other case of the ASCII letters in r to out [2 n] and returns their count. */
size_t ranges_fold(const Range *r, size_t n, Range *out);
/* uses flags.json only */
Expr *lark_read(GrammarBuilder *b, const char *s, size_t n, RegexFlags flags);
Expr *gbnf_read(GrammarBuilder *b, const char *s, size_t n); /* all rules; returns the root */
Expr *schema_read(GrammarBuilder *b, const char *s, size_t n);
Expr *schema_of(GrammarBuilder *b, const json_t *schema, const json_t *root, const char *path);
/* Builds the members of an object in b->style, without braces. */
Expr *schema_arguments(GrammarBuilder *b, const json_t *schema, const char *path);
Expr *choice_read(GrammarBuilder *b, const char *s, size_t n);
/* grammar_open.c: calls the reader of the given kind */
Expr *kind_read(GrammarBuilder *b, llmc_grammar_kind kind, const char *s, size_t n);
Expr *structural_tags_read(GrammarBuilder *b, const char *s, size_t n);
/* Matches a fixed string, in which names of special tokens stand for these tokens. */
Expr *mark_text(GrammarBuilder *b, const char *s);
/* Returns the longest special token with whose name s begins; -1: none. */
int32_t special_at(const TokenVocab *l, const char *s, size_t n, size_t *len);
/* does the mark begin with a special token? */
bool mark_is_token(GrammarBuilder *b, const char *s);
/* matches any characters up to and including `end` */
Expr *until_text(GrammarBuilder *b, const char *end);
/* json_grammar.c: grammars of JSON values */
Expr *json_ws(GrammarBuilder *b);
Expr *json_any_string(GrammarBuilder *b);
Expr *json_string_char(GrammarBuilder *b);
Expr *json_escapes(GrammarBuilder *b, const char *letters);
Expr *json_any_number(GrammarBuilder *b, bool integer);
Expr *json_any_value(GrammarBuilder *b);
Expr *json_any_object(GrammarBuilder *b);
Expr *json_any_array(GrammarBuilder *b);
Expr *json_literal(GrammarBuilder *b, const json_t *v); /* matches exactly this value */
/* null, true or false in the style of values */
Expr *json_word(GrammarBuilder *b, json_type type);
/* { ... }; arguments: the arguments of a call, without braces */
Expr *json_members(GrammarBuilder *b, const ExprList *members, const uint8_t *how, bool arguments);
/* Like json_members, in any order. Any number of `others` (NULL: none) may come between and after
 * the members, of which there are at most MAX_UNORDERED. */
Expr *json_unordered(GrammarBuilder *b, const ExprList *members, const uint8_t *how, Expr *others);
Expr *json_braces(GrammarBuilder *b, Expr *members, bool arguments);
Expr *json_comma(GrammarBuilder *b, bool arguments);
Expr *json_bare_key(GrammarBuilder *b);
Expr *json_name(GrammarBuilder *b, const char *name, size_t n); /* key of an object */
/* Matches min to max times `one` (max -1: unlimited), separated by `comma`. */
Expr *json_list(GrammarBuilder *b, Expr *comma, Expr *one, int32_t min, int32_t max);
Expr *json_brackets(GrammarBuilder *b, Expr *items); /* [ ... ] */
/* Matches an array of min to max items (max -1: unlimited). Items after those of `first` match
 * `rest`; rest NULL: there are no more. */
Expr *json_items(GrammarBuilder *b, const ExprList *first, Expr *rest, int32_t min, int32_t max);
Expr *json_key(GrammarBuilder *b, const char *name, size_t n); /* "name": */
Expr *json_quoted(GrammarBuilder *b, const char *s, size_t n);
/* number_range.c: |bound| as decimal digits */
typedef struct Bound {
	bool set, open;
	bool negative;
	char whole[400], frac[400];
} Bound;
Expr *number_range(GrammarBuilder *b, const Bound *lo, const Bound *hi, bool integer);
void bound_read(Bound *out, const json_t *v, bool open);

/* ---- the automaton ---- */

enum {
	EDGE_EPS,
	EDGE_BYTE,
	EDGE_CALL,
	EDGE_REP,
	EDGE_TOKEN,
	EDGE_GATE,
	EDGE_TICK,
	EDGE_TAKE, /* part `lo` of an unordered list begins; possible if it has not come yet */
	/* an empty edge that is valid only if some output can follow state `arg`; not in a finished
	 * Automaton */
	EDGE_NEED,
};
typedef struct Edge {
	uint8_t kind, lo, hi;
	bool tail;       /* CALL: a tail call: the callee returns directly to the caller's caller */
	int32_t to, arg; /* CALL: first state; REP, TAKE: index into rep; TOKEN: id; GATE, TICK:
	                    into tick */
} Edge;
typedef struct Repeat {
	int32_t start, min, max; /* max -1: unlimited */
	/* graph: the maximum over nodes of the shortest continuation; counts closer to max than
	 * this are kept apart as different states */
	/* counts below min are kept apart as different states, because some continuations have a
	 * maximum length */
	int32_t slack;
	bool exact;
	/* An unordered list. The count is the set of parts seen so far; must: required parts,
	 * all: allowed parts. `more` is the state before a separator; others: further parts may
	 * appear at any time. */
	bool unordered, others;
	int32_t more;
	uint64_t must, all;
} Repeat;
typedef struct CountedNode { /* node of a counted graph, reached by one more character */
	int32_t lo, hi;      /* see SymbolGraph */
	bool accept;
} CountedNode;
enum { STATE_END = 1, STATE_EATS = 2, STATE_TICKS = 4 };
typedef struct Automaton {
	Edge *edge;
	int32_t *first; /* [n_state + 1] */
	uint8_t *flags;
	Repeat *rep;
	CountedNode *tick;
	int32_t n_state, n_edge, n_rep, n_tick, start;
	int n_class; /* number of byte classes; bytes of a class have the same edges */
	uint8_t cls[256], byte_of[256]; /* class of each byte; one byte of each class */
	bool has_tokens;
} Automaton;

/* allocates the arrays with malloc */
llmc_status automaton_make(GrammarBuilder *b, Expr *root, Automaton *out, llmc_error *err);
void automaton_release(Automaton *m);

/* ---- the vocabulary (vocabulary.c) ---- */

typedef struct TrieNode {
	int32_t token; /* token that ends here; -1: none */
	uint32_t skip; /* nodes in this subtree, including this one */
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
	uint32_t *at; /* [n_tok + 1] offsets into bytes */
	uint8_t *special;
	int32_t *same;   /* next token with the same bytes; -1: none */
	size_t n_words;  /* words per mask */
	int32_t longest; /* bytes of the longest token in the tries */
	TokenTrie all, rest[N_SLICE];
	/* masks of the plain tokens that are not in rest[]; plain: all characters may be in JSON
	 * strings without escapes */
	uint32_t *plain[N_SLICE];
	int32_t limit[N_SLICE]; /* longest plain token of each slice, in characters */
	/* [N_BRIEF + 1][n_words] masks of plain tokens of at most that many characters */
	uint32_t *brief;
};

/* ---- sets (state_sets.c) ---- */

typedef struct Frame {
	int32_t parent, edge, depth, canon[N_SLICE];
	int64_t count;
} Frame; /* array of frames; 0: the empty stack, 1: stands for frames that were cut off */
enum { FRAME_EMPTY, FRAME_BOTTOM };
typedef struct Config {
	int32_t q, f;
} Config;
typedef struct UncertainTokens {
	const TokenTrie *trie;
	uint32_t node;
	uint32_t path;
} UncertainTokens; /* path: offset of its bytes in Tables.path */
typedef struct Set {
	uint32_t at, n; /* range in Tables.conf */
	bool accept, tokens;
	/* index of the slice whose plain tokens are all allowed; -1: unknown; N_SLICE: none;
	 * N_SLICE + 1 + n: plain tokens of up to n characters are allowed, longer ones are not */
	int8_t plain;
	int32_t canon[N_SLICE], cut; /* -1: unknown */
	uint32_t *mask;              /* mask of the cut set; NULL: not computed */
	uint32_t *exact;             /* mask of this set; NULL: not cached */
	UncertainTokens *unc;
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
	HashIndex sets; /* index of sets; set 0 is the dead set, which has no continuation */
	int32_t *next;
	size_t cap_next; /* [set][class]: set * 2 + touched; -1: not computed */
	uint8_t *path;
	size_t n_path, cap_path;
	size_t heap; /* bytes of masks and of unc arrays */
} Tables;

struct llmc_grammar {
	atomic_int refs;
	TokenVocab *lexicon;
	Automaton m;
	int32_t *eos, n_eos;
	int32_t limit[N_SLICE];
	pthread_mutex_t lock; /* guards all fields below and those of the matchers */
	Tables t;
	Matcher *matchers;
	int32_t start; /* start set; -1: not built */
	jmp_buf fault; /* target of an error in the running call */
	llmc_error *err;
	/* the set under construction */
	Config *tmp;
	size_t n_tmp, cap_tmp;
	uint32_t *seen;
	size_t cap_seen;
	uint32_t stamp;
	uint64_t *seen_key;
	bool accept, touched;
	size_t work;    /* pairs processed by the current call */
	int32_t *stack; /* [longest + 2] sets along a trie path */
	uint8_t *path;  /* [longest + 2] */
	UncertainTokens *unc;
	size_t n_unc, cap_unc;
};

struct llmc_matcher {
	Grammar *g;
	Matcher *next, *prev; /* list of the grammar's matchers, under its lock */
	int32_t set;          /* current set; 0: dead, -1: not started */
	char **after;         /* owned */
	int32_t n_after, at_after;
	size_t matched; /* bytes of after[at_after] that the output ends with */
	bool ended;     /* an end token was accepted */
};

void grammar_fault(Grammar *g, llmc_status status, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void tables_release(Tables *t);
size_t tables_bytes(const Grammar *g);
int32_t set_start(Grammar *g);
/* sets g->touched if the step depended on frames below the cut */
int32_t set_step(Grammar *g, int32_t s, int cls);
int32_t set_token(Grammar *g, int32_t s, int32_t id);
int32_t set_canon(Grammar *g, int32_t s, int slice);
int32_t set_cut(Grammar *g, int32_t s);
void tables_renew(Grammar *g); /* drops all sets except those in use by matchers */
/* token_mask.c: mask of set s in words of the vocabulary; valid until the next call */
const uint32_t *set_mask(Grammar *g, int32_t s, uint32_t *room);

#endif

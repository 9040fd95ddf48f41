/* Interpreter for the Jinja of chat templates, with the settings of transformers (trim_blocks,
 * lstrip_blocks, loop controls, no autoescape). All values except namespaces are immutable. A
 * template has no access to anything outside of its values.
 *
 * One run has one Jinja. All memory belongs to its arena, so after a failure anywhere one jump
 * suffices. Steps, memory and depth are bounded, because templates are untrusted. */
#ifndef LLMC_TEXT_JINJA_H
#define LLMC_TEXT_JINJA_H

#include "text/text.h"

#define JINJA_MAX_STEPS ((int64_t)20000000)
#define JINJA_MAX_BYTES ((size_t)256 << 20)
#define JINJA_MAX_DEPTH                                                                            \
	200 /* depth of expressions and blocks while parsing, and of macro calls while running */
#define JINJA_MAX_NEST 400 /* depth of evaluation; limits the use of the C stack */
#define JINJA_MAX_SOURCE ((size_t)4 << 20)

typedef enum ValType {
	V_UNDEF,
	V_NONE,
	V_BOOL,
	V_INT,
	V_FLOAT,
	V_STR,
	V_LIST,
	V_TUPLE,
	V_DICT,
	V_NS,
	V_MACRO,
	V_METHOD,
	V_FUNC,
	V_LOOP,
} ValType;

typedef struct ValList ValList;
typedef struct Dict Dict;
typedef struct Macro Macro;
typedef struct Method Method;
typedef struct Loop Loop;
typedef struct Jinja Jinja;
typedef struct AstNode AstNode;
typedef struct Scope Scope;
typedef struct CallArgs CallArgs;

typedef struct Val {
	ValType type;
	union {
		bool b;
		int64_t i;
		double f;
		ByteSpan s; /* string; V_UNDEF: the name that was not found */
		ValList *l; /* list, tuple */
		Dict *d;    /* dict, namespace */
		Macro *macro;
		Method *method;
		Loop *loop;
		int func; /* FUNC_* */
	};
	bool digits; /* V_STR: the string is a number beyond int64 and double */
} Val;

struct ValList {
	Val *v;
	size_t n, cap;
};

struct Dict { /* keeps insertion order */
	Val *key, *val;
	size_t n, cap;
	int32_t *slot; /* hash index, for larger dicts: entry + 1 */
	size_t n_slots;
};

struct Macro {
	const AstNode *def;
	Scope *scope;
	Val caller; /* set only by the macro of a call block */
};

struct Method {
	Val self;
	ByteSpan name;
};

struct Loop {
	const ValList *items;
	size_t at;
	Val last_changed;
	bool has_changed;
};

struct CallArgs { /* arguments after evaluation */
	Val *pos;
	size_t n_pos;
	ByteSpan *kw_name;
	Val *kw;
	size_t n_kw;
};

struct Scope {
	Scope *up;
	ByteSpan *name;
	Val *val;
	size_t n, cap;
};

typedef struct Buf {
	char *s;
	size_t n, cap;
} Buf;

enum { FUNC_RANGE, FUNC_NAMESPACE, FUNC_DICT, FUNC_RAISE, FUNC_STRFTIME };

/* ---- tokens and nodes ---- */

typedef enum TokType {
	T_DATA,
	T_VAR_BEGIN,
	T_VAR_END,
	T_BLOCK_BEGIN,
	T_BLOCK_END,
	T_NAME,
	T_STR,
	T_INT,
	T_FLOAT,
	T_OP,
	T_EOF
} TokType;

typedef struct Tok {
	TokType type;
	int line;
	ByteSpan s; /* source text; of string literals: text with escapes resolved */
	int op;     /* T_OP: the character, or two: a << 8 | b */
	Val num;
} Tok;

typedef enum AstKind {
	/* expressions */
	N_CONST,
	N_NAME,
	N_LIST,
	N_TUPLE,
	N_DICT,
	N_ATTR,
	N_ITEM,
	N_SLICE,
	N_CALL,
	N_FILTER,
	N_TEST,
	N_BINARY,
	N_NEG,
	N_POS,
	N_NOT,
	N_AND,
	N_OR,
	N_COMPARE,
	N_CONCAT,
	N_COND,
	/* statements */
	N_BLOCK,
	N_TEXT,
	N_PRINT,
	N_IF,
	N_FOR,
	N_SET,
	N_SET_BLOCK,
	N_NSREF,
	N_MACRO,
	N_CALL_BLOCK,
	N_FILTER_BLOCK,
	N_WITH,
	N_BREAK,
	N_CONTINUE,
} AstKind;

struct AstNode {
	AstKind kind;
	int line;
	int op;        /* binary; compare: operator of each operand in ops */
	ByteSpan name; /* name of a variable, attribute, filter, test or macro; text */
	Val val;       /* constant */
	AstNode *a, *b, *c, *d;
	/* elements, positional arguments or statements; of a dict: key, value, ... */
	AstNode **list;
	size_t n;
	ByteSpan *kw_name; /* names of keyword arguments; of a macro: parameters */
	AstNode **kw; /* values of keyword arguments; of a macro: defaults, NULL if there is none */
	size_t n_kw;
	int *ops;
};

struct Jinja {
	Arena arena;  /* its oom jump handles failed allocations */
	jmp_buf fail; /* target of jinja_fail, which has called error_set */
	llmc_error err;
	int64_t steps;
	int64_t next_check; /* number of steps at which the time limit is checked next */
	int depth;
	int nest;
	int line; /* current line, for errors */
	Buf *out;
	Scope *global;
	ByteSpan source;
	Tok *tok;
	size_t n_tok, cap_tok, at;
	int loop_depth; /* while parsing: break and continue are valid only inside a loop */
	enum { FLOW_RUN, FLOW_BREAK, FLOW_CONTINUE } flow;
};

/* ---- basics (core.c) ---- */
_Noreturn void jinja_fail(Jinja *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Count one step, or more if the work is proportional to `bytes`. Fails if there are too many
 * steps, or if the time limit of the thread's request has passed. */
void jinja_step(Jinja *j, size_t bytes);
void *jinja_alloc(Jinja *j, size_t n, size_t elem_bytes);
void jinja_enter(Jinja *j); /* enters a recursion; ends with j->nest-- */
/* Return an argument by position or name, otherwise the default. arg_take fails if there are more
 * than max arguments. */
Val arg(const CallArgs *a, size_t i, const char *name, Val otherwise);
void args_check(Jinja *j, const char *what, const CallArgs *a, size_t max);
int64_t arg_int(Jinja *j, const char *what, Val v);
ByteSpan arg_str(Jinja *j, const char *what, Val v);

/* ---- lexing, parsing ---- */
void jinja_lex(Jinja *j);
AstNode *jinja_parse(Jinja *j);
static inline const Tok *
jinja_cur(const Jinja *j)
{
	return &j->tok[j->at];
}

AstNode *jinja_new(Jinja *j, AstKind kind, int line);
AstNode *jinja_expression(Jinja *j, bool with_cond);
/* like parse_tuple: no parentheses needed */
AstNode *jinja_tuple(Jinja *j, bool with_cond, const char *end_name);
AstNode *jinja_filter_chain(Jinja *j, AstNode *node);
void jinja_call_args(Jinja *j, AstNode *call);
bool jinja_is_op(const Jinja *j, int op);
bool jinja_is_name(const Jinja *j, const char *name);
bool jinja_skip_op(Jinja *j, int op);
bool jinja_skip_name(Jinja *j, const char *name);
void jinja_expect_op(Jinja *j, int op);
ByteSpan jinja_expect_name(Jinja *j);
void jinja_node_push(Jinja *j, AstNode *n, AstNode *child);
/* Add a keyword argument or a parameter. The caller sets the value to which the result points;
 * NULL: no default */
AstNode **jinja_keyword_push(Jinja *j, AstNode *n, ByteSpan name);
#define OP2(a, b) ((a) << 8 | (b))

/* ---- values (value.c) ---- */
Val val_none(void);
Val val_bool(bool b);
Val val_int(int64_t i);
Val val_float(double f);
Val val_span(ByteSpan s);
Val val_text(const char *s);
Val val_undef(ByteSpan name);
Val val_list(Jinja *j, ValType type, size_t cap);
void list_push(Jinja *j, ValList *l, Val v);
Val val_dict(Jinja *j, ValType type);
void dict_put(Jinja *j, Dict *d, Val key, Val v);
bool dict_get(Jinja *j, const Dict *d, Val key, Val *out);
bool val_true(Val v);
bool val_equal(Jinja *j, Val a, Val b);
int val_compare(Jinja *j, Val a, Val b); /* fails if the values have no order */
bool val_in(Jinja *j, Val needle, Val hay);
ValList *val_iter(Jinja *j, Val v); /* items of a for loop; fails if v is not iterable */
ByteSpan val_str(Jinja *j, Val v);  /* str() */
void val_repr(Jinja *j, Buf *b, Val v);
const char *val_type_name(Val v); /* type name as in Python */
bool val_is_number(Val v);
double val_number(Val v);
bool span_is(ByteSpan s, const char *text);
bool span_same(ByteSpan a, ByteSpan b);
void buf_add(Jinja *j, Buf *b, const char *s, size_t n);
void buf_puts(Jinja *j, Buf *b, const char *s);
ByteSpan buf_span(const Buf *b);
void float_repr(Jinja *j, Buf *b, double f);
Val val_from_json(Jinja *j, const json_t *v);
/* parses a Python number literal; spaces and sign allowed */
bool num_parse(ByteSpan s, bool floats, Val *out);

/* ---- operations ---- */
Val op_binary(Jinja *j, int op, Val a, Val b);
Val get_attr(Jinja *j, Val v, ByteSpan name);
Val get_item(Jinja *j, Val v, Val key);
Val get_slice(Jinja *j, Val v, Val from, Val to, Val step);
Val call_value(Jinja *j, Val f, const CallArgs *args);
Val call_method(Jinja *j, const Method *m, const CallArgs *args);
bool method_exists(Val self, ByteSpan name);
Val apply_filter(Jinja *j, ByteSpan name, Val v, const CallArgs *args);
bool apply_test(Jinja *j, ByteSpan name, Val v, const CallArgs *args);
Val eval(Jinja *j, Scope *s, const AstNode *n);
Val to_json(Jinja *j, Val v, const CallArgs *args);
ByteSpan str_strip(Jinja *j, ByteSpan s, const Val *chars, bool left, bool right);
Val str_percent(Jinja *j, ByteSpan format, Val args);
/* 'u' upper, 'l' lower, 'c' capitalize, 't' title of str.title() */
ByteSpan str_case(Jinja *j, ByteSpan s, int how);
ByteSpan str_replace(Jinja *j, ByteSpan s, ByteSpan old, ByteSpan with, int64_t max);
void scope_set(Jinja *j, Scope *s, ByteSpan name, Val v);

#endif

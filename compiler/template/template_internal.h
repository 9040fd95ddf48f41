/* Interfaces between template_head.c (text into lines), template.c (names, arguments, selection),
 * template_launch.c and template_text.c (expansion) */
#ifndef LLMC_COMPILER_TEMPLATE_TEMPLATE_INTERNAL_H
#define LLMC_COMPILER_TEMPLATE_TEMPLATE_INTERNAL_H

#include "compiler/template/template.h"
#include "compiler/template/template_expr.h"

enum { MAX_NESTED = 8, MAX_CONDITIONS = 96 };

/* A template, or a file that a template includes */
typedef struct TemplateFile {
	SourceText source;
	/* file that includes this one, and its line; NULL: this is the template itself */
	const struct TemplateFile *from;
	int line;
} TemplateFile;

/* A line of the head, without "//@word ", or a line of the body */
typedef struct TemplateLine {
	const char *text;
	size_t size;
	const TemplateFile *piece;
	int line;
	int when; /* index of the condition that applies to the line; -1: none */
} TemplateLine;

typedef struct TemplateLines {
	TemplateLine *line;
	size_t n, cap;
} TemplateLines;

/* A condition holds if its expression is true (negate: is false) and its outer condition holds. */
typedef struct Condition {
	TemplateLine expr;
	bool negate;
} Condition;

typedef enum Directive {
	D_REQUIRE,
	D_LET,
	D_ARG,
	D_SCRATCH,
	D_PRODUCT,
	D_LAUNCH,
	D_MAP,
	D_ACTIVATIONS,
	DIRECTIVES
} Directive;

struct Template {
	const char *path;
	TemplateFile *piece;
	OpKind op;
	bool phase[PHASES];
	bool both;     /* there is one text for all phases */
	bool any_rows; /* the head uses n_row */
	/* the decode kernel prefetches p.next; it also prefetches p.experts */
	bool prefetch, prefetch_experts;
	bool has_body; /* the kernel is an entry and a body, which another kernel can call */
	TemplateLines head[DIRECTIVES], body;
	int n_condition;
	Condition condition[MAX_CONDITIONS];
};

struct Templates {
	Arena *arena;
	Diag *diag;
	const Target *target;
	int act_bits, act_bf16, act_f8;
	bool deterministic;
	const char *(*included)(
	    const char *path,
	    size_t *size); /* text of an included file; NULL: there is no such file */
	size_t n, cap;
	Template **t;
};

typedef enum CondState { COND_UNKNOWN, COND_TRUE, COND_FALSE } CondState;

/* State while a template's names are evaluated for one op */
typedef struct Bind {
	const Templates *ts;
	const Template *t;
	const Graph *g;
	const Op *op;
	int phase;
	const char *symbol;
	int depth; /* nesting depth of @let */
	unsigned char cond_state[MAX_CONDITIONS];
} Bind;

/* An argument as the head declares it, with its extents evaluated */
typedef struct ArgDecl {
	char name[32];
	PlanDir dir;
	const char *type;
	PlanExtent extent;
	bool sized;
} ArgDecl;

/* template_head.c. Returns false if errors are in ts->diag. */
bool template_parse(const Templates *ts, Template *t, const char *text);
/* Report an error at a line, and list the lines that include its file. */
void template_error_at(const Templates *ts, const TemplateLine *l, int col, const char *what);
/* Read a word of letters, digits and _. Returns its length; 0: there is none */
size_t template_word(const char **p, const char *end, char *out, size_t cap);

/* template.c. Functions that return bool return false after an error, which is in the diag with its
 * line and the lines that include its file. */
bool template_error(const Bind *b, const TemplateLine *l, const char *what); /* returns false */
/* returns false without an error if the name is undefined */
bool template_name(void *bind, const char *name, HeadValue *out);
bool template_eval(Bind *b, const TemplateLine *l, const char *text, size_t size, HeadValue *out);
/* Return whether the conditions of the line hold. */
bool template_taken(Bind *b, const TemplateLine *l, bool *out);
/* Return the symbol of that name (n_row: that of the op). Returns false without an error if there
 * is none. */
bool template_symbol(const Bind *b, const char *word, size_t n, PlanSym *out);
bool template_scratch(Bind *b, const TemplateLine *l, ArgDecl *out);
/* Check all @arg lines against the op. *fits is set to false, without an error, if only the kind of
 * rows or the type in this phase differs. */
bool template_args(Bind *b, ArgDecl arg[PLAN_MAX_ARGS], bool *fits);

/* template_text.c: key of a kernel, a hash of its text, headers, arguments and launches */
const char *template_key(const Templates *ts, const Kernel *k, const char *text);

/* template_launch.c. k must have all its arguments. */
bool template_launch(Bind *b, const TemplateLine *l, const PlanKernel *k, PlanLaunch *out);
bool template_map(Bind *b, const TemplateLine *l, const PlanKernel *k, PlanMap *out);

#endif

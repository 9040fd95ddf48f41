/* What template.c (heads, names, choice) and template_text.c (expansion) share. */
#ifndef LLMC_COMPILER_TEMPLATE_INTERNAL_H
#define LLMC_COMPILER_TEMPLATE_INTERNAL_H

#include "compiler/template.h"
#include "compiler/template_expr.h"

enum { MAX_LINES = 64 };

typedef struct Line { const char *text; size_t size; int line; } Line; /* what follows "//@word " */

struct Template {
	const char *path;
	SourceText  source;
	OpKind      op;
	bool        phase[PHASES];
	bool        both;       /* one text for all phases */
	int         n_require, n_param, n_arg, n_scratch, n_launch, n_map;
	Line        require[MAX_LINES], param[MAX_LINES], arg[PLAN_MAX_ARGS], scratch[4], launch[PLAN_MAX_LAUNCH], map[PLAN_MAX_MAP];
};

struct Templates {
	Arena      *arena;
	Diag       *diag;
	const Target *target;
	int         act_bits;
	bool        deterministic;
	size_t      n, cap;
	Template  **t;
};

/* What names mean while one template meets one op. */
typedef struct Bind {
	const Templates *ts;
	const Graph     *g;
	const Op        *op;
	int              phase;
	const char      *symbol;
} Bind;

/* One argument as the head declares it, extents evaluated. */
typedef struct ArgDecl { char name[32]; PlanDir dir; const char *type; PlanExtent extent; bool sized; } ArgDecl;

Loc    template_loc(const Template *t, int line, int col);
/* "//@word rest": false for any other line */
bool   template_directive(const char *p, size_t n, char word[16], Line *rest, int line);
size_t template_word(const char **p, const char *end, char *out, size_t cap);
bool   template_eval(const Bind *b, const Template *t, const Line *l, const char *text, size_t size, HeadValue *out);
bool   template_error(const Bind *b, const Template *t, const Line *l, const char *what);   /* false */
bool   template_name(void *bind, const char *name, HeadValue *out);
bool   template_arg(const Bind *b, const Template *t, const Line *l, bool scratch, ArgDecl *out);
/* A @scratch line. *take: it is part of this kernel */
bool   template_scratch(const Bind *b, const Template *t, const Line *l, ArgDecl *out, bool *take);
/* A condition (`if EXPR`, @require) */
bool   template_holds(const Bind *b, const Template *t, const Line *l, const char *p, const char *end, bool *out);
/* The i-th @launch line; symbol: of the kernel; k: with all its arguments. *take: it is part of this kernel */
bool   template_launch(const Bind *b, const Template *t, int i, const char *symbol, const PlanKernel *k, PlanLaunch *out, bool *take);
/* The i-th @map line; k: with all its arguments */
bool   template_map(const Bind *b, const Template *t, int i, const PlanKernel *k, PlanMap *out, bool *take);
/* All @arg lines against the op; fits false without an error: only the kind of rows differs. */
bool   template_args(const Bind *b, const Template *t, ArgDecl arg[PLAN_MAX_ARGS], bool *fits);

#endif

/* Parts of the evaluator of expressions: the parser calls the functions. */
#ifndef LLMC_COMPILER_SPEC_EXPR_INTERNAL_H
#define LLMC_COMPILER_SPEC_EXPR_INTERNAL_H

#include "compiler/spec/expr.h"

enum { MAX_DEPTH = 32, MAX_NAME = 128, MAX_LAYERS = 4096 };

typedef struct ExprParser {
	const char *text, *p;
	Loc loc;
	const SpecExprEnv *env;
	Diag *d;
	Arena *a;
	int depth;
	bool failed;
} ExprParser;

static const SpecExprVal expr_null = { .kind = EXPR_NULL };

/* expr_functions.c */
SpecExprVal expr_num(double v);
SpecExprVal expr_bool(bool v);
SpecExprVal expr_fail(ExprParser *s, const char *what);
/* Convert [1, 0] to [true, false]: flags per layer, whereas a list of numbers would be layer
 * indices. A number that was not read from a list stays a number. */
SpecExprVal expr_flags(ExprParser *s, SpecExprVal list, const char *text);
SpecExprVal expr_length(SpecExprVal v);
SpecExprVal expr_range(ExprParser *s, SpecExprVal n);
SpecExprVal expr_where(ExprParser *s, SpecExprVal list, const char *words);
SpecExprVal expr_at(ExprParser *s, SpecExprVal list, const char *text);
/* Return the largest number of a list, or a single number itself. */
SpecExprVal expr_greatest(SpecExprVal v);
/* Convert deviations of a normal distribution to the share below each. */
SpecExprVal expr_shares(ExprParser *s, SpecExprVal list);
/* Return the first n elements of a list, with null as 0. */
SpecExprVal expr_first(ExprParser *s, SpecExprVal list, const char *text);
/* Return the one number that a list has where the list "types" has the word, or everywhere if there
 * are no types. A single number is returned as it is. */
SpecExprVal expr_pick(ExprParser *s, SpecExprVal list, const char *text);
/* Return the layers with a tensor that matches the pattern, whose first * is the layer. The search
 * ends at the model's last layer, or at the first number without any tensor. */
SpecExprVal expr_layers(ExprParser *s, const char *pattern);

#endif

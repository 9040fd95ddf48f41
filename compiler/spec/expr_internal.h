/* Interfaces of the evaluator of expressions. The parser calls these functions. */
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
/* Convert [1, 0] to [true, false]. Booleans are flags per layer, while a list of numbers would be
 * indices of layers. A number that was not read from a list stays a number. */
SpecExprVal expr_flags(ExprParser *s, SpecExprVal list, const char *text);
SpecExprVal expr_length(SpecExprVal v);
SpecExprVal expr_range(ExprParser *s, SpecExprVal n);
SpecExprVal expr_where(ExprParser *s, SpecExprVal list, const char *words);
SpecExprVal expr_at(ExprParser *s, SpecExprVal list, const char *text);
/* Return the largest number of a list. A single number is returned as it is. */
SpecExprVal expr_greatest(SpecExprVal v);
/* Convert deviations of a normal distribution to the share of the distribution below each. */
SpecExprVal expr_shares(ExprParser *s, SpecExprVal list);
/* Return the first n elements of a list. n may be null, which counts as 0. */
SpecExprVal expr_first(ExprParser *s, SpecExprVal list, const char *text);
/* Return the number that a list has at all positions where the list "types" has the word, or at all
 * positions if there is no list of types. It is an error if these numbers differ. A single number
 * is returned as it is. */
SpecExprVal expr_pick(ExprParser *s, SpecExprVal list, const char *text);
/* Return the layers that have a tensor which matches the pattern; the first * is the layer. The
 * search ends at the model's last layer, or at the first number without any tensor. */
SpecExprVal expr_layers(ExprParser *s, const char *pattern);

#endif

/* The expression language of family files and defaults:
 *
 * or, and, not; == != < <= > >=; + - * / ^; ( ); numbers $key                       a resolved key
 * key                        a key of the source has(key or tensor)         whether it exists; a
 * tensor name may contain * rows(tensor), cols(tensor) the first and the last dimension of a tensor
 * floor(x) flags(key), flags(key, n)  a list of 0 and 1 as booleans; elements equal to n as true
 * where(key, word, ...)      indices below the model's layers at which a list (or the characters of
 *                             a string) has one of these words or numbers
 *  length(key)                number of elements
 *  at(key, n)                 element n of a list, from 0, or from its end if n < 0
 *  greatest(key)              largest number of a list
 *  first(key, n)              first n elements; n is a number or $key; null counts as 0
 *  pick(key, types, word)     the one number that key has where the list `types` has the word; an
 *                             error if they differ; pick(key): the one number of all elements
 *  shares(key)                per element: share of a normal distribution below that many
 *                             deviations
 *  layers(tensors)            layers, the first * of the name, that have such a tensor
 *  list + x, list - x         per element; list - list: elements not in the second list
 *
 * After == and != a bare word is a string, or true, false or null. An absent key is null, and
 * arithmetic on null is null. There are no loops. */
#ifndef LLMC_COMPILER_SPEC_EXPR_H
#define LLMC_COMPILER_SPEC_EXPR_H

#include "formats/diag.h"

typedef enum SpecExprKind { EXPR_NULL, EXPR_NUM, EXPR_BOOL, EXPR_STR, EXPR_LIST } SpecExprKind;

typedef struct SpecExprVal SpecExprVal;
struct SpecExprVal {
	SpecExprKind kind;
	double num; /* value of NUM; 0 or 1 of BOOL */
	const char *str;
	size_t n; /* LIST: number of elements; NUM, BOOL: length of the list of equal elements that
	             the value came from, otherwise 0 */
	const SpecExprVal *item;
};

typedef struct SpecExprEnv {
	void *user;
	/* Access to a source. A member may be NULL; the source then has no keys, or no tensors. */
	/* EXPR_NULL: the source has no such key */
	SpecExprVal (*key)(void *user, const char *name);
	SpecExprVal (*resolved)(void *user, const char *name);
	bool (*has)(void *user, const char *pattern);
	bool (*size)(void *user, const char *tensor, bool last,
	             double *out); /* first or last dimension of the tensor */
} SpecExprEnv;

/* Evaluate an expression. False: the error is in d, at its position within `text`, which starts at
 * loc. */
bool expr_eval(const char *text, Loc loc, const SpecExprEnv *env, Diag *d, Arena *a,
               SpecExprVal *out);
bool expr_true(SpecExprVal v); /* false for null, 0, "" and [] */
/* * matches any string; there are no other wildcards */
bool glob_match(const char *pattern, const char *text);

#endif

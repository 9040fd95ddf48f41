/* The small language of family files and of defaults:
 *
 *     or, and, not; == != < <= > >=; + - * / ^; ( ); numbers; $key (already resolved); key (of the
 * source); has(key or tensor, with *); rows(tensor), cols(tensor): its first and its last
 * dimension; floor(x); flags(key): a list of 0 and 1 as false and true, flags(key, n): elements
 * that are n as true; where(key, word, word ..): the places of a list of words or numbers, or of a
 * text's letters, that are one of these, up to the model's layers; length(key): how many there are;
 *     at(key, n): element n of a list, from 0 on, or below 0 from its end; greatest(key): the
 * largest number of a list; first(key, n): its first n elements, n a number or $key, null as 0;
 * pick(key, types, word): the one number that it has where the list `types` has the word,
 * pick(key): everywhere, an error where they differ; shares(key): what share of a normal
 * distribution lies below so many deviations, of each element; layers(tensors): the layers, the
 * first * of the name, in which such a tensor is; list + x, list - x: of each element
 *
 * Right of == and != a bare word is a word, true, false or null. What is absent is null; arithmetic
 * on null is null. No loops. */
#ifndef LLMC_COMPILER_SPEC_EXPR_H
#define LLMC_COMPILER_SPEC_EXPR_H

#include "formats/diag.h"

typedef enum SpecExprKind { EXPR_NULL, EXPR_NUM, EXPR_BOOL, EXPR_STR, EXPR_LIST } SpecExprKind;

typedef struct SpecExprVal SpecExprVal;
struct SpecExprVal {
	SpecExprKind kind;
	double num; /* NUM; BOOL: 0 or 1 */
	const char *str;
	size_t n; /* LIST; NUM, BOOL: of how many alike a list was, 0: of none */
	const SpecExprVal *item;
};

typedef struct SpecExprEnv {
	void *user;
	/* NULL members: there are no such things here */
	SpecExprVal (*key)(void *user, const char *name); /* EXPR_NULL: absent */
	SpecExprVal (*resolved)(void *user, const char *name);
	bool (*has)(void *user, const char *pattern);
	bool (*size)(void *user, const char *tensor, bool last,
	             double *out); /* the tensor's first or last dimension */
} SpecExprEnv;

/* false: an error is in d, at its place in `text`, which begins at loc */
bool expr_eval(const char *text, Loc loc, const SpecExprEnv *env, Diag *d, Arena *a,
               SpecExprVal *out);
bool expr_true(SpecExprVal v); /* null, 0, "" and [] are not */
bool glob_match(const char *pattern,
                const char *text); /* * stands for any text; no other sign does */

#endif

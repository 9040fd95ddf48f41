/* Expressions of template heads: comparisons, arithmetic, `in (a, b)`, and / or / not over names,
 * integers and bare words. */
#ifndef LLMC_COMPILER_TEMPLATE_TEMPLATE_EXPR_H
#define LLMC_COMPILER_TEMPLATE_TEMPLATE_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum HeadKind { HEAD_INT, HEAD_NUM, HEAD_WORD } HeadKind;
typedef struct HeadValue {
	HeadKind kind;
	int64_t i;  /* HEAD_INT; a truth value is 0 or 1 */
	double f;   /* HEAD_NUM */
	char s[64]; /* HEAD_WORD */
} HeadValue;

/* Look up a name; false: undefined. */
typedef bool head_name_fn(void *user, const char *name, HeadValue *out);

/* Evaluate an expression. Returns false on an error; *why is then the message and *at its offset in
 * the text. */
bool head_eval(const char *text, size_t size, head_name_fn *name, void *user, HeadValue *out,
               const char **why, size_t *at);

#endif

/* Values and functions of expressions */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compiler/spec/expr.h"
#include "base/number.h"
#include "compiler/spec/expr_internal.h"

SpecExprVal
expr_num(double v)
{
	return isfinite(v) ? (SpecExprVal){ .kind = EXPR_NUM, .num = v } : expr_null;
}

SpecExprVal
expr_bool(bool v)
{
	return (SpecExprVal){ .kind = EXPR_BOOL, .num = v };
}

bool
expr_true(SpecExprVal v)
{
	switch (v.kind) {
	case EXPR_NULL:
		return false;
	case EXPR_NUM:
	case EXPR_BOOL:
		return v.num != 0;
	case EXPR_STR:
		return *v.str != 0;
	case EXPR_LIST:
		return v.n != 0;
	}
	return false;
}

bool
glob_match(const char *pattern, const char *text)
{
	const char *star = NULL, *back = NULL;

	while (*text) {
		if (*pattern == '*') {
			star = ++pattern;
			back = text;
		} else if (*pattern == *text) {
			pattern++;
			text++;
		} else if (star) {
			pattern = star;
			text = ++back;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return !*pattern;
}

SpecExprVal
expr_fail(ExprParser *s, const char *what)
{
	if (!s->failed) {
		Loc loc = s->loc;
		if (loc.line > 0)
			loc.col += (int)(s->p - s->text);
		err_at(s->d, loc, "expression \"%s\": %s", s->text, what);
	}
	s->failed = true;
	return expr_null;
}

static bool
expr_is_word(SpecExprVal v, const char *word)
{
	double n;

	if (v.kind != EXPR_STR && number_parse(word, &n))
		return (v.kind == EXPR_NUM || v.kind == EXPR_BOOL) && v.num == n;
	return v.kind == EXPR_STR
	           ? strcmp(v.str, word) == 0
	           : v.kind == EXPR_BOOL && strcmp(v.num != 0 ? "true" : "false", word) == 0;
}

SpecExprVal
expr_flags(ExprParser *s, SpecExprVal list, const char *text)
{
	double n;
	bool one = number_parse(text + strspn(text, " "), &n); /* the second argument is present */

	if (list.kind == EXPR_BOOL || (list.kind == EXPR_NUM && list.n))
		return expr_bool(one ? list.num == n : list.num != 0);
	if (list.kind != EXPR_LIST)
		return list.kind == EXPR_NUM ? list : expr_null;
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);
	for (size_t i = 0; i < list.n; i++)
		item[i] = expr_bool(one ? list.item[i].kind == EXPR_NUM && list.item[i].num == n
		                        : expr_true(list.item[i]));
	return (SpecExprVal){ .kind = EXPR_LIST, .n = list.n, .item = item };
}

/* Return whether the value is one of the words, which are separated by commas or blanks. */
static bool
expr_is_one_of(const char *words, SpecExprVal v)
{
	char one[MAX_NAME];

	for (const char *p = words; *p;) {
		size_t k = strcspn(p, ", ");
		memcpy(one, p, k);
		one[k] = 0;
		if (k && expr_is_word(v, one))
			return true;
		p += k + (p[k] != 0);
	}
	return false;
}

SpecExprVal
expr_length(SpecExprVal v)
{
	return v.kind == EXPR_STR           ? expr_num((double)strlen(v.str))
	       : v.kind == EXPR_LIST || v.n ? expr_num((double)v.n)
	                                    : expr_null;
}

/* Return the model's number of layers, or the maximum if that key is not resolved yet. */
static size_t
layers_at_most(const ExprParser *s)
{
	const SpecExprVal of =
	    s->env->resolved ? s->env->resolved(s->env->user, "n_layers") : expr_null;

	return of.kind == EXPR_NUM && of.num >= 0 && of.num < MAX_LAYERS ? (size_t)of.num
	                                                                 : MAX_LAYERS;
}

SpecExprVal
expr_where(ExprParser *s, SpecExprVal list, const char *words)
{
	const size_t most = layers_at_most(s);
	size_t n = (size_t)expr_length(list).num, found = 0;

	if (expr_length(list).kind == EXPR_NULL)
		return expr_null;
	n = n < most ? n : most;
	SpecExprVal *item = NEW(s->a, SpecExprVal, n + 1);
	for (size_t i = 0; i < n; i++) {
		const char letter[2] = { list.kind == EXPR_STR ? list.str[i] : 0, 0 };
		if (expr_is_one_of(words, list.kind == EXPR_STR
		                              ? (SpecExprVal){ .kind = EXPR_STR, .str = letter }
		                          : list.kind == EXPR_LIST ? list.item[i]
		                                                   : list))
			item[found++] = expr_num((double)i);
	}
	return (SpecExprVal){ .kind = EXPR_LIST, .n = found, .item = item };
}

/* Parse an integer: a number, or $ and a resolved key. */
static bool
integer_arg(ExprParser *s, const char *text, double *to)
{
	text += strspn(text, " ");
	if (number_parse(text, to))
		return true;
	SpecExprVal v =
	    *text == '$' && s->env->resolved ? s->env->resolved(s->env->user, text + 1) : expr_null;
	*to = v.num;
	return v.kind == EXPR_NUM;
}

SpecExprVal
expr_at(ExprParser *s, SpecExprVal list, const char *text)
{
	double i;

	if (list.kind != EXPR_LIST || !integer_arg(s, text, &i))
		return expr_null;
	i += i < 0 ? (double)list.n : 0;
	return i >= 0 && i < (double)list.n ? list.item[(size_t)i] : expr_null;
}

SpecExprVal
expr_greatest(SpecExprVal v)
{
	SpecExprVal most = v.kind == EXPR_LIST ? expr_null : v;

	for (size_t i = 0; v.kind == EXPR_LIST && i < v.n; i++)
		if (v.item[i].kind == EXPR_NUM &&
		    (most.kind == EXPR_NULL || v.item[i].num > most.num))
			most = v.item[i];
	return most.kind == EXPR_NUM ? most : expr_null;
}

SpecExprVal
expr_shares(ExprParser *s, SpecExprVal list)
{
	if (list.kind != EXPR_LIST)
		return expr_null;
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);
	for (size_t i = 0; i < list.n; i++)
		item[i] = list.item[i].kind == EXPR_NUM
		              ? expr_num(0.5 * erfc(-list.item[i].num * sqrt(0.5)))
		              : expr_num(0);
	return (SpecExprVal){ .kind = EXPR_LIST, .n = list.n, .item = item };
}

SpecExprVal
expr_first(ExprParser *s, SpecExprVal list, const char *text)
{
	double n;

	if (list.kind == EXPR_NUM && list.n) { /* equal elements */
		SpecExprVal *all = NEW(s->a, SpecExprVal, list.n);
		for (size_t i = 0; i < list.n; i++)
			all[i] = expr_num(list.num);
		list = (SpecExprVal){ .kind = EXPR_LIST, .n = list.n, .item = all };
	}
	if (list.kind != EXPR_LIST || !integer_arg(s, text, &n) || !(n >= 0))
		return expr_null;
	size_t count = n < (double)list.n ? (size_t)n : list.n;
	SpecExprVal *item = NEW(s->a, SpecExprVal, count + 1);
	for (size_t i = 0; i < count; i++)
		item[i] = list.item[i].kind == EXPR_NULL ? expr_num(0) : list.item[i];
	return (SpecExprVal){ .kind = EXPR_LIST, .n = count, .item = item };
}

SpecExprVal
expr_range(ExprParser *s, SpecExprVal n)
{
	if (n.kind != EXPR_NUM || !(n.num >= 0) || n.num > MAX_LAYERS)
		return expr_null;
	const size_t count = (size_t)n.num;
	SpecExprVal *item = NEW(s->a, SpecExprVal, count + 1);
	for (size_t i = 0; i < count; i++)
		item[i] = expr_num((double)i);
	return (SpecExprVal){ .kind = EXPR_LIST, .n = count, .item = item };
}

SpecExprVal
expr_pick(ExprParser *s, SpecExprVal list, const char *text)
{
	char name[MAX_NAME];
	size_t n = strcspn(text += strspn(text, " "), ", ");
	SpecExprVal types = expr_null, one = expr_null;

	if (list.kind != EXPR_LIST)
		return list.kind == EXPR_NUM ? list : expr_null;
	memcpy(name, text, n);
	name[n] = 0;
	if (n) {
		types = s->env->key ? s->env->key(s->env->user, name) : expr_null;
		text += n + strspn(text + n, ", ");
		if (types.kind != EXPR_LIST)
			return expr_null;
	}
	for (size_t i = 0; i < list.n; i++) {
		const SpecExprVal v = list.item[i];
		if (n && (i >= types.n || !expr_is_word(types.item[i], text)))
			continue;
		if (v.kind != EXPR_NUM || (one.kind == EXPR_NUM && one.num != v.num))
			return expr_fail(
			    s, n ? "layers of one kind have different values: llmc "
			           "supports one value per kind of layer"
			         : "layers have different values: llmc supports one value "
			           "for all layers");
		one = v;
	}
	return one;
}

SpecExprVal
expr_layers(ExprParser *s, const char *pattern)
{
	const char *star = strchr(pattern, '*');
	SpecExprVal *item = NEW(s->a, SpecExprVal, MAX_LAYERS);
	size_t found = 0;
	const int n_layers = (int)layers_at_most(s);

	if (!star || !s->env->has)
		return expr_null;
	for (int l = 0; l < n_layers; l++) {
		char any[MAX_NAME + 16], own[2 * MAX_NAME];
		snprintf(any, sizeof any, "%.*s%d.*", (int)(star - pattern), pattern, l);
		snprintf(own, sizeof own, "%.*s%d%s", (int)(star - pattern), pattern, l, star + 1);
		if (!s->env->has(s->env->user, any))
			break;
		if (s->env->has(s->env->user, own))
			item[found++] = expr_num(l);
	}
	return (SpecExprVal){ .kind = EXPR_LIST, .n = found, .item = item };
}

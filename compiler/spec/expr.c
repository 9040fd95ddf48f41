/* Evaluator of expressions: recursive descent over one line. Depth is bounded, and the language has
 * no loops. */
#include <math.h>
#include <string.h>

#include "compiler/spec/expr.h"
#include "base/number.h"
#include "compiler/spec/expr_internal.h"

static SpecExprVal expr_or(ExprParser *s);

static void
space(ExprParser *s)
{
	while (*s->p == ' ' || *s->p == '\t' || *s->p == '\n')
		s->p++;
}

static bool
name_start(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool
name_part(char c)
{
	return name_start(c) || (c >= '0' && c <= '9') || c == '.';
}

/* Consume `word` if it is at the current position. */
static bool
word(ExprParser *s, const char *w)
{
	size_t n = strlen(w);

	space(s);
	if (strncmp(s->p, w, n) != 0 || name_part(s->p[n]))
		return false;
	s->p += n;
	return true;
}

static bool
sign(ExprParser *s, const char *w)
{
	size_t n = strlen(w);

	space(s);
	if (strncmp(s->p, w, n) != 0)
		return false;
	s->p += n;
	return true;
}

static bool
name(ExprParser *s, char out[MAX_NAME])
{
	size_t n = 0;

	if (!name_start(*s->p))
		return false;
	while (name_part(s->p[n]))
		n++;
	if (n >= MAX_NAME)
		return false;
	memcpy(out, s->p, n);
	out[n] = 0;
	s->p += n;
	return true;
}

/* Copy everything up to the closing bracket. Names of tensors contain characters that are operators
 * elsewhere. */
static bool
raw(ExprParser *s, char out[MAX_NAME])
{
	const char *end = strchr(s->p, ')');

	space(s);
	if (!end || end <= s->p || end - s->p >= MAX_NAME)
		return false;
	size_t n = (size_t)(end - s->p);
	memcpy(out, s->p, n);
	while (n && out[n - 1] == ' ')
		n--;
	out[n] = 0;
	s->p = end + 1;
	return n > 0;
}

static SpecExprVal
primary(ExprParser *s)
{
	char id[MAX_NAME];

	space(s);
	if (*s->p == '(') {
		if (++s->depth > MAX_DEPTH)
			return expr_fail(s, "nested too deep");
		s->p++;
		SpecExprVal v = expr_or(s);
		s->depth--;
		if (!sign(s, ")"))
			return expr_fail(s, "a ) is missing");
		return v;
	}
	if (*s->p == '$') {
		s->p++;
		if (!name(s, id))
			return expr_fail(s, "$ must be followed by the name of a key");
		return s->env->resolved ? s->env->resolved(s->env->user, id) : expr_null;
	}
	if ((*s->p >= '0' && *s->p <= '9') || *s->p == '.') {
		char digits[48];
		size_t n = 0;
		double v;
		while (n < sizeof digits - 1 &&
		       ((s->p[n] >= '0' && s->p[n] <= '9') || s->p[n] == '.' || s->p[n] == 'e' ||
		        s->p[n] == 'E' ||
		        (n && (s->p[n] == '-' || s->p[n] == '+') &&
		         (s->p[n - 1] == 'e' || s->p[n - 1] == 'E'))))
			n++;
		memcpy(digits, s->p, n);
		digits[n] = 0;
		if (!number_parse(digits, &v))
			return expr_fail(s, "not a number");
		s->p += n;
		return expr_num(v);
	}
	if (!name(s, id))
		return expr_fail(s, *s->p ? "a number, a key or ( is expected here"
		                          : "it ends too early: a number, a key or ( is expected");
	space(s);
	if (*s->p == '(') {
		bool cols = strcmp(id, "cols") == 0, size = cols || strcmp(id, "rows") == 0;
		char arg[MAX_NAME];
		double v;
		bool whole = strcmp(id, "floor") == 0, flags = strcmp(id, "flags") == 0,
		     where = strcmp(id, "where") == 0, length = strcmp(id, "length") == 0,
		     at = strcmp(id, "at") == 0;
		bool most = strcmp(id, "greatest") == 0, layers = strcmp(id, "layers") == 0,
		     front = strcmp(id, "first") == 0, picked = strcmp(id, "pick") == 0,
		     share = strcmp(id, "shares") == 0, range = strcmp(id, "range") == 0;
		if (!size && !whole && !flags && !where && !length && !at && !most && !layers &&
		    !front && !picked && !share && !range && strcmp(id, "has") != 0)
			return expr_fail(
			    s,
			    "known functions are has(x), rows(tensor), cols(tensor), "
			    "floor(x), flags(list), where(list, words), length(list), "
			    "at(list, n), greatest(list), first(list, n), "
			    "pick(list, types, word), shares(list), range(n) and layers(tensors)");
		s->p++;
		if (whole) {
			SpecExprVal x = expr_or(s);
			space(s);
			if (*s->p != ')')
				return expr_fail(s, "a ) is expected here");
			s->p++;
			return x.kind == EXPR_NUM ? expr_num(floor(x.num)) : expr_null;
		}
		if (!raw(s, arg))
			return expr_fail(s, "a name and ) are expected here");
		if (where || length || at || flags || front || picked) {
			char *more = arg + strcspn(arg, ",");
			if (*more)
				*more++ = 0;
			SpecExprVal list = s->env->key ? s->env->key(s->env->user, arg) : expr_null;
			if (front || picked)
				return front ? expr_first(s, list, more) : expr_pick(s, list, more);
			return where    ? expr_where(s, list, more)
			       : length ? expr_length(list)
			       : flags  ? expr_flags(s, list, more)
			                : expr_at(s, list, more);
		}
		if (layers)
			return expr_layers(s, arg);
		if (range)
			return expr_range(s,
			                  s->env->key ? s->env->key(s->env->user, arg) : expr_null);
		if (share)
			return expr_shares(s, s->env->key ? s->env->key(s->env->user, arg)
			                                  : expr_null);
		if (most)
			return expr_greatest(s->env->key ? s->env->key(s->env->user, arg)
			                                 : expr_null);
		if (!size)
			return expr_bool(s->env->has && s->env->has(s->env->user, arg));
		return s->env->size && s->env->size(s->env->user, arg, cols, &v) ? expr_num(v)
		                                                                 : expr_null;
	}
	if (strcmp(id, "true") == 0 || strcmp(id, "false") == 0)
		return expr_bool(*id == 't');
	if (strcmp(id, "null") == 0)
		return expr_null;
	return s->env->key ? s->env->key(s->env->user, id) : expr_null;
}

static bool
numeric(ExprParser *s, SpecExprVal v)
{
	if (v.kind == EXPR_STR)
		expr_fail(s, "a number is expected, not a string");
	else if (v.kind == EXPR_LIST)
		expr_fail(s, "a number is expected, not a list");
	return v.kind == EXPR_NUM || v.kind == EXPR_BOOL;
}

static SpecExprVal expr_unary(ExprParser *s);

static SpecExprVal
expr_power(ExprParser *s)
{
	SpecExprVal x = primary(s);

	if (!sign(s, "^"))
		return x;
	if (++s->depth > MAX_DEPTH)
		return expr_fail(s, "nested too deep");
	SpecExprVal y = expr_unary(s);
	s->depth--;
	if (!numeric(s, x) || !numeric(s, y))
		return expr_null;
	return expr_num(pow(x.num, y.num));
}

static SpecExprVal
expr_unary(ExprParser *s)
{
	bool minus = false;

	while (sign(s, "-"))
		minus = !minus;
	SpecExprVal v = expr_power(s);
	if (!minus)
		return v;
	return numeric(s, v) ? expr_num(-v.num) : expr_null;
}

static SpecExprVal
expr_product(ExprParser *s)
{
	SpecExprVal v = expr_unary(s);

	for (;;) {
		bool times = sign(s, "*");
		if (!times && !sign(s, "/"))
			return v;
		SpecExprVal w = expr_unary(s);
		bool ok = numeric(s, v) && numeric(s, w);
		v = ok ? expr_num(times ? v.num * w.num : v.num / w.num)
		       : expr_null; /* x / 0 is null as well */
	}
}

/* Add a number to each element of a list, for example if layers are counted from 1. */
static SpecExprVal
shifted(ExprParser *s, SpecExprVal list, double by)
{
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);

	for (size_t i = 0; i < list.n; i++) {
		if (!numeric(s, list.item[i]))
			return expr_null;
		item[i] = expr_num(list.item[i].num + by);
	}
	return (SpecExprVal){ .kind = EXPR_LIST, .n = list.n, .item = item };
}

/* Return the elements of a list that the other list does not contain. */
static SpecExprVal
without(ExprParser *s, SpecExprVal list, SpecExprVal drop)
{
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);
	size_t n = 0;

	for (size_t i = 0; i < list.n; i++) {
		bool dropped = false;
		for (size_t j = 0; j < drop.n; j++)
			dropped |= list.item[i].kind == EXPR_NUM && drop.item[j].kind == EXPR_NUM &&
			           list.item[i].num == drop.item[j].num;
		if (!dropped)
			item[n++] = list.item[i];
	}
	return (SpecExprVal){ .kind = EXPR_LIST, .n = n, .item = item };
}

static SpecExprVal
expr_sum(ExprParser *s)
{
	SpecExprVal v = expr_product(s);

	for (;;) {
		bool plus = sign(s, "+");
		if (!plus && !sign(s, "-"))
			return v;
		SpecExprVal w = expr_product(s);
		if (v.kind == EXPR_LIST && w.kind == EXPR_NUM) {
			v = shifted(s, v, plus ? w.num : -w.num);
			continue;
		}
		if (v.kind == EXPR_LIST && w.kind == EXPR_LIST && !plus) {
			v = without(s, v, w);
			continue;
		}
		bool ok = numeric(s, v) && numeric(s, w);
		v = ok ? expr_num(plus ? v.num + w.num : v.num - w.num) : expr_null;
	}
}

static bool
same(SpecExprVal x, SpecExprVal y)
{
	bool nx = x.kind == EXPR_NUM || x.kind == EXPR_BOOL,
	     ny = y.kind == EXPR_NUM || y.kind == EXPR_BOOL;

	if (nx && ny)
		return x.num == y.num;
	if (x.kind == EXPR_STR && y.kind == EXPR_STR)
		return strcmp(x.str, y.str) == 0;
	return x.kind == EXPR_NULL && y.kind == EXPR_NULL;
}

/* Parse the operand of == or !=. A bare word is a string there, and may contain hyphens
 * (minimax-m2). */
static SpecExprVal
literal_or_sum(ExprParser *s)
{
	char id[MAX_NAME];
	const char *at;

	space(s);
	at = s->p;
	if (name(s, id)) {
		while (*s->p == '-' && name_part(s->p[1]))
			for (s->p++; name_part(*s->p);)
				s->p++;
		if (s->p > at + strlen(id))
			return (SpecExprVal){ .kind = EXPR_STR,
				              .str = arena_strndup(s->a, at, (size_t)(s->p - at)) };
		space(s);
		if (*s->p != '(') {
			if (strcmp(id, "true") == 0 || strcmp(id, "false") == 0)
				return expr_bool(*id == 't');
			if (strcmp(id, "null") == 0)
				return expr_null;
			return (SpecExprVal){ .kind = EXPR_STR, .str = arena_strdup(s->a, id) };
		}
		s->p = at;
	}
	return expr_sum(s);
}

static SpecExprVal
expr_compare(ExprParser *s)
{
	SpecExprVal x = expr_sum(s);

	if (sign(s, "=="))
		return expr_bool(same(x, literal_or_sum(s)));
	if (sign(s, "!="))
		return expr_bool(!same(x, literal_or_sum(s)));
	bool le = sign(s, "<="), ge = !le && sign(s, ">="), lt = !le && !ge && sign(s, "<"),
	     gt = !le && !ge && !lt && sign(s, ">");
	if (!le && !ge && !lt && !gt)
		return x;
	SpecExprVal y = expr_sum(s);
	if (!numeric(s, x) || !numeric(s, y))
		return expr_bool(false);
	return expr_bool(le   ? x.num <= y.num
	                 : ge ? x.num >= y.num
	                 : lt ? x.num < y.num
	                      : x.num > y.num);
}

static SpecExprVal
expr_not(ExprParser *s)
{
	bool negate = false, any = false;

	while (word(s, "not")) {
		negate = !negate;
		any = true;
	}
	SpecExprVal v = expr_compare(s);
	return any ? expr_bool(expr_true(v) != negate) : v;
}

static SpecExprVal
expr_and(ExprParser *s)
{
	SpecExprVal v = expr_not(s);

	while (word(s, "and")) {
		SpecExprVal w = expr_not(s);
		v = expr_bool(expr_true(v) && expr_true(w));
	}
	return v;
}

static SpecExprVal
expr_or(ExprParser *s)
{
	SpecExprVal v = expr_and(s);

	while (word(s, "or")) {
		SpecExprVal w = expr_and(s);
		v = expr_bool(expr_true(v) || expr_true(w));
	}
	return v;
}

bool
expr_eval(const char *text, Loc loc, const SpecExprEnv *env, Diag *d, Arena *a, SpecExprVal *out)
{
	ExprParser s = { .text = text, .p = text, .loc = loc, .env = env, .d = d, .a = a };

	*out = expr_or(&s);
	space(&s);
	if (!s.failed && *s.p)
		expr_fail(&s, "the end is expected here");
	if (s.failed)
		*out = expr_null;
	return !s.failed;
}

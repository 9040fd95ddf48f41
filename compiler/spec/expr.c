/* Recursive descent over one line; depth is bounded and there are no loops. */
#include "compiler/spec/expr.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/yaml.h"

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

static SpecExprVal expr_or(ExprParser *s);

static const SpecExprVal null_val = { .kind = EXPR_NULL };

static SpecExprVal
num(double v)
{
	return isfinite(v) ? (SpecExprVal){ .kind = EXPR_NUM, .num = v } : null_val;
}

static SpecExprVal
to_bool(bool v)
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

static SpecExprVal
fail(ExprParser *s, const char *what)
{
	if (!s->failed) {
		Loc loc = s->loc;
		if (loc.line > 0)
			loc.col += (int)(s->p - s->text);
		err_at(s->d, loc, "expression \"%s\": %s", s->text, what);
	}
	s->failed = true;
	return null_val;
}

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

/* Consume `word` if it is at p. */
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

/* Copy everything up to the closing bracket: names of tensors contain characters that are operators
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

static bool
is_word(SpecExprVal v, const char *word)
{
	double n;

	if (v.kind != EXPR_STR && number_parse(word, &n))
		return (v.kind == EXPR_NUM || v.kind == EXPR_BOOL) && v.num == n;
	return v.kind == EXPR_STR
	           ? strcmp(v.str, word) == 0
	           : v.kind == EXPR_BOOL && strcmp(v.num != 0 ? "true" : "false", word) == 0;
}

/* Convert [1, 0] to [true, false]: flags per layer, whereas a list of numbers would be layer
 * indices. A number that was not read from a list stays a number. */
static SpecExprVal
to_flags(ExprParser *s, SpecExprVal list, const char *text)
{
	double n;
	bool one = number_parse(text + strspn(text, " "), &n); /* second argument given */

	if (list.kind == EXPR_BOOL || (list.kind == EXPR_NUM && list.n))
		return to_bool(one ? list.num == n : list.num != 0);
	if (list.kind != EXPR_LIST)
		return list.kind == EXPR_NUM ? list : null_val;
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);
	for (size_t i = 0; i < list.n; i++)
		item[i] = to_bool(one ? list.item[i].kind == EXPR_NUM && list.item[i].num == n
		                      : expr_true(list.item[i]));
	return (SpecExprVal){ .kind = EXPR_LIST, .n = list.n, .item = item };
}

/* Return whether the value is one of the words, which are separated by commas or blanks. */
static bool
is_one_of(const char *words, SpecExprVal v)
{
	char one[MAX_NAME];

	for (const char *p = words; *p;) {
		size_t k = strcspn(p, ", ");
		memcpy(one, p, k);
		one[k] = 0;
		if (k && is_word(v, one))
			return true;
		p += k + (p[k] != 0);
	}
	return false;
}

static SpecExprVal
count(SpecExprVal v)
{
	return v.kind == EXPR_STR           ? num((double)strlen(v.str))
	       : v.kind == EXPR_LIST || v.n ? num((double)v.n)
	                                    : null_val;
}

/* Return the model's number of layers, or the maximum if it is not resolved yet. */
static size_t
layers_at_most(const ExprParser *s)
{
	const SpecExprVal of =
	    s->env->resolved ? s->env->resolved(s->env->user, "n_layers") : null_val;

	return of.kind == EXPR_NUM && of.num >= 0 && of.num < MAX_LAYERS ? (size_t)of.num
	                                                                 : MAX_LAYERS;
}

static SpecExprVal
indices_of(ExprParser *s, SpecExprVal list, const char *words)
{
	const size_t most = layers_at_most(s);
	size_t n = (size_t)count(list).num, found = 0;

	if (count(list).kind == EXPR_NULL)
		return null_val;
	n = n < most ? n : most;
	SpecExprVal *item = NEW(s->a, SpecExprVal, n + 1);
	for (size_t i = 0; i < n; i++) {
		const char letter[2] = { list.kind == EXPR_STR ? list.str[i] : 0, 0 };
		if (is_one_of(words, list.kind == EXPR_STR
		                         ? (SpecExprVal){ .kind = EXPR_STR, .str = letter }
		                     : list.kind == EXPR_LIST ? list.item[i]
		                                              : list))
			item[found++] = num((double)i);
	}
	return (SpecExprVal){ .kind = EXPR_LIST, .n = found, .item = item };
}

/* Parse a number, or a resolved key after $. */
static bool
integer_arg(ExprParser *s, const char *text, double *to)
{
	text += strspn(text, " ");
	if (number_parse(text, to))
		return true;
	SpecExprVal v =
	    *text == '$' && s->env->resolved ? s->env->resolved(s->env->user, text + 1) : null_val;
	*to = v.num;
	return v.kind == EXPR_NUM;
}

static SpecExprVal
element(ExprParser *s, SpecExprVal list, const char *text)
{
	double i;

	if (list.kind != EXPR_LIST || !integer_arg(s, text, &i))
		return null_val;
	i += i < 0 ? (double)list.n : 0;
	return i >= 0 && i < (double)list.n ? list.item[(size_t)i] : null_val;
}

/* Return the largest number of a list, or a single number itself. */
static SpecExprVal
max_of_list(SpecExprVal v)
{
	SpecExprVal most = v.kind == EXPR_LIST ? null_val : v;

	for (size_t i = 0; v.kind == EXPR_LIST && i < v.n; i++)
		if (v.item[i].kind == EXPR_NUM &&
		    (most.kind == EXPR_NULL || v.item[i].num > most.num))
			most = v.item[i];
	return most.kind == EXPR_NUM ? most : null_val;
}

/* Convert deviations of a normal distribution to the share below each. */
static SpecExprVal
normal_cdf(ExprParser *s, SpecExprVal list)
{
	if (list.kind != EXPR_LIST)
		return null_val;
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);
	for (size_t i = 0; i < list.n; i++)
		item[i] = list.item[i].kind == EXPR_NUM
		              ? num(0.5 * erfc(-list.item[i].num * sqrt(0.5)))
		              : num(0);
	return (SpecExprVal){ .kind = EXPR_LIST, .n = list.n, .item = item };
}

/* Return the first n elements of a list, with null as 0. */
static SpecExprVal
first(ExprParser *s, SpecExprVal list, const char *text)
{
	double n;

	if (list.kind != EXPR_LIST || !integer_arg(s, text, &n) || !(n >= 0))
		return null_val;
	size_t count = n < (double)list.n ? (size_t)n : list.n;
	SpecExprVal *item = NEW(s->a, SpecExprVal, count + 1);
	for (size_t i = 0; i < count; i++)
		item[i] = list.item[i].kind == EXPR_NULL ? num(0) : list.item[i];
	return (SpecExprVal){ .kind = EXPR_LIST, .n = count, .item = item };
}

/* Return the one number that a list has where the list "types" has the word, or everywhere if there
 * are no types. A single number is returned as it is. */
static SpecExprVal
uniform_value(ExprParser *s, SpecExprVal list, const char *text)
{
	char name[MAX_NAME];
	size_t n = strcspn(text += strspn(text, " "), ", ");
	SpecExprVal types = null_val, one = null_val;

	if (list.kind != EXPR_LIST)
		return list.kind == EXPR_NUM ? list : null_val;
	memcpy(name, text, n);
	name[n] = 0;
	if (n) {
		types = s->env->key ? s->env->key(s->env->user, name) : null_val;
		text += n + strspn(text + n, ", ");
		if (types.kind != EXPR_LIST)
			return null_val;
	}
	for (size_t i = 0; i < list.n; i++) {
		const SpecExprVal v = list.item[i];
		if (n && (i >= types.n || !is_word(types.item[i], text)))
			continue;
		if (v.kind != EXPR_NUM || (one.kind == EXPR_NUM && one.num != v.num))
			return fail(s, n ? "layers of one kind have different values: llmc "
			                   "supports one value per kind of layer"
			                 : "layers have different values: llmc supports one value "
			                   "for all layers");
		one = v;
	}
	return one;
}

/* Return the layers with a tensor that matches the pattern, whose first * is the layer. The search
 * ends at the model's last layer, or at the first number without any tensor. */
static SpecExprVal
layers_with(ExprParser *s, const char *pattern)
{
	const char *star = strchr(pattern, '*');
	SpecExprVal *item = NEW(s->a, SpecExprVal, MAX_LAYERS);
	size_t found = 0;
	const int n_layers = (int)layers_at_most(s);

	if (!star || !s->env->has)
		return null_val;
	for (int l = 0; l < n_layers; l++) {
		char any[MAX_NAME + 16], own[2 * MAX_NAME];
		snprintf(any, sizeof any, "%.*s%d.*", (int)(star - pattern), pattern, l);
		snprintf(own, sizeof own, "%.*s%d%s", (int)(star - pattern), pattern, l, star + 1);
		if (!s->env->has(s->env->user, any))
			break;
		if (s->env->has(s->env->user, own))
			item[found++] = num(l);
	}
	return (SpecExprVal){ .kind = EXPR_LIST, .n = found, .item = item };
}

static SpecExprVal
primary(ExprParser *s)
{
	char id[MAX_NAME];

	space(s);
	if (*s->p == '(') {
		if (++s->depth > MAX_DEPTH)
			return fail(s, "nested too deep");
		s->p++;
		SpecExprVal v = expr_or(s);
		s->depth--;
		if (!sign(s, ")"))
			return fail(s, "a ) is missing");
		return v;
	}
	if (*s->p == '$') {
		s->p++;
		if (!name(s, id))
			return fail(s, "$ must be followed by the name of a key");
		return s->env->resolved ? s->env->resolved(s->env->user, id) : null_val;
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
			return fail(s, "not a number");
		s->p += n;
		return num(v);
	}
	if (!name(s, id))
		return fail(s, *s->p ? "a number, a key or ( is expected here"
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
		     share = strcmp(id, "shares") == 0;
		if (!size && !whole && !flags && !where && !length && !at && !most && !layers &&
		    !front && !picked && !share && strcmp(id, "has") != 0)
			return fail(s, "known functions are has(x), rows(tensor), cols(tensor), "
			               "floor(x), flags(list), where(list, words), length(list), "
			               "at(list, n), greatest(list), first(list, n), "
			               "pick(list, types, word), shares(list) and layers(tensors)");
		s->p++;
		if (whole) {
			SpecExprVal x = expr_or(s);
			space(s);
			if (*s->p != ')')
				return fail(s, "a ) is expected here");
			s->p++;
			return x.kind == EXPR_NUM ? num(floor(x.num)) : null_val;
		}
		if (!raw(s, arg))
			return fail(s, "a name and ) are expected here");
		if (where || length || at || flags || front || picked) {
			char *more = arg + strcspn(arg, ",");
			if (*more)
				*more++ = 0;
			SpecExprVal list = s->env->key ? s->env->key(s->env->user, arg) : null_val;
			if (front || picked)
				return front ? first(s, list, more) : uniform_value(s, list, more);
			return where    ? indices_of(s, list, more)
			       : length ? count(list)
			       : flags  ? to_flags(s, list, more)
			                : element(s, list, more);
		}
		if (layers)
			return layers_with(s, arg);
		if (share)
			return normal_cdf(s,
			                  s->env->key ? s->env->key(s->env->user, arg) : null_val);
		if (most)
			return max_of_list(s->env->key ? s->env->key(s->env->user, arg) : null_val);
		if (!size)
			return to_bool(s->env->has && s->env->has(s->env->user, arg));
		return s->env->size && s->env->size(s->env->user, arg, cols, &v) ? num(v)
		                                                                 : null_val;
	}
	if (strcmp(id, "true") == 0 || strcmp(id, "false") == 0)
		return to_bool(*id == 't');
	if (strcmp(id, "null") == 0)
		return null_val;
	return s->env->key ? s->env->key(s->env->user, id) : null_val;
}

static bool
numeric(ExprParser *s, SpecExprVal v)
{
	if (v.kind == EXPR_STR)
		fail(s, "a number is expected, not a string");
	else if (v.kind == EXPR_LIST)
		fail(s, "a number is expected, not a list");
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
		return fail(s, "nested too deep");
	SpecExprVal y = expr_unary(s);
	s->depth--;
	if (!numeric(s, x) || !numeric(s, y))
		return null_val;
	return num(pow(x.num, y.num));
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
	return numeric(s, v) ? num(-v.num) : null_val;
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
		v = ok ? num(times ? v.num * w.num : v.num / w.num)
		       : null_val; /* x / 0 is null as well */
	}
}

/* Add a number to each element of a list, for example for layers counted from 1. */
static SpecExprVal
shifted(ExprParser *s, SpecExprVal list, double by)
{
	SpecExprVal *item = NEW(s->a, SpecExprVal, list.n + 1);

	for (size_t i = 0; i < list.n; i++) {
		if (!numeric(s, list.item[i]))
			return null_val;
		item[i] = num(list.item[i].num + by);
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
		v = ok ? num(plus ? v.num + w.num : v.num - w.num) : null_val;
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

/* After == and !=: a bare word is a string, hyphens included (minimax-m2). */
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
				return to_bool(*id == 't');
			if (strcmp(id, "null") == 0)
				return null_val;
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
		return to_bool(same(x, literal_or_sum(s)));
	if (sign(s, "!="))
		return to_bool(!same(x, literal_or_sum(s)));
	bool le = sign(s, "<="), ge = !le && sign(s, ">="), lt = !le && !ge && sign(s, "<"),
	     gt = !le && !ge && !lt && sign(s, ">");
	if (!le && !ge && !lt && !gt)
		return x;
	SpecExprVal y = expr_sum(s);
	if (!numeric(s, x) || !numeric(s, y))
		return to_bool(false);
	return to_bool(le   ? x.num <= y.num
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
	return any ? to_bool(expr_true(v) != negate) : v;
}

static SpecExprVal
expr_and(ExprParser *s)
{
	SpecExprVal v = expr_not(s);

	while (word(s, "and")) {
		SpecExprVal w = expr_not(s);
		v = to_bool(expr_true(v) && expr_true(w));
	}
	return v;
}

static SpecExprVal
expr_or(ExprParser *s)
{
	SpecExprVal v = expr_and(s);

	while (word(s, "or")) {
		SpecExprVal w = expr_and(s);
		v = to_bool(expr_true(v) || expr_true(w));
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
		fail(&s, "the end is expected here");
	if (s.failed)
		*out = null_val;
	return !s.failed;
}

#include "compiler/template/template_expr.h"

#include <ctype.h>
#include <string.h>

typedef struct Parser {
	const char *text;
	size_t size, at;
	head_name_fn *name;
	void *user;
	const char *why;
	int depth;
} Parser;

enum { MAX_DEPTH = 50 };

static bool parse_or(Parser *p, HeadValue *out);

static bool
fail(Parser *p, const char *why)
{
	if (!p->why)
		p->why = why;
	return false;
}

static void
blanks(Parser *p)
{
	while (p->at < p->size && (p->text[p->at] == ' ' || p->text[p->at] == '\t'))
		p->at++;
}

static bool
word_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

static bool
take(Parser *p, const char *token)
{
	size_t n = strlen(token);

	blanks(p);
	if (p->size - p->at < n || memcmp(p->text + p->at, token, n) != 0)
		return false;
	if (word_char(token[0]) && p->at + n < p->size && word_char(p->text[p->at + n]))
		return false;
	p->at += n;
	return true;
}

static HeadValue
integer(int64_t v)
{
	return (HeadValue){ .kind = HEAD_INT, .i = v };
}

static bool
parse_atom(Parser *p, HeadValue *out)
{
	char word[64];
	size_t n = 0, from;

	if (take(p, "(")) {
		if (++p->depth > MAX_DEPTH)
			return fail(p, "too many brackets");
		return parse_or(p, out) && (take(p, ")") || fail(p, "expected )"));
	}
	blanks(p);
	from = p->at;
	while (p->at < p->size && word_char(p->text[p->at])) {
		if (n + 1 >= sizeof word)
			return fail(p, "a word of more than 63 letters");
		word[n++] = p->text[p->at++];
	}
	word[n] = 0;
	if (n == 0)
		return fail(p, "expected a name, a number or a word");
	if (isdigit((unsigned char)word[0])) {
		int64_t v = 0;
		for (size_t i = 0; i < n; i++) {
			if (!isdigit((unsigned char)word[i]) || v > INT64_MAX / 10 - 10)
				return fail(p, "expected an integer");
			v = v * 10 + (word[i] - '0');
		}
		*out = integer(v);
		return true;
	}
	if (p->name(p->user, word, out))
		return true;
	if (isupper((unsigned char)word[0])) {
		p->at = from;
		return fail(p, "no such name");
	}
	*out = (HeadValue){ .kind = HEAD_WORD };
	memcpy(out->s, word, n + 1);
	return true;
}

static bool
parse_arith(Parser *p, HeadValue *out, bool product)
{
	if (!(product ? parse_atom(p, out) : parse_arith(p, out, true)))
		return false;
	for (;;) {
		HeadValue r;
		char op = 0;
		for (const char *o = product ? "*/%" : "+-"; *o && !op; o++)
			if (take(p, (char[]){ *o, 0 }))
				op = *o;
		if (!op)
			return true;
		if (!(product ? parse_atom(p, &r) : parse_arith(p, &r, true)))
			return false;
		if (out->kind != HEAD_INT || r.kind != HEAD_INT)
			return fail(p, "arithmetic needs integers");
		if ((op == '/' || op == '%') && r.i <= 0)
			return fail(p, "division by zero");
		bool over = op == '*'   ? __builtin_mul_overflow(out->i, r.i, &out->i)
		            : op == '+' ? __builtin_add_overflow(out->i, r.i, &out->i)
		            : op == '-' ? __builtin_sub_overflow(out->i, r.i, &out->i)
		                        : false;
		if (over)
			return fail(p, "the result is too large");
		if (op == '/')
			out->i /= r.i;
		if (op == '%')
			out->i %= r.i;
	}
}

/* Compare numbers with numbers, and words with words. *order: -1, 0 or 1 */
static bool
compare(Parser *p, const HeadValue *a, const HeadValue *b, int *order)
{
	if ((a->kind == HEAD_WORD) != (b->kind == HEAD_WORD))
		return fail(p, "compares a word with a number");
	if (a->kind == HEAD_WORD) {
		*order = strcmp(a->s, b->s);
	} else if (a->kind == HEAD_INT && b->kind == HEAD_INT) {
		*order = (a->i > b->i) - (a->i < b->i);
	} else {
		double x = a->kind == HEAD_INT ? (double)a->i : a->f,
		       y = b->kind == HEAD_INT ? (double)b->i : b->f;
		*order = (x > y) - (x < y);
	}
	return true;
}

static bool
parse_compare(Parser *p, HeadValue *out)
{
	static const char *const relation[] = { "==", "!=", "<=", ">=", "<", ">" };
	HeadValue r;
	int order;

	if (!parse_arith(p, out, false))
		return false;
	if (take(p, "in")) {
		bool found = false;
		if (!take(p, "("))
			return fail(p, "expected ( after in");
		do {
			if (!parse_arith(p, &r, false) || !compare(p, out, &r, &order))
				return false;
			found |= order == 0;
		} while (take(p, ","));
		*out = integer(found);
		return take(p, ")") || fail(p, "expected )");
	}
	for (int k = 0; k < 6; k++) {
		if (!take(p, relation[k]))
			continue;
		if (!parse_arith(p, &r, false) || !compare(p, out, &r, &order))
			return false;
		const bool is[] = { order == 0, order != 0, order <= 0,
			            order >= 0, order < 0,  order > 0 };
		*out = integer(is[k]);
		return true;
	}
	return true;
}

static bool
to_bool(Parser *p, HeadValue *v)
{
	if (v->kind != HEAD_INT)
		return fail(p, "expected a comparison or a name that is 0 or 1");
	*v = integer(v->i != 0);
	return true;
}

static bool
parse_not(Parser *p, HeadValue *out)
{
	bool not = false;

	while (take(p, "not"))
		not = !not;
	if (!parse_compare(p, out))
		return false;
	if (not&&to_bool(p, out))
		out->i = !out->i;
	return !p->why;
}

static bool
parse_and(Parser *p, HeadValue *out)
{
	if (!parse_not(p, out))
		return false;
	while (take(p, "and")) {
		HeadValue r;
		if (!to_bool(p, out) || !parse_not(p, &r) || !to_bool(p, &r))
			return false;
		out->i = out->i && r.i;
	}
	return true;
}

static bool
parse_or(Parser *p, HeadValue *out)
{
	if (!parse_and(p, out))
		return false;
	while (take(p, "or")) {
		HeadValue r;
		if (!to_bool(p, out) || !parse_and(p, &r) || !to_bool(p, &r))
			return false;
		out->i = out->i || r.i;
	}
	return true;
}

bool
head_eval(const char *text, size_t size, head_name_fn *name, void *user, HeadValue *out,
          const char **why, size_t *at)
{
	Parser p = { .text = text, .size = size, .name = name, .user = user };
	bool ok = parse_or(&p, out);

	if (ok)
		blanks(&p);
	if (ok && p.at < p.size)
		ok = fail(&p, "unexpected text after the expression");
	*why = p.why;
	*at = p.at;
	return ok;
}

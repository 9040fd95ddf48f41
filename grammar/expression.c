/* Expression nodes: front ends build them, automaton.c reads them. Nodes are shared, so a node must
 * not change after it has been used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadline.h"
#include "grammar/grammar_internal.h"

enum { NODES_PER_CHECK = 1 << 12 };

void
build_fail(GrammarBuilder *b, const char *fmt, ...)
{
	char text[sizeof b->err->text];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	error_set(b->err, LLMC_E_INPUT, "%s%s%s", b->place ? b->place : "", b->place ? ": " : "",
	          text);
	longjmp(b->fault, 1);
}

void
build_work_of(GrammarBuilder *b, size_t n)
{
	b->work += n < NODES_PER_CHECK ? (uint32_t)n : NODES_PER_CHECK;
	if (b->work < NODES_PER_CHECK)
		return;
	b->work = 0;
	if (deadline_passed()) {
		deadline_error(b->err);
		longjmp(b->fault, 1);
	}
}

void
build_work(GrammarBuilder *b)
{
	build_work_of(b, 1);
}

Expr *
expr_new(GrammarBuilder *b, ExprKind kind)
{
	build_work(b);
	if (++b->n_ex > MAX_EX)
		build_fail(b, "the grammar is too large: more than %d parts", MAX_EX);
	Expr *x = NEW(b->a, Expr, 1);
	x->kind = kind;
	return x;
}

Expr *
expr_bytes(GrammarBuilder *b, const char *s, size_t n)
{
	Expr *x = expr_new(b, EXPR_BYTES);

	if (n > MAX_STATES)
		build_fail(b, "the grammar has a string of %zu bytes, which is too long", n);
	x->bytes = arena_strndup(b->a, s, n);
	x->n = (int32_t)n;
	return x;
}

Expr *
expr_text(GrammarBuilder *b, const char *s)
{
	return expr_bytes(b, s, strlen(s));
}

Expr *
expr_chars(GrammarBuilder *b, const Range *range, size_t n)
{
	Expr *x = expr_new(b, EXPR_CHARS);
	Range *own = NEW(b->a, Range, n + 1);

	if (n)
		memcpy(own, range, n * sizeof *own);
	x->range = own;
	x->n = (int32_t)ranges_join(own, n);
	return x;
}

Expr *
expr_char(GrammarBuilder *b, uint32_t lo, uint32_t hi)
{
	return expr_chars(b, &(Range){ lo, hi }, 1);
}

static Expr *
with_parts(GrammarBuilder *b, ExprKind kind, Expr *const *part, size_t n)
{
	Expr *x = expr_new(b, kind);
	Expr **own = NEW(b->a, Expr *, n + 1);

	if (n)
		memcpy(own, part, n * sizeof *own);
	x->part = own;
	x->n = (int32_t)n;
	return x;
}

Expr *
expr_list(GrammarBuilder *b, ExprKind kind, const ExprList *l)
{
	return l->n == 1 && (kind == EXPR_SEQ || kind == EXPR_ALT)
	           ? l->v[0]
	           : with_parts(b, kind, l->v, l->n);
}

static Expr *
of_arguments(GrammarBuilder *b, ExprKind kind, int n, va_list ap)
{
	Expr *part[16];

	for (int i = 0; i < n; i++)
		part[i] = va_arg(ap, Expr *);
	return with_parts(b, kind, part, (size_t)n);
}

Expr *
expr_seq(GrammarBuilder *b, int n, ...)
{
	va_list ap;

	va_start(ap, n);
	Expr *x = of_arguments(b, EXPR_SEQ, n, ap);
	va_end(ap);
	return x;
}

Expr *
expr_alt(GrammarBuilder *b, int n, ...)
{
	va_list ap;

	va_start(ap, n);
	Expr *x = of_arguments(b, EXPR_ALT, n, ap);
	va_end(ap);
	return x;
}

Expr *
expr_none(GrammarBuilder *b)
{
	return with_parts(b, EXPR_ALT, NULL, 0);
}

Expr *
expr_empty(GrammarBuilder *b)
{
	return with_parts(b, EXPR_SEQ, NULL, 0);
}

Expr *
expr_rep(GrammarBuilder *b, Expr *part, int32_t min, int32_t max)
{
	if (min == 1 && max == 1)
		return part;
	if (max == 0)
		return expr_empty(b);
	Expr *x = with_parts(b, EXPR_REP, &part, 1);
	x->min = min;
	x->max = max;
	return x;
}

Expr *
expr_rule(GrammarBuilder *b, int32_t rule)
{
	Expr *x = expr_new(b, EXPR_RULE);

	x->min = rule;
	return x;
}

Expr *
expr_token(GrammarBuilder *b, int32_t id)
{
	Expr *x = expr_new(b, EXPR_TOKEN);

	x->min = id;
	return x;
}

void
expr_push(GrammarBuilder *b, ExprList *l, Expr *x)
{
	l->v = arena_grow(b->a, l->v, &l->cap, l->n + 1, sizeof *l->v);
	l->v[l->n++] = x;
}

int32_t
rule_new(GrammarBuilder *b)
{
	b->rule = arena_grow(b->a, b->rule, &b->cap_rule, b->n_rule + 1, sizeof *b->rule);
	b->rule[b->n_rule] = NULL;
	return (int32_t)b->n_rule++;
}

void
expr_rule_name(GrammarBuilder *b, int32_t rule, const char *name)
{
	size_t had = b->cap_name;

	b->name = arena_grow(b->a, b->name, &b->cap_name, (size_t)rule + 1, sizeof *b->name);
	for (size_t i = had; i < b->cap_name; i++)
		b->name[i] = NULL;
	b->name[rule] = name;
}

static int
by_start(const void *a, const void *b)
{
	const Range *x = a, *y = b;

	return x->lo < y->lo ? -1 : x->lo > y->lo;
}

size_t
ranges_join(Range *r, size_t n)
{
	size_t k = 0;

	if (n)
		qsort(r, n, sizeof *r, by_start);
	for (size_t i = 0; i < n; i++)
		if (k && r[i].lo <= r[k - 1].hi + 1)
			r[k - 1].hi = r[i].hi > r[k - 1].hi ? r[i].hi : r[k - 1].hi;
		else
			r[k++] = r[i];
	return k;
}

size_t
ranges_invert(const Range *r, size_t n, Range *out)
{
	uint32_t at = 0;
	size_t k = 0;

	for (size_t i = 0; i <= n; i++) {
		uint32_t end = i < n ? r[i].lo : 0x110000;
		if (end > at)
			out[k++] = (Range){ at, end - 1 };
		if (i < n && r[i].hi + 1 > at)
			at = r[i].hi + 1;
	}
	return k;
}

/* Parses expressions: tokens to nodes, with the precedence of Jinja (~ binds tighter than +,
 * filters bind tighter than all operators; a unary minus includes its filters). */
#include "text/jinja/jinja.h"

#include <string.h>

AstNode *
jinja_new(Jinja *j, AstKind kind, int line)
{
	AstNode *n = jinja_alloc(j, 1, sizeof *n);
	n->kind = kind;
	n->line = line;
	return n;
}

void
jinja_node_push(Jinja *j, AstNode *n, AstNode *child)
{
	if ((n->n & (n->n - 1)) == 0) { /* capacity doubles at powers of two */
		AstNode **to = jinja_alloc(j, n->n ? n->n * 2 : 1, sizeof *to);
		if (n->n)
			memcpy(to, n->list, n->n * sizeof *to);
		n->list = to;
	}
	n->list[n->n++] = child;
}

AstNode **
jinja_keyword_push(Jinja *j, AstNode *n, ByteSpan name)
{
	if ((n->n_kw & (n->n_kw - 1)) == 0) { /* likewise */
		size_t cap = n->n_kw ? n->n_kw * 2 : 1;
		ByteSpan *names = jinja_alloc(j, cap, sizeof *names);
		AstNode **kw = jinja_alloc(j, cap, sizeof *kw);
		if (n->n_kw) {
			memcpy(names, n->kw_name, n->n_kw * sizeof *names);
			memcpy(kw, n->kw, n->n_kw * sizeof *kw);
		}
		n->kw_name = names;
		n->kw = kw;
	}
	n->kw_name[n->n_kw] = name;
	return &n->kw[n->n_kw++];
}

static void
take(Jinja *j)
{
	if (jinja_cur(j)->type != T_EOF)
		j->at++;
	j->line = jinja_cur(j)->line;
}

bool
jinja_is_op(const Jinja *j, int op)
{
	return jinja_cur(j)->type == T_OP && jinja_cur(j)->op == op;
}

bool
jinja_is_name(const Jinja *j, const char *name)
{
	return jinja_cur(j)->type == T_NAME && span_is(jinja_cur(j)->s, name);
}

bool
jinja_skip_op(Jinja *j, int op)
{
	bool yes = jinja_is_op(j, op);
	if (yes)
		take(j);
	return yes;
}

bool
jinja_skip_name(Jinja *j, const char *name)
{
	bool yes = jinja_is_name(j, name);
	if (yes)
		take(j);
	return yes;
}

static _Noreturn void
unexpected(Jinja *j, const char *wanted)
{
	ByteSpan s = jinja_cur(j)->s;
	jinja_fail(j, "%s was expected, `%.*s` was found", wanted, (int)(s.n < 60 ? s.n : 60), s.s);
}

void
jinja_expect_op(Jinja *j, int op)
{
	char what[4] = { '`', (char)op, '`', 0 };
	if (!jinja_skip_op(j, op))
		unexpected(j, what);
}

ByteSpan
jinja_expect_name(Jinja *j)
{
	ByteSpan s = jinja_cur(j)->s;
	if (jinja_cur(j)->type != T_NAME)
		unexpected(j, "a name");
	take(j);
	return s;
}

static void
enter(Jinja *j)
{
	if (++j->depth > JINJA_MAX_DEPTH)
		jinja_fail(j, "nested deeper than %d", JINJA_MAX_DEPTH);
}

static AstNode *
with_children(Jinja *j, AstKind kind, int line, int op, AstNode *a, AstNode *b)
{
	AstNode *n = jinja_new(j, kind, line);
	n->op = op;
	n->a = a;
	n->b = b;
	return n;
}

static AstNode *
constant(Jinja *j, int line, Val v)
{
	AstNode *n = jinja_new(j, N_CONST, line);
	n->val = v;
	return n;
}

static AstNode *
primary(Jinja *j)
{
	const Tok t = *jinja_cur(j);
	AstNode *n;

	switch (t.type) {
	case T_NAME:
		take(j);
		if (span_is(t.s, "true") || span_is(t.s, "True"))
			return constant(j, t.line, val_bool(true));
		if (span_is(t.s, "false") || span_is(t.s, "False"))
			return constant(j, t.line, val_bool(false));
		if (span_is(t.s, "none") || span_is(t.s, "None"))
			return constant(j, t.line, val_none());
		n = jinja_new(j, N_NAME, t.line);
		n->name = t.s;
		return n;
	case T_STR: {
		Buf b = { 0 };
		take(j);
		if (jinja_cur(j)->type != T_STR)
			return constant(j, t.line, val_span(t.s));
		buf_add(j, &b, t.s.s, t.s.n);
		for (; jinja_cur(j)->type == T_STR; take(j))
			buf_add(j, &b, jinja_cur(j)->s.s, jinja_cur(j)->s.n);
		return constant(j, t.line, val_span(buf_span(&b)));
	}
	case T_INT:
	case T_FLOAT:
		take(j);
		return constant(j, t.line, t.num);
	default:
		break;
	}
	if (jinja_skip_op(j, '(')) {
		if (jinja_skip_op(j, ')'))
			return jinja_new(j, N_TUPLE, t.line);
		n = jinja_tuple(j, true, NULL);
		jinja_expect_op(j, ')');
		return n;
	}
	if (jinja_skip_op(j, '[')) {
		n = jinja_new(j, N_LIST, t.line);
		while (!jinja_is_op(j, ']')) {
			if (n->n)
				jinja_expect_op(j, ',');
			if (jinja_is_op(j, ']'))
				break;
			jinja_node_push(j, n, jinja_expression(j, true));
		}
		jinja_expect_op(j, ']');
		return n;
	}
	if (jinja_skip_op(j, '{')) {
		n = jinja_new(j, N_DICT, t.line);
		while (!jinja_is_op(j, '}')) {
			if (n->n)
				jinja_expect_op(j, ',');
			if (jinja_is_op(j, '}'))
				break;
			jinja_node_push(j, n, jinja_expression(j, true));
			jinja_expect_op(j, ':');
			jinja_node_push(j, n, jinja_expression(j, true));
		}
		jinja_expect_op(j, '}');
		return n;
	}
	unexpected(j, "an expression");
}

AstNode *
jinja_tuple(Jinja *j, bool with_cond, const char *end_name)
{
	int line = jinja_cur(j)->line;
	AstNode *first = NULL, *tuple = NULL;

	for (;;) {
		TokType t = jinja_cur(j)->type;
		bool end = t == T_VAR_END || t == T_BLOCK_END || jinja_is_op(j, ')') ||
		           (end_name && jinja_is_name(j, end_name));
		if (end && first)
			break;
		AstNode *item = jinja_expression(j, with_cond);
		if (!first)
			first = item;
		if (tuple)
			jinja_node_push(j, tuple, item);
		if (!jinja_is_op(j, ','))
			break;
		take(j);
		if (!tuple) {
			tuple = jinja_new(j, N_TUPLE, line);
			jinja_node_push(j, tuple, first);
		}
	}
	return tuple ? tuple : first;
}

void
jinja_call_args(Jinja *j, AstNode *call)
{
	bool first = true;

	jinja_expect_op(j, '(');
	while (!jinja_is_op(j, ')')) {
		if (!first)
			jinja_expect_op(j, ',');
		first = false;
		if (jinja_is_op(j, ')'))
			break;
		if (jinja_is_op(j, '*') || jinja_is_op(j, OP2('*', '*')))
			jinja_fail(j, "* and ** arguments are not supported");
		if (jinja_cur(j)->type == T_NAME && j->tok[j->at + 1].type == T_OP &&
		    j->tok[j->at + 1].op == '=') {
			const ByteSpan name = jinja_expect_name(j);
			take(j);
			AstNode *value = jinja_expression(j, true);
			*jinja_keyword_push(j, call, name) = value;
			continue;
		}
		if (call->n_kw)
			jinja_fail(j, "an argument without a name follows one with a name");
		jinja_node_push(j, call, jinja_expression(j, true));
	}
	jinja_expect_op(j, ')');
}

static AstNode *
subscript(Jinja *j, AstNode *of)
{
	int line = jinja_cur(j)->line;
	AstNode *n;

	if (jinja_skip_op(j, '.')) {
		const Tok t = *jinja_cur(j);
		if (t.type == T_INT) {
			take(j);
			return with_children(j, N_ITEM, line, 0, of, constant(j, line, t.num));
		}
		n = jinja_new(j, N_ATTR, line);
		n->a = of;
		n->name = jinja_expect_name(j);
		return n;
	}
	jinja_expect_op(j, '[');
	AstNode *part[3] = { NULL };
	int k = 0;
	bool slice = false;
	while (!jinja_is_op(j, ']')) {
		if (jinja_skip_op(j, ':')) {
			slice = true;
			if (++k == 3)
				unexpected(j, "`]`");
			continue;
		}
		if (part[k] || jinja_is_op(j, ','))
			unexpected(j, "`]`");
		part[k] = jinja_expression(j, true);
	}
	if (!slice && !part[0])
		unexpected(j, "an expression");
	jinja_expect_op(j, ']');
	if (!slice)
		return with_children(j, N_ITEM, line, 0, of, part[0]);
	n = with_children(j, N_SLICE, line, 0, part[0], part[1]);
	n->c = part[2];
	n->d = of;
	return n;
}

static AstNode *
postfix(Jinja *j, AstNode *n)
{
	for (;;) {
		if (jinja_is_op(j, '.') || jinja_is_op(j, '[')) {
			n = subscript(j, n);
		} else if (jinja_is_op(j, '(')) {
			AstNode *call = with_children(j, N_CALL, jinja_cur(j)->line, 0, n, NULL);
			jinja_call_args(j, call);
			n = call;
		} else {
			return n;
		}
		/* a chain becomes nested nodes, which evaluation descends */
		jinja_step(j, 0);
	}
}

static ByteSpan
dotted_name(Jinja *j)
{
	ByteSpan s = jinja_expect_name(j);
	if (jinja_is_op(j, '.'))
		jinja_fail(j, "filters and tests with dots in their names are not supported");
	return s;
}

static AstNode *unary(Jinja *j, bool with_filter);

static AstNode *
test_expr(Jinja *j, AstNode *of)
{
	int line = jinja_cur(j)->line;
	take(j); /* is */
	bool negated = jinja_skip_name(j, "not");
	AstNode *n = with_children(j, N_TEST, line, 0, of, NULL);
	n->name = dotted_name(j);
	TokType t = jinja_cur(j)->type;
	if (jinja_is_op(j, '(')) {
		jinja_call_args(j, n);
	} else if ((t == T_NAME || t == T_STR || t == T_INT || t == T_FLOAT ||
	            jinja_is_op(j, '[') || jinja_is_op(j, '{')) &&
	           !jinja_is_name(j, "else") && !jinja_is_name(j, "or") &&
	           !jinja_is_name(j, "and")) {
		if (jinja_is_name(j, "is"))
			jinja_fail(j, "tests cannot be chained with `is`");
		jinja_node_push(j, n, postfix(j, primary(j)));
	}
	return negated ? with_children(j, N_NOT, line, 0, n, NULL) : n;
}

AstNode *
jinja_filter_chain(Jinja *j, AstNode *n)
{
	int links = 0;

	for (;;) {
		int line = jinja_cur(j)->line;
		if (++links > JINJA_MAX_DEPTH)
			jinja_fail(j, "more than %d filters or tests in a row", JINJA_MAX_DEPTH);
		if (jinja_skip_op(j, '|')) {
			AstNode *f = with_children(j, N_FILTER, line, 0, n, NULL);
			f->name = dotted_name(j);
			if (jinja_is_op(j, '('))
				jinja_call_args(j, f);
			n = f;
		} else if (jinja_is_name(j, "is")) {
			n = test_expr(j, n);
		} else if (jinja_is_op(j, '(')) {
			AstNode *call = with_children(j, N_CALL, line, 0, n, NULL);
			jinja_call_args(j, call);
			n = call;
		} else {
			return n;
		}
	}
}

static AstNode *
unary(Jinja *j, bool with_filter)
{
	int line = jinja_cur(j)->line;
	AstNode *n;

	enter(j);
	if (jinja_skip_op(j, '-'))
		n = with_children(j, N_NEG, line, 0, unary(j, false), NULL);
	else if (jinja_skip_op(j, '+'))
		n = with_children(j, N_POS, line, 0, unary(j, false), NULL);
	else
		n = primary(j);
	n = postfix(j, n);
	if (with_filter)
		n = jinja_filter_chain(j, n);
	j->depth--;
	return n;
}

/* Parses a chain of operators of one precedence into left-deep nodes. The length of chains is
 * limited like the depth, because evaluation recurses. */
static void
link_count(Jinja *j, int *n)
{
	if (++*n > JINJA_MAX_DEPTH)
		jinja_fail(j, "more than %d operators in a row: use brackets or several tags",
		           JINJA_MAX_DEPTH);
}

static AstNode *
power(Jinja *j)
{
	int line = jinja_cur(j)->line, n = 0;
	AstNode *left = unary(j, true);

	while (jinja_skip_op(j, OP2('*', '*'))) {
		link_count(j, &n);
		left = with_children(j, N_BINARY, line, OP2('*', '*'), left, unary(j, true));
	}
	return left;
}

static AstNode *
product(Jinja *j)
{
	int line = jinja_cur(j)->line, n = 0;
	AstNode *left = power(j);

	while (jinja_is_op(j, '*') || jinja_is_op(j, '/') || jinja_is_op(j, OP2('/', '/')) ||
	       jinja_is_op(j, '%')) {
		int op = jinja_cur(j)->op;
		take(j);
		link_count(j, &n);
		left = with_children(j, N_BINARY, line, op, left, power(j));
	}
	return left;
}

static AstNode *
concat(Jinja *j)
{
	int line = jinja_cur(j)->line;
	AstNode *first = product(j), *n = NULL;

	while (jinja_skip_op(j, '~')) {
		if (!n) {
			n = jinja_new(j, N_CONCAT, line);
			jinja_node_push(j, n, first);
		}
		jinja_node_push(j, n, product(j));
	}
	return n ? n : first;
}

static AstNode *
sum(Jinja *j)
{
	int line = jinja_cur(j)->line, n = 0;
	AstNode *left = concat(j);

	while (jinja_is_op(j, '+') || jinja_is_op(j, '-')) {
		int op = jinja_cur(j)->op;
		take(j);
		link_count(j, &n);
		left = with_children(j, N_BINARY, line, op, left, concat(j));
	}
	return left;
}

static int
compare_op(Jinja *j)
{
	static const int ops[] = { OP2('=', '='), OP2('!', '='), '<',
		                   '>',           OP2('<', '='), OP2('>', '=') };

	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (jinja_skip_op(j, ops[i]))
			return ops[i];
	if (jinja_skip_name(j, "in"))
		return 'i';
	if (jinja_is_name(j, "not") && j->tok[j->at + 1].type == T_NAME &&
	    span_is(j->tok[j->at + 1].s, "in")) {
		take(j);
		take(j);
		return 'n';
	}
	return 0;
}

static AstNode *
compare(Jinja *j)
{
	int line = jinja_cur(j)->line, op;
	AstNode *first = sum(j), *n = NULL;

	while ((op = compare_op(j))) {
		if (!n)
			n = with_children(j, N_COMPARE, line, 0, first, NULL);
		int *ops = jinja_alloc(j, n->n + 1, sizeof *ops);
		if (n->n)
			memcpy(ops, n->ops, n->n * sizeof *ops);
		ops[n->n] = op;
		n->ops = ops;
		jinja_node_push(j, n, sum(j));
		if (n->n > JINJA_MAX_DEPTH)
			jinja_fail(j, "more than %d comparisons in a row", JINJA_MAX_DEPTH);
	}
	return n ? n : first;
}

static AstNode *
negation(Jinja *j)
{
	int line = jinja_cur(j)->line;

	if (!jinja_is_name(j, "not"))
		return compare(j);
	take(j);
	enter(j);
	AstNode *n = with_children(j, N_NOT, line, 0, negation(j), NULL);
	j->depth--;
	return n;
}

static AstNode *
conjunction(Jinja *j)
{
	int line = jinja_cur(j)->line, n = 0;
	AstNode *left = negation(j);

	while (jinja_skip_name(j, "and")) {
		link_count(j, &n);
		left = with_children(j, N_AND, line, 0, left, negation(j));
	}
	return left;
}

static AstNode *
disjunction(Jinja *j)
{
	int line = jinja_cur(j)->line, n = 0;
	AstNode *left = conjunction(j);

	while (jinja_skip_name(j, "or")) {
		link_count(j, &n);
		left = with_children(j, N_OR, line, 0, left, conjunction(j));
	}
	return left;
}

AstNode *
jinja_expression(Jinja *j, bool with_cond)
{
	int links = 0;

	enter(j);
	AstNode *n = disjunction(j);
	while (with_cond && jinja_is_name(j, "if")) {
		AstNode *cond = jinja_new(j, N_COND, jinja_cur(j)->line);
		take(j);
		link_count(j, &links);
		cond->b = n;
		cond->a = disjunction(j);
		if (jinja_skip_name(j, "else"))
			cond->c = jinja_expression(j, true);
		n = cond;
	}
	j->depth--;
	return n;
}

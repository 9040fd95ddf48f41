/* Parses statements: tokens to nodes. */
#include "text/jinja/jinja.h"

#include <string.h>

static void
expect(Jinja *j, TokType type, const char *what)
{
	if (jinja_cur(j)->type != type)
		jinja_fail(j, "%s was expected, `%.*s` was found", what,
		           (int)(jinja_cur(j)->s.n < 60 ? jinja_cur(j)->s.n : 60),
		           jinja_cur(j)->s.s);
	if (type != T_EOF)
		j->at++;
	j->line = jinja_cur(j)->line;
}

static void
block_end(Jinja *j)
{
	expect(j, T_BLOCK_END, "the end of the tag");
}

static AstNode *statement(Jinja *j);

static bool
stops(const Jinja *j, const char *const *names)
{
	const Tok *name = &j->tok[j->at + 1];
	if (jinja_cur(j)->type != T_BLOCK_BEGIN || name->type != T_NAME)
		return false;
	for (; names && *names; names++)
		if (span_is(name->s, *names))
			return true;
	return false;
}

/* Parses statements until `{% name`. Consumes the brace but not the name. names NULL: until the end
 * of the template */
static AstNode *
body(Jinja *j, const char *const *names, const char *of, int line)
{
	AstNode *n = jinja_new(j, N_BLOCK, jinja_cur(j)->line);

	if (++j->depth > JINJA_MAX_DEPTH)
		jinja_fail(j, "blocks nested deeper than %d", JINJA_MAX_DEPTH);
	for (;;) {
		const Tok *t = jinja_cur(j);
		j->line = t->line;
		if (t->type == T_EOF) {
			if (names) {
				j->line = line;
				jinja_fail(j, "{%% %s %%} that begins here has no end", of);
			}
			break;
		}
		if (t->type == T_DATA) {
			AstNode *text = jinja_new(j, N_TEXT, t->line);
			text->name = t->s;
			jinja_node_push(j, n, text);
			j->at++;
		} else if (t->type == T_VAR_BEGIN) {
			AstNode *print = jinja_new(j, N_PRINT, t->line);
			j->at++;
			print->a = jinja_tuple(j, true, NULL);
			expect(j, T_VAR_END, "`}}`");
			jinja_node_push(j, n, print);
		} else if (stops(j, names)) {
			j->at++;
			break;
		} else {
			expect(j, T_BLOCK_BEGIN, "a tag");
			jinja_node_push(j, n, statement(j));
		}
	}
	j->depth--;
	return n;
}

static void
end_tag(Jinja *j)
{
	j->at++; /* the name at which body() stopped */
	block_end(j);
}

static AstNode *
parse_if(Jinja *j, int line)
{
	static const char *const ends[] = { "elif", "else", "endif", NULL }, *const last[] = {
		"endif", NULL
	};
	AstNode *n = jinja_new(j, N_IF, line);

	for (;;) {
		jinja_node_push(j, n, jinja_tuple(j, false, NULL));
		block_end(j);
		jinja_node_push(j, n, body(j, ends, "if", line));
		if (jinja_skip_name(j, "elif"))
			continue;
		if (jinja_skip_name(j, "else")) {
			block_end(j);
			n->a = body(j, last, "if", line);
		}
		end_tag(j);
		return n;
	}
}

/* Parses assignment targets: one or several names, brackets allowed. */
static AstNode *
target(Jinja *j, bool namespace, const char *end_name)
{
	AstNode *first = NULL, *tuple = NULL;
	bool bracket = jinja_skip_op(j, '(');

	for (;;) {
		int line = jinja_cur(j)->line;
		AstNode *n;
		if (jinja_is_op(j, '(')) {
			if (++j->depth > JINJA_MAX_DEPTH)
				jinja_fail(j, "nested deeper than %d", JINJA_MAX_DEPTH);
			n = target(j, namespace, NULL);
			j->depth--;
		} else {
			n = jinja_new(j, N_NAME, line);
			n->name = jinja_expect_name(j);
			static const char *const reserved[] = { "true",  "false", "none", "True",
				                                "False", "None",  NULL };
			for (const char *const *r = reserved; *r; r++)
				if (span_is(n->name, *r))
					jinja_fail(j, "cannot assign to `%s`", *r);
			if (namespace && jinja_skip_op(j, '.')) {
				n->kind = N_NSREF;
				n->a = jinja_new(j, N_NAME, line);
				n->a->name = jinja_expect_name(j);
			}
		}
		if (!first)
			first = n;
		else
			jinja_node_push(j, tuple, n);
		if (!jinja_skip_op(j, ','))
			break;
		if (!tuple) {
			tuple = jinja_new(j, N_TUPLE, line);
			jinja_node_push(j, tuple, first);
		}
		if ((end_name && jinja_is_name(j, end_name)) || jinja_is_op(j, ')') ||
		    jinja_is_op(j, '='))
			break;
	}
	if (bracket)
		jinja_expect_op(j, ')');
	return tuple ? tuple : first;
}

static AstNode *
parse_for(Jinja *j, int line)
{
	static const char *const ends[] = { "else", "endfor", NULL }, *const last[] = { "endfor",
		                                                                        NULL };
	AstNode *n = jinja_new(j, N_FOR, line), *parts;

	n->a = target(j, false, "in");
	if (!jinja_skip_name(j, "in"))
		jinja_fail(j, "`in` was expected, `%.*s` was found",
		           (int)(jinja_cur(j)->s.n < 60 ? jinja_cur(j)->s.n : 60),
		           jinja_cur(j)->s.s);
	n->b = jinja_tuple(j, false, "recursive");
	if (jinja_skip_name(j, "if"))
		n->c = jinja_expression(j, true);
	if (jinja_is_name(j, "recursive"))
		jinja_fail(j, "recursive loops are not supported");
	block_end(j);
	parts = jinja_new(j, N_BLOCK, line);
	j->loop_depth++;
	jinja_node_push(j, parts, body(j, ends, "for", line));
	j->loop_depth--;
	if (jinja_skip_name(j, "else")) {
		block_end(j);
		jinja_node_push(j, parts, body(j, last, "for", line));
	}
	end_tag(j);
	n->d = parts;
	return n;
}

static AstNode *
parse_set(Jinja *j, int line)
{
	static const char *const ends[] = { "endset", NULL };
	AstNode *to = target(j, true, NULL);
	AstNode *n = jinja_new(j, N_SET, line);

	n->a = to;
	if (jinja_skip_op(j, '=')) {
		n->b = jinja_tuple(j, true, NULL);
		block_end(j);
		return n;
	}
	n->kind = N_SET_BLOCK;
	/* placeholder that receives the text */
	n->b = jinja_filter_chain(j, jinja_new(j, N_CONST, line));
	block_end(j);
	int loops = j->loop_depth;
	n->c = body(j, ends, "set", line);
	j->loop_depth = loops;
	end_tag(j);
	return n;
}

static void
parse_params(Jinja *j, AstNode *n)
{
	jinja_expect_op(j, '(');
	while (!jinja_is_op(j, ')')) {
		if (n->n_kw)
			jinja_expect_op(j, ',');
		if (jinja_is_op(j, ')'))
			break;
		AstNode **value = jinja_keyword_push(j, n, jinja_expect_name(j));
		if (jinja_skip_op(j, '='))
			*value = jinja_expression(j, true);
		else if (n->n_kw > 1 && value[-1])
			jinja_fail(j, "a parameter without a default follows one with a default");
	}
	jinja_expect_op(j, ')');
}

static AstNode *
parse_macro(Jinja *j, int line)
{
	static const char *const ends[] = { "endmacro", NULL };
	AstNode *n = jinja_new(j, N_MACRO, line);
	int loops = j->loop_depth;

	n->name = jinja_expect_name(j);
	parse_params(j, n);
	block_end(j);
	j->loop_depth = 0; /* break needs a loop inside the same macro */
	n->a = body(j, ends, "macro", line);
	j->loop_depth = loops;
	end_tag(j);
	return n;
}

static AstNode *
parse_call(Jinja *j, int line)
{
	static const char *const ends[] = { "endcall", NULL };
	AstNode *n = jinja_new(j, N_CALL_BLOCK, line), *own = jinja_new(j, N_MACRO, line);
	int loops = j->loop_depth;

	own->name = (ByteSpan){ "caller", 6 };
	if (jinja_is_op(j, '('))
		parse_params(j, own);
	n->a = jinja_expression(j, true);
	if (n->a->kind != N_CALL)
		jinja_fail(j, "{%% call %%} wants a call");
	block_end(j);
	j->loop_depth = 0;
	own->a = body(j, ends, "call", line);
	j->loop_depth = loops;
	end_tag(j);
	n->b = own;
	return n;
}

static AstNode *
parse_filter(Jinja *j, int line)
{
	static const char *const ends[] = { "endfilter", NULL };
	AstNode *n = jinja_new(j, N_FILTER_BLOCK, line), *first = jinja_new(j, N_FILTER, line);

	first->a = jinja_new(j, N_CONST, line);
	first->name = jinja_expect_name(j);
	if (jinja_is_op(j, '('))
		jinja_call_args(j, first);
	n->b = jinja_filter_chain(j, first);
	block_end(j);
	n->c = body(j, ends, "filter", line);
	end_tag(j);
	return n;
}

static AstNode *
parse_with(Jinja *j, int line)
{
	static const char *const ends[] = { "endwith", NULL };
	AstNode *n = jinja_new(j, N_WITH, line);

	while (jinja_cur(j)->type != T_BLOCK_END) {
		if (n->n)
			jinja_expect_op(j, ',');
		jinja_node_push(j, n, target(j, false, NULL));
		jinja_expect_op(j, '=');
		jinja_node_push(j, n, jinja_expression(j, true));
	}
	block_end(j);
	n->a = body(j, ends, "with", line);
	end_tag(j);
	return n;
}

static AstNode *
statement(Jinja *j)
{
	static const char *const generation[] = { "endgeneration", NULL };
	int line = jinja_cur(j)->line;
	ByteSpan name = jinja_expect_name(j);

	if (span_is(name, "if"))
		return parse_if(j, line);
	if (span_is(name, "for"))
		return parse_for(j, line);
	if (span_is(name, "set"))
		return parse_set(j, line);
	if (span_is(name, "macro"))
		return parse_macro(j, line);
	if (span_is(name, "call"))
		return parse_call(j, line);
	if (span_is(name, "filter"))
		return parse_filter(j, line);
	if (span_is(name, "with"))
		return parse_with(j, line);
	if (span_is(name, "generation")) {
		/* a `generation` block renders its text in a scope of its own */
		AstNode *n = jinja_new(j, N_WITH, line);
		block_end(j);
		n->a = body(j, generation, "generation", line);
		end_tag(j);
		return n;
	}
	if (span_is(name, "break") || span_is(name, "continue")) {
		if (!j->loop_depth)
			jinja_fail(j, "`%.*s` outside a loop", (int)name.n, name.s);
		AstNode *n = jinja_new(j, span_is(name, "break") ? N_BREAK : N_CONTINUE, line);
		block_end(j);
		return n;
	}
	j->line = line;
	jinja_fail(j, "unknown tag `%.*s`", (int)(name.n < 60 ? name.n : 60), name.s);
}

AstNode *
jinja_parse(Jinja *j)
{
	AstNode *n = body(j, NULL, "", 1);
	return n;
}

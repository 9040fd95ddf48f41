/* Runs a template: statements. eval.c evaluates expressions. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
scope_set(Jinja *j, Scope *s, ByteSpan name, Val v)
{
	for (size_t i = 0; i < s->n; i++) {
		if (span_same(s->name[i], name)) {
			s->val[i] = v;
			return;
		}
	}
	if (s->n == s->cap) {
		size_t cap = s->cap ? s->cap * 2 : 4;
		ByteSpan *names = jinja_alloc(j, cap, sizeof *names);
		Val *vals = jinja_alloc(j, cap, sizeof *vals);
		if (s->n) {
			memcpy(names, s->name, s->n * sizeof *names);
			memcpy(vals, s->val, s->n * sizeof *vals);
		}
		s->name = names;
		s->val = vals;
		s->cap = cap;
	}
	s->name[s->n] = name;
	s->val[s->n++] = v;
}

static Scope *
inner(Jinja *j, Scope *up)
{
	Scope *s = jinja_alloc(j, 1, sizeof *s);
	s->up = up;
	return s;
}

static void
assign(Jinja *j, Scope *s, const AstNode *to, Val v)
{
	if (to->kind == N_NAME) {
		scope_set(j, s, to->name, v);
	} else if (to->kind == N_NSREF) {
		AstNode name = { .kind = N_NAME, .line = to->line, .name = to->name };
		Val ns = eval(j, s, &name);
		if (ns.type != V_NS)
			jinja_fail(j, "cannot assign attribute on non-namespace object `%.*s`",
			           (int)to->name.n, to->name.s);
		dict_put(j, ns.d, val_span(to->a->name), v);
	} else {
		ValList *l = val_iter(j, v);
		if (l->n != to->n)
			jinja_fail(j, "%zu values for %zu names", l->n, to->n);
		for (size_t i = 0; i < to->n; i++)
			assign(j, s, to->list[i], l->v[i]);
	}
}

static void exec(Jinja *j, Scope *s, const AstNode *n);

static ByteSpan
capture(Jinja *j, Scope *s, const AstNode *body)
{
	Buf *before = j->out, own = { 0 };

	j->out = &own;
	exec(j, s, body);
	j->out = before;
	return buf_span(&own);
}

static void
exec_for(Jinja *j, Scope *s, const AstNode *n)
{
	ValList *items = val_iter(j, eval(j, s, n->b));
	const AstNode *main = n->d->list[0], *otherwise = n->d->n > 1 ? n->d->list[1] : NULL;
	size_t done = 0;

	if (n->c) {
		ValList *kept = val_list(j, V_LIST, 0).l;
		for (size_t i = 0; i < items->n; i++) {
			Scope *test = inner(j, s);
			assign(j, test, n->a, items->v[i]);
			if (val_true(eval(j, test, n->c)))
				list_push(j, kept, items->v[i]);
		}
		items = kept;
	}
	Loop *loop = jinja_alloc(j, 1, sizeof *loop);
	loop->items = items;
	for (size_t i = 0; i < items->n; i++) {
		Scope *body = inner(j, s);
		loop->at = i;
		scope_set(j, body, (ByteSpan){ "loop", 4 }, (Val){ .type = V_LOOP, .loop = loop });
		assign(j, body, n->a, items->v[i]);
		exec(j, body, main);
		done++;
		if (j->flow == FLOW_BREAK) {
			j->flow = FLOW_RUN;
			break;
		}
		j->flow = FLOW_RUN;
	}
	if (!done && otherwise)
		exec(j, inner(j, s), otherwise);
}

static Val
macro_value(Jinja *j, Scope *s, const AstNode *def)
{
	Macro *m = jinja_alloc(j, 1, sizeof *m);
	m->def = def;
	m->scope = s;
	return (Val){ .type = V_MACRO, .macro = m };
}

/* Applies a chain of filters to text. The innermost node of the chain is a constant, which receives
 * the text. */
static Val
filter_text(Jinja *j, Scope *s, const AstNode *chain, ByteSpan text)
{
	AstNode copy = *chain;

	if (chain->kind == N_CONST) {
		return val_span(text);
	}
	jinja_enter(j);
	Val v = filter_text(j, s, chain->a, text);
	AstNode hold = { .kind = N_CONST, .line = chain->line, .val = v };
	copy.a = &hold;
	v = eval(j, s, &copy);
	j->nest--;
	return v;
}

static void
exec(Jinja *j, Scope *s, const AstNode *n)
{
	ByteSpan text;
	Val v;

	jinja_step(j, 0);
	jinja_enter(j);
	j->line = n->line;
	switch (n->kind) {
	case N_BLOCK:
		for (size_t i = 0; i < n->n && j->flow == FLOW_RUN; i++)
			exec(j, s, n->list[i]);
		break;
	case N_TEXT:
		buf_add(j, j->out, n->name.s, n->name.n);
		break;
	case N_PRINT:
		text = val_str(j, eval(j, s, n->a));
		buf_add(j, j->out, text.s, text.n);
		break;
	case N_IF:
		for (size_t i = 0; i < n->n; i += 2) {
			if (val_true(eval(j, s, n->list[i]))) {
				exec(j, s, n->list[i + 1]);
				break;
			}
			if (i + 2 >= n->n && n->a)
				exec(j, s, n->a);
		}
		break;
	case N_FOR:
		exec_for(j, s, n);
		break;
	case N_SET:
		assign(j, s, n->a, eval(j, s, n->b));
		break;
	case N_SET_BLOCK:
		text = capture(j, inner(j, s), n->c);
		assign(j, s, n->a, filter_text(j, s, n->b, text));
		break;
	case N_MACRO:
		scope_set(j, s, n->name, macro_value(j, s, n));
		break;
	case N_CALL_BLOCK: {
		Scope *with = inner(j, s);
		v = macro_value(j, s, n->b);
		/* the call is evaluated with one additional argument, caller */
		AstNode call = *n->a;
		AstNode own = { .kind = N_CONST, .line = n->line, .val = v };
		call.kw_name = jinja_alloc(j, n->a->n_kw + 1, sizeof *call.kw_name);
		call.kw = jinja_alloc(j, n->a->n_kw + 1, sizeof *call.kw);
		for (size_t i = 0; i < n->a->n_kw; i++) {
			call.kw_name[i] = n->a->kw_name[i];
			call.kw[i] = n->a->kw[i];
		}
		call.kw_name[call.n_kw] = (ByteSpan){ "caller", 6 };
		call.kw[call.n_kw++] = &own;
		text = val_str(j, eval(j, with, &call));
		buf_add(j, j->out, text.s, text.n);
		break;
	}
	case N_FILTER_BLOCK:
		text = capture(j, inner(j, s), n->c);
		text = val_str(j, filter_text(j, s, n->b, text));
		buf_add(j, j->out, text.s, text.n);
		break;
	case N_WITH: {
		Scope *with = inner(j, s);
		for (size_t i = 0; i < n->n; i += 2)
			assign(j, with, n->list[i], eval(j, s, n->list[i + 1]));
		exec(j, with, n->a);
		break;
	}
	case N_BREAK:
		j->flow = FLOW_BREAK;
		break;
	case N_CONTINUE:
		j->flow = FLOW_CONTINUE;
		break;
	default:
		jinja_fail(j, "an expression where a statement belongs");
	}
	j->nest--;
}

static Val
call_macro(Jinja *j, const Macro *m, const CallArgs *args)
{
	const AstNode *def = m->def;
	Scope *s = inner(j, m->scope);
	Val extra = val_list(j, V_TUPLE, 0), caller = val_undef((ByteSpan){ "caller", 6 });

	for (size_t i = def->n_kw; i < args->n_pos; i++)
		list_push(j, extra.l, args->pos[i]);
	if (args->n_pos > def->n_kw)
		jinja_fail(j, "macro '%.*s' takes not more than %zu argument(s)", (int)def->name.n,
		           def->name.s, def->n_kw);
	for (size_t k = 0; k < args->n_kw; k++) {
		bool known = false;
		for (size_t i = 0; i < def->n_kw && !known; i++)
			known = span_same(def->kw_name[i], args->kw_name[k]);
		if (!known && span_is(args->kw_name[k], "caller"))
			caller = args->kw[k];
		else if (!known)
			jinja_fail(j, "macro '%.*s' takes no keyword argument '%.*s'",
			           (int)def->name.n, def->name.s, (int)args->kw_name[k].n,
			           args->kw_name[k].s);
	}
	scope_set(j, s, (ByteSpan){ "caller", 6 }, caller);
	for (size_t i = 0; i < def->n_kw; i++) {
		Val v = val_undef(def->kw_name[i]);
		bool given = i < args->n_pos;
		if (given)
			v = args->pos[i];
		for (size_t k = 0; !given && k < args->n_kw; k++) {
			if (span_same(def->kw_name[i], args->kw_name[k])) {
				v = args->kw[k];
				given = true;
			}
		}
		if (!given && def->kw[i])
			v = eval(j, s, def->kw[i]);
		scope_set(j, s, def->kw_name[i], v);
	}
	return val_span(capture(j, s, def->a));
}

Val
call_value(Jinja *j, Val f, const CallArgs *args)
{
	Val out;
	int line = j->line;

	jinja_enter(j);
	switch (f.type) {
	case V_MACRO:
		out = call_macro(j, f.macro, args);
		break;
	case V_METHOD:
		out = call_method(j, f.method, args);
		break;
	case V_FUNC:
		out = call_method(j, &(Method){ .self = f }, args);
		break;
	case V_UNDEF:
		jinja_fail(j, "'%.*s' is undefined", (int)(f.s.n < 80 ? f.s.n : 80), f.s.s);
	default:
		jinja_fail(j, "'%s' object is not callable", val_type_name(f));
	}
	j->nest--;
	j->line = line;
	return out;
}

static void
define_functions(Jinja *j, Scope *s)
{
	static const char *const names[] = {
		[FUNC_RANGE] = "range",
		[FUNC_NAMESPACE] = "namespace",
		[FUNC_DICT] = "dict",
		[FUNC_RAISE] = "raise_exception",
		[FUNC_STRFTIME] = "strftime_now",
	};
	for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
		scope_set(j, s, (ByteSpan){ names[i], strlen(names[i]) },
		          (Val){ .type = V_FUNC, .func = i });
}

static void
run(Jinja *j, const json_t *vars, Buf *out)
{
	Scope *globals, *context;

	j->line = 1;
	if (j->source.n > JINJA_MAX_SOURCE)
		jinja_fail(j, "the template has %zu bytes; at most %zu are taken", j->source.n,
		           JINJA_MAX_SOURCE);
	globals = inner(j, NULL);
	context = inner(j, globals);
	define_functions(j, globals);
	if (json_is_object(vars)) {
		const char *key;
		json_t *v;
		json_object_foreach ((json_t *)vars, key, v) {
			size_t n = strlen(key);
			char *copy = jinja_alloc(j, n + 1, 1);
			memcpy(copy, key, n);
			scope_set(j, context, (ByteSpan){ copy, n }, val_from_json(j, v));
		}
	}
	jinja_lex(j);
	AstNode *root = jinja_parse(j);
	j->out = out;
	if (!out)
		return;
	exec(j, inner(j, context), root);
}

static llmc_status
guarded(Jinja *j, const json_t *vars, Strbuf *out)
{
	Buf buf = { 0 };

	if (setjmp(j->arena.oom))
		return error_set(&j->err, LLMC_E_MEMORY, "out of memory");
	if (setjmp(j->fail))
		return j->err.code;
	run(j, vars, out ? &buf : NULL);
	if (!out)
		return LLMC_OK;
	strbuf_add(out, buf_span(&buf).s, buf_span(&buf).n);
	return out->failed ? error_set(&j->err, LLMC_E_MEMORY, "out of memory") : LLMC_OK;
}

llmc_status
text_render_vars(const char *source, size_t n, const char *name, const json_t *vars, Strbuf *out,
                 llmc_error *err)
{
	Jinja *j = calloc(1, sizeof *j);

	if (!j)
		return error_set(err, LLMC_E_MEMORY, "%s: out of memory", name);
	arena_init(&j->arena);
	j->source = (ByteSpan){ source, n };
	llmc_status status = guarded(j, vars, out);
	if (status != LLMC_OK)
		error_set(err, status, "%s: %s", name, j->err.text);
	arena_release(&j->arena);
	free(j);
	return status;
}

/* Evaluates expressions: names, operators, attributes, items, slices. */
#include "text/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Val
lookup(const Scope *s, ByteSpan name)
{
	for (; s; s = s->up)
		for (size_t i = 0; i < s->n; i++)
			if (span_same(s->name[i], name))
				return s->val[i];
	return val_undef(name);
}

static _Noreturn void
undefined(Jinja *j, Val v)
{
	jinja_fail(j, "'%.*s' is undefined", (int)(v.s.n < 80 ? v.s.n : 80), v.s.s);
}

static Val
loop_attr(Jinja *j, Loop *l, ByteSpan name)
{
	int64_t at = (int64_t)l->at, n = (int64_t)l->items->n;
	Method *m;

	if (span_is(name, "index"))
		return val_int(at + 1);
	if (span_is(name, "index0"))
		return val_int(at);
	if (span_is(name, "first"))
		return val_bool(at == 0);
	if (span_is(name, "last"))
		return val_bool(at + 1 == n);
	if (span_is(name, "length"))
		return val_int(n);
	if (span_is(name, "revindex"))
		return val_int(n - at);
	if (span_is(name, "revindex0"))
		return val_int(n - at - 1);
	if (span_is(name, "depth"))
		return val_int(1); /* nested values occur only in recursive loops */
	if (span_is(name, "depth0"))
		return val_int(0);
	if (span_is(name, "previtem"))
		return at > 0 ? l->items->v[at - 1] : val_undef(name);
	if (span_is(name, "nextitem"))
		return at + 1 < n ? l->items->v[at + 1] : val_undef(name);
	if (span_is(name, "cycle") || span_is(name, "changed")) {
		m = jinja_alloc(j, 1, sizeof *m);
		*m = (Method){ { .type = V_LOOP, .loop = l }, name };
		return (Val){ .type = V_METHOD, .method = m };
	}
	return val_undef(name);
}

static Val
method(Jinja *j, Val self, ByteSpan name)
{
	Method *m;

	if (!method_exists(self, name))
		return val_undef(name);
	m = jinja_alloc(j, 1, sizeof *m);
	*m = (Method){ self, name };
	return (Val){ .type = V_METHOD, .method = m };
}

static Val
item_only(Jinja *j, Val v, Val key)
{
	Val out;
	int64_t i, n;

	switch (v.type) {
	case V_DICT:
		if (key.type == V_LIST || key.type == V_DICT)
			break;
		if (dict_get(j, v.d, key, &out))
			return out;
		break;
	case V_LIST:
	case V_TUPLE:
		if (key.type != V_INT && key.type != V_BOOL)
			break;
		i = key.type == V_INT ? key.i : key.b;
		n = (int64_t)v.l->n;
		if (i < 0)
			i += n;
		if (i >= 0 && i < n)
			return v.l->v[i];
		break;
	case V_STR:
		if (key.type != V_INT && key.type != V_BOOL)
			break;
		out = get_slice(j, v, key,
		                key.type == V_INT && key.i == -1
		                    ? val_none()
		                    : val_int((key.type == V_INT ? key.i : key.b) + 1),
		                val_none());
		if (out.s.n)
			return out;
		break;
	default:
		break;
	}
	return val_undef(key.type == V_STR ? key.s : (ByteSpan){ "item", 4 });
}

Val
get_attr(Jinja *j, Val v, ByteSpan name)
{
	Val out;

	switch (v.type) {
	case V_UNDEF:
		undefined(j, v);
	case V_LOOP:
		return loop_attr(j, v.loop, name);
	case V_NS:
		return dict_get(j, v.d, val_span(name), &out) ? out : val_undef(name);
	case V_MACRO:
		return span_is(name, "name") ? val_span(v.macro->def->name) : val_undef(name);
	default:
		break;
	}
	out = method(j, v, name);
	return out.type != V_UNDEF ? out : item_only(j, v, val_span(name));
}

Val
get_item(Jinja *j, Val v, Val key)
{
	if (v.type == V_UNDEF)
		undefined(j, v);
	Val out = item_only(j, v, key);
	if (out.type == V_UNDEF && key.type == V_STR)
		out = v.type == V_DICT || v.type == V_LIST || v.type == V_TUPLE || v.type == V_STR
		          ? method(j, v, key.s)
		          : get_attr(j, v, key.s);
	return out;
}

static int64_t
slice_bound(Jinja *j, Val v, int64_t otherwise, int64_t n, int64_t low, int64_t high)
{
	if (v.type == V_NONE)
		return otherwise;
	int64_t i = arg_int(j, "slice", v);
	if (i < 0)
		i = i < -n ? low : i + n;
	return i < low ? low : i > high ? high : i;
}

Val
get_slice(Jinja *j, Val v, Val from, Val to, Val step)
{
	int64_t by = step.type == V_NONE ? 1 : arg_int(j, "slice", step), n;
	ValList *l = NULL;
	Val out;

	if (v.type == V_UNDEF)
		undefined(j, v);
	if (v.type != V_STR && v.type != V_LIST && v.type != V_TUPLE)
		jinja_fail(j, "'%s' object cannot be sliced", val_type_name(v));
	if (by == 0)
		jinja_fail(j, "slice step cannot be zero");
	/* the common case, handled without a list of characters */
	if (v.type == V_STR && by == 1) {
		size_t a = 0;
		jinja_step(j, 16 * v.s.n);
		n = (int64_t)utf8_count(v.s.s, v.s.n);
		int64_t i = slice_bound(j, from, 0, n, 0, n), k = slice_bound(j, to, n, n, 0, n);
		size_t b, len;
		for (int64_t c = 0; c < i; c++, a += len)
			utf8_next(v.s.s + a, v.s.n - a, &len);
		b = a;
		for (int64_t c = i; c < k; c++, b += len)
			utf8_next(v.s.s + b, v.s.n - b, &len);
		return val_span((ByteSpan){ v.s.s + a, b - a });
	}
	l = val_iter(j, v);
	n = (int64_t)l->n;
	int64_t i =
	    by > 0 ? slice_bound(j, from, 0, n, 0, n) : slice_bound(j, from, n - 1, n, -1, n - 1);
	int64_t k = by > 0 ? slice_bound(j, to, n, n, 0, n) : slice_bound(j, to, -1, n, -1, n - 1);
	out = val_list(j, v.type == V_TUPLE ? V_TUPLE : V_LIST, 0);
	Buf b = { 0 };
	while (by > 0 ? i < k : i > k) {
		if (v.type == V_STR)
			buf_add(j, &b, l->v[i].s.s, l->v[i].s.n);
		else
			list_push(j, out.l, l->v[i]);
		if (__builtin_add_overflow(i, by, &i))
			break;
	}
	return v.type == V_STR ? val_span(buf_span(&b)) : out;
}

static Val
repeat(Jinja *j, Val v, int64_t times)
{
	size_t n = times < 0 ? 0 : (size_t)times;

	if (v.type == V_STR) {
		if (v.s.n && n > JINJA_MAX_BYTES / v.s.n)
			jinja_fail(j, "the template takes more than %zu bytes of memory",
			           JINJA_MAX_BYTES);
		const size_t total = n * v.s.n;
		char *p = jinja_alloc(j, total + 1, 1);
		memcpy(p, v.s.s, total ? v.s.n : 0);
		for (size_t done = v.s.n, more; done < total; done += more) {
			more = done < total - done ? done : total - done;
			memcpy(p + done, p, more); /* doubles the part that is already filled */
		}
		p[total] = 0;
		return val_span((ByteSpan){ p, total });
	}
	Val out = val_list(j, v.type, v.l->n && n <= JINJA_MAX_STEPS / v.l->n ? n * v.l->n : 0);
	for (size_t i = 0; i < n && v.l->n; i++) {
		jinja_step(j, v.l->n);
		for (size_t k = 0; k < v.l->n; k++)
			list_push(j, out.l, v.l->v[k]);
	}
	return out;
}

static Val
int_op(Jinja *j, int op, int64_t a, int64_t b)
{
	int64_t r = 0;
	bool over = false;

	switch (op) {
	case '+':
		over = __builtin_add_overflow(a, b, &r);
		break;
	case '-':
		over = __builtin_sub_overflow(a, b, &r);
		break;
	case '*':
		over = __builtin_mul_overflow(a, b, &r);
		break;
	case OP2('/', '/'):
	case '%':
		if (b == 0)
			jinja_fail(j, "division by zero");
		if (b == -1) {
			over = op != '%' && a == INT64_MIN;
			r = op == '%' || over ? 0 : -a;
			break;
		}
		r = op == '%' ? a % b : a / b;
		if (a % b != 0 && (a < 0) != (b < 0))
			r += op == '%' ? b : -1;
		break;
	case OP2('*', '*'):
		if (b < 0)
			return val_float(pow((double)a, (double)b));
		r = 1;
		if (b > 64 && (a > 1 || a < -1))
			over = true;
		for (int64_t i = 0; i < b && i < 65 && !over && a != 1; i++)
			over = __builtin_mul_overflow(r, a, &r);
		if (a == -1)
			r = b % 2 ? -1 : 1;
		break;
	default:
		break;
	}
	if (over)
		jinja_fail(j, "an integer exceeds 64 bits");
	return val_int(r);
}

static Val
float_op(Jinja *j, int op, double a, double b)
{
	if ((op == '/' || op == '%' || op == OP2('/', '/')) && b == 0)
		jinja_fail(j, "division by zero");
	switch (op) {
	case '+':
		return val_float(a + b);
	case '-':
		return val_float(a - b);
	case '*':
		return val_float(a * b);
	case '/':
		return val_float(a / b);
	case '%': {
		double r = fmod(a, b);
		return val_float(r != 0 && (r < 0) != (b < 0) ? r + b : r);
	}
	case OP2('/', '/'):
		return val_float(floor(a / b));
	default:
		return val_float(pow(a, b));
	}
}

Val
op_binary(Jinja *j, int op, Val a, Val b)
{
	if (val_is_number(a) && val_is_number(b)) {
		if (a.type == V_FLOAT || b.type == V_FLOAT || op == '/')
			return float_op(j, op, val_number(a), val_number(b));
		return int_op(j, op, a.type == V_INT ? a.i : a.b, b.type == V_INT ? b.i : b.b);
	}
	if (op == '+' && a.type == V_STR && b.type == V_STR) {
		Buf out = { 0 };
		buf_add(j, &out, a.s.s, a.s.n);
		buf_add(j, &out, b.s.s, b.s.n);
		return val_span(buf_span(&out));
	}
	if (op == '+' && a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
		Val out = val_list(j, a.type, a.l->n + b.l->n);
		for (size_t i = 0; i < a.l->n; i++)
			list_push(j, out.l, a.l->v[i]);
		for (size_t i = 0; i < b.l->n; i++)
			list_push(j, out.l, b.l->v[i]);
		return out;
	}
	if (op == '%' && a.type == V_STR)
		return str_percent(j, a.s, b);
	if (op == '*' && (b.type == V_STR || b.type == V_LIST || b.type == V_TUPLE)) {
		Val t = a;
		a = b;
		b = t;
	}
	if (op == '*' && (a.type == V_STR || a.type == V_LIST || a.type == V_TUPLE) &&
	    (b.type == V_INT || b.type == V_BOOL))
		return repeat(j, a, b.type == V_INT ? b.i : b.b);
	if (a.type == V_UNDEF)
		undefined(j, a);
	if (b.type == V_UNDEF)
		undefined(j, b);
	char sign[3] = { (char)(op > 255 ? op >> 8 : op), (char)(op > 255 ? op & 255 : 0), 0 };
	jinja_fail(j, "unsupported operand types for %s: '%s' and '%s'", sign, val_type_name(a),
	           val_type_name(b));
}

static bool
compare(Jinja *j, int op, Val a, Val b)
{
	switch (op) {
	case OP2('=', '='):
		return val_equal(j, a, b);
	case OP2('!', '='):
		return !val_equal(j, a, b);
	case 'i':
		return val_in(j, a, b);
	case 'n':
		return !val_in(j, a, b);
	default:
		break;
	}
	int c = val_compare(j, a, b);
	if (c == 2)
		return false;
	return op == '<' ? c < 0 : op == '>' ? c > 0 : op == OP2('<', '=') ? c <= 0 : c >= 0;
}

static void
eval_args(Jinja *j, Scope *s, const AstNode *n, CallArgs *out)
{
	*out = (CallArgs){ .n_pos = n->n, .n_kw = n->n_kw, .kw_name = n->kw_name };
	out->pos = jinja_alloc(j, n->n + 1, sizeof *out->pos);
	out->kw = jinja_alloc(j, n->n_kw + 1, sizeof *out->kw);
	for (size_t i = 0; i < n->n; i++)
		out->pos[i] = eval(j, s, n->list[i]);
	for (size_t i = 0; i < n->n_kw; i++)
		out->kw[i] = eval(j, s, n->kw[i]);
}

static Val
eval_compare(Jinja *j, Scope *s, const AstNode *n)
{
	Val left = eval(j, s, n->a);

	for (size_t i = 0; i < n->n; i++) {
		Val right = eval(j, s, n->list[i]);
		j->line = n->line;
		if (!compare(j, n->ops[i], left, right))
			return val_bool(false);
		left = right;
	}
	return val_bool(true);
}

static Val
eval_node(Jinja *j, Scope *s, const AstNode *n)
{
	Val v, out;
	CallArgs args;
	Buf b = { 0 };

	switch (n->kind) {
	case N_CONST:
		return n->val;
	case N_NAME:
		return lookup(s, n->name);
	case N_LIST:
	case N_TUPLE:
		out = val_list(j, n->kind == N_LIST ? V_LIST : V_TUPLE, n->n);
		for (size_t i = 0; i < n->n; i++)
			list_push(j, out.l, eval(j, s, n->list[i]));
		return out;
	case N_DICT:
		out = val_dict(j, V_DICT);
		for (size_t i = 0; i < n->n; i += 2) {
			v = eval(j, s, n->list[i]);
			dict_put(j, out.d, v, eval(j, s, n->list[i + 1]));
		}
		return out;
	case N_ATTR:
		v = eval(j, s, n->a);
		j->line = n->line;
		return get_attr(j, v, n->name);
	case N_ITEM:
		v = eval(j, s, n->a);
		out = eval(j, s, n->b);
		j->line = n->line;
		return get_item(j, v, out);
	case N_SLICE:
		v = eval(j, s, n->d);
		return get_slice(j, v, n->a ? eval(j, s, n->a) : val_none(),
		                 n->b ? eval(j, s, n->b) : val_none(),
		                 n->c ? eval(j, s, n->c) : val_none());
	case N_CALL:
		v = eval(j, s, n->a);
		eval_args(j, s, n, &args);
		j->line = n->line;
		return call_value(j, v, &args);
	case N_FILTER:
		v = eval(j, s, n->a);
		eval_args(j, s, n, &args);
		j->line = n->line;
		return apply_filter(j, n->name, v, &args);
	case N_TEST:
		v = eval(j, s, n->a);
		eval_args(j, s, n, &args);
		j->line = n->line;
		return val_bool(apply_test(j, n->name, v, &args));
	case N_BINARY:
		v = eval(j, s, n->a);
		out = eval(j, s, n->b);
		j->line = n->line;
		return op_binary(j, n->op, v, out);
	case N_NEG:
	case N_POS:
		v = eval(j, s, n->a);
		if (v.type == V_UNDEF)
			undefined(j, v);
		if (!val_is_number(v))
			jinja_fail(j, "bad operand type for unary %c: '%s'",
			           n->kind == N_NEG ? '-' : '+', val_type_name(v));
		if (v.type == V_FLOAT)
			return val_float(n->kind == N_NEG ? -v.f : v.f);
		return int_op(j, n->kind == N_NEG ? '-' : '+', 0, v.type == V_INT ? v.i : v.b);
	case N_NOT:
		return val_bool(!val_true(eval(j, s, n->a)));
	case N_AND:
		v = eval(j, s, n->a);
		return val_true(v) ? eval(j, s, n->b) : v;
	case N_OR:
		v = eval(j, s, n->a);
		return val_true(v) ? v : eval(j, s, n->b);
	case N_COMPARE:
		return eval_compare(j, s, n);
	case N_CONCAT:
		for (size_t i = 0; i < n->n; i++) {
			ByteSpan text = val_str(j, eval(j, s, n->list[i]));
			buf_add(j, &b, text.s, text.n);
		}
		return val_span(buf_span(&b));
	case N_COND:
		if (val_true(eval(j, s, n->a)))
			return eval(j, s, n->b);
		return n->c ? eval(j, s, n->c)
		            : val_undef((ByteSpan){ "the inline if-expression without else", 37 });
	default:
		jinja_fail(j, "a statement where an expression belongs");
	}
}

Val
eval(Jinja *j, Scope *s, const AstNode *n)
{
	jinja_step(j, 0);
	jinja_enter(j);
	Val v = eval_node(j, s, n);
	j->nest--;
	return v;
}

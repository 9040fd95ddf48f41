/* Filters: `x | filter` */
#include "text/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef Val (*FilterFn)(Jinja *j, ByteSpan name, Val v, const CallArgs *a);

/* Resolves a path such as "a.b.0" in v. */
static Val
path(Jinja *j, Val v, Val attr)
{
	if (attr.type != V_STR)
		return get_item(j, v, attr);
	ByteSpan s = attr.s;
	for (;;) {
		const char *dot = memchr(s.s, '.', s.n);
		ByteSpan part = { s.s, dot ? (size_t)(dot - s.s) : s.n };
		Val num;
		bool digit = part.n > 0 && part.s[0] >= '0' && part.s[0] <= '9' &&
		             num_parse(part, false, &num);
		v = get_item(j, v, digit ? num : val_span(part));
		if (!dot)
			return v;
		s = (ByteSpan){ dot + 1, s.n - part.n - 1 };
	}
}

static Val
f_length(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	(void)name, (void)a;
	switch (v.type) {
	case V_STR:
		jinja_step(j, v.s.n);
		return val_int((int64_t)utf8_count(v.s.s, v.s.n));
	case V_LIST:
	case V_TUPLE:
		return val_int((int64_t)v.l->n);
	case V_DICT:
		return val_int((int64_t)v.d->n);
	case V_UNDEF:
		return val_int(0);
	default:
		jinja_fail(j, "object of type '%s' has no len()", val_type_name(v));
	}
}

static Val
f_trim(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val chars = arg(a, 0, "chars", val_none());
	(void)name;
	if (chars.type != V_NONE)
		arg_str(j, "trim", chars);
	return val_span(
	    str_strip(j, val_str(j, v), chars.type == V_NONE ? NULL : &chars, true, true));
}

static Val
f_join(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ByteSpan d = val_str(j, arg(a, 0, "d", val_text("")));
	Val attr = arg(a, 1, "attribute", val_none());
	ValList *l = val_iter(j, v);
	Buf b = { 0 };

	(void)name;
	jinja_step(j, 64 * l->n);
	for (size_t i = 0; i < l->n; i++) {
		ByteSpan s = val_str(j, attr.type == V_NONE ? l->v[i] : path(j, l->v[i], attr));
		if (i)
			buf_add(j, &b, d.s, d.n);
		buf_add(j, &b, s.s, s.n);
	}
	return val_span(buf_span(&b));
}

static Val
f_case(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ByteSpan s = val_str(j, v);
	Buf b = { 0 };

	(void)a;
	if (!span_is(name, "title"))
		return val_span(str_case(j, s, name.s[0]));
	/* for this filter, spaces, dashes and opening brackets separate words */
	for (size_t i = 0; i < s.n;) {
		size_t end = i;
		while (end < s.n && !strchr("-([{<", s.s[end]) &&
		       str_strip(j, (ByteSpan){ s.s + end, 1 }, NULL, true, false).n)
			end++;
		ByteSpan word = str_case(j, (ByteSpan){ s.s + i, end - i }, 'c');
		buf_add(j, &b, word.s, word.n);
		if (end < s.n)
			buf_add(j, &b, s.s + end, 1);
		i = end + 1;
	}
	return val_span(buf_span(&b));
}

static Val
f_replace(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val max = arg(a, 2, "count", val_none());
	(void)name;
	return val_span(str_replace(j, val_str(j, v), val_str(j, arg(a, 0, "old", val_none())),
	                            val_str(j, arg(a, 1, "new", val_none())),
	                            max.type == V_NONE ? -1 : arg_int(j, "replace", max)));
}

static Val
f_default(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	bool falsy = val_true(arg(a, 1, "boolean", val_bool(false)));
	(void)j, (void)name;
	return v.type == V_UNDEF || (falsy && !val_true(v))
	           ? arg(a, 0, "default_value", val_text(""))
	           : v;
}

static Val
f_edge(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ValList *l = val_iter(j, v);
	(void)a;
	if (!l->n)
		return val_undef(name);
	return span_is(name, "first") ? l->v[0] : l->v[l->n - 1];
}

static Val
f_list(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	(void)name, (void)a;
	return (Val){ .type = V_LIST, .l = val_iter(j, v) };
}

static CallArgs
rest(const CallArgs *a, size_t skip)
{
	CallArgs r = *a;
	skip = skip < a->n_pos ? skip : a->n_pos;
	r.pos = a->pos + skip;
	r.n_pos -= skip;
	return r;
}

/* Returns the items over which map and select iterate. none, 0 and other false values have no
 * items. */
static ValList *
items_of(Jinja *j, Val v)
{
	return val_true(v) ? val_iter(j, v) : val_list(j, V_LIST, 0).l;
}

static Val
f_map(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ValList *l = items_of(j, v);
	Val out = val_list(j, V_LIST, l->n), attr = arg(a, (size_t)-1, "attribute", val_none());
	CallArgs more = rest(a, 1);

	(void)name;
	jinja_step(j, 64 * l->n);
	for (size_t i = 0; i < l->n; i++) {
		Val x;
		if (attr.type != V_NONE) {
			x = path(j, l->v[i], attr);
			if (x.type == V_UNDEF)
				x = arg(a, (size_t)-1, "default", x);
		} else {
			if (!a->n_pos)
				jinja_fail(j, "map requires a filter argument");
			x = apply_filter(j, arg_str(j, "map", a->pos[0]), l->v[i], &more);
		}
		list_push(j, out.l, x);
	}
	return out;
}

static Val
f_select(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	bool keep = name.s[0] == 's', by_attr = name.n > 6;
	size_t at = by_attr ? 1 : 0;
	ValList *l = items_of(j, v);
	Val out = val_list(j, V_LIST, 0);
	CallArgs more = rest(a, at + 1);

	jinja_step(j, 64 * l->n);
	if (by_attr && !a->n_pos)
		jinja_fail(j, "%.*s: missing parameter for attribute name", (int)name.n, name.s);
	for (size_t i = 0; i < l->n; i++) {
		Val x = by_attr ? path(j, l->v[i], a->pos[0]) : l->v[i];
		bool yes = a->n_pos > at ? apply_test(j, arg_str(j, "select", a->pos[at]), x, &more)
		                         : val_true(x);
		if (yes == keep)
			list_push(j, out.l, l->v[i]);
	}
	return out;
}

static Val
f_items(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Method m = { v, name };
	(void)a;
	if (v.type == V_UNDEF)
		return val_list(j, V_LIST, 0);
	if (v.type != V_DICT)
		jinja_fail(j, "Can only get item pairs from a mapping.");
	return call_method(j, &m, &(CallArgs){ 0 });
}

/* Stable sort of item; key[i] is the key of item[i]. */
static void
merge_sort(Jinja *j, Val *key, Val *item, size_t n, bool reverse, Val *key2, Val *item2)
{
	if (n < 2)
		return;
	size_t half = n / 2, i = 0, k = half, at = 0;
	merge_sort(j, key, item, half, reverse, key2, item2);
	merge_sort(j, key + half, item + half, n - half, reverse, key2, item2);
	while (i < half || k < n) {
		bool left = k >= n;
		if (i < half && k < n) {
			int c = reverse ? val_compare(j, key[i], key[k])
			                : val_compare(j, key[k], key[i]);
			left = c >= 0;
		}
		size_t from = left ? i++ : k++;
		key2[at] = key[from];
		item2[at++] = item[from];
	}
	memcpy(key, key2, n * sizeof *key);
	memcpy(item, item2, n * sizeof *item);
}

static Val
sort_key(Jinja *j, Val v, bool case_sensitive)
{
	return v.type == V_STR && !case_sensitive ? val_span(str_case(j, v.s, 'l')) : v;
}

static Val
sorted(Jinja *j, const ValList *l, Val *key, bool reverse)
{
	Val out = val_list(j, V_LIST, l->n + 1);

	for (size_t i = 0; i < l->n; i++)
		list_push(j, out.l, l->v[i]);
	merge_sort(j, key, out.l->v, l->n, reverse, jinja_alloc(j, l->n + 1, sizeof(Val)),
	           jinja_alloc(j, l->n + 1, sizeof(Val)));
	return out;
}

static Val
f_sort(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ValList *l = val_iter(j, v);
	bool reverse = val_true(arg(a, 0, "reverse", val_bool(false)));
	bool exact = val_true(arg(a, 1, "case_sensitive", val_bool(false)));
	Val attr = arg(a, 2, "attribute", val_none()), *key = jinja_alloc(j, l->n + 1, sizeof *key);

	(void)name;
	for (size_t i = 0; i < l->n; i++) {
		if (attr.type == V_STR && memchr(attr.s.s, ',', attr.s.n)) {
			Method m = { attr, { "split", 5 } };
			Val comma = val_text(",");
			ValList *parts =
			    call_method(j, &m, &(CallArgs){ .pos = &comma, .n_pos = 1 }).l;
			key[i] = val_list(j, V_TUPLE, parts->n);
			for (size_t k = 0; k < parts->n; k++)
				list_push(j, key[i].l,
				          sort_key(j, path(j, l->v[i], parts->v[k]), exact));
		} else {
			key[i] = sort_key(j, attr.type == V_NONE ? l->v[i] : path(j, l->v[i], attr),
			                  exact);
		}
	}
	return sorted(j, l, key, reverse);
}

static Val
f_dictsort(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	bool exact = val_true(arg(a, 0, "case_sensitive", val_bool(false)));
	ByteSpan by = val_str(j, arg(a, 1, "by", val_text("key")));
	bool reverse = val_true(arg(a, 2, "reverse", val_bool(false)));
	ValList *l = f_items(j, (ByteSpan){ "items", 5 }, v, a).l;
	Val *key = jinja_alloc(j, l->n + 1, sizeof *key);

	(void)name;
	if (!span_is(by, "key") && !span_is(by, "value"))
		jinja_fail(j, "You can only sort by either \"key\" or \"value\"");
	for (size_t i = 0; i < l->n; i++)
		key[i] = sort_key(j, l->v[i].l->v[span_is(by, "value")], exact);
	return sorted(j, l, key, reverse);
}

static Val
f_unique(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ValList *l = val_iter(j, v);
	bool exact = val_true(arg(a, 0, "case_sensitive", val_bool(false)));
	Val attr = arg(a, 1, "attribute", val_none()), out = val_list(j, V_LIST, 0),
	    seen = val_dict(j, V_DICT), unused;

	(void)name;
	for (size_t i = 0; i < l->n; i++) {
		Val key =
		    sort_key(j, attr.type == V_NONE ? l->v[i] : path(j, l->v[i], attr), exact);
		if (dict_get(j, seen.d, key, &unused))
			continue;
		dict_put(j, seen.d, key, val_none());
		list_push(j, out.l, l->v[i]);
	}
	return out;
}

static Val
f_reverse(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	(void)name, (void)a;
	if (v.type == V_STR)
		return get_slice(j, v, val_none(), val_none(), val_int(-1));
	return get_slice(j, (Val){ .type = V_LIST, .l = val_iter(j, v) }, val_none(), val_none(),
	                 val_int(-1));
}

static Val
f_string(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	(void)name, (void)a;
	return val_span(val_str(j, v));
}

static Val
f_int(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val otherwise = arg(a, 0, "default", val_int(0)), out;
	int64_t base = arg_int(j, "int", arg(a, 1, "base", val_int(10)));

	(void)name;
	jinja_step(j, v.type == V_STR ? v.s.n : 0);
	if (v.type == V_INT || v.type == V_BOOL)
		return val_int(v.type == V_INT ? v.i : v.b);
	if (v.type == V_STR && base == 16 && !(v.s.n > 1 && (v.s.s[1] | 32) == 'x')) {
		Buf b = { 0 };
		buf_puts(j, &b, "0x");
		buf_add(j, &b, v.s.s, v.s.n);
		return num_parse(buf_span(&b), false, &out) ? out : otherwise;
	}
	if (v.type == V_STR && num_parse(v.s, false, &out) &&
	    !(base == 10 && v.s.n > 1 && v.s.s[0] == '0' && (v.s.s[1] | 32) >= 'a'))
		return out;
	if (v.type == V_FLOAT || (v.type == V_STR && num_parse(v.s, true, &out))) {
		double f = v.type == V_FLOAT ? v.f : out.f;
		if (f > -9.2e18 && f < 9.2e18)
			return val_int((int64_t)f);
	}
	return otherwise;
}

static Val
f_float(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val out;
	(void)name;
	jinja_step(j, v.type == V_STR ? v.s.n : 0);
	if (val_is_number(v))
		return val_float(val_number(v));
	if (v.type == V_STR && num_parse(v.s, true, &out))
		return out;
	return arg(a, 0, "default", val_float(0));
}

static Val
f_escape(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	ByteSpan s = val_str(j, v);
	Buf b = { 0 };

	(void)name, (void)a;
	jinja_step(j, 8 * s.n);
	for (size_t i = 0; i < s.n; i++) {
		const char *to = s.s[i] == '&'    ? "&amp;"
		                 : s.s[i] == '<'  ? "&lt;"
		                 : s.s[i] == '>'  ? "&gt;"
		                 : s.s[i] == '"'  ? "&#34;"
		                 : s.s[i] == '\'' ? "&#39;"
		                                  : NULL;
		if (to)
			buf_puts(j, &b, to);
		else
			buf_add(j, &b, s.s + i, 1);
	}
	return val_span(buf_span(&b));
}

static Val
f_round(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	int64_t places = arg_int(j, "round", arg(a, 0, "precision", val_int(0)));
	ByteSpan how = val_str(j, arg(a, 1, "method", val_text("common")));

	(void)name;
	if (!val_is_number(v))
		jinja_fail(j, "round: a number is needed, not '%s'", val_type_name(v));
	double scale = pow(10, (double)(places < -300  ? -300
	                                : places > 300 ? 300
	                                               : places)),
	       x = val_number(v);
	if (span_is(how, "ceil"))
		return val_float(ceil(x * scale) / scale);
	if (span_is(how, "floor"))
		return val_float(floor(x * scale) / scale);
	if (!span_is(how, "common"))
		jinja_fail(j, "method must be common, ceil or floor");
	if (v.type != V_FLOAT && places >= 0)
		return val_int(v.type == V_INT ? v.i : v.b);
	/* rounds the decimal digits of the number, as Python does */
	if (places >= 0 && places <= 17) {
		char text[400];
		Val out;
		snprintf(text, sizeof text, "%.*f", (int)places, x);
		for (char *c = text; *c; c++)
			if (*c == ',')
				*c = '.';
		if (num_parse((ByteSpan){ text, strlen(text) }, true, &out))
			return out;
	}
	double r = nearbyint(x * scale) / scale;
	return isfinite(r) ? val_float(r) : val_float(x);
}

static Val
f_abs(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	(void)name, (void)a;
	if (!val_is_number(v))
		jinja_fail(j, "bad operand type for abs(): '%s'", val_type_name(v));
	if (v.type == V_FLOAT)
		return val_float(fabs(v.f));
	int64_t i = v.type == V_INT ? v.i : v.b;
	return i < 0 ? op_binary(j, '-', val_int(0), val_int(i)) : val_int(i);
}

static Val
f_indent(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val width = arg(a, 0, "width", val_int(4));
	bool first = val_true(arg(a, 1, "first", val_bool(false))),
	     blank = val_true(arg(a, 2, "blank", val_bool(false)));
	ByteSpan s = val_str(j, v), pad;
	Buf b = { 0 }, spaces = { 0 };

	(void)name;
	if (width.type == V_STR) {
		pad = width.s;
	} else {
		int64_t n = arg_int(j, "indent", width);
		for (int64_t i = 0; i < n && i < 1000; i++)
			buf_puts(j, &spaces, " ");
		pad = buf_span(&spaces);
	}
	if (first)
		buf_add(j, &b, pad.s, pad.n);
	for (size_t i = 0, line = 0;; line++) {
		const char *nl = s.n > i ? memchr(s.s + i, '\n', s.n - i) : NULL;
		size_t end = nl ? (size_t)(nl - s.s) : s.n;
		if (line > 0 && (blank || end > i))
			buf_add(j, &b, pad.s, pad.n);
		buf_add(j, &b, s.s + i, end - i);
		if (!nl)
			break;
		buf_puts(j, &b, "\n");
		i = end + 1;
	}
	return val_span(buf_span(&b));
}

static Val
f_tojson(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	(void)name;
	return to_json(j, v, a);
}

static Val
f_sum(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val attr = arg(a, 0, "attribute", val_none()), out = arg(a, 1, "start", val_int(0));
	ValList *l = val_iter(j, v);

	(void)name;
	jinja_step(j, 64 * l->n);
	for (size_t i = 0; i < l->n; i++)
		out =
		    op_binary(j, '+', out, attr.type == V_NONE ? l->v[i] : path(j, l->v[i], attr));
	return out;
}

static Val
f_extreme(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	bool exact = val_true(arg(a, 0, "case_sensitive", val_bool(false))), max = name.s[1] == 'a';
	Val attr = arg(a, 1, "attribute", val_none());
	ValList *l = val_iter(j, v);
	Val best = val_undef(name), best_key = val_none();

	jinja_step(j, 64 * l->n);
	for (size_t i = 0; i < l->n; i++) {
		Val key =
		    sort_key(j, attr.type == V_NONE ? l->v[i] : path(j, l->v[i], attr), exact);
		int c = i ? val_compare(j, key, best_key) : 0;
		if (i == 0 || (max ? c > 0 && c != 2 : c < 0)) {
			best = l->v[i];
			best_key = key;
		}
	}
	return best;
}

static Val
f_format(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	Val t = val_list(j, V_TUPLE, a->n_pos);
	(void)name;
	for (size_t i = 0; i < a->n_pos; i++)
		list_push(j, t.l, a->pos[i]);
	return str_percent(j, val_str(j, v), t);
}

static const struct {
	const char *name;
	FilterFn fn;
} filters[] = {
	{ "length", f_length },     { "count", f_length },    { "trim", f_trim },
	{ "join", f_join },         { "upper", f_case },      { "lower", f_case },
	{ "title", f_case },        { "capitalize", f_case }, { "replace", f_replace },
	{ "default", f_default },   { "d", f_default },       { "first", f_edge },
	{ "last", f_edge },         { "list", f_list },       { "map", f_map },
	{ "select", f_select },     { "reject", f_select },   { "selectattr", f_select },
	{ "rejectattr", f_select }, { "items", f_items },     { "sort", f_sort },
	{ "dictsort", f_dictsort }, { "unique", f_unique },   { "reverse", f_reverse },
	{ "string", f_string },     { "safe", f_string },     { "int", f_int },
	{ "float", f_float },       { "escape", f_escape },   { "e", f_escape },
	{ "round", f_round },       { "abs", f_abs },         { "indent", f_indent },
	{ "tojson", f_tojson },     { "sum", f_sum },         { "min", f_extreme },
	{ "max", f_extreme },       { "format", f_format },
};

Val
apply_filter(Jinja *j, ByteSpan name, Val v, const CallArgs *a)
{
	size_t n = sizeof filters / sizeof *filters;

	for (size_t i = 0; i < n; i++) {
		if (!span_is(name, filters[i].name))
			continue;
		jinja_step(j, 0);
		jinja_enter(j);
		Val out = filters[i].fn(j, name, v, a);
		j->nest--;
		return out;
	}
	jinja_fail(j, "no filter named '%.*s'", (int)(name.n < 60 ? name.n : 60), name.s);
}

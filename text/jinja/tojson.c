/* JSON input and output. tojson is that of transformers: json.dumps with ensure_ascii off, without
 * HTML escaping. */
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

Val
val_from_json(Jinja *j, const json_t *v)
{
	const char *key;
	json_t *item;
	size_t i;
	Val out;

	jinja_step(j, 0);
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		jinja_enter(j);
		out = val_dict(j, V_DICT);
		json_object_foreach ((json_t *)v, key, item) {
			size_t n = strlen(key);
			char *copy = jinja_alloc(j, n + 1, 1);
			memcpy(copy, key, n);
			dict_put(j, out.d, val_span((ByteSpan){ copy, n }), val_from_json(j, item));
		}
		j->nest--;
		return out;
	case JSON_ARRAY:
		jinja_enter(j);
		out = val_list(j, V_LIST, json_array_size(v));
		json_array_foreach (v, i, item)
			list_push(j, out.l, val_from_json(j, item));
		j->nest--;
		return out;
	case JSON_STRING: {
		const char *digits = json_kept_digits(v);
		if (digits) {
			size_t len = strlen(digits);
			char *own = jinja_alloc(j, len + 1, 1);
			memcpy(own, digits, len);
			out = val_span((ByteSpan){ own, len });
			out.digits = true;
			return out;
		}
		size_t n = json_string_length(v);
		char *copy = jinja_alloc(j, n + 1, 1);
		memcpy(copy, json_string_value(v), n);
		return val_span((ByteSpan){ copy, n });
	}
	case JSON_INTEGER:
		return val_int(json_integer_value(v));
	case JSON_REAL:
		return val_float(json_real_value(v));
	case JSON_TRUE:
		return val_bool(true);
	case JSON_FALSE:
		return val_bool(false);
	case JSON_NULL:
		break;
	}
	return val_none();
}

typedef struct JsonStyle {
	ByteSpan indent; /* indent per level */
	bool pretty, ascii, sort;
	ByteSpan comma, colon;
} JsonStyle;

static void
put_string(Jinja *j, Buf *b, ByteSpan s, bool ascii)
{
	char esc[16];

	buf_puts(j, b, "\"");
	for (size_t i = 0, len; i < s.n; i += len) {
		json_escape(esc, utf8_next(s.s + i, s.n - i, &len), ascii);
		if (*esc)
			buf_puts(j, b, esc);
		else
			buf_add(j, b, s.s + i, len);
	}
	buf_puts(j, b, "\"");
}

static void
new_line(Jinja *j, Buf *b, const JsonStyle *st, int level)
{
	if (!st->pretty)
		return;
	buf_puts(j, b, "\n");
	for (int i = 0; i < level; i++)
		buf_add(j, b, st->indent.s, st->indent.n);
}

static void put(Jinja *j, Buf *b, const JsonStyle *st, Val v, int level);

static void
put_key(Jinja *j, Buf *b, const JsonStyle *st, Val key)
{
	Buf text = { 0 };

	if (key.type == V_STR) {
		put_string(j, b, key.s, st->ascii);
		return;
	}
	if (key.type != V_NONE && !val_is_number(key))
		jinja_fail(j, "keys must be str, int, float, bool or None, not %s",
		           val_type_name(key));
	put(j, &text, st, key, 0);
	put_string(j, b, buf_span(&text), st->ascii);
}

static void
put_dict(Jinja *j, Buf *b, const JsonStyle *st, const Dict *d, int level)
{
	size_t *order = jinja_alloc(j, d->n + 1, sizeof *order);

	for (size_t i = 0; i < d->n; i++) {
		size_t k = i;
		for (; st->sort && k > 0 && val_compare(j, d->key[i], d->key[order[k - 1]]) < 0;
		     k--)
			order[k] = order[k - 1];
		order[k] = i;
	}
	buf_puts(j, b, "{");
	for (size_t i = 0; i < d->n; i++) {
		if (i)
			buf_add(j, b, st->comma.s, st->comma.n);
		new_line(j, b, st, level + 1);
		put_key(j, b, st, d->key[order[i]]);
		buf_add(j, b, st->colon.s, st->colon.n);
		put(j, b, st, d->val[order[i]], level + 1);
	}
	if (d->n)
		new_line(j, b, st, level);
	buf_puts(j, b, "}");
}

static void
put(Jinja *j, Buf *b, const JsonStyle *st, Val v, int level)
{
	jinja_step(j, 0);
	jinja_enter(j);
	switch (v.type) {
	case V_NONE:
		buf_puts(j, b, "null");
		break;
	case V_BOOL:
		buf_puts(j, b, v.b ? "true" : "false");
		break;
	case V_FLOAT:
		if (isnan(v.f) || isinf(v.f))
			buf_puts(j, b, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
		else
			float_repr(j, b, v.f);
		break;
	case V_INT:
		val_repr(j, b, v);
		break;
	case V_STR:
		if (v.digits)
			buf_add(j, b, v.s.s, v.s.n);
		else
			put_string(j, b, v.s, st->ascii);
		break;
	case V_LIST:
	case V_TUPLE:
		buf_puts(j, b, "[");
		for (size_t i = 0; i < v.l->n; i++) {
			if (i)
				buf_add(j, b, st->comma.s, st->comma.n);
			new_line(j, b, st, level + 1);
			put(j, b, st, v.l->v[i], level + 1);
		}
		if (v.l->n)
			new_line(j, b, st, level);
		buf_puts(j, b, "]");
		break;
	case V_DICT:
		put_dict(j, b, st, v.d, level);
		break;
	case V_UNDEF:
	case V_NS:
	case V_MACRO:
	case V_METHOD:
	case V_FUNC:
	case V_LOOP:
		jinja_fail(j, "Object of type %s is not JSON serializable", val_type_name(v));
	}
	j->nest--;
}

Val
to_json(Jinja *j, Val v, const CallArgs *args)
{
	Val indent = arg(args, 1, "indent", val_none()),
	    sep = arg(args, 2, "separators", val_none());
	JsonStyle st = { .comma = { ", ", 2 }, .colon = { ": ", 2 } };
	Buf b = { 0 };

	st.ascii = val_true(arg(args, 0, "ensure_ascii", val_bool(false)));
	st.sort = val_true(arg(args, 3, "sort_keys", val_bool(false)));
	if (indent.type == V_STR) {
		st.pretty = true;
		st.indent = indent.s;
	} else if (indent.type != V_NONE) {
		int64_t n = arg_int(j, "tojson", indent);
		char *spaces = jinja_alloc(j, 101, 1);
		n = n < 0 ? 0 : n > 100 ? 100 : n;
		memset(spaces, ' ', (size_t)n);
		st.pretty = true;
		st.indent = (ByteSpan){ spaces, (size_t)n };
	}
	if (st.pretty)
		st.comma = (ByteSpan){ ",", 1 };
	if ((sep.type == V_TUPLE || sep.type == V_LIST) && sep.l->n == 2) {
		st.comma = arg_str(j, "tojson", sep.l->v[0]);
		st.colon = arg_str(j, "tojson", sep.l->v[1]);
	}
	put(j, &b, &st, v, 0);
	return val_span(buf_span(&b));
}

/* Values of templates, with Python's rules for truth, equality, order, str() and repr(). */
#include "text/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/number.h"

Val
val_none(void)
{
	return (Val){ .type = V_NONE };
}

Val
val_bool(bool b)
{
	return (Val){ .type = V_BOOL, .b = b };
}

Val
val_int(int64_t i)
{
	return (Val){ .type = V_INT, .i = i };
}

Val
val_float(double f)
{
	return (Val){ .type = V_FLOAT, .f = f };
}

Val
val_span(ByteSpan s)
{
	return (Val){ .type = V_STR, .s = s };
}

Val
val_text(const char *s)
{
	return val_span((ByteSpan){ s, strlen(s) });
}

Val
val_undef(ByteSpan name)
{
	return (Val){ .type = V_UNDEF, .s = name };
}

void
buf_add(Jinja *j, Buf *b, const char *s, size_t n)
{
	if (n >= b->cap - b->n) {
		size_t cap = b->cap ? b->cap : 64;
		while (cap - b->n <= n)
			cap *= 2;
		char *p = jinja_alloc(j, cap, 1);
		if (b->n)
			memcpy(p, b->s, b->n);
		b->s = p;
		b->cap = cap;
	}
	if (n)
		memcpy(b->s + b->n, s, n);
	b->n += n;
	b->s[b->n] = 0;
}

void
buf_puts(Jinja *j, Buf *b, const char *s)
{
	buf_add(j, b, s, strlen(s));
}

ByteSpan
buf_span(const Buf *b)
{
	return (ByteSpan){ b->s ? b->s : "", b->n };
}

Val
val_list(Jinja *j, ValType type, size_t cap)
{
	ValList *l = jinja_alloc(j, 1, sizeof *l);
	if (cap) {
		l->v = jinja_alloc(j, cap, sizeof *l->v);
		l->cap = cap;
	}
	return (Val){ .type = type, .l = l };
}

void
list_push(Jinja *j, ValList *l, Val v)
{
	if (l->n == l->cap) {
		size_t cap = l->cap ? l->cap * 2 : 4;
		Val *p = jinja_alloc(j, cap, sizeof *p);
		if (l->n)
			memcpy(p, l->v, l->n * sizeof *p);
		l->v = p;
		l->cap = cap;
	}
	l->v[l->n++] = v;
}

Val
val_dict(Jinja *j, ValType type)
{
	return (Val){ .type = type, .d = jinja_alloc(j, 1, sizeof(Dict)) };
}

bool
val_is_number(Val v)
{
	return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT;
}

double
val_number(Val v)
{
	return v.type == V_FLOAT ? v.f : v.type == V_INT ? (double)v.i : v.type == V_BOOL ? v.b : 0;
}

static uint64_t
key_hash(Jinja *j, Val k)
{
	uint64_t h = 0xcbf29ce484222325ULL;

	jinja_step(j, k.type == V_STR ? 8 * k.s.n : 0);
	switch (k.type) {
	case V_STR:
		for (size_t i = 0; i < k.s.n; i++)
			h = (h ^ (unsigned char)k.s.s[i]) * 0x100000001b3ULL;
		return h ^ h >> 29;
	case V_NONE:
		return 1;
	case V_BOOL:
	case V_INT:
	case V_FLOAT: { /* 1, 1.0 and True are equal keys */
		double d = val_number(k) + 0.0;
		memcpy(&h, &d, 8);
		return (h ^ h >> 32) * 0x9E3779B97F4A7C15ULL;
	}
	case V_TUPLE:
		jinja_enter(j);
		for (size_t i = 0; i < k.l->n; i++)
			h = (h ^ key_hash(j, k.l->v[i])) * 0x100000001b3ULL;
		j->nest--;
		return h;
	default:
		jinja_fail(j, "unhashable type: '%s'", val_type_name(k));
	}
}

static size_t
dict_slot(Jinja *j, const Dict *d, Val key)
{
	size_t i = (key_hash(j, key) ^ 0) & (d->n_slots - 1);

	while (d->slot[i] && !val_equal(j, d->key[d->slot[i] - 1], key)) {
		jinja_step(j, 0);
		i = (i + 1) & (d->n_slots - 1);
	}
	return i;
}

static int64_t
dict_find(Jinja *j, const Dict *d, Val key)
{
	if (d->n_slots)
		return (int64_t)d->slot[dict_slot(j, d, key)] - 1;
	key_hash(j, key); /* rejects unhashable keys */
	for (size_t i = 0; i < d->n; i++)
		if (val_equal(j, d->key[i], key))
			return (int64_t)i;
	return -1;
}

bool
dict_get(Jinja *j, const Dict *d, Val key, Val *out)
{
	int64_t i = dict_find(j, d, key);

	if (i >= 0)
		*out = d->val[i];
	return i >= 0;
}

void
dict_put(Jinja *j, Dict *d, Val key, Val v)
{
	int64_t at = dict_find(j, d, key);

	if (at >= 0) {
		d->val[at] = v;
		return;
	}
	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 4;
		if (cap > INT32_MAX)
			jinja_fail(j, "a mapping grows too large");
		Val *k = jinja_alloc(j, cap, sizeof *k), *w = jinja_alloc(j, cap, sizeof *w);
		if (d->n) {
			memcpy(k, d->key, d->n * sizeof *k);
			memcpy(w, d->val, d->n * sizeof *w);
		}
		d->key = k;
		d->val = w;
		d->cap = cap;
	}
	d->key[d->n] = key;
	d->val[d->n++] = v;
	if (d->n > 8 && d->n * 2 > d->n_slots) {
		d->n_slots = d->n_slots ? d->n_slots * 2 : 32;
		d->slot = jinja_alloc(j, d->n_slots, sizeof *d->slot);
		for (size_t i = 0; i < d->n; i++)
			d->slot[dict_slot(j, d, d->key[i])] = (int32_t)i + 1;
	} else if (d->n_slots) {
		d->slot[dict_slot(j, d, key)] = (int32_t)d->n;
	}
}

bool
val_true(Val v)
{
	switch (v.type) {
	case V_UNDEF:
	case V_NONE:
		return false;
	case V_BOOL:
		return v.b;
	case V_INT:
		return v.i != 0;
	case V_FLOAT:
		return v.f != 0;
	case V_STR:
		return v.s.n > 0;
	case V_LIST:
	case V_TUPLE:
		return v.l->n > 0;
	case V_DICT:
		return v.d->n > 0;
	case V_NS:
	case V_MACRO:
	case V_METHOD:
	case V_FUNC:
	case V_LOOP:
		return true;
	}
	return false;
}

static int
span_compare(Jinja *j, ByteSpan a, ByteSpan b)
{
	size_t n = a.n < b.n ? a.n : b.n;

	jinja_step(j, n);
	int c = n ? memcmp(a.s, b.s, n) : 0;
	return c ? (c > 0 ? 1 : -1) : (a.n > b.n) - (a.n < b.n);
}

static int
number_compare(Val a, Val b)
{
	if (a.type != V_FLOAT && b.type != V_FLOAT) {
		int64_t x = a.type == V_INT ? a.i : a.b, y = b.type == V_INT ? b.i : b.b;
		return (x > y) - (x < y);
	}
	double x = val_number(a), y = val_number(b);
	return x == y ? 0 : x < y ? -1 : x > y ? 1 : 2; /* 2: NaN */
}

bool
val_equal(Jinja *j, Val a, Val b)
{
	bool same = true;

	if (val_is_number(a) && val_is_number(b))
		return number_compare(a, b) == 0;
	if (a.type != b.type)
		return false;
	switch (a.type) {
	case V_UNDEF:
	case V_NONE:
		return true;
	case V_STR:
		jinja_step(j, a.s.n < b.s.n ? a.s.n : b.s.n);
		return span_same(a.s, b.s);
	case V_LIST:
	case V_TUPLE:
		if (a.l == b.l)
			return true;
		jinja_enter(j);
		same = a.l->n == b.l->n;
		jinja_step(j, same ? a.l->n * 64 : 0);
		for (size_t i = 0; same && i < a.l->n; i++)
			same = val_equal(j, a.l->v[i], b.l->v[i]);
		j->nest--;
		return same;
	case V_DICT: {
		if (a.d == b.d)
			return true;
		jinja_enter(j);
		same = a.d->n == b.d->n;
		jinja_step(j, same ? a.d->n * 64 : 0);
		for (size_t i = 0; same && i < a.d->n; i++) {
			Val w;
			same = dict_get(j, b.d, a.d->key[i], &w) && val_equal(j, a.d->val[i], w);
		}
		j->nest--;
		return same;
	}
	case V_NS:
		return a.d == b.d;
	case V_MACRO:
		return a.macro == b.macro;
	case V_METHOD:
		return a.method == b.method;
	case V_LOOP:
		return a.loop == b.loop;
	case V_FUNC:
		return a.func == b.func;
	case V_BOOL:
	case V_INT:
	case V_FLOAT:
		break; /* numbers are handled above */
	}
	return false;
}

int
val_compare(Jinja *j, Val a, Val b)
{
	jinja_step(j, 0);
	if (val_is_number(a) && val_is_number(b))
		return number_compare(a, b);
	if (a.type == V_STR && b.type == V_STR)
		return span_compare(j, a.s, b.s);
	if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
		jinja_enter(j);
		int c = 0;
		size_t i;
		for (i = 0; c == 0 && i < a.l->n && i < b.l->n; i++)
			if (!val_equal(j, a.l->v[i], b.l->v[i]))
				c = val_compare(j, a.l->v[i], b.l->v[i]);
		j->nest--;
		return c ? c : (a.l->n > b.l->n) - (a.l->n < b.l->n);
	}
	if (a.type == V_UNDEF || b.type == V_UNDEF) {
		ByteSpan s = a.type == V_UNDEF ? a.s : b.s;
		jinja_fail(j, "'%.*s' is undefined", (int)(s.n < 80 ? s.n : 80), s.s);
	}
	jinja_fail(j, "'%s' and '%s' have no order", val_type_name(a), val_type_name(b));
}

bool
val_in(Jinja *j, Val needle, Val hay)
{
	Val unused;

	switch (hay.type) {
	case V_STR:
		if (needle.type != V_STR)
			jinja_fail(j, "'in <string>' requires string as left operand, not %s",
			           val_type_name(needle));
		jinja_step(j, hay.s.n);
		return !needle.s.n || memmem(hay.s.s, hay.s.n, needle.s.s, needle.s.n);
	case V_DICT:
		return dict_get(j, hay.d, needle, &unused);
	case V_LIST:
	case V_TUPLE:
		jinja_step(j, hay.l->n * 64); /* one step per comparison */
		for (size_t i = 0; i < hay.l->n; i++)
			if (val_equal(j, hay.l->v[i], needle))
				return true;
		return false;
	case V_UNDEF:
		return false;
	default:
		jinja_fail(j, "argument of type '%s' is not iterable", val_type_name(hay));
	}
}

ValList *
val_iter(Jinja *j, Val v)
{
	Val out;

	switch (v.type) {
	case V_LIST:
	case V_TUPLE:
		return v.l;
	case V_UNDEF:
		return val_list(j, V_LIST, 0).l;
	case V_DICT:
		out = val_list(j, V_LIST, v.d->n);
		for (size_t i = 0; i < v.d->n; i++)
			list_push(j, out.l, v.d->key[i]);
		return out.l;
	case V_STR:
		out = val_list(j, V_LIST, 0);
		for (size_t i = 0, len; i < v.s.n; i += len) {
			utf8_next(v.s.s + i, v.s.n - i, &len);
			list_push(j, out.l, val_span((ByteSpan){ v.s.s + i, len }));
		}
		return out.l;
	default:
		jinja_fail(j, "'%s' object is not iterable", val_type_name(v));
	}
}

void
float_repr(Jinja *j, Buf *b, double f)
{
	char text[NUMBER_SIZE];

	number_text(text, f, NUMBER_EXACT);
	buf_puts(j, b, text);
}

/* Parses a number as Python's float() does, without surrounding spaces. */
static bool
float_parse(const char *s, double *out)
{
	const char *word = s + (*s == '-' || *s == '+');

	if (strcasecmp(word, "nan") == 0)
		*out = NAN;
	else if (strcasecmp(word, "inf") == 0 || strcasecmp(word, "infinity") == 0)
		*out = *s == '-' ? -INFINITY : INFINITY;
	else
		return number_parse(s, out);
	return true;
}

bool
num_parse(ByteSpan s, bool floats, Val *out)
{
	char text[400];
	size_t n = 0;
	int base = 10;

	while (s.n && (s.s[0] == ' ' || (s.s[0] >= '\t' && s.s[0] <= '\r'))) {
		s.s++;
		s.n--;
	}
	while (s.n && (s.s[s.n - 1] == ' ' || (s.s[s.n - 1] >= '\t' && s.s[s.n - 1] <= '\r')))
		s.n--;
	for (size_t i = 0; i < s.n; i++) {
		if (s.s[i] == '_' && i > 0 && i + 1 < s.n)
			continue;
		if (n + 1 >= sizeof text || !s.s[i])
			return false;
		text[n++] = s.s[i];
	}
	text[n] = 0;
	if (!n)
		return false;
	if (floats) {
		*out = val_float(0);
		return float_parse(text, &out->f);
	}
	const char *p = text + (text[0] == '-' || text[0] == '+');
	if (p[0] == '0' && (p[1] | 32) == 'x')
		base = 16;
	else if (p[0] == '0' && (p[1] | 32) == 'o')
		base = 8;
	else if (p[0] == '0' && (p[1] | 32) == 'b')
		base = 2;
	if (base != 10)
		p += 2;
	uint64_t v = 0;
	if (!*p)
		return false;
	for (; *p; p++) {
		int d = hex_digit(*p);
		if (d < 0 || d >= base || __builtin_mul_overflow(v, (uint64_t)base, &v) ||
		    __builtin_add_overflow(v, (uint64_t)d, &v))
			return false;
	}
	if (v > (uint64_t)INT64_MAX)
		return false;
	*out = val_int(text[0] == '-' ? -(int64_t)v : (int64_t)v);
	return true;
}

static void
str_repr(Jinja *j, Buf *b, ByteSpan s)
{
	char quote = memchr(s.s, '\'', s.n) && !memchr(s.s, '"', s.n) ? '"' : '\'', esc[16];

	buf_add(j, b, &quote, 1);
	for (size_t i = 0, len; i < s.n; i += len) {
		int32_t cp = utf8_next(s.s + i, s.n - i, &len);
		utf8proc_category_t c = utf8proc_category(cp);
		if (cp == quote || cp == '\\') {
			snprintf(esc, sizeof esc, "\\%c", (char)cp);
			buf_puts(j, b, esc);
		} else if (cp == '\n' || cp == '\r' || cp == '\t') {
			buf_puts(j, b, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
		} else if (cp != ' ' && (c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF ||
		                         c == UTF8PROC_CATEGORY_CS || c == UTF8PROC_CATEGORY_CO ||
		                         c == UTF8PROC_CATEGORY_CN || c == UTF8PROC_CATEGORY_ZL ||
		                         c == UTF8PROC_CATEGORY_ZP || c == UTF8PROC_CATEGORY_ZS)) {
			snprintf(esc, sizeof esc,
			         cp < 0x100     ? "\\x%02x"
			         : cp < 0x10000 ? "\\u%04x"
			                        : "\\U%08x",
			         (unsigned)cp);
			buf_puts(j, b, esc);
		} else {
			buf_add(j, b, s.s + i, len);
		}
	}
	buf_add(j, b, &quote, 1);
}

static void
dict_repr(Jinja *j, Buf *b, const Dict *d)
{
	buf_puts(j, b, "{");
	for (size_t i = 0; i < d->n; i++) {
		if (i)
			buf_puts(j, b, ", ");
		val_repr(j, b, d->key[i]);
		buf_puts(j, b, ": ");
		val_repr(j, b, d->val[i]);
	}
	buf_puts(j, b, "}");
}

void
val_repr(Jinja *j, Buf *b, Val v)
{
	char text[32];

	jinja_step(j, 0);
	jinja_enter(j);
	switch (v.type) {
	case V_UNDEF:
		buf_puts(j, b, "Undefined");
		break;
	case V_NONE:
		buf_puts(j, b, "None");
		break;
	case V_BOOL:
		buf_puts(j, b, v.b ? "True" : "False");
		break;
	case V_INT:
		snprintf(text, sizeof text, "%lld", (long long)v.i);
		buf_puts(j, b, text);
		break;
	case V_FLOAT:
		float_repr(j, b, v.f);
		break;
	case V_STR:
		if (v.digits)
			buf_add(j, b, v.s.s, v.s.n);
		else
			str_repr(j, b, v.s);
		break;
	case V_LIST:
	case V_TUPLE:
		buf_puts(j, b, v.type == V_LIST ? "[" : "(");
		for (size_t i = 0; i < v.l->n; i++) {
			if (i)
				buf_puts(j, b, ", ");
			val_repr(j, b, v.l->v[i]);
		}
		buf_puts(j, b, v.type == V_LIST ? "]" : v.l->n == 1 ? ",)" : ")");
		break;
	case V_DICT:
		dict_repr(j, b, v.d);
		break;
	case V_NS:
		buf_puts(j, b, "<Namespace ");
		dict_repr(j, b, v.d);
		buf_puts(j, b, ">");
		break;
	case V_MACRO:
	case V_METHOD:
	case V_FUNC:
	case V_LOOP:
		buf_puts(j, b, "<");
		buf_puts(j, b, val_type_name(v));
		buf_puts(j, b, ">");
		break;
	}
	j->nest--;
}

ByteSpan
val_str(Jinja *j, Val v)
{
	Buf b = { 0 };

	if (v.type == V_STR)
		return v.s;
	if (v.type == V_UNDEF)
		return (ByteSpan){ "", 0 };
	val_repr(j, &b, v);
	return buf_span(&b);
}

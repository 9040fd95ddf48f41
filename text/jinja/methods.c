/* Methods of strings and mappings, loop attributes that are called, and global functions. Lists and
 * mappings are immutable, as in the sandbox of transformers. */
#include "text/jinja/jinja.h"

#include <string.h>
#include <time.h>
#include <utf8proc.h>

static const char *const str_methods[] = {
	"strip",      "lstrip",       "rstrip",       "split",     "rsplit",     "splitlines",
	"startswith", "endswith",     "upper",        "lower",     "title",      "capitalize",
	"replace",    "find",         "rfind",        "index",     "count",      "join",
	"format",     "isdigit",      "isalpha",      "isalnum",   "isspace",    "isupper",
	"islower",    "removeprefix", "removesuffix", "partition", "rpartition", NULL,
};
static const char *const dict_methods[] = { "items", "keys", "values", "get", "copy", NULL };
static const char *const list_methods[] = { "index", "count", "copy", NULL };
static const char *const changing[] = { "append", "extend",     "insert",  "pop",
	                                "remove", "clear",      "sort",    "reverse",
	                                "update", "setdefault", "popitem", NULL };

static bool
listed(const char *const *names, ByteSpan name)
{
	for (; *names; names++)
		if (span_is(name, *names))
			return true;
	return false;
}

bool
method_exists(Val self, ByteSpan name)
{
	switch (self.type) {
	case V_STR:
		return listed(str_methods, name);
	case V_DICT:
		return listed(dict_methods, name) ||
		       (listed(changing, name) &&
		        listed((const char *const[]){ "pop", "clear", "update", "setdefault",
		                                      "popitem", NULL },
		               name));
	case V_LIST:
		return listed(list_methods, name) ||
		       listed((const char *const[]){ "append", "extend", "insert", "pop", "remove",
		                                     "clear", "sort", "reverse", NULL },
		              name);
	case V_TUPLE:
		return span_is(name, "index") || span_is(name, "count");
	default:
		return false;
	}
}

static void
push_span(Jinja *j, Val list, const char *s, size_t n)
{
	list_push(j, list.l, val_span((ByteSpan){ s, n }));
}

/* Find the last occurrence of w, which is not empty. NULL: there is none. Each candidate counts as
 * a step, because comparing it may take long. */
static const char *
find_last(Jinja *j, ByteSpan s, ByteSpan w)
{
	jinja_step(j, 4 * s.n);
	for (size_t i = s.n >= w.n ? s.n - w.n + 1 : 0; i > 0; i--)
		if (s.s[i - 1] == w.s[0]) {
			jinja_step(j, w.n);
			if (memcmp(s.s + i - 1, w.s, w.n) == 0)
				return s.s + i - 1;
		}
	return NULL;
}

static Val
split(Jinja *j, ByteSpan s, Val sep, int64_t max, bool right)
{
	Val out = val_list(j, V_LIST, 0);

	if (max < 0)
		max = INT64_MAX;
	/* split at runs of whitespace, ignoring whitespace at both ends */
	if (sep.type == V_NONE) {
		for (;;) {
			s = str_strip(j, s, NULL, !right, right);
			if (!s.n)
				break;
			if (max-- == 0) {
				push_span(j, out, s.s, s.n);
				break;
			}
			size_t len, at = right ? s.n : 0;
			while (right ? at > 0 : at < s.n) {
				size_t c = at;
				if (right)
					for (c--; c > 0 && ((unsigned char)s.s[c] & 0xC0) == 0x80;)
						c--;
				ByteSpan one = { s.s + c, 0 };
				utf8_next(s.s + c, s.n - c, &len);
				one.n = len;
				if (!str_strip(j, one, NULL, true, false).n)
					break;
				at = right ? c : at + len;
			}
			push_span(j, out, right ? s.s + at : s.s, right ? s.n - at : at);
			s = right ? (ByteSpan){ s.s, at } : (ByteSpan){ s.s + at, s.n - at };
		}
	} else {
		ByteSpan by = arg_str(j, "split", sep);
		if (!by.n)
			jinja_fail(j, "empty separator");
		jinja_step(j, s.n);
		for (; max > 0; max--) {
			const char *hit = right ? find_last(j, s, by)
			                  : s.n ? memmem(s.s, s.n, by.s, by.n)
			                        : NULL;
			if (!hit)
				break;
			size_t at = (size_t)(hit - s.s);
			push_span(j, out, right ? hit + by.n : s.s, right ? s.n - at - by.n : at);
			s = right ? (ByteSpan){ s.s, at }
			          : (ByteSpan){ hit + by.n, s.n - at - by.n };
		}
		push_span(j, out, s.s, s.n);
	}
	for (size_t i = 0; right && i < out.l->n / 2; i++) {
		Val v = out.l->v[i];
		out.l->v[i] = out.l->v[out.l->n - 1 - i];
		out.l->v[out.l->n - 1 - i] = v;
	}
	return out;
}

static bool
edge(Jinja *j, ByteSpan s, Val with, bool start)
{
	if (with.type == V_TUPLE) {
		for (size_t i = 0; i < with.l->n; i++)
			if (edge(j, s, with.l->v[i].type == V_TUPLE ? val_none() : with.l->v[i],
			         start))
				return true;
		return false;
	}
	ByteSpan w = arg_str(j, start ? "startswith" : "endswith", with);
	jinja_step(j, w.n);
	return s.n >= w.n && memcmp(start ? s.s : s.s + s.n - w.n, w.s, w.n) == 0;
}

static Val
find(Jinja *j, ByteSpan s, Val what, bool right, bool must)
{
	ByteSpan w = arg_str(j, "find", what);

	jinja_step(j, s.n);
	if (!right) {
		const char *hit = !w.n ? s.s : s.n ? memmem(s.s, s.n, w.s, w.n) : NULL;
		if (hit)
			return val_int((int64_t)utf8_count(s.s, (size_t)(hit - s.s)));
	} else {
		const char *hit = w.n ? find_last(j, s, w) : s.s + s.n;
		if (hit)
			return val_int((int64_t)utf8_count(s.s, (size_t)(hit - s.s)));
	}
	if (must)
		jinja_fail(j, "substring not found");
	return val_int(-1);
}

static int64_t
count(Jinja *j, ByteSpan s, ByteSpan w)
{
	int64_t n = 0;

	jinja_step(j, s.n);
	if (!w.n)
		return (int64_t)utf8_count(s.s, s.n) + 1;
	for (const char *hit; s.n && (hit = memmem(s.s, s.n, w.s, w.n)); n++) {
		size_t used = (size_t)(hit - s.s) + w.n;
		s.s += used;
		s.n -= used;
	}
	return n;
}

static bool
all_are(Jinja *j, ByteSpan s, ByteSpan name)
{
	bool any = false, has_case = false, ok = s.n > 0;

	jinja_step(j, 64 * s.n); /* Unicode tables are slow */
	for (size_t i = 0, len; ok && i < s.n; i += len) {
		int32_t cp = utf8_next(s.s + i, s.n - i, &len);
		utf8proc_category_t c = utf8proc_category(cp);
		bool alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
		bool digit = c == UTF8PROC_CATEGORY_ND;
		bool upper = c == UTF8PROC_CATEGORY_LU, lower = c == UTF8PROC_CATEGORY_LL;
		any = true;
		has_case |= upper || lower;
		if (span_is(name, "isdigit"))
			ok = digit;
		else if (span_is(name, "isalpha"))
			ok = alpha;
		else if (span_is(name, "isalnum"))
			ok = alpha || cp_is_numeric((uint32_t)cp);
		else if (span_is(name, "isspace"))
			ok = cp_is_space((uint32_t)cp) || (cp >= 0x1C && cp <= 0x1F);
		else
			ok = span_is(name, "isupper") ? !lower : !upper;
	}
	return ok && any && (has_case || !(span_is(name, "isupper") || span_is(name, "islower")));
}

static Val
lines(Jinja *j, ByteSpan s, bool keep)
{
	Val out = val_list(j, V_LIST, 0);
	size_t from = 0;

	jinja_step(j, 8 * s.n);
	for (size_t i = 0; i < s.n; i++) {
		if (s.s[i] != '\n' && s.s[i] != '\r')
			continue;
		size_t end = i;
		if (s.s[i] == '\r' && i + 1 < s.n && s.s[i + 1] == '\n')
			i++;
		push_span(j, out, s.s + from, (keep ? i + 1 : end) - from);
		from = i + 1;
	}
	if (from < s.n)
		push_span(j, out, s.s + from, s.n - from);
	return out;
}

/* "{} {0} {name}".format(...), without format specifications */
static Val
format(Jinja *j, ByteSpan f, const CallArgs *a)
{
	Buf b = { 0 };
	size_t next = 0;

	jinja_step(j, f.n);
	for (size_t i = 0; i < f.n; i++) {
		char c = f.s[i];
		if ((c == '{' || c == '}') && i + 1 < f.n && f.s[i + 1] == c) {
			buf_add(j, &b, &c, 1);
			i++;
			continue;
		}
		if (c != '{') {
			if (c == '}')
				jinja_fail(j, "Single '}' encountered in format string");
			buf_add(j, &b, &c, 1);
			continue;
		}
		const char *end = memchr(f.s + i, '}', f.n - i);
		if (!end)
			jinja_fail(j, "expected '}' before end of string");
		ByteSpan name = { f.s + i + 1, (size_t)(end - f.s) - i - 1 };
		jinja_step(j, 16 * a->n_kw);
		Val v = val_undef(name), num;
		if (!name.n)
			v = arg(a, next++, NULL, v);
		else if (num_parse(name, false, &num) && num.i >= 0)
			v = arg(a, (size_t)num.i, NULL, v);
		else
			for (size_t k = 0; k < a->n_kw; k++)
				if (span_same(a->kw_name[k], name))
					v = a->kw[k];
		if (v.type == V_UNDEF)
			jinja_fail(j,
			           "format: no argument for {%.*s}; format specifications are not "
			           "supported",
			           (int)(name.n < 40 ? name.n : 40), name.s);
		ByteSpan s = val_str(j, v);
		buf_add(j, &b, s.s, s.n);
		i = (size_t)(end - f.s);
	}
	return val_span(buf_span(&b));
}

static Val
partition(Jinja *j, ByteSpan s, Val sep, bool right)
{
	Val parts = split(j, s, sep, 1, right), out = val_list(j, V_TUPLE, 3);
	bool found = parts.l->n == 2;

	list_push(j, out.l, found || !right ? parts.l->v[0] : val_text(""));
	list_push(j, out.l, found ? sep : val_text(""));
	list_push(j, out.l, found ? parts.l->v[1] : right ? val_span(s) : val_text(""));
	return out;
}

static Val
call_str(Jinja *j, ByteSpan s, ByteSpan name, const CallArgs *a)
{
	Val first = arg(a, 0, NULL, val_none()), second = arg(a, 1, NULL, val_none());

	if (span_is(name, "strip") || span_is(name, "lstrip") || span_is(name, "rstrip")) {
		args_check(j, "strip", a, 1);
		if (first.type != V_NONE)
			arg_str(j, "strip", first);
		return val_span(str_strip(j, s, first.type == V_NONE ? NULL : &first,
		                          name.s[0] != 'r', name.s[0] != 'l'));
	}
	if (span_is(name, "split") || span_is(name, "rsplit")) {
		args_check(j, "split", a, 2);
		return split(j, s, arg(a, 0, "sep", val_none()),
		             arg_int(j, "split", arg(a, 1, "maxsplit", val_int(-1))),
		             name.s[0] == 'r');
	}
	if (span_is(name, "splitlines"))
		return lines(j, s, val_true(arg(a, 0, "keepends", val_bool(false))));
	if (span_is(name, "startswith") || span_is(name, "endswith"))
		return val_bool(edge(j, s, first, name.s[0] == 's'));
	if (span_is(name, "upper") || span_is(name, "lower") || span_is(name, "title") ||
	    span_is(name, "capitalize"))
		return val_span(str_case(j, s, name.s[0]));
	if (span_is(name, "replace"))
		return val_span(
		    str_replace(j, s, arg_str(j, "replace", first), arg_str(j, "replace", second),
		                arg_int(j, "replace", arg(a, 2, "count", val_int(-1)))));
	if (span_is(name, "find") || span_is(name, "index"))
		return find(j, s, first, false, name.s[0] == 'i');
	if (span_is(name, "rfind"))
		return find(j, s, first, true, false);
	if (span_is(name, "count"))
		return val_int(count(j, s, arg_str(j, "count", first)));
	if (span_is(name, "join")) {
		Buf b = { 0 };
		ValList *l = val_iter(j, first);
		jinja_step(j, 64 * l->n);
		for (size_t i = 0; i < l->n; i++) {
			if (i)
				buf_add(j, &b, s.s, s.n);
			ByteSpan item = arg_str(j, "join", l->v[i]);
			buf_add(j, &b, item.s, item.n);
		}
		return val_span(buf_span(&b));
	}
	if (span_is(name, "format"))
		return format(j, s, a);
	if (name.n > 2 && name.s[0] == 'i' && name.s[1] == 's')
		return val_bool(all_are(j, s, name));
	if (span_is(name, "removeprefix") || span_is(name, "removesuffix")) {
		bool pre = name.s[6] == 'p';
		ByteSpan w = arg_str(j, "removeprefix", first);
		if (w.n && edge(j, s, first, pre))
			return val_span((ByteSpan){ pre ? s.s + w.n : s.s, s.n - w.n });
		return val_span(s);
	}
	return partition(j, s, val_span(arg_str(j, "partition", first)), name.s[0] == 'r');
}

static Val
pairs(Jinja *j, const Dict *d)
{
	Val out = val_list(j, V_LIST, d->n);

	for (size_t i = 0; i < d->n; i++) {
		Val pair = val_list(j, V_TUPLE, 2);
		list_push(j, pair.l, d->key[i]);
		list_push(j, pair.l, d->val[i]);
		list_push(j, out.l, pair);
	}
	return out;
}

static Val
call_dict(Jinja *j, Val self, ByteSpan name, const CallArgs *a)
{
	Val out;

	if (span_is(name, "items"))
		return pairs(j, self.d);
	if (span_is(name, "keys"))
		return (Val){ .type = V_LIST, .l = val_iter(j, self) };
	if (span_is(name, "copy"))
		return self;
	if (span_is(name, "get")) {
		if (!a->n_pos)
			jinja_fail(j, "get() needs a key");
		return dict_get(j, self.d, a->pos[0], &out) ? out : arg(a, 1, NULL, val_none());
	}
	out = val_list(j, V_LIST, self.d->n);
	for (size_t i = 0; i < self.d->n; i++)
		list_push(j, out.l, self.d->val[i]);
	return out;
}

static Val
call_list(Jinja *j, Val self, ByteSpan name, const CallArgs *a)
{
	Val what = arg(a, 0, NULL, val_none());
	int64_t n = 0;

	if (span_is(name, "copy"))
		return self;
	jinja_step(j, 64 * self.l->n);
	for (size_t i = 0; i < self.l->n; i++) {
		if (!val_equal(j, self.l->v[i], what))
			continue;
		if (span_is(name, "index"))
			return val_int((int64_t)i);
		n++;
	}
	if (span_is(name, "index"))
		jinja_fail(j, "the value is not in the list");
	return val_int(n);
}

static Val
call_loop(Jinja *j, Loop *l, ByteSpan name, const CallArgs *a)
{
	if (span_is(name, "cycle")) {
		if (!a->n_pos)
			jinja_fail(j, "no items for cycling given");
		return a->pos[l->at % a->n_pos];
	}
	Val now = val_list(j, V_TUPLE, a->n_pos);
	for (size_t i = 0; i < a->n_pos; i++)
		list_push(j, now.l, a->pos[i]);
	bool changed = !l->has_changed || !val_equal(j, now, l->last_changed);
	l->last_changed = now;
	l->has_changed = true;
	return val_bool(changed);
}

static Val
call_range(Jinja *j, const CallArgs *a)
{
	int64_t from = 0, to, by = 1;
	Val out = val_list(j, V_LIST, 0);

	args_check(j, "range", a, 3);
	if (!a->n_pos)
		jinja_fail(j, "range() needs a number");
	to = arg_int(j, "range", a->pos[0]);
	if (a->n_pos > 1) {
		from = to;
		to = arg_int(j, "range", a->pos[1]);
	}
	if (a->n_pos > 2)
		by = arg_int(j, "range", a->pos[2]);
	if (by == 0)
		jinja_fail(j, "range() arg 3 must not be zero");
	for (int64_t i = from; by > 0 ? i < to : i > to;) {
		if (out.l->n >= 100000) /* limit of the Jinja sandbox */
			jinja_fail(j,
			           "Range too big. The sandbox blocks ranges larger than 100000");
		jinja_step(j, 0);
		list_push(j, out.l, val_int(i));
		if (__builtin_add_overflow(i, by, &i))
			break;
	}
	return out;
}

static Val
call_mapping(Jinja *j, ValType type, const CallArgs *a)
{
	Val out = val_dict(j, type);

	args_check(j, "dict", &(CallArgs){ .n_pos = a->n_pos }, 1);
	if (a->n_pos && a->pos[0].type == V_DICT) {
		for (size_t i = 0; i < a->pos[0].d->n; i++)
			dict_put(j, out.d, a->pos[0].d->key[i], a->pos[0].d->val[i]);
	} else if (a->n_pos) {
		ValList *l = val_iter(j, a->pos[0]);
		for (size_t i = 0; i < l->n; i++) {
			ValList *pair = val_iter(j, l->v[i]);
			if (pair->n != 2)
				jinja_fail(j, "dict() wants pairs");
			dict_put(j, out.d, pair->v[0], pair->v[1]);
		}
	}
	for (size_t i = 0; i < a->n_kw; i++)
		dict_put(j, out.d, val_span(a->kw_name[i]), a->kw[i]);
	return out;
}

static Val
call_strftime(Jinja *j, const CallArgs *a)
{
	char text[512], fmt[256];
	ByteSpan f = arg_str(j, "strftime_now", arg(a, 0, "format", val_none()));
	time_t now = time(NULL);
	struct tm tm;

	if (f.n >= sizeof fmt || memchr(f.s, 0, f.n) || !localtime_r(&now, &tm))
		jinja_fail(j, "strftime_now: a format of %zu bytes; at most %zu are taken", f.n,
		           sizeof fmt - 1);
	memcpy(fmt, f.s, f.n);
	fmt[f.n] = 0;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	size_t n = strftime(text, sizeof text, fmt, &tm);
#pragma GCC diagnostic pop
	char *copy = jinja_alloc(j, n + 1, 1);
	memcpy(copy, text, n);
	return val_span(utf8_sanitize(&j->arena, copy, n));
}

static Val
call_func(Jinja *j, int func, const CallArgs *a)
{
	switch (func) {
	case FUNC_RANGE:
		return call_range(j, a);
	case FUNC_NAMESPACE:
		return call_mapping(j, V_NS, a);
	case FUNC_DICT:
		return call_mapping(j, V_DICT, a);
	case FUNC_STRFTIME:
		return call_strftime(j, a);
	case FUNC_RAISE: {
		ByteSpan s = val_str(j, arg(a, 0, "message", val_text("")));
		jinja_fail(j, "%.*s", (int)(s.n < 1500 ? s.n : 1500), s.s);
	}
	default:
		jinja_fail(j, "unknown function");
	}
}

Val
call_method(Jinja *j, const Method *m, const CallArgs *a)
{
	switch (m->self.type) {
	case V_FUNC:
		return call_func(j, m->self.func, a);
	case V_LOOP:
		return call_loop(j, m->self.loop, m->name, a);
	case V_STR:
		return call_str(j, m->self.s, m->name, a);
	default:
		break;
	}
	if (listed(changing, m->name))
		jinja_fail(j,
		           "'%.*s' would change a %s, which templates may not do; use a namespace",
		           (int)m->name.n, m->name.s, val_type_name(m->self));
	return m->self.type == V_DICT ? call_dict(j, m->self, m->name, a)
	                              : call_list(j, m->self, m->name, a);
}

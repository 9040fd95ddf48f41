#include "plan/plan_read.h"

#include <stdio.h>
#include <string.h>

void
rd_bad(PlanReader *r, const char *key, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	const char *dot = r->place_len && *key && *key != '[' ? "." : "";
	r->status = error_set(r->err, LLMC_E_INPUT, "%s: %s%s%s%s%s", r->name, r->place, dot, key,
	                      r->place_len || *key ? ": " : "", text);
	longjmp(r->out, 1);
}

/* Descends into a member or element. `leave` restores the path to the returned length. */
size_t
rd_enter(PlanReader *r, const char *key, int index)
{
	size_t was = r->place_len, room = sizeof r->place - was;
	int n = index < 0 ? snprintf(r->place + was, room, "%s%s", was ? "." : "", key)
	                  : snprintf(r->place + was, room, "%s%s[%d]", was ? "." : "", key, index);

	r->place_len = n < 0 || (size_t)n >= room ? sizeof r->place - 1 : was + (size_t)n;
	return was;
}

void
rd_leave(PlanReader *r, size_t was)
{
	r->place_len = was;
	r->place[was] = 0;
}

const char *
rd_type_name(const json_t *j)
{
	switch (json_typeof(j)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number with a point";
	case JSON_TRUE:
	case JSON_FALSE:
		return "true or false";
	case JSON_NULL:
		return "null";
	}
	return "something else";
}

/* Requires j to be an object with exactly the keys of the list (words separated by single
 * blanks). */
void
rd_keys(PlanReader *r, json_t *j, const char *list)
{
	char key[64];
	size_t n = 0;

	if (!json_is_object(j))
		rd_bad(r, "", "is %s, expected an object", rd_type_name(j));
	for (const char *p = list; *p; n++) {
		size_t len = strcspn(p, " ");
		memcpy(key, p, len);
		key[len] = 0;
		if (!json_object_get(j, key))
			rd_bad(r, key, "is missing");
		p += len + (p[len] == ' ');
	}
	if (json_object_size(j) == n)
		return;
	const char *name;
	json_t *v;
	json_object_foreach (j, name, v) {
		size_t len = strlen(name);
		const char *at = list;
		while ((at = strstr(at, name)) != NULL) {
			if ((at == list || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
				break;
			at++;
		}
		if (!at || !len)
			rd_bad(r, "", "unknown key \"%s\"; this llmc reads plan format %d",
			       name_text(name, len).s, PLAN_FORMAT);
	}
}

int64_t
rd_int_value(PlanReader *r, const json_t *v, const char *key, int64_t min, int64_t max)
{
	if (!json_is_integer(v))
		rd_bad(r, key, "is %s, expected an integer", rd_type_name(v));
	int64_t i = json_integer_value(v);
	if (i < min || i > max)
		rd_bad(r, key, "is %lld, expected %lld .. %lld", (long long)i, (long long)min,
		       (long long)max);
	return i;
}

int64_t
rd_get_int(PlanReader *r, json_t *j, const char *key, int64_t min, int64_t max)
{
	return rd_int_value(r, json_object_get(j, key), key, min, max);
}

bool
rd_get_bool(PlanReader *r, json_t *j, const char *key)
{
	json_t *v = json_object_get(j, key);

	if (!json_is_boolean(v))
		rd_bad(r, key, "is %s, expected true or false", rd_type_name(v));
	return json_is_true(v);
}

double
rd_num_value(PlanReader *r, const json_t *v, const char *key)
{
	if (!json_is_real(v))
		rd_bad(r, key, "is %s, expected a number with a point or an exponent",
		       rd_type_name(v));
	return json_real_value(v);
}

double
rd_get_num(PlanReader *r, json_t *j, const char *key)
{
	return rd_num_value(r, json_object_get(j, key), key);
}

const char *
rd_str_value(PlanReader *r, const json_t *v, const char *key)
{
	if (!json_is_string(v))
		rd_bad(r, key, "is %s, expected a string", rd_type_name(v));
	return arena_strdup(r->arena, json_string_value(v));
}

const char *
rd_get_str(PlanReader *r, json_t *j, const char *key)
{
	return rd_str_value(r, json_object_get(j, key), key);
}

const char *
rd_get_str_or_null(PlanReader *r, json_t *j, const char *key)
{
	json_t *v = json_object_get(j, key);

	return json_is_null(v) ? NULL : rd_str_value(r, v, key);
}

/* Reads an id: not empty, and without ':', which references use. */
const char *
rd_get_id(PlanReader *r, json_t *j, const char *key)
{
	const char *s = rd_get_str(r, j, key);

	if (!*s || strchr(s, ':'))
		rd_bad(r, key, "\"%s\" is not an id: ids are not empty and contain no ':'",
		       name_text(s, strlen(s)).s);
	return s;
}

Dtype
rd_get_dtype(PlanReader *r, json_t *j, const char *key)
{
	const char *s = rd_get_str(r, j, key);
	Dtype d = dtype_from_text(s);

	if (d == DT_NONE)
		rd_bad(r, key, "unknown dtype \"%s\"", name_text(s, strlen(s)).s);
	return d;
}

json_t *
rd_get_array(PlanReader *r, json_t *j, const char *key, int min, int max, int *n)
{
	json_t *v = json_object_get(j, key);

	if (!json_is_array(v))
		rd_bad(r, key, "is %s, expected an array", rd_type_name(v));
	if (json_array_size(v) < (size_t)min || json_array_size(v) > (size_t)max)
		rd_bad(r, key, "has %zu elements, expected %d .. %d", json_array_size(v), min, max);
	*n = (int)json_array_size(v);
	return v;
}

PlanExtent
rd_extent(PlanReader *r, json_t *v, const char *key)
{
	PlanExtent e = { .sym = SYM_one, .div = 1 };

	if (json_is_integer(v)) {
		e.mul = rd_int_value(r, v, key, 0, RD_MAX_SIZE);
		return e;
	}
	if (!json_is_object(v) || json_object_size(v) != 1)
		rd_bad(r, key,
		       "is not an extent: expected c, {\"n_tok\": mul} or {\"n_tok\": [mul, div]}");
	const char *name = json_object_iter_key(json_object_iter(v));
	json_t *m = json_object_iter_value(json_object_iter(v));
	for (e.sym = SYM_one + 1; e.sym < SYM_COUNT; e.sym++)
		if (!strcmp(plan_sym_text[e.sym], name))
			break;
	if (e.sym == SYM_COUNT)
		rd_bad(r, key, "unknown symbol \"%s\" in an extent",
		       name_text(name, strlen(name)).s);
	if (json_is_array(m)) {
		if (json_array_size(m) != 2)
			rd_bad(r, key, "an extent with a divisor is [mul, div]");
		e.mul = rd_int_value(r, json_array_get(m, 0), key, 0, RD_MAX_SIZE);
		e.div = rd_int_value(r, json_array_get(m, 1), key, 1, 1 << 30);
	} else {
		e.mul = rd_int_value(r, m, key, 0, RD_MAX_SIZE);
	}
	return e;
}

PlanExtent
rd_get_extent(PlanReader *r, json_t *j, const char *key)
{
	return rd_extent(r, json_object_get(j, key), key);
}

void
rd_prefetch(PlanReader *r, json_t *j, PlanPrefetch *f)
{
	const char *id;

	rd_keys(r, j, "tensor runs experts first bytes");
	id = rd_get_str(r, j, "tensor");
	const NameEntry *e = names_find(r->value, r->n_value, id);
	if (!e || e->at >= (size_t)r->p->n_tensor)
		rd_bad(r, "tensor", "\"%s\" is not a tensor of this plan",
		       name_text(id, strlen(id)).s);
	f->tensor = (int)e->at;
	f->runs = (int)rd_get_int(r, j, "runs", 1, 2);
	f->experts = (int)rd_get_int(r, j, "experts", 0, 1 << 16);
	f->first = rd_get_int(r, j, "first", 0, RD_MAX_SIZE);
	f->bytes = rd_get_int(r, j, "bytes", 1, RD_MAX_SIZE);
}

int
rd_kernel(PlanReader *r, const char *key, const char *id)
{
	const NameEntry *e = names_find(r->kernel, r->n_kernel, id);

	if (!e)
		rd_bad(r, key, "\"%s\" is not a kernel of this plan", name_text(id, strlen(id)).s);
	return (int)e->at;
}

void
rd_persistent(PlanReader *r, json_t *j)
{
	PlanPersistent *p = &r->p->persistent;
	json_t *in = json_object_get(j, "persistent");

	if (!in)
		return;
	size_t was = rd_enter(r, "persistent", -1);
	if (json_object_get(in, "why")) {
		rd_keys(r, in, "why");
		p->why = rd_get_str(r, in, "why");
	} else {
		rd_keys(r, in, "kernel body");
		p->kernel = rd_kernel(r, "kernel", rd_get_str(r, in, "kernel"));
		json_t *a = rd_get_array(r, in, "body", 1, PLAN_MAX_BODIES, &p->n_body);
		for (int i = 0; i < p->n_body; i++)
			p->body[i] = rd_kernel(
			    r, "body", rd_str_value(r, json_array_get(a, (size_t)i), "body"));
	}
	rd_leave(r, was);
}

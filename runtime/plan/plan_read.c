/* JSON -> Plan, from untrusted text. Strict: every key of docs/plan-format.md is there, once, with its type and within its
 * range; any other key is an error. Errors name the place ("phase[0].step[12].arg[3]").
 *
 * A fault ends the read with a jump to plan_read, which releases the JSON tree; what was allocated stays in the arena. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats/names.h"
#include "runtime/plan/plan.h"

enum { MAX_COUNT = 1 << 20 };
static const int64_t MAX_SIZE = (int64_t)1 << 48;

typedef struct Reader {
	Arena      *arena;
	llmc_error *err;
	const char *name;
	llmc_status status;
	jmp_buf     out;
	char        place[256]; /* "phase[0].step[12]" */
	size_t      place_len;
	Plan       *p;
	size_t      n_value, n_kernel;
	NameEntry  *value;      /* tensors (at = index), then buffers (at = n_tensor + index) */
	NameEntry  *kernel;
} Reader;

static void bad(Reader *r, const char *key, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

static void
bad(Reader *r, const char *key, const char *fmt, ...)
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

/* Go into a member or element; the returned length is what `leave` restores. */
static size_t
enter(Reader *r, const char *key, int index)
{
	size_t was = r->place_len, room = sizeof r->place - was;
	int n = index < 0 ? snprintf(r->place + was, room, "%s%s", was ? "." : "", key)
	                  : snprintf(r->place + was, room, "%s%s[%d]", was ? "." : "", key, index);

	r->place_len = n < 0 || (size_t)n >= room ? sizeof r->place - 1 : was + (size_t)n;
	return was;
}

static void
leave(Reader *r, size_t was)
{
	r->place_len = was;
	r->place[was] = 0;
}

static const char *
type_name(const json_t *j)
{
	switch (json_typeof(j)) {
	case JSON_OBJECT: return "an object";
	case JSON_ARRAY: return "an array";
	case JSON_STRING: return "a string";
	case JSON_INTEGER: return "an integer";
	case JSON_REAL: return "a number with a point";
	case JSON_TRUE:
	case JSON_FALSE: return "true or false";
	case JSON_NULL: return "null";
	}
	return "something else";
}

/* j is an object with exactly the keys of the list (words parted by single blanks). */
static void
keys(Reader *r, json_t *j, const char *list)
{
	char key[64];
	size_t n = 0;

	if (!json_is_object(j))
		bad(r, "", "is %s, expected an object", type_name(j));
	for (const char *p = list; *p; n++) {
		size_t len = strcspn(p, " ");
		memcpy(key, p, len);
		key[len] = 0;
		if (!json_object_get(j, key))
			bad(r, key, "is missing");
		p += len + (p[len] == ' ');
	}
	if (json_object_size(j) == n)
		return;
	const char *name;
	json_t *v;
	json_object_foreach(j, name, v) {
		size_t len = strlen(name);
		const char *at = list;
		while ((at = strstr(at, name)) != NULL) {
			if ((at == list || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
				break;
			at++;
		}
		if (!at || !len)
			bad(r, "", "unknown key \"%s\"; this llmc reads plan format %d", name_text(name, len).s, PLAN_FORMAT);
	}
}

static int64_t
int_value(Reader *r, const json_t *v, const char *key, int64_t min, int64_t max)
{
	if (!json_is_integer(v))
		bad(r, key, "is %s, expected an integer", type_name(v));
	int64_t i = json_integer_value(v);
	if (i < min || i > max)
		bad(r, key, "is %lld, expected %lld .. %lld", (long long)i, (long long)min, (long long)max);
	return i;
}

static int64_t
get_int(Reader *r, json_t *j, const char *key, int64_t min, int64_t max)
{
	return int_value(r, json_object_get(j, key), key, min, max);
}

static bool
get_bool(Reader *r, json_t *j, const char *key)
{
	json_t *v = json_object_get(j, key);

	if (!json_is_boolean(v))
		bad(r, key, "is %s, expected true or false", type_name(v));
	return json_is_true(v);
}

static double
num_value(Reader *r, const json_t *v, const char *key)
{
	if (!json_is_real(v))
		bad(r, key, "is %s, expected a number with a point or an exponent", type_name(v));
	return json_real_value(v);
}

static double
get_num(Reader *r, json_t *j, const char *key)
{
	return num_value(r, json_object_get(j, key), key);
}

static const char *
str_value(Reader *r, const json_t *v, const char *key)
{
	if (!json_is_string(v))
		bad(r, key, "is %s, expected a string", type_name(v));
	return arena_strdup(r->arena, json_string_value(v));
}

static const char *
get_str(Reader *r, json_t *j, const char *key)
{
	return str_value(r, json_object_get(j, key), key);
}

static const char *
get_str_or_null(Reader *r, json_t *j, const char *key)
{
	json_t *v = json_object_get(j, key);

	return json_is_null(v) ? NULL : str_value(r, v, key);
}

/* An id: not empty, and without ':', which references use. */
static const char *
get_id(Reader *r, json_t *j, const char *key)
{
	const char *s = get_str(r, j, key);

	if (!*s || strchr(s, ':'))
		bad(r, key, "\"%s\" is no id: an id is not empty and holds no ':'", name_text(s, strlen(s)).s);
	return s;
}

static Dtype
get_dtype(Reader *r, json_t *j, const char *key)
{
	const char *s = get_str(r, j, key);
	Dtype d = dtype_from_text(s);

	if (d == DT_NONE)
		bad(r, key, "unknown dtype \"%s\"", name_text(s, strlen(s)).s);
	return d;
}

static json_t *
get_array(Reader *r, json_t *j, const char *key, int min, int max, int *n)
{
	json_t *v = json_object_get(j, key);

	if (!json_is_array(v))
		bad(r, key, "is %s, expected an array", type_name(v));
	if (json_array_size(v) < (size_t)min || json_array_size(v) > (size_t)max)
		bad(r, key, "has %zu elements, expected %d .. %d", json_array_size(v), min, max);
	*n = (int)json_array_size(v);
	return v;
}

static PlanExtent
extent(Reader *r, json_t *v, const char *key)
{
	static const char *const text[SYM_COUNT] = {
#define X(name) #name,
		PLAN_SYM_LIST(X)
#undef X
	};
	PlanExtent e = { .sym = SYM_one, .div = 1 };

	if (json_is_integer(v)) {
		e.mul = int_value(r, v, key, 0, MAX_SIZE);
		return e;
	}
	if (!json_is_object(v) || json_object_size(v) != 1)
		bad(r, key, "is no extent: expected c, {\"n_tok\": mul} or {\"n_tok\": [mul, div]}");
	const char *name = json_object_iter_key(json_object_iter(v));
	json_t *m = json_object_iter_value(json_object_iter(v));
	for (e.sym = SYM_one + 1; e.sym < SYM_COUNT; e.sym++)
		if (!strcmp(text[e.sym], name))
			break;
	if (e.sym == SYM_COUNT)
		bad(r, key, "unknown symbol \"%s\" in an extent", name_text(name, strlen(name)).s);
	if (json_is_array(m)) {
		if (json_array_size(m) != 2)
			bad(r, key, "an extent with a divisor is [mul, div]");
		e.mul = int_value(r, json_array_get(m, 0), key, 0, MAX_SIZE);
		e.div = int_value(r, json_array_get(m, 1), key, 1, 1 << 30);
	} else {
		e.mul = int_value(r, m, key, 0, MAX_SIZE);
	}
	return e;
}

static PlanExtent
get_extent(Reader *r, json_t *j, const char *key)
{
	return extent(r, json_object_get(j, key), key);
}

static void
read_tensor(Reader *r, json_t *j, PlanTensor *t)
{
	json_t *a;

	keys(r, j, "id dtype rows cols layout src");
	*t = (PlanTensor){
		.id = get_id(r, j, "id"), .dtype = get_dtype(r, j, "dtype"),
		.rows = get_int(r, j, "rows", 1, MAX_SIZE), .cols = get_int(r, j, "cols", 0, MAX_SIZE),
		.layout = get_str(r, j, "layout"),
	};
	a = get_array(r, j, "src", 1, MAX_COUNT, &t->n_src);
	PlanSource *src = NEW(r->arena, PlanSource, t->n_src);
	t->src = src;
	for (int i = 0; i < t->n_src; i++) {
		json_t *s = json_array_get(a, (size_t)i);
		size_t was = enter(r, "src", i);
		keys(r, s, "name rows cols first block stride n_block rope_pairs transpose unit_rows");
		src[i] = (PlanSource){
			.name = get_str(r, s, "name"),
			.rows = get_int(r, s, "rows", 1, MAX_SIZE), .cols = get_int(r, s, "cols", 0, MAX_SIZE),
			.first = get_int(r, s, "first", 0, MAX_SIZE), .block = get_int(r, s, "block", 1, MAX_SIZE),
			.stride = get_int(r, s, "stride", 0, MAX_SIZE), .n_block = get_int(r, s, "n_block", 1, MAX_SIZE),
			.rope_pairs = get_int(r, s, "rope_pairs", 0, 1 << 24),
			.transpose = get_int(r, s, "transpose", 0, MAX_SIZE), .unit_rows = get_bool(r, s, "unit_rows"),
		};
		leave(r, was);
	}
}

static void
read_pool(Reader *r, json_t *j, PlanPool *p)
{
	keys(r, j, "id mla dtype n_layers kv_heads k_dim v_dim keep");
	*p = (PlanPool){
		.id = get_id(r, j, "id"), .mla = get_bool(r, j, "mla"), .dtype = get_dtype(r, j, "dtype"),
		.n_layers = (int)get_int(r, j, "n_layers", 1, 1 << 16),
		.kv_heads = get_int(r, j, "kv_heads", 1, 1 << 20), .k_dim = get_int(r, j, "k_dim", 1, 1 << 20),
		.v_dim = get_int(r, j, "v_dim", 0, 1 << 20), .keep = get_int(r, j, "keep", 0, MAX_SIZE),
	};
}

static const double *
get_nums(Reader *r, json_t *j, const char *key, int *n)
{
	json_t *a = get_array(r, j, key, 0, 1 << 16, n);
	double *v = NEW(r->arena, double, *n + 1);

	for (int i = 0; i < *n; i++)
		v[i] = num_value(r, json_array_get(a, (size_t)i), key);
	return v;
}

static void
read_rope(Reader *r, json_t *j, PlanRope *o)
{
	int n;

	keys(r, j, "theta dims scaling factor original_positions low_freq_factor high_freq_factor beta_fast beta_slow "
	           "attention_factor mscale mscale_all_dim truncate short_factor long_factor factors_tensor axis");
	*o = (PlanRope){
		.theta = get_num(r, j, "theta"), .dims = (int)get_int(r, j, "dims", 2, 1 << 16),
		.scaling = get_str(r, j, "scaling"), .factor = get_num(r, j, "factor"),
		.original_positions = get_num(r, j, "original_positions"),
		.low_freq_factor = get_num(r, j, "low_freq_factor"), .high_freq_factor = get_num(r, j, "high_freq_factor"),
		.beta_fast = get_num(r, j, "beta_fast"), .beta_slow = get_num(r, j, "beta_slow"),
		.attention_factor = get_num(r, j, "attention_factor"), .mscale = get_num(r, j, "mscale"),
		.mscale_all_dim = get_num(r, j, "mscale_all_dim"), .truncate = get_bool(r, j, "truncate"),
		.axis = (int)get_int(r, j, "axis", 0, 1),
	};
	o->short_factor = get_nums(r, j, "short_factor", &o->n_short);
	o->long_factor = get_nums(r, j, "long_factor", &o->n_long);
	json_t *a = get_array(r, j, "factors_tensor", 2, 2, &n);
	for (int i = 0; i < 2; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		o->factors_tensor[i] = json_is_null(v) ? NULL : str_value(r, v, "factors_tensor");
	}
}

static void
read_slot(Reader *r, json_t *j, PlanSlot *s)
{
	keys(r, j, "part");
	json_t *a = get_array(r, j, "part", 1, 4, &s->n_part);
	for (int i = 0; i < s->n_part; i++)
		s->part[i] = extent(r, json_array_get(a, (size_t)i), "part");
}

static void
read_buffer(Reader *r, json_t *j, PlanBuffer *b)
{
	keys(r, j, "id dtype extent slot offset");
	*b = (PlanBuffer){
		.id = get_id(r, j, "id"), .dtype = get_dtype(r, j, "dtype"), .extent = get_extent(r, j, "extent"),
		.slot = (int)get_int(r, j, "slot", 0, r->p->n_slot - 1), .offset = get_int(r, j, "offset", 0, MAX_SIZE),
	};
}

static void
read_kernel(Reader *r, json_t *j, PlanKernel *k)
{
	static const char *const dir[] = { "in", "out", "inout", "pool", "rope", "scratch", "none" };

	keys(r, j, "id file symbol arg");
	k->id = get_id(r, j, "id");
	k->file = get_str(r, j, "file");
	k->symbol = get_str(r, j, "symbol");
	json_t *a = get_array(r, j, "arg", 0, PLAN_MAX_ARGS, &k->n_arg);
	for (int i = 0; i < k->n_arg; i++) {
		json_t *v = json_array_get(a, (size_t)i);
		size_t was = enter(r, "arg", i);
		keys(r, v, "name dir type extent");
		const char *d = get_str(r, v, "dir");
		int at = 0;
		while (at <= DIR_NONE && strcmp(d, dir[at]))
			at++;
		if (at > DIR_NONE)
			bad(r, "dir", "\"%s\" is none of in, out, inout, pool, rope, scratch, none", name_text(d, strlen(d)).s);
		k->arg[i] = (PlanKernelArg){ .name = get_str(r, v, "name"), .dir = (PlanDir)at,
			.type = get_str(r, v, "type"), .extent = get_extent(r, v, "extent") };
		leave(r, was);
	}
}

/* The number at the end of a reference; -1 when there is none. */
static int
index_text(const char *s, int n)
{
	int v = 0;

	if (!*s || (s[0] == '0' && s[1]))
		return -1;
	for (; *s; s++) {
		if (*s < '0' || *s > '9' || v > 1 << 24)
			return -1;
		v = v * 10 + (*s - '0');
	}
	return v < n ? v : -1;
}

static PlanRef
read_ref(Reader *r, json_t *v)
{
	const Plan *p = r->p;

	if (json_is_null(v))
		return (PlanRef){ .kind = REF_NONE };
	if (!json_is_string(v))
		bad(r, "", "is %s, expected a reference (a string or null)", type_name(v));
	const char *s = json_string_value(v);
	if (!strncmp(s, "rope:", 5)) {
		int i = index_text(s + 5, p->n_rope);
		if (i < 0)
			bad(r, "", "\"%s\" is no rotary table of this plan", name_text(s, strlen(s)).s);
		return (PlanRef){ .kind = REF_ROPE, .index = i };
	}
	if (!strncmp(s, "kv:", 3)) {
		const char *colon = strchr(s + 3, ':');
		for (int i = 0; colon && i < p->n_pool; i++) {
			size_t len = strlen(p->pool[i].id);
			if ((size_t)(colon - s - 3) != len || memcmp(p->pool[i].id, s + 3, len))
				continue;
			int l = index_text(colon + 1, p->pool[i].n_layers);
			if (l < 0)
				break;
			return (PlanRef){ .kind = REF_POOL, .index = i, .layer_slot = l };
		}
		bad(r, "", "\"%s\" is no pool and layer of this plan", name_text(s, strlen(s)).s);
	}
	const NameEntry *e = names_find(r->value, r->n_value, s);
	if (!e)
		bad(r, "", "\"%s\" is no tensor and no buffer of this plan", name_text(s, strlen(s)).s);
	if (e->at < (size_t)p->n_tensor)
		return (PlanRef){ .kind = REF_TENSOR, .index = (int)e->at };
	return (PlanRef){ .kind = REF_BUFFER, .index = (int)(e->at - (size_t)p->n_tensor) };
}

static void
read_attr(Reader *r, json_t *v, const char *key, PlanAttr *a)
{
	a->key = arena_strdup(r->arena, key);
	if (json_is_integer(v)) {
		a->kind = ATTR_INT;
		a->i = json_integer_value(v);
	} else if (json_is_real(v)) {
		a->kind = ATTR_NUM;
		a->f = json_real_value(v);
	} else if (json_is_string(v)) {
		a->kind = ATTR_WORD;
		a->s = str_value(r, v, key);
	} else if (json_is_array(v) && json_array_size(v) <= MAX_COUNT) {
		a->kind = ATTR_LIST;
		a->n = (int)json_array_size(v);
		int64_t *list = NEW(r->arena, int64_t, a->n + 1);
		for (int i = 0; i < a->n; i++)
			list[i] = int_value(r, json_array_get(v, (size_t)i), key, INT64_MIN, INT64_MAX);
		a->v = list;
	} else {
		bad(r, key, "is %s, expected an integer, a number, a word or a list of integers", type_name(v));
	}
}

static void
read_step(Reader *r, json_t *j, PlanStep *s)
{
	int n;
	size_t was;

	keys(r, j, "op layer kernel arg attr make yaml_line weight_bytes flops_per_row");
	s->op = get_str(r, j, "op");
	s->layer = (int)get_int(r, j, "layer", -1, r->p->n_layers - 1);
	const char *kernel = get_str_or_null(r, j, "kernel");
	s->kernel = -1;
	if (kernel) {
		const NameEntry *e = names_find(r->kernel, r->n_kernel, kernel);
		if (!e)
			bad(r, "kernel", "\"%s\" is no kernel of this plan", name_text(kernel, strlen(kernel)).s);
		s->kernel = (int)e->at;
	}
	json_t *a = get_array(r, j, "arg", 0, PLAN_MAX_ARGS, &s->n_arg);
	for (int i = 0; i < s->n_arg; i++) {
		was = enter(r, "arg", i);
		s->arg[i] = read_ref(r, json_array_get(a, (size_t)i));
		leave(r, was);
	}
	json_t *attr = json_object_get(j, "attr"), *v;
	const char *key;
	if (!json_is_object(attr) || json_object_size(attr) > PLAN_MAX_ATTRS)
		bad(r, "attr", "is no object of at most %d attributes", PLAN_MAX_ATTRS);
	was = enter(r, "attr", -1);
	json_object_foreach(attr, key, v)
		read_attr(r, v, key, &s->attr[s->n_attr++]);
	leave(r, was);
	a = get_array(r, j, "make", 0, (int)(sizeof s->make / sizeof *s->make), &n);
	for (s->n_make = 0; s->n_make < n; s->n_make++) {
		was = enter(r, "make", s->n_make);
		json_t *m = json_array_get(a, (size_t)s->n_make);
		keys(r, m, "value arg");
		s->make[s->n_make] = (PlanMake){ .value = get_str(r, m, "value"),
			.arg = (int)get_int(r, m, "arg", -1, s->n_arg - 1) };
		leave(r, was);
	}
	s->yaml_line = (int)get_int(r, j, "yaml_line", 0, INT32_MAX);
	s->weight_bytes = get_int(r, j, "weight_bytes", 0, INT64_MAX);
	s->flops_per_row = get_int(r, j, "flops_per_row", 0, INT64_MAX);
}

/* p->field = array of j's member `field`, each element read by fn */
#define READ_ALL(r, j, field, Type, min, max, fn)                                                  \
	do {                                                                                       \
		json_t *all_ = get_array((r), (j), #field, (min), (max), &(r)->p->n_##field);      \
		(r)->p->field = NEW((r)->arena, Type, (r)->p->n_##field + 1);                      \
		for (int i_ = 0; i_ < (r)->p->n_##field; i_++) {                                   \
			size_t was_ = enter((r), #field, i_);                                      \
			fn((r), json_array_get(all_, (size_t)i_), &(r)->p->field[i_]);             \
			leave((r), was_);                                                          \
		}                                                                                  \
	} while (0)

static void
name_values(Reader *r)
{
	const Plan *p = r->p;
	const NameEntry *twice;

	r->n_value = (size_t)p->n_tensor + (size_t)p->n_buffer;
	r->value = NEW(r->arena, NameEntry, r->n_value + 1);
	for (int i = 0; i < p->n_tensor; i++)
		r->value[i] = (NameEntry){ p->tensor[i].id, (size_t)i };
	for (int i = 0; i < p->n_buffer; i++)
		r->value[p->n_tensor + i] = (NameEntry){ p->buffer[i].id, (size_t)(p->n_tensor + i) };
	if ((twice = names_sort(r->value, r->n_value)) != NULL)
		bad(r, "", "the id \"%s\" is used twice", name_text(twice->name, strlen(twice->name)).s);
	r->n_kernel = (size_t)p->n_kernel;
	r->kernel = NEW(r->arena, NameEntry, r->n_kernel + 1);
	for (int i = 0; i < p->n_kernel; i++)
		r->kernel[i] = (NameEntry){ p->kernel[i].id, (size_t)i };
	if ((twice = names_sort(r->kernel, r->n_kernel)) != NULL)
		bad(r, "", "the kernel id \"%s\" is used twice", name_text(twice->name, strlen(twice->name)).s);
	for (int i = 0; i < p->n_pool; i++)
		for (int k = 0; k < i; k++)
			if (!strcmp(p->pool[i].id, p->pool[k].id))
				bad(r, "", "the pool id \"%s\" is used twice", name_text(p->pool[i].id, strlen(p->pool[i].id)).s);
}

static void
read_phase(Reader *r, json_t *j, PlanPhase *ph)
{
	keys(r, j, "id step");
	ph->id = get_str(r, j, "id");
	json_t *a = get_array(r, j, "step", 1, MAX_COUNT, &ph->n_step);
	ph->step = NEW(r->arena, PlanStep, ph->n_step);
	for (int i = 0; i < ph->n_step; i++) {
		size_t was = enter(r, "step", i);
		read_step(r, json_array_get(a, (size_t)i), &ph->step[i]);
		leave(r, was);
	}
}

static void
read_plan(Reader *r, json_t *j)
{
	Plan *p = r->p;
	int n;

	if (!json_is_object(j))
		bad(r, "", "is %s, expected an object", type_name(j));
	/* the format first: a plan of another format may well have other keys */
	if (!json_object_get(j, "format"))
		bad(r, "format", "is missing: this is no plan");
	p->format = (int)get_int(r, j, "format", 0, INT32_MAX);
	if (p->format != PLAN_FORMAT)
		bad(r, "format", "is %d, this llmc reads %d: compile the model again with this llmc", p->format, PLAN_FORMAT);
	keys(r, j, "format step_abi name family spec_sha256 target vocab vocab_used hidden max_positions n_layers hard_limit "
	           "prompt_whole prefix_mark prefix_end prompt_prefix checkpoint weights bos eos n_params logits tensor pool "
	           "rope slot buffer kernel phase");
	p->step_abi = (int)get_int(r, j, "step_abi", 0, INT32_MAX);
	if (p->step_abi != PLAN_STEP_ABI)
		bad(r, "step_abi", "is %d, this llmc calls kernels with %d: compile the model again with this llmc", p->step_abi,
		    PLAN_STEP_ABI);
	p->name = get_str(r, j, "name");
	p->family = get_str(r, j, "family");
	p->spec_sha256 = get_str(r, j, "spec_sha256");
	p->target = get_str(r, j, "target");
	p->vocab = get_int(r, j, "vocab", 1, INT32_MAX);
	p->vocab_used = get_int(r, j, "vocab_used", 1, p->vocab);
	p->hidden = get_int(r, j, "hidden", 1, INT32_MAX);
	p->max_positions = get_int(r, j, "max_positions", 1, INT32_MAX);
	p->n_layers = (int)get_int(r, j, "n_layers", 1, 1 << 16);
	p->hard_limit = get_bool(r, j, "hard_limit");
	p->prompt_whole = get_bool(r, j, "prompt_whole");
	p->prefix_mark = (int32_t)get_int(r, j, "prefix_mark", -1, INT32_MAX);
	p->prefix_end = (int32_t)get_int(r, j, "prefix_end", -1, INT32_MAX);
	p->prompt_prefix = get_str_or_null(r, j, "prompt_prefix");
	p->checkpoint = get_str(r, j, "checkpoint");
	p->weights = get_str_or_null(r, j, "weights");
	p->bos = (int32_t)get_int(r, j, "bos", -1, INT32_MAX);
	json_t *a = get_array(r, j, "eos", 0, (int)(sizeof p->eos / sizeof *p->eos), &n);
	for (p->n_eos = 0; p->n_eos < n; p->n_eos++)
		p->eos[p->n_eos] = (int32_t)int_value(r, json_array_get(a, (size_t)p->n_eos), "eos", 0, INT32_MAX);
	p->n_params = get_int(r, j, "n_params", 0, INT64_MAX);
	READ_ALL(r, j, tensor, PlanTensor, 1, MAX_COUNT, read_tensor);
	READ_ALL(r, j, pool, PlanPool, 0, 64, read_pool);
	READ_ALL(r, j, rope, PlanRope, 0, 64, read_rope);
	READ_ALL(r, j, slot, PlanSlot, 1, MAX_COUNT, read_slot);
	READ_ALL(r, j, buffer, PlanBuffer, 1, MAX_COUNT, read_buffer);
	READ_ALL(r, j, kernel, PlanKernel, 0, MAX_COUNT, read_kernel);
	name_values(r);
	const char *logits = get_str(r, j, "logits");
	const NameEntry *e = names_find(r->value, r->n_value, logits);
	if (!e || e->at < (size_t)p->n_tensor)
		bad(r, "logits", "\"%s\" is no buffer of this plan", name_text(logits, strlen(logits)).s);
	p->logits = (int)(e->at - (size_t)p->n_tensor);
	READ_ALL(r, j, phase, PlanPhase, 2, 2, read_phase);
	if (strcmp(p->phase[0].id, "decode") || strcmp(p->phase[1].id, "mixed"))
		bad(r, "phase", "are \"%s\" and \"%s\", expected \"decode\" and \"mixed\"",
		    name_text(p->phase[0].id, strlen(p->phase[0].id)).s, name_text(p->phase[1].id, strlen(p->phase[1].id)).s);
}

llmc_status
plan_read(const char *text, size_t size, const char *name, Arena *arena, Plan **out, llmc_error *err)
{
	json_error_t at;
	jmp_buf caller_oom;

	*out = NULL;
	json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &at);
	if (!root) {
		if (json_error_code(&at) == json_error_out_of_memory)
			return error_set(err, LLMC_E_MEMORY, "%s: out of memory", name);
		return error_set(err, LLMC_E_INPUT, "%s:%d:%d: not valid JSON: %s", name, at.line, at.column, at.text);
	}
	memcpy(&caller_oom, &arena->oom, sizeof caller_oom);
	if (setjmp(arena->oom)) { /* the tree is not the arena's: release it, then go where the caller wants */
		json_decref(root);
		memcpy(&arena->oom, &caller_oom, sizeof caller_oom);
		longjmp(arena->oom, 1);
	}
	Reader *r = NEW(arena, Reader, 1);
	r->arena = arena;
	r->err = err;
	r->name = name;
	if (!setjmp(r->out)) {
		r->p = NEW(arena, Plan, 1);
		read_plan(r, root);
	}
	json_decref(root);
	memcpy(&arena->oom, &caller_oom, sizeof caller_oom);
	if (r->status != LLMC_OK)
		return r->status;
	llmc_status status = plan_check(r->p, err);
	if (status != LLMC_OK) {
		error_prefix(err, "%s", name);
		return status;
	}
	*out = r->p;
	return LLMC_OK;
}

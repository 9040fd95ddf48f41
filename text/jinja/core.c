/* Basics of the template interpreter: spans; names of types; failures; limits of steps, memory and
 * depth; arguments of calls */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

#include "base/deadline.h"

enum { STEPS_PER_CHECK = 1 << 14 };

bool
span_is(ByteSpan s, const char *text)
{
	return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

bool
span_same(ByteSpan a, ByteSpan b)
{
	return a.n == b.n && (a.s == b.s || memcmp(a.s, b.s, a.n) == 0);
}

const char *
val_type_name(Val v)
{
	switch (v.type) {
	case V_UNDEF:
		return "Undefined";
	case V_NONE:
		return "NoneType";
	case V_BOOL:
		return "bool";
	case V_INT:
		return "int";
	case V_FLOAT:
		return "float";
	case V_STR:
		return "str";
	case V_LIST:
		return "list";
	case V_TUPLE:
		return "tuple";
	case V_DICT:
		return "dict";
	case V_NS:
		return "Namespace";
	case V_MACRO:
		return "Macro";
	case V_METHOD:
	case V_FUNC:
		return "function";
	case V_LOOP:
		return "LoopContext";
	}
	return "?";
}

void
jinja_fail(Jinja *j, const char *fmt, ...)
{
	char text[1900];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	error_set(&j->err, LLMC_E_INPUT, "line %d: %s", j->line, text);
	longjmp(j->fail, 1);
}

void
jinja_step(Jinja *j, size_t bytes)
{
	j->steps += 1 + (int64_t)(bytes / 64);
	if (j->steps > JINJA_MAX_STEPS)
		jinja_fail(j, "the template takes more than %lld steps",
		           (long long)JINJA_MAX_STEPS);
	if (j->steps < j->next_check)
		return;
	j->next_check = j->steps + STEPS_PER_CHECK;
	if (deadline_passed()) {
		deadline_error(&j->err);
		longjmp(j->fail, 1);
	}
}

void *
jinja_alloc(Jinja *j, size_t n, size_t elem_bytes)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, elem_bytes, &bytes) || bytes > JINJA_MAX_BYTES ||
	    j->arena.total_bytes + bytes > JINJA_MAX_BYTES)
		jinja_fail(j, "the template takes more than %zu bytes of memory", JINJA_MAX_BYTES);
	jinja_step(j, bytes);
	return arena_alloc(&j->arena, n, elem_bytes);
}

void
jinja_enter(Jinja *j)
{
	if (++j->nest > JINJA_MAX_NEST)
		jinja_fail(
		    j, "nested deeper than %d: calls that call themselves, or values within values",
		    JINJA_MAX_NEST);
}

Val
arg(const CallArgs *a, size_t i, const char *name, Val otherwise)
{
	if (i < a->n_pos)
		return a->pos[i];
	for (size_t k = 0; name && k < a->n_kw; k++)
		if (span_is(a->kw_name[k], name))
			return a->kw[k];
	return otherwise;
}

void
args_check(Jinja *j, const char *what, const CallArgs *a, size_t max)
{
	if (a->n_pos > max || a->n_pos + a->n_kw > max)
		jinja_fail(j, "%s() takes at most %zu argument(s), %zu given", what, max,
		           a->n_pos + a->n_kw);
}

int64_t
arg_int(Jinja *j, const char *what, Val v)
{
	if (v.type == V_INT)
		return v.i;
	if (v.type == V_BOOL)
		return v.b;
	jinja_fail(j, "%s: an integer is needed, not '%s'", what, val_type_name(v));
}

ByteSpan
arg_str(Jinja *j, const char *what, Val v)
{
	if (v.type != V_STR)
		jinja_fail(j, "%s: a string is needed, not '%s'", what, val_type_name(v));
	return v.s;
}

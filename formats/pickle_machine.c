/* Input, stack and memo of the pickle interpreter. */
#include "formats/pickle_machine.h"

#include <string.h>

PickleValue pickle_mark,
    pickle_other = { .kind = PICKLE_OTHER }; /* shared constants; never modified */

llmc_status
pickle_bad(const PickleMachine *m, const char *what)
{
	return error_set(m->err, LLMC_E_INPUT, "%s: damaged pickle: %s at byte %zu", m->file, what,
	                 m->at);
}

/* ---- input ---- */
llmc_status
pickle_take(PickleMachine *m, size_t n, const uint8_t **out)
{
	*out = m->data + m->at;
	if (n > m->n - m->at)
		return pickle_bad(m, "it ends within a value");
	m->at += n;
	return LLMC_OK;
}

/* n-byte little-endian integer */
llmc_status
pickle_number(PickleMachine *m, size_t n, uint64_t *out)
{
	const uint8_t *p;

	*out = 0;
	TRY(pickle_take(m, n, &p));
	for (size_t i = 0; i < n; i++)
		*out |= (uint64_t)p[i] << (8 * i);
	return LLMC_OK;
}

/* Reads up to the end of the line */
llmc_status
pickle_line(PickleMachine *m, const uint8_t **s, size_t *n)
{
	const uint8_t *end = m->at < m->n ? memchr(m->data + m->at, '\n', m->n - m->at) : NULL;

	if (!end)
		return pickle_bad(m, "an unterminated name");
	*s = m->data + m->at;
	*n = (size_t)(end - *s);
	m->at += *n + 1;
	return LLMC_OK;
}

/* ---- stack and memo ---- */
static llmc_status
too_many(const PickleMachine *m)
{
	return pickle_bad(m, "it has more values than a checkpoint of weights");
}

llmc_status
pickle_value_new(PickleMachine *m, PickleKind kind, PickleValue **out)
{
	if (m->n_value++ >= PICKLE_MAX_VALUES)
		return too_many(m);
	*out = NEW(m->a, PickleValue, 1);
	(*out)->kind = kind;
	return LLMC_OK;
}

llmc_status
pickle_push(PickleMachine *m, PickleValue *v)
{
	if (m->n_stack >= PICKLE_MAX_VALUES)
		return too_many(m);
	m->stack = arena_grow(m->a, m->stack, &m->cap_stack, m->n_stack + 1, sizeof *m->stack);
	m->stack[m->n_stack++] = v;
	return LLMC_OK;
}

llmc_status
pickle_push_int(PickleMachine *m, int64_t num)
{
	PickleValue *v = NULL;

	TRY(pickle_value_new(m, PICKLE_INT, &v));
	v->num = num;
	return pickle_push(m, v);
}

llmc_status
pickle_push_text(PickleMachine *m, size_t n)
{
	PickleValue *v = NULL;
	const uint8_t *p;

	TRY(pickle_take(m, n, &p));
	if (n > PICKLE_MAX_STRING)
		return pickle_push(m, &pickle_other);
	if (n && memchr(p, 0, n))
		return pickle_bad(m, "a string with a NUL byte");
	TRY(pickle_value_new(m, PICKLE_STR, &v));
	v->str = arena_strndup(m->a, (const char *)p, n);
	return pickle_push(m, v);
}

llmc_status
pickle_pop(PickleMachine *m, PickleValue **out)
{
	if (!m->n_stack || m->stack[m->n_stack - 1] == &pickle_mark)
		return pickle_bad(m, "an opcode finds nothing on the stack");
	*out = m->stack[--m->n_stack];
	return LLMC_OK;
}

/* Pops the last mark and the values above it; they stay valid until the next push. */
llmc_status
pickle_pop_mark(PickleMachine *m, PickleValue ***item, size_t *n)
{
	size_t at = m->n_stack;

	while (at && m->stack[at - 1] != &pickle_mark)
		at--;
	if (!at)
		return pickle_bad(m, "an opcode finds no mark on the stack");
	*item = m->stack + at;
	*n = m->n_stack - at;
	m->n_stack = at - 1;
	return LLMC_OK;
}

llmc_status
pickle_add_items(PickleMachine *m, PickleValue *v, PickleValue **item, size_t n)
{
	if (n > 4 * m->n + 64 - m->n_item)
		return pickle_bad(m, "it copies more values than it has bytes");
	if (n > PICKLE_MAX_VALUES - m->n_item)
		return too_many(m);
	m->n_item += n;
	v->item = arena_grow(m->a, v->item, &v->cap, v->n + n, sizeof *v->item);
	if (n)
		memcpy(v->item + v->n, item, n * sizeof *item);
	v->n += n;
	return LLMC_OK;
}

llmc_status
pickle_push_items(PickleMachine *m, PickleKind kind, PickleValue **item, size_t n)
{
	PickleValue *v = NULL;

	TRY(pickle_value_new(m, kind, &v));
	TRY(pickle_add_items(m, v, item, n));
	return pickle_push(m, v);
}

/* Replaces the last n values by a tuple */
llmc_status
pickle_push_tuple(PickleMachine *m, size_t n)
{
	PickleValue *item[3];

	for (size_t i = n; i > 0; i--)
		TRY(pickle_pop(m, &item[i - 1]));
	return pickle_push_items(m, PICKLE_TUPLE, item, n);
}

/* Each put takes more than one byte of the pickle, so a valid index is less than its length. */
llmc_status
pickle_memo_put(PickleMachine *m, uint64_t at)
{
	if (at > m->n || !m->n_stack || m->stack[m->n_stack - 1] == &pickle_mark)
		return pickle_bad(m, "an invalid memo index, or an empty stack");
	if (at >= PICKLE_MAX_VALUES)
		return too_many(m);
	m->memo = arena_grow(m->a, m->memo, &m->cap_memo, (size_t)at + 1, sizeof *m->memo);
	if (at >= m->n_memo)
		m->n_memo = (size_t)at + 1;
	m->memo[at] = m->stack[m->n_stack - 1];
	return LLMC_OK;
}

llmc_status
pickle_memo_get(PickleMachine *m, uint64_t at)
{
	if (at >= m->n_memo || !m->memo[at])
		return pickle_bad(m, "an empty memo entry");
	return pickle_push(m, m->memo[at]);
}

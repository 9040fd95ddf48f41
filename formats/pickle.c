/* Interpreter for pickles: opcodes of protocols 2 to 4. */
#include "formats/pickle_machine.h"

#include <string.h>

static llmc_status
append(PickleMachine *m, bool all)
{
	PickleValue **item, *one, *list;
	size_t n = 1;

	if (all) {
		TRY(pickle_pop_mark(m, &item, &n));
	} else {
		TRY(pickle_pop(m, &one));
		item = &one;
	}
	TRY(pickle_pop(m, &list));
	if (list->kind != PICKLE_LIST)
		return pickle_bad(m, "a value is appended to a non-list");
	TRY(pickle_add_items(m, list, item, n));
	return pickle_push(m, list);
}

static llmc_status
set_items(PickleMachine *m, bool all)
{
	PickleValue **item, *pair[2], *dict;
	size_t n = 2;

	if (all) {
		TRY(pickle_pop_mark(m, &item, &n));
	} else {
		TRY(pickle_pop(m, &pair[1]));
		TRY(pickle_pop(m, &pair[0]));
		item = pair;
	}
	TRY(pickle_pop(m, &dict));
	if (dict->kind != PICKLE_DICT || n % 2)
		return pickle_bad(m, "an item is set in a non-dict");
	TRY(pickle_add_items(m, dict, item, n));
	return pickle_push(m, dict);
}

/* BUILD sets attributes: a dict of weights carries versions of its modules, a parameter may carry
 * others. Weights need none of them, so they are dropped. */
static llmc_status
build(PickleMachine *m)
{
	PickleValue *state, *object;

	TRY(pickle_pop(m, &state));
	TRY(pickle_pop(m, &object));
	if (object->kind != PICKLE_DICT && object->kind != PICKLE_TENSOR)
		return pickle_bad(m, "attributes set on an unsupported object");
	return pickle_push(m, object);
}

/* Reads an n-byte two's complement integer; values beyond 64 bits are not needed and become
 * PICKLE_OTHER. */
static llmc_status
long_number(PickleMachine *m, size_t n)
{
	const uint8_t *p;
	uint64_t v = 0;

	TRY(pickle_take(m, n, &p));
	if (n > 8)
		return pickle_push(m, &pickle_other);
	for (size_t i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	if (n && n < 8 && p[n - 1] & 0x80)
		v |= ~(uint64_t)0 << (8 * n);
	return pickle_push_int(m, (int64_t)v);
}

static llmc_status
skip_bytes(PickleMachine *m, uint64_t n)
{
	const uint8_t *p;

	TRY(pickle_take(m, n > m->n ? m->n + 1 : (size_t)n, &p));
	return pickle_push(m, &pickle_other);
}

static llmc_status
name_on_stack(PickleMachine *m)
{
	PickleValue *name, *module;

	TRY(pickle_pop(m, &name));
	TRY(pickle_pop(m, &module));
	if (name->kind != PICKLE_STR || module->kind != PICKLE_STR)
		return pickle_bad(m, "a name that is not a string");
	return pickle_push_name(m, module->str, strlen(module->str), name->str, strlen(name->str));
}

/* ---- opcodes by group: *found is false if op is not of the group ---- */

/* Numbers and strings of fixed or prefixed length */
static llmc_status
step_literal(PickleMachine *m, uint8_t op, bool *found)
{
	uint64_t x = 0;

	switch (op) {
	case 'N':
		return pickle_push(m, &pickle_other);
	case 0x88: /* NEWTRUE, NEWFALSE */
	case 0x89:
		return pickle_push_int(m, op == 0x88);
	case 'J': /* BININT */
		TRY(pickle_number(m, 4, &x));
		return pickle_push_int(m, (int32_t)x);
	case 'K': /* BININT1, BININT2 */
	case 'M':
		TRY(pickle_number(m, op == 'K' ? 1 : 2, &x));
		return pickle_push_int(m, (int64_t)x);
	case 0x8a: /* LONG1, LONG4 */
	case 0x8b:
		TRY(pickle_number(m, op == 0x8a ? 1 : 4, &x));
		return long_number(m, (size_t)x);
	case 'G': /* BINFLOAT */
		return skip_bytes(m, 8);
	case 'X': /* BINUNICODE, SHORT_BINUNICODE, BINUNICODE8; BINSTRING, SHORT_BINSTRING of Python
	             2 */
	case 'T':
		TRY(pickle_number(m, 4, &x));
		return pickle_push_text(m, (size_t)x);
	case 0x8c:
	case 'U':
		TRY(pickle_number(m, 1, &x));
		return pickle_push_text(m, (size_t)x);
	case 0x8d:
		TRY(pickle_number(m, 8, &x));
		return pickle_push_text(m, x > m->n ? m->n + 1 : (size_t)x);
	case 'B': /* BINBYTES, SHORT_BINBYTES, BINBYTES8 */
		TRY(pickle_number(m, 4, &x));
		return skip_bytes(m, x);
	case 'C':
		TRY(pickle_number(m, 1, &x));
		return skip_bytes(m, x);
	case 0x8e:
		TRY(pickle_number(m, 8, &x));
		return skip_bytes(m, x);
	default:
		*found = false;
		return LLMC_OK;
	}
}

/* Tuples, lists and dicts */
static llmc_status
step_container(PickleMachine *m, uint8_t op, bool *found)
{
	PickleValue **item;
	size_t n;

	switch (op) {
	case ')':
		return pickle_push_items(m, PICKLE_TUPLE, NULL, 0);
	case ']':
		return pickle_push_items(m, PICKLE_LIST, NULL, 0);
	case '}':
		return pickle_push_items(m, PICKLE_DICT, NULL, 0);
	case 0x85: /* TUPLE1 to TUPLE3 */
	case 0x86:
	case 0x87:
		return pickle_push_tuple(m, (size_t)(op - 0x84));
	case 't': /* TUPLE, LIST, DICT */
	case 'l':
	case 'd':
		TRY(pickle_pop_mark(m, &item, &n));
		if (op == 'd' && n % 2)
			return pickle_bad(m, "a dict with a key without a value");
		return pickle_push_items(m,
		                         op == 't'   ? PICKLE_TUPLE
		                         : op == 'l' ? PICKLE_LIST
		                                     : PICKLE_DICT,
		                         item, n);
	case 'a':
	case 'e':
		return append(m, op == 'e');
	case 's':
	case 'u':
		return set_items(m, op == 'u');
	default:
		*found = false;
		return LLMC_OK;
	}
}

/* Stack and memo */
static llmc_status
step_stack(PickleMachine *m, uint8_t op, bool *found)
{
	PickleValue *v, **item;
	uint64_t x = 0;
	size_t n;

	switch (op) {
	case '(':
		return pickle_push(m, &pickle_mark);
	case '0': /* POP, also of a mark */
		if (!m->n_stack)
			return pickle_bad(m, "an opcode finds nothing on the stack");
		m->n_stack--;
		return LLMC_OK;
	case '1': /* POP_MARK */
		return pickle_pop_mark(m, &item, &n);
	case '2': /* DUP */
		TRY(pickle_pop(m, &v));
		TRY(pickle_push(m, v));
		return pickle_push(m, v);
	case 'q': /* BINPUT, LONG_BINPUT, MEMOIZE */
	case 'r':
		TRY(pickle_number(m, op == 'q' ? 1 : 4, &x));
		return pickle_memo_put(m, x);
	case 0x94:
		return pickle_memo_put(m, m->n_memo);
	case 'h': /* BINGET, LONG_BINGET */
	case 'j':
		TRY(pickle_number(m, op == 'h' ? 1 : 4, &x));
		return pickle_memo_get(m, x);
	default:
		*found = false;
		return LLMC_OK;
	}
}

/* Names, calls and objects */
static llmc_status
step_object(PickleMachine *m, uint8_t op, bool *found)
{
	const uint8_t *s, *t;
	size_t n, k;

	switch (op) {
	case 'c': /* GLOBAL, STACK_GLOBAL */
		TRY(pickle_line(m, &s, &n));
		TRY(pickle_line(m, &t, &k));
		return pickle_push_name(m, (const char *)s, n, (const char *)t, k);
	case 0x93:
		return name_on_stack(m);
	case 'Q': /* BINPERSID */
		return pickle_storage(m);
	/* REDUCE; NEWOBJ of a class with a tuple has the same effect for the known names */
	case 'R':
	case 0x81:
		return pickle_call(m);
	case 'b':
		return build(m);
	default:
		*found = false;
		return LLMC_OK;
	}
}

/* Runs one opcode; *done: it was the last one. */
static llmc_status
step(PickleMachine *m, uint8_t op, bool *done)
{
	static llmc_status (*const group[])(PickleMachine *, uint8_t,
	                                    bool *) = { step_literal, step_container, step_stack,
		                                        step_object };
	uint64_t x = 0;

	switch (op) {
	case 0x80: /* PROTO */
		TRY(pickle_number(m, 1, &x));
		return x >= 2 && x <= 5 ? LLMC_OK : pickle_bad(m, "a protocol other than 2 to 5");
	case 0x95: /* FRAME */
		return pickle_number(m, 8, &x);
	case '.': /* STOP */
		*done = true;
		return LLMC_OK;
	default:
		break;
	}
	for (size_t i = 0; i < sizeof group / sizeof *group; i++) {
		bool found = true;
		llmc_status status = group[i](m, op, &found);
		if (found)
			return status;
	}
	return error_set(m->err, LLMC_E_INPUT,
	                 "%s: damaged pickle: byte 0x%02x at %zu is not an opcode that torch.save "
	                 "writes",
	                 m->file, op, m->at - 1);
}

llmc_status
pickle_read(Arena *a, const uint8_t *data, size_t n, size_t *at, const char *file,
            const PickleValue **out, PickleStorages *storages, llmc_error *err)
{
	PickleMachine m = { .a = a, .data = data, .n = n, .at = *at, .file = file, .err = err };
	PickleValue *v;

	if (n - *at > PICKLE_MAX_BYTES)
		m.n = *at + PICKLE_MAX_BYTES;
	for (bool done = false; !done;) {
		const uint8_t *op;
		TRY(pickle_take(&m, 1, &op));
		TRY(step(&m, *op, &done));
	}
	TRY(pickle_pop(&m, &v));
	if (m.n_stack)
		return pickle_bad(&m, "values are left on the stack");
	*out = v;
	*at = m.at;
	if (storages)
		*storages = m.storages;
	return LLMC_OK;
}

const PickleValue *
pickle_get(const PickleValue *dict, const char *key)
{
	for (size_t i = dict->kind == PICKLE_DICT ? dict->n : 0; i >= 2; i -= 2)
		if (dict->item[i - 2]->kind == PICKLE_STR &&
		    strcmp(dict->item[i - 2]->str, key) == 0)
			return dict->item[i - 1];
	return NULL;
}

/* Interpreter for pickles: a stack with marks, a memo, opcodes of protocols 2 to 4. */
#include "formats/pickle.h"

#include <stdio.h>
#include <string.h>

#include "formats/name_table.h"

/* Global names that a checkpoint may reference. A name is only an enum value here and nothing is
 * imported; `call` below builds the results. */
typedef enum NameIs {
	IS_DICT,
	IS_TUPLE,
	IS_TENSOR,
	IS_TENSOR_V2,
	IS_TENSOR_V3,
	IS_PARAMETER,
	IS_STORAGE,
	IS_BYTES,
	IS_DTYPE,
	IS_DEVICE
} NameIs;

static const struct Known {
	const char *module, *name;
	NameIs is;
	const char *type; /* element type of a storage, or the dtype, spelled as in safetensors */
	int bytes;
} known[] = {
	{ "collections", "OrderedDict", IS_DICT, NULL, 0 },
	{ "torch", "Size", IS_TUPLE, NULL, 0 },
	{ "torch", "device", IS_DEVICE, NULL, 0 },
	{ "torch._utils", "_rebuild_tensor", IS_TENSOR, NULL, 0 },
	{ "torch._utils", "_rebuild_tensor_v2", IS_TENSOR_V2, NULL, 0 },
	{ "torch._utils", "_rebuild_tensor_v3", IS_TENSOR_V3, NULL, 0 },
	{ "torch._utils", "_rebuild_parameter", IS_PARAMETER, NULL, 0 },
	{ "torch._utils", "_rebuild_parameter_with_state", IS_PARAMETER, NULL, 0 },
	{ "torch.nn.parameter", "Parameter", IS_PARAMETER, NULL, 0 },
	{ "torch.storage", "UntypedStorage", IS_BYTES, "U8", 1 },
	{ "torch", "FloatStorage", IS_STORAGE, "F32", 4 },
	{ "torch", "HalfStorage", IS_STORAGE, "F16", 2 },
	{ "torch", "BFloat16Storage", IS_STORAGE, "BF16", 2 },
	{ "torch", "DoubleStorage", IS_STORAGE, "F64", 8 },
	{ "torch", "LongStorage", IS_STORAGE, "I64", 8 },
	{ "torch", "IntStorage", IS_STORAGE, "I32", 4 },
	{ "torch", "ShortStorage", IS_STORAGE, "I16", 2 },
	{ "torch", "CharStorage", IS_STORAGE, "I8", 1 },
	{ "torch", "ByteStorage", IS_STORAGE, "U8", 1 },
	{ "torch", "BoolStorage", IS_STORAGE, "BOOL", 1 },
	{ "torch", "ComplexFloatStorage", IS_STORAGE, "C64", 8 },
	{ "torch", "float32", IS_DTYPE, "F32", 4 },
	{ "torch", "float16", IS_DTYPE, "F16", 2 },
	{ "torch", "bfloat16", IS_DTYPE, "BF16", 2 },
	{ "torch", "float64", IS_DTYPE, "F64", 8 },
	{ "torch", "int64", IS_DTYPE, "I64", 8 },
	{ "torch", "int32", IS_DTYPE, "I32", 4 },
	{ "torch", "int16", IS_DTYPE, "I16", 2 },
	{ "torch", "int8", IS_DTYPE, "I8", 1 },
	{ "torch", "uint8", IS_DTYPE, "U8", 1 },
	{ "torch", "bool", IS_DTYPE, "BOOL", 1 },
	{ "torch", "uint16", IS_DTYPE, "U16", 2 },
	{ "torch", "uint32", IS_DTYPE, "U32", 4 },
	{ "torch", "uint64", IS_DTYPE, "U64", 8 },
	{ "torch", "float8_e4m3fn", IS_DTYPE, "F8_E4M3", 1 },
	{ "torch", "float8_e5m2", IS_DTYPE, "F8_E5M2", 1 },
	{ "torch", "float8_e4m3fnuz", IS_DTYPE, "F8_E4M3FNUZ", 1 },
	{ "torch", "float8_e5m2fnuz", IS_DTYPE, "F8_E5M2FNUZ", 1 },
	{ "torch", "float8_e8m0fnu", IS_DTYPE, "F8_E8M0", 1 },
};

typedef struct Machine {
	Arena *a;
	const uint8_t *data;
	size_t n, at;
	const char *file;
	PickleValue **stack, **memo;
	size_t n_stack, cap_stack, n_memo, cap_memo;
	size_t n_item; /* items added to tuples, lists and dicts so far */
	llmc_error *err;
} Machine;

static PickleValue mark, other = { .kind = PICKLE_OTHER }; /* shared constants; never modified */

static llmc_status
bad(const Machine *m, const char *what)
{
	return error_set(m->err, LLMC_E_INPUT, "%s: damaged pickle: %s at byte %zu", m->file, what,
	                 m->at);
}

/* ---- input ---- */
static llmc_status
take(Machine *m, size_t n, const uint8_t **out)
{
	*out = m->data + m->at;
	if (n > m->n - m->at)
		return bad(m, "it ends within a value");
	m->at += n;
	return LLMC_OK;
}

/* n-byte little-endian integer */
static llmc_status
number(Machine *m, size_t n, uint64_t *out)
{
	const uint8_t *p;

	*out = 0;
	TRY(take(m, n, &p));
	for (size_t i = 0; i < n; i++)
		*out |= (uint64_t)p[i] << (8 * i);
	return LLMC_OK;
}

/* Reads up to the end of the line */
static llmc_status
line(Machine *m, const uint8_t **s, size_t *n)
{
	const uint8_t *end = m->at < m->n ? memchr(m->data + m->at, '\n', m->n - m->at) : NULL;

	if (!end)
		return bad(m, "an unterminated name");
	*s = m->data + m->at;
	*n = (size_t)(end - *s);
	m->at += *n + 1;
	return LLMC_OK;
}

/* ---- stack and memo ---- */
static PickleValue *
value_new(Machine *m, PickleKind kind)
{
	PickleValue *v = NEW(m->a, PickleValue, 1);

	v->kind = kind;
	return v;
}

static llmc_status
push(Machine *m, PickleValue *v)
{
	m->stack = arena_grow(m->a, m->stack, &m->cap_stack, m->n_stack + 1, sizeof *m->stack);
	m->stack[m->n_stack++] = v;
	return LLMC_OK;
}

static llmc_status
push_int(Machine *m, int64_t num)
{
	PickleValue *v = value_new(m, PICKLE_INT);

	v->num = num;
	return push(m, v);
}

static llmc_status
push_text(Machine *m, size_t n)
{
	PickleValue *v = value_new(m, PICKLE_STR);
	const uint8_t *p;

	TRY(take(m, n, &p));
	if (n && memchr(p, 0, n))
		return bad(m, "a string with a NUL byte");
	v->str = arena_strndup(m->a, (const char *)p, n);
	return push(m, v);
}

static llmc_status
pop(Machine *m, PickleValue **out)
{
	if (!m->n_stack || m->stack[m->n_stack - 1] == &mark)
		return bad(m, "an opcode finds nothing on the stack");
	*out = m->stack[--m->n_stack];
	return LLMC_OK;
}

/* Pops the last mark and the values above it; they stay valid until the next push. */
static llmc_status
pop_mark(Machine *m, PickleValue ***item, size_t *n)
{
	size_t at = m->n_stack;

	while (at && m->stack[at - 1] != &mark)
		at--;
	if (!at)
		return bad(m, "an opcode finds no mark on the stack");
	*item = m->stack + at;
	*n = m->n_stack - at;
	m->n_stack = at - 1;
	return LLMC_OK;
}

/* Every value on the stack cost a byte of the pickle. Only copies from the memo could exceed that,
 * so bound them. */
static llmc_status
add_items(Machine *m, PickleValue *v, PickleValue **item, size_t n)
{
	if (n > 4 * m->n + 64 - m->n_item)
		return bad(m, "it copies more values than it has bytes");
	m->n_item += n;
	v->item = arena_grow(m->a, v->item, &v->cap, v->n + n, sizeof *v->item);
	if (n)
		memcpy(v->item + v->n, item, n * sizeof *item);
	v->n += n;
	return LLMC_OK;
}

static llmc_status
push_items(Machine *m, PickleKind kind, PickleValue **item, size_t n)
{
	PickleValue *v = value_new(m, kind);

	TRY(add_items(m, v, item, n));
	return push(m, v);
}

/* Replaces the last n values by a tuple */
static llmc_status
push_tuple(Machine *m, size_t n)
{
	PickleValue *item[3];

	for (size_t i = n; i > 0; i--)
		TRY(pop(m, &item[i - 1]));
	return push_items(m, PICKLE_TUPLE, item, n);
}

/* Each put takes more than one byte of the pickle, so a valid index is less than its length. */
static llmc_status
put(Machine *m, uint64_t at)
{
	if (at > m->n || !m->n_stack || m->stack[m->n_stack - 1] == &mark)
		return bad(m, "an invalid memo index, or an empty stack");
	m->memo = arena_grow(m->a, m->memo, &m->cap_memo, (size_t)at + 1, sizeof *m->memo);
	if (at >= m->n_memo)
		m->n_memo = (size_t)at + 1;
	m->memo[at] = m->stack[m->n_stack - 1];
	return LLMC_OK;
}

static llmc_status
get(Machine *m, uint64_t at)
{
	if (at >= m->n_memo || !m->memo[at])
		return bad(m, "an empty memo entry");
	return push(m, m->memo[at]);
}

/* ---- names, storages, tensors ---- */
static llmc_status
push_name(Machine *m, const char *module, size_t n_module, const char *name, size_t n_name)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i].module) == n_module &&
		    !memcmp(known[i].module, module, n_module) && strlen(known[i].name) == n_name &&
		    !memcmp(known[i].name, name, n_name)) {
			PickleValue *v = value_new(m, PICKLE_NAME);
			v->name = (int)i;
			return push(m, v);
		}
	return error_set(m->err, LLMC_E_INPUT,
	                 "%s: the pickle references %s.%s, which tensors do not need; Python "
	                 "could run any code with it, so llmc rejects the file",
	                 m->file, name_text(module, n_module).s, name_text(name, n_name).s);
}

/* persistent id: ('storage', class, key, device, elements). Files from before version 1.6 add a
 * view, always None since 0.4 */
static llmc_status
storage(Machine *m)
{
	PickleValue *id, *v;

	TRY(pop(m, &id));
	if (id->kind != PICKLE_TUPLE || id->n < 5 || id->n > 6 || id->item[0]->kind != PICKLE_STR ||
	    strcmp(id->item[0]->str, "storage") || id->item[1]->kind != PICKLE_NAME ||
	    id->item[2]->kind != PICKLE_STR || id->item[4]->kind != PICKLE_INT ||
	    id->item[4]->num < 0)
		return bad(m, "a persistent id that is not a storage");
	if (id->n == 6 && id->item[5]->kind != PICKLE_OTHER)
		return bad(m, "a storage that is a view of another storage");
	const struct Known *k = &known[id->item[1]->name];
	if (k->is != IS_STORAGE && k->is != IS_BYTES)
		return bad(m, "a storage of an unknown class");
	PickleStorage *s = NEW(m->a, PickleStorage, 1);
	*s = (PickleStorage){ .key = id->item[2]->str,
		              .type = k->type,
		              .bytes = k->bytes,
		              .elems = id->item[4]->num };
	v = value_new(m, PICKLE_STORAGE);
	v->storage = s;
	return push(m, v);
}

/* _rebuild_tensor arguments: (storage, offset, sizes, strides, ...) */
static llmc_status
tensor(Machine *m, const PickleValue *arg, NameIs is)
{
	const size_t dtype_at = is == IS_TENSOR_V3 ? 6 : 0;

	if (arg->n < (is == IS_TENSOR      ? 4u
	              : is == IS_TENSOR_V2 ? 6u
	                                   : 7u) ||
	    arg->item[0]->kind != PICKLE_STORAGE || arg->item[1]->kind != PICKLE_INT ||
	    arg->item[2]->kind != PICKLE_TUPLE || arg->item[3]->kind != PICKLE_TUPLE ||
	    arg->item[2]->n != arg->item[3]->n)
		return bad(m, "a tensor without a storage, an offset, sizes and strides");
	if (arg->item[2]->n > PICKLE_MAX_DIMS)
		return bad(m, "a tensor of more than 8 dimensions");
	PickleTensor *t = NEW(m->a, PickleTensor, 1);
	*t = (PickleTensor){ .storage = arg->item[0]->storage,
		             .offset = arg->item[1]->num,
		             .n_dims = (int)arg->item[2]->n };
	t->type = t->storage->type;
	t->bytes = t->storage->bytes;
	if (dtype_at) {
		const PickleValue *d = arg->item[dtype_at];
		if (d->kind != PICKLE_NAME || known[d->name].is != IS_DTYPE)
			return bad(m, "a tensor of an unknown dtype");
		t->type = known[d->name].type;
		t->bytes = known[d->name].bytes;
	}
	for (int i = 0; i < t->n_dims; i++) {
		const PickleValue *size = arg->item[2]->item[i], *stride = arg->item[3]->item[i];
		if (size->kind != PICKLE_INT || stride->kind != PICKLE_INT || size->num < 0 ||
		    stride->num < 0)
			return bad(m, "a tensor with sizes or strides that are not non-negative "
			              "integers");
		t->dim[i] = size->num;
		t->stride[i] = stride->num;
	}
	if (t->offset < 0)
		return bad(m, "a tensor with a negative offset in its storage");
	PickleValue *v = value_new(m, PICKLE_TENSOR);
	v->tensor = t;
	return push(m, v);
}

/* OrderedDict([[key, value], ...]) as Python 2 wrote it */
static llmc_status
dict_of(Machine *m, const PickleValue *arg)
{
	PickleValue *v = value_new(m, PICKLE_DICT);

	if (arg->n > 1 || (arg->n == 1 && arg->item[0]->kind != PICKLE_LIST))
		return bad(m, "a dict not built from a list of pairs");
	for (size_t i = 0; arg->n && i < arg->item[0]->n; i++) {
		const PickleValue *pair = arg->item[0]->item[i];
		if ((pair->kind != PICKLE_LIST && pair->kind != PICKLE_TUPLE) || pair->n != 2)
			return bad(m, "a dict not built from a list of pairs");
		TRY(add_items(m, v, pair->item, 2));
	}
	return push(m, v);
}

/* Applies a known name to its arguments, in place of a Python call */
static llmc_status
call(Machine *m)
{
	PickleValue *arg, *what;

	TRY(pop(m, &arg));
	TRY(pop(m, &what));
	if (arg->kind != PICKLE_TUPLE || what->kind != PICKLE_NAME)
		return bad(m, "a call of a value that is not a function or class");
	const NameIs is = known[what->name].is;
	switch (is) {
	case IS_DICT:
		return dict_of(m, arg);
	case IS_TUPLE:
		if (arg->n != 1 ||
		    (arg->item[0]->kind != PICKLE_TUPLE && arg->item[0]->kind != PICKLE_LIST))
			return bad(m, "a torch.Size not built from integers");
		return push_items(m, PICKLE_TUPLE, arg->item[0]->item, arg->item[0]->n);
	case IS_TENSOR:
	case IS_TENSOR_V2:
	case IS_TENSOR_V3:
		return tensor(m, arg, is);
	case IS_PARAMETER:
		if (arg->n < 1 || arg->item[0]->kind != PICKLE_TENSOR)
			return bad(m, "a parameter that is not a tensor");
		return push(m, arg->item[0]);
	case IS_DEVICE:
		return push(m, &other);
	case IS_STORAGE:
	case IS_BYTES:
	case IS_DTYPE:
		break;
	}
	return error_set(m->err, LLMC_E_INPUT,
	                 "%s: the pickle calls %s.%s, which checkpoints of weights do not", m->file,
	                 known[what->name].module, known[what->name].name);
}

/* ---- opcodes ---- */
static llmc_status
append(Machine *m, bool all)
{
	PickleValue **item, *one, *list;
	size_t n = 1;

	if (all) {
		TRY(pop_mark(m, &item, &n));
	} else {
		TRY(pop(m, &one));
		item = &one;
	}
	TRY(pop(m, &list));
	if (list->kind != PICKLE_LIST)
		return bad(m, "a value is appended to a non-list");
	TRY(add_items(m, list, item, n));
	return push(m, list);
}

static llmc_status
set_items(Machine *m, bool all)
{
	PickleValue **item, *pair[2], *dict;
	size_t n = 2;

	if (all) {
		TRY(pop_mark(m, &item, &n));
	} else {
		TRY(pop(m, &pair[1]));
		TRY(pop(m, &pair[0]));
		item = pair;
	}
	TRY(pop(m, &dict));
	if (dict->kind != PICKLE_DICT || n % 2)
		return bad(m, "an item is set in a non-dict");
	TRY(add_items(m, dict, item, n));
	return push(m, dict);
}

/* BUILD sets attributes: a dict of weights carries versions of its modules, a parameter may carry
 * others. Neither matters for weights, so they are dropped. */
static llmc_status
build(Machine *m)
{
	PickleValue *state, *object;

	TRY(pop(m, &state));
	TRY(pop(m, &object));
	if (object->kind != PICKLE_DICT && object->kind != PICKLE_TENSOR)
		return bad(m, "attributes set on an unsupported object");
	return push(m, object);
}

/* Reads an n-byte two's complement integer; values beyond 64 bits are not needed and become
 * PICKLE_OTHER. */
static llmc_status
long_number(Machine *m, size_t n)
{
	const uint8_t *p;
	uint64_t v = 0;

	TRY(take(m, n, &p));
	if (n > 8)
		return push(m, &other);
	for (size_t i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	if (n && n < 8 && p[n - 1] & 0x80)
		v |= ~(uint64_t)0 << (8 * n);
	return push_int(m, (int64_t)v);
}

static llmc_status
skip_bytes(Machine *m, uint64_t n)
{
	const uint8_t *p;

	TRY(take(m, n > m->n ? m->n + 1 : (size_t)n, &p));
	return push(m, &other);
}

static llmc_status
name_on_stack(Machine *m)
{
	PickleValue *name, *module;

	TRY(pop(m, &name));
	TRY(pop(m, &module));
	if (name->kind != PICKLE_STR || module->kind != PICKLE_STR)
		return bad(m, "a name that is not a string");
	return push_name(m, module->str, strlen(module->str), name->str, strlen(name->str));
}

/* Runs one opcode; *done: it was the last one. */
static llmc_status
step(Machine *m, uint8_t op, bool *done)
{
	const uint8_t *s, *t;
	PickleValue *v, **item;
	uint64_t x = 0;
	size_t n, k;

	switch (op) {
	case 0x80: /* PROTO */
		TRY(number(m, 1, &x));
		return x >= 2 && x <= 5 ? LLMC_OK : bad(m, "a protocol other than 2 to 5");
	case 0x95: /* FRAME */
		return number(m, 8, &x);
	case '.': /* STOP */
		*done = true;
		return LLMC_OK;
	case '(':
		return push(m, &mark);
	case '0': /* POP, also of a mark */
		if (!m->n_stack)
			return bad(m, "an opcode finds nothing on the stack");
		m->n_stack--;
		return LLMC_OK;
	case '1': /* POP_MARK */
		return pop_mark(m, &item, &n);
	case '2': /* DUP */
		TRY(pop(m, &v));
		TRY(push(m, v));
		return push(m, v);
	case 'N':
		return push(m, &other);
	case 0x88: /* NEWTRUE, NEWFALSE */
	case 0x89:
		return push_int(m, op == 0x88);
	case 'J': /* BININT */
		TRY(number(m, 4, &x));
		return push_int(m, (int32_t)x);
	case 'K': /* BININT1, BININT2 */
	case 'M':
		TRY(number(m, op == 'K' ? 1 : 2, &x));
		return push_int(m, (int64_t)x);
	case 0x8a: /* LONG1, LONG4 */
	case 0x8b:
		TRY(number(m, op == 0x8a ? 1 : 4, &x));
		return long_number(m, (size_t)x);
	case 'G': /* BINFLOAT */
		return skip_bytes(m, 8);
	case 'X': /* BINUNICODE, SHORT_BINUNICODE, BINUNICODE8; BINSTRING, SHORT_BINSTRING of Python
	             2 */
	case 'T':
		TRY(number(m, 4, &x));
		return push_text(m, (size_t)x);
	case 0x8c:
	case 'U':
		TRY(number(m, 1, &x));
		return push_text(m, (size_t)x);
	case 0x8d:
		TRY(number(m, 8, &x));
		return push_text(m, x > m->n ? m->n + 1 : (size_t)x);
	case 'B': /* BINBYTES, SHORT_BINBYTES, BINBYTES8 */
		TRY(number(m, 4, &x));
		return skip_bytes(m, x);
	case 'C':
		TRY(number(m, 1, &x));
		return skip_bytes(m, x);
	case 0x8e:
		TRY(number(m, 8, &x));
		return skip_bytes(m, x);
	case ')':
		return push_items(m, PICKLE_TUPLE, NULL, 0);
	case ']':
		return push_items(m, PICKLE_LIST, NULL, 0);
	case '}':
		return push_items(m, PICKLE_DICT, NULL, 0);
	case 0x85: /* TUPLE1 to TUPLE3 */
	case 0x86:
	case 0x87:
		return push_tuple(m, (size_t)(op - 0x84));
	case 't': /* TUPLE, LIST, DICT */
	case 'l':
	case 'd':
		TRY(pop_mark(m, &item, &n));
		if (op == 'd' && n % 2)
			return bad(m, "a dict with a key without a value");
		return push_items(m,
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
	case 'q': /* BINPUT, LONG_BINPUT, MEMOIZE */
	case 'r':
		TRY(number(m, op == 'q' ? 1 : 4, &x));
		return put(m, x);
	case 0x94:
		return put(m, m->n_memo);
	case 'h': /* BINGET, LONG_BINGET */
	case 'j':
		TRY(number(m, op == 'h' ? 1 : 4, &x));
		return get(m, x);
	case 'c': /* GLOBAL, STACK_GLOBAL */
		TRY(line(m, &s, &n));
		TRY(line(m, &t, &k));
		return push_name(m, (const char *)s, n, (const char *)t, k);
	case 0x93:
		return name_on_stack(m);
	case 'Q': /* BINPERSID */
		return storage(m);
	/* REDUCE; NEWOBJ of a class with a tuple has the same effect for the known names */
	case 'R':
	case 0x81:
		return call(m);
	case 'b':
		return build(m);
	default:
		return error_set(
		    m->err, LLMC_E_INPUT,
		    "%s: damaged pickle: byte 0x%02x at %zu is not an opcode that torch.save "
		    "writes",
		    m->file, op, m->at - 1);
	}
}

llmc_status
pickle_read(Arena *a, const uint8_t *data, size_t n, size_t *at, const char *file,
            const PickleValue **out, llmc_error *err)
{
	Machine m = { .a = a, .data = data, .n = n, .at = *at, .file = file, .err = err };
	PickleValue *v;

	if (n - *at > PICKLE_MAX_BYTES)
		m.n = *at + PICKLE_MAX_BYTES;
	for (bool done = false; !done;) {
		const uint8_t *op;
		TRY(take(&m, 1, &op));
		TRY(step(&m, *op, &done));
	}
	TRY(pop(&m, &v));
	if (m.n_stack)
		return bad(&m, "values are left on the stack");
	*out = v;
	*at = m.at;
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

/* Objects of checkpoints in pickles: known names, storages, tensors, dicts. */
#include "formats/pickle_machine.h"

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

llmc_status
pickle_push_name(PickleMachine *m, const char *module, size_t n_module, const char *name,
                 size_t n_name)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i].module) == n_module &&
		    !memcmp(known[i].module, module, n_module) && strlen(known[i].name) == n_name &&
		    !memcmp(known[i].name, name, n_name)) {
			PickleValue *v = NULL;
			TRY(pickle_value_new(m, PICKLE_NAME, &v));
			v->name = (int)i;
			return pickle_push(m, v);
		}
	return error_set(m->err, LLMC_E_INPUT,
	                 "%s: the pickle references %s.%s, which tensors do not need; Python "
	                 "could run any code with it, so llmc rejects the file",
	                 m->file, name_text(module, n_module).s, name_text(name, n_name).s);
}

/* persistent id: ('storage', class, key, device, elements). Files from before version 1.6 add a
 * view, always None since 0.4 */
llmc_status
pickle_storage(PickleMachine *m)
{
	PickleValue *id, *v = NULL;

	TRY(pickle_pop(m, &id));
	if (id->kind != PICKLE_TUPLE || id->n < 5 || id->n > 6 || id->item[0]->kind != PICKLE_STR ||
	    strcmp(id->item[0]->str, "storage") || id->item[1]->kind != PICKLE_NAME ||
	    id->item[2]->kind != PICKLE_STR || id->item[4]->kind != PICKLE_INT ||
	    id->item[4]->num < 0)
		return pickle_bad(m, "a persistent id that is not a storage");
	if (id->n == 6 && id->item[5]->kind != PICKLE_OTHER)
		return pickle_bad(m, "a storage that is a view of another storage");
	const struct Known *k = &known[id->item[1]->name];
	if (k->is != IS_STORAGE && k->is != IS_BYTES)
		return pickle_bad(m, "a storage of an unknown class");
	PickleStorage *s = NEW(m->a, PickleStorage, 1);
	*s = (PickleStorage){ .key = id->item[2]->str,
		              .type = k->type,
		              .bytes = k->bytes,
		              .elems = id->item[4]->num };
	PickleStorages *all = &m->storages;
	all->item = arena_grow(m->a, all->item, &all->cap, all->n + 1, sizeof *all->item);
	all->item[all->n++] = s;
	TRY(pickle_value_new(m, PICKLE_STORAGE, &v));
	v->storage = s;
	return pickle_push(m, v);
}

/* _rebuild_tensor arguments: (storage, offset, sizes, strides, ...) */
static llmc_status
tensor(PickleMachine *m, const PickleValue *arg, NameIs is)
{
	const size_t dtype_at = is == IS_TENSOR_V3 ? 6 : 0;

	if (arg->n < (is == IS_TENSOR      ? 4u
	              : is == IS_TENSOR_V2 ? 6u
	                                   : 7u) ||
	    arg->item[0]->kind != PICKLE_STORAGE || arg->item[1]->kind != PICKLE_INT ||
	    arg->item[2]->kind != PICKLE_TUPLE || arg->item[3]->kind != PICKLE_TUPLE ||
	    arg->item[2]->n != arg->item[3]->n)
		return pickle_bad(m, "a tensor without a storage, an offset, sizes and strides");
	if (arg->item[2]->n > PICKLE_MAX_DIMS)
		return pickle_bad(m, "a tensor of more than 8 dimensions");
	PickleTensor *t = NEW(m->a, PickleTensor, 1);
	*t = (PickleTensor){ .storage = arg->item[0]->storage,
		             .offset = arg->item[1]->num,
		             .n_dims = (int)arg->item[2]->n };
	t->type = t->storage->type;
	t->bytes = t->storage->bytes;
	if (dtype_at) {
		const PickleValue *d = arg->item[dtype_at];
		if (d->kind != PICKLE_NAME || known[d->name].is != IS_DTYPE)
			return pickle_bad(m, "a tensor of an unknown dtype");
		t->type = known[d->name].type;
		t->bytes = known[d->name].bytes;
	}
	for (int i = 0; i < t->n_dims; i++) {
		const PickleValue *size = arg->item[2]->item[i], *stride = arg->item[3]->item[i];
		if (size->kind != PICKLE_INT || stride->kind != PICKLE_INT || size->num < 0 ||
		    stride->num < 0)
			return pickle_bad(
			    m, "a tensor with sizes or strides that are not non-negative "
			       "integers");
		t->dim[i] = size->num;
		t->stride[i] = stride->num;
	}
	if (t->offset < 0)
		return pickle_bad(m, "a tensor with a negative offset in its storage");
	PickleValue *v = NULL;
	TRY(pickle_value_new(m, PICKLE_TENSOR, &v));
	v->tensor = t;
	return pickle_push(m, v);
}

/* OrderedDict([[key, value], ...]) as Python 2 wrote it */
static llmc_status
dict_of(PickleMachine *m, const PickleValue *arg)
{
	PickleValue *v = NULL;

	TRY(pickle_value_new(m, PICKLE_DICT, &v));
	if (arg->n > 1 || (arg->n == 1 && arg->item[0]->kind != PICKLE_LIST))
		return pickle_bad(m, "a dict not built from a list of pairs");
	for (size_t i = 0; arg->n && i < arg->item[0]->n; i++) {
		const PickleValue *pair = arg->item[0]->item[i];
		if ((pair->kind != PICKLE_LIST && pair->kind != PICKLE_TUPLE) || pair->n != 2)
			return pickle_bad(m, "a dict not built from a list of pairs");
		TRY(pickle_add_items(m, v, pair->item, 2));
	}
	return pickle_push(m, v);
}

/* Applies a known name to its arguments, in place of a Python call */
llmc_status
pickle_call(PickleMachine *m)
{
	PickleValue *arg, *what;

	TRY(pickle_pop(m, &arg));
	TRY(pickle_pop(m, &what));
	if (arg->kind != PICKLE_TUPLE || what->kind != PICKLE_NAME)
		return pickle_bad(m, "a call of a value that is not a function or class");
	const NameIs is = known[what->name].is;
	switch (is) {
	case IS_DICT:
		return dict_of(m, arg);
	case IS_TUPLE:
		if (arg->n != 1 ||
		    (arg->item[0]->kind != PICKLE_TUPLE && arg->item[0]->kind != PICKLE_LIST))
			return pickle_bad(m, "a torch.Size not built from integers");
		return pickle_push_items(m, PICKLE_TUPLE, arg->item[0]->item, arg->item[0]->n);
	case IS_TENSOR:
	case IS_TENSOR_V2:
	case IS_TENSOR_V3:
		return tensor(m, arg, is);
	case IS_PARAMETER:
		if (arg->n < 1 || arg->item[0]->kind != PICKLE_TENSOR)
			return pickle_bad(m, "a parameter that is not a tensor");
		return pickle_push(m, arg->item[0]);
	case IS_DEVICE:
		return pickle_push(m, &pickle_other);
	case IS_STORAGE:
	case IS_BYTES:
	case IS_DTYPE:
		break;
	}
	return error_set(m->err, LLMC_E_INPUT,
	                 "%s: the pickle calls %s.%s, which checkpoints of weights do not", m->file,
	                 known[what->name].module, known[what->name].name);
}

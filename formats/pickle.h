/* Reads pickles as torch.save writes them, without Python. It supports dicts, lists, numbers,
 * strings and tensors. Any other object is rejected by name, and nothing in a pickle is executed.
 * Input is untrusted: values, stack, memo and lists are bounded in number, strings in length, and
 * values are not traversed recursively. */
#ifndef LLMC_FORMATS_PICKLE_H
#define LLMC_FORMATS_PICKLE_H

#include "base/arena.h"
#include "base/error.h"

/* PICKLE_MAX_VALUES: limit of values, of items of containers, of the stack and of the memo, each.
 * PICKLE_MAX_STRING: bytes of a name. The memo lets a few bytes of a pickle refer to a string many
 * times, so the work per reference must be bounded */
enum {
	PICKLE_MAX_BYTES = 64 << 20,
	PICKLE_MAX_DIMS = 8,
	PICKLE_MAX_VALUES = 4 << 20,
	PICKLE_MAX_STRING = 4096,
};

typedef enum PickleKind {
	PICKLE_OTHER, /* a float, bytes, a long string or another value that weights do not need */
	PICKLE_INT,   /* also bools */
	PICKLE_STR,
	PICKLE_TUPLE,
	PICKLE_LIST,
	PICKLE_DICT,
	PICKLE_NAME, /* a class or function listed in pickle.c */
	PICKLE_STORAGE,
	PICKLE_TENSOR,
} PickleKind;

typedef struct PickleValue PickleValue;

/* Contiguous elements in the file, or in the archive entry that `key` names */
typedef struct PickleStorage {
	const char *key;
	const char *type; /* element type, spelled as in safetensors */
	int bytes;        /* bytes per element */
	int64_t elems;
} PickleStorage;

typedef struct PickleTensor {
	const PickleStorage *storage;
	const char *type;
	int bytes;      /* bytes per element */
	int64_t offset; /* in elements of `type`, like strides */
	int n_dims;
	int64_t dim[PICKLE_MAX_DIMS], stride[PICKLE_MAX_DIMS];
} PickleTensor;

struct PickleValue {
	PickleKind kind;
	int name; /* PICKLE_NAME: index in the table of names */
	int64_t num;
	const char *str;    /* NUL-terminated, no NUL inside */
	PickleValue **item; /* for a dict: key, value, key, value, ... */
	size_t n, cap;
	const PickleStorage *storage;
	const PickleTensor *tensor;
};

/* Storages that a pickle refers to, in its order; a storage may be listed several times */
typedef struct PickleStorages {
	const PickleStorage **item;
	size_t n, cap;
} PickleStorages;

/* Reads the pickle that begins at data[*at] into the arena and advances *at past it. `file` is for
 * messages; errors are E_INPUT. storages: receives the storages; may be NULL. */
llmc_status pickle_read(Arena *a, const uint8_t *data, size_t n, size_t *at, const char *file,
                        const PickleValue **out, PickleStorages *storages, llmc_error *err);
/* Returns the value of a dict's key, or NULL. The last one counts, as in Python. */
const PickleValue *pickle_get(const PickleValue *dict, const char *key);

#endif

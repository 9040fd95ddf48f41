/* Reads pickles as torch.save writes them, without Python. It supports dicts, lists, numbers,
 * strings and tensors. Any other object is rejected by name, and nothing in a pickle is executed.
 * Input is untrusted: stack, memo and lists are bounded by the bytes that create them, and values
 * are not traversed recursively. */
#ifndef LLMC_FORMATS_PICKLE_H
#define LLMC_FORMATS_PICKLE_H

#include "base/arena.h"
#include "base/error.h"

enum { PICKLE_MAX_BYTES = 64 << 20, PICKLE_MAX_DIMS = 8 };

typedef enum PickleKind {
	PICKLE_OTHER, /* a float, bytes, a dtype, ...: not needed for weights */
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

/* Reads the pickle that begins at data[*at] into the arena and advances *at past it. `file` is for
 * messages; errors are E_INPUT. */
llmc_status pickle_read(Arena *a, const uint8_t *data, size_t n, size_t *at, const char *file,
                        const PickleValue **out, llmc_error *err);
/* Returns the value of a dict's key, or NULL. The last one counts, as in Python. */
const PickleValue *pickle_get(const PickleValue *dict, const char *key);

#endif

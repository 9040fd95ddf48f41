/* Pickles as torch.save writes them, without Python: a machine that knows dicts, lists, numbers,
 * text and tensors. Whatever else a pickle asks for is refused by its name, and nothing of a pickle
 * is ever run. Input is untrusted: stack, memo and lists are as long as the bytes that made them,
 * and no value is walked by recursion here. */
#ifndef LLMC_FORMATS_PICKLE_H
#define LLMC_FORMATS_PICKLE_H

#include "base/arena.h"
#include "base/error.h"

enum { PICKLE_MAX_BYTES = 64 << 20, PICKLE_MAX_DIMS = 8 };

typedef enum PickleKind {
	PICKLE_OTHER, /* a float, bytes, a dtype, ...: nothing that a checkpoint of weights needs */
	PICKLE_INT,   /* bools as well */
	PICKLE_STR,
	PICKLE_TUPLE,
	PICKLE_LIST,
	PICKLE_DICT,
	PICKLE_NAME, /* a class or function of the list in pickle.c */
	PICKLE_STORAGE,
	PICKLE_TENSOR,
} PickleKind;

typedef struct PickleValue PickleValue;

/* Elements in a row, in a file or a part of one that `key` names */
typedef struct PickleStorage {
	const char *key;
	const char *type; /* element type as safetensors has it */
	int bytes;        /* of an element */
	int64_t elems;
} PickleStorage;

typedef struct PickleTensor {
	const PickleStorage *storage;
	const char *type;
	int bytes;      /* of an element */
	int64_t offset; /* in elements of `type`, as strides are */
	int n_dims;
	int64_t dim[PICKLE_MAX_DIMS], stride[PICKLE_MAX_DIMS];
} PickleTensor;

struct PickleValue {
	PickleKind kind;
	int name; /* PICKLE_NAME: its row */
	int64_t num;
	const char *str;    /* NUL-terminated, without NULs inside */
	PickleValue **item; /* of a dict: key, value, key, value, ... */
	size_t n, cap;
	const PickleStorage *storage;
	const PickleTensor *tensor;
};

/* The pickle that begins at data[*at], all in the arena; *at is then behind it. `file` is for
 * errors, which are E_INPUT. */
llmc_status pickle_read(Arena *a, const uint8_t *data, size_t n, size_t *at, const char *file,
                        const PickleValue **out, llmc_error *err);
/* Value of a dict's key; NULL: none. The last one holds, as in Python. */
const PickleValue *pickle_get(const PickleValue *dict, const char *key);

#endif

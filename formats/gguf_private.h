/* Internals of a GGUF reader, shared by gguf.c (reads one file) and gguf_split.c (joins the parts
 * of a split file). */
#ifndef LLMC_FORMATS_GGUF_PRIVATE_H
#define LLMC_FORMATS_GGUF_PRIVATE_H

#include "base/arena.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/name_table.h"

typedef struct Key {
	const char *name;
	GgufType type, elem; /* elem: element type of an array, else equal to type */
	uint64_t count;
	const unsigned char *value; /* first element; strings: their length field */
	const uint64_t *str_at;     /* arrays of strings: offset of each length field from value */
} Key;

struct Gguf {
	Arena arena;
	FileMap map;      /* mapping of the file; data NULL: the caller's memory is read */
	const char *file; /* for errors */
	Key *key;
	NameEntry *key_name;
	size_t n_key;
	GgufTensor *tensor;
	NameEntry *tensor_name;
	size_t n_tensor;
	Gguf **part; /* parts after the first of a split file; they own the tensors' data */
	size_t n_part;
};

/* Bytes of a value; 0: strings and arrays */
extern const uint8_t gguf_type_bytes[GGUF_F64 + 1];

/* Opens one file, split or not, with its tensors as stored */
llmc_status gguf_open_one(const char *path, Gguf **out, llmc_error *err);
/* Resolves tensors that use other tensors, possibly of other parts; closes *g on failure */
llmc_status gguf_finish(Gguf **g, llmc_error *err);

#endif

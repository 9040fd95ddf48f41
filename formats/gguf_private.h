/* What a GGUF reader consists of: for gguf.c, which reads one file, and gguf_split.c, which joins
 * the parts of one. */
#ifndef LLMC_FORMATS_GGUF_PRIVATE_H
#define LLMC_FORMATS_GGUF_PRIVATE_H

#include "base/arena.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/name_table.h"

typedef struct Key {
	const char *name;
	GgufType type, elem; /* elem: of an array, else the same as type */
	uint64_t count;
	const unsigned char *value; /* first element; strings: their length field */
	const uint64_t *str_at;     /* arrays of strings: where each length field is, from value */
} Key;

struct Gguf {
	Arena arena;
	FileMap map;      /* data NULL: memory of the caller */
	const char *file; /* for errors */
	Key *key;
	NameEntry *key_name;
	size_t n_key;
	GgufTensor *tensor;
	NameEntry *tensor_name;
	size_t n_tensor;
	Gguf **part; /* of a split file, those after the first: they hold the tensors' data */
	size_t n_part;
};

/* One file, whether it is a part or not: its tensors as they are written */
llmc_status gguf_open_one(const char *path, Gguf **out, llmc_error *err);
/* Tensors that take others of the list, which may be in other parts, in them; closed when it fails
 */
llmc_status gguf_finish(Gguf **g, llmc_error *err);

#endif

/* GGUF v2 and v3, as ggml/docs/gguf.md defines them; little endian. The file is mapped and
 * untrusted: every count and offset is checked before use. Strings point into the mapping or into
 * the reader's memory. */
#ifndef LLMC_FORMATS_GGUF_H
#define LLMC_FORMATS_GGUF_H

#include "base/error.h"
#include "formats/quant_format.h"

typedef struct Gguf Gguf;

typedef enum GgufType {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STR,
	GGUF_ARR,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64,
} GgufType;

typedef struct GgufStr {
	const char *s;
	size_t n;
} GgufStr; /* not NUL-terminated */

typedef struct GgufTensor {
	const char *name; /* NUL-terminated */
	const char *file; /* file that holds it: one part of a split file */
	Dtype dtype;      /* DT_NONE: a type that llmc does not read; see ggml_type */
	uint32_t ggml_type;
	int n_dims;
	int64_t dim[4];   /* file order: dim[0] is contiguous; 1 from n_dims on */
	const void *data; /* in the mapping; NULL when dtype is DT_NONE */
	int64_t bytes;    /* size at `data` */
	/* matrix that converts the rows; NULL: rows are used as stored */
	const QuantFormatMatrix *made;
} GgufTensor;

/* Keys of the vocabulary */
#define GGUF_VOCAB "tokenizer.ggml."
/* Keys of the tokens that end an output, that of the end of text first */
enum { GGUF_END_KEYS = 3 };
extern const char *const gguf_end_keys[GGUF_END_KEYS];
/* Values of pooling_type; GGUF_POOL_RANK: scores of a classifier, whose pooling is
 * classifier.pooling_type */
enum { GGUF_POOL_MEAN = 1, GGUF_POOL_CLS = 2, GGUF_POOL_LAST = 3, GGUF_POOL_RANK = 4 };

/* Opens a GGUF. A split file is opened by the name of its first part, NAME-00001-of-0000N.gguf. The
 * other parts are found in the same folder and checked. Tensors come from all parts, keys from the
 * first. */
llmc_status gguf_open(const char *path, Gguf **out, llmc_error *err);
/* data must outlive the reader (fuzzing) */
llmc_status gguf_open_memory(const void *data, size_t size, const char *name, Gguf **out,
                             llmc_error *err);
void gguf_close(Gguf *g);
void gguf_hold(Arena *a, Gguf *g); /* the arena closes g */
/* Number of files after the first: 0 unless it is split */
size_t gguf_n_parts(const Gguf *g);
const char *gguf_part_at(const Gguf *g, size_t i);

size_t gguf_n_tensors(const Gguf *g);
const GgufTensor *gguf_tensor_at(const Gguf *g, size_t i);
const GgufTensor *gguf_tensor(const Gguf *g, const char *name); /* NULL: none */

/* Raw value of a key, for copying */
typedef struct GgufRaw {
	const char *name;
	GgufType type, elem;
	uint64_t count;
	const void *value; /* the elements; strings include their lengths */
	size_t bytes;
} GgufRaw;
GgufRaw gguf_raw_at(const Gguf *g, size_t i);
size_t gguf_n_keys(const Gguf *g);
const char *gguf_key_at(const Gguf *g, size_t i);
/* count 1 unless array */
bool gguf_type(const Gguf *g, const char *key, GgufType *type, GgufType *elem, size_t *count);
bool gguf_int(const Gguf *g, const char *key, int64_t *out); /* any integer or bool type */
bool gguf_num(const Gguf *g, const char *key, double *out);  /* any number type or bool */
bool gguf_str(const Gguf *g, const char *key, GgufStr *out);
/* get element i of an array; false: wrong type, or i is out of range */
bool gguf_arr_str(const Gguf *g, const char *key, size_t i, GgufStr *out);
bool gguf_arr_num(const Gguf *g, const char *key, size_t i, double *out);

#endif

/* The head of a GGUF v3 file: keys, then tensors, whose bytes the caller puts where they are told
 * to lie. */
#ifndef LLMC_FORMATS_GGUF_WRITE_H
#define LLMC_FORMATS_GGUF_WRITE_H

#include "base/strbuf.h"
#include "formats/gguf.h"

typedef struct GgufHead {
	Strbuf keys, tensors;
	uint64_t n_key, n_tensor;
	int64_t align;      /* a power of two */
	int64_t data_bytes; /* of all tensors, with gaps */
} GgufHead;

void gguf_head_init(GgufHead *h, int64_t align);
void gguf_head_release(GgufHead *h);
void gguf_head_raw(GgufHead *h, const GgufRaw *r);
void gguf_head_str(GgufHead *h, const char *key, const char *value);
void gguf_head_strs(GgufHead *h, const char *key, const char *const *value, size_t n);
void gguf_head_u32(GgufHead *h, const char *key, uint32_t value);
void gguf_head_f32(GgufHead *h, const char *key, float value);
void gguf_head_bool(GgufHead *h, const char *key, bool value);
/* Lists: elements as the file has them, n of `bytes` all together; of strings, which may hold any
 * byte */
void gguf_head_list(GgufHead *h, const char *key, GgufType elem, const void *value, size_t bytes,
                    size_t n);
void gguf_head_texts(GgufHead *h, const char *key, const GgufStr *value, size_t n);
/* dim[0] is contiguous. Where the tensor lies, from the start of the data; -1: no size */
int64_t gguf_head_tensor(GgufHead *h, const char *name, Dtype d, int n_dims, const int64_t *dim);
/* All before the data, which begins behind it. out->failed: memory is out */
void gguf_head_text(const GgufHead *h, Strbuf *out);

#endif

/* Writes the header of a GGUF v3 file: keys, then tensor records. The caller writes the tensor data
 * at the returned offsets. */
#ifndef LLMC_FORMATS_GGUF_WRITE_H
#define LLMC_FORMATS_GGUF_WRITE_H

#include "base/strbuf.h"
#include "formats/gguf.h"

typedef struct GgufHead {
	Strbuf keys, tensors;
	uint64_t n_key, n_tensor;
	int64_t align;      /* power of two */
	int64_t data_bytes; /* all tensors, including padding */
} GgufHead;

void gguf_head_init(GgufHead *h, int64_t align);
void gguf_head_release(GgufHead *h);
void gguf_head_raw(GgufHead *h, const GgufRaw *r);
void gguf_head_str(GgufHead *h, const char *key, const char *value);
void gguf_head_strs(GgufHead *h, const char *key, const char *const *value, size_t n);
void gguf_head_u32(GgufHead *h, const char *key, uint32_t value);
void gguf_head_f32(GgufHead *h, const char *key, float value);
void gguf_head_bool(GgufHead *h, const char *key, bool value);
/* Adds a list: n elements in file order, `bytes` in total. gguf_head_texts: strings that may hold
 * any byte */
void gguf_head_list(GgufHead *h, const char *key, GgufType elem, const void *value, size_t bytes,
                    size_t n);
void gguf_head_texts(GgufHead *h, const char *key, const GgufStr *value, size_t n);
/* dim[0] is contiguous. Returns the tensor's offset from the start of the data; -1: the size
 * overflows */
int64_t gguf_head_tensor(GgufHead *h, const char *name, Dtype d, int n_dims, const int64_t *dim);
/* Writes the header, padded to the start of the data. out->failed: out of memory */
void gguf_head_text(const GgufHead *h, Strbuf *out);

#endif

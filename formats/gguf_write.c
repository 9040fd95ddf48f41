#include "formats/gguf_write.h"

#include <string.h>

static void
add_u32(Strbuf *b, uint32_t v)
{
	strbuf_add(b, &v, sizeof v);
}

static void
add_u64(Strbuf *b, uint64_t v)
{
	strbuf_add(b, &v, sizeof v);
}

static void
add_str(Strbuf *b, const char *s)
{
	add_u64(b, strlen(s));
	strbuf_add(b, s, strlen(s));
}

static int64_t
aligned(int64_t v, int64_t align)
{
	return (v + align - 1) & -align;
}

void
gguf_head_init(GgufHead *h, int64_t align)
{
	*h = (GgufHead){ .align = align };
}

void
gguf_head_release(GgufHead *h)
{
	strbuf_release(&h->keys);
	strbuf_release(&h->tensors);
}

void
gguf_head_raw(GgufHead *h, const GgufRaw *r)
{
	add_str(&h->keys, r->name);
	add_u32(&h->keys, r->type);
	if (r->type == GGUF_ARR) {
		add_u32(&h->keys, r->elem);
		add_u64(&h->keys, r->count);
	}
	strbuf_add(&h->keys, r->value, r->bytes);
	h->n_key++;
}

void
gguf_head_str(GgufHead *h, const char *key, const char *value)
{
	add_str(&h->keys, key);
	add_u32(&h->keys, GGUF_STR);
	add_str(&h->keys, value);
	h->n_key++;
}

void
gguf_head_strs(GgufHead *h, const char *key, const char *const *value, size_t n)
{
	add_str(&h->keys, key);
	add_u32(&h->keys, GGUF_ARR);
	add_u32(&h->keys, GGUF_STR);
	add_u64(&h->keys, n);
	for (size_t i = 0; i < n; i++)
		add_str(&h->keys, value[i]);
	h->n_key++;
}

void
gguf_head_u32(GgufHead *h, const char *key, uint32_t value)
{
	add_str(&h->keys, key);
	add_u32(&h->keys, GGUF_U32);
	add_u32(&h->keys, value);
	h->n_key++;
}

void
gguf_head_f32(GgufHead *h, const char *key, float value)
{
	gguf_head_raw(
	    h, &(GgufRaw){ .name = key, .type = GGUF_F32, .value = &value, .bytes = sizeof value });
}

void
gguf_head_bool(GgufHead *h, const char *key, bool value)
{
	uint8_t byte = value;

	gguf_head_raw(h, &(GgufRaw){ .name = key, .type = GGUF_BOOL, .value = &byte, .bytes = 1 });
}

void
gguf_head_list(GgufHead *h, const char *key, GgufType elem, const void *value, size_t bytes,
               size_t n)
{
	gguf_head_raw(h, &(GgufRaw){ .name = key,
	                             .type = GGUF_ARR,
	                             .elem = elem,
	                             .count = n,
	                             .value = value,
	                             .bytes = bytes });
}

void
gguf_head_texts(GgufHead *h, const char *key, const GgufStr *value, size_t n)
{
	gguf_head_list(h, key, GGUF_STR, NULL, 0, n);
	for (size_t i = 0; i < n; i++) {
		add_u64(&h->keys, value[i].n);
		strbuf_add(&h->keys, value[i].s, value[i].n);
	}
}

int64_t
gguf_head_tensor(GgufHead *h, const char *name, Dtype d, int n_dims, const int64_t *dim)
{
	int64_t at = h->data_bytes, bytes = dtype_row_bytes(d, dim[0]);

	add_str(&h->tensors, name);
	add_u32(&h->tensors, (uint32_t)n_dims);
	for (int i = 0; i < n_dims; i++) {
		add_u64(&h->tensors, (uint64_t)dim[i]);
		if (i > 0 && (bytes < 0 || __builtin_mul_overflow(bytes, dim[i], &bytes)))
			return -1;
	}
	if (bytes < 0 || dtype_info(d)->ggml_type < 0)
		return -1;
	add_u32(&h->tensors, (uint32_t)dtype_info(d)->ggml_type);
	add_u64(&h->tensors, (uint64_t)at);
	h->n_tensor++;
	h->data_bytes = aligned(at + bytes, h->align);
	return at;
}

void
gguf_head_text(const GgufHead *h, Strbuf *out)
{
	static const char zero[64] = { 0 };

	strbuf_add(out, "GGUF", 4);
	add_u32(out, 3);
	add_u64(out, h->n_tensor);
	add_u64(out, h->n_key);
	strbuf_add(out, strbuf_str(&h->keys), h->keys.len);
	strbuf_add(out, strbuf_str(&h->tensors), h->tensors.len);
	for (int64_t gap = aligned((int64_t)out->len, h->align) - (int64_t)out->len; gap > 0;
	     gap -= 64)
		strbuf_add(out, zero, gap < 64 ? (size_t)gap : 64);
	out->failed |= h->keys.failed || h->tensors.failed;
}

/* Values of the keys of an open GGUF file. */
#include <string.h>

#include "formats/gguf_private.h"

const uint8_t gguf_type_bytes[GGUF_F64 + 1] = {
	[GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2, [GGUF_U32] = 4,
	[GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STR] = 0, [GGUF_ARR] = 0,
	[GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

static const Key *
find_key(const Gguf *g, const char *key)
{
	const NameEntry *e = names_find(g->key_name, g->n_key, key);
	return e ? &g->key[e->at] : NULL;
}

bool
gguf_type(const Gguf *g, const char *key, GgufType *type, GgufType *elem, size_t *count)
{
	const Key *k = find_key(g, key);

	if (!k)
		return false;
	if (type)
		*type = k->type;
	if (elem)
		*elem = k->elem;
	if (count)
		*count = (size_t)k->count;
	return true;
}

/* Reads element i as both types; *is_int reports which one is exact. */
static bool
element(const Key *k, uint64_t i, int64_t *whole, double *num, bool *is_int)
{
	const unsigned char *p;

	if (i >= k->count || k->elem == GGUF_STR)
		return false;
	p = k->value + i * gguf_type_bytes[k->elem];
	*is_int = true;
	switch (k->elem) {
#define INT_CASE(kind, Type)                                                                       \
	case kind: {                                                                               \
		Type v;                                                                            \
		memcpy(&v, p, sizeof v);                                                           \
		*whole = (int64_t)v;                                                               \
		*num = (double)v;                                                                  \
		return true;                                                                       \
	}
		INT_CASE(GGUF_U8, uint8_t)
		INT_CASE(GGUF_BOOL, uint8_t)
		INT_CASE(GGUF_I8, int8_t)
		INT_CASE(GGUF_U16, uint16_t)
		INT_CASE(GGUF_I16, int16_t)
		INT_CASE(GGUF_U32, uint32_t)
		INT_CASE(GGUF_I32, int32_t)
		INT_CASE(GGUF_I64, int64_t)
#undef INT_CASE
	case GGUF_U64: {
		uint64_t v;
		memcpy(&v, p, sizeof v);
		*num = (double)v;
		*is_int = v <= INT64_MAX;
		*whole = *is_int ? (int64_t)v : 0;
		return true;
	}
	case GGUF_F32: {
		float v;
		memcpy(&v, p, sizeof v);
		*num = (double)v;
		break;
	}
	case GGUF_F64:
		memcpy(num, p, sizeof *num);
		break;
	case GGUF_STR:
	case GGUF_ARR:
		return false;
	}
	*is_int = false;
	return true;
}

bool
gguf_int(const Gguf *g, const char *key, int64_t *out)
{
	const Key *k = find_key(g, key);
	int64_t whole;
	double num;
	bool is_int;

	if (!k || k->type == GGUF_ARR || !element(k, 0, &whole, &num, &is_int) || !is_int)
		return false;
	*out = whole;
	return true;
}

bool
gguf_num(const Gguf *g, const char *key, double *out)
{
	const Key *k = find_key(g, key);
	int64_t whole;
	bool is_int;

	return k && k->type != GGUF_ARR && element(k, 0, &whole, out, &is_int);
}

static void
string_at(const unsigned char *p, GgufStr *out)
{
	uint64_t n;

	memcpy(&n, p, sizeof n);
	*out = (GgufStr){ (const char *)p + sizeof n, (size_t)n };
}

bool
gguf_str(const Gguf *g, const char *key, GgufStr *out)
{
	const Key *k = find_key(g, key);

	if (!k || k->type != GGUF_STR)
		return false;
	string_at(k->value, out);
	return true;
}

bool
gguf_arr_str(const Gguf *g, const char *key, size_t i, GgufStr *out)
{
	const Key *k = find_key(g, key);

	if (!k || k->type != GGUF_ARR || k->elem != GGUF_STR || i >= k->count)
		return false;
	string_at(k->value + k->str_at[i], out);
	return true;
}

GgufRaw
gguf_raw_at(const Gguf *g, size_t i)
{
	const Key *k = &g->key[i];
	GgufRaw r = { k->name,  k->type,  k->elem,
		      k->count, k->value, (size_t)k->count * gguf_type_bytes[k->elem] };

	if (k->elem == GGUF_STR && k->count) {
		GgufStr last;
		string_at(k->value + k->str_at[k->count - 1], &last);
		r.bytes = (size_t)(last.s + last.n - (const char *)k->value);
	}
	return r;
}

bool
gguf_arr_num(const Gguf *g, const char *key, size_t i, double *out)
{
	const Key *k = find_key(g, key);
	int64_t whole;
	bool is_int;

	return k && k->type == GGUF_ARR && element(k, i, &whole, out, &is_int);
}

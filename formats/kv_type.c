#include "formats/kv_type.h"

#include <string.h>

static const KvTypeInfo info[KVT_COUNT] = {
#define X(name, capitals, bits, group, scales) [KVT_##capitals] = { #name, bits, group, scales },
	KV_TYPES(X)
#undef X
};

const KvTypeInfo *
kv_type_info(KvType t)
{
	return &info[t];
}

KvType
kv_type_from_text(const char *text)
{
	for (int i = 0; text && i < KVT_COUNT; i++)
		if (strcmp(info[i].text, text) == 0)
			return (KvType)i;
	return KVT_NONE;
}

bool
kv_quantised(KvType t)
{
	return info[t].scales > 0;
}

bool
kv_by_channel(KvType t)
{
	return t == KVT_INT4C;
}

bool
kv_rotates(KvType t)
{
	return kv_quantised(t) && !kv_by_channel(t);
}

KvType
kv_exact(KvType t)
{
	return kv_quantised(t) ? KVT_F16 : t;
}

bool
kv_for_latents(KvType t)
{
	return !kv_quantised(t) || (info[t].group > 0 && !kv_by_channel(t));
}

KvType
kv_of_latents(KvType t)
{
	return t == KVT_F8 ? KVT_F8_32 : t == KVT_INT8 ? KVT_INT8_32 : t;
}

int64_t
kv_row_bytes(KvType t, int64_t dim)
{
	int64_t group = info[t].group ? info[t].group : dim,
	        n = group ? (dim + group - 1) / group : 0;

	return n * (group * info[t].bits / 8 + info[t].scales);
}

int64_t
kv_rotation(int64_t dim)
{
	return dim & -dim;
}

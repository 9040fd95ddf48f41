/* Types of cached keys and values. A row is the key or value of one head at one position (a latent
 * and its key: one row), and is kept by itself: nothing of its neighbours decides about its bytes,
 * so they are the same in any chunk of a prompt, after a fork and alone.
 *
 *   value = scale * code + zero     scale and zero are f16, one for a group of a row
 *   f8    codes e4m3, group: the row, scale = largest / 448
 *   int8  codes -127 .. 127, group: the row, scale = largest / 127
 *   f8_32, int8_32   the same codes, groups of 32: for latents, where one scale does not suit a latent and its key
 *   int6  codes -31 .. 31, groups of 32, scale = largest / 31
 *   int4  codes 0 .. 15, groups of 32, zero the smallest, scale = (largest - smallest) / 15
 *   int4c codes as int4's, of keys alone: a group is an element of a head over the 32 positions of
 * a page, so a page gets its codes when it is full, from its exact rows. Rows read the last 32
 * positions at least exactly: whichever page they read otherwise is full. Not rotated
 *
 * With rotation a row of a quantised type is first multiplied by a Hadamard matrix over each
 * kv_rotation(dim) of its elements, which spreads outliers over all of them; queries and results
 * are turned likewise, so nothing else changes.
 *
 * Rows of some positions may be kept a second time, in kv_exact's type: turned as the others are,
 * plain. */
#ifndef LLMC_FORMATS_KV_TYPE_H
#define LLMC_FORMATS_KV_TYPE_H

#include <stdbool.h>
#include <stdint.h>

/*        NAME  text   bits group (0: the row) bytes of scale and zero */
#define KV_ROW_TYPES(X)                    \
	X(F32, "f32", 32, 0, 0)            \
	X(F16, "f16", 16, 0, 0)            \
	X(BF16, "bf16", 16, 0, 0)          \
	X(F8, "f8", 8, 0, 2)               \
	X(INT8, "int8", 8, 0, 2)           \
	X(F8_32, "f8_32", 8, 32, 2)        \
	X(INT8_32, "int8_32", 8, 32, 2)    \
	X(INT6, "int6", 6, 32, 2)          \
	X(INT4, "int4", 4, 32, 4)
#define KV_TYPES(X) KV_ROW_TYPES(X) X(INT4C, "int4c", 4, 32, 4)

/* "f32 f16 ...": what a description may ask for; of keys and values alike: without the type of keys
 * alone */
#define KV_TYPE_WORD(name, text, bits, group, scales) " " text
#define KV_TYPE_WORDS (&(KV_TYPES(KV_TYPE_WORD))[1])
#define KV_ROW_TYPE_WORDS (&(KV_ROW_TYPES(KV_TYPE_WORD))[1])

typedef enum KvType {
	KVT_NONE = -1,
#define X(name, text, bits, group, scales) KVT_##name,
	KV_TYPES(X)
#undef X
	    KVT_COUNT
} KvType;

typedef struct KvTypeInfo {
	const char *text;
	int bits;   /* of a code */
	int group;  /* elements with one scale; 0: the row */
	int scales; /* bytes of a group's scale and zero; 0: elements are plain numbers */
} KvTypeInfo;

enum {
	KV_LEAST_ROTATION = 4,
	KV_LEAST_RECENT = 32 /* with types by channel */,
	KV_MOST_EXACT =
	    1 << 20 /* positions that are kept exactly as well, recent ones and first ones each */
};

const KvTypeInfo *kv_type_info(KvType t);   /* t must be valid */
KvType kv_type_from_text(const char *text); /* KVT_NONE: unknown */
bool kv_quantised(KvType t);
bool kv_by_channel(KvType t);
bool kv_rotates(KvType t); /* is a row of it rotated, where that is asked for? */
KvType
kv_exact(KvType t); /* of rows that are kept beside quantised ones: f16; of a plain type: itself */
/* May a latent and its key lie in one row? One scale would not suit both. And the type that is
 * meant by t for latents: of its codes, in groups */
bool kv_for_latents(KvType t);
KvType kv_of_latents(KvType t);
/* Bytes of a row of dim elements; groups are whole. dim <= 2^40 */
int64_t kv_row_bytes(KvType t, int64_t dim);
/* Elements that one Hadamard matrix mixes: the largest power of two that divides dim. */
int64_t kv_rotation(int64_t dim);

#endif
